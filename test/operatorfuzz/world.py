# SPDX-License-Identifier: Apache-2.0
"""The world of one day: a disk, a host's shared memory, gateways, an upstream,
a store, and the hands of an operator and of another user.

A step is a line of text; `World.do` carries it out and tells the judge. A step
whose ground is missing (a reload without a gateway) does nothing. The world
stands in a mount namespace of its own (run): the disk is a small tmpfs that can
be full and can be missing, and /dev/shm belongs to this process alone.
"""

import contextlib
import itertools
import os
import pathlib
import shutil
import signal
import struct
import subprocess
import sys
import threading
import time
import uuid

import gateway
import judge

ONCE = gateway.BUILD / "once"
SHIM = gateway.BUILD / "test" / "clockshim.so"
SHM = pathlib.Path("/dev/shm")
BOOT = pathlib.Path("/proc/sys/kernel/random/boot_id")
HOUR_MS = 3600 * 1000
DISK = "96m"
OTHER_USER = 65534
NUMBERS = itertools.count(1)

# What another user does with the names that he has seen in /dev/shm.
POISON = """
import os, sys
for name in os.listdir(sys.argv[1]):
    with open(os.path.join(sys.argv[1], name), "rb") as f:
        data = f.read()
    try:
        fd = os.open("/dev/shm/" + name, os.O_CREAT | os.O_EXCL | os.O_RDWR)
    except FileExistsError:
        continue
    os.fchmod(fd, 0o666)
    os.write(fd, data)
"""

TOUCH = """
import os, sys
for name in sys.argv[1:]:
    for flags in (os.O_RDONLY, os.O_RDWR):
        try:
            os.open(name, flags)
            print(name)
        except OSError:
            pass
"""


def mount(*args):
    subprocess.run(["mount", *map(str, args)], check=True)


def umount(path):
    subprocess.run(["umount", "-l", str(path)], check=False,
                   stderr=subprocess.DEVNULL)


def sql(text):
    """Runs a statement as the server's superuser; returns what it printed."""
    done = subprocess.run(
        ["psql", "-XAtq", "-v", "ON_ERROR_STOP=1", "-c", text,
         os.environ["ONCE_TEST_POSTGRES_ADMIN_URL"]], check=True,
        capture_output=True, text=True, timeout=gateway.PATIENCE)
    return done.stdout


class Nginx(gateway.Gateway):
    """A gateway whose clock can be moved."""

    def __init__(self, *args, env, **more):
        super().__init__(*args, **more)
        self.to_init = False    # operators do that, as a step of the day
        self.env = env

    def command(self, *more):
        return ["/usr/bin/env"] + ["%s=%s" % e for e in self.env.items()] + \
            super().command(*more)

    def alive(self):
        return self.process is not None and not self.ended()


