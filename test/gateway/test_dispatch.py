# SPDX-License-Identifier: Apache-2.0
"""
A guarded request is sent once, whatever the configuration. nginx may be in an
`if` block, in a location that a redirect led to, or in a copy of the request
that it made itself: what is decided for the request holds in all of them, and
other requests are left as nginx has them.
"""

import contextlib
import socket
import threading

import pytest

from gateway import (Answer, Drop, Hold, Raw, Site, eventually, guarded,
                     is_new, is_problem, is_replay, replays_in_the_end)

pytestmark = pytest.mark.nginx_only("how nginx dispatches")

SECOND = Answer(201, b"a second execution\n")

PEERS = """
    upstream peers {
        server UPSTREAM0 max_fails=0;
        server UPSTREAM1 max_fails=0;
    }
"""

REPEAT = "proxy_next_upstream error timeout http_500 non_idempotent;"

# The same peers, found by a variable: nginx keeps them elsewhere.
PASS = {
    "fixed": "proxy_pass http://peers;",
    "variable": "set $b peers; proxy_pass http://$b;",
}
passes = pytest.mark.parametrize("passed", PASS.values(), ids=PASS.keys())

METHODS = "once_methods POST PUT;"
IF = "if ($http_origin) { add_header A b; }"
ORIGIN = [("Origin", "https://shop.test")]


def location(path, *lines):
    return "location %s { %s }\n" % (path, " ".join(lines))


def guard(path, *lines):
    return location(path, "once main; once_scope off;", *lines)


def is_sent_once(case, method="POST", **what):
    """It reached one peer, which dropped it, and nobody else ever."""
    is_problem(case.send(method, **what), "outcome-unknown", 502)
    assert case.executions == 1
    is_problem(case.send(method, **what), "outcome-unknown")
    assert case.executions == 1


def survives_its_client(site, hold, case, **what):
    """The client leaves; the attempt goes on and is recorded."""
    with case.start(**what):
        hold.wait()
    site.turn()
    assert not hold.conn.peer_gone(0.2)
    hold.go.set()
    assert replays_in_the_end(case, **what).body == b"made\n"
    assert case.executions == 1


# ---- Blocks inside the location ------------------------------------------


@passes
@pytest.mark.parametrize("method", ["POST", "PUT"])
@pytest.mark.parametrize("block", [
    IF, "if ($http_origin) { set $x 1; }",
    "if ($http_origin) { proxy_pass http://peers; }",
    "if ($http_origin) { set $x 1; } if ($http_origin) { set $y 1; }",
    "limit_except GET { proxy_pass http://peers; }"])
def test_no_block_makes_nginx_repeat(make, passed, method, block):
    site = make(guard("/pay/", METHODS, passed, REPEAT, block), http=PEERS,
                upstreams=2, workers=1)
    is_sent_once(site.case("/pay/", Drop(), SECOND), method, headers=ORIGIN)


@passes
def test_the_default_of_nginx_does_not_repeat_a_put(make, passed):
    site = make(guard("/pay/", METHODS, passed, IF), http=PEERS, upstreams=2,
                workers=1)
    is_sent_once(site.case("/pay/", Drop(), SECOND), "PUT", headers=ORIGIN)
    c = site.case("/pay/", Answer(), SECOND)
    first = is_new(c.send("PUT", headers=ORIGIN))
    is_replay(c.send("PUT", headers=ORIGIN), first)


@passes
def test_an_if_does_not_drop_the_attempt_with_its_client(make, passed):
    site = make(guard("/pay/", passed,
                      "if ($request_method = POST) { set $x 1; }"),
                http=PEERS, upstreams=2, workers=1)
    hold = Hold()
    survives_its_client(site, hold, site.case("/pay/", hold, SECOND))


# ---- Locations that a redirect leads to ----------------------------------


