# SPDX-License-Identifier: Apache-2.0
"""
The sample payments service, the retrying agent, and tools/run.

All three are the real programs. Only where the agent must meet an answer that
no service gives on request does a scripted peer speak to it, byte for byte.

Nothing is timed: where something must not have happened yet, the service is
told to nap for ten minutes, and the test does not wait for it.

Environment: ONCE_BUILD (build), ONCE_MODULE, ONCE_NGINX_BIN as elsewhere.
Without the module the tests of tools/run are skipped.
"""

import contextlib
import http.client
import json
import os
import pathlib
import re
import shlex
import signal
import socket
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "test/lib"))

# pylint: disable=wrong-import-position
from machine import free_port  # noqa: E402
from modes import open_to_others  # noqa: E402

BUILD = pathlib.Path(os.environ.get("ONCE_BUILD", ROOT / "build")).resolve()
PAYMENTS = BUILD / "examples/payments/payments"
MODULE = pathlib.Path(
    os.environ.get("ONCE_MODULE", BUILD / "ngx_http_once_module.so"))
AGENT = ROOT / "examples/agent/agent"
RUN = ROOT / "tools/run"

# How long anything may take before a test gives up.
PATIENCE = 60
FOREVER = 600000  # a nap, in ms; longer than any test

JSON = {"Content-Type": "application/json"}


def eventually(look):
    end = time.monotonic() + PATIENCE
    while True:
        seen = look()
        if seen:
            return seen
        assert time.monotonic() < end, "did not happen in %d s" % PATIENCE
        time.sleep(0.02)


