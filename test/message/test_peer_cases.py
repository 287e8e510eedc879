# SPDX-License-Identifier: Apache-2.0
"""test_peer_cases.py - what other inboxes, outboxes, queues and sagas got wrong,
run against ours: real databases, brokers and processes. docs/messages-cases.md
names for each test the case, and where it was described.

carry.py has databases, targets and relays, test_consume.py consumers."""
import contextlib
import http.server
import itertools
import json
import os
import shutil
import signal
import socket
import sqlite3
import subprocess
import threading
import time

import pika
import psycopg2
import psycopg2.extensions
import pytest

from carry import (DEAD, INDETERMINATE, ONCE, READY, WAITING, Commands, Lite,
                   Pg, Program, Queue, Relay, Stream, column, eventually, marked, messages,
                   once, phases)

import servers

PARKED_WAITING, PARKED_DEAD = 1, 3
PATIENCE = 40
SHORT = ["--timeout", "1s"]
_numbers = itertools.count(1)


@pytest.fixture(scope="module")
def amqp_settings():
    """Unacknowledged deliveries are taken back after two seconds, and a message
    has at most 50,000 bytes."""
    return {"consumer_timeout": "2000", "channel_tick_interval": "500",
            "max_message_size": "50000"}


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
    """What calls a function of ours gets a transaction, if none is open."""
    state = cursor.connection.get_transaction_status()
    alone = "once." in text and state == psycopg2.extensions.\
        TRANSACTION_STATUS_IDLE
    if alone:
        cursor.execute("BEGIN")
    try:
        cursor.execute(text, values or None)
        found = cursor.fetchall() if cursor.description else []
        if alone:
            cursor.execute("COMMIT")
    except psycopg2.Error:
        if alone:
            cursor.execute("ROLLBACK")
        raise
    return found


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
    """What `once messages parked` does."""
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
    once("--database", pg.url, "messages", "purge")
    assert copy_of(pg, "a") == "done"
    assert decide(pg, 0) == ["ok"]
    with session(pg) as sql:
        sql("BEGIN")
        assert one(sql("SELECT attempts FROM once.parked_take_1("
                       "'billing', 60000, false)")) == 1
        assert one(sql("SELECT once.inbox_claim('billing', 'a', NULL, 1)")) \
            == "run"
        sql("COMMIT")
    once("--database", pg.url, "messages", "purge")
    assert copy_of(pg, "a") == "done"  # the window counts from the effect


def test_a_dead_letter_that_was_dropped_stays_answered_for(pg):
    with session(pg) as sql:
        park(sql, "a")
    age(pg)
    assert decide(pg, 1) == ["ok"]
    once("--database", pg.url, "messages", "purge")
    assert copy_of(pg, "a") == "done"


def test_an_id_without_a_time_is_new_after_the_window_and_one_with_it_is_not(
        pg):
    old = "01890000-0000-7000-8000-000000000000"  # July 2023
    with session(pg) as sql:
        sql("BEGIN")
        assert one(sql(CLAIM, "a", b"x")) == "run"
        sql("COMMIT")
    age(pg)
    once("--database", pg.url, "messages", "purge")
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
    done = once("messages", "emit", "--database", pg.url, "--route", "r", stdin="x",
                check=False)
    assert done.returncode == 3 and "once messages init" in done.stderr
    behind(pg, "outbox")
    pg.sql("DELETE FROM once.outbox WHERE id = 'a'")  # the next one is free
    once("--database", pg.url, "messages", "init")
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
        once("--database", pg.url, "messages", "init")
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
    once("--database", restored.url, "messages", "check")
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


# ---- The relay ------------------------------------------------------------------


@pytest.fixture
def relays(tmp_path):
    """Starts relays; they end with the test."""
    started = []

    def start(db, *words, **options):
        started.append(Relay(tmp_path, db, *words,
                             name="relay%d" % len(started), **options))
        return started[-1]
    yield start
    for relay in started:
        if relay.process.poll() is None:
            relay.send(signal.SIGCONT)
            relay.kill()


@pytest.fixture
def target(tmp_path):
    return Commands(tmp_path)


def to(target, *more, route="r"):
    return ["--to", "%s=%s" % (route, target.url), *target.more, *SHORT, *more]


def sent(target):
    return [a[0] for a in target.arrivals()]


@contextlib.contextmanager
def clock_ahead(world, monkeypatch, name, ms):
    """What is started here lives in the future, or in the past."""
    class Someone:
        environment = {}
    Someone.name = name
    world.clock(Someone)
    world.step(name, ms)
    with monkeypatch.context() as m:
        for pair in Someone.environment.items():
            m.setenv(pair[0], str(pair[1]))
        yield


def test_a_host_whose_clock_is_ahead_sends_nothing_early_or_twice(
        world, monkeypatch, pg, relays, target):
    pg.apart("SELECT once.emit('r', 'x', p_id => 'later',"
           " p_at => now() + interval '30 minutes')")
    target.slow(1)
    right = relays(pg, *to(target, "--timeout", "5s"), "--lease", "15s",
                   short=False)
    with clock_ahead(world, monkeypatch, "ahead", 3600 * 1000):
        wrong = relays(pg, *to(target, "--timeout", "5s"), "--lease", "15s",
                       short=False)
    pg.emit(messages(6))
    eventually(lambda: phases(pg) == {WAITING: 1}, "all but one", PATIENCE)
    assert right.stop() == 0 and wrong.stop() == 0
    assert sorted(target.begun()) == ["m%d" % i for i in range(6)]


def test_a_pooler_between_takes_nothing_away(world, postgres, pg, relays,
                                             target):
    """Nothing depends on one connection: no lock of a session, no prepared
    statement, no setting; a NOTIFY that does not come is made up for."""
    try:
        pooler = servers.PgBouncer(world, postgres,
                                   "pgbouncer%d" % next(_numbers)).start()
    except servers.Missing as missing:
        pytest.skip(str(missing))
    pg.url = pooler.url()[:-len("once")] + pg.name
    pair = [relays(pg, *to(target)) for _ in range(2)]
    pg.emit(messages(30, keys=3))
    eventually(lambda: phases(pg) == {}, "all are sent", PATIENCE)
    time.sleep(2.5)  # they sleep now
    once("messages", "emit", "--database", pg.url, "--route", "r", "--id", "last", stdin="9")
    eventually(lambda: sent(target)[-1] == "last", "it wakes", PATIENCE)
    assert [relay.stop() for relay in pair] == [0, 0], pair[0].log()
    assert len(sent(target)) == len(set(sent(target))) == 31
    once("--database", pg.url, "messages", "purge")
    assert pg.server.sql("SELECT count(*) FROM pg_locks WHERE locktype ="
                         " 'advisory'") == "0"


