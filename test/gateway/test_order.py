# SPDX-License-Identifier: Apache-2.0
"""
http.md section 1, "order": the gateway looks at a key only after nginx has let
the request in. What nginx itself refuses is never recorded, and bad credentials
never see a replay.
"""

import base64

import pytest

from gateway import Answer, guarded, is_new, is_problem, is_replay

HTTP = """
    limit_req_zone $http_x_limit zone=slow:1m rate=1r/m;
"""

SERVER = (
    guarded("/basic/", """
        auth_basic shop;
        auth_basic_user_file FOLDER/users;""", scope="$remote_user") +
    guarded("/deny/", "deny all;") +
    guarded("/except/", "limit_except GET { deny all; }") +
    guarded("/asked/", "auth_request /auth;") +
    guarded("/any/", """
        satisfy any;
        deny all;
        auth_basic shop;
        auth_basic_user_file FOLDER/users;""") +
    guarded("/small/", "client_max_body_size 100;") +
    guarded("/limited/", "limit_req zone=slow; limit_req_status 429;") +
    guarded("/limited503/", "limit_req zone=slow;") +
    guarded("/gone/", "if ($http_x_gone) { return 403; }") + """
        location = /auth {
            internal;
            proxy_pass http://origin/auth/$http_x_case;
            proxy_pass_request_body off;
            proxy_set_header Content-Length "";
        }""")


def basic(user, password="right"):
    text = base64.b64encode(("%s:%s" % (user, password)).encode()).decode()
    return [("Authorization", "Basic " + text)]


@pytest.fixture(autouse=True)
def users(site):
    (site.folder / "users").write_text(
        "ann:{PLAIN}right\nbob:{PLAIN}right\n")


def refused(response, status):
    """By nginx, not by us."""
    assert response.status == status, response
    assert response.code() is None
    assert not response.replayed


@pytest.mark.parametrize("who", [[], basic("ann", "wrong"), basic("eve")],
                         ids=["nobody", "wrong_password", "unknown_user"])
def test_bad_credentials_never_claim_and_never_see_a_replay(site, who):
    c = site.case("/basic/")
    refused(c.post(headers=who), 401)
    assert c.executions == 0
    first = is_new(c.post(headers=basic("ann")))
    refused(c.post(headers=who), 401)
    is_replay(c.post(headers=basic("ann")), first)
    assert c.executions == 1


def test_a_user_never_sees_the_answer_of_another(site):
    c = site.case("/basic/", Answer(201, b"ann's\n"), Answer(201, b"bob's\n"))
    is_new(c.post(headers=basic("ann")), body=b"ann's\n")
    is_new(c.post(headers=basic("bob")), body=b"bob's\n")
    assert c.executions == 2


@pytest.mark.parametrize("where", [
    "/deny/",
    pytest.param("/except/", marks=pytest.mark.nginx_only("limit_except")),
    pytest.param("/any/", marks=pytest.mark.nginx_only("satisfy"))])
def test_what_nginx_denies_never_reaches_us(site, where):
    c = site.case(where)
    status = 401 if where == "/any/" else 403
    for key in (c.key, "a,b", ""):
        refused(c.post(key=key), status)
    assert c.executions == 0


@pytest.mark.nginx_only("satisfy is nginx's")
def test_satisfy_any_with_the_password_is_let_in(site):
    c = site.case("/any/")
    first = is_new(c.post(headers=basic("ann")))
    is_replay(c.post(headers=basic("ann")), first)
    refused(c.post(), 401)
    assert c.executions == 1


@pytest.mark.nginx_only("auth_request is nginx's")
@pytest.mark.parametrize("status", [401, 403])
def test_rights_taken_away_end_the_replays(site, status):
    may = site.case("/auth/", Answer(204, b""), Answer(204, b""),
                    Answer(status, b""))
    c = site.case("/asked/")
    who = [("X-Case", may.id)]
    first = is_new(c.post(headers=who))
    is_replay(c.post(headers=who), first)
    refused(c.post(headers=who), status)
    assert (c.executions, may.executions) == (1, 3)


@pytest.mark.nginx_only("auth_request is nginx's")
def test_a_refusal_by_auth_request_is_never_recorded(site):
    may = site.case("/auth/", Answer(403, b""), Answer(204, b""))
    c = site.case("/asked/")
    who = [("X-Case", may.id)]
    refused(c.post(headers=who), 403)
    is_new(c.post(headers=who))
    assert c.executions == 1


@pytest.mark.parametrize("chunked", [False, True])
def test_a_413_by_nginx_is_never_recorded(site, chunked):
    c = site.case("/small/")
    refused(c.post(body=b"x" * 200, chunked=chunked), 413)
    assert c.executions == 0
    # Had the large body been claimed, this one would be a mismatch.
    is_new(c.post(body=b"x"))


@pytest.mark.nginx_only("limit_req is nginx's")
@pytest.mark.parametrize("where, status", [("/limited/", 429),
                                           ("/limited503/", 503)])
def test_a_limit_by_nginx_is_never_recorded(site, where, status):
    c, other = site.case(where), site.case(where)
    limit = [("X-Limit", c.id)]
    is_new(other.post(headers=limit))
    refused(c.post(headers=limit), status)
    assert c.executions == 0
    is_new(c.post())  # without the header there is no limit
    assert c.executions == 1


@pytest.mark.nginx_only("rewrite is nginx's")
def test_a_403_by_rewrite_is_never_recorded_and_ends_replays(site):
    c = site.case("/gone/")
    refused(c.post(headers=[("X-Gone", "1")]), 403)
    assert c.executions == 0
    first = is_new(c.post())
    refused(c.post(headers=[("X-Gone", "1")]), 403)
    is_replay(c.post(), first)


def test_a_bad_key_is_told_only_to_those_who_are_let_in(site):
    c = site.case("/basic/")
    refused(c.post(key="a,b"), 401)
    is_problem(c.post(key="a,b", headers=basic("ann")), "key-invalid")
    assert c.executions == 0
