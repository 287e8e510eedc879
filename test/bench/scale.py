#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""scale.py - whether a store stays as it is when it grows, from 1,000 records on.

    make bench-scale SCALE="[--most N] [--rounds N] [--only STORE,...]
                            [--dir FOLDER] [--out FILE]"

Each store is filled with claims and completes, results of 300 bytes, in batches
of 1,024 and killed. Then it is visited once a round: opened as it was left, 16,384
cycles in batches of 64, 65,536 replays of what it was filled with, a kill -9,
opened again. Stores of all sizes are visited in turns, beginning at another one
each round, so a ratio to the smallest is of the same minutes. Below a million
records a store is made anew for each visit, since visits make it grow; above,
it is kept. --most bounds the sizes [journal: 10,000,000, sqlite and mysql:
1,000,000, postgres: 100,000, which take minutes, and some 30 GB of --dir [here, ONCE_BUILD]
and 1 GB of /dev/shm, all of which is given back].

The page that it writes is docs/bench-scale.md, if all stores and the full sizes
were measured, or FILE. With that page it puts a table into docs/scale.md: what the
formulas there predict, and what was measured here and by `make bench`. It refuses a folder in memory. A wrong answer of a store
ends it: bench_store.c checks each. Redis is not measured: it keeps all in RAM.
"""
import argparse
import datetime
import json
import os
import pathlib
import re
import shutil
import statistics
import subprocess
import sys
import tempfile

import gateway
import page
import servers
import stores

BUILD = gateway.BUILD.resolve()
BENCH = BUILD / "test" / "bench_store"
OUT = gateway.ROOT / "docs" / "bench-scale.md"
MODEL = gateway.ROOT / "docs" / "scale.md"
FROM, TO = "<!-- made by make bench-scale -->", "<!-- as far as here -->"
MOST = {"journal": 10 ** 7, "sqlite": 10 ** 6, "postgres": 10 ** 5,
        "mysql": 10 ** 6}
KEPT = 10 ** 6          # from here on a store is used for all rounds
CYCLES = 16384          # bench_store.c, VISIT_CYCLES
POOL = 2 ** 30          # bytes of MySQL's buffer pool


class Store:
    """One store of one size, and what was measured there."""

    def __init__(self, bench, kind, records):
        self.bench, self.kind, self.records = bench, kind, records
        self.fills, self.visits, self.sizes = [], [], []
        self.url = self.path = None
        self.held = 0

    def make(self):
        self.url, self.path = self.bench.url(self.kind)
        self.held = self.records
        done = subprocess.run([BENCH, "-o", "-f", str(self.records), self.url],
                              stdout=subprocess.PIPE, text=True, check=True)
        self.fills.append(json.loads(done.stdout))

    def drop(self):
        for path in self.files():
            path.unlink()
        if self.kind == "journal" and self.path:
            self.path.rmdir()
        if self.url and self.kind in SERVED:
            self.bench.served[self.kind].drop(self.url)
        self.url = self.path = None

    def files(self):
        if self.path is None:
            return []
        if self.kind == "journal":
            return list(self.path.glob("*"))
        return list(self.path.parent.glob(self.path.name + "*"))

    def visit(self):
        if self.url is None:
            self.make()
        served = self.bench.served.get(self.kind)
        before = stores.cpu_of(served.server.pid) if served else 0
        log = served.log() if served else 0
        with subprocess.Popen([BENCH, "-v", str(self.records), self.url],
                              stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                              stderr=subprocess.PIPE, text=True) as p:
            said = p.stderr.readline()
            self.held += CYCLES + 1
            shared = self.shared()
            out, error = p.communicate("\n")
        if said != "look\n" or p.returncode != 0:
            raise gateway.Wrong(f"{self.kind}: {said}{error}")
        r = json.loads(out)
        if served:
            r["server_us"] = 1e6 * (
                stores.cpu_of(served.server.pid) - before) / (
                    2 * CYCLES + 65536)
            r["operations"]["written"] = (served.log() - log) / (2 * CYCLES)
        self.visits.append(r)
        self.sizes.append((shared / self.held, self.disk() / self.held))
        if self.records < KEPT:
            self.drop()
        print(f"# {self.kind}, {self.records:,}: "
              f"{r['operations']['per_s']:,.0f} operations/s",
              file=sys.stderr, flush=True)

    def shared(self):
        """Bytes in /dev/shm: files there are named after the lock's inode."""
        if self.kind != "journal":
            return 0
        inode = (self.path / "lock").stat().st_ino
        return sum(f.stat().st_blocks * 512 for f in
                   pathlib.Path("/dev/shm").glob(f"once-*-{inode:x}-*"))

    def disk(self):
        if self.kind in SERVED:
            return self.bench.served[self.kind].size(self.url)
        return sum(f.stat().st_blocks * 512 for f in self.files())

    def middle(self, what, part=None):
        return statistics.median(v[part][what] if part else v[what]
                                 for v in self.visits)

    def ratio(self, base, what, part):
        return statistics.median(a[part][what] / b[part][what]
                                 for a, b in zip(self.visits, base.visits))


