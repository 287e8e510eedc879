# SPDX-License-Identifier: Apache-2.0
"""The client of one request, over HTTP/1.1 or over HTTP/2.

Both have the same five calls: connect, send, read, leave (the connection is
closed), reset (the connection, or over HTTP/2 the stream alone, is reset).
"""

import asyncio
import collections

import gateway

import h2.config
import h2.connection
import h2.events

GOAWAY = 7
CANCEL = 8

Request = collections.namedtuple("Request", "method path host headers body")


class Client:
    def __init__(self, reader, writer):
        self.reader = reader
        self.writer = writer

    @classmethod
    async def connect(cls, port):
        return cls(*await asyncio.open_connection("127.0.0.1", port))

    def leave(self):
        self.writer.close()

    def reset(self):
        self.writer.transport.abort()

    def close(self):
        self.writer.close()


class Http1(Client):
    def send(self, request):
        lines = ["%s %s HTTP/1.1" % (request.method, request.path),
                 "Host: " + request.host, "Connection: close"]
        lines += ["%s: %s" % pair for pair in request.headers]
        self.writer.write("\r\n".join(lines).encode() + b"\r\n\r\n" +
                          request.body)

    async def read(self, answer):
        try:
            raw = await self.reader.readuntil(b"\r\n\r\n")
        except asyncio.IncompleteReadError as error:
            if error.partial:
                answer.body = error.partial
            raise
        head = answer.head = gateway.Response(raw[:-4], b"")
        try:
            if answer.method != "HEAD" and head.status not in (204, 304):
                await self._body(head, answer)
        except asyncio.IncompleteReadError as error:
            answer.body += error.partial
            answer.truncated = True
        except ValueError:
            answer.truncated = True

    async def _body(self, head, answer):
        if "chunked" in (head.get("Transfer-Encoding") or ""):
            while True:
                size = int((await self.reader.readline()) or b"x", 16)
                answer.body += await self.reader.readexactly(size)
                await self.reader.readexactly(2)
                if size == 0:
                    return
        elif head.get("Content-Length") is not None:
            answer.body = await self.reader.readexactly(
                int(head.get("Content-Length")))
        else:
            answer.body = await self.reader.read()


class Http2(Client):
    def __init__(self, reader, writer):
        super().__init__(reader, writer)
        self.http = h2.connection.H2Connection(
            h2.config.H2Configuration(header_encoding="latin-1"))
        self.stream = None
        self.raw = b""

    def _frames(self, data):
        """The whole frames so far, without GOAWAY: after it nginx goes on with
        the stream that is open, and h2 takes the connection for closed."""
        self.raw += data
        out = b""
        while len(self.raw) >= 9:
            size = 9 + int.from_bytes(self.raw[:3], "big")
            if len(self.raw) < size:
                break
            if self.raw[3] != GOAWAY:
                out += self.raw[:size]
            self.raw = self.raw[size:]
        return out

    def _flush(self):
        self.writer.write(self.http.data_to_send())

    def send(self, request):
        self.http.initiate_connection()
        # No body that is sent here is larger than the first window.
        self.stream = self.http.get_next_available_stream_id()
        self.http.send_headers(self.stream, [
            (":method", request.method), (":scheme", "http"),
            (":authority", request.host), (":path", request.path)] +
            [(name.lower(), value) for name, value in request.headers],
            end_stream=not request.body)
        for at in range(0, len(request.body), 16384):
            self.http.send_data(self.stream, request.body[at:at + 16384])
        if request.body:
            self.http.end_stream(self.stream)
        self._flush()

    def reset(self):
        self.http.reset_stream(self.stream, CANCEL)
        self._flush()

    async def read(self, answer):
        while True:
            data = await self.reader.read(65536)
            if not data:
                raise EOFError
            for event in self.http.receive_data(self._frames(data)):
                if self._take(event, answer):
                    return
            self._flush()

    def _take(self, event, answer):
        """Whether the answer has ended."""
        if isinstance(event, h2.events.ResponseReceived):
            fields = dict(event.headers)
            lines = ["HTTP/2 %s -" % fields[":status"]]
            lines += ["%s: %s" % pair for pair in event.headers
                      if pair[0] != ":status"]
            answer.head = gateway.Response(
                "\r\n".join(lines).encode("latin-1"), b"")
        elif isinstance(event, h2.events.DataReceived):
            answer.body += event.data
            self.http.acknowledge_received_data(
                event.flow_controlled_length, event.stream_id)
        elif isinstance(event, h2.events.StreamReset):
            answer.truncated = event.error_code != 0
            return True
        return isinstance(event, h2.events.StreamEnded)
