# SPDX-License-Identifier: Apache-2.0
"""test_run.py - `once run`, as a cron line, a Makefile or an agent meets it.

The real binary over real stores and real commands. What a command has done is
counted in a file that it appends a line to.

    ONCE_CLI        the program   (build/once)
    ONCE_TEST_URLS  more stores for the crowds, URLs with spaces between; they
                    must exist, as `once init` leaves them
    ROUNDS          how often somebody is killed at a random moment (30)
    SEED            of those moments; printed when it fails

Nothing here is timed: what takes a while is waited for, with a limit that only
a hang reaches.
"""
import json
import os
import pathlib
import pty
import random
import re
import select
import shlex
import signal
import sqlite3
import subprocess
import sys
import time
import uuid

import pytest

from machine import of_a_user
from marks import MARK

ROOT = pathlib.Path(__file__).resolve().parents[2]
ONCE = os.environ.get("ONCE_CLI", str(ROOT / "build" / "once"))
ROUNDS = int(os.environ.get("ROUNDS", "30"))
SEED = int(os.environ.get("SEED", random.randrange(1 << 30)))
URLS = os.environ.get("ONCE_TEST_URLS", "").split()

HANG = 120
KEY = MARK + "k"
USAGE, MISMATCH, STORE, OUTPUT = 64, 65, 69, 74
UNKNOWN, IN_FLIGHT, REPEATED, CANNOT, NOT_FOUND = 75, 76, 77, 126, 127


def deaf_to_nothing():
    """Whoever runs the tests in the background ignores SIGINT, with nohup
    SIGHUP as well, and so would the commands."""
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    signal.signal(signal.SIGQUIT, signal.SIG_DFL)


class User:
    """Somebody with a home of their own, who runs commands in it."""

    def __init__(self, folder):
        self.folder = folder
        self.state = folder / "state" / "once"
        self.ran = folder / "ran"
        self.started = []
        self.stores = set()
        self.env = of_a_user(folder)

    def have_store(self, words, env):
        """Makes the store of a run that is the first to name it."""
        options = words[:words.index("--")] if "--" in words else words
        store = options[options.index("--store") + 1:][:1] \
            if "--store" in options else [env.get("ONCE_STORE", "")]
        where = (*store, env.get("XDG_STATE_HOME"), env.get("HOME"))
        if words[0] != "run" or where in self.stores:
            return
        self.stores.add(where)
        subprocess.run([ONCE, "--store", *store, "init", "--audit", "off"],
                       env=env, cwd=self.folder, capture_output=True,
                       timeout=HANG, check=False)

    def have_own(self):
        self.have_store(["run"], self.env)

    def have_none(self):
        self.stores.add(("", self.env["XDG_STATE_HOME"], self.env["HOME"]))

    def start(self, *words, **more):
        more.setdefault("stdin", subprocess.DEVNULL)
        more.setdefault("stdout", subprocess.PIPE)
        more.setdefault("stderr", subprocess.PIPE)
        more.setdefault("env", self.env)
        self.have_store(words, more["env"])
        process = subprocess.Popen([ONCE, *words], cwd=self.folder,
                                   preexec_fn=deaf_to_nothing, **more)
        self.started.append(process)
        return process

    def once(self, *words, stdin=b"", env=None):
        full = dict(self.env)
        for name, value in (env or {}).items():
            full.pop(name, None)
            if value is not None:
                full[name] = value
        self.have_store(words, full)
        return subprocess.run([ONCE, *words], input=stdin, env=full,
                              cwd=self.folder, capture_output=True,
                              preexec_fn=deaf_to_nothing, timeout=HANG)

    def run(self, *words, **more):
        return self.once("run", *words, **more)

    def sh(self, script, *options, key=KEY, **more):
        """Runs `script`, which begins with counting itself."""
        return self.run("--key", key, *options, "--", "sh", "-c",
                        f"echo run >>ran; {script}", **more)

    def runs(self):
        return len(self.ran.read_text().splitlines()) if self.ran.exists() \
            else 0

    def resolve(self, stderr, *words):
        """Does what the message told the operator to do."""
        store, name, fence = re.search(
            rb"--store (\S+) resolve ([0-9a-f]{16}) --fence (\d+)",
            stderr).groups()
        return self.once("--store", store.decode(), "resolve", name.decode(),
                         "--fence", fence.decode(), "--why", "looked", *words)


@pytest.fixture
def user(tmp_path):
    """What a test that fails has left is ended: ours, and, by the file that
    they look for, the commands."""
    user = User(tmp_path)
    yield user
    (tmp_path / "go").touch()
    for process in user.started:
        if process.poll() is None:
            process.send_signal(signal.SIGCONT)
            process.kill()
            process.wait()


def until(condition, what="it"):
    end = time.monotonic() + HANG
    while not condition():
        assert time.monotonic() < end, f"waited in vain for {what}"
        time.sleep(0.005)


def alive(pid):
    try:
        with open(f"/proc/{pid}/stat", encoding="ascii") as f:
            return f.read().rpartition(")")[2].split()[0] not in "ZX"
    except FileNotFoundError:
        return False


def wait_for(pid):
    status = []

    def is_over():
        done, code = os.waitpid(pid, os.WNOHANG)
        if done:
            status.append(os.waitstatus_to_exitcode(code))
        return done

    try:
        until(is_over)
    except AssertionError:
        os.kill(pid, signal.SIGKILL)
        raise
    return status[0]


