# SPDX-License-Identifier: Apache-2.0
"""carry.py - what the tests of messages share: databases with an outbox, targets
that remember what arrived, relays and others as processes. conftest.py has the
servers.

    ONCE_CLI        the program      (build/once)

A database is Lite, Pg or Maria; all emit in bulk, and say how many rows stand in which
phase. A target is Commands, Stream, Queue or Service; arrivals() is a list of (id,
key, body) in the order in which they came.
"""
import contextlib
import http.server
import os
import pathlib
import re
import shutil
import signal
import sqlite3
import subprocess
import sys
import threading
import time
import urllib.parse

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "test/lib"))

import pika  # noqa: E402  pylint: disable=wrong-import-position

# pylint: disable=wrong-import-position
import servers  # noqa: E402
import patience  # noqa: E402
from marks import MARK  # noqa: E402

ONCE = os.environ.get("ONCE_CLI", str(ROOT / "build" / "once"))
PATIENCE = 90  # seconds: for what must happen, on a machine that is busy
READY, WAITING, DONE, DEAD, INDETERMINATE = range(5)

eventually = servers.eventually


def once(*words, stdin="", check=True):
    done = subprocess.run([ONCE, *map(str, words)], input=stdin, text=True,
                          capture_output=True, timeout=PATIENCE, check=False)
    if check:
        assert done.returncode == 0, done.stderr
    return done


def marked(body):
    """Each body that is emitted or published has a mark; arrivals() take it
    off again."""
    return "%s %s" % (body, MARK)


def plain(body):
    return body.removesuffix(" " + MARK)


# ---- Databases -----------------------------------------------------------


class Lite:
    def __init__(self, folder):
        self.path = folder / "shop.db"
        self.url = "sqlite:%s" % self.path
        self.table = "once_outbox"
        once("--database", self.url, "messages", "init")

    def sql(self, text):
        with contextlib.closing(sqlite3.connect(self.path, 30)) as db, db:
            return [tuple(map(str, row)) for row in db.execute(text)]

    def emit(self, messages, route="r"):
        """Messages are (id, key, body); all in one transaction."""
        now = int(time.time() * 1000)
        with contextlib.closing(sqlite3.connect(self.path, 30)) as db, db:
            db.executemany(
                "INSERT INTO once_outbox(phase, kept, due_ms, at_ms, route, id,"
                " key, type, headers, body) VALUES(0,0,0,?,?,?,?,'','',?)",
                [(now, route, i, k, marked(b).encode())
                 for i, k, b in messages])


class Pg:
    def __init__(self, server, name):
        self.server = server
        self.name = name
        self.url = server.url()[:-len("once")] + name
        self.table = "once.outbox"
        server.sql("CREATE DATABASE %s OWNER once" % name)
        once("--database", self.url, "messages", "init")

    def sql(self, text):
        return [tuple(line.split("|")) for line in
                self.server.sql(text, self.name).splitlines()]

    def apart(self, text):
        """In a transaction whose COMMIT is a message of its own."""
        return [tuple(line.split("|")) for line in self.server.sql(
            ["BEGIN", text, "COMMIT"], self.name).splitlines()]

    def emit(self, messages, route="r"):
        def text(value):
            return "NULL" if value is None else "'%s'" % value
        rows = ",".join("(%s,%s,%s)" % (text(i), text(k), text(marked(b)))
                        for i, k, b in messages)
        self.apart("SELECT count(once.emit('%s', convert_to(b, 'UTF8'), "
                   "p_key => k, p_id => i)) FROM (VALUES %s) v(i, k, b)"
                   % (route, rows))


class Maria:
    def __init__(self, server, name):
        self.server = server
        self.name = name
        self.url = server.url()[:-len("once")] + name
        self.table = "once_outbox"
        server.sql("CREATE DATABASE %s" % name)
        once("--database", self.url, "messages", "init")

    def sql(self, text):
        text = re.sub(r"\bkey\b", "`key`", text)  # a word of its language
        return [tuple(line.split("\t")) for line in
                self.server.sql(text, self.name).splitlines()]

    def emit(self, messages, route="r"):
        def text(value):
            return "NULL" if value is None else "'%s'" % value
        calls = "".join("CALL once_emit('%s', %s, %s, %s, '', '', 0, 0);"
                        % (route, text(marked(b)), text(k), text(i))
                        for i, k, b in messages)
        self.server.sql("START TRANSACTION; %s COMMIT" % calls, self.name)


