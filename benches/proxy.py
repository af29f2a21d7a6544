"""CPU per forwarded request: the gateway beside HAProxy and nginx, same client, same node, same run."""

import json
import re
import subprocess

from fleet import Fleet, cpu_seconds, free_port, wait_for

ROUNDS = 3
SECONDS = 6


def lua(fleet, verb, body):
    path = fleet.dir / f"{verb}.lua"
    path.write_text(
        f'wrk.method = "POST"\nwrk.body = {json.dumps(json.dumps(body))}\n'
        f'wrk.headers["authorization"] = "Bearer {fleet.token}"\n')
    path.chmod(0o600)
    return path


def wrk(port, script, verb, connections, seconds=SECONDS):
    out = subprocess.run(
        ["wrk", "-t1", f"-c{connections}", f"-d{seconds}s", "--latency", "-s", script, f"http://127.0.0.1:{port}/{verb}"],
        check=True, capture_output=True, text=True).stdout
    bad = re.search(r"Non-2xx or 3xx responses: (\d+)", out)
    if bad:
        raise SystemExit(f"{bad[1]} bad answers from port {port}:\n{out}")
    latency = {m[1]: to_ms(m[2]) for m in re.finditer(r"^\s+(50|99)%\s+(\S+)$", out, re.M)}
    return int(re.search(r"(\d+) requests in", out)[1]), latency["50"], latency["99"]


def to_ms(text):
    number, unit = re.fullmatch(r"([\d.]+)(us|ms|s)", text).groups()
    return float(number) * {"us": 0.001, "ms": 1, "s": 1000}[unit]


def haproxy(fleet, port):
    path = fleet.dir / "haproxy.cfg"
    path.write_text(f"""
global
  nbthread 2
defaults
  mode http
  timeout connect 10s
  timeout client 60s
  timeout server 60s
  http-reuse always
  option http-keep-alive
frontend in
  bind 127.0.0.1:{port}
  default_backend node
backend node
  option forwardfor
  server node 127.0.0.1:{fleet.node_port}
""")
    process = subprocess.Popen(["haproxy", "-db", "-f", path], stderr=subprocess.DEVNULL)
    return process, lambda: [process.pid]


def nginx(fleet, port):
    path = fleet.dir / "nginx.conf"
    path.write_text(f"""
daemon off; worker_processes 2; pid {fleet.dir}/nginx.pid; error_log stderr crit;
events {{ worker_connections 1024; }}
http {{
  access_log off;
  client_body_temp_path {fleet.dir}/t; proxy_temp_path {fleet.dir}/t; fastcgi_temp_path {fleet.dir}/t;
  uwsgi_temp_path {fleet.dir}/t; scgi_temp_path {fleet.dir}/t;
  upstream node {{ server 127.0.0.1:{fleet.node_port}; keepalive 64; }}
  server {{ listen 127.0.0.1:{port}; keepalive_requests 100000000;
    location / {{ proxy_pass http://node; proxy_http_version 1.1; proxy_set_header Connection "";
                 proxy_set_header X-Forwarded-For $remote_addr; }} }}
}}
""")
    process = subprocess.Popen(["nginx", "-c", path, "-e", "stderr"], stderr=subprocess.DEVNULL)
    def pids():
        children = subprocess.run(["pgrep", "-P", str(process.pid)], capture_output=True, text=True).stdout.split()
        return [process.pid, *map(int, children)]
    return process, pids


def main():
    fleet = Fleet("fake")
    peers = []
    try:
        subjects = {"drowse-gateway": (fleet.gateway_port, lambda: [fleet.gateway_pid])}
        for name, start in (("haproxy", haproxy), ("nginx", nginx)):
            port = free_port()
            process, pids = start(fleet, port)
            peers.append(process)
            wait_for(name, lambda port=port: fleet.call(port, "GET", "/healthz")[0] == 200)
            subjects[name] = (port, pids)
        for verb in ("getSpace", "acquireSpace"):
            print(f"\n{verb}, 16 kept connections, {ROUNDS} rounds of {SECONDS} s each, interleaved", flush=True)
            script = lua(fleet, verb, {"name": "warm-up"})
            cost = {name: [] for name in subjects}
            for _ in range(ROUNDS):
                for name, (port, pids) in subjects.items():
                    before = cpu_seconds(pids())
                    requests, _, _ = wrk(port, script, verb, 16)
                    cost[name].append((cpu_seconds(pids()) - before) / requests * 1e6)
            best = {name: min(values) for name, values in cost.items()}
            for name, values in cost.items():
                print(f"  {name:<16} {best[name]:7.1f} us of CPU a request   ({', '.join(f'{v:.1f}' for v in values)})")
            print(f"  gateway / haproxy {best['drowse-gateway'] / best['haproxy']:.2f}   gateway / nginx {best['drowse-gateway'] / best['nginx']:.2f}")
            print(f"{verb}, one kept connection", flush=True)
            for name, port in [("the node itself", fleet.node_port)] + [(n, s[0]) for n, s in subjects.items()]:
                requests, p50, p99 = wrk(port, script, verb, 1, 4)
                print(f"  {name:<16} p50 {p50:6.3f} ms   p99 {p99:6.3f} ms   {requests} requests", flush=True)
    finally:
        for process in peers:
            process.terminate()
            process.wait(10)
        fleet.close()
