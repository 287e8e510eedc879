# SPDX-License-Identifier: Apache-2.0
"""
http.md section 3: what becomes of an attempt, row by row. Whatever happens, the
upstream executes a key once unless it certainly did not execute before.
"""

import contextlib

import pytest

from gateway import (Answer, Client, Drop, Hold, Raw, Reset, Silent,
                     eventually, guarded, is_new, is_problem, is_replay,
                     message, replays_in_the_end)

SERVER = (
    guarded("/pay/", "proxy_http_version 1.1; proxy_read_timeout 60s;") +
    guarded("/old/", "proxy_http_version 1.0;") +
    guarded("/brief/", "proxy_read_timeout 300ms;") +
    guarded("/unbuffered/", "proxy_buffering off; proxy_http_version 1.1;") +
    guarded("/success/", "once_final 2xx;") +
    guarded("/chosen/", "once_final 2xx 404;") +
    guarded("/two/", "once_two_phase on;") +
    guarded("/alive/", 'proxy_http_version 1.1; proxy_set_header Connection'
            ' "";', target="http://alive") +
    guarded("/down/", target="http://down") +
    guarded("/name/", "resolver 127.0.0.1:1; resolver_timeout 300ms;"
            "set $there nowhere.test;", target="http://$there") +
    guarded("/upgrade/", "proxy_http_version 1.1;"
            "proxy_set_header Upgrade $http_upgrade;"
            'proxy_set_header Connection upgrade;'))

HTTP = """
    upstream down { server 127.0.0.1:1 down; }
    upstream alive { server UPSTREAM0; keepalive 8; }
"""


# ---- Not one byte was sent: released -------------------------------------


@pytest.mark.parametrize("more", ["", "once_two_phase on;"])
@pytest.mark.parametrize("store", ["sqlite", "memory"])
def test_a_refused_connection_records_nothing_and_the_retry_executes(
        make, store, more):
    site = make(guarded("/gone/", more, target="http://UPSTREAM1"),
                store=store, upstreams=2, listen=False)
    late = site.upstreams[1]
    c = site.case("/gone/")
    for _ in range(2):
        r = c.post()
        assert r.status == 502 and r.code() is None, r
        assert not r.replayed
    late.listen()
    first = is_new(c.post())
    is_replay(c.post(), first)
    assert c.executions == 1
    assert int(c.requests[0].get("Idempotency-Attempt")) >= 1


@pytest.mark.parametrize("where, statuses", [
    ("/down/", (502, 503)),
    pytest.param("/name/", (502, 503, 504), marks=pytest.mark.nginx_only(
        "the name of an upstream, resolved at run time"))])
def test_no_live_upstream_records_nothing(site, where, statuses):
    c = site.case(where)
    for _ in range(2):
        r = c.post()
        assert r.status in statuses and r.code() is None, r
        assert not r.replayed
    assert c.executions == 0
    # Another request is no mismatch: there is nothing to compare with.
    r = c.post(body=b"other")
    assert r.status in statuses and r.code() is None


@pytest.mark.nginx_only("TLS to an upstream")
def test_tls_that_fails_records_nothing(make):
    site = make(guarded("/tls/", target="https://UPSTREAM0"))
    c = site.case("/tls/")
    before = site.upstream.connections
    for n in (1, 2):
        r = c.post()
        assert r.status == 502 and r.code() is None, r
        # Each try went as far as the handshake.
        assert site.upstream.connections == before + n
    assert c.executions == 0


# ---- A complete response -------------------------------------------------


@pytest.mark.parametrize("status", [200, 202, 301, 400, 404, 500, 501,
                                    503])
def test_a_complete_response_is_stored_by_default(site, status):
    c = site.case("/pay/", Answer(status, b"mine\n"), Answer(201))
    first = is_new(c.post(), status, b"mine\n")
    is_replay(c.post(), first)
    assert c.executions == 1


@pytest.mark.parametrize("status", [401, 408, 421, 425, 429])
@pytest.mark.parametrize("where", ["/pay/", "/two/", "/success/"])
def test_what_says_not_applied_is_released(site, where, status):
    c = site.case(where, Answer(status, b"not now\n", [("Retry-After", "9")]),
                  Answer(201))
    r = c.post()
    assert (r.status, r.body) == (status, b"not now\n")
    assert r.get("Retry-After") == "9" and r.code() is None
    first = is_new(c.post())
    is_replay(c.post(), first)
    assert c.executions == 2
    numbers = [int(q.get("Idempotency-Attempt")) for q in c.requests]
    assert numbers == [1, 2]


