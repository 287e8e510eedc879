#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""
django_app.py - the application of test/frameworks with Django.

    django_app.py [wsgi | asgi]     behind gunicorn, or uvicorn

Not here: after=cancel of WSGI, extra (Django sends nothing beside the answer).
Django turns each exception into a 500; inner_catch does so by the
process_exception of a middleware.
"""

import asyncio
import os
import sys
import time

import django
from django.conf import settings
from django.core.asgi import get_asgi_application
from django.core.wsgi import get_wsgi_application
from django.http import FileResponse, HttpResponse, StreamingHttpResponse
from django.urls import path
from django.utils.deprecation import MiddlewareMixin

import python_common as common
import once

NOT_HERE = {"wsgi": {"after=cancel", "extra"}, "asgi": {"extra"}}
HOW = sys.argv[1] if len(sys.argv) > 1 else "wsgi"

settings.configure(
    ROOT_URLCONF=__name__, ALLOWED_HOSTS=["*"], SECRET_KEY="of a test",
    MIDDLEWARE=[__name__ + ".Inner"], USE_TZ=True, LOGGING_CONFIG=None)
django.setup()


class Inner(MiddlewareMixin):
    """Answers for exceptions, if it is asked to."""

    @staticmethod
    def process_exception(request, _):
        if common.read_do(request.headers.get("Do")).get("inner_catch"):
            return HttpResponse("inner", status=500)
        return None


def run_of(request):
    return common.Run(common.read_do(request.headers.get("Do")),
                      request.headers.get("Idempotency-Key"))


def pay(request):
    run = run_of(request)
    run.before()
    for _ in run.steps():
        time.sleep(0.01)
    after = run.do.get("after")
    if after in ("raise", "timeout"):
        run.raises(TimeoutError() if after == "timeout" else common.Fault(after))
    return answer(run)


async def apay(request):
    run = run_of(request)
    run.before()
    try:
        for _ in run.steps():
            await asyncio.sleep(0.01)
    except asyncio.CancelledError:
        run.says("disconnect")
        raise
    after = run.do.get("after")
    if after == "raise":
        run.raises(common.Fault(after))
    if after == "timeout":
        run.says("raised")
        await asyncio.wait_for(asyncio.sleep(60), 0.01)
    if after == "cancel":
        run.says("raised")
        asyncio.current_task().cancel()
        await asyncio.sleep(60)
    return answer(run)


def answer(run):
    what = run.do.get("answer", "plain")
    if what == "stream":
        return StreamingHttpResponse(streamed(run), status=201)
    status = {"empty": 204, "error": 422}.get(what, 201)
    if what == "file":
        name = run.file()
        told = FileResponse(open(name, "rb"), status=status)
        os.remove(name)
    else:
        told = HttpResponse(run.body, status=status)
    if what == "short":
        told["Content-Length"] = str(len(run.body) + 10)
    else:
        run.finished(status)
    return told


def streamed(run):
    first, second, last = run.chunks()
    for part in first, second:
        yield part
        time.sleep(0.02)
    run.finished(201)
    yield last


urlpatterns = [path("pay", pay if HOW == "wsgi" else apay),
               path("plain", lambda request: HttpResponse("plain"))]


def serve_wsgi():
    import wsgi_common  # pylint: disable=import-outside-toplevel
    wsgi_common.serve(wsgi_common.Outer(once.WSGI(
        get_wsgi_application(), scope=lambda environ: environ.get("HTTP_X_USER"),
        route=common.ROUTE, fingerprint=wsgi_common.print_of)))


def serve_asgi():
    import asgi_common  # pylint: disable=import-outside-toplevel
    asgi_common.serve(asgi_common.Outer(once.ASGI(
        get_asgi_application(), scope=asgi_common.user_of, route=common.ROUTE,
        fingerprint=asgi_common.print_of)))


if __name__ == "__main__":
    {"wsgi": serve_wsgi, "asgi": serve_asgi}[HOW]()
