# SPDX-License-Identifier: Apache-2.0
"""
The response of an owner, from its first byte to its record: what counts as
whole, and what must not end a worker or a request on the way.
"""

import contextlib
import re
import time

import pytest

from backends import (STDERR, STDOUT, FastCgi, Keep, Scgi, Uwsgi, cgi, end,
                      fastcgi, record)
from gateway import (MARK, NGINX_MODULES, Answer, Client, Drop, Hold, Locked,
                     Raw, Reset, Silent, curl_h2, debugging, eventually,
                     guarded, is_new, is_problem, is_replay, message,
                     nginx_version)

pytestmark = pytest.mark.nginx_only("protocols and filters of nginx")

SECOND = Answer(201, b"a second execution\n")

BACKENDS = (FastCgi, Uwsgi, Scgi)

PASS = """
        location %(path)s {
            once main;
            once_scope off;
            once_max_response 64k;
            %(more)s
            %(kind)s_pass UPSTREAM%(number)d;
            %(kind)s_param REQUEST_METHOD $request_method;
            %(kind)s_param REQUEST_URI $request_uri;
            %(kind)s_param CONTENT_LENGTH $content_length;
            %(kind)s_param SCRIPT_NAME $uri;
        }"""


def passing(path, kind, more=""):
    number = ("fastcgi", "uwsgi", "scgi").index(kind) + 1
    return PASS % dict(path=path, kind=kind, number=number, more=more)


SERVER = (
    passing("/fastcgi/", "fastcgi") +
    passing("/fastcgi-small/", "fastcgi", "fastcgi_buffer_size 1k;"
            "fastcgi_buffers 2 1k; fastcgi_busy_buffers_size 1k;") +
    passing("/fastcgi-keep/", "fastcgi", "fastcgi_keep_conn on;") +
    passing("/fastcgi-direct/", "fastcgi", "fastcgi_buffering off;") +
    passing("/uwsgi/", "uwsgi") +
    passing("/uwsgi-direct/", "uwsgi", "uwsgi_buffering off;") +
    passing("/scgi/", "scgi") +
    passing("/scgi-direct/", "scgi", "scgi_buffering off;") +
    guarded("/old/", "proxy_http_version 1.0;") +
    guarded("/one/", "proxy_http_version 1.1;") +
    guarded("/direct/", "proxy_http_version 1.1; proxy_buffering off;") +
    guarded("/direct-no/", "proxy_ignore_headers X-Accel-Buffering;"))


def unknown(case):
    """Sent, and the answer is not whole."""
    is_problem(case.post(), "outcome-unknown", 502)
    for _ in range(2):
        is_problem(case.post(), "outcome-unknown")
    assert case.executions == 1


def whole(case, body):
    first = is_new(case.post(), body=body)
    is_replay(case.post(), first)
    assert case.executions == 1
    return first


# ---- FastCGI -------------------------------------------------------------

FASTCGI = ["/fastcgi/", "/fastcgi-small/", "/fastcgi-keep/",
           "/fastcgi-direct/"]


def out(body, length=None, padding=0):
    return record(STDOUT, cgi(201, body, length=length), padding)


LARGE = b"x" * 5000

WHOLE = {
    "nothing_declared": (b"made", fastcgi(201, b"made")),
    "declared": (b"made", fastcgi(201, b"made", length=4)),
    "empty": (b"", fastcgi(201, b"")),
    "in_two_records": (b"made", out(b"ma") + record(STDOUT, b"de", 5)
                       + record(STDOUT) + end()),
    "without_an_end_of_stdout": (b"made", out(b"made") + end()),
    "with_messages": (b"made", record(STDERR, b"oh") + out(b"ma", 4, 3)
                      + record(STDERR, b"dear") + record(STDOUT, b"de")
                      + record(STDERR) + record(STDOUT) + end()),
    "large": (LARGE, fastcgi(201, LARGE)),
    "large_and_declared": (LARGE, fastcgi(201, LARGE, length=5000)),
}


def every(table, plain):
    """Each place with each response. Unbuffered, a response that declares no
    length is a stream: of these only the ones that `plain` names are none."""
    return [(where, what) for where in FASTCGI for what in table
            if where != "/fastcgi-direct/" or re.search(plain, what)]


@pytest.mark.parametrize("where, what", every(
    WHOLE, "^declared|and_declared|messages"))
