# SPDX-License-Identifier: Apache-2.0
"""
The cells: each is a fault at a moment, in a world of its own.

A cell returns what came of it in a word or two. That no promise was broken is
not its business: ledger.py counts when the world is over. What a cell asserts
is only that the fault was met, and the outcome where docs/protocol.md leaves no
choice.
"""

import collections
import contextlib
import os
import re
import resource
import selectors
import shutil
import signal
import socket
import sqlite3
import struct
import subprocess
import threading
import time

from stand import LEASE, injected, reset, state_of
from gateway import Locked, PATIENCE, Response, eventually

CELLS = []


def cells(fault, moments, alone=False):
    """Registers one cell for each moment."""
    def register(function):
        for moment in moments:
            CELLS.append((fault, moment, function, alone))
        return function
    return register


def came_of(stand, case, word):
    return "%s, executed %d" % (word, stand.ledger.count(case.path))


# ---- F1: killed at named points ------------------------------------------

BEFORE = ["claim-sent"]
SENT = ["claim-answered", "owner"]
DONE = ["response-head", "response-end", "complete-sent"]
TOLD = ["complete-answered", "reply", "replied"]
ONE_PHASE = BEFORE + SENT + DONE + TOLD
TWO_PHASE = (BEFORE + ["claim-answered", "mark-sent", "mark-answered",
                       "owner"] + DONE + TOLD)
POINTS = [p + ", one-phase" for p in ONE_PHASE] + \
    [p + ", two-phase" for p in TWO_PHASE]


def expected(point, two):
    """The last word, and how often it was executed."""
    if point in TOLD:
        return "replayed", 1
    if point in DONE:
        return "outcome-unknown", 1
    if point in BEFORE or (two and point in ("claim-answered", "mark-sent")):
        return "new", 1
    return "outcome-unknown", 0


def with_point(ctx, moment, deed):
    point, phase = moment.split(", ")
    two = phase == "two-phase"
    stand = ctx.stand(
        more="once_two_phase on;" if two else "", module=ctx.failing_module,
        env={"ONCE_FAILPOINT": "%s:1:%s" % (point, deed)},
        main="env ONCE_FAILPOINT;").start()
    return stand, point, two


def killed(ctx, moment):
    """Kills at a point, loses the machine, and starts a new one."""
    stand, point, two = with_point(ctx, moment, "kill")
    pid, c = stand.worker(), stand.case()
    client = stand.open(c)
    eventually(lambda: state_of(pid) in (None, "Z"))
    stand.hear(c, client)
    stand.gateway.kill_all()
    stand.gateway.env.clear()
    stand.gateway.start()
    return stand, c, point, two


@cells("kill -9 at a point", POINTS)
def kill_at(ctx, moment):
    stand, c, point, two = killed(ctx, moment)
    word = stand.settle(c)
    assert (word, stand.ledger.count(c.path)) == expected(point, two), word
    return came_of(stand, c, word)


@cells("kill -9, then EIO in recovery", POINTS[::3])
def kill_then_error(ctx, moment):
    stand, c, _, _ = killed(ctx, moment)
    call = ctx.rng.choice(["pwrite64", "fdatasync"])
    with injected(stand.worker(), call, "error=EIO", ctx.rng.randint(1, 3)):
        stand.ask(c)
    return came_of(stand, c, stand.settle(c))


@cells("kill -9 as bytes go up", ["first byte up", "last byte up"])
def kill_on_the_way(ctx, moment):
    """Larger than all buffers between: the first byte is not the last."""
    stand = ctx.stand(more="client_max_body_size 64m;").start()
    if moment == "last byte up":
        hold = stand.effect(hold=True)
        c = stand.case(hold)
        client = stand.open(c)
        hold.hold.wait()
        stand.gateway.kill_all()
        hold.hold.go.set()
        stand.hear(c, client)
    else:
        c = stand.case()
        seen = stand.upstream._serve  # pylint: disable=protected-access

        def first(conn):
            conn.sock.recv(1, socket.MSG_PEEK)
            stand.gateway.kill_all()
            seen(conn)

        stand.upstream._serve = first  # pylint: disable=protected-access
        stand.ask(c, body=b"x" * (32 << 20))
        stand.upstream._serve = seen  # pylint: disable=protected-access
    stand.gateway.start()
    word = stand.settle(c) if moment == "last byte up" else \
        ctx.settle_large(stand, c)
    assert word == "outcome-unknown", word
    return came_of(stand, c, word)


