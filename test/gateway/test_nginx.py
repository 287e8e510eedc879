# SPDX-License-Identifier: Apache-2.0
"""
A guarded location among nginx's other features: peers, internal redirects,
subrequests, interception. A request stays one request whatever way it takes.
"""

import pytest

from gateway import (Answer, Drop, Hold, Raw, Reset, Silent, eventually,
                     guarded, is_new, is_problem, is_replay,
                     replays_in_the_end)

pytestmark = pytest.mark.nginx_only("other features of nginx")

SECOND = Answer(201, b"a second execution\n")

# ---- Peers ---------------------------------------------------------------

PEERS = """
    upstream peers {
        server UPSTREAM0 max_fails=0;
        server UPSTREAM1 max_fails=0;
    }
"""

RETRY = {
    "nginx_s_own_default": "",
    "everything": "proxy_next_upstream error timeout invalid_header http_500"
                  " http_502 http_503 http_504 http_403 http_404 http_429"
                  " non_idempotent; proxy_next_upstream_tries 5;",
    "off": "proxy_next_upstream off;",
}

CUT = {
    "dropped": Drop(), "reset": Reset(), "garbage": Raw(b"garbage\r\n\r\n"),
    "silent": Silent(), "500": Answer(500, b"no"), "503": Answer(503, b"no"),
}


def peers(make, more, **what):
    """
    A site, or None where nginx refuses the location at its start and says so:
    section 3 allows to refuse and to narrow.
    """
    site = make(guarded("/pay/", "once_methods POST PUT DELETE PATCH;"
                        "proxy_read_timeout 300ms;" + more,
                        target="http://peers"),
                http=PEERS, upstreams=2, start=False, workers=1, **what)
    code, said = site.gateway.check()
    if code == 0:
        return site.start()
    assert "unknown directive" not in said, said
    assert "proxy_next_upstream" in said, said
    return None


@pytest.mark.parametrize("more", RETRY.values(), ids=RETRY.keys())
def test_no_guarded_request_is_sent_to_a_second_peer(make, more):
    site = peers(make, more)
    if site is None:
        assert "off" not in more
        return
    for how, script in CUT.items():
        for method in ("POST", "PUT", "DELETE", "PATCH"):
            c = site.case("/pay/", script, SECOND)
            first = c.send(method)
            assert c.executions == 1, (how, method)
            again = c.send(method)
            assert c.executions == 1, (how, method)
            if how in ("500", "503"):
                is_replay(again, first)
            else:
                is_problem(again, "outcome-unknown")


def test_what_is_not_guarded_keeps_nginx_s_own_retries(make):
    site = make(guarded("/pay/", "proxy_next_upstream off;") + """
        location /free/ { proxy_pass http://peers; }""",
                http=PEERS, upstreams=2, workers=1)
    c = site.case("/free/", Drop(), Answer(200, b"second peer\n"))
    r = c.send("PUT")
    assert (r.status, c.executions) == (200, 2)
    d = site.case("/pay/")
    first = is_new(d.post())
    is_replay(d.post(), first)


def test_a_peer_that_refuses_costs_no_key(make):
    # The second peer refuses; nginx may or may not try the other one.
    site = peers(make, "", listen=False)
    if site is None:
        return
    for _ in range(4):
        c = site.case("/pay/", Answer(), SECOND)
        r = eventually(lambda c=c: fresh_or_502(c))
        is_replay(c.post(), r)
        assert c.executions == 1


def fresh_or_502(case):
    r = case.post()
    if r.status == 201:
        return is_new(r)
    assert r.status == 502 and r.code() is None, r
    return None


# ---- Interception and internal redirects ---------------------------------


def replays_like(c, status, body):
    """Twice the same to the caller, one execution."""
    for replayed in (False, True):
        r = c.post()
        assert (r.status, r.body) == (status, body), r
        assert r.replayed == replayed
        assert c.executions == 1


