# SPDX-License-Identifier: Apache-2.0
"""test_schema.py - tables of messages that are older, incomplete, or another's
own: what `once messages init` and `check` make of them.

version-1.pg.sql and version-1.lite.sql are the texts of version 1, as they were."""
import contextlib
import itertools
import pathlib
import re
import sqlite3
import threading

import psycopg2
import pytest

from carry import Lite, Pg, once

HERE = pathlib.Path(__file__).resolve().parent
PG_SQL = (HERE / "../../src/messages/tables/pg.sql").read_text(encoding="ascii")
_numbers = itertools.count(1)


def version_1(name):
    text = (HERE / ("version-1.%s.sql" % name)).read_text(encoding="ascii")
    return text.replace("@schema@", "once").replace("@keep@", "604800000")


class Old(Pg):
    """A database with the tables of version 1."""

    def __init__(self, server, name):  # pylint: disable=super-init-not-called
        self.server = server
        self.name = name
        self.url = server.url()[:-len("once")] + name
        server.sql("CREATE DATABASE %s OWNER once" % name)
        with self.session() as cursor:
            cursor.execute(version_1("pg"))

    @contextlib.contextmanager
    def session(self):
        conn = psycopg2.connect(host=self.server.address, user="once",
                                port=self.server.port, dbname=self.name)
        conn.autocommit = True
        with contextlib.closing(conn), conn.cursor() as cursor:
            yield cursor


@pytest.fixture
def old(postgres):
    return Old(postgres, "old%d" % next(_numbers))


@pytest.fixture
def pg(postgres):
    return Pg(postgres, "new%d" % next(_numbers))


def check(db):
    return once("--database", db.url, "messages", "check", check=False)


def init(db):
    return once("--database", db.url, "messages", "init", check=False)


def shape(db):
    """All that was made, but for the order of columns that were added."""
    return sorted(db.sql(
        "SELECT c.relname, a.attname, format_type(a.atttypid, a.atttypmod), "
        "a.attnotnull FROM pg_attribute a JOIN pg_class c ON c.oid = a.attrelid"
        " WHERE c.relnamespace = 'once'::regnamespace AND a.attnum > 0")
        + db.sql("SELECT proname, md5(prosrc) FROM pg_proc WHERE pronamespace ="
                 " 'once'::regnamespace")
        + db.sql("SELECT tgname, '' FROM pg_trigger WHERE tgname ~ 'alone|fini'")
        + db.sql("SELECT version, keep_ms FROM once.message_meta"))


def test_tables_of_version_1_become_those_of_this_one(old, pg):
    assert check(old).returncode != 0
    old.sql("INSERT INTO once.relay_idle VALUES ('r', true)")
    assert init(old).returncode == 0
    assert check(old).returncode == 0
    assert init(old).returncode == 0
    assert shape(old) == shape(pg)


BOOK = """BEGIN; SELECT once.inbox_claim('billing', 'm%(n)d');
INSERT INTO effect VALUES (%(n)d); SELECT once.emit('r', %(body)s::bytea, 'k%(key)d');
COMMIT"""


def may_execute(db, role):
    return {row[0] for row in db.sql(
        "SELECT proname FROM pg_proc WHERE pronamespace = 'once'::regnamespace"
        " AND prosecdef AND has_function_privilege('%s', oid, 'EXECUTE')" % role)}


def test_a_role_may_call_what_it_might_call_before(old):
    """Their arguments are others by now, and what they call is."""
    old.server.sql("CREATE ROLE clerk")
    old.sql("GRANT EXECUTE ON FUNCTION once.inbox_claim, once.inbox_park,"
            " once.emit, once.barrier_enter, once.saga_start, once.begin,"
            " once.finish TO clerk")
    assert init(old).returncode == 0
    assert may_execute(old, "clerk") == {
        "inbox_claim", "inbox_park_bytes", "emit_bytes", "barrier_enter",
        "saga_start", "begin", "finish_bytes"}


def test_programs_go_on_while_the_tables_are_migrated(old):
    """Whatever a program was told is kept; a refusal is one to repeat."""
    old.sql("CREATE TABLE effect(n integer); GRANT ALL ON effect TO once")
    stop, told, refused = threading.Event(), [], []

    def book(first):
        with old.session() as cursor:
            for n in itertools.count(first, 4):
                if stop.is_set():
                    return
                try:
                    for text in BOOK.split(";"):
                        cursor.execute(text % {"n": n, "body": "'x'",
                                               "key": n % 3})
                    told.append(n)
                except psycopg2.Error as error:
                    refused.append(error.pgcode)
                    cursor.execute("ROLLBACK")

    programs = [threading.Thread(target=book, args=(i,)) for i in range(4)]
    for program in programs:
        program.start()
    try:
        while len(told) < 50:
            assert all(program.is_alive() for program in programs)
        done = init(old)
        before = len(told)
        while len(told) < before + 50:
            assert all(program.is_alive() for program in programs)
    finally:
        stop.set()
        for program in programs:
            program.join()
    assert done.returncode == 0, done.stderr
    assert set(refused) <= {"40P01", "40001", "55P03"}
    assert check(old).returncode == 0
    numbers = sorted((str(n),) for n in told)
    assert sorted(old.sql("SELECT n FROM effect")) == numbers
    assert sorted(old.sql("SELECT substr(id, 2) FROM once.inbox")) == numbers
    assert old.sql("SELECT count(*) FROM once.outbox") == [(str(len(told)),)]


