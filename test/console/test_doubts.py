# SPDX-License-Identifier: Apache-2.0
"""
What keeps an operator from deciding wrongly, in a real Chromium: an answer that
looks wrong takes a tick, what cannot be decided is not offered, and the page says
what repeats get and what clients do.
"""

import pytest

pytest.importorskip("selenium", reason="no selenium: apt-get install "
                    "python3-selenium")

import browser  # noqa: E402  pylint: disable=wrong-import-position
from console import MARK, Drop, opened, waiting  # noqa: E402  pylint: disable=wrong-import-position


@pytest.fixture(scope="module")
def chrome(world, console):
    seen = world.console("--decide", "--audit", str(console.audit_file), unix=False,
                         audit=False)
    it = browser.start()
    it.open(seen.url)
    it.shows("Overview")
    yield it
    it.quit()


@pytest.fixture(autouse=True)
def no_complaints(chrome):
    chrome.complaints()
    yield
    assert chrome.complaints() == []


def says(chrome, action, status, body, headers=None):
    chrome.click("#action-" + action)
    chrome.type("#status", str(status))
    if headers is not None:
        chrome.type("#headers", headers)
    chrome.type("#answer", body)
    chrome.click("#check")
    chrome.find("#why")


def decides(chrome, r, why):
    chrome.type("#why", why)
    chrome.type("#digits", r["name"][:8])
    chrome.click("#decide")


def asked(chrome):
    """What takes a tick."""
    return [e.text for e in chrome.driver.find_elements(
        "css selector", "label[for^=doubt-]")]


# ---- One record ------------------------------------------------------------------


@pytest.mark.parametrize("body, doubt", [
    ('{"order": "o-4406"}', True), ('{"order": "o-44050"}', True),
    ('{"order": "o-4405"}', False), ('{"order": "\\u006f-4405"}', False),
    ('{"order": "O-4405"}', False)])
def test_a_body_that_names_another_order_takes_a_tick(world, console, chrome, body,
                                                      doubt):
    case = world.site.case("/pay/", Drop())
    case.post(query="order=o-4405", headers=[("X-Tenant", "t")])
    r = [x for x in console.records(what="waiting", limit=200)
         if case.path in (x["label"] or "")][0]
    assert r["label"].endswith("order=o-4405")
    chrome.go("record/main/" + r["name"])
    says(chrome, "success", 201, body)
    assert asked(chrome) == (["The body does not name o-4405."] if doubt else [])
    decides(chrome, r, "ticket 12")
    if doubt:  # the browser asks for the tick
        assert console.record(r["name"])["state"] == "indeterminate"
        chrome.click("#doubt-0")
        chrome.click("#decide")
    chrome.shows("Decided: success.")


def test_an_order_that_a_header_names_is_named(world, console, chrome):
    opened(world, console, chrome, "o-77")
    says(chrome, "success", 303, "", "Location: /orders/o-77")
    assert asked(chrome) == []
    # An empty body names nothing, and no other order.
    says(chrome, "success", 204, "", "Content-Type: application/json")
    assert asked(chrome) == []
    says(chrome, "success", 303, "", "Location: /orders/o-78")
    assert asked(chrome) == ["The body does not name o-77."]


@pytest.mark.parametrize("action, status, body, doubts", [
    ("success", 404, '"x9"', ["404 is no success to most clients."]),
    ("success", 500, '"x9"', ["500 is no success to most clients."]),
    ("success", 201, "x9 is done", ["The body is not JSON."]),
    ("success", 201, "", ["The body is empty."]),
    ("failure", 200, '"x9"', ["200 is a success to most clients."]),
    ("failure", 503, '"x9"', ["Clients repeat after 503, with the same key, which "
                              "is never executed."]),
    ("failure", 429, '"x9"', ["Clients repeat after 429, with the same key, which "
                              "is never executed."]),
    ("failure", 422, '"x9"', []), ("success", 201, '"x9"', [])])
def test_a_status_that_contradicts_what_is_said_takes_a_tick(
        world, console, chrome, action, status, body, doubts):
    try:
        r = waiting(console, "x9")
        chrome.go("record/main/" + r["name"])
    except AssertionError:
        opened(world, console, chrome, "x9")
    says(chrome, action, status, body)
    assert asked(chrome) == doubts


def test_what_a_client_does_after_a_refusal_is_said(world, console, chrome):
    opened(world, console, chrome, "advice")
    chrome.click("#action-success")
    chrome.shows("for example 201")
    assert "send a new key" not in chrome.text()
    chrome.click("#action-failure")
    chrome.shows("for example 422")
    assert "for example 201" not in chrome.text()
    chrome.shows("The client must send a new key to try again: this key is never "
                 "executed. Avoid 5xx and 429")


def test_why_a_repeat_cannot_be_let_execute_is_said(world, console, chrome):
    opened(world, console, chrome, "held")
    chrome.shows("It was made under \u201chold\u201d (once_lost)")
    assert not chrome.driver.find_elements("id", "action-reopen")
    r = opened(world, console, chrome, "taken", "/take/")
    assert "(once_lost)" not in chrome.text()
    chrome.click("#action-reopen")
    chrome.click("#check")
    decides(chrome, r, "it recognises keys")
    chrome.shows("Decided: the next repeat executes.")
    assert "Repeats get it" not in chrome.text()


