# SPDX-License-Identifier: Apache-2.0
"""test_messages.py - the lines of docs/relay.md, as somebody who reads them for
the first time types them; orders while programs are killed; and the consumers of
examples/messages. (docs/start-messages.md is typed by test/pages.)

The lines are taken out of the page and run in a shell against real servers; what
they print must be what the page shows. Ids, times and places are left out.
"""
import contextlib
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys

import pika
import psycopg2
import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "test" / "lib"))

import servers  # noqa: E402  pylint: disable=wrong-import-position

BUILD = pathlib.Path(os.environ.get("ONCE_BUILD", ROOT / "build")).resolve()
EXAMPLES = ROOT / "examples" / "messages"
PAGE = (ROOT / "docs" / "relay.md").read_text()
ORDERS = 20
PATIENCE = 60


@pytest.fixture(scope="module")
def world():
    with servers.World() as w:
        yield w


def build(world, make):
    try:
        return make(world)
    except servers.Missing as missing:
        pytest.skip(str(missing))


@pytest.fixture(scope="module")
def postgres(world):
    server = build(world, lambda w: servers.Postgres(w).init())
    server.start()
    return server.furnish()


@pytest.fixture(scope="module")
def rabbitmq(world):
    return build(world, lambda w: servers.RabbitMQ(w).start())


@pytest.fixture(scope="module")
def redis(world):
    return build(world, lambda w: servers.Redis(w, durable=False).start())


class Shell:
    """One reader: a folder, an environment, and terminals in which programs
    run."""

    def __init__(self, folder, **env):
        self.folder = folder
        (folder / "examples").symlink_to(ROOT / "examples")
        self.env = {k: v for k, v in os.environ.items()
                    if not k.startswith(("ONCE_", "PG"))}
        self.env.update(env, PATH="%s:%s" % (BUILD, self.env["PATH"]),
                        PGCLIENTENCODING="UTF8")
        self.running = {}
        self.status = 0

    def run(self, lines, check=True):
        done = subprocess.run(
            ["bash", "-c", lines], cwd=self.folder, env=self.env, text=True,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, timeout=PATIENCE, check=False)
        self.status = done.returncode
        if check:
            assert self.status == 0, (lines, done.stdout)
        return done.stdout

    def start(self, name, line):
        """In a terminal of its own."""
        with open(self.folder / (name + ".log"), "ab") as log:
            self.running[name] = subprocess.Popen(
                [shutil.which("setpriv"), "--pdeathsig", "KILL", "bash", "-c",
                 "exec " + line], cwd=self.folder, env=self.env,
                stdin=subprocess.DEVNULL, stdout=log, stderr=log)

    def end(self, name, number=signal.SIGTERM):
        process = self.running.pop(name)
        process.send_signal(number)
        return process.wait(PATIENCE)

    def close(self):
        for name in list(self.running):
            self.end(name, signal.SIGKILL)


@pytest.fixture
def shell(tmp_path):
    with contextlib.closing(Shell(tmp_path)) as made:
        yield made


def blocks(after):
    """The code blocks of the page behind this text."""
    return re.findall(r"^```\w*\n(.*?)^```", PAGE[PAGE.index(after):],
                      re.S | re.M)


def plain(text):
    """Without what is different each time."""
    text = re.sub(r"[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f-]{21}", "UUID", text)
    text = re.sub(r"[-\d]{10}T[:.\d]{12}Z", "TIME", text)
    text = re.sub(r"^\d{13}-\d$", "ENTRY", text, flags=re.M)
    text = re.sub(r"\b[0-9a-f]{16}\b", "HASH", text)
    return "\n".join(line.rstrip() for line in text.splitlines()).strip()


def session(shell, block):
    """Runs a block of "$ command" lines with what they print."""
    for part in re.split(r"^\$ ", block, flags=re.M)[1:]:
        line, _, expected = part.partition("\n")
        printed = (str(shell.status) if line == "echo $?" else
                   shell.run(line, check=False))
        yield line, plain(printed), plain(expected)


# ---- Under kills -------------------------------------------------------------


ORDER = """BEGIN;
INSERT INTO orders (id, cents) VALUES (%d, 1250);
SELECT once.emit('orders', '{"order": %d, "cents": 1250}', p_key => 'order-%d');
COMMIT;
"""
# What the page has takes half a minute.
RELAY = "once messages relay --to orders=@orders.url --lease 3s --timeout 1s"
BILLING = """once messages consume --from @billing.url --consumer billing \
    --sql 'SELECT bill($1, $2)'"""


def order(shell, n):
    (shell.folder / "order.sql").write_text(ORDER % (n, n, n))
    shell.run("psql -q -v ON_ERROR_STOP=1 -o /dev/null $DB -f order.sql")


def ledgers(shell):
    """Orders, invoices, not billed, billed twice."""
    with contextlib.closing(psycopg2.connect(shell.env["DB"])) as db, \
            db.cursor() as cursor:
        cursor.execute("TABLE ledgers")
        return cursor.fetchone()


