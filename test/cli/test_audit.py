# SPDX-License-Identifier: Apache-2.0
"""test_audit.py - what operators decide is written down before the store is
asked, and what can be found out about it: resolve --records, once audit, once
name, once trace."""
import hashlib
import json
import os
import pathlib
import pwd
import re
import shutil
import sqlite3
import subprocess
import time

import pytest

from machine import preloaded
from marks import MARK
from once_cli import A, B, C, ISO, LAST, ONCE, ROOT, ZERO, Store, on_terminal
from once_cli import store  # pylint: disable=unused-import

assert store  # a fixture

WHY = ["--why", "ticket 12"]
ME = pwd.getpwuid(os.getuid()).pw_name


def path_of(it):
    return it.folder / "audit.jsonl"


def lines(it):
    path = path_of(it)
    return [json.loads(t) for t in path.read_text().splitlines()] \
        if path.exists() else []


def steps(it):
    """(step, action) of all lines but those of the log itself."""
    return [(line["step"], line["action"]) for line in lines(it)
            if line["step"] != "log"]


def lost(it, n):
    """n records that wait; the lines of ls about them."""
    for i in range(n):
        it.seed("lost", "%064x" % (i + 1), "0")
    return it.ok("ls", "--state", "indeterminate", "--json")


def faulty(it, rule):
    return {"ONCE_STORE": f"faulty:{rule}@{it.url}"}


def is_whole(it, notes=None):
    done = it.once("audit", "verify", "--json")
    found = [json.loads(t) for t in done.stdout.decode().splitlines()]
    assert done.returncode == 0, found
    if notes is not None:
        assert found[-1]["notes"] == notes, found
    return found[-1]


# ---- Two lines a decision ----------------------------------------------------


def test_a_decision_is_two_lines_with_who_and_why(store):
    fence = store.seed("lost", A, "0")
    body = store.file("body", b"the body")
    store.ok("resolve", A, "--fence", fence, "--success", body, "--status",
             "201", *WHY)
    start, intent, done = lines(store)
    assert start["action"] == "log-start" and start["seq"] == 1
    assert start["prev"] == "0" * 64
    assert intent["step"] == "intent" and done["step"] == "done"
    assert done["of"] == intent["seq"] == 2
    for line in intent, done:
        assert line["action"] == "resolve" and line["kind"] == "success"
        assert line["name"] == A and line["fence"] == fence
        assert line["attempt"] == 1 and line["why"] == "ticket 12"
        assert line["user"] == ME and line["uid"] == os.getuid()
        assert line["way"] == "command line"
        assert re.fullmatch(ISO, line["time"])
        assert re.fullmatch(r"[0-9a-f]{64}", line["outcome"])
    # Anybody can count the hashes again, and follow the chain.
    for text, line in zip(path_of(store).read_text().splitlines(),
                          lines(store)):
        head = text[:text.rindex(',"hash":"')]
        assert hashlib.sha256(head.encode()).hexdigest() == line["hash"]
    assert done["prev"] == intent["hash"] and intent["prev"] == start["hash"]
    assert (path_of(store).stat().st_mode & 0o777) == 0o640


def test_every_command_that_decides_writes_it_down(store, tmp_path):
    it = Store(tmp_path / "b")
    it.folder.mkdir()
    it.ok("init")
    fence = it.seed("lost", A, "0")
    it.ok("resolve", A, "--fence", fence, "--applied", *WHY)
    fence = it.seed("lost", B, "1")
    it.ok("resolve", B, "--fence", fence, "--reopen", *WHY)
    it.seed("dispatched", C, "10", "0")
    deadline = time.time() + 30
    while it.once("forget", C, "--force", *WHY).returncode != 0:
        assert time.time() < deadline
    it.seed("done", ZERO, "success", "x", keep_ms=1)
    it.seed("done", LAST, "success", "x", keep_ms=1)
    while it.once("forget", ZERO).returncode != 0:
        assert time.time() < deadline
    it.ok("purge")
    it.ok("clock", "--accept")
    it.seed("done", ZERO, "success", "secret")
    assert it.once("show", ZERO, "--body").stdout != b""
    done = [(step, action) for step, action in steps(it) if step == "done"]
    assert [action for _, action in done] == [
        "init", "resolve", "reopen", "resolve", "forget", "purge", "clock",
        "body"]
    is_whole(it, notes=0)

