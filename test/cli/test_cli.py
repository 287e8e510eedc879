# SPDX-License-Identifier: Apache-2.0
"""test_cli.py - the program `once`, as an operator meets it: looking at records
and resolving them.

The real binary over a real sqlite store. Records are made by the program
cli_seed (seed.c), through the public interface, as a gateway would make them;
it also claims again, to see what a client would get after `once resolve`. The
last test does it all with a real gateway.

    ONCE_MODULE     nginx's module   (build/ngx_http_once_module.so)
    ONCE_NGINX_BIN  nginx

Nothing here is timed; a test that needs a lease to end polls for that.
"""
import contextlib
import datetime
import http.client
import json
import os
import re
import shutil
import socket
import sqlite3
import subprocess
import threading
import time

import pytest

from once_cli import (A, B, C, COMMANDS, ISO, LAST, ONCE, OWNER, REPLAY, ROOT, TAKEOVER,
                      UNKNOWN, ZERO, on_terminal, states, store)
from machine import free_port
import newstore

assert store  # a fixture

MODULE = os.environ.get("ONCE_MODULE",
                        str(ROOT / "build" / "ngx_http_once_module.so"))
NGINX = (os.environ.get("ONCE_NGINX_BIN") or shutil.which("nginx")
         or "/usr/sbin/nginx")


def resolve(fence, *more):
    return ["resolve", A, "--fence", str(fence), "--why", "asked the bank",
            *more]


# ---- help and usage -------------------------------------------------------




@pytest.mark.parametrize("words", [["--help"]] + [[*c.split(), "--help"]
                                                  for c in COMMANDS])
def test_help_fits_one_screen_and_needs_no_store(store, words):
    text = store.ok(*words, env={"ONCE_STORE": ""})
    lines = text.rstrip("\n").split("\n")
    assert lines[0].startswith("usage: once")
    # Those that do work have more to say; the list of all has a line for each.
    long = ("run", "send", "messages")
    most = len(COMMANDS) + 20 if words[0] == "--help" else 24
    assert len(lines) <= (32 if words[0] in long else most)
    assert max(map(len, lines)) <= 80
    assert not store.path.exists()


def test_version(store):
    assert re.fullmatch(r"once \d+\.\d+\.\d+\n", store.ok("--version"))
    assert store.ok("-V") == store.ok("--version")


@pytest.mark.parametrize("command", COMMANDS)
def test_help_of_a_word_is_its_page(store, command):
    page = store.ok(*command.split(), "--help")
    assert store.ok("help", *command.split()) == page
    assert store.ok(*command.split(), "-h") == page


def test_what_most_need_comes_first(store):
    text = store.ok("help")
    assert text == store.ok("--help") == store.ok("-h")
    assert re.findall(r"^  ([a-z]+) ", text, re.M)[:7] == [
        "run", "send", "ls", "show", "resolve", "check", "console"]


def test_a_list_ends_where_the_terminal_ends(store):
    states(store)
    for words in (["ls"], ["stats"]):
        whole = on_terminal(store, *words).splitlines()
        short = on_terminal(store, *words, columns=40).splitlines()
        assert max(map(len, whole)) > 40, words
        assert short == [line[:40] for line in whole]
    assert on_terminal(store, "show", LAST, columns=40) == \
        on_terminal(store, "show", LAST)


NAMED = ["--fence", "1", "--why", "w"]
LONG = "w" * 513

