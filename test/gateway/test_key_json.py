# SPDX-License-Identifier: Apache-2.0
"""
Keys that stand in a JSON body (`once_key_json`). The body decides, whatever its
type and its way here; the header of the client is not looked at. What is there
and is no key is refused, and never passes for "no key".
"""

import json
import os

import pytest

from gateway import (MARK, Client, Drop, Hold, eventually, guarded,
                     is_new, is_problem, is_replay, request_bytes)
from probes import Ledger, known, lose, probing, resolved
from stores import STORES, a_world, new_store
from test_key_time import uuid7

ID = "once_key_json /id; "

SERVER = (
    guarded("/pay/", ID) + guarded("/must/", ID + "once_key_required on;") +
    guarded("/two/", "once_key_json /from/id /at/0;") +
    guarded("/wait/", ID + "once_in_flight wait=30s;") +
    guarded("/phases/", ID + "once_two_phase on;") +
    guarded("/dry/", ID + "once_dry_run on;") +
    guarded("/same/", ID + "once_fingerprint json but=/n;") +
    guarded("/timed/", ID + "once_ttl 1h; once_key_time uuid7;") +
    guarded("/file/", ID + "client_body_in_file_only clean;"
            "client_body_buffer_size 1k;") +
    guarded("/stream/", ID + "proxy_request_buffering off;") +
    guarded("/whose/", ID, scope="$http_x_who"))

LIMIT = 64 * 1024


def unique():
    return MARK + os.urandom(6).hex()


def number_of(digits):
    return 10 ** (digits - 1) + int.from_bytes(os.urandom(6), "big")


def body_of(key, **more):
    return json.dumps({"id": key, **more}).encode()


def padded(key, size):
    """A body of so many bytes."""
    body = body_of(key, pad="")
    return body[:-2] + b"x" * (size - len(body)) + body[-2:]


@pytest.fixture(name="world", scope="module")
def the_world():
    with a_world() as world:
        yield world


@pytest.fixture(name="url", params=STORES)
def url_of(request, world, tmp_path):
    return new_store(world, request.param, tmp_path)


def invalid(c, body, text=None, **more):
    problem = is_problem(c.post(key=None, body=body, **more), "key-invalid")
    assert MARK not in json.dumps(problem), problem
    if text is not None:
        assert text in problem["detail"], problem


def test_the_same_key_in_the_body_is_the_same_request(make, url):
    site = make(SERVER, store=url)
    c, two, drop = (site.case("/pay/"), site.case("/two/"),
                    site.case("/pay/", Drop()))
    key = unique()
    first = is_new(c.post(key=None, body=body_of(key)))
    is_replay(c.post(key=None, body=body_of(key)), first)
    is_problem(c.post(key=None, body=body_of(key, amount=6)), "key-reused")
    is_new(c.post(key=None, body=body_of(key + "2")))
    assert c.executions == 2
    both = b'{"from": {"id": "%s"}, "at": [7]}' % key.encode()
    first = is_new(two.post(key=None, body=both))
    is_replay(two.post(key=None, body=both), first)
    assert two.executions == 1
    lost = body_of(unique())
    assert drop.post(key=None, body=lost).status == 502
    is_problem(drop.post(key=None, body=lost), "outcome-unknown")
    assert drop.executions == 1


def test_the_header_of_the_client_is_ignored_and_replaced(site):
    c = site.case("/pay/")
    key = unique() + '"\\'
    headers = [("Idempotency-Key", "another"), ("Idempotency-Key", "third")]
    first = is_new(c.post(body=body_of(key), headers=headers))
    is_replay(c.post(key="else", body=body_of(key)), first)
    is_replay(c.post(key=None, body=body_of(key)), first)
    is_new(c.post(body=body_of(key + "2"), headers=headers))
    assert c.executions == 2
    assert [r.all("Idempotency-Key") for r in c.requests] == [
        ['"%s"' % k.replace("\\", "\\\\").replace('"', '\\"')]
        for k in (key, key + "2")]


def test_a_number_is_the_key_as_it_is_written(site):
    c, same = site.case("/pay/"), site.case("/same/")
    number = number_of(18)
    first = is_new(c.post(key=None, body=b'{"id": %d}' % number))
    is_problem(c.post(key=None, body=b'{"id": "%d"}' % number), "key-reused")
    is_replay(c.post(key=None, body=b'{"id": %d}' % number), first)
    for other in (number + 1, -number):     # one and the same as a double
        is_new(c.post(key=None, body=b'{"id": %d}' % other))
    assert c.executions == 3
    assert c.requests[1].get("Idempotency-Key") == '"%d"' % (number + 1)
    number = number_of(18)
    first = is_new(same.post(key=None, body=b'{"id": %d, "n": 1}' % number))
    is_replay(same.post(key=None, body=b'{ "n":2, "\\u0069d":%d }' % number),
              first)
    assert same.executions == 1


