# SPDX-License-Identifier: Apache-2.0
"""
The last hour: what sources say is added up, whatever they say. Files stand in
for relays, since a test can write what it likes to them; a gateway is watched in
test_pages.py.
"""

import os
import subprocess

import pytest

from console import CONSOLE, eventually

SENT = 'once_relay_sent_total{route="bills"}'
TAKEN = 'once_relay_taken_total{route="bills"}'
OPEN = 'once_relay_circuit_open{route="a \\"quoted\\" } one"}'


def write(path, *lines):
    fresh = path.with_suffix(".new")
    fresh.write_text("# TYPE x counter\n" + "\n".join(lines) + "\n")
    fresh.rename(path)


def test_increments_are_added_up_whatever_comes(world, tmp_path):
    first, second = tmp_path / "relay.prom", tmp_path / "other.prom"
    write(first, SENT + " 100", OPEN + " 1")
    write(second, SENT + " 7")
    (tmp_path / "url").write_text("http://secret:word@127.0.0.1:1/x\n")
    (tmp_path / "url").chmod(0o600)
    console = world.console(
        "--watch", "mails=file://%s" % first, "--watch", "file://%s" % second,
        "--watch", "@%s" % (tmp_path / "url"), "--watch",
        "file:///nowhere/at/all")
    said = eventually(lambda: [
        s for s in [console.get("metrics")["sources"]] if s[3]["since"]])[0]
    assert [(s["name"], s["up"]) for s in said] == [
        ("mails", True), ("other.prom", True), ("127.0.0.1:1", False),
        ("all", False)]
    assert said[0]["gauges"] == {OPEN: 1}
    assert "secret" not in str(said) and said[2]["trouble"]
    # What was counted before the console looked is not of this hour.
    assert console.get("metrics")["series"] == {}
    # More; a counter that is new; what is no metric, or has no number.
    write(first, SENT + " 105", TAKEN + " 3", "once_relay_sent_total{", "x",
          "once_bad_total nan", "once_bad_total{a=\"b\"}", "y" * 5000 + "_total 1",
          "once_sum 3", "once_records_count 9")
    write(second, SENT + " 2")  # it was started again
    now = eventually(lambda: [
        m for m in [console.get("metrics")] if SENT in m["series"] and
        sum(m["series"][SENT]) == 7])[0]
    assert sum(now["series"][TAKEN]) == 3
    assert set(now["series"]) == {SENT, TAKEN}
    assert now["sources"][0]["gauges"] == {}
    # More series than there is room for.
    write(first, SENT + " 106", *("once_m%d_total 1" % n for n in range(5000)))
    now = eventually(lambda: [
        m for m in [console.get("metrics")] if sum(m["series"][SENT]) == 8])[0]
    assert len(now["series"]) == 2047  # and the gauge that was there
    assert len(now["stores"][0]["waiting"]) == 60


def test_a_file_that_is_not_written_any_more_is_of_no_relay(world, tmp_path):
    path = tmp_path / "relay.prom"
    write(path, SENT + " 1")
    os.utime(path, (1, 1))
    console = world.console("--watch", "file://%s" % path)
    said = eventually(lambda: [
        s for s in console.get("metrics")["sources"] if s["since"]])[0]
    assert said["up"] is False and "was last written" in said["trouble"]


def test_a_pipe_is_not_opened(world, tmp_path):
    """Nothing writes to it: opening it would take for ever."""
    write(tmp_path / "relay.prom", SENT + " 1")
    os.mkfifo(tmp_path / "a pipe")
    console = world.console(
        "--watch", "file://%s/a%%20pipe" % tmp_path, "--watch",
        "file://%s" % tmp_path, "--watch", "file://%s/relay.prom" % tmp_path)
    said = eventually(lambda: [
        s for s in [console.get("metrics")["sources"]] if s[2]["since"]])[0]
    assert [s["up"] for s in said] == [False, False, True]
    assert said[0]["trouble"] == said[1]["trouble"] == "it is no regular file"


@pytest.mark.parametrize("url, name", [
    ("http://u:secret@127.0.0.1:1/x", "127.0.0.1:1"),
    ("http://u:sec/ret@127.0.0.1:1/x", "watch-1"),
    ("http://u:sec@ret/x@127.0.0.1:1/x", "watch-1"),
    ("http://u:sec?ret@127.0.0.1:1/", "watch-1"),
    ("http://u:sec#ret@127.0.0.1:1/", "watch-1")])
def test_no_user_of_a_url_is_shown(world, tmp_path, url, name):
    (tmp_path / "url").write_text(url + "\n")
    (tmp_path / "url").chmod(0o600)
    console = world.console("--watch", "@%s" % (tmp_path / "url"))
    source, = console.get("metrics")["sources"]
    assert source["name"] == name


@pytest.mark.parametrize("url", [
    "http://secret@h/", "http://u:secret@h/", "https://u:secret/x@h/",
    "http://u:secret?x@h/", "one=http://u:secret@h/"])
def test_a_password_does_not_stand_on_the_command_line(world, url):
    done = subprocess.run(
        [CONSOLE, "--store", world.url, "--audit", "off", "--listen",
         "127.0.0.1:0", "--watch", url], capture_output=True, timeout=60)
    assert done.returncode == 2 and b"@FILE" in done.stderr
    assert b"secret" not in done.stderr


@pytest.mark.parametrize("line, status", [
    ("", 3), ("ftp://secret/", 2), ("http://secret/\x01", 2)])
def test_a_file_without_such_a_url_is_said(world, tmp_path, line, status):
    (tmp_path / "url").write_text(line)
    (tmp_path / "url").chmod(0o600)
    done = subprocess.run(
        [CONSOLE, "--store", world.url, "--audit", "off", "--listen",
         "127.0.0.1:0", "--watch", "@%s" % (tmp_path / "url")],
        capture_output=True, timeout=60)
    assert done.returncode == status and b"--watch" in done.stderr
    assert b"secret" not in done.stderr


@pytest.mark.parametrize("what", [
    "/var/relay.prom", "ftp://x/", "name=", "file:relay", "gopher://x",
    "x" * 70 + "=http://a/"])
def test_what_cannot_be_watched_is_said(world, what):
    done = subprocess.run(
        [CONSOLE, "--store", world.url, "--audit", "off", "--listen",
         "127.0.0.1:0", "--watch", what], capture_output=True, timeout=60)
    assert done.returncode == 2 and b"--watch" in done.stderr
