# SPDX-License-Identifier: Apache-2.0
"""
What the tests of the client need around it: the sample service, a server that
plays a script, a proxy that drops connections, and the client's own file.

Nothing here is timed. What waits, waits for something to happen, and a dropped
connection is decided by a seeded die, which a failing test prints.
"""

import contextlib
import hashlib
import os
import pathlib
import random
import re
import socket
import sqlite3
import struct
import subprocess
import sys
import threading
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "test/gateway"))

import gateway  # noqa: E402  pylint: disable=wrong-import-position

BUILD = pathlib.Path(os.environ.get("ONCE_BUILD", ROOT / "build")).resolve()
ONCE = BUILD / "once"
AGENT = BUILD / "examples/agent/agent"
PAYMENTS = BUILD / "examples/payments/payments"
PATIENCE = 60

# No proxy of whoever runs the tests, and no file of orders of his.
ENV = {name: value for name, value in os.environ.items()
       if not name.lower().endswith("_proxy")
       and name not in ("ONCE_CLIENT_STORE", "XDG_STATE_HOME", "ONCE_STORE")}


def eventually(look):
    return gateway.eventually(look, PATIENCE)


# ---- The service ---------------------------------------------------------


class Payments:
    """The sample service: charges as often as it is asked."""

    def __init__(self, folder, *options):
        self.db = pathlib.Path(folder) / "ledger.db"
        self.process = subprocess.Popen(
            [PAYMENTS, "--db", self.db, *options], text=True,
            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        line = self.process.stdout.readline()
        self.port = int(re.fullmatch(
            r"payments: listening on 127\.0\.0\.1:(\d+)\n", line).group(1))
        self.url = "http://127.0.0.1:%d" % self.port

    def ledger(self):
        """{order: how often it was charged}."""
        with contextlib.closing(sqlite3.connect(self.db)) as db:
            return dict(db.execute(
                "SELECT name, COUNT(*) FROM charges GROUP BY name"))

    def close(self):
        self.process.kill()
        self.process.wait()
        self.process.stdout.close()


# ---- A network that cannot be trusted ------------------------------------


def read_message(sock):
    """A request or an answer with a Content-Length, or None."""
    data = b""
    while b"\r\n\r\n" not in data:
        more = sock.recv(65536)
        if not more:
            return None
        data += more
    head, _, body = data.partition(b"\r\n\r\n")
    found = re.search(rb"(?i)\r\ncontent-length:\s*(\d+)", head)
    size = int(found.group(1)) if found else 0
    while len(body) < size:
        more = sock.recv(65536)
        if not more:
            return None
        body += more
    return head, body


def slam(sock, hard):
    """Closes with FIN, or with RST."""
    with contextlib.suppress(OSError):
        if hard:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER,
                            struct.pack("ii", 1, 0))
        else:
            sock.shutdown(socket.SHUT_RDWR)
    sock.close()


class Server:
    """Accepts on a free port of the loopback, a thread for each connection."""

    def __init__(self):
        self.sock = socket.socket()
        self.sock.bind(("127.0.0.1", 0))
        self.sock.listen(256)
        self.port = self.sock.getsockname()[1]
        self.url = "http://127.0.0.1:%d" % self.port
        self.lock = threading.Lock()
        self.errors = []
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self):
        while True:
            try:
                sock, _ = self.sock.accept()
            except OSError:
                return
            sock.settimeout(PATIENCE)
            threading.Thread(target=self._one, args=(sock,),
                             daemon=True).start()

    def _one(self, sock):
        try:
            self.serve(sock)
        except OSError:
            pass  # the client has left, or was killed
        except Exception as error:  # pylint: disable=broad-except
            self.errors.append(repr(error))
        finally:
            sock.close()

    def serve(self, sock):
        raise NotImplementedError

    def close(self):
        with contextlib.suppress(OSError):
            self.sock.shutdown(socket.SHUT_RDWR)
        self.sock.close()
        assert not self.errors, self.errors


