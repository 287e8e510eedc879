# SPDX-License-Identifier: Apache-2.0
"""
nginx refuses a request before its claim: it comes too often, its body is too
large, its caller is not let in. An error page must not lead such a request
around the guard, where each repeat would execute: the client gets the status of
the refusal, and the key stays free.
"""

import pytest

from backends import FastCgi
from gateway import (Answer, Client, Hold, Site, eventually, guarded, is_new,
                     is_replay)

pytestmark = pytest.mark.nginx_only("error pages")

SECOND = Answer(201, b"a second execution\n")

FALLBACK = "location @fb { proxy_pass http://UPSTREAM1; }"
SLOW = "limit_req_zone $http_x_limit zone=slow:1m rate=1r/m;"
FEW = "limit_conn_zone $http_x_limit zone=few:1m;"

# What refuses in a guarded location, and what the request needs for that.
REFUSALS = {
    "return": (503, "if ($http_x_down) { return 503; }",
               {"headers": [("X-Down", "1")]}),
    "denied": (403, "if ($http_x_down) { set $x 1; } deny all;", {}),
    "auth_request": (401, "auth_request /auth;", {}),
    "auth_basic": (401, "auth_basic x; auth_basic_user_file FOLDER/users;", {}),
    "long": (413, "client_max_body_size 1k;", {"body": b"b" * 5000}),
    "chunked": (413, "client_max_body_size 1k;",
                {"body": b"b" * 5000, "chunked": True}),
    "internal": (404, "internal;", {}),
}


def site_with(make, more, status, page="@fb", fallback=FALLBACK, **options):
    site = make(guarded("/pay/", "%s error_page %d %s;" % (
        more, status, page)) + fallback + """
        location = /auth { return 401; }
        location = /page { proxy_pass http://UPSTREAM1/page; }
        """, upstreams=2, http=SLOW + FEW, start=False, **options)
    (site.folder / "users").write_text("")
    return site.start()


def is_refused(c, status, **what):
    for _ in range(2):
        r = c.post(**what)
        assert (r.status, r.once, r.replayed) == (status, None, False), r
    assert c.executions == 0


@pytest.mark.parametrize("name", REFUSALS)
@pytest.mark.parametrize("change", ["", "= ", "=200 "])
def test_an_error_page_does_not_lead_around_the_guard(make, name, change):
    status, more, what = REFUSALS[name]
    site = site_with(make, more, status, change + "@fb")
    c = site.case("/pay/", Answer(), SECOND)
    is_refused(c, status, **what)


@pytest.mark.parametrize("name", REFUSALS)
def test_a_guarded_fallback_takes_no_request_that_was_refused(make, name):
    # Another scope is another name: the same key would execute twice.
    status, more, what = REFUSALS[name]
    site = site_with(make, more, status, fallback=guarded(
        "@fb", scope="$host", target="http://UPSTREAM1"))
    is_refused(site.case("/pay/", Answer(), SECOND), status, **what)


@pytest.mark.parametrize("limit, what", [
    ("limit_req zone=slow;", "req"), ("limit_conn few 1;", "conn")])
def test_a_limit_does_not_lead_around_the_guard(make, limit, what):
    site = site_with(make, limit, 503, workers=1)
    limited = {"headers": [("X-Limit", "a")]}
    hold = Hold()
    first = site.case("/pay/", hold, SECOND)
    with first.start(**limited) as client:
        hold.wait()
        is_refused(site.case("/pay/", Answer(), SECOND), 503, **limited)
        hold.go.set()
        made = is_new(client.read())
    if what == "req":
        is_refused_repeat(first, limited)
    is_replay(first.post(), made)
    assert first.executions == 1


def is_refused_repeat(c, what):
    r = c.post(**what)
    assert (r.status, r.once) == (503, None), r


def test_a_refusal_of_the_server_does_not_lead_around_the_guard(make):
    site = make("""
        error_page 503 @fb;
        if ($http_x_down) { return 503; }
        """ + guarded("/pay/") + FALLBACK, upstreams=2)
    c = site.case("/pay/", Answer(), SECOND)
    is_refused(c, 503, headers=[("X-Down", "1")])
    first = is_new(c.post())
    is_replay(c.post(), first)
    # What has no key was never guarded, and takes the page.
    plain = site.case("/pay/")
    r = plain.post(key=None, headers=[("X-Down", "1")])
    assert (r.status, plain.executions) == (503, 1), r


