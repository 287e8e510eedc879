# SPDX-License-Identifier: Apache-2.0
"""
What an operator decides for a location: which statuses are final, which free
the key, and what counts when a repeat is compared with the first request.
"""

import json

import pytest

from gateway import (Answer, Client, Drop, Hold, eventually, guarded, is_new, is_problem,
                     is_replay, request_bytes)

SERVER = (
    guarded("/pay/", "once_key_required on;") +
    guarded("/upload/", "client_body_buffer_size 1k;") +
    guarded("/body/", "once_fingerprint body;") +
    guarded("/body/type/", "once_fingerprint type body;") +
    guarded("/query/", "once_fingerprint query;") +
    guarded("/json/", "once_fingerprint json query type but=/sent_at "
            "but=/meta/attempt;") +
    guarded("/own/", "once_fingerprint $http_x_digest;") +
    guarded("/named/", "once_final 2xx 401 408 425 429;") +
    guarded("/every/", "once_final 2xx 3xx 4xx 5xx 429;") +
    guarded("/classes/", "once_final 2xx 4xx;") +
    guarded("/busy/", "once_release 503 429;") +
    guarded("/busy/final/", "once_final 2xx 5xx; once_release 503;") +
    guarded("/told/", "once_repeat refuse; once_in_flight wait=30s; "
            "once_max_response 1k;") +
    guarded("/brief/", "once_ttl 1h failure=1s; once_lease 1s; "
            "once_lost takeover;"))


# ---- once_final and once_release -----------------------------------------


@pytest.mark.parametrize("status", [401, 425])
def test_a_status_that_once_final_names_by_number_is_final(site, status):
    c = site.case("/named/", Answer(status, b"no\n"), Answer(201))
    first = is_new(c.post(), status, b"no\n")
    is_replay(c.post(), first)
    assert c.executions == 1


def test_a_number_is_final_beside_all_classes_too(site):
    c = site.case("/every/", Answer(429, b"no\n"), Answer(201))
    first = is_new(c.post(), 429, b"no\n")
    is_replay(c.post(), first)
    assert c.executions == 1


@pytest.mark.parametrize("where, status", [
    ("/classes/", 408), ("/classes/", 429), ("/every/", 408),
    ("/busy/", 503), ("/busy/", 429), ("/busy/final/", 503)])
def test_a_class_in_once_final_does_not_take_a_status_from_once_release(
        site, where, status):
    c = site.case(where, Answer(status, b"busy\n"), Answer(201))
    assert c.post().status == status
    # The key is free: another body is another request, and no mismatch.
    first = is_new(c.post(body=b"other"))
    is_replay(c.post(body=b"other"), first)
    assert c.executions == 2


def test_a_refreshed_token_goes_with_the_same_key(site):
    """A challenge in two steps, and then a token that is refreshed."""
    ask = ("WWW-Authenticate", "Negotiate")
    c = site.case("/pay/", Answer(401, b"who\n", [ask]),
                  Answer(401, b"and now\n", [(ask[0], "Negotiate oQcwBaAD")]),
                  Answer(401, b"expired\n"), Answer(201, b"charged\n"))
    for said in (b"who\n", b"and now\n", b"expired\n"):
        r = c.post(headers=[("Authorization", "Negotiate YII")])
        assert (r.status, r.body, r.replayed) == (401, said, False)
    first = is_new(c.post(headers=[("Authorization", "Bearer two")]),
                   201, b"charged\n")
    is_replay(c.post(), first)
    assert c.executions == 4


def test_once_release_replaces_the_default_list(site):
    c = site.case("/busy/", Answer(408, b"slow\n"), Answer(201))
    first = is_new(c.post(), 408, b"slow\n")
    is_replay(c.post(), first)
    assert c.executions == 1


# ---- once_repeat ---------------------------------------------------------


def refused(response, status):
    body = is_problem(response, "already-done")
    assert (body["recorded_status"], body["state"]) == (status, "completed")


def test_a_repeat_is_refused_and_named_what_it_is(site):
    hold = Hold(Answer(402, b"no\n"))
    c = site.case("/told/", hold)
    with c.start() as first, c.start() as waiter:
        hold.wait()
        hold.go.set()
        answers = [first.read(), waiter.read()]
    # Who came second is a repeat, whether or not it has waited.
    new, repeat = sorted(answers, key=lambda a: a.once != "new")
    is_new(new, 402, b"no\n")
    refused(repeat, 402)
    refused(c.post(), 402)
    # What is not this request is told so first.
    is_problem(c.post(body=b"other"), "key-reused")
    assert c.executions == 1


