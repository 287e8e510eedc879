# SPDX-License-Identifier: Apache-2.0
"""test_consume.py - consumers as whole processes, with real databases and
brokers: killed at random and at named points, with servers that restart or keep
an answer to themselves. Afterwards each id has its effect once, and what was
acknowledged is done or parked.

test/message/consumer.c is a program with a handler in C; `once messages consume` is the
other. carry.py has the databases."""
import contextlib
import itertools
import os
import random
import signal
import subprocess
import time

import pika
import pytest

from carry import (PATIENCE, ROOT, Lite, Maria, Pg, Program, database,
                   eventually, marked, once)

import newstore
import patience
import servers

BUILD = os.environ.get("ONCE_BUILD", str(ROOT / "build"))
CONSUMER = os.path.join(BUILD, "test", "consumer")
ONCE = os.environ.get("ONCE_CLI", os.path.join(BUILD, "once"))
WAITING, DEAD, INDETERMINATE = 1, 3, 4
QUICK = ["first=1", "most=50", "lease=1000"]
IDLE_MS = 1000  # after which Redis gives a dead consumer's entries to another
_numbers = itertools.count(1)


# ---- Queues ---------------------------------------------------------------


class Stream:
    def __init__(self, server, stream):
        self.server = server
        self.stream = stream
        self.url = "%s/?stream=%s&group=g&min_idle_ms=%d" % (
            server.url(), stream, IDLE_MS)

    def publish(self, messages):
        """Messages are (id, body) or (id, body, key); id None: there is
        none."""
        for name, body, *key in messages:
            words = ["body", marked(body)]
            words += ["id", name] if name is not None else []
            words += ["key", key[0]] if key else []
            self.server.ask("XADD", self.stream, "*", *words)

    def pending(self):
        return int(self.server.ask("XPENDING", self.stream, "g")[0])

    def unread(self):
        for group in self.server.ask("XINFO", "GROUPS", self.stream):
            words = dict(zip(group[::2], group[1::2]))
            return words[b"lag"] or 0
        return 0

    def left(self):
        return self.pending() + int(self.unread())


class Queue:
    """A quorum queue of RabbitMQ."""

    def __init__(self, server, name):
        self.server = server
        self.name = name
        self.url = "%s?queue=%s" % (server.url(), name)
        with self.channel() as channel:
            channel.queue_declare(name, durable=True, arguments={
                "x-queue-type": "quorum"})

    @contextlib.contextmanager
    def channel(self):
        connection = pika.BlockingConnection(pika.URLParameters(
            self.server.url()))
        try:
            yield connection.channel()
        finally:
            connection.close()

    def publish(self, messages):
        with self.channel() as channel:
            channel.confirm_delivery()
            for name, body, *key in messages:
                channel.basic_publish(
                    "", self.name, marked(body).encode(), pika.BasicProperties(
                        message_id=name, delivery_mode=2,
                        headers={"Once-Key": key[0]} if key else None))

    def left(self):
        """Of a queue without consumers: what none has acknowledged."""
        def ready():
            with self.channel() as channel:
                return channel.queue_declare(
                    self.name, passive=True).method.message_count
        first = ready()
        time.sleep(0.5)
        return max(first, ready())


class Process(Program):
    def __init__(self, folder, *words, die=None, calls=None):
        env = {k: v for k, v in (("DIE", die), ("ONCE_STORE", calls)) if v}
        super().__init__(folder / ("consumer%d.log" % next(_numbers)), words,
                         **env)


class Topic:
    """Of four partitions, with a group whose dead members are soon replaced."""

    def __init__(self, server, name):
        self.server = server
        self.name = name
        self.url = "%s/%s?group=g&session_ms=4000" % (server.url(), name)
        server.tool("topic", name, 4)

    def publish(self, messages):
        lines = "".join("head:Once-Id=%s body=%s %s\n" % (
            m[0], m[1], "key=" + m[2] if len(m) > 2 else "")
            for m in messages)
        said = subprocess.run(
            [str(self.server.tool_), self.server.hosts, "feed", self.name],
            input=lines, text=True, capture_output=True, check=True).stdout
        assert said.split() == ["ok"] * len(messages)

    def left(self):
        """What is there behind the offsets that are committed."""
        there = len(self.server.tool("dump", self.name).splitlines())
        done = (int(self.server.tool("committed", self.name, "g", p).split()[0])
                for p in range(4))
        return there - sum(n for n in done if n > 0)


