# SPDX-License-Identifier: Apache-2.0
"""
http.md section 6.1: a dry run lets everything pass, and says in the access log
what would have become of each request, and how long after the first it came.
"""

import contextlib
import re
import subprocess

import pytest

from gateway import (BUILD, MARK, ROOT, Answer, Client, Drop, Hold, Site,
                     eventually, guarded, is_new, is_replay, request_bytes)
from stores import STORES, a_world, new_store

DRY = "once_dry_run on;"

SERVER = (
    guarded("/dry/", DRY) +
    guarded("/once/", DRY + "once_repeat refuse;") +
    guarded("/key/", DRY + "once_key_required on;") +
    guarded("/timed/", DRY + "once_key_time uuid7;") +
    guarded("/json/", DRY + "once_key_json /id; client_max_body_size 1m;") +
    guarded("/needed/", DRY + "once_key_json /id; once_key_required on;") +
    guarded("/small/", DRY + "once_max_response 1k;") +
    guarded("/pay/"))

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


OTHER = b'{"amount": 6}'
OLD = "01890000-0000-7000-8000-000000000001"    # of July 2023


def told(c, n):
    """The words of all `n` requests, as the log has them."""
    def look():
        lines = [line for line in c.site.gateway.log("access.log").splitlines()
                 if " %s " % c.path in line]
        return lines if len(lines) >= n else None
    lines = eventually(look)
    assert len(lines) == n, lines
    return [re.search(r" would=(\S+) apart=(\S+) ", line).groups()
            for line in lines]


def is_passed_on(r, body):
    assert (r.status, r.body, r.code()) == (201, body, None), r
    assert not r.replayed


def is_apart(text, least=0):
    assert re.fullmatch(r"\d+", text) and least <= int(text) < 3600, text


def test_a_repeat_that_would_have_been_replayed_runs_again(site):
    c = site.case("/dry/", Answer(201, b"one\n"), Answer(201, b"two\n"))
    is_passed_on(c.post(), b"one\n")
    is_passed_on(c.post(), b"two\n")
    is_passed_on(c.post(), b"two\n")
    assert c.executions == 3
    words = told(c, 3)
    assert words[0] == ("run", "-")
    for word, apart in words[1:]:
        assert word == "run_again"
        is_apart(apart)


def test_another_request_under_the_key_is_a_conflict(site):
    c = site.case("/dry/", Answer(201, b"one\n"))
    c.post()
    is_passed_on(c.post(body=OTHER), b"one\n")
    (_, (word, apart)) = told(c, 2)
    assert (word, c.executions) == ("conflict", 2)
    is_apart(apart)


def test_a_repeat_while_the_first_runs_is_in_flight(site):
    hold = Hold()
    c = site.case("/dry/", hold, Answer(201, b"two\n"))
    with c.start() as owner:
        hold.wait()
        is_passed_on(c.post(), b"two\n")
        assert told(c, 1)[0][0] == "in_flight"
        is_apart(told(c, 1)[0][1])
        hold.go.set()
        assert owner.read().status == 201
    assert told(c, 2)[1] == ("run", "-")
    assert c.executions == 2


def test_a_repeat_of_an_unknown_outcome_is_unknown(site):
    c = site.case("/dry/", Drop(), Answer(201, b"two\n"))
    with c.start(close=True) as client, contextlib.suppress(EOFError, OSError,
                                                            AssertionError):
        client.read()
    told(c, 1)                          # its end is recorded before the log
    is_passed_on(c.post(), b"two\n")
    (_, (word, apart)) = told(c, 2)
    assert (word, c.executions) == ("unknown", 2)
    is_apart(apart)


def test_what_would_be_refused_says_refuse(site):
    c = site.case("/once/", Answer(201, b"one\n"))
    c.post()
    told(c, 1)      # a server of threads may log it late
    is_passed_on(c.post(), b"one\n")
    (_, (word, apart)) = told(c, 2)
    assert (word, c.executions) == ("refuse", 2)
    is_apart(apart)


def test_a_response_that_was_not_kept_says_refuse(site):
    c = site.case("/small/", Answer(201, b"x" * 2000))
    c.post()
    told(c, 1)
    c.post()
    (_, (word, apart)) = told(c, 2)
    assert (word, c.executions) == ("refuse", 2)
    is_apart(apart)


@pytest.mark.parametrize("prefix, key", [
    ("/key/", None), ("/dry/", "a,b"), ("/timed/", OLD)])
