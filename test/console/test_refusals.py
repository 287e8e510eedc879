# SPDX-License-Identifier: Apache-2.0
"""
Who may not, and from where: each is refused by the server, and nothing is
changed, in the store or in the audit log. (What a real browser does with pages
of others is in test_pages.py.)
"""

import json
import os
import socket
import subprocess
import uuid

import pytest

from console import (CONSOLE, MARK, Console, eventually, waiting)
from conftest import me, operators

NOBODY = 65534
DAEMON = 1

as_root = pytest.mark.skipif(os.getuid() != 0,
                             reason="wants to be several users")


@pytest.fixture
def lost(world, console):
    """A record that waits; whatever the test does, it still does."""
    order = "x" + uuid.uuid4().hex[:8]
    world.lose(order)
    r = waiting(console, order)
    yield r
    assert console.record(r["name"])["state"] == "indeterminate"
    assert waiting(console, order) == r
    assert not [e for c in world.consoles for e in c.audit()
                if e.get("name") == r["name"]]


def path_of(r):
    return "stores/main/records/%s/decision" % r["name"]


def body_of(r):
    return {"action": "applied", "fence": r["fence"], "attempt": r["attempt"],
            "why": "w", "confirm": r["name"][:8]}


def attempt(console, r, drop=(), **headers):
    headers.setdefault("Idempotency-Key", uuid.uuid4().hex)
    return console.ask("POST", path_of(r), body_of(r), drop=drop, **headers)


# ---- Pages of others, and names of others --------------------------------------


@pytest.mark.parametrize("origin", [
    "http://evil.test", "http://localhost:1", "null", "localhost",
    "http://localhost.evil.test", "ftp://localhost", ""])
def test_a_foreign_origin(console, lost, origin):
    r = attempt(console, lost, Origin=origin)
    assert r.status == 403 and r.code == "forbidden"


def test_without_origin_and_fetch_metadata(console, lost):
    assert attempt(console, lost, drop=["Origin"]).status == 403


@pytest.mark.parametrize("site", ["cross-site", "same-site", "none", ""])
def test_a_browser_that_says_that_the_page_is_elsewhere(console, lost, site):
    r = attempt(console, lost, **{"Sec-Fetch-Site": site})
    assert r.status == 403  # although the Origin is right
    if site != "none":  # an address that was typed may be looked at
        r = console.ask("GET", "stores", **{"Sec-Fetch-Site": site})
        assert r.status == 403


def test_same_origin_is_admitted(console):
    r = console.ask("POST", "find", {"by": "hash", "hash": "0" * 64},
                    drop=["Origin"], **{"Sec-Fetch-Site": "same-origin"})
    assert r.status == 200


@pytest.mark.parametrize("host", [
    "evil.test", "localhost.evil.test", "127.0.0.1.evil.test", "[::2]",
    "10.0.0.1", "", "[::1"])
def test_a_wrong_host(console, lost, host):
    r = attempt(console, lost, Host=host, Origin="http://" + host)
    assert r.status in (400, 403), r
    for path in ("/", "/app.js", "/api/v1/stores"):
        assert console.send("GET", path, headers=[("Host", host)]).status in (
            400, 403)


@pytest.mark.parametrize("host", [
    "localhost", "localhost:8181", "127.0.0.1:1", "[::1]:80", "LOCALHOST"])
def test_the_names_of_loopback(console, host):
    assert console.send("GET", "/api/v1/stores",
                        headers=[("Host", host)]).status == 200


def test_one_more_name(world):
    console = world.console("--host", "ops.example")
    assert console.send("GET", "/", headers=[
        ("Host", "ops.example:443")]).status == 200
    assert console.send("GET", "/", headers=[
        ("Host", "other.example")]).status == 403


@pytest.mark.parametrize("value", [None, "0", "true", ""])
def test_the_missing_header(console, lost, value):
    more = {} if value is None else {"Once-Console": value}
    r = attempt(console, lost, drop=["Once-Console"] if value is None else (),
                **more)
    assert r.status == 403 and r.code == "forbidden"


@pytest.mark.parametrize("kind", [
    "text/plain", "application/x-www-form-urlencoded", "multipart/form-data",
    "application/jsonp", ""])