def ended(process):
    out, err = process.communicate(timeout=HANG)
    return process.returncode, out, err


# ---- once, and again ------------------------------------------------------


def test_a_repeat_gets_the_same_bytes_and_runs_nothing(user):
    script = r"printf 'a\000\377b'; printf 'e\r\n' >&2; exit 3"
    for _ in range(3):
        done = user.sh(script)
        assert (done.returncode, done.stdout, done.stderr) == \
            (3, b"a\0\xffb", b"e\r\n")
    assert user.runs() == 1


@pytest.mark.parametrize("status", [0, 1, 75, 76, 126, 127, 128, 255])
def test_every_exit_status_is_replayed(user, status):
    assert [user.sh(f"exit {status}").returncode for _ in "12"] == \
        [status, status]
    assert user.runs() == 1


def test_no_output_is_none_again(user):
    for _ in range(2):
        done = user.sh("true")
        assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")


def test_the_order_of_both_streams_is_kept(user):
    """The command goes on only when what it has said was seen."""
    script = ("for i in 1 2 3 4 5 6; do echo out $i; until [ -e o$i ]; do "
              "sleep 0.01; done; echo err $i >&2; until [ -e e$i ]; do "
              "sleep 0.01; done; done")
    words = ["run", "--key", KEY, "--", "sh", "-c", script]
    first = user.start(*words, stderr=subprocess.STDOUT)
    told = b""
    for i in range(1, 7):
        for name in ("out", "err"):
            line = first.stdout.readline()
            assert line == f"{name} {i}\n".encode()
            told += line
            (user.folder / f"{name[0]}{i}").touch()
    assert first.wait(timeout=HANG) == 0
    for i in range(1, 7):
        for name in "oe":
            (user.folder / f"{name}{i}").unlink()  # it would wait for ever
    again = user.start(*words, stderr=subprocess.STDOUT)
    assert ended(again) == (0, told, None)


def test_keys_and_groups_are_apart(user):
    for words in (["--key", "a"], ["--key", "b"],
                  ["--key", "a", "--group", "g"]):
        assert user.run(*words, "--", "sh", "-c",
                        "echo run >>ran").returncode == 0
    assert user.runs() == 3


@pytest.mark.parametrize("given, got", [
    ("postgres://me:s3cret@db/shop", "postgres://me@db/shop"),
    ("postgres://me:s3@cret@db,db2/shop", "postgres://me@db,db2/shop"),
    ("redis://:s3cret@h/0?tls=1", "redis://@h/0?tls=1"),
    ("postgres://db/a?password=s3cret&sslmode=require&sslpassword=s3cret",
     "postgres://db/a?sslmode=require&"),
    ("mysql://me@db/shop?password_file=/x", "mysql://me@db/shop?password_file=/x"),
    ("sqlite:/a:b@c", "sqlite:/a:b@c"), ("pay", "pay")])
def test_the_command_gets_no_password_of_ours(user, given, got):
    """ONCE_STORE and ONCE_DATABASE are for Once: what it needs of them is its own."""
    env = {"ONCE_DATABASE": given, "MINE": "postgres://me:own@db/shop"}
    told = user.run("--key", "p", "--", "env", env=env).stdout.decode().splitlines()
    assert "ONCE_DATABASE=" + got in told
    assert "MINE=postgres://me:own@db/shop" in told


def test_the_command_sees_its_attempt_and_fence(user):
    script = "echo $ONCE_ATTEMPT $ONCE_FENCE; exit 1"
    env = {"ONCE_ATTEMPT": "wrong", "ONCE_FENCE": "wrong"}
    first = user.sh(script, "--retry-failed", env=env)
    second = user.sh(script, "--retry-failed", env=env)
    attempts = [d.stdout.split() for d in (first, second)]
    assert [a for a, _ in attempts] == [b"1", b"2"]
    told = user.run("--key", "e", "--", "env", env=env).stdout
    assert told.count(b"ONCE_ATTEMPT=") == told.count(b"ONCE_FENCE=") == 1
    assert 0 < int(attempts[0][1]) < int(attempts[1][1])


def test_stdin_is_the_commands(user):
    assert user.sh("cat", stdin=b"hello").stdout == b"hello"
    assert user.sh("cat", stdin=b"other").stdout == b"hello"


def test_output_is_shown_while_it_runs(user):
    p = user.start("run", "--key", KEY, "--", "sh", "-c",
                   "echo first; while [ ! -e go ]; do sleep 0.01; done; "
                   "echo last")
    assert p.stdout.readline() == b"first\n"
    (user.folder / "go").touch()
    assert ended(p) == (0, b"last\n", b"")
    assert user.run("--key", KEY, "--fingerprint", "x", "--",
                    "true").returncode == MISMATCH


def test_a_reader_that_leaves_does_not_harm_the_command(user):
    script = "i=0; while [ $i -lt 3000 ]; do echo line $i; i=$((i+1)); done"
    p = user.start("run", "--key", KEY, "--", "sh", "-c",
                   f"echo run >>ran; {script}; echo done >>ran")
    assert p.stdout.readline() == b"line 0\n"
    p.stdout.close()
    assert p.wait(timeout=HANG) == 0
    assert user.ran.read_text() == "run\ndone\n"
    again = user.run("--key", KEY, "--", "sh", "-c",
                     f"echo run >>ran; {script}; echo done >>ran")
    assert again.stdout == b"".join(b"line %d\n" % i for i in range(3000))
    assert user.runs() == 2


