# SPDX-License-Identifier: Apache-2.0
"""
The API against a real gateway and its store: what is seen is what happened, and
what is decided is what clients get. Every answer is checked against
programs/console/openapi.yaml (console.py).
"""

import base64
import json
import os
import subprocess
import time
import uuid

import pytest

from conftest import me, operators
from probes import Ledger
from console import (DOCUMENT, MARK, ONCE, ROOT, Answer, Drop, Hold, eventually,
                     waiting)

STORES = ["sqlite", "journal"]
HASH = "f00dfeed" + "00" * 28


def test_session_tells_who_asks_and_what_he_may(console):
    me = console.get("session")
    assert set(me["rights"]) == {"view", "decide", "body"}
    assert me["decide"] is True and me["stores"] == ["main"]
    assert me["way"] == "console, socket"


def test_the_document_is_served_as_it_is_written(console):
    served = console.get("openapi.json")
    assert served == json.loads(json.dumps(DOCUMENT))


def test_a_lost_outcome_is_seen_with_what_it_is_about(world, console):
    before = console.get("stores/main")["counts"]["indeterminate"]
    world.lose(4711)
    r = waiting(console, 4711)
    assert r["state"] == "indeterminate" and r["reason"]
    assert r["label"].startswith("POST /pay/")
    store = console.get("stores/main")
    assert store["counts"]["indeterminate"] == before + 1
    assert store["oldest_waiting"] and store["answers"] is True
    assert store["durable"] is True and store["caveat"] is None
    assert console.get("stores")["stores"][0]["name"] == "main"
    one = console.record(r["name"])
    assert one["told"] == {"is": "problem", "status": 409,
                           "code": "outcome-unknown",
                           "text": "It is unknown whether it took effect."}


def test_a_store_is_shown_whatever_its_trouble_says(world):
    """It may name a path whose bytes are not text."""
    folder = world.folder / os.fsdecode(b"odd-\xff")
    folder.mkdir()
    url = "journal:%s/pay" % folder
    subprocess.run([ONCE, "--store", url, "init"], check=True,
                   stdout=subprocess.DEVNULL)
    console = world.console(stores={"main": world.url, "odd": url})
    folder.rename(world.folder / os.fsdecode(b"gone-\xff"))
    stores = eventually(lambda: [
        x for x in [console.get("stores")["stores"]] if x[1]["trouble"]])[0]
    assert [x["name"] for x in stores] == ["main", "odd"]
    assert "odd-\\xff/pay" in stores[1]["trouble"]
    assert stores[1]["answers"] is False


@pytest.mark.parametrize("action, status, kind", [
    ("success", 200, "success"), ("failure", 402, "failure")])
def test_what_is_decided_is_what_repeats_get(world, console, action, status,
                                             kind):
    case = world.lose(action)
    r = waiting(console, action)
    dry = console.decide(r, action, dry=True, why=None, confirm=None)
    assert dry.json["dry"] is True
    assert console.record(r["name"])["state"] == "indeterminate"
    done = console.decide(r, action)
    assert done.status == 200, done
    assert done.json["reply"] == dry.json["reply"]
    assert done.json["record"]["kind"] == kind
    assert done.json["audit_lacks"] is None
    again = world.repeat(case, action)
    assert again.status == status and again.replayed
    assert again.body == b'{"paid": true}'
    assert again.get("Content-Type") == "application/json"
    reply = done.json["reply"]
    assert reply["status"] == status
    assert reply["body"]["text"].encode() == again.body
    assert case.executions == 1


def test_the_note_says_who_why_and_which_decision(world, console):
    world.lose("note")
    r = waiting(console, "note")
    key = uuid.uuid4().hex
    note = console.decide(r, "applied", key=key,
                          why="ticket 77").json["record"]["note"]
    assert note.endswith(": applied, response lost: ticket 77")
    assert "once-console[" in note and " decision %s." % key in note
    assert note.split(" by ")[1].startswith(console.get("session")["user"])


