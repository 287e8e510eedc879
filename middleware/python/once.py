# SPDX-License-Identifier: Apache-2.0
"""
once - the contract of Idempotency-Key for Python services, by `once serve`.

    app = once.WSGI(app, scope=lambda environ: environ["REMOTE_USER"])
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
import io
import json
import logging
import os
import secrets
import socket
import time
from typing import Any, Callable, Generator, Iterable, Optional

__version__ = "0.1.0"
__all__ = ["ASGI", "WSGI"]

LOG = logging.getLogger("once")
BEGIN_S = 1.0       # how long a begin is repeated
WAIT_S = 620        # how long an answer may take: in_flight has up to 600
IDLE_MAX = 16       # connections that wait for work; busy ones have no bound
BODY_MAX = 1 << 20  # of a request that is guarded
STREAMS = ("text/event-stream", "application/x-ndjson")
INTERNAL = ("idempotency-attempt", "idempotency-outcome", "idempotency-probe",
            "idempotency-record", "idempotency-recorded-status",
            "idempotency-status", "idempotent-replayed")

# What a step asks its driver for: a call (bytes), or a pause (seconds). A
# driver sends back (code, head, body), or throws Away.
Steps = Generator[Any, Any, Any]


class Away(Exception):
    """The server did not answer, or not all of it."""


class Answer:
    """What the client gets: status, pairs of text, body."""

    def __init__(self, status: int, headers: list, body: bytes) -> None:
        self.status, self.headers, self.body = status, headers, body


def _problem(code: str, status: int, title: str, detail: str, state: str,
             again: str) -> Answer:
    body = {"type": "urn:problem-type:once:" + code, "title": title,
            "status": status, "detail": detail, "code": code,
            "retryable": True, "safe_new_key": False, "state": state,
            "error": {"type": "api_error", "code": code, "message": detail}}
    return Answer(status, [("Content-Type", "application/problem+json"),
                           ("Cache-Control", "no-store"),
                           ("Idempotency-Status", again)] +
                  ([("Retry-After", "1")] if status == 503 else []),
                  json.dumps(body, separators=(",", ":")).encode())


def _unavailable() -> Answer:
    return _problem(
        "store-unavailable", 503, "The idempotency store is unavailable",
        "Nothing was done now. Send the same key again after the time in "
        "Retry-After.", "any", "unavailable")


def _unknown() -> Answer:
    return _problem(
        "outcome-unknown", 502, "The outcome of this request is not known",
        "It may have taken effect. Do not use a new key: find out first.",
        "indeterminate", "indeterminate")


class _Server:
    """Where the server is, and how a call is written."""

    def __init__(self, where: Optional[str], token_file: Optional[str]) -> None:
        where = where or os.environ.get("ONCE_SERVE", "unix:/run/once/serve.sock")
        token_file = token_file or os.environ.get("ONCE_SERVE_TOKEN_FILE")
        self.path, self.port, line = None, 0, ""
        if where.startswith("unix:"):
            self.path = where[5:]
        else:
            host, _, port = where.removeprefix("http://").rpartition(":")
            self.host, self.port = host.strip("[]"), int(port)
        if token_file:
            with open(token_file, encoding="ascii") as f:
                line = "Authorization: Bearer %s\r\n" % f.readline().strip()
        self.start = "Host: once\r\n%sContent-Type: application/vnd.once\r\n" \
            "Content-Length: " % line

    def call(self, path: str, head: dict, body: bytes) -> bytes:
        data = json.dumps(head).encode() + b"\n"
        return b"".join((b"POST /v1/", path.encode(), b" HTTP/1.1\r\n",
                         self.start.encode(), str(len(data) + len(body)).encode(),
                         b"\r\n\r\n", data, body))

    def connect(self) -> socket.socket:
        if self.path is None:
            return socket.create_connection((self.host, self.port), 5)
        sock = socket.socket(socket.AF_UNIX)
        sock.settimeout(5)
        sock.connect(self.path)
        return sock


def _sizes(lines: list) -> tuple:
    """(code, length) of an answer's header."""
    size = next(int(x[15:]) for x in lines
                if x[:15].lower() == b"content-length:")
    return int(lines[0][9:12]), size


def _split(code: int, data: bytes) -> tuple:
    line, _, body = data.partition(b"\n")
    return code, json.loads(line), body


