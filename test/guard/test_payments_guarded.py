# SPDX-License-Identifier: Apache-2.0
"""
The payments service that is guarded from inside (examples/payments/guarded.c):
what a repetition costs, what its manners cost, and what a kill leaves behind.
The ledger, an SQLite file, is counted; nothing is timed.

Environment: ONCE_BUILD (build).
"""

import contextlib
import http.client
import json
import os
import pathlib
import random
import re
import signal
import socket
import sqlite3
import subprocess
import threading
import time

import pytest

import newstore
from marks import MARK

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUILD = pathlib.Path(os.environ.get("ONCE_BUILD", ROOT / "build")).resolve()
PROGRAM = BUILD / "examples/payments/payments-guarded"

PATIENCE = 60
FOREVER = 600000  # a nap, in ms; longer than any test


def eventually(look):
    end = time.monotonic() + PATIENCE
    while True:
        seen = look()
        if seen:
            return seen
        assert time.monotonic() < end, "did not happen in %d s" % PATIENCE
        time.sleep(0.02)


class Service:
    def __init__(self, folder):
        self.db = folder / "ledger.db"
        self.store = "sqlite:%s/store.db" % folder
        self.said = ""
        self.process = None
        self.port = 0
        newstore.init(self.store)
        self.start()

    def start(self, *options):
        # pylint: disable=consider-using-with
        self.process = subprocess.Popen(
            [PROGRAM, "--db", self.db, "--store", self.store, *options],
            text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        line = self.process.stdout.readline()
        found = re.fullmatch(r"payments: listening on 127\.0\.0\.1:(\d+)\n",
                             line)
        assert found, line + self.process.stderr.read()
        self.port = int(found.group(1))

    def stop(self, number=signal.SIGTERM):
        self.process.send_signal(number)
        status = self.process.wait(PATIENCE)
        self.said += self.process.stderr.read()
        self.process.stdout.close()
        self.process.stderr.close()
        return status

    def ask(self, method, path, body=None, **headers):
        c = http.client.HTTPConnection("127.0.0.1", self.port,
                                       timeout=PATIENCE)
        with contextlib.closing(c):
            c.request(method, path, body, {
                name.replace("_", "-"): value
                for name, value in headers.items()})
            response = c.getresponse()
            response.body = response.read()
            return response

    def charge(self, order, key=None, amount=5, sample=None):
        headers = {"Content_Type": "application/json"}
        if key:
            headers["Idempotency_Key"] = key
        if sample:
            headers["X_Sample"] = sample
        return self.ask("POST", "/charge", json.dumps(
            {"order": order, "amount": amount}), **headers)

    def leave(self, order, key, sample):
        """Sends a charge and does not wait; the open socket."""
        body = json.dumps({"order": order, "amount": 5}).encode()
        s = socket.create_connection(("127.0.0.1", self.port), PATIENCE)
        s.sendall(b"POST /charge HTTP/1.1\r\nHost: x\r\nX-Sample: %s\r\n"
                  b"Content-Type: application/json\r\nIdempotency-Key: %s\r\n"
                  b"Content-Length: %d\r\n\r\n%s" % (
                      sample.encode(), key.encode(), len(body), body))
        return s

    def claimed(self):
        """How many keys have a record. (A request that asks would take one.)"""
        path = self.store.partition(":")[2]
        with contextlib.closing(sqlite3.connect(path, PATIENCE)) as db:
            return db.execute("SELECT COUNT(*) FROM claim").fetchone()[0]

    def count(self, order):
        with contextlib.closing(sqlite3.connect(self.db)) as db:
            return db.execute("SELECT COUNT(*) FROM charges WHERE name = ?",
                              (order,)).fetchone()[0]


@pytest.fixture
def service(tmp_path):
    if not PROGRAM.exists():
        pytest.skip("no %s" % PROGRAM)
    it = Service(tmp_path)
    yield it
    if it.process.poll() is None:
        assert it.stop() == 0, it.said
    assert "anitizer" not in it.said and "panic" not in it.said, it.said


def code(response):
    if response.headers["Content-Type"] != "application/problem+json":
        return None
    return json.loads(response.body)["code"]


def ended(service, order, key):
    """Repeats until it is not in flight any more."""
    def look():
        r = service.charge(order, key)
        return None if code(r) == "in-flight" else r
    return eventually(look)


def test_a_repeated_charge_is_charged_once(service):
    first = service.charge("o-1", "k-1")
    assert (first.status, first.headers["Idempotency-Status"]) == (201, "new")
    for _ in range(3):
        again = service.charge("o-1", "k-1")
        assert (again.status, again.body) == (201, first.body)
        assert again.headers["Idempotent-Replayed"] == "true"
        assert again.headers["Location"] == first.headers["Location"]
    assert service.count("o-1") == 1


def test_the_answers_of_the_service_to_a_wrong_charge_replay_too(service):
    first = service.charge("not valid!", "k-1")
    again = service.charge("not valid!", "k-1")
    assert (first.status, again.status) == (400, 400)
    assert first.body == again.body and b"order" in first.body
    assert again.headers["Idempotent-Replayed"] == "true"


def test_without_a_key_it_charges_as_often_as_it_is_asked(service):
    for n in (1, 2):
        assert service.charge("o-1").status == 201
        assert service.count("o-1") == n


def test_another_charge_with_the_key_is_422(service):
    service.charge("o-1", "k-1", 5)
    assert code(service.charge("o-1", "k-1", 6)) == "key-reused"
    assert service.count("o-1") == 1


def test_what_is_not_guarded_answers_as_before(service):
    service.charge("o-1", "k-1")
    for path in ("/ledger", "/orders/o-1"):
        r = service.ask("GET", path, Idempotency_Key="k-1")
        assert r.status == 200 and json.loads(r.body)
        assert r.headers["Idempotency-Status"] is None
    assert service.ask("GET", "/nothing").status == 404
    r = service.ask("GET", "/charge")
    assert (r.status, r.headers["Allow"]) == (405, "POST")


def test_a_body_over_the_limit_is_refused_and_claims_nothing(service):
    r = service.ask("POST", "/charge", b"x" * 5000, Idempotency_Key="k-1",
                    Content_Type="application/json")
    assert r.status == 413
    assert service.charge("o-1", "k-1").status == 201


@pytest.mark.parametrize("sample", ["drop-after", "half", "garbage"])
def test_a_charge_whose_answer_is_lost_is_of_unknown_outcome(service, sample):
    r = service.charge("o-1", "k-1", sample=sample)
    assert (r.status, code(r)) == (502, "outcome-unknown")
    r = service.charge("o-1", "k-1")
    assert (r.status, code(r)) == (409, "outcome-unknown")
    assert service.count("o-1") == 1


def test_a_nap_holds_nobody_up_and_others_are_told_to_wait(service):
    with service.leave("o-1", "k-1", "slow=%d" % FOREVER):
        eventually(lambda: service.claimed() == 1)
        assert code(service.charge("o-1", "k-1")) == "in-flight"
        assert service.charge("o-2", "k-2").status == 201
        assert service.count("o-1") == 0


@pytest.mark.parametrize("sample", ["slow=300", "slow-after=300",
                                    "slow=150,slow-after=150"])
def test_a_client_that_leaves_in_a_nap_finds_its_answer_later(service, sample):
    # A client that leaves between claim and dispatch finds a free key. One
    # thread serves all here: once it has answered a charge that was claimed
    # behind ours, ours has been dispatched.
    assert service.stop() == 0, service.said
    service.start("--threads", "1")
    for n in range(5):
        order, key = "o-%d" % n, "k-%d" % n
        s = service.leave(order, key, sample)
        eventually(lambda n=n: service.claimed() == 2 * n + 1)
        assert service.charge("behind-" + order, "b-%d" % n).status == 201
        s.shutdown(socket.SHUT_RDWR)
        s.close()
        r = ended(service, order, key)
        assert (r.status, r.headers["Idempotent-Replayed"]) == (201, "true")
        assert service.count(order) == 1


def test_a_stop_before_the_charge_frees_the_key(service):
    s = service.leave("o-1", "k-1", "slow=%d" % FOREVER)
    eventually(lambda: service.claimed() == 1)
    assert service.stop() == 0
    s.close()
    assert service.count("o-1") == 0
    service.start()
    r = service.charge("o-1", "k-1")
    assert (r.status, r.headers["Idempotency-Status"]) == (201, "new")
    assert service.count("o-1") == 1


def test_a_stop_after_the_charge_records_its_answer(service):
    s = service.leave("o-1", "k-1", "slow-after=%d" % FOREVER)
    eventually(lambda: service.count("o-1") == 1)
    assert service.stop() == 0
    s.close()
    service.start()
    r = service.charge("o-1", "k-1")
    assert (r.status, r.headers["Idempotent-Replayed"]) == (201, "true")
    assert service.count("o-1") == 1


@pytest.mark.parametrize("sample, charged", [("die-before", 0),
                                             ("die-after", 1)])
def test_a_death_at_the_charge_is_never_repeated(service, sample, charged):
    with contextlib.suppress(OSError, http.client.HTTPException):
        service.charge("o-1", "k-1", sample=sample)
    assert service.process.wait(PATIENCE) == 70
    service.start()
    # Its lease is ten seconds, and still runs or is over.
    assert code(service.charge("o-1", "k-1")) in ("in-flight",
                                                  "outcome-unknown")
    assert service.count("o-1") == charged


def test_a_storm_of_kills_never_charges_an_order_twice(service):
    orders = ["o-%d" % n for n in range(200)]
    told = {}

    def agent(mine):
        for order in mine:
            r = None
            while r is None:
                try:
                    r = service.charge(order, "key-" + order)
                except (OSError, http.client.HTTPException):
                    time.sleep(0.01)  # until it runs again
            if r.status == 201:
                told[order] = r.body

    threads = [threading.Thread(target=agent, args=(orders[i::4],))
               for i in range(4)]
    for t in threads:
        t.start()
    dice = random.Random(7)
    for _ in range(12):
        seen = len(told)
        eventually(lambda seen=seen: len(told) > seen + dice.randrange(9) or
                   not any(t.is_alive() for t in threads))
        service.stop(signal.SIGKILL)
        service.start()
    for t in threads:
        t.join()
    for order in orders:
        assert service.count(order) <= 1
    assert len(told) > 12
    for order, body in told.items():
        assert service.count(order) == 1
        r = service.charge(order, "key-" + order)
        assert (r.body, r.headers["Idempotent-Replayed"]) == (body, "true")


def test_nothing_secret_is_in_what_it_says_or_keeps(service, tmp_path):
    secret = MARK + "secret"
    service.charge("o-1", secret)
    service.charge("o-1", secret, 6)
    service.charge("o-2", secret + ",bad")
    service.charge("o-3", secret + "3", sample="drop-after")
    assert service.stop() == 0
    assert secret not in service.said
    for path in tmp_path.glob("store.db*"):
        assert secret.encode() not in path.read_bytes()