@pytest.mark.parametrize("status", [500, 503, 404, 302])
def test_once_final_2xx_lets_a_failure_be_tried_again(site, status):
    c = site.case("/success/", Answer(status, b"no\n"),
                  Answer(status, b"no again\n"), Answer(201))
    for body in (b"no\n", b"no again\n"):
        r = c.post()
        assert (r.status, r.body, r.replayed) == (status, body, False)
    first = is_new(c.post())
    is_replay(c.post(), first)
    assert c.executions == 3
    numbers = [int(q.get("Idempotency-Attempt")) for q in c.requests]
    assert numbers == [1, 2, 3]


def test_once_final_2xx_still_knows_the_fingerprint_of_a_failure(site):
    c = site.case("/success/", Answer(500, b"no\n"))
    assert c.post().status == 500
    is_problem(c.post(body=b"other"), "key-reused")
    assert c.executions == 1


def test_once_final_takes_single_statuses(site):
    c = site.case("/chosen/", Answer(500, b"no\n"), Answer(404, b"gone\n"))
    assert c.post().status == 500
    first = is_new(c.post(), 404, b"gone\n")
    is_replay(c.post(), first)
    assert c.executions == 2


# ---- Sent, and no whole answer: indeterminate ----------------------------

BROKEN = {
    "dropped": Drop(),
    "reset": Reset(),
    "nothing_but_a_status_line": Raw(b"HTTP/1.1 201 Created\r\n"),
    "half_a_header": Raw(b"HTTP/1.1 201 Created\r\nX-Own: 1\r\nX-Ha"),
    "not_http": Raw(b"\x16\x03\x01 hello, is this the shop?\r\n\r\n"),
    "a_bad_status": Raw(b"HTTP/1.1 2x1 Created\r\n\r\n"),
    "a_bad_header": Raw(b"HTTP/1.1 201 Created\r\nBad\x00Name: 1\r\n"
                        b"Content-Length: 2\r\n\r\nok"),
    "no_body_at_all": Raw(b"HTTP/1.1 201 Created\r\nContent-Length: 50\r\n"
                          b"\r\n"),
    "half_a_body": Raw(b"HTTP/1.1 201 Created\r\nContent-Length: 50\r\n\r\n"
                       b"not fifty bytes"),
    "half_a_large_body": Raw(b"HTTP/1.1 201 Created\r\nContent-Length: 500000"
                             b"\r\n\r\n" + b"x" * 300000),
    "no_last_chunk": Raw(b"HTTP/1.1 201 Created\r\nTransfer-Encoding: chunked"
                         b"\r\n\r\n5\r\nhello\r\n"),
    "half_a_chunk": Raw(b"HTTP/1.1 201 Created\r\nTransfer-Encoding: chunked"
                        b"\r\n\r\n50\r\nhello"),
    "a_bad_chunk_size": Raw(b"HTTP/1.1 201 Created\r\nTransfer-Encoding: "
                            b"chunked\r\n\r\nzz\r\nhello\r\n0\r\n\r\n"),
    "a_body_cut_by_a_reset": Hold(Reset(), before=message(
        201, b"", [])[:-len(b"Content-Length: 0\r\n\r\n")] +
        b"Content-Length: 50\r\n\r\nhello"),
}
BROKEN["a_body_cut_by_a_reset"].go.set()


# Chunks that come unbuffered are a stream: test_capture.py.
@pytest.mark.parametrize("where, what", [
    (where, what) for where in ("/pay/", "/unbuffered/") for what in BROKEN
    if where == "/pay/" or "chunk" not in what])
def test_a_request_without_a_whole_answer_is_of_unknown_outcome(
        site, where, what):
    c = site.case(where, BROKEN[what], Answer(201, b"a second execution\n"))
    body = is_problem(c.post(), "outcome-unknown", 502)
    assert body["safe_new_key"] is False
    for _ in range(3):
        is_problem(c.post(), "outcome-unknown")
    assert c.executions == 1


