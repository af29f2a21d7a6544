"""A thousand nodes at one gateway: check-ins, asking all of them beside a bare socket loop, and placement."""

import subprocess

CARGO = ["cargo", "--quiet"]
RELEASE = ["--release", "--locked"]


def main():
    subprocess.run([*CARGO, "run", *RELEASE, "-p", "drowse-e2e", "--example", "scale"], check=True)
    out = subprocess.run(
        [*CARGO, "test", *RELEASE, "-p", "drowse-gateway", "--lib", "--", "--ignored", "--nocapture", "soak_placement_figures"],
        check=True, capture_output=True, text=True).stdout
    for line in out.splitlines():
        if line.startswith("placement"):
            print(line)
