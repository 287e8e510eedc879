# SPDX-License-Identifier: Apache-2.0
"""test_readonly.py - a store whose disk is mounted read-only, as the kernel does
after errors of a device, is read all the same; and what is said of a store that
is damaged, or of a copy that is there, leads to what is wrong.

The mount is a read-only one of the store's folder over itself, in a mount
namespace of the command's own: for all others the folder stays as it is."""
import os
import pathlib
import shutil
import signal
import subprocess

import pytest

import servers
from once_cli import A, C, LAST, ONCE, Store, states

CONSOLE = pathlib.Path(ONCE).parent / "once-console"

MOUNTED = """mount --make-rprivate / && mount --bind "$0" "$0" &&
    mount -o remount,ro,bind "$0" && exec "$@" """

may_mount = pytest.mark.skipif(
    subprocess.run(["unshare", "-m", "sh", "-c", MOUNTED, "/tmp", "true"],
                   capture_output=True, check=False).returncode != 0,
    reason="no mount namespaces here: root is needed")


class Disk(Store):
    """A store in a folder that can be mounted by itself."""

    def __init__(self, folder, scheme):
        super().__init__(folder, scheme)
        self.disk = folder / "disk"
        self.disk.mkdir()
        self.path = self.disk / "store.db"
        self.url = "%s:%s" % (scheme, self.path)

    def mounted(self, *words):
        env = dict(os.environ, ONCE_STORE=self.url, TZ="Asia/Tokyo",
                   ONCE_AUDIT=str(self.folder / "audit.jsonl"))
        return subprocess.run(
            ["unshare", "-m", "sh", "-c", MOUNTED, str(self.disk), ONCE,
             *words], capture_output=True, env=env, timeout=60, check=False)

    def looked(self, *words):
        done = self.mounted(*words)
        assert done.returncode == 0, (words, done.stderr)
        return done.stdout.decode()

    def files(self):
        return {p: (p.read_bytes(), p.stat().st_mtime_ns)
                for p in sorted(self.disk.rglob("*")) if p.is_file()}

    def holder(self):
        """A process that has it open."""
        socket = self.folder / "console.sock"
        process = subprocess.Popen(
            [CONSOLE, "--store", self.url, "--audit", "off", "--listen",
             "unix:%s" % socket], stdout=subprocess.DEVNULL)
        servers.eventually(socket.exists, "the console listens")
        return process


@pytest.fixture(params=["journal", "sqlite"])
def disk(request, tmp_path):
    it = Disk(tmp_path, request.param)
    states(it)
    return it


LOOKS = (["ls"], ["verify"], ["ls", "--state", "indeterminate", "--json"],
         ["show", "--name", C], ["stats"], ["stats", "--quick"])


def same(disk):
    before = disk.files()
    seen = [disk.looked(*words) for words in LOOKS]
    assert disk.files() == before
    assert [disk.ok(*words) for words in LOOKS] == seen
    assert A in seen[0] and LAST in seen[2]


@may_mount
def test_a_store_on_a_read_only_mount_is_read(disk):
    same(disk)


@may_mount
def test_and_one_whose_processes_were_killed(disk):
    process = disk.holder()
    process.send_signal(signal.SIGKILL)
    process.wait()
    same(disk)


@may_mount
def test_and_one_that_is_open_where_it_can_be_written(disk):
    process = disk.holder()
    try:
        disk.seed("lost", "12" * 32, "0")
        same(disk)
        disk.seed("lost", "34" * 32, "0")  # nobody was disturbed
        assert "34" * 32 in disk.looked("ls")
    finally:
        process.terminate()
        process.wait(60)
    assert process.returncode == 0


@may_mount
def test_and_a_file_without_its_log(tmp_path):
    disk = Disk(tmp_path, "sqlite")
    states(disk)
    odd = disk.disk / "a%b?c#d"
    subprocess.run(["python3", "-c", "import sqlite3, sys; c = "
                    "sqlite3.connect(sys.argv[1]); c.execute("
                    "'pragma wal_checkpoint(truncate)')", str(disk.path)],
                   check=True)
    shutil.copy(disk.path, odd)
    for path in list(disk.disk.iterdir()):
        if path.name.endswith(("-wal", "-shm")):
            path.unlink()
    seen = disk.looked("ls")
    assert A in seen and not list(disk.disk.glob("*-wal"))
    disk.url = "sqlite:%s" % odd
    if "?" not in odd.name:
        assert disk.looked("ls") == seen


@may_mount
@pytest.mark.parametrize("words", [
    ["resolve", LAST, "--fence", "1", "--applied", "--why", "w"],
    ["forget", A], ["purge"], ["check"]])
def test_nothing_is_decided_there(disk, words):
    before = disk.files()
    done = disk.mounted(*words)
    assert done.returncode == 3, done
    assert b"Read-only file system" in done.stderr, done
    assert b"must own" not in done.stderr, done
    assert disk.files() == before


@may_mount
def test_a_copy_is_made_of_it(disk):
    copy = disk.folder / "copy"
    disk.looked("backup", "--copy", str(copy))
    assert "completed\t2" in disk.ok("verify", str(copy))


# ---- What is said ---------------------------------------------------------------

MISLEADS = (b"locked", b"must own", b"record counts as taken",
            b"permissions")


def said(disk, *words):
    """What a command says that does not end well; b"" if it does."""
    done = disk.once(*words)
    assert done.returncode in (0, 3), done
    return done.stderr if done.returncode else b""


def test_a_damaged_file_of_a_store_is_called_damaged(tmp_path):
    """Bytes of each file, here and there; where that is about one record, it
    is named."""
    for scheme in "journal", "sqlite":
        (tmp_path / scheme).mkdir()
        disk = Disk(tmp_path / scheme, scheme)
        states(disk)
        if scheme == "sqlite":
            subprocess.run(["python3", "-c", "import sqlite3, sys; c = "
                            "sqlite3.connect(sys.argv[1]); c.execute("
                            "'pragma wal_checkpoint(truncate)')",
                            str(disk.path)], check=True)
        whole = {p: data for p, (data, _) in disk.files().items()}
        seen = 0
        for path, data in whole.items():
            if path.name.endswith("-shm"):
                continue
            spots = [at for at in range(24, len(data), 24)
                     if any(data[at:at + 24])]
            for at in spots[::max(len(spots) // 12, 1)]:
                path.write_bytes(data[:at] + bytes(
                    b ^ 0xa5 for b in data[at:at + 24]) + data[at + 24:])
                for words in ["ls"], ["verify"]:
                    text = said(disk, *words)
                    seen += text != b""
                    if b"corrupt: " in text or b"records fail" in text:
                        continue
                    for wrong in MISLEADS:
                        assert wrong not in text, (path.name, at, words, text)
                for other, bytes_ in whole.items():
                    other.write_bytes(bytes_)
        assert seen > 5, scheme


def test_the_head_of_a_journal(tmp_path):
    disk = Disk(tmp_path, "journal")
    states(disk)
    head = disk.path / "head"
    head.write_bytes(b"x" * len(head.read_bytes()))
    text = said(disk, "ls")
    assert b"The store is damaged" in text and b"once restore" in text, text


def test_a_copy_that_is_there(disk):
    copy = disk.folder / "copy"
    copy.write_bytes(b"mine")
    text = said(disk, "backup", "--copy", str(copy))
    assert b"copy" in text and b"must own" not in text, text
    assert b"is there already" in text, text
    assert copy.read_bytes() == b"mine"
    text = said(disk, "backup", "--copy", str(disk.folder / "no" / "copy"))
    assert b"No such file" in text and b"must own" not in text, text
