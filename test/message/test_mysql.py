# SPDX-License-Identifier: Apache-2.0
"""test_mysql.py - the procedures of my.sql, called through PyMySQL by an account that
may EXECUTE and nothing else: each answer, each error, and what two that meet do.

On MariaDB, or on the MySQL that ONCE_MYSQLD names."""
import contextlib
import hashlib
import itertools
import random
import subprocess
import threading
import time

import pymysql
import pytest
from pymysql.constants import CLIENT

import mysql_kit
from carry import PATIENCE, eventually
from mysql_kit import My, refused

LEVELS = ("READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE")
OLD = "018bcfe5-6800-7000-8000-000000000001"  # of 2023
OTHER = hashlib.sha256(b"other").digest()
SAME = hashlib.sha256(b"same").digest()
DEADLOCK, TIMEOUT, CHANGED = 1213, 1205, 1020

of_mariadb = pytest.mark.skipif(mysql_kit.MYSQL, reason="MySQL has it not")

_numbers = itertools.count(1)


@pytest.fixture(name="my")
def _my(mysql):
    return My(mysql, "m%d" % next(_numbers))


@pytest.fixture(name="at", params=LEVELS)
def _at(request):
    return request.param


class Call:
    """A call of another thread, and what it came to: an answer, or the number
    of an error."""

    def __init__(self, call, *args, **more):
        self.answer = None
        self.call = lambda: call(*args, **more)
        self.thread = threading.Thread(target=self.run, daemon=True)
        self.thread.start()

    def run(self):
        try:
            self.answer = self.call()
        except pymysql.MySQLError as error:
            self.answer = error.args[0]

    def going(self):
        return self.thread.is_alive()

    def end(self):
        self.thread.join(PATIENCE)
        assert not self.going()
        return self.answer

    def waits(self, my, others=0):
        """It waits for a lock, as some others do, or has ended without."""
        eventually(lambda: not self.going() or int(my.sql(
            "SHOW GLOBAL STATUS LIKE 'Innodb_row_lock_current_waits'")[0][1])
                   > others, "the call waits or has ended")
        return self.going()


# ---- Claims --------------------------------------------------------------


def test_an_id_has_one_effect(my, at):
    a, b = my.open(at), my.open(at)
    assert a.claim("x", SAME) == "run"
    a.rollback()
    assert a.claim("x", SAME) == "run"
    assert a.claim("x", SAME) == "done"
    a.commit()
    assert b.claim("x", SAME) == "done"
    assert b.claim("x") == "done"
    assert b.claim("x", OTHER) == "mismatch"
    assert b.claim("x", consumer="other") == "run"
    assert b.claim("X") == b.claim(5) == "run"
    b.commit()
    assert sorted(my.sql("SELECT consumer, id FROM once_inbox")) == [
        (b"c", b"5"), (b"c", b"X"), (b"c", b"x"), (b"other", b"x")]


def test_an_id_that_is_too_old_is_outside(my, at):
    a = my.open(at)
    my.sql("INSERT INTO once_inbox(consumer, id, at_ms, kind) "
           "VALUES('c', '%s', 1, 1)" % OLD.replace("0001", "0002"))
    assert a.claim(OLD) == "outside"
    assert a.claim(OLD.replace("0001", "0002")) == "done"
    assert a.claim(OLD.upper()) == "run"  # no time in it
    assert a.enter("try", OLD) == "refused"
    assert a.enter("confirm", OLD) == "early"
    assert a.enter("cancel", OLD) == "empty"
    a.commit()
    assert my.sql("SELECT id FROM once_inbox WHERE at_ms > 1") == (
        (OLD.upper().encode(),),)
    name = a.emit()
    assert a.claim(name) == "run"
    if at == "SERIALIZABLE":
        a.commit()  # a plain SELECT locks there
    my.sql("UPDATE once_message_meta SET floor_ms = %d"
           % (time.time() * 1000 + 3600000))
    a.commit()
    assert a.claim(name) == "done"
    assert a.claim(a.emit()) == "outside"