def test_a_repeat_of_what_was_not_kept_or_is_not_known(site):
    c = site.case("/told/", Answer(200, b"x" * 2000), Drop())
    assert c.post().status == 200
    refused(c.post(), 200)
    lost = c.key + "-2"
    is_problem(c.post(key=lost), "outcome-unknown", 502)
    is_problem(c.post(key=lost), "outcome-unknown")
    assert c.executions == 2


# ---- once_ttl failure= ---------------------------------------------------


def test_a_failure_is_forgotten_earlier_and_nothing_else(site):
    # Recorded before the failure, so that they would be forgotten before it.
    others = [
        site.case("/brief/", Answer(200, b"fine\n")),
        site.case("/brief/", Answer(302, b"there\n")),
        site.case("/brief/", Answer(500, b"done\n", [
            ("Idempotency-Outcome", "applied")])),
        # The attempt before it was lost and may have executed.
        site.case("/brief/", Drop(), Answer(500, b"worse\n"))]
    is_problem(others[3].post(), "outcome-unknown", 502)
    firsts = [c.post() for c in others]
    assert [r.status for r in firsts] == [200, 302, 500, 500]
    c = site.case("/brief/", Answer(503, b"no\n"), Answer(201))
    first = is_new(c.post(), 503, b"no\n")
    is_replay(c.post(), first)
    is_new(eventually(lambda: (lambda r: r.status == 201 and r)(c.post())))
    assert c.executions == 2
    for other, first in zip(others, firsts):
        is_replay(other.post(), first)
        assert other.executions == len(other.script)


# ---- Problems in the eyes of an SDK --------------------------------------


def resolves(response):
    """
    What the clients of the Stripe family do with an answer, whatever its
    status: it is the result, unless the document has a member `error`
    (stripe-node 23.1.0, RequestSender; the real client was tried, see
    docs/verification.md). `error` may be an object, or text of OAuth's.
    """
    return not json.loads(response.body).get("error")


def test_an_sdk_takes_no_problem_for_a_success(site):
    own = b'{"id": "ch_1"}'
    c = site.case("/pay/", Answer(200, own), Drop())
    assert resolves(c.post()) and resolves(c.post())
    for answer, code, status in (
            (c.post(body=b"other"), "key-reused", 422),
            (c.post(key='"half'), "key-invalid", 400),
            (c.post(key=None), "key-missing", 400),
            (c.post(key=c.key + "-2"), "outcome-unknown", 502),
            (c.post(key=c.key + "-2"), "outcome-unknown", 409)):
        assert not resolves(answer), answer
        body = is_problem(answer, code, status)
        assert body["error"]["message"] and body["error"]["code"] == code
    assert c.executions == 2


# ---- What counts as the same request -------------------------------------


def form(boundary, *parts):
    """The body of an upload, as browsers and curl send it."""
    text = b"".join(
        b'--%s\r\nContent-Disposition: form-data; name="p%d"\r\n\r\n%s\r\n'
        % (boundary, i, part) for i, part in enumerate(parts))
    return text + b"--%s--\r\n" % boundary


def upload(case, boundary, *parts, kind="multipart/form-data; boundary=%s"):
    return case.post(body=form(boundary, *parts),
                     content_type=kind % boundary.decode())


PARTS = (b"5", b"\r\n--not-it\r\n" + bytes(range(256)) * 40, b"")


def test_an_upload_is_the_same_with_a_new_boundary(site):
    c = site.case("/upload/")
    first = is_new(upload(c, b"----WebKitFormBoundaryAaAa", *PARTS))
    is_replay(upload(c, b"----WebKitFormBoundaryBbBbBbBb", *PARTS), first)
    is_replay(upload(c, b"x", *PARTS), first)
    is_problem(upload(c, b"x", *PARTS[:2]), "key-reused")
    is_problem(upload(c, b"x", b"6", *PARTS[1:]), "key-reused")
    is_problem(upload(c, b"x", *PARTS, kind="multipart/mixed; boundary=%s"),
               "key-reused")
    is_problem(upload(c, b"x", *PARTS, kind="text/plain; was=%s"),
               "key-reused")
    assert c.executions == 1


