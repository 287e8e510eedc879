# SPDX-License-Identifier: Apache-2.0
"""
`once lookup`: what a gateway knows of a key. It changes nothing, and prints no
key, no header's value and no URL.
"""

import json
import os
import pathlib
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "test/client"))

from faults import ENV, ONCE, PATIENCE, Script, answer, problem  # noqa: E402
import faults  # noqa: E402
from marks import MARK  # noqa: E402

SECRET = MARK + "secret"
STATES = {"completed": 0, "absent": 1, "in-flight": 75, "indeterminate": 75}


def document(state, more=""):
    return ('{"state":"%s","attempt":null,"since":"2026-11-24T04:05:06.789Z",'
            '"expires":null,"recorded_status":201,"reason":null,'
            '"location":"/orders/7",%s"safe_new_key":false}'
            % (state, more)).encode()


def told(state):
    return answer(200, document(state), "Content-Type: application/json")


def lookup(*words, key=MARK + "key\n", **more):
    return subprocess.run([ONCE, "lookup", *words], env=ENV, input=key,
                          capture_output=True, text=True, timeout=PATIENCE,
                          check=False, **more)


@pytest.fixture
def script():
    servers = []

    def start(*steps):
        servers.append(Script(*steps))
        return servers[-1]

    yield start
    for server in servers:
        server.close()


@pytest.mark.parametrize("state", STATES)
def test_each_state_has_its_exit_status(script, state):
    server = script(told(state))
    done = lookup(server.url + "/status", "--key-file", "-")
    assert done.returncode == STATES[state], done
    lines = dict(line.split() for line in done.stdout.splitlines())
    assert lines["state"] == state and lines["recorded_status"] == "201"
    assert lines["location"] == "/orders/7" and "reason" not in lines
    done = lookup(server.url + "/status", "--key-file", "-", "--json")
    assert done.returncode == STATES[state], done
    assert json.loads(done.stdout) == json.loads(document(state))
    assert MARK not in done.stdout + done.stderr
    assert [k.decode() for k in server.keys()] == [MARK + "key"] * 2
    assert server.requests[0][0].startswith(b"GET /status HTTP/1.1\r\n")


def test_credentials_are_sent_as_once_send_takes_them(script, tmp_path):
    server = script(told("completed"))
    (tmp_path / "token").write_text("Authorization: Bearer %s\n" % SECRET)
    (tmp_path / "token").chmod(0o600)
    (tmp_path / "key").write_text('a "b"')
    done = lookup(server.url, "--key-file", tmp_path / "key", "--secret",
                  "@%s/token" % tmp_path, "--header", "X-One: 1")
    assert done.returncode == 0 and SECRET not in done.stdout + done.stderr
    head = server.requests[0][0]
    assert b"Authorization: Bearer " + SECRET.encode() in head
    assert b"X-One: 1" in head
    assert b'Idempotency-Key: "a \\"b\\""' in head


@pytest.mark.parametrize("reply", [
    answer(200, b"<html>", "Content-Type: text/html"), answer(401), answer(404),
    answer(200, b'{"state":"completed"}', "Content-Type: application/json"),
    answer(302, b"", "Location: /login"), problem(503, "store-unavailable")])
def test_what_does_not_tell_is_unknown(script, reply):
    server = script(reply)
    done = lookup(server.url, "--key-file", "-")
    assert done.returncode == 75 and done.stdout == "", done
    assert "it is not known" in done.stderr and server.url not in done.stderr


@pytest.mark.parametrize("words", [
    [], ["http://h/"], ["http://h/", "more", "--key-file", "-"],
    ["ftp://h/", "--key-file", "-"], ["http://u:p@h/", "--key-file", "-"],
    ["http://h/", "--key-file", "-", "--timeout", "12m"],
    ["http://h/", "--key-file", "-", "--header", "no colon"]])
def test_wrong_words_ask_nothing(words):
    done = lookup(*words)
    assert done.returncode == 2 and done.stdout == "", done


@pytest.mark.parametrize("key", ["", "\n", "a\tb", "a\nb\n", "\u00e9",
                                 "k" * 256])
def test_a_key_that_cannot_be_is_refused(script, key):
    server = script(told("absent"))
    done = lookup(server.url, "--key-file", "-", key=key)
    assert done.returncode in (2, 3) and not server.requests, done
    assert not key.strip() or key.strip() not in done.stderr


def test_a_key_is_no_argument():
    done = subprocess.run([ONCE, "lookup", "--help"], env=ENV, check=True,
                          capture_output=True, text=True)
    assert "--key-file" in done.stdout and "--key " not in done.stdout


def test_the_gateway_tells(tmp_path):
    gateway = faults.gateway
    if gateway.NGINX is None or not os.path.exists(gateway.MODULE):
        pytest.skip("no nginx, or no module")
    it = gateway.Site(tmp_path, gateway.guarded(
        "/pay/", "once_key_space realm;", scope="$http_x_who") + """
        location /status {
            once_lookup main wait=5s;
            once_scope $http_x_who;
            once_key_space realm;
        }""").start()
    try:
        case = it.case("/pay/")
        url = "http://127.0.0.1:%d/status" % it.gateway.port
        words = [url, "--key-file", "-", "--header", "X-Who: alice",
                 "--header", "Host-Note: 1"]
        assert lookup(*words, key=case.key).returncode == 1
        gateway.is_new(case.post(headers=[("X-Who", "alice")],
                                 host="127.0.0.1"))
        done = lookup(*words, "--json", key=case.key)
        assert done.returncode == 0, done
        assert json.loads(done.stdout)["recorded_status"] == 201
        assert lookup(url, "--key-file", "-", "--header", "X-Who: bob",
                      key=case.key).returncode == 1
        assert lookup(url, "--key-file", "-", key=case.key).returncode == 75
        assert case.executions == 1
    finally:
        it.close()