class Cell:
    def __init__(self, folder, db, queue, drain_ms=2 * IDLE_MS + 500):
        self.drain_ms = drain_ms
        self.folder = folder
        self.db = db
        self.queue = queue
        self.prefix = "once." if isinstance(db, Pg) else "once_"
        self.db_url = db.url
        self.processes = []
        self.sql("CREATE TABLE effect(id text, attempt integer)")

    def sql(self, text):
        return self.db.sql(text.replace("@", self.prefix))

    def consumer(self, *words, die=None):
        process = Process(self.folder, CONSUMER, self.db_url, self.queue.url,
                          *QUICK, *words, die=die)
        self.processes.append(process)
        return process

    def drained(self, *words, die=None):
        drain_ms = self.drain_ms * patience.stretch()
        process = self.consumer("drain=%d" % drain_ms, *words,
                                die=die)
        status = process.wait()
        assert status in (0, 1), process.log()
        return status

    def cli(self, *words, command=(), calls=None):
        words = list(words)
        if command:
            words += ["--", *command]
        process = Process(self.folder, ONCE, "messages", "consume", "--database", self.db_url,
                          "--from", self.queue.url, "--consumer", "billing",
                          *words, calls=calls)
        self.processes.append(process)
        return process

    def effects(self):
        return sorted(row[0] for row in self.sql("SELECT id FROM effect"))

    def parked(self, state):
        return sorted(row[0] for row in self.sql(
            "SELECT id FROM @parked WHERE state=%d" % state))

    def exactly(self, ids, dead=()):
        """Each id once: done, or a dead letter; nothing is left."""
        assert self.effects() == sorted(set(ids) - set(dead))
        assert self.parked(DEAD) == sorted(dead)
        assert self.parked(WAITING) == []
        assert self.queue.left() == 0
        known = {row[0] for row in self.sql("SELECT id FROM @inbox")}
        assert known == set(ids)


def grant(cell):
    if isinstance(cell.db, Pg):
        cell.sql("GRANT ALL ON TABLE effect TO once; "
                 "ALTER TABLE effect OWNER TO once")


@pytest.fixture(params=["sqlite", "postgres", "mysql"])
def cell(request, tmp_path):
    number = next(_numbers)
    db = database(request, tmp_path, request.param, "c%d" % number)
    made = Cell(tmp_path, db, Stream(request.getfixturevalue("redis"),
                                     "q%d" % number))
    grant(made)
    yield made
    for process in made.processes:
        if process.process.poll() is None:
            process.kill()


@pytest.fixture(params=["postgres", "mysql"])
def server_cell(request, tmp_path):
    number = next(_numbers)
    made = Cell(tmp_path, database(request, tmp_path, request.param,
                                   "c%d" % number),
                Stream(request.getfixturevalue("redis"), "q%d" % number))
    grant(made)
    yield made
    for process in made.processes:
        if process.process.poll() is None:
            process.kill()


@pytest.fixture
def mq_cell(request, tmp_path):
    number = next(_numbers)
    made = Cell(tmp_path, Pg(request.getfixturevalue("postgres"),
                             "c%d" % number),
                Queue(request.getfixturevalue("amqp"), "q%d" % number))
    grant(made)
    yield made
    for process in made.processes:
        if process.process.poll() is None:
            process.kill()


@pytest.fixture
def kafka_cell(request, tmp_path):
    number = next(_numbers)
    made = Cell(tmp_path, Pg(request.getfixturevalue("postgres"),
                             "c%d" % number),
                Topic(request.getfixturevalue("kafka"), "q%d" % number),
                drain_ms=12000)
    grant(made)
    yield made
    for process in made.processes:
        if process.process.poll() is None:
            process.kill()


def with_copies(n, draw, body="ok"):
    """n messages, 30 % of them twice, in a loose order."""
    sent = []
    for i in range(n):
        sent.append((i + draw.random(), ("m%d" % i, body)))
        if draw.random() < 0.3:
            sent.append((i + draw.uniform(0, 20), ("m%d" % i, body)))
    return [message for _, message in sorted(sent)]


def names(n):
    return ["m%d" % i for i in range(n)]


# ---- What is done ------------------------------------------------------------


def test_each_message_has_one_effect(cell):
    cell.queue.publish(with_copies(200, random.Random(1)))
    assert cell.drained("workers=2") == 0
    cell.exactly(names(200))


def test_two_consumers_share_a_queue(cell):
    cell.queue.publish(with_copies(200, random.Random(2)))
    pair = [cell.consumer("drain=3000", "workers=2", "batch=5")
            for _ in range(2)]
    assert [p.wait() for p in pair] == [0, 0], [p.log() for p in pair]
    cell.exactly(names(200))


