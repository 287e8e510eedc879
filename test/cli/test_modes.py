# SPDX-License-Identifier: Apache-2.0
"""test_modes.py - whatever the commands and the console leave is its user's own,
also under umask 0: stores and copies hold answers, orders hold requests, and the
console's token makes its reader the operator."""
import os
import subprocess

import pytest

from machine import of_a_user
from modes import open_to_others
from once_cli import ONCE, Store, states

CONSOLE = os.environ.get("ONCE_CONSOLE", os.path.join(
    os.path.dirname(ONCE), "once-console"))

# The log of decisions is for a group that looks after it; who may connect to the
# socket is looked at.
MEANT = [("/audit.jsonl", 0o640), ("/console.sock", 0o660)]


@pytest.fixture
def umask():
    before = os.umask(0)
    yield
    os.umask(before)


@pytest.mark.parametrize("scheme", ["journal", "sqlite"])
def test_a_store_its_copies_its_console_and_the_log(umask, tmp_path, scheme):
    store = Store(tmp_path / "mine", scheme)
    store.folder.mkdir(mode=0o700)
    store.ok("init")
    states(store)
    store.ok("backup", "--copy", str(store.folder / "copy"))
    again = Store(store.folder, scheme)
    again.url = "%s:%s" % (scheme, store.folder / "again")
    again.ok("restore", "--copy", str(store.folder / "copy"), "--gap", "hold",
             "--longest", "1d", "--why", "the disk died")
    # While it has the store open there are files of SQLite beside it.
    with subprocess.Popen(
            [CONSOLE, "--store", store.url, "--audit", "off", "--listen",
             "unix:%s/console.sock" % store.folder],
            stdout=subprocess.PIPE) as console:
        assert b"listening" in console.stdout.readline()
        store.ok("ls")
        left = open_to_others(store.folder, allowed=MEANT)
        console.terminate()
    assert not left
    assert not open_to_others(store.folder, allowed=MEANT)


def test_what_run_and_send_remember(umask, tmp_path):
    folder = tmp_path / "mine"
    folder.mkdir(mode=0o700)
    env = of_a_user(folder)
    store = "sqlite:%s/state/once/store.db" % folder
    subprocess.run([ONCE, "--store", store, "init"], env=env, check=True,
                   timeout=60, capture_output=True)
    subprocess.run([ONCE, "run", "--key", "k", "--", "echo", "paid"], env=env,
                   check=True, timeout=60, capture_output=True)
    # Nobody is there, so the order stays with its request.
    done = subprocess.run([ONCE, "send", "POST", "http://127.0.0.1:1/charge",
                           "--order", "1", "--data", "card", "--deadline",
                           "1s"], env=env, timeout=60, capture_output=True)
    assert os.path.exists(folder / "state/once/client.db"), done
    assert not open_to_others(folder, allowed=MEANT)
