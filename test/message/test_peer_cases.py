# SPDX-License-Identifier: Apache-2.0
"""test_peer_cases.py - what other inboxes, outboxes, queues and sagas got wrong,
run against ours: real databases, brokers and processes. docs/messages-cases.md
names for each test the case, and where it was described.

carry.py has databases, targets and relays, test_consume.py consumers."""
import contextlib
import itertools
import os
import shutil
import signal
import sqlite3
import subprocess
import threading
import time

import pika
import psycopg2
import psycopg2.extensions
import pytest

from carry import (DEAD, INDETERMINATE, ONCE, PATIENCE, READY, WAITING,
                   Commands, Lite, Pg, Queue, Relay, Stream, column,
                   eventually, messages, once, phases)

import servers

PARKED_WAITING, PARKED_DEAD, PARKED_INDETERMINATE = 1, 3, 4
SHORT = ["--timeout", "1s"]
_numbers = itertools.count(1)


@pytest.fixture(scope="module")
def world():
    with servers.World() as w:
        yield w


@pytest.fixture(scope="module")
def postgres(world):
    try:
        server = servers.Postgres(world).init()
    except servers.Missing as missing:
        pytest.skip(str(missing))
    server.start()
    return server.furnish()


@pytest.fixture(scope="module")
def redis(world):
    try:
        return servers.Redis(world).start()
    except servers.Missing as missing:
        pytest.skip(str(missing))


@pytest.fixture(scope="module")
def amqp(world):
    """Unacknowledged deliveries are taken back after two seconds, and a message
    has at most 100,000 bytes."""
    try:
        return servers.RabbitMQ(
            world, consumer_timeout="2000", channel_tick_interval="500",
            max_message_size="100000").start()
    except servers.Missing as missing:
        pytest.skip(str(missing))


@pytest.fixture
def pg(postgres):
    return Pg(postgres, "t%d" % next(_numbers))


@contextlib.contextmanager
def session(db, user="once", isolation=None):
    """One connection, without statements of psycopg2's own."""
    server = db.server
    conn = psycopg2.connect(host=server.address, port=server.port, user=user,
                            dbname=db.name)
    conn.autocommit = True
    with contextlib.closing(conn), conn.cursor() as cursor:
        if isolation:
            cursor.execute("SET default_transaction_isolation = '%s'"
                           % isolation)
        yield lambda text, *values: ask(cursor, text, values)


def ask(cursor, text, values):
    cursor.execute(text, values or None)
    return cursor.fetchall() if cursor.description else []


def one(rows):
    assert len(rows) == 1 and len(rows[0]) == 1
    return rows[0][0]


def error_of(call, *words):
    with pytest.raises(psycopg2.Error) as caught:
        call(*words)
    return caught.value.pgcode


CLAIM = "SELECT once.inbox_claim('billing', %s, sha256(%s::bytea))"


def copy_of(db, name, body=b"x"):
    """What a copy that arrives now is told."""
    with session(db) as sql:
        sql("BEGIN")
        answer = one(sql(CLAIM, name, body))
        sql("ROLLBACK")
        return answer


# ---- Inbox ------------------------------------------------------------------


def test_a_claim_that_meets_another_does_not_break_the_transaction(pg):
    """A plain INSERT would fail with a duplicate key, and take along whatever
    else the transaction wants to do."""
    with session(pg) as sql:
        sql("BEGIN")
        assert one(sql(CLAIM, "a", b"x")) == "run"
        sql("COMMIT")
        sql("BEGIN")
        assert one(sql(CLAIM, "a", b"x")) == "done"
        assert one(sql("SELECT 1")) == 1
        sql("ROLLBACK")


@pytest.mark.parametrize("level", ["repeatable read", "serializable"])
def test_a_copy_under_an_old_snapshot_is_told_to_begin_anew(pg, level):
    with session(pg, isolation=level) as early, session(pg) as sql:
        early("BEGIN")
        early("SELECT 1")
        early("SELECT count(*) FROM pg_class")  # here its snapshot is taken
        sql("BEGIN")
        assert one(sql(CLAIM, "a", b"x")) == "run"
        sql("COMMIT")
        assert error_of(early, CLAIM, "a", b"x") == "40001"
        early("ROLLBACK")
        early("BEGIN")
        assert one(early(CLAIM, "a", b"x")) == "done"
        early("ROLLBACK")


def test_one_name_is_one_consumer(pg):
    """Each consumer has the effect; two programs of one name have it once."""
    with session(pg) as sql:
        answers = []
        for consumer in ("billing", "shipping", "billing"):
            sql("BEGIN")
            answers.append(one(sql(
                "SELECT once.inbox_claim(%s, 'a', NULL)", consumer)))
            sql("COMMIT")
        assert answers == ["run", "run", "done"]


def park(sql, name, state=PARKED_DEAD, body=b"x", key=None):
    sql("BEGIN")
    answer = one(sql(
        "SELECT once.inbox_park('billing', %s, sha256(%s::bytea), %s, 0, %s, '',"
        " '', %s, 'why')", name, body, state, key, body))
    sql("COMMIT")
    return answer


