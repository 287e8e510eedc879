# SPDX-License-Identifier: Apache-2.0
"""
The middleware for Python inside real frameworks and servers: what stands around a
handler, what it sends beside its answer, clients that leave, and a server that
stands still. (The contract itself: test/gateway. Functions: test_calls.py.)
"""

import asyncio
import functools
import io
import json
import logging
import os
import pathlib
import signal
import socket
import subprocess
import sys
import time

import pytest

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parents[1] / "middleware/python")]
# pylint: disable=wrong-import-position
import once  # noqa: E402
import test_serve as served  # noqa: E402
from test_serve import PATIENCE, eventually  # noqa: E402

UNKNOWN = (502, "outcome-unknown")
LATER = (409, "outcome-unknown")
TEXT = [("Content-Type", "text/plain")]


class Boom(Exception):
    pass


@pytest.fixture(name="server", scope="module")
def a_server(tmp_path_factory):
    server = served.Server(tmp_path_factory.mktemp("serve")).start()
    yield server
    server.end()


@pytest.fixture(name="own")
def a_server_of_its_own(tmp_path):
    server = served.Server(tmp_path).start()
    yield server
    if server.process.poll() is None:
        server.process.send_signal(signal.SIGCONT)
        server.end()


@pytest.fixture(name="key")
def a_key():
    return os.urandom(8).hex()


def told(status, lines, body):
    """(status, code of the problem, or the body)."""
    kind = {n.lower(): v for n, v in lines}.get("content-type", "")
    return status, json.loads(body)["code"] if "problem" in kind else body


# ---- WSGI ---------------------------------------------------------------------


def environ_of(key, body=b"pay", method="POST", source=None, **more):
    environ = {"REQUEST_METHOD": method, "PATH_INFO": "/pay", "SCRIPT_NAME": "",
               "QUERY_STRING": "", "SERVER_PROTOCOL": "HTTP/1.1",
               "SERVER_NAME": "shop.test", "SERVER_PORT": "80",
               "wsgi.url_scheme": "http", "wsgi.errors": io.StringIO(),
               "HTTP_HOST": "shop.test", "HTTP_IDEMPOTENCY_KEY": key,
               "CONTENT_LENGTH": str(len(body)), "REMOTE_USER": "ann",
               "wsgi.input": source or io.BytesIO(body), **more}
    return {n: v for n, v in environ.items() if v is not None}


def ask(app, environ):
    """What the server sends for it."""
    start = []

    def start_response(status, lines, exc_info=None):
        assert not start or exc_info
        start[:] = [int(status.split()[0]), lines]
        return lambda part: None
    parts = app(environ, start_response)
    try:
        body = b"".join(parts)
    finally:
        getattr(parts, "close", lambda: None)()
    return told(start[0], start[1], body)


def remote_user(environ):
    return environ.get("REMOTE_USER")


def wsgi(server, handler, **more):
    return once.WSGI(handler, serve=server.where,
                     **dict({"scope": remote_user}, **more))


def pays(runs):
    def handler(environ, start):
        runs.append(environ["wsgi.input"].read())
        start("201 Created", TEXT)
        return [b"paid %d" % len(runs)]
    return handler


def chunks(*parts):
    """A body of gunicorn, in chunks."""
    from gunicorn.http import body, unreader
    data = b"".join(b"%x\r\n%s\r\n" % (len(p), p) for p in parts) + b"0\r\n\r\n"
    return body.Body(body.ChunkedReader(None, unreader.IterUnreader(
        iter([data]))))


def length(data):
    from gunicorn.http import body, unreader
    return body.Body(body.LengthReader(unreader.IterUnreader(
        iter([data])), len(data)))


CHUNKED = {"HTTP_TRANSFER_ENCODING": "chunked", "CONTENT_LENGTH": None,
           "wsgi.input_terminated": True}


class Raw(io.RawIOBase):
    """A body that does not say how much of it was read."""

    def __init__(self, data):
        super().__init__()
        self.data = io.BytesIO(data)

    def readable(self):
        return True

    def readinto(self, out):
        return self.data.readinto(out)


def bodies(data):
    """What servers give: (body, more of environ)."""
    return {"length": (length(data), {}), "raw": (Raw(data), {}),
            "chunked": (chunks(data), CHUNKED),
            "two chunks": (chunks(data[:1], data[1:]), CHUNKED)}


@pytest.mark.parametrize("outer", [
    lambda source: source.read(), lambda source: source.read(1),
    lambda source: source.read(2)], ids=["whole", "first", "part"])
@pytest.mark.parametrize("kind", ["length", "chunked", "two chunks", "raw"])
def test_a_body_that_was_read_before_is_refused(server, key, caplog, kind, outer):
    runs = []
    for data in b"pay 1", b"pay 2":
        source, more = bodies(data)[kind]
        outer(source)
        assert ask(wsgi(server, pays(runs)), environ_of(
            key, data, source=source, **more))[0] == 500
    assert not runs and "was read before Once" in caplog.text
    # The key is free.
    assert ask(wsgi(server, pays(runs)), environ_of(key))[0] == 201


def test_a_body_in_chunks_that_tells_nothing_is_refused(server, key):
    app = wsgi(server, pays([]))
    assert ask(app, environ_of(key, source=Raw(b"pay"), **CHUNKED))[0] == 500