def test_a_whole_fastcgi_response_is_kept(site, where, what):
    body, data = WHOLE[what]
    whole(site.case(where, Raw(data), SECOND), body)


def test_a_fastcgi_connection_serves_several_requests(site):
    whole(site.case("/fastcgi-keep/", Keep(fastcgi(201, b"one"))), b"one")
    whole(site.case("/fastcgi-keep/", Keep(fastcgi(201, b"two"))), b"two")


@pytest.mark.parametrize("gap", range(0, 1200, 47))
def test_the_end_of_a_fastcgi_request_may_fall_behind_any_buffer(site, gap):
    # Stdout and request end in different buffers of 1 KiB for some of these.
    body = b"x" * (1000 + gap)
    whole(site.case("/fastcgi-small/", Raw(fastcgi(201, body)), SECOND), body)


@pytest.mark.parametrize("message", [b"", record(STDERR)],
                         ids=["", "message"])
@pytest.mark.parametrize("split", range(-2, 10))
def test_the_end_of_a_fastcgi_request_may_be_cut_in_two(site, split, message):
    # The end's head has 8 bytes; a buffer of 1 KiB ends after some of them.
    frame = len(fastcgi(201, b"")) - len(end()) + len(message)
    body = b"x" * (4096 - frame - split)
    data = record(STDOUT, cgi(201, body)) + record(STDOUT) + message + end()
    whole(site.case("/fastcgi-small/", Raw(data), SECOND), body)


CUT = {
    "short_of_what_it_declared": out(b"abc", 100),
    "short_with_an_end_of_stdout": out(b"abc", 100) + record(STDOUT),
    "short_with_every_end": out(b"abc", 100) + record(STDOUT) + end(),
    "no_end_at_all": out(b"made"),
    "no_end_of_the_request": out(b"made") + record(STDOUT),
    "declared_without_an_end": out(b"made", 4),
    "declared_without_an_end_of_the_request": out(b"made", 4)
    + record(STDOUT),
    "half_a_record": out(b"made")[:-2],
    "half_of_the_padding": out(b"made", 4, 8)[:-3],
    "half_an_end": out(b"made") + record(STDOUT) + end()[:5],
    "more_than_declared": fastcgi(201, b"more than four", length=4),
    "more_in_another_record": out(b"made", 4) + record(STDOUT, b"more")
    + record(STDOUT) + end(),
    "large_and_without_an_end": out(LARGE),
    "large_and_without_an_end_of_the_request": out(LARGE) + record(STDOUT),
    "another_version": out(b"made") + b"\2" + record(STDOUT)[1:] + end(),
    "another_request": out(b"made") + b"\1\6\0\2" + record(STDOUT)[4:]
    + end(),
    "no_body": record(STDOUT, cgi(201, b"")),
    "no_head": record(STDOUT, b"Status: 201 Fi"),
    "no_head_and_every_end": record(STDOUT, b"Status: 201 Fi")
    + record(STDOUT) + end(),
    "nothing": b"",
    "only_an_end": end(),
}


@pytest.mark.parametrize("where, what", every(
    CUT, "short|declared|head|another_record|padding|nothing|only"))
def test_a_cut_fastcgi_response_is_of_unknown_outcome(site, where, what):
    unknown(site.case(where, Raw(CUT[what]), SECOND))


@pytest.mark.parametrize("where", FASTCGI)
@pytest.mark.parametrize("what", [out(b"made", 4), out(b"made", 4)
                                  + record(STDOUT), out(b"abc", 100)],
                         ids=["whole", "whole_with_an_end", "short"])
def test_a_reset_fastcgi_response_is_of_unknown_outcome(site, where, what):
    hold = Hold(Reset(), before=what)
    hold.go.set()
    unknown(site.case(where, hold, SECOND))


# ---- uwsgi and SCGI ------------------------------------------------------

PLAIN = ["/uwsgi/", "/uwsgi-direct/", "/scgi/", "/scgi-direct/"]


@pytest.mark.parametrize("where", PLAIN)
def test_a_response_of_declared_length_is_kept(site, where):
    for body in (b"made", b""):
        whole(site.case(where, Raw(cgi(201, body, length=len(body))),
                        SECOND), body)