USAGE = [
    ([], "usage: once"),
    (["list"], "list: no such command"),
    (["l"], "l: no such command"),
    (["shwo"], "Did you mean once show?"),
    (["relay"], "Did you mean once messages relay?"),
    (["help", "shwo"], "Did you mean once show?"),
    (["\x1b[2J" + "x" * 99], "\\x1b[2J" + "x" * 36 + ": no such command"),
    (["ls", "-x"], "-x: no such option"),
    (["show", "--key", "k", "-V"], "-V: no such option"),
    (["--nonsense", "ls"], "--nonsense"),
    (["ls", "--nonsense"], "--nonsense"),
    (["ls", "--state", "pending"], "indeterminate"),
    (["ls", "--state"], "needs a value"),
    (["ls", "--max", "0"], "from 1 to 1000000000"),
    (["ls", "--max", "1000000001"], "from 1 to 1000000000"),
    (["ls", "--max", "5x"], "from 1 to 1000000000"),
    (["ls", "--max", "-1"], "from 1 to 1000000000"),
    (["ls", "--after", "abcdef01"], "64 hex digits, not 8"),
    (["ls", "word"], "options only"),
    (["show"], "which record"),
    (["show", A, B], "which record"),
    (["show", A, "--name", A], "which record"),
    (["show", "a1b2c3d"], "8 to 64 hex digits, not 7"),
    (["show", A + "0"], "8 to 64 hex digits, not 65"),
    (["show", "a1b2c3dg"], "character 8"),
    (["show", "--name", A[:16]], "64 hex digits, not 16"),
    (["show", A, "--body", "--json"], "exclude"),
    (["show", "--group", "g"], "goes with --key"),
    (["show", A, "--key", "k"], "which record"),
    (["show", "--group", "a b", "--key", "k"], "without spaces"),
    (["show", "--group", "g" * 33, "--key", "k"], "1 to 32"),
    (["show", "--group", "", "--key", "k"], "1 to 32"),
    (["show", "--key", ""], "1 to 255 bytes"),
    (["show", "--key", "k" * 256], "1 to 255 bytes"),
    (["ls", "--older", "5"], "1s to 3650d"),
    (["ls", "--group", "g" * 33], "1 to 32"),
    (["ls", "--group", ""], "1 to 32"),
    (["stats", "--group", "\\x20" * 33], "1 to 32"),
    (["resolve", *NAMED, "--applied"], "which record"),
    (["resolve", A, *NAMED], "say one of"),
    (["resolve", A, *NAMED, "--applied", "--reopen"], "say one of"),
    (["resolve", A, "--why", "w", "--applied"], "--fence N is needed"),
    (["resolve", A, "--fence", "0", "--why", "w", "--applied"], "from 1 to"),
    (["resolve", A, "--fence", "18446744073709551616", "--why", "w",
      "--applied"], "to 18446744073709551615"),
    (["resolve", A, "--fence", "1", "--applied"], "--why TEXT is needed"),
    (["resolve", A, "--fence", "1", "--why", "", "--applied"], "1 to 512"),
    (["resolve", A, "--fence", "1", "--why", LONG, "--applied"], "1 to 512"),
    (["resolve", A, "--fence", "1", "--why", "a\nb", "--applied"], "one line"),
    (["resolve", A, "--fence", "1", "--why", "\x1b[2J", "--applied"],
     "one line"),
    (["resolve", A, *NAMED, "--success", "/dev/null"], "say what FILE is"),
    (["resolve", A, *NAMED, "--success", "/dev/null", "--raw", "--status",
      "200"], "say what FILE is"),
    (["resolve", A, *NAMED, "--applied", "--status", "200"], "go with"),
    (["resolve", A, *NAMED, "--reopen", "--raw"], "go with"),
    (["resolve", A, *NAMED, "--applied", "--value"], "go with"),
    (["resolve", A, *NAMED, "--success", "/dev/null", "--value", "--raw"],
     "say what FILE is"),
    (["resolve", A, *NAMED, "--success", "/dev/null", "--value", "--header", "A: b"],
     "goes with --status"),
    (["resolve", A, *NAMED, "--success", "/dev/null", "--raw", "--header",
      "A: b"], "--header goes with --status"),
    (["resolve", A, *NAMED, "--success", "/dev/null", "--status", "199"],
     "from 200 to 599"),
    (["resolve", A, *NAMED, "--success", "/dev/null", "--status", "600"],
     "from 200 to 599"),
    (["resolve", A, *NAMED, "--applied", "--keep", "24"], "1s to 3650d"),
    (["resolve", A, *NAMED, "--applied", "--keep", "0s"], "1s to 3650d"),
    (["resolve", A, *NAMED, "--applied", "--keep", "3651d"], "1s to 3650d"),
    (["resolve", A, *NAMED, "--applied", "--keep", "1w"], "1s to 3650d"),
] + [
    (["resolve", A, *NAMED, "--success", "/dev/null", "--status", "200",
      "--header", header], text)
    for header, text in [
        ("no colon", "'Name: value'"), (": empty", "'Name: value'"),
        ("a b: c", "'Name: value'"), ("A: b\r\nC: d", "of one line"),
        ("Content-Length: 3", "counted"), ("Set-Cookie: a=b", "Set-Cookie"),
        ("Transfer-Encoding: chunked", "never replayed"),
        ("Idempotency-Status: new", "never replayed"),
        ("A: " + "x" * 65536, "65535 bytes"),
    ]
]


@pytest.mark.parametrize("words,text", USAGE,
                         ids=[" ".join(w)[:60] or "none" for w, _ in USAGE])
def test_bad_input_is_named_before_the_store_is_opened(store, words, text):
    # This store is a folder's child that cannot be: had it been opened, the
    # message and the exit status would be about it.
    store.bad(2, text, *words, env={"ONCE_STORE": "sqlite:/dev/null/x"})


def test_too_many_headers_are_refused(store):
    words = ["resolve", A, *NAMED, "--success", "/dev/null", "--status", "200"]
    for i in range(65):
        words += ["--header", f"X-{i}: v"]
    store.bad(2, "64 times", *words)


