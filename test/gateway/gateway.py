# SPDX-License-Identifier: Apache-2.0
"""
The harness of the gateway scenarios: an upstream, a real nginx with the module
and a client, so that a test shows all three on one screen.

Upstream  raw sockets and threads. It records every request byte as it was seen
          and plays a script: answer with these bytes, hold until the test lets
          go, read and drop, read and reset, stop in the middle.
Gateway   writes an nginx.conf, starts nginx in a folder of its own, and at the
          end looks through the logs and the store for what must not be there.
Client    a raw socket; it keeps header order and exact bytes, and hangs up with
          shutdown(), because Python may keep a descriptor open after close().
Case      one path and one key nobody else uses, with its upstream script, so
          that the tests of a file can share one gateway.

What the harness refuses: sleeping for luck. A test waits for an event, or it
asks again until the answer is there (`eventually`).

Environment:
  ONCE_MODULE     the module, default build/ngx_http_once_module.so
  ONCE_NGINX_BIN  the nginx, default nginx. (Not NGINX: nginx parses that name.)
  ONCE_NGINX_MODULES  the folder of its dynamic modules, default Debian's
  ONCE_PLAIN      1: leave the module and its directives out. The suite must
                  then fail nearly everywhere; it proves that tests can fail.
  ONCE_TARGET     nginx (the default), or guarded: a server whose handlers are
                  guarded from inside (test/guard/server.c). It gets the same
                  directives, in a file of its own; what is a matter of nginx
                  and not of the contract is marked nginx_only and skipped.
  ONCE_LOG_LEVEL  of nginx's error log, default info; debug needs an nginx that
                  was built --with-debug, as Debian's is
  ONCE_GUARDED    that server, default test/guarded_server in ONCE_BUILD
  ONCE_GUARDED_THREADS
                  connection: it has a thread for each connection
"""

import collections
import contextlib
import functools
import itertools
import json
import os
import pathlib
import re
import select
import shutil
import signal
import socket
import sqlite3
import struct
import subprocess
import sys
import threading
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "test" / "lib"))
sys.path.insert(1, str(ROOT / "test" / "serve"))

# pylint: disable=wrong-import-position
from machine import free_port  # noqa: E402
import marks  # noqa: E402
import newstore  # noqa: E402
import storelist  # noqa: E402
from marks import MARK  # noqa: E402,F401
from patience import Patience  # noqa: E402

MODULE = os.path.abspath(
    os.environ.get("ONCE_MODULE", ROOT / "build/ngx_http_once_module.so"))
NGINX = shutil.which(os.environ.get("ONCE_NGINX_BIN", "nginx"))
NGINX_MODULES = os.environ.get("ONCE_NGINX_MODULES", "/usr/lib/nginx/modules")
PLAIN = os.environ.get("ONCE_PLAIN") == "1"
TARGET = os.environ.get("ONCE_TARGET", "nginx")
LEVEL = os.environ.get("ONCE_LOG_LEVEL", "info")
# A server whose stores stand in for those of SQLite:
#    test/lib/with-server mysql -- sh -c \
#        'ONCE_GATEWAY_URL=$ONCE_TEST_URL pytest test/gateway'
STAND_IN = os.environ.get("ONCE_GATEWAY_URL")
BUILD = pathlib.Path(os.environ.get("ONCE_BUILD", ROOT / "build"))
THREADED = os.environ.get("ONCE_GUARDED_THREADS") == "connection"
GUARDED = os.path.abspath(
    os.environ.get("ONCE_GUARDED", BUILD / "test/guarded_server"))

# How long anything may take before a test gives up. Not a measure of anything:
# a test that passes does not come near it.
PATIENCE = 60

TRUNCATED = "the connection ended in the middle of an answer"


def eventually(look, patience=PATIENCE):
    """Asks again until the answer is true; returns that answer."""
    limit = Patience(patience)
    while True:
        seen = look()
        if seen:
            return seen
        assert not limit.over(), \
            "did not happen in %d s of an idle machine" % patience
        time.sleep(0.02)


# ---- Messages ------------------------------------------------------------


class Head:
    """Header lines in their order, as text in Latin-1."""

    def __init__(self, raw):
        self.raw = raw
        lines = raw.decode("latin-1").split("\r\n")
        self.start = lines[0]
        self.headers = []
        for line in lines[1:]:
            if line:
                name, _, value = line.partition(":")
                self.headers.append((name, value.strip(" \t")))

    def all(self, name):
        return [v for n, v in self.headers if n.lower() == name.lower()]

    def get(self, name):
        values = self.all(name)
        assert len(values) <= 1, "%s stands there twice: %r" % (name, values)
        return values[0] if values else None


class Request(Head):
    """A request as the upstream saw it."""

    def __init__(self, raw, body):
        super().__init__(raw)
        self.body = body
        self.method, self.target, self.version = self.start.split(" ")
        self.path, _, self.query = self.target.partition("?")