class Postgres:
    """A server, and the stores on it."""

    def __init__(self, world):
        self.base = world.build("postgres")
        self.server = world.servers["postgres"]

    def url(self, serial):
        return (self.base + ("&" if "?" in self.base else "?") +
                f"schema=scale{serial}")

    def drop(self, url):
        self.server.sql('drop schema "%s" cascade' % url.rpartition("=")[2],
                        database="once")

    def ask(self, query):
        return int(self.server.sql(query, database="once").strip())

    def log(self):
        return self.ask("select pg_wal_lsn_diff(pg_current_wal_lsn(), '0/0')")

    def size(self, url):
        return self.ask("select pg_total_relation_size('%s.record')" %
                        url.rpartition("=")[2])


class MySQL:
    """The same; a store is a database. It reads past the kernel's cache, so it
    gets room for all records."""

    def __init__(self, world):
        self.base = world.build("mysql")
        self.server = world.servers["mysql"]
        self.server.sql(f"SET GLOBAL innodb_buffer_pool_size = {POOL}")

    def url(self, serial):
        return f"{self.base}_scale{serial}"

    def drop(self, url):
        self.server.sql("DROP DATABASE " + url.rpartition("/")[2])

    def log(self):
        """Of the redo log and the binlog."""
        redo = self.server.sql("SHOW GLOBAL STATUS LIKE 'Innodb_lsn_current'")
        binlogs = self.server.sql("SHOW BINARY LOGS")
        return int(redo.split()[1]) + sum(int(line.split()[1])
                                          for line in binlogs.splitlines())

    def size(self, url):
        folder = self.server.data / url.rpartition("/")[2]
        return sum(f.stat().st_blocks * 512 for f in folder.glob("*.ibd"))


SERVED = {"postgres": Postgres, "mysql": MySQL}


class Bench:
    def __init__(self, args, folder, world):
        self.args, self.folder = args, folder
        self.serial = 0
        self.served = {kind: SERVED[kind](world) for kind in args.stores
                       if kind in SERVED}

    def url(self, kind):
        """Of a store that nobody has used, and where it is."""
        self.serial += 1
        if kind in SERVED:
            return self.served[kind].url(self.serial), None
        path = self.folder / f"{kind}{self.serial}"
        return f"{kind}:{path}", path

    def flushes(self, kind):
        """Flushes a batch of 64, of some hundred batches."""
        url, path = self.url(kind)
        log = self.folder / "strace"
        done = subprocess.run(
            ["strace", "-f", "-qq", "-e", "trace=fdatasync,fsync", "-o", log,
             BENCH, "-s", "1", url], stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL, text=True, check=True)
        batches = json.loads(done.stdout)["operations"] / 64
        found = sum("sync(" in line for line in log.read_text().splitlines())
        shutil.rmtree(path, ignore_errors=True)
        return found / batches

    def disk(self, kind):
        """Bytes that the disk got an operation, by its own counter: of all
        who write."""
        url, path = self.url(kind)
        device = os.stat(self.folder).st_dev
        counter = pathlib.Path("/sys/dev/block/%d:%d/stat" % (
            os.major(device), os.minor(device)))
        before = int(counter.read_text().split()[6])
        done = subprocess.run([BENCH, "-s", "2", url], stdout=subprocess.PIPE,
                              stderr=subprocess.DEVNULL, text=True, check=True)
        sectors = int(counter.read_text().split()[6]) - before
        shutil.rmtree(path, ignore_errors=True)
        return 512 * sectors / json.loads(done.stdout)["operations"]


def measure(bench, kind):
    """The stores of one kind, smallest first."""
    most = min(bench.args.most or MOST[kind], MOST[kind])
    sizes = [10 ** n for n in range(3, 10) if 10 ** n <= most]
    found = [Store(bench, kind, n) for n in sizes]
    try:
        for number in range(bench.args.rounds):
            turn = number % len(found)
            for store in found[turn:] + found[:turn]:
                store.visit()
    finally:
        for store in found:
            store.drop()
    return found


