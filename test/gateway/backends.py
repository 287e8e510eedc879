# SPDX-License-Identifier: Apache-2.0
"""
Upstreams that speak FastCGI, uwsgi and SCGI, with the scripts of gateway.py:
each request becomes a gateway.Request, and what is sent back is bytes that the
test composes, so that it can cut them wherever it wants.
"""

import struct

from gateway import Reader, Request, Upstream

STDOUT, STDERR, END = 6, 7, 3


# ---- What they send ------------------------------------------------------


def cgi(status, body, headers=(), length=None):
    """Head and body as a CGI program writes them. `length` may lie."""
    lines = ["Status: %d Fine" % status]
    lines += ["%s: %s" % pair for pair in headers]
    if length is not None:
        lines.append("Content-Length: %d" % length)
    return "\r\n".join(lines).encode("latin-1") + b"\r\n\r\n" + body


def record(kind, content=b"", padding=0):
    """One FastCGI record of request 1."""
    return struct.pack(">BBHHBB", 1, kind, 1, len(content), padding, 0) + \
        content + b"\0" * padding


def end():
    return record(END, struct.pack(">IBxxx", 0, 0))


def fastcgi(status, body, headers=(), length=None):
    """A whole FastCGI response."""
    return record(STDOUT, cgi(status, body, headers, length)) + \
        record(STDOUT) + end()


class Keep:
    """These bytes; the connection stays open until the gateway closes it."""

    def __init__(self, *parts):
        self.data = b"".join(parts)

    def __call__(self, conn, request):
        conn.sock.sendall(self.data)


# ---- What they read ------------------------------------------------------


def request_of(variables, body):
    lines = ["%s %s HTTP/1.1" % (variables["REQUEST_METHOD"],
                                 variables["REQUEST_URI"])]
    lines += ["%s: %s" % (name[5:].replace("_", "-"), value)
              for name, value in variables.items() if name[:5] == "HTTP_"]
    return Request("\r\n".join(lines).encode("latin-1"), body)


class Backend(Upstream):
    """An Upstream of another protocol: it differs in how it reads."""

    def _requests(self, conn):
        reader = Reader(conn.sock)
        while conn.open:
            request = self.read(reader)
            if request is None:
                return
            yield request

    def read(self, reader):
        """The next request, or None where the connection ends."""
        raise NotImplementedError


class FastCgi(Backend):
    def read(self, reader):
        parameters = body = b""
        while True:
            if not reader.buffer and not reader.more():
                return None
            _, kind, _, size, padding, _ = struct.unpack(
                ">BBHHBB", reader.exactly(8))
            content = reader.exactly(size + padding)[:size]
            if kind == 4:
                parameters += content
            elif kind == 5:
                body += content
                if not content:
                    return request_of(dict(self.pairs(parameters)), body)

    @staticmethod
    def pairs(data):
        at = 0
        while at < len(data):
            sizes = []
            for _ in range(2):
                if data[at] < 128:
                    sizes.append(data[at])
                    at += 1
                else:
                    sizes.append(struct.unpack_from(">I", data, at)[0]
                                 & 0x7fffffff)
                    at += 4
            text = data[at:at + sum(sizes)].decode("latin-1")
            at += sum(sizes)
            yield text[:sizes[0]], text[sizes[0]:]


class Uwsgi(Backend):
    def read(self, reader):
        if not reader.buffer and not reader.more():
            return None
        data = reader.exactly(struct.unpack("<BHB", reader.exactly(4))[1])
        texts, at = [], 0
        while at < len(data):
            size = struct.unpack_from("<H", data, at)[0]
            texts.append(data[at + 2:at + 2 + size].decode("latin-1"))
            at += 2 + size
        variables = dict(zip(texts[::2], texts[1::2]))
        return request_of(variables, reader.exactly(
            int(variables.get("CONTENT_LENGTH") or 0)))


class Scgi(Backend):
    def read(self, reader):
        if not reader.buffer and not reader.more():
            return None
        size = b""
        while not size.endswith(b":"):
            size += reader.exactly(1)
        texts = reader.exactly(int(size[:-1])).decode("latin-1").split("\0")
        assert reader.exactly(1) == b","
        variables = dict(zip(texts[::2], texts[1::2]))
        return request_of(variables, reader.exactly(
            int(variables["CONTENT_LENGTH"] or 0)))
