#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""cells.py - the exact ledger of messages, under faults.

    cells.py [--build DIR] [--messages N] [--faults N] [--seed N] [--short]
             [--list] [--trace] [--keep DIR] [PATTERN ...]

A cell is a database, a broker and a fault. Two producers commit orders with
once_emit(), two relays carry them to the broker, 30 % of them are copied there,
and two consumers book them with once_consume(). At seeded moments the fault is
played and healed. In the end:

    effects = ids = orders that were committed, once each; nothing is left in the
    outbox; dead letters as planted; what arrived first of each key came in the
    order of the commits

One violation fails the cell. So does a cell that does not go on after a fault,
and a fault that hit nothing.

PATTERN is part of a cell's name, "postgres rabbitmq kill-relay". --short plays a
slice, for `make test`. It prints TAP, and a line of figures for each cell. The
faults stand in faults.py, databases and brokers in places.py, the count in
judge.py; ledger.c has the programs.
"""

import contextlib
import os
import pathlib
import random
import re
import signal
import subprocess
import sys
import time
import types
import uuid

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "lib"))
sys.dont_write_bytecode = True

# pylint: disable=wrong-import-position
import cellkit  # noqa: E402
import servers  # noqa: E402
from cellkit import Broken, Skip  # noqa: E402
from faults import FAULTS  # noqa: E402
import clocks  # noqa: E402
import kills  # noqa: E402,F401  pylint: disable=unused-import
from judge import (DEADLY, FLAWED, INDETERMINATE, Ledger,  # noqa: E402
                   judge)
from places import BROKERS, DATABASES  # noqa: E402

PATIENCE = 90   # seconds without any effect, when all is healed
NAP = 0.05
PLANTED = 3     # of each kind


# ---- Processes -----------------------------------------------------------


class Process:
    """A program that may be killed and begun anew."""

    def __init__(self, run, name, words):
        self.run = run
        self.name = name
        self.words = [str(word) for word in words]
        self.births = 0
        self.process = None

    def start(self):
        self.births += 1
        words = [word.replace("@BIRTH@", str(self.births))
                 for word in self.words]
        with open(self.run.folder / (self.name + ".log"), "ab") as log:
            self.process = subprocess.Popen(
                [servers.find("setpriv"), "--pdeathsig", "KILL", "--", *words],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                env=self.run.environment_of(self.name))
        return self

    def running(self):
        return self.process is not None and self.process.poll() is None

    def restart(self):
        if not self.running():
            return
        self.process.kill()
        self.process.wait()
        self.run.hits += 1
        self.start()

    def signal(self, number):
        if self.running():
            self.run.hits += number == signal.SIGSTOP
            self.process.send_signal(number)

    def check(self):
        """Whoever ended without having been killed by us had a reason."""
        code = self.process.poll()
        if code in (None, 0):
            return
        if code == -signal.SIGSEGV and self.run.segfaults:
            self.run.hits += 1
            self.start()
            return
        raise Broken("%s ended with %s: %s" % (self.name, code, self.said()))

    def said(self):
        with contextlib.suppress(OSError):
            return (self.run.folder / (self.name + ".log")).read_text(
                "latin-1")[-600:]
        return ""

    def stop(self):
        if self.running():
            self.process.send_signal(signal.SIGCONT)
            self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            raise Broken("%s does not end" % self.name) from None
        self.check()

    def end(self):
        if self.running():
            self.process.kill()
            self.process.wait()


# ---- Runs ----------------------------------------------------------------


class Run:
    """One cell at work."""

    def __init__(self, args, database, broker, rng, options):
        self.args = args
        self.began = time.monotonic()
        self.rng = rng
        self.ledger = Ledger()
        self.messages = args.messages
        self.once = args.build / "once"
        self.program = args.build / "test" / "ledger"
        self.options = options
        self.module = args.build / "ngx_http_once_module.so"
        self.ledger.service = broker == "http"
        self.ledger.doubt = options.get("doubt", False)
        self.ledger.tended = options.get("tended", False)
        self.ledger.late = options.get("late", False)
        self.clocks = options.get("clocks", ())
        self.segfaults = options.get("segfaults", False)
        self.keyed = self.ledger.keyed = options.get("keyed", False)
        self.environment = {}
        if not self.program.exists():
            raise Skip("this build has no relay")
        self.stack = contextlib.ExitStack()
        self.world = self.stack.enter_context(servers.World())
        self.folder = self.world.folder
        self.hits = self.played = 0
        self.proxies = {}
        self.producers, self.relays, self.consumers = [], [], []
        self.stack.callback(self.end)
        self.kinds = database, broker
        self.db = self.broker = None

    def open(self):
        try:
            self.db = DATABASES[self.kinds[0]](self)
            self.broker = BROKERS[self.kinds[1]](self)
        except (servers.Missing, ImportError) as missing:
            raise Skip(str(missing)) from missing
        self.stack.callback(self.broker.end)
        for name, place in (("db", self.db), ("broker", self.broker)):
            if place.port:
                self.proxies[name] = servers.Proxy(place.port)
                self.stack.callback(self.proxies[name].close)
        each = -(-self.messages // 2)
        seed = self.rng.getrandbits(60)
        self.producers = [Process(self, "producer%d" % n, [
            self.program, "produce", self.db.direct if
            self.options.get("direct") else self.db_url(), n, each, seed,
            "json" if self.ledger.service else
            self.options.get("orders", "usual"),
            self.options.get("pause", 0)]) for n in (1, 2)]
        self.relays = [Process(self, "relay%d" % n, self.relay_words(n))
                       for n in (1, 2)]
        each = [] if self.ledger.service else [1] if self.keyed else [1, 2]
        self.consumers = [Process(self, "consumer%d" % n,
                                  self.consumer_words(n))
                          for n in each]
        for name in self.clocks:
            if name != "postgres":
                place = types.SimpleNamespace(name=name, environment={})
                self.world.clock(place)
                self.environment[name] = place.environment

    def environment_of(self, name):
        return dict(os.environ, **{k: str(v) for k, v in
                                   self.environment.get(name, {}).items()})

    def port(self, name):
        return self.proxies[name].port if name in self.proxies else None

    def db_url(self):
        return self.db.url(self.port("db"))

    def relay_words(self, n):
        to = self.folder / ("to%d" % n)
        # Workers of a service share a claim only if they see that it is one.
        faults = "" if self.ledger.service and self.options.get("plain") \
            else "faulty:%s@" % self.options.get(
                "faulty", "seed=%d,copies=30,late=5,silent=1"
                % (self.rng.getrandbits(30) + 1))
        to.write_text("%s%s\n" % (
            faults, self.broker.target(self.port("broker"))), "ascii")
        to.chmod(0o600)     # it may hold a password
        return [self.once, "messages", "relay", "--database", self.db_url(), "--lease", "3s",
                "--metrics", self.folder / ("relay%d.@BIRTH@.prom" % n),
                "--to", "orders=@%s" % to, "--timeout", "1s", *(
                    # As a route to http: has without faulty: before it.
                    ["--workers", 4, "--batch", 1] if self.ledger.service else
                    ["--batch", 50]), *(
                        [] if self.ledger.tended else ["--pass"])]

    def consumer_words(self, n, *more):
        words = {"workers": 2, "attempts": 20, "first_ms": 10,
                 "most_ms": 200, "lease_ms": 3000,
                 "metrics": self.folder / ("consumer%s.@BIRTH@.prom" % n)}
        words.update(self.options.get("consumer", {}))
        return [self.program, "consume", self.db_url(),
                self.broker.source(self.port("broker")),
                *("%s=%s" % pair for pair in words.items()), *more]

    def guest(self):
        """One more consumer."""
        name = "guest%d" % len(list(self.folder.glob("guest*.log")))
        self.consumers.append(Process(self, name, self.consumer_words(name)))
        return self.consumers[-1]

    def all(self):
        return self.producers + self.relays + self.consumers

    def end(self):
        for process in self.all():
            process.end()

    # -- faults use these

    def nap(self, least, most):
        time.sleep(self.rng.uniform(least, most))

    def one(self, processes):
        return self.rng.choice(processes)

    # -- how far it is

    def count(self, text):
        rows = self.db.rows("SELECT count(*) FROM " + text)
        return rows[0][0] if rows else 0

    def booked(self):
        if self.ledger.service:
            return len(self.broker.charges())
        return self.count("effect")

    def emitted(self):
        return not any(p.running() for p in self.producers)

    def settled(self):
        """Nothing is in the outbox, and every order has ended somehow."""
        rows = self.db.rows(
            "SELECT (SELECT count(*) FROM %soutbox WHERE phase IN (0, 1)),"
            " (SELECT count(*) FROM orders%s),"
            " (SELECT count(*) FROM effect),"
            " (SELECT count(*) FROM %sparked WHERE state = 1),"
            " (SELECT count(*) FROM %sparked)" % (
                self.db.prefix, " WHERE kind NOT IN %s" % (DEADLY,)
                if self.ledger.tended else "", self.db.prefix,
                self.db.prefix))
        if not rows:
            return False
        left, orders, effects, waiting, parked = rows[0]
        if self.ledger.service:
            return left == 0
        return left == 0 and waiting == 0 and \
            effects + parked >= orders + self.extra

    def tend(self):
        """An operator drops what is dead and keeps the rest of its key
        waiting."""
        what, number, where = ("outbox", "seq", "phase = 3") \
            if self.ledger.service else ("parked", "no",
                                         "state = 3 AND key LIKE 'k%'")
        for row in self.db.rows(
                "SELECT %s, attempts FROM %s%s WHERE %s" % (
                    number, self.db.prefix, what, where)) or ():
            subprocess.run(
                [self.once, "--database", self.db.direct, "messages", what,
                 "drop",
                 str(row[0]), "dead", "--attempt", str(row[1]), "--why", "poison"],
                check=True, stdout=subprocess.DEVNULL)

    @property
    def extra(self):
        ledger = self.ledger
        return len(ledger.planted) + len(ledger.dead) + len(ledger.mixed) + \
            len(ledger.flawed)

    def wait(self, question, what):
        """Until it is so; while there is any progress, for ever."""
        seen, since = None, time.monotonic()
        while True:
            for process in self.all():
                process.check()
            if self.ledger.tended:
                self.tend()
            if question():
                return
            state = self.db.rows(
                "SELECT (SELECT count(*) FROM effect),"
                " (SELECT count(*) FROM orders),"
                " (SELECT count(*) FROM %soutbox),"
                " (SELECT sum(attempts) FROM %sparked)"
                % ((self.db.prefix,) * 2))
            if state is not None and state != seen:
                seen, since = state, time.monotonic()
            if time.monotonic() > since + PATIENCE:
                raise Broken("no progress for %d s before %s: %s"
                             % (PATIENCE, what, self.state()))
            time.sleep(NAP)

    def state(self):
        return self.db.look() + "; ".join("%s: %s" % (what, self.db.rows(
            "SELECT %s, count(*) FROM %s%s GROUP BY 1" % (
                column, self.db.prefix, what)))
            for what, column in (("outbox", "phase"), ("parked", "state")))

    # -- playing

    def plant(self):
        """What nobody has emitted, and what cannot be understood."""
        put, ledger = self.broker.put, self.ledger
        for n in range(PLANTED):
            future, old = uuid_at(2038, self.rng), uuid_at(2025, self.rng)
            ledger.planted[future] = 1
            ledger.dead.add(old)
            # Nobody can tell copies of these: it is one letter or more.
            ledger.flawed |= {"without %d" % n, "strange %d" % n}
            for _ in range(2):
                put(future, "future", "plain 0-%d" % n)
                put(old, "old", "plain 0-%d" % n)
                put(None, "none", "without %d" % n)
                put(FLAWED, "none", "strange %d" % n)

    def plant_mismatches(self):
        for name, in self.db.rows("SELECT id FROM orders ORDER BY id LIMIT %d"
                                  % PLANTED):
            self.ledger.mixed.add(name)
            for _ in range(2):
                self.broker.put(name, "mixed", "plain of another body")

    def note(self, what):
        if self.args.trace:
            print("# %7.2f s  %s" % (time.monotonic() - self.began, what),
                  flush=True)

    def play(self, what, number):
        function = FAULTS[what][0]
        for process in self.all():
            process.start()
        if not self.ledger.service:
            self.plant()
        for n in range(number):
            at = self.messages * (n + self.rng.random()) / number * 0.9
            self.wait(lambda at=at: self.booked() >= at, "fault %d" % (n + 1))
            self.note("%s, %d hits" % (what, self.hits))
            function(self)
            self.played += 1
        self.heal()
        self.wait(self.emitted, "all is emitted")
        self.note("all is emitted")
        self.wait(self.settled, "all is booked")
        self.note("all is booked")
        self.broker.ending = True
        self.broker.end()
        if not self.ledger.service and not self.ledger.late:
            self.plant_mismatches()
        self.wait(self.settled, "all is parked")
        self.note("all is parked")
        for process in self.relays + self.consumers:
            process.stop()
        self.note("all have ended")
        if not self.ledger.service:
            self.drain()
        if self.ledger.late:
            clocks.retry(self)
            self.drain()
        self.note("the broker is empty")

    def heal(self):
        """All that was swallowed is noticed, and what is due some time, is."""
        for proxy in self.proxies.values():
            self.hits += proxy.count()[4]
            for command in ("clear", "drop rst"):
                proxy.do(command)
        for name in self.clocks:
            self.world.step(name, self.options.get("healed", 30 * 60000))

    def drain(self):
        """What still lies in the broker, and what a consumer had in hand when
        it ended: that comes again after a while."""
        last = Process(self, "last", self.consumer_words(
            "last", "drain_ms=%d" % (2000 + self.broker.AGAIN_MS))).start()
        self.consumers.append(last)
        last.process.wait(4 * PATIENCE)
        last.check()

    def look(self):
        """Fills the ledger."""
        ledger, rows = self.ledger, self.db.rows
        ledger.orders = rows("SELECT id, key, place, kind FROM orders")
        ledger.effects = [r[0] for r in
                          rows("SELECT id FROM effect ORDER BY no")]
        ledger.outbox = rows("SELECT id, phase FROM %soutbox WHERE phase <> 2"
                             % self.db.prefix)
        if ledger.service:
            ids = {"%s-%s" % row[:2]: row[2] for row in
                   rows("SELECT producer, no, id FROM orders")}
            ledger.effects = [ids.get(name, name) for name in
                              self.broker.charges()]
            ledger.arrived = [(key, "-") for key in self.broker.requests()]
            return
        ledger.parked = [
            (name, state, bytes(body).decode()) for name, state, body in
            rows("SELECT id, state, body FROM %sparked" % self.db.prefix)]
        done = subprocess.run([self.program, "tap", self.broker.tap(),
                               str(self.broker.QUIET_MS)],
                              text=True, capture_output=True, check=False,
                              timeout=900)
        if done.returncode != 0:
            raise Broken("tap: " + done.stderr[-600:])
        (self.folder / "arrived").write_text(done.stdout)
        ledger.arrived = [tuple(line.rsplit(" ", 1))
                          for line in done.stdout.splitlines()]

    def metric(self, name):
        """A sum over processes, but for what killed ones had not written."""
        total = 0
        for path in self.folder.glob("*.prom"):
            total += sum(int(n) for n in re.findall(
                r"^%s\{.*\} (\d+)" % name, path.read_text(), re.M))
        return total

    def close(self):
        self.stack.close()


def uuid_at(year, rng):
    """A UUID of version 7 that carries a time of this year."""
    ms = int((year - 1970) * 365.2425 * 86400000) + rng.randrange(86400000)
    number = ms << 80 | rng.getrandbits(80)
    number = number & ~(0xf << 76) | 7 << 76
    number = number & ~(3 << 62) | 2 << 62
    return str(uuid.UUID(int=number))


# ---- Cells ---------------------------------------------------------------


SHORT = ("mysql rabbitmq storm", "postgres kafka storm", "sqlite nats kill-consumer",
         "sqlite redis points-relay", "postgres redis keyed",
         "sqlite http none", "postgres http gateway-kill")


def cells():
    for database in DATABASES:
        for broker in BROKERS:
            for what, (_, options) in FAULTS.items():
                if database in options.get("databases", DATABASES) and \
                        broker in options.get("brokers", BROKERS):
                    yield database, broker, what


def play(args, *cell):
    """One cell; returns its figures, and what is wrong."""
    rng = random.Random("%s %s" % (args.seed, " ".join(cell)))
    options = FAULTS[cell[2]][1]
    run = Run(args, cell[0], cell[1], rng, options)
    bad = None
    try:
        run.open()
        number = args.faults or max(6, min(40, args.messages // 200))
        number = min(number, options.get("most", number))
        stuck = None
        try:
            run.play(cell[2], options.get("number", number))
        except Broken as broken:
            stuck = broken
        bad = sentence(run, stuck)
        run.note("all is counted")
        if run.played and not run.hits:
            bad.append("the fault has hit nothing")
        return "%s, %d violations" % (line_of(run), len(bad)), bad
    finally:
        if bad is None or bad:
            cellkit.keep(args, run.folder)
        run.close()


def sentence(run, stuck):
    """What is wrong; where it did not come to its end, what was missing then."""
    try:
        if stuck:
            run.end()
        run.look()
    except Exception:  # pylint: disable=broad-except
        if not stuck:
            raise
        raise stuck from None
    return [str(stuck)] * bool(stuck) + list(judge(run.ledger))


def line_of(run):
    ledger = run.ledger
    names = [name for name, _ in ledger.arrived]
    text = ("%d messages, %d effects, %d dead letters, %d faults, %d hits, %d "
            "duplicates, %d redelivered" % (
                len(ledger.orders), len(ledger.effects),
                len(ledger.parked or ledger.outbox), run.played, run.hits,
                len(names) - len(set(names)),
                run.metric("once_consumer_redelivered_total")))
    doubtful = sum(phase == INDETERMINATE for _, phase in ledger.outbox)
    return text + ", %d in doubt" % doubtful if ledger.doubt else text


def main():
    parser = cellkit.options(__doc__)
    parser.add_argument("--messages", type=int, default=100000)
    args = cellkit.read(parser)
    if args.short:
        args.messages = min(args.messages, 500)
    return cellkit.run(args, list(cellkit.wanted(args, cells(), SHORT)),
                       FAULTS, play, "%d messages" % args.messages)


if __name__ == "__main__":
    sys.exit(main())
