# SPDX-License-Identifier: Apache-2.0
"""
nginx -t refuses what is unsafe or out of range, with a text that names the
thing and the limit, before anything could be claimed.
"""

import os
import pathlib
import re
import socket
import sqlite3
import struct
import subprocess
import tempfile
import threading

import pytest

import gateway
import newstore
from gateway import MARK, Site, guarded


def check(tmp_path, server, **more):
    """Exit status and everything nginx -t said; nothing is started."""
    site = Site(tmp_path, server, **more)
    try:
        return site.gateway.check()
    finally:
        for upstream in site.upstreams:
            upstream.close()


def refused(tmp_path, server, *words, **more):
    code, said = check(tmp_path, server, **more)
    assert code != 0, "nginx -t accepts it:\n" + said
    assert "unknown directive" not in said, said
    assert "[emerg]" in said, said
    for word in words:
        assert re.search(word, said), "%r is not in:\n%s" % (word, said)
    return said


def with_store(tmp_path, url, *words, workers=1, server=None):
    return refused(tmp_path, server or guarded("/pay/"), *words, store=url,
                   workers=workers)


@pytest.mark.parametrize("store", ["sqlite", "memory"])
def test_the_configuration_that_the_others_vary_is_accepted(tmp_path, store):
    code, said = check(tmp_path, guarded("/pay/"), store=store)
    assert code == 0 and "test is successful" in said, said


@pytest.mark.skipif(gateway.PLAIN, reason="the module's own")
@pytest.mark.parametrize("number", [0, 1])
def test_what_docs_scale_shows_is_accepted(tmp_path, number):
    page = (gateway.ROOT / "docs" / "scale.md").read_text()
    blocks = re.findall("```nginx\n(.*?)```", page, re.S)
    assert len(blocks) == 2
    text = blocks[number].replace("/var/lib/once", str(tmp_path)).replace(
        "127.0.0.1:8080", "127.0.0.1:%d" % gateway.free_port())
    conf = tmp_path / "nginx.conf"
    user = "user root;" if os.geteuid() == 0 else ""
    conf.write_text("load_module %s; %s pid %s/pid; events {} http {%s}" %
                    (gateway.MODULE, user, tmp_path, text))
    newstore.init_all(text)
    done = subprocess.run(
        [gateway.NGINX, "-t", "-p", tmp_path, "-e", "stderr", "-c", conf],
        capture_output=True, text=True, check=False)
    assert done.returncode == 0 and "is successful" in done.stderr, done.stderr
    assert "[warn]" not in done.stderr, done.stderr


GOOD = {
    "everything_at_once": """
        once_key $http_x_key; once_key_required on; once_realm shop;
        once_methods PUT POST; once_in_flight wait=2s; once_final 2xx 404 410;
        once_lost takeover; once_two_phase on; once_store_failure bypass;
        once_ttl 2d; once_lease 5s; once_max_response 2m;
        once_hide_header X-A; once_hide_header X-B; once_store_cookies on;
        once_cors_expose on; once_dry_run on; proxy_next_upstream off;""",
    "a_lease_equal_to_the_ttl": "once_lease 60s; once_ttl 60s;",
    "failures_from_lease_to_ttl": "once_ttl 1h failure=30s;",
    "failures_as_all": "once_repeat refuse; once_ttl 1h failure=1h;",
    "keys_of_the_realm": "once_key_space realm;",
    "keys_of_a_path": "once_key_space path;",
    "a_key_in_the_body": "once_key_json /id; once_key_required on;",
    "two_keys_in_the_body": "once_key_json /a~1b/0 \"\"; once_key_time ulid;",
    "the_longest_pointer": "once_key_json /%s;" % ("k" * 254),
    "keys_with_a_time": "once_key_time uuid7;",
    "the_oldest_key": "once_key_time ulid max_age=45m; once_ttl 1d failure=1h;",
    "a_short_lease": "once_lease 500ms;",
    "the_largest_response": "once_max_response 64m;",
    "the_longest_wait": "once_in_flight wait=10m;",
    "all_statuses": "once_final 2xx 3xx 4xx 5xx;",
    "final_names_what_is_released_by_default": "once_final 2xx 408 425 429;",
    "what_counts": "once_fingerprint body query type;",
    "what_counts_is_json": "once_fingerprint type json but=/a but=/$b/0;",
    "what_counts_is_computed": "once_fingerprint $http_x_digest;",
    "released_out_of_a_final_class": "once_final 2xx 5xx; once_release 503;",
    "unknown_out_of_a_final_class": "once_final 2xx 5xx; once_unknown 400 599;",
    "unknown_by_default_and_final": "once_final 2xx 502; once_release 504;",
    "unknown_off": "once_unknown off; once_final 2xx 502;",
}


