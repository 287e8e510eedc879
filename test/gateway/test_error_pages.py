# SPDX-License-Identifier: Apache-2.0
"""
Pages for errors: a page may come from another upstream, be too large, or have
another status. What is recorded is what the first upstream answered, and a page
never hides an unknown outcome.
"""

import pytest

from backends import FastCgi, Scgi, Uwsgi, fastcgi
from gateway import (Answer, Client, Drop, Hold, Raw, Upstream, guarded, is_new,
                     is_problem, is_replay)

SECOND = Answer(201, b"a second execution\n")
LARGE = b"large " * 20000


PAGES = """
    location /sorry/ { proxy_pass http://UPSTREAM1; }
    location @other { proxy_pass http://UPSTREAM1; }
"""


@pytest.mark.nginx_only("error pages and redirects")
def test_a_proxied_error_page_does_not_hide_an_unknown_outcome(make):
    site = make(guarded("/pay/", "error_page 502 504 /sorry/x;") + PAGES,
                upstreams=2)
    c = site.case("/pay/", Drop(), SECOND)
    is_problem(c.post(), "outcome-unknown", 502)
    is_problem(c.post(), "outcome-unknown")
    assert c.executions == 1


@pytest.mark.nginx_only("error pages and redirects")
def test_a_proxied_error_page_does_not_take_the_key_of_an_unsent_request(
        make):
    site = make(guarded("/pay/", "error_page 502 /sorry/x;",
                        target="http://UPSTREAM2") + PAGES,
                upstreams=3, listen=False)
    c = site.case("/pay/")
    for _ in range(2):
        r = c.post()
        assert (r.status, r.body, r.replayed) == (502, b"plain\n", False)
    site.upstreams[2].listen()
    first = is_new(c.post())
    is_replay(c.post(), first)
    assert c.executions == 1


@pytest.mark.nginx_only("error pages and redirects")
@pytest.mark.parametrize("status, executions", [(500, 1), (429, 2)])
def test_an_intercepted_status_is_judged_not_its_proxied_page(
        make, status, executions):
    site = make(guarded("/pay/", "proxy_intercept_errors on;"
                        "error_page 500 429 =200 /sorry/x;") + PAGES,
                upstreams=2)
    c = site.case("/pay/", Answer(status, b"no\n"), SECOND)
    assert c.post().body == b"plain\n"
    c.post()
    assert c.executions == executions


@pytest.mark.nginx_only("error pages and redirects")
@pytest.mark.parametrize("change", ["", "= ", "=200 "])
@pytest.mark.parametrize("status, executions", [
    (402, 1), (429, 2), (500, 1), (503, 1)])
def test_a_named_page_that_is_not_sent_leaves_the_outcome_known(
        make, status, executions, change):
    site = make(guarded("/pay/", "proxy_intercept_errors on;"
                        "error_page 402 429 500 503 %s@other;" % change) +
                PAGES, upstreams=2)
    c = site.case("/pay/", Answer(status, b"no\n"), Answer(status, b"no\n"))
    first = c.post()
    # nginx's own page for the status that the service gave.
    assert (first.status, first.once) == (status, "new"), first
    second = c.post()
    assert (second.status, c.executions) == (status, executions)
    if executions == 1:
        is_replay(second, first)
    assert not site.upstreams[1].requests


# What makes a POST of the GET of an error page, in four protocols.
WIRE = {
    "proxy": "proxy_method POST; proxy_pass http://UPSTREAM1;",
    "proxy_variable": "set $m POST; proxy_method $m;"
                      "proxy_pass http://UPSTREAM1;",
    "fastcgi": "fastcgi_param REQUEST_METHOD POST;"
               "fastcgi_param REQUEST_URI /x; fastcgi_pass UPSTREAM2;",
    "uwsgi": "uwsgi_param REQUEST_METHOD POST;"
             "uwsgi_param REQUEST_URI /x; uwsgi_pass UPSTREAM3;",
    "scgi": "scgi_param REQUEST_METHOD $request_method;"
            "scgi_param REQUEST_URI /x; scgi_param REQUEST_METHOD POST;"
            "scgi_pass UPSTREAM4;",
}