def test_without_the_member_there_is_no_key(site):
    none = (b"{}", b'{"id": null}', b'{"query": "{ me }"}', b"null",
            b'{"other": {"id": "x"}}')
    c, must, two = site.case("/pay/"), site.case("/must/"), site.case("/two/")
    for body in none:
        response = c.post(body=body)
        assert (response.status, response.once) == (201, None), response
        is_problem(must.post(body=body), "key-missing")
    assert c.executions == len(none) and must.executions == 0
    # It was not looked at, and so it stays.
    assert c.requests[0].get("Idempotency-Key") == c.key
    for body in (b"{}", b'{"from": null, "at": []}'):
        assert two.post(key=None, body=body).once is None
    assert two.executions == 2


HOSTILE = {
    "empty": b"", "not_json": b"id=7", "half": b'{"id": "a"',
    "two_documents": b'{"id": "a"}{"id": "b"}', "blank": b'{"id": "a b"}',
    "empty_text": b'{"id": ""}', "control": b'{"id": "a\\u0000b"}',
    "not_ascii": '{"id": "ä"}'.encode(), "latin_1": b'{"id": "\xe4"}',
    "utf_16": '{"id": "a"}'.encode("utf-16"), "bom": b'\xef\xbb\xbf{"id":"a"}',
    "float": b'{"id": 7.0}', "exponent": b'{"id": 7e0}', "minus_0": b'{"id":-0}',
    "leading_0": b'{"id": 07}', "true": b'{"id": true}', "array": b'{"id": []}',
    "object": b'{"id": {}}', "twice": b'{"id": "a", "id": "b"}',
    "twice_the_same": b'{"id": "a", "id": "a"}',
    "twice_escaped": b'{"id": "a", "\\u0069d": "b"}',
    "the_word_null": b'{"id": "null"}', "undefined": b'{"id": "undefined"}',
    "twice_null": b'{"id": null, "id": "b"}', "on_a_text": b'"id"',
    "on_an_array": b'[{"id": "a"}]', "a_lone_surrogate": b'{"id": "\\ud800"}',
    "too_long": body_of("k" * 256), "too_deep": b'{"id":"a","b":%s%s}' %
    (b"[" * 64, b"]" * 64), "nul": b'{"id": "a"}\0'}


@pytest.mark.parametrize("body", HOSTILE.values(), ids=HOSTILE.keys())
def test_anything_else_is_refused_and_not_dispatched(site, body):
    c = site.case("/pay/")
    invalid(c, body)
    is_problem(c.post(body=body), "key-invalid")
    assert c.executions == 0


def test_one_of_two_alone_is_refused(site):
    c = site.case("/two/")
    for body in (b'{"from": {"id": "a"}}', b'{"at": ["b"]}',
                 b'{"from": {"id": "a"}, "at": [null]}',
                 b'{"from": {"id": "a"}, "at": [""]}',
                 b'{"from": {"id": "a"}, "at": ["undefined"]}',
                 b'{"from": {"id": "a"}, "at": {"00": "b"}, "x": 1}'):
        invalid(c, body)
    assert c.executions == 0
    one = b"%d" % number_of(18)
    for body in (b'{"from": {"id": "%s"}, "at": ["%s1"]}' % (one, one),
                 b'{"from": {"id": "%s1"}, "at": [%s]}' % (one, one)):
        is_new(c.post(key=None, body=body))
    assert [r.get("Idempotency-Key") for r in c.requests] == [
        '"18:%s,19:%s1,"' % (one.decode(), one.decode()),
        '"19:%s1,18:%s,"' % (one.decode(), one.decode())]


def test_what_is_content_encoded_is_not_read(site):
    c = site.case("/pay/")
    invalid(c, body_of(unique()), "Content-Encoding",
            headers=[("Content-Encoding", "gzip")])
    assert c.executions == 0


def test_the_type_does_not_count(site):
    c = site.case("/pay/")
    for kind in ("text/plain", "application/x-www-form-urlencoded", None,
                 "application/vnd.api+json; charset=utf-8"):
        is_new(c.post(key=None, body=body_of(unique()), content_type=kind))
    assert c.executions == 4


@pytest.mark.parametrize("prefix", ["/pay/", "/file/", "/stream/"])
@pytest.mark.parametrize("chunked", [False, True], ids=["sized", "chunked"])
def test_64_kib_is_the_most(site, prefix, chunked):
    c = site.case(prefix)
    key = unique()
    for size in (LIMIT - 1, LIMIT):
        body = padded(key + str(size), size)
        assert len(body) == size
        first = is_new(c.post(key=None, body=body, chunked=chunked))
        is_replay(c.post(key=None, body=body, chunked=not chunked), first)
    for size in (LIMIT + 1, 3 * LIMIT):
        invalid(c, padded(key, size), "65536", chunked=chunked)
    assert [r.body for r in c.requests] == [
        padded(key + str(size), size) for size in (LIMIT - 1, LIMIT)]