@pytest.mark.parametrize("more", GOOD.values(), ids=GOOD.keys())
def test_a_good_configuration_is_accepted(tmp_path, more):
    code, said = check(tmp_path, guarded("/pay/", more))
    assert code == 0, said


@pytest.mark.parametrize("text", ["once main;", "once main; once_key $uri;"])
def test_a_guarded_location_without_a_scope_decision(tmp_path, text):
    refused(tmp_path, "location /pay/ { %s proxy_pass http://origin; }" % text,
            "once_scope")


@pytest.mark.nginx_only("levels of nginx's configuration")
def test_a_server_without_a_scope_decision(tmp_path):
    refused(tmp_path, "once main; location /pay/ { proxy_pass http://origin;}",
            "once_scope")


@pytest.mark.nginx_only("variables of nginx")
@pytest.mark.parametrize("scope", ["tenant", '""', "OFF", "a-b"])
def test_a_scope_that_is_the_same_for_every_caller(tmp_path, scope):
    refused(tmp_path, guarded("/pay/", scope=scope), "once_scope")


@pytest.mark.nginx_only("variables of nginx")
@pytest.mark.parametrize("text", ["once_key fixed;", 'once_key "";',
                                  'once_realm "";'])
def test_a_key_that_is_the_same_for_every_request(tmp_path, text):
    refused(tmp_path, guarded("/pay/", text), text.split()[0])


def scope_warnings(tmp_path, scope, more="", server=""):
    code, said = check(tmp_path, server + guarded("/pay/", more, scope=scope))
    assert code == 0, said
    return [line for line in said.splitlines()
            if "[warn]" in line and "once_scope" in line]


BASIC = "auth_basic shop; auth_basic_user_file /dev/null;"


@pytest.mark.nginx_only("variables of nginx")
@pytest.mark.parametrize("scope, more", [
    ("$http_x_tenant", ""), ("a:${HTTP_x_tenant}", BASIC), ("$arg_tenant", ""),
    ("$host-$cookie_session", ""), ("$remote_user", ""),
    ("${remote_user}", "auth_basic off;"),
    ("$remote_user", "satisfy any; allow 127.0.0.1; deny all;" + BASIC)])
def test_a_scope_that_the_client_chooses_is_warned_of(tmp_path, scope, more):
    (said,) = scope_warnings(tmp_path, scope, more)
    assert scope.replace('"', "") in said and "/pay/" in said


@pytest.mark.nginx_only("variables of nginx")
@pytest.mark.parametrize("scope, more, server", [
    ("$remote_user", BASIC, ""), ("$remote_user", "", BASIC),
    ("$ssl_client_s_dn", "", ""), ("$tenant", "auth_request /auth;"
     "auth_request_set $tenant $upstream_http_x_tenant;", ""),
    ("$remote_user_id", "set $remote_user_id $ssl_client_serial;", "")])
def test_a_scope_behind_authentication_is_not_warned_of(
        tmp_path, scope, more, server):
    assert not scope_warnings(tmp_path, scope, more, server)


def realm_warnings(tmp_path, server, **more):
    code, said = check(tmp_path, server, **more)
    assert code == 0, said
    return [line for line in said.splitlines()
            if "[warn]" in line and "once_realm" in line]


ANY_NAME = ["*.shop.test", "shop.test .pay.test", "www.shop.*", "~shop", '""',
            "_", "$hostname"]


@pytest.mark.nginx_only("names of servers")
@pytest.mark.parametrize("names", ANY_NAME)
def test_a_realm_that_the_client_chooses_is_warned_of(tmp_path, names):
    text = "server_name %s;" % names + guarded("/pay/") + guarded("/b/")
    (said,) = realm_warnings(tmp_path, text)
    assert "/pay/" in said and "nginx.conf" in said


@pytest.mark.nginx_only("names of servers")
def test_a_lookup_whose_realm_the_client_chooses_is_warned_of(tmp_path):
    (said,) = realm_warnings(tmp_path, LOOKUP % (
        "once_lookup main;", "once_scope $http_x_who;"))
    assert "/status" in said


@pytest.mark.nginx_only("names of servers")
@pytest.mark.parametrize("text", [
    "server_name shop.test; once main; once_scope off;" + guarded("/pay/"),
    "server_name shop.test pay.test \"\";" + guarded("/pay/"),
    "once_realm shop;" + guarded("/pay/"),
    "once_realm $host;" + guarded("/pay/"),
    guarded("/pay/", "once_realm shop;"), "location / { root /tmp; }"])
def test_a_realm_of_the_operator_is_not_warned_of(tmp_path, text):
    assert not realm_warnings(tmp_path, text)


