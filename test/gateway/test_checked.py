# SPDX-License-Identifier: Apache-2.0
"""
`once serve --check` finds nothing at the gateway, at a guard, or at a service with
one of the middlewares: what it asks of a stranger's middleware they all keep.
(That it finds what is wrong: test/serve/test_check.py.)
"""

import os
import pathlib
import subprocess
import time
import uuid

from gateway import BUILD, PATIENCE, TARGET, Drop, guarded, message

SERVE = os.environ.get("ONCE_SERVE_BIN", str(pathlib.Path(BUILD) / "once-serve"))
# A server of any name has a realm for each Host: once_realm in nginx/README.md.
SERVER = ("server_name 127.0.0.1;" if TARGET == "nginx" else "") + \
    guarded("/check/", "once_in_flight wait=10s;", scope="$http_check_user")


RUNS = []


def handler(conn, request):
    """The handler that docs/serve.md asks for."""
    what = request.get("Check-Do")
    if what == "count":
        conn.sock.sendall(message(200, b"", [("Check-Runs", len(RUNS))]))
        return
    RUNS.append(1)
    lines = [("Check-Run", str(uuid.uuid4()))]
    if what == "raise":
        Drop()(conn, request)
        return
    if what == "empty":
        conn.sock.sendall(message(204, b"", lines))
        return
    if what == "refuse":
        conn.sock.sendall(message(409, b"refused\n", [
            ("Idempotency-Outcome", "not-applied")]))
        return
    if what == "wait":
        time.sleep(1)
    body = b"x" * (2 << 20) if what == "large" else request.body
    conn.sock.sendall(message(201, body, lines + [
        ("Content-Type", "application/octet-stream"),
        ("Check-Attempt", request.get("Idempotency-Attempt") or ""),
        ("Check-Lines", " ".join(sorted(
            n.lower() for n, _ in request.headers
            if n.lower().startswith("idempot")))),
        ("Check-Bytes", request.get("Check-Bytes") or ""),
        ("Check-Two", "one"), ("Check-Two", "two")]))


def test_nothing_is_found(site):
    c = site.case("/check/", handler)
    done = subprocess.run(
        [SERVE, "--check", "http://127.0.0.1:%d%s" % (site.gateway.port, c.path)],
        capture_output=True, text=True, timeout=4 * PATIENCE, check=False,
        stdin=subprocess.DEVNULL)
    found = [line for line in done.stdout.splitlines()
             if line.startswith("FAILED")]
    if TARGET in ("nginx", "guarded"):
        # Their own limit of any request; and a record only where they ask for it.
        found = [line for line in found if "a long request" not in line and
                 "cannot forge" not in line]
    assert not found, done.stdout + done.stderr
    assert done.stdout.count("ok  ") >= 16, done.stdout
