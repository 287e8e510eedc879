# SPDX-License-Identifier: Apache-2.0
"""test_operate.py - the program `once` where an operator looks after a store:
init, check, stats, verify, forget, purge, bench, dump, and what ls and show
can tell of groups, ages and keys.

On real stores, sqlite and journal. Nothing is timed: where time has to pass the
clock is moved (test/lib/clockshim.c), or a state is polled for.
"""
import datetime
import hashlib
import json
import os
import re
import signal
import sqlite3
import struct
import subprocess
import time

import pytest

from machine import preloaded
from marks import MARK
from once_cli import (A, B, BODY, C, LAST, ONCE, OWNER, REPLAY, ROOT, TAKEOVER,
                      ZERO, Store, on_terminal, states, store)

assert store  # a fixture

HOSTILE = b"\x1b[2J\t\n \xff\"\\"


@pytest.fixture(params=["sqlite", "journal"])
def either(request, tmp_path):
    """A new store of each kind, made by `once init`."""
    it = Store(tmp_path, request.param)
    done = it.once("init")
    if done.returncode == 2 and b"unknown scheme" in done.stderr:
        pytest.skip(f"{request.param} is not built in")
    assert done.returncode == 0, done.stderr
    return it


@pytest.fixture(scope="session")
def shim(tmp_path_factory):
    path = tmp_path_factory.mktemp("shim") / "clockshim.so"
    subprocess.run(["cc", "-D_GNU_SOURCE", "-shared",
                    "-fPIC", "-o", path, ROOT / "test/lib/clockshim.c",
                    "-ldl"], check=True)
    return path


class Clock:
    """Moves the clocks of what runs in its environment."""

    def __init__(self, shim, folder):
        self.path = folder / "clock"
        self.ahead(0)
        self.env = dict(preloaded(shim), ONCE_CLOCKSHIM=str(self.path))

    def ahead(self, seconds, passed=0):
        """Of so many seconds, `passed` have been seen to pass."""
        with open(self.path, "r+b" if self.path.exists() else "w+b") as f:
            f.write(struct.pack("=qq", seconds * 1000, passed * 1000))

    def passes(self, seconds):
        self.ahead(seconds, seconds)


@pytest.fixture
def clock(shim, tmp_path):
    return Clock(shim, tmp_path)


def rows(text):
    return [line.split("\t") for line in text.splitlines()]


def pairs(text):
    return dict(row for row in rows(text) if len(row) == 2)


def names(store, *words):
    return [r[0] for r in rows(store.ok("ls", "--all", *words))]


def until(what):
    """Polls; a minute is for ever."""
    deadline = time.time() + 60
    while True:
        found = what()
        if found:
            return found
        assert time.time() < deadline
        time.sleep(0.02)


def start(store, *words, env=None, **more):
    full = dict(os.environ, ONCE_STORE=store.url,
                ONCE_AUDIT=str(store.folder / "audit.jsonl"))
    full.update(env or {})
    return subprocess.Popen([ONCE, *words], env=full, stdin=subprocess.DEVNULL,
                            stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                            **more)


def faulty(store, rule):
    return {"ONCE_STORE": f"faulty:{rule}@{store.url}"}


# ---- init and dump --------------------------------------------------------


def test_init_creates_a_store_that_the_others_open(either):
    said = pairs(either.ok("init"))
    assert said == {"store": "ready", "durable": "yes", "shared": "yes"}
    assert either.path.exists()
    assert either.ok("ls") == ""


def test_init_of_a_store_with_records_changes_nothing(either):
    either.seed("lost", A, "0")
    before = either.ok("ls", "--json")
    assert json.loads(either.ok("init", "--json")) == {
        "ready": True, "durable": True, "caveat": None, "shared": True}
    assert either.ok("ls", "--json") == before


def test_a_new_store_is_for_its_owner_only(either):
    for path in [either.path, *either.path.glob("*")]:
        assert path.stat().st_mode & 0o077 == 0, path


def test_init_print_without_a_schema_says_so_and_creates_nothing(store):
    store.bad(1, "no schema", "init", "--print")
    assert os.listdir(store.folder) == []


def test_init_refuses_what_would_be_gone_at_once(store):
    store.bad(2, "one process", "init", "--store", "memory:")


def test_init_tells_which_path_it_could_not_make(store):
    store.bad(3, "/dev/null", "init", "--store", "sqlite:/dev/null/x")


def test_dump_is_a_line_for_each_thing_or_says_where_to_look(either):
    either.seed("done", A, "success", "the secret bytes")
    done = either.once("dump")
    if done.returncode == 1:
        assert b"no dump" in done.stderr and b"once ls" in done.stderr
        return
    assert done.returncode == 0
    assert A in done.stdout.decode() and MARK.encode() not in done.stdout


