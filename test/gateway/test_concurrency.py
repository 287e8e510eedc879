# SPDX-License-Identifier: Apache-2.0
"""
Many at once: whatever the order of arrival, one execution.
"""

import collections
import re
import subprocess

import pytest

from gateway import (PATIENCE, Answer, Hold, guarded, is_problem, is_replay)

SERVER = (
    guarded("/pay/") +
    guarded("/two/", "once_two_phase on;") +
    guarded("/wait/", "once_in_flight wait=%ds;" % PATIENCE))

SECOND = Answer(201, b"a second execution\n")


def burst(case, n, **what):
    """n clients connect, then all send, then all answers are read."""
    data = case.bytes(**what)
    clients = []
    try:
        for _ in range(n):
            clients.append(case.start(key=None, method="GET"))
        for client in clients:
            client.read("GET")
        case.requests.clear()  # from here on only what may be an execution
        for client in clients:
            client.send(data)
        return [client.read() for client in clients]
    finally:
        for client in clients:
            client.hang_up()


def judge(case, answers, only_replays=False):
    fresh = [a for a in answers if a.once == "new"]
    assert len(fresh) == 1, collections.Counter(a.once for a in answers)
    assert (fresh[0].status, fresh[0].body) == (201, b"made\n")
    for a in answers:
        assert a.status < 500
        if a is fresh[0]:
            continue
        if a.replayed or only_replays:
            is_replay(a, fresh[0])
        else:
            is_problem(a, "in-flight")
    assert case.executions == 1
    is_replay(case.post(), fresh[0])
    assert case.executions == 1


def got():
    """GETs (which only open connections) and the first POST are answered."""
    def script(conn, request):
        if request.method == "GET":
            conn.sock.sendall(b"HTTP/1.1 204 Up\r\n\r\n")
        else:
            (Answer() if script.first else SECOND)(conn, request)
            script.first = False
    script.first = True
    return script


@pytest.mark.parametrize("number", range(10))
def test_120_requests_with_one_new_key_execute_once(site, number):
    c = site.case("/two/" if number % 3 == 2 else "/pay/", got())
    judge(c, burst(c, 120))


@pytest.mark.parametrize("number", range(3))
def test_120_waiting_requests_execute_once_and_all_get_the_answer(
        site, number):
    del number
    c = site.case("/wait/", got())
    judge(c, burst(c, 120), only_replays=True)


def test_both_workers_took_part(site):
    if site.gateway.workers == 1:
        pytest.skip("one worker")
    c = site.case("/pay/", got())
    judge(c, burst(c, 120))
    lines = site.gateway.access(c.path)
    assert len({line.split()[0] for line in lines}) == 2


def test_while_the_owner_is_held_everybody_else_is_told_to_wait(site):
    hold = Hold()
    c = site.case("/pay/", hold, SECOND)
    with c.start() as owner:
        hold.wait()
        clients = [c.start() for _ in range(60)]
        for client in clients:
            is_problem(client.read(), "in-flight")
            client.hang_up()
        hold.go.set()
        first = owner.read()
    assert first.once == "new"
    is_replay(c.post(), first)
    assert c.executions == 1


def test_of_two_different_requests_at_once_one_executes(site):
    for _ in range(10):
        c = site.case("/pay/", Answer(), SECOND)
        with c.start(body=b"one") as a, c.start(body=b"two") as b:
            answers = sorted([a.read(), b.read()], key=lambda r: r.status)
        assert [r.status for r in answers] == [201, 422]
        is_problem(answers[1], "key-reused")
        assert c.executions == 1


def test_many_keys_at_once_do_not_get_into_each_other_s_way(site):
    cases = [site.case("/pay/", Answer(201, b"%d\n" % i), SECOND)
             for i in range(150)]
    for replayed in (False, True):
        clients = [c.start() for c in cases]
        for i, client in enumerate(clients):
            r = client.read()
            client.hang_up()
            assert (r.status, r.body) == (201, b"%d\n" % i)
            assert r.replayed == replayed
    assert [c.executions for c in cases] == [1] * len(cases)


@pytest.mark.nginx_only("libmicrohttpd speaks no HTTP/2")
def test_many_streams_of_one_http2_connection_execute_once(site):
    c = site.case("/pay/")
    (site.folder / "body").write_bytes(b'{"amount": 5}')
    out = subprocess.run(
        ["h2load", "-n", "120", "-c", "3", "-m", "40", "-d",
         str(site.folder / "body"), "-H", "Idempotency-Key: " + c.key,
         "http://127.0.0.1:%d%s" % (site.gateway.h2, c.path)],
        capture_output=True, check=True, timeout=60).stdout.decode()
    codes = re.search(r"status codes: (\d+) 2xx, \d+ 3xx, (\d+) 4xx, (\d+) 5x",
                      out)
    good, conflict, bad = map(int, codes.groups())
    assert (good + conflict, bad) == (120, 0), out
    assert good >= 1
    assert c.executions == 1
