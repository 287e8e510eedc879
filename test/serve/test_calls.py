# SPDX-License-Identifier: Apache-2.0
"""
Functions by the middlewares of all languages: each runs at most once for its group
and key, whatever happens, and each other call gets the first result, or is told
why there is none. The functions are those of caller.py, caller.js, caller/,
caller.lua, each in a process of its own; their ledger says what was run.
"""

import collections
import concurrent.futures
import contextlib
import http.client
import json
import os
import pathlib
import random
import signal
import socket
import subprocess
import sys
import threading
import time

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import test_serve as served  # noqa: E402 pylint: disable=wrong-import-position
from served import is_installed  # noqa: E402
from test_serve import BUILD, ONCE, PATIENCE, ROOT, eventually  # noqa: E402

HERE = ROOT / "test/serve"
# Those that are installed; each meets the next one.
LANGUAGES = ["python", "node", *filter(is_installed, ["go", "lua"]),
             "asyncio"]
OTHER = dict(zip(LANGUAGES, LANGUAGES[1:] + LANGUAGES[:1]))
ROUNDS = 100
EACH = pytest.mark.parametrize("language", LANGUAGES)

NGINX = """
load_module /usr/lib/nginx/modules/ndk_http_module.so;
load_module /usr/lib/nginx/modules/ngx_http_lua_module.so;
daemon off;
master_process off;
pid nginx.pid;
error_log error.log info;
events { worker_connections 1024; }
http {
    access_log off;
    client_body_temp_path body;
    proxy_temp_path proxy;
    fastcgi_temp_path fastcgi;
    uwsgi_temp_path uwsgi;
    scgi_temp_path scgi;
    lua_package_path "%(here)s/?.lua;%(root)s/middleware/lua/?.lua;;";
    init_by_lua_block { require("caller").start("%(socket)s") }
    server {
        listen unix:%(folder)s/http;
        location / { content_by_lua_block { require("caller").serve() } }
    }
}
"""


def built(program, command, sources, **more):
    """Built once, into the folder of the build."""
    newest = max(f.stat().st_mtime for f in sources)
    if not program.exists() or program.stat().st_mtime < newest:
        made = program.with_suffix(".%d" % os.getpid())
        subprocess.run([*command, "-o", made], check=True, **more)
        made.rename(program)
    return str(program)


def go_caller():
    source = HERE / "caller"
    sources = [*source.glob("*.go"), *(ROOT / "middleware/go").glob("*.go")]
    return built(BUILD.resolve() / "test" / "go-caller", ["go", "build"], sources,
                 cwd=source, env=dict(os.environ, GOFLAGS="-mod=mod",
                                      GOPROXY="off"))


class Unix(http.client.HTTPConnection):
    """HTTP by a socket file."""

    def __init__(self, path):
        super().__init__("caller", timeout=PATIENCE)
        self.path = path

    def connect(self):
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(PATIENCE)
        self.sock.connect(str(self.path))


class Caller:
    """A process that calls functions. Each command is answered by a future."""

    def __init__(self, language, where, folder):
        self.language, self.folder = language, folder
        self.waiting, self.log = {}, folder / "log"
        self.pool = concurrent.futures.ThreadPoolExecutor(64)
        commands = {
            "python": ["/usr/bin/python3", HERE / "caller.py", "sync", where],
            "asyncio": ["/usr/bin/python3", HERE / "caller.py", "async", where],
            "node": ["node", HERE / "caller.js", where],
            "lua": ["nginx", "-p", folder, "-e", "error.log", "-c",
                    folder / "nginx.conf"]}
        if language == "lua":
            (folder / "nginx.conf").write_text(NGINX % {
                "here": HERE, "root": ROOT, "socket": where, "folder": folder})
            self.log = folder / "error.log"
        with open(folder / "log", "ab") as log:
            # pylint: disable=consider-using-with
            self.process = subprocess.Popen(
                [go_caller(), where] if language == "go" else commands[language],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log)
        if language == "lua":
            eventually(self._listens)
        else:
            self.pool.submit(self._read)

    def _listens(self):
        with contextlib.closing(Unix(self.folder / "http")) as there, \
                contextlib.suppress(OSError):
            there.connect()
            return True
        return False

    def _read(self):
        for line in self.process.stdout:
            answer = json.loads(line)
            self.waiting.pop(answer["n"]).set_result(answer)
        for future in list(self.waiting.values()):
            future.set_exception(EOFError())

    def _ask(self, line):
        http_connection = Unix(self.folder / "http")
        with contextlib.closing(http_connection):
            http_connection.request("POST", "/", line)
            return json.loads(http_connection.getresponse().read())

    def start(self, command):
        command = dict(command, n=random.getrandbits(50))
        line = json.dumps(command).encode()
        if self.language == "lua":
            return self.pool.submit(self._ask, line)
        future = concurrent.futures.Future()
        self.waiting[command["n"]] = future
        self.process.stdin.write(line + b"\n")
        self.process.stdin.flush()
        return future

    def close(self):
        self.process.kill()
        self.process.wait(PATIENCE)
        self.pool.shutdown()


