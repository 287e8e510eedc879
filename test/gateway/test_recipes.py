# SPDX-License-Identifier: Apache-2.0
"""
The recipes of docs/recipes.md: each block is taken out of recipes.md, and does
what the page says. Beside it stands the default, for which the page is needed.
"""

import gzip
import re

import pytest

from gateway import (MARK, ROOT, Answer, Drop, Raw, eventually, guarded, is_new,
                     is_problem, is_replay, message, nginx_version)

pytestmark = pytest.mark.nginx_only("configurations of nginx")

PAGE = (ROOT / "docs/recipes.md").read_text()
SHOP, ADMIN = "https://shop.example", "https://admin.example"


def blocks(heading):
    """The configurations below a heading, with the names of the harness."""
    text = PAGE.split("\n## %s\n" % heading)[1].split("\n## ")[0]
    found = re.findall(r"(?ms)^```nginx\n(.*?)^```", text)
    assert found, heading
    for old, new in (("once pay;", "once main;"), ("/charge", "/pay/"),
                     ("once_scope $tenant;", "once_scope off;"),
                     ("http://payments", "http://origin")):
        found = [block.replace(old, new) for block in found]
    return found


def default(site, *script):
    return site.case("/plain/", *script)


PLAIN = guarded("/plain/")


def origin(value):
    return [("Origin", value)]


class ByHeader:
    """Answers one thing with a header of the request, and another without."""

    def __init__(self, name, there, absent):
        self.name, self.there, self.absent = name, there, absent

    def __call__(self, conn, request):
        found = request.get(self.name)
        (self.there if found else self.absent)(conn, request)


def test_a_body_that_was_refused_compressed_may_come_uncompressed(make):
    site = make(blocks("Compressed request bodies")[0] + PLAIN)
    plain, zipped = b'{"amount": 1}', [("Content-Encoding", "gzip")]
    service = ByHeader("Content-Encoding", Answer(415, b"no gzip\n"), Answer())
    c = site.case("/pay/", service)
    assert c.post(body=gzip.compress(plain), headers=zipped).status == 415
    first = is_new(c.post(body=plain))
    is_replay(c.post(body=plain), first)
    assert c.executions == 2
    c = default(site, service)
    assert c.post(body=gzip.compress(plain), headers=zipped).status == 415
    is_problem(c.post(body=plain), "key-reused")


def test_each_client_gets_the_answer_as_it_can_read_it(make):
    site = make(blocks("Compressed answers")[0] + PLAIN +
                guarded("/gunzip/", "gunzip on;"))
    kind = [("Content-Type", "application/json")]
    body = b'{"made": true}'
    service = ByHeader(
        "Accept-Encoding",
        Answer(200, gzip.compress(body), kind + [("Content-Encoding", "gzip")]),
        Answer(200, body, kind))
    reads = [("Accept-Encoding", "gzip")]
    for where in ("/pay/", "/gunzip/", "/plain/"):
        c = site.case(where, service)
        first = c.post(headers=reads)
        assert first.get("Content-Encoding") == "gzip", where
        assert gzip.decompress(first.body) == body
        again = c.post()
        assert again.replayed
        assert (again.body == body) == (where != "/plain/")
        assert c.post(headers=reads).get("Content-Encoding") == "gzip"
        assert c.executions == 1


def test_a_page_of_another_origin_can_read_each_answer(make):
    names, location = blocks("Browsers of other origins")
    site = make(location + guarded("/plain/", "once_cors_expose on;"),
                http=names)
    service = Answer(headers=[("Access-Control-Allow-Origin", SHOP)])
    allowed = "Access-Control-Allow-Origin"
    c = site.case("/pay/", service)
    assert is_new(c.post(headers=origin(SHOP))).get(allowed) == SHOP
    for other in (SHOP, ADMIN):
        replay = c.post(headers=origin(other))
        assert replay.replayed and replay.get(allowed) == other
        assert replay.get("Vary") == "Origin"
        problem = c.post(headers=origin(other), body=b"{}")
        is_problem(problem, "key-reused")
        assert problem.get(allowed) == other
        assert "Idempotency-Status" in problem.get(
            "Access-Control-Expose-Headers")
    stranger = c.post(headers=origin("https://elsewhere.example"))
    assert stranger.replayed and stranger.get(allowed) is None
    c = default(site, service)
    c.post(headers=origin(SHOP))
    assert c.post(headers=origin(ADMIN)).get(allowed) == SHOP
    assert c.post(headers=origin(SHOP), body=b"{}").get(allowed) is None


def test_headers_that_are_named_are_not_repeated(make):
    site = make(blocks("Headers of the first exchange")[0])
    lines = [("X-Shop-Session", MARK + "1"), ("X-Queue-Length", "7")]
    c = site.case("/pay/", Answer(headers=lines + [("X-Own", "1")]))
    assert is_new(c.post()).get("X-Queue-Length") == "7"
    again = c.post()
    assert again.replayed and again.get("X-Own") == "1"
    assert again.get("X-Shop-Session") is again.get("X-Queue-Length") is None


