# SPDX-License-Identifier: Apache-2.0
"""
console.py - what the tests of the web console share: a real gateway with an
upstream and a store (test/gateway/gateway.py), the program once-console on that
store, and a client that checks every answer against the console's own document
(programs/console/openapi.yaml).

    ONCE_BUILD     where once and once-console are, default build
    ONCE_CONSOLE   another once-console

Screenshots of the pages are kept in ONCE_BUILD/console-screens.
"""

import http.client
import json
import os
import pathlib
import re
import signal
import socket
import subprocess
import sys
import traceback
import uuid

import jsonschema
import yaml

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "test" / "gateway"))

# pylint: disable=wrong-import-position
import gateway  # noqa: E402
import marks  # noqa: E402
from gateway import (  # noqa: E402,F401  pylint: disable=wrong-import-position
    Answer, Drop, Hold, Reset, eventually, guarded)
from probes import probing  # noqa: E402  pylint: disable=wrong-import-position

BUILD = pathlib.Path(os.environ.get("ONCE_BUILD", ROOT / "build"))
ONCE = os.environ.get("ONCE_CLI", str(BUILD / "once"))
CONSOLE = os.environ.get("ONCE_CONSOLE", str(BUILD / "once-console"))
SEED = os.environ.get("ONCE_CLI_SEED", str(BUILD / "test" / "cli_seed"))
SCREENS = BUILD / "console-screens"
MARK = gateway.MARK

LABEL = 'once_label "$request_method $uri order=$arg_order";'
SERVER = (guarded("/pay/", LABEL, scope="$http_x_tenant") +
          guarded("/take/", LABEL + "once_lost takeover;") +
          probing(LABEL, prefix="/asked/") +
          "location = /once_status { once_status; }")

DOCUMENT = yaml.safe_load((ROOT / "programs" / "console" / "openapi.yaml").read_text())


# ---- The document --------------------------------------------------------


def schema_of(method, path, status, kind):
    """The schema of an answer; None if the document does not know the path."""
    for pattern, item in DOCUMENT["paths"].items():
        regex = re.sub(r"{[a-z]+}", "[^/]+", pattern)
        if re.fullmatch(regex, path) and method.lower() in item:
            responses = item[method.lower()]["responses"]
            answer = responses.get(str(status), responses["default"])
            if "$ref" in answer:
                answer = DOCUMENT["components"]["responses"][
                    answer["$ref"].rsplit("/", 1)[1]]
            assert kind in answer["content"], (method, path, status, kind)
            return answer["content"][kind]["schema"]
    return None


def check(method, path, status, kind, value):
    schema = schema_of(method, path, status, kind)
    if schema is None:  # what is not there is a problem, like any other
        assert status in (401, 403, 404, 405), (method, path, status)
        schema = {"$ref": "#/components/schemas/problem"}
    whole = dict(schema, components=DOCUMENT["components"])
    jsonschema.Draft202012Validator(whole).validate(value)


# ---- The client ----------------------------------------------------------


class Unix(http.client.HTTPConnection):
    def __init__(self, path):
        super().__init__("localhost")
        self.file = str(path)

    def connect(self):
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(gateway.PATIENCE)
        self.sock.connect(self.file)


class Reply:
    def __init__(self, status, headers, raw):
        self.status = status
        self.headers = headers
        self.raw = raw

    @property
    def json(self):
        return json.loads(self.raw)

    @property
    def code(self):
        return self.json.get("code")

    def __repr__(self):
        return "<%d %r>" % (self.status, self.raw[:400])


