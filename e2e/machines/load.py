"""Who uses a fleet while something is done to it."""

import threading
import time

from lab import Failed


class Load:
    """Twenty requests a second over every space of the fleet, and one long command after another on every machine."""

    EVERY = 0.05
    # How long requests for the spaces of a node may fail while it is exchanged, in seconds: docs/operate.md.
    GRACE = 10

    def __init__(self, fleet):
        self.fleet, self.stop, self.lock = fleet, threading.Event(), threading.Lock()
        self.began = time.monotonic()
        self.spaces = [name for names in fleet.where.values() for name in names]
        self.answers, self.long = {name: [] for name in self.spaces}, []
        self.threads = [threading.Thread(target=self._pace, daemon=True)]
        self.threads += [threading.Thread(target=self._long, args=(names[-1],), daemon=True) for names in fleet.where.values()]
        for thread in self.threads:
            thread.start()

    def _pace(self):
        flying, turn, began = [], 0, time.monotonic()
        while not self.stop.is_set():
            name = self.spaces[turn % len(self.spaces)]
            # Every second one comes from outside.
            front = turn // len(self.spaces) % 2 == 0
            flying.append(threading.Thread(target=self._one, args=(name, front), daemon=True))
            flying[-1].start()
            turn += 1
            self.stop.wait(max(0, began + turn * self.EVERY - time.monotonic()))
        for thread in flying:
            thread.join()

    def _one(self, name, front):
        began = time.monotonic()
        try:
            self.fleet.call("execCommand", {"name": name, "command": "true"}, front=front)
            said = None
        except (Failed, OSError) as error:
            said = str(error)
        with self.lock:
            self.answers[name].append((began, time.monotonic(), said))

    def _long(self, name):
        while not self.stop.is_set():
            try:
                said = self.fleet.call("execCommand", {"name": name, "command": "sleep 3; echo done"})["stdout"].strip()
            except (Failed, OSError) as error:
                said = str(error)
            with self.lock:
                self.long.append(said)

    def end(self):
        self.stop.set()
        lasted = time.monotonic() - self.began
        for thread in self.threads:
            thread.join()
        total = sum(map(len, self.answers.values()))
        if total < 0.8 * lasted / self.EVERY or not all(self.answers.values()) or len(self.long) < 3 * len(self.fleet.where):
            raise Failed(f"that is no load: {total} requests and {len(self.long)} commands in {lasted:.0f} s")
        failed, outage, slowest = [], 0, 0
        for answers in self.answers.values():
            since = None
            for began, ended, said in sorted(answers):
                slowest = max(slowest, ended - began)
                if said is None:
                    since = None
                else:
                    since = began if since is None else since
                    outage = max(outage, ended - since)
                    failed.append(said)
            if since is not None:
                raise Failed(f"a space does not answer any more: {answers[-1][2]}")
        # Whoever fails is told so in the words of the fleet, and may come again. What takes no longer than the grace is not cut.
        strange = [said for said in failed if ": 503 " not in said or '"code"' not in said]
        strange += [said for said in self.long if said != "done"]
        if strange:
            raise Failed(f"not an answer of the fleet: {strange[:3]}")
        if outage > self.GRACE:
            raise Failed(f"a space did not answer for {outage:.1f} s; {failed[:3]}")
        return (
            f"{total} requests, {len(failed)} refused, longest outage {outage:.1f} s, slowest answer {slowest:.1f} s; "
            f"{len(self.long)} commands of 3 s, none cut"
        ), failed


class Makers:
    """Two who make one space after another, until they are stopped; what they were told is there is kept."""

    def __init__(self, fleet):
        self.fleet, self.stop, self.made = fleet, threading.Event(), {}
        self.threads = [threading.Thread(target=self._make, args=(maker,), daemon=True) for maker in "ab"]
        for thread in self.threads:
            thread.start()

    def _make(self, maker):
        number = 0
        while not self.stop.is_set():
            number += 1
            try:
                space = self.fleet.call("acquireSpace", {"name": f"cut-{maker}{number}"})["space"]
                self.made[space["name"]] = space
            except (Failed, OSError):
                self.stop.wait(0.1)

    def on(self, node):
        return sum(space["node"] == node for space in list(self.made.values()))

    def end(self):
        self.stop.set()
        for thread in self.threads:
            thread.join()
