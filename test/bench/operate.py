#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""
operate.py - how long an operator waits for a page of a large store: through the
engine (bench_operate.c) and through the console; and what it costs a gateway
under load that ten consoles look at its store.

    make bench-operate N=10000000 STORE=journal

STORE: journal, sqlite, postgres (a server of its own), or the URL of an empty
PostgreSQL store. The store is made in ONCE_BUILD/bench-operate, the server in
TMPDIR; both are removed. 1,000 records wait. Prints Markdown;
docs/bench-operate.md was written from it.

Beside the gateway: ROUNDS pairs of wrk's runs of SECONDS each, on one gateway
and one store, in turns without and with ten consoles. Each of those is a
program of its own that is asked for the overview with its counts and for the
first page of Waiting every five seconds, as the pages do.
"""

import argparse
import contextlib
import http.client
import json
import os
import pathlib
import re
import shutil
import socket
import statistics
import subprocess
import sys
import threading
import time

import gateway
import servers

BUILD = gateway.BUILD.resolve()
BENCH = str(BUILD / "test" / "bench_operate")
ASKED = 200
CONSOLES = 10
REFRESH_S = 5       # programs/console/pages/app.js
ROUNDS = int(os.environ.get("ROUNDS", "9"))
SECONDS = int(os.environ.get("SECONDS", "10"))
CONNECTIONS = 64
OVERVIEW = "stores"
WAITING = "stores/main/records?what=waiting&limit=100"


class Unix(http.client.HTTPConnection):
    def __init__(self, path):
        super().__init__("localhost")
        self.file = str(path)

    def connect(self):
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.connect(self.file)


def load():
    return " ".join(pathlib.Path("/proc/loadavg").read_text().split()[:3])


class Console:
    """A program of its own."""

    def __init__(self, url, folder):
        folder.mkdir()
        self.sock = folder / "console.sock"
        operators = folder / "operators"
        operators.touch()
        self.process = subprocess.Popen(
            [str(BUILD / "once-console"), "--store", "main=" + url,
             "--operators", str(operators), "--audit", str(folder / "audit"),
             "--listen", "unix:%s" % self.sock], stdout=subprocess.PIPE)
        if not self.process.stdout.readline():
            self.stop()
            raise gateway.Wrong("a console did not start")

    def stop(self):
        self.process.terminate()
        self.process.wait()
        self.process.stdout.close()

    def ask(self, path, body=None):
        connection = Unix(self.sock)
        if body is None:
            connection.request("GET", "/api/v1/" + path)
        else:
            connection.request(
                "POST", "/api/v1/" + path, json.dumps(body),
                {"Origin": "http://localhost", "Once-Console": "1",
                 "Content-Type": "application/json"})
        answer = connection.getresponse()
        raw = answer.read()
        connection.close()
        assert answer.status == 200, raw[:400]
        return json.loads(raw)

    def memory(self):
        """MiB: its own (nobody else can have it in memory), of files, of the
        memory that all processes of a journal share; and the sum, as tools
        that print RSS show it."""
        def number(file, name):
            text = pathlib.Path("/proc/%d/%s" % (self.process.pid, file))
            return int(re.search(r"^%s:\s+(\d+) kB" % name, text.read_text(),
                                 re.M)[1]) / 1024
        return (number("smaps_rollup", "Anonymous"), number("status", "RssFile"),
                number("status", "RssShmem"), number("smaps_rollup", "Rss"))

    def cpu(self):
        """Seconds, of all its threads."""
        stat = pathlib.Path("/proc/%d/stat" % self.process.pid).read_text()
        fields = stat.rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / gateway.TICK


# ---- One console ----------------------------------------------------------


def through_console(url, names, folder):
    console = Console(url, folder / "one")
    with contextlib.ExitStack() as stack:
        stack.callback(console.stop)
        print("\nThrough the console (load %s):\n" % load())
        print("| question | median ms | p95 | slowest |\n|---|---|---|---|")
        for text, ask, good in (
                ("Waiting, the first 100", lambda i: (WAITING,),
                 lambda a, i: len(a["records"]) == 100),
                ("Overview with counts", lambda i: ("stores/main",),
                 lambda a, i: True),
                ("Record", lambda i: ("stores/main/records/" + names[i],),
                 lambda a, i: a["name"] == names[i]),
                ("Find, whole hash",
                 lambda i: ("find", {"by": "hash", "hash": names[i]}),
                 lambda a, i: a["matches"][0]["name"] == names[i]),
                ("Find, first 16 digits",
                 lambda i: ("find", {"by": "hash", "hash": names[i][:16]}),
                 lambda a, i: a["matches"][0]["name"] == names[i])):
            before = console.memory()
            took = []
            for i in range(ASKED):
                begin = time.monotonic()
                answer = console.ask(*ask(i))
                took.append((time.monotonic() - begin) * 1e3)
                assert good(answer, i), answer
            took.sort()
            print("| %s | %.2f | %.2f | %.2f |" %
                  (text, took[ASKED // 2], took[ASKED * 95 // 100], took[-1]))
        for when, memory in (("before the last question", before),
                             ("in the end", console.memory())):
            print("\nIts memory %s: %.0f MiB of its own, %.0f of files, %.0f "
                  "shared with the gateway; RSS %.0f." % (when, *memory))
    sys.stdout.flush()


# ---- A gateway, and ten that look ------------------------------------------


class Lookers:
    """Ten consoles, each with a page that is open."""

    def __init__(self, url, folder):
        self.consoles = []
        self.took = []
        self.trouble = []
        self.ended = threading.Event()
        self.threads = []
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        try:
            for i in range(CONSOLES):
                self.consoles.append(Console(url, folder / str(i)))
        except BaseException:
            self.stop()
            raise

    def begin(self):
        """They do not all look at the same moment."""
        now = time.monotonic()
        for i, console in enumerate(self.consoles):
            thread = threading.Thread(
                target=self.look,
                args=(console, now + i * REFRESH_S / CONSOLES))
            thread.start()
            self.threads.append(thread)

    def look(self, console, when):
        try:
            while not self.ended.wait(max(0, when - time.monotonic())):
                begin = time.monotonic()
                assert console.ask(OVERVIEW)["stores"]
                assert len(console.ask(WAITING)["records"]) == 100
                self.took.append((time.monotonic() - begin) * 1e3)
                when += REFRESH_S
        except Exception as e:  # pylint: disable=broad-except
            self.trouble.append(e)

    def cpu(self):
        return sum(console.cpu() for console in self.consoles)

    def stop(self):
        self.ended.set()
        for thread in self.threads:
            thread.join()
        for console in self.consoles:
            console.stop()
        if self.trouble:
            raise gateway.Wrong("looking: %r" % self.trouble[0])


class Pairs:
    """Runs of wrk on one gateway, in turns without and with consoles."""

    def __init__(self, url, folder):
        self.url = url
        self.folder = folder
        self.args = argparse.Namespace(
            wrk=shutil.which("wrk") or "/usr/bin/wrk", seconds=SECONDS)
        self.nginx = (os.environ.get("ONCE_NGINX_BIN") or
                      shutil.which("nginx") or "/usr/sbin/nginx")
        self.lua = folder / "load.lua"
        self.lua.write_text(gateway.LUA)
        self.serial = 0
        self.front = None

    def one(self, lookers):
        """requests/s, CPU us of the gateway a request, CPU of the consoles as
        a part of one processor."""
        self.serial += 1
        if lookers:
            lookers.begin()
        seen, ticks = lookers.cpu() if lookers else 0, self.front.ticks()
        begin = time.monotonic()
        r = gateway.generate(self.args, self.lua,
                             gateway.here(self.front.port), CONNECTIONS,
                             "run-%d-%d" % (os.getpid(), self.serial), 0)
        took = time.monotonic() - begin
        ticks = self.front.ticks() - ticks
        seen = lookers.cpu() - seen if lookers else 0
        if r["bad"] or r["broken"]:
            raise gateway.Wrong("%d answers were not 2xx, %d came not" %
                                (r["bad"], r["broken"]))
        return r["rps"], ticks / gateway.TICK * 1e6 / r["requests"], seen / took

    def looked_at(self):
        lookers = Lookers(self.url, self.folder / "ten")
        try:
            result = self.one(lookers)
        finally:
            lookers.stop()
        return result, lookers.took

    def run(self):
        print("\nA gateway with %d connections, without and with %d consoles "
              "(load %s):\n" % (CONNECTIONS, CONSOLES, load()))
        print("| round | requests/s | with consoles | ratio | CPU us/request | "
              "with consoles | ratio | CPU of the consoles | load |\n"
              "|---|---|---|---|---|---|---|---|---|")
        upstream = gateway.Upstream(self.nginx, self.folder / "upstream",
                                    gateway.UPSTREAM, answer=gateway.ANSWER)
        with contextlib.ExitStack() as stack:
            stack.callback(upstream.stop)
            self.front = gateway.Nginx(
                self.nginx, self.folder / "front", gateway.FRONT, workers=1,
                load="load_module %s;" % gateway.MODULE,
                store="once_store bench %s;" % self.url,
                guard="once bench; once_scope off; once_key_required on;",
                keepalive=gateway.KEEPALIVE, upstream=upstream.port)
            stack.callback(self.front.stop)
            self.one(None)  # not counted: files, caches, connections
            self.rounds()

    def rounds(self):
        rows, took = [], []
        for i in range(ROUNDS):
            if i % 2:
                many, some = self.looked_at()
                none = self.one(None)
            else:
                none = self.one(None)
                many, some = self.looked_at()
            took += some
            rows.append((none[0], many[0], many[0] / none[0], none[1], many[1],
                         many[1] / none[1], 100 * many[2]))
            print("| %d | %s | %s |" % (i + 1, self.row(rows[-1]), load()))
            sys.stdout.flush()
        print("| median | %s | |" %
              self.row([statistics.median(x) for x in zip(*rows)]))
        took.sort()
        print("\n%d looks; overview and page together took %.0f ms, 95 of 100 "
              "%.0f." % (len(took), took[len(took) // 2],
                         took[len(took) * 95 // 100]))

    @staticmethod
    def row(r):
        return "%.0f | %.0f | %.3f | %.1f | %.1f | %.3f | %.1f %%" % tuple(r)


# ---- All of it --------------------------------------------------------------


def make_url(store, folder, stack):
    if store == "postgres":
        world = stack.enter_context(servers.World())
        # As it is after installation, but that filling needs fewer
        # checkpoints.
        url = servers.postgres(world, False, shared_buffers="128MB",
                               max_wal_size="4GB")
    elif ":" in store:
        return store
    else:
        return "%s:%s" % (store, folder / store)
    subprocess.run([gateway.ONCE, "--store", url, "init"], check=True,
                   stdout=subprocess.DEVNULL)
    return url


def measure(n, url, folder):
    subprocess.run([BENCH, "ask", n, url], check=True)
    names = subprocess.run([BENCH, "names", n], check=True, text=True,
                           stdout=subprocess.PIPE).stdout.split()
    # A journal is read by the first who opens it, and is then there for all.
    holder = Console(url, folder / "holder")
    try:
        through_console(url, names, folder)
        Pairs(url, folder).run()
    finally:
        holder.stop()


def main():
    n, store = sys.argv[1:3]
    folder = BUILD / "bench-operate"
    folder.mkdir(mode=0o755)
    with contextlib.ExitStack() as stack:
        stack.callback(shutil.rmtree, folder)
        url = make_url(store, folder, stack)
        begin = time.monotonic()
        subprocess.run([BENCH, "fill", n, "1000", url], check=True)
        print("%s, %s records, filled in %.0f s (load %s):\n" %
              (store.partition(":")[0], n, time.monotonic() - begin, load()))
        sys.stdout.flush()
        measure(n, url, folder)


if __name__ == "__main__":
    try:
        main()
    except gateway.Wrong as e:
        sys.exit("operate.py: %s" % e)
