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
import time
from typing import Any, Callable, Generator, Iterable, NamedTuple, Optional

__all__ = ["ASGI", "WSGI", "call", "Error", "Failed", "Failure", "Free",
           "InFlight", "Mismatch", "NotApplied", "Refused", "Unavailable",
           "Unknown", "Unstored"]

LOG = logging.getLogger("once")
BEGIN_S = 1.0       # how long a begin is repeated
WAIT_S = 620        # how long an answer may take: in_flight has up to 600
IDLE_MAX = 64       # connections that wait for work; busy ones have no bound
BODY_MAX = 1 << 20  # of a request that is guarded
STREAMS = ("text/event-stream", "application/x-ndjson")
INTERNAL = frozenset(("idempotency-attempt", "idempotency-outcome",
                      "idempotency-probe", "idempotency-record",
                      "idempotency-recorded-status", "idempotency-status",
                      "idempotent-replayed"))

# What a step asks its driver for: a call (bytes), a pause (seconds), or to run
# a function. A driver sends back (code, head, body), or throws Away; or what the
# function returns or raises.
Steps = Generator[Any, Any, Any]


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
    """Where the server is, and how a call is written."""

    def __init__(self, where: Optional[str], token_file: Optional[str]) -> None:
        where = where or os.environ.get("ONCE_SERVE", "unix:/run/once/serve.sock")
        token_file = token_file or os.environ.get("ONCE_SERVE_TOKEN_FILE")
        self.path, self.host, self.port, line = None, "", 0, ""
        if where.startswith("unix:"):
            self.path = where[5:]
        else:
            host, _, port = where.replace("http://", "", 1).rpartition(":")
            self.host, self.port = host.strip("[]"), int(port)
        if token_file:
            with open(token_file, encoding="ascii") as f:
                line = "Authorization: Bearer %s\r\n" % f.readline().strip()
        self.start = "Host: once\r\n%sContent-Type: application/vnd.once\r\n" \
            "Content-Length: " % line
        self.idle: Any = collections.deque()

    def call(self, path: str, head: dict, body: bytes) -> bytes:
        line = json.dumps(head).encode() + b"\n"
        return b"POST /v1/%s HTTP/1.1\r\n%s%d\r\n\r\n%s%s" % (
            path.encode(), self.start.encode(), len(line) + len(body), line, body)

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

    def lost(self) -> None:
        """The others have ended, too, if the server was restarted."""
        self.idle.clear()


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
        server.lost()
        raise Away(str(wrong)) from None


async def _ado(server: _Server, step: Any) -> Any:
    if isinstance(step, float):
        return await asyncio.sleep(step)
    if callable(step):
        return await step()
    try:
        return await asyncio.wait_for(_aask(server, step), WAIT_S)
    except (OSError, ValueError, EOFError, asyncio.LimitOverrunError,
            asyncio.TimeoutError) as wrong:
        server.lost()
        raise Away(str(wrong)) from None


def _ask(server: _Server, data: bytes) -> tuple:
    pair = server.take()
    if pair is None:
        if server.path is None:
            sock = socket.create_connection((server.host, server.port))
        else:
            sock = socket.socket(socket.AF_UNIX)
            sock.connect(server.path)
        sock.settimeout(WAIT_S)
        pair = sock, sock.makefile("rb")
    sock, file = pair
    kept = False
    try:
        sock.sendall(data)
        lines = []
        while (line := file.readline(8192)) not in (b"\r\n", b""):
            lines.append(line)
        code, size = _answer_of(lines or [b""])
        data = file.read(size)
        if len(data) < size:
            raise OSError("the connection ended")
        kept = server.give(pair)
        return _split(code, data)
    finally:
        if not kept:
            file.close()
            sock.close()


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
            seconds: float) -> Steps:
    """Every call may be repeated. None: the server is away, for so long since
    that was seen."""
    until, pause = None, 0.05
    while True:
        try:
            told = yield server.call(path, head, body)
            if told[0] != 503:
                return told
        except Away as away:
            LOG.warning("once: %s: %s", path, away)
        until = until or time.monotonic() + seconds
        if time.monotonic() + pause > until:
            return None
        yield pause
        pause = min(2 * pause, 1.0)
        if path.endswith("begin"):
            head = dict(head, again=True)


