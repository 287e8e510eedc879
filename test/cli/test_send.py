# SPDX-License-Identifier: Apache-2.0
"""
once send: as a person meets it, against a server that plays a script, against
the real gateway, and killed at each of its system calls.
"""

import contextlib
import json
import os
import pathlib
import signal
import socket
import sqlite3
import ssl
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "test/client"))

from faults import (ENV, ONCE, PATIENCE, Payments, Script,  # noqa: E402
                    Site, answer, eventually, indeterminate, orders, problem,
                    slam, stored_name)
import faults  # noqa: E402
from marks import MARK  # noqa: E402

SECRET = MARK + "secret"
CREATED = answer(201, b"made\n", "Idempotency-Status: new")
REPLAY = answer(201, b"made\n", "Idempotent-Replayed: true",
                "Idempotency-Status: replayed")


class User:
    """Runs once send with a file of orders of his own."""

    def __init__(self, folder):
        self.folder = folder
        self.file = folder / "client.db"

    def send(self, *words, data=None, before=()):
        return subprocess.run(
            [*before, ONCE, "send", *words, "--client-store", self.file],
            env=ENV, input=data, capture_output=True, text=True,
            timeout=PATIENCE, check=False)

    def order(self, url, *more, name="42", before=()):
        return self.send("POST", url + "/charge", "--order", name, "--data",
                         '{"order":"o-%s","amount":5}' % name, "--header",
                         "Content-Type: application/json", "--header",
                         "X-Note: " + MARK, *more,
                         before=before)

    def keys(self):
        return {name: row[0] for name, row in orders(self.file).items()}


@pytest.fixture
def user(tmp_path):
    it = User(tmp_path)
    yield it
    for path in tmp_path.glob("client.db*"):
        assert SECRET.encode() not in path.read_bytes()


@pytest.fixture
def script():
    servers = []

    def start(*steps):
        servers.append(Script(*steps))
        return servers[-1]

    yield start
    for server in servers:
        server.close()


def drop(server, sock, head, body):
    del server, head, body
    slam(sock, False)


# ---- What a person sees --------------------------------------------------


def test_the_answer_is_printed_and_kept(user, script):
    server = script(CREATED)
    for _ in range(3):
        done = user.order(server.url)
        assert (done.returncode, done.stdout, done.stderr) == (0, "made\n", "")
    assert len(server.requests) == 1
    head, body = server.requests[0]
    assert head.startswith(b"POST /charge HTTP/1.1\r\n")
    assert body == b'{"order":"o-42","amount":5}'
    assert server.keys()[0].decode() == user.keys()["42"]


@pytest.mark.parametrize("reply, status, said", [
    (answer(402, b"no", "Idempotency-Status: new"), 1, "not-done"),
    (answer(401), 1, "not by the record"),
    (problem(409, "outcome-unknown"), 75, "unknown"),
    (problem(502, "outcome-unknown"), 75, "do not send it as a new order"),
    (problem(422, "key-reused"), 1, "not-done"),
    (problem(409, "response-unavailable"), 0, "was not kept"),
    (answer(302, b"", "Location: /"), 75, "redirected"),
    (answer(301, b"", "Location: /"), 1, "new order to the new URL"),
    (answer(307, b"", "Location: /", "Idempotency-Status: new"), 1,
     "redirects are not followed"),
    (answer(308, b"", "Location: /", "Idempotent-Replayed: true"), 1,
     "new order to the new URL"),
    (answer(500, b"", "Idempotent-Replayed: true"), 75, "recorded answer"),
], ids=["402", "401", "409-unknown", "502-unknown", "422-reused",
        "409-unavailable", "302", "301", "307-new", "308-replayed", "500-replayed"])
def test_each_outcome_has_its_exit_status(user, script, reply, status, said):
    server = script(reply)
    done = user.order(server.url)
    assert done.returncode == status, done.stderr
    assert said in done.stderr
    assert user.keys()["42"] not in done.stderr
    assert server.url not in done.stderr
    assert len(server.requests) == 1


def told(state, recorded="null"):
    return answer(200, ('{"state":"%s","attempt":1,"recorded_status":%s,'
                        '"safe_new_key":false}' % (state, recorded)).encode(),
                  "Content-Type: application/json")


ACCEPTED = answer(202, b"", "Idempotency-Status: in_flight",
                  "Location: /status", "Retry-After: 9")


def test_202_in_flight_is_no_success(user, script):
    server = script(answer(202, b"", "Idempotency-Status: in_flight"), CREATED)
    done = user.order(server.url)
    assert (done.returncode, done.stdout) == (0, "made\n")
    assert len(set(server.keys())) == 1 and len(server.requests) == 2


