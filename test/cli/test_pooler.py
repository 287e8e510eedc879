# SPDX-License-Identifier: Apache-2.0
"""test_pooler.py - the MySQL store behind a pooler that gives each transaction, or
each packet, a session of its own, on a server whose sql_mode is not ours.

Such a session has lost what the inspection has set. Nothing may be written by it,
and no byte of a result may be read as SQL."""
import contextlib
import socket
import threading

import pytest

from once_cli import Store

import servers

EVIL = "'); DELETE FROM once_record; COMMIT; -- "


def read_packet(stream):
    head = stream.read(4)
    if len(head) < 4:
        raise EOFError
    return head + stream.read(int.from_bytes(head[:3], "little"))


class Pooler:
    """`renews` says of a query whether a new session begins with it. The account
    has no password, so that its answer to one greeting answers each. `edits` returns
    what the server gets in place of a query."""

    def __init__(self, address, renews, edits=lambda query: query):
        self.address = address
        self.renews = renews
        self.edits = edits
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self):
        with contextlib.suppress(OSError):
            while True:
                client, _ = self.listener.accept()
                threading.Thread(target=self.serve, args=(client,),
                                 daemon=True).start()

    def connect(self, client, login):
        server = socket.create_connection(self.address)
        answers = server.makefile("rb")
        greeting = read_packet(answers)
        if login is None:
            client.sendall(greeting)
            login = read_packet(client.makefile("rb", buffering=0))
            server.sendall(login)
            client.sendall(read_packet(answers))
        else:
            server.sendall(login)
            read_packet(answers)
        threading.Thread(target=self.carry, args=(answers, client),
                         daemon=True).start()
        return server, login

    @staticmethod
    def carry(answers, client):
        with contextlib.suppress(OSError, ValueError):
            while data := answers.read1(65536):
                client.sendall(data)

    def serve(self, client):
        server, login = self.connect(client, None)
        stream = client.makefile("rb")
        with contextlib.suppress(EOFError, OSError):
            while True:
                packet = read_packet(stream)
                if packet[4:5] == b"\x03" and self.renews(packet[5:]):
                    server.shutdown(socket.SHUT_RDWR)
                    server, _ = self.connect(client, login)
                if packet[4:5] == b"\x03":
                    query = packet[4:5] + self.edits(packet[5:])
                    packet = len(query).to_bytes(3, "little") + packet[3:4] + query
                server.sendall(packet)
        for end in (client, server):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def close(self):
        self.listener.shutdown(socket.SHUT_RDWR)
        self.listener.close()


@pytest.fixture(scope="module")
def mysql():
    with servers.World() as world:
        try:
            server = servers.mysql_or_mariadb(world).init()
        except servers.Missing as missing:
            pytest.skip(str(missing))
        server.start()
        server.furnish()
        server.sql("SET GLOBAL sql_mode = 'NO_BACKSLASH_ESCAPES,ANSI_QUOTES'")
        yield server


@pytest.fixture
def store(mysql, tmp_path):
    store = Store(tmp_path)
    store.url = mysql.url()
    store.ok("init")
    yield store
    mysql.sql("DROP DATABASE once; CREATE DATABASE once")


def put(store, key, text):
    done = store.once("run", "--key", key, "--", "printf", "%s", text)
    return done.returncode, done.stdout.decode(), done.stderr.decode()


@pytest.mark.parametrize("renews", [
    lambda query: query.startswith(b"BEGIN;"),
    lambda query: True], ids=["each transaction", "each packet"])
def test_a_session_without_our_settings_is_refused(store, mysql, renews):
    assert put(store, "paid", "done")[:2] == (0, "done")
    before = store.ok("ls", "--all")
    direct = store.url
    pooler = Pooler((mysql.address, mysql.port), renews)
    store.url = direct.replace(":%d/" % mysql.port, ":%d/" % pooler.port)
    assert store.url != direct
    code, out, err = put(store, "evil", EVIL)
    pooler.close()
    store.url = direct
    assert store.ok("ls", "--all") == before
    assert (code, out) == (69, ""), err
    assert "pooler" in err and "one session for each connection" in err
    assert put(store, "paid", "done")[:2] == (0, "done")


@pytest.mark.parametrize("value", ["NULL", "latin1", "utf8"])
def test_a_session_with_another_character_set_of_results_is_refused(
        store, mysql, value):
    """With NULL a comparison is NULL, which CONCAT_WS() leaves out."""
    names = b"SET NAMES binary"
    seen = []

    def edit(query):
        seen.append(names in query)
        return query.replace(names, names + b", character_set_results = " +
                             value.encode())
    pooler = Pooler((mysql.address, mysql.port), lambda query: False, edit)
    direct = store.url
    store.url = direct.replace(":%d/" % mysql.port, ":%d/" % pooler.port)
    code, out, err = put(store, "k", "done")
    pooler.close()
    store.url = direct
    assert any(seen) and code != 0 and out == "", err
    assert "character set" in err and "one session for each connection" in err
    assert put(store, "k", "done")[:2] == (0, "done")


@pytest.mark.parametrize("text", [EVIL, "\\", "\\'; ROLLBACK; -- ", "\"`\x7f"])
def test_a_result_is_bytes_whatever_the_mode_of_the_server(store, text):
    assert put(store, "paid", "done")[:2] == (0, "done")
    assert put(store, "k", text)[:2] == (0, text)
    assert put(store, "k", text)[:2] == (0, text)
    assert len(store.ok("ls", "--all").splitlines()) == 2
