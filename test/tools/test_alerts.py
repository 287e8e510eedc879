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


@pytest.mark.parametrize("name", NAMES)
def test_an_alert_says_which_host_and_store(name):
    """Stores of two hosts may have one name."""
    fired = re.findall(r"alertname: %s\n +exp_alerts:\n +- exp_labels:\n"
                       r"((?: {14}\w+: \S+\n)+)" % name, TESTS)
    assert any("instance: " in labels for labels in fired)
    if name not in ("OnceGatewayDown", "OnceMetricsMissing"):
        assert all("instance: " in x and "store: " in x for x in fired), fired


ONE = """
rule_files: [%s]
evaluation_interval: 1m
tests:
  - interval: 1m
    input_series:
%s
    alert_rule_test:
%s
"""
MINUTES = range(1, 40)


def play(folder, series, names):
    """None of these fires at any time."""
    case = folder / "case.yml"
    case.write_text(ONE % (
        ALERTS / "once.rules.yml",
        "\n".join("      - {series: '%s', values: '%s'}" % x for x in series),
        "\n".join("      - {eval_time: %dm, alertname: %s, exp_alerts: []}" %
                  (m, n) for m in MINUTES for n in names)))
    promtool("test", "rules", str(case))


LABELS = 'job="once",instance="a",store="pay"'
REQUESTS = "once_requests_total{%s,route=\"-\",status=\"%%s\"}" % LABELS


@pytest.mark.parametrize("others", ["0x40", "0+1x40", "0+600x40"])
def test_one_refused_request_wakes_nobody(tmp_path, others):
    """The store gives no answer once; its client gets 503 and sends again."""
    play(tmp_path, [
        ('up{job="once",instance="a"}', "1x40"),
        ("once_store_up{%s}" % LABELS, "1x9 0 1x30"),
        (REQUESTS % "unavailable", "0x9 1x30"), (REQUESTS % "new", others),
        (REQUESTS % "unprotected", "0x40"),
        ("once_store_unanswered_total{%s}" % LABELS, "0x9 1x30"),
        ("once_oldest_indeterminate_timestamp_seconds{%s}" % LABELS, "0x40"),
        ("once_store_rollbacks_total{%s}" % LABELS, "0x40"),
        ("once_store_corrupt_total{%s}" % LABELS, "0x40")], NAMES)


def test_an_outcome_that_is_decided_in_time_wakes_nobody(tmp_path):
    """One after the other is unknown for nine minutes, as the runbook allows."""
    oldest = ["%d" % (m // 9 * 9 * 60 + 60) for m in MINUTES]
    attempts = ('once_attempts_total{%s,route="-",outcome="%%s",reason="-"}' %
                LABELS)
    play(tmp_path, [
        ('up{job="once",instance="a"}', "1x40"),
        ("once_store_up{%s}" % LABELS, "1x40"),
        ('once_records{%s,state="indeterminate"}' % LABELS, "1x40"),
        ("once_oldest_indeterminate_timestamp_seconds{%s}" % LABELS,
         "0 " + " ".join(oldest)),
        (attempts % "indeterminate", "0x8 1x8 2x8 3x8 4x8"),
        (attempts % "success", "0+9x40")], NAMES)


def test_each_section_of_the_runbooks_has_its_alert():
    assert re.findall(r"(?m)^## (\w+)$", BOOK) == NAMES


def test_the_alerts_use_metrics_that_there_are():
    header = (ROOT / "src" / "base" / "metrics.h").read_text("utf-8")
    families = set(re.findall(r'"(once_\w+)"', header))
    used = set(re.findall(r"\bonce_\w+", re.sub(
        r"(?m)^ +(summary|description|runbook_url):.*$|^#.*$", "", RULES)))
    assert {re.sub("_bucket$", "", name) for name in used} <= families
