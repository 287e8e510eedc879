# SPDX-License-Identifier: Apache-2.0
"""tools/build-module and the sources of an nginx: what it refuses before it
builds anything. What it builds is run by test/reach/versions."""

import os
import pathlib
import re
import subprocess

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUILD = os.environ.get("ONCE_BUILD", str(ROOT / "build"))


def build_module(*words):
    out = subprocess.run([str(ROOT / "tools/build-module"), *map(str, words)],
                         capture_output=True, check=False, timeout=120,
                         text=True)
    return out.returncode, out.stderr


@pytest.fixture
def sources(tmp_path):
    """Makes a folder that names this version, and no more."""
    def make(version, name="nginx"):
        core = tmp_path / "src" / "core"
        core.mkdir(parents=True)
        (core / "nginx.h").write_text(
            '#define NGINX_VERSION "%s"\n#define NGINX_VER "%s/" NGINX_VERSION'
            % (version, name))
        return tmp_path

    return make


def debians():
    """The version of Debian's nginx on this machine, or None."""
    out = subprocess.run(["dpkg-query", "-W", "-f", "${Provides}", "nginx"],
                         capture_output=True, check=False, text=True)
    found = re.search(r"nginx-abi-([0-9.]+)-", out.stdout)
    return found and found[1]


@pytest.mark.skipif(debians() is None, reason="no nginx of Debian's here")
def test_sources_of_debians_version_are_refused(sources):
    """The module would load into Debian's nginx, and read its structures at
    places where they are not."""
    status, said = build_module(BUILD, "--nginx-source", sources(debians()),
                                "--with-compat")
    assert status == 1 and "install nginx-dev" in said, said


def test_a_folder_without_sources_is_refused(tmp_path):
    status, said = build_module(BUILD, "--nginx-source", tmp_path)
    assert status == 1 and "no src/core/nginx.h" in said, said


def test_sources_without_configure_do_not_become_a_module(sources, tmp_path):
    status, said = build_module(BUILD, "--nginx-source",
                                sources("9.9.9", "other"), "--with-compat")
    made = pathlib.Path(BUILD) / "other-9.9.9"
    assert status == 1 and "failed; all of it is in" in said, said
    assert not (made / "ngx_http_once_module.so").exists()
    subprocess.run(["rm", "-rf", str(made)], check=True)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["src"]


@pytest.mark.parametrize("words", [
    (), (BUILD, "--with-compat"), (BUILD, "--nginx-source"),
    (BUILD, "--sources", "x")], ids=str)
def test_other_words_are_refused(words):
    status, said = build_module(*words)
    assert status == 2 and said.startswith("usage: "), said
