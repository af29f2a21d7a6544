"""Machines: containers with systemd as pid 1 on a private network, on a Docker engine of their own.

A machine has its state directory on a disk of its own, which a power cut treats as it does real ones: what was not synced
is gone.
"""

import fcntl
import hashlib
import json
import os
import pathlib
import re
import shutil
import signal
import struct
import subprocess
import tempfile
import time

TEMPLATES = pathlib.Path(os.environ.get("DROWSE_TEMPLATES", "/var/lib/drowse/templates"))
CACHE = pathlib.Path("/var/lib/drowse/machines")
# How large a machine's disk may grow; it takes what is written.
DISK = "48G"
SUBNET = "172.31.251.0/24"
NETWORK = "drowse-machines"
FREEZER = pathlib.Path("/sys/fs/cgroup/freezer")
# What a Debian server has, and what install.sh would fetch: the machines have no way to a mirror.
PACKAGES = (
    "systemd systemd-sysv dbus kmod iproute2 procps mount e2fsprogs ca-certificates curl openssl python3-minimal "
    "runc nftables sqlite3 b3sum mmdebstrap caddy"
).split()


class Failed(Exception):
    """A check that did not hold, or a step that did not work; says what was seen."""


def run(*command, check=True, timeout=300, **more):
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True, timeout=timeout, **more)
    if check and done.returncode != 0:
        raise Failed(f"{' '.join(map(str, command))}: exit {done.returncode}\n{done.stdout}{done.stderr}")
    return done


def until(what, answer, seconds=60, every=0.2):
    """Asks until there is an answer that is not empty."""
    end = time.monotonic() + seconds
    while True:
        got = answer()
        if got:
            return got
        if time.monotonic() > end:
            raise Failed(f"not within {seconds} s: {what}")
        time.sleep(every)


def image_archive():
    """The root file system of a machine, built once for each list of packages."""
    key = hashlib.sha256(" ".join(PACKAGES).encode()).hexdigest()[:16]
    archive = CACHE / f"bookworm-{key}.tar"
    if not archive.exists():
        CACHE.mkdir(parents=True, exist_ok=True)
        part = archive.with_suffix(f".{os.getpid()}.part")
        sources = pathlib.Path("/etc/apt/sources.list.d/debian.sources")
        quiet = [f"--dpkgopt=path-exclude=/usr/share/{part}/*" for part in ("man", "doc", "locale")]
        run(
            "mmdebstrap", "--quiet", "--variant=minbase", "--mode=root", "--format=tar",
            f"--include={','.join(PACKAGES)}", '--aptopt=Acquire::Languages "none"', *quiet,
            "bookworm", part, *([sources] if sources.exists() else []), timeout=900,
        )
        part.rename(archive)
    return archive


def newer_caddy(place):
    """Puts Debian's own build of a Caddy that keeps streams over a reload into `place`; the release of the machines has none."""
    archive = CACHE / "caddy.deb"
    if not archive.exists():
        sources = pathlib.Path("/etc/apt/sources.list.d/debian.sources")
        mirror = re.search(r"^URIs: (\S+)", sources.read_text() if sources.exists() else "", re.M)
        with tempfile.TemporaryDirectory(dir="/var/tmp") as work:
            listed = pathlib.Path(work) / "list"
            for part in ("lists/partial", "cache/archives/partial"):
                (pathlib.Path(work) / part).mkdir(parents=True)
            key = "/usr/share/keyrings/debian-archive-keyring.gpg"
            listed.write_text(f"deb [signed-by={key}] {mirror[1] if mirror else 'http://deb.debian.org/debian'} sid main\n")
            own = [f"-oDir::Etc::SourceList={listed}", "-oDir::Etc::SourceParts=/dev/null", "-oAPT::Sandbox::User=root"]
            own += [f"-oDir::State::lists={work}/lists", f"-oDir::Cache={work}/cache", "-oAcquire::Languages=none"]
            run("apt-get", "-q", *own, "update")
            run("apt-get", "-q", *own, "download", "caddy", cwd=work)
            [found] = pathlib.Path(work).glob("caddy_*.deb")
            CACHE.mkdir(parents=True, exist_ok=True)
            part = archive.with_suffix(f".{os.getpid()}.part")
            shutil.copy(found, part)
            part.rename(archive)
    shutil.copy(archive, place)