@pytest.mark.parametrize("where", ["/two/", "/old/", "/success/", "/alive/"])
def test_a_dropped_request_is_unknown_under_every_policy(site, where):
    c = site.case(where, Drop(), Answer(201, b"a second execution\n"))
    is_problem(c.post(), "outcome-unknown", 502)
    is_problem(c.post(), "outcome-unknown")
    assert c.executions == 1


def test_a_kept_connection_that_ends_does_not_execute_twice(site):
    # The second request goes over the connection that the first one left.
    one = site.case("/alive/")
    is_new(one.post())
    two = site.case("/alive/", Drop(), Answer(201, b"a second execution\n"))
    is_problem(two.post(), "outcome-unknown", 502)
    is_problem(two.post(), "outcome-unknown")
    assert two.executions == 1


def test_silence_until_the_read_timeout_is_of_unknown_outcome(site):
    c = site.case("/brief/", Silent(), Answer(201, b"a second execution\n"))
    is_problem(c.post(), "outcome-unknown", 504)
    is_problem(c.post(), "outcome-unknown")
    assert c.executions == 1


def test_silence_in_the_middle_of_a_body_is_of_unknown_outcome(site):
    half = Hold(Silent(), before=b"HTTP/1.1 201 Created\r\n"
                b"Content-Length: 50\r\n\r\nhalf of it")
    half.go.set()
    c = site.case("/brief/", half, Answer(201, b"a second execution\n"))
    r = c.post()
    assert r.status in (502, 504)
    is_problem(r, "outcome-unknown", r.status)
    is_problem(c.post(), "outcome-unknown")
    assert c.executions == 1


def test_the_end_of_the_connection_is_an_end_where_no_length_is_said(site):
    c = site.case("/old/", Raw(b"HTTP/1.0 201 Created\r\nX-Own: 1\r\n\r\n"
                               b"until the end"))
    first = is_new(c.post(), body=b"until the end")
    is_replay(c.post(), first)
    assert c.executions == 1


# ---- The upstream's own word ---------------------------------------------


def word(status, outcome, body=b"so\n", **more):
    return Answer(status, body, [("Idempotency-Outcome", outcome),
                                 ("X-Own", "1")], **more)


def told(response, status):
    assert (response.status, response.body) == (status, b"so\n"), response
    assert response.get("Idempotency-Outcome") is None
    assert response.get("X-Own") == "1"
    assert response.code() is None and not response.replayed


@pytest.mark.parametrize("status", [201, 404, 500])
@pytest.mark.parametrize("where", ["/pay/", "/two/", "/unbuffered/"])
def test_not_applied_releases_whatever_the_status(site, where, status):
    c = site.case(where, word(status, "not-applied"), Answer(201))
    told(c.post(), status)
    first = is_new(c.post())
    is_replay(c.post(), first)
    assert c.executions == 2


@pytest.mark.parametrize("status", [201, 404, 500, 429])
def test_no_store_completes_without_body(site, status):
    c = site.case("/pay/", word(status, "no-store"), Answer(201))
    told(c.post(), status)
    for _ in range(2):
        is_problem(c.post(), "response-unavailable")
    assert c.executions == 1


@pytest.mark.parametrize("status", [200, 500, 503, 429])
def test_unknown_is_indeterminate(site, status):
    c = site.case("/pay/", word(status, "unknown"), Answer(201))
    told(c.post(), status)
    for _ in range(2):
        is_problem(c.post(), "outcome-unknown")
    assert c.executions == 1


@pytest.mark.parametrize("status", [200, 500, 429, 408])
@pytest.mark.parametrize("where", ["/pay/", "/success/"])
def test_applied_completes_whatever_the_status(site, where, status):
    c = site.case(where, word(status, "applied"), Answer(201))
    first = c.post()
    told(first, status)
    is_replay(c.post(), first)
    assert c.executions == 1


def test_the_word_counts_only_with_a_whole_answer(site):
    c = site.case("/pay/", Raw(
        b"HTTP/1.1 500 No\r\nIdempotency-Outcome: not-applied\r\n"
        b"Content-Length: 50\r\n\r\nhalf"), Answer(201))
    is_problem(c.post(), "outcome-unknown", 502)
    is_problem(c.post(), "outcome-unknown")
    assert c.executions == 1


def test_an_unheard_of_word_counts_as_none(site):
    c = site.case("/pay/", word(201, "perhaps"))
    first = c.post()
    told(first, 201)
    is_replay(c.post(), first)
    assert c.executions == 1


