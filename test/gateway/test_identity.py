# SPDX-License-Identifier: Apache-2.0
"""
http.md section 1: what makes a record this record (scope, host or realm, key),
what makes a request this request (method, path, query, content type, content
encoding, body), and what leaves for the upstream.
"""

import gzip
import hashlib
import json
import subprocess

import pytest

import gateway
from gateway import (MARK, TARGET, Answer, guarded, is_new, is_problem, is_replay)

SERVER = (
    guarded("/pay/") +
    guarded("/tenant/", scope="$http_x_tenant") +
    guarded("/realm/", "once_realm shops;") +
    guarded("/pathed/", "once_key_space path;") +
    guarded("/text/", "once_fingerprint $http_x_digest;") +
    guarded("/less/", "once_fingerprint json but=/sent_at;") +
    guarded("/big/", "client_body_buffer_size 1k; client_max_body_size 8m;") +
    guarded("/file/", "client_body_in_file_only clean;") +
    guarded("/stream/", "proxy_request_buffering off;"
            "proxy_http_version 1.1; client_max_body_size 8m;"))

BIG = (b'{"%sbody": "' % MARK.encode()) + b"0123456789abcdef" * 20000 + b'"}'


def tenant(name):
    return [("X-Tenant", name and MARK + "scope-" + name)]


# ---- The record ----------------------------------------------------------


def test_an_empty_scope_is_401_and_nothing_is_dispatched(site):
    c = site.case("/tenant/")
    is_problem(c.post(), "scope-missing")
    is_problem(c.post(headers=tenant("")), "scope-missing")
    assert c.executions == 0
    is_new(c.post(headers=tenant("a")))


@pytest.mark.nginx_only("several variables in one text")
@pytest.mark.parametrize("scope", ["$http_x_tenant:$http_x_user",
                                   "user=${http_x_user};${http_x_tenant}"])
def test_each_part_of_a_scope_has_to_be_known(make, scope):
    # The text around them is never empty: a caller without credentials would
    # share it with others.
    site = make(guarded("/pay/", scope='"%s"' % scope))
    c = site.case("/pay/")
    user = [("X-User", MARK + "u")]
    for headers in ([], tenant("a"), user, tenant("") + user):
        is_problem(c.post(headers=headers), "scope-missing")
    assert c.executions == 0
    first = is_new(c.post(headers=tenant("a") + user))
    is_replay(c.post(headers=tenant("a") + user), first)


def parts(one, two):
    """Two values that are given as two headers."""
    return [("X-Tenant", MARK + one), ("X-User", two)]


TWO_VALUES = "$http_x_tenant$http_x_user"


@pytest.mark.nginx_only("several variables in one text")
@pytest.mark.parametrize("scope", [
    TWO_VALUES, "${http_x_tenant}-$http_x_user", "$http_x_tenant,$http_x_user"])
def test_two_splits_of_a_text_are_two_scopes(make, scope):
    site = make(guarded("/pay/", scope='"%s"' % scope))
    c = site.case("/pay/", Answer(201, b"one\n"), Answer(201, b"two\n"))
    between = scope.replace("${http_x_tenant}", "").replace(
        "$http_x_tenant", "").replace("$http_x_user", "")
    one, two = parts("a" + between + "b", "c"), parts("a", "b" + between + "c")
    first = is_new(c.post(headers=one), body=b"one\n")
    is_new(c.post(headers=two), body=b"two\n")
    is_replay(c.post(headers=one), first)
    assert c.executions == 2


@pytest.mark.nginx_only("several variables in one text")
def test_two_splits_of_a_text_are_two_realms(make):
    site = make(guarded("/pay/", "once_realm $http_x_one$http_x_two;"))
    c = site.case("/pay/", Answer(201, b"one\n"), Answer(201, b"two\n"))
    ab_c = [("X-One", "ab"), ("X-Two", "c")]
    first = is_new(c.post(headers=ab_c), body=b"one\n")
    is_new(c.post(headers=[("X-One", "a"), ("X-Two", "bc")]), body=b"two\n")
    is_replay(c.post(headers=ab_c), first)
    assert c.executions == 2


