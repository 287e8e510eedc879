#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""gateway.py - what the gateway costs, beside plain nginx, in one run.

    test/bench/gateway.py [--rounds N] [--seconds N] [--quick] [--out FILE]
                          [--with-lua] [--peer NAME=URL]... [--upstream-port N]

An upstream nginx answers 201 with some 300 bytes. wrk sends it POSTs of 120
bytes, each with an Idempotency-Key: directly, through a plain `proxy_pass`,
and through the module with new keys, on every store, and with repeated ones.
PostgreSQL and Redis are servers of its own, on the same machine. Each
measurement has a front nginx and a store of its own, so that none carries the
load of an earlier one. Rounds are interleaved and begin at another target each
time; a ratio is to the plain proxy of the same round, and what is printed is
the median over the rounds. The machine's noise is thus in the ranges, not in
the ratios.

It refuses to print a figure for something else than it says: the upstream's
own counter must show that every new key was executed and no replay was, probes
before and after must be answered fresh or replayed as they should, the store
must hold as many completed records as the upstream executed requests, and no
answer may be other than 2xx. If not it says what is wrong, exits 1, and leaves
the table in docs/ as it was. The goals are reported, not enforced.

A peer is another gateway that runs already, at URL, as --peer says. It forwards
POST URL/charge to this upstream, at 127.0.0.1 and the port of --upstream-port
[9099]. It gets the same load with new keys and with repeated ones, in the same
rounds. Nothing is insisted upon there: its rows say how often the upstream
executed what should be executed once, or not at all, and how many repeats were
not answered with the first answer. It has no CPU column, since we do not own its
processes. --with-lua starts one, test/bench/peers/lua.lua, and measures Once over
the same Redis, which does not flush; it needs Debian's libnginx-mod-http-lua.

Of the file that is written, what stands from the line `<!-- by hand -->` on is
kept.

    ONCE_BUILD      build/            ONCE_MODULE  .../ngx_http_once_module.so
    ONCE_NGINX_BIN  nginx             ONCE_CLI     .../once

Everything listens on 127.0.0.1, and is stopped by its own process id.
"""
import argparse
import datetime
import http.client
import json
import os
import pathlib
import re
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.parse

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "test" / "lib"))
sys.dont_write_bytecode = True
# pylint: disable=wrong-import-position
import newstore  # noqa: E402
import servers  # noqa: E402
from machine import free_port  # noqa: E402
from page import Wrong, by_hand  # noqa: E402

BUILD = pathlib.Path(os.environ.get("ONCE_BUILD", ROOT / "build"))
MODULE = os.environ.get("ONCE_MODULE",
                        str(BUILD / "ngx_http_once_module.so"))
ONCE = os.environ.get("ONCE_CLI", str(BUILD / "once"))
OUT = ROOT / "docs" / "bench-gateway.md"

BODY = '{"order":"' + "0" * 100 + '","n":"1"}'     # 120 bytes
ANSWER = '{"charge":"' + "a" * 286 + '"}'         # 299 bytes
assert len(BODY) == 120
KEYS = 1000            # of the replays
KEEPALIVE = 256        # to the upstream: as many as connections, and more
PEER_PORT = 9099       # of the upstream, for peers
PEERS = ROOT / "test" / "bench" / "peers"
MODULES = pathlib.Path("/usr/lib/nginx/modules")
TICK = os.sysconf("SC_CLK_TCK")
PROBES = 20

# name, what the table calls it, store; the order of the table
TARGETS = [
    ("upstream", "upstream alone", None),
    ("plain", "plain `proxy_pass`", None),
    ("memory", "new keys, `memory:`", "memory:"),
    ("sqlite", "new keys, `sqlite:`", "sqlite:"),
    ("journal", "new keys, `journal:`", "journal:"),
    ("postgres", "new keys, `postgres:`", "postgres:"),
    ("mysql", "new keys, `mysql:`", "mysql:"),
    ("redis", "new keys, `redis:`", "redis:"),
    ("replay", "replays, `sqlite:`", "sqlite:"),
    ("replay-journal", "replays, `journal:`", "journal:"),
    ("replay-memory", "replays, `memory:`", "memory:"),
]
SERVED = ("postgres", "mysql", "redis")  # the servers of test/lib/servers.py
# With --with-lua. Of a server that does not flush, as other gateways have it.
PLAIN_REDIS = ("redis-plain", "new keys, `redis:`, not flushed", "redis-plain:")
LUA_GATEWAY = [
    ("lua", "new keys, Lua over Redis, not flushed", None),
    ("replay-lua", "replays, Lua over Redis, not flushed", None),
]
# At 64 connections, from the issue and from design/README.md.
GOALS = [("memory", 0.65), ("sqlite", 0.25), ("sqlite", 0.5),
         ("journal", 0.55), ("journal", 0.8), ("replay", 1.3), ("replay", 1.5),
         ("replay-journal", 1.5), ("replay-memory", 1.5)]

# wrk runs this: one string is joined per request, so that the generator does
# not become what is measured. `init` runs once in each of wrk's threads.
LUA = r"""
local head, tail, n, many, name
local counter = 0
local threads = 0
function setup(thread)
    threads = threads + 1
    thread:set("number", threads)