def with_fallback(make, *lines, first="", **more):
    """A guarded location whose peer refuses, and an unguarded one."""
    http = more.pop("http", "")
    return make(guard("/pay/", METHODS, "proxy_pass http://UPSTREAM2;",
                      "error_page 502 = @fb;", first) +
                location("@fb", *lines), http=PEERS + http, upstreams=3,
                listen=False, workers=1, **more)


@passes
@pytest.mark.parametrize("method", ["POST", "PUT"])
@pytest.mark.parametrize("block", ["", IF])
def test_an_unguarded_fallback_does_not_repeat(make, passed, method, block):
    site = with_fallback(make, passed, REPEAT, block)
    is_sent_once(site.case("/pay/", Drop(), SECOND), method, headers=ORIGIN)
    c = site.case("/pay/", Answer(), SECOND)
    first = is_new(c.send(method))
    is_replay(c.send(method), first)
    assert c.executions == 1


@passes
def test_an_unguarded_fallback_survives_the_client(make, passed):
    site = with_fallback(make, passed)
    hold = Hold()
    survives_its_client(site, hold, site.case("/pay/", hold, SECOND))


@passes
def test_try_files_into_an_unguarded_location_does_not_repeat(make, passed):
    site = make(guard("/pay/", "try_files /none @fb; proxy_pass http://none;")
                + location("@fb", passed, REPEAT),
                http=PEERS + "upstream none { server 127.0.0.1:1; }",
                upstreams=2, workers=1)
    is_sent_once(site.case("/pay/", Drop(), SECOND))
    hold = Hold()
    survives_its_client(site, hold, site.case("/pay/", hold, SECOND))


class Listener:
    """Reads what comes and drops it; of any protocol."""

    def __init__(self):
        self.sock = socket.create_server(("127.0.0.1", 0))
        self.port = self.sock.getsockname()[1]
        self.got = 0
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self):
        with contextlib.suppress(OSError):
            while True:
                conn, _ = self.sock.accept()
                if conn.recv(65536):
                    self.got += 1
                conn.close()

    def close(self):
        with contextlib.suppress(OSError):
            self.sock.shutdown(socket.SHUT_RDWR)
        self.sock.close()


@pytest.mark.parametrize("name", ["fastcgi", "uwsgi", "scgi"])
@pytest.mark.parametrize("where", ["if", "fallback"])
def test_other_protocols_do_not_repeat(make, name, where):
    with contextlib.ExitStack() as stack:
        two = [stack.enter_context(contextlib.closing(Listener()))
               for _ in range(2)]
        http = "upstream others { %s }" % " ".join(
            "server 127.0.0.1:%d max_fails=0;" % x.port for x in two)
        passed = """set $b others; NAME_pass $b; NAME_param A b;
            NAME_next_upstream error timeout non_idempotent;""".replace(
                "NAME", name)
        if where == "if":
            site = make(guard("/pay/", passed, IF), http=http, workers=1)
        else:
            site = with_fallback(make, passed, http=http)
        c = site.case("/pay/")
        for status in (502, None):
            is_problem(c.post(headers=ORIGIN), "outcome-unknown", status)
            assert sum(x.got for x in two) == 1


# ---- What is not guarded is left alone -----------------------------------


@pytest.mark.parametrize("method, what", [
    ("GET", {}), ("PUT", {}), ("POST", {"key": None})],
    ids=["method", "other_method", "no_key"])
@pytest.mark.parametrize("block", ["", IF])
def test_other_requests_of_the_location_end_with_their_client(
        make, method, what, block):
    site = make(guard("/pay/", "proxy_pass http://origin;", block), workers=1)
    is_new(site.case("/pay/").post(headers=ORIGIN))
    hold = Hold()
    c = site.case("/pay/", hold)
    with c.start(method=method, headers=ORIGIN, **what):
        hold.wait()
    eventually(lambda: hold.conn.peer_gone())