class Console:
    """One once-console; `unix` or on loopback."""

    def __init__(self, folder, stores, *words, unix=True, audit=True,
                 group=None):
        self.folder = pathlib.Path(folder)
        self.folder.mkdir(parents=True, exist_ok=True)
        self.socket = self.folder / "console.sock"
        self.audit_file = self.folder / "audit.jsonl"
        self.session = None
        self.port = self.token = None
        self.unix = unix
        command = [CONSOLE, "--listen",
                   "unix:%s" % self.socket if unix else "127.0.0.1:0"]
        for name, url in stores.items():
            command += ["--store", "%s=%s" % (name, url)]
        if audit:
            command += ["--audit", str(self.audit_file)]
        if "--operators" not in words:
            empty = self.folder / "no-operators"
            empty.touch()
            command += ["--operators", str(empty)]
        self.errors = open(self.folder / "stderr", "ab")
        self.process = subprocess.Popen(
            command + list(words), stdout=subprocess.PIPE, stderr=self.errors,
            stdin=subprocess.DEVNULL, user=group)
        line = self.process.stdout.readline().decode()
        assert line, (self.folder / "stderr").read_text()
        if not unix:
            self.url = line.split(": ", 1)[1].strip()
            self.port, self.token = re.fullmatch(
                r"http://127.0.0.1:(\d+)/#token=([0-9a-f]{64})",
                self.url).groups()

    @property
    def origin(self):
        return "http://localhost" if self.unix else \
            "http://127.0.0.1:%s" % self.port

    def send(self, method, target, body=None, headers=(), user=None):
        """As it is, with a Host; nothing is added and nothing checked."""
        if user is not None:
            reply = self._send_as(user, method, target, body, headers)
            marks.note("%s %s" % (method, target[:60]), reply.raw)
            return reply
        connection = Unix(self.socket) if self.unix else \
            http.client.HTTPConnection("127.0.0.1", int(self.port),
                                       timeout=gateway.PATIENCE)
        try:
            connection.request(method, target, body, dict(headers))
            answer = connection.getresponse()
            reply = Reply(answer.status, answer.headers, answer.read())
            marks.note("%s %s" % (method, target[:60]), reply.raw)
            return reply
        finally:
            connection.close()

    def _send_as(self, user, method, target, body, headers):
        """From a process of another user, whom the kernel knows."""
        read, write = os.pipe()
        pid = os.fork()
        if pid == 0:
            told = [None, {}, "it ended"]
            try:
                marks.captured = None  # the files are another user's
                os.setgroups([])
                os.setgid(user)
                os.setuid(user)
                r = self.send(method, target, body, headers)
                told = [r.status, dict(r.headers), r.raw.decode("latin-1")]
            except BaseException:  # pylint: disable=broad-except
                told = [None, {}, traceback.format_exc()]
            finally:
                with os.fdopen(write, "wb") as out:
                    out.write(json.dumps(told).encode())
                os._exit(0)  # pylint: disable=protected-access
        os.close(write)
        with os.fdopen(read, "rb") as f:
            data = f.read()
        os.waitpid(pid, 0)
        status, heads, raw = json.loads(data)
        assert status is not None, raw
        return Reply(status, heads, raw.encode("latin-1"))

    def own(self, **more):
        """The headers that a page of the console sends."""
        headers = {"Origin": self.origin, "Once-Console": "1",
                   "Content-Type": "application/json"}
        if self.session:
            headers["Once-Session"] = self.session
        headers.update(more)
        return headers

    def ask(self, method, path, body=None, user=None, drop=(), **headers):
        """As a page does; the answer is what the document says."""
        own = self.own(**headers)
        if method == "GET":
            own = {n: v for n, v in own.items() if n == "Once-Session" or
                   n in headers}
        own = {n: v for n, v in own.items() if n not in drop}
        data = None if body is None else json.dumps(body)
        r = self.send(method, "/api/v1/" + path, data, own.items(), user)
        kind = r.headers["Content-Type"]
        check(method, "/" + path.partition("?")[0], r.status, kind, r.json)
        return r

    def get(self, path, **more):
        r = self.ask("GET", path, **more)
        assert r.status == 200, r
        return r.json

    def log_in(self):
        r = self.ask("POST", "session", {"token": self.token})
        assert r.status == 200, r
        self.session = r.json["session"]
        return r

    def records(self, **query):
        words = "&".join("%s=%s" % pair for pair in query.items())
        return self.get("stores/main/records?" + words)["records"]

    def record(self, name):
        return self.get("stores/main/records/" + name)

    def decide(self, r, action, key=None, why="ticket 12", user=None,
               **more):
        body = dict(action=action, fence=r["fence"], attempt=r["attempt"],
                    why=why, confirm=r["name"][:8])
        if action not in ("applied", "reopen", "acknowledge"):
            body.update(status=200 if action == "success" else 402,
                        headers=[{"name": "Content-Type",
                                  "value": "application/json"}],
                        body='{"paid": true}')
        body.update(more)
        body = {n: v for n, v in body.items() if v is not None}
        headers = {"Idempotency-Key": key or uuid.uuid4().hex}
        return self.ask("POST", "stores/main/records/%s/decision" % r["name"],
                        body, user, **headers)

    def audit(self):
        try:
            lines = self.audit_file.read_text().splitlines()
        except FileNotFoundError:
            return []
        return [json.loads(line) for line in lines]

    def close(self):
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(gateway.PATIENCE)
            except subprocess.TimeoutExpired:
                self.process.kill()
                raise
            assert self.process.returncode == 0, (
                self.folder / "stderr").read_text("utf-8", "replace")[-4000:]
        self.process.stdout.close()
        self.errors.close()


# ---- A gateway with outcomes that were lost --------------------------------


class World:
    """A gateway and its store, with one console that may decide."""

    def __init__(self, folder, store="sqlite"):
        self.folder = pathlib.Path(folder)
        self.site = gateway.Site(folder, SERVER, store).start()
        self.url = self.site.url(store)
        self.consoles = []

    def console(self, *words, **more):
        self.consoles.append(Console(
            self.folder / ("console%d" % len(self.consoles)),
            more.pop("stores", {"main": self.url}), *words, **more))
        return self.consoles[-1]

    def lose(self, order, prefix="/pay/", **more):
        """A request whose answer is lost; the case of its upstream."""
        case = self.site.case(prefix, Drop(), Answer(201, b'{"again":1}'))
        r = case.post(query="order=%s" % order,
                      headers=[("X-Tenant", MARK + "tenant")], **more)
        assert r.code() == "outcome-unknown", r
        return case

    def repeat(self, case, order):
        return case.post(query="order=%s" % order,
                         headers=[("X-Tenant", MARK + "tenant")])

    def once(self, *words):
        done = subprocess.run([ONCE, *words], capture_output=True, timeout=60,
                              env=dict(os.environ, ONCE_STORE=self.url))
        assert done.returncode == 0, done
        return done.stdout.decode()

    def seed(self, *words):
        done = subprocess.run([SEED, self.url, *words], capture_output=True,
                              timeout=60)
        assert done.returncode == 0, done
        return done.stdout.decode().strip()

    def close(self):
        for console in self.consoles:
            console.close()
        self.site.close()


def waiting(console, order):
    """The record of an order that waits."""
    found = [r for r in console.records(what="waiting", limit=200)
             if r["label"] and r["label"].endswith("order=%s" % order)]
    assert len(found) == 1, found
    return found[0]


def opened(world, console, chrome, order, prefix="/pay/"):
    """A lost outcome, whose page is open; its record."""
    world.lose(order, prefix)
    r = waiting(console, order)
    chrome.go("record/main/" + r["name"])
    return r
