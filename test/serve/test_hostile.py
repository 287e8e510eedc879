# SPDX-License-Identifier: Apache-2.0
"""
What a process can do that may open the socket of `once serve`, or reach its port:
with tokens of the wrong kind, ids of others, members that mean nothing, and
connections that stand still. The server goes on, and answers each with its error.
"""

import base64
import contextlib
import json
import os
import pathlib
import resource
import shutil
import signal
import socket
import subprocess
import sys
import time

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
# pylint: disable=wrong-import-position,unused-import
from test_serve import (  # noqa: E402,F401
    ONCE, PATIENCE, BODY, Client, begin, call, call_end, call_run, a_server, end,
    eventually, is_error, is_own, is_problem, is_refused_to_another_user,
    is_replay, let_others_in, maker, new_id, open_exchanges, replays, run, says)


def forged(token_id, mark=""):
    """A token that nobody was given: of this id, and of no record."""
    return mark + base64.b64encode(
        bytes([1]) * 64 + bytes.fromhex(token_id) + bytes(7) + b"\1" +
        bytes(3) + b"\1" + (b"\1" if mark else b"\0")).decode()


@contextlib.contextmanager
def waiting(server, path, **more):
    """A begin that waits for another, on a connection of its own; its id."""
    token_id = new_id()
    before = open_exchanges(server)
    head = {"id": token_id, **more}
    if path == "begin":
        head = {"method": "POST", "target": "/pay?a=1", "scope": "ann",
                "headers": [["Host", "shop.test"], ["Idempotency-Key", "k"]],
                "route": {"in_flight": "wait=60s"}, **head}
    else:
        head = {"group": "charge", "key": "k", "wait_ms": 60000, **head}
    with Client(server) as c:
        c.send("/v1/" + ("begin" if path == "begin" else "call/begin"),
               json.dumps(head).encode() + b"\n" + BODY * (path == "begin"))
        eventually(lambda: open_exchanges(server) > before)
        yield token_id


# ---- Tokens of the wrong kind -----------------------------------------------


@pytest.mark.parametrize("path", ["end", "broken", "abandon", "call/end"])
def test_a_token_of_one_kind_is_none_of_the_other(server, path):
    with Client(server) as c:
        exchange, its_call = run(c, "k"), call_run(c, "k")
        for token in "~" + exchange, its_call[1:]:
            for status in 200, 502:
                is_error(c.ask("/v1/" + path, {
                    "token": token, "status": status, "kind": "success"}), 422,
                         "head")
        is_problem(begin(c, "k"), "in-flight")
        is_own(end(c, exchange))
        says(call_end(c, its_call), "none")


@pytest.mark.parametrize("path", ["end", "broken", "abandon", "call/end"])
@pytest.mark.parametrize("how", ["end", "time", "restart"])
def test_a_token_is_of_one_kind_also_when_its_id_is_forgotten(server, path, how):
    """A function's result under a request's name would be no answer for ever."""
    route = {"run": "1s", "lease": "10s"}
    with Client(server) as c:
        exchange = run(c, "k", route=route)
        its_call = call_run(c, "k", run_ms=1000)
        if how == "end":
            is_own(end(c, exchange, route=route))
            says(call_end(c, its_call), "none")
        if how == "restart":
            server.end()
            server.start()
    with Client(server) as c:
        eventually(lambda: open_exchanges(server) == 0)
        for token in "~" + exchange, its_call[1:]:
            for kind in "success", "failure":
                is_error(c.ask("/v1/" + path, {
                    "token": token, "status": 502, "kind": kind,
                    "route": route}), 422, "head")
        answer = end(c, exchange, route=route)
        is_own(answer)
        is_replay(begin(c, "k", route=route))
        says(call_end(c, its_call), "none")
        says(call(c, "k"), "replay")


@pytest.mark.parametrize("path", ["end", "broken", "abandon", "call/end"])
@pytest.mark.parametrize("kind", ["begin", "call"])
def test_a_token_with_the_id_of_what_waits_ends_nothing(server, path, kind):
    with Client(server) as c:
        exchange, its_call = run(c, "k"), call_run(c, "k")
        with waiting(server, kind) as token_id:
            for mark in "", "~":
                status, head, _ = c.ask("/v1/" + path, {
                    "token": forged(token_id, mark), "status": 502,
                    "kind": "success"})
                assert status in (200, 422), head
                assert head.get("do") in (None, "none", "send",
                                          "indeterminate"), head
        is_own(end(c, exchange))
        says(call_end(c, its_call), "none")