@pytest.mark.parametrize("kind", ["length", "chunked", "two chunks", "raw"])
def test_a_body_that_was_not_read_is_seen(server, key, kind):
    runs = []
    app = wsgi(server, pays(runs))
    for data in b"pay 1", b"pay 2":
        source, more = bodies(data)[kind]
        got = ask(app, environ_of(key, data, source=source, **more))
        assert got == ((201, b"paid 1") if data == b"pay 1" else
                       (422, "key-reused"))
    assert runs == [b"pay 1"]


@pytest.mark.parametrize("more", [{}, CHUNKED], ids=["length", "chunked"])
def test_a_body_that_can_be_read_again_is_read_again(server, key, more):
    app = wsgi(server, pays([]))
    for data, status in (b"1", 201), (b"2", 422):
        environ = environ_of(key, data, **more)
        environ["wsgi.input"].read()
        assert ask(app, environ)[0] == status


@pytest.mark.parametrize("kind", ["length", "chunked", "raw"])
def test_a_fingerprint_of_the_program_needs_no_body(server, key, kind):
    runs = []
    app = wsgi(server, pays(runs), fingerprint=lambda e: e.get("HTTP_X_PRINT"))
    for text, status in ("1", 201), ("1", 201), ("2", 422), (None, 500):
        source, more = bodies(b"pay")[kind]
        source.read()
        assert ask(app, environ_of(key, source=source, HTTP_X_PRINT=text,
                                   **more))[0] == status
    assert runs == [b""]


def test_a_client_that_leaves_within_its_body_runs_nothing(server, key):
    """Also if the program compares something else."""
    runs = []
    app = wsgi(server, pays(runs), fingerprint=lambda e: "the same")
    for source in length(b"pay"), Raw(b"pay"):
        if not isinstance(source, Raw):
            source.reader.length = 10
        assert ask(app, environ_of(key, source=source,
                                   CONTENT_LENGTH="10"))[0] == 500
    assert not runs


@pytest.mark.parametrize("outer, status", [(None, 201), (3, 500), (1, 500)])
def test_a_socket_in_place_of_a_body(server, key, monkeypatch, outer, status):
    """What wsgiref and Flask's development server give."""
    monkeypatch.setattr(once, "FIRST_S", 0.3)
    runs = []
    ours, theirs = socket.socketpair()
    with ours, theirs, theirs.makefile("rb") as source:
        ours.sendall(b"pay")
        if outer:
            source.read(outer)
        assert ask(wsgi(server, pays(runs)), environ_of(
            key, source=source))[0] == status
        assert theirs.gettimeout() is None
    assert runs == ([b"pay"] if status == 201 else [])


def test_a_socket_that_was_read_before_passes(server, key, monkeypatch):
    monkeypatch.setattr(once, "FIRST_S", 0.3)
    app = wsgi(server, lambda _, start: start("200 OK", TEXT) and [b"ok"],
               fingerprint=lambda environ: "1")
    for method in "PUT", "POST":    # not guarded, and guarded
        ours, theirs = socket.socketpair()
        with ours, theirs, theirs.makefile("rb") as source:
            assert ask(app, environ_of(key, method=method, source=source)) == (
                200, b"ok")


def test_what_is_not_guarded_may_be_read_before(server, key):
    runs = []
    source = chunks(b"pay")
    source.read()
    assert ask(wsgi(server, pays(runs)), environ_of(
        key, source=source, method="PUT", **CHUNKED))[0] == 201
    assert runs == [b""]


# ---- What a handler of WSGI sends ------------------------------------------------


def again(app, key):
    """The first answer and the repeat's."""
    return ask(app, environ_of(key)), ask(app, environ_of(key))


def test_write_and_a_file(server, key):
    def handler(environ, start):
        write = start("200 OK", TEXT)
        write(b"a")
        write(b"b")
        return environ["wsgi.file_wrapper"](io.BytesIO(b"cd"), 1)

    class Wrapper:
        """As servers have it: an iterable that they would send otherwise."""

        def __init__(self, file, size=8192):
            self.file, self.size = file, size

        def __iter__(self):
            return iter(lambda: self.file.read(self.size), b"")
    app = wsgi(server, handler)
    for _ in range(2):
        assert ask(app, environ_of(key, **{"wsgi.file_wrapper": Wrapper})) == (
            200, b"abcd")


def test_what_is_written_while_a_long_answer_is_sent_is_not_lost(server, key):
    def handler(_, start):
        write = start("200 OK", TEXT)
        write(b"1")
        yield b"x" * 2048
        write(b"2")
        yield b"3"
        write(b"4")
    app = wsgi(server, handler, route={"max_response": "1k"})
    assert again(app, key) == ((200, b"1" + b"x" * 2048 + b"234"),
                               (409, "response-unavailable"))


def test_a_long_answer_keeps_its_length(server, key):
    seen = []

    def handler(_, start):
        start("200 OK", [("Content-Length", "2048")])
        yield b"x" * 2048
    app = wsgi(server, handler, route={"max_response": "1k"})
    b"".join(app(environ_of(key), lambda status, lines: seen.extend(lines)))
    assert ("Content-Length", "2048") in seen


def test_a_client_that_leaves_a_long_answer_ends_it(server, key):
    """As it would without Once: what was done is recorded by then."""
    ended = []

    def handler(_, start):
        start("200 OK", TEXT)
        try:
            while True:
                yield b"x" * 1024
        except GeneratorExit:
            ended.append(1)
            raise
    app = wsgi(server, handler, route={"max_response": "2k"})
    parts = app(environ_of(key), lambda *_: None)
    for _, got in zip(range(9), parts):
        assert got == b"x" * 1024
    assert not ended
    parts.close()
    assert ended and ask(app, environ_of(key)) == (409, "response-unavailable")