@pytest.mark.nginx_only("HTTP/2 of nginx")
def test_over_http_2_too(site):
    c = site.case("/pay/")
    key = unique()
    first = is_new(c.h2(body=body_of(key)))
    is_replay(c.h2(body=body_of(key)), first)
    is_problem(c.h2(body=b"{"), "key-invalid")
    is_problem(c.h2(body=b""), "key-invalid")
    assert c.h2(body=b"{}").once is None
    assert c.executions == 2
    assert c.requests[0].get("Idempotency-Key") == '"%s"' % key


def test_a_body_that_waits_for_100_continue_and_comes_in_pieces(site):
    c = site.case("/pay/")
    body = body_of(unique(), pad="y" * 3000)
    head = request_bytes("POST", c.path, [("Expect", "100-continue"),
                                          ("Content-Length", str(len(body)))])
    head = head.replace(b"Content-Length: 0\r\n", b"")
    with Client(site.gateway.port) as client:
        client.send(head)
        for at in range(0, len(body), 500):
            site.turn()
            client.send(body[at:at + 500])
        first = is_new(client.read())
    is_replay(c.post(key=None, body=body, content_type=None), first)
    assert c.executions == 1


@pytest.mark.nginx_only("the guard reads every body")
def test_whose_key_it_is_is_asked_before_the_body_is_read(site):
    c = site.case("/whose/")
    head = request_bytes("POST", c.path, [("Expect", "100-continue"),
                                          ("Content-Length", "40")], close=True)
    with Client(site.gateway.port) as client:
        client.send(head.replace(b"Content-Length: 0\r\n", b""))
        is_problem(client.read(), "scope-missing")
    assert c.executions == 0


def test_whose_key_it_is_comes_before_the_key(site):
    c = site.case("/whose/")
    is_problem(c.post(key=None, body=b"{"), "scope-missing")
    key = unique()
    for who in ("a", "b"):
        is_new(c.post(key=None, body=body_of(key), headers=[("X-Who", who)]))
    assert c.executions == 2


@pytest.mark.parametrize("prefix", ["/wait/", "/phases/"])
def test_in_flight(site, prefix):
    hold = Hold()
    c = site.case(prefix, hold)
    body = body_of(unique())
    with c.start(key=None, body=body) as owner:
        hold.wait()
        if prefix == "/phases/":
            is_problem(c.post(key=None, body=body), "in-flight")
            hold.go.set()
            first = is_new(owner.read())
            is_replay(c.post(key=None, body=body), first)
        else:
            with c.start(key=None, body=body) as second:
                site.turn()
                hold.go.set()
                first = is_new(owner.read())
                is_replay(second.read(), first)
    assert c.executions == 1


def test_a_dry_run_changes_nothing(site):
    c = site.case("/dry/")
    body = body_of(unique())
    for _ in range(2):
        assert c.post(key="own", body=body).status == 201
    for body in (b"{", b"", b"{}"):
        assert c.post(key="own", body=body).status == 201
    assert c.executions == 5
    assert {r.get("Idempotency-Key") for r in c.requests} == {"own"}


def test_the_key_in_the_body_carries_its_time(site):
    c = site.case("/timed/")
    body = body_of(uuid7())
    first = is_new(c.post(key=None, body=body))
    is_replay(c.post(key=None, body=body), first)
    is_problem(c.post(key=None, body=body_of(uuid7(2 * 3600))), "key-expired")
    invalid(c, body_of("without-a-time"), "version 7")
    assert c.executions == 1


def test_the_service_is_asked_with_the_key_of_the_body(make):
    site = make(probing(ID + "once_lease 1s;"))
    ledger = Ledger(site, known)
    body = body_of(unique())
    c = lose(site, key=None, body=body)
    resolved(c, body=body)
    assert [r.all("Idempotency-Key") for r in ledger.requests] == [
        ['"%s"' % json.loads(body)["id"]]] * ledger.asked
    assert ledger.asked > 0
    assert c.executions == 1


@pytest.mark.nginx_only("an error page of nginx")
def test_an_earlier_location_has_read_the_body(make):
    site = make("""
        location /first/ {
            proxy_pass http://127.0.0.1:1; error_page 502 = @pay;
            client_body_buffer_size 1k;
        }
        """ + guarded("@pay", ID), allow=["connect() failed"])
    c = site.case("/first/")
    for size in (60, 30000, LIMIT):
        body = padded(unique(), size)
        first = is_new(c.post(key=None, body=body))
        is_replay(c.post(key=None, body=body), first)
        assert c.requests[-1].body == body
    invalid(c, padded(unique(), LIMIT + 1), "65536")
    assert c.executions == 3


def test_a_key_of_the_body_is_in_no_log(site):
    c = site.case("/pay/")
    key = unique()
    is_new(c.post(key=None, body=body_of(key)))
    invalid(c, body_of(key + " "))
    assert eventually(lambda: key not in site.gateway.said())
