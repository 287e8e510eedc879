# SPDX-License-Identifier: Apache-2.0
"""
JSON bodies against a second implementation (json_peer.py): a few of the
documents that it draws, and that it would notice a difference.
"""

import pytest

import json_peer


def test_both_make_the_same_of_each_document():
    seen = json_peer.run(20000, seed=7)
    assert min(seen[word] for word in
               ("bytes", "compared", "key", "none", "refused")) > 300, seen


def test_a_difference_would_be_seen(monkeypatch):
    monkeypatch.setattr(json_peer, "DEEPEST", 3)
    with pytest.raises(AssertionError, match="not bytes"):
        json_peer.run(20000, seed=7)