class Response(Head):
    """An answer as the client saw it."""

    def __init__(self, raw, body, truncated=False):
        super().__init__(raw)
        self.body = body
        self.truncated = truncated
        self.status = int(self.start.split(" ")[1])

    @property
    def once(self):
        return self.get("Idempotency-Status")

    @property
    def replayed(self):
        return self.get("Idempotent-Replayed") == "true"

    def code(self):
        """The problem's code, or None if this is no problem of ours."""
        if self.get("Content-Type") != "application/problem+json":
            return None
        return json.loads(self.body).get("code")

    def __repr__(self):
        return "<%s %r %r>" % (self.start, self.headers, self.body[:300])


class Reader:
    """Reads messages from a socket, byte for byte."""

    def __init__(self, sock):
        self.sock = sock
        self.buffer = b""

    def more(self):
        data = self.sock.recv(65536)
        self.buffer += data
        return bool(data)

    def head(self):
        """Up to and without the empty line; None at a clean end."""
        while b"\r\n\r\n" not in self.buffer:
            if not self.more():
                if not self.buffer:
                    return None
                raise EOFError(TRUNCATED)
        raw, self.buffer = self.buffer.split(b"\r\n\r\n", 1)
        return raw

    def line(self):
        while b"\r\n" not in self.buffer:
            if not self.more():
                raise EOFError(TRUNCATED)
        raw, self.buffer = self.buffer.split(b"\r\n", 1)
        return raw

    def exactly(self, n):
        while len(self.buffer) < n:
            if not self.more():
                raise EOFError(TRUNCATED)
        raw, self.buffer = self.buffer[:n], self.buffer[n:]
        return raw

    def to_end(self):
        while self.more():
            pass
        raw, self.buffer = self.buffer, b""
        return raw

    def chunked(self):
        body = b""
        while True:
            size = int(self.line().split(b";")[0], 16)
            if size == 0:
                while self.line():
                    pass
                return body
            body += self.exactly(size)
            self.exactly(2)

    def body(self, head):
        if "chunked" in (head.get("Transfer-Encoding") or ""):
            return self.chunked()
        return self.exactly(int(head.get("Content-Length") or 0))


# ---- The upstream's scripts ----------------------------------------------


def message(status, body, headers, reason="Fine"):
    """The exact bytes of an answer with a Content-Length."""
    lines = ["HTTP/1.1 %d %s" % (status, reason)]
    lines += ["%s: %s" % pair for pair in headers]
    if status not in (204, 304):
        lines.append("Content-Length: %d" % len(body))
    return "\r\n".join(lines).encode("latin-1") + b"\r\n\r\n" + body


class Raw:
    """These bytes, then the end of the connection."""

    def __init__(self, data):
        self.data = data

    def __call__(self, conn, request):
        conn.sock.sendall(self.data)
        conn.close()


class Answer:
    """A whole answer; the connection stays open if the request lets it."""

    def __init__(self, status=201, body=b"made\n", headers=(), reason="Fine"):
        self.data = message(status, body, headers, reason)

    def __call__(self, conn, request):
        conn.sock.sendall(self.data)


class Drop:
    """Read the request, then close without a word."""

    def __call__(self, conn, request):
        conn.close()


class Reset:
    """Read the request, then reset the connection."""

    def __call__(self, conn, request):
        conn.reset()


class Silent:
    """Read the request and never answer."""

    def __call__(self, conn, request):
        while not conn.upstream.closing.wait(0.05) and not conn.peer_gone():
            pass
        conn.close()


class Hold:
    """Read the request, tell the test, and go on when the test says so."""

    def __init__(self, then=None, before=b""):
        self.then = then or Answer()
        self.before = before
        self.reached = threading.Event()
        self.go = threading.Event()
        self.conn = None

    def __call__(self, conn, request):
        self.conn = conn
        conn.sock.sendall(self.before)
        self.reached.set()
        while not self.go.wait(0.05):
            if conn.upstream.closing.is_set():
                conn.close()
                return
        with contextlib.suppress(OSError):
            self.then(conn, request)

    def wait(self):
        assert self.reached.wait(PATIENCE), "nothing reached the upstream"


class Connection:
    def __init__(self, upstream, sock):
        self.upstream = upstream
        self.sock = sock
        self.open = True

    def close(self):
        if self.open:
            self.open = False
            with contextlib.suppress(OSError):
                self.sock.shutdown(socket.SHUT_RDWR)
            self.sock.close()

    def reset(self):
        self.open = False
        self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER,
                             struct.pack("ii", 1, 0))
        self.sock.close()

    def peer_gone(self, patience=0):
        """Whether the gateway has closed its side."""
        if not select.select([self.sock], [], [], patience)[0]:
            return False
        with contextlib.suppress(ConnectionError):
            return self.sock.recv(1, socket.MSG_PEEK) == b""
        return True