@pytest.mark.nginx_only("several variables in one text")
def test_two_splits_of_a_text_are_two_fingerprints(make):
    site = make(guarded("/pay/", "once_fingerprint %s;" % TWO_VALUES))
    c = site.case("/pay/")
    first = is_new(c.post(headers=parts("ab", "c")))
    is_problem(c.post(headers=parts("a", "bc")), "key-reused")
    is_replay(c.post(headers=parts("ab", "c")), first)
    assert c.executions == 1


@pytest.mark.nginx_only("several variables in one text")
def test_two_splits_of_a_text_are_two_keys(make):
    site = make(guarded("/pay/", "once_key %s;" % TWO_VALUES))
    c = site.case("/pay/", Answer(201, b"one\n"), Answer(201, b"two\n"))
    first = is_new(c.post(headers=parts("ab", "c")), body=b"one\n")
    is_new(c.post(headers=parts("a", "bc")), body=b"two\n")
    is_replay(c.post(headers=parts("ab", '"c"')), first)
    assert c.executions == 2


@pytest.mark.nginx_only("several variables in one text")
@pytest.mark.parametrize("key", ['"order-$http_x_key"', "$http_x_key-line"])
def test_a_key_whose_variable_is_empty_is_no_key(make, key):
    site = make(guarded("/pay/", "once_key %s; once_key_required on;" % key))
    c = site.case("/pay/")
    is_problem(c.post(), "key-missing")
    is_new(c.post(headers=[("X-Key", MARK + "k")]))
    assert c.executions == 1


@pytest.mark.nginx_only("several variables in one text")
def test_one_part_of_a_key_alone_is_refused(make):
    site = make(guarded("/pay/", "once_key $http_x_batch-$http_x_line;"))
    c = site.case("/pay/")
    batch, line = ("X-Batch", MARK + "b"), ("X-Line", "1")
    for headers in ([batch], [line], [batch, ("X-Line", "1,2")],
                    [("X-Batch", MARK + "b" * 250), line]):
        is_problem(c.post(headers=headers), "key-invalid")
    assert c.executions == 0
    first = is_new(c.post(headers=[batch, line]))
    is_replay(c.post(headers=[line, batch]), first)
    assert c.post(key="unread").once is None      # no key at all


@pytest.mark.nginx_only("several variables in one text")
@pytest.mark.parametrize("key", [
    '"$http_x_batch-$http_x_line"', '"${http_x_line}$http_x_batch"',
    '"order-$http_x_line"', "$http_x_line-x", '"\\"order $http_x_line\\""'])
@pytest.mark.parametrize("value", ["undefined", "NULL", '"null"',
                                   "[object Object]"])
def test_a_placeholder_in_a_part_of_a_key_is_refused(make, key, value):
    site = make(guarded("/pay/", "once_key %s;" % key))
    c = site.case("/pay/")
    batch = ("X-Batch", MARK + "b")
    is_problem(c.post(headers=[batch, ("X-Line", value)]), "key-invalid")
    assert c.executions == 0
    is_new(c.post(headers=[batch, ("X-Line", MARK + "undefined")]))


def test_two_scopes_have_nothing_in_common(site):
    c = site.case("/tenant/", Answer(201, b"for a\n"), Answer(201, b"for b\n"))
    a = is_new(c.post(headers=tenant("a")), body=b"for a\n")
    b = is_new(c.post(headers=tenant("b")), body=b"for b\n")
    is_replay(c.post(headers=tenant("a")), a)
    is_replay(c.post(headers=tenant("b")), b)
    assert c.executions == 2


def test_another_body_in_another_scope_is_no_mismatch(site):
    c = site.case("/tenant/")
    is_new(c.post(headers=tenant("a")))
    is_new(c.post(headers=tenant("b"), body=b'{"other": 1}'))


def test_scope_and_key_do_not_run_into_each_other(site):
    c = site.case("/tenant/")
    is_new(c.post(headers=tenant("a"), key="bc" + MARK))
    is_new(c.post(headers=tenant("ab"), key="c" + MARK))
    assert c.executions == 2


