# SPDX-License-Identifier: Apache-2.0
"""
http.md 2.5: a service that answers with a redirect. The answer is recorded, and
the client may send the same request with the same key to the other path.
"""

import json

import pytest

from gateway import Answer, guarded, is_new, is_problem, is_replay

SERVER = (
    guarded("/pay/", "proxy_redirect off;") +
    guarded("/pathed/", "once_key_space path; proxy_redirect off;"))

REDIRECTS = (301, 302, 303, 307, 308)


def to(status, where):
    return Answer(status, b"over there\n", [("Location", where)])


def moved(site, prefix, status, host=""):
    c = site.case(prefix)
    c.script = (to(status, host + c.path + "/there?a=1"), Answer())
    return c


@pytest.mark.parametrize("host", ["", "//shop.test", "https://pay.test:8443"])
@pytest.mark.parametrize("status", REDIRECTS)
def test_the_same_key_at_the_end_of_a_redirect_is_422_that_says_so(
        site, status, host):
    c = moved(site, "/pay/", status, host)
    first = is_new(c.post(), status, b"over there\n")
    said = is_problem(c.post(path=c.path + "/there"), "key-reused")
    assert "redirect to this path" in said["detail"]
    assert "once_key_space path" in said["detail"]
    assert said["error"]["message"] == said["detail"]
    is_replay(c.post(), first)
    assert c.executions == 1


@pytest.mark.parametrize("status", REDIRECTS)
def test_another_mismatch_says_nothing_of_redirects(site, status):
    c = moved(site, "/pay/", status)
    is_new(c.post(), status, b"over there\n")
    for what in ({"path": c.path + "/elsewhere"}, {"body": b"{}"}):
        said = is_problem(c.post(**what), "key-reused")
        assert "redirect" not in said["detail"]
    assert c.executions == 1


@pytest.mark.parametrize("status", REDIRECTS)
def test_under_key_space_path_a_client_may_follow(site, status):
    """Each time from the beginning, as a client that retries does."""
    c = moved(site, "/pathed/", status)
    first = is_new(c.post(), status, b"over there\n")
    done = is_new(c.post(path=c.path + "/there"))
    for _ in range(2):
        is_replay(c.post(), first)
        is_replay(c.post(path=c.path + "/there"), done)
    assert c.executions == 2


def test_a_large_answer_to_the_key_makes_no_difference(site):
    c = site.case("/pay/", Answer(201, b"x" * 100000))
    is_new(c.post(), 201, b"x" * 100000)
    said = is_problem(c.post(path=c.path + "/there"), "key-reused")
    assert said["detail"] == "The key was sent before with another request."
    assert json.dumps(said).count("x" * 9) == 0
