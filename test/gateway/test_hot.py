# SPDX-License-Identifier: Apache-2.0
"""
Hot replays: a worker answers from its own memory what its store has replayed a
moment ago (src/calls/engine/cache.h). Nobody can tell by the answer; the store's
counter of operations tells whether it was asked. Ages are waited for with the
real clock, and only towards the safe side: something must not be there any more.
"""

import os
import struct
import subprocess
import time

import pytest

from gateway import (ROOT, Answer, Client, Hold, Locked, Raw, eventually,
                     guarded, is_new, is_problem, is_replay, request_bytes)
from storelist import LOCAL
from test_metrics import STATUS, samples, value

pytestmark = pytest.mark.nginx_only("the module keeps them")

ONCE = ROOT / "build" / "once"

STORES = ["memory", *LOCAL]

AGE = 2.0  # ONCE__CACHE_AGE_MS

SERVER = STATUS + (
    guarded("/pay/", "once_route pay;") +
    guarded("/user/", "", scope="$http_x_user") +
    guarded("/some/", "once_final 2xx;") +
    guarded("/dry/", "once_dry_run on;") +
    guarded("/small/", "once_max_response 16;") +
    guarded("/brief/", "once_lease 1s; once_ttl 3s;") +
    guarded("/wait/", "once_in_flight wait=20s;"))


def url_of(kind, folder):
    return "journal:%s/pay" % folder if kind == "journal" else kind


@pytest.fixture(params=STORES)
def hot(request, make, tmp_path):
    """One worker, so that there is one memory, and the counters are exact."""
    return make(SERVER, store=url_of(request.param, tmp_path), workers=1)


def asked(site):
    return value(samples(site), "once_store_operations_total")


def warm(case, **what):
    """A replay that the store has made; what follows is hot for a moment."""
    first = is_new(case.post(**what))
    return is_replay(case.post(**what), first)


def is_hot(site, case, first, **what):
    """Some replays in a row without the store; the machine may be slow, and an
    entry too old, so what was asked is only less than what was answered."""
    before = asked(site)
    for _ in range(20):
        is_replay(case.post(**what), first)
    return asked(site) - before < 20


# ---- The answer --------------------------------------------------------------

ANSWERS = {
    "small": Answer(201, b"made\n"),
    "headers": Answer(201, b"made\n", [("Location", "/x/1"), ("ETag", '"e"'),
                                       ("X-A", "1"), ("X-A", "2"),
                                       ("Cache-Control", "no-store"),
                                       ("Content-Type", "text/x; charset=x")]),
    "empty": Answer(200, b""),
    "a 404": Answer(404, b"none"),
    "60 KiB": Answer(200, os.urandom(60 << 10)),
}


@pytest.mark.parametrize("answer", ANSWERS)
def test_a_hot_replay_is_the_same_byte_for_byte(hot, answer):
    case = hot.case("/pay/", ANSWERS[answer])
    case.post()
    cold = case.post()
    assert cold.replayed

    def same():
        before = asked(hot)
        r = case.post()
        assert r.replayed and r.body == cold.body and r.start == cold.start
        assert [h for h in r.headers if h[0] != "Date"] == \
            [h for h in cold.headers if h[0] != "Date"]
        return asked(hot) == before
    eventually(same)
    assert case.executions == 1


def test_a_204_is_hot_without_a_body(hot):
    case = hot.case("/pay/", Raw(
        b"HTTP/1.1 204 No Content\r\nX-A: 1\r\n\r\n"))
    assert case.post().status == 204
    for _ in range(5):
        r = case.post()
        assert (r.status, r.body, r.get("X-A")) == (204, b"", "1")
        assert r.replayed and r.get("Content-Length") is None
    assert case.executions == 1


def test_what_is_large_is_replayed_by_the_store_each_time(hot):
    case = hot.case("/pay/", Answer(200, os.urandom(70 << 10)))
    first = case.post()
    for _ in range(3):
        before = asked(hot)
        is_replay(case.post(), first)
        assert asked(hot) > before


def test_many_on_one_connection_and_at_once(hot):
    case = hot.case("/pay/")
    first = warm(case)
    with Client(hot.gateway.port) as client:
        client.send(case.bytes() * 100)
        for _ in range(100):
            is_replay(client.read(), first)
    assert is_hot(hot, case, first)
    assert case.executions == 1


def test_http_2(hot):
    case = hot.case("/pay/")
    first = case.h2()
    assert first.once == "new"
    for _ in range(5):
        is_replay(case.h2(), first)
    assert case.executions == 1


def test_a_body_that_comes_late_and_100_continue(hot):
    case = hot.case("/pay/")
    first = warm(case)
    data = case.bytes(headers=[("Expect", "100-continue")], close=True)
    head, body = data.split(b"\r\n\r\n", 1)
    for _ in range(3):
        with Client(hot.gateway.port) as client:
            client.send(head + b"\r\n\r\n")
            assert client.has_bytes(20)  # the interim answer
            client.send(body[:3])
            time.sleep(0.02)
            client.send(body[3:])
            is_replay(client.read(), first)
    assert case.executions == 1


