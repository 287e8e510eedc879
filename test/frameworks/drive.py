# SPDX-License-Identifier: Apache-2.0
"""
drive.py - starts `once serve` and an application, and sends the requests of a
case over connections of its own: a client that leaves closes its socket.
"""

import contextlib
import hashlib
import json
import os
import socket
import subprocess
import threading
import time

ANSWER_S = 60       # no answer after this is a fault; a machine may be busy
SKIPPED = 77        # an application whose framework cannot be had
SETTLE_S = 90


class Answer:
    """One response. `whole`: no byte of it is missing."""

    def __init__(self, status, headers, body, whole, hints):
        self.status, self.headers = status, headers
        self.body, self.whole, self.hints = body, whole, hints

    def code(self):
        """The code of a problem of Once, or nothing."""
        if b"application/problem+json" not in self.headers.get(
                b"content-type", b""):
            return ""
        try:
            return json.loads(self.body).get("code", "")
        except ValueError:
            return ""

    def shown(self):
        """As the log says it."""
        return self.status, hashlib.sha256(self.body).hexdigest()

    def __repr__(self):
        return "%d%s %s %r" % (self.status, "" if self.whole else " (cut)",
                               self.code(), self.body[:80])


def order_of(case, letter):
    """A form or a JSON text of the size that the case says."""
    text = b"order=%s&pad=" % letter.encode()
    return (text + b"x" * case.size)[:max(case.size, len(text))] \
        if case.size else (b"" if letter == "A" else b"b")


def head_of(case, send, body):
    lines = ["POST /pay HTTP/1.1", "Host: shop", "X-User: alice",
             "Idempotency-Key: %s" % case.key, "Do: %s" % json.dumps(case.do),
             "Content-Type: application/x-www-form-urlencoded",
             "Connection: close"]
    if case.do.get("fingerprint"):
        lines.append("X-Print: order %s" % send.order)
    lines.append("Transfer-Encoding: chunked" if send.framing == "chunked"
                 else "Content-Length: %d" % len(body))
    return "\r\n".join(lines).encode() + b"\r\n\r\n"


def frames(send, body):
    """The body as it goes over the wire, in parts."""
    step = max(1, -(-len(body) // send.pieces))
    parts = [body[i:i + step] for i in range(0, len(body), step)]
    if send.framing == "chunked":
        return [b"%x\r\n%s\r\n" % (len(p), p) for p in parts] + [b"0\r\n\r\n"]
    return parts


def read_head(file):
    status = file.readline(8192)
    if not status.endswith(b"\n"):
        return None, {}
    headers = {}
    while (line := file.readline(65536)) not in (b"\r\n", b"\n", b""):
        name, _, value = line.partition(b":")
        headers[name.strip().lower()] = value.strip()
    return int(status.split()[1]), headers


def read_chunks(file):
    body = b""
    while line := file.readline(1024):
        size = int(line.split(b";")[0], 16)
        if size == 0:
            while (line := file.readline(8192)) not in (b"\r\n", b"\n", b""):
                pass
            return body, line != b""
        data = file.read(size)
        body += data
        if len(data) < size or not file.readline(8):
            break
    return body, False


def read_answer(file):
    hints = 0
    status, headers = read_head(file)
    while status is not None and status < 200:
        hints += status == 103
        status, headers = read_head(file)
    if status is None:
        return None
    if status in (204, 304):
        return Answer(status, headers, b"", True, hints)
    if b"chunked" in headers.get(b"transfer-encoding", b"").lower():
        body, whole = read_chunks(file)
    elif b"content-length" in headers:
        size = int(headers[b"content-length"])
        body = file.read(size)
        whole = len(body) == size
    else:
        body, whole = file.read(), True
    return Answer(status, headers, body, whole, hints)


def send_body(sock, send, parts):
    """False: the client left in the middle."""
    for i, part in enumerate(parts):
        if send.leave == "part" and i >= max(1, len(parts) // 2):
            return False
        sock.sendall(part)
        if i + 1 < len(parts) and send.pieces > 1:
            time.sleep(0.01)
    return True


def request(port, case, send):
    """The answer, or None where the client left or got none."""
    body = order_of(case, send.order)
    with contextlib.ExitStack() as stack:
        sock = stack.enter_context(
            socket.create_connection(("127.0.0.1", port), timeout=ANSWER_S))
        try:
            sock.sendall(head_of(case, send, body))
            if send.leave == "head" or \
                    not send_body(sock, send, frames(send, body)):
                return None
        except OSError:
            # The application may answer before it has read all of it.
            if send.leave:
                return None
        if send.leave == "body":
            time.sleep(send.leave_ms / 1000)
            return None
        file = stack.enter_context(sock.makefile("rb"))
        try:
            if send.leave == "answer":
                file.read(1)
                return None
            return read_answer(file)
        except (OSError, ValueError):
            return None


def settle(port, case, send):
    """Repeats the first order until the answer is about its outcome."""
    until = time.monotonic() + SETTLE_S
    answer = None
    while time.monotonic() < until:
        answer = request(port, case, send)
        if answer is not None and answer.whole and \
                answer.code() not in ("in-flight", "store-unavailable"):
            break
        time.sleep(0.2)
    return answer


def play(port, case):
    """([(send, answer)], the last answer) of a case. Requests run beside each
    other, as their delays say."""
    told = [None] * len(case.sends)

    def work(i, send):
        time.sleep(send.delay_ms / 1000)
        with contextlib.suppress(OSError):
            told[i] = request(port, case, send)

    threads = [threading.Thread(target=work, args=pair)
               for pair in enumerate(case.sends)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    last = type(case.sends[0])("A")
    return list(zip(case.sends, told)), settle(port, case, last)


class Lacking(Exception):
    """What an application needs is not on this machine."""


class Stand:
    """The server and the application, in a folder of their own."""

    def __init__(self, folder, build, framework):
        self.folder, self.build, self.framework = folder, build, framework
        self.log = folder / "effects"
        self.log.touch()
        self.port = 0
        self.processes = []

    def start(self, command, environment, ready, out):
        with open(self.folder / out, "ab") as err:
            # pylint: disable=consider-using-with
            process = subprocess.Popen(
                command, env=environment, stdin=subprocess.DEVNULL,
                stdout=err, stderr=err, cwd=self.folder)
        self.processes.append(process)
        while not ready():
            if process.poll() is not None:
                said = (self.folder / out).read_text()[-2000:]
                if process.returncode == SKIPPED:
                    raise Lacking(said.strip())
                raise RuntimeError("%s ended: %s" % (command[0], said))
            time.sleep(0.05)

    def __enter__(self):
        store = "sqlite:%s" % (self.folder / "db")
        path = self.folder / "s"
        subprocess.run([self.build / "once", "--store", store, "init",
                        "--audit", "off"], check=True,
                       stdout=subprocess.DEVNULL)
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        try:
            self.start([self.build / "once-serve", "--store", store, "--listen",
                        "unix:%s" % path], None, path.exists, "serve.log")
            self.start(self.framework.command(self.build), dict(
                os.environ, ONCE_SERVE="unix:%s" % path, APP_PORT=str(self.port),
                APP_LOG=str(self.log), PYTHONUNBUFFERED="1"),
                       lambda: "ready" in (self.folder / "app.log").read_text(),
                       "app.log")
        except BaseException:
            self.__exit__()
            raise
        return self

    def alive(self):
        return all(p.poll() is None for p in self.processes)

    def __exit__(self, *_):
        for process in reversed(self.processes):
            process.terminate()
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
