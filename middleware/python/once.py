# SPDX-License-Identifier: Apache-2.0
"""
once - the contract of Idempotency-Key for Python services, by `once serve`.

    app = once.WSGI(app, scope=lambda environ: environ.get("REMOTE_USER"))
    app = once.ASGI(app, scope=lambda scope: scope["state"]["user"])

    @once.call(group="charge", key=lambda order: order.id)
    def charge(order): ...

A request goes to the server before the handler runs, and the handler's answer
before the client gets it. The server decides; this file carries. It refuses to
send a byte of an answer before the server has said that it is durable. The same
holds for a function and its result.

An exception is an unknown outcome. Frameworks answer for it before this file
sees it: WSGI and ASGI look for that where Flask, Django and Starlette do so, and
flask(), django(), starlette() and broken() are for what they cannot see.

ONCE_SERVE says where the server is, "unix:/run/once/serve.sock" or
"http://127.0.0.1:7070" with a token in the file ONCE_SERVE_TOKEN_FILE.
"""
from __future__ import annotations

import asyncio
import collections
import functools
import http.client
import inspect
import io
import json
import logging
import os
import secrets
import socket
import sys
import time
from typing import Any, Callable, Generator, Iterable, NamedTuple, Optional

__all__ = ["ASGI", "WSGI", "broken", "call", "django", "flask", "starlette",
           "Error", "Failed", "Failure", "Free", "InFlight", "Mismatch",
           "NotApplied", "Refused", "Unavailable", "Unknown", "Unstored"]

LOG = logging.getLogger("once")
START_S = 2.0       # how long a service that starts waits for its route
BEGIN_S = 1.0       # how long a begin is repeated after its first failure
ANSWER_S = 5.0      # how long the answer of a begin takes, beside its wait
ABANDON_S = 1.0     # the same of an abandon, which nobody waits for
FIRST_S = 10.0      # how long a server may give nothing of a body
IDLE_MAX = 64       # connections that wait for work; busy ones have no bound
BODY_MAX = 1 << 20  # of a request that is guarded
STREAMS = ("text/event-stream", "application/x-ndjson")
INTERNAL = frozenset(("idempotency-attempt", "idempotency-outcome",
                      "idempotency-probe", "idempotency-record",
                      "idempotency-recorded-status", "idempotency-status",
                      "idempotent-replayed"))

# What a step asks its driver for: a message, a pause (seconds), or to run a
# function. A driver sends back (code, head, body), or throws Away; or what the
# function returns or raises.
Steps = Generator[Any, Any, Any]


class Message(NamedTuple):
    """What the server is asked, and until when (monotonic) it may answer."""

    data: bytes
    until: float


class Away(Exception):
    """The server did not answer, or not all of it."""


class Answer(NamedTuple):
    """What the client gets; `own`: it is the handler's."""

    status: int
    headers: list
    body: bytes
    own: bool = False


def _problem(code: str, status: int, title: str, detail: str, state: str,
             marker: str) -> Answer:
    body = {"type": "urn:problem-type:once:" + code, "title": title,
            "status": status, "detail": detail, "code": code,
            "retryable": True, "safe_new_key": False, "state": state,
            "error": {"type": "api_error", "code": code, "message": detail}}
    lines = [("Content-Type", "application/problem+json"),
             ("Cache-Control", "no-store"), ("Idempotency-Status", marker)]
    return Answer(status, lines + [("Retry-After", "1")] * (status == 503),
                  json.dumps(body, separators=(",", ":")).encode())


UNAVAILABLE = _problem(
    "store-unavailable", 503, "The idempotency store is unavailable",
    "Nothing was done now. Send the same key again after the time in "
    "Retry-After.", "any", "unavailable")
UNKNOWN = _problem(
    "outcome-unknown", 502, "The outcome of this request is not known",
    "It may have taken effect. Do not use a new key: find out first.",
    "indeterminate", "indeterminate")


# ---- The server -------------------------------------------------------------


class _Server:
    """Where the server is, and how it is asked."""

    def __init__(self, where: Optional[str], token_file: Optional[str]) -> None:
        where = where or os.environ.get("ONCE_SERVE", "unix:/run/once/serve.sock")
        token_file = token_file or os.environ.get("ONCE_SERVE_TOKEN_FILE")
        self.where = where
        self.path, self.host, self.port = _address(where)
        line = "Authorization: Bearer %s\r\n" % _token(token_file) \
            if token_file else ""
        self.start = "Host: once\r\n%sContent-Type: application/vnd.once\r\n" \
            "Content-Length: " % line
        self.idle: Any = collections.deque()

    def message(self, path: str, head: dict, body: bytes,
                seconds: float) -> Message:
        line = json.dumps(head).encode() + b"\n"
        return Message(b"POST /v1/%s HTTP/1.1\r\n%s%d\r\n\r\n%s%s" % (
            path.encode(), self.start.encode(), len(line) + len(body), line,
            body), time.monotonic() + seconds)

    def take(self, loop: Any = None) -> Any:
        """An idle connection, of this process and loop: a child has none of
        its parent's."""
        while True:
            try:
                pid, of, connection = self.idle.pop()
            except IndexError:
                return None
            if (pid, of) == (os.getpid(), loop):
                return connection

    def give(self, connection: Any, loop: Any = None) -> bool:
        if len(self.idle) >= IDLE_MAX:
            return False
        self.idle.append((os.getpid(), loop, connection))
        return True

    def away(self, wrong: BaseException) -> Away:
        """The other connections have ended, too, if the server was restarted."""
        self.idle.clear()
        return Away(_why(wrong))

    def said(self, path: str, text: Any) -> str:
        return "once: %s: the server at %s: %s" % (path, self.where, text)


def _address(where: str) -> tuple:
    """(path of a socket file, host, port)."""
    if where.startswith("unix:"):
        return where[5:], "", 0
    host, _, port = where.replace("http://", "", 1).rpartition(":")
    if not host or not port.isdigit():
        raise ValueError("once: serve: %r is neither unix:PATH nor "
                         "http://127.0.0.1:PORT" % where)
    return None, host.strip("[]"), int(port)


def _token(file: str) -> str:
    with open(file, encoding="ascii") as f:
        token = f.readline().strip()
    if not token:
        raise ValueError("once: token_file: the first line of %s is empty" % file)
    return token


def _why(wrong: BaseException) -> str:
    """What a person reads of it, with what to do next."""
    if isinstance(wrong, (asyncio.TimeoutError, TimeoutError, socket.timeout)):
        return "it did not answer in time. Is it stopped, or its disk full?"
    text = getattr(wrong, "strerror", None) or str(wrong) or type(wrong).__name__
    if isinstance(wrong, (FileNotFoundError, ConnectionRefusedError)):
        return text + ". Start `once serve` there, or correct ONCE_SERVE"
    if isinstance(wrong, PermissionError):
        return text + ". Its group has to have this process' user"
    return text


