"""What a fleet does once it is installed: spaces, names, restarts, and a doctor who looks at it."""

import json
import threading
import time
import urllib.request

from fleet import DOMAIN, GATEWAY, Front
from lab import Failed, until
from websocket import WebSocket


def three_machines_run_systemd_on_a_private_network(fleet):
    fleet.prepare()


def spaces_are_made_on_all_machines_and_run_commands(fleet):
    where = {}
    for number in range(9):
        space = fleet.call("acquireSpace", {"name": f"s{number}"})["space"]
        where.setdefault(space["node"], []).append(space["name"])
    if len(where) != 3:
        raise Failed(f"not every machine has one: {where}")
    for names in where.values():
        if fleet.execute(names[0], "id -un").strip() != "user":
            raise Failed("a command runs as somebody else")
        fleet.execute(names[0], "sudo -n id -u && echo kept >~/kept && sync ~/kept")
    fleet.where = where
    return " ".join(f"{node}:{len(names)}" for node, names in sorted(where.items()))


def a_websocket_opens_through_caddy_over_tls(fleet):
    name = fleet.where["n1"][0]
    space = fleet.call("acquireSpace", {"name": name})["space"]
    fleet.serve_echo(name)
    fleet.authority = fleet.gateway.sh("cat /var/lib/caddy/.local/share/caddy/pki/authorities/local/root.crt")
    fleet.host = f"8080-{space['id']}.{DOMAIN}"
    socket = WebSocket(GATEWAY[1], fleet.host, fleet.authority, f"/?signature={fleet.planted['query']}")
    socket.echo("hello")
    fleet.open = socket


def whether_a_name_routes_is_told_to_caddy_alone(fleet):
    for host in (DOMAIN, fleet.host):
        answer = fleet.gateway.sh(f"curl -sk -o /dev/null -w '%{{http_code}}' --resolve {DOMAIN}:443:{GATEWAY[1]} -H 'Host: other.test' 'https://{DOMAIN}/ask?domain={host}'")
        if answer != "404":
            raise Failed(f"/ask from outside answers {answer}")
    answer = fleet.gateway.sh(f"curl -sk -o /dev/null -w '%{{http_code}}' --resolve {DOMAIN}:443:{GATEWAY[1]} 'https://{DOMAIN}/ask?domain={fleet.host}'")
    if answer != "404":
        raise Failed(f"/ask of the fleet's own name answers {answer}")
    near = fleet.gateway.sh(f"curl -s -o /dev/null -w '%{{http_code}}' 'http://{GATEWAY[1]}:4677/ask?domain={fleet.host}'")
    far = fleet.nodes[0].sh(f"curl -s -o /dev/null -w '%{{http_code}}' 'http://{GATEWAY[1]}:4677/ask?domain={fleet.host}'")
    if (near, far) != ("200", "404"):
        raise Failed(f"/ask answers {near} to the gateway's machine and {far} to another")
    no = fleet.gateway.try_sh(f"curl -sk --resolve nobody.{DOMAIN}:443:{GATEWAY[1]} https://nobody.{DOMAIN}/")
    if no.returncode == 0:
        raise Failed("a name that routes nowhere has a certificate")


def a_wildcard_certificate_serves_spaces_instead(fleet):
    fleet.gateway.site("wildcard", f"*.{DOMAIN} {{\n\ttls internal\n\timport gateway\n}}")
    named = ("DNS", f"*.{DOMAIN}")
    until("the wildcard is served", lambda: named in WebSocket(GATEWAY[1], fleet.host, fleet.authority).names())
    WebSocket(GATEWAY[1], fleet.host, fleet.authority).echo("hello")
    fleet.gateway.sh("rm /etc/caddy/conf.d/wildcard.caddy; systemctl reload caddy")
    until("each has its own again", lambda: named not in WebSocket(GATEWAY[1], fleet.host, fleet.authority).names())