def test_the_key_on_another_path_is_422_and_executes_nothing(site):
    a, b = site.case("/pay/"), site.case("/pay/")
    first = is_new(a.post())
    is_problem(b.post(key=a.key), "key-reused")
    is_replay(a.post(), first)
    assert (a.executions, b.executions) == (1, 0)


def test_a_slash_at_the_end_makes_another_path(site):
    c = site.case("/pay/")
    first = is_new(c.post())
    is_problem(c.post(path=c.path + "/"), "key-reused")
    is_replay(c.post(), first)
    assert c.executions == 1


def test_the_key_with_another_method_is_422_and_executes_nothing(site):
    c = site.case("/pay/")
    first = is_new(c.send("POST"))
    is_problem(c.send("PATCH"), "key-reused")
    is_replay(c.send("POST"), first)
    assert c.executions == 1


@pytest.mark.parametrize("where", ["/text/", "/less/"])
def test_method_and_path_count_beside_all_that_is_chosen(site, where):
    c, d = site.case(where), site.case(where)
    same = {"headers": [("X-Digest", "one")], "body": b'{"a": 1}'}
    first = is_new(c.post(**same))
    is_problem(d.post(key=c.key, **same), "key-reused")
    is_problem(c.send("PATCH", **same), "key-reused")
    is_replay(c.post(**same), first)
    assert (c.executions, d.executions) == (1, 0)


OVERRIDES = ("X-HTTP-Method-Override", "x-http-method", "X-Method-Override")


@pytest.mark.parametrize("where", ["/pay/", "/pathed/", "/text/", "/less/"])
@pytest.mark.parametrize("name", OVERRIDES)
def test_a_post_that_asks_for_another_method_is_another_request(
        site, where, name):
    """A DELETE that is tunnelled through POST must not get the answer of a
    PATCH."""
    c = site.case(where)
    more = [("X-Digest", "sha-256=:x:")]
    first = is_new(c.post(body=b"", headers=more + [(name, "PATCH")]))
    is_replay(c.post(body=b"", headers=more + [(name, "PATCH")]), first)
    for other in ([(name, "DELETE")], [], [("X-HTTP-Method-Override", "PUT"),
                                           (name, "PATCH")]):
        is_problem(c.post(body=b"", headers=more + other), "key-reused")
    assert c.executions == 1


def test_under_key_space_path_another_path_is_another_record(site):
    a, b = site.case("/pathed/"), site.case("/pathed/",
                                            Answer(201, b"other\n"))
    first = is_new(a.post())
    second = is_new(b.post(key=a.key), body=b"other\n")
    is_replay(a.post(), first)
    is_replay(b.post(key=a.key), second)
    assert (a.executions, b.executions) == (1, 1)


def test_under_key_space_path_another_method_is_another_record(site):
    c = site.case("/pathed/", Answer(201, b"post\n"), Answer(200, b"patch\n"))
    one = is_new(c.send("POST"), 201, b"post\n")
    two = is_new(c.send("PATCH"), 200, b"patch\n")
    is_replay(c.send("POST"), one)
    is_replay(c.send("PATCH"), two)
    assert c.executions == 2


def test_keys_of_the_realm_and_of_a_path_never_meet(site):
    a, b = site.case("/pay/"), site.case("/pathed/")
    first = is_new(a.post())
    is_new(b.post(key=a.key))
    is_replay(a.post(), first)
    assert (a.executions, b.executions) == (1, 1)


def test_two_locations_of_one_realm_share_its_keys(site):
    a, b = site.case("/pay/"), site.case("/big/")
    is_new(a.post())
    is_problem(b.post(key=a.key), "key-reused")
    c = site.case("/realm/")
    is_new(c.post(key=a.key))
    assert (a.executions, b.executions, c.executions) == (1, 0, 1)


@pytest.mark.nginx_only("a realm that is the client's Host")
def test_another_host_is_another_record(site):
    c = site.case("/pay/")
    first = is_new(c.post(host="a.test"))
    is_new(c.post(host="b.test"))
    is_replay(c.post(host="a.test"), first)
    assert c.executions == 2


