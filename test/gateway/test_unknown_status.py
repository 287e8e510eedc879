# SPDX-License-Identifier: Apache-2.0
"""
A gateway's error from the service (a balancer, a mesh, a proxy behind us) is no
outcome: once_unknown. It is told as unknown with its own status, it is never
recorded, and under `hold` it never lets a request execute again.
"""

import pytest

from backends import FastCgi, fastcgi
from gateway import (Answer, Hold, Raw, eventually, guarded, is_new, is_problem,
                     is_replay)

SECOND = Answer(201, b"a second execution\n")
PAGE = b"<h1>Bad Gateway</h1>\n"

SERVER = (
    guarded("/pay/") +
    guarded("/some/", "once_final 2xx;") +
    guarded("/named/", "once_final 2xx 3xx 4xx 5xx 502;") +
    guarded("/freed/", "once_release 504 429;") +
    guarded("/off/", "once_unknown off;") +
    guarded("/own/", "once_unknown 429 503;") +
    guarded("/take/", "once_lost takeover;") +
    guarded("/small/", "once_max_response 1k;") +
    guarded("/dry/", "once_dry_run on;"))


def is_unknown(case, status, **what):
    """The first caller and a repeat; nothing more is executed."""
    r = case.post(**what)
    is_problem(r, "outcome-unknown", status)
    assert r.get("X-Balancer") is None and b"Bad Gateway" not in r.body
    is_problem(case.post(**what), "outcome-unknown")
    assert case.executions == 1


def page(status, headers=()):
    return Answer(status, PAGE, [("X-Balancer", "1"), *headers])


@pytest.mark.parametrize("where, status", [
    ("/pay/", 502), ("/pay/", 504), ("/some/", 502), ("/named/", 504),
    ("/freed/", 502), ("/own/", 503), ("/own/", 429), ("/freed/", 520),
    *(("/pay/", status) for status in (520, 521, 522, 523, 524, 529, 530))])
def test_a_gateways_error_is_no_outcome(site, where, status):
    is_unknown(site.case(where, page(status), SECOND), status)


@pytest.mark.parametrize("where, status", [
    ("/pay/", 503), ("/pay/", 500), ("/off/", 520), ("/own/", 524),
    ("/pay/", 519), ("/pay/", 525), ("/pay/", 528), ("/pay/", 531), ("/named/", 502), ("/off/", 502),
    ("/off/", 504), ("/own/", 502)])
def test_a_status_that_is_not_in_once_unknown_is_recorded(site, where, status):
    c = site.case(where, page(status), SECOND)
    first = is_new(c.post(), status, PAGE)
    is_replay(c.post(), first)
    assert c.executions == 1


def test_a_number_in_once_release_leaves_the_default_of_once_unknown(site):
    c = site.case("/freed/", page(504), SECOND)
    assert c.post().body == PAGE
    is_new(c.post(), 201, b"a second execution\n")
    assert c.executions == 2


def test_the_outcome_header_comes_before_once_unknown(site):
    def said(word):
        return site.case("/pay/", page(502, [("Idempotency-Outcome", word)]),
                         SECOND)
    c = said("applied")
    first = is_new(c.post(), 502, PAGE)
    is_replay(c.post(), first)
    c = said("not-applied")
    assert c.post().body == PAGE
    is_new(c.post(), 201, b"a second execution\n")
    c = said("no-store")
    assert c.post().body == PAGE
    is_problem(c.post(), "response-unavailable")
    c = said("unknown")             # its own word, so it is shown
    assert c.post().body == PAGE
    is_problem(c.post(), "outcome-unknown")
    assert c.executions == 1


def test_under_takeover_it_executes_again_as_after_any_lost_request(site):
    c = site.case("/take/", page(502), page(504), SECOND)
    is_problem(c.post(), "outcome-unknown", 502)
    is_problem(c.post(), "outcome-unknown", 504)
    first = is_new(c.post(), 201, b"a second execution\n")
    is_replay(c.post(), first)
    assert [int(q.get("Idempotency-Attempt")) for q in c.requests] == [1, 2, 3]


def test_a_dry_run_shows_the_page(site):
    c = site.case("/dry/", page(502), SECOND)
    r = c.post()
    assert (r.status, r.body, r.once) == (502, PAGE, None), r
    assert c.post().body == b"a second execution\n"


# ---- Judged at the head --------------------------------------------------


@pytest.mark.parametrize("kind", ["text/event-stream", "application/x-ndjson"])
def test_no_stream_of_a_gateways_error_is_marked(site, kind):
    hold = Hold(before=b"HTTP/1.1 502 Odd\r\nContent-Type: %s\r\n\r\n"
                b"data: Bad Gateway\n\n" % kind.encode())
    c = site.case("/pay/", hold, SECOND)
    is_unknown(c, 502)              # while the service still sends


