# SPDX-License-Identifier: Apache-2.0
"""
Real servers for tests: PostgreSQL, pgbouncer, MariaDB, Redis with Sentinel and
Cluster, and the brokers RabbitMQ and NATS; and
a mock of Kafka.

A World is one temporary folder and the servers that live in it. Each server has
a name; what can be done to it is the same for all:

                start              stop, quit, kill
       (down) ---------> (running) -----------------> (down)
                          |     ^
                    pause |     | resume              kill: SIGKILL to all of
                          v     |                     its processes at once
                        (paused) ---- kill ---------> (down)

All listen on 127.0.0.1 and in the folder only. They die with the process that
made the World, whatever that dies of: the kernel ends them (PR_SET_PDEATHSIG),
and a janitor, which is a process of its own, ends the rest and removes the
folder. It refuses to run PostgreSQL as root, to use a port from which outgoing
connections come (a server that is down must find its own again), and to guess:
a server that is not installed is Missing, and a test says so.
"""

import contextlib
import glob
import json
import os
import pathlib
import re
import shutil
import signal
import socket
import ssl
import struct
import subprocess
import sys
import tempfile

from certificates import Authority
from faultproxy import Proxy  # noqa: F401  for those who import this one
from machine import (  # noqa: F401
    LOOPBACK, PATIENCE, Missing, NetSpace, Space, alive, children, eventually,
    find, forget_memory, forget_segment, free_port, preloaded, send,
    server_user, start_janitor, stat_of)

HERE = pathlib.Path(__file__).resolve().parent
TEMPLATES = HERE.parents[1] / "build" / "test-templates"


def copy_folder(old, new):
    """With owners, and holes where there are zeros."""
    subprocess.run(["cp", "-a", "--sparse=always", old, new], check=True,
                   stderr=subprocess.DEVNULL)


def keep_folder(folder, template):
    """Whole or not at all, also when two do it at once. A machine without room
    or right does without it."""
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        template.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=template.parent) as part:
            copy_folder(folder, os.path.join(part, "whole"))
            os.rename(os.path.join(part, "whole"), template)


# ---- Servers -------------------------------------------------------------


class Server:
    """One server. Those below say how it starts and when it is ready."""

    def __init__(self, world, name, space=None):
        self.world = world
        self.name = name
        self.space = space or Space()
        self.address = self.space.address
        self.port = free_port()
        self.process = None
        self.environment = {}
        self.folder = world.folder / name
        self.folder.mkdir()
        world.give(self.folder)
        world.servers[name] = self

    def command(self):
        raise NotImplementedError

    def ready(self):
        raise NotImplementedError

    # -- life

    @property
    def pid(self):
        return self.process.pid if self.process else None

    def running(self):
        return self.process is not None and self.process.poll() is None

    def start(self, wait=True):
        if self.running():
            raise RuntimeError(self.name + " runs already")
        # Meson sets it for the programs under test. MariaDB takes ten times as
        # long with it to fill a large table.
        env = ["env", "-u", "MALLOC_PERTURB_"] + [
            "%s=%s" % pair for pair in self.environment.items()]
        with open(self.folder / "log", "ab") as log, self.space.inside():
            self.process = subprocess.Popen(
                self.world.privileges("KILL") + env + self.command(),
                stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                cwd=self.folder, start_new_session=True)
        self.world.watch(self.process.pid)
        if wait:
            self.wait()
        return self

    def wait(self):
        def look():
            if not self.running():
                raise RuntimeError("%s ended:\n%s" % (self.name, self.log()))
            with self.space.inside():
                return self.ready()
        eventually(look, self.name + " starts")

    def log(self):
        with contextlib.suppress(OSError):
            return (self.folder / "log").read_text("latin-1")[-2000:]
        return ""

    def _end(self, number):
        if self.running():
            family = children(self.pid)
            send(self.pid, signal.SIGCONT)
            send(self.pid, number)
            try:
                self.process.wait(PATIENCE)
                self._gone(family)
            except subprocess.TimeoutExpired:
                self.kill()
        self.process = None

    def _gone(self, family):
        eventually(lambda: not any(alive(p) for p in family),
                   self.name + " is gone")

    def stop(self):
        """In order: what was begun is ended."""
        self._end(signal.SIGTERM)

    def quit(self):
        """At once, but by the server's own means."""
        self._end(signal.SIGTERM)

    def _stand_still(self):
        """The process itself, if it has not ended. It stops after the fork that it
        may be in, so that no child is missed."""
        send(self.pid, signal.SIGSTOP)
        eventually(lambda: (stat_of(self.pid) or "T")[0] == "T"
                   or not self.running(), self.name + " is stopped")

    def kill(self):
        """kill -9, the whole of it; returns when nothing is left."""
        if self.running():
            self._stand_still()  # no more children from here on
            family = children(self.pid) + [self.pid]
            for pid in family:
                send(pid, signal.SIGKILL)
            self.process.wait(PATIENCE)
            self._gone(family)
        self.process = None

    def restart(self):
        self.stop()
        self.start()

    def pause(self):
        """The whole of it stands still; connections stay open."""
        self._stand_still()
        assert self.running(), self.name + " has ended"
        for pid in children(self.pid):
            send(pid, signal.SIGSTOP)

    def resume(self):
        for pid in children(self.pid) + [self.pid]:
            send(pid, signal.SIGCONT)

    # -- what it tells a test

    def details(self):
        return {"port": self.port, "pid": self.pid, "dir": self.folder}


# Ends backends of the role `once`: looks so often for such that are as it says.
TERMINATE = """
DO $$
DECLARE n int := 0; i int; k int;
BEGIN
    FOR i IN 1..%d LOOP
        PERFORM pg_stat_clear_snapshot();
        SELECT count(pg_terminate_backend(pid)) INTO k FROM pg_stat_activity
        WHERE usename = 'once' AND %s;
        n := n + k;
        EXIT WHEN n > 0;
    END LOOP;
    IF n = 0 THEN RAISE 'none'; END IF;
END $$"""
COMMITTING = "wait_event IN ('WALSync', 'WALWrite')"


