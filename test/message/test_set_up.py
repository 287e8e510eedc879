# SPDX-License-Identifier: Apache-2.0
"""
What relay and consumer say of a set-up that cannot work: before they begin
(--check), when they connect, and when a target refuses.
"""
import re
import sqlite3
import contextlib

import pytest

import servers
from carry import (READY, Commands, Lite, Queue, Relay, Service, eventually,
                   once, phases)


@pytest.fixture(scope="module")
def nats(world):
    try:
        return servers.Nats(world).start()
    except servers.Missing as missing:
        pytest.skip(str(missing))


@pytest.fixture
def db(tmp_path):
    return Lite(tmp_path)


def check_relay(db, target, *more):
    return once("messages", "relay", "--database", db.url, "--to",
                "r=%s" % target, *more, "--check", check=False)


def check_consume(db, source, *more):
    return once("messages", "consume", "--database", db.url, "--from", source,
                "--consumer", "c", "--sql", "SELECT 1", *more, "--check",
                check=False)


def add_stream(nats, name, **more):
    nats.ask("STREAM.CREATE." + name, dict({
        "name": name, "subjects": [name], "storage": "file",
        "retention": "limits", "max_msgs": -1, "max_bytes": -1, "max_age": 0,
        "num_replicas": 1}, **more))


def add_consumer(nats, stream):
    nats.ask("CONSUMER.DURABLE.CREATE.%s.d" % stream, {
        "stream_name": stream, "config": {
            "durable_name": "d", "ack_policy": "explicit",
            "deliver_policy": "all", "max_deliver": -1}})


# ---- A check ----------------------------------------------------------------


def test_a_relay_that_may_begin_is_ready(db, nats, tmp_path):
    add_stream(nats, "here")
    service = Service().start()
    try:
        for target in (nats.url() + "/?subject=here", service.url,
                       Commands(tmp_path).url):
            done = check_relay(db, target)
            assert done.returncode == 0, done.stderr
            assert "route r: ready" in done.stderr
            assert "the database: ready" in done.stderr
    finally:
        service.stop()
    assert phases(db) == {}


@pytest.mark.parametrize("target, word", [
    ("exec:/nonexistent/program", "No such file or directory"),
    ("exec:/etc/passwd", "Permission denied"),
    ("exec:no-such-program-here", "cannot be executed"),
    ("http://127.0.0.1:1/", "cannot be reached"),
    ("redis://127.0.0.1:1/?stream=s", "redis"),
])
def test_a_target_that_is_not_there_is_named(db, target, word):
    done = check_relay(db, target, "--timeout", "2s")
    assert done.returncode == 3, done.stderr
    assert "route r: " in done.stderr and word in done.stderr


def test_a_missing_stream_comes_with_its_command(db, nats):
    done = check_relay(db, nats.url() + "/?subject=nowhere")
    assert done.returncode == 3, done.stderr
    assert "nats stream add NAME --subjects nowhere" in done.stderr
    done = check_consume(db, nats.url() + "/?stream=nowhere&durable=d")
    assert done.returncode == 3, done.stderr
    assert "nats stream add nowhere --subjects" in done.stderr


def test_a_missing_queue_comes_with_its_command(db, amqp):
    for done in (check_relay(db, amqp.url() + "?routing_key=nowhere"),
                 check_consume(db, amqp.url() + "?queue=nowhere")):
        assert done.returncode == 3, done.stderr
        assert "no queue 'nowhere' in vhost" in done.stderr  # the broker's words
        assert "rabbitmqadmin declare queue durable=true name=nowhere" \
            in done.stderr
    queue = Queue(amqp, "check-there")
    assert check_consume(db, queue.url.replace("routing_key", "queue")
                         ).returncode == 0


def test_missing_tables_are_named(tmp_path):
    path = tmp_path / "bare.db"
    with contextlib.closing(sqlite3.connect(path)):
        path.touch()
    done = once("messages", "relay", "--database", "sqlite:%s" % path, "--to",
                "r=exec:true", "--check", check=False)
    assert done.returncode == 3 and "once messages init" in done.stderr, done


