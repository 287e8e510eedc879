# SPDX-License-Identifier: Apache-2.0
"""
What handlers of nginx's Lua may do that no scenario of test/gateway does: bodies
that another phase has read, clients that leave, locations that are captured, what
functions compute, servers that stand still, and clocks that are set.
"""

import contextlib
import os
import pathlib
import signal
import socket
import struct
import subprocess
import threading

import pytest

from served import is_installed
from test_serve import BUILD, PATIENCE, ROOT, Server, eventually

pytestmark = pytest.mark.skipif(not is_installed("lua"),
                                reason="there is no nginx with Lua")

CONF = """
load_module /usr/lib/nginx/modules/ndk_http_module.so;
load_module /usr/lib/nginx/modules/ngx_http_lua_module.so;
%(user)s
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
    lua_check_client_abort on;
    lua_package_path "%(root)s/middleware/lua/?.lua;;";
    init_by_lua_block {
        local once = require "once"
        runs = 0
        function guard(options)
            options.serve = "unix:%(socket)s"
            if not options.route then
                options.route = {lease = "3s", in_flight = "wait=2s"}
            end
            options.scope = options.scope or function() return "me" end
            return once.new(options)
        end
        function echo()
            runs = runs + 1
            return 201, {}, ngx.req.get_body_data() or ""
        end
        function echo_and_print()
            runs = runs + 1
            ngx.sleep(tonumber(ngx.var.arg_sleep) or 0)
            ngx.status = 201
            ngx.print(ngx.req.get_body_data() or "")
        end
        refused = {}
        for name, options in pairs{
                scope = {scope = "ann"}, key = {key = {}}, bypass = {bypass = "yes"},
                route = {route = 7}, unknown = {fingerprints = function() end},
                where = {serve = "somewhere"}} do
            options.scope = options.scope or function() end
            local ok, err = pcall(once.new, options)
            refused[#refused + 1] = name .. ": " .. tostring(ok) .. " " .. tostring(err)
        end
        plain = guard{}
        values = {empty = "", number = 7, table = {}, boolean = false,
                  ["function"] = print}
        computing = {}
        for _, name in ipairs{"scope", "key", "fingerprint", "label"} do
            computing[name] = guard{[name] = function()
                return values[ngx.var.arg_value]
            end}
        end
    }
    server {
        listen unix:%(folder)s/http;
        location = /runs { content_by_lua_block { ngx.print(runs) } }
        location = /refused {
            content_by_lua_block { ngx.print(table.concat(refused, "\\n")) } }
        location = /echo { content_by_lua_block { plain:run(echo) } }
        location = /computed { content_by_lua_block {
            computing[ngx.var.arg_name]:run(echo) } }
        location = /printed { content_by_lua_block {
            guard{fingerprint = function() return ngx.var.arg_print end}:run(echo) } }
        location = /body {
            access_by_lua_block {
                local how, size = ngx.var.arg_how, tonumber(ngx.var.http_content_length)
                if how == "socket" then
                    ngx.req.socket():receive(size)
                elseif how == "part" then
                    ngx.req.socket():receive(3)
                elseif how == "discard" then
                    ngx.req.discard_body()
                elseif how == "read" then
                    ngx.req.read_body()
                end
            }
            content_by_lua_block {
                guard{fingerprint = function() return ngx.var.arg_print end}:run(echo) }
        }
        location = /sleep { content_by_lua_block {
            plain:run(function()
                runs = runs + 1
                ngx.sleep(tonumber(ngx.var.arg_sleep))
                return 201, {}, "made"
            end) } }
        location = /captured { content_by_lua_block { plain:capture("/inner") } }
        location = /proxied { content_by_lua_block { plain:capture("/proxy") } }
        location = /inner { internal; content_by_lua_block { echo_and_print() } }
        location = /proxy { internal; proxy_pass http://unix:%(folder)s/origin:/; }
        location = /captured-error { content_by_lua_block { plain:capture("/error") } }
        location = /error { internal; content_by_lua_block {
            runs = runs + 1
            error("as it was asked") } }
        location = /captured-exit { content_by_lua_block { plain:capture("/exit") } }
        location = /exit { internal; content_by_lua_block { runs = runs + 1 ngx.exit(500) } }
        location = /body-of { content_by_lua_block {
            plain:run(function()
                local length = ngx.var.arg_length
                local at = 0
                local parts = {"ma", "de"}
                local body = {text = "made", table = {}, boolean = true,
                              stream = function() at = at + 1; return parts[at] end}
                return 201, {["Content-Length"] = length,
                             ["X-Accel-Buffering"] = ngx.var.arg_buffering},
                    body[ngx.var.arg_kind]
            end) } }
        location = /writes { content_by_lua_block {
            plain:run(function()
                runs = runs + 1
                local how = ngx.var.arg_how
                if ngx.var.arg_thread then
                    assert(ngx.thread.wait(ngx.thread.spawn(ngx[how], ngx.var.arg_with)))
                else
                    ngx[how](ngx.var.arg_with)
                end
                return 201, {}, "made"
            end) } }
        location = /elsewhere { content_by_lua_block { ngx.say("elsewhere") } }
        location = /route { content_by_lua_block {
            guard{route = {in_fligth = "wait=1s"}}:run(echo) } }
    }
    server {
        listen unix:%(folder)s/origin;
        location / { content_by_lua_block { ngx.req.read_body() echo_and_print() } }
    }
}
"""