def test_a_connection_that_was_lost_while_asleep_is_made_again(
        postgres, pg, relays, target):
    relay = relays(pg, *to(target))
    pg.emit([("a", None, "1")])
    eventually(lambda: sent(target) == ["a"], "one is sent", PATIENCE)
    time.sleep(2.5)  # it sleeps, and listens
    for name in "bc":
        postgres.sql("SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                     " WHERE datname = '%s'" % pg.name)
        pg.emit([(name, None, "1")])
        eventually(lambda n=name: sent(target)[-1] == n, "the next is sent",
                   PATIENCE)
        time.sleep(2.5)
    assert relay.stop() == 0
    assert sent(target) == ["a", "b", "c"]


def test_a_role_without_rights_is_told_which(postgres, pg, relays, target):
    role = "poor%d" % next(_numbers)
    postgres.sql("CREATE ROLE %s LOGIN" % role)
    pg.emit([("a", None, "1")])
    url, pg.url = pg.url, pg.url.replace("once@", role + "@")
    relay = relays(pg, *to(target), "--drain")
    assert relay.wait() == 3
    assert "EXECUTE on functions" in relay.log()
    pg.sql("GRANT USAGE ON SCHEMA once TO %s;"
           "GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA once TO %s" % (role, role))
    relay = relays(pg, *to(target))
    eventually(lambda: sent(target) == ["a"], "with them it works", PATIENCE)
    pg.sql("REVOKE EXECUTE ON ALL FUNCTIONS IN SCHEMA once FROM " + role)
    pg.emit([("b", None, "1")])
    eventually(lambda: "EXECUTE on functions" in relay.log(), "it says so",
               PATIENCE)
    time.sleep(3)
    assert relay.log().count("\n") < 10
    pg.sql("GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA once TO " + role)
    eventually(lambda: sent(target) == ["a", "b"], "and again", PATIENCE)
    assert relay.stop() == 0
    pg.url = url


def test_a_role_that_commits_asynchronously_is_refused(postgres, pg, relays,
                                                       target):
    role = "hasty%d" % next(_numbers)
    postgres.sql("CREATE ROLE %s LOGIN IN ROLE once" % role)
    postgres.sql("ALTER ROLE %s SET synchronous_commit = off" % role)
    pg.url = pg.url.replace("once@", role + "@")
    relay = relays(pg, *to(target), "--drain")
    assert relay.wait() == 3
    assert "synchronous_commit" in relay.log()
    with session(pg, role) as sql:
        assert error_of(sql, "SELECT once.emit('r', 'x')") == "ON001"
        assert error_of(sql, CLAIM, "a", b"x") == "ON001"


def test_a_standby_is_waited_for_without_a_flood_of_errors(
        world, tmp_path, relays, target):
    """It may become the primary; until then nothing can be claimed there."""
    primary = servers.Postgres(world, "primary").init()
    primary.start()
    primary.furnish()
    db = Pg(primary, "shop")
    standby = servers.Postgres(world, "standby").clone(primary).start()
    primary.follow_by("standby")
    db.emit([("a", None, "1")])
    db.url = "postgres://once@%s:%d/shop" % (standby.address, standby.port)
    relay = relays(db, *to(target))
    time.sleep(4)
    assert relay.process.poll() is None, relay.log()
    assert 1 <= relay.log().count("\n") < 5
    assert target.begun() == []
    primary.kill()
    standby.promote()
    db.server = standby
    eventually(lambda: phases(db) == {}, "it is sent", PATIENCE)
    assert relay.stop() == 0
    assert sent(target) == ["a"]
    standby.quit()


def test_a_refused_password_costs_nothing_and_may_be_set_right(
        redis, tmp_path, relays):
    db, stream = Lite(tmp_path), Stream(redis, "s%d" % next(_numbers))
    user = "u%d" % next(_numbers)
    url = tmp_path / "url"
    url.write_text(stream.url.replace("redis://", "redis://%s:right@" % user))
    url.chmod(0o600)
    redis.ask("ACL", "SETUSER", user, "on", ">wrong", "~*", "+@all")
    db.emit(messages(3))
    relay = relays(db, "--to", "r=@%s" % url, *SHORT)
    eventually(lambda: "the target is away" in relay.log(), "it is refused")
    assert set(column(db, "attempts")) == {"0"}
    redis.ask("ACL", "SETUSER", user, ">right")
    eventually(lambda: phases(db) == {}, "all are sent", PATIENCE)
    assert relay.stop() == 0
    assert sent(stream) == ["m0", "m1", "m2"]


def test_a_message_that_is_too_large_stops_its_key_and_nothing_else(
        amqp, pg, relays):
    """The broker closes the channel, with all that was on its way: if that was
    another message as well, nobody knows of that attempt what was taken."""
    queue = Queue(amqp, "q%d" % next(_numbers))
    pg.emit([("big", "k", "x" * 60000), ("after", "k", "1")] +
            messages(20, keys=3) + [("end", None, "1")])
    relay = relays(pg, *to(queue, "--attempts", "3"), "--drain")
    assert relay.wait() == 1, relay.log()
    doubt = str(column(pg, "doubt")[0]) != "0"
    assert phases(pg) == {READY: 1, INDETERMINATE if doubt else DEAD: 1}
    assert "route r: row 1 is %s" % (
        "indeterminate" if doubt else "dead") in relay.log()
    relay = relays(pg, *to(queue, "--pass"), "--drain")
    assert relay.wait() == 1, relay.log()
    assert set(sent(queue)) == {"m%d" % i for i in range(20)} | {"end",
                                                                 "after"}


def test_one_that_holds_does_not_send_what_another_may_have_sent(
        tmp_path, relays, target):
    """Two relays of one route, of which only one believes in ids."""
    db = Lite(tmp_path)
    db.emit([("a", None, "1")])
    target.slow(60)
    relay = relays(db, *to(target, "--timeout", "1s"))
    eventually(lambda: target.begun() == ["a"], "it is under way")
    relay.kill()
    target.fast()
    words = to(target)
    words[words.index("--no-hold")] = "--hold"
    assert relays(db, *words, "--drain").wait() == 1
    assert phases(db) == {INDETERMINATE: 1}
    assert target.begun() == ["a"]


def test_a_second_sigterm_changes_nothing(tmp_path, relays, target):
    db = Lite(tmp_path)
    db.emit(messages(5))
    target.slow(2)
    relay = relays(db, *to(target, "--timeout", "10s"), "--lease", "30s",
                   short=False)
    eventually(target.begun, "one is under way")
    relay.send(signal.SIGTERM)
    time.sleep(0.3)
    relay.send(signal.SIGTERM)
    relay.send(signal.SIGINT)
    assert relay.wait() == 0
    assert len(target.begun()) == len(sent(target)) == 1
    assert phases(db) == {READY: 4}
    assert set(column(db, "doubt", "phase = 0")) == {"0"}


def test_a_drain_waits_for_what_is_due_later(tmp_path, relays, target):
    db = Lite(tmp_path)
    once("messages", "emit", "--database", db.url, "--route", "r", "--id", "a", "--at",
         time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() + 4)),
         stdin="1")
    assert phases(db) == {WAITING: 1}
    assert relays(db, *to(target), "--drain").wait() == 0
    assert sent(target) == ["a"]


