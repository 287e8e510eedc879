# SPDX-License-Identifier: Apache-2.0
"""
Outbox, parked messages and sagas of a program's database: what the console shows
of them, what it keeps to itself, and what an operator decides.
"""

import hashlib
import socket
import threading

import pytest

import console as harness
from conftest import me, operators
from console import eventually
from shop import DEAD, GOING, INDETERMINATE, READY, STUCK, WAITING, Shop


@pytest.fixture
def shop(tmp_path):
    return Shop(tmp_path)


@pytest.fixture
def console(world, shop):
    it = world.console("--decide", "--operators", operators(
        world, me() + " decide\n"), "--database", "shop=" + shop.url)
    yield it
    it.close()
    world.consoles.remove(it)


def rows(console, kind, **more):
    r = console.ask("POST", "databases/shop/rows", dict(more, kind=kind))
    assert r.status == 200, r
    return r.json["rows"]


def row(console, kind, name):
    return console.ask("POST", "databases/shop/row", {
        "kind": kind, "name": str(name)})


def decide(console, kind, name, verb, seen, **more):
    if kind != "saga":
        more = {"phase": "dead", **more}
    return console.ask("POST", "databases/shop/decision", {
        "kind": kind, "name": str(name), "verb": verb, "seen": seen,
        "why": "ticket 12", **more})


def test_counts_lists_and_one_of_each(console, shop):
    dead = shop.emit()
    shop.emit(phase=WAITING, route="mails", id="b")
    shop.emit(phase=INDETERMINATE, id="c", saga="trip-1")
    shop.park(key="secret-key")
    shop.saga("trip-1", STUCK, [(2, 0), (5, DEAD), (0, 0)], "step 2 is stuck")
    found, = console.get("databases")["databases"]
    assert found["answers"] and found["sagas"]["stuck"] == 1
    bills = [c for c in found["outbox"] if c["of"] == "bills"][0]
    assert (bills["dead"], bills["indeterminate"]) == (1, 1)
    assert found["parked"][0]["dead"] == 1
    assert [r["phase"] for r in rows(console, "outbox")] == [
        "dead", "waiting", "indeterminate"]
    assert len(rows(console, "outbox", phase="dead")) == 1
    assert len(rows(console, "outbox", of="mails")) == 1
    one = row(console, "outbox", dead).json["row"]
    assert (one["of"], one["seen"], one["bytes"]) == ("bills", 3, 11)
    assert one["id"] == hashlib.sha256(b"secret-id").hexdigest()[:16]
    saga = row(console, "saga", "trip-1").json["row"]
    assert [s["state"] for s in saga["steps"]] == ["tried", "cancelling", "waiting"]
    assert saga["steps"][1]["failed"] == "refused"
    assert row(console, "outbox", 99).code == "gone"
    assert row(console, "saga", "none").code == "gone"


def test_no_id_key_or_body_is_shown(console, shop):
    shop.emit()
    shop.park(key="secret-key")
    for kind in ("outbox", "parked"):
        for r in (console.ask("POST", "databases/shop/rows", {"kind": kind}),
                  row(console, kind, 1)):
            assert r.status == 200 and b"secret" not in r.raw
    assert b"secret" not in console.ask("GET", "databases").raw
    assert decide(console, "outbox", 1, "retry", 3).status == 200
    assert "secret" not in console.audit_file.read_text()


def test_pages_lose_nothing(console, shop):
    names = [str(shop.emit(id="i%d" % i)) for i in range(7)]
    seen, after = [], {}
    while after is not None:
        some = console.ask("POST", "databases/shop/rows", dict(
            after, kind="outbox", limit=3)).json
        seen += [r["name"] for r in some["rows"]]
        after = some["next"] and {"after": some["next"]}
    assert seen == names


@pytest.mark.parametrize("kind, verb, becomes", [
    ("outbox", "retry", "ready"), ("outbox", "resolve", "done"),
    ("outbox", "drop", None), ("parked", "retry", "waiting"),
    ("parked", "drop", None)])
def test_a_decision_is_made_once_by_what_was_seen(console, shop, kind, verb,
                                                  becomes):
    name = shop.emit() if kind == "outbox" else shop.park()
    before = len(console.audit())
    seen = row(console, kind, name).json["row"]["seen"]
    assert decide(console, kind, name, verb, seen + 1).code == "state"
    assert row(console, kind, name).json["row"]["phase"] == "dead"
    assert decide(console, kind, name, verb, seen).status == 200
    now = row(console, kind, name)
    assert (now.json["row"]["phase"] if becomes else now.code) == (
        becomes or "gone")
    # The same again: it is not as it was seen any more.
    assert decide(console, kind, name, verb, seen).status in (404, 409)
    lines = [e for e in console.audit()[before:] if e["step"] != "log"]
    assert [e["step"] for e in lines[:4]] == ["intent", "refused", "intent", "done"]
    assert {e["action"] for e in lines} == {"%s-%s" % (kind, verb)}
    assert lines[3]["user"] == me() and lines[3]["why"] == "ticket 12"


@pytest.mark.parametrize("kind, table, becomes", [
    ("outbox", "once_outbox", "phase"), ("parked", "once_parked", "state")])
def test_an_old_page_decides_nothing(console, shop, kind, table, becomes):
    """Another operator has retried it: its count may be what the page shows."""
    name = shop.emit() if kind == "outbox" else shop.park()
    shop.sql("UPDATE %s SET %s=%d" % (
        table, becomes, READY if kind == "outbox" else WAITING))
    one = row(console, kind, name).json["row"]
    assert decide(console, kind, name, "drop", one["seen"]).code == "state"
    assert row(console, kind, name).json["row"] == one
    assert decide(console, kind, name, "drop", one["seen"],
                  phase=one["phase"]).status == 200
    assert row(console, kind, name).code == "gone"


