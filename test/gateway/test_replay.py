# SPDX-License-Identifier: Apache-2.0
"""
http.md section 5: what is stored, what is not, and that a replay is the first
answer byte for byte.
"""

import gzip

import pytest

from gateway import (TARGET, Answer, Raw, guarded, is_new, is_problem,
                     is_replay, nginx_version)

SERVER = (
    guarded("/pay/") +
    guarded("/cookies/", "once_store_cookies on;") +
    guarded("/hide/", "once_hide_header X-Secret; once_hide_header x-other;") +
    guarded("/gzip/", "gzip on; gzip_min_length 1; gzip_types *;") +
    guarded("/fresh/", "add_header X-Fresh $request_id always;") +
    guarded("/unbuffered/", "proxy_buffering off; proxy_http_version 1.1;") +
    guarded("/spooled/", "proxy_buffer_size 4k; proxy_buffers 2 4k;"
            "proxy_busy_buffers_size 4k; proxy_max_temp_file_size 4m;"
            "proxy_temp_file_write_size 4k; proxy_http_version 1.1;") +
    guarded("/noredirect/", "proxy_redirect off;") +
    guarded("/charset/", "charset utf-8; override_charset on;"))

TEXT = b"the same words again and again, " * 200


def twice(site, where, answer, **what):
    """The first answer and its replay, compared."""
    c = site.case(where, answer, Answer(500, b"a second execution\n"))
    first = c.post(**what)
    assert first.once == "new", first
    again = is_replay(c.post(**what), first)
    assert c.executions == 1
    return first, again


@pytest.mark.parametrize("status, reason", [
    (200, "OK"), (201, "Created"), (202, "Taken In"), (204, "No Content"),
    (301, "Moved"), (303, "See Other"), (400, "Bad"), (402, "Pay First"),
    (404, "Not Here"), (409, "Sold Out"), (418, "Teapot"), (422, "No"),
    (500, "Oh"), (501, "Never"), (503, "Closed"), (505, "Old"),
    (599, "Odd")])
def test_every_whole_answer_replays_with_its_status_and_reason(
        site, status, reason):
    body = b"" if status == 204 else b"body of %d\n" % status
    first, _ = twice(site, "/pay/", Answer(status, body, reason=reason))
    assert first.status == status
    if TARGET == "nginx":  # libmicrohttpd has reason phrases of its own
        assert first.start == "HTTP/1.1 %d %s" % (status, reason)
    assert first.body == body


def test_custom_headers_replay_in_their_order(site):
    lines = [("X-Multi", "b"), ("X-One", "1"), ("X-Multi", "a"),
             ("Link", "<b>; rel=next"), ("X-Multi", "c"),
             ("Link", "<a>; rel=prev"), ("X-Empty", ""),
             ("x-lower-CASE", "Kept As It Is"), ("X-Latin", "caf\xe9")]
    first, again = twice(site, "/pay/", Answer(headers=lines))
    for r in (first, again):
        assert r.all("X-Multi") == ["b", "a", "c"]
        assert r.all("Link") == ["<b>; rel=next", "<a>; rel=prev"]
        assert r.get("X-Latin") == "caf\xe9"
        assert ("x-lower-CASE", "Kept As It Is") in r.headers


KEPT = {
    "Content-Type": "application/vnd.shop+json; charset=latin-9",
    "Content-Language": "de", "Content-Disposition": 'attachment; f="a b"',
    "ETag": '"abc"', "Last-Modified": "Tue, 01 Jan 2019 00:00:00 GMT",
    "Cache-Control": "max-age=60", "Expires": "Wed, 01 Jan 2031 00:00:00 GMT",
    "Vary": "Accept, X-Own", "Retry-After": "17", "Accept-Ranges": "none",
    "Location": "https://elsewhere.test/orders/1?a=b",
    "Content-Location": "/orders/1", "WWW-Own": "1",
    "Strict-Transport-Security": "max-age=1", "Refresh": "5",
}


@pytest.mark.parametrize("name", KEPT)
def test_a_response_header_is_kept(site, name):
    first, again = twice(site, "/pay/", Answer(headers=[(name, KEPT[name])]))
    assert first.all(name) == again.all(name) == [KEPT[name]]


@pytest.mark.parametrize("value", ["/orders/1", "orders/1", "//h.test/x",
                                   "http://shop.test/orders/1", "?a=1"])