def _abandon(server: _Server, head: dict) -> Steps:
    """It was not run, and will not be. Who is away finds that out himself."""
    try:
        yield server.call("abandon", head, b"")
    except Away:
        pass


def _begin(server: _Server, path: str, head: dict, body: bytes) -> Steps:
    """None: the server is away, and what it might have begun is abandoned. So
    it is if this is cancelled."""
    try:
        told = yield from _repeat(server, path, head, body, BEGIN_S)
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
    told = yield from _repeat(server, path, head, body, lease_ms / 1000)
    if told is not None and told[0] != 200:
        LOG.error("once: %s: %s", path, told[1].get("text"))
    return told


# ---- One request --------------------------------------------------------------


class _Exchange:
    """One request, as steps for a driver."""

    def __init__(self, server: _Server, route: Any, head: dict, body: bytes,
                 bypass: bool) -> None:
        self.server, self.route, self.head = server, route, head
        self.body, self.bypass = body, bypass
        self.run: dict = {}

    def begin(self) -> Steps:
        """"run", the lines that are added to an answer that passes, or an
        Answer."""
        told = yield from _begin(self.server, "begin", self.head, self.body)
        if told is None:
            return [] if self.bypass else UNAVAILABLE
        code, reply, rest = told
        if code != 200:
            LOG.error("once: begin: %s", reply.get("text"))
            return UNAVAILABLE if code == 401 else Answer(500, [], b"")
        if reply["do"] == "send":
            return Answer(reply["status"], reply["headers"], rest)
        if reply["do"] == "pass":
            return reply.get("headers", [])
        self.run = reply
        return "run"

    def too_long(self) -> Steps:
        """Its route takes more since a restart: no handler runs on a part."""
        LOG.error("once: the body is longer than max_request of this middleware")
        yield from _abandon(self.server, {"token": self.run["token"],
                                          "route": self.route})
        return Answer(500, [], b"")

    def handler_lines(self) -> list:
        """What the handler gets beside the client's header."""
        lines = {"Idempotency-Attempt": str(self.run["attempt"]),
                 "Idempotency-Record": self.run["record"],
                 "Idempotency-Key": self.run.get("key")}
        return [(n, v) for n, v in lines.items() if v is not None]

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
        told = yield from self._tell("end", more, body or b"")
        if told is not None and told[0] == 422:     # it cannot be carried
            return (yield from self.broken())
        if told is None or told[0] != 200:
            return UNKNOWN
        own = told[1]["do"] == "own"
        return Answer(told[1]["status"], told[1]["headers"],
                      (body or b"") if own else told[2], own)

    def broken(self, status: int = 502) -> Steps:
        """The handler ended without an answer: what it did is not known. None:
        nobody guards it, so it breaks as it would without Once."""
        told = yield from self._tell("broken", {"status": status}, b"")
        if told is None or told[0] != 200:
            return UNKNOWN
        return Answer(told[1]["status"], told[1]["headers"], told[2]) \
            if told[1]["do"] == "send" else None


def _broke(wrong: BaseException) -> int:
    LOG.error("once: the handler broke", exc_info=wrong)
    return 504 if isinstance(wrong, TimeoutError) else 502


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
        self.app, self.bypass = app, bypass
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
        self.most = 0       # not known yet
        self.server = _Server(serve, token_file)

    def limit(self) -> Steps:
        """How much of a body is read: one byte more than is allowed is a 413."""
        if not self.most:
            try:
                told = yield self.server.call("route", {"route": self.route}, b"")
            except Away:
                return BODY_MAX + 1
            if told[0] != 200:
                return BODY_MAX + 1
            self.most = told[1]["max_request"] + 1
        return self.most

    def exchange(self, source: Any, method: str, target: str, lines: list,
                 body: bytes) -> _Exchange:
        head = {"id": secrets.token_hex(16), "method": method, "target": target,
                "headers": lines, "route": self.route}
        for name, compute in self.computed:
            value = compute(source)
            if value is not None:
                head[name] = value
        return _Exchange(self.server, self.route, head, body, self.bypass)


# ---- WSGI ---------------------------------------------------------------------