class Upstream:
    """
    A server that counts. A request belongs to the Case whose identity is a
    part of its path; without one it gets a plain 200. It counts as executed
    once it has been read to its end.
    """

    def __init__(self, listen=True):
        self.sock = socket.socket()
        self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        # Bound and not listening: connections are refused, and the port is
        # nobody else's.
        self.sock.bind(("127.0.0.1", 0))
        self.port = self.sock.getsockname()[1]
        self.cases = {}
        self.requests = []
        self.connections = 0
        self.errors = []
        self.lock = threading.Lock()
        self.closing = threading.Event()
        if listen:
            self.listen()

    def listen(self):
        self.sock.listen(1024)
        threading.Thread(target=self._accept, daemon=True).start()

    def count(self, path):
        with self.lock:
            return len([r for r in self.requests if r.path == path])

    def close(self):
        self.closing.set()
        with contextlib.suppress(OSError):
            self.sock.shutdown(socket.SHUT_RDWR)
        self.sock.close()

    def _accept(self):
        while True:
            try:
                sock, _ = self.sock.accept()
            except OSError:
                return
            with self.lock:
                self.connections += 1
            conn = Connection(self, sock)
            threading.Thread(target=self._serve, args=(conn,),
                             daemon=True).start()

    def _serve(self, conn):
        try:
            # A TLS greeting: without this both sides would wait for ever.
            if conn.sock.recv(1, socket.MSG_PEEK) == b"\x16":
                return
            for request in self._requests(conn):
                self._script(request)(conn, request)
        except (EOFError, OSError, ValueError, UnicodeDecodeError):
            pass  # The gateway went away in the middle: not a request.
        except Exception as error:  # pylint: disable=broad-except
            self.errors.append(repr(error))
        finally:
            conn.close()

    def _requests(self, conn):
        reader = Reader(conn.sock)
        while conn.open:
            raw = reader.head()
            if raw is None:
                return
            request = Request(raw, b"")
            request.body = reader.body(request)
            yield request
            if request.version == "HTTP/1.0" or \
                    request.get("Connection") == "close":
                return

    def _script(self, request):
        found = re.search(r"/(c\d+)(?=[/.]|$)", request.path)
        with self.lock:
            self.requests.append(request)
            case = self.cases.get(found.group(1)) if found else None
            if case is None:
                return Answer(200, b"plain\n")
            case.requests.append(request)
            n = len(case.requests)
            return case.script[min(n, len(case.script)) - 1]


# ---- The client ----------------------------------------------------------


class Client:
    """One connection to the gateway."""

    def __init__(self, port):
        self.sock = socket.create_connection(("127.0.0.1", port), PATIENCE)
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.reader = Reader(self.sock)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.hang_up()

    def send(self, data):
        self.sock.sendall(data)

    def read(self, method="POST"):
        """The next answer; interim answers are skipped, all but 101."""
        while True:
            raw = self.reader.head()
            assert raw is not None, "the gateway closed without an answer"
            response = Response(raw, b"")
            if response.status >= 200 or response.status == 101:
                break
        self._body(method, response)
        if response.body.startswith(b'{"version":') or "version=" in (
                response.get("Content-Type") or "") or \
                response.all("Content-Type") == ["application/problem+json"]:
            marks.note("status or problem", response.body)
        return response

    def _body(self, method, response):
        if method == "HEAD" or response.status in (101, 204, 304):
            return
        try:
            if response.get("Content-Length") is None and \
                    response.get("Transfer-Encoding") is None:
                response.body = self.reader.to_end()
            else:
                response.body = self.reader.body(response)
        except (EOFError, ConnectionError):
            response.truncated = True

    def has_bytes(self, patience=0):
        """Whether anything at all has come, the end included."""
        return bool(self.reader.buffer) or bool(
            select.select([self.sock], [], [], patience)[0])

    def at_end(self):
        """Whether the gateway closes without another byte."""
        try:
            return self.reader.buffer == b"" and self.sock.recv(1) == b""
        except ConnectionError:
            return True

    def hang_up(self):
        with contextlib.suppress(OSError):
            self.sock.shutdown(socket.SHUT_RDWR)
        self.sock.close()


def request_bytes(method, target, headers=(), body=b"", host="shop.test",
                  chunked=False, close=False):
    """The exact bytes of a request."""
    lines = ["%s %s HTTP/1.1" % (method, target), "Host: " + host]
    if close:
        lines.append("Connection: close")
    if chunked:
        lines.append("Transfer-Encoding: chunked")
    elif body or method not in ("GET", "HEAD", "DELETE"):
        lines.append("Content-Length: %d" % len(body))
    lines += ["%s: %s" % pair for pair in headers]
    head = "\r\n".join(lines).encode("latin-1") + b"\r\n\r\n"
    if not chunked:
        return head + body
    half = len(body) // 2
    for part in (body[:half], body[half:]):
        if part:
            head += b"%x\r\n%s\r\n" % (len(part), part)
    return head + b"0\r\n\r\n"