@pytest.mark.parametrize("snapshot", ["OFF", "ON"])
@pytest.mark.parametrize("first", ["commits", "rolls back"])
def test_of_three_copies_one_runs(my, at, first, snapshot):
    """Those that lose a deadlock do it again."""
    sessions = [my.open(at) for _ in range(3)]
    for session in sessions:
        session.run("SET @none = NULL /*M!, SESSION innodb_snapshot_isolation"
                    " = " + snapshot + " */")
        session.run("SELECT COUNT(*) FROM effect")
    if at == "SERIALIZABLE":
        for session in sessions:
            session.rollback()
    holder, *others = sessions
    assert holder.claim("x") == "run"
    holder.run("INSERT INTO effect(body) VALUES('x')")

    def work(session):
        while True:
            try:
                answer = session.claim("x")
                if answer == "run":
                    session.run("INSERT INTO effect(body) VALUES('x')")
                session.commit()
                return answer
            except pymysql.MySQLError as error:
                assert error.args[0] in (DEADLOCK, CHANGED, TIMEOUT)
                session.rollback()

    calls = [Call(work, session) for session in others]
    assert calls[0].waits(my, 1) and calls[1].going()
    getattr(holder, "commit" if first == "commits" else "rollback")()
    answers = sorted(call.end() for call in calls)
    assert answers == (["done", "done"] if first == "commits"
                       else ["done", "run"])
    assert my.sql("SELECT COUNT(*) FROM effect") == ((1,),)


def test_in_a_storm_of_copies_each_has_one_effect(my, at):
    threads, each, ids = 8, 60, 20

    def work(number):
        draw, session = random.Random(number), my.open(at)
        for _ in range(each):
            name = "m%d" % draw.randrange(ids)
            try:
                answer = session.claim(name)
                if answer == "run":
                    session.run("INSERT INTO effect(body) VALUES(%s)", name)
                if answer == "run" and draw.random() < 0.3:
                    session.rollback()
                else:
                    session.commit()
            except pymysql.MySQLError as error:
                assert error.args[0] == DEADLOCK
                session.rollback()
        session.close()
        return "ended"

    calls = [Call(work, number) for number in range(threads)]
    assert [call.end() for call in calls] == ["ended"] * threads
    effects = my.sql("SELECT body FROM effect ORDER BY body")
    assert effects == my.sql("SELECT id FROM once_inbox ORDER BY id")
    assert len(effects) > ids / 2


@pytest.mark.parametrize("level", LEVELS[:2])  # above, a plain SELECT locks
def test_what_was_committed_after_the_snapshot_is_seen(my, level):
    a, b = my.open(level), my.open(level)
    a.run("SELECT COUNT(*) FROM effect")  # its snapshot
    token = b.begin("y")[3]
    assert (b.claim("x"), b.finish("y", token)) == ("run", "ok")
    assert (b.enter("try"), b.emit(name="n")) == ("run", "n")
    b.commit()
    assert a.claim("x", SAME) == "done"
    assert a.begin("y") == ("replay", 1, b"r", None)
    assert (a.enter("try"), a.emit(name="n")) == ("done", None)
    a.commit()


@of_mariadb
def test_a_newer_row_than_the_snapshot_may_be_an_error(my):
    a, b = my.open("REPEATABLE READ"), my.open()
    a.run("SET SESSION innodb_snapshot_isolation = ON")
    a.run("SELECT COUNT(*) FROM effect")
    assert b.claim("x") == "run"
    b.commit()
    assert refused(a, a.claim, "x")[1] == CHANGED
    a.rollback()
    assert a.claim("x") == "done"


def test_a_copy_under_way_is_waited_for_and_then_an_error(my, at):
    """On MariaDB the session would wait for a quarter of an hour."""
    a, b = my.open(at), my.open(at)
    wait = mysql_kit.LOCK_S if mysql_kit.MYSQL else 900
    b.run("SET SESSION innodb_lock_wait_timeout = %s", wait)
    assert (a.claim("x"), a.enter("try")) == ("run", "run")
    for call, args in ((b.claim, ["x"]), (b.begin, ["x"]), (b.park, ["x"]),
                       (b.enter, ["try"]), (b.enter, ["cancel"])):
        assert refused(b, call, *args) == (
            "55P03", TIMEOUT, "another copy is under way, or a row is locked")
        assert b.run("SELECT @@innodb_lock_wait_timeout") == ((wait,),)
        b.rollback()
    a.commit()
    assert b.claim("x") == "done"


def test_a_call_that_is_ended_leaves_the_session_as_it_was(my):
    a, b = my.open(), my.open()
    assert a.claim("x") == "run"
    call = Call(b.claim, "x")
    assert call.waits(my)
    my.sql("KILL QUERY %d" % b.db.thread_id())
    assert call.end() == 1317
    assert b.run("SELECT @@innodb_lock_wait_timeout") == (
        (mysql_kit.LOCK_S,),)


