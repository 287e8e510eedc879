# SPDX-License-Identifier: Apache-2.0
"""
One gateway, one upstream and one store in a folder of their own, with all that
the fault runs need beyond test/gateway: other modules, preloaded shims, strace
on workers, an upstream that answers with bytes nobody else answers with, and
the ledger that everything said and done goes into.
"""

import contextlib
import os
import pathlib
import re
import signal
import socket
import subprocess
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] /
                       "gateway"))

import gateway as harness  # noqa: E402  pylint: disable=wrong-import-position
from gateway import (Case, Client, Gateway, PATIENCE,  # noqa: E402
                     Upstream, eventually, guarded, message)
import ledger as books  # noqa: E402

LEASE = "600ms"
# What a fault of ours makes nginx say.
KILLED = [r"signal 9", r"SIGKILL", r"open socket #"]


class FaultGateway(Gateway):
    """A gateway with another module, other limits and a changed environment."""

    def __init__(self, *args, module=None, env=None, connections=None, **more):
        super().__init__(*args, **more)
        self.module = module
        self.env = dict(env or {})
        self.connections = connections

    def render(self):
        super().render()
        conf = self.folder / "nginx.conf"
        text = conf.read_text()
        if self.module:
            text = text.replace(harness.MODULE, str(self.module))
        if self.connections:
            text = text.replace("worker_connections 1024",
                                "worker_connections %d" % self.connections)
        conf.write_text(text)

    def command(self, *more):
        command = super().command(*more)
        if not self.env:
            return command
        return ["/usr/bin/env"] + ["%s=%s" % pair for pair in
                                   self.env.items()] + command


class Effect:
    """
    What the upstream does with a request: the effect, written down, and then
    an answer with bytes that are nobody else's. `manner` says how the answer
    goes out: manner(conn, data); with `hold` it waits to be let go.
    """

    def __init__(self, stand, status=201, headers=(), effect=True,
                 kept=True, manner=None, hold=False, body=None):
        self.stand = stand
        self.status = status
        self.headers = list(headers)
        self.effect = effect
        self.kept = kept
        self.manner = manner or (lambda conn, data: conn.sock.sendall(data))
        self.hold = harness.Hold(self._answer) if hold else None
        self.body = body
        self.data = b""

    def __call__(self, conn, request):
        mark = os.urandom(8).hex()
        body = b'{"made":"%s"}' % mark.encode() + (self.body or b"")
        if self.status == 204:
            body = b""
        self.stand.ledger.execute(request.path, body, self.effect, self.kept)
        self.data = message(self.status, body,
                            self.headers + [("X-Made", mark)])
        if self.hold:
            self.hold(conn, request)
        else:
            self._answer(conn, request)

    def _answer(self, conn, request):
        del request
        with contextlib.suppress(OSError):
            self.manner(conn, self.data)