class Postgres(Server):
    """fsync stays on: a test that loses what was acknowledged has a reason."""

    SETTINGS = {
        "max_connections": "100",
        "shared_buffers": "32MB", "dynamic_shared_memory_type": "mmap",
        "log_min_messages": "warning", "max_wal_senders": "4",
        "wal_keep_size": "256MB", "hot_standby": "on"}

    def __init__(self, world, name="postgres", space=None, **settings):
        super().__init__(world, name, space)
        self.data = self.folder / "data"
        self.settings = dict(self.SETTINGS, listen_addresses=self.address,
                             **settings)
        self.tls = False

    def init(self):
        self.world.run([find("initdb"), "-D", self.data, "-U", "postgres",
                        "-A", "trust", "-E", "UTF8", "--locale=C", "-N"])
        with open(self.data / "pg_hba.conf", "a", encoding="ascii") as f:
            f.write("host all,replication all %s trust\n"
                    % self.space.network)
        return self

    def clone(self, primary):
        """A streaming standby that calls itself by its own name."""
        self.world.run([
            find("pg_basebackup"), "-D", self.data, "-R", "-X", "stream",
            "-c", "fast", "-N", "-d",
            "host=%s port=%d user=postgres application_name=%s"
            % (LOOPBACK, primary.port, self.name)])
        return self

    def command(self):
        words = [find("postgres"), "-D", str(self.data)]
        settings = dict(self.settings, port=self.port,
                        unix_socket_directories=self.folder)
        if self.tls:
            settings.update(ssl="on", ssl_cert_file=self.folder / "tls.crt",
                            ssl_key_file=self.folder / "tls.key")
        for pair in settings.items():
            words += ["-c", "%s=%s" % pair]
        return words

    def ready(self):
        return subprocess.run(
            [find("pg_isready"), "-q", "-h", self.address, "-p",
             str(self.port)],
            check=False).returncode == 0

    def sql(self, text, database="postgres", user="postgres", check=True,
            patience=PATIENCE):
        """Runs statements, those of a list one by one; returns what they
        printed, without alignment."""
        texts = [text] if isinstance(text, str) else text
        # By its unix socket: that is there in every place.
        done = subprocess.run(
            [find("psql"), "-XAtq", "-v", "ON_ERROR_STOP=1", "-h", self.folder,
             "-p", str(self.port), "-U", user, "-d", database,
             *(word for text in texts for word in ("-c", text))],
            stdin=subprocess.DEVNULL, capture_output=True, text=True,
            timeout=patience, check=False)
        if check and done.returncode != 0:
            raise RuntimeError("psql: " + done.stderr.strip())
        return done.stdout.strip()

    def terminate(self, where="true", looks=1):
        """pg_terminate_backend() of the role `once`; False: there was none."""
        try:
            self.sql(TERMINATE % (looks, where), "once")
        except RuntimeError:
            return False
        return True

    def furnish(self):
        """The role and the database that tests use."""
        self.sql("CREATE ROLE once LOGIN")
        self.sql("CREATE DATABASE once OWNER once")
        return self

    def quit(self):
        self._end(signal.SIGQUIT)

    def stop(self):
        self._end(signal.SIGINT)

    def follow_by(self, names):
        """From now on commits wait for these standbys; "": for none."""
        self.sql("ALTER SYSTEM SET synchronous_standby_names = '%s'" % names)
        self.sql("SELECT pg_reload_conf()")
        how = "sync" if names else "async"
        eventually(lambda: self.sql("SELECT sync_state FROM "
                                    "pg_stat_replication") == how,
                   "a standby follows " + self.name)

    def rejoin(self, primary):
        """After its own end: a new standby of what was promoted."""
        forget_segment(self.data)
        shutil.rmtree(self.data)
        self.clone(primary).start()

    def promote(self):
        self.world.run([find("pg_ctl"), "-D", self.data, "-w", "-t",
                        str(PATIENCE), "promote"])
        eventually(lambda: self.sql("SELECT pg_is_in_recovery()") == "f",
                   self.name + " is promoted")
        # It has the primary's settings, and nobody follows it yet.
        self.sql("ALTER SYSTEM RESET synchronous_standby_names")
        self.sql("SELECT pg_reload_conf()")

    def certificate(self, which):
        self.world.authority.install(which, self.folder)
        if self.running():
            send(self.pid, signal.SIGHUP)

    def url(self, user="once", more=""):
        return "postgres://%s@%s:%d/once%s" % (user, self.address, self.port,
                                               more)

    def details(self):
        return dict(super().details(), data=self.data,
                    admin_url=self.url("postgres"), socket=self.folder)


class PgBouncer(Server):
    def __init__(self, world, behind, name="pgbouncer"):
        super().__init__(world, name)
        (self.folder / "users").write_text('"once" ""\n"postgres" ""\n',
                                           "ascii")
        (self.folder / "ini").write_text(
            "[databases]\n* = host=%s port=%d\n"
            "[pgbouncer]\nlisten_addr = %s\nlisten_port = %d\n"
            "unix_socket_dir =\nauth_type = trust\nauth_file = %s\n"
            "admin_users = postgres\npool_mode = transaction\n"
            "default_pool_size = 8\nmax_client_conn = 200\n"
            "server_login_retry = 0.2\nserver_round_robin = 1\n"
            "ignore_startup_parameters = extra_float_digits\n"
            % (LOOPBACK, behind.port, LOOPBACK, self.port,
               self.folder / "users"), "ascii")

    def command(self):
        return [find("pgbouncer"), str(self.folder / "ini")]

    def ready(self):
        with contextlib.suppress(OSError), \
                socket.create_connection((LOOPBACK, self.port), 1):
            return True
        return False

    def quit(self):
        self._end(signal.SIGTERM)

    def stop(self):
        self._end(signal.SIGINT)

    def url(self):
        return "postgres://once@%s:%d/once" % (LOOPBACK, self.port)