def test_missing_standard_files_do_no_harm(user):
    user.have_own()
    line = shlex.join([ONCE, "run", "--key", KEY, "--", "sh", "-c",
                       "echo run >>ran; echo out; exit 4"])
    done = subprocess.run(["sh", "-c", f"{line} <&- >&- 2>&-"], env=user.env,
                          cwd=user.folder, timeout=HANG)
    assert done.returncode == 4
    assert user.sh("echo out; exit 4").stdout == b"out\n"
    assert user.runs() == 1


# ---- options --------------------------------------------------------------


def test_retry_failed(user):
    assert user.sh("exit 5", "--retry-failed").returncode == 5
    assert user.sh("exit 5", "--retry-failed").returncode == 5
    assert user.runs() == 2
    assert user.sh("exit 5").returncode == 5  # this one does not ask for it
    assert user.runs() == 2


def test_retry_failed_ends_with_a_success(user):
    script = "[ $(wc -l <ran) -ge 3 ]"
    assert [user.sh(script, "--retry-failed").returncode
            for _ in range(5)] == [1, 1, 0, 0, 0]
    assert user.runs() == 3


def test_reject(user):
    assert user.sh("echo out", "--on-duplicate", "reject").returncode == 0
    done = user.sh("echo out", "--on-duplicate", "reject")
    assert (done.returncode, done.stdout) == (REPEATED, b"")
    assert b"has run before" in done.stderr
    assert user.sh("echo out").stdout == b"out\n"


def test_a_key_of_another_command_is_refused(user):
    assert user.sh("true").returncode == 0
    done = user.run("--key", KEY, "--", "sh", "-c", "echo run >>ran")
    assert (done.returncode, done.stdout) == (MISMATCH, b"")
    assert user.runs() == 1


def test_words_do_not_run_into_each_other(user):
    assert user.run("--key", KEY, "--", "echo", "a", "b").returncode == 0
    assert user.run("--key", KEY, "--", "echo", "a b").returncode == MISMATCH


def test_a_fingerprint_of_ones_own(user):
    for script in ("echo one", "echo two"):
        done = user.sh(script, "--fingerprint", "2026-11-21")
        assert done.stdout == b"one\n"
    assert user.runs() == 1
    assert user.sh("echo one", "--fingerprint",
                   "2026-11-22").returncode == MISMATCH


def test_key_from_args(user):
    for words in (["a"], ["a"], ["b"]):
        done = user.run("--key-from-args", "--", "sh", "-c",
                        "echo run >>ran; echo $0", *words)
        assert done.stdout.decode() == words[0] + "\n"
    assert user.runs() == 2


def test_key_file(user):
    path = user.folder / "key"
    path.write_bytes(KEY.encode() + b"\n")
    assert user.run("--key-file", str(path), "--", "sh", "-c",
                    "echo run >>ran; true").returncode == 0
    assert user.sh("true").returncode == 0  # the same key
    assert user.runs() == 1


LONG = "k" * 256
USES = [
    ([], "comes after --"),
    (["--key", KEY], "comes after --"),
    (["--key", KEY, "--"], "comes after --"),
    (["--key", KEY, "true"], "comes after --"),
    (["--key", KEY, "true", "--", "x"], "comes after --"),
    (["--", "true"], "say one of --key"),
    (["--key", KEY, "--key-from-args", "--", "true"], "say one of --key"),
    (["--key", "", "--", "true"], "1 to 255 bytes"),
    (["--key", LONG, "--", "true"], "1 to 255 bytes"),
    (["--key-file", "/dev/null", "--", "true"], "1 to 255 bytes"),
    (["--key-file", "-", "--", "true"], "stdin is the command's"),
    (["--key", KEY, "--group", "a b", "--", "true"], "--group"),
    (["--key", KEY, "--group", "g" * 33, "--", "true"], "--group"),
    (["--key", KEY, "--on-duplicate", "x", "--", "true"], "replay or reject"),
    (["--key", KEY, "--lost", "x", "--", "true"], "hold or takeover"),
    (["--key", KEY, "--ttl", "5", "--", "true"], "--ttl"),
    (["--key", KEY, "--lease", "2h", "--", "true"], "1s to 3600s"),
    (["--key", KEY, "--ttl", "5s", "--", "true"], "below --lease"),
    (["--key", KEY, "--wait", "x", "--", "true"], "--wait"),
    (["--nonsense", "--", "true"], "--nonsense"),
    (["--key", KEY, "--store", "memory:", "--", "true"], "memory:"),
    (["--key", KEY, "--store", "nosuch:x", "--", "true"], "nosuch"),
]


@pytest.mark.parametrize("words,text", USES,
                         ids=[" ".join(w)[:50] or "none" for w, _ in USES])
def test_bad_usage_is_named_and_nothing_is_done(user, words, text):
    user.have_none()
    done = user.run(*words)
    assert done.returncode == USAGE, done
    assert text in done.stderr.decode()
    assert done.stdout == b""
    assert not user.state.exists()


