# SPDX-License-Identifier: Apache-2.0
"""
`once_probe`: a repeat of a request whose outcome is unknown asks the service
what became of it. What was applied is recorded and replayed; anything else
leaves it unknown, and nothing is ever executed a second time.
"""

import json
import os
import subprocess
import threading

import pytest

import gateway
from gateway import (Answer, Hold, Raw, Reset, Silent, eventually, is_new,
                     is_problem, is_replay, settles)
from probes import PATH, Ledger, known, lose, probing, resolved, silent_about
from test_config import check, refused

import servers  # in test/lib, whose path gateway.py has set

SERVER = probing("once_lease 1s; once_max_response 1k;",
                 "proxy_read_timeout 1s;")



def operate(folder, site, command, case, *words):
    """What an operator does with a record, by the program `once`."""
    store = "sqlite:%s" % site.db

    def run(*words):
        return subprocess.run(
            [gateway.BUILD / "once", "--store", store, *words], text=True,
            env=dict(os.environ, ONCE_AUDIT=str(folder / "audit.jsonl")),
            capture_output=True, check=True, timeout=gateway.PATIENCE).stdout

    name = [json.loads(line)["name"] for line in run("ls", "--json").splitlines()
            if case.path in line][0]
    fence = str(json.loads(run("show", name, "--json"))["fence"])
    return run(command, name, "--fence", fence, *words)


FORGED = [("Idempotency-Probe", "1"), ("Idempotency-Record", "0" * 64),
          ("Idempotency-Recorded-Status", "200")]


def test_what_was_applied_is_recorded_and_replayed(site):
    ledger = Ledger(site, lambda r: known(r, body=b"charged\n", more=[
        ("X-Charge", "7"), ("Set-Cookie", "a=b"), ("Content-Type", "a/b")]))
    c = lose(site, headers=FORGED + [("X-Own", "kept"),
                                     ("If-None-Match", '"x"')])
    first = c.post(headers=FORGED + [("X-Own", "kept"), ("Range", "bytes=0-1"),
                                     ("If-None-Match", '"x"'),
                                     ("Expect", "100-continue")])
    assert (first.status, first.body) == (201, b"charged\n"), first
    assert first.replayed and first.once == "replayed"
    assert first.get("X-Charge") == "7"
    assert first.get("Content-Type") == "a/b"
    assert first.get("Set-Cookie") is None
    assert not any(first.all(name) for name, _ in FORGED)
    is_replay(c.post(), first)
    assert c.executions == 1 and ledger.asked == 1


@pytest.mark.nginx_only("the guard does not make the question")
def test_the_question_has_the_repeats_headers_and_no_body(site):
    ledger = Ledger(site)
    headers = FORGED + [("X-Own", "kept"), ("Range", "bytes=0-1"),
                        ("If-None-Match", '"x"'), ("Content-Language", "de")]
    c = lose(site, headers=headers, chunked=True)
    first = c.post(headers=headers, chunked=True)
    assert first.replayed
    sent, asked = c.requests[0], ledger.requests[0]
    assert (asked.method, asked.target, asked.body) == ("GET", PATH, b"")
    assert asked.get("Idempotency-Key") == c.key
    record = asked.get("Idempotency-Record")
    assert len(record) == 64 and record == sent.get("Idempotency-Record")
    assert asked.get("Idempotency-Attempt") == "1"
    assert asked.get("Idempotency-Probe") == "1"
    assert asked.get("X-Own") == "kept"
    assert sent.get("Idempotency-Probe") is None
    assert sent.get("Idempotency-Recorded-Status") is None
    for name in ("Content-Length", "Transfer-Encoding", "Content-Type",
                 "Content-Language", "Expect", "Range", "If-None-Match"):
        assert asked.get(name) is None, name


@pytest.mark.parametrize("status, body, kept", [
    (422, b"no\n", b"no\n"), (204, b"nothing of this", b""),
    (200, b"", b"")])
def test_any_status_may_have_been_the_outcome(site, status, body, kept):
    ledger = Ledger(site, lambda r: known(r, status, body))
    c = lose(site)
    first = c.post()
    assert first.replayed and (first.status, first.body) == (status, kept)
    is_replay(c.post(), first)
    assert c.executions == 1 and ledger.asked == 1