# ---- F3: stopped past the lease ------------------------------------------

@cells("SIGSTOP past the lease", POINTS)
def stop_at(ctx, moment):
    stand, point, two = with_point(ctx, moment, "stop")
    other = stand.another().start()
    pid, c = stand.worker(), stand.case()
    client = stand.open(c)
    eventually(lambda: state_of(pid) == "T")
    word = stand.settle(c, other)
    want = expected(point, two)[0]
    os.kill(pid, signal.SIGCONT)
    assert word == want, "while it was stopped: %s" % word
    stand.hear(c, client)
    # The late outcome is accepted; or somebody else's stands.
    last = stand.settle(c)
    assert last == "replayed", last
    return "%s, then %s" % (word, came_of(stand, c, last))


# ---- F17: workers come and go --------------------------------------------

MOMENTS = ["dispatched", "half a response", "recording"]


class Middle:
    """A request brought to one of the moments, and let go again."""

    def __init__(self, stand, moment):
        self.moment = moment
        self.stand = stand
        self.locked = None
        self.effect = stand.effect(
            hold=True, manner=self.halves if moment == MOMENTS[1] else None)
        self.halved, self.rest = threading.Event(), threading.Event()
        self.case = stand.case(self.effect)
        self.client = stand.open(self.case)
        self.effect.hold.wait()
        if moment == MOMENTS[1]:
            self.effect.hold.go.set()
            assert self.halved.wait(PATIENCE)
        elif moment == MOMENTS[2]:
            self.locked = Locked(stand).__enter__()
            self.effect.hold.go.set()
            time.sleep(0.1)  # only to be more likely in the middle of it

    def halves(self, conn, data):
        half = len(data) // 2
        conn.sock.sendall(data[:half])
        self.halved.set()
        self.rest.wait(PATIENCE)
        conn.sock.sendall(data[half:])

    def go_on(self):
        self.rest.set()
        if self.locked:
            self.locked.__exit__()
        self.effect.hold.go.set()


@cells("reload", MOMENTS)
def reload(ctx, moment):
    stand = ctx.stand(lease="20s").start()
    middle = Middle(stand, moment)
    stand.gateway.reload()
    middle.go_on()
    r = stand.hear(middle.case, middle.client)
    assert r is not None and r.once == "new", r
    return came_of(stand, middle.case, stand.settle(middle.case))


@cells("binary upgrade (USR2)", MOMENTS)
def upgrade(ctx, moment):
    stand = ctx.stand(lease="20s", daemon=True).start()
    gateway = stand.gateway
    middle = Middle(stand, moment)
    old = gateway.master()
    os.kill(old, signal.SIGUSR2)
    eventually(lambda: (gateway.folder / "nginx.pid.oldbin").exists())
    new = eventually(lambda: gateway.master() != old and gateway.master())
    eventually(lambda: len(gateway.worker_pids(new)) == gateway.workers)
    os.kill(old, signal.SIGWINCH)
    try:
        middle.go_on()
        r = stand.hear(middle.case, middle.client)
        assert r is not None and r.once == "new", r
    finally:
        os.kill(old, signal.SIGQUIT)
        eventually(lambda: gateway.ended(old))
    return came_of(stand, middle.case, stand.settle(middle.case))


@cells("worker crash", MOMENTS)
def crash(ctx, moment):
    stand = ctx.stand().start()
    middle = Middle(stand, moment)
    os.kill(stand.worker(), signal.SIGKILL)
    middle.go_on()
    stand.hear(middle.case, middle.client)
    word = stand.settle(middle.case)
    assert word == "outcome-unknown", word
    return came_of(stand, middle.case, word)


@cells("quit (SIGQUIT)", MOMENTS)
def leave(ctx, moment):
    stand = ctx.stand(lease="20s").start()
    middle = Middle(stand, moment)
    stand.gateway.kill(signal.SIGQUIT)
    middle.go_on()
    r = stand.hear(middle.case, middle.client)
    assert r is not None and r.once == "new", r
    stand.gateway.wait_end()
    stand.gateway.start()
    return came_of(stand, middle.case, stand.settle(middle.case))


# ---- F10: disk full ------------------------------------------------------