def test_no_command_but_init_creates_a_store(store):
    store.bad(1, "no dump", "dump")
    store.bad(3, "nothing was created", "verify")
    store.bad(3, "nothing was created", "purge")
    store.bad(3, "nothing was created", "stats")
    store.bad(3, "nothing was created", "forget", A)
    assert os.listdir(store.folder) == []


def test_a_missing_journal_is_not_created_by_looking(tmp_path):
    store = Store(tmp_path, "journal")
    if store.once("ls").returncode == 2:
        pytest.skip("journal is not built in")
    store.bad(3, "nothing was created", "ls")
    for words in (["verify"], ["dump"], ["check"], ["purge"]):
        store.bad(3, "store.db", *words)
    assert os.listdir(tmp_path) == []


# ---- the store of once run -------------------------------------------------


def test_without_a_store_it_is_that_of_once_run_and_says_so(store):
    """state.c makes it, store.c finds it: they must mean the same file."""
    env = {"ONCE_STORE": ""}
    store.bad(2, "which store", "ls", env=env)
    assert not (store.folder / "state").exists()
    store.bad(69, "once init", "run", "--key", "k", "--", "true", env=env)
    assert b"no store was named" in store.once("init", env=env).stderr
    store.ok("run", "--group", "jobs", "--key", MARK + "key", "--",
             "echo", "done", env=env)
    done = store.once("show", "--group", "jobs", "--key", MARK + "key",
                      env=env)
    assert done.returncode == 0
    said = pairs(done.stdout.decode())
    assert said["state"] == "completed" and said["group"] == "jobs"
    assert said["code"] == "0"
    assert b"no store was named" in done.stderr
    assert b"state/once/store.db" in done.stderr
    for words in (["check"], ["verify"], ["purge"], ["ls"], ["stats"]):
        done = store.once(*words, env=env)
        assert done.returncode == 0, done
        assert done.stderr.count(b"no store was named") == 1
    assert MARK.encode() not in done.stdout + done.stderr


# ---- check ----------------------------------------------------------------

STEPS = ["open", "claim", "complete", "replay", "mismatch", "forget"]


def test_canary_does_all_steps_and_leaves_nothing(either):
    either.seed("lost", A, "0")
    before = either.ok("ls")
    said = rows(either.ok("check"))
    assert [r[0] for r in said] == ["durable", *STEPS, "canary"]
    assert said[0][1] == "yes" and said[-1][1] == "well"
    assert either.ok("ls") == before


def test_canary_in_json(either):
    said = json.loads(either.ok("check", "--json"))
    assert said["ok"] is True and said["durable"] is True
    assert [s["step"] for s in said["steps"]] == STEPS
    assert all(s["ms"] >= 0 for s in said["steps"])


def test_canary_of_a_missing_store_says_so_in_json_too(store):
    done = store.once("check", "--json")
    assert done.returncode == 3
    said = json.loads(done.stdout)
    assert said["ok"] is False and said["steps"] == []
    assert not store.path.exists()


@pytest.mark.parametrize("rule", ["fail=claim:1-*", "lose=claim:1-*",
                                  "fail=complete:1-*", "lose=complete:1-*",
                                  "fail=forget:1-*"])
def test_canary_of_a_store_that_does_not_answer_is_unknown(either, rule):
    done = either.once("check", "--timeout", "1s", "--json",
                       env=faulty(either, rule))
    assert done.returncode == 4
    assert json.loads(done.stdout)["ok"] is False
    # Whatever it left is freed or forgotten, and waits for nobody.
    assert {r[1] for r in rows(either.ok("ls"))} <= {"absent", "completed"}
    either.ok("purge")
    assert either.ok("ls") == ""


def test_canary_goes_on_when_an_answer_was_lost(either):
    for rule in ("lose=claim:1", "lose=complete:1", "lose=forget:1"):
        said = either.ok("check", env=faulty(either, rule))
        assert "canary\twell" in said
        assert either.ok("ls") == ""


def test_killed_canary_leaves_nothing_indeterminate(either):
    child = start(either, "check", env=faulty(either, "delay_ms=3000"))
    left = until(lambda: rows(either.ok("ls", "--group", "once-check")))
    child.kill()
    child.communicate(timeout=60)
    assert [r[1] for r in left] == ["claimed"]
    assert {r[1] for r in rows(either.ok("ls"))} <= {"claimed", "completed"}


def test_canary_refuses_a_wrong_answer(store):
    """A store that has lost the record between claim and repeat: its file is
    put back to what it was before, under the running canary's feet."""
    store.ok("init")
    child = start(store, "check", env=faulty(store, "delay_ms=1500"))
    until(lambda: store.ok("ls", "--group", "once-check", "--state",
                           "completed"))
    with sqlite3.connect(store.path, isolation_level=None) as db:
        db.execute("PRAGMA busy_timeout=30000")
        for table, in db.execute("SELECT name FROM sqlite_master WHERE "
                                 "type='table' AND name IN ('claim','result')"
                                 ).fetchall():
            db.execute(f"DELETE FROM {table}")
    out, err = child.communicate(timeout=60)
    assert child.returncode == 3, (out, err)
    assert b"replay" in err and b"Do not use it" in err
    assert b"canary\twell" not in out