DATABASES = {"postgres": Pg, "mysql": Maria}


def database(request, folder, kind, name):
    """A new one: `kind` is sqlite, or that of a server."""
    if kind == "sqlite":
        return Lite(folder)
    return DATABASES[kind](request.getfixturevalue(kind), name)


def phases(db, route="r"):
    """How many rows stand in which phase, but for those that are done."""
    return {int(phase): int(n) for phase, n in db.sql(
        "SELECT phase, count(*) FROM %s WHERE route = '%s' AND phase <> 2 "
        "GROUP BY phase" % (db.table, route))}


def column(db, name, where="true"):
    return [row[0] for row in db.sql("SELECT %s FROM %s WHERE %s ORDER BY seq"
                                     % (name, db.table, where))]


def messages(n, keys=0, prefix="m"):
    """Bodies count; with keys, every third message has none."""
    return [("%s%d" % (prefix, i),
             "k%d" % (i % keys) if keys and i % 3 else None, str(i))
            for i in range(n)]


# ---- Targets -------------------------------------------------------------

SCRIPT = """#!/bin/sh
# What arrives is written down; a body may say otherwise.
cd %s || exit 1
body=$(cat)
echo "$ONCE_ID" >>begun
[ -e slow ] && sleep "$(cat slow)"
case $body in
refuse*) exit 75 ;;
reject*) exit 65 ;;
esac
echo "$ONCE_ID ${ONCE_KEY:--} $body" >>arrived
"""


class Commands:
    name = "exec"

    def __init__(self, folder):
        self.folder = folder / "target"
        self.folder.mkdir()
        script = self.folder / "take"
        script.write_text(SCRIPT % self.folder)
        script.chmod(0o755)
        self.url = "exec:%s" % script
        self.more = ["--no-hold"]

    def slow(self, seconds):
        (self.folder / "slow").write_text(str(seconds))

    def fast(self):
        (self.folder / "slow").unlink()

    def begun(self):
        path = self.folder / "begun"
        return path.read_text().split() if path.exists() else []

    def arrivals(self):
        path = self.folder / "arrived"
        if not path.exists():
            return []
        return [tuple(None if word == "-" else plain(word)
                      for word in line.split(" ", 2))
                for line in path.read_text().splitlines()]


class Stream:
    name = "redis"

    def __init__(self, server, stream):
        self.server = server
        self.stream = stream
        self.url = "%s/?stream=%s" % (server.url(), stream)
        self.more = []

    def arrivals(self):
        found = []
        for _, words in self.server.ask("XRANGE", self.stream, "-", "+"):
            words = [word.decode() for word in words]
            fields = dict(zip(words[::2], words[1::2]))
            found.append((fields["id"], fields.get("key"),
                          plain(fields["body"])))
        return found


class Queue:
    """A quorum queue of RabbitMQ. What was received is remembered here."""
    name = "amqp"

    def __init__(self, server, queue):
        self.server = server
        self.queue = queue
        self.url = "%s?routing_key=%s" % (server.url(), queue)
        self.more = []
        self.received = []
        with self.channel() as channel:
            channel.queue_declare(queue, durable=True,
                                  arguments={"x-queue-type": "quorum"})
        server.settle(queue)

    @contextlib.contextmanager
    def channel(self):
        connection = pika.BlockingConnection(
            pika.URLParameters(self.server.url()))
        with contextlib.closing(connection):
            yield connection.channel()

    def arrivals(self):
        with self.channel() as channel:
            while True:
                method, about, body = channel.basic_get(self.queue)
                if method is None:
                    break
                channel.basic_ack(method.delivery_tag)
                key = (about.headers or {}).get("Once-Key")
                self.received.append((about.message_id, key,
                                      plain(body.decode())))
        return self.received


class Topic:
    name = "kafka"

    def __init__(self, server, topic):
        self.server = server
        self.topic = topic
        self.url = "%s/%s" % (server.url(), topic)
        self.more = []
        server.tool("topic", topic, 4)

    def arrivals(self):
        found = []
        for line in self.server.tool("dump", self.topic).splitlines():
            name, key, body = (None if word == "-" else
                               urllib.parse.unquote(word)
                               for word in line.split()[2:])
            found.append((name, key, plain(body)))
        return found


