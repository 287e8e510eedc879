# SPDX-License-Identifier: Apache-2.0
"""
served.py - a service in another language with its `once serve`, in the place of
the gateway in the scenarios of test/gateway: ONCE_TARGET=python.
"""

import fcntl
import json
import os
import pathlib
import re
import shutil
import signal
import socket
import subprocess

import routes

ROOT = pathlib.Path(__file__).resolve().parents[2]
SERVICES = {
    "python": ["/usr/bin/python3", str(ROOT / "test/serve/service.py")],
    "asgi": ["/usr/bin/python3", str(ROOT / "test/serve/service_asgi.py")],
    "node": ["node", str(ROOT / "test/serve/service.js")],
    "express": ["/usr/bin/env", "NODE_PATH=/usr/share/nodejs", "node",
                str(ROOT / "test/serve/service.js"), "express"],
    "lua": ["/usr/bin/python3", str(ROOT / "test/serve/service_lua.py")],
}


LANGUAGES = set(SERVICES) | {"go", "java"}
JARS = ["/usr/share/java/tomcat10-embed-core.jar",
        "/usr/share/java/tomcat10-annotations-api.jar"]

# Programs and files. `make languages` installs those of Go and Java, `make test`
# does not.
NEEDS = {"python": ["/usr/bin/gunicorn"],
         "asgi": ["/usr/lib/python3/dist-packages/uvicorn"],
         "node": ["node"], "go": ["go"], "java": ["javac", *JARS],
         "lua": ["/usr/lib/nginx/modules/ngx_http_lua_module.so"]}


def is_installed(language):
    return all(shutil.which(need) or os.path.exists(need)
               for need in NEEDS[language])


def go_service(build):
    """Built once, into the folder of the build."""
    program = build / "test" / "go-service"
    source = ROOT / "test/serve/go"
    newest = max(f.stat().st_mtime for f in [
        *source.glob("*.go"), *(ROOT / "middleware/go").glob("*.go")])
    if not program.exists() or program.stat().st_mtime < newest:
        made = program.with_suffix(".%d" % os.getpid())
        subprocess.run(["go", "build", "-o", made, "."], cwd=source, check=True,
                       env=dict(os.environ, GOFLAGS="-mod=mod", GOPROXY="off"))
        made.rename(program)
    return [str(program)]


def defined():
    """Options for the routes of ONCE_DEFINED, "NAME=FILE NAME=FILE"."""
    for text in os.environ.get("ONCE_DEFINED", "").split():
        yield from ("--define", text)


def listens(path):
    """Its name is there a moment before anybody may connect."""
    try:
        with socket.socket(socket.AF_UNIX) as sock:
            sock.connect(str(path))
        return True
    except OSError:
        return False


def in_directives(text):
    """What is said of the members of a route, with the names of nginx."""
    for pattern, name in ((r"\bttl_failure_ms", "failure="),
                          (r"\b(ttl|lease)_ms", r"once_\1"),
                          (r"\baccept\b", "accept="),
                          (r"\bin (final|release)\b", r"in once_\1"),
                          (r"route: (?=\w+:)", "once_"), (r"route: ", "")):
        text = re.sub(pattern, name, text)
    return text


def ask_route(folder, location):
    """What is wrong with its route: texts."""
    with socket.socket(socket.AF_UNIX) as sock:
        sock.connect(str(folder / ("s." + location.store)))
        head = json.dumps({"route": location.route}).encode() + b"\n"
        sock.sendall(b"POST /v1/route HTTP/1.1\r\nHost: once\r\n"
                     b"Connection: close\r\nContent-Length: %d\r\n\r\n%s" % (
                         len(head), head))
        data = b""
        while piece := sock.recv(65536):
            data += piece
    told = json.loads(data.partition(b"\r\n\r\n")[2])
    return [told["text"]] if "error" in told else []


def java_service(build, how):
    """The same; a folder of classes."""
    classes = build / "test" / "java-service"
    sources = [*(ROOT / "middleware/java").rglob("*.java"),
               *(ROOT / "test/serve/java").glob("*.java")]
    newest = max(f.stat().st_mtime for f in sources)
    classes.parent.mkdir(exist_ok=True)
    with open(classes.with_suffix(".lock"), "ab") as lock:
        # One of several processes compiles; the folder of another's program
        # would vanish while it starts.
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not classes.exists() or classes.stat().st_mtime < newest:
            made = classes.with_suffix(".%d" % os.getpid())
            # It would warn of sun.misc.Signal, and there is no other.
            subprocess.run(["javac", "-nowarn", "-XDignore.symbol.file",
                            "-d", made, "-cp", ":".join(JARS), *sources],
                           check=True)
            shutil.rmtree(classes, ignore_errors=True)
            made.rename(classes)
    # It starts sooner so.
    return ["java", "-Xshare:auto", "-XX:TieredStopAtLevel=1",
            "-XX:+UseSerialGC", "-Xmx512m", "-cp",
            ":".join([str(classes), *JARS]), "Service", how]


