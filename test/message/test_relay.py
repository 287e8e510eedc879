# SPDX-License-Identifier: Apache-2.0
"""test_relay.py - `once messages relay` and `once messages emit` on real databases and targets:
what arrives, in which order, and what becomes of rows when relays, databases and
targets die or stand still. carry.py has the world in which this happens."""
import contextlib
import copy
import itertools
import os
import pathlib
import random
import re
import shutil
import signal
import subprocess
import threading
import time

import psycopg2
import pytest

from carry import (DEAD, INDETERMINATE, ONCE, PATIENCE, READY, Commands, Lite,
                   Pg, Queue, Relay, Service, Stream, Topic, column, database,
                   eventually, firsts, messages, once, phases)
import servers


BROKERS = ["sqlite-redis", "postgres-redis", "postgres-amqp", "mysql-redis",
           "postgres-kafka"]
EXECS = ["sqlite-exec", "postgres-exec", "mysql-exec"]
CELLS = EXECS + ["sqlite-http"] + BROKERS
BUILD = pathlib.Path(ONCE).parent
SHORT = ["--timeout", "1s"]  # what a lease of three seconds allows
_numbers = itertools.count(1)


class Cell:
    """A database, a target, and the relays between them."""

    def __init__(self, folder, db, target):
        self.folder = folder
        self.db = db
        self.target = target
        self.relays = []

    def to(self, *more, route="r"):
        return ["--to", "%s=%s" % (route, self.target.url), *self.target.more,
                *SHORT, *more]

    def relay(self, *words, **options):
        relay = Relay(self.folder, self.db, *words, **options)
        self.relays.append(relay)
        return relay

    def all_arrived(self, sent):
        """As often as it may, each in the order of its key, and no row is
        left."""
        seen = firsts(self.target.arrivals(), {m[0]: m[1] for m in sent})
        assert set(seen) == {m[0] for m in sent}
        assert phases(self.db) == {}


def make_cell(request, tmp_path, kind):
    db, target = kind.split("-")
    number = next(_numbers)
    db = database(request, tmp_path, db, "t%d" % number)
    if target == "exec":
        target = Commands(tmp_path)
    elif target == "http":
        target = Service().start()
        request.addfinalizer(target.stop)
    else:
        kind = {"redis": Stream, "amqp": Queue, "kafka": Topic}[target]
        target = kind(request.getfixturevalue(target), "s%d" % number)
    return Cell(tmp_path, db, target)


@contextlib.contextmanager
def living(cell):
    try:
        yield cell
    finally:
        for relay in cell.relays:
            if relay.process.poll() is None:
                relay.send(signal.SIGCONT)
                relay.kill()


@pytest.fixture(params=CELLS)
def cell(request, tmp_path):
    with living(make_cell(request, tmp_path, request.param)) as c:
        yield c


@pytest.fixture(params=EXECS)
def exec_cell(request, tmp_path):
    with living(make_cell(request, tmp_path, request.param)) as c:
        yield c


@pytest.fixture(params=BROKERS)
def broker_cell(request, tmp_path):
    with living(make_cell(request, tmp_path, request.param)) as c:
        yield c


@pytest.fixture
def lite_exec(request, tmp_path):
    with living(make_cell(request, tmp_path, "sqlite-exec")) as c:
        yield c


@pytest.fixture
def pg_redis(request, tmp_path):
    with living(make_cell(request, tmp_path, "postgres-redis")) as c:
        yield c


# ---- What arrives --------------------------------------------------------


def test_everything_arrives_once(cell):
    sent = messages(100, keys=5)
    cell.db.emit(sent)
    relay = cell.relay(*cell.to("--workers", 2), "--drain")
    assert relay.wait() == 0, relay.log()
    cell.all_arrived(sent)
    assert len(cell.target.arrivals()) == len(sent)
    assert relay.metric("taken_total") == len(sent)


def test_two_relays_share_the_work(exec_cell):
    sent = messages(60, keys=7)
    exec_cell.db.emit(sent)
    exec_cell.target.slow(0.02)
    pair = [exec_cell.relay(*exec_cell.to(), "--drain", name=name)
            for name in ("one", "two")]
    assert [relay.wait() for relay in pair] == [0, 0]
    exec_cell.all_arrived(sent)
    assert len(exec_cell.target.arrivals()) == len(sent)
    taken = [relay.metric("taken_total") for relay in pair]
    assert min(taken) > 0 and sum(taken) == len(sent)


def test_only_the_routes_that_were_named_are_carried(lite_exec):
    lite_exec.db.emit(messages(3), route="other")
    lite_exec.db.emit(messages(3, prefix="r"))
    # Nobody carries the others: status 1.
    assert lite_exec.relay(*lite_exec.to(), "--drain").wait() == 1
    assert phases(lite_exec.db, "other") == {READY: 3}
    assert len(lite_exec.target.arrivals()) == 3


def test_a_row_leaves_when_it_is_due(lite_exec):
    at = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() + 3))
    once("messages", "emit", "--database", lite_exec.db.url, "--route", "r", "--at", at,
         stdin="later")
    assert lite_exec.relay(*lite_exec.to(), "--drain").wait() == 0
    assert [a[2] for a in lite_exec.target.arrivals()] == ["later"]
    assert time.time() >= time.mktime(time.strptime(at, "%Y-%m-%dT%H:%M:%SZ")) \
        - time.timezone