def test_a_form_is_no_json(console, lost, kind):
    r = attempt(console, lost, **{"Content-Type": kind})
    assert r.status == 415 and r.code == "type"


@pytest.mark.parametrize("method", ["GET", "PUT", "DELETE", "OPTIONS", "PATCH",
                                    "HEAD"])
def test_another_method(console, lost, method):
    r = console.send(method, "/api/v1/" + path_of(lost),
                     json.dumps(body_of(lost)), console.own(
                         **{"Idempotency-Key": uuid.uuid4().hex}).items())
    assert r.status == 405
    assert "Access-Control-Allow-Origin" not in r.headers


# ---- Read-only, and roles --------------------------------------------------------


def test_read_only_whatever_the_rights_say(world, lost):
    console = world.console("--operators", operators(
        world, me() + " decide,body,erase,admin\n"))
    assert console.get("session")["decide"] is False
    assert "decide" not in console.get("session")["rights"]
    for path, body in (
            (path_of(lost), body_of(lost)),
            (path_of(lost), dict(body_of(lost), dry=True)),
            ("stores/main/batch", dict(body_of(lost), items=[
                {"name": lost["name"], "fence": lost["fence"]}]))):
        r = console.ask("POST", path, body,
                        **{"Idempotency-Key": uuid.uuid4().hex})
        assert r.status == 403 and r.code == "read-only", path


@pytest.mark.parametrize("lines, rights", [
    ("", {"view"}), ("{me} view", {"view"}), ("{me} body", {"view", "body"}),
    ("other decide", {"view"}), ("@{group} decide", {"view", "decide"}),
    ("@nogroup decide", {"view"}), ("{me} view\n@{group} body",
                                    {"view", "body"}),
    ("# {me} decide", {"view"}), ("{me} erase,admin",
                                  {"view", "erase", "admin"})])
def test_roles(world, lost, lines, rights):
    import grp  # pylint: disable=import-outside-toplevel
    console = world.console("--decide", "--operators", operators(
        world, lines.format(me=me(), group=grp.getgrgid(os.getgid()).gr_name)))
    assert set(console.get("session")["rights"]) == rights
    if "decide" not in rights:
        r = attempt(console, lost)
        assert r.status == 403 and r.code == "forbidden"
    if "body" not in rights:
        r = console.ask("POST", "stores/main/records/%s/body" % lost["name"],
                        {"why": "w"})
        assert r.status == 403 and r.code == "forbidden"


def test_a_right_that_is_taken_away_is_gone(world, lost):
    path = operators(world, me() + " decide\n")
    console = world.console("--decide", "--operators", path)
    assert "decide" in console.get("session")["rights"]
    with open(path, "w", encoding="ascii") as f:
        f.write(me() + " view\n")
    assert attempt(console, lost).status == 403
    with open(path, "w", encoding="ascii") as f:
        f.write(me() + " everything\n")
    assert attempt(console, lost).status == 500
    os.unlink(path)
    assert attempt(console, lost).status == 500


def open_to_all(console):
    """Also to users who are not in its group."""
    os.chmod(console.socket, 0o777)
    for folder in console.socket.parents:
        if str(folder).startswith("/tmp/"):
            os.chmod(folder, 0o755)


@as_root
def test_the_kernel_says_who_asks(world, lost):
    console = world.console("--decide", "--operators", operators(
        world, "daemon decide\n"))
    open_to_all(console)
    who = console.ask("GET", "session", user=DAEMON).json
    assert who["user"] == "daemon" and "decide" in who["rights"]
    who = console.ask("GET", "session", user=NOBODY,
                      **{"X-Remote-User": "daemon"}).json
    assert who["user"] == "nobody" and who["rights"] == ["view"]
    r = console.ask("POST", path_of(lost), body_of(lost), user=NOBODY,
                    **{"Idempotency-Key": uuid.uuid4().hex})
    assert r.status == 403


def test_the_socket_file_is_not_for_everybody(console):
    assert os.stat(console.socket).st_mode & 0o7777 == 0o660


# ---- A proxy that vouches ----------------------------------------------------------


