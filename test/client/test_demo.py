# SPDX-License-Identifier: Apache-2.0
"""make demo: the story is told on one screen, as it is meant to go, and the
demo says so itself when it goes otherwise."""

import os
import pathlib
import shutil
import subprocess
import sys

import pytest

import faults
import newstore
from faults import AGENT, BUILD, PATIENCE, PAYMENTS, ROOT

DEMO = ROOT / "examples/demo/demo"
MODULE = pathlib.Path(faults.gateway.MODULE)


@pytest.fixture
def build(tmp_path):
    """A build folder with what the demo needs, wherever that really is."""
    for path in (AGENT, PAYMENTS, MODULE):
        if not path.exists():
            pytest.skip("no %s" % path)
    if faults.gateway.NGINX is None:
        pytest.skip("no nginx")
    home = tmp_path / "build"
    for path, name in ((AGENT, "examples/agent/agent"),
                       (PAYMENTS, "examples/payments/payments"),
                       (MODULE, "ngx_http_once_module.so"),
                       (pathlib.Path(newstore.once()), "once")):
        (home / name).parent.mkdir(parents=True, exist_ok=True)
        (home / name).symlink_to(path)
    return home


def run(build, tmp_path):
    (tmp_path / "tmp").mkdir()
    done = subprocess.run(
        [sys.executable, DEMO, "--build", build], capture_output=True,
        text=True, timeout=PATIENCE, check=False,
        env=dict(os.environ, TMPDIR=str(tmp_path / "tmp")))
    # Nothing is left behind, neither files nor processes.
    assert list((tmp_path / "tmp").iterdir()) == []
    left = []
    for entry in pathlib.Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if str(tmp_path).encode() in entry.read_bytes():
                left.append(entry)
        except OSError:
            pass  # it has just ended
    assert left == []
    return done


def test_the_story_goes_as_it_is_told(build, tmp_path):
    done = run(build, tmp_path)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert len(lines) <= 24
    assert max(map(len, lines)) <= 80
    without, _, with_once = done.stdout.partition("2. With Once:")
    for part in (without, with_once):
        assert "request 1: delivered, answered 201; the answer is lost" in part
        assert "request 2: delivered, answered 201" in part
        assert "request 3" not in part
        assert "order-1 is charged, after 2 attempts with one key" in part
    assert "2 charges, 25.00 in all  <- the customer has paid twice" in without
    assert "a replay" not in without
    assert "1 charge, 12.50 in all  <- the customer has paid once" in with_once
    assert "a replay: not executed" in with_once
    assert "request 1: 502, indeterminate; request 2: 201, replayed" in \
        with_once


def test_a_story_that_goes_wrong_is_not_told_as_right(build, tmp_path):
    """A module that guards nothing: here, a configuration without it."""
    home = tmp_path / "copy"
    shutil.copytree(ROOT / "examples", home / "examples")
    shutil.copytree(ROOT / "nginx/snippets", home / "nginx/snippets")
    conf = home / "examples/gateway/nginx.conf.in"
    text = conf.read_text()
    assert "once main;" in text
    conf.write_text(text.replace("once main;", "once off;"))
    (tmp_path / "tmp").mkdir()
    done = subprocess.run(
        [sys.executable, home / "examples/demo/demo", "--build", build],
        capture_output=True, text=True, timeout=PATIENCE, check=False,
        env=dict(os.environ, TMPDIR=str(tmp_path / "tmp")))
    assert done.returncode == 1, done.stderr
    assert "this is not how it should be" in done.stdout


def test_what_is_missing_is_named(build, tmp_path):
    (build / "ngx_http_once_module.so").unlink()
    done = run(build, tmp_path)
    assert done.returncode == 2
    assert "ngx_http_once_module.so is not there: make all" in done.stderr
    assert done.stdout == ""
    assert BUILD != build