class Disk:
    """A file system of its own, and a file that takes all of it."""

    def __init__(self, ctx, size):
        self.path = ctx.folder() / "disk"
        self.path.mkdir()
        subprocess.run(["mount", "-t", "tmpfs", "-o", "size=%s" % size,
                        "tmpfs", str(self.path)], check=True)
        ctx.later(lambda: subprocess.run(["umount", "-l", str(self.path)],
                                         check=False))

    def fill(self):
        with open(self.path / "ballast", "ab", buffering=0) as f:
            with contextlib.suppress(OSError):
                while True:
                    f.write(b"\0" * 4096)
            with contextlib.suppress(OSError):
                while True:
                    f.write(b"\0")

    def free(self):
        (self.path / "ballast").unlink()


@cells("disk full", ["before the claim", "dispatched", "slowly"])
def full(ctx, moment):
    disk = Disk(ctx, "1m")
    stand = ctx.stand(db=disk.path / "store.db").start()
    stand.ask(stand.case())
    large = stand.effect(hold=moment == "dispatched", body=b"b" * 100000)
    c = stand.case(large)
    if moment == "before the claim":
        disk.fill()
        word = full_before(stand)
    elif moment == "dispatched":
        client = stand.open(c)
        large.hold.wait()
        disk.fill()
        large.hold.go.set()
        r = stand.hear(c, client)
        assert r.code() == "outcome-unknown", r
        word = "502 outcome-unknown"
    else:
        word = "%d until the first 503" % full_slowly(stand)
    with contextlib.suppress(FileNotFoundError):
        disk.free()
    if moment == "slowly":  # the records themselves are what fills it
        subprocess.run(["mount", "-o", "remount,size=8m", str(disk.path)],
                       check=True)
    for case in stand.cases:
        stand.settle(case)
    return word


def full_before(stand):
    """Claims are refused before anything is sent."""
    for _ in range(300):  # what is left in the log's last page
        c = stand.case()
        r = stand.ask(c)
        if r.code() == "store-unavailable":
            assert stand.ledger.count(c.path) == 0
            return "503, executed 0"
    raise AssertionError("the disk was never full")


def full_slowly(stand):
    for n in range(1, 300):
        c = stand.case(stand.effect(body=b"b" * 20000))
        r = stand.ask(c)
        if r is not None and r.code() == "store-unavailable":
            assert stand.ledger.count(c.path) == 0
            return n
    raise AssertionError("the disk was never full")


# ---- F2, F11: system calls of a worker -----------------------------------

@cells("system call of a worker", [
    "%s %s" % (call, how) for call in ("pwrite64", "fdatasync")
    for how in ("error=EIO", "error=ENOSPC", "error=EIO+", "error=ENOSPC+",
                "signal=SIGKILL")])
def system_call(ctx, moment):
    """The n-th of one request, for n = 1, 2, 3 ... until there is none."""
    call, how = moment.split()
    words, n, missed = collections.Counter(), 0, 0
    while missed < 2 and n < 60:
        n += 1
        stand = ctx.stand().start()
        before, c = stand.case(), stand.case()
        stand.ask(before)
        with injected(stand.worker(), call, how.rstrip("+"),
                      "%d%s" % (n, how[9:].count("+") * "+")) as hit:
            stand.ask(c)
            if ctx.rng.random() < 0.5:
                stand.ask(c)
        word = came_of(stand, c, stand.settle(c))
        stand.settle(before)
        missed = 0 if hit["hits"] else missed + 1
        if hit["hits"]:
            words[word] += 1
        ctx.over(stand)
    ctx.tried += n - 3
    assert 2 < n < 60, "never met, or without an end"
    return "%d in turn: %s" % (n - 2, ", ".join(
        "%d x %s" % (k, w) for w, k in words.most_common()))


# ---- F24: allocations of nginx -------------------------------------------

def plan(path, left, refusals):
    """For mallocshim.so; it reads and writes the same bytes."""
    with open(path, "r+b") as f:
        f.write(struct.pack("<qqq", left, refusals, 0))


def refused(path):
    with open(path, "rb") as f:
        return struct.unpack("<qqq", f.read(24))[2]


