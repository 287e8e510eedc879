# SPDX-License-Identifier: Apache-2.0
"""test_servers.py - the operator's commands on stores with a server: a day in
the life of each, on real ones that test/lib/with-server starts.

What a command means is tested in test_operate.py; here it is that none of them
knows only of files.
"""
import json
import re
import subprocess

import pytest

from once_cli import (A, B, BODY, C, LAST, ONCE, OWNER, REPLAY, ROOT, TAKEOVER, ZERO,
                      Store)

WITH_SERVER = ROOT / "test" / "lib" / "with-server"


def built_in(scheme):
    done = subprocess.run([ONCE, "--store", "nosuch:", "ls"], timeout=60,
                          capture_output=True, text=True)
    return f" {scheme}:" in done.stderr


@pytest.fixture(params=["postgres", "mysql", "redis"])
def server(request, tmp_path):
    """An empty server, for one test. It ends when its stdin does."""
    if not built_in(request.param):
        pytest.skip(f"{request.param} is not built in")
    if not WITH_SERVER.exists():
        pytest.skip("no with-server")
    child = subprocess.Popen(
        [WITH_SERVER, request.param, "--", "sh", "-c",
         'echo "$ONCE_TEST_URL"; cat'], text=True, stdin=subprocess.PIPE,
        stdout=subprocess.PIPE)
    url = child.stdout.readline().strip()
    if not url.startswith(request.param):
        rest = child.communicate(timeout=60)[0]
        if child.returncode == 77:
            pytest.skip(f"{request.param} is not installed")
        pytest.fail(f"with-server: status {child.returncode}: {url} {rest}")
    store = Store(tmp_path)
    store.url = url
    store.kind = request.param
    try:
        yield store
    finally:
        child.communicate(timeout=60)
    assert child.returncode == 0


def rows(text):
    return [line.split("\t") for line in text.splitlines()]


def pairs(text):
    return dict(row for row in rows(text) if len(row) == 2)


def test_a_day_in_the_life_of_a_server(server):
    # Somebody sets it up.
    if server.kind != "redis":
        server.bad(3, "once init", "check")
        assert "CREATE" in server.ok("init", "--print")
    said = pairs(server.ok("init"))
    assert said["store"] == "ready" and said["shared"] == "yes"
    assert said["durable"] == ("yes" if server.kind != "redis" else "no")
    assert said == pairs(server.ok("init"))  # again: nothing changes
    said = pairs(server.ok("check"))
    assert said["canary"] == "well"
    assert ("caveat" in said) == (server.kind == "redis")
    assert server.ok("ls", "--all") == ""  # it has cleaned up

    # Work is done, and one request is lost.
    fence = server.seed("lost", A, "0", group="orders")
    server.seed("done", B, "success", BODY, group="orders")
    server.seed("claimed", C, "3600000", "0", group="mails")
    server.seed("done", ZERO, "failure", "")
    server.seed("lost", LAST, TAKEOVER, group="mails")
    assert [r[0] for r in rows(server.ok("ls"))] == [ZERO, A, B, C, LAST]
    assert [r[0] for r in rows(server.ok(
        "ls", "--group", "orders", "--state", "indeterminate"))] == [A]
    by_group = {r[0]: r[1:8] + r[8:9] for r in rows(server.ok("stats"))}
    assert by_group["orders"] == ["0", "0", "0", "1", "1", "0", "0", "17"]
    assert by_group["all groups"][3:5] == ["2", "2"]
    said = pairs(server.ok("verify"))
    assert said["completed"] == "2" and said["indeterminate"] == "2"
    assert said["corrupt"] == "0" and said["wrong"] in ("0", "-")
    assert server.show(B[:63] + "1")["group"] == "orders"

    # Somebody decides.
    server.bad(1, "refused: the fence is", "resolve", A, "--fence",
               str(int(fence) + 1), "--applied", "--why", "w")
    server.ok("resolve", A, "--fence", fence, "--attempt", "1", "--success",
              "-", "--status", "201", "--why", "asked the bank",
              stdin=b"charge 99")
    assert server.claim(A) == (REPLAY, 1, "201\n\ncharge 99")
    fence = server.show(LAST)["fence"]
    server.ok("resolve", LAST, "--fence", fence, "--reopen", "--why", "w")
    assert server.claim(LAST, TAKEOVER)[0] == OWNER
    server.bad(1, "kept until", "forget", A)
    server.bad(1, "owner may still answer", "forget", C, "--force", "--why",
               "w")
    assert pairs(server.ok("purge")) == {"forgotten": "0"}

    # No secret of the server's address, and no key, is anywhere.
    for words in (["dump"], ["verify"], ["stats", "--prometheus"]):
        text = server.ok(*words)
        assert "charge 99" not in text and "07" * 32 not in text


