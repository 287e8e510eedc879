# SPDX-License-Identifier: Apache-2.0
"""test_drivers.py - the SQL functions, called as real drivers call them: bodies and
results arrive as they were given, ids and keys may be of other types, and with
autocommit on every call is refused.

A driver that is not installed is skipped. `make drivers` installs Java, Go and
node-postgres, which are large; where Debian's node-postgres is not installed, npm
fetches it."""
import itertools
import os
import shutil
import subprocess

import pytest

from carry import PATIENCE, ROOT, Pg

HERE = ROOT / "test/message/drivers"
JAR = "/usr/share/java/postgresql.jar"
GO = "/usr/share/gocode"
PG = "8.23.1"

# Each backslash and escape of it that some notation of strings or bytes knows.
TEXT = r'{"path": "C:\\temp\new", "x": "\x41\101\\000", "é": "\u00e9", "%s": ?}'

_numbers = itertools.count(1)


def python(module):
    def command(_):
        pytest.importorskip(module)
        return ["/usr/bin/python3", HERE / "calls.py", module], {}
    return command


def java(_):
    if not shutil.which("javac") or not os.path.exists(JAR):
        pytest.skip("no Java with JDBC for PostgreSQL")
    return ["java", "-cp", JAR, "-Dfile.encoding=UTF-8",
            HERE / "Calls.java"], {"LC_ALL": "C.UTF-8"}


def go(folder):
    if not shutil.which("go") or not os.path.exists(GO + "/src/github.com/lib/pq"):
        pytest.skip("no Go with lib/pq")
    env = {"GOPATH": GO, "GO111MODULE": "off", "GOFLAGS": "",
           "GOCACHE": str(ROOT / "build/drivers/go")}
    subprocess.run(["go", "build", "-o", folder / "calls", HERE / "calls.go"],
                   env={**os.environ, **env}, check=True, timeout=PATIENCE)
    return [folder / "calls"], {}


def node(_):
    env = {"NODE_PATH": "/usr/share/nodejs"}
    if not shutil.which("node"):
        pytest.skip("no node")
    if subprocess.run(
            ["node", "-e", "require('pg')"], env={**os.environ, **env},
            capture_output=True, check=False, timeout=PATIENCE).returncode:
        found = subprocess.run(["node", ROOT / "test/lib/npm.js", "pg", PG],
                               capture_output=True, text=True, check=False)
        if found.returncode:
            pytest.skip("no node-postgres: " + found.stderr.strip())
        env = {"NODE_PATH": found.stdout.strip() + "/node_modules"}
    return ["node", HERE / "calls.js"], env


DRIVERS = {"psycopg2": python("psycopg2"), "psycopg": python("psycopg"),
           "jdbc": java, "go": go, "node": node}


@pytest.mark.parametrize("name", DRIVERS)
def test_what_a_driver_gives_is_what_is_kept(postgres, tmp_path, name):
    words, env = DRIVERS[name](tmp_path)
    pg = Pg(postgres, "driver%d" % next(_numbers))
    pg.sql("CREATE TABLE effect(body text); GRANT ALL ON effect TO once")
    done = subprocess.run(
        [*words, pg.server.address, str(pg.server.port), pg.name, TEXT],
        env={**os.environ, **env}, capture_output=True, text=True,
        timeout=PATIENCE, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["ON017"] * 5 + ["run", "replay", "True"]

    def kept(text):
        return [row[0] for row in pg.sql(text)]

    text = TEXT.encode().hex()
    assert kept("SELECT encode(convert_to(body, 'UTF8'), 'hex') FROM effect") \
        == [text]
    assert pg.sql("SELECT coalesce(key, '-'), id, encode(body, 'hex') "
                  "FROM once.outbox ORDER BY seq") == [
        ("text", "text", text),
        ("bytes", "bytes", bytes(range(256)).hex()),
        ("json", "json", rb'{"a": "\\u00e9\\"}'.hex()),
        ("42", "43", text),
        ("-", "6f1c2a9b-e04d-4735-8000-000000000001", text)]
    assert pg.sql("SELECT consumer, id, coalesce(encode(result, 'hex'), '-') "
                  "FROM once.inbox ORDER BY consumer") == [
        ("billing", "6f1c2a9b-e04d-4735-8000-000000000002", "-"),
        ("calls", "7", text)]