@cells("allocation of nginx refused", ["once", "from then on"])
def allocation(ctx, moment):
    path = ctx.folder() / "plan"
    path.write_bytes(struct.pack("<qqq", 0, 0, 0))
    stand = ctx.stand(env={"LD_PRELOAD": ctx.shim("mallocshim"),
                           "ONCE_MALLOCSHIM": path},
                      allow=[r"Cannot allocate memory"]).start()
    stand.ask(stand.case())
    pid, words, n = stand.worker(), collections.Counter(), 0
    while True:
        n += 1
        c = stand.case(stand.effect(body=b"b" * 3000))
        plan(path, n, 1 if moment == "once" else 1 << 40)
        r = stand.ask(c, patience=10)
        met = refused(path)
        plan(path, 0, 0)
        words["no answer" if r is None else str(r.code() or r.status)] += 1
        stand.settle(c)
        assert stand.worker() == pid, "the worker ended at %d" % n
        # One request takes so many; the reaper takes some of its own.
        if not met or n >= 400:
            break
    ctx.tried += n - 1
    assert n < 400
    return "%d in turn: %s" % (n - 1, ", ".join(
        "%d x %s" % (k, w) for w, k in words.most_common()))


# ---- F14: an upstream of every kind --------------------------------------

def sends(*parts, end="close"):
    """Sends these, where DATA is the true answer, and ends like that."""
    def manner(conn, data):
        for part in parts:
            conn.sock.sendall(part(data) if callable(part) else part)
        if end == "reset":
            conn.reset()
        elif end == "close":
            conn.close()
    return manner


def drip(conn, data):
    for i in range(len(data)):
        conn.sock.sendall(data[i:i + 1])


def silence(conn, data):
    del data
    while not conn.upstream.closing.wait(0.02) and not conn.peer_gone():
        pass
    conn.close()


def chunks(data, last=b"0\r\n\r\n", size=None):
    body = data.partition(b"\r\n\r\n")[2]
    return (b"HTTP/1.1 201 Made\r\nTransfer-Encoding: chunked\r\n\r\n" +
            (size or b"%x" % len(body)) + b"\r\n" + body + b"\r\n" + last)


# The last word of the key, and how often it may have been executed.
NEW, UNKNOWN, GONE = "replayed", "outcome-unknown", "response-unavailable"
UPSTREAMS = {
    "answers 201": (NEW, {}),
    "answers 500": (NEW, {"status": 500}),
    "answers 404": (NEW, {"status": 404}),
    "answers 204": (NEW, {"status": 204}),
    "answers 502 itself": (UNKNOWN, {"status": 502, "kept": False}),
    "answers 503": (NEW, {"status": 503}),
    "answers 408": (NEW, {"status": 408, "effect": False}),
    "answers 425": (NEW, {"status": 425, "effect": False}),
    "answers 429": (NEW, {"status": 429, "effect": False}),
    "drips": (NEW, {"manner": drip}),
    "answers in chunks": (NEW, {"manner": sends(chunks)}),
    "sends more than it said": (NEW, {"manner": sends(
        lambda d: d, b"more")}),
    "closes without a word": (UNKNOWN, {"manner": sends()}),
    "resets": (UNKNOWN, {"manner": sends(end="reset")}),
    "is silent": (UNKNOWN, {"manner": silence}),
    "half a head": (UNKNOWN, {"manner": sends(lambda d: d[:20])}),
    "half a head, reset": (UNKNOWN, {"manner": sends(
        lambda d: d[:20], end="reset")}),
    "head, no body": (UNKNOWN, {"manner": sends(
        lambda d: d.partition(b"\r\n\r\n")[0] + b"\r\n\r\n")}),
    "half a body": (UNKNOWN, {"manner": sends(lambda d: d[:-9])}),
    "half a body, reset": (UNKNOWN, {"manner": sends(
        lambda d: d[:-9], end="reset")}),
    "half a body, silence": (UNKNOWN, {"manner": lambda c, d: (
        c.sock.sendall(d[:-9]), silence(c, d))}),
    "no last chunk": (UNKNOWN, {"manner": sends(
        lambda d: chunks(d, last=b""))}),
    "bad chunk size": (UNKNOWN, {"manner": sends(
        lambda d: chunks(d, size=b"zz"))}),
    "not HTTP": (UNKNOWN, {"manner": sends(b"\x16\x03\x01 what?\r\n\r\n")}),
    "HTTP/0.9": (UNKNOWN, {"manner": sends(b"<p>made</p>")}),
    "100, then close": (UNKNOWN, {"manner": sends(
        b"HTTP/1.1 100 Continue\r\n\r\n")}),
    "101": (UNKNOWN, {"manner": sends(
        b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\n"
        b"Connection: upgrade\r\n\r\n")}),
    "a head over the limit": (UNKNOWN, {"manner": sends(
        b"HTTP/1.1 201 Made\r\nX: " + b"x" * 100000 + b"\r\n\r\n")}),
    "a body over the limit": (GONE, {
        "kept": False, "body": b"b" * (3 << 20)}),
    "says not-applied": (NEW, {
        "status": 503, "effect": False,
        "headers": [("Idempotency-Outcome", "not-applied")]}),
    "says unknown": (UNKNOWN, {
        "kept": False, "headers": [("Idempotency-Outcome", "unknown")]}),
    "says no-store": (GONE, {
        "kept": False, "headers": [("Idempotency-Outcome", "no-store")]}),
    "says applied, with 503": (NEW, {
        "status": 503, "headers": [("Idempotency-Outcome", "applied")]}),
}


