# SPDX-License-Identifier: Apache-2.0
"""
docs/ci.md: what a step back costs, and what it costs to go forward again.
"""

import pytest

from gateway import Answer, guarded, is_new, is_problem, is_replay

pytestmark = pytest.mark.nginx_only("reloads another configuration")

NOW = "once_realm shop;"


def change(site, server):
    site.gateway.texts["server"] = server
    site.gateway.render()
    site.gateway.reload()


def runs(response, body):
    assert (response.status, response.body) == (201, body), response
    assert not response.replayed and response.code() is None, response


STEPS = {
    # what stands there meanwhile; does a key of that time execute again?
    "off": ("once off;", True),
    "dry_run": (NOW + "once_dry_run on;", False),
    "realm": ("once_realm other;", True),
    "key_space": (NOW + "once_key_space path;", True),
    "rules": (NOW + "once_final 2xx; once_in_flight wait=1s;", False),
}


@pytest.mark.parametrize("more, again", STEPS.values(), ids=STEPS.keys())
def test_a_step_back_and_forward_again(make, more, again):
    there = guarded("/pay/", NOW)
    back = guarded("/pay/", more)
    if "once off" in more:
        back = "location /pay/ { proxy_pass http://origin; }"
    site = make(there)
    before = site.case("/pay/", Answer(201, b"one\n"), Answer(201, b"two\n"))
    during = site.case("/pay/", Answer(201, b"one\n"), Answer(201, b"two\n"))
    first = is_new(before.post(), body=b"one\n")
    change(site, back)
    runs(during.post(), b"one\n")
    change(site, there)
    is_replay(before.post(), first)
    if again:
        is_new(during.post(), body=b"two\n")
    else:
        response = during.post()
        assert response.replayed and response.body == b"one\n"
    assert (before.executions, during.executions) == (1, 1 + again)


def test_a_fingerprint_and_back(make):
    there, back = (guarded("/pay/", NOW + more) for more in
                   ("", "once_fingerprint body;"))
    site = make(there)
    before, during = site.case("/pay/"), site.case("/pay/")
    first = is_new(before.post())
    change(site, back)
    is_problem(before.post(), "key-reused")
    is_new(during.post())
    change(site, there)
    is_problem(during.post(), "key-reused")
    is_replay(before.post(), first)
    assert (before.executions, during.executions) == (1, 1)


def test_another_store_has_none_of_the_keys(make):
    site = make(guarded("/pay/", NOW))
    c = site.case("/pay/", Answer(201, b"one\n"), Answer(201, b"two\n"))
    first = is_new(c.post(), body=b"one\n")
    http = site.gateway.texts["http"]
    site.gateway.quit()
    site.restart_with("journal:%s/other" % site.folder)
    is_new(c.post(), body=b"two\n")
    site.gateway.quit()
    site.gateway.texts["http"] = http
    site.gateway.start()
    is_replay(c.post(), first)
    assert c.executions == 2