def test_before_it_gives_up_it_asks_what_is_recorded(user, script):
    """Where the 202 has said, or at the URL that it was given."""
    server = script(ACCEPTED, told("completed", 201), REPLAY)
    done = user.order(server.url, "--deadline", "5s")
    assert (done.returncode, done.stdout) == (0, "made\n"), done.stderr
    lines = [head.split(b"\r\n")[0] for head, _ in server.requests]
    assert lines == [b"POST /charge HTTP/1.1", b"GET /status HTTP/1.1",
                     b"POST /charge HTTP/1.1"]
    assert len(set(server.keys())) == 1
    assert b"Content-" not in server.requests[1][0]
    assert b"X-Note: " in server.requests[1][0]
    for state, recorded, status in (("completed", 201, 0),
                                    ("completed", 402, 1),
                                    ("absent", "null", 75)):
        name = "%s-%s" % (state, recorded)
        server = script(ACCEPTED, told(state, recorded), drop)
        done = user.order(server.url, "--deadline", "5s", "--lookup",
                          server.url + "/other", name=name)
        assert done.returncode == status, (name, done.stderr)
        assert server.requests[1][0].startswith(b"GET /other HTTP/1.1")


def test_another_body_under_the_same_id_is_refused(user, script):
    server = script(CREATED)
    assert user.order(server.url).returncode == 0
    done = user.send("POST", server.url + "/charge", "--order", "42",
                     "--data", "other")
    assert done.returncode == 65
    assert "nothing was sent" in done.stderr
    assert len(server.requests) == 1


def test_bodies_headers_and_secrets_come_from_files(user, script, tmp_path):
    server = script(drop, answer(401), CREATED)
    (tmp_path / "body").write_bytes(b"\x00\xff body" + MARK.encode())
    (tmp_path / "lines").write_text("X-One: 1\r\nX-Two:2\n\n")
    (tmp_path / "token").write_text("X-Token: %s\n" % SECRET)
    (tmp_path / "token").chmod(0o600)
    words = ["POST", server.url + "/x", "--order", "f", "--data",
             "@%s/body" % tmp_path, "--header", "@%s/lines" % tmp_path,
             "--secret", "@%s/token" % tmp_path, "--header",
             "Authorization: Bearer " + SECRET]
    assert user.send(*words).returncode == 75
    done = user.send("--resume", "--order", "f", "--secret",
                     "@%s/token" % tmp_path)
    assert (done.returncode, done.stdout) == (0, "made\n")
    assert len(set(server.keys())) == 1
    for head, body in server.requests:
        assert body == b"\x00\xff body" + MARK.encode()
        assert b"\r\nX-One: 1\r\n" in head + b"\r\n"
        assert b"\r\nX-Two: 2\r\n" in head + b"\r\n"
        assert b"\r\nX-Token: " + SECRET.encode() in head
    assert b"Authorization" in server.requests[0][0]
    assert b"Authorization" not in server.requests[2][0]


def test_unfinished_orders_are_listed_and_resumed(user, script):
    server = script(CREATED, answer(401), answer(403), REPLAY)
    for name in ("a", "b", "c"):
        user.order(server.url, name=name)
    done = user.send("--list")
    assert done.returncode == 0
    rows = [line.split("\t") for line in done.stdout.splitlines()]
    assert [row[:5] for row in rows] == [
        ["default", "b", "prepared", "1", "0"],
        ["default", "c", "prepared", "1", "0"]]
    listed = user.send("--list", "--json").stdout.splitlines()
    assert [json.loads(line)["order"] for line in listed] == ["b", "c"]
    done = user.send("--resume")
    assert done.returncode == 0
    assert done.stdout.splitlines() == [
        "b\tdone\tthe server has answered",
        "c\tdone\tthe server has answered"]
    assert user.send("--list").stdout == ""
    assert server.keys()[1:3] == server.keys()[3:5]


def test_forgetting_is_for_what_was_not_done(user, script):
    server = script(CREATED, answer(401), CREATED)
    user.order(server.url, name="a")
    user.order(server.url, name="b")
    first = user.keys()
    refused = user.send("--forget", "--order", "a")
    assert refused.returncode == 1
    assert "--force" in refused.stderr
    assert user.send("--forget", "--order", "b").returncode == 0
    assert user.send("--forget", "--order", "nobody").returncode == 0
    assert user.keys() == {"a": first["a"]}
    assert user.order(server.url, name="b").returncode == 0
    assert user.keys()["b"] != first["b"]
    assert user.send("--forget", "--order", "a", "--force").returncode == 0
    assert set(user.keys()) == {"b"}
    assert user.send("--purge", "1d").stdout == "0\n"


