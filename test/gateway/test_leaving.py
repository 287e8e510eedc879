# SPDX-License-Identifier: Apache-2.0
"""
Clients that leave while it is recorded that their response is not kept, and
streams for which that fails.
"""

import pathlib
import socket
import struct
import subprocess

import pytest

from gateway import (NGINX_MODULES, PATIENCE, Answer, Hold, Locked, Raw,
                     curl_h2_args, eventually, guarded, is_new, is_problem,
                     nginx_version, settles)

SECOND = Answer(201, b"a second execution\n")
LARGE = b"large " * 20000


def reset(client):
    """Leaves with a RST, so that the next write to this client fails."""
    client.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER,
                           struct.pack("ii", 1, 0))
    client.sock.close()


SSE = Raw(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n"
          b"data: 1\n\n")


@pytest.mark.parametrize("more, script", [
    ("once_max_response 1k;", Answer(201, LARGE * 10)),
    ("once_max_response 1k; proxy_buffering off;", Answer(201, LARGE * 10)),
    ("once_max_response 1k;", Raw(
        b"HTTP/1.1 201 Made\r\n\r\n" + LARGE * 10)),
    ("", SSE)], ids=["large", "unbuffered", "until_eof", "events"])
@pytest.mark.parametrize("h2", [
    pytest.param(False, id="h1"),
    pytest.param(True, id="h2", marks=pytest.mark.nginx_only("HTTP/2"))])
def test_a_client_that_leaves_while_the_mark_is_stored(
        make, monkeypatch, more, script, h2):
    # A use after free must not go well by chance.
    monkeypatch.setenv("MALLOC_PERTURB_", "170")
    site = make(guarded("/pay/", more), workers=1)
    is_new(site.case("/pay/", Answer(201)).post())
    for _ in range(3):
        hold = Hold(script)
        c = site.case("/pay/", hold, SECOND)
        if h2:
            # pylint: disable=consider-using-with
            client = subprocess.Popen(
                curl_h2_args(site.gateway.h2, c.path,
                             headers=[("Idempotency-Key", c.key)]),
                stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)
            client.stdin.write(b"{}")
            client.stdin.close()
        else:
            client = c.start(body=b"{}")
        hold.wait()
        with Locked(site):
            hold.go.set()
            site.turn()
            if h2:
                client.kill()
                client.wait(PATIENCE)
            else:
                reset(client)
            site.turn()
        settles(c, "response-unavailable", body=b"{}")
        assert c.executions == 1
    eventually(lambda: live(site) == 0)


def live(site):
    """Connections that nginx still has to the upstream."""
    count = 0
    for line in pathlib.Path("/proc/net/tcp").read_text().splitlines()[1:]:
        field = line.split()
        if int(field[2].split(":")[1], 16) == site.upstream.port and \
                field[3] == "01":
            count += 1
    return count


def test_a_stream_whose_mark_fails_ends_at_the_upstream_too(make):
    site = make(guarded("/pay/", "once_lease 1s;"), workers=1,
                store="faulty:fail=complete:1-*@sqlite")
    hold = Hold(before=b"HTTP/1.1 200 OK\r\n"
                       b"Content-Type: text/event-stream\r\n\r\n")
    c = site.case("/pay/", hold, SECOND)
    is_problem(c.post(), "outcome-unknown", 502)
    # Nobody listens any more.
    assert hold.conn.peer_gone(PATIENCE)
    assert c.executions == 1


# ---- A page, or a target, is under way ------------------------------------


SHOWN = {
    "page": ("proxy_intercept_errors on; error_page 402 /shown/x;",
             Answer(402, b"no\n")),
    "target": ("", Answer(201, b"", [("X-Accel-Redirect", "/shown/x")])),
    "named": ("", Answer(201, b"", [("X-Accel-Redirect", "@shown")])),
}
PART = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\npag"


@pytest.mark.nginx_only("pages and HTTP/2")
@pytest.mark.parametrize("name", SHOWN)
@pytest.mark.parametrize("before", [b"", PART], ids=["head", "body"])
@pytest.mark.parametrize("then", ["answers", "breaks off"])
@pytest.mark.parametrize("h2", [False, True], ids=["h1", "h2"])
def test_a_client_that_leaves_while_a_page_is_fetched_loses_no_outcome(
        make, name, before, then, h2):
    more, answer = SHOWN[name]
    site = make(guarded("/pay/", more) + """
        location /shown/ { proxy_pass http://UPSTREAM1; }
        location @shown { proxy_pass http://UPSTREAM1; }
        """, upstreams=2, workers=1)
    hold = Hold(Raw(b"e\n" if before else Answer(200, b"page\n").data), before)
    site.upstreams[1]._script = lambda request: hold
    c = site.case("/pay/", answer, SECOND)
    if h2:
        # pylint: disable=consider-using-with
        client = subprocess.Popen(
            curl_h2_args(site.gateway.h2, c.path,
                         headers=[("Idempotency-Key", c.key)]),
            stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)
        client.stdin.write(b"{}")
        client.stdin.close()
        hold.wait()
        client.kill()
        client.wait(PATIENCE)
    else:
        client = c.start(body=b"{}")
        hold.wait()
        reset(client)
    site.turn()
    if then == "answers":
        hold.go.set()
    else:
        hold.conn.close()
        hold.go.set()

    def told():
        r = c.post(body=b"{}")
        return r if r.code() != "in-flight" else None

    # The page, or that there is none; never that nothing is known.
    r = eventually(told)
    assert r.code() == "response-unavailable" or r.replayed, r
    assert c.executions == 1


# ---- Gone before its answer is shown ---------------------------------------