def decide(pg, action, where="true"):
    """What `once parked` does."""
    return [row[0] for row in pg.sql(
        "SELECT once.parked_decide_1(no, state, attempts, %d, 'why')"
        " FROM once.parked WHERE %s" % (action, where))]


def age(pg):
    """All that is remembered is ten days older."""
    pg.sql("UPDATE once.inbox SET at_ms = at_ms - 864000000")


def test_a_dead_letter_that_is_retried_after_the_window_runs_once(pg):
    with session(pg) as sql:
        assert park(sql, "a") == "parked"
    age(pg)
    once("--store", pg.url, "messages", "purge")
    assert copy_of(pg, "a") == "done"
    assert decide(pg, 0) == ["ok"]
    with session(pg) as sql:
        sql("BEGIN")
        assert one(sql("SELECT attempts FROM once.parked_take_1("
                       "'billing', 60000, false)")) == 1
        assert one(sql("SELECT once.inbox_claim('billing', 'a', NULL, 1)")) \
            == "run"
        sql("COMMIT")
    once("--store", pg.url, "messages", "purge")
    assert copy_of(pg, "a") == "done"  # the window counts from the effect


def test_a_dead_letter_that_was_dropped_stays_answered_for(pg):
    with session(pg) as sql:
        park(sql, "a")
    age(pg)
    assert decide(pg, 1) == ["ok"]
    once("--store", pg.url, "messages", "purge")
    assert copy_of(pg, "a") == "done"


def test_an_id_without_a_time_is_new_after_the_window_and_one_with_it_is_not(
        pg):
    old = "01890000-0000-7000-8000-000000000000"  # July 2023
    with session(pg) as sql:
        sql("BEGIN")
        assert one(sql(CLAIM, "a", b"x")) == "run"
        sql("COMMIT")
    age(pg)
    once("--store", pg.url, "messages", "purge")
    assert copy_of(pg, "a") == "run"
    assert copy_of(pg, old) == "outside"


# ---- What a copy of the database has lost ------------------------------------


def behind(pg, table):
    """Sequences stand still in a logical replica: its rows are there, and the
    next number is taken, or is too small."""
    pg.sql("ALTER TABLE once.%s ALTER %s RESTART"
           % (table, {"outbox": "seq", "parked": "no"}[table]))


def test_a_sequence_that_was_left_behind_loses_no_message(pg):
    """It is an error, until `once messages init` has set it right."""
    pg.emit([("a", None, "1"), ("b", None, "2"), ("c", None, "3")])
    behind(pg, "outbox")
    with session(pg) as sql:
        for name in (None, "d"):
            assert error_of(sql, "SELECT once.emit('r', 'x', p_id => %s)",
                            name) == "23505"
    done = once("emit", "--store", pg.url, "--route", "r", stdin="x",
                check=False)
    assert done.returncode == 3 and "once messages init" in done.stderr
    behind(pg, "outbox")
    pg.sql("DELETE FROM once.outbox WHERE id = 'a'")  # the next one is free
    once("--store", pg.url, "messages", "init")
    pg.emit([("d", None, "4")])
    assert column(pg, "id") == ["b", "c", "d"]


def test_a_sequence_that_was_left_behind_loses_no_parked_message(pg):
    with session(pg) as sql:
        park(sql, "a")
        behind(pg, "parked")
        assert error_of(park, sql, "b") == "23505"
        sql("ROLLBACK")
        assert pg.sql("SELECT id FROM once.inbox") == [("a",)]
        behind(pg, "parked")
        once("--store", pg.url, "messages", "init")
        assert park(sql, "b") == "parked"


def test_a_database_that_was_restored_goes_on(pg, postgres, tmp_path):
    """Dumped with rows to be sent and ids that are done, into another
    database: nothing depends on numbers of the old server's transactions."""
    pg.emit([("a", "k", "1"), ("b", "k", "2")])
    with session(pg) as sql:
        sql("BEGIN")
        sql(CLAIM, "done", b"x")
        sql("COMMIT")
        park(sql, "parked", PARKED_WAITING)
    name = "t%d" % next(_numbers)
    postgres.sql("CREATE DATABASE %s OWNER once" % name)
    here = ["-h", postgres.folder, "-p", str(postgres.port), "-U", "postgres"]
    dump = subprocess.run([servers.find("pg_dump"), *here, "-Fc", pg.name],
                          check=True, capture_output=True)
    subprocess.run([servers.find("pg_restore"), *here, "-e", "-d", name],
                   input=dump.stdout, check=True)
    restored = Pg.__new__(Pg)
    restored.server, restored.name = postgres, name
    restored.url = postgres.url()[:-len("once")] + name
    restored.table = "once.outbox"
    once("--store", restored.url, "messages", "check")
    assert copy_of(restored, "done") == "done"
    assert copy_of(restored, "parked") == "done"
    restored.emit([("c", "k", "3")])
    target = Commands(tmp_path)
    relay = Relay(tmp_path, restored, "--to", "r=" + target.url, "--no-hold",
                  *SHORT, "--drain")
    assert relay.wait() == 0, relay.log()
    assert [a[0] for a in target.arrivals()] == ["a", "b", "c"]