@cells("upstream", list(UPSTREAMS))
def upstream(ctx, moment):
    want, what = UPSTREAMS[moment]
    stand = ctx.stand(
        more="proxy_read_timeout 400ms; proxy_http_version 1.1;").start()
    released = what.get("effect") is False
    # After a release the next one executes, and that one has an effect.
    script = [stand.effect(**what)] + [stand.effect()] * released
    c = stand.case(*script)
    first = stand.ask(c)
    word = stand.settle(c)
    word = "replayed" if released and word == "new" else word
    assert word == want, "%s after %r" % (word, first)
    if released:
        return "released, then executed and " + word
    return came_of(stand, c, word)


@cells("upstream unreachable", ["refuses", "accepts and resets"])
def unreachable(ctx, moment):
    stand = ctx.stand(upstream=False).start()
    c = stand.case()
    if moment == "refuses":
        r = stand.ask(c)
        assert r.status == 502 and r.code() is None, r
        stand.upstream.listen()
        word = stand.settle(c)
        assert word == "new", word
        return came_of(stand, c, word)
    stand.upstream.sock.listen(16)
    client = stand.open(c)
    peer, _ = stand.upstream.sock.accept()
    reset(peer)
    stand.hear(c, client)
    stand.upstream.listen()
    word = stand.settle(c)
    return came_of(stand, c, word)


@cells("answer before the body is read", ["32 MB body"])
def early(ctx, moment):
    """A whole answer is an outcome, whatever of the body was read."""
    del moment
    stand = ctx.stand(more="client_max_body_size 64m;").start()
    c = stand.case()
    effect = stand.effect()

    def serve(conn):
        head = b""
        while b"\r\n\r\n" not in head:
            head += conn.sock.recv(1000)
        path = head.split(b" ")[1].decode()
        if path.startswith("/open"):
            conn.sock.sendall(b"HTTP/1.0 200 OK\r\n\r\n")
        else:
            request = type("R", (), {"path": path, "get":
                                     staticmethod(lambda name: "1")})
            effect(conn, request)
            conn.sock.shutdown(socket.SHUT_WR)
            with contextlib.suppress(OSError):
                while conn.sock.recv(65536):
                    pass
        conn.close()

    stand.upstream._serve = serve  # pylint: disable=protected-access
    stand.ask(c, body=b"x" * (32 << 20))
    word = ctx.settle_large(stand, c)
    return came_of(stand, c, word)


# ---- F16: the client is gone after each byte -----------------------------

@cells("client gone after each byte", ["FIN", "RST", "FIN, two-phase"])
def gone(ctx, moment):
    stand = ctx.stand(more="once_two_phase on;" if "two" in moment else "",
                      lease="5s").start()
    size = len(stand.case().bytes("POST"))
    words = collections.Counter()
    # The case's number makes some requests a byte longer.
    for n in range(size + 4):
        c = stand.case()
        data = c.bytes("POST")
        with socket.create_connection(("127.0.0.1", stand.gateway.port),
                                      PATIENCE) as sock:
            sock.sendall(data[:n])
            if moment == "RST":
                reset(sock)
            else:
                sock.shutdown(socket.SHUT_RDWR)
        words[stand.settle(c)] += 1
        assert stand.ledger.count(c.path) == 1
    ctx.tried += size + 3
    return "%d bytes, then %s" % (size, " or ".join(words))


# ---- F12, F13: clocks ----------------------------------------------------

