# SPDX-License-Identifier: Apache-2.0
"""
Where messages come from and go to: databases with an outbox and an inbox, and
brokers. A broker makes copies of what arrives, as if it had been sent twice, and
puts a few of them back for a while, so that they come among messages of other
keys.
"""

import contextlib
import os
import random
import re
import select
import socket
import sqlite3
import subprocess
import threading
import time

import newstore
import servers

KEYS = ["k%02d" % n for n in range(64)]
COPIED = 0.30   # of the messages come again
LATE = 0.17     # of the copies, when others have come: 5 % of the messages

TABLES = """
CREATE TABLE counter(key TEXT PRIMARY KEY, n INTEGER NOT NULL);
CREATE TABLE orders(producer INTEGER, no INTEGER, id TEXT NOT NULL,
    key TEXT NOT NULL, place INTEGER NOT NULL, kind TEXT NOT NULL,
    PRIMARY KEY(producer, no));
CREATE TABLE effect(no %s, id TEXT NOT NULL, attempt INTEGER NOT NULL);
INSERT INTO counter VALUES %s;
""" % ("%s", ", ".join("('%s', 0)" % key for key in KEYS))


# ---- Databases -----------------------------------------------------------


class Postgres:
    name = "postgres"
    prefix = "once."

    def look(self):
        """What else may be of use where it does not go on."""
        return ""

    def __init__(self, run):
        world = run.world
        self.server = servers.Postgres(world, max_connections="60").init()
        if "postgres" in run.clocks:
            world.clock(self.server)
        self.server.start().furnish()
        self.direct = self.server.url()
        self.port = self.server.port
        self.connection = None
        init(run, self.direct)
        self.user = "once"
        self.server.sql(TABLES % "BIGINT GENERATED ALWAYS AS IDENTITY", "once",
                        "once")

    def url(self, port):
        return self.direct.replace(":%d/" % self.port, ":%d/" % port)

    def rows(self, text):
        """What a statement answers; None: it is away."""
        import psycopg2  # pylint: disable=import-outside-toplevel
        try:
            if self.connection is None:
                self.connection = psycopg2.connect(
                    host=str(self.server.folder), port=self.port,
                    user="once", dbname="once")
                self.connection.autocommit = True
            with self.connection.cursor() as cursor:
                cursor.execute(text)
                return cursor.fetchall()
        except psycopg2.Error:
            with contextlib.suppress(Exception):
                self.connection.close()
            self.connection = None
            return None


class Mysql:
    name = "mysql"
    prefix = "once_"

    def __init__(self, run):
        self.server = servers.mysql_or_mariadb(run.world).init().start().furnish()
        self.direct = self.server.url()
        self.port = self.server.port
        self.connection = None
        init(run, self.direct)
        self.server.sql(named(TABLES.replace("key TEXT", "key VARCHAR(64)"))
                        % "BIGINT AUTO_INCREMENT PRIMARY KEY", "once")

    def url(self, port):
        return self.direct.replace(":%d/" % self.port, ":%d/" % port)

    def rows(self, text):
        """What a statement answers; None: it is away."""
        import pymysql  # pylint: disable=import-outside-toplevel
        try:
            if self.connection is None:
                self.connection = pymysql.connect(
                    unix_socket=str(self.server.socket), user="root",
                    database="once", autocommit=True)
            with self.connection.cursor() as cursor:
                cursor.execute(named(text))
                names = [about[0] for about in cursor.description]
                return [tuple(
                    value.decode() if isinstance(value, bytes)
                    and name != "body" else value
                    for name, value in zip(names, row))
                    for row in cursor.fetchall()]
        except (pymysql.Error, OSError):
            with contextlib.suppress(Exception):
                self.connection.close()
            self.connection = None
            return None


    def look(self):
        return "transactions: %s; " % (self.rows(
            "SELECT trx_mysql_thread_id, trx_state, trx_started, trx_query, "
            "trx_rows_locked, command, time FROM information_schema.INNODB_TRX "
            "JOIN information_schema.PROCESSLIST ON id = trx_mysql_thread_id"),)


def named(text):
    """`key` is a word of MySQL's language."""
    return re.sub(r"\bkey\b", "`key`", text)


class Sqlite:
    name = "sqlite"
    prefix = "once_"
    look = Postgres.look
    server = None
    port = None

    def __init__(self, run):
        self.path = run.folder / "shop.db"
        self.direct = "sqlite:%s" % self.path
        init(run, self.direct)
        with contextlib.closing(sqlite3.connect(self.path)) as db:
            db.execute("PRAGMA journal_mode=WAL")
            db.executescript(TABLES % "INTEGER PRIMARY KEY")

    def url(self, _):
        return self.direct

    def rows(self, text):
        with contextlib.closing(sqlite3.connect(self.path, 30)) as db:
            return db.execute(text).fetchall()


