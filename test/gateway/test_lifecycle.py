# SPDX-License-Identifier: Apache-2.0
"""
Processes come and go: kill -9, reload, quit, terminate, binary upgrade. The
store is a SQLite file, for memory goes with its process. Whatever happens, a
key executes once, and nobody is told what is not recorded.
"""

import contextlib
import os
import pathlib
import signal
import threading

import pytest

from gateway import (Answer, Hold, Locked, eventually, guarded, is_new,
                     is_problem, is_replay, settles)

SHORT = "once_lease 1s;"
SECOND = Answer(201, b"a second execution\n")
KILLED = [r"exited on signal 9", r"signal 9 \(SIGKILL\)"]


def pay(make, more="", **what):
    return make(guarded("/pay/", more), **what)


# ---- Killed --------------------------------------------------------------


@pytest.mark.parametrize("more", ["", "once_two_phase on;"])
def test_a_gateway_killed_after_dispatch_leaves_the_outcome_unknown(
        make, more):
    site = pay(make, SHORT + more)
    hold = Hold()
    c = site.case("/pay/", hold, SECOND)
    with c.start() as client:
        hold.wait()
        site.gateway.kill_all()
        assert client.at_end()
    hold.go.set()
    site.gateway.start()
    settles(c, "outcome-unknown")
    is_problem(c.post(), "outcome-unknown")
    is_problem(c.post(body=b"other"), "key-reused")
    assert c.executions == 1


def test_before_its_lease_is_over_a_killed_owner_is_in_flight(make):
    site = pay(make, "once_lease 1h;")
    hold = Hold()
    c = site.case("/pay/", hold, SECOND)
    with c.start():
        hold.wait()
        site.gateway.kill_all()
    site.gateway.start()
    for _ in range(3):
        is_problem(c.post(), "in-flight")
    assert c.executions == 1


def test_under_takeover_the_next_request_executes_with_attempt_2(make):
    site = pay(make, SHORT + "once_lost takeover;")
    hold = Hold()
    c = site.case("/pay/", hold, Answer(201, b"taken over\n"))
    with c.start():
        hold.wait()
        site.gateway.kill_all()
    site.gateway.start()

    def executed():
        r = c.post()
        assert r.status == 201 or r.code() == "in-flight", r
        return r if r.status == 201 else None

    first = is_new(eventually(executed), body=b"taken over\n")
    is_replay(c.post(), first)
    assert [q.get("Idempotency-Attempt") for q in c.requests] == ["1", "2"]
    assert [q.get("Idempotency-Key") for q in c.requests] == [c.key, c.key]


def test_what_was_answered_replays_after_the_gateway_was_killed(make):
    site = pay(make)
    cases = [site.case("/pay/", Answer(201, b"%d\n" % i), SECOND)
             for i in range(20)]
    firsts = [c.post() for c in cases]
    site.gateway.kill_all()
    site.gateway.start()
    for c, first in zip(cases, firsts):
        is_replay(c.post(), first)
        assert c.executions == 1


@pytest.mark.nginx_only("a master that starts new workers")
@pytest.mark.parametrize("workers", [1, 2])
def test_a_killed_worker_leaves_the_outcome_unknown(make, workers):
    site = pay(make, SHORT, workers=workers, allow=KILLED)
    hold = Hold()
    c = site.case("/pay/", hold, SECOND)
    with c.start() as client:
        hold.wait()
        old = site.gateway.worker_pids()
        for pid in old:
            site.gateway.kill(signal.SIGKILL, pid)
        assert client.at_end()
    hold.go.set()
    eventually(lambda: len(
        set(site.gateway.worker_pids()) - set(old)) == workers)
    settles(c, "outcome-unknown")
    assert c.executions == 1


@pytest.mark.nginx_only("a master that starts new workers")
def test_a_worker_killed_while_it_completes_tells_nothing(make):
    site = pay(make, SHORT, workers=1, allow=KILLED)
    hold = Hold()
    c = site.case("/pay/", hold, SECOND)
    with c.start() as client:
        hold.wait()
        with Locked(site):
            hold.go.set()
            eventually(lambda: hold.conn.open is False)
            site.turn()
            old = site.gateway.worker_pids()
            site.gateway.kill(signal.SIGKILL, old[0])
            assert client.at_end()
    eventually(lambda: set(site.gateway.worker_pids()) - set(old))
    settles(c, "outcome-unknown")
    assert c.executions == 1


