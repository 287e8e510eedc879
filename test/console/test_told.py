# SPDX-License-Identifier: Apache-2.0
"""
What the pages tell, in a real Chromium: no more than is known, and where it is
seen. Who looks into what, who decided meanwhile, what was searched and measured.
"""

import re
import signal
import uuid

import pytest

pytest.importorskip("selenium", reason="no selenium: apt-get install "
                    "python3-selenium")

import browser  # noqa: E402  pylint: disable=wrong-import-position
from selenium.webdriver.common.keys import Keys  # noqa: E402  pylint: disable=wrong-import-position
from conftest import me  # noqa: E402  pylint: disable=wrong-import-position
from console import Answer, eventually, opened, waiting  # noqa: E402  pylint: disable=wrong-import-position
from shop import DEAD, GOING, STUCK, Shop  # noqa: E402  pylint: disable=wrong-import-position


@pytest.fixture(scope="module")
def shop(tmp_path_factory):
    return Shop(tmp_path_factory.mktemp("shop"))


@pytest.fixture(scope="module")
def seen(world, console, shop):
    return world.console("--decide", "--audit", str(console.audit_file),
                         "--database", "shop=" + shop.url, unix=False, audit=False)


@pytest.fixture(scope="module")
def chrome(seen):
    it = browser.start()
    it.open(seen.url)
    it.shows("Overview")
    yield it
    it.quit()


@pytest.fixture(autouse=True)
def no_complaints(chrome, request):
    chrome.complaints()
    yield
    if "complains" not in request.keywords:
        assert chrome.complaints() == []


def is_on_the_screen(chrome, how):
    """All of it, and nothing stands over its middle."""
    return chrome.run("""
        const e = document.querySelector(arguments[0]);
        const r = e.getBoundingClientRect();
        const top = document.elementFromPoint(r.x + r.width / 2, r.y + r.height / 2);
        return r.top >= 0 && r.bottom <= innerHeight && r.left >= 0 &&
            r.right <= innerWidth && e.contains(top);
    """, how)


# ---- Who else is there ------------------------------------------------------------


def test_who_looks_into_it_is_seen_by_others(world, console, chrome):
    """In the list, and by who has the record open."""
    r = opened(world, console, chrome, "looked-at")
    chrome.shows("What happened")
    assert console.decide(r, "acknowledge", why="I ask the bank").status == 200
    chrome.shows("I ask the bank")
    assert chrome.find("#action-applied")
    chrome.go("waiting?sort=new")
    chrome.shows("order=looked-at")
    row = chrome.find("[data-key='row-%s']" % r["name"])
    assert re.search(me() + r" looks into it, \d+ s ago", row.text), row.text
    # And what is new while the list is open.
    world.lose("looked-at-2")
    other = waiting(console, "looked-at-2")
    chrome.shows("order=looked-at-2")
    assert console.decide(other, "acknowledge").status == 200
    eventually(lambda: "looks into it" in chrome.find(
        "[data-key='row-%s']" % other["name"]).text)
    chrome.look()


def test_to_look_into_it_takes_one_field(world, console, chrome):
    r = opened(world, console, chrome, "one-field")
    chrome.click("#action-acknowledge")
    chrome.shows("What do you do?")
    assert chrome.find("#decide").text == "Note it"
    assert not chrome.driver.find_elements("id", "digits")
    assert not chrome.find("#decision").find_element("id", "check").is_displayed()
    chrome.type("#why", "I ask the bank")
    chrome.click("#decide")
    chrome.shows("Noted. Nothing was decided.")
    assert waiting(console, "one-field") == r
    chrome.click("#action-applied")
    assert chrome.find("#check").text == "Show what repeats would get"


def test_who_decided_meanwhile_is_seen_wherever_the_page_is(world, console, chrome):
    r = opened(world, console, chrome, "meanwhile")
    chrome.click("#action-success")
    chrome.type("#status", "201")
    chrome.size(390, 700)
    try:
        chrome.run("scrollTo(0, document.body.scrollHeight)")
        assert chrome.run("return scrollY") > 300
        assert console.decide(r, "failure", why="no such charge").status == 200
        chrome.shows("Something has happened to this record. " + me() +
                     " decided it ")
        assert re.search(r"decided it \d+ s ago: failure, \u201cno such charge\u201d. "
                         "Your input was not used.", chrome.text())
        chrome.run("scrollTo(0, document.body.scrollHeight)")
        assert is_on_the_screen(chrome, ".news .box")
        chrome.look()
        chrome.click("#news-seen")
        assert "Your input" not in chrome.text()
    finally:
        chrome.driver.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


