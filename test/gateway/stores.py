# SPDX-License-Identifier: Apache-2.0
"""stores.py - a store of each kind, for stories that are the same on all."""

import pathlib
import sys

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "lib"))

# pylint: disable=wrong-import-position
import servers  # noqa: E402
import storelist  # noqa: E402

STORES = ["memory", *storelist.LOCAL, *storelist.SERVED]


def a_world():
    """Servers of stores, each started when the first test asks for it."""
    return servers.World()


def new_store(world, kind, folder):
    """The URL of an empty store; skips where its server is not installed."""
    if kind == "journal":
        return "journal:%s/pay" % folder
    if kind not in storelist.SERVED:
        return kind
    try:
        if kind not in world.servers:
            world.build(kind)
        return storelist.own(world.servers[kind].url())
    except servers.Missing as missing:
        return pytest.skip(str(missing))
