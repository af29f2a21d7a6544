"""Exec, wake and create in real spaces, beside `runc exec` in the same container and Docker where it is there."""

import concurrent.futures
import pathlib
import shutil
import subprocess
import time

from fleet import Fleet, row, timed_command

BACK_TO_BACK = 200
WITH_GAPS = 20
BURST = 100


def series(run, count, gap=0.0):
    for _ in range(3):
        run()
    values = []
    for _ in range(count):
        if gap:
            time.sleep(gap)
        values.append(run())
    return values


def burst(run, count):
    """All at the same moment; each must succeed."""
    with concurrent.futures.ThreadPoolExecutor(count) as pool:
        start = time.perf_counter()
        values = [each.result() for each in [pool.submit(run) for _ in range(count)]]
        print(f"    the last of {count} after {time.perf_counter() - start:.1f} s")
        return values


def docker_image():
    """A Docker image of the very same root file system, or None where Docker does not run."""
    if not shutil.which("docker") or subprocess.run(["docker", "info"], capture_output=True).returncode:
        return None
    if subprocess.run(["docker", "image", "inspect", "drowse-bench"], capture_output=True).returncode:
        rootfs = (pathlib.Path("/var/lib/drowse/templates") / "base" / "rootfs").resolve()
        tar = subprocess.Popen(["tar", "-C", rootfs, "-c", "."], stdout=subprocess.PIPE)
        subprocess.run(["docker", "import", "-", "drowse-bench"], stdin=tar.stdout, check=True, capture_output=True)
        tar.wait()
    return "drowse-bench"


def main():
    image = docker_image()
    if image is None:
        print("  Docker does not run here: its rows are missing (apt-get install docker.io, start dockerd)")
    fleet = Fleet("oci")
    name = "drowse-bench-peer"
    try:
        session = fleet.session()
        space = fleet.verb("acquireSpace", name="bench")[1]["space"]
        subjects = {"drowse exec, through gateway and node": lambda: session.timed("execCommand", name="bench", argv=["true"])}
        root = next(fleet.run.glob("*/runc"))
        subjects["runc exec, same container"] = lambda: timed_command("runc", "--root", root, "exec", space["id"], "true")
        if image:
            subprocess.run(["docker", "run", "-d", "--name", name, image, "sleep", "infinity"], check=True, capture_output=True)
            subjects["docker exec, same root file system"] = lambda: timed_command("docker", "exec", name, "true")
        print("\nexec of `true`, back to back", flush=True)
        base = None
        for label, run in subjects.items():
            p50 = row(label, series(run, BACK_TO_BACK if base is None else 40))
            base = base or p50
            print(f"    {p50 / base:.1f} x drowse")
        print("\nexec of `true`, one second apart", flush=True)
        for label, run in subjects.items():
            row(label, series(run, WITH_GAPS, 1.0))

        print("\nfrozen to first answer (exec of `true` in a frozen space; peers: resume alone)", flush=True)
        def frozen_exec():
            session.timed("freezeSpace", name="bench")
            return session.timed("execCommand", name="bench", argv=["true"])
        def frozen_acquire():
            session.timed("freezeSpace", name="bench")
            return session.timed("acquireSpace", name="bench")
        row("drowse acquire, frozen", series(frozen_acquire, 100))
        row("drowse exec, frozen", series(frozen_exec, 100))
        if image:
            def unpause():
                subprocess.run(["docker", "pause", name], check=True, capture_output=True)
                return timed_command("docker", "unpause", name)
            row("docker unpause", series(unpause, 30))

        print("\nnew space to first exec", flush=True)
        counter = iter(range(10_000))
        def create():
            fresh = f"new-{next(counter)}"
            return session.timed("acquireSpace", name=fresh) + session.timed("execCommand", name=fresh, argv=["true"])
        def run_docker():
            return timed_command("docker", "run", "--rm", image, "true")
        row("drowse acquire + exec, one after another", series(create, 20))
        if image:
            row("docker run --rm, one after another", series(run_docker, 10))
        row("drowse acquire + exec, 300 ms apart", series(create, 20, 0.3))
        if image:
            row("docker run --rm, 300 ms apart", series(run_docker, 10, 0.3))
        def create_alone():
            own, fresh = fleet.session(), f"burst-{next(counter)}"
            return own.timed("acquireSpace", name=fresh) + own.timed("execCommand", name=fresh, argv=["true"])
        row(f"drowse acquire + exec, {BURST} at once", burst(create_alone, BURST))
        if image:
            row(f"docker run --rm, {BURST} at once", burst(run_docker, BURST))
        print("\nstopped to first exec", flush=True)
        def cold():
            session.timed("stopSpace", name="bench")
            return session.timed("execCommand", name="bench", argv=["true"])
        row("drowse exec, stopped", series(cold, 20))
    finally:
        subprocess.run(["docker", "rm", "-f", name], capture_output=True) if image else None
        fleet.close()