@pytest.mark.parametrize("order", [0, 1])
def test_a_refusal_of_the_server_chooses_no_location(make, order):
    # @fb guards as /other/ does, and the request was on its way to /pay/.
    both = [guarded("/pay/"), guarded("/other/", scope="$host")]
    site = make("error_page 418 @fb; if ($http_x_down) { return 418; }" +
                both[order] + both[1 - order] +
                guarded("@fb", scope="$host", target="http://UPSTREAM1"),
                upstreams=2)
    c = site.case("/pay/", Answer(), SECOND)
    is_refused(c, 418, headers=[("X-Down", "1")])
    is_new(c.post())


def test_a_required_key_is_required_of_a_refused_request(make):
    site = site_with(make, "once_key_required on;"
                     "if ($http_x_down) { return 503; }", 503)
    c = site.case("/pay/")
    is_refused(c, 503, key=None, headers=[("X-Down", "1")])


def test_a_second_error_page_does_not_lead_around_the_guard(make):
    site = make(guarded("/pay/", """
            recursive_error_pages on;
            if ($http_x_down) { return 503; }
            error_page 503 = @first;""") + """
        location @first {
            recursive_error_pages on;
            error_page 504 = @fb;
            return 504;
        }""" + FALLBACK, upstreams=2)
    c = site.case("/pay/", Answer(), SECOND)
    r = c.post(headers=[("X-Down", "1")])
    assert (r.status, c.executions) == (503, 0), r


def test_pages_that_send_nothing_are_shown(make):
    site = make(guarded("/pay/", """
            if ($http_x_down) { return 503; }
            error_page 503 @%s;""" % "file") + guarded("/get/", """
            if ($http_x_down) { return 503; }
            error_page 503 /page;""") + guarded("/args/", """
            if ($http_x_down) { return 503; }
            error_page 503 /page?a=b;""") + """
        location @file { return 503 "a page\\n"; }
        location = /page { proxy_pass http://UPSTREAM1; }
        """, upstreams=2)
    down = [("X-Down", "1")]
    c = site.case("/pay/")
    assert c.post(headers=down).body == b"a page\n"
    for prefix, target in (("/get/", "/page"), ("/args/", "/page?a=b")):
        c = site.case(prefix)
        r = c.post(headers=down)
        assert (r.status, r.body, r.once) == (503, b"plain\n", None), r
        assert site.upstreams[1].requests[-1].target == target
        assert site.upstreams[1].requests[-1].method == "GET"
        is_new(c.post())


def test_a_page_that_becomes_a_post_on_the_wire_is_not_sent(make):
    site = site_with(make, "if ($http_x_down) { return 503; }", 503, "/post",
                     "location /post { proxy_method POST;"
                     "proxy_pass http://UPSTREAM1; }")
    c = site.case("/pay/", Answer(), SECOND)
    is_refused(c, 503, headers=[("X-Down", "1")])
    assert site.upstreams[1].count("/post") == 0


# The page is a GET and no guarded method, until its location writes another one.
REWRITES = {
    "proxy": "proxy_method $http_x_method; proxy_pass http://UPSTREAM1;",
    "fastcgi": "fastcgi_param REQUEST_METHOD $http_x_method;"
               "fastcgi_param REQUEST_URI /page; fastcgi_pass UPSTREAM2;",
}


@pytest.mark.parametrize("name", REWRITES)
def test_a_guarded_page_that_becomes_a_post_on_the_wire_is_not_sent(make, name):
    site = make(guarded("/pay/", "if ($http_x_down) { return 403; }"
                        "error_page 403 /page;") +
                "location /page { once main; once_scope off; %s }" %
                REWRITES[name], upstreams=2, backends=[FastCgi])
    down = [("X-Down", "1"), ("X-Method", "POST")]
    c = site.case("/pay/")
    is_refused(c, 403, headers=down)
    assert not any(u.requests for u in site.upstreams[1:])
    first = is_new(c.post())
    is_replay(c.post(), first)