@pytest.mark.parametrize("where", PLAIN)
@pytest.mark.parametrize("what", [
    cgi(201, b"abc", length=100), cgi(201, b"", length=1), b"", b"Stat",
    cgi(201, b"more than four", length=4), cgi(201, b"more", length=0)],
                         ids=["short", "empty", "nothing", "half_a_head",
                              "more", "more_than_nothing"])
def test_a_length_that_differs_is_of_unknown_outcome(site, where, what):
    unknown(site.case(where, Raw(what), SECOND))


@pytest.mark.parametrize("where", ["/uwsgi/", "/scgi/"])
def test_where_nothing_is_declared_the_connection_s_end_is_the_end(
        site, where):
    whole(site.case(where, Raw(cgi(201, b"made")), SECOND), b"made")


@pytest.mark.parametrize("where", PLAIN + ["/old/"])
def test_a_reset_is_no_end(site, where):
    head = b"HTTP/1.0 201 Fine\r\n\r\n" if where == "/old/" \
        else cgi(201, b"", length=50 if "direct" in where else None)
    hold = Hold(Reset(), before=head + b"abc")
    hold.go.set()
    unknown(site.case(where, hold, SECOND))


# ---- Debug logs ----------------------------------------------------------


@pytest.mark.skipif(not debugging(), reason="nginx without --with-debug")
@pytest.mark.parametrize("store", ["sqlite", "memory"])
def test_a_worker_outlives_its_own_debug_lines(make, store):
    site = make(guarded("/pay/", "once_in_flight wait=5s;"), store=store,
                level="debug")
    workers = site.gateway.worker_pids()
    c = site.case("/pay/")
    first = is_new(c.post())
    is_replay(c.post(), first)
    # The module's own timer fires each second, in each worker.
    eventually(lambda: len(re.findall(r"timer add: \d+: 1000:",
                                      site.gateway.said()))
               > 2 * len(workers))
    is_replay(c.post(), first)
    assert site.gateway.worker_pids() == workers
    said = site.gateway.said()
    assert "exited on signal" not in said
    # Each timer names the descriptor of a connection: a small number.
    timers = re.findall(r"event timer add: (-?\d+):", said)
    assert timers and all(0 <= int(fd) < 1000 for fd in timers)

# ---- A head that is none -------------------------------------------------


@pytest.mark.parametrize("status", [100, 103, 199, 600, 777, 999])
@pytest.mark.parametrize("where", ["/old/", "/one/", "/fastcgi/", "/uwsgi/",
                                   "/scgi/"])
def test_a_status_that_is_none_is_of_unknown_outcome(site, where, status):
    answer = Answer(status, b"made\n") if where in ("/old/", "/one/") \
        else Raw(fastcgi(status, b"made")) if where == "/fastcgi/" \
        else Raw(cgi(status, b"made", length=4))
    unknown(site.case(where, answer, SECOND))


def test_a_stream_with_a_status_that_is_none_is_of_unknown_outcome(site):
    unknown(site.case("/one/", Answer(601, b"data: 1\n\n", [
        ("Content-Type", "text/event-stream")]), SECOND))


CACHE = """
    proxy_cache_path FOLDER/cache keys_zone=kept:1m;
"""

CACHED = """
    proxy_http_version 1.1;
    proxy_cache kept;
    proxy_cache_methods POST;
    proxy_cache_key $uri;
    proxy_cache_valid 201 1s;
    proxy_ignore_headers Cache-Control Expires;
    proxy_cache_use_stale error timeout updating http_500;
    proxy_read_timeout 300ms;
    %s
"""


def refused(site):
    """A cache of guarded responses may be refused altogether."""
    code, said = site.gateway.check()
    assert code == 0 or "proxy_cache_methods" in said, said
    site.gateway.allow.append("proxy_cache_methods")
    return code != 0


@pytest.mark.parametrize("how, script", [
    ("", Drop()), ("", Reset()), ("", Silent()), ("", Answer(500, b"no\n")),
    ("", Raw(b"garbage\r\n\r\n")),
    ("proxy_cache_revalidate on;", Answer(304, b""))],
                         ids=["dropped", "reset", "silent", "500", "garbage",
                              "revalidated"])