@pytest.mark.parametrize("status, name", [(402, "X-Payment"),
                                          (404, "Mcp-Session-Id")])
def test_who_was_asked_for_more_comes_again_with_the_key(make, status, name):
    site = make(blocks("Answers that ask for more")[0] + PLAIN)
    service = ByHeader(name, Answer(), Answer(status, b"more\n"))
    c = site.case("/pay/", service)
    assert c.post().status == status
    first = is_new(c.post(headers=[(name, "proof")]))
    is_replay(c.post(headers=[(name, "other")]), first)
    assert c.executions == 2
    c = default(site, service)
    assert c.post().status == status
    again = c.post(headers=[(name, "proof")])
    assert again.replayed and again.status == status


@pytest.mark.parametrize("status", [400, 401, 403])
def test_a_webhook_with_a_wrong_signature_leaves_the_key_free(make, status):
    site = make(blocks("Webhooks")[0])
    c = site.case("/pay/", ByHeader("Signature", Answer(),
                                    Answer(status, b"wrong\n")))
    named = [("Webhook-Id", c.key)]
    assert c.post(key=None, headers=named).status == status
    signed = named + [("Signature", "right")]
    first = is_new(c.post(key=None, headers=signed))
    is_replay(c.post(key=None, headers=signed), first)
    assert c.executions == 2
    is_problem(c.post(key=None), "key-missing")


class OncePerConnection:
    """A service that has closed a connection when the next request comes."""

    def __init__(self):
        self.seen = []

    def __call__(self, conn, request):
        if conn in self.seen:
            Drop()(conn, request)
            return
        self.seen.append(conn)
        conn.sock.sendall(message(201, b"made\n", []))


def test_nginx_gives_a_connection_up_before_the_service_does(make):
    block, = blocks("Connections that the service closes")
    assert "keepalive_timeout 4s;" in block
    kept = block.replace("127.0.0.1:8080", "UPSTREAM0")
    more = 'proxy_http_version 1.1; proxy_set_header Connection "";'
    site = make(guarded("/pay/", more, target="http://payments") +
                guarded("/plain/", more, target="http://kept"), workers=1,
                http=kept.replace("4s", "50ms") + kept.replace(
                    "payments", "kept").replace("4s", "60s"))
    c = site.case("/pay/", OncePerConnection())
    is_new(c.post())
    eventually(lambda: not c.script[0].seen[0].open)
    is_new(c.post(key=c.key + "2"))
    assert c.executions == 2
    c = site.case("/plain/", OncePerConnection())
    is_new(c.post())
    is_problem(c.post(key=c.key + "2"), "outcome-unknown", 502)


def test_nginx_refuses_before_the_claim_what_the_service_would_refuse(make):
    block, = blocks("Refusals before the body")
    site = make(block + block.replace("/pay/", "/unknown/").replace(
        "/caller", "/nobody").replace("internal;", "internal; return 401;"))
    c = site.case("/unknown/")
    r = c.post()
    assert r.status == 401 and r.once in (None, "-")
    assert c.executions == 0
    c = site.case("/pay/")
    assert c.post(body=b"x" * 70000).status == 413
    assert c.executions == 0
    is_new(c.post())
    assert c.executions == 1


def test_a_long_head_needs_a_buffer(make):
    site = make(blocks("Long headers")[0] + PLAIN)
    service = Answer(headers=[("Link", "<%s>" % ("a" * 20000))])
    c = site.case("/pay/", service)
    first = is_new(c.post())
    is_replay(c.post(), first)
    c = default(site, service)
    is_problem(c.post(), "outcome-unknown", 502)


@pytest.mark.parametrize("status", [102, 103])
def test_an_interim_answer_costs_the_outcome_and_nothing_more(make, status):
    site = make(PLAIN)
    c = default(site, Raw(
        b"HTTP/1.1 %d Wait\r\nLink: </a.css>\r\n\r\n" % status +
        message(201, b"made\n", [("Connection", "close")])))
    r = c.post()
    if status == 103 and nginx_version() >= (1, 29, 0):
        is_new(r)
    else:
        is_problem(r, "outcome-unknown", 502)
        is_problem(c.post(), "outcome-unknown")
    assert c.executions == 1


def test_every_recipe_has_its_test():
    headings = re.findall(r"(?m)^## (.*)$", PAGE)
    used = re.findall(r'blocks\("([^"]+)"\)', open(
        __file__, encoding="utf-8").read())
    with_blocks = [h for h in headings if "```nginx" in
                   PAGE.split("\n## %s\n" % h)[1].split("\n## ")[0]]
    assert sorted(set(used)) == sorted(with_blocks)