def curl_h2(port, target, method="POST", headers=(), body=b"", patience=None):
    """The same over HTTP/2, with curl. One Response."""
    args = curl_h2_args(port, target, method, headers)
    out = subprocess.run(args, input=body, capture_output=True, check=False,
                         timeout=patience or PATIENCE)
    assert out.returncode == 0, "curl ended with %d: %r" % (
        out.returncode, out.stderr)
    raw, _, rest = out.stdout.partition(b"\r\n\r\n")
    while int(raw.split(b" ")[1]) < 200:
        raw, _, rest = rest.partition(b"\r\n\r\n")
    return Response(raw, rest)


def curl_h2_args(port, target, method="POST", headers=()):
    args = ["curl", "-sS", "-i", "--http2-prior-knowledge", "-X", method,
            "-H", "Host: shop.test", "-H", "Expect:"]
    if method not in ("GET", "HEAD"):
        args += ["-H", "Content-Type: application/json", "--data-binary", "@-"]
    for name, value in headers:
        args += ["-H", "%s: %s" % (name, value)]
    return args + ["http://127.0.0.1:%d%s" % (port, target)]


# ---- The gateway ---------------------------------------------------------

CONF = """
%(load)s
user root;
worker_processes %(workers)d;
pid nginx.pid;
lock_file nginx.lock;
error_log error.log %(level)s;
%(main)s
events { worker_connections 1024; }
http {
    client_body_temp_path body;
    proxy_temp_path proxy;
    fastcgi_temp_path fastcgi;
    uwsgi_temp_path uwsgi;
    scgi_temp_path scgi;
    log_format main '$pid $request_method $uri $status once=$once_status '
                    'would=$once_would apart=$once_apart '
                    'attempt=$once_attempt hash=$once_name';
    access_log access.log main;
    default_type text/plain;
    keepalive_requests 100000;
    lingering_close off;
    upstream origin { server 127.0.0.1:%(origin)d max_fails=0; %(alone)s }
    %(http)s
    server {
        listen 127.0.0.1:%(port)d %(listen)s;
        listen 127.0.0.1:%(h2)d %(h2_listen)s %(listen)s;
        %(h2_on)s
        %(name)s
        location /open/ { proxy_pass http://origin; }
        %(server)s
    }
}
"""


@functools.lru_cache(maxsize=1)
def nginx_version():
    """As numbers; of Angie that of the nginx which it is made of."""
    if NGINX is None:
        return (0, 0, 0)
    out = subprocess.run([NGINX, "-V"], capture_output=True, check=True,
                         timeout=PATIENCE, text=True)
    found = re.search(r"(?:nginx|openresty)/(\d+)\.(\d+)\.(\d+)", out.stderr)
    return tuple(map(int, found.groups()))


def debugging():
    """Whether this nginx knows debug lines."""
    if NGINX is None:
        return False
    out = subprocess.run([NGINX, "-V"], capture_output=True, check=False,
                         timeout=PATIENCE)
    return b"--with-debug" in out.stderr


# Lines of an error log that no test may leave behind unless it says so.
ALARMS = re.compile(
    r"\[alert\]|\[emerg\]|exited on signal|AddressSanitizer|LeakSanitizer|"
    r"ThreadSanitizer|runtime error:|Assertion|open socket #")


def guarded(prefix, more="", scope="off", target="http://origin", once="main"):
    """A guarded location in front of the upstream."""
    return """
        location %s {
            once %s;
            once_scope %s;
            %s
            proxy_pass %s;
        }""" % (prefix, once, scope, more, target)


