# SPDX-License-Identifier: Apache-2.0
"""
The agent charges orders while a fifth of all connections is dropped before the
request and a fifth after it, and while gateway and agent are killed again and
again. In the end three books must agree: what the agent says, the service's
ledger, and the gateway's store.

ORDERS (200) and SEED (drawn) in the environment make it longer, or the same
again: ORDERS=2000 SEED=7 pytest test/client/test_agent.py
"""

import os
import random
import re
import signal
import subprocess

import pytest

from faults import (AGENT, ENV, PATIENCE, Payments, eventually, indeterminate,
                    nap, orders, stored_name)

ORDERS = int(os.environ.get("ORDERS", "200"))
SEED = int(os.environ.get("SEED", str(random.SystemRandom().randrange(10**6))))

pytestmark = pytest.mark.skipif(not AGENT.exists(),
                                reason="no agent at %s" % AGENT)


class Agent:
    """One line of shell, started again and again."""

    def __init__(self, folder, url, count, *more):
        self.file = folder / "agent.db"
        self.command = [AGENT, "--url", url, "--store", self.file, "--orders",
                        str(count), "--threads", "8", "--timeout", "3000",
                        "--deadline", "30", "--list", *more]
        self.process = None

    def start(self):
        self.process = subprocess.Popen(self.command, env=ENV, text=True,
                                        stdout=subprocess.PIPE,
                                        stderr=subprocess.PIPE)

    def kill(self):
        self.process.send_signal(signal.SIGKILL)
        self.process.communicate()

    def running(self):
        return self.process.poll() is None

    def finish(self):
        """Waits; returns {order: (what the agent says, why)}."""
        out, err = self.process.communicate(timeout=600)
        assert err == "", err
        said = dict((name, (word, why)) for name, word, why in re.findall(
            r"^(order-\d+)\t([a-z ]+)\t([^\t]+)\t\d+$", out, re.M))
        return said

    def run(self):
        self.start()
        return self.finish()


def disturb(site, agent, dice, kills):
    """Kills the gateway or the agent at random moments, `kills` times each."""
    todo = ["gateway", "agent"] * kills
    dice.shuffle(todo)
    for what in todo:
        nap(dice.uniform(0.05, 0.6))
        if what == "agent":
            agent.kill()
            agent.start()
        else:
            site.lose_gateway()


def check_books(site, agent, said):
    ledger = site.payments.ledger()
    more = {name: n for name, n in ledger.items() if n > 1}
    assert not more, "charged more than once: %r" % more
    by = {}
    for name, (word, why) in said.items():
        by.setdefault(word, set()).add(name)
        if word == "unknown":
            assert why == "the gateway says that the outcome is not known", \
                (name, why)
    lost = by.get("charged", set()) - set(ledger)
    assert not lost, "said to be charged, and is not: %r" % lost
    wrong = by.get("not charged", set()) & set(ledger)
    assert not wrong, "said not to be charged, and is: %r" % wrong
    kept = orders(agent.file)
    unknown = {stored_name(kept[name][0]) for name in by.get("unknown", ())}
    assert unknown == indeterminate(site.store)
    stray = set(ledger) - set(said)
    assert not stray, "charged, and nobody wanted it: %r" % stray
    return by


def test_three_books_agree_after_faults_of_every_kind(make_site):
    dice = random.Random(SEED)
    print("SEED=%d ORDERS=%d" % (SEED, ORDERS))
    site = make_site("--sample", "slow-after=20", before=0.2, after=0.2,
                     seed=SEED)
    agent = Agent(site.folder, site.network.url, ORDERS)
    agent.start()
    disturb(site, agent, dice, max(3, ORDERS // 100))
    agent.finish()
    counts = dict(site.network.counts)
    site.network.calm()

    # Leases of owners that were killed end; then each order has a last word.
    def settled():
        said = agent.run()
        assert len(said) == ORDERS
        doubt = [n for n, (word, why) in said.items()
                 if word == "unknown" and "gateway says" not in why]
        return said if not doubt else None

    by = check_books(site, agent, eventually(settled))
    print({word: len(names) for word, names in by.items()}, counts)
    # It was no calm day: the faults have really happened.
    assert counts["before"] > ORDERS / 20 and counts["after"] > ORDERS / 20
    assert counts["replayed"] > 0
    assert len(by["charged"]) > ORDERS / 2
    assert not by.get("not charged")


def test_without_the_gateway_the_same_day_charges_twice(tmp_path):
    """The same network, and a service that knows no keys: the test above can
    fail, and this is how it would look."""
    import faults  # pylint: disable=import-outside-toplevel
    payments = Payments(tmp_path)
    network = faults.Dropper(payments.port, 0.2, 0.2, SEED)
    try:
        Agent(tmp_path, network.url, 60).run()
        ledger = payments.ledger()
        assert max(ledger.values()) > 1
    finally:
        network.close()
        payments.close()


def test_what_an_operator_resolves_the_agent_learns(make_site):
    """An honest unknown, a decision, and the same line again."""
    from faults import ONCE  # pylint: disable=import-outside-toplevel
    site = make_site("--sample", "drop-after")
    agent = Agent(site.folder, site.network.url, 1)
    said = agent.run()
    assert said["order-1"][0] == "unknown"
    assert site.payments.ledger() == {"order-1": 1}
    names = indeterminate(site.store)
    assert names == {stored_name(orders(agent.file)["order-1"][0])}
    show = subprocess.run([ONCE, "--store", site.store, "show", *names,
                           "--json"], env=ENV, capture_output=True, text=True,
                          timeout=PATIENCE, check=True)
    fence = re.search(r'"fence":\s*"(\d+)"', show.stdout).group(1)
    receipt = site.folder / "receipt"
    receipt.write_text('{"charge":1}\n')
    subprocess.run([ONCE, "--store", site.store, "resolve", *names, "--fence",
                    fence, "--success", receipt, "--status", "201", "--why",
                    "charge 1 is in the ledger"], env=ENV, timeout=PATIENCE,
                   check=True, capture_output=True)
    assert agent.run()["order-1"] == ("charged", "the server has answered")
    assert site.payments.ledger() == {"order-1": 1}