def asked_while_nobody_listens(fleet, *asks):
    """What Caddy answers to who asks when the gateway's door is shut, and opened three seconds later."""
    fleet.gateway.sh(
        "systemctl stop drowse-gateway.socket drowse-gateway; "
        "systemd-run -q --timer-property=AccuracySec=100ms --on-active=3s systemctl start drowse-gateway.socket drowse-gateway"
    )
    curl = f"curl -sk -m 30 -K /run/auth -w '%{{http_code}} %{{time_total}}\\n' -o /dev/null --resolve {DOMAIN}:443:{GATEWAY[1]} https://{DOMAIN}"
    said = fleet.gateway.sh(
        f"umask 077; cat >/run/auth <<'E'\nheader = \"Authorization: Bearer {fleet.token}\"\nE\n" + "".join(f"{curl}{ask} & " for ask in asks) + "wait; rm /run/auth"
    )
    answers = [line.split() for line in said.splitlines()]
    if [code for code, _ in answers] != ["200"] * len(asks) or min(float(took) for _, took in answers) < 1:
        raise Failed(f"Caddy answers {answers}")
    fleet.all_live()


def what_was_never_sent_is_tried_again_by_caddy(fleet):
    # Debian's Caddy has let go of a body by then: one of 2.7 or later tries those again too.
    asked_while_nobody_listens(fleet, f"/healthz?sig={fleet.planted['query']}", "/metrics")


# Hears a request out, counts it, and hangs up.
COUNTS = r"""
import socket
s = socket.create_server(("127.0.0.1", 8081))
while True:
    c, _ = s.accept()
    head = b""
    while b"\r\n\r\n" not in head:
        piece = c.recv(4096)
        if not piece: break
        head += piece
    if head: open("/home/user/counted", "a").write(head.split(b" ")[0].decode() + " ")
    c.close()
"""


def what_was_sent_is_not_sent_again(fleet):
    name = fleet.where["n1"][0]
    fleet.execute(name, f"cat >~/counts.py <<'E'\n{COUNTS}\nE\nsetsid python3 ~/counts.py >/dev/null 2>&1 </dev/null & until grep -q ':1F91 ' /proc/net/tcp; do sleep 0.1; done")
    host = fleet.host.replace("8080-", "8081-", 1)
    answers = fleet.gateway.sh("".join(
        f"curl -sk -m 30 -o /dev/null -w '%{{http_code}} ' {method} --resolve {host}:443:{GATEWAY[1]} https://{host}/; " for method in ("", "-d x=1")
    )).split()
    counted = fleet.execute(name, "cat ~/counted; pkill -f counts.py").split()
    if counted != ["GET", "POST"] or any(answer not in ("502", "503") for answer in answers):
        raise Failed(f"the app was asked {counted}, and who asked was answered {answers}")


def what_a_command_says_comes_through_caddy_as_it_is_said(fleet):
    front = Front(fleet.authority)
    headers = {"Authorization": f"Bearer {fleet.token}", "Content-Type": "application/json", "Accept-Encoding": "gzip, br, zstd"}
    wish = {"name": fleet.where["n2"][0], "command": "echo first; sleep 3; echo last"}
    front.request("POST", "/execStream", json.dumps(wish).encode(), headers)
    answer, came = front.getresponse(), {}
    while line := answer.readline():
        came[next(iter(json.loads(line)))] = time.monotonic()
        came.setdefault("first", time.monotonic()) if b"stdout" in line else None
    front.close()
    if answer.getheader("Content-Encoding") or came["ended"] - came["first"] < 2:
        raise Failed(f"encoded as {answer.getheader('Content-Encoding')}, it came at {came}")


def a_domain_of_its_own_leads_to_a_space_without_a_reload(fleet):
    loads = lambda: fleet.gateway.sh("""systemctl show -p MainPID --value caddy; journalctl -u caddy -o cat --no-pager | grep -c '"uri":"/load"' || true""").split()  # noqa: E731
    before = loads()
    fleet.gateway.drowse("domain", "bind", "shop.customer.test", fleet.where["n1"][0])
    WebSocket(GATEWAY[1], "shop.customer.test", fleet.authority).echo("hello")
    if loads() != before:
        raise Failed(f"Caddy was loaded anew: {before}, {loads()}")
    fleet.gateway.sh("systemctl reload caddy")
    until("a reload is seen as one", lambda: loads() != before)
    fleet.open = WebSocket(GATEWAY[1], fleet.host, fleet.authority)