def test_a_deadlock_is_told_as_it_is(my, at):
    a, b = my.open(at), my.open(at)
    for one, two in ((a, b), (b, a)):
        assert one.claim("x") == two.claim("y") == "run"
        calls = [Call(one.claim, "y")]
        assert calls[0].waits(my)
        calls.append(Call(two.claim, "x"))
        assert sorted(map(str, (call.end() for call in calls))) == [
            str(DEADLOCK), "run"]
        a.rollback()
        b.rollback()


# ---- The caller's transaction --------------------------------------------


CALLS = {
    "claim": lambda s: s.claim("x"), "park": lambda s: s.park("x"),
    "emit": lambda s: s.emit(key="k"), "begin": lambda s: s.begin("x"),
    "finish": lambda s: s.finish("x", b"t" * 16),
    "enter": lambda s: s.enter("try")}
TABLES = ("once_inbox", "once_parked", "once_outbox", "once_barrier")


def nothing_is_written(my):
    return all(my.sql("SELECT COUNT(*) FROM " + table) == ((0,),)
               for table in TABLES)


@pytest.mark.parametrize("name", CALLS)
def test_without_a_transaction_a_call_is_refused(my, name):
    alone = my.open(autocommit=True)
    assert refused(alone, CALLS[name], alone)[:2] == ("ON017", 1644)
    assert nothing_is_written(my)
    alone.run("BEGIN")
    assert CALLS[name](alone)
    alone.rollback()
    assert refused(alone, CALLS[name], alone)[0] == "ON017"
    session = my.open()  # autocommit is off: the call is the first statement
    assert CALLS[name](session)
    session.rollback()
    assert nothing_is_written(my)


def set_global(my, setting):
    my.server.sql("SET GLOBAL " + setting)


@pytest.mark.parametrize("name", CALLS)
def test_what_would_be_lost_is_refused(my, name):
    session = my.open()
    for setting, good in (("innodb_flush_log_at_trx_commit = 0", 1),
                          ("innodb_flush_log_at_trx_commit = 2", 1),
                          ("sync_binlog = 0", 1)):
        set_global(my, setting)
        try:
            error = refused(session, CALLS[name], session)
        finally:
            set_global(my, "%s = %s" % (setting.split()[0], good))
        assert error[0] == "ON001" and setting.split()[0] in error[2]
    root = my.root()
    for setting in "sql_log_bin = 0", "binlog_format = 'STATEMENT'":
        root.run("SET SESSION sql_log_bin = 1, binlog_format = 'ROW'")
        root.run("SET SESSION " + setting)
        error = refused(root, CALLS[name], root)
        assert error[0] == "ON001" and setting.split()[0] in error[2]
        root.rollback()
    assert nothing_is_written(my)
    assert CALLS[name](session)


def test_a_savepoint_that_is_undone_takes_the_claim_along(my):
    a = my.open()
    a.run("SAVEPOINT around")
    token = a.begin("x")[3]
    a.run("ROLLBACK TO around")
    assert a.finish("x", token) == "none"
    token = a.begin("x")[3]
    a.run("SAVEPOINT behind")
    assert a.emit() and a.enter("try") == "run"
    a.run("ROLLBACK TO behind")
    assert a.finish("x", token) == "ok"
    a.commit()
    assert my.sql("SELECT COUNT(*) FROM once_outbox") == ((0,),)


# ---- Calls ---------------------------------------------------------------


def test_a_call_is_repeated_with_its_result(my, at):
    a = my.open(at)
    for kind, result in (1, bytes(range(256))), (2, b""):
        key = "k%d" % kind
        answer, *none, token = a.begin(key, SAME)
        assert (answer, none, len(token)) == ("run", [None, None], 16)
        assert a.finish(key, token, kind, result) == "ok"
        assert a.finish(key, token, kind, result) == "none"
        a.commit()
        assert a.begin(key, SAME) == ("replay", kind, result, None)
        assert a.begin(key, OTHER) == ("mismatch", None, None, None)
        a.commit()
    assert a.begin(OLD) == ("outside", None, None, None)
    assert a.claim("m") == "run"
    a.commit()
    assert a.begin("m") == ("repeated", 1, None, None)