def test_what_was_kept_long_enough_is_forgotten_on_a_server(server):
    """Redis drops it by itself; then there is nothing left to purge."""
    server.ok("init")
    server.seed("many", "600", keep_ms=0)
    server.seed("lost", A, "0", keep_ms=0)
    server.ok("purge")
    left = rows(server.ok("ls", "--all"))
    assert [r[0] for r in left if r[1] == "indeterminate"] == [A]
    if server.kind != "redis":
        assert len(left) == 1


def test_a_server_that_is_not_there_is_told_without_its_password(server):
    url = re.sub(r"//(?:[^@/]*@)?127\.0\.0\.1:\d+", "//me:hunter2@127.0.0.1:1",
                 server.url)
    for words in (["check"], ["ls"], ["init"], ["verify"], ["purge"],
                  ["dump"], ["stats"], ["forget", A]):
        done = server.once("--store", url, *words)
        assert done.returncode in (2, 3, 4), words
        assert b"hunter2" not in done.stdout + done.stderr
        assert done.stderr != b""


REFUSED = {
    "postgres": [("//nobody:hunter2@", "28000", "refuses this user"),
                 ("/nodb", "3D000", "lacks the database")],
    "mysql": [("//nobody:hunter2@", "1045", "refuses this user")],
    "redis": [("//nobody:hunter2@", "user and password", "refuses this user"),
              ("/99", "ERR", "lacks the database")],
}


def test_a_server_that_refuses_is_not_taken_for_a_path(server, tmp_path):
    """Whoever reads "check the disk" after a refused login looks at the wrong
    machine."""
    names = tmp_path / "stores.d"
    names.mkdir()
    for other, said, next_step in REFUSED[server.kind]:
        url = re.sub(r"//(?:[^@/]*@)?", other, server.url) if "@" in other \
            else re.sub(r"(:\d+)(/.*)?$", r"\g<1>" + other, server.url)
        (names / "shop").write_text("url = %s\n" % url)
        (names / "shop").chmod(0o600)
        for store in (url, "name:shop"):
            for words in (["init", "--audit", "off"], ["ls"]):
                done = subprocess.run(
                    [ONCE, "--store", store, *words], capture_output=True,
                    env={"PATH": "/usr/bin", "ONCE_STORES_D": str(names)},
                    text=True, timeout=60)
                assert done.returncode == 3, done
                assert said in done.stderr and next_step in done.stderr, done
                assert "permissions" not in done.stderr, done
                assert "hunter2" not in done.stdout + done.stderr


def test_fifty_at_once_run_a_command_once(server, tmp_path):
    """As in test_run.py on files: here they meet at a server."""
    subprocess.run([ONCE, "--store", server.url, "init"], check=True,
                   timeout=60, stdout=subprocess.DEVNULL)
    words = [ONCE, "run", "--store", server.url, "--key", "k", "--", "sh",
             "-c", "echo run >>F; sleep 1; echo out; exit 3"]
    crowd = [subprocess.Popen(words, cwd=tmp_path, stdout=subprocess.PIPE,
                              stderr=subprocess.PIPE) for _ in range(50)]
    answers = [(p.communicate(timeout=300), p.returncode) for p in crowd]
    assert (tmp_path / "F").read_text() == "run\n"
    in_flight = [a for a in answers if a[1] == 76]
    answered = [a for a in answers if a[1] != 76]
    assert len(in_flight) + len(answered) == 50 and answered, answers
    for answer in answered:
        assert answer == ((b"out\n", b""), 3)
    last = subprocess.run(words, cwd=tmp_path, capture_output=True,
                          timeout=60, check=False)
    assert (last.returncode, last.stdout) == (3, b"out\n")
    assert (tmp_path / "F").read_text() == "run\n"
