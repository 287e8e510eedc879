# SPDX-License-Identifier: Apache-2.0
"""
The agent and the service that is guarded from inside (examples/payments,
guarded.c), without a gateway: the same network, and a service that is killed
with its engine in the middle of charges. The same three books must agree.
"""

import os
import random
import re
import subprocess

import pytest

import faults
import newstore
from faults import (AGENT, BUILD, ENV, Dropper, eventually, indeterminate, nap,
                    orders, stored_name)
from test_agent import Agent

PROGRAM = BUILD / "examples/payments/payments-guarded"
ORDERS = int(os.environ.get("ORDERS", "100"))
SEED = int(os.environ.get("SEED", str(random.SystemRandom().randrange(10**6))))

pytestmark = pytest.mark.skipif(
    not (PROGRAM.exists() and AGENT.exists()),
    reason="no %s, or no agent" % PROGRAM)


class Guarded(faults.Payments):
    """The same ledger behind a guard of its own."""

    def __init__(self, folder):  # pylint: disable=super-init-not-called
        self.db = folder / "ledger.db"
        self.store = "sqlite:%s/store.db" % folder
        newstore.init(self.store)
        self.process = None
        self.start()

    def start(self):
        # pylint: disable=consider-using-with
        self.process = subprocess.Popen(
            [PROGRAM, "--db", self.db, "--store", self.store, "--sample",
             "slow-after=20"], env=ENV, text=True, stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL)
        line = self.process.stdout.readline()
        self.port = int(re.fullmatch(
            r"payments: listening on 127\.0\.0\.1:(\d+)\n", line).group(1))


def test_the_books_agree_when_the_service_guards_itself(tmp_path):
    print("SEED=%d ORDERS=%d" % (SEED, ORDERS))
    dice = random.Random(SEED)
    service = Guarded(tmp_path)
    network = Dropper(service.port, 0.2, 0.2, SEED)
    agent = Agent(tmp_path, network.url, ORDERS)
    try:
        agent.start()
        for _ in range(max(3, ORDERS // 100)):
            nap(dice.uniform(0.05, 0.4))
            service.close()
            service.start()
            network.to = service.port
            nap(dice.uniform(0.05, 0.4))
            agent.kill()
            agent.start()
        agent.finish()
        network.calm()

        def settled():
            said = agent.run()
            doubt = [n for n, (word, why) in said.items()
                     if word == "unknown" and "gateway says" not in why]
            return said if not doubt else None

        said = eventually(settled)
        ledger = service.ledger()
        assert len(said) == ORDERS
        assert all(n == 1 for n in ledger.values()), ledger
        kept = orders(agent.file)
        unknown = {stored_name(kept[name][0], realm="payments")
                   for name, (word, _) in said.items() if word == "unknown"}
        assert unknown == indeterminate(service.store)
        for name, (word, _) in said.items():
            assert word in ("charged", "unknown"), (name, word)
            assert word == "unknown" or ledger.get(name) == 1, name
        assert network.counts["replayed"] > 0
    finally:
        network.close()
        service.close()
