# SPDX-License-Identifier: Apache-2.0
"""mysql_kit.py - what the tests of messages on MariaDB share, and of MySQL where
ONCE_MYSQLD names one: databases that have the tables and procedures of my.sql, and sessions that call them through PyMySQL.

The text is filled in and cut here as `once messages init` does it. ONCE_MY_SQL
names another text, as a mutant has it."""
import contextlib
import os
import re

import pymysql

from carry import PATIENCE, ROOT

# MySQL itself, in place of MariaDB. It has no SET STATEMENT: a claim waits as long
# as its session says, and docs/mysql.md says to set it.
MYSQL = "ONCE_MYSQLD" in os.environ
LOCK_S = 2 if MYSQL else 50

MARKS = {
    "@keep@": "604800000", "@create@": "CREATE /*M! OR REPLACE */",
    "@wait@": "/*M! SET STATEMENT innodb_lock_wait_timeout = 2 FOR */"}
STRANGER = "app"  # an account that may EXECUTE, and nothing else


def text(marks=MARKS):
    path = os.environ.get("ONCE_MY_SQL", ROOT / "src/messages/tables/my.sql")
    with open(path, encoding="ascii") as file:
        whole = file.read()
    for mark, value in marks.items():
        whole = whole.replace(mark, value)
    return whole


def statements(whole):
    """Without comments, which stand in lines of their own."""
    lines = [line for line in whole.splitlines() if not line.startswith("--")]
    end, found = ";", []
    for line in lines:
        if line.startswith("DELIMITER "):
            end = line.split()[1]
            continue
        if not found or found[-1][1]:
            found.append(["", False])
        found[-1][0] += line + "\n"
        if line.endswith(end):
            found[-1] = [found[-1][0].strip()[:-len(end)].strip(), True]
    return [statement for statement, _ in found if statement.strip()]


def bodies(whole):
    """{procedure: what stands between BEGIN and END, with both}, as MariaDB keeps
    it: what it executes of a comment is no comment any more."""
    if not MYSQL:
        whole = re.sub(r"/\*M!(.*?)\*/", r"\1", whole)
    return {re.search(r"PROCEDURE (\w+)", s)[1]: kept(s[s.index("\nBEGIN") + 1:])
            for s in statements(whole) if " PROCEDURE once_" in s
            and s.startswith("CREATE")}


def kept(body):
    """MySQL keeps what a literal stands for: without that, and white space."""
    return re.sub(r"\\[nr]|[\s\\']", "", body) if MYSQL else body


class My:
    """A database, and two accounts: that of the tests, which owns it, and one
    that may only call."""

    def __init__(self, server, name, owner="once", password=""):
        self.server = server
        self.name = name
        self.owner = {"user": owner, "password": password}
        server.sql("CREATE DATABASE IF NOT EXISTS %s" % name)
        server.sql("CREATE TABLE effect(no BIGINT AUTO_INCREMENT PRIMARY KEY, "
                   "body LONGBLOB) ENGINE = InnoDB", name)
        self.install()
        server.sql("CREATE USER IF NOT EXISTS %s@'%%'; "
                   "GRANT EXECUTE ON %s.* TO %s@'%%'; "
                   "GRANT SELECT, INSERT ON %s.effect TO %s@'%%'"
                   % (STRANGER, name, STRANGER, name, STRANGER))

    def install(self):
        with contextlib.closing(self.connect(autocommit=True, **self.owner)
                                ) as db:
            for statement in statements(text()):
                db.cursor().execute(statement)

    def connect(self, user=STRANGER, **more):
        return pymysql.connect(
            host=self.server.address, port=self.server.port, user=user,
            database=self.name, read_timeout=PATIENCE, **more)

    def open(self, level="", **more):
        session = Session(self.connect(**more))
        if MYSQL:
            session.run("SET SESSION innodb_lock_wait_timeout = %s", LOCK_S)
        if level:
            session.run("SET SESSION TRANSACTION ISOLATION LEVEL " + level)
        return session

    def root(self, **more):
        return Session(pymysql.connect(
            unix_socket=str(self.server.socket), user="root",
            database=self.name, **more))

    def sql(self, query):
        """What stands there, as root."""
        with contextlib.closing(self.root(autocommit=True)) as session:
            with session.db.cursor() as cursor:
                cursor.execute(query)
                return cursor.fetchall()


class Session:
    """A connection with autocommit off, as PyMySQL opens it."""

    def __init__(self, db):
        self.db = db

    def run(self, query, *args):
        with self.db.cursor() as cursor:
            cursor.execute(query, args)
            return cursor.fetchall()

    def call(self, name, *args):
        """The first column, if there is one alone."""
        row, = self.run("CALL %s(%s)" % (name, ", ".join(["%s"] * len(args))),
                        *args)
        return row[0] if len(row) == 1 else row

    def claim(self, name, fingerprint=None, attempt=0, consumer="c"):
        return self.call("once_inbox_claim", consumer, name, fingerprint,
                         attempt)

    def park(self, name, fingerprint=None, state=1, **more):
        words = dict({"wait_ms": 0, "key": None, "type": "t", "headers": "",
                      "body": b"b", "error": "e"}, **more)
        return self.call("once_inbox_park", "c", name, fingerprint, state,
                         *words.values())

    def emit(self, body=b"b", key=None, name=None, route="r", due=0, keep=0,
             **more):
        return self.call("once_emit", route, body, key, name,
                         more.get("type", ""), more.get("headers", ""), due,
                         keep)

    def begin(self, key, fingerprint=None):
        return self.call("once_begin", "c", key, fingerprint)

    def finish(self, key, token, kind=1, result=b"r"):
        return self.call("once_finish", "c", key, token, kind, result)

    def enter(self, op, gid="g", branch="b"):
        return self.call("once_barrier_enter", gid, branch, op)

    def commit(self):
        self.db.commit()

    def rollback(self):
        self.db.rollback()

    def close(self):
        self.db.close()


def refused(session, call, *args, **more):
    """SQLSTATE, number and text of the error that this call must be; PyMySQL
    leaves out the first."""
    try:
        answer = call(*args, **more)
    except pymysql.MySQLError as error:
        if MYSQL:  # warnings come before it
            session.run("GET DIAGNOSTICS @last = NUMBER")
        session.run("GET DIAGNOSTICS CONDITION %s @state = RETURNED_SQLSTATE"
                    % ("@last" if MYSQL else "1"))
        (state,), = session.run("SELECT @state")
        return state, *error.args
    raise AssertionError("no error but %r" % (answer,))