def test_start_response_with_an_exception_is_an_exception(server, key):
    def handler(_, start):
        start("200 OK", TEXT)
        try:
            raise Boom()
        except Boom:
            start("500 Oh", TEXT, sys.exc_info())
        return [b"oh"]
    assert again(wsgi(server, handler), key) == (UNKNOWN, LATER)


def test_start_response_with_an_exception_after_the_head(server, key):
    def handler(_, start):
        start("200 OK", TEXT)
        yield b"x" * 2048
        try:
            raise Boom()
        except Boom:
            start("500 Oh", TEXT, sys.exc_info())
        yield b"not sent"
    app = wsgi(server, handler, route={"max_response": "1k"})
    with pytest.raises(Boom):
        ask(app, environ_of(key))


@pytest.mark.parametrize("handler", [
    lambda environ, start: [start("200 OK", []), start("200 OK", [])],
    lambda environ, start: start("200 OK", []) and ["text"],
    lambda environ, start: start("200 OK", [(b"X-A", b"bytes")]) and [b""],
    lambda environ, start: start("200 OK", [("Content-Length", "3")]) and [b"1"],
    lambda environ, start: start("200 OK", [("Content-Length", "1")]) and [b"123"],
    lambda environ, start: [b"no head"],
    lambda environ, start: None],
    ids=["twice", "str", "bytes", "short", "long", "no head", "none"])
def test_an_answer_that_cannot_be_is_unknown(server, key, handler):
    assert again(wsgi(server, handler), key) == (UNKNOWN, LATER)


def closes(answer):
    class Closes:
        def __iter__(self):
            return iter([answer])

        @staticmethod
        def close():
            raise Boom()

    def handler(_, start):
        start("201 Created", TEXT)
        return Closes()
    return handler


def test_a_close_that_raises_does_not_change_the_answer(server, key, caplog):
    assert again(wsgi(server, closes(b"ok")), key) == ((201, b"ok"),) * 2
    assert "close()" in caplog.text and "Boom" in caplog.text
    assert again(wsgi(server, closes("str")), key + "b") == (UNKNOWN, LATER)


@pytest.mark.parametrize("error", [SystemExit, KeyboardInterrupt])
def test_what_ends_a_process_goes_on(server, key, error):
    def handler(*_):
        raise error()
    with pytest.raises(error):
        ask(wsgi(server, handler), environ_of(key))
    assert ask(wsgi(server, pays([])), environ_of(key)) == LATER


# ---- Exceptions that a layer answers ---------------------------------------------


def answers_inside(environ, start):
    del environ
    try:
        raise Boom()
    except Boom:
        start("500 Oh", TEXT)
    return [b"oh"]


def answers_with_its_word(environ, start):
    del environ
    try:
        raise Boom()
    except Boom:
        start("500 Oh", TEXT + [("Idempotency-Outcome", "applied")])
    return [b"oh"]


def answers_later(environ, start):
    try:
        raise Boom()
    except Boom as wrong:
        once.broken(environ, wrong)
    start("500 Oh", TEXT)
    return [b"oh"]


def refuses(environ, start):
    del environ
    try:
        raise KeyError()
    except KeyError:
        start("404 Not", TEXT)
    return [b"oh"]


@pytest.mark.parametrize("handler, expected", [
    (answers_inside, (UNKNOWN, LATER)), (answers_later, (UNKNOWN, LATER)),
    (answers_with_its_word, ((500, b"oh"),) * 2),
    (refuses, ((404, b"oh"),) * 2)], ids=lambda x: getattr(x, "__name__", ""))
def test_an_answer_while_an_exception_is_handled(server, key, handler, expected):
    app = wsgi(server, handler)
    assert again(app, key) == expected
    try:    # one that is handled outside says nothing
        raise Boom()
    except Boom:
        assert ask(wsgi(server, lambda _, start: start("500 Oh", TEXT) and
                        [b"own"]), environ_of(key + "b")) == (500, b"own")


def flask_app():
    flask = pytest.importorskip("flask")
    app = flask.Flask("shop")

    @app.post("/pay")
    def pay():
        what = flask.request.headers["Do"]
        if what in ("503", "422"):
            flask.abort(int(what))
        raise {"timeout": TimeoutError, "key": KeyError,
               "lookup": IndexError}.get(what, Boom)()

    @app.errorhandler(LookupError)
    def lookup(wrong):
        return "oh", 404 if isinstance(wrong, KeyError) else 500
    return app


FLASK = [("raise", UNKNOWN, LATER), ("timeout", (504, "outcome-unknown"), LATER),
         ("lookup", UNKNOWN, LATER), ("key", (404, b"oh"), (404, b"oh")),
         ("503", 503, 503), ("422", 422, 422)]


@pytest.mark.parametrize("how", ["wsgi_app", "app", "hidden"])
@pytest.mark.parametrize("do, first, second", FLASK)
def test_an_exception_in_flask_is_unknown(server, key, how, do, first, second):
    app = flask_app()
    handler = {"wsgi_app": app.wsgi_app, "app": app,
               "hidden": lambda *args: app.wsgi_app(*args)}[how]
    if how == "hidden":
        once.flask(app)
    guarded = wsgi(server, handler)
    for expected in first, second:
        got = ask(guarded, environ_of(key, HTTP_DO=do))
        assert got == expected or got[0] == expected