def test_other_requests_of_the_location_go_to_the_next_peer(make):
    site = make(guard("/pay/", METHODS, PASS["fixed"], REPEAT), http=PEERS,
                upstreams=2, workers=1)
    is_new(site.case("/pay/").post())
    for method in ("GET", "PUT", "POST", "DELETE"):
        c = site.case("/pay/", Drop(), Answer(200, b"the second peer\n"))
        r = c.send(method, key=None)
        assert (r.status, c.executions) == (200, 2), method


def test_a_request_that_bypasses_the_store_is_sent_once_too(make):
    site = make(guard("/pay/", PASS["fixed"], REPEAT, IF,
                      "once_lost takeover; once_store_failure bypass;"),
                store="faulty:fail=claim:1-*@sqlite", http=PEERS, upstreams=2,
                workers=1)
    c = site.case("/pay/", Drop(), SECOND)
    r = c.post(headers=ORIGIN)
    assert (r.status, c.executions) == (502, 1), r


# ---- Pages for what was not sent -----------------------------------------


@pytest.mark.parametrize("lines", [
    "try_files /none =404; error_page 404 %s;",
    "try_files /none =404; error_page 404 =200 %s;",
    "try_files /none =404; error_page 404 = %s;",
    "proxy_set_header A b; error_page 502 %s;"])
@pytest.mark.parametrize("page", [Answer(200, b"page\n"), Answer(500, b"no\n"),
                                  Drop(), Raw(b"not an answer at all\n\n")],
                         ids=["page", "500", "dropped", "garbage"])
def test_a_page_from_an_upstream_is_nobody_s_outcome(make, lines, page):
    site = make(guard("/pay/", lines % "/page", "proxy_pass http://UPSTREAM2;")
                + location("= /page",
                           "proxy_pass http://origin/page/$http_x_shown;"),
                upstreams=3, listen=False, workers=1)
    shows = site.case("/page/", page)
    c = site.case("/pay/")
    headers = [("X-Shown", shows.id)]
    for n in (1, 2):
        r = c.post(headers=headers)
        assert (r.once, r.replayed) == ("new", False), r
        assert r.status >= 200
        assert shows.executions == n
        assert shows.requests[-1].method == "GET"
    # The key is free.


# ---- X-Accel-Redirect ----------------------------------------------------


def accel(where, status=200):
    return Answer(status, b"", [("X-Accel-Redirect", where)])


def shown(make, *lines, first="", more="", **sites):
    """
    A guarded location on the first upstream, and @shown and /shown/ on the
    second and third, which get the path in X-Shown.
    """
    target = """
        internal;
        proxy_pass http://others/shown/$http_x_shown;
        %s""" % " ".join(lines)
    return make(guard("/pay/", METHODS, "proxy_pass http://origin;", first) +
                location("@shown", target) + location("/shown/", target) +
                more, http="""
        upstream others {
            server UPSTREAM1 max_fails=0;
            server UPSTREAM2 max_fails=0;
        }""", upstreams=3, workers=1, **sites)


def show(site, where, answer, *script, status=200):
    """A case whose upstream wants `where` to be shown, and the target's."""
    target = site.case("/shown/", *script)
    c = site.case("/pay/", answer or accel(where, status), SECOND)
    c.headers = [("X-Shown", target.id)]
    return c, target


def test_a_named_location_of_x_accel_redirect_is_not_repeated(make):
    site = shown(make, REPEAT)
    c, target = show(site, "@shown", None, Drop(), SECOND)
    first = c.post(headers=c.headers)
    assert (c.executions, target.executions) == (1, 1)
    # What the first upstream said is the outcome.
    assert first.status == 502
    again = c.post(headers=c.headers)
    assert (c.executions, target.executions) == (1, 1)
    is_replay(again, first)