class Dropper(Server):
    """
    A proxy of one request a connection. Of the connections it drops `before`
    without reading and `after` when the request has gone on: the service works,
    and nobody is told.
    """

    def __init__(self, port, before=0.2, after=0.2, seed=1):
        self.to = port
        self.before, self.after = before, after
        self.dice = random.Random(seed)
        self.counts = {"before": 0, "after": 0, "through": 0, "replayed": 0}
        super().__init__()

    def calm(self):
        self.before = self.after = 0

    def _count(self, what):
        with self.lock:
            self.counts[what] += 1

    def serve(self, sock):
        with self.lock:
            die, hard = self.dice.random(), self.dice.random() < 0.5
        if die < self.before:
            self._count("before")
            slam(sock, hard)
            return
        request = read_message(sock)
        if request is None:
            return
        with socket.create_connection(("127.0.0.1", self.to), PATIENCE) as up:
            up.sendall(request[0] + b"\r\nConnection: close\r\n\r\n" +
                       request[1])
            if die < self.before + self.after:
                self._count("after")
                slam(sock, hard)
                while up.recv(65536):
                    pass
                return
            answer = b""
            while True:
                more = up.recv(65536)
                if not more:
                    break
                answer += more
        self._count("through")
        if b"Idempotent-Replayed: true" in answer:
            self._count("replayed")
        sock.sendall(answer)
        slam(sock, False)


class Script(Server):
    """
    Plays one step a connection and the last one for ever: bytes to answer
    with, or a function of (server, socket, head, body). Requests are kept.
    """

    def __init__(self, *steps):
        self.steps = list(steps)
        self.requests = []
        super().__init__()

    def serve(self, sock):
        request = read_message(sock)
        if request is None:
            return
        with self.lock:
            self.requests.append(request)
            step = self.steps[min(len(self.requests), len(self.steps)) - 1]
        if callable(step):
            step(self, sock, *request)
        else:
            sock.sendall(step)

    def keys(self):
        return [re.search(rb"(?i)\r\nidempotency-key: (\S+)", head).group(1)
                for head, _ in self.requests]


def answer(status, body=b"", *lines):
    text = "HTTP/1.1 %d X\r\nConnection: close\r\nContent-Length: %d\r\n" % (
        status, len(body))
    return (text + "".join(line + "\r\n" for line in lines)).encode() + \
        b"\r\n" + body


def problem(status, code, *lines):
    body = ('{"type":"urn:problem-type:once:%s","code":"%s",'
            '"safe_new_key":false}' % (code, code)).encode()
    return answer(status, body, "Content-Type: application/problem+json",
                  *lines)


# ---- The client's file and the gateway's store ---------------------------


def orders(path):
    """{id: (key, state, doubt)} of a file of orders."""
    with contextlib.closing(sqlite3.connect(path, timeout=PATIENCE)) as db:
        return {name.decode(): (key, state, doubt) for name, key, state, doubt
                in db.execute("SELECT name, key, state, doubt FROM orders")}


def stored_name(key, realm="127.0.0.1", scope=""):
    """Under which name the gateway remembers a key (docs/http.md, 1)."""
    digest = hashlib.sha256()
    for part in ("once name 2", scope, realm, key):
        digest.update(struct.pack("<Q", len(part.encode())) + part.encode())
    return digest.hexdigest()


def indeterminate(store):
    """The names that `once ls` shows as indeterminate."""
    done = subprocess.run(
        [ONCE, "--store", store, "ls", "--state", "indeterminate", "--max",
         "1000000", "--json"], env=ENV, capture_output=True, text=True,
        timeout=PATIENCE, check=False)
    assert done.returncode == 0, done.stderr
    return set(re.findall(r'"name":\s*"([0-9a-f]{64})"', done.stdout))


class Site:
    """The service, a gateway in front of it, and a network before that."""

    def __init__(self, folder, *manners, before=0.0, after=0.0, seed=1,
                 lease="1s"):
        self.folder = pathlib.Path(folder)
        self.payments = Payments(self.folder, *manners)
        home = self.folder / "nginx"
        home.mkdir()
        self.store = "sqlite:%s/store.db" % self.folder
        self.gateway = gateway.Gateway(
            home, self.payments.port,
            gateway.guarded("/charge", "once_lease %s;" % lease),
            "once_store main %s;" % self.store, workers=2,
            allow=[r"signal 9", r"SIGKILL", r"open socket #"])
        self.gateway.start()
        self.network = Dropper(self.gateway.port, before, after, seed)

    def lose_gateway(self):
        """Master and workers are killed at once, and it is started again."""
        self.gateway.kill_all()
        self.gateway.start()

    def close(self):
        try:
            self.network.close()
            self.gateway.close()
        finally:
            self.payments.close()


def nap(seconds):
    """Lets the others work for a while. Nothing depends on how long."""
    time.sleep(seconds)
