# SPDX-License-Identifier: Apache-2.0
"""
The faults of the cells: each is played, and healed, and says in `run.hits` how
often it hit something; what the proxy did is counted there. `run` is a Run of
cells.py: its servers, its proxy, its traffic, its random numbers.
"""

import contextlib
import os
import pathlib
import resource
import shutil
import signal
import subprocess
import time

import servers
import wire
from cellkit import Skip
from servers import COMMITTING
from storelist import LOCAL
from stores import Disk

SANITIZED = "ASAN_OPTIONS" in os.environ
CALLERS = 24    # of one process, so that batches are of many operations
FAULTS = {}
PREPARED = {}   # by fault: what must be done before the traffic begins


def fault(name, *stores, callers=CALLERS):
    """Registers a fault for the stores of these names. With one caller each
    batch is one operation, reads are alone in it, and keys are few."""
    def register(function):
        FAULTS[name] = (function, stores, callers)
        return function
    return register


SERVERS = ("postgres", "mysql", "redis")
PROXIED = ("postgres", "pgbouncer", "mysql", "redis")


def victim(run):
    """The server itself; of a cluster, one of its nodes."""
    if run.store.name == "redis-cluster":
        return run.server("redis%d" % run.rng.randint(1, 3))
    if run.store.name == "pgbouncer":
        return run.server(run.rng.choice(["pgbouncer", "postgres"]))
    return run.server()


@fault("kill", "postgres", "pgbouncer", "mysql", "redis", "redis-cluster",
       "redis-plain")
def kill(run):
    """kill -9 of all of the server's processes, and a start."""
    server = victim(run)
    plain = run.store.name == "redis-plain"
    mark = server.ask("GET", "once:store") if plain else None
    server.kill()
    run.hits += 1
    run.nap(0, 0.3)
    server.start()
    if plain:  # refused as long as nobody says that an empty one will do
        server.ask("SET", "once:store", mark)


@fault("immediate", "postgres", "pgbouncer", "redis", "redis-cluster")
def immediate(run):
    server = victim(run)
    server.quit()
    run.hits += 1
    server.start()


@fault("restart", "postgres", "pgbouncer", "mysql", "redis")
def restart(run):
    """In order, under load: PostgreSQL's fast shutdown."""
    victim(run).restart()
    run.hits += 1


@fault("pause", "postgres", "pgbouncer", "mysql", "redis", "redis-cluster")
def pause(run):
    """SIGSTOP, mostly for longer than anybody's patience."""
    server = victim(run)
    server.pause()
    run.hits += 1
    run.nap(*run.rng.choice([(0.01, 0.1), (0.5, 1), (2.5, 5)]))
    server.resume()


@fault("config-set", "redis")
def config_set(run):
    """CONFIG SET maxmemory-policy while it runs: the server is refused, and
    nothing is answered until it keeps its keys again."""
    server = victim(run)
    server.ask("CONFIG", "SET", "maxmemory-policy",
               run.rng.choice(["allkeys-random", "allkeys-lru",
                               "volatile-ttl"]))
    time.sleep(2.5)  # a second is believed, and a batch may be under way
    before = run.traffic.shared["answered"]
    time.sleep(1)
    after = run.traffic.shared["answered"]
    server.ask("CONFIG", "SET", "maxmemory-policy", "noeviction")
    run.hits += 1
    if after != before:
        raise RuntimeError("a server that would drop keys was asked on")


@fault("clock", "postgres", "mysql", "redis")
def clock(run):
    """The server's clock jumps: a minute, an hour, there and back."""
    run.world.step(run.store.kind, run.rng.choice(
        [0, 60000, -60000, 3600000, -3600000]))
    run.hits += 1
    run.nap(0, 0.3)


HOUR = 3600000


@fault("clock-beyond", "postgres", "mysql", "redis", *LOCAL)
def clock_beyond(run):
    """The clock that decides jumps beyond the retention, there and back, and
    who starts then has not seen the jump. (A day is kept. Redis's own TTL is
    three of them, so no two moments are more than two days apart.)"""
    hours = run.rng.choice([0, 25, -20] if run.store.name == "redis" else
                           [0, 25, -25, 60, -60, 1000])
    run.world.step(run.store.kind or "traffic", hours * HOUR)
    if run.rng.randrange(2):
        run.traffic.kill(run.rng.randrange(2))
    run.hits += 1
    run.nap(0.4, 1.2)  # the reaper's period is 0.3 s