def test_a_token_with_the_id_of_what_runs_does_not_end_it(server):
    """The record decides, and it has another name."""
    with Client(server) as c:
        token_id = new_id()
        token = run(c, "k", token_id)
        is_problem(end(c, forged(token_id)), "outcome-unknown")
        is_problem(c.ask("/v1/broken", {"token": forged(token_id),
                                        "status": 502}), "outcome-unknown")
        is_problem(begin(c, "k"), "in-flight")
        is_own(end(c, token))
        call_id = new_id()
        token = call_run(c, "k", call_id)
        says(call_end(c, forged(call_id, "~")), "indeterminate")
        says(call(c, "k"), "in-flight")
        says(call_end(c, token), "none")


def test_a_lease_that_cannot_be_is_named_at_the_end_of_a_call(server):
    with Client(server) as c:
        token = call_run(c, "k")
        server.end()
        server.start()
    with Client(server) as c:
        assert "lease" in is_error(call_end(c, token, lease_ms=1), 422, "head")
        says(call_end(c, token), "none")


def test_broken_after_an_end_gets_what_is_recorded(server):
    with Client(server) as c:
        token = run(c, "k")
        is_own(end(c, token))
        for _ in range(2):
            is_replay(c.ask("/v1/broken", {"token": token, "status": 502}))
        is_replay(begin(c, "k"))
        token = call_run(c, "k")
        says(call_end(c, token), "none")
        replays(c.ask("/v1/broken", {"token": token}))


# ---- What another user's process may do ------------------------------------

@pytest.mark.skipif(os.getuid() != 0, reason="it needs to become another user")
def test_another_users_process_frees_nothing_and_gets_no_run(server):
    let_others_in(server)
    runs, calls = new_id(), new_id()
    head = {"method": "POST", "target": "/pay?a=1", "scope": "ann",
            "headers": [["Host", "shop.test"], ["Idempotency-Key", "k"]]}
    with Client(server) as c:
        token = run(c, "k", runs)
        its_call = call_run(c, "k", calls)
        route = {"in_flight": "wait=60s"}
        with waiting(server, "begin") as waits, \
                waiting(server, "call") as call_waits:
            asked = [["abandon", {"id": x}]
                     for x in (runs, calls, waits, call_waits)]
            asked += [
                ["begin", dict(head, id=runs, again=True)],
                ["begin", dict(head, id=waits, again=True, route=route)],
                ["call/begin", {"id": calls, "group": "charge", "key": "k",
                                "again": True}]]
            is_refused_to_another_user(server, asked)
            assert open_exchanges(server) == 4
        is_own(end(c, token))
        says(call_end(c, its_call), "none")


# ---- Members ----------------------------------------------------------------


@pytest.mark.parametrize("more, said", [
    ({"method": ""}, "method"), ({"target": ""}, "target"),
    ({"again": "yes"}, "again"), ({"again": 1}, "again"),
    ({"headers": [["", "x"]]}, "headers"), ({"scope": ["ann"]}, "scope"),
    ({"label": 7}, "label"), ({"key": True}, "key"), ({"id": ""}, "id"),
    ({"fingerprint": {}}, "fingerprint")])
def test_a_member_of_a_begin_that_cannot_be_is_named(server, more, said):
    with Client(server) as c:
        assert '"%s"' % said in is_error(begin(c, "k", **more), 422, "head")
        assert begin(c, "k")[1]["attempt"] == 1


@pytest.mark.parametrize("more, said", [
    ({"stream": "yes"}, "stream"), ({"stream": 1}, "stream"),
    ({"outcome": ""}, "outcome"), ({"outcome": 7}, "outcome"),
    ({"status": 201.0}, "status"), ({"status": True}, "status"),
    ({"headers": {}}, "headers"), ({"headers": [["", "x"]]}, "headers")])
def test_a_member_of_an_end_that_cannot_be_is_named(server, more, said):
    with Client(server) as c:
        token = run(c, "k")
        head = {"token": token, "status": 201, "headers": [], **more}
        assert '"%s"' % said in is_error(c.ask("/v1/end", head), 422, "head")
        is_own(end(c, token))


@pytest.mark.parametrize("more, said", [
    ({"code": "7"}, "code"), ({"type": 7}, "type"), ({"kind": ""}, "kind"),
    ({"kind": "maybe"}, "kind"), ({"keep_ms": "1d"}, "keep_ms")])
