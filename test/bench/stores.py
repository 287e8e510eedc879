#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""stores.py - what each store costs by itself, beside what the machine allows.

    test/bench/stores.py [--rounds N] [--seconds S] [--records N] [--quick]
                         [--only STORE,...] [--out FILE]

One process asks one store, as an engine does: a batch of N operations, the next
when it was answered (bench_store). A cycle is claim, then complete, each
durable before the next. Beside the stores stand, in the same run: a plain
append and fdatasync of the bytes that the journal writes, `redis-benchmark` SET
of the same size, and single-row statements by pgbench. Rounds are interleaved and
ratios are taken within a round; what is printed is the median of the rounds.

It refuses nothing that is slow and prints what it measured; a wrong answer of a
store ends it with status 1. Servers are its own, on loopback, in a temporary
folder, and are stopped by their process ids.
"""
import argparse
import datetime
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "test" / "lib"))
sys.dont_write_bytecode = True
# pylint: disable=wrong-import-position
import page  # noqa: E402
import servers  # noqa: E402
from page import Wrong  # noqa: E402

BUILD = pathlib.Path(os.environ.get("ONCE_BUILD", ROOT / "build"))
BENCH = BUILD / "test" / "bench_store"
OUT = ROOT / "docs" / "bench-stores.md"
FLIGHTS = [1, 16, 64, 256]
TICK = os.sysconf("SC_CLK_TCK")
LIMIT = "append + fdatasync"

# name: the kind of server it needs, if any
STORES = {LIMIT: None, "memory": None, "sqlite": None, "journal": None,
          "postgres": "postgres", "mysql": "mysql", "redis": "redis",
          "redis-cluster": "redis-cluster"}
SERVERS = {"postgres": ["postgres"], "mysql": ["mysql"], "redis": ["redis"],
           "redis-cluster": ["redis1", "redis2", "redis3"]}


def cpu_of(pid):
    """Seconds of processor time of a process, its children and theirs."""
    total = 0.0
    for one in [pid] + descendants(pid):
        try:
            with open(f"/proc/{one}/stat", encoding="ascii") as f:
                fields = f.read().rsplit(")", 1)[1].split()
        except OSError:
            continue
        # utime, stime, and those of children that have ended
        total += sum(int(n) for n in fields[11:15]) / TICK
    return total


def descendants(pid):
    found = []
    try:
        with open(f"/proc/{pid}/task/{pid}/children", encoding="ascii") as f:
            for child in f.read().split():
                found += [int(child)] + descendants(int(child))
    except OSError:
        pass
    return found


def memory():
    """Bytes that journals keep in shared memory."""
    return sum(p.stat().st_size for p in pathlib.Path("/dev/shm").glob("once*"))


def never_rewrite(world, store):
    """Redis shall not copy its file while somebody is measured."""
    for name in SERVERS[store]:
        world.servers[name].ask("CONFIG", "SET",
                                "auto-aof-rewrite-percentage", "0")


class Bench:
    """The servers, the folder, and what was measured."""

    def __init__(self, args, folder, world):
        self.args, self.folder, self.world = args, folder, world
        self.serial = 0
        self.urls = {}
        for store in args.stores:
            kind = STORES[store]
            if kind is None:
                continue
            try:
                self.urls[store] = world.build(kind)
                if store.startswith("redis"):
                    never_rewrite(world, store)
            except servers.Missing as e:
                print(f"# {store}: {e}", file=sys.stderr)
                args.stores = [s for s in args.stores if s != store]

    def url(self, store, fresh=True):
        """Of a store that nobody has used, or the one that was made last."""
        self.serial += fresh
        here = self.folder / f"{store.split()[0]}{self.serial}"
        if store == LIMIT:
            return f"append:{self.folder}/plain"
        if store == "memory":
            return "memory:"
        if store in ("sqlite", "journal"):
            return f"{store}:{here}"
        if store == "postgres":
            return (self.urls[store] +
                    ("&" if "?" in self.urls[store] else "?") +
                    f"schema=bench{self.serial}")
        if store == "mysql":  # a database of its own
            return self.urls[store] + f"_bench{self.serial}"
        return self.urls[store] + f"?prefix=bench{self.serial}:"

    def server_cpu(self, store):
        return sum(cpu_of(self.world.servers[name].pid)
                   for name in SERVERS.get(store, []))

    def ask(self, store, *words, fresh=True):
        """One measurement. The server's share is taken while it runs."""
        command = [BENCH, *map(str, words), self.url(store, fresh)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True,
                              stderr=subprocess.PIPE) as p:
            before = after = None
            said = []
            for line in p.stderr:
                if line == "go\n":
                    before = self.server_cpu(store)
                elif line != "end\n":
                    said.append(line)
            out = p.stdout.read()
        if before is not None:
            # A server's process that ends just now is in neither sum.
            time.sleep(0.1)
            after = self.server_cpu(store)
        if p.returncode != 0:
            raise Wrong(f"{store}: {''.join(said).strip()}")
        result = json.loads(out)
        if after is not None:
            result["server_us"] = 1e6 * (after - before) / result["operations"]
        return result

    def rounds(self, stores, *words, replays=False):
        """[store] -> list of measurements, interleaved."""
        found = {store: [] for store in stores}
        for n in range(self.args.rounds):
            turn = n % len(stores)
            for store in stores[turn:] + stores[:turn]:
                if replays and store == LIMIT:
                    continue
                found[store].append(
                    self.ask(store, "-s", self.args.seconds, *words))
        return found