def django_apps():
    django = pytest.importorskip("django")
    from django.conf import settings
    from django import http, urls
    if not settings.configured:
        settings.configure(ROOT_URLCONF=__name__, ALLOWED_HOSTS=["*"],
                           SECRET_KEY="x", LOGGING_CONFIG=None,
                           MIDDLEWARE=[__name__ + ".Process"])
        django.setup()

    def pay(request):
        if request.headers["Do"] == "404":
            raise http.Http404()
        raise TimeoutError() if request.headers["Do"] == "timeout" else Boom()
    globals()["urlpatterns"] = [urls.path("pay", pay)]


class Process:
    """A middleware of Django that answers for exceptions."""

    def __init__(self, get_response):
        self.get_response = get_response

    def __call__(self, request):
        return self.get_response(request)

    @staticmethod
    def process_exception(request, _):
        from django import http
        return {"process": http.HttpResponse("oh", status=500),
                "refuse": http.HttpResponse("oh", status=409)}.get(
                    request.headers["Do"])


DJANGO = [("raise", UNKNOWN, LATER), ("timeout", (504, "outcome-unknown"), LATER),
          ("process", UNKNOWN, LATER), ("refuse", (409, b"oh"), (409, b"oh")),
          ("404", 404, 404)]


@pytest.mark.parametrize("do, first, second", DJANGO)
@pytest.mark.parametrize("how", ["wsgi", "asgi"])
def test_an_exception_in_django_is_unknown(server, key, how, do, first, second):
    django_apps()
    from django.core import asgi as django_asgi, wsgi as django_wsgi
    for expected in first, second:
        if how == "wsgi":
            got = ask(wsgi(server, django_wsgi.get_wsgi_application()),
                      environ_of(key, HTTP_DO=do))
        else:
            got = asyncio.run(post(asgi(server, django_asgi.get_asgi_application(
            )), key, headers=[("do", do)]))
        assert got == expected or got[0] == expected


# ---- Texts that a program computes ------------------------------------------------


@pytest.mark.parametrize("value", ["", 5, 0, False, b"ann", ["ann"], {"id": 1}],
                         ids=repr)
@pytest.mark.parametrize("name", ["scope", "key", "fingerprint", "label"])
def test_what_is_no_text_is_an_error(server, key, caplog, name, value):
    runs = []
    app = wsgi(server, pays(runs), **{name: lambda _: value})
    assert ask(app, environ_of(key))[0] == 500
    guarded = asgi(server, runs.append, **{name: lambda _: value})
    assert asyncio.run(post(guarded, key))[0] == 500
    assert not runs and name in caplog.text
    for word in "str that is not empty", "of type" if value != "" else "empty str":
        assert word in caplog.text


def test_nobody_and_nothing_computed(server, key):
    runs = []
    app = wsgi(server, pays(runs), scope=lambda _: None)
    assert ask(app, environ_of(key)) == (401, "scope-missing")
    nothing = {n: lambda _: None for n in ("key", "fingerprint", "label")}
    app = wsgi(server, pays(runs), **nothing)
    assert again(app, key) == ((201, b"paid 1"),) * 2


@pytest.mark.parametrize("name", ["scope", "key", "fingerprint", "label"])
def test_a_text_in_place_of_a_function_is_an_error(server, name):
    with pytest.raises(TypeError, match=name):
        wsgi(server, pays([]), **{name: "ann"})


@pytest.mark.parametrize("value", ["", 5, None, b"k"], ids=repr)
@pytest.mark.parametrize("name", ["key", "fingerprint", "label"])
def test_what_is_no_text_calls_nothing(server, name, value):
    runs = []
    options = dict({"key": lambda: "k"}, **{name: lambda: value})
    charge = once.call(group="charge", serve=server.where, **options)(
        lambda: runs.append(1))
    with pytest.raises(TypeError, match=name):
        charge()
    with pytest.raises(TypeError, match="group"):
        once.call(group="" if value == "" else 5, key=str)
    assert not runs


def test_an_object_that_is_called_with_await(server, key):
    class Charge:
        async def __call__(self, order):
            await asyncio.sleep(0)
            return "paid " + order[:0]
    charge = once.call(group="charge", key=str, serve=server.where)(Charge())
    assert asyncio.run(charge(key)) == "paid "


def test_a_generator_is_no_function_with_a_result(server):
    def charge():
        yield 1
    with pytest.raises(TypeError, match="generator"):
        once.call(group="charge", key=str, serve=server.where)(charge)


# ---- The server -----------------------------------------------------------------


def test_a_wrong_route_fails_when_the_service_starts(server, tmp_path, caplog):
    for guard in once.WSGI, once.ASGI:
        with pytest.raises(ValueError, match="finla"):
            guard(pays([]), scope=remote_user, serve=server.where,
                  route={"finla": "2xx"})
        with pytest.raises(ValueError, match="neither unix:PATH nor"):
            guard(pays([]), scope=remote_user, serve="/run/once.sock")
    (tmp_path / "empty").touch()
    with pytest.raises(ValueError, match="empty"):
        wsgi(server, pays([]), token_file=str(tmp_path / "empty"))
    assert not caplog.text


def test_a_wrong_route_fails_at_the_first_request(own, key, caplog):
    own.end()
    runs = []
    app = wsgi(own, pays(runs), route={"finla": "2xx"})
    assert "route: the server at %s" % own.where in caplog.text
    assert "Start `once serve`" in caplog.text
    assert ask(app, environ_of(key)) == (503, "store-unavailable")
    own.start()
    assert ask(app, environ_of(key))[0] == 500
    assert "finla" in caplog.text and not runs


