#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""serve.py - what `once serve` costs: by itself, and in services that use it.

    test/bench/serve.py [--rounds N] [--seconds S] [--quick] [--out FILE]

The server is asked by bench_serve, which speaks the protocol as a middleware
does, over a journal on the disk of the build. Its baseline is a request to the
same server that decides nothing (GET /v1/health), of the same round. Services in
Python, Node and Go (test/bench/services) are asked by wrk, with the middleware and
without; their baseline is the same service without. Rounds are interleaved, ratios
are taken within a round, and medians are printed.
"""

import argparse
import contextlib
import datetime
import json
import os
import pathlib
import signal
import socket
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "test" / "lib"))
sys.dont_write_bytecode = True
# pylint: disable=wrong-import-position
import page  # noqa: E402
from gateway import LUA, BODY  # noqa: E402
from machine import eventually, free_port  # noqa: E402
from page import Wrong  # noqa: E402
from stores import cpu_of, middle, ratio  # noqa: E402

BUILD = pathlib.Path(os.environ.get("ONCE_BUILD", ROOT / "build")).resolve()
LOAD = BUILD / "test" / "bench_serve"
OUT = ROOT / "docs" / "bench-serve.md"
HERE = pathlib.Path(__file__).resolve().parent
OPEN = 20000
MIB = 1 << 20

# name: how it is started, and the file that it needs.
SERVICES = {
    "Python (gunicorn)": (["/usr/bin/python3", HERE / "services/service.py"],
                          "/usr/bin/gunicorn"),
    "Node (http)": (["node", HERE / "services/service.js"], "/usr/bin/node"),
    "Go (net/http)": (["GO"], "/usr/bin/go"),
}


class Server:
    """An `once serve` over a journal of its own."""

    def __init__(self, folder, name):
        self.path = folder / (name + ".sock")
        store = "journal:%s/%s" % (folder, name)
        subprocess.run([BUILD / "once", "--store", store, "init"], check=True,
                       stdout=subprocess.DEVNULL)
        # pylint: disable=consider-using-with
        self.process = subprocess.Popen(
            [BUILD / "once-serve", "--store", store, "--buffers", "512m",
             "--listen", "unix:%s" % self.path], stderr=subprocess.DEVNULL)
        eventually(self.path.exists, "once serve listens")

    def status(self, word):
        text = pathlib.Path("/proc/%d/status" % self.process.pid).read_text()
        return int(text.split(word + ":")[1].split()[0])

    def open(self):
        """Exchanges that are open, by its own page."""
        with contextlib.closing(socket.socket(socket.AF_UNIX)) as sock:
            sock.connect(str(self.path))
            sock.sendall(b"GET /v1/health HTTP/1.1\r\nHost: once\r\n"
                         b"Connection: close\r\n\r\n")
            data = b""
            while piece := sock.recv(65536):
                data += piece
        return json.loads(data.partition(b"\r\n\r\n")[2])["open"]

    def load(self, connections, seconds, what, *sizes):
        before = cpu_of(self.process.pid)
        done = subprocess.run(
            [LOAD, self.path, str(connections), str(seconds), what,
             *map(str, sizes)], capture_output=True, text=True, check=False,
            stdin=subprocess.DEVNULL)
        if done.returncode != 0:
            raise Wrong("%s: %s" % (what, done.stderr.strip()[-300:]))
        result = json.loads(done.stdout)
        # What was filled in first is in it, too: few beside the others.
        result["server_us"] = 1e6 * (cpu_of(self.process.pid) - before) / \
            result["operations"]
        return result

    def stop(self):
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(60)


def rounds(args, server, cases):
    """{name: measurements}, interleaved."""
    found = {name: [] for name, _ in cases}
    for _ in range(args.rounds):
        for name, words in cases:
            found[name].append(server.load(*words))
    return found


def by_itself(args, folder):
    server = Server(folder, "alone")
    s = args.seconds
    found = rounds(args, server, [
        ("`GET /v1/health`", (64, s, "health")),
        ("new key: begin and end", (64, s, "new")),
        ("replay: begin", (64, s, "replay")),
        ("new key, one connection", (1, s, "new")),
        ("new key, body of 1 MiB", (8, s, "new", MIB)),
        ("new key, answer of 1 MiB", (8, s, "new", 120, MIB))])
    server.stop()
    base = found["`GET /v1/health`"]
    yield from ["", "## The server by itself", "",
                "64 connections, or as the row says (8 with 1 MiB).", "",
                "| | a second | of the first row | p50 ms | p99 ms | CPU µs of "
                "the server |", "|---|---|---|---|---|---|"]
    for name, results in found.items():
        yield (f"| {name} | {middle(results, 'per_s'):,.0f} | "
               f"{ratio(results, base):.2f} | {middle(results, 'p50_ms'):.2f} | "
               f"{middle(results, 'p99_ms'):.2f} | "
               f"{middle(results, 'server_us'):.1f} |")


def open_ones(folder):
    """Memory of exchanges whose handlers run, and how soon a death is told."""
    server = Server(folder, "open")
    before = server.status("VmRSS")
    with subprocess.Popen([LOAD, server.path, "64", "0", f"open={OPEN}"],
                          stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                          stderr=subprocess.DEVNULL, text=True) as load:
        load.stdout.readline()
        each = (server.status("VmRSS") - before) / OPEN
        begun = server.open()
        load.kill()
        killed = time.monotonic()
        while server.open() > 0:
            time.sleep(0.001)
        took = time.monotonic() - killed
    if begun != OPEN:
        raise Wrong(f"{begun} exchanges are open")
    server.stop()
    server = Server(folder, "large")
    server.load(1, 0, "new", 120, 60 * MIB)
    peak = server.status("VmHWM") / 1024
    server.stop()
    yield from ["", "## Memory, and deaths", "", "| | |", "|---|---|",
                f"| an open exchange, of {OPEN:,} | {each:.1f} KiB |",
                f"| peak with one answer of 60 MiB | {peak:,.0f} MiB |",
                f"| their process is killed, until all {OPEN:,} are given up | "
                f"{took:.2f} s |"]


def wrk(args, script, port, many, name):
    done = subprocess.run(
        ["wrk", "-t1", "-c64", f"-d{max(1, int(args.seconds))}s", "-s", script,
         f"http://127.0.0.1:{port}", "--", name, str(many), BODY, "/pay",
         "shop.test"], capture_output=True, text=True, check=False)
    for line in done.stdout.splitlines():
        if line.startswith("RESULT "):
            n, us, p50, p99, status, cut, late, _ = map(int, line.split()[1:])
            if n == 0 or status or cut or late:
                raise Wrong(f"{name}: {line}")
            return {"operations": n, "per_s": n / us * 1e6, "p50_ms": p50 / 1e3,
                    "p99_ms": p99 / 1e3}
    raise Wrong(f"{name}: wrk failed: {done.stdout}{done.stderr}")


class Service:
    def __init__(self, folder, command, kind, server):
        if command == ["GO"]:
            command = [folder / "service-go"]
            if not command[0].exists():
                subprocess.run(["go", "build", "-o", command[0], "."],
                               cwd=HERE / "services", check=True,
                               env=dict(os.environ, GOFLAGS="-mod=mod",
                                        GOPROXY="off"))
        self.port, self.server = free_port(), server
        # pylint: disable=consider-using-with
        self.process = subprocess.Popen(
            [*command, kind, str(self.port)], stderr=subprocess.DEVNULL,
            env=dict(os.environ, ONCE_SERVE="unix:%s" % server.path))

        def answers():
            with contextlib.suppress(OSError):
                socket.create_connection(("127.0.0.1", self.port)).close()
                return True
            return False
        eventually(answers, "the service listens")

    def load(self, args, script, many, name):
        pids = self.process.pid, self.server.process.pid
        if many:    # each key once: what follows are replays
            wrk(args, script, self.port, many, name)
        before = [cpu_of(pid) for pid in pids]
        result = wrk(args, script, self.port, many, name)
        for word, was, pid in zip(("own_us", "server_us"), before, pids):
            result[word] = 1e6 * (cpu_of(pid) - was) / result["operations"]
        return result

    def stop(self):
        self.process.terminate()
        self.process.wait(60)


def of_service(args, folder, command):
    """{row: measurements} of one language."""
    script = folder / "load.lua"
    script.write_text(LUA)
    server = Server(folder, "s%d" % time.monotonic_ns())
    plain = Service(folder, command, "plain", server)
    guarded = Service(folder, command, "guarded", server)
    found = {"without": [], "new keys": [], "replays": []}
    for i in range(args.rounds):
        found["without"].append(plain.load(args, script, 0, "p"))
        found["new keys"].append(guarded.load(args, script, 0, f"n{i}"))
        found["replays"].append(guarded.load(args, script, 1000, f"r{i}"))
    for it in plain, guarded, server:
        it.stop()
    return found


def in_services(args, folder):
    yield from ["", "## In services", "",
                "64 connections, POST of 120 bytes, 201 with 300 bytes.", "",
                "| | a second | of without | p50 ms | p99 ms | CPU µs of the "
                "service | of `once serve` |", "|---|---|---|---|---|---|---|"]
    for name, (command, needs) in SERVICES.items():
        if not os.path.exists(needs):
            continue
        found = of_service(args, folder, command)
        for row, results in found.items():
            yield (f"| {name}, {row} | {middle(results, 'per_s'):,.0f} | "
                   f"{ratio(results, found['without']):.2f} | "
                   f"{middle(results, 'p50_ms'):.2f} | "
                   f"{middle(results, 'p99_ms'):.2f} | "
                   f"{middle(results, 'own_us'):,.0f} | "
                   f"{middle(results, 'server_us'):.0f} |")


def head(args, load):
    return ["# once serve", "",
            "Made by `make bench-serve` (test/bench/serve.py). Ratios within one "
            "run are to be trusted,",
            "figures of another machine are not to be compared.", "",
            f"- {datetime.date.today()}, {os.cpu_count()} processors, which the "
            f"load shares; load before the run {load:.2f}",
            f"- {args.rounds} interleaved rounds of {args.seconds} s; medians; "
            "`journal:`, each answer durable"]


def rows(args, folder):
    yield from by_itself(args, folder)
    yield from open_ones(folder)
    yield from in_services(args, folder)


def main():
    p = argparse.ArgumentParser(description="Measures once serve.")
    p.add_argument("--rounds", type=int, default=5)
    p.add_argument("--seconds", type=float, default=2.0)
    p.add_argument("--quick", action="store_true")
    p.add_argument("--out", type=pathlib.Path)
    args = p.parse_args()
    if args.quick:
        args.rounds, args.seconds = 1, 1.0
    elif args.out is None:
        args.out = OUT
    load = os.getloadavg()[0]
    folder = pathlib.Path(tempfile.mkdtemp(prefix="once-bench-", dir=BUILD))
    return page.make("serve.py", folder, head(args, load), rows(args, folder),
                     args.out)


if __name__ == "__main__":
    sys.exit(main())