class Gateway:
    """An nginx in a folder of its own."""

    def __init__(self, folder, origin, server="", http="", main="", workers=1,
                 daemon=False, allow=(), level=LEVEL, init=True):
        self.folder = pathlib.Path(folder)
        self.origin = origin
        # Whether the stores are made before the first start. No later one
        # makes any.
        self.to_init = init and not PLAIN
        self.texts = {"server": server, "http": http, "main": main}
        self.workers = workers
        self.daemon = daemon
        self.allow = list(allow)
        self.level = level
        self.port = self.h2 = 0
        self.process = None

    # -- configuration

    def render(self):
        listen = "reuseport" if self.workers > 1 else ""
        # A directive of its own since then, and a warning without it.
        new = nginx_version() >= (1, 25, 1)
        text = CONF % dict(
            self.texts, h2_listen="" if new else "http2",
            h2_on="http2 on;" if new else "",
            # Later versions keep connections where nothing else is said, and
            # a script of the upstream ends with its connection.
            alone="keepalive 0;" if nginx_version() >= (1, 29, 7) else "",
            name="" if "server_name" in self.texts["server"]
            else "server_name _;",  # the realm is the client's Host
            load="load_module %s;" % MODULE, workers=self.workers,
            origin=self.origin, port=self.port, h2=self.h2, listen=listen,
            level=self.level)
        if PLAIN:
            text = re.sub(r"(?m)^\s*load_module .*$", "", text)
            text = re.sub(r"(?<![\w$])once(_\w+)?(\s[^;{}]*)?;", "", text)
            text = re.sub(r"\$once_\w+", "-", text)
        (self.folder / "nginx.conf").write_text(text)

    def command(self, *more):
        daemon = "on" if self.daemon else "off"
        return [NGINX, "-p", str(self.folder), "-e", "error.log", "-c",
                str(self.folder / "nginx.conf"), "-g",
                "daemon %s;" % daemon] + list(more)

    def check(self):
        """nginx -t. Returns (exit status, everything it said)."""
        self.init()
        if not self.port:
            self.port, self.h2 = free_port(), free_port()
        self.render()
        out = subprocess.run(self.command("-t"), capture_output=True,
                             check=False, timeout=PATIENCE)
        return out.returncode, (out.stdout + out.stderr).decode("latin-1")

    # -- life

    def start(self):
        self.init()
        for _ in range(5):
            if self._start():
                return self
        raise AssertionError("nginx does not start:\n" + self.said())

    def init(self):
        """Makes the stores, unless that was done or is not wanted."""
        if self.to_init:
            newstore.init_all(self.texts["http"])
        self.to_init = False

    def _start(self):
        """False if somebody else was quicker to take the port."""
        if not self.port:
            self.port, self.h2 = free_port(), free_port()
        self.render()
        with open(self.folder / "stderr.log", "ab") as err:
            # pylint: disable=consider-using-with
            self.process = subprocess.Popen(
                self.command(), stdout=err, stderr=err,
                stdin=subprocess.DEVNULL)
        if self.daemon:
            self.process.wait(PATIENCE)
            if self.process.returncode == 0:
                eventually(lambda: self.master())
        end = time.monotonic() + PATIENCE
        while time.monotonic() < end:
            if not self.daemon and self.process.poll() is not None:
                break
            if self.daemon and self.process.returncode != 0:
                break
            if self.answers():
                return True
            time.sleep(0.01)
        said = self.said()
        assert "Address already in use" in said, said
        self.port = self.h2 = 0
        for name in ("stderr.log", "error.log"):
            (self.folder / name).write_text("")
        return False

    def answers(self):
        with contextlib.suppress(OSError, AssertionError, EOFError):
            with Client(self.port) as c:
                c.send(request_bytes("GET", "/open/up", close=True))
                return c.read("GET").status > 0
        return False

    def master(self):
        if not self.daemon:
            return self.process.pid
        with contextlib.suppress(OSError, ValueError):
            return int((self.folder / "nginx.pid").read_text())
        return None

    def worker_pids(self, master=None):
        master = master or self.master()
        path = "/proc/%d/task/%d/children" % (master, master)
        with contextlib.suppress(OSError):
            return [int(p) for p in pathlib.Path(path).read_text().split()]
        return []

    def kill(self, number, pid=None):
        os.kill(pid or self.master(), number)

    def ended(self, pid=None):
        """Whether the master, or this process, is gone."""
        if pid is None and not self.daemon:
            return self.process.poll() is not None
        try:
            text = pathlib.Path("/proc/%d/stat" % (pid or self.master()))
            return text.read_text().rsplit(")", 1)[1].split()[0] == "Z"
        except (OSError, TypeError):
            return True

    def wait_end(self):
        eventually(self.ended)
        return self.process.returncode if not self.daemon else 0

    def kill_all(self):
        """What a lost machine looks like: master and workers at once."""
        pids = self.worker_pids() + [self.master()]
        for pid in [self.master()] + pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        eventually(lambda: all(self.ended(p) for p in pids))
        self.process.wait(PATIENCE)
        with contextlib.suppress(OSError):
            (self.folder / "nginx.pid").unlink()

    def reload(self):
        """HUP, and back when new workers run. Old ones may still work."""
        old = set(self.worker_pids())
        self.kill(signal.SIGHUP)
        eventually(lambda: len(set(self.worker_pids()) - old) == self.workers)
        eventually(lambda: all(
            "%d#%d: gracefully shutting down" % (p, p)
            in self.log("error.log") for p in old))

    def quit(self):
        self.kill(signal.SIGQUIT)
        return self.wait_end()

    # -- what it said

    def log(self, name):
        path = self.folder / name
        return path.read_text("latin-1") if path.exists() else ""

    def said(self):
        return self.log("stderr.log") + self.log("error.log")

    def access(self, path):
        """The line of the access log for `path`, when it is there."""
        return eventually(lambda: [
            line for line in self.log("access.log").splitlines()
            if " %s " % path in line])

    def close(self):
        if self.process is not None and not self.ended():
            master, workers = self.master(), self.worker_pids()
            self.kill(signal.SIGTERM)
            try:
                eventually(self.ended)
            except AssertionError:
                for pid in [master] + workers:
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
                raise
        if self.process is not None:
            self.process.wait(PATIENCE)
        self.look_back()

    def look_back(self):
        said = self.said()
        bad = [line for line in said.splitlines() if ALARMS.search(line) and
               not any(re.search(a, line) for a in self.allow)]
        assert not bad, "the error log has:\n" + "\n".join(bad[:20])
        for name in ("stderr.log", "error.log", "access.log", "json.log"):
            lines = [x for x in self.log(name).splitlines() if MARK in x]
            if self.level == "debug" and name == "error.log":
                # There nginx itself writes down whole requests.
                lines = [x for x in lines if ": *" in x
                         and "[debug]" not in x]
            assert not lines, "a secret is in %s: %s" % (name, lines[:3])
        if self.level == "debug":
            with contextlib.suppress(FileNotFoundError):
                os.replace(self.folder / "error.log",
                           self.folder / "debug.log")


