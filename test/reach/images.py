# SPDX-License-Identifier: Apache-2.0
"""images.py - an image, and how an engine would run it, without an engine."""

import contextlib
import json
import os
import pathlib
import signal
import socket
import subprocess
import tarfile
import tempfile

from machine import children, eventually

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUILD = pathlib.Path(os.environ.get("ONCE_BUILD", ROOT / "build"))
IMAGES = BUILD / "image"
UID = 101
ONCE = ["/usr/bin/once"]


def listens(port):
    with contextlib.suppress(OSError):
        socket.create_connection(("127.0.0.1", port), timeout=1).close()
        return True
    return False


class Image:
    """An image, its documents and its root."""

    def __init__(self, name, folder):
        self.name, self.said = name, ""
        layout = folder / (name + ".layout")
        with tarfile.open(IMAGES / (name + ".tar")) as tar:
            tar.extractall(layout)
        self.blobs = layout / "blobs" / "sha256"
        index = json.loads((layout / "index.json").read_text("utf-8"))
        self.digest = index["manifests"][0]["digest"]
        self.manifest = self.read(self.digest)
        self.layer = self.manifest["layers"][0]
        self.config = self.read(self.manifest["config"]["digest"])["config"]
        subprocess.run(["umoci", "unpack", "--image", "%s:%s:latest" % (
            layout, name), str(folder / name)], check=True)
        (folder / name).chmod(0o755)
        self.root = folder / name / "rootfs"

    def read(self, digest):
        return json.loads(
            (self.blobs / digest.removeprefix("sha256:")).read_text("utf-8"))

    def command(self, volume, *words, uid=UID, tmp=True, shm=None, binds=(),
                entry=None):
        """What an engine would execute; uid 0 is who overrides the user."""
        line = ["bwrap", "--ro-bind", str(self.root), "/", "--proc", "/proc",
                "--dev", "/dev", "--unshare-user", "--unshare-pid",
                "--unshare-ipc", "--unshare-uts", "--uid", str(uid), "--gid",
                str(uid), "--cap-drop", "ALL", "--die-with-parent",
                "--clearenv"]
        line += ["--bind", str(shm), "/dev/shm"] if shm else \
            ["--tmpfs", "/dev/shm"]
        if tmp:
            line += ["--tmpfs", "/tmp"]
        if volume:
            line += ["--bind", str(volume), "/var/lib/once"]
        for here, there in binds:
            line += ["--bind", str(here), there]
        for pair in self.config["Env"]:
            line += ["--setenv", *pair.split("=", 1)]
        return ["setpriv", "--reuid", str(UID), "--regid", str(UID),
                "--clear-groups", *line, *(entry or self.config["Entrypoint"]),
                *words]

    def run(self, volume, *words, **more):
        done = subprocess.run(self.command(volume, *words, **more), text=True,
                              stdout=subprocess.PIPE, timeout=60, check=False,
                              stderr=subprocess.STDOUT,
                              stdin=subprocess.DEVNULL)
        return done.returncode, done.stdout

    def stop(self, pid):
        """By the image's own signal."""
        os.kill(pid, getattr(signal, self.config["StopSignal"]))

    @contextlib.contextmanager
    def start(self, volume, *words, **more):
        """Runs until the block ends. Its output is the user's, as an engine
        has it: nginx opens /dev/stdout."""
        with tempfile.TemporaryFile() as out:
            os.fchown(out.fileno(), UID, UID)
            with subprocess.Popen(self.command(volume, *words, **more),
                                  stdin=subprocess.DEVNULL, stdout=out,
                                  stderr=out) as process:
                try:
                    yield process
                finally:
                    process.kill()
                    process.wait(60)
                    out.seek(0)
                    self.said = out.read().decode()
                    print(self.said)


def inside(container):
    """The process that bubblewrap has started: below its own in there."""
    return eventually(lambda: children(container.pid)[1:2],
                      "the container has a process")[0]


def entering(pid):
    """What `podman exec` does: the same namespaces, the same user."""
    return ["nsenter", "--target", str(pid), "--user", "--mount", "--pid",
            "--ipc", "--setuid", str(UID), "--setgid", str(UID), "--"]