def test_a_file_that_is_not_there_is_no_wrong_usage(user):
    done = user.run("--key-file", "/nonexistent", "--", "true")
    assert done.returncode == STORE, done
    assert b"cannot be opened" in done.stderr


def test_help_fits_one_screen(user):
    done = user.run("--help")
    lines = done.stdout.decode().rstrip("\n").split("\n")
    assert done.returncode == 0
    assert len(lines) <= 24
    assert max(map(len, lines)) <= 80


# ---- nothing was done -----------------------------------------------------


def test_a_command_that_cannot_be_started_frees_the_key(user):
    for command, status in (("/nonexistent", NOT_FOUND), ("nosuchcommand",
                                                          NOT_FOUND),
                            ("/etc", CANNOT)):
        done = user.run("--key", KEY, "--fingerprint", "f", "--", command)
        assert (done.returncode, done.stdout) == (status, b"")
        assert b"could not be started" in done.stderr
    assert user.sh("echo out", "--fingerprint", "f").stdout == b"out\n"
    assert user.runs() == 1


@pytest.mark.parametrize("url", ["sqlite:/dev/null/x", "sqlite:/nonexistent/x"])
def test_without_a_store_nothing_is_run(user, url):
    done = user.sh("true", "--store", url)
    assert done.returncode == STORE
    assert user.runs() == 0


@pytest.mark.parametrize("kind", ["sqlite", "journal"])
def test_a_store_that_was_moved_away_is_not_made_anew(user, kind):
    url = f"{kind}:{user.folder}/s"
    assert user.sh("true", "--store", url).returncode == 0
    (user.folder / "s").rename(user.folder / "away")
    for _ in range(2):
        done = user.sh("true", "--store", url)
        assert done.returncode == STORE
        assert b"once init" in done.stderr and b"/s: " in done.stderr
    assert not (user.folder / "s").exists()
    (user.folder / "away").rename(user.folder / "s")
    assert user.sh("true", "--store", url).returncode == 0
    assert user.runs() == 1


def test_the_users_own_store_is_not_made_by_a_run(user):
    user.have_none()
    done = user.sh("true")
    assert done.returncode == STORE and b"once init" in done.stderr
    assert user.once("init", "--audit", "off").returncode == 0
    assert user.sh("true").returncode == 0
    assert user.runs() == 1


def test_a_store_that_does_not_answer_runs_nothing(user):
    done = user.sh("true", "--store",
                   f"faulty:fail=claim:1-*@sqlite:{user.folder}/s.db")
    assert done.returncode == STORE
    assert user.runs() == 0


def test_an_outcome_that_cannot_be_recorded_is_unknown(user):
    url = f"sqlite:{user.folder}/s.db"
    done = user.sh("echo out; exit 3", "--lease", "1s", "--store",
                   f"faulty:fail=complete:1-*@{url}")
    assert (done.returncode, done.stdout) == (UNKNOWN, b"out\n")
    assert b"exit status 3" in done.stderr
    until(lambda: user.sh("echo out; exit 3", "--store",
                          url).returncode == UNKNOWN)
    assert user.runs() == 1


def test_a_lost_answer_of_the_store_changes_nothing(user):
    done = user.sh("echo out; exit 3", "--store", "faulty:lose=claim:1,"
                   f"lose=complete:1-2@sqlite:{user.folder}/s.db")
    assert (done.returncode, done.stdout) == (3, b"out\n")
    assert user.runs() == 1


# ---- long output ----------------------------------------------------------

LONG_SCRIPT = "seq 1 300000; seq 1 10 >&2; exit 2"
LONG_OUT = b"".join(b"%d\n" % i for i in range(1, 300001))


def spooled(user):
    files = list((user.state / "spool").iterdir())
    assert len(files) == 1 and files[0].name.endswith(".out")
    assert files[0].stat().st_mode & 0o777 == 0o600
    return files[0]


def test_long_output_is_spooled_and_replayed(user):
    for _ in range(2):
        done = user.sh(LONG_SCRIPT)
        assert done.returncode == 2
        assert done.stdout == LONG_OUT
        assert done.stderr == b"".join(b"%d\n" % i for i in range(1, 11))
    spooled(user)
    assert user.runs() == 1


def test_output_at_the_limit_is_inline_and_one_more_byte_is_not(user):
    limit = (1 << 20) - 5  # with the head of its one frame
    for size, files in ((limit, 0), (limit + 1, 1)):
        for _ in range(2):
            done = user.sh(f"head -c {size} /dev/zero", key=str(size))
            assert done.stdout == bytes(size)
        folder = user.state / "spool"
        assert (len(os.listdir(folder)) if folder.exists() else 0) == files


def damage(path, how):
    if how == "gone":
        path.unlink()
    elif how == "changed":
        with open(path, "r+b") as f:
            f.seek(1000)
            f.write(b"x")
    elif how == "shorter":
        os.truncate(path, path.stat().st_size - 1)
    elif how == "longer":
        with open(path, "ab") as f:
            f.write(b"x")
    else:  # a link to something else of the same bytes is not followed
        other = path.with_name("other")
        path.rename(other)
        path.symlink_to(other)


@pytest.mark.parametrize("how", ["gone", "changed", "shorter", "longer",
                                 "linked"])
