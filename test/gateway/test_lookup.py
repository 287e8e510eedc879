# SPDX-License-Identifier: Apache-2.0
"""
What became of a request: `once_lookup` tells it to the caller who knows the
key, and `accept=` sends repeats there that are in flight. Whatever is asked,
nothing is claimed, changed or executed. The same stories on every store.
"""

import base64
import datetime
import json
import os
import threading

import pytest

from gateway import (Answer, Client, Drop, Hold, eventually, guarded, is_new,
                     is_problem, is_replay, settles)
from stores import STORES, a_world, new_store
from test_metrics import STATUS, samples, value

MEMBERS = ["state", "attempt", "since", "expires", "recorded_status", "reason",
           "location", "safe_new_key"]
OWN_KEY = object()


def lookup(path="/status", scope="$http_x_who", store="main", more=""):
    return """
        location %s {
            once_lookup %s wait=30s;
            once_scope %s;
            once_key_space realm;
            %s
        }""" % (path, store, scope, more)


def paid(more="", path="/pay/"):
    return guarded(path, "once_key_space realm;" + more, scope="$http_x_who")


ASKED = (paid("once_lease 1s; once_final 2xx 4xx; once_in_flight reject;") +
         paid("once_lease 1h;", "/slow/") +
         paid("once_in_flight accept=/status;", "/accept/") +
         paid("once_in_flight wait=1s accept=/status;", "/later/") +
         lookup())


@pytest.fixture(name="world", scope="module")
def the_world():
    with a_world() as world:
        yield world


@pytest.fixture(name="url", params=STORES)
def url_of(request, world, tmp_path):
    return new_store(world, request.param, tmp_path)


WHO = ("X-Who", "alice")


def post(case, **what):
    return case.post(headers=[WHO], **what)


def send_lookup(case, who="alice", query="", path="/status", method="GET",
                headers=(), key=OWN_KEY):
    lines = [("X-Who", who)] if who else []
    return case.send(method, path=path, query=query,
                     key=case.key if key is OWN_KEY else key,
                     headers=lines + list(headers))


def told(response):
    """The document of a lookup, with what holds for each of them."""
    assert response.status == 200, response
    return document(response)


def document(response):
    assert response.get("Content-Type") == "application/json", response
    assert response.get("Cache-Control") == "no-store", response
    assert response.get("ETag") is None, response
    assert response.get("Last-Modified") is None, response
    assert response.get("Idempotent-Replayed") is None, response
    body = json.loads(response.body)
    assert list(body) == MEMBERS, body
    assert body["safe_new_key"] is False, body
    return body


def ask(case, **how):
    return told(send_lookup(case, **how))


def state(case):
    return ask(case)["state"]


def is_about_now(text):
    at = datetime.datetime.fromisoformat(text.replace("Z", "+00:00"))
    apart = datetime.datetime.now(datetime.timezone.utc) - at
    return abs(apart.total_seconds()) < 600


def test_each_state_is_told_and_nothing_is_changed(make, url):
    site = make(ASKED, store=url)
    hold = Hold(Answer(201, b"made\n", [("Location", "/orders/7")]))
    c, lost, failed, freed = (site.case("/slow/", hold),
                              site.case("/pay/", Drop()),
                              site.case("/pay/", Answer(500, b"no\n")),
                              site.case("/pay/", Answer(429, b"no\n")))
    absent = ask(c)
    assert absent["state"] == "absent"
    assert all(absent[m] is None for m in MEMBERS[1:-1]), absent
    with c.start(headers=[WHO]) as owner:
        hold.wait()
        body = ask(c)
        assert body["state"] == "in-flight" and body["attempt"] == 1, body
        assert is_about_now(body["since"]) and body["expires"] is None, body
        is_problem(post(c), "in-flight")    # not one attempt more
        hold.go.set()
        first = owner.read()
    for _ in range(2):                      # also after hot replays
        body = ask(c)
        assert body["state"] == "completed", body
        assert body["recorded_status"] == 201, body
        assert body["location"] == "/orders/7" and body["reason"] is None, body
        assert is_about_now(body["since"]) and body["expires"], body
        is_replay(post(c), first)
    assert post(lost).status == 502
    body = ask(lost)
    assert body["state"] == "indeterminate" and body["reason"], body
    is_problem(post(lost), "outcome-unknown")
    post(failed)
    body = ask(failed)
    assert body["state"] == "completed" and body["recorded_status"] == 500
    assert post(failed).get("Idempotency-Status") == "new"
    assert failed.executions == 2
    post(freed)
    assert ask(freed)["state"] == "absent"
    assert [x.executions for x in (c, lost, freed)] == [1, 1, 1]
    assert [q.get("Idempotency-Attempt") for q in c.requests] == ["1"]