@fault("client-kill", *LOCAL, *SERVERS, "redis-cluster")
def client_kill(run):
    """kill -9 of one of the two processes, in the middle of a batch."""
    run.traffic.kill(run.rng.randrange(2))
    run.hits += 1


@fault("client-pause", *LOCAL, *SERVERS)
def client_pause(run):
    """One process stands still past its leases: late completes."""
    n = run.rng.randrange(2)
    run.traffic.signal(n, signal.SIGSTOP)
    run.hits += 1
    run.nap(*run.rng.choice([(0.01, 0.1), (2.2, 3)]))
    run.traffic.signal(n, signal.SIGCONT)


# -- files


def store_path(run):
    return pathlib.Path(run.direct.partition(":")[2].partition("?")[0])


def parts(path):
    """A store's own file or folder, and what lies beside it by its name."""
    return sorted(path.parent.glob(path.name)) + \
        sorted(path.parent.glob(path.name + "-*"))


def beside(part, path, name):
    return part.with_name(name + part.name[len(path.name):])


def move(path, name):
    for part in parts(path):
        part.rename(beside(part, path, name))
    return path.with_name(name)


def nobody_answers(run, least, most):
    """From a moment after now on; those under way may have been answered."""
    time.sleep(1)
    was = run.traffic.shared["answered"]
    run.nap(least, most)
    if run.traffic.shared["answered"] - was > 2 * CALLERS:
        raise RuntimeError("answers from a store that is not in its place")


@fault("moved", *LOCAL)
def moved(run):
    """The store is away for a while, and nothing stands in its place."""
    path = store_path(run)
    away = move(path, "away")
    run.hits += 1
    nobody_answers(run, 0.1, 1)
    move(away, path.name)


@fault("moved-at-start", *LOCAL)
def moved_at_start(run):
    """The store is away while a process starts: it must make no new one there,
    and open the old one when that is back."""
    path = store_path(run)
    run.traffic.kill(run.rng.randrange(2))
    run.nap(0, 0.15 if SANITIZED else 0.03)
    away = move(path, "away")
    run.hits += 1
    nobody_answers(run, 0, 0.5)
    if parts(path):
        raise RuntimeError("a store was made where one is missing")
    move(away, path.name)


@fault("replaced", *LOCAL)
def replaced(run):
    """
    A copy takes the store's place while both processes stand still. One is
    started anew and goes on with the copy; the other still has the old one,
    and must not answer from it. In the end both have the copy.
    """
    path = store_path(run)
    run.traffic.stand_still()
    for part in parts(path):
        subprocess.run(["cp", "-a", part, beside(part, path, "copy")],
                       check=True)
    away = move(path, "away")
    move(path.with_name("copy"), path.name)
    for n in (0, 1):
        run.traffic.signal(n, signal.SIGCONT)
    run.hits += 1
    if run.rng.randrange(2):
        nobody_answers(run, 0.1, 0.5)
    first = run.rng.randrange(2)
    run.traffic.kill(first)
    run.progress(10, "with the copy")
    run.nap(0, 1)
    run.traffic.kill(1 - first)
    # Opened and closed by nobody else, it leaves nothing in /dev/shm.
    run.ask("init", run.direct.replace(str(path), str(away)))
    for part in parts(away):
        shutil.rmtree(part) if part.is_dir() else part.unlink()


# -- what one process lacks


@contextlib.contextmanager
def limited(pid, what, value):
    was = resource.prlimit(pid, what)
    resource.prlimit(pid, what, (value, was[1]))
    try:
        yield
    finally:
        with contextlib.suppress(ProcessLookupError):
            resource.prlimit(pid, what, was)


def lacking(run, what, used):
    """One process gets no more of it, and the other is killed: if that one had
    the lock, the first to find it so is who lacks something."""
    n = run.rng.randrange(2)
    pid = run.traffic.processes[n].pid
    with limited(pid, what, used(pid)):
        for _ in range(run.rng.randrange(1, 4)):
            run.nap(0, 0.2)
            run.traffic.kill(1 - n)
            run.hits += 1
        run.progress(10, "while one process lacks something")


@fault("descriptors", *LOCAL, "journal-small")
def descriptors(run):
    """One process can open nothing."""
    lacking(run, resource.RLIMIT_NOFILE,
            lambda pid: 1 + max(map(int, os.listdir("/proc/%d/fd" % pid))))


@fault("memory", *LOCAL, "journal-small")
def memory(run):
    """One process gets no further memory from the kernel."""
    if SANITIZED:
        raise Skip("a sanitizer ends a program that gets no memory")
    def used(pid):
        pages = pathlib.Path("/proc/%d/statm" % pid).read_text("ascii")
        return int(pages.split()[0]) * resource.getpagesize() + 65536
    lacking(run, resource.RLIMIT_AS, used)