@pytest.mark.nginx_only("a master that starts new workers")
def test_a_storm_of_kills_never_executes_a_key_twice(make):
    site = pay(make, SHORT, allow=KILLED)
    cases = [site.case("/pay/") for _ in range(60)]

    def client(mine):
        for c in mine:
            for _ in range(3):
                with contextlib.suppress(OSError, EOFError, AssertionError):
                    c.post()

    threads = [threading.Thread(target=client, args=(cases[i::4],))
               for i in range(4)]
    for t in threads:
        t.start()
    for _ in range(4):
        seen = len(site.upstream.requests)
        eventually(lambda seen=seen: len(site.upstream.requests) > seen + 5 or
                   not any(t.is_alive() for t in threads))
        for pid in site.gateway.worker_pids():
            with contextlib.suppress(ProcessLookupError):
                site.gateway.kill(signal.SIGKILL, pid)
    for t in threads:
        t.join()
    for c in cases:
        r = eventually(lambda c=c: ended(c))
        assert r.status == 201 or r.code() == "outcome-unknown", r
        assert c.executions <= 1


def ended(case):
    with contextlib.suppress(OSError, EOFError):
        r = case.post()
        return None if r.code() == "in-flight" else r


# ---- Reload --------------------------------------------------------------


@pytest.mark.nginx_only("a reload")
def test_a_reload_lets_the_old_worker_finish_and_the_new_one_knows(make):
    site = pay(make)
    hold = Hold()
    c = site.case("/pay/", hold, SECOND)
    with c.start() as owner:
        hold.wait()
        old = set(site.gateway.worker_pids())
        site.gateway.reload()
        assert old & set(site.gateway.worker_pids())
        is_problem(c.post(), "in-flight")
        is_problem(c.post(body=b"other"), "key-reused")
        hold.go.set()
        first = is_new(owner.read())
    is_replay(c.post(), first)
    eventually(lambda: not old & set(site.gateway.worker_pids()))
    is_replay(c.post(), first)
    assert c.executions == 1


@pytest.mark.nginx_only("a reload")
def test_a_reload_while_a_completion_is_under_way_loses_nothing(make):
    site = pay(make, workers=1)
    hold = Hold()
    c = site.case("/pay/", hold, SECOND)
    with c.start() as owner:
        hold.wait()
        with Locked(site):
            hold.go.set()
            eventually(lambda: hold.conn.open is False)
            site.gateway.kill(signal.SIGHUP)
            eventually(lambda: "gracefully shutting down" in
                       site.gateway.log("error.log"))
            assert not owner.has_bytes()
        first = is_new(owner.read())
    is_replay(c.post(), first)
    assert c.executions == 1


@pytest.mark.nginx_only("a reload")
def test_under_load_reloads_execute_every_key_once(make):
    site = pay(make)
    cases = [site.case("/pay/", Answer(201, b"%d\n" % i), SECOND)
             for i in range(240)]
    wrong = []

    def pair(mine):
        for c in mine:
            try:
                first = c.post()
                assert first.once == "new", first
                is_replay(c.post(), first)
            except (AssertionError, OSError, EOFError) as error:
                wrong.append((c.path, repr(error)))

    threads = [threading.Thread(target=pair, args=(cases[i::4],))
               for i in range(4)]
    for t in threads:
        t.start()
    for part in (40, 90, 140, 190):
        eventually(lambda part=part: len(site.upstream.requests) > part or
                   not any(t.is_alive() for t in threads))
        site.gateway.reload()
    for t in threads:
        t.join()
    assert not wrong, wrong[:3]
    assert [c.executions for c in cases] == [1] * len(cases)


@pytest.mark.nginx_only("a reload")
def test_a_reload_with_another_policy_keeps_the_records(make):
    site = pay(make)
    c = site.case("/pay/", Answer(), SECOND)
    first = is_new(c.post())
    text = site.gateway.texts
    text["server"] = text["server"].replace(
        "once main;", "once main; once_two_phase on; once_ttl 1h;")
    site.gateway.render()
    site.gateway.reload()
    is_replay(c.post(), first)
    assert c.executions == 1


