# SPDX-License-Identifier: Apache-2.0
"""test/lib/patience.py: limits that grow with the machine's load."""

import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "test" / "lib"))

import patience  # noqa: E402  pylint: disable=wrong-import-position


class Clock:
    def __init__(self):
        self.at = 100.0

    def __call__(self):
        return self.at


def test_on_an_idle_machine_it_is_the_clock():
    clock = Clock()
    p = patience.Patience(10, clock, lambda: 1.0)
    for _ in range(9):
        clock.at += 1
        assert not p.over()
    clock.at += 1
    assert p.over()


def test_under_load_it_runs_more_slowly_and_ends_all_the_same():
    clock, load = Clock(), [12.5]
    p = patience.Patience(10, clock, lambda: load[0])
    clock.at += 100
    assert not p.over()         # eight of the ten
    load[0] = 1.0
    clock.at += 1.5
    assert not p.over()
    clock.at += 1
    assert p.over()


def test_the_load_counts_for_each_processor_and_has_a_limit(monkeypatch):
    monkeypatch.setattr(patience.os, "sched_getaffinity", lambda pid: {0, 1})
    for load, slower in ((0.0, 1.0), (2.0, 1.0), (25.0, 12.5),
                         (1000.0, patience.MOST)):
        monkeypatch.setattr(patience.os, "getloadavg",
                            lambda load=load: (load, 0, 0))
        assert patience.stretch() == slower
    monkeypatch.setattr(patience.os, "getloadavg", lambda: (25.0, 0, 0))
    assert patience.text(2) == "25s"


def test_a_process_is_waited_for_and_one_that_never_ends_is_not():
    with subprocess.Popen(["true"]) as done:
        assert patience.wait(done, 60) == 0
    with subprocess.Popen(["sleep", "1000"]) as never:
        assert patience.wait(never, 0.1) is None
        never.kill()