def fill(f, left):
    """Takes all of the disk but `left` bytes, while others write there."""
    at, step = 0, 1 << 30
    while step >= 4096:
        free = os.fstatvfs(f.fileno())
        want = min(step, free.f_bavail * free.f_frsize - left)
        if want < 4096:
            break
        try:
            os.posix_fallocate(f.fileno(), at, want)
            at += want
        except OSError:
            step = want // 2


@contextlib.contextmanager
def filled(place, left):
    """Another program has taken all of a disk but `left` bytes."""
    other = place / "other"
    try:
        with open(other, "wb") as f:
            fill(f, left)
        yield other.stat().st_size > 0
    finally:
        other.unlink()


@fault("full", "sqlite-disk", "journal-disk")
def full(run):
    """Another program takes all of the disk, and gives it back."""
    left = run.rng.choice([0, 1 << 16, 1 << 20, 5 << 20])
    with filled(run.place, left) as taken:
        run.hits += taken
        run.nap(0.1, 1.5)


# -- the disk below a server


def complaints(server):
    """How often it has said that its disk was full."""
    text = (server.folder / "log").read_text("latin-1")
    return sum(text.count(words) for words in (
        "No space left", "Short write", "error 28"))


@fault("full-below", "postgres-disk", "mysql-disk", "redis-disk")
def full_below(run):
    """The server's disk is full until the server has met it, or for a while:
    what is only written over needs no space."""
    server = run.server()
    before = complaints(server)
    with filled(run.place, run.rng.choice([0, 0, 1 << 14, 1 << 18])):
        end = time.monotonic() + 5
        while complaints(server) == before and time.monotonic() < end:
            run.nap(0, 0.1)
        run.nap(0, 1)
    run.hits += complaints(server) - before


@fault("error-below", "postgres-disk", "mysql-disk", "redis-disk")
def error_below(run):
    """The server's flushes or its writes fail, once or for a while; it may be
    killed on top, so that it has nothing but its files."""
    before = run.disk.failed()
    run.disk.fail(run.rng.choice([run.disk.FLUSHES, run.disk.WRITES,
                                  run.disk.FLUSHES | run.disk.WRITES]))
    run.nap(*run.rng.choice([(0, 0.01), (0.05, 0.5), (0.5, 2)]))
    run.disk.fail(0)
    run.hits += run.disk.failed() - before
    if run.rng.random() < 0.5:
        run.server().kill()


# -- on the wire

for _name, _function in wire.FAULTS.items():
    fault(_name, *PROXIED)(_function)


# -- PostgreSQL

@fault("terminate", "postgres", "pgbouncer")
def terminate(run):
    """pg_terminate_backend() of every connection."""
    run.hits += run.server("postgres").terminate()


@fault("terminate-commit", "postgres", "pgbouncer")
def terminate_commit(run):
    """The same, of one that is flushing its COMMIT at this moment."""
    run.hits += run.server("postgres").terminate(COMMITTING, 20000)


def change_primary(run, before):
    """The standby becomes the primary, and the old one its standby."""
    old, new = run.server("postgres"), run.server("standby")
    if getattr(run, "turned", False):
        old, new = new, old
    before(old, new)
    new.promote()
    run.hits += 1
    run.progress(10, "after the promotion")
    old.rejoin(new)
    new.follow_by("*" if run.store.durable else "")
    run.turned = not getattr(run, "turned", False)
    now = run.server("standby" if run.turned else "postgres")
    run.direct = with_primary(run.direct, now)


def with_primary(url, server):
    """Only it: a judge asks the one that is left."""
    head, _, tail = url.partition("@")
    return "%s@%s:%d/once%s" % (head, servers.LOOPBACK, server.port,
                                "?" + tail.partition("?")[2]
                                if "?" in tail else "")


@fault("promote", "postgres-standby")
def promote(run):
    """The primary is killed, the synchronous standby takes its place."""
    change_primary(run, lambda old, new: old.kill())


@fault("promote-ahead", "postgres-standby")
def promote_ahead(run):
    """The same, and the clock of the new primary's host is ahead of all that
    was before by more than the retention."""
    def before(old, new):
        run.ahead = getattr(run, "ahead", 0) + 25 * HOUR
        run.world.step(new.name, run.ahead)
        old.kill()
    change_primary(run, before)
    run.nap(1, 2)


