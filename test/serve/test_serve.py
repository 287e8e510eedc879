# SPDX-License-Identifier: Apache-2.0
"""
`once serve`, spoken to by hand: what a middleware may count on, and what a bad
one, a dead one or a foreign one can do. The contract itself is told by the
scenarios of test/gateway against services with a middleware.
"""

import collections
import contextlib
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
BUILD = pathlib.Path(os.environ.get("ONCE_BUILD", ROOT / "build"))
ONCE = os.environ.get("ONCE_CLI", str(BUILD / "once"))
SERVE = os.environ.get("ONCE_SERVE_BIN", str(BUILD / "once-serve"))
PATIENCE = 60
BODY = b'{"amount": 5}'


def eventually(look):
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end:
        found = look()
        if found:
            return found
        time.sleep(0.01)
    raise AssertionError("it never came true")


def new_id():
    return os.urandom(16).hex()


class Client:
    """A connection of its own."""

    def __init__(self, server, bearer=None):
        self.sock = server.connect()
        self.sock.settimeout(PATIENCE)
        self.file = self.sock.makefile("rb")
        self.bearer = bearer

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.file.close()
        self.sock.close()

    def send(self, path, data, method="POST", size=None):
        more = "Authorization: Bearer %s\r\n" % self.bearer \
            if self.bearer else ""
        self.sock.sendall(b"%s %s HTTP/1.1\r\nHost: once\r\n%s"
                          b"Content-Length: %d\r\n\r\n%s" % (
                              method.encode(), path.encode(), more.encode(),
                              len(data) if size is None else size, data))

    def read(self):
        """(HTTP status, head, body)."""
        lines = []
        while (line := self.file.readline()) not in (b"\r\n", b""):
            lines.append(line)
        if not lines:
            raise EOFError()
        size = [int(x[15:]) for x in lines
                if x.lower().startswith(b"content-length:")]
        assert len(size) == 1, lines
        data = self.file.read(size[0])
        assert len(data) == size[0]
        head, feed, body = data.partition(b"\n")
        assert feed == b"\n"
        return int(lines[0][9:12]), json.loads(head), body

    def ask(self, path, head, body=b""):
        self.send(path, json.dumps(head).encode() + b"\n" + body)
        return self.read()


class Server:
    """An `once-serve` in a folder of its own, over a journal."""

    def __init__(self, folder, *words, store=None, where=None):
        self.folder = pathlib.Path(folder)
        self.store = store or "journal:%s/pay" % self.folder
        self.words = words
        self.where = where or "unix:%s/sock" % self.folder
        self.process = None
        self.port = 0
        if self.store.startswith("journal:"):
            subprocess.run([ONCE, "--store", self.store, "init"], check=True,
                           stdout=subprocess.DEVNULL)

    def start(self):
        self.log = self.folder / "log"
        with open(self.log, "wb") as log:
            # pylint: disable=consider-using-with
            self.process = subprocess.Popen(
                [SERVE, "--store", self.store, "--listen", self.where,
                 *self.words], stderr=log, stdin=subprocess.DEVNULL)

        def ready():
            assert self.process.poll() is None, self.log.read_text()
            return "listening" in self.log.read_text()
        eventually(ready)
        if self.where.startswith("127"):
            self.port = int(self.log.read_text().rsplit(" ", 1)[1])
        return self

    def connect(self):
        if self.port:
            return socket.create_connection(("127.0.0.1", self.port))
        sock = socket.socket(socket.AF_UNIX)
        sock.connect(self.where[5:])
        return sock

    def end(self, number=signal.SIGTERM):
        self.process.send_signal(number)
        return self.process.wait(PATIENCE)

    def rss_kib(self):
        text = pathlib.Path("/proc/%d/status" % self.process.pid).read_text()
        return int(text.split("VmRSS:")[1].split()[0])


@pytest.fixture(name="make")
def maker(tmp_path):
    with contextlib.ExitStack() as stack:
        def make(*words, start=True, **more):
            folder = tmp_path / os.urandom(3).hex()
            folder.mkdir()
            server = Server(folder, *words, **more)
            if start:
                server.start()
            stack.callback(lambda: server.process is not None and
                           server.process.poll() is None and server.end())
            return server
        yield make


@pytest.fixture(name="server")
def a_server(make):
    return make()


def begin(client, name, token_id=None, body=BODY, headers=(), **more):
    head = {"id": token_id or new_id(), "method": "POST", "target": "/pay?a=1",
            "scope": "ann", "headers": [["Host", "shop.test"],
                                        ["Idempotency-Key", name], *headers]}
    return client.ask("/v1/begin", dict(head, **more), body)


def run(client, name, *args, **more):
    code, head, body = begin(client, name, *args, **more)
    assert (code, head.get("do"), body) == (200, "run", b""), head
    return head["token"]


def end(client, token, status=201, body=b"made\n", headers=(("X-Own", "1"),),
        **more):
    return client.ask("/v1/end", dict(
        {"token": token, "status": status, "headers": list(headers)}, **more),
        body)


def is_own(answer, status="new"):
    code, head, body = answer
    assert (code, head.get("do"), body) == (200, "own", b""), answer
    assert ["Idempotency-Status", status] in head["headers"]
    return head