def test_who_may_not_open_the_socket_is_told(own, key, caplog):
    app = wsgi(own, pays([]))
    text = once._why(PermissionError(13, "Permission denied"))
    assert text.startswith("Permission denied. Its group")
    own.end()
    assert ask(app, environ_of(key)) == (503, "store-unavailable")
    assert "once: begin: the server at %s" % own.where in caplog.text


@pytest.mark.parametrize("method", ["POST", "GET"])
@pytest.mark.parametrize("kind", ["wsgi", "asgi"])
def test_a_server_that_stands_still_holds_nobody_for_long(own, key, monkeypatch,
                                                          kind, method):
    """wait_ms and five seconds from the call (here less), and one for what was
    begun."""
    assert once.ANSWER_S == 5
    monkeypatch.setattr(once, "ANSWER_S", 0.5)
    runs = []
    app = {"wsgi": lambda: wsgi(own, pays(runs)),
           "asgi": lambda: asgi(own, runs.append)}[kind]()
    own.process.send_signal(signal.SIGSTOP)
    start = time.monotonic()
    for _ in range(2):      # with a connection, and without
        if kind == "wsgi":
            got = ask(app, environ_of(key, method=method))
        else:
            got = asyncio.run(post(app, key, method=method))
        assert got == (503, "store-unavailable")
    assert time.monotonic() - start < PATIENCE / 2
    own.process.send_signal(signal.SIGCONT)
    assert not runs


@pytest.mark.parametrize("kind", ["wsgi", "asgi"])
def test_an_end_that_is_not_answered_is_unknown_after_the_lease(own, key, kind):
    def handler(_, start):
        own.process.send_signal(signal.SIGSTOP)
        start("201 Created", TEXT)
        return [b"paid"]

    async def ahandler(scope, receive, send):
        own.process.send_signal(signal.SIGSTOP)
        await answer(b"paid")(scope, receive, send)
    route = {"lease": "1s"}
    start = time.monotonic()
    if kind == "wsgi":
        got = ask(wsgi(own, handler, route=route), environ_of(key))
    else:
        got = asyncio.run(post(asgi(own, ahandler, route=route), key))
    assert got == UNKNOWN and time.monotonic() - start < PATIENCE / 2
    own.process.send_signal(signal.SIGCONT)


def test_calls_while_the_server_stands_still(own, monkeypatch):
    monkeypatch.setattr(once, "ANSWER_S", 0.5)
    charge = once.call(group="charge", key=lambda: "k", serve=own.where)(
        lambda: None)
    own.process.send_signal(signal.SIGSTOP)
    start = time.monotonic()
    with pytest.raises(once.Unavailable, match=own.where):
        charge()
    assert time.monotonic() - start < PATIENCE / 2


# ---- ASGI -----------------------------------------------------------------------


def user(scope):
    return scope.get("user", "ann")


def asgi(server, handler, **more):
    return once.ASGI(handler, serve=server.where,
                     **dict({"scope": user}, **more))


def scope_of(key, body=b"pay", headers=(), method="POST", **more):
    lines = [("host", "shop.test"), ("idempotency-key", key),
             ("content-length", str(len(body))), *headers]
    return dict({"type": "http", "method": method, "path": "/pay",
                 "raw_path": b"/pay", "query_string": b"", "http_version": "1.1",
                 "scheme": "http", "root_path": "", "server": ("shop.test", 80),
                 "headers": [(n.encode(), v.encode()) for n, v in lines]}, **more)


class Line:
    """What stands between a client and an application of ASGI: a server."""

    def __init__(self, body=b"pay"):
        self.messages = asyncio.Queue()
        self.messages.put_nowait({"type": "http.request", "body": body,
                                  "more_body": False})
        self.sent = []

    def leave(self):
        self.messages.put_nowait({"type": "http.disconnect"})
        return self

    async def receive(self):
        return await self.messages.get()

    async def send(self, message):
        self.sent.append(message)

    def told(self):
        start, *parts = [m for m in self.sent if m["type"] in (
            "http.response.start", "http.response.body")]
        assert not parts[-1].get("more_body", False)
        return told(start["status"], [(n.decode(), v.decode()) for n, v in
                                      start["headers"]],
                    b"".join(m.get("body", b"") for m in parts))


async def post(app, key, line=None, **more):
    line = line or Line()
    await app(scope_of(key, **more), line.receive, line.send)
    return line.told()


async def twice(app, key, **more):
    return (await post(app, key, **more), await post(app, key, **more))


def head(status=201, *lines):
    return {"type": "http.response.start", "status": status, "headers":
            [(n.encode(), v.encode()) for n, v in lines]}


def part(body, more=False):
    return {"type": "http.response.body", "body": body, "more_body": more}


def answer(body, status=201, before=(), after=()):
    async def handler(scope, receive, send):
        del scope, receive
        for message in *before, head(status), part(body), *after:
            await send(message)
    return handler


@pytest.mark.parametrize("left", [b"", b"ay", None], ids=["all", "part", "none"])
def test_a_body_that_was_received_before_is_refused(server, key, caplog,
                                                   monkeypatch, left):
    """`left`: what comes after what an outer layer has received."""
    monkeypatch.setattr(once, "FIRST_S", 0.2)
    runs = []

    async def main():
        for body in b"pay", b"bay":
            line = Line(left or b"")
            if left is None:
                await line.receive()
            assert (await post(asgi(server, runs.append), key, line,
                               body=body))[0] == 500
    asyncio.run(main())
    assert not runs and "was read before Once" in caplog.text