def test_file_over_the_limit_is_refused_with_the_limit(store):
    path = store.folder / "big"
    with open(path, "wb") as f:
        f.truncate((64 << 20) + 1)
    for how in (["--raw"], ["--status", "200"]):
        store.bad(2, str(64 << 20), *resolve(1, "--success", str(path), *how))
    os.truncate(path, 64 << 20)  # with its status it is just over
    store.bad(2, str(64 << 20),
              *resolve(1, "--success", str(path), "--status", "200"))
    assert not store.path.exists()


@pytest.mark.parametrize("text", ["", "{", "paid", "{'a': 1}", "[1,]", "NaN", "1 2",
                                  "\xff", "\ufeff1"])
def test_a_value_that_is_no_json_is_refused(store, text):
    path = store.file("value", text.encode("utf-8" if text != "\xff" else "latin-1"))
    store.bad(2, "not JSON (line 1", *resolve(1, "--success", path, "--value"))
    assert not store.path.exists()


def test_file_that_cannot_be_read_is_named(store):
    missing = str(store.folder / "none.json")
    store.bad(3, missing, *resolve(1, "--failure", missing, "--raw"))
    store.bad(3, str(store.folder),
              *resolve(1, "--failure", str(store.folder), "--raw"))


def test_status_without_body_refuses_one(store):
    path = store.file("body", b"x")
    store.bad(2, "204 has no body",
              *resolve(1, "--success", path, "--status", "204"))


# ---- stores that are not there --------------------------------------------


def test_no_store_named(store):
    store.bad(2, "--store URL or set ONCE_STORE", "ls", env={"ONCE_STORE": ""})


def test_a_store_with_a_password_stands_in_a_file(store):
    states(store)
    path = store.file("url", store.url.encode() + b"\n")
    none = {"ONCE_STORE": ""}
    assert store.ok("ls", "--store", "@" + path, env=none) == store.ok("ls")
    assert store.ok("--store", "@" + path, "ls", env=none) == store.ok("ls")
    store.bad(3, "cannot be opened", "ls", "--store", "@/nonexistent")
    err = store.bad(3, "can read this password", "ls", "--store",
                    "postgres://me:hunter2@127.0.0.1:1/db")
    assert "hunter2" not in err


def test_a_misspelt_path_is_an_error_and_creates_nothing(store):
    store.bad(3, "nothing was created", "ls")
    store.bad(3, "nothing was created", "show", A)
    store.bad(3, "nothing was created", "check")
    store.bad(3, "nothing was created", *resolve(1, "--applied"))
    assert os.listdir(store.folder) == []


def test_unknown_and_private_stores_are_usage_errors(store):
    store.bad(2, "sqlite:", "--store", "nosuch:x", "ls")
    store.bad(2, "one process", "--store", "memory:", "ls")


def test_a_credential_in_a_url_is_not_repeated(store):
    for url in ("nosuch://me:hunter2@host/db", "postgres://me:hunter2@h/d"):
        done = store.once("--store", url, "ls")
        assert done.returncode in (2, 3)
        assert b"hunter2" not in done.stderr + done.stdout


def test_a_file_that_is_no_store_is_store_trouble(store):
    store.path.write_bytes(b"This is not a database. " * 100)
    before = store.path.read_bytes()
    done = store.once("ls")
    assert done.returncode == 3 and done.stdout == b""
    assert store.path.read_bytes() == before


def test_store_option_before_and_behind_the_command(store):
    store.seed("done", A, "success", "x")
    for words in (["--store", store.url, "ls"], ["ls", "--store", store.url],
                  [f"--store={store.url}", "ls"]):
        assert A in store.ok(*words, env={"ONCE_STORE": ""})


# ---- ls -------------------------------------------------------------------


def test_ls_tells_every_record_in_the_order_of_names(store):
    states(store)
    rows = [line.split("\t") for line in store.ok("ls").splitlines()]
    assert [r[0] for r in rows] == [ZERO, A, B, C, LAST]
    assert [r[1] for r in rows] == ["completed", "completed", "claimed",
                                    "dispatched", "indeterminate"]
    assert [r[2] for r in rows] == ["failure", "success", "-", "-", "-"]
    assert [r[7] for r in rows] == ["0", "17", "0", "0", "0"]
    assert [r[8] for r in rows] == ["-", "-", "-", "takeover", "-"]
    assert all(len(r) == 12 and r[3] == "1" for r in rows)
    assert len({r[4] for r in rows}) == 5  # fences are never repeated
    assert all(re.fullmatch(ISO, r[5]) for r in rows)
    assert rows[4][6] == "-" and all(re.fullmatch(ISO, r[6]) for r in rows[:4])


