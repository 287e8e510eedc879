#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""smoke.py - charge, replay, conflict, unknown, decide: the five things that a
gateway must do, wherever it runs.

    smoke.py --nginx NGINX --module MODULE -- ONCE...
    smoke.py --gateway HOST:PORT --service PORT --store STORE -- ONCE...

The first starts that nginx with that module, with a journal in a temporary
folder. The second asks a gateway that runs: it guards /charges, takes the scope
from Authorization, and passes requests to 127.0.0.1:PORT. ONCE... is the
command that runs the program once, which is asked and told about the store.

A service of charges is started here: each order that reaches it is a line of
its ledger, and the order "lost" is charged without an answer. Prints TAP, since
what is not as it must be ends it. It uses nothing but Python's own library, so
that it runs in any system.
"""

import argparse
import contextlib
import http.client
import http.server
import json
import os
import socket
import subprocess
import sys
import tempfile
import threading
import time

PATIENCE_S = 30
NAMES = ("charge", "replay", "conflict", "unknown", "decide")

CONF = """
load_module %(module)s;
daemon off;
worker_processes 2;
pid nginx.pid;
error_log error.log;
%(user)s
events {}
http {
    access_log off;
    client_body_temp_path body;
    proxy_temp_path proxy;
    fastcgi_temp_path fastcgi;
    uwsgi_temp_path uwsgi;
    scgi_temp_path scgi;
    once_store default %(store)s;
    server {
        listen 127.0.0.1:%(port)d;
        location /charges {
            once default;
            once_scope $http_authorization;
            proxy_http_version 1.1;
            proxy_pass http://127.0.0.1:%(service)d;
        }
    }
}
"""


class Charges(http.server.BaseHTTPRequestHandler):
    """A service that must not be asked twice."""

    protocol_version = "HTTP/1.1"
    ledger = []

    def do_POST(self):  # pylint: disable=invalid-name
        body = self.rfile.read(int(self.headers["Content-Length"]))
        order = json.loads(body)["order"]
        self.ledger.append(order)
        self.close_connection = True
        if order == "lost":
            return
        answer = json.dumps({"charged": order}).encode()
        self.send_response(201)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(answer)))
        self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, *_):  # pylint: disable=arguments-differ
        pass


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def start_service(port):
    server = http.server.ThreadingHTTPServer(("127.0.0.1", port), Charges)
    threading.Thread(target=server.serve_forever, daemon=True).start()


def post(gateway, key, order):
    """Status, the gateway's word on it, the body."""
    host, _, port = gateway.rpartition(":")
    with contextlib.closing(http.client.HTTPConnection(
            host, int(port), timeout=PATIENCE_S)) as c:
        c.request("POST", "/charges", json.dumps({"order": order}),
                  {"Idempotency-Key": key, "Authorization": "Bearer shop",
                   "Content-Type": "application/json"})
        answer = c.getresponse()
        return (answer.status, answer.getheader("Idempotency-Status"),
                answer.read().decode())


def until_it_listens(gateway, process=None):
    host, _, port = gateway.rpartition(":")
    end = time.monotonic() + PATIENCE_S
    while True:
        with contextlib.suppress(OSError):
            socket.create_connection((host, int(port)), timeout=1).close()
            return
        ended = process is not None and process.poll() is not None
        if ended or time.monotonic() > end:
            sys.exit("Bail out! the gateway does not listen")
        time.sleep(0.05)


def code(body):
    with contextlib.suppress(ValueError):
        return json.loads(body).get("code")
    return body


class Smoke:
    """The five things, in this order."""

    def __init__(self, gateway, once, store):
        self.gateway = gateway
        self.once = once
        self.store = store
        # Another run may have left its records in the same store.
        self.keys = [os.urandom(8).hex() for _ in range(2)]

    def command(self, *words):
        done = subprocess.run([*self.once, "--store", self.store, *words],
                              stdout=subprocess.PIPE, text=True, check=False,
                              stdin=subprocess.DEVNULL)
        assert done.returncode == 0, (words[0], done.returncode)
        return done.stdout

    def charge(self):
        got = post(self.gateway, self.keys[0], "o-1")
        assert got == (201, "new", '{"charged": "o-1"}'), got

    def replay(self):
        got = post(self.gateway, self.keys[0], "o-1")
        assert got == (201, "replayed", '{"charged": "o-1"}'), got

    def conflict(self):
        status, _, body = post(self.gateway, self.keys[0], "o-2")
        assert (status, code(body)) == (422, "key-reused"), (status, body)

    def unknown(self):
        for status in (502, 409):
            got = post(self.gateway, self.keys[1], "lost")
            assert (got[0], code(got[2])) == (status, "outcome-unknown"), got
        assert Charges.ledger == ["o-1", "lost"], Charges.ledger

    def decide(self):
        found = [json.loads(line) for line in self.command(
            "ls", "--json", "--state", "indeterminate").splitlines()]
        assert len(found) == 1, found
        self.command("resolve", found[0]["name"], "--fence",
                     str(found[0]["fence"]), "--audit", "off", "--success",
                     "/dev/null", "--status", "204", "--why", "in the ledger")
        got = post(self.gateway, self.keys[1], "lost")
        assert got[:2] == (204, "replayed"), got
        assert Charges.ledger == ["o-1", "lost"], Charges.ledger

    def run(self):
        print("1..%d" % len(NAMES))
        for number, name in enumerate(NAMES, 1):
            try:
                getattr(self, name)()
            except (AssertionError, OSError, http.client.HTTPException) as e:
                print("# %r" % e)
                sys.exit("not ok %d - %s" % (number, name))
            print("ok %d - %s" % (number, name), flush=True)


def with_own_nginx(args):
    with tempfile.TemporaryDirectory() as folder:
        store = "journal:" + os.path.join(folder, "store")
        subprocess.run([*args.once, "--store", store, "init", "--audit",
                        "off"], check=True, stdout=subprocess.DEVNULL)
        port, service = free_port(), free_port()
        conf = os.path.join(folder, "nginx.conf")
        with open(conf, "w", encoding="utf-8") as f:
            f.write(CONF % {
                "module": os.path.abspath(args.module), "port": port,
                "service": service, "store": store,
                "user": "user root;" if os.geteuid() == 0 else ""})
        start_service(service)
        with subprocess.Popen([args.nginx, "-p", folder, "-e", "error.log",
                               "-c", conf]) as nginx:
            try:
                gateway = "127.0.0.1:%d" % port
                until_it_listens(gateway, nginx)
                Smoke(gateway, args.once, store).run()
            finally:
                nginx.terminate()


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--nginx")
    parser.add_argument("--module")
    parser.add_argument("--gateway")
    parser.add_argument("--service", type=int)
    parser.add_argument("--store")
    parser.add_argument("once", nargs="+")
    args = parser.parse_args()
    if args.nginx:
        with_own_nginx(args)
        return
    start_service(args.service)
    until_it_listens(args.gateway)
    Smoke(args.gateway, args.once, args.store).run()


if __name__ == "__main__":
    main()
