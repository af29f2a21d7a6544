"""The fleet of three machines that the checks are about."""

import http.client
import json
import pathlib
import secrets
import shutil
import socket
import ssl
import subprocess

from lab import Engine, Failed, Machine, image_archive, run, until
from websocket import SERVER


ROOT = pathlib.Path(__file__).resolve().parents[2]
DOMAIN = "spaces.test"
GATEWAY, NODES = ("gw", "172.31.251.10"), (("n1", "172.31.251.11"), ("n2", "172.31.251.12"))
PROGRAMS = ("drowse", "drowse-node", "drowse-gateway", "drowse-agent")


# Everything on a machine that an installer could change, without what changes by itself.
FILES = r"""
find /etc /usr/local /usr/lib/systemd /root /var/lib/drowse /run/systemd/system /var/spool /opt /home \
  \( -path /var/lib/drowse/templates -o -path /var/lib/drowse/node -o -path /var/lib/drowse/gateway \) -prune -o \
  ! -type d -printf '%p %m %U %s %T@ %C@ %l\n' | sort
systemctl list-unit-files --no-legend | sort
getent passwd
dpkg-query -W | sha256sum
sysctl -a 2>/dev/null | grep -E '^(fs.inotify.max_user_(instances|watches)|kernel.pid_max|kernel.keys.max) ' || true
nft list ruleset
"""


PROCESSES = """
for unit in drowse-gateway drowse-node caddy; do
  systemctl show -p Id -p MainPID -p NRestarts -p ActiveEnterTimestampMonotonic $unit
done
"""


class Front(http.client.HTTPSConnection):
    """A connection to the fleet's domain, from outside."""

    def __init__(self, authority):
        super().__init__(DOMAIN, timeout=60, context=ssl.create_default_context(cadata=authority))

    def connect(self):
        plain = socket.create_connection((GATEWAY[1], 443), self.timeout)
        self.sock = self._context.wrap_socket(plain, server_hostname=DOMAIN)