def test_an_emit_wakes_a_relay_that_sleeps(cell):
    relay = cell.relay(*cell.to())
    if isinstance(cell.db, Pg):
        eventually(lambda: cell.db.sql("SELECT idle FROM once.relay_idle")
                   == [("t",)], "the relay sleeps")
    else:
        time.sleep(2)
    printed = once("messages", "emit", "--database", cell.db.url, "--route", "r",
                   stdin="x").stdout.strip()
    eventually(lambda: [a[0] for a in cell.target.arrivals()] == [printed],
               "it arrives", PATIENCE)
    assert relay.stop() == 0, relay.log()
    if isinstance(cell.db, Pg):
        assert cell.db.sql("SELECT idle FROM once.relay_idle") == [("f",)]


def test_a_relay_that_sleeps_says_so_again(pg_redis):
    cell = pg_redis
    relay = cell.relay(*cell.to())
    eventually(lambda: cell.db.sql("SELECT idle FROM once.relay_idle")
               == [("t",)], "the relay sleeps")
    cell.db.sql("UPDATE once.relay_idle SET until_ms = 0")
    eventually(lambda: cell.db.sql("SELECT until_ms > 0 FROM once.relay_idle")
               == [("t",)], "it says so again", PATIENCE)
    assert relay.stop() == 0


# ---- Relays that die or stand still ---------------------------------------


def test_another_relay_finishes_what_a_killed_one_began(cell):
    sent = messages(120, keys=4)
    cell.db.emit(sent)
    draw = random.Random(20)
    for _ in range(6):
        relay = cell.relay(*cell.to("--workers", 2, *(
            ["--batch", 20] if cell.target.name in ("redis", "amqp", "kafka") else
            [])))
        time.sleep(draw.uniform(0.02, 0.3))
        relay.kill()
    relay = cell.relay(*cell.to(), "--drain")
    assert relay.wait() == 0, relay.log()
    cell.all_arrived(sent)


def test_a_relay_that_stood_still_past_its_lease_is_fenced(exec_cell):
    sent = messages(12, keys=2)
    exec_cell.db.emit(sent)
    exec_cell.target.slow(0.3)
    first = exec_cell.relay(*exec_cell.to("--workers", 3), name="first")
    eventually(lambda: len(exec_cell.target.begun()) >= 3, "rows are under way")
    first.send(signal.SIGSTOP)
    second = exec_cell.relay(*exec_cell.to(), "--drain", name="second")
    assert second.wait() == 0, second.log()
    first.send(signal.SIGCONT)
    eventually(lambda: "claimed by another relay" in first.log(), "it notices")
    assert first.stop() == 0
    assert first.metric("fenced_total") >= 1
    exec_cell.all_arrived(sent)


def test_under_hold_a_killed_relay_leaves_an_indeterminate_row(exec_cell):
    exec_cell.db.emit(messages(3))
    exec_cell.target.slow(2)
    exec_cell.target.more = []  # exec holds by itself
    first = exec_cell.relay(*exec_cell.to("--timeout", "1s"))
    eventually(exec_cell.target.begun, "a row is under way")
    first.kill()
    exec_cell.target.fast()
    second = exec_cell.relay(*exec_cell.to(), "--drain")
    assert second.wait() == 1, second.log()
    assert phases(exec_cell.db) == {INDETERMINATE: 1}
    assert sorted(exec_cell.target.begun()) == ["m0", "m1", "m2"]


def test_a_stop_gives_back_what_was_not_sent(exec_cell):
    exec_cell.db.emit(messages(20))
    exec_cell.target.slow(0.5)
    relay = exec_cell.relay(*exec_cell.to("--workers", 3), short=False)
    eventually(exec_cell.target.begun, "a row is under way")
    assert relay.stop() == 0, relay.log()
    assert set(column(exec_cell.db, "lease_ms", "phase = 0")) == {"0"}
    begun = exec_cell.target.begun()
    assert sorted(begun) == sorted(a[0] for a in exec_cell.target.arrivals())
    assert phases(exec_cell.db) == {READY: 20 - len(begun)}