def test_a_stale_response_is_no_outcome(make, how, script):
    site = make(guarded("/pay/", CACHED % how) + guarded("/by/", CACHED % how,
                target="http://$there") + "set $there origin;",
                http=CACHE, start=False)
    if refused(site):
        return
    site.start()
    for where in ("/pay/", "/by/"):
        c = site.case(where, Answer(201, b"the first customer's\n", [
            ("ETag", '"1"')]), script, SECOND)
        assert c.post(key=MARK + "first").status == 201
        seen = len(c.requests)
        # Expired in whole seconds; until then it is a hit, or sent again.
        eventually(lambda c=c: expired(site, c))
        del c.requests[:]
        c.script = (script, SECOND)
        assert seen
        r = c.post()
        if r.code() is None:
            # No cache here after all: this is the upstream's own answer.
            assert r.status in (304, 500) and b"customer" not in r.body
        else:
            is_problem(r, "outcome-unknown", r.status)
            is_problem(c.post(), "outcome-unknown")
        assert c.executions == 1


def test_a_fresh_cached_response_is_no_outcome_either(make):
    site = make(guarded("/pay/", CACHED.replace("1s", "1h") % ""), http=CACHE,
                start=False)
    if refused(site):
        return
    site.start()
    c = site.case("/pay/", Answer(201, b"the first customer's\n"),
                  Answer(201, b"the second customer's\n"))
    assert c.post(key=MARK + "first").status == 201
    r = c.post()
    if r.code() is None:
        is_new(r, body=b"the second customer's\n")
    else:
        is_problem(r, "outcome-unknown", 502)


def test_a_page_behind_x_accel_redirect_may_come_from_a_cache(make):
    site = make(guarded("/pay/", "proxy_http_version 1.1;") + """
        location /shared/ {
            internal;
            proxy_cache kept;
            proxy_cache_valid 200 1h;
            proxy_pass http://origin;
        }""", http=CACHE)
    for _ in range(2):
        c = site.case("/pay/", Answer(200, b"", [
            ("X-Accel-Redirect", "/shared/page")]), SECOND)
        first = is_new(c.post(), 200, b"plain\n")
        is_replay(c.post(), first)
        assert c.executions == 1
    # The second one came from the cache.
    assert site.upstream.count("/shared/page") == 1


def expired(site, case):
    """Whether what the cache has for this path is older than it may be."""
    for path in (site.folder / "cache").rglob("*"):
        if path.is_file() and case.path.encode() in path.read_bytes():
            return time.time() > path.stat().st_mtime + 2.5
    return True


# ---- Files ---------------------------------------------------------------

FILES = """
    location /files/ {
        internal;
        alias FOLDER/files/;
        types { image/png png; }
        %s
    }"""


def served(make, more="", where="", **what):
    """A site whose upstream hands out files."""
    return make(guarded("/pay/", "proxy_http_version 1.1;" + where) +
                FILES % more, **what)


def by_file(site, name, body):
    """A case whose answer is this file."""
    path = site.folder / "files" / name
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(body)
    return site.case("/pay/", Answer(200, b"", [
        ("X-Accel-Redirect", "/files/" + name)]), SECOND)


@pytest.mark.parametrize("size", [1, 511, 512, 5000, 600000])
@pytest.mark.parametrize("more", [
    "", "directio 1; directio_alignment 512;", "directio 1; sendfile on;",
    "directio 1; open_file_cache max=9; open_file_cache_min_uses 1;",
    "directio 1; aio threads; output_buffers 1 64k;"],
                         ids=["plain", "directio", "sendfile", "cached",
                              "threads"])