def is_replay(answer, body=b"made\n", status=201):
    code, head, got = answer
    assert (code, head.get("do"), head.get("status"), got) == \
        (200, "send", status, body), answer
    assert ["Idempotency-Status", "replayed"] in head["headers"]
    return head


def is_problem(answer, code, status=None):
    http, head, body = answer
    assert (http, head.get("do")) == (200, "send"), answer
    told = json.loads(body)
    assert told["code"] == code and told["status"] == head["status"], told
    assert status in (None, head["status"]), head
    return told


def is_error(answer, status, error):
    code, head, body = answer
    assert (code, head.get("error"), body) == (status, error, b""), answer
    return head["text"]


# ---- A life ---------------------------------------------------------------


def test_a_repeat_gets_the_first_answer(server):
    with Client(server) as c:
        code, head, _ = begin(c, "k")
        assert (code, head["do"], head["attempt"]) == (200, "run", 1)
        assert len(head["token"]) <= 160 and len(head["record"]) == 64
        assert head["run_ms"] == 60000 and head["lease_ms"] == 30000
        is_problem(begin(c, "k"), "in-flight", 409)
        told = is_own(end(c, head["token"]))
        assert ["X-Own", "1"] in told["headers"] and told["status"] == 201
        is_replay(begin(c, "k"))
        is_problem(begin(c, "k", body=b"other"), "key-reused", 422)
        assert begin(c, "k", method="GET")[1] == {"do": "pass"}


@pytest.mark.parametrize("where", ["same", "other"])
def test_an_end_may_be_repeated_and_the_first_counts(server, where):
    with Client(server) as c, Client(server) as d:
        token = run(c, "k")
        is_own(end(c, token))
        other = c if where == "same" else d
        is_own(end(other, token))
        is_replay(end(other, token, body=b"another\n"))
        is_replay(end(other, token, status=500))
        is_replay(begin(c, "k"))


def test_all_byte_values_pass_in_header_lines(server):
    line = "".join(chr(i) for i in range(0x80, 0x100)) + "\tA"
    with Client(server) as c:
        token = run(c, "k", headers=[["X-Bytes", line]])
        told = is_own(end(c, token, headers=[["X-Bytes", line]]))
        assert ["X-Bytes", line] in told["headers"]
        assert ["X-Bytes", line] in is_replay(begin(c, "k", headers=[
            ["X-Bytes", line]]))["headers"]


@pytest.mark.parametrize("status, outcome, code", [
    (429, None, "run"), (500, "not-applied", "run"), (500, None, "send"),
    (200, "unknown", "outcome-unknown"), (502, None, "outcome-unknown"),
    (200, "no-store", "response-unavailable")])
def test_what_an_answer_means_is_the_guards_to_say(server, status, outcome,
                                                   code):
    with Client(server) as c:
        token = run(c, "k")
        more = {"outcome": outcome} if outcome else {}
        assert end(c, token, status=status, **more)[0] == 200
        answer = begin(c, "k")
        if code in ("run", "send"):
            assert answer[1]["do"] == code, answer
        else:
            is_problem(answer, code)


def test_a_stream_and_a_body_too_long_are_recorded_as_not_kept(server):
    route = {"max_response": "1k"}
    with Client(server) as c:
        token = run(c, "k", route=route)
        is_own(end(c, token, body=b"", stream=True, route=route))
        is_problem(begin(c, "k", route=route), "response-unavailable")
        token = run(c, "l", route=route)
        is_own(end(c, token, body=b"x" * 1025, route=route))
        is_problem(begin(c, "l", route=route), "response-unavailable")


@pytest.mark.parametrize("length", ["7", "0", "x", "4, 4", ""])
def test_a_body_that_is_not_as_long_as_it_says_is_not_recorded(server, length):
    with Client(server) as c:
        token = run(c, "k")
        is_error(end(c, token, body=b"made", headers=[
            ["Content-Length", length]]), 422, "head")
        is_problem(begin(c, "k"), "in-flight")
        is_own(end(c, token, headers=[["content-length", "5"]]))


def test_a_handler_that_broke_is_unknown_until_it_answers(server):
    with Client(server) as c:
        for status in (502, 504):
            token = run(c, "k%d" % status)
            for _ in range(2):
                is_problem(c.ask("/v1/broken", {"token": token,
                                                "status": status}),
                           "outcome-unknown", status)
            is_problem(begin(c, "k%d" % status), "outcome-unknown", 409)
            is_own(end(c, token))
            is_replay(begin(c, "k%d" % status))
        text = is_error(c.ask("/v1/broken", {"token": token, "status": 500}),
                        422, "head")
        assert "502 or 504" in text


def test_a_handler_has_its_time(server):
    route = {"run": "1s", "lease": "10s"}
    with Client(server) as c:
        token = run(c, "k", route=route)
        is_problem(begin(c, "k", route=route), "in-flight")
        eventually(lambda: json.loads(begin(c, "k", route=route)[2])["code"] ==
                   "outcome-unknown")
        is_own(end(c, token, route=route))
        is_replay(begin(c, "k", route=route))


# ---- Ids ------------------------------------------------------------------


def test_a_begin_that_is_repeated_gets_the_same_run(server):
    token_id = new_id()
    with Client(server) as c, Client(server) as d:
        token = run(c, "k", token_id)
        assert run(d, "k", token_id, again=True) == token
        is_own(end(d, token))


