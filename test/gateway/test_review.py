# SPDX-License-Identifier: Apache-2.0
"""
What a reading of the module with fresh eyes found: internal redirects, leaving
clients and reloads at moments that the other files do not reach. Most scenarios
failed before the module was mended.
"""

import json
import pathlib
import socket
import struct
import subprocess

import pytest

from gateway import (PATIENCE, Answer, Client, Drop, Hold, Locked, Raw,
                     curl_h2_args, eventually, guarded, is_new, is_problem,
                     is_replay, replays_in_the_end, request_bytes, settles)

SECOND = Answer(201, b"a second execution\n")
LARGE = b"large " * 20000


def reset(client):
    """Leaves with a RST, so that the next write to this client fails."""
    client.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER,
                           struct.pack("ii", 1, 0))
    client.sock.close()


# ---- Error pages ---------------------------------------------------------

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


# ---- Response headers ----------------------------------------------------


def test_headers_named_by_any_connection_line_are_not_stored(make):
    site = make(guarded("/pay/"))
    c = site.case("/pay/", Answer(201, b"made\n", [
        ("Connection", "X-One"), ("X-One", "1"), ("X-Two", "2"),
        ("Connection", "X-Two"), ("X-Kept", "3")]))
    is_new(c.post())
    again = c.post()
    assert again.replayed and again.get("X-Kept") == "3"
    assert again.get("X-One") is None and again.get("X-Two") is None


# ---- proxy_store ----------------------------------------------------------


@pytest.mark.nginx_only("proxy_store")
@pytest.mark.parametrize("size", [5, 200000])
def test_what_nginx_stores_of_a_guarded_answer(make, size):
    site = make(guarded("/pay/", "proxy_store FOLDER/stored;"
                        "proxy_store_access user:rw;"))
    body = b"a" * size
    c = site.case("/pay/", Answer(200, body), SECOND)
    first = is_new(c.post(), 200, body)
    is_replay(c.post(), first)
    assert c.executions == 1


# ---- post_action ---------------------------------------------------------

AFTER = """
    location = /after { proxy_pass http://UPSTREAM1/after; }
"""


@pytest.mark.nginx_only("post_action")
def test_a_post_action_of_a_waiter_that_left_is_not_the_dispatch(make):
    site = make(guarded("/pay/", "once_in_flight wait=20s;"
                        "post_action /after;") + AFTER, upstreams=2,
                workers=1)
    hold = Hold(Answer(429, b"not now\n"))
    c = site.case("/pay/", hold, Answer())
    with c.start() as owner:
        hold.wait()
        with c.start() as waiter:
            site.turn()
            waiter.hang_up()
        site.turn()
        hold.go.set()
        assert owner.read().status == 429
    site.turn()
    first = is_new(c.post())
    is_replay(c.post(), first)
    assert c.executions == 2


@pytest.mark.nginx_only("post_action")
def test_a_post_action_after_a_client_left_while_its_outcome_was_stored(make):
    site = make(guarded("/pay/", "post_action /after;") + AFTER, upstreams=2,
                workers=1)
    is_new(site.case("/pay/").post())
    hold = Hold()
    c = site.case("/pay/", hold, SECOND)
    client = c.start()
    hold.wait()
    with Locked(site):
        hold.go.set()
        site.turn()
        reset(client)
        site.turn()
    assert replays_in_the_end(c).body == b"made\n"
    assert c.executions == 1


@pytest.mark.nginx_only("post_action")
def test_a_post_action_after_an_unsent_request_is_not_its_outcome(make):
    site = make(guarded("/pay/", "post_action /after;",
                        target="http://UPSTREAM2") + AFTER, upstreams=3,
                listen=False)
    c = site.case("/pay/")
    assert c.post().status == 502
    site.upstreams[2].listen()
    first = is_new(c.post())
    is_replay(c.post(), first)
    assert c.executions == 1


# ---- Clients that leave while "not kept" is made durable -----------------

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


# ---- A store that does not answer ----------------------------------------


