# SPDX-License-Identifier: Apache-2.0
"""
What tests with servers need of the machine: programs, ports, processes, network
namespaces, and a janitor that ends what a killed test has left behind.
"""

import collections
import contextlib
import ctypes
import fcntl
import glob
import os
import pathlib
import pwd
import random
import shutil
import signal
import socket
import subprocess
import tempfile
import time

from patience import Patience

PATIENCE = 60  # seconds, for a machine that has much else to do
LOOPBACK = "127.0.0.1"


class Missing(Exception):
    """A program that is needed is not installed."""


# ---- Small things --------------------------------------------------------


def preloaded(shim):
    """The environment of a program with this library before all others. The
    sanitizers' runtime wants that place, and can do without it where the library
    allocates nothing."""
    env = {"LD_PRELOAD": str(shim)}
    if "ASAN_OPTIONS" in os.environ:
        env["ASAN_OPTIONS"] = os.environ["ASAN_OPTIONS"] + \
            ":verify_asan_link_order=0"
    return env


def of_a_user(home):
    """The environment of a user who has this home and set nothing of Once. The
    log of decisions is their own: a package that is, or was, installed has left a
    folder for the host's."""
    env = {k: v for k, v in os.environ.items() if not k.startswith("ONCE_")}
    env.update(HOME=str(home), XDG_STATE_HOME=str(home / "state"),
               ONCE_AUDIT="own")
    return env


def find(program):
    """The path of a program, where Debian keeps it as well."""
    found = shutil.which(program, path=os.environ.get("PATH", "") +
                         ":/usr/sbin:/sbin")
    homes = sorted(glob.glob("/usr/lib/postgresql/*/bin"),
                   key=lambda p: [int(n) for n in p.split("/") if n.isdigit()])
    for home in reversed(homes):
        if os.access(os.path.join(home, program), os.X_OK):
            return os.path.join(home, program)
    if found is None:
        raise Missing(program + " is not installed")
    return found


# Locks of the ports that this process drew last. They go when it ends.
_reserved = collections.deque(maxlen=100)


def reserve(port):
    """Whether no other test has drawn this port: one may draw it long before
    its server binds it. The lock goes with the process."""
    folder = pathlib.Path(tempfile.gettempdir()) / "once-test-ports"
    folder.mkdir(exist_ok=True)
    with contextlib.suppress(OSError):
        folder.chmod(0o1777)
    try:
        lock = open(folder / str(port), "a", encoding="ascii")
    except PermissionError:
        return False  # another user's
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        lock.close()
        return False
    _reserved.append(lock)
    return True


def free_port():
    """Below the range of outgoing connections, so that it stays ours."""
    with open("/proc/sys/net/ipv4/ip_local_port_range",
              encoding="ascii") as f:
        top = int(f.read().split()[0])
    draw = random.SystemRandom()
    for _ in range(1000):
        port = draw.randrange(min(10000, top - 5000), top)
        if not reserve(port):
            continue
        with socket.socket() as s:
            s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            with contextlib.suppress(OSError):
                s.bind((LOOPBACK, port))
                return port
    raise RuntimeError("no free port")


def eventually(question, what, patience=PATIENCE):
    """Asks until the answer is true."""
    limit = Patience(patience)
    while True:
        answer = question()
        if answer:
            return answer
        if limit.over():
            raise RuntimeError("%s: not within %d s of an idle machine"
                               % (what, patience))
        time.sleep(0.02)


def stat_of(pid):
    """(state, parent, start time) of a process, or None."""
    with contextlib.suppress(OSError):
        text = pathlib.Path("/proc/%d/stat" % pid).read_text("latin-1")
        words = text.rsplit(")", 1)[1].split()
        return words[0], int(words[1]), words[19]
    return None


def alive(pid):
    stat = stat_of(pid)
    return stat is not None and stat[0] not in "ZX"


def children(pid):
    """Processes whose parent is `pid`, and theirs."""
    below = {}
    for path in glob.glob("/proc/[0-9]*"):
        stat = stat_of(int(path[6:]))
        if stat:
            below.setdefault(stat[1], []).append(int(path[6:]))
    found = [pid]
    for parent in found:
        found += below.get(parent, [])
    return found[1:]


def send(pid, number):
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


def server_user():
    """Whom servers run as: never root."""
    if os.geteuid() != 0:
        return pwd.getpwuid(os.geteuid())
    for name in ("postgres", "nobody"):
        with contextlib.suppress(KeyError):
            return pwd.getpwnam(name)
    raise Missing("no user to run servers as")


# ---- The janitor ---------------------------------------------------------


