# SPDX-License-Identifier: Apache-2.0
"""test_backup.py - copies of stores: once backup, restore, verify; and a
PostgreSQL database that is put back by its own tools.

What a copy holds and what a gap does is tested in test/unit/test_restore.c; here
are the commands, and the four ways that an operator goes: copy, work, restore,
repeat everything, with --gap hold and --gap accept."""
import hashlib
import json
import os
import pathlib
import signal
import subprocess
import time

import pytest

from once_cli import A, B, C, LAST, OWNER, REPLAY, UNKNOWN, ZERO, Store, states
from test_servers import server  # noqa: F401 (a fixture)

WHY = ("--why", "the disk died")


@pytest.fixture(params=["journal", "sqlite"])
def store(request, tmp_path):
    return Store(tmp_path, request.param)


def other(store, name="restored", scheme=None):
    copy = Store(store.folder, scheme or store.url.partition(":")[0])
    copy.url = "%s:%s" % (copy.url.partition(":")[0], store.folder / name)
    return copy


def counts(text):
    return dict(line.split("\t") for line in text.splitlines()
                if len(line.split("\t")) == 2)


def test_a_copy_is_checked_and_put_into_an_empty_store(store):
    states(store)
    copy = store.folder / "night.copy"
    told = json.loads(store.ok("backup", "--copy", str(copy), "--json"))
    assert told["records"] == 5 and told["unreadable"] == 0
    assert copy.stat().st_mode & 0o777 == 0o600
    assert counts(store.ok("verify", str(copy)))["completed"] == "2"
    target = other(store)
    made = json.loads(target.ok("restore", "--copy", str(copy), "--gap", "hold",
                                "--longest", "7d", "--json", *WHY))
    assert made["records"] == 5 and made["incarnation"] == 1
    assert made["gap_from"] == told["begun"]
    assert target.claim(A)[0] == REPLAY
    assert target.claim(ZERO)[0] == REPLAY
    shown = target.show(C)
    assert shown["state"] == "indeterminate" and shown["reason"] == "gap"
    assert target.show(LAST)["state"] == "indeterminate"
    # What happened after the copy is not known, so nothing new runs.
    assert target.claim("12" * 32)[0] == UNKNOWN
    line = json.loads((store.folder / "audit.jsonl").read_text()
                      .splitlines()[-1])
    assert line["action"] == "restore" and line["why"] == "the disk died"


def test_the_operator_must_say_what_absent_keys_are(store):
    states(store)
    copy = str(store.folder / "copy")
    store.ok("backup", "--copy", copy)
    target = other(store)
    target.bad(2, "--gap hold or --gap accept", "restore", "--copy", copy, *WHY)
    target.bad(2, "--gap is hold or accept", "restore", "--copy", copy, "--gap",
               "maybe", *WHY)
    target.bad(2, "--why", "restore", "--copy", copy, "--gap", "hold")
    target.bad(2, "--copy FILE, or --adopt", "restore", "--gap", "hold", *WHY)
    target.bad(2, "--copy FILE, or --adopt", "restore", "--copy", copy,
               "--adopt", "--gap", "hold", *WHY)
    store.bad(1, "not empty", "restore", "--copy", copy, "--gap", "hold", *WHY)
    store.bad(3, "is there already", "backup", "--copy", copy)
    store.bad(2, "--copy FILE", "backup")


def test_a_copy_that_was_cut_is_refused_before_anything_is_made(store):
    states(store)
    copy = store.folder / "copy"
    store.ok("backup", "--copy", str(copy))
    copy.write_bytes(copy.read_bytes()[:-3])
    target = other(store)
    target.bad(3, "copy: ", "restore", "--copy", str(copy), "--gap", "hold",
               *WHY)
    assert not (store.folder / "restored").exists()
    store.bad(3, "copy: ", "verify", str(copy))


def test_stats_quick_knows_what_waits_without_a_walk(store):
    states(store)
    told = counts(store.ok("stats", "--quick"))
    assert (told["claimed"], told["dispatched"], told["indeterminate"]) == (
        "1", "1", "1")
    assert told["incarnation"] == "0" and told["gap"] == "none"
    said = json.loads(store.ok("stats", "--quick", "--json"))
    assert said["indeterminate"] == 1 and len(said["store"]) == 32
    assert said["oldest"] == store.show(LAST)["ended"]
    store.bad(2, "--quick", "stats", "--quick", "--prometheus")


