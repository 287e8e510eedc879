# SPDX-License-Identifier: Apache-2.0
"""
What servlets may do that no scenario of test/gateway does. The servlets are in
java/Days.java; the path says how a request is guarded and what its servlet
does.
"""

import contextlib
import itertools
import os
import pathlib
import re
import shutil
import signal
import socket
import struct
import subprocess
import sys
import threading
import time

import pytest

import served
import test_serve
from test_serve import BUILD, PATIENCE, eventually

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "gateway"))

# pylint: disable=wrong-import-position
import gateway  # noqa: E402

pytestmark = pytest.mark.skipif(
    not served.is_installed("java"),
    reason="there is no Java, or no Tomcat")
NUMBERS = itertools.count(1)


class App:
    """The servlets and their `once serve`."""

    def __init__(self, folder, bearer=False, where=None,
                 environment=None):
        self.folder = pathlib.Path(folder)
        self.words, self.port, self.process = [], 0, None
        self.environment = {**os.environ, **(environment or {})}
        # First: what does not compile leaves no server behind.
        command = served.program(pathlib.Path(BUILD), "java")
        command = command[:command.index("Service")]
        own = where is None
        at, where = where, "unix:%s/sock" % folder
        if bearer:
            (self.folder / "t").write_text("s" * 40 + "\n")
            (self.folder / "t").chmod(0o600)
            self.words = [str(self.folder / "t")]
            where = "127.0.0.1:0"
        (self.folder / "big").write_text('{"max_request": "4m"}')
        self.server = test_serve.Server(
            folder, "--define", "big=%s/big" % folder,
            *(["--token-file"] + self.words if bearer else []), where=where)
        if own or at.startswith("unix:"):
            self.server.start()
        where = at or where
        if bearer:
            where = "http://127.0.0.1:%d" % self.server.port
        self.command = command + ["Days", where, str(folder)] + self.words
        self.start()

    def start(self):
        with open(self.folder / "app.log", "ab") as log:
            # pylint: disable=consider-using-with
            self.process = subprocess.Popen(
                self.command, env=self.environment,
                stdout=log, stderr=log, stdin=subprocess.DEVNULL)
        eventually((self.folder / "port").exists)
        self.port = int((self.folder / "port").read_text())

    def close(self):
        self.process.kill()
        self.process.wait(PATIENCE)
        if self.server.process and self.server.process.poll() is None:
            self.server.end()

    def connect(self, data):
        client = gateway.Client(self.port)
        client.send(data)
        return client

    def send(self, path, method="POST", key=None, headers=(), body=b"", **more):
        lines = list(headers) + ([("Idempotency-Key", key)] if key else [])
        with self.connect(gateway.request_bytes(
                method, path, lines, body, close=True, **more)) as client:
            return client.read(method)

    def runs(self, what):
        return int(self.send("/runs/" + what, "GET").body)

    def log(self):
        return (self.folder / "app.log").read_text("utf-8", "replace")


@pytest.fixture(name="app", scope="module")
def an_app(tmp_path_factory):
    it = App(tmp_path_factory.mktemp("java"))
    yield it
    it.close()


@pytest.fixture(name="later", scope="module")
def an_app_of_later_containers(tmp_path_factory):
    """What Tomcat 11 does by default."""
    it = App(tmp_path_factory.mktemp("later"), environment={"DAYS_LATER": "1"})
    yield it
    it.close()


@pytest.fixture(name="case")
def a_case():
    return "case-%d" % next(NUMBERS)


def guarded(app, path, case, key=None, headers=(), **more):
    return app.send(path, key=key or "key-" + case,
                    headers=[*headers, ("X-Case", case)], **more)


def lines_of(response):
    """Without cookies, which are not kept."""
    return [x for x in gateway.kept(response) if x[0] != "Set-Cookie"]


def kept(app, path, case, status, said, **more):
    """The first answer and its replay, which is the same; one run."""
    first = guarded(app, path, case, **more)
    assert (first.status, first.body) == (status, said), first
    assert first.once == "new", first
    again = guarded(app, path, case, **more)
    assert again.replayed, again
    assert (again.status, again.body) == (status, said)
    assert lines_of(again) == lines_of(first)
    assert app.runs(case) == 1
    return first


def is_unknown(app, path, case, status, **more):
    first = guarded(app, path, case, **more)
    assert (first.status, first.code()) == (status, "outcome-unknown"), first
    again = guarded(app, path, case, **more)
    assert (again.status, again.code()) == (409, "outcome-unknown"), again
    assert app.runs(case) == 1


# ---- Bodies ---------------------------------------------------------------

FORM = ("Content-Type", "application/x-www-form-urlencoded")
FORMS = {
    "plain": (b"a=1&b=2&a=3", "", FORM[1]),
    "with_a_query": (b"a=1&b=%C3%A4+%26", "?a=0&q=%C3%B6", FORM[1]),
    "malformed": (b"a=%zz&b=1&=3&&c&d=%C3", "", FORM[1]),
    "latin": (b"a=%E4&b=\xe4", "", FORM[1] + ";charset=iso-8859-1"),
    "utf8_bytes": ("a=\u00e4".encode(), "", FORM[1] + ";charset=utf-8"),
    "of_one_name": (b"a=&" * 900, "", FORM[1]),
    "of_no_form": (b"a=1", "?q=1", "text/plain"),
    "empty": (b"", "?q=1", FORM[1]),
}


@pytest.mark.parametrize("name", FORMS)
def test_parameters_are_those_of_the_container(app, case, name):
    body, query, kind = FORMS[name]
    what = dict(body=body, headers=[("Content-Type", kind)])
    wanted = app.send("/plain/parameters" + query, **what)
    assert wanted.status == 200
    for key in "key-" + case, None:
        got = app.send("/g/parameters" + query, key=key, **what)
        assert (got.status, got.body) == (200, wanted.body)