def test_an_id_is_of_one_request(server):
    token_id = new_id()
    with Client(server) as c:
        token = run(c, "k", token_id)
        is_error(begin(c, "k", token_id), 409, "id-reused")
        is_error(begin(c, "l", token_id), 409, "id-reused")
        is_error(begin(c, "l", token_id, again=True), 409, "id-reused")
        is_error(begin(c, "k", token_id, body=b"x", again=True), 409,
                 "id-reused")
        is_own(end(c, token))
        assert begin(c, "l")[1]["do"] == "run"


def test_a_begin_that_waits_is_taken_over_by_its_repeat(server):
    route = {"in_flight": "wait=60s"}
    with Client(server) as owner, Client(server) as c, Client(server) as d:
        token = run(owner, "k", route=route)
        token_id = new_id()
        answers = []

        def wait():
            answers.append(begin(c, "k", token_id, route=route))
        thread = threading.Thread(target=wait)
        thread.start()
        # While it has not come there, the second is the first and just waits.
        later = []
        second = threading.Thread(target=lambda: later.append(
            begin(d, "k", token_id, again=True, route=route)))
        eventually(lambda: open_exchanges(server) >= 2)
        second.start()
        thread.join(PATIENCE)
        is_error(answers[0], 409, "superseded")
        is_own(end(owner, token, route=route))
        second.join(PATIENCE)
        is_replay(later[0])


def open_exchanges(server):
    with Client(server) as c:
        c.send("/v1/health", b"", "GET")
        code, head, _ = c.read()
        assert (code, head["protocol"]) == (200, [1])
        return head["open"]


def ended_while_it_waits(server, c, key, route):
    """Waits for another, and is granted when that one gives the key back. Its
    connection has ended before. What it had sent."""
    waits = {"id": new_id(), "method": "POST", "target": "/pay?a=1",
             "scope": "ann", "route": route,
             "headers": [["Host", "shop.test"], ["Idempotency-Key", key]]}
    before = open_exchanges(server)
    give_back = json.dumps({"token": run(c, key, route=route), "route": route})
    with Client(server) as gone:
        gone.send("/v1/begin", json.dumps(waits).encode() + b"\n" + BODY)
        eventually(lambda: open_exchanges(server) == before + 2)
    c.send("/v1/abandon", give_back.encode() + b"\n")
    c.read()
    return waits


@pytest.mark.parametrize("then", ["its time", "a repeat"])
def test_a_grant_to_a_connection_that_has_ended_is_not_lost(server, then):
    """It waits for another, its connection ends, and then it is granted. The
    server learns of the end before its answer in some of many cases. None of them
    ends while they are counted."""
    limit = "20s" if then == "its time" else "600s"
    route = {"in_flight": "wait=60s", "run": limit, "lease": limit}

    def refused(key):
        """A key that is free may be this one's, if it is the quicker."""
        answer = begin(c, key, route=route)
        if answer[1]["do"] == "run":
            taken[key] += 1     # and no other had it before
            assert answer[1]["attempt"] == 1 + taken[key], answer
            c.ask("/v1/abandon", {"token": answer[1]["token"], "route": route})
            return None
        return answer

    keys, taken = ["k%d" % i for i in range(200)], collections.Counter()
    with Client(server) as c:
        for key in keys:
            waits = ended_while_it_waits(server, c, key, route)
            if then == "a repeat":
                answer = c.ask("/v1/begin", dict(waits, again=True), BODY)
                assert answer[1]["do"] == "run", answer
                assert answer[1]["attempt"] == 2, answer
        for key in keys if then == "its time" else []:
            is_problem(eventually(lambda k=key: refused(k)), "outcome-unknown")
        if then == "its time":
            assert open_exchanges(server) == 0


def test_what_waits_for_another_can_be_abandoned_by_another(server):
    route = {"in_flight": "wait=60s"}
    waits = {"id": new_id(), "method": "POST", "target": "/pay?a=1",
             "scope": "ann", "route": route,
             "headers": [["Host", "shop.test"], ["Idempotency-Key", "k"]]}
    with Client(server) as c:
        token = run(c, "k", route=route)
        with Client(server) as gone:
            gone.send("/v1/begin", json.dumps(waits).encode() + b"\n" + BODY)
            eventually(lambda: open_exchanges(server) == 2)
        assert c.ask("/v1/abandon", {"id": waits["id"]})[0] == 200
        eventually(lambda: open_exchanges(server) == 1)
        is_own(end(c, token, route=route))


def test_what_was_abandoned_claims_nothing(server):
    with Client(server) as c:
        token_id = new_id()
        token = run(c, "k", token_id)
        assert c.ask("/v1/abandon", {"token": token})[1] == {"do": "none"}
        is_error(begin(c, "k", token_id, again=True), 409, "id-abandoned")
        code, head, _ = begin(c, "k")
        assert (head["do"], head["attempt"]) == ("run", 2)
        # One that comes after its abandon.
        late = new_id()
        assert c.ask("/v1/abandon", {"id": late})[1] == {"do": "none"}
        is_error(begin(c, "l", late), 409, "id-abandoned")
        assert begin(c, "l")[1]["attempt"] == 1