# ---- SQLite ---------------------------------------------------------------------


def test_a_long_transaction_of_the_program_is_waited_for(tmp_path, relays,
                                                         target):
    """Longer than any busy time-out of ours."""
    db = Lite(tmp_path)
    db.emit(messages(3))
    with contextlib.closing(sqlite3.connect(db.path)) as held:
        held.isolation_level = None
        held.execute("BEGIN IMMEDIATE")
        held.execute("CREATE TABLE mine(x)")
        relay = relays(db, *to(target))
        time.sleep(13)
        assert relay.process.poll() is None
        held.execute("COMMIT")
    eventually(lambda: phases(db) == {}, "all are sent", PATIENCE)
    assert relay.stop() == 0
    assert sent(target) == ["m0", "m1", "m2"]


def test_a_file_with_a_rollback_journal_works(tmp_path, relays, target):
    db = Lite(tmp_path)
    db.sql("PRAGMA journal_mode = DELETE")
    pair = [relays(db, *to(target)) for _ in range(2)]
    for i in range(10):
        db.emit([("m%d" % i, "k", str(i))])
    eventually(lambda: phases(db) == {}, "all are sent", PATIENCE)
    assert [relay.stop() for relay in pair] == [0, 0]
    assert sent(target) == ["m%d" % i for i in range(10)]


def test_a_full_disk_loses_nothing(tmp_path, relays, target):
    disk = tmp_path / "disk"
    disk.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", disk],
                      check=False, capture_output=True).returncode != 0:
        pytest.skip("nothing can be mounted here")
    try:
        db = Lite(disk)
        db.emit(messages(20))
        ballast = disk / "ballast"
        with contextlib.suppress(OSError), open(ballast, "wb", 0) as f:
            while True:
                f.write(b"x" * 4096)
        relay = relays(db, *to(target))
        refused = once("messages", "emit", "--database", db.url, "--route", "r",
                       stdin="x" * 100000, check=False)
        assert refused.returncode == 3, refused.stderr
        time.sleep(3)
        assert relay.process.poll() is None, relay.log()
        assert relay.log().count("\n") < 10
        ballast.unlink()
        eventually(lambda: phases(db) == {}, "all are sent", PATIENCE)
        assert relay.stop() == 0
        assert list(dict.fromkeys(sent(target))) == [
            "m%d" % i for i in range(20)]
    finally:
        subprocess.run(["umount", "-l", disk], check=True)


# ---- The consumer -----------------------------------------------------------------


class Rabbit:
    """A quorum queue; `limit`: how often the broker delivers a message before it
    drops it."""

    def __init__(self, server, limit=None, queue=None):
        self.server = server
        self.queue = queue or "c%d" % next(_numbers)
        self.limit = limit
        self.url = "%s?queue=%s" % (server.url(), self.queue)
        self.declare()

    @contextlib.contextmanager
    def channel(self):
        connection = pika.BlockingConnection(
            pika.URLParameters(self.server.url()))
        with contextlib.closing(connection):
            channel = connection.channel()
            channel.confirm_delivery()
            yield channel

    def declare(self):
        arguments = {"x-queue-type": "quorum"}
        if self.limit:
            arguments["x-delivery-limit"] = self.limit
        with self.channel() as channel:
            channel.queue_declare(self.queue, durable=True,
                                  arguments=arguments)

    def publish(self, sent):
        """(id, body) or (id, body, other properties)."""
        with self.channel() as channel:
            for name, body, *more in sent:
                channel.basic_publish(
                    "", self.queue, body, mandatory=True,
                    properties=pika.BasicProperties(
                        message_id=name, delivery_mode=2,
                        **(more[0] if more else {})))

    def left(self):
        """Without those that somebody has."""
        with self.channel() as channel:
            return channel.queue_declare(self.queue,
                                         passive=True).method.message_count


class Consumer(Program):
    """`once messages consume`, which writes down its effects."""

    SQL = "INSERT INTO effect VALUES ($1, convert_from($2, 'UTF8'))"

    def __init__(self, folder, db, url, *words, name="billing", sql=None,
                 command=()):
        effect = ["--", *command] if command else ["--sql", sql or self.SQL]
        super().__init__(
            folder / ("consumer%d.log" % next(_numbers)),
            [ONCE, "messages", "consume", "--database", db.url, "--from", url, "--consumer",
             name, "--first-pause", "1s", "--longest-pause",
             "1s", *words, *effect])


@pytest.fixture
def consumers(tmp_path):
    started = []

    def start(db, queue, *words, **more):
        started.append(Consumer(tmp_path, db, queue.url, *words, **more))
        return started[-1]
    yield start
    for consumer in started:
        if consumer.process.poll() is None:
            consumer.process.kill()
            consumer.wait()


