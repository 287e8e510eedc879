# SPDX-License-Identifier: Apache-2.0
"""
The alerts: promtool reads them and plays them, each has a series that fires it
and one that does not, a section in the runbooks, and only metrics that there
are.
"""

import pathlib
import re
import subprocess

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
ALERTS = ROOT / "ops" / "alerts"
RULES = (ALERTS / "once.rules.yml").read_text("utf-8")
TESTS = (ALERTS / "once.test.yml").read_text("utf-8")
NAMES = re.findall(r"(?m)^ +- alert: (\w+)$", RULES)
BOOK = (ROOT / "docs" / "runbooks.md").read_text("utf-8")


def promtool(*words):
    out = subprocess.run(["promtool", *words], capture_output=True,
                         check=False, timeout=60, text=True)
    assert out.returncode == 0, out.stdout + out.stderr


def test_promtool_reads_the_rules():
    assert len(NAMES) == len(set(NAMES)) >= 10
    promtool("check", "rules", str(ALERTS / "once.rules.yml"))


def test_the_alerts_fire_as_they_should():
    promtool("test", "rules", str(ALERTS / "once.test.yml"))


@pytest.mark.parametrize("name", NAMES)
def test_an_alert_has_both_tests_and_its_runbook(name):
    cases = re.findall(r"alertname: %s\n +exp_alerts:(.*)" % name, TESTS)
    assert [] != [c for c in cases if c == ""] and " []" in cases
    sections = re.split(r"(?m)^## ", BOOK)
    mine = [s for s in sections if s.startswith(name + "\n")]
    assert len(mine) == 1
    for part in ("**Means.**", "**Look at.**", "**Do.**", "**Do not**"):
        assert part in mine[0], part
    rule = RULES.split("- alert: %s\n" % name)[1].split("- alert:")[0]
    assert "runbooks.md#%s'" % name.lower() in rule
    assert "severity: " in rule and "summary: " in rule


def test_each_section_of_the_runbooks_has_its_alert():
    assert re.findall(r"(?m)^## (\w+)$", BOOK) == NAMES


def test_the_alerts_use_metrics_that_there_are():
    header = (ROOT / "src" / "metrics" / "metrics.h").read_text("utf-8")
    families = set(re.findall(r'"(once_\w+)"', header))
    used = set(re.findall(r"\bonce_\w+", re.sub(
        r"(?m)^ +(summary|description|runbook_url):.*$|^#.*$", "", RULES)))
    assert {re.sub("_bucket$", "", name) for name in used} <= families