def test_a_caller_learns_of_no_key_but_its_own(make, url):
    site = make(ASKED, store=url)
    c = site.case("/pay/")
    is_new(post(c))
    assert ask(c)["state"] == "completed"
    assert ask(c, who="bob")["state"] == "absent"
    is_problem(send_lookup(c, who=None), "scope-missing")
    is_problem(send_lookup(c, key=None), "key-missing")
    is_problem(send_lookup(c, key="a, b"), "key-invalid")
    r = c.send("GET", path="/status",
               headers=[WHO, ("Idempotency-Key", "another")])
    is_problem(r, "key-invalid")
    assert c.executions == 1


def test_a_lookup_waits_only_while_it_is_in_flight(make, url):
    site = make(ASKED, store=url)
    hold = Hold()
    c = site.case("/slow/", hold)
    assert ask(c, query="wait=30s")["state"] == "absent"    # at once
    with c.start(headers=[WHO]) as owner:
        hold.wait()
        assert ask(c, query="wait=20ms")["state"] == "in-flight"
        assert ask(c, query="wait=soon")["state"] == "in-flight"
        with Client(site.gateway.port) as waiter:
            waiter.send(c.bytes(method="GET", path="/status", close=True,
                                query="a=1&wait=30s", headers=[WHO]))
            assert not waiter.has_bytes(0.3)
            hold.go.set()
            body = told(waiter.read("GET"))
        assert body["state"] == "completed", body
        is_new(owner.read())
    assert ask(c, query="wait=30s")["state"] == "completed"
    assert c.executions == 1


def test_a_repeat_in_flight_is_told_where_to_ask(make, url):
    site = make(ASKED, store=url)
    for prefix in ("/accept/", "/later/"):
        hold = Hold()
        c = site.case(prefix, hold)
        with c.start(headers=[WHO]) as owner:
            hold.wait()
            r = post(c)
            assert r.status == 202 and r.once == "in_flight", r
            assert r.get("Location") == "/status", r
            assert int(r.get("Retry-After")) >= 1, r
            body = document(r)
            assert body["state"] == "in-flight" and body["attempt"] == 1, body
            assert ask(c) == body
            is_problem(post(c, body=b"other"), "key-reused")
            hold.go.set()
            first = is_new(owner.read())
        r = post(c)
        is_replay(r, first)
        assert r.get("Location") is None
        assert c.executions == 1


def test_an_unknown_outcome_is_no_promise_to_come_and_ask(make, url):
    site = make(paid("once_lease 1s; once_in_flight accept=/status;") +
                lookup(), store=url)
    c = site.case("/pay/", Drop())
    assert post(c).status == 502
    is_problem(post(c), "outcome-unknown")
    assert ask(c)["state"] == "indeterminate"
    assert c.executions == 1


def test_head_gets_the_head_and_other_methods_nothing(make):
    site = make(ASKED)
    c = site.case("/pay/")
    is_new(post(c))
    whole, head = send_lookup(c), send_lookup(c, method="HEAD")
    assert head.status == 200 and head.body == b"", head
    assert head.get("Content-Length") == whole.get("Content-Length")
    assert head.get("Cache-Control") == "no-store"
    for method in ("POST", "PUT", "DELETE", "PATCH"):
        r = c.send(method, path="/status", headers=[WHO])
        assert r.status == 405 and r.get("Allow") == "GET, HEAD", r
    assert c.executions == 1


def test_conditions_and_ranges_get_the_whole_answer(make):
    site = make(ASKED)
    c = site.case("/pay/")
    is_new(post(c))
    for line in (("If-None-Match", "*"), ("If-Match", '"a"'),
                 ("If-Modified-Since", "Fri, 31 Dec 2100 00:00:00 GMT"),
                 ("If-Unmodified-Since", "Fri, 31 Dec 1999 00:00:00 GMT"),
                 ("Range", "bytes=0-1")):
        assert ask(c, headers=[line])["state"] == "completed"


@pytest.mark.nginx_only("the module keeps hot replays")
def test_each_lookup_asks_the_store(make):
    """Also while replays come from the worker's memory."""
    site = make(STATUS + paid() + lookup("/told"), workers=1)
    c = site.case("/pay/")
    first = is_new(post(c))
    is_replay(post(c), first)
    before = value(samples(site), "once_store_operations_total")
    for _ in range(20):
        assert ask(c, path="/told")["state"] == "completed"
    eventually(lambda: value(
        samples(site), "once_store_operations_total") >= before + 20)
    assert value(samples(site), "once_requests_total",
                 status="new") == 1