@pytest.fixture
def shop(pg):
    pg.sql("CREATE TABLE effect(id text, body text);"
           "CREATE SEQUENCE begun;"
           "ALTER TABLE effect OWNER TO once; ALTER SEQUENCE begun OWNER TO once")
    return pg


def effects(db):
    return sorted(row[0] for row in db.sql("SELECT id FROM effect"))


def parked(db, state=PARKED_DEAD):
    return sorted(row[0] for row in db.sql(
        "SELECT id FROM once.parked WHERE state = %d" % state))


FOREIGN = {
    "no id": (None, "x", {}),
    "no id, no body": (None, "", {}),
    "an empty id": ("", "x", {}),
    "an id with a space": ("a b", "x", {}),
    "an id in UTF-8": ("größe", "x", {}),
    "a type in UTF-8": ("i1", "x", {"content_type": "größe"}),
    "two lines in a header": ("i2", "x", {"headers": {"A": "1\r\nB: 2"}}),
    "a NUL in a header": ("i3", "x", {"headers": {"A": "1\x002"}}),
    "a name with a colon": ("i4", "x", {"headers": {"A: B": "1"}}),
    "an empty name": ("i5", "x", {"headers": {"": "1"}}),
    "bytes": ("i6", "x", {"headers": {"A": b"\xff\xfe\x00"}}),
    "a bad key": ("i7", "x", {"headers": {"Once-Key": "a b"}}),
    "two headers of one name": ("i8", "x", {"headers": {"A": "1", "a": "2"}}),
    "a table": ("i9", "x", {"headers": {"A": {"B": [1, None, True]}}}),
    "a number": ("i10", "x", {"headers": {"A": 5, "B": None}}),
    "many headers": ("i11", "x", {"headers": {
        "H%d" % i: "v" * 1000 for i in range(80)}}),
    "a time to live": ("i12", "x", {"expiration": "60000", "priority": 9,
                                    "content_encoding": "gzip"}),
}


def test_no_message_of_a_stranger_is_lost_or_comes_for_ever(amqp, shop,
                                                            consumers):
    queue = Rabbit(amqp)
    queue.publish([("first", "x"), *FOREIGN.values(), ("last", "x")])
    consumer = consumers(shop, queue, "--idle", "3s")
    assert consumer.wait() == 1, consumer.log()
    done, dead = effects(shop), parked(shop)
    assert {"first", "last", "i8", "i9", "i10", "i12"} == set(done)
    assert len(done) == len(set(done))
    assert len(done) + len(dead) == 2 + len(FOREIGN), (done, dead)
    assert queue.left() == 0
    assert parked(shop, PARKED_WAITING) == []


def test_another_body_under_a_known_id_is_kept_and_not_run(amqp, shop,
                                                          consumers):
    """As of a producer that writes its JSON in another order."""
    queue = Rabbit(amqp)
    queue.publish([("a", '{"x":1,"y":2}'), ("a", '{"y":2,"x":1}'),
                   ("a", '{"x":1,"y":2}'), ("a", '{"y":2,"x":1}')])
    assert consumers(shop, queue, "--idle", "2s").wait() == 1
    assert shop.sql("SELECT body FROM effect") == [('{"x":1,"y":2}',)]
    assert len(parked(shop)) == 1


def test_copies_in_one_batch_are_one(amqp, shop, consumers):
    queue = Rabbit(amqp)
    names = ["a", "a", "b", "a", "c", "b", "a", "d", "d", "e"]
    queue.publish([(name, "x") for name in names])
    consumer = consumers(shop, queue, "--batch", "10", "--idle", "2s")
    assert consumer.wait() == 0, consumer.log()
    assert effects(shop) == ["a", "b", "c", "d", "e"]


def test_one_id_in_two_queues_is_one_for_a_consumer(amqp, shop, consumers):
    pair = [Rabbit(amqp) for _ in range(2)]
    for queue in pair:
        queue.publish([("m%d" % i, "x") for i in range(20)])
    started = [consumers(shop, queue, "--idle", "2s") for queue in pair]
    assert [c.wait() for c in started] == [0, 0]
    assert effects(shop) == sorted("m%d" % i for i in range(20))


def test_neighbours_of_a_message_that_kills_are_not_dropped(amqp, shop,
                                                            tmp_path):
    """A broker counts deliveries of all that were sent ahead, and drops them
    with the guilty one."""
    program = os.path.join(os.path.dirname(ONCE), "test", "consumer")
    shop.sql("DROP TABLE effect;"
             "CREATE TABLE effect(id text, attempt integer);"
             "ALTER TABLE effect OWNER TO once")
    queue = Rabbit(amqp, limit=2)
    queue.publish([("m%d" % i, "segv" if i == 3 else "ok") for i in range(12)])
    for _ in range(12):
        with open(tmp_path / "log", "ab") as log:
            status = subprocess.run(
                [program, shop.url, queue.url, "first=1000", "most=1000",
                 "lease=1000", "attempts=3", "drain=3500", "workers=2"],
                stdout=log, stderr=log, timeout=PATIENCE,
                check=False).returncode
        if status != -signal.SIGSEGV:
            break
    assert status == 1, (tmp_path / "log").read_text()
    assert effects(shop) == sorted("m%d" % i for i in range(12) if i != 3)
    assert parked(shop) == ["m3"]
    assert queue.left() == 0


def test_a_handler_that_is_slower_than_the_broker_waits_runs_once(
        amqp, shop, consumers):
    """The broker takes the delivery back after two seconds, and closes the
    channel: the acknowledgement comes too late."""
    queue = Rabbit(amqp)
    queue.publish([("slow", "x"), ("next", "x")])
    consumer = consumers(shop, queue, "--idle", "4s", sql=(
        "INSERT INTO effect SELECT $1, nextval('begun')::text FROM"
        " pg_sleep(CASE $1 WHEN 'slow' THEN 5 ELSE 0 END) WHERE $2 IS NOT NULL"))
    assert consumer.wait() == 0, consumer.log()
    assert effects(shop) == ["next", "slow"]
    assert queue.left() == 0