class World:
    """A server, callers, and a ledger of what was run."""

    def __init__(self, folder, stack):
        self.folder, self.stack = folder, stack
        self.server = served.Server(folder).start()
        self.where = self.server.where[5:]
        self.callers = {}
        self.ledger = folder / "ledger"
        self.ledger.touch()

    def caller(self, language, name="", where=None):
        """The same one for the same name."""
        at = language, name
        if at not in self.callers:
            folder = self.folder / ("caller-%s-%s" % at)
            folder.mkdir()
            self.callers[at] = Caller(language, where or self.where, folder)
        return self.callers[at]

    def command(self, key, act="json", value=None, **more):
        return dict({"group": "charge", "key": "key-" + key, "act": act,
                     "value": value, "ledger": str(self.ledger)}, **more)

    def start(self, language, *args, name="", **more):
        return self.caller(language, name).start(self.command(*args, **more))

    def call(self, *args, **more):
        """What the caller got, without its text: (error, ...) or a result."""
        return got(self.start(*args, **more))

    def runs(self, key):
        return self.ledger.read_text().split().count("key-" + key)

    def begun(self, key):
        return eventually(lambda: self.runs(key))

    def gate(self, name="gate"):
        return str(self.folder / name)

    def resolve(self, *words):
        """What an operator does with the one record."""
        record, = records(self)
        subprocess.run([ONCE, "--store", self.server.store, "resolve", record["name"], "--fence",
                        str(record["fence"]), *words, "--why", "test", "--audit",
                        "off"], check=True, capture_output=True)

    def close(self):
        for caller in self.callers.values():
            caller.close()
        if self.server.process.poll() is None:
            self.server.end()
        for caller in self.callers.values():    # no secret is in a log
            log = caller.log.read_text()
            assert "key-" not in log and "print-" not in log


def got(future):
    answer = future.result(PATIENCE)
    answer.pop("n")
    text = answer.pop("text", "")
    assert "key-" not in text and "print-" not in text, text
    return {n: v for n, v in answer.items() if n == "json" or v is not None}


@pytest.fixture(name="world")
def a_world(tmp_path):
    with contextlib.ExitStack() as stack:
        world = World(tmp_path, stack)
        stack.callback(world.close)
        yield world


def error(name, **more):
    return dict({"error": name}, **more)


# ---- Results --------------------------------------------------------------

VALUES = [{"id": 7, "paid": True, "who": "J\u00fcrgen \u20ac"}, [1, [2.5]], None,
          False, 0, 12345678901234]


@EACH
def test_it_runs_once_and_each_call_gets_the_first_result(world, language):
    for i, value in enumerate(VALUES):
        key = "k%d" % i
        assert world.call(language, key, value=value) == {"json": value}
        assert world.call(language, key, value="another") == {"json": value}
        assert world.call(language, key, name="other") == {"json": value}
        assert world.runs(key) == 1
    for text in "", "plain\n\u00e9":
        key = "b%d" % len(text)
        for _ in range(2):
            assert world.call(language, key, "bytes", text) == {"bytes": text}
        assert world.runs(key) == 1