class MariaDB(Server):
    """Class A as it stands: redo log and binlog are flushed at each commit."""

    SETTINGS = {
        "innodb_flush_log_at_trx_commit": "1", "log_bin": "bin",
        "sync_binlog": "1", "binlog_format": "ROW",
        "binlog_annotate_row_events": "OFF",
        # Newer ones take address space for the largest pool there could be.
        "innodb_buffer_pool_size": "64M",
        "loose_innodb_buffer_pool_size_max": "64M", "innodb_log_file_size": "96M",
        "innodb_fast_shutdown": "1", "skip_name_resolve": "ON",
        # Many servers at once exceed what the kernel grants.
        "innodb_use_native_aio": "OFF", "max_connections": "200"}

    def __init__(self, world, name="mysql", space=None, **settings):
        super().__init__(world, name, space)
        self.data = self.folder / "data"
        self.socket = self.folder / "socket"
        self.settings = dict(self.SETTINGS, bind_address=self.address,
                             server_id=str(self.port), **settings)
        self.tls = False
        self.environment["ONCE_CLOCKSHIM_WAITS"] = "1"

    def template(self):
        return TEMPLATES / ("mariadb-%d-%d" % (
            os.geteuid(), os.stat(find("mariadbd")).st_mtime_ns))

    def init(self):
        """A copy of what the server's installer made, which takes seconds."""
        template = self.template()
        try:
            copy_folder(template, self.data)
        except (OSError, subprocess.SubprocessError):
            shutil.rmtree(self.data, ignore_errors=True)
            self.install()
            keep_folder(self.data, template)
        return self

    def install(self):
        """Not in the machine's /tmp: a server that starts removes temporary
        tables there, also those of another one."""
        self.world.run([
            find("mariadb-install-db"), "--no-defaults", "--datadir=%s"
            % self.data, "--tmpdir=%s" % self.folder, "--auth-root-authentication-method=normal",
            "--skip-test-db", "--skip-name-resolve",
            "--innodb-use-native-aio=OFF", "--innodb-buffer-pool-size=64M",
            "--loose-innodb-buffer-pool-size-max=64M"])

    def all_settings(self):
        settings = dict(self.settings, port=self.port, socket=self.socket,
                        datadir=self.data, tmpdir=self.folder,
                        pid_file=self.folder / "pid")
        if self.tls:
            settings.update(ssl_cert=self.folder / "tls.crt",
                            ssl_key=self.folder / "tls.key")
        return settings

    def command(self):
        return [find("mariadbd"), "--no-defaults",
                *("--%s=%s" % pair for pair in self.all_settings().items())]

    def ready(self):
        with contextlib.suppress(OSError), \
                socket.create_connection((self.address, self.port),
                                         10) as sock:
            return len(sock.recv(5)) == 5
        return False

    def sql(self, text, database="", check=True):
        """Runs statements as root; returns what they printed."""
        done = subprocess.run(
            [find("mariadb"), "--no-defaults", "-N", "-B", "-u", "root", "-S",
             str(self.socket), database, "-e", text],
            stdin=subprocess.DEVNULL, capture_output=True, text=True,
            errors="replace",
            timeout=PATIENCE, check=False)
        if check and done.returncode != 0:
            raise RuntimeError("mariadb: " + done.stderr.strip())
        return done.stdout.strip()

    def furnish(self):
        """The account that tests use, which may make databases, and one of
        them."""
        self.sql("CREATE DATABASE once; CREATE USER once@'%'; "
                 "GRANT ALL ON *.* TO once@'%'; "
                 "REVOKE SUPER, READ ONLY ADMIN ON *.* FROM once@'%'")
        return self

    def terminate(self):
        """KILL of all connections of `once`; False: there was none."""
        with contextlib.suppress(RuntimeError):
            found = self.sql("SELECT CONCAT('KILL ', id, ';') FROM "
                             "information_schema.PROCESSLIST "
                             "WHERE user = 'once'")
            self.sql(found.replace("\n", ""))
            return found != ""
        return False

    def follow(self, primary):
        """All that the primary has in its binlog, from the beginning. From now
        on its commits wait until this one has it; it is applied with fewer
        flushes, or it would fall behind."""
        primary.sql("CREATE USER IF NOT EXISTS repl@'%'; "
                    "GRANT REPLICATION SLAVE ON *.* TO repl@'%'")
        self.sql("CHANGE MASTER TO MASTER_HOST = '%s', MASTER_PORT = %d, "
                 "MASTER_USER = 'repl', MASTER_USE_GTID = slave_pos, "
                 "MASTER_CONNECT_RETRY = 1; SET GLOBAL sync_binlog = 0, "
                 "innodb_flush_log_at_trx_commit = 2; START SLAVE"
                 % (primary.address, primary.port))
        primary.sql("SET GLOBAL rpl_semi_sync_master_enabled = 1")
        eventually(lambda: primary.sql(
            "SHOW STATUS LIKE 'Rpl_semi_sync_master_clients'").endswith("1"),
                   self.name + " is waited for")

    def rejoin(self, primary):
        """After its own end: a new replica of what was promoted. What it has
        committed and nobody was told of must not come back. Under its old
        number it would leave out what it has told others itself."""
        shutil.rmtree(self.data)
        self.settings["server_id"] = str(100000 +
                                         int(self.settings["server_id"]))
        self.settings["read_only"] = "ON"
        self.init().start()
        self.follow(primary)

    def promote(self):
        """When all that it was told is applied."""
        self.sql("STOP SLAVE IO_THREAD")
        eventually(lambda: "has read all relay log" in self.sql(
            "SHOW PROCESSLIST"), self.name + " has applied all")
        self.sql("STOP SLAVE; RESET SLAVE ALL; SET GLOBAL sync_binlog = 1, "
                 "innodb_flush_log_at_trx_commit = 1, read_only = 0")
        self.settings["read_only"] = "OFF"

    def certificate(self, which):
        self.world.authority.install(which, self.folder)
        if self.running():
            self.sql("FLUSH SSL")

    def url(self, user="once", more=""):
        return "mysql://%s@%s:%d/once%s" % (user, self.address, self.port,
                                            more)

    def details(self):
        return dict(super().details(), data=self.data, socket=self.socket)


