# SPDX-License-Identifier: Apache-2.0
"""
What handlers of Node may do that no scenario of test/gateway does: the tests are
in node_*.js.
"""

import os
import pathlib
import shutil
import subprocess

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUILD = pathlib.Path(os.environ.get("ONCE_BUILD", ROOT / "build")).resolve()
SERVE = os.environ.get("ONCE_SERVE_BIN", str(BUILD / "once-serve"))
LIMIT_S = 600  # npm may have to fetch what Debian lacks


@pytest.mark.skipif(shutil.which("node") is None, reason="there is no node")
@pytest.mark.parametrize("name", ("middleware", "held", "frameworks", "clock"))
def test_what_handlers_of_node_do(name, tmp_path):
    env = dict(os.environ, ONCE_SERVE_BIN=SERVE, ONCE_NODE_FOLDER=str(tmp_path),
               NODE_PATH="/usr/share/nodejs:/usr/share/javascript")
    env.pop("NODE_TEST_CONTEXT", None)
    done = subprocess.run(
        ["node", str(ROOT / ("test/serve/node_%s.js" % name))], env=env,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        timeout=LIMIT_S, check=False)
    assert done.returncode == 0, done.stdout[-8000:]