# Directives that the guarded server knows, or may pass over because they are
# nginx's own way of reading, buffering and sending (test/guard/conf.c).
UNDERSTOOD = re.compile(r"""
    once | once_(?!status\b)\w+ | proxy_pass | proxy_read_timeout |
    auth_basic | auth_basic_user_file | deny | client_max_body_size |
    client_body_buffer_size | client_body_in_file_only | gzip |
    proxy_(buffering | buffer_size | buffers | busy_buffers_size |
           http_version | ignore_client_abort | max_temp_file_size |
           next_upstream | redirect | request_buffering | set_header |
           temp_file_write_size)""", re.X)


class Guarded(Gateway):
    """A server with a guard inside, in a folder of its own."""

    def __init__(self, folder, origin, *args, **more):
        super().__init__(folder, origin, *args, **more)
        self.workers = 1
        self.left_out = []  # locations that only nginx can have

    # -- configuration

    @staticmethod
    def free_ports():
        return free_port(), free_port()

    def upstreams(self):
        names = {"origin": "127.0.0.1:%d" % self.origin}
        for name, text in re.findall(r"upstream (\w+) \{([^}]*)\}",
                                     self.texts["http"]):
            servers = re.findall(r"server (\S+?)[ ;]", text)
            if len(servers) == 1:
                names[name] = servers[0]
        return names

    def location(self, path, text):
        """The lines of one location, or None if only nginx can have it."""
        lines = ["location " + path]
        names = self.upstreams()
        for directive in text.split(";"):
            words = directive.replace('"', "").replace("'", "").split()
            if not words:
                continue
            if words[0] == "proxy_pass":
                where = re.fullmatch(r"http://([^/$]+)", words[1])
                if where is None:
                    return None
                name = where.group(1)
                words[1] = "http://" + names.get(name, name)
            if not UNDERSTOOD.fullmatch(words[0]) or "{" in directive:
                return None
            lines.append("    " + " ".join(words))
        return lines

    def render(self):
        out = ["listen 127.0.0.1:%d" % self.port,
               "access_log %s/access.log" % self.folder,
               "error_log %s/error.log" % self.folder]
        if THREADED:
            out.append("threads connection")
        out += [line.rstrip(";") for line in
                re.findall(r"once_store\b[^;]*;", self.texts["http"])]
        server = "location /open/ { proxy_pass http://origin; }\n" + \
            self.texts["server"]
        self.left_out = []
        for path, text in re.findall(
                r"(?ms)^\s*location\s+(?:=\s+)?(\S+)\s*\{(.*?)\}\s*"
                r"(?=^\s*location|\Z)", server):
            lines = self.location(path, text)
            if lines is None:
                self.left_out.append(path)
            else:
                out += lines
        (self.folder / "routes").write_text("\n".join(out) + "\n")

    def command(self, *more):
        return [GUARDED] + list(more) + [str(self.folder / "routes")]

    def worker_pids(self, master=None):
        return []

    def reload(self):
        raise AssertionError("only nginx reloads: mark the test nginx_only")


# ---- Cases and sites -----------------------------------------------------

NUMBERS = itertools.count(1)
OWN_KEY = object()