def test_applied_means_that_the_answer_is_lost(world, console):
    case = world.lose("applied")
    r = waiting(console, "applied")
    assert console.decide(r, "applied").status == 200
    assert world.repeat(case, "applied").code() == "response-unavailable"
    assert console.record(r["name"])["told"]["code"] == "response-unavailable"


def test_reopen_only_where_the_service_recognises_keys(world, console):
    world.lose("hold")
    r = waiting(console, "hold")
    refused = console.decide(r, "reopen")
    assert refused.status == 409 and refused.code == "takeover"
    case = world.lose("open", prefix="/take/")
    assert console.decide(waiting(console, "open"), "reopen").status == 200
    assert world.repeat(case, "open").status == 201
    assert case.executions == 2


def test_acknowledge_changes_the_audit_log_and_nothing_else(world, console):
    world.lose("ack")
    r = waiting(console, "ack")
    key = uuid.uuid4().hex
    for _ in range(2):  # the second is answered as the first
        done = console.decide(r, "acknowledge", key=key)
        assert done.status == 200
        assert done.json["record"]["state"] == "indeterminate"
    lines = [e for e in console.audit() if e["action"] == "acknowledge"]
    assert [e["step"] for e in lines] == ["intent", "done"]
    assert waiting(console, "ack") == r


def test_raw_bytes_for_programs(world, console):
    name = "beef" * 16
    world.seed("lost", name, "0")
    r = console.record(name)
    done = console.decide(r, "success", raw=True, status=None, headers=None,
                          body=None, body_base64=base64.b64encode(
                              bytes(range(256))).decode())
    assert done.status == 200, done
    assert done.json["reply"]["is"] == "bytes"
    assert base64.b64decode(done.json["reply"]["body"]["base64"]) == \
        bytes(range(256))
    assert console.record(name)["told"] == {"is": "bytes", "body_bytes": 256}


def test_the_audit_log_has_intent_and_end(world, console):
    world.lose("logged")
    r = waiting(console, "logged")
    key = uuid.uuid4().hex
    assert console.decide(r, "failure", key=key).status == 200
    lines = [e for e in console.audit() if e.get("decision") == key]
    assert [e["step"] for e in lines] == ["intent", "done"]
    for line in lines:
        assert line["name"] == r["name"] and line["kind"] == "failure"
        assert line["why"] == "ticket 12" and line["way"] == "console, socket"
    shown = console.get("audit?limit=2")["lines"]
    assert [e["seq"] for e in shown] == [lines[1]["seq"], lines[0]["seq"]]
    older = console.get("audit?before=%d&limit=1" % lines[0]["seq"])
    assert older["lines"][0]["seq"] == lines[0]["seq"] - 1
    what = console.get("stores/main/records/%s/timeline" % r["name"])
    assert [e["what"] for e in what["events"]] == ["granted", "decided"]
    assert r["reason"] in what["events"][1]["text"]
    assert {e["seq"] for e in what["audit"]} == {e["seq"] for e in lines}


def test_what_a_probe_has_decided_is_told_and_needs_no_operator(world, console):
    case = world.lose("asked", "/asked/")
    r = waiting(console, "asked")
    ledger = Ledger(world.site)
    first = world.repeat(case, "asked")
    assert (first.status, first.once, ledger.asked) == (201, "replayed", 1)
    assert not any((w["label"] or "").endswith("order=asked")
                   for w in console.records(what="waiting", limit=200))
    what = console.get("stores/main/records/%s/timeline" % r["name"])
    (_, decided) = what["events"]
    assert decided["what"] == "decided"
    assert decided["text"].startswith("It was decided by a probe: ")
    assert r["reason"] in decided["text"] and what["audit"] == []
    assert "probe" in world.once("show", r["name"])


