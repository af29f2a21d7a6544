"""Everything install.sh refuses before it touches anything: what is said, what is wrong with the machine, what it answers."""

TOKEN = "DROWSE_TOKEN_FILE=/root/token"
NODE = "--role node --gateway http://172.31.251.10:4677"


def fake_uname(flag, answer):
    """A machine that says something else about itself."""
    return (
        f"mkdir -p /tmp/fake; printf '#!/bin/sh\\n[ \"$*\" = \"{flag}\" ] && echo {answer} || exec /usr/bin/uname \"$@\"\\n' "
        ">/tmp/fake/uname; chmod +x /tmp/fake/uname; PATH=/tmp/fake:$PATH"
    )


def alone(preparation):
    """In a view of the file systems of its own, so that nothing has to be put back."""
    return "unshare -m --propagation private bash -c '" + preparation + "; exec \"$@\"' -"


def reading(file, change):
    """With another content of a settings file, which nobody else sees."""
    return alone(f"sed {change} {file} >/tmp/settings; mount --bind /tmp/settings {file}")


def without(controller):
    """Without a controller of cgroups, in whichever version it is."""
    return alone(
        f"umount /sys/fs/cgroup/{controller}; ! grep -qw {controller} /sys/fs/cgroup/cgroup.controllers 2>/dev/null || mount -t tmpfs none /sys/fs/cgroup"
    )


def holding(port):
    return (
        f"python3 -c 'import socket,time; s=socket.socket(); s.bind((\"0.0.0.0\",{port})); s.listen(); time.sleep(60)' & holder=$!; "
        f"until ss -Hltn 'sport = :{port}' | grep -q .; do :; done"
    )