def test_an_empty_body_in_chunks_is_refused(server, key):
    scope = scope_of(key, headers=[("transfer-encoding", "chunked")])
    scope["headers"] = [h for h in scope["headers"] if h[0] != b"content-length"]

    async def main():
        line = Line(b"")
        await asgi(server, None)(scope, line.receive, line.send)
        return line.told()
    assert asyncio.run(main())[0] == 500


def test_a_fingerprint_of_the_program_needs_no_body_in_asgi(server, key,
                                                           monkeypatch):
    monkeypatch.setattr(once, "FIRST_S", 0.2)
    got = []

    async def handler(scope, receive, send):
        got.append(await receive())
        await answer(b"paid")(scope, receive, send)

    async def main():
        app = asgi(server, handler, fingerprint=lambda scope: scope["print"])
        for text, status in ("1", 201), ("1", 201), ("2", 422):
            line = Line()
            await line.receive()
            assert (await post(app, key, line, print=text))[0] == status
    asyncio.run(main())
    assert [m["body"] for m in got] == [b""]


def listens(send_answer):
    """A handler that is ended by its client's leaving, as frameworks do it."""
    async def handler(scope, receive, send):
        assert (await receive())["type"] == "http.request"

        async def listen():
            while (await receive())["type"] != "http.disconnect":
                pass
        pair = [asyncio.ensure_future(listen()),
                asyncio.ensure_future(send_answer(scope, receive, send))]
        done, rest = await asyncio.wait(pair,
                                        return_when=asyncio.FIRST_COMPLETED)
        for task in rest:
            task.cancel()
        for task in done:
            task.result()
    return handler


async def slow(scope, receive, send):
    await asyncio.sleep(0.2)
    await answer(b"paid")(scope, receive, send)


async def streams(scope, receive, send):
    del scope, receive
    await send(head())
    for body in b"pa", b"id":
        await send(part(body, True))
        await asyncio.sleep(0.05)
    await send(part(b""))


@pytest.mark.parametrize("handler", [slow, streams])
def test_nobody_learns_that_the_client_has_left(server, key, handler):
    async def main():
        app = asgi(server, listens(handler))
        assert await post(app, key, Line().leave()) == (201, b"paid")
        assert await post(app, key) == (201, b"paid")
    asyncio.run(main())


def test_it_comes_after_the_answer_was_sent(server, key):
    """What is ended by a disconnect has seen its last send() return."""
    seen = []

    async def handler(_, receive, send):
        await receive()

        async def listen():
            seen.append((await receive())["type"])
        listener = asyncio.ensure_future(listen())
        await send(head())
        await send(part(b"paid"))
        seen.append("sent")
        await listener
    asyncio.run(post(asgi(server, handler), key, Line().leave()))
    assert seen == ["sent", "http.disconnect"]


def starlette_app(catch=False):
    pytest.importorskip("starlette")
    from starlette import applications, exceptions, responses, routing
    from starlette.middleware import Middleware, base

    async def pay(request):
        what = request.headers.get("do")
        if what == "stream":
            async def parts():
                yield b"pa"
                await asyncio.sleep(0.2)
                yield b"id"
            return responses.StreamingResponse(parts(), 201)
        if what == "http":
            raise exceptions.HTTPException(503)
        if what == "timeout":
            await asyncio.wait_for(asyncio.sleep(60), 0.01)
        if what:
            raise {"key": KeyError, "lookup": IndexError, "type": TypeError,
                   "again": ArithmeticError}.get(what, Boom)()
        await asyncio.sleep(0.2)
        return responses.Response("paid", 201)

    async def lookup(_, wrong):
        return responses.Response("oh", 404 if isinstance(wrong, KeyError)
                                  else 500)

    async def dispatch(request, call_next):
        try:
            return await call_next(request)
        except Boom:
            return responses.Response("caught", 500)
        except TypeError:
            return responses.Response("caught", 409)
        except ArithmeticError:
            return responses.Response("again", 201)
    layers = [Middleware(base.BaseHTTPMiddleware, dispatch=dispatch)] \
        if catch else []
    return applications.Starlette(
        routes=[routing.Route("/pay", pay, methods=["POST"])], middleware=layers,
        exception_handlers={LookupError: lookup})


STARLETTE = [("raise", UNKNOWN, LATER), ("lookup", UNKNOWN, LATER),
             ("timeout", (504, "outcome-unknown"), LATER),
             ("key", (404, b"oh"), (404, b"oh")), ("http", 503, 503)]


@pytest.mark.parametrize("how", ["around", "inside", "hidden", "started"])
@pytest.mark.parametrize("catch", [False, True])
@pytest.mark.parametrize("do, first, second", STARLETTE)
def test_an_exception_in_starlette_is_unknown(server, key, how, catch, do, first,
                                             second):
    app = starlette_app(catch)
    if how == "inside":
        guarded = app
        app.add_middleware(once.ASGI, scope=user, serve=server.where)
    elif how == "around":
        guarded = asgi(server, app)
    else:
        if how == "started":
            app.middleware_stack = app.build_middleware_stack()
        once.starlette(app)
        guarded = asgi(server, functools.partial(app))

    async def main():
        for expected in first, second:
            line = Line()
            try:
                await guarded(scope_of(key, headers=[("do", do)]), line.receive,
                              line.send)
            except (Boom, IndexError, asyncio.TimeoutError):
                pass    # Starlette raises it again, for its server's log
            got = line.told()
            assert got == expected or got[0] == expected
    asyncio.run(main())