def test_that_the_console_is_gone_is_seen_wherever_the_page_is(world, console, chrome,
                                                               seen):
    opened(world, console, chrome, "gone")
    chrome.size(390, 700)
    seen.process.send_signal(signal.SIGSTOP)
    try:
        chrome.run("scrollTo(0, document.body.scrollHeight)")
        eventually(lambda: "does not answer" in chrome.find("#away").text)
        chrome.run("scrollTo(0, document.body.scrollHeight)")
        assert chrome.run("return scrollY") > 300
        assert is_on_the_screen(chrome, "#away .box")
        # A time says of which zone it is.
        assert re.search(r"below is of \d+:\d\d:\d\d\s\S*\s?UTC and",
                         chrome.find("#away").text), chrome.find("#away").text
    finally:
        seen.process.send_signal(signal.SIGCONT)
        chrome.driver.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
    eventually(lambda: not chrome.run(
        "return document.getElementById('away').firstChild"), 20)


# ---- What was searched, and what was measured ----------------------------------------


def test_what_is_completed_was_not_searched(world, console, chrome):
    case = world.site.case("/pay/", Answer(200, b"ok"))
    case.post(query="order=kept-1", headers=[("X-Tenant", "t")])
    chrome.go("find")
    chrome.type("#q", "order=kept-1")
    chrome.click("#search")
    chrome.shows("Not among what waits or is in flight. Completed records were not "
                 "searched.")
    assert "There is no such record" not in chrome.text()
    assert "main" in chrome.find("#everything").get_attribute("class").split()
    chrome.click("#everything")
    chrome.shows("order=kept-1")
    chrome.type("#q", "order=kept-none")
    chrome.click("#search")
    chrome.click("#everything")
    chrome.shows("There is no such record")
    # By its whole name a record is found in any state.
    chrome.type("#q", "ab" * 32)
    chrome.click("#search")
    chrome.shows("There is no such record")
    del console


def test_a_trace_is_found_among_all_records(world, chrome):
    trace = uuid.uuid4().hex
    case = world.site.case("/pay/", Answer(200, b"ok"))
    case.post(query="order=traced", headers=[
        ("X-Tenant", "t"), ("traceparent", "00-%s-00f067aa0ba902b7-01" % trace)])
    chrome.go("find")
    chrome.type("#q", trace)
    chrome.click("#search")
    chrome.click("#everything")
    chrome.shows("order=traced")


def test_a_record_without_an_order_says_how_it_is_found(world, console, chrome):
    name = uuid.uuid4().hex * 2
    world.seed("lost", name, "0")
    chrome.go("record/main/" + name)
    chrome.shows("This record does not say which order it is about: set once_label.")
    assert name[:16] in chrome.find("#nameless").text
    opened(world, console, chrome, "named-1")
    assert "does not say which order" not in chrome.text()


def test_without_a_gateway_nothing_is_measured(chrome):
    chrome.go("metrics")
    chrome.shows("Attempts without an outcome, by reason")
    card = chrome.find("[data-key='plot-Attempts without an outcome, by reason']")
    assert "Not measured: no gateway is watched." in card.text
    assert "None in the last hour" not in card.text
    # Words that Once gives a meaning say it.
    assert card.find_element("tag name", "abbr").get_attribute("title") == \
        "each is one try at the operation of a key"
    chrome.go("")


def test_a_minute_that_has_just_begun_has_the_last_ones_number(world, console, chrome):
    world.lose("minute")
    waits = console.get("stores/main")["counts"]["indeterminate"]
    chrome.go("waiting")
    chrome.run("""
        window.quick = window.fetch;
        window.fetch = async (path, options) => {
            const answer = await quick(path, options);
            if (!path.endsWith('/metrics'))
                return answer;
            const m = await answer.json();
            for (const s of m.stores) {
                s.waiting = [...Array(58).fill(null), arguments[0], null];
                s.in_flight = [...Array(58).fill(null), null, null];
            }
            return new Response(JSON.stringify(m));
        };
    """.replace("arguments[0]", str(waits)))
    chrome.go("")
    value = "[data-key='card-%s'] .value"
    assert chrome.find(value % "Outcomes unknown").text == str(waits)
    assert chrome.find(value % "In flight").text == "\u2013"  # this one is not known
    chrome.run("window.fetch = window.quick")


def test_a_failure_has_not_the_colour_of_a_success(world, console, chrome):
    r = opened(world, console, chrome, "no-good")
    assert console.decide(r, "failure").status == 200
    chrome.shows("answered: failure")
    assert "completed, failure" not in chrome.text()
    assert chrome.find(".says .mark").get_attribute("class").split() == ["mark"]
    items = {e.find_element("tag name", "b").text: e.get_attribute("class")
             for e in chrome.driver.find_elements("css selector", ".story li")}
    assert items[me() + ": decided: failure"] == ""
    # What was known of it before stays.
    assert items["The outcome became unknown"] == "waits"
    assert list(items)[:2] == ["Attempt 1 began.", "The outcome became unknown"]


