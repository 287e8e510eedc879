# SPDX-License-Identifier: Apache-2.0
"""
left_asgi.py - a service with Starlette whose handlers are ended when their client
leaves, for servers of ASGI. The file LEDGER has a line for each run.
"""

import asyncio
import os

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.base import BaseHTTPMiddleware
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

import once

WAIT_S = 3


async def parts():
    yield b"pa"
    await asyncio.sleep(WAIT_S)
    yield b"id"


async def pay(request):
    with open(os.environ["LEDGER"], "a", encoding="ascii") as ledger:
        ledger.write("run\n")
    if request.headers["do"] == "stream":
        return StreamingResponse(parts(), 201)
    for _ in range(WAIT_S * 20):
        await asyncio.sleep(0.05)
        if await request.is_disconnected():
            raise ConnectionError("the client has left")
    return Response("paid", 201)


async def dispatch(request, call_next):
    return await call_next(request)


app = once.ASGI(
    Starlette(routes=[Route("/pay", pay, methods=["POST"])],
              middleware=[Middleware(BaseHTTPMiddleware, dispatch=dispatch)]),
    scope=lambda scope: "ann", route={"in_flight": "wait=60s"})