def test_a_call_in_a_call_is_finished_too(my):
    a = my.open()
    outer, inner = a.begin("outer")[3], a.begin("inner")[3]
    assert outer != inner
    assert a.finish("inner", outer) == "none"
    assert a.finish("inner", inner) == a.finish("outer", outer) == "ok"
    a.commit()
    assert a.begin("outer")[0] == a.begin("inner")[0] == "replay"


def test_a_call_that_is_not_finished_never_runs_again(my, at):
    """Also if it is finished in another transaction, as a program does whose
    second BEGIN, or a CREATE TABLE, has committed the first."""
    a, b = my.open(at), my.open(at)
    token = a.begin("x")[3]
    assert refused(a, a.begin, "x")[0] == "ON017"  # a call in itself
    a.run("BEGIN")
    assert a.finish("x", token) == "none"
    a.rollback()
    for session in a, b:
        for call in session.begin, session.claim, session.park:
            assert refused(session, call, "x")[0] == "ON017"
            session.rollback()
    assert my.sql("SELECT kind FROM once_inbox") == ((0,),)


# ---- Parked messages -----------------------------------------------------


def test_a_parked_message_runs_with_its_claim(my, at):
    a, b = my.open(at), my.open(at)
    assert a.park("x", SAME, wait_ms=1000, key="k", type="ty",
                  headers="N: v\n", body=b"\0\xff", error="e" * 300) == "parked"
    a.commit()
    assert a.park("x", SAME) == "done"
    a.commit()
    (row,) = my.sql("SELECT consumer, id, state, due_ms - at_ms, `key`, type, "
                    "headers, body, error, filed FROM once_parked")
    assert row == (b"c", b"x", 1, 1000, b"k", b"ty", b"N: v\n", b"\0\xff",
                   b"e" * 255, 1)
    my.sql("UPDATE once_parked SET attempts = 1")
    assert a.claim("x", attempt=0) == a.claim("x", attempt=2) == "done"
    assert a.claim("x", attempt=1) == "run"
    a.rollback()
    a.commit()
    assert a.claim("x", attempt=1) == "run"
    call = Call(b.claim, "x", attempt=1)
    assert call.waits(my)
    a.commit()
    assert call.end() == "done"
    assert my.sql("SELECT COUNT(*) FROM once_parked") == ((0,),)


def test_what_cannot_run_is_parked_as_dead(my, at):
    a = my.open(at)
    long = "i" * 255
    assert a.claim(long, SAME) == "run"
    a.commit()
    for _ in range(2):
        assert a.park(long, OTHER) == "parked"
        assert a.park(OLD, SAME) == "parked"
        a.commit()
    assert my.sql("SELECT id, state, error, filed FROM once_parked "
                  "ORDER BY no") == (
        (long.encode() + b"#" + OTHER.hex().encode(), 3, b"mismatch", 0),
        (OLD.encode(), 3, b"outside", 0))


def test_a_message_is_not_parked_in_the_transaction_of_its_claim(my):
    a = my.open()
    assert a.claim("x") == "run"
    assert refused(a, a.park, "x")[0] == "ON014"
    a.rollback()
    assert a.park("x") == "parked"
    a.commit()
    assert a.claim("y") == "run"
    a.commit()
    assert a.park("y") == "done"


def test_a_reason_is_not_cut_within_a_character(my):
    a = my.open()
    a.park("x", error="a" + "é" * 200)
    a.park("y", error=None)
    a.commit()
    assert my.sql("SELECT error FROM once_parked ORDER BY no") == (
        (("a" + "é" * 127).encode(),), (b"",))


# ---- The outbox ----------------------------------------------------------


def test_a_message_leaves_with_its_transaction(my, at):
    a = my.open(at)
    a.emit()
    a.rollback()
    drawn = a.emit(b"\0\xff", key="k", type="t", headers="A: b\nC: d\n")
    assert a.emit("text", name="n") == "n"
    kept = a.emit(keep=1, due=99999999999999)
    assert a.emit(route="r2", name="n", due=1) == "n"
    a.commit()
    rows = my.sql("SELECT phase, kept, due_ms, route, id, `key`, type, headers,"
                  " body, fingerprint FROM once_outbox ORDER BY seq")

    def sum_of(body):
        return hashlib.sha256(body).digest()

    assert rows == (
        (0, 0, 0, b"r", drawn.encode(), b"k", b"t", b"A: b\nC: d\n", b"\0\xff",
         None),
        (0, 1, 0, b"r", b"n", None, b"", b"", b"text", sum_of(b"text")),
        (1, 1, 99999999999999, b"r", kept.encode(), None, b"", b"", b"b",
         sum_of(b"b")),
        (0, 1, 1, b"r2", b"n", None, b"", b"", b"b", sum_of(b"b")))
    assert a.emit("text", name="n") is None
    assert refused(a, a.emit, "other", name="n")[0] == "ON010"
    assert a.call("once_emit", "r", "b", None, None, None, None, None, None)