# ---- ls: groups and ages --------------------------------------------------


def test_ls_of_one_group(either):
    either.seed("lost", A, "0", group="orders")
    either.seed("lost", B, "0", group="mails")
    either.seed("done", C, "success", "x", group="orders")
    either.seed("done", LAST, "success", "x")
    assert names(either, "--group", "orders") == [A, C]
    assert names(either, "--group", "order") == []
    assert names(either, "--group", "orders", "--state",
                 "indeterminate") == [A]
    assert [r[9] for r in rows(either.ok("ls"))] == ["orders", "mails",
                                                     "orders", "-"]
    found = [json.loads(x)["group"] for x in
             either.ok("ls", "--json").splitlines()]
    assert found == ["orders", "mails", "orders", None]
    assert either.show(A)["group"] == "orders"
    assert "group\torders\n" in either.ok("show", A)


def test_a_group_of_the_longest_length(either):
    either.seed("lost", A, "0", group="g" * 32)
    assert names(either, "--group", "g" * 32) == [A]
    assert names(either, "--group", "g" * 31) == []
    assert either.show(A)["group"] == "g" * 32


def test_a_group_cannot_command_a_terminal_or_break_a_line(either):
    group = HOSTILE.decode(errors="surrogateescape")
    either.seed("lost", A, "0", group=group)
    escaped = '\\x1b[2J\\x09\\x0a\\x20\\xff"\\'
    assert rows(either.ok("ls"))[0][9] == escaped
    assert either.show(A)["group"] == escaped
    assert rows(either.ok("stats"))[0][0] == escaped
    # As it is and as it is shown.
    assert names(either, "--group", group) == [A]
    assert names(either, "--group", escaped) == [A]
    assert names(either, "--group", escaped[:-1]) == []
    assert len(rows(either.ok("stats", "--group", escaped))) == 2
    for words in (["ls"], ["show", A], ["stats"], ["stats", "--prometheus"]):
        text = either.once(*words).stdout
        assert b"\x1b" not in text and b"\xff" not in text


def test_ls_by_age(either, clock):
    clock.ahead(-7200)
    subprocess_env = dict(os.environ)
    os.environ.update(clock.env)
    try:
        either.seed("lost", A, "0")
    finally:
        os.environ.clear()
        os.environ.update(subprocess_env)
    either.seed("lost", B, "0")
    assert names(either, "--older", "1h") == [A]
    assert names(either, "--newer", "1h") == [B]
    assert names(either, "--newer", "3h") == [A, B]
    assert names(either, "--older", "3h") == []
    assert names(either, "--older", "1h", "--newer", "90m") == []
    assert names(either, "--older", "1h", "--newer", "3h") == [A]


def test_ls_all_goes_over_the_default_maximum(store):
    store.seed("many", "1100")
    assert len(store.ok("ls").splitlines()) == 1000
    assert len(store.ok("ls", "--all").splitlines()) == 1100
    assert b"stopped" not in store.once("ls", "--all").stderr


# ---- show, resolve and forget by group and key ------------------------------


def name_of(group, key):
    """SHA-256 over a tag, the group and the key, each with its length: written
    down a second time, so that stored names never change by accident."""
    h = hashlib.sha256()
    for part in (b"once call name 1", group.encode(), key):
        h.update(struct.pack("<Q", len(part)) + part)
    return h.hexdigest()


def test_a_record_is_found_by_group_and_key(store):
    name = name_of("orders", MARK.encode() + b" 12")
    fence = store.seed("lost", name, "0")
    for words in (["--key", MARK + " 12"],
                  ["--key-file", store.file("k", MARK.encode() + b" 12")],
                  ["--key-file", store.file("l", MARK.encode() + b" 12\n")]):
        one = json.loads(store.ok("show", "--group", "orders", *words,
                                  "--json"))
        assert one["name"] == name
    one = json.loads(store.ok("show", "--group", "orders", "--key-file", "-",
                              "--json", stdin=MARK.encode() + b" 12\n"))
    assert one["name"] == name
    store.ok("resolve", "--group", "orders", "--key", MARK + " 12", "--fence",
             fence, "--applied", "--why", "asked")
    assert store.show(name)["state"] == "completed"


def test_group_default_and_keys_of_any_bytes(store):
    for i, key in enumerate((b"k", b"\xff\x00\n", b"two\n\n", b"x" * 255)):
        store.seed("lost", name_of("default", key), "0")
        path = store.file(f"key{i}", key + b"\n")
        assert store.ok("show", "--key-file", path, "--json")


