#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""request - sends broken, odd and hostile requests to a real nginx with the
module and holds it to four rules:

  1. It answers or it closes; it never leaves a client waiting.
  2. No worker dies, and the error log has no alert and no sanitizer's report.
  3. Nothing reaches the upstream twice for one (host, method, path, key).
  4. A guarded request with a key that does not parse, or with two, never
     reaches the upstream: a malformed key is never "no key".

    test/fuzz/request.py [--seconds N | --count N] [--seed N] [--store NAME]
                         [--found FOLDER]

An input is the bytes of one connection: one request, several in a row, or
something that is none. Each is sent twice. The inputs are the files of
corpus/request, changed by one seed: the same seed sends the same bytes. What
breaks a rule is written to FOLDER with the inputs before it.
"""

import argparse
import os
import pathlib
import random
import re
import socket
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "gateway"))

from gateway import ALARMS, PATIENCE, Site, guarded  # noqa: E402

CORPUS = HERE / "corpus" / "request"

SEEN = ("proxy_set_header X-Seen-Host $host; "
        "lingering_timeout 50ms; client_body_timeout 2s; ")
SERVER = (
    guarded("/pay/", SEEN) +
    guarded("/two/", SEEN + "once_two_phase on; once_in_flight wait=1s;") +
    guarded("/own/", SEEN + "once_key_required on; client_max_body_size 4k;",
            scope="$http_x_tenant"))
GUARDED = re.compile(r"/(pay|two|own)/")

# What is put into an input, beside single bytes.
WORDS = [
    b"Idempotency-Key: k1\r\n", b'Idempotency-Key: "k1"\r\n',
    b"Idempotency-Key:\r\n", b"idempotency-key: k2\r\n",
    b'Idempotency-Key: "k\\"3";a=1\r\n', b"Idempotency-Key: a,b\r\n",
    b"Idempotency-Key: \xff\r\n", b"Idempotency-Key: " + b"k" * 256 + b"\r\n",
    b"Idempotency_Key: k1\r\n", b"Idempotency-Attempt: 7\r\n",
    b"Idempotency-Outcome: not-applied\r\n", b"Idempotent-Replayed: true\r\n",
    b"Transfer-Encoding: chunked\r\n", b"Transfer-Encoding: identity\r\n",
    b"Content-Length: 0\r\n", b"Content-Length: 5\r\n",
    b"Content-Length: 18446744073709551616\r\n", b"Expect: 100-continue\r\n",
    b"Connection: close\r\n", b"Connection: Idempotency-Key\r\n",
    b"Upgrade: h2c\r\n", b"X-Tenant: a\r\n", b"Host: shop.test\r\n",
    b"Content-Encoding: gzip\r\n", b"\r\n", b"\r\n\r\n", b"0\r\n\r\n", b"\0",
    b"\n", b" ", b"\t", b"%00", b"%2e%2e/", b"//", b"?", b"#", b"POST ",
    b"PATCH ", b"HTTP/1.0", b"HTTP/1.1", b"5\r\nhello\r\n", b"ffffffff\r\n",
]


class Broken(AssertionError):
    """A rule is broken."""


def corpus():
    files = sorted(CORPUS.iterdir())
    if not files:
        raise Broken("no corpus in %s" % CORPUS)
    return [f.read_bytes() for f in files]


def mutate(draw, inputs):
    """One input, changed in one to six places."""
    data = bytearray(draw.choice(inputs))
    for _ in range(draw.randint(1, 6)):
        at = draw.randrange(len(data) + 1)
        to = min(len(data), at + draw.randint(1, 16))
        how = draw.randrange(7)
        if how == 0 and at < len(data):
            data[at] = draw.randrange(256)
        elif how == 1:
            del data[at:to]
        elif how == 2:
            data[at:at] = data[at:to] * draw.randint(1, 40)
        elif how == 3:
            other = draw.choice(inputs)
            cut = draw.randrange(len(other) + 1)
            data[at:] = other[cut:]
        elif how == 4:  # a whole line, where lines are
            lines = [m.end() for m in re.finditer(rb"\r\n", data)] or [at]
            at = draw.choice(lines)
            data[at:at] = draw.choice(WORDS)
        elif how == 5:
            data[at:at] = draw.choice(WORDS)
        else:
            data += draw.choice(inputs)
    return bytes(data[:60000])


def read_key(value):
    """The key's text by RFC 8941, loosely, or None if it is none."""
    value = value.strip(" \t")
    if value.startswith('"'):
        found = re.fullmatch(r'"((?:[ !#-\[\]-~]|\\["\\])*)"(\s*;.*)?', value)
        text = re.sub(r'\\(.)', r'\1', found.group(1)) if found else ""
    else:
        text = value if re.fullmatch(r'[!#-+\--:<-\[\]-~]+', value) else ""
    return text if 1 <= len(text) <= 255 and text.strip() else None