def test_drawn_ids_carry_their_time_and_differ(my):
    a = my.open()
    before = time.time() * 1000
    names = [a.emit() for _ in range(300)]
    after = time.time() * 1000
    assert len(set(names)) == len({name[14:] for name in names}) == 300
    for name in names:
        assert len(name) == 36 and name[14] == "7" and name[19] in "89ab"
        assert before - 1 <= int(name[:8] + name[9:13], 16) <= after
    assert {name[19] for name in names} == set("89ab")


def test_time_has_no_zone(my):
    a = my.open()
    for zone in "-11:00", "+00:00", "+13:00":
        a.run("SET time_zone = %s", zone)
        a.claim("c" + zone)
        a.emit(name="e" + zone)
        a.enter("try", "g" + zone)
    a.commit()
    now = time.time() * 1000
    for table in "once_inbox", "once_outbox", "once_barrier":
        times = [row[0] for row in my.sql("SELECT at_ms FROM " + table)]
        assert len(times) == 3
        assert all(abs(at - now) < 1800000 for at in times)


@pytest.mark.parametrize("first", ["commits", "rolls back"])
def test_writers_of_a_key_wait_for_each_other(my, at, first):
    a, b, c = my.open(at), my.open(at), my.open(at)
    a.emit("1", key="k")
    call = Call(b.emit, "2", key="k")
    c.emit("3", key="another")
    c.commit()
    assert call.waits(my)
    getattr(a, "commit" if first == "commits" else "rollback")()
    assert call.end()
    b.commit()
    assert my.sql("SELECT body FROM once_outbox WHERE `key` = 'k' ORDER BY seq"
                  ) == (((b"1",), (b"2",)) if first == "commits"
                        else ((b"2",),))


def appears_in_order(my, done):
    """Looks at what is there until it has ended: a row never appears before one
    of its key that is there already. Returns how many rows there were."""
    last = {}
    with contextlib.closing(my.open("READ COMMITTED", user="once")) as watcher:
        while True:
            over = done.is_set()
            rows = watcher.run("SELECT `key`, seq FROM once_outbox ORDER BY seq")
            watcher.commit()
            keys = {}
            for key, seq in rows:
                keys.setdefault(key, []).append(seq)
            for key, seen in keys.items():
                was = last.get(key, [])
                assert seen[:len(was)] == was, (key, seen, was)
            last = keys
            if over:
                return len(rows)


def test_a_storm_of_keys_is_in_order_and_has_no_deadlock(my, at):
    threads, each, keys = 8, 60, 12
    done, emitted = threading.Event(), []

    def write(number):
        draw = random.Random(number)
        session = my.open(at)
        n = 0
        for _ in range(each):
            session.emit(key="key%d" % draw.randrange(keys))
            if draw.random() < 0.2:
                session.rollback()
            else:
                session.commit()
                n += 1
        session.close()
        emitted.append(n)
        return "ended"

    watcher = Call(appears_in_order, my, done)
    writers = [Call(write, number) for number in range(threads)]
    assert [writer.end() for writer in writers] == ["ended"] * threads
    done.set()
    assert watcher.end() == sum(emitted)


# ---- Branches ------------------------------------------------------------

BRANCH = {  # op: (before any Try, after Try, after Confirm, after Cancel)
    "try": ("run", "done", "done", "refused"),
    "confirm": ("early", "run", "done", "conflict"),
    "cancel": ("empty", "run", "conflict", "done")}


@pytest.mark.parametrize("op", BRANCH)
def test_each_order_of_a_branch(my, at, op):
    a = my.open(at)
    for number, before in enumerate(([], ["try"], ["try", "confirm"],
                                     ["try", "cancel"], ["cancel"])):
        gid = "g%d" % number
        for step in before:
            assert a.enter(step, gid) in ("run", "empty")
            a.commit()
        assert a.enter(op, gid) == BRANCH[op][min(number, 3)]
        a.rollback()
        assert a.enter(op, gid) == BRANCH[op][min(number, 3)]
        a.commit()


