# SPDX-License-Identifier: Apache-2.0
"""One nginx for many cases: writes the configuration, takes out what nginx
refuses, starts it, lets every client run, and stops it."""

import asyncio
import contextlib
import os
import pathlib
import re
import shutil
import signal
import sqlite3
import subprocess
import tempfile
import time

import gateway
import generate
import http2
import newstore
import upstream

READ_TIMEOUT = 0.4          # nginx's, for an upstream that says nothing
GIVE_UP = 15                # a client's, for nginx
TRIES = 40                  # how often a client asks while it is "in flight"
STORM = 5.0                 # how long the store of a storm is away

MAIN = """
load_module %(module)s;
%(filter)s
user root;
worker_processes %(workers)d;
pid nginx.pid;
lock_file nginx.lock;
error_log error.log info;
events { worker_connections 4096; }
http {
    client_body_temp_path body;
    proxy_temp_path proxy;
    fastcgi_temp_path fastcgi;
    uwsgi_temp_path uwsgi;
    scgi_temp_path scgi;
    access_log off;
    default_type text/plain;
    lingering_close off;
    client_body_buffer_size 8k;
    root %(folder)s/www;
    server_names_hash_max_size 4096;
    %(upstreams)s
    once_store s %(store)s;
    limit_req_zone $http_x_down zone=slow:4m rate=1r/m;
    server {
        listen 127.0.0.1:%(port)d default_server;
        listen 127.0.0.1:%(h2)d default_server http2;
        return 204;
    }
    include cases/*.conf;
}
"""

# What each kind of upstream is told, in every case.
EACH = """
    %(p)s_connect_timeout 2s;
    %(p)s_read_timeout %(ms)dms;
    %(p)s_send_timeout 2s;
"""

# What is set where the store of the whole round goes away and comes back.
IN_A_STORM = """
    once_lease 1s;
    send_timeout 1s;
"""


def upstream_lines():
    out = ""
    for prefix in ("proxy", "fastcgi", "scgi", "uwsgi"):
        out += EACH % {"p": prefix, "ms": READ_TIMEOUT * 1000}
        out += "    %s_cache_path cache/%s keys_zone=cache_%s:2m;\n" % (
            (prefix,) * 3)
        out += "    %s_cache_key $server_name$request_uri;\n" % prefix
        if prefix != "proxy":
            out += "".join("    %s_param %s;\n" % (prefix, p) for p in
                           ("REQUEST_METHOD $request_method",) +
                           generate.PARAMS)
    return out


def target(line):
    """Method, key and path of a line of the plan."""
    method, key, *flags = line.split()
    return (method, key) + ("elsewhere",) * ("elsewhere" in flags)


class Answer:
    """What one request of the client got."""

    def __init__(self, send, method, key):
        self.send = send
        self.method = method
        self.key = key
        self.line = None        # the plan's
        self.elsewhere = False  # to the other path
        self.left = False       # the client did not wait for it
        self.head = None
        self.body = b""
        self.truncated = False

    @property
    def status(self):
        return self.head.status if self.head else 0

    @property
    def mark(self):
        return self.head.get("Idempotency-Status") if self.head else None

    @property
    def code(self):
        if self.head is None:
            return None
        self.head.body = self.body
        with contextlib.suppress(ValueError):
            return self.head.code()
        return None

    def __str__(self):
        if self.left:
            what = "left"
        elif self.head is None:
            what = "nothing"
        else:
            what = "%d %s%s %r" % (
                self.status, self.mark or self.code or "-",
                " cut off" if self.truncated else "", self.body[:48])
        return "%s (%s key=%s): %s" % (self.send, self.method, self.key, what)


def json_body(number, more):
    """One order, in bytes of its own for each number."""
    members = ['"at":%d' % number, '"order":1%s' % (".0" * (number % 2)),
               '"more":"%s"' % more.decode()]
    return ("{%s}" % ("," + " " * (number % 3)).join(
        members[number % 3:] + members[:number % 3])).encode()


