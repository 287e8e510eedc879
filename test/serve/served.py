# SPDX-License-Identifier: Apache-2.0
"""
served.py - a service in another language with its `once serve`, in the place of
the gateway in the scenarios of test/gateway: ONCE_TARGET=python.
"""

import os
import pathlib
import shutil
import signal
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


JARS = ["/usr/share/java/tomcat10-embed-core.jar",
        "/usr/share/java/tomcat10-annotations-api.jar"]


def java_service(build, how):
    """The same; a folder of classes."""
    classes = build / "test" / "java-service"
    sources = [*(ROOT / "middleware/java").rglob("*.java"),
               *(ROOT / "test/serve/java").glob("*.java")]
    newest = max(f.stat().st_mtime for f in sources)
    if not classes.exists() or classes.stat().st_mtime < newest:
        made = classes.with_suffix(".%d" % os.getpid())
        # It would warn of sun.misc.Signal, and there is no other.
        subprocess.run(["javac", "-nowarn", "-XDignore.symbol.file", "-d", made,
                        "-cp", ":".join(JARS), *sources], check=True)
        if classes.exists():
            classes.rename("%s.old" % made)
            shutil.rmtree("%s.old" % made)
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
                with open(self.folder / "error.log", "ab") as log:
                    # pylint: disable=consider-using-with
                    self.servers.append(subprocess.Popen(
                        [build / "once-serve", "--volatile", "--store", url,
                         "--listen", "unix:%s" % where], stderr=log,
                        stdin=subprocess.DEVNULL))
                eventually(where.exists)

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
            return super().log(name).replace(said.get(language, "-"),
                                             "gracefully shutting down")

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