def test_decisions_about_messages_are_written_down(store, tmp_path):
    at = tmp_path / "shop.db"
    env = {"ONCE_DATABASE": "sqlite:%s" % at}
    store.ok("messages", "init", env=env)
    for n in "ab":
        store.ok("messages", "emit", "--route", "orders", "--id", "id-" + n, stdin=b"{}",
                 env=env)
    db = sqlite3.connect(at)
    db.execute("INSERT INTO once_parked(consumer,id,state,attempts,due_ms,"
               "at_ms,type,headers,body,error,filed) VALUES('c','id-c',3,3,0,"
               "1,'t','',x'','no',0)")
    db.commit()
    said = store.once("messages", "outbox", "drop", "1", "ready", "--attempt", "0", *WHY, env=env)
    assert said.returncode == 0, said
    for words in (["messages", "outbox", "drop", "2", "ready", "--attempt", "7"],
                  ["messages", "saga", "abort", "id-d", "--at-version", "1"]):
        assert store.once(*words, *WHY, env=env).returncode == 1
    store.ok("messages", "parked", "drop", "1", "dead", "--attempt", "3", *WHY, env=env)
    assert store.once("messages", "outbox", "drop", "99", "ready", "--attempt", "0", *WHY,
                      env=env).returncode == 1  # there is no such row
    found = [(x["step"], x["action"], x["name"], x.get("detail"), x["why"])
             for x in lines(store) if x["step"] != "log"]
    name = {n: hashlib.sha256(b"id-" + n.encode()).hexdigest() for n in "abcd"}
    assert found == [(step, action, name[n], row if step != "intent" else None,
                      "ticket 12") for action, n, row, end in (
        ("outbox-drop", "a", "row 1", "done"),
        ("outbox-drop", "b", "row 2", "refused"),
        ("saga-abort", "d", None, "refused"),
        ("parked-drop", "c", "row 1", "done")) for step in ("intent", end)]
    assert b"id-" not in path_of(store).read_bytes()
    is_whole(store, 0)


def test_nothing_is_decided_about_messages_without_the_intent(store, tmp_path):
    env = {"ONCE_DATABASE": "sqlite:%s" % (tmp_path / "shop.db"),
           "ONCE_AUDIT": str(tmp_path)}
    store.ok("messages", "init", env=env)
    store.ok("messages", "emit", "--route", "orders", stdin=b"{}", env=env)
    said = store.once("messages", "outbox", "drop", "1", "ready", "--attempt", "0", *WHY, env=env)
    assert said.returncode == 3 and b"Nothing was decided" in said.stderr
    said = store.once("messages", "saga", "abort", "g", "--at-version", "1", *WHY, env=env)
    assert said.returncode == 3 and b"Nothing was decided" in said.stderr
    assert len(store.ok("messages", "outbox", "ls", env=env).splitlines()) == 1


def test_what_only_looks_writes_nothing(store):
    lost(store, 1)
    for words in (["ls"], ["show", "%064x" % 1], ["stats"], ["verify"],
                  ["clock"], ["purge"], ["audit", "ls", os.devnull],
                  ["trace", "%064x" % 1]):
        store.once(*words)
    assert not path_of(store).exists()


def test_a_refusal_and_an_unknown_answer_are_written_down(store):
    store.seed("done", A, "success", "x")
    store.bad(1, "kept until", "forget", A)
    fence = store.seed("lost", B, "0")
    words = ["resolve", B, "--fence", fence, "--applied", *WHY]
    store.bad(4, "Look again", *words,
              env=faulty(store, "fail=resolve:1-*"))
    store.ok(*words, env=faulty(store, "lose=resolve:1"))
    assert steps(store) == [
        ("intent", "forget"), ("refused", "forget"),
        ("intent", "resolve"), ("unknown", "resolve"),
        ("intent", "resolve"), ("done", "resolve")]
    is_whole(store, notes=0)


# ---- What cannot be written is not done --------------------------------------

def test_nothing_is_decided_that_cannot_be_written_down(store):
    fence = store.seed("lost", A, "0")
    store.seed("done", ZERO, "success", "body", keep_ms=1)
    before = store.ok("ls", "--json")
    time.sleep(0.1)  # what is kept for a millisecond has expired
    none = ["--audit", str(store.folder / "none/audit.jsonl")]
    for words in (["resolve", A, "--fence", fence, "--applied", *WHY],
                  ["forget", ZERO], ["clock", "--accept"],
                  ["show", ZERO, "--body"]):
        err = store.bad(3, "Nothing was decided", *words, *none)
        assert "none" in err and "--audit" in err
    done = store.once("purge", *none)
    assert done.returncode == 3 and b"Nothing was decided" in done.stderr
    assert store.ok("ls", "--json") == before
    new = store.folder / "new.db"
    store.bad(3, "Nothing was decided", "--store", f"sqlite:{new}", "init", *none)
    assert not new.exists()