class Service:
    """Answers requests; `answer(id, body, n)`, n being how often this id came,
    says how: a status, or None, which ends the connection without one."""
    name = "http"

    def __init__(self):
        self.port = servers.free_port()
        self.url = "http://127.0.0.1:%d/take" % self.port
        self.more = []
        self.requests = []
        self.headers = []
        self.answer = lambda name, body, n: 201
        self.server = None

    def start(self):
        service = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self):  # pylint: disable=invalid-name
                body = self.rfile.read(int(self.headers["Content-Length"]))
                status = service.take(self.headers, plain(body.decode()))
                if status is None:
                    self.close_connection = True
                    return
                self.send_response(status)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *_):
                pass

        http.server.ThreadingHTTPServer.allow_reuse_address = True
        self.server = http.server.ThreadingHTTPServer(
            ("127.0.0.1", self.port), Handler)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        return self

    def stop(self):
        self.server.shutdown()
        self.server.server_close()

    def take(self, headers, body):
        name = headers["Idempotency-Key"]
        self.requests.append((name, None, body))
        self.headers.append(dict(headers.items()))
        count = sum(1 for request in self.requests if request[0] == name)
        return self.answer(name, body, count)

    def arrivals(self):
        return list(self.requests)


def firsts(arrivals, keys):
    """First arrivals, in order; and that those of a key are in the order of
    their emission."""
    seen = {}
    for name, key, body in arrivals:
        assert key in (None, keys[name])
        seen.setdefault(name, (keys[name], body))
    last = {}
    for key, body in seen.values():
        if key is not None:
            assert last.get(key, -1) < int(body), (key, body)
            last[key] = int(body)
    return seen


# ---- Programs ------------------------------------------------------------


def idling(words):
    """A consumer that ends when nothing has come for a while does so before it has
    begun, if the machine is busy enough and the while is short."""
    before = None
    for word in words:
        if before == "--idle" and re.fullmatch(r"\d+s", word):
            word = patience.text(int(word[:-1]))
        yield word
        before = word


class Program:
    """A process with a log. It dies with the test."""

    def __init__(self, path, words, **env):
        self.path = path
        with open(path, "ab") as log:
            self.process = subprocess.Popen(
                [shutil.which("setpriv"), "--pdeathsig", "KILL", "--",
                 *idling(map(str, words))], env=dict(os.environ, **env),
                stdin=subprocess.DEVNULL, stdout=log, stderr=log)

    def wait(self):
        status = patience.wait(self.process, PATIENCE)
        assert status is not None, "it does not end:\n" + self.log()
        return status

    def stop(self):
        self.process.send_signal(signal.SIGTERM)
        return self.wait()

    def kill(self):
        self.process.kill()
        return self.wait()

    def send(self, number):
        self.process.send_signal(number)

    def log(self):
        return self.path.read_text()


class Relay(Program):
    def __init__(self, folder, db, *words, name="relay", short=True,
                 wrap=()):
        self.metrics_path = folder / (name + ".prom")
        lease = ["--lease", "3s"] if short else []
        super().__init__(folder / (name + ".log"),
                         [*wrap, ONCE, "messages", "relay", "--database", db.url, "--metrics",
                          self.metrics_path, *lease, *words])

    def metrics(self):
        """{name: {label: value}}; every line must be understood."""
        found, types = {}, {}
        for line in self.metrics_path.read_text().splitlines():
            words = line.split(" ", 3)
            if words[:2] == ["#", "TYPE"]:
                types[words[2]] = words[3]
            elif words[:2] != ["#", "HELP"]:
                match = re.fullmatch(
                    r'([a-z_]+)(?:\{route="((?:[^"\\\n]|\\[\\"n])*)"\})? '
                    r'([0-9]+(?:\.[0-9]+)?)', line)
                assert match, line
                name, label, value = match.groups()
                assert types[name] == ("counter" if name.endswith("_total")
                                       else "gauge")
                found.setdefault(name, {})[label or ""] = float(value)
        return found

    def metric(self, name, route="r"):
        return self.metrics()["once_relay_" + name][route]