class WSGI(_Guard):
    """Middleware for WSGI: app = once.WSGI(app, scope=...)."""

    def __call__(self, environ: dict, start_response: Callable) -> Iterable:
        most = _drive(self.limit(), self.server)
        body = self._body(environ, most)
        x = self.exchange(environ, environ["REQUEST_METHOD"],
                          self._target(environ), list(self._lines(environ)),
                          body)
        over = len(body) >= most
        if over:                # what is not guarded gets all of it
            environ["wsgi.input"] = io.BufferedReader(
                _Rest(body, environ["wsgi.input"]))
        else:
            environ["wsgi.input"] = io.BytesIO(body)
            environ["CONTENT_LENGTH"] = str(len(body))
            environ.pop("HTTP_TRANSFER_ENCODING", None)
        for name in INTERNAL:
            environ.pop("HTTP_" + name.upper().replace("-", "_"), None)
        told = _drive(x.begin(), self.server)
        if told == "run" and over:
            told = _drive(x.too_long(), self.server)
        if isinstance(told, Answer):
            return self._send(told, start_response)
        if told == "run":
            for name, value in x.handler_lines():
                environ["HTTP_" + name.upper().replace("-", "_")] = value
            return self._run(x, environ, start_response)
        return self.app(environ, lambda status, lines, *more: start_response(
            status, list(lines) + [tuple(h) for h in told], *more))

    @staticmethod
    def _body(environ: dict, most: int) -> bytes:
        size = environ.get("CONTENT_LENGTH")
        if size:
            want = min(int(size), most)
            body = environ["wsgi.input"].read(want)
            if len(body) < want:    # a part of it is another request
                raise ConnectionError("the client left within its request")
            return body
        if environ.get("wsgi.input_terminated") or \
                environ.get("HTTP_TRANSFER_ENCODING"):
            return environ["wsgi.input"].read(most)
        return b""

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
        held = _Held()
        try:
            held.call(self.app, environ)
            while not x.is_long(held.size, held.lines or ()) and held.more():
                pass
            if held.lines is None:
                raise ValueError("the handler has not called start_response")
        except BaseException as wrong:
            held.close()
            told = _drive(x.broken(_broke(wrong)), self.server)
            if told is None:
                raise
            return self._send(told, start_response)
        told = _drive(x.end(held.status, held.lines, None if held.open else
                            b"".join(held.parts)), self.server)
        if not (told.own and held.open):
            held.close()
            return self._send(told, start_response)
        self._start(told, start_response)
        return held


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

    def __init__(self) -> None:
        self.status, self.lines = 0, None
        self.source: Any = ()
        self.parts: list = []
        self.size, self.open = 0, True

    def call(self, app: Callable, environ: dict) -> None:
        self.source = app(environ, self._begin)
        self.rest = iter(self.source)

    def _begin(self, status: str, lines: list, exc_info: Any = None) -> Callable:
        self.status, self.lines = int(status.split()[0]), list(lines)
        return self._add

    def _add(self, part: bytes) -> None:
        self.parts.append(part)
        self.size += len(part)

    def more(self) -> bool:
        for part in self.rest:
            self._add(part)
            return True
        self.open = False
        return False

    def __iter__(self) -> Iterable:
        yield from self.parts
        yield from self.rest

    def close(self) -> None:
        source, self.source = self.source, ()
        getattr(source, "close", lambda: None)()


