# SPDX-License-Identifier: Apache-2.0
"""
The store fails, answers late or not at all: http.md section 2 (the last two
rows) and "persist before reply" of section 3. The failing stores are real ones
behind `faulty:`, or a SQLite file whose write lock the test holds.
"""

import time

import pytest

from gateway import (Answer, Hold, Locked, Raw, eventually, guarded, is_new,
                     is_problem, is_replay, settles)

BYPASS = "once_lost takeover; once_store_failure bypass;"
LEASE = "once_lease 1s;"
INNER = ["sqlite", "memory"]


# ---- At the claim --------------------------------------------------------


@pytest.mark.parametrize("inner", INNER)
@pytest.mark.parametrize("rule", ["fail=claim:1-*", "lose=claim:1-*",
                                  "fail=any:1-*"])
@pytest.mark.parametrize("more", ["", "once_two_phase on;",
                                  "once_in_flight wait=5s;"])
def test_a_store_that_fails_at_the_claim_is_503_and_nothing_is_dispatched(
        make, rule, inner, more):
    if more and inner == "memory":
        pytest.skip("one store is enough for the variants")
    site = make(guarded("/pay/", more), store="faulty:%s@%s" % (rule, inner))
    c = site.case("/pay/")
    is_problem(c.post(), "store-unavailable")
    assert c.executions == 0
    assert site.get().status == 200
    # What is not guarded does not need the store.
    assert c.post(key=None).status == 201


@pytest.mark.parametrize("inner", INNER)
def test_a_store_that_fails_once_at_the_claim_is_asked_again(make, inner):
    site = make(guarded("/pay/"), store="faulty:fail=claim:1@" + inner,
                workers=1)
    c = site.case("/pay/")
    first = is_new(c.post())
    is_replay(c.post(), first)
    assert c.executions == 1


@pytest.mark.parametrize("inner", INNER)
@pytest.mark.parametrize("more", ["", "once_two_phase on;"])
def test_a_claim_that_was_applied_and_lost_is_still_ours(make, inner, more):
    site = make(guarded("/pay/", more), workers=1,
                store="faulty:lose=claim:1-2@" + inner)
    c = site.case("/pay/")
    first = is_new(c.post())
    is_replay(c.post(), first)
    assert c.executions == 1
    assert c.requests[0].get("Idempotency-Attempt") == "1"


@pytest.mark.parametrize("rule", ["fail=claim:1-*", "lose=claim:1-*"])
def test_bypass_under_takeover_passes_unprotected(make, rule):
    site = make(guarded("/pay/", BYPASS), store="faulty:%s@sqlite" % rule)
    c = site.case("/pay/")
    for n in (1, 2):
        r = c.post()
        assert (r.status, r.body, r.once) == (201, b"made\n", "unprotected")
        assert r.get("Idempotent-Replayed") is None
        assert c.executions == n
    assert c.requests[0].get("Idempotency-Key") == c.key


def test_bypass_is_only_for_a_store_that_fails(make):
    site = make(guarded("/pay/", BYPASS))
    c = site.case("/pay/")
    first = is_new(c.post())
    is_replay(c.post(), first)
    is_problem(c.post(body=b"other"), "key-reused")
    assert c.executions == 1


def test_a_locked_store_is_503_and_the_key_is_free_afterwards(make):
    site = make(guarded("/pay/"), workers=1)
    c = site.case("/pay/")
    is_new(site.case("/pay/").post())
    with Locked(site):
        is_problem(c.post(), "store-unavailable")
        assert c.executions == 0
        # The event loop does not wait with the store.
        assert site.get().status == 200

    def executed():
        r = c.post()
        if r.status == 201:
            return r
        # The claim may have come through late, its release a little later.
        assert r.code() in ("in-flight", "store-unavailable"), r
        return None

    first = is_new(eventually(executed))
    is_replay(c.post(), first)
    assert c.executions == 1


def test_a_store_that_is_slow_does_not_stop_other_requests(make):
    site = make(guarded("/pay/"), workers=1)
    is_new(site.case("/pay/").post())
    c = site.case("/pay/")
    with Locked(site):
        with c.start() as client:
            # One worker: were it waiting for the lock, this would hang.
            for _ in range(20):
                assert site.get().status == 200
            assert c.executions == 0
            client.hang_up()


# ---- At the mark (two-phase) ---------------------------------------------