@pytest.fixture
def proxied(world):
    """Behind a proxy that runs as DAEMON."""
    if os.getuid() != 0:
        pytest.skip("wants to be several users")
    console = world.console(
        "--decide", "--trust-user-header", "X-Remote-User", "--trust-uid",
        str(DAEMON), "--operators", operators(
            world, "proxy:alice decide\nproxy:bob view\ncarol decide\n" +
            me() + " decide,body\nproxy:" + me() + " view\n"))
    open_to_all(console)
    return console


def by_proxy(console, method, path, body=None, **headers):
    return console.ask(method, path, body, user=DAEMON, **headers)


def attempt_by_proxy(console, r, **headers):
    headers.setdefault("Idempotency-Key", uuid.uuid4().hex)
    return by_proxy(console, "POST", path_of(r), body_of(r), **headers)


def test_a_proxy_says_who_has_logged_in(world, proxied, console):
    who = by_proxy(proxied, "GET", "session", **{"X-Remote-User": "alice"}).json
    assert who["user"] == "alice" and "decide" in who["rights"]
    order = "proxied"
    world.lose(order)
    r = waiting(console, order)
    done = attempt_by_proxy(proxied, r, **{"X-Remote-User": "alice"})
    assert done.status == 200
    assert " by alice (by proxy) on " in done.json["record"]["note"]
    line = proxied.audit()[-1]
    assert line["user"] == "alice" and line.get("uid") is None
    assert line["way"] == "console, proxy of uid %d" % DAEMON


@pytest.mark.parametrize("name", [
    None, "", "two words", "@group", "x" * 65, "mallory", "caf\xe9",
    "carol",  # a user of the host, and not of the proxy
    "proxy:alice", "proxy:proxy:alice"])
def test_a_proxy_that_does_not_say_it_or_names_a_stranger(proxied, lost, name):
    headers = {} if name is None else {"X-Remote-User": name}
    assert by_proxy(proxied, "GET", "session", **headers).status == 403
    assert attempt_by_proxy(proxied, lost, **headers).status == 403


def test_a_user_of_the_proxy_is_not_the_user_of_the_host(proxied, lost):
    """Who may choose a name at the proxy has the rights of no user of the
    host, and the other way round."""
    name = {"X-Remote-User": me()}
    who = by_proxy(proxied, "GET", "session", **name).json
    assert who["user"] == me() and who["rights"] == ["view"]
    assert attempt_by_proxy(proxied, lost, **name).status == 403
    assert set(proxied.get("session")["rights"]) == {"view", "decide", "body"}


@as_root
def test_the_consoles_own_user_is_no_proxy(world):
    """As it run the gateway's workers, too: each of them could say to be any
    operator."""
    done = subprocess.run(
        [CONSOLE, "--store", world.url, "--audit", "off",
         "--trust-user-header", "X", "--trust-uid", str(os.getuid())],
        capture_output=True, timeout=60)
    assert done.returncode == 2, done
    assert b"own user" in done.stderr


def test_who_may_only_look_through_a_proxy(proxied, lost):
    bob = {"X-Remote-User": "bob"}
    assert by_proxy(proxied, "GET", "stores", **bob).status == 200
    assert attempt_by_proxy(proxied, lost, **bob).status == 403


def test_two_names_are_none(proxied):
    one = {"X-Remote-User": "alice"}
    assert by_proxy(proxied, "GET", "session", **one).status == 200
    two = {"X-Remote-User": "alice", "x-remote-user": "bob"}
    assert by_proxy(proxied, "GET", "session", **two).status == 403


# ---- Loopback: the token ------------------------------------------------------------


def test_loopback_wants_the_token_once(world, lost):
    console = world.console("--decide", unix=False)
    for path in ("session", "stores", "audit"):
        assert console.ask("GET", path).status == 401
    assert attempt(console, lost).status == 401
    wrong = console.ask("POST", "session", {"token": "0" * 64})
    assert wrong.status == 401
    reply = console.log_in()
    assert "Set-Cookie" not in reply.headers
    assert console.get("session")["way"] == "console, loopback"
    assert console.ask("POST", "session",
                       {"token": console.token}).status == 401
    for other in ({"Once-Session": "0" * len(console.session)}, {"Once-Session": ""},
                  {"Once-Session": console.session[:-1]}):
        assert console.ask("GET", "session", **other).status == 401
    # A cookie is nothing.
    cookie = {"Cookie": "once_console_%s=%s" % (console.port, console.session)}
    assert console.ask("GET", "session", drop=["Once-Session"], **cookie).status == 401
    # The token is nowhere in what a page can read.
    assert console.token not in json.dumps(console.get("session"))