# name, arguments, what is said, and optionally: code, env (settings of the call), before, after, under (a program that runs it)
ON_A_FRESH_MACHINE = [
    dict(name="unknown flag", args="--frobnicate", says="unknown argument --frobnicate", code=64),
    dict(name="stray word", args="gateway", says="unknown argument gateway", code=64),
    dict(name="flag without value", args="--domain", says="--domain needs a value", code=64),
    dict(name="value for a switch", args="--new-fleet=no", says="--new-fleet takes no value", code=64),
    dict(name="unknown role", args="--role king", says="--role is king", code=64),
    dict(name="gateway flag of a node", args="--gateway http://10.0.0.1:4677", says="--gateway is for --role node", code=64),
    dict(name="endpoint of the gateway", args="--node-endpoint http://10.0.0.1:4676", says="--node-endpoint is for --role node", code=64),
    dict(name="domain of a node", args=f"{NODE} --domain a.test", says="--domain is for the gateway", code=64, env=TOKEN),
    dict(name="listen of a node", args=f"{NODE} --listen 1.2.3.4:1", says="--listen is for the gateway", code=64, env=TOKEN),
    dict(name="tls of a node", args=f"{NODE} --tls internal", says="--tls is for the gateway", code=64, env=TOKEN),
    dict(name="new fleet of a node", args=f"{NODE} --new-fleet", says="--new-fleet is for the gateway", code=64, env=TOKEN),
    dict(name="tls without domain", args="--tls internal", says="--tls goes with --domain", code=64),
    dict(name="tls of no kind", args="--domain a.test --tls none", says="--tls is none", code=64),
    dict(name="malformed domain", args="--domain A_b", says="--domain is A_b", code=64),
    dict(name="malformed listen", args="--listen 4677", says="--listen is 4677", code=64),
    dict(name="malformed swap", args="--swap 8", says="--swap is 8", code=64),
    dict(name="malformed node id", args=f"{NODE} --node-id Rack_1", says="--node-id is Rack_1", code=64, env=TOKEN),
    dict(name="malformed endpoint", args=f"{NODE} --node-endpoint 10.0.0.7", says="--node-endpoint is 10.0.0.7", code=64, env=TOKEN),
    dict(name="malformed region", args=f"{NODE} --region a/b", says="--region is a/b", code=64, env=TOKEN),
    dict(name="malformed zram", args="--zram 4", says="--zram is 4", code=64),
    dict(name="from nothing", args="--from", says="--from needs a directory", code=64, programs=False),
    dict(name="status nowhere", args="--status-dir /nowhere", says="--status-dir needs a directory", code=64),
    dict(name="local nowhere", args="--local --state", says="--state needs a directory", code=64),
    dict(name="uninstall with a flag", args="--uninstall --domain a.test", says="--uninstall goes with --purge alone", code=64),
    dict(name="uninstall by somebody", args="--uninstall", says="run it as root", under="setpriv --reuid=65534 --clear-groups"),
    dict(name="no user namespaces", args="", says="no user namespaces", under=alone("mount -t tmpfs none /proc/$$/ns")),
    dict(name="node without gateway", args="--role node", says="--role node needs --gateway URL", code=64, env=TOKEN),
    dict(name="loopback gateway", args="--role node --gateway http://127.0.0.1:4677", says="is this machine itself", code=64, env=TOKEN),
    dict(name="gateway over TLS", args="--role node --gateway https://10.0.0.1", says="without TLS", code=64, env=TOKEN),
    dict(name="loopback endpoint", args=f"{NODE} --node-endpoint http://localhost:4676", says="the gateway could not reach it", code=64, env=TOKEN),
    dict(name="default node id", args=f"{NODE} --node-id node-1", says="node-1 is what every node is called", code=64, env=TOKEN),
    dict(name="node without token", args=NODE, says="a node needs the fleet's token"),
    dict(name="short token", args=NODE, says="the token has 5 characters", env="DROWSE_TOKEN_FILE=/tmp/short", before="echo short >/tmp/short"),
    dict(name="empty token", args="", says="token that is given is empty", env="DROWSE_TOKEN="),
    dict(name="empty token file", args="", says="token that is given is empty", env="DROWSE_TOKEN_FILE=/tmp/blank", before="echo >/tmp/blank"),
    dict(name="token with spaces", args="", says="printable ones without spaces", env="DROWSE_TOKEN_FILE=/tmp/spaced", before="echo 'a b c d e f g h i j k l m n o p q r s t' >/tmp/spaced"),
    dict(name="token twice", args=NODE, says="are both set", code=64, env=f"{TOKEN} DROWSE_TOKEN=x"),
    dict(name="no token file", args=NODE, says="/nowhere cannot be read", env="DROWSE_TOKEN_FILE=/nowhere"),
    dict(name="purge alone", args="--purge", says="--purge goes with --uninstall", code=64),
    dict(name="uninstall of nothing", args="--uninstall", says="Drowse is not installed here"),
    dict(name="local with a role", args="--local --role node", says="--local goes with --once and --state alone", code=64),
    dict(name="state without local", args="--state x", says="--once and --state go with --local", code=64),
    dict(name="missing programs", args="--from /nowhere", says="/nowhere does not exist", code=64, programs=False),
    dict(name="empty programs", args="--from /tmp/empty", says="has no drowse", before="mkdir -p /tmp/empty", programs=False),
    dict(name="broken archive", args="--from /tmp/broken.tar", says="is no archive", before="echo x >/tmp/broken.tar", programs=False),
    dict(name="no cargo", args="", says="cargo is not installed", programs=False),
    dict(name="not root", args="", says="run it as root", under="setpriv --reuid=65534 --clear-groups"),
    dict(name="wrong architecture", args="", says="this machine is riscv64", before=fake_uname("-m", "riscv64")),
    dict(name="old kernel", args="", says="spaces need Linux 6.1", before=fake_uname("-r", "5.10.0-8")),
    dict(name="no systemd", args="", says="needs systemd", under=alone("mount -t tmpfs none /run/systemd")),
    dict(name="no overlay", args="", says="no overlay file system", under=alone("grep -v overlay /proc/filesystems >/tmp/fs; mount --bind /tmp/fs /proc/filesystems")),
    dict(name="no loop devices", args="", says="no loop devices", before="mv /dev/loop-control /dev/loop-gone", after="mv /dev/loop-gone /dev/loop-control"),
    dict(name="no memory cgroup", args="", says="has the controller memory", under=without("memory")),
    dict(name="no cpu cgroup", args="", says="has the controller cpu", under=without("cpu")),
    dict(name="no pids cgroup", args="", says="has the controller pids", under=without("pids")),
    dict(name="programs of another machine", args="--from /tmp/strange", says="do not run on this machine", before="cp -r /rel/a /tmp/strange; echo strange >/tmp/strange/drowse-node", after="rm -r /tmp/strange", programs=False),
    dict(name="taken port", args="", says="port 4677 is taken by python3", before=holding(4677), after="kill $holder"),
    dict(name="taken node port", args="", says="port 4676 is taken", before=holding(4676), after="kill $holder"),
    dict(name="taken web port", args="--domain a.test", says="port 443 is taken", before=holding(443), after="kill $holder"),
    dict(name="somebody's Caddy", args="--domain a.test", says="is configured by somebody", under=alone("cp /etc/caddy/Caddyfile /tmp/caddy; echo mine >>/tmp/caddy; mount --bind /tmp/caddy /etc/caddy/Caddyfile")),
]

