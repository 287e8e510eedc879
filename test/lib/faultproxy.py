# SPDX-License-Identifier: Apache-2.0
"""
The fault proxy for tests in Python: faultproxy.c does it, this asks it to.
"""

import atexit
import os
import pathlib
import shutil
import subprocess
import tempfile

from machine import LOOPBACK, PATIENCE, find, free_port

HERE = pathlib.Path(__file__).resolve().parent

PORTS = 5  # to try


def fault_proxy():
    """The program's path; made in a folder of its own where Meson has not."""
    built = os.path.join(os.environ.get("ONCE_BUILD", ""), "test/faultproxy")
    if os.environ.get("ONCE_BUILD") and os.access(built, os.X_OK):
        return built
    if os.environ.get("ONCE_FAULTPROXY"):
        return os.environ["ONCE_FAULTPROXY"]
    folder = tempfile.mkdtemp(prefix="once-faultproxy.")
    atexit.register(shutil.rmtree, folder, True)
    built = os.path.join(folder, "faultproxy")
    subprocess.run(["cc", "-std=c17", "-D_GNU_SOURCE", "-O1", "-o", built,
                    HERE / "faultproxy.c"], check=True)
    os.environ["ONCE_FAULTPROXY"] = built
    return built


class Proxy:
    """test/lib/faultproxy.c in front of a port; do("open down cut 10 rst")."""

    def __init__(self, port, *rules, log=None):
        words = ["-o", str(log)] if log else []
        words += ["%s:%d" % (LOOPBACK, port), *rules]
        for _ in range(PORTS):
            if self._start(words):
                return
        raise RuntimeError("faultproxy did not start")

    def _start(self, words):
        """False: it ended, as when somebody else took the port meanwhile."""
        self.process = subprocess.Popen(
            [find("setpriv"), "--pdeathsig", "KILL", "--", fault_proxy(),
             "-l", str(free_port()), *words], text=True, bufsize=1,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        line = self.process.stdout.readline().split()
        if line:
            self.port = int(line[1])
            return True
        self.process.communicate(timeout=PATIENCE)
        return False

    def do(self, command):
        self.process.stdin.write(command + "\n")
        answer = self.process.stdout.readline().split()
        if answer[:1] != ["ok"]:
            raise RuntimeError("faultproxy: %s: %s" % (command, answer))
        return answer[1:]

    def count(self):
        """connections, open ones, bytes up, bytes down, faults"""
        return tuple(int(n) for n in self.do("count"))

    def close(self):
        self.process.stdin.close()
        status = self.process.wait(PATIENCE)
        self.process.stdout.close()
        if status != 0:
            raise RuntimeError("faultproxy ended with %d" % status)