@pytest.mark.nginx_only("error pages and redirects")
@pytest.mark.parametrize("lines", WIRE.values(), ids=WIRE.keys())
@pytest.mark.parametrize("where", ["location", "if"])
def test_a_page_that_is_a_post_on_the_wire_sends_nothing_twice(
        make, lines, where):
    if where == "if":
        lines = "if ($http_origin) { set $x 1; }" + lines
    site = make(guarded("/pay/", "proxy_intercept_errors on;"
                        "error_page 500 /page;") +
                "location /page { %s }" % lines,
                upstreams=2, backends=[FastCgi, Uwsgi, Scgi])
    c = site.case("/pay/", Answer(500, b"no\n"), SECOND)
    first = c.post(headers=[("Origin", "x")])
    assert (first.status, first.once) == (500, "new"), first
    is_replay(c.post(headers=[("Origin", "x")]), first)
    assert c.executions == 1
    assert not any(u.requests for u in site.upstreams[1:])


@pytest.mark.nginx_only("error pages and redirects")
@pytest.mark.parametrize("lines", WIRE.values(), ids=WIRE.keys())
def test_a_page_that_is_a_post_on_the_wire_may_be_the_first_dispatch(
        make, lines):
    site = make(guarded("/pay/", "error_page 502 /page;",
                        target="http://UPSTREAM5") +
                "location /page { %s }" % lines, upstreams=2,
                backends=[FastCgi, Uwsgi, Scgi, Closed])
    page = {"fastcgi": 2, "uwsgi": 3, "scgi": 4}.get(
        [k for k, v in WIRE.items() if v == lines][0], 1)
    answer = Answer(201) if page == 1 else \
        Raw(fastcgi(201, b"made\n")) if page == 2 else \
        Raw(b"Status: 201 Fine\r\nContent-Length: 5\r\n\r\nmade\n")
    site.upstreams[page]._script = site_script(site.upstreams[page], answer)
    c = site.case("/pay/")
    first = c.post()
    assert (first.status, first.body, first.once) == (502, b"made\n", "new")
    is_replay(c.post(), first)
    assert len(site.upstreams[page].requests) == 1


def site_script(upstream, answer):
    """Every request is noted and gets this answer."""
    def script(request):
        upstream.requests.append(request)
        return answer
    return script


class Closed(Upstream):
    """Bound, and not listening."""

    def __init__(self):
        super().__init__(listen=False)


@pytest.mark.nginx_only("error pages and redirects")
def test_a_named_page_that_is_a_get_on_the_wire_is_shown(make):
    site = make(guarded("/pay/", "proxy_intercept_errors on;"
                        "error_page 500 @page;") + """
        location @page {
            proxy_method GET;
            proxy_pass_request_body off;
            proxy_set_header Content-Length "";
            proxy_pass http://UPSTREAM1;
        }""", upstreams=2)
    c = site.case("/pay/", Answer(500, b"no\n"), SECOND)
    first = c.post()
    assert (first.status, first.body) == (500, SECOND.data[-19:]), first
    assert [r.method for r in c.requests] == ["POST", "GET"]
    is_replay(c.post(), first)
    assert len(c.requests) == 2


@pytest.mark.nginx_only("proxy_method")
@pytest.mark.parametrize("more", ["", "try_files /none @app;"])
@pytest.mark.parametrize("method", ["GET", "PUT"])
def test_a_location_that_changes_the_method_sends_the_request(
        make, more, method):
    site = make(guarded("/pay/", "proxy_method %s; root FOLDER; %s" % (
        method, more)) + """
        location @app { proxy_method %s; proxy_pass http://origin; }""" %
                method)
    c = site.case("/pay/", Answer(), SECOND)
    first = is_new(c.post())
    is_replay(c.post(), first)
    assert [r.method for r in c.requests] == [method]


@pytest.mark.nginx_only("error pages and redirects")
def test_a_fallback_after_an_unguarded_upstream_is_the_first_dispatch(make):
    site = make("""
        location /try/ {
            proxy_pass http://UPSTREAM1;
            error_page 502 = @pay;
        }
        location @pay {
            once main;
            once_scope off;
            proxy_pass http://UPSTREAM2;
        }""", upstreams=3, listen=False)
    site.upstreams[1]._script = lambda request: Drop()
    c = site.case("/try/")
    # Not sent, whatever was sent to the other upstream before.
    assert c.post().status == 502
    site.upstreams[2].listen()
    first = is_new(c.post())
    is_replay(c.post(), first)
    assert c.executions == 1


@pytest.mark.nginx_only("error pages and redirects")
def test_an_error_page_for_a_body_that_is_too_large(make):
    site = make(guarded("/pay/", "client_max_body_size 1k;"
                        "error_page 413 /big.html;") + """
        location = /big.html { root FOLDER; }""", workers=1)
    (site.folder / "big.html").write_bytes(b"too big\n")
    c = site.case("/pay/")
    r = c.post(chunked=True, body=b"b" * 5000)
    assert (r.status, r.body, r.once) == (413, b"too big\n", None), r
    assert c.executions == 0
    is_new(c.post())