def test_off_decides_without_a_log(store):
    fence = store.seed("lost", A, "0")
    store.ok("resolve", A, "--fence", fence, "--applied", *WHY, "--audit",
             "off")
    assert lines(store) == []
    assert store.show(A)["state"] == "completed"
    store.bad(2, "off", "audit", "ls", "--audit", "off")


def test_without_a_name_the_log_is_the_users_own(store):
    if os.path.isdir("/var/log/once"):
        pytest.skip("Once is installed here")
    fence = store.seed("lost", A, "0")
    store.ok("resolve", A, "--fence", fence, "--applied", *WHY,
             env={"ONCE_AUDIT": ""})
    own = store.folder / "state/once/audit.jsonl"
    assert len(own.read_text().splitlines()) == 3
    assert "ticket 12" in store.ok("audit", "ls", env={"ONCE_AUDIT": ""})
    fence = store.seed("lost", B, "0")
    store.ok("resolve", B, "--fence", fence, "--applied", *WHY, "--audit",
             "own")
    assert len(own.read_text().splitlines()) == 5 and not lines(store)
    done = store.once("init", env={"ONCE_AUDIT": "", "XDG_STATE_HOME": "",
                                   "HOME": ""})
    assert done.returncode == 3 and b"/var/log/once" in done.stderr


def test_what_is_done_to_the_users_own_store_is_in_his_own_log(store):
    """Also on a host whose log is closed to him."""
    env = {"ONCE_AUDIT": "", "ONCE_STORE": ""}
    store.ok("init", env=env)
    store.ok("run", "--key", "k", "--", "true", env=env)
    name = json.loads(store.ok("ls", "--json", env=env))["name"]
    store.ok("show", name, "--body", env=env)
    own = store.folder / "state/once/audit.jsonl"
    assert [json.loads(t)["action"] for t in own.read_text().splitlines()] == \
        ["log-start", "init", "init", "body", "body"]


def test_no_body_and_no_key_stands_in_the_log(store):
    fence = store.seed("lost", A, "0")
    store.ok("resolve", A, "--fence", fence, "--success", "-", "--status",
             "200", "--header", "X-Mark: " + MARK, *WHY,
             stdin=MARK.encode())
    store.ok("show", A, "--body")
    store.once("show", "--group", "g", "--key", MARK, "--body")
    assert MARK.encode() not in path_of(store).read_bytes()


SHIM = r"""
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
static void tell(int priority, const char *format, va_list args)
{
    FILE *to = fopen(getenv("SYSLOG_TO"), "a");
    fprintf(to, "<%d>Nov 22 14:39:13 vm once[17]: ", priority);
    vfprintf(to, format, args);
    fputc('\n', to);
    fclose(to);
}
void syslog(int priority, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    tell(priority, format, args);
    va_end(args);
}
void __syslog_chk(int priority, int flag, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    tell(priority, format, args);
    va_end(args);
}
"""


TAGGED = "Nov 22 14:39:13 vm once[17]: once audit"

# A line of the log, as those write it that docs/audit.md names.
SHAPES = {
    "rfc 3164": "<85>Nov 22 14:39:13 vm once[17]: %s",
    "file of rsyslog": "Nov 22 14:39:13 vm once: %s",
    "iso file of rsyslog": "2026-11-22T14:39:13.123456+00:00 vm once[17]: %s",
    "console": "Nov 22 14:39:13 vm once-console[17]: %s",
    "journalctl short-precise": "Nov 22 14:39:13.123456 vm once[17]: %s",
    "journalctl short-full": "Sun 2026-11-22 14:39:13 UTC vm once[17]: %s",
    "journalctl short-monotonic": "[  123.456789] vm once[17]: %s",
    "rfc 5424": "<85>1 2026-11-22T14:39:13Z vm once 17 - - %s",
    "rfc 5424 with data": '<85>1 2026-11-22T14:39:13Z vm once 17 x [a b="c \\"] d"] %s',
}
STRANGE = [
    "Nov 22 14:39:13 vm sshd[17]: Invalid user %s from 203.0.113.9 port 4711",
    "Nov 22 14:39:13 vm sshd[17]: %s",
    "Nov 22 14:39:13 vm sshd[17]: once[18]: %s",
    "Nov 22 14:39:13 vm once[17]: for x %s",
    "Nov 22 14:39:13 vm nononce[17]: %s",
    "Nov 22 14:39:13 vm once[a 17]: %s",
    "<85>1 2026-11-22T14:39:13Z vm sshd 17 - - %s",
    '<85>1 2026-11-22T14:39:13Z vm sshd 17 - [a b=" once 17 - - %s"] x',
    '<85>1 2026-11-22T14:39:13Z vm once 17 x [a b="] %s"] x',
    "%s",
    " {} %s",
]


