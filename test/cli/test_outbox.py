# SPDX-License-Identifier: Apache-2.0
"""`once messages outbox` and `parked`: what an operator sees of rows of messages,
and decides about them."""

import contextlib
import hashlib
import json
import os
import sqlite3
import subprocess
import time

import pytest

from once_cli import Store, on_terminal
from test_servers import server  # noqa: F401 pylint: disable=unused-import

DEAD, INDETERMINATE = 3, 4
PHASES = ["ready", "waiting", "done", "dead", "indeterminate"]


class Shop(Store):
    """A program's database with tables of messages."""

    def __init__(self, folder):
        super().__init__(folder)
        self.ok("messages", "init")

    def sql(self, text, *values):
        with contextlib.closing(sqlite3.connect(self.path)) as db, db:
            return db.execute(text, values).fetchall()

    def emit(self, **columns):
        row = dict(phase=0, kept=1, due_ms=0, at_ms=1000, route="r",
                   id="secret-id", type="text/plain", headers="A: b\nC: d\n",
                   body=b"the body")
        row.update(columns)
        return self.sql("INSERT INTO once_outbox(%s) VALUES(%s) RETURNING seq"
                        % (",".join(row), ",".join("?" * len(row))),
                        *row.values())[0][0]

    def park(self, **columns):
        row = dict(consumer="c", id="secret-id", state=DEAD, attempts=2,
                   due_ms=5, at_ms=1000, type="t", headers="A: b\n",
                   body=b"the body", error="it failed", filed=1)
        row.update(columns)
        self.sql("INSERT INTO once_inbox VALUES(?,?,1,NULL,1,NULL,NULL)",
                 row["consumer"], row["id"])
        return self.sql("INSERT INTO once_parked(%s) VALUES(%s) RETURNING no"
                        % (",".join(row), ",".join("?" * len(row))),
                        *row.values())[0][0]


@pytest.fixture
def shop(tmp_path):
    return Shop(tmp_path)


def digits(text):
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def test_ls_shows_rows_and_no_id(shop):
    shop.emit(key="secret-key", phase=DEAD, attempts=3, refused=2, doubt=1,
              doubt_ms=7, error="it \x1b[1m failed")
    shop.emit(route="other", id="other")
    lines = shop.ok("messages", "outbox", "ls").splitlines()
    assert [line.split("\t") for line in lines] == [
        ["1", "r", "dead", "3", "1", "2", "1970-01-01T00:00:01.000Z", "-",
         digits("secret-id"), digits("secret-key"), r"it \x1b[1m failed"],
        ["2", "other", "ready", "0", "0", "0", "1970-01-01T00:00:01.000Z", "-",
         digits("other"), "-", "-"]]
    shown = shop.ok("messages", "outbox", "ls", "--ids", "--route", "r")
    assert "\tsecret-id\tsecret-key\t" in shown
    for more in ([], ["--json"]):
        for words in (["ls"], ["show", "1"]):
            assert "secret" not in shop.ok("messages", "outbox", *words, *more)
    seen = on_terminal(shop, "messages", "outbox", "ls")
    assert "PHASE" in seen and "secret" not in seen


def test_ls_turns_pages(shop):
    for i in range(1203):
        shop.emit(id=str(i), phase=DEAD if i == 7 else 1)
    assert len(shop.ok("messages", "outbox", "ls", "--all").splitlines()) == 1203
    done = shop.once("messages", "outbox", "ls", "--max", "600")
    assert len(done.stdout.splitlines()) == 600
    assert b"--after 600" in done.stderr
    rest = shop.ok("messages", "outbox", "ls", "--after", "1200").splitlines()
    assert [line.split("\t")[0] for line in rest] == ["1201", "1202", "1203"]
    assert len(shop.ok("messages", "outbox", "ls", "dead").splitlines()) == 1


def test_show_has_everything_but_bodies(shop):
    shop.emit(phase=2, status=201, reply=b"the reply", body=b"", saga="gid-1")
    text = shop.ok("messages", "outbox", "show", "1")
    for line in ("phase\tdone", "headers\tA, C", "body\t0", "reply\t9",
                 "status\t201", "saga\t" + digits("gid-1"), "kept\tyes"):
        assert line in text.splitlines(), text
    assert shop.ok("messages", "outbox", "show", "1", "--reply") == "the reply"
    shop.bad(1, "its body was not kept", "messages", "outbox", "show", "1", "--body")
    shop.emit(id="other")
    assert shop.ok("messages", "outbox", "show", "2", "--body") == "the body"
    shop.bad(1, "no reply", "messages", "outbox", "show", "2", "--reply")
    row = json.loads(shop.ok("messages", "outbox", "show", "2", "--json", "--ids"))
    assert (row["seq"], row["id"], row["id_hash"], row["body_bytes"]) == (
        2, "other", digits("other"), 8)
    assert row["leased"] is False and row["until"] is None
    shop.bad(1, "no row 3", "messages", "outbox", "show", "3")