@pytest.mark.nginx_only("names of servers")
@pytest.mark.parametrize("names", ["a.test b.test", '"" A.test b.test'])
def test_the_names_of_a_server_are_one_realm(make, names):
    site = make("server_name %s;" % names + guarded("/pay/"))
    c = site.case("/pay/")
    first = is_new(c.post(host="a.test"))
    for host in ("b.test", "a.test:8080", "A.TEST", "foreign.test"):
        is_replay(c.post(host=host), first)
    assert c.executions == 1


@pytest.mark.nginx_only("names of servers")
@pytest.mark.parametrize("names", [
    "a.test *.b.test", ".a.test", "www.a.*", "~^(.+)[.]test$", '""', "_",
    "$hostname a.test", "a.test _"])
def test_a_server_of_any_name_has_the_realms_of_its_hosts(make, names):
    site = make("server_name %s;" % names + guarded("/pay/"))
    c = site.case("/pay/")
    first = is_new(c.post(host="a.test"))
    is_new(c.post(host="b.test"))
    is_replay(c.post(host="a.test"), first)
    assert c.executions == 2


def post_to(port, c, **what):
    """Sends the case's request to another port of its gateway."""
    with gateway.Client(port) as client:
        client.send(c.bytes(close=True, **what))
        return client.read("POST")


@pytest.mark.nginx_only("names of servers")
@pytest.mark.parametrize("one, two", [
    ("a.test b.test", "b.test a.test"),
    ("c.test B.test a.test", '"" A.test b.test c.test'),
    ("ab.test a.test", "a.test ab.test")])
def test_the_order_of_the_names_is_no_part_of_the_realm(make, one, two):
    port = gateway.free_port()
    site = make("server_name %s;" % one + guarded("/pay/"),
                http="server { listen 127.0.0.1:%d; server_name %s; %s }" %
                (port, two, guarded("/pay/")))
    c = site.case("/pay/")
    first = is_new(c.post(host="a.test"))
    is_replay(post_to(port, c, host="a.test"), first)
    assert c.executions == 1


@pytest.mark.nginx_only("names of servers")
def test_the_host_by_name_is_no_default(make):
    site = make("server_name a.test; once_realm $host;" + guarded("/pay/"))
    c = site.case("/pay/")
    is_new(c.post(host="a.test"))
    is_new(c.post(host="b.test"))
    assert c.executions == 2


def test_a_realm_stands_in_for_the_host(site):
    c = site.case("/realm/")
    first = is_new(c.post(host="a.test"))
    is_replay(c.post(host="b.test"), first)
    assert c.executions == 1


@pytest.mark.skipif(TARGET == "nginx", reason="its servers have names")
def test_the_realm_is_the_services_own(site):
    c = site.case("/pay/")
    first = is_new(c.post(host="a.test"))
    for host in ("b.test", "A.TEST:8080"):
        is_replay(c.post(host=host), first)
    assert c.executions == 1


# ---- The fingerprint -----------------------------------------------------

ONE = {"body": b'{"amount": 5}', "query": "a=1"}

OTHERS = {
    "another_body": {"body": b'{"amount": 6}'},
    "a_longer_body": {"body": b'{"amount": 5} '},
    "no_body": {"body": b""},
    "another_query": {"query": "a=2"},
    "no_query": {"query": ""},
    "the_query_in_another_order": {"query": "a=1&b=2"},
    "another_content_type": {"content_type": "text/plain"},
    "no_content_type": {"content_type": None},
    "a_content_type_parameter": {"content_type":
                                 "application/json; charset=utf-8"},
    "a_content_encoding": {"headers": [("Content-Encoding", "br")]},
}


@pytest.mark.parametrize("other", OTHERS.values(), ids=OTHERS.keys())
def test_another_request_with_the_key_is_422_and_changes_nothing(site, other):
    c = site.case("/pay/")
    first = is_new(c.post(**ONE))
    is_problem(c.post(**{**ONE, **other}), "key-reused")
    is_replay(c.post(**ONE), first)
    assert c.executions == 1