def test_a_wrong_key_or_group_finds_nothing_and_repeats_neither(store):
    store.seed("lost", name_of("orders", MARK.encode() + b"-12"), "0")
    for words in (["--group", "orders", "--key", MARK + "-13"],
                  ["--group", "mails", "--key", MARK + "-12"],
                  ["--key", MARK + "-12"]):
        err = store.bad(1, "no such record", "show", *words)
        assert MARK not in err


def test_a_key_file_that_does_not_do_is_named_without_its_bytes(store):
    store.seed("many", "1")
    for data, text in ((b"", "1 to 255"), (b"\n", "1 to 255"),
                       (MARK.encode() * 50, "256 bytes")):
        path = store.file("key", data)
        err = store.bad(2, text, "show", "--key-file", path)
        assert MARK not in err
    store.bad(3, "none", "show", "--key-file", str(store.folder / "none"))


def test_show_of_a_call_tells_code_and_type(store):
    """Encoded as src/calls/call/result.c says; `once run` records such results."""
    fence = store.seed("lost", A, "0")
    data = (b"OCR\x01" + struct.pack("<iHHI", -3, 10, 0, 5) + b"text/plain"
            + b"bytes")
    store.ok("resolve", A, "--fence", fence, "--failure",
             store.file("r", data), "--raw", "--why", "w")
    said = pairs(store.ok("show", A))
    assert said["code"] == "-3" and said["type"] == "text/plain"
    assert said["result"] == "5"
    one = store.show(A)
    assert (one["code"], one["type"], one["body_bytes"]) == (-3, "text/plain",
                                                             5)
    assert store.ok("show", A, "--body") == "bytes"


def test_resolve_compares_the_attempt_as_well(store):
    fence = store.seed("lost", A, "0")
    words = ["resolve", A, "--fence", fence, "--applied", "--why", "w"]
    before = store.show(A)
    store.bad(1, "the attempt is 1, not 2", *words, "--attempt", "2")
    assert store.show(A) == before
    store.ok(*words, "--attempt", "1")
    assert store.show(A)["state"] == "completed"


# ---- forget ---------------------------------------------------------------

WHY = ["--why", "the supplier is gone"]


def test_forget_of_what_was_kept_long_enough(either):
    either.seed("done", A, "success", "x", keep_ms=0)
    either.seed("done", B, "success", "x")
    assert either.ok("forget", A) == f"{A}\tforgotten\n"
    assert names(either) == [B]
    assert either.claim(A)[0] == OWNER  # that is what it means
    either.bad(1, "no such record", "forget", "--name", C)


def test_forget_before_its_time_is_refused_whatever_is_said(either):
    either.seed("done", A, "success", "x")
    before = either.ok("ls", "--json")
    until_ms = either.show(A)["keep_until"]
    for more in ([], ["--force", *WHY], ["--force", *WHY, "--keep", "1s"]):
        err = either.bad(1, "kept until", "forget", A, *more)
        assert until_ms in err
    assert either.ok("ls", "--json") == before
    assert either.claim(A)[0] == REPLAY


def test_a_damaged_time_of_a_journal_is_removed_by_hand(tmp_path):
    it = Store(tmp_path, "journal")
    it.ok("init")
    it.ok("clock")
    it.seed("done", A, "success", "x")
    (it.path / "clock").write_bytes(b"x" * 1024)
    it.bad(3, "store.db/clock", "clock")
    it.bad(3, "store.db/clock", "clock", "--accept")
    it.ok("show", "--name", A)
    (it.path / "clock").unlink()
    assert pairs(it.ok("clock"))["behind_ms"] == "0"


def test_forget_when_the_time_is_over(either, clock):
    either.seed("done", A, "success", "x", keep_ms=3600000)
    either.bad(1, "kept until", "forget", A, env=clock.env)
    clock.ahead(3601)
    either.bad(1, "once clock", "forget", A, env=clock.env)
    clock.passes(3610)
    either.ok("forget", A, env=clock.env)
    assert names(either) == []


def test_check_is_well_when_the_clock_is_ahead(either, clock):
    """As after each start of the host."""
    either.ok("check", env=clock.env)
    assert names(either) == []
    clock.ahead(30)
    done = either.once("check", env=clock.env)
    assert (done.returncode, pairs(done.stdout.decode())["canary"]) == (
        0, "well"), done
    assert b"stays for a while" in done.stderr and b"once clock" in done.stderr
    assert len(names(either)) == 1
    clock.passes(30)
    assert pairs(either.ok("purge", env=clock.env)) == {"forgotten": "1"}


def test_forget_of_a_live_record_is_refused_without_force(either):
    either.seed("lost", A, "0", keep_ms=0)
    err = either.bad(1, "once resolve", "forget", A)
    assert "--force" in err
    for name, how in ((B, "claimed"), (C, "dispatched")):
        either.seed(how, name, "3600000", "0", keep_ms=0)
        either.bad(1, "owner may still answer", "forget", name)
    assert [r[1] for r in rows(either.ok("ls"))] == [
        "indeterminate", "claimed", "dispatched"]