@pytest.mark.parametrize("where", ["/pay/", "/small/"])
def test_no_large_page_of_a_gateways_error_is_marked(site, where):
    c = site.case(where, Answer(504, b"Bad Gateway" * 9000), SECOND)
    is_unknown(c, 504)


@pytest.mark.nginx_only("the guard's handler has the whole response first")
def test_a_page_of_a_gateways_error_that_breaks_off_has_its_status(site):
    c = site.case("/pay/", Raw(b"HTTP/1.1 504 Odd\r\nContent-Length: 100\r\n"
                               b"\r\nBad Gateway"), SECOND)
    is_unknown(c, 504)


@pytest.mark.nginx_only("fastcgi_pass")
def test_a_gateways_error_over_fastcgi_is_no_outcome(make):
    site = make(guarded("/pay/", "fastcgi_param REQUEST_METHOD POST;"
                        "fastcgi_param REQUEST_URI $request_uri;").replace(
                            "proxy_pass http://origin", "fastcgi_pass UPSTREAM1"),
                backends=[FastCgi])
    site.upstream = site.upstreams[1]
    is_unknown(site.case("/pay/", Raw(fastcgi(502, PAGE)), SECOND), 502)


# ---- By the service's own status -----------------------------------------


PAGES = """
    location = /sorry { internal; default_type text/plain; return 200 "sorry\n"; }
    location /files/ { root FOLDER; }
    location /sorry/ { proxy_pass http://UPSTREAM1; }
    location @other { proxy_pass http://UPSTREAM1; }
"""


@pytest.mark.nginx_only("error pages and redirects")
@pytest.mark.parametrize("to", [
    "= /sorry", "=200 /sorry", "/sorry", "= /sorry/x", "=201 /sorry/x",
    "= @other", "=200 /none/x"])
def test_an_intercepted_gateways_error_is_judged_not_its_page(make, to):
    site = make(guarded("/pay/", "proxy_intercept_errors on;"
                        "error_page 502 %s;" % to) + PAGES, upstreams=2)
    is_unknown(site.case("/pay/", page(502), SECOND), 502)


@pytest.mark.nginx_only("error pages and redirects")
def test_what_x_accel_redirect_shows_for_a_gateways_error_does_not_decide(make):
    site = make(guarded("/pay/") + PAGES, upstreams=2)
    c = site.case("/pay/", page(502, [("X-Accel-Redirect", "/sorry/x")]),
                  SECOND)
    is_unknown(c, 502)


@pytest.mark.nginx_only("error pages and redirects")
def test_a_gateways_error_of_what_x_accel_redirect_shows_does_not_decide(make):
    site = make(guarded("/pay/") + """
        location /shown/ { internal; proxy_pass http://UPSTREAM1; }""",
                upstreams=2)
    c = site.case("/pay/", Answer(201, b"", [("X-Accel-Redirect", "/shown/x")]),
                  SECOND)
    site.upstreams[1]._script = lambda request: Answer(502, b"no\n")
    first = c.post()
    assert (first.status, first.once) == (502, "new"), first
    is_replay(c.post(), first)
    assert c.executions == 1


# It answers a POST itself, with 405, as one in Lua or Perl would.
@pytest.mark.nginx_only("error pages and redirects")
@pytest.mark.parametrize("more", [
    "", "error_page 405 /files/page;", "error_page 405 =200 /sorry/x;",
    "error_page 405 =200 /files/page;"])
def test_a_handler_that_is_no_upstream_is_judged_alike(make, more):
    site = make(guarded("/pay/", "once_unknown 405; empty_gif;" + more).replace(
        "proxy_pass http://origin;", "") + PAGES, upstreams=2)
    c = site.case("/pay/")
    is_problem(c.post(), "outcome-unknown", 405)
    is_problem(c.post(), "outcome-unknown")


@pytest.mark.nginx_only("error pages and redirects")
def test_a_client_that_leaves_makes_no_outcome_of_a_gateways_error(make):
    site = make(guarded("/pay/", "proxy_intercept_errors on;"
                        "error_page 502 = /sorry/x;") + PAGES, upstreams=2)
    c = site.case("/pay/", page(502), SECOND)
    hold = Hold()
    site.upstreams[1]._script = lambda request: hold
    with c.start():
        hold.wait()
    assert c.post().code() == "in-flight"   # until its page has come
    hold.go.set()
    eventually(lambda: c.post().code() == "outcome-unknown")
    assert c.executions == 1