def test_failures_come_again_and_dead_letters_stay(cell):
    cell.queue.publish([("a", "fail-twice"), ("b", "dead"), ("c", "ok"),
                        ("a", "ok"), (None, "no id")])
    assert cell.drained() == 1
    assert cell.effects() == ["a", "c"]
    dead = cell.parked(DEAD)
    assert len(dead) == 3 and "b" in dead  # b, a#..., #...
    assert [d[0] for d in sorted(dead)] == ["#", "a", "b"]
    assert cell.queue.left() == 0


# ---- Processes that die ---------------------------------------------------------


@pytest.mark.parametrize("words", [["workers=2"], ["batch=8"]])
def test_killed_at_random(cell, words):
    draw = random.Random(3)
    cell.queue.publish(with_copies(250, draw, "slow"))
    for _ in range(6):
        process = cell.consumer(*words)
        time.sleep(draw.uniform(0.1, 0.7))
        process.kill()
    assert cell.drained(*words) == 0
    cell.exactly(names(250))


def test_killed_at_random_with_rabbitmq(mq_cell):
    draw = random.Random(7)
    mq_cell.queue.publish(with_copies(250, draw, "slow"))
    for _ in range(5):
        process = mq_cell.consumer("workers=2")
        time.sleep(draw.uniform(0.3, 0.9))
        process.kill()
    assert mq_cell.drained("workers=2") == 0
    mq_cell.exactly(names(250))


def test_two_consumers_share_a_queue_of_rabbitmq(mq_cell, amqp):
    """... which is killed and starts again meanwhile."""
    mq_cell.queue.publish(with_copies(200, random.Random(8), "slow"))
    amqp.settle(mq_cell.queue.name)
    pair = [mq_cell.consumer() for _ in range(2)]
    eventually(lambda: len(mq_cell.effects()) > 20, "it goes on", PATIENCE)
    amqp.kill()
    amqp.start()
    eventually(lambda: len(mq_cell.effects()) >= 200
               and not mq_cell.parked(WAITING), "all are done", PATIENCE)
    time.sleep(1)
    assert [p.stop() for p in pair] == [0, 0], [p.log() for p in pair]
    mq_cell.exactly(names(200))


def order_is_kept(cell, lives=(0.5, 0.7)):
    """Failing heads of two keys, and a process that is killed."""
    bodies = {7: "fail-twice", 20: "fail-twice", 21: "fail-twice"}
    cell.sql("ALTER TABLE effect ADD no serial")
    cell.queue.publish([("m%03d" % i, bodies.get(i, "slow"), "k%d" % (i % 4))
                        for i in range(80)])
    for seconds in lives:
        process = cell.consumer("keyed=1")
        time.sleep(seconds)
        process.kill()
    assert cell.drained("keyed=1", "batch=4") == 0
    cell.exactly(["m%03d" % i for i in range(80)])
    order = [row[0] for row in cell.sql("SELECT id FROM effect ORDER BY no")]
    for key in range(4):
        mine = [name for name in order if int(name[1:]) % 4 == key]
        assert mine == sorted(mine), key


def test_order_by_key_with_rabbitmq(mq_cell):
    order_is_kept(mq_cell)


def test_order_by_key_with_kafka(kafka_cell):
    order_is_kept(kafka_cell, (5, 7))


def test_killed_at_random_with_kafka(kafka_cell):
    draw = random.Random(9)
    kafka_cell.queue.publish(with_copies(250, draw, "slow"))
    for _ in range(3):
        process = kafka_cell.consumer("workers=2")
        time.sleep(draw.uniform(4, 8))  # the group waits to begin
        process.kill()
    assert kafka_cell.drained("workers=2", "batch=5") == 0
    kafka_cell.exactly(names(250))


def test_order_by_key_with_redis(server_cell):
    order_is_kept(server_cell)


POINTS = ["begin-before", "begin-after", "claim-before", "claim-after",
          "commit-before", "commit-after", "park-before", "park-after",
          "take-after", "put_back-before", "put_back-after"]


def test_killed_at_named_points(cell):
    """The same queue goes on from death to death."""
    bodies = ["ok", "fail-twice", "ok"]
    cell.queue.publish([("m%d" % i, bodies[i % 3]) for i in range(90)])
    died = 0
    for round_, point in enumerate(POINTS):
        process = cell.consumer("drain=2500",
                                die="%s:%d" % (point, 1 + round_ % 4))
        died += process.wait() == -signal.SIGKILL
        cell.queue.publish([("n%d" % round_, bodies[round_ % 3]),
                            ("m%d" % round_, bodies[round_ % 3])])
    assert died > len(POINTS) // 2
    assert cell.drained() == 0
    cell.exactly(names(90) + ["n%d" % i for i in range(len(POINTS))])