@pytest.mark.parametrize("do, expected", [("type", (409, b"caught")),
                                          ("again", (201, b"again"))])
def test_what_a_layer_makes_of_an_exception_is_an_answer(server, key, do,
                                                        expected):
    app = asgi(server, starlette_app(catch=True))
    assert asyncio.run(twice(app, key, headers=[("do", do)])) == (expected,) * 2


@pytest.mark.parametrize("catch", [False, True])
@pytest.mark.parametrize("do", ["", "stream"])
def test_starlette_answers_clients_that_have_left(server, key, catch, do):
    async def main():
        app = asgi(server, starlette_app(catch))
        for line in Line().leave(), Line():
            assert await post(app, key, line, headers=[("do", do)]) == (
                201, b"paid")
    asyncio.run(main())


def waits(gate, body=b"paid"):
    async def handler(scope, receive, send):
        gate.started.set()
        await gate.wait()
        await answer(body)(scope, receive, send)
    return handler


class Gate(asyncio.Event):
    def __init__(self):
        super().__init__()
        self.started = asyncio.Event()


@pytest.mark.parametrize("how", ["cancel", "wait_for"])
def test_who_cancels_a_request_does_not_cancel_its_handler(server, key, how):
    """A server whose client has left, or a time-out outside."""
    async def main():
        gate, line = Gate(), Line()
        app = asgi(server, waits(gate), route={"in_flight": "wait=60s"})
        asked = app(scope_of(key), line.receive, line.send)
        if how == "cancel":
            task = asyncio.ensure_future(asked)
            await gate.started.wait()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        else:
            with pytest.raises(asyncio.TimeoutError):
                await asyncio.wait_for(asked, 0.5)
            await gate.started.wait()
        gate.set()
        assert await post(app, key) == (201, b"paid")
    asyncio.run(main())


def test_a_request_that_is_cancelled_while_it_waits_is_given_up(own, key):
    async def main():
        gate = Gate()
        app = asgi(own, waits(gate), route={"in_flight": "wait=60s"})
        first = asyncio.ensure_future(post(app, key))
        await gate.started.wait()
        second = asyncio.ensure_future(post(app, key))
        while served.open_exchanges(own) < 2:
            await asyncio.sleep(0.02)
        second.cancel()
        while served.open_exchanges(own) > 1:
            await asyncio.sleep(0.02)
        gate.set()
        assert await first == (201, b"paid")
    asyncio.run(main())


def test_a_handler_that_ends_with_its_loop_is_unknown_and_said(server, key,
                                                              caplog):
    async def main():
        gate = Gate()
        task = asyncio.ensure_future(post(asgi(server, waits(gate)), key))
        await gate.started.wait()
        return task     # asyncio.run() cancels what still runs
    asyncio.run(main())
    assert "the end of its event loop" in caplog.text
    assert asyncio.run(post(asgi(server, None), key)) == LATER


def test_a_handler_that_cancels_itself_is_unknown(server, key):
    async def handler(*_):
        asyncio.current_task().cancel()
        await asyncio.sleep(60)

    async def main():
        line = Line()
        with pytest.raises(asyncio.CancelledError):
            await asgi(server, handler)(scope_of(key), line.receive, line.send)
        assert line.told() == UNKNOWN
        assert await post(asgi(server, handler), key) == LATER
    asyncio.run(main())


def test_a_handler_that_waits_for_its_client_has_its_time(server, key):
    async def handler(scope, receive, send):
        while (await receive())["type"] != "http.disconnect":
            pass
        await answer(b"gone")(scope, receive, send)

    async def main():
        app = asgi(server, handler, route={"run": "1s"})
        await post(app, key, Line().leave())
    asyncio.run(main())


def test_a_cancelled_send_is_sent_all_the_same(server, key):
    async def handler(scope, receive, send):
        del scope, receive
        await send(head())
        task = asyncio.ensure_future(send(part(b"paid")))
        await asyncio.sleep(0)
        task.cancel()
        await task
    line = Line()

    async def main():
        with pytest.raises(asyncio.CancelledError):
            await asgi(server, handler)(scope_of(key), line.receive, line.send)
        assert line.told() == (201, b"paid")
        assert await post(asgi(server, handler), key) == (201, b"paid")
    asyncio.run(main())


# ---- What a handler of ASGI sends --------------------------------------------------

OFFERED = {"http.response.debug": {}, "http.response.early_hint": {},
           "http.response.pathsend": {}, "http.response.trailers": {},
           "http.response.zerocopysend": {}, "http.response.push": {},
           "tls": {"tls_version": 772}}
DEBUG = {"type": "http.response.debug", "info": {}}
HINT = {"type": "http.response.early_hint", "links": [b"</a>; rel=preload"]}
TRAILERS = {"type": "http.response.trailers", "headers": [],
            "more_trailers": False}


def test_only_what_is_carried_is_offered(server, key):
    seen = []

    async def handler(scope, receive, send):
        seen.append(dict(scope["extensions"]))
        await answer(b"paid")(scope, receive, send)

    async def main():
        app = asgi(server, handler)
        await post(app, key, extensions=OFFERED)
        await post(app, key, extensions=OFFERED, method="GET")
    asyncio.run(main())
    assert seen == [{n: OFFERED[n] for n in ("http.response.debug", "tls")},
                    OFFERED]