@EACH
def test_the_first_caller_gets_what_each_repeat_gets(world, language):
    """A tuple, a Date, an int64, a third: JSON has them otherwise."""
    first = world.call(language, "k", "shape")
    assert "error" not in first and world.call(language, "k", "shape") == first
    assert world.runs("k") == 1


@EACH
def test_a_failure_is_recorded_and_told_to_each(world, language):
    for code in 1, 7, 2**31 - 1:
        key = "k%d" % code
        for name in "", "", "other":
            assert world.call(language, key, "failure", {"why": "no"}, code=code,
                              name=name) == error("Failed", code=code,
                                                  json={"why": "no"})
        assert world.runs(key) == 1


@EACH
def test_a_code_that_is_none_is_the_same_for_each(world, language):
    first = world.call(language, "k", "failure", {}, code=-5)
    assert first["error"] == "Failed" and first["code"] == 1
    assert world.call(language, "k", "failure", {}, code=-5) == first


@EACH
@pytest.mark.parametrize("act", ["throw", "end", "unencodable"])
def test_a_function_that_breaks_is_unknown(world, language, act):
    if (language, act) == ("asyncio", "end"):
        pytest.skip("SystemExit ends its loop")
    first = {"python": "SystemExit", "go": "gone"}.get(
        language, "Unknown") if act == "end" else "Unknown"
    assert world.call(language, "k", act) == error(first)
    for name in "", "other":
        assert world.call(language, "k", name=name) == error("Unknown")
    assert world.runs("k") == 1


@EACH
def test_a_function_that_has_done_nothing_frees_the_key(world, language):
    for _ in range(2):
        assert world.call(language, "k", "not_applied") == error("Free")
    assert world.call(language, "k", value=1) == {"json": 1}
    assert world.call(language, "k", value=2) == {"json": 1}
    assert world.runs("k") == 3


@EACH
@pytest.mark.parametrize("act", ["not_applied", "failure"])
def test_what_another_call_says_is_not_said_of_the_one_that_made_it(
        world, language, act):
    inner = world.command("inner", act, {})
    assert world.call(language, "k", inner=inner) == error("Unknown")
    assert world.call(language, "k") == error("Unknown")
    assert (world.runs("k"), world.runs("inner")) == (1, 1)


@EACH
def test_one_key_is_of_one_fingerprint_and_one_group(world, language):
    assert world.call(language, "k", value=1, fingerprint="print-5") == {"json": 1}
    for more in {"fingerprint": "print-6"}, {}:
        assert world.call(language, "k", **more) == error("Mismatch")
    assert world.call(language, "k", fingerprint="print-5") == {"json": 1}
    assert world.runs("k") == 1
    assert world.call(language, "k", value=2, group="refund") == {"json": 2}


@EACH
def test_what_cannot_be_a_call_is_refused_and_not_run(world, language):
    for more in {"group": "two words"}, {"wait_ms": 600001}, {"lease_ms": 1}:
        assert world.call(language, "k", **more) == error("Refused")
    assert world.call(language, "x" * 256) == error("Refused")
    assert world.runs("k") == 0
    assert world.call(language, "k", value=1) == {"json": 1}


@pytest.mark.parametrize("language", ["python", "asyncio", "node"])
def test_a_fingerprint_that_is_no_text_is_an_error(world, language):
    """None in its place would be no fingerprint at all."""
    for value in None, 5:
        assert world.call(language, "k", fingerprint=value) == error("TypeError")
    assert world.runs("k") == 0


@EACH
def test_an_operators_word_counts(world, language):
    world.call(language, "k", "throw")
    world.resolve("--applied")
    assert world.call(language, "k") == error("Unstored")
    assert world.runs("k") == 1


@EACH
@pytest.mark.parametrize("value", [
    {"id": 7, "who": "J\u00fcrgen \u20ac"}, [1, [2.5]], None, False, "text", ""])
