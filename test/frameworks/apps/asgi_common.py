# SPDX-License-Identifier: Apache-2.0
"""
asgi_common.py - the layers outside of Once, and the server, of applications of
ASGI.
"""

import os

import uvicorn

import python_common as common

# Of a server that has them all: uvicorn offers none.
EXTENSIONS = ("http.response.debug", "http.response.early_hint",
              "http.response.pathsend", "http.response.trailers",
              "http.response.push")


def header(scope, name):
    for n, v in scope["headers"]:
        if n.decode("latin-1").lower() == name:
            return v.decode("latin-1")
    return None


def do_of(scope):
    return common.read_do(header(scope, "do"))


def user_of(scope):
    return header(scope, "x-user")


def print_of(scope):
    """None: what is compared is the body."""
    return header(scope, "x-print") if do_of(scope).get("fingerprint") else None


async def read_all(receive):
    body, more = b"", True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            break
        body += message.get("body", b"")
        more = message.get("more_body", False)
    return body


def giving(body, receive):
    """ASGI's own way to give back what was read."""
    first = [{"type": "http.request", "body": body, "more_body": False}]

    async def again():
        return first.pop() if first else await receive()
    return again


class Outer:
    """Reads bodies, answers for exceptions, and takes what its extensions
    send."""

    def __init__(self, app):
        self.app = app

    async def __call__(self, scope, receive, send):
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        do, started = do_of(scope), []
        # A part of a body without a length cannot be seen: the page of the
        # middleware says so.
        if do.get("outer") == "peek" and header(scope, "content-length"):
            await receive()
        elif do.get("outer") in ("peek", "read"):
            await read_all(receive)
        elif do.get("outer") == "restore":
            receive = giving(await read_all(receive), receive)

        async def taking(message):
            kind = message["type"]
            if kind == "http.response.pathsend":
                with open(message["path"], "rb") as file:
                    await send({"type": "http.response.body",
                                "body": file.read()})
            elif kind not in EXTENSIONS:
                started.append(kind)
                message.pop("trailers", None)
                await send(message)
        scope = dict(scope, extensions={name: {} for name in EXTENSIONS})
        try:
            await self.app(scope, receive, taking)
        except Exception:
            if not do.get("catch") or started:
                raise
            await send({"type": "http.response.start", "status": 500,
                        "headers": [(b"content-length", b"5")]})
            await send({"type": "http.response.body", "body": b"outer"})


def serve(app):
    class Server(uvicorn.Server):
        async def startup(self, sockets=None):
            await super().startup(sockets)
            common.ready()
    Server(uvicorn.Config(app, host="127.0.0.1", lifespan="auto",
                          port=int(os.environ["APP_PORT"]), http="h11",
                          log_level="error", access_log=False)).run()