def test_a_queue_that_was_deleted_is_consumed_when_it_is_back(amqp, shop,
                                                              consumers):
    queue = Rabbit(amqp)
    consumer = consumers(shop, queue)
    queue.publish([("a", "x")])
    eventually(lambda: effects(shop) == ["a"], "it consumes", PATIENCE)
    with queue.channel() as channel:
        channel.queue_delete(queue.queue)
    time.sleep(3)
    assert consumer.process.poll() is None, consumer.log()
    queue.declare()
    queue.publish([("b", "x")])
    eventually(lambda: effects(shop) == ["a", "b"], "and again", PATIENCE)
    assert consumer.stop() == 0


def test_a_queue_that_is_not_there_is_said_at_once(amqp, shop, consumers):
    queue = Rabbit(amqp)
    with queue.channel() as channel:
        channel.queue_delete(queue.queue)
    consumer = consumers(shop, queue)
    assert consumer.wait() == 3
    assert queue.queue in consumer.log() or "no such" in consumer.log()


def test_a_programs_role_may_do_what_the_page_grants_and_no_more(pg):
    """It must not settle, decide about, or forget what others have written."""
    role = "app%d" % next(_numbers)
    pg.server.sql("CREATE ROLE %s LOGIN" % role)
    here = os.path.dirname(os.path.abspath(__file__))
    with open(os.path.join(here, "../../docs/messages.md"),
              encoding="utf-8") as page:
        block = page.read().split("GRANT USAGE", 1)[1].split("```", 1)[0]
    pg.sql(("GRANT USAGE" + block).replace(" TO app", " TO " + role))
    with session(pg, user=role) as sql:
        sql("BEGIN")
        sql("SELECT * FROM once.message_about()")
        assert one(sql(CLAIM, "a", b"x")) == "run"
        assert one(sql("SELECT once.emit('r', 'x')"))
        assert one(sql("SELECT once.barrier_enter('g', '1', 'try')")) == "run"
        assert one(sql("SELECT once.saga_start('k', '[{\"try\": \"r\"}]')"))
        assert one(sql("SELECT answer FROM once.begin('c', 'k')")) == "run"
        assert one(sql("SELECT once.finish('c', 'k', 1, 'x')")) == "ok"
        assert one(sql("SELECT once.inbox_park('c', 'p', NULL, 1, 0, NULL, '',"
                       " '', 'x', 'why')")) == "parked"
        sql("COMMIT")
    assert pg.sql("SELECT p.proname FROM pg_proc p"
                  " WHERE p.pronamespace = 'once'::regnamespace"
                  " AND p.proname LIKE '%%\\_1' AND p.proname <> 'refuse_1'"
                  " AND has_function_privilege('%s', p.oid, 'EXECUTE')"
                  % role) == []
    assert pg.sql("SELECT c.relname FROM pg_class c"
                  " WHERE c.relnamespace = 'once'::regnamespace"
                  " AND c.relkind = 'r' AND has_table_privilege('%s', c.oid,"
                  " 'SELECT, INSERT, UPDATE, DELETE')" % role) == []


@pytest.mark.parametrize("call", [
    "SELECT once.inbox_claim('c', %s)",
    "SELECT once.barrier_enter(%s, '1', 'try')",
    "SELECT once.saga_start('k', '[{\"try\": \"r\"}]', %s)",
    "SELECT * FROM once.begin('c', %s)",
    "SELECT once.finish('c', %s, 1, 'x')",
    "SELECT once.emit('r', 'x', p_id => %s)",
    "SELECT once.inbox_park('c', %s, NULL, 1, 0, NULL, '', '', 'x', 'why')",
])
def test_a_cast_of_the_callers_does_not_run_with_the_owners_rights(pg, call):
    """An id may have any type, and who owns a type may say by which function it
    becomes text."""
    role = "caster%d" % next(_numbers)
    pg.server.sql("CREATE ROLE %s LOGIN" % role)
    pg.sql("GRANT USAGE ON SCHEMA once TO %s;"
           "GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA once TO %s;"
           "CREATE SCHEMA %s AUTHORIZATION %s" % (role, role, role, role))
    with session(pg, user=role) as sql:
        sql("SET search_path = " + role)
        sql("CREATE TYPE own AS (a text)")
        sql("CREATE FUNCTION own_text(own) RETURNS text LANGUAGE plpgsql AS $f$"
            " BEGIN RAISE EXCEPTION 'ran as %', current_user; END $f$")
        sql("CREATE CAST (own AS text) WITH FUNCTION own_text(own)"
            " AS ASSIGNMENT")
        said = ""
        try:
            sql(call % "ROW('x')::own")
        except psycopg2.Error as e:
            said = str(e)
        assert "ran as" not in said or "ran as %s\n" % role in said


@pytest.mark.parametrize("key", ["'10.0.0.1'::inet", "true"])
def test_an_id_of_any_type_is_read_in_one_way(pg, key):
    """A cast of these to text says something else than their output."""
    with session(pg) as sql:
        sql("BEGIN")
        assert one(sql("SELECT answer FROM once.begin('typed', %s)" % key)) \
            == "run"
        assert one(sql("SELECT once.finish('typed', %s, 1, 'x')" % key)) == "ok"
        assert one(sql("SELECT once.inbox_claim('reads', %s)" % key)) == "run"
        sql("COMMIT")
        with pytest.raises(psycopg2.Error) as e:
            sql("SELECT once.finish('typed', NULL, 1, 'x')")
        assert e.value.pgcode == "22023"
        assert one(sql("SELECT once.inbox_park('reads', %s, NULL, 1, 0, NULL,"
                       " '', '', 'x', 'why')" % key)) == "done"


BAD_CONTENT = [
    ("type", "E'\\x1b]0;x'", "''", "'x'"),
    ("type", "repeat('t', 256)", "''", "'x'"),
    ("headers", "''", "'no header'", "'x'"),
    ("headers", "''", "'A: ' || repeat('b', 65535) || E'\\n'", "'x'"),
    ("body", "''", "''", "convert_to(repeat('b', 67108865), 'UTF8')"),
]


