# SPDX-License-Identifier: Apache-2.0
"""
post_action sends another request after the guarded one has ended: that is never
taken for the guarded request's own dispatch.
"""

import socket
import struct

import pytest

from gateway import (Answer, Hold, Locked, guarded, is_new, is_replay,
                     replays_in_the_end)

SECOND = Answer(201, b"a second execution\n")


def reset(client):
    """Leaves with a RST, so that the next write to this client fails."""
    client.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER,
                           struct.pack("ii", 1, 0))
    client.sock.close()


AFTER = """
    location = /after { proxy_pass http://UPSTREAM1/after; }
"""


@pytest.mark.nginx_only("post_action")
def test_a_post_action_of_a_waiter_that_left_is_not_the_dispatch(make):
    site = make(guarded("/pay/", "once_in_flight wait=20s;"
                        "post_action /after;") + AFTER, upstreams=2,
                workers=1)
    hold = Hold(Answer(429, b"not now\n"))
    c = site.case("/pay/", hold, Answer())
    with c.start() as owner:
        hold.wait()
        with c.start() as waiter:
            site.turn()
            waiter.hang_up()
        site.turn()
        hold.go.set()
        assert owner.read().status == 429
    site.turn()
    first = is_new(c.post())
    is_replay(c.post(), first)
    assert c.executions == 2


@pytest.mark.nginx_only("post_action")
def test_a_post_action_after_a_client_left_while_its_outcome_was_stored(make):
    site = make(guarded("/pay/", "post_action /after;") + AFTER, upstreams=2,
                workers=1)
    is_new(site.case("/pay/").post())
    hold = Hold()
    c = site.case("/pay/", hold, SECOND)
    client = c.start()
    hold.wait()
    with Locked(site):
        hold.go.set()
        site.turn()
        reset(client)
        site.turn()
    assert replays_in_the_end(c).body == b"made\n"
    assert c.executions == 1


@pytest.mark.nginx_only("post_action")
def test_a_post_action_after_an_unsent_request_is_not_its_outcome(make):
    site = make(guarded("/pay/", "post_action /after;",
                        target="http://UPSTREAM2") + AFTER, upstreams=3,
                listen=False)
    c = site.case("/pay/")
    assert c.post().status == 502
    site.upstreams[2].listen()
    first = is_new(c.post())
    is_replay(c.post(), first)
    assert c.executions == 1