class MySQL(MariaDB):
    """MySQL, where ONCE_MYSQLD names its program; for tests that know nothing
    of it, it takes the place of MariaDB. tools/mysql makes such a program."""

    SETTINGS = {
        "innodb_flush_log_at_trx_commit": "1", "log_bin": "bin",
        "sync_binlog": "1", "loose_binlog_format": "ROW",
        "innodb_buffer_pool_size": "64M", "innodb_redo_log_capacity": "96M",
        "innodb_fast_shutdown": "1", "skip_name_resolve": "ON",
        "innodb_use_native_aio": "OFF", "max_connections": "200",
        "max_allowed_packet": "16M",  # MariaDB's default
        "gtid_mode": "ON", "enforce_gtid_consistency": "ON",
        "mysqlx": "OFF"}

    # Of MariaDB's settings that tests name.
    NAMES = {
        "rpl_semi_sync_master_enabled": "rpl_semi_sync_source_enabled",
        "rpl_semi_sync_slave_enabled": "rpl_semi_sync_replica_enabled",
        "rpl_semi_sync_master_wait_point": "rpl_semi_sync_source_wait_point",
        "rpl_semi_sync_master_timeout": "rpl_semi_sync_source_timeout",
        "rpl_semi_sync_master_wait_no_slave":
            "rpl_semi_sync_source_wait_no_replica",
        "log_slave_updates": "log_replica_updates",
        "innodb_log_file_size": "innodb_redo_log_capacity"}

    def program(self):
        return [os.environ["ONCE_MYSQLD"], "--no-defaults"]

    def template(self):
        return TEMPLATES / ("mysql-%d-%d" % (
            os.geteuid(), os.stat(os.environ["ONCE_MYSQLD"]).st_mtime_ns))

    def install(self):
        self.world.run(self.program() + [
            "--initialize-insecure", "--datadir=%s" % self.data,
            "--tmpdir=%s" % self.folder, "--innodb-use-native-aio=OFF",
            "--innodb-buffer-pool-size=64M", "--auto-generate-certs=OFF"])
        # Two servers with one would not follow each other.
        (self.data / "auto.cnf").unlink()

    def command(self):
        plugins = "semisync_source.so;semisync_replica.so"
        settings = {self.NAMES.get(name, name): value
                    for name, value in self.all_settings().items()}
        if self.tls:  # or it would check them by an authority of its own
            settings["auto_generate_certs"] = "OFF"
        if "log_bin" not in settings:  # MySQL has one unless told
            settings["skip_log_bin"] = "ON"
        return self.program() + ["--plugin-load-add=" + plugins] + [
            "--%s=%s" % pair for pair in settings.items()]

    def furnish(self):
        self.sql("CREATE DATABASE once; CREATE USER once@'%'; "
                 "GRANT ALL ON *.* TO once@'%'; REVOKE SUPER, "
                 "CONNECTION_ADMIN, SYSTEM_VARIABLES_ADMIN ON *.* FROM once@'%'")
        return self

    def follow(self, primary):
        primary.sql("CREATE USER IF NOT EXISTS repl@'%'; "
                    "GRANT REPLICATION SLAVE ON *.* TO repl@'%'")
        self.sql("CHANGE REPLICATION SOURCE TO SOURCE_HOST = '%s', "
                 "SOURCE_PORT = %d, SOURCE_USER = 'repl', "
                 "SOURCE_AUTO_POSITION = 1, GET_SOURCE_PUBLIC_KEY = 1, "
                 "SOURCE_CONNECT_RETRY = 1; SET GLOBAL sync_binlog = 0, "
                 "GLOBAL innodb_flush_log_at_trx_commit = 2; START REPLICA"
                 % (primary.address, primary.port))
        primary.sql("SET GLOBAL rpl_semi_sync_source_enabled = 1")
        eventually(lambda: primary.sql(
            "SHOW STATUS LIKE 'Rpl_semi_sync_source_clients'").endswith("1"),
                   self.name + " is waited for")

    def certificate(self, which):
        """At a start it only warns of what it would refuse to load later."""
        self.world.authority.install(which, self.folder)
        if self.running():
            self.restart()

    def promote(self):
        self.sql("STOP REPLICA IO_THREAD")
        eventually(lambda: "has read all relay log" in self.sql(
            "SHOW PROCESSLIST"), self.name + " has applied all")
        self.sql("STOP REPLICA; RESET REPLICA ALL; SET GLOBAL sync_binlog = 1,"
                 " GLOBAL innodb_flush_log_at_trx_commit = 1,"
                 " GLOBAL read_only = 0")
        self.settings["read_only"] = "OFF"


def mysql_or_mariadb(world, name="mysql", **settings):
    """What stands behind `mysql://` in this run."""
    kind = MySQL if "ONCE_MYSQLD" in os.environ else MariaDB
    return kind(world, name, **settings)


class RedisError(Exception):
    """What the server answered with a minus sign."""


