# SPDX-License-Identifier: Apache-2.0
"""
The samples of once_call() and `once run`: the order service and the nightly job,
as they are shipped.

    ONCE_CLI      the program         (build/once)
    ONCE_ORDERS   the order service   (build/examples/orders/orders)
"""
import collections
import os
import pathlib
import random
import re
import shutil
import signal
import subprocess
import sys
import time

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "test" / "lib"))

# pylint: disable=wrong-import-position
import newstore  # noqa: E402
from machine import of_a_user  # noqa: E402

BUILD = pathlib.Path(os.environ.get("ONCE_BUILD", ROOT / "build")).resolve()
ONCE = os.environ.get("ONCE_CLI", str(BUILD / "once"))
ORDERS = os.environ.get("ONCE_ORDERS", str(BUILD / "examples/orders/orders"))
NIGHTLY = ROOT / "examples/nightly"
HANG = 120


# ---- orders -----------------------------------------------------------------


def start(folder, messages):
    newstore.init(f"sqlite:{folder}/orders.db")
    p = subprocess.Popen(
        [ORDERS, f"sqlite:{folder}/orders.db", str(folder / "ledger")],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    p.stdin.write("".join(m + "\n" for m in messages).encode())
    p.stdin.close()
    return p


def orders(folder, *messages):
    p = start(folder, messages)
    out, err = p.stdout.read().decode(), p.stderr.read().decode()
    return p.wait(timeout=HANG), out, err


def ledger(folder):
    path = folder / "ledger"
    return path.read_text().splitlines() if path.exists() else []


def test_the_session_of_the_readme(tmp_path):
    text = (ROOT / "examples/orders/README.md").read_text()
    typed, told = re.search(r"printf '(.*?)' \|.*?/tmp/ledger\n(.*?)    \$",
                            text, re.S).groups()
    status, out, err = orders(tmp_path, *typed.split("\\n")[:-1])
    assert (status, err) == (0, "")
    assert out == re.sub("^    ", "", told, flags=re.M)
    assert "    " + "\n".join(ledger(tmp_path)) == text.split(
        "cat /tmp/ledger\n")[1].split("\n\n")[0]


def test_a_restart_books_nothing_twice(tmp_path):
    for when in ("now", "before"):
        status, out, _ = orders(tmp_path, "o-1 1250")
        assert status == 0
        assert out.splitlines()[0] == f"o-1: booked, {when}: receipt 1"
    assert ledger(tmp_path) == ["o-1 1250"]


def test_another_amount_is_refused(tmp_path):
    status, out, _ = orders(tmp_path, "o-1 1250", "o-1 9999")
    assert status == 2
    assert "another amount" in out
    assert ledger(tmp_path) == ["o-1 1250"]


@pytest.mark.parametrize("message", ["", "o-1", "o-1 x", "o-1 -5", "o/1 5",
                                     "x" * 65 + " 5", "o-1 5 6"])
def test_nonsense_is_not_booked(tmp_path, message):
    status, _, err = orders(tmp_path, message)
    assert status == 2 and "ORDER AMOUNT" in err
    assert ledger(tmp_path) == []


def test_many_processes_some_of_them_killed_book_nothing_twice(tmp_path):
    chance = random.Random(7)
    names = [f"o-{i}" for i in range(40)]
    for _ in range(4):
        crowd = []
        for _ in range(4):
            some = [f"{n} 5" for n in names]
            chance.shuffle(some)
            crowd.append(start(tmp_path, some))
        time.sleep(chance.random() * 0.2)
        crowd[0].kill()
        for p in crowd:
            p.stdout.read()
            p.stderr.read()
            assert p.wait(timeout=HANG) in (0, 75, -signal.SIGKILL)
    booked = collections.Counter(ledger(tmp_path))
    assert booked and max(booked.values()) == 1


# ---- the night ----------------------------------------------------------------


@pytest.fixture
def night(tmp_path):
    folder = tmp_path / "nightly"
    shutil.copytree(NIGHTLY, folder)
    env = dict(of_a_user(tmp_path), ONCE=ONCE)
    subprocess.run([ONCE, "init"], env=env, check=True, timeout=HANG,
                   capture_output=True)

    def run(*words):
        return subprocess.run(words, cwd=folder, env=env, capture_output=True,
                              text=True, timeout=HANG)
    run.folder = folder
    return run


def step(night, name, script):
    path = night.folder / name
    path.write_text(f"#!/bin/sh\necho {name} >>done\n{script}\n")


def done(night):
    return (night.folder / "done").read_text().split()


def test_the_night_of_the_readme(night):
    text = (NIGHTLY / "README.md").read_text()
    told = re.search(r"nightly 2026-11-21\n((?:    .*\n)+)", text).group(1)
    for _ in range(2):
        run = night("./nightly", "2026-11-21")
        assert (run.returncode, run.stderr) == (0, "")
        assert run.stdout == re.sub("^    ", "", told, flags=re.M)


def test_only_what_has_failed_is_done_again(night):
    for name in ("collect", "report"):
        step(night, name, "")
    step(night, "bill", "[ -e paper ] || { echo no paper >&2; exit 9; }")
    run = night("./nightly", "2026-11-21")
    assert (run.returncode, run.stderr) == (9, "no paper\n")
    assert done(night) == ["collect", "bill"]
    (night.folder / "paper").touch()
    assert night("./nightly", "2026-11-21").returncode == 0
    assert done(night) == ["collect", "bill", "bill", "report"]
    assert night("./nightly", "2026-11-21").returncode == 0
    assert len(done(night)) == 4
    assert night("./nightly", "2026-11-22").returncode == 0
    assert len(done(night)) == 7


def test_at_a_lost_step_the_night_stops(night):
    for name in ("collect", "report"):
        step(night, name, "")
    step(night, "bill", "kill -9 $$")
    for _ in range(2):
        run = night("./nightly", "2026-11-21")
        assert run.returncode == 75
        assert "once resolve" in run.stderr or " resolve " in run.stderr
    assert done(night) == ["collect", "bill"]


def test_the_release_of_the_makefile(night):
    for _ in range(2):
        run = night("make", "--no-print-directory", "release", "VERSION=1.2")
        assert (run.returncode, run.stdout) == (0, "tag 1.2\nupload 1.2\n")
    assert night("make", "release").returncode == 2


# ---- the pages -----------------------------------------------------------------


LIBRARY = os.environ.get("ONCE_LIBRARY", str(BUILD / "libonce.so"))


def page_programs():
    """Every whole program in the pages, with what it is said to print."""
    md = (ROOT / "docs/calls.md").read_text()
    yield from re.findall(r"```c\n(.*?)```\n\nprints\n\n```\n(.*?)```", md,
                          re.S)
    example = ROOT / "man/once_call.example.c"
    yield example.read_text(), example.with_suffix(".txt").read_text()


def test_the_programs_in_the_pages_print_what_they_say(tmp_path):
    programs = list(page_programs())
    assert len(programs) == 2
    for i, (source, told) in enumerate(programs):
        path = tmp_path / f"page{i}.c"
        path.write_text(source)
        subprocess.run(
            ["cc", "-std=c99", "-Wall", "-Wextra", "-Wpedantic", "-Werror",
             f"-I{ROOT}/include", str(path), LIBRARY,
             f"-Wl,-rpath,{pathlib.Path(LIBRARY).parent}", "-o",
             str(tmp_path / f"page{i}"),
             *os.environ.get("ONCE_TEST_CFLAGS", "").split()],
            check=True, timeout=HANG)
        run = subprocess.run([tmp_path / f"page{i}"], capture_output=True,
                             text=True, timeout=HANG)
        assert (run.returncode, run.stdout, run.stderr) == (0, told, "")


def test_the_session_of_the_page(tmp_path):
    text = (ROOT / "docs/calls.md").read_text()
    session = re.search(r"```console\n(.*?)```", text, re.S).group(1)
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/once").symlink_to(ONCE)
    env = of_a_user(tmp_path)
    env["PATH"] = f"{tmp_path}/bin:{env['PATH']}"
    lines = re.findall(r"^\$ (.*)\n((?:(?!\$ ).*\n)*)", session, re.M)
    assert len(lines) == 9
    for typed, told in lines:
        run = subprocess.run(["sh", "-c", typed], env=env, cwd=tmp_path,
                             stdout=subprocess.PIPE, text=True,
                             stderr=subprocess.STDOUT, timeout=HANG)
        assert run.stdout == told, typed
