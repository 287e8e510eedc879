# SPDX-License-Identifier: Apache-2.0
"""The stores there are, as src/calls/store/stores.def lists them: a table of a test
that is about all of them, or all of a kind, is made from it."""

import os
import pathlib
import re

DEFINITION = pathlib.Path(__file__).resolve().parents[2] / \
    "src" / "calls" / "store" / "stores.def"
LINE = re.compile(r'^ONCE_STORE\((\w+), (\w+), (NULL|".*")\)', re.M)


def stores(*places):
    """Names of stores whose records are in one of these places. A store that
    has several schemes is there once, by the scheme that has an example."""
    return tuple(name for name, place, example
                 in LINE.findall(DEFINITION.read_text(encoding="utf-8"))
                 if place in places and example != "NULL")


LOCAL = stores("FILE", "FOLDER")
SERVED = stores("SERVER")


def own(url):
    """The URL of a store that is nobody else's, on the server at this URL."""
    name = os.urandom(4).hex()
    head, mark, query = url.partition("?")
    scheme = url.partition(":")[0]
    if scheme == "mysql":
        return head + "_" + name + mark + query
    word = {"postgres": "schema=t", "redis": "prefix="}[scheme]
    return "%s?%s%s%s" % (head, word, name, query and "&" + query)
