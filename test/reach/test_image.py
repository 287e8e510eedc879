# SPDX-License-Identifier: Apache-2.0
"""
The images, as a container engine runs them: read-only root, user 101, no
capability. test/reach/image starts this in a network of its own. Each image is
unpacked by umoci, which did not make it, and run by bubblewrap.

The days on which it goes wrong are here, too: started as root, nowhere to
write, a volume of another user, a journal that two containers mount, a sidecar
that is killed while its service works.
"""

import argparse
import hashlib
import json
import os
import pathlib
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import threading

import pytest

from images import (BUILD, IMAGES, ONCE, ROOT, UID, entering, inside,
                    listens)
from machine import PATIENCE, eventually

sys.path.insert(0, str(ROOT / "middleware" / "python"))

# pylint: disable=wrong-import-position
import once as middleware  # noqa: E402

MOST = {"once-nginx": 60e6, "once": 60e6}  # bytes, compressed

SITE = """
server {
    listen 127.0.0.1:8080;
    location /charges {
        once default;
        once_scope $http_authorization;
        proxy_http_version 1.1;
        proxy_pass http://127.0.0.1:3000;
    }
}
"""


@pytest.fixture
def conf(folder):
    path = pathlib.Path(tempfile.mkdtemp(dir=folder))
    path.chmod(0o755)
    (path / "site.conf").write_text(SITE)
    return [(path, "/etc/nginx/conf.d")]


# ---- What it is ----------------------------------------------------------


@pytest.mark.parametrize("name", MOST)
def test_it_is_small_and_names_a_user(name, request):
    image = request.getfixturevalue(
        "gateway" if name == "once-nginx" else "program")
    assert image.layer["size"] < MOST[name]
    assert image.config["User"] == "101:101"
    assert image.config["StopSignal"] in ("SIGQUIT", "SIGTERM")
    assert ("Healthcheck" in image.config) == (name == "once-nginx")
    for word in ("sh", "bash", "dash", "perl", "dpkg", "apt", "mawk"):
        assert not shutil.which(word, path="%s/usr/bin:%s/usr/sbin" % (
            image.root, image.root)), word
    # Nobody but root may change what is in it.
    for path in image.root.rglob("*"):
        st = path.lstat()
        assert path.is_symlink() or not st.st_mode & 0o6002 or \
            path == image.root / "tmp", path
        assert st.st_uid in (0, UID)


@pytest.mark.parametrize("name", MOST)
def test_the_sbom_lists_what_is_there(name, request):
    image = request.getfixturevalue(
        "gateway" if name == "once-nginx" else "program")
    notes = image.layer["annotations"]
    data = (image.root / notes["invalid.once.sbom.path"][1:]).read_bytes()
    assert notes["invalid.once.sbom.digest"] == \
        "sha256:" + hashlib.sha256(data).hexdigest()
    bill = json.loads(data)
    assert bill["spdxVersion"] == "SPDX-2.3"
    listed = {p["name"]: p["versionInfo"] for p in bill["packages"]}
    status = image.root / "var/lib/dpkg/status.d"
    assert set(listed) == {p.name for p in status.iterdir()}
    for package in listed:
        assert "Version: %s\n" % listed[package] in \
            (status / package).read_text("utf-8")
    # A licence that says that it must come along does.
    for package in ("once", "libc6", "libssl3t64", "libpq5"):
        assert (image.root / "usr/share/doc" / package /
                "copyright").exists(), package


@pytest.mark.parametrize("name", MOST)
def test_two_builds_have_one_digest(name):
    """test/reach/image has made it once more, with the network."""
    assert (BUILD / "image-again" / (name + ".tar")).read_bytes() == \
        (IMAGES / (name + ".tar")).read_bytes()


# ---- What it does --------------------------------------------------------


def test_the_five_things(gateway, volume, conf):
    """Charge, replay, conflict, unknown, decide."""
    status, said = gateway.run(volume, "--store", "default", "init",
                               entry=ONCE)
    assert status == 0 and "durable\tyes" in said, said
    # A pod that starts again says the same words.
    assert gateway.run(volume, "--store", "default", "init",
                       entry=ONCE) == (0, said)
    with gateway.start(volume, binds=conf) as container:
        eventually(lambda: listens(8080), "the gateway listens")
        pid = inside(container)
        health = gateway.config["Healthcheck"]["Test"]
        assert health[0] == "CMD"
        subprocess.run(entering(pid) + health[1:], check=True,
                       stdout=subprocess.DEVNULL)
        subprocess.run(
            [sys.executable, str(ROOT / "test/reach/smoke.py"), "--gateway",
             "127.0.0.1:8080", "--service", "3000", "--store", "default",
             "--", *entering(pid), "/usr/bin/once"], check=True)
        # Its own stop signal, and it ends well.
        gateway.stop(pid)
        assert container.wait(60) == 0
    assert '"once_status":"replayed"' in gateway.said
    assert "[emerg]" not in gateway.said and "[alert]" not in gateway.said


def podman(words):
    """A line of the page, as podman reads it."""
    parser = argparse.ArgumentParser()
    for name in ("--rm", "-d", "--read-only"):
        parser.add_argument(name, action="store_true")
    for name in ("-v", "-p", "--tmpfs"):
        parser.add_argument(name, action="append", default=[])
    for name in ("--name", "--entrypoint", "--cap-drop", "--stop-timeout"):
        parser.add_argument(name)
    parser.add_argument("image")
    parser.add_argument("words", nargs=argparse.REMAINDER)
    return parser.parse_args(words)


