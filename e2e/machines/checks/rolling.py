"""Another build: on one machine, and on all of them under load."""

import re
import threading
import urllib.request

from fleet import DOMAIN, GATEWAY, same
from lab import Failed
from load import Load
from websocket import WebSocket


def another_build_takes_over_and_processes_in_spaces_go_on(fleet):
    for machine in fleet.machines:
        before = machine.sh("readlink -f /usr/local/lib/drowse/current").strip()
        fleet.install(machine, source="/rel/b")
        after = machine.sh("readlink -f /usr/local/lib/drowse/current; readlink -f /usr/local/lib/drowse/previous").split()
        if after[0] == before or after[1] != before:
            raise Failed(f"{machine.name}: current was {before}, now current and previous are {after}")
    backups = fleet.gateway.sh("stat -c '%a %n' /var/lib/drowse/backups/*")
    if not re.search(r"^600 .*/gateway-", backups, re.M) or not re.search(r"^600 .*/node-", backups, re.M):
        raise Failed(f"the backups are {backups!r}")
    fleet.all_live()
    fleet.execute(fleet.where["n1"][0], f"kill -0 {fleet.pid}")


def a_build_that_does_not_come_up_gives_way_to_the_one_before(fleet):
    for machine, source in ((fleet.gateway, "/rel/bad-gateway"), (fleet.gateway, "/rel/spoils-gateway"), (fleet.nodes[0], "/rel/bad-node"), (fleet.nodes[0], "/rel/spoils")):
        shown = "readlink -f /usr/local/lib/drowse/current; ls /usr/local/lib/drowse"
        # A gateway that fails is no reason to touch its machine's node.
        shown += "; systemctl show -p MainPID drowse-node" if machine is fleet.gateway else ""
        before = machine.sh(shown)
        done = machine.try_sh(f"cd /; bash /src/install.sh --from {source}")
        if done.returncode != 1 or "is back and runs" not in done.stderr or "this build cannot serve" not in done.stderr:
            raise Failed(f"{source}: exit {done.returncode}\n{done.stdout}{done.stderr}")
        same(before, machine.sh(shown), "what is there")
    fleet.all_live()
    fleet.execute(fleet.where["n1"][0], f"kill -0 {fleet.pid}")
    for number in range(4):
        older = number % 2 == 0
        done = fleet.nodes[1].try_sh(f"cd /; bash /src/install.sh --from /rel/{'a' if older else 'b'}")
        if done.returncode != 0 or ("it goes back" in done.stderr) != older:
            raise Failed(f"exit {done.returncode}\n{done.stdout}{done.stderr}")
    kept = fleet.nodes[1].sh("ls /var/lib/drowse/backups/node-*").split()
    if len(kept) != 3:
        raise Failed(f"kept backups: {kept}")
    fleet.all_live()


