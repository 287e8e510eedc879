# SPDX-License-Identifier: Apache-2.0
"""The upstreams: HTTP, FastCGI, SCGI and uwsgi on asyncio, which do what the
script of a case says and write down every request head that they have read.

A line of a script is a kind and, for the kinds with an answer, a status and
words:

    whole 201 [chunked | close] [WORD ...]   a whole answer
    cut 201 [chunked | close] [WORD ...]     half of it, then the end; FastCGI
                                             without its END_REQUEST
    short 201 [WORD ...]                     half of it, then FastCGI's
                                             END_REQUEST; for others as `cut`
    no-end 201 [close] [WORD ...]            all of it, but no END_REQUEST; for
                                             others as `cut`
    stall 201 [WORD ...]                     half of it, then nothing more
    cut-head, garbage                        not even a head
    drop, reset, hang                        nothing

    chunked       in chunks (others than HTTP: like `close`)
    close         neither length nor chunks
    stale         may be kept by a cache, and is out of date at once
    slow          after a moment
    early         before the body is read
    keep          the connection stays open
    big           100,000 bytes
    sse, ndjson   a type that is streamed
    unbuffered    with an X-Accel-Buffering: no
    part          206 and the first half of what was asked for with a Range
    accel=URI     with an X-Accel-Redirect
    outcome=WORD  with an Idempotency-Outcome
"""

import asyncio
import contextlib
import re
import socket
import struct

import case

PROTOCOLS = ("http", "fastcgi", "scgi", "uwsgi")
PEERS = 2                   # addresses of each protocol and role
SLOW = 0.08
END = b";end\n"

ANSWERING = ("whole", "cut", "short", "no-end", "stall")


class Execution:
    """One request head that was read to its end."""

    def __init__(self, number, role, protocol, headers, method, uri):
        self.number = number
        self.role = role
        self.headers = headers
        self.protocol = protocol
        self.method = method
        self.uri = uri
        self.case = headers.get("x-case")
        self.send = headers.get("x-send")
        self.sent_method = headers.get("x-method")
        # A key that stood in the body comes as a String (RFC 8941).
        self.key = headers.get("idempotency-key")
        self.key = self.key and self.key.strip('"')
        self.attempt = headers.get("idempotency-attempt")
        self.line = ""
        self.status = 0
        self.whole = "no"       # yes, no, or maybe: cannot be told apart
        self.meant = "no"       # the same, if all of it had been sent
        self.accel = None
        self.outcome = None
        self.streamed = False
        self.body = b""
        self.keep = headers.get("connection") != "close"
        self.done = False       # everything that was to be sent has been
        self.gone = False       # nginx had closed before that
        self.seconds = 0.0
        self.ended = asyncio.Event()

    @property
    def guarded(self):
        """Whether this is the client's own request and not a page of nginx."""
        return self.key is not None and self.method == self.sent_method

    def __str__(self):
        return "%s %s %s key=%s attempt=%s send=%s at %s: %s" % (
            self.protocol, self.method, self.uri, self.key, self.attempt,
            self.send, self.role, self.line)


def framing(protocol, words):
    """cl, chunked or close."""
    if "chunked" in words:
        return "chunked" if protocol == "http" else "close"
    return "close" if "close" in words else "cl"


def whole(protocol, kind, frame, accel):
    """Whether a gateway can know that this is a whole answer."""
    if kind == "whole":
        sure = frame != "close" or protocol == "fastcgi"
        return "yes" if sure else "maybe"
    if accel:
        return "maybe"          # the head is enough
    if kind == "no-end":
        if protocol == "fastcgi":
            return "no" if frame == "close" else "maybe"
        kind = "cut"
    if frame == "close" and (kind == "short" or kind == "cut" and
                             protocol != "fastcgi"):
        return "maybe"
    return "no"


def record(kind, data):
    """FastCGI records, in pieces that fit."""
    out = b""
    while True:
        part, data = data[:60000], data[60000:]
        out += struct.pack(">BBHHBB", 1, kind, 1, len(part), 0, 0) + part
        if not data:
            return out