def _answer_of(lines: list) -> tuple:
    """(HTTP status, bytes that follow) of an answer's header."""
    for line in lines[1:]:
        if line[:15].lower() == b"content-length:":
            return int(lines[0][9:12]), int(line[15:])
    raise ValueError("no Content-Length")


def _split(code: int, data: bytes) -> tuple:
    line, _, body = data.partition(b"\n")
    return code, json.loads(line), body


async def _adrive(steps: Steps, server: _Server, do: Optional[Callable] = None
                  ) -> Any:
    """Does what the steps ask for, by asyncio."""
    do = do or _ado
    try:
        step = next(steps)
        while True:
            try:
                told = await do(server, step)
            except GeneratorExit:       # the loop is gone: nothing can be told
                raise
            except BaseException as wrong:
                step = steps.throw(wrong)
            else:
                step = steps.send(told)
    except StopIteration as end:
        return end.value


def _drive(steps: Steps, server: _Server) -> Any:
    """The same on this thread: _do() never waits."""
    try:
        _adrive(steps, server, _do).send(None)
    except StopIteration as end:
        return end.value


async def _do(server: _Server, step: Any) -> Any:
    if isinstance(step, float):
        return time.sleep(step)
    if callable(step):
        return step()
    try:
        return _ask(server, step)
    except (OSError, ValueError) as wrong:
        raise server.away(wrong) from None


async def _ado(server: _Server, step: Any) -> Any:
    if isinstance(step, float):
        return await asyncio.sleep(step)
    if callable(step):
        return await step()
    try:
        return await asyncio.wait_for(
            _aask(server, step.data), max(step.until - time.monotonic(), 0))
    except (OSError, ValueError, EOFError, asyncio.LimitOverrunError,
            asyncio.TimeoutError) as wrong:
        raise server.away(wrong) from None


def _ask(server: _Server, message: Message, keep: bool = True) -> tuple:
    sock = server.take() or _connect(server, message.until)
    kept = False
    try:
        _set_time(sock, message.until)
        sock.sendall(message.data)
        data = _receive(sock, message.until, b"", lambda d: b"\r\n\r\n" in d)
        header, _, data = data.partition(b"\r\n\r\n")
        code, size = _answer_of(header.split(b"\r\n"))
        data = _receive(sock, message.until, data, lambda d: len(d) >= size)
        kept = keep and server.give(sock)
        return _split(code, data)
    finally:
        if not kept:
            sock.close()


def _set_time(sock: socket.socket, until: float) -> None:
    left = until - time.monotonic()
    if left <= 0:
        raise socket.timeout()
    sock.settimeout(left)


def _connect(server: _Server, until: float) -> socket.socket:
    if server.path is None:
        return socket.create_connection((server.host, server.port),
                                        max(until - time.monotonic(), 0.001))
    sock = socket.socket(socket.AF_UNIX)
    try:
        _set_time(sock, until)
        sock.connect(server.path)
    except BaseException:
        sock.close()
        raise
    return sock


def _receive(sock: socket.socket, until: float, data: bytes,
             is_whole: Callable) -> bytes:
    while not is_whole(data):
        _set_time(sock, until)
        part = sock.recv(1 << 18)
        if not part:
            raise OSError("the connection ended before the answer")
        data += part
    return data


async def _aask(server: _Server, data: bytes) -> tuple:
    loop = asyncio.get_running_loop()
    pair = server.take(loop)
    if pair is None:
        pair = await (asyncio.open_unix_connection(server.path) if server.path
                      else asyncio.open_connection(server.host, server.port))
    reader, writer = pair
    kept = False
    try:
        writer.write(data)
        await writer.drain()
        header = await reader.readuntil(b"\r\n\r\n")
        code, size = _answer_of(header.split(b"\r\n"))
        data = await reader.readexactly(size)
        kept = server.give(pair, loop)
        return _split(code, data)
    finally:
        if not kept:
            writer.close()


def _repeat(server: _Server, path: str, head: dict, body: bytes,
            seconds: float, after_s: float) -> Steps:
    """Every call may be repeated. None: the server is away, for so long since
    the call, or since the first failure."""
    until = time.monotonic() + seconds
    last, pause = until, 0.05
    while True:
        left = until - time.monotonic()
        try:
            told = yield server.message(path, head, body, left)
            if told[0] != 503:
                return told
            why = told[1].get("text")
        except Away as away:
            why = away
        LOG.warning("%s", server.said(path, why))
        last = min(last, time.monotonic() + after_s)
        if time.monotonic() + pause > last:
            return None
        yield pause
        pause = min(2 * pause, 1.0)
        if path.endswith("begin"):
            head = dict(head, again=True)


def _abandon(server: _Server, head: dict) -> Steps:
    """It was not run, and will not be. Who is away finds that out himself."""
    try:
        yield server.message("abandon", head, b"", ABANDON_S)
    except Away:
        pass


def _begin(server: _Server, path: str, head: dict, body: bytes,
           wait_s: float) -> Steps:
    """None: the server is away, and what it might have begun is abandoned. So
    it is if this is cancelled."""
    try:
        told = yield from _repeat(server, path, head, body, wait_s + ANSWER_S,
                                  BEGIN_S)
    except GeneratorExit:
        raise
    except BaseException:
        yield from _abandon(server, {"id": head["id"]})
        raise
    if told is None:
        yield from _abandon(server, {"id": head["id"]})
    return told


def _tell(server: _Server, path: str, head: dict, body: bytes,
          lease_ms: int) -> Steps:
    """What became of what was begun. None: the server is away."""
    told = yield from _repeat(server, path, head, body, lease_ms / 1000,
                              lease_ms / 1000)
    if told is not None and told[0] != 200:
        LOG.error("%s", server.said(path, told[1].get("text")))
    return told


# Tasks that nobody else holds. An event loop alone would forget them.
TASKS: set = set()


async def _shielded(work: Any, may_end: Callable) -> Any:
    """Runs it as a task of its own. Who cancels this one (a server whose client
    has left, a framework, a time-out) cancels that one only if it may end."""
    task = asyncio.ensure_future(work)
    TASKS.add(task)
    task.add_done_callback(TASKS.discard)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        if not task.done() and may_end():
            task.cancel()
        elif not task.done():
            LOG.info("once: a request was cancelled: its handler goes on, and "
                     "what it answers is recorded")
        raise


# ---- One request --------------------------------------------------------------


class _Refused(Exception):
    """The program is wrong: the client gets 500, and the handler does not run."""


class _Absent:
    """In the place of a framework's class: nothing is one."""