def test_a_handler_that_kills_its_process_harms_nobody_else(cell):
    """It is dead after three attempts; each of its neighbours is done once."""
    cell.queue.publish([("m%d" % i, "segv" if i == 7 else "ok")
                        for i in range(30)])
    for _ in range(12):
        process = cell.consumer("attempts=3", "drain=2500")
        if process.wait() != -signal.SIGSEGV:
            break
    assert process.wait() == 1, process.log()
    cell.exactly(names(30), dead=["m7"])
    assert cell.sql("SELECT attempts FROM @parked") in ([("4",)], [("3",)])


# ---- Servers that die, or keep an answer -------------------------------------------


def test_the_database_restarts(server_cell):
    server = server_cell.db.server
    server_cell.queue.publish(with_copies(300, random.Random(4), "slow"))
    process = server_cell.consumer("workers=2")
    for how in ("kill", "restart", "quit"):
        eventually(lambda n=len(server_cell.effects()):
                   len(server_cell.effects()) > n + 10, "it goes on", PATIENCE)
        getattr(server, how)()
        time.sleep(1.5)
        if not server.running():
            server.start()
    eventually(lambda: len(server_cell.effects()) >= 300
               and server_cell.queue.left() == 0 and not server_cell.parked(WAITING),
               "all are done", PATIENCE)
    assert process.stop() == 0, process.log()
    log = process.log()
    assert "the database:" in log and log.count("the database:") < 12
    assert "the database answers again" in log
    server_cell.exactly(names(300))


def test_all_is_given_back_while_the_database_is_away(mq_cell, postgres):
    mq_cell.queue.publish([("m%d" % i, "ok") for i in range(40)])
    postgres.stop()
    try:
        process = mq_cell.consumer("workers=2", "batch=5")
        time.sleep(3)
        assert mq_cell.queue.left() == 40
        log = process.log()
    finally:
        postgres.start()
    assert log.count("the database:") == 1, log
    eventually(lambda: len(mq_cell.effects()) == 40
               and not mq_cell.parked(WAITING), "all are done", PATIENCE)
    # It is stopped while something is under way, and nobody answers a while.
    mq_cell.queue.publish([("n%d" % i, "slow") for i in range(100)])
    eventually(lambda: len(mq_cell.effects()) > 50, "it goes on", PATIENCE)
    done = len(mq_cell.effects())
    postgres.kill()
    try:
        eventually(lambda: mq_cell.queue.left() >= 140 - done - 30,
                   "the rest is given back", PATIENCE)
    finally:
        postgres.start()
    eventually(lambda: len(mq_cell.effects()) == 140
               and not mq_cell.parked(WAITING), "all are done", PATIENCE)
    assert process.stop() == 0
    assert process.log().count("the database:") < 6, process.log()
    mq_cell.exactly(names(40) + ["n%d" % i for i in range(100)])


def test_the_broker_restarts(cell, world):
    server = servers.Redis(world, "redis%d" % next(_numbers)).start()
    cell.queue = Stream(server, "q")
    cell.queue.publish(with_copies(300, random.Random(5), "slow"))
    process = cell.consumer("workers=2")
    for how in ("kill", "restart"):
        eventually(lambda n=len(cell.effects()): len(cell.effects()) > n + 10,
                   "it goes on", PATIENCE)
        getattr(server, how)()
        time.sleep(0.5)
        if not server.running():
            server.start()
    eventually(lambda: len(cell.effects()) >= 300 and cell.queue.left() == 0
               and not cell.parked(WAITING), "all are done", PATIENCE)
    assert process.stop() == 0, process.log()
    assert "the broker answers again" in process.log()
    cell.exactly(names(300))
    server.stop()


def test_the_answer_to_commit_is_swallowed(server_cell):
    """COMMIT is done, and nobody says so: the row is asked."""
    server = server_cell.db.server
    proxy = servers.Proxy(server.port)
    server_cell.db_url = server_cell.db.url.replace(":%d/" % server.port,
                                            ":%d/" % proxy.port)
    assert server_cell.db_url != server_cell.db.url
    server_cell.sql("CREATE TABLE swallow(n integer)")
    server_cell.queue.publish([("m%d" % i, "slow") for i in range(120)])
    process = server_cell.consumer()
    draw = random.Random(6)
    for _ in range(6):
        eventually(lambda n=len(server_cell.effects()):
                   len(server_cell.effects()) > n + 3, "it goes on", PATIENCE)
        # What the server says from now on is lost, and then the connection.
        proxy.do("open down swallow 0")
        time.sleep(draw.uniform(0.05, 0.3))
        proxy.do("drop rst")
        proxy.do("clear")
    eventually(lambda: len(server_cell.effects()) >= 120
               and server_cell.queue.left() == 0 and not server_cell.parked(WAITING),
               "all are done", PATIENCE)
    assert process.stop() == 0, process.log()
    server_cell.exactly(names(120))
    proxy.close()