def test_a_result_that_is_too_large_is_not_kept(site):
    Ledger(site, lambda r: known(r, body=b"large" * 1000))
    c = lose(site)
    is_problem(c.post(), "response-unavailable")
    is_problem(c.post(), "response-unavailable")
    assert c.executions == 1


def other(record):
    return ("0" if record[0] != "0" else "1") + record[1:]


def cut(request):
    data = known(request).data
    return Raw(data[:-3])


def unended(request):
    return Raw(b"".join(
        line for line in known(request).data.splitlines(keepends=True)
        if not line.startswith(b"Content-Length")))


NOT_ENOUGH = {
    "not_applied": silent_about,
    "unknown": lambda r: known(r, outcome="unknown"),
    "no word": lambda r: known(r, outcome=None),
    "created": lambda r: known(r, http=201),
    "not found": lambda r: known(r, http=404),
    "another record": lambda r: known(
        r, record=other(r.get("Idempotency-Record"))),
    "no record": lambda r: known(r, record=None),
    "two records": lambda r: known(r, more=[
        ("Idempotency-Record", other(r.get("Idempotency-Record")))]),
    "no status": lambda r: known(r, recorded_status=None),
    "bad status": lambda r: known(r, recorded_status="99"),
    "cut": cut,
    "without an end": unended,
    "reset": lambda r: Reset(),
    "silent": lambda r: Silent(),
    "redirected": lambda r: known(r, more=[
        ("X-Accel-Redirect", "/open/page")]),
    "not HTTP": lambda r: Raw(b"what?\r\n\r\n"),
}


@pytest.mark.nginx_only("what came is judged by src/calls/http for both")
def test_anything_but_applied_leaves_it_unknown(site):
    ledger = Ledger(site)
    cases = []
    for asked, (name, says) in enumerate(NOT_ENOUGH.items()):
        ledger.says = says
        c = lose(site)
        r = c.post()
        assert r.code() == "outcome-unknown", (name, r)
        is_problem(r, "outcome-unknown")
        assert ledger.asked == asked + 1, name
        cases.append(c)
    # Later it may know better.
    ledger.says = known
    for c in cases:
        first = resolved(c)
        assert (first.status, first.body) == (201, b"charged\n")
        assert c.executions == 1


def test_not_within_a_second_of_the_last_question(make):
    site = make(probing("once_lease 1s;"), workers=1)
    ledger = Ledger(site, silent_about)
    c = lose(site)
    is_problem(c.post(), "outcome-unknown")
    is_problem(c.post(), "outcome-unknown")
    assert ledger.asked == 1


def test_only_what_is_unknown_is_asked_about(site):
    ledger = Ledger(site)
    c = site.case("/pay/", Answer())
    first = is_new(c.post())
    is_replay(c.post(), first)
    is_problem(c.post(body=b"another"), "key-reused")
    hold = Hold()
    c = site.case("/pay/", hold)
    client = c.start()
    hold.wait()
    is_problem(c.post(), "in-flight")
    hold.go.set()
    is_new(client.read())
    lost = lose(site)
    is_problem(lost.post(body=b"another"), "key-reused")
    assert ledger.asked == 0