end
function init(args)
    name, many = args[1], tonumber(args[2])
    head = "POST " .. args[4] .. " HTTP/1.1\r\nHost: " .. args[5] .. "\r\n" ..
           "Content-Type: application/json\r\nContent-Length: 120\r\n" ..
           "Idempotency-Key: "
    tail = "\r\n\r\n" .. args[3]
end
function request()
    counter = counter + 1
    if many > 0 then
        return head .. name .. "-k-" .. (counter % many) .. tail
    end
    return head .. name .. "-" .. number .. "-" .. counter .. tail
end
function done(summary, latency, requests)
    local e = summary.errors
    io.write(string.format(
        "RESULT %d %d %d %d %d %d %d %d\n", summary.requests, summary.duration,
        latency:percentile(50), latency:percentile(99), e.status,
        e.connect + e.read + e.write, e.timeout, summary.bytes))
end
"""

UPSTREAM = """
daemon off;
{user}
worker_processes 1;
pid {dir}/pid;
lock_file {dir}/lock;
error_log {dir}/error.log warn;
events {{ worker_connections 4096; }}
http {{
    access_log off;
    {temp}
    keepalive_requests 1000000000;
    keepalive_timeout 1h;
    server {{
        listen 127.0.0.1:{port};
        location / {{
            add_header Location /charges/12;
            add_header X-Charge-Id 12;
            default_type application/json;
            return 201 '{answer}';
        }}
        location = /count {{ stub_status; }}
    }}
}}
"""

FRONT = """
{load}
daemon off;
{user}
worker_processes {workers};
pid {dir}/pid;
lock_file {dir}/lock;
error_log {dir}/error.log warn;
events {{ worker_connections 4096; }}
http {{
    access_log off;
    {temp}
    keepalive_requests 1000000000;
    keepalive_timeout 1h;
    {store}
    upstream payments {{
        server 127.0.0.1:{upstream};
        keepalive {keepalive};
        keepalive_requests 1000000000;
        keepalive_timeout 1h;
    }}
    server {{
        listen 127.0.0.1:{port};
        location / {{
            proxy_pass http://payments;
            proxy_http_version 1.1;
            proxy_set_header Connection "";
            proxy_next_upstream off;
            {guard}
        }}
    }}
}}
"""


class Nginx:
    """One nginx in a folder of its own, in the foreground."""

    def __init__(self, nginx, folder, template, port=None, **values):
        self.dir = folder
        self.port = port or free_port()
        folder.mkdir(mode=0o700)
        temp = " ".join(
            f"{kind}_temp_path {folder}/{kind};"
            for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi"))
        # The workers must write the store; as another user they could not.
        user = "user root;" if os.geteuid() == 0 else ""
        conf = folder / "nginx.conf"
        conf.write_text(template.format(dir=folder, port=self.port, temp=temp,
                                        user=user, **values))
        newstore.init_all(conf.read_text())
        self.log = open(folder / "stderr", "wb")
        self.child = subprocess.Popen(
            [nginx, "-p", str(folder), "-e", str(folder / "error.log"), "-c",
             str(conf)], stdin=subprocess.DEVNULL, stdout=self.log,
            stderr=self.log)
        try:
            self.wait()
        except BaseException:
            self.stop()
            raise

    def wait(self):
        for _ in range(1000):
            if self.child.poll() is not None:
                raise Wrong(f"nginx did not start:\n{self.said()}")
            try:
                socket.create_connection(("127.0.0.1", self.port), 5).close()
                return
            except OSError:
                time.sleep(0.01)
        raise Wrong(f"nginx does not listen:\n{self.said()}")

    def logged(self):
        text = ""
        for name in ("stderr", "error.log"):
            path = self.dir / name
            if path.exists():
                text += path.read_text(errors="replace")
        return text

    def said(self):
        return self.logged()[-2000:]

    def workers(self):
        pid = self.child.pid
        path = pathlib.Path(f"/proc/{pid}/task/{pid}/children")
        return [int(p) for p in path.read_text().split()]

    def ticks(self):
        """User and system time of the workers, with all their threads."""
        total = 0
        for pid in self.workers():
            stat = pathlib.Path(f"/proc/{pid}/stat").read_text()
            fields = stat.rpartition(")")[2].split()
            total += int(fields[11]) + int(fields[12])
        return total

    def stop(self):
        """Lets requests end, so that counters may be compared afterwards."""
        for how in (signal.SIGQUIT, signal.SIGTERM, signal.SIGKILL):
            if self.child.poll() is None:
                self.child.send_signal(how)
            try:
                self.child.wait(timeout=20)
                break
            except subprocess.TimeoutExpired:
                continue
        self.log.close()

    def alarms(self):
        return [line for line in self.logged().splitlines()
                if re.search(r"\[(alert|crit|emerg)\]", line)]


class Upstream(Nginx):
    asked = 0  # requests for the counter itself

    def count(self):
        """How many requests it has executed."""
        c = http.client.HTTPConnection("127.0.0.1", self.port, timeout=20)
        c.request("GET", "/count")
        text = c.getresponse().read().decode()
        c.close()
        self.asked += 1
        numbers = re.search(r"^ *(\d+) +(\d+) +(\d+) *$", text, re.M)
        return int(numbers[3]) - self.asked

    def settled(self):
        """The same, when requests of a gateway that goes on have ended."""
        n, before = self.count(), None
        while n != before:
            time.sleep(0.1)
            n, before = self.count(), n
        return n


class Place:
    """Where a gateway is. `text`: http://HOST[:PORT][/PATH]"""

    def __init__(self, text):
        url = urllib.parse.urlsplit(text)
        if url.scheme != "http" or not url.hostname or url.query:
            raise ValueError(f"{text} is no http://HOST[:PORT][/PATH]")
        self.host, self.port = url.hostname, url.port or 80
        self.path = url.path.rstrip("/") + "/charge"
        self.name = url.netloc


