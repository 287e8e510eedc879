# SPDX-License-Identifier: Apache-2.0
"""
Transfers between two banks, each a saga: hold here, announce there, book both. The
banks are HTTP services with databases of their own (bank.py), behind a gateway or
not; relays, banks and the database server are killed at random. Every saga ends done or undone, no cent
is held for ever, none is lost or made, and each account has what the sagas that are
done say.

SAGAS (40) and SEED (drawn) in the environment make it longer, or the same again.
"""
import contextlib
import json
import os
import pathlib
import random
import re
import signal
import subprocess
import sys
import time

import pytest

from carry import ONCE, PATIENCE, Lite, Relay, database, eventually, once


ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "test/gateway"))

import gateway  # noqa: E402  pylint: disable=wrong-import-position

psycopg2 = pytest.importorskip("psycopg2")

SAGAS = int(os.environ.get("SAGAS", "40"))
SEED = int(os.environ.get("SEED", str(random.SystemRandom().randrange(10**6))))
START = pathlib.Path(ONCE).parent / "test/start_sagas"
BANK = pathlib.Path(__file__).resolve().parent / "bank.py"
ACCOUNTS, CENTS = 4, 1000
SIDES = {"debit": "here", "credit": "there"}


class Bank:
    """bank.py on a database of its own; when it is killed it comes back."""

    def __init__(self, server, name):
        self.server, self.name, self.port = server, name, 0
        self.dsn = server.url()[:-len("once")] + name
        self.process = None
        server.sql("CREATE DATABASE %s OWNER once" % name)
        once("--database", self.dsn, "messages", "init")
        self.sql("CREATE TABLE account (name text PRIMARY KEY, cents bigint,"
                 " held bigint DEFAULT 0, coming bigint DEFAULT 0,"
                 " closed boolean DEFAULT false);"
                 "INSERT INTO account (name, cents) SELECT 'a' || n, %d"
                 " FROM generate_series(1, %d) n;"
                 "UPDATE account SET closed = true WHERE name = 'a%d';"
                 "GRANT ALL ON account TO once" % (CENTS, ACCOUNTS, ACCOUNTS))
        self.start()

    def sql(self, text):
        return [tuple(line.split("|"))
                for line in self.server.sql(text, self.name).splitlines()]

    def start(self):
        def up():
            # pylint: disable=consider-using-with
            self.process = subprocess.Popen(
                ["setpriv", "--pdeathsig", "KILL", "--", sys.executable, BANK,
                 self.dsn, str(self.port)],
                text=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
            found = re.fullmatch(r"bank: listening on (\d+)\n",
                                 self.process.stdout.readline())
            if not found:  # its port is not free yet
                self.stop()
                return None
            return int(found.group(1))
        self.port = eventually(up, "a bank")

    def stop(self):
        self.process.kill()
        self.process.communicate()

    def kill(self):
        self.stop()
        self.start()

    def accounts(self):
        """{name: cents}; nothing may be held or announced any more."""
        rows = self.sql("SELECT name, cents, held, coming FROM account")
        assert [row[2:] for row in rows] == [("0", "0")] * len(rows)
        return {row[0]: int(row[1]) for row in rows}


class Transfers:
    """A database with sagas, two banks, and relays in between."""

    def __init__(self, folder, server, db, banks, ways):
        self.folder, self.server, self.db = folder, server, db
        self.banks = banks
        self.words = ["--timeout", "1s", "--workers", "3"]
        self.words = [word for side in SIDES for op in ("try", "confirm", "cancel")
                      for word in ["--to", "%s-%s=%s/%s/%s"
                                   % (side, op, ways[side], side, op),
                                   *self.words]]
        self.relays = []
        self.wanted = {}

    def saga(self, n, chance):
        cents = chance.randrange(1, CENTS // 2)
        source = "a%d" % chance.randrange(1, ACCOUNTS + 1)
        target = "a%d" % chance.randrange(1, ACCOUNTS + 1)  # the last is closed
        gid = "t%d" % n
        self.wanted[gid] = (source, target, cents)
        steps = [{"try": side + "-try", "confirm": side + "-confirm",
                  "cancel": side + "-cancel", "type": "application/json",
                  "body": json.dumps({"account": name, "cents": cents})}
                 for side, name in (("debit", source), ("credit", target))]
        late = n % 5 == 0
        deadline = int((time.time() + chance.random() * 3) * 1000) if late else 0
        return json.dumps({"gid": gid, "kind": "transfer", "deadline": deadline,
                           "steps": steps})

    def start(self, n, chance):
        lines = "\n".join(self.saga(i, chance) for i in range(n))
        done = subprocess.run([START, self.db.url], input=lines, text=True,
                              capture_output=True, timeout=PATIENCE, check=False)
        assert done.returncode == 0, done.stderr

    def relay(self):
        self.relays.append(Relay(self.folder, self.db, *self.words))

    def lose(self, chance):
        what = chance.choice(["relay", "relay", "here", "there", "database"])
        if what == "relay":
            relay = self.relays.pop(chance.randrange(len(self.relays)))
            relay.kill()
            self.relay()
        elif what == "database":
            self.server.kill()
            self.server.start()
        else:
            self.banks[what].kill()

    def states(self):
        table = self.db.table.replace("outbox", "saga")
        return {gid: int(state) for gid, state in
                self.db.sql("SELECT gid, state FROM %s" % table)}

    def is_over(self):
        return all(state in (3, 4) for state in self.states().values())

    def books(self):
        """What each account has if just the sagas that are done took place."""
        here = {"a%d" % n: CENTS for n in range(1, ACCOUNTS + 1)}
        there = dict(here)
        for gid, state in self.states().items():
            source, target, cents = self.wanted[gid]
            if state == 3:
                here[source] -= cents
                there[target] += cents
        return here, there

    def close(self):
        for relay in self.relays:
            if relay.process.poll() is None:
                relay.send(signal.SIGCONT)
                relay.kill()
        for bank in self.banks.values():
            bank.stop()


def guard(stack, folder, bank):
    """A gateway in front of a bank, which deduplicates by itself."""
    if gateway.NGINX is None or not os.path.exists(gateway.MODULE):
        pytest.skip("no nginx, or no module")
    home = folder / ("nginx-" + bank.name)
    home.mkdir()
    site = gateway.Gateway(
        home, bank.port,
        gateway.guarded("/", "once_lease 1s; once_lost takeover;"),
        "once_store main sqlite:%s/store.db;" % home,
        allow=[r"connect\(\) failed", r"upstream prematurely"])
    site.start()
    stack.callback(site.close)
    return "http://127.0.0.1:%d" % site.port


@pytest.fixture(params=["sqlite", "postgres", "mysql", "postgres-gateway"])
def transfers(request, tmp_path, postgres):
    name = "s" + re.sub(r"\W", "_", request.param)
    with contextlib.ExitStack() as stack:
        db = database(request, tmp_path, request.param.split("-")[0], name)
        banks = {side: Bank(postgres, "%s_%s" % (name, side))
                 for side in SIDES.values()}
        ways = {side: "http://127.0.0.1:%d" % banks[at].port
                for side, at in SIDES.items()}
        if request.param.endswith("gateway"):
            ways = {side: guard(stack, tmp_path, banks[at])
                    for side, at in SIDES.items()}
        server = db.server if request.param == "mysql" else postgres
        found = Transfers(tmp_path, server, db, banks, ways)
        stack.callback(found.close)
        yield found


def test_money_moves_or_does_not(transfers):
    print("SEED=%d" % SEED)
    chance = random.Random(SEED)
    transfers.start(SAGAS, chance)
    transfers.relay()
    transfers.relay()
    for _ in range(12):
        time.sleep(chance.random() * 0.5)
        transfers.lose(chance)
    try:
        # A row that failed often waits long before it is tried again.
        eventually(transfers.is_over, "every saga ends", 300)
    finally:
        print(once("--database", transfers.db.url, "messages", "saga", "ls").stdout)
    here, there = transfers.books()
    assert transfers.banks["here"].accounts() == here
    assert transfers.banks["there"].accounts() == there
    states = list(transfers.states().values())
    print("done %d, undone %d" % (states.count(3), states.count(4)))
    assert 3 in states and 4 in states
    listed = once("--database", transfers.db.url, "messages", "saga", "ls", "stuck").stdout
    assert listed == ""


SCRIPT = """#!/bin/sh
# Ends as the file beside it says.
cat >/dev/null
echo "$ONCE_ID" >>%(folder)s/asked
exit $(cat %(folder)s/%(name)s)
"""


class Branches:
    """Commands: each call is a script that ends with the status in a file."""

    def __init__(self, folder):
        self.folder = folder
        self.words = []
        for name in "try", "cancel":
            script = folder / (name + ".sh")
            script.write_text(SCRIPT % {"folder": folder, "name": name})
            script.chmod(0o755)
            self.words += ["--to", "%s=exec:%s" % (name, script), "--no-hold"]
            self.end(name, 0)

    def end(self, name, status):
        (self.folder / name).write_text(str(status))

    def asked(self):
        return (self.folder / "asked").read_text().split()

    def drain(self, db):
        return once("messages", "relay", "--database", db.url, *self.words, "--drain",
                    check=False)


def test_an_operator_frees_a_stuck_saga(tmp_path):
    db, branches = Lite(tmp_path), Branches(tmp_path)
    saga = {"gid": "s", "kind": "k", "steps": [{"try": "try", "cancel": "cancel"}]}
    subprocess.run([START, db.url], input=json.dumps(saga), text=True,
                   timeout=PATIENCE, check=True)
    branches.end("try", 65)
    branches.end("cancel", 65)
    done = branches.drain(db)
    assert done.returncode == 1  # somebody has to look
    assert "once messages saga ls stuck" in done.stderr
    shown = once("--database", db.url, "messages", "saga", "show", "s").stdout
    assert "state\tstuck\nversion\t3\n" in shown
    branches.end("cancel", 0)
    assert branches.drain(db).returncode == 1
    once("--database", db.url, "messages", "saga", "retry", "s", "--at-version", "3", "--why",
         "the service is repaired")
    assert branches.drain(db).returncode == 0
    shown = once("--database", db.url, "messages", "saga", "show", "s").stdout
    assert "state\tundone\n" in shown and "the service is repaired" in shown
    assert branches.asked() == ["s/1/try", "s/1/cancel", "s/1/cancel/1"]