def test_a_boundary_in_a_part_is_no_delimiter_unless_it_begins_a_line(site):
    c = site.case("/upload/")
    first = is_new(upload(c, b"AA", b"see --AA", b"\n--AA"))
    is_replay(upload(c, b"BBB", b"see --AA", b"\n--AA"), first)
    is_problem(upload(c, b"BBB", b"see --BBB", b"\n--AA"), "key-reused")
    is_problem(upload(c, b"BBB", b"see --AA", b"\n--BBB"), "key-reused")


def test_an_upload_may_come_in_any_pieces(site):
    c = site.case("/upload/")
    first = is_new(upload(c, b"AA", *PARTS))
    body = form(b"--=_Part.7", *PARTS)
    with Client(site.gateway.port) as client:
        data = request_bytes(
            "POST", c.path, [("Idempotency-Key", c.key), (
                "Content-Type",
                'multipart/form-data; boundary="--=_Part.7"')], body)
        for i in range(len(data) - 120):
            client.send(data[i:i + 1])
        client.send(data[len(data) - 120:])
        is_replay(client.read(), first)


def test_once_fingerprint_lists_what_counts(site):
    c = site.case("/body/")
    first = is_new(c.post(body=b"a", query="x=1", content_type="a/b"))
    is_replay(c.post(body=b"a", query="x=2", content_type="c/d"), first)
    is_problem(c.post(body=b"b", query="x=1", content_type="a/b"), "key-reused")
    c = site.case("/body/type/")
    first = is_new(c.post(body=b"a", query="x=1", content_type="a/b"))
    is_replay(c.post(body=b"a", query="x=2", content_type="a/b"), first)
    is_problem(c.post(body=b"a", query="x=1", content_type="c/d"), "key-reused")
    c = site.case("/query/")
    first = is_new(c.post(body=b"a", query="x=1", content_type="a/b"))
    is_replay(c.post(body=b"b", query="x=1", content_type="c/d"), first)
    is_problem(c.post(body=b"a", query="x=2", content_type="a/b"), "key-reused")


def test_the_same_json_in_other_bytes_is_the_same_request(site):
    c = site.case("/json/")
    first = is_new(c.post(
        body=b'{"order": 9007199254740993, "sent_at": 1, "to": ["a", "b"]}'))
    for same in (
            b'{"to":["\\u0061","b"],"order":9007199254740993,"sent_at":"2"}',
            b'{"to":["a","b"],\n"order":9007199254740993.0}'):
        is_replay(c.post(body=same), first)
    is_replay(c.post(body=same, chunked=True), first)
    for other in (b'{"order": 9007199254740992, "to": ["a", "b"]}',
                  b'{"order": 9007199254740993, "to": ["b", "a"]}',
                  b'{"order": 9007199254740993, "to": ["a", "b"], "x": 1}',
                  b'{"order": 9007199254740993, "order": 1, "to": ["a","b"]}',
                  b'{"order": 9007199254740993, "to": ["a", "b"]', b"{}", b""):
        is_problem(c.post(body=other), "key-reused")
    is_problem(c.post(body=same, query="a=1"), "key-reused")
    is_problem(c.post(body=same, content_type="text/plain"), "key-reused")
    assert c.executions == 1
    # Half of an escape, and a name twice: then the bytes count.
    for odd in (b'{"order": "\\ud834"}', b'{"sent_at": 1, "sent_at": 2}'):
        c = site.case("/json/")
        first = is_new(c.post(body=odd))
        is_replay(c.post(body=odd), first)
        is_problem(c.post(body=odd + b" "), "key-reused")


def test_json_is_compared_up_to_64_kib_and_as_bytes_beyond(site):
    c = site.case("/json/")
    body = b'{"a":"' + b"x" * (65536 - 9) + b'"}'
    first = is_new(c.post(body=body + b" "))
    is_replay(c.post(body=b" " + body), first)
    is_replay(c.post(body=b" " + body, chunked=True), first)
    c = site.case("/json/")
    first = is_new(c.post(body=body + b"  "))
    is_problem(c.post(body=b" " + body + b" "), "key-reused")
    is_replay(c.post(body=body + b"  "), first)


