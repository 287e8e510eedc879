# SPDX-License-Identifier: Apache-2.0
"""
once - the contract of Idempotency-Key for Python services, by `once serve`.

    app = once.WSGI(app, scope=lambda environ: environ.get("REMOTE_USER"))
    app = once.ASGI(app, scope=lambda scope: scope["state"]["user"])

A request goes to the server before the handler runs, and the handler's answer
before the client gets it. The server decides; this file carries. It refuses to
send a byte of an answer before the server has said that it is durable.

ONCE_SERVE says where the server is, "unix:/run/once/serve.sock" or
"http://127.0.0.1:7070" with a token in the file ONCE_SERVE_TOKEN_FILE.
"""
from __future__ import annotations

import asyncio
import collections
import http.client
import io
import json
import logging
import os
import secrets
import socket
import time
from typing import Any, Callable, Generator, Iterable, NamedTuple, Optional

__all__ = ["ASGI", "WSGI"]

LOG = logging.getLogger("once")
BEGIN_S = 1.0       # how long a begin is repeated
WAIT_S = 620        # how long an answer may take: in_flight has up to 600
IDLE_MAX = 16       # connections that wait for work; busy ones have no bound
BODY_MAX = 1 << 20  # of a request that is guarded
STREAMS = ("text/event-stream", "application/x-ndjson")
INTERNAL = frozenset(("idempotency-attempt", "idempotency-outcome",
                      "idempotency-probe", "idempotency-record",
                      "idempotency-recorded-status", "idempotency-status",
                      "idempotent-replayed"))

# What a step asks its driver for: a call (bytes), or a pause (seconds). A
# driver sends back (code, head, body), or throws Away.
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
        self.key, self.idle = None, collections.deque()

    def call(self, path: str, head: dict, body: bytes) -> bytes:
        line = json.dumps(head).encode() + b"\n"
        return b"POST /v1/%s HTTP/1.1\r\n%s%d\r\n\r\n%s%s" % (
            path.encode(), self.start.encode(), len(line) + len(body), line, body)

    def take(self, loop: Any = None) -> Any:
        """An idle connection, of this process and loop: a child has none of
        its parent's."""
        if self.key != (os.getpid(), loop):
            self.key, self.idle = (os.getpid(), loop), collections.deque()
        try:
            return self.idle.pop()
        except IndexError:
            return None

    def give(self, connection: Any) -> bool:
        if self.key[0] != os.getpid() or len(self.idle) >= IDLE_MAX:
            return False
        self.idle.append(connection)
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


def _drive(steps: Steps, server: _Server) -> Any:
    """Does what the steps ask for, on this thread."""
    try:
        step = next(steps)
        while True:
            if isinstance(step, float):
                step = steps.send(time.sleep(step))
                continue
            try:
                told = _ask(server, step)
            except (OSError, ValueError) as wrong:
                server.lost()
                step = steps.throw(Away(str(wrong)))
            else:
                step = steps.send(told)
    except StopIteration as end:
        return end.value


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


async def _adrive(steps: Steps, server: _Server) -> Any:
    """The same for asyncio."""
    try:
        step = next(steps)
        while True:
            if isinstance(step, float):
                step = steps.send(await asyncio.sleep(step))
                continue
            try:
                told = await asyncio.wait_for(_aask(server, step), WAIT_S)
            except (OSError, ValueError, EOFError, asyncio.LimitOverrunError,
                    asyncio.TimeoutError) as wrong:
                server.lost()
                step = steps.throw(Away(str(wrong)))
            else:
                step = steps.send(told)
    except StopIteration as end:
        return end.value


async def _aask(server: _Server, data: bytes) -> tuple:
    pair = server.take(asyncio.get_running_loop())
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
        kept = server.give(pair)
        return _split(code, data)
    finally:
        if not kept:
            writer.close()


# ---- One request --------------------------------------------------------------


