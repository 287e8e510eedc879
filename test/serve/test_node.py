# SPDX-License-Identifier: Apache-2.0
"""
What handlers of Node may do that no scenario of test/gateway does: the tests are
in node_middleware.js.
"""

import os
import pathlib
import shutil
import subprocess

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUILD = pathlib.Path(os.environ.get("ONCE_BUILD", ROOT / "build")).resolve()
SERVE = os.environ.get("ONCE_SERVE_BIN", str(BUILD / "once-serve"))
LIMIT_S = 120


@pytest.mark.skipif(shutil.which("node") is None, reason="there is no node")
def test_what_handlers_of_node_do():
    env = dict(os.environ, ONCE_SERVE_BIN=SERVE,
               NODE_PATH="/usr/share/nodejs:/usr/share/javascript")
    env.pop("NODE_TEST_CONTEXT", None)
    done = subprocess.run(
        ["node", str(ROOT / "test/serve/node_middleware.js")], env=env,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        timeout=LIMIT_S, check=False)
    assert done.returncode == 0, done.stdout[-8000:]