def test_a_spool_file_that_is_not_what_it_was_is_an_error(user, how):
    assert user.sh(LONG_SCRIPT).returncode == 2
    path = spooled(user)
    damage(path, how)
    done = user.sh(LONG_SCRIPT)
    assert (done.returncode, done.stdout) == (OUTPUT, b"")
    assert path.name.encode() in done.stderr
    assert user.runs() == 1


def test_output_that_cannot_be_kept_is_said_both_times(user):
    user.state.mkdir(parents=True)
    (user.state / "spool").write_text("in the way")
    done = user.sh(LONG_SCRIPT)
    assert (done.returncode, done.stdout) == (2, LONG_OUT)
    assert b"could not be kept" in done.stderr
    done = user.sh(LONG_SCRIPT)
    assert (done.returncode, done.stdout) == (OUTPUT, b"")
    assert b"exit status 2" in done.stderr
    assert user.runs() == 1


def test_a_disk_that_fills_up_is_said_both_times(user):
    """A limit of 1.5 MB for a file is what a full disk is to us."""
    user.have_own()
    words = [ONCE, "run", "--key", KEY, "--", "sh", "-c",
             f"echo run >>ran; {LONG_SCRIPT}"]
    done = subprocess.run(
        ["sh", "-c", "trap '' XFSZ; ulimit -f 3000; exec " + shlex.join(words)],
        env=user.env, cwd=user.folder, capture_output=True, timeout=HANG)
    assert (done.returncode, done.stdout) == (2, LONG_OUT)
    assert b"could not be kept" in done.stderr
    assert os.listdir(user.state / "spool") == []
    assert user.sh(LONG_SCRIPT).returncode == OUTPUT
    assert user.runs() == 1


def test_another_host_replays_what_is_short_and_says_where_the_rest_is(user):
    url = f"sqlite:{user.folder}/shared.db"
    there = {"XDG_STATE_HOME": str(user.folder / "elsewhere")}
    for key, script in (("short", "echo out"), ("long", LONG_SCRIPT)):
        first = user.sh(script, "--store", url, key=key)
        again = user.sh(script, "--store", url, key=key, env=there)
        if key == "short":
            assert again.stdout == first.stdout == b"out\n"
        else:
            assert (again.returncode, again.stdout) == (OUTPUT, b"")
            assert os.uname().nodename.encode() in again.stderr
            assert spooled(user).name.encode() in again.stderr
    assert user.runs() == 2


def test_what_a_lost_run_has_spooled_stays_for_the_operator(user):
    assert user.sh("seq 1 300000; kill -9 $$").returncode == UNKNOWN
    part, = (user.state / "spool").iterdir()
    assert part.name.startswith("part-")
    assert part.stat().st_size > len(LONG_OUT)


def test_spool_files_go_when_their_time_is_over(user):
    folder = user.state / "spool"
    folder.mkdir(parents=True)
    now = int(time.time() * 1000)
    old = folder / f"{now - 2 * 86400000}-0123456789abcdef-1.out"
    recent = folder / f"{now - 3600000}-0123456789abcdef-2.out"
    part = folder / "part-0123456789abcdef-3"
    old_part = folder / "part-0123456789abcdef-4"
    other = folder / "notes"
    for path in (old, recent, part, old_part, other):
        path.write_text("x")
    os.utime(old_part, (1, 1))
    os.utime(other, (1, 1))
    assert user.sh(LONG_SCRIPT).returncode == 2
    left = set(folder.iterdir())
    assert {recent, part, other} <= left
    assert not {old, old_part} & left


# ---- the user's own store --------------------------------------------------


def test_the_store_is_in_the_state_folder(user):
    assert user.sh("true").returncode == 0
    assert (user.state / "store.db").exists()
    assert user.state.stat().st_mode & 0o777 == 0o700


# Root may read every folder, unless that is taken away.
AS_ANYBODY = ["setpriv", "--bounding-set", "-dac_override,-dac_read_search"] \
    if os.getuid() == 0 else []


def test_the_state_folder_may_be_in_one_that_cannot_be_read(user):
    # Entries may be made in it, but it cannot be opened for its flush.
    (user.folder / "state").mkdir(mode=0o300)
    subprocess.run([*AS_ANYBODY, ONCE, "init", "--audit", "off"],
                   env=user.env, timeout=HANG, check=True)
    done = subprocess.run([*AS_ANYBODY, ONCE, "run", "--key", KEY, "--",
                           "true"],
                          env=user.env, capture_output=True, timeout=HANG,
                          check=False)
    assert done.returncode == 0, done.stderr
    assert user.state.stat().st_mode & 0o777 == 0o700


def test_without_xdg_state_home_it_is_below_home(user):
    for value in (None, "", "relative/path"):
        assert user.sh("true", env={"XDG_STATE_HOME": value}).returncode == 0
    assert (user.folder / ".local/state/once/store.db").exists()
    assert user.runs() == 1


def test_without_either_nothing_is_run(user):
    done = user.sh("true", env={"XDG_STATE_HOME": None, "HOME": None})
    assert done.returncode == STORE
    assert b"--store" in done.stderr
    assert user.runs() == 0


def test_once_store_and_store_name_another(user):
    url = f"sqlite:{user.folder}/other.db"
    assert user.sh("true", env={"ONCE_STORE": url}).returncode == 0
    assert user.sh("true", "--store", url).returncode == 0
    assert user.runs() == 1
    assert not user.state.exists()


