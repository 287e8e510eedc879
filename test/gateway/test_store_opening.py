# SPDX-License-Identifier: Apache-2.0
"""
A store behind a network that is not there, or hangs, when nginx starts,
reloads or replaces a worker: what is not guarded is served as if nothing were,
guarded locations answer 503 until the store is there, and then they work.
"nginx -t" warns about a server that does not answer, and still refuses what no
waiting would repair.
"""

import os
import pathlib
import re
import signal
import sys

import pytest

import gateway
from gateway import (Drop, Hold, eventually, guarded, is_new, is_problem,
                     is_replay)

sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "lib"))

# pylint: disable=wrong-import-position
import newstore  # noqa: E402
import servers  # noqa: E402

pytestmark = pytest.mark.nginx_only("it opens its stores in its workers")

# What killing a worker makes nginx say.
KILLED = [r"signal 9", r"SIGKILL", r"open socket #"]
EMERG = [r"\[emerg\]"]


@pytest.fixture(name="world")
def the_world():
    with servers.World() as world:
        yield world


def server_of(world, kind):
    """A server that ran and is furnished, and is down now; and its URL."""
    try:
        if kind == "redis":
            server = servers.Redis(world).start()
            url = server.url()
            newstore.init(url)
        else:
            server = servers.Postgres(world).init().start().furnish()
            url = server.url()
            newstore.init(url)
    except servers.Missing as missing:
        pytest.skip(str(missing))
    server.stop()
    return server, url


KINDS = ["redis", "postgres"]


def unavailable(case):
    is_problem(case.post(), "store-unavailable")
    assert case.executions == 0


def answered(case):
    response = case.post()
    return None if response.status == 503 else response


def works(site):
    """Asks with new keys until the store has been found."""
    def look():
        c = site.case("/pay/")
        first = answered(c)
        if first is None:
            assert c.executions == 0
            return None
        is_new(first)
        # The other worker may not have found it yet.
        is_replay(eventually(lambda: answered(c)), first)
        assert c.executions == 1
        return c
    return eventually(look)


# ---- Start, reload -------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_nginx_starts_before_its_store(make, world, kind):
    server, url = server_of(world, kind)
    site = make(guarded("/pay/"), store=url, workers=2)
    assert site.get().status == 200
    unavailable(site.case("/pay/"))
    server.start()
    works(site)


@pytest.mark.parametrize("kind", KINDS)
def test_nginx_reloads_while_its_store_is_down(make, world, kind):
    server, url = server_of(world, kind)
    server.start()
    site = make(guarded("/pay/"), store=url, workers=2)
    works(site)
    server.kill()
    site.gateway.reload()
    assert site.get().status == 200
    unavailable(site.case("/pay/"))
    server.start()
    works(site)


def test_what_is_not_guarded_does_not_wait_for_a_store_that_hangs(make, world):
    server, url = server_of(world, "redis")
    server.start()
    site = make(guarded("/pay/"), store=url + "?timeout_ms=%d" % (
        gateway.PATIENCE * 1000), workers=1, allow=KILLED)
    c = works(site)
    server.pause()
    old = site.gateway.worker_pids()
    os.kill(old[0], signal.SIGKILL)
    eventually(lambda: set(site.gateway.worker_pids()) - set(old))
    asked = site.case("/pay/")
    with asked.start() as waiting, c.start() as again:
        for _ in range(5):
            assert site.get().status == 200
        assert not waiting.has_bytes() and not again.has_bytes()
        server.resume()
        # What came while it was opened for the first time has waited for it.
        is_new(waiting.read("POST"))
        assert again.read("POST").once == "replayed"
    assert (asked.executions, c.executions) == (1, 1)


def test_a_worker_that_still_opens_its_store_can_be_stopped(make, world):
    server, url = server_of(world, "redis")
    server.start()
    site = make(guarded("/pay/"), store=url + "?timeout_ms=1000", workers=1)
    server.pause()
    old = site.gateway.worker_pids()
    site.gateway.reload()
    c = site.case("/pay/")
    with c.start() as waiting:
        site.get()
        site.gateway.reload()
        assert waiting.read("POST").status == 503
    eventually(lambda: all(site.gateway.ended(p) for p in old))
    server.resume()
    works(site)
    assert c.executions == 0