def test_a_member_of_a_calls_end_that_cannot_be_is_named(server, more, said):
    with Client(server) as c:
        token = call_run(c, "k")
        assert '"%s"' % said in is_error(call_end(c, token, **more), 422, "head")
        says(call_end(c, token), "none")


def test_a_group_that_is_empty_is_refused(server):
    with Client(server) as c:
        assert '"group"' in is_error(call(c, "k", group=""), 422, "head")


@pytest.mark.parametrize("named", [True, False])
def test_a_scope_that_a_route_makes_meaningless_is_refused(make, tmp_path, named):
    (tmp_path / "r").write_text('{"scope": "off"}')
    server = make("--define", "pay=%s" % (tmp_path / "r"))
    route = "pay" if named else {"scope": "off"}
    with Client(server) as c:
        for scope in "alice", "":
            assert '"scope"' in is_error(begin(c, "k", route=route, scope=scope),
                                         422, "head")
        assert begin(c, "k", route=route, scope=None)[1]["attempt"] == 1


@pytest.mark.parametrize("member, value, computed", [
    ("key", "X-Key", "key"), ("key_json", "/id", "key"),
    ("fingerprint", "body", "fingerprint")])
def test_a_route_that_what_is_computed_makes_meaningless_is_refused(
        make, tmp_path, member, value, computed):
    (tmp_path / "r").write_text(json.dumps({member: value}))
    server = make("--define", "pay=%s" % (tmp_path / "r"))
    with Client(server) as c:
        for route in "pay", {member: value}:
            assert member in is_error(begin(c, "k", route=route, **{
                computed: "o-1"}), 422, "route")


@pytest.mark.parametrize("head, said", [
    ({"route": "other"}, ["no --define", "other"]),
    ({"route": 7}, ["number", "object"]), ({"route": None}, ["null", "object"]),
    ({"route": {"finla": "2xx"}}, ["finla", "no such member"]),
    ({"route": {"ttl": "soon"}}, ["ttl", "soon", "24h"]),
    ({"route": {"lost": "maybe"}}, ["lost", "maybe", "hold or takeover"]),
    ({"route": {"final": "9xx"}}, ["final", "9xx"]),
    ({"route": {"run": "1h"}}, ["run", "1h", "10m"]),
    ({"route": {"methods": "POST,PUT"}}, ["methods", "POST,PUT"]),
    ({"route": {"key": "a b"}}, ["key", "a b", "header"]),
    ({"route": {"lease": "1ms"}}, ["lease", "1 "]),
    ({"route": {"key_time": "uuid4"}}, ["key_time", "uuid4", "ulid"]),
    ({"route": {"hide_header": "a:b"}}, ["hide_header", "a:b"])])
def test_what_is_wrong_in_a_route_is_named_with_what_is_allowed(server, head,
                                                                said):
    with Client(server) as c:
        text = is_error(c.ask("/v1/route", head), 422, "route")
    assert [x for x in said if x not in text] == [], text


@pytest.mark.parametrize("name", [
    None, "", "in_flight", "ttl", "lost", "final", "run", "methods", "key",
    "lease", "key_time", "key_json", "hide_header", "fingerprint", "scope",
    "key_space", "max_request", "max_response"])
def test_a_refusal_is_cut_between_characters(server, name):
    """Half a character would be no JSON, and no answer at all."""
    long = ["a" * n + many * c for n in range(1, 5) for many in (25, 60)
            for c in ("\u00e9", "\u20ac", "\U0001f600")]
    with Client(server) as c:
        for text in long:
            route = {None: text, "": {text: "x"}}.get(name, {name: text})
            said = is_error(c.ask("/v1/route", {"route": route}), 422, "route")
            assert said.isprintable(), said


def test_a_path_that_is_no_text_is_answered(server):
    with Client(server) as c:
        for path in "/v1/x%ff", "/v1/" + 60 * "%c3%a9", "/v1/x" + 60 * "%c3%a9":
            c.send(path, b"{}\n")
            assert "There is no /v1/" in is_error(c.read(), 404, "not-found")


# ---- The realm --------------------------------------------------------------