def test_repeats_that_race_get_one_result(site):
    """Each answer has other bytes; what is recorded first is everybody's."""
    count = [0]

    def counted(request):
        count[0] += 1
        return known(request, body=b"result %d\n" % count[0])

    Ledger(site, counted)
    c = lose(site)
    answers = []
    threads = [threading.Thread(target=lambda: answers.append(c.post()))
               for _ in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(gateway.PATIENCE)
    told = [r for r in answers if r.replayed]
    assert told and len(answers) == 12
    for r in answers:
        if not r.replayed:
            is_problem(r, "outcome-unknown")
    assert {r.body for r in told} == {resolved(c).body}
    assert c.executions == 1


def test_an_answer_about_a_record_that_was_forgotten_decides_nothing(
        make, tmp_path):
    """While it is asked, an operator decides, the ttl ends, the key is new,
    and the second request is lost, too. Its outcome is another one."""
    site = make(probing("once_lease 100ms; once_ttl 1s;"), workers=1)
    hold = Hold()
    ledger = Ledger(site, lambda r: hold)
    c = lose(site)
    client = c.start()
    hold.wait()
    hold.then = known(ledger.requests[0])
    ledger.says = silent_about
    operate(tmp_path, site, "resolve", c, "--applied", "--keep", "1s",
            "--why", "seen")
    eventually(lambda: c.post().status == 502)
    hold.go.set()
    answer = client.read()
    is_problem(answer, "outcome-unknown")
    assert ledger.asked == 1 and c.executions == 2


def test_one_question_at_a_time(make):
    site = make(probing("once_lease 1s;"), workers=1)
    hold = Hold()
    ledger = Ledger(site, lambda r: hold)
    c = lose(site)
    client = c.start()
    hold.wait()
    is_problem(c.post(), "outcome-unknown")
    assert ledger.asked == 1
    hold.then = known(ledger.requests[0])
    hold.go.set()
    assert client.read().replayed
    assert c.post().replayed and ledger.asked == 1 and c.executions == 1


@pytest.mark.nginx_only("nginx ends the question")
def test_a_client_that_leaves_ends_the_question(make):
    site = make(probing("once_lease 1s;"), workers=1)
    hold = Hold()
    ledger = Ledger(site, lambda r: hold)
    c = lose(site)
    client = c.start()
    hold.wait()
    client.hang_up()
    assert hold.conn.peer_gone(gateway.PATIENCE)
    hold.then = known(ledger.requests[0])
    hold.go.set()
    ledger.says = silent_about
    is_problem(c.post(), "outcome-unknown")
    ledger.says = known
    assert resolved(c).body == b"charged\n"
    assert c.executions == 1


def test_a_gateway_that_dies_while_it_asks(make):
    site = make(probing("once_lease 1s;"), workers=1,
                allow=[r"exited on signal 9"])
    hold = Hold()
    ledger = Ledger(site, lambda r: hold)
    c = lose(site)
    client = c.start()
    hold.wait()
    site.gateway.kill_all()
    client.hang_up()
    hold.go.set()
    ledger.says = known
    site.gateway.start()
    assert resolved(c).body == b"charged\n"
    assert c.executions == 1 and ledger.asked == 2


def test_a_service_that_was_killed_and_comes_back(make):
    """Its connection is refused at first: nothing is known, nothing done."""
    site = make(probing("once_lease 1s;", "proxy_pass http://UPSTREAM1;")
                .replace("proxy_pass http://origin;\n        "
                         "proxy_http_version 1.1;\n    }", "}"),
                upstreams=2, listen=False, workers=1)
    c = lose(site)
    is_problem(c.post(), "outcome-unknown")
    ledger = Ledger(site)
    site.upstreams[1].cases["c0"] = ledger
    site.upstreams[1].listen()
    assert resolved(c).body == b"charged\n"
    assert c.executions == 1


@pytest.mark.nginx_only("HTTP/2, caches and the page are nginx's")
def test_over_http2_and_never_from_a_cache(make):
    site = make(probing(
        "once_lease 1s; once_route pay;",
        "proxy_cache zone; proxy_cache_valid any 1h; proxy_cache_key x;") +
        "location /status { once_status; }",
        lines="proxy_cache_path FOLDER/cache keys_zone=zone:1m;"
              "log_format probe '$uri $once_probe';"
              "access_log probe.log probe;", workers=1)
    ledger = Ledger(site)
    cases = [lose(site, body=b'{"amount": 5}') for _ in range(2)]
    for c in cases:
        assert c.h2().replayed
        assert c.executions == 1
    assert ledger.asked == 2
    ledger.says = silent_about
    is_problem(lose(site).post(), "outcome-unknown")
    with gateway.Client(site.gateway.port) as client:
        client.send(gateway.request_bytes(
            "GET", "/status?format=prometheus", close=True))
        page = client.read("GET").body.decode()
    for answer, n in (("applied", 2), ("not_applied", 1), ("silent", 0)):
        assert 'once_probes_total{store="main",route="pay",answer="%s"} %d' \
            % (answer, n) in page
    eventually(lambda: "%s applied\n" % cases[0].path in
               site.gateway.log("probe.log"))
    assert site.gateway.log("error.log").count(
        "once: outcome known by a probe: record ") == 2


def with_target(target):
    """The guarded location, and this one in the place of the probe's."""
    return probing("once_lease 1s;").split("location = ")[0] + \
        target.replace("PATH", PATH)


@pytest.mark.nginx_only("locations are nginx's")
@pytest.mark.parametrize("wrong", [
    # There the method is the main request's: it would be executed.
    "location = PATH { internal; once off; proxy_pass http://origin; "
    "if ($request_method) { fastcgi_pass UPSTREAM0; } }",
    "location = PATH { internal; once off; proxy_pass http://origin; "
    "proxy_method $request_method; }"], ids=["fastcgi", "method"])
def test_nothing_is_asked_through_a_location_that_is_no_such(make, wrong):
    site = make(with_target(wrong), workers=1, allow=["once_probe"])
    ledger = Ledger(site)
    c = lose(site)
    settles(c, "outcome-unknown")
    assert ledger.asked == 0 and c.executions == 1
    assert "nothing was asked" in site.gateway.log("error.log")


RIGHT = "{ internal; proxy_pass http://origin; }"


@pytest.mark.nginx_only("locations are nginx's")
@pytest.mark.parametrize("wrong", [
    "", "location = PATH { once off; proxy_pass http://origin; }",
    "location = PATH { internal; once main; once_scope off; "
    "proxy_pass http://origin; }",
    "location = PATH { internal; once off; return 200 x; }",
    "location = PATH { internal; once off; }",
    "location = PATH { internal; once off; fastcgi_pass UPSTREAM0; }",
    "location = PATH/more " + RIGHT, "location ~ ^/as " + RIGHT +
    " location PATH/ { root /tmp; } location ^~ PATH { root /tmp; }",
    "location / " + RIGHT + " location PATH { location ~ . { root /tmp; } }",
    "location @ask " + RIGHT])
def test_a_probe_that_leads_nowhere_is_refused(tmp_path, wrong):
    refused(tmp_path, with_target(wrong), "once_probe %s" % PATH, "internal")


@pytest.mark.nginx_only("locations are nginx's")
@pytest.mark.parametrize("right", [
    "location = PATH " + RIGHT, "location / " + RIGHT, "location ~ ^/as " + RIGHT,
    "location ~* ^/AS " + RIGHT + " location PATH { root /tmp; }",
    "location / { root /tmp; location ~ . " + RIGHT + " }",
    "location /a { root /tmp; location PATH " + RIGHT + " } "
    "location = /a { root /tmp; } location /b { root /tmp; }"])
def test_a_probe_is_looked_up_as_nginx_does(tmp_path, right):
    code, said = check(tmp_path, with_target(right))
    assert code == 0, said


def two_gateways(make, url):
    """One store, two gateways, each with a service that it asks."""
    server = probing("once_lease 1s;")
    return [make(server, store=url, workers=1) for _ in range(2)]


@pytest.fixture(name="world")
def the_world():
    with servers.World() as world:
        yield world


@pytest.mark.parametrize("kind", ["sqlite", "journal", "redis", "postgres"])
def test_two_gateways_that_ask_at_once_record_one_result(
        make, world, tmp_path, kind):
    try:
        url = "%s:%s" % (kind, tmp_path / "shared") \
            if kind in ("sqlite", "journal") else \
            servers.Redis(world).start().url() if kind == "redis" else \
            servers.Postgres(world).init().start().furnish().url()
    except servers.Missing as missing:
        pytest.skip(str(missing))
    one_result(two_gateways(make, url))


def one_result(sites):
    c = lose(sites[0])
    holds, clients = [Hold(), Hold()], []
    for site, hold in zip(sites, holds):
        ledger = Ledger(site, lambda r, hold=hold: hold)
        c.site = site
        clients.append(c.start())
        hold.wait()
        hold.then = known(ledger.requests[0],
                          body=b"result %d\n" % len(clients))
    for hold in holds:
        hold.go.set()
    answers = [client.read() for client in clients]
    assert all(r.replayed for r in answers), answers
    assert answers[0].body == answers[1].body == c.post().body
    assert c.executions == 1