# What the service says, how the location shows it, and what is recorded.
TO = [("X-Accel-Redirect", "/shown/x")]
GONE = {
    "plain": ("", Answer(201), 201),
    "page": ("proxy_intercept_errors on; error_page 402 /shown/x;",
             Answer(402, b"no\n"), 402),
    "page_with_a_status": (
        "proxy_intercept_errors on; error_page 402 =200 /shown/x;",
        Answer(402, b"no\n"), 200),
    "page_of_a_file": ("proxy_intercept_errors on; error_page 402 /file/x;",
                       Answer(402, b"no\n"), 402),
    "page_that_is_not_there": (
        "proxy_intercept_errors on; error_page 402 /file/none;",
        Answer(402, b"no\n"), 404),
    "page_elsewhere": (
        "proxy_intercept_errors on; error_page 402 http://else.test/;",
        Answer(402, b"no\n"), 302),
    "page_made_here": ("proxy_intercept_errors on; error_page 402 /made;",
                       Answer(402, b"no\n"), 402),
    "page_refused": ("proxy_intercept_errors on; error_page 402 @shown;",
                     Answer(402, b"no\n"), 402),
    "page_that_fails": (
        "proxy_intercept_errors on; error_page 402 /fails/x;",
        Answer(402, b"no\n"), 502),
    "target": ("", Answer(201, b"", TO), 200),
    "target_of_a_file": (
        "", Answer(201, b"", [("X-Accel-Redirect", "/file/x")]), 200),
    "target_that_is_not_there": (
        "", Answer(201, b"", [("X-Accel-Redirect", "/file/none")]), 404),
    "named": ("", Answer(201, b"", [("X-Accel-Redirect", "@shown")]), 200),
}


def http2(site, c):
    """A client of one request, which curl sends over HTTP/2."""
    # pylint: disable=consider-using-with
    client = subprocess.Popen(
        curl_h2_args(site.gateway.h2, c.path,
                     headers=[("Idempotency-Key", c.key)]),
        stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)
    client.stdin.write(b"{}")
    client.stdin.close()
    return client


@pytest.mark.nginx_only("pages and HTTP/2")
@pytest.mark.parametrize("name", GONE)
@pytest.mark.parametrize("h2", [False, True], ids=["h1", "h2"])
@pytest.mark.parametrize("more", ["", "once_two_phase on;",
                                  "proxy_buffering off;"],
                         ids=["", "two_phase", "unbuffered"])
def test_a_client_that_is_gone_before_its_answer_is_shown_loses_nothing(
        make, monkeypatch, name, h2, more):
    monkeypatch.setenv("MALLOC_PERTURB_", "170")
    shows, answer, status = GONE[name]
    site = make(guarded("/pay/", more + shows) + """
        location /shown/ { proxy_pass http://UPSTREAM1; }
        location @shown { proxy_pass http://UPSTREAM1; }
        location /file/ { alias FOLDER/; }
        location /fails/ { proxy_pass http://UPSTREAM2; }
        location = /made { return 402 "made here\n"; }
        """, upstreams=3, listen=False, workers=1)
    (site.folder / "x").write_text("a file\n")
    site.upstreams[1]._script = lambda request: Answer(200, b"page\n")
    hold = Hold(answer)
    c = site.case("/pay/", hold, SECOND)
    client = http2(site, c) if h2 else c.start(body=b"{}")
    hold.wait()
    if h2:
        client.kill()
        client.wait(PATIENCE)
    else:
        reset(client)
    site.turn()
    hold.go.set()

    def told():
        r = c.post(body=b"{}")
        return r if r.code() != "in-flight" else None

    r = eventually(told)
    assert r.replayed and r.status == status, r
    assert c.executions == 1
    eventually(lambda: live(site) == 0)


LUA = """
    location /pay/ {
        once main;
        once_scope off;
        content_by_lua_block {
            local host, port = string.match("UPSTREAM0", "(.+):(%%d+)")
            local s = ngx.socket.tcp()
            s:connect(host, tonumber(port))
            s:send("GET /asked/" .. string.match(ngx.var.uri, "c%%d+") ..
                   " HTTP/1.1\\r\\nHost: x\\r\\n\\r\\n")
            s:receive("*l")
            %s
        }
    }
    location /shown/ { proxy_pass http://origin; }
    """
MODULES = pathlib.Path(NGINX_MODULES)
SAYS = {"exit": ("ngx.exit(402)", 402), "page": ("ngx.say('yes')", 200),
        "status": ("ngx.status = 402 ngx.say('no')", 402),
        "nothing": ("ngx.exit(ngx.HTTP_OK)", 200),
        "redirect": ("ngx.redirect('/else')", 302)}


@pytest.mark.nginx_only("handlers of other modules")
@pytest.mark.skipif(not (MODULES / "ngx_http_lua_module.so").exists() or
                    nginx_version() >= (1, 23), reason="nginx with Lua")
@pytest.mark.parametrize("says, status", SAYS.values(), ids=SAYS.keys())
@pytest.mark.parametrize("h2", [False, True], ids=["h1", "h2"])
def test_a_client_that_leaves_a_handler_in_lua_loses_nothing(
        make, says, status, h2):
    site = make(LUA % says, workers=1, main="".join(
        "load_module %s/%s.so;\n" % (MODULES, name) for name in
        ("ndk_http_module", "ngx_http_lua_module")), allow=["lua", "resty"])
    hold = Hold(Answer(200, b"asked"))
    c = site.case("/pay/", hold)
    client = http2(site, c) if h2 else c.start(body=b"{}")
    hold.wait()
    if h2:
        client.kill()
        client.wait(PATIENCE)
    else:
        reset(client)
    site.turn()
    hold.go.set()

    def told():
        r = c.post(body=b"{}")
        return r if r.code() != "in-flight" else None

    r = eventually(told)
    assert r.replayed and r.status == status, r
    assert c.executions == 1