@pytest.mark.parametrize("kind", KINDS)
def test_a_store_that_stands_still_holds_what_is_guarded_for_its_timeout(
        make, world, kind):
    server, url = server_of(world, kind)
    server.start()
    site = make(guarded("/pay/", "send_timeout 2s; once_lease 2s;"), store=url,
                workers=1)
    before = works(site)
    hold = Hold()
    owner = site.case("/pay/", hold)
    with owner.start() as client:
        hold.wait()
        server.pause()
        for _ in range(3):
            assert site.get().status == 200
        unavailable(site.case("/pay/"))
        hold.go.set()
        # Its answer is there, and nobody can say that it is recorded.
        is_problem(client.read(), "outcome-unknown", 502)
        assert site.get().status == 200
    server.resume()
    works(site)
    assert (before.executions, owner.executions) == (1, 1)


# ---- nginx -t ------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_a_server_that_does_not_answer_is_a_warning(make, world, kind):
    _, url = server_of(world, kind)
    site = make(guarded("/pay/"), store=url, start=False)
    status, said = site.gateway.check()
    assert status == 0, said
    assert '[warn] ' in said and 'once_store "main": ' in said
    assert "503" in said


def test_a_server_that_hangs_is_a_warning(make, world):
    server, url = server_of(world, "redis")
    server.start()
    server.pause()
    site = make(guarded("/pay/"), store=url + "?timeout_ms=300", start=False)
    status, said = site.gateway.check()
    assert status == 0, said
    assert "[warn] " in said


@pytest.mark.parametrize("url", [
    "redis://127.0.0.1:1?nosuch=1", "postgres://once@/?nosuch=1",
    "sqlite:/no/such/folder/db", "journal:/no/such/folder/pay", "nosuch:url"])
def test_what_no_waiting_repairs_is_an_error(make, url):
    site = make(guarded("/pay/"), store=url, start=False,
                allow=EMERG)
    status, said = site.gateway.check()
    assert status != 0
    assert "[emerg] " in said and 'once_store "main": ' in said


def test_a_server_that_answers_and_will_not_do_is_an_error(make, world):
    server, url = server_of(world, "redis")
    server.settings["maxmemory-policy"] = "allkeys-lru"
    server.start()
    site = make(guarded("/pay/"), store=url, start=False,
                allow=EMERG)
    status, said = site.gateway.check()
    assert status != 0 and "maxmemory-policy" in said
    site = make(guarded("/pay/"), store=url.replace("//", "//u:wr0ng@"),
                start=False, allow=EMERG)
    status, said = site.gateway.check()
    assert status != 0 and "wr0ng" not in said


def test_a_database_without_our_schema_is_an_error(make, world):
    server, url = server_of(world, "postgres")
    server.start()
    site = make(guarded("/pay/"), store=url + "?schema=nosuch", start=False,
                allow=EMERG, init=False)
    status, said = site.gateway.check()
    assert status != 0 and "once init" in said
    site = make(guarded("/pay/"), store=url.replace("/once", "/nosuch"),
                start=False, allow=EMERG)
    status, said = site.gateway.check()
    assert status != 0, said


# ---- A store that is missing -----------------------------------------------


def refused(site):
    status, said = site.gateway.check()
    assert status != 0 and "once init" in said, said
    assert "[emerg] " in said and 'once_store "main": ' in said
    return said


@pytest.mark.parametrize("kind", ["sqlite", "journal"])
@pytest.mark.parametrize("what", ["store", "folder"])
def test_a_store_that_was_moved_is_not_made_anew(make, tmp_path, kind, what):
    folder = tmp_path / "disk"
    folder.mkdir()
    site = make(guarded("/pay/"), store="%s:%s/pay" % (kind, folder),
                allow=EMERG)
    c = works(site)
    site.gateway.quit()
    site.gateway.wait_end()
    there = folder if what == "folder" else folder / "pay"
    there.rename(tmp_path / "away")
    if what == "folder":  # where a disk is mounted, and is not
        folder.mkdir()
    for _ in range(2):
        assert "%s/pay" % folder in refused(site)
    assert not (folder / "pay").exists()
    if what == "folder":
        folder.rmdir()
    (tmp_path / "away").rename(there)
    site.gateway.start()
    assert c.post().once == "replayed" and c.executions == 1


