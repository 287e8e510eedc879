# SPDX-License-Identifier: Apache-2.0
"""`once messages saga`: sagas listed, shown, and decided by an operator."""

import contextlib
import json
import sqlite3
import subprocess

import pytest

from once_cli import ONCE

STEP = """INSERT INTO once_saga_step(gid,branch,state,failed,round,try_to,
    confirm_to,cancel_to,type,body) VALUES(?,?,?,?,?,?,?,?,'',x'')"""
CALL = """INSERT INTO once_outbox(phase,kept,due_ms,at_ms,route,id,saga,type,
    headers,body) VALUES(0,1,0,0,?,?,?,'','',x'')"""


class Shop:
    def __init__(self, path):
        self.path = path
        self.url = "sqlite:%s" % path
        done = subprocess.run([ONCE, "--database", self.url, "messages", "init"],
                              capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr

    def saga(self, *arguments):
        return subprocess.run([ONCE, "--database", self.url, "messages", "saga", *arguments],
                              capture_output=True, text=True, check=False)

    def write(self, *statements):
        with contextlib.closing(sqlite3.connect(self.path)) as db, db:
            for text, values in statements:
                db.execute(text, values)

    def read(self, text):
        with contextlib.closing(sqlite3.connect(self.path)) as db:
            return db.execute(text).fetchall()

    def add(self, gid, state, steps, note=""):
        """Steps: (state, failed)."""
        self.write(("INSERT INTO once_saga VALUES(?,'trip',?,3,2000000000000,"
                    "1700000000000,1700000001000,x'',?)", (gid, state, note)),
                   *[(STEP, (gid, n, s, f, 0, "t%d" % n, None, "c%d" % n))
                     for n, (s, f) in enumerate(steps, 1)])


@pytest.fixture
def shop(tmp_path):
    return Shop(tmp_path / "shop.db")


def stuck(shop):
    """Step 2 was tried in vain and cancelled in vain."""
    shop.add("trip-1", 5, [(2, 0), (5, 3), (0, 0)], "step 2: its cancel was refused")


def test_ls_shows_what_waits_for_an_operator(shop):
    stuck(shop)
    shop.add("trip-2", 0, [(1, 0)])
    done = shop.saga("ls")
    assert done.returncode == 0
    assert done.stdout.splitlines() == [
        "trip-1\ttrip\tstuck\t3\t2023-11-14T22:13:21.000Z\t"
        "2033-05-18T03:33:20.000Z\tstep 2: its cancel was refused",
        "trip-2\ttrip\tgoing\t3\t2023-11-14T22:13:21.000Z\t"
        "2033-05-18T03:33:20.000Z\t-"]
    done = shop.saga("ls", "stuck", "--json")
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert [(r["gid"], r["state"], r["version"], r["step_count"])
            for r in rows] == [("trip-1", "stuck", 3, 3)]
    assert shop.saga("ls", "done").stdout == ""


def test_ls_goes_page_by_page(shop):
    for n in range(250):
        shop.add("g%03d" % n, 3, [(2, 0)])
    assert len(shop.saga("ls").stdout.splitlines()) == 250
    done = shop.saga("ls", "--max", "120")
    assert len(done.stdout.splitlines()) == 120
    assert "--after g119" in done.stderr
    assert len(shop.saga("ls", "--after", "g119").stdout.splitlines()) == 130


def test_show_tells_of_each_step(shop):
    stuck(shop)
    done = shop.saga("show", "trip-1")
    assert done.returncode == 0
    assert "step 2\tcancelling, refused  try t2  cancel c2\n" in done.stdout
    shown = json.loads(shop.saga("show", "trip-1", "--json").stdout)
    assert shown["steps"][1]["failed"] == "refused"
    assert shown["steps"][0]["state"] == "tried"
    assert shown["steps"][0]["call"] is None
    shop.add("trip-2", 0, [(1, 0)])
    shop.write((CALL, ("t1", "trip-2/1/try", "trip-2")))
    assert "row 1 ready, attempt 0" in shop.saga("show", "trip-2").stdout
    shown = json.loads(shop.saga("show", "trip-2", "--json").stdout)
    assert shown["steps"][0]["call"] == {"row": 1, "phase": "ready",
                                         "attempts": 0, "error": ""}


def test_retry_calls_again_under_a_new_id(shop):
    stuck(shop)
    done = shop.saga("retry", "trip-1", "--at-version", "3", "--why", "it is back")
    assert done.returncode == 0, done.stderr
    assert "state\tundoing" in done.stdout
    assert "it is back" in done.stdout
    assert shop.read("SELECT id, route FROM once_outbox") == [
        ("trip-1/2/cancel/1", "c2")]


def test_resolve_says_that_it_was_done(shop):
    stuck(shop)
    done = shop.saga("resolve", "trip-1", "--step", "2", "--at-version", "3",
                     "--why", "by telephone", "--json")
    assert done.returncode == 0, done.stderr
    shown = json.loads(done.stdout)
    assert shown["state"] == "undoing"
    assert [s["state"] for s in shown["steps"]] == [
        "cancelling", "cancelled", "waiting"]
    assert shop.read("SELECT id FROM once_outbox") == [("trip-1/1/cancel",)]


def test_abort_undoes(shop):
    shop.add("trip-2", 0, [(2, 0), (1, 0)])
    shop.write((CALL, ("t2", "trip-2/2/try", "trip-2")))
    done = shop.saga("abort", "trip-2", "--at-version", "3", "--why", "sold out")
    assert done.returncode == 0, done.stderr
    assert shop.read("SELECT id FROM once_outbox") == [("trip-2/2/cancel",)]


@pytest.mark.parametrize("arguments", [
    ("retry", "trip-1", "--at-version", "2", "--why", "x"),
    ("abort", "trip-1", "--at-version", "3", "--why", "x"),
    ("resolve", "trip-1", "--step", "1", "--at-version", "3", "--why", "x"),
    ("resolve", "trip-1", "--step", "9", "--at-version", "3", "--why", "x"),
    ("retry", "trip-9", "--at-version", "3", "--why", "x"),
    ("show", "trip-9"),
])
def test_a_decision_that_does_not_fit_changes_nothing(shop, arguments):
    stuck(shop)
    before = shop.read("SELECT * FROM once_saga"), shop.read(
        "SELECT * FROM once_saga_step")
    assert shop.saga(*arguments).returncode == 1
    assert before == (shop.read("SELECT * FROM once_saga"), shop.read(
        "SELECT * FROM once_saga_step"))
    assert shop.read("SELECT * FROM once_outbox") == []


@pytest.mark.parametrize("arguments, text", [
    ((), "say one of ls"),
    (("drop", "x"), "say one of ls"),
    (("ls", "dead"), "one of going"),
    (("ls", "stuck", "x"), "no further word"),
    (("show",), "the number or the gid"),
    (("show", "x", "--max", "3"), "--max does not go with show"),
    (("show", "x", "--at-version", "3"), "--at-version does not go with show"),
    (("retry", "x", "--why", "y"), "requires --at-version"),
    (("retry", "x", "--at-version", "3"), "--why TEXT is needed"),
    (("retry", "x", "--at-version", "3", "--why", "y", "--step", "1"), "--step"),
    (("resolve", "x", "--at-version", "3", "--why", "y"), "--step"),
    (("abort", "x", "--at-version", "0", "--why", "y"), "what show printed"),
])
def test_what_is_said_wrongly_is_told(shop, arguments, text):
    done = shop.saga(*arguments)
    assert done.returncode == 2
    assert text in done.stderr


def test_a_database_without_tables_is_told(tmp_path):
    done = subprocess.run([ONCE, "--database", "sqlite:%s/none.db" % tmp_path,
                           "messages", "saga", "ls"], capture_output=True, text=True,
                          check=False)
    assert done.returncode == 3