class Fleet:
    def __init__(self, arguments, work):
        self.arguments, self.work = arguments, work
        # Every token there was, for whoever looks for one where it does not belong.
        self.tokens, self.machines = [], []
        # Where the gateway is that the checks speak with.
        self.door = GATEWAY[1]
        # Distinct secrets, to be looked for where they do not belong.
        self.planted = {name: f"planted-{name}-{secrets.token_hex(12)}" for name in ("authorization", "drowse", "port", "key", "access", "cookie", "query", "referer", "env", "stdin")}

    @property
    def token(self):
        return self.tokens[-1]

    @token.setter
    def token(self, token):
        self.tokens = [known for known in self.tokens if known != token] + [token]

    def prepare(self):
        rel = self.work / "rel"
        for age, what in enumerate("abcd"):
            self.release(rel / what, what, age)
        self.release(rel / "bad-node", "bad-node", 9, broken="drowse-node")
        self.release(rel / "bad-gateway", "bad-gateway", 9, broken="drowse-gateway")
        self.release(rel / "spoils", "spoils", 9, broken="drowse-node", spoils="/var/lib/drowse/node/ledger.db")
        self.release(rel / "spoils-gateway", "spoils-gateway", 9, broken="drowse-gateway", spoils="/var/lib/drowse/gateway/gateway.db")
        shutil.make_archive(str(rel / "a"), "tar", rel, "a")
        for what in "cd":
            run("tar", "-C", rel / what, "-czf", rel / f"{what}.tar.gz", ".")
        self.engine = Engine(self.work)
        image = self.engine.import_image(image_archive())
        shared = {"/src": ROOT, "/rel": rel}
        for name, address in (GATEWAY, *NODES):
            self.machines.append(Machine(self.engine, image, name, address, self.work, shared))
        self.gateway, *self.nodes = self.machines
        for machine in self.machines:
            machine.wait()

    def release(self, directory, what, age, broken=None, spoils=None):
        """What a build gives, with a word of its own in it; `broken` answers about itself and never serves, and before that
        gives the database `spoils` a shape that nobody else knows."""
        directory.mkdir(parents=True)
        for name in PROGRAMS:
            if name != broken:
                shutil.copy2(self.arguments.source / name, directory / name)
                continue
            real = self.arguments.source / name
            says = {flag: run(real, flag).stdout.strip() for flag in ("--version", "--schema")}
            if spoils:
                says["--schema"] = "99"
            (directory / name).write_text(
                f"#!/bin/sh\ncase \"$1\" in --version) echo '{says['--version']}' ;; --schema) echo {says['--schema']} ;;\n"
                f"*) {f'''sqlite3 {spoils} 'pragma user_version=99'; ''' if spoils else ''}echo 'this build cannot serve' >&2; exit 1 ;;\nesac\n"
            )
            (directory / name).chmod(0o755)
        shutil.copytree(ROOT / "deploy", directory / "deploy")
        # Whether it is this very installer that does the work is seen from what it leaves.
        installer = (ROOT / "install.sh").read_text().replace("set -euo pipefail\n", f"set -euo pipefail\ntouch /run/installed-by-{what}\n", 1)
        (directory / "install.sh").write_text(installer)
        (directory / "install.sh").chmod(0o755)
        (directory / "docs").mkdir()
        for page in ("operate.md", "SECURITY.md"):
            shutil.copy2(ROOT / "docs" / page, directory / "docs" / page)
        stamp = {"version": "0.1.0", "commit": what, "committedAt": f"2026-11-{10 + age}T12:00:00Z"}
        (directory / "release.json").write_text(json.dumps(stamp))

    # What the checks use.

    def install(self, machine, arguments="", environment="", source="/rel/a"):
        return machine.sh(f"cd /; {environment} bash /src/install.sh --from {source} {arguments}")

    def call(self, verb, body=None, front=False):
        """Calls a verb at the gateway's own door, or as from outside through Caddy."""
        headers = {"Authorization": f"Bearer {self.token}", "Content-Type": "application/json"}
        connection = Front(self.authority) if front else http.client.HTTPConnection(self.door, 4677, timeout=60)
        try:
            connection.request("POST", f"/{verb}", json.dumps(body or {}).encode(), headers)
            answer = connection.getresponse()
            said = answer.read()
        except http.client.HTTPException as error:
            raise Failed(f"{verb} {body}: {type(error).__name__} {error}") from None
        finally:
            connection.close()
        if answer.status >= 400:
            raise Failed(f"{verb} {body}: {answer.status} {said.decode()}")
        return json.loads(said)

    def answers(self, verb, body):
        try:
            self.call(verb, body)
            return True
        except Failed:
            return False

    def execute(self, space, command):
        answer = self.call("execCommand", {"name": space, "command": command})
        if answer["exitCode"] != 0:
            raise Failed(f"{space}: {command}: {answer}")
        return answer["stdout"]

    def serve_echo(self, space):
        """Has an echo server at port 8080 of the space."""
        listens = "grep -q ':1F90 ' /proc/net/tcp && echo listens || true"
        if not self.execute(space, listens):
            self.execute(space, f"cat >~/echo.py <<'E'\n{SERVER}\nE\nsetsid python3 ~/echo.py >/dev/null 2>&1 </dev/null &")
        until("the app listens", lambda: self.execute(space, listens))

    def states(self):
        return {node["id"]: node["state"] for node in self.call("listNodes")["nodes"]}

    def all_live(self):
        until("three nodes are live and take spaces", lambda: all(
            node["state"] == "live" and not node.get("refuses") for node in self.call("listNodes")["nodes"]
        ) and len(self.states()) == 3)

    def close(self):
        """Takes everything away; what cannot be is said, and the rest goes all the same."""
        for part in (*self.machines, getattr(self, "engine", None)):
            try:
                if part:
                    part.close()
            except (Failed, OSError, subprocess.SubprocessError) as error:
                print(f"warning: left behind: {error}", flush=True)


def same(before, after, what):
    if before != after:
        gone, come = set(before.splitlines()), set(after.splitlines())
        changes = [f"- {line}" for line in sorted(gone - come)] + [f"+ {line}" for line in sorted(come - gone)]
        raise Failed(f"{what} changed:\n" + "\n".join(changes[:40]))
