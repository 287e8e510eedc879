# SPDX-License-Identifier: Apache-2.0
"""
Messages to an HTTP service: what becomes of each answer (the table at the head
of src/messages/broker/http.c), what is sent and what is kept, and the same behind a
gateway. A program in C sends (send_messages.c); the service is written here.

    ONCE_BUILD      build folder, default build
"""

import contextlib
import json
import os
import pathlib
import socket
import struct
import subprocess
import sys
import threading

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "test/gateway"))
sys.path.insert(0, str(ROOT / "test/lib"))

import gateway  # noqa: E402  pylint: disable=wrong-import-position
from machine import free_port  # noqa: E402  pylint: disable=wrong-import-position

BUILD = pathlib.Path(os.environ.get("ONCE_BUILD", ROOT / "build"))
SEND = str(BUILD / "test/send_messages")
(TAKEN, UNSENT, AWAY, REFUSED, NACKED, SILENT, REJECTED, FAILED,
 UNKNOWN) = range(9)
PROBLEM = "application/problem+json"
SECRET = "Bearer s3cret"


def problem(code, safe):
    return json.dumps({"type": "urn:problem-type:once:" + code, "code": code,
                       "safe_new_key": safe}).encode()


class Service:
    """Answers with what stands in `script`, again and again the last of it, and
    keeps what it was asked."""

    def __init__(self):
        self.script = []
        self.asked = []
        self.sock = socket.create_server(("127.0.0.1", 0))
        self.port = self.sock.getsockname()[1]
        self.url = "http://127.0.0.1:%d/pay?x=1" % self.port
        self.thread = threading.Thread(target=self.accept, daemon=True)
        self.thread.start()

    def close(self):
        with contextlib.suppress(OSError):
            self.sock.shutdown(socket.SHUT_RDWR)
        self.sock.close()
        self.thread.join(60)

    def accept(self):
        with contextlib.suppress(OSError):
            while True:
                conn, _ = self.sock.accept()
                threading.Thread(target=self.serve, args=(conn,),
                                 daemon=True).start()

    def serve(self, conn):
        with conn, conn.makefile("rb") as f, contextlib.suppress(OSError):
            while True:
                line = f.readline().decode("latin-1").strip()
                if not line.endswith("HTTP/1.1"):
                    return
                headers = []
                while True:
                    head = f.readline().strip()
                    if not head:
                        break
                    name, _, value = head.partition(b":")
                    headers.append((name.decode("latin-1").lower(),
                                    value.strip()))
                size = int(dict(headers).get("content-length", 0))
                self.asked.append((line, headers, f.read(size)))
                answer = self.script[0]
                if len(self.script) > 1:
                    self.script.pop(0)
                if not self.answer(conn, *answer):
                    return

    @staticmethod
    def answer(conn, status, headers=(), body=b""):
        if status == "silent":
            conn.recv(1)
            return False
        if status == "reset":
            conn.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER,
                            struct.pack("ii", 1, 0))
            return False
        if status == "cut":
            conn.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhalf")
            return False
        head = "HTTP/1.1 %d Fine\r\nContent-Length: %d\r\n" % (status,
                                                              len(body))
        for name, value in headers:
            head += "%s: %s\r\n" % (name, value)
        conn.sendall(head.encode() + b"\r\n" + body)
        return True


@pytest.fixture
def service():
    it = Service()
    try:
        yield it
    finally:
        it.close()


def send(url, *messages, timeout_ms=20000, headers=None):
    """The proofs by tag."""
    lines = []
    for m in messages:
        m = dict(m)
        m["body"] = m.get("body", b"{}").hex()
        lines.append(json.dumps(m) + "\n")
    words = [SEND, url, str(timeout_ms)] + ([headers] if headers else [])
    done = subprocess.run(words, input="".join(lines), text=True,
                          capture_output=True, timeout=180, check=False)
    assert "s3cret" not in done.stderr
    assert done.returncode == 0, done.stderr
    proofs = [json.loads(x) for x in done.stdout.splitlines()]
    assert sorted(p["tag"] for p in proofs) == list(range(len(messages)))
    return {p["tag"]: p for p in proofs}


def one(url, message=None, **more):
    return send(url, message or {"id": "id-1"}, **more)[0]