def test_the_audit_log_goes_back_over_renamed_files(world):
    console = world.console("--decide", "--operators",
                            operators(world, me() + " decide\n"))
    order = "rotated"
    world.lose(order)
    r = waiting(console, order)
    assert console.decide(r, "acknowledge").status == 200
    console.audit_file.rename(console.folder / "audit.jsonl.1")
    seen = console.get("audit")["lines"]
    assert [e["seq"] for e in seen] == [3, 2, 1]
    assert console.decide(r, "success").status == 200
    console.audit_file.rename(console.folder / "audit.jsonl-20261101")
    world.lose("another")
    assert console.decide(waiting(console, "another"), "success").status == 200
    seen, before = [], ""
    while before is not None:
        page = console.get("audit?limit=2" + before)
        seen += [e["seq"] for e in page["lines"]]
        before = page["next"] and "&before=%d" % page["next"]
    assert seen == list(range(9, 0, -1))
    told = console.get("stores/main/records/%s/timeline" % r["name"])
    assert [e["seq"] for e in told["audit"]] == [6, 5, 3, 2]


def test_without_an_audit_log_nothing_is_decided(world):
    console = world.console("--decide", unix=False)
    console.log_in()
    world.lose("mute")
    r = waiting(console, "mute")
    console.audit_file.mkdir()  # nobody can write a line to a folder
    refused = console.decide(r, "applied")
    assert refused.status == 503 and refused.code == "store"
    assert waiting(console, "mute") == r
    console.audit_file.rmdir()
    assert console.decide(r, "applied").status == 200


# ---- Lists ------------------------------------------------------------------


def test_pages_are_behind_a_place_and_lose_nothing(world, console):
    for i in range(7):
        world.lose("page%d" % i)
    whole = [r["name"] for r in console.records(what="waiting", limit=200)]
    seen, after = [], ""
    while after is not None:
        page = console.get("stores/main/records?what=waiting&limit=3" +
                           ("&after=" + after if after else ""))
        assert len(page["records"]) <= 3
        seen += [r["name"] for r in page["records"]]
        after = page["next"]
    assert seen == whole
    ended = [r["ended"] for r in console.records(what="waiting", limit=200)]
    assert ended == sorted(ended)


def test_filters(world, console):
    world.lose("filter")
    r = waiting(console, "filter")
    for query, is_in in (
            ("realm=" + r["group"], True), ("realm=nowhere", False),
            ("reason=" + r["reason"], True), ("reason=gap", False),
            ("older=86400", False)):
        found = console.get("stores/main/records?limit=200&" + query)
        assert (r["name"] in [x["name"] for x in found["records"]]) is is_in, \
            query


@pytest.mark.parametrize("query", [
    "what=none", "limit=0", "limit=201", "limit=x", "after=7", "older=-1",
    "realm=" + 33 * "x", "after=1-zz"])
def test_a_list_that_is_not_understood(console, query):
    r = console.ask("GET", "stores/main/records?" + query)
    assert r.status == 400 and r.code == "invalid"


def test_what_is_in_flight(world, console):
    hold = Hold(Answer(200, b"done"))
    case = world.site.case("/pay/", hold)
    client = case.start(query="order=live", headers=[("X-Tenant", "t")])
    r = eventually(lambda: [x for x in console.records(what="live")
                            if x["label"].endswith("order=live")])[0]
    assert r["state"] in ("claimed", "dispatched") and r["lease_until"]
    assert console.record(r["name"])["told"]["code"] == "in-flight"
    refused = console.decide(r, "applied")
    assert refused.status == 409 and refused.code == "owned"
    hold.go.set()
    client.read()
    client.hang_up()
    eventually(lambda: console.record(r["name"])["state"] == "completed")


def test_a_lost_owner_that_nobody_reaped_is_decided(world, console):
    """The gateway may be gone for good. (Here it may be the faster one.)"""
    name = uuid.uuid4().hex * 2
    world.seed("dispatched", name, "10", "0")
    r = console.record(name)
    done = eventually(lambda: [d for d in [console.decide(r, "applied")]
                               if d.status == 200])[0]
    assert done.json["record"]["state"] == "completed"