def test_a_session_that_was_ended_opens_nothing(world, console):
    other = world.console(unix=False)
    other.log_in()
    done = other.ask("POST", "session/end", {})
    assert done.status == 200 and done.json == {"ok": True}
    for _ in range(2):
        assert other.ask("GET", "stores").status == 401
        assert other.ask("POST", "session",
                         {"token": other.token}).status == 401
    # Who comes by a socket file has none.
    assert console.get("session")["signs_out"] is False
    assert console.ask("POST", "session/end", {}).code == "session"


@pytest.mark.parametrize("mode, refused", [
    (0o644, True), (0o620, True), (0o602, True), (0o600, False)])
def test_the_token_is_not_written_for_others(world, tmp_path, mode, refused):
    """Its reader is the operator."""
    out = tmp_path / "out"
    out.touch()
    out.chmod(mode)
    with open(out, "wb") as f, subprocess.Popen(
            [CONSOLE, "--store", world.url, "--listen", "127.0.0.1:0",
             "--audit", "off"], stdout=f, stderr=subprocess.PIPE) as process:
        eventually(lambda: process.poll() is not None or
                   b"#token=" in out.read_bytes())
        process.terminate()
        said = process.communicate(timeout=60)[1]
    assert process.returncode == (2 if refused else 0)
    assert (b"umask 077" in said) is refused
    assert (b"#token=" in out.read_bytes()) is not refused


@pytest.mark.parametrize("where", [
    "0.0.0.0:0", "*:0", "[::]:0", "192.168.0.1:80", "localhost:0", ":0", "80",
    "127.0.0.1", "127.0.0.1:65536", "127.0.0.1:x", "127.0.0.2:0", "unix:rel",
    "unix:", "systemd", "example.com:80"])
def test_it_listens_to_nothing_that_others_can_reach(world, where):
    done = subprocess.run(
        [CONSOLE, "--store", world.url, "--listen", where, "--audit", "off"],
        capture_output=True, timeout=60)
    assert done.returncode == 2, done
    assert b"--listen" in done.stderr and done.stdout == b""


def test_a_socket_from_systemd_that_others_can_reach(world):
    with socket.socket() as s:
        s.bind(("0.0.0.0", 0))
        s.listen()
        done = subprocess.run(
            ["bash", "-c", 'exec 3<&%d; LISTEN_FDS=1 LISTEN_PID=$$ exec "$@"'
             % s.fileno(), "bash", CONSOLE, "--store", world.url, "--listen",
             "systemd", "--audit", "off"],
            capture_output=True, timeout=60, pass_fds=[s.fileno()])
    assert done.returncode == 2 and b"others can reach" in done.stderr


def test_a_trusted_header_only_on_a_socket_file(world):
    for words in (["--trust-user-header", "X", "--trust-uid", "0", "--listen",
                   "127.0.0.1:0"],
                  ["--trust-user-header", "X"], ["--trust-uid", "0"]):
        done = subprocess.run(
            [CONSOLE, "--store", world.url, "--audit", "off", *words],
            capture_output=True, timeout=60)
        assert done.returncode == 2, done


def test_a_living_console_is_not_taken_over(world, console):
    done = subprocess.run(
        [CONSOLE, "--store", world.url, "--audit", "off", "--listen",
         "unix:%s" % console.socket], capture_output=True, timeout=60)
    assert done.returncode == 3 and b"another process" in done.stderr
    assert console.get("session")
    old = world.console()
    old.process.kill()
    old.process.wait()
    assert old.socket.exists()
    new = Console(old.folder, {"main": world.url})
    assert new.get("session")
    new.close()
    assert not old.socket.exists()