JUMPS = {"+60 s": 60000, "+25 h": 90000000, "-1 h": -3600000,
         "-25 h": -90000000}


@cells("clock jump", ["%s, %s" % (j, m) for j in JUMPS
                      for m in ("idle", "dispatched", "recording", "told")])
def jump(ctx, moment):
    by, when = moment.split(", ")
    path = ctx.folder() / "ahead"
    path.write_bytes(struct.pack("<q", 0))
    stand = ctx.stand(lease="5s" if when == "recording" else LEASE,
                      env={"LD_PRELOAD": ctx.shim("clockshim"),
                           "ONCE_CLOCKSHIM": path}).start()

    def leap():
        with open(path, "r+b") as f:
            f.write(struct.pack("<q", JUMPS[by]))

    before = stand.case()
    stand.ask(before)
    if when in ("idle", "told"):
        c = stand.case()
        if when == "told":
            stand.ask(c)
        leap()
    else:
        middle = Middle(stand, when)
        c = middle.case
        leap()
        if when == "dispatched":
            seen = stand.ask(c).code()
            assert seen in ("in-flight", "outcome-unknown"), seen
        middle.go_on()
        stand.hear(c, middle.client)
    time.sleep(1.2)  # a round of the reaper, which must not forget
    word = stand.settle(c)
    assert word in ("new", "replayed"), word
    assert stand.settle(before) == "replayed"
    return came_of(stand, c, word)


# ---- F19: records with flipped bits --------------------------------------

TABLES = {"claim": ("name", "fence", "attempt", "phase", "policy", "doubt",
                    "granted", "keep", "sum", "token", "fingerprint", "note"),
          "live": ("fence", "state", "lease", "name", "sum"),
          "result": ("fence", "kind", "keep", "body_sum", "sum", "body"),
          "meta": ("key", "value", "sum")}


def flip(value, rng):
    if isinstance(value, bytes):
        if not value:
            return b"\x01"
        at = rng.randrange(len(value))
        return value[:at] + bytes([value[at] ^ 1 << rng.randrange(8)]) + \
            value[at + 1:]
    if isinstance(value, str):
        return value[:-1] + chr(ord(value[-1]) ^ 1)
    # The sign, and bits no row has, are part of what may flip.
    flipped = (value & (1 << 64) - 1) ^ 1 << rng.choice(
        list(range(12)) + [31, 40, 62, 63])
    return flipped - (1 << 64) if flipped >> 63 else flipped


@cells("bit flip in a record", [
    "%s.%s" % (t, c) for t in TABLES for c in TABLES[t]])
def flipped(ctx, moment):
    table, column = moment.split(".")
    stand = ctx.stand(lease="30s", allow=[
        r"fails its checksum|not readable|damaged|malformed|record"]).start()
    done = stand.case(stand.effect(body=b"b" * 50))
    stand.ask(done)
    lost = stand.case(stand.effect(manner=sends()))
    stand.ask(lost)
    held = stand.case(stand.effect(hold=True))
    client = stand.open(held)
    held.script[0].hold.wait()
    words, outside = collections.Counter(), moment == "claim.name"
    db = sqlite3.connect(stand.db, timeout=PATIENCE, isolation_level=None)
    key = {"claim": "name", "meta": "key"}.get(table, "fence")
    rows = db.execute("SELECT %s, %s FROM %s" % (key, column, table))
    for row, value in rows.fetchall():
        bad = flip(value, ctx.rng)
        now = bad if column == key else row
        db.execute("UPDATE %s SET %s=? WHERE %s=?" % (table, column, key),
                   (bad, row))
        before = len(stand.ledger.executed)
        asked = [stand.case()] if table == "meta" else [done, lost, held]
        if outside:
            # A record under another name cannot be told from none; say so.
            words["not to be seen: a row under another name"] += 1
        else:
            right = dict(zip(asked, ("replayed", "outcome-unknown",
                                     "in-flight")))
            for c in asked:
                r = stand.ask(c)
                word = r.code() or r.once
                assert word == "store-unavailable" or (
                    table != "meta" and word == right[c]), word
                words[word] += 1
            assert len(stand.ledger.executed) == before, "executed again"
        db.execute("UPDATE %s SET %s=? WHERE %s=?" % (table, column, key),
                   (value, now))
        ctx.tried += 1
    db.close()
    ctx.tried -= 1
    # Claims find a live row by its fence, not by this name: right anyhow.
    if not outside and moment != "live.name":
        assert words["store-unavailable"] > 0, words
    held.script[0].hold.go.set()
    stand.hear(held, client)
    assert stand.settle(done) == "replayed"
    assert stand.settle(lost) == "outcome-unknown"
    assert stand.settle(held) == "replayed"
    return ", ".join("%d x %s" % (n, w) for w, n in words.most_common())