def test_what_has_no_first_request_has_no_time(site, prefix, key):
    c = site.case(prefix, Answer(201, b"one\n"))
    is_passed_on(c.post(key=key), b"one\n")
    assert told(c, 1) == [("refuse", "-")]
    assert c.executions == 1


BODIES = {
    "a_blank": b'{"id": "a b"}', "no_text": b'{"id": [1]}', "empty": b'{"id": ""}',
    "cut": b'{"id": "a"', "twice": b'{"id": "a", "id": "a"}', "none": b"",
    "too_large": b'{"id": "a", "more": "%s"}' % (b"x" * 70000)}


@pytest.mark.parametrize("body", BODIES.values(), ids=BODIES.keys())
def test_a_key_in_the_body_that_would_be_refused(site, body):
    c = site.case("/json/", Answer(201, b"one\n"))
    is_passed_on(c.post(body=body), b"one\n")
    assert told(c, 1) == [("refuse", "-")]
    assert c.executions == 1


def test_no_key_in_a_body_that_needs_one(site):
    c = site.case("/needed/", Answer(201, b"one\n"))
    is_passed_on(c.post(body=b'{"name": "a"}'), b"one\n")
    assert told(c, 1) == [("refuse", "-")]
    c = site.case("/json/", Answer(201, b"one\n"))
    is_passed_on(c.post(body=b'{"name": "a"}'), b"one\n")
    assert told(c, 1) == [("-", "-")]


def test_outside_of_a_dry_run_nothing_is_said(site):
    c = site.case("/pay/")
    first = is_new(c.post())
    is_replay(c.post(), first)
    assert told(c, 2) == [("-", "-")] * 2
    c = site.case("/dry/")
    c.post(key=None)                    # not guarded
    assert told(c, 1) == [("-", "-")]


def test_a_store_that_fails_is_a_refusal_or_a_run(make):
    site = make(
        guarded("/deny/", DRY, once="away") +
        guarded("/pass/", DRY + "once_lost takeover;"
                "once_store_failure bypass;", once="away"),
        store="memory", workers=1,
        lines="once_store away faulty:fail=claim:1-*@memory:;")
    for prefix, word in (("/deny/", "refuse"), ("/pass/", "run")):
        c = site.case(prefix, Answer(201, b"one\n"))
        assert c.post().status == 201
        assert (told(c, 1), c.executions) == ([(word, "-")], 1)


def test_the_time_is_since_the_first_and_not_the_last(site):
    c = site.case("/dry/", Answer(201, b"one\n"))
    c.post()
    eventually(lambda: c.post() and int(told(c, c.executions)[-1][1]) >= 2)
    assert [word for word, _ in told(c, c.executions)[1:]] == \
        ["run_again"] * (c.executions - 1)


STATUS = "location = /status { once_status; }"


def page(site, format_):
    with Client(site.gateway.port) as client:
        client.send(request_bytes("GET", "/status?format=" + format_,
                                  close=True))
        return client.read("GET").body.decode()


@pytest.mark.nginx_only("the page and the logs are the module's")
@pytest.mark.parametrize("store", ["memory", "sqlite"])
def test_words_are_counted_logged_and_reported(make, store):
    log = ROOT / "nginx" / "snippets" / "once-log.conf"
    site = make(guarded("/dry/", DRY + "once_route charges;") + STATUS,
                store=store, workers=1,
                http="include %s; access_log json.log once_json;" % log)
    c = site.case("/dry/", Answer(201, b"one\n"))
    for body in (None, None, None, OTHER):
        c.post(body=body)
    c.post(key="a,b")
    counted = {"run": 1, "run_again": 2, "conflict": 1, "refuse": 1}
    text = eventually(lambda: (
        lambda t: t if 'would="refuse"} 1' in t else None)(
            page(site, "prometheus")))
    for word in ("run", "replay", "conflict", "in_flight", "refuse", "unknown",
                 "run_again"):
        assert 'once_would_total{store="main",route="charges",would="%s"} %d' \
            % (word, counted.get(word, 0)) in text
    assert '"would":{"run":1,"replay":0,"conflict":1,"in_flight":0,' \
        '"refuse":1,"unknown":0,"run_again":2}' in page(site, "json")
    path = site.gateway.folder / "json.log"
    eventually(lambda: path.read_text("latin-1").count('"once_would":"r') == 4)
    assert MARK not in path.read_text("latin-1")
    out = subprocess.run([BUILD / "once", "report", path], check=True,
                         capture_output=True, text=True).stdout
    assert "duplicates\t2\n" in out
    assert re.search(r"(?m)^2\t5\t1\t1\t\d+\tcharges$", out), out