class Engine:
    """A Docker engine of our own, with all it has under `root`: whatever else runs on this machine is left alone."""

    def __init__(self, root):
        self.root, self.process, self.rules = root, None, None
        self.environment = dict(os.environ)
        self._start()
        self.docker("network", "create", "--internal", "--subnet", SUBNET, NETWORK)

    def _start(self):
        self.rules = run("iptables-save", check=False).stdout
        self.environment["DOCKER_HOST"] = f"unix://{self.root}/sock"
        with open(self.root / "dockerd.log", "wb") as log:
            self.process = subprocess.Popen(
                [
                    "dockerd", "--bridge=none", f"--data-root={self.root}/data", f"--exec-root={self.root}/exec",
                    f"--pidfile={self.root}/pid", f"--host=unix://{self.root}/sock",
                ],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
            )
        until("the engine answers", lambda: self.docker("info", check=False).returncode == 0)

    def docker(self, *command, **more):
        return run("docker", *command, env=self.environment, **more)

    def import_image(self, archive):
        return self.docker("import", archive).stdout.strip()

    def close(self):
        self.docker("network", "rm", NETWORK, check=False)
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(60)
        except subprocess.TimeoutExpired:
            self.process.kill()
        if self.rules:
            run("iptables-restore", input=self.rules, check=False)
        for line in open("/proc/mounts"):
            if str(self.root) in line.split()[1]:
                run("umount", "-l", line.split()[1], check=False)


class Disk:
    """A file system in a file."""

    # EXT4_IOC_SHUTDOWN, and that not even the journal is written first (include/uapi/linux/ext4.h).
    SHUTDOWN, NO_FLUSH = 0x8004587D, 2

    def __init__(self, place):
        self.place, self.file = place, place.with_suffix(".img")
        run("truncate", "-s", DISK, self.file)
        run("mkfs.ext4", "-q", "-F", "-J", "size=64", self.file)
        place.mkdir()
        self.mount()

    def mount(self):
        run("mount", "-o", "loop", self.file, self.place)

    def unmount(self):
        if run("mountpoint", "-q", self.place, check=False).returncode == 0:
            until(f"{self.place} is free", lambda: run("umount", self.place, check=False).returncode == 0)

    def lose_power(self):
        """What was not synced will never be written; from here on nothing is."""
        fd = os.open(self.place, os.O_RDONLY | os.O_DIRECTORY)
        try:
            fcntl.ioctl(fd, self.SHUTDOWN, struct.pack("I", self.NO_FLUSH))
        finally:
            os.close(fd)