@pytest.mark.parametrize("kind", ["sqlite", "journal"])
def test_a_store_that_is_empty_is_not_one(make, tmp_path, kind):
    place = tmp_path / "pay"
    if kind == "sqlite":
        place.write_bytes(b"")
    else:
        place.mkdir(0o700)
        (place / "lost+found").mkdir()
    site = make(guarded("/pay/"), store="%s:%s" % (kind, place), start=False,
                allow=EMERG, init=False)
    refused(site)
    assert kind == "journal" or place.read_bytes() == b""
    assert kind == "sqlite" or os.listdir(place) == ["lost+found"]


@pytest.mark.parametrize("kind", KINDS)
def test_a_server_that_is_empty_again_is_refused(make, world, kind):
    server, url = server_of(world, kind)
    server.start()
    site = make(guarded("/pay/"), store=url, allow=EMERG)
    c = works(site)
    if kind == "redis":
        server.ask("FLUSHALL")
    else:
        server.sql("DROP SCHEMA once CASCADE", "once")
    # The gateway that has it open: within a second, and for ever.
    eventually(lambda: site.case("/pay/").post().status == 503)
    for _ in range(20):
        unavailable(site.case("/pay/"))
    assert c.post().status == 503 and c.executions == 1
    refused(site)
    newstore.init(url)
    site.gateway.reload()
    eventually(lambda: site.case("/pay/").post().status == 201)


# ---- What the log says ---------------------------------------------------


def test_what_a_store_can_lose_is_said_once_as_a_warning(make, world):
    server, url = server_of(world, "redis")
    server.start()
    site = make(guarded("/pay/"), store=url, workers=3)

    def lines():
        return [x for x in site.gateway.log("error.log").splitlines()
                if "is not durable" in x]
    works(site)
    assert len(lines()) == 1
    assert "[warn]" in lines()[0]
    site.gateway.reload()
    works(site)
    assert len(lines()) == 2  # an operator has looked at the configuration


def test_what_a_store_can_lose_is_said_by_a_worker_if_it_was_away(make, world):
    server, url = server_of(world, "redis")
    site = make(guarded("/pay/"), store=url, workers=3)
    server.start()
    eventually(lambda: "[warn]" in "".join(
        x for x in site.gateway.log("error.log").splitlines()
        if "is not durable" in x))
    works(site)
    assert site.gateway.log("error.log").count("is not durable") == 1


# ---- Outcomes that become unknown ----------------------------------------


def unknown_line(site, case, attempt=1):
    """The line that says so, when it is there. Where the store did not take an
    outcome, the reaper may say so again when the lease has expired, or before."""
    line = site.gateway.access(case.path)[0]
    key = line.rsplit("hash=", 1)[1][:16]
    found = eventually(lambda: [
        x for x in site.gateway.log("error.log").splitlines()
        if "outcome unknown" in x and key in x])
    found.sort(key=lambda x: "reason owner-gone" in x)
    assert all("reason owner-gone" in x for x in found[1:]), found
    assert "[error]" in found[0]
    said = re.search(r"record %s, attempt %d, reason (\S+), fence [1-9]\d*\b"
                     % (key, attempt), found[0])
    assert said, found[0]
    return said.group(1)


def test_an_upstream_that_drops_leaves_a_line(make):
    site = make(guarded("/pay/"))
    c = site.case("/pay/", Drop())
    is_problem(c.post(), "outcome-unknown", 502)
    assert unknown_line(site, c) == "reset"


def test_an_outcome_that_the_store_does_not_take_leaves_a_line(make):
    site = make(guarded("/pay/", "once_lease 1s;"), workers=1,
                store="faulty:fail=complete:1-*@memory")
    c = site.case("/pay/")
    is_problem(c.post(), "outcome-unknown", 502)
    assert eventually(lambda: unknown_line(site, c) == "store-silent")


def test_an_owner_that_is_killed_leaves_a_line(make):
    site = make(guarded("/pay/", "once_lease 1s;"), workers=1, allow=KILLED)
    c = site.case("/pay/", Hold())
    with c.start():
        c.script[0].wait()
        os.kill(site.gateway.worker_pids()[0], signal.SIGKILL)
    c.script[0].go.set()
    # A repeat that came before the reaper would have been told the same.
    eventually(lambda: "outcome unknown" in site.gateway.log("error.log"))
    is_problem(c.post(), "outcome-unknown")
    assert unknown_line(site, c) == "owner-gone"
    assert c.executions == 1