def test_a_begin_that_waits_can_be_abandoned(server):
    route = {"in_flight": "wait=60s"}
    with Client(server) as owner, Client(server) as c:
        token = run(owner, "k", route=route)
        waiting = new_id()
        answers = []
        thread = threading.Thread(target=lambda: answers.append(
            begin(c, "k", waiting, route=route)))
        thread.start()
        eventually(lambda: open_exchanges(server) == 2)
        owner.ask("/v1/abandon", {"id": waiting})
        thread.join(PATIENCE)
        assert answers[0][0] == 200
        is_problem(answers[0], "in-flight")
        is_own(end(owner, token, route=route))
        assert open_exchanges(server) == 0


# ---- Restarts -------------------------------------------------------------


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_the_next_server_takes_the_ends(server, number):
    route = {"lease": "60s"}
    token_id = new_id()
    with Client(server) as c:
        first = run(c, "k", route=route)
        second = run(c, "l", token_id, route=route)
        third = run(c, "m", route=route)
    assert server.end(number) == (0 if number == signal.SIGTERM else -9)
    server.start()
    with Client(server) as c:
        is_problem(begin(c, "k", route=route), "in-flight")
        is_own(end(c, first, route=route))
        is_own(end(c, first, route=route))
        assert run(c, "l", token_id, again=True, route=route) == second
        is_own(end(c, second, route=route))
        is_problem(c.ask("/v1/broken", {"token": third, "status": 502,
                                        "route": route}), "outcome-unknown")
        is_replay(begin(c, "k", route=route))
        is_replay(begin(c, "l", route=route))
        is_problem(begin(c, "m", route=route), "outcome-unknown")


def test_who_waits_is_told_when_the_server_ends(server):
    route = {"in_flight": "wait=600s"}
    with Client(server) as owner, Client(server) as c:
        run(owner, "k", route=route)
        answers = []
        thread = threading.Thread(target=lambda: answers.append(
            begin(c, "k", route=route)))
        thread.start()
        eventually(lambda: open_exchanges(server) == 2)
        assert server.end() == 0
        thread.join(PATIENCE)
        is_problem(answers[0], "in-flight")


def test_two_servers_of_one_store_are_one(make):
    one = make()
    two = make(store=one.store)
    with Client(one) as c, Client(two) as d:
        token = run(c, "k")
        is_problem(begin(d, "k"), "in-flight")
        is_own(end(d, token))
        is_replay(begin(c, "k"))
        is_own(end(c, token))


# ---- Owners ---------------------------------------------------------------

CHILD = """
import sys, time
sys.path.insert(0, sys.argv[1])
import test_serve as t
class S:
    port = 0
    where = sys.argv[2]
    connect = t.Server.connect
c = t.Client(S())
print(t.run(c, "k", route={"in_flight": "wait=60s"}), flush=True)
if sys.argv[3] == "wait":
    time.sleep(600)
"""


def child(server, what="wait"):
    # pylint: disable=consider-using-with
    p = subprocess.Popen(
        [sys.executable, "-c", CHILD, os.path.dirname(__file__), server.where,
         what], stdout=subprocess.PIPE, text=True)
    return p, p.stdout.readline().strip()


@pytest.mark.parametrize("what", ["wait", "end"])
def test_what_a_dead_process_has_begun_is_unknown_at_once(server, what):
    route = {"in_flight": "wait=60s"}
    with Client(server) as c:
        p, token = child(server, what)
        if what == "wait":
            answers = []
            thread = threading.Thread(target=lambda: answers.append(
                begin(c, "k", route=route)))
            thread.start()
            eventually(lambda: open_exchanges(server) == 2)
            p.kill()
            thread.join(PATIENCE)
            is_problem(answers[0], "outcome-unknown")
        p.wait(PATIENCE)
        eventually(lambda: open_exchanges(server) == 0)
        is_problem(begin(c, "k", route=route), "outcome-unknown")
        shown = subprocess.run([ONCE, "--store", server.store, "ls"],
                               capture_output=True, check=True, text=True)
        assert "indeterminate" in shown.stdout
        # A connection that is closed is no death, and a late end is taken.
        is_own(end(c, token, route=route))


def test_a_connection_that_is_closed_is_no_death(server):
    with Client(server) as c:
        token = run(c, "k")
    with Client(server) as c:
        is_problem(begin(c, "k"), "in-flight")
        is_own(end(c, token))


FOREIGN = """
import json, os, sys
sys.path.insert(0, sys.argv[1])
import test_serve as t
os.setgid(65534); os.setuid(65534)
class S:
    port = 0
    where = sys.argv[2]
    connect = t.Server.connect
c = t.Client(S())
for path, head in json.loads(sys.argv[3]):
    code, told, _ = c.ask("/v1/" + path, head, t.BODY if path == "begin" else b"")
    assert (code, told["error"]) == (403, "not-owner"), (path, told)
"""


def let_others_in(server):
    os.chmod(server.where[5:], 0o666)
    for folder in [server.folder, *server.folder.parents]:
        if not folder.stat().st_mode & 1:
            folder.chmod(0o711)


def is_refused_to_another_user(server, asked):
    """`asked` are pairs of a path and a head, sent by a process of its own."""
    subprocess.run([sys.executable, "-c", FOREIGN, os.path.dirname(__file__),
                    server.where, json.dumps(asked)], check=True)


