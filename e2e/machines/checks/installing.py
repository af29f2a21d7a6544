"""What install.sh refuses, makes, repairs and takes off."""

import json
import re
import secrets
import shutil

from fleet import DOMAIN, FILES, GATEWAY, NODES, PROCESSES, ROOT, same
from lab import Failed, run, until
import refusals


TRUNCATIONS = 20


def refuse(machine, cases):
    """Tries each case: one sentence, its code, and nothing is another than before."""
    for case in cases:
        before = machine.sh(FILES + PROCESSES)
        source = "--from /rel/a " if case.get("programs", True) and not case["args"].startswith(("--local", "--uninstall", "--purge", "--state")) else ""
        done = machine.try_sh(
            f"cd /; {case.get('before', ':')}; {case.get('under', '')} env {case.get('env', '')} bash /src/install.sh {source}{case['args']}; "
            f"code=$?; {case.get('after', ':')}; rm -rf /tmp/fake; exit $code"
        )
        said = done.stderr.strip()
        code = case.get("code", 1)
        if done.returncode != code or case["says"] not in said or "\n" in said or not said.startswith("error: ") or done.stdout:
            raise Failed(f"{case['name']}: wanted exit {code} and {case['says']!r}, got exit {done.returncode}:\n{done.stdout}{said}")
        if not said.endswith("Nothing was changed."):
            raise Failed(f"{case['name']}: does not say that nothing was changed: {said}")
        same(before, machine.sh(FILES + PROCESSES), f"{case['name']}: something")
    return f"{len(cases)} refusals, one sentence each"


# The promises, in the order they are proved.