def test_an_operators_value_is_the_result(world, language, value):
    """It was the bytes of a file, where callers expect a value."""
    world.call(language, "k", "throw")
    path = world.folder / "value.json"
    path.write_text(json.dumps(value) + "\n")
    world.resolve("--success", str(path), "--value")
    for name in "f", "other":
        told = world.call(language, "k", name=name)
        if language == "lua" and isinstance(value, str):
            told["json"] = told.pop("bytes")    # it has one kind of texts
        assert told == {"json": value}
    assert world.runs("k") == 1


@EACH
def test_an_operators_failure_has_its_value(world, language):
    world.call(language, "k", "throw")
    path = world.folder / "value.json"
    path.write_text('{"declined": "card"}')
    world.resolve("--failure", str(path), "--value")
    told = world.call(language, "k")
    assert told["error"] == "Failed" and told["json"] == {"declined": "card"}, told
    assert told.get("code", 1) == 1


# ---- In flight --------------------------------------------------------------


@EACH
def test_a_call_waits_for_one_that_runs(world, language):
    first = world.start(language, "k", value=1, gate=world.gate())
    world.begun("k")
    for more in {}, {"wait_ms": 200}:
        answer = world.call(language, "k", **more)
        assert answer["error"] == "InFlight" and answer["retry_after_ms"] > 0
    second = world.start(language, "k", name="other", wait_ms=60000)
    pathlib.Path(world.gate()).touch()
    assert got(first) == got(second) == {"json": 1}
    assert world.runs("k") == 1


@EACH
def test_two_processes_race(world, language):
    other = OTHER[language]
    for i in range(ROUNDS):
        both = [world.start(x, "k%d" % i, value=[x], wait_ms=60000)
                for x in random.sample([language, other], 2)]
        first = got(both[0])
        assert first == got(both[1]) and first in (
            {"json": [language]}, {"json": [other]})
    lines = collections.Counter(world.ledger.read_text().split())
    assert len(lines) == ROUNDS and max(lines.values()) == 1


@EACH
def test_many_at_a_time(world, language):
    calls = [world.start(language, "k%d" % (i % 20), value=i % 20, wait_ms=60000)
             for i in range(60)]
    for i, future in enumerate(calls):
        assert got(future) == {"json": i % 20}
    lines = collections.Counter(world.ledger.read_text().split())
    assert len(lines) == 20 and max(lines.values()) == 1


@EACH
def test_when_its_process_dies_it_is_unknown_at_once(world, language):
    world.start(language, "k", gate=world.gate())
    world.begun("k")
    waits = world.start(language, "k", name="other", wait_ms=60000)
    eventually(lambda: served.open_exchanges(world.server) == 2)
    world.caller(language).process.kill()
    assert got(waits) == error("Unknown")
    assert world.call(language, "k", name="other") == error("Unknown")
    assert world.runs("k") == 1


@EACH
def test_a_function_has_its_time_and_a_late_result_counts(world, language):
    first = world.start(language, "k", value=1, gate=world.gate(), run_ms=300)
    world.begun("k")
    eventually(lambda: world.call(language, "k") == error("Unknown"))
    pathlib.Path(world.gate()).touch()
    assert got(first) == world.call(language, "k") == {"json": 1}
    assert world.runs("k") == 1


# ---- The server ends ----------------------------------------------------------


@EACH
def test_while_the_server_is_away_nothing_is_run(world, language):
    assert world.call(language, "first", value=1) == {"json": 1}
    world.server.end()
    assert world.call(language, "k") == error("Unavailable")
    assert world.call(language, "l", name="other") == error("Unavailable")
    world.server.start()
    assert world.call(language, "k", value=1) == {"json": 1}
    assert world.call(language, "l", name="other", value=2) == {"json": 2}
    assert (world.runs("k"), world.runs("l")) == (1, 1)


@EACH
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_the_next_server_takes_the_result(world, language, number):
    acts = {"json": ({"json": 1}, 1), "throw": (error("Unknown"), 1),
            "not_applied": (error("Free"), 2)}
    calls = {act: world.start(language, act, act, 1, gate=world.gate())
             for act in acts}
    for act in acts:
        world.begun(act)
    world.server.end(number)
    pathlib.Path(world.gate()).touch()
    world.server.start()
    for act, (told, runs) in acts.items():
        assert got(calls[act]) == told
        again = world.call(language, act, value=1)
        assert again == ({"json": 1} if act == "not_applied" else told)
        assert world.runs(act) == runs