def _janitor(pipe, folder):
    """Runs in a process of its own until the pipe is closed."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    pids = {}
    with os.fdopen(pipe) as lines:
        for line in lines:
            pid, start = line.split()
            pids[int(pid)] = start

    def ours():
        """What still runs, children first seen now included."""
        left = [p for p, start in pids.items()
                if alive(p) and stat_of(p) and stat_of(p)[2] == start]
        for pid in list(left):
            for child in children(pid):
                pids.setdefault(child, (stat_of(child) or "???")[2])
        return left

    # PostgreSQL that is asked cleans its shared memory up, too.
    for pid in ours():
        send(pid, signal.SIGCONT)
        send(pid, signal.SIGQUIT)
    end = time.monotonic() + 5
    while ours() and time.monotonic() < end:
        time.sleep(0.02)
    for pid in ours():
        send(pid, signal.SIGKILL)
    end = time.monotonic() + 5
    while ours() and time.monotonic() < end:
        time.sleep(0.02)
    forget_memory(folder)
    for _ in range(50):
        shutil.rmtree(folder, ignore_errors=True)
        if not os.path.exists(folder):
            break
        time.sleep(0.1)


def start_janitor(folder):
    """Returns (pid, file to write pids to)."""
    ours, its = os.pipe()[::-1]
    pid = os.fork()
    if pid:
        os.close(its)
        return pid, os.fdopen(ours, "w", buffering=1)
    try:
        os.setsid()
        # Whoever waits for the end of our output must not wait for this one.
        nothing = os.open(os.devnull, os.O_RDWR)
        for fd in (0, 1, 2):
            os.dup2(nothing, fd)
        keep = os.dup2(its, 3) if its != 3 else its
        os.closerange(4, 65536)
        os.chdir("/")
        _janitor(keep, folder)
    finally:
        os._exit(0)  # pylint: disable=protected-access


def forget_memory(folder):
    """What killed PostgreSQLs below `folder` have left in the kernel."""
    for path in glob.glob(os.path.join(glob.escape(str(folder)), "*", "data")):
        forget_segment(path)


def forget_segment(data):
    """The same of one, which must not run: its pid file says."""
    with contextlib.suppress(OSError, IndexError, ValueError):
        text = pathlib.Path(data, "postmaster.pid").read_text("ascii")
        number = int(text.split("\n")[6].split()[1])
        subprocess.run(["ipcrm", "-m", str(number)],
                       check=False, stdout=subprocess.DEVNULL,
                       stderr=subprocess.DEVNULL)


# ---- Places --------------------------------------------------------------


class Space:
    """Where a server listens: on this machine's loopback."""

    address = LOOPBACK
    network = LOOPBACK + "/32"

    @contextlib.contextmanager
    def inside(self):
        """What is started or connected here is there."""
        yield


class NetSpace(Space):
    """A network namespace, which is gone with its one process."""

    CLONE_NEWNET = 0x40000000

    def __init__(self, address):
        self.address = address
        self.network = address.rsplit(".", 1)[0] + ".0/24"
        self.process = subprocess.Popen(
            [find("setpriv"), "--pdeathsig", "KILL", "--", "unshare", "-n",
             "sleep", "infinity"], stdin=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
        here = os.readlink("/proc/self/ns/net")
        try:
            eventually(lambda: os.readlink(self._path()) != here,
                       "a network namespace", 10)
        except (OSError, RuntimeError) as error:
            raise Missing("network namespaces are not allowed") from error
        self.tool("ip", "link", "set", "lo", "up")

    def _path(self):
        return "/proc/%d/ns/net" % self.process.pid

    @contextlib.contextmanager
    def inside(self):
        libc = ctypes.CDLL(None, use_errno=True)

        def enter(fd):
            if libc.setns(fd, self.CLONE_NEWNET) != 0:
                raise OSError(ctypes.get_errno(), "setns")
        with open("/proc/self/ns/net", "rb") as here, \
                open(self._path(), "rb") as there:
            enter(there.fileno())
            try:
                yield
            finally:
                enter(here.fileno())

    def tool(self, *words):
        with self.inside():
            done = subprocess.run([find(words[0]), *words[1:]], text=True,
                                  capture_output=True, check=False)
        if done.returncode != 0:
            raise Missing("%s: %s" % (" ".join(words), done.stderr.strip()))

    def link(self, other, name):
        """A cable between two of them, called `name` at both ends."""
        self.tool("ip", "link", "add", name, "type", "veth", "peer", "name",
                  name, "netns", str(other.process.pid))
        for space in (self, other):
            space.tool("ip", "link", "set", name, "up")

    def join(self, other, name):
        """The same, with addresses of both on it."""
        self.link(other, name)
        for space, peer in ((self, other), (other, self)):
            space.tool("ip", "address", "replace", space.address + "/32",
                       "dev", "lo")
            space.tool("ip", "route", "add", peer.address + "/32", "dev",
                       name, "src", space.address)

    def cut(self, name, *ways):
        """Packets in ("INPUT") or out ("OUTPUT") are dropped without a word."""
        for way in ways or ("INPUT", "OUTPUT"):
            self.tool("iptables", "-A", way,
                      "-i" if way == "INPUT" else "-o", name, "-j", "DROP")

    def mend(self):
        """Returns how many packets were dropped."""
        with self.inside():
            text = subprocess.run([find("iptables"), "-nvxL"], text=True,
                                  capture_output=True, check=True).stdout
        self.tool("iptables", "-F")
        return sum(int(line.split()[0]) for line in text.splitlines()
                   if " DROP " in line)

    def close(self):
        self.process.kill()
        self.process.wait()
