# SPDX-License-Identifier: Apache-2.0
"""
http.md section 1: which requests are guarded, and which keys are keys. A
malformed key is refused before anything is dispatched, and never passes for a
missing one.
"""

import json

import pytest

from gateway import MARK, guarded, is_new, is_problem, is_replay

SERVER = (
    guarded("/pay/") +
    guarded("/must/", "once_key_required on;") +
    guarded("/alias/", "once_key $http_x_request_id;") +
    guarded("/joined/", 'once_key "$http_x_order/$http_x_line";') +
    guarded("/put/", "once_methods PUT DELETE POST; proxy_next_upstream off;"))

MALFORMED = {
    "empty": "",
    "blank": "   ",
    "an_empty_string": '""',
    "blank_in_a_tab": "\t",
    "256_characters": "k" * 256,
    "256_characters_in_a_string": '"%s"' % ("k" * 256),
    "thousands_of_characters": "k" * 4000,
    "a_comma_list": "one,two",
    "a_comma_list_with_space": "one, two",
    "a_comma_list_of_strings": '"one", "two"',
    "a_list_of_the_same": '"one","one"',
    "a_trailing_comma": "one,",
    "a_leading_comma": ",one",
    "latin_1": "caf\xe9",
    "utf_8": "caf\xc3\xa9",
    "utf_8_in_a_string": '"caf\xc3\xa9"',
    "a_control_byte": "a\x01b",
    "a_delete_byte": "a\x7fb",
    "a_tab_inside": "a\tb",
    "an_escape_sequence": "a\x1b[31mb",
    "two_words": "one two",
    "an_open_string": '"one',
    "only_a_quote": '"',
    "a_string_closed_but_not_opened": 'one"',
    "a_quote_inside_a_string": '"o"ne"',
    "an_escape_that_is_none": '"o\\ne"',
    "an_escape_at_the_end": '"one\\',
    "an_escaped_closing_quote": '"one\\"',
    "text_after_a_string": '"one" two',
    "text_glued_to_a_string": '"one"two',
    "a_parameter_without_a_name": '"one";',
    "a_parameter_with_a_bad_name": '"one";=1',
    "a_tab_in_a_string": '"o\tne"',
}


@pytest.mark.parametrize("value", MALFORMED.values(), ids=MALFORMED.keys())
@pytest.mark.parametrize("where", ["/pay/", "/must/"])
def test_a_malformed_key_is_refused_and_nothing_is_dispatched(
        site, where, value):
    c = site.case(where)
    is_problem(c.post(key=value), "key-invalid")
    assert c.executions == 0


NO_VALUE = ("undefined", "null", "None", "nil", '"<nil>"', "NaN",
            '"[object Object]"', '"undefined"', "UNDEFINED", "(null)",
            "00000000-0000-0000-0000-000000000000", "0" * 32)


@pytest.mark.parametrize("key", NO_VALUE)
@pytest.mark.parametrize("where", ["/pay/", "/must/"])
def test_what_stands_for_no_value_is_no_key(site, where, key):
    """Every operation of such a program has this key: the second one would get
    the answer of the first."""
    c = site.case(where)
    r = c.post(key=key)
    is_problem(r, "key-invalid")
    assert key.strip('"').lower() in json.loads(r.body)["detail"].lower()
    assert "new random key" in json.loads(r.body)["detail"]
    assert c.executions == 0


def test_a_computed_key_may_hold_such_a_word(site):
    """In a longer value; test_identity.py has values that are such a word."""
    c = site.case("/joined/")
    line = [("X-Order", "not-null"), ("X-Line", c.key)]
    first = is_new(c.post(key=None, headers=line))
    is_replay(c.post(key=None, headers=line), first)


@pytest.mark.parametrize("second", ["same", "other", ""])
def test_two_key_lines_are_refused_whether_equal_or_not(site, second):
    c = site.case("/pay/")
    line = ("Idempotency-Key", c.key if second == "same" else second)
    is_problem(c.post(headers=[line]), "key-invalid")
    assert c.executions == 0


