#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""
checked.py - the service that `once serve --check` asks (docs/serve.md), in
Python, with threads of its own for a hundred requests at once.

    checked.py SOCKET PORT [BREAK]

BREAK makes it a bad one, for the test of the checker: see BROKEN.
"""

import os
import pathlib
import sys
import time
import uuid

from gunicorn.app.base import BaseApplication

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "middleware/python"))

# pylint: disable=wrong-import-position
import once  # noqa: E402

LARGE = b"x" * (2 << 20)
RUNS = []


def handler(environ, start):
    what = environ.get("HTTP_CHECK_DO")
    if what == "count":
        start("200 OK", [("Check-Runs", str(len(RUNS)))])
        return []
    RUNS.append(1)
    lines = [("Check-Run", str(uuid.uuid4()))]
    if what == "raise":
        raise RuntimeError("as it was asked")
    if what == "empty":
        start("204 No Content", lines)
        return []
    if what == "refuse":
        start("409 Conflict", [("Idempotency-Outcome", "not-applied")])
        return [b"refused\n"]
    if what == "wait":
        time.sleep(1)
    body = environ["wsgi.input"].read()
    start("201 Created", lines + [
        ("Content-Type", "application/octet-stream"),
        ("Check-Attempt", environ.get("HTTP_IDEMPOTENCY_ATTEMPT", "")),
        ("Check-Lines", " ".join(sorted(
            name[5:].lower().replace("_", "-") for name in environ
            if name.startswith("HTTP_IDEMPOT")))),
        ("Check-Bytes", environ.get("HTTP_CHECK_BYTES", "")),
        ("Check-Two", "one"), ("Check-Two", "two")])
    return [LARGE if what == "large" else body]


# What a middleware could do wrong, by what the checker says of it.
def never_replays(app):
    """Each request is another one."""
    def broken(environ, start):
        if "HTTP_IDEMPOTENCY_KEY" in environ:
            environ["HTTP_IDEMPOTENCY_KEY"] = uuid.uuid4().hex
        return app(environ, start)
    return broken


def unguarded(_):
    return handler


def cuts_bodies(app):
    def broken(environ, start):
        return [b"".join(app(environ, start))[:50]]
    return broken


def runs_behind(app):
    """The recorded answer is sent, and the handler runs all the same."""
    def broken(environ, start):
        told = []

        def seen(status, lines, *more):
            told.extend(lines)
            return start(status, lines, *more)
        parts = app(environ, seen)
        if ("Idempotent-Replayed", "true") in told:
            RUNS.append(1)
        return parts
    return broken


def one_type(app):
    def broken(environ, start):
        environ["CONTENT_TYPE"] = "text/plain"
        return app(environ, start)
    return broken


def one_scope(app):
    def broken(environ, start):
        environ["HTTP_CHECK_USER"] = "all"
        return app(environ, start)
    return broken


def swallows(app):
    """An exception becomes an answer before the middleware sees it."""
    def broken(environ, start):
        if environ.get("HTTP_CHECK_DO") == "raise":
            environ["HTTP_CHECK_DO"] = "empty"
        return app(environ, start)
    return broken


BROKEN = {f.__name__.replace("_", "-"): f for f in (
    never_replays, unguarded, cuts_bodies, runs_behind, one_type, one_scope,
    swallows)}


class Server(BaseApplication):
    def __init__(self, app, port):
        self.app, self.port = app, port
        super().__init__()

    def load_config(self):
        for name, value in {"bind": "127.0.0.1:%s" % self.port,
                            "worker_class": "gthread", "threads": 150,
                            "loglevel": "critical"}.items():
            self.cfg.set(name, value)

    def load(self):
        return self.app


def main():
    app = once.WSGI(handler, scope=lambda e: e.get("HTTP_CHECK_USER"),
                    route={"in_flight": "wait=10s"},
                    serve="unix:" + sys.argv[1])
    if len(sys.argv) > 3:
        app = BROKEN[sys.argv[3]](app)
    os.environ.pop("GUNICORN_CMD_ARGS", None)
    Server(app, sys.argv[2]).run()


if __name__ == "__main__":
    main()