def test_the_audit_log_says_what_a_record_is_about(world, console, chrome):
    world.lose("in-the-log")
    r = waiting(console, "in-the-log")
    assert console.decide(r, "applied").status == 200
    chrome.go("audit?name=" + r["name"])
    chrome.shows("order=in-the-log")
    chrome.shows("tried")
    assert "means to" not in chrome.text()
    assert chrome.find("[data-key^=audit-]").get_attribute("href").endswith(
        "#/record/main/" + r["name"])
    chrome.look()


# ---- Keys, words and their places ---------------------------------------------------------


def test_keys_work_where_nothing_is_typed(world, console, chrome):
    world.lose("tick-key")
    r = waiting(console, "tick-key")
    chrome.go("waiting?sort=new")
    chrome.click("[data-key='tick-%s']" % r["name"])
    chrome.key("?")
    eventually(lambda: chrome.run("return document.getElementById('help').open"))
    chrome.key(Keys.ESCAPE)
    eventually(lambda: not chrome.run("return document.getElementById('help').open"))
    chrome.click("[data-key='tick-%s']" % r["name"])
    chrome.key("/")
    assert chrome.focus()[1] == "quick-find"
    chrome.go("record/main/" + r["name"])
    chrome.click("#action-applied")
    chrome.key("/")
    assert chrome.focus()[1] == "quick-find"


def test_an_order_is_not_broken_at_its_hyphen(world, console, chrome):
    chrome.size(390, 844)
    try:
        for order in ("o-4503", "oo-4503", "ooo-4503", "oooooo-4503", "ooooooooo-4503"):
            opened(world, console, chrome, order)
            assert chrome.run("""
                const text = document.createTreeWalker(document.querySelector('h1'), 4);
                while (text.nextNode() && !text.currentNode.data.includes('-4503'));
                const range = document.createRange();
                range.selectNodeContents(text.currentNode);
                return range.getClientRects().length;
            """) == 1, order
            chrome.look()
    finally:
        chrome.driver.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


def test_ticks_are_taken_back_on_a_narrow_screen(world, console, chrome):
    for n in range(28):
        world.lose("narrow%02d" % n)
    chrome.run("sessionStorage.setItem('waiting', 'order=narrow')")
    chrome.size(390, 844)
    try:
        chrome.go("waiting?sort=what")
        chrome.shows("1\u201325 of 28")
        chrome.click("[data-key='tick-%s']" % waiting(console, "narrow00")["name"])
        chrome.shows("1 ticked")
        for scroll in ("0", "400", "document.body.scrollHeight"):
            chrome.run("scrollTo(0, %s)" % scroll)
            assert is_on_the_screen(chrome, "#untick")
            assert is_on_the_screen(chrome, "#many")
            assert chrome.find(".bar.sticks").size["height"] <= 60
        # A row that is reached by the keyboard is not behind the bar.
        for order in ("narrow24", "narrow12"):
            link = "[data-key='%s']" % waiting(console, order)["name"]
            chrome.run("scrollTo(0, 0);"
                       "document.querySelector(arguments[0]).focus()", link)
            assert is_on_the_screen(chrome, link), order
        chrome.look()
        chrome.click("#untick")
        eventually(lambda: "ticked" not in chrome.text())
    finally:
        chrome.run("sessionStorage.clear()")
        chrome.driver.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


# ---- A saga ---------------------------------------------------------------------------------


def test_a_saga_is_decided_as_a_record_is(chrome, shop):
    shop.saga("trip-4711", STUCK, [(2, 0), (5, DEAD), (0, 0)], "step 2: refused")
    chrome.go("message/shop/saga/trip-4711")
    chrome.shows("What is to become of it?")
    chrome.click("#verb-retry")
    chrome.shows("Step 2 is called again. Step 1 is cancelled after it.")
    chrome.click("#verb-resolve")
    chrome.type("#step", "2")
    chrome.shows("Step 2 counts as done, and is not called again. Step 1 is cancelled "
                 "after it.")
    chrome.type("#why", "cancelled by hand, ticket 12")
    chrome.click("#decide")  # the browser asks for what is missing
    chrome.type("#digits", "trip-471")
    chrome.run("document.getElementById('digits').value = 'trip-999'")
    chrome.click("#decide")
    chrome.shows("This saga begins with trip-471.")
    state = "SELECT state FROM once_saga WHERE gid='trip-4711'"
    assert shop.sql(state) == [(STUCK,)]
    chrome.look()
    chrome.type("#digits", "trip-471")
    chrome.click("#decide")
    chrome.shows("Decided: what failed in one step was done by hand.")
    assert shop.sql(state) != [(STUCK,)]


def test_what_an_abort_does_to_each_step_is_said(chrome, shop):
    shop.saga("trip-4712", GOING, [(2, 0), (2, 0), (0, 0)])
    chrome.go("message/shop/saga/trip-4712")
    chrome.click("#verb-abort")
    chrome.shows("Steps 1, 2 are cancelled, the last first. Steps that were not "
                 "begun are never tried.")
