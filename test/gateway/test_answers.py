# SPDX-License-Identifier: Apache-2.0
"""
http.md section 2: every situation, its answer, and whether it executes.
"""

import json

import pytest

from gateway import (PATIENCE, Answer, Drop, Hold, curl_h2, eventually,
                     guarded, is_new, is_problem, is_replay)

SERVER = (
    guarded("/pay/") +
    guarded("/wait/", "once_in_flight wait=%ds;" % PATIENCE) +
    guarded("/blink/", "once_in_flight wait=200ms;") +
    guarded("/small/", "once_max_response 1k;") +
    guarded("/dry/", "once_dry_run on;") +
    guarded("/cors/", "once_cors_expose on;"))

OTHER = b'{"amount": 6}'


def test_a_new_key_executes_and_a_repeat_replays(site):
    c = site.case("/pay/", Answer(201, b"first\n"), Answer(201, b"second\n"))
    first = is_new(c.post(), body=b"first\n")
    for _ in range(5):
        is_replay(c.post(), first)
    assert c.executions == 1


def test_another_request_in_flight_is_422_and_the_owner_is_untouched(site):
    hold = Hold()
    c = site.case("/pay/", hold)
    with c.start() as owner:
        hold.wait()
        is_problem(c.post(body=OTHER), "key-reused")
        hold.go.set()
        first = is_new(owner.read())
    is_replay(c.post(), first)
    assert c.executions == 1


def test_another_request_in_wait_mode_is_422_at_once(site):
    hold = Hold()
    c = site.case("/wait/", hold)
    with c.start() as owner:
        hold.wait()
        # It would wait for longer than the client has patience.
        is_problem(c.post(body=OTHER), "key-reused")
        hold.go.set()
        is_new(owner.read())
    assert c.executions == 1


def test_another_request_after_an_unknown_outcome_is_422(site):
    c = site.case("/pay/", Drop())
    is_problem(c.post(), "outcome-unknown", 502)
    is_problem(c.post(body=OTHER), "key-reused")
    is_problem(c.post(), "outcome-unknown")
    assert c.executions == 1


def test_another_request_after_an_unstorable_answer_is_422(site):
    c = site.case("/small/", Answer(body=b"x" * 5000))
    is_new(c.post(), body=b"x" * 5000)
    is_problem(c.post(body=OTHER), "key-reused")
    assert c.executions == 1


def test_a_repeat_in_flight_is_409_with_retry_after(site):
    hold = Hold()
    c = site.case("/pay/", hold)
    with c.start() as owner:
        hold.wait()
        for _ in range(3):
            is_problem(c.post(), "in-flight")
        hold.go.set()
        first = is_new(owner.read())
    is_replay(c.post(), first)
    assert c.executions == 1


def test_waiters_get_the_replay(site):
    hold = Hold()
    c = site.case("/wait/", hold)
    owner = c.start()
    hold.wait()
    waiters = [c.start() for _ in range(4)]
    site.turn()
    assert not any(w.has_bytes() for w in waiters)
    hold.go.set()
    first = is_new(owner.read())
    for waiter in waiters:
        is_replay(waiter.read(), first)
        waiter.hang_up()
    owner.hang_up()
    assert c.executions == 1


def test_a_waiter_gives_up_with_409_and_the_owner_is_untouched(site):
    hold = Hold()
    c = site.case("/blink/", hold)
    with c.start() as owner:
        hold.wait()
        is_problem(c.post(), "in-flight")
        assert not owner.has_bytes()
        hold.go.set()
        first = is_new(owner.read())
    is_replay(c.post(), first)
    assert c.executions == 1


def test_a_waiter_whose_client_leaves_never_touches_the_owner(site):
    hold = Hold()
    c = site.case("/wait/", hold)
    with c.start() as owner:
        hold.wait()
        for _ in range(3):
            waiter = c.start()
            site.turn()
            assert not waiter.has_bytes()
            waiter.hang_up()
        site.turn()
        assert not hold.conn.peer_gone()
        assert not owner.has_bytes()
        hold.go.set()
        first = is_new(owner.read())
    is_replay(c.post(), first)
    assert c.executions == 1


def test_waiters_learn_that_the_outcome_is_unknown(site):
    hold = Hold(Drop())
    c = site.case("/wait/", hold)
    with c.start() as owner, c.start() as waiter:
        hold.wait()
        site.turn()
        hold.go.set()
        answers = [owner.read(), waiter.read()]
    # Which of the two came first is up to the workers.
    answers.sort(key=lambda r: r.status)
    is_problem(answers[0], "outcome-unknown", 409)
    is_problem(answers[1], "outcome-unknown", 502)
    assert c.executions == 1