def decode(reply):
    """Status, headers and body (src/base/response.c); body None: not kept."""
    raw = bytes.fromhex(reply)
    status, flags, n, reason, block, body = struct.unpack_from("<HHHHII", raw,
                                                               4)
    assert raw[:4] == b"OHR\x01" and len(raw) == 20 + reason + block + body
    at, headers = 20 + reason, []
    for _ in range(n):
        name, value = struct.unpack_from("<HH", raw, at)
        at += 5
        headers.append((raw[at:at + name].decode(),
                        raw[at + name:at + name + value].decode()))
        at += name + value
    return status, headers, None if flags & 1 else raw[at:]


# ---- What becomes of an answer -------------------------------------------

NEW = ("Idempotency-Status", "new")
REPLAYED = ("Idempotency-Status", "replayed")
LATER = ("Retry-After", "7")

ANSWERS = [
    (TAKEN, 0, 200, ()), (TAKEN, 0, 201, (NEW,)), (TAKEN, 0, 204, ()),
    (TAKEN, 0, 303, ()), (TAKEN, 0, 200, (REPLAYED,)),
    (FAILED, 0, 402, (NEW,)), (FAILED, 0, 402, (REPLAYED,)),
    (FAILED, 0, 404, (NEW,)), (FAILED, 7000, 409, (REPLAYED, LATER)),
    (FAILED, 0, 429, (REPLAYED,)), (FAILED, 0, 307, (NEW,)),
    (REFUSED, 0, 301, ()), (REFUSED, 0, 308, ()),
    (REFUSED, 0, 401, ()), (REFUSED, 7000, 401, (LATER,)),
    (REFUSED, 0, 401, (NEW,)), (FAILED, 0, 401, (REPLAYED,)),
    (REFUSED, 0, 403, ()), (REFUSED, 0, 404, ()), (REFUSED, 0, 410, ()),
    (REJECTED, 0, 400, ()), (REJECTED, 0, 409, ()), (REJECTED, 0, 413, ()),
    (REJECTED, 0, 422, ()),
    (REFUSED, 0, 425, ()), (REFUSED, 7000, 429, (LATER,)),
    (REFUSED, 0, 408, (NEW,)), (SILENT, 0, 408, ()),
    (SILENT, 7000, 409, (LATER,)),
    (SILENT, 0, 409, (("Idempotency-Status", "in_flight"),)),
    (SILENT, 0, 500, ()), (SILENT, 0, 502, (NEW,)), (SILENT, 7000, 503, (LATER,)),
    (SILENT, 0, 504, ()),
    (UNKNOWN, 0, 500, (REPLAYED,)), (UNKNOWN, 0, 302, ()), (UNKNOWN, 0, 300, ()),
]


@pytest.mark.parametrize("end, retry_ms, status, headers", ANSWERS)
def test_an_answer_says_what_becomes_of_it(service, end, retry_ms, status,
                                           headers):
    service.script = [(status, headers, b"" if status == 204 else b"text")]
    p = one(service.url)
    assert (p["end"], p["status"], p["retry_ms"]) == (end, status, retry_ms)
    assert decode(p["reply"])[0] == status
    assert (p["why"] == "") == (end == TAKEN)
    assert len(service.asked) == 1


@pytest.mark.parametrize("end, status, code, safe", [
    (SILENT, 409, "in-flight", False), (UNKNOWN, 409, "outcome-unknown", False),
    (TAKEN, 409, "response-unavailable", False),
    (AWAY, 503, "store-unavailable", False),
    (REJECTED, 400, "key-missing", True), (REJECTED, 400, "key-invalid", True),
    (REJECTED, 422, "key-reused", False), (REFUSED, 401, "scope-missing", False),
    (REJECTED, 418, "of-the-future", True),
    (UNKNOWN, 418, "of-the-future", False),
])
def test_a_problem_of_the_gateway_says_it_by_its_code(service, end, status,
                                                      code, safe):
    service.script = [(status, [("Content-Type", PROBLEM)],
                       problem(code, safe))]
    assert one(service.url)["end"] == end


@pytest.mark.parametrize("how", ["reset", "cut", "silent"])
def test_without_a_whole_answer_it_may_have_taken_effect(service, how):
    service.script = [(how,)]
    p = one(service.url, timeout_ms=1500)
    assert (p["end"], p["status"], p["reply"]) == (SILENT, 0, "")
    assert p["why"] != ""


