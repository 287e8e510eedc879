# SPDX-License-Identifier: Apache-2.0
"""
The stores of the fault cells: how each is started, and how it is judged. Some
stand on this machine's loopback, behind the fault proxy; some are spread over
network namespaces, so that a partition is one.
"""

import contextlib
import mmap
import shutil
import struct
import subprocess

import servers
import storelist
from cellkit import Skip


class Store:
    """How a store is started, and what it is for traffic."""

    def __init__(self, name, kind=None, proxied=None, durable=True,
                 clock=False, must_lose=False):
        self.name = name
        self.kind = kind          # of test/lib/servers.py, None: a file, or
                                  # a function of the run
        self.proxied = proxied    # the server that the proxy stands before
        self.durable = durable
        self.clock = clock
        self.must_lose = must_lose  # if it does not, the count is blind


def net_star(run):
    """The store's place in the middle, both clients in places of their own;
    nothing else leads from one to the other."""
    try:
        middle, a, b = [run.stack.enter_context(contextlib.closing(
            servers.NetSpace("10.77.0.%d" % n))) for n in (1, 2, 3)]
        middle.join(a, "client0")
        middle.join(b, "client1")
        # What is not allowed is found out before the traffic.
        a.cut("client0")
        a.mend()
    except servers.Missing as missing:
        raise Skip(str(missing)) from missing
    run.home, run.places = middle, [a, b]
    return middle


def net_postgres(run):
    server = servers.Postgres(run.world, space=net_star(run))
    # Off the loopback it would ask for TLS, and rightly so.
    return server.init().start().furnish().url(more="?sslmode=disable")


def net_redis(run):
    return servers.Redis(run.world, space=net_star(run)).start().url()


def net_sentinel(run):
    """
        here                          there
        redis-primary   -- cable --   redis-replica
        sentinel1                     sentinel2, sentinel3
        client 0                      client 1
    """
    try:
        here, there = [run.stack.enter_context(contextlib.closing(
            servers.NetSpace("10.77.0.%d" % n))) for n in (1, 2)]
        here.join(there, "cable")
        here.cut("cable")
        here.mend()
    except servers.Missing as missing:
        raise Skip(str(missing)) from missing
    run.home, run.places = here, [here, there]
    return servers.redis_sentinel(run.world, False, here, there)


def net_sentinel_wait(run):
    """The same, and an answer waits for the replica's word."""
    return net_sentinel(run) + "?wait=1"


# -- a disk of its own


class Disk:
    """Lets the flushes and writes of some processes fail, which are started
    with this environment: test/lib/flushshim.c."""

    FLUSHES, WRITES = 1, 2

    def __init__(self, run):
        path, shim = run.folder / "failing", run.folder / "flushshim.so"
        path.write_bytes(bytes(16))
        path.chmod(0o666)  # servers are another user's
        shutil.copy(run.args.build / "test" / "flushshim.so", shim)
        with open(path, "r+b") as f:
            self.map = mmap.mmap(f.fileno(), 0)
        self.environment = {"ONCE_FLUSHSHIM": str(path),
                            "LD_PRELOAD": str(shim)}

    def fail(self, what):
        struct.pack_into("=q", self.map, 0, what)

    def failed(self):
        """How many calls have failed so far."""
        return struct.unpack_from("=q", self.map, 8)[0]


def mount(run, place, size):
    """A small disk, which `run` knows."""
    place.mkdir()
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=%d" % size, "tmpfs", place],
        check=False, capture_output=True, text=True)
    if done.returncode != 0:
        raise Skip("no tmpfs to be had: " + done.stderr.partition("\n")[0])
    run.stack.callback(subprocess.run, ["umount", place], check=True)
    run.place = place


def on_disk(url):
    """A store that has a small disk for itself, and for who fills it."""
    def make(run):
        mount(run, run.folder / "disk", max(192 << 20, run.most * 4096))
        return url % run.place
    return make


def beneath(run, server, place):
    """The same below a server, which ends before its disk goes. It must not
    be filled by the server itself, and flushes are cheap on it."""
    mount(run, place, max(320 << 20, run.most * 3072))
    run.world.give(place)
    place.chmod(0o700)
    run.stack.callback(servers.forget_segment, place)
    run.stack.callback(server.kill)
    run.stack.callback(server.quit)
    run.disk = Disk(run)
    server.environment.update(run.disk.environment)
    # PostgreSQL ends when it cannot repeat its log, Redis when it cannot write
    # its own, and MariaDB some time after a flush has failed.
    run.mortal = server
    return server


def disk_postgres(run):
    """Its log stays small, so that it needs new space all the time."""
    server = servers.Postgres(run.world, wal_keep_size="0",
                              min_wal_size="32MB", max_wal_size="48MB")
    beneath(run, server, server.data).init()
    return server.start().furnish().url()


def disk_mysql(run):
    server = servers.mysql_or_mariadb(run.world)
    place = server.folder / "disk"
    server.data = place / "data"  # which its copy makes
    beneath(run, server, place).init()
    return server.start().furnish().url()


def disk_redis(run):
    server = servers.Redis(run.world)
    server.settings["dir"] = str(server.folder / "data")
    return beneath(run, server, server.folder / "data").start().url()


STORES = {s.name: s for s in [Store(name) for name in storelist.LOCAL] + [
    # More segments than a process has open, and several made in each cell.
    Store("journal-small",
          lambda run: "journal:%s/journal?segment=131072" % run.folder),
    Store("sqlite-disk", on_disk("sqlite:%s/db")),
    Store("journal-disk", on_disk("journal:%s/journal?segment=4194304")),
    Store("postgres-disk", disk_postgres, "postgres"),
    Store("mysql-disk", disk_mysql, "mysql"),
    Store("redis-disk", disk_redis, "redis"),
    Store("postgres", "postgres", "postgres", clock=True),
    Store("pgbouncer", "pgbouncer", "pgbouncer"),
    Store("postgres-standby", "postgres-standby", clock=True),
    Store("postgres-async", "postgres-standby-async", durable=False),
    # As long as it is one server that flushes before it answers, nothing that
    # was acknowledged may be missing: judged like a durable store.
    Store("redis", "redis", "redis", clock=True),
    Store("redis-plain", "redis-plain", "redis-plain", durable=False,
          must_lose=True),
    Store("redis-sentinel", "redis-sentinel", durable=False),
    Store("redis-cluster", "redis-cluster"),
    Store("mysql", "mysql", "mysql", clock=True),
    Store("mysql-replica", "mysql-replica"),
    Store("postgres-net", net_postgres),
    Store("redis-net", net_redis),
    Store("sentinel-net", net_sentinel, durable=False),
    Store("sentinel-wait", net_sentinel_wait, durable=False),
]}