def test_force_does_not_take_a_claim_from_its_owner(either):
    for name, how in ((B, "claimed"), (C, "dispatched")):
        either.seed(how, name, "3600000", "0", keep_ms=0)
        either.bad(1, "owner may still answer", "forget", name, "--force",
                   *WHY)
        assert either.show(name)["state"] == how


def test_force_puts_to_rest_and_never_lets_it_execute(either):
    """I5: what may have been done does not become absent."""
    either.seed("lost", A, TAKEOVER, keep_ms=0)
    said = rows(either.ok("forget", A, "--force", *WHY))
    assert said[0][:3] == [A, "completed", "success"]
    assert either.claim(A, TAKEOVER)[0] == REPLAY
    assert "no body" in either.claim(A, TAKEOVER)[2]
    one = either.show(A)
    assert one["resolved"] is True
    assert one["note"].endswith(": applied by force: the supplier is "
                                "gone")
    assert f"uid {os.getuid()}" in one["note"]
    either.bad(1, "kept until", "forget", A)


def test_force_of_a_lost_owner_that_nobody_reaped(either):
    either.seed("dispatched", A, "10", "0")
    done = until(lambda: [d for d in [either.once("forget", A, "--force",
                                                  *WHY)]
                          if d.returncode == 0])[0]
    assert b"completed\tsuccess" in done.stdout
    assert either.claim(A)[0] == REPLAY


def test_force_of_a_claim_of_which_nothing_was_sent_frees_it(either):
    either.seed("claimed", A, "10", "0")
    until(lambda: either.once("forget", A, "--force", *WHY).returncode == 0)
    one = either.show(A)
    assert one["state"] == "absent" and one["resolved"] is False
    assert either.claim(A)[0] == OWNER


def test_what_was_put_to_rest_is_forgotten_after_keep(either, clock):
    either.seed("lost", A, "0")
    either.ok("forget", A, "--force", *WHY, "--keep", "2h", env=clock.env)
    assert pairs(either.ok("purge", env=clock.env)) == {"forgotten": "0"}
    clock.passes(7100)
    assert pairs(either.ok("purge", env=clock.env)) == {"forgotten": "0"}
    clock.passes(7300)
    assert pairs(either.ok("purge", env=clock.env)) == {"forgotten": "1"}
    assert names(either) == []


def test_forget_compares_the_fence(either):
    fence = int(either.seed("done", A, "success", "x", keep_ms=0))
    either.bad(1, "refused: the fence is", "forget", A, "--fence",
               str(fence + 1))
    assert names(either) == [A]
    either.ok("forget", A, "--fence", str(fence), "--json")
    assert names(either) == []


def test_forget_usage(store):
    env = {"ONCE_STORE": "sqlite:/dev/null/x"}
    store.bad(2, "--why TEXT is needed", "forget", A, "--force", env=env)
    store.bad(2, "go with --force", "forget", A, *WHY, env=env)
    store.bad(2, "go with --force", "forget", A, "--keep", "1s", env=env)
    store.bad(2, "which record", "forget", env=env)


@pytest.mark.parametrize("rule", ["lose=forget:1", "fail=forget:1"])
def test_forget_whose_answer_is_lost_is_repeated(either, rule):
    either.seed("done", A, "success", "x", keep_ms=0)
    out = either.ok("forget", A, "--json", env=faulty(either, rule))
    assert json.loads(out) == {"name": A, "forgotten": True}
    assert names(either) == []


def test_forget_that_is_never_answered_is_unknown(store):
    store.seed("done", A, "success", "x", keep_ms=0)
    store.bad(4, "Look again", "forget", A,
              env=faulty(store, "fail=forget:1-*"))
    assert names(store) == [A]


# ---- purge ----------------------------------------------------------------


def test_purge_takes_what_is_over_and_nothing_else(either):
    either.seed("many", "700", keep_ms=0)
    either.seed("done", A, "success", "x")
    either.seed("claimed", B, "3600000", "0", keep_ms=0)
    either.seed("dispatched", C, "3600000", "0", keep_ms=0)
    either.seed("lost", LAST, "0", keep_ms=0)
    assert len(names(either)) == 704
    assert pairs(either.ok("purge")) == {"forgotten": "700"}
    assert names(either) == [A, B, C, LAST]
    assert json.loads(either.ok("purge", "--json")) == {"forgotten": 0}


def test_purge_stops_at_its_maximum(either):
    either.seed("many", "300", keep_ms=0)
    assert pairs(either.ok("purge", "--max", "7")) == {"forgotten": "7"}
    assert len(names(either)) == 293
    assert pairs(either.ok("purge", "--max", "260")) == {"forgotten": "260"}
    assert len(names(either)) == 33