def a_script_that_was_cut_anywhere_changes_nothing(fleet):
    script = (ROOT / "install.sh").read_bytes()
    length = len(script.rstrip())
    last = length - script.rstrip().rindex(b"\n")
    points = [length * (point + 1) // (TRUNCATIONS + 1) for point in range(TRUNCATIONS)] + [length - cut for cut in range(1, last + 1)]
    before = fleet.gateway.sh(FILES)
    for point in points:
        done = fleet.gateway.try_sh(f"cd /; head -c {point} /src/install.sh | bash -s -- --from /rel/a --domain {DOMAIN}")
        # Not even its own refusals are reached.
        if done.stdout or "Nothing was changed" in done.stderr:
            raise Failed(f"cut after {point} of {length} bytes it said {done.stdout}{done.stderr}")
        same(before, fleet.gateway.sh(FILES), f"cut after {point} of {length} bytes: something")
    return f"{len(points)} points"


def what_does_not_fit_is_refused_before_anything_is_touched(fleet):
    fleet.gateway.sh("umask 077; echo 0123456789abcdef0123456789abcdef >/root/token")
    said = refuse(fleet.gateway, refusals.ON_A_FRESH_MACHINE)
    fleet.gateway.sh("rm /root/token")
    return said


def one_command_piped_into_a_shell_makes_the_gateways_machine(fleet):
    # As on a machine that was never a web server: apt brings Caddy.
    fleet.gateway.sh("""
mv /usr/bin/caddy /root/caddy
cat >/usr/local/bin/apt-get <<'E'
#!/bin/sh
echo "$@" >>/root/asked; mv /root/caddy /usr/bin/caddy
E
chmod +x /usr/local/bin/apt-get""")
    out = fleet.gateway.sh(f"cd /; bash -s -- --from /rel/a --domain {DOMAIN} --tls internal <<'END_OF_INSTALLER'\n{(ROOT / 'install.sh').read_text()}\nEND_OF_INSTALLER")
    if fleet.gateway.sh("cat /root/asked; rm /root/asked /usr/local/bin/apt-get").split()[-1] != "caddy":
        raise Failed("apt was asked for something else than Caddy")
    fleet.token = fleet.gateway.sh("cat /etc/drowse/token").strip()
    if fleet.gateway.sh("stat -c '%a %U' /etc/drowse/token").strip() != "600 root":
        raise Failed("the token can be read by others")
    if fleet.token in out:
        raise Failed("the installer prints the token")
    if "NEW_FLEET" in fleet.gateway.sh("cat /etc/drowse/*.env; systemctl cat drowse-gateway; ls /etc/drowse"):
        raise Failed("founding is said again at the next start")
    # All machines share these processors with whatever else runs here.
    fleet.gateway.sh("echo DROWSE_CPU_PERCENT_MAX=100 >>/etc/drowse/gateway.env; systemctl restart drowse-gateway")


def one_command_makes_a_node(fleet):
    # The token by its file or by the environment, never by an argument.
    ways = (("/rel/a", "", "DROWSE_TOKEN_FILE=/root/token"), ("/rel/a.tar", f"--node-endpoint http://{NODES[1][1]}:4676", 'DROWSE_TOKEN="$(cat /root/token)"'))
    for node, (source, more, token) in zip(fleet.nodes, ways):
        node.sh(f"umask 077; echo {fleet.token} >/root/token")
        node.watch_arguments([fleet.token])
        fleet.install(node, f"--role node --gateway http://{GATEWAY[1]}:4677 --region earth {more}", token, source)
        node.sh("rm /root/token")
        seen = node.seen_arguments()
        if seen:
            raise Failed(f"{node.name}: an argument shows the token: {seen}")
    fleet.all_live()
    endpoints = {node["endpoint"] for node in fleet.call("listNodes")["nodes"]}
    if endpoints != {f"http://{address}:4676" for _, address in (GATEWAY, *NODES)}:
        raise Failed(f"they are reached at {endpoints}")


def a_re_run_needs_no_flags_and_changes_nothing(fleet):
    for machine in fleet.machines:
        before = machine.sh(FILES + PROCESSES)
        fleet.install(machine)
        same(before, machine.sh(FILES + PROCESSES), f"{machine.name}: something")
    # Neither Caddy nor the gateway cut it.
    fleet.open.echo("still here")


def what_contradicts_the_machine_or_takes_it_back_is_refused(fleet):
    return refuse(fleet.gateway, refusals.ON_THE_GATEWAY) + "; " + refuse(fleet.nodes[0], refusals.ON_A_NODE)


def a_re_run_repairs_what_the_machine_lost(fleet):
    node = fleet.nodes[1]
    before = node.sh(FILES)
    node.sh("nft delete table inet drowse; rm /etc/sysctl.d/60-drowse.conf /etc/modules-load.d/drowse.conf; sysctl -qw fs.inotify.max_user_instances=200; echo x >>/etc/systemd/system/drowse-firewall.service")
    fleet.install(node)
    strip = lambda text: "\n".join(re.sub(r" \d+\.\d+ \d+\.\d+", "", line) for line in text.splitlines())  # noqa: E731
    same(strip(before), strip(node.sh(FILES)), "after the repair something")


def what_is_changed_in_a_settings_file_is_put_to_work(fleet):
    node = fleet.nodes[0]
    region = lambda: next(listed.get("region") for listed in fleet.call("listNodes")["nodes"] if listed["id"] == "n1")  # noqa: E731
    for written, meant in (('"moon"', "moon"), ("earth", "earth")):
        node.sh(f"sed -i 's/^DROWSE_NODE_REGION=.*/DROWSE_NODE_REGION={written}/' /etc/drowse/node.env")
        fleet.install(node, source="/rel/b")
        until(f"its region is {meant}", lambda: region() == meant)
        before = node.sh(PROCESSES)
        fleet.install(node, source="/rel/b")
        same(before, node.sh(PROCESSES), "what runs")
    # By the installer that is there, as the book says; also what the unit would say otherwise.
    upgrader = lambda: node.sh("tr '\\0' '\\n' </proc/$(systemctl show -p MainPID --value drowse-node)/environ | sed -n 's/^DROWSE_UPGRADER=//p'").strip()  # noqa: E731
    for written, meant in (("DROWSE_UPGRADER=", ""), ("", "/usr/local/lib/drowse/current/deploy/upgrade")):
        node.sh(f"sed -i '/^DROWSE_UPGRADER/d' /etc/drowse/node.env; echo '{written}' >>/etc/drowse/node.env; /usr/local/lib/drowse/current/install.sh")
        if upgrader() != meant:
            raise Failed(f"it upgrades itself by {upgrader()!r}")
    fleet.all_live()


def what_cannot_be_copied_is_a_reason_to_stop_nothing(fleet):
    node = fleet.nodes[0]
    shown = PROCESSES + "readlink -f /usr/local/lib/drowse/current; ls -A /usr/local/lib/drowse"
    before = node.sh(shown)
    node.sh("mv /var/lib/drowse/backups /var/lib/drowse/kept; mkdir /var/lib/drowse/backups; mount -t tmpfs -o size=4k none /var/lib/drowse/backups; echo full >/var/lib/drowse/backups/full")
    done = node.try_sh("cd /; bash /src/install.sh --from /rel/a")
    left = node.sh("ls /var/lib/drowse/backups; umount /var/lib/drowse/backups; rmdir /var/lib/drowse/backups; mv /var/lib/drowse/kept /var/lib/drowse/backups")
    if done.returncode != 1 or "nothing was stopped" not in done.stderr or left.split() != ["full"]:
        raise Failed(f"exit {done.returncode}\n{done.stdout}{done.stderr}left: {left}")
    same(before, node.sh(shown), "what is there")
    units = "/etc/systemd/system"
    node.sh(f"mount --bind {units} {units}; mount -o remount,ro,bind {units}")
    done = node.try_sh("cd /; bash /src/install.sh --from /rel/a")
    node.sh(f"umount {units}")
    if done.returncode != 1 or f"{units} cannot be written; nothing was stopped" not in done.stderr:
        raise Failed(f"exit {done.returncode}\n{done.stdout}{done.stderr}")
    same(before, node.sh(shown), "what is there")


def a_full_disk_is_said_and_room_is_made_on_it(fleet):
    node, number = fleet.nodes[0], 0
    made = {"node": ""}
    while made["node"] != "n1":
        number += 1
        made = fleet.call("acquireSpace", {"name": f"full-{number}"})["space"]
    node.sh("cd /var/lib/drowse; fallocate -l $(( $(df --output=avail -B1 . | tail -n 1) - (64 << 20) )) filler; dd if=/dev/zero of=rest bs=64k 2>/dev/null || true; sync -f .")
    refuses = lambda: next(listed.get("refuses") or "" for listed in fleet.gateway.drowse("node", "ls")["nodes"] if listed["id"] == "n1")  # noqa: E731
    until("the list says that n1 takes no space for want of room", lambda: "disk" in refuses())
    done = node.try_sh("cd /; drowse --json doctor --offline")
    found = {finding["check"]: finding for finding in json.loads(done.stdout)["findings"]}["disk"]
    if done.returncode != 1 or found["verdict"] != "bad":
        raise Failed(f"the doctor says {found}")
    # What is there goes on, also over a restart of the daemon, and is how room is made.
    fleet.execute(fleet.where["n1"][0], "cat ~/kept")
    node.sh("systemctl restart drowse-node")
    until("it serves", lambda: fleet.answers("execCommand", {"name": fleet.where["n1"][0], "command": "true"}))
    fleet.gateway.drowse("space", "rm", made["name"], "--yes")
    node.sh("rm /var/lib/drowse/filler /var/lib/drowse/rest")
    fleet.all_live()
    for made in range(1, number):
        fleet.call("destroySpace", {"name": f"full-{made}"})


def a_release_is_packed_with_its_stamp(fleet):
    rel = fleet.work / "rel"
    said = run(ROOT / "tools" / "pack", fleet.work / "packed.tar.gz", "--from", rel / "a").stdout
    names = lambda archive: set(run("tar", "-tzf", archive).stdout.split())  # noqa: E731
    packed, expected = names(fleet.work / "packed.tar.gz"), names(rel / "c.tar.gz")
    if packed != expected:
        raise Failed(f"packed {packed ^ expected}")
    clone = fleet.work / "clone"
    run("git", "clone", "-q", ROOT, clone)
    commit = run("git", "-C", clone, "rev-parse", "HEAD").stdout.strip()
    if f'"commit":"{commit}' not in said:
        raise Failed(f"it is stamped {said}")
    stamp = lambda: json.loads(run(clone / "deploy" / "stamp", "1.2.3").stdout)  # noqa: E731
    # The one that is to be tried, not the one of the last commit.
    shutil.copy2(ROOT / "deploy" / "stamp", clone / "deploy" / "stamp")
    run("git", "-C", clone, "-c", "user.name=a", "-c", "user.email=a@b", "commit", "-qam", "stamp", "--allow-empty")
    clean = stamp()
    if clean["commit"].endswith("-changed") or stamp() != clean:
        raise Failed(f"a clean clone is stamped {clean}")
    for change in ("echo >>README.md", "git add README.md", "git commit -qam more", "rm docs/api.md", "git rm -q docs/api.md", "git reset -q --hard; echo >new"):
        run("bash", "-c", f"cd {clone}; export GIT_AUTHOR_NAME=a GIT_AUTHOR_EMAIL=a@b GIT_COMMITTER_NAME=a GIT_COMMITTER_EMAIL=a@b; {change}")
        if change.startswith("git commit"):
            clean = stamp()
            continue
        changed = stamp()
        if not changed["commit"].endswith("-changed") or changed["committedAt"] < clean["committedAt"]:
            raise Failed(f"after {change}: {changed}")


def a_run_that_is_ended_half_way_says_so_and_leaves_one_build(fleet):
    node, status = fleet.nodes[0], "/run/told/status.json"
    shown = PROCESSES + "readlink -f /usr/local/lib/drowse/current"
    # Ended from within: as the backup is made, and as the daemon is exchanged.
    fakes = r"""
mkdir -p /tmp/fake /run/told
for name in sqlite3 systemctl; do
  cat >/tmp/fake/$name <<END
#!/bin/sh
case "\$*" in
  *backup*) pkill -TERM -f told && touch /run/told/sent; sleep 1 ;;
  *restart*drowse-node*) pkill -HUP -f told; pkill -TERM -f told && touch /run/told/sent ;;
esac
exec /usr/bin/$name "\$@"
END
  chmod +x /tmp/fake/$name
done
"""
    node.sh(fakes)
    before = node.sh(shown)
    run_it = "cd /; PATH=/tmp/fake:$PATH bash /src/install.sh --from /rel/a --status-dir /run/told"
    done = node.try_sh(run_it)
    said = json.loads(node.sh(f"cat {status}"))
    if done.returncode == 0 or said["state"] != "failed":
        raise Failed(f"exit {done.returncode}, {said}\n{done.stdout}{done.stderr}")
    same(before, node.sh(shown), "what runs")
    # From where it exchanges programs it goes on to the end, whoever has left. What it had started has the lock as long as it lives.
    node.sh("rm /tmp/fake/sqlite3 /run/told/sent; flock -w 20 /run/drowse-install.lock true")
    done = node.try_sh(run_it)
    said = json.loads(node.sh(f"cat {status}"))
    if done.returncode != 0 or said["state"] != "succeeded":
        raise Failed(f"exit {done.returncode}, {said}\n{done.stdout}{done.stderr}")
    if node.sh(shown) == before:
        raise Failed("it is the build of before")
    node.sh("ls /run/told/sent; rm -r /tmp/fake /run/told")
    # Killed between two builds, the way back is known: the next build fails, and what comes back is what ran.
    before = node.sh("readlink /usr/local/lib/drowse/current").strip()
    node.sh(r"""
mkdir /tmp/fake
cat >/tmp/fake/systemctl <<END
#!/bin/sh
case "\$*" in *restart*drowse-node*) pkill -KILL -f status-dir ;; esac
exec /usr/bin/systemctl "\$@"
END
chmod +x /tmp/fake/systemctl
cd /; PATH=/tmp/fake:$PATH bash /src/install.sh --from /rel/bad-node --status-dir /run && exit 1
rm -r /tmp/fake; flock -w 20 /run/drowse-install.lock true""")
    if node.sh("readlink /usr/local/lib/drowse/current").strip() == before:
        raise Failed("it was not cut between two builds")
    done = node.try_sh("cd /; bash /src/install.sh --from /rel/bad-node")
    if done.returncode != 1 or "is back and runs" not in done.stderr or node.sh("readlink /usr/local/lib/drowse/current").strip() != before:
        raise Failed(f"exit {done.returncode}\n{done.stdout}{done.stderr}")
    fleet.install(node, source="/rel/b")
    fleet.all_live()
    # But where the later build came up by itself, that is what ran.
    before = node.sh("readlink /usr/local/lib/drowse/current").strip()
    node.sh("cd /usr/local/lib/drowse; [ -d previous/ ] && cp -P previous trying")
    done = node.try_sh("cd /; bash /src/install.sh --from /rel/bad-node")
    if done.returncode != 1 or "is back and runs" not in done.stderr or node.sh("readlink /usr/local/lib/drowse/current").strip() != before:
        raise Failed(f"exit {done.returncode}\n{done.stdout}{done.stderr}")
    fleet.all_live()


def what_is_taken_off_keeps_its_spaces_unless_they_are_purged(fleet):
    node = fleet.nodes[1]
    name = fleet.where["n2"][0]
    fleet.execute(name, "echo mine >~/mine")
    node.sh("cd /; bash /src/install.sh --uninstall")
    left = node.sh("ls -d /etc/systemd/system/drowse* /usr/local/lib/drowse /usr/local/bin/drowse* 2>/dev/null || true; pgrep -l drowse || true; grep /run/drowse/ /proc/mounts || true")
    if left.strip():
        raise Failed(f"left behind: {left}")
    fleet.install(node)
    fleet.all_live()
    if fleet.execute(name, "cat ~/mine").strip() != "mine":
        raise Failed("the space is not what it was")
    node.sh("cd /; bash /src/install.sh --uninstall --purge")
    left = node.sh("ls -A /etc/drowse /var/lib/drowse 2>/dev/null | grep -v -e templates -e ^$ -e : || true; getent passwd drowse || true")
    if left.strip():
        raise Failed(f"left behind: {left}")


def swap_is_kept_where_it_is_asked_for(fleet):
    node = fleet.nodes[1]
    node.name_the_template()
    node.sh(f"umask 077; echo {fleet.token} >/root/token")
    fleet.install(node, f"--role node --gateway http://{GATEWAY[1]}:4677 --node-id n3 --swap 64MiB --zram 64MiB", "DROWSE_TOKEN_FILE=/root/token")
    before = node.sh("swapon --show=NAME,SIZE --noheadings")
    if "swapfile" not in before or "zram" not in before:
        raise Failed(f"swap is {before!r}")
    node.sh("swapoff /var/lib/drowse/swapfile; systemctl stop drowse-zram")
    fleet.install(node)
    same(before, node.sh("swapon --show=NAME,SIZE --noheadings"), "swap")
    node.sh("sed -i 's/^SWAP=.*/SWAP=/; s/^ZRAM=.*/ZRAM=/' /etc/drowse/host.env")
    fleet.install(node)
    left = node.sh("swapon --show=NAME --noheadings; ls /var/lib/drowse/swapfile /etc/systemd/system/drowse-swap.service /etc/systemd/system/drowse-zram.service 2>/dev/null || true")
    if left.strip():
        raise Failed(f"still there: {left}")
    node.sh("sed -i 's/^SWAP=.*/SWAP=64MiB/; s/^ZRAM=.*/ZRAM=64MiB/' /etc/drowse/host.env")
    fleet.install(node)
    same(before, node.sh("swapon --show=NAME,SIZE --noheadings"), "swap")
    node.sh("cd /; bash /src/install.sh --uninstall --purge")
    left = node.sh("swapon --show=NAME --noheadings; ls /var/lib/drowse | grep -v templates || true")
    if left.strip():
        raise Failed(f"left behind: {left}")


def a_gateway_moves_and_gets_a_domain_by_its_settings(fleet):
    machine, address = fleet.nodes[1], NODES[1][1]
    machine.name_the_template()
    # No domain, and another fleet. Whoever brings a token may have meant one that exists already.
    foreign = secrets.token_hex(32)
    fleet.tokens.insert(0, foreign)
    machine.sh(f"umask 077; echo {foreign} >/root/token")
    # Nor by what was said of another token, and never done.
    machine.sh(f"install -d -m 700 /etc/drowse; echo {secrets.token_hex(8)} >/etc/drowse/new-fleet")
    said = fleet.install(machine, f"--listen {address}:4677", environment="DROWSE_TOKEN_FILE=/root/token")
    done = machine.try_sh("cd /; rm /root/token; drowse space acquire here")
    if done.returncode == 0 or "--new-fleet" not in said:
        raise Failed(f"a fleet was founded unasked: {said}\n{done.stdout}")
    fleet.install(machine, "--new-fleet")
    machine.sh("cd /; drowse space acquire here >/dev/null && drowse space exec here -- true")
    until("the doctor finds nothing", lambda: machine.try_sh("cd /; drowse doctor").returncode == 0, seconds=20)
    machine.sh(f"sed -i 's/^DROWSE_GATEWAY_LISTEN=.*/DROWSE_GATEWAY_LISTEN={address}:4688/' /etc/drowse/gateway.env")
    fleet.install(machine)
    machine.sh("cd /; drowse space exec here -- true && drowse space acquire more >/dev/null")
    # Also from every address to one, and back.
    for host, port in (("0.0.0.0", 4688), (address, 4689), ("0.0.0.0", 4688), (address, 4688)):
        machine.sh(f"sed -i 's/^DROWSE_GATEWAY_LISTEN=.*/DROWSE_GATEWAY_LISTEN={host}:{port}/' /etc/drowse/gateway.env")
        fleet.install(machine)
        machine.sh(f"cd /; drowse space exec here -- true && grep -qx DROWSE_GATEWAY=http://{address}:{port} /etc/drowse/node.env")
    # As the book's first command has it; no authority is to be reached from here.
    machine.sh("echo DROWSE_DOMAIN=other.test >>/etc/drowse/gateway.env; grep -qx TLS=acme /etc/drowse/host.env")
    fleet.install(machine)
    rendered = machine.sh("systemctl is-active caddy >&2; grep -v '^#' /etc/caddy/Caddyfile")
    if "internal" in rendered or re.search(r"@[A-Z_]+@", rendered) or "other.test {" not in rendered:
        raise Failed(f"the Caddyfile is\n{rendered}")
    machine.sh("sed -i 's/^TLS=.*/TLS=internal/' /etc/drowse/host.env")
    fleet.install(machine)
    until("the domain is the gateway's", lambda: machine.sh(f"curl -s -o /dev/null -w '%{{http_code}}' 'http://{address}:4688/ask?domain=here.other.test'") == "200")
    machine.sh("sed -i 's/^DROWSE_DOMAIN=.*/DROWSE_DOMAIN=/' /etc/drowse/gateway.env")
    fleet.install(machine)
    if machine.sh("ls /etc/caddy/Caddyfile 2>/dev/null; systemctl is-active caddy", check=False).split() != ["inactive"]:
        raise Failed("Caddy is there without a domain")
    machine.sh("sed -i 's/^DROWSE_DOMAIN=.*/DROWSE_DOMAIN=other.test/' /etc/drowse/gateway.env")
    fleet.install(machine)
    # A site of the operator's own goes on, also one that leads to the gateway.
    machine.site("mine", "http://mine.test {\n\trespond mine\n}\nhttp://also.test {\n\timport gateway\n}")
    mine = "curl -s -H 'Host: mine.test' http://127.0.0.1/"
    until("the site is served", lambda: machine.sh(mine).strip() == "mine")
    machine.sh("cd /; bash /src/install.sh --uninstall --purge")
    if machine.sh(f"systemctl is-active caddy; {mine}").split() != ["active", "mine"]:
        raise Failed("a site of the operator's own is gone")
    machine.sh("rm /etc/caddy/conf.d/mine.caddy; systemctl stop caddy")
