# SPDX-License-Identifier: Apache-2.0
"""
nginx, a guard inside a program and services in several languages, all of one
journal: the same order at all of them at once is executed by one, and each other
one gives its answer, byte by byte.

What is not installed (Go, nginx's Lua, Java) is left out; ONCE_FRONTS names some.
"""

import os
import pathlib
import sys
import threading
import time
import uuid

import pytest

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "gateway"))

# pylint: disable=wrong-import-position
import gateway  # noqa: E402
import served  # noqa: E402
from gateway import Drop, Gateway, Guarded, eventually, guarded, message  # noqa: E402

FRONTS = os.environ.get("ONCE_FRONTS", "").split() or [
    "nginx", "guarded", *filter(served.is_installed, served.NEEDS)]
ORDERS = 20
# One service, whatever its clients call its host.
SERVER = guarded("/pay/", "once_realm shop; once_in_flight wait=20s;",
                 scope="$http_x_user")


def front(name):
    if name == "nginx":
        return Gateway
    if name == "guarded":
        return Guarded
    return served.target(Guarded, eventually, pathlib.Path(gateway.BUILD), name)


class Run:
    """Says which execution it is, with bytes that are no text."""

    def __call__(self, conn, request):
        time.sleep(0.05)
        conn.sock.sendall(message(201, bytes(range(256)), [
            ("X-Run", uuid.uuid4().hex), ("X-Bytes", "caf\xe9 \x80\xff"),
            ("X-Two", "one"), ("X-Two", "two")]))


class House:
    """One upstream, one store, and the gateways before it."""

    def __init__(self, folder):
        self.upstream = gateway.Upstream()
        self.upstreams = [self.upstream]
        self.gateways = {}
        for name in FRONTS:
            home = folder / name
            home.mkdir()
            self.gateways[name] = front(name)(
                home, self.upstream.port, SERVER,
                "once_store main journal:%s/pay;" % folder, "", 2,
                init=not self.gateways, allow=[".*"])
            self.gateways[name].start()
        self.gateway = None     # a case is of none of them

    def send(self, case, name, **what):
        with gateway.Client(self.gateways[name].port) as client:
            client.send(case.bytes(headers=[("X-User", "ann")], close=True,
                                   **what))
            return client.read("POST")

    def send_all(self, case, **what):
        """At all of them at once: {name: answer}."""
        told = {}

        def one(name):
            told[name] = self.send(case, name, **what)
        threads = [threading.Thread(target=one, args=(n,)) for n in FRONTS]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(told) == len(FRONTS), told
        return told

    def close(self):
        for it in self.gateways.values():
            it.close()
        self.upstream.close()


@pytest.fixture(name="house", scope="module")
def a_house(tmp_path_factory):
    it = House(tmp_path_factory.mktemp("house"))
    yield it
    it.close()


def same(answers):
    """What their clients see of the handler's answer."""
    return {(r.status, r.body, tuple(r.all("X-Run")), tuple(r.all("X-Bytes")),
             ", ".join(r.all("X-Two"))) for r in answers.values()}


def test_one_of_them_runs_and_all_give_its_answer(house):
    assert len(FRONTS) >= 4, FRONTS
    winners = set()
    for _ in range(ORDERS):
        case = gateway.Case(house, "/pay/", Run())
        told = house.send_all(case)
        assert case.executions == 1
        assert len(same(told)) == 1, told
        new = [n for n, r in told.items() if not r.get("Idempotent-Replayed")]
        assert len(new) == 1, told
        winners |= set(new)
        assert {r.get("Idempotent-Replayed") for r in
                house.send_all(case).values()} == {"true"}
    assert len(winners) > 1, "always the same was first: %s" % winners


def test_what_one_of_them_lost_is_unknown_to_all(house):
    for name in FRONTS:
        case = gateway.Case(house, "/pay/", Drop())
        assert house.send(case, name).code() == "outcome-unknown"
        assert {r.code() for r in house.send_all(case).values()} == {
            "outcome-unknown"}
        assert case.executions == 1


def test_another_request_with_the_key_is_refused_by_all(house):
    for name in FRONTS:
        case = gateway.Case(house, "/pay/", Run())
        assert house.send(case, name).status == 201
        for what in ({"body": b"another"}, {"query": "a=1"}):
            told = house.send_all(case, **what)
            assert {r.code() for r in told.values()} == {"key-reused"}, told
        assert case.executions == 1