def test_access_control_comes_first(make, tmp_path):
    users = tmp_path / "users"
    users.write_text("alice:{PLAIN}secret\n")
    auth = 'auth_basic pay; auth_basic_user_file %s;' % users
    site = make(guarded("/pay/", "once_key_space realm;" + auth,
                        scope="$remote_user") +
                lookup(scope="$remote_user", more=auth))
    c = site.case("/pay/")
    mine = [("Authorization", "Basic " + base64.b64encode(
        b"alice:secret").decode())]
    is_new(c.post(headers=mine))
    r = c.send("GET", path="/status")
    assert r.status == 401 and b"completed" not in r.body, r
    assert told(c.send("GET", path="/status",
                       headers=mine))["state"] == "completed"


def test_a_lease_that_ended_is_in_flight_until_it_was_seen(make, tmp_path):
    """Then it is indeterminate, and never absent."""
    site = make(paid("once_lease 1s;") + lookup(),
                store="sqlite:%s/s.db" % tmp_path)
    hold = Hold()
    c = site.case("/pay/", hold)
    with c.start(headers=[WHO]):
        hold.wait()
        site.gateway.kill_all()
    hold.go.set()
    site.gateway.start()

    def seen():
        now = state(c)
        assert now in ("in-flight", "indeterminate"), now
        return now == "indeterminate"
    eventually(seen)
    is_problem(settles(c, "outcome-unknown", headers=[WHO]), "outcome-unknown")


@pytest.mark.nginx_only("directives of nginx")
def test_a_lookup_inherits_no_guard_and_covers_its_own_blocks(make):
    site = make("""
        once main;
        once_scope $http_x_who;
        once_key_space realm;
        location /pay/ { proxy_pass http://origin; }
        location /status {
            once_lookup main wait=5s;
            limit_except GET { deny all; }
            if ($http_x_if) { set $a 1; }
        }""")
    c = site.case("/pay/")
    is_new(post(c))
    assert ask(c, headers=[("X-If", "1")])["state"] == "completed"
    r = c.send("POST", path="/status", headers=[WHO])
    assert r.status == 403, r
    assert c.executions == 1


@pytest.mark.nginx_only("error pages of nginx")
@pytest.mark.parametrize("lead", ["error_page 503 /status;",
                                  "try_files /none /status;"])
def test_no_guarded_request_is_led_into_a_lookup(make, lead):
    site = make(paid(lead + " proxy_intercept_errors on;") + lookup(),
                allow=[r"was led into .*once_lookup.* was refused"])
    c = site.case("/pay/", Answer(503, b"no\n"))
    first = post(c)
    assert first.status in (500, 503), first
    assert c.executions == (1 if "error_page" in lead else 0)
    assert c.send("GET", path="/open/x").status != 500


@pytest.mark.nginx_only("graceful exit")
@pytest.mark.parametrize("how", ["quit", "reload"])
def test_a_worker_that_is_told_to_quit_ends_its_lookups(make, how):
    """The wait is ten minutes, so that nothing but the signal ends it."""
    site = make(paid("once_lease 1h;") + """
        location /status {
            once_lookup main wait=10m;
            once_scope $http_x_who;
            once_key_space realm;
        }""")
    hold = Hold()
    c = site.case("/pay/", hold)
    with c.start(headers=[WHO]) as owner:
        hold.wait()
        with Client(site.gateway.port) as waiter:
            waiter.send(c.bytes(method="GET", path="/status", query="wait=10m",
                                headers=[WHO]))
            assert not waiter.has_bytes(0.3)
            getattr(site.gateway, how)() if how == "reload" else \
                threading.Thread(target=site.gateway.quit).start()
            assert told(waiter.read("GET"))["state"] == "in-flight"
            hold.go.set()
        is_new(owner.read())
    assert c.executions == 1


def test_a_client_that_leaves_while_it_waits_holds_nothing(make):
    site = make(ASKED)
    hold = Hold()
    c = site.case("/slow/", hold)
    with c.start(headers=[WHO]) as owner:
        hold.wait()
        for _ in range(5):
            with Client(site.gateway.port) as waiter:
                waiter.send(c.bytes(method="GET", path="/status",
                                    query="wait=30s", headers=[WHO]))
                assert not waiter.has_bytes(0.05)
        assert state(c) == "in-flight"
        hold.go.set()
        is_new(owner.read())
    assert state(c) == "completed"
    assert c.executions == 1