@pytest.mark.parametrize("values", BAD_CONTENT)
def test_what_may_not_be_emitted_may_not_be_parked(pg, values):
    """A consumer in any language parks what an operator's screen shows."""
    with session(pg) as sql:
        for call in ("SELECT once.emit('r', p_type => %s, p_headers => %s,"
                     " p_body => %s)" % values[1:],
                     "SELECT once.inbox_park('c', 'p', NULL, 1, 0, NULL, %s,"
                     " %s, %s, 'why')" % values[1:]):
            assert error_of(sql, call) == "22023"


@pytest.mark.parametrize("how", ["rights", "read only"])
def test_a_database_that_refuses_does_not_use_up_deliveries(amqp, shop,
                                                            consumers, how):
    """The broker drops what was delivered three times."""
    role = "clerk%d" % next(_numbers)
    shop.server.sql("CREATE ROLE %s LOGIN" % role)
    shop.sql("GRANT ALL ON effect TO %s; GRANT USAGE ON SCHEMA once TO %s;"
             "GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA once TO %s"
             % (role, role, role))
    queue = Rabbit(amqp, limit=2)
    shop.url = shop.url.replace("once@", role + "@")
    consumer = consumers(shop, queue)
    queue.publish([("a", "x")])
    eventually(lambda: effects(shop) == ["a"], "it consumes", PATIENCE)
    claim = "FUNCTION once.inbox_claim"
    if how == "rights":
        shop.sql("REVOKE EXECUTE ON %s FROM %s" % (claim, role))
    else:
        shop.server.sql("ALTER DATABASE %s SET default_transaction_read_only"
                        " = on" % shop.name)
        shop.server.sql("SELECT pg_terminate_backend(pid) FROM"
                        " pg_stat_activity WHERE datname = '%s'" % shop.name)
    queue.publish([("m%d" % i, "x") for i in range(4)])
    time.sleep(8)
    assert consumer.process.poll() is None, consumer.log()
    assert consumer.log().count("\n") < 20
    if how == "rights":
        shop.sql("GRANT EXECUTE ON %s TO %s" % (claim, role))
    else:
        shop.server.sql("ALTER DATABASE %s RESET default_transaction_read_only"
                        % shop.name)
    eventually(lambda: effects(shop) == ["a", "m0", "m1", "m2", "m3"],
               "all of them are done", PATIENCE)
    assert consumer.stop() == 0, consumer.log()
    assert queue.left() == 0


def test_what_was_sent_ahead_goes_back_at_a_stop(amqp, shop, consumers):
    """Stopped twice in the middle of a handler; another one does the rest."""
    queue = Rabbit(amqp, limit=2)
    queue.publish([("m%d" % i, "x") for i in range(12)])
    consumer = consumers(shop, queue, "--workers", "2", sql=(
        "INSERT INTO effect SELECT $1, nextval('begun')::text FROM pg_sleep(1)"
        " WHERE $2 IS NOT NULL"))
    eventually(lambda: shop.sql("SELECT count(*) FROM pg_stat_activity WHERE"
                                " query LIKE 'INSERT INTO effect%' AND"
                                " state = 'active'") != [("0",)],
               "one runs", PATIENCE)
    consumer.process.send_signal(signal.SIGTERM)
    time.sleep(0.2)
    consumer.process.send_signal(signal.SIGINT)
    assert consumer.wait() == 0
    assert consumers(shop, queue, "--idle", "2s").wait() == 0
    assert effects(shop) == sorted("m%d" % i for i in range(12))
    assert queue.left() == 0


def test_a_parked_message_is_not_run_by_two_at_once(amqp, shop, consumers):
    """Its handler takes longer than its lease; two processes look for it."""
    queue = Rabbit(amqp)
    shop.sql("CREATE TABLE fuse(on_ boolean); INSERT INTO fuse VALUES (true);"
             "ALTER TABLE fuse OWNER TO once")
    statement = ("INSERT INTO effect SELECT $1, nextval('begun')::text"
                 " FROM fuse, pg_sleep(CASE WHEN on_ THEN 0 ELSE 4 END)"
                 " WHERE $2 IS NOT NULL"
                 " AND 1 / (CASE WHEN on_ THEN 0 ELSE 1 END) = 1")
    queue.publish([("a", "x")])
    consumer = consumers(shop, queue, "--attempts", "1000", "--lease", "1s",
                         sql=statement)
    eventually(lambda: parked(shop, PARKED_WAITING) == ["a"], "it is parked",
               PATIENCE)
    assert consumer.stop() == 0
    before = shop.sql("SELECT last_value, is_called FROM begun")
    shop.sql("UPDATE fuse SET on_ = false")
    pair = [consumers(shop, queue, "--attempts", "1000", "--lease", "1s",
                      "--idle", "3s", sql=statement) for _ in range(2)]
    assert [c.wait() for c in pair] == [0, 0]
    assert effects(shop) == ["a"]
    assert before == [("1", "f")]
    assert shop.sql("SELECT last_value, is_called FROM begun") == [("1", "t")]


def test_a_role_with_another_isolation_is_refused(amqp, shop, consumers,
                                                  relays, target):
    """At once, where first deliveries would run and parked messages would wait
    for ever."""
    shop.server.sql("ALTER DATABASE %s SET default_transaction_isolation ="
                    " 'serializable'" % shop.name)
    queue = Rabbit(amqp)
    queue.publish([("a", "x")])
    consumer, relay = consumers(shop, queue), relays(shop, *to(target))
    assert (consumer.wait(), relay.wait()) == (3, 3)
    assert "read committed" in consumer.log()
    assert "read committed" in relay.log()
    assert effects(shop) == []
    assert queue.left() == 1


def test_a_message_parked_by_one_consumer_is_not_run_by_another(amqp, shop,
                                                               consumers):
    """A retry goes to the consumer that has failed, and to nobody else."""
    pair = {name: Rabbit(amqp) for name in ("billing", "shipping")}
    for queue in pair.values():
        queue.publish([("a", "x")])
    good = "INSERT INTO effect VALUES ('shipping', $1 || length($2))"
    bad = "INSERT INTO effect SELECT 'billing', $1 || 1 / (length($2) - 1)"
    assert consumers(shop, pair["shipping"], "--idle", "2s", sql=good,
                     name="shipping").wait() == 0
    assert consumers(shop, pair["billing"], "--idle", "2s", "--attempts", "2",
                     sql=bad).wait() == 1
    assert decide(shop, 0) == ["ok"]
    assert consumers(shop, pair["shipping"], "--idle", "2s", sql=good,
                     name="shipping").wait() == 0
    assert parked(shop, PARKED_WAITING) == ["a"]
    assert consumers(shop, pair["billing"], "--idle", "2s",
                     sql=good.replace("shipping", "billing")).wait() == 0
    assert effects(shop) == ["billing", "shipping"]