def test_a_cancel_that_meets_a_try_undoes_it(my, at):
    a, b = my.open(at), my.open(at)
    assert a.enter("try") == "run"
    call = Call(b.enter, "cancel")
    assert call.waits(my)
    a.commit()
    assert call.end() == "run"
    b.commit()
    assert a.enter("try") == "refused"


@pytest.mark.parametrize("flag", [0, CLIENT.FOUND_ROWS])
def test_it_does_not_matter_how_the_client_counts_rows(my, flag):
    a = my.open(client_flag=flag)
    token = a.begin("x")[3]
    assert a.finish("x", token) == "ok"
    assert [a.enter(op) for op in ("try", "try", "cancel", "cancel", "try")] == [
        "run", "done", "run", "done", "refused"]
    assert a.park("p") == "parked"
    assert (a.claim("p", attempt=1), a.claim("p", attempt=0)) == ("done", "done")
    a.commit()
    my.sql("UPDATE once_parked SET attempts = 1")
    assert a.claim("p", attempt=1) == "run"


# ---- Arguments -----------------------------------------------------------

SECRET = "s3cret"
LONG = SECRET * 50
WRONG = {"missing": None, "empty": "", "long": LONG, "very long": LONG * 400,
         "space": SECRET + " ", "line": SECRET + "\n", "letter": SECRET + "é",
         "zero": SECRET.encode() + b"\0", "high": SECRET.encode() + b"\xff"}
CONTENT = {
    "type": (LONG, "\n" + SECRET, SECRET + "é", b"\xff"),
    "headers": (SECRET, SECRET + ":x\n", ":\n", SECRET + ": x", " : x\n",
                "A: b\n\n" + SECRET + ": x\n", "A: b\r\n", "A" * 256 + ": x\n",
                "A: " + "b" * 65535 + "\n", "é: x\n")}


@pytest.mark.parametrize("mode", ["", "STRICT_ALL_TABLES,ANSI_QUOTES",
                                  "NO_BACKSLASH_ESCAPES,PIPES_AS_CONCAT"])
def test_what_is_out_of_its_limits_is_named(my, mode):
    a = my.open()
    a.run("SET SESSION sql_mode = %s", mode)
    a.run("SET @none = NULL /*M!, SESSION default_regex_flags = "
          "'EXTENDED,MULTILINE,DOTALL' */")
    token = b"t" * 16
    calls = []
    for value in WRONG.values():
        calls += [("consumer", a.claim, ("x",), {"consumer": value}),
                  ("id", a.claim, (value,), {}), ("id", a.park, (value,), {}),
                  ("key", a.begin, (value,), {}),
                  ("key", a.finish, (value, token), {}),
                  ("route", a.emit, (), {"route": value}),
                  ("gid", a.enter, ("try", value), {}),
                  ("branch", a.enter, ("try", "g", value), {}),
                  ("op", a.enter, (value,), {})]
        if value is not None:
            calls += [("key", a.emit, (), {"key": value}),
                      ("id", a.emit, (), {"name": value}),
                      ("key", a.park, ("x",), {"key": value})]
    for field, values in CONTENT.items():
        for value in values:
            calls += [(field, a.emit, (), {field: value}),
                      (field, a.park, ("x",), {field: value})]
    for value in SECRET, "", b"\xff" * 33, LONG:
        calls += [("fingerprint", a.claim, ("x", value), {}),
                  ("fingerprint", a.begin, ("x", value), {}),
                  ("fingerprint", a.park, ("x", value), {}),
                  ("token", a.finish, ("x", value), {})]
    calls += [("attempt", a.claim, ("x", None, -1), {}),
              ("state", a.park, ("x", None, 2), {}),
              ("state", a.park, ("x", None, None), {}),
              ("wait_ms", a.park, ("x",), {"wait_ms": -1}),
              ("wait_ms", a.park, ("x",), {"wait_ms": 2 ** 53}),
              ("wait_ms", a.park, ("x",), {"wait_ms": None}),
              ("body", a.emit, (None,), {}),
              ("body", a.park, ("x",), {"body": None}),
              ("due_ms", a.emit, (), {"due": -1}),
              ("token", a.finish, ("x", None), {}),
              ("kind", a.finish, ("x", token, 3), {}),
              ("kind", a.finish, ("x", token, None), {}),
              ("result", a.finish, ("x", token, 1, None), {})]
    for field, call, args, more in calls:
        state, number, words = refused(a, call, *args, **more)
        assert (state, number) == ("22023", 1644), (field, words)
        assert words.startswith(field + ": "), (field, words)
        assert SECRET not in words
    a.commit()
    assert nothing_is_written(my)