# ---- Find -------------------------------------------------------------------


def test_find_by_each_way(world, console):
    case = world.lose("find-me")
    r = waiting(console, "find-me")
    host = r["group"]
    for body in (
            {"by": "hash", "hash": r["name"][:8]},
            {"by": "hash", "hash": r["name"].upper()},
            {"by": "label", "label": "order=find-me"},
            {"by": "request", "scope": MARK + "tenant", "realm": host,
             "key": case.key},
            {"by": "request", "scope": MARK + "tenant", "realm": host,
             "method": "", "path": "", "key": case.key}):
        found = console.ask("POST", "find", body).json
        assert [x["name"] for x in found["matches"]] == [r["name"]], body
        assert found["complete"] is True
    # Its name has neither method nor path: this is another one.
    found = console.ask("POST", "find", {
        "by": "request", "scope": MARK + "tenant", "realm": host,
        "method": "POST", "path": case.path, "key": case.key}).json
    assert found["matches"] == []


def test_find_by_trace(world, console):
    trace = uuid.uuid4().hex
    case = world.site.case("/pay/", Drop())
    case.post(query="order=traced", headers=[
        ("X-Tenant", "t"),
        ("traceparent", "00-%s-00f067aa0ba902b7-01" % trace)])
    found = console.ask("POST", "find", {"by": "trace", "trace": trace}).json
    assert [x["trace"] for x in found["matches"]] == [trace]
    other = console.ask("POST", "find", {"by": "trace", "trace": "ab" * 16})
    assert other.json["matches"] == []


def test_find_by_group_and_key_of_a_program(world, console):
    done = world.once("run", "--store", world.url, "--group", "mails", "--key",
                      MARK + "mail-1", "--", "true")
    assert done == ""
    found = console.ask("POST", "find", {
        "by": "key", "group": "mails", "key": MARK + "mail-1"}).json["matches"]
    assert [x["state"] for x in found] == ["completed"]
    assert console.record(found[0]["name"])["told"]["is"] == "call"


@pytest.mark.parametrize("body", [
    {"by": "hash", "hash": "abc"}, {"by": "hash", "hash": "x" * 64},
    {"by": "hash"}, {"by": "none"}, {}, {"by": 7}, {"by": "label"},
    {"by": "trace", "trace": "12"}, {"by": "key", "group": 7, "key": "k"},
    {"by": "request", "realm": "a", "method": "POST", "path": "no-slash",
     "key": "k"}, {"by": "request", "realm": "a", "method": "POST", "key": "k"},
    {"by": "request", "realm": "a", "path": "/p", "key": "k"}])
def test_a_question_that_is_not_understood(console, body):
    r = console.ask("POST", "find", body)
    assert r.status == 400 and r.code == "invalid"


# ---- Bodies -----------------------------------------------------------------


def test_a_body_is_shown_for_a_reason_that_is_written_down(world, console):
    case = world.site.case("/pay/", Answer(200, b"\x00\xffbytes"))
    case.post(query="order=body", headers=[("X-Tenant", MARK + "tenant")])
    name, = [r["name"] for r in console.records(what="all", limit=200)
             if (r["label"] or "").endswith("order=body")]
    path = "stores/main/records/%s/body" % name
    assert console.ask("POST", path, {}).status == 400
    r = console.ask("POST", path, {"why": "the customer asks"})
    assert base64.b64decode(r.json["body"]["base64"]) == b"\x00\xffbytes"
    lines = [e for e in console.audit() if e["action"] == "body"]
    assert [e["step"] for e in lines] == ["intent", "done"]
    assert lines[0]["why"] == "the customer asks"
    world.lose("no-body")
    waits = waiting(console, "no-body")
    r = console.ask("POST", "stores/main/records/%s/body" % waits["name"],
                    {"why": "w"})
    assert r.status == 409 and r.code == "no-body"


