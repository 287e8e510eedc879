#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""cells.py - faults on real stores, under traffic, and the count afterwards.

    cells.py [--build DIR] [--ops N] [--faults N] [--seed N] [--short]
             [--list] [--trace] [--keep DIR] [--traffic PROGRAM] [PATTERN ...]

A cell is a store and a fault. Two processes (traffic.c) claim, execute and
complete at the store, most often through the TCP fault proxy; at seeded moments
the fault is played and healed; when N operations have been acknowledged all is
counted, from three logs: what callers were told, what was executed, what the
store has in the end.

    executions of a key <= 1; one outcome a key; an acknowledged outcome is in
    the store, byte by byte; an acknowledged grant never becomes absent; no
    fence and no attempt number is given twice

Durable stores: each violation fails the cell. Others: violations are the
result, and printed as a share. Every cell must also go on after each fault:
when nothing is answered for a minute, it has failed. A fault that hit nothing
fails, too, for then nothing was tested.

PATTERN is part of a cell's name, "postgres kill". --short plays a mixture for
each store, for `make test`. It prints TAP, and a line of figures for each cell.
The faults stand in faults.py, the stores in stores.py, the count in count.py.
"""

import contextlib
import glob
import mmap
import os
import pathlib
import random
import signal
import struct
import subprocess
import sys
import time
import types

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "lib"))
sys.dont_write_bytecode = True

# pylint: disable=wrong-import-position
import cellkit  # noqa: E402
import count  # noqa: E402
import servers  # noqa: E402
from cellkit import Broken, Skip  # noqa: E402
from faults import CALLERS, FAULTS, PREPARED  # noqa: E402
from stores import STORES  # noqa: E402

PATIENCE = 60   # seconds without any answer, when all is healed
NAP = 0.02
MOST = 3        # times the operations that were asked for, at most
FEW = 200000    # unless that is fewer than these


# ---- Traffic -------------------------------------------------------------


def is_stopped(pid):
    """Each of its threads stands still, or there is none."""
    try:
        return all(stat.read_text("latin-1").rpartition(")")[2].split()[0]
                   in "TtZX" for stat in
                   pathlib.Path("/proc/%d/task" % pid).glob("*/stat"))
    except OSError: # a thread has just ended
        return False


class Shared:
    """The file that the traffic's processes map: see traffic.c."""

    WORDS = ("next", "answered", "unknown", "stop", "enough", "seed",
             "running", "fresh", "window")

    def __init__(self, path, **words):
        self.path = path
        path.write_bytes(struct.pack("=9Q", *(words.get(w, 0)
                                              for w in self.WORDS)))
        with open(path, "r+b") as f:
            self.map = mmap.mmap(f.fileno(), 0)

    def __getitem__(self, word):
        return struct.unpack_from("=Q", self.map,
                                  8 * self.WORDS.index(word))[0]

    def __setitem__(self, word, value):
        struct.pack_into("=Q", self.map, 8 * self.WORDS.index(word), value)


