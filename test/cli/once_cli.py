# SPDX-License-Identifier: Apache-2.0
"""once_cli.py - what the tests of the program `once` share: one store, the
program, and cli_seed (seed.c), which makes records as a gateway would.

    ONCE_CLI        the program      (build/once)
    ONCE_CLI_SEED   the helper       (build/test/cli_seed)

A program on a terminal is a program on a pty: on_terminal() gives it one for
stdout, for stderr, or for both.
"""
import fcntl
import json
import os
import pathlib
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios

import pytest

from marks import MARK

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "test/lib"))

ONCE = os.environ.get("ONCE_CLI", str(ROOT / "build" / "once"))
SEED = os.environ.get("ONCE_CLI_SEED",
                      str(ROOT / "build" / "test" / "cli_seed"))

A = "a1b2c3d4" + "00" * 28
B = "a1b2c3d4" + "00" * 27 + "01"
C = "c0ffee00" + "5a" * 28
BODY = MARK + "x" * 9
ZERO = "0" * 64
LAST = "f" * 64
TAKEOVER = "1"
ISO = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z"

# Every command, as the program itself tells its completion: "messages relay".
COMMANDS = re.findall(r"^        '([a-z ]+)'\*?\) o=", subprocess.run(
    [ONCE, "completion", "bash"], capture_output=True, text=True).stdout, re.M)

# once.h, enum once_answer
REPLAY, UNKNOWN, OWNER = 3, 4, 1


class Store:
    """One store, and both programs on it."""

    def __init__(self, folder, scheme="sqlite"):
        self.path = folder / "store.db"
        self.url = f"{scheme}:{self.path}"
        self.folder = folder

    def seed(self, *words, group=None, keep_ms=None):
        env = dict(os.environ)
        if group is not None:
            env["ONCE_SEED_GROUP"] = group
        if keep_ms is not None:
            env["ONCE_SEED_KEEP_MS"] = str(keep_ms)
        done = subprocess.run([SEED, self.url, *words], capture_output=True,
                              timeout=60, env=env)
        assert done.returncode == 0, done.stderr
        return done.stdout.decode().strip()

    def claim(self, name, policy="0"):
        """What a client would get: answer, kind, text of the response."""
        head, _, rest = self.seed("claim", name, policy).partition("\n")
        answer, kind = re.fullmatch(r"answer (\d+) kind (\d+)", head).groups()
        return int(answer), int(kind), rest

    def once(self, *words, stdin=b"", env=None):
        full = dict(os.environ, ONCE_STORE=self.url, ONCE_DATABASE=self.url,
                    TZ="Asia/Tokyo",
                    TERM="xterm",
                    XDG_STATE_HOME=str(self.folder / "state"),
                    ONCE_AUDIT=str(self.folder / "audit.jsonl"))
        full.pop("NO_COLOR", None)
        full.update(env or {})
        return subprocess.run([ONCE, *words], input=stdin, env=full,
                              capture_output=True, timeout=60)

    def ok(self, *words, **more):
        done = self.once(*words, **more)
        assert done.returncode == 0, (words, done.stderr)
        return done.stdout.decode()

    def bad(self, code, text, *words, **more):
        """Ends with `code`, says `text`, prints nothing to stdout."""
        done = self.once(*words, **more)
        err = done.stderr.decode(errors="replace")
        assert done.returncode == code, (words, done)
        assert text in err, err
        assert done.stdout == b"", done.stdout
        return err

    def show(self, name):
        return json.loads(self.ok("show", "--name", name, "--json"))

    def file(self, name, data):
        path = self.folder / name
        path.write_bytes(data)
        return str(path)


def on_terminal(store, *words, stdout=True, stderr=False, env=None, code=0,
                interrupt=None, columns=0):
    """What an operator sees, of whichever of both is a terminal. `interrupt`:
    a text; when it has been seen, SIGINT. `columns`: its width, 0: unknown."""
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("4H", 24, columns, 0, 0))
    full = dict(os.environ, ONCE_STORE=store.url,
                ONCE_DATABASE=store.url, TERM="xterm", NO_COLOR="1",
                ONCE_AUDIT=str(store.folder / "audit.jsonl"))
    full.update(env or {})
    child = subprocess.Popen(
        [ONCE, *words], stdin=subprocess.DEVNULL, env=full,
        stdout=slave if stdout else subprocess.DEVNULL,
        stderr=slave if stderr else subprocess.DEVNULL)
    os.close(slave)
    seen = b""
    while select.select([master], [], [], 120)[0]:
        try:
            part = os.read(master, 4096)
        except OSError:  # the other end is closed
            break
        if not part:
            break
        seen += part
        if interrupt and interrupt in seen:
            child.send_signal(signal.SIGINT)
            interrupt = None
    os.close(master)
    assert child.wait(timeout=60) == code, seen
    return seen.decode().replace("\r\n", "\n")


def states(store):
    """One record in each state, in the order of their names."""
    store.seed("done", A, "success", BODY)
    store.seed("claimed", B, "3600000", "0")
    store.seed("dispatched", C, "3600000", TAKEOVER)
    store.seed("lost", LAST, "0")
    store.seed("done", ZERO, "failure", "")


@pytest.fixture
def store(tmp_path):
    return Store(tmp_path)
