"""What happens to machines over the years, and what their operator does about it."""

import secrets
import time

from fleet import DOMAIN, GATEWAY, NODES
from lab import Failed, newer_caddy, run, until
from load import Makers
from checks.serving import asked_while_nobody_listens
from websocket import WebSocket


# What must have come up before what.
ORDER = [
    ("drowse-firewall.service", "drowse-node.service"),
    ("drowse-spaces.service", "drowse-node.service"),
    ("drowse-gateway.socket", "drowse-gateway.service"),
    ("drowse-gateway.service", "drowse-node.service"),
]


def after_a_power_cut_a_machine_serves_by_itself(fleet):
    node, name, makers = fleet.nodes[0], fleet.where["n1"][0], Makers(fleet)
    try:
        # Not later: it may make durable what the spaces below must have made so by themselves.
        fleet.execute(name, "echo new >~/synced && sync ~/synced")
        made = makers.on("n1")
        until("n1 has some of the new spaces", lambda: makers.on("n1") >= made + 3)
        node.cut()
    finally:
        makers.end()
    node.power()
    fleet.all_live()
    for name in fleet.where["n1"]:
        fleet.execute(name, "true")
    if fleet.execute(fleet.where["n1"][0], "cat ~/kept ~/synced").split() != ["kept", "new"]:
        raise Failed("a file is gone")
    # Up to the last moment: what was said to be there is there.
    for name, space in makers.made.items():
        if fleet.call("getSpace", {"name": name})["space"]["id"] != space["id"]:
            raise Failed(f"{name} is another one")
        fleet.execute(name, "true")
        fleet.call("destroySpace", {"name": name})

    fleet.call("bindDomain", {"name": fleet.where["gw"][0], "domain": "late.customer.test"})
    fleet.gateway.cut()
    fleet.gateway.power()
    until("the gateway answers", lambda: fleet.gateway.try_sh(f"curl -fs http://{GATEWAY[1]}:4677/healthz").returncode == 0)
    fleet.all_live()
    for name in fleet.where["gw"]:
        fleet.execute(name, "true")
    if "late.customer.test" not in [domain["domain"] for domain in fleet.call("listDomains")["domains"]]:
        raise Failed("a domain that was bound is gone")
    for machine in (fleet.gateway, node):
        failed = machine.sh("systemctl --failed --no-legend | grep -E 'drowse|caddy' || true")
        if failed.strip():
            raise Failed(f"{machine.name}: {failed}")
        for daemon in ("drowse-node", "drowse-gateway") if machine is fleet.gateway else ("drowse-node",):
            if "/var/lib/drowse" not in machine.sh(f"systemctl show -p RequiresMountsFor --value {daemon}"):
                raise Failed(f"{machine.name}: {daemon} does not wait for the disk of its state")
        moment = lambda unit, what: int(machine.sh(f"systemctl show -p {what}TimestampMonotonic --value {unit}").strip() or 0)  # noqa: E731
        for first, then in ORDER:
            up, starts = moment(first, "ActiveEnter"), moment(then, "ExecMainStart")
            if "gateway" in first + then and machine is not fleet.gateway:
                continue
            if not 0 < up <= starts:
                raise Failed(f"{machine.name}: {first} was up at {up}, {then} started at {starts}")
    return f"{makers.on('n1')} of {len(makers.made)} new spaces were on the machine"


def a_lost_gateway_learns_its_fleet_from_the_nodes(fleet):
    fleet.gateway.sh("systemctl stop drowse-gateway.socket drowse-gateway; rm -rf /var/lib/drowse/gateway; systemctl start drowse-gateway.socket drowse-gateway")
    until("the fleet is known", lambda: fleet.answers("listNodes", {}))
    fleet.all_live()
    for names in fleet.where.values():
        fleet.execute(names[0], "true")
    # The configuration comes with a check-in of its own.
    bound = lambda: fleet.answers("listDomains", {}) and any(domain["domain"] == "shop.customer.test" for domain in fleet.call("listDomains")["domains"])  # noqa: E731
    until("the domain is bound", bound, seconds=20)
    # The power cut has ended the app.
    fleet.serve_echo(fleet.where["n1"][0])
    WebSocket(GATEWAY[1], "shop.customer.test", fleet.authority).echo("still bound")