def test_secrets_stay_secret(user):
    key, word = "key-" + uuid.uuid4().hex, "word-" + uuid.uuid4().hex
    seen = b""
    for words in (["sh", "-c", "exit 1", word], ["sh", "-c", "exit 1", word],
                  ["/nonexistent", word], ["sh", "-c", "kill -9 $$", word]):
        for name in (key, key + words[0]):
            seen += user.run("--key", name, "--", *words).stderr
    assert seen
    for path in user.state.iterdir():
        seen += path.read_bytes()
    assert key.encode() not in seen and word.encode() not in seen
    for url in ("postgres://me:hunter2@127.0.0.1:1/d", "nosuch://me:hunter2@h"):
        done = user.sh("true", "--store", url)
        assert done.returncode in (USAGE, STORE)
        assert b"hunter2" not in done.stderr + done.stdout


# ---- signals ---------------------------------------------------------------


TRAP = ("trap 'echo got {0}; exit 7' {0}; echo ready; "
        "while [ ! -e go ]; do sleep 0.01; done")


@pytest.mark.parametrize("name", ["HUP", "INT", "QUIT", "TERM", "USR1",
                                  "USR2"])
def test_signals_are_forwarded(user, name):
    words = ["run", "--key", KEY, "--", "sh", "-c", TRAP.format(name)]
    p = user.start(*words)
    assert p.stdout.readline() == b"ready\n"
    p.send_signal(getattr(signal, "SIG" + name))
    assert ended(p) == (7, f"got {name}\n".encode(), b"")
    assert user.once(*words).stdout == f"ready\ngot {name}\n".encode()


COUNTS_INTERRUPTS = """
import os, signal, time
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
open("ready", "w").close()
signal.sigwait([signal.SIGINT])
open("one", "w").close()
while not os.path.exists("go"):
    time.sleep(0.01)
print("again" if signal.sigtimedwait([signal.SIGINT], 0.5) else "once")
"""


def status_bit(pid, mask, number):
    with open(f"/proc/{pid}/status", encoding="ascii") as f:
        value = re.search(mask + r":\s*(\w+)", f.read()).group(1)
    return int(value, 16) >> (number - 1) & 1


def test_a_key_of_the_terminal_reaches_the_command_once(user):
    """We are stopped until the command has taken it, or a second one would
    vanish in the first."""
    user.have_own()
    pid, fd = pty.fork()
    if pid == 0:
        deaf_to_nothing()
        os.chdir(user.folder)
        os.execve(ONCE, [ONCE, "run", "--key", KEY, "--", sys.executable, "-c",
                         COUNTS_INTERRUPTS], user.env)
    until((user.folder / "ready").exists)
    os.kill(pid, signal.SIGSTOP)
    os.write(fd, b"\x03")
    until((user.folder / "one").exists)
    until(lambda: status_bit(pid, "ShdPnd", signal.SIGINT))
    os.kill(pid, signal.SIGCONT)
    until(lambda: not status_bit(pid, "ShdPnd", signal.SIGINT))
    (user.folder / "go").touch()
    seen = b""
    while not seen.endswith(b"\r\n"):
        assert select.select([fd], [], [], HANG)[0], seen
        seen += os.read(fd, 4096)
    assert wait_for(pid) == 0
    assert seen.endswith(b"once\r\n")
    os.close(fd)


def test_a_hang_up_that_only_we_get_is_forwarded(user):
    user.have_own()
    pid, fd = pty.fork()
    if pid == 0:
        deaf_to_nothing()
        os.chdir(user.folder)
        os.execve(ONCE, [ONCE, "run", "--key", KEY, "--", "sh", "-c",
                         "trap 'echo hup >hup; exit 7' HUP; echo ready; "
                         "while [ ! -e go ]; do sleep 0.01; done"], user.env)
    seen = b""
    while b"ready" not in seen:
        assert select.select([fd], [], [], HANG)[0]
        seen += os.read(fd, 4096)
    os.close(fd)  # the terminal is gone
    assert wait_for(pid) == 7
    assert (user.folder / "hup").read_text() == "hup\n"


def test_the_commands_signals_are_as_if_started_without_us(user):
    words = ["grep", "-E", "^Sig(Blk|Ign)", "/proc/self/status"]
    plain = subprocess.run(words, capture_output=True, check=True,
                           preexec_fn=deaf_to_nothing).stdout
    assert user.run("--key", KEY, "--", *words).stdout == plain
    nohup = subprocess.run(["nohup", *words], capture_output=True,
                           preexec_fn=deaf_to_nothing,
                           stdin=subprocess.DEVNULL, check=True).stdout
    assert nohup != plain
    ours = subprocess.run(["nohup", ONCE, "run", "--key", "n", "--", *words],
                          capture_output=True, stdin=subprocess.DEVNULL,
                          preexec_fn=deaf_to_nothing, env=user.env,
                          check=True).stdout
    assert ours == nohup


def test_nothing_of_ours_is_open_in_the_command(user):
    done = user.run("--key", KEY, "--", "ls", "/proc/self/fd")
    assert done.stdout.split() == [b"0", b"1", b"2", b"3"]  # 3 is ls's own