def unheard(function):
    """
    The standby is down; the primary's sessions that wait for it are
    ended by `function`, and have committed on the primary only; then the
    standby becomes the primary. Who was told "done" by the first must find it
    on the second, also who was told so because a first try had done it.
    """
    def before(old, new):
        new.quit()  # paused, it would still have what is on its way
        # Long enough for a repetition, over a new connection, to be answered.
        for _ in range(20):
            time.sleep(0.3)
            old.sql("SELECT %s(pid) FROM pg_stat_activity WHERE usename ="
                    " 'once' AND wait_event = 'SyncRep'" % function)
        old.kill()
        new.start()
    return before


@fault("cancelled-wait", "postgres-standby")
def cancelled_wait(run):
    """pg_cancel_backend(): the session goes on with a warning."""
    change_primary(run, unheard("pg_cancel_backend"))


@fault("cancelled-wait-alone", "postgres-standby", callers=1)
def cancelled_wait_alone(run):
    """The same, with batches of one operation."""
    change_primary(run, unheard("pg_cancel_backend"))


@fault("terminated-wait", "postgres-standby")
def terminated_wait(run):
    """pg_terminate_backend(): the session ends."""
    change_primary(run, unheard("pg_terminate_backend"))


@fault("terminated-wait-alone", "postgres-standby", callers=1)
def terminated_wait_alone(run):
    """The same, with batches of one operation."""
    change_primary(run, unheard("pg_terminate_backend"))


@fault("lagging", "postgres-async")
def lagging(run):
    """The standby lags and is promoted: what it had not heard is lost."""
    def before(old, new):
        # It has the bytes, and may only not replay them: cut it off instead.
        new.sql("ALTER SYSTEM SET primary_conninfo = ''")
        new.sql("SELECT pg_reload_conf()")
        run.nap(0.3, 1)
        old.kill()
        new.sql("ALTER SYSTEM RESET primary_conninfo")
    change_primary(run, before)


# -- MySQL and MariaDB


@fault("end-sessions", "mysql")
def end_sessions(run):
    """KILL of every connection, wherever it is."""
    run.server().sql("KILL USER once")
    run.hits += 1


@fault("cancel", "mysql")
def cancel(run):
    """KILL QUERY: the statement ends, and what comes behind it in the packet
    is not executed; the session goes on."""
    run.server().sql("KILL HARD QUERY USER once")
    run.hits += 1


@fault("locks", "mysql")
def locks(run):
    """Another session locks rows and the gaps between them, and half of the
    time is rolled back as one of a deadlock: REPEATABLE READ, no order."""
    run.server().sql(
        "SET innodb_lock_wait_timeout = 1; BEGIN; "
        "SELECT COUNT(*) FROM (SELECT fence FROM once_record ORDER BY %s "
        "LIMIT %d FOR UPDATE) x; DO SLEEP(%s); SELECT COUNT(*) FROM "
        "(SELECT fence FROM once_record ORDER BY fence DESC LIMIT 50 "
        "FOR UPDATE) x; DO SLEEP(%s); ROLLBACK"
        % (run.rng.choice(["name", "fence DESC"]), run.rng.choice([1, 20, 500]),
           *run.rng.choice([(0, 0), (0.1, 0.1), (0.5, 1.5)])), "once",
        check=False)
    run.hits += 1


@fault("promote-replica", "mysql-replica")
def promote_replica(run):
    """The primary is killed, the semi-synchronous replica takes its place."""
    old, new = run.server("mysql"), run.server("replica")
    if getattr(run, "turned", False):
        old, new = new, old
    old.kill()
    new.promote()
    run.hits += 1
    run.progress(10, "after the promotion")
    old.rejoin(new)
    run.turned = not getattr(run, "turned", False)
    run.direct = with_primary(run.direct, new)


# -- the network


def settle(run):
    """One primary, one replica that follows it, and nobody who doubts it."""
    sentinels = [run.server("sentinel%d" % n) for n in (1, 2, 3)]

    def look():
        roles = [run.server(n).ask("ROLE")
                 for n in ("redis-primary", "redis-replica")]
        return sorted(r[0] for r in roles) == [b"master", b"slave"] and \
            any(r[0] == b"slave" and r[3] == b"connected" for r in roles) and \
            servers.sentinels_agree(sentinels)
    servers.eventually(look, "the sentinels agree again")


@fault("failover", "redis-sentinel")
def failover(run):
    """The primary is killed; what its replica has not heard is lost."""
    primary, replica = [
        run.server(n) for n in ("redis-primary", "redis-replica")]
    if primary.ask("ROLE")[0] != b"master":
        primary, replica = replica, primary
    primary.kill()
    run.hits += 1
    servers.eventually(lambda: replica.ask("ROLE")[0] == b"master",
                       "the replica becomes the primary")
    run.progress(10, "after the failover")
    primary.start()
    settle(run)