# ---- Commands ------------------------------------------------------------------------

SCRIPT = """#!/bin/sh
# What it was given is written down; the body says how it ends.
body=$(cat)
echo "$ONCE_ID $ONCE_KEY $ONCE_ATTEMPT $ONCE_TYPE $ONCE_CONSUMER" >>%(folder)s/ran
case $body in
again-once*) [ -e %(folder)s/again ] || { touch %(folder)s/again; exit 75; } ;;
fail-once*) [ -e %(folder)s/fail ] || { touch %(folder)s/fail; exit 3; } ;;
again*) exit 75 ;;
dead*) exit 65 ;;
fail*) exit 3 ;;
kill*) kill -9 $$ ;;
slow*) sleep 2 ;;
esac
exit 0
"""
TIMES = ["--first-pause", "1s", "--longest-pause", "1s", "--idle", "3s"]


def make_script(cell, text=SCRIPT, **more):
    path = cell.folder / "take"
    path.write_text(text % dict(folder=cell.folder, **more))
    path.chmod(0o755)
    return str(path)


def ran(cell):
    path = cell.folder / "ran"
    return [line.split(" ") for line in path.read_text().splitlines()] \
        if path.exists() else []


def calls(cell):
    url = "sqlite:%s" % (cell.folder / "calls.db")
    newstore.init(url)
    return url


def test_commands_end_as_they_say(cell):
    cell.queue.publish([("ok", "ok", "k1"), ("ok", "ok", "k1"),
                        ("ag", "again-once"), ("de", "dead"),
                        ("fa", "fail-once"), ("fo", "fail for ever"),
                        ("ki", "kill")])
    process = cell.cli("--attempts", 2, *TIMES, command=[make_script(cell)],
                       calls=calls(cell))
    assert process.wait() == 1, process.log()
    count = {name: [line[0] for line in ran(cell)].count(name)
             for name in ("ok", "ag", "de", "fa", "fo", "ki")}
    assert count == {"ok": 1, "ag": 2, "de": 1, "fa": 2, "fo": 3, "ki": 1}
    assert ran(cell)[0] == ["ok", "k1", "0", "", "billing"]
    for said in ("ended with status 75, attempt 0", "ended with status 3, attempt 2",
                 "was killed by signal 9, attempt 0"):
        assert "once messages consume: the command " + said in process.log()
    assert cell.parked(DEAD) == ["de", "fo"]
    assert cell.parked(INDETERMINATE) == ["ki"]
    assert cell.queue.left() == 0
    # An operator's retry of the indeterminate one asks the call, not the command.
    cell.sql("UPDATE @parked SET state=1, due_ms=0 WHERE id='ki'")
    process = cell.cli("--attempts", 9, *TIMES, command=[make_script(cell)],
                       calls=calls(cell))
    assert process.wait() == 1, process.log()
    assert [line[0] for line in ran(cell)].count("ki") == 1
    assert cell.parked(INDETERMINATE) == ["ki"]


def test_a_killed_consumer_leaves_its_command_indeterminate(cell):
    cell.queue.publish([("sl", "slow")])
    process = cell.cli(command=[make_script(cell)], calls=calls(cell))
    eventually(lambda: ran(cell), "it has begun", PATIENCE)
    process.kill()
    process = cell.cli(*TIMES, command=[make_script(cell)], calls=calls(cell))
    assert process.wait() == 1, process.log()
    assert len(ran(cell)) == 1
    assert cell.parked(INDETERMINATE) == ["sl"]


def test_a_lost_command_is_run_again_where_it_may_be(cell):
    cell.queue.publish([("ki", "kill")])
    words = ["--lost", "takeover", "--attempts", 2, *TIMES]
    process = cell.cli(*words, command=[make_script(cell)], calls=calls(cell))
    assert process.wait() == 1, process.log()
    assert len(ran(cell)) >= 1


def test_a_command_gets_no_password_of_ours(cell, monkeypatch):
    monkeypatch.setenv("ONCE_DATABASE", "postgres://me:s3cret@nowhere/shop")
    monkeypatch.setenv("ONCE_TYPE", "not of the message")
    monkeypatch.setenv("MINE", "postgres://me:own@db/shop")
    cell.queue.publish([("a", "ok")])
    seen = cell.folder / "seen"
    process = cell.cli(*TIMES, command=["sh", "-c", "env >%s" % seen],
                       calls=calls(cell))
    assert process.wait() == 0, process.log()
    told = seen.read_text().splitlines()
    assert "ONCE_DATABASE=postgres://me@nowhere/shop" in told
    assert "MINE=postgres://me:own@db/shop" in told and "ONCE_ID=a" in told
    assert "ONCE_STORE=" + calls(cell) in told
    assert not [line for line in told if line.startswith("ONCE_TYPE=")]


