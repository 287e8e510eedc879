# SPDX-License-Identifier: Apache-2.0
"""
reader.py - types what a page shows: a folder, a home, a terminal.

What a page calls /etc/once or 127.0.0.1:8080 is another folder and port here: no
page changes this machine.
"""

import contextlib
import os
import pathlib
import pty
import re
import select
import shutil
import signal
import subprocess
import tempfile
import time

import pages
import servers
from servers import Missing  # noqa: F401  for those who import this one

PATIENCE = 60  # seconds for one command
FOLDERS = ("/etc/once", "/etc/nginx", "/var/lib/once", "/var/log/once",
           "/var/backups/once", "/tmp")


class Wrong(Exception):
    """It did not do what the page says."""


class Reader:
    """See above. `stack` closes whatever he has begun."""

    def __init__(self, build, stack):
        self.build = build
        self.stack = stack
        self.folder = pathlib.Path(stack.enter_context(
            tempfile.TemporaryDirectory(prefix="once-page-")))
        self.here = self.folder / "here"
        self.home = self.folder / "home"
        self.here.mkdir()
        self.home.mkdir()
        for name in "examples", "test", "tools", "nginx":
            (self.here / name).symlink_to(os.path.join(pages.ROOT, name))
        (self.here / "build").symlink_to(build)
        self.port = servers.free_port()
        self.status = 0
        self.env = {k: v for k, v in os.environ.items()
                    if not k.startswith(("ONCE_", "PG", "XDG_"))}
        self.env.update(
            HOME=str(self.home), TERM="dumb", PAGER="cat", COLUMNS="200",
            PATH="%s/bin:%s:%s:/usr/sbin" % (self.folder, build,
                                             self.env["PATH"]),
            ONCE_AUDIT=self.at("/var/log/once/audit.jsonl"),
            ONCE_STORES_D=self.at("/etc/once/stores.d"))
        self.cwd = str(self.here)
        self.places = {"127.0.0.1:8080": "127.0.0.1:%d" % self.port,
                       "127.0.0.1:8081": "127.0.0.1:%d" % servers.free_port(),
                       "/tmp/": self.at("/tmp/")}
        for folder in FOLDERS:
            self.places[folder] = self.at(folder)
            pathlib.Path(self.at(folder)).mkdir(parents=True)
        self._world = None
        self.groups = []
        self.staying = {}   # by process: what was typed
        stack.callback(self.leave)

    def at(self, path):
        """Where this path of the page is."""
        return str(self.folder) + "/root" + path

    def text(self, text):
        """A text of the page, with what is elsewhere here."""
        every = "|".join(
            re.escape(place) + ("" if place.endswith("/") else r"(?![\w.-])")
            for place in sorted(self.places, key=len, reverse=True))
        return re.sub(r"(?<![\w.])(?:%s)" % every,
                      lambda match: self.places[match.group()], text)

    @property
    def world(self):
        if self._world is None:
            self._world = self.stack.enter_context(servers.World())
        return self._world

    def write(self, name, text, mode=0o644):
        path = self.here / name
        path.write_text(text)
        path.chmod(mode)

    def program(self, name, script):
        """What stands before a program of this machine."""
        path = self.folder / "bin" / name
        path.parent.mkdir(exist_ok=True)
        path.write_text("#!/bin/sh\n%s\n" % script)
        path.chmod(0o755)

    # -- typing

    def begin(self, command):
        """Starts a command in a terminal; returns it and the terminal."""
        state = self.folder / "state"
        ours, theirs = pty.openpty()
        # What a command leaves to the next one: status, folder, environment.
        script = "(exit %d)\n%s\n__s=$?; { pwd; env -0; } >%s; exit $__s" % (
            self.status, self.text(command), state)
        process = subprocess.Popen(
            [shutil.which("setpriv"), "--pdeathsig", "KILL", "bash", "-c",
             script], cwd=self.cwd, env=self.env, stdin=subprocess.DEVNULL,
            stdout=theirs, stderr=theirs, start_new_session=True)
        os.close(theirs)
        self.groups.append(process)
        return process, ours

    def type(self, command, told=(), stays=False):
        """Types it; returns the lines that it has printed. What stays is left
        alone when it has printed what the page shows."""
        process, terminal = self.begin(command)
        said, end = b"", time.monotonic() + PATIENCE
        try:
            while time.monotonic() < end:
                ended = process.poll() is not None
                said += drain(terminal)
                if ended or stays and pages.agrees(
                        self.told(told), lines(said)):
                    break
            else:
                raise Wrong("%s\ndoes not end. It printed:\n%s" % (
                    command, "\n".join(lines(said))))
        finally:
            if process.poll() is not None:
                os.close(terminal)
                self.status = process.returncode
                self.remember()
            else:
                self.staying[process] = command
        return lines(said)

    def end(self):
        """Whatever was to stay is there at the end of the page."""
        for process, command in self.staying.items():
            if process.poll() not in (None, 0):
                raise Wrong("%s\nhas ended with %d" % (command,
                                                       process.returncode))

    def told(self, told):
        return [self.text(line) for line in told]

    def remember(self):
        state = self.folder / "state"
        with contextlib.suppress(OSError):
            cwd, _, env = state.read_text().partition("\n")
            state.unlink()
            self.cwd = cwd
            self.env = dict(pair.split("=", 1) for pair in env.split("\0")
                            if "=" in pair)

    def wait(self, command, told):
        servers.eventually(
            lambda: pages.agrees(self.told(told), self.type(command)),
            "%s\nprints\n%s" % (command, "\n".join(told)))

    def check(self, command, told, strict, stays=False):
        """Types it and compares. Strict: what is not shown is not printed."""
        printed = self.type(command, told, stays)
        if (told or strict) and not pages.agrees(self.told(told), printed):
            raise Wrong("%s\nprints\n%s\n\nand not\n%s" % (
                command, "\n".join(printed), "\n".join(told)))
        if not told and self.status != 0:
            raise Wrong("%s\nends with %d: %s" % (command, self.status,
                                                  "\n".join(printed)))

    def run(self, *words, **more):
        """For the stage: without a terminal."""
        done = subprocess.run([str(w) for w in words], cwd=self.cwd,
                              env=dict(self.env, **more), text=True,
                              stdin=subprocess.DEVNULL, capture_output=True,
                              timeout=PATIENCE, check=False)
        if done.returncode != 0:
            raise Wrong("%s: %d %s%s" % (words[0], done.returncode, done.stdout,
                                         done.stderr))
        return done.stdout

    def has(self, command):
        return subprocess.run(["bash", "-c", command], env=self.env,
                              cwd=self.cwd, stdin=subprocess.DEVNULL,
                              capture_output=True, timeout=PATIENCE,
                              check=False).returncode == 0

    def stay(self, name, *words):
        """Starts what the reader has beside him; returns it and its log."""
        log = self.folder / (name + ".log")
        with open(log, "wb") as out:
            process = subprocess.Popen(
                [str(w) for w in words], cwd=self.cwd, env=self.env,
                stdin=subprocess.DEVNULL, stdout=out, stderr=out,
                start_new_session=True)
        self.groups.append(process)
        self.staying[process] = name
        return process, log

    def leave(self):
        for number in signal.SIGTERM, signal.SIGKILL:
            for process in self.groups:
                with contextlib.suppress(OSError):
                    os.killpg(process.pid, number)
            end = time.monotonic() + 10
            for process in self.groups:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(max(0, end - time.monotonic()))


def drain(terminal):
    """What has arrived, after a moment's wait."""
    said = b""
    with contextlib.suppress(OSError):  # the last one has closed it
        while select.select([terminal], [], [], 0.02)[0]:
            part = os.read(terminal, 65536)
            if not part:
                break
            said += part
    return said


def lines(said):
    text = said.decode("utf-8", "replace").replace("\r\n", "\n")
    text = re.sub(r"\x1b\[[0-9;]*[A-Za-z]|\x1b\].*?(?:\x1b\\|\x07)", "", text)
    # A line of progress is written over.
    text = re.sub(r"[^\n]*\r(?=[^\n])", "", text)
    return text.rstrip("\n").split("\n") if text.strip() else []
