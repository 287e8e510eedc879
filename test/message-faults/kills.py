# SPDX-License-Identifier: Apache-2.0
"""
Cells in which a relay or a consumer is killed at a place that has a name, or at
a system call. For each fault one process is stopped in order, begun anew with the
order to die, and begun once more when it has died.

    points-relay, points-consumer   each place of points.c in turn
    calls-relay, calls-consumer     the n-th send, receipt, write or flush, for a
                                    drawn n; strace kills it as the call begins
"""

import contextlib
import re
import shutil
import signal
import time

from cellkit import Skip
from faults import QUEUES, fault

PATIENCE = 90   # seconds for one that was told to end
WAIT = 6.0      # seconds for a process to come to its place
TRIES = 4       # until it does

RELAY = ["claim-before", "claim-after", "send-before", "send-after",
         "proofs-before", "proofs-after", "settle-before", "settle-after"]
# What a relay still does when it was told to stop.
ENDING = ["stopped-settle-before", "stopped-settle-after"]
CONSUMER = ["begin-before", "begin-after", "inbox-before", "inbox-after",
            "commit-before", "commit-after", "park-before", "park-after",
            "take-after", "put_back-before", "put_back-after",
            "receive-after", "ack-before", "ack-after"]

# The calls by which they talk to servers and to a file.
NETWORK = ["sendto", "recvfrom", "poll"]
FILE = ["pwrite64", "fdatasync", "pread64"]
CALLS = {"postgres": NETWORK, "mysql": NETWORK, "sqlite": NETWORK + FILE}


def relay_words(run, n):
    """As run.relay_words(), for the relay of ledger.c."""
    words = {"lease_ms": 3000, "timeout_ms": 1000, "pass": 1,
             "metrics": run.folder / ("relay%d.@BIRTH@.prom" % n)}
    words.update({"workers": 4} if run.ledger.service else {"batch": 50})
    return [run.program, "relay", run.db_url(), run.folder / ("to%d" % n),
            *("%s=%s" % pair for pair in words.items())]


def told(process):
    """SIGTERM, as soon as it would not end it by itself."""
    path = "/proc/%d/status" % process.process.pid
    bit = 1 << (signal.SIGTERM - 1)
    since = time.monotonic()
    while process.running() and time.monotonic() < since + WAIT:
        with contextlib.suppress(OSError), open(path, "rb") as f:
            masks = re.findall(rb"^Sig(?:Blk|Cgt):\s*(\w+)", f.read(), re.M)
            if any(int(mask, 16) & bit for mask in masks):
                break
        time.sleep(0.01)
    process.signal(signal.SIGTERM)


def die(run, process, environment=None, before=(), words=None, ending=False):
    """Begins it with this order; returns whether it has died of it."""
    usual = process.words
    told(process)
    process.stop()
    process.words = [str(w) for w in [*before, *(words or usual)]]
    run.environment[process.name] = environment or {}
    process.start()
    if ending:
        run.nap(0.05, 0.5)
        told(process)
    since = time.monotonic()
    while process.running() and time.monotonic() < since + WAIT and \
            not (run.emitted() and run.settled()):
        time.sleep(0.02)
    told(process)
    died = process.process.wait(PATIENCE) == -signal.SIGKILL
    if not died:
        process.check()
    process.words = usual
    run.environment.pop(process.name)
    process.start()
    return died


def at_point(run, processes, points, words):
    """The next of these places."""
    point = points[run.played % len(points)]
    for _ in range(TRIES):
        process = run.one(processes)
        order = "%s:%d" % (point, run.rng.randrange(1, 5)
                           if "stopped" not in point else 1)
        if die(run, process, {"DIE": order}, words=words(process),
               ending="stopped" in point):
            run.hits += 1
            run.note("%s died of %s" % (process.name, order))
            return
    run.note("nobody came to %s" % point)


@fault("points-relay", pause=30, plain=True, number=len(RELAY + ENDING))
def points_relay(run):
    """kill -9 of a relay at each place that has a name."""
    at_point(run, run.relays, RELAY + ENDING,
             lambda relay: relay_words(run, int(relay.name[-1])))


@fault("points-consumer", brokers=QUEUES, pause=30, number=len(CONSUMER))
def points_consumer(run):
    """kill -9 of a consumer at each place that has a name."""
    at_point(run, run.consumers, CONSUMER, lambda _: None)


def at_call(run, processes):
    """The n-th call of one kind, in any thread."""
    if not shutil.which("strace"):
        raise Skip("strace is missing")
    for _ in range(TRIES):
        call = run.rng.choice(CALLS[run.db.name])
        number = run.rng.choice([1, 2, 3, run.rng.randrange(4, 60)])
        process = run.one(processes)
        if die(run, process, before=[
                "strace", "-D", "-f", "-qq", "-o",
                "/dev/null", "-e", "trace=" + call, "-e",
                "inject=%s:signal=KILL:when=%d" % (call, number)]):
            run.hits += 1
            run.note("%s died of %s %d" % (process.name, call, number))
            return
    run.note("no call was made")


@fault("calls-relay", pause=30, plain=True)
def calls_relay(run):
    """kill -9 of a relay at its n-th system call of one kind."""
    at_call(run, run.relays)


@fault("calls-consumer", brokers=QUEUES, pause=30)
def calls_consumer(run):
    """kill -9 of a consumer at its n-th system call of one kind."""
    at_call(run, run.consumers)