class Stand:
    """A world for one cell, or for some that do not disturb one another."""

    def __init__(self, folder, more="", main="", workers=1, env=None,
                 module=None, db=None, allow=(), upstream=True, daemon=False,
                 connections=None, lease=LEASE):
        self.folder = pathlib.Path(folder)
        self.folder.mkdir(parents=True)
        self.db = pathlib.Path(db or self.folder / "store.db")
        self.ledger = books.Ledger()
        self.upstream = Upstream(upstream)
        self.upstreams = [self.upstream]
        self.outside = []
        self.cases = []
        self.options = {
            "server": guarded("/pay/", "once_lease %s; %s" % (lease, more)),
            "http": "once_store main sqlite:%s timeout=500ms;\n" % self.db,
            "main": main, "workers": workers, "module": module,
            "connections": connections, "daemon": daemon,
            "allow": KILLED + list(allow)}
        self.gateways = []
        self.env = dict(env or {})
        self.gateway = self.another(self.env)

    # -- gateways

    def another(self, env=None):
        """One more gateway on the same store and upstream."""
        home = self.folder / ("nginx%d" % len(self.gateways))
        home.mkdir()
        g = FaultGateway(home, self.upstream.port, env=env, **self.options)
        self.gateways.append(g)
        return g

    def start(self):
        self.gateway.start()
        return self

    def worker(self):
        return eventually(self.gateway.worker_pids)[0]

    # -- cases and clients

    def effect(self, **what):
        return Effect(self, **what)

    def case(self, *script):
        c = Case(self, "/pay/", *(script or (self.effect(),)))
        self.cases.append(c)
        return c

    def ask(self, case, via=None, body=None, patience=8):
        """One request, written down. None: no whole answer came."""
        port = (via or self.gateway).port
        what = {"close": True}
        if body is not None:
            what["body"] = body
        data = case.bytes("POST", **what)
        client = None
        try:
            client = Client(port)
            client.sock.settimeout(patience)
            client.send(data)
            return self.hear(case, client, body)
        except OSError:
            return None
        finally:
            if client:
                client.hang_up()

    def open(self, case, via=None):
        """Sends, and leaves the answer to hear()."""
        client = Client((via or self.gateway).port)
        client.send(case.bytes("POST", close=True))
        return client

    def hear(self, case, client, body=None):
        """Reads an answer and writes down what it was."""
        try:
            response = client.read("POST")
        except (OSError, EOFError, AssertionError, IndexError):
            self.ledger.tell_part(case.path, body, client.reader.buffer)
            return None
        self.ledger.tell(case.path, body, response)
        return response

    def settle(self, case, via=None):
        """Asks until the answer is a last one; returns its word."""
        said = [None]

        def look():
            r = self.ask(case, via)
            said.append(r)
            # Those that say "later", and what nginx made of its own troubles.
            if r is None or r.code() in ("in-flight", "store-unavailable") \
                    or books.by_nginx(r) or (r.code() and r.status >= 500):
                time.sleep(0.05)
                return None
            return r.code() or r
        try:
            r = eventually(look)
        except AssertionError as error:
            raise AssertionError("%s settles at %r" % (
                case.path, said[-1])) from error
        if isinstance(r, str):
            return r
        # What was new must be a replay the next time.
        if not r.replayed:
            again = eventually(lambda: self.ask(case, via))
            if not again.replayed and again.code() != "response-unavailable":
                return "%d and not again" % r.status
            return "new"
        return "replayed"

    # -- the end

    def finish(self):
        """Ends everything and counts. Returns the violations."""
        bad = []
        for g in self.gateways:
            if g.process is None:
                continue
            try:
                g.close()
            except AssertionError as error:
                bad.append(str(error)[:600])
        self.upstream.close()
        bad += self.upstream.errors
        log = "".join(g.log("access.log") for g in self.gateways)
        bad += self.ledger.check(books.read_store(self.db),
                                 books.read_names(log), self.outside)
        return bad

    def abandon(self):
        """After a cell that broke: ends what is left, by pid."""
        for g in self.gateways:
            with contextlib.suppress(Exception):
                for pid in g.worker_pids():
                    os.kill(pid, signal.SIGCONT)
                g.kill_all()
        self.upstream.close()


# ---- Tools ---------------------------------------------------------------


def state_of(pid):
    """"T" is stopped, "Z" dead and not waited for; None: gone."""
    with contextlib.suppress(OSError):
        text = pathlib.Path("/proc/%d/stat" % pid).read_text("latin-1")
        return text.rsplit(")", 1)[1].split()[0]
    return None


@contextlib.contextmanager
def injected(pid, call, how, when):
    """strace on all threads of a process: its n-th `call` ends like that."""
    tracer = subprocess.Popen(
        ["strace", "-f", "-p", str(pid), "-e", "trace=" + call, "-e",
         "inject=%s:%s:when=%s" % (call, how, when)],
        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
        stdin=subprocess.DEVNULL)
    os.set_blocking(tracer.stderr.fileno(), False)
    hit = {"text": ""}

    def drain():
        with contextlib.suppress(OSError, TypeError):
            hit["text"] += (tracer.stderr.read() or b"").decode("latin-1")

    def attached():
        drain()
        if tracer.poll() is not None:
            raise AssertionError("strace: " + hit["text"][-300:])
        tasks = list(pathlib.Path("/proc/%d/task" % pid).iterdir())
        return all(re.search(r"TracerPid:\t[1-9]",
                             (t / "status").read_text()) for t in tasks)

    try:
        eventually(attached)
        yield hit
    finally:
        # A tracer whose tracee has just been killed may wait for ever, and the
        # worker stays a zombie as long: it is given a moment to end by itself.
        end = time.monotonic() + 2
        with contextlib.suppress(ProcessLookupError):
            tracer.send_signal(signal.SIGTERM)
        while tracer.poll() is None:
            drain()
            time.sleep(0.01)
            if time.monotonic() > end:
                tracer.kill()
        drain()
        tracer.stderr.close()
        # A thread that was let go in the middle of a stop stays stopped.
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)
        hit["hits"] = hit["text"].count("(INJECTED") + \
            hit["text"].count("killed by SIGKILL")


def reset(sock):
    """Ends a connection with RST."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER,
                    b"\x01\0\0\0\0\0\0\0")
    sock.close()
