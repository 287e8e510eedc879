# SPDX-License-Identifier: Apache-2.0
"""
The brokers of test/lib/servers.py: a durable message is there after SIGKILL and
restart, they listen on loopback only, nothing is left, and test/lib/faultproxy
does in front of them what it says.
"""

import base64
import contextlib
import json
import os
import pathlib
import signal
import socket
import struct
import subprocess
import sys
import threading

import pytest

LIB = pathlib.Path(__file__).resolve().parents[1] / "lib"
sys.path.insert(0, str(LIB))

import servers  # noqa: E402  pylint: disable=wrong-import-position

BODY = b"a message that must stay"
WAIT = 60
# "Nothing comes": long enough for what would come, and no test of speed.
QUIET = 0.5


# ---- Clients -------------------------------------------------------------


class Client:
    """A connection to a broker; publish() returns when it is confirmed."""

    def __init__(self, server, port=None):
        self.server = server
        self.port = port or server.port
        self.connect()

    def __enter__(self):
        return self

    def __exit__(self, *what):
        with contextlib.suppress(Exception):
            self.close()

    def open(self):
        self.sock = socket.create_connection((servers.LOOPBACK, self.port),
                                             WAIT)
        self.stream = self.sock.makefile("rb")

    def close(self):
        self.stream.close()
        self.sock.close()

    def prepare(self):
        """What must be there before the first message."""


class Amqp(Client):
    ARGUMENTS = {}

    def connect(self):
        pika = pytest.importorskip("pika")
        self.persistent = pika.BasicProperties(delivery_mode=2)
        self.connection = pika.BlockingConnection(pika.ConnectionParameters(
            servers.LOOPBACK, self.port, heartbeat=0, socket_timeout=WAIT,
            blocked_connection_timeout=WAIT))
        self.channel = self.connection.channel()
        self.channel.confirm_delivery()

    def close(self):
        self.connection.close()

    def prepare(self):
        self.channel.queue_declare("orders", durable=True,
                                   arguments=self.ARGUMENTS)

    def publish(self, body):
        self.channel.basic_publish("", "orders", body, self.persistent,
                                   mandatory=True)

    def settle(self):
        """Until what was confirmed is in a file."""

    def fetch(self):
        return self.channel.basic_get("orders")[2]


class QuorumAmqp(Amqp):
    ARGUMENTS = {"x-queue-type": "quorum"}

    def settle(self):
        self.server.settle("orders")


class JetStream(Client):
    """The protocol is text: PUB subject [reply] size, MSG ... size."""

    def connect(self):
        self.open()
        assert json.loads(self.stream.readline()[5:])["jetstream"]
        # Answers to others must not come here.
        self.inbox = os.urandom(8).hex().encode()
        self.sock.sendall(b'CONNECT {"verbose":false}\r\nSUB %s 1\r\n'
                          % self.inbox)

    def ask(self, subject, data):
        self.sock.sendall(b"PUB %s %s %d\r\n%s\r\n"
                          % (subject, self.inbox, len(data), data))
        while True:
            words = self.stream.readline().split()
            if not words:
                raise EOFError("nats hung up")
            if words[0] == b"PING":
                self.sock.sendall(b"PONG\r\n")
            elif words[0] == b"MSG":
                data = self.stream.read(int(words[-1]) + 2)
                answer = json.loads(data)
                assert "error" not in answer, answer
                return answer

    def prepare(self):
        self.ask(b"$JS.API.STREAM.CREATE.orders", json.dumps(
            {"name": "orders", "subjects": ["orders"],
             "storage": "file"}).encode())

    def publish(self, body):
        assert self.ask(b"orders", body)["stream"] == "orders"

    def settle(self):
        pass

    def fetch(self):
        got = self.ask(b"$JS.API.STREAM.MSG.GET.orders", b'{"seq":1}')
        return base64.b64decode(got["message"]["data"])


CLIENTS = {"rabbitmq": Amqp, "rabbitmq-quorum": QuorumAmqp,
           "nats": JetStream}
KINDS = ["rabbitmq", "nats"]

