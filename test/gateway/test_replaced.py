# SPDX-License-Identifier: Apache-2.0
"""
The store's files are moved away or replaced while workers have them open: an
operator puts a backup in their place. Whoever opens the path next reads other
records, so from then on no guarded request may be executed or called new.
"""

import pathlib
import shutil
import subprocess
import sys
import threading

import pytest

from gateway import eventually, guarded, is_new, is_problem, is_replay

sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "lib"))

# pylint: disable=wrong-import-position
import newstore  # noqa: E402

STORES = ["journal", "sqlite"]


class Files:
    """What lies at the path of a store, and what belongs to it."""

    def __init__(self, folder, kind):
        self.path = folder / "pay"
        self.url = "%s:%s" % (kind, self.path)

    def parts(self, path):
        return sorted(path.parent.glob(path.name)) + \
            sorted(path.parent.glob(path.name + "-*"))

    def move(self, source, target):
        for part in self.parts(self.path.with_name(source)):
            part.rename(part.with_name(
                part.name.replace(source, target, 1)))

    def copy(self, source, target):
        for part in self.parts(self.path.with_name(source)):
            name = part.name.replace(source, target, 1)
            subprocess.run(["cp", "-a", part, part.with_name(name)],
                           check=True)

    def remove(self, name):
        for part in self.parts(self.path.with_name(name)):
            if part.is_dir():
                shutil.rmtree(part)
            else:
                part.unlink()


@pytest.fixture(params=STORES)
def files(request, tmp_path):
    return Files(tmp_path, request.param)


def refused(case):
    """503, and nothing reaches the service. A replay is right for a moment:
    what is replayed was acknowledged."""
    was = case.executions

    def stopped():
        r = case.post()
        assert r.status == 503 or r.replayed, r
        return r if r.status == 503 else None
    is_problem(eventually(stopped), "store-unavailable")
    assert case.executions == was


def crit(site):
    return [line for line in site.gateway.log("error.log").splitlines()
            if "[crit]" in line]


def each_worker_answers(site, case, first):
    """Each worker has opened the store and answered from it: one that opens it
    later finds what stands there then."""
    def asked():
        threads = [threading.Thread(target=lambda: is_replay(case.post(), first))
                   for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return {int(line.split()[0]) for line in site.gateway.access(case.path)
                if "once=replayed" in line} >= set(site.gateway.worker_pids())
    eventually(asked)


def start(make, files):
    """A gateway with key `old`, a backup of that, and the later key `late`."""
    site = make(guarded("/pay/"), store=files.url)
    old = site.case("/pay/")
    first = is_new(old.post())
    site.gateway.quit()
    files.copy("pay", "pay.bak")
    site.gateway.start()
    is_replay(old.post(), first)
    late = site.case("/pay/")
    second = is_new(late.post())
    each_worker_answers(site, old, first)
    return site, (old, first), (late, second)


@pytest.mark.nginx_only("its log, and a reload")
def test_a_copy_in_the_place_of_a_store_stops_the_gateway(make, files):
    site, (old, first), (late, second) = start(make, files)
    files.move("pay", "pay.broken")
    files.copy("pay.bak", "pay")
    fresh = site.case("/pay/")
    for case in (fresh, old, late):
        for _ in range(3):
            refused(case)
    assert late.executions == 1
    # One line for each worker says which path, and is seen by whoever watches.
    lines = eventually(lambda: len(crit(site)) >= site.gateway.workers
                       and crit(site))
    assert all(str(files.path) in line for line in lines)
    assert len(lines) == site.gateway.workers
    assert site.get().status == 200
    # The right one is put back: the key that was completed meanwhile is there.
    files.remove("pay")
    files.move("pay.broken", "pay")
    site.gateway.reload()
    is_replay(late.post(), second)
    is_replay(old.post(), first)
    assert late.executions == old.executions == 1
    is_new(site.case("/pay/").post())


@pytest.mark.nginx_only("its log, and a reload")
def test_a_reload_takes_what_the_operator_has_put_there(make, files):
    site, (old, first), _ = start(make, files)
    files.move("pay", "pay.broken")
    refused(old)
    files.copy("pay.bak", "pay")
    refused(old)
    site.gateway.reload()
    is_replay(old.post(), first)
    assert old.executions == 1
    is_new(site.case("/pay/").post())


@pytest.mark.nginx_only("its log")
def test_a_store_that_is_gone_is_noticed_without_traffic(make, files):
    site, _, (late, second) = start(make, files)
    files.move("pay", "pay.broken")
    eventually(lambda: len(crit(site)) >= site.gateway.workers)
    files.move("pay.broken", "pay")

    def back():
        r = late.post()
        return r if r.status == second.status else None
    is_replay(eventually(back), second)
    assert late.executions == 1


@pytest.mark.nginx_only("its witness")
def test_a_new_store_in_the_place_of_one_is_refused_until_accepted(
        make, files, tmp_path):
    """As the log says it, and as docs/backup.md says what to do then."""
    (tmp_path / "witness").mkdir()
    site = make(guarded("/pay/"), store="%s witness=%s" % (
        files.url, tmp_path / "witness"), workers=1)
    case = site.case("/pay/")
    first = is_new(case.post())
    site.gateway.quit()
    files.move("pay", "gone")
    newstore.init(files.url)
    site.gateway.start()
    is_problem(case.post(), "store-unavailable")
    eventually(lambda: "this is a different store" in
               site.gateway.log("error.log"))
    lines = site.gateway.log("error.log")
    assert "once restore --adopt" in lines
    # The right one is back in its place: nothing was lost.
    site.gateway.quit()
    files.remove("pay")
    files.move("gone", "pay")
    site.gateway.start()
    is_replay(case.post(), first)
    # Or the new one is wanted.
    site.gateway.quit()
    files.remove("pay")
    newstore.init(files.url)
    subprocess.run([newstore.once(), "--store", files.url, "restore", "--adopt",
                    "--gap", "hold", "--why", "a new one", "--audit", "off"],
                   check=True, capture_output=True, timeout=60)
    site.gateway.start()
    is_problem(case.post(), "outcome-unknown")
    assert case.executions == 1