def two(more_a="", more_b="", target="http://UPSTREAM1", **other):
    """Two guarded locations of one server and one scope."""
    scope = {"scope": "$http_x_who"}
    return "server_name shop.test;" + \
        guarded("/a/", more_a, **scope, target="http://UPSTREAM0/x") + \
        guarded("/b/", more_b, **{**scope, **other}, target=target)


@pytest.mark.nginx_only("names of servers")
@pytest.mark.parametrize("text", [
    two(), two(more_a="once_realm shop.test;"), "once_realm shop;" + two(),
    two().replace("server_name shop.test", "once_realm $host")])
def test_two_services_that_share_their_keys_are_warned_of(tmp_path, text):
    (said,) = realm_warnings(tmp_path, text, upstreams=2)
    assert "/a/" in said and "/b/" in said and "422" in said


OWN_REALMS = ("once_realm one;", "once_realm two;")


@pytest.mark.nginx_only("names of servers")
@pytest.mark.parametrize("text", [
    two(target="http://UPSTREAM0/y"), two(*OWN_REALMS),
    two("once_realm one;", "once_realm one;"),
    two(scope="$http_x_other"), two("once_methods PUT;"),
    two(target="http://$host"), "once_key_space path;" + two(),
    two().replace("/b/", "@b"), two("internal;")])
def test_services_with_keys_of_their_own_are_not_warned_of(tmp_path, text):
    assert not realm_warnings(tmp_path, text, upstreams=2)


def two_servers(names, more="", scope="$http_x_who", store="main"):
    """The other server of a configuration."""
    return "server { listen 127.0.0.1:%d; server_name %s; %s }" % (
        gateway.free_port(), names, guarded("/other/", more, scope=scope).replace(
            "once main;", "once %s;" % store))


ALIASES = "server_name a.test b.test;" + \
    guarded("/pay/", scope="$http_x_who") + \
    guarded("/buy/", scope="$http_x_who")


@pytest.mark.nginx_only("names of servers")
@pytest.mark.parametrize("names", ["b.test", "B.test c.test", '"" 0.test b.test'])
def test_servers_of_two_realms_that_share_a_name_are_warned_of(
        tmp_path, names):
    (said,) = realm_warnings(tmp_path, ALIASES, http=two_servers(names))
    assert "b.test" in said and "/other/" in said, said
    assert "/pay/" in said or "/buy/" in said, said


@pytest.mark.nginx_only("names of servers")
@pytest.mark.parametrize("other", [
    {"names": "b.test a.test"}, {"names": "c.test a.test"},
    {"names": "c.test"}, {"names": "b.test", "more": "once_realm b.test;"},
    {"names": "b.test", "more": "once_methods PUT;"},
    {"names": "b.test", "scope": "$http_x_other"},
    {"names": '"" b.test', "store": "second"}])
def test_servers_whose_keys_do_not_meet_in_two_realms(tmp_path, other):
    assert not realm_warnings(
        tmp_path, ALIASES, http=two_servers(**other),
        lines="once_store second memory:;", workers=1)