def test_sagas_are_moved_on(console, shop):
    shop.saga("trip-1", STUCK, [(2, 0), (5, DEAD)])
    shop.saga("trip-2", GOING, [(1, 0)])
    assert decide(console, "saga", "trip-1", "abort", 3).code == "state"
    assert decide(console, "saga", "trip-1", "resolve", 3, step=2).status == 200
    assert row(console, "saga", "trip-1").json["row"]["phase"] != "stuck"
    assert decide(console, "saga", "trip-2", "abort", 3).status == 200
    assert row(console, "saga", "trip-2").json["row"]["phase"] in (
        "undoing", "undone")


CHOICE = {"kind": "outbox", "name": "1", "verb": "drop", "phase": "dead", "seen": 3,
          "why": "w"}


@pytest.mark.parametrize("path, body", [
    ("rows", {}), ("rows", {"kind": "none"}), ("rows", {"kind": 7}),
    ("rows", {"kind": "outbox", "phase": "stuck"}),
    ("rows", {"kind": "parked", "phase": "ready"}),
    ("rows", {"kind": "parked", "phase": "done"}),
    ("rows", {"kind": "outbox", "after": "x"}),
    ("rows", {"kind": "outbox", "limit": 0}),
    ("rows", {"kind": "outbox", "of": "x" * 300}),
    ("row", {"kind": "outbox"}), ("row", {"kind": "parked", "name": "-1"}),
    ("row", {"kind": "saga", "name": "x" * 300}),
    ("decision", dict(CHOICE, why=None)), ("decision", dict(CHOICE, seen=None)),
    ("decision", dict(CHOICE, verb=None)), ("decision", dict(CHOICE, phase=None)),
    ("decision", dict(CHOICE, verb="eat")),
    ("decision", dict(CHOICE, phase="leased")),
    ("decision", dict(CHOICE, kind="parked", why="w" * 500))])
def test_what_is_not_understood(console, shop, path, body):
    shop.emit()
    body = {n: v for n, v in body.items() if v is not None}
    r = console.ask("POST", "databases/shop/" + path, body)
    assert r.status == 400 and r.code == "invalid", r
    assert shop.sql("SELECT phase, attempts FROM once_outbox") == [(DEAD, 3)]


def test_read_only_decides_nothing_about_messages(world, shop):
    name = shop.emit()
    other = world.console("--database", "shop=" + shop.url)
    assert decide(other, "outbox", name, "drop", 3).code == "read-only"
    assert other.ask("POST", "databases/none/rows",
                     {"kind": "outbox"}).status == 404
    assert len(rows(other, "outbox")) == 1


def test_without_an_audit_log_nothing_is_decided(console, shop):
    name = shop.emit()
    console.audit_file.mkdir()
    assert decide(console, "outbox", name, "drop", 3).status == 503
    assert shop.sql("SELECT phase FROM once_outbox") == [(DEAD,)]


def test_a_database_that_is_away_says_so_and_comes_back(world, tmp_path):
    shop = Shop(tmp_path)
    console = world.console("--database", "shop=" + shop.url)
    gone = shop.path.rename(tmp_path / "gone.db")
    found = eventually(lambda: [
        d for d in console.get("databases")["databases"] if not d["answers"]])[0]
    assert found["trouble"]
    assert console.ask("POST", "databases/shop/rows",
                       {"kind": "outbox"}).status == 503
    gone.rename(shop.path)
    eventually(lambda: console.get("databases")["databases"][0]["answers"])


@pytest.fixture
def silent():
    """A server that takes a connection and never says a word: its listener."""
    with socket.create_server(("127.0.0.1", 0)) as it:
        yield it


def test_a_silent_database_keeps_nobody_waiting(world, shop, silent):
    other = world.console(
        "--decide", "--operators", operators(world, me() + " decide\n"),
        "--database", "quiet=postgres://127.0.0.1:%d/shop?connect_ms=60000" %
        silent.getsockname()[1], "--database", "shop=" + shop.url)
    name = shop.emit()
    asks = threading.Thread(target=other.ask, args=("GET", "databases"))
    asks.start()
    taken, _ = silent.accept()  # the first request waits for its answer
    quiet, well = other.get("databases")["databases"]
    assert not quiet["answers"] and "still being asked" in quiet["trouble"]
    assert well["answers"] and well["outbox"][0]["dead"] == 1
    for path, body in (
            ("rows", {"kind": "outbox"}), ("row", {"kind": "outbox", "name": "1"}),
            ("decision", {"kind": "outbox", "name": "1", "verb": "drop", "seen": 3,
                          "phase": "dead", "why": "w"})):
        r = other.ask("POST", "databases/quiet/" + path, body)
        assert r.status == 503 and "still being asked" in r.json["title"]
    assert row(other, "outbox", name).status == 200
    taken.close()
    silent.close()
    asks.join()


def test_a_url_that_is_none_is_said_at_the_start(world):
    import subprocess  # pylint: disable=import-outside-toplevel
    done = subprocess.run(
        [harness.CONSOLE, "--store", world.url, "--audit", "off", "--listen",
         "127.0.0.1:0", "--database", "none:secret"], capture_output=True,
        timeout=60)
    assert done.returncode == 2 and b"secret" not in done.stderr