@pytest.mark.parametrize("size, fits", [(67108864, True), (67108865, False)])
def test_a_body_has_up_to_64_mib(mysql, my, size, fits):
    packet = mysql.sql("SELECT @@GLOBAL.max_allowed_packet")
    set_global(my, "max_allowed_packet = 1073741824")
    try:
        a = my.open(max_allowed_packet=1 << 30)
        big = b"a" * size
        token = a.begin("x")[3]
        if fits:
            assert a.emit(big, name="n") and a.park("p", body=big) == "parked"
            assert a.finish("x", token, 1, big) == "ok"
        else:
            for call, args, more in ((a.emit, [big], {}),
                                     (a.park, ["p"], {"body": big}),
                                     (a.finish, ["x", token, 1, big], {})):
                assert refused(a, call, *args, **more)[0] == "22023"
        a.rollback()
    finally:
        set_global(my, "max_allowed_packet = " + packet)


def test_what_is_within_its_limits_is_taken(my):
    a = my.open()
    visible = bytes(range(0x21, 0x7f))
    for name in "i", b"i" * 255, visible:
        assert a.claim(name, consumer=name) == "run"
        assert a.enter("try", name, name) == "run"
    assert a.emit(type=bytes(range(0x20, 0x7f)), key=visible, name=visible,
                  headers=b"!#$%&'*+-.^_`|~09azAZ: \x00\xff\t:\nB: \n")
    assert a.emit(headers="A: b\n" * 13107)
    a.commit()
    assert my.sql("SELECT `key`, id, headers FROM once_outbox ORDER BY seq "
                  "LIMIT 1") == ((visible, visible, b"!#$%&'*+-.^_`|~09azAZ: "
                                  b"\x00\xff\t:\nB: \n"),)


@pytest.mark.parametrize("charset", ["latin1", "utf8mb4"])
def test_bytes_arrive_as_they_were_given(my, charset):
    a = my.open(charset=charset)
    a.emit(bytes(range(256)))
    a.emit("é\\'\"\n%")
    a.commit()
    assert my.sql("SELECT body FROM once_outbox ORDER BY seq") == (
        (bytes(range(256)),),
        ("é\\'\"\n%".encode("latin1" if charset == "latin1" else "utf8"),))


# ---- What is visible and not durable -------------------------------------


def answers(session):
    """Each of these answers from a row that it did not write."""
    return {"done": lambda: session.claim("x"),
            "mismatch": lambda: session.claim("x", OTHER),
            "replay": lambda: session.begin("y")[0],
            "repeated": lambda: session.begin("x")[0],
            "parked": lambda: session.park("x"),
            "emitted": lambda: session.emit(name="n"),
            "entered": lambda: session.enter("try"),
            "conflict": lambda: session.enter("cancel", "h")}


@pytest.mark.parametrize("name", answers(None))
def test_an_answer_waits_until_what_it_shows_is_durable(mysql_slow, name):
    """A commit can be seen before it is flushed. Flushes take three seconds, so
    who was told of one commits when it has ended: behind it, by three more."""
    my = My(mysql_slow, "m%d" % next(_numbers))
    a, b = my.open(), my.open()
    token = a.begin("y")[3]
    a.finish("y", token)
    a.claim("x", SAME)
    a.emit(name="n")
    a.enter("try")
    a.enter("try", "h")
    a.enter("confirm", "h")
    mysql_slow.slow.touch()
    try:
        call = Call(a.commit)
        eventually(lambda: my.sql("SELECT COUNT(*) FROM once_inbox")[0][0] == 2,
                   "the commit can be seen")
        assert call.going()
        answers(b)[name]()
        b.commit()
        assert not call.going()
    finally:
        mysql_slow.slow.unlink()


# ---- What makes it -------------------------------------------------------