@pytest.mark.skipif(os.getuid() != 0, reason="it needs to become another user")
def test_another_users_process_ends_nothing(server):
    let_others_in(server)
    with Client(server) as c:
        token = run(c, "k")
        is_refused_to_another_user(server, [
            [path, {"token": token, "status": 502}]
            for path in ("end", "broken", "abandon")])
        is_problem(begin(c, "k"), "in-flight")
        is_own(end(c, token))


# ---- Calls ----------------------------------------------------------------


def call(client, key, token_id=None, **more):
    return client.ask("/v1/call/begin", dict(
        {"id": token_id or new_id(), "group": "charge", "key": key}, **more))


def call_run(client, key, token_id=None, **more):
    code, head, body = call(client, key, token_id, **more)
    assert (code, head.get("do"), body) == (200, "run", b""), head
    assert len(head["token"]) <= 160
    return head["token"]


def call_end(client, token, kind="success", body=b"paid", **more):
    return client.ask("/v1/call/end", dict({"token": token, "kind": kind},
                                           **more), body)


def says(answer, state):
    assert answer[0] == 200 and answer[1].get("do") == state, answer
    return answer[1]


def replays(answer, kind="success", body=b"paid"):
    head = says(answer, "replay")
    assert (head["kind"], answer[2]) == (kind, body), answer
    return head


RECORDED = {"do": "none", "recorded": True}


def test_a_call_runs_once(server):
    with Client(server) as c:
        token = call_run(c, "o-1", fingerprint="5", label="order o-1")
        assert says(call(c, "o-1", fingerprint="5"),
                    "in-flight")["retry_after_ms"] > 0
        says(call(c, "o-1", fingerprint="6"), "mismatch")
        for _ in range(2):
            assert call_end(c, token, type="text/plain")[1] == RECORDED
        assert replays(call(c, "o-1", fingerprint="5"))["type"] == "text/plain"
        replays(call_end(c, token, body=b"other", type="text/plain"))
        token = call_run(c, "o-2")
        assert call_end(c, token, "failure", b"no", code=7)[1] == RECORDED
        assert replays(call(c, "o-2"), "failure", b"no")["code"] == 7


def test_a_call_ends_with_the_next_server(server):
    with Client(server) as c:
        first, second = call_run(c, "a"), call_run(c, "b")
        third = call_run(c, "c")
    server.end(signal.SIGKILL)
    server.start()
    with Client(server) as c:
        assert call_end(c, first)[1] == RECORDED
        says(c.ask("/v1/broken", {"token": second}), "indeterminate")
        says(c.ask("/v1/abandon", {"token": third}), "none")
        replays(call(c, "a"))
        says(call(c, "b"), "indeterminate")
        assert call(c, "c")[1]["attempt"] == 2
        # The late result of what was unknown is taken.
        assert call_end(c, second)[1] == RECORDED
        replays(call(c, "b"))


def test_a_call_has_its_ids_and_its_time(server):
    token_id = new_id()
    with Client(server) as c:
        token = call_run(c, "k", token_id)
        is_error(call(c, "k", token_id), 409, "id-reused")
        is_error(call(c, "l", token_id, again=True), 409, "id-reused")
        is_error(begin(c, "k", token_id, again=True), 409, "id-reused")
        assert call_run(c, "k", token_id, again=True) == token
        # A token of a call is none of an exchange, and the other way round.
        is_error(end(c, token), 422, "head")
        is_error(call_end(c, run(c, "x")), 422, "head")
        c.ask("/v1/abandon", {"token": token})
        is_error(call(c, "k", token_id, again=True), 409, "id-abandoned")
        call_run(c, "m", run_ms=1000)
        eventually(lambda: call(c, "m")[1]["do"] == "indeterminate")


@pytest.mark.parametrize("more", [
    {"key": ""}, {"key": "k" * 256}, {"group": "two words"}, {"key": 7},
    {"lease_ms": 1}, {"lease_ms": "30s"}, {"wait_ms": 600001},
    {"run_ms": 600001}, {"keep_ms": 0}, {"label": "x" * 1000}])
def test_a_call_that_cannot_be_is_refused(server, more):
    with Client(server) as c:
        is_error(call(c, **dict({"key": "k"}, **more)), 422, "head")
        assert call(c, "k")[1]["attempt"] == 1


def test_a_waiting_call_gets_the_result(server):
    with Client(server) as c, Client(server) as d:
        token = call_run(c, "k")
        answers = []
        thread = threading.Thread(target=lambda: answers.append(
            call(d, "k", wait_ms=60000)))
        thread.start()
        eventually(lambda: open_exchanges(server) == 2)
        assert call_end(c, token)[1] == RECORDED
        thread.join(PATIENCE)
        replays(answers[0])


def test_a_call_and_once_run_are_one(server):
    """The same records as once_call() and `once run`."""
    out = subprocess.run(
        [ONCE, "--store", server.store, "run", "--group", "charge", "--key",
         "o-9", "--", "/bin/echo", "paid"], capture_output=True, check=False,
        text=True)
    assert out.returncode == 0, out
    with Client(server) as c:
        code, head, _ = call(c, "o-9")
        assert (code, head["do"]) in ((200, "replay"), (200, "mismatch")), head


# ---- Routes ---------------------------------------------------------------