@pytest.mark.parametrize("action, phase, becomes", [
    ("retry", DEAD, 0), ("retry", 1, 0), ("retry", INDETERMINATE, 0),
    ("resolve", DEAD, 2), ("resolve", INDETERMINATE, 2),
    ("drop", DEAD, None), ("drop", 0, None)])
def test_a_decision_changes_what_was_seen(shop, action, phase, becomes):
    shop.emit(phase=phase, attempts=3)
    words = ["messages", "outbox", action, "1"]
    why = ["--why", "ticket 12", "--attempt"]
    decide = [*words, PHASES[phase], *why]
    shop.bad(1, "refused", *decide, "2")
    for other in set(range(5)) - {phase}:  # as after the retry of another operator
        shop.bad(1, "refused", *words, PHASES[other], *why, "3")
    assert shop.sql("SELECT phase FROM once_outbox") == [(phase,)]
    assert shop.ok(*decide, "3") == "1\t%s\n" % action
    rows = shop.sql("SELECT phase,error FROM once_outbox")
    if becomes is None:
        assert rows == []
        shop.bad(1, "no row 1", *decide, "3")
    else:
        assert rows[0][0] == becomes
        assert rows[0][1].endswith("%s: ticket 12" % action)
        assert "uid %d" % os.getuid() in rows[0][1]
        shop.bad(1, "refused", *decide, "3")


def test_a_row_that_a_relay_has_is_left_alone(shop):
    shop.emit(attempts=1, lease_ms=int(time.time() * 1000) + 600000)
    assert shop.ok("messages", "outbox", "ls").split("\t")[2] == "leased"
    shop.bad(1, "refused", "messages", "outbox", "drop", "1", "ready", "--attempt", "1", "--why",
             "x")


@pytest.mark.parametrize("words, text", [
    ([], "say one of"), (["remove"], "say one of"), (["stats", "1"], "no further"),
    (["show"], "the number or the gid"), (["drop", "1"], "number and the phase"),
    (["drop", "1", "gone"], "one of ready"), (["show", "x"], "the row's number"),
    (["show", "1", "--body", "--json"], "exclude"),
    (["ls", "--why", "x"], "--why does not go with ls"),
    (["ls", "--route", "a b"], "visible"),
    (["ls", "gone"], "one of ready waiting"),
    (["retry", "1", "dead", "--why", "x"], "requires --attempt"),
    (["retry", "1", "dead", "--attempt", "1"], "--why TEXT is needed"),
    (["retry", "1", "dead", "--attempt", "1", "--why", "x" * 300], "too long"),
    (["purge", "--older", "soon"], "--older")])
def test_what_cannot_be_is_said(shop, words, text):
    shop.emit(phase=DEAD, attempts=1)
    shop.bad(2, text, "messages", "outbox", *words)
    assert shop.sql("SELECT phase FROM once_outbox") == [(DEAD,)]


def test_purge_forgets_rows_that_were_done_long_ago(shop):
    shop.emit(phase=2, due_ms=5)
    shop.emit(id="b", phase=DEAD, due_ms=5)
    assert json.loads(shop.ok("messages", "outbox", "purge", "--json")) == {"forgotten": 1}
    assert shop.sql("SELECT seq FROM once_outbox") == [(2,)]


def test_stats_count_rows(shop):
    shop.emit(phase=DEAD)
    shop.emit(id="b")
    shop.emit(id="c", route="other", phase=2)
    assert shop.ok("messages", "outbox", "stats").splitlines()[0] == \
        "other\t0\t0\t0\t1\t0\t0\t0"
    row = json.loads(shop.ok("messages", "outbox", "stats", "--json").splitlines()[1])
    assert (row["route"], row["ready"], row["dead"]) == ("r", 1, 1)
    assert row["oldest_ms"] > 10 ** 12