def here(port):
    """One of our own."""
    place = Place(f"http://127.0.0.1:{port}")
    place.name = "bench"
    return place


class Client:
    """A few requests by hand, to see what the answers really are."""

    def __init__(self, place):
        self.place = place
        self.c = http.client.HTTPConnection(place.host, place.port, timeout=20)

    def post(self, key):
        self.c.request("POST", self.place.path, BODY,
                       {"Host": self.place.name,
                        "Content-Type": "application/json",
                        "Idempotency-Key": key})
        r = self.c.getresponse()
        return r.status, r.getheader("Idempotency-Status"), r.read().decode()

    def expect(self, key, status):
        got = self.post(key)
        if got != (201, status, ANSWER):
            raise Wrong(f"a probe was answered {got[0]}, Idempotency-Status "
                        f"{got[1]}, {len(got[2])} bytes; expected 201, {status}"
                        f", {len(ANSWER)} bytes")

    def repeat(self, key):
        """Sends it twice. 1 if the second answer is not the first one, or that
        is no 2xx."""
        first, second = self.post(key), self.post(key)
        return int(first[0] // 100 != 2 or
                   (first[0], first[2]) != (second[0], second[2]))

    def close(self):
        self.c.close()


def generate(args, lua, place, connections, name, many):
    """One run of wrk; `many`: so many keys again and again, 0: new ones."""
    command = [args.wrk, "-t1", f"-c{connections}", f"-d{args.seconds}s",
               "--timeout", "20s", "-s", str(lua),
               f"http://{place.host}:{place.port}{place.path}", "--", name,
               str(many), BODY, place.path, place.name]
    ran = subprocess.run(command, capture_output=True, text=True,
                         timeout=args.seconds + 120)
    found = re.search(r"^RESULT (.*)$", ran.stdout, re.M)
    if ran.returncode != 0 or found is None:
        raise Wrong(f"wrk failed:\n{ran.stdout}{ran.stderr}")
    n = [int(x) for x in found[1].split()]
    if n[0] == 0:
        raise Wrong("wrk got no answer at all")
    return {"requests": n[0], "rps": n[0] * 1e6 / n[1], "p50": n[2] / 1e3,
            "p99": n[3] / 1e3, "bad": n[4], "broken": n[5] + n[6]}