def test_purge_counts_once_what_it_had_to_say_twice(either):
    either.seed("many", "300", keep_ms=0)
    out = either.ok("purge", env=faulty(either, "lose=forget:1-2"))
    assert pairs(out) == {"forgotten": "300"}
    assert names(either) == []


def test_purge_of_a_store_that_never_answers_is_unknown(store):
    store.seed("many", "3", keep_ms=0)
    done = store.once("purge", env=faulty(store, "fail=forget:1-*"))
    assert done.returncode == 4 and b"forgotten\t0" in done.stdout
    assert len(names(store)) == 3


def test_purge_does_not_follow_a_clock_that_is_set_while_it_runs(store, clock):
    """A jump ahead would forget what was promised to be kept."""
    store.seed("many", "900", keep_ms=0)
    store.seed("done", LAST, "success", "x", keep_ms=86400000)
    env = faulty(store, "delay_ms=1000")
    env.update(clock.env)
    child = start(store, "purge", env=env)
    until(lambda: len(names(store)) < 901)
    clock.ahead(86400 * 2)
    out, err = child.communicate(timeout=60)
    assert child.returncode == 0 and b"once clock --accept" in err
    assert pairs(out.decode()) == {"forgotten": "900"}
    assert names(store) == [LAST]


# ---- clock ----------------------------------------------------------------


def behind(store, *words, code=0, **more):
    done = store.once("clock", "--json", *words, **more)
    assert done.returncode == code, done
    return json.loads(done.stdout)["behind_ms"] / 1000


def test_a_clock_that_was_set_ahead_forgets_nothing(either, clock):
    env = clock.env
    either.seed("done", A, "success", "x", keep_ms=86400000)
    assert pairs(either.ok("purge", env=env)) == {"forgotten": "0"}
    clock.ahead(25 * 3600)
    done = either.once("purge", env=env)
    assert b"forgotten\t0" in done.stdout and b"once clock" in done.stderr
    assert 89900 < behind(either, code=1, env=env) < 90001
    assert b"--accept" in either.once("clock", env=env).stderr
    # It was right, and this host had slept: somebody says so.
    assert behind(either, "--accept", env=env) < 1
    assert behind(either, env=env) < 1
    assert pairs(either.ok("purge", env=env)) == {"forgotten": "1"}


def test_time_that_passes_between_two_commands_counts(either, clock):
    either.seed("done", A, "success", "x", keep_ms=86400000)
    assert behind(either, env=clock.env) < 1
    clock.passes(86500)
    assert behind(either, env=clock.env) < 1
    assert pairs(either.ok("purge", env=clock.env)) == {"forgotten": "1"}


def test_a_clock_that_was_set_back_keeps_all_longer(either, clock):
    either.seed("done", A, "success", "x", keep_ms=3600000)
    assert behind(either, env=clock.env) < 1
    clock.ahead(-7200)
    assert pairs(either.ok("purge", env=clock.env)) == {"forgotten": "0"}
    assert behind(either, env=clock.env) < 1
    clock.ahead(0)  # and right again: who knows?
    assert behind(either, code=1, env=clock.env) > 7000


def test_purge_does_not_forget_what_was_made_anew_meanwhile(either):
    """Between its scan and its batch the record is forgotten by somebody else
    and its key claimed again: that is another record, with another fence."""
    for name in (A, B):
        either.seed("done", name, "success", "old", keep_ms=0)
    child = start(either, "purge", env=faulty(either, "delay_ms=4000"))
    until(lambda: sleeps(child))
    either.ok("forget", A)
    either.seed("done", A, "success", "new")
    out, err = child.communicate(timeout=60)
    assert child.returncode == 0, err
    assert pairs(out.decode()) == {"forgotten": "1"}
    assert either.ok("show", A, "--body") == "new"


def sleeps(child):
    """Its main thread is in nanosleep(), as the faulty store's delay is."""
    try:
        with open(f"/proc/{child.pid}/syscall", encoding="ascii") as f:
            number = f.read().split()[0]
    except (OSError, IndexError):
        pytest.skip("the kernel does not tell where a process sleeps")
    return number in ("35", "230", "101", "115")  # x86-64, arm64


def test_two_purges_at_once_forget_everything_once(either):
    either.seed("many", "1500", keep_ms=0)
    both = [start(either, "purge") for _ in range(2)]
    out = [p.communicate(timeout=60) for p in both]
    assert [p.returncode for p in both] == [0, 0], out
    assert names(either) == []
    # One that the other had forgotten already may be counted by both.
    assert sum(int(pairs(o.decode())["forgotten"]) for o, _ in out) >= 1500


# ---- stats ----------------------------------------------------------------


def by_group(text):
    return {r[0]: r[1:] for r in rows(text)}