def test_parked_messages_are_shown_without_their_ids(shop):
    shop.park(key="secret-key")
    assert shop.ok("messages", "parked", "ls").rstrip("\n").split("\t") == [
        "1", "c", "dead", "2", "1970-01-01T00:00:01.000Z", "-",
        digits("secret-id"), digits("secret-key"), "it failed"]
    for words in (["ls"], ["show", "1"]):
        for more in ([], ["--json"]):
            assert "secret" not in shop.ok("messages", "parked", *words, *more)
        assert "secret-id" in shop.ok("messages", "parked", *words, "--ids")
    assert "PHASE" in on_terminal(shop, "messages", "parked", "ls")
    assert shop.ok("messages", "parked", "show", "1", "--body") == "the body"
    assert "headers\tA" in shop.ok("messages", "parked", "show", "1").splitlines()
    assert json.loads(shop.ok("messages", "parked", "show", "1", "--json"))["attempts"] == 2
    assert shop.ok("messages", "parked", "ls", "waiting") == ""
    assert shop.ok("messages", "parked", "ls", "--consumer", "other") == ""
    shop.bad(2, "waiting dead indet", "messages", "parked", "ls", "done")
    shop.bad(1, "no row 2", "messages", "parked", "show", "2")


def test_parked_messages_are_decided_about(shop):
    shop.park()
    shop.park(id="b", state=INDETERMINATE)
    shop.park(id="c")
    decide = ["--why", "ticket 12", "--attempt"]
    shop.bad(1, "refused", "messages", "parked", "retry", "1", "dead", *decide, "1")
    shop.bad(1, "refused", "messages", "parked", "resolve", "1", "indeterminate", *decide, "2")
    shop.ok("messages", "parked", "retry", "1", "dead", *decide, "2")
    shop.ok("messages", "parked", "resolve", "2", "indeterminate", *decide, "2")
    assert json.loads(shop.ok("messages", "parked", "drop", "3", "dead", *decide, "2", "--json")) \
        == {"row": 3, "decision": "drop"}
    assert shop.sql("SELECT no,state,attempts FROM once_parked") == [(1, 1, 0)]
    assert shop.ok("messages", "parked", "stats").split("\t")[:4] == ["c", "1", "0", "0"]
    assert shop.sql("SELECT count(*) FROM once_inbox") == [(3,)]


def test_a_database_without_tables_is_said(tmp_path):
    sqlite3.connect(tmp_path / "store.db").close()
    store = Store(tmp_path)
    (tmp_path / "store.db").touch()
    for command in ("outbox", "parked"):
        store.bad(3, "once messages init", "messages", command, "ls")


@pytest.mark.parametrize("server", ["postgres"], indirect=True)
def test_the_same_on_postgres(server):  # noqa: F811
    once = server.ok

    def sql(text):
        subprocess.run(["psql", "-qX", "-v", "ON_ERROR_STOP=1", "-c", "BEGIN",
                        "-c", text, "-c", "COMMIT", server.url], check=True,
                       timeout=60, stdout=subprocess.DEVNULL)

    once("messages", "init")
    sql("SELECT once.emit('r', 'the body', p_id => 'secret-id')")
    sql("UPDATE once.outbox SET phase = 3, attempts = 1")
    sql("SELECT once.inbox_park('c', 'a', NULL, 3, 0, NULL, '', '', 'x', 'y')")
    assert once("messages", "outbox", "ls").split("\t")[:4] == ["1", "r", "dead", "1"]
    assert once("messages", "outbox", "show", "1", "--body") == "the body"
    once("messages", "outbox", "retry", "1", "dead", "--attempt", "1", "--why", "ticket 12")
    assert once("messages", "outbox", "stats").split("\t")[:2] == ["r", "1"]
    once("messages", "outbox", "purge")
    assert once("messages", "parked", "ls").split("\t")[:4] == ["1", "c", "dead", "0"]
    once("messages", "parked", "drop", "1", "dead", "--attempt", "0", "--why", "ticket 12")
    assert once("messages", "parked", "stats") == ""


# ---- Many rows at once ------------------------------------------------------------

MANY = ("messages", "outbox", "retry")


def outage(shop):
    """Rows of two routes, some of them of before."""
    day = 86400000
    now = int(time.time() * 1000)
    seqs = {}
    for name, columns in {
            "old": dict(phase=DEAD, at_ms=now - 3 * day), "a": dict(phase=DEAD),
            "b": dict(phase=DEAD), "other": dict(phase=DEAD, route="s"),
            "unsure": dict(phase=INDETERMINATE), "waits": dict(phase=1),
            "done": dict(phase=2, due_ms=now), "ready": dict(phase=0)}.items():
        columns = dict(dict(at_ms=now, attempts=3), **columns)
        seqs[name] = shop.emit(id=name, **columns)
    return seqs


