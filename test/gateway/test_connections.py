# SPDX-License-Identifier: Apache-2.0
"""
What comes after an answer on the same connection: keep-alive and pipelining
behind every kind of answer, and the same contract over HTTP/2.
"""

import subprocess

import pytest

from gateway import (MARK, PATIENCE, Answer, Client, Drop, Hold, Raw,
                     curl_h2_args, guarded, is_new, is_problem, is_replay,
                     replays_in_the_end, request_bytes)

HTTP = """
    once_store broken faulty:fail=claim:1-*@sqlite:FOLDER/broken.db;
"""

SERVER = (
    guarded("/pay/") +
    guarded("/must/", "once_key_required on;") +
    guarded("/tenant/", scope="$http_x_tenant") +
    guarded("/small/", "once_max_response 1k;") +
    guarded("/big/", "client_body_buffer_size 1k; client_max_body_size 8m;") +
    guarded("/broken/", once="broken"))

NEXT = request_bytes("GET", "/open/next")
OTHER = b'{"amount": 6}'
LARGE = b"large " * 20000


def before(case):
    """Nothing happened before."""


def once(case):
    case.post()


# name: (location, script, what comes first, the request, the answer)
KINDS = {
    "a_new_answer": ("/pay/", [], before, {}, (201, None)),
    "a_new_empty_answer": ("/pay/", [Answer(204, b"")], before, {},
                           (204, None)),
    "a_large_answer": ("/pay/", [Answer(201, LARGE)], before, {},
                       (201, None)),
    "a_chunked_answer": ("/pay/", [Raw(
        b"HTTP/1.1 201 Made\r\nTransfer-Encoding: chunked\r\n\r\n"
        b"4\r\nmade\r\n0\r\n\r\n")], before, {}, (201, None)),
    "a_replay": ("/pay/", [], once, {}, (201, None)),
    "an_empty_replay": ("/pay/", [Answer(204, b"")], once, {}, (204, None)),
    "a_large_replay": ("/pay/", [Answer(201, LARGE)], once, {}, (201, None)),
    "a_replay_of_a_large_request": ("/big/", [], lambda c: c.post(body=LARGE),
                                    {"body": LARGE}, (201, None)),
    "a_replay_of_a_chunked_request": ("/pay/", [], once, {"chunked": True},
                                      (201, None)),
    "a_replayed_failure": ("/pay/", [Answer(500, b"no")], once, {},
                           (500, None)),
    "key_missing": ("/must/", [], before, {"key": None},
                    (400, "key-missing")),
    "key_invalid": ("/pay/", [], before, {"key": "a,b"},
                    (400, "key-invalid")),
    "key_invalid_with_a_large_body": ("/big/", [], before, {
        "key": "a,b", "body": LARGE}, (400, "key-invalid")),
    "key_invalid_with_a_chunked_body": ("/pay/", [], before, {
        "key": "a,b", "chunked": True}, (400, "key-invalid")),
    "scope_missing": ("/tenant/", [], before, {}, (401, "scope-missing")),
    "key_reused": ("/pay/", [], once, {"body": OTHER}, (422, "key-reused")),
    "first_unknown": ("/pay/", [Drop()], before, {},
                      (502, "outcome-unknown")),
    "truncated": ("/pay/", [Raw(b"HTTP/1.1 201 Made\r\nContent-Length: 9\r\n"
                                b"\r\nhalf")], before, {},
                  (502, "outcome-unknown")),
    "unknown": ("/pay/", [Drop()], once, {}, (409, "outcome-unknown")),
    "over_the_limit": ("/small/", [Answer(201, LARGE)], before, {},
                       (201, None)),
    "unavailable": ("/small/", [Answer(201, LARGE)], once, {},
                    (409, "response-unavailable")),
    "store_unavailable": ("/broken/", [], before, {},
                          (503, "store-unavailable")),
}


def expect(response, status, code):
    assert not response.truncated, response
    if code:
        is_problem(response, code, status)
    else:
        assert response.status == status and response.code() is None
        assert response.once in ("new", "replayed")
    assert response.get("Connection") != "close"


def expect_next(client):
    r = client.read("GET")
    assert (r.status, r.body, r.once) == (200, b"plain\n", None)


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS.keys())
@pytest.mark.parametrize("pipelined", [True, False],
                         ids=["pipelined", "keep_alive"])
def test_the_connection_goes_on_after(site, kind, pipelined):
    where, script, first, what, (status, code) = kind
    c = site.case(where, *script)
    first(c)
    with Client(site.gateway.port) as client:
        client.send(c.bytes(**what) + (NEXT if pipelined else b""))
        expect(client.read(), status, code)
        if not pipelined:
            client.send(NEXT)
        expect_next(client)


def test_the_connection_goes_on_after_in_flight(site):
    hold = Hold()
    c = site.case("/pay/", hold)
    with c.start() as owner:
        hold.wait()
        with Client(site.gateway.port) as client:
            client.send(c.bytes() + NEXT + c.bytes() + NEXT)
            for _ in range(2):
                expect(client.read(), 409, "in-flight")
                expect_next(client)
        hold.go.set()
        is_new(owner.read())
    assert c.executions == 1


def test_a_request_and_its_repetitions_may_be_pipelined(site):
    c = site.case("/pay/")
    with Client(site.gateway.port) as client:
        client.send(c.bytes() * 3 + c.bytes(body=OTHER) + c.bytes())
        first = is_new(client.read())
        is_replay(client.read(), first)
        is_replay(client.read(), first)
        is_problem(client.read(), "key-reused")
        is_replay(client.read(), first)
    assert c.executions == 1


