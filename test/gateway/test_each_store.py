# SPDX-License-Identifier: Apache-2.0
"""
What a location decides (which status is an outcome, what a repeat is compared
by, how long it is kept, who is asked), told from what each store has kept. One
short story for each rule; the rules themselves have files of their own.
"""

import pytest

from gateway import (TARGET, Answer, Drop, Site, eventually, guarded, is_new, is_problem,
                     is_replay)
from probes import Ledger, lose, probing
from stores import STORES, a_world, new_store

PAGE = b"<h1>Bad Gateway</h1>\n"

SERVER = (
    # Services in other languages do not start with a route that asks.
    (probing("once_lease 1s;") if TARGET in ("nginx", "guarded") else "") +
    guarded("/rule/") +
    guarded("/path/", "once_key_space path;") +
    guarded("/json/", "once_fingerprint json but=/sent_at;") +
    guarded("/told/", "once_repeat refuse;") +
    guarded("/brief/", "once_ttl 1h failure=1s; once_lease 1s;"))


@pytest.fixture(name="world", scope="module")
def the_world():
    with a_world() as world:
        yield world


@pytest.fixture(name="site", scope="module", params=STORES)
def on_each_store(request, world, tmp_path_factory):
    folder = tmp_path_factory.mktemp("site")
    it = Site(folder, SERVER, new_store(world, request.param, folder))
    try:
        yield it.start()
    finally:
        it.close()


@pytest.mark.parametrize("status", [502, 504])
def test_a_gateways_error_is_no_outcome(site, status):
    c = site.case("/rule/", Answer(status, PAGE), Answer(201))
    is_problem(c.post(), "outcome-unknown", status)
    body = is_problem(c.post(), "outcome-unknown")
    assert (body["state"], c.executions) == ("indeterminate", 1), body


@pytest.mark.parametrize("status", [401, 421, 429])
def test_a_status_that_frees_the_key_does(site, status):
    c = site.case("/rule/", Answer(status, b"no\n"), Answer(201))
    assert c.post().status == status
    first = is_new(c.post(body=b"another request"))
    is_replay(c.post(body=b"another request"), first)
    assert c.executions == 2


def test_the_path_is_of_the_request_or_of_the_key(site):
    c, other = site.case("/rule/"), site.case("/rule/")
    first = is_new(c.post())
    is_problem(other.post(key=c.key), "key-reused")
    is_problem(c.send("PATCH"), "key-reused")
    is_replay(c.post(), first)
    assert (c.executions, other.executions) == (1, 0)
    c, other = site.case("/path/"), site.case("/path/")
    first, second = is_new(c.post()), is_new(other.post(key=c.key))
    is_replay(c.post(), first)
    is_replay(other.post(key=c.key), second)


def test_json_is_compared_by_its_meaning(site):
    c = site.case("/json/")
    kind = [("Content-Type", "application/json")]
    first = is_new(c.post(headers=kind, body=b'{"a": 10, "sent_at": 1}'))
    is_replay(c.post(headers=kind, body=b'{"sent_at":"b","a":1e1}'), first)
    is_problem(c.post(headers=kind, body=b'{"sent_at":1,"a":11}'), "key-reused")
    assert c.executions == 1


def test_a_repeat_is_refused_and_named_what_it_is(site):
    c = site.case("/told/", Answer(402, b"no\n"))
    is_new(c.post(), 402, b"no\n")
    body = is_problem(c.post(), "already-done")
    assert (body["recorded_status"], body["state"]) == (402, "completed"), body
    assert c.executions == 1


def test_a_failure_is_forgotten_earlier_and_a_success_is_not(site):
    fine = site.case("/brief/", Answer(200, b"fine\n"))
    kept = is_new(fine.post(), 200, b"fine\n")
    c = site.case("/brief/", Answer(503, b"no\n"), Answer(201))
    first = is_new(c.post(), 503, b"no\n")
    is_replay(c.post(), first)
    is_new(eventually(lambda: (lambda r: r.status == 201 and r)(c.post())))
    is_replay(fine.post(), kept)
    assert (c.executions, fine.executions) == (2, 1)


def test_what_is_unknown_stays_so_until_the_service_knows(site):
    c = site.case("/rule/", Drop(), Answer(201))
    is_problem(c.post(), "outcome-unknown", 502)
    is_problem(c.post(), "outcome-unknown")
    assert c.executions == 1
    ledger = Ledger(site)
    c = lose(site)
    first = c.post()
    assert (first.status, first.body, first.once) == \
        (201, b"charged\n", "replayed"), first
    is_replay(c.post(), first)
    assert (c.executions, ledger.asked) == (1, 1)


@pytest.mark.skipif(TARGET == "nginx", reason="nginx limits it by itself")
def test_a_long_body_that_nobody_guards_arrives_whole(site):
    c = site.case("/rule/")
    body = bytes(range(256)) * 12000
    assert c.post(key=None, body=body).status == 201
    assert c.requests[-1].body == body
