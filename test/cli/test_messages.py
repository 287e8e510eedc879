# SPDX-License-Identifier: Apache-2.0
"""`once messages`: the tables of messages in a program's own database."""

import contextlib
import json
import os
import re
import sqlite3
import subprocess

import pytest

from once_cli import ONCE


def messages(url, *arguments):
    return subprocess.run([ONCE, "--database", url, "messages", *arguments],
                          capture_output=True, text=True, check=False)


@pytest.fixture
def database(tmp_path):
    return tmp_path / "shop.db"


def test_init_makes_tables_beside_those_of_the_program(database):
    with contextlib.closing(sqlite3.connect(database)) as db, db:
        db.execute("CREATE TABLE orders(id)")
    url = "sqlite:%s" % database
    assert messages(url, "init", "--window", "2d").returncode == 0
    assert messages(url, "init").returncode == 0
    assert messages(url, "check").returncode == 0
    with contextlib.closing(sqlite3.connect(database)) as db:
        assert db.execute("SELECT keep_ms FROM once_message_meta").fetchall() \
            == [(2 * 86400000,)]
        assert db.execute("SELECT count(*) FROM orders").fetchone() == (0,)


def test_purge_forgets_what_is_older_than_the_window(database):
    url = "sqlite:%s" % database
    assert messages(url, "init").returncode == 0
    with contextlib.closing(sqlite3.connect(database)) as db, db:
        db.execute("INSERT INTO once_inbox VALUES('c','old',1,NULL,1,NULL,NULL)")
    done = messages(url, "purge", "--json")
    assert (done.returncode, json.loads(done.stdout)) == (0, {"forgotten": 1})


def test_print_shows_the_text_and_makes_nothing(database):
    with contextlib.closing(sqlite3.connect(database)) as db, db:
        db.execute("CREATE TABLE orders(id)")
    done = messages("sqlite:%s" % database, "init", "--print")
    assert done.returncode == 0
    assert "CREATE TABLE IF NOT EXISTS main.once_inbox" in done.stdout
    assert messages("sqlite:%s" % database, "check").returncode == 3


def test_print_needs_no_server():
    done = messages("mysql:", "init", "--print", "--window", "1d")
    assert done.returncode == 0, done.stderr
    assert "CREATE TABLE IF NOT EXISTS once_inbox" in done.stdout
    assert "VALUES (1, 2, 86400000, 0)" in done.stdout
    assert "PROCEDURE once_emit(" in done.stdout
    assert not re.search(r"@(keep|create|wait|schema)@", done.stdout)


@pytest.mark.parametrize("url, arguments, status, text", [
    ("mysql:", ["init"], 2, "names no place"),
    ("mysql:", ["check"], 2, "not postgres://"),
    ("sqlite:", ["init"], 2, "names no file"),
    ("memory:", ["init"], 2, "not postgres://"),
    ("journal:/tmp/x", ["init"], 2, "not postgres://"),
    ("sqlite:/nonexistent/x.db", ["init"], 3, "unable to open"),
    ("sqlite:/nonexistent/x.db", [], 2, "init check purge"),
    ("sqlite:/nonexistent/x.db", ["drop"], 2, "init check purge"),
    ("sqlite:/nonexistent/x.db", ["check", "--window", "1d"], 2, "require init"),
])
def test_what_cannot_be_is_said(url, arguments, status, text):
    done = messages(url, *arguments)
    assert done.returncode == status
    assert text in done.stderr


def test_a_window_that_is_too_short_is_refused(database):
    done = messages("sqlite:%s" % database, "init", "--window", "1s")
    assert done.returncode != 0
    assert "keep_ms" in done.stderr


@pytest.mark.parametrize("words", [
    ["relay", "--to", "r=amqp://u:s3cret@127.0.0.1:1/", "--drain"],
    ["consume", "--from", "amqp://u:s3cret@127.0.0.1:1/?queue=q",
     "--consumer", "c", "--idle", "1s", "--sql", "SELECT 1"],
])
def test_a_password_in_the_command_line_is_warned_of(database, words):
    done = subprocess.run([ONCE, "messages", *words, "--database",
                           "sqlite:%s" % database], capture_output=True,
                          text=True, check=False, timeout=60)
    assert done.returncode == 3
    assert "can read this password" in done.stderr
    assert "s3cret" not in done.stderr