class Target:
    """A gateway, its upstream, and what has been seen."""

    def __init__(self, folder, store):
        self.site = Site(folder, SERVER, store).start()
        self.site.turn()
        self.pids = self.site.gateway.worker_pids()
        self.executed = {}
        self.looked_at = 0
        self.said = 0
        self.sent = 0
        self.answers = {}

    def send(self, data):
        """One connection. Rule 1."""
        got = b""
        port = self.site.gateway.port
        with socket.create_connection(("127.0.0.1", port), PATIENCE) as s:
            try:
                s.sendall(data)
                s.shutdown(socket.SHUT_WR)
            except TimeoutError as error:
                raise Broken("it does not read") from error
            except OSError:
                pass  # closed already; what it said before is still there
            try:
                while piece := s.recv(65536):
                    got += piece
            except TimeoutError as error:
                raise Broken("neither answered nor closed") from error
            except ConnectionError:
                pass
        self.sent += 1
        if got and not re.match(rb"HTTP/1\.1 [1-5]\d\d |<html>", got):
            raise Broken("not an answer: %r" % got[:80])
        word = got[9:12].decode("latin-1") if got else "closed"
        self.answers[word] = self.answers.get(word, 0) + 1
        return got

    def look(self):
        """Rules 2 to 4."""
        if self.site.gateway.worker_pids() != self.pids:
            raise Broken("a worker died:\n" + self.site.gateway.said()[-2000:])
        log = self.site.gateway.said()
        for line in log[self.said:].splitlines():
            if ALARMS.search(line):
                raise Broken("the error log has: " + line)
        self.said = len(log)
        requests = self.site.upstream.requests
        while self.looked_at < len(requests):
            self._look_at(requests[self.looked_at])
            self.looked_at += 1

    def _look_at(self, request):
        keys = request.all("Idempotency-Key")
        if request.method not in ("POST", "PATCH") or not keys or \
                not GUARDED.match(request.path):
            return
        # More than one way to write a path leads to /pay/; only those that are
        # written so are compared, since the upstream sees them as they came.
        key = read_key(keys[0])
        if len(keys) != 1 or key is None:
            raise Broken("a bad key reached the upstream: %r" % keys)
        # As it came: nginx keeps a tab around a value, and so another scope.
        tenant = tuple(re.findall(rb"(?im)^x-tenant: (.*?)\r?$", request.raw))
        name = (request.get("X-Seen-Host"), request.method, request.path,
                tenant, key)
        if name in self.executed:
            raise Broken("executed twice: %r" % (name,))
        self.executed[name] = request

    def close(self):
        self.site.close()


def run(folder, store, inputs, found=None):
    """Sends all inputs, each twice; returns what was seen."""
    target = Target(folder, store)
    recent = []
    try:
        for data in inputs:
            recent = recent[-40:] + [data]
            target.send(data)
            target.send(data)
            if target.sent % 40 == 0:
                target.look()
        target.look()
    except (Broken, OSError) as error:
        if found is not None:
            name = pathlib.Path(found) / ("request-%d" % time.time())
            name.mkdir(parents=True, exist_ok=True)
            for i, data in enumerate(recent):
                (name / ("%03d" % i)).write_bytes(data)
            print("inputs: %s" % name)
        raise Broken(str(error)) from error
    finally:
        target.close()
    if not target.executed:
        raise Broken("nothing was ever executed")
    return target


def mutations(seed, count=None, seconds=None):
    draw = random.Random(seed)
    inputs = corpus()
    end = time.monotonic() + seconds if seconds else None
    made = 0
    while (made < count) if count else (time.monotonic() < end):
        made += 1
        yield mutate(draw, inputs)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--count", type=int)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--store", default="memory")
    parser.add_argument("--found")
    args = parser.parse_args()
    print("seed %d" % args.seed, flush=True)
    with tempfile.TemporaryDirectory() as folder:
        try:
            seen = run(folder, args.store,
                       mutations(args.seed, args.count, args.seconds),
                       args.found)
        except AssertionError as error:
            print("broken: %s" % error)
            return 1
    print("stat::number_of_executed_units: %d" % seen.sent)
    print("executed %d, answers %s" % (
        len(seen.executed), dict(sorted(seen.answers.items()))))
    return 0


if __name__ == "__main__":
    os.umask(0o022)
    sys.exit(main())