def of_journal(tag, message):
    return json.dumps({"_COMM": tag, "SYSLOG_IDENTIFIER": tag, "MESSAGE": message})


def test_a_line_counts_by_its_tag_and_the_beginning_of_its_message(store):
    """A login by ssh with a made-up name made a good log "written again"."""
    store.ok("init")
    text = path_of(store).read_text().splitlines()[0]
    good = "once audit: %s: %s" % (path_of(store), text)
    bad = 'once audit: {"seq":1,"hash":"%s"}' % ("f" * 64)
    shapes = [shape % good for shape in SHAPES.values()]
    shapes += [of_journal("once", good), text, shapes[0].replace("%s: " % path_of(store), "")]
    for line in shapes:
        kept = store.file("kept", (line + "\n").encode())
        told = store.once("audit", "verify", "--against", kept)
        assert told.returncode == 0 and told.stdout.endswith(b"anchored\t1\n"), line
        kept = store.file("kept", (line.replace(json.loads(text)["hash"], "f" * 64)
                                   + "\n").encode())
        assert store.once("audit", "verify", "--against", kept).returncode == 3, line
    strange = [line % bad for line in STRANGE]
    strange += [of_journal("sshd", bad), of_journal("once", "user " + bad),
                json.dumps({"MESSAGE": bad}), json.dumps({"MESSAGE": [111, 110]})]
    for line in strange:
        kept = store.file("kept", "\n".join([line, shapes[0], line, ""]).encode())
        told = store.once("audit", "verify", "--against", kept)
        assert told.returncode == 0 and told.stdout.endswith(b"anchored\t1\n"), line


def test_syslog_gets_every_line(store, tmp_path):
    (tmp_path / "shim.c").write_text(SHIM)
    shim = tmp_path / "shim.so"
    subprocess.run(["cc", "-shared", "-fPIC", "-o", shim, tmp_path / "shim.c"],
                   check=True)
    to = tmp_path / "syslog"
    env = dict(preloaded(shim), SYSLOG_TO=str(to))
    fence = store.seed("lost", A, "0")
    store.ok("resolve", A, "--fence", fence, "--applied", *WHY, env=env)
    got = to.read_text().splitlines()
    # authpriv.notice
    assert got == [f"<{10 << 3 | 5}>{TAGGED}: {path_of(store)}: {text}"
                   for text in path_of(store).read_text().splitlines()[1:]]
    # That is what the log is held against.
    told = store.ok("audit", "verify", "--against", str(to))
    assert told.endswith("anchored\t3\n")
    whole = path_of(store).read_text()
    first = whole.splitlines(keepends=True)[0]
    for text in "", first:
        path_of(store).write_text(text)
        assert store.once("audit", "verify", "--against", str(to)
                          ).returncode == 3
    assert store.once("audit", "verify").returncode == 0  # it cannot know
    store.ok("clock", "--accept")
    is_whole(store)
    done = store.once("audit", "verify", "--against", "-",
                      stdin=to.read_bytes())
    assert done.returncode == 3 and b"another line" in done.stdout
    path_of(store).write_text(whole)
    fence = store.seed("lost", B, "0")
    to.unlink()
    store.ok("resolve", B, "--fence", fence, "--applied", *WHY, "--audit",
             "off", env=env)
    assert [json.loads(t.partition(TAGGED + ": ")[2])["step"]
            for t in to.read_text().splitlines()] == ["intent", "done"]


# ---- A process that is killed at any step ------------------------------------

def can_trace():
    try:
        return subprocess.run(["strace", "-o", "/dev/null", "true"],
                              capture_output=True, timeout=60,
                              check=False).returncode == 0
    except OSError:
        return False


traced = pytest.mark.skipif(not can_trace() or "ASAN_OPTIONS" in os.environ,
                            reason="strace cannot trace here")


@traced
def test_a_full_disk_decides_nothing(store):
    fence = store.seed("lost", A, "0")
    done = subprocess.run(
        ["strace", "-f", "-qq", "-o", os.devnull, "-P", str(path_of(store)),
         "-e", "inject=write:error=ENOSPC:when=1",
         ONCE, "resolve", A, "--fence", fence, "--applied", *WHY],
        env=dict(os.environ, ONCE_STORE=store.url,
                 ONCE_AUDIT=str(path_of(store))),
        capture_output=True, timeout=60)
    assert done.returncode == 3 and b"Nothing was decided" in done.stderr
    assert store.show(A)["state"] == "indeterminate"
    assert path_of(store).read_bytes() == b""