class Case:
    """One path and one key that are nobody else's, and what the upstream does.

    With several steps in the script the n-th execution plays the n-th step,
    and the last one again and again.
    """

    def __init__(self, site, prefix, *script):
        self.site = site
        assert prefix not in getattr(site.gateway, "left_out", ()), \
            "only nginx has %s: mark the test nginx_only" % prefix
        self.id = "c%d" % next(NUMBERS)
        self.path = prefix + self.id
        self.key = "%skey-%s-%s" % (MARK, self.id, os.urandom(4).hex())
        self.script = script or (Answer(),)
        self.requests = []
        for upstream in site.upstreams:
            upstream.cases[self.id] = self

    @property
    def executions(self):
        return len(self.requests)

    def bytes(self, method="POST", key=OWN_KEY, body=None, headers=(),
              query="", path=None, key_name="Idempotency-Key",
              content_type="application/json", **more):
        if body is None:
            body = b"" if method in ("GET", "HEAD") else \
                b'{"amount": 5, "note": "%sbody"}' % MARK.encode()
        lines = []
        if key is OWN_KEY:
            key = self.key
        if key is not None:
            lines.append((key_name, key))
        if content_type is not None and body:
            lines.append(("Content-Type", content_type))
        target = (path or self.path) + ("?" + query if query else "")
        return request_bytes(method, target, lines + list(headers), body,
                             **more)

    def start(self, **what):
        """Sends it on a connection of its own; the answer is not read."""
        client = Client(self.site.gateway.port)
        client.send(self.bytes(**what))
        return client

    def send(self, method="POST", **what):
        with self.start(method=method, close=True, **what) as client:
            return client.read(method)

    def post(self, **what):
        return self.send("POST", **what)

    def h2(self, method="POST", key=OWN_KEY, body=b'{"amount": 5}',
           headers=(), query=""):
        lines = list(headers)
        if key is OWN_KEY:
            key = self.key
        if key is not None:
            lines.append(("Idempotency-Key", key))
        return curl_h2(self.site.gateway.h2,
                       self.path + ("?" + query if query else ""), method,
                       lines, body)


def gateway_class():
    if TARGET == "nginx":
        return Gateway
    if TARGET == "guarded":
        return Guarded
    import served  # pylint: disable=import-outside-toplevel
    return served.target(Guarded, eventually, BUILD, TARGET)


class Site:
    """Upstream, gateway and store together."""

    def __init__(self, folder, server, store="sqlite", http="", main="",
                 workers=None, lines="", upstreams=1, listen=True,
                 backends=(), **more):
        self.folder = pathlib.Path(folder)
        self.file = self.folder / "store.db"
        self.sqlite = "sqlite:%s" % self.file
        if STAND_IN:
            self.sqlite = storelist.own(STAND_IN)
        # Without `listen` the last one refuses until its listen() is called.
        self.upstreams = [Upstream(listen or i + 1 < upstreams)
                          for i in range(upstreams)]
        # Those of other protocols follow (backends.py).
        self.upstreams += [kind() for kind in backends]
        self.upstream = self.upstreams[0]
        self.store = store
        if workers is None:
            workers = 1 if "memory" in store else 2
        home = self.folder / "nginx"
        home.mkdir()
        self.gateway = gateway_class()(
            home, self.upstream.port, self.fill(server),
            "once_store main %s;\n%s%s" % (
                self.url(store), self.fill(lines), self.fill(http)),
            main, workers, **more)

    def url(self, store):
        """"sqlite", "memory" or anything with @ in place of the inner URL."""
        inner = {"sqlite": self.sqlite, "memory": "memory:"}
        if store in inner:
            return inner[store]
        return re.sub(r"@(sqlite|memory)$",
                      lambda m: "@" + inner[m.group(1)], store)

    @property
    def db(self):
        """The file, for tests that look into it or keep it busy."""
        if STAND_IN:
            import pytest  # pylint: disable=import-outside-toplevel
            pytest.skip("only sqlite: the test knows its file")
        return self.file

    def fill(self, text):
        """UPSTREAM0, UPSTREAM1 ... become addresses, FOLDER the folder."""
        for i, upstream in enumerate(self.upstreams):
            text = text.replace("UPSTREAM%d" % i,
                                "127.0.0.1:%d" % upstream.port)
        return text.replace("FOLDER", str(self.folder))

    def start(self):
        self.gateway.start()
        return self

    def case(self, prefix, *script):
        return Case(self, prefix, *script)

    def get(self, path="/open/x"):
        """An ordinary request that nobody guards."""
        with Client(self.gateway.port) as c:
            c.send(request_bytes("GET", path, close=True))
            return c.read("GET")

    def turn(self):
        """Every worker has gone through its event loop a few times."""
        for _ in range(20 * self.gateway.workers):
            assert self.get().status == 200

    def restart_with(self, store):
        """The same configuration over another store URL."""
        http = self.gateway.texts["http"]
        self.gateway.texts["http"] = re.sub(
            r"once_store main \S+;", "once_store main %s;" % self.url(store),
            http)
        self.gateway.to_init = True
        self.gateway.start()

    def stored(self, needle):
        """Whether these bytes stand in a row that others can see."""
        with contextlib.closing(sqlite3.connect(
                "file:%s?mode=ro" % self.db, uri=True, timeout=PATIENCE)) as d:
            tables = [r[0] for r in d.execute(
                "SELECT name FROM sqlite_master WHERE type = 'table'")]
            for table in tables:
                for row in d.execute('SELECT * FROM "%s"' % table):
                    for cell in row:
                        if isinstance(cell, str):
                            cell = cell.encode("utf-8", "replace")
                        if isinstance(cell, bytes) and needle in cell:
                            return True
        return False

    def close(self):
        try:
            self.gateway.close()
        finally:
            for upstream in self.upstreams:
                upstream.close()
        errors = [e for u in self.upstreams for e in u.errors]
        assert not errors, errors
        for path in self.folder.glob("store.db*"):
            assert MARK.encode() not in path.read_bytes(), \
                "a key, a scope or a request body is in the store"