@pytest.mark.nginx_only("a reload")
def test_a_reload_that_is_refused_changes_nothing(make):
    site = pay(make)
    c = site.case("/pay/", Answer(), SECOND)
    first = is_new(c.post())
    text = site.gateway.texts
    text["server"] = text["server"].replace("once main;",
                                            "once main; once_lease 0;")
    site.gateway.render()
    site.gateway.allow += [r"\[emerg\].*once_lease"]
    site.gateway.kill(signal.SIGHUP)
    eventually(lambda: "[emerg]" in site.gateway.log("error.log"))
    is_replay(c.post(), first)
    assert c.executions == 1


# ---- Quit and terminate --------------------------------------------------


def test_quit_lets_a_request_in_flight_get_its_answer(make):
    site = pay(make)
    hold = Hold()
    c = site.case("/pay/", hold, SECOND)
    with c.start() as owner:
        hold.wait()
        site.gateway.kill(signal.SIGQUIT)
        eventually(lambda: "gracefully shutting down" in
                   site.gateway.log("error.log"))
        hold.go.set()
        first = is_new(owner.read())
    assert site.gateway.wait_end() == 0
    site.gateway.start()
    is_replay(c.post(), first)
    assert c.executions == 1


def test_quit_while_a_completion_is_under_way_gets_it_recorded(make):
    site = pay(make, workers=1)
    hold = Hold()
    c = site.case("/pay/", hold, SECOND)
    with c.start() as owner:
        hold.wait()
        with Locked(site):
            hold.go.set()
            eventually(lambda: hold.conn.open is False)
            site.gateway.kill(signal.SIGQUIT)
            eventually(lambda: "gracefully shutting down" in
                       site.gateway.log("error.log"))
            assert not owner.has_bytes()
        first = is_new(owner.read())
    assert site.gateway.wait_end() == 0
    site.gateway.start()
    is_replay(c.post(), first)
    assert c.executions == 1


AWAY = "once_lease 1s; send_timeout 1s;"


@pytest.mark.nginx_only("workers")
@pytest.mark.parametrize("how", ["reload", "quit"])
def test_an_outcome_is_recorded_by_a_worker_that_exits_gracefully(make, how):
    # The store is away for longer than the request and its lease.
    site = pay(make, AWAY, workers=1)
    is_new(site.case("/pay/").post())
    hold = Hold()
    c = site.case("/pay/", hold, SECOND)
    with c.start() as owner:
        hold.wait()
        old = site.gateway.worker_pids()
        with Locked(site):
            hold.go.set()
            eventually(lambda: hold.conn.open is False or owner.has_bytes())
            if how == "reload":
                site.gateway.reload()
            else:
                site.gateway.kill(signal.SIGQUIT)
            is_problem(owner.read(), "outcome-unknown", 502)
            owner.hang_up()
            # Long enough for a worker that would not wait.
            assert not eventually_gone(site, old, 4)
    if how == "quit":
        assert site.gateway.wait_end() == 0
        site.gateway.start()
    # The reaper may come first: then it is unknown until the outcome arrives.
    r = eventually(lambda: known(c))
    assert r.replayed and r.body == b"made\n", r
    assert c.executions == 1
    # It does not stay for nothing.
    eventually(lambda: all(site.gateway.ended(p) for p in old))


def known(case):
    r = ended(case)
    return None if r and r.code() == "outcome-unknown" else r


def eventually_gone(site, pids, patience):
    try:
        return eventually(lambda: pids and all(
            site.gateway.ended(p) for p in pids), patience)
    except AssertionError:
        return False


def test_quit_with_a_claim_under_way_gets_its_answer(make):
    site = pay(make, workers=1)
    is_new(site.case("/pay/").post())
    c = site.case("/pay/", Answer(), SECOND)
    with Locked(site):
        owner = c.start()
        site.turn()
        site.gateway.kill(signal.SIGQUIT)
        eventually(lambda: "gracefully shutting down" in
                   site.gateway.log("error.log"))
    r = owner.read()
    owner.hang_up()
    assert r.status == 201 or r.code() == "store-unavailable", r
    assert site.gateway.wait_end() == 0
    assert c.executions == (1 if r.status == 201 else 0)


