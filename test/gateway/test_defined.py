# SPDX-License-Identifier: Apache-2.0
"""
A route that the deployer has defined at `once serve`: its middleware asks how much
of a body it has to read.
"""

import pytest

from gateway import TARGET, guarded, is_new, is_replay

pytestmark = pytest.mark.skipif(TARGET in ("nginx", "guarded"),
                                reason="they read the route themselves")
MIB = 1 << 20


@pytest.fixture(name="big")
def a_big_one(make, tmp_path, monkeypatch):
    (tmp_path / "big").write_text('{"max_request": "3m"}')
    monkeypatch.setenv("ONCE_DEFINED", "big=%s" % (tmp_path / "big"))
    return make(guarded("/big/", "once_defined big;", scope="$uri"))


def test_its_limit_is_that_of_the_server(big):
    c = big.case("/big/")
    first = is_new(c.post(body=b"x" * 3 * MIB))
    is_replay(c.post(body=b"x" * 3 * MIB), first)
    assert len(c.requests[0].body) == 3 * MIB
    long = big.case("/big/")
    assert long.post(body=b"x" * (3 * MIB + 1)).status == 413
    assert long.executions == 0
    assert long.post(body=b"x" * 5 * MIB, key=None).status == 201
    assert len(long.requests[0].body) == 5 * MIB