def test_times_are_utc_whatever_the_time_zone(store):
    before = time.time()
    store.seed("lost", A, "0")
    text = store.show(A)["granted"].replace("Z", "+00:00")
    granted = datetime.datetime.fromisoformat(text).timestamp()
    assert before - 1 <= granted <= time.time() + 1


def test_ls_of_one_state(store):
    states(store)
    for state, names in [("completed", [ZERO, A]), ("claimed", [B]),
                         ("dispatched", [C]), ("indeterminate", [LAST]),
                         ("absent", []), ("corrupt", [])]:
        lines = store.ok("ls", "--state", state).splitlines()
        assert [line.split("\t")[0] for line in lines] == names


def test_ls_json_is_one_object_a_line(store):
    states(store)
    rows = [json.loads(x) for x in store.ok("ls", "--json").splitlines()]
    assert [r["name"] for r in rows] == [ZERO, A, B, C, LAST]
    assert rows[1]["result_bytes"] == 17
    assert rows[1]["kind"] == "success" and rows[2]["kind"] is None
    assert rows[3]["takeover"] is True and rows[4]["takeover"] is False
    assert rows[2]["lease_until"] and rows[2]["keep_until"] is None
    assert rows[4]["lease_until"] is None and rows[4]["keep_until"] is None
    assert all(isinstance(r["fence"], str) for r in rows)


def test_ls_max_says_how_to_go_on(store):
    states(store)
    done = store.once("ls", "--max", "2")
    assert done.returncode == 0
    assert len(done.stdout.splitlines()) == 2
    after = re.search(r"--after ([0-9a-f]{64})", done.stderr.decode())[1]
    assert after == A
    rest = store.ok("ls", "--after", after)
    assert [x.split("\t")[0] for x in rest.splitlines()] == [B, C, LAST]


def test_ls_walks_over_many_pages(store):
    store.seed("many", "700")
    store.seed("lost", LAST, "0")
    names = [x.split("\t")[0] for x in store.ok("ls").splitlines()]
    assert len(names) == 701 and names == sorted(set(names))
    found = store.ok("ls", "--state", "indeterminate", "--max", "1")
    assert found.startswith(LAST)


def test_ls_of_an_empty_store_prints_nothing(store):
    store.seed("many", "1")
    assert store.ok("ls", "--state", "absent") == ""


def test_ls_on_a_terminal_is_a_table(store):
    states(store)
    lines = on_terminal(store, "ls").splitlines()
    assert lines[0].split()[:3] == ["NAME", "STATE", "KIND"]
    assert lines[1].split()[:3] == [ZERO[:16], "completed", "failure"]
    column = lines[0].index("GRANTED")
    assert all(re.match(ISO, line[column:]) for line in lines[1:])


def test_what_waits_fits_on_a_terminal(store):
    states(store)
    lines = on_terminal(store, "ls", "--state", "indeterminate").splitlines()
    shown = store.show(LAST)
    assert lines[0].split() == ["NAME", "FENCE", "SINCE", "REASON", "LABEL"]
    assert [line.split() for line in lines[1:]] == [
        [LAST[:16], shown["fence"], shown["ended"], "-", "-"]]
    assert lines[0].index("LABEL") <= 72


def test_output_that_cannot_be_written_is_an_error(store):
    states(store)
    for words in (["ls"], ["ls", "--json"], ["show", A], ["check"],
                  ["--help"]):
        with open("/dev/full", "wb") as full:
            done = subprocess.run([ONCE, *words], stdout=full, timeout=60,
                                  stderr=subprocess.PIPE,
                                  env=dict(os.environ, ONCE_STORE=store.url))
        assert done.returncode == 3 and b"stdout" in done.stderr, words


def test_resolved_is_said_even_if_stdout_is_full(store):
    fence = store.seed("lost", A, "0")
    with open("/dev/full", "wb") as full:
        done = subprocess.run([ONCE, *resolve(fence, "--applied")], stdout=full,
                              stderr=subprocess.PIPE, timeout=60,
                              env=dict(os.environ, ONCE_STORE=store.url))
    assert done.returncode == 3 and b"resolved all the same" in done.stderr
    assert store.show(A)["state"] == "completed"


# ---- show -----------------------------------------------------------------


def test_show_by_prefix_of_any_length(store):
    states(store)
    for digits in (8, 9, 16, 63, 64):
        assert json.loads(store.ok("show", C[:digits], "--json"))["name"] == C
    assert json.loads(store.ok("show", C[:16].upper(), "--json"))["name"] == C
    for name in (ZERO, LAST):
        assert json.loads(store.ok("show", name[:9], "--json"))["name"] == name


