"""Apps in real spaces by host: the gateway beside HAProxy in front of the same node, and what a frozen app costs its first caller."""

import resource
import socket
import subprocess
import time

from fleet import Fleet, cpu_seconds, free_port, resident_bytes, row, wait_for
from proxy import wrk
from spaces import docker_image, series, timed_command

ROUNDS = 3
SECONDS = 6
LARGE_MIB = 512
# Fewer than a node lets one space have where 20,000 files may be open.
TUNNELS = 800
DOMAIN = "bench.test"
HOST = f"shop.{DOMAIN}"

# 8080 answers five bytes and grants any upgrade; 8081 sends a large body.
APP = f"""
import asyncio, socket, threading
class App(asyncio.Protocol):
    def connection_made(self, io):
        self.io, self.head = io, b''
    def data_received(self, data):
        self.head += data
        while b'\\r\\n\\r\\n' in self.head:
            head, self.head = self.head.split(b'\\r\\n\\r\\n', 1)
            if b'upgrade: echo' in head.lower():
                self.io.write(b'HTTP/1.1 101 Switching Protocols\\r\\nConnection: upgrade\\r\\nUpgrade: echo\\r\\n\\r\\n')
            else:
                self.io.write(b'HTTP/1.1 200 OK\\r\\nContent-Length: 5\\r\\n\\r\\nhello')
def large():
    listener = socket.create_server(('127.0.0.1', 8081))
    piece = bytes(1 << 20)
    while True:
        io = listener.accept()[0]
        io.recv(65536)
        io.sendall(b'HTTP/1.1 200 OK\\r\\nConnection: close\\r\\nContent-Length: %d\\r\\n\\r\\n' % ({LARGE_MIB} << 20))
        for _ in range({LARGE_MIB}):
            io.sendall(piece)
        io.close()
threading.Thread(target=large, daemon=True).start()
async def main():
    server = await asyncio.get_running_loop().create_server(App, '127.0.0.1', 8080, backlog=4096)
    await server.serve_forever()
asyncio.run(main())
"""


def haproxy(fleet, space, front):
    """HAProxy in the gateway's place: it knows the space and the node already."""
    config = fleet.dir / "haproxy.cfg"
    config.write_text(f"""
global
  nbthread 2
  maxconn 8000
defaults
  mode http
  timeout connect 10s
  timeout client 600s
  timeout server 600s
  timeout tunnel 600s
  http-reuse always
  option http-keep-alive
frontend in
  bind 127.0.0.1:{front}
  default_backend node
backend node
  option forwardfor
  http-request set-header Drowse-Authorization "Bearer {fleet.token}"
  http-request set-header Drowse-Forwarded 1
  http-request set-header Drowse-Space {space}
  http-request set-header Drowse-Expect "existing;id={space};epoch=1"
  http-request set-header Drowse-Port %[req.hdr(host),regsub(-.*,)]
  server node 127.0.0.1:{fleet.node_port}
""")
    config.chmod(0o600)
    return subprocess.Popen(["haproxy", "-db", "-f", config], stderr=subprocess.DEVNULL)


def get(port, host, path="/"):
    """One request on a connection of its own: milliseconds to the first byte of the answer, and the answer."""
    with socket.create_connection(("127.0.0.1", port)) as io:
        start = time.perf_counter()
        io.sendall(f"GET {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n".encode())
        first = io.recv(4096)
        return (time.perf_counter() - start) * 1e3, first


def download(port, host):
    """MiB a second of the large body."""
    start, length = time.perf_counter(), 0
    with socket.create_connection(("127.0.0.1", port)) as io:
        io.sendall(f"GET / HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n".encode())
        while piece := io.recv(1 << 18):
            length += len(piece)
    if length < LARGE_MIB << 20:
        raise SystemExit(f"only {length} bytes came")
    return LARGE_MIB / (time.perf_counter() - start)


