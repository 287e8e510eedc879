#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""
operate.py - how long an operator waits for a page of a large store: through the
engine (bench_operate.c) and through the console.

    make bench-operate N=10000000 STORE=journal

STORE: journal, sqlite, or the URL of an empty PostgreSQL store. The store is
made in ONCE_BUILD/bench-operate and removed. 1,000 records wait. Prints
Markdown; docs/bench-operate.md was written from it.
"""

import http.client
import json
import os
import pathlib
import re
import shutil
import socket
import subprocess
import sys
import time

BUILD = pathlib.Path(os.environ.get("ONCE_BUILD", "build")).resolve()
BENCH = str(BUILD / "test" / "bench_operate")
ASKED = 200


class Unix(http.client.HTTPConnection):
    def __init__(self, path):
        super().__init__("localhost")
        self.file = str(path)

    def connect(self):
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.connect(self.file)


def load():
    return " ".join(pathlib.Path("/proc/loadavg").read_text().split()[:3])


def memory(pid):
    """Of its own, of files, shared with the gateway: MiB."""
    text = pathlib.Path("/proc/%d/status" % pid).read_text()
    return [int(re.search(r"%s:\s+(\d+) kB" % name, text)[1]) / 1024
            for name in ("RssAnon", "RssFile", "RssShmem")]


def question(path, body=None):
    """A function that asks the console: the answer, as JSON."""
    def ask(connection, i):
        if body is None:
            connection.request("GET", "/api/v1/" + path(i))
        else:
            connection.request(
                "POST", "/api/v1/" + path(i), json.dumps(body(i)),
                {"Origin": "http://localhost", "Once-Console": "1",
                 "Content-Type": "application/json"})
        answer = connection.getresponse()
        raw = answer.read()
        assert answer.status == 200, raw[:400]
        return json.loads(raw)
    return ask


def console(url, names, folder):
    sock = folder / "console.sock"
    operators = folder / "operators"
    operators.touch()
    process = subprocess.Popen(
        [str(BUILD / "once-console"), "--store", "main=" + url, "--operators",
         str(operators), "--audit", str(folder / "audit"), "--listen",
         "unix:%s" % sock], stdout=subprocess.PIPE)
    try:
        assert process.stdout.readline()
        print("\nThrough the console (load %s):\n" % load())
        print("| question | median ms | p95 | slowest |\n|---|---|---|---|")
        for text, ask, good in (
                ("Waiting, the first 100",
                 question(lambda i: "stores/main/records?what=waiting&limit=100"),
                 lambda a, i: len(a["records"]) == 100),
                ("Overview with counts", question(lambda i: "stores/main"),
                 lambda a, i: True),
                ("Record", question(lambda i: "stores/main/records/" + names[i]),
                 lambda a, i: a["name"] == names[i]),
                ("Find, whole hash",
                 question(lambda i: "find",
                          lambda i: {"by": "hash", "hash": names[i]}),
                 lambda a, i: a["matches"][0]["name"] == names[i]),
                ("Find, first 16 digits",
                 question(lambda i: "find",
                          lambda i: {"by": "hash", "hash": names[i][:16]}),
                 lambda a, i: a["matches"][0]["name"] == names[i])):
            took = []
            for i in range(ASKED):
                connection = Unix(sock)
                begin = time.monotonic()
                answer = ask(connection, i)
                took.append((time.monotonic() - begin) * 1e3)
                connection.close()
                assert good(answer, i), answer
            took.sort()
            print("| %s | %.2f | %.2f | %.2f |" %
                  (text, took[ASKED // 2], took[ASKED * 95 // 100], took[-1]))
        print("\nIts memory: %.0f MiB of its own, %.0f of files, %.0f shared "
              "with the gateway (load %s)." % (*memory(process.pid), load()))
    finally:
        process.terminate()
        process.wait()


def main():
    n, store = sys.argv[1:3]
    folder = BUILD / "bench-operate"
    folder.mkdir()
    try:
        url = store if ":" in store else "%s:%s" % (store, folder / store)
        begin = time.monotonic()
        subprocess.run([BENCH, "fill", n, "1000", url], check=True)
        print("%s, %s records, filled in %.0f s (load %s):\n" %
              (store.partition(":")[0], n, time.monotonic() - begin, load()))
        sys.stdout.flush()
        subprocess.run([BENCH, "ask", n, url], check=True)
        names = subprocess.run([BENCH, "names", n], check=True, text=True,
                               stdout=subprocess.PIPE).stdout.split()
        console(url, names, folder)
    finally:
        shutil.rmtree(folder)


main()
