# SPDX-License-Identifier: Apache-2.0
"""
test/lib/faultproxy.c itself: each rule really does what it says, at the byte
that it says. In front of it stand sockets of this file, so both ends are seen.
"""

import contextlib
import errno
import os
import pathlib
import random
import socket
import sys
import threading
import time
import types

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "lib"))

import faultproxy  # noqa: E402  pylint: disable=wrong-import-position
import servers  # noqa: E402  pylint: disable=wrong-import-position
import wire  # noqa: E402  pylint: disable=wrong-import-position

DATA = bytes(range(256)) * 40
WAIT = 20
# "Nothing comes": long enough for what would come, and no test of speed.
QUIET = 0.3


class Pair:
    """A proxy, and both ends of a connection through it."""

    def __init__(self, *rules, log=None):
        self.listener = socket.create_server((servers.LOOPBACK, 0))
        self.listener.settimeout(WAIT)
        self.proxy = servers.Proxy(self.listener.getsockname()[1], *rules,
                                   log=log)
        self.socks = []

    def connect(self):
        client = socket.create_connection((servers.LOOPBACK,
                                           self.proxy.port), WAIT)
        server, _ = self.listener.accept()
        server.settimeout(WAIT)
        self.socks += [client, server]
        return client, server

    def ends(self, way):
        """(sender, receiver) of that direction."""
        client, server = self.connect()
        return (client, server) if way == "up" else (server, client)

    def close(self):
        for s in self.socks:
            s.close()
        self.listener.close()
        self.proxy.close()


@pytest.fixture
def pair():
    with contextlib.ExitStack() as stack:
        def build(*rules, **more):
            made = Pair(*rules, **more)
            stack.callback(made.close)
            return made
        yield build


def test_a_port_that_somebody_took_is_not_insisted_on(monkeypatch):
    with socket.create_server((servers.LOOPBACK, 0)) as taken:
        ports = [taken.getsockname()[1], faultproxy.free_port()]
        monkeypatch.setattr(faultproxy, "free_port", lambda: ports.pop(0))
        proxy = servers.Proxy(taken.getsockname()[1])
        assert proxy.port != taken.getsockname()[1]
        proxy.close()


both = pytest.mark.parametrize("way", ["up", "down"])


def other(way):
    return "down" if way == "up" else "up"


def rest(sock):
    """All until the end; (bytes, how it ended)."""
    data = b""
    while True:
        try:
            more = sock.recv(65536)
        except ConnectionResetError:
            return data, "rst"
        except TimeoutError:
            return data, "open"
        if not more:
            return data, "fin"
        data += more


def exactly(sock, n):
    data = b""
    while len(data) < n:
        more = sock.recv(n - len(data))
        assert more, "ended after %d of %d" % (len(data), n)
        data += more
    return data


def quiet(sock):
    sock.settimeout(QUIET)
    with pytest.raises(TimeoutError):
        sock.recv(1)
    sock.settimeout(WAIT)


def test_without_rules_every_byte_passes_both_ways(pair):
    p = pair()
    client, server = p.connect()
    big = os.urandom(3 << 20)
    for sender, receiver in ((client, server), (server, client)):
        thread = threading.Thread(target=sender.sendall, args=(big,))
        thread.start()
        assert exactly(receiver, len(big)) == big
        thread.join()
    client.shutdown(socket.SHUT_WR)
    assert rest(server) == (b"", "fin")
    server.sendall(b"still")
    server.close()
    assert rest(client) == (b"still", "fin")
    servers.eventually(lambda: p.proxy.count() ==
                       (1, 0, len(big), len(big) + 5, 0), "it is closed")


@both
@pytest.mark.parametrize("how", ["fin", "rst"])
@pytest.mark.parametrize("n", [0, 1, 2, 100, len(DATA) - 1])
def test_cut_after_exactly_n_bytes(pair, way, how, n):
    p = pair("new %s cut %d %s" % (way, n, how))
    sender, receiver = p.ends(way)
    with contextlib.suppress(OSError):
        sender.sendall(DATA)
    data, end = rest(receiver)
    assert end == how
    # A reset may take along what was not read yet: never more, never other.
    assert data == DATA[:n] if how == "fin" else DATA[:n].startswith(data)
    assert rest(sender)[1] == how
    assert p.proxy.count()[4] == 1