class Locked:
    """Holds SQLite's write lock, so that no commit can happen meanwhile."""

    def __init__(self, site):
        self.db = sqlite3.connect(site.db, timeout=PATIENCE,
                                  isolation_level=None)

    def __enter__(self):
        self.db.execute("BEGIN IMMEDIATE")
        return self

    def __exit__(self, *_):
        self.db.execute("ROLLBACK")
        self.db.close()


# ---- What the contract says of an answer ---------------------------------

Rule = collections.namedtuple(
    "Rule", "status title retryable safe_new_key retry_after word")

# http.md section 2. None: the page does not say.
PROBLEMS = {
    "key-missing": Rule(400, "Idempotency-Key is missing", False, True, False,
                        "invalid"),
    "key-invalid": Rule(400, None, False, True, False, "invalid"),
    "scope-missing": Rule(401, None, False, False, False, "invalid"),
    "key-reused": Rule(422, "Idempotency-Key is already used", False, False,
                       False, "mismatch"),
    "in-flight": Rule(409, "A request is outstanding for this Idempotency-Key",
                      True, False, True, "in_flight"),
    "outcome-unknown": Rule(409, None, True, False, False, "indeterminate"),
    "response-unavailable": Rule(409, None, False, False, False, None),
    "already-done": Rule(409, None, False, False, False, "refused"),
    "key-expired": Rule(409, "Idempotency-Key has expired", False, False,
                        False, "expired"),
    "store-unavailable": Rule(503, None, True, False, True, "unavailable"),
}

# What SDKs of the Stripe family make their exceptions of.
ERRORS = {"key-missing": "invalid_request_error",
          "key-invalid": "invalid_request_error",
          "scope-missing": "authentication_error",
          "key-expired": "invalid_request_error",
          "already-done": "invalid_request_error",
          "key-reused": "idempotency_error"}


def is_problem(response, code, status=None):
    """Asserts every row of the contract for this problem."""
    rule = PROBLEMS[code]
    status = status or rule.status
    assert response.status == status, response
    assert response.get("Content-Type") == "application/problem+json", response
    body = json.loads(response.body)
    assert body["code"] == code
    assert body["type"] == "urn:problem-type:once:" + code
    assert body["status"] == status
    assert isinstance(body["title"], str) and body["title"]
    assert isinstance(body["detail"], str) and body["detail"]
    assert isinstance(body["retryable"], bool)
    assert isinstance(body["safe_new_key"], bool)
    assert isinstance(body["state"], str) and body["state"]
    assert body["error"] == {"type": ERRORS.get(code, "api_error"),
                             "code": code, "message": body["detail"]}
    assert response.get("Cache-Control") == "no-store"
    assert response.get("Idempotent-Replayed") is None
    assert MARK.encode() not in response.body
    for name, expected in (("title", rule.title),
                           ("retryable", rule.retryable),
                           ("safe_new_key", rule.safe_new_key)):
        assert expected is None or body[name] == expected, (name, body)
    if rule.retry_after:
        assert int(response.get("Retry-After")) >= 1, response
    else:
        assert response.get("Retry-After") is None, response
    assert response.once is not None, response
    assert rule.word is None or response.once == rule.word, response
    return body


def is_new(response, status=201, body=b"made\n"):
    assert response.status == status, response
    assert response.body == body
    assert not response.truncated
    assert response.once == "new", response
    assert response.get("Idempotent-Replayed") is None
    return response


# What may differ between an answer and its replay.
VOLATILE = ("date", "server", "connection", "keep-alive", "content-length",
            "transfer-encoding", "idempotency-status", "idempotent-replayed")


def kept(response):
    return [h for h in response.headers if h[0].lower() not in VOLATILE]


def is_replay(response, first):
    """The same status, headers in the same order, and body, byte for byte."""
    assert response.replayed, response
    assert response.once == "replayed", response
    assert response.start == first.start
    assert kept(response) == kept(first)
    assert response.body == first.body
    assert not response.truncated
    return response


def settles(case, code, **what):
    """Repeats until the problem is `code`; on the way only `in-flight`, and
    `store-unavailable` where the machine has too much to do."""
    def look():
        r = case.post(**what)
        if r.code() == code:
            return r
        assert r.code() in ("in-flight", "store-unavailable"), r
        return None
    response = eventually(look)
    is_problem(response, code)
    return response


def replays_in_the_end(case, **what):
    """Repeats until it is a replay; on the way as in settles()."""
    def look():
        r = case.post(**what)
        if r.replayed:
            return r
        assert r.code() in ("in-flight", "store-unavailable"), r
        return None
    return eventually(look)