# strace counts the calls of each thread for itself, so each kind has a turn of
# its own: the log is written with write(), the stores with pwrite().
CALLS = ["write", "pwrite64", "fdatasync", "fsync", "flock", "ftruncate"]


def steps_of(it, name):
    found = []
    for text in path_of(it).read_text().splitlines():
        try:
            line = json.loads(text)
        except ValueError:
            continue  # cut short
        if line.get("name") == name:
            found.append(line["step"])
    return found


def killed(it, name, fence, call, n):
    """Killed before its n-th such call; 1 if it had ended before that."""
    done = subprocess.run(
        ["strace", "-f", "-qq", "-o", os.devnull, "-e", f"trace={call}", "-e",
         f"inject={call}:signal=KILL:when={n}",
         ONCE, "resolve", name, "--fence", fence, "--applied", *WHY],
        env=dict(os.environ, ONCE_STORE=it.url, ONCE_AUDIT=str(path_of(it))),
        capture_output=True, timeout=60)
    return done.returncode == 0


@traced
@pytest.mark.parametrize("scheme", ["sqlite", "journal"])
def test_killed_at_any_step_what_was_decided_has_its_intent(tmp_path, scheme):
    """Every decision that is in a store has its intent line."""
    it = Store(tmp_path, scheme)
    it.ok("init")
    seen = {"completed": 0, "indeterminate": 0}
    for i, call in enumerate(CALLS):
        ended, n = False, 0
        while not ended and n < 100:
            n += 1
            name = "%064x" % (i * 100 + n)
            fence = it.seed("lost", name, "0")
            ended = killed(it, name, fence, call, n)
            state = it.show(name)["state"]
            found = steps_of(it, name)
            if ended:
                assert found == ["intent", "done"], (call, n)
            elif state == "completed":
                assert "intent" in found, (call, n)
                seen[state] += 1
            else:
                assert state == "indeterminate" and "done" not in found
                seen[state] += 1
        assert ended, call
    # Both sides of the decision were met, and the chain goes on over all.
    assert min(seen.values()) > 1, seen
    is_whole(it)


# ---- Many at once ------------------------------------------------------------

def test_a_batch_decides_each_by_its_own_fence(store):
    text = lost(store, 3)
    fence = store.seed("lost", A, "0")
    old = json.dumps({"name": A, "fence": str(int(fence) + 7)})
    store.seed("dispatched", B, "3600000", "0")
    owned = json.dumps({"name": B, "fence": store.show(B)["fence"]})
    batch = store.file("batch", (text + old + "\n" + owned + "\n").encode())
    dry = store.once("resolve", "--records", batch, "--applied", *WHY,
                     "--dry-run")
    assert dry.returncode == 1
    rows = [r.split("\t") for r in dry.stdout.decode().splitlines()]
    assert [r[1] for r in rows] == ["would be resolved"] * 3 + \
        ["would be refused"] * 2
    assert "fence" in rows[3][2] and "owner may still answer" in rows[4][2]
    assert b"3 would be resolved, 2 would be refused" in dry.stderr
    assert store.ok("ls", "--state", "completed") == "" and not lines(store)
    done = store.once("resolve", "--records", "-", "--applied", *WHY, "--json",
                      stdin=pathlib.Path(batch).read_bytes())
    assert done.returncode == 1
    said = [json.loads(t) for t in done.stdout.decode().splitlines()]
    assert [s["result"] for s in said] == ["resolved"] * 3 + ["refused"] * 2
    assert [s["name"] for s in said][3:] == [A, B]
    assert store.show(A)["state"] == "indeterminate"
    assert steps(store) == [("intent", "resolve"), ("done", "resolve")] * 3
    again = store.once("resolve", "--records", batch, "--applied", *WHY)
    assert again.returncode == 1 and b"0 resolved, 5 refused" in again.stderr


def test_a_batch_stops_where_nobody_knows_what_the_store_did(store):
    batch = store.file("batch", lost(store, 4).encode())
    done = store.once("resolve", "--records", batch, "--failure", os.devnull,
                      "--status", "422", *WHY,
                      env=faulty(store, "fail=resolve:3-*"))
    assert done.returncode == 4, done.stderr
    words = [r.split("\t")[1] for r in done.stdout.decode().splitlines()]
    assert words == ["resolved", "resolved", "unknown"]
    assert b"2 resolved, 0 refused, 1 unknown, 1 not asked" in done.stderr
    assert [s for s, _ in steps(store)] == ["intent", "done"] * 2 + [
        "intent", "unknown"]