def work(store, names):
    """What a gateway does for one request each: how often it was executed."""
    done = 0
    for name in names:
        answer = store.claim(name)[0]
        if answer == OWNER:
            done += 1
    return done


@pytest.mark.parametrize("gap", ["hold", "accept"])
def test_copy_work_restore_repeat_everything(store, gap):
    """Executions twice: none for hold; for accept as many as were done after
    the copy."""
    names = ["%064x" % i for i in range(1, 31)]
    for name in names[:20]:
        store.seed("done", name, "success", "first")
    copy = str(store.folder / "copy")
    store.ok("backup", "--copy", copy)
    for name in names[20:]:
        store.seed("done", name, "success", "after the copy")
    target = other(store, scheme="journal" if "sqlite" in store.url
                   else "sqlite")
    out = target.once("restore", "--copy", copy, "--gap", gap, *WHY)
    assert out.returncode == 0, out.stderr
    if gap == "accept":
        assert b"are executed twice" in out.stderr
    assert work(target, names) == (0 if gap == "hold" else 10)
    check = target.once("check", "--json")
    told = json.loads(check.stdout)
    assert told["durable"] is (gap == "hold")
    # A probe fails while nothing new is executed, and says why.
    assert check.returncode == (3 if gap == "hold" else 0), check
    assert (b"a gap is held open until 20" in check.stderr) == (gap == "hold")
    assert b"what else writes to it" not in check.stderr


def test_a_copy_of_a_store_in_use_has_no_half_record(store):
    """Records are added and completed while it is copied."""
    child = subprocess.Popen(
        ["sh", "-c", 'i=0; while :; do i=$((i+1)); "$0" "$1" done '
         '$(printf %064x $i) success body-$i >/dev/null; done',
         os.environ.get("ONCE_CLI_SEED",
                        str(pathlib.Path(__file__).resolve().parents[2] /
                            "build/test/cli_seed")), store.url],
        start_new_session=True)
    try:
        seen = []
        for i in range(5):
            path = str(store.folder / ("copy%d" % i))
            while not seen and store.once("ls").returncode != 0:
                time.sleep(0.05)
            seen.append(json.loads(store.ok("backup", "--copy", path, "--json"))
                        ["records"])
            store.ok("verify", path)
    finally:
        os.killpg(child.pid, signal.SIGKILL)
        child.wait()
    assert seen == sorted(seen) and seen[-1] > 0
    target = other(store)
    target.ok("restore", "--copy", path, "--gap", "hold", *WHY)
    assert len(target.ok("ls", "--all").splitlines()) == seen[-1]


def test_a_postgres_that_was_put_back_is_adopted(server, tmp_path):  # noqa: F811
    """pg_dump, work, pg_restore of the old dump: a gap by hand."""
    if server.kind == "mysql":
        pytest.skip("pg_dump is PostgreSQL's")
    if server.kind == "redis":
        server.ok("init")
        server.bad(3, "tools of its own", "backup", "--copy",
                   str(tmp_path / "copy"))
        return
    server.ok("init")
    server.seed("done", A, "success", "first")
    dump = tmp_path / "dump"
    pg = server.url.replace("postgres://", "postgresql://")
    subprocess.run(["pg_dump", "-Fc", "-f", str(dump), pg], check=True,
                   timeout=60)
    server.seed("done", B, "success", "after the dump")
    subprocess.run(["pg_restore", "--clean", "--if-exists", "-d", pg,
                    str(dump)], check=True, timeout=60)
    assert server.once("show", "--name", B).returncode != 0
    made = json.loads(server.ok("restore", "--adopt", "--gap", "hold", "--json",
                                *WHY))
    assert made["incarnation"] == 1
    assert server.claim(A)[0] == REPLAY
    assert server.claim(B)[0] == UNKNOWN


# ---- Numbers that no store writes -------------------------------------------


def crc32c(crc, data):
    crc ^= 0xffffffff
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = (crc >> 1) ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xffffffff


