# SPDX-License-Identifier: Apache-2.0
"""
Two gateways, each an nginx with the module and a folder of its own, on one
store: whatever dies or stops, a key is executed at most once, and whoever is
told a result is told the same bytes, by either of them.

The store's server is real (test/lib/servers.py); sqlite: and journal: play,
too, as one machine's two gateways would.
"""

import collections
import contextlib
import os
import pathlib
import random
import subprocess
import sys
import threading
import time

import pytest

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent / "gateway"), str(HERE.parent / "lib")]

# pylint: disable=wrong-import-position
import gateway as harness  # noqa: E402
import servers  # noqa: E402
import storelist  # noqa: E402
from gateway import (Case, Client, Gateway, Hold, PATIENCE,  # noqa: E402
                     Upstream, eventually, guarded, kept, message)

BUILD = pathlib.Path(os.environ.get("ONCE_BUILD", harness.ROOT / "build"))
LEASE = "2s"
STORES = storelist.LOCAL + storelist.SERVED
# What a fault of ours makes nginx say.
KILLED = [r"signal 9", r"SIGKILL", r"open socket #"]
# A server that hangs must not hold a batch, and those behind it, for longer
# than the module waits for a claim (4 times once_store's timeout, and 5 s).
# With the drivers' own limits it sometimes does: then the module says so with
# an [alert].
LIMITS = {"postgres": "?statement_ms=1000&connect_ms=500",
          "mysql": "?statement_ms=1000&connect_ms=500",
          "redis": "?timeout_ms=500"}


class Made:
    """An effect, and an answer with bytes that are nobody else's."""

    def __init__(self, two):
        self.two = two

    def __call__(self, conn, request):
        mark = os.urandom(8).hex()
        with self.two.lock:
            self.two.executed[request.path].append(mark)
        conn.sock.sendall(message(201, b'{"made":"%s"}' % mark.encode(),
                                  [("X-Made", mark)]))


class Two:
    """Both gateways, the store, the upstream, and what all of them did."""

    def __init__(self, folder, url):
        self.folder = folder
        self.url = url
        self.lock = threading.Lock()
        self.executed = collections.defaultdict(list)
        self.told = collections.defaultdict(set)
        self.words = collections.Counter()
        self.cases = []
        self.upstream = Upstream()
        self.upstreams = [self.upstream]
        self.gateways = [self._gateway(n) for n in (0, 1)]
        self.gateway = self.gateways[0]

    def _gateway(self, n):
        home = self.folder / ("nginx%d" % n)
        home.mkdir()
        return Gateway(home, self.upstream.port,
                       guarded("/pay/", "once_lease %s;" % LEASE),
                       "once_store main %s;\n" % self.url, workers=2,
                       allow=KILLED).start()

    def case(self, *script):
        case = Case(self, "/pay/", *(script or (Made(self),)))
        with self.lock:
            self.cases.append(case)
        return case

    def post(self, case, n):
        """Over gateway n. None: no whole answer came."""
        try:
            with Client(self.gateways[n].port) as client:
                client.send(case.bytes(close=True))
                response = client.read()
        except (OSError, EOFError, AssertionError):
            self.count("none")
            return None
        self.hear(case, response)
        return response

    def count(self, word):
        with self.lock:
            self.words[word] += 1

    def hear(self, case, r):
        if r.truncated or r.code() or r.once not in ("new", "replayed"):
            self.count("cut" if r.truncated else r.code() or str(r.status))
            return
        self.count(r.once)
        with self.lock:
            self.told[case.path].add(
                (r.start, tuple(kept(r)), bytes(r.body)))

    def settle(self, case):
        """Asks both until each says a last word; these must be the same."""
        words = []
        for n in (0, 1):
            def look(n=n):
                r = self.post(case, n)
                # 502 and such: nginx's own, when the first one was cut off.
                if r is None or r.code() in ("in-flight",
                                             "store-unavailable") \
                        or r.status in (500, 502, 504):
                    return None
                return r.code() or r.once
            words.append(eventually(look, 3 * PATIENCE))
        if words[0] == "new":
            words[0] = "replayed"
        assert words[0] == words[1], (case.path, words)
        return words[0]

    def judge(self):
        """Settles every key, and counts."""
        came = collections.Counter(self.settle(c) for c in self.cases)
        for case in self.cases:
            marks = self.executed[case.path]
            told = self.told[case.path]
            assert len(marks) <= 1, (case.path, marks)
            assert case.executions <= 1, case.path
            assert len(told) <= 1, "different answers: %r" % told
            for _, _, body in told:
                assert body == b'{"made":"%s"}' % marks[0].encode()
        assert set(came) <= {"replayed", "outcome-unknown"}, came
        assert not self.upstream.errors, self.upstream.errors
        return came

    def close(self):
        try:
            for g in self.gateways:
                g.close()
        finally:
            self.upstream.close()


@contextlib.contextmanager
def world_of(store, folder):
    """(world or None, URL): furnished, so that a gateway can open it."""
    with contextlib.ExitStack() as stack:
        world = None
        if store in storelist.LOCAL:
            url = "%s:%s" % (store, folder / "store")
        else:
            world = stack.enter_context(servers.World())
            try:
                url = world.build(store)
            except servers.Missing as missing:
                pytest.skip(str(missing))
        done = subprocess.run([str(BUILD / "test/traffic"), "init", url],
                              capture_output=True, text=True, timeout=60,
                              check=False)
        if done.returncode == 77:
            pytest.skip("this build has no store %s:" % store)
        assert done.returncode == 0, done.stdout
        yield world, url + LIMITS.get(store, "")