def test_a_command_that_cannot_be_started_has_done_nothing(cell):
    cell.queue.publish([("a", "ok")])
    process = cell.cli("--attempts", 1, *TIMES, command=["/nowhere/at/all"],
                       calls=calls(cell))
    assert process.wait() == 1
    assert "cannot be started" in process.log()
    assert cell.parked(DEAD) == ["a"]


INSIDE = SCRIPT.replace("exit 0\n", """case $body in lies*) exit 0 ;; esac
attempt=$ONCE_ATTEMPT
case $body in forgets*) attempt=0 ;; esac
psql -qAtX '%(dsn)s' -v ON_ERROR_STOP=1 >/dev/null <<END || exit 1
BEGIN;
SELECT 1/(once.inbox_claim('billing', '$ONCE_ID', NULL, $attempt) = 'run')::int;
INSERT INTO effect VALUES ('$ONCE_ID', $ONCE_ATTEMPT);
COMMIT;
END
exit 0
""")


IN_MYSQL = INSIDE[:INSIDE.index("psql")] + """%(client)s >/dev/null <<END || exit 1
START TRANSACTION;
CALL once_inbox_claim('billing', '$ONCE_ID', NULL, $attempt);
INSERT INTO effect SELECT '$ONCE_ID', $ONCE_ATTEMPT FROM once_inbox
    WHERE consumer = 'billing' AND id = '$ONCE_ID' AND token = @once_claimed;
SELECT IF(ROW_COUNT() = 1, 1, (SELECT 1 UNION SELECT 2));
COMMIT;
END
exit 0
"""


def inside_script(cell):
    if isinstance(cell.db, Pg):
        return make_script(cell, INSIDE, dsn=cell.db.url)
    return make_script(cell, IN_MYSQL, client=" ".join(
        ["mariadb", "--no-defaults", "-u", "root", "-S",
         str(cell.db.server.socket), cell.db.name]))


def test_a_command_claims_inside_its_own_transaction(server_cell):
    server_cell.queue.publish([
        ("a", "ok"), ("a", "ok"), ("b", "fail-once"), ("c", "lies"),
        ("d", "dead"), ("e", "kill"), ("f", "forgets, and fail-once")])
    script = inside_script(server_cell)
    process = server_cell.cli("--effect", "inside", "--attempts", 2, *TIMES,
                          command=[script])
    assert process.wait() == 1, process.log()
    assert server_cell.effects() == ["a", "b", "f"]
    assert server_cell.parked(DEAD) == ["c", "d", "e"]
    assert server_cell.parked(WAITING) == []


def test_a_parked_message_needs_its_attempt_to_be_claimed(server_cell):
    """Without it the claim answers `done`, and the command has no effect."""
    script = inside_script(server_cell)
    server_cell.queue.publish([("a", "fail-once")])
    process = server_cell.cli("--effect", "inside", "--attempts", 2, *TIMES,
                          command=[script])
    assert process.wait() == 0, process.log()
    assert server_cell.effects() == ["a"]
    (server_cell.folder / "take").write_text(
        (server_cell.folder / "take").read_text().replace(
            "attempt=$ONCE_ATTEMPT", "attempt=0"))
    (server_cell.folder / "fail").unlink()
    server_cell.queue.publish([("b", "fail-once")])
    process = server_cell.cli("--effect", "inside", "--attempts", 2, *TIMES,
                          command=[script])
    assert process.wait() == 1, process.log()
    assert server_cell.effects() == ["a"]
    assert server_cell.parked(DEAD) == ["b"]


# ---- A statement -----------------------------------------------------------------------


NUMBER = "split_part(convert_from($2,'UTF8'),' ',1)"  # without the mark