def test_a_body_that_is_spooled(hot):
    case = hot.case("/pay/")
    what = {"body": b"x" * 300000}
    first = warm(case, **what)
    assert is_hot(hot, case, first, **what)
    is_problem(case.post(body=b"x" * 299999 + b"y"), "key-reused")


def test_a_response_that_was_not_kept(hot):
    case = hot.case("/small/", Answer(200, b"more than sixteen bytes"))
    assert case.post().status == 200
    for _ in range(5):
        is_problem(case.post(), "response-unavailable")
    assert case.executions == 1


# ---- What is counted ---------------------------------------------------------

def test_each_is_counted_and_logged_as_before(hot):
    case = hot.case("/pay/")
    warm(case)
    before = samples(hot)
    for _ in range(20):
        assert case.post().replayed

    def grown(name, **labels):
        return value(samples(hot), name, **labels) - \
            value(before, name, **labels)
    eventually(lambda: grown("once_requests_total", route="pay",
                             status="replayed") == 20)
    assert grown("once_claim_duration_seconds_count", route="pay") == 20
    assert grown("once_attempts_total") == 0
    lines = eventually(lambda: [
        line for line in hot.gateway.access(case.path)
        if "once=replayed" in line][20:])
    assert len(lines) == 1


# ---- Whose it is -------------------------------------------------------------

def test_another_request_with_the_key_is_a_mismatch(hot):
    case = hot.case("/pay/")
    first = warm(case)
    for _ in range(3):
        is_problem(case.post(body=b"another"), "key-reused")
        is_problem(case.post(query="a=1"), "key-reused")
        is_problem(case.post(content_type="text/plain"), "key-reused")
        is_replay(case.post(), first)
    assert case.executions == 1


def test_two_scopes_share_nothing(hot):
    case = hot.case("/user/", Answer(201, b"for a\n"), Answer(201, b"for b\n"))
    a, b = ({"headers": [("X-User", who)]} for who in ("a", "b"))
    first = is_new(case.post(**a), body=b"for a\n")
    is_replay(case.post(**a), first)
    is_replay(case.post(**a), first)
    second = is_new(case.post(**b), body=b"for b\n")
    for _ in range(3):
        is_replay(case.post(**b), second)
        is_replay(case.post(**a), first)
    is_problem(case.post(), "scope-missing")
    assert case.executions == 2


def test_a_kept_answer_is_of_one_path_method_and_host(hot):
    case = hot.case("/pay/")
    first = warm(case)
    assert is_hot(hot, case, first)
    other = hot.case("/pay/")
    is_problem(other.post(key=case.key), "key-reused")
    is_problem(case.send("PATCH"), "key-reused")
    with Client(hot.gateway.port) as client:
        client.send(request_bytes(
            "POST", case.path, [("Idempotency-Key", case.key),
                                ("Content-Type", "application/json")],
            b"{}", host="another.test", close=True))
        is_new(client.read())
    is_replay(case.post(), first)
    assert (case.executions, other.executions) == (2, 0)


# ---- What may change ---------------------------------------------------------

def test_a_failure_that_may_be_tried_again_is_never_hot(hot):
    case = hot.case("/some/", *[Answer(500, b"no %d" % i) for i in range(5)],
                    Answer(201, b"yes"))
    for i in range(5):
        r = case.post()
        assert (r.status, r.body, r.once) == (500, b"no %d" % i, "new")
    first = is_new(case.post(), body=b"yes")
    for _ in range(3):
        is_replay(case.post(), first)
    assert case.executions == 6


def test_a_dry_run_passes_everything_on(hot):
    case = hot.case("/dry/")
    for i in range(1, 6):
        assert case.post().status == 201
        assert case.executions == i


def test_what_expires_soon_is_asked_for_each_time(hot):
    """And is executed anew as soon as it was forgotten."""
    case = hot.case("/brief/", Answer(201, b"1"), Answer(201, b"2"))
    first = is_new(case.post(), body=b"1")
    before = asked(hot)
    n = 0
    while True:
        r = case.post()
        if not r.replayed:
            break
        is_replay(r, first)
        n += 1
        time.sleep(0.05)
    second = is_new(r, body=b"2")
    assert asked(hot) - before >= n
    is_replay(case.post(), second)


def test_waiters_get_the_first_result(hot):
    hold = Hold(Answer(201, b"slow\n"))
    case = hot.case("/wait/", hold)
    with case.start(close=True) as owner:
        hold.wait()
        waiters = [case.start(close=True) for _ in range(5)]
        time.sleep(0.1)
        hold.go.set()
        first = is_new(owner.read(), body=b"slow\n")
        for waiter in waiters:
            is_replay(waiter.read(), first)
            waiter.hang_up()
    for _ in range(5):
        is_replay(case.post(), first)
    assert case.executions == 1