@fault("partition", "postgres-net", "redis-net")
def partition(run):
    """One client or both are cut off, one way or both ways; packets that were
    under way arrive late, by the kernel's own repetition."""
    which = run.rng.choice([[0], [1], [0, 1]])
    ways = run.rng.choice([["INPUT"], ["OUTPUT"], ["INPUT", "OUTPUT"]])
    for n in which:
        run.places[n].cut("client%d" % n, *ways)
    run.nap(*run.rng.choice([(0.05, 0.3), (0.5, 1.5), (2, 4)]))
    for n in which:
        run.hits += run.places[n].mend()


@fault("split", "sentinel-net", "sentinel-wait")
def split(run):
    """
    The primary and one client on this side, the majority on the other: they
    choose another primary, and both go on until the cable is mended. Both
    clients are told by theirs that they own.
    """
    run.home.cut("cable")
    run.nap(5, 7)
    run.hits += run.home.mend()
    settle(run)


# -- a journal's processes, and its files


def prepare_flushes(run):
    run.disk = Disk(run)
    run.environment = run.disk.environment


PREPARED["kill-flush"] = prepare_flushes


@fault("kill-flush", "journal")
def kill_flush(run):
    """One process is killed, maybe with the lock, and the other's flushes fail:
    what it repaired never reached the disk. Both end and begin anew."""
    n = run.rng.randrange(2)
    first, then = run.traffic.end, run.disk.fail
    if run.rng.random() < 0.5:
        first(n)
        run.nap(0, 0.003)
        then(1)
    else:
        then(1)
        run.nap(0, 0.003)
        first(n)
    run.nap(0.02, 0.2)
    answered = run.traffic.shared["answered"]
    run.nap(0.02, 0.02)
    run.hits += run.traffic.shared["answered"] == answered  # not one more
    run.traffic.end(1 - n)
    run.disk.fail(0)
    for n in (0, 1):
        run.traffic.start(n)


def command_line(run, url, *before):
    """Counts all records, as an operator would."""
    return subprocess.Popen(
        [*before, str(run.args.build / "once"), "--store", url, "stats"],
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, text=True)


@fault("copy", "journal")
def copy(run):
    """The folder is copied, beside those who write or while they stand still,
    and the copy is opened. The original goes on, and lets others in."""
    live, other = store_path(run), run.folder / "copy"
    still = run.rng.random() < 0.5
    if still:
        run.traffic.stand_still()
    # Beside writers a segment may go while it is copied.
    subprocess.run(["cp", "-a", live, other], check=still,
                   stderr=subprocess.DEVNULL)
    for n in (0, 1):
        run.traffic.signal(n, signal.SIGCONT)
    p = command_line(run, "journal:%s" % other)
    _, err = p.communicate(timeout=120)
    if still and p.returncode != 0:
        raise RuntimeError("the copy was refused: " + err)
    run.hits += 1
    shutil.rmtree(other)
    if run.rng.random() < 0.5:
        run.traffic.kill(run.rng.randrange(2))
    p = command_line(run, "journal:%s" % live)
    _, err = p.communicate(timeout=120)
    if p.returncode != 0:
        raise RuntimeError("the original was refused: " + err)


@fault("stranger", "journal")
def stranger(run):
    """Somebody in another PID namespace wants to come in: he is refused, or
    killed while he waits for it."""
    p = command_line(run, run.direct,
                     servers.find("unshare"), "--pid", "--fork",
                     "--kill-child")
    if run.rng.random() < 0.5:
        run.nap(0, 1)
        p.kill()
    _, err = p.communicate(timeout=120)
    if "unshare failed" in err or "not permitted" in err:
        raise Skip("no PID namespace to be had: " + err.strip())
    if p.returncode == 0 or (p.returncode > 0 and
                             "another PID namespace" not in err):
        raise RuntimeError("a stranger came in: %d %s" % (p.returncode, err))
    run.hits += 1


@fault("storm", *LOCAL, "postgres", "pgbouncer", "mysql", "redis",
       "redis-cluster")
def storm(run):
    """Any of the others, whatever comes."""
    names = [n for n, (_, stores, _) in FAULTS.items()
             if run.store.name in stores and
             n not in ("storm", "silence", "clock-beyond", *PREPARED) and
             not (SANITIZED and n == "memory")]
    FAULTS[run.rng.choice(names)][0](run)