def program(build, language):
    if language == "go":
        return go_service(build)
    if language.startswith("java"):
        return java_service(build, language)
    return SERVICES[language]


def target(base, eventually, build, language):
    """The class for a site: a guarded server whose program is another one."""

    class Served(base):
        def __init__(self, *args, **more):
            super().__init__(*args, **more)
            self.servers = []
            if language == "lua":   # how its scenarios' handler says it
                self.allow.append("lua entry thread aborted: .*the upstream was "
                                  "sent the request")

        def stores(self):
            for line in (self.folder / "routes").read_text().splitlines():
                words = line.split()
                if words[0] == "once_store":
                    yield words[1], words[2]

        def command(self, *more):
            if language == "go" or language.startswith("java"):
                (self.folder / "routes.json").write_text(
                    routes.as_json(self.folder / "routes"))
            return program(build, language) + list(more) + [
                str(self.folder / "routes"), str(self.folder / "s")]

        def serve(self):
            """One server for each store. A restart leaves none behind."""
            if self.servers:
                self.end_servers(signal.SIGTERM)
            for name, url in self.stores():
                where = self.folder / ("s." + name)
                with open(self.folder / "error.log", "ab") as log, \
                        open(self.folder / "access.log", "ab") as lines:
                    # pylint: disable=consider-using-with
                    self.servers.append(subprocess.Popen(
                        [build / "once-serve", "--volatile", "--access-log", "--store",
                         url, "--listen", "unix:%s" % where, *defined()],
                        stderr=log,
                        stdout=lines, stdin=subprocess.DEVNULL))
                eventually(lambda p=where: listens(p) or
                           self.servers[-1].poll() is not None)

        def check(self):
            """What is wrong is said when a service asks for its routes."""
            self.init()
            self.render()
            said = []
            try:
                _, _, locations = routes.read(self.folder / "routes")
                self.serve()
                for location in locations:
                    if location.store:
                        said += ask_route(self.folder, location)
                    if location.store and not location.scope and \
                            location.route.get("scope") != "off":
                        said.append("once_scope is missing")
            except (AssertionError, ValueError) as wrong:
                said.append(str(wrong))
            except OSError as wrong:
                said.append("no server: %s" % wrong)
            log = self.folder / "error.log"
            said += log.read_text().splitlines() if log.exists() else []
            said = [in_directives(x) for x in said]
            wrong = [x for x in said if "listening" not in x]
            self.end_servers(signal.SIGTERM)
            return (1, "[emerg] " + "\n[emerg] ".join(wrong)) if wrong else \
                (0, "test is successful")

        def _start(self):
            if not self.port:
                self.port, self.h2 = base.free_ports()
            self.render()
            self.serve()
            return super()._start()

        def kill_servers(self):
            """And the next ones, at once: what systemd does."""
            self.end_servers(signal.SIGKILL)
            self.serve()

        def kill_service(self):
            """All its processes; who calls starts it again."""
            pids = [self.process.pid] + self.worker_pids()
            for pid in pids:
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    pass
            self.process.wait(60)

        def start_service(self):
            with open(self.folder / "stderr.log", "ab") as err:
                # pylint: disable=consider-using-with
                self.process = subprocess.Popen(
                    self.command(), stdout=err, stderr=err,
                    stdin=subprocess.DEVNULL)
            eventually(self.answers)

        def log(self, name):
            said = {"python": "Handling signal: term", "asgi": "Shutting down"}
            text = super().log(name)
            return text.replace(said[language], "gracefully shutting down") \
                if language in said else text

        def end_servers(self, number):
            for server in self.servers:
                server.send_signal(number)
                server.wait(60)
            self.servers = []

        def worker_pids(self, master=None):
            path = "/proc/%d/task/%d/children" % (self.master(), self.master())
            try:
                return [int(p) for p in
                        pathlib.Path(path).read_text().split()]
            except OSError:
                return []

        def kill_all(self):
            super().kill_all()
            self.end_servers(signal.SIGKILL)

        def kill(self, number, pid=None):
            """For servers in Python gracefully is SIGTERM, and at once is
            SIGQUIT. Of Java SIGQUIT asks for a list of its threads."""
            other = {signal.SIGQUIT: signal.SIGTERM,
                     signal.SIGTERM: signal.SIGQUIT}
            if language in ("python", "asgi"):
                number = other.get(number, number)
            elif language.startswith("java") and number == signal.SIGQUIT:
                number = signal.SIGINT
            super().kill(number, pid)

        def close(self):
            """How its own server ends is not what is tested: see
            test_lifecycle.py."""
            try:
                if self.process is not None and not self.ended():
                    self.kill_service()
                super().close()
            finally:
                self.end_servers(signal.SIGTERM)

    return Served