@pytest.mark.parametrize("where", ["/pay/", "/noredirect/"])
def test_location_relative_or_absolute_replays_as_it_came(site, where, value):
    first, again = twice(site, where, Answer(
        headers=[("Location", value)]))
    assert first.get("Location") == again.get("Location") == value


def test_many_headers_replay(site):
    lines = [("X-H%d" % (i % 100), "v%d" % i) for i in range(150)]
    _, again = twice(site, "/spooled/", Answer(headers=lines))
    assert again.all("X-H7") == ["v7", "v107"]


# ---- What is not stored --------------------------------------------------

DROPPED = {
    "Set-Cookie": "session=s3cr3t-cookie", "Set-Cookie2": "a=s3cr3t-cookie2",
    "Traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
    "Tracestate": "a=s3cr3t-state", "Server-Timing": "db;dur=53;s3cr3t",
    "Authorization": "Bearer s3cr3t-auth",
    "Proxy-Authenticate": "Basic realm=s3cr3t-realm",
    "Proxy-Authorization": "Basic s3cr3t-proxy", "Proxy-Own": "s3cr3t-own",
    "X-Accel-Own": "s3cr3t-accel", "X-Accel-Limit-Rate": "41943047",
    "Age": "77001", "RateLimit": '"s3cr3t";r=0', "RateLimit-Remaining": "77002",
    "X-RateLimit-Remaining": "77003", "X-Rate-Limit-Reset": "77004",
    "DPoP-Nonce": "s3cr3t-dpop", "Replay-Nonce": "s3cr3t-acme",
    "Keep-Alive": "timeout=77", "Upgrade": "s3cr3t/2", "TE": "s3cr3t",
}


# A client library that takes its token from each answer would go back to an
# old one.
DROPPED.update((name, "s3cr3t-token") for name in (
    "Access-Token", "X-Access-Token", "Refresh-Token", "X-Refresh-Token",
    "ID-Token", "X-ID-Token", "Auth-Token", "X-Auth-Token", "X-Subject-Token",
    "Session-Token", "X-Session-Token", "CSRF-Token", "X-CSRF-Token",
    "X-CSRFToken", "XSRF-Token", "X-XSRF-Token", "RequestVerificationToken",
    "X-RequestVerificationToken"))


@pytest.mark.parametrize("name", DROPPED)
def test_a_response_header_is_not_stored(site, name):
    c = site.case("/pay/", Answer(headers=[
        ("X-Before", "1"), (name, DROPPED[name]), ("X-After", "2")]))
    is_new(c.post())
    again = c.post()
    assert again.replayed and again.all(name) == []
    assert [again.get("X-Before"), again.get("X-After")] == ["1", "2"]
    if site.store == "sqlite":
        assert site.stored(b"X-After"), "the store is not readable so"
        assert not site.stored(DROPPED[name].encode())


def test_set_cookie_reaches_the_first_caller(site):
    lines = [("Set-Cookie", "a=1"), ("Set-Cookie", "b=2")]
    c = site.case("/pay/", Answer(headers=lines))
    assert c.post().all("Set-Cookie") == ["a=1", "b=2"]
    assert c.post().all("Set-Cookie") == []
    assert c.executions == 1


def test_once_store_cookies_keeps_them(site):
    lines = [("Set-Cookie", "b=2; Path=/"), ("Set-Cookie", "a=1")]
    _, again = twice(site, "/cookies/", Answer(headers=lines))
    assert again.all("Set-Cookie") == ["b=2; Path=/", "a=1"]


def test_once_store_cookies_keeps_tokens_of_a_session_too(site):
    lines = [("X-Auth-Token", "t1"), ("X-CSRF-Token", "c1"), ("Age", "7")]
    c = site.case("/cookies/", Answer(headers=lines))
    is_new(c.post())
    again = c.post()
    assert again.replayed
    assert again.get("X-Auth-Token") == "t1"
    assert again.get("X-CSRF-Token") == "c1" and again.get("Age") is None


def test_headers_named_by_connection_are_not_stored(site):
    c = site.case("/pay/", Answer(headers=[
        ("Connection", "X-Hop, keep-alive , x-other-hop"), ("X-Hop", "1"),
        ("X-Other-Hop", "2"), ("X-Own", "3")]))
    is_new(c.post())
    again = c.post()
    assert again.replayed and again.get("X-Own") == "3"
    assert again.all("X-Hop") == again.all("X-Other-Hop") == []