class Redis(Server):
    """`durable`: every write is in the file before it is acknowledged."""

    def __init__(self, world, name="redis", durable=True, space=None,
                 **settings):
        super().__init__(world, name, space)
        self.tls = False
        self.settings = {
            "bind": self.address, "dir": str(self.folder), "save": "",
            "protected-mode": "yes" if self.address == LOOPBACK else "no",
            "daemonize": "no", "maxmemory-policy": "noeviction",
            "enable-debug-command": "local",
            "unixsocket": str(self.folder / "socket"),
            "unixsocketperm": "777",
            "appendonly": "yes" if durable else "no",
            "appendfsync": "always"}
        self.settings.update({k.replace("_", "-"): str(v)
                              for k, v in settings.items()})

    def command(self):
        settings = dict(self.settings, port=str(self.port))
        if self.tls:
            settings.update({
                "port": "0", "tls-port": str(self.port),
                "tls-cert-file": str(self.folder / "tls.crt"),
                "tls-key-file": str(self.folder / "tls.key"),
                "tls-ca-cert-file": str(self.world.authority.path("ca.crt")),
                "tls-auth-clients": "no"})
        words = [find("redis-server")]
        for name, value in settings.items():
            words += ["--" + name, *(value.split() or [""])]
        return words

    def ready(self):
        with contextlib.suppress(OSError, RedisError, EOFError):
            return self.ask("PING") == b"PONG"
        return False

    def ask(self, *words, patience=10):
        """One command on a connection of its own."""
        with contextlib.closing(self.connect(patience)) as sock:
            return ask_redis(sock, *words)

    def connect(self, patience=10):
        with self.space.inside():
            sock = socket.create_connection((self.address, self.port),
                                            patience)
        if not self.tls:
            return sock
        context = ssl.create_default_context()
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
        return context.wrap_socket(sock)

    def certificate(self, which):
        self.world.authority.install(which, self.folder)
        if self.running():
            self.ask("CONFIG", "SET", "tls-cert-file",
                     str(self.folder / "tls.crt"), "tls-key-file",
                     str(self.folder / "tls.key"))

    def url(self):
        return "%s://%s:%d" % ("rediss" if self.tls else "redis",
                               self.address, self.port)

    def details(self):
        return dict(super().details(), socket=self.folder / "socket")


class Sentinel(Redis):
    """Watches a primary under the name `main`."""

    def __init__(self, world, primary, name, quorum=2, space=None):
        super().__init__(world, name, space=space)
        self.file = self.folder / "sentinel.conf"
        # It rewrites its file, and puts what it learns there.
        self.file.write_text(
            "port %d\nbind %s\ndir %s\nprotected-mode no\n"
            "sentinel monitor main %s %d %d\n"
            "sentinel down-after-milliseconds main 1000\n"
            "sentinel failover-timeout main 5000\n"
            "sentinel parallel-syncs main 1\n"
            % (self.port, self.address, self.folder, primary.address,
               primary.port, quorum), "ascii")
        world.give(self.file)

    def command(self):
        return [find("redis-sentinel"), str(self.file), "--sentinel"]


def ask_redis(sock, *words):
    """Speaks RESP 2 as far as tests need it."""
    data = b"*%d\r\n" % len(words)
    for word in words:
        word = word if isinstance(word, bytes) else str(word).encode()
        data += b"$%d\r\n%s\r\n" % (len(word), word)
    sock.sendall(data)
    with sock.makefile("rb") as stream:
        return _redis_answer(stream)


def _redis_answer(stream):
    line = stream.readline()
    if not line.endswith(b"\r\n"):
        raise EOFError("redis hung up")
    kind, rest = line[:1], line[1:-2]
    if kind == b"-":
        raise RedisError(rest.decode("latin-1"))
    if kind == b"+":
        return rest
    if kind == b":":
        return int(rest)
    if int(rest) < 0:
        return None
    if kind == b"$":
        return stream.read(int(rest) + 2)[:-2]
    return [_redis_answer(stream) for _ in range(int(rest))]


# ---- Brokers -------------------------------------------------------------


class Broker(Server):
    """`HELLO` is what a client sends first, `ANSWER` how the reply begins."""

    HELLO = ANSWER = b""
    SCHEME = ""

    def ready(self):
        with contextlib.suppress(OSError), \
                socket.create_connection((self.address, self.port),
                                         10) as sock:
            sock.sendall(self.HELLO)
            return sock.recv(len(self.ANSWER)) == self.ANSWER
        return False

    def write(self, name, text):
        """A file of its own, for the user whom it runs as."""
        path = self.folder / name
        path.write_text(text, "ascii")
        self.world.give(path)
        return path

    def url(self):
        return "%s://%s:%d" % (self.SCHEME, self.address, self.port)


class RabbitMQ(Broker):
    """One node without cluster, plugins, epmd and Erlang distribution.

    Three things make the start several times faster: the Erlang machine is
    started without the scripts around it, the configuration is in Erlang's
    terms, and the code path names only what the node needs.
    """

    HELLO, ANSWER = b"AMQP\x00\x00\x09\x01", b"\x01"
    HOME = "/usr/lib/rabbitmq/lib/rabbitmq_server-*/plugins/*-[0-9]*"

    # For every Erlang machine: the node starts another one each minute, which
    # would start epmd, and epmd would listen everywhere and stay.
    ALONE = "-start_epmd false -dist_listen false -erl_epmd_port 1"

    def __init__(self, world, name="rabbitmq", space=None, **settings):
        super().__init__(world, name, space)
        self.node = name + "@localhost"
        libraries = self._libraries()
        terms = {
            "tcp_listeners": '[{"%s",%d}]' % (self.address, self.port),
            "loopback_users": "[]", "num_tcp_acceptors": "2",
            "vm_memory_high_watermark": '{absolute,"1GB"}',
            "disk_free_limit": "10000000",
            "log": "[{console,[{enabled,true},{level,warning}]},"
                   "{file,[{file,false}]}]"}
        terms.update(settings)
        self.write("advanced.config", "[{rabbit,[%s]}].\n" % ",\n".join(
            "{%s,%s}" % pair for pair in terms.items()))
        self.write("plugins", "[].\n")
        self.environment.update(
            HOME=self.folder, ERL_LIBS=libraries, ERL_ZFLAGS=self.ALONE,
            ERL_EPMD_ADDRESS=LOOPBACK, RABBITMQ_NODENAME=self.node,
            RABBITMQ_CONF_ENV_FILE="/dev/null",
            RABBITMQ_CONFIG_FILE=self.folder / "none",
            RABBITMQ_ADVANCED_CONFIG_FILE=self.folder / "advanced.config",
            RABBITMQ_ENABLED_PLUGINS_FILE=self.folder / "plugins",
            RABBITMQ_MNESIA_BASE=self.folder / "mnesia",
            RABBITMQ_LOG_BASE=self.folder / "logs", RABBITMQ_LOGS="-",
            RABBITMQ_PID_FILE=self.folder / "pid")

    def _libraries(self):
        """A folder with links to what the application `rabbit` is made of."""
        homes = {pathlib.Path(p).name.split("-")[0]: pathlib.Path(p)
                 for p in glob.glob(self.HOME)}
        if "rabbit" not in homes:
            raise Missing("rabbitmq-server is not installed")
        folder = self.folder / "libraries"
        folder.mkdir()
        needed = ["rabbit"]
        for name in needed:
            (folder / homes[name].name).symlink_to(homes[name])
            text = (homes[name] / "ebin" / (name + ".app")).read_text("utf-8")
            words = re.search(r"{applications,\s*\[([^]]*)\]", text)[1]
            needed += [word for word in re.findall(r"\w+", words)
                       if word in homes and word not in needed]
        return folder

    def command(self):
        return [find("erl"), "-noinput", "-boot", "start_sasl", "-sname",
                self.node, "-s", "rabbit", "boot", "+W", "w", "+S", "1:1",
                "-syslog", "logger", "[]",
                "-syslog", "syslog_error_logger", "false",
                "-kernel", "prevent_overlapping_partitions", "false"]

    def quit(self):
        self._end(signal.SIGQUIT)

    def settle(self, *queues):
        """Waits until a SIGKILL loses none of these new quorum queues.

        RabbitMQ 3.10 acknowledges a declaration some seconds before the
        queue's entry is in the file. Without it the queue has no leader after
        the restart, and whoever asks for a message waits for a minute."""
        path = self.folder / "mnesia" / self.node / "quorum" / self.node / \
            "names.dets"
        for queue in queues:
            name = ("%2F_" + queue).encode()
            eventually(lambda n=name: n in path.read_bytes(),
                       "the entry of %s is written" % queue)

    def url(self):
        return "amqp://guest:guest@%s:%d/%%2f" % (self.address, self.port)