class Site:
    """An nginx with guarded locations, and its server."""

    def __init__(self, folder, server, env):
        self.folder, self.server = folder, server
        user = "user root;" if os.getuid() == 0 else ""
        (folder / "nginx.conf").write_text(CONF % {
            "root": ROOT, "folder": folder, "socket": server.where[5:],
            "user": user})
        # pylint: disable=consider-using-with
        self.process = subprocess.Popen(
            ["nginx", "-p", folder, "-e", "error.log", "-c",
             folder / "nginx.conf"], env=dict(os.environ, **env))
        eventually(self.listens)

    def listens(self):
        assert self.process.poll() is None, self.log()
        with contextlib.suppress(OSError), self.connect():
            return True
        return False

    def connect(self):
        sock = socket.socket(socket.AF_UNIX)
        sock.settimeout(PATIENCE)
        sock.connect(str(self.folder / "http"))
        return sock

    def log(self):
        return (self.folder / "error.log").read_text()

    def send(self, path, body=b"", key=None, chunked=False):
        sock = self.connect()
        lines = ["POST %s HTTP/1.1" % path, "Host: shop.test", "Connection: close"]
        lines += ["Idempotency-Key: " + key] if key else []
        if chunked:
            lines.append("Transfer-Encoding: chunked")
            body = (b"%x\r\n%s\r\n" % (len(body), body) if body else b"") + \
                b"0\r\n\r\n"
        else:
            lines.append("Content-Length: %d" % len(body))
        sock.sendall("\r\n".join(lines).encode() + b"\r\n\r\n" + body)
        return sock

    def ask(self, *args, **more):
        """Status and body; the whole answer has come, or EOFError."""
        with self.send(*args, **more) as sock, sock.makefile("rb") as file:
            status = file.readline()
            if not status:
                raise EOFError()
            headers = {}
            while (line := file.readline()) not in (b"\r\n", b""):
                name, _, value = line.decode().partition(":")
                headers[name.lower()] = value.strip()
            body = b""
            if headers.get("transfer-encoding") == "chunked":
                while size := int(file.readline().strip() or b"-1", 16):
                    if size < 0:
                        raise EOFError()
                    body += file.read(size)
                    file.readline()
            else:
                body = file.read(int(headers.get("content-length", 0)))
            return int(status.split()[1]), body

    def runs(self):
        return int(self.ask("/runs")[1])


@pytest.fixture(name="make")
def maker(tmp_path):
    with contextlib.ExitStack() as stack:
        def make(env=None):
            server = Server(tmp_path).start()
            site = Site(tmp_path, server, env or {})

            def stop():
                for process in site.process, server.process:
                    if process.poll() is None:
                        process.send_signal(signal.SIGCONT)
                        process.terminate()
                    process.wait(PATIENCE)
            stack.callback(stop)
            return site
        yield make