def test_once_hide_header_adds_to_the_list(site):
    c = site.case("/hide/", Answer(headers=[
        ("X-SECRET", "1"), ("X-Other", "2"), ("X-Secret-Not", "3")]))
    first = is_new(c.post())
    assert first.get("X-Secret") == "1"
    again = c.post()
    assert again.replayed
    assert again.get("X-Secret") is None and again.get("X-Other") is None
    assert again.get("X-Secret-Not") == "3"


def test_a_replay_has_a_date_of_its_own(site):
    old = "Wed, 02 Jan 2008 03:04:05 GMT"
    c = site.case("/pay/", Answer(headers=[("Date", old), ("Server", "old")]))
    is_new(c.post())
    again = c.post()
    assert again.replayed
    assert len(again.all("Date")) == 1 and again.get("Date") != old
    assert again.get("Server") != "old"
    if site.store == "sqlite":
        assert not site.stored(old.encode())


# ---- The body ------------------------------------------------------------


@pytest.mark.parametrize("where", ["/pay/", "/unbuffered/", "/spooled/"])
@pytest.mark.parametrize("size", [0, 1, 4095, 4096, 70000, 900000])
def test_a_body_of_any_size_replays_byte_for_byte(site, where, size):
    body = (bytes(range(256)) * (size // 256 + 1))[:size]
    first, _ = twice(site, where, Answer(200, body))
    assert first.body == body


# Unbuffered it would be a stream: test_capture.py.
@pytest.mark.parametrize("where", ["/pay/", "/spooled/"])
def test_a_chunked_answer_replays(site, where):
    parts = [b"a" * 10, b"b" * 5000, b"c" * 60000]
    data = b"".join(b"%x\r\n%s\r\n" % (len(p), p) for p in parts)
    first, _ = twice(site, where, Raw(
        b"HTTP/1.1 201 Created\r\nX-Own: 1\r\n"
        b"Transfer-Encoding: chunked\r\n\r\n" + data + b"0\r\n\r\n"))
    assert first.body == b"".join(parts)


@pytest.mark.parametrize("where", ["/pay/", "/spooled/"])
def test_an_empty_chunked_answer_replays(site, where):
    first, _ = twice(site, where, Raw(
        b"HTTP/1.1 201 Created\r\nTransfer-Encoding: chunked\r\n\r\n"
        b"0\r\n\r\n"))
    assert first.body == b""


@pytest.mark.parametrize("where", ["/pay/", "/unbuffered/"])
def test_a_204_replays_without_body_or_length(site, where):
    first, again = twice(site, where, Answer(204, b"", [("X-Own", "1")]))
    for r in (first, again):
        assert r.get("Content-Length") is None
        assert r.get("Transfer-Encoding") is None
        assert r.get("X-Own") == "1"


def test_a_body_encoded_by_the_upstream_replays_as_it_is(site):
    packed = gzip.compress(TEXT, mtime=0)
    first, again = twice(site, "/pay/", Answer(
        200, packed, [("Content-Encoding", "gzip")]))
    assert first.body == packed
    assert again.get("Content-Encoding") == "gzip"


@pytest.mark.nginx_only("gzip is a filter of nginx")
def test_gzip_by_nginx_is_applied_to_each_answer_anew(site):
    c = site.case("/gzip/", Answer(200, TEXT, [("Content-Type", "text/css")]))
    packed = [("Accept-Encoding", "gzip")]
    first = c.post(headers=packed)
    assert first.get("Content-Encoding") == "gzip"
    assert gzip.decompress(first.body) == TEXT
    plain = c.post()
    assert plain.replayed and plain.get("Content-Encoding") is None
    assert plain.body == TEXT
    again = c.post(headers=packed)
    assert again.replayed and gzip.decompress(again.body) == TEXT
    assert c.executions == 1


@pytest.mark.nginx_only("gzip is a filter of nginx")
def test_gzip_by_nginx_after_a_plain_first_answer(site):
    c = site.case("/gzip/", Answer(200, TEXT, [("Content-Type", "text/css")]))
    assert c.post().body == TEXT
    again = c.post(headers=[("Accept-Encoding", "gzip")])
    assert again.replayed and again.get("Content-Encoding") == "gzip"
    assert gzip.decompress(again.body) == TEXT


@pytest.mark.nginx_only("add_header is a filter of nginx")
def test_add_header_is_evaluated_afresh(site):
    c = site.case("/fresh/", Answer(headers=[("X-Own", "1")]))
    first, again = c.post(), c.post()
    assert again.replayed and again.get("X-Own") == "1"
    assert first.get("X-Fresh") and again.get("X-Fresh")
    assert first.get("X-Fresh") != again.get("X-Fresh")


@pytest.mark.nginx_only("charset is a filter of nginx")
def test_a_charset_by_nginx_stands_there_once(site):
    first, again = twice(site, "/charset/", Answer(
        200, b"hi\n", [("Content-Type", "text/plain")]))
    for r in (first, again):
        assert r.get("Content-Type") == "text/plain; charset=utf-8"


def test_conditions_of_the_client_do_not_change_a_replay(site):
    c = site.case("/pay/", Answer(200, b"whole\n", [
        ("ETag", '"abc"'),
        ("Last-Modified", "Tue, 01 Jan 2019 00:00:00 GMT")]))
    first = is_new(c.post(), 200, b"whole\n")
    for line in (("If-None-Match", '"abc"'), ("If-Match", '"other"'),
                 ("If-Modified-Since", "Wed, 01 Jan 2031 00:00:00 GMT")):
        is_replay(c.post(headers=[line]), first)
    assert c.executions == 1


def test_a_range_never_gets_wrong_bytes(site):
    ranges = [("Accept-Ranges", "bytes")]
    c = site.case("/pay/", Answer(200, b"0123456789", ranges))
    want = [("Range", "bytes=2-4")]
    first, again = c.post(headers=want), c.post(headers=want)
    assert again.replayed and c.executions == 1
    assert (first.status, first.body) == (again.status, again.body)
    assert (again.status, again.body) in ((200, b"0123456789"), (206, b"234"))
    assert c.post().body == b"0123456789"


def test_no_internal_header_is_doubled(site):
    c = site.case("/pay/")
    first, again = c.post(), c.post()
    assert first.all("Idempotency-Status") == ["new"]
    assert again.all("Idempotency-Status") == ["replayed"]
    assert again.all("Idempotent-Replayed") == ["true"]


# ---- Streams -------------------------------------------------------------


TRAILED = Raw(b"HTTP/1.1 201 Made\r\nTransfer-Encoding: chunked\r\n"
              b"Trailer: X-Sum\r\n\r\n5\r\nmade\n\r\n0\r\n"
              b"X-Sum: 1\r\n\r\n")


@pytest.mark.nginx_only("proxy_pass_trailers")
@pytest.mark.skipif(nginx_version() < (1, 27, 2),
                    reason="nginx passes trailers since 1.27.2")
@pytest.mark.parametrize("more", ["", "once_max_response 2;",
                                  "proxy_buffering off;"],
                         ids=["kept", "too_large", "stream"])
def test_trailers_that_nginx_would_pass_are_dropped(make, more):
    site = make(guarded("/pay/", "proxy_http_version 1.1;"
                        "proxy_pass_trailers on;" + more))
    for ask in ("h2", "post"):
        c = site.case("/pay/", TRAILED)
        kind = {"headers": [("TE", "trailers")]}
        first = is_new(getattr(c, ask)(**kind))
        again = getattr(c, ask)(**kind)
        assert b"x-sum:" not in (first.raw + first.body).lower()
        if not more:
            assert again.replayed and again.body == first.body


def test_trailers_are_dropped_by_nginx_and_the_rest_replays(site):
    c = site.case("/pay/", Raw(
        b"HTTP/1.1 200 Fine\r\nTrailer: X-Sum\r\nTransfer-Encoding: chunked"
        b"\r\n\r\n5\r\nhello\r\n0\r\nX-Sum: 7\r\n\r\n"))
    first = is_new(c.post(), 200, b"hello")
    assert first.get("X-Sum") is None
    again = c.post()
    assert again.replayed and again.body == first.body
    assert again.get("Trailer") is None
    assert c.executions == 1


# ---- Headers of one connection -------------------------------------------


def test_headers_named_by_any_connection_line_are_not_stored(make):
    site = make(guarded("/pay/"))
    c = site.case("/pay/", Answer(201, b"made\n", [
        ("Connection", "X-One"), ("X-One", "1"), ("X-Two", "2"),
        ("Connection", "X-Two"), ("X-Kept", "3")]))
    is_new(c.post())
    again = c.post()
    assert again.replayed and again.get("X-Kept") == "3"
    assert again.get("X-One") is None and again.get("X-Two") is None