def middle(results, what):
    return statistics.median(r[what] for r in results)


def ratio(results, base, what="per_s"):
    return statistics.median(a[what] / b[what] for a, b in zip(results, base))


def row(name, results, base):
    server = (f"{middle(results, 'server_us'):.1f}"
              if results[0].get("server_us") else "-")
    return (f"| {name} | {middle(results, 'per_s'):,.0f} | "
            f"{ratio(results, base):.2f} | {middle(results, 'p50_us'):,.0f} | "
            f"{middle(results, 'p99_us'):,.0f} | "
            f"{middle(results, 'cpu_us'):.1f} | {server} |")


HEAD = ("| store | {0} | of {1} | p50 µs | p99 µs | CPU µs/op | server's |\n"
        "|---|---|---|---|---|---|---|")


def table(found, base, what="cycles/s", of="the limit"):
    return [HEAD.format(what, of)] + [
        row(store, results, found[base]) for store, results in found.items()
        if results]


def everything(bench):
    """Yields the lines of the page."""
    args = bench.args
    stores = args.stores
    shared = [s for s in stores if s not in (LIMIT, "memory")]
    for flight in args.flights:
        found = bench.rounds(stores, "-n", flight)
        yield from ["", f"## {flight} in flight, results of 300 bytes", ""]
        yield from table(found, LIMIT)
        if flight == 64:
            single = found
    yield from ["", "## 64 in flight, results of 8 KiB", ""]
    yield from table(bench.rounds(stores, "-b", 8192), LIMIT)
    yield from ["", "## Replays: 64 in flight, of 20,000 results", ""]
    found = bench.rounds(stores, "-r", "-f", 20000, replays=True)
    yield from table({s: r for s, r in found.items() if r}, stores[1],
                     "replays/s", stores[1])
    yield from ["", "## Two processes, 64 in flight each, together", "",
                "The ratio is to one process with 64 in flight.", ""]
    found = bench.rounds([LIMIT] + shared, "-p", 2)
    yield HEAD.format("cycles/s", "one process")
    for store in shared:
        yield row(store, found[store], single[store])
    yield from with_many(bench, [s for s in stores
                                 if s in ("sqlite", "journal")])
    yield from beside(bench, stores)


def with_many(bench, stores):
    """After many live records, and opening them after a kill -9."""
    n = bench.args.records
    yield from ["", f"## With {n:,} completed records, 64 in flight", "",
                "Opening is after a kill -9, up to the first answer; the "
                "kernel has the file in memory.",
                "RAM is what lies in shared memory.", "",
                "| store | cycles/s | replays/s | opened in ms | bytes on disk "
                "a record | RAM a record |", "|---|---|---|---|---|---|"]
    for store in stores:
        others = memory()  # what killed ones have left
        opened = bench.ask(store, "-o", "-f", n)
        base = bench.folder / f"{store}{bench.serial}"
        files = (list(base.glob("*")) if base.is_dir() else
                 list(bench.folder.glob(base.name + "*")))
        disk = sum(f.stat().st_blocks * 512 for f in files)
        held = subprocess.Popen([BENCH, "-s", "2", bench.url(store, False)],
                                stdout=subprocess.PIPE,
                                stderr=subprocess.PIPE, text=True)
        held.stderr.readline()
        ram = memory() - others
        cycles = json.loads(held.communicate()[0])
        replays = bench.ask(store, "-r", "-f", 1, "-s", 1, fresh=False)
        yield (f"| {store} | {cycles['per_s']:,.0f} | {replays['per_s']:,.0f} "
               f"| {opened['open_ms']:,.0f} | {disk / n:,.0f} | "
               f"{ram / n:,.0f} |")


def redis_set(bench, flight, size):
    """Server CPU µs of plain pipelined SETs of new keys with a TTL."""
    server = bench.world.servers["redis"]
    n = int((60000 if flight == 1 else 200000) * bench.args.seconds)
    before = cpu_of(server.pid)
    subprocess.run(
        ["redis-benchmark", "-s", server.details()["socket"], "-P",
         str(flight), "-c", "1", "-n", str(n), "-r", str(10 ** 9), "-q",
         "SET", "plain:__rand_int__:0123456789abcdef0", "v" * size, "NX",
         "PX", "86400000"], stdout=subprocess.DEVNULL, check=True)
    return 1e6 * (cpu_of(server.pid) - before) / n