def test_a_stream_that_is_gone_is_read_from_its_beginning(redis, shop,
                                                         consumers, tmp_path):
    """With its group: a new group that began at the end would pass over what
    was added before."""
    stream = Stream(redis, "s%d" % next(_numbers))
    stream.url += "&group=g"

    def add(name):
        redis.ask("XADD", stream.stream, "*", "id", name, "body", "x")
    add("a")
    consumer = consumers(shop, stream)
    eventually(lambda: effects(shop) == ["a"], "it consumes", PATIENCE)
    redis.ask("DEL", stream.stream)
    add("b")
    add("c")
    eventually(lambda: effects(shop) == ["a", "b", "c"], "and again", PATIENCE)
    assert consumer.stop() == 0
    assert consumer.log().count("\n") < 10


def test_a_consumer_waits_for_a_long_transaction_of_the_program(
        redis, tmp_path, consumers):
    db, stream = Lite(tmp_path), Stream(redis, "s%d" % next(_numbers))
    stream.url += "&group=g"
    db.sql("CREATE TABLE effect(id TEXT, body TEXT)")
    with contextlib.closing(sqlite3.connect(db.path)) as held:
        held.isolation_level = None
        held.execute("BEGIN IMMEDIATE")
        held.execute("CREATE TABLE mine(x)")
        for i in range(5):
            redis.ask("XADD", stream.stream, "*", "id", "m%d" % i, "body", "x")
        consumer = consumers(db, stream,
                             sql="INSERT INTO effect VALUES ($1, $2)")
        time.sleep(13)
        assert consumer.process.poll() is None
        held.execute("COMMIT")
    eventually(lambda: effects(db) == ["m%d" % i for i in range(5)],
               "all are done", PATIENCE)
    assert consumer.stop() == 0


# ---- Calls of a service ------------------------------------------------------------


class Service(http.server.ThreadingHTTPServer):
    """Has the effect of a key once, and does not answer the first request."""
    daemon_threads = True

    def __init__(self):
        self.requests = []
        super().__init__(("127.0.0.1", 0), Answer)
        threading.Thread(target=self.serve_forever, daemon=True).start()

    @property
    def url(self):
        return "http://127.0.0.1:%d/charge" % self.server_port


class Answer(http.server.BaseHTTPRequestHandler):
    def do_POST(self):  # pylint: disable=invalid-name
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.requests.append((self.headers["Idempotency-Key"], body))
        if len(self.server.requests) == 1:
            self.connection.shutdown(socket.SHUT_RDWR)
            return
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_):  # pylint: disable=arguments-differ
        pass


def test_a_request_without_an_answer_is_repeated_under_its_key(tmp_path,
                                                               relays):
    """A new key, or another body, would be a second charge."""
    db = Lite(tmp_path)
    db.emit([("a", None, '{"cents": 100}')])
    with Service() as service:
        assert relays(db, "--to", "r=" + service.url, *SHORT,
                      "--drain").wait() == 0
        service.shutdown()
        assert len(service.requests) == 2
        assert len(set(service.requests)) == 1
        assert service.requests[0][1] == marked('{"cents": 100}').encode()


# ---- Sagas --------------------------------------------------------------------------


def saga(pg, gid, steps, deadline="1 hour"):
    pg.apart("SELECT once.saga_start('k', '%s'::json, '%s', now() + interval '%s')"
           % (json.dumps(steps), gid, deadline))


def states(pg):
    names = ["going", "confirming", "undoing", "done", "undone", "stuck"]
    return {gid: names[int(state)]
            for gid, state in pg.sql("SELECT gid, state FROM once.saga")}


def test_a_saga_with_a_route_that_nobody_serves_is_undone_in_time(
        pg, relays, target):
    saga(pg, "g", [{"try": "t", "cancel": "c"},
                   {"try": "nobody", "cancel": "c"}], "3 seconds")
    relay = relays(pg, *to(target, route="t"), *to(target, route="c"))
    eventually(lambda: states(pg) == {"g": "undone"}, "it is undone", PATIENCE)
    assert relay.stop() == 0
    assert pg.sql("SELECT count(*) FROM once.outbox") == [("0",)]
    assert sent(target)[0] == "g/1/try"
    assert sent(target)[-1] == "g/1/cancel"
    assert len(sent(target)) == len(set(sent(target)))


def test_an_abort_of_a_saga_that_is_about_to_end_is_done_or_refused(
        pg, relays, target):
    """And its end is the one that the operator was told."""
    gids = ["g%d" % i for i in range(12)]
    for gid in gids:
        saga(pg, gid, [{"try": "t", "cancel": "c"}] * 2)
    relay = relays(pg, *to(target, "--workers", "2", route="t"),
                   *to(target, route="c"))
    aborted = set()
    for gid in reversed(gids):
        version = one(pg.sql("SELECT version FROM once.saga WHERE gid = '%s'"
                             % gid))
        done = once("--database", pg.url, "messages", "saga", "abort", gid, "--at-version",
                    version, "--why", "test", check=False)
        assert done.returncode in (0, 1), done.stderr
        if done.returncode == 0:
            aborted.add(gid)
    eventually(lambda: set(states(pg).values()) <= {"done", "undone"},
               "all have ended", PATIENCE)
    assert relay.stop() == 0
    assert {g for g, s in states(pg).items() if s == "undone"} == aborted
    seen = sent(target)
    assert len(seen) == len(set(seen))
    for gid in gids:
        tried = [s for s in seen if s.startswith(gid + "/") and "/try" in s]
        undone = [s for s in seen if s.startswith(gid + "/")
                  and "/cancel" in s]
        assert gid in aborted or (len(tried), undone) == (2, [])
        assert {s.replace("try", "cancel") for s in tried} <= set(undone) \
            or gid not in aborted