def test_show_refuses_a_prefix_of_two_names(store):
    states(store)
    err = store.bad(1, "more than one", "show", A[:8])
    assert A in err and B in err
    store.bad(1, "more than one", "show", A[:63])
    assert json.loads(store.ok("show", A, "--json"))["name"] == A


def test_show_of_nothing_says_so(store):
    states(store)
    store.bad(1, "begins so", "show", "deadbeef")
    store.bad(1, "begins so", "show", "c0ffee01")
    store.bad(1, "begins so", "show", "c0ffee004")  # C goes on with a 5
    store.bad(1, "no such record", "show", "d" * 64)
    store.bad(1, "no such record", "show", "--name", "d" * 64)


def test_show_tells_names_and_lengths_but_no_values_or_body(store):
    fence = store.seed("lost", A, "0")
    path = store.file("body", b"the body's secret")
    store.ok(*resolve(fence, "--success", path, "--status", "201", "--header",
                      "X-Token: headers-secret", "--header", "ETag: \"e\""))
    for words in (["show", A], ["show", A, "--json"], ["ls"],
                  ["ls", "--json"]):
        text = store.ok(*words)
        assert "secret" not in text
    text = store.ok("show", A)
    assert "headers\tX-Token, ETag\n" in text
    assert "status\t201\n" in text and "body\t17\n" in text
    one = store.show(A)
    assert one["headers"] == ["X-Token", "ETag"]
    assert one["status"] == 201 and one["body_bytes"] == 17


def test_show_body_is_the_body_and_nothing_else(store):
    fence = store.seed("lost", A, "0")
    data = bytes(range(256)) * 40
    path = store.file("body", data)
    store.ok(*resolve(fence, "--success", path, "--status", "200"))
    done = store.once("show", A, "--body")
    assert done.returncode == 0 and done.stdout == data and done.stderr == b""


def test_show_body_of_a_result_that_is_no_response_is_the_result(store):
    store.seed("done", A, "success", "just bytes")
    assert store.ok("show", A, "--body") == "just bytes"
    assert "result\t10\n" in store.ok("show", A)


def test_show_body_without_a_result_is_refused(store):
    fence = store.seed("lost", A, "0")
    store.bad(1, "indeterminate", "show", A, "--body")
    store.ok(*resolve(fence, "--applied"))
    store.bad(1, "not kept", "show", A, "--body")


def test_show_on_a_terminal_says_what_to_do_next(store):
    fence = store.seed("lost", A, "0")
    text = on_terminal(store, "show", A)
    assert f"once resolve {A[:16]} --fence {fence}" in text
    assert "resolve" not in store.ok("show", A)  # a program is told facts


def test_looking_changes_nothing(store):
    store.seed("dispatched", A, "10", "0")  # the lease is over at once
    before = store.ok("ls")
    for words in (["show", A], ["show", A, "--json"], ["check"], ["ls"]):
        store.ok(*words)
    assert store.ok("ls") == before and "dispatched" in before


# ---- resolve --------------------------------------------------------------


def test_resolved_response_is_what_a_client_gets(store):
    fence = store.seed("lost", A, "0")
    path = store.file("body", b'{"charge": 12}')
    out = store.ok(*resolve(fence, "--success", path, "--status", "201",
                            "--header", "Content-Type: application/json",
                            "--header", "Location:   /orders/12  ",
                            "--header", "X-Empty:"))
    assert out.startswith(f"{A}\tcompleted\tsuccess\t")
    assert store.claim(A) == (REPLAY, 1, (
        "201\nContent-Type: application/json\nLocation: /orders/12\n"
        'X-Empty: \n\n{"charge": 12}'))


def test_failure_from_stdin_is_final(store):
    fence = store.seed("lost", A, "3")  # takeover, and failures may be retried
    store.ok(*resolve(fence, "--failure", "-", "--status", "402"),
             stdin=b"declined")
    assert store.claim(A, "3") == (REPLAY, 2, "402\n\ndeclined")


def test_applied_without_response(store):
    fence = store.seed("lost", A, "0")
    store.ok(*resolve(fence, "--applied"))
    assert store.claim(A)[:2] == (REPLAY, 1)
    assert "no body" in store.claim(A)[2]
    assert store.show(A)["body_bytes"] is None
    assert "body\tnot kept\n" in store.ok("show", A)


def test_raw_result_is_kept_byte_for_byte(store):
    fence = store.seed("lost", A, "0")
    data = b"\0\r\n\xff" * 1000
    path = store.file("raw", data)
    store.ok(*resolve(fence, "--success", path, "--raw"))
    assert store.once("show", A, "--body").stdout == data


def test_empty_body_for_204(store):
    fence = store.seed("lost", A, "0")
    store.ok(*resolve(fence, "--success", "/dev/null", "--status", "204"))
    assert store.claim(A) == (REPLAY, 1, "204")


