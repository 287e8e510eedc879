# SPDX-License-Identifier: Apache-2.0
"""test_report.py - `once report`: what a dry run has shown, from access logs
that may be anything."""
import json
import os
import subprocess

import pytest

from once_cli import Store, on_terminal


@pytest.fixture(name="store")
def a_store(tmp_path):
    return Store(tmp_path)


def line(would, apart="-", route="-", **more):
    row = {"time": "2026-11-26T10:00:00+00:00", "method": "POST",
           "uri": "/charge", "status": 201, "once_route": route,
           "once_would": would, "once_apart": apart, "upstream_status": "201"}
    row.update(more)
    return json.dumps(row) + "\n"


def log(store, *lines):
    path = store.folder / "once.log"
    path.write_bytes(b"".join(
        text if isinstance(text, bytes) else text.encode() for text in lines))
    return str(path)


def report(store, *lines, code=0):
    done = store.once("report", "--json", log(store, *lines))
    assert done.returncode == code, done
    return json.loads(done.stdout)


def test_what_counts_as_a_duplicate(store):
    seen = report(
        store, line("run"), line("run_again", "0"), line("run_again", "9"),
        line("in_flight", "1"), line("unknown", "59"), line("refuse", "3600"),
        line("refuse"),                        # no first request
        line("conflict", "5"),                 # another request
        line("replay", "5"),                   # it was not passed on
        line("in_flight", "1", upstream_status="-"), line("-"))
    assert (seen["requests"], seen["duplicates"], seen["outside"],
            seen["unread"], seen["lines"]) == (10, 5, 1, 0, 11)
    assert seen["would"] == {
        "run": 1, "run_again": 2, "in_flight": 2, "unknown": 1, "refuse": 2,
        "conflict": 1, "replay": 1}
    assert [(a["below_s"], a["duplicates"]) for a in seen["apart"]] == [
        (1, 1), (10, 2), (60, 1), (3600, 0), (86400, 1), (None, 0)]


def test_a_time_of_a_day_or_more_is_the_last_row(store):
    seen = report(store, line("run_again", "86399"), line("run_again", "86400"),
                  line("run_again", str(2**62)))
    assert [a["duplicates"] for a in seen["apart"]] == [0, 0, 0, 0, 1, 2]
    assert seen["routes"][0]["longest_s"] == 2**62


def test_routes_are_sorted_by_their_duplicates(store):
    seen = report(
        store, line("run", route="b"), line("run", route="a"),
        line("run_again", "4", route="most"), line("run_again", "7", route="most"),
        line("run_again", "4", uri="/refund"))
    assert [(r["route"], r["duplicates"], r["longest_s"])
            for r in seen["routes"]] == [
        ("most", 2, 7), ("POST /refund", 1, 4), ("a", 0, 0), ("b", 0, 0)]


def test_the_page(store):
    path = log(store, line("run", route="pay"), line("run_again", "61", route="pay"),
               line("conflict", "2", route="pay"))
    text = store.ok("report", path)
    assert "duplicates\t1\n" in text and "below 1 h\t1\n" in text
    assert text.endswith("\n1\t3\t1\t0\t61\tpay\n")


def test_a_terminal_is_not_overrun(store):
    path = log(store, line("run_again", "61", uri="/" + "x" * 300))
    text = on_terminal(store, "report", path, columns=60)
    rows = text.replace("\r", "").split("\n")
    assert any(row.lstrip().startswith("DUPLICATES") for row in rows), rows
    assert max(map(len, rows)) <= 60