class Nats(Broker):
    """One server with JetStream in its folder."""

    HELLO, ANSWER = b"", b"INFO "
    SCHEME = "nats"

    def __init__(self, world, name="nats", space=None, **settings):
        super().__init__(world, name, space)
        lines = {
            "listen": "%s:%d" % (self.address, self.port),
            "server_name": name,
            "jetstream": '{ store_dir: "%s", max_memory_store: 256MB,'
                         ' max_file_store: 4GB }' % (self.folder / "data")}
        lines.update(settings)
        self.file = self.write("conf", "".join(
            "%s: %s\n" % pair for pair in lines.items()))

    def command(self):
        return [find("nats-server"), "-c", str(self.file)]

    def ask(self, what, request):
        """One question to JetStream, as "STREAM.CREATE.orders", and its answer."""
        data = json.dumps(request).encode()
        with socket.create_connection((self.address, self.port), 10) as sock, \
                sock.makefile("rwb") as f:
            f.readline()
            f.write(b'CONNECT {"verbose":false}\r\nSUB i 1\r\n'
                    b"PUB $JS.API.%s i %d\r\n%s\r\n"
                    % (what.encode(), len(data), data))
            f.flush()
            line = f.readline()
            while not line.startswith(b"MSG"):
                if not line:
                    raise EOFError("nats hung up")
                line = f.readline()
            answer = json.loads(f.read(int(line.split()[-1])))
        if "error" in answer:
            raise RuntimeError("nats: %s" % answer["error"])
        return answer


def _listens(address, port):
    with contextlib.suppress(OSError), \
            socket.create_connection((address, port), 5):
        return True
    return False


def built(program):
    """A program of the tests' own, as test/meson.build makes it."""
    build = pathlib.Path(os.environ.get("ONCE_BUILD",
                                        HERE.parent.parent / "build"))
    path = build / "test" / program
    if not path.exists():
        raise Missing(program + " is not built")
    return path


class Kafka(Broker):
    """
    librdkafka's mock cluster (kafkamock.c), or the real one that ONCE_KAFKA
    names. Its log ends with its process, so `kill` cuts all connections and
    closes all ports, and the process goes on: a cluster of which no broker can
    be reached, and which has kept what it took.
    """

    SCHEME = "kafka"

    def __init__(self, world, name="kafka", space=None, brokers=1, tls=False):
        super().__init__(world, name, space)
        self.front = None
        self.behind = free_port() if tls else None
        self.ports = [self.port] + [free_port() for _ in range(brokers - 1)]
        self.real = os.environ.get("ONCE_KAFKA")
        self.control = self.folder / "control"
        self.hosts = self.real or ",".join(
            "%s:%d" % (self.address, port) for port in self.ports)
        self.tool_ = built("kafkatool")
        # The servers' user may not see the build.
        self.program = self.folder / "kafkamock"
        shutil.copy(built("kafkamock"), self.program)
        self.program.chmod(0o755)

    def command(self):
        return [str(self.program), str(self.control),
                *(str(port) + ("=%d" % self.behind if self.behind else "")
                  for port in self.ports)]

    def certificate(self, which):
        self.world.authority.install(which, self.folder)

    def start_front(self):
        """The mock has no TLS."""
        self.front = subprocess.Popen(
            self.world.privileges("KILL") +
            [sys.executable, str(HERE / "tlsfront.py"), str(self.port),
             str(self.behind), str(self.folder / "tls.crt"),
             str(self.folder / "tls.key")], start_new_session=True)
        self.world.watch(self.front.pid)
        eventually(lambda: _listens(self.address, self.port),
                   "TLS before " + self.name)

    def ready(self):
        with contextlib.suppress(OSError):
            return self.ask("ping") == "ok"
        return False

    def ask(self, line):
        """One command to the mock."""
        with socket.socket(socket.AF_UNIX) as sock, sock.makefile("rw") as f:
            sock.settimeout(PATIENCE)
            sock.connect(str(self.control))
            f.write(line + "\n")
            f.flush()
            answer = f.readline().strip()
        if answer != "ok":
            raise RuntimeError("kafka: %s: %s" % (line, answer or "hung up"))
        return answer

    def start(self, wait=True):
        if self.real:
            return self
        if self.running():
            self.ask("up 0")
            return self
        super().start(wait)
        if self.behind:
            self.start_front()
        return self

    def kill(self):
        if self.real:
            raise RuntimeError("a cluster of others is not killed")
        if self.running():
            self.ask("down 0")

    def quit(self):
        if not self.real:
            self._end(signal.SIGKILL)
        if self.front:
            self.front.kill()
            self.front.wait()
            self.front = None

    stop = quit

    def tool(self, *words):
        """What kafkatool says."""
        done = subprocess.run(
            [str(self.tool_), self.hosts, *(str(w) for w in words)],
            env=dict(os.environ, **self.environment_of_tool()),
            stdin=subprocess.DEVNULL, capture_output=True, text=True,
            timeout=2 * PATIENCE, check=False)
        if done.returncode != 0:
            raise RuntimeError("kafkatool: " + done.stderr.strip())
        return done.stdout.strip()

    def environment_of_tool(self):
        return {} if self.real else {"ONCE_TEST_KAFKA_CONTROL": str(self.control)}

    def url(self):
        return "%s%s://%s" % (self.SCHEME, "s" if self.behind else "",
                              self.hosts)

    def details(self):
        more = {} if self.real else {"control": self.control}
        return dict(super().details(), hosts=self.hosts, tool=self.tool_,
                    **more)