def test_a_key_is_the_same_by_each_host_name(server):
    """A client's Host is its own choice."""
    def by(host, **more):
        return begin(c, "ignored", headers=[["Idempotency-Key", "k"],
                                            ["Host", host]], **more)

    def ask(host, **more):
        return c.ask("/v1/begin", {
            "id": new_id(), "method": "POST", "target": "/pay?a=1",
            "scope": "ann", "headers": [["Idempotency-Key", "k"],
                                        ["Host", host]], **more}, BODY)
    with Client(server) as c:
        is_own(end(c, ask("shop.test")[1]["token"]))
        for host in "www.shop.test", "SHOP.test:8080", "", "other":
            is_replay(ask(host))
        assert ask("shop.test", route={"realm": "other"})[1]["do"] == "run"


def test_the_deployer_says_the_realm(make):
    one = make("--realm", "shop.test")
    two = make(store=one.store)
    three = make("--realm", "shop.test", store=one.store)
    with Client(one) as c, Client(two) as d, Client(three) as e:
        is_own(end(c, run(c, "k")))
        assert begin(d, "k")[1]["do"] == "run"
        is_replay(begin(d, "k", route={"realm": "shop.test"}))
        is_replay(begin(e, "k"))


# ---- Limits -----------------------------------------------------------------


def test_time_limits_of_calls_make_no_routes(make):
    server = make("--defined-only")
    with Client(server) as c:
        for i in range(1100):
            assert call(c, "k%d" % i, run_ms=10000 + i)[1]["do"] == "run"
    server = make()
    with Client(server) as c:
        for i in range(1100):
            assert call(c, "k%d" % i, run_ms=10000 + i)[1]["do"] == "run"
        assert begin(c, "k", route={"ttl": "2h"})[1]["do"] == "run"


def test_calls_end_each_by_its_own_time(server):
    """The shortest was begun last."""
    with Client(server) as c:
        for i, ms in enumerate((600000, 3000, 2000, 600000, 1000)):
            call_run(c, "k%d" % i, run_ms=ms)
        for i in 4, 2, 1:
            eventually(lambda k="k%d" % i: call(c, k)[1]["do"] ==
                       "indeterminate")
        for i in 0, 3:
            says(call(c, "k%d" % i), "in-flight")


def test_routes_that_are_not_used_make_room(server):
    with Client(server) as c:
        token = run(c, "k", route={"ttl": "1h"})
        for i in range(1100):
            assert begin(c, "k", route={"ttl": "%ds" % (3601 + i)})[0] == 200
        is_own(end(c, token, route={"ttl": "1h"}))


def test_routes_that_are_all_in_use_are_bounded(server):
    with Client(server) as c:
        for i in range(1000):
            assert begin(c, "k%d" % i, route={
                "ttl": "%ds" % (3600 + i)})[1]["do"] == "run"
        assert "1000" in is_error(begin(c, "k", route={"ttl": "2h"}), 503, "busy")
        assert begin(c, "k0", route={"ttl": "3600s"})[0] == 200


def more_files(n):
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < n:
        pytest.skip("it needs %d open files" % n)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, n), hard))


def test_connections_without_the_token_do_not_keep_others_out(make, tmp_path):
    more_files(16384)
    (tmp_path / "t").write_text("s" * 40)
    (tmp_path / "t").chmod(0o600)
    server = make("--token-file", str(tmp_path / "t"), where="127.0.0.1:0")
    with contextlib.ExitStack() as stack:
        for _ in range(5000):
            sock = stack.enter_context(server.connect())
            sock.sendall(b"POST /v1/begin HTTP/1.1\r\nHost: x\r\n")
        with Client(server, "s" * 40) as c:
            is_own(end(c, run(c, "k")))


def test_a_connection_without_the_token_ends_and_one_with_it_stays(make, tmp_path):
    (tmp_path / "t").write_text("s" * 40)
    (tmp_path / "t").chmod(0o600)
    server = make("--token-file", str(tmp_path / "t"), where="127.0.0.1:0")
    with Client(server, "s" * 40) as c, Client(server) as silent, \
            Client(server, "wrong" * 8) as wrong:
        token = run(c, "k")
        is_error(begin(wrong, "k"), 401, "bearer")
        assert silent.sock.recv(1) == b""
        assert wrong.sock.recv(1) == b""
        is_own(end(c, token))


