"""A fleet of real daemons for one benchmark, and small measuring helpers."""

import http.client
import json
import os
import pathlib
import secrets
import shutil
import signal
import socket
import statistics
import subprocess
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
BIN = pathlib.Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target")) / "release"


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def wait_for(what, check, seconds=30):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        try:
            if check():
                return
        except OSError:
            pass
        time.sleep(0.05)
    raise SystemExit(f"{what} did not come up within {seconds} s")


class Fleet:
    """One gateway and one node on loopback. `executor` is `oci` or `fake`; `settings` are for both."""

    def __init__(self, executor, **settings):
        self.dir = pathlib.Path(tempfile.mkdtemp(prefix="drowse-bench-", dir="/tmp"))
        self.dir.chmod(0o711)
        self.run = pathlib.Path("/run") / self.dir.name
        self.token = secrets.token_hex(32)
        token_file = self.dir / "token"
        token_file.write_text(self.token)
        token_file.chmod(0o600)
        self.gateway_port, self.node_port = free_port(), free_port()
        common = {**os.environ, "DROWSE_TOKEN_FILE": str(token_file), "DROWSE_CHECK_IN_SECONDS": "1", **settings}
        self.processes = []
        self._start("drowse-gateway", {**common,
            "DROWSE_GATEWAY_LISTEN": f"127.0.0.1:{self.gateway_port}",
            "DROWSE_STATE": str(self.dir / "gateway"), "DROWSE_NEW_FLEET": "true",
            # A machine that measures is busy.
            "DROWSE_CPU_PERCENT_MAX": "100"})
        self._start("drowse-node", {**common,
            "DROWSE_NODE_LISTEN": f"127.0.0.1:{self.node_port}",
            "DROWSE_NODE_ENDPOINT": f"http://127.0.0.1:{self.node_port}",
            "DROWSE_GATEWAY": f"http://127.0.0.1:{self.gateway_port}",
            "DROWSE_STATE": str(self.dir / "node"), "DROWSE_RUN": str(self.run),
            "DROWSE_CGROUP_PARENT": self.dir.name, "DROWSE_EXECUTOR": executor})
        for port in (self.gateway_port, self.node_port):
            wait_for(f"port {port}", lambda port=port: self.call(port, "GET", "/healthz")[0] == 200)
        wait_for("a first space", lambda: self.verb("acquireSpace", name="warm-up")[0] == 200)

    def _start(self, name, env):
        log = open(self.dir / f"{name}.log", "w")
        self.processes.append(subprocess.Popen([BIN / name], env=env, stdin=subprocess.DEVNULL, stdout=log, stderr=log))

    @property
    def gateway_pid(self):
        return self.processes[0].pid

    def call(self, port, method, path, body=None):
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        connection.request(method, path, body, {"authorization": f"Bearer {self.token}"})
        answer = connection.getresponse()
        status, data = answer.status, answer.read()
        connection.close()
        return status, data

    def verb(self, verb, port=None, **body):
        status, data = self.call(port or self.gateway_port, "POST", f"/{verb}", json.dumps(body))
        return status, json.loads(data)

    def session(self, port=None):
        return Session(port or self.gateway_port, self.token)

    def close(self):
        try:
            # A page at a time, until there is none.
            while spaces := self.verb("listSpaces")[1].get("spaces"):
                for space in spaces:
                    self.verb("destroySpace", name=space["id"])
        finally:
            for process in reversed(self.processes):
                process.send_signal(signal.SIGTERM)
                process.wait(30)
            shutil.rmtree(self.dir, ignore_errors=True)
            shutil.rmtree(self.run, ignore_errors=True)
            # Daemons keep their cgroups for their next start; this fleet has none.
            for tree in pathlib.Path("/sys/fs/cgroup").glob(f"**/{self.dir.name}"):
                for folder, _, _ in os.walk(tree, topdown=False):
                    os.rmdir(folder)


class Session:
    """One kept connection, timed from request to whole answer."""

    def __init__(self, port, token):
        self.connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        self.connection.connect()
        self.connection.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.headers = {"authorization": f"Bearer {token}"}

    def timed(self, verb, **body):
        payload = json.dumps(body)
        start = time.perf_counter()
        self.connection.request("POST", f"/{verb}", payload, self.headers)
        answer = self.connection.getresponse()
        data = answer.read()
        took = (time.perf_counter() - start) * 1e3
        if answer.status != 200:
            raise SystemExit(f"{verb} answered {answer.status}: {data[:300]!r}")
        return took


def timed_command(*argv):
    start = time.perf_counter()
    subprocess.run(argv, check=True, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return (time.perf_counter() - start) * 1e3


def cpu_seconds(pids):
    """User and system time of some processes and all their threads."""
    ticks = 0
    for pid in pids:
        fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
        ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


def resident_bytes(pid):
    pages = pathlib.Path(f"/proc/{pid}/statm").read_text().split()[1]
    return int(pages) * os.sysconf("SC_PAGE_SIZE")


def spread(values):
    values = sorted(values)
    return statistics.median(values), values[min(len(values) - 1, int(len(values) * 0.99))]


def row(name, values, unit="ms"):
    p50, p99 = spread(values)
    print(f"  {name:<44} p50 {p50:8.2f} {unit}   p99 {p99:8.2f} {unit}   n {len(values)}", flush=True)
    return p50