def test_two_key_lines_in_different_case_are_still_two(site):
    c = site.case("/pay/")
    r = c.post(headers=[("idempotency-KEY", c.key)])
    is_problem(r, "key-invalid")
    assert c.executions == 0


def test_a_malformed_key_leaves_the_good_one_unharmed(site):
    c = site.case("/pay/")
    is_problem(c.post(key=c.key + ","), "key-invalid")
    first = is_new(c.post())
    is_problem(c.post(key='"%s' % c.key), "key-invalid")
    is_replay(c.post(), first)
    assert c.executions == 1


def test_the_header_name_has_no_case(site):
    c = site.case("/pay/")
    first = is_new(c.post(key_name="idempotency-key"))
    is_replay(c.post(key_name="IDEMPOTENCY-KEY"), first)
    assert c.executions == 1


def test_string_and_bare_token_of_the_same_text_are_the_same_key(site):
    c = site.case("/pay/")
    first = is_new(c.post(key='"%s"' % c.key))
    is_replay(c.post(key=c.key), first)
    is_replay(c.post(key="  %s " % c.key), first)
    assert c.executions == 1


def test_parameters_of_a_string_are_ignored(site):
    c = site.case("/pay/")
    first = is_new(c.post(key=c.key))
    is_replay(c.post(key='"%s";a=1;b="x y";c' % c.key), first)
    is_replay(c.post(key='"%s"; a=?1' % c.key), first)
    assert c.executions == 1


def test_escapes_in_a_string_are_honoured(site):
    c = site.case("/pay/")
    quote, slash = '"%s\\""' % c.key, '"%s\\\\"' % c.key
    one, two = is_new(c.post(key=quote)), is_new(c.post(key=slash))
    is_replay(c.post(key=quote), one)
    is_replay(c.post(key=slash), two)
    is_new(c.post())
    assert c.executions == 3


def test_keys_differ_by_case_and_by_every_byte(site):
    c = site.case("/pay/")
    is_new(c.post(key=c.key + "a"))
    is_new(c.post(key=c.key + "A"))
    is_new(c.post(key=c.key + "a."))
    assert c.executions == 3


@pytest.mark.parametrize("form", ["%s", '"%s"'])
def test_255_characters_are_a_key(site, form):
    c = site.case("/pay/")
    key = form % c.key.ljust(255, "k")
    first = is_new(c.post(key=key))
    is_replay(c.post(key=key), first)
    assert c.executions == 1


def test_255_characters_differ_in_the_last_one(site):
    c = site.case("/pay/")
    is_new(c.post(key=c.key.ljust(254, "k") + "1"))
    is_new(c.post(key=c.key.ljust(254, "k") + "2"))
    assert c.executions == 2


@pytest.mark.parametrize("form", ["x", "7", "!#$%&'*+-./:<=>?@[]^_`{|}~"])
def test_a_short_or_strange_visible_token_is_a_key(site, form):
    c = site.case("/pay/")
    first = is_new(c.post(key=form))
    is_replay(c.post(key=form), first)
    is_replay(c.post(key='"%s"' % form), first)
    assert c.executions == 1


def test_a_missing_key_passes_through_untouched(site):
    c = site.case("/pay/")
    for n in (1, 2):
        r = c.post(key=None)
        assert (r.status, r.body) == (201, b"made\n")
        assert not r.replayed and r.once in (None, "-")
        assert c.executions == n
    assert c.requests[0].get("Idempotency-Attempt") is None
    # Were the others kept under no key, this one would be a repetition.
    is_new(c.post())


def test_a_missing_key_is_refused_where_it_is_required(site):
    c = site.case("/must/")
    is_problem(c.post(key=None), "key-missing")
    assert c.executions == 0
    is_new(c.post())


@pytest.mark.parametrize("method", ["POST", "PATCH"])
def test_post_and_patch_are_guarded_by_default(site, method):
    c = site.case("/pay/")
    first = is_new(c.send(method))
    is_replay(c.send(method), first)
    assert c.executions == 1


