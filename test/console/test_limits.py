# SPDX-License-Identifier: Apache-2.0
"""
Nobody keeps an operator out, and nobody makes the console take memory: by real
sockets, on a socket file and on loopback, against the program as it is.
"""

import contextlib
import json
import os
import socket
import threading
import time
import uuid

import pytest

from console import eventually, gateway
from conftest import me, operators

MANY = 200       # more than it lets in
BIG = 2 << 20
# MiB; it has about 20 at rest. AddressSanitizer keeps up to 256 that were freed.
RSS_MAX = 160 + (256 if "ASAN_OPTIONS" in os.environ else 0)


@pytest.fixture(params=[True, False], ids=["socket file", "loopback"])
def console(request, world):
    it = world.console("--decide", "--operators", operators(
        world, me() + " decide,body\n"), unix=request.param)
    yield it
    it.close()
    world.consoles.remove(it)


def connect(console):
    if console.unix:
        s = socket.socket(socket.AF_UNIX)
        s.settimeout(gateway.PATIENCE)
        s.connect(str(console.socket))
        return s
    return socket.create_connection(("127.0.0.1", int(console.port)),
                                    gateway.PATIENCE)


def head(console, method="GET", path="/", *lines):
    host = "localhost" if console.unix else "127.0.0.1:%s" % console.port
    return ("%s %s HTTP/1.1\r\nHost: %s\r\n%s\r\n" % (
        method, path, host, "".join(l + "\r\n" for l in lines))).encode()


def posted(console, length):
    return head(console, "POST", "/api/v1/find", *(
        "%s: %s" % pair for pair in console.own().items()),
        "Content-Length: %d" % length)


SLOW = {
    "says nothing": lambda c: b"",
    "begins a head": lambda c: head(c)[:-2] + b"X: ",
    "begins a body": lambda c: posted(c, 1000) + b"{",
    "rests": head,
    "fetches no answer": lambda c: head(c, "GET", "/style.css") * 200,
}


def let_in(console, path):
    """On a busy machine those that gave way need a moment to end: then the
    operator is refused, and asks again."""
    def ask():
        with contextlib.suppress(ConnectionError):
            return console.get(path)
        return None
    return eventually(ask)


@pytest.mark.parametrize("manner", SLOW)
def test_who_is_slow_keeps_no_operator_out(console, manner):
    if not console.unix:
        console.log_in()
    with contextlib.ExitStack() as stack:
        for _ in range(MANY):
            s = stack.enter_context(connect(console))
            with contextlib.suppress(OSError):
                s.sendall(SLOW[manner](console))
        assert let_in(console, "session")["rights"] == \
            ["view", "decide", "body"]
        assert let_in(console, "stores")["stores"]


def test_a_head_that_never_ends_is_cut_off(console):
    """No byte extends the time that it has."""
    with connect(console) as s:
        s.sendall(head(console)[:-2])
        began = time.monotonic()
        with pytest.raises(OSError):
            while True:
                s.sendall(b"X: y\r\n")
                s.settimeout(0.2)
                with contextlib.suppress(socket.timeout):
                    if not s.recv(1):
                        raise ConnectionResetError
                assert time.monotonic() - began < 60
    assert console.process.poll() is None


def test_a_head_is_limited(console):
    with connect(console) as s:
        with contextlib.suppress(OSError):
            s.sendall(head(console, "GET", "/", "X: " + "x" * (64 << 10)))
        assert s.recv(15) in (b"HTTP/1.1 431 Re", b"")


def most_mib(console):
    """The most memory that it ever had."""
    with open("/proc/%d/status" % console.process.pid, encoding="ascii") as f:
        for line in f:
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) >> 10
    raise AssertionError


def bodies():
    yield b'{"by": [' + b"{}," * (BIG // 3 - 10) + b"{}]}"
    yield b'{"by": ' + b"[" * 100000 + b"]" * 100000 + b"}"
    yield b'{"by": ' + b'{"a":' * 2000 + b"1" + b"}" * 2001
    yield b"{" + b",".join(b'"%x":1' % i for i in range(180000)) + b"}"


@pytest.mark.parametrize("who", ["stranger", "operator"])
@pytest.mark.parametrize("path", ["find", "session", "batch", "decision"])
def test_what_nobody_has_asked_for_takes_no_memory(world, console, who, path):
    """2 MiB of {} took 130 MiB, from anybody."""
    del world
    if who == "stranger" and console.unix:
        pytest.skip("there the kernel knows everybody")
    if who == "operator" and not console.unix:
        console.log_in()
    path = {"batch": "stores/main/batch",
            "decision": "stores/main/records/%s/decision" % ("ab" * 32)
            }.get(path, path)
    statuses = []

    def send(body):
        headers = console.own(**{"Idempotency-Key": uuid.uuid4().hex})
        statuses.append(console.send("POST", "/api/v1/" + path, body,
                                     headers.items()).status)

    for body in bodies():
        threads = [threading.Thread(target=send, args=(body,))
                   for _ in range(8)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
    assert len(statuses) == 32
    assert set(statuses) <= ({400, 401, 413} if who == "stranger"
                             else {400, 413})
    assert most_mib(console) < RSS_MAX
    assert console.process.poll() is None


def test_a_body_without_end_is_cut_off(console):
    with connect(console) as s, pytest.raises(OSError):
        s.sendall(head(console, "POST", "/api/v1/find",
                       "Transfer-Encoding: chunked"))
        for _ in range(512):    # more than all buffers in between hold
            s.sendall(b"20000\r\n" + b"x" * 0x20000 + b"\r\n")
        raise AssertionError("64 MiB were taken")


def test_a_batch_of_500_is_still_read(console):
    if not console.unix:
        console.log_in()
    items = [{"name": "%064x" % i, "fence": "1", "attempt": 1}
             for i in range(1, 501)]
    r = console.ask("POST", "stores/main/batch", {
        "action": "applied", "dry": True, "items": items})
    assert r.status == 200 and len(r.json["results"]) == 500
    assert {x["verdict"] for x in r.json["results"]} == {"gone"}
    # And a decision with as large a body as the page takes.
    r = console.ask("POST", "stores/main/records/%s/decision" % ("ab" * 32), {
        "action": "success", "fence": "1", "attempt": 1, "status": 200,
        "headers": [], "body": "x" * (1 << 20), "dry": True})
    assert r.code == "gone", json.dumps(r.json)[:300]