BAD = {
    "lease_0": ("once_lease 0;", "once_lease"),
    "lease_negative": ("once_lease -1s;", "once_lease"),
    "lease_no_time": ("once_lease soon;", "once_lease"),
    "lease_above_the_ttl": ("once_lease 61s; once_ttl 60s;",
                            "once_lease", "once_ttl"),
    "lease_above_the_default_ttl": ("once_lease 25h;", "once_lease"),
    "lease_too_long": ("once_lease 2h;", "once_lease"),
    "failure_below_the_lease": ("once_ttl 1h failure=29s;", "failure=",
                                "once_lease"),
    "failure_above_the_ttl": ("once_ttl 1h failure=61m;", "failure="),
    "failure_0": ("once_ttl 1h failure=0;", "once_ttl|failure="),
    "failure_misspelt": ("once_ttl 1h failures=30m;", "once_ttl"),
    "key_space_a_word": ("once_key_space host;", "once_key_space", "host"),
    "repeat_a_word": ("once_repeat ignore;", "once_repeat", "ignore"),
    "key_json_and_key": ("once_key $http_x_key; once_key_json /id;",
                         "once_key_json"),
    "key_and_key_json": ("once_key_json /id; once_key $http_x_key;",
                         "once_key", "once_key_json"),
    "key_json_no_pointer": ("once_key_json id;", "once_key_json", "pointer"),
    "key_json_no_escape": ("once_key_json /a~2;", "once_key_json", "pointer"),
    "key_json_too_long": ("once_key_json /%s;" % ("k" * 255),
                          "once_key_json", "255"),
    "key_json_three": ("once_key_json /a /b /c;", "once_key_json", "two"),
    "key_json_not_two": ("once_key_json /a b;", "once_key_json", "pointer"),
    "key_json_twice": ("once_key_json /a; once_key_json /b;", "once_key_json"),
    "key_time_a_word": ("once_key_time uuid4;", "once_key_time", "uuid7"),
    "key_time_and_a_short_ttl": ("once_ttl 59m; once_key_time uuid7;",
                                 "once_key_time", "an hour"),
    "key_time_and_a_short_failure": (
        "once_ttl 1d failure=59m; once_key_time ulid;",
        "once_key_time", "an hour"),
    "key_time_and_bypass": (
        "once_key_time uuid7; once_lost takeover; once_store_failure bypass;",
        "once_key_time", "bypass"),
    "max_age_too_large": ("once_key_time uuid7 max_age=86101s;",
                          "once_key_time", "max_age"),
    "max_age_misspelt": ("once_key_time uuid7 age=1h;", "once_key_time"),
    "ttl_0": ("once_ttl 0;", "once_ttl"),
    "ttl_no_time": ("once_ttl for-ever;", "once_ttl"),
    "ttl_below_the_default_lease": ("once_ttl 10s;", "once_ttl|once_lease"),
    "ttl_of_eleven_years": ("once_ttl 11y;", "once_ttl"),
    "max_response_too_large": ("once_max_response 65m;", "once_max_response",
                               r"64\s*m|67108864|65536\s*k"),
    "max_response_no_size": ("once_max_response big;", "once_max_response"),
    "max_response_negative": ("once_max_response -1;", "once_max_response"),
    "final_6xx": ("once_final 6xx;", "once_final", "6xx"),
    "final_1xx": ("once_final 1xx;", "once_final", "1xx"),
    "final_a_word": ("once_final 2xx good;", "once_final", "good"),
    "final_half": ("once_final 2x;", "once_final", "2x"),
    "final_too_large": ("once_final 600;", "once_final", "600"),
    "final_too_small": ("once_final 99;", "once_final", "99"),
    "final_nothing": ("once_final;", "once_final"),
    "release_nothing": ("once_release;", "once_release"),
    "release_a_class": ("once_release 5xx;", "once_release", "5xx",
                        "300 to 599"),
    "release_a_success": ("once_release 202;", "once_release", "202"),
    "release_too_large": ("once_release 600;", "once_release", "600"),
    "release_a_word": ("once_release busy;", "once_release", "busy"),
    "unknown_nothing": ("once_unknown;", "once_unknown"),
    "unknown_a_class": ("once_unknown 5xx;", "once_unknown", "5xx",
                        "400 to 599"),
    "unknown_too_small": ("once_unknown 302;", "once_unknown", "302"),
    "unknown_too_large": ("once_unknown 600;", "once_unknown", "600"),
    "unknown_off_and_more": ("once_unknown off 502;", "once_unknown", "off"),
    "unknown_more_and_off": ("once_unknown 502 off;", "once_unknown", "off"),
    "unknown_and_final": ("once_unknown 503; once_final 2xx 503;",
                          "once_unknown", "once_final", "503"),
    "unknown_and_released": ("once_unknown 502 429; once_release 429;",
                             "once_unknown", "once_release", "429"),
    "final_and_released": ("once_final 2xx 503; once_release 503;",
                           "once_final", "once_release", "503"),
    "final_and_released_408": ("once_release 408; once_final 2xx 408;",
                               "once_final", "once_release", "408"),
    "fingerprint_nothing": ("once_fingerprint;", "once_fingerprint"),
    "fingerprint_a_word": ("once_fingerprint body head;", "once_fingerprint",
                           "head"),
    "fingerprint_json_and_body": ("once_fingerprint json body;",
                                  "once_fingerprint", "json"),
    "fingerprint_but_without_json": ("once_fingerprint body but=/a;",
                                     "once_fingerprint", "but="),
    "fingerprint_but_everything": ('once_fingerprint json but=;',
                                   "once_fingerprint", "but="),
    "fingerprint_but_no_pointer": ("once_fingerprint json but=a;",
                                   "once_fingerprint", "pointer"),
    "fingerprint_but_too_often": (
        "once_fingerprint json %s;" % " ".join(["but=/a"] * 17),
        "once_fingerprint", "16"),
    "fingerprint_a_variable_and_a_word": (
        "once_fingerprint body $http_x;", "once_fingerprint", "alone"),
    "in_flight_a_word": ("once_in_flight queue;", "once_in_flight", "queue"),
    "in_flight_no_time": ("once_in_flight wait=;", "once_in_flight"),
    "in_flight_too_long": ("once_in_flight wait=601s;", "once_in_flight",
                           "10m|600000"),
    "in_flight_reject_and_wait": ("once_in_flight reject wait=1s;",
                                  "once_in_flight"),
    "in_flight_reject_and_accept": ("once_in_flight reject accept=/status;",
                                    "once_in_flight"),
    "accept_without_a_scope": ("once_in_flight accept=/status;", "accept=",
                               "scope"),
    "in_flight_bad_time": ("once_in_flight wait=long;", "once_in_flight"),
    "lost_a_word": ("once_lost retry;", "once_lost", "retry"),
    "store_failure_a_word": ("once_store_failure ignore;",
                             "once_store_failure", "ignore"),
    "required_a_word": ("once_key_required maybe;", "once_key_required"),
    "two_phase_a_word": ("once_two_phase twice;", "once_two_phase"),
    "methods_nothing": ("once_methods;", "once_methods"),
    "methods_a_word": ("once_methods POTS;", "once_methods", "POTS"),
    "twice": ("once_lease 5s; once_lease 6s;", "once_lease", "duplicate"),
    "scope_twice": ("once_scope $remote_user;", "once_scope", "duplicate"),
    "bypass_without_takeover": ("once_store_failure bypass;",
                                "bypass", "takeover"),
    "bypass_with_hold": ("once_store_failure bypass; once_lost hold;",
                         "bypass", "takeover"),
    "probe_of_a_variable": ("once_probe /ask/$uri;", "once_probe"),
    "probe_with_arguments": ("once_probe /ask?x=1;", "once_probe"),
    "probe_no_path": ("once_probe ask;", "once_probe"),
    "probe_twice": ("once_probe /a; once_probe /b;", "duplicate"),
    "probe_with_takeover": ("once_probe /ask; once_lost takeover;",
                            "once_probe", "takeover"),
    "probe_in_a_dry_run": ("once_probe /ask; once_dry_run on;",
                           "once_probe", "once_dry_run"),
    "key_of_an_unknown_variable": ("once_key $no_such_variable;",
                                   "no_such_variable"),
}