def test_the_lines_of_the_page(gateway, volume, conf):
    """docs/reach.md, read as podman would."""
    page = (ROOT / "docs/reach.md").read_text("utf-8")
    lines = [shlex.split(line) for line in
             re.findall(r"(?m)^    \$ podman (.*)$", page)]
    assert [line[0] for line in lines] == ["load", "run", "run", "exec"]
    assert lines[0][2] == "build/image/once-nginx.tar"
    init, run = podman(lines[1][1:]), podman(lines[2][1:])
    assert init.v == run.v[:1] == ["once:/var/lib/once"]
    assert run.v[1:] == ["$PWD/conf.d:/etc/nginx/conf.d:ro"]
    assert init.image == run.image == gateway.name
    status, said = gateway.run(volume, *init.words,
                               entry=["/usr/bin/" + init.entrypoint])
    assert status == 0, said
    assert run.read_only and run.cap_drop == "all" and run.tmpfs == ["/tmp"]
    with gateway.start(volume, *run.words, binds=conf) as container:
        port = int(run.p[0].rpartition(":")[2])
        eventually(lambda: listens(port), "the published port listens")
        assert lines[3][1] == run.name
        subprocess.run(entering(inside(container)) + lines[3][2:], check=True)


def test_the_program_answers(program, volume):
    assert program.run(volume, "--store", "default", "init")[0] == 0
    status, said = program.run(volume, "--store", "default", "run", "--key",
                               "k-1", "--", "/usr/bin/once", "--version")
    assert status == 0 and "once" in said, said
    for command in "serve", "console":
        status, said = program.run(volume, command, "--help")
        assert status == 0 and "usage: once %s" % command in said, said


# ---- Days on which it goes wrong -----------------------------------------


def test_as_root_it_does_not_start(gateway, volume, conf):
    """Workers would be of a user that does not own the store."""
    status, said = gateway.run(volume, uid=0, binds=conf)
    assert status == 1 and "[emerg]" in said and "nobody" in said, said


def test_without_a_place_for_temporary_files_it_does_not_start(
        gateway, volume, conf):
    assert gateway.run(volume, "--store", "default", "init",
                       entry=ONCE)[0] == 0
    status, said = gateway.run(volume, tmp=False, binds=conf)
    assert status == 1 and "/tmp" in said and "Read-only" in said, said


def test_without_a_volume_it_does_not_start(gateway, conf):
    """Neither makes a store in a place that goes with the container."""
    status, said = gateway.run(None, "--store", "default", "init", entry=ONCE)
    assert status == 3 and "Read-only" in said, said
    status, said = gateway.run(None, binds=conf)
    assert status == 1 and "there is no journal in it" in said, said


def test_a_volume_of_another_user_is_said(gateway, volume):
    for part in (volume, volume / "default", volume / "witness"):
        os.chown(part, 0, 0)
    status, said = gateway.run(volume, "--store", "default", "init",
                               entry=ONCE)
    assert status == 3 and "Permission denied" in said, said


def test_a_journal_that_two_containers_mount_is_refused(program, volume):
    """Two replicas on one volume: each would believe that it is alone."""
    assert program.run(volume, "--store", "default", "init")[0] == 0
    with program.start(volume, "--store", "default", "serve", "--listen",
                       "unix:/tmp/serve.sock") as first:
        eventually(lambda: (volume / "default" / "lock").exists(), "it is open")
        pid = inside(first)
        eventually(lambda: pathlib.Path("/proc/%d/root/tmp/serve.sock" %
                                   pid).exists(), "the server listens")
        status, said = program.run(volume, "--store", "default", "check")
        assert status == 3, said
    # It was the other container that kept it away, and it is gone.
    assert program.run(volume, "--store", "default", "check")[0] == 0


def test_a_sidecar_killed_before_its_service_costs_no_outcome(
        program, volume, folder):
    """The service works; its sidecar is killed and comes back."""
    run = pathlib.Path(tempfile.mkdtemp(dir=folder))
    os.chown(run, UID, UID)
    assert program.run(volume, "--store", "default", "init")[0] == 0
    words = ("--store", "default", "serve", "--listen",
             "unix:/run/once/serve.sock")
    binds = [(run, "/run/once")]
    running, go_on = threading.Event(), threading.Event()
    done = []

    @middleware.call(group="charge", key=lambda order: order,
                     serve="unix:%s/serve.sock" % run)
    def charge(order):
        done.append(order)
        running.set()
        assert go_on.wait(PATIENCE)
        return {"charged": order}

    answers = []
    with program.start(volume, *words, binds=binds):
        eventually((run / "serve.sock").exists, "the server listens")
        service = threading.Thread(
            target=lambda: answers.append(charge("o-1")))
        service.start()
        assert running.wait(PATIENCE)
    (run / "serve.sock").unlink()
    with program.start(volume, *words, binds=binds):
        eventually((run / "serve.sock").exists, "the server listens again")
        go_on.set()
        service.join(PATIENCE)
        answers.append(charge("o-1"))
    assert done == ["o-1"]
    assert answers == [{"charged": "o-1"}] * 2