@pytest.mark.parametrize("rule", ["lose=dispatch:1", "fail=dispatch:1"])
def test_a_mark_that_is_not_answered_is_repeated(make, rule):
    site = make(guarded("/pay/", "once_two_phase on;"), workers=1,
                store="faulty:%s@sqlite" % rule)
    c = site.case("/pay/")
    first = is_new(c.post())
    is_replay(c.post(), first)
    assert c.executions == 1


def test_without_its_mark_nothing_is_sent_and_the_key_comes_free(make):
    site = make(guarded("/pay/", "once_two_phase on; once_lease 1s;"),
                workers=1, store="faulty:fail=dispatch:1-*@sqlite")
    c = site.case("/pay/")
    assert c.post().status == 503
    assert c.executions == 0
    site.gateway.quit()
    site.restart_with("sqlite")

    def executed():
        r = c.post()
        assert r.status == 201 or r.code() == "in-flight", r
        return r if r.status == 201 else None

    first = is_new(eventually(executed))
    is_replay(c.post(), first)
    assert c.executions == 1


# ---- At complete ---------------------------------------------------------


@pytest.mark.parametrize("inner", INNER)
@pytest.mark.parametrize("more", ["", "once_two_phase on;", "once_final 2xx;"])
def test_a_completion_that_is_never_recorded_is_502_and_never_a_release(
        make, inner, more):
    site = make(guarded("/pay/", LEASE + more), workers=1,
                store="faulty:fail=complete:1-*@" + inner)
    c = site.case("/pay/", Answer(), Answer(201, b"a second execution\n"))
    r = c.post()
    is_problem(r, "outcome-unknown", 502)
    assert b"made" not in r.body
    settles(c, "outcome-unknown")
    assert c.executions == 1


@pytest.mark.parametrize("status", [500, 204])
def test_no_header_of_an_unrecorded_answer_gets_out(make, status):
    site = make(guarded("/pay/", LEASE), workers=1,
                store="faulty:fail=complete:1-*@sqlite")
    c = site.case("/pay/", Answer(status, b"", [("X-Own", "1")]))
    r = c.post()
    is_problem(r, "outcome-unknown", 502)
    assert r.get("X-Own") is None
    assert c.executions == 1


def test_what_was_lost_at_complete_is_not_executed_after_a_restart(make):
    site = make(guarded("/pay/", LEASE), workers=1,
                store="faulty:fail=complete:1-*@sqlite")
    c = site.case("/pay/", Answer(), Answer(201, b"a second execution\n"))
    is_problem(c.post(), "outcome-unknown", 502)
    # SIGQUIT would wait for the store, in order to record the outcome.
    site.gateway.kill_all()
    site.restart_with("sqlite")
    settles(c, "outcome-unknown")
    assert c.executions == 1


@pytest.mark.parametrize("inner", INNER)
@pytest.mark.parametrize("rule", ["lose=complete:1-3", "fail=complete:1-3"])
def test_a_completion_that_is_not_answered_is_repeated(make, inner, rule):
    site = make(guarded("/pay/"), workers=1,
                store="faulty:%s@%s" % (rule, inner))
    c = site.case("/pay/")
    first = is_new(c.post())
    is_replay(c.post(), first)
    assert c.executions == 1


def test_a_completion_applied_and_never_answered_replays_later(make):
    site = make(guarded("/pay/", LEASE), workers=1,
                store="faulty:lose=complete:1-*@sqlite")
    c = site.case("/pay/", Answer(), Answer(201, b"a second execution\n"))
    # The caller cannot be told a result that may not be there.
    is_problem(c.post(), "outcome-unknown", 502)
    again = c.post()
    assert (again.status, again.body, again.replayed) == (201, b"made\n", True)
    assert c.executions == 1


def test_a_mark_of_a_large_answer_that_is_never_recorded_is_502(make):
    site = make(guarded("/pay/", LEASE + "once_max_response 1k;"), workers=1,
                store="faulty:fail=complete:1-*@sqlite")
    c = site.case("/pay/", Answer(201, b"x" * 100000))
    r = c.post()
    is_problem(r, "outcome-unknown", 502)
    settles(c, "outcome-unknown")
    assert c.executions == 1


# ---- At release, give up, renew ------------------------------------------


@pytest.mark.parametrize("rule", ["lose=release:1-2", "fail=release:1-2"])
def test_a_release_that_is_not_answered_is_repeated(make, rule):
    site = make(guarded("/pay/"), workers=1, store="faulty:%s@sqlite" % rule)
    c = site.case("/pay/", Answer(429, b"later\n"), Answer())
    assert c.post().status == 429

    def executed():
        r = c.post()
        assert r.status == 201 or r.code() == "in-flight", r
        return r if r.status == 201 else None

    is_new(eventually(executed))
    assert c.executions == 2