def test_an_answer_that_is_lost_is_not_what_repeats_get(world, console, chrome):
    r = opened(world, console, chrome, "no-answer")
    chrome.click("#action-applied")
    chrome.click("#check")
    decides(chrome, r, "seen at the bank")
    chrome.shows("Its answer is lost: repeats get 409 response-unavailable from now")
    assert "Repeats get it from now on" not in chrome.text()


def test_a_status_that_is_none_is_said_at_its_field(world, console, chrome):
    opened(world, console, chrome, "status")
    chrome.click("#action-success")
    chrome.click("#check")
    assert chrome.find("#status-error").text == \
        "\u2716 Give a status from 200 to 599."
    assert chrome.focus()[1] == "status"
    chrome.look()
    chrome.key("201")
    assert not chrome.driver.find_elements("id", "status-error")
    chrome.type("#answer", '"status"')
    chrome.click("#check")
    chrome.find("#why")


# ---- Many ------------------------------------------------------------------------


def ticked(chrome, records):
    chrome.go("audit")
    chrome.run("sessionStorage.setItem('ticked', arguments[0])",
               "[%s]" % ",".join('"%s"' % r["name"] for r in records))
    chrome.go("batch?ticked=1")


def of_one_label(world, console):
    """Two requests, with one label."""
    case = world.site.case("/pay/", Drop(), Drop())
    for n in range(2):
        case.post(query="order=same", key="%s-%d" % (case.key, n),
                  headers=[("X-Tenant", MARK + "tenant")])
    return [r for r in console.records(what="waiting", limit=200)
            if case.path in (r["label"] or "")]


def test_one_body_for_two_requests_of_one_label_takes_a_tick(world, console, chrome):
    records = of_one_label(world, console)
    assert len({r["label"] for r in records}) == 1 and len(records) == 2
    ticked(chrome, records)
    chrome.shows("2 requests that wait")
    says(chrome, "success", 201, '{"charge": "ch_1"}')
    chrome.shows("All of them get this one answer, word for word, and they are about "
                 "2 requests, each of its own, also where the label is the same")
    chrome.type("#why", "ticket 12")
    chrome.type("#digits", "2")
    for tick in ("#for-all", "#looked-up"):
        chrome.click("#decide")
        assert [console.record(r["name"])["state"] for r in records] == \
            2 * ["indeterminate"]
        chrome.click(tick)
    chrome.click("#decide")
    chrome.shows("2 are decided.")


def test_a_dry_run_of_many_comes_into_view(world, console, chrome):
    records = of_one_label(world, console)
    ticked(chrome, records)
    says(chrome, "success", 201, '{"charge": "ch_1"}')
    assert chrome.driver.switch_to.active_element.get_attribute("id") == "for-all"
    assert chrome.run("const b = document.querySelector('.dry .title')"
                      ".getBoundingClientRect();"
                      "return b.top >= 0 && b.bottom <= innerHeight")


def test_a_reason_that_was_typed_stays_while_the_answer_is_changed(
        world, console, chrome):
    opened(world, console, chrome, "why-1")
    says(chrome, "success", 201, '{"charge": "why-1"}')
    chrome.type("#why", "ticket 12")
    says(chrome, "success", 201, '{"charge": "why-1", "n": 1}')
    assert chrome.find("#why").get_attribute("value") == "ticket 12"


def test_many_are_shown_what_repeats_get_and_what_looks_wrong(world, console, chrome):
    for order in ("m-1", "m-2", "m-3"):
        world.lose(order)
    ticked(chrome, [waiting(console, o) for o in ("m-1", "m-2", "m-3")])
    chrome.shows("3 requests that wait")
    says(chrome, "success", 409, "m-2 is done")
    assert chrome.find("#reply").text == (
        "HTTP/1.1 409\nContent-Type: application/json\n"
        "Idempotent-Replayed: true\n\nm-2 is done")
    assert asked(chrome) == [
        "409 is no success to most clients.", "The body is not JSON.",
        "The body names m-2, and all of them get it."]
    chrome.look()
    says(chrome, "failure", 422, '{"error": "not carried out"}')
    assert asked(chrome) == []
    assert console.record(waiting(console, "m-1")["name"])


def test_many_that_are_held_are_not_offered_to_execute(world, console, chrome):
    world.lose("b-hold")
    world.lose("b-take", "/take/")
    hold, take = waiting(console, "b-hold"), waiting(console, "b-take")
    ticked(chrome, [hold])
    chrome.shows("They were made under \u201chold\u201d (once_lost)")
    assert not chrome.driver.find_elements("id", "action-reopen")
    ticked(chrome, [hold, take])
    chrome.shows("1 of them was made under \u201chold\u201d (once_lost)")
    chrome.click("#action-reopen")
    chrome.click("#check")
    chrome.shows("1 request of 2 can be decided")
    chrome.shows("\u2716 Its next repeat cannot be let execute: it was made under "
                 "hold (once_lost), so its service may not recognise the key, and "
                 "could execute it twice.")
    chrome.shows("The next repeat executes.")


def test_ticks_are_forgotten_with_the_page_that_was_about_them(world, console,
                                                              chrome):
    world.lose("forgotten")
    r = waiting(console, "forgotten")
    ticked(chrome, [r])
    chrome.shows("1 request that waits")
    chrome.link("\u2039 Waiting")  # to tick others
    chrome.shows("1 ticked")
    chrome.click("#many")
    chrome.shows("1 request that waits")
    chrome.go("")
    chrome.go("waiting")
    chrome.shows("order=forgotten")
    assert "ticked" not in chrome.text()