def test_reopen_lets_the_next_one_execute_under_takeover(store):
    fence = store.seed("lost", A, TAKEOVER)
    store.ok(*resolve(fence, "--reopen"))
    one = store.show(A)
    assert one["state"] == "absent" and one["resolved"] is True
    assert store.claim(A, TAKEOVER)[0] == OWNER
    assert store.show(A)["attempt"] == 2


def test_reopen_is_refused_under_hold(store):
    fence = store.seed("lost", A, "0")
    store.bad(1, "once_lost takeover", *resolve(fence, "--reopen"))
    assert store.claim(A)[0] == UNKNOWN


def test_stale_fence_is_refused_and_changes_nothing(store):
    fence = int(store.seed("lost", A, "0"))
    before = store.show(A)
    err = store.bad(1, "refused: the fence is",
                    *resolve(fence + 1, "--applied"))
    assert str(fence) in err and str(fence + 1) in err
    assert store.show(A) == before


def test_second_resolve_is_refused(store):
    fence = store.seed("lost", A, "0")
    store.ok(*resolve(fence, "--applied"))
    before = store.show(A)
    store.bad(1, "refused: it is completed", *resolve(fence, "--applied"))
    store.bad(1, "refused: it is completed", *resolve(fence, "--failure",
                                                      "/dev/null", "--raw"))
    assert store.show(A) == before


def test_what_is_in_flight_is_refused(store):
    for name, how in ((A, "claimed"), (C, "dispatched")):
        fence = store.seed(how, name, "3600000", "0")
        words = resolve(fence, "--applied")
        words[1] = name
        store.bad(1, f"refused: it is {how}", *words)
        assert store.show(name)["state"] == how


def test_unknown_record_is_refused(store):
    store.seed("many", "1")
    store.bad(1, "begins so", "resolve", "deadbeef", *NAMED, "--applied")
    store.bad(1, "no such record", *resolve(1, "--applied"))


def test_lost_without_any_gateway_left_can_be_resolved(store):
    fence = store.seed("dispatched", A, "10", "0")
    deadline = time.time() + 30
    while True:  # ten milliseconds, on a busy machine
        done = store.once(*resolve(fence, "--applied"))
        if done.returncode == 0 or time.time() > deadline:
            break
    assert done.returncode == 0, done.stderr
    assert store.show(A)["state"] == "completed"


def test_a_stale_fence_does_not_reap_either(store):
    fence = int(store.seed("dispatched", A, "10", "0"))
    store.bad(1, "refused: the fence is", *resolve(fence + 1, "--applied"))
    assert store.show(A)["state"] == "dispatched"


def test_audit_tells_who_when_and_why(store):
    fence = store.seed("lost", A, "0")
    store.ok(*resolve(fence, "--applied"))
    note = store.show(A)["note"]
    uid = os.getuid()
    assert re.match(rf"{ISO} by .*\(uid {uid}\)", note), note
    assert note.endswith(": applied, response lost: asked the bank")
    assert f"note\t{note}\n" in store.ok("show", A)
    assert "resolved" in store.ok("ls").split("\t")[8]


def test_audit_does_not_believe_the_environment(store):
    fence = store.seed("lost", A, "0")
    store.ok(*resolve(fence, "--applied"),
             env={"USER": "mallory", "LOGNAME": "mallory",
                  "SUDO_USER": "mallory"})
    assert "mallory" not in store.show(A)["note"]


def test_why_of_the_longest_length_and_in_any_script(store):
    fence = store.seed("lost", A, "0")
    why = "Zoë: 付款 " + "w" * 400
    store.ok("resolve", A, "--fence", fence, "--applied", "--why", why)
    assert store.show(A)["note"].endswith(why)
    assert why in store.ok("show", A)
    fence = store.seed("lost", B, "0")
    store.ok("resolve", B, "--fence", fence, "--applied", "--why", "w" * 512)
    assert store.show(B)["note"].endswith(": " + "w" * 512)


def test_note_cannot_command_a_terminal(store):
    """Bytes that are not UTF-8, and the C1 controls, are shown escaped."""
    fence = store.seed("lost", A, "0")
    store.ok("resolve", A, "--fence", fence, "--applied", "--why",
             b"a\xffb".decode(errors="surrogateescape"))
    text = store.ok("show", A)
    assert "a\\xffb" in text
    assert "a\\xffb" in store.show(A)["note"]
    fence = store.seed("lost", B, "0")
    store.ok("resolve", B, "--fence", fence, "--applied", "--why", "a\u009bJ")
    assert "a\\xc2\\x9bJ" in store.ok("show", B)