def test_a_slow_answer_counts_from_when_the_store_was_asked(make, tmp_path):
    """The store may have looked long before the worker saw what it said. The
    engine waits with a new key for longer than an entry can be used, and the
    replay behind it: nothing is hot then."""
    path = tmp_path / "pay"
    site = make(SERVER, store="sqlite:%s?busy_ms=20000" % path, workers=1)
    site.file = path
    case = site.case("/pay/")
    first = is_new(case.post())
    with Locked(site):
        other = site.case("/pay/").start(close=True)
        site.turn()
        late = case.start(close=True)
        time.sleep(AGE + 0.2)
        assert not late.has_bytes(1)
    is_new(other.read())
    is_replay(late.read(), first)
    before = asked(site)
    is_replay(case.post(), first)
    assert asked(site) > before
    assert case.executions == 1
    other.hang_up()
    late.hang_up()


# ---- Forgotten by others ------------------------------------------------------

class Clock:
    """Moves the wall clock of nginx and of the commands; with `passed` also
    the one that nobody can set, as if the time had passed."""

    def __init__(self, folder, monkeypatch):
        shim = folder / "clockshim.so"
        subprocess.run(["cc", "-D_GNU_SOURCE", "-shared", "-fPIC", "-o", shim,
                        ROOT / "test" / "lib" / "clockshim.c", "-ldl"],
                       check=True)
        self.path = folder / "ahead"
        self.path.write_bytes(struct.pack("=qq", 0, 0))
        self.env = {"LD_PRELOAD": str(shim), "ONCE_CLOCKSHIM": str(self.path)}
        for name, text in self.env.items():
            monkeypatch.setenv(name, text)

    def ahead(self, seconds, passed=0):
        with open(self.path, "r+b") as f:
            f.write(struct.pack("=qq", seconds * 1000, passed * 1000))


@pytest.fixture(name="clock")
def a_clock(tmp_path, monkeypatch):
    if "ASAN_OPTIONS" in os.environ:
        pytest.skip("the sanitizers' runtime must be the first library")
    return Clock(tmp_path, monkeypatch)


def once(url, *words):
    done = subprocess.run([ONCE, "--store", url, *words], capture_output=True,
                          check=False, timeout=60,
                          env=dict(os.environ, ONCE_AUDIT="off"))
    assert done.returncode == 0, done.stderr
    return done.stdout.decode()


@pytest.fixture(params=LOCAL)
def aged(request, make, tmp_path, clock):
    """Two workers, a result that is hot, and a clock that can be moved."""
    url = "%s:%s/pay" % (request.param, tmp_path)
    site = make(guarded("/pay/", "once_ttl 1h;"), store=url, workers=2)
    case = site.case("/pay/", Answer(201, b"1"), Answer(201, b"2"))
    first = is_new(case.post(), body=b"1")
    for _ in range(20):
        is_replay(case.post(), first)
    return url, clock, case, first


def executed_anew(case):
    second = is_new(case.post(), body=b"2")
    for _ in range(40):
        is_replay(case.post(), second)
    assert case.executions == 2


def test_what_another_process_forgets_is_executed_anew(aged):
    url, clock, case, _ = aged
    clock.ahead(7200, 7200)
    once(url, "purge")
    executed_anew(case)


def test_an_accepted_clock_counts_after_the_age_at_the_latest(aged):
    """No worker can know that the wall clock is right now."""
    url, clock, case, first = aged
    clock.ahead(7200)
    is_replay(case.post(), first)
    once(url, "clock", "--accept")
    once(url, "purge")
    time.sleep(AGE + 0.1)
    executed_anew(case)


def test_a_clock_that_only_jumps_makes_nobody_forget(aged):
    url, clock, case, first = aged
    clock.ahead(7200)
    once(url, "purge")
    for _ in range(5):
        is_replay(case.post(), first)
        time.sleep(AGE / 4)
    clock.ahead(-7200)
    for _ in range(5):
        is_replay(case.post(), first)
        time.sleep(AGE / 4)
    assert case.executions == 1


# ---- The store is away -------------------------------------------------------

@pytest.mark.parametrize("kind", LOCAL)
def test_nothing_is_hot_when_the_store_is_gone(make, tmp_path, kind):
    """Not even while its age would allow it, as soon as that was noticed."""
    path = tmp_path / "pay"
    site = make(SERVER, store="%s:%s" % (kind, path), workers=1)
    case = site.case("/pay/")
    first = warm(case)
    assert is_hot(site, case, first)
    for part in tmp_path.glob("pay*"):
        part.rename(tmp_path / part.name.replace("pay", "gone"))
    # The answer to another key is how it is noticed.
    eventually(lambda: site.case("/pay/").post().status == 503)
    is_problem(case.post(), "store-unavailable")
    for part in tmp_path.glob("gone*"):
        part.rename(tmp_path / part.name.replace("gone", "pay"))
    eventually(lambda: case.post().replayed)
    assert case.executions == 1