def test_whoever_waits_can_be_interrupted(user):
    words = ["run", "--key", KEY, "--wait", "1h", "--", "sh", "-c",
             "echo run >>ran; echo ready; while [ ! -e go ]; do "
             "sleep 0.01; done"]
    owner = user.start(*words)
    assert owner.stdout.readline() == b"ready\n"
    waiter = user.start(*words)
    # Give it time to wait; if it has not come so far, the signal ends it too.
    time.sleep(0.3)
    waiter.terminate()
    assert ended(waiter) == (-signal.SIGTERM, b"", b"")
    (user.folder / "go").touch()
    assert ended(owner)[0] == 0
    assert user.runs() == 1


def test_a_signal_before_the_start_starts_nothing(user):
    """The store is busy, so the claim takes until the signal has come."""
    assert user.sh("true", key="other").returncode == 0
    lock = sqlite3.connect(user.state / "store.db", isolation_level=None)
    lock.execute("BEGIN IMMEDIATE")
    words = ["run", "--key", KEY, "--", "sh", "-c", "echo run >>ran"]
    p = user.start(*words)

    until(lambda: status_bit(p.pid, "SigBlk", signal.SIGTERM))
    p.terminate()
    lock.execute("ROLLBACK")
    lock.close()
    assert ended(p) == (-signal.SIGTERM, b"", b"")
    assert user.runs() == 1
    assert user.once(*words).returncode == 0  # the key is free
    assert user.runs() == 2


def test_what_the_command_leaves_behind_can_be_left_behind(user):
    p = user.start("run", "--key", KEY, "--", "sh", "-c",
                   "echo run >>ran; sleep 1000 & echo $! >pid; echo hi; "
                   "exit 3")
    assert p.stdout.readline() == b"hi\n"
    until(lambda: (user.folder / "pid").exists()
          and (user.folder / "pid").read_text().endswith("\n"))
    left = int((user.folder / "pid").read_text())

    def command_is_gone():
        path = f"/proc/{p.pid}/task/{p.pid}/children"
        with open(path, encoding="ascii") as f:
            return f.read().strip() == ""

    try:
        until(command_is_gone)
        p.terminate()
        status, out, err = ended(p)
    finally:
        os.kill(left, signal.SIGKILL)
    assert (status, out) == (3, b"")
    assert b"has started hold" in err


# ---- lost commands ----------------------------------------------------------


def test_a_killed_command_is_unknown_until_somebody_knows(user):
    script = "echo out; kill -9 $$"
    first = user.sh(script)
    assert (first.returncode, first.stdout) == (UNKNOWN, b"out\n")
    assert b"signal 9" in first.stderr
    again = user.sh(script, "--retry-failed")
    assert (again.returncode, again.stdout) == (UNKNOWN, b"")
    assert user.runs() == 1
    (user.folder / "answer").write_bytes(b"the answer\n")
    assert user.resolve(again.stderr, "--success", str(user.folder / "answer"),
                        "--raw").returncode == 0
    done = user.sh(script)
    assert (done.returncode, done.stdout) == (0, b"the answer\n")
    assert user.runs() == 1


def test_an_operator_may_say_that_it_failed(user):
    done = user.sh("kill -TERM $$")
    assert done.returncode == UNKNOWN
    assert user.resolve(done.stderr, "--failure", "/dev/null",
                        "--raw").returncode == 0
    assert user.sh("kill -TERM $$", "--retry-failed").returncode == 1
    assert user.runs() == 1


def test_an_operator_may_know_no_more_than_that_it_was_done(user):
    done = user.sh("kill -TERM $$")
    assert user.resolve(done.stderr, "--applied").returncode == 0
    done = user.sh("kill -TERM $$")
    assert (done.returncode, done.stdout) == (OUTPUT, b"")
    assert user.runs() == 1


SLEEPER = ["--", "sh", "-c", "echo run >>ran; echo $$; "
           "while [ ! -e go ]; do sleep 0.01; done; echo end >>ended"]


def start_and_kill(user, *options):
    p = user.start("run", "--key", KEY, "--lease", "1s", *options, *SLEEPER)
    child = int(p.stdout.readline())
    p.kill()
    p.wait(timeout=HANG)
    return child


def test_when_we_are_killed_hold_lets_the_command_end(user):
    child = start_and_kill(user)
    done = user.run("--key", KEY, *SLEEPER)
    assert done.returncode in (IN_FLIGHT, UNKNOWN)
    until(lambda: user.run("--key", KEY, *SLEEPER).returncode == UNKNOWN)
    assert alive(child)
    (user.folder / "go").touch()
    until(lambda: not alive(child))
    assert (user.folder / "ended").exists()
    done = user.run("--key", KEY, "--lost", "takeover", *SLEEPER)
    assert done.returncode == UNKNOWN  # the first one was promised hold
    assert user.runs() == 1


def test_takeover_ends_the_lost_one_and_runs_again(user):
    child = start_and_kill(user, "--lost", "takeover")
    until(lambda: not alive(child))
    (user.folder / "go").touch()
    done = user.run("--key", KEY, "--wait", "60s", "--lost", "takeover",
                    *SLEEPER)
    assert done.returncode == 0
    assert user.runs() == 2