def test_an_error_page_for_an_intercepted_status(make):
    site = make(guarded("/pay/", "proxy_intercept_errors on;"
                        "error_page 500 /sorry.html;") + """
        location = /sorry.html { return 500 "sorry\n"; }""")
    c = site.case("/pay/", Answer(500, b"oh\n"), SECOND)
    first = c.post()
    assert first.status == 500
    again = c.post()
    assert (again.status, again.once) == (500, "replayed")
    assert c.executions == 1


def test_an_error_page_does_not_hide_an_unknown_outcome(make):
    site = make(guarded("/pay/", "error_page 502 504 =503 /sorry;") + """
        location = /sorry { return 503 "sorry\n"; }""")
    c = site.case("/pay/", Drop(), SECOND)
    r = c.post()
    assert r.status in (502, 503)
    is_problem(c.post(), "outcome-unknown")
    assert c.executions == 1


def test_an_error_page_in_another_upstream_is_not_a_second_execution(make):
    site = make(guarded("/pay/", "error_page 502 504 = @other;") + """
        location @other { proxy_pass http://UPSTREAM1; }""", upstreams=2)
    c = site.case("/pay/", Drop(), SECOND)
    c.post()
    assert c.executions == 1
    is_problem(c.post(), "outcome-unknown")
    assert c.executions == 1


def test_an_error_page_for_a_refusal_of_nginx_claims_nothing(make):
    site = make(guarded("/pay/", "error_page 403 /sorry;"
                        "if ($http_x_bad) { return 403; }") + """
        location = /sorry { return 403 "sorry\n"; }""")
    c = site.case("/pay/")
    assert c.post(headers=[("X-Bad", "1")]).status == 403
    assert c.executions == 0
    first = is_new(c.post())
    is_replay(c.post(), first)


def test_x_accel_redirect_is_followed_and_executes_once(make):
    site = make(guarded("/pay/") + """
        location /files/ { internal; alias FOLDER/; }""")
    (site.folder / "receipt").write_bytes(b"the receipt\n")
    c = site.case("/pay/", Answer(200, b"", [
        ("X-Accel-Redirect", "/files/receipt")]), SECOND)
    first = c.post()
    # nginx answers a POST for a file with 405; the execution counts once.
    again = c.post()
    assert c.executions == 1
    assert again.get("X-Accel-Redirect") is None
    assert (again.status, again.body) == (first.status, first.body)


def test_x_accel_redirect_to_another_guarded_location_executes_once_each(
        make):
    site = make(guarded("/pay/") + """
        location @second {
            once main;
            once_scope off;
            proxy_pass http://origin/second/$http_x_second;
        }""")
    second = site.case("/second/", Answer(201, b"redirected\n"), SECOND)
    c = site.case("/pay/", Answer(200, b"", [
        ("X-Accel-Redirect", "@second")]), SECOND)
    where = [("X-Second", second.id)]
    first = c.post(headers=where)
    assert (first.status, first.body) == (201, b"redirected\n")
    c.post(headers=where)
    assert (c.executions, second.executions) == (1, 1)


def test_try_files_into_a_guarded_location(make):
    site = make("""
        root FOLDER;
        location /pay/ { try_files /missing @app; }
        location @app {
            once main;
            once_scope off;
            proxy_pass http://origin;
        }""")
    replays_like(site.case("/pay/", Answer(), SECOND), 201, b"made\n")


def test_a_rewrite_into_a_guarded_location(make):
    site = make(guarded("/pay/") + """
        location /old/ { rewrite ^/old/(.*)$ /pay/$1 last; }""")
    c = site.case("/old/", Answer(), SECOND)
    replays_like(c, 201, b"made\n")
    assert c.requests[0].path == "/pay/" + c.id


def test_a_guarded_location_with_uri_in_proxy_pass(make):
    site = make(guarded("/pay/", target="http://origin/inner/"))
    c = site.case("/pay/", Answer(), SECOND)
    replays_like(c, 201, b"made\n")
    assert c.requests[0].path == "/inner/" + c.id