def a_restart_of_the_gateway_refuses_no_connection(fleet):
    stop, answers = threading.Event(), []

    def ask():
        while not stop.is_set():
            try:
                with urllib.request.urlopen(f"http://{GATEWAY[1]}:4677/healthz", timeout=30) as answer:
                    answers.append(answer.status)
            except OSError as error:
                answers.append(error)

    askers = [threading.Thread(target=ask) for _ in range(4)]
    for asker in askers:
        asker.start()
    try:
        for _ in range(3):
            fleet.gateway.sh("systemctl restart drowse-gateway")
    finally:
        stop.set()
    for asker in askers:
        asker.join()
    refused = [answer for answer in answers if answer != 200]
    if refused or len(answers) < 20:
        raise Failed(f"{len(refused)} of {len(answers)} requests were refused: {refused[:3]}")
    fleet.all_live()
    fleet.open = WebSocket(GATEWAY[1], fleet.host, fleet.authority)
    return f"{len(answers)} requests over 3 restarts"


def a_daemon_that_stands_still_is_started_anew(fleet):
    still = ((fleet.gateway, "drowse-gateway"), (fleet.nodes[1], "drowse-node"))
    restarts = lambda: [int(machine.sh(f"systemctl show -p NRestarts --value {unit}")) for machine, unit in still]  # noqa: E731
    before = restarts()
    for machine, unit in still:
        machine.sh(f"systemctl kill --kill-who=main -s STOP {unit}")
    until("their watchdogs have seen it", lambda: all(now > then for now, then in zip(restarts(), before)), seconds=150, every=1)
    fleet.all_live()
    fleet.open = WebSocket(GATEWAY[1], fleet.host, fleet.authority)


def the_doctor_finds_nothing_that_an_installed_machine_lacks(fleet):
    for machine in (fleet.gateway, fleet.nodes[0]):
        done = machine.try_sh("cd /; drowse --json doctor")
        found = {finding["check"]: finding["verdict"] for finding in json.loads(done.stdout or '{"findings":[]}')["findings"]}
        if done.returncode != 0 or found.get("a space") != "good":
            raise Failed(f"{machine.name}: exit {done.returncode}\n{done.stdout}{done.stderr}")


# What doctor is to name, how it comes about, and how it is mended.
BROKEN = [
    ("runtime", "mv /usr/sbin/runc /usr/sbin/runc.gone", "mv /usr/sbin/runc.gone /usr/sbin/runc"),
    ("mkfs.ext4", "mv /usr/sbin/mkfs.ext4 /usr/sbin/mkfs.gone", "mv /usr/sbin/mkfs.gone /usr/sbin/mkfs.ext4"),
    ("templates", "mv /var/lib/drowse/templates/base /run/base", "mv /run/base /var/lib/drowse/templates/base"),
    ("loop devices", "mv /dev/loop-control /dev/loop-gone", "mv /dev/loop-gone /dev/loop-control"),
    ("inotify instances", "sysctl -qw fs.inotify.max_user_instances=16", "sysctl -qp /etc/sysctl.d/60-drowse.conf"),
    ("inotify watches", "sysctl -qw fs.inotify.max_user_watches=100", "sysctl -qp /etc/sysctl.d/60-drowse.conf"),
    ("user namespaces", "echo 0 >/run/none; mount --bind /run/none /proc/sys/user/max_user_namespaces", "umount /proc/sys/user/max_user_namespaces"),
    ("drowse-firewall.service", "systemctl stop drowse-firewall", "systemctl start drowse-firewall"),
    ("drowse-firewall.service", "nft delete table inet drowse", "systemctl restart drowse-firewall"),
    ("drowse-node.service", "systemctl stop drowse-node", "systemctl start drowse-node"),
    ("caddy.service", "systemctl stop caddy", "systemctl start caddy"),
    ("caddy", "mv /usr/bin/caddy /usr/bin/caddy.gone", "mv /usr/bin/caddy.gone /usr/bin/caddy"),
    ("disk", "mount -t tmpfs -o size=16m none /mnt", "umount /mnt"),
]


def the_doctor_names_each_thing_that_is_broken_on_purpose(fleet):
    machine = fleet.gateway
    for check, breaks, mends in BROKEN:
        where = "--node-state /mnt" if check == "disk" else ""
        machine.sh(breaks)
        done = machine.try_sh(f"cd /; drowse --json doctor --offline {where}")
        machine.sh(mends)
        findings = {finding["check"]: finding for finding in json.loads(done.stdout)["findings"]} if done.stdout else {}
        found = findings.get(check, {})
        if done.returncode != 1 or found.get("verdict") != "bad" or not found.get("fix"):
            raise Failed(f"{check}: exit {done.returncode} {found}\n{done.stderr}")
    fleet.all_live()
    the_doctor_finds_nothing_that_an_installed_machine_lacks(fleet)
    fleet.open = WebSocket(GATEWAY[1], fleet.host, fleet.authority)
    return f"{len(BROKEN)} things"