@pytest.mark.parametrize("verb", ["give_up", "any"])
def test_giving_up_without_a_store_is_still_unknown(make, verb):
    # "any": the claim is the first operation and the only one that works.
    first = 2 if verb == "any" else 1
    site = make(guarded("/pay/", LEASE), workers=1,
                store="faulty:fail=%s:%d-*@sqlite" % (verb, first))
    c = site.case("/pay/", Raw(b""), Answer(201, b"a second execution\n"))
    if verb == "give_up":
        is_problem(c.post(), "outcome-unknown", 502)
        settles(c, "outcome-unknown")
    else:
        r = c.post()
        assert r.code() in ("outcome-unknown", "store-unavailable"), r
        is_problem(c.post(), "store-unavailable")
    assert c.executions <= 1
    site.gateway.quit()
    site.restart_with("sqlite")
    if c.executions:
        settles(c, "outcome-unknown")
    assert c.executions <= 1


def test_an_owner_that_cannot_renew_still_delivers_its_answer(make):
    site = make(guarded("/pay/", LEASE), workers=1,
                store="faulty:fail=renew:1-*@sqlite")
    hold = Hold()
    c = site.case("/pay/", hold, Answer(201, b"a second execution\n"))
    with c.start() as owner:
        hold.wait()
        # Its lease ends, for nobody heard of it ...
        settles(c, "outcome-unknown")
        # ... and the late answer is accepted all the same.
        hold.go.set()
        first = is_new(owner.read())
    is_replay(c.post(), first)
    assert c.executions == 1


def test_an_owner_that_renews_stays_the_owner(make):
    site = make(guarded("/pay/", "once_lease 3s;"), workers=1)
    hold = Hold()
    c = site.case("/pay/", hold, Answer(201, b"a second execution\n"))
    with c.start() as owner:
        hold.wait()
        # The store decides by this host's clock: its first lease is over now.
        end = time.time() + 3.5
        eventually(lambda: time.time() > end)
        is_problem(c.post(), "in-flight")
        hold.go.set()
        first = is_new(owner.read())
    is_replay(c.post(), first)
    assert c.executions == 1


# ---- Persist before reply ------------------------------------------------


@pytest.mark.parametrize("more", ["", "proxy_buffering off;",
                                  "once_two_phase on;", "gzip on;"])
@pytest.mark.parametrize("size", [5, 200000])
def test_not_one_byte_leaves_before_the_commit(make, more, size):
    site = make(guarded("/pay/", more), workers=1)
    body = b"<the answer>" + b"x" * size
    hold = Hold(Answer(201, body))
    c = site.case("/pay/", hold)
    with c.start() as client:
        hold.wait()
        with Locked(site):
            hold.go.set()
            # The upstream's connection ends when nginx has read its answer.
            eventually(lambda: hold.conn.open is False)
            site.turn()
            assert not client.has_bytes(0.2)
            assert not site.stored(b"<the answer>")
        first = is_new(client.read(), body=body)
        assert site.stored(b"<the answer>")
    is_replay(c.post(), first)
    assert c.executions == 1


@pytest.mark.parametrize("more", ["", "proxy_buffering off;"])
def test_with_a_commit_that_takes_500_ms_the_record_is_there_first(make, more):
    site = make(guarded("/pay/", more), workers=1,
                store="faulty:delay_ms=500@sqlite")
    c = site.case("/pay/", Answer(201, b"<the answer>"))
    with c.start() as client:
        eventually(client.has_bytes)
        # The very moment in which the first byte is here.
        assert site.stored(b"<the answer>")
        first = is_new(client.read(), body=b"<the answer>")
    is_replay(c.post(), first)
    assert c.executions == 1


def test_a_mark_is_durable_before_a_stream_begins(make):
    site = make(guarded("/pay/"), workers=1)
    hold = Hold(Raw(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream"
                    b"\r\n\r\ndata: one\n\n"))
    c = site.case("/pay/", hold)
    with c.start() as client:
        hold.wait()
        with Locked(site):
            hold.go.set()
            site.turn()
            assert not client.has_bytes(0.2)
        assert client.read().body == b"data: one\n\n"
    is_problem(c.post(), "response-unavailable")
    assert c.executions == 1