class Forged:
    """A copy with one record, changed, with right sums."""
    FENCE, ATTEMPT, LEASE, KEEP, GRANTED = ((8, 8), (4, 4), (16, 8), (24, 8),
                                            (32, 8))
    CREATED, ENDED = (128, 8), (136, 8)
    INCARNATION, BEGUN, AHEAD = (12, 4), (32, 8), (44, 8)
    END_FENCE, LONGEST, END_AT = (12, 8), (20, 8), (28, 8)

    def __init__(self, copy):
        size = int.from_bytes(copy[52:56], "little")
        self.head = bytearray(copy[:52])
        self.name = copy[56:88]
        self.record = bytearray(copy[88:88 + size])
        self.end = bytearray(copy[88 + size:-32])

    def text(self, changes):
        for part, (at, size), value in changes:
            part[at:at + size] = value.to_bytes(size, "little")
        summed = self.record[:-4]
        self.record[-4:] = crc32c(crc32c(0, self.name), summed).to_bytes(4, "little")
        whole = b"".join((self.head, len(self.record).to_bytes(4, "little"),
                          self.name, self.record, self.end))
        return whole + hashlib.sha256(whole).digest()


@pytest.mark.parametrize("part, field, value", [
    ("record", "FENCE", 2**64 - 1), ("record", "FENCE", 2**63 - 1),
    ("record", "FENCE", 2**48), ("record", "ATTEMPT", 2**32 - 1),
    ("record", "ATTEMPT", 2**31), ("record", "KEEP", 2**64 - 1),
    ("record", "GRANTED", 2**63), ("record", "CREATED", 2**64 - 1),
    ("record", "ENDED", 2**64 - 1), ("head", "INCARNATION", 2**32 - 1),
    ("head", "INCARNATION", 32768), ("head", "BEGUN", 2**64 - 1),
    ("head", "AHEAD", 2**64 - 1), ("end", "END_FENCE", 2**64 - 1),
    ("end", "LONGEST", 2**64 - 1), ("end", "END_AT", 2**64 - 1)])
def test_numbers_that_no_store_writes_are_damage(store, part, field, value):
    """A fence of 2^64-1 passed, and each claim of a new key then ended its process;
    a longest retention of that size ended a gap at once."""
    store.ok("init")
    store.ok("run", "--key", "k", "--", "true")
    path = store.folder / "copy"
    store.ok("backup", "--copy", str(path))
    forged = Forged(path.read_bytes())
    assert forged.text([]) == path.read_bytes()
    path.write_bytes(forged.text([(getattr(forged, part), getattr(forged, field),
                                   value)]))
    assert store.once("verify", str(path)).returncode == 3
    for scheme in "sqlite", "journal":
        target = other(store, "of-" + scheme, scheme)
        done = target.once("restore", "--copy", str(path), "--gap", "accept", *WHY)
        assert done.returncode == 3, done
        assert b" copy: " in done.stderr or b" record: " in done.stderr, done
        # Whatever is there now grants nothing, and nothing is aborted.
        assert target.once("run", "--key", "another", "--", "true").returncode > 64


def test_the_largest_numbers_that_are_taken_leave_a_store_that_works(store):
    store.ok("init")
    store.ok("run", "--key", "k", "--", "true")
    path = store.folder / "copy"
    store.ok("backup", "--copy", str(path))
    forged = Forged(path.read_bytes())
    path.write_bytes(forged.text([
        (forged.head, forged.INCARNATION, 32766),
        (forged.record, forged.FENCE, 2**63 - 2**48 - 1),
        (forged.record, forged.ATTEMPT, 2**30),
        (forged.record, forged.KEEP, 8640000000000000),
        (forged.end, forged.END_FENCE, 2**63 - 2**48 - 1),
        (forged.end, forged.LONGEST, 8640000000000000)]))
    assert store.once("verify", str(path)).returncode == 0
    for gap, status in ("accept", 0), ("hold", 75):
        target = other(store, gap)
        target.ok("restore", "--copy", str(path), "--gap", gap, *WHY)
        done = target.once("run", "--key", "another", "--", "true")
        assert done.returncode == status, done
        assert target.once("run", "--key", "k", "--", "true").returncode == 0
