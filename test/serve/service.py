#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""
service.py - a WSGI service behind gunicorn, whose handlers are guarded by the
middleware, for the scenarios of test/gateway (ONCE_TARGET=python).

    service.py FILE SOCKET      serves the routes of the file (routes.py); the
                                servers of its stores listen at SOCKET.NAME

Its handler sends the request on to the scenario's upstream and answers with what
comes back, byte for byte.
"""

import base64
import logging
import os
import re
import socket
import sys
import urllib.parse

from gunicorn.app.base import BaseApplication

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [HERE, os.path.join(HERE, "..", "..", "middleware", "python")]

# pylint: disable=wrong-import-position
import once  # noqa: E402
import routes  # noqa: E402

NOT_FORWARDED = {"connection", "content-length", "expect", "keep-alive", "te",
                 "trailer", "transfer-encoding", "upgrade"}


logging.basicConfig(level=logging.WARNING)


class Cut(OSError):
    """The upstream was sent the request, and did not answer whole."""


def user_of(environ):
    kind, _, text = environ.get("HTTP_AUTHORIZATION", "").partition(" ")
    if kind.lower() != "basic":
        return None, None
    try:
        name, _, password = base64.b64decode(text).decode().partition(":")
    except ValueError:
        return None, None
    return name, password


def expand(template):
    """An empty text is none: the middleware takes no other."""
    return lambda environ: routes.expand(
        template,
        lambda name: environ.get("HTTP_" + name.upper().replace("-", "_")),
        urllib.parse.unquote(target_of(environ).partition("?")[0]),
        user_of(environ)[0]) or None


def target_of(environ):
    return environ["RAW_URI"]


def lines_of(environ):
    yield "Connection", "close"
    for name, value in environ.items():
        if name.startswith("HTTP_"):
            name = name[5:].replace("_", "-").title()
            if name.lower() not in NOT_FORWARDED:
                yield name, value
        elif name == "CONTENT_TYPE" and value:
            yield "Content-Type", value


class Handler:
    """Sends the request on to the upstream."""

    def __init__(self, location):
        self.location = location

    def __call__(self, environ, start_response):
        body = environ["wsgi.input"].read()
        try:
            conn = socket.create_connection(self.location.origin)
        except OSError:
            start_response("502 -", [("Idempotency-Outcome", "not-applied")])
            return [b""]
        conn.settimeout(self.location.timeout)
        file = conn.makefile("rb")
        try:
            conn.sendall(self.request(environ, body))
            status, headers = self.head(file)
            conn.settimeout(None if self.is_stream(headers)
                            else self.location.timeout)
        except OSError as wrong:
            conn.close()
            raise wrong if isinstance(wrong, TimeoutError) else Cut() from wrong
        start_response("%d -" % status, [
            (n, v) for n, v in headers if n.lower() not in NOT_FORWARDED])
        return self.parts(conn, file, headers,
                          environ["REQUEST_METHOD"] == "HEAD" or
                          status in (204, 304))

    @staticmethod
    def request(environ, body):
        lines = ["%s %s HTTP/1.1" % (environ["REQUEST_METHOD"],
                                     target_of(environ))]
        lines += ["%s: %s" % line for line in lines_of(environ)]
        lines += ["Content-Length: %d" % len(body), "", ""]
        return "\r\n".join(lines).encode("latin-1") + body

    @staticmethod
    def head(file):
        """Only a head that is whole and HTTP counts."""
        first, headers = file.readline(), []
        match = re.fullmatch(rb"HTTP/1\.[01] ([2-5]\d\d)( .*)?\r\n", first)
        if match is None:
            raise Cut()
        while (line := file.readline()) != b"\r\n":
            name, colon, value = line.decode("latin-1").partition(":")
            if not colon or not line.endswith(b"\n"):
                raise Cut()
            headers.append((name, value.strip()))
        return int(match.group(1)), headers

    @staticmethod
    def is_stream(headers):
        return any(n.lower() == "content-type" and
                   v.startswith("text/event-stream") for n, v in headers)

    def parts(self, conn, file, headers, no_body):
        values = {n.lower(): v for n, v in headers}
        try:
            if no_body:
                return
            if self.is_stream(headers) and "content-length" not in values:
                while part := file.read1(65536):
                    yield part
            elif values.get("transfer-encoding", "") == "chunked":
                yield from self.chunks(file)
            elif "content-length" in values:
                size = int(values["content-length"])
                part = file.read(size)
                if len(part) < size:
                    raise Cut()
                yield part
            else:
                yield file.read()
        except (OSError, ValueError) as wrong:
            raise wrong if isinstance(wrong, TimeoutError) else Cut() from wrong
        finally:
            conn.close()

    @staticmethod
    def chunks(file):
        while size := int(file.readline().strip() or b"x", 16):
            part = file.read(size)
            if len(part) < size or file.read(2) != b"\r\n":
                raise Cut()
            yield part
        while (line := file.readline()) != b"\r\n":  # trailers
            if not line.endswith(b"\n"):
                raise Cut()


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
        return once.WSGI(handler, route=location.route,
                         serve="unix:%s.%s" % (sock, location.store),
                         bypass="'store_failure': 'bypass'" in str(location.route),
                         **computed)

    def __call__(self, environ, start_response):
        location = routes.find(self.locations,
                               target_of(environ).partition("?")[0])
        if location is None:
            start_response("404 -", [])
            return [b""]
        if location.users:
            with open(location.users, encoding="ascii") as users:
                known = "%s:{PLAIN}%s\n" % user_of(environ) in users.readlines()
            if not known:
                start_response("401 -", [("WWW-Authenticate",
                                          'Basic realm="shop"')])
                return [b""]
        if location.denied:
            start_response("403 -", [])
            return [b""]
        return self.apps[location.path](environ, start_response)


class Server(BaseApplication):
    def __init__(self, service):
        self.service = service
        super().__init__()

    def load_config(self):
        for name, value in {
                "bind": self.service.top["listen"], "workers": 1, "threads": 200,
                "worker_class": "gthread", "keepalive": 75, "timeout": 120,
                "errorlog": self.service.top["error_log"], "loglevel": "info",
                "limit_request_field_size": 0, "graceful_timeout": 60}.items():
            self.cfg.set(name, value)

    def load(self):
        return self.service


if __name__ == "__main__":
    Server(Service(sys.argv[1], sys.argv[2])).run()