def test_an_error_page_of_what_x_accel_redirect_shows_is_not_a_repetition(
        make):
    site = shown(make, "error_page 502 500 = @again;",
                 "proxy_intercept_errors on;",
                 more=location("@again", "proxy_pass http://UPSTREAM1;"))
    for answer in (Drop(), Answer(500, b"no\n")):
        c, target = show(site, "@shown", None, answer, SECOND)
        first = c.post(headers=c.headers)
        assert (c.executions, target.executions) == (1, 1), first
        is_replay(c.post(headers=c.headers), first)
        assert (c.executions, target.executions) == (1, 1)


@pytest.mark.parametrize("method", ["POST", "PUT"])
@pytest.mark.parametrize("more", ["", "recursive_error_pages on;"])
def test_an_unreachable_target_is_no_leave_to_send_it_elsewhere(
        make, method, more):
    site = make(guard("/pay/", METHODS, "proxy_pass http://origin;") +
                location("@shown", "proxy_pass http://UPSTREAM2;",
                         "error_page 502 = @again;", more) +
                location("@again", "proxy_pass http://UPSTREAM1;", more),
                upstreams=3, listen=False, workers=1)
    c = site.case("/pay/", accel("@shown"), SECOND)
    # What the first upstream said is the outcome.
    first = c.send(method)
    assert (first.status, first.once) == (502, "new"), first
    is_replay(c.send(method), first)
    assert c.executions == 1
    assert not site.upstreams[1].requests
    lines = [line for line in site.gateway.log("error.log").splitlines()
             if "was not sent to location" in line]
    assert len(lines) == 1 and "[error]" in lines[0], lines
    assert '"@again"' in lines[0] and "had already answered" in lines[0]


def test_a_get_page_of_what_x_accel_redirect_shows_is_shown(make):
    site = shown(make, "error_page 502 /sorry;",
                 more=location("= /sorry", "proxy_pass http://UPSTREAM1/sry;"))
    for where in ("@shown", "/shown/x"):
        c, _ = show(site, where, None, Drop())
        first = c.post(headers=c.headers)
        assert (first.status, first.body) == (502, b"plain\n"), first
        is_replay(c.post(headers=c.headers), first)
        assert c.executions == 1


INTERCEPT = "proxy_intercept_errors on; error_page 500 = %s;"


@pytest.mark.parametrize("answer, first", [
    (accel("@shown", 500), INTERCEPT % "@again"),
    (accel("/again", 500), INTERCEPT % "@moved"),
    (accel("@again", 500), INTERCEPT % "@again" +
     "proxy_ignore_headers X-Accel-Redirect;"),
    (accel("/../x"), "error_page 404 = @again;"),
    (accel("@again-and-again"), "error_page 500 = @again;"),
    (accel("@forbidden"), "")],
    ids=["intercepted", "moved", "ignored", "unsafe", "unknown", "forbidden"])
def test_x_accel_redirect_is_no_leave_to_send_it_elsewhere(
        make, answer, first):
    passed = "proxy_pass http://UPSTREAM1;"
    site = shown(make, first=first, more=location("@again", passed) +
                 location("/again", passed) +
                 location("@moved", "rewrite ^ /again last;") +
                 location("@forbidden", "deny all; error_page 403 = @again;",
                          passed))
    c, _ = show(site, "", answer)
    for _ in range(2):
        c.post(headers=c.headers)
        assert c.executions == 1
        assert not site.upstreams[1].requests


@pytest.mark.parametrize("where", ["@shown", "/shown/x"])
@pytest.mark.parametrize("status, final", [
    (429, ""), (408, ""), (504, "once_final 2xx;"), (404, "once_final 2xx;")])
def test_the_target_of_x_accel_redirect_does_not_judge(
        make, where, status, final):
    site = shown(make, first=final)
    c, target = show(site, where, None, Answer(status, b"busy\n"), status=201)
    first = c.post(headers=c.headers)
    assert (first.status, first.body) == (status, b"busy\n")
    is_replay(c.post(headers=c.headers), first)
    assert (c.executions, target.executions) == (1, 1)


