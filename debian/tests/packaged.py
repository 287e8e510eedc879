# SPDX-License-Identifier: Apache-2.0
"""packaged.py - what the tests of the installed packages share: the
configuration that a reader of docs/install.md writes, an upstream that counts
what it has executed, and a client."""
import contextlib
import glob
import http.client
import json
import os
import subprocess
import threading
import time

SITE = "/etc/nginx/sites-enabled/once-test"
PORT, SERVICE = 8091, 8092
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


def serving():
    with contextlib.suppress(OSError):
        return post("is-there-anybody", path="/")[0] > 0
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


def post(key, path="/charges", token="ann"):
    """Status, the gateway's word on it, which execution it is from."""
    c = http.client.HTTPConnection("127.0.0.1", PORT, timeout=30)
    try:
        c.request("POST", path, "{}", {"Idempotency-Key": key,
                                       "Authorization": token,
                                       "Connection": "close"})
        r = c.getresponse()
        r.read()
        return (r.status, r.getheader("Idempotency-Status"),
                r.getheader("X-Made"))
    finally:
        c.close()


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
    """Requests, each with a key and a connection of its own, until stop()."""

    def __init__(self, name, threads=8):
        self.name, self.sent, self.bad, self.ended = name, [], [], False
        self.began = time.monotonic()
        self.threads = [threading.Thread(target=self._run, args=(i,))
                        for i in range(threads)]
        for t in self.threads:
            t.start()

    def _run(self, number):
        n = 0
        while not self.ended:
            key = "%s-%d-%d" % (self.name, number, n)
            n += 1
            try:
                got = post(key)
            except OSError as e:
                got = (0, repr(e), None)
            if got[:2] == (201, "new"):
                self.sent.append((key, got[2]))
            else:
                self.bad.append((key, got))

    def stop(self):
        self.ended = True
        for t in self.threads:
            t.join()
        seconds = time.monotonic() - self.began
        print("%s: %d requests, %.0f a second, %d failed" % (
            self.name, len(self.sent), len(self.sent) / seconds,
            len(self.bad)))
        assert not self.bad, self.bad[:5]
        assert len(self.sent) > 100
        return self


def mapped():
    """Whether the running nginx has the module's file that is installed."""
    with open("/proc/%d/maps" % master(), encoding="ascii") as f:
        lines = [line for line in f if "ngx_http_once_module.so" in line]
    assert lines
    return not any("(deleted)" in line or ".dpkg" in line for line in lines)


def shared_memory():
    return glob.glob("/dev/shm/once-*")