def redis_costs(bench, flight):
    """Server CPU of one round: claim to SET, complete to SET, both to both."""
    words = ["-s", bench.args.seconds, "-n", flight]
    # A new claim is a value of 184 bytes, its result comes in addition.
    sets = [redis_set(bench, flight, 184), redis_set(bench, flight, 484)]
    claim = bench.ask("redis", *words, "-c")["server_us"]
    pair = 2 * bench.ask("redis", *words)["server_us"]
    bench.world.servers["redis"].ask("FLUSHALL")
    return {"set_us": sum(sets) / 2, "claim_us": claim,
            "complete_us": pair - claim, "claim": claim / sets[0],
            "complete": (pair - claim) / sets[1], "both": pair / sum(sets)}


def redis_beside(bench):
    """Operations beside plain SETs of the same sizes on the same server."""
    server = bench.world.servers["redis"]
    yield from [
        "", "## Redis beside its own SET", "",
        "Server CPU µs of one claim, and of one complete (of a claim with its "
        "complete, less that of a",
        "claim), beside one `SET key value NX PX ms` by `redis-benchmark`, "
        "pipelined as deep, one connection,",
        "with values of as many bytes: 184, and 484 with the result. No flush: "
        "it costs both the same.",
        "Ratios are within a round.", "",
        "| in a pipeline | SET | claim | complete | claim to SET | complete to "
        "SET | an operation to a SET |", "|---|---|---|---|---|---|---|"]
    for flight, flush in [(1, "no"), (16, "no"), (64, "no"), (256, "no"),
                          (64, "always")]:
        server.ask("CONFIG", "SET", "appendfsync", flush)
        got = [redis_costs(bench, flight) for _ in range(bench.args.rounds)]
        name = f"{flight}, flushed" if flush == "always" else str(flight)
        cells = [f"{middle(got, what):.2f}" for what in
                 ("set_us", "claim_us", "complete_us", "claim", "complete",
                  "both")]
        yield f"| {name} | {' | '.join(cells)} |"
    yield from ["", "Goal: an operation at most 1.50 of a SET."]


def pgbench(bench):
    """Single-row statements by pgbench: {clients: upserts per second}, and
    server CPU µs of an INSERT ... ON CONFLICT DO NOTHING, one connection."""
    server = bench.world.servers["postgres"]
    server.sql("create table if not exists upsert(n bigint primary key, "
               "v text)", database="once")

    def run(clients, conflict):
        script = bench.folder / "statement.sql"
        script.write_text(
            "\\set n random(1, 100000000)\n"
            "insert into upsert values (:n, repeat('x', 300)) "
            f"on conflict (n) do {conflict};\n")
        before = cpu_of(server.pid)
        done = subprocess.run(
            [servers.find("pgbench"), "-n", "-f", str(script), "-c",
             str(clients), "-T", str(max(1, int(2 * bench.args.seconds))),
             server.url(user="postgres")],
            stdout=subprocess.PIPE, text=True, check=True).stdout
        time.sleep(0.1)
        spent = 1e6 * (cpu_of(server.pid) - before)
        ended = int(done.split("actually processed: ")[1].split()[0]
                    .split("/")[0])
        return float(done.split("tps = ")[1].split()[0]), spent / ended

    update = "update set v = excluded.v"
    return ({clients: run(clients, update)[0] for clients in (1, 16)},
            run(1, "nothing")[1])


def inserts(bench):
    """Single-row INSERTs a second, by one connection, each committed."""
    server = bench.world.servers["mysql"]
    n = int(1000 * bench.args.seconds)
    server.sql("CREATE TABLE IF NOT EXISTS single (n BIGINT NOT NULL "
               "AUTO_INCREMENT PRIMARY KEY, v VARBINARY(300) NOT NULL)", "once")
    done = subprocess.run(
        [servers.find("mariadb-slap"), "--no-defaults", "-u", "once", "-h",
         server.address, "-P", str(server.port), "--create-schema=once",
         "--no-drop", f"--number-of-queries={n}",
         "--query=INSERT INTO single (v) VALUES (REPEAT('x', 300))"],
        stdout=subprocess.PIPE, text=True, check=True).stdout
    line = next(x for x in done.splitlines() if "Average number" in x)
    return n / float(line.split(":")[1].split()[0])