def idle_tunnels(port, host, pid):
    """Bytes of memory each of many tunnels takes while nothing is said in it."""
    before, held = resident_bytes(pid), []
    try:
        for _ in range(TUNNELS):
            io = socket.create_connection(("127.0.0.1", port))
            io.sendall(f"GET / HTTP/1.1\r\nHost: {host}\r\nConnection: upgrade\r\nUpgrade: echo\r\n\r\n".encode())
            if b" 101 " not in io.recv(4096):
                raise SystemExit("a tunnel was refused")
            held.append(io)
        time.sleep(2)
        return (resident_bytes(pid) - before) / TUNNELS
    finally:
        for io in held:
            io.close()


def main():
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    fleet = Fleet("oci", DROWSE_DOMAIN=DOMAIN)
    peer = None
    try:
        space = fleet.verb("acquireSpace", name="shop")[1]["space"]["id"]
        fleet.verb("writeFile", name="shop", path="app.py", content=APP)
        fleet.verb("execCommand", name="shop", command="exec python3 app.py", detach=True)
        small, large = f"8080-{space}.{DOMAIN}", f"8081-{space}.{DOMAIN}"
        wait_for("the app", lambda: b"hello" in get(fleet.gateway_port, small)[1])
        front = free_port()
        peer = haproxy(fleet, space, front)
        wait_for("haproxy", lambda: b"hello" in get(front, small)[1])
        subjects = {"drowse-gateway": (fleet.gateway_port, fleet.gateway_pid), "haproxy": (front, peer.pid)}

        # Before anything else has taken memory that could be used again.
        print(f"\nmemory of {TUNNELS} tunnels in which nothing is said", flush=True)
        for name, (port, pid) in subjects.items():
            print(f"  {name:<16} {idle_tunnels(port, small, pid) / 1024:6.1f} KiB each", flush=True)

        script = fleet.dir / "host.lua"
        script.write_text(f'wrk.headers["Host"] = "{small}"\n')
        print(f"\nan app's five bytes, 16 kept connections, {ROUNDS} rounds of {SECONDS} s each, interleaved", flush=True)
        cost, rate = {name: [] for name in subjects}, {name: [] for name in subjects}
        for _ in range(ROUNDS):
            for name, (port, pid) in subjects.items():
                before = cpu_seconds([pid])
                requests, _, _ = wrk(port, script, "", 16, SECONDS)
                cost[name].append((cpu_seconds([pid]) - before) / requests * 1e6)
                rate[name].append(requests / SECONDS)
        for name in subjects:
            print(f"  {name:<16} {min(cost[name]):7.1f} us of CPU a request   {max(rate[name]):8.0f} requests/s")
        print(f"  gateway / haproxy {min(cost['drowse-gateway']) / min(cost['haproxy']):.2f}")

        print(f"\na body of {LARGE_MIB} MiB, {ROUNDS} rounds, interleaved", flush=True)
        cost, rate = {name: [] for name in subjects}, {name: [] for name in subjects}
        for _ in range(ROUNDS):
            for name, (port, pid) in subjects.items():
                before = cpu_seconds([pid])
                rate[name].append(download(port, large))
                cost[name].append((cpu_seconds([pid]) - before) * 1e3 / (LARGE_MIB / 1024))
        for name in subjects:
            print(f"  {name:<16} {max(rate[name]):7.0f} MiB/s   {min(cost[name]):7.0f} ms of CPU a GiB")

        print("\nfrozen app to the first byte of its answer", flush=True)
        def thaw():
            fleet.verb("freezeSpace", name="shop")
            return get(fleet.gateway_port, small)[0]
        row("drowse, through gateway and node", series(thaw, 100))
        if image := docker_image():
            name = "drowse-bench-thaw"
            subprocess.run(["docker", "run", "-d", "--name", name, image, "sleep", "infinity"], check=True, capture_output=True)
            try:
                def unpause():
                    subprocess.run(["docker", "pause", name], check=True, capture_output=True)
                    return timed_command("docker", "unpause", name)
                row("docker unpause, no answer included", series(unpause, 30))
            finally:
                subprocess.run(["docker", "rm", "-f", name], capture_output=True)
    finally:
        if peer:
            peer.terminate()
            peer.wait(10)
        fleet.close()