def test_many_answers_of_every_kind_on_one_connection(site):
    with Client(site.gateway.port) as client:
        for _ in range(3):
            for where, script, first, what, answer in KINDS.values():
                c = site.case(where, *script)
                first(c)
                client.send(c.bytes(**what))
                expect(client.read(), *answer)
        client.send(NEXT)
        expect_next(client)


def test_expect_100_continue_is_answered_before_the_body(site):
    c = site.case("/pay/")
    data = c.bytes(headers=[("Expect", "100-continue")])
    head, _, body = data.partition(b"\r\n\r\n")
    for replayed in (False, True):
        with Client(site.gateway.port) as client:
            client.send(head + b"\r\n\r\n")
            assert client.reader.head().startswith(b"HTTP/1.1 100")
            client.send(body)
            r = client.read()
            assert (r.status, r.replayed) == (201, replayed)
    assert c.executions == 1


def test_a_body_that_comes_byte_by_byte(site):
    c = site.case("/pay/")
    data = c.bytes()
    with Client(site.gateway.port) as client:
        for i in range(len(data)):
            client.send(data[i:i + 1])
        first = is_new(client.read())
    is_replay(c.post(), first)
    assert c.executions == 1


def test_http_1_0_is_served_too(site):
    c = site.case("/pay/")
    for replayed in (False, True):
        with Client(site.gateway.port) as client:
            client.send(c.bytes().replace(b"HTTP/1.1", b"HTTP/1.0", 1))
            r = client.read()
            assert (r.status, r.body) == (201, b"made\n")
            assert r.replayed == replayed
    assert c.executions == 1


# ---- HTTP/2 --------------------------------------------------------------


@pytest.mark.nginx_only("libmicrohttpd speaks no HTTP/2")
def test_http2_new_and_replay(site):
    c = site.case("/pay/", Answer(201, b"made\n", [
        ("X-Multi", "b"), ("X-Multi", "a"), ("Location", "/orders/1")]))
    one, two = c.h2(), c.h2()
    for r in (one, two):
        assert (r.status, r.body) == (201, b"made\n")
        assert r.all("x-multi") == ["b", "a"]
        assert r.get("location") == "/orders/1"
    assert (one.once, two.once) == ("new", "replayed")
    assert two.replayed and c.executions == 1


@pytest.mark.nginx_only("libmicrohttpd speaks no HTTP/2")
@pytest.mark.parametrize("name", [k for k in KINDS if "chunked" not in k])
def test_over_http2_the_answers_are_the_same(site, name):
    where, script, first, what, (status, code) = KINDS[name]
    c = site.case(where, *script)
    body = what.get("body", b'{"amount": 5}')
    if first is once:
        c.post(body=b'{"amount": 5}')
    elif first is not before:
        first(c)
    r = c.h2(body=body, key=what.get("key", c.key))
    if code:
        is_problem(r, code, status)
    else:
        assert (r.status, r.code()) == (status, None)
        assert r.once in ("new", "replayed")


@pytest.mark.nginx_only("libmicrohttpd speaks no HTTP/2")
@pytest.mark.parametrize("size", [1, 20000, 500000])
def test_http2_bodies_in_both_directions(site, size):
    body = MARK.encode() + b"b" * size
    c = site.case("/big/", Answer(201, b"a" * size))
    one = c.h2(body=body)
    assert c.requests[0].body == body
    two = c.h2(body=body)
    assert one.body == two.body == b"a" * size and two.replayed
    is_problem(c.h2(body=body[:-1] + b"c"), "key-reused")
    assert c.executions == 1


@pytest.mark.nginx_only("libmicrohttpd speaks no HTTP/2")
def test_http2_two_key_lines(site):
    c = site.case("/pay/")
    r = c.h2(headers=[("idempotency-key", c.key)])
    is_problem(r, "key-invalid")
    assert c.executions == 0


@pytest.mark.nginx_only("libmicrohttpd speaks no HTTP/2")
def test_http2_other_methods_and_missing_keys_pass(site):
    c = site.case("/pay/")
    for r in (c.h2("GET"), c.h2("GET"), c.h2(key=None)):
        assert r.status == 201 and not r.replayed
    assert c.executions == 3


@pytest.mark.nginx_only("libmicrohttpd speaks no HTTP/2")
def test_http2_a_204_replays_without_length(site):
    c = site.case("/pay/", Answer(204, b""))
    for r in (c.h2(), c.h2()):
        assert (r.status, r.body) == (204, b"")
        assert r.get("content-length") is None
    assert c.executions == 1


@pytest.mark.nginx_only("libmicrohttpd speaks no HTTP/2")
def test_http2_a_client_that_leaves_after_dispatch(site):
    hold = Hold()
    c = site.case("/pay/", hold, Answer(201, b"a second execution\n"))
    # pylint: disable=consider-using-with
    curl = subprocess.Popen(
        curl_h2_args(site.gateway.h2, c.path,
                     headers=[("Idempotency-Key", c.key)]),
        stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)
    curl.stdin.write(b'{"amount": 5}')
    curl.stdin.close()
    hold.wait()
    curl.kill()
    curl.wait(PATIENCE)
    site.turn()
    assert not hold.conn.peer_gone(0.2)
    hold.go.set()
    r = replays_in_the_end(c, body=b'{"amount": 5}')
    assert (r.status, r.body) == (201, b"made\n")
    assert c.executions == 1