LOOKUP = """
    location /status {
        once_key_space realm;
        %s
        %s
    }"""


@pytest.mark.parametrize("wait", ["", "wait=1ms", "wait=10m"])
def test_a_lookup_is_accepted(tmp_path, wait):
    code, said = check(tmp_path, LOOKUP % ("once_lookup main %s;" % wait,
                                           "once_scope $http_x_who;") +
                       guarded("/pay/", "once_in_flight accept=/status;"
                               "once_key_space realm;",
                               scope="$http_x_who") +
                       guarded("/two/", "once_in_flight wait=2s accept=/status;"
                               "once_key_space realm;",
                               scope="$http_x_who"))
    assert code == 0, said


@pytest.mark.parametrize("what, scope, words", [
    ("once_lookup main;", "once_scope off;", ["once_lookup", "once_scope"]),
    ("once_lookup main;", "", ["once_lookup", "once_scope"]),
    ("once_lookup other;", "once_scope $http_x_who;", ["other"]),
    ("once_lookup main wait=601s;", "once_scope $http_x_who;",
     ["once_lookup", "10m|600000|ten minutes"]),
    ("once_lookup main wait=0;", "once_scope $http_x_who;", ["once_lookup"]),
    ("once_lookup main long;", "once_scope $http_x_who;", ["once_lookup"]),
    ("once_lookup main; once_lookup main;", "once_scope $http_x_who;",
     ["once_lookup", "duplicate"])])
def test_a_lookup_out_of_range(tmp_path, what, scope, words):
    refused(tmp_path, LOOKUP % (what, scope), *words)


@pytest.mark.nginx_only("locations are nginx's")
@pytest.mark.parametrize("path", ["/statu", "/none", "/pay/x", "/api/status"])
@pytest.mark.parametrize("more", ["", "rewrite ^/api(/.*)$ $1;"])
def test_an_accept_that_leads_to_no_lookup_is_warned_of(tmp_path, path, more):
    # A path of the client: a proxy in front, or a rewrite, may change it.
    code, said = check(tmp_path, more + LOOKUP % (
        "once_lookup main;", "once_scope $http_x_who;") +
        guarded("/pay/", "once_in_flight accept=%s;" % path,
                scope="$http_x_who"))
    assert code == 0, said
    (said,) = [line for line in said.splitlines() if "accept=" in line]
    assert "[warn]" in said and "accept=%s" % path in said, said
    assert "once_lookup" in said, said


@pytest.mark.nginx_only("content handlers of nginx")
@pytest.mark.parametrize("first, then", [
    ("once_lookup main;", "proxy_pass http://origin;"),
    ("proxy_pass http://origin;", "once_lookup main;"),
    ("once_lookup main;", "stub_status;"),
    ("once_status;", "once_lookup main;"),
    ("once_lookup main;", "if ($http_x_a) { proxy_pass http://origin; }"),
    ("once main;", "once_lookup main;")])
