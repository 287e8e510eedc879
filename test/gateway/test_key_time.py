# SPDX-License-Identifier: Apache-2.0
"""
Keys that carry the time at which they were made (`once_key_time`): one that is
older than anything is kept is told what is recorded of it, and never executes.
The same stories on every store, each on one site, since servers take long to
start; ages are waited for with the real clock.
"""

import os
import time

import pytest

from gateway import (Answer, Drop, Hold, eventually, guarded, is_new,
                     is_problem, is_replay)
from stores import STORES, a_world, new_store

DIGITS = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"

# How old a key may be in the stories, and how old theirs are at first.
MOST, YOUNG = 60, 56

TIMED = (guarded("/pay/", "once_ttl 1h; once_key_time uuid7 max_age=60s; "
                 "once_final 2xx 4xx;") +
         guarded("/ulid/", "once_key_time ulid;"))


def uuid7(ago=0.0):
    """A UUID of version 7 that was made so many seconds ago."""
    text = "%012x7%019x" % (int((time.time() - ago) * 1000),
                            int.from_bytes(os.urandom(9), "big"))
    text = text[:16] + "b" + text[17:]
    return "-".join((text[:8], text[8:12], text[12:16], text[16:20],
                     text[20:]))


def ulid(ago=0.0):
    number = int((time.time() - ago) * 1000) << 80 | \
        int.from_bytes(os.urandom(10), "big")
    return "".join(DIGITS[number >> 5 * i & 31] for i in reversed(range(26)))


@pytest.fixture(name="world", scope="module")
def the_world():
    with a_world() as world:
        yield world


@pytest.fixture(name="url", params=STORES)
def url_of(request, world, tmp_path):
    return new_store(world, request.param, tmp_path)


def expired(response, text="too old"):
    body = is_problem(response, "key-expired")
    assert text in body["detail"] and body["state"] == "absent", body


def test_a_key_older_than_the_retention_is_not_executed_again(make, url):
    """Without once_key_time both keys would execute here a second time."""
    site = make(guarded("/pay/", "once_ttl 1s; once_lease 500ms;"), store=url)
    old, later = site.case("/pay/"), site.case("/pay/")
    key, young = uuid7(2 * 3600), uuid7()
    is_new(old.post(key=key))
    is_new(later.post(key=young))
    eventually(lambda: later.post(key=young).once == "new")
    assert later.executions == 2        # the older record is forgotten, too
    site.gateway.kill_all()
    site.gateway.texts["server"] = guarded(
        "/pay/", "once_ttl 1h; once_key_time uuid7;")
    site.gateway.start()
    expired(old.post(key=key))
    assert old.executions == 1
    is_new(later.post(key=uuid7()))


def test_what_is_recorded_of_a_key_that_is_too_old_is_told(make, url):
    site = make(TIMED, store=url)
    done, failed, freed, lost = (
        site.case("/pay/"), site.case("/pay/", Answer(500, b"no\n")),
        site.case("/pay/", Answer(429, b"no\n")), site.case("/pay/", Drop()))
    hold = Hold()
    held = site.case("/pay/", hold)
    for c in (done, failed, freed, lost, held):
        c.key = uuid7(YOUNG)
    with held.start() as owner:
        hold.wait()
        firsts = [c.post() for c in (done, failed, freed, lost)]
        assert [r.status for r in firsts] == [201, 500, 429, 502]
        assert failed.post().once == "new"      # it may be tried again
        time.sleep(MOST - YOUNG + 0.1)
        is_problem(held.post(), "in-flight")
        is_replay(done.post(), firsts[0])
        is_problem(done.post(body=b"other"), "key-reused")
        is_replay(failed.post(), firsts[1])     # and now it is not
        expired(freed.post())
        is_problem(lost.post(), "outcome-unknown")
        hold.go.set()
        first = is_new(owner.read())
        is_replay(held.post(), first)
    assert [c.executions for c in (done, failed, freed, lost, held)] == \
        [1, 2, 1, 1, 1]
    # Never seen, from the future, and without a time.
    other = site.case("/pay/")
    expired(other.post(key=uuid7(MOST + 5)))
    expired(other.post(key=uuid7(-600)), "ahead")
    body = is_problem(other.post(), "key-invalid")
    assert "version 7" in body["detail"]
    assert other.executions == 0
    is_new(other.post(key=uuid7(-200).upper()))
    is_new(site.case("/ulid/").post(key=ulid().lower()))
    expired(site.case("/ulid/").post(key=ulid(24 * 3600)))