# ---- Batches ----------------------------------------------------------------


def test_a_batch_decides_each_by_its_own_fence(world, console):
    cases = [world.lose("batch%d" % i) for i in range(4)]
    all_of = [waiting(console, "batch%d" % i) for i in range(4)]
    items = [{"name": r["name"], "fence": r["fence"], "attempt": r["attempt"]}
             for r in all_of]
    items[2] = dict(items[2], fence=str(int(items[2]["fence"]) + 1))
    body = {"action": "failure", "status": 503, "headers": [],
            "body": "down", "items": items}
    lines = len(console.audit())
    dry = console.ask("POST", "stores/main/batch", dict(body, dry=True))
    verdicts = [x["verdict"] for x in dry.json["results"]]
    assert verdicts == ["possible", "possible", "fence", "possible"]
    assert len(console.audit()) == lines
    assert waiting(console, "batch0") == all_of[0]
    key = uuid.uuid4().hex
    begin = time.monotonic()
    done = console.ask("POST", "stores/main/batch", dict(body, why="all down"),
                       **{"Idempotency-Key": key})
    assert time.monotonic() - begin >= 0.3  # ten a second
    assert [x["verdict"] for x in done.json["results"]] == [
        "done", "done", "fence", "done"]
    assert done.json["stopped"] is False
    for i in (0, 1, 3):
        again = world.repeat(cases[i], "batch%d" % i)
        assert again.status == 503 and again.body == b"down"
    assert waiting(console, "batch2") == all_of[2]
    after = [e for e in console.audit()[lines:] if e["step"] != "log"]
    steps = [(e["name"], e["step"]) for e in after]
    assert steps == [(items[i]["name"], step) for i in (0, 1, 3)
                     for step in ("intent", "done")]
    # Sent again, it is answered as the first time.
    again = console.ask("POST", "stores/main/batch",
                        dict(body, why="all down"), **{"Idempotency-Key": key})
    assert again.json == done.json
    assert [e for e in console.audit()[lines:] if e["step"] != "log"] == after


@pytest.mark.parametrize("change", [
    {"items": []}, {"items": [{"name": HASH, "fence": "1"}] * 501},
    {"items": [{"name": "abc", "fence": "1"}]}, {"items": 7},
    {"items": [{"name": HASH}]}, {"action": "acknowledge"}, {"action": "drop"},
    {"why": ""}, {"why": "two\nlines"}, {"status": 42}, {"status": None}])
def test_a_batch_that_is_not_understood(console, change):
    body = {"action": "failure", "status": 500, "body": "", "why": "w",
            "items": [{"name": HASH, "fence": "1"}]}
    body.update(change)
    body = {n: v for n, v in body.items() if v is not None}
    r = console.ask("POST", "stores/main/batch", body,
                    **{"Idempotency-Key": uuid.uuid4().hex})
    assert r.status == 400 and r.code == "invalid"


# ---- What a decision must be --------------------------------------------------


@pytest.mark.parametrize("change, text", [
    ({"action": "nothing"}, "action"), ({"why": ""}, "why"),
    ({"why": "x" * 513}, "why"), ({"why": "\x1b[2J"}, "why"),
    ({"confirm": "00000000"}, "first eight"), ({"confirm": None}, "first"),
    ({"fence": "0"}, "fence"), ({"fence": "x"}, "fence"), ({"fence": 7}, "fence"),
    ({"attempt": "1"}, "attempt"), ({"status": 600}, "status"),
    ({"status": 204}, "no body"), ({"body": 7}, "body"),
    ({"body": None, "body_base64": "%%%%"}, "base64"),
    ({"headers": [{"name": "Content-Length", "value": "3"}]}, "counted"),
    ({"headers": [{"name": "Set-Cookie", "value": "a=b"}]}, "never replayed"),
    ({"headers": [{"name": "X", "value": "a\r\nB: c"}]}, "one line"),
    ({"headers": [{"name": "a b", "value": "c"}]}, "one line"),
    ({"headers": [{"name": "X"}]}, "headers"), ({"raw": True}, "raw"),
    ({"value": True}, "value"), ({"value": 1, "status": None}, "value"),
    ({"value": True, "status": None, "headers": None, "body": "paid"}, "not JSON"),
    ({"value": True, "status": None, "headers": [{"name": "A", "value": "b"}],
      "body": "1"}, "headers go"),
    ({"keep_s": 0}, "keep_s"), ({"dry": 1}, "dry")])