def test_stats_count_by_group_and_state(either):
    either.seed("done", A, "success", BODY, group="orders")
    either.seed("lost", B, "0", group="orders")
    either.seed("claimed", C, "3600000", "0", group="mails")
    either.seed("done", ZERO, "failure", "yy", keep_ms=0)
    said = by_group(either.ok("stats"))
    assert list(said) == ["no group", "mails", "orders", "all groups"]
    assert said["orders"][:8] == ["0", "0", "0", "1", "1", "0", "0", "17"]
    assert said["mails"][:8] == ["0", "1", "0", "0", "0", "0", "0", "0"]
    assert said["no group"][:8] == ["0", "0", "0", "1", "0", "0", "1", "2"]
    assert said["all groups"][:8] == ["0", "1", "0", "2", "1", "0", "1", "19"]
    assert said["orders"][8] == either.show(B)["granted"]
    assert said["mails"][8] == "-"
    assert said["all groups"][9] == either.show(A)["granted"]
    assert list(by_group(either.ok("stats", "--group", "mails"))) == [
        "mails", "all groups"]


def test_stats_in_json(either):
    either.seed("lost", A, "0", group="orders")
    either.seed("done", C, "success", "xyz")
    said = json.loads(either.ok("stats", "--json"))
    assert [g["group"] for g in said["groups"]] == [None, "orders"]
    orders = said["groups"][1]
    assert orders["indeterminate"] == 1 and orders["completed"] == 0
    assert orders["oldest_indeterminate"] == either.show(A)["granted"]
    assert said["all"]["bytes"] == 3 and said["all"]["completed"] == 1
    assert "group" not in said["all"]


METRIC = re.compile(r'once_[a-z_]+\{group="((?:[^"\\\n]|\\["\\n])*)"'
                    r'(?:,state="([a-z]+)")?\} (\d+(?:\.\d+)?)')


def test_stats_for_prometheus(either):
    either.seed("lost", A, "0", group="orders")
    either.seed("done", B, "success", "xyz", group=HOSTILE.decode(
        errors="surrogateescape"))
    text = either.ok("stats", "--prometheus")
    seen = {}
    for line in text.splitlines():
        if line.startswith("#"):
            assert re.fullmatch(r"# (HELP|TYPE) once_[a-z_]+ .+", line)
            continue
        match = METRIC.fullmatch(line)
        assert match, line
        seen[line.split("{")[0], match[1], match[2]] = float(match[3])
    assert seen["once_group_records", "orders", "indeterminate"] == 1
    assert seen["once_group_records", "orders", "completed"] == 0
    granted = either.show(A)["granted"].replace("Z", "+00:00")
    assert seen["once_group_oldest_indeterminate_timestamp_seconds", "orders",
                None] == pytest.approx(datetime.datetime.fromisoformat(
                    granted).timestamp(), abs=0.002)
    hostile = [k for k in seen if k[0] == "once_group_result_bytes"
               and k[1].startswith("\\\\x1b")]
    assert len(hostile) == 1 and seen[hostile[0]] == 3
    out = subprocess.run(["promtool", "check", "metrics"], input=text.encode(),
                         capture_output=True, check=False, timeout=60)
    assert (out.returncode, out.stdout, out.stderr) == (0, b"", b"")
    either.bad(2, "exclude", "stats", "--json", "--prometheus")


def test_stats_count_groups_beyond_the_limit_together(store):
    store.seed("groups", "260")
    said = by_group(store.ok("stats"))
    assert len(said) == 252
    assert said["other groups"][3] == "10"
    assert said["all groups"][3] == "260"
    assert json.loads(store.ok("stats", "--json"))["groups"][-1]["others"]


def test_stats_of_an_empty_store(either):
    assert list(by_group(either.ok("stats"))) == ["all groups"]


def test_stats_on_a_terminal_is_a_table(store):
    states(store)
    lines = on_terminal(store, "stats").splitlines()
    assert lines[0].split()[:3] == ["GROUP", "absent", "claimed"]
    for line in lines[1:]:
        assert len(line) > len(lines[0]) - 10
    assert lines[-1].startswith("all groups")


# ---- verify ---------------------------------------------------------------


def test_verify_counts_by_state(either):
    states(either)
    said = pairs(either.ok("verify"))
    assert said["durable"] == "yes"
    assert said["completed"] == "2" and said["claimed"] == "1"
    assert said["dispatched"] == "1" and said["indeterminate"] == "1"
    assert said["absent"] == "0" and said["corrupt"] == "0"
    assert said["wrong"] in ("-", "0")
    assert said["oldest"] == either.show(LAST)["granted"]
    one = json.loads(either.ok("verify", "--json"))
    assert one["completed"] == 2 and one["oldest"] == said["oldest"]
    assert one["wrong"] in (None, 0)


def test_verify_walks_over_many_pages_and_changes_nothing(either):
    either.seed("many", "2100")
    before = either.ok("ls", "--all")
    assert json.loads(either.ok("verify", "--json"))["completed"] == 2100
    assert either.ok("ls", "--all") == before