READ_BEFORE = ("its body was read before Once, or its client left before its end. "
               "Put Once outside of the layer that reads bodies, or let that "
               "layer put the body back, or use the option fingerprint")
FAULT = Answer(500, [("Content-Type", "text/plain")],
               b"The service is set up wrongly: see its log.\n")


class _Exchange:
    """One request, as steps for a driver."""

    def __init__(self, server: _Server, route: Any, head: dict, body: bytes,
                 bypass: bool, blind: bool) -> None:
        self.server, self.route, self.head = server, route, head
        self.body, self.bypass, self.blind = body, bypass, blind
        self.run: dict = {}
        self.wrong: Optional[BaseException] = None
        self.seen: Optional[BaseException] = None

    def begin(self, wait_s: float) -> Steps:
        """"run", the lines that are added to an answer that passes, or an
        Answer."""
        told = yield from _begin(self.server, "begin", self.head, self.body,
                                 wait_s)
        if told is None:
            return [] if self.bypass else UNAVAILABLE
        code, reply, rest = told
        if code != 200:
            LOG.error("%s", self.server.said("begin", reply.get("text")))
            return UNAVAILABLE if code == 401 else FAULT
        if reply["do"] == "send":
            return Answer(reply["status"], reply["headers"], rest)
        if reply["do"] == "pass":
            return reply.get("headers", [])
        self.run = reply
        return "run"

    def refuse(self, why: str) -> Steps:
        """It was begun, and no handler runs for it."""
        LOG.error("once: %s", why)
        yield from _abandon(self.server, {"token": self.run["token"],
                                          "route": self.route})
        return FAULT

    def handler_lines(self) -> list:
        """What the handler gets beside the client's header."""
        lines = {"Idempotency-Attempt": str(self.run["attempt"]),
                 "Idempotency-Record": self.run["record"],
                 "Idempotency-Key": self.run.get("key")}
        return [(n, v) for n, v in lines.items() if v is not None]

    def mark(self, wrong: Optional[BaseException] = None) -> None:
        """Something has answered for this exception, or is going to."""
        self.wrong = self.wrong or wrong or RuntimeError("once.broken()")

    def look(self, status: int, outer: Optional[BaseException]) -> None:
        """An answer of 5xx that begins while an exception is handled is that
        exception. (A framework's own, such as abort(503), is an answer.)"""
        wrong = sys.exc_info()[1]
        if wrong is not None and wrong is not outer and status >= 500 and \
                not _is_answer(wrong):
            self.mark(wrong)

    def is_broken(self, status: int, lines: Iterable) -> bool:
        """What a handler says of its outcome is stronger. An exception that was
        seen on its way counts if the answer is 5xx: a layer may try again."""
        if status >= 500:
            self.wrong = self.wrong or self.seen
        return self.wrong is not None and not any(
            n.lower() == "idempotency-outcome" for n, _ in lines)

    def _tell(self, path: str, more: dict, body: bytes) -> Steps:
        return (yield from _tell(
            self.server, path,
            dict(more, token=self.run["token"], route=self.route), body,
            self.run["lease_ms"]))

    def is_long(self, size: int, lines: Iterable) -> bool:
        """It is sent as it comes, and recorded as not kept."""
        return size > self.run["max_response"] or any(
            n.lower() == "content-type" and
            v.split(";")[0].strip().lower() in STREAMS for n, v in lines)

    def end(self, status: int, lines: list, body: Optional[bytes]) -> Steps:
        """The Answer that the client gets. None: the body is a stream."""
        more: dict = {"status": status, "headers": lines}
        if body is None:
            more["stream"] = True
        try:
            told = yield from self._tell("end", more, body or b"")
        except (TypeError, ValueError) as wrong:    # no JSON
            LOG.error("once: the handler's answer cannot be told: %s", wrong)
            return (yield from self.broken(502))
        if told is not None and told[0] == 422:     # it cannot be carried
            return (yield from self.broken(502))
        if told is None or told[0] != 200:
            return UNKNOWN
        own = told[1]["do"] == "own"
        return Answer(told[1]["status"], told[1]["headers"],
                      (body or b"") if own else told[2], own)

    def broken(self, status: int) -> Steps:
        """The handler ended without an answer: what it did is not known. None:
        nobody guards it, so it breaks as it would without Once."""
        told = yield from self._tell("broken", {"status": status}, b"")
        if told is None or told[0] != 200:
            return UNKNOWN
        return Answer(told[1]["status"], told[1]["headers"], told[2]) \
            if told[1]["do"] == "send" else None

    def broke(self, wrong: BaseException) -> Steps:
        return (yield from self.broken(_status_of(wrong)))

    def answered(self, status: int, lines: list, body: bytes) -> Steps:
        """An exception, and this in its place. What the framework has logged is
        not logged again."""
        LOG.error("once: %s was answered with %d: what the handler did is not "
                  "known", type(self.wrong).__name__, status)
        told = yield from self.broke(self.wrong)
        return told or Answer(status, lines, body, True)


def _status_of(wrong: Optional[BaseException]) -> int:
    return 504 if isinstance(wrong, (TimeoutError, asyncio.TimeoutError,
                                     socket.timeout)) else 502


def _log_broke(wrong: BaseException) -> None:
    if isinstance(wrong, asyncio.CancelledError):
        LOG.error("once: the handler was cancelled, by itself or by the end of "
                  "its event loop: what it did is not known")
    else:
        LOG.error("once: the handler broke", exc_info=wrong)