def key_body(key, body):
    """The same, with the key in it."""
    more = body[1:] if body.startswith(b"{") else b'"more":"%s"}' % body
    return b'{"id":"%s",%s' % (key.encode(), more)


class Run:
    """One case in one nginx."""

    def __init__(self, the_case, identity):
        self.case = the_case
        self.id = identity
        self.log = upstream.Log(the_case)
        self.answers = []
        self.refused = None     # what `nginx -t` said
        self.stays = True       # what is known is known at every moment
        self.keys = {}          # a name of the plan -> the key
        self.aged = set()       # those of them that are too old

    def render(self, ports, port, h2, folder):
        text = self.case.config()
        text = re.sub(r"\bc_(\w+)", self.id + r"_\1", text)
        text = re.sub(r"\b(dead|mute|deaf|(?:http|fastcgi|scgi|uwsgi)_"
                      r"(?:main|fallback|target)_\d)\b",
                      lambda m: ports[m.group(1)], text)
        # Variables belong to the whole configuration, not to a server.
        text = re.sub(r"\$([bxy]\d*)\b", "$%s_\\1" % self.id, text)
        text = text.replace("FOLDER", str(folder))
        return text.replace(
            "server {", "server {\n    listen 127.0.0.1:%d;\n"
            "    listen 127.0.0.1:%d http2;\n"
            "    server_name %s also-%s;" % (port, h2, self.id, self.id), 1)

    # -- the client

    def key(self, name):
        """The key of this name; where keys carry a time, that of "b" is too
        old from the beginning."""
        if name == "-":
            return None
        if name not in self.keys:
            self.keys[name] = self.id + name
            if "once_key_time" in self.case.config():
                ms = int((time.time() - 2 * 86400 * (name == "b")) * 1000)
                text = "%012x" % ms
                self.keys[name] = "%s-%s-7%s-8%s-%s" % (
                    text[:8], text[8:], os.urandom(2).hex()[:3],
                    os.urandom(2).hex()[:3], os.urandom(6).hex())
                if name == "b":
                    self.aged.add(self.keys[name])
        return self.keys[name]

    async def play(self, ports):
        for number, line in enumerate(self.case.plan):
            words = line.split()
            many = 2 if "twice" in words else 1
            await asyncio.gather(*(
                self._settle(ports, "%s.%d%s" % (self.id, number, "ab"[i]
                                                 if many == 2 else ""), line)
                for i in range(many)))

    async def ask_again(self, ports):
        """Each key once more, when all is quiet: what is known stays known."""
        for line in {target(x) for x in self.case.plan}:
            if line[1] != "-" and line[0] != "LOOK":
                sent = [x for x in self.case.plan if target(x) ==
                        line][-1].split()[2:]
                await self._settle(
                    ports, "%s.end%s" % (self.id, "".join(line[1:])),
                    " ".join(line + tuple(w for w in sent if w in (
                        "big", "origin", "json", "inbody"))))
                if "once_lookup" in self.case.config():
                    await self._settle(ports, "%s.look%s" % (self.id, line[1]),
                                       "LOOK " + line[1])

    async def _settle(self, ports, send, line):
        """Asks again while the first request is still under way, or the store
        is away."""
        for again in range(TRIES):
            answer = await self._send(ports, send + "'" * again, line)
            unread = answer.head is None and not answer.left and \
                not self.stays and again < 5
            if not unread and answer.mark != "in_flight" and \
                    answer.code not in ("in-flight", "store-unavailable"):
                return
            await asyncio.sleep(0.1)

    async def _send(self, ports, send, line):
        method, key, *flags = line.split()
        answer = Answer(send, method, self.key(key))
        answer.line = line
        answer.elsewhere = "elsewhere" in flags
        self.answers.append(answer)
        body = b"z" * (30000 if "big" in flags else 20)
        path = "/pay" + "/elsewhere" * answer.elsewhere
        if method == "LOOK":
            method, path = "GET", "/status?wait=500ms"
        headers = [("X-Case", self.id), ("X-Send", send), ("X-Method", method)]
        if "json" in flags:
            body = json_body(len(self.answers), body)
            headers.append(("Content-Type", "application/json"))
        header = answer.key
        if "inbody" in flags and answer.key and method != "GET":
            body = key_body(answer.key, body)
            header += "-of-nobody"  # it does not count
        if method in ("GET", "HEAD"):
            body = b""
        if header:
            headers.append(("Idempotency-Key", header))
        if body:
            headers.append(("Content-Length", "%d" % len(body)))
        if "origin" in flags:
            headers.append(("Origin", "http://o.test"))
        if "down" in flags:
            headers.append(("X-Down", self.id))
        # Both names of the server are one realm.
        host = "also-" * (len(self.answers) % 2) + self.id
        request = http2.Request(method, path, host, headers, body)
        kind = http2.Http2 if "h2" in flags else http2.Http1
        self.log.fresh.clear()
        client = await kind.connect(ports["h2" in flags])
        try:
            client.send(request)
            if "leave" in flags or "reset" in flags:
                answer.left = True
                await self._leave(client, flags, send)
            else:
                await asyncio.wait_for(client.read(answer), GIVE_UP)
        except (OSError, EOFError):
            answer.truncated = True
        except asyncio.TimeoutError:
            answer.truncated = True
            answer.body = b"(gave up)"
        finally:
            client.close()
        return answer

    async def _leave(self, client, flags, send):
        """When the upstream has the request, or, if it is late, when the page
        for its answer is asked for."""
        for _ in range(25):
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self.log.fresh.wait(), 0.02)
            begun = [e for e in self.log.executions if e.send == send]
            if len(begun) >= (2 if "late" in flags else 1):
                break
            self.log.fresh.clear()
        if "reset" in flags:
            client.reset()
        else:
            client.leave()
        for e in list(self.log.executions):
            if e.send == send:
                with contextlib.suppress(asyncio.TimeoutError):
                    await asyncio.wait_for(e.ended.wait(), 2)


