# SPDX-License-Identifier: Apache-2.0
"""
A service with a middleware, and its `once serve`, are killed again and again, the
one, the other, or both, while clients send each order until its outcome is
known. The upstream's ledger says how often each was executed: never twice. And
what was executed is either answered the same each time, or said to be unknown.

ONCE_TARGET is the language (python), ONCE_KILLS how many orders.
"""

import contextlib
import json
import os
import pathlib
import random
import sys
import threading
import time

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "gateway"))
os.environ.setdefault("ONCE_TARGET", "python")

# pylint: disable=wrong-import-position
import gateway  # noqa: E402
from gateway import Answer, Site, guarded  # noqa: E402

ORDERS = int(os.environ.get("ONCE_KILLS", "120"))
CLIENTS = 8
GIVE_UP_S = 120


class Work:
    """An execution takes a while, so that most kills hit one."""

    def __init__(self, draw):
        self.seconds = draw.uniform(0.02, 0.2)

    def __call__(self, conn, request):
        time.sleep(self.seconds)
        Answer(201, b"made\n")(conn, request)


class Order:
    """One order, and everything its client was told."""

    def __init__(self, site, draw):
        self.case = site.case("/pay/", Work(draw))
        self.told = []
        self.given_up = False   # a begin got no answer in its time

    def send(self):
        """True when there is nothing more to find out."""
        try:
            r = self.case.post()
        except (OSError, EOFError, AssertionError, ValueError):
            return False                    # cut off: send again
        if r.truncated:
            return False
        if r.status == 201:
            self.told.append(("made", r.body))
            return True
        code = r.code()
        if code == "outcome-unknown":
            self.told.append(("unknown", b""))
            return True
        assert code in ("in-flight", "store-unavailable") or r.status >= 500, r
        self.given_up |= code == "store-unavailable"
        return False


def clients(orders, wrong):
    """Each order is sent until it is known, by one of a few threads."""
    waiting = list(orders)
    lock = threading.Lock()

    def work():
        try:
            while True:
                with lock:
                    if not waiting:
                        return
                    order = waiting.pop()
                end = time.monotonic() + GIVE_UP_S
                while not order.send():
                    assert time.monotonic() < end, "it never became known"
                    time.sleep(0.02)
        except BaseException as error:  # pylint: disable=broad-except
            wrong.append(error)
    threads = [threading.Thread(target=work) for _ in range(CLIENTS)]
    for thread in threads:
        thread.start()
    return threads


def kill(site, what):
    if what in ("service", "both"):
        site.gateway.kill_service()
    if what in ("server", "both"):
        site.gateway.kill_servers()
    if what in ("service", "both"):
        site.gateway.start_service()


@pytest.mark.parametrize("what", ["service", "server", "both"])
def test_nothing_is_executed_twice_and_each_unknown_is_said(tmp_path, what):
    draw = random.Random(what)
    # An end is told for a lease: long where each has to arrive.
    lease = "once_lease 60s;" if what == "server" else "once_lease 2s;"
    site = Site(tmp_path, guarded("/pay/", lease), "journal:%s/pay" % tmp_path,
                allow=[".*"])
    wrong, kills = [], 0
    try:
        site.start()
        orders = [Order(site, draw) for _ in range(ORDERS)]
        threads = clients(orders, wrong)
        while any(t.is_alive() for t in threads):
            # On a machine that is slow a service is not killed before it works.
            executed = sum(o.case.executions for o in orders)
            while any(t.is_alive() for t in threads) and \
                    sum(o.case.executions for o in orders) < executed + 2:
                time.sleep(0.01)
            time.sleep(draw.uniform(0.05, 0.3))
            with contextlib.suppress(ProcessLookupError):
                kill(site, what)
            kills += 1
        assert not wrong, wrong[:3]
        # Once more, in peace.
        for order in orders:
            for _ in range(200):
                if order.send():
                    break
                time.sleep(0.05)
    finally:
        site.close()
    executed = [o.case.executions for o in orders]
    unknown = sum(o.told[-1][0] == "unknown" for o in orders)
    print(json.dumps({"kills": kills, "orders": ORDERS,
                      "executed": sum(executed), "unknown": unknown}))
    assert kills > 3 and max(executed) == 1, executed
    for order in orders:
        last = order.told[-1]
        assert last[0] == "unknown" or order.case.executions == 1
        assert not any(t[0] == "made" and t[1] != b"made\n"
                       for t in order.told)
        # What was made once is made, whatever is killed afterwards.
        if ("made", b"made\n") in order.told:
            assert last[0] == "made", order.told
    if what == "server":
        # The service lives: it tells each end to the next server. It does not
        # execute what it got no answer for, though that may have been claimed.
        for order in orders:
            assert order.told[-1][0] == "made" or (
                order.given_up and order.case.executions == 0), order.told