def definitions(my):
    return {name: (mysql_kit.kept(body), comment, security, mode) for
            name, body, comment, security, mode in my.sql(
                "SELECT ROUTINE_NAME, ROUTINE_DEFINITION, ROUTINE_COMMENT, "
                "SECURITY_TYPE, SQL_MODE FROM information_schema.ROUTINES "
                "WHERE ROUTINE_SCHEMA = '%s'" % my.name)}


def test_it_may_be_made_again_by_whom_and_however(my):
    """On MariaDB grants stay. The command line client makes the same, whatever the mode of
    its session, which stays as it was. Its account is not a superuser."""
    expected = {name: (body, "once 2", "DEFINER",
                       "STRICT_ALL_TABLES,NO_ENGINE_SUBSTITUTION")
                for name, body in mysql_kit.bodies(mysql_kit.text()).items()}
    assert len(expected) > 6
    assert definitions(my) == expected
    server = my.server
    server.sql("CREATE USER IF NOT EXISTS one@'%%'; GRANT EXECUTE ON "
               "PROCEDURE %s.once_emit TO one@'%%'" % my.name)
    done = subprocess.run(
        ["mariadb", "--no-defaults", "-h", server.address, "-P",
         str(server.port), "-u", "once", "--default-character-set=latin1",
         "-N", "-B", my.name],
        input="SET sql_mode = 'ANSI_QUOTES,NO_BACKSLASH_ESCAPES';\n"
        + mysql_kit.text() + "\nSELECT @@sql_mode, @@character_set_client, "
        "@@character_set_results, @@collation_connection;\n",
        capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["ANSI_QUOTES,NO_BACKSLASH_ESCAPES",
                                   "latin1", "latin1", "latin1_swedish_ci"]
    assert definitions(my) == expected
    if mysql_kit.MYSQL:  # it drops them first, as docs/mysql.md says
        server.sql("GRANT EXECUTE ON PROCEDURE %s.once_emit TO one@'%%'" % my.name)
    one = my.open(user="one")
    assert one.emit()
    one.commit()
    with pytest.raises(pymysql.MySQLError, match="denied"):
        one.claim("x")
    one.rollback()
    with pytest.raises(pymysql.MySQLError, match="denied"):
        one.run("SELECT * FROM once_outbox")


@of_mariadb
def test_it_is_made_again_while_programs_are_at_work(my):
    """Also beside a transaction that is open."""
    done, counts = threading.Event(), []
    still = my.open()
    assert still.emit()

    def work(number):
        session, n = my.open(), 0
        while not done.is_set():
            session.emit(key="k%d" % number)
            assert session.claim("%d-%d" % (number, n)) == "run"
            session.commit()
            n += 1
        counts.append(n)
        return "ended"

    calls = [Call(work, number) for number in range(3)]
    for _ in range(3):
        my.install()
    done.set()
    assert [call.end() for call in calls] == ["ended"] * 3
    still.commit()
    assert my.sql("SELECT COUNT(*) FROM once_outbox") == ((sum(counts) + 1,),)


def test_a_binlog_may_be_mixed(my, at):
    """The server warns of what a replica would do otherwise; there is nothing."""
    root = my.root()
    root.run("SET SESSION binlog_format = 'MIXED'")
    root.run("SET SESSION TRANSACTION ISOLATION LEVEL " + at)
    token = root.begin("x")[3]
    for call in (root.emit, [], {"key": "k"}), (root.finish, ["x", token], {}), \
            (root.claim, ["y"], {}), (root.claim, ["y"], {}), \
            (root.park, ["z"], {}), (root.enter, ["cancel"], {}):
        assert call[0](*call[1], **call[2])
        # MySQL says of any bytes in a literal that they are no text.
        assert [warning for warning in root.run("SHOW WARNINGS")
                if not (mysql_kit.MYSQL and warning[1] == 1300)] == []
    root.commit()


@pytest.mark.parametrize("table, call", [
    ("once_lock", lambda s: s.emit(key="k")),
    ("once_message_touch", lambda s: s.claim("x")),
    ("once_message_meta", lambda s: s.claim(OLD))])
def test_a_row_that_is_missing_is_named_and_made_up(my, table, call):
    a = my.open()
    a.claim("x")
    a.commit()
    my.sql("DELETE FROM " + table)
    state, _, words = refused(a, call, a)
    assert state == "ON003" and table in words
    a.rollback()
    my.install()
    assert call(a)
