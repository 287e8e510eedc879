#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""messages.py - what messages cost, beside the same work without Once.

    test/bench/messages.py [--rounds N] [--seconds S] [--messages N] [--quick]
                           [--only SECTION,...] [--out FILE]

Every row has a baseline that runs in the same round: a transaction without
inbox and outbox, a bare publish loop with the broker's own library, a consumer
with the same writes. Rounds are interleaved, ratios are taken within a round,
and what is printed is the median of the rounds, with the lowest and the
highest. Sections: tx, floor, lite, rows, behind, publish, consume, latency,
mysql, saga, peer, purge.

It refuses nothing that is slow and prints what it measured; a wrong number of
messages ends it with status 1. Servers are its own, on loopback, in a temporary
folder, and are stopped by their process ids.
"""
import argparse
import contextlib
import datetime
import json
import os
import pathlib
import resource
import socket
import statistics
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "test" / "lib"))
sys.dont_write_bytecode = True
# pylint: disable=wrong-import-position
import newstore  # noqa: E402
import page  # noqa: E402
import servers  # noqa: E402
from page import Wrong  # noqa: E402

BUILD = pathlib.Path(os.environ.get("ONCE_BUILD", ROOT / "build"))
BENCH = BUILD / "test" / "bench_messages"
ONCE = BUILD / "once"
OUT = ROOT / "docs" / "bench-messages.md"
CLIENTS = 8
PAYLOAD = "convert_to(repeat('x', 300), 'UTF8')"

WRITES = ("UPDATE account SET n = n + 1 WHERE no = :account;\n"
          "INSERT INTO entry (text) VALUES ('entry');\n")
ID = "gen_random_uuid()::text"
CLAIM = f"SELECT once.inbox_claim('billing', {ID}, sha256({PAYLOAD}));\n"
EMIT = f"SELECT once.emit('nowhere', {PAYLOAD});\n"
TRANSACTIONS = {
    "two writes": WRITES,
    "+ inbox_claim()": CLAIM + WRITES,
    "+ emit()": WRITES + EMIT,
    "+ both": CLAIM + WRITES + EMIT,
}
# What the functions write, by plain statements: the least that they can cost. The
# tables are of the same shape, with the same indexes, and have no triggers.
MS = "(extract(epoch FROM clock_timestamp()) * 1000)::bigint"
FILED = (f"INSERT INTO plain.inbox VALUES ('billing', {ID}, {MS}, "
         f"sha256({PAYLOAD}), 1, pg_current_xact_id(), NULL) "
         "ON CONFLICT DO NOTHING;\n")
SENT = ("INSERT INTO plain.outbox (phase, kept, due_ms, at_ms, route, id, type,"
        f" headers, body) VALUES (0, false, 0, {MS}, 'nowhere', {ID}, '', '', "
        f"{PAYLOAD});\n")
FLOOR = {
    "two writes": WRITES,
    "+ SELECT 1": "SELECT 1;\n" + WRITES,
    "+ SELECT 1, twice": "SELECT 1;\n" + WRITES + "SELECT 1;\n",
    "+ INSERT of a claim": FILED + WRITES,
    "+ INSERT of an emit": WRITES + SENT,
    "+ both INSERTs": FILED + WRITES + SENT,
    **TRANSACTIONS,
}
GATES = {"+ inbox_claim()": 0.55, "+ emit()": 0.55, "+ both": 0.45}


# Two banks that answer at once, and a front with the gateway and without it.
BANKS = """
daemon off;
worker_processes 1;
pid pid;
error_log errors warn;
events {{ worker_connections 1024; }}
http {{
    access_log off;
    {temp}
    keepalive_requests 1000000000;
    default_type application/json;
    server {{ listen 127.0.0.1:{port}; return 200 '{{"booked": true}}'; }}
    server {{ listen 127.0.0.1:{other}; return 200 '{{"booked": true}}'; }}
}}
"""
FRONT = """
load_module {module};
daemon off;
worker_processes 2;
pid pid;
error_log errors warn;
events {{ worker_connections 1024; }}
http {{
    access_log off;
    {temp}
    keepalive_requests 1000000000;
    once_store main journal:{folder}/journal;
    upstream here {{ server 127.0.0.1:{port}; keepalive 64; }}
    upstream there {{ server 127.0.0.1:{other}; keepalive 64; }}
    server {{
        listen 127.0.0.1:{front};
        proxy_http_version 1.1;
        proxy_set_header Connection "";
        location /plain/here {{ proxy_pass http://here; }}
        location /plain/there {{ proxy_pass http://there; }}
        location /once/here {{
            once main; once_scope off; proxy_pass http://here;
        }}
        location /once/there {{
            once main; once_scope off; proxy_pass http://there;
        }}
    }}
}}
"""
TEMP = " ".join(f"{kind}_temp_path {kind};" for kind in
                ("client_body", "proxy", "fastcgi", "uwsgi", "scgi"))
WORKERS = 8  # of each route of a saga


class Nginx(servers.Server):
    """One nginx in the folder of the world."""

    def __init__(self, world, name, template, **values):
        super().__init__(world, name)
        (self.folder / "conf").write_text(template.format(
            temp=TEMP, folder=self.folder, **{"front": self.port, **values}))
        newstore.init_all((self.folder / "conf").read_text())

    def command(self):
        return [servers.find("nginx"), "-p", str(self.folder), "-c", "conf",
                "-e", "errors"]

    def ready(self):
        with contextlib.suppress(OSError), \
                socket.create_connection((self.address, self.port), 5):
            return True
        return False


def cpu_of(pid):
    """Seconds that a process, its children and those they had took."""
    try:
        with open(f"/proc/{pid}/stat", encoding="latin-1") as f:
            fields = f.read().rpartition(")")[2].split()
        with open(f"/proc/{pid}/task/{pid}/children", encoding="ascii") as f:
            children = f.read().split()
    except (FileNotFoundError, ProcessLookupError):
        return 0  # it has ended: its parent counts it
    ticks = sum(int(t) for t in fields[11:15])
    return ticks / os.sysconf("SC_CLK_TCK") + sum(map(cpu_of, children))


def run(*words, **more):
    done = subprocess.run([str(w) for w in words], check=False, text=True,
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                          **more)
    if done.returncode != 0:
        raise Wrong(f"{pathlib.Path(str(words[0])).name} {words[1]}: "
                    f"{done.stderr.strip()[-500:]}")
    return done.stdout


def bench(*words):
    return json.loads(run(BENCH, *words))


def spread(values):
    return (f"{statistics.median(values):.2f} | {min(values):.2f}–"
            f"{max(values):.2f}")


class Bench:
    """Servers, which are started when they are first needed."""

    def __init__(self, args, folder, world):
        self.args, self.folder, self.world = args, folder, world
        self.urls = {}
        self.serial = 0

    def url(self, kind):
        if kind not in self.urls:
            self.urls[kind] = self.world.build(kind)
            if kind == "postgres":
                self.prepare()
        return self.urls[kind]

    def postgres(self):
        self.url("postgres")
        return self.world.servers["postgres"]

    def owner(self):
        """The database as its owner; the schema `once` is in it."""
        return self.postgres().url(user="postgres")

    def prepare(self):
        server = self.world.servers["postgres"]
        url = server.url(user="postgres")
        run(ONCE, "--database", url, "messages", "init")
        server.sql("CREATE TABLE account (no integer PRIMARY KEY, n bigint);"
                   "INSERT INTO account SELECT n, 0 FROM "
                   "generate_series(1, 1000) n;"
                   "CREATE TABLE entry (no bigint GENERATED ALWAYS AS IDENTITY"
                   " PRIMARY KEY, text text)", database="once")

    def sql(self, text):
        return self.postgres().sql(text, database="once")

    def empty(self):
        self.sql("TRUNCATE once.inbox, once.parked, once.outbox, entry")

    def fresh(self, name):
        self.serial += 1
        return f"{name}{self.serial}"

    # ---- A transaction on PostgreSQL

    def pgbench(self, text):
        script = self.folder / "script.sql"
        script.write_text("\\set account random(1, 1000)\nBEGIN;\n" + text +
                          "COMMIT;\n")
        self.empty()
        out = run(servers.find("pgbench"), "-n", "-M", "prepared", "-c",
                  CLIENTS, "-j", 2, "-T", self.args.seconds, "-f", script,
                  self.owner())
        return float(out.split("tps = ")[1].split()[0])

    def tx(self):
        """PostgreSQL, 8 clients, the database saturated."""
        found = {name: [] for name in TRANSACTIONS}
        for _ in range(self.args.rounds):
            for name, text in TRANSACTIONS.items():
                found[name].append(self.pgbench(text))
        base = found["two writes"]
        yield from ["", "## A transaction on PostgreSQL", "",
                    f"pgbench, {CLIENTS} clients, prepared statements; the "
                    "ids are random, bodies have 300 bytes.", "",
                    "| transaction | per second | ratio | lowest–highest | "
                    "gate |", "|---|---|---|---|---|"]
        for name, values in found.items():
            ratios = [a / b for a, b in zip(values, base)]
            yield (f"| {name} | {statistics.median(values):,.0f} | "
                   f"{spread(ratios)} | {GATES.get(name, '-')} |")

    def used(self):
        """Bytes of WAL, and CPU seconds of PostgreSQL, so far."""
        return (int(self.sql("SELECT wal_bytes FROM pg_stat_wal")),
                cpu_of(self.postgres().pid))

    def floor(self):
        """What the functions cost above round trips and plain statements."""
        self.postgres()
        self.sql("CREATE SCHEMA plain;"
                 "CREATE TABLE plain.inbox (LIKE once.inbox INCLUDING ALL);"
                 "CREATE TABLE plain.outbox (LIKE once.outbox INCLUDING ALL) "
                 "WITH (fillfactor = 50)")
        found = {name: [] for name in FLOOR}
        for _ in range(self.args.rounds):
            for name, text in FLOOR.items():
                self.sql("TRUNCATE plain.inbox, plain.outbox; CHECKPOINT")
                wal, cpu = self.used()
                tps = self.pgbench(text)
                time.sleep(0.2)  # PostgreSQL counts what a session wrote later
                n = tps * self.args.seconds
                after = self.used()
                found[name].append((tps, (after[1] - cpu) / n * 1e6,
                                    (after[0] - wal) / n))
        base = [v[0] for v in found["two writes"]]
        yield from ["", "## The floor of a transaction on PostgreSQL", "",
                    "As above, with plain INSERTs of what the functions "
                    "write.", "",
                    "| transaction | per second | ratio | lowest–highest | "
                    "CPU of PostgreSQL, µs | WAL, bytes |",
                    "|---|---|---|---|---|---|"]
        for name, values in found.items():
            tps, cpu, wal = zip(*values)
            ratios = [a / b for a, b in zip(tps, base)]
            yield (f"| {name} | {statistics.median(tps):,.0f} | "
                   f"{spread(ratios)} | {statistics.median(cpu):,.0f} | "
                   f"{statistics.median(wal):,.0f} |")

    # ---- SQLite

    def lite(self):
        """SQLite, one writer, synchronous FULL."""
        yield from ["", "## A transaction on SQLite", "",
                    "Two writes a message, WAL, synchronous FULL.", "",
                    "| messages a transaction | with | per second | ratio to "
                    "two writes alone | lowest–highest | gate |",
                    "|---|---|---|---|---|---|"]
        for per_tx, gate in ((1, 0.9), (50, 0.55)):
            found = {m: [] for m in ("bare", "claim", "random", "emit")}
            for _ in range(self.args.rounds):
                for mode, values in found.items():
                    file = self.folder / self.fresh("lite")
                    values.append(bench("lite", file, mode, per_tx,
                                        self.args.seconds)["per_s"])
            for mode, what in (("claim", "a claim, ids ordered by time"),
                               ("random", "a claim, random ids"),
                               ("emit", "an emit")):
                ratios = [a / b for a, b in zip(found[mode], found["bare"])]
                yield (f"| {per_tx} | {what} | "
                       f"{statistics.median(found[mode]):,.0f} | "
                       f"{spread(ratios)} | "
                       f"{gate if mode == 'claim' else '-'} |")

    # ---- The relay

    def fill(self, route, n):
        """Rows of the outbox, without a key; seconds that it took."""
        begin = time.monotonic()
        self.sql(f"INSERT INTO once.outbox (phase, kept, due_ms, at_ms, route,"
                 f" id, type, headers, body) SELECT 0, false, 0, 0, '{route}',"
                 f" {ID}, '', '', {PAYLOAD} FROM generate_series(1, {n});"
                 "ANALYZE once.outbox")
        return time.monotonic() - begin

    def left(self):
        return int(self.sql("SELECT count(*) FROM once.outbox").strip())

    def drain(self, database, target, *more):
        """Seconds that a relay takes for the rows of the route `route`. Its
        start and its end, some 0.1 s, are counted."""
        file = self.folder / "target"  # a password is no argument
        file.write_text(target + "\n")
        file.chmod(0o600)
        begin = time.monotonic()
        run(ONCE, "messages", "relay", "--database", database, "--to",
            f"route=@{file}", *more, "--drain")
        return time.monotonic() - begin

    def relay(self, target, *more):
        """Rows a second."""
        n = self.args.messages
        self.empty()
        self.fill("route", n)
        took = self.drain(self.owner(), target, *more)
        if self.left() != 0:
            raise Wrong(f"{self.left()} rows are left")
        return n / took

    def targets(self):
        """Name, what the bare loop gets, what the relay gets, gate."""
        amqp = self.url("rabbitmq")
        self.rabbit_queue(amqp, "bare")
        self.rabbit_queue(amqp, "relayed")
        yield ("RabbitMQ quorum queue", f"{amqp}?routing_key=bare",
               f"{amqp}?routing_key=relayed", (0.6, 0.75))
        redis = self.url("redis")
        yield ("Redis, appendfsync always", redis,
               f"{redis}/?stream=relayed", (0.5, 0.6))
        nats = self.url("nats")
        self.nats_stream(nats, "bench", ["bare", "relayed"])
        yield ("NATS, file stream", f"{nats}/?subject=bare",
               f"{nats}/?subject=relayed", (0.3, 0.4))
        kafka = self.url("kafka")
        for topic in ("bare", "relayed"):
            self.world.servers["kafka"].tool("topic", topic, 12)
        yield ("Kafka, librdkafka's mock", f"{kafka}/bare", f"{kafka}/relayed",
               (0.5, 0.5))

    def rabbit_queue(self, url, name):
        import pika  # pylint: disable=import-outside-toplevel
        with pika.BlockingConnection(pika.URLParameters(url)) as c:
            c.channel().queue_declare(
                name, durable=True, arguments={"x-queue-type": "quorum"})
        self.world.servers["rabbitmq"].settle(name)

    def nats_stream(self, url, name, subjects):
        self.world.servers["nats"].ask("STREAM.CREATE." + name, {
            "name": name, "subjects": subjects, "storage": "file"})

    def publish(self):
        """The relay beside a bare loop."""
        yield from ["", "## The relay beside a bare publish loop", "",
                    f"{self.args.messages:,} rows of 300 bytes, one route "
                    "worker or two, each with a batch of 500 in flight; the "
                    "loop is C with the broker's own library, 500 in flight, "
                    "each confirmed.", "",
                    "| target | workers | loop/s | relay/s | ratio | "
                    "lowest–highest | gate |", "|---|---|---|---|---|---|---|"]
        for name, bare, to, gates in self.targets():
            loop, ours = [], {1: [], 2: []}
            for _ in range(self.args.rounds):
                loop.append(bench("publish", bare,
                                  self.args.messages)["per_s"])
                for workers, values in ours.items():
                    values.append(self.relay(to, "--workers", workers))
            for (workers, values), gate in zip(ours.items(), gates):
                ratios = [a / b for a, b in zip(values, loop)]
                yield (f"| {name} | {workers} | {statistics.median(loop):,.0f}"
                       f" | {statistics.median(values):,.0f} | "
                       f"{spread(ratios)} | {gate} |")

    # ---- The database's part of the relay

    def maria(self):
        """A database with the tables; n rows of the route `route`."""
        if "mysql" not in self.urls:
            run(ONCE, "--database", self.url("mysql"), "messages", "init")
            self.maria_sql("CREATE TABLE account (no INT PRIMARY KEY, "
                           "n BIGINT); INSERT INTO account VALUES (1, 0);"
                           "CREATE TABLE entry (no BIGINT AUTO_INCREMENT "
                           "PRIMARY KEY, text TEXT)")
        return self.url("mysql")

    def maria_sql(self, text):
        return self.world.servers["mysql"].sql(text, "once")

    def fill_maria(self, n):
        self.maria_sql(
            "TRUNCATE once_outbox; INSERT INTO once_outbox(phase, kept, due_ms,"
            " at_ms, route, id, type, headers, body) SELECT 0, 0, 0, 0, "
            f"'route', UUID(), '', '', REPEAT('x', 300) FROM seq_1_to_{n};"
            "ANALYZE TABLE once_outbox")

    def rows(self):
        """Claims and settlements without a target."""
        n = self.args.messages
        inserts, rows, maria = [], [], []
        for _ in range(self.args.rounds):
            url = self.maria()
            self.fill_maria(n)
            maria.append(bench("rows", url, n)["per_s"])
            self.empty()
            inserts.append(n / self.fill("route", n))
            rows.append(bench("rows", self.owner(), n)["per_s"])
        ratios = [a / b for a, b in zip(rows, inserts)]
        yield from ["", "## The relay without a target", "",
                    "once__outbox_claim() and once__outbox_settle() of 500 "
                    "rows, one after the other, on PostgreSQL.", "",
                    "| | per second |", "|---|---|",
                    f"| rows inserted by one statement | "
                    f"{statistics.median(inserts):,.0f} |",
                    f"| rows claimed and settled | "
                    f"{statistics.median(rows):,.0f} |",
                    f"| the same on MariaDB, binlog synced | "
                    f"{statistics.median(maria):,.0f} |",
                    "", f"Ratio: {statistics.median(ratios):.2f} "
                    f"({min(ratios):.2f}–{max(ratios):.2f}); goal: at least "
                    "20,000 rows a second."]

    def behind(self):
        """A claim of 500 rows behind a dead row and 30,000 of its key."""
        found = []
        for _ in range(self.args.rounds):
            self.empty()
            self.sql("INSERT INTO once.outbox (phase, kept, due_ms, at_ms, "
                     "route, id, key, type, headers, body) SELECT CASE n WHEN "
                     f"0 THEN 3 ELSE 0 END, false, 0, 0, 'route', {ID}, CASE "
                     "WHEN n <= 30000 THEN 'dead' ELSE 'key' || n END, '', '',"
                     f" {PAYLOAD} FROM generate_series(0, 31000) n;"
                     "ANALYZE once.outbox")
            found.append(bench("claim", self.owner(), 500)["seconds"] * 1000)
        yield from ["", "## A claim behind a dead head", "",
                    "500 rows, behind a dead row and 30,000 rows of its key "
                    "(goal: at most 100 ms): "
                    f"{statistics.median(found):.0f} ms "
                    f"({min(found):.0f}–{max(found):.0f})."]

    # ---- The consumer

    def consume(self):
        """once_consume() beside a bare consumer."""
        amqp = self.url("rabbitmq")
        n = self.args.messages // 4
        database = self.owner()
        self.rabbit_queue(amqp, "eaten")
        found = {"a bare consumer": [], "once_consume()": [],
                 "once_consume(), batches of 50": []}
        for _ in range(self.args.rounds):
            for name, values in found.items():
                self.empty()
                self.emit_to(amqp, "eaten", n)
                url = f"{amqp}?queue=eaten"
                if name.startswith("a bare"):
                    values.append(bench("plain", url, database, n)["per_s"])
                    continue
                batch = 50 if "50" in name else 1
                values.append(bench("consume", url, database, n,
                                    batch)["per_s"])
        base = found["a bare consumer"]
        yield from ["", "## The consumer", "",
                    f"RabbitMQ, a quorum queue with {n:,} messages of 300 "
                    "bytes, PostgreSQL, two writes a message, one worker.", "",
                    "| consumer | per second | ratio | lowest–highest | gate "
                    "|", "|---|---|---|---|---|"]
        for name, gate in zip(found, ("-", 0.7, 0.6)):
            ratios = [a / b for a, b in zip(found[name], base)]
            yield (f"| {name} | {statistics.median(found[name]):,.0f} | "
                   f"{spread(ratios)} | {gate} |")

    def emit_to(self, amqp, queue, n):
        bench("publish", f"{amqp}?routing_key={queue}", n)

    # ---- From emit() to the consumer's COMMIT

    def latency(self):
        """Idle: one message at a time. At load: half of what consume allows."""
        amqp = self.url("rabbitmq")
        self.rabbit_queue(amqp, "timed")
        yield from ["", "## From emit() to the consumer's COMMIT", "",
                    "PostgreSQL, once_emit() in a transaction of its own, "
                    "once_relay(), RabbitMQ, once_consume(); each with "
                    "connections of its own, one process.", "",
                    "| | messages | p50 ms | p99 ms | goal for p99 |",
                    "|---|---|---|---|---|"]
        for name, pause_ms, goal in (("idle", 50, 20), ("200 a second", 5,
                                                        100)):
            self.empty()
            n = 100 if self.args.quick else 1000
            found = bench("latency", self.owner(),
                          f"{amqp}?routing_key=timed", f"{amqp}?queue=timed",
                          n, pause_ms)
            yield (f"| {name} | {n:,} | {found['p50_ms']:.1f} | "
                   f"{found['p99_ms']:.1f} | {goal} |")

    # ---- The same on MySQL

    def work(self, kind, amqp):
        """Yields what one round measures on that database."""
        n = self.args.messages
        database = self.maria() if kind == "mysql" else self.owner()

        def filled():
            if kind == "mysql":
                self.fill_maria(n)
            else:
                self.empty()
                self.fill("route", n)

        filled()
        yield "rows claimed and settled", bench("rows", database, n)["per_s"]
        filled()
        took = self.drain(database, f"{amqp}?routing_key=relayed-{kind}")
        yield "the relay to RabbitMQ", n / took
        for batch in (1, 50):
            eaten = n // (8 if batch == 1 else 2)
            self.emit_to(amqp, f"eaten-{kind}", eaten)
            yield (f"`once_consume()`, batches of {batch}",
                   bench("consume", f"{amqp}?queue=eaten-{kind}", database,
                         eaten, batch)["per_s"])
        times = bench("latency", database,
                      f"{amqp}?routing_key=timed-{kind}",
                      f"{amqp}?queue=timed-{kind}", 200, 20)
        yield "from `once_emit()` to COMMIT, ms, p50", times["p50_ms"]
        yield "the same, ms, p99", times["p99_ms"]

    def mysql(self):
        """The database's part, on MariaDB beside PostgreSQL."""
        amqp = self.url("rabbitmq")
        found = {}
        for kind in ("postgres", "mysql"):
            for queue in ("relayed", "eaten", "timed"):
                self.rabbit_queue(amqp, f"{queue}-{kind}")
        for _ in range(self.args.rounds):
            for kind in ("postgres", "mysql"):
                for what, value in self.work(kind, amqp):
                    found.setdefault(what, {}).setdefault(
                        kind, []).append(value)
        yield from ["", "## On MariaDB beside PostgreSQL", "",
                    "MariaDB with a synced binlog; RabbitMQ with quorum "
                    "queues, one worker, bodies of 300 bytes. The ratio is "
                    "MariaDB's to PostgreSQL's in the same round.", "",
                    "| a second, unless said otherwise | PostgreSQL | MariaDB "
                    "| ratio | lowest–highest |", "|---|---|---|---|---|"]
        for what, values in found.items():
            ratios = [a / b for a, b in zip(values["mysql"],
                                            values["postgres"])]
            cells = " | ".join(f"{statistics.median(values[k]):,.1f}"
                               if " ms" in what else
                               f"{statistics.median(values[k]):,.0f}"
                               for k in ("postgres", "mysql"))
            yield f"| {what} | {cells} | {spread(ratios)} |"

    # ---- Sagas

    def sagas(self):
        """Two branches, plain and with Confirm, each call a plain one too."""
        port, other = (servers.free_port() for _ in range(2))
        self.postgres()
        banks = Nginx(self.world, "banks", BANKS, port=port, other=other)
        banks.port = port
        banks.start()
        front = Nginx(self.world, "front", FRONT, module=BUILD /
                      "ngx_http_once_module.so", port=port, other=other)
        front.start()
        return front

    def start_sagas(self, n, ops):
        """Seconds that it took to start so many."""
        steps = json.dumps([
            dict({op: f"{side}-{op}" for op in ops}, type="application/json",
                 body={"pad": "x" * 288}) for side in ("here", "there")])
        self.sql("TRUNCATE once.saga, once.saga_step, once.outbox")
        begin = time.monotonic()
        self.sql(["BEGIN", "SELECT count(once.saga_start('transfer', "
                  f"'{steps}', '{self.fresh('g')}-' || n)) "
                  f"FROM generate_series(1, {n}) n", "COMMIT",
                  "ANALYZE once.outbox"])
        return time.monotonic() - begin

    def carry(self, front, n, ops):
        """Sagas a second, and the CPU of one: relay, database, gateway."""
        self.start_sagas(n, ops)
        roots = {name: self.world.servers[name].pid
                 for name in ("postgres", "front", "banks")}
        before = {name: cpu_of(pid) for name, pid in roots.items()}
        spent = resource.getrusage(resource.RUSAGE_CHILDREN)
        begin = time.monotonic()
        run(ONCE, "messages", "relay", "--database", self.owner(), *(
            word for side in ("here", "there") for op in ops for word in (
                "--to", f"{side}-{op}=http://127.0.0.1:{front.port}/once/"
                f"{side}", "--workers", WORKERS)), "--drain")
        took = time.monotonic() - begin
        now = resource.getrusage(resource.RUSAGE_CHILDREN)
        done = int(self.sql("SELECT count(*) FROM once.saga WHERE state = 3"))
        if done != n:
            raise Wrong(f"{done} sagas are done, not {n}")
        cpu = {name: cpu_of(pid) - before[name] for name, pid in roots.items()}
        cpu["relay"] = now.ru_utime + now.ru_stime - spent.ru_utime - \
            spent.ru_stime
        return n / took, {name: s / n * 1000 for name, s in cpu.items()}

    def saga(self):
        """Sagas through the gateway, beside their calls without any of it."""
        front = self.sagas()
        n = self.args.messages // 20
        kinds = {"Try, Try": ["try"],
                 "Try, Try, Confirm, Confirm": ["try", "confirm"]}
        found = {name: ([], [], []) for name in kinds}
        for _ in range(self.args.rounds):
            for name, ops in kinds.items():
                loop, ours, cpu = found[name]
                loop.append(bench("calls", 2 * WORKERS, n, *(
                    f"http://127.0.0.1:{front.port}/plain/{side}"
                    for _ in ops for side in ("here", "there")))["per_s"])
                per_s, spent = self.carry(front, n, ops)
                ours.append(per_s)
                cpu.append(spent)
        yield from ["", "## Sagas through the gateway", "",
                    f"{n:,} sagas of two branches on PostgreSQL, bodies of 300"
                    f" bytes, {WORKERS} workers a route; one relay, nginx with"
                    " the module and a journal, two banks that answer at once."
                    f" The loop makes the same calls, {2 * WORKERS} at a time,"
                    " through the same nginx without `once`: nothing of it is"
                    " kept.", "",
                    "| calls of a saga | loop, sagas/s | relay, sagas/s | ratio"
                    " | lowest–highest | gate, sagas/s | CPU ms a saga: relay |"
                    " database | gateway | banks |",
                    "|---|---|---|---|---|---|---|---|---|---|"]
        for name, (loop, ours, cpu) in found.items():
            ratios = [a / b for a, b in zip(ours, loop)]
            yield (f"| {name} | {statistics.median(loop):,.0f} | "
                   f"{statistics.median(ours):,.0f} | {spread(ratios)} | 250 | "
                   + " | ".join(f"{statistics.median(c[w] for c in cpu):.2f}"
                                for w in ("relay", "postgres", "front",
                                          "banks")) + " |")

    # ---- A peer

    def peer(self):
        """PgQ, a queue in PostgreSQL, where its extension is installed."""
        self.postgres()
        yield from ["", "## Beside PgQ", ""]
        if self.sql("SELECT count(*) FROM pg_available_extensions WHERE name ="
                    " 'pgq'").strip() == "0":
            yield "Not run: the extension is not installed here."
            return
        self.sql("CREATE EXTENSION IF NOT EXISTS pgq;"
                 "SELECT pgq.create_queue('bench')")
        event = "SELECT pgq.insert_event('bench', 't', repeat('x', 300));\n"
        found = {"two writes": ("", []), "+ emit()": (EMIT, []),
                 "+ pgq.insert_event()": (event, [])}
        for _ in range(self.args.rounds):
            for text, values in found.values():
                values.append(self.pgbench(WRITES + text))
        base = found["two writes"][1]
        yield from [f"As in the first table: pgbench, {CLIENTS} clients, the "
                    "database saturated.", "",
                    "| transaction | per second | ratio | lowest–highest |",
                    "|---|---|---|---|"]
        for name, (_, values) in found.items():
            ratios = [a / b for a, b in zip(values, base)]
            yield (f"| {name} | {statistics.median(values):,.0f} | "
                   f"{spread(ratios)} |")

    # ---- Purge

    def purge(self):
        """Claims beside a purge of many rows."""
        n = 20000 if self.args.quick else self.args.inbox
        self.postgres()
        self.empty()
        self.sql("INSERT INTO once.inbox SELECT 'billing', 'old-' || n, CASE "
                 "WHEN n % 2 = 0 THEN 0 ELSE (extract(epoch FROM now()) * 1000)"
                 "::bigint END, NULL, 1, NULL, NULL FROM "
                 f"generate_series(1, {n}) n")
        self.sql("VACUUM ANALYZE once.inbox")
        before = self.claims()
        purge = subprocess.Popen([ONCE, "--database", self.owner(), "messages",
                                  "purge"], stdout=subprocess.PIPE, text=True)
        begin = time.monotonic()
        during = []
        while purge.poll() is None or not during:
            during.append(self.claims(1))
        took = time.monotonic() - begin
        gone = int(purge.communicate()[0].split(":")[1])
        if gone < n // 2:
            raise Wrong(f"purge: {gone} rows, not {n // 2}")
        p99 = statistics.median(during)
        yield from ["", "## Claims beside a purge", "",
                    f"PostgreSQL, {n:,} rows in the inbox, half of them to be "
                    f"purged ({took:.1f} s); {CLIENTS} clients that claim.", "",
                    "| | p99 ms of a claim |", "|---|---|",
                    f"| before | {before:.2f} |", f"| during | {p99:.2f} |", "",
                    f"Ratio: {p99 / before:.2f} (goal: at most 1.5)."]

    def claims(self, seconds=3):
        """The 99th percentile, in ms, of a transaction that claims."""
        script = self.folder / "claim.sql"
        script.write_text(f"BEGIN;\n{CLAIM}COMMIT;\n")
        log = self.folder / self.fresh("log-")
        run(servers.find("pgbench"), "-n", "-M", "prepared", "-c", CLIENTS,
            "-j", 2, "-T", seconds, "-l", f"--log-prefix={log}", "-f", script,
            self.owner())
        took = sorted(int(line.split()[2]) for file in
                      self.folder.glob(log.name + ".*")
                      for line in file.read_text().splitlines())
        return took[len(took) * 99 // 100] / 1000


SECTIONS = ["tx", "floor", "lite", "rows", "behind", "publish", "consume",
            "latency", "mysql", "saga", "peer", "purge"]


def head(args, load):
    cpu = "unknown processor"
    with open("/proc/cpuinfo", encoding="utf-8") as f:
        for line in f:
            if line.startswith("model name"):
                cpu = line.split(":", 1)[1].strip()
                break
    return [
        "# What messages cost", "",
        "Made by `make bench-messages` (test/bench/messages.py). Ratios "
        "within one run are to be trusted,",
        "figures of another machine are not to be compared.", "",
        f"- {datetime.date.today()}, {cpu}, {os.cpu_count()} processors, load "
        f"before the run {load:.2f}",
        f"- {args.rounds} interleaved rounds of {args.seconds} s or "
        f"{args.messages:,} messages; medians",
        "- program, database and broker share the processors and the disk",
        "- PostgreSQL with fsync and synchronous_commit on, Redis with "
        "appendfsync always"]


def arguments():
    p = argparse.ArgumentParser(description="Measures messages.")
    p.add_argument("--rounds", type=int, default=5)
    p.add_argument("--seconds", type=int, default=4)
    p.add_argument("--messages", type=int, default=40000)
    p.add_argument("--inbox", type=int, default=10000000)
    p.add_argument("--quick", action="store_true")
    p.add_argument("--only", help="sections, with commas between")
    p.add_argument("--dir", help="where files are made: a real disk")
    p.add_argument("--out", type=pathlib.Path)
    args = p.parse_args()
    args.sections = args.only.split(",") if args.only else SECTIONS
    if set(args.sections) - set(SECTIONS):
        p.error("sections are " + ", ".join(SECTIONS))
    if args.quick:
        args.rounds, args.seconds, args.messages = 1, 1, 4000
    elif args.out is None and not args.only:
        args.out = OUT
    return args


def rows(args, folder):
    with servers.World() as world:
        bench = Bench(args, folder, world)
        for section in args.sections:
            yield from getattr(bench, section)()


def main():
    args = arguments()
    load = os.getloadavg()[0]
    folder = pathlib.Path(tempfile.mkdtemp(prefix="once-bench-", dir=args.dir))
    return page.make("messages.py", folder, head(args, load),
                     rows(args, folder), args.out)


if __name__ == "__main__":
    sys.exit(main())