class _Exchange:
    """One request, as steps for a driver."""

    def __init__(self, server: _Server, route: Any, head: dict, body: bytes,
                 bypass: bool) -> None:
        self.server, self.route, self.head = server, route, head
        self.body, self.bypass = body, bypass
        self.run: dict = {}

    def _repeat(self, path: str, head: dict, body: bytes,
                seconds: float) -> Steps:
        """Every call may be repeated. None: the server is away."""
        until, pause = time.monotonic() + seconds, 0.05
        while True:
            try:
                told = yield self.server.call(path, head, body)
                if told[0] != 503:
                    return told
            except Away as away:
                LOG.warning("once: %s: %s", path, away)
            if time.monotonic() + pause > until:
                return None
            yield pause
            pause = min(2 * pause, 1.0)
            if path == "begin":
                head = dict(head, again=True)

    def begin(self) -> Steps:
        """"run", the lines that are added to an answer that passes, or an
        Answer."""
        told = yield from self._repeat("begin", self.head, self.body, BEGIN_S)
        if told is None:
            try:
                yield self.server.call("abandon", {"id": self.head["id"]}, b"")
            except Away:
                pass
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
        """A named route takes more than was read: no handler runs on a part."""
        LOG.error("once: the body is longer than max_request of this middleware")
        try:
            yield self.server.call("abandon", {
                "token": self.run["token"], "route": self.route}, b"")
        except Away:
            pass
        return Answer(500, [], b"")

    def handler_lines(self) -> list:
        """What the handler gets beside the client's header."""
        lines = {"Idempotency-Attempt": str(self.run["attempt"]),
                 "Idempotency-Record": self.run["record"],
                 "Idempotency-Key": self.run.get("key")}
        return [(n, v) for n, v in lines.items() if v is not None]

    def _tell(self, path: str, more: dict, body: bytes) -> Steps:
        told = yield from self._repeat(
            path, dict(more, token=self.run["token"], route=self.route), body,
            self.run["lease_ms"] / 1000)
        if told is not None and told[0] != 200:
            LOG.error("once: %s: %s", path, told[1].get("text"))
        return told

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


def _size(text: Any) -> int:
    """Of the directives: 1048576, "1024k", "1m"."""
    number = str(text).rstrip("kKmM")
    return int(number) << {"k": 10, "m": 20}.get(
        str(text)[len(number):].lower(), 0)


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
        # One byte more than is allowed is a 413.
        self.most = _size(given.get("max_request", BODY_MAX)) + 1
        self.server = _Server(serve, token_file)

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
        body = self._body(environ)
        x = self.exchange(environ, environ["REQUEST_METHOD"],
                          self._target(environ), list(self._lines(environ)),
                          body)
        over = len(body) >= self.most
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

    def _body(self, environ: dict) -> bytes:
        size = environ.get("CONTENT_LENGTH")
        if size:
            want = min(int(size), self.most)
            body = environ["wsgi.input"].read(want)
            if len(body) < want:    # a part of it is another request
                raise ConnectionError("the client left within its request")
            return body
        if environ.get("wsgi.input_terminated") or \
                environ.get("HTTP_TRANSFER_ENCODING"):
            return environ["wsgi.input"].read(self.most)
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


class ASGI(_Guard):
    """Middleware for ASGI: app = once.ASGI(app, scope=...)."""

    async def __call__(self, scope: dict, receive: Callable,
                       send: Callable) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        whole, more_body = await self._body(receive)
        if whole is None:
            return
        body, over = whole[:self.most], len(whole) >= self.most
        lines = [[n.decode("latin-1"), v.decode("latin-1")]
                 for n, v in scope["headers"]]
        x = self.exchange(scope, scope["method"], self._target(scope), lines,
                          body)
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
            [(n.lower().encode(), v.encode("latin-1")) for n, v in more])
        first = [{"type": "http.request", "body": whole,
                  "more_body": more_body}]

        async def again() -> dict:
            return first.pop() if first else await receive()

        if told == "run":
            await self._run(x, inner, again, send)
        else:
            await self.app(inner, again, _adding(send, told))

    async def _body(self, receive: Callable) -> tuple:
        body, more = b"", True
        while more and len(body) < self.most:
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
        lines = [(n.encode("latin-1"), v.encode("latin-1"))
                 for n, v in answer.headers if n.lower() != "content-length"]
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
            self.lines = [[n.decode("latin-1"), v.decode("latin-1")]
                          for n, v in message.get("headers", ())]
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
            message = dict(message, headers=list(message.get("headers", ())) + [
                (n.encode("latin-1"), v.encode("latin-1")) for n, v in lines])
        await send(message)
    return adding