def test_a_lookup_where_something_else_answers(tmp_path, first, then):
    refused(tmp_path, LOOKUP % (first + then, "once_scope $http_x_who;"),
            "once_lookup", "/status|location")


@pytest.mark.parametrize("path", [
    "status", "", "//other.test/", "http://other.test/", "/a?b=1", "/a#b",
    "/$uri", "/a\\\\b"])
def test_a_repeat_in_flight_is_sent_to_no_other_host(tmp_path, path):
    refused(tmp_path, guarded("/pay/", "once_key_space realm;"
                              "once_in_flight accept=%s;" % path,
                              scope="$http_x_who"), "once_in_flight|accept=")


@pytest.mark.parametrize("server, word", [
    (guarded("/pay/", "once_in_flight accept=/status; once_key_space path;",
             scope="$http_x_who"), "accept="),
    ("""
        location /status {
            once_lookup main;
            once_scope $http_x_who;
            once_key_space path;
        }""", "once_lookup")])
def test_keys_of_paths_are_found_by_no_lookup(tmp_path, server, word):
    refused(tmp_path, server, word, "once_key_space")


def out_of_range():
    for name, what in BAD.items():
        # A handler may have methods of its own.
        own = [pytest.mark.nginx_only("methods that nginx knows")] \
            if name == "methods_a_word" else []
        yield pytest.param(what, id=name, marks=own)


@pytest.mark.parametrize("bad", out_of_range())
def test_a_directive_out_of_range(tmp_path, bad):
    refused(tmp_path, guarded("/pay/", bad[0]), *bad[1:])


@pytest.mark.nginx_only("levels of nginx's configuration")
def test_bypass_without_takeover_across_levels(tmp_path):
    refused(tmp_path, "once_store_failure bypass;" + guarded("/pay/"),
            "bypass", "takeover")


# ---- Stores --------------------------------------------------------------


@pytest.mark.nginx_only("workers")
@pytest.mark.parametrize("workers", [2, 7])
def test_memory_with_more_than_one_worker(tmp_path, workers):
    with_store(tmp_path, "memory", "memory", "worker", workers=workers)


@pytest.mark.nginx_only("workers")
def test_memory_behind_faulty_with_more_than_one_worker(tmp_path):
    with_store(tmp_path, "faulty:delay_ms=1@memory", "worker", workers=2)


@pytest.mark.parametrize("url", ["paper:/tmp/x", "sqlit", "nonsense", "http:",
                                 "sqlite3:/tmp/x"])
def test_an_unknown_store_url(tmp_path, url):
    with_store(tmp_path, url, "store", url.partition(":")[0])


def test_a_store_url_with_a_password_is_not_repeated(tmp_path):
    said = with_store(tmp_path, "paper://ann:%s@h.test/db" % MARK, "store")
    assert MARK not in said


@pytest.mark.parametrize("rules", ["", "delay_ms=x", "fail=claim", "fail=",
                                   "fail=no_such_verb:1", "explode=1",
                                   "fail=claim:0", "fail=claim:2-1"])
def test_a_faulty_store_with_bad_rules(tmp_path, rules):
    with_store(tmp_path, "faulty:%s@sqlite" % rules, "faulty")


def test_a_path_in_a_folder_that_does_not_exist(tmp_path):
    with_store(tmp_path, "sqlite:/nonexistent/once/x.db",
               "/nonexistent/once/x.db")


def test_a_path_that_is_a_folder(tmp_path):
    (tmp_path / "folder.db").mkdir()
    with_store(tmp_path, "sqlite:%s/folder.db" % tmp_path, "folder.db")


def test_a_path_below_a_file(tmp_path):
    (tmp_path / "file").write_text("")
    with_store(tmp_path, "sqlite:%s/file/x.db" % tmp_path, "file/x.db")


def test_an_empty_path(tmp_path):
    with_store(tmp_path, "sqlite:", "sqlite")


@pytest.mark.parametrize("content", [
    b"this is not a database, and it is longer than a header of one\n" * 9,
    b"SQLite format 3\x00" + b"\xff" * 4080])
def test_a_file_that_is_not_a_database(tmp_path, content):
    (tmp_path / "not.db").write_bytes(content)
    with_store(tmp_path, "sqlite:%s/not.db" % tmp_path, "not.db")
    assert (tmp_path / "not.db").read_bytes() == content