@pytest.mark.parametrize("servlet, body, wanted", [
    ("stream", b"x" * 1000, b"1000"), ("bytes", b"\xff\x00\x01", b"256"),
    ("reader", b"caf\xe9", b"caf\xe9"), ("read-later", b"x" * 5000, b"5000"),
    ("read-later", b"", b"0"), ("length", b"x" * 7, b"7 7")],
    ids=["stream", "bytes", "reader", "later", "later_empty", "length"])
@pytest.mark.parametrize("chunked", [False, True])
def test_a_servlet_reads_the_body(app, case, servlet, body, wanted, chunked):
    kept(app, "/g/" + servlet, case, 200, wanted, body=body, chunked=chunked)
    plain = app.send("/g/" + servlet, body=body, chunked=chunked)
    assert (plain.status, plain.body) == (200, wanted)


@pytest.mark.parametrize("servlet", ["stream", "read-later"])
@pytest.mark.parametrize("chunked", [False, True])
def test_a_body_that_is_too_long(app, case, servlet, chunked):
    """Guarded it is refused; and what is not guarded gets all of it."""
    body = b"x" * 3000
    r = guarded(app, "/small/" + servlet, case, body=body, chunked=chunked)
    assert r.status == 413 and app.runs(case) == 0, r
    r = app.send("/small/" + servlet, body=body, chunked=chunked)
    assert (r.status, r.body) == (200, b"3000")
    kept(app, "/small/" + servlet, case + "b", 200, b"1024", body=b"x" * 1024)


def test_a_route_with_a_name_takes_what_the_server_says(app, case):
    kept(app, "/named/stream", case, 200, b"3145728", body=b"x" * (3 << 20))


PARTS = (b"--b\r\nContent-Disposition: form-data; name=\"a\"\r\n\r\none\r\n"
         b"--b\r\nContent-Disposition: form-data; name=\"f\"; "
         b"filename=\"n.txt\"\r\n"
         b"Content-Type: text/plain\r\n\r\ntwo\r\n--x\r\n\r\n--b--\r\n")


def test_parts_are_those_of_the_container(app, case):
    what = dict(body=PARTS, headers=[
        ("Content-Type", "multipart/form-data; boundary=b")])
    wanted = app.send("/plain/parts?q=1", **what)
    assert wanted.status == 200 and b"two" in wanted.body
    for key in "key-" + case, None:
        got = app.send("/g/parts?q=1", key=key, **what)
        assert (got.status, got.body) == (200, wanted.body)


def test_a_form_has_a_bounded_number_of_pieces(app, case):
    """A megabyte of them would be a hundred in memory."""
    part = PARTS[:PARTS.index(b"--b", 3)]
    for kind, body in ((FORM[1], b"a&" * 10001),
                       ("multipart/form-data; boundary=b",
                        part * 10001 + b"--b--\r\n")):
        r = app.send("/g/parameters", body=body,
                     headers=[("Content-Type", kind)])
        assert r.status == 500, r
    assert app.send("/g/parameters", body=b"a&" * 9999,
                    headers=[FORM]).status == 200
    assert "too many parameters" in app.log() and "too many parts" in app.log()


TAKEN = ["parameter", "stream", "peek", "reader", "peek-reader", "parts",
         "listener"]
MULTI = ("Content-Type", "multipart/form-data; boundary=b")


@pytest.mark.parametrize("chunked", [False, True])
@pytest.mark.parametrize("take", TAKEN)
def test_a_body_that_was_read_before_is_refused(app, case, take, chunked):
    """Also where the program computes what is compared, and gives nothing."""
    for path in "/taken/ok", "/taken-print/ok":
        for body in b"a=1", b"a=2":
            kind = FORM if take != "parts" else MULTI
            if take == "parts":
                body = PARTS.replace(b"one", body)
            r = guarded(app, path, case, body=body, chunked=chunked,
                        headers=[kind, ("X-Take", take)])
            assert (r.status, app.runs(case)) == (500, 0), r
    assert "nothing was run: the body was read before" in app.log()
    kept(app, "/taken/ok", case + "b", 201, b"made\n", headers=[FORM])


@pytest.mark.parametrize("chunked", [False, True])
@pytest.mark.parametrize("take", TAKEN)
def test_a_body_that_was_read_before_may_be_computed(app, case, take, chunked):
    kind = FORM if take != "parts" else MULTI
    what = dict(body=b"a=1" if take != "parts" else PARTS, chunked=chunked)
    lines = [kind, ("X-Take", take)]
    kept(app, "/taken-print/ok", case, 201, b"made\n",
         headers=[*lines, ("X-Print", "1")], **what)
    r = guarded(app, "/taken-print/ok", case,
                headers=[*lines, ("X-Print", "2")], **what)
    assert r.code() == "key-reused", r


@pytest.mark.skipif(not shutil.which("curl"), reason="there is no curl")
@pytest.mark.parametrize("take, status", [
    ("stream", 500), ("peek", 500), ("reader", 500), ("look", 201),
    ("restore", 201)])
def test_a_body_without_length_of_http2(app, case, take, status):
    """It is in no chunks, either."""
    out = subprocess.run(
        ["curl", "-s", "-T", "-", "-X", "POST", "--http2-prior-knowledge",
         "-o", "/dev/null", "-w", "%{http_code} %{http_version}",
         "-H", "X-Take: " + take, "-H", "Idempotency-Key: key-" + case,
         "-H", "X-Case: " + case, "-H", "Expect:",
         "http://127.0.0.1:%d/taken/ok" % app.port],
        input=b"a=1", capture_output=True, timeout=PATIENCE, check=True)
    assert out.stdout.decode() == "%d 2" % status
    assert app.runs(case) == (status == 201)


@pytest.mark.parametrize("take, servlet, said", [
    ("parameter", "parameters", b"a=[1]\n"), ("peek", "stream", b"8"),
    ("parts", "parameters", b"a=[one]\n"), ("stream", "stream", b"0"),
    ("peek-reader", "reader", b"=1&b=2xxxx")])
