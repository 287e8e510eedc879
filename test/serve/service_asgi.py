#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""
service_asgi.py - the same service as service.py, for ASGI behind uvicorn
(ONCE_TARGET=asgi).

    service_asgi.py FILE SOCKET
"""

import asyncio
import base64
import logging
import os
import re
import signal
import sys
import urllib.parse

import uvicorn

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [HERE, os.path.join(HERE, "..", "..", "middleware", "python")]

# pylint: disable=wrong-import-position
import once  # noqa: E402
import routes  # noqa: E402

NOT_FORWARDED = {"connection", "content-length", "expect", "keep-alive", "te",
                 "trailer", "transfer-encoding", "upgrade"}


class Cut(OSError):
    """The upstream was sent the request, and did not answer whole."""


def header(scope, name):
    for n, v in scope["headers"]:
        if n.decode("latin-1") == name.lower():
            return v.decode("latin-1")
    return None


def user_of(scope):
    kind, _, text = (header(scope, "authorization") or "").partition(" ")
    if kind.lower() != "basic":
        return None, None
    try:
        name, _, password = base64.b64decode(text).decode().partition(":")
    except ValueError:
        return None, None
    return name, password


def target_of(scope):
    raw, query = scope["raw_path"].decode("latin-1"), scope["query_string"]
    return raw.split("?")[0] + ("?" + query.decode("latin-1") if query else "")


def expand(template):
    """An empty text is none: the middleware takes no other."""
    return lambda scope: routes.expand(
        template, lambda name: header(scope, name),
        urllib.parse.unquote(target_of(scope).partition("?")[0]),
        user_of(scope)[0]) or None


class Handler:
    """Sends the request on to the upstream."""

    def __init__(self, location):
        self.location = location

    async def __call__(self, scope, receive, send):
        body, more = b"", True
        while more:
            message = await receive()
            body += message.get("body", b"")
            more = message.get("more_body", False)
        try:
            reader, writer = await asyncio.open_connection(
                *self.location.origin, limit=1 << 24)
        except OSError:
            await self.answer(send, 502, [("Idempotency-Outcome",
                                           "not-applied")], b"")
            return
        try:
            writer.write(self.request(scope, body))
            status, lines = await self.timely(self.head(reader))
            await self.forward(scope, reader, send, status, lines)
        except asyncio.TimeoutError as wrong:
            raise TimeoutError() from wrong
        except (OSError, EOFError, ValueError) as wrong:
            raise Cut() from wrong
        finally:
            writer.close()

    @staticmethod
    def request(scope, body):
        lines = ["%s %s HTTP/1.1" % (scope["method"], target_of(scope)),
                 "Connection: close", "Content-Length: %d" % len(body)]
        lines += ["%s: %s" % (n.decode("latin-1"), v.decode("latin-1"))
                  for n, v in scope["headers"]
                  if n.decode("latin-1").lower() not in NOT_FORWARDED]
        return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1") + body

    async def timely(self, reading):
        return await asyncio.wait_for(reading, self.location.timeout)

    @staticmethod
    async def head(reader):
        first, lines = await reader.readuntil(b"\r\n"), []
        match = re.fullmatch(rb"HTTP/1\.[01] ([2-5]\d\d)( .*)?\r\n", first)
        if match is None:
            raise Cut()
        while (line := await reader.readuntil(b"\r\n")) != b"\r\n":
            name, colon, value = line.decode("latin-1").partition(":")
            if not colon:
                raise Cut()
            lines.append((name, value.strip()))
        return int(match.group(1)), lines

    async def forward(self, scope, reader, send, status, lines):
        values = {n.lower(): v for n, v in lines}
        kept = [(n, v) for n, v in lines if n.lower() not in NOT_FORWARDED]
        if values.get("content-type", "").startswith(once.STREAMS) and \
                "content-length" not in values:
            await send(self.start(status, kept))
            while part := await reader.read(65536):
                await send({"type": "http.response.body", "body": part,
                            "more_body": True})
            await send({"type": "http.response.body", "body": b""})
            return
        no_body = scope["method"] == "HEAD" or status in (204, 304)
        await self.answer(send, status, kept, b"" if no_body else
                          await self.timely(self.body(reader, values)))

    @staticmethod
    async def body(reader, values):
        if values.get("transfer-encoding", "") == "chunked":
            body = b""
            while size := int((await reader.readuntil(b"\r\n")).strip(), 16):
                body += await reader.readexactly(size)
                if await reader.readexactly(2) != b"\r\n":
                    raise Cut()
            while await reader.readuntil(b"\r\n") != b"\r\n":  # trailers
                pass
            return body
        if "content-length" in values:
            return await reader.readexactly(int(values["content-length"]))
        return await reader.read()

    @staticmethod
    def start(status, lines):
        return {"type": "http.response.start", "status": status,
                "headers": [(n.encode("latin-1"), v.encode("latin-1"))
                            for n, v in lines]}

    async def answer(self, send, status, lines, body):
        await send(self.start(status, lines))
        await send({"type": "http.response.body", "body": body})


class Service:
    """The route is chosen, and who calls is checked, before the guard."""

    def __init__(self, file, sock):
        self.top, _, self.locations = routes.read(file)
        self.apps = {x.path: self.guarded(x, sock) for x in self.locations}

    @staticmethod
    def guarded(location, sock):
        handler = Handler(location)
        if location.store is None:
            return handler
        computed = {name: expand(template) for name, template in (
            ("scope", location.scope), ("key", location.key),
            ("fingerprint", location.fingerprint)) if template}
        return once.ASGI(handler, route=location.route,
                         serve="unix:%s.%s" % (sock, location.store),
                         bypass="'store_failure': 'bypass'" in str(location.route),
                         **computed)

    async def __call__(self, scope, receive, send):
        if scope["type"] != "http":
            return
        path = target_of(scope).partition("?")[0]
        location = routes.find(self.locations, path)
        status, lines = 0, [("Content-Length", "0")]
        if location is None:
            status = 404
        elif location.users and not self.knows(location.users, scope):
            status = 401
            lines.append(("WWW-Authenticate", 'Basic realm="shop"'))
        elif location.denied:
            status = 403
        if status:
            await Handler(None).answer(send, status, lines, b"")
            return
        await self.apps[location.path](scope, receive, send)

    @staticmethod
    def knows(path, scope):
        with open(path, encoding="ascii") as users:
            return "%s:{PLAIN}%s\n" % user_of(scope) in users.readlines()


def main():
    service = Service(sys.argv[1], sys.argv[2])
    logging.basicConfig(level=logging.WARNING,
                        filename=service.top["error_log"])
    logging.getLogger("uvicorn.error").setLevel(logging.INFO)
    host, _, port = service.top["listen"].rpartition(":")
    config = uvicorn.Config(service, host=host, port=int(port), http="h11",
                            lifespan="off", access_log=False, log_config=None,
                            timeout_keep_alive=75)  # as nginx
    signal.signal(signal.SIGQUIT, lambda *_: os._exit(0))
    uvicorn.Server(config).run()


if __name__ == "__main__":
    main()