def test_a_database_of_somebody_else(tmp_path):
    db = sqlite3.connect(tmp_path / "other.db")
    db.execute("CREATE TABLE claim(something TEXT)")
    db.execute("INSERT INTO claim VALUES('mine')")
    db.commit()
    db.close()
    with_store(tmp_path, "sqlite:%s/other.db" % tmp_path, "other.db")
    db = sqlite3.connect(tmp_path / "other.db")
    assert db.execute("SELECT * FROM claim").fetchall() == [("mine",)]
    db.close()


@pytest.fixture
def unprivileged(tmp_path):
    """nginx -t as nobody, since root may write everything."""
    if os.getuid() != 0:
        pytest.skip("only root can become nobody")
    top = pathlib.Path(tempfile.gettempdir())
    for folder in [tmp_path, *tmp_path.parents]:
        if top in folder.parents:
            os.chmod(folder, 0o755)

    def run(folder, server, url):
        site = Site(folder, server, store=url)
        gateway = site.gateway
        for upstream in site.upstreams:
            upstream.close()
        gateway.port, gateway.h2 = 18080, 18081  # -t binds, as nobody can
        gateway.check()
        (folder / "mine").mkdir()
        if "/mine/" in url:
            newstore.init(url)
        for path in (folder / "nginx", folder / "mine"):
            for sub in [path, *path.iterdir()]:
                os.chown(sub, 65534, 65534)
        if (folder / "store.db").exists():
            os.chown(folder / "store.db", 65534, 65534)
        out = subprocess.run(gateway.command("-t"), capture_output=True,
                             check=False, user=65534, group=65534,
                             extra_groups=[])
        return out.returncode, (out.stdout + out.stderr).decode("latin-1")

    return run


@pytest.mark.parametrize("mode", [0o000, 0o400])
def test_a_file_that_may_not_be_written(tmp_path, mode, unprivileged):
    path = tmp_path / "store.db"
    path.write_bytes(b"")
    path.chmod(mode)
    code, said = unprivileged(tmp_path, guarded("/pay/"),
                              "sqlite:%s" % path)
    assert code != 0 and "unknown directive" not in said, said
    assert "store.db" in said, said


def test_an_unprivileged_nginx_accepts_what_it_may_use(tmp_path, unprivileged):
    code, said = unprivileged(tmp_path, guarded("/pay/"),
                              "sqlite:%s/mine/store.db" % tmp_path)
    assert code == 0, said


SECRETS = {
    "passfile": "postgres://ann@127.0.0.1:1/db?passfile=%s",
    "password_file": "mysql://ann@127.0.0.1:1/db?password_file=%s",
    "password_file_of_redis": "redis://127.0.0.1:1/?password_file=%s"}


@pytest.fixture(name="secret")
def a_secret_file(tmp_path):
    path = tmp_path / "secret"
    path.write_text("*:*:*:*:%s\n" % MARK)
    path.chmod(0o600)
    yield path
    path.unlink()


@pytest.mark.parametrize("url", SECRETS.values(), ids=SECRETS.keys())
def test_a_password_file_that_is_not_there(tmp_path, url):
    path = tmp_path / "secret"
    with_store(tmp_path, url % path, "%s.*root.*No such file" % path)


@pytest.mark.nginx_only("nginx -t as another user")
@pytest.mark.parametrize("url", SECRETS.values(), ids=SECRETS.keys())
def test_a_password_file_that_the_user_may_not_read(
        tmp_path, unprivileged, url, secret):
    code, said = unprivileged(tmp_path, guarded("/pay/"), url % secret)
    assert code != 0 and "unknown directive" not in said, said
    assert re.search("%s.*nobody.*Permission denied" % secret, said), said
    assert MARK not in said


def test_a_password_file_that_libpq_passes_over(tmp_path, secret):
    secret.chmod(0o640)
    said = with_store(tmp_path, SECRETS["passfile"] % secret,
                      "%s.*chmod 600" % secret)
    assert MARK not in said


def ask_for_a_password(sock):
    """A PostgreSQL server that lets nobody in without one."""
    with sock:
        while True:
            try:
                conn, _ = sock.accept()
            except OSError:
                return
            with conn:
                size, code = struct.unpack("!ii", conn.recv(8))
                if code == 80877103:            # "do you speak TLS?"
                    conn.sendall(b"N")
                    size, code = struct.unpack("!ii", conn.recv(8))
                conn.recv(size - 8)
                conn.sendall(b"R" + struct.pack("!ii", 8, 3))
                conn.recv(1)                    # libpq hangs up


def test_a_password_file_without_a_line_for_the_server(tmp_path, secret):
    secret.write_text("other.test:*:*:*:%s\n" % MARK)
    sock = socket.create_server(("127.0.0.1", 0))
    threading.Thread(target=ask_for_a_password, args=(sock,),
                     daemon=True).start()
    url = "postgres://ann@127.0.0.1:%d/db?passfile=%s" % (
        sock.getsockname()[1], secret)
    try:
        said = with_store(tmp_path, url, "password", "passfile=")
        assert MARK not in said
    finally:
        sock.shutdown(socket.SHUT_RDWR)