class Round:
    """An nginx for these cases."""

    def __init__(self, upstreams, cases, store):
        self.upstreams = upstreams
        self.runs = []
        for the_case in cases:
            Round.identity += 1
            self.runs.append(Run(the_case, "c%d" % Round.identity))
            self.runs[-1].stays = store != "storm"
            # So that more of them are under way when it begins.
            self.runs[-1].log.slow = store == "storm"
        self.store = store
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="once-cfg-"))
        self.port = self.h2 = 0
        self.process = None
        self.alarms = []

    identity = 0

    async def run(self):
        """Plays all cases; afterwards each Run knows what happened."""
        try:
            await self._start()
            for run in self.runs:
                self.upstreams.logs[run.id] = run.log
            limit = asyncio.Semaphore(16)

            async def one(run):
                async with limit:
                    await run.play((self.port, self.h2))

            await asyncio.gather(self._storm(), *(
                one(r) for r in self.runs if r.refused is None))
            await self._quiet()
            if self.store == "storm":
                await asyncio.gather(*(
                    r.ask_again((self.port, self.h2)) for r in self.runs
                    if r.refused is None))
        finally:
            await self._stop()
            for run in self.runs:
                self.upstreams.logs.pop(run.id, None)
            self._look()
            shutil.rmtree(self.folder, ignore_errors=True)
        return self.runs

    async def _storm(self):
        """The store goes away while requests are under way, nginx is reloaded,
        and the store comes back when the requests have had their answers."""
        if self.store != "storm":
            return
        await asyncio.sleep(0.3)
        workers = self._workers()
        with contextlib.closing(sqlite3.connect(
                self.folder / "store/s", timeout=30,
                isolation_level=None)) as db:
            db.execute("BEGIN IMMEDIATE")
            await asyncio.sleep(0.2)
            self.process.send_signal(signal.SIGHUP)
            await asyncio.sleep(STORM)
            db.execute("ROLLBACK")
        for _ in range(600):
            if not workers & self._workers():
                break
            await asyncio.sleep(0.1)

    def _workers(self):
        path = "/proc/%d/task/%d/children" % ((self.process.pid,) * 2)
        return set(pathlib.Path(path).read_text().split())

    async def _quiet(self):
        """Nothing is under way any more: updates of a cache go on without
        their client."""
        for _ in range(100):
            open_ = [e for r in self.runs for e in r.log.executions
                     if not e.ended.is_set()]
            await asyncio.sleep(0.05)
            if not open_:
                return

    # -- nginx

    def _write(self):
        for name in ("cases", "www/files", "cache", "store"):
            (self.folder / name).mkdir(parents=True, exist_ok=True)
        (self.folder / "www/files/x").write_bytes(b"a file" + upstream.END)
        url = {"journal": "journal:%s/store/j" % self.folder,
               "storm": "sqlite:%s/store/s timeout=100ms" % self.folder,
               "memory": "memory:"}[self.store]
        (self.folder / "nginx.conf").write_text(MAIN % {
            "module": gateway.MODULE,
            "filter": "load_module %s;" % generate.FILTER
                      if generate.HAS_FILTER else "",
            "workers": 1 if self.store == "memory" else 2,
            "folder": self.folder, "port": self.port, "h2": self.h2,
            "upstreams": upstream_lines() +
                         (IN_A_STORM if self.store == "storm" else ""),
            "store": url})
        newstore.init(url.split()[0])
        for run in self.runs:
            path = self.folder / "cases" / (run.id + ".conf")
            if run.refused is None:
                path.write_text(run.render(self.upstreams.ports, self.port,
                                           self.h2, self.folder))
            elif path.exists():
                path.unlink()

    def _command(self, *more):
        return [gateway.NGINX, "-p", str(self.folder), "-e", "error.log", "-c",
                str(self.folder / "nginx.conf"), "-g", "daemon off;", *more]

    async def _start(self):
        """Starts it; what is refused is taken out, one case at a time."""
        for _ in range(len(self.runs) + 5):
            if not self.port:
                self.port, self.h2 = gateway.free_port(), gateway.free_port()
            self._write()
            said = await self._try()
            if said is None:
                return
            if "Address already in use" in said:
                self.port = 0
                continue
            found = (re.search(r"\[emerg\] (?:\d+#\d+: )?([^\n]*) in "
                               r"\S*/cases/(c\d+)\.conf:(\d+)", said) or
                     re.search(r'\[emerg\] (unknown "(c\d+)_)', said))
            assert found, said
            run = [r for r in self.runs if r.id == found.group(2)][0]
            run.refused = found.group(1)
        raise AssertionError("nginx does not start")

    async def _try(self):
        """None, or what it said before it ended."""
        with open(self.folder / "stderr.log", "wb") as err:
            # pylint: disable=consider-using-with
            self.process = subprocess.Popen(
                self._command(), stdin=subprocess.DEVNULL, stdout=err,
                stderr=err, start_new_session=True)
        for _ in range(3000):
            if self.process.poll() is not None:
                text = (self.folder / "stderr.log").read_text("latin-1")
                (self.folder / "error.log").write_text("")
                return text
            with contextlib.suppress(OSError):
                _, writer = await asyncio.open_connection(
                    "127.0.0.1", self.port)
                writer.close()
                # Somebody else's port would answer as well.
                if (self.folder / "nginx.pid").exists():
                    return None
            await asyncio.sleep(0.01)
        raise AssertionError("nginx does not answer")

    async def _stop(self):
        if self.process is None:
            return
        for number in (signal.SIGTERM, signal.SIGKILL):
            if self.process.poll() is None:
                with contextlib.suppress(ProcessLookupError):
                    if number == signal.SIGTERM:
                        os.kill(self.process.pid, number)
                    else:
                        os.killpg(self.process.pid, number)
                for _ in range(500):
                    if self.process.poll() is not None:
                        break
                    await asyncio.sleep(0.01)

    def _look(self):
        """What no run may leave in the error log."""
        path = self.folder / "error.log"
        text = path.read_text("latin-1") if path.exists() else ""
        self.alarms = [line for line in text.splitlines()
                       if gateway.ALARMS.search(line)]
        self.error_log = text