def test_what_is_left_of_a_body_goes_to_the_servlet(app, case, take, servlet,
                                                    said):
    body = {"parts": PARTS, "parameter": b"a=1"}.get(take, b"a=1&b=2xxxx")
    kept(app, "/taken-print/" + servlet, case, 200, said, body=body, headers=[
        FORM if take == "parameter" else MULTI if take == "parts" else
        ("Content-Type", "text/plain"), ("X-Take", take), ("X-Print", "1")])


@pytest.mark.parametrize("chunked", [False, True])
def test_a_form_that_was_read_before_may_be_compared(app, case, chunked):
    what = dict(headers=[FORM], chunked=chunked)
    kept(app, "/taken-form/parameters", case, 200, b"a=[1]\n", body=b"a=1",
         **what)
    r = guarded(app, "/taken-form/parameters", case, body=b"a=2", **what)
    assert (r.code(), app.runs(case)) == ("key-reused", 1)


@pytest.mark.parametrize("chunked", [False, True])
@pytest.mark.parametrize("take", ["restore", "look", "later"])
def test_a_body_that_is_whole_again_counts(app, case, take, chunked):
    """later: the filter before dispatches, and it is the first that is seen."""
    what = dict(headers=[("X-Take", take)], chunked=chunked)
    kept(app, "/taken/stream", case, 200, b"1000", body=b"x" * 1000, **what)
    r = guarded(app, "/taken/stream", case, body=b"y" * 1000, **what)
    assert (r.code(), app.runs(case)) == ("key-reused", 1)


def test_a_client_that_leaves_in_its_body_begins_nothing(app, case):
    data = gateway.request_bytes("POST", "/g/stream", [
        ("Idempotency-Key", "key-" + case), ("X-Case", case)], b"x" * 1000)
    for cut in data[:-1], data[:-999]:
        app.connect(cut).hang_up()
    kept(app, "/g/stream", case, 200, b"1000", body=b"x" * 1000)


def test_a_client_that_leaves_takes_nothing_away(app, case):
    data = gateway.request_bytes("POST", "/g/slow", [
        ("Idempotency-Key", "key-" + case), ("X-Case", case)], b"x")
    client = app.connect(data)
    eventually(lambda: app.runs(case) == 1)
    client.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER,
                           struct.pack("ii", 1, 0))
    client.sock.close()

    def look():
        r = guarded(app, "/g/slow", case, body=b"x")
        return r.replayed and r.status == 201
    eventually(look)
    assert app.runs(case) == 1


# ---- Lines ----------------------------------------------------------------


def test_what_a_servlet_says_of_once_is_dropped(app, case):
    r = kept(app, "/g/own-lines", case, 201, b"made\n")
    assert r.all("X-Two") == ["1", "2"]
    assert r.all("Idempotency-Status") == ["new"]


def test_what_a_client_says_of_once_does_not_reach_a_servlet(app, case):
    lines = [("Idempotency-Record", "r"), ("idempotency-attempt", "7"),
             ("Idempotent-Replayed", "true"), ("X-One", "1"), ("X-One", "2")]
    r = guarded(app, "/g/headers", case, headers=lines)
    text = r.body.decode()
    assert "x-one: [1, 2] 1" in text and text.endswith("attempt 1"), text
    assert text.count("idempotency-attempt") == 1 and "replayed" not in text
    assert "idempotency-record: [r]" not in text
    text = app.send("/g/headers", headers=lines).body.decode()
    assert "idempotency-" not in text and text.endswith("attempt -1"), text


def test_all_bytes_of_a_line_are_kept(app, case):
    line = "".join(chr(i) for i in range(0x80, 0x100)) + "\tA"
    r = kept(app, "/g/echo-header", case, 201, b"made\n",
             headers=[("X-Bytes", line)])
    assert r.get("X-Bytes") == line


def test_what_no_line_can_have_is_sent_as_the_container_does(app, case):
    r = kept(app, "/g/wide-header", case, 201, b"made\n")
    assert r.get("X-Injected") is None and r.get("X-Wide").startswith("a?b")


def test_lines_of_filters_before_are_sent_and_not_kept(app, case):
    r = kept(app, "/outer/ok", case, 201, b"made\n")
    assert (r.get("X-Outer"), r.get("X-Both")) == ("1", "outer")


@pytest.mark.parametrize("method", ["GET", "HEAD", "OPTIONS"])
def test_methods_that_are_not_guarded_pass(app, case, method):
    for _ in range(2):
        r = app.send("/g/ok", method, key="key-" + case,
                     headers=[("X-Case", case)])
        assert (r.status, r.once, r.replayed) == (201, None, False), r
    assert app.runs(case) == 2


# ---- Answers --------------------------------------------------------------


@pytest.mark.parametrize("servlet, status, body, lines", [
    ("writer", 200, "\u20ac \U0001f600".encode(),
     {"Content-Type": "text/html;charset=utf-8"}),
    ("writer-latin", 200, b"\xe4",
     {"Content-Type": "text/html;charset=ISO-8859-1"}),
    ("locale", 200, b"\xe9", {"Content-Language": "fr"}),
    ("both", 200, b"refused", {}),
    ("reset-buffer", 201, b"second", {"X-Stays": "1"}),
    ("reset", 200, b"second", {"X-Goes": None, "X-Comes": "1"}),
    ("reset-late", 410, b"", {}),
    ("send-error", 404, b"", {"X-Own": "1"}),
    ("redirect", 302, b"", {"Location": "/orders/1"}),
    ("right", 200, b"right", {"Content-Length": "5"}),
    ("short-error", 404, b"", {"Content-Length": "0"}),
    ("say-lines", 200, b"text/html;charset=UTF-8 UTF-8 true 1 [1, 2] 7 "
     b"Thu, 01 Jan 1970 00:00:00 GMT null text/plain;charset=UTF-8 "
     b"text/plain;charset=iso-8859-1 ja", {"X-I": "7"}),
    ("locale-ja", 200, b"\x93\xfa",
     {"Content-Type": "text/plain;charset=Shift_JIS"}),
    ("trailers", 201, b"made\n", {}), ("sendfile", 201, b"made\n", {}),
    ("flush-last", 201, b"made\n", {}), ("flush-writer", 201, b"made\n", {}),
    ("nothing", 200, b"", {"Content-Length": "0"}),
    ("no-content", 204, b"", {"Content-Length": None}),
    ("include", 201, b"outer made\n", {}),
    ("include-more", 201, b"outer inner /x",
     {"X-Included": None, "Set-Cookie": None, "Content-Type": "text/plain"}),
    ("unwrap", 201, b"made\n", {}),
    ("forward-view", 201, b"made\n", {"X-View": "1"}),
    ("async", 201, b"made\n", {}), ("async-now", 201, b"made\n", {}),
    ("async-dispatch", 201, b"made\n", {}),
    ("async-dispatch-now", 201, b"made\n", {})])