# ---- The client leaves ---------------------------------------------------


@pytest.mark.parametrize("where", ["/pay/", "/unbuffered/", "/two/", "/old/"])
def test_a_client_that_leaves_after_dispatch_finds_its_answer_later(
        site, where):
    hold = Hold()
    c = site.case(where, hold, Answer(201, b"a second execution\n"))
    client = c.start()
    hold.wait()
    client.hang_up()
    site.turn()
    # Left to itself nginx would close this connection, and soon.
    assert not hold.conn.peer_gone(0.2)
    is_problem(c.post(), "in-flight")
    hold.go.set()
    r = replays_in_the_end(c)
    assert (r.status, r.body) == (201, b"made\n")
    assert c.executions == 1


def test_a_client_that_leaves_in_the_middle_of_the_answer(site):
    size = 600000
    c = site.case("/pay/", Answer(201, b"z" * size), Answer(500))
    client = c.start()
    assert client.reader.exactly(1)
    client.hang_up()
    r = replays_in_the_end(c)
    assert (r.status, len(r.body)) == (201, size)
    assert c.executions == 1


def test_a_client_that_leaves_before_the_whole_body_claims_nothing(site):
    c = site.case("/pay/")
    data = c.bytes(body=b"x" * 2000)
    client = Client(site.gateway.port)
    client.send(data[:-500])
    site.turn()
    # Not even while it is still there.
    first = is_new(c.post())
    client.hang_up()
    site.turn()
    is_replay(c.post(), first)
    assert c.executions == 1


def test_a_client_that_leaves_right_after_the_last_byte_loses_nothing(site):
    for _ in range(10):
        c = site.case("/pay/")
        client = c.start()
        client.hang_up()
        # Executed or not: afterwards there is one execution and one answer.
        seen = eventually(lambda c=c: settled(c))
        assert (seen.status, seen.body) == (201, b"made\n")
        assert c.executions == 1


def settled(case):
    r = case.post()
    if r.status == 201:
        return r
    is_problem(r, "in-flight")
    return None


# ---- Streams and upgrades ------------------------------------------------

EVENT = b"data: one\n\n"


@pytest.mark.parametrize("where", ["/pay/", "/unbuffered/"])
def test_an_event_stream_passes_unbuffered_and_is_marked(site, where):
    hold = Hold(Raw(b"data: two\n\n"), before=(
        b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"
        b"Connection: close\r\n\r\n" + EVENT))
    c = site.case(where, hold, Answer(201, b"a second execution\n"))
    with c.start() as client:
        hold.wait()
        raw = client.reader.head()
        assert b"Idempotency-Status: new" in raw
        # The first event is here while the upstream still holds the second.
        while EVENT not in client.reader.buffer:
            assert client.reader.more()
        # Nothing leaves before it is recorded, so it is completed by now.
        is_problem(c.post(), "response-unavailable")
        hold.go.set()
        while b"data: two\n\n" not in client.reader.buffer:
            assert client.reader.more()
    is_problem(c.post(), "response-unavailable")
    assert c.executions == 1


def test_an_event_stream_with_parameters_is_one_too(site):
    c = site.case("/pay/", Raw(
        b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8"
        b"\r\n\r\n" + EVENT), Answer(201, b"a second execution\n"))
    assert c.post().body == EVENT
    is_problem(c.post(), "response-unavailable")
    assert c.executions == 1


def test_a_guarded_request_is_never_upgraded(site):
    # docs/http.md, section 8: Upgrade is not forwarded, HTTP goes on.
    c = site.case("/upgrade/", Answer(),
                  Answer(201, b"a second execution\n"))
    up = [("Upgrade", "echo"), ("Connection", "upgrade")]
    first = is_new(c.post(headers=up))
    assert c.requests[0].get("Upgrade") is None
    is_replay(c.post(headers=up), first)
    assert c.executions == 1


def test_an_upgrade_nobody_asked_for_is_of_unknown_outcome(site):
    c = site.case("/upgrade/", Raw(
        b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: echo\r\n"
        b"Connection: upgrade\r\n\r\nhello"),
                  Answer(201, b"a second execution\n"))
    is_problem(c.post(), "outcome-unknown", 502)
    is_problem(c.post(), "outcome-unknown")
    assert c.executions == 1