def test_keep_is_how_long_repeats_are_answered(store):
    fence = store.seed("lost", A, "0")
    store.ok(*resolve(fence, "--applied", "--keep", "7d"))
    until = store.show(A)["keep_until"].replace("Z", "+00:00")
    left = datetime.datetime.fromisoformat(until).timestamp() - time.time()
    assert 7 * 86400 - 3600 < left <= 7 * 86400


def test_resolve_json_is_the_record(store):
    fence = store.seed("lost", A, "0")
    one = json.loads(store.ok(*resolve(fence, "--applied", "--json")))
    assert one["name"] == A and one["state"] == "completed"
    assert one["fence"] == fence


def test_two_operators_one_wins(store):
    fence = store.seed("lost", A, "0")
    env = dict(os.environ, ONCE_STORE=store.url)
    both = [subprocess.Popen([ONCE, *resolve(fence, "--success", "-", "--raw")],
                             stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                             stderr=subprocess.PIPE, env=env)
            for _ in range(2)]
    for i, p in enumerate(both):
        p.stdin.write(b"answer %d" % i)
        p.stdin.flush()
    for p in both:
        p.communicate(timeout=60)
    assert sorted(p.returncode for p in both) == [0, 1]
    winner = [p.returncode for p in both].index(0)
    assert store.ok("show", A, "--body") == f"answer {winner}"


# ---- corrupt records ------------------------------------------------------


def damage(store, marker):
    """Flips the bytes `marker` in the store's file, wherever they stand."""
    with sqlite3.connect(store.path) as db:
        db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    data = store.path.read_bytes()
    assert marker in data
    store.path.write_bytes(data.replace(marker, bytes(b ^ 1 for b in marker)))


def test_a_record_that_does_not_check_is_told_not_hidden(store):
    store.seed("done", A, "success", "MARKER-MARKER-MARKER")
    store.seed("done", C, "success", "fine")
    damage(store, b"MARKER-MARKER-MARKER")
    done = store.once("show", A)
    assert done.returncode == 3 and done.stdout == b""
    assert b"nothing runs twice" in done.stderr
    assert store.once("show", C).returncode == 0


def test_a_head_that_does_not_check_is_counted_and_listed(store):
    store.seed("done", C, "success", "fine")
    store.seed("lost", A, "0")
    # The fingerprint that seed.c gives: 32 bytes of the record itself.
    damage(store, b"\x07" * 32)
    done = store.once("verify", "--json")
    assert done.returncode == 3
    assert json.loads(done.stdout)["corrupt"] >= 1
    assert re.search(rb"corrupt: [0-9a-f]{64}\n", done.stderr)
    done = store.once("ls", "--state", "corrupt")
    assert done.returncode == 3
    assert re.search(rb"^[0-9a-f]{64}\tcorrupt\t", done.stdout, re.M)


# ---- a store that misbehaves ----------------------------------------------


def faulty(store, rule):
    return {"ONCE_STORE": f"faulty:{rule}@{store.url}"}


def test_resolve_whose_answer_is_lost_is_repeated_and_recognised(store):
    """The engine repeats it, and the store refuses the second copy."""
    fence = store.seed("lost", A, "0")
    store.ok(*resolve(fence, "--applied"), env=faulty(store, "lose=resolve:1"))
    assert store.show(A)["state"] == "completed"


def test_resolve_that_is_refused_once_is_repeated(store):
    fence = store.seed("lost", A, "0")
    store.ok(*resolve(fence, "--applied"), env=faulty(store, "fail=resolve:1"))
    assert store.show(A)["state"] == "completed"


@pytest.mark.parametrize("rule,state", [
    ("lose=resolve:1-*", "completed"), ("fail=resolve:1-*", "indeterminate")])
def test_resolve_that_is_never_answered_is_unknown(store, rule, state):
    fence = store.seed("lost", A, "0")
    store.bad(4, "Look again with once show", *resolve(fence, "--applied"),
              env=faulty(store, rule))
    assert store.show(A)["state"] == state


def test_show_that_is_never_answered_is_store_trouble(store):
    store.seed("lost", A, "0")
    store.bad(3, "Look again", "show", A, env=faulty(store, "fail=show:1-*"))


def test_a_misspelt_path_inside_a_faulty_store_creates_nothing(store):
    store.bad(3, "nothing was created", "ls", env=faulty(store, "delay_ms=1"))
    assert os.listdir(store.folder) == []


def test_a_locked_store_is_told_as_trouble_and_changes_nothing(store):
    fence = store.seed("lost", A, "0")
    with sqlite3.connect(store.path, isolation_level=None) as db:
        db.execute("BEGIN EXCLUSIVE")
        done = store.once(*resolve(fence, "--applied"))
        db.execute("ROLLBACK")
    assert done.returncode in (3, 4), done
    assert b"show" in done.stderr or b"Check" in done.stderr
    assert store.show(A)["state"] == "indeterminate"