class Machine:
    """One machine."""

    def __init__(self, engine, image, name, address, root, shared):
        self.engine, self.name, self.address = engine, name, address
        self.drive = Disk(root / name)
        self.disk = self.drive.place
        template = TEMPLATES / os.readlink(TEMPLATES / "base")
        (self.disk / "templates").mkdir(parents=True)
        self.name_the_template()
        try:
            self._create(image, address, template, shared)
        except BaseException:
            self.drive.unmount()
            raise

    def _create(self, image, address, template, shared):
        here = pathlib.Path(__file__).parent
        self.engine.docker(
            "run", "-d", "--name", self.name, "--hostname", self.name, "--network", NETWORK, "--ip", address,
            "--cap-add=ALL", "--cap-drop=SYS_RESOURCE", "--security-opt=seccomp=unconfined",
            "--security-opt=apparmor=unconfined", "--security-opt=systempaths=unconfined",
            "--device-cgroup-rule=a *:* rwm", "--cgroupns=private", "-e", "container=docker",
            "--tmpfs=/run", "--tmpfs=/run/lock", "--tmpfs=/tmp:exec", "--stop-signal=SIGRTMIN+3",
            "-v", f"{here}/boot:/boot.sh:ro", "-v", f"{self.disk}:/var/lib/drowse",
            "-v", f"{template}:/var/lib/drowse/templates/{template.name}:ro",
            *(f"--volume={host}:{inside}:ro" for inside, host in shared.items()), image, "/boot.sh",
        )

    def name_the_template(self):
        """The base image is shared with the host; what names it is the machine's own."""
        for link in [TEMPLATES / "base", *TEMPLATES.glob(".recipe-*")]:
            shutil.copy(link, self.disk / "templates" / link.name, follow_symlinks=False)

    def wait(self):
        def state():
            return self.sh("systemctl is-system-running", check=False).strip() in ("running", "degraded")

        until(f"{self.name} has booted", state)

    def sh(self, script, check=True, timeout=300):
        """What a shell as root on the machine prints. The script goes in by standard input: no argument shows it."""
        done = self.try_sh(script, timeout)
        if check and done.returncode != 0:
            raise Failed(f"{self.name}: {script}\nexit {done.returncode}\n{done.stdout}{done.stderr}")
        return done.stdout

    def try_sh(self, script, timeout=300):
        return self.engine.docker("exec", "-i", self.name, "bash", input=script, check=False, timeout=timeout)

    def site(self, name, text):
        """Has Caddy serve a site of the operator's own."""
        self.sh(f"cat >/etc/caddy/conf.d/{name}.caddy <<'E'\n{text}\nE\nsystemctl reload caddy")

    def watch_arguments(self, words):
        """Looks for these words in the arguments of every process, from now on. A bait shows that it does."""
        words = "\n".join([*words, "planted-argument"])
        self.sh(
            f"umask 077; rm -f /run/watch.*; cat >/run/watch.words <<'E'\n{words}\nE\n"
            "setsid bash -c 'while [ ! -e /run/watch.over ]; do for each in /proc/[0-9]*/cmdline; do grep -aqFf /run/watch.words $each 2>/dev/null && "
            "{ tr \"\\0\" \" \" <$each; echo; } >>/run/watch.seen; done; sleep 0.05; done; touch /run/watch.ended' >/dev/null 2>&1 </dev/null &"
        )
        until("it looks", lambda: "planted-argument" in self.sh("bash -c 'exec -a planted-argument sleep 1'; cat /run/watch.seen 2>/dev/null || true"))

    def seen_arguments(self):
        """Ends the watch. Answers what was seen."""
        self.sh("touch /run/watch.over")
        until("it has ended", lambda: self.try_sh("ls /run/watch.ended").returncode == 0)
        seen = self.sh("cat /run/watch.seen; rm /run/watch.*").splitlines()
        return [line for line in seen if not line.startswith("planted-argument")]

    def drowse(self, *arguments):
        return json.loads(self.sh("cd /; drowse --json " + " ".join(arguments)))

    def cut(self):
        """Takes the power away, at once, with what was on its way to the disk."""
        self.drive.lose_power()
        self._thaw()
        self.engine.docker("kill", "--signal=KILL", self.name)
        self.drive.unmount()
        self.drive.mount()

    def _thaw(self):
        # What version 1 of cgroups has frozen does not even die.
        identity = self.engine.docker("inspect", "-f", "{{.Id}}", self.name, check=False).stdout.strip()
        for state in FREEZER.glob(f"docker/{identity}/**/freezer.state") if identity else []:
            try:
                state.write_text("THAWED")
            except OSError:
                pass

    def power(self):
        self.engine.docker("start", self.name)
        self.wait()

    def close(self):
        self._thaw()
        self.engine.docker("rm", "-f", self.name, check=False)
        # Swap is the kernel's, whichever machine asked for it.
        run("swapoff", self.disk / "swapfile", check=False)
        self.drive.unmount()