def the_token_is_changed_and_processes_go_on(fleet):
    name, before = fleet.where["n1"][0], fleet.token
    pid = fleet.execute(name, "setsid sleep 987656 >/dev/null 2>&1 </dev/null & echo $!").strip()
    fleet.token = secrets.token_hex(32)
    for machine in fleet.machines:
        machine.sh(f"umask 077; cat >/etc/drowse/token.new <<'E'\n{fleet.token}\nE\nmv /etc/drowse/token.new /etc/drowse/token")
    fleet.gateway.sh("systemctl restart drowse-gateway")
    for machine in fleet.machines:
        machine.sh("systemctl restart drowse-node")
    fleet.all_live()
    fleet.execute(name, f"kill -0 {pid}")
    fresh, fleet.token = fleet.token, before
    try:
        fleet.call("listNodes")
        raise Failed("the token of before is taken")
    except Failed as refused:
        if "401" not in str(refused):
            raise
    finally:
        fleet.token = fresh


def a_copy_of_a_ledger_is_put_back(fleet):
    node = fleet.nodes[0]
    where = lambda: {space["name"]: space["id"] for space in fleet.call("listSpaces")["spaces"] if space["node"] == "n1"}  # noqa: E731
    number = 0
    fleet.install(node, source="/rel/c")
    fleet.all_live()
    before = where()
    while set(where()) == set(before):
        number += 1
        fleet.call("acquireSpace", {"name": f"since-{number}"})
    gone = fleet.where["n1"][-1]
    fleet.call("destroySpace", {"name": gone})
    expected = where()
    copy = node.sh("ls -t /var/lib/drowse/backups/node-*.db | head -n 1").strip()
    node.sh(f"systemctl stop drowse-node; cd /var/lib/drowse/node && mkdir ../aside && mv ledger.db* ../aside && cp {copy} ledger.db; systemctl start drowse-node; rm -r ../aside")
    fleet.all_live()
    fleet.where["n1"].remove(gone)
    # What is not there any more is for a person to look at.
    broken = fleet.call("getSpace", {"name": gone})["space"]
    if (broken["state"], broken.get("broken", {}).get("cause")) != ("broken", "disk_missing"):
        raise Failed(f"{broken}")
    fleet.call("destroySpace", {"name": gone})
    if where() != expected:
        raise Failed(f"of {expected} there are {where()}")
    for name in expected:
        fleet.execute(name, "true")
    for made in range(1, number + 1):
        fleet.call("destroySpace", {"name": f"since-{made}"})
    fleet.install(node, source="/rel/d")
    fleet.all_live()