@both
def test_reset_comes_behind_n_bytes_that_were_read(pair, way):
    p = pair("new %s cut 10 rst" % way)
    sender, receiver = p.ends(way)
    sender.sendall(DATA[:9])
    assert exactly(receiver, 9) == DATA[:9]
    sender.sendall(DATA[9:10])
    assert rest(receiver)[1] == "rst"


def test_step_moves_the_cut_over_every_byte(pair):
    p = pair("new down cut 0 fin step 1")
    for n in range(12):
        sender, receiver = p.ends("down")
        with contextlib.suppress(OSError):
            sender.sendall(DATA)
        assert rest(receiver) == (DATA[:n], "fin")


@both
def test_cut_of_an_open_connection_counts_from_now(pair, way):
    p = pair()
    sender, receiver = p.ends(way)
    sender.sendall(DATA)
    assert exactly(receiver, len(DATA)) == DATA
    p.proxy.do("open %s cut 7 fin" % way)
    sender.sendall(DATA)
    assert rest(receiver) == (DATA[:7], "fin")
    # The next one is not meant.
    sender, receiver = p.ends(way)
    sender.sendall(DATA)
    assert exactly(receiver, len(DATA)) == DATA


@both
def test_swallow_keeps_the_connection_and_the_other_way(pair, way):
    p = pair("new %s swallow 5" % way)
    sender, receiver = p.ends(way)
    sender.sendall(DATA)
    assert exactly(receiver, 5) == DATA[:5]
    quiet(receiver)
    receiver.sendall(b"back")
    assert exactly(sender, 4) == b"back"
    # No network takes bytes out of the middle: it stays silent.
    p.proxy.do("clear")
    sender.sendall(b"more")
    quiet(receiver)
    sender.shutdown(socket.SHUT_WR)
    quiet(receiver)


@both
def test_half_close_ends_one_way_only(pair, way):
    p = pair("new %s half 6" % way)
    sender, receiver = p.ends(way)
    sender.sendall(DATA)
    assert rest(receiver) == (DATA[:6], "fin")
    receiver.sendall(b"back")
    assert exactly(sender, 4) == b"back"


@both
@pytest.mark.parametrize("word", ["release", "clear"])
def test_hold_until_released(pair, way, word):
    p = pair("new %s hold 3" % way)
    sender, receiver = p.ends(way)
    sender.sendall(DATA)
    assert exactly(receiver, 3) == DATA[:3]
    quiet(receiver)
    receiver.sendall(b"back")
    assert exactly(sender, 4) == b"back"
    p.proxy.do(word)
    assert exactly(receiver, len(DATA) - 3) == DATA[3:]


def test_the_fault_hold_leaves_no_rule_behind(pair):
    """Also where fewer bytes came than it was to let pass."""
    p = pair()
    client, server = p.connect()
    run = types.SimpleNamespace(proxy=p.proxy, rng=random.Random(0),
                                nap=lambda least, most: None)
    wire.FAULTS["hold"](run)
    for sender, receiver in ((client, server), (server, client)):
        sender.sendall(DATA)
        assert exactly(receiver, len(DATA)) == DATA


def test_hold_does_not_take_without_end(pair):
    p = pair("new up hold 0")
    client, _ = p.connect()
    client.settimeout(1)
    sent = 0
    with pytest.raises(TimeoutError):
        while sent < 64 << 20:
            sent += client.send(b"x" * 65536)