@pytest.mark.parametrize("text, said", [
    (b"", "no record in it"),
    (b"no json\n", "line 1 is no JSON object"),
    (b'{"name":"a1b2c3d4","fence":"1"}\n', "line 1"),
    (b'{"name":"%s"}\n' % A.encode(), "line 1"),
    (b'{"name":"%s","fence":"-1"}\n' % A.encode(), "line 1"),
    (b'{"name":"%s","fence":"1x"}\n' % A.encode(), "line 1"),
    (b'{"name":"%s","fence":1}\n' % A.encode() * 2, "line 2: this record was"),
    (b"".join(b'{"name":"%064x","fence":1}\n' % i for i in range(501)),
     "at most 500"),
])
def test_a_batch_that_is_not_understood_decides_nothing(store, text, said):
    store.seed("lost", A, "0")
    batch = store.file("batch", text)
    done = store.once("resolve", "--records", batch, "--applied", *WHY)
    assert done.returncode in (1, 2) and done.stdout == b""
    assert said in done.stderr.decode()
    assert store.show(A)["state"] == "indeterminate" and not lines(store)


def test_a_batch_has_no_which(store):
    batch = store.file("batch", lost(store, 1).encode())
    for words, said in (([A], "takes options only"),
                        (["--fence", "1"], "their own fences")):
        store.bad(2, said, "resolve", "--records", batch, "--applied", *WHY,
                  *words)
    store.bad(2, "goes with --records", "resolve", A, "--fence", "1",
              "--applied", *WHY, "--dry-run")


# ---- once audit --------------------------------------------------------------

def test_ls_filters(store):
    for name in (A, B):
        fence = store.seed("lost", name, "0")
        store.ok("resolve", name, "--fence", fence, "--applied", *WHY)
    store.ok("clock", "--accept")
    def ls(*words):
        return store.ok("audit", "ls", *words).splitlines()
    assert len(ls()) == 7
    assert len(ls("--action", "clock")) == 2
    assert len(ls("--name", A)) == 2
    assert len(ls("--name", A[:8])) == 4  # B begins so, too
    assert len(ls("--who", ME)) == 6
    assert len(ls("--who", str(os.getuid()))) == 6
    assert ls("--who", "nobody-has-this-name") == []
    assert len(ls("--since", "1h")) == 7 and ls("--until", "1h") == []
    assert ls("--since", "2999-01-01") == []
    assert len(ls("--until", "2999-01-01T00:00:00Z")) == 7
    assert [json.loads(t) for t in ls("--json")] == lines(store)
    store.bad(2, "2026-03-01", "audit", "ls", "--since", "2026-13-01")
    store.bad(2, "ls or verify", "audit", "look")
    head = on_terminal(store, "audit", "ls").splitlines()[0]
    assert head.split() == ["NO", "TIME", "STEP", "ACTION", "KIND", "USER",
                            "NAME", "FENCE", "WHY"]


def test_a_reason_cannot_command_a_terminal(store):
    fence = store.seed("lost", A, "0")
    store.ok("resolve", A, "--fence", fence, "--applied", "--why",
             "caf\u00e9 \u009b2J")
    seen = on_terminal(store, "audit", "ls")
    assert "caf\u00e9 \\xc2\\x9b2J" in seen
    assert path_of(store).read_bytes().isascii()


def test_verify_says_which_line(store):
    batch = store.file("batch", lost(store, 5).encode())
    store.ok("resolve", "--records", batch, "--applied", *WHY)
    whole = path_of(store).read_text()
    rows = whole.splitlines(keepends=True)
    assert is_whole(store, notes=0)["lines"] == 11
    def bad(text):
        path_of(store).write_text(text)
        done = store.once("audit", "verify")
        assert done.returncode == 3 and b"not whole" in done.stderr
        return [r.split("\t")[1:] for r in done.stdout.decode().splitlines()
                if r.startswith("bad")]
    where = str(path_of(store)) + ":"
    assert bad(whole.replace("ticket 12", "ticket 21", 1)) == [
        [where + "2", "its hash is not that of its text"]]
    assert bad("".join(rows[:4] + rows[5:]))[0] == [
        where + "5", "it is number 6 after 4: 1 missing between"]
    assert bad("".join(rows[:4] + [rows[5], rows[4]] + rows[6:]))[0][0] == \
        where + "5"
    assert bad("".join(rows[1:]))[0][0] == where + "1"
    assert bad(whole[:-20])[0] == [
        where + "11", "it is no line of an audit log, and it has no end: it "
        "was cut short"]
    path_of(store).write_text(whole)
    done = store.once("audit", "verify", "-", stdin=whole.encode())
    assert done.returncode == 0
    store.bad(3, "cannot be read", "audit", "verify", "/none")
    store.bad(2, "a part of a chain", "audit", "verify", "--who", "x")
    store.bad(2, "goes with verify", "audit", "ls", "--against", "x")
    store.bad(3, "cannot be read", "audit", "verify", "--against", "/none")