ON_THE_GATEWAY = [
    dict(name="another role", args="--role node --gateway http://10.0.0.1:4677", says="has the role gateway", code=64),
    dict(name="another domain", args="--domain other.test", says="--domain says other.test", code=64),
    dict(name="another address", args="--listen 10.9.9.9:4677", says="--listen says 10.9.9.9:4677", code=64),
    dict(name="another issuer", args="--tls acme", says="--tls says acme", code=64),
    dict(name="another token", args="", says="never changed", env="DROWSE_TOKEN=0123456789abcdef0123456789abcdef"),
    dict(name="a second founding", args="--new-fleet", says="holds a fleet", code=64),
    dict(name="newer ledger", args="", says="was written by a newer version", before="was=$(sqlite3 /var/lib/drowse/node/ledger.db 'pragma user_version'); sqlite3 /var/lib/drowse/node/ledger.db 'pragma user_version=99'", after='[ "$(sqlite3 /var/lib/drowse/node/ledger.db "pragma user_version")" = 99 ] || code=99; sqlite3 /var/lib/drowse/node/ledger.db "pragma user_version=$was"'),
    dict(name="newer roster", args="", says="gateway.db was written by a newer version", before="was=$(sqlite3 /var/lib/drowse/gateway/gateway.db 'pragma user_version'); sqlite3 /var/lib/drowse/gateway/gateway.db 'pragma user_version=99'", after='[ "$(sqlite3 /var/lib/drowse/gateway/gateway.db "pragma user_version")" = 99 ] || code=99; sqlite3 /var/lib/drowse/gateway/gateway.db "pragma user_version=$was"'),
    dict(name="issuer of no kind", args="", says="TLS in /etc/drowse/host.env is none", under=reading("/etc/drowse/host.env", "s/^TLS=.*/TLS=none/")),
    dict(name="no token any more", args="", says="/etc/drowse/token is gone or empty", under=reading("/etc/drowse/token", "d")),
    dict(name="listens nowhere", args="", says="DROWSE_GATEWAY_LISTEN in /etc/drowse/gateway.env is 4677", under=reading("/etc/drowse/gateway.env", "s/^DROWSE_GATEWAY_LISTEN=.*/DROWSE_GATEWAY_LISTEN=4677/")),
    dict(name="domain of no kind", args="", says="DROWSE_DOMAIN in /etc/drowse/gateway.env is A_b", under=reading("/etc/drowse/gateway.env", "s/^DROWSE_DOMAIN=.*/DROWSE_DOMAIN=A_b/")),
    dict(name="uninstall meanwhile", args="--uninstall", says="another install.sh is at work", before="exec 8>/run/drowse-install.lock; flock 8", after="exec 8>&-"),
    dict(name="second installer", args="", says="another install.sh is at work", before="exec 8>/run/drowse-install.lock; flock 8", after="exec 8>&-"),
]

ON_A_NODE = [
    dict(name="another gateway", args="--gateway http://10.9.9.9:4677", says="--gateway says http://10.9.9.9:4677", code=64),
    dict(name="another id", args="--node-id other", says="--node-id says other", code=64),
    dict(name="another endpoint", args="--node-endpoint http://10.9.9.9:4676", says="--node-endpoint says", code=64),
    dict(name="another region", args="--region moon", says="--region says moon", code=64),
    dict(name="a domain", args="--domain a.test", says="--domain is for the gateway", code=64),
    dict(name="another swap", args="--swap 1GiB", says="--swap says 1GiB", code=64),
    dict(name="another zram", args="--zram 1GiB", says="--zram says 1GiB", code=64),
    dict(name="zram of no size", args="", says="ZRAM in /etc/drowse/host.env is 4G", under=reading("/etc/drowse/host.env", "s/^ZRAM=.*/ZRAM=4G/")),
    dict(name="swap of no size", args="", says="SWAP in /etc/drowse/host.env is 8G", under=reading("/etc/drowse/host.env", "s/^SWAP=.*/SWAP=8G/")),
    dict(name="no gateway any more", args="", says="DROWSE_GATEWAY is not set", under=reading("/etc/drowse/node.env", "/^DROWSE_GATEWAY=/d")),
    dict(name="role of the gateway", args="--role gateway", says="has the role node", code=64),
    dict(name="state elsewhere", args="", says="on this machine it is /var/lib/drowse/node", under=reading("/etc/drowse/node.env", "s:^DROWSE_STATE=.*:DROWSE_STATE=/srv/drowse:")),
]