@both
def test_delay_moves_bytes_and_keeps_their_order(pair, way):
    p = pair("new %s delay 400" % way)
    sender, receiver = p.ends(way)
    start = time.monotonic()
    for n in range(20):
        sender.sendall(DATA[n:n + 1])
        time.sleep(0.005)
    assert exactly(receiver, 1) == DATA[:1]
    assert time.monotonic() - start >= 0.39
    assert exactly(receiver, 19) == DATA[1:20]
    receiver.sendall(b"x")
    exactly(sender, 1)
    # What is sent first comes first, also when the delay is gone.
    sender.sendall(b"first")
    time.sleep(0.05)
    p.proxy.do("open %s delay 0" % way)
    sender.sendall(b"second")
    assert exactly(receiver, 11) == b"firstsecond"


@both
def test_rate_is_an_upper_bound(pair, way):
    p = pair("new %s rate 10000" % way)
    sender, receiver = p.ends(way)
    start = time.monotonic()
    sender.sendall(DATA[:5000])
    assert exactly(receiver, 5000) == DATA[:5000]
    assert time.monotonic() - start >= 0.45


@both
def test_repeat_sends_the_message_twice(pair, way):
    p = pair("new %s repeat 7" % way)
    sender, receiver = p.ends(way)
    for message in (b"aaaa", b"bbbb", b"cccc"):
        sender.sendall(message)
        # One read() of the proxy a message: wait until it has gone through.
        exactly(receiver, 4)
        if message == b"bbbb":
            assert exactly(receiver, 4) == b"bbbb"
    quiet(receiver)


@pytest.mark.parametrize("how", ["fin", "rst"])
def test_drop_ends_all_that_are_open_and_no_other(pair, how):
    p = pair()
    ends = [p.connect() for _ in range(5)]
    for client, server in ends:
        client.sendall(b"x")
        exactly(server, 1)
    p.proxy.do("drop " + how)
    for client, server in ends:
        assert rest(client)[1] == how
        assert rest(server)[1] == how
    client, server = p.connect()
    client.sendall(b"x")
    exactly(server, 1)


def test_refuse_resets_and_accept_ends_it(pair):
    p = pair()
    p.connect()
    p.proxy.do("refuse")
    with contextlib.suppress(ConnectionError):
        with socket.create_connection((servers.LOOPBACK, p.proxy.port),
                                      WAIT) as s:
            assert rest(s)[1] == "rst"
    p.proxy.do("accept")
    client, server = p.connect()
    client.sendall(b"x")
    exactly(server, 1)
    assert p.proxy.count()[0] == 3 and p.proxy.count()[4] == 1


def test_target_that_is_down_resets_the_client(pair):
    p = pair()
    p.listener.close()
    with contextlib.suppress(ConnectionResetError):
        with socket.create_connection((servers.LOOPBACK, p.proxy.port),
                                      WAIT) as s:
            assert rest(s)[1] == "rst"


def test_resets_pass_through(pair):
    p = pair()
    client, server = p.connect()
    client.sendall(b"x")
    exactly(server, 1)
    server.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER,
                      b"\1\0\0\0\0\0\0\0")
    server.close()
    with pytest.raises(OSError) as caught:
        while client.recv(1):
            pass
    assert caught.value.errno == errno.ECONNRESET


def test_log_says_what_was_done(pair, tmp_path):
    p = pair("new down cut 3 rst", log=tmp_path / "log")
    sender, receiver = p.ends("down")
    sender.sendall(b"12345")
    rest(receiver)
    p.proxy.count()  # an answer, and so a turn of its loop later
    words = [line.split()[1:] for line in
             (tmp_path / "log").read_text().splitlines()]
    assert words == [["1", "-", "accepted", "0"], ["1", "down", "cut-rst", "3"],
                     ["1", "-", "reset", "0"]]


@pytest.mark.parametrize("line", ["", "new", "new down", "new sideways cut 1 "
                                  "fin", "old down cut 1 fin", "new up fly 1",
                                  "new up cut 1", "drop", "new up delay x"])
def test_what_is_no_command_is_an_error(pair, line):
    p = pair()
    with pytest.raises(RuntimeError):
        p.proxy.do(line)
    assert p.proxy.count() == (0, 0, 0, 0, 0)