def test_a_store_that_nobody_has_defined(tmp_path):
    refused(tmp_path, guarded("/pay/", once="nosuch"), "nosuch")


def test_a_store_defined_twice(tmp_path):
    refused(tmp_path, guarded("/pay/"), "main",
            lines="once_store main sqlite:/tmp/never.db;\n")


@pytest.mark.parametrize("text", ["once_store lonely;", "once_store;",
                                  "once_store a memory: timeout=0;",
                                  "once_store a memory: timeout=x;",
                                  "once_store a memory: colour=red;"])
def test_a_store_line_that_is_wrong(tmp_path, text):
    refused(tmp_path, guarded("/pay/"), "once_store", lines=text)


@pytest.mark.nginx_only("what nginx can do in a location")
def test_nginx_t_creates_nothing(tmp_path):
    refused(tmp_path, guarded("/pay/"), "once init", init=False)
    assert [p.name for p in tmp_path.iterdir()] == ["nginx"]
    (tmp_path / "nginx").rename(tmp_path / "first")
    code, said = check(tmp_path, guarded("/pay/"))
    assert code == 0, said
    names = sorted(p.name for p in tmp_path.iterdir())
    assert set(names) <= {"first", "nginx", "store.db", "store.db-wal", "store.db-shm"}


# ---- Where there is no store ----------------------------------------------


@pytest.fixture(name="without_stores")
def stores_are_not_looked_at(monkeypatch):
    monkeypatch.setenv("ONCE_CHECK", "off")


STORELESS = pytest.mark.nginx_only("what nginx -t looks at")


@STORELESS
@pytest.mark.parametrize("url", [
    "sqlite:/nonexistent/once/x.db", "journal:/nonexistent/once",
    "postgres://ann@127.0.0.1:1/db?passfile=/nonexistent"])
def test_a_test_without_the_store(tmp_path, url, without_stores):
    code, said = check(tmp_path, guarded("/pay/"), store=url, init=False)
    assert code == 0 and "test is successful" in said, said
    (line,) = [x for x in said.splitlines() if "ONCE_CHECK" in x]
    assert "[warn]" in line and "nonexistent" in line and "main" in line, said


@STORELESS
@pytest.mark.parametrize("server, words, more", [
    (guarded("/pay/"), ["unknown scheme"], {"store": "paper:/tmp/x"}),
    (guarded("/pay/"), ["worker"], {"store": "memory", "workers": 2}),
    (guarded("/pay/", "once_lease 0;"), ["once_lease"], {}),
    (guarded("/pay/", once="nosuch"), ["nosuch"], {})])
def test_a_test_without_the_store_refuses_all_else(
        tmp_path, server, words, more, without_stores):
    refused(tmp_path, server, *words, init="store" not in more, **more)


@STORELESS
def test_no_other_value_turns_the_stores_off(tmp_path, monkeypatch):
    monkeypatch.setenv("ONCE_CHECK", "no")
    refused(tmp_path, guarded("/pay/"), "ONCE_CHECK", '"off" only')


@STORELESS
def test_nginx_does_not_start_without_its_store(make, without_stores):
    site = make(guarded("/pay/"), start=False,
                store="sqlite:/nonexistent/once/x.db", init=False,
                allow=["nonexistent"])
    with pytest.raises(AssertionError, match="nonexistent"):
        site.start()


# ---- Locations -----------------------------------------------------------


@pytest.mark.nginx_only("what nginx can do in a location")
def test_a_grpc_location(tmp_path):
    refused(tmp_path, """
        location /pay/ {
            once main;
            once_scope off;
            grpc_pass grpc://127.0.0.1:1;
        }""", "grpc")


@pytest.mark.nginx_only("what nginx can do in a location")
def test_a_location_that_is_not_proxied(tmp_path):
    refused(tmp_path, """
        location /pay/ { once main; once_scope off; root /tmp; }""", "once")


@pytest.mark.nginx_only("the status page is the module's")
def test_once_status_takes_no_argument(tmp_path):
    refused(tmp_path, "location /status { once_status now; }", "once_status")


@pytest.mark.nginx_only("levels of nginx's configuration")
@pytest.mark.parametrize("text", ["once_ttl 1h;", "once main;"])
def test_a_directive_of_a_location_may_stand_in_http_or_server(
        tmp_path, text):
    code, said = check(tmp_path, "once_scope off; once_lease 10s;" +
                       guarded("/pay/").replace("once_scope off;", ""),
                       lines=text)
    assert code == 0, said
