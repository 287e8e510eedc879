# SPDX-License-Identifier: Apache-2.0
"""
The response of an owner, from its first byte to its record: what counts as
whole, and what must not end a worker or a request on the way.
"""

import re

import pytest

from gateway import (Answer, debugging, eventually, guarded, is_new, is_problem,
                     is_replay)

pytestmark = pytest.mark.nginx_only("protocols and filters of nginx")

SECOND = Answer(201, b"a second execution\n")

# ---- Debug logs ----------------------------------------------------------


@pytest.mark.skipif(not debugging(), reason="nginx without --with-debug")
@pytest.mark.parametrize("store", ["sqlite", "memory"])
def test_a_worker_outlives_its_own_debug_lines(make, store):
    site = make(guarded("/pay/", "once_in_flight wait=5s;"), store=store,
                level="debug")
    workers = site.gateway.worker_pids()
    c = site.case("/pay/")
    first = is_new(c.post())
    is_replay(c.post(), first)
    # The module's own timer fires each second, in each worker.
    eventually(lambda: len(re.findall(r"timer add: \d+: 1000:",
                                      site.gateway.said()))
               > 2 * len(workers))
    is_replay(c.post(), first)
    assert site.gateway.worker_pids() == workers
    said = site.gateway.said()
    assert "exited on signal" not in said
    # Each timer names the descriptor of a connection: a small number.
    timers = re.findall(r"event timer add: (-?\d+):", said)
    assert timers and all(0 <= int(fd) < 1000 for fd in timers)