class Traffic:
    """Some processes at one URL, each with a log of its own."""

    def __init__(self, run, urls):
        self.run = run
        self.urls = urls
        self.folder = run.folder / "traffic"
        self.folder.mkdir()
        few = run.callers == 1
        self.shared = Shared(self.folder / "shared", enough=1 << 62,
                             seed=run.rng.getrandbits(60),
                             fresh=15 if few else 60,
                             window=6 if few else 64)
        self.processes = [None] * len(urls)
        self.born = 0

    def program(self, *words):
        return [servers.find("setpriv"), "--pdeathsig", "KILL", "--",
                str(self.run.program), *map(str, words)]

    def start(self, n):
        self.born += 1
        with open(self.folder / "stderr", "ab") as stderr, \
                self.run.places[n].inside():
            self.processes[n] = subprocess.Popen(
                self.program("run", self.shared.path, self.urls[n],
                             self.folder / ("log%d" % self.born),
                             self.run.callers),
                stdin=subprocess.DEVNULL, stdout=stderr, stderr=stderr,
                env=dict(os.environ, **self.run.environment))

    def start_all(self):
        for n in range(len(self.urls)):
            self.start(n)
        servers.eventually(
            lambda: self.check() or self.shared["running"] >= len(self.urls),
            "the traffic begins")

    def check(self):
        """Whoever ended without having been killed by us had a reason."""
        for p in self.processes:
            if p and p.poll() not in (None, 0):
                raise Broken("traffic ended with %s: %s"
                             % (p.returncode, self.stderr()))

    def stderr(self):
        with contextlib.suppress(OSError):
            return (self.folder / "stderr").read_text("latin-1")[-600:]
        return ""

    def ended(self):
        self.check()
        return all(p.poll() is not None for p in self.processes)

    def end(self, n):
        self.processes[n].kill()
        self.processes[n].wait()

    def kill(self, n):
        self.end(n)
        self.start(n)

    def signal(self, n, number):
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.processes[n].pid, number)

    def stand_still(self):
        """Both processes have stopped. SIGSTOP stops a process when one of its
        threads gets a processor, which beside other load takes a while: until
        then the others go on."""
        for n in (0, 1):
            self.signal(n, signal.SIGSTOP)
        for process in self.processes:
            servers.eventually(lambda: is_stopped(process.pid),
                               "a process stands still")

    def final(self, url):
        """What the store has: after the traffic, and without faults."""
        log = self.folder / "final"
        done = self.run.ask("final", self.shared.path, url, log)
        if done.returncode != 0:
            raise Broken("final: " + (done.stdout + done.stderr)[-600:])
        return log

    def logs(self):
        return [pathlib.Path(p) for p in
                glob.glob(glob.escape(str(self.folder)) + "/log*")]

    def close(self):
        for p in self.processes:
            if p and p.poll() is None:
                p.kill()
                p.wait()


# ---- Runs ----------------------------------------------------------------


class Run:
    """One cell at work."""

    def __init__(self, args, store, rng, ops):
        self.args = args
        self.store = store
        self.rng = rng
        self.ops = ops
        self.most = max(MOST * ops, FEW)
        self.program = args.traffic or args.build / "test" / "traffic"
        self.stack = contextlib.ExitStack()
        self.world = self.stack.enter_context(servers.World())
        self.folder = self.world.folder
        self.home = servers.Space()          # from where the store is judged
        self.places = [self.home, self.home]  # where the processes are
        self.callers = CALLERS  # of one process
        self.environment = {}   # of those processes
        self.moves_clock = False
        self.place = None       # where the store's own small disk is
        self.disk = None        # what fails on it
        self.mortal = None      # a server that may end by itself
        self.proxy = None
        self.hits = 0      # what faults did, beyond what the proxy counts
        self.played = 0
        self.traffic = None
        self.url = self.direct = None

    def open(self):
        try:
            self.direct = self.build()
        except servers.Missing as missing:
            raise Skip(str(missing)) from missing
        self.url = self.direct
        done = self.ask("init", self.direct)
        if done.returncode == 77:
            raise Skip("this build has no such store: " + done.stdout.strip())
        if done.returncode != 0:
            raise Broken("init: " + done.stdout + done.stderr)
        if self.store.proxied:
            server = self.world.servers[self.store.proxied]
            self.proxy = servers.Proxy(server.port)
            self.stack.callback(self.proxy.close)
            self.url = self.url.replace(":%d" % server.port,
                                        ":%d" % self.proxy.port)
        self.traffic = Traffic(self, [self.url] * 2)
        self.stack.callback(self.traffic.close)

    def ask(self, *words):
        """The program for something short, from where all can be seen."""
        with self.home.inside():
            return subprocess.run([self.program, *words], text=True,
                                  check=False, capture_output=True,
                                  timeout=600)

    def build(self):
        if callable(self.store.kind):
            return self.store.kind(self)
        if self.store.kind is None:
            if self.moves_clock:
                self.world.clock(types.SimpleNamespace(
                    name="traffic", environment=self.environment))
            return "%s:%s" % (self.store.name, self.folder / "store")
        return self.world.build(self.store.kind, self.store.clock)

    def server(self, name=None):
        return self.world.servers[name or self.store.proxied or
                                  self.store.kind]

    # -- playing

    def nap(self, least, most):
        time.sleep(self.rng.uniform(least, most))

    def progress(self, by, what):
        """Waits until some more was answered: the cell goes on."""
        want = self.traffic.shared["answered"] + by
        end = time.monotonic() + PATIENCE
        while self.traffic.shared["answered"] < want:
            if self.traffic.ended():
                return
            if self.mortal and not self.mortal.running():
                self.mortal.start()
            if time.monotonic() > end:
                raise Broken("no progress for %d s %s: %s"
                             % (PATIENCE, what, self.traffic.stderr()))
            time.sleep(NAP)

    def until(self, answered):
        """Waits for a moment that is counted in answers, not in time."""
        while self.traffic.shared["answered"] < answered and \
                not self.traffic.ended():
            self.progress(1, "between faults")

    def play(self, what, number):
        """Until all faults were played and enough was acknowledged; a fast
        store would play for ever, and is content with fewer faults."""
        self.traffic.start_all()
        shared, part = self.traffic.shared, self.ops / (number + 1)
        while self.played < number and shared["answered"] < self.most:
            self.until(shared["answered"] + part * self.rng.uniform(0.2, 1.2))
            FAULTS[what][0](self)
            self.played += 1
            self.progress(10, "after fault %d" % self.played)
        self.until(self.ops)
        shared["stop"] = 1
        servers.eventually(self.traffic.ended, "the traffic ends", PATIENCE)

    def judge(self):
        final = self.traffic.final(self.direct)
        sums = count.count(self.traffic.logs(), final)
        done = self.ask("verify", self.direct)
        if done.returncode != 0:
            sums.violations.append("verify: " + done.stdout[-300:])
        if self.proxy:
            self.hits += self.proxy.count()[4]
        return sums

    def close(self):
        self.stack.close()


