# SPDX-License-Identifier: Apache-2.0
"""test_man.py - the manual pages of commands: that they render, without a
warning, and that they tell of everything that the program takes."""
import os
import re
import shutil
import subprocess

import pytest

from once_cli import COMMANDS, ONCE, ROOT

PAGES = sorted((ROOT / "man").glob("*.scd"))
OWN_PAGE = {"console", "run", "send"}

scdoc = pytest.mark.skipif(shutil.which("scdoc") is None,
                           reason="scdoc is not installed")


def roff(page):
    done = subprocess.run(["scdoc"], stdin=open(page, "rb"), timeout=60,
                          capture_output=True)
    assert done.returncode == 0 and done.stderr == b"", done.stderr
    return done.stdout


@scdoc
@pytest.mark.parametrize("page", PAGES, ids=[p.name for p in PAGES])
def test_page_renders_without_a_warning(page, tmp_path):
    path = tmp_path / page.stem
    path.write_bytes(roff(page))
    if shutil.which("man") is None:
        pytest.skip("man is not installed")
    done = subprocess.run(
        ["man", "--warnings", "-E", "UTF-8", "-l", "-Tutf8", "-Z", str(path)],
        capture_output=True, timeout=60,
        env=dict(os.environ, MANWIDTH="80", LC_ALL="C.UTF-8"))
    assert done.returncode == 0 and done.stderr == b"", done.stderr


@scdoc
@pytest.mark.parametrize("page", PAGES, ids=[p.name for p in PAGES])
def test_page_has_no_error_for_mandoc(page):
    if shutil.which("mandoc") is None:
        pytest.skip("mandoc is not installed")
    # Its warnings are about how scdoc ends paragraphs.
    done = subprocess.run(["mandoc", "-T", "lint", "-W", "error"],
                          input=roff(page), capture_output=True, timeout=60)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("command", sorted(set(COMMANDS) - OWN_PAGE))
def test_page_tells_of_every_option(command):
    """The options come from the program itself: see `once completion`."""
    text = (ROOT / "man" / "once.1.scd").read_text()
    assert f"*{command}*" in text
    script = subprocess.run([ONCE, "completion", "bash"], check=True,
                            capture_output=True, text=True).stdout
    options = re.search(rf"^        '{command}'\*?\) o='([^']*)'", script, re.M)[1]
    for option in options.split():
        if option.startswith("--"):
            assert option in text, (command, option)


def test_page_tells_of_no_option_that_is_gone():
    text = (ROOT / "man" / "once.1.scd").read_text()
    script = subprocess.run([ONCE, "completion", "bash"], check=True,
                            capture_output=True, text=True).stdout
    known = set(re.findall(r"--[a-z-]+", script))
    told = set(re.findall(r"--[a-z][a-z-]+", text))
    assert told <= known, told - known


def test_pages_that_are_referred_to_are_there():
    names = {p.stem for p in PAGES}
    for header in (ROOT / "include/once").glob("*.h"):  # section 3
        names |= set(subprocess.run(
            [ROOT / "tools/man-page", "--names", header], check=True,
            capture_output=True, text=True).stdout.split())
    for page in PAGES:
        for name, section in re.findall(r"\*(once[a-z_-]*)\*\((\d)\)",
                                        page.read_text()):
            assert f"{name}.{section}" in names, (page.name, name)


@scdoc
def test_each_command_has_a_page(tmp_path):
    names = subprocess.run([ROOT / "tools/command-pages", "--names"],
                           check=True, capture_output=True,
                           text=True).stdout.split()
    assert set(names) | {"once-%s.1" % c for c in OWN_PAGE} == {
        "once-%s.1" % c.replace(" ", "-") for c in COMMANDS}
    subprocess.run([ROOT / "tools/command-pages", shutil.which("scdoc"),
                    tmp_path, ONCE], check=True)
    assert {p.name for p in tmp_path.iterdir()} == set(names)