def test_whoever_starts_it_may_ignore_sigchld(lite_exec):
    lite_exec.db.emit(messages(2))
    lite_exec.target.more = []  # hold
    end = subprocess.run(
        ["env", "--ignore-signal=CHLD", ONCE, "messages", "relay", "--database",
         lite_exec.db.url, *lite_exec.to(), "--drain"],
        capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert end.returncode == 0, end.stderr
    assert phases(lite_exec.db) == {}


@pytest.mark.skipif(not shutil.which("strace"), reason="strace is missing")
def test_what_cannot_be_sent_is_not_tried_all_the_time(lite_exec, tmp_path):
    lite_exec.db.emit(messages(1))
    relay = Relay(tmp_path, lite_exec.db, *lite_exec.to(), wrap=[
        "strace", "-D", "-f", "-o", "/dev/null", "-e",
        "trace=memfd_create", "-e",
        "inject=memfd_create:error=EMFILE"])
    try:
        eventually(lambda: "nothing can be sent" in relay.log(), "it is said")
        time.sleep(3)
    finally:
        relay.kill()
    tried = int(column(lite_exec.db, "attempts")[0])
    assert 1 <= tried <= 12  # a pause of 200 ms, doubled each time
    assert column(lite_exec.db, "doubt")[0] in ("0", "1")


# ---- Rows that cannot be delivered ----------------------------------------


def test_a_row_that_is_refused_too_often_is_dead(exec_cell):
    exec_cell.db.emit([("bad", None, "refuse"), ("good", None, "1")])
    relay = exec_cell.relay(*exec_cell.to("--attempts", 3), "--drain")
    assert relay.wait() == 1, relay.log()
    assert column(exec_cell.db, "phase", "phase <> 2") == [str(DEAD)]
    assert column(exec_cell.db, "refused", "phase = 3") == ["3"]
    assert column(exec_cell.db, "doubt", "phase = 3") == ["0"]
    assert exec_cell.target.begun().count("bad") == 3
    assert "route r: row 1 is dead" in relay.log()
    assert relay.metric("refused_total") == 3
    assert relay.metric("dead_total") == 1
    assert relay.metric("rows_dead") == 1


def test_what_no_queue_takes_is_refused(request, tmp_path):
    with living(make_cell(request, tmp_path, "sqlite-amqp")) as cell:
        cell.db.emit(messages(2))
        with cell.target.channel() as channel:
            channel.queue_delete(cell.target.queue)
        relay = cell.relay(*cell.to("--attempts", 2), "--drain")
        assert relay.wait() == 1, relay.log()
        assert phases(cell.db) == {DEAD: 2}


def test_a_dead_row_keeps_its_key_waiting_unless_told_to_pass(exec_cell):
    exec_cell.db.emit([("bad", "k", "reject"), ("after", "k", "1"),
                       ("other", "l", "2")])
    relay = exec_cell.relay(*exec_cell.to())
    eventually(lambda: phases(exec_cell.db) == {READY: 1, DEAD: 1},
               "one is dead, one is done", PATIENCE)
    time.sleep(1.5)
    assert exec_cell.target.begun().count("after") == 0
    assert relay.stop() == 0
    relay = exec_cell.relay(*exec_cell.to(), "--drain")
    assert relay.wait() == 1, relay.log()
    assert phases(exec_cell.db) == {READY: 1, DEAD: 1}
    relay = exec_cell.relay(*exec_cell.to("--pass"), "--drain")
    assert relay.wait() == 1, relay.log()
    assert [a[0] for a in exec_cell.target.arrivals()] == ["other", "after"]


# ---- HTTP services, and sagas of them --------------------------------------


@pytest.fixture(params=["sqlite-http", "postgres-http"])
def http_cell(request, tmp_path):
    with living(make_cell(request, tmp_path, request.param)) as c:
        yield c


def test_an_answer_that_was_lost_is_asked_for_with_the_same_key(http_cell):
    sent = messages(8, keys=2)
    http_cell.db.emit(sent)
    http_cell.target.answer = lambda name, body, n: None if n == 1 else 201
    relay = http_cell.relay(*http_cell.to("--workers", 2), "--drain")
    assert relay.wait() == 0, relay.log()
    http_cell.all_arrived(sent)
    assert sorted(http_cell.target.arrivals()) == sorted(
        2 * [(m[0], None, m[2]) for m in sent])
    assert relay.metric("silent_total") >= 1
    assert "does not answer" in relay.log()


def test_under_hold_a_lost_answer_is_not_asked_for(http_cell):
    """Neither by the relay nor by libcurl, which sends a request again whose
    connection was kept from the one before."""
    http_cell.db.emit(messages(4))
    http_cell.target.answer = lambda name, body, n: (
        201 if int(body) % 2 == 0 else None)
    relay = http_cell.relay(*http_cell.to("--hold", "--workers", "1"), "--drain")
    assert relay.wait() == 1, relay.log()
    assert phases(http_cell.db) == {INDETERMINATE: 2}
    assert [a[0] for a in http_cell.target.arrivals()] == \
        ["m0", "m1", "m2", "m3"]


def test_a_refusal_is_kept_with_the_row(http_cell):
    http_cell.db.emit([("bad", None, "1"), ("good", None, "2")])
    http_cell.target.answer = lambda name, body, n: 422 if body == "1" else 200
    relay = http_cell.relay(*http_cell.to(), "--drain")
    assert relay.wait() == 1, relay.log()
    assert column(http_cell.db, "status", "phase = 3") == ["422"]
    assert phases(http_cell.db) == {DEAD: 1}


def test_headers_of_a_route_are_sent_and_not_printed(http_cell):
    http_cell.db.emit(messages(1))
    http_cell.target.answer = lambda name, body, n: 401 if n == 1 else 200
    path = http_cell.folder / "headers"
    path.write_text("Authorization: Bearer tell-nobody")
    relay = http_cell.relay(*http_cell.to("--headers", path), "--drain")
    assert relay.wait() == 0, relay.log()
    assert [h["Authorization"] for h in http_cell.target.headers] == \
        2 * ["Bearer tell-nobody"]
    assert relay.metric("refused_total") == 1
    assert "tell-nobody" not in relay.log() + relay.metrics_path.read_text()


def test_a_service_that_is_away_costs_a_row_nothing(http_cell):
    http_cell.target.stop()
    http_cell.db.emit(messages(2))
    relay = http_cell.relay(*http_cell.to())
    eventually(lambda: "the target does not answer" in relay.log(), "it says so")
    http_cell.target.start()
    eventually(lambda: phases(http_cell.db) == {}, "all is done", PATIENCE)
    assert relay.stop() == 0
    assert relay.metric("silent_total") == relay.metric("refused_total") == 0
    http_cell.all_arrived(messages(2))


@pytest.mark.parametrize("status", [503, 524])
def test_a_proxys_error_is_told_with_its_number_and_what_follows(
        http_cell, status):
    """No "does not answer" where somebody has answered."""
    http_cell.db.emit(messages(1))
    http_cell.target.answer = lambda name, body, n: status if n == 1 else 200
    relay = http_cell.relay(*http_cell.to(), "--drain")
    assert relay.wait() == 0, relay.log()
    assert "the target has answered with status %d: " % status in relay.log()
    assert "it is sent again with the same key" in relay.log()
    assert "does not answer" not in relay.log()
    http_cell.all_arrived(messages(1))


def test_a_row_in_doubt_for_a_day_is_not_sent_again(http_cell):
    http_cell.db.emit(messages(1))
    day = int(time.time() * 1000) - 24 * 3600 * 1000
    http_cell.db.sql("UPDATE %s SET doubt = 1, doubt_ms = %d"
                     % (http_cell.db.table, day))
    relay = http_cell.relay(*http_cell.to(), "--drain")
    assert relay.wait() == 1, relay.log()
    assert phases(http_cell.db) == {INDETERMINATE: 1}
    assert http_cell.target.arrivals() == []


STEPS = """[
 {"try": "r", "confirm": "r", "cancel": "r", "body": {"step": 1}},
 {"try": "r", "confirm": "r", "cancel": "r", "body": {"step": 2}}]"""


@pytest.mark.parametrize("last, calls", [
    (200, ["1/try", "2/try", "1/confirm", "2/confirm"]),
    (422, ["1/try", "2/try", "2/cancel", "1/cancel"]),
])
def test_a_saga_is_carried_to_its_end(request, tmp_path, last, calls):
    with living(make_cell(request, tmp_path, "postgres-http")) as cell:
        cell.target.answer = lambda name, body, n: (
            last if name.endswith("2/try") else 200)
        cell.db.apart("SELECT once.saga_start('order', '%s', 'g')" % STEPS)
        relay = cell.relay(*cell.to(), "--drain")
        assert relay.wait() == 0, relay.log()
        found = [a[0] for a in cell.target.arrivals()]
        assert found[:2] == ["g/" + call for call in calls[:2]]
        assert sorted(found) == sorted("g/" + call for call in calls)
        assert cell.target.headers[1]["Once-Saga"] == "g; branch=2; op=try"


DUE, MOVES = 1, 2  # advisory locks
HELD_MOVES = """
CREATE FUNCTION held() RETURNS trigger LANGUAGE plpgsql AS
    $f$ BEGIN PERFORM pg_advisory_xact_lock_shared(%d); RETURN NEW; END $f$;
CREATE TRIGGER held BEFORE UPDATE ON once.saga FOR EACH ROW
    EXECUTE FUNCTION held()""" % MOVES
AT_WORK = """SELECT count(*) FROM pg_stat_activity WHERE pid <> pg_backend_pid()
    AND datname = current_database()
    AND query ~ '(outbox_[a-z]+|saga_due)_1|LISTEN|SHOW default_transaction'"""
WAITING = """SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'advisory'
    AND query LIKE '%%%s%%'"""


BLOCKED = """SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'
    AND datname = current_database()"""


NOT_TOGETHER = """DO $do$ BEGIN EXECUTE regexp_replace(
    pg_get_functiondef('once.saga_settle_1'::regproc),
    '\\$function\\$.*\\$function\\$', '$f$BEGIN RETURN ''changed''; END$f$'); END $do$"""


@pytest.mark.parametrize("held", ["saga_settle_1", "saga_write_1"])
def test_a_saga_between_two_calls_is_not_drained(request, tmp_path, held):
    """A worker has looked which sagas are to be moved on, and found none. Then
    another one settles a call, and before the saga's next call is there, the first
    one counts what is left. As a rule the call is not settled before its saga has
    moved; where that is refused, it is."""
    may_answer = threading.Event()

    def answer(name, body, n):
        may_answer.wait(PATIENCE)
        return 200

    with living(make_cell(request, tmp_path, "postgres-http")) as cell:
        db, cell.target.answer = cell.db, answer
        due = db.server.sql(
            "SELECT pg_get_functiondef('once.saga_due_1'::regproc)", db.name)
        db.apart("SELECT once.saga_start('order', '%s', 'g')" % STEPS)
        relay = cell.relay(*cell.to("--workers", 3, "--timeout", "%ds" % PATIENCE,
                                     "--lease", "%ds" % (4 * PATIENCE)), "--drain")
        eventually(cell.target.arrivals, "the first call arrives")
        # The relay itself, its timer and three workers, of which one may wait, and has
        # asked nothing after its check. Who comes later refuses what is made here.
        eventually(lambda: db.sql(AT_WORK) == [("5",)], "all are at work")
        with contextlib.closing(psycopg2.connect(db.url)) as holder, \
                holder.cursor() as hold:
            hold.execute("SELECT pg_advisory_lock(%s), pg_advisory_lock(%s)",
                         (DUE, MOVES))
            if held == "saga_write_1":
                db.server.sql(NOT_TOGETHER, db.name)
            db.sql([HELD_MOVES, re.sub(
                r"END\s*(\$\w*\$)\s*$",
                r"PERFORM pg_advisory_xact_lock_shared(%d); END \1" % DUE, due)])
            # A worker of the relay, and its timer.
            eventually(lambda: db.sql(WAITING % "saga_due_1") == [("2",)],
                       "both have looked")
            may_answer.set()
            eventually(lambda: db.sql(WAITING % held) == [("1",)],
                       "the call has ended")
            # It rests ten times as long as it has looked.
            hold.execute("SELECT pg_advisory_unlock(%s)", (DUE,))
            assert phases(db) == ({} if held == "saga_write_1" else {READY: 1})
            time.sleep(1)  # it counts; if it is slower, the test sees less
        assert relay.wait() == 0, relay.log()
        assert sorted(a[0] for a in cell.target.arrivals()) == [
            "g/1/confirm", "g/1/try", "g/2/confirm", "g/2/try"]


def test_a_saga_that_may_be_stuck_is_reported(request, tmp_path):
    """The answer to the COMMIT that made it so is lost. Nobody has to move it on
    afterwards, so nobody would look at it again."""
    with living(make_cell(request, tmp_path, "postgres-http")) as cell, \
            contextlib.closing(psycopg2.connect(cell.db.url)) as holder, \
            holder.cursor() as hold:
        db, behind = cell.db, copy.copy(cell.db)
        holder.autocommit = True
        proxy = servers.Proxy(db.server.port)
        behind.url = db.url.replace(":%d/" % db.server.port, ":%d/" % proxy.port)
        assert behind.url != db.url

        def answer(name, body, n):
            if name.endswith("/cancel"):
                hold.execute("SELECT pg_advisory_lock(%s)", (MOVES,))
            return 422

        cell.target.answer = answer
        db.sql(HELD_MOVES)
        db.apart("SELECT once.saga_start('order', '%s', 'g')" % STEPS)
        relay = Relay(cell.folder, behind, *cell.to("--lease", "60s"))
        cell.relays.append(relay)
        eventually(lambda: db.sql(WAITING % "saga_settle_1") == [("1",)],
                   "the last call has ended")
        proxy.do("open down swallow 0")
        hold.execute("SELECT pg_advisory_unlock(%s)", (MOVES,))
        eventually(lambda: "stuck" in once("--database", db.url, "messages",
                                           "saga", "ls", "stuck").stdout,
                   "it is stuck")
        assert "stuck" not in relay.log()
        proxy.do("drop rst")
        proxy.do("clear")
        eventually(lambda: "once messages saga ls stuck" in relay.log(),
                   "it is said")
        assert relay.stop() == 0, relay.log()
        proxy.close()


# The first call of "g" has ended well; its second one follows.
SETTLE = """SELECT once.saga_settle_1('g', (SELECT version FROM once.saga), 0, NULL,
    '{{1,2,0,0},{2,1,0,0}}', '{}', '{{2,1}}', ARRAY[(SELECT seq FROM once.outbox
    WHERE saga = 'g'), 1, 1, 200], '', '')"""


def test_a_call_that_is_just_settled_is_not_claimed(pg_redis):
    """Its lease has run out, and a claim of many rows has seen it."""
    db, claimed = pg_redis.db, []
    db.apart("SELECT once.saga_start('order', '%s', 'g')" % STEPS)
    assert db.apart("SELECT count(*) FROM once.outbox_claim_1('r', 1, 1, false, true,"
                    " true)") == [("1",)]
    db.emit(messages(5))
    with contextlib.closing(psycopg2.connect(db.url)) as settler, \
            settler.cursor() as cursor:
        cursor.execute(SETTLE)
        assert cursor.fetchall() == [("ok",)]
        claim = threading.Thread(target=lambda: claimed.extend(db.apart(
            "SELECT id FROM once.outbox_claim_1('r', 9, 60000, false, true,"
            " false)")))
        claim.start()
        eventually(lambda: not claim.is_alive() or db.sql(BLOCKED) == [("1",)],
                   "it waits for the row")
        settler.commit()
    claim.join(PATIENCE)
    assert sorted(claimed) == sorted((m[0],) for m in messages(5))


@pytest.mark.parametrize("kind", ["sqlite-redis", "sqlite-amqp"])
def test_one_id_on_two_routes_is_two_messages(request, tmp_path, kind):
    """Though both lead to one place: an id is one emission of its route."""
    with living(make_cell(request, tmp_path, kind)) as cell:
        cell.db.emit([("order/42", None, "made")], route="made")
        cell.db.emit([("order/42", None, "paid")], route="paid")
        relay = cell.relay(*cell.to(route="made"), *cell.to(route="paid"),
                           "--drain")
        assert relay.wait() == 0, relay.log()
        assert sorted(a[2] for a in cell.target.arrivals()) == ["made", "paid"]


# ---- What is away --------------------------------------------------------


def test_a_target_that_is_away_costs_a_row_nothing(broker_cell):
    cell, server = broker_cell, broker_cell.target.server
    sent = messages(40, keys=3)
    server.stop()
    try:
        relay = cell.relay(*cell.to())
        cell.db.emit(sent)
        eventually(lambda: "the target is away" in relay.log(), "it notices")
        assert relay.process.poll() is None
        assert set(column(cell.db, "attempts")) == {"0"}
    finally:
        server.start()
    eventually(lambda: phases(cell.db) == {}, "all is done", PATIENCE)
    assert relay.stop() == 0
    assert "the target is back" in relay.log()
    assert relay.metric("circuit_open") == 0
    cell.all_arrived(sent)


def test_a_target_that_dies_under_way_loses_nothing(broker_cell):
    cell, server = broker_cell, broker_cell.target.server
    sent = messages(300, keys=10)
    relay = cell.relay(*cell.to("--batch", 50))
    for part in range(3):
        cell.db.emit(sent[100 * part:100 * part + 100])
        time.sleep(0.05)
        server.kill()
        server.start()
    eventually(lambda: phases(cell.db) == {}, "all is done", PATIENCE)
    assert relay.stop() == 0
    cell.all_arrived(sent)


def test_a_database_that_is_restarted_loses_nothing(pg_redis):
    cell, server = pg_redis, pg_redis.db.server
    sent = messages(300, keys=10)
    relay = cell.relay(*cell.to("--batch", 20))
    for part in range(3):
        cell.db.emit(sent[100 * part:100 * part + 100])
        time.sleep(0.05)
        server.quit()
        server.start()
    eventually(lambda: phases(cell.db) == {}, "all is done", PATIENCE)
    assert relay.stop() == 0
    cell.all_arrived(sent)


def test_a_relay_ends_when_told_though_all_is_away(pg_redis):
    cell = pg_redis
    database, target = cell.db.server, cell.target.server
    cell.db.emit(messages(50))
    relay = cell.relay(*cell.to())
    database.quit()
    target.kill()
    try:
        time.sleep(1)
        assert relay.stop() == 0, relay.log()
        assert cell.relay(*cell.to(), "--drain", name="late").wait() == 3
    finally:
        database.start()
        target.start()
    assert cell.relay(*cell.to(), "--drain", name="last").wait() == 0
    cell.all_arrived(messages(50))


def test_a_target_that_stands_still_loses_nothing(pg_redis):
    cell, server = pg_redis, pg_redis.target.server
    sent = messages(60, keys=5)
    relay = cell.relay(*cell.to("--batch", 10))
    server.pause()
    try:
        cell.db.emit(sent)
        eventually(lambda: "the target" in relay.log(), "it notices")
    finally:
        server.resume()
    eventually(lambda: phases(cell.db) == {}, "all is done", PATIENCE)
    assert relay.stop() == 0
    cell.all_arrived(sent)


def test_a_relay_ends_when_told_though_its_database_hangs(pg_redis):
    cell, server = pg_redis, pg_redis.db.server
    relay = cell.relay(*cell.to("--workers", 2))
    eventually(lambda: cell.db.sql("SELECT idle FROM once.relay_idle"),
               "the relay works")
    server.pause()
    try:
        time.sleep(1.5)
        assert relay.stop() == 0, relay.log()
    finally:
        server.resume()


# ---- Two batches at a time ------------------------------------------------


def leased(db):
    """How many rows the leases of batches hold."""
    return int(db.sql("SELECT coalesce(sum(cardinality(seqs)), 0) FROM "
                      "once.relay_lease")[0][0])


def two_under_way(cell, *words, keys=7):
    """A relay with ten rows at a target that stands still, and ten that it has
    claimed meanwhile. Thirty were emitted."""
    relay = cell.relay(*cell.to("--batch", 10, *words), short=False)
    cell.db.emit(messages(20, prefix="first"))
    eventually(lambda: phases(cell.db) == {}, "it has grown to ten rows")
    cell.target.server.pause()
    sent = messages(30, keys)
    cell.db.emit(sent)
    eventually(lambda: leased(cell.db) == 20, "two batches are claimed")
    return relay, messages(20, prefix="first") + sent


def test_a_relay_killed_with_two_batches_loses_neither(pg_redis):
    cell = pg_redis
    relay, sent = two_under_way(cell, "--timeout", "2s", "--lease", "6s")
    try:
        relay.kill()
    finally:
        cell.target.server.resume()
    last = cell.relay(*cell.to(), "--drain", name="last")
    assert last.wait() == 0, last.log()
    cell.all_arrived(sent)


def test_a_relay_that_stood_still_with_two_batches_is_fenced(pg_redis):
    cell = pg_redis
    relay, sent = two_under_way(cell, "--timeout", "2s", "--lease", "6s")
    relay.send(signal.SIGSTOP)
    cell.target.server.resume()
    last = cell.relay(*cell.to(), "--drain", name="last")
    assert last.wait() == 0, last.log()
    relay.send(signal.SIGCONT)
    eventually(lambda: "claimed by another relay" in relay.log(), "it notices")
    assert relay.stop() == 0
    cell.all_arrived(sent)


def test_what_was_claimed_ahead_of_a_slow_target_is_not_in_doubt(pg_redis):
    cell = pg_redis
    relay, sent = two_under_way(cell, "--timeout", "2s", "--lease", "6s", keys=0)
    try:
        eventually(lambda: leased(cell.db) == 0, "both were given up")
        rows = cell.db.sql("SELECT count(*) FILTER (WHERE phase = 1), count(*) "
                           "FILTER (WHERE phase = 0 AND doubt = 0 AND attempts "
                           "> 0) FROM once.outbox")
        assert int(rows[0][0]) >= 10  # sent, and no proof came
        assert int(rows[0][1]) >= 8   # one may have been sent since
    finally:
        cell.target.server.resume()
    eventually(lambda: phases(cell.db) == {}, "all is done", PATIENCE)
    assert relay.stop() == 0
    cell.all_arrived(sent)


def test_a_database_that_is_away_when_the_proofs_come_hears_of_both(pg_redis):
    cell = pg_redis
    relay, sent = two_under_way(cell)
    cell.db.server.quit()
    cell.target.server.resume()
    eventually(lambda: len(cell.target.arrivals()) == 40, "both are sent")
    cell.db.server.start()
    eventually(lambda: phases(cell.db) == {}, "all is done", PATIENCE)
    assert relay.stop() == 0
    assert relay.metric("taken_total") == relay.metric("sent_total") == 50
    cell.all_arrived(sent)


def test_a_stop_settles_one_batch_and_gives_back_the_other(pg_redis):
    cell = pg_redis
    relay, sent = two_under_way(cell, keys=0)
    relay.send(signal.SIGTERM)
    time.sleep(0.3)
    cell.target.server.resume()
    assert relay.wait() == 0, relay.log()
    assert leased(cell.db) == 0
    assert phases(cell.db) == {READY: 20}
    assert set(column(cell.db, "doubt", "phase = 0")) == {"0"}
    assert relay.metric("sent_total") == relay.metric("taken_total") == 30
    assert cell.relay(*cell.to(), "--drain", name="last").wait() == 0
    cell.all_arrived(sent)


def test_an_operator_cannot_drop_what_was_claimed_ahead(pg_redis):
    cell = pg_redis
    relay, sent = two_under_way(cell)
    try:
        answers = cell.db.sql(
            "SELECT id, once.outbox_decide_1(seq, 0, attempts, 1, 'no') FROM "
            "once.outbox WHERE phase = 0")
    finally:
        cell.target.server.resume()
    dropped = {name for name, answer in answers if answer == "ok"}
    assert len(answers) == 30 and len(dropped) == 10
    eventually(lambda: phases(cell.db) == {}, "all is done")
    assert relay.stop() == 0
    cell.all_arrived([m for m in sent if m[0] not in dropped])


# ---- What is seen of it --------------------------------------------------


def test_metrics_name_any_route(lite_exec):
    route = 'a"b\\c'
    lite_exec.db.emit(messages(3), route=route)
    relay = lite_exec.relay(*lite_exec.to(route=route), "--drain")
    assert relay.wait() == 0, relay.log()
    metrics = relay.metrics()
    assert metrics["once_relay_taken_total"] == {'a\\"b\\\\c': 3}
    assert metrics["once_relay_rows_ready"] == {'a\\"b\\\\c': 0}
    assert metrics["once_relay_circuit_open"] == {'a\\"b\\\\c': 0}
    assert not os.path.exists(str(relay.metrics_path) + ".new")


BOTH = pytest.mark.parametrize("kind", EXECS)


@BOTH
def test_a_route_that_never_had_a_relay_is_left(request, tmp_path, kind):
    """A name was mistyped: the rows would wait for ever, and nobody be told."""
    cell = make_cell(request, tmp_path, kind)
    cell.db.emit(messages(3), route="ordrs")
    cell.db.emit(messages(2, prefix="r"))
    relay = cell.relay(*cell.to(), "--drain")
    assert relay.wait() == 1, relay.log()
    assert "route ordrs: 3 rows wait, and no relay has it; one never was" \
        in relay.log()
    relay = cell.relay(*cell.to(route="ordrs"), "--drain")
    assert relay.wait() == 0, relay.log()
    cell.db.emit([("later", None, "1")], route="ordrs")
    relay = cell.relay(*cell.to(), "--drain")  # it had one, and may again
    assert relay.wait() == 0, relay.log()


@BOTH
def test_rows_that_no_relay_has_are_named(request, tmp_path, kind):
    cell = make_cell(request, tmp_path, kind)
    for route in ("ordrs", "busy"):
        cell.db.emit(messages(3), route=route)
    cell.db.sql("UPDATE %s SET at_ms = at_ms - 61000" % cell.db.table)
    cell.db.emit(messages(1, prefix="new"), route="new")
    other = cell.relay("--to", "busy=redis://127.0.0.1:1/?stream=s", *SHORT)
    # It says in the database that it is there, and then looks for the others.
    eventually(lambda: "route ordrs: 3 rows wait" in other.log(), "it is there")
    relay = cell.relay(*cell.to())
    eventually(lambda: "route ordrs: 3 rows wait" in relay.log(), "it is said")
    eventually(lambda: relay.metrics()["once_relay_rows_unattended"]
               == {"r": 0, "ordrs": 3}, "it is counted")
    assert "route busy: 3" not in relay.log()
    assert "route new" not in relay.log()
    assert relay.metrics()["once_relay_rows_ready"] == {"r": 0}
    assert relay.log().count("ordrs") <= 2  # each relay says it once


# A hundred thousand numbers of transactions.
BURN = """CREATE TEMP TABLE burnt (n integer); DO $$ BEGIN
    FOR i IN 1..100000 LOOP
        BEGIN INSERT INTO burnt VALUES (i); EXCEPTION WHEN OTHERS THEN NULL; END;
    END LOOP; END $$"""


def test_no_role_keeps_a_route_waiting(pg_redis):
    """The lock of a route was an advisory one, which everybody may take."""
    cell = pg_redis
    server, role = cell.db.server, "idler%d" % next(_numbers)
    cell.db.emit(messages(3))
    server.sql("CREATE ROLE %s LOGIN" % role)
    cell.db.sql("GRANT USAGE ON SCHEMA once TO %s;"
                "GRANT EXECUTE ON FUNCTION once.emit_bytes TO %s" % (role, role))
    with contextlib.closing(psycopg2.connect(
            host=server.address, port=server.port, user=role,
            dbname=cell.db.name)) as idler, idler.cursor() as cursor:
        cursor.execute("SELECT pg_advisory_lock(1869505382, hashtext('r')),"
                       " once.emit('r', 'x', p_key => 'k')")
        for n in range(16):
            cursor.execute("SAVEPOINT s")
            with pytest.raises(psycopg2.errors.InsufficientPrivilege):
                cursor.execute("LOCK once.route_lock_%d IN ACCESS SHARE MODE" % n)
            cursor.execute("ROLLBACK TO s")
        relay = cell.relay(*cell.to(), "--drain")
        assert relay.wait() == 0, relay.log()


def test_a_snapshot_that_is_held_is_told(pg_redis):
    """Claims read past what it keeps, and became slower without a word."""
    cell = pg_redis
    server = cell.db.server
    with contextlib.closing(psycopg2.connect(
            host=server.address, port=server.port, user="postgres",
            dbname=cell.db.name)) as held:
        held.set_session(isolation_level="REPEATABLE READ", readonly=True)
        held.cursor().execute("SELECT 1 FROM once.message_meta")
        cell.db.sql(BURN)
        relay = cell.relay(*cell.to())
        eventually(lambda: "a snapshot of 1000" in relay.log(), "it is said")
        eventually(lambda: relay.metrics()["once_relay_snapshot_transactions"]
                   [""] >= 100000, "it is shown")
    relay.stop()
    relay = cell.relay(*cell.to())
    eventually(lambda: 0 <= relay.metrics()["once_relay_snapshot_transactions"]
               [""] < 1000, "it is over")


def test_nothing_secret_is_printed(pg_redis):
    cell = pg_redis
    secret = "tell-nobody"
    cell.db.emit([(secret + "-id", secret + "-key", "1"),
                  (secret + "-bad", secret + "-key", "2")])
    url = cell.folder / "url"
    url.write_text(cell.target.url.replace("redis://", "redis://u:%s@" % secret)
                   + "\n")
    url.chmod(0o600)
    relay = cell.relay("--to", "r=@%s" % url, *SHORT)
    eventually(lambda: "the target is away" in relay.log(), "it is refused")
    assert relay.stop() == 0
    assert secret not in relay.log()
    assert secret not in relay.metrics_path.read_text()
    url.write_text(cell.target.url + "\n")
    relay = cell.relay("--to", "r=@%s" % url, *SHORT, "--drain")
    assert relay.wait() == 0
    assert secret not in relay.log()
    assert secret not in relay.metrics_path.read_text()


def test_a_password_in_the_command_line_is_warned_of(lite_exec):
    done = once("messages", "relay", "--database", lite_exec.db.url, "--to",
                "r=redis://u:tell-nobody@127.0.0.1:1/?stream=s", "--drain")
    assert "say @FILE" in done.stderr
    assert "tell-nobody" not in done.stderr


@pytest.mark.parametrize("words, status, text", [
    ([], 2, "--to ROUTE=TARGET"),
    (["--to", "r"], 2, "ROUTE=TARGET"),
    (["--to", "=exec:true"], 2, "ROUTE=TARGET"),
    (["--hold"], 2, "after its --to"),
    (["--to", "r=nothing:x"], 2, "no target of this kind"),
    (["--to", "r=exec:true", "--to", "r=exec:true"], 2, "twice"),
    (["--to", "r=exec:true", "--batch", "2"], 2, "is 1"),
    (["--to", "r=exec:true", "--hold", "--no-hold"], 2, "not both"),
    (["--to", "r=exec:true", "--workers", "0"], 2, "from 1 to 256"),
    (["--to", "r=exec:true", "--lease", "10s"], 2, "30000"),
    (["--to", "r=exec:true", "--metrics", "/nonexistent/x"], 2, "metrics"),
    (["--to", "r=@/nonexistent/x"], 3, "cannot be opened"),
    (["--to", "r=exec:true", "more"], 2, "quote"),
])
def test_what_cannot_be_is_said(lite_exec, words, status, text):
    done = once("messages", "relay", "--database", lite_exec.db.url, "--drain", *words,
                check=False)
    assert done.returncode == status, done.stderr
    assert text in done.stderr


def test_a_database_that_will_not_do_is_status_3(tmp_path):
    for url in ("sqlite:%s/none.db" % tmp_path,
                "postgres://once@127.0.0.1:1/once"):
        done = once("messages", "relay", "--database", url, "--drain", "--to", "r=exec:true",
                    "--timeout", "1s", "--lease", "3s", check=False)
        assert done.returncode == 3, done.stderr


def test_the_unit_is_understood_by_systemd(tmp_path):
    analyze = shutil.which("systemd-analyze")
    if analyze is None:
        pytest.skip("systemd is not installed")
    text = (BUILD / "systemd/once-relay@.service").read_text()
    text = re.sub("^ExecStart=[^ ]*", "ExecStart=%s" % ONCE, text, flags=re.M)
    text = re.sub("^Documentation=.*\n", "", text, flags=re.M)  # not installed
    unit = tmp_path / "once-relay@.service"
    unit.write_text(text)
    done = subprocess.run(
        [analyze, "verify", str(unit).replace("@", "@shop")], text=True,
        capture_output=True, timeout=PATIENCE, check=False)
    assert (done.returncode, done.stderr) == (0, "")


# ---- once messages emit -----------------------------------------------------------


@pytest.fixture(params=["sqlite", "postgres", "mysql"])
def db(request, tmp_path):
    return make_cell(request, tmp_path, request.param + "-exec").db


def emit(db, *words, body="x", check=True):
    return once("messages", "emit", "--database", db.url, "--route", "r", *words, stdin=body,
                check=check)


def test_emit_prints_the_id(db):
    printed = emit(db).stdout.strip()
    assert printed.count("-") == 4
    assert column(db, "id") == [printed]


def test_emit_again_with_one_id_writes_nothing(db):
    assert emit(db, "--id", "i/1").stdout == "i/1\n"
    again = emit(db, "--id", "i/1")
    assert again.stdout == "i/1\n"
    assert "before" in again.stderr
    other = emit(db, "--id", "i/1", body="y", check=False)
    assert (other.returncode, other.stdout) == (1, "")
    assert "another body" in other.stderr
    assert column(db, "id") == ["i/1"]


def test_emit_takes_all_of_a_message(db):
    emit(db, "--message-key", "k", "--type", "text/plain", "--header", "A: 1",
         "--header", "B: 2", "--keep-row", "--at", "2100-01-01T00:00:00Z")
    assert column(db, "key") == ["k"]
    assert column(db, "type") == ["text/plain"]
    assert column(db, "replace(headers, chr(10), ';')"
                  if isinstance(db, Pg) else
                  "replace(headers, char(10), ';')") == ["A: 1;B: 2;"]
    assert column(db, "due_ms") == ["4102444800000"]
    assert column(db, "phase") == ["1"]


@pytest.mark.parametrize("words, text", [
    (["--header", "none"], "Name: value"),
    (["--at", "tomorrow"], "UTC"),
    (["--id", "a b"], "id"),
    (["more"], "stdin"),
])
def test_emit_says_what_is_wrong(tmp_path, words, text):
    done = emit(Lite(tmp_path), *words, check=False)
    assert done.returncode == 2, done.stderr
    assert text in done.stderr
