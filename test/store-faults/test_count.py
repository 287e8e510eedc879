# SPDX-License-Identifier: Apache-2.0
"""
The count itself: logs in which nothing is wrong pass, and each mistake that a
store could make is seen. A judge that sees nothing proves nothing.
"""

import pathlib
import sys

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))

import count  # noqa: E402  pylint: disable=wrong-import-position

# Key 1 is completed and replayed, 2 released and then completed, 3 given up,
# 4 executed and its complete never answered, 5 granted and its process killed.
GOOD = """\
G 1 1 10
X 1 111 10
C 1 111 0
R 1 111 3
G 2 1 11
r 2 1 11
F 2 1 11
G 2 2 12
X 2 222 12
C 2 222 0
G 3 1 13
X 3 333 13
V 3 1 13
N 3 4 0
G 4 1 14
X 4 444 14
c 4 444 5
G 5 1 15
"""
FINAL = """\
D 1 1 10 3 111
D 2 2 12 3 222
D 3 1 13 4 0
D 4 1 14 3 444
D 5 1 15 4 0
"""


def judged(tmp_path, log, final):
    (tmp_path / "log1").write_text(log)
    (tmp_path / "final").write_text(final)
    return count.count([tmp_path / "log1"], tmp_path / "final")


def test_nothing_is_wrong(tmp_path):
    sums = judged(tmp_path, GOOD, FINAL)
    assert sums.violations == []
    assert (sums.keys, sums.grants, sums.outcomes) == (5, 5, 2)
    assert sums.outcomes_lost == sums.grants_lost == 0


def test_what_was_not_answered_may_be_there_or_not(tmp_path):
    final = FINAL.replace("D 4 1 14 3 444", "D 4 1 14 4 0")
    assert judged(tmp_path, GOOD, final).violations == []


def test_a_torn_last_line_is_no_line(tmp_path):
    assert judged(tmp_path, GOOD + "C 5 5", FINAL).violations == []


def test_a_released_claim_may_be_absent(tmp_path):
    log = GOOD + "G 6 1 16\nr 6 1 16\nf 6 1 16\n"
    for row in ("D 6 1 16 0 0\n", "D 6 1 16 4 0\n"):
        assert judged(tmp_path, log, FINAL + row).violations == []


@pytest.mark.parametrize("what, log, final, said", [
    ("executed again", GOOD + "G 1 2 20\nX 1 119 20\n", FINAL,
     "executed 2 times"),
    ("granted again", GOOD + "G 5 2 20\n", FINAL, "granted twice"),
    ("a fence given twice", GOOD.replace("G 2 2 12", "G 2 2 11"), FINAL,
     "a fence was given twice"),
    ("an attempt number given twice", GOOD.replace("G 2 2 12", "G 2 1 12"),
     FINAL, "an attempt number"),
    ("told something else", GOOD + "R 1 119 3\n", FINAL, "different outcomes"),
    ("told what nobody executed", GOOD.replace("X 1 111 10\n", ""), FINAL,
     "told what nobody executed"),
    ("an outcome gone", GOOD, FINAL.replace("D 1 1 10 3 111", "D 1 0 0 0 0"),
     "told, and the record is"),
    ("an outcome unknown again", GOOD,
     FINAL.replace("D 1 1 10 3 111", "D 1 1 10 4 0"),
     "told, and the record is"),
    ("an outcome replaced", GOOD,
     FINAL.replace("D 1 1 10 3 111", "D 1 1 10 3 119"),
     "told, and the record is"),
    ("a replay without a record", GOOD + "X 6 6 1\nR 6 6 3\n",
     FINAL + "D 6 0 0 0 0\n", "told, and the record is"),
    ("a grant gone", GOOD, FINAL.replace("D 5 1 15 4 0", "D 5 0 0 0 0"),
     "granted"),
    ("a grant replaced", GOOD, FINAL.replace("D 5 1 15 4 0", "D 5 2 21 2 0"),
     "granted"),
    ("an execution forgotten", GOOD,
     FINAL.replace("D 3 1 13 4 0", "D 3 1 13 0 0"),
     "executed, and the record is absent"),
    ("recorded what nobody executed", GOOD,
     FINAL.replace("D 5 1 15 4 0", "D 5 1 15 3 5"),
     "recorded what nobody executed"),
    ("a record that does not check", GOOD + "! 1 106 0\n", FINAL,
     "does not check"),
    ("the same in the end", GOOD, FINAL + "! 5 6 0\n", "in the end"),
    ("a key nobody looked at", GOOD, FINAL.replace("D 5 1 15 4 0\n", ""),
     "was not asked"),
    ("nothing at all", "", "", "nothing was acknowledged"),
])
def test_each_mistake_is_seen(tmp_path, what, log, final, said):
    violations = judged(tmp_path, log, final).violations
    assert any(said in v for v in violations), (what, violations)