class _Guard:
    """What WSGI and ASGI have in common: the options."""

    def __init__(self, app: Callable, scope: Optional[Callable] = None,
                 route: Any = None, key: Optional[Callable] = None,
                 fingerprint: Optional[Callable] = None,
                 label: Optional[Callable] = None, bypass: bool = False,
                 serve: Optional[str] = None,
                 token_file: Optional[str] = None) -> None:
        """
        `scope` tells who has authenticated, of environ or of the ASGI scope;
        `route` has the options of the directives, or is a name that the server
        knows. `key`, `fingerprint` and `label` compute what headers or the
        server would say. `bypass` lets requests pass while the server is away.
        """
        self.app, self.bypass = _watched(app), bypass
        self.route: Any = {} if route is None else route
        self.computed = [(n, f) for n, f in (
            ("scope", scope), ("key", key), ("fingerprint", fingerprint),
            ("label", label)) if f is not None]
        given = self.route if isinstance(self.route, dict) else {}
        if bypass and (given.get("lost"), given.get("store_failure")) != (
                "takeover", "bypass"):
            raise ValueError("bypass needs lost=takeover and "
                             "store_failure=bypass in the route")
        if scope is None and isinstance(self.route, dict) and \
                given.get("scope") != "off":
            raise ValueError("scope: who is the caller? Or \"scope\": \"off\"")
        for name, function in self.computed:
            if not callable(function):
                raise TypeError("once: %s: a function that returns a text is "
                                "needed, not %s" % (name, _kind(function)))
        self.limits: dict = {}      # not known yet
        self.server = _Server(serve, token_file)
        self._ask_route()

    def _ask_route(self) -> None:
        """A route that cannot be fails here, when the service starts, or at the
        first request if the server is away. A connection would be one of the
        process that starts, not of its children: it is not kept."""
        asked = self.server.message("route", {"route": self.route}, b"", START_S)
        try:
            code, reply, _ = _ask(self.server, asked, keep=False)
        except (OSError, ValueError) as wrong:
            LOG.warning("%s. The first request asks again",
                        self.server.said("route", _why(wrong)))
            return
        if code == 422:
            raise ValueError(self.server.said("route", reply.get("text")))
        if code == 200:
            self.limits = reply
        else:
            LOG.error("%s", self.server.said("route", reply.get("text")))

    def allowed(self) -> Steps:
        """What the route allows is known. Else the Answer; [] lets it pass."""
        if self.limits:
            return None
        told = yield from _repeat(self.server, "route", {"route": self.route},
                                  b"", ANSWER_S, BEGIN_S)
        if told is None:
            return [] if self.bypass else UNAVAILABLE
        if told[0] == 200:
            self.limits = told[1]
            return None
        LOG.error("%s", self.server.said("route", told[1].get("text")))
        return UNAVAILABLE if told[0] == 401 else FAULT

    @property
    def most(self) -> int:
        """How much of a body is read: one byte more than is allowed is a 413."""
        return self.limits["max_request"] + 1

    def begin(self, x: _Exchange) -> Steps:
        """A body that nobody can see is no request: its handler does not run.
        What is not guarded passes."""
        told = yield from x.begin(self.limits["wait_ms"] / 1000)
        if x.blind and told == "run":
            told = yield from x.refuse(READ_BEFORE)
        elif x.blind and isinstance(told, Answer):
            LOG.error("once: a request is refused: %s", READ_BEFORE)
            told = FAULT
        return told

    def exchange(self, source: Any, method: str, target: str, lines: list,
                 body: Optional[bytes]) -> _Exchange:
        """`body`: None is one that was read before Once."""
        head = {"id": secrets.token_hex(16), "method": method, "target": target,
                "headers": lines, "route": self.route}
        for name, compute in self.computed:
            value = compute(source)
            if value is not None:
                head[name] = _text(name, value)
        blind = body is None and "fingerprint" not in head
        if blind:       # it is like no other request, and so gets no replay
            head["fingerprint"] = secrets.token_hex(16)
        return _Exchange(self.server, self.route, head, body or b"",
                         self.bypass, blind)


def _text(name: str, value: Any, error: type = _Refused) -> str:
    """Whatever else it is would be one text for many: no str() of it."""
    if not isinstance(value, str) or not value:
        raise error("%s is %s: a str that is not empty is needed" % (
            name, _kind(value)))
    return value


def _kind(value: Any) -> str:
    return "an empty str" if value == "" else "of type " + type(value).__name__


# ---- Exceptions that a framework answers -----------------------------------------

# A raised answer: what the handler said, not what befell it.
ANSWERS = (("werkzeug.exceptions", "HTTPException"),
           ("starlette.exceptions", "HTTPException"),
           ("litestar.exceptions", "HTTPException"))


def _loaded(module: str, name: str) -> Any:
    """A class of a framework. What is not loaded is not used."""
    return getattr(sys.modules.get(module), name, _Absent)


def _is_answer(wrong: BaseException) -> bool:
    return any(isinstance(wrong, _loaded(*name)) for name in ANSWERS)


def broken(source: Any, exception: Optional[BaseException] = None) -> None:
    """
    What the handler of this request did is not known, whatever is answered: for
    a layer between Once and the handler that turns an exception into an answer.
    `source` is the request's environ, or its ASGI scope.
    """
    x = source.get("once.exchange")
    if x is not None:
        x.mark(exception)


def _watched(app: Any) -> Any:
    """Where the application can be seen, nobody has to think of it."""
    owner = getattr(app, "__self__", app)
    if isinstance(owner, _loaded("flask", "Flask")):
        flask(owner)
    elif isinstance(owner, _loaded("django.core.handlers.base", "BaseHandler")):
        django(owner)
    elif isinstance(owner, _loaded("starlette.applications", "Starlette")):
        starlette(owner)
    else:
        _watch_layers(app)
    return app


def flask(app: Any) -> None:
    """An exception that this Flask application answers with 5xx, by itself or by
    an error handler, is unknown. Not abort(): that is an answer."""
    # pylint: disable=import-outside-toplevel,import-error
    from flask import request
    if vars(app).get("once_watched"):
        return
    app.once_watched = True
    unhandled, handled = app.handle_exception, app.handle_user_exception

    def handle_exception(wrong: Exception) -> Any:
        broken(request.environ, wrong)
        return unhandled(wrong)

    def handle_user_exception(wrong: Exception) -> Any:
        told = handled(wrong)
        if not _is_answer(wrong):
            told = app.make_response(told)
            if told.status_code >= 500:
                broken(request.environ, wrong)
        return told
    app.handle_exception = handle_exception
    app.handle_user_exception = handle_user_exception


def django(handler: Any = None) -> None:
    """An exception that Django answers with 500, or a middleware's
    process_exception with 5xx, is unknown. `handler` is what
    get_wsgi_application() or get_asgi_application() returned."""
    # pylint: disable=import-outside-toplevel,import-error
    from django.core.signals import got_request_exception
    got_request_exception.connect(_django_broke, dispatch_uid="once")
    if handler is None or vars(handler).get("once_watched"):
        return
    handler.once_watched = True
    process = handler.process_exception_by_middleware

    def process_exception(wrong: Exception, request: Any) -> Any:
        told = process(wrong, request)
        if told is not None and told.status_code >= 500:
            _django_broke(request=request)
        return told
    handler.process_exception_by_middleware = process_exception


def _django_broke(request: Any = None, **_: Any) -> None:
    source = getattr(request, "environ", None) or \
        getattr(request, "scope", None) or {}
    broken(source, sys.exc_info()[1])


def starlette(app: Any) -> None:
    """An exception that leaves the handlers of this Starlette or FastAPI
    application, and that a middleware answers with 5xx, is unknown."""
    # pylint: disable=import-outside-toplevel,import-error
    from starlette.middleware import Middleware
    if app.middleware_stack is not None:
        _watch_layers(app.middleware_stack)
    elif not any(m.cls is _Watch for m in app.user_middleware):
        app.user_middleware.append(Middleware(_Watch))  # the innermost