# ---- A source that waiting cannot repair --------------------------------------


@pytest.mark.parametrize("source, word", [
    ("amqp://127.0.0.1:1/", "queue"),
    ("nats://127.0.0.1:1/?subject=s", "stream"),
    ("redis://127.0.0.1:1/?stream=s", "group"),
    ("kafka://127.0.0.1:1/", "topic"),
])
def test_a_source_without_a_name_is_a_usage_error(db, source, word):
    done = once("messages", "consume", "--database", db.url, "--from", source,
                "--consumer", "c", "--sql", "SELECT 1", "--idle", "1s",
                check=False)
    assert done.returncode == 2, done
    assert word in done.stderr and "answers again" not in done.stderr


@pytest.mark.parametrize("target", ["amqp://127.0.0.1:1/?queue=q",
                                    "nats://127.0.0.1:1/?stream=s&durable=d"])
def test_a_source_is_no_target(db, target):
    done = once("messages", "relay", "--database", db.url, "--to",
                "r=" + target, check=False)
    assert done.returncode == 2 and "consumers" in done.stderr, done


# ---- A target that refuses ----------------------------------------------------


def test_a_refusal_is_said_at_once_and_not_for_each_row(db, amqp, tmp_path):
    db.emit([(str(i), None, "1") for i in range(20)])
    relay = Relay(tmp_path, db, "--to",
                  "r=%s?routing_key=nowhere" % amqp.url(), "--attempts", 3,
                  "--timeout", "1s", "--drain")
    assert relay.wait() == 1, relay.log()
    said = re.findall("the target refused row .*", relay.log())
    assert len(said) == 1, relay.log()
    assert "no queue is bound" in said[0]


def test_a_refusal_has_the_words_of_the_server(db, nats, tmp_path):
    add_stream(nats, "full", max_msgs=1, discard="new")
    db.emit([("a", None, "1"), ("b", None, "2")])
    relay = Relay(tmp_path, db, "--to", "r=%s/?subject=full" % nats.url(),
                  "--attempts", 2, "--timeout", "1s", "--drain")
    assert relay.wait() == 1, relay.log()
    assert "maximum messages exceeded" in relay.log()


# ---- A target that takes a message and keeps it nowhere -------------------------


def test_a_stream_that_keeps_nothing_gets_nothing(db, nats, tmp_path):
    add_stream(nats, "interest", retention="interest")
    db.emit([("a", None, "1")])
    relay = Relay(tmp_path, db, "--to", "r=%s/?subject=interest" % nats.url(),
                  "--timeout", "1s", "--drain")
    eventually(lambda: "keeps no message" in relay.log(), "it is said")
    assert phases(db) == {READY: 1}
    add_consumer(nats, "interest")
    assert relay.wait() == 0, relay.log()
    assert nats.ask("STREAM.INFO.interest", {})["state"]["messages"] == 1


def test_a_consumer_that_leaves_stops_the_route(db, nats, tmp_path):
    add_stream(nats, "left", retention="interest")
    add_consumer(nats, "left")
    db.emit([("a", None, "1")])
    relay = Relay(tmp_path, db, "--to", "r=%s/?subject=left" % nats.url(),
                  "--timeout", "1s")
    eventually(lambda: phases(db) == {}, "it is sent")
    nats.ask("CONSUMER.DELETE.left.d", {})
    eventually(lambda: "keeps no message" in relay.log(), "it is said")
    db.emit([("b", None, "2")])
    assert relay.stop() == 0
    assert phases(db) == {READY: 1}


def test_a_stream_in_memory_is_warned_of(db, nats, tmp_path):
    add_stream(nats, "memory", storage="memory")
    db.emit([("a", None, "1")])
    relay = Relay(tmp_path, db, "--to", "r=%s/?subject=memory" % nats.url(),
                  "--timeout", "1s", "--drain")
    assert relay.wait() == 0, relay.log()
    assert relay.log().count("keeps its messages in memory") == 1