def test_a_file_of_an_internal_location_is_kept(make, more, size):
    body = bytes(range(256)) * (size // 256) + b"!" * (size % 256)
    site = served(make, more, store="memory")
    c = by_file(site, "report", body)
    first = is_new(c.post(), 200, body)
    assert first.get("Last-Modified") and first.get("ETag")
    is_replay(c.post(), first)
    assert c.executions == 1


def test_a_file_over_the_limit_passes(make):
    body = b"x" * 100000
    site = served(make, "directio 1;", "once_max_response 64k;",
                  store="memory")
    c = by_file(site, "report", body)
    is_new(c.post(), 200, body)
    is_problem(c.post(), "response-unavailable")
    assert c.executions == 1


@pytest.mark.parametrize("script", [
    None, Answer(200, b"made\n", [
        ("Last-Modified", "Sat, 21 Nov 2026 20:24:00 GMT")])],
                         ids=["file", "upstream"])
def test_what_is_reckoned_from_last_modified_is_the_same_again(make, script):
    site = served(make, "expires modified +30d;", "expires modified +30d;",
                  store="memory")
    c = by_file(site, "report", b"made\n")
    if script:
        c.script = (script, SECOND)
    first = is_new(c.post(), 200, b"made\n")
    assert first.get("Expires")
    # The age in Cache-Control counts the seconds, as it should.
    again = c.post()
    assert again.replayed
    assert again.get("Last-Modified") == first.get("Last-Modified")
    assert again.get("Expires") == first.get("Expires")


# ---- Send timeouts -------------------------------------------------------


@pytest.mark.parametrize("size", [5, 40000])
@pytest.mark.parametrize("more", ["", "once_max_response 1k;"])
@pytest.mark.parametrize("timeout", ["0", "1ms"])
def test_send_timeout_does_not_run_while_a_store_is_at_work(
        make, timeout, more, size):
    site = make(guarded("/pay/", "proxy_http_version 1.1; send_timeout %s; %s"
                        % (timeout, more)), workers=1, start=False)
    texts = site.gateway.texts
    texts["http"] = re.sub(r"(once_store main [^;]+);", r"\1 timeout=60s;",
                           texts["http"])
    site.start()
    for _ in range(3):
        hold = Hold(Answer(201, b"x" * size))
        c = site.case("/pay/", hold, SECOND)
        with c.start(close=True) as client:
            hold.wait()
            with Locked(site):
                hold.go.set()
                site.turn()
            first = client.read()
        assert (first.status, first.once) == (201, "new"), first
        assert c.executions == 1


@pytest.mark.parametrize("timeout", ["0", "60s"])
def test_a_request_behind_a_held_one_is_served(make, timeout):
    site = make(guarded("/pay/", "send_timeout %s;" % timeout), workers=1)
    with Client(site.gateway.port) as client:
        for _ in range(5):
            c = site.case("/pay/")
            client.send(c.bytes())
            is_new(client.read())
            client.send(c.bytes())
            assert client.read().replayed


# ---- Filters that want another response ----------------------------------

MODULES = NGINX_MODULES + "/ngx_http_%s_filter_module.so"

# A GIF of one pixel.
GIF = bytes.fromhex("47494638396101000100800000000000ffffff21f90401000000"
                    "002c00000000010001000002024401003b")

FILTERED = {
    "an_image": ("image_filter size;", "image/gif", GIF, 200),
    "no_image": ("image_filter size;", "image/gif", b"not an image", 200),
    "no_image_to_test": ("image_filter test;", "image/gif", b"no image" * 9,
                         415),
    "nothing_to_test": ("image_filter test;", "image/gif", b"", 415),
    "an_image_too_large": ("image_filter resize 1 1; image_filter_buffer 20;",
                           "image/gif", GIF * 9, 415),
    "a_page_instead": ("image_filter test; error_page 415 /page;",
                       "image/gif", b"no image" * 9, 415),
    "a_document": ("xslt_stylesheet FOLDER/sheet.xslt;", "text/xml",
                   b"<pay/>", 200),
    "no_document": ("xslt_stylesheet FOLDER/sheet.xslt;", "text/xml",
                    b"no document", 500),
    "half_a_document": ("xslt_stylesheet FOLDER/sheet.xslt;", "text/xml",
                        b"<pay>", 500),
}

SHEET = b"""<xsl:stylesheet version="1.0"
  xmlns:xsl="http://www.w3.org/1999/XSL/Transform">
  <xsl:template match="/"><done/></xsl:template></xsl:stylesheet>"""


@pytest.mark.parametrize("length", [True, False], ids=["length", "chunks"])
@pytest.mark.parametrize("what", FILTERED)
@pytest.mark.parametrize("limit", ["", "once_max_response 4;"],
                         ids=["kept", "passed"])
def test_a_filter_that_fails_costs_no_outcome(make, tmp_path, what, length,
                                              limit):
    more, kind, body, status = FILTERED[what]
    (tmp_path / "sheet.xslt").write_bytes(SHEET)
    site = make(guarded("/pay/", "proxy_http_version 1.1;" + limit +
                        more.replace("FOLDER", str(tmp_path))) +
                "location /page { return 415 page; }", store="memory",
                main="".join("load_module %s;" % (MODULES % name)
                             for name in ("image", "xslt")))
    workers = site.gateway.worker_pids()
    head = b"HTTP/1.1 200 OK\r\nX-Own: 1\r\nContent-Type: %s\r\n" % \
        kind.encode()
    c = site.case("/pay/", Raw(
        head + b"Content-Length: %d\r\n\r\n%s" % (len(body), body) if length
        else head + b"Transfer-Encoding: chunked\r\n\r\n" +
        (b"%x\r\n%s\r\n" % (len(body), body) if body else b"") +
        b"0\r\n\r\n"), SECOND)
    first = c.post()
    assert first.status == status and not first.truncated, first
    for _ in range(2):
        again = c.post()
        if not limit or len(body) <= 4:
            # The same response, through the same filter.
            assert (again.status, again.body) == (first.status, first.body)
        elif kind == "text/xml":
            is_problem(again, "response-unavailable")
        # image_filter takes each response for an image, problems included.
    assert c.executions == 1
    assert site.gateway.worker_pids() == workers


@pytest.mark.parametrize("target", ["@app", "@named"])
def test_a_filter_that_asks_for_another_page_sends_nothing_twice(make, target):
    """A filter below ours makes its own response of the upstream's, and a
    named location keeps the method and the body of the request."""
    image = "image_filter resize 1 1; image_filter_buffer 20;" \
        "error_page 415 = %s;" % target
    site = make(guarded("/pay/", image) + """
        location @app { proxy_pass http://origin; }
        location @named { set $up origin; proxy_pass http://$up; }""",
                store="memory",
                main="load_module %s;" % (MODULES % "image"))
    c = site.case("/pay/", Raw(
        b"HTTP/1.1 200 OK\r\nContent-Type: image/gif\r\n"
        b"Content-Length: %d\r\n\r\n" % len(GIF * 9) + GIF * 9), SECOND)
    for _ in range(3):
        with contextlib.suppress(AssertionError):
            c.post()  # it may end without an answer
    assert c.executions == 1


# ---- Streams -------------------------------------------------------------

STREAMS = {
    "ndjson": ("/one/", b"Content-Type: application/x-ndjson\r\n"),
    "ndjson_of_known_length": (
        "/one/", b"Content-Type: application/x-ndjson; charset=utf-8\r\n"
        b"Content-Length: 14\r\n"),
    "asked_for_by_the_upstream": ("/one/", b"X-Accel-Buffering: no\r\n"),
    "asked_for_and_of_known_length": (
        "/one/", b"X-Accel-Buffering: no\r\nContent-Length: 14\r\n"),
    "configured": ("/direct/", b""),
}


@pytest.mark.parametrize("where, head", STREAMS.values(), ids=STREAMS.keys())
def test_a_stream_passes_part_by_part_and_is_not_kept(site, where, head):
    hold = Hold(Raw(b'{"n":2}'), before=b"HTTP/1.1 200 OK\r\n" + head +
                b"Connection: close\r\n\r\n" + b'{"n":1}')
    c = site.case(where, hold, SECOND)
    with c.start() as client:
        hold.wait()
        raw = client.reader.head()
        assert b"Idempotency-Status: new" in raw
        # The first part is here while the upstream still holds the second.
        while b'{"n":1}' not in client.reader.buffer:
            assert client.reader.more()
        is_problem(c.post(), "response-unavailable")
        hold.go.set()
        while b'{"n":2}' not in client.reader.buffer:
            assert client.reader.more()
    is_problem(c.post(), "response-unavailable")
    assert c.executions == 1


def test_a_stream_that_is_cut_is_cut_for_the_client(site):
    # It was recorded before its first byte left, and nobody repeats it.
    c = site.case("/direct/", Raw(
        b"HTTP/1.1 201 Made\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhel"),
        SECOND)
    r = c.post()
    assert r.truncated and r.status == 201
    is_problem(c.post(), "response-unavailable")
    assert c.executions == 1


NDJSON = [("Content-Type", "application/x-ndjson")]
ASKED = [("X-Accel-Buffering", "no")]


def ndjson(body, length=None, padding=0, headers=NDJSON):
    return record(STDOUT, cgi(201, body, headers, length), padding)


def is_cut_stream(case, body):
    """The client gets this part, and then the end of the connection."""
    with case.start() as client:
        while client.reader.more():
            pass
        head, _, rest = client.reader.buffer.partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 201 ")
        assert b"Idempotency-Status: new" in head
        if b"chunked" in head:
            assert not rest.endswith(b"0\r\n\r\n")
            rest = re.sub(rb"(^|\r\n)[0-9a-f]+\r\n|\r\n$", b"", rest)
        assert rest == body
    is_problem(case.post(), "response-unavailable")
    assert case.executions == 1


CUT_STREAMS = {
    "no_end_at_all": ndjson(b"made"),
    "no_end_of_the_request": ndjson(b"made") + record(STDOUT),
    "in_parts": ndjson(b"ma") + record(STDOUT, b"de"),
    "asked_for": ndjson(b"made", headers=ASKED),
    "half_a_record": ndjson(b"made, and more")[:-10],
    "half_of_the_padding": ndjson(b"made", None, 8)[:-3],
    "half_an_end": ndjson(b"made") + record(STDOUT) + end()[:5],
    "nothing_of_the_body": ndjson(b""),
    "short": ndjson(b"made", 100),
    "short_with_an_end_of_stdout": ndjson(b"made", 100) + record(STDOUT),
    "short_with_every_end": ndjson(b"made", 100) + record(STDOUT) + end(),
    "another_version": ndjson(b"made") + b"\2" + record(STDOUT)[1:] + end(),
}


@pytest.mark.parametrize("where", FASTCGI)
@pytest.mark.parametrize("what", CUT_STREAMS)
def test_a_fastcgi_stream_that_is_cut_is_cut_for_the_client(site, where,
                                                            what):
    body = b"" if what == "nothing_of_the_body" else b"made"
    is_cut_stream(site.case(where, Raw(CUT_STREAMS[what]), SECOND), body)


def test_a_fastcgi_stream_that_is_cut_is_cut_over_http_2(site):
    c = site.case("/fastcgi/", Raw(CUT_STREAMS["no_end_at_all"]), SECOND)
    with pytest.raises(AssertionError, match="curl ended with 92"):
        curl_h2(site.gateway.h2, c.path, headers=[("Idempotency-Key", c.key)])
    again = c.post(body=b"", headers=[("Content-Type", "application/json")])
    is_problem(again, "response-unavailable")
    assert c.executions == 1


@pytest.mark.parametrize("rest", [
    b"", b"0\r\n\r\n", b"4\r\nmade\r\n0\r\n\r\n"],
                         ids=["end", "last_chunk", "more"])
@pytest.mark.parametrize("where", ["/one/", "/direct/"])
def test_a_stream_that_makes_no_sense_is_cut_there(site, where, rest):
    is_cut_stream(site.case(where, Raw(
        b"HTTP/1.1 201 Made\r\nContent-Type: application/x-ndjson\r\n"
        b"Transfer-Encoding: chunked\r\n\r\n4\r\nmade\r\n~\r\n" + rest),
        SECOND), b"made")


@pytest.mark.parametrize("where", FASTCGI)
@pytest.mark.parametrize("data", [
    ndjson(b"made") + record(STDOUT) + end(), ndjson(b"made") + end(),
    ndjson(b"made", 4) + record(STDOUT) + end()],
                         ids=["whole", "without_an_end_of_stdout", "declared"])
def test_a_whole_fastcgi_stream_is_whole_for_the_client(site, where, data):
    with Client(site.gateway.port) as client:
        for _ in range(2):
            c = site.case(where, Raw(data), SECOND)
            client.send(c.bytes())
            is_new(client.read(), body=b"made")


@pytest.mark.parametrize("what", ["out", "no_end_of_the_request"])
def test_a_fastcgi_response_too_large_to_keep_is_cut_likewise(site, what):
    body = b"x" * 100000
    data = b"".join([record(STDOUT, cgi(201, b""))] + [
        record(STDOUT, body[i:i + 50000]) for i in range(0, 100000, 50000)])
    c = site.case("/fastcgi/", Raw(data if what == "out"
                                   else data + record(STDOUT)), SECOND)
    is_cut_stream(c, body)


@pytest.mark.parametrize("kind", ["fastcgi", "uwsgi", "scgi"])
def test_unbuffered_means_a_stream_in_every_protocol(site, kind):
    data = fastcgi(201, b"made") if kind == "fastcgi" else cgi(201, b"made")
    c = site.case("/%s-direct/" % kind, Raw(data), SECOND)
    is_new(c.post(), body=b"made")
    is_problem(c.post(), "response-unavailable")
    assert c.executions == 1


@pytest.mark.parametrize("where, script, body", [
    ("/direct/", Answer(201, b"made\n"), b"made\n"),
    ("/direct/", Answer(204, b""), b""),
    ("/direct-no/", Answer(201, b"made\n", [("X-Accel-Buffering", "no")]),
     b"made\n"),
    ("/direct/", Raw(b"HTTP/1.1 201 Made\r\nX-Accel-Buffering: yes\r\n\r\n"
                     b"made\n"), b"made\n")],
                         ids=["declared", "204", "ignored", "buffered"])
def test_what_is_no_stream_is_kept(site, where, script, body):
    c = site.case(where, script, SECOND)
    first = c.post()
    assert (first.body, first.once) == (body, "new")
    is_replay(c.post(), first)
    assert c.executions == 1


# ---- What nginx -t says --------------------------------------------------

ENDS = "the end of a response without \"Content-Length\""


@pytest.mark.parametrize("target", ["http://origin", "http://$there"])
def test_http_1_0_is_warned_of(make, target):
    more = "set $there origin;"
    site = make(guarded("/one/", more, target=target) +
                guarded("/two/", more + "proxy_http_version 1.0; if ($args)"
                        "{ set $x 1; }", target=target) +
                guarded("/three/", more + "proxy_http_version 1.1;",
                        target=target) +
                "location /four/ { proxy_pass http://origin; }", start=False)
    code, said = site.gateway.check()
    assert code == 0, said
    lines = [line for line in said.splitlines() if ENDS in line]
    # Later versions speak 1.1 where nothing else is said.
    warned = ["/one/", "/two/"] if nginx_version() < (1, 29, 7) else ["/two/"]
    assert len(lines) == len(warned), said
    for line, name in zip(lines, warned):
        assert "[warn]" in line and "nginx.conf:" in line
        assert '"%s"' % name in line
        assert '"proxy_http_version 1.1"' in line


@pytest.mark.parametrize("kind, warned", [("uwsgi", True), ("scgi", True),
                                          ("fastcgi", False)])
@pytest.mark.parametrize("there", ["127.0.0.1:1", "$there"])
def test_protocols_without_an_end_are_warned_of(make, kind, warned, there):
    text = passing("/one/", kind, "set $there 127.0.0.1:1;")
    site = make(re.sub(r"UPSTREAM\d", lambda m: there, text), start=False)
    code, said = site.gateway.check()
    assert code == 0, said
    lines = [line for line in said.splitlines() if ENDS in line]
    assert len(lines) == warned, said
    assert all("[warn]" in line for line in lines)


# ---- A short send_timeout ------------------------------------------------


@pytest.mark.parametrize("script", [Answer(),
                                    Answer(201, b"large " * 20000)],
                         ids=["small", "large"])
def test_a_short_send_timeout_does_not_cut_the_answer(make, script):
    site = make(guarded("/pay/", "send_timeout 1s; once_lease 60s;"
                        "once_max_response 1k;"), workers=1,
                store="faulty:fail=complete:1-*@sqlite")
    c = site.case("/pay/", script, SECOND)
    is_problem(c.post(), "outcome-unknown", 502)
    assert c.executions == 1


@pytest.mark.skipif(nginx_version() < (1, 29, 0), reason="no early hints")
@pytest.mark.nginx_only("early hints")
@pytest.mark.parametrize("where", ["/pay/", "/plain/"])
def test_early_hints_do_not_leave_before_the_record(make, where):
    """Their lines are the service's own, and nothing is recorded yet."""
    site = make(guarded("/pay/", "early_hints 1;") + """
        location /plain/ { early_hints 1; proxy_pass http://origin; }""")
    hints = (b"HTTP/1.1 103 Early Hints\r\nLink: </a.css>; rel=preload\r\n"
             b"X-Receipt: 17\r\n\r\n")
    c = site.case(where, Raw(hints + message(
        201, b"made\n", [("Connection", "close")])))
    with c.start(close=True) as client:
        said = client.reader.to_end()
    if where == "/plain/":
        assert said.startswith(b"HTTP/1.1 103") and b"X-Receipt" in said
        return
    assert said.startswith(b"HTTP/1.1 201 ") and b"X-Receipt" not in said
    assert c.post().replayed and c.executions == 1
