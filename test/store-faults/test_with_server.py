# SPDX-License-Identifier: Apache-2.0
"""
test/lib/with-server itself: what it starts is what it says, each verb does what
it is called, and nothing is left, whatever ends it.
"""

import contextlib
import os
import pathlib
import signal
import socket
import ssl
import subprocess
import sys

import pytest

LIB = pathlib.Path(__file__).resolve().parents[1] / "lib"
sys.path.insert(0, str(LIB))

import servers  # noqa: E402  pylint: disable=wrong-import-position

WITH = str(LIB / "with-server")


@contextlib.contextmanager
def world(kind, clock=False):
    with servers.World() as w:
        try:
            w.build(kind, clock)
        except servers.Missing as missing:
            pytest.skip(str(missing))
        yield w


def needs(*programs):
    for program in programs:
        try:
            servers.find(program)
        except servers.Missing as missing:
            pytest.skip(str(missing))


def run(*words, **more):
    return subprocess.run([WITH, *words], text=True, capture_output=True,
                          timeout=120, check=False, **more)


def gone(pid):
    servers.eventually(lambda: not servers.alive(pid), "%d ends" % pid, 15)


def closed(port):
    with socket.socket() as s:
        return s.connect_ex((servers.LOOPBACK, port)) != 0


# ---- The program ---------------------------------------------------------


def test_status_and_environment_of_the_command():
    needs("redis-server")
    r = run("redis", "--", "sh", "-c",
            'echo "$ONCE_TEST_URL $ONCE_TEST_REDIS_PORT"; exit 7')
    assert r.returncode == 7, r.stderr
    url, port = r.stdout.split()
    assert url == "redis://127.0.0.1:" + port
    assert closed(int(port))


def test_missing_server_is_a_skip():
    r = subprocess.run(
        [sys.executable, "-c",
         "import sys, runpy; sys.path.insert(0, %r); import servers\n"
         "def find(p, old=servers.find):\n"
         "    if p == 'redis-server': raise servers.Missing(p + ' is not')\n"
         "    return old(p)\n"
         "servers.find = find\n"
         "sys.argv = ['with-server', 'redis', '--', 'false']\n"
         "runpy.run_path(%r, run_name='__main__')" % (str(LIB), WITH)],
        text=True, capture_output=True, timeout=60, check=False)
    assert r.returncode == 77, r.stderr
    assert r.stdout == "1..0 # SKIP redis-server is not\n"


def test_unknown_kind_is_not_passed_over():
    r = run("oracle", "--", "true")
    assert r.returncode in (77, 99) and "oracle" in r.stdout + r.stderr


def test_ctl_of_the_program():
    needs("redis-server")
    r = run("redis", "--", "sh", "-c", """
        ctl() { "$ONCE_TEST_WITH_SERVER" ctl "$@"; }
        a=$(ctl pid redis) && ctl kill redis && ctl start redis &&
        b=$(ctl pid redis) && [ "$a" = "$ONCE_TEST_REDIS_PID" ] &&
        [ "$a" != "$b" ] && ! kill -0 "$a" 2>/dev/null && kill -0 "$b" &&
        ! ctl kill nobody && ! ctl fly redis && ! ctl start redis""")
    assert r.returncode == 0, r.stderr
    assert "no server nobody" in r.stderr and "no such verb" in r.stderr
    assert "runs already" in r.stderr


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM,
                                    signal.SIGINT])
@pytest.mark.parametrize("kind", ["redis", "postgres", "mysql", "rabbitmq",
                                  "nats", "kafka"])
