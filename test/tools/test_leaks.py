# SPDX-License-Identifier: Apache-2.0
"""The search for secrets that tests leave behind (test/lib/marks.py) finds them."""

import base64
import contextlib
import os
import pathlib
import sqlite3
import subprocess
import tempfile

import pytest

import marks
from marks import MARK

TOKEN = bytes(range(16))


@pytest.fixture
def folder():
    """Not tmp_path: what is planted here must not be found after the tests."""
    with tempfile.TemporaryDirectory() as path:
        yield pathlib.Path(path)


def found(folder, name, data):
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return marks.leaks(folder)


@pytest.mark.parametrize("form", [
    MARK.encode(), MARK.encode().hex().encode(), MARK.encode().hex().upper().encode(),
    base64.b64encode(b"." + MARK.encode() + b"."),
    base64.b64encode(b".." + MARK.encode()), base64.b64encode(MARK.encode())])
@pytest.mark.parametrize("name", ["nginx/error.log", "relay.log", "audit.jsonl",
                                  "nginx/core", "relay.prom"])
def test_a_mark_is_found_in_each_form(folder, name, form):
    assert found(folder, name, b"1\n\0key=x%sx\n" % form)
    assert not found(folder, name, b"1\n\0key=-\n")


def test_what_holds_it_by_right_may(folder):
    assert not found(folder, "t/key", MARK.encode())
    assert not found(folder, "store.db", b"SQLite format 3\0" + MARK.encode())
    assert not found(folder, "j/00000001.log", MARK.encode())


@pytest.mark.parametrize("column", ["token", "fingerprint"])
def test_a_secret_of_a_record_is_found(folder, column):
    with contextlib.closing(sqlite3.connect(folder / "store.db")) as db, db:
        db.execute("CREATE TABLE claim(name, token, fingerprint)")
        db.execute("INSERT INTO claim(name, %s) VALUES(x'00', ?)" % column,
                   (TOKEN,))
    assert not found(folder, "error.log", b"name 0001020304\n")
    assert found(folder, "error.log", b"is " + TOKEN.hex().encode() + b"\n")


def test_a_key_of_an_order_is_found(folder):
    with contextlib.closing(sqlite3.connect(folder / "client.db")) as db, db:
        db.execute("CREATE TABLE orders(key)")
        db.execute("INSERT INTO orders VALUES('0d9fa9cf-23b1')")
    assert found(folder, "stderr", b"sent 0d9fa9cf-23b1\n")


def test_what_a_program_prints_is_kept(folder, monkeypatch):
    monkeypatch.setattr(subprocess.Popen, "communicate",
                        subprocess.Popen.communicate)
    monkeypatch.setattr(marks, "captured", None)
    marks.capture(folder)
    program = folder / "once"
    program.write_text("#!/bin/sh\necho \"$ONCE_SAYS\"\n")
    program.chmod(0o755)
    for stream in ("stdout", "stderr"):
        subprocess.run([program, "ls", "--json"], check=True, capture_output=True,
                       env=dict(os.environ, ONCE_SAYS=stream + MARK))
    (path, _), = marks.leaks(folder)
    assert path.endswith("once ls --json")