@pytest.mark.parametrize("extensions, passed", [(OFFERED, [DEBUG]), (None, [])])
def test_what_goes_beside_an_answer_is_no_body(server, key, extensions, passed):
    async def main():
        app = asgi(server, answer(b"paid", before=[DEBUG, HINT],
                                  after=[TRAILERS]))
        for expected in passed, []:
            line = Line()
            assert await post(app, key, line, extensions=extensions) == (
                201, b"paid")
            assert [m for m in line.sent if m["type"] not in (
                "http.response.start", "http.response.body")] == expected
    asyncio.run(main())


@pytest.mark.parametrize("message", [
    {"type": "http.response.pathsend", "path": "/etc/hostname"},
    {"type": "http.response.zerocopysend", "file": 0}, {"type": "new"}, head()],
    ids=lambda m: m["type"])
def test_what_cannot_be_carried_is_an_error(server, key, message):
    async def handler(scope, receive, send):
        del scope, receive
        await send(head())
        await send(message)

    async def main():
        assert await twice(asgi(server, handler), key) == (UNKNOWN, LATER)
    asyncio.run(main())


@pytest.mark.parametrize("messages", [
    [head(201, ("content-length", "9")), part(b"paid")],
    [head(201, ("content-length", "1")), part(b"paid")],
    [head(201, ("content-length", "1")), part(b"x" * 2048)],
    [part(b"paid")], [head()], [head(), part(b"paid", True)],
    [head(), part("text")], [dict(head(), headers=[("a", "b")])], []],
    ids=["short", "long", "very long", "no head", "no body", "no end", "str", "lines",
         "nothing"])
def test_an_answer_of_asgi_that_cannot_be_is_unknown(server, key, messages):
    async def handler(scope, receive, send):
        del scope, receive
        for message in messages:
            await send(message)

    async def main():
        app = asgi(server, handler, route={"max_response": "1k"})
        assert await twice(app, key) == (UNKNOWN, LATER)
    asyncio.run(main())


def test_a_long_answer_of_asgi_keeps_its_length(server, key):
    async def handler(scope, receive, send):
        del scope, receive
        await send(head(200, ("content-length", "2049")))
        await send(part(b"x" * 2048, True))
        await send(part(b"y"))
    line = Line()
    asyncio.run(post(asgi(server, handler, route={"max_response": "1k"}), key,
                     line))
    assert (b"content-length", b"2049") in line.sent[0]["headers"]


def test_what_breaks_after_its_answer_does_not_change_it(server, key):
    async def handler(scope, receive, send):
        await answer(b"paid")(scope, receive, send)
        raise Boom()

    async def main():
        line = Line()
        with pytest.raises(Boom):
            await asgi(server, handler)(scope_of(key), line.receive, line.send)
        assert line.told() == (201, b"paid")
        assert await post(asgi(server, handler), key) == (201, b"paid")
    asyncio.run(main())


# ---- Real servers ------------------------------------------------------------------

SERVER_WORDS = {
    "uvicorn": ["/usr/bin/python3", "-m", "uvicorn", "--log-level", "warning",
                "--port", "{port}", "left_asgi:app"],
    "hypercorn": ["/usr/bin/python3", "-m", "hypercorn", "-b",
                  "127.0.0.1:{port}", "left_asgi:app"],
    "daphne": ["/usr/bin/python3", "-m", "daphne", "-p", "{port}",
               "--application-close-timeout", "1", "left_asgi:app"]}


def is_there(port):
    try:
        socket.create_connection(("127.0.0.1", port)).close()
        return True
    except OSError:
        return False


def http_post(port, key, do, leave=None):
    text = (b"POST /pay HTTP/1.1\r\nHost: shop.test\r\nIdempotency-Key: %s\r\n"
            b"Do: %s\r\nConnection: close\r\nContent-Length: 3\r\n\r\npay" % (
                key.encode(), do.encode()))
    with socket.create_connection(("127.0.0.1", port)) as sock:
        sock.settimeout(PATIENCE)
        sock.sendall(text)
        if leave is not None:
            leave()
            return None
        data = b""
        while piece := sock.recv(65536):
            data += piece
    return int(data[9:12]), data.partition(b"\r\n\r\n")[2]


@pytest.mark.parametrize("do", ["plain", "stream"])
@pytest.mark.parametrize("name", list(SERVER_WORDS))
def test_a_client_leaves_a_real_server(server, key, tmp_path, name, do):
    """Its handler, which would be ended, ends by itself, and the repeat gets its
    answer. Daphne cancels what still runs a second later."""
    done = subprocess.run(["/usr/bin/python3", "-c", "import starlette, " + name],
                          capture_output=True, check=False)
    if done.returncode:
        pytest.skip(name + " is not installed")
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port = sock.getsockname()[1]
    ledger = tmp_path / "ledger"
    env = dict(os.environ, ONCE_SERVE=server.where, LEDGER=str(ledger),
               PYTHONPATH="%s:%s" % (HERE, HERE.parents[1] / "middleware/python"))
    with open(tmp_path / "log", "wb") as log:
        # pylint: disable=consider-using-with
        process = subprocess.Popen(
            [w.format(port=port) for w in SERVER_WORDS[name]], env=env,
            stdout=log, stderr=log)
    try:
        eventually(lambda: is_there(port))
        http_post(port, key, do, leave=lambda: eventually(ledger.exists))
        assert http_post(port, key, do) == (201, b"paid"), \
            (tmp_path / "log").read_text()
        assert ledger.read_text() == "run\n"
    finally:
        process.terminate()
        process.wait(PATIENCE)


logging.getLogger("once").setLevel(logging.INFO)