def test_a_decision_that_is_not_understood(world, console, change, text):
    if not [r for r in console.records(what="waiting", limit=200)
            if r["label"] and r["label"].endswith("order=bad")]:
        world.lose("bad")
    r = waiting(console, "bad")
    lines = len(console.audit())
    change = dict(change)
    refused = console.decide(r, change.pop("action", "success"), **change)
    assert refused.status == 400 and text in refused.json["title"], refused
    assert waiting(console, "bad") == r
    assert len(console.audit()) == lines


def test_the_value_of_a_function(world, console):
    """What its callers get is in test/serve/test_calls.py: it is a body of JSON."""
    world.lose("value")
    r = waiting(console, "value")
    done = console.decide(r, "success", status=None, headers=None, value=True,
                          body='{"id": 7}')
    assert done.status == 200, done
    reply = done.json["reply"]
    assert reply["status"] == 200 and reply["headers"] == [
        {"name": "Content-Type", "value": "application/json"}]
    assert console.record(r["name"])["state"] == "completed"


def test_paths_that_lead_nowhere(console):
    for path in ("", "nothing", "stores/none", "stores/main/records/abc",
                 "stores/main/records/%s/none" % HASH, "stores//records"):
        assert console.ask("GET", path).status == 404, path
    assert console.ask("GET", "stores/main/records/" + HASH).code == "gone"
    assert console.ask("GET", "find").status == 405
    assert console.ask("POST", "stores", {}).status == 405
    assert console.send("PUT", "/api/v1/stores").status == 405
    assert console.send("GET", "/etc/passwd").status == 404


def test_a_request_that_is_too_large(console):
    r = console.ask("POST", "find", {"by": "hash", "hash": "x" * (3 << 20)})
    assert r.status == 413 and r.code == "too-large"


@pytest.mark.parametrize("body", ["", "[]", "{", '{"by":1,"by":2}', "null"])
def test_a_body_that_is_no_object(console, body):
    r = console.send("POST", "/api/v1/find", body, console.own().items())
    assert r.status == 400 and r.code == "invalid"


def test_every_answer_keeps_others_away(console):
    for path in ("/", "/app.js", "/style.css", "/api/v1/stores",
                 "/api/v1/nothing", "/nothing"):
        head = console.send("GET", path).headers
        assert head["Content-Security-Policy"].startswith("default-src 'none'")
        assert "require-trusted-types-for 'script'" in \
            head["Content-Security-Policy"]
        assert head["X-Content-Type-Options"] == "nosniff"
        assert head["Referrer-Policy"] == "no-referrer"
        assert head["Cross-Origin-Opener-Policy"] == "same-origin"
        assert head["Cross-Origin-Resource-Policy"] == "same-origin"
        assert head["Cache-Control"] == "no-store"
        assert "Access-Control-Allow-Origin" not in head


def test_pages_are_small_and_have_no_markup_from_data():
    import gzip  # pylint: disable=import-outside-toplevel
    folder = ROOT / "programs" / "console" / "pages"
    files = list(folder.iterdir())
    whole = sum(len(gzip.compress(f.read_bytes())) for f in files)
    assert whole <= 60 << 10
    assert len((folder / "style.css").read_text().splitlines()) <= 300
    for f in files:
        for word in ("innerHTML", "outerHTML", "insertAdjacentHTML", "eval(",
                     "document.write", "srcdoc", "style="):
            assert word not in f.read_text(), (f.name, word)
