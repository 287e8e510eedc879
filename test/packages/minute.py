#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""minute.py - how long it takes from one apt command to a guarded location, on
a host that has neither nginx nor Once: what docs/install.md says, timed. The
times are printed and not judged. Downloads are not part of them."""
import os
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(__file__),
                                "../../debian/tests"))
from packaged import (CONF, EXECUTED, LOG, PORT, SERVICE, SITE,
                      new_then_replayed, run, serving, until)

os.environ["DEBIAN_FRONTEND"] = "noninteractive"
assert not os.path.exists("/etc/nginx")
began = last = time.monotonic()


def step(what):
    global last
    now = time.monotonic()
    print("%6.2f s  %s" % (now - last, what))
    last = now


run("sh", "-c", "cd /debs && apt-get install -y --no-install-recommends"
    " ./once_*.deb"
    " ./libnginx-mod-http-once_*.deb nginx")
step("apt install")
with open(SITE, "w", encoding="ascii") as f:
    f.write(CONF % (PORT, LOG, SERVICE, "", SERVICE, EXECUTED))
run("nginx", "-t")
run("service", "nginx", "reload")
until(serving, "nginx serves")
step("three lines, nginx -t, reload")
new_then_replayed("k-1")
step("new, then replayed")
print("%6.2f s  in all" % (last - began))