@pytest.fixture(name="site")
def a_site(make):
    return make()


# ---- Bodies -----------------------------------------------------------------


@pytest.mark.parametrize("how, chunked", [
    ("socket", False), ("part", False), ("discard", False), ("discard", True)])
def test_a_body_that_is_gone_is_no_other_order(site, how, chunked):
    path = "/body?how=" + how
    assert site.ask(path, b"amount=5", "k", chunked)[0] == 500
    assert site.ask(path, b"amount=500", "k", chunked)[0] == 500
    assert site.runs() == 0
    assert "the body was read or discarded before" in site.log()


@pytest.mark.parametrize("chunked", [False, True])
def test_a_body_that_nginx_has_read_is_there(site, chunked):
    path = "/body?how=read"
    assert site.ask(path, b"amount=5", "k", chunked) == (201, b"amount=5")
    assert site.ask(path, b"amount=500", "k", chunked)[0] == 422
    assert site.ask(path, b"", "l", chunked) == (201, b"")
    assert site.runs() == 2


def test_a_program_that_computes_its_fingerprint_may_read_the_body(site):
    assert site.ask("/body?how=socket&print=5", b"amount=5", "k")[0] == 201
    assert site.ask("/body?how=socket&print=6", b"amount=6", "k")[0] == 422
    assert site.runs() == 1


# ---- What is computed -------------------------------------------------------


@pytest.mark.parametrize("name", ["scope", "key", "fingerprint", "label"])
def test_what_is_computed_is_a_text(site, name):
    for value in "empty", "number", "table", "boolean", "function":
        path = "/computed?name=%s&value=%s" % (name, value)
        assert site.ask(path, b"", "k")[0] == 500, value
    assert site.runs() == 0
    assert "the function for %s returned a table" % name in site.log()
    status = site.ask("/computed?name=%s&value=none" % name, b"", "k")[0]
    assert status == (401 if name == "scope" else 201)


def test_options_that_cannot_be_are_errors_at_the_start(site):
    lines = site.ask("/refused")[1].decode().splitlines()
    assert len(lines) == 6
    for line in lines:
        name, _, what = line.partition(": ")
        assert what.startswith("false ")
        assert {"unknown": "fingerprints", "where": "somewhere"}.get(
            name, name) in what, line


@pytest.mark.parametrize("is_there", [True, False])
def test_a_route_that_cannot_be_does_not_start(site, tmp_path, is_there):
    """A server that is away says nothing of it."""
    where = site.server.where if is_there else "127.0.0.1:1"
    conf = tmp_path / "wrong.conf"
    text = (tmp_path / "nginx.conf").read_text()
    conf.write_text(text.replace("/http;", "/other;").replace(
        "/origin;", "/other-origin;").replace("nginx.pid", "other.pid").replace(
        "plain = guard{}", 'plain = once.new{serve = "%s", '
        'route = {scope = "off", in_fligth = "wait=1s"}}' % where))
    # pylint: disable=consider-using-with
    process = subprocess.Popen(["nginx", "-p", tmp_path, "-e", "stderr", "-c", conf],
                               stderr=subprocess.PIPE)
    if is_there:
        _, said = process.communicate(timeout=PATIENCE)
        assert process.returncode != 0 and b"in_fligth" in said
    else:
        eventually((tmp_path / "other").exists)
        process.terminate()
        process.communicate(timeout=PATIENCE)
        assert process.returncode == 0


def test_a_route_that_cannot_be_runs_nothing(site):
    assert site.ask("/route", b"", "k")[0] == 500
    assert site.runs() == 0 and "in_fligth" in site.log()


# ---- Clients and answers ----------------------------------------------------


@pytest.mark.parametrize("path", ["/sleep", "/captured", "/proxied"])
def test_a_client_that_leaves_ends_no_handler(site, path):
    path += "?sleep=0.5"
    with site.send(path, b"made", "k"):
        eventually(lambda: site.runs() == 1)
    assert site.ask(path, b"made", "k") == (201, b"made")
    assert site.runs() == 1