@EACH
def test_a_result_that_cannot_be_told_is_unknown(world, language):
    acts = {"json": "Unknown", "throw": "Unknown", "not_applied": "Unavailable"}
    calls = {act: world.start(language, act, act, 1, gate=world.gate(),
                              lease_ms=1000) for act in acts}
    for act in acts:
        world.begun(act)
    world.server.end(signal.SIGKILL)
    pathlib.Path(world.gate()).touch()
    for act, name in acts.items():
        assert got(calls[act]) == error(name)
    world.server.start()
    for act in acts:
        eventually(lambda a=act: world.call(language, a) == error("Unknown"))
        assert world.runs(act) == 1


class Chaos:
    """Two processes call the same keys, again and again until each is known,
    while one of them, or the server, is killed."""

    def __init__(self, world, languages, what):
        self.world, self.languages, self.what = world, languages, what
        self.names, self.told, self.wrong = ["0", "0"], {}, []
        self.kills, self.given_up = 0, set()
        for language in languages:
            world.caller(language, "0")

    def ask(self, key):
        """What is known then, or None."""
        which = random.randrange(2)
        try:
            answer = self.world.call(
                self.languages[which], key, value=[key], name=self.names[which],
                takes_ms=50, wait_ms=100,
                lease_ms=20000 if self.what == "server" else 2000)
        except (OSError, EOFError, http.client.HTTPException):
            return None                     # it was killed
        if answer.get("error") == "Unavailable":
            self.given_up.add(key)          # it may have been claimed
        return None if answer.get("error") in ("InFlight", "Unavailable") \
            else answer

    def find_out(self, key):
        try:
            self.told[key] = eventually(lambda: self.ask(key))
        except BaseException as error:  # pylint: disable=broad-except
            self.wrong.append(error)

    def kill(self):
        self.kills += 1
        if self.what == "server":
            self.world.server.end(signal.SIGKILL)
            self.world.server.start()
            return
        which = random.randrange(2)
        old = self.world.caller(self.languages[which], self.names[which])
        self.world.caller(self.languages[which], str(self.kills))
        self.names[which] = str(self.kills)
        old.process.kill()

    def go_on(self, keys):
        threads = [threading.Thread(target=self.find_out, args=(k,)) for k in keys]
        for thread in threads:
            thread.start()
        while any(t.is_alive() for t in threads):
            size = self.world.ledger.stat().st_size
            eventually(lambda n=size: self.world.ledger.stat().st_size > n or
                       not any(t.is_alive() for t in threads))
            self.kill()
        assert not self.wrong, self.wrong[0]


@EACH
@pytest.mark.parametrize("what", ["server", "caller"])
def test_whatever_is_killed_nothing_runs_twice(world, language, what):
    chaos = Chaos(world, (language, OTHER[language]), what)
    for i in range(5):
        chaos.go_on(["k%d-%d" % (i, j) for j in range(8)])
    assert chaos.kills >= 5 and len(chaos.told) > 20
    lines = collections.Counter(world.ledger.read_text().split())
    assert max(lines.values()) == 1
    for key, told in chaos.told.items():
        again = eventually(lambda k=key: chaos.ask(k))
        # What was known stays so; and what is not known may become it.
        assert told == again or told == error("Unknown"), (told, again)
        # Its callers live, and tell it to the next one. On a busy machine that may
        # start too late for the repeats of a begin, whose claim ends by its lease.
        if what == "server" and key not in chaos.given_up:
            assert told == {"json": [key]} and world.runs(key) == 1


def records(world):
    ls = subprocess.run([ONCE, "--store", world.server.store, "ls", "--json"],
                        check=True, capture_output=True, text=True)
    return [json.loads(line) for line in ls.stdout.splitlines()]