@pytest.mark.parametrize("where", ["@shown", "/shown/x"])
@pytest.mark.parametrize("headers, status", [
    ([], 429), ([("Idempotency-Outcome", "not-applied")], 200)])
def test_the_first_upstream_of_x_accel_redirect_judges(
        make, where, headers, status):
    site = shown(make)
    answer = Answer(status, b"", [("X-Accel-Redirect", where)] + headers)
    target = site.case("/shown/", Answer(200, b"shown\n", [
        ("Idempotency-Outcome", "applied")]))
    c = site.case("/pay/", answer, SECOND)
    c.headers = [("X-Shown", target.id)]
    assert c.post(headers=c.headers).body == b"shown\n"
    # It was not executed: the key is free.
    is_new(c.post(headers=c.headers), 201, b"a second execution\n")
    assert c.executions == 2


@pytest.mark.parametrize("where", ["@shown", "/shown/x"])
def test_a_target_of_x_accel_redirect_that_breaks_off_is_not_shown_as_whole(
        make, where):
    site = shown(make)
    c, _ = show(site, where, None, Raw(
        b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nabc"))
    # What the first upstream said is the outcome, and it is not lost.
    is_problem(c.post(headers=c.headers), "response-unavailable", 502)
    is_problem(c.post(headers=c.headers), "response-unavailable")
    assert c.executions == 1


# The first is HTTP/0.9 to nginx, which has no head.
@pytest.mark.parametrize("what", [
    b"not an answer at all\n\n", b"HTTP/1.1 199 Odd\r\n\r\n",
    b"HTTP/1.1 600 Odd\r\n\r\n", b"HTTP/1.1 999 Odd\r\n\r\n"],
                         ids=["garbage", "199", "600", "999"])
@pytest.mark.parametrize("where", ["@shown", "/shown/x"])
def test_a_target_of_x_accel_redirect_that_is_not_http_is_not_shown(
        make, where, what):
    site = shown(make)
    c, _ = show(site, where, None, Raw(what))
    first = c.post(headers=c.headers)
    assert (first.status, first.once) == (502, "new"), first
    is_replay(c.post(headers=c.headers), first)
    assert c.executions == 1


@pytest.mark.parametrize("where", ["@shown", "/shown/x"])
def test_what_x_accel_redirect_shows_is_recorded_without_its_client(
        make, where):
    site = shown(make)
    hold = Hold()
    c, target = show(site, where, None, hold, SECOND)
    survives_its_client(site, hold, c, headers=c.headers)
    assert target.executions == 1


def test_filters_are_those_of_the_location_that_answers(make):
    # docs/http.md, section 8: the record is what the upstream sent.
    site = shown(make, "add_header Where target;", "addition_types *; add_after_body /after;",
                 first="add_header Where origin;",
                 more=location("= /after", "return 200 'after\n';"))
    c, _ = show(site, "/shown/x", None, Answer(200, b"shown\n"))
    first = c.post(headers=c.headers)
    again = c.post(headers=c.headers)
    assert again.replayed and c.executions == 1
    assert (first.body, again.body) == (b"shown\nafter\n", b"shown\n")
    assert (first.get("Where"), again.get("Where")) == ("target", "origin")


# ---- Caches --------------------------------------------------------------

CACHE = """proxy_cache zone; proxy_cache_key $request_uri;
    proxy_cache_valid 200 201 %s; proxy_cache_methods GET HEAD POST;
    proxy_cache_use_stale error updating http_500;
    proxy_ignore_headers Cache-Control Expires;"""
ZONE = "proxy_cache_path FOLDER/cache keys_zone=zone:1m;\n" \
       "fastcgi_cache_path FOLDER/fcgi keys_zone=fast:1m;\n"


def check(folder, server, **more):
    """nginx -t, with no server running."""
    with contextlib.closing(Site(folder, server, **more)) as site:
        site.gateway.allow = [r"\[emerg\]"]
        return site.gateway.check()


def refused(folder, server, *words, **more):
    code, said = check(folder, server, **more)
    assert code == 1, said
    for word in words:
        assert word in said, (word, said)


@pytest.mark.parametrize("server", [
    guard("/pay/", CACHE % "1s", "proxy_pass http://origin;"),
    guard("/pay/", CACHE % "1s", "set $b origin; proxy_pass http://$b;"),
    "proxy_cache zone; proxy_cache_methods POST;" +
    guard("/pay/", "proxy_pass http://origin;"),
    guard("/pay/", "set $z zone; proxy_cache $z; proxy_cache_methods POST;",
          "proxy_pass http://origin;"),
    guard("/pay/", "fastcgi_cache fast; fastcgi_cache_methods POST;",
          "fastcgi_cache_key a; fastcgi_pass 127.0.0.1:1;"),
    guard("/pay/", CACHE % "1s", "fastcgi_pass 127.0.0.1:1;",
          "if ($http_origin) { proxy_pass http://origin; }"),
], ids=["fixed", "variable", "inherited", "zone", "fastcgi", "if"])
def test_a_cache_for_a_guarded_method_is_refused(tmp_path, server):
    refused(tmp_path, server, "once", "cache_methods", "/pay/", "nginx.conf:",
            lines=ZONE)


@pytest.mark.parametrize("server", [
    guard("/pay/", "proxy_cache zone;", "proxy_pass http://origin;"),
    guard("/pay/", CACHE % "1s", "once_methods PUT;",
          "proxy_pass http://origin;"),
    "proxy_cache zone; proxy_cache_methods POST;" +
    guard("/pay/", "proxy_cache off;", "proxy_pass http://origin;"),
    guard("/pay/", CACHE % "1s", "fastcgi_pass 127.0.0.1:1;"),
    "once main; once_scope off;" + location(
        "/pay/", CACHE % "1s", "root /tmp;", "if ($http_origin) { set $a 1; }")
], ids=["get", "other_method", "off", "unused", "files"])
def test_a_cache_for_something_else_is_accepted(tmp_path, server):
    code, said = check(tmp_path, server, lines=ZONE)
    assert code == 0, said


def test_a_cache_of_a_fallback_is_not_asked_for_a_guarded_request(make):
    site = with_fallback(make, PASS["fixed"], CACHE % "10m", lines=ZONE)
    c = site.case("/pay/", Answer(201, b"the first customer's\n"),
                  Answer(201, b"the second customer's\n"))
    is_new(c.post(), 201, b"the first customer's\n")
    r = c.post(key="another-key-%s" % c.id)
    is_new(r, 201, b"the second customer's\n")
    assert c.executions == 2


def test_a_stale_response_is_nobody_s_outcome(make):
    site = with_fallback(make, PASS["fixed"], CACHE % "1s", lines=ZONE)
    c = site.case("/pay/", Answer(201, b"the first customer's\n"), Drop())
    is_new(c.post(), 201, b"the first customer's\n")
    threading.Event().wait(2.1)         # let it become stale
    r = c.post(key="another-key-%s" % c.id)
    is_problem(r, "outcome-unknown", 502)


def test_no_background_update_sends_a_guarded_request(make):
    site = with_fallback(make, PASS["fixed"], CACHE % "1s",
                         "proxy_cache_background_update on;", lines=ZONE)
    c = site.case("/pay/", Answer(201, b"one\n"), Answer(201, b"two\n"))
    is_new(c.post(), 201, b"one\n")
    threading.Event().wait(2.1)         # let it become stale
    key = "another-key-%s" % c.id
    first = is_new(c.post(key=key), 201, b"two\n")
    site.turn()
    is_replay(c.post(key=key), first)
    assert c.executions == 2


@pytest.mark.parametrize("block", ["", IF])
@pytest.mark.parametrize("before, name", [
    ("", "$slice_range"), ("set $r $slice_range;", "$r")])
def test_no_slice_sends_a_guarded_request_again(make, block, before, name):
    site = make(guard("/pay/", before, "slice 5; proxy_pass http://origin;",
                      "proxy_set_header Range %s;" % name, block), workers=1)
    c = site.case("/pay/", Answer(206, b"12345", [
        ("Content-Range", "bytes 0-4/10"), ("ETag", '"a"')]))
    first = is_new(c.post(headers=ORIGIN), 206, b"12345")
    site.turn()
    assert c.executions == 1
    is_replay(c.post(headers=ORIGIN), first)
    assert c.executions == 1


def test_what_x_accel_redirect_shows_is_not_sliced(make):
    site = shown(make, "slice 5; proxy_set_header Range $slice_range;")
    c, target = show(site, "/shown/x", None, Answer(200, b"1234567890"))
    first = is_new(c.post(headers=c.headers), 200, b"1234567890")
    is_replay(c.post(headers=c.headers), first)
    assert [r.get("Range") for r in target.requests] == [None]


def test_slices_of_what_is_not_guarded_are_left_alone(make):
    site = make(guard("/pay/", "slice 5; proxy_pass http://origin;",
                      "proxy_set_header Range $slice_range;"), workers=1)
    is_new(site.case("/pay/").post())
    c = site.case("/pay/", *(Answer(206, body, [
        ("Content-Range", "bytes %s/10" % part), ("ETag", '"a"')])
        for part, body in (("0-4", b"12345"), ("5-9", b"67890"))))
    assert c.send("GET").body == b"1234567890"


# ---- What cannot be guarded ----------------------------------------------


@pytest.mark.parametrize("server", [
    guard("/pay/", "set $b grpc; grpc_pass grpc://$b;"),
    guard("/pay/", "set $b grpc; grpc_pass $b;"),
    guard("/pay/", "proxy_pass http://origin;",
          "if ($http_origin) { grpc_pass grpc://127.0.0.1:1; }"),
    guard("/pay/", "set $b g; proxy_pass http://origin;",
          "if ($http_origin) { grpc_pass grpc://$b; }"),
], ids=["grpc://$b", "$b", "if", "if_variable"])
def test_grpc_is_refused(tmp_path, server):
    refused(tmp_path, server, "grpc_pass", "nginx.conf:")


@pytest.mark.parametrize("passed", [
    "grpc_pass grpc://UPSTREAM0;", "set $b peers; grpc_pass grpc://$b;"])
def test_a_fallback_to_grpc_is_refused(make, passed):
    site = with_fallback(make, passed)
    connections = site.upstreams[0].connections
    c = site.case("/pay/")
    for _ in range(2):
        r = c.post()
        assert (r.status, r.code()) == (500, None), r
        assert site.upstreams[0].connections == connections
    assert "grpc" in site.gateway.log("error.log")
    site.upstreams[2].listen()
    is_new(c.post())


def test_a_fallback_to_dav_is_refused(make):
    site = with_fallback(make, "root FOLDER; dav_methods PUT;")
    (site.folder / "pay").mkdir()
    c = site.case("/pay/")
    for _ in range(2):
        r = c.send("PUT")
        assert r.status == 500, r
    assert not list((site.folder / "pay").iterdir())
    site.upstreams[2].listen()
    is_new(c.send("PUT"))


# ---- Requests that nginx makes itself ------------------------------------


@pytest.mark.parametrize("main, lines", [
    (location("/a/", "mirror /m; proxy_pass http://origin;"), ""),
    (guard("/a/", "mirror /m; proxy_pass http://origin;"), ""),
    (location("/a/", "post_action /m; proxy_pass http://origin;"), ""),
    (guard("/a/", "post_action /m; proxy_pass http://origin;"), ""),
    (location("/a/", "mirror /m; proxy_pass http://origin;"),
     "once_key_required on;")],
    ids=["mirror", "of_a_guarded_one", "post_action", "after_a_guarded_one",
         "required"])
def test_a_subrequest_cannot_be_guarded(make, main, lines):
    site = make(main + guard("/m", lines,
                             "proxy_pass http://UPSTREAM1/mirrored;"),
                upstreams=2, workers=1)
    c = site.case("/a/")
    assert c.post(key=None if lines else c.key).status == 201
    eventually(lambda: "\"once off\"" in site.gateway.log("error.log"))
    site.turn()
    assert not site.upstreams[1].requests
    assert c.executions == 1


def test_a_subrequest_without_a_key_passes_as_any_request(make):
    site = make(location("/a/", "mirror /m; proxy_pass http://origin;") +
                guard("/m", "proxy_pass http://UPSTREAM1/mirrored;"),
                upstreams=2, workers=1)
    c = site.case("/a/")
    assert c.post(key=None, headers=[("Idempotency-Attempt", "7")]).status \
        == 201
    eventually(lambda: site.upstreams[1].count("/mirrored") == 1)
    r = site.upstreams[1].requests[0]
    assert r.get("Idempotency-Attempt") is None


def test_a_dry_run_refuses_nothing(make):
    dry = "once_dry_run on;"
    site = make(guard("/pay/", dry, "proxy_pass http://origin;",
                      "error_page 502 = @fb;", "mirror /m;") +
                location("@fb", "proxy_pass http://UPSTREAM1;") +
                guard("/m", dry, "proxy_pass http://UPSTREAM2/mirrored;"),
                upstreams=3, workers=1)
    c = site.case("/pay/", Drop(), SECOND)
    r = c.post()
    assert (r.status, r.body, c.executions) == \
        (201, b"a second execution\n", 2), r
    eventually(lambda: site.upstreams[2].count("/mirrored") == 1)


# ---- Handlers that are no upstreams --------------------------------------

# It answers a POST itself, with 405, as one in Lua or Perl would.
HANDLER = "empty_gif;"


def test_a_handler_behind_an_unreachable_upstream_decides(make):
    site = make(guard("/pay/", "proxy_pass http://127.0.0.1:1;",
                      "error_page 502 = @handler;")
                + location("@handler", HANDLER))
    case = site.case("/pay/")
    first = case.post()
    assert first.status == 405
    is_replay(case.post(), first)


def test_no_page_sends_it_after_such_a_handler(make):
    site = make(guard("/pay/", HANDLER, "error_page 405 = @fb;")
                + location("@fb", "proxy_pass http://origin;"))
    case = site.case("/pay/", SECOND, SECOND)
    is_problem(case.post(), "outcome-unknown", 502)
    is_problem(case.post(), "outcome-unknown")
    assert case.executions == 0


def test_a_page_after_such_a_handler_does_not_decide(make):
    site = make(guard("/pay/", HANDLER, "error_page 405 /page;")
                + location("= /page", "proxy_http_version 1.1;",
                           "proxy_pass http://origin;"))
    case = site.case("/pay/", Answer(429, b"a page\n"), SECOND)
    first = case.post()
    assert first.status == 405
    is_replay(case.post(), first)


# ---- Methods that nginx repeats ------------------------------------------


def test_an_unguarded_fallback_does_not_repeat_a_guarded_put(make):
    site = make(guarded("/pay/", "once_methods PUT; try_files /missing @app;")
                + "location @app { proxy_pass http://peers; }",
                http="""upstream peers {
                    server UPSTREAM0 max_fails=0;
                    server UPSTREAM1 max_fails=0;
                }""", upstreams=2)
    c = site.case("/pay/", Drop(), SECOND)
    c.send("PUT")
    assert c.executions <= 1
    c.send("PUT")
    assert c.executions <= 1