def test_answers_that_are_not_read_are_bounded(make):
    server = make("--buffers", "8m")
    route = {"max_response": "3m"}
    with Client(server) as c, contextlib.ExitStack() as stack:
        token = run(c, "big", route=route)
        is_own(end(c, token, body=b"x" * (3 << 20), route=route))
        before, held = server.rss_kib(), []
        for _ in range(40):
            d = stack.enter_context(Client(server))
            d.send("/v1/begin", json.dumps({
                "id": new_id(), "method": "POST", "target": "/pay?a=1",
                "scope": "ann", "route": route,
                "headers": [["Host", "x"], ["Idempotency-Key", "big"]]}).encode()
                + b"\n" + BODY)
            held.append(d)
            eventually(lambda: open_exchanges(server) == 0)
        got = [d.read()[0] for d in held[10:]]      # the others are not read
        assert got.count(503) > 20, got
        eventually(lambda: open_exchanges(server) == 0)
        assert server.rss_kib() - before < (
            400000 if "ASAN_OPTIONS" in os.environ else 40000)
        assert begin(c, "small")[1]["do"] == "run"


def test_a_message_that_stands_still_ends_its_connection(server):
    """Half a minute after it began, in both directions. One without a message
    stays."""
    body = b"x" * (1 << 20)
    with Client(server) as c, Client(server) as sends, Client(server) as reads:
        token = run(c, "k")
        is_own(end(c, token, body=body))
        sends.send("/v1/end", json.dumps({"token": token}).encode(),
                   size=1 << 20)
        reads.send("/v1/begin", json.dumps({
            "id": new_id(), "method": "POST", "target": "/pay?a=1",
            "scope": "ann", "headers": [["Idempotency-Key", "k"]]}).encode() +
            b"\n" + BODY)
        assert sends.sock.recv(1) == b""
        # Its first bytes are in the socket; the last one never comes.
        end_at = time.monotonic() + PATIENCE
        while buffered(server) and time.monotonic() < end_at:
            time.sleep(0.1)
        assert buffered(server) == 0
        with pytest.raises((AssertionError, EOFError, OSError)):
            reads.read()
        is_replay(begin(c, "k"), body)


def buffered(server):
    """What /metrics says of --buffers."""
    with server.connect() as sock:
        sock.sendall(b"GET /metrics HTTP/1.1\r\nHost: once\r\n"
                     b"Connection: close\r\n\r\n")
        data = b""
        while piece := sock.recv(65536):
            data += piece
    line, = [x for x in data.splitlines()
             if x.startswith(b"once_serve_buffered_bytes")]
    return int(line.split()[-1])


def test_an_expectation_is_refused_and_nothing_comes_before(server):
    """The page says that no 1xx is before an answer."""
    data = json.dumps({"id": new_id()}).encode() + b"\n"
    with server.connect() as sock:
        sock.settimeout(PATIENCE)
        sock.sendall(b"POST /v1/begin HTTP/1.1\r\nHost: x\r\nExpect: "
                     b"100-continue\r\nContent-Length: %d\r\n\r\n" % len(data))
        assert sock.recv(65536).startswith(b"HTTP/1.1 417 ")


# ---- A store that stands still ----------------------------------------------


@pytest.fixture(name="still")
def a_redis(tmp_path):
    """The URL of a Redis, and what sends it a signal."""
    if not shutil.which("redis-server"):
        pytest.skip("there is no redis-server")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with subprocess.Popen(
            ["redis-server", "--port", str(port), "--bind", "127.0.0.1",
             "--dir", str(tmp_path), "--appendonly", "yes", "--appendfsync",
             "always", "--save", ""], stdout=subprocess.DEVNULL) as process:
        try:
            url = "redis://127.0.0.1:%d" % port
            eventually(lambda: subprocess.run(
                [ONCE, "--store", url, "init"], capture_output=True, check=False,
                env=dict(os.environ, ONCE_AUDIT="off")).returncode == 0)
            yield url, process.send_signal
        finally:
            process.kill()


def test_a_begin_is_answered_while_its_store_stands_still(make, still):
    """As if the server were away, before its middleware stops waiting: a driver
    waits longer for its server. A repeat is answered so at once."""
    url, kill = still
    server = make(store=url)
    route = {"in_flight": "wait=500ms"}
    first, second = new_id(), new_id()
    with Client(server) as c:
        is_own(end(c, run(c, "before")))
        kill(signal.SIGSTOP)
        for again in {}, {"again": True}:
            is_error(begin(c, "k", first, route=route, **again), 503,
                     "store-unavailable")
            is_error(call(c, "k", second, wait_ms=500, **again), 503,
                     "store-unavailable")
        for token_id in first, second:
            says(c.ask("/v1/abandon", {"id": token_id}), "none")
        kill(signal.SIGCONT)
        eventually(lambda: begin(c, "after")[1]["do"] == "run")
        eventually(lambda: open_exchanges(server) == 1)