class _Pool:
    """Idle connections of this process: a child has none of its parent's."""

    def __init__(self) -> None:
        self.pid, self.idle = 0, collections.deque()

    def take(self) -> Any:
        if self.pid != os.getpid():
            self.pid, self.idle = os.getpid(), collections.deque()
        try:
            return self.idle.pop()
        except IndexError:
            return None

    def give(self, connection: Any) -> bool:
        if self.pid == os.getpid() and len(self.idle) < IDLE_MAX:
            self.idle.append(connection)
            return True
        return False


def _drive(steps: Steps, server: _Server, pool: _Pool) -> Any:
    """Does what the steps ask for, on this thread."""
    try:
        step = next(steps)
        while True:
            if isinstance(step, float):
                time.sleep(step)
                step = next(steps)
                continue
            try:
                answer = _ask(server, pool, step)
            except (OSError, ValueError, StopIteration) as wrong:
                step = steps.throw(Away(str(wrong)))
            else:
                step = steps.send(answer)
    except StopIteration as end:
        return end.value


def _ask(server: _Server, pool: _Pool, data: bytes) -> tuple:
    pair = pool.take()
    if pair is None:
        sock = server.connect()
        pair = sock, sock.makefile("rb")
    sock, file = pair
    kept = False
    try:
        sock.settimeout(WAIT_S)
        sock.sendall(data)
        lines = []
        while (line := file.readline(8192)) not in (b"\r\n", b""):
            lines.append(line)
        code, size = _sizes(lines)
        data = file.read(size)
        if len(data) < size:
            raise OSError("the connection ended")
        kept = pool.give(pair)
        return _split(code, data)
    finally:
        if not kept:
            file.close()
            sock.close()


async def _adrive(steps: Steps, server: _Server, pool: _Pool) -> Any:
    """The same for asyncio."""
    try:
        step = next(steps)
        while True:
            if isinstance(step, float):
                await asyncio.sleep(step)
                step = next(steps)
                continue
            try:
                answer = await asyncio.wait_for(
                    _aask(server, pool, step), WAIT_S)
            except (OSError, ValueError, StopIteration, EOFError, RuntimeError,
                    asyncio.TimeoutError) as wrong:
                step = steps.throw(Away(str(wrong)))
            else:
                step = steps.send(answer)
    except StopIteration as end:
        return end.value


async def _aask(server: _Server, pool: _Pool, data: bytes) -> tuple:
    pair = pool.take()
    if pair is None:
        pair = await (asyncio.open_unix_connection(server.path) if server.path
                      else asyncio.open_connection(server.host, server.port))
    reader, writer = pair
    kept = False
    try:
        writer.write(data)
        await writer.drain()
        header = await reader.readuntil(b"\r\n\r\n")
        code, size = _sizes(header.split(b"\r\n"))
        data = await reader.readexactly(size)
        kept = pool.give(pair)
        return _split(code, data)
    finally:
        if not kept:
            writer.close()