def test_json_tells_everything_but_the_key(user, script):
    server = script(drop, CREATED)
    done = user.order(server.url, "--json")
    told = json.loads(done.stdout)
    assert (told["order"], told["outcome"], told["status"]) == (
        "42", "done", 201)
    assert (told["attempts"], told["doubt"], told["final"]) == (2, 0, True)
    assert told["body"] == "made\n"
    assert user.keys()["42"] not in done.stdout


@pytest.mark.parametrize("words", [
    ["POST"], ["POST", "http://h/", "more", "--order", "1"],
    ["POST", "http://h/"], ["POST", "http://h/", "--order", ""],
    ["POST", "h", "--order", "1"], ["PO ST", "http://h/", "--order", "1"],
    ["POST", "http://user:%s@h/" % SECRET, "--order", "1"],
    ["POST", "http://h/", "--order", "1", "--header", "no colon"],
    ["POST", "http://h/", "--order", "1", "--header", "Host: x"],
    ["POST", "http://h/", "--order", "1", "--header", "A: b\x01" + SECRET],
    ["POST", "http://h/", "--order", "1", "--deadline", "8d"],
    ["POST", "http://h/", "--order", "1", "--deadline", "soon"],
    ["POST", "http://h/", "--order", "1", "--group", "two words"],
    ["POST", "http://h/", "--order", "1", "--resume"],
    ["--resume", "--list"], ["--resume", "--order", "nobody"],
    ["--forget"], ["--resume", "--force"], ["--list", "--data", "x"],
    ["--nonsense"], ["--purge"]],
    ids=lambda words: "-".join(words)[:30].replace("/", "_"))
def test_wrong_words_send_nothing(user, words):
    done = user.send(*words)
    assert done.returncode == 2, done.stderr
    assert done.stderr.startswith("once send: ")
    assert SECRET not in done.stderr
    assert done.stdout == ""


def test_help_is_a_page(user):
    done = user.send("--help")
    assert done.returncode == 0
    assert max(map(len, done.stdout.splitlines())) <= 80


def test_the_file_is_in_the_state_folder_by_default(tmp_path, script):
    server = script(CREATED)
    env = dict(ENV, XDG_STATE_HOME=str(tmp_path / "state"))
    done = subprocess.run([ONCE, "send", "POST", server.url, "--order", "1"],
                          env=env, capture_output=True, timeout=PATIENCE,
                          check=False)
    assert done.returncode == 0, done.stderr
    path = tmp_path / "state/once/client.db"
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.parent.stat().st_mode & 0o777 == 0o700


def test_a_link_in_the_place_of_the_file_is_not_followed(user, script):
    server = script(CREATED)
    target = user.file.with_name("target")
    user.file.symlink_to(target)
    done = user.order(server.url)
    assert done.returncode == 3
    assert "symbolic links" in done.stderr
    assert server.requests == []
    assert not target.exists()
    user.file.unlink()


def test_a_spoilt_file_sends_nothing(user, script):
    server = script(CREATED)
    user.file.write_text("not a database at all, but something of somebody")
    before = user.file.read_bytes()
    done = user.order(server.url)
    assert done.returncode == 3
    assert "Nothing was sent" in done.stderr
    assert server.requests == []
    assert user.file.read_bytes() == before


# ---- A server that misbehaves --------------------------------------------