def test_a_waiter_does_not_keep_a_worker_from_quitting(make):
    site = pay(make, "once_in_flight wait=10m;")
    hold = Hold()
    c = site.case("/pay/", hold, SECOND)
    with c.start() as owner:
        hold.wait()
        waiter = c.start()
        site.turn()
        site.gateway.kill(signal.SIGQUIT)
        hold.go.set()
        first = is_new(owner.read())
        r = waiter.read()
        assert r.replayed or r.code() == "in-flight", r
        waiter.hang_up()
    assert site.gateway.wait_end() == 0
    assert first.body == b"made\n" and c.executions == 1


def test_term_with_a_request_in_flight_never_executes_it_again(make):
    site = pay(make, SHORT)
    hold = Hold()
    c = site.case("/pay/", hold, SECOND)
    with c.start() as owner:
        hold.wait()
        site.gateway.kill(signal.SIGTERM)
        assert owner.at_end()
    site.gateway.wait_end()
    hold.go.set()
    site.gateway.start()
    settles(c, "outcome-unknown")
    assert c.executions == 1


def test_term_with_a_completion_under_way_never_executes_it_again(make):
    site = pay(make, SHORT, store="faulty:delay_ms=300@sqlite", workers=1)
    hold = Hold()
    c = site.case("/pay/", hold, SECOND)
    with c.start():
        hold.wait()
        hold.go.set()
        eventually(lambda: hold.conn.open is False)
        site.gateway.kill(signal.SIGTERM)
        site.gateway.wait_end()
    site.gateway.start()
    r = eventually(lambda: ended(c))
    assert r.replayed or r.code() == "outcome-unknown", r
    assert c.executions == 1


def test_term_with_an_idle_gateway_is_clean(make):
    site = pay(make)
    is_new(site.case("/pay/").post())
    site.gateway.kill(signal.SIGTERM)
    assert site.gateway.wait_end() == 0


# ---- Binary upgrade ------------------------------------------------------


@pytest.mark.nginx_only("a binary upgrade")
def test_a_binary_upgrade_does_not_execute_twice(make):
    site = pay(make, daemon=True)
    gateway = site.gateway
    hold = Hold()
    done, c = site.case("/pay/"), site.case("/pay/", hold, SECOND)
    before = is_new(done.post())
    old = gateway.master()
    with c.start() as owner:
        hold.wait()
        os.kill(old, signal.SIGUSR2)
        eventually(lambda: (gateway.folder / "nginx.pid.oldbin").exists())
        new = eventually(lambda: gateway.master() != old and gateway.master())
        eventually(lambda: len(gateway.worker_pids(new)) == gateway.workers)
        try:
            # Old and new workers answer side by side.
            for _ in range(10):
                is_problem(c.post(), "in-flight")
                is_replay(done.post(), before)
            os.kill(old, signal.SIGWINCH)
            eventually(lambda: gateway.log("error.log").count(
                "gracefully shutting down") >= gateway.workers)
            is_problem(c.post(), "in-flight")
            hold.go.set()
            first = is_new(owner.read())
            is_replay(c.post(), first)
        finally:
            os.kill(old, signal.SIGQUIT)
            eventually(lambda: gateway.ended(old) or
                       not pathlib.Path("/proc/%d" % old).exists())
    is_replay(c.post(), first)
    is_replay(done.post(), before)
    assert (c.executions, done.executions) == (1, 1)


# ---- Retention -----------------------------------------------------------


def test_after_its_retention_a_key_is_new(make):
    site = pay(make, "once_ttl 2s; once_lease 1s;", workers=1)
    c = site.case("/pay/", Answer(201, b"one\n"), Answer(201, b"two\n"))
    first = is_new(c.post(), body=b"one\n")
    is_replay(c.post(), first)

    def forgotten():
        r = c.post()
        assert r.replayed or r.body == b"two\n", r
        return not r.replayed

    eventually(forgotten)
    assert c.executions == 2
