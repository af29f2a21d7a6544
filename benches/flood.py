"""Callers who use spaces, alone and beside floods of what does not exist; and the memory of a cached name."""

import subprocess


def main():
    for package, test in (("drowse-e2e", "soak_measures_a_flood"), ("drowse-gateway", "soak_a_million_names_are_small")):
        subprocess.run(
            ["cargo", "test", "--release", "--locked", "--quiet", "-p", package, "--", "--ignored", "--nocapture", test],
            check=True)