def init(run, url):
    subprocess.run([run.once, "--database", url, "messages", "init"], check=True,
                   stdout=subprocess.DEVNULL)


# ---- Brokers -------------------------------------------------------------


class Broker:
    """
    A server, and a thread that looks at what has arrived and puts copies of it
    behind. Those below say how; what fails they begin again.
    """

    ERRORS = (OSError, EOFError)
    AGAIN_MS = 0    # then what was not acknowledged comes again
    QUIET_MS = 1000  # so long nothing came: that was all

    def __init__(self, run):
        self.server = self.build(run.world, **run.options.get("target", {}))
        self.port = self.server.port
        self.rng = random.Random(run.rng.random())
        self.seen = set()
        self.late = []      # (after so many messages, message)
        self.copies = 0
        self.ending = False
        self.thread = threading.Thread(target=self._copy, daemon=True)
        self.thread.start()

    def build(self, world, **options):
        raise NotImplementedError

    def arrived(self):
        """Yields what came, as (id, message), None where nothing did."""
        raise NotImplementedError

    def send(self, message):
        """One that came, as it came."""
        raise NotImplementedError

    def put(self, name, key, body):
        """One that nobody has emitted."""
        raise NotImplementedError

    def _copy(self):
        while not self.ending:
            try:
                for found in self.arrived():
                    self._one(found)
                    if self.ending:
                        return
            except self.ERRORS:
                time.sleep(0.1)

    def _one(self, found):
        if found and found[0] not in self.seen:
            self.seen.add(found[0])
            if self.rng.random() < COPIED:
                late = self.rng.randrange(1, 50) \
                    if self.rng.random() < LATE else 0
                self.late.append((len(self.seen) + late, found[1]))
        for due in [d for d in self.late
                    if d[0] <= len(self.seen) or not found]:
            self.late.remove(due)
            self.send(due[1])
            self.copies += 1

    def end(self):
        self.ending = True
        self.thread.join(servers.PATIENCE)


class RabbitMQ(Broker):
    """Queues for the consumer, for the tap and for the copies."""

    name = "rabbitmq"

    def build(self, world, length=None):
        import pika  # pylint: disable=import-outside-toplevel
        self.ERRORS = (OSError, EOFError, pika.exceptions.AMQPError)
        self.pika = pika
        server = servers.RabbitMQ(world)
        server.start()
        self.url_ = server.url()
        with contextlib.closing(self.connect()) as c:
            channel = c.channel()
            for exchange in ("orders", "all", "again"):
                channel.exchange_declare(exchange, "fanout", durable=True)
            for queue in ("billing", "tap", "copies"):
                more = {"x-queue-type": "quorum"} if queue != "copies" else {}
                if queue == "billing" and length:
                    more.update({"x-max-length": length,
                                 "x-overflow": "reject-publish"})
                channel.queue_declare(queue, durable=True, arguments=more)
                channel.queue_bind(queue, "all")
                if queue != "copies":
                    channel.queue_bind(queue, "again")
        self.bind()
        server.settle("billing", "tap")
        return server

    def bind(self):
        with contextlib.closing(self.connect()) as c:
            c.channel().exchange_bind("all", "orders")

    def unbind(self):
        """All queues at once, or one would have what another has not."""
        with contextlib.closing(self.connect()) as c:
            c.channel().exchange_unbind("all", "orders")

    def connect(self):
        return self.pika.BlockingConnection(
            self.pika.URLParameters(self.url_ + "?blocked_connection_timeout=9"
                                    "&socket_timeout=9&heartbeat=10"))

    def target(self, port):
        return "%s?exchange=orders" % self.through(port)

    def source(self, port):
        return "%s?queue=billing" % self.through(port)

    def tap(self):
        return "%s?queue=tap" % self.url_

    def through(self, port):
        return self.url_.replace(":%d/" % self.port, ":%d/" % port)

    def arrived(self):
        with contextlib.closing(self.connect()) as c:
            self.channel = c.channel()
            for _, properties, body in self.channel.consume(
                    "copies", auto_ack=True, inactivity_timeout=0.1):
                yield properties and (properties.message_id,
                                      (properties, body))

    def send(self, message):
        properties, body = message
        self.channel.basic_publish("again", "", body, properties)

    def put(self, name, key, body):
        with contextlib.closing(self.connect()) as c:
            c.channel().basic_publish("again", "", body.encode(),
                                      self.pika.BasicProperties(
                                          message_id=name, delivery_mode=2,
                                          headers={"Once-Key": key}))