def test_a_variable_stands_for_all_that_counts(site):
    one, two = ("X-Digest", "sha-256=:one:"), ("X-Digest", "sha-256=:two:")
    c = site.case("/own/")
    first = is_new(c.post(body=b"a", query="x=1", headers=[one]))
    is_replay(c.post(body=b"b", query="x=2", headers=[one]), first)
    is_problem(c.post(body=b"a", query="x=1", headers=[two]), "key-reused")


def test_where_the_variable_is_empty_the_default_counts(site):
    c = site.case("/own/")
    first = is_new(c.post(body=b"a"))
    is_replay(c.post(body=b"a"), first)
    is_problem(c.post(body=b"b"), "key-reused")
    is_problem(c.post(body=b"a", headers=[("X-Digest", "one")]), "key-reused")


@pytest.mark.nginx_only("variables of nginx")
def test_a_variable_may_be_computed_from_the_body(make):
    site = make(guarded("/pay/", "once_fingerprint $request_body;"))
    c = site.case("/pay/")
    first = is_new(c.post(body=b"a", query="x=1"))
    is_replay(c.post(body=b"a", query="x=2"), first)
    is_problem(c.post(body=b"b", query="x=1"), "key-reused")


@pytest.mark.nginx_only("levels of nginx's configuration")
def test_a_location_takes_over_what_counts_and_what_is_released(make):
    site = make("once_fingerprint body; once_release 503;" +
                guarded("/pay/") + guarded("/all/", "once_fingerprint body "
                                           "query type; once_release 429;"))
    c = site.case("/pay/", Answer(503, b"busy\n"), Answer(201))
    assert c.post().status == 503
    first = is_new(c.post(query="x=1"))
    is_replay(c.post(query="x=2"), first)
    c = site.case("/all/", Answer(503, b"busy\n"))
    first = is_new(c.post(query="x=1"), 503, b"busy\n")
    is_problem(c.post(query="x=2"), "key-reused")


# ---- A request that is refused before its body ---------------------------

HALF = [("Idempotency-Key", '"half')]


def head_of(case, size, *more):
    """The head of a request with a bad key; its body does not follow."""
    lines = ["POST %s HTTP/1.1" % case.path, "Host: shop.test",
             "Content-Length: %d" % size]
    lines += ["%s: %s" % line for line in HALF + list(more)]
    return "\r\n".join(lines).encode() + b"\r\n\r\n"


@pytest.mark.nginx_only("libmicrohttpd would cut the client off")
def test_a_bad_key_is_told_before_the_upload(site):
    c = site.case("/upload/")
    with Client(site.gateway.port) as client:
        client.send(head_of(c, 900000) + b"x" * 1000)
        is_problem(client.read(), "key-invalid", 400)
        # The rest is read and dropped, and the connection goes on.
        client.send(b"x" * 899000 + c.bytes())
        is_new(client.read())
    assert c.executions == 1


@pytest.mark.nginx_only("libmicrohttpd would cut the client off")
def test_a_bad_key_is_told_in_place_of_100_continue(site):
    c = site.case("/upload/")
    with Client(site.gateway.port) as client:
        client.send(head_of(c, 900000, ("Expect", "100-continue")))
        assert client.reader.head().startswith(b"HTTP/1.1 400 ")
    with Client(site.gateway.port) as client:
        client.send(head_of(c, 900000, ("Expect", "100-continue")))
        answer = client.read()
        is_problem(answer, "key-invalid", 400)
        # Nobody knows whether the body will come.
        assert answer.get("Connection") == "close"
        assert client.at_end()
    assert c.executions == 0


@pytest.mark.nginx_only("libmicrohttpd would cut the client off")
def test_a_chunked_upload_with_a_bad_key_is_dropped(site):
    c = site.case("/upload/")
    with Client(site.gateway.port) as client:
        data = c.bytes(key='"half', body=b"y" * 5000, chunked=True)
        client.send(data[:700])
        is_problem(client.read(), "key-invalid", 400)
        client.send(data[700:] + c.bytes())
        is_new(client.read())


@pytest.mark.nginx_only("HTTP/2")
def test_over_http_2_a_bad_key_is_told_after_the_upload(site):
    c = site.case("/upload/")
    for _ in range(3):
        is_problem(c.h2(key='"half', body=b"z" * 900000), "key-invalid", 400)
    assert c.executions == 0
