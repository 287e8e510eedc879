# SPDX-License-Identifier: Apache-2.0
"""
No secret in what the console shows or writes (A5). A gateway is used with marks
in key, scope, request body, response body and header values; then all that the
console answers is read, and all that it wrote, its core file included.
"""

import subprocess

import pytest

import marks
from console import CONSOLE, MARK, Answer, World, waiting

BODY = b'{"secret": "%sanswer"}' % MARK.encode()


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    it = World(tmp_path_factory.mktemp("marks"))
    try:
        yield it
    finally:
        for console in it.consoles:
            console.close()
        # The store has the answer's body by right: Site.close() would ask.
        it.site.gateway.close()
        for upstream in it.site.upstreams:
            upstream.close()


def everything(console, name):
    """All that can be asked for without the right `body`."""
    for path in ("/", "/app.js", "/dom.js", "/api/v1/openapi.json"):
        yield console.send("GET", path).raw
    for path in ("session", "stores", "stores/main", "audit",
                 "stores/main/records?what=all",
                 "stores/main/records?what=waiting",
                 "stores/main/records?what=live",
                 "stores/main/records/" + name,
                 "stores/main/records/%s/timeline" % name):
        yield console.ask("GET", path).raw
    # A question with a mark in it is answered without it.
    for body in ({"by": "key", "group": "g", "key": MARK + "key"},
                 {"by": "request", "scope": MARK + "scope", "realm": "r",
                  "method": "POST", "path": "/p", "key": MARK + "key"},
                 {"by": "request", "scope": MARK, "realm": "r",
                  "method": "POST", "path": "/p", "key": '"%s' % MARK},
                 {"by": "label", "label": "nothing " + MARK}):
        yield console.ask("POST", "find", body).raw


def test_no_mark_is_shown_or_written(world):
    console = world.console("--decide")
    case = world.site.case("/pay/", Answer(200, BODY, [
        ("X-Secret", MARK + "value")]))
    case.post(query="order=marked", headers=[("X-Tenant", MARK + "tenant")])
    name = console.records(what="all")[0]["name"]
    world.lose("marked-2")
    waits = waiting(console, "marked-2")
    for raw in everything(console, name):
        assert MARK.encode() not in raw, raw[:300]
    for raw in everything(console, waits["name"]):
        assert MARK.encode() not in raw, raw[:300]
    # The names of the stored headers are shown, their values are not.
    told = console.record(name)["told"]
    assert "X-Secret" in told["headers"] and told["body_bytes"] == len(BODY)
    # Fingerprint and token are in the store only.
    columns = stored(world, waits["name"])
    assert columns, "the store has no such row"
    for raw in everything(console, waits["name"]):
        for secret in columns:
            assert secret.hex().encode() not in raw
    log = console.audit_file.read_bytes() if console.audit_file.exists() \
        else b""
    for data in (log, (console.folder / "stderr").read_bytes()):
        assert MARK.encode() not in data


def stored(world, name):
    """Fingerprint and token of a record, as the store has them."""
    import sqlite3  # pylint: disable=import-outside-toplevel
    with sqlite3.connect("file:%s?mode=ro" % world.site.db, uri=True) as d:
        d.row_factory = sqlite3.Row
        for (table,) in d.execute("SELECT name FROM sqlite_master "
                                  "WHERE type = 'table'").fetchall():
            for row in d.execute('SELECT * FROM "%s"' % table):
                if bytes.fromhex(name) in [v for v in tuple(row)
                                           if isinstance(v, bytes)]:
                    return [row[k] for k in row.keys()
                            if k in ("fingerprint", "token")]
    return []


def test_it_leaves_no_core_file(world, tmp_path):
    if not marks.cores_are_left(tmp_path):
        pytest.skip("no core files on this machine")
    with subprocess.Popen(
            [CONSOLE, "--store", world.url, "--listen", "127.0.0.1:0",
             "--audit", "off"], cwd=tmp_path, stdout=subprocess.PIPE,
            preexec_fn=marks.may_leave_core) as child:
        child.stdout.readline()
        assert not marks.left_core(child)