# ---- ASGI ---------------------------------------------------------------------


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
        most = await _adrive(self.limit(), self.server)
        whole, more_body = await self._body(receive, most)
        if whole is None:
            return
        body, over = whole[:most], len(whole) >= most
        x = self.exchange(scope, scope["method"], self._target(scope),
                          _texts(scope["headers"]), body)
        told = await _adrive(x.begin(), self.server)
        if told == "run" and over:
            told = await _adrive(x.too_long(), self.server)
        if isinstance(told, Answer):
            await self._send(told, send)
            return
        more = x.handler_lines() if told == "run" else []
        names = INTERNAL.union(n.lower() for n, _ in more)
        inner = dict(scope, headers=[
            (n, v) for n, v in scope["headers"]
            if n.decode("latin-1").lower() not in names] +
            _bytes((n.lower(), v) for n, v in more))
        first = [{"type": "http.request", "body": whole,
                  "more_body": more_body}]

        async def again() -> dict:
            return first.pop() if first else await receive()

        if told == "run":
            await self._run(x, inner, again, send)
        else:
            await self.app(inner, again, _adding(send, told))

    @staticmethod
    async def _body(receive: Callable, most: int) -> tuple:
        body, more = b"", True
        while more and len(body) < most:
            message = await receive()
            if message["type"] == "http.disconnect":    # a part of it is
                return None, False                      # another request
            body += message.get("body", b"")
            more = message.get("more_body", False)
        return body, more

    @staticmethod
    def _target(scope: dict) -> str:
        raw = scope.get("raw_path") or scope["path"].encode()
        query = scope.get("query_string")
        return (raw.split(b"?")[0] + (b"?" + query if query else b"")).decode(
            "latin-1")

    @staticmethod
    async def _send(answer: Answer, send: Callable, more: bool = False) -> None:
        lines = _bytes(h for h in answer.headers
                       if h[0].lower() != "content-length")
        if answer.status not in (204, 304) and not more:
            lines.append((b"content-length", b"%d" % len(answer.body)))
        await send({"type": "http.response.start", "status": answer.status,
                    "headers": lines})
        await send({"type": "http.response.body", "body": answer.body,
                    "more_body": more})

    async def _run(self, x: _Exchange, scope: dict, receive: Callable,
                   send: Callable) -> None:
        answer = _Answering(self, x, send)
        try:
            await self.app(scope, receive, answer)
            if answer.state != "over":
                raise ValueError("the handler has not answered")
        except _Unwanted:
            return
        except BaseException as wrong:
            if answer.state != "held":      # the client has a head already
                raise
            told = await asyncio.shield(
                _adrive(x.broken(_broke(wrong)), self.server))
            if told is None or not isinstance(wrong, Exception):
                raise
            await self._send(told, send)


class _Unwanted(Exception):
    """Ends a handler whose stream is not sent: another answer was."""


class _Answering:
    """The `send` of a handler that is guarded: held, a stream, or over."""

    def __init__(self, guard: ASGI, x: _Exchange, send: Callable) -> None:
        self.guard, self.x, self.send = guard, x, send
        self.state, self.status, self.lines = "held", 0, []
        self.body = b""

    async def __call__(self, message: dict) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            self.lines = _texts(message.get("headers", ()))
            if self.x.is_long(0, self.lines):
                await self._tell(True, True)
            return
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
        self.state = "told"
        told = await asyncio.shield(_adrive(self.x.end(
            self.status, self.lines, None if long else self.body),
            self.guard.server))
        if told.own and long:
            told = told._replace(body=self.body)
        self.state = "stream" if told.own and more else "over"
        await self.guard._send(told, self.send, self.state == "stream")
        if more and not told.own:
            raise _Unwanted()


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
        told = yield from _begin(self.server, "call/begin", self.head, b"")
        if told is None:
            raise Unavailable()
        code, reply, data = told
        if code != 200:
            raise Refused(reply.get("text"))
        if reply["do"] != "run":
            return _result(reply, data)
        self.token = reply["token"]
        return None

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
    server = _Server(serve, token_file)
    fixed = {"group": group, "lease_ms": lease_ms, "run_ms": run_ms,
             "keep_ms": keep_ms}
    if wait_ms:
        fixed["wait_ms"] = wait_ms
    computed = [(n, f) for n, f in (("key", key), ("fingerprint", fingerprint),
                                    ("label", label)) if f is not None]

    def decorate(function: Callable) -> Callable:
        def new(args: tuple, named: dict) -> _Call:
            head = dict(fixed, id=secrets.token_hex(16))
            for name, compute in computed:
                head[name] = compute(*args, **named)
                if not isinstance(head[name], str):
                    raise TypeError("once: %s is no text" % name)
            return _Call(server, head,
                         functools.partial(function, *args, **named))

        def guarded(*args: Any, **named: Any) -> Any:
            x = new(args, named)
            told = _drive(x.begin(), server)
            return told if x.token is None else _drive(x.run(), server)

        async def aguarded(*args: Any, **named: Any) -> Any:
            x = new(args, named)
            told = await _adrive(x.begin(), server)
            # Who waits no longer does not cut off what may have its effect.
            return told if x.token is None else await asyncio.shield(
                _adrive(x.run(), server))

        return functools.wraps(function)(
            aguarded if inspect.iscoroutinefunction(function) else guarded)
    return decorate