def test_whoever_was_taken_over_tells_what_counts(user):
    words = ["run", "--key", KEY, "--lease", "1s", "--lost", "takeover",
             "--wait", "100s", "--", "sh", "-c",
             "echo run $ONCE_ATTEMPT; test $ONCE_ATTEMPT = 2 || "
             "{ while [ ! -e go ]; do sleep 0.01; done; exit 5; }"]
    slow = user.start(*words)
    assert slow.stdout.readline() == b"run 1\n"
    time.sleep(0.15)  # not with the lock of the store in its hands
    slow.send_signal(signal.SIGSTOP)
    done = user.once(*words)
    assert (done.returncode, done.stdout) == (0, b"run 2\n")
    (user.folder / "go").touch()
    slow.send_signal(signal.SIGCONT)
    status, out, err = ended(slow)
    assert (status, out) == (0, b"run 2\n")
    assert b"taken over" in err


def test_a_slow_command_keeps_its_key(user):
    """Its lease is renewed while it runs."""
    url = f"sqlite:{user.folder}/s.db"
    words = ["--key", KEY, "--lease", "6s", "--store", url, *SLEEPER]

    def lease():
        done = user.once("--store", url, "ls", "--json")
        return json.loads(done.stdout)["lease_until"]

    p = user.start("run", *words)
    p.stdout.readline()
    first = lease()
    until(lambda: lease() > first, "a renewal")
    assert user.run(*words).returncode == IN_FLIGHT
    (user.folder / "go").touch()
    assert ended(p)[0] == 0
    assert user.run(*words).returncode == 0
    assert user.runs() == 1


# ---- crowds and killers -----------------------------------------------------


def stores():
    return ["sqlite:{folder}/crowd.db", "journal:{folder}/crowd"] + URLS


each_store = pytest.mark.parametrize(
    "url", stores(), ids=[u.partition(":")[0] for u in stores()])


@each_store
@pytest.mark.parametrize("wait", [True, False])
def test_fifty_at_once(user, url, wait):
    url = url.format(folder=user.folder)
    key = uuid.uuid4().hex
    words = ["run", "--key", key, *(["--wait", "100s"] if wait else []),
             "--store", url, "--", "sh", "-c",
             "echo run >>F; sleep 1; echo out; exit 3"]
    crowd = [user.start(*words) for _ in range(50)]
    answers = [ended(p) for p in crowd]
    answered = [a for a in answers if a[0] != IN_FLIGHT]
    assert (user.folder / "F").read_text() == "run\n"
    assert len(answered) == 50 if wait else len(answered) >= 1, answers
    for answer in answered:
        assert answer == (3, b"out\n", b"")
    assert ended(user.start(*words)) == (3, b"out\n", b"")
    assert (user.folder / "F").read_text() == "run\n"


class Round:
    """Two that want to run one key, and somebody who kills."""

    def __init__(self, user, number, url, chance):
        self.user, self.chance = user, chance
        self.folder = user.folder / str(number)
        self.folder.mkdir()
        self.words = ["run", "--key", f"{uuid.uuid4().hex}", "--lease", "1s",
                      "--store", url, "--", "sh", "-c",
                      'cd "$0" && echo $$ >>ran && sleep 0.03 && echo out',
                      str(self.folder)]

    def pids(self):
        path = self.folder / "ran"
        return [int(x) for x in path.read_text().split()] if path.exists() \
            else []

    def kill_child(self):
        end = time.monotonic() + self.chance.random() * 0.1
        while time.monotonic() < end:
            pids = self.pids()
            if pids:
                time.sleep(self.chance.random() * 0.04)
                try:
                    # Ours, or nobody's: it may have ended by itself.
                    with open(f"/proc/{pids[0]}/cmdline", "rb") as f:
                        if str(self.folder).encode() in f.read():
                            os.kill(pids[0], signal.SIGKILL)
                except (FileNotFoundError, ProcessLookupError):
                    pass
                return
            time.sleep(0.001)

    def play(self):
        pair = [self.user.start(*self.words) for _ in range(2)]
        for _ in range(self.chance.choice([1, 1, 2])):
            if self.chance.random() < 0.4:
                self.kill_child()
            else:
                time.sleep(self.chance.random() * 0.08)
                self.chance.choice(pair).kill()
        return [ended(p) for p in pair]

    def end(self):
        """Asks until nobody is under way: then all is said."""
        while True:
            answer = ended(self.user.start(*self.words))
            if answer[0] != IN_FLIGHT:
                return answer
            time.sleep(0.1)


@each_store
def test_whoever_is_killed_it_never_runs_twice(user, url):
    chance = random.Random(SEED)
    url = url.format(folder=user.folder)
    rounds, seen = [], {}
    for number in range(ROUNDS):
        r = Round(user, number, url, chance)
        r.answers = r.play()
        rounds.append(r)
    for r in rounds:
        last = r.end()
        runs = len(r.pids())
        where = (SEED, r.folder.name, r.answers, last)
        assert runs <= 1, where
        assert last[0] in (0, UNKNOWN), where
        for status, out, _ in r.answers + [last]:
            assert status in (0, UNKNOWN, IN_FLIGHT, -signal.SIGKILL), where
            if status == 0:
                assert (runs, out, last[0]) == (1, b"out\n", 0), where
        seen[last[0]] = seen.get(last[0], 0) + 1
    print(f"seed {SEED}: {seen.get(0, 0)} done, "
          f"{seen.get(UNKNOWN, 0)} unknown of {ROUNDS}")