def test_a_statement_is_executed_with_the_claim(cell):
    if isinstance(cell.db, Pg):
        cell.sql("CREATE UNIQUE INDEX ON effect(attempt)")
        sql = ("INSERT INTO effect SELECT $1, %s::int "
               "WHERE $3 IS NULL OR $3 = 'k'" % NUMBER)
    elif isinstance(cell.db, Maria):
        cell.sql("CREATE UNIQUE INDEX u ON effect(attempt)")
        sql = ("INSERT INTO effect SELECT $1, SUBSTRING_INDEX($2, ' ', 1) + 0 "
               "FROM DUAL WHERE $3 IS NULL OR $3 = 'k'; SELECT '$4\\'', $4")
    else:
        cell.sql("CREATE UNIQUE INDEX u ON effect(attempt)")
        sql = "INSERT INTO effect VALUES(?1, CAST(?2 AS text)+0); SELECT ?3"
    cell.queue.publish([("a", "1"), ("a", "1"), ("b", "2", "k"), ("c", "1"),
                        ("d", "3")])
    process = cell.cli("--sql", sql, "--attempts", 2, "--batch", 4, *TIMES)
    assert process.wait() == 1, process.log()
    assert cell.effects() == ["a", "b", "d"]
    assert cell.parked(DEAD) == ["c"]
    assert "the statement has failed" in process.log()
    assert cell.queue.left() == 0
    why = {Pg: "SQLSTATE 23505, constraint effect_attempt_idx",
           Maria: "error 1062"}.get(type(cell.db), "constraint failed")
    assert cell.sql("SELECT error FROM @parked") == [
        ("the handler has failed: " + why,)]


BILL = """DELIMITER //
CREATE FUNCTION bill(n INT) RETURNS INT DETERMINISTIC MODIFIES SQL DATA
BEGIN
    INSERT INTO effect VALUES ('billed', n);
    IF n < 0 THEN SIGNAL SQLSTATE '45000'; END IF;
    RETURN n;
END //
CREATE PROCEDURE bill_all(n INT) SELECT bill(n) //
"""


@pytest.mark.parametrize("sql, error", [
    ("SELECT bill($1)", 1644),
    ("SELECT bill($1); INSERT INTO effect VALUES ('after', 1)", 1644),
    ("INSERT INTO effect VALUES ('before', 1); SELECT bill($1)", 1644),
    ("CALL bill_all($1)", 1644),
    ("INSERT INTO effect VALUES ('x', 7), ($1, 7) RETURNING id", 1062)])
def test_a_select_that_fails_while_it_runs_parks_its_message(
        request, tmp_path, redis, sql, error):
    """MySQL has sent its columns by then: the error comes in the place of rows."""
    if "RETURNING" in sql and "ONCE_MYSQLD" in os.environ:
        pytest.skip("MySQL has no INSERT ... RETURNING")
    number = next(_numbers)
    cell = Cell(tmp_path, database(request, tmp_path, "mysql", "c%d" % number),
                Stream(redis, "q%d" % number))
    grant(cell)
    cell.sql("CREATE UNIQUE INDEX u ON effect(attempt)")
    cell.sql(BILL)
    cell.queue.publish([("-1", "x")])
    process = cell.cli("--sql", sql, "--attempts", 1, *TIMES)
    assert process.wait() == 1, process.log()
    assert cell.effects() == [] and cell.parked(DEAD) == ["-1"]
    assert "the statement has failed: error %d" % error in process.log()


COMMENTS = """INSERT INTO effect VALUES ($1, 1) -- $2 is the body
; # and here: $2
INSERT INTO effect /* $2 */ VALUES ('$2', 2) /*!40000 , (CONCAT($1, '!'), 3) */;
-- $2
INSERT INTO `effect` SELECT 'name', 4 AS `a\\` -- $2
"""


def test_a_value_never_becomes_part_of_a_statement(request, tmp_path, redis):
    """On MySQL values stood in the text, also where that is a comment."""
    number = next(_numbers)
    cell = Cell(tmp_path, database(request, tmp_path, "mysql", "c%d" % number),
                Stream(redis, "q%d" % number))
    grant(cell)
    evil = "INSERT INTO effect VALUES ('injected', 9); -- "
    cell.queue.publish([("a", "x\n" + evil), ("b", "*/ VALUES ('c', 5); " + evil)])
    process = cell.cli("--sql", COMMENTS, *TIMES)
    assert process.wait() == 0, process.log()
    assert cell.effects() == sorted(["a", "a!", "b", "b!"] + 2 * ["$2", "name"])


@pytest.mark.parametrize("sql", [
    "INSERT INTO effect VALUES (?, 1 /*!999999 + $2 */)",
    "INSERT INTO effect VALUES ('a', 1 /*!999999 + $2 */)",
    "INSERT INTO effect VALUES (?5, 1)"])
def test_a_parameter_that_there_is_not_is_refused(request, tmp_path, redis, sql):
    number = next(_numbers)
    cell = Cell(tmp_path, database(request, tmp_path, "mysql", "c%d" % number),
                Stream(redis, "q%d" % number))
    grant(cell)
    cell.queue.publish([("a", "x")])
    process = cell.cli("--sql", sql, "--attempts", 1, *TIMES)
    assert process.wait() == 1, process.log()
    assert cell.effects() == [] and cell.parked(DEAD) == ["a"]
    assert "its parameters are $1 to $4 or ?1 to ?4" in process.log()


