#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""
service.py - POST, 201 and 300 bytes, under gunicorn; for test/bench/serve.py.

    service.py plain|guarded PORT
"""

import pathlib
import sys

from gunicorn.app.base import BaseApplication

sys.path.insert(0, str(pathlib.Path(__file__).parents[3] / "middleware/python"))

# pylint: disable=wrong-import-position
import once  # noqa: E402

ANSWER = b"a" * 300


def app(environ, start):
    environ["wsgi.input"].read()
    start("201 Created", [("Content-Type", "application/json"),
                          ("Content-Length", "300")])
    return [ANSWER]


class Server(BaseApplication):
    def load_config(self):
        for name, value in {"bind": "127.0.0.1:" + sys.argv[2],
                            "worker_class": "gthread", "threads": 64,
                            "loglevel": "critical"}.items():
            self.cfg.set(name, value)

    def load(self):
        return app if sys.argv[1] == "plain" else \
            once.WSGI(app, scope=lambda environ: "u1")


Server().run()