def test_query_and_body_do_not_run_into_each_other(site):
    c = site.case("/pay/")
    is_new(c.post(query="a=1b", body=b"c"))
    is_problem(c.post(query="a=1", body=b"bc"), "key-reused")


def test_other_headers_make_no_difference(site):
    c = site.case("/pay/")
    first = is_new(c.post())
    is_replay(c.post(headers=[
        ("Date", "Tue, 01 Jan 2030 00:00:00 GMT"), ("User-Agent", "other/2"),
        ("Traceparent", "00-" + "a" * 32 + "-" + "b" * 16 + "-01"),
        ("Signature", "sig1=:abc:"), ("Accept", "text/html"),
        ("Authorization", "Bearer refreshed"), ("Cookie", "a=b"),
        ("If-None-Match", '"x"'), ("X-Retry", "2")]), first)
    assert c.executions == 1


def test_a_chunked_body_is_the_same_body(site):
    c = site.case("/pay/")
    first = is_new(c.post())
    is_replay(c.post(chunked=True), first)
    assert c.executions == 1
    d = site.case("/pay/")
    first = is_new(d.post(chunked=True))
    is_replay(d.post(), first)
    is_problem(d.post(chunked=True, body=b"x"), "key-reused")


BUFFERED = ["/big/", "/file/", "/stream/"]


@pytest.mark.parametrize("where", BUFFERED)
def test_a_large_body_arrives_whole_and_counts_to_its_last_byte(site, where):
    c = site.case(where)
    first = is_new(c.post(body=BIG))
    assert hashlib.sha256(c.requests[0].body).digest() == \
        hashlib.sha256(BIG).digest()
    is_problem(c.post(body=BIG[:-1] + b")"), "key-reused")
    is_problem(c.post(body=b"(" + BIG[1:]), "key-reused")
    middle = len(BIG) // 2
    is_problem(c.post(body=BIG[:middle] + b"!" + BIG[middle + 1:]),
               "key-reused")
    is_replay(c.post(body=BIG), first)
    assert c.executions == 1


@pytest.mark.parametrize("where", BUFFERED)
def test_a_large_chunked_body_is_the_same_body(site, where):
    c = site.case(where)
    first = is_new(c.post(body=BIG, chunked=True))
    assert c.requests[0].body == BIG
    is_replay(c.post(body=BIG), first)
    is_problem(c.post(body=BIG + b" ", chunked=True), "key-reused")
    assert c.executions == 1


@pytest.mark.parametrize("where", ["/pay/", "/stream/", "/less/", "/pathed/"])
def test_a_body_that_is_compressed_anew_is_the_same_body(site, where):
    """gzip writes the time into its head; a client that compresses again for
    its retry sends other bytes."""
    c = site.case(where)
    zipped = [("Content-Encoding", "gzip")]
    plain = b'{"amount": 1000}'
    first = is_new(c.post(body=gzip.compress(plain, mtime=1700000000),
                          headers=zipped))
    is_replay(c.post(body=gzip.compress(plain, mtime=1700000001),
                     headers=zipped), first)
    for body, more in ((gzip.compress(plain + b" ", mtime=1700000000), zipped),
                       (gzip.compress(plain, mtime=1700000000), []),
                       (plain, [])):
        is_problem(c.post(body=body, headers=more), "key-reused")
    assert c.executions == 1


def test_every_byte_value_passes_in_a_body(site):
    c = site.case("/pay/")
    first = is_new(c.post(body=bytes(range(256))))
    assert c.requests[0].body == bytes(range(256))
    is_replay(c.post(body=bytes(range(256))), first)
    is_problem(c.post(body=bytes(range(255, -1, -1))), "key-reused")


# ---- To the upstream (section 4) -----------------------------------------


def test_the_upstream_gets_the_key_and_the_attempt_number(site):
    c = site.case("/pay/")
    is_new(c.post(key='"%s"' % c.key))
    seen = c.requests[0]
    assert seen.get("Idempotency-Key") == '"%s"' % c.key
    assert seen.get("Idempotency-Attempt") == "1"


