# SPDX-License-Identifier: Apache-2.0
"""
What an operator decides for a location: which statuses are final, which free
the key, and what counts when a repeat is compared with the first request.
"""

import json

import pytest

from gateway import Answer, Drop, guarded, is_new, is_problem, is_replay

SERVER = (
    guarded("/pay/", "once_key_required on;") +
    guarded("/named/", "once_final 2xx 408 425 429;") +
    guarded("/every/", "once_final 2xx 3xx 4xx 5xx 429;") +
    guarded("/classes/", "once_final 2xx 4xx;") +
    guarded("/busy/", "once_release 503 429;") +
    guarded("/busy/final/", "once_final 2xx 5xx; once_release 503;"))


# ---- once_final and once_release -----------------------------------------


@pytest.mark.parametrize("status", [408, 425, 429])
def test_a_status_that_once_final_names_by_number_is_final(site, status):
    c = site.case("/named/", Answer(status, b"no\n"), Answer(201))
    first = is_new(c.post(), status, b"no\n")
    is_replay(c.post(), first)
    assert c.executions == 1


def test_a_number_is_final_beside_all_classes_too(site):
    c = site.case("/every/", Answer(429, b"no\n"), Answer(201))
    first = is_new(c.post(), 429, b"no\n")
    is_replay(c.post(), first)
    assert c.executions == 1


@pytest.mark.parametrize("where, status", [
    ("/classes/", 408), ("/classes/", 429), ("/every/", 408),
    ("/busy/", 503), ("/busy/", 429), ("/busy/final/", 503)])
def test_a_class_in_once_final_does_not_take_a_status_from_once_release(
        site, where, status):
    c = site.case(where, Answer(status, b"busy\n"), Answer(201))
    assert c.post().status == status
    # The key is free: another body is another request, and no mismatch.
    first = is_new(c.post(body=b"other"))
    is_replay(c.post(body=b"other"), first)
    assert c.executions == 2


def test_once_release_replaces_the_default_list(site):
    c = site.case("/busy/", Answer(408, b"slow\n"), Answer(201))
    first = is_new(c.post(), 408, b"slow\n")
    is_replay(c.post(), first)
    assert c.executions == 1


# ---- Problems in the eyes of an SDK --------------------------------------


def resolves(response):
    """
    What the clients of the Stripe family do with an answer, whatever its
    status: it is the result, unless the document has a member `error`
    (stripe-node 23.1.0, RequestSender; the real client was tried, see
    docs/verification.md). `error` may be an object, or text of OAuth's.
    """
    return not json.loads(response.body).get("error")


def test_an_sdk_takes_no_problem_for_a_success(site):
    own = b'{"id": "ch_1"}'
    c = site.case("/pay/", Answer(200, own), Drop())
    assert resolves(c.post()) and resolves(c.post())
    for answer, code, status in (
            (c.post(body=b"other"), "key-reused", 422),
            (c.post(key='"half'), "key-invalid", 400),
            (c.post(key=None), "key-missing", 400),
            (c.post(key=c.key + "-2"), "outcome-unknown", 502),
            (c.post(key=c.key + "-2"), "outcome-unknown", 409)):
        assert not resolves(answer), answer
        body = is_problem(answer, code, status)
        assert body["error"]["message"] and body["error"]["code"] == code
    assert c.executions == 2
