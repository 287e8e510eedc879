# SPDX-License-Identifier: Apache-2.0
"""
wsgi_common.py - the layers outside of Once, and the server, of applications of
WSGI.
"""

import io
import os

from gunicorn.app.base import BaseApplication

import python_common as common


def do_of(environ):
    return common.read_do(environ.get("HTTP_DO"))


def print_of(environ):
    """None: what is compared is the body."""
    return environ.get("HTTP_X_PRINT") if do_of(environ).get("fingerprint") \
        else None


class Outer:
    """Reads bodies, and answers for exceptions."""

    def __init__(self, app):
        self.app = app

    def __call__(self, environ, start):
        do = do_of(environ)
        source = environ["wsgi.input"]
        if do.get("outer") == "peek":
            source.read(3)
        elif do.get("outer") == "read":
            source.read()
        elif do.get("outer") == "restore":
            body = source.read()
            environ["wsgi.input"] = io.BytesIO(body)
            environ["CONTENT_LENGTH"] = str(len(body))
            environ.pop("HTTP_TRANSFER_ENCODING", None)
        if not do.get("catch"):
            return self.app(environ, start)
        try:
            return self.app(environ, start)
        except Exception:   # pylint: disable=broad-except
            start("500 Internal Server Error", [("Content-Length", "5")])
            return [b"outer"]


class Server(BaseApplication):
    def __init__(self, app):
        self.app = app
        super().__init__()

    def load_config(self):
        for name, value in {
                "bind": "127.0.0.1:" + os.environ["APP_PORT"],
                "worker_class": "gthread", "threads": 32, "workers": 1,
                "graceful_timeout": 5, "loglevel": "error",
                "when_ready": lambda server: common.ready()}.items():
            self.cfg.set(name, value)

    def load(self):
        return self.app


def serve(app):
    os.environ.pop("GUNICORN_CMD_ARGS", None)
    Server(app).run()
