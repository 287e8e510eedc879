# SPDX-License-Identifier: Apache-2.0
"""
A service that deduplicates in its own transaction, behind a gateway with
`once_lost takeover`: one charge for each order, and an answer every time, while
agent, gateway, service and database are killed again and again.

ORDERS (100) and SEED (drawn) in the environment make it longer, or the same
again: ORDERS=2000 SEED=7 pytest test/examples/test_transaction.py
"""

import http.client
import os
import pathlib
import random
import re
import signal
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "test/client"), str(ROOT / "test/lib")]

import faults  # noqa: E402  pylint: disable=wrong-import-position
import servers  # noqa: E402  pylint: disable=wrong-import-position
from test_agent import Agent  # noqa: E402  pylint: disable=wrong-import-position

ORDERS = int(os.environ.get("ORDERS", "100"))
SEED = int(os.environ.get("SEED", str(random.SystemRandom().randrange(10**6))))
CHARGE = faults.BUILD / "examples/transaction/charge"
SCRIPT = ROOT / "examples/transaction/charge.py"


class Service:
    """charge.c or charge.py, started again on the same port."""

    def __init__(self, kind, url):
        self.kind, self.url, self.port, self.process = kind, url, 0, None
        self.start()

    def command(self):
        if self.kind == "c":
            return [CHARGE, "--db", self.url, "--listen",
                    "127.0.0.1:%d" % self.port]
        return [sys.executable, SCRIPT, self.url, str(self.port)]

    def start(self):
        def up():
            self.process = subprocess.Popen(
                self.command(), env=faults.ENV, text=True,
                stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
            line = self.process.stdout.readline()
            found = re.fullmatch(r"charge: listening on 127\.0\.0\.1:(\d+)\n",
                                 line)
            if not found:  # the database is away, or the port not free yet
                self.close()
                return None
            return int(found.group(1))
        self.port = faults.eventually(up)

    def close(self):
        self.process.send_signal(signal.SIGKILL)
        self.process.communicate()

    def kill(self):
        self.close()
        self.start()


@pytest.fixture(params=["c", "python"])
def kind(request):
    if faults.gateway.NGINX is None or not faults.AGENT.exists():
        pytest.skip("no nginx, or no agent")
    if request.param == "c" and not CHARGE.exists():
        pytest.skip("no %s" % CHARGE)
    if request.param == "python":
        pytest.importorskip("psycopg2")
    return request.param


class Site:
    """Database, service, gateway, and a network that drops connections."""

    def __init__(self, world, folder, kind):
        self.folder = folder
        world.build("postgres")
        self.database = world.servers["postgres"]
        url = self.database.url("postgres")
        subprocess.run([faults.ONCE, "--database", url, "messages", "init"],
                       check=True, capture_output=True)
        self.service = Service(kind, url)
        home = folder / "nginx"
        home.mkdir()
        self.store = "sqlite:%s/store.db" % folder
        self.gateway = faults.gateway.Gateway(
            home, self.service.port,
            faults.gateway.guarded("/charge",
                                   "once_lease 1s; once_lost takeover;"),
            "once_store main %s;" % self.store, workers=2,
            allow=[r"signal 9", r"SIGKILL", r"open socket #"])
        self.gateway.start()
        self.network = faults.Dropper(self.gateway.port, 0.15, 0.15, SEED)

    def lose(self, what):
        if what == "gateway":
            self.gateway.kill_all()
            self.gateway.start()
        elif what == "service":
            self.service.kill()
        else:
            self.database.kill()
            self.database.start()

    def ledger(self):
        """{order: how often it was charged}"""
        text = self.database.sql("SELECT name, count(*) FROM charges GROUP BY 1",
                                 "once")
        return {name: int(n) for name, n in
                (line.split("|") for line in text.split())}

    def close(self):
        self.network.close()
        self.gateway.close()
        self.service.close()


def test_one_charge_and_an_answer_every_time(kind, tmp_path):
    dice = random.Random(SEED)
    print("SEED=%d ORDERS=%d" % (SEED, ORDERS))
    with servers.World() as world:
        site = Site(world, tmp_path, kind)
        try:
            agent = Agent(tmp_path, site.network.url, ORDERS)
            agent.start()
            kills = ["agent", "gateway", "service", "database"] \
                * max(2, ORDERS // 100)
            dice.shuffle(kills)
            for what in kills:
                faults.nap(dice.uniform(0.05, 0.6))
                if what == "agent":
                    agent.kill()
                    agent.start()
                else:
                    site.lose(what)
            agent.finish()
            site.network.calm()
            said = faults.eventually(lambda: all_charged(agent))
            assert len(said) == ORDERS
            assert site.ledger() == {name: 1 for name in said}
            assert not faults.indeterminate(site.store)
        finally:
            site.close()


def all_charged(agent):
    said = agent.run()
    return said if {word for word, _ in said.values()} == {"charged"} else None


def test_a_key_from_before_the_window_has_no_final_answer(kind, tmp_path):
    """Its row may have been there, and been purged: nobody knows."""
    with servers.World() as world:
        site = Site(world, tmp_path, kind)
        try:
            for _ in range(2):
                status, replayed = ask(site.gateway.port,
                                       "01800000-0000-7000-8000-000000000001")
                assert (status, replayed) == (503, None)
            assert site.ledger() == {}
            assert len(faults.indeterminate(site.store)) == 1
        finally:
            site.close()


def ask(port, key):
    c = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    try:
        c.request("POST", "/charge", '{"order": "o-1", "amount": 5}',
                  {"Idempotency-Key": key, "Content-Type": "application/json"})
        r = c.getresponse()
        r.read()
        return r.status, r.getheader("Idempotent-Replayed")
    finally:
        c.close()