@pytest.mark.parametrize("then", ["its time", "a repeat"])
def test_a_grant_to_a_connection_that_has_ended_is_not_lost(world, then):
    """By hand: it waits, its connection ends, and then it is granted."""
    waits = {"id": served.new_id(), "group": "charge", "key": "k",
             "wait_ms": 60000, "run_ms": 500, "lease_ms": 1000}
    with served.Client(world.server) as c:
        token = served.call_run(c, "k")
        with served.Client(world.server) as gone:
            gone.send("/v1/call/begin", json.dumps(waits).encode() + b"\n")
            eventually(lambda: served.open_exchanges(world.server) == 2)
        c.ask("/v1/abandon", {"token": token})
        eventually(lambda: records(world)[0]["attempt"] == 2)
        if then == "a repeat":
            served.says(c.ask("/v1/call/begin", dict(waits, again=True)), "run")
            return
        for _ in range(300):
            code, head, _ = served.call(c, "k", wait_ms=10)
            if head["do"] == "indeterminate":
                return
        raise AssertionError(head)


# ---- Connections that break ----------------------------------------------------


class Cutter:
    """Stands before the server, and cuts answers off, or requests, that begin
    with a path."""

    def __init__(self, folder, server, stack):
        self.where = str(folder / "cutter")
        self.server = server
        self.cuts = collections.Counter()
        self.seen = collections.Counter()
        self.listener = socket.socket(socket.AF_UNIX)
        self.listener.bind(self.where)
        self.listener.listen(64)
        stack.callback(self.listener.close)
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self):
        with contextlib.suppress(OSError):
            while True:
                sock, _ = self.listener.accept()
                threading.Thread(target=self.carry, args=(sock,),
                                 daemon=True).start()

    def is_cut(self, path):
        self.cuts[path] -= 1
        return self.cuts[path] >= 0

    def carry(self, sock):
        with sock, sock.makefile("rb") as file, contextlib.suppress(
                OSError, EOFError), served.Client(self.server) as client:
            while line := file.readline():
                path = line.split()[1].decode()
                while (line := file.readline()) != b"\r\n":
                    if line.lower().startswith(b"content-length:"):
                        size = int(line[15:])
                data = file.read(size)
                self.seen[path] += 1
                if self.is_cut("before " + path):
                    return
                client.send(path, data)
                code, head, body = client.read()
                data = json.dumps(head).encode() + b"\n" + body
                answer = b"HTTP/1.1 %d -\r\nContent-Length: %d\r\n\r\n%s" % (
                    code, len(data), data)
                cut = self.is_cut("after " + path)
                sock.sendall(answer[:random.randrange(len(answer))] if cut
                             else answer)
                if cut:
                    return


@EACH
@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("what", ["call/begin", "call/end", "broken", "abandon"])
def test_a_connection_that_breaks_says_nothing(world, language, what, when):
    cutter = Cutter(world.folder, world.server, world.stack)
    world.caller(language, "cut", cutter.where)
    act = {"broken": "throw", "abandon": "not_applied"}.get(what, "json")
    told = {"broken": error("Unknown"), "abandon": error("Free")}.get(
        what, {"json": 1})
    for key in "k", "l", "m":
        cutter.seen.clear()
        cutter.cuts["%s /v1/%s" % (when, what)] = 3
        began = time.monotonic()
        answer = world.call(language, key, act, 1, name="cut")
        # A begin is repeated for a second. A busy machine may need it for less
        # than three repeats.
        if what != "call/begin" or answer != error("Unavailable") or \
                time.monotonic() - began < 1:
            break
        assert world.runs(key) == 0
    assert answer == told
    assert cutter.seen["/v1/" + what] == 4 and world.runs(key) == 1
    again = world.call(language, key, value=1)
    assert again == ({"json": 1} if what == "abandon" else told)


@EACH
def test_a_begin_that_is_not_answered_is_abandoned(world, language):
    """Nothing was run, and the next call need not wait."""
    cutter = Cutter(world.folder, world.server, world.stack)
    world.caller(language, "cut", cutter.where)
    cutter.cuts["after /v1/call/begin"] = 1000
    assert world.call(language, "k", name="cut") == error("Unavailable")
    assert world.runs("k") == 0
    assert world.call(language, "k", value=1) == {"json": 1}


# ---- One record for all ---------------------------------------------------------