def test_nothing_is_left_when_it_is_killed(kind, number):
    needs({"redis": "redis-server", "postgres": "initdb", "mysql": "mariadbd",
           "rabbitmq": "rabbitmq-server", "nats": "nats-server",
           "kafka": "sh"}[kind])
    process = subprocess.Popen(
        [WITH, kind, "--", "sh", "-c",
         "env; echo $$; exec sleep 1000"], text=True, stdout=subprocess.PIPE)
    env = {}
    while True:
        line = process.stdout.readline().rstrip("\n")
        if "=" not in line:
            break
        name, _, value = line.partition("=")
        env[name] = value
    sleeper, word = int(line), kind.upper()
    server = int(env["ONCE_TEST_%s_PID" % word])
    family = servers.children(server) + [server]
    # Also one that is stopped, and cannot mind a signal.
    os.kill(server, signal.SIGSTOP)
    process.send_signal(number)
    process.wait(60)
    for pid in family + [sleeper]:
        gone(pid)
    servers.eventually(lambda: closed(int(env["ONCE_TEST_%s_PORT" % word])),
                       "the port is free", 20)
    servers.eventually(lambda: not os.path.exists(env["ONCE_TEST_DIR"]),
                       "the folder goes", 20)
    process.stdout.close()


# ---- The verbs -----------------------------------------------------------


def test_postgres_keeps_what_was_committed_when_killed():
    with world("postgres") as w:
        pg = w.servers["postgres"]
        uid = os.stat("/proc/%d" % pg.pid).st_uid
        assert uid != 0, "PostgreSQL runs as root"
        assert pg.sql("SHOW fsync") == "on"
        pg.sql("CREATE TABLE t (n int)", "once", "once")
        for n, verb in enumerate(["kill", "quit", "stop", "restart"]):
            pg.sql("INSERT INTO t VALUES (%d)" % n, "once", "once")
            family = servers.children(pg.pid) + [pg.pid]
            getattr(pg, verb)()
            assert not any(servers.alive(p) for p in family)
            if verb != "restart":
                assert not pg.ready()
                pg.start()
            assert pg.sql("SELECT count(*) FROM t", "once") == str(n + 1)


@pytest.mark.parametrize("kind", ["postgres", "redis"])
def test_a_paused_server_keeps_connections_and_says_nothing(kind):
    with world(kind) as w:
        server = w.servers[kind]
        server.pause()
        with socket.create_connection((servers.LOOPBACK, server.port), 5) as s:
            if kind == "redis":
                s.sendall(b"PING\r\n")
            else:
                s.sendall(b"\0\0\0\x08\x04\xd2\x16\x2f")  # SSLRequest
            s.settimeout(0.5)
            with pytest.raises(TimeoutError):
                s.recv(1)
            server.resume()
            s.settimeout(30)
            assert s.recv(1) in (b"+", b"N")


def test_redis_keeps_what_was_acknowledged_when_killed():
    with world("redis") as w:
        redis = w.servers["redis"]
        assert redis.ask("CONFIG", "GET", "appendfsync")[1] == b"always"
        redis.ask("SET", "k", "v")
        redis.kill()
        redis.start()
        assert redis.ask("GET", "k") == b"v"


def test_redis_plain_keeps_nothing():
    with world("redis-plain") as w:
        redis = w.servers["redis-plain"]
        redis.ask("SET", "k", "v")
        redis.kill()
        redis.start()
        assert redis.ask("GET", "k") is None


@pytest.mark.parametrize("kind", ["postgres", "redis"])
def test_a_clock_can_be_moved(kind):
    with world(kind, clock=True) as w:
        server = w.servers[kind]

        def now():
            if kind == "redis":
                return int(server.ask("TIME")[0])
            return int(float(server.sql(
                "SELECT extract(epoch FROM clock_timestamp())")))
        before = now()
        w.step(kind, 60000000)
        assert 60000 <= now() - before < 61000
        w.step(kind, -3600000)
        assert -3600 <= now() - before < -3000
    with world(kind) as w, pytest.raises(RuntimeError):
        w.step(kind, 1)


def test_pgbouncer_stands_between():
    needs("pgbouncer")
    with world("pgbouncer") as w:
        port = w.servers["pgbouncer"].port
        assert port != w.servers["postgres"].port
        w.servers["postgres"].sql("CREATE TABLE seen (a int)", "once")
        # Transaction mode: what one session sets, another may find.
        done = subprocess.run(
            [servers.find("psql"), "-XAtq", "-h", servers.LOOPBACK, "-p",
             str(port), "-U", "postgres", "-d", "pgbouncer", "-c",
             "SHOW CONFIG"], text=True, capture_output=True, check=True,
            timeout=60)
        assert "pool_mode|transaction" in done.stdout