METADATA = "169.254.169.254"


def what_is_forwarded_does_not_reach_the_metadata_of_the_machine(fleet):
    machine = fleet.gateway
    forwards = machine.sh("cat /proc/sys/net/ipv4/ip_forward").strip()
    try:
        # Somebody whose packets the machine forwards, and where clouds answer, with an address beside it.
        machine.sh(f"""
for side in guest cloud; do ip netns add $side; ip link add to-$side type veth peer name eth0 netns $side; ip link set to-$side up; done
ip -n guest addr add 10.99.0.2/24 dev eth0; ip -n guest link set eth0 up; ip addr add 10.99.0.1/24 dev to-guest; ip -n guest route add default via 10.99.0.1
ip -n cloud addr add {METADATA}/24 dev eth0; ip -n cloud addr add 169.254.169.1/24 dev eth0; ip -n cloud link set eth0 up; ip addr add 169.254.169.2/24 dev to-cloud
ip -n cloud route add default via 169.254.169.2
echo 1 >/proc/sys/net/ipv4/ip_forward
cd /tmp; ip netns exec cloud setsid python3 -m http.server 80 >/dev/null 2>&1 </dev/null &
""")
        asks = lambda who, address: machine.try_sh(f"{who} curl -s -o /dev/null -m 2 http://{address}/").returncode == 0  # noqa: E731
        guest = "ip netns exec guest"
        until("what lies beside it is reached", lambda: asks(guest, "169.254.169.1"))
        if not asks("", METADATA):
            raise Failed("the machine itself does not reach its metadata")
        if asks(guest, METADATA):
            raise Failed("a guest reaches the metadata of the machine")
        machine.sh("systemctl stop drowse-firewall")
        if not asks(guest, METADATA):
            raise Failed("it is not the firewall that keeps a guest from it")
    finally:
        machine.try_sh(f"pkill -f http.server; ip netns del guest; ip netns del cloud; echo {forwards} >/proc/sys/net/ipv4/ip_forward; systemctl start drowse-firewall")


def nodes_are_listed_and_removed_by_command_and_by_http(fleet):
    node = fleet.nodes[1]
    for remove in (lambda: fleet.gateway.drowse("node", "rm", "n2", "--yes"), lambda: fleet.call("removeNode", {"nodeId": "n2"})):
        node.sh("systemctl stop drowse-node")
        until("n2 is down", lambda: fleet.states()["n2"] in ("down", "silent"))
        listed = {entry["id"]: entry["state"] for entry in fleet.gateway.drowse("node", "ls")["nodes"]}
        if set(listed) != {"gw", "n1", "n2"}:
            raise Failed(f"drowse node ls shows {listed}")
        remove()
        if fleet.states().get("n2") not in (None, "removed"):
            raise Failed(f"n2 is {fleet.states()['n2']} after its removal")
        node.sh("systemctl start drowse-node")
        until("n2 is seen as removed", lambda: fleet.states().get("n2") == "removed")
        # It is listened to again once it has checked in.
        until("n2 is readmitted", lambda: fleet.answers("readmitNode", {"nodeId": "n2"}))
        fleet.all_live()


def processes_in_spaces_outlive_a_restart_of_the_node(fleet):
    name = fleet.where["n1"][0]
    pid = fleet.execute(name, "setsid sleep 987654 >/dev/null 2>&1 </dev/null & echo $!").strip()
    fleet.nodes[0].sh("systemctl restart drowse-node")
    until("n1 serves again", lambda: fleet.states()["n1"] == "live")
    if "987654" not in fleet.execute(name, f"tr '\\0' ' ' </proc/{pid}/cmdline"):
        raise Failed("the process is gone")
    fleet.pid = pid
    # What it mounts must be the machine's, whatever becomes of the daemon.
    if fleet.nodes[0].sh("readlink /proc/1/ns/mnt") != fleet.nodes[0].sh("readlink /proc/$(pgrep -x drowse-node)/ns/mnt"):
        raise Failed("the node has a mount namespace of its own")
    WebSocket(GATEWAY[1], fleet.host, fleet.authority).echo("after the restart")