def test_a_migration_that_fails_changes_nothing(old):
    old.sql("ALTER TABLE once.parked DROP COLUMN filed CASCADE")
    before = shape(old)
    done = init(old)
    assert done.returncode != 0
    assert shape(old) == before


@pytest.mark.parametrize("damage, named", [
    ("ALTER TABLE once.parked DROP COLUMN error", "column parked.error"),
    ("ALTER TABLE once.outbox ALTER lease_ms TYPE integer",
     "column outbox.lease_ms"),
    ("ALTER TABLE once.outbox ALTER key SET NOT NULL", "column outbox.key"),
    ("ALTER TABLE once.inbox DROP CONSTRAINT inbox_pkey", "inbox_pkey"),
    ("ALTER TABLE once.saga_step DROP CONSTRAINT saga_step_gid_fkey",
     "constraint saga_step"),
    ("DROP INDEX once.outbox_id; CREATE UNIQUE INDEX outbox_id ON once.outbox"
     " (route, id)", "outbox_id"),
    ("ALTER TABLE once.inbox DISABLE TRIGGER inbox_alone", "inbox_alone"),
    ("GRANT SELECT ON once.outbox TO PUBLIC", "rights on table outbox"),
])
def test_what_is_missing_is_named(pg, damage, named):
    assert check(pg).returncode == 0
    pg.sql(damage)
    for ask in (check, init):
        done = ask(pg)
        assert done.returncode != 0
        assert named in done.stderr, done.stderr


def test_a_table_of_another_owner_is_named(pg):
    pg.sql("ALTER TABLE once.outbox OWNER TO postgres")
    assert "table outbox is of another owner" in check(pg).stderr
    assert init(pg).returncode != 0


@pytest.mark.parametrize("damage, named", [
    ("DROP INDEX once.outbox_ready", "outbox_ready"),
    ("DROP TRIGGER outbox_alone ON once.outbox", "outbox_alone"),
    ("GRANT EXECUTE ON FUNCTION once.outbox_purge_1 TO PUBLIC",
     "everybody may execute"),
    ("ALTER FUNCTION once.finish_bytes RESET search_path", "search_path"),
    ("DROP FUNCTION once.finish_bytes", "function finish_bytes"),
    ("CREATE OR REPLACE FUNCTION once.check_1(p_field text, p_value text) "
     "RETURNS void LANGUAGE sql AS ''", "function check_1"),
])
def test_what_init_can_make_it_makes(pg, damage, named):
    pg.sql(damage)
    done = check(pg)
    assert done.returncode != 0
    assert named in done.stderr, done.stderr
    assert init(pg).returncode == 0
    assert check(pg).returncode == 0


def test_an_index_of_ones_own_does_no_harm(pg):
    pg.sql("CREATE INDEX mine ON once.outbox (at_ms);"
           "ALTER TABLE once.outbox ADD COLUMN mine text")
    assert check(pg).returncode == 0
    assert init(pg).returncode == 0


def test_every_step_is_named_by_the_version_it_starts_from():
    """A version without a step could not be left."""
    last = int(re.search(r"v_version > (\d+)", PG_SQL).group(1))
    steps = re.findall(r"IF v_version = (\d+) THEN", PG_SQL)
    assert steps == [str(n) for n in range(1, last)]
    assert "VALUES (%d, @keep@, 0)" % last in PG_SQL


# ---- SQLite --------------------------------------------------------------


def test_a_file_of_version_1_becomes_one_of_this(tmp_path):
    db = Lite(tmp_path)
    db.path.unlink()
    with contextlib.closing(sqlite3.connect(db.path)) as conn, conn:
        conn.executescript(version_1("lite"))
    assert check(db).returncode != 0
    assert init(db).returncode == 0
    assert check(db).returncode == 0
    assert db.sql("SELECT version FROM once_message_meta") == [("2",)]


@pytest.mark.parametrize("damage, named", [
    ("ALTER TABLE once_parked DROP COLUMN error", "column once_parked.error"),
    ("DROP INDEX once_outbox_id", "index once_outbox_id"),
])
def test_what_a_file_lacks_is_named(tmp_path, damage, named):
    db = Lite(tmp_path)
    db.sql(damage)
    done = check(db)
    assert done.returncode != 0
    assert named in done.stderr, done.stderr
    assert (init(db).returncode == 0) == ("INDEX" in damage)