@pytest.mark.parametrize("words, text", [
    (["--store", "none:x"], "store"), (["--store", "sqlite:/dev/null/x"],
                                       "nothing was created"),
    (["--operators", "/nowhere"], "/nowhere"),
    (["--audit", "/nowhere/x"], "--audit"), ([], "which store"),
    (["--store", "a=memory:", "--store", "a=memory:"], "two stores"),
    (["--link", "shop.example/{label}"], "--link"),
    (["--link", "javascript:alert({label})"], "--link"),
    (["--link", "https://{label}.example/"], "--link"),
    (["--link", "https://shop.example/"], "--link"),
    (["--link", "https:///{label}"], "--link"),
    (["--link", "http:///x/{label}"], "--link"),
    (["--link", "https://\\/{label}"], "--link"),
    (["--link", "https://?/{label}"], "--link"),
    (["--link", "https://"], "--link"),
    (["x"], "options only"), (["--store", "@/nowhere"], "no URL")])
def test_what_is_wrong_is_said_before_anybody_can_connect(words, text):
    env = {n: v for n, v in os.environ.items() if n != "ONCE_STORE"}
    if not any("store" in w for w in words) and words and words != ["x"]:
        words = ["--store", "memory:"] + words
    done = subprocess.run([CONSOLE, "--listen", "127.0.0.1:0", *words], env=env,
                          capture_output=True, timeout=60)
    assert done.returncode in (2, 3), done
    assert text in done.stderr.decode()


# ---- Fences, and decisions that come twice -------------------------------------------


def test_an_old_fence(world, console):
    case = world.lose("fence", prefix="/take/")
    old = waiting(console, "fence")
    assert console.decide(old, "reopen").status == 200
    again = world.site.case("/take/")
    del again
    world.repeat(case, "fence")  # the next attempt has another fence
    now = console.record(old["name"])
    assert now["fence"] != old["fence"]
    lines = len(console.audit())
    r = console.decide(old, "failure")
    assert r.status == 409 and r.code == "fence"
    assert r.json["record"]["fence"] == now["fence"]
    assert console.record(old["name"])["state"] == now["state"]
    assert len(console.audit()) == lines


def test_another_attempt(console, lost):
    r = console.decide(dict(lost, attempt=lost["attempt"] + 1), "failure")
    assert r.status == 409 and r.code == "attempt"


def test_a_repeated_decision_is_answered_as_the_first_time(world, console):
    world.lose("twice")
    r = waiting(console, "twice")
    key = uuid.uuid4().hex
    first = console.decide(r, "success", key=key)
    lines = len(console.audit())
    again = console.decide(r, "success", key=key)
    assert first.status == again.status == 200
    assert first.json["reply"] == again.json["reply"]
    assert first.json["record"]["note"] == again.json["record"]["note"]
    assert len(console.audit()) == lines
    # With another key it is another decision, and too late.
    r2 = console.decide(r, "success")
    assert r2.status == 409 and r2.code == "state"
    # The same key for something else is a mistake of the page.
    r3 = console.decide(r, "failure", key=key)
    assert r3.status == 422 and r3.code == "decision"
    assert console.record(r["name"])["note"] == first.json["record"]["note"]
    assert len(console.audit()) == lines


@pytest.mark.parametrize("key", ["", "short", "x" * 65, "with space!", "a:b" * 4])
def test_a_decision_without_a_key_of_its_own(console, lost, key):
    r = console.ask("POST", path_of(lost), body_of(lost),
                    **{"Idempotency-Key": key})
    assert r.status == 400 and "Idempotency-Key" in r.json["title"]


def test_two_at_once_decide_once(world, console):
    import threading  # pylint: disable=import-outside-toplevel
    world.lose("race")
    r = waiting(console, "race")
    replies = []

    def go(action):
        replies.append((action, console.decide(r, action)))

    threads = [threading.Thread(target=go, args=(a,))
               for a in ("success", "failure", "applied") * 2]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    done = [(a, x) for a, x in replies if x.status == 200]
    assert len(done) == 1, replies
    assert {x.code for _, x in replies if x.status != 200} <= {"state"}
    kind = {"success": "success", "failure": "failure", "applied": "success"}
    assert console.record(r["name"])["kind"] == kind[done[0][0]]
    steps = [e["step"] for e in console.audit() if e.get("name") == r["name"]]
    assert steps.count("done") == 1
    assert steps.count("intent") == len(steps) - steps.count("intent")
