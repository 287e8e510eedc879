# SPDX-License-Identifier: Apache-2.0
"""
What an operator does, from the alert to the answer that repeats get, as
docs/operate.md tells it: a real gateway, and the program `once` beside it on
the same store. And what there is to see when a gateway dies with requests in
flight.
"""

import json
import os
import re
import signal
import socket
import subprocess

import pytest

from gateway import (BUILD, MARK, PATIENCE, Drop, Hold, eventually, guarded,
                     is_new, is_problem, is_replay)
from test_metrics import LOG, STATUS, TRACE, samples, value

pytestmark = pytest.mark.nginx_only("the page and the logs are the module's")

TRACEPARENT = [("traceparent", "00-%s-00f067aa0ba902b7-01" % TRACE)]

BILL = b'{"charge": 7}\n'


class Operator:
    """The program `once`, on the store of a gateway."""

    def __init__(self, site):
        self.folder = site.folder
        self.url = site.store

    def run(self, *words, status=0):
        done = subprocess.run(
            [BUILD / "once", "--store", self.url, *map(str, words)],
            capture_output=True, check=False, timeout=PATIENCE, text=True,
            env=dict(os.environ, ONCE_AUDIT=str(self.folder / "audit.jsonl")))
        assert done.returncode == status, done
        assert MARK not in done.stdout + done.stderr
        return done.stdout + done.stderr

    def waiting(self):
        said = self.run("ls", "--state", "indeterminate", "--json")
        return [json.loads(line) for line in said.splitlines()]

    def file(self, name, content):
        path = self.folder / name
        path.write_bytes(content)
        return path


@pytest.fixture(params=["sqlite", "journal"], name="site")
def observed_site(request, make, tmp_path):
    """A gateway that writes the JSON log and has a page of metrics."""
    return make(STATUS + guarded(
        "/pay/", 'once_lease 1s; once_route pay; '
        'once_label "$request_method $uri order=$arg_order";'),
        store="%s:%s" % (request.param, tmp_path / "pay"), workers=2,
        lines=LOG, allow=[r"exited on signal 9"])


def lose(site, order):
    """A request that was executed, and whose answer nobody got."""
    c = site.case("/pay/", Drop())
    is_problem(c.post(query="order=" + order, headers=TRACEPARENT),
               "outcome-unknown", 502)
    return c


# ---- S1: three outcomes are unknown --------------------------------------


def test_from_the_metric_to_the_answer_of_the_repeat(site):
    operator = Operator(site)
    c = lose(site, "o-17")
    eventually(lambda: value(samples(site), "once_records",
                             state="indeterminate") == 1)
    row, = operator.waiting()
    assert row["label"] == "POST %s order=o-17" % c.path
    assert (row["reason"], row["trace"], row["attempt"]) == ("reset", TRACE, 1)
    shown = operator.run("show", row["name"][:8])
    for word in (row["label"], TRACE, "reset", "indeterminate"):
        assert word in shown, (word, shown)

    decision = ["--success", operator.file("bill", BILL), "--status", 201,
                "--header", "Content-Type: application/json",
                "--why", "ticket 12: charge 7 is in the ledger"]
    # Somebody else's screen, before anything happened to the record.
    operator.run("resolve", row["name"][:8], "--fence",
                 int(row["fence"]) + 1, *decision, status=1)
    is_problem(c.post(query="order=o-17"), "outcome-unknown", 409)
    operator.run("resolve", row["name"][:8], "--fence", row["fence"],
                 *decision)

    again = c.post(query="order=o-17")
    assert (again.status, again.body) == (201, BILL)
    assert again.get("Content-Type") == "application/json"
    assert again.replayed and again.once == "replayed"
    is_replay(c.post(query="order=o-17"), again)
    assert c.executions == 1 and not operator.waiting()
    eventually(lambda: value(samples(site), "once_records",
                             state="indeterminate") == 0)
    # S4: the decision is in the audit log, and the log is whole. What the
    # command refused by itself was no decision.
    log = operator.run("audit", "ls", "--name", row["name"][:8])
    assert [line.split("\t")[2] for line in log.splitlines()] == [
        "intent", "done"]
    assert re.search(r"(?m)^defects\s+0$", operator.run("audit", "verify"))