def test_a_file_that_was_replaced_is_seen(redis, tmp_path, relays, target,
                                          consumers):
    """By its backup: whoever keeps the old one open would sleep for ever."""
    db, stream = Lite(tmp_path), Stream(redis, "s%d" % next(_numbers))
    stream.url += "&group=g"
    db.sql("CREATE TABLE effect(id TEXT, body TEXT)")
    db.sql("PRAGMA wal_checkpoint(TRUNCATE)")
    shutil.copy(db.path, tmp_path / "backup")
    relay = relays(db, *to(target))
    consumer = consumers(db, stream, sql="INSERT INTO effect VALUES ($1, $2)")
    db.emit([("a", None, "1")])
    redis.ask("XADD", stream.stream, "*", "id", "x", "body", "1")
    eventually(lambda: sent(target) == ["a"] and effects(db) == ["x"],
               "they work", PATIENCE)
    time.sleep(2)
    for end in ("", "-wal", "-shm"):
        with contextlib.suppress(FileNotFoundError):
            (tmp_path / ("shop.db" + end)).rename(tmp_path / ("old" + end))
    (tmp_path / "backup").rename(db.path)
    db.emit([("b", None, "1")])
    redis.ask("XADD", stream.stream, "*", "id", "y", "body", "1")
    eventually(lambda: sent(target) == ["a", "b"], "the relay", PATIENCE)
    eventually(lambda: effects(db) == ["y"], "the consumer", PATIENCE)
    assert relay.stop() == 0 and consumer.stop() == 0


def test_a_migration_that_locks_the_tables_is_waited_for(redis, shop, relays,
                                                         target, consumers):
    """Longer than any lock time-out of ours."""
    stream = Stream(redis, "s%d" % next(_numbers))
    stream.url += "&group=g"
    relay = relays(shop, *to(target))
    consumer = consumers(shop, stream)
    shop.emit([("a", "k", "1")])
    eventually(lambda: sent(target) == ["a"], "it works", PATIENCE)
    with session(shop, "postgres") as sql:
        sql("BEGIN")
        sql("SELECT once.emit('r', 'x', 'k', 'b')")
        sql("LOCK TABLE once.outbox, once.inbox, once.parked"
            " IN ACCESS EXCLUSIVE MODE")
        for i in range(6):
            redis.ask("XADD", stream.stream, "*", "id", "m%d" % (i % 5),
                      "body", "x")
        time.sleep(13)
        assert relay.process.poll() is None and consumer.process.poll() is None
        sql("COMMIT")
    eventually(lambda: sent(target) == ["a", "b"], "the relay", PATIENCE)
    eventually(lambda: effects(shop) == ["m%d" % i for i in range(5)],
               "the consumer", PATIENCE)
    assert relay.stop() == 0 and consumer.stop() == 0
    assert relay.log().count("\n") + consumer.log().count("\n") < 10
    assert parked(shop) == []


def test_a_role_without_connections_is_waited_for(redis, shop, relays, target,
                                                  consumers):
    role = "late%d" % next(_numbers)
    shop.server.sql("CREATE ROLE %s LOGIN IN ROLE once" % role)
    shop.sql("ALTER ROLE %s CONNECTION LIMIT 0" % role)
    stream = Stream(redis, "s%d" % next(_numbers))
    stream.url += "&group=g"
    shop.emit([("a", None, "1")])
    shop.url = shop.url.replace("once@", role + "@")
    relay = relays(shop, *to(target))
    consumer = consumers(shop, stream)
    redis.ask("XADD", stream.stream, "*", "id", "x", "body", "x")
    time.sleep(3)
    assert relay.process.poll() is None, relay.log()
    assert consumer.process.poll() is None, consumer.log()
    shop.sql("ALTER ROLE %s CONNECTION LIMIT -1" % role)
    eventually(lambda: sent(target) == ["a"], "the relay", PATIENCE)
    eventually(lambda: effects(shop) == ["x"], "the consumer", PATIENCE)
    assert relay.stop() == 0 and consumer.stop() == 0


def test_a_worker_without_a_connection_sends_nothing(shop, relays, target):
    """What another worker has claimed for it, it could not settle."""
    role = "few%d" % next(_numbers)
    shop.server.sql("CREATE ROLE %s LOGIN IN ROLE once" % role)
    shop.sql("ALTER ROLE %s CONNECTION LIMIT 4" % role)  # of them two of workers
    ids = ["m%d" % i for i in range(40)]
    shop.emit([(i, None, "1") for i in ids])
    shop.url = shop.url.replace("once@", role + "@")
    relay = relays(shop, *to(target, "--workers", 6, "--lease", "600s"), "--drain")
    assert relay.wait() == 0, relay.log()
    assert sorted(sent(target)) == sorted(ids)
    assert "connection" in relay.log()


def test_a_consumer_behind_a_pooler_has_each_effect_once(
        world, postgres, redis, shop, consumers):
    try:
        pooler = servers.PgBouncer(world, postgres,
                                   "pgbouncer%d" % next(_numbers)).start()
    except servers.Missing as missing:
        pytest.skip(str(missing))
    shop.url = pooler.url()[:-len("once")] + shop.name
    stream = Stream(redis, "s%d" % next(_numbers))
    stream.url += "&group=g"
    for i in range(60):
        redis.ask("XADD", stream.stream, "*", "id", "m%d" % (i % 40), "body",
                  "x")
    pair = [consumers(shop, stream, "--workers", "3", "--idle", "2s")
            for _ in range(2)]
    assert [c.wait() for c in pair] == [0, 0], pair[0].log()
    assert effects(shop) == sorted("m%d" % i for i in range(40))


def test_a_handler_that_spoils_its_session_stops_nobody_else(redis, shop,
                                                             consumers):
    """What it has set stays in a connection that others use."""
    stream = Stream(redis, "s%d" % next(_numbers))
    stream.url += "&group=g"
    for i in range(4):
        redis.ask("XADD", stream.stream, "*", "id", "m%d" % i, "body", "x")
    consumer = consumers(shop, stream, sql=(
        "INSERT INTO effect SELECT $1, set_config('synchronous_commit', 'off',"
        " false) WHERE $2 IS NOT NULL"))
    eventually(lambda: effects(shop) == ["m%d" % i for i in range(4)],
               "all are done", PATIENCE)
    assert consumer.stop() == 0