def test_without_a_connection_nothing_was_sent():
    p = one("http://127.0.0.1:%d/" % free_port())
    assert (p["end"], p["status"], p["reply"]) == (AWAY, 0, "")


def test_another_certificate_is_nobody_we_send_to(service):
    service.script = [(200,)]
    p = one(service.url.replace("http:", "https:"), timeout_ms=2000)
    assert p["end"] == AWAY
    assert all("POST" not in a[0] for a in service.asked)


def test_a_second_copy_makes_a_refusal_no_proof(service):
    # The kept connection is reset when the second message is on it: libcurl
    # makes another connection and sends a second copy.
    service.script = [(200,), ("reset",), (429,)]
    p = send(service.url, {"id": "a"}, {"id": "b"})
    assert p[0]["end"] == TAKEN
    assert p[1]["end"] in (NACKED, SILENT)


# ---- What is sent --------------------------------------------------------


def test_the_request_is_the_message(service):
    service.script = [(200,)]
    body = bytes(range(256)) * 40
    m = {"id": "id-1", "key": "k", "type": "application/x-ours",
         "headers": "X-A: b\nX-Name: Gr\u00fc\u00dfe\nX-Empty: \n",
         "body": body}
    assert one(service.url, m, headers="Authorization: %s\nX-Route: r\n"
               % SECRET)["end"] == TAKEN
    line, headers, got = service.asked[0]
    assert line == "POST /pay?x=1 HTTP/1.1"
    assert got == body
    headers = [(n, v.decode()) for n, v in headers]
    for pair in (("idempotency-key", "id-1"), ("x-a", "b"), ("x-empty", ""),
                 ("content-type", "application/x-ours"), ("x-route", "r"),
                 ("authorization", SECRET), ("x-name", "Gr\u00fc\u00dfe")):
        assert headers.count(pair) == 1


def test_a_message_overrides_nothing_of_route_and_connection(service):
    service.script = [(200,)]
    names = ["Authorization", "Cookie", "Host", "Content-Length", "Connection",
             "Transfer-Encoding", "Idempotency-Key", "Idempotency-Attempt",
             "Proxy-Authorization", "TE", "Upgrade", "X-Route", "x-route",
             "Content-Type", "Expect", "Keep-Alive"]
    m = {"id": "id-1", "type": "text/ours",
         "headers": "".join("%s: 77evil\n" % n for n in names) + "X-Good: 1\n"}
    assert one(service.url, m, headers="X-Route: r\n")["end"] == TAKEN
    headers = service.asked[0][1]
    assert not [h for h in headers if b"evil" in h[1]]
    assert dict(headers)["x-good"] == b"1"
    assert [v for n, v in headers if n == "x-route"] == [b"r"]
    assert [v for n, v in headers if n == "content-type"] == [b"text/ours"]


def test_without_a_type_none_is_made_up(service):
    service.script = [(200,)]
    assert one(service.url, {"id": "a", "body": b""})["end"] == TAKEN
    line, headers, body = service.asked[0]
    assert "content-type" not in dict(headers) and body == b""


@pytest.mark.parametrize("id_, key", [
    ("plain/1:2-3", b"plain/1:2-3"), ('a"b', b'"a\\"b"'), ("a,b", b'"a,b"'),
    ("a\\b", b'"a\\\\b"'), ("a;b", b'"a;b"'), ("x" * 255, b"x" * 255),
    ('"' * 255, b'"' + b'\\"' * 255 + b'"'),
])
def test_any_id_is_a_key(service, id_, key):
    service.script = [(200,)]
    assert one(service.url, {"id": id_})["end"] == TAKEN
    assert dict(service.asked[0][1])["idempotency-key"] == key


@pytest.mark.parametrize("headers", ["Bad Name: x\n", "X: a\x01b\n", "none\n"])
def test_headers_that_cannot_be_sent_reject_the_message(service, headers):
    service.script = [(200,)]
    assert one(service.url, {"id": "a", "headers": headers})["end"] == REJECTED
    assert not service.asked


# ---- What is kept --------------------------------------------------------