def mysql_beside(bench):
    """What a commit with a synced binlog allows, of two flushes."""
    words = ["-s", bench.args.seconds, "-n", 1]
    runs = [(2 * bench.ask("postgres", *words)["per_s"],
             2 * bench.ask("mysql", *words)["per_s"], inserts(bench))
            for _ in range(bench.args.rounds)]
    yield from ["", "## MySQL beside one INSERT", "",
                "One connection, each durable before the next; MariaDB with a "
                "synced binlog.", "",
                "| | a second | to `postgres` |", "|---|---|---|"]
    for n, name in enumerate(["operations of `postgres`, one in flight",
                              "operations of `mysql`, one in flight",
                              "`mariadb-slap`, single-row INSERTs"]):
        yield (f"| {name} | {statistics.median(r[n] for r in runs):,.0f} | "
               f"{statistics.median(r[n] / r[0] for r in runs):.2f} |")


def beside(bench, stores):
    """What people would compare with."""
    if "postgres" in stores and "mysql" in stores:
        yield from mysql_beside(bench)
    if "redis" in stores:
        yield from redis_beside(bench)
    if "postgres" in stores:
        runs = [(bench.ask("postgres", "-s", bench.args.seconds, "-n", 1),
                 bench.ask("postgres", "-s", bench.args.seconds, "-n", 64))
                for _ in range(bench.args.rounds)]
        times = statistics.median(b["per_s"] / a["per_s"] for a, b in runs)
        upserts, insert = pgbench(bench)
        own = {what: statistics.median(r[n]["server_us"] for r in runs)
               for n, what in enumerate(("1", "64"))}
        yield from [
            "", "## PostgreSQL beside one statement per operation", "",
            "| | per second |", "|---|---|",
            "| cycles, one statement per operation, one connection | "
            f"{statistics.median(a['per_s'] for a, _ in runs):,.0f} |",
            "| cycles, 64 in flight, one connection | "
            f"{statistics.median(b['per_s'] for _, b in runs):,.0f} |",
            f"| pgbench single-row upsert, 1 connection | {upserts[1]:,.0f} |",
            f"| the same, 16 connections | {upserts[16]:,.0f} |",
            "", f"64 in flight: {times:.1f} times (goal: at least 3).", "",
            "Server CPU of an operation to that of an `INSERT ... ON CONFLICT "
            "DO NOTHING` of pgbench",
            f"({insert:.0f} µs): {own['1'] / insert:.2f} one at a time, "
            f"{own['64'] / insert:.2f} with 64 in flight."]


def head(args, load):
    cpu = "unknown processor"
    with open("/proc/cpuinfo", encoding="utf-8") as f:
        for line in f:
            if line.startswith("model name"):
                cpu = line.split(":", 1)[1].strip()
                break
    return [
        "# Stores by themselves", "",
        "Made by `make bench-stores` (test/bench/stores.py). Ratios within "
        "one run are to be trusted,",
        "figures of another machine are not to be compared.", "",
        f"- {datetime.date.today()}, {cpu}, {os.cpu_count()} processors, load "
        f"before the run {load:.2f}",
        f"- {args.rounds} interleaved rounds of {args.seconds} s; medians; one "
        "process with one connection, unless said otherwise",
        "- N in flight are batches of N; a cycle is claim and complete, each "
        "durable before the next;",
        "  p50 and p99 are of one operation; CPU is that of the asking "
        "process, all its threads",
        "- the limit: append and fdatasync of as many bytes as the journal "
        "writes, in a file written before",
        "- PostgreSQL with fsync and synchronous_commit on, Redis with "
        "appendfsync always, all on the same disk"]


def arguments():
    p = argparse.ArgumentParser(description="Measures the stores.")
    p.add_argument("--rounds", type=int, default=5)
    p.add_argument("--seconds", type=float, default=1.0)
    p.add_argument("--records", type=int, default=1000000)
    p.add_argument("--quick", action="store_true")
    p.add_argument("--only", help="stores, with commas between")
    p.add_argument("--dir", help="where stores are made: a real disk")
    p.add_argument("--out", type=pathlib.Path)
    args = p.parse_args()
    args.stores = list(STORES)
    args.flights = FLIGHTS
    if args.only:
        args.stores = [LIMIT] + [s for s in args.only.split(",") if s != LIMIT]
    if set(args.stores) - set(STORES):
        p.error("stores are " + ", ".join(STORES))
    if args.quick:
        args.rounds, args.seconds, args.records = 1, 0.3, 20000
    elif args.out is None and not args.only:
        args.out = OUT
    return args


def rows(args, folder):
    with servers.World() as world:
        yield from everything(Bench(args, folder, world))


def main():
    args = arguments()
    load = os.getloadavg()[0]
    folder = pathlib.Path(tempfile.mkdtemp(prefix="once-bench-", dir=args.dir))
    return page.make("stores.py", folder, head(args, load),
                     rows(args, folder), args.out)


if __name__ == "__main__":
    sys.exit(main())