each_queue = pytest.mark.parametrize("queue", CLIENTS)
each_kind = pytest.mark.parametrize("kind", KINDS)


@contextlib.contextmanager
def broker(kind):
    with servers.World() as world:
        try:
            world.build(kind)
        except servers.Missing as missing:
            pytest.skip(str(missing))
        yield world.servers[kind]


# ---- Messages ------------------------------------------------------------


@each_queue
@pytest.mark.parametrize("how", ["kill", "stop"])
def test_a_durable_message_is_there_after_a_restart(queue, how):
    with broker(queue.split("-")[0]) as server:
        with CLIENTS[queue](server) as client:
            client.prepare()
            client.publish(BODY)
            client.settle()
            before = server.pid
            getattr(server, how)()
        assert not servers.alive(before)
        server.start()
        assert server.pid != before
        with CLIENTS[queue](server) as client:
            assert client.fetch() == BODY


@each_kind
def test_a_paused_broker_is_silent_and_goes_on(kind):
    with broker(kind) as server:
        server.pause()
        # The kernel still accepts; nobody answers.
        with socket.create_connection((servers.LOOPBACK, server.port),
                                      WAIT) as sock:
            sock.sendall(server.HELLO)
            sock.settimeout(QUIET)
            with pytest.raises(TimeoutError):
                sock.recv(1)
            server.resume()
            sock.settimeout(WAIT)
            assert sock.recv(len(server.ANSWER)) == server.ANSWER


def test_with_server_hands_over_the_urls_of_several():
    for program in ("rabbitmq-server", "nats-server"):
        try:
            servers.find(program)
        except servers.Missing as missing:
            pytest.skip(str(missing))
    done = subprocess.run(
        [str(LIB / "with-server"), *KINDS, "--", "sh", "-c",
         'echo "$ONCE_TEST_URL" "$ONCE_TEST_RABBITMQ_URL"'
         ' "$ONCE_TEST_NATS_URL"'
         ' "$ONCE_TEST_RABBITMQ_PORT" "$ONCE_TEST_NATS_PORT"'],
        text=True, capture_output=True, timeout=180, check=False)
    assert done.returncode == 0, done.stderr
    first, amqp, nats, *ports = done.stdout.split()
    assert first == amqp == "amqp://guest:guest@127.0.0.1:%s/%%2f" % ports[0]
    assert nats == "nats://127.0.0.1:" + ports[1]


# ---- What it is on this machine ------------------------------------------


def listening(pids):
    """(address, port) of each socket that one of them listens at."""
    inodes = set()
    for pid in pids:
        for fd in pathlib.Path("/proc/%d/fd" % pid).iterdir():
            with contextlib.suppress(OSError):
                inodes.add(os.readlink(fd))
    found = set()
    for table in ("tcp", "tcp6"):
        lines = pathlib.Path("/proc/net/" + table).read_text("ascii")
        for line in lines.splitlines()[1:]:
            words = line.split()
            if words[3] == "0A" and "socket:[%s]" % words[9] in inodes:
                address, port = words[1].split(":")
                found.add((address, int(port, 16)))
    return found


def processes_of(folder):
    """Processes that have the folder in their environment or arguments."""
    found = []
    for path in pathlib.Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            said = (path / "environ").read_bytes() + \
                (path / "cmdline").read_bytes()
            if str(folder).encode() in said and int(path.name) != os.getpid():
                found.append(int(path.name))
    return found


@each_kind
def test_it_listens_on_loopback_and_at_one_port_only(kind):
    with broker(kind) as server:
        family = [server.pid] + servers.children(server.pid)
        # 127.0.0.1, in the order of this machine's bytes
        loopback = "%08X" % struct.unpack("=I", bytes([127, 0, 0, 1]))
        assert listening(family) == {(loopback, server.port)}


@each_kind
@pytest.mark.parametrize("how", ["kill", "stop", "quit"])
def test_nothing_is_left(kind, how):
    with broker(kind) as server:
        folder = server.world.folder
        family = [server.pid] + servers.children(server.pid)
        assert server.pid in processes_of(folder)
        getattr(server, how)()
        assert not [pid for pid in family if servers.alive(pid)]
        assert not processes_of(folder)
        with socket.socket() as sock:
            assert sock.connect_ex((servers.LOOPBACK, server.port)) != 0
    assert not folder.exists()