class Redis(Broker):
    name = "redis"
    ERRORS = (OSError, EOFError, servers.RedisError)
    AGAIN_MS = 2000

    def build(self, world, **options):
        del options
        return servers.Redis(world).start()

    def target(self, port):
        return "redis://127.0.0.1:%d/?stream=orders" % port

    def source(self, port):
        return "%s&group=billing&min_idle_ms=%d" % (self.target(port),
                                                    self.AGAIN_MS)

    def tap(self):
        return self.target(self.port) + "&group=tap&min_idle_ms=600000"

    def arrived(self):
        last = getattr(self, "last", "0")
        while True:
            found = self.server.ask("XREAD", "COUNT", "200", "BLOCK", "100",
                                    "STREAMS", "orders", last)
            for entry, words in found[0][1] if found else ():
                self.last = last = entry.decode()
                fields = dict(zip(words[::2], words[1::2]))
                yield fields.get(b"id"), words
            if not found:
                yield None

    def send(self, message):
        self.server.ask("XADD", "orders", "*", *message)

    def put(self, name, key, body):
        words = [] if name is None else ["id", name]
        self.send([*words, "key", key, "body", body])


class Nats(Broker):
    """
    One stream. What its publishers send also comes to those who listen to the
    subject; a copy has no Nats-Msg-Id, or the stream would leave it out.
    """

    name = "nats"
    AGAIN_MS = 2000
    ID = b"Nats-Msg-Id:"

    def build(self, world, **options):
        del options
        server = servers.Nats(world)
        server.start()
        server.ask("STREAM.CREATE.orders", {
            "name": "orders", "subjects": ["orders"], "storage": "file",
            "retention": "limits", "max_msgs": -1, "max_bytes": -1,
            "max_age": 0, "num_replicas": 1})
        server.ask("CONSUMER.DURABLE.CREATE.orders.billing", {
            "stream_name": "orders", "config": {
                "durable_name": "billing", "deliver_policy": "all",
                "ack_policy": "explicit",
                "ack_wait": self.AGAIN_MS * 10 ** 6,
                "replay_policy": "instant", "max_deliver": -1}})
        return server

    @contextlib.contextmanager
    def connected(self, server):
        with socket.create_connection(("127.0.0.1", server.port), 9) as sock, \
                sock.makefile("rwb") as f:
            f.readline()
            f.write(b'CONNECT {"verbose":false,"headers":true}\r\n')
            yield f

    def target(self, port):
        return "nats://127.0.0.1:%d/?subject=orders" % port

    def source(self, port):
        return "nats://127.0.0.1:%d/?stream=orders&durable=billing" % port

    def tap(self):
        return "nats://127.0.0.1:%d/?stream=orders&durable=tap" % self.port

    def arrived(self):
        with self.connected(self.server) as self.f:
            self.f.write(b"SUB orders 2\r\nPING\r\n")
            self.f.flush()
            while True:
                words = self.f.readline().split()
                if not words:
                    raise EOFError
                if words[0] == b"PING":
                    self.f.write(b"PONG\r\n")
                if words[0] == b"PONG":
                    yield None
                    time.sleep(0.02)
                    self.f.write(b"PING\r\n")
                self.f.flush()
                if words[0] == b"HMSG":
                    text = self.f.read(int(words[-1]) + 2)[:-2]
                    yield self.read(text, int(words[-2]))

    def read(self, text, size):
        lines = text[:size].split(b"\r\n")
        found = [line for line in lines if line.startswith(b"Once-Id:")]
        headers = b"\r\n".join(line for line in lines
                               if not line.startswith(self.ID))
        return found[0] if found else None, (headers, text[size:])

    def send(self, message):
        self.write(self.f, *message)

    @staticmethod
    def write(f, headers, body):
        f.write(b"HPUB orders %d %d\r\n%s%s\r\n"
                % (len(headers), len(headers + body), headers, body))
        f.flush()

    def put(self, name, key, body):
        headers = b"NATS/1.0\r\nOnce-Key: %s\r\n" % key.encode()
        if name:
            headers += b"Once-Id: %s\r\n" % name.encode()
        with self.connected(self.server) as f:
            self.write(f, headers + b"\r\n", body.encode())
            f.write(b"PING\r\n")
            f.flush()
            while not f.readline().startswith(b"PONG"):
                pass