def test_an_answer_is_kept_without_credentials(service):
    service.script = [(201, [
        ("Set-Cookie", "session=s3cret"), ("X-Receipt", "r-1"),
        ("Connection", "keep-alive, X-Hop"), ("X-Hop", "1"),
        ("Date", "Thu, 01 Jan 1970 00:00:00 GMT"), NEW,
        ("Content-Type", "application/json")], b'{"ok": 1}')]
    status, headers, body = decode(one(service.url)["reply"])
    assert (status, body) == (201, b'{"ok": 1}')
    assert headers == [("X-Receipt", "r-1"),
                       ("Content-Type", "application/json")]


def test_an_answer_that_is_too_long_is_kept_without_its_body(service):
    service.script = [(200, [("X-A", "b")], b"x" * ((1 << 20) + 1))]
    p = one(service.url)
    assert p["end"] == TAKEN
    assert decode(p["reply"]) == (200, [("X-A", "b")], None)


# ---- URLs and options ----------------------------------------------------


@pytest.mark.parametrize("url, headers, word", [
    ("http://u:s3cret@h/", None, "password"), ("http:///x", None, "host"),
    ("http://h/#f", None, "url"), ("http://h/a b", None, "url"),
    ("http://h/", "Host: x\n", "Host"), ("http://h/", "no line\n", "headers"),
    ("http://h/", "X: s3cret\x01\n", "X"),
])
def test_what_is_wrong_is_named_and_not_shown(url, headers, word):
    done = subprocess.run([SEND, url, "1000"] + ([headers] if headers else []),
                          input="", text=True, capture_output=True, timeout=60,
                          check=False)
    assert done.returncode == 3
    assert word in done.stderr and "s3cret" not in done.stderr


# ---- Behind a gateway ----------------------------------------------------


@pytest.fixture
def guarded(tmp_path):
    if gateway.NGINX is None or not os.path.exists(gateway.MODULE):
        pytest.skip("no nginx, or no module")
    with contextlib.ExitStack() as stack:
        def build(more="", **what):
            site = gateway.Site(tmp_path, gateway.guarded("/pay/", more),
                                "sqlite", **what)
            stack.callback(site.close)
            return site.start()

        yield build


def url_of(site, case):
    return "http://127.0.0.1:%d%s" % (site.gateway.port, case.path)


def test_the_same_id_twice_executes_once(guarded):
    site = guarded()
    case = site.case("/pay/", gateway.Answer(201, b"made\n"))
    m = {"id": case.key, "body": b"{}", "type": "application/json"}
    first = one(url_of(site, case), m)
    again = one(url_of(site, case), m)
    assert first["end"] == again["end"] == TAKEN
    assert decode(first["reply"])[2] == decode(again["reply"])[2] == b"made\n"
    assert case.executions == 1
    other = one(url_of(site, case), dict(m, body=b"other"))
    assert other["end"] == REJECTED and case.executions == 1


def test_a_recorded_refusal_is_final(guarded):
    site = guarded()
    case = site.case("/pay/", gateway.Answer(402, b"no money\n"))
    for _ in range(2):
        p = one(url_of(site, case), {"id": case.key})
        assert p["end"] == FAILED and p["status"] == 402
        assert decode(p["reply"])[2] == b"no money\n"
    assert case.executions == 1


def test_an_outcome_that_nobody_knows_is_unknown(guarded):
    site = guarded()
    case = site.case("/pay/", gateway.Reset())
    assert one(url_of(site, case), {"id": case.key})["end"] in (UNKNOWN, SILENT)
    p = one(url_of(site, case), {"id": case.key})
    assert p["end"] == UNKNOWN and p["status"] == 409
    assert case.executions == 1


def test_one_that_is_in_flight_is_sent_again(guarded):
    site = guarded()
    hold = gateway.Hold()
    case = site.case("/pay/", hold)
    m = {"id": case.key}
    late = []
    first = threading.Thread(
        target=lambda: late.append(one(url_of(site, case), m,
                                       timeout_ms=60000)))
    first.start()
    hold.wait()
    p = one(url_of(site, case), m)
    assert p["end"] == SILENT and p["status"] == 409 and p["retry_ms"] > 0
    hold.go.set()
    first.join(90)
    assert [p["end"] for p in late] == [TAKEN]
    assert one(url_of(site, case), m)["end"] == TAKEN
    assert case.executions == 1