def test_kill_takes_the_erlang_machine_and_all_below_it():
    with broker("rabbitmq") as server:
        comm = pathlib.Path("/proc/%d/comm" % server.pid).read_text("ascii")
        assert comm.strip() == "beam.smp"
        names = [pathlib.Path("/proc/%d/comm" % pid).read_text("ascii").strip()
                 for pid in servers.children(server.pid)]
        # One of them is a child of another child.
        assert "erl_child_setup" in names and "inet_gethost" in names
        os.kill(server.pid, signal.SIGSTOP)
        server.kill()
        assert not processes_of(server.world.folder)


# ---- The fault proxy in front of them ------------------------------------

through = pytest.mark.parametrize("queue", ["rabbitmq", "rabbitmq-quorum",
                                            "nats"])


@contextlib.contextmanager
def proxied(queue):
    """(server, proxy, a client through it with all prepared)"""
    with broker(queue.split("-")[0]) as server:
        proxy = servers.Proxy(server.port)
        try:
            with CLIENTS[queue](server, proxy.port) as client:
                client.prepare()
                yield server, proxy, client
        finally:
            proxy.close()


def stored(queue, server):
    """How many messages the broker has, asked without the proxy."""
    if queue == "nats":
        return server.ask("STREAM.INFO.orders", {})["state"]["messages"]
    with CLIENTS[queue](server) as client:
        return client.channel.queue_declare(
            "orders", passive=True).method.message_count


def stored_becomes(queue, server, count):
    servers.eventually(lambda: stored(queue, server) == count,
                       "the broker has %d messages" % count)


@through
@pytest.mark.parametrize("end", ["fin", "rst"])
def test_proxy_cuts_the_confirmation(queue, end):
    with proxied(queue) as (server, proxy, client):
        proxy.do("open down cut 1 " + end)
        with pytest.raises(Exception):
            client.publish(BODY)
        # Taken, and the publisher does not know: the same again is the second.
        stored_becomes(queue, server, 1)
        proxy.do("clear")
        with CLIENTS[queue](server, proxy.port) as again:
            again.publish(BODY)
        stored_becomes(queue, server, 2)


@through
def test_proxy_cuts_the_message(queue):
    with proxied(queue) as (server, proxy, client):
        proxy.do("open up cut 10 rst")
        with pytest.raises(Exception):
            client.publish(BODY)
        assert proxy.count()[4] == 1
        assert stored(queue, server) == 0


class Publishing(threading.Thread):
    """publish() while the test goes on; `outcome` is "confirmed" or not."""

    def __init__(self, client):
        super().__init__(daemon=True)
        self.client = client
        self.outcome = None
        self.start()

    def run(self):
        try:
            self.client.publish(BODY)
            self.outcome = "confirmed"
        except Exception as error:  # pylint: disable=broad-except
            self.outcome = repr(error)

    def end(self):
        self.join(WAIT)
        return self.outcome


@through
def test_proxy_holds_the_confirmation_until_it_is_released(queue):
    with proxied(queue) as (server, proxy, client):
        proxy.do("open down hold 0")
        publishing = Publishing(client)
        stored_becomes(queue, server, 1)
        assert publishing.outcome is None
        proxy.do("release")
        assert publishing.end() == "confirmed"


@through
def test_proxy_swallows_the_confirmation(queue):
    with proxied(queue) as (server, proxy, client):
        proxy.do("open down swallow 0")
        publishing = Publishing(client)
        stored_becomes(queue, server, 1)
        assert publishing.outcome is None
        # Only an end of the connection frees the publisher.
        proxy.do("drop rst")
        assert publishing.end() not in (None, "confirmed")


@through
def test_proxy_delays_and_loses_nothing(queue):
    with proxied(queue) as (server, proxy, client):
        proxy.do("open up delay 20")
        proxy.do("open down delay 20")
        for _ in range(5):
            client.publish(BODY)
        assert stored(queue, server) == 5
        assert client.fetch() == BODY