def test_a_guarded_page_that_stays_a_get_is_shown(make):
    site = make(guarded("/pay/", "if ($http_x_down) { return 403; }"
                        "error_page 403 /page;") +
                "location /page { once main; once_scope off; %s }" %
                REWRITES["proxy"], upstreams=2)
    c = site.case("/pay/")
    r = c.post(headers=[("X-Down", "1"), ("X-Method", "GET")])
    assert (r.status, r.body, r.once) == (403, b"plain\n", None), r
    assert site.upstreams[1].requests[-1].method == "GET"


def test_a_return_that_only_chooses_the_location_goes_on(make):
    # An idiom: 418 is no error, but the way to another location.
    site = make("""
        once main;
        once_scope $host;
        location /pay/ {
            error_page 418 = @post;
            if ($request_method = POST) { return 418; }
            proxy_pass http://UPSTREAM1;
        }
        location @post { proxy_pass http://origin; }
        location @other { once_scope $server_name; proxy_pass http://origin; }
        location /two/ {
            error_page 418 = @other;
            if ($request_method = POST) { return 418; }
            proxy_pass http://UPSTREAM1;
        }""", upstreams=2)
    c = site.case("/pay/", Answer(), SECOND)
    first = is_new(c.post())
    is_replay(c.post(), first)
    assert c.executions == 1
    is_refused(site.case("/two/"), 418)


def test_a_dry_run_leaves_the_page_as_it_is(make):
    site = site_with(make, "once_dry_run on;"
                     "if ($http_x_down) { return 503; }", 503, "= @fb")
    c = site.case("/pay/", Answer(), SECOND)
    assert c.post(headers=[("X-Down", "1")]).status == 201
    assert "would not have been sent to location \"@fb\"" in \
        site.gateway.log("error.log")


def test_what_was_refused_is_logged_with_its_location(make):
    site = site_with(make, "if ($http_x_down) { return 503; }", 503)
    is_refused(site.case("/pay/"), 503, headers=[("X-Down", "1")])
    assert eventually(lambda: "was not sent to location \"@fb\"" in
                      site.gateway.log("error.log"))


def test_over_http_2(make):
    site = site_with(make, "if ($http_x_down) { return 503; }", 503)
    c = site.case("/pay/", Answer(), SECOND)
    r = c.h2(headers=[("X-Down", "1")], body=b"")
    assert (r.status, c.executions) == (503, 0), r
    is_new(c.h2())


def test_a_body_that_is_too_large_leaves_the_connection_usable(make):
    site = site_with(make, "client_max_body_size 1k;", 413)
    c = site.case("/pay/")
    with Client(site.gateway.port) as client:
        client.send(c.bytes(body=b"b" * 5000))
        assert client.read().status == 413
    is_new(c.post())


# ---- nginx -t -------------------------------------------------------------


def warnings(tmp_path, server):
    (tmp_path / "x").mkdir()
    site = Site(tmp_path / "x", server, upstreams=2)
    try:
        status, said = site.gateway.check()
        assert status == 0, said
        # "/open/" is the harness's own, and its server has no name.
        return [line for line in said.splitlines() if "[warn]" in line
                and "/open/" not in line and "once_realm" not in line]
    finally:
        site.close()


def test_the_check_warns_of_a_page_that_will_not_be_used(tmp_path):
    said = warnings(tmp_path, guarded(
        "/pay/", "error_page 429 503 = @fb; proxy_http_version 1.1;") +
        FALLBACK)
    assert len(said) == 1 and "\"@fb\"" in said[0] and "429" in said[0] and \
        "/pay/" in said[0], said


@pytest.mark.parametrize("page", [
    "error_page 502 504 = @fb;", "error_page 503 /page;",
    "error_page 503 @file;", "error_page 503 = @same;"])
def test_the_check_is_silent_about_other_pages(tmp_path, page):
    said = warnings(tmp_path, """
        once main;
        once_scope $host;
        location @same { proxy_http_version 1.1; proxy_pass http://origin; }
        location /pay/ {
            proxy_http_version 1.1;
            proxy_pass http://origin;
            %s
        }
        location @file { return 503; }
        location @fb { once off; proxy_pass http://origin; }
        location = /page { once off; proxy_pass http://UPSTREAM1; }
        """ % page)
    assert not said, said