def _watch_layers(app: Any) -> None:
    """The same inside of Starlette's add_middleware(once.ASGI): the layers are
    there already, each in the attribute `app` of the last."""
    inner = _loaded("starlette.middleware.exceptions", "ExceptionMiddleware")
    while isinstance(getattr(app, "__dict__", None), dict) and \
            "app" in vars(app) and not isinstance(app, (inner, _Watch)):
        if isinstance(app.app, inner):
            app.app = _Watch(app.app)
        app = app.app


class _Watch:
    """Sees an exception before the layers between it and Once do."""

    def __init__(self, app: Callable) -> None:
        self.app = app

    async def __call__(self, scope: dict, receive: Callable,
                       send: Callable) -> None:
        x = scope.get("once.exchange")

        async def seen(message: dict) -> None:
            if message["type"] == "http.response.start":
                x.look(message["status"], None)
            await send(message)
        try:
            await self.app(scope, receive, seen if x else send)
        except GeneratorExit:
            raise
        except BaseException as wrong:
            if x:
                x.seen = wrong
            raise


# ---- WSGI ---------------------------------------------------------------------


class WSGI(_Guard):
    """Middleware for WSGI: app = once.WSGI(app, scope=...)."""

    def __call__(self, environ: dict, start_response: Callable) -> Iterable:
        told = _drive(self.allowed(), self.server)
        if isinstance(told, Answer):
            return self._send(told, start_response)
        if told is not None:
            return self.app(environ, start_response)
        try:
            return self._guarded(environ, start_response)
        except _Refused as wrong:
            LOG.error("once: a request is refused: %s", wrong)
            return self._send(FAULT, start_response)

    def _guarded(self, environ: dict, start_response: Callable) -> Iterable:
        most, lines = self.most, list(self._lines(environ))
        body = _body_of(environ, most)
        over = body is not None and len(body) >= most
        if over:                # what is not guarded gets all of it
            environ["wsgi.input"] = io.BufferedReader(
                _Rest(body, environ["wsgi.input"]))
        elif body is not None:
            environ["wsgi.input"] = io.BytesIO(body)
            environ["CONTENT_LENGTH"] = str(len(body))
            environ.pop("HTTP_TRANSFER_ENCODING", None)
        x = self.exchange(environ, environ["REQUEST_METHOD"],
                          self._target(environ), lines, body)
        # It may have been read by what computes texts.
        if body is not None and not over:
            environ["wsgi.input"] = io.BytesIO(body)
        for name in INTERNAL:
            environ.pop("HTTP_" + name.upper().replace("-", "_"), None)
        told = _drive(self.begin(x), self.server)
        if told == "run" and over:
            told = _drive(x.refuse("the body is longer than max_request of this "
                                   "middleware"), self.server)
        if isinstance(told, Answer):
            return self._send(told, start_response)
        if told == "run":
            for name, value in x.handler_lines():
                environ["HTTP_" + name.upper().replace("-", "_")] = value
            return self._run(x, environ, start_response)
        return self.app(environ, lambda status, lines, *more: start_response(
            status, list(lines) + [tuple(h) for h in told], *more))

    @staticmethod
    def _target(environ: dict) -> str:
        """As the client sent it, where the service's server says so."""
        raw = environ.get("RAW_URI") or environ.get("REQUEST_URI")
        query = environ.get("QUERY_STRING")
        return raw or environ.get("SCRIPT_NAME", "") + environ["PATH_INFO"] + \
            ("?" + query if query else "")

    @staticmethod
    def _lines(environ: dict) -> Iterable:
        for name, value in environ.items():
            if name.startswith("HTTP_"):
                yield name[5:].replace("_", "-").title(), value
            elif name in ("CONTENT_TYPE", "CONTENT_LENGTH") and value:
                yield name.replace("_", "-").title(), value

    @staticmethod
    def _start(answer: Answer, start_response: Callable,
               *more: tuple) -> None:
        start_response("%d %s" % (answer.status, http.client.responses.get(
            answer.status, "-")), [tuple(h) for h in answer.headers
                                   if h[0].lower() != "content-length"] +
                       list(more))

    def _send(self, answer: Answer, start_response: Callable) -> list:
        self._start(answer, start_response, *(
            () if answer.status in (204, 304)
            else (("Content-Length", str(len(answer.body))),)))
        return [answer.body]

    def _run(self, x: _Exchange, environ: dict,
             start_response: Callable) -> Iterable:
        held = _Held(x)
        environ["once.exchange"] = x
        try:
            held.call(self.app, environ)
            while not x.is_long(held.size, held.lines or ()) and held.more():
                pass
            if held.lines is None:
                raise ValueError("the handler has not called start_response")
        except BaseException as wrong:
            _log_broke(wrong)
            held.shut()
            told = _drive(x.broke(wrong), self.server)
            if told is None or not isinstance(wrong, Exception):
                raise
            return self._send(told, start_response)
        return self._end(x, held, start_response)

    def _end(self, x: _Exchange, held: "_Held",
             start_response: Callable) -> Iterable:
        body = b"".join(held.parts)
        if x.is_broken(held.status, held.lines):
            told = _drive(x.answered(held.status, held.lines, body), self.server)
        else:
            told = _drive(x.end(held.status, held.lines, None if held.open else
                                body), self.server)
        if not (told.own and held.open):
            held.shut()
            return self._send(told, start_response)
        held.told = True
        self._start(told, start_response, *(
            h for h in held.lines if h[0].lower() == "content-length"))
        return held


def _body_of(environ: dict, most: int) -> Optional[bytes]:
    """The body, up to so many bytes. None: it was read before."""
    source, length = environ["wsgi.input"], environ.get("CONTENT_LENGTH") or ""
    chunked = bool(environ.get("HTTP_TRANSFER_ENCODING"))
    if length and not (length.isascii() and length.isdigit()):
        raise _Refused("its Content-Length is no number")
    if not length and not chunked and not environ.get("wsgi.input_terminated"):
        return b""
    fresh = _is_fresh(source, int(length or 0))
    if fresh is False or (fresh is None and not length and chunked):
        return None
    most = min(int(length), most) if length else most
    body = _read(source, most)
    if not length or len(body) == most:
        return body
    if fresh or body:
        raise _Refused(READ_BEFORE)     # a part of it is another request
    return None


def _read(source: Any, most: int) -> bytes:
    """wsgiref and Flask's development server give their socket, which does not
    end where the body does."""
    raw = getattr(source, "raw", None)
    sock = getattr(raw, "_sock", None) if isinstance(raw, socket.SocketIO) \
        else None
    before = sock.gettimeout() if sock else None
    body, part = b"", b"-"
    try:
        if sock:
            sock.settimeout(FIRST_S)
        while part and len(body) < most:
            part = source.read(most - len(body))
            body += part
    except (TimeoutError, socket.timeout):
        pass
    finally:
        if sock:
            sock.settimeout(before)
    return body


