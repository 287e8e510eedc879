# SPDX-License-Identifier: Apache-2.0
"""
What only callers in Python do: they are cancelled, they fork, and they have more
than one loop. The rest is in test_calls.py.
"""

import asyncio
import contextlib
import os
import pathlib
import sys
import threading

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] /
                       "middleware/python"))
# pylint: disable=wrong-import-position
import once  # noqa: E402
import test_calls  # noqa: E402
import test_serve as served  # noqa: E402

THREADS, CALLS = 8, 25


@pytest.fixture(name="server")
def a_server(tmp_path):
    server = served.Server(tmp_path).start()
    yield server
    server.end()


def guard(server, function, **more):
    return once.call(group="charge", key=lambda key: key, serve=server.where,
                     **more)(function)


def add(server, value=2):
    """The same key's result, by another function."""
    return guard(server, lambda key: value)


async def until(look):
    while not look():
        await asyncio.sleep(0.01)


def test_it_is_a_function_as_before(server):
    class Shop:
        """A shop."""

        @once.call(group="charge", key=lambda self, order: order,
                   serve=server.where)
        def charge(self, order):
            """Charges."""
            return [type(self).__name__, order]

    assert Shop().charge(order="k") == Shop().charge("k") == ["Shop", "k"]
    assert (Shop.charge.__name__, Shop.charge.__doc__) == ("charge", "Charges.")


def test_who_waits_no_longer_does_not_cut_off_what_runs(server):
    gate, runs = asyncio.Event(), []

    async def charge(key):
        runs.append(key)
        await gate.wait()
        return 1

    async def main():
        task = asyncio.create_task(guard(server, charge)("k"))
        await until(lambda: runs)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        with pytest.raises(once.InFlight):
            await guard(server, charge)("k")
        gate.set()
        assert await guard(server, charge, wait_ms=60000)("k") == 1
    asyncio.run(main())
    assert runs == ["k"]


def test_a_call_that_is_cancelled_while_it_waits_is_abandoned(server):
    async def charge(key):
        raise AssertionError(key)

    async def main(cutter):
        guarded = once.call(group="charge", key=lambda key: key, wait_ms=60000,
                            serve="unix:" + cutter.where)(charge)
        task = asyncio.create_task(guarded("k"))
        await until(lambda: served.open_exchanges(server) == 2)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    with contextlib.ExitStack() as stack, served.Client(server) as c:
        cutter = test_calls.Cutter(server.folder, server, stack)
        token = served.call_run(c, "k")
        asyncio.run(main(cutter))
        assert cutter.seen["/v1/abandon"] == 1
        # Else it may still wait there, and is given the key first.
        served.eventually(lambda: served.open_exchanges(server) == 1)
        c.ask("/v1/abandon", {"token": token})
        assert add(server)("k") == 2


def test_a_function_that_ends_with_its_loop_is_unknown(server):
    runs = []

    async def charge(key):
        runs.append(key)
        await asyncio.sleep(3600)

    async def main():
        task = asyncio.create_task(guard(server, charge)("k"))
        await until(lambda: runs)
        return task
    asyncio.run(main())         # it cancels what still runs
    with pytest.raises(once.Unknown):
        add(server)("k")
    assert runs == ["k"]


def test_what_is_no_exception_is_unknown_and_goes_on(server):
    """A time-out of gevent is none, so that nobody catches it by mistake."""
    class Timeout(BaseException):
        pass

    def charge(key):
        raise Timeout(key)

    async def acharge(key):
        raise Timeout(key)
    with pytest.raises(Timeout):
        guard(server, charge)("k")
    with pytest.raises(Timeout):
        asyncio.run(guard(server, acharge)("l"))
    for key in "k", "l":
        with pytest.raises(once.Unknown):
            add(server)(key)


def test_loops_and_threads_use_one_function(server):
    runs, wrong = [], []

    async def charge(key):
        runs.append(key)
        await asyncio.sleep(0)
        return key
    charge = guard(server, charge, wait_ms=60000)

    async def some():
        keys = ["k%d" % i for i in range(CALLS)]
        assert await asyncio.gather(*map(charge, keys)) == keys

    def thread():
        try:
            for _ in range(3):
                asyncio.run(some())
        except BaseException as error:  # pylint: disable=broad-except
            wrong.append(error)
    threads = [threading.Thread(target=thread) for _ in range(THREADS)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not wrong, wrong[0]
    assert sorted(runs) == sorted("k%d" % i for i in range(CALLS))


def test_a_child_has_connections_of_its_own(server):
    """When it dies in a function, that is unknown, and its parent lives."""
    assert add(server, 1)("first") == 1
    shared = guard(server, lambda key: os._exit(3) if key == "k" else key)
    assert shared("warm") == "warm"
    pid = os.fork()
    if pid == 0:
        shared("k")
        os._exit(4)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 3
    with pytest.raises(once.Unknown):
        guard(server, lambda key: 2, wait_ms=60000, run_ms=60000)("k")
    assert shared("warm") == "warm"
