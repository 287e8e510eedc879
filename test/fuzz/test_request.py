# SPDX-License-Identifier: Apache-2.0
"""
Requests as no client should write them, to a real nginx: the corpus as it is,
and a bounded number of mutations. The rules stand in request.py.
"""

import pytest

from request import corpus, mutations, run


@pytest.mark.parametrize("store", ["memory", "sqlite"])
def test_the_corpus_breaks_no_rule(tmp_path, store):
    seen = run(tmp_path, store, corpus())
    assert {"200", "400", "closed"} <= set(seen.answers), seen.answers


@pytest.mark.parametrize("store", ["memory", "sqlite"])
def test_a_thousand_mutations_break_no_rule(tmp_path, store):
    seen = run(tmp_path, store, mutations(seed=1, count=500))
    assert seen.sent == 1000


def test_the_rules_can_be_broken(tmp_path):
    """The same input again with the store's memory gone: executed twice."""
    import request
    target = request.Target(tmp_path, "memory")
    data = corpus()[0]
    target.send(data)
    target.look()
    gateway = target.site.gateway
    gateway.kill_all()
    gateway.start()
    target.pids = gateway.worker_pids()
    target.send(data)
    with pytest.raises(request.Broken, match="executed twice"):
        target.look()
    target.close()