def no_secret_is_where_it_does_not_belong(fleet):
    planted = fleet.planted
    canary = f"canary-{secrets.token_hex(8)}"
    config = "\n".join([
        f'header = "Authorization: Bearer {planted["authorization"]}"', f'header = "Drowse-Authorization: Bearer {planted["drowse"]}"',
        f'header = "Drowse-Token: {planted["port"]}"',
        f'header = "X-API-KEY: {planted["key"]}"', f'header = "X-Access-Token: {planted["access"]}"',
        f'header = "Cookie: s={planted["cookie"]}"', f'header = "Referer: https://a.test/?t={planted["referer"]}"',
    ])
    for host in (fleet.host, DOMAIN):
        fleet.gateway.sh(f"cat >/tmp/c <<'E'\n{config}\nE\ncurl -sk -K /tmp/c --resolve {host}:443:{GATEWAY[1]} 'https://{host}/{canary}?sig={planted['query']}' -d '{{}}' -o /dev/null -m 5; rm /tmp/c")
    # What is looked for was there to be logged.
    until("Caddy logs the requests", lambda: fleet.gateway.sh(f"journalctl -u caddy -o cat --no-pager | grep -c {canary}", check=False).strip() not in ("", "0", "1"))
    for name in (names[0] for names in fleet.where.values()):
        wish = {"name": name, "command": 'cat >/dev/null; [ -n "$WORD" ]', "env": {"WORD": planted["env"]}, "stdin": planted["stdin"]}
        if fleet.call("execCommand", wish)["exitCode"] != 0:
            raise Failed("a command did not have what it was given")
    words = [*fleet.tokens, *planted.values()]
    for machine in fleet.machines:
        # One of them is in every place: each search is seen to work.
        bait = f"planted-bait-{secrets.token_hex(8)}"
        pattern = "\n".join([*words, bait])
        baits = "/run/systemd/system/bait.conf /var/lib/drowse/backups/bait.db"
        found = machine.sh(rf"""
umask 022; echo {bait} >/usr/local/bait
umask 077; for file in {baits}; do echo {bait} >$file; done
echo {bait} | systemd-cat -t bait
bash -c 'exec -a {bait} sleep 300' & argument=$!
WORD={bait} sleep 300 & environment=$!
cat >/run/words <<'E'
{pattern}
E
journalctl --sync; journalctl -o export --no-pager >/run/journal
grep -aFqf /run/words /run/journal && echo journal; grep -aFf /run/words /run/journal | grep -v {bait} | cut -c1-300 | head -3
rm /run/journal
grep -aFlf /run/words /proc/[0-9]*/cmdline 2>/dev/null | sed "s:^/proc/$argument/:its own :"
grep -aFlf /run/words /proc/[0-9]*/environ 2>/dev/null | sed "s:^/proc/$environment/:its own :"
kill $argument $environment
grep -rFlf /run/words /etc/systemd /usr/lib/systemd /run/systemd /usr/local/lib/drowse/current/deploy /etc/caddy 2>/dev/null
grep -aFlf /run/words /var/lib/drowse/*/*.db* /var/lib/drowse/backups/* 2>/dev/null
for place in /etc /run /var/lib /var/log /tmp /root /home /usr/local /var/lib/drowse; do
  find $place -xdev \( -path '*/rootfs' -o -path /var/log/journal \) -prune -o -type f -perm /077 -size -20M -print0 2>/dev/null | xargs -0 -r grep -aFlf /run/words 2>/dev/null
done
rm /run/words /usr/local/bait {baits}""")
        expected = ["journal", "its own cmdline", "its own environ", *baits.split(), "/usr/local/bait"]
        if sorted(set(found.strip().splitlines())) != sorted(expected):
            raise Failed(f"{machine.name}: secrets are in:\n{found}and not only in {expected}")
    # Inside, they come by standard input alone, so that the search does not find itself. One word is there to be found.
    name, word = fleet.where["n1"][0], f"planted-here-{secrets.token_hex(8)}"
    fleet.execute(name, f"echo {word} >~/found")
    for where, expected in (("/proc/[0-9]*/environ /proc/[0-9]*/cmdline", ""), ("/etc /home /opt /root /run /srv /tmp /var", "/home/user/found")):
        inside = fleet.call("execCommand", {"name": name, "command": f"sudo grep -arsFlf - {where}", "stdin": "\n".join([*words, word])})
        if inside["stdout"].strip() != expected:
            raise Failed(f"inside a space a secret is in: {inside}")
    return f"{len(words)} secrets on {len(fleet.machines)} machines"


def streams_outlive_a_reload_of_caddy(fleet):
    gateway, said = fleet.gateway, "stream_close_delay 5m"
    # As a bind mount shows it.
    newer_caddy(fleet.work / "rel" / "caddy.deb")
    gateway.sh("dpkg -i --force-confold /rel/caddy.deb")
    if said in gateway.sh("cat /etc/caddy/Caddyfile"):
        raise Failed("the Caddy of before was told of what it does not know")
    fleet.install(gateway, source="/rel/d")
    if said not in gateway.sh("cat /etc/caddy/Caddyfile"):
        raise Failed("the Caddyfile does not say how long streams may go on")

    def reload(word):
        gateway.site("mine", f"http://mine.test {{\n\trespond {word}\n}}")
        until("the new site is served", lambda: gateway.sh(f"curl -s -H 'Host: mine.test' http://{GATEWAY[1]}/").strip() == word)

    long = WebSocket(GATEWAY[1], fleet.host, fleet.authority)
    reload("first")
    for second in range(10):
        time.sleep(1)
        long.echo(f"{second}")
    # And no longer than is said.
    gateway.sh(f"sed -i 's/{said}/stream_close_delay 4s/' /etc/caddy/Caddyfile")
    reload("second")
    short = WebSocket(GATEWAY[1], fleet.host, fleet.authority)
    began = time.monotonic()
    reload("third")
    short.echo("after")

    def ended():
        try:
            return short.end() is not None
        except (Failed, OSError):
            return True

    until("its delay is over", ended, seconds=30)
    if time.monotonic() - began < 4:
        raise Failed("it ended early")
    long.echo("still here")
    gateway.sh("rm /etc/caddy/conf.d/mine.caddy")
    fleet.install(gateway, source="/rel/d")
    if said not in gateway.sh("cat /etc/caddy/Caddyfile"):
        raise Failed("the Caddyfile is not what it was")
    # It tries requests with a body again too, if nothing was sent.
    asked_while_nobody_listens(fleet, "/healthz", """/acquireSpace -d '{"name":"s0"}'""")
    # And logs no secret.
    return no_secret_is_where_it_does_not_belong(fleet)