# ---- Emitting -----------------------------------------------------------------


def test_a_row_that_commits_late_is_not_passed_over(pg, tmp_path):
    """The earlier number is committed after the later one was sent."""
    target = Commands(tmp_path)
    with session(pg) as early, session(pg) as late:
        early("BEGIN")
        early("SELECT once.emit('r', 'x', p_id => 'early')")
        late("SELECT once.emit('r', 'x', p_id => 'late')")
        relay = Relay(tmp_path, pg, "--to", "r=" + target.url, "--no-hold",
                      *SHORT)
        eventually(lambda: [a[0] for a in target.arrivals()] == ["late"],
                   "the later one is sent", PATIENCE)
        early("COMMIT")
    eventually(lambda: [a[0] for a in target.arrivals()] == ["late", "early"],
               "the earlier one is sent", PATIENCE)
    assert relay.stop() == 0


def test_nothing_leaves_before_its_transaction_has_committed(pg, tmp_path):
    """However long that takes, and not at all when it rolls back."""
    target = Commands(tmp_path)
    relay = Relay(tmp_path, pg, "--to", "r=" + target.url, "--no-hold", *SHORT)
    with session(pg) as sql:
        sql("BEGIN")
        sql("SELECT once.emit('r', 'x', p_id => 'a')")
        time.sleep(4)  # longer than a lease
        assert target.arrivals() == []
        sql("ROLLBACK")
        sql("BEGIN")
        sql("SAVEPOINT s")
        sql("SELECT once.emit('r', 'x', p_id => 'b')")
        sql("ROLLBACK TO s")
        sql("SELECT once.emit('r', 'x', p_id => 'c')")
        sql("COMMIT")
    eventually(lambda: len(target.arrivals()) == 1, "one is sent", PATIENCE)
    assert relay.stop() == 0
    assert [a[0] for a in target.arrivals()] == ["c"]
    assert pg.sql("SELECT id FROM once.outbox WHERE id IN ('a', 'b')") == []


def test_two_that_emit_one_id_at_the_same_time_emit_it_once(pg):
    emit = "SELECT once.emit('r', 'x', p_id => 'a')"
    with session(pg) as first, session(pg) as second:
        answers = []
        for end in ("ROLLBACK", "COMMIT"):
            first("BEGIN")
            assert one(first(emit)) == "a"
            thread = threading.Thread(
                target=lambda: answers.append(one(second(emit))))
            second("BEGIN")
            thread.start()
            time.sleep(0.3)
            first(end)
            thread.join(PATIENCE)
            second("ROLLBACK")
        assert answers == ["a", None]
    assert column(pg, "id") == ["a"]


def test_one_id_to_two_routes_is_two_messages(pg):
    with session(pg) as sql:
        assert [one(sql("SELECT once.emit(%s, 'x', p_id => 'a')", route))
                for route in ("r", "s", "r")] == ["a", "a", None]


# ---- Branches ------------------------------------------------------------------


def test_cancels_at_the_same_time_do_not_block_each_other(pg):
    """Both before any Try; the Try that was delayed comes last."""
    enter = "SELECT once.barrier_enter('g', 'b', %s)"
    answers = []

    def cancel():
        with session(pg) as sql:
            sql("BEGIN")
            answers.append(one(sql(enter, "cancel")))
            time.sleep(0.2)
            sql("COMMIT")
    threads = [threading.Thread(target=cancel) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
    assert sorted(answers) == ["done"] * 7 + ["empty"]
    with session(pg) as sql:
        assert one(sql(enter, "try")) == "refused"


def test_a_cancel_that_comes_while_its_try_is_under_way_waits_for_it(pg):
    """And undoes it, where a look at committed rows would have seen none."""
    enter = "SELECT once.barrier_enter('g', 'b', %s)"
    answers = []
    with session(pg) as first, session(pg) as second:
        first("BEGIN")
        assert one(first(enter, "try")) == "run"
        second("BEGIN")
        thread = threading.Thread(
            target=lambda: answers.append(one(second(enter, "cancel"))))
        thread.start()
        time.sleep(0.3)
        assert answers == []
        first("COMMIT")
        thread.join(PATIENCE)
        second("COMMIT")
        assert answers == ["run"]
        assert one(first(enter, "try")) == "refused"


def test_a_cancel_whose_answer_was_lost_is_repeated_without_effect(pg):
    enter = "SELECT once.barrier_enter('g', %s, %s)"
    with session(pg) as sql:
        assert [one(sql(enter, "b", op)) for op in (
            "try", "cancel", "cancel", "cancel")] == [
                "run", "run", "done", "done"]
        assert [one(sql(enter, "c", op)) for op in (
            "try", "confirm", "confirm", "cancel")] == [
                "run", "run", "done", "conflict"]