def test_a_synchronous_standby_loses_nothing_when_promoted():
    with world("postgres-standby") as w:
        primary, standby = w.servers["postgres"], w.servers["standby"]
        primary.sql("CREATE TABLE t AS SELECT generate_series(1, 1000) n",
                    "once", "once")
        primary.kill()
        standby.promote()
        assert standby.sql("SELECT count(*) FROM t", "once") == "1000"
        standby.sql("INSERT INTO t VALUES (1001)", "once")


def test_sentinels_make_the_replica_the_primary():
    with world("redis-sentinel") as w:
        replica = w.servers["redis-replica"]
        w.servers["redis-primary"].kill()

        def promoted():
            # A sentinel ends all connections of the one that it promotes.
            with contextlib.suppress(OSError, EOFError):
                return replica.ask("ROLE")[0] == b"master"
            return False
        servers.eventually(promoted, "failover")
        servers.eventually(
            lambda: w.servers["sentinel1"].ask(
                "SENTINEL", "GET-MASTER-ADDR-BY-NAME", "main")[1] ==
            str(replica.port).encode(), "the sentinel tells")


def test_a_cluster_has_three_primaries():
    with world("redis-cluster") as w:
        node = w.servers["redis1"]
        assert len(node.ask("CLUSTER", "SLOTS")) == 3
        moved = 0
        for n in range(20):
            try:
                node.ask("SET", "key%d" % n, "v")
            except servers.RedisError as error:
                assert str(error).startswith("MOVED"), error
                moved += 1
        assert 0 < moved < 20
        # One that is gone takes its keys along, and no others.
        w.servers["redis3"].kill()
        servers.eventually(lambda: b"cluster_slots_fail:0" not in
                           node.ask("CLUSTER", "INFO"), "it is missed")
        assert node.ask("CLUSTER", "INFO").count(b"cluster_state:ok") == 1


# ---- TLS -----------------------------------------------------------------


@pytest.mark.parametrize("which, ca, said", [
    ("good", "ca.crt", None),
    ("good", "other-ca.crt", "certificate verify failed"),
    ("stranger", "ca.crt", "certificate verify failed"),
    ("wronghost", "ca.crt", "not valid for '127.0.0.1'|mismatch"),
    ("expired", "ca.crt", "expired")])
@pytest.mark.parametrize("kind", ["redis-tls", "postgres-tls"])
def test_each_certificate_is_what_it_is_called(tls, kind, which, ca, said):
    w = tls(kind)
    server = w.servers[kind.replace("postgres-tls", "postgres")]
    server.certificate(which)
    context = ssl.create_default_context(cafile=w.authority.path(ca))

    def shake():
        with socket.create_connection(("127.0.0.1", server.port), 10) as raw:
            if kind == "postgres-tls":
                raw.sendall(b"\0\0\0\x08\x04\xd2\x16\x2f")
                assert raw.recv(1) == b"S"
            with context.wrap_socket(raw, server_hostname="127.0.0.1") as s:
                # The one that is shown now: a reload takes a moment.
                return s.getpeercert()["subject"][-1][0][1]

    if said is None:
        servers.eventually(lambda: shake() == "once-test-good", "reload")
        return
    want = None if which == "good" else "once-test-" + which

    def shown():
        context_any = ssl.create_default_context(
            cafile=w.authority.path(ca))
        context_any.check_hostname = False
        context_any.verify_mode = ssl.CERT_NONE
        with socket.create_connection(("127.0.0.1", server.port), 10) as raw:
            if kind == "postgres-tls":
                raw.sendall(b"\0\0\0\x08\x04\xd2\x16\x2f")
                raw.recv(1)
            with context_any.wrap_socket(raw) as s:
                return b"once-test-" + which.encode() in s.getpeercert(True)
    servers.eventually(shown, "reload of %s" % want)
    with pytest.raises(ssl.SSLError, match=said):
        shake()


@pytest.fixture(scope="module")
def tls():
    """tls(kind): one world a kind, for all certificates."""
    with contextlib.ExitStack() as stack:
        made = {}

        def get(kind):
            if kind not in made:
                made[kind] = stack.enter_context(world(kind))
            return made[kind]

        yield get