# ---- Worlds --------------------------------------------------------------


class World:
    """A folder, its servers, their end."""

    def __init__(self):
        self.user = server_user()
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="once-servers."))
        self.folder.chmod(0o755)
        self.servers = {}
        self.exports = {}
        self.shim = None
        self._authority = None
        self.janitor, self.pipe = start_janitor(str(self.folder))

    def __enter__(self):
        return self

    def __exit__(self, *what):
        self.close()

    @property
    def authority(self):
        if self._authority is None:
            self._authority = Authority(self)
        return self._authority

    def give(self, path):
        """To the user whom servers run as."""
        if os.geteuid() == 0:
            os.chown(path, self.user.pw_uid, self.user.pw_gid)

    def privileges(self, death):
        words = [find("setpriv"), "--pdeathsig", death]
        if os.geteuid() == 0:
            words += ["--reuid", self.user.pw_name,
                      "--regid", str(self.user.pw_gid), "--clear-groups"]
        return words + ["--"]

    def run(self, words):
        """A tool of a server's, as that server's user."""
        done = subprocess.run(
            self.privileges("KILL") + [str(w) for w in words], text=True,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, check=False,
            stderr=subprocess.STDOUT, cwd=self.folder, timeout=3 * PATIENCE)
        if done.returncode != 0:
            raise RuntimeError("%s: %s" % (words[0], done.stdout[-4000:]))

    def watch(self, pid):
        stat = stat_of(pid)
        if stat:
            self.pipe.write("%d %s\n" % (pid, stat[2]))

    def clock(self, server):
        """Gives a server, before its start, a clock that can be moved."""
        if self.shim is None:
            self.shim = self.folder / "clockshim.so"
            subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-o", self.shim,
                            HERE / "clockshim.c", "-ldl"], check=True)
        ahead = self.folder / (server.name + ".clock")
        ahead.write_bytes(struct.pack("=q", 0))
        ahead.chmod(0o644)
        server.environment.update(preloaded(self.shim), ONCE_CLOCKSHIM=ahead)

    def step(self, name, ahead_ms):
        """Moves that clock: milliseconds ahead of the machine's."""
        path = self.folder / (name + ".clock")
        if not path.exists():
            raise RuntimeError("no --clock: its clock cannot be moved")
        with open(path, "r+b") as f:
            f.write(struct.pack("=q", ahead_ms))

    def build(self, kind, clock=False):
        """Starts what `kind` means; returns its URL."""
        if kind not in KINDS:
            raise Missing("%s is no kind of server: %s"
                          % (kind, " ".join(KINDS)))
        old = set(self.servers)
        url = KINDS[kind](self, clock)
        word = kind.upper().replace("-", "_")
        self.exports["ONCE_TEST_%s_URL" % word] = url
        self.exports.setdefault("ONCE_TEST_URL", url)
        self.exports["ONCE_TEST_DIR"] = self.folder
        if self._authority:
            self.exports["ONCE_TEST_TLS_DIR"] = self._authority.folder
        for name in set(self.servers) - old:
            for what, value in self.servers[name].details().items():
                self.exports["ONCE_TEST_%s_%s" % (
                    name.upper().replace("-", "_"), what.upper())] = value
        return url

    def close(self):
        """Ends all of it. What is asked to quit cleans up behind itself."""
        for server in reversed(list(self.servers.values())):
            with contextlib.suppress(Exception):
                if server.running():
                    server.resume()
                server.quit()
                server.kill()
        forget_memory(self.folder)
        self.pipe.close()
        os.waitpid(self.janitor, 0)


# ---- Kinds ---------------------------------------------------------------


def _started(world, server, clock):
    if clock:
        world.clock(server)
    return server.start()


def postgres(world, clock, **settings):
    server = Postgres(world, **settings)
    _started(world, server.init(), clock)
    return server.furnish().url()


def postgres_tls(world, clock):
    server = Postgres(world)
    server.tls = True
    server.certificate("good")
    _started(world, server.init(), clock)
    return server.furnish().url(
        more="?sslmode=verify-full&sslrootcert=%s"
        % world.authority.path("ca.crt"))


def pgbouncer(world, clock):
    if "postgres" not in world.servers:
        postgres(world, clock)
    return PgBouncer(world, world.servers["postgres"]).start().url()


def postgres_standby(world, clock, names="standby"):
    """Synchronous: what is acknowledged is on both."""
    primary = Postgres(world)
    _started(world, primary.init(), clock).furnish()
    standby = Postgres(world, "standby").clone(primary)
    _started(world, standby, clock)
    # Only now: without a standby nothing would be committed.
    primary.follow_by(names)
    return "postgres://once@%s:%d,%s:%d/once?target_session_attrs=read-write" \
        % (LOOPBACK, primary.port, LOOPBACK, standby.port)


