# SPDX-License-Identifier: Apache-2.0
"""packaged.py - what the tests of the installed packages share: the
configuration that a reader of docs/install.md writes, an upstream that counts
what it has executed, and a client."""
import contextlib
import glob
import json
import multiprocessing
import os
import socket
import subprocess
import threading
import time

SITE = "/etc/nginx/sites-enabled/once-test"
PORT, SERVICE = 8091, 8092
RATE = 2000  # requests a second
EXECUTED = "/var/log/nginx/executed.log"
LOG = "/var/log/nginx/once.log"

# Line by line what guards a location: one for the host, two for the location.
CONF = """
include snippets/once.conf;
log_format executed '$http_idempotency_key';
server {
    listen 127.0.0.1:%d;
    access_log %s once_json;
    location /charges {
        once default;
        once_scope $http_authorization;
        proxy_http_version 1.1;
        proxy_pass http://127.0.0.1:%d;
        %s
    }
}
server {
    listen 127.0.0.1:%d;
    access_log %s executed;
    location / {
        add_header X-Made $request_id;
        return 201 "made\\n";
    }
}
"""


def run(*command, ok=True):
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True,
                          stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL)
    assert not ok or done.returncode == 0, (command, done.stdout)
    return done.stdout


def master():
    with open("/run/nginx.pid", encoding="ascii") as f:
        return int(f.read())


def serving(port=PORT):
    with contextlib.suppress(OSError):
        return post("is-there-anybody", path="/", port=port)[0] > 0
    return False


def until(look, what, seconds=60):
    end = time.monotonic() + seconds
    while not look():
        assert time.monotonic() < end, "waited in vain: " + what
        time.sleep(0.05)


def configure(more=""):
    for name in LOG, EXECUTED:
        with contextlib.suppress(OSError):
            os.remove(name)
    with open(SITE, "w", encoding="ascii") as f:
        f.write(CONF % (PORT, LOG, SERVICE, more, SERVICE, EXECUTED))
    print(run("nginx", "-t"), end="")
    run("/etc/init.d/nginx", "restart")
    until(serving, "nginx serves")


def post(key, path="/charges", token="ann", port=PORT):
    """Status, the gateway's word on it, which execution it is from. A few lines
    on a socket: the load needs the cores for nginx."""
    with socket.create_connection(("127.0.0.1", port), timeout=30) as s:
        s.sendall(("POST %s HTTP/1.1\r\nHost: localhost\r\n"
                   "Idempotency-Key: %s\r\nAuthorization: %s\r\n"
                   "Content-Length: 2\r\nConnection: close\r\n\r\n{}"
                   % (path, key, token)).encode())
        got = b"".join(iter(lambda: s.recv(65536), b"")).decode()
    head, end, body = got.partition("\r\n\r\n")
    status, *lines = head.split("\r\n")
    headers = {name.lower(): value for name, _, value in
               (line.partition(": ") for line in lines)}
    if not end or len(body) < int(headers.get("content-length", 0)):
        raise ValueError("cut short: %r" % got)
    return (int(status.split()[1]), headers.get("idempotency-status"),
            headers.get("x-made"))


def new_then_replayed(key):
    first, second = post(key), post(key)
    print("first", first, "second", second)
    assert first[:2] == (201, "new"), first
    assert second == (201, "replayed", first[2]), second


def listening():
    """What listens on any port."""
    lines = run("ss", "-Hlntu").splitlines()
    return {tuple(line.split()[i] for i in (0, 4)) for line in lines}


def executed():
    with open(EXECUTED, encoding="ascii") as f:
        return [line.strip() for line in f]


def log_lines():
    with open(LOG, encoding="utf-8") as f:
        return [json.loads(line) for line in f]


class Load:
    """RATE requests a second, where the machine carries them, each with a key
    and a connection of its own, until stop(). Processes, because the threads
    of one Python share one core."""

    def __init__(self, name, processes=4, threads=16):
        self.name, self.sent, self.bad = name, [], []
        self.lanes = processes * threads
        self.ended = multiprocessing.Event()
        self.began = time.monotonic()
        self.results = []
        for first in range(0, self.lanes, threads):
            result, to = multiprocessing.Pipe(duplex=False)
            multiprocessing.Process(
                target=self._process, args=(first, threads, to)).start()
            to.close()
            self.results.append(result)

    def _process(self, first, threads, to):
        lanes = [threading.Thread(target=self._lane, args=(first + i,))
                 for i in range(threads)]
        for t in lanes:
            t.start()
        for t in lanes:
            t.join()
        to.send((self.sent, self.bad))

    def _lane(self, number):
        """One request at a time. A late one delays none of those after it."""
        n = 0
        while not self.ended.is_set():
            due = self.began + (number + n * self.lanes) / RATE
            time.sleep(max(0, due - time.monotonic()))
            key = "%s-%d-%d" % (self.name, number, n)
            n += 1
            try:
                got = post(key)
            except (OSError, ValueError) as e:
                got = (0, repr(e), None)
            if got[:2] == (201, "new"):
                self.sent.append((key, got[2]))
            else:
                self.bad.append((key, got))

    def stop(self):
        self.ended.set()
        for result in self.results:
            sent, bad = result.recv()
            self.sent += sent
            self.bad += bad
        seconds = time.monotonic() - self.began
        count = len(self.sent) + len(self.bad)
        with open("/proc/loadavg", encoding="ascii") as f:
            waiting = f.read().split()[0]
        print("%s: %d requests, %.0f a second (%d asked for), %d failed; %d"
              " cores, load average %s" % (
                  self.name, count, count / seconds, RATE, len(self.bad),
                  os.cpu_count(), waiting))
        assert not self.bad, self.bad[:5]
        assert len(self.sent) > 100


def mapped():
    """Whether the running nginx has the module's file that is installed."""
    with open("/proc/%d/maps" % master(), encoding="ascii") as f:
        lines = [line for line in f if "ngx_http_once_module.so" in line]
    assert lines
    return not any("(deleted)" in line or ".dpkg" in line for line in lines)


def shared_memory():
    return glob.glob("/dev/shm/once-*")