class _Exchange:
    """One request, as steps for a driver."""

    def __init__(self, guard: "_Guard", head: dict, body: bytes) -> None:
        self.guard, self.head, self.body = guard, head, body
        self.run: dict = {}
        self.refused = False    # the answer cannot be carried

    def _repeat(self, path: str, head: dict, body: bytes,
                seconds: float) -> Steps:
        """Every call may be repeated. None: the server is away."""
        until, pause = time.monotonic() + seconds, 0.05
        while True:
            try:
                code, reply, rest = yield self.guard.server.call(path, head,
                                                                 body)
                if code != 503:
                    return code, reply, rest
            except Away as away:
                LOG.warning("once: %s: %s", path, away)
            if time.monotonic() + pause > until:
                return None
            yield pause
            pause = min(2 * pause, 1.0)
            if path == "begin":
                head = dict(head, again=True)

    def begin(self) -> Steps:
        """"run", ("pass", headers), or an Answer."""
        told = yield from self._repeat("begin", self.head, self.body, BEGIN_S)
        if told is None:
            yield from self._abandon({"id": self.head["id"]})
            return ("pass", []) if self.guard.bypass else _unavailable()
        code, reply, rest = told
        if code != 200:
            LOG.error("once: begin: %s", reply.get("text"))
            return _unavailable() if code == 401 else Answer(
                500, [("Content-Type", "text/plain")], b"")
        if reply["do"] == "send":
            return Answer(reply["status"], reply["headers"], rest)
        if reply["do"] == "pass":
            return "pass", reply.get("headers", [])
        self.run = reply
        return "run"

    def _abandon(self, head: dict) -> Steps:
        try:
            yield self.guard.server.call("abandon", head, b"")
        except Away:
            pass

    def abandon(self) -> Steps:
        """The handler was not called, and will not be."""
        yield from self._abandon({"token": self.run["token"],
                                  "route": self.guard.route})

    def _tell(self, path: str, more: dict, body: bytes) -> Steps:
        head = dict(more, token=self.run["token"], route=self.guard.route)
        told = yield from self._repeat(path, head, body,
                                       self.run["lease_ms"] / 1000)
        self.refused = told is not None and told[0] == 422
        if told is None or told[0] != 200:
            if told is not None:
                LOG.error("once: %s: %s", path, told[1].get("text"))
            return _unknown()
        return told

    def end(self, answer: Answer, stream: bool = False) -> Steps:
        """The Answer that the client gets, or of a stream its head."""
        more = {"status": answer.status, "headers": answer.headers}
        if stream or len(answer.body) > self.run["max_response"]:
            more["stream"] = True
        told = yield from self._tell("end", more, b"" if "stream" in more
                                     else answer.body)
        if isinstance(told, Answer) and self.refused:
            return (yield from self.broken())
        if isinstance(told, Answer):
            return told
        _, reply, rest = told
        if reply["do"] == "send":
            return Answer(reply["status"], reply["headers"], rest)
        return Answer(reply.get("status", answer.status),
                      reply.get("headers", answer.headers), answer.body)

    def broken(self, status: int = 502) -> Steps:
        """The handler ended without an answer: what it did is not known."""
        told = yield from self._tell("broken", {"status": status}, b"")
        if isinstance(told, Answer):
            return told
        _, reply, rest = told
        return Answer(reply["status"], reply["headers"], rest) \
            if reply["do"] == "send" else None


def _size(text: Any) -> int:
    """Of the directives: 1048576, "1024k", "1m"."""
    number = str(text).rstrip("kKmM")
    return int(number) << {"k": 10, "m": 20}.get(
        str(text)[len(number):].lower(), 0)