@pytest.mark.parametrize("words", [
    ["send", "POST", "http://127.0.0.1:1/", "--order", "1", "--deadline", "1s",
     "--client-store", "@db", "--secret", "X-Token: s3cret"],
    ["send", "POST", "http://127.0.0.1:1/", "--order", "1", "--deadline", "1s",
     "--client-store", "@db", "--header", "Authorization: Bearer s3cret"],
    ["lookup", "http://127.0.0.1:1/", "--key-file", "/dev/null", "--secret",
     "X-Token: s3cret"],
    ["console", "--listen", "unix:/nowhere/socket", "--store",
     "main=redis://u:s3cret@127.0.0.1:1/"],
    ["console", "--listen", "unix:/nowhere/socket", "--store", "sqlite:x",
     "--database", "shop=postgres://127.0.0.1:1/?password=s3cret"],
    ["check", "--store", "postgres://127.0.0.1:1/a?password=s3cret"],
])
def test_a_secret_in_the_command_line_is_warned_of(tmp_path, words):
    words = [str(tmp_path / "client.db") if w == "@db" else w for w in words]
    done = subprocess.run([ONCE, *words], capture_output=True, text=True, check=False,
                          timeout=60, env=dict(os.environ, ONCE_AUDIT="off"))
    assert done.returncode != 0
    assert "everybody on this host can read this" in done.stderr, done
    assert "s3cret" not in done.stderr


@pytest.mark.parametrize("words, wanted", [
    (["check"], "which database"),
    (["outbox", "ls"], "which database"),
    (["saga", "ls"], "which database"),
    (["emit", "--route", "r"], "which database"),
    (["relay", "--to", "r=exec:true"], "which database"),
    (["consume", "--from", "x", "--consumer", "c", "--sql", "x"],
     "which database"),
    (["consume", "--database", "sqlite:x.db", "--from", "x", "--consumer", "c",
      "--", "true"], "which store keeps the calls"),
])
def test_the_store_of_once_run_stands_in_for_no_other(tmp_path, words, wanted):
    env = {n: v for n, v in os.environ.items()
           if n not in ("ONCE_STORE", "ONCE_DATABASE")}
    env["XDG_STATE_HOME"] = str(tmp_path)
    subprocess.run([ONCE, "init"], env=env, check=True, capture_output=True)
    done = subprocess.run([ONCE, "messages", *words], env=env, text=True,
                          stdin=subprocess.DEVNULL, capture_output=True,
                          check=False, timeout=60)
    assert (done.returncode, done.stdout) == (2, ""), done
    assert wanted in done.stderr, done


# ---- Files with secrets ------------------------------------------------------------


def ask(folder, kind, path):
    """A command that reads the secret, and an address where nobody listens."""
    nowhere = "127.0.0.1:1"
    words = {
        "url": ["check", "--store", "@%s" % path],
        "password_file": ["check", "--store",
                          "mysql://u@%s/d?password_file=%s" % (nowhere, path)],
        "redis": ["check", "--store", "redis://%s/0?password_file=%s" % (nowhere, path)],
        "database": ["messages", "stats", "--database", "@%s" % path],
        "name": ["check", "--store", path.name],
        "console": ["console", "--listen", "unix:%s" % (folder / "s"), "--store",
                    "main=@%s" % path],
        "header": ["send", "POST", "http://127.0.0.1:1/", "--order", "1", "--deadline",
                   "1s", "--client-store", str(folder / "c.db"), "--secret", "@%s" % path],
    }[kind]
    done = subprocess.run([ONCE, *words], capture_output=True, text=True, check=False,
                          timeout=60, env=dict(os.environ, ONCE_AUDIT="off",
                                               ONCE_STORES_D=str(folder)))
    assert done.returncode != 0 and "s3cret" not in done.stderr
    return done.stderr


SECRETS = {"url": "redis://u:s3cret@127.0.0.1:1/", "password_file": "s3cret",
           "redis": "s3cret", "database": "postgres://u:s3cret@127.0.0.1:1/d",
           "name": "url = redis://u:s3cret@127.0.0.1:1/",
           "header": "Authorization: Bearer s3cret",
           "console": "redis://u:s3cret@127.0.0.1:1/"}


@pytest.mark.parametrize("kind", SECRETS)
def test_a_file_with_a_secret_is_not_for_everybody(tmp_path, kind):
    path = tmp_path / "pay"
    path.write_text(SECRETS[kind] + "\n")
    for mode, better in (0o644, "0640"), (0o660, "0640"), (0o604, "0600"), (0o622, "0600"):
        path.chmod(mode)
        said = ask(tmp_path, kind, path)
        assert "%s: it holds a secret and has mode %04o" % (path, mode) in said, said
        assert "chmod %s %s" % (better, path) in said
    for mode in (0o600, 0o400, 0o440, 0o640) if kind != "console" else ():  # it runs on
        path.chmod(mode)
        assert "holds a secret" not in ask(tmp_path, kind, path)


def test_a_url_without_a_password_may_be_read_by_all(tmp_path):
    path = tmp_path / "pay"
    path.write_text("redis://127.0.0.1:1/\n")
    path.chmod(0o644)
    assert "holds a secret" not in ask(tmp_path, "url", path)