@EACH
def test_all_languages_have_the_same_records(world, language):
    assert world.call(language, "j", value={"a": [1]}, fingerprint="print-1") == \
        {"json": {"a": [1]}}
    assert world.call(language, "b", "bytes", "paid") == {"bytes": "paid"}
    assert world.call(language, "f", "failure", {"no": 1}, code=3)
    for other in LANGUAGES:
        assert world.call(other, "j", fingerprint="print-1") == \
            {"json": {"a": [1]}}
        assert world.call(other, "j", fingerprint="print-2") == error("Mismatch")
        assert world.call(other, "b") == {"bytes": "paid"}
        assert world.call(other, "f") == error("Failed", code=3, json={"no": 1})


# One call of once_call(): STORE KEY FINGERPRINT RESULT.
PROGRAM = r"""
#include <once/call.h>
#include <stdio.h>
#include <string.h>

static int work(once_task *task, void *user)
{
    once_bytes result = {user, strlen(user)};

    return once_task_result(task, "application/octet-stream", result, NULL);
}

int main(int argc, char **argv)
{
    once_call_options o = ONCE_CALL_OPTIONS_INIT;
    once_result r = ONCE_RESULT_INIT;
    once_engine *e = NULL;
    int rc;

    if (argc != 5 || once_engine_open(argv[1], NULL, NULL, &e) < 0)
        return 1;
    o.group = "charge";
    o.key = (once_bytes){argv[2], strlen(argv[2])};
    o.fingerprint = (once_bytes){argv[3], strlen(argv[3])};
    rc = once_call(e, &o, work, argv[4], NULL, &r);
    printf("%d %d %s %.*s\n", rc, r.code, r.type, (int)r.bytes.size,
           r.bytes.size > 0 ? (const char *)r.bytes.data : "");
    once_result_clear(&r);
    once_engine_close(e);
    return 0;
}
"""
OK, IN_FLIGHT, REPLAY = 0, 2, 3     # of include/once/once.h


@pytest.fixture(name="c_call")
def a_program_in_c(world):
    source, build = world.folder / "caller.c", BUILD.resolve()
    source.write_text(PROGRAM)
    subprocess.run(["cc", "-I", ROOT / "include", source, build / "libonce.so",
                    "-Wl,-rpath,%s" % build, "-o", world.folder / "caller",
                    *os.environ.get("ONCE_TEST_CFLAGS", "").split()], check=True)

    def c_call(key, fingerprint):
        """The answer's number, and the result."""
        out = subprocess.run(
            [world.folder / "caller", world.server.store, "key-" + key,
             fingerprint, "of c"], check=True, capture_output=True, text=True)
        rc, _, result = out.stdout.strip().partition(" ")
        return int(rc), result
    return c_call


@EACH
def test_a_program_in_c_has_the_same_records(world, language, c_call):
    told = "0 application/octet-stream of c"
    assert c_call("k", "print-1") == (OK, told)
    assert world.call(language, "k", fingerprint="print-1") == {"bytes": "of c"}
    assert world.call(language, "k", fingerprint="print-2") == error("Mismatch")
    assert world.call(language, "l", "bytes", "of it", fingerprint="print-1")
    assert c_call("l", "print-1") == (REPLAY, "0 application/octet-stream of it")
    world.start(language, "m", gate=world.gate())
    world.begun("m")
    assert c_call("m", "")[0] == IN_FLIGHT
    assert world.runs("k") == 0 and world.runs("m") == 1


@EACH
def test_once_run_has_the_same_records(world, language):
    run = [ONCE, "--store", world.server.store, "run", "--group", "charge",
           "--fingerprint", "print-1", "--key"]
    subprocess.run([*run, "key-k", "--", "echo", "paid"], check=True,
                   capture_output=True)
    answer = world.call(language, "k", fingerprint="print-1")
    assert "paid" in answer["bytes"], answer
    assert world.runs("k") == 0
    world.start(language, "l", gate=world.gate(), fingerprint="print-1")
    world.begun("l")
    out = subprocess.run([*run, "key-l", "--", "echo", "paid"], check=False,
                         capture_output=True)
    assert out.returncode == 76 and out.stdout == b"", out