def test_an_answer_is_kept(app, case, servlet, status, body, lines):
    if servlet == "say-lines":
        wanted = app.send("/plain/say-lines")
        assert wanted.body == body
        for name in ("X-A", "X-I", "X-D", "Content-Type", "Content-Language"):
            assert wanted.all(name) == guarded(app, "/g/say-lines",
                                               "w-" + case).all(name)
    if servlet == "forward-view":
        for again in False, True:
            r = guarded(app, "/g/" + servlet, case)
            assert (r.status, r.body, r.replayed) == (201, body, again), r
        return
    if servlet == "async-dispatch":     # its servlet is dispatched three times
        first = guarded(app, "/g/" + servlet, case)
        assert (first.status, first.body, first.once) == (201, b"made\n", "new")
        assert guarded(app, "/g/" + servlet, case).replayed
        assert app.runs(case) == 3
        return
    if servlet == "async-dispatch-now":
        for again in False, True:
            r = guarded(app, "/g/" + servlet, case)
            assert (r.status, r.body, r.replayed) == (201, b"made\n", again), r
        return
    r = kept(app, "/g/" + servlet, case, status, body)
    for name, value in lines.items():
        assert r.get(name) == value or (value or "").lower() == \
            (r.get(name) or "").lower(), r


def test_the_answer_of_a_thread_that_was_interrupted_is_recorded(app, case):
    """Tomcat cuts its client off, as it does without Once."""
    with pytest.raises(AssertionError, match="without an answer"):
        app.send("/plain/interrupted")
    with pytest.raises(AssertionError, match="without an answer"):
        guarded(app, "/g/interrupted", case)
    r = guarded(app, "/g/interrupted", case)
    assert (r.status, r.body, r.replayed) == (201, b"made\n", True)
    assert app.runs(case) == 1


def test_a_forward_is_guarded_once(app, case):
    what = dict(body=b"a=1", headers=[FORM])
    for again in False, True:
        r = guarded(app, "/g/forward", case, **what)
        assert (r.status, r.body, r.replayed) == \
            (200, b"a=[1]\nmore=[1]\n", again), r
    plain = app.send("/g/forward", **what)
    assert (plain.status, plain.body) == (200, b"a=[1]\nmore=[1]\n")


@pytest.mark.parametrize("servlet, status, said", [
    ("forward", 200, b"a=[1]\nmore=[1]\n"), ("forward-view", 201, b"made\n")])
def test_a_forward_ends_no_response_that_is_held(later, case, servlet, status,
                                                 said):
    what = dict(body=b"a=1", headers=[FORM])
    for again in False, True:
        r = guarded(later, "/g/" + servlet, case, **what)
        assert (r.status, r.body, r.replayed) == (status, said, again), r


def test_what_is_forwarded_may_be_guarded_alone(app, case):
    for again in False, True:
        r = guarded(app, "/plain/forward-in", case)
        assert (r.status, r.body, r.replayed) == (201, b"made\n", again), r
    assert app.runs(case) == 3       # the one that forwards, twice


def not_kept(app, path, case, body):
    r = guarded(app, path, case)
    assert (r.status, r.body, r.truncated) == (200, body, False), r
    r = guarded(app, path, case)
    assert r.code() == "response-unavailable", r
    assert app.runs(case) == 1


def test_a_flush_in_the_middle_makes_a_stream(app, case):
    not_kept(app, "/g/flush-middle", case, b"one two three")


def test_an_answer_that_is_too_long_is_sent_and_not_kept(app, case):
    not_kept(app, "/small/long", case, b"x" * 100000)


def test_a_stream_that_is_too_short_is_cut_off(app, case):
    r = guarded(app, "/g/short-stream", case)
    assert r.truncated and app.runs(case) == 1
    assert guarded(app, "/g/short-stream", case).code() == \
        "response-unavailable"


def test_a_stream_that_breaks_is_cut_off(app, case):
    r = guarded(app, "/g/flush-break", case)
    assert r.truncated and app.runs(case) == 1
    assert guarded(app, "/g/flush-break", case).code() in (
        "response-unavailable", "outcome-unknown")


# ---- What breaks ----------------------------------------------------------


@pytest.mark.parametrize("servlet, status", [
    ("short", 502), ("over", 502), ("short-async", 502),
    ("stack-overflow", 502), ("no-memory", 502), ("throws", 502), ("late", 504),
    ("async-throws", 502), ("async-silent", 504), ("async-start-throws", 502),
    ("async-after-time", 504)])
def test_what_breaks_is_unknown(app, case, servlet, status):
    is_unknown(app, "/g/" + servlet, case, status)


def test_what_breaks_in_a_later_dispatch_is_unknown(app, case):
    r = guarded(app, "/g/async-dispatch-throws", case)
    assert (r.status, r.code()) == (502, "outcome-unknown"), r
    assert guarded(app, "/g/async-dispatch-throws", case).status == 409


@pytest.mark.parametrize("servlet, status", [
    ("ok", 201), ("async", 201), ("throws", 500), ("async-silent", 500)])
def test_a_dry_run_answers_and_breaks_as_without_once(app, case, servlet,
                                                      status):
    for _ in range(2):
        r = guarded(app, "/dry/" + servlet, case)
        assert (r.status, r.replayed, r.code()) == (status, False, None), r
    assert app.runs(case) == 2