def postgres_standby_async(world, clock):
    return postgres_standby(world, clock, "")


def mysql(world, clock, **settings):
    server = mysql_or_mariadb(world, **settings)
    _started(world, server.init(), clock)
    return server.furnish().url()


def mysql_slow(world, clock):
    """Flushes of the redo log are slow where $ONCE_TEST_DIR/slow_redo is: no
    binlog, whose flush would come first."""
    server = mysql_or_mariadb(world)
    server.settings.pop("log_bin")
    shim = world.folder / "slowflush.so"
    subprocess.run(["cc", "-D_GNU_SOURCE", "-shared", "-fPIC", "-O1", "-o",
                    shim, HERE / "slowflush.c", "-ldl"], check=True)
    server.environment.update(preloaded(shim),
                              ONCE_SLOWFLUSH=world.folder / "slow_redo")
    _started(world, server.init(), clock)
    return server.furnish().url()


def mysql_replica(world, clock):
    """Semi-synchronous: what is acknowledged is on both."""
    pair = [mysql_or_mariadb(world, name, log_slave_updates="ON",
                    rpl_semi_sync_slave_enabled="ON",
                    rpl_semi_sync_master_wait_point="AFTER_SYNC",
                    rpl_semi_sync_master_timeout="10000000000",
                    rpl_semi_sync_master_wait_no_slave="ON")
            for name in ("mysql", "replica")]
    _started(world, pair[0].init(), clock)
    pair[0].furnish()
    pair[1].init()
    pair[1].settings["read_only"] = "ON"
    _started(world, pair[1], clock)
    pair[1].follow(pair[0])
    return "mysql://once@%s:%d,%s:%d/once" % (
        LOOPBACK, pair[0].port, LOOPBACK, pair[1].port)


def mysql_tls(world, clock):
    server = mysql_or_mariadb(world)
    server.tls = True
    server.certificate("good")
    _started(world, server.init(), clock)
    return server.furnish().url(
        more="?sslmode=verify-full&sslrootcert=%s"
        % world.authority.path("ca.crt"))


def redis(world, clock):
    return _started(world, Redis(world), clock).url()


def redis_plain(world, clock):
    return _started(world, Redis(world, "redis-plain", durable=False),
                    clock).url()


def redis_tls(world, clock):
    server = Redis(world, "redis-tls")
    server.tls = True
    server.certificate("good")
    _started(world, server, clock)
    return server.url() + "?cacert=%s" % world.authority.path("ca.crt")


def redis_sentinel(world, clock, here=None, there=None):
    """Two sentinels are with the replica: they are the majority."""
    primary = _started(world, Redis(world, "redis-primary", space=here),
                       clock)
    replica = Redis(world, "redis-replica", space=there,
                    replicaof="%s %d" % (primary.address, primary.port))
    _started(world, replica, clock)
    eventually(lambda: replica.ask("ROLE")[3] == b"connected",
               "the replica follows")
    sentinels = [Sentinel(world, primary, "sentinel%d" % n,
                          space=here if n == 1 else there).start()
                 for n in (1, 2, 3)]
    eventually(lambda: sentinels_agree(sentinels),
               "the sentinels know one another")
    return "redis+sentinel://%s/main" % ",".join(
        "%s:%d" % (s.address, s.port) for s in sentinels)


def sentinels_agree(sentinels):
    """On who is the primary, that one replica follows it, and they are 3."""
    primaries = set()
    for s in sentinels:
        words = s.ask("SENTINEL", "MASTER", "main")
        said = dict(zip(words[::2], words[1::2]))
        primaries.add((said[b"ip"], said[b"port"], said[b"flags"]))
        if said[b"num-other-sentinels"] != b"2":
            return False
        replicas = s.ask("SENTINEL", "REPLICAS", "main")
        if len(replicas) != 1 or b"slave" not in replicas[0]:
            return False
    return len(primaries) == 1 and primaries.pop()[2] == b"master"


def redis_cluster(world, clock):
    nodes = [Redis(world, "redis%d" % n, cluster_enabled="yes",
                   cluster_port=free_port(), cluster_node_timeout=2000,
                   cluster_require_full_coverage="no",
                   cluster_config_file="nodes.conf") for n in (1, 2, 3)]
    for node in nodes:
        _started(world, node, clock)
    world.run([find("redis-cli"), "--cluster", "create", "--cluster-yes"] +
              ["%s:%d" % (LOOPBACK, n.port) for n in nodes])
    eventually(lambda: all(b"cluster_state:ok" in n.ask("CLUSTER", "INFO")
                           for n in nodes), "the cluster agrees")
    return "redis+cluster://%s" % ",".join(
        "%s:%d" % (LOOPBACK, n.port) for n in nodes)


def rabbitmq(world, clock):
    return _started(world, RabbitMQ(world), clock).url()


def nats(world, clock):
    del clock  # a program in Go has no C library that a shim could replace
    return Nats(world).start().url()


def kafka(world, clock):
    del clock
    return Kafka(world).start().url()


def kafka_tls(world, clock):
    del clock
    server = Kafka(world, tls=True)
    server.certificate("good")
    return server.start().url()


def kafka_cluster(world, clock):
    del clock
    return Kafka(world, brokers=3).start().url()


KINDS = {
    "postgres": postgres, "postgres-tls": postgres_tls,
    "pgbouncer": pgbouncer, "postgres-standby": postgres_standby,
    "postgres-standby-async": postgres_standby_async,
    "mysql": mysql, "mysql-tls": mysql_tls, "mysql-slow": mysql_slow,
    "mysql-replica": mysql_replica,
    "redis": redis, "redis-plain": redis_plain, "redis-tls": redis_tls,
    "redis-sentinel": redis_sentinel, "redis-cluster": redis_cluster,
    "rabbitmq": rabbitmq, "nats": nats,
    "kafka": kafka, "kafka-tls": kafka_tls, "kafka-cluster": kafka_cluster,
}

if __name__ == "__main__":
    sys.exit("servers.py is imported; test/lib/with-server is the program")
