# SPDX-License-Identifier: Apache-2.0
"""
once send when the power is cut: at the first byte of the request, or of the
answer that is shown, the disk keeps what was flushed and maybe more. What it
keeps is put back, and the same line run again has the same key.

strace writes down what the program does to the folder of its file; `Disk` reads
it. A file's bytes are durable when the file was flushed, its name when the
folder was. That the test sees a missing flush is tested by leaving them out.
"""

import contextlib
import itertools
import os
import re
import subprocess

import pytest

from faults import ENV, ONCE, PATIENCE, Script, answer

CREATED = answer(201, b"made\n", "Idempotency-Status: new")
CALLS = ("openat", "close", "pwrite64", "write", "ftruncate", "fsync",
         "fdatasync", "unlink", "sendto")
FLUSHES = ("fsync", "fdatasync")


def may_trace():
    with contextlib.suppress(OSError):
        return subprocess.run(["strace", "-qq", "-o", os.devnull, "true"],
                              check=False, capture_output=True).returncode == 0
    return False


pytestmark = pytest.mark.skipif(not may_trace(), reason="no strace here")


def send(file, url, *before):
    return subprocess.run(
        [*before, ONCE, "send", "POST", url, "--order", "42", "--data", "x",
         "--deadline", "5s", "--client-store", file], capture_output=True,
        env=dict(ENV, ASAN_OPTIONS="detect_leaks=0"), text=True,
        timeout=PATIENCE, check=False)


def recorded(file, url, trace):
    """What `once send` did: (call, arguments, result), strings as bytes."""
    done = send(file, url, "strace", "-f", "-qq", "-xx", "-s", "1000000", "-o",
                trace, "-e", "trace=" + ",".join(CALLS), "-e", "signal=none")
    assert (done.returncode, done.stdout) == (0, "made\n"), done
    text = trace.read_text("ascii")
    calls = []
    for line in text.splitlines():
        found = re.match(r"\d+ +(\w+)\((.*)\) += (-?\d+)", line)
        if found is None or int(found.group(3)) < 0:
            continue
        words = [bytes.fromhex(w[1:-1].replace("\\x", "")) if w[0] == '"'
                 else w for w in found.group(2).split(", ")]
        calls.append((found.group(1), words, int(found.group(3))))
    return calls


class Node:
    """A file: its bytes as they are, and as they were flushed last."""

    def __init__(self, data=b""):
        self.now = bytearray(data)
        self.flushed = b""


class Disk:
    """One folder. `ignored` says which kinds of flushes do nothing."""

    def __init__(self, folder, there=(), ignored=()):
        self.folder = str(folder)
        self.ignored = ignored
        self.open = {}
        # What was there, and not yet flushed.
        self.names = {name: Node() for name in there}
        self.flushed = {}

    def name(self, path):
        folder, _, name = path.decode().rpartition("/")
        # Its index lies in memory, and SQLite makes it anew.
        if folder == self.folder and not name.endswith("-shm"):
            return name
        return None

    def openat(self, words, fd):
        name, path = self.name(words[1]), words[1].decode()
        self.open.pop(fd, None)
        if path == self.folder:
            self.open[fd] = self
        elif name is not None:
            if name not in self.names:
                assert "O_CREAT" in words[2]
                self.names[name] = Node()
            self.open[fd] = self.names[name]

    def flush(self, node):
        if node is self and "names" not in self.ignored:
            self.flushed = dict(self.names)
        if isinstance(node, Node) and "bytes" not in self.ignored:
            node.flushed = bytes(node.now)

    def take(self, call, words, result):
        fd = int(words[0]) if words[0].isdigit() else None
        node = self.open.get(fd)
        if call == "openat":
            self.openat(words, result)
        elif call == "close":
            self.open.pop(fd, None)
        elif call == "unlink" and self.name(words[0]) is not None:
            del self.names[self.name(words[0])]
        elif call in FLUSHES:
            self.flush(node)
        elif isinstance(node, Node):
            assert call in ("pwrite64", "ftruncate"), call
            if call == "ftruncate":
                size = int(words[1])
                node.now = node.now[:size].ljust(size, b"\0")
            else:
                at = int(words[3])
                node.now = node.now.ljust(at, b"\0")
                node.now[at:at + result] = words[1][:result]

    def left(self, names, data):
        """What is found after the cut: {name: bytes}. What was not flushed is
        lost, or not: that of the names and that of the bytes."""
        kept = self.names if names == "all" else self.flushed
        return {name: bytes(node.now) if data == "all" else node.flushed
                for name, node in kept.items()}


def is_request(call, words):
    return call in ("sendto", "write") and words[1].startswith(b"POST ")


def is_told(call, words):
    return call == "write" and words[:2] == ["1", b"made\n"]


def cuts(calls, moment, disk):
    """The disks that a power cut at this moment may leave."""
    for call, words, result in calls:
        if moment(call, words):
            break
        disk.take(call, words, result)
    else:
        raise AssertionError("the moment has not come")
    return [disk.left(names, data) for names, data in
            itertools.product(("flushed", "all"), repeat=2)]


class Recording:
    """One order, sent where strace looked on."""

    def __init__(self, tmp_path, there=()):
        self.tmp_path, self.there, self.n = tmp_path, there, 0
        self.folder = tmp_path / "live"
        self.folder.mkdir()
        for name in there:
            (self.folder / name).touch(0o600)
        self.server = Script(CREATED)
        self.calls = recorded(self.folder / "client.db", self.server.url,
                              tmp_path / "trace")
        self.keys = set(self.server.keys())

    def again(self, left):
        """The same line, where this is what the disk has."""
        self.n += 1
        folder = self.tmp_path / str(self.n)
        folder.mkdir()
        for name, data in left.items():
            (folder / name).write_bytes(data)
        done = send(folder / "client.db", self.server.url)
        assert (done.returncode, done.stdout) == (0, "made\n"), (left, done)

    def cut(self, moment, ignored=()):
        """How many keys, and how many requests, all these disks added."""
        for left in cuts(self.calls, moment,
                         Disk(self.folder, self.there, ignored)):
            self.again(left)
        keys = self.server.keys()
        self.server.close()
        return len(set(keys) - self.keys), len(keys) - len(self.keys)


# Somebody has made the file, and died before its name was flushed.
@pytest.mark.parametrize("there", [(), ("client.db",)])
def test_a_power_cut_at_the_request_leaves_the_key(tmp_path, there):
    live = Recording(tmp_path, there)
    assert live.cut(is_request) == (0, 4)


@pytest.mark.parametrize("there", [(), ("client.db",)])
def test_a_power_cut_at_the_answer_leaves_the_answer(tmp_path, there):
    live = Recording(tmp_path, there)
    assert live.cut(is_told) == (0, 0)


@pytest.mark.parametrize("ignored", ["names", "bytes"])
def test_a_flush_that_is_missing_is_seen(tmp_path, ignored):
    live = Recording(tmp_path)
    assert live.cut(is_request, (ignored,))[0] > 0


@pytest.mark.parametrize("there", [(), ("client.db",)])
def test_nothing_is_sent_when_the_folder_cannot_be_flushed(tmp_path, there):
    for name in there:
        (tmp_path / name).touch(0o600)
    server = Script(CREATED)
    done = send(tmp_path / "client.db", server.url, "strace", "-f", "-qq",
                "-o", os.devnull, "-P", tmp_path, "-e",
                "trace=" + ",".join(FLUSHES), "-e",
                "inject=%s:error=EIO" % ",".join(FLUSHES))
    assert server.requests == [], done
    server.close()
    assert done.returncode == 3 and "Input/output error" in done.stderr, done