def test_a_waiter_takes_over_what_was_released(site):
    hold = Hold(Answer(429, b"later\n"))
    c = site.case("/wait/", hold, Answer(201, b"now\n"))
    with c.start() as one, c.start() as two:
        hold.wait()
        site.turn()
        hold.go.set()
        answers = sorted([one.read(), two.read()], key=lambda r: r.status)
    assert [a.status for a in answers] == [201, 429]
    is_new(answers[0], body=b"now\n")
    assert c.executions == 2


def test_an_unknown_outcome_is_409_without_retry_after(site):
    c = site.case("/pay/", Drop())
    is_problem(c.post(), "outcome-unknown", 502)
    for _ in range(3):
        is_problem(c.post(), "outcome-unknown")
    assert c.executions == 1


@pytest.mark.parametrize("size", [1025, 5000, 300000])
def test_an_answer_over_the_limit_comes_once_and_never_executes_again(
        site, size):
    body = b"y" * size
    c = site.case("/small/", Answer(body=body, headers=[("X-Own", "1")]))
    first = is_new(c.post(), body=body)
    assert first.get("X-Own") == "1"
    for _ in range(3):
        is_problem(c.post(), "response-unavailable")
    assert c.executions == 1


def test_a_small_answer_is_under_the_limit(site):
    c = site.case("/small/", Answer(body=b"y" * 500))
    first = is_new(c.post(), body=b"y" * 500)
    is_replay(c.post(), first)
    assert c.executions == 1


@pytest.mark.parametrize("status", [409, 422])
def test_an_application_s_own_409_or_422_goes_through_as_it_is(site, status):
    own = json.dumps({"code": "sold-out"}).encode()
    c = site.case("/pay/", Answer(status, own, [
        ("Content-Type", "application/json")]))
    first = is_new(c.post(), status, own)
    assert first.code() is None
    assert first.get("Cache-Control") is None
    is_replay(c.post(), first)
    assert c.executions == 1


def test_a_dry_run_records_and_never_answers_for_the_upstream(site):
    c = site.case("/dry/", Answer(201, b"one\n"), Answer(201, b"two\n"))
    for n, body in enumerate((b"one\n", b"two\n", b"two\n"), 1):
        r = c.post()
        assert (r.status, r.body) == (201, body)
        assert not r.replayed
        assert c.executions == n
    r = c.post(body=OTHER)
    assert (r.status, r.code()) == (201, None)


def test_cors_exposes_both_markers_on_the_answer_and_its_replay(site):
    c = site.case("/cors/", Answer(headers=[
        ("Access-Control-Allow-Origin", "*"),
        ("Access-Control-Expose-Headers", "X-Own")]))
    first, again = c.post(), c.post()
    assert again.replayed
    for r in (first, again):
        names = [n.strip().lower() for value in
                 r.all("Access-Control-Expose-Headers")
                 for n in value.split(",")]
        assert sorted(names) == ["idempotency-status", "idempotent-replayed",
                                 "x-own"]


def test_cors_is_left_alone_by_default(site):
    c = site.case("/pay/", Answer(headers=[
        ("Access-Control-Allow-Origin", "*"),
        ("Access-Control-Expose-Headers", "X-Own")]))
    for _ in range(2):
        assert c.post().get("Access-Control-Expose-Headers") == "X-Own"
    assert c.executions == 1


@pytest.mark.nginx_only("libmicrohttpd speaks no HTTP/2")
def test_both_protocols_share_one_record(site):
    c = site.case("/pay/")
    body = b'{"amount": 5}'
    first = is_new(c.post(body=body))
    r = curl_h2(site.gateway.h2, c.path,
                headers=[("Idempotency-Key", c.key)], body=body)
    assert (r.status, r.body, r.replayed) == (201, first.body, True)
    assert c.executions == 1


def test_the_answers_are_visible_at_once_to_every_worker(site):
    for _ in range(20):
        c = site.case("/pay/")
        first = is_new(c.post())
        is_replay(c.post(), first)
        assert c.executions == 1


def test_nothing_is_kept_of_a_request_without_a_key(site):
    c = site.case("/pay/")
    c.post(key=None)
    assert eventually(lambda: c.executions == 1)
    is_new(c.post())
    assert c.executions == 2