@pytest.mark.parametrize("method", ["GET", "HEAD", "PUT", "DELETE", "OPTIONS"])
@pytest.mark.parametrize("key", ["good", "bad,list", None])
def test_other_methods_pass_untouched_with_a_key_or_without(
        site, method, key):
    # A proxied 200 to HEAD would announce a body: 204 suits every method.
    c = site.case("/must/")
    c.script = (lambda conn, _: conn.sock.sendall(
        b"HTTP/1.1 204 Fine\r\nX-Own: 1\r\n\r\n"),)
    for n in (1, 2):
        r = c.send(method, key=c.key if key == "good" else key, body=b"")
        assert (r.status, r.get("X-Own")) == (204, "1")
        assert not r.replayed and r.once in (None, "-")
        assert c.executions == n
        assert c.requests[-1].method == method
    # Nothing was claimed for them either.
    is_new(c.post(body=b""), 204, b"")


def test_once_methods_chooses_the_methods(site):
    for method in ("PUT", "DELETE", "POST"):
        c = site.case("/put/")
        first = is_new(c.send(method))
        is_replay(c.send(method), first)
        assert c.executions == 1
    c = site.case("/put/")
    c.send("PATCH")
    assert not c.send("PATCH").replayed
    assert c.executions == 2


def test_once_key_takes_another_header(site):
    c = site.case("/alias/")
    first = is_new(c.post(key_name="X-Request-Id"))
    is_replay(c.post(key_name="X-Request-Id"), first)
    assert c.executions == 1
    # And Idempotency-Key is then a header like any other.
    c.post()
    c.post()
    assert c.executions == 3


@pytest.mark.parametrize("value", ["", '"open', "a,b", "k" * 256, "caf\xe9"])
def test_a_malformed_key_from_another_header_is_refused_too(site, value):
    c = site.case("/alias/")
    r = c.post(key_name="X-Request-Id", key=value)
    is_problem(r, "key-invalid")
    assert c.executions == 0


def test_once_key_may_be_computed(site):
    c = site.case("/joined/")

    def post(order, line):
        return c.post(key=None, headers=[("X-Order", MARK + order),
                                         ("X-Line", line)])

    first = is_new(post("7", "1"))
    is_new(post("7", "2"))
    is_replay(post("7", "1"), first)
    assert c.executions == 2


# ---- Names of headers ----------------------------------------------------


@pytest.mark.nginx_only("underscores_in_headers")
def test_a_key_header_with_underscores_is_the_variable_s(make):
    site = make("underscores_in_headers on;" +
                guarded("/pay/", "once_key $http_x_request_id;"))
    c = site.case("/pay/")
    first = is_new(c.post(key_name="X_Request_Id"))
    is_replay(c.post(key_name="X_Request_Id"), first)
    is_replay(c.post(key_name="X-Request-Id"), first)
    assert c.executions == 1


@pytest.mark.nginx_only("underscores_in_headers")
def test_internal_headers_with_underscores_do_not_reach_the_upstream(make):
    site = make("underscores_in_headers on;" + guarded("/pay/"))
    c = site.case("/pay/")
    is_new(c.post(headers=[("Idempotency_Attempt", "99"),
                           ("idempotency_outcome", "applied"),
                           ("X_Own", "mine")]))
    seen = c.requests[0]
    assert seen.get("Idempotency_Attempt") is None
    assert seen.get("idempotency_outcome") is None
    assert (seen.get("X_Own"), seen.get("Idempotency-Attempt")) == ("mine",
                                                                    "1")


@pytest.mark.nginx_only("names of nginx's variables")
def test_two_lines_of_a_key_named_with_capitals(make):
    site = make(guarded("/pay/", "once_key $http_Idempotency_Key;"))
    c = site.case("/pay/")
    is_problem(c.post(headers=[("Idempotency-Key", "other")]), "key-invalid")
    assert c.executions == 0
    is_new(c.post())