# ---- Cells ---------------------------------------------------------------

SHORT = ("sqlite storm", "journal storm", "postgres storm", "mysql storm",
         "redis storm",
         "postgres-standby cancelled-wait-alone", "redis-plain kill")


def cells():
    for name in STORES:
        for what, (_, stores, _) in FAULTS.items():
            if name in stores:
                yield name, what


def number_of(what, args):
    """How often a fault is played: those on the wire cost little."""
    dear = what in ("lagging", "split", "failover") or \
        what.startswith(("promote", "cancelled", "terminated"))
    if args.faults:
        return min(args.faults, 2) if args.short and dear else args.faults
    cheap = what in ("cut-answer", "cut-question", "reset", "clock",
                     "terminate", "terminate-commit", "end-sessions", "cancel")
    most = 5 if dear else 1000 if cheap else 30
    return max(2, min(most, args.ops // (100 if cheap else 1000)))


def play(args, name, what):
    """One cell; returns its figures, and what is wrong."""
    rng = random.Random("%s %s %s" % (args.seed, name, what))
    run = Run(args, STORES[name], rng, args.ops)
    sums = None
    try:
        run.callers = FAULTS[what][2]
        run.moves_clock = what.startswith("clock")
        PREPARED.get(what, lambda run: None)(run)
        run.open()
        run.play(what, number_of(what, args))
        sums = run.judge()
        if run.played and not run.hits:
            sums.violations.append("the fault has hit nothing")
        if run.store.must_lose and not (sums.outcomes_lost and
                                        sums.grants_lost):
            sums.violations.append("the fault lost nothing: nobody would see")
        bad = list(sums.violations)
        if not run.store.durable:
            bad = [b for b in bad if b.startswith(("the fault", "verify"))]
        return line_of(sums, run), bad
    finally:
        if sums is None or sums.violations:
            cellkit.keep(args, run.folder)
        run.close()


def line_of(sums, run):
    text = "%d acknowledged, %d unknown, %d faults, %d hits" % (
        run.traffic.shared["answered"], run.traffic.shared["unknown"],
        run.played, run.hits)
    if not run.store.durable:
        text += "; lost %s of outcomes, %s of grants; granted twice %s" % (
            share(sums.outcomes_lost, sums.outcomes),
            share(sums.grants_lost, sums.grants),
            share(sums.granted_twice, sums.keys))
    return text


def share(part, whole):
    return "%d/%d (%.2f %%)" % (part, whole, 100.0 * part / max(whole, 1))


def main():
    parser = cellkit.options(__doc__)
    parser.add_argument("--traffic", type=pathlib.Path,
                        help="another program than the one of the build")
    parser.add_argument("--ops", type=int, default=100000)
    args = cellkit.read(parser)
    if args.short:
        args.ops = min(args.ops, 4000)
        args.faults = args.faults or 6
    return cellkit.run(args, list(cellkit.wanted(args, cells(), SHORT)),
                       FAULTS, play, "%d operations" % args.ops)


if __name__ == "__main__":
    sys.exit(main())
