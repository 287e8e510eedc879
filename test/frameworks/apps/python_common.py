# SPDX-License-Identifier: Apache-2.0
"""
python_common.py - what the applications in Python have in common: the log, the
words of the header `Do`, and the effect.
"""

import hashlib
import json
import os
import pathlib
import sys
import tempfile
import uuid

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[3] /
                       "middleware/python"))

ROUTE = {"in_flight": "wait=2s", "run": "10s", "max_request": "256k",
         "max_response": "256k"}
METHODS = ["GET", "POST", "PUT", "PATCH", "DELETE"]
KEPT = 256 << 10    # max_response
LARGE = 300 << 10


class Fault(Exception):
    """What a handler raises."""


def note(event, key, **more):
    """One write() for each line, so that lines never mix."""
    line = json.dumps(dict({"event": event, "key": key}, **more)) + "\n"
    out = os.open(os.environ["APP_LOG"], os.O_WRONLY | os.O_APPEND | os.O_CREAT,
                  0o644)
    try:
        os.write(out, line.encode())
    finally:
        os.close(out)


class Run:
    """One run of a handler."""

    def __init__(self, do, key):
        self.do, self.key, self.run = do, key, uuid.uuid4().hex
        self.body = json.dumps({"key": key, "n": uuid.uuid4().hex}).encode()
        if do.get("answer") == "large":
            self.body += b" " * (LARGE - len(self.body))
        elif do.get("answer") == "empty":
            self.body = b""

    def says(self, event, **more):
        note(event, self.key, run=self.run, **more)

    def finished(self, status, body=None):
        body = self.body if body is None else body
        self.says("finished", status=status,
                  body=hashlib.sha256(body).hexdigest())

    def raises(self, error):
        self.says("raised")
        raise error

    def before(self):
        if self.do.get("before") == "raise":
            self.raises(Fault("before"))
        if self.do.get("effect", True):
            self.says("effect", n=uuid.uuid4().hex)

    def steps(self):
        return range(int(self.do.get("sleep_ms", 0)) // 10)

    def chunks(self):
        third = len(self.body) // 3
        return self.body[:third], self.body[third:2 * third], \
            self.body[2 * third:]

    def file(self):
        """Whoever answers with it removes it."""
        number, path = tempfile.mkstemp()
        with open(number, "wb") as out:
            out.write(self.body)
        return path


def read_do(text):
    return json.loads(text) if text else {}


def ready():
    print("ready", flush=True)