def a_gateways_machine_is_replaced_by_another(fleet):
    lost, (node, heir) = fleet.gateway, fleet.nodes
    heir.name_the_template()
    name, pid_of = fleet.where["n1"][0], "setsid sleep 987657 >/dev/null 2>&1 </dev/null & echo $!"
    pid = fleet.execute(name, pid_of).strip()
    lost.cut()
    heir.sh(f"umask 077; echo {fleet.token} >/root/token")
    fleet.install(heir, "--node-id heir", "DROWSE_TOKEN_FILE=/root/token")

    def leads_to(address):
        node.sh(f"sed -i 's|^DROWSE_GATEWAY=.*|DROWSE_GATEWAY=http://{address}:4677|' /etc/drowse/node.env")
        node.sh("/usr/local/lib/drowse/current/install.sh")
        fleet.door = address

    def is_known(what, **expected):
        until(what, lambda: fleet.answers("listNodes", {}) and expected.items() <= fleet.states().items())

    leads_to(NODES[1][1])
    is_known("the new gateway has learned its fleet", n1="live", heir="live")
    fleet.execute(name, f"kill -0 {pid}")
    for gone in [gone for gone, state in fleet.states().items() if state != "live"]:
        heir.drowse("node", "rm", gone, "--yes")
    # A node that is new serves as soon as it has heard that it is one of the fleet.
    until("spaces are made", lambda: fleet.answers("acquireSpace", {"name": "since-the-heir"}))
    fleet.execute("since-the-heir", "true")
    fleet.call("destroySpace", {"name": "since-the-heir"})

    # It is no longer wanted, and learns so although nobody told it.
    lost.power()
    fleet.door = lost.address
    is_known("the gateway that was lost knows that its node was given up", gw="removed", n1="live")
    leads_to(lost.address)
    is_known("the node is back at its gateway", gw="removed", n1="live")
    heir.sh("cd /; bash /src/install.sh --uninstall --purge")
    until("the heir is down", lambda: fleet.states()["heir"] == "down")
    for command in (("rm", "heir", "--yes"), ("readmit", "gw")):
        lost.drowse("node", *command)
    is_known("the fleet is as it was", gw="live", n1="live")
    fleet.execute(name, f"kill -0 {pid}")
    for name in fleet.where["gw"] + fleet.where["n1"]:
        # Those that were readmitted serve once their node has heard of it.
        until(f"{name} runs commands", lambda: fleet.answers("execCommand", {"name": name, "command": "true"}))


def a_dead_machines_spaces_live_on_another(fleet):
    dead, heir = fleet.nodes
    heir.name_the_template()
    heir.sh(f"umask 077; echo {fleet.token} >/root/token")
    # The id is one that somebody else has: it is installed, and waits.
    said = fleet.install(heir, f"--role node --gateway http://{GATEWAY[1]}:4677 --node-id n1", "DROWSE_TOKEN_FILE=/root/token")
    if "node_twin" not in said:
        raise Failed(f"the installer does not say what the node waits for:\n{said}")
    heir.sh("sed -i 's/^DROWSE_NODE_ID=.*/DROWSE_NODE_ID=n4/' /etc/drowse/node.env")
    fleet.install(heir)
    live = lambda: fleet.states().get("n4") == "live"  # noqa: E731
    until("the heir is live", live)
    dead.cut()
    until("n1 is down", lambda: fleet.states()["n1"] in ("down", "silent"))
    # Its disk, in another machine.
    run("cp", "-a", "--sparse=always", dead.disk / "node", heir.disk / "old")
    heir.sh("set -a; . /etc/drowse/node.env; set +a; systemctl stop drowse-node; drowse-node adopt --dry-run /var/lib/drowse/old; drowse-node adopt /var/lib/drowse/old")
    fleet.gateway.drowse("node", "rm", "n1", "--yes")
    heir.sh("systemctl start drowse-node")
    until("the heir is live again", live)
    for name in fleet.where["n1"]:
        until(f"{name} is served", lambda: fleet.answers("wakeSpace", {"name": name}))
        if fleet.call("getSpace", {"name": name})["space"]["node"] != "n4":
            raise Failed(f"{name} is elsewhere")
    if fleet.execute(fleet.where["n1"][0], "cat ~/kept").strip() != "kept":
        raise Failed("a file is gone")
    return f"{len(fleet.where['n1'])} spaces"
