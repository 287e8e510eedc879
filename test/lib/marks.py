# SPDX-License-Identifier: Apache-2.0
"""
No secret in what a program writes. Tests put MARK into keys, scopes, bodies,
header values and passwords. When the tests of a folder have ended, test/conftest.py
calls leaks() on all that they left in their temporary folder: logs, metrics,
audit logs, stores, core files, and what programs printed (captured). Where a
mark stands by right is said in BY_RIGHT, and nowhere else.
"""

import base64
import contextlib
import os
import pathlib
import re
import resource
import signal
import sqlite3
import subprocess

# Long enough that random bytes, of which stores are full, never have it.
MARK = "Zq7Mark5"

PROGRAMS = ("once", "once-console", "nginx", "guarded_server", "agent")
captured = None  # a folder

# Files that hold marks by right.
BY_RIGHT = re.compile("|".join((
    # What a test has written, for a program to read.
    r"/(key\d*|k|l|scope|token|lines|body|bad)$", r"/stores\.d/\w+$",
    r"^\./test_a_store_url_with_a_passwo\d/nginx/(nginx\.conf|routes)$",
    # There nginx itself writes down whole requests.
    r"/nginx/debug\.log$",
    # What has arrived at a target.
    r"/target/arrived$",
    # A body that was asked for.
    r"^\./captured/.* once show --body",
)))

# Stores hold what was answered, and messages; a gateway's store holds nothing of
# a request, as Site.close() in gateway.py checks.
STORES = (b"SQLite format 3\0", b"\x37\x7f\x06\x82", b"\x37\x7f\x06\x83",
          b"ONCECOPY")
JOURNAL = re.compile(r"/\d{8}\.log$")


def forms():
    """The mark as it is, in hexadecimal digits, and in base64."""
    raw = MARK.encode()
    found = [raw, raw.hex().encode(), raw.hex().upper().encode()]
    for shift in range(3):  # only digits that all of their bits come from it
        text = base64.b64encode(b"\0" * shift + raw)
        found.append(text[(shift * 8 + 5) // 6:(shift + len(raw)) * 8 // 6])
    return found


SECRETS = (
    # cli_seed takes a part of the name for it.
    "SELECT token FROM claim WHERE instr(name, token) = 0",
    "SELECT fingerprint FROM claim WHERE instr(name, fingerprint) = 0",
    "SELECT key FROM orders",
)


def secrets_of(path):
    """Tokens, fingerprints and keys of orders in a file of SQLite, as one would
    print them."""
    with contextlib.closing(
            sqlite3.connect("file:%s?mode=ro" % path, uri=True)) as db:
        for question in SECRETS:
            with contextlib.suppress(sqlite3.Error):
                for (value,) in db.execute(question):
                    text = value.hex()[:16] if isinstance(value, bytes) else value
                    # Some digits only: made by hand, for a test.
                    if text and len(set(text)) >= 6:
                        yield text.encode()


def grep(folder, patterns):
    """(path below the folder, pattern) of each file that has one of them."""
    done = subprocess.run(
        ["grep", "-raoF", "--devices=skip", "--null", "-f", "-", "."],
        cwd=folder, input=b"\n".join(patterns), capture_output=True,
        env=dict(os.environ, LC_ALL="C"))
    # A process that ends late may remove what is its own; some tests leave what
    # an ordinary user cannot read.
    bad = [line for line in done.stderr.splitlines() if not line.endswith(
        (b"No such file or directory", b"Permission denied"))]
    assert not bad and done.returncode in (0, 1, 2), bad[:20]
    return sorted({tuple(line.decode("latin-1").split("\0", 1))
                   for line in done.stdout.splitlines()})


def leaks(folder):
    """What stands in these files and must not."""
    folder = pathlib.Path(folder)
    secrets = {secret for path in folder.rglob("*.db") if path.is_file()
               for secret in secrets_of(path)}
    return [(path, what) for path, what in grep(folder, [*forms(), *secrets])
            if not BY_RIGHT.search(path) and not is_store(folder / path)]


def is_store(path):
    if JOURNAL.search(str(path)):
        return True
    with open(path, "rb") as f:
        return f.read(16).startswith(STORES)


# ---- What is not written to a file -----------------------------------------


def capture(folder):
    """From now on what our programs print to a test is kept in files, too."""
    global captured  # pylint: disable=global-statement
    captured = pathlib.Path(folder) / "captured"
    captured.mkdir()
    communicate = subprocess.Popen.communicate

    def kept(self, *args, **more):
        done = communicate(self, *args, **more)
        words = [os.fspath(w) for w in self.args] \
            if isinstance(self.args, (list, tuple)) else [""]
        program = os.path.basename(words[0])
        if program in PROGRAMS:
            what = " ".join([program] + [w for w in words[1:] if re.fullmatch(
                r"(--)?[a-z][a-z-]*", w)])
            for output in done:
                note(what, output)
        return done

    subprocess.Popen.communicate = kept


def note(what, data):
    """Keeps what a program has shown, in a file named after test and `what`."""
    if captured is None or not data:
        return
    test = os.environ.get("PYTEST_CURRENT_TEST", "no test").split(" (")[0]
    name = re.sub(r"[^\w:.?= -]", "_", "%s %s" % (test, what))
    with open(captured / name[:240], "ab") as f:
        f.write(data.encode() if isinstance(data, str) else data)


# ---- Core files ----------------------------------------------------------


def may_leave_core():
    """For preexec_fn."""
    resource.setrlimit(resource.RLIMIT_CORE, (resource.RLIM_INFINITY,) * 2)


def left_core(child):
    """Whether this process, started with may_leave_core, left a core file when
    it was aborted."""
    child.send_signal(signal.SIGABRT)
    _, status = os.waitpid(child.pid, 0)
    child.returncode = -signal.SIGABRT
    assert os.WIFSIGNALED(status), status
    return os.WCOREDUMP(status)


def cores_are_left(folder):
    """Whether any program here leaves a core file."""
    try:
        with subprocess.Popen(["sh", "-c", "echo up; exec sleep 60"],
                              cwd=folder, stdout=subprocess.PIPE,
                              preexec_fn=may_leave_core) as child:
            child.stdout.readline()
            return left_core(child)
    except (ValueError, subprocess.SubprocessError):
        return False  # the limit cannot be raised