def test_mirror_sees_the_first_request_only(make):
    site = make(guarded("/pay/", "mirror /mirror;") + """
        location = /mirror {
            internal;
            proxy_pass http://UPSTREAM1/mirrored;
        }""", upstreams=2)
    c = site.case("/pay/", Answer(), SECOND)
    replays_like(c, 201, b"made\n")
    eventually(lambda: site.upstreams[1].count("/mirrored") == 1)
    is_problem(c.post(body=b"other"), "key-reused")
    site.turn()
    assert site.upstreams[1].count("/mirrored") == 1
    assert site.upstreams[1].requests[0].body == c.requests[0].body


def test_auth_request_is_asked_before_each_replay(make):
    site = make(guarded("/pay/", "auth_request /auth;") + """
        location = /auth {
            internal;
            proxy_pass http://UPSTREAM1/auth;
            proxy_pass_request_body off;
            proxy_set_header Content-Length "";
        }""", upstreams=2)
    c = site.case("/pay/", Answer(), SECOND)
    replays_like(c, 201, b"made\n")
    assert site.upstreams[1].count("/auth") == 2


def test_settings_of_the_server_are_inherited_and_may_be_switched_off(make):
    site = make("""
        once main;
        once_scope off;
        location /pay/ { proxy_pass http://origin; }
        location /free/ { once off; proxy_pass http://origin; }""")
    replays_like(site.case("/pay/", Answer(), SECOND), 201, b"made\n")
    c = site.case("/free/")
    for n in (1, 2):
        assert c.post().once is None
        assert c.executions == n


def test_two_stores_know_nothing_of_each_other(make):
    site = make(guarded("/pay/", 'if ($http_x_other) { rewrite ^ /other$uri '
                        'last; }') + guarded("/other/", once="second"),
                lines="once_store second sqlite:FOLDER/store.db2;")
    c = site.case("/pay/")
    is_new(c.post())
    is_new(c.post(headers=[("X-Other", "1")]))
    assert c.executions == 2


def test_the_client_s_abort_setting_of_nginx_does_not_matter(make):
    site = make(guarded("/pay/", "proxy_ignore_client_abort off;"), workers=1)
    hold = Hold()
    c = site.case("/pay/", hold, SECOND)
    client = c.start()
    hold.wait()
    client.hang_up()
    site.turn()
    assert not hold.conn.peer_gone(0.2)
    hold.go.set()
    assert replays_in_the_end(c).body == b"made\n"
    assert c.executions == 1


@pytest.mark.parametrize("more", [
    "proxy_cache off;", "proxy_buffering off;", "proxy_request_buffering off;",
    "limit_rate 500k;", "sub_filter made paid; sub_filter_types *;",
    "ssi on; ssi_types *;", "chunked_transfer_encoding off;",
    "proxy_hide_header X-None; proxy_pass_header Server;",
    "client_body_in_single_buffer on;", "output_buffers 1 1k;",
    "postpone_output 0;", "etag off;", "proxy_limit_rate 800k;",
    "send_timeout 5s;", "expires 1h;"])
def test_a_setting_of_nginx_that_changes_nothing(make, more):
    site = make(guarded("/pay/", more), workers=1)
    c = site.case("/pay/", Answer(201, b"made " * 3000), SECOND)
    first = c.post()
    word = b"paid" if "sub_filter" in more else b"made"
    # sub_filter replaces the first one only, on the way out, each time.
    assert first.status == 201 and first.body.startswith(word)
    again = c.post()
    assert again.replayed and again.body == first.body
    assert c.executions == 1
    if more.startswith("expires"):
        assert again.get("Cache-Control") == first.get("Cache-Control")


# ---- proxy_store ---------------------------------------------------------


@pytest.mark.parametrize("size", [5, 200000])
def test_what_nginx_stores_of_a_guarded_answer(make, size):
    site = make(guarded("/pay/", "proxy_store FOLDER/stored;"
                        "proxy_store_access user:rw;"))
    body = b"a" * size
    c = site.case("/pay/", Answer(200, body), SECOND)
    first = is_new(c.post(), 200, body)
    is_replay(c.post(), first)
    assert c.executions == 1