def half(server, sock, head, body):
    del server, head, body
    sock.sendall(CREATED[:len(CREATED) // 2])
    slam(sock, False)


def drip(server, sock, head, body):
    """Byte by byte, with a break in the middle of each line."""
    del server, head, body
    for i in range(len(CREATED)):
        sock.sendall(CREATED[i:i + 1])


def huge(server, sock, head, body):
    del server, head, body
    sock.sendall(b"HTTP/1.1 201 Created\r\nConnection: close\r\n\r\n")
    with contextlib.suppress(OSError):
        for _ in range(4096):
            sock.sendall(b"x" * 65536)


def endless_head(server, sock, head, body):
    del server, head, body
    sock.sendall(b"HTTP/1.1 201 Created\r\n")
    with contextlib.suppress(OSError):
        for _ in range(4096):
            sock.sendall(b"X-Y: " + b"z" * 4096 + b"\r\n")


def reset(server, sock, head, body):
    del server, head, body
    slam(sock, True)


@pytest.mark.parametrize("manner", [
    drop, reset, half, endless_head, b"garbage\r\n\r\n", b"HTTP/9.9 abc\r\n\r\n",
    b"\x00" * 100, b"HTTP/1.1 201 Created\r\nContent-Length: 9\r\n\r\nmade\n",
    b"HTTP/1.1 201 Created\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
    answer(500), answer(502), answer(503, b"", "Retry-After: 0"), answer(504),
    answer(408), answer(425), answer(429, b"", "Retry-After: 0"),
    answer(409, b"", "Retry-After: 0"),
    problem(409, "in-flight", "Retry-After: 0"),
    problem(503, "store-unavailable", "Retry-After: 0")],
    ids=["drop", "reset", "half", "endless-head", "garbage", "version", "nul",
         "short", "bad-chunk", "500", "502", "503", "504", "408", "425", "429",
         "409", "in-flight", "store"])
def test_it_tries_again_with_the_same_key(user, script, manner):
    server = script(manner, manner, REPLAY)
    done = user.order(server.url)
    assert (done.returncode, done.stdout) == (0, "made\n"), done.stderr
    assert len(server.requests) == 3
    assert set(server.keys()) == {user.keys()["42"].encode()}
    assert len({body for _, body in server.requests}) == 1


def test_a_dripping_answer_is_read(user, script):
    done = user.order(script(drip).url)
    assert (done.returncode, done.stdout) == (0, "made\n")


def test_a_huge_answer_is_done_and_not_printed(user, script):
    server = script(huge)
    done = user.order(server.url)
    assert (done.returncode, done.stdout) == (0, "")
    assert "was not kept" in done.stderr
    assert len(server.requests) == 1


def test_refused_connections_leave_nothing_in_doubt(user):
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))  # and not listening
        url = "http://127.0.0.1:%d" % s.getsockname()[1]
        done = user.order(url, "--deadline", "1s")
    assert done.returncode == 1
    assert orders(user.file)["42"][1:] == (1, 0)


# ---- TLS -----------------------------------------------------------------


class SafeServer(faults.Server):
    """The same over TLS, with a certificate for `name`. It counts requests."""

    def __init__(self, folder, name):
        self.certificate = folder / "certificate.pem"
        subprocess.run(
            ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes",
             "-keyout", folder / "key.pem", "-out", self.certificate, "-days",
             "2", "-subj", "/CN=test", "-addext",
             "subjectAltName=" + name], capture_output=True, check=True)
        self.tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.tls.load_cert_chain(self.certificate, folder / "key.pem")
        self.requests = 0
        super().__init__()
        self.url = "https://127.0.0.1:%d" % self.port

    def serve(self, sock):
        with self.tls.wrap_socket(sock, server_side=True) as safe:
            if faults.read_message(safe) is not None:
                self.requests += 1
                safe.sendall(CREATED)


@pytest.mark.parametrize("name, trusted, status", [
    ("IP:127.0.0.1", True, 0), ("IP:127.0.0.1", False, 1),
    ("DNS:elsewhere.example", True, 1)],
    ids=["trusted", "unknown-issuer", "another-name"])
def test_certificates_are_verified(user, tmp_path, name, trusted, status):
    server = SafeServer(tmp_path, name)
    try:
        words = ["--ca", server.certificate] if trusted else []
        done = user.order(server.url, *words)
        assert done.returncode == status, done.stderr
        assert server.requests == (status == 0)
        # Not one byte was seen, so nothing is in doubt; and it did not wait
        # for the deadline, since waiting mends no certificate.
        assert orders(user.file)["42"][1:] == ((3, 0) if trusted and not status
                                               else (1, 0))
        if status:
            assert "certificate" in done.stderr
    finally:
        server.close()


# ---- With the real gateway -----------------------------------------------


@pytest.fixture
def site(tmp_path):
    if faults.gateway.NGINX is None or \
            not os.path.exists(faults.gateway.MODULE):
        pytest.skip("no nginx, or no module")
    it = Site(tmp_path, lease="1s")
    yield it
    it.close()


def test_the_gateways_answers_are_understood(user, site):
    url = site.network.url
    assert user.order(url).returncode == 0
    assert user.order(url).returncode == 0
    # The file is lost, and another key charges again: that is why it is kept.
    assert site.payments.ledger() == {"o-42": 1}
    # Refused by the service, and recorded.
    bad = user.send("POST", url + "/charge", "--order", "bad", "--data", "{}",
                    "--header", "Content-Type: application/json")
    assert bad.returncode == 1
    assert "the server has answered" in bad.stderr
    assert "It stays so" in bad.stderr
    # Lost between the service and the gateway: nobody knows.
    lost = user.order(url, "--header", "X-Sample: drop-after", name="lost")
    assert lost.returncode == 75
    assert indeterminate(site.store) == {stored_name(user.keys()["lost"])}
    # Lost between the gateway and us: replayed.
    site.network.after = 1.0
    first = user.order(url, "--deadline", "1s", name="slow")
    assert first.returncode == 75
    site.network.calm()
    again = user.order(url, "--json", name="slow")
    assert json.loads(again.stdout)["replayed"] is True
    assert site.payments.ledger() == {"o-42": 1, "o-lost": 1, "o-slow": 1}