@pytest.mark.parametrize("route, named", [
    ({"finla": "2xx"}, "finla"), ({"final": "9xx"}, "final"),
    ({"final": 2}, "final"), ({"ttl": "soon"}, "ttl"),
    ({"ttl": "1h failure=x"}, "ttl"), ({"ttl": "1h 2h"}, "ttl"),
    ({"in_flight": "wait"}, "in_flight"), ({"lost": "maybe"}, "lost"),
    ({"lease": "1ms"}, "lease"), ({"key_required": "yes"}, "key_required"),
    ({"key_json": "no-pointer"}, "key_json"), ({"run": "1h"}, "run"),
    ({"store_failure": "bypass"}, "store_failure"), ({"scope": "ann"}, "scope"),
    ({"max_request": "0"}, "max_request"), ({"probe": "/ask"}, "probe"),
    ({"final": ["2xx"]}, "final"), ("charges", "route"), ([], "route"),
    (1, "route")])
def test_a_route_that_cannot_be_is_refused_and_claims_nothing(server, route,
                                                             named):
    with Client(server) as c:
        text = is_error(begin(c, "k", route=route), 422, "route")
        assert named in text
        assert begin(c, "k")[1]["attempt"] == 1


def test_routes_of_the_deployer(make, tmp_path):
    (tmp_path / "r").write_text('{"final": "2xx", "key_required": true}')
    server = make("--define", "charges=%s" % (tmp_path / "r"), "--defined-only")
    with Client(server) as c:
        token = run(c, "k", route="charges")
        is_own(end(c, token, status=500, route="charges"))
        assert begin(c, "k", route="charges")[1]["attempt"] == 2
        is_error(begin(c, "l", route={"final": "2xx"}), 422, "route")
        is_error(begin(c, "l"), 422, "route")
        is_error(begin(c, "l", route="other"), 422, "route")
        is_problem(c.ask("/v1/begin", {
            "id": new_id(), "method": "POST", "target": "/", "scope": "ann",
            "headers": [], "route": "charges"}), "key-missing", 400)


def test_a_program_asks_what_a_route_allows(make, tmp_path):
    """Before it has begun anything: what is wrong, and how much it has to read."""
    (tmp_path / "r").write_text('{"max_request": "5m", "run": "2s"}')
    server = make("--define", "big=%s" % (tmp_path / "r"))
    usual = {"do": "none", "max_request": 1 << 20, "max_response": 1 << 20,
             "run_ms": 60000, "lease_ms": 30000, "wait_ms": 0}
    with Client(server) as c:
        assert c.ask("/v1/route", {}) == (200, usual, b"")
        assert c.ask("/v1/route", {"route": "big"}) == (200, dict(
            usual, max_request=5 << 20, run_ms=2000), b"")
        assert c.ask("/v1/route", {"route": {
            "max_response": "2k", "lease": "5s", "in_flight": "wait=3s"}}) == (
                200, dict(usual, max_response=2048, lease_ms=5000,
                          wait_ms=3000), b"")
        is_error(c.ask("/v1/route", {"route": "other"}), 422, "route")
        assert "finla" in is_error(
            c.ask("/v1/route", {"route": {"finla": "2xx"}}), 422, "route")


def test_what_a_program_computes(server):
    with Client(server) as c:
        token = run(c, "ignored", key="order-7", fingerprint="a", label="no 7")
        is_own(end(c, token))
        is_replay(begin(c, "other", key="order-7", fingerprint="a", body=b"x"))
        is_problem(begin(c, "other", key="order-7", fingerprint="b"),
                   "key-reused")
        is_problem(begin(c, "k", scope=""), "scope-missing", 401)
        shown = subprocess.run([ONCE, "--store", server.store, "ls", "--json"],
                               capture_output=True, check=True, text=True)
        assert json.loads(shown.stdout)["label"] == "no 7"
        for member in "scope", "key", "fingerprint", "label":
            assert member in is_error(begin(c, "k", **{member: "x" * 1025}), 422,
                                    "head")
            is_error(begin(c, "k", **{member: 7}), 422, "head")


# ---- Hostile messages -----------------------------------------------------

GOOD = {"id": "0" * 32, "method": "POST", "target": "/pay", "scope": "ann",
        "headers": [["Idempotency-Key", "k"]]}


def changed(**more):
    return json.dumps(dict(GOOD, **more)).encode() + b"\n"


HEADS = {
    "nothing": (b"", 422), "no_feed": (b"{}", 422),
    "long": (b" " * 65537, 413), "long_without_feed": (b"[" * 200000, 413),
    "no_json": (b"hello\n", 422), "a_list": (b"[]\n", 422),
    "a_bomb": (b"[" * 65000 + b"\n", 422), "a_number": (b"7\n", 422),
    "twice": (b'{"id":"a","id":"b"}\n', 422),
    "not_utf8": (b'{"id":"\xff"}\n', 422), "nul": (b'{"id":"\\u0000"}\n', 422),
    "empty": (b"{}\n", 422), "id_short": (changed(id="0" * 31), 422),
    "id_long": (changed(id="0" * 33), 422), "id_bad": (changed(id="g" * 32), 422),
    "id_number": (changed(id=7), 422), "no_method": (changed(method=None), 422),
    "method_bytes": (changed(method="PO\u20acST"), 422),
    "target_feed": (changed(target="/a\nb"), 422),
    "header_feed": (changed(headers=[["A", "b\r\nC: d"]]), 422),
    "header_wide": (changed(headers=[["A", "\u0100"]]), 422),
    "header_emoji": (changed(headers=[["A", "\U0001f600"]]), 422),
    "header_one": (changed(headers=[["A"]]), 422),
    "header_three": (changed(headers=[["A", "b", "c"]]), 422),
    "header_number": (changed(headers=[["A", 1]]), 422),
    "headers_text": (changed(headers="A: b"), 422),
    "headers_many": (changed(headers=[["A", "b"]] * 513), 422),
}


