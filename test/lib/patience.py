# SPDX-License-Identifier: Apache-2.0
"""
How long to wait for what must happen, on a machine that has other things to do.

A limit of a test is there against what never ends, and it is not a measure. So it
is said in seconds of an idle machine, and its clock runs more slowly where more
processes want to run than there are processors. What a program under test is told
(how long to idle before it ends) grows in the same way.
"""

import math
import os
import time

MOST = 20   # even so, what never ends does end the test


def stretch():
    """How many times as long something takes here and now: at least 1."""
    try:
        cpus = len(os.sched_getaffinity(0))
        return min(MOST, max(1.0, os.getloadavg()[0] / cpus))
    except OSError:
        return 1.0


class Patience:
    """Seconds that pass as on an idle machine."""

    def __init__(self, seconds, now=time.monotonic, slower=stretch):
        self.left = seconds
        self.now = now
        self.slower = slower
        self.seen = now()

    def over(self):
        now = self.now()
        self.left -= (now - self.seen) / self.slower()
        self.seen = now
        return self.left <= 0


def wait(process, seconds):
    """The status of a subprocess.Popen that has ended; None: too much time has
    passed."""
    patience = Patience(seconds)
    while True:
        status = process.poll()
        if status is not None or patience.over():
            return status
        time.sleep(0.02 if patience.left > seconds - 5 else 0.2)


def text(seconds):
    """Seconds for the command line of a program under test."""
    return "%ds" % math.ceil(seconds * stretch())
