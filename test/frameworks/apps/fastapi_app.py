#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""
fastapi_app.py - the application of test/frameworks with FastAPI, behind uvicorn.

inner_catch is a BaseHTTPMiddleware. Between Once and it stands a middleware that
ends the handler when its client leaves, as many services have it.
"""

import asyncio
import json
import os

import fastapi
from fastapi.responses import FileResponse, Response, StreamingResponse
from starlette.middleware.base import BaseHTTPMiddleware

import asgi_common
import python_common as common
import once

app = fastapi.FastAPI()


@app.api_route("/plain", methods=common.METHODS)
async def plain():
    return Response("plain")


@app.api_route("/pay", methods=common.METHODS)
async def pay(request: fastapi.Request):
    run = common.Run(asgi_common.do_of(request.scope),
                     request.headers.get("Idempotency-Key"))
    run.before()
    try:
        for _ in run.steps():
            await asyncio.sleep(0.01)
    except asyncio.CancelledError:
        run.says("disconnect")
        raise
    await after(run)
    return With(run, request, answer(run))


async def after(run):
    what = run.do.get("after")
    if what == "raise":
        run.raises(common.Fault(what))
    if what == "timeout":
        run.says("raised")
        await asyncio.wait_for(asyncio.sleep(60), 0.01)
    if what == "cancel":
        run.says("raised")
        asyncio.current_task().cancel()
        await asyncio.sleep(60)


def answer(run):
    what = run.do.get("answer", "plain")
    if what == "stream":
        return StreamingResponse(streamed(run), 201)
    if what == "error":
        body = json.dumps({"detail": run.key}, separators=(",", ":")).encode()
        run.finished(422, body)
        raise fastapi.HTTPException(422, run.key)
    if what == "short":
        return Response(run.body, 201, {
            "content-length": str(len(run.body) + 10)})
    if what == "file":
        told = FileResponse(run.file(), 201)
    else:
        told = Response(run.body, 204 if what == "empty" else 201)
    run.finished(told.status_code)
    return told


async def streamed(run):
    first, second, last = run.chunks()
    for part in first, second:
        yield part
        await asyncio.sleep(0.02)
    run.finished(201)
    yield last


class With(Response):
    """An answer, and what may go beside it, as far as the server offers it."""

    def __init__(self, run, request, told):
        super().__init__()
        self.run, self.told = run, told
        self.extra = [x for x in run.do.get("extra", ()) if "http.response." +
                      x.replace("hints", "hint") in
                      (request.scope.get("extensions") or {})]

    async def __call__(self, scope, receive, send):
        if "debug" in self.extra:
            await send({"type": "http.response.debug", "info": {"a": "b"}})
        if "early_hints" in self.extra:
            await send({"type": "http.response.early_hint",
                        "links": [b"</a.css>; rel=preload"]})

        async def adding(message):
            if "trailers" in self.extra and \
                    message["type"] == "http.response.start":
                message = dict(message, trailers=True)
            await send(message)
        await self.told(scope, receive, adding)
        if "trailers" in self.extra:
            await send({"type": "http.response.trailers",
                        "headers": [(b"x-sum", b"1")], "more_trailers": False})
        if isinstance(self.told, FileResponse):
            os.remove(self.told.path)


class Ends:
    """Ends the handler when its client leaves. Of an answer that is not kept it
    may learn that while it sends."""

    def __init__(self, app):   # pylint: disable=redefined-outer-name
        self.app = app

    async def __call__(self, scope, receive, send):
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        messages, done, sent = asyncio.Queue(), [], []

        async def listen():
            while True:
                message = await receive()
                messages.put_nowait(message)
                if message["type"] != "http.disconnect":
                    continue
                if not done and sum(sent) <= common.KEPT:
                    common.note("disconnect", asgi_common.header(
                        scope, "idempotency-key"))
                    handler.cancel()
                return

        async def seeing(message):
            await send(message)
            sent.append(len(message.get("body", b"")))
            if message["type"] == "http.response.body" and \
                    not message.get("more_body"):
                done.append(True)
        handler = asyncio.ensure_future(self.app(scope, messages.get, seeing))
        listener = asyncio.ensure_future(listen())
        try:
            await handler
        finally:
            listener.cancel()


async def catching(request, call_next):
    try:
        return await call_next(request)
    except Exception:   # pylint: disable=broad-except
        if asgi_common.do_of(request.scope).get("inner_catch"):
            return Response("inner", 500)
        raise


# The last one is the outermost.
app.add_middleware(BaseHTTPMiddleware, dispatch=catching)
app.add_middleware(Ends)
app.add_middleware(once.ASGI, scope=asgi_common.user_of, route=common.ROUTE,
                   fingerprint=asgi_common.print_of)
app.add_middleware(asgi_common.Outer)

if __name__ == "__main__":
    asgi_common.serve(app)