class Service:
    def __init__(self, db, *options):
        self.db = db
        self.said = ""
        self.process = subprocess.Popen(
            [PAYMENTS, "--db", db, *options], text=True,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        line = self.process.stdout.readline()
        found = re.fullmatch(r"payments: listening on 127\.0\.0\.1:(\d+)\n",
                             line)
        assert found, line + self.process.stderr.read()
        self.port = int(found.group(1))
        self.url = "http://127.0.0.1:%d" % self.port

    def ask(self, method, path, body=None, headers=()):
        c = http.client.HTTPConnection("127.0.0.1", self.port,
                                       timeout=PATIENCE)
        with contextlib.closing(c):
            c.request(method, path, body, dict(headers))
            response = c.getresponse()
            response.text = response.read()
            return response

    def charge(self, order="o-1", amount=1250, sample=None):
        headers = dict(JSON, **({"X-Sample": sample} if sample else {}))
        return self.ask("POST", "/charge",
                        json.dumps({"order": order, "amount": amount}), headers)

    def get(self, path):
        response = self.ask("GET", path)
        assert response.status == 200, response.text
        return json.loads(response.text)

    def count(self, order="o-1"):
        """From the file, so also when the service is dead."""
        with contextlib.closing(sqlite3.connect(self.db)) as db:
            return db.execute("SELECT COUNT(*) FROM charges WHERE name = ?",
                              (order,)).fetchone()[0]

    def leave_charging(self, order, sample):
        """Sends a charge and does not wait; returns the open socket."""
        body = json.dumps({"order": order, "amount": 1}).encode()
        s = socket.create_connection(("127.0.0.1", self.port), PATIENCE)
        s.sendall(b"POST /charge HTTP/1.1\r\nHost: x\r\n"
                  b"Content-Type: application/json\r\n"
                  b"X-Sample: %s\r\nContent-Length: %d\r\n\r\n%s"
                  % (sample.encode(), len(body), body))
        return s

    def stop(self, sig=signal.SIGTERM):
        if self.process.poll() is None:
            self.process.send_signal(sig)
        return self.process.wait(PATIENCE)

    def close(self):
        """The end of a test; returns what the service said since its start."""
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        with contextlib.suppress(ValueError):  # closed before
            self.said += self.process.stdout.read()
            self.said += self.process.stderr.read()
        self.process.stdout.close()
        self.process.stderr.close()
        return self.said


@pytest.fixture
def start(tmp_path):
    running = []

    def start(*options, db=None):
        running.append(Service(str(db or tmp_path / "ledger.db"), *options))
        return running[-1]

    yield start
    for service in running:
        service.close()


@pytest.fixture
def service(start):
    return start()


# ---- The service ---------------------------------------------------------


def test_a_charge_is_answered_with_its_number_and_place(service):
    r = service.charge("o-1", 1250)
    assert r.status == 201
    assert r.getheader("Location") == "/orders/o-1"
    assert r.getheader("Content-Type") == "application/json"
    assert r.text == b'{"charge":1,"order":"o-1","amount":1250}\n'


def test_it_charges_as_often_as_it_is_asked(service):
    headers = dict(JSON, **{"Idempotency-Key": "the-same"})
    for n in (1, 2, 3):
        r = service.ask("POST", "/charge", '{"order":"o","amount":5}', headers)
        assert (r.status, json.loads(r.text)["charge"]) == (201, n)
    order = service.get("/orders/o")
    assert (order["count"], order["total"]) == (3, 15)
    assert [c["charge"] for c in order["charges"]] == [1, 2, 3]


GOOD = '{"order":"o-1","amount":1250}'


@pytest.mark.parametrize("body, field, said", [
    ("", None, "not JSON"),
    ("{", None, "not JSON"),
    (GOOD + "x", None, "not JSON"),
    (b'{"order":"\xff","amount":1}', None, "not JSON"),
    ("[1]", None, "object"),
    ('{"order":"a","order":"b","amount":1}', None, "twice"),
    ('{"amount":1}', "order", "1 to 64"),
    ('{"order":7,"amount":1}', "order", "1 to 64"),
    ('{"order":"","amount":1}', "order", "1 to 64"),
    ('{"order":"%s","amount":1}' % ("a" * 65), "order", "1 to 64"),
    ('{"order":"a/b","amount":1}', "order", "1 to 64"),
    ('{"order":"\\u00e9","amount":1}', "order", "1 to 64"),
    ('{"order":"a"}', "amount", "1 to 100000000"),
    ('{"order":"a","amount":"1"}', "amount", "1 to 100000000"),
    ('{"order":"a","amount":1.0}', "amount", "1 to 100000000"),
    ('{"order":"a","amount":0}', "amount", "1 to 100000000"),
    ('{"order":"a","amount":-1}', "amount", "1 to 100000000"),
    ('{"order":"a","amount":100000001}', "amount", "1 to 100000000"),
    ('{"order":"a","amount":99999999999999999999}', None, "not JSON"),
    ('{"order":"a","amount":1,"tip":1}', None, "besides"),
    ("[" * 4000, None, "not JSON"),
], ids=[
    "empty", "cut", "more-behind-it", "not-utf-8", "array", "order-twice",
    "no-order", "order-a-number", "order-empty", "order-too-long",
    "order-slash", "order-not-ascii", "no-amount", "amount-a-string",
    "amount-a-real", "amount-0", "amount-negative", "amount-too-large",
    "amount-beyond-64-bits", "one-member-more", "deep"])
def test_bad_bodies_are_named_and_not_charged(service, body, field, said):
    r = service.ask("POST", "/charge", body, JSON)
    told = json.loads(r.text)
    assert r.status == 400
    assert told.get("field") == field
    assert said in told["error"]
    assert service.get("/ledger")["charges"] == 0


def test_limits_themselves_are_allowed(service):
    assert service.charge("Az09._-" + "x" * 57, 100000000).status == 201
    assert service.charge("a", 1).status == 201
    padded = GOOD + " " * (4096 - len(GOOD))
    assert service.ask("POST", "/charge", padded, JSON).status == 201


def in_chunks(size):
    for _ in range(size // 1000):
        yield b" " * 1000
    yield b" " * (size % 1000)


@pytest.mark.parametrize("body", [
    b" " * 4097, b" " * 1000000, in_chunks(4097), in_chunks(100000)],
    ids=["one-more", "many-more", "chunks-one-more", "chunks-many-more"])
def test_a_long_body_is_refused(service, body):
    r = service.ask("POST", "/charge", body, JSON)
    assert r.status == 413
    assert "4096" in json.loads(r.text)["error"]
    assert service.get("/ledger")["charges"] == 0


def test_a_body_without_end_is_cut_off(service):
    with pytest.raises((OSError, http.client.HTTPException)):
        service.ask("POST", "/charge", in_chunks(50 << 20), JSON)
    assert service.charge().status == 201


@pytest.mark.parametrize("kind, status", [
    (None, 415), ("text/plain", 415), ("application/jsonp", 415),
    ("application/json", 201), ("Application/JSON; charset=utf-8", 201)],
    ids=["none", "text", "longer", "json", "json-with-charset"])
def test_only_json_is_taken(service, kind, status):
    headers = {"Content-Type": kind} if kind else {}
    assert service.ask("POST", "/charge", GOOD, headers).status == status


@pytest.mark.parametrize("method, path, allow", [
    ("GET", "/charge", "POST"), ("PUT", "/charge", "POST"),
    ("POST", "/ledger", "GET, HEAD"), ("DELETE", "/orders/a", "GET, HEAD")])
def test_wrong_methods_are_told_the_right_ones(service, method, path, allow):
    r = service.ask(method, path, GOOD if method != "GET" else None, JSON)
    assert (r.status, r.getheader("Allow")) == (405, allow)


@pytest.mark.parametrize("path, status, said", [
    ("/", 404, "/charge"), ("/charge/", 404, "/charge"),
    ("/orders/none", 404, "nothing was charged"),
    ("/orders/", 400, "1 to 64"), ("/orders/a%2Fb", 400, "1 to 64"),
    ("/orders/" + "a" * 65, 400, "1 to 64"),
    ("/orders/o-1?limit=0", 400, "1 to 1000"),
    ("/ledger?limit=1001", 400, "1 to 1000"),
    ("/ledger?limit=-1", 400, "1 to 1000"),
    ("/ledger?limit=", 400, "1 to 1000"),
    ("/ledger?limit=99999999999", 400, "1 to 1000"),
    ("/ledger?after=a%20b", 400, "1 to 64"),
    ("/orders/o-1?after=x", 400, "after must be a number")],
    ids=["root", "charge-slash", "order-unknown", "order-empty", "order-slash",
         "order-too-long", "limit-0", "limit-1001", "limit-negative",
         "limit-empty", "limit-too-long", "after-with-space",
         "after-not-a-number"])
def test_wrong_paths_and_arguments_are_named(service, path, status, said):
    service.charge()
    r = service.ask("GET", path)
    assert r.status == status
    assert said in json.loads(r.text)["error"]


def test_the_ledger_comes_in_pages(service):
    for i in range(7):
        for _ in range(i + 1):
            service.charge("p-%d" % i, 10)
    seen, after = [], ""
    while after is not None:
        page = service.get("/ledger?limit=3" + (after and "&after=" + after))
        assert (page["orders"], page["charges"], page["total"]) == (7, 28, 280)
        assert 1 <= len(page["ledger"]) <= 3
        seen += page["ledger"]
        after = page["next"]
    assert seen == [{"order": "p-%d" % i, "charges": i + 1,
                     "total": 10 * (i + 1)} for i in range(7)]


def test_an_order_comes_in_pages(service):
    for _ in range(5):
        service.charge("o", 3)
    first = service.get("/orders/o?limit=2")
    assert (first["count"], first["total"], first["next"]) == (5, 15, 2)
    rest = service.get("/orders/o?after=2")
    assert [c["charge"] for c in rest["charges"]] == [3, 4, 5]
    assert rest["next"] is None


def test_charges_from_many_connections_are_all_there(service):
    def work():
        for _ in range(50):
            assert service.charge("busy", 2).status == 201

    crew = [threading.Thread(target=work) for _ in range(8)]
    for thread in crew:
        thread.start()
    for thread in crew:
        thread.join()
    order = service.get("/orders/busy?limit=1000")
    assert (order["count"], order["total"]) == (400, 800)
    assert len({c["charge"] for c in order["charges"]}) == 400


# ---- Its manners ---------------------------------------------------------


@pytest.mark.parametrize("sample, status, charges", [
    ("fail=503", 503, 0), ("fail=429", 429, 0), ("fail-after=500", 500, 1),
    ("fail-after=404", 404, 1), ("slow=1", 201, 1), ("slow-after=1", 201, 1),
    ("slow=1,slow-after=1,fail=599", 599, 0)])
def test_it_fails_when_told_to(service, sample, status, charges):
    assert service.charge(sample=sample).status == status
    assert service.count() == charges
    assert service.charge("next").status == 201


@pytest.mark.parametrize("sample, charges, error", [
    ("drop-before", 0, http.client.RemoteDisconnected),
    ("drop-after", 1, http.client.RemoteDisconnected),
    ("slow-after=1, drop-after", 1, http.client.RemoteDisconnected),
    ("half", 1, http.client.IncompleteRead),
    ("garbage", 1, http.client.BadStatusLine)])
def test_it_answers_badly_when_told_to(service, sample, charges, error):
    with pytest.raises(error) as told:
        service.charge(sample=sample)
    assert type(told.value) is error
    assert service.count() == charges
    assert service.charge("next").status == 201


def test_half_is_a_whole_header_and_half_a_body(service):
    with pytest.raises(http.client.IncompleteRead) as told:
        service.charge(sample="half")
    whole = b'{"charge":1,"order":"o-1","amount":1250}\n'
    assert told.value.partial == whole[:len(whole) // 2]
    assert told.value.expected == len(whole) - len(whole) // 2


@pytest.mark.parametrize("sample, charges", [("die-before", 0),
                                             ("die-after", 1)])
def test_it_dies_when_told_to_and_keeps_what_it_charged(start, sample, charges):
    service = start()
    service.charge("before")
    with pytest.raises((OSError, http.client.HTTPException)):
        service.charge(sample=sample)
    assert service.process.wait(PATIENCE) == 70
    assert service.count() == charges
    again = start(db=service.db)
    assert again.get("/ledger")["charges"] == 1 + charges


def test_slow_after_charges_first(service):
    with service.leave_charging("late", "slow-after=%d" % FOREVER):
        eventually(lambda: service.count("late") == 1)


def test_naps_hold_no_thread(service):
    """Two threads, thirty that nap, and others are served all the same."""
    with contextlib.ExitStack() as open_ones:
        for i in range(30):
            open_ones.enter_context(service.leave_charging(
                "nap", "slow-after=%d" % FOREVER))
        eventually(lambda: service.count("nap") == 30)
        assert service.charge("other").status == 201


def test_slow_waits_and_then_charges(service):
    began = time.monotonic()
    assert service.charge(sample="slow=150").status == 201
    assert time.monotonic() - began >= 0.15


def test_naps_end_in_the_order_in_which_they_are_due(service):
    with service.leave_charging("o-1", "slow=%d" % FOREVER):
        with service.leave_charging("o-2", "slow=300") as middle:
            assert service.charge("o-3", sample="slow=1").status == 201
            assert middle.recv(12) == b"HTTP/1.1 201"
    assert service.count("o-1") == 0


def test_the_query_says_the_same_as_the_header(service):
    r = service.ask("POST", "/charge?sample=fail-after%3D418", GOOD, JSON)
    assert (r.status, service.count()) == (418, 1)


@pytest.mark.parametrize("sample", [
    "slow", "slow=", "slow=600001", "slow=-1", "slow=1x", "fail=399",
    "fail=600", "half=1", "Half", "drop", ",", "half,", "half,garbage",
    "half half", "fail=500=1"])
def test_unknown_manners_are_refused(service, sample):
    r = service.charge(sample=sample)
    assert (r.status, json.loads(r.text)["field"]) == (400, "X-Sample")
    assert service.count() == 0


def test_manners_of_the_command_line(start):
    service = start("--sample", "fail=503", "--every", "2")
    assert [service.charge().status for _ in range(4)] == [201, 503, 201, 503]
    assert service.charge(sample="fail=500").status == 500


def test_slow_ms_of_the_command_line(start):
    service = start("--slow-ms", "100")
    began = time.monotonic()
    assert service.charge().status == 201
    assert time.monotonic() - began >= 0.1


# ---- Its start and its end -----------------------------------------------


@pytest.mark.parametrize("sig", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_cleanly_also_in_the_middle_of_a_nap(start, sig):
    service = start("--threads", "4")
    with service.leave_charging("before", "slow=%d" % FOREVER) as before, \
         service.leave_charging("after", "slow-after=%d" % FOREVER) as after:
        eventually(lambda: service.count("after") == 1)
        assert service.stop(sig) == 0
        assert before.recv(1000) == after.recv(1000) == b""
    assert (service.count("before"), service.count("after")) == (0, 1)
    assert service.close() == ""


@pytest.mark.parametrize("options, said", [
    ([], "usage"), (["--db"], "db"), (["--db", "x", "y"], "usage"),
    (["--db", "x", "--nonsense"], "nonsense"),
    (["--db", "x", "--listen", "0.0.0.0:1"], "127.x.y.z"),
    (["--db", "x", "--listen", "127.0.0.1:65536"], "65535"),
    (["--db", "x", "--listen", "localhost:1"], "127.x.y.z"),
    (["--db", "x", "--listen", "127.0.0.1"], "127.x.y.z"),
    (["--db", "x", "--threads", "0"], "1 to 64"),
    (["--db", "x", "--slow-ms", "600001"], "600000"),
    (["--db", "x", "--every", "0"], "1 to 1000000"),
    (["--db", "x", "--sample", "rude"], "drop-before")],
    ids=["none", "db-of-nothing", "operand", "unknown", "listen-all",
         "listen-port", "listen-name", "listen-no-port", "threads-0",
         "slow-ms-too-long", "every-0", "sample-unknown"])
def test_wrong_options_are_refused(tmp_path, options, said):
    done = subprocess.run([PAYMENTS, *options], cwd=tmp_path, text=True,
                          capture_output=True, timeout=PATIENCE)
    assert done.returncode == 2
    assert said in done.stderr
    assert list(tmp_path.iterdir()) == []


def other_program(path):
    with contextlib.closing(sqlite3.connect(path)) as db:
        db.execute("CREATE TABLE theirs (x)")


def other_version(path):
    with contextlib.closing(sqlite3.connect(path)) as db:
        db.execute("PRAGMA user_version=3")


@pytest.mark.parametrize("make, said", [
    (lambda p: p.write_bytes(b"no database " * 100), "not a database"),
    (lambda p: p.mkdir(), "unable to open"),
    (other_program, "version 0 and 1 tables"),
    (other_version, "version 3")],
    ids=["no-database", "folder", "other-program", "other-version"])
def test_a_file_that_is_not_its_ledger_is_left_alone(tmp_path, make, said):
    path = tmp_path / "file.db"
    make(path)
    before = path.read_bytes() if path.is_file() else None
    done = subprocess.run([PAYMENTS, "--db", path], text=True,
                          capture_output=True, timeout=PATIENCE)
    assert done.returncode == 1
    assert said in done.stderr
    assert before == (path.read_bytes() if path.is_file() else None)


def test_a_port_in_use_is_an_error(service, tmp_path):
    done = subprocess.run(
        [PAYMENTS, "--db", tmp_path / "2.db", "--listen",
         "127.0.0.1:%d" % service.port], text=True, capture_output=True,
        timeout=PATIENCE)
    assert done.returncode == 1
    assert "cannot listen on 127.0.0.1:%d" % service.port in done.stderr


# ---- The agent -----------------------------------------------------------


def agent(url, *options):
    done = subprocess.run([sys.executable, AGENT, "--url", url, *options],
                          text=True, capture_output=True, timeout=300)
    assert "Traceback" not in done.stderr, done.stderr
    return done


def test_the_agent_charges_each_order_once(service):
    done = agent(service.url, "--orders", "5", "--prefix", "z")
    assert done.returncode == 0, done.stdout
    assert "5 orders, 5 charges, 0 charged more than once" in done.stdout
    assert [service.count("z-%d" % i) for i in range(1, 6)] == [1] * 5


def test_a_time_out_without_the_gateway_charges_twice(service):
    done = agent(service.url, "--story", "double", "--prefix", "z")
    assert done.returncode == 0, done.stdout
    assert "time-out 1" in done.stdout
    assert "more than once" in done.stdout
    assert service.count("z-1") >= 2


@pytest.mark.parametrize("sample", ["drop-after", "half", "garbage",
                                    "fail-after=503"])
def test_a_lost_answer_without_the_gateway_charges_twice(service, sample):
    done = agent(service.url, "--sample", sample, "--orders", "1",
                 "--backoff", "0", "--prefix", "z", "--no-key")
    assert done.returncode == 1
    assert "1 order, 2 charges, 1 charged more than once" in done.stdout
    assert service.count("z-1") == 2


def test_many_agents_with_one_order_without_the_gateway(service):
    done = agent(service.url, "--retries-of-one-order", "50", "--prefix", "z")
    assert done.returncode == 1
    assert "201 50" in done.stdout
    assert service.count("z-1") == 50


def test_a_refused_charge_is_not_tried_again(service):
    done = agent(service.url, "--sample", "fail=402", "--sample-always",
                 "--orders", "1")
    assert done.returncode == 3
    assert re.search(r"402 1 +refused 1 +0 charges", done.stdout)


def test_the_agent_reads_more_than_one_page_of_the_ledger(service):
    done = agent(service.url, "--orders", "1100", "--concurrency", "16")
    assert done.returncode == 0
    assert "1100 orders, 1100 charges, 0 charged" in done.stdout


def test_nobody_there_is_not_sent(service):
    service.stop()
    done = agent(service.url, "--orders", "1", "--attempts", "3",
                 "--backoff", "0")
    assert done.returncode == 4
    assert re.search(r"not sent 3 +not sent 1 +\?", done.stdout)


@pytest.mark.parametrize("options", [
    ["--url", "https://x"], ["--url", "http://x:99999"], ["--url", "x"],
    ["--prefix", "a b"], ["--orders", "0"], ["--retries-of-one-order", "1001"],
    ["--story", "double"], ["--token", "a\nb"]],
    ids=["https", "port", "no-scheme", "prefix", "orders-0", "retries-1001",
         "double-without-url", "token-of-two-lines"])
def test_wrong_options_of_the_agent_are_refused(options):
    done = subprocess.run([sys.executable, AGENT, *options], text=True,
                          capture_output=True, timeout=PATIENCE)
    assert done.returncode == 2
    assert "error: " in done.stderr


class Peer(threading.Thread):
    """Plays one answer after the other, the last one for ever; a ledger with
    `charges` for whatever was charged. Keeps the charges' headers."""

    def __init__(self, charges, *answers):
        super().__init__(daemon=True)
        self.charges = charges
        self.answers = list(answers)
        self.seen = []
        self.server = socket.create_server(("127.0.0.1", 0))
        self.url = "http://127.0.0.1:%d" % self.server.getsockname()[1]
        self.start()

    def run(self):
        while True:
            try:
                connection, _ = self.server.accept()
            except OSError:
                return
            with connection, connection.makefile("rwb") as f:
                first = f.readline().decode()
                headers = http.client.parse_headers(f)
                body = f.read(int(headers.get("Content-Length", 0)))
                f.write(self.answer(first, headers, body))

    def answer(self, first, headers, body):
        if first.startswith("GET /ledger"):
            rows = [{"order": self.order, "charges": self.charges, "total": 1}]
            return raw(200, {"ledger": rows, "next": None})
        assert first.startswith("POST /charge")
        self.order = json.loads(body)["order"]
        self.seen.append(headers)
        return self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]

    def close(self):
        self.server.shutdown(socket.SHUT_RDWR)
        self.server.close()
        self.join(PATIENCE)


def raw(status, body, kind="application/json", **headers):
    text = json.dumps(body)
    lines = ["%s: %s" % (k.replace("_", "-"), v) for k, v in headers.items()]
    return "\r\n".join(["HTTP/1.1 %d X" % status, "Content-Type: " + kind,
                        "Content-Length: %d" % len(text), *lines, "",
                        text]).encode()


def problem(status, code, **headers):
    return raw(status, {"code": code, "status": status},
               "application/problem+json", **headers)


FRESH = raw(201, {}, Idempotency_Status="new")
REPLAY = raw(201, {}, Idempotent_Replayed="true",
             Idempotency_Status="replayed")
IN_FLIGHT = problem(409, "in-flight", Retry_After="0")


@pytest.mark.parametrize("answers, seen, result, status", [
    ([FRESH], "201 new 1", "charged", 0),
    ([IN_FLIGHT, IN_FLIGHT, REPLAY], "201 replayed 1, 409 in-flight 2",
     "charged", 0),
    ([problem(503, "store-unavailable"), FRESH],
     "201 new 1, 503 store-unavailable 1", "charged", 0),
    ([raw(429, {}), raw(502, {}), FRESH], "201 new 1, 429 1, 502 1", "charged",
     0),
    ([b"", REPLAY], "201 replayed 1, broken off 1", "charged", 0),
    ([problem(409, "response-unavailable")], "409 response-unavailable 1",
     "charged", 0),
    # What is not known is said, not asked again until it looks better.
    ([problem(502, "outcome-unknown"), FRESH], "502 outcome-unknown 1",
     "unknown", 3),
    ([problem(409, "outcome-unknown"), FRESH], "409 outcome-unknown 1",
     "unknown", 3),
    ([problem(422, "key-reused"), FRESH], "422 key-reused 1", "refused", 3),
    # A recorded failure stays one: no use in trying again.
    ([raw(500, {}, Idempotency_Status="new"),
      raw(500, {}, Idempotent_Replayed="true"), FRESH],
     "500 new 1, 500 replayed 1", "failed", 3),
    # An application's own 409 is its answer.
    ([raw(409, {"code": "in-flight"}), FRESH], "409 1", "refused", 3),
    ([IN_FLIGHT], "409 in-flight 5", "unknown", 3),
    ([raw(200, [], "application/problem+json"), FRESH],
     "201 new 1, broken off 1", "charged", 0),
], ids=[
    "new", "in-flight-then-replayed", "store-unavailable-then-new",
    "429-and-502-then-new", "no-answer-then-replayed", "response-unavailable",
    "502-outcome-unknown", "409-outcome-unknown", "key-reused",
    "recorded-failure", "409-of-the-application", "in-flight-for-ever",
    "problem-that-is-none"])
def test_the_agent_understands(answers, seen, result, status):
    peer = Peer(1, *answers)
    with contextlib.closing(peer):
        done = agent(peer.url, "--orders", "1", "--backoff", "0",
                     "--attempts", "5", "--prefix", "z")
    assert done.returncode == status, done.stdout
    row = done.stdout.splitlines()[1].split("  ")
    assert [cell for cell in row if cell][:3] == ["z-1", seen, result + " 1"]
    assert {h["Idempotency-Key"] for h in peer.seen} == {"order-z-1"}


def test_without_a_key_none_is_sent():
    peer = Peer(1, raw(500, {}), FRESH)
    with contextlib.closing(peer):
        agent(peer.url, "--orders", "1", "--backoff", "0", "--no-key")
    assert [h["Idempotency-Key"] for h in peer.seen] == [None, None]


# ---- tools/run -----------------------------------------------------------


class Stack:
    def __init__(self, state, port=None, default=None):
        """`default`: a folder of a build, in which tools/run puts its state."""
        self.state = state
        where = {"ONCE_BUILD": str(default or BUILD),
                 "ONCE_STATE": "" if default else str(state)}
        self.port = port or free_port()
        self.url = "http://127.0.0.1:%d" % self.port
        self.out = tempfile.NamedTemporaryFile(
            "w+", suffix=".out", dir=(default or state).parent)
        self.process = subprocess.Popen(
            [RUN], stdout=self.out, stderr=self.out, stdin=subprocess.DEVNULL,
            env=dict(os.environ, ONCE_MODULE=str(MODULE),
                     ONCE_PORT=str(self.port), **where),
            # A shell cannot trap what it was told to ignore, by nohup or "&".
            preexec_fn=lambda: [signal.signal(n, signal.SIG_DFL) for n in
                                (signal.SIGHUP, signal.SIGINT)],
            umask=0)  # what it leaves must not be as open as it may be

    def said(self):
        self.out.seek(0)
        return self.out.read()

    def ready(self):
        eventually(lambda: "Ctrl-C stops" in self.said()
                   or self.process.poll() is not None)
        assert self.process.poll() is None, self.said()
        self.upstream = re.search(r"the service itself on (\S+)\.\n",
                                  self.said()).group(1)
        return self

    def processes(self):
        """Pids of all whose command line or folder names our state."""
        mark = str(self.state).encode()
        found = {}
        for p in pathlib.Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                line = (p / "cmdline").read_bytes()
                if mark in line or p.joinpath("fd/1").resolve() == \
                        pathlib.Path(self.out.name):
                    found[int(p.name)] = line
        found.pop(self.process.pid, None)
        return found

    def pid(self, what):
        return next(p for p, line in self.processes().items() if what in line)

    def nginx(self):
        return int((self.state / "nginx.pid").read_text())

    def end(self, sig=signal.SIGTERM):
        if self.process.poll() is None:
            self.process.send_signal(sig)
        return self.process.wait(PATIENCE)

    def close(self):
        self.end()
        self.out.close()


@pytest.fixture
def stack(tmp_path):
    if not MODULE.exists():
        pytest.skip("%s is not built" % MODULE)
    running = []

    def start(state="state", port=None):
        running.append(Stack(tmp_path / state, port))
        return running[-1]

    yield start
    for one in running:
        one.close()


def test_the_lines_that_run_prints_do_what_it_says(stack):
    s = stack().ready()
    assert "No such file" not in s.said()
    lines = re.findall(r"^curl .*$", s.said(), re.M)
    assert len(lines) == 4
    first, second, ledger, lost = (
        subprocess.run(shlex.split(line) + ["-s"], text=True, timeout=PATIENCE,
                       capture_output=True, check=True).stdout
        for line in lines)
    assert first.startswith("HTTP/1.1 201")
    assert "Idempotent-Replayed" not in first
    assert second.startswith("HTTP/1.1 201")
    assert "Idempotent-Replayed: true" in second
    assert first.split("\n\n")[1] == second.split("\n\n")[1]
    assert json.loads(ledger)["charges"] == 1
    assert lost.startswith("HTTP/1.1 502") and "outcome-unknown" in lost
    labels = [r["label"] for r in console_records(s)]
    assert labels == ["POST /charge?order=o-2"]


def test_what_a_run_leaves_is_its_users_own(tmp_path):
    """The token of the console stood in a file that everybody could read."""
    if not MODULE.exists():
        pytest.skip("%s is not built" % MODULE)
    state = tmp_path / "state"
    s = Stack(state)
    try:
        assert agent(s.ready().url, "--orders", "3").returncode == 0
        token = re.search(r"#token=(\w+)", s.said()).group(1)
        assert token in (state / "console.out").read_text()
        assert not open_to_others(state)
    finally:
        s.close()
    assert not open_to_others(state)
    # A file that is there keeps its mode.
    for name in ("console.out", "payments.out", "nginx.conf"):
        (state / name).chmod(0o644)
    s = Stack(state)
    try:
        s.ready()
        assert not open_to_others(state)
    finally:
        s.close()


def console_records(s):
    """What waits, by the address of the console that was printed."""
    port, token = re.search(
        r"^http://127\.0\.0\.1:(\d+)/#token=([0-9a-f]+)$", s.said(),
        re.M).groups()
    base = "http://127.0.0.1:%s" % port

    def ask(path, body=None, **headers):
        r = urllib.request.Request(base + path, body, headers)
        return urllib.request.urlopen(r, timeout=PATIENCE)

    own = {"Origin": base, "Once-Console": "1",
           "Content-Type": "application/json"}
    session = json.load(ask("/api/v1/session", json.dumps({"token": token}).encode(),
                            **own))["session"]
    return json.load(ask("/api/v1/stores/main/records?what=waiting",
                         **{"Once-Session": session}))["records"]


def test_a_second_run_begins_with_nothing(tmp_path):
    """Without ONCE_STATE, as `make run` does it: the folder is in the build. The
    witness is, too: a host's own would expect the store of the run before."""
    if not MODULE.exists():
        pytest.skip("%s is not built" % MODULE)
    build = tmp_path / "build"
    build.mkdir()
    for entry in BUILD.iterdir():
        if entry.name != "run":
            (build / entry.name).symlink_to(entry)
    for _ in range(2):
        s = Stack(build / "run", default=build)
        try:
            done = subprocess.run(
                ["curl", "-s", "-i", s.ready().url + "/charge", "-H",
                 "Authorization: Bearer demo", "-H", "Idempotency-Key: k",
                 "--json", '{"order":"o","amount":1}'], text=True,
                capture_output=True, check=True, timeout=PATIENCE)
            assert "Idempotency-Status: new" in done.stdout
        finally:
            s.close()
        assert list((build / "run" / "witness").glob("at-*"))


def test_the_agents_stories(stack):
    s = stack().ready()
    done = agent(s.url, "--story", "once")
    assert done.returncode == 0, done.stdout
    assert "201 replayed 1" in done.stdout
    assert "time-out 1" in done.stdout
    done = agent(s.upstream, "--story", "double")
    assert done.returncode == 0, done.stdout


def test_two_hundred_retries_of_one_order_are_one_charge(stack):
    s = stack().ready()
    done = agent(s.url, "--retries-of-one-order", "200", "--timeout", "30",
                 "--attempts", "40", "--prefix", "z", "--sample", "slow=200")
    assert done.returncode == 0, done.stdout
    assert "201 new 1," in done.stdout
    assert "201 replayed 199" in done.stdout
    log = (s.state / "access.log").read_text()
    # In the format that "once trace --log" reads.
    lines = [json.loads(line) for line in log.splitlines()]
    assert [(x["method"], x["uri"], x["status"]) for x in lines
            if x["once_status"] == "new"] == [("POST", "/charge", 201)]
    assert "order-z-1" not in log + s.said()


@pytest.mark.parametrize("sample", ["drop-after", "half", "garbage",
                                    "die-after"])
def test_an_answer_lost_behind_the_gateway_is_unknown(stack, sample):
    s = stack().ready()
    done = agent(s.url, "--orders", "1", "--sample", sample, "--attempts", "2",
                 "--backoff", "0", "--prefix", "z")
    assert re.search(r"502 outcome-unknown 1 +unknown 1", done.stdout)
    with contextlib.closing(sqlite3.connect(s.state / "ledger.db")) as db:
        assert db.execute("SELECT COUNT(*) FROM charges").fetchone() == (1,)


def test_nginx_killed_and_started_again_charges_at_most_once(stack):
    s = stack().ready()
    agents = subprocess.Popen(
        [sys.executable, AGENT, "--url", s.url, "--retries-of-one-order",
         "200", "--attempts", "60", "--timeout", "30", "--prefix", "z",
         "--sample", "slow-after=2000"], text=True, stdout=subprocess.PIPE)
    with contextlib.closing(sqlite3.connect(s.state / "ledger.db")) as db:
        eventually(lambda: db.execute(
            "SELECT COUNT(*) FROM charges").fetchone()[0] == 1)
    os.killpg(s.nginx(), signal.SIGKILL)
    assert s.process.wait(PATIENCE) == 1
    again = stack(port=s.port).ready()
    said = agents.communicate(timeout=300)[0]
    assert "1 order, 1 charge, 0 charged more than once" in said
    assert re.search(r"409 outcome-unknown \d+|201 replayed \d+", said)
    assert again.process.poll() is None


def test_a_caller_without_a_token_is_refused(stack):
    s = stack().ready()
    done = agent(s.url, "--orders", "1", "--token", "somebody")
    assert re.search(r"401 scope-missing 1 +refused 1 +0 charges", done.stdout)


def test_there_is_a_status_page(stack):
    s = stack().ready()
    done = subprocess.run(["curl", "-sf", s.url + "/once_status"],
                          capture_output=True, timeout=PATIENCE)
    assert done.returncode == 0 and done.stdout


@pytest.mark.parametrize("sig", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_stops_everything(stack, sig):
    s = stack().ready()
    assert len(s.processes()) >= 4  # the service, nginx and two workers
    assert s.end(sig) == 0
    assert s.processes() == {}


def test_killing_run_stops_everything(stack):
    s = stack().ready()
    s.end(signal.SIGKILL)
    eventually(lambda: s.processes() == {})


@pytest.mark.parametrize("what, said", [(b"examples/payments", "the service"),
                                        (b"nginx: master", "nginx")])
def test_when_one_dies_all_stop(stack, what, said):
    s = stack().ready()
    os.kill(s.pid(what), signal.SIGKILL)
    assert s.process.wait(PATIENCE) == 1
    assert "run: %s has ended" % said in s.said()
    assert s.processes() == {}


def test_a_kept_state_is_kept_and_not_shared(stack):
    s = stack().ready()
    assert agent(s.upstream, "--orders", "2").returncode == 0
    other = stack()
    assert other.process.wait(PATIENCE) == 1
    assert "another run is using" in other.said()
    assert s.end() == 0
    again = stack().ready()
    done = subprocess.run(["curl", "-sf", again.upstream + "/ledger"],
                          capture_output=True, timeout=PATIENCE, check=True)
    assert json.loads(done.stdout)["charges"] == 2


def test_a_port_in_use_stops_run(stack):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        s = stack(port=taken.getsockname()[1])
        assert s.process.wait(PATIENCE) == 1
        assert "Address already in use" in s.said()
        assert "nginx did not start" in s.said()
        assert s.processes() == {}


@pytest.mark.parametrize("port", ["0", "65536", "http", "-1", "80 80"])
def test_a_wrong_port_is_refused(port):
    done = subprocess.run([RUN], text=True, capture_output=True,
                          env=dict(os.environ, ONCE_PORT=port),
                          timeout=PATIENCE)
    assert done.returncode == 1
    assert "1 to 65535" in done.stderr