def phases(shop):
    return {name: PHASES[phase] for name, phase in
            shop.sql("SELECT id, phase FROM once_outbox")}


@pytest.mark.parametrize("words, changed", [
    (["dead", "--route", "r", "--since", "24h"], ["a", "b"]),
    (["dead", "--since", "24h"], ["a", "b", "other"]),
    (["dead", "--route", "s"], ["other"]), (["dead"], ["old", "a", "b", "other"]),
    (["waiting"], ["waits"]), (["indeterminate"], ["unsure"]),
    (["dead", "--max", "2"], ["old", "a"]),
    (["dead", "--route", "nobody"], [])])
def test_retry_takes_a_filter(shop, words, changed):
    seqs = outage(shop)
    before = phases(shop)
    done = shop.once(*MANY, *words, "--why", "the target was away")
    assert done.returncode == (0 if changed else 1), done
    assert done.stdout.decode() == "".join("%d\tretry\n" % seqs[n] for n in changed)
    assert b"%d to be sent again, 0 refused" % len(changed) in done.stderr
    assert phases(shop) == dict(before, **{name: "ready" for name in changed})
    log = [json.loads(line) for line in
           shop.ok("audit", "ls", "--json").splitlines()] if changed else []
    assert [line["action"] for line in log].count("outbox-retry") == 2 * len(changed)


def test_retry_takes_the_lines_of_ls(shop):
    seqs = outage(shop)
    before = phases(shop)
    kept = [line for line in shop.ok("messages", "outbox", "ls", "--json").splitlines()
            if json.loads(line)["seq"] in (seqs["a"], seqs["unsure"], seqs["other"],
                                           seqs["ready"])]
    shop.sql("UPDATE once_outbox SET attempts = 4 WHERE id = 'a'")
    path = shop.file("rows", ("\n".join(kept) + "\n").encode())
    done = shop.once(*MANY, "--records", path, "--why", "x", "--json")
    assert done.returncode == 1, done
    told = {o["row"]: o["decision"] for o in map(json.loads, done.stdout.splitlines())}
    assert told == {seqs["a"]: "refused", seqs["unsure"]: "retry", seqs["other"]: "retry",
                    seqs["ready"]: "refused"}
    assert phases(shop) == dict(before, unsure="ready", other="ready")


@pytest.mark.parametrize("words, text", [
    (["--why", "x"], "say which rows"), (["done", "--why", "x"], "waiting, dead or"),
    (["ready", "--why", "x"], "waiting, dead or"), (["gone", "--why", "x"], "one of"),
    (["dead"], "--why TEXT is needed"), (["1", "--why", "x"], "the phase of one"),
    (["dead", "--why", "x", "--attempt", "1"], "does not go with"),
    (["dead", "--why", "x", "--after", "1"], "does not go with"),
    (["dead", "--records", "/dev/null", "--why", "x"], "no filter goes with"),
    (["--records", "/dev/null", "--route", "r", "--why", "x"], "no filter goes with"),
    (["1", "dead", "--attempt", "1", "--route", "r", "--why", "x"], "does not go with"),
    (["dead", "--since", "soon", "--why", "x"], "--since")])
def test_retry_of_many_is_refused(shop, words, text):
    outage(shop)
    before = phases(shop)
    shop.bad(2, text, *MANY, *words)
    assert phases(shop) == before


@pytest.mark.parametrize("line", [
    "{", "7", '{"seq": 1}', '{"seq": "1", "phase": "dead", "attempts": 1}',
    '{"seq": 1, "phase": "gone", "attempts": 1}',
    '{"seq": 1, "phase": "dead", "attempts": -1}',
    '{"seq": -1, "phase": "dead", "attempts": 1}'])
def test_a_line_that_is_no_row_stops_all(shop, line):
    seqs = outage(shop)
    before = phases(shop)
    good = '{"seq": %d, "phase": "dead", "attempts": 3}' % seqs["a"]
    path = shop.file("rows", ("%s\n%s\n" % (good, line)).encode())
    shop.bad(2, "line 2", *MANY, "--records", path, "--why", "x")
    assert phases(shop) == before
    empty = shop.file("none", b"\n")
    shop.bad(1, "there is no row", *MANY, "--records", empty, "--why", "x")