def _is_fresh(source: Any, length: int) -> Optional[bool]:
    """Whether nobody has read of it. None: it does not say."""
    if type(source).__module__ == "gunicorn.http.body":
        parser = getattr(source.reader, "parser", None)
        if source.buf.getbuffer().nbytes:
            return False
        if hasattr(source.reader, "length"):
            return source.reader.length == length
        return inspect.isgenerator(parser) and \
            inspect.getgeneratorstate(parser) == inspect.GEN_CREATED
    try:
        if source.seekable():   # whoever has read it: it is there again
            source.seek(0)
            return True
    except (AttributeError, OSError, ValueError):
        pass
    return None


class _Rest(io.RawIOBase):
    """What was read of a body, and then the rest of it."""

    def __init__(self, first: bytes, rest: Any) -> None:
        super().__init__()
        self.first, self.rest = first, rest

    def readable(self) -> bool:
        return True

    def readinto(self, out: Any) -> int:
        part = self.first[:len(out)] or self.rest.read(len(out))
        self.first = self.first[len(out):]
        out[:len(part)] = part
        return len(part)


class _Held:
    """An answer of WSGI: the parts that are here, and then the rest."""

    def __init__(self, x: _Exchange) -> None:
        self.x, self.outer = x, sys.exc_info()[1]
        self.status, self.lines = 0, None
        self.source: Any = ()
        self.rest: Any = iter(())
        self.parts: Any = collections.deque()
        self.size, self.open, self.told = 0, True, False

    def call(self, app: Callable, environ: dict) -> None:
        self.source = app(environ, self._begin)
        self.rest = iter(self.source)

    def _begin(self, status: str, lines: list, exc_info: Any = None) -> Callable:
        """`exc_info`: this is the answer to an exception."""
        if exc_info:
            self.x.mark(exc_info[1])
            if self.told:
                raise exc_info[1]
        elif self.lines is not None:
            raise AssertionError("start_response was called before")
        self.status, self.lines = int(status.split()[0]), list(lines)
        self.x.look(self.status, self.outer)
        return self._add

    def _add(self, part: bytes) -> None:
        if not isinstance(part, bytes):
            raise TypeError("a part of an answer is %s, not bytes" % _kind(part))
        self.parts.append(part)
        self.size += len(part)

    def more(self) -> bool:
        for part in self.rest:
            self._add(part)
            return True
        self.open = False
        return False

    def __iter__(self) -> Iterable:
        """What write() is given goes before what is iterated after it."""
        while True:
            while self.parts:
                yield self.parts.popleft()
            if not self.more():
                break
        yield from self.parts

    def shut(self) -> None:
        """The answer is decided: what this raises does not change it."""
        try:
            self.close()
        except Exception as wrong:  # pylint: disable=broad-except
            LOG.error("once: close() of the handler's answer", exc_info=wrong)

    def close(self) -> None:
        source, self.source = self.source, ()
        getattr(source, "close", lambda: None)()


# ---- ASGI ---------------------------------------------------------------------

# What a handler may send beside its answer. It is passed on at once: it is for the
# server, and not for the client.
PASSED = ("http.response.debug", "http.response.template")
# The client would get it before the record, or a replay would not have it.
DROPPED = ("http.response.early_hint", "http.response.push",
           "http.response.trailers")


def _texts(lines: Iterable) -> list:
    return [[n.decode("latin-1"), v.decode("latin-1")] for n, v in lines]


def _bytes(lines: Iterable) -> list:
    return [(n.encode("latin-1"), v.encode("latin-1")) for n, v in lines]


class ASGI(_Guard):
    """Middleware for ASGI: app = once.ASGI(app, scope=...)."""

    async def __call__(self, scope: dict, receive: Callable,
                       send: Callable) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        told = await _adrive(self.allowed(), self.server)
        if isinstance(told, Answer):
            await self._send(told, send)
        elif told is not None:
            await self.app(scope, receive, send)
        else:
            await self._body(scope, receive, send)

    async def _body(self, scope: dict, receive: Callable,
                    send: Callable) -> None:
        body = _Body(scope, receive, self.most)
        try:
            if not await body.read():
                return
            x = self.exchange(scope, scope["method"], self._target(scope),
                              _texts(scope["headers"]), body.compared())
        except _Refused as wrong:
            LOG.error("once: a request is refused: %s", wrong)
            await self._send(FAULT, send)
            return
        # An attempt that waits is given up with its client. One that runs is not.
        passes = await _shielded(self._guarded(x, scope, body, send),
                                 lambda: not x.run)
        if passes is not None:
            await self.app(self._inner(scope), body.again, _adding(send, passes))

    async def _guarded(self, x: _Exchange, scope: dict, body: "_Body",
                       send: Callable) -> Any:
        """The lines that are added to an answer that passes."""
        told = await _adrive(self.begin(x), self.server)
        if told == "run" and body.is_over():
            told = await _adrive(x.refuse(
                "the body is longer than max_request of this middleware"),
                self.server)
        if isinstance(told, Answer):
            await self._send(told, send)
        elif told == "run":
            await self._run(x, self._inner(scope, x.handler_lines()), body, send)
        else:
            return told
        return None

    @staticmethod
    def _inner(scope: dict, more: Iterable = ()) -> dict:
        """What the handler gets."""
        names = INTERNAL.union(n.lower() for n, _ in more)
        return dict(scope, headers=[
            (n, v) for n, v in scope["headers"]
            if n.decode("latin-1").lower() not in names] +
            _bytes((n.lower(), v) for n, v in more))

    @staticmethod
    def _target(scope: dict) -> str:
        raw = scope.get("raw_path") or scope["path"].encode()
        query = scope.get("query_string")
        return (raw.split(b"?")[0] + (b"?" + query if query else b"")).decode(
            "latin-1")

    @staticmethod
    async def _send(answer: Answer, send: Callable, more: bool = False,
                    length: Iterable = ()) -> None:
        lines = _bytes(h for h in answer.headers
                       if h[0].lower() != "content-length")
        if more:
            lines += _bytes(length)
        elif answer.status not in (204, 304):
            lines.append((b"content-length", b"%d" % len(answer.body)))
        await send({"type": "http.response.start", "status": answer.status,
                    "headers": lines})
        await send({"type": "http.response.body", "body": answer.body,
                    "more_body": more})

    async def _run(self, x: _Exchange, scope: dict, body: "_Body",
                   send: Callable) -> None:
        answer = _Answering(self, x, send, scope.get("extensions") or {})
        if scope.get("extensions"):
            scope["extensions"] = {n: v for n, v in scope["extensions"].items()
                                   if n in PASSED or n == "tls"}
        scope["once.exchange"] = x

        async def receive() -> dict:
            return await body.guarded(answer.told)
        timer = asyncio.get_running_loop().call_later(
            x.run["run_ms"] / 1000, answer.told.set)
        wrong: Optional[BaseException] = None
        try:
            await self.app(scope, receive, answer)
            if answer.state == "held":
                wrong = ValueError("the handler has not answered")
            elif answer.state == "stream":
                wrong = ValueError("the handler has not ended its answer")
        except GeneratorExit:
            raise
        except BaseException as raised:     # pylint: disable=broad-except
            wrong = raised
        finally:
            timer.cancel()
        if answer.telling is not None:
            await asyncio.shield(answer.telling)
        if wrong is None or isinstance(wrong, _Unwanted):
            return
        if answer.state == "held":      # the client has no head yet
            _log_broke(wrong)
            told = await asyncio.shield(asyncio.ensure_future(
                _adrive(x.broke(wrong), self.server)))
            answer.told.set()
            if told is None:
                raise wrong
            await self._send(told, send)
            if isinstance(wrong, Exception):
                return
        raise wrong