# ---- the whole way: upstream, gateway, operator, client -------------------


CONF = """
load_module {module};
daemon off;
{user}
pid {dir}/pid;
lock_file {dir}/lock;
error_log {dir}/error.log notice;
events {{ }}
http {{
    log_format hash '$once_name';
    access_log {dir}/access.log hash;
    client_body_temp_path {dir}/body; proxy_temp_path {dir}/proxy;
    fastcgi_temp_path {dir}/f; uwsgi_temp_path {dir}/u; scgi_temp_path {dir}/s;
    once_store payments {store};
    server {{
        listen 127.0.0.1:{port};
        location / {{
            proxy_pass http://127.0.0.1:{upstream};
            proxy_next_upstream off;
            once payments;
            once_scope off;
        }}
    }}
}}
"""


@contextlib.contextmanager
def upstream_that_drops():
    """Reads each request, counts it, and hangs up without an answer."""
    listening = socket.create_server(("127.0.0.1", 0))
    seen = []

    def serve():
        while True:
            try:
                c, _ = listening.accept()
            except OSError:
                return
            with c:
                seen.append(c.recv(65536))

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    try:
        yield listening.getsockname()[1], seen
    finally:
        listening.shutdown(socket.SHUT_RDWR)
        listening.close()
        thread.join(timeout=60)


@contextlib.contextmanager
def gateway(store, upstream):
    folder = store.folder / "nginx"
    folder.mkdir()
    port = free_port()
    user = "user root;" if os.geteuid() == 0 else ""
    (folder / "conf").write_text(CONF.format(
        module=MODULE, user=user, dir=folder, store=store.url, port=port,
        upstream=upstream))
    newstore.init(store.url)
    child = subprocess.Popen([NGINX, "-p", str(folder), "-e",
                              str(folder / "error.log"), "-c",
                              str(folder / "conf")])
    try:
        deadline = time.time() + 60
        while True:
            try:
                socket.create_connection(("127.0.0.1", port), 5).close()
                break
            except OSError:
                assert child.poll() is None, (folder / "error.log").read_text()
                assert time.time() < deadline
                time.sleep(0.02)
        yield port, folder
    finally:
        child.terminate()
        child.wait(timeout=60)


def post(port):
    c = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    c.request("POST", "/charge", b"{}", {"Idempotency-Key": "order-12"})
    r = c.getresponse()
    got = r.status, r.headers, r.read()
    c.close()
    return got


def logged_hash(folder):
    deadline = time.time() + 60
    while True:  # the log is written behind the answer
        lines = (folder / "access.log").read_text().split()
        if lines:
            return lines[0]
        assert time.time() < deadline
        time.sleep(0.02)


@pytest.mark.skipif(not (os.path.exists(MODULE) and os.path.exists(NGINX)),
                    reason="no nginx, or its module is not built")
def test_gateway_replays_what_the_operator_found_out(store):
    with upstream_that_drops() as (upstream, seen), \
            gateway(store, upstream) as (port, folder):
        assert post(port)[0] == 502
        status, _, body = post(port)
        assert (status, json.loads(body)["code"]) == (409, "outcome-unknown")
        digits = logged_hash(folder)
        one = json.loads(store.ok("show", digits, "--json"))
        assert one["state"] == "indeterminate"
        answer = store.file("answer.json", b'{"charge": 99}\n')
        store.ok("resolve", digits, "--fence", one["fence"], "--success",
                 answer, "--status", "201", "--header",
                 "Content-Type: application/json", "--header",
                 "Location: /orders/12", "--why", "charge 99 is in the ledger")
        status, headers, body = post(port)
        assert (status, body) == (201, b'{"charge": 99}\n')
        assert headers["Content-Type"] == "application/json"
        assert headers["Location"] == "/orders/12"
        assert headers["Content-Length"] == "15"
        assert headers["Idempotent-Replayed"] == "true"
        assert len(seen) == 1


@pytest.mark.skipif(not (os.path.exists(MODULE) and os.path.exists(NGINX)),
                    reason="no nginx, or its module is not built")
def test_gateway_tells_that_an_applied_response_is_lost(store):
    with upstream_that_drops() as (upstream, seen), \
            gateway(store, upstream) as (port, folder):
        assert post(port)[0] == 502
        digits = logged_hash(folder)
        fence = json.loads(store.ok("show", digits, "--json"))["fence"]
        store.ok("resolve", digits, "--fence", fence, "--applied", "--why",
                 "in the ledger")
        status, _, body = post(port)
        assert (status, json.loads(body)["code"]) == (409,
                                                      "response-unavailable")
        assert len(seen) == 1
