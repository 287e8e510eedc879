# SPDX-License-Identifier: Apache-2.0
"""test_mysql_drivers.py - the procedures of my.sql, called as real drivers call them,
with the settings that these have by themselves; and what docs/mysql.md shows of
it: its rights, and its examples, which become part of each driver's program.

A driver that is not installed is skipped. `make drivers` installs Java and Go."""
import os
import re
import shutil
import subprocess

import pytest

import mysql_kit
from carry import PATIENCE, ROOT

HERE = ROOT / "test/message/drivers"
PAGE = ROOT / "docs/mysql.md"
JAR = "/usr/share/java/mariadb-java-client.jar"
GO = "/usr/share/gocode"
MYSQL2 = "mysql2@3.24.6"
# Each backslash and quote that a notation of strings knows, and four bytes of UTF-8.
TEXT = r'''{"path": "C:\\temp\new", "x": "\'%s\000", "é": "%_?:é", "\u00e9": "😀"}'''


def blocks(language):
    with open(PAGE, encoding="utf-8") as file:
        page = file.read().split("\n## Messages\n")[1].split("\n## ")[0]
    return re.findall("```%s\n(.*?)```" % language, page, re.S)


def program(name, folder, language=None):
    """A driver's program with the example of the page in its place."""
    text = (HERE / name).read_text(encoding="utf-8")
    if language:
        example, = blocks(language)
        text, n = re.subn(r"(?m)^ *(#|//) EXAMPLE: .*$", lambda _: example, text)
        assert n == 1
    (folder / name).write_text(text, encoding="utf-8")
    return folder / name


def python(folder):
    return ["/usr/bin/python3", program("mysql_calls.py", folder, "python")], {}


def java(folder):
    if not shutil.which("javac") or not os.path.exists(JAR):
        pytest.skip("no Java with MariaDB Connector/J")
    return ["java", "-cp", JAR, "-Dfile.encoding=UTF-8",
            program("MysqlCalls.java", folder, "java")], {"LC_ALL": "C.UTF-8"}


def go(folder):
    if not shutil.which("go") or not os.path.exists(
            GO + "/src/github.com/go-sql-driver/mysql"):
        pytest.skip("no Go with go-sql-driver")
    env = {"GOPATH": GO, "GO111MODULE": "off", "GOFLAGS": "",
           "GOCACHE": str(ROOT / "build/drivers/go")}
    subprocess.run(["go", "build", "-o", folder / "calls",
                    program("mysql_calls.go", folder)],
                   env={**os.environ, **env}, check=True, timeout=PATIENCE)
    return [folder / "calls"], {}


def node(folder):
    env = {"NODE_PATH": "/usr/share/nodejs"}
    if mysql_kit.MYSQL:
        pytest.skip("the driver does not know how MySQL is shown a password")
    if not shutil.which("node") or subprocess.run(
            ["node", "-e", "require('mysql')"], env={**os.environ, **env},
            capture_output=True, check=False, timeout=PATIENCE).returncode:
        pytest.skip("no node with node-mysql")
    return ["node", program("mysql_calls.js", folder, "js")], env


def node2(folder):
    """Debian has no mysql2."""
    modules = folder / "node_modules"
    if shutil.which("npm") is None or subprocess.run(
            ["npm", "install", "--silent", "--no-audit", "--no-fund", MYSQL2],
            cwd=folder, capture_output=True, check=False, timeout=PATIENCE,
            env=dict(os.environ, npm_config_fetch_retries="0")).returncode:
        pytest.skip("mysql2 was NOT run: npm is not there, or cannot fetch it")
    at = program("mysql_calls.js", folder, "js")
    at.write_text(at.read_text().replace("require('mysql')", "require('mysql2')"))
    return ["node", at], {"NODE_PATH": str(modules)}


DRIVERS = {"pymysql": python, "jdbc": java, "go": go, "node": node, "mysql2": node2}


@pytest.fixture(name="shop")
def _shop(mysql):
    """The rights of the page; the service's own tables; accounts that last for
    one test."""
    accounts, rights = blocks("sql")
    mysql.sql("CREATE DATABASE shop; " + accounts)
    shop = mysql_kit.My(mysql, "shop", "shop_owner", "...")
    mysql.sql(rights)
    mysql.sql("""CREATE TABLE orders(id BIGINT PRIMARY KEY, cents BIGINT);
        CREATE TABLE invoices(order_id BIGINT PRIMARY KEY, cents BIGINT);
        GRANT INSERT ON shop.effect TO shop_app@'%';
        GRANT INSERT ON shop.orders TO shop_app@'%';
        GRANT INSERT ON shop.invoices TO shop_app@'%'""", "shop")
    yield shop
    mysql.sql("DROP DATABASE shop; DROP USER shop_app@'%', shop_owner@'%'")


@pytest.mark.parametrize("name", DRIVERS)
def test_what_a_driver_gives_is_what_is_kept(shop, tmp_path, name):
    words, env = DRIVERS[name](tmp_path)
    done = subprocess.run(
        [*words, shop.server.address, str(shop.server.port), "shop", "shop_app",
         "...", TEXT], env={**os.environ, **env}, capture_output=True,
        text=True, timeout=PATIENCE, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["no transaction is open"] * 4 + [
        "run None False", "ok", "replay 1 True", "text", "bytes", "None",
        "True", "True", "False"]
    text = TEXT.encode()
    assert shop.sql("SELECT body FROM effect") == ((text,),)
    rows = shop.sql("SELECT route, id, `key`, type, body FROM once_outbox "
                    "ORDER BY seq")
    assert rows[:2] == ((b"r", b"text", b"7", b"t", text),
                        (b"r", b"bytes", b"7", b"t", bytes(range(256))))
    (route, _, key, kind, body), = rows[2:]
    assert (route, key, kind, body.replace(b" ", b"")) == (
        b"orders", b"42", b"application/json", b'{"order":42,"cents":1250}')
    assert shop.sql("SELECT consumer, id, result FROM once_inbox "
                    "ORDER BY consumer") == (
        (b"billing", b"m1", None), (b"calls", b"7", text))
    assert shop.sql("SELECT id, cents FROM orders") == ((42, 1250),)
    assert shop.sql("SELECT order_id FROM invoices") == ((42,),)
