# SPDX-License-Identifier: Apache-2.0
"""test_plans.py - each statement that a relay or a consumer repeats, on tables of
a million rows: how many rows it reads, by the plans that PostgreSQL has made,
of all statements inside our functions. What it reads must not grow with what is
done, dead, parked, or another route's."""
import contextlib
import json

import psycopg2
import pytest

from carry import Pg

BATCH = 100
# Of the same sort as `r`, on whose behalf all is asked, are the others' rows.
ROWS = """
SET session_replication_role = replica;
ALTER TABLE once.outbox SET (autovacuum_enabled = off);
ALTER TABLE once.parked SET (autovacuum_enabled = off);
ALTER TABLE once.inbox SET (autovacuum_enabled = off);
INSERT INTO once.outbox (phase, kept, due_ms, at_ms, route, id, key, type,
        headers, body, attempts)
    SELECT CASE WHEN n <= 500000 THEN 2 WHEN n % 20 = 0 THEN 3
            WHEN n % 20 = 1 THEN 1 ELSE 0 END,
        true, CASE WHEN n % 20 = 1 THEN 9999999999999 ELSE 1 END, 1,
        CASE WHEN n % 4 = 0 THEN 'other' || n % 40 ELSE 'r' END, 'm' || n,
        CASE WHEN n % 3 = 0 AND (n % 20 <> 1 OR n % 100 = 1) THEN 'k' || n END,
        '', '', '', 1
    FROM generate_series(1, 1000000) n;
INSERT INTO once.saga (gid, kind, state, version, deadline_ms, at_ms, since_ms,
        fingerprint)
    SELECT 'g' || n, 'k', CASE WHEN n % 4 = 0 THEN 0 ELSE 3 END, 1,
        9999999999999, 1, 1, ''
    FROM generate_series(1, 100000) n;
INSERT INTO once.saga_step (gid, branch, state, try_to, type, body)
    SELECT 'g' || n, b, CASE WHEN n % 4 = 0 THEN 2 - b ELSE 2 END, 'r', '', ''
    FROM generate_series(1, 100000) n, generate_series(1, 2) b;
INSERT INTO once.outbox (phase, kept, due_ms, at_ms, route, id, saga, type,
        headers, body, attempts, lease_ms)
    SELECT 0, true, 1, 1, 'calls', 'g' || n || '/1/try', 'g' || n, '', '', '', 1,
        9999999999999
    FROM generate_series(4, 100000, 4) n;
INSERT INTO once.inbox (consumer, id, at_ms, kind)
    SELECT 'c' || n % 3, 'm' || n, 1800000000000, 1
    FROM generate_series(1, 1000000) n;
INSERT INTO once.parked (consumer, id, state, due_ms, at_ms, key, type, headers,
        body, error, filed)
    SELECT 'c' || n % 3, 'm' || n, CASE WHEN n % 5 = 0 THEN 1 ELSE 3 END,
        CASE WHEN n % 10 = 0 THEN n ELSE 9999999999999 END, 1,
        CASE WHEN n % 2 = 0 THEN 'k' || n END, '', '', '', '', true
    FROM generate_series(1, 300000) n;
SET session_replication_role = origin;
"""
# What is asked, and how many rows it may read.
STATEMENTS = {
    "claim": ("SELECT count(*) FROM once.outbox_claim_1('r', %d, 30000, false,"
              " false, false)" % BATCH, 60 * BATCH),
    "claim of single rows": ("SELECT count(*) FROM once.outbox_claim_1('r', %d,"
                             " 30000, false, false, true)" % BATCH, 60 * BATCH),
    "claim, passing": ("SELECT count(*) FROM once.outbox_claim_1('r', %d, 30000,"
                       " false, true, false)" % BATCH, 60 * BATCH),
    "claim, holding": ("SELECT count(*) FROM once.outbox_claim_1('r', 1, 30000,"
                       " true, false, true)", 60 * BATCH),
    "claim of a route without rows":
        ("SELECT count(*) FROM once.outbox_claim_1('none', %d, 30000, false,"
         " false, false)" % BATCH, BATCH),
    "settle": ("SELECT count(*) FROM once.outbox_settle_1(0, "
               "ARRAY[600002, 600003]::bigint[], '{1,1}', '{2,0}', '{0,0}',"
               " '{0,0}', '{0,0}', '{0,0}', '{NULL,NULL}', '{a,b}')", BATCH),
    "read a saga": ("SELECT count(*) FROM once.saga_read_1('g40000')", BATCH),
    "settle with a saga": ("SELECT 1 / (once.saga_settle_1('g40000', 1, 0, NULL,"
                           " '{{1,2,0,0},{2,1,0,0}}', '{}', '{{2,1}}',"
                           " ARRAY[(SELECT seq FROM once.outbox WHERE saga ="
                           " 'g40000'), 1, 1, 200], NULL, '') = 'ok')::integer",
                           BATCH),
    "idle": ("SELECT once.outbox_idle_1('r', true)", BATCH),
    "here": ("SELECT once.outbox_here_1('r')", BATCH),
    # Eleven routes, of which it counts the rows of eight.
    "strays": ("SELECT count(*) FROM once.outbox_strays_1(0, 8)", 82000),
    "sagas that are due": ("SELECT count(*) FROM once.saga_due_1(100)", BATCH),
    "emit": ("SELECT once.emit('r', 'x'::bytea, 'k3')", BATCH),
    "inbox_claim": ("SELECT once.inbox_claim('c1', 'm7')", BATCH),
    "inbox_park": ("SELECT once.inbox_park('c1', 'new', NULL, 1, 0, 'k7', '',"
                   " '', 'x', '')", BATCH),
    "take": ("SELECT count(*) FROM once.parked_take_1('c1', 1000, false)", BATCH),
    "take, keyed": ("SELECT count(*) FROM once.parked_take_1('c1', 1000, true)",
                    BATCH),
    "has_key": ("SELECT once.parked_has_key_1('c1', 'k8')", BATCH),
    "put_back": ("SELECT once.parked_put_back_1(10, 0, 1, 1000, '')", BATCH),
    "purge of the outbox": ("SELECT once.outbox_purge_1(0, 10)", BATCH),
}