def test_internal_headers_of_the_client_never_reach_the_upstream(site):
    c = site.case("/pay/")
    is_new(c.post(headers=[
        ("Idempotency-Attempt", "99"), ("idempotency-attempt", "98"),
        ("Idempotency-Outcome", "applied"), ("Idempotency-Status", "forged"),
        ("Idempotent-Replayed", "true"), ("X-Own", "kept")]))
    seen = c.requests[0]
    assert seen.all("Idempotency-Attempt") == ["1"]
    assert seen.all("Idempotency-Outcome") == []
    assert seen.all("Idempotency-Status") == []
    assert seen.all("Idempotent-Replayed") == []
    assert seen.get("X-Own") == "kept"


def test_internal_headers_of_the_upstream_never_reach_the_client(site):
    c = site.case("/pay/", Answer(headers=[
        ("Idempotency-Attempt", "99"), ("Idempotency-Outcome", "applied"),
        ("Idempotency-Status", "forged"), ("Idempotent-Replayed", "true"),
        ("X-Own", "kept")]))
    first = is_new(c.post())
    again = is_replay(c.post(), first)
    for r in (first, again):
        assert r.get("Idempotency-Attempt") is None
        assert r.get("Idempotency-Outcome") is None
        assert r.get("X-Own") == "kept"
    assert c.executions == 1


def test_the_request_is_otherwise_proxied_as_it_came(site):
    c = site.case("/pay/")
    is_new(c.post(query="a=%20b&c", headers=[("X-One", "1"), ("X-Two", "2")]))
    seen = c.requests[0]
    assert (seen.method, seen.query) == ("POST", "a=%20b&c")
    assert [seen.get("X-One"), seen.get("X-Two")] == ["1", "2"]
    assert seen.get("Content-Type") == "application/json"
    assert seen.body == b'{"amount": 5, "note": "%sbody"}' % MARK.encode()


# ---- The same name, for an operator ---------------------------------------

ONCE = gateway.BUILD / "once"


def shown(tmp_path, site, key, realm, scope=None, more=()):
    (tmp_path / "key").write_text(key)
    (tmp_path / "scope").write_text(scope or "")
    who = ["--scope-file", tmp_path / "scope"] if scope else ["--no-scope"]
    done = subprocess.run(
        [ONCE, "--store", site.url("sqlite"), "show", "--request",
         "--realm", realm, "--key-file", tmp_path / "key", *who, *more,
         "--json"],
        capture_output=True, timeout=60, check=True)
    return json.loads(done.stdout)


@pytest.mark.nginx_only("several variables in one text")
def test_an_operator_finds_a_record_of_several_parts(make, tmp_path):
    site = make(guarded("/pay/", "once_key $http_x_batch-$http_x_line;",
                        scope="$http_x_tenant:$http_x_user"), store="sqlite")
    c = site.case("/pay/")
    tenant_text = MARK + "t"
    is_new(c.post(headers=parts("t", "bo") + [("X-Batch", MARK + "7"),
                                              ("X-Line", "12")]))
    it = shown(tmp_path, site, '"%d:%s7,1:-,2:12,"\n' % (len(MARK) + 1, MARK),
               "shop.test",
               "%d:%s,1::,2:bo," % (len(tenant_text), tenant_text))
    assert it["state"] == "completed" and it["attempt"] == 1


@pytest.mark.nginx_only("the program `once` opens the gateway's store")
@pytest.mark.parametrize("prefix, scope, realm", [
    ("/pay/", None, "shop.test"),
    ("/tenant/", MARK + "scope-a", "shop.test"),
    ("/realm/", None, "shops"),
    ("/pathed/", None, "shop.test")])
def test_an_operator_finds_a_record_by_its_request(
        make, tmp_path, prefix, scope, realm):
    site = make(SERVER, store="sqlite")
    c = site.case(prefix)
    is_new(c.post(query="a=1", headers=tenant("a") if scope else []))
    more = ["--method", "POST", "--path", c.path + "?b=2"] \
        if prefix == "/pathed/" else []
    it = shown(tmp_path, site, f'"{c.key}"\n', realm, scope, more)
    assert it["state"] == "completed" and it["attempt"] == 1