class Kafka(Broker):
    """
    A mock of three brokers (lib/kafkamock.c). Its log ends with its process, so
    brokers are cut off instead of killed, and keep what they took: the ledger
    judges what relay and consumer do, and not what a cluster keeps. It does not
    know the numbers of an idempotent producer, so the log has repeats that a real
    broker would leave out.
    """

    name = "kafka"
    SESSION_MS = 6000
    AGAIN_MS = 16000    # a dead member's session, and the group's new round
    QUIET_MS = 12000    # the first of a group waits to join

    def build(self, world, **options):
        del options
        server = servers.Kafka(world, brokers=3)
        server.start()
        server.ask("topic orders 24")
        self.follow = self.run_tool(server, "follow")
        self.feed = self.run_tool(server, "feed")
        return server

    @staticmethod
    def run_tool(server, verb):
        return subprocess.Popen(
            [servers.find("setpriv"), "--pdeathsig", "KILL", "--",
             str(server.tool_), server.hosts, verb, "orders"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def target(self, port):
        del port
        return self.server.url() + "/orders"

    def source(self, port):
        del port
        return "%s/orders?group=billing&session_ms=%d" % (self.server.url(),
                                                          self.SESSION_MS)

    def tap(self):
        return self.server.url() + "/orders?group=tap"

    def arrived(self):
        pipe, rest = self.follow.stdout.fileno(), b""
        while True:
            if not select.select([pipe], [], [], 0.1)[0]:
                yield None
                continue
            *lines, rest = (rest + os.read(pipe, 1 << 20)).split(b"\n")
            for line in lines:
                words = line.split()
                yield words[2], words[2:]

    def send(self, message):
        name, key, body = (word.decode() for word in message)
        self.tell("key=%s body=%s head:Once-Id=%s" % (key, body, name))

    def tell(self, line):
        self.feed.stdin.write(line.encode() + b"\n")
        self.feed.stdin.flush()
        if self.feed.stdout.readline().strip() != b"ok":
            raise OSError("kafka has not taken a copy")

    def put(self, name, key, body):
        body = body.replace("%", "%25").replace(" ", "%20")
        # One without an id would have its place as its id.
        self.server.tool("put", "orders", "key=" + key, "body=" + body,
                         "head:Once-Id=" + (name or "%20"))

    def end(self):
        super().end()
        for process in (self.follow, self.feed):
            process.kill()
            process.wait()


# ---- HTTP ----------------------------------------------------------------


class Payments(servers.Server):
    """examples/payments: it charges as often as it is asked."""

    def __init__(self, world, program):
        super().__init__(world, "payments")
        self.program = program

    def command(self):
        return [str(self.program), "--db", str(self.folder / "ledger"),
                "--listen", "%s:%d" % (self.address, self.port)]

    def ready(self):
        return listens(self)


class Gateway(servers.Server):
    """nginx with our module, in front of a service."""

    CONF = """
load_module %s;
worker_processes 2;
pid pid;
error_log errors info;
events { worker_connections 256; }
http {
    client_body_temp_path body;
    proxy_temp_path proxy;
    fastcgi_temp_path fastcgi;
    uwsgi_temp_path uwsgi;
    scgi_temp_path scgi;
    log_format main '$http_idempotency_key $status';
    access_log access main;
    once_store main sqlite:%s/once.db;
    server {
        listen %s:%d;
        location / {
            once main;
            once_scope off;
            once_lease 3s;
            proxy_http_version 1.1;
            proxy_pass http://%s:%d;
        }
    }
}
"""

    def __init__(self, world, module, behind):
        super().__init__(world, "nginx")
        (self.folder / "conf").write_text(self.CONF % (
            module, self.folder, self.address, self.port, behind.address,
            behind.port), "ascii")
        world.run([newstore.once(), "--store", "sqlite:%s/once.db" %
                   self.folder, "init", "--audit", "off"])

    def command(self):
        return [os.environ.get("ONCE_NGINX_BIN") or servers.find("nginx"), "-p", str(self.folder), "-c", "conf",
                "-g", "daemon off;"]

    def ready(self):
        return listens(self)


def listens(server):
    with contextlib.suppress(OSError), \
            socket.create_connection((server.address, server.port), 5):
        return True
    return False


class Http(Broker):
    """
    A service that charges, behind the gateway. Who is asked books at once: there
    is no consumer. A request comes again only if the relay repeats it.
    """

    name = "http"

    def __init__(self, run):
        if not run.module.exists():
            raise servers.Missing("the module for nginx is not built")
        self.payments = Payments(run.world, run.args.build /
                                 "examples/payments/payments").start()
        self.server = Gateway(run.world, run.module, self.payments).start()
        self.port = self.server.port
        self.copies = 0
        self.ending = False

    def target(self, port):
        return "http://127.0.0.1:%d/charge" % port

    def charges(self):
        """The names of orders, in the order in which they were charged."""
        path = self.payments.folder / "ledger"
        with contextlib.closing(sqlite3.connect(path, 30)) as db:
            return [row[0] for row in
                    db.execute("SELECT name FROM charges ORDER BY id")]

    def requests(self):
        """The keys of all requests that were answered."""
        text = (self.server.folder / "access").read_text("latin-1")
        return [line.split(" ")[0] for line in text.splitlines()]

    def end(self):
        pass


DATABASES = {c.name: c for c in (Postgres, Mysql, Sqlite)}
BROKERS = {c.name: c for c in (RabbitMQ, Nats, Redis, Kafka, Http)}