@pytest.fixture(scope="module")
def pg(postgres):
    db = Pg(postgres, "plans")
    # Two million rows; a busy disk takes minutes for them.
    postgres.sql(ROWS, db.name, patience=600)
    return db


def read_by(plan):
    """Rows that the scans of a plan have read."""
    rows = sum(read_by(child) for child in plan.get("Plans", []))
    if "Scan" in plan["Node Type"] and plan["Node Type"] not in (
            "CTE Scan", "Function Scan", "Subquery Scan", "WorkTable Scan",
            "Values Scan", "Bitmap Heap Scan"):
        rows += plan["Actual Loops"] * (
            plan["Actual Rows"] + plan.get("Rows Removed by Filter", 0)
            + plan.get("Rows Removed by Index Recheck", 0))
    return rows


def reads(conn, text):
    """Rows that a statement has read, with all that is nested in it."""
    del conn.notices[:]
    with conn.cursor() as cursor:
        cursor.execute(text)
        conn.rollback()
    found = [json.loads(notice.split("plan:\n", 1)[1])
             for notice in conn.notices if "plan:\n" in notice]
    assert found, "no plan was written"
    found = [(read_by(plan["Plan"]), plan["Query Text"], plan["Plan"])
             for plan in found]
    return sum(rows for rows, *_ in found), max(found, key=lambda f: f[0])


@contextlib.contextmanager
def explaining(db):
    conn = psycopg2.connect(host=db.server.address, port=db.server.port,
                            user="postgres", dbname=db.name)
    conn.notices = []
    with contextlib.closing(conn), conn.cursor() as cursor:
        cursor.execute("LOAD 'auto_explain';"
                       "SET auto_explain.log_min_duration = 0;"
                       "SET auto_explain.log_analyze = on;"
                       "SET auto_explain.log_timing = off;"
                       "SET auto_explain.log_nested_statements = on;"
                       "SET auto_explain.log_format = json;"
                       "SET client_min_messages = log")
        conn.commit()
        yield conn


def test_what_is_repeated_reads_what_it_needs(pg):
    # As autovacuum leaves them, long before there are so many rows.
    pg.sql("VACUUM ANALYZE once.outbox")
    pg.sql("ANALYZE once.inbox; ANALYZE once.parked")
    too_many = {}
    with explaining(pg) as conn:
        for name, (text, most) in STATEMENTS.items():
            # From the sixth on the plan may be one for any parameters.
            for _ in range(7):
                rows, worst = reads(conn, text)
                if rows > most:
                    too_many[name] = (rows, worst[1], json.dumps(worst[2]))
                    break
    assert not too_many, "\n".join("%s: %d\n%s\n%s" % (name, *found)
                                   for name, found in too_many.items())


def test_who_looks_what_is_left_reads_no_row_that_is_done(pg):
    pg.sql("SET session_replication_role = replica;"
           "DELETE FROM once.outbox WHERE phase <> 2 AND seq % 1000 <> 0")
    pg.sql("VACUUM ANALYZE once.outbox")
    with explaining(pg) as conn:
        for _ in range(7):
            rows, worst = reads(conn, "SELECT sum(ready + waiting + dead) FROM"
                                " once.outbox_stats_1(false)")
            assert rows <= 1000, worst