@pytest.mark.nginx_only("error pages and redirects")
def test_an_error_page_for_a_body_that_grows_too_large(make):
    site = make(guarded("/pay/", "client_max_body_size 1k;"
                        "error_page 413 /big.html;") + """
        location = /big.html { root FOLDER; }""", workers=1)
    (site.folder / "big.html").write_bytes(b"too big\n")
    c = site.case("/pay/")
    data = c.bytes(chunked=True, body=b"b" * 5000)
    head, _, body = data.partition(b"\r\n\r\n")
    with Client(site.gateway.port) as client:
        client.send(head + b"\r\n\r\n")
        site.turn()
        client.send(body)
        r = client.read()
        assert (r.status, r.body) == (413, b"too big\n")
    assert c.executions == 0
    is_new(c.post())


@pytest.mark.nginx_only("error pages and redirects")
def test_a_body_that_is_too_large_does_not_slip_into_a_guarded_location(
        make):
    site = make(guarded("/pay/", "client_max_body_size 1k;"
                        "error_page 413 = @big;") +
                guarded("@big", "client_max_body_size 1m;"))
    c = site.case("/pay/")
    for _ in range(2):
        with c.start(chunked=True, body=b"b" * 5000, close=True) as client:
            assert client.read().status in (413, 500)
    assert c.executions == 0


@pytest.mark.nginx_only("error pages and redirects")
@pytest.mark.parametrize("status", [404, 503])
def test_a_refusal_of_try_files_before_dispatch_is_not_recorded(make, status):
    site = make(guarded("/pay/", "root FOLDER; try_files /open =%d;" % status))
    c = site.case("/pay/")
    for _ in range(2):
        r = c.post()
        assert (r.status, r.replayed) == (status, False), r
    assert c.executions == 0
    # Now there is a file, and the request goes through.
    (site.folder / "open").write_bytes(b"")
    r = c.post()
    assert (r.status, r.once) == (201, "new"), r


@pytest.mark.nginx_only("error pages and redirects")
def test_a_large_error_page_of_an_unsent_request_releases_the_key(make):
    site = make(guarded("/pay/", "once_max_response 1k;"
                        "error_page 502 /big.html;",
                        target="http://UPSTREAM1") + """
        location = /big.html { root FOLDER; }""", upstreams=2, listen=False)
    (site.folder / "big.html").write_bytes(LARGE)
    c = site.case("/pay/")
    for _ in range(2):
        r = c.post()
        assert (r.status, r.body, r.truncated) == (502, LARGE, False)
    site.upstreams[1].listen()
    is_new(c.post())
    assert c.executions == 1


@pytest.mark.nginx_only("error pages and redirects")
def test_a_status_that_error_page_overrides_is_not_the_outcome_s(make):
    site = make(guarded("@pay", "once_final 2xx;") + """
        location /static/ { root FOLDER; error_page 405 @pay; }""")
    (site.folder / "static").mkdir()
    c = site.case("/static/", Answer(), SECOND)
    (site.folder / "static" / c.id).write_bytes(b"")
    first = c.post()
    # nginx shows the status of the error, as without us.
    assert (first.status, first.body, first.once) == (405, b"made\n", "new")
    is_replay(c.post(), first)
    is_problem(c.post(body=b"other"), "key-reused")
    assert c.executions == 1


@pytest.mark.nginx_only("error pages and redirects")
def test_x_accel_redirect_to_an_unguarded_upstream_is_followed(make):
    site = make(guarded("/pay/", "once_methods PUT POST;"
                        "proxy_next_upstream off;") +
                "location /files/ { internal; proxy_pass http://peers; }",
                http="""upstream peers {
                    server UPSTREAM1 max_fails=0;
                    server UPSTREAM1 max_fails=0;
                }""", upstreams=2)
    for method in ("POST", "PUT"):
        c = site.case("/pay/", Answer(200, b"", [
            ("X-Accel-Redirect", "/files/receipt")]), SECOND)
        first = is_new(c.send(method), 200, b"plain\n")
        is_replay(c.send(method), first)
        assert c.executions == 1


def test_what_is_not_http_and_does_not_end_is_answered(make):
    site = make(guarded("/pay/", "proxy_read_timeout 300ms;"))
    c = site.case("/pay/", Hold(before=b"is this the shop?\r\n"), SECOND)
    r = c.post()
    is_problem(r, "outcome-unknown", r.status)
    assert r.status in (502, 504)
    is_problem(c.post(), "outcome-unknown")
    assert c.executions == 1
