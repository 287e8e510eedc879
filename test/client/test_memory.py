# SPDX-License-Identifier: Apache-2.0
"""
once send without memory: one allocation is refused, of the client or of any
library below it, then the same line is run again with all that it wants. It may
fail; it may not lie, charge twice, or lose its key.

The n-th allocation for a sample of all n; STEP=1 in the environment tries each.
"""

import os
import signal
import struct
import subprocess

import pytest

from faults import BUILD, ENV, ONCE, PATIENCE, Script, answer, orders

SHIM = BUILD / "test/mallocshim.so"
STEP = int(os.environ.get("STEP", "97"))

CREATED = answer(201, b"made\n", "Idempotency-Status: new")
REPLAY = answer(201, b"made\n", "Idempotent-Replayed: true",
                "Idempotency-Status: replayed")

CRASH = -signal.SIGSEGV

pytestmark = [
    pytest.mark.skipif(not SHIM.exists(), reason="no %s" % SHIM),
    pytest.mark.skipif("ASAN_OPTIONS" in os.environ,
                       reason="the sanitizer has an allocator of its own")]


def send(file, url, plan=None):
    env = dict(ENV)
    if plan is not None:
        env.update(LD_PRELOAD=str(SHIM), ONCE_MALLOCSHIM=str(plan))
    return subprocess.run(
        [ONCE, "send", "POST", url, "--order", "42", "--data", "x",
         "--deadline", "5s", "--client-store", file], env=env,
        capture_output=True, text=True, timeout=PATIENCE, check=False)


def refused(plan):
    return struct.unpack("qqq", plan.read_bytes())[2]


def test_an_allocation_that_fails_loses_no_key(tmp_path):
    plan, n, failed, told = tmp_path / "plan", 1, 0, set()
    while True:
        server = Script(CREATED, REPLAY)
        file = tmp_path / ("client-%d.db" % n)
        plan.write_bytes(struct.pack("qqq", n, 1, 0))
        first = send(file, server.url, plan)
        met = refused(plan)
        # 127: the dynamic linker. And OpenSSL 3.0 crashes where its own first
        # initialisation gets no memory, which is long before a byte leaves.
        assert first.returncode in (0, 1, 2, 3, 75, 127, CRASH), (n, first)
        if first.returncode == 0:
            # ANSWER_LOST: done, and no room to hand out what was answered.
            assert first.stdout == "made\n" or "was not kept" in first.stderr
        if first.returncode in (1, 2, 3, 127, CRASH):
            assert server.requests == [], (n, first)
        done = send(file, server.url)
        assert (done.returncode, done.stdout) == (0, "made\n"), (n, done)
        keys = {key.decode() for key in server.keys()}
        assert keys == {orders(file)["42"][0]}
        server.close()
        told.add(first.returncode)
        failed += met
        if not met:
            break
        n += STEP
    # The sweep has met allocations of every kind, and they mattered.
    assert failed > 20 and 3 in told, (failed, told)