@pytest.mark.parametrize("servlet, status, body", [
    ("async-complete-late", 503, b"later\n"), ("async-dispatch-late", 201,
                                               b"made\n")])
def test_a_listener_may_answer_for_a_late_servlet(app, case, servlet, status,
                                                  body):
    before = app.runs("completed")
    r = guarded(app, "/g/" + servlet, case)
    assert (r.status, r.body, r.once) == (status, body, "new"), r
    assert guarded(app, "/g/" + servlet, case).replayed
    eventually(lambda: app.runs("completed") == before + 1)


def test_a_servlet_that_comes_too_late_is_told_so(app, case):
    before = app.runs("refused"), app.runs("taken")
    r = guarded(app, "/g/async-after-time", case)
    assert r.status == 504
    eventually(lambda: app.runs("refused") + app.runs("taken") > sum(before))
    r = guarded(app, "/g/async-after-time", case)
    assert (r.status, r.code()) == (409, "outcome-unknown")


@pytest.mark.parametrize("servlet", ["async-race", "async-race-dispatch"])
def test_a_time_out_and_an_answer_are_never_both(app, case, servlet):
    """Tomcat looks once a second whose time is over."""
    answers = {}

    def ask(i):
        answers[i] = guarded(app, "/g/" + servlet, "%s-%d" % (case, i),
                             headers=[("X-Ms", str(i * 20))])
    threads = [threading.Thread(target=ask, args=(i,)) for i in range(150)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
    time.sleep(1)       # those that are too late have answered
    for i in range(150):
        first = answers[i]
        again = guarded(app, "/g/" + servlet, "%s-%d" % (case, i),
                        headers=[("X-Ms", str(i * 20))])
        if first.status == 201:
            assert (first.body, again.replayed) == (b"made\n", True), again
        else:
            assert (first.status, again.code()) == (504, "outcome-unknown")
        assert app.runs("%s-%d" % (case, i)) == 1 + (
            servlet == "async-race-dispatch" and first.status == 201)
    assert {a.status for a in answers.values()} == {201, 504}


def test_what_is_set_too_late_is_in_no_answer(app, case):
    """Lines, cookies, charset, status and length, while the time is over."""
    before = app.runs("told-so"), app.runs("session")
    answers = {}

    def ask(i):
        answers[i] = guarded(app, "/g/async-lines", "%s-%d" % (case, i))
    threads = [threading.Thread(target=ask, args=(i,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
    for r in answers.values():
        assert (r.status, r.code()) == (504, "outcome-unknown"), r
        assert r.get("X-Late") is None and not r.all("Set-Cookie"), r
        assert r.get("Content-Language") is None, r
        assert r.get("Content-Type").lower() == "application/problem+json"
    eventually(lambda: app.runs("told-so") == before[0] + 8)
    assert app.runs("session") == before[1]


def test_an_answer_is_completed_once(app, case):
    before = app.runs("refused-twice")
    kept(app, "/g/async-twice", case, 201, b"made\n")
    assert app.runs("refused-twice") == before + 1


def cookies(response):
    return [sorted(re.sub("Expires=[^;]*", "Expires", c).split("; "))
            for c in response.all("Set-Cookie")]


def test_cookies_are_those_of_the_container(app, case):
    wanted = app.send("/plain/cookies")
    got = guarded(app, "/g/cookies", case)
    assert wanted.status == got.status == 201
    assert cookies(got) == cookies(wanted) and len(cookies(got)) == 3
    assert not guarded(app, "/g/cookies", case).all("Set-Cookie")
    assert "JSESSIONID" in guarded(app, "/g/session", case + "b").get(
        "Set-Cookie")


def test_a_client_that_is_seen_to_leave_changes_nothing(app, case):
    """The container says so to the listeners, and ends the response."""
    before = app.runs("heard"), app.runs("completed")
    with contextlib.suppress(AssertionError):   # it may say nothing more
        guarded(app, "/left/async-slow", case)
    eventually(lambda: app.runs("completed") == before[1] + 1)
    r = guarded(app, "/left/async-slow", case)
    assert (r.status, r.body, r.replayed) == (201, b"made\n", True), r
    assert (app.runs(case), app.runs("heard")) == (1, before[0])


@pytest.mark.skipif(not shutil.which("curl"), reason="there is no curl")
@pytest.mark.parametrize("servlet", ["async-slow", "slow"])
def test_a_client_of_http2_that_leaves_changes_nothing(app, case, servlet):
    before = app.runs("heard"), app.runs("completed")
    subprocess.run(
        ["curl", "-s", "-m", "1", "--http2-prior-knowledge", "-X", "POST",
         "-o", "/dev/null", "-H", "Host: shop.test",
         "-H", "Idempotency-Key: key-" + case, "-H",
         "X-Case: " + case, "http://127.0.0.1:%d/g/%s" % (app.port, servlet)],
        timeout=PATIENCE, check=False)
    if servlet == "async-slow":
        eventually(lambda: app.runs("completed") == before[1] + 1)

    def look():
        r = guarded(app, "/g/" + servlet, case)
        return (r.status, r.body, r.replayed) == (201, b"made\n", True)
    eventually(look)
    assert (app.runs(case), app.runs("heard")) == (1, before[0])


def test_a_container_that_stops_changes_nothing(tmp_path, case):
    it = App(tmp_path)
    try:
        answers = []

        def ask():      # the container may close before it has answered
            with contextlib.suppress(AssertionError):
                answers.append(guarded(it, "/g/async-slow", case))
        thread = threading.Thread(target=ask)
        thread.start()
        eventually(lambda: it.runs(case) == 1)
        it.process.terminate()
        thread.join(PATIENCE)
        for r in answers:
            assert (r.status, r.code()) == (502, "outcome-unknown"), r
            assert "the container stops" in it.log()
        it.process.wait(PATIENCE)
        (tmp_path / "port").unlink()
        it.start()
        r = guarded(it, "/g/async-slow", case)
        assert (r.status, r.body, r.replayed) == (201, b"made\n", True), r
    finally:
        it.close()


@pytest.mark.parametrize("catch, servlet, status", [
    ("servlet", "throws", 502), ("spring", "throws", 502),
    ("spring-error", "throws", 502), ("hook", "throws", 502),
    ("removed", "throws", 502), ("hook", "throws-late", 504),
    ("servlet", "throws-late", 504)])
def test_what_a_framework_answers_for_is_unknown(app, case, catch, servlet,
                                                 status):
    is_unknown(app, "/inner/" + servlet, case, status,
               headers=[("X-Catch", catch)])


def test_what_a_framework_answers_for_is_unknown_in_a_dispatch(app, case):
    what = dict(headers=[("X-Catch", "spring")])
    r = guarded(app, "/inner/async-dispatch-throws-once", case, **what)
    assert (r.status, r.code()) == (502, "outcome-unknown"), r
    r = guarded(app, "/inner/async-dispatch-throws-once", case, **what)
    assert (r.status, r.code()) == (409, "outcome-unknown"), r


def test_an_exception_that_means_an_answer_is_recorded(app, case):
    for catch in "spring", "servlet":
        kept(app, "/inner/throws-expected", case + catch, 422, b"sorry",
             headers=[("X-Catch", catch)])
    # What nobody says cannot be seen: the README has it in bold.
    kept(app, "/inner/throws", case + "b", 500, b"sorry",
         headers=[("X-Catch", "silent")])
    for n in 1, 2:
        r = guarded(app, "/inner/throws", case + "c",
                    headers=[("X-Catch", "not-applied")])
        assert (r.status, r.body) == (500, b"sorry"), r
        assert app.runs(case + "c") == n


def test_without_async_in_its_mapping_no_wrong_answer_is_sent(app, case):
    """The container ends the response, and nobody has recorded it."""
    r = guarded(app, "/no-async/async-dispatch-now", case)
    assert r.status == 502 and r.body == b"", r
    eventually(lambda: guarded(app, "/no-async/async-dispatch-now",
                               case).code() == "outcome-unknown")
    assert "mapped for ASYNC" in app.log()
    kept(app, "/no-async/async", case + "b", 201, b"made\n")


# ---- Servers --------------------------------------------------------------


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
@pytest.mark.parametrize("away_s", [0, 2])
def test_the_next_server_takes_the_end(app, case, number, away_s):
    answers = []
    thread = threading.Thread(target=lambda: answers.append(
        guarded(app, "/g/slow", case)))
    thread.start()
    eventually(lambda: app.runs(case) == 1)
    app.server.end(number)
    time.sleep(away_s)          # 2: it is away when the servlet ends
    app.server.start()
    thread.join(PATIENCE)
    assert (answers[0].status, answers[0].body) == (201, b"made\n")
    assert guarded(app, "/g/slow", case).replayed
    assert app.runs(case) == 1


class Relay:
    """Between the filter and its server. It loses the answers that it is told
    to."""

    def __init__(self, folder):
        self.inner, self.lose = "%s/sock" % folder, []
        self.where = "unix:%s/relay" % folder
        self.listener = socket.socket(socket.AF_UNIX)
        self.listener.bind(self.where[5:])
        self.listener.listen(100)
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self):
        with contextlib.suppress(OSError):
            while True:
                conn, _ = self.listener.accept()
                threading.Thread(target=self.carry, args=(conn,),
                                 daemon=True).start()

    def carry(self, conn):
        with socket.socket(socket.AF_UNIX) as server, conn, \
                contextlib.suppress(OSError):
            server.connect(self.inner)
            asked, answered = gateway.Reader(conn), gateway.Reader(server)
            while (raw := asked.head()) is not None:
                head = gateway.Head(raw)
                server.sendall(raw + b"\r\n\r\n" + asked.body(head))
                raw = answered.head()
                data = raw + b"\r\n\r\n" + answered.body(gateway.Head(raw))
                path = head.start.split()[1][4:]
                if path in self.lose:
                    self.lose.remove(path)
                    conn.sendall(data[:len(data) // 2])
                    conn.shutdown(socket.SHUT_RDWR)
                    return
                conn.sendall(data)

    def close(self):
        self.listener.shutdown(socket.SHUT_RDWR)
        self.listener.close()


@pytest.fixture(name="relayed", scope="module")
def a_relayed_app(tmp_path_factory):
    folder = tmp_path_factory.mktemp("relayed")
    relay = Relay(folder)
    it = App(folder, where=relay.where)
    it.relay = relay
    yield it
    it.close()
    relay.close()


@pytest.mark.parametrize("path", ["begin", "end", "broken", "call/begin",
                                  "call/end"])
@pytest.mark.parametrize("times", [1, 3])
def test_an_answer_that_is_lost_is_asked_for_again(relayed, case, path, times):
    relayed.relay.lose = [path] * times
    if path == "broken":
        is_unknown(relayed, "/g/throws", case, 502)
    elif path.startswith("call"):
        assert call(relayed, case) == (200, "paid " + case)
        assert call(relayed, case) == (200, "paid " + case)
        assert relayed.runs("work-" + case) == 1
    else:
        kept(relayed, "/g/ok", case, 201, b"made\n")
    assert not relayed.relay.lose


def test_a_begin_that_stays_without_an_answer_claims_nothing(relayed, case):
    relayed.relay.lose = ["begin"] * 100
    r = guarded(relayed, "/g/ok", case)
    assert (r.status, r.code()) == (503, "store-unavailable")
    relayed.relay.lose = []
    kept(relayed, "/g/ok", case, 201, b"made\n")


def test_without_a_server_nothing_runs(app, case):
    app.server.end()
    r = guarded(app, "/g/ok", case)
    assert (r.status, r.code(), app.runs(case)) == (503, "store-unavailable", 0)
    app.server.start()
    kept(app, "/g/ok", case, 201, b"made\n")


def test_repeats_that_wait_do_not_keep_the_end_from_its_connection(app, case):
    answers = []
    threads = [threading.Thread(target=lambda: answers.append(
        guarded(app, "/wait/slow", case))) for _ in range(100)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
    assert [a.status for a in answers] == [201] * 100
    assert sum(a.replayed for a in answers) == 99 and app.runs(case) == 1


def test_scopes_are_apart_and_one_that_is_no_text_is_refused(app, case):
    for user in "ann", "bob", "pair", "caf\xe9":
        r = guarded(app, "/g/ok", case, headers=[("X-User", user)])
        assert (r.status, r.replayed) == (201, False)
    r = guarded(app, "/g/ok", case, headers=[("X-User", "none")])
    assert (r.status, r.code()) == (401, "scope-missing")
    for user in "empty", "blank":
        r = guarded(app, "/g/ok", case, headers=[("X-User", user)])
        assert (r.status, app.runs(case)) == (500, 4)
    assert "it must be a text that is not blank, or null for a caller" \
        in app.log()
    # Half of a pair, which UTF-8 has not: all such scopes would be "?".
    r = guarded(app, "/g/ok", case, headers=[("X-User", "half")])
    assert (r.status, app.runs(case)) == (500, 4)


@pytest.mark.parametrize("name", ["Key", "Print", "Label"])
def test_what_is_computed_is_a_text_or_nothing(app, case, name):
    for value in "", "  ":
        r = guarded(app, "/said/ok", case, headers=[("X-" + name, value)])
        assert (r.status, app.runs(case)) == (500, 0), r
    kept(app, "/said/ok", case, 201, b"made\n")
    kept(app, "/said/ok", case + "b", 201, b"made\n",
         headers=[("X-" + name, "said-" + case)])


def test_a_route_that_cannot_be_fails_at_the_start(app):
    r = app.send("/plain/bad-route?name=finall", "GET")
    assert r.status == 500 and b"finall" in r.body, r
    assert b"the server refuses this filter's route" in r.body
    app.server.end()
    r = app.send("/plain/bad-route?name=finall", "GET")
    app.server.start()
    assert (r.status, r.body) == (200, b"taken")     # the first request sees it


@contextlib.contextmanager
def standing_still(server):
    server.process.send_signal(signal.SIGSTOP)
    try:
        yield
    finally:
        server.process.send_signal(signal.SIGCONT)


@pytest.mark.parametrize("method", ["POST", "GET"])
def test_a_server_that_stands_still_holds_a_request_for_seconds(app, case,
                                                                method):
    """5 s for the answer, and 1 s to give the key up."""
    kept(app, "/g/ok", case, 201, b"made\n")
    with standing_still(app.server):
        start = time.monotonic()
        r = guarded(app, "/g/ok", case + "b", method=method)
        assert (r.status, r.code()) == (503, "store-unavailable"), r
        assert 4 < time.monotonic() - start < 20
    eventually(lambda: guarded(app, "/g/ok", case + "b").status == 201)
    assert app.runs(case + "b") == 1


def test_a_server_that_stands_still_holds_an_answer_for_the_lease(app, case):
    answers = []
    thread = threading.Thread(target=lambda: answers.append(
        guarded(app, "/lease/slow", case)))
    thread.start()
    eventually(lambda: app.runs(case) == 1)
    with standing_still(app.server):
        thread.join(20)
        assert not thread.is_alive()
    assert (answers[0].status, answers[0].code()) == (502, "outcome-unknown")
    r = guarded(app, "/lease/slow", case)
    assert r.replayed or r.code() == "outcome-unknown", r
    assert app.runs(case) == 1


def test_a_server_that_does_not_accept_holds_a_call_for_seconds(app, case,
                                                                tmp_path):
    with contextlib.ExitStack() as stack:
        listener = stack.enter_context(socket.socket(socket.AF_UNIX))
        listener.bind(str(tmp_path / "full"))
        listener.listen(0)
        for _ in range(3):      # until its queue is full
            other = stack.enter_context(socket.socket(socket.AF_UNIX))
            other.setblocking(False)
            with contextlib.suppress(BlockingIOError):
                other.connect(str(tmp_path / "full"))
        start = time.monotonic()
        assert call(app, case, at="unix:%s/full" % tmp_path) == (
            409, "unavailable 0 0 ")
        assert 4 < time.monotonic() - start < 20
    assert app.runs("work-" + case) == 0


def test_a_repeat_may_come_to_a_service_in_another_language(app, case):
    kept(app, "/g/ok?a=%C3%A4&b", case, 201, b"made\n", body=b"x")
    with test_serve.Client(app.server) as c:
        test_serve.is_replay(test_serve.begin(
            c, "key-" + case, target="/g/ok?a=%C3%A4&b", body=b"x"))
        test_serve.is_problem(test_serve.begin(
            c, "key-" + case, target="/g/ok?a=%C3%A4", body=b"x"), "key-reused")


def test_a_fingerprint_that_is_computed_counts(app, case):
    kept(app, "/print/ok", case, 201, b"made\n", body=b"one")
    assert guarded(app, "/print/ok", case, body=b"two").replayed


def test_by_loopback_with_a_token(tmp_path):
    it = App(tmp_path, bearer=True)
    try:
        kept(it, "/g/ok", "tcp", 201, b"made\n")
        r = it.send("/call?what=ok&key=tcp&print=1")
        assert (r.status, r.body) == (200, b"paid tcp")
        assert "s" * 40 not in it.log()
    finally:
        it.close()


def message(text, status="200 OK", length=None):
    return ("HTTP/1.1 %s\r\nContent-Length: %d\r\n\r\n%s" % (
        status, len(text) if length is None else length, text)).encode()


RUN = '{"do":"run","token":"t","attempt":1,"record":"r","lease_ms":1000}\n'
BOUNDS = message('{"do":"none","max_request":1048576,"wait_ms":0}\n')
WRONG = {
    "other": (message('{"do":"other"}\n'), 500),
    "nothing": (message("{}\n"), 500),
    "refused": (message('{"error":"route","text":"no"}\n', "422 No"), 500),
    "not_ours": (message('{"error":"bearer","text":"no"}\n', "401 No"), 503),
    "no_json": (message("hello\n"), 503),
    "two_values": (message('{"do":"pass"} {}\n'), 503),
    "a_list": (message("[]\n"), 503),
    "a_bomb": (message("[" * 60000 + "\n"), 503),
    "a_number": (message('{"do":01}\n'), 503),
    "a_long_header": (b"HTTP/1.1 200 OK\r\nA: " + b"a" * 9000 + b"\r\n", 503),
    "no_length": (b"HTTP/1.1 200 OK\r\n\r\n" + RUN.encode(), 503),
    "no_feed": (message(RUN.strip()), 503),
    "cut_off": (message(RUN, length=len(RUN) + 1), 503),
    "two_answers": (message(RUN) + message(RUN), 503),
    "no_http": (RUN.encode(), 503),
}


@pytest.fixture(name="foreign", scope="module")
def a_foreign_server(tmp_path_factory):
    """It answers each call with what it is to say, and ends the connection."""
    said = [b""]
    listener = socket.create_server(("127.0.0.1", 0))

    def serve():
        while True:
            try:
                conn, _ = listener.accept()
            except OSError:
                return
            with conn, contextlib.suppress(OSError):
                reader = gateway.Reader(conn)
                head = gateway.Head(reader.head())
                reader.body(head)
                conn.sendall(BOUNDS if "/v1/route" in head.start else said[0])
                conn.shutdown(socket.SHUT_RDWR)
    threading.Thread(target=serve, daemon=True).start()
    it = App(tmp_path_factory.mktemp("foreign"),
             where="http://127.0.0.1:%d" % listener.getsockname()[1])
    it.say = said
    yield it
    it.close()
    listener.shutdown(socket.SHUT_RDWR)
    listener.close()


@pytest.mark.parametrize("name", WRONG)
def test_what_a_server_may_not_say_runs_nothing(foreign, case, name):
    foreign.say[0], status = WRONG[name]
    r = guarded(foreign, "/g/ok", case)
    assert (r.status, foreign.runs(case)) == (status, 0), r
    status, text = call(foreign, case)
    assert status in (409, 500) and foreign.runs("work-" + case) == 0, text


# ---- Calls ----------------------------------------------------------------


def call(app, key, what="ok", mark="1", **more):
    r = app.send("/call?" + "&".join("%s=%s" % pair for pair in dict(
        more, key=key, what=what, print=mark).items()))
    return r.status, r.body.decode()


@pytest.mark.parametrize("what", ["ok", "slow", "interrupted"])
def test_a_call_runs_once(app, case, what):
    for _ in range(3):
        assert call(app, case, what) == (200, "paid " + case)
    assert call(app, case, mark="2") == (409, "mismatch 0 0 ")
    assert app.runs("work-" + case) == 1


def test_a_call_without_a_result_has_an_empty_one(app, case):
    for _ in range(2):
        assert call(app, case, "null") == (200, "")
    assert app.runs("work-" + case) == 1


@pytest.mark.parametrize("what, error", [
    ("throws", "IllegalStateException"), ("error", "StackOverflowError")])
def test_a_call_that_throws_is_unknown(app, case, what, error):
    assert call(app, case, what) == (500, error)
    assert call(app, case) == (409, "indeterminate 0 0 ")
    assert app.runs("work-" + case) == 1


def test_a_call_that_has_done_nothing_may_run_again(app, case):
    assert call(app, case, "not-applied") == (500, "NotApplied")
    assert call(app, case) == (200, "paid " + case)
    assert app.runs("work-" + case) == 2


def test_a_call_in_flight_is_waited_for(app, case):
    answers = []
    threads = [threading.Thread(target=lambda: answers.append(
        call(app, case, "slow", wait_ms=20000))) for _ in range(20)]
    for thread in threads:
        thread.start()
    eventually(lambda: app.runs("work-" + case) == 1)
    status, text = call(app, case)
    assert status == 409 and text.startswith("in-flight ")
    assert int(text.split()[1]) > 0
    for thread in threads:
        thread.join(PATIENCE)
    assert answers == [(200, "paid " + case)] * 20
    assert app.runs("work-" + case) == 1


def test_a_call_ends_with_the_next_server(app, case):
    answers = []
    thread = threading.Thread(target=lambda: answers.append(
        call(app, case, "slow")))
    thread.start()
    eventually(lambda: app.runs("work-" + case) == 1)
    app.server.end(signal.SIGKILL)
    time.sleep(2)
    app.server.start()
    thread.join(PATIENCE)
    assert answers == [(200, "paid " + case)] == [call(app, case)]


def test_a_call_without_a_server_does_not_run(app, case):
    app.server.end()
    assert call(app, case) == (409, "unavailable 0 0 ")
    says = app.send("/call?what=ok&print=1&key=" + case).get("X-Says")
    app.server.start()
    assert "nothing was run; call again with the same key" in says
    # What was tried, what the other side said, and what to do.
    assert re.search(r"POST /v1/call/begin to unix:\S+: \S*Exception: .*given up:"
                     r" see whether `once serve` runs", app.log())
    assert call(app, case) == (200, "paid " + case)
    assert app.runs("work-" + case) == 1


def test_a_failure_of_another_program_is_given_as_one(app, case):
    with test_serve.Client(app.server) as c:
        code, head, _ = c.ask("/v1/call/begin", {
            "id": test_serve.new_id(), "group": "charge", "key": case,
            "fingerprint": "1"})
        assert (code, head["do"]) == (200, "run")
        c.ask("/v1/call/end", {"token": head["token"], "kind": "failure",
                               "code": 7}, b"declined")
    assert call(app, case) == (409, "failure 0 7 declined")


def test_a_call_that_cannot_be_is_an_error_of_the_program(app, case):
    for words in ("", "group=%20&key=k&print=1", "group=g&key=&print=1",
                  "group=g&print=1", "group=g&key=k"):
        r = app.send("/plain/bad-call?" + words)
        assert r.status == 500 and b"nothing was run" in r.body, r
    assert app.runs("work-bad") == 0
    assert call(app, case, wait_ms=-1) == (500, "IllegalArgumentException")
    assert app.runs("work-" + case) == 0
