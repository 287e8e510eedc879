# SPDX-License-Identifier: Apache-2.0
"""
examples/languages: each service, as README.md starts it, charges once. What is not
installed (tools/packages) is left out.

Environment: ONCE_BUILD (build).
"""

import http.client
import json
import os
import pathlib
import signal
import socket
import subprocess
import sys
import threading
import time

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
PATIENCE = 60
sys.path.insert(0, str(ROOT / "test/serve"))

import served  # noqa: E402 pylint: disable=wrong-import-position

LANGUAGES = list(filter(served.is_installed, ["python", "node", "go", "java"]))


class Service:
    def __init__(self, language, folder):
        self.folder = folder
        with socket.socket() as sock:
            sock.bind(("127.0.0.1", 0))
            self.port = sock.getsockname()[1]
        self.command = [ROOT / "examples/languages/start", language, folder,
                        str(self.port)]
        self.process = None
        self.start()

    def start(self):
        with open(self.folder / "log", "ab") as log:
            # pylint: disable=consider-using-with
            self.process = subprocess.Popen(
                self.command, stdout=log, stderr=log, stdin=subprocess.DEVNULL,
                start_new_session=True)
        end = time.monotonic() + 3 * PATIENCE
        while True:
            assert time.monotonic() < end and self.process.poll() is None, \
                (self.folder / "log").read_text()
            if self.listens():
                return
            time.sleep(0.05)

    def stop(self, number=signal.SIGTERM):
        os.killpg(self.process.pid, number)
        self.process.wait(PATIENCE)
        while self.listens():   # the group ends one after the other
            time.sleep(0.02)

    def listens(self):
        try:
            socket.create_connection(("127.0.0.1", self.port)).close()
            return True
        except OSError:
            return False

    def charge(self, key, order="o-1", customer="ann", body=None):
        c = http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE)
        c.request("POST", "/charge",
                  body or json.dumps({"order": order, "amount": 5}),
                  {"Content-Type": "application/json", "Idempotency-Key": key,
                   **({"X-Customer": customer} if customer else {})})
        answer = c.getresponse()
        body = answer.read()
        c.close()
        kind = answer.headers["Content-Type"]
        return answer, json.loads(body) if "json" in kind else body

    def ledger(self):
        return (self.folder / "ledger").read_text().splitlines()


@pytest.fixture(name="service", params=LANGUAGES)
def a_service(request, tmp_path):
    it = Service(request.param, tmp_path)
    yield it
    it.stop()


def test_a_charge_is_made_once(service):
    first, body = service.charge("k")
    assert (first.status, body["order"]) == (201, "o-1")
    again, same = service.charge("k")
    assert (again.status, same) == (201, body)
    assert again.headers["Idempotent-Replayed"] == "true"
    assert service.charge("k", order="o-2")[1]["code"] == "key-reused"
    assert service.charge("k", customer=None)[1]["code"] == "scope-missing"
    assert service.ledger() == ["o-1 5"]
    assert service.charge("k", customer="bob")[0].status == 201
    assert service.ledger() == ["o-1 5"] * 2


def test_many_at_once_and_a_kill_charge_once(service):
    told = []

    def one():
        told.append(service.charge("k")[0].status)
    threads = [threading.Thread(target=one) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert 201 in told and set(told) <= {201, 409}, told
    service.stop(signal.SIGKILL)
    service.start()
    again, _ = service.charge("k")
    assert again.headers["Idempotent-Replayed"] == "true"
    assert service.ledger() == ["o-1 5"]


@pytest.mark.parametrize("service", ["python"], indirect=True)
def test_an_exception_of_the_service_is_unknown(service):
    for body in '{"order": "o-1"}', '{"order": "o-1", "amount": "x"}', "[]", "{":
        for _ in range(2):
            assert service.charge(body.encode().hex(), body=body)[0].status == 400
    (service.folder / "ledger").mkdir()
    first, body = service.charge("k")
    assert (first.status, body["code"]) == (502, "outcome-unknown")
    repeat, body = service.charge("k")
    assert (repeat.status, body["code"]) == (409, "outcome-unknown")