class Play:
    """The bytes of an answer, and what comes after them."""

    def __init__(self, execution, line):
        e = execution
        words = line.split()
        kind = words[0]
        e.line = line
        self.slow = "slow" in words
        self.early = "early" in words
        self.keep = ("keep" in words and kind == "whole" and e.keep and
                     "close" not in words and e.protocol in ("http", "fastcgi"))
        self.data = b""
        self.after = "close"
        if kind in ("drop", "reset", "hang"):
            self.after = {"drop": "close"}.get(kind, kind)
            return
        if kind == "garbage":
            self.data = b"not an answer at all, in no protocol\n\n"
            return
        if kind == "cut-head":
            self.data = self.wrap(e.protocol, self.first(e.protocol, 201) +
                                  b"X-Up-Part: y")
            return
        assert kind in ANSWERING, line
        e.status = int(words[1])
        frame = framing(e.protocol, words)
        for word in words[2:]:
            name, _, value = word.partition("=")
            if name == "accel":
                e.accel = value
            elif name == "outcome":
                e.outcome = value
        e.whole = whole(e.protocol, kind, frame, e.accel)
        if e.status > 599:
            e.whole = "maybe"
        e.streamed = bool({"sse", "ndjson", "unbuffered"} & set(words))
        self.answer(e, kind, frame, words)

    @staticmethod
    def first(protocol, status):
        if protocol in ("http", "uwsgi"):
            return b"HTTP/1.1 %d Fine\r\n" % status
        return b"Status: %d Fine\r\n" % status

    @staticmethod
    def type(words):
        return (b"text/event-stream" if "sse" in words else
                b"application/x-ndjson" if "ndjson" in words else
                b"text/plain")

    @staticmethod
    def wrap(protocol, data):
        return record(6, data) if protocol == "fastcgi" else data

    def answer(self, e, kind, frame, words):
        text = b"x=%d key=%s status=%d role=%s;" % (
            e.number, (e.key or "-").encode(), e.status, e.role.encode())
        if "big" in words:
            text += b"y" * 100000
        body = text.ljust(80, b".") + END
        if e.status in (204, 304):
            body = b""
        e.body = body
        head = self.first(e.protocol, e.status)
        head += b"Content-Type: %s\r\nX-Up-Number: %d\r\nX-Up-Key: %s\r\n" % (
            self.type(words), e.number, (e.key or "-").encode())
        if "unbuffered" in words:
            head += b"X-Accel-Buffering: no\r\n"
        if "stale" in words:
            head += b"X-Accel-Expires: @1\r\n"
        if "part" in words and frame == "cl" and "range" in e.headers:
            body = body[:len(body) // 2]
            head = head.replace(b" %d Fine" % e.status, b" 206 Fine")
            head += b"Content-Range: bytes 0-%d/%d\r\n" % (
                len(body) - 1, len(e.body))
            e.status = 206
            e.body = body
        if e.accel:
            head += b"X-Accel-Redirect: %s\r\n" % e.accel.encode()
        if e.outcome:
            head += b"Idempotency-Outcome: %s\r\n" % e.outcome.encode()
        if e.status in (204, 304):
            frame = "close"
            e.whole = "yes" if kind in ("whole", "cut", "stall") and \
                e.protocol == "http" or kind == "whole" else "maybe"
        elif frame == "cl":
            head += b"Content-Length: %d\r\n" % len(body)
        elif frame == "chunked":
            head += b"Transfer-Encoding: chunked\r\n"
        if e.protocol == "http" and not self.keep:
            head += b"Connection: close\r\n"
        half = body[:len(body) // 2] if kind in ("cut", "short", "stall") or \
            kind == "no-end" and e.protocol != "fastcgi" else body
        if frame == "chunked":
            sent = b"%x\r\n%s\r\n" % (len(half), half)
            sent += b"" if len(half) < len(body) else b"0\r\n\r\n"
        else:
            sent = half
        self.data = self.wrap(e.protocol, head + b"\r\n" + sent)
        if e.protocol == "fastcgi" and kind in ("whole", "short"):
            self.data += record(6, b"") + record(3, b"\0" * 8)
        if kind == "stall":
            self.after = "hang"


def header_name(text):
    """HTTP_X_CASE becomes x-case."""
    if text.startswith("HTTP_"):
        text = text[5:]
    return text.lower().replace("_", "-")


class Upstreams:
    """All servers. `cases` is the driver's: identity -> its log."""

    def __init__(self):
        self.ports = {}         # http_main_1 -> 127.0.0.1:PORT
        self.logs = {}
        self.number = 0
        self.servers = []
        self.sockets = []
        self.errors = []

    async def start(self):
        for protocol in PROTOCOLS:
            for role in case.ROLES:
                for peer in range(1, PEERS + 1):
                    await self._listen(protocol, role, peer)
        # Nobody listens; everybody is shut out at once; nobody ever reads.
        self.ports["dead"] = self._socket(False)
        self.ports["mute"] = self._socket(True)
        server = await asyncio.start_server(
            lambda r, w: w.transport.abort(), "127.0.0.1", 0)
        self.servers.append(server)
        self.ports["deaf"] = self._address(server)

    def _socket(self, listen):
        sock = socket.socket()
        sock.bind(("127.0.0.1", 0))
        if listen:
            sock.listen(4000)
        self.sockets.append(sock)
        return "127.0.0.1:%d" % sock.getsockname()[1]

    @staticmethod
    def _address(server):
        return "127.0.0.1:%d" % server.sockets[0].getsockname()[1]

    async def _listen(self, protocol, role, peer):
        async def serve(reader, writer):
            try:
                while await self._serve(protocol, role, reader, writer):
                    pass
            except (OSError, EOFError, asyncio.IncompleteReadError):
                pass
            except Exception as error:  # pylint: disable=broad-except
                self.errors.append(repr(error))
            finally:
                writer.close()

        server = await asyncio.start_server(serve, "127.0.0.1", 0,
                                            backlog=1000)
        self.servers.append(server)
        self.ports["%s_%s_%d" % (protocol, role, peer)] = \
            self._address(server)

    def close(self):
        for server in self.servers:
            server.close()
        for sock in self.sockets:
            sock.close()

    # -- one request

    async def _serve(self, protocol, role, reader, writer):
        headers, method, uri, body = await getattr(
            self, "_head_" + protocol)(reader)
        self.number += 1
        e = Execution(self.number, role, protocol, headers, method, uri)
        log = self.logs.get(e.case)
        play = Play(e, log.next_line(e) if log else "whole 200")
        if log is not None:
            log.began(e)
        started = asyncio.get_running_loop().time()
        try:
            if not play.early:
                await body()
            return await self._play(play, log is not None and log.slow, e,
                                    reader, writer)
        except (OSError, EOFError):
            e.gone = not e.done
            raise
        finally:
            e.seconds = asyncio.get_running_loop().time() - started
            e.ended.set()

    @staticmethod
    async def _play(play, slow, e, reader, writer):
        if play.slow or slow:
            await asyncio.sleep(SLOW)
            # A closed connection shows at the next write, or not at all.
            if reader.at_eof() or writer.transport.is_closing():
                e.gone = True
                return False
        if play.data:
            writer.write(play.data)
            await writer.drain()
        e.done = True
        if play.after == "hang":
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(reader.read(), 10)
        elif play.after == "reset":
            writer.transport.get_extra_info("socket").setsockopt(
                socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            writer.transport.abort()
            return False
        return play.keep

    # -- the heads

    async def _head_http(self, reader):
        try:
            raw = await reader.readuntil(b"\r\n\r\n")
        except asyncio.LimitOverrunError as error:
            raise EOFError from error
        lines = raw.decode("latin-1").split("\r\n")
        method, uri, _ = lines[0].split(" ")
        headers = {}
        for line in lines[1:]:
            name, _, value = line.partition(":")
            headers[name.lower()] = value.strip()

        async def body():
            if "chunked" in headers.get("transfer-encoding", ""):
                await reader.readuntil(b"0\r\n\r\n")
            else:
                await reader.readexactly(int(headers.get("content-length", 0)))

        return headers, method, uri, body

    async def _head_fastcgi(self, reader):
        async def read():
            head = await reader.readexactly(8)
            _, kind, _, size, pad, _ = struct.unpack(">BBHHBB", head)
            data = await reader.readexactly(size + pad)
            return kind, data[:size]

        params = b""
        keep = 0
        while True:
            kind, data = await read()
            if kind == 1:
                keep = data[2] & 1
            if kind == 4:
                if not data:
                    break
                params += data
        headers = {}
        at = 0

        def length():
            nonlocal at
            n = params[at]
            at += 1
            if n & 0x80:
                n = (n & 0x7F) << 24 | int.from_bytes(params[at:at + 3], "big")
                at += 3
            return n

        while at < len(params):
            sizes = length(), length()
            name = params[at:at + sizes[0]].decode("latin-1")
            at += sizes[0]
            headers[header_name(name)] = \
                params[at:at + sizes[1]].decode("latin-1")
            at += sizes[1]
        headers["connection"] = "" if keep else "close"

        async def body():
            while (await read())[1]:
                pass

        return (headers, headers.get("request-method"),
                headers.get("document-uri"), body)

    async def _head_scgi(self, reader):
        size = await reader.readuntil(b":")
        raw = await reader.readexactly(int(size[:-1]) + 1)
        words = raw[:-2].decode("latin-1").split("\0")
        return self._cgi(dict(zip(words[::2], words[1::2])), reader)

    async def _head_uwsgi(self, reader):
        _, size, _ = struct.unpack("<BHB", await reader.readexactly(4))
        raw = await reader.readexactly(size)
        headers = {}
        at = 0
        words = []
        while at < size:
            n = int.from_bytes(raw[at:at + 2], "little")
            words.append(raw[at + 2:at + 2 + n].decode("latin-1"))
            at += 2 + n
        headers = dict(zip(words[::2], words[1::2]))
        return self._cgi(headers, reader)

    @staticmethod
    def _cgi(params, reader):
        headers = {header_name(n): v for n, v in params.items()}

        async def body():
            await reader.readexactly(int(headers.get("content-length") or 0))

        return (headers, headers.get("request-method"),
                headers.get("document-uri"), body)


class Log:
    """What reached the upstreams for one case."""

    def __init__(self, the_case):
        self.case = the_case
        self.executions = []
        self.slow = False       # whatever its script says
        self.met = {role: 0 for role in case.ROLES}
        self.fresh = asyncio.Event()

    def next_line(self, e):
        """Pages and requests without a key always get a whole answer."""
        lines = self.case.scripts[e.role]
        if not lines or (e.role == "main" and not e.guarded):
            return "whole 200"
        n = self.met[e.role]
        self.met[e.role] += 1
        return lines[min(n, len(lines) - 1)]

    def began(self, e):
        self.executions.append(e)
        self.fresh.set()


def number_of(body):
    """The execution whose answer this is, or None."""
    found = re.match(rb"x=(\d+) ", body)
    return int(found.group(1)) if found else None