@pytest.fixture(scope="module", params=STORES)
def place(request, tmp_path_factory):
    """(URL, the store's server or None), for all tests of one store."""
    if harness.NGINX is None or not os.path.exists(harness.MODULE):
        pytest.skip("no nginx, or no module at " + harness.MODULE)
    with world_of(request.param, tmp_path_factory.mktemp("store")) as (
            world, url):
        yield url, world.servers[request.param] if world else None


@pytest.fixture
def made(place, tmp_path):
    """(two gateways, the store's server or None)"""
    url, server = place
    two = Two(tmp_path, url)
    try:
        yield two, server
    finally:
        two.close()


class Load:
    """Clients that spread each key over both gateways, until told to stop."""

    def __init__(self, two, clients=6, repeats=4):
        self.two = two
        self.repeats = repeats
        self.stop = threading.Event()
        self.threads = [threading.Thread(target=self._run, args=(n,))
                        for n in range(clients)]
        for t in self.threads:
            t.start()

    def _run(self, seed):
        rng = random.Random(seed)
        while not self.stop.is_set():
            case = self.two.case()
            peers = [threading.Thread(target=self.two.post, args=(
                case, rng.randrange(2))) for _ in range(self.repeats)]
            for p in peers:
                p.start()
            for p in peers:
                p.join()

    def news(self, more=25):
        """Waits until so many more were executed."""
        want = len(self.two.executed) + more
        eventually(lambda: len(self.two.executed) >= want, 3 * PATIENCE)

    def end(self):
        self.stop.set()
        for t in self.threads:
            t.join(3 * PATIENCE)
            assert not t.is_alive()


# ---- Nothing is wrong ----------------------------------------------------


def test_duplicates_spread_over_both_are_executed_once(made):
    two, _ = made
    load = Load(two)
    load.news(100)
    load.end()
    came = two.judge()
    assert set(came) == {"replayed"} and len(two.cases) >= 100
    assert all(len(two.executed[c.path]) == 1 for c in two.cases)
    assert two.words["replayed"] > 2 * len(two.cases), two.words


def test_one_replays_what_the_other_has_recorded(made):
    two, _ = made
    for n in (0, 1):
        case = two.case()
        first = two.post(case, n)
        assert first.once == "new" and first.status == 201
        for gate in (1 - n, n):
            harness.is_replay(two.post(case, gate), first)
    assert two.judge() == {"replayed": 2}


def test_what_one_executes_is_in_flight_for_the_other(made):
    two, _ = made
    hold = Hold(Made(two))
    case = two.case(hold)
    with Client(two.gateways[0].port) as client:
        client.send(case.bytes(close=True))
        hold.wait()
        # Longer than a lease: it is renewed.
        end = time.monotonic() + 3
        while time.monotonic() < end:
            assert two.post(case, 1).code() == "in-flight"
        hold.go.set()
        first = client.read()
        two.hear(case, first)
    harness.is_replay(two.post(case, 1), first)
    assert two.judge() == {"replayed": 1}


# ---- A gateway is killed -------------------------------------------------


def test_one_gateway_is_killed_and_the_other_answers(made):
    two, _ = made
    done = two.case()
    first = two.post(done, 0)
    hold = Hold(Made(two))
    lost = two.case(hold)
    with Client(two.gateways[0].port) as client:
        client.send(lost.bytes(close=True))
        hold.wait()
        two.gateways[0].kill_all()
    harness.is_replay(two.post(done, 1), first)

    def unknown():
        code = two.post(lost, 1).code()
        assert code in ("in-flight", "outcome-unknown"), code
        return code == "outcome-unknown"
    eventually(unknown)
    # Its answer comes to nobody.
    hold.go.set()
    fresh = two.case()
    assert two.post(fresh, 1).once == "new"
    two.gateways[0].start()
    assert two.judge() == {"replayed": 2, "outcome-unknown": 1}


def test_gateways_are_killed_under_load(made):
    two, _ = made
    load = Load(two)
    for n in (0, 1, 0):
        load.news()
        two.gateways[n].kill_all()
        load.news()
        two.gateways[n].start()
    load.news()
    load.end()
    came = two.judge()
    assert came["replayed"] > came["outcome-unknown"], came


# ---- The store stops -----------------------------------------------------


@pytest.mark.parametrize("verb", ["stop", "quit", "kill", "pause"])
@pytest.mark.parametrize("place", ["postgres", "redis"], indirect=True)
def test_the_store_stops_under_load_and_comes_back(made, verb):
    two, server = made
    load = Load(two)
    for _ in range(2):
        load.news()
        getattr(server, verb)()
        before = two.words["store-unavailable"]
        # Who asks now is told so, and nothing is executed for him.
        eventually(lambda: two.words["store-unavailable"] > before + 3,
                   3 * PATIENCE)
        if verb == "pause":
            server.resume()
        else:
            server.start()
        load.news()
    load.end()
    came = two.judge()
    assert came["replayed"] >= 75, came