class _Body:
    """The body of a request: what was read of it, and what is left."""

    def __init__(self, scope: dict, receive: Callable, most: int) -> None:
        lines = {n.lower(): v for n, v in scope["headers"]}
        length = lines.get(b"content-length")
        self.length = int(length) if length and length.isdigit() else None
        self.chunked = b"transfer-encoding" in lines
        # HTTP/1 says in the header whether there is one.
        self.none = scope.get("http_version", "1.1") < "2" and not (
            self.chunked or self.length)
        self.receive, self.most = receive, most
        self.bytes, self.more, self.stale = b"", True, False
        self.first: list = []

    async def read(self) -> bool:
        """False: the client has left. A part of a body is another request."""
        if self.none:
            return True
        self.stale = self._is_consumed()
        while self.more and not self.stale and len(self.bytes) < self.most:
            try:
                message = await (self.receive() if self.bytes else
                                 asyncio.wait_for(self.receive(), FIRST_S))
            except asyncio.TimeoutError:
                self.stale = True
                break
            if message["type"] == "http.disconnect":
                return False
            self.bytes += message.get("body", b"")
            self.more = message.get("more_body", False)
        if not self.is_over() and not self.stale:
            self.stale = len(self.bytes) != self.length \
                if self.length is not None else \
                self.chunked and not self.bytes
        self.first = [{"type": "http.request", "body": self.bytes,
                       "more_body": self.more and not self.stale}]
        return True

    def _is_consumed(self) -> bool:
        """uvicorn's own receive() tells that its last message was taken. Of the
        others nothing comes any more."""
        cycle = getattr(self.receive, "__self__", None)
        event = getattr(cycle, "message_event", None)
        return event is not None and not event.is_set() and \
            getattr(cycle, "more_body", True) is False

    def is_over(self) -> bool:
        return len(self.bytes) >= self.most

    def compared(self) -> Optional[bytes]:
        return None if self.stale else self.bytes[:self.most]

    async def again(self) -> dict:
        """For a handler that is not guarded."""
        return self.first.pop() if self.first else await self.receive()

    async def guarded(self, told: asyncio.Event) -> dict:
        """For one that is: that its client has left is for nobody to know until
        its answer is told, or its time is over."""
        if self.first or self.none:
            self.none = False
            return self.first.pop() if self.first else {
                "type": "http.request", "body": b"", "more_body": False}
        await told.wait()
        while True:
            message = await self.receive()
            if message["type"] != "http.request":
                return message


class _Unwanted(Exception):
    """Ends a handler whose stream is not sent: another answer was."""


class _Answering:
    """The `send` of a handler that is guarded: held, told, a stream, or over."""

    def __init__(self, guard: ASGI, x: _Exchange, send: Callable,
                 offered: dict) -> None:
        self.guard, self.x, self.send = guard, x, send
        self.offered = offered
        self.state, self.status, self.lines = "held", 0, None
        self.body = b""
        self.told = asyncio.Event()
        self.telling: Any = None

    async def __call__(self, message: dict) -> None:
        kind = message["type"]
        if kind == "http.response.start":
            await self._start(message)
        elif kind == "http.response.body":
            await self._add(message)
        elif kind in PASSED:
            if kind in self.offered:
                await self.send(message)
        elif kind not in DROPPED:
            raise RuntimeError("once: %s is not carried. Send what is in "
                               "scope[\"extensions\"] only" % kind)

    async def _start(self, message: dict) -> None:
        if self.lines is not None:
            raise RuntimeError("http.response.start was sent before")
        self.status = message["status"]
        self.lines = _texts(message.get("headers", ()))
        self.x.look(self.status, None)
        if self.x.is_long(0, self.lines):
            await self._tell(True, True)

    async def _add(self, message: dict) -> None:
        if self.lines is None:
            raise RuntimeError("http.response.body was sent before its start")
        more = message.get("more_body", False)
        if self.state == "held":
            self.body += message.get("body", b"")
            long = self.x.is_long(len(self.body), self.lines)
            if long or not more:
                await self._tell(long, more)
        elif self.state == "stream":
            self.state = "stream" if more else "over"
            await self.send(message)

    async def _tell(self, long: bool, more: bool) -> None:
        """Whoever cancels the handler now does not cancel this. That its client
        has left comes after its send() has returned."""
        self.state = "told"
        self.telling = asyncio.ensure_future(self._told(long, more))
        try:
            await asyncio.shield(self.telling)
        except BaseException:
            self.telling.add_done_callback(lambda _: self.told.set())
            raise
        self.told.set()
        if more and self.state == "over":
            raise _Unwanted()

    async def _told(self, long: bool, more: bool) -> None:
        lengths = [h for h in self.lines if h[0].lower() == "content-length"]
        if self.x.is_broken(self.status, self.lines):
            steps = self.x.answered(self.status, self.lines, self.body)
        elif long and not more and lengths and \
                lengths[0][1] != str(len(self.body)):
            steps = self.x.broken(502)  # the server sees no length of a stream
        else:
            steps = self.x.end(self.status, self.lines,
                               None if long else self.body)
        told = await _adrive(steps, self.guard.server)
        if told is None:
            told = Answer(self.status, self.lines, self.body, True)
        if told.own and long:
            told = told._replace(body=self.body)
        stream = told.own and more
        self.state = "stream" if stream else "over"
        await self.guard._send(told, self.send, stream, lengths)


def _adding(send: Callable, lines: list) -> Callable:
    """What is not protected says so to the client."""
    async def adding(message: dict) -> None:
        if message["type"] == "http.response.start":
            message = dict(message, headers=[*message.get("headers", ()),
                                             *_bytes(lines)])
        await send(message)
    return adding