def damage(path, marker):
    data = path.read_bytes()
    if marker not in data:
        return 0
    path.write_bytes(data.replace(marker, bytes(b ^ 1 for b in marker)))
    return 1


def test_verify_finds_a_result_that_does_not_check(either):
    """In some stores its head is well, so only who reads it all can tell."""
    either.seed("done", A, "success", "MARKER-MARKER-MARKER")
    either.seed("done", C, "success", "fine")
    if either.path.is_dir():
        assert sum(damage(p, b"MARKER-MARKER-MARKER")
                   for p in either.path.iterdir()) == 1
    else:
        with sqlite3.connect(either.path) as db:
            db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        assert damage(either.path, b"MARKER-MARKER-MARKER")
    done = either.once("verify", "--json")
    assert done.returncode == 3
    assert b"nothing runs twice" in done.stderr
    said = json.loads(done.stdout)
    assert said["corrupt"] > 0 or said["wrong"] > 0
    if said["corrupt"]:
        assert f"corrupt: {A}".encode() in done.stderr
        assert said["completed"] == 1


def test_verify_reads_results_larger_than_a_batch(store):
    big = store.folder / "big"
    for i, name in enumerate((A, B, C, LAST)):
        fence = store.seed("lost", name, "0")
        big.write_bytes(bytes([i]) * (6 << 20))
        store.ok("resolve", "--name", name, "--fence", fence, "--success",
                 str(big), "--raw", "--why", "w")
    assert json.loads(store.ok("verify", "--json"))["completed"] == 4


def test_verify_and_dump_take_a_folder_a_file_or_a_url(either):
    either.seed("lost", A, "0")
    env = {"ONCE_STORE": ""}
    for word in (str(either.path), either.url):
        said = json.loads(either.ok("verify", word, "--json", env=env))
        assert said["indeterminate"] == 1
        if either.path.is_dir():
            assert A in either.ok("dump", word, env=env)
    either.bad(2, "one store at a time", "verify", "a", "b")
    either.bad(3, "nothing was created", "verify",
               str(either.folder / "none.db"), env=env)
    assert not (either.folder / "none.db").exists()


def test_verify_of_a_store_that_does_not_answer(store):
    store.seed("lost", A, "0")
    store.bad(3, "Look again", "verify", env=faulty(store, "fail=show:1-*"))


# ---- terminals ------------------------------------------------------------

COLOR = "\033["


def test_colours_only_on_a_terminal_and_never_with_no_color(store):
    states(store)
    for words in (["ls"], ["show", LAST], ["stats"]):
        seen = on_terminal(store, *words, env={"NO_COLOR": ""})
        assert COLOR in seen, words
        assert COLOR not in on_terminal(store, *words, env={"NO_COLOR": "1"})
        assert COLOR not in on_terminal(store, *words, env={
            "NO_COLOR": "", "TERM": "dumb"})
        assert COLOR not in store.ok(*words, env={"NO_COLOR": ""})


def test_progress_only_on_a_terminal_and_taken_away_at_the_end(store):
    store.seed("many", "1000")
    slow = faulty(store, "delay_ms=700")
    seen = on_terminal(store, "verify", stdout=False, stderr=True,
                       env=slow)
    bars = re.findall(r"\ronce verify: \[[#.]{30}\] +\d+ %  \d+ records", seen)
    assert len(bars) >= 2, seen
    assert seen.endswith("\r\033[K")
    done = store.once("verify", env=slow)
    assert done.returncode == 0 and done.stderr == b""


def test_no_progress_for_what_is_quick(store):
    states(store)
    for words in (["verify"], ["purge"], ["stats"], ["verify"]):
        assert on_terminal(store, *words, stdout=False, stderr=True) == ""


# ---- secrets --------------------------------------------------------------


def test_no_command_prints_token_fingerprint_or_body(store):
    fence = store.seed("lost", A, "0", group="orders")
    store.ok("resolve", A, "--fence", fence, "--success",
             store.file("b", b"the secret body"), "--raw", "--why", "w")
    secrets = [b"secret", b"07" * 32, b"\x07" * 32]
    for words in (["ls"], ["ls", "--json"], ["show", A], ["stats"],
                  ["stats", "--json"], ["verify"], ["check"], ["dump"],
                  ["init"], ["forget", A], ["purge"]):
        done = store.once(*words)
        for secret in secrets:
            assert secret not in done.stdout + done.stderr, words


def test_a_credential_in_a_url_is_repeated_by_no_command(store):
    for url in ("nosuch://me:hunter2@127.0.0.1/db",
                "postgres://me:hunter2@127.0.0.1:1/db",
                "redis://me:hunter2@127.0.0.1:1/0"):
        for words in (["ls"], ["check"], ["verify"], ["init"], ["purge"],
                      ["dump"], ["stats"], ["init", "--print"],
                      ["forget", A], ["show", A]):
            done = store.once("--store", url, *words)
            assert b"hunter2" not in done.stderr + done.stdout, (url, words)
