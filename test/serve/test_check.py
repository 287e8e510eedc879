# SPDX-License-Identifier: Apache-2.0
"""
`once serve --check` says what is wrong with a middleware. (That it finds nothing
where nothing is wrong: test/gateway/test_checked.py.)
"""

import pathlib
import socket
import subprocess
import time

import pytest

from test_serve import PATIENCE, SERVE, Server

HERE = pathlib.Path(__file__).parent


@pytest.fixture(name="ask")
def asking(tmp_path):
    """ask(BREAK) is what is said of a service that was broken so."""
    running = []

    def ask(broken):
        server = Server(tmp_path).start()
        with socket.socket() as sock:
            sock.bind(("127.0.0.1", 0))
            port = sock.getsockname()[1]
        with open(tmp_path / "service.log", "wb") as log:
            # pylint: disable=consider-using-with
            running.append(subprocess.Popen(
                ["/usr/bin/python3", HERE / "checked.py", server.where[5:],
                 str(port), broken], stdout=log, stderr=log))
        running.append(server.process)
        end = time.monotonic() + PATIENCE
        while time.monotonic() < end:
            try:
                socket.create_connection(("127.0.0.1", port)).close()
                break
            except OSError:
                time.sleep(0.05)
        return subprocess.run(
            [SERVE, "--check", "http://127.0.0.1:%d/pay" % port], text=True,
            capture_output=True, check=False, timeout=4 * PATIENCE)
    yield ask
    for process in running:
        process.terminate()
        process.wait(PATIENCE)


@pytest.mark.parametrize("broken, found", [
    ("never-replays", "the handler runs once"),
    ("unguarded", "the handler runs once"),
    ("cuts-bodies", "bodies pass"),
    ("runs-behind", "the handler runs once"), ("one-type", "another type is"),
    ("one-scope", "another caller"),
    ("swallows", "an exception is an unknown outcome")])
def test_what_is_wrong_is_named(ask, broken, found):
    done = ask(broken)
    lines = [line for line in done.stdout.splitlines() if found in line]
    assert len(lines) == 1 and lines[0].startswith("FAILED  "), done.stdout
    assert done.returncode == 3 and done.stderr == ""


def test_nothing_listens(tmp_path):
    del tmp_path
    done = subprocess.run([SERVE, "--check", "http://127.0.0.1:1/"], text=True,
                          capture_output=True, check=False, timeout=PATIENCE)
    assert "none came" in done.stdout
    assert "0 of 18" in done.stdout and done.returncode == 3