def test_while_it_is_in_flight_it_waits(user, site):
    held = subprocess.Popen(
        [ONCE, "send", "POST", site.network.url + "/charge", "--order", "h",
         "--data", '{"order":"h","amount":5}', "--header",
         "Content-Type: application/json", "--secret",
         "X-Sample: slow-after=1500", "--client-store", user.file], env=ENV,
        stdout=subprocess.PIPE, text=True)
    eventually(lambda: site.payments.ledger().get("h") == 1)
    second = user.send("--resume", "--order", "h")
    out, _ = held.communicate(timeout=PATIENCE)
    assert held.returncode == 0
    assert (second.returncode, second.stdout) == (0, out)
    assert site.payments.ledger() == {"h": 1}


# ---- Killed at each step -------------------------------------------------

# Leaks cannot be looked for in a process that is traced.
UNCHECKED = ["-E", "ASAN_OPTIONS=%s:detect_leaks=0"
             % os.environ.get("ASAN_OPTIONS", "")]
CALLS = "pwrite64,fdatasync,connect,sendto,recvfrom,poll"


def can_trace():
    with contextlib.suppress(OSError):
        return subprocess.run(["strace", "-o", "/dev/null", "true"],
                              capture_output=True, check=False).returncode == 0
    return False


@pytest.mark.skipif(not can_trace(), reason="strace cannot trace here")
@pytest.mark.parametrize("call", CALLS.split(","))
def test_killed_at_each_call_it_goes_on_with_the_same_key(tmp_path, script,
                                                          call):
    """The n-th call of this kind kills it, n = 1, 2, 3 ... until it comes
    through; after each death the same line again. The server must have seen
    one key, and the file must have known it before the server did."""
    for n in range(1, 200):
        user = User(tmp_path / ("%s-%d" % (call, n)))
        user.folder.mkdir()
        known = []

        def look(server, sock, head, body, user=user, known=known):
            del head, body
            known.append(user.keys().get("42"))
            sock.sendall(CREATED if len(known) == 1 else REPLAY)
            del server

        server = script(look)
        first = user.order(
            server.url,
            before=["strace", "-f", "-o", "/dev/null", *UNCHECKED,
                    "-e", "trace=" + call, "-e",
                    "inject=%s:signal=SIGKILL:when=%d" % (call, n)])
        done = user.order(server.url)
        assert (done.returncode, done.stdout) == (0, "made\n"), done.stderr
        keys = {key.decode() for key in server.keys()}
        assert keys == {user.keys()["42"]}
        assert set(known) == keys
        assert len(server.requests) <= 2
        if first.returncode == 0:
            assert n > 1
            return
        assert first.returncode == -signal.SIGKILL, first.stderr
    raise AssertionError("it never came through")


def test_two_users_of_one_file_keep_one_key(tmp_path, script):
    server = script(drop, CREATED, REPLAY)
    user = User(tmp_path)
    crew = [subprocess.Popen(
        [ONCE, "send", "POST", server.url, "--order", "1", "--client-store",
         user.file], env=ENV, stdout=subprocess.PIPE, text=True)
        for _ in range(6)]
    for one in crew:
        out, _ = one.communicate(timeout=PATIENCE)
        assert (one.returncode, out) == (0, "made\n")
    assert len(set(server.keys())) == 1
    with contextlib.closing(sqlite3.connect(user.file)) as db:
        assert db.execute("SELECT COUNT(*), MAX(state), MAX(doubt) "
                          "FROM orders").fetchone() == (1, 3, 0)


def test_the_service_itself_charges_twice_without_a_gateway(user, tmp_path):
    """What the key alone is worth: nothing, to a service that ignores it."""
    payments = Payments(tmp_path)
    network = faults.Dropper(payments.port, 0, 1.0)
    try:
        assert user.order(network.url, "--deadline", "1s").returncode == 75
        network.calm()
        assert user.order(network.url).returncode == 0
        assert payments.ledger()["o-42"] > 1
    finally:
        network.close()
        payments.close()