# ---- F23: a crowd on one key ---------------------------------------------

@cells("many waiters on one key", ["10,000"], alone=True)
def crowd(ctx, moment):
    number = int(moment.replace(",", ""))
    most = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE,
                           (number + 4096, max(most[1], number + 4096)))
    number = min(number, resource.getrlimit(resource.RLIMIT_NOFILE)[0] - 1024)
    stand = ctx.stand(more="once_in_flight wait=120s;", lease="30s",
                      connections=number + 2000).start()
    effect = stand.effect(hold=True)
    c = stand.case(effect)
    owner = stand.open(c)
    effect.hold.wait()
    pid = stand.worker()
    socks = crowd_opens(stand, c, number)
    rss = re.search(r"VmRSS:\s+(\d+)", open(
        "/proc/%d/status" % pid, encoding="ascii").read()).group(1)
    effect.hold.go.set()
    stand.hear(c, owner)
    words = crowd_hears(stand, c, socks)
    assert stand.ledger.count(c.path) == 1
    ctx.tried += number - 1
    return "%d waited, worker %d MB: %s" % (
        number, int(rss) // 1024,
        ", ".join("%d x %s" % (k, w) for w, k in words.items()))


def crowd_opens(stand, c, number):
    socks, data = [], c.bytes("POST", close=True)
    for _ in range(number):
        sock = socket.create_connection(("127.0.0.1", stand.gateway.port),
                                        PATIENCE)
        sock.sendall(data)
        socks.append(sock)
    return socks


def crowd_hears(stand, c, socks):
    """Reads all answers; each is written down like any other."""
    selector, words = selectors.DefaultSelector(), collections.Counter()
    buffers = {}
    for sock in socks:
        sock.setblocking(False)
        selector.register(sock, selectors.EVENT_READ)
        buffers[sock] = b""
    end = time.monotonic() + 180
    while buffers and time.monotonic() < end:
        for key, _ in selector.select(1):
            sock = key.fileobj
            with contextlib.suppress(BlockingIOError):
                try:
                    data = sock.recv(65536)
                except ConnectionError:
                    data = b""
                buffers[sock] += data
                if data:
                    continue
                selector.unregister(sock)
                sock.close()
                head, _, body = buffers.pop(sock).partition(b"\r\n\r\n")
                if not head:
                    words["no answer"] += 1
                    continue
                r = Response(head, body)
                stand.ledger.tell(c.path, None, r)
                words[r.code() or r.once] += 1
    words["never answered"] += len(buffers)
    assert not buffers, words
    return +words


# ---- The command line program --------------------------------------------

@cells("once resolve killed", ["resolve-sent", "resolve-answered"])
def cli(ctx, moment):
    stand = ctx.stand().start()
    c = stand.case(stand.effect(manner=sends()))
    stand.ask(c)
    stand.settle(c)
    url = "sqlite:%s" % stand.db

    def once(*args, **env):
        return subprocess.run(
            [ctx.failing_once, "--store", url] + list(args), text=True,
            env=dict(os.environ, **env), capture_output=True, check=False,
            timeout=PATIENCE)

    line = once("ls", "--state", "indeterminate").stdout.split("\t")
    name, fence = line[0], line[4]
    made = stand.ledger.executed[0].body
    answer = ctx.folder() / "answer"
    answer.write_bytes(made)
    command = ["resolve", name, "--fence", fence, "--success", str(answer),
               "--status", "201", "--why", "found out"]
    dead = once(*command, ONCE_FAILPOINT=moment + ":1:kill")
    assert dead.returncode == -signal.SIGKILL, dead
    seen = stand.settle(c)
    assert seen == ("outcome-unknown" if moment == "resolve-sent"
                    else "replayed"), seen
    again = once(*command)
    assert again.returncode in (0, 1), again
    word = stand.settle(c)
    assert word == "replayed", word
    return "%s, then %s" % (seen, came_of(stand, c, word))


def have(program):
    return shutil.which(program) is not None