# ---- S2: a customer names a key ------------------------------------------


def test_a_key_leads_to_its_record_and_its_story(site):
    operator = Operator(site)
    c = lose(site, "o-18")
    is_problem(c.post(query="order=o-18"), "outcome-unknown", 409)
    request = ["--realm", "shop.test", "--no-scope", "--key-file",
               operator.file("key", c.key.encode())]
    row, = operator.waiting()
    assert operator.run("name", *request).split()[-1] == row["name"]
    assert row["name"] in operator.run("show", "--request", *request)
    log = site.gateway.folder / "json.log"
    eventually(lambda: log.read_text().count(row["name"]) == 2)
    story = operator.run("trace", row["name"][:8], "--log", log)
    assert "granted\tattempt 1" in story
    assert re.search(r"told\t502 indeterminate, reset", story)
    assert re.search(r"told\t409 indeterminate", story)


# ---- S3: one decision about many -----------------------------------------


def test_a_batch_is_tried_first_and_then_done(site):
    operator = Operator(site)
    lost = [lose(site, "o-%d" % i) for i in range(4)]
    rows = operator.run("ls", "--state", "indeterminate", "--json")
    batch = ["resolve", "--records", operator.file("waiting", rows.encode()),
             "--failure", operator.file("no", b"declined\n"), "--status", 422,
             "--why", "ticket 13: nothing is in the ledger"]
    operator.run(*batch, "--dry-run")
    assert len(operator.waiting()) == 4
    operator.run(*batch)
    assert not operator.waiting()
    for i, c in enumerate(lost):
        again = c.post(query="order=o-%d" % i)
        assert (again.status, again.body) == (422, b"declined\n")
        assert again.replayed and c.executions == 1


# ---- A worker dies -------------------------------------------------------


def closed(client):
    """Whether the connection ends without a byte; takes nothing from it."""
    try:
        return client.sock.recv(1, socket.MSG_PEEK) == b""
    except ConnectionError:
        return True


def test_one_of_two_workers_dies_and_each_of_its_requests_is_named(site):
    """A2, with a worker that lives on: what the clients of the other one get
    is new, and all that the dead one had is a record, a line and a count."""
    operator = Operator(site)
    held = [site.case("/pay/", Hold()) for _ in range(20)]
    clients = [c.start(query="order=" + c.id, headers=TRACEPARENT)
               for c in held]
    for c in held:
        c.script[0].wait()
    os.kill(site.gateway.worker_pids()[0], signal.SIGKILL)
    eventually(lambda: "exited on signal 9" in site.gateway.log("error.log"))
    for c in held:
        c.script[0].go.set()
    lost = []
    for c, client in zip(held, clients):
        with client:
            if closed(client):
                lost.append(c)
            else:
                is_new(client.read())
    n = len(lost)
    seen = eventually(lambda: value(
        samples(site), "once_attempts_total", outcome="indeterminate",
        reason="owner-gone") == n and samples(site))
    eventually(lambda: len(operator.waiting()) == n)
    # Executed: all. Told: those of the worker that lived.
    assert all(c.executions == 1 for c in held)
    assert value(seen, "once_attempts_total") == 20
    assert value(seen, "once_attempts_total", outcome="success") == 20 - n
    assert value(seen, "once_requests_total") == 20 - n
    rows = operator.waiting()
    assert {(r["label"], r["trace"], r["reason"]) for r in rows} == {
        ("POST %s order=%s" % (c.path, c.id), TRACE, "owner-gone")
        for c in lost}
    said = re.findall(r"\[error\].*outcome unknown: record (\w{16}), "
                      r"attempt 1, reason owner-gone, fence (\d+),",
                      site.gateway.log("error.log"))
    assert sorted(said) == sorted((r["name"][:16], r["fence"]) for r in rows)
    for c in lost:
        is_problem(c.post(query="order=" + c.id), "outcome-unknown", 409)
        assert c.executions == 1