# ---- Calls ----------------------------------------------------------------------

# What a function raises is not what its caller gets: passed on by a function that
# has called another one, it would say that *that* one has done nothing.


class NotApplied(Exception):
    """A function raises it: it has done nothing, and will not."""


class Failure(Exception):
    """A function raises it: it has failed, and each repeat is told so."""

    def __init__(self, result: Any = None, code: int = 1) -> None:
        super().__init__("a failure")
        self.result, self.code = result, code


class Error(Exception):
    """The call has no result."""

    def __init__(self, text: Optional[str] = None, **more: Any) -> None:
        super().__init__(text or self.__doc__)
        vars(self).update(more)


class Failed(Error):
    """The function has failed: that is recorded, with result and code."""


class Free(Error):
    """The function has done nothing. The key is free."""


class InFlight(Error):
    """Another call with this key runs. See retry_after_ms."""


class Mismatch(Error):
    """The key is that of a call with another fingerprint. Nothing was run."""


class Refused(Error):
    """The server refuses the call. Nothing was run."""


class Unavailable(Error):
    """The server is away. Nothing was done now."""


class Unknown(Error):
    """It was begun, and its outcome is not known: find out first."""


class Unstored(Error):
    """An operator has resolved it without a result."""


JSON = "application/json"
STATES = {"mismatch": Mismatch, "indeterminate": Unknown, "unstored": Unstored}


def _encode(kind: str, code: Any, value: Any) -> tuple:
    """bytes are the result as they are, and all else is JSON."""
    head = {"kind": kind, "type": JSON, "code": min(int(code), 2**31 - 1)}
    if isinstance(value, (bytes, bytearray)):
        return dict(head, type="application/octet-stream"), bytes(value)
    return head, json.dumps(value, allow_nan=False).encode()


def _result(head: dict, data: bytes) -> Any:
    """The first caller gets it from its bytes, too, as each repeat does."""
    if head["do"] == "in-flight":
        raise InFlight(retry_after_ms=head.get("retry_after_ms", 1000))
    if head["do"] in STATES:
        raise STATES[head["do"]]()
    if head["do"] != "replay":
        raise Refused("The server says what is not known here.")
    value = json.loads(data) if head["type"] == JSON else data
    if head["kind"] == "failure":
        raise Failed(result=value, code=head["code"])
    return value


class _Call:
    """One call of a function, as steps for a driver."""

    def __init__(self, server: _Server, head: dict, work: Callable) -> None:
        self.server, self.head, self.work = server, head, work
        self.token = None

    def begin(self) -> Steps:
        """A result; or there is a token now, and the function may run."""
        told = yield from _begin(self.server, "call/begin", self.head, b"",
                                 self.wait_s())
        if told is None:
            raise Unavailable("The server at %s is away. Nothing was done now."
                              % self.server.where)
        code, reply, data = told
        if code != 200:
            raise Refused(reply.get("text"))
        if reply["do"] != "run":
            return _result(reply, data)
        self.token = reply["token"]
        return None

    def wait_s(self) -> float:
        wait_ms = self.head.get("wait_ms")
        return wait_ms / 1000 if isinstance(wait_ms, (int, float)) else 0

    def run(self) -> Steps:
        """Runs the function, and records what it did."""
        cause: Any = None
        try:
            try:
                head, data = _encode("success", 0, (yield self.work))
            except Failure as wrong:
                cause = wrong
                head, data = _encode("failure", max(wrong.code, 1), wrong.result)
        except NotApplied as wrong:
            told = yield from self._tell("abandon", {})
            raise (Free if told else Unavailable)() from wrong
        except GeneratorExit:
            raise
        except BaseException as wrong:  # what it did is not known
            told = yield from self._tell("broken", {})
            if not isinstance(wrong, Exception):
                raise
            cause = wrong
        else:
            told = yield from self._tell("call/end", head, data)
            if told and told[0]["do"] == "none":
                told = dict(head, do="replay"), data
        if told and told[0]["do"] == "replay":
            return _result(*told)
        raise Unknown() from cause

    def _tell(self, path: str, head: dict, data: bytes = b"") -> Steps:
        """(reply, body). None: the server is away, or refuses it."""
        times = {n: v for n, v in self.head.items() if n.endswith("_ms")}
        told = yield from _tell(
            self.server, path, dict(times, **head, token=self.token), data,
            self.head["lease_ms"])
        if told is not None and told[0] == 200:
            return told[1:]
        if told is not None and path == "call/end":     # it cannot be carried
            return (yield from self._tell("broken", {}))
        return None


def call(group: str, key: Callable, fingerprint: Optional[Callable] = None,
         label: Optional[Callable] = None, wait_ms: int = 0,
         lease_ms: int = 30000, run_ms: int = 60000, keep_ms: int = 86400000,
         serve: Optional[str] = None, token_file: Optional[str] = None
         ) -> Callable:
    """
    A decorator: the function, or `async def`, runs at most once for group and
    key, and each other call gets its first result, or an Error. `key`,
    `fingerprint` and `label` compute texts of the function's arguments. The
    result is bytes, or what JSON has.
    """
    _text("once: group", group, TypeError)
    server = _Server(serve, token_file)
    fixed = {"group": group, "lease_ms": lease_ms, "run_ms": run_ms,
             "keep_ms": keep_ms}
    if wait_ms:
        fixed["wait_ms"] = wait_ms
    computed = [(n, f) for n, f in (("key", key), ("fingerprint", fingerprint),
                                    ("label", label)) if f is not None]

    def decorate(function: Callable) -> Callable:
        if inspect.isgeneratorfunction(function) or \
                inspect.isasyncgenfunction(function):
            raise TypeError("once: a generator has no result that is kept")

        def new(args: tuple, named: dict) -> _Call:
            head = dict(fixed, id=secrets.token_hex(16))
            for name, compute in computed:
                head[name] = _text("once: " + name, compute(*args, **named),
                                   TypeError)
            return _Call(server, head,
                         functools.partial(function, *args, **named))

        def guarded(*args: Any, **named: Any) -> Any:
            x = new(args, named)
            told = _drive(x.begin(), server)
            return told if x.token is None else _drive(x.run(), server)

        async def aguarded(*args: Any, **named: Any) -> Any:
            x = new(args, named)

            async def both() -> Any:
                told = await _adrive(x.begin(), server)
                return told if x.token is None else await _adrive(x.run(), server)
            # Who waits no longer does not cut off what may have its effect.
            return await _shielded(both(), lambda: x.token is None)

        is_async = inspect.iscoroutinefunction(function) or \
            inspect.iscoroutinefunction(getattr(function, "__call__", None))
        return functools.wraps(function)(aguarded if is_async else guarded)
    return decorate
