# SPDX-License-Identifier: Apache-2.0
"""test_units.py - systemd understands the units, and what they may do is as
little as design A14 asks for."""
import os
import pathlib
import re
import shutil
import subprocess

import pytest

BUILD = pathlib.Path(os.environ.get(
    "ONCE_BUILD", pathlib.Path(__file__).resolve().parents[2] / "build"))
SOURCE = pathlib.Path(__file__).resolve().parents[2] / "systemd"
ANALYZE = shutil.which("systemd-analyze")
UNITS = sorted(path.name.removesuffix(".in") for path in SOURCE.iterdir()
               if "@" in path.name)
MOST = 1.5

pytestmark = pytest.mark.skipif(ANALYZE is None, reason="no systemd here")


@pytest.fixture
def folder(tmp_path):
    """All units, with a program that is there."""
    for name in UNITS:
        path = BUILD / "systemd" / name
        text = (path if path.exists() else SOURCE / name).read_text()
        text = re.sub("(?m)^ExecStart=[^ ]*", "ExecStart=/bin/true", text)
        text = re.sub("(?m)^Documentation=.*\n", "", text)  # not installed
        (tmp_path / name).write_text(text)
    return tmp_path


def test_there_are_units():
    assert {"once-check@.service", "once-check@.timer", "once-purge@.service",
            "once-purge@.timer", "once-relay@.service"} <= set(UNITS)


@pytest.mark.parametrize("name", UNITS)
def test_systemd_understands_the_unit(folder, name):
    done = subprocess.run(
        [ANALYZE, "verify", str(folder / name.replace("@", "@shop"))],
        capture_output=True, text=True, timeout=60,
        env=dict(os.environ, SYSTEMD_UNIT_PATH="%s:" % folder))
    assert (done.returncode, done.stderr) == (0, ""), done


@pytest.mark.parametrize("name", [n for n in UNITS if n.endswith(".service")])
def test_the_unit_may_do_little(folder, name):
    done = subprocess.run(
        [ANALYZE, "security", "--offline=true", str(folder / name)],
        capture_output=True, text=True, timeout=60)
    found = re.search(r"Overall exposure level for .*: ([0-9.]+)", done.stdout)
    assert found and float(found[1]) <= MOST, done


@pytest.mark.parametrize("name", [n for n in UNITS if n.endswith(".service")])
def test_no_core_file_is_left(name):
    assert "\nLimitCORE=0\n" in (SOURCE / (name + ".in")).read_text()