@pytest.mark.parametrize("path", ["/captured-error", "/captured-exit"])
def test_an_error_in_a_captured_location_is_unknown(site, path):
    assert site.ask(path, b"", "k")[0] == 502
    assert site.ask(path, b"", "k")[0] == 409
    assert site.runs() == 1


@pytest.mark.parametrize("more", [
    "kind=text&length=3", "kind=text&length=5", "kind=stream&length=3",
    "kind=stream&length=5", "kind=table", "kind=boolean"])
def test_an_answer_that_is_not_as_it_says_is_unknown(site, more):
    assert site.ask("/body-of?" + more, b"", "k")[0] == 502
    assert site.ask("/body-of?" + more, b"", "k")[0] == 409


def test_a_stream_that_is_not_as_long_as_it_says_breaks_off(site):
    path = "/body-of?kind=stream&buffering=no&length="
    assert site.ask(path + "4", b"", "k") == (201, b"made")
    with pytest.raises(EOFError):
        site.ask(path + "5", b"", "l")


@pytest.mark.parametrize("more", [
    "how=say&with=leaks", "how=print&with=leaks", "how=flush", "how=eof",
    "how=send_headers", "how=exit&with=200", "how=exit&with=500",
    "how=exec&with=/elsewhere", "how=redirect&with=/elsewhere",
    "how=say&with=leaks&thread=1"])
def test_what_writes_itself_leaks_nothing_and_is_unknown_at_once(site, more):
    status, body = site.ask("/writes?" + more, b"", "k")
    assert status == 502 and b"outcome-unknown" in body
    status, body = site.ask("/writes?" + more, b"", "k")
    assert status == 409 and b"outcome-unknown" in body
    assert site.runs() == 1


# ---- Servers and clocks -----------------------------------------------------


def test_a_server_that_stands_still_holds_no_request_for_long(site):
    """Each of these would take 620 s."""
    told = []
    running = threading.Thread(target=lambda: told.append(
        site.ask("/sleep?sleep=1", b"", "runs")))
    running.start()
    eventually(lambda: site.runs() == 1)
    site.server.process.send_signal(signal.SIGSTOP)
    status, body = site.ask("/echo", b"", "k")
    assert status == 503 and b"store-unavailable" in body
    assert site.ask("/echo")[0] == 503
    running.join(PATIENCE)
    assert told[0][0] == 502 and b"outcome-unknown" in told[0][1]
    site.server.process.send_signal(signal.SIGCONT)
    # What waited in its sockets is begun, and then abandoned.
    eventually(lambda: site.ask("/echo", b"", "k")[0] == 201)
    assert site.runs() == 2


class Clock:
    """The wall clock of a process (test/lib/clockshim.c)."""

    def __init__(self, folder):
        self.path = pathlib.Path(folder) / "clock"
        self.set(0)

    def set(self, hours):
        with open(self.path, "r+b" if self.path.exists() else "wb") as file:
            file.write(struct.pack("q", hours * 3600000) + bytes(8))

    def env(self):
        return {"LD_PRELOAD": str(BUILD.resolve() / "test/clockshim.so"),
                "ONCE_CLOCKSHIM": str(self.path)}


def test_a_clock_that_is_set_back_holds_no_request(make, tmp_path):
    clock = Clock(tmp_path)
    site = make(clock.env())
    assert site.ask("/echo", b"", "k")[0] == 201
    site.server.end()
    with site.send("/echo", b"", "l") as sock:
        eventually(lambda: "begin: no answer" in site.log())
        clock.set(-1)
        assert b" 503 " in sock.recv(100)


def test_a_clock_that_is_set_ahead_loses_no_answer(make, tmp_path):
    clock = Clock(tmp_path)
    site = make(clock.env())
    with site.send("/sleep?sleep=0.3", b"", "k") as sock:
        eventually(lambda: site.runs() == 1)
        site.server.end(signal.SIGKILL)
        eventually(lambda: "end: no answer" in site.log())
        clock.set(1)
        site.server.start()
        assert b" 201 " in sock.recv(100)
    assert site.ask("/sleep?sleep=0.3", b"", "k") == (201, b"made")
    assert site.runs() == 1