@pytest.mark.nginx_only("send_timeout")
@pytest.mark.parametrize("script", [Answer(), Answer(201, LARGE)],
                         ids=["small", "large"])
def test_a_short_send_timeout_does_not_cut_the_answer(make, script):
    site = make(guarded("/pay/", "send_timeout 1s; once_lease 60s;"
                        "once_max_response 1k;"), workers=1,
                store="faulty:fail=complete:1-*@sqlite")
    c = site.case("/pay/", script, SECOND)
    is_problem(c.post(), "outcome-unknown", 502)
    assert c.executions == 1


# ---- Keys ----------------------------------------------------------------


@pytest.mark.nginx_only("underscores_in_headers")
def test_a_key_header_with_underscores_is_the_variable_s(make):
    site = make("underscores_in_headers on;" +
                guarded("/pay/", "once_key $http_x_request_id;"))
    c = site.case("/pay/")
    first = is_new(c.post(key_name="X_Request_Id"))
    is_replay(c.post(key_name="X_Request_Id"), first)
    is_replay(c.post(key_name="X-Request-Id"), first)
    assert c.executions == 1


@pytest.mark.nginx_only("underscores_in_headers")
def test_internal_headers_with_underscores_do_not_reach_the_upstream(make):
    site = make("underscores_in_headers on;" + guarded("/pay/"))
    c = site.case("/pay/")
    is_new(c.post(headers=[("Idempotency_Attempt", "99"),
                           ("idempotency_outcome", "applied"),
                           ("X_Own", "mine")]))
    seen = c.requests[0]
    assert seen.get("Idempotency_Attempt") is None
    assert seen.get("idempotency_outcome") is None
    assert (seen.get("X_Own"), seen.get("Idempotency-Attempt")) == ("mine",
                                                                    "1")


@pytest.mark.nginx_only("names of nginx's variables")
def test_two_lines_of_a_key_named_with_capitals(make):
    site = make(guarded("/pay/", "once_key $http_Idempotency_Key;"))
    c = site.case("/pay/")
    is_problem(c.post(headers=[("Idempotency-Key", "other")]), "key-invalid")
    assert c.executions == 0
    is_new(c.post())


# ---- Methods that nginx repeats ------------------------------------------


@pytest.mark.nginx_only("fallbacks of nginx")
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


# ---- Reloads -------------------------------------------------------------


def counters(site):
    with Client(site.gateway.port) as client:
        client.send(request_bytes("GET", "/status", close=True))
        return json.loads(client.read("GET").body)["stores"]


STATUS = "location = /status { once_status; }"


@pytest.mark.nginx_only("the status page is the module's")
def test_the_status_page_has_room_for_many_stores(make):
    names = ["s%063d" % i for i in range(40)]
    site = make(STATUS, workers=1, store="memory", lines="".join(
        "once_store %s memory:;" % name for name in names))
    assert set(counters(site)) == set(names + ["main"])
    with Client(site.gateway.port) as client:
        client.send(request_bytes("GET", "/status?format=prometheus",
                                  close=True))
        text = client.read("GET").body.decode()
    assert all('once_store_batch_seconds_count{store="%s"}' % name in text
               for name in names)


@pytest.mark.nginx_only("a reload")
@pytest.mark.parametrize("lines", [
    "once_store early sqlite:FOLDER/early.db; once_store main MAIN;",
    "once_store other sqlite:FOLDER/early.db;"], ids=["inserted", "renamed"])
def test_a_reload_with_other_stores_does_not_mix_counters(make, lines):
    site = make(guarded("/pay/") + STATUS, workers=1)
    is_new(site.case("/pay/").post())
    assert counters(site)["main"]["requests"]["new"] == 1
    texts = site.gateway.texts
    main = site.url("sqlite")
    texts["http"] = site.fill(lines.replace("MAIN", main))
    if "main" not in lines:
        texts["server"] = texts["server"].replace("once main", "once other")
    site.gateway.render()
    site.gateway.reload()
    seen = eventually(lambda: counters(site))
    for name, store in seen.items():
        assert store["requests"]["new"] == (1 if name == "main" else 0), name