def test_what_verify_prints_is_kept_and_held_against_the_log(store):
    """As the line of cron in docs/audit.md does, for a file of root's."""
    kept = store.folder / "kept"
    kept.touch()
    batch = store.file("batch", lost(store, 3).encode())
    store.ok("resolve", "--records", batch, "--applied", *WHY)
    with open(kept, "a", encoding="ascii") as f:
        f.write(store.ok("audit", "verify", "--json"))
    store.ok("clock", "--accept")
    old = store.folder / "audit.jsonl.1"
    path_of(store).rename(old)
    store.ok("clock", "--accept")
    both = (str(old), str(path_of(store)))
    told = store.ok("audit", "verify", "--json", "--against", str(kept))
    assert json.loads(told)["anchored"] == 7
    assert json.loads(told)["first"] == 1
    with open(kept, "a", encoding="ascii") as f:
        f.write(told)
    path_of(store).unlink()  # what was decided after the rotation is gone
    assert store.once("audit", "verify", "--against", str(kept)
                      ).returncode == 3
    store.ok("clock", "--accept")
    store.ok("audit", "verify", *both)
    for files in both, ():
        done = store.once("audit", "verify", "--against", str(kept), *files)
        assert done.returncode == 3 and b"is another line" in done.stdout


def test_logrotate_hands_the_chain_on(store):
    """Renamed with and without a number, by logrotate where it is there."""
    fence = store.seed("lost", A, "0")
    store.ok("resolve", A, "--fence", fence, "--applied", *WHY)
    old = store.folder / "audit.jsonl.1"
    if shutil.which("logrotate"):
        conf = store.folder / "rotate.conf"
        conf.write_text(f"{path_of(store)} {{\n rotate 14\n nocreate\n}}\n")
        conf.chmod(0o600)
        store.folder.chmod(0o700)
        subprocess.run(["logrotate", "-f", "-s", store.folder / "state.lr",
                        conf], check=True, timeout=60)
    else:
        path_of(store).rename(old)
    store.ok("clock", "--accept")
    first = lines(store)[0]
    assert first["action"] == "log-start" and first["after"] == old.name
    assert first["seq"] == 4
    store.ok("audit", "verify", str(old), str(path_of(store)))
    done = store.once("audit", "verify", str(path_of(store)), str(old))
    assert done.returncode == 3


# ---- once name, show --request -----------------------------------------------

def frame(data):
    return len(data).to_bytes(8, "little") + data


def name_of(scope, realm, *method_and_path, key):
    tag = b"once name 1" if method_and_path else b"once name 2"
    parts = [tag, scope, realm, *method_and_path, key]
    return hashlib.sha256(b"".join(map(frame, parts))).hexdigest()


def test_the_name_of_a_request_is_the_gateways(store):
    scope = store.file("scope", b"Bearer abc\n")
    key = store.file("key", b'"order-17"\n')
    where = ["--realm", "pay.example", "--key-file", key]
    name = name_of(b"Bearer abc", b"pay.example", key=b"order-17")
    assert store.ok("name", *where, "--scope-file", scope) == name + "\n"
    assert json.loads(store.ok("name", *where, "--scope-file", "-", "--json",
                               stdin=b"Bearer abc")) == {"name": name}
    assert store.ok("name", *where, "--no-scope").strip() == \
        name_of(b"", b"pay.example", key=b"order-17")
    fence = store.seed("lost", name, "0")
    shown = json.loads(store.ok("show", "--request", *where, "--scope-file",
                                scope, "--json"))
    assert shown["name"] == name
    store.ok("resolve", "--request", *where, "--scope-file", scope, "--fence",
             fence, "--applied", *WHY)


def test_the_name_under_key_space_path_has_method_and_path(store):
    scope = store.file("scope", b"Bearer abc\n")
    key = store.file("key", b'"order-17"\n')
    where = ["--realm", "pay.example", "--method", "POST", "--path",
             "/pay%2Fnow?x=1", "--key-file", key, "--scope-file", scope]
    name = name_of(b"Bearer abc", b"pay.example", b"POST", b"/pay%2Fnow",
                   key=b"order-17")
    assert store.ok("name", *where) == name + "\n"
    store.seed("lost", name, "0")
    shown = json.loads(store.ok("show", "--request", *where, "--json"))
    assert shown["name"] == name


