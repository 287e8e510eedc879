# SPDX-License-Identifier: Apache-2.0
"""
Clients that leave while it is recorded that their response is not kept, and
streams for which that fails.
"""

import pathlib
import socket
import struct
import subprocess

import pytest

from gateway import (PATIENCE, Answer, Hold, Locked, Raw, curl_h2_args,
                     eventually, guarded, is_new, is_problem, settles)

SECOND = Answer(201, b"a second execution\n")
LARGE = b"large " * 20000


def reset(client):
    """Leaves with a RST, so that the next write to this client fails."""
    client.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER,
                           struct.pack("ii", 1, 0))
    client.sock.close()


SSE = Raw(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n"
          b"data: 1\n\n")


@pytest.mark.parametrize("more, script", [
    ("once_max_response 1k;", Answer(201, LARGE * 10)),
    ("once_max_response 1k; proxy_buffering off;", Answer(201, LARGE * 10)),
    ("once_max_response 1k;", Raw(
        b"HTTP/1.1 201 Made\r\n\r\n" + LARGE * 10)),
    ("", SSE)], ids=["large", "unbuffered", "until_eof", "events"])
@pytest.mark.parametrize("h2", [
    pytest.param(False, id="h1"),
    pytest.param(True, id="h2", marks=pytest.mark.nginx_only("HTTP/2"))])
def test_a_client_that_leaves_while_the_mark_is_stored(
        make, monkeypatch, more, script, h2):
    # A use after free must not go well by chance.
    monkeypatch.setenv("MALLOC_PERTURB_", "170")
    site = make(guarded("/pay/", more), workers=1)
    is_new(site.case("/pay/", Answer(201)).post())
    for _ in range(3):
        hold = Hold(script)
        c = site.case("/pay/", hold, SECOND)
        if h2:
            # pylint: disable=consider-using-with
            client = subprocess.Popen(
                curl_h2_args(site.gateway.h2, c.path,
                             headers=[("Idempotency-Key", c.key)]),
                stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)
            client.stdin.write(b"{}")
            client.stdin.close()
        else:
            client = c.start(body=b"{}")
        hold.wait()
        with Locked(site):
            hold.go.set()
            site.turn()
            if h2:
                client.kill()
                client.wait(PATIENCE)
            else:
                reset(client)
            site.turn()
        settles(c, "response-unavailable", body=b"{}")
        assert c.executions == 1
    eventually(lambda: live(site) == 0)


def live(site):
    """Connections that nginx still has to the upstream."""
    count = 0
    for line in pathlib.Path("/proc/net/tcp").read_text().splitlines()[1:]:
        field = line.split()
        if int(field[2].split(":")[1], 16) == site.upstream.port and \
                field[3] == "01":
            count += 1
    return count


def test_a_stream_whose_mark_fails_ends_at_the_upstream_too(make):
    site = make(guarded("/pay/", "once_lease 1s;"), workers=1,
                store="faulty:fail=complete:1-*@sqlite")
    hold = Hold(before=b"HTTP/1.1 200 OK\r\n"
                       b"Content-Type: text/event-stream\r\n\r\n")
    c = site.case("/pay/", hold, SECOND)
    is_problem(c.post(), "outcome-unknown", 502)
    # Nobody listens any more.
    assert hold.conn.peer_gone(PATIENCE)
    assert c.executions == 1