def the_fleet_is_rolled_under_load_one_machine_after_another(fleet):
    pids, sockets, hosts = {}, {}, {}
    for node, names in fleet.where.items():
        pids[names[0]] = fleet.execute(names[0], "setsid sleep 987655 >/dev/null 2>&1 </dev/null & echo $!").strip()
        space = fleet.call("acquireSpace", {"name": names[0]})["space"]
        fleet.serve_echo(names[0])
        hosts[node] = f"8080-{space['id']}.{DOMAIN}"
        sockets[node] = WebSocket(GATEWAY[1], hosts[node], fleet.authority)
        sockets[node].echo("before")
    together, over = [], threading.Event()

    def look():
        while not over.is_set():
            try:
                nodes = fleet.call("getUpgrade")["nodes"]
            except (Failed, OSError):
                continue
            at_it = [node["id"] for node in nodes if node["state"] == "upgrading"]
            if at_it and at_it != (together[-1] if together else None):
                together.append(at_it)
                if at_it == ["n1"]:
                    # Opened through the gateway's new build, before its own node is exchanged.
                    sockets["n2, later"] = WebSocket(GATEWAY[1], hosts["n2"], fleet.authority)
            over.wait(0.1)

    since = fleet.gateway.sh("date +%s").strip()
    fleet.nodes[0].watch_arguments(fleet.tokens)
    load, looker = Load(fleet), threading.Thread(target=look)
    looker.start()
    try:
        done = fleet.gateway.try_sh("cd /; drowse fleet upgrade --from /rel/c.tar.gz", timeout=600)
    finally:
        over.set()
        looker.join()
        load.stop.set()
    said, refused = load.end()
    if done.returncode != 0:
        raise Failed(f"exit {done.returncode}\n{done.stdout}{done.stderr}")
    if together != [["n1"], ["n2"]]:
        raise Failed(f"at it at one time: {together}")
    seen = fleet.nodes[0].seen_arguments()
    if seen:
        raise Failed(f"an argument shows a token: {seen}")
    # By the installer of the new release.
    for machine in fleet.machines:
        machine.sh("rm /run/installed-by-c")
    fleet.all_live()
    builds = {node["id"]: node["build"]["commit"] for node in fleet.call("listNodes")["nodes"]}
    if set(builds.values()) != {"c"}:
        raise Failed(f"they run {builds}")
    for name, pid in pids.items():
        if "987655" not in fleet.execute(name, f"tr '\\0' ' ' </proc/{pid}/cmdline"):
            raise Failed(f"{name}: the process is gone")
    # Each has lived, or was told that its daemon was restarted.
    ends = {node: socket.end() for node, socket in sockets.items()}
    if not set(ends.values()) <= {1012, None}:
        raise Failed(f"websockets ended with {ends}")
    request = urllib.request.Request(f"http://{GATEWAY[1]}:4677/metrics", headers={"Authorization": f"Bearer {fleet.token}"})
    with urllib.request.urlopen(request, timeout=10) as answer:
        ended = re.findall(r'tunnels_ended_total\{\w+="(\w+)"\} ([1-9]\d*)', answer.read().decode())
    if ends.get("n2, later") != 1012 or "restarted" not in dict(ended):
        raise Failed(f"the one that ended with its node: {ends}, counted {ended}")
    # The gateway that ended has said so itself; its counters went with it.
    words = fleet.gateway.sh(f"journalctl -u drowse-gateway -o cat --no-pager --since @{since} | grep 'ended in this life'")
    told = sum(code == 1012 for code in ends.values()) - 1
    if sum(map(int, re.findall(r"restarted (\d+)", words))) < told:
        raise Failed(f"{told} websockets were told by the gateway that ended, and it says {words}")
    codes = sorted({re.search(r'"code":"(\w+)"', words).group(1) for words in refused})
    return f"{said}{' by ' + ', '.join(codes) if codes else ''}; websockets: {ends}, counted by the gateway: {dict(ended)}"


def what_failed_on_one_node_waits_for_a_person_before_the_next(fleet):
    node = fleet.nodes[0]
    node.sh("mv /usr/bin/sqlite3 /usr/bin/sqlite3.gone")
    done = fleet.gateway.try_sh("cd /; drowse fleet upgrade --from /rel/d.tar.gz", timeout=600)
    if done.returncode != 1 or "n1 is stuck" not in done.stderr or "--retry n1" not in done.stderr:
        raise Failed(f"exit {done.returncode}\n{done.stdout}{done.stderr}")
    nodes = {node["id"]: node for node in fleet.gateway.drowse("fleet", "upgrade", "--status")["nodes"]}
    states = {name: node["state"] for name, node in nodes.items()}
    if states != {"gw": "current", "n1": "stuck", "n2": "behind"} or "sqlite3" not in nodes["n1"]["reason"]:
        raise Failed(f"{nodes}")
    fleet.all_live()
    node.sh("mv /usr/bin/sqlite3.gone /usr/bin/sqlite3")
    done = fleet.gateway.try_sh("cd /; drowse fleet upgrade --retry n1", timeout=600)
    if done.returncode != 0:
        raise Failed(f"exit {done.returncode}\n{done.stdout}{done.stderr}")
    fleet.all_live()
    builds = {node["build"]["commit"] for node in fleet.call("listNodes")["nodes"]}
    if builds != {"d"}:
        raise Failed(f"they run {builds}")