def speed(found):
    server = "server_us" in found[0].visits[0]
    base = found[0]
    lines = ["", "| records | operations/s | to the smallest | CPU µs/op | "
             "to the smallest | replays/s | to the smallest | CPU µs/replay |" +
             (" server's CPU µs/op, replays included |" if server else ""),
             "|---|---|---|---|---|---|---|---|" + ("---|" if server else "")]
    for s in found:
        cells = [f"{s.records:,}",
                 f"{s.middle('per_s', 'operations'):,.0f}",
                 f"{s.ratio(base, 'per_s', 'operations'):.2f}",
                 f"{s.middle('cpu_us', 'operations'):.2f}",
                 f"{s.ratio(base, 'cpu_us', 'operations'):.2f}",
                 f"{s.middle('per_s', 'replays'):,.0f}",
                 f"{s.ratio(base, 'per_s', 'replays'):.2f}",
                 f"{s.middle('cpu_us', 'replays'):.2f}"]
        if server:
            cells.append(f"{s.middle('server_us'):.1f}")
        lines.append("| " + " | ".join(cells) + " |")
    return lines


def size(found):
    kind = found[0].kind
    ram = "RAM a record" if kind == "journal" else None
    opens = kind not in SERVED
    head = (["records", "disk a record"] + ([ram] if ram else []) +
            ["own RAM, MiB", "written an operation"] +
            (["filled with, records/s", "opened in ms, closed cleanly",
              "after a kill -9", "the longest"] if opens else []))
    lines = ["", "| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    for s in found:
        kept = s.records >= KEPT
        cells = [f"{s.records:,}",
                 f"{statistics.median(d for _, d in s.sizes):,.0f}"]
        if ram:
            cells.append(f"{statistics.median(m for m, _ in s.sizes):,.0f}")
        cells.append(f"{s.middle('own_kb') / 1024:.1f}")
        cells.append(f"{s.middle('written', 'operations'):,.0f}"
                     if kind in SERVED else
                     f"{s.fills[0]['fill']['written']:,.0f}")
        if opens:
            rate = statistics.median(f["fill"]["per_s"] for f in s.fills) / 2
            killed = [v["killed_open_ms"] for v in s.visits]
            # What was just filled was killed, and opened again, before.
            killed += [f["open_ms"] for f in s.fills]
            cells += [f"{rate:,.0f}", f"{s.middle('open_ms'):,.0f}",
                      f"{statistics.median(killed):,.0f}",
                      f"{max(killed):,.0f}"]
        lines.append("| " + " | ".join(cells) + " |")
        assert kept or len(s.fills) == len(s.visits)
    return lines


def head(args, load, folder):
    now = datetime.datetime.now(datetime.timezone.utc)
    words = " ".join(["test/bench/scale.py"] + sys.argv[1:])
    return [
        "<!-- made by test/bench/scale.py: run make bench-scale -->",
        "# Stores as they grow", "",
        "Each with so many completed records, results of 300 bytes. What to "
        "reckon from it: [scale.md](scale.md).", "",
        f"- {now:%Y-%m-%d %H:%M} UTC; {gateway.machine()}; load before the run "
        f"{load:.2f}; on {gateway.filesystem(folder)}",
        f"- `{words}`: {args.rounds} interleaved rounds; medians; a ratio is of "
        "the same round",
        "- an operation is a claim or a complete, in batches of 64, each batch "
        "durable before the next;",
        f"  a visit adds {CYCLES:,} records to those that are there, so the "
        "smallest sizes are those at its beginning",
        "- replays are of any of the records, in batches of 64; CPU is of all "
        "threads of the process",
        "- opening is up to the first answer; the kernel has the files in "
        "memory, which after a power cut it has not",
        "- disk is what the files take, with what is reserved: at small sizes "
        "that is most of it",
        "- written is what the process hands to the kernel while it fills the "
        "store, in batches of 1,024; for PostgreSQL",
        "  its write-ahead log in the visit, for MySQL redo log and binlog;",
        f"  MySQL's buffer pool has {POOL >> 20:,} MiB, which hold all records",
    ]


def everything(bench, points):
    """Yields its lines. `points`: what formulas are compared with."""
    for kind in bench.args.stores:
        yield from ["", f"## {kind}"]
        found = measure(bench, kind)
        points[kind] = found[-1]
        yield from speed(found)
        yield from size(found)
        if kind not in SERVED:
            flushes, disk = bench.flushes(kind), bench.disk(kind)
            points[kind + " flushes"] = flushes
            points[kind + " disk"] = disk
            yield from [
                "", f"Flushes a batch of 64 operations: {flushes:.2f}. Bytes "
                "that the disk got an operation, in batches of 64, by its own "
                f"counter, of all who wrote: {disk:,.0f}."]


# ---- The cost model: docs/scale.md has the formulas --------------------------

RESULT = 300
CLAIM, DONE = 272, 268  # bytes of a claim's frame; of an outcome's, and result
SLOT = 100              # of the index, a record
LITE, LITE_LOG, PG = 330, 75e6, 690  # a record beside its result


def in_log():
    """Bytes of the two frames of a record."""
    return CLAIM + (DONE + RESULT + 7) // 8 * 8


def through_nginx(name):
    """requests/s and CPU of a row of docs/bench-gateway.md, one worker, 64
    connections; or None."""
    text = gateway.OUT.read_text() if gateway.OUT.exists() else ""
    part = text.partition("### 1 worker, 64 connections")[2].partition("###")[0]
    for line in part.splitlines():
        cells = [cell.strip() for cell in line.split("|")]
        if len(cells) > 7 and cells[1] == name:
            return float(cells[2].replace(",", "")), float(cells[7])
    return None


def checked(points):
    """Rows: what, where, predicted, measured."""
    def largest(kind, which):
        return statistics.median(n[which] for n in points[kind].sizes)

    def at(kind):
        return f"{kind}, {points[kind].records:,} records"

    if "journal" in points:
        s = points["journal"]
        yield ("`journal:` bytes in `/dev/shm` a record", at("journal"), SLOT,
               largest("journal", 0))
        yield ("`journal:` bytes on disk a record", at("journal"), in_log(),
               largest("journal", 1))
        yield ("`journal:` bytes written a record while the log grows",
               at("journal"), 2 * in_log(), 2 * s.fills[0]["fill"]["written"])
        yield ("`journal:` flushes a batch", "batches of 64", 1,
               points["journal flushes"])
        yield ("`journal:` bytes to the disk an operation", "batches of 64",
               in_log() + 4096 / 64, points["journal disk"])
    if "sqlite" in points:
        s = points["sqlite"]
        yield ("`sqlite:` bytes on disk a record", at("sqlite"),
               LITE + RESULT + LITE_LOG / s.held, largest("sqlite", 1))
        yield ("`sqlite:` flushes a batch", "batches of 64", 1,
               points["sqlite flushes"])
    if "postgres" in points:
        yield ("`postgres:` bytes on disk a record", at("postgres"),
               PG + RESULT, largest("postgres", 1))
    plain = through_nginx("plain `proxy_pass`")
    for name in ("journal", "sqlite"):
        row = through_nginx(f"new keys, `{name}:`")
        if plain and row:
            others = os.cpu_count() * 1e6 / plain[0] - plain[1]
            yield (f"`{name}:` requests/s, at most", "behind nginx, one worker, "
                   "64 connections", os.cpu_count() * 1e6 / (others + row[1]),
                   row[0])


def put_checked(points):
    """Puts the table into docs/scale.md, between its two marks."""
    lines = [FROM, "", "| what | where | predicted | measured | measured of "
             "predicted |", "|---|---|---|---|---|"]
    for what, where, predicted, measured in checked(points):
        digits = 2 if predicted < 10 else 0
        lines.append(f"| {what} | {where} | {predicted:,.{digits}f} | "
                     f"{measured:,.{digits}f} | {measured / predicted:.2f} |")
    text = MODEL.read_text()
    where = re.escape(FROM) + ".*" + re.escape(TO)
    if len(re.findall(where, text, re.S)) != 1:
        sys.exit(f"scale.py: {MODEL} has no place for the table")
    table = "\n".join(lines + ["", TO])
    MODEL.write_text(re.sub(where, lambda _: table, text, flags=re.S))


def arguments():
    p = argparse.ArgumentParser(description="Measures stores as they grow.")
    p.add_argument("--most", type=int, help="records, at most")
    p.add_argument("--rounds", type=gateway.count, default=5)
    p.add_argument("--only", help="stores, with commas between")
    p.add_argument("--dir", default=BUILD, help="where stores are made")
    p.add_argument("--out", type=pathlib.Path)
    args = p.parse_args()
    args.stores = args.only.split(",") if args.only else list(MOST)
    if set(args.stores) - set(MOST):
        p.error("stores are " + ", ".join(MOST))
    if args.most is not None and args.most < 1000:
        p.error("--most: from 1000 on")
    if args.out is None and not args.only and args.most is None:
        args.out = OUT
    return args


def rows(args, folder, points):
    if gateway.filesystem(folder) in ("tmpfs", "ramfs"):
        raise gateway.Wrong(f"{folder} is in memory: say --dir")
    with servers.World() as world:
        yield from everything(Bench(args, folder, world), points)


def main():
    args = arguments()
    load = os.getloadavg()[0]
    folder = pathlib.Path(tempfile.mkdtemp(prefix="once-scale-", dir=args.dir))
    points = {}
    status = page.make("scale.py", folder, head(args, load, folder),
                       rows(args, folder, points), args.out)
    if status == 0 and args.out and args.out.resolve() == OUT:
        put_checked(points)
    return status


if __name__ == "__main__":
    sys.exit(main())