def test_whatever_is_killed_each_order_is_billed_once(shell, postgres,
                                                     rabbitmq):
    shell.env.update(DB=postgres.url(), ONCE_DATABASE=postgres.url(),
                     MQ=rabbitmq.url())
    shell.run("""set -e
        amqp-declare-queue -u $MQ -d -q orders
        once messages init
        psql $DB -f examples/messages/schema.sql
        umask 077
        echo "$MQ?routing_key=orders" >orders.url
        echo "$MQ?queue=orders" >billing.url""")
    shell.start("relay", RELAY)
    shell.start("billing", BILLING)
    for n in range(ORDERS):
        order(shell, n)
        if n == 4:
            shell.end("relay", signal.SIGKILL)
            shell.start("relay", RELAY)
        elif n == 8:
            rabbitmq.kill()
            rabbitmq.start()
        elif n == 12:
            shell.end("billing", signal.SIGKILL)
            shell.start("billing", BILLING)
    servers.eventually(lambda: ledgers(shell) == (ORDERS, ORDERS, 0, 0),
                       "an invoice for each order")
    assert shell.end("relay") == 0 and shell.end("billing") == 0


# ---- SQLite and Redis ---------------------------------------------------------


def test_the_relay_with_commands(shell):
    block = next(b for b in blocks("## The relay") if "exec:./send" in b)
    send = shell.folder / "send"
    send.write_text('#!/bin/sh\necho "$ONCE_ID: $(cat)"\n')
    send.chmod(0o755)
    shell.env["ONCE_DATABASE"] = "sqlite:shop.db"
    for line, printed, expected in session(shell, block):
        assert sorted(printed.splitlines()) == sorted(
            expected.splitlines()), line


def at(redis, text):
    """The page's server is ours."""
    text = re.sub(r"redis://127\.0\.0\.1(:6379)?/", redis.url() + "/", text)
    return text.replace("redis-cli ", "redis-cli -u %s " % redis.url())


def test_redis_as_it_stands(shell, redis):
    relay = next(b for b in blocks("## Targets: Redis") if "xrange" in b)
    shell.env["ONCE_DATABASE"] = "sqlite:shop.db"
    shell.run("once messages init")
    for line, printed, expected in session(shell, at(redis, relay)):
        assert printed == expected, line
    shell.run("rm shop.db*")
    redis.ask("DEL", "orders")
    redis.ask("CONFIG", "SET", "appendonly", "yes")
    redis.ask("CONFIG", "SET", "appendfsync", "always")

    begin, said, look = blocks("## The consumer")[:3]
    printed = shell.run(at(redis, begin), check=False)
    assert [n for n in printed.splitlines() if n.startswith("once ")] == \
        said.splitlines()
    for line, printed, expected in session(shell, look):
        assert printed == expected, line


# ---- The four consumers of examples/messages ------------------------------------

HANDLERS = {
    "C": str(BUILD / "examples/messages/billing") + ' $DB "$MQ?queue=$QUEUE"',
    "python": sys.executable + " examples/messages/billing.py $DB $MQ $QUEUE",
    "shell": "once messages consume --from @url --consumer billing --effect inside -- "
             "examples/messages/bill $DB",
    "sql": "once messages consume --from @url --consumer billing "
           "--sql 'SELECT bill($1, $2)'",
}


def publish(rabbitmq, queue):
    """Each order, every third of them twice, and one that is no order."""
    with contextlib.closing(pika.BlockingConnection(
            pika.URLParameters(rabbitmq.url()))) as broker:
        channel = broker.channel()
        channel.confirm_delivery()
        channel.queue_declare(queue, durable=True)
        sent = [("o%d" % n, '{"order": %d, "cents": 5}' % n)
                for n in range(ORDERS)]
        sent = [(None, "hello")] + sent + sent[::3]
        for name, body in sent:
            channel.basic_publish("", queue, body.encode(), pika.BasicProperties(
                message_id=name, delivery_mode=2))


def waiting(rabbitmq, queue):
    with contextlib.closing(pika.BlockingConnection(
            pika.URLParameters(rabbitmq.url()))) as broker:
        return broker.channel().queue_declare(
            queue, passive=True).method.message_count


@pytest.mark.parametrize("kind", HANDLERS)
def test_each_consumer_bills_an_order_once(shell, postgres, rabbitmq, kind):
    name = "bills_" + kind.lower()
    if kind == "C" and not os.path.exists(HANDLERS[kind].split()[0]):
        pytest.skip("billing is not built")
    postgres.sql("CREATE DATABASE %s OWNER once" % name)
    shell.env.update(DB=postgres.url()[:-len("once")] + name, QUEUE=name,
                     MQ=rabbitmq.url())
    shell.env["ONCE_DATABASE"] = shell.env["DB"]
    shell.run("once messages init && psql -q $DB -f "
              "examples/messages/schema.sql && psql -q $DB -c 'INSERT INTO "
              "orders SELECT n, 5 FROM generate_series(0, %d) n'" % (ORDERS - 1))
    (shell.folder / "url").write_text("%s?queue=%s\n" % (rabbitmq.url(), name))
    (shell.folder / "url").chmod(0o600)
    publish(rabbitmq, name)
    shell.start("billing", HANDLERS[kind])
    count = (ORDERS, ORDERS, 0, 0)
    servers.eventually(lambda: ledgers(shell) == count, "every order is billed")
    for _ in range(10):  # what was on its way comes again
        servers.eventually(lambda: waiting(rabbitmq, name) == 0, "it is empty")
        shell.end("billing")
        if waiting(rabbitmq, name) == 0:
            break
        shell.start("billing", HANDLERS[kind])
    else:
        pytest.fail("the queue does not become empty")
    assert ledgers(shell) == count
    letters = shell.run("once messages parked ls").splitlines()
    assert len(letters) == 1 and "\tdead\t" in letters[0], letters
    assert shell.run("once messages parked show 1 --body").strip() == "hello"