class _Guard:
    """What WSGI and ASGI have in common: the options."""

    def __init__(self, app: Callable, scope: Optional[Callable] = None,
                 route: Optional[dict] = None, key: Optional[Callable] = None,
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
        self.app = app
        self.route: Any = {} if route is None else route
        self.computed = [(n, f) for n, f in (
            ("scope", scope), ("key", key), ("fingerprint", fingerprint),
            ("label", label)) if f is not None]
        self.bypass = bypass
        given = self.route if isinstance(self.route, dict) else {}
        if bypass and (given.get("lost") != "takeover" or
                       given.get("store_failure") != "bypass"):
            raise ValueError("bypass needs lost=takeover and "
                             "store_failure=bypass in the route")
        if scope is None and isinstance(self.route, dict) and \
                given.get("scope") != "off":
            raise ValueError("scope: who is the caller? Or \"scope\": \"off\"")
        self.most = _size(given.get("max_request", BODY_MAX))
        self.server = _Server(serve, token_file)
        self.pool = _Pool()

    def exchange(self, source: Any, method: str, target: str, headers: list,
                 body: bytes) -> _Exchange:
        head = {"id": secrets.token_hex(16), "method": method, "target": target,
                "headers": headers, "route": self.route}
        for name, compute in self.computed:
            value = compute(source)
            if value is not None:
                head[name] = value
        return _Exchange(self, head, body)


def _is_stream(headers: Iterable) -> bool:
    return any(n.lower() == "content-type" and
               v.split(";")[0].strip().lower() in STREAMS for n, v in headers)


class WSGI(_Guard):
    """Middleware for WSGI: app = once.WSGI(app, scope=...)."""

    def __call__(self, environ: dict, start_response: Callable) -> Iterable:
        body = self._body(environ)
        x = self.exchange(environ, environ["REQUEST_METHOD"],
                          self._target(environ), list(self._lines(environ)),
                          body)
        for name in INTERNAL:
            environ.pop("HTTP_" + name.upper().replace("-", "_"), None)
        environ["wsgi.input"] = io.BytesIO(body)
        environ["CONTENT_LENGTH"] = str(len(body))
        environ.pop("HTTP_TRANSFER_ENCODING", None)
        told = _drive(x.begin(), self.server, self.pool)
        if told == "run":
            environ["HTTP_IDEMPOTENCY_ATTEMPT"] = str(x.run["attempt"])
            environ["HTTP_IDEMPOTENCY_RECORD"] = x.run["record"]
            if "key" in x.run:
                environ["HTTP_IDEMPOTENCY_KEY"] = x.run["key"]
            return self._run(x, environ, start_response)
        if isinstance(told, tuple):
            return self.app(environ, lambda status, headers, *more:
                            start_response(status, list(headers) +
                                           [tuple(h) for h in told[1]], *more))
        return self._send(told, start_response)

    def _body(self, environ: dict) -> bytes:
        size = environ.get("CONTENT_LENGTH")
        if size or environ.get("wsgi.input_terminated") or \
                environ.get("HTTP_TRANSFER_ENCODING"):
            most = self.most + 1    # one more is a 413
            return environ["wsgi.input"].read(min(int(size), most) if size
                                              else most)
        return b""

    @staticmethod
    def _target(environ: dict) -> str:
        """As the client sent it, where the server says so."""
        raw = environ.get("RAW_URI") or environ.get("REQUEST_URI")
        if raw:
            return raw
        query = environ.get("QUERY_STRING")
        return environ.get("SCRIPT_NAME", "") + environ["PATH_INFO"] + \
            ("?" + query if query else "")

    @staticmethod
    def _lines(environ: dict) -> Iterable:
        for name, value in environ.items():
            if name.startswith("HTTP_"):
                yield name[5:].replace("_", "-").title(), value
            elif name in ("CONTENT_TYPE", "CONTENT_LENGTH") and value:
                yield name.replace("_", "-").title(), value

    @staticmethod
    def _send(answer: Answer, start_response: Callable) -> list:
        headers = [tuple(h) for h in answer.headers
                   if h[0].lower() != "content-length"]
        if answer.status not in (204, 304):
            headers.append(("Content-Length", str(len(answer.body))))
        start_response("%d %s" % (answer.status, _PHRASES.get(
            answer.status, "Unknown")), headers)
        return [answer.body]

    def _run(self, x: _Exchange, environ: dict,
             start_response: Callable) -> Iterable:
        said: dict = {"written": []}

        def start(status: str, headers: list, exc_info: Any = None) -> Callable:
            said.update(status=int(status.split()[0]), headers=list(headers))
            return said["written"].append

        try:
            parts = self.app(environ, start)
            held = self._hold(x, parts, said)
        except BaseException as wrong:
            LOG.exception("once: the handler broke")
            answer = _drive(x.broken(504 if isinstance(wrong, TimeoutError)
                                     else 502), self.server, self.pool)
            if answer is None:
                raise
            return self._send(answer, start_response)
        answer = Answer(said["status"], said["headers"], b"".join(held.parts))
        told = _drive(x.end(answer, held.stream), self.server, self.pool)
        if not held.stream or told.body != answer.body:
            held.close()
            return self._send(told, start_response)
        start_response("%d %s" % (told.status, _PHRASES.get(
            told.status, "Unknown")), [tuple(h) for h in told.headers])
        return held

    @staticmethod
    def _hold(x: _Exchange, parts: Iterable, said: dict) -> "_Held":
        held = _Held(parts, said["written"])
        held.stream = _is_stream(said.get("headers", ()))
        size = 0
        while not held.stream:
            part = next(held.rest, None)    # which may be what says the head
            if part is None:
                held.parts[:0] = said["written"]
                held.close()
                break
            held.parts.append(part)
            size += len(part)
            held.stream = _is_stream(said["headers"]) or \
                size > x.run["max_response"]
        return held


class _Held:
    """The parts of an answer that are here, and then the rest."""

    def __init__(self, source: Iterable, written: list) -> None:
        self.source, self.rest, self.parts = source, iter(source), []
        self.stream, self.written, self.closed = False, written, False

    def __iter__(self) -> Iterable:
        yield from self.written
        yield from self.parts
        yield from self.rest

    def close(self) -> None:
        if not self.closed and hasattr(self.source, "close"):
            self.source.close()
        self.closed = True


from http.client import responses as _PHRASES  # noqa: E402