def test_lines_that_do_not_fit_are_counted_and_said(store):
    bad = [b"\n", b"hello\n", b"\0\0\0\n", b"{}\n", b"[1]\n", b"null\n",
           b'"once_would"\n', b'{"once_would":7,"once_apart":"1"}\n',
           b'{"once_would":"run"}\n',
           line("walk").encode(), line("run_again", "-5").encode(),
           line("run_again", "1e3").encode(),
           line("run_again", "9" * 30).encode(),
           line("run").encode()[:40] + b"\n",
           line("run").replace("charge", "ch\\u0000").encode()
           .replace(b'"run"', b'"run\\u0000"'),
           line("run", uri="x" * 70000).encode(), os.urandom(3000).replace(
               b"\n", b"") + b"\n", b"[" * 60000 + b"\n"]
    done = store.once("report", "--json", log(store, *bad, line("run")))
    seen = json.loads(done.stdout)
    assert done.returncode == 0
    assert (seen["lines"], seen["unread"], seen["requests"]) == \
        (len(bad) + 1, len(bad), 1)
    assert b"%d of %d lines were not read" % (len(bad), len(bad) + 1) \
        in done.stderr


def test_a_line_at_the_limit_is_read_and_one_over_it_is_not(store):
    def long(size):
        short = len(line("run", uri="")) - 1
        return line("run", uri="x" * (size - short))
    seen = report(store, long(65536), long(65537), line("run").rstrip("\n"))
    assert (seen["lines"], seen["requests"], seen["unread"]) == (3, 2, 1)


def test_a_path_that_is_no_utf8_is_a_route_all_the_same(store):
    raw = line("run", uri="/x").encode().replace(b"/x", b"/\xff\xfe")
    seen = report(store, raw)
    assert [r["route"] for r in seen["routes"]] == ["POST /??"]


def test_control_characters_do_not_reach_the_terminal(store):
    path = log(store, line("run", uri="/\x1b[31m\x07"))
    assert "\x1b[31m" not in on_terminal(store, "report", path, columns=200)


def test_there_are_at_most_256_rows(store):
    seen = report(store, *[line("run_again", "1", uri="/%d" % i)
                           for i in range(1000)])
    assert len(seen["routes"]) == 256
    assert seen["routes"][0]["route"] == "(other routes)"
    assert seen["routes"][0]["duplicates"] == 1000 - 255
    assert sum(r["duplicates"] for r in seen["routes"]) == 1000


def test_a_million_lines_take_no_more_memory(store):
    some = "".join(line("run_again", str(i), uri="/%d" % i)
                   for i in range(1000))
    path = log(store, *[some] * 1000)
    code = ("import resource, subprocess, sys\n"
            "out = subprocess.run(sys.argv[1:], capture_output=True)\n"
            "print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)\n"
            "sys.stdout.flush(); sys.stdout.buffer.write(out.stdout)\n")
    from once_cli import ONCE  # pylint: disable=import-outside-toplevel
    # AddressSanitizer keeps what was freed, and a shadow of everything.
    asan = os.environ.get("ASAN_OPTIONS")
    env = dict(os.environ, ASAN_OPTIONS="%s:quarantine_size_mb=8" % asan) \
        if asan else None
    out = subprocess.run(
        ["/usr/bin/python3", "-c", code, ONCE, "report", "--json", path],
        capture_output=True, check=True, text=True, timeout=300, env=env).stdout
    most, _, seen = out.partition("\n")
    assert json.loads(seen)["duplicates"] == 1000000
    assert int(most) < (131072 if asan else 65536), most  # KiB, of 200 MB


def test_several_logs_and_stdin(store):
    path = log(store, line("run"))
    done = store.once("report", "--json", "-", path, path,
                      stdin=line("run_again", "1").encode())
    seen = json.loads(done.stdout)
    assert (seen["requests"], seen["duplicates"]) == (3, 1)


def test_nothing_of_a_dry_run_is_status_1(store):
    for lines in ((), (line("-"),), (b"x\n",)):
        done = store.once("report", log(store, *lines))
        assert done.returncode == 1
        assert b"no line is of a dry run" in done.stderr


def test_what_cannot_be_read_is_said_and_nothing_is_printed(store):
    path = log(store, line("run"))
    store.bad(3, "cannot be opened", "report", path, str(store.folder / "none"))
    store.bad(3, "cannot be read", "report", str(store.folder))
    store.bad(2, "no LOG", "report")
    store.bad(2, "", "report", "--max", "3", path)
