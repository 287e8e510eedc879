# SPDX-License-Identifier: Apache-2.0
"""For all Python tests: when those of a process have ended, nothing that they left
may hold a secret (lib/marks.py)."""

import pathlib
import sys

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent / "lib"))

import marks  # noqa: E402  pylint: disable=wrong-import-position


@pytest.fixture(scope="session", autouse=True)
def no_secret_is_left(tmp_path_factory):
    folder = tmp_path_factory.getbasetemp()
    marks.capture(folder)
    yield
    found = marks.leaks(folder)
    assert not found, "secrets are in %s: %s" % (folder, found[:20])