class Bench:
    def __init__(self, args, folder, world):
        self.args = args
        self.folder = folder
        kinds = () if args.plain_only else SERVED
        if args.with_lua:
            kinds += ("redis-plain",)
        self.urls = {kind + ":": world.build(kind) for kind in kinds}
        # name -> where it is; None: we start it
        self.peers = {t[0]: None for t in LUA_GATEWAY}
        for name, place in args.peers:
            for kind in ("peer-", "replay-peer-"):
                self.peers[kind + name] = place
        self.lua = folder / "load.lua"
        self.lua.write_text(LUA)
        self.serial = 0
        # (target, workers, connections) -> one per round; None: a peer failed
        self.results = {}
        self.upstream = Upstream(args.nginx, folder / "upstream", UPSTREAM,
                                 port=args.upstream_port, answer=ANSWER)

    def url(self, target):
        """Of a store that nobody has used."""
        store = {t[0]: t[2] for t in targets(self.args)}[target]
        if store in ("sqlite:", "journal:"):
            return f"{store}{self.folder}/front-{self.serial}/store"
        if store == "postgres:":
            return f"{self.urls[store]}?schema=b{self.serial}"
        if store == "mysql:":  # a database of its own
            return f"{self.urls[store]}_b{self.serial}"
        if store in ("redis:", "redis-plain:"):
            return f"{self.urls[store]}?prefix=b{self.serial}:"
        return store

    def front(self, target, workers):
        url = self.url(target)
        folder = self.folder / f"front-{self.serial}"
        load = guard = line = ""
        if url is not None:
            load = f"load_module {MODULE};"
            line = f"once_store bench {url};"
            guard = "once bench; once_scope off; once_key_required on;"
        return Nginx(self.args.nginx, folder, FRONT, workers=workers,
                     load=load, store=line, guard=guard, keepalive=KEEPALIVE,
                     upstream=self.upstream.port)

    def lua_front(self, workers):
        redis = urllib.parse.urlsplit(self.urls["redis-plain:"])
        return Nginx(self.args.nginx, self.folder / f"front-{self.serial}",
                     (PEERS / "lua.conf").read_text(), workers=workers,
                     here=PEERS, modules=MODULES, redis=redis.port,
                     prefix=f"b{self.serial}:", keepalive=KEEPALIVE,
                     upstream=self.upstream.port)

    def prime(self, target, client, name):
        """Makes the replays' keys, or shows that the answers are what they
        should be. Returns how many requests the upstream must have seen."""
        if target.startswith("replay"):
            for i in range(KEYS):
                client.expect(f"{name}-k-{i}", "new")
            for i in range(0, KEYS, KEYS // PROBES):
                client.expect(f"{name}-k-{i}", "replayed")
            return KEYS
        marks = ("new", "replayed") if self.guarded(target) else (None, None)
        for i in range(PROBES):
            client.expect(f"{name}-before-{i}", marks[0])
            client.expect(f"{name}-before-{i}", marks[1])
        return PROBES if self.guarded(target) else 2 * PROBES

    def again(self, target, client, name):
        """After the load: the store still answers, with what it had."""
        if target.startswith("replay"):
            for i in range(0, KEYS, KEYS // PROBES):
                client.expect(f"{name}-k-{i}", "replayed")
        elif self.guarded(target):
            for i in range(PROBES):
                client.expect(f"{name}-before-{i}", "replayed")
            # A key of the load itself, of wrk's first thread.
            client.expect(f"{name}-1-2", "replayed")

    @staticmethod
    def guarded(target):
        return target not in ("upstream", "plain")

    def measure(self, target, workers, connections):
        """One measurement, with its proofs."""
        self.serial += 1
        name = f"run-{os.getpid()}-{self.serial}"
        if target in self.peers:
            return self.measure_peer(target, workers, connections, name)
        front = None
        if target != "upstream":
            front = self.front(target, workers)
        place = here((front or self.upstream).port)
        start = self.upstream.count()
        try:
            client = Client(place)
            executed = self.prime(target, client, name)
            got = self.upstream.count() - start
            if got != executed:
                raise Wrong(f"{got} executions of probes, not {executed}")
            before = front.ticks() if front else 0
            r = generate(self.args, self.lua, place, connections, name,
                         KEYS if target.startswith("replay") else 0)
            ticks = front.ticks() - before if front else 0
            client.close()  # idle meanwhile: nginx may have closed it
            client = Client(place)
            self.again(target, client, name)
            client.close()
        finally:
            if front:
                front.stop()
        r["cpu"] = ticks / TICK * 1e6 / r["requests"] if front else None
        self.prove(target, front, r, connections,
                   self.upstream.count() - start - executed, executed)
        if front:
            shutil.rmtree(front.dir)
        return r

    def measure_peer(self, target, workers, connections, name):
        """What it does is counted. None: it could not be measured."""
        place = self.peers[target]
        replays = target.startswith("replay")
        front = None
        try:
            if place is None:
                front = self.lua_front(workers)
                place = here(front.port)
            client = Client(place)
            if replays:
                for i in range(KEYS):
                    client.post(f"{name}-k-{i}")
            otherwise = sum(client.repeat(f"{name}-before-{i}")
                            for i in range(PROBES))
            client.close()
            start = self.upstream.settled()
            before = front.ticks() if front else 0
            r = generate(self.args, self.lua, place, connections, name,
                         KEYS if replays else 0)
            ticks = front.ticks() - before if front else 0
        except (Wrong, OSError, http.client.HTTPException) as e:
            print(f"{target}: {e}", file=sys.stderr, flush=True)
            return None
        finally:
            if front:
                front.stop()
        r["executed"] = self.upstream.settled() - start
        r["connections"] = connections
        r["otherwise"] = otherwise
        r["cpu"] = ticks / TICK * 1e6 / r["requests"] if front else None
        return r

    def prove(self, target, front, r, connections, executed, primed):
        """wrk stops with a request under way on each connection, so that the
        upstream may have executed so many more than wrk counted."""
        if target.startswith("replay"):
            if executed != 0:
                raise Wrong(f"{executed} replays reached the upstream")
        elif not 0 <= executed - (r["requests"] - r["bad"]) <= connections:
            raise Wrong(f"{r['requests']} requests were answered, "
                        f"{r['bad']} of them not 2xx, and the upstream "
                        f"executed {executed}")
        if self.guarded(target) and self.url(target) != "memory:":
            self.prove_store(self.url(target), executed + primed)
        if front and front.alarms():
            raise Wrong("the error log has alarms:\n" +
                        "\n".join(front.alarms()[:5]))

    def prove_store(self, url, executed):
        ran = subprocess.run([ONCE, "stats", "--json"], capture_output=True,
                             text=True, timeout=300,
                             env=dict(os.environ, ONCE_STORE=url))
        if ran.returncode != 0:
            raise Wrong(f"the store cannot be read: {ran.stderr.strip()}")
        counts = json.loads(ran.stdout)["all"]
        others = {k: counts[k] for k in ("absent", "claimed", "dispatched",
                                         "indeterminate", "corrupt")
                  if counts[k]}
        if counts["completed"] != executed or others:
            raise Wrong(f"the upstream executed {executed} requests, but the "
                        f"store has {counts['completed']} completed records "
                        f"and {others or 'no others'}")

    def run(self):
        a = self.args
        for number in range(a.rounds):
            for workers in (1, 2):
                for connections in (1, 64):
                    self.group(number, workers, connections)

    def group(self, number, workers, connections):
        names = [t[0] for t in targets(self.args)]
        turn = number % len(names)
        for target in names[turn:] + names[:turn]:
            if self.url(target) == "memory:" and workers > 1:
                continue  # refused by nginx -t: each worker had its own
            try:
                r = self.measure(target, workers, connections)
            except Wrong as e:
                raise Wrong(f"{target}, {workers} workers, {connections} "
                            f"connections, round {number + 1}: {e}") from None
            self.results.setdefault((target, workers, connections),
                                    []).append(r)
            print(f"round {number + 1}: {target}, {workers} workers, "
                  f"{connections} connections: "
                  f"{r['rps'] if r else 0:,.0f}/s",
                  file=sys.stderr, flush=True)

    def close(self):
        self.upstream.stop()


def targets(args):
    """What is measured, in the order of the table."""
    found = list(TARGETS[:2] if args.plain_only else TARGETS)
    if args.with_lua:
        found += ([] if args.plain_only else [PLAIN_REDIS]) + LUA_GATEWAY
    for name, _ in args.peers:
        found += [("peer-" + name, f"new keys, {name}", None),
                  ("replay-peer-" + name, f"replays, {name}", None)]
    return found


# ---- The report ------------------------------------------------------------


def ratios(results, key, field):
    """Each round's ratio to the plain proxy of the same round."""
    plain = results[("plain",) + key[1:]]
    return [r[field] / p[field] for r, p in zip(results[key], plain)
            if r and p[field] and r[field] is not None]


def counted(replays, runs):
    """What a peer did that it should not: empty, or words for its row."""
    said = []
    failed = sum(r is None for r in runs)
    runs = [r for r in runs if r and "executed" in r]
    answers = sum(r["requests"] - r["bad"] for r in runs)
    executed = sum(r["executed"] for r in runs)
    # wrk stops with a request under way on each connection.
    under_way = 0 if replays else sum(r["connections"] for r in runs)
    most = (0 if replays else answers) + under_way
    if runs and not most - under_way <= executed <= most:
        said.append(f"each {'**executed again**' if replays else 'executed'} "
                    f"{executed / max(answers, 1):.2f} times")
    otherwise = sum(r["otherwise"] for r in runs)
    if otherwise:
        said.append(f"{otherwise} of {PROBES * len(runs)} repeats **answered "
                    "otherwise**")
    if failed:
        said.append(f"**failed** in {failed} of {failed + len(runs)} rounds")
    return f" ({', '.join(said)})" if said else ""


def spread(values, digits=2):
    if not values:
        return "-"
    middle = f"{statistics.median(values):.{digits}f}"
    if len(values) == 1:
        return middle
    return f"{middle} [{min(values):.{digits}f}-{max(values):.{digits}f}]"


def row(results, key, title):
    runs = results.get(key, [])
    title += counted(key[0].startswith("replay"), runs)
    runs = [r for r in runs if r]
    if not runs:
        return f"| {title} |" + " - |" * 8

    def middle(field):
        values = [r[field] for r in runs if r[field] is not None]
        return statistics.median(values) if values else None

    cpu = middle("cpu")
    bad = sum(r["bad"] + r["broken"] for r in runs)
    return (f"| {title} | {middle('rps'):,.0f} "
            f"| {spread(ratios(results, key, 'rps'))} "
            f"| {middle('p50'):.2f} | {middle('p99'):.2f} "
            f"| {spread(ratios(results, key, 'p99'))} "
            f"| {'-' if cpu is None else f'{cpu:.1f}'} "
            f"| {spread(ratios(results, key, 'cpu'))} | {bad} |")


def tables(results, shown):
    lines = []
    for workers in (1, 2):
        for connections in (1, 64):
            lines += [
                "", f"### {workers} worker{'s' if workers > 1 else ''}, "
                f"{connections} connection{'s' if connections > 1 else ''}", "",
                "| | requests/s | to plain | p50 ms | p99 ms | p99 to plain "
                "| CPU µs/request | CPU to plain | not 2xx |",
                "|---|---|---|---|---|---|---|---|---|",
            ]
            for name, title, _ in shown:
                lines.append(row(results, (name, workers, connections), title))
    return lines


def goals(results):
    lines = ["", "### Goals at 64 connections, throughput to plain", "",
             "| | goal | 1 worker | 2 workers |", "|---|---|---|---|"]
    titles = {t[0]: t[1] for t in TARGETS}
    for name, goal in GOALS:
        cells = []
        for workers in (1, 2):
            key = (name, workers, 64)
            if key not in results:
                cells.append("-")
                continue
            value = statistics.median(ratios(results, key, "rps"))
            cells.append(f"{value:.2f}, "
                         f"{'reached' if value >= goal else 'missed'}")
        lines.append(f"| {titles[name]} | {goal} | {cells[0]} | {cells[1]} |")
    return lines


def filesystem(path):
    return subprocess.run(["stat", "-f", "-c", "%T", str(path)], text=True,
                          capture_output=True, check=True).stdout.strip()


def machine():
    model = re.search(r"^model name\s*: (.*)$",
                      pathlib.Path("/proc/cpuinfo").read_text(), re.M)
    memory = re.search(r"^MemTotal: +(\d+)",
                       pathlib.Path("/proc/meminfo").read_text(), re.M)
    return (f"{os.cpu_count()} cores of {model[1] if model else os.uname()[4]}"
            f", {int(memory[1]) / (1 << 20):.0f} GiB, Linux {os.uname()[2]}")


def versions(args):
    nginx = subprocess.run([args.nginx, "-v"], capture_output=True, text=True)
    wrk = subprocess.run([args.wrk, "-v"], capture_output=True, text=True)
    return (f"{nginx.stderr.strip().rpartition(' ')[2]}, "
            f"{(wrk.stdout + wrk.stderr).partition(' [')[0]}")


def head(args, command, load, folder):
    now = datetime.datetime.now(datetime.timezone.utc)
    return [
        "<!-- made by test/bench/gateway.py: run make bench -->",
        "# What the gateway costs", "",
        "Beside a plain `proxy_pass` to the same upstream, in one run. Take "
        "the ratios, not", "the numbers: load generator, gateway and upstream "
        "share one machine, over loopback.", "",
        f"- {now:%Y-%m-%d %H:%M} UTC; {machine()}; load before the run "
        f"{load:.2f}",
        f"- {versions(args)}; store on {filesystem(folder)}",
        f"- `{command}`: {args.rounds} rounds of {args.seconds} s each, "
        "interleaved; medians,",
        "  the ranges of the rounds in brackets; a ratio is to the plain proxy "
        "of its round",
        f"- load: `wrk -t1 -cN -d{args.seconds}s -s load.lua`, POST of "
        f"{len(BODY)} bytes with an `Idempotency-Key`;",
        f"  answer 201 of {len(ANSWER)} bytes; replays are of {KEYS:,} keys",
        "- wrk counts a stall as all the requests that would have been asked "
        "meanwhile: with one connection",
        "  a single flush of 80 ms is the p99 of a second",
        "- CPU is user and system time of the front's workers, all threads",
        "- `memory:` is refused with more than one worker",
        "- seen in every measurement: each new key executed, no replay did, "
        "and the store",
        "  held one completed record for each execution",
    ] + ([
        "- rows without `store:` are other gateways, which promise something "
        "else; what each",
        "  did with repeats was counted by the upstream and stands in its row",
    ] if args.with_lua or args.peers else [])


def report(args, results, command, load, folder):
    lines = head(args, command, load, folder) + tables(results, targets(args))
    if not args.plain_only:
        lines += goals(results)
    return "\n".join(lines) + "\n"


def not_2xx(results):
    """Of Once and plain nginx. What a peer answers is in its row."""
    return sum(r["bad"] + r["broken"] for runs in results.values()
               for r in runs if r and "executed" not in r)


def peer(text):
    name, _, url = text.partition("=")
    if not re.fullmatch(r"[A-Za-z0-9._-]+", name):
        raise argparse.ArgumentTypeError("NAME=URL, with a name of letters, "
                                         "digits, `.`, `_`, `-`")
    try:
        return name, Place(url)
    except ValueError as e:
        raise argparse.ArgumentTypeError(str(e)) from None


def count(text):
    n = int(text)
    if not 1 <= n <= 1000:
        raise argparse.ArgumentTypeError("from 1 to 1000")
    return n


def arguments():
    p = argparse.ArgumentParser(
        description="Measures the gateway beside plain nginx.")
    p.add_argument("--rounds", type=count, default=5)
    p.add_argument("--seconds", type=count, default=3,
                   help="of each measurement (3)")
    p.add_argument("--quick", action="store_true",
                   help="one round of one second: does it work at all?")
    p.add_argument("--out", type=pathlib.Path,
                   help=f"the table ({OUT}; --quick and --plain-only: none)")
    p.add_argument("--dir", help="where stores are made: a real disk")
    p.add_argument("--nginx", default=os.environ.get("ONCE_NGINX_BIN")
                   or shutil.which("nginx") or "/usr/sbin/nginx")
    p.add_argument("--wrk", default=shutil.which("wrk") or "/usr/bin/wrk")
    p.add_argument("--plain-only", action="store_true",
                   help="without the module: checks this program itself")
    p.add_argument("--peer", dest="peers", metavar="NAME=URL", type=peer,
                   action="append", default=[],
                   help="another gateway that runs already, in front of "
                   "127.0.0.1 and the port below; may be repeated")
    p.add_argument("--upstream-port", type=int, metavar="N",
                   help=f"of the upstream (with --peer {PEER_PORT}, else any)")
    p.add_argument("--with-lua", action="store_true",
                   help="also test/bench/peers/lua.lua")
    args = p.parse_args()
    if len(dict(args.peers)) < len(args.peers):
        p.error("two peers of one name")
    if args.peers and args.upstream_port is None:
        args.upstream_port = PEER_PORT
    if args.quick:
        args.rounds = args.seconds = 1
    if args.out is None and not (args.quick or args.plain_only):
        args.out = OUT
    needed = [args.nginx, args.wrk]
    if not args.plain_only:
        needed += [MODULE, ONCE]
    if args.with_lua and not (MODULES / "ngx_http_lua_module.so").exists():
        p.error("--with-lua needs Debian's libnginx-mod-http-lua")
    for path in needed:
        if not os.path.exists(path):
            p.error(f"{path} does not exist: build first, and see "
                    "tools/packages")
    return args


def stop(number, frame):
    raise KeyboardInterrupt


def main():
    args = arguments()
    command = " ".join(["test/bench/gateway.py"] + sys.argv[1:])
    load = os.getloadavg()[0]
    signal.signal(signal.SIGTERM, stop)
    folder = pathlib.Path(tempfile.mkdtemp(prefix="once-bench-", dir=args.dir))
    bench = None
    world = servers.World()
    try:
        if filesystem(folder) in ("tmpfs", "ramfs") and not args.plain_only:
            raise Wrong(f"{folder} is in memory, where durable costs nothing: "
                        "say --dir with a folder on a disk")
        bench = Bench(args, folder, world)
        bench.run()
        text = report(args, bench.results, command, load, folder)
        bad = not_2xx(bench.results)
        print(text)
        if bad:
            raise Wrong(f"{bad} answers were not 2xx: the figures above are "
                        "not of what they say")
        if args.out:
            args.out.parent.mkdir(exist_ok=True)
            args.out.write_text(text + by_hand(args.out))
    except Wrong as e:
        print(f"gateway.py: {e}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    finally:
        if bench:
            bench.close()
        world.close()
        shutil.rmtree(folder, ignore_errors=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