def test_method_and_path_stand_together_or_not_at_all(store):
    key = store.file("key", b"k")
    rest = ["--realm", "r", "--no-scope", "--key-file", key]
    for command in (["name"], ["show", "--request"]):
        store.bad(2, "--method goes with --path", *command, *rest,
                  "--method", "POST")
        store.bad(2, "--path goes with --method", *command, *rest,
                  "--path", "/p")
        store.bad(2, "--method: it is empty", *command, *rest,
                  "--method", "", "--path", "/p")
        store.bad(2, "--path: it is empty", *command, *rest,
                  "--method", "POST", "--path", "")


def test_a_request_that_is_not_whole_is_refused(store):
    key = store.file("key", b"k")
    bad_key = store.file("bad", MARK.encode() + b" one, two")
    good = ["--realm", "r", "--method", "POST", "--path", "/p"]
    store.bad(2, "--key-file FILE", "name", *good, "--no-scope")
    store.bad(2, "who sent it", "name", *good, "--key-file", key)
    store.bad(2, "begins with", "name", "--realm", "r", "--method", "POST",
              "--path", "p", "--no-scope", "--key-file", key)
    store.bad(2, "both", "name", *good, "--scope-file", "-", "--key-file", "-")
    store.bad(2, "is empty", "name", *good, "--scope-file", os.devnull,
              "--key-file", key)
    err = store.bad(2, "", "name", *good, "--no-scope", "--key-file", bad_key)
    assert MARK not in err
    store.bad(2, "go with --request", "show", *good)
    store.bad(2, "in place of", "show", A, "--request", *good, "--no-scope",
              "--key-file", key)


# ---- once trace --------------------------------------------------------------

def log_line(name, status, once, at, **more):
    return json.dumps(dict(time=at, status=status, once_status=once,
                           once_name=name, **more)) + "\n"


def test_a_timeline_from_all_sources(store):
    fence = store.seed("lost", A, "0")
    store.ok("resolve", A, "--fence", fence, "--applied", *WHY)
    now = time.time()
    text = log_line(A, 502, "indeterminate", now, once_reason="reset")
    text += "not json " + A + "\n" + "x" * 200000 + "\n"
    text += log_line(B, 200, "new", now)  # another one
    text += "".join(log_line(A, "409", "unknown", f"{now + 60 + i:.3f}")
                    for i in range(7))
    later = time.strftime("%Y-%m-%dT%H:%M:%S+02:00",
                          time.gmtime(now + 120 + 7200))
    text += log_line(A, 200, "replayed", later) * 2
    log = store.file("access.json", text.encode())
    rows = [r.split("\t") for r in
            store.ok("trace", A, "--log", log).splitlines()]
    events = [r for r in rows if len(r) == 4]
    assert [r[1:3] for r in events] == [
        ["record", "granted"], *[e[1:3] for e in events[1:-3]],
        ["log", "told"], ["log", "told"], ["log", "told"]]
    assert ["audit", "resolve"] in [r[1:3] for r in events]
    assert events[-3][3] == "502 indeterminate, reset"
    assert re.fullmatch(r"409 unknown  x7 until " + ISO, events[-2][3])
    assert re.match(r"200 replayed  x2 until ", events[-1][3])
    assert [r for r in rows if r[0] == "source"] == [
        ["source", "record", rows[-3][2]], ["source", str(path_of(store)), "1"],
        ["source", log, "10"]]
    said = [json.loads(t) for t in store.ok("trace", A, "--log", log,
                                            "--json").splitlines()]
    assert said[0]["name"] == A and said[-1]["sources"][-1]["found"] == 10
    assert [s["count"] for s in said[1:-1]][-2:] == [7, 2]


def test_a_source_that_is_not_there_is_named(store):
    store.ok("init", "--audit", "off")
    out = store.once("trace", A, "--log", "/none/access.json")
    assert out.returncode == 1 and b"nothing is known" in out.stderr
    rows = dict(r.split("\t")[1:] for r in out.stdout.decode().splitlines())
    assert "forgotten?" in rows["record"]
    assert "No such file" in rows["/none/access.json"]
    assert "cannot be read" in rows[str(path_of(store))]
    # What is forgotten, and a store that nobody named: logs only.
    log = store.file("access.json", log_line(A, 200, "new", 1.8e9).encode())
    for env in ({}, {"ONCE_STORE": ""}):
        rows = store.ok("trace", A[:8], "--log", log, env=env).splitlines()
        assert "200 new" in rows[0]