class World:
    def __init__(self, folder, upstream, kind, witness, workers):
        self.folder = pathlib.Path(folder)
        self.upstream = upstream
        self.kind = kind
        self._empty_memory()
        self.judge = judge.Judge(witness)
        self.clock = self.folder / "clock"
        self.clock.write_bytes(struct.pack("qq", 0, 0))
        self.ahead_ms = [0, 0]
        self.env = {"LD_PRELOAD": str(SHIM), "ONCE_CLOCKSHIM": str(self.clock),
                    "ONCE_AUDIT": "off"}
        self.disk = self.folder / "disk"
        self.place = self.folder / "mnt"
        for path in (self.disk, self.place, self.folder / "witness"):
            path.mkdir()
        mount("-t", "tmpfs", "-o", "size=" + DISK, "none", self.disk)
        self.mounted = False
        self._mount()
        self.path = self.place / "pay"
        self.url = "%s:%s" % (kind, self.path)
        self.schema = "day_%d_%d" % (os.getpid(), next(NUMBERS))
        if kind == "postgres":
            self.url = "%s?schema=%s" % (os.environ["ONCE_TEST_URL"],
                                         self.schema)
        self.copies = {}        # number: what was known when it began
        self.snapshots = {}     # number: the store as the judge knows it
        self.moved = []         # (path, store) of stores that lie elsewhere
        self.hidden = None      # the store on the disk that is not mounted
        self.holding = []       # (key, client, Hold)
        self.paused = []
        self.image = None       # an empty memory that another user knows
        self.names_seen = set()
        self.gateways = [self._gateway(i, workers) for i in range(2)]
        self.trace = []

    def _mount(self):
        mount("--bind", self.disk, self.place)
        self.mounted = True

    def _gateway(self, number, workers):
        home = self.folder / ("nginx%d" % number)
        home.mkdir()
        witness = self.folder / "witness" if self.judge.witness else "off"
        return Nginx(
            home, self.upstream.port, env=self.env,
            server=gateway.guarded("/pay/", "once_lease 600ms;"),
            http="once_store main %s timeout=500ms witness=%s;\n" % (
                self.url, witness), workers=workers, allow=[".*"])

    # -- the day

    def begin(self):
        self.do("init")
        self.do("start")
        self._image()

    def do(self, line):
        """Carries out one step."""
        verb, *words = line.split()
        self.judge.step = line
        method = getattr(self, "step_" + verb.replace("-", "_"))
        came = method(*words)
        if came is not None:
            self.judge.count("steps")
            self.judge.count("step " + verb)
        self.trace.append("%-20s %s" % (line, "-" if came is None else came))

    def end(self):
        """Everything is repaired as far as it can be, and all that is known is
        asked for."""
        for line in ("resume", "unfill", "mount", "release"):
            self.do(line)
        if self.judge.store is None and self.moved:
            self.do("back")
        if self.judge.store is not None:
            # A gateway that lost its store has to be started again.
            self.do("stop")
            self.do("start")
            self.judge.step = "end"
            for key in self.judge.keys.values():
                self._settle(key)

    def close(self):
        for g in self.gateways:
            with contextlib.suppress(Exception):
                self._resume(g)
                if g.alive():
                    g.kill_all()
        for _, client, hold in self.holding:
            hold.go.set()
            client.hang_up()
        if self._far():
            for name in sql("SELECT nspname FROM pg_namespace WHERE nspname "
                            "LIKE '%s%%'" % self.schema).split():
                sql("DROP SCHEMA %s CASCADE" % name)
        umount(self.place)
        umount(self.disk)

    # -- clients

    def key(self, letter):
        if letter not in self.judge.keys:
            number = next(NUMBERS)
            key = judge.Key(letter, "c%d" % number)
            key.requests, key.hold = [], None
            key.script = [lambda conn, request: self._upstream(key, conn,
                                                               request)]
            self.upstream.cases[key.case] = key
            self.judge.keys[letter] = key
        return self.judge.keys[letter]

    def _upstream(self, key, conn, request):
        hold, key.hold = key.hold, None
        answer = gateway.Answer(201, self.judge.executed(key))
        if hold:
            hold.then = answer
            hold(conn, request)
        else:
            answer(conn, request)

    def _bytes(self, key):
        return gateway.request_bytes(
            "POST", "/pay/" + key.case, [("Idempotency-Key", "k-" + key.case)],
            b"x", close=True)

    def _via(self, words):
        alive = [g for g in self.gateways if g.alive()]
        return alive[-1 if "other" in words else 0] if alive else None

    def _ask(self, key, g):
        """One request; the word for what came of it."""
        try:
            with gateway.Client(g.port) as client:
                client.sock.settimeout(20)
                client.send(self._bytes(key))
                return self._hear(key, client)
        except (OSError, AssertionError, EOFError):
            return "nothing"

    def _hear(self, key, client):
        r = client.read()
        code = None
        if r.get("Content-Type") == "application/problem+json":
            code = r.code()
        elif r.status in (500, 502, 503, 504):
            code = "nginx %d" % r.status
        self.judge.told(key, r.status, code, r.body)
        return code or r.get("Idempotency-Status") or "%d" % r.status

    def step_pay(self, letter, *words):
        g, key = self._via(words), self.key(letter)
        if g is None or g in self.paused:
            return None
        word = "-"
        for _ in range(4):
            word = self._ask(key, g)
            if word not in ("in-flight", "store-unavailable"):
                break
            time.sleep(0.1)
        return word

    def _settle(self, key):
        """Asks until the answer is a last one."""
        word = "-"
        end = time.monotonic() + 10
        while time.monotonic() < end:
            word = self._ask(key, self.gateways[0])
            if word not in ("in-flight", "store-unavailable", "nothing"):
                break
            if word == "store-unavailable" and self.judge.may_be_refused():
                break
            time.sleep(0.1)
        self.trace.append("%-20s %s" % ("  at the end, " + key.letter, word))
        if word in ("in-flight", "nothing") or (
                word == "store-unavailable" and not self.judge.may_be_refused()):
            self.judge.wrong("stuck", "%s stays %s" % (key.letter, word))

    def step_hold(self, letter, *words):
        """A request whose upstream waits."""
        g, key = self._via(words), self.key(letter)
        if g is None or g in self.paused or self.holding:
            return None
        hold = key.hold = gateway.Hold()
        client = gateway.Client(g.port)
        client.sock.settimeout(20)
        client.send(self._bytes(key))
        end = time.monotonic() + 10
        while not hold.reached.wait(0.01) and time.monotonic() < end:
            if client.has_bytes():
                break
        if not hold.reached.is_set():
            key.hold = None
            with contextlib.suppress(OSError, AssertionError, EOFError):
                return "answered: " + self._hear(key, client)
            return "answered with nothing"
        self.holding.append((key, client, hold))
        return "under way"

    def step_release(self):
        word = None
        while self.holding:
            key, client, hold = self.holding.pop()
            hold.go.set()
            word = "nothing"
            with contextlib.suppress(OSError, AssertionError, EOFError):
                word = self._hear(key, client)
            client.hang_up()
        return word

    # -- gateways

    def _start(self, g):
        """Returns whether it runs. It need not where there is no store."""
        before = self._is_there()
        try:
            g.start()
        except AssertionError:
            if self.judge.store is not None and not self._filled():
                raise
            return False
        if self.judge.store is None and self._appeared(before):
            self.judge.wrong("created", "a gateway made a store")
        return True

    def _is_there(self):
        if self._far():
            return "1" in sql("SELECT 1 FROM pg_namespace WHERE nspname = '%s'"
                              % self.schema)
        return self.path.exists()

    def _appeared(self, before):
        """Whether a store has come to be, soon or late."""
        if before:
            return False
        end = time.monotonic() + 0.3
        while time.monotonic() < end:
            if self._is_there():
                return True
            time.sleep(0.05)
        return False

    def step_start(self, *words):
        g = self.gateways["other" in words]
        if g.alive():
            return None
        return "started" if self._start(g) else "does not start"

    def step_stop(self, *words):
        g = self._via(words)
        if g is None:
            return None
        self._resume(g)
        g.kill(signal.SIGTERM)
        g.wait_end()
        return "stopped"

    def step_kill(self):
        """The host loses power, but for what has been written."""
        word = None
        for g in self.gateways:
            if g.alive():
                self._resume(g)
                g.kill_all()
                word = "killed"
        return word

    def step_kill_worker(self):
        g = self._via(())
        if g is None or g in self.paused:
            return None
        old = set(g.worker_pids())
        os.kill(sorted(old)[0], signal.SIGKILL)
        gateway.eventually(lambda: len(g.worker_pids()) == g.workers and
                           set(g.worker_pids()) != old)
        return "killed"

    def step_reload(self):
        g = self._via(())
        if g is None or g in self.paused:
            return None
        before = self._is_there()
        if g.check()[0] != 0:
            return "refused"    # and the old workers go on
        g.reload()
        if self.judge.store is None and self._appeared(before):
            self.judge.wrong("created", "a gateway made a store")
        return "reloaded"

    def step_pause(self):
        g = self._via(())
        if g is None or g in self.paused:
            return None
        for pid in g.worker_pids():
            os.kill(pid, signal.SIGSTOP)
        self.paused.append(g)
        return "stopped"

    def step_resume(self):
        word = None
        for g in list(self.paused):
            self._resume(g)
            word = "goes on"
        return word

    def _resume(self, g):
        if g in self.paused:
            self.paused.remove(g)
            for pid in g.worker_pids():
                os.kill(pid, signal.SIGCONT)

    def _running(self):
        return [g for g in self.gateways if g.alive()]

    # -- stores at the path

    def _far(self):
        """Whether the store is on another machine's disk."""
        return self.kind == "postgres"

    def _files(self, at):
        """A store and its companions, as one name each."""
        return [p for p in at.parent.glob(at.name + "*")
                if p.name in (at.name, at.name + "-wal", at.name + "-shm",
                              at.name + "-journal")]

    def _rename(self, source, target):
        if self._far():
            sql("ALTER SCHEMA %s RENAME TO %s" % tuple(
                self.schema + ("" if p == self.path else "_" + p.name)
                for p in (source, target)))
            return
        for path in self._files(source):
            path.rename(target.parent / path.name.replace(
                source.name, target.name, 1))

    def _noticed(self):
        """Running gateways see that another store, or none, is at the path.
        They look about each second; what they grant until then is theirs."""
        for g in self._running():
            self._resume(g)
            end = time.monotonic() + 15
            store, self.judge.store = self.judge.store, judge.Store()
            while time.monotonic() < end:
                probe = judge.Key("probe", "c%d" % next(NUMBERS))
                probe.requests, probe.hold = [], None
                probe.script = [gateway.Answer(201, b"probe")]
                self.upstream.cases[probe.case] = probe
                with contextlib.suppress(OSError, AssertionError, EOFError):
                    with gateway.Client(g.port) as client:
                        client.send(self._bytes(probe))
                        if client.read().status == 503:
                            break
                time.sleep(0.1)
            else:
                self.judge.wrong("unnoticed", "a gateway goes on without "
                                 "its store")
            self.judge.store = store

    def step_away(self):
        """The store is moved elsewhere."""
        if self.judge.store is None or self.holding or not self.mounted:
            return None
        target = self.place / ("away%d" % len(self.moved))
        self._rename(self.path, target)
        self.moved.append((target, self.judge.store))
        self.judge.there(None)
        self._noticed()
        return target.name

    def step_back(self):
        """What was moved away last lies at the path again."""
        if not self.moved or not self.mounted or self._running() or \
                self.judge.store is not None:
            return None
        if self._is_there():
            return None         # a store that nobody asked for: a violation
        source, store = self.moved.pop()
        self._rename(source, self.path)
        self.judge.there(store)
        store.refused = True    # another one may have been used since
        return "back"

    def step_umount(self):
        """The disk is missing at the next start."""
        if not self.mounted or self._running() or self._far() or \
                self.judge.store is None:
            return None
        umount(self.place)
        self.mounted = False
        self.hidden = self.judge.store
        self.judge.there(None)
        return "missing"

    def step_mount(self):
        if self.mounted:
            return None
        for g in self._running():
            g.kill(signal.SIGTERM)
            g.wait_end()
        shutil.rmtree(self.path, ignore_errors=True)
        for path in self._files(self.path):
            path.unlink()
        self._mount()
        self.judge.there(self.hidden)
        self.hidden = None
        return "mounted"

    def step_snapshot(self, number):
        """The files, while nobody uses them."""
        if self.judge.store is None or self._running() or self._far() or \
                not self.mounted:
            return None
        target = self.folder / ("snapshot" + number)
        if target.exists():
            return None
        target.mkdir()
        for path in self._files(self.path):
            subprocess.run(["cp", "-a", str(path), str(target)], check=True)
        self.snapshots[number] = self.judge.store.copy()
        return "taken"

    def step_put_back(self, number):
        """The files of a snapshot, and nobody says a word."""
        if number not in self.snapshots or self._running() or \
                not self.mounted or self.judge.store is None or self._filled():
            return None
        aside = self.folder / ("aside%d" % next(NUMBERS))
        aside.mkdir()
        for path in self._files(self.path):
            subprocess.run(["mv", str(path), str(aside)], check=True)
        for path in (self.folder / ("snapshot" + number)).iterdir():
            subprocess.run(["cp", "-a", str(path), str(self.place)],
                           check=True)
        self.judge.put_back(self.snapshots[number])
        return "an older state"

    def _filled(self):
        return (self.disk / "filler").exists()

    def step_fill(self):
        if not self.mounted or self._filled() or self._far():
            return None
        with contextlib.suppress(OSError):
            with open(self.disk / "filler", "wb", buffering=0) as f:
                while True:
                    f.write(bytes(65536))
        return "full"

    def step_unfill(self):
        with contextlib.suppress(OSError):
            (self.disk / "filler").unlink()
            return "room"
        return None

    # -- tools

    def once(self, *args):
        before = self._is_there()
        out = subprocess.run(
            [str(ONCE), "--store", self.url] + [str(a) for a in args],
            env=dict(os.environ, **self.env), capture_output=True, check=False,
            timeout=gateway.PATIENCE, cwd=self.folder)
        said = (out.stdout + out.stderr).decode("utf-8", "replace").strip()
        last = said.splitlines()[-1] if said else ""
        return out.returncode, not before and self._is_there(), last

    def _said(self, status, last):
        return "%d %s" % (status, last[:90] if status else "")

    def step_init(self):
        if not self.mounted or self._filled():
            return None
        was_there = self._is_there()
        status, _, last = self.once("init")
        if status == 0 and not was_there:
            self.judge.opened_empty()
        elif status and not was_there:
            self.judge.wrong("tool", "`once init` ends with %d: %s" % (status,
                                                                      last))
        return self._said(status, last)

    def step_copy(self, number):
        if self.judge.store is None or number in self.copies:
            return None
        known = dict(self.judge.store.known)
        status, made, last = self.once(
            "backup", "--copy", self.folder / ("copy" + number))
        self.judge.tool("backup", status, made)
        if status == 0:
            self.copies[number] = known
        return self._said(status, last)

    def _decided(self, name, act, args, asked):
        """A tool that may make or change the store's state."""
        status, made, last = self.once(*args)
        if status == 0:
            act()
        elif made and self.judge.store is None:
            self.judge.wrong("created", "`once %s` failed and left a store"
                             % name)
        del asked
        return self._said(status, last)

    def step_restore(self, number, gap):
        if number not in self.copies or not self.mounted or self._filled():
            return None
        return self._decided(
            "restore",
            lambda: self.judge.restored(self.copies[number], gap),
            ("restore", "--copy", self.folder / ("copy" + number), "--gap",
             gap, "--longest", "24h", "--why", "drill"), gap)

    def step_adopt(self, gap):
        if self.judge.store is None or self._filled():
            return None
        return self._decided(
            "restore --adopt", lambda: self.judge.adopted(gap),
            ("restore", "--adopt", "--gap", gap, "--longest", "24h", "--why",
             "drill"), gap)

    def _look(self, name, *args):
        status, made, last = self.once(name, *args)
        self.judge.tool(name, status, made)
        return self._said(status, last)

    def step_verify(self):
        return None if self._filled() else self._look("verify")

    def step_ls(self):
        return self._look("ls")

    def step_stats(self):
        return self._look("stats")

    def step_check(self):
        return self._look("check")

    def step_purge(self):
        return None if self._filled() else self._look("purge")

    # -- time

    def _move(self, wall_h, boot_h):
        self.ahead_ms[0] += wall_h * HOUR_MS
        self.ahead_ms[1] += boot_h * HOUR_MS
        with open(self.clock, "r+b") as f:
            f.write(struct.pack("qq", *self.ahead_ms))

    def step_hours(self, n):
        """Time passes."""
        self._move(int(n), int(n))
        self.judge.hour += int(n)
        return "later"

    def step_clock(self, n):
        """The clock is set, and no time has passed."""
        self._move(int(n), 0)
        return "set"

    # -- another user, and the host

    def _as_another(self, text, *args):
        return subprocess.run(
            [sys.executable, "-c", text] + [str(a) for a in args],
            user=OTHER_USER, group=OTHER_USER, extra_groups=[],
            capture_output=True, check=True, cwd="/").stdout.decode()

    def _image(self):
        """The memory of an empty store: anybody can make one like it."""
        if self.kind != "journal":
            return
        name = gateway.eventually(lambda: list(SHM.glob("once-*")))[0]
        time.sleep(0.1)
        self.image = (name.name, name.read_bytes())

    def step_hands(self):
        """Another user looks at what is world-visible, and touches it."""
        names = [p for p in SHM.iterdir() if p.stat().st_uid != OTHER_USER]
        self.names_seen |= {p.name for p in names}
        opened = self._as_another(TOUCH, *names, *self._files(self.path))
        if opened:
            self.judge.wrong("hands", "another user opened " + opened)
        return "%d names" % len(names)

    def step_reboot(self):
        """All ends, shared memory is empty, and who is quickest after that is
        another user."""
        self.step_kill()
        self._empty_memory()
        boot = self.folder / ("boot%d" % next(NUMBERS))
        boot.write_text("%s\n" % uuid.uuid4())
        umount(BOOT)
        mount("--bind", boot, BOOT)
        return "%d names made" % self._poison()

    @staticmethod
    def _empty_memory():
        umount(SHM)
        mount("-t", "tmpfs", "-o", "mode=1777", "none", SHM)

    def _poison(self):
        if not self.image or not self.names_seen:
            return 0
        old, data = self.image
        work = pathlib.Path("/tmp") / ("poison-%s" % uuid.uuid4().hex)
        work.mkdir(mode=0o755)
        for name in self.names_seen:
            a, b = old.rsplit("-", 1)[1], name.rsplit("-", 1)[1]
            one = data
            with contextlib.suppress(ValueError):
                one = data.replace(bytes.fromhex(a), bytes.fromhex(b))
            (work / name).write_bytes(one)
        self._as_another(POISON, work)
        shutil.rmtree(work)
        return len(self.names_seen)


def serve():
    """The upstream of all days of a process."""
    return gateway.Upstream()


__all__ = ["World", "serve", "threading"]