def test_parameters_of_a_statement_go_by_their_numbers(cell):
    body = {Pg: "CAST(%s AS integer)" % NUMBER,
            Maria: "SUBSTRING_INDEX($2, ' ', 1)"}.get(
                type(cell.db), "CAST(CAST($2 AS text) AS integer)")
    cell.queue.publish([("a", "7")])
    process = cell.cli("--sql", "INSERT INTO effect(attempt, id) "
                       "VALUES(%s, $1)" % body, *TIMES)
    assert process.wait() == 0, process.log()
    assert cell.sql("SELECT id, attempt FROM effect") == [("a", "7")]


def test_it_stops_when_told(cell):
    cell.queue.publish([("m%d" % i, "slow") for i in range(5)])
    process = cell.cli(command=[make_script(cell)], calls=calls(cell))
    eventually(lambda: ran(cell), "it has begun", PATIENCE)
    assert process.stop() == 0, process.log()
    # The command under way was finished, and its message is done.
    n = len(ran(cell))
    assert n < 5
    assert len(cell.sql("SELECT id FROM @inbox")) == n
    assert cell.parked(WAITING) == []


def test_what_was_sent_ahead_goes_back_when_it_stops(cell):
    cell.queue.url = cell.queue.url.replace("min_idle_ms=%d" % IDLE_MS,
                                            "min_idle_ms=300000")
    cell.queue.publish([("m%d" % i, "slow") for i in range(5)])
    process = cell.cli(command=[make_script(cell)], calls=calls(cell))
    eventually(lambda: ran(cell), "it has begun", PATIENCE)
    assert process.stop() == 0, process.log()
    # Nobody waits five minutes for a consumer that is gone.
    held = cell.queue.server.ask("XINFO", "CONSUMERS", cell.queue.stream, "g")
    assert [consumer[1] for consumer in held] == [b"given-back"]
    process = cell.cli("--idle", "1s", command=["true"], calls=calls(cell))
    assert process.wait() == 0, process.log()
    assert cell.queue.left() == 0


# ---- The command line -------------------------------------------------------------------


@pytest.mark.parametrize("words", [
    ["--consumer", "c", "--", "true"],
    ["--from", "redis://h/?stream=s&group=g", "--", "true"],
    ["--from", "redis://h/?stream=s&group=g", "--consumer", "c"],
    ["--from", "redis://h/?stream=s&group=g", "--consumer", "c", "--sql", "x",
     "--", "true"],
    ["--from", "redis://h/?stream=s&group=g", "--consumer", "c", "--sql", "x",
     "--effect", "inside"],
    ["--from", "redis://h/?stream=s&group=g", "--consumer", "c", "--sql", "x",
     "--lost", "takeover"],
    ["--from", "redis://h/?stream=s&group=g", "--consumer", "c", "--keyed",
     "--workers", "2", "--sql", "x"],
    ["--from", "redis://h/?stream=s&group=g", "--consumer", "c" * 33, "--",
     "true"],
    ["--from", "redis://h/?stream=s&group=g", "--consumer", "two words",
     "--sql", "x"],
    ["--from", "carrier-pigeon:x", "--consumer", "c", "--sql", "x"],
    ["--from", "redis://h/?stream=s", "--consumer", "c", "--sql", "x"],
    ["--from", "exec:true", "--consumer", "c", "--sql", "x"],
    ["--from", "redis://h/?stream=s&group=g", "--consumer", "c", "--store",
     "memory:", "--", "true"],
    ["--from", "redis://h/?stream=s&group=g", "--consumer", "c", "--workers",
     "0", "--sql", "x"],
])
def test_usage(tmp_path, words):
    db = Lite(tmp_path)
    done = once("messages", "consume", "--database", db.url, *words, check=False)
    assert done.returncode == 2, done
    assert done.stderr.startswith("once messages consume: ")


def test_a_database_without_tables_is_an_error(redis, tmp_path):
    (tmp_path / "x.db").touch()
    done = once("messages", "consume", "--database", "sqlite:%s" % (tmp_path / "x.db"),
                "--from", Stream(redis, "none").url, "--consumer", "c",
                "--sql", "SELECT 1", check=False)
    assert done.returncode == 3, done


def test_urls_with_passwords_stand_in_files(cell):
    path = cell.folder / "from"
    path.write_text(cell.queue.url + "\n")
    cell.queue.url = "@%s" % path
    Stream.publish(cell.queue, [("a", "1")])
    process = cell.cli("--idle", "2s", "--sql",
                       "INSERT INTO effect VALUES(%s, 1)"
                       % ("?1" if isinstance(cell.db, Lite) else "$1"))
    assert process.wait() == 0, process.log()
    assert cell.effects() == ["a"]