@pytest.mark.parametrize("name", HEADS)
def test_a_bad_head_is_refused_and_the_connection_goes_on(server, name):
    data, status = HEADS[name]
    with Client(server) as c:
        c.send("/v1/begin", data)
        code, head, _ = c.read()
        assert (code, head["error"]) == (status, "head"), head
        assert begin(c, "k")[1]["do"] == "run"
        c.send("/v1/end", data)
        code, head, _ = c.read()
        assert code == status, head


@pytest.mark.parametrize("more", [
    {"token": ""}, {"token": "x" * 124}, {"token": 7}, {"token": None},
    {"status": 199}, {"status": 600}, {"status": "201"}, {"outcome": "maybe"},
    {"headers": [["A", "b\n"]]}])
def test_a_bad_end_ends_nothing(server, more):
    with Client(server) as c:
        token = run(c, "k")
        head = dict({"token": token, "status": 201, "headers": []}, **more)
        is_error(c.ask("/v1/end", head, b"x"), 422, "head")
        is_problem(begin(c, "k"), "in-flight")
        is_own(end(c, token))


def test_paths_and_methods(server):
    with Client(server) as c:
        for path in "/", "/v1/", "/v1/beginning", "/v2/begin":
            is_error(c.ask(path, {}), 404, "not-found")
        for path in "/v1/end/", "/metrics/":
            c.send(path, b"", "GET")
            is_error(c.read(), 404, "not-found")
        c.send("/v1/begin", b"", "GET")
        is_error(c.read(), 405, "method")
        c.send("/v1/begin", b"{}\n", "PUT")
        is_error(c.read(), 405, "method")


@pytest.mark.parametrize("path", ["begin", "end"])
def test_a_message_that_is_cut_off_changes_nothing(server, path):
    """A begin claims, and an end ends, only when all of it is there."""
    with Client(server) as c:
        token = run(c, "k")
        head = GOOD if path == "begin" else {"token": token, "status": 201,
                                             "headers": []}
        data = json.dumps(dict(head, id=new_id())).encode() + b"\nbody"
        for cut in range(0, len(data), 5):
            with Client(server) as d:
                d.send("/v1/" + path, data[:cut], size=len(data))
        is_problem(begin(c, "k"), "in-flight")
        assert open_exchanges(server) == 1
        is_own(end(c, token))


def test_a_body_over_the_limit_is_413_and_claims_nothing(server):
    with Client(server) as c:
        route = {"max_request": "10"}
        code, head, _ = begin(c, "k", body=b"x" * 11, route=route)
        assert (code, head["do"], head["status"]) == (200, "send", 413)
        assert begin(c, "k", body=b"x" * 10, route=route)[1]["do"] == "run"


def test_many_open_exchanges_take_little_memory(server):
    route = {"run": "600s", "lease": "700s"}    # a slow machine takes a minute
    with Client(server) as c:
        for i in range(100):
            run(c, "warm%d" % i, route=route)
        before = server.rss_kib()
        tokens = [run(c, "k%d" % i, route=route) for i in range(10000)]
        assert (server.rss_kib() - before) / 10000 < (
            64 if "ASAN_OPTIONS" in os.environ else 8)
        assert open_exchanges(server) == 10100
        for token in tokens[:100]:
            is_own(end(c, token, route=route))


def test_slow_senders_take_little_memory(server):
    with contextlib.ExitStack() as stack, Client(server) as c:
        run(c, "first")
        before = server.rss_kib()
        for _ in range(500):
            d = stack.enter_context(Client(server))
            d.send("/v1/begin", b"{" + b" " * 60000, size=1000000)
        assert begin(c, "k")[1]["do"] == "run"
        assert server.rss_kib() - before < (
            400000 if "ASAN_OPTIONS" in os.environ else 100000)


def test_exchanges_and_answers_have_limits(make):
    server = make("--max-open", "2", "--buffers", "4k")
    with Client(server) as c:
        token = run(c, "k")
        run(c, "l")
        is_error(begin(c, "m"), 503, "busy")
        is_error(end(c, token, body=b"x" * 5000), 503, "busy")
        is_own(end(c, token, body=b"x" * 4000))
        assert begin(c, "m")[1]["do"] == "run"


# ---- Metrics ----------------------------------------------------------------


def metrics(server):
    """{name and labels: value}, of a page that Prometheus can read."""
    with server.connect() as sock:
        sock.sendall(b"GET /metrics HTTP/1.1\r\nHost: once\r\n"
                     b"Connection: close\r\n\r\n")
        data = b""
        while piece := sock.recv(65536):
            data += piece
    head, _, text = data.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200 ") and b"version=0.0.4" in head, head
    subprocess.run(["promtool", "check", "metrics"], input=text, check=True)
    return {line.rpartition(" ")[0]: float(line.rpartition(" ")[2])
            for line in text.decode().splitlines() if line[:1] != "#"}


def test_metrics_tell_what_callers_were_told(make, tmp_path):
    (tmp_path / "r").write_text('{"final": "2xx", "ttl": "2h"}')
    server = make("--define", "charges=%s" % (tmp_path / "r"))

    def told(route, status):
        return 'once_requests_total{store="journal",route="%s",status="%s"}' % (
            route, status)
    with Client(server) as c:
        token = run(c, "secret-key", route="charges")
        assert metrics(server)['once_serve_open{store="journal"}'] == 1
        begin(c, "secret-key", route="charges")
        end(c, token)
        begin(c, "secret-key", route="charges")
        begin(c, "secret-key", route="charges", body=b"other")
        run(c, "lost")
        c.ask("/v1/broken", {"token": run(c, "gone"), "status": 502})
        c.ask("/v1/call/end", {"token": call(c, "o-1")[1]["token"],
                               "kind": "success"})
        call(c, "o-1")
        found = metrics(server)
    assert [found[told("charges", x)] for x in (
        "new", "in_flight", "replayed", "mismatch")] == [1, 1, 1, 1]
    assert [found[told("-", x)] for x in ("new", "indeterminate")] == [0, 1]
    assert [found[told("-calls", x)] for x in ("new", "replayed")] == [1, 1]
    assert found['once_attempts_in_flight{store="journal"}'] == 1
    assert found['once_store_up{store="journal"}'] == 1
    assert found['once_store_info{store="journal",driver="journal",'
                 'durable="true"}'] == 1
    assert found['once_store_batch_duration_seconds_count{store="journal"}'] > 3
    assert not [line for line in found if "secret" in line or "lost" in line]


# ---- Where it listens -----------------------------------------------------


def test_on_loopback_everybody_needs_the_token(make, tmp_path):
    secret = "s" * 40
    (tmp_path / "t").write_text(secret + "\n")
    (tmp_path / "t").chmod(0o600)
    server = make("--token-file", str(tmp_path / "t"), where="127.0.0.1:0")
    for wrong in None, "s" * 39, "s" * 39 + "t", "":
        with Client(server, wrong) as c:
            is_error(begin(c, "k"), 401, "bearer")
            c.send("/v1/health", b"", "GET")
            is_error(c.read(), 401, "bearer")
    with Client(server, secret) as c:
        token = run(c, "k")
        is_own(end(c, token))
    assert secret not in server.log.read_text()


@pytest.mark.parametrize("words, said", [
    (["--listen", "127.0.0.1:0"], "--token-file"),
    (["--listen", "0.0.0.0:7070", "--token-file", "FILE"], "--listen"),
    (["--listen", "192.0.2.1:7070", "--token-file", "FILE"], "--listen"),
    (["--listen", "127.0.0.1:0", "--token-file", "OPEN"], "chmod 0640 "),
    (["--listen", "127.0.0.1:0", "--token-file", "SHORT"], "16"),
    (["--listen", "unix:FOLDER/s", "--token-file", "FILE"], "loopback"),
    (["--listen", "unix:FOLDER/s", "--store", "memory:"], "--volatile"),
    (["--listen", "unix:FOLDER/s", "--store", "journal:FOLDER/none"], "created"),
    (["--listen", "unix:FOLDER/s", "--define", "a=FOLDER/none"], "--define"),
    (["--listen", "unix:FOLDER/s", "--define", "a=BAD"], "nope"),
    (["--listen", "unix:FOLDER/s", "--buffers", "1"], "--buffers"),
    (["--listen", "unix:relative"], "path")])
def test_what_is_unsafe_does_not_start(tmp_path, words, said):
    for name, mode, text in (("FILE", 0o600, "s" * 40), ("OPEN", 0o644, "s" * 40),
                             ("SHORT", 0o600, "s"), ("BAD", 0o600,
                                                     '{"nope": 1}')):
        (tmp_path / name).write_text(text + "\n")
        (tmp_path / name).chmod(mode)
    store = "journal:%s/pay" % tmp_path
    subprocess.run([ONCE, "--store", store, "init"], check=True,
                   stdout=subprocess.DEVNULL)
    for name in "FILE", "OPEN", "SHORT", "BAD":
        words = [w.replace("FOLDER", str(tmp_path)).replace(
            name, str(tmp_path / name)) if w.isupper() or "=" in w or
            "FOLDER" in w else w for w in words]
    out = subprocess.run([SERVE, "--store", store, *words], timeout=PATIENCE,
                         capture_output=True, text=True, check=False)
    assert out.returncode in (2, 3) and said in out.stderr, out
    assert not (tmp_path / "s").exists()


def test_a_name_of_a_store_that_a_restart_forgets_does_not_start(tmp_path):
    (tmp_path / "brief").write_text("url = memory:\n")
    try:
        out = subprocess.run([SERVE, "--store", "name:brief", "--listen",
                              "unix:%s/s" % tmp_path], timeout=5,
                             env={**os.environ, "ONCE_STORES_D": str(tmp_path)},
                             capture_output=True, text=True, check=False)
    except subprocess.TimeoutExpired:
        pytest.fail("it has started")
    assert out.returncode == 2 and "--volatile" in out.stderr, out


def test_the_socket_is_for_its_group(server):
    assert os.stat(server.where[5:]).st_mode & 0o777 == 0o660
