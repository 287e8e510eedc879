# SPDX-License-Identifier: Apache-2.0
"""
The pages in a real Chromium, on a real gateway and its store: an operator's
story by clicking and by the keyboard alone, in dark and in light, and what pages
from elsewhere cannot do. A screenshot of each screen is kept.
"""

import http.server
import json
import signal
import subprocess
import threading
import uuid

import pytest

pytest.importorskip("selenium", reason="no selenium: apt-get install "
                    "python3-selenium")

import browser  # noqa: E402  pylint: disable=wrong-import-position
from selenium.webdriver.common.keys import Keys  # noqa: E402  pylint: disable=wrong-import-position

from console import BUILD, ONCE, Answer, MARK, eventually, opened, waiting  # noqa: E402  pylint: disable=wrong-import-position
from conftest import me, operators  # noqa: E402  pylint: disable=wrong-import-position
import servers  # noqa: E402  pylint: disable=wrong-import-position
from shop import Shop  # noqa: E402  pylint: disable=wrong-import-position


# What the pages send with each request.
OWN = "{headers: {'Once-Session': localStorage.getItem('session')}}"
ADMITTED = "return (await fetch('/api/v1/session', %s)).status" % OWN


@pytest.fixture(scope="module")
def seen(world, console):
    """The console that the browser has open. Both write one audit log."""
    return world.console(
        "--decide", "--audit", str(console.audit_file), "--link",
        "https://shop.example/orders/{order}?from=once", "--watch",
        "http://127.0.0.1:%d/once_status" % world.site.gateway.port,
        unix=False, audit=False)


@pytest.fixture(scope="module")
def chrome(seen):
    it = browser.start("--host-resolver-rules=MAP evil.test 127.0.0.1")
    it.open(seen.url)
    it.shows("Overview")
    yield it
    it.quit()


@pytest.fixture(autouse=True)
def no_complaints(chrome, request):
    """A page that is broken, or that the policy stops, says so in the log."""
    chrome.complaints()
    yield
    if "complains" not in request.keywords:
        assert chrome.complaints() == []


# ---- The story: the pager says that an outcome is unknown -----------------------


def test_the_token_leaves_the_address(chrome, seen):
    assert seen.token not in chrome.run("return location.href")
    assert chrome.run("return document.cookie") == ""
    kept = chrome.run("return Object.values(localStorage).concat("
                      "Object.values(sessionStorage))")
    assert not [value for value in kept if seen.token in value]


def test_an_operator_decides_by_clicking(world, console, chrome):
    case = world.lose(4711)
    chrome.go("")
    chrome.shows("1 request needs your decision")
    chrome.keep("overview")
    chrome.link("Decide it")
    chrome.shows("order=4711")
    chrome.keep("waiting")
    r = waiting(console, 4711)
    chrome.click("a[data-key='%s']" % r["name"])
    chrome.shows("order=4711")
    chrome.shows("It is unknown whether it took effect")
    chrome.click("#action-success")
    chrome.type("#status", "201")
    chrome.type("#answer", '{"charge": "ch_1"}')
    chrome.keep("record")
    chrome.click("#check")
    chrome.shows("Is that what you mean?")
    reply = chrome.find("#reply").text
    assert reply == ("HTTP/1.1 201\nContent-Type: application/json\n"
                     'Idempotent-Replayed: true\n\n{"charge": "ch_1"}')
    chrome.shows("The body does not name 4711.")
    chrome.click("#doubt-0")
    chrome.type("#why", "ledger has it, ticket 12")
    chrome.type("#digits", r["name"][:8])
    chrome.keep("decision")
    chrome.click("#decide")
    chrome.shows("Decided: success. Repeats get it from now on.")
    chrome.shows("completed, success")
    chrome.keep("decided")
    again = world.repeat(case, 4711)
    assert again.status == 201 and again.body == b'{"charge": "ch_1"}'
    assert again.replayed and case.executions == 1
    chrome.go("audit")
    chrome.shows("ledger has it, ticket 12")
    chrome.keep("audit")


def test_an_operator_decides_by_the_keyboard_alone(world, console, chrome):
    case = world.lose("keys")
    r = waiting(console, "keys")
    chrome.open(chrome.run("return location.origin") + "/#/audit")
    chrome.shows("Audit")
    chrome.tab_to("nav-waiting")
    chrome.key(Keys.ENTER)
    chrome.shows("order=keys")
    chrome.tab_to(r["name"])
    chrome.key(Keys.ENTER)
    chrome.shows("What became of it?")
    chrome.tab_to("action-success")
    chrome.key(Keys.ARROW_DOWN)  # "it did not take effect"
    assert chrome.focus()[1] == "action-failure"
    chrome.tab_to("status")
    chrome.key(Keys.ARROW_UP, Keys.HOME, Keys.DELETE * 3, "402")
    chrome.tab_to("answer")
    chrome.key("declined")
    chrome.tab_to("check")
    chrome.key(Keys.ENTER)
    chrome.shows("Is that what you mean?")
    assert chrome.focus()[1] == "doubt-0"  # it is no JSON, and names no order
    chrome.key(Keys.SPACE)
    chrome.tab_to("doubt-1")
    chrome.key(Keys.SPACE)
    chrome.tab_to("why")
    chrome.key("the service has no such charge")
    chrome.tab_to("digits")
    chrome.key(r["name"][:8], Keys.ENTER)
    chrome.shows("Decided: failure.")
    assert chrome.focus()[1] == "decided"  # and is read out
    said = chrome.run("return document.getElementById('said').textContent")
    assert said.startswith("Decided: failure.")
    again = world.repeat(case, "keys")
    assert again.status == 402 and again.body == b"declined"


SLOW = r"""
window.shown = [];
new MutationObserver(() => shown.push(document.body.textContent)).observe(
    document.body, {childList: true, subtree: true});
const quick = window.fetch;
let looked = null;
window.fetch = async (path, options) => {
    const answer = await quick(path, options);
    const post = options && options.method === 'POST';
    if (post && path.endsWith('/decision') && !options.body.includes('"dry":true'))
        await new Promise((seen) => { looked = seen; });
    else if (looked && !post && path.endsWith(arguments[0]))
        setTimeout(looked, 500);  // a page that draws now has the time for it
    return answer;
};
"""


def test_ones_own_decision_is_nobody_elses(world, console, chrome):
    """The page looks again by itself while the answer is on its way."""
    world.lose("own")
    r = waiting(console, "own")
    chrome.open(chrome.run("return location.origin") + "/")
    chrome.go("record/main/" + r["name"])
    chrome.run(SLOW.replace("arguments[0]", "'%s'" % r["name"]))
    chrome.click("#action-applied")
    chrome.click("#check")
    chrome.type("#why", "seen at the bank")
    chrome.type("#digits", r["name"][:8])
    chrome.click("#decide")
    chrome.shows("Decided: success.")
    assert chrome.focus()[1] == "decided"
    assert not chrome.run(
        "return shown.filter((t) => t.includes('Something has happened')).length")
    chrome.driver.refresh()
    chrome.shows("What happened")


def test_the_first_link_leads_to_the_content(chrome):
    chrome.open(chrome.run("return location.origin") + "/")
    chrome.shows("Overview")
    chrome.key(Keys.TAB)
    assert chrome.focus()[2] == "Skip to the content"


@pytest.mark.complains
def test_nothing_is_chosen_beforehand(world, console, chrome):
    """Who is in a hurry would take what stands there."""
    r = opened(world, console, chrome, "hurry")
    chrome.click("#check")
    chrome.shows("Choose first what became of it.")
    chrome.click("#action-success")
    assert chrome.find("#status").get_attribute("value") == ""
    chrome.click("#check")
    chrome.shows("status")
    assert not chrome.driver.find_elements("id", "decide")
    assert waiting(console, "hurry") == r


@pytest.mark.complains
def test_wrong_digits_and_no_reason_do_not_leave_the_page(world, console,
                                                          chrome):
    r = opened(world, console, chrome, "digits")
    chrome.click("#action-applied")
    chrome.click("#check")
    chrome.click("#decide")  # the browser asks for what is missing
    chrome.type("#why", "w")
    chrome.type("#digits", "00000000")
    chrome.click("#decide")
    assert waiting(console, "digits") == r
    # What a page leaves out, the server asks for.
    chrome.run("document.querySelectorAll('#digits, #why').forEach((e) => "
               "{ e.removeAttribute('pattern'); e.removeAttribute("
               "'required'); })")
    chrome.click("#decide")
    chrome.shows("first eight digits")
    assert waiting(console, "digits") == r


def test_an_acknowledgement(world, console, chrome):
    r = opened(world, console, chrome, "looking")
    chrome.click("#action-acknowledge")
    chrome.type("#why", "I ask the bank")
    chrome.click("#decide")
    chrome.shows("Noted.")
    chrome.shows("I ask the bank")
    assert waiting(console, "looking") == r


@pytest.mark.complains
def test_what_happened_since_is_shown_and_nothing_is_decided(world, console,
                                                             chrome):
    r = opened(world, console, chrome, "since")
    chrome.click("#action-applied")
    chrome.click("#check")
    chrome.shows("Is that what you mean?")
    # A page that is not seen does not look again by itself.
    chrome.run("Object.defineProperty(document, 'hidden', {"
               "value: true, configurable: true})")
    chrome.type("#why", "too late")
    chrome.type("#digits", r["name"][:8])
    assert console.decide(r, "failure").status == 200
    chrome.click("#decide")
    chrome.shows("answered: failure")
    chrome.run("delete document.hidden")
    assert console.record(r["name"])["kind"] == "failure"
    assert not [e for e in console.audit() if e.get("why") == "too late"]


def test_a_screen_looks_again_by_itself(world, console, chrome):
    chrome.go("waiting")
    chrome.shows("Waiting")
    world.lose("later")
    chrome.shows("order=later")
    r = waiting(console, "later")
    chrome.go("record/main/" + r["name"])
    chrome.shows("What became of it?")
    assert console.decide(r, "applied").status == 200
    chrome.shows("Something has happened to this record")
    chrome.shows("response-unavailable")


def test_looking_again_keeps_what_is_selected_and_focused(world, console, chrome):
    r = opened(world, console, chrome, "copied")
    chrome.run("""
        const code = [...document.querySelectorAll('dd code')].find(
            (c) => c.textContent === arguments[0]);
        getSelection().selectAllChildren(code);
        document.getElementById('action-applied').focus();
        window.head = document.querySelector('.says .mark').textContent;
    """, r["name"])
    eventually(lambda: chrome.run(  # the age was drawn again
        "return document.querySelector('.says .mark').textContent !== window.head"))
    assert chrome.run("return getSelection().toString()") == r["name"]
    assert chrome.focus()[1] == "action-applied"


def test_what_was_typed_is_there_after_a_reload(world, console, chrome):
    r = opened(world, console, chrome, "typed")
    chrome.click("#action-failure")
    chrome.type("#status", "402")
    chrome.type("#headers", "X-Why: no")
    chrome.type("#answer", "declined")
    chrome.driver.refresh()
    chrome.shows("What became of it?")
    assert chrome.find("#action-failure").is_selected()
    assert [chrome.find(f).get_attribute("value") for f in (
        "#status", "#headers", "#answer")] == ["402", "X-Why: no", "declined"]
    chrome.click("#check")
    assert "declined" in chrome.find("#reply").text
    # It is of this attempt; of another nothing is chosen beforehand.
    other = opened(world, console, chrome, "typed-2")
    assert not chrome.driver.find_elements("css selector", ":checked[type=radio]")
    del other
    chrome.go("record/main/" + r["name"])
    chrome.click("#check")
    chrome.click("#doubt-0")
    chrome.type("#why", "w")
    chrome.type("#digits", r["name"][:8])
    chrome.click("#decide")
    chrome.shows("Decided: failure.")
    assert "declined" not in chrome.run("return JSON.stringify(sessionStorage)")


def test_keys_find_and_help(world, console, chrome):
    world.lose("by-key")
    r = waiting(console, "by-key")
    chrome.go("audit")
    chrome.key("?")
    assert "find an order" in chrome.find("#help").text
    chrome.look()
    chrome.key(Keys.ESCAPE)
    eventually(lambda: not chrome.run("return document.getElementById('help').open"))
    chrome.key("/")
    assert chrome.focus()[1] == "quick-find"
    chrome.key("order=by-k", Keys.ENTER)
    chrome.shows("order=by-key")
    assert "by-k" not in chrome.run("return location.href")
    chrome.click("#main h1")
    chrome.key("/", r["name"][:9], Keys.ENTER)
    chrome.shows("order=by-key")
    # In a field they are what they are.
    chrome.click("#q")
    chrome.key("/?")
    assert chrome.find("#q").get_attribute("value").endswith("/?")
    chrome.click("#everything")
    chrome.shows("Looked at")


def test_waiting_is_searched_sorted_and_turned(world, console, chrome):
    for n in range(28):
        world.lose("turn%02d" % n)
    chrome.go("waiting")
    chrome.shows("order=turn00")
    total = console.get("stores/main")["counts"]["indeterminate"]
    chrome.shows("1\u201325 of %d" % total)
    chrome.click("#next")
    chrome.shows("26\u2013")
    chrome.click("#previous")
    chrome.shows("1\u201325 of")
    chrome.go("waiting?sort=new")
    first = chrome.find("tbody tr").text
    assert "order=turn27" in first
    chrome.type("#text", "TURN1")
    chrome.shows("1\u201310 of 10")
    chrome.driver.refresh()  # and nothing is lost
    chrome.shows("1\u201310 of 10")
    assert chrome.find("#text").get_attribute("value") == "TURN1"
    assert "TURN1" not in chrome.run("return location.href")
    chrome.type("#text", "no such thing")
    chrome.shows("Nothing fits this filter. %d requests wait" % total)
    chrome.run("sessionStorage.removeItem('waiting')")


def test_ticks_survive_a_reload_and_are_what_is_decided(world, console, chrome):
    for n in range(3):
        world.lose("tick%d" % n)
    names = [waiting(console, "tick%d" % n)["name"] for n in (0, 2)]
    chrome.go("waiting?sort=what")
    chrome.run("sessionStorage.setItem('waiting', 'order=tick')")
    chrome.driver.refresh()
    chrome.shows("1\u20133 of 3")
    for name in names:
        chrome.click("[data-key='tick-%s']" % name)
    chrome.shows("2 ticked")
    chrome.driver.refresh()
    chrome.shows("2 ticked")
    chrome.click("#many")
    chrome.shows("2 requests that wait")
    chrome.click("#action-applied")  # one answer for all: nothing to warn of
    chrome.click("#check")
    chrome.shows("2 requests of 2 can be decided")
    assert not chrome.driver.find_elements("id", "for-all")
    chrome.type("#why", "seen at the bank")
    chrome.click("#looked-up")
    chrome.type("#digits", "2")
    chrome.click("#decide")
    chrome.shows("2 are decided.")
    assert {console.record(n)["state"] for n in names} == {"completed"}
    assert waiting(console, "tick1")
    chrome.run("sessionStorage.clear()")
    chrome.go("waiting")
    chrome.shows("order=")
    assert "ticked" not in chrome.text()


def test_a_link_leads_to_the_order_in_the_service(world, console, chrome):
    opened(world, console, chrome, "M%C3%BCller%2F..%2F%3Fx%20%26")
    link = chrome.find("#service")
    assert link.get_attribute("href") == \
        "https://shop.example/orders/M%C3%BCller%2F..%2F%3Fx%20%26?from=once"
    assert link.get_attribute("rel") == "noopener noreferrer"


@pytest.mark.parametrize("order", [".", "..", "%2E%2E"])
def test_no_link_leads_out_of_its_path(world, console, chrome, order):
    opened(world, console, chrome, order)
    chrome.shows("What became of it?")
    assert not chrome.driver.find_elements("id", "service")


@pytest.mark.parametrize("sent, shown", [
    ("%D0%97%D0%B0%D0%BA%D0%B0%D0%B7", "order=\u0417\u0430\u043a\u0430\u0437"),
    ("100%25", "order=100%"), ("%FF%FE", "order=%FF%FE"), ("50%", "order=50%"),
    # What turns around or hides what stands beside it is not obeyed.
    ("%E2%80%AEoga", "order=%E2%80%AEoga"), ("a%00b", "order=a%00b")])
def test_labels_of_any_script(world, console, chrome, sent, shown):
    world.lose(sent)
    r = [x for x in console.records(what="waiting", limit=200)
         if (x["label"] or "").endswith("order=" + sent)][0]
    chrome.go("record/main/" + r["name"])
    assert chrome.find("h1").text.endswith(shown)
    assert r["label"] in chrome.find("#main").text or "%" not in sent


def test_times_are_the_readers_with_utc_beside(world, console, chrome):
    chrome.driver.execute_cdp_cmd("Emulation.setTimezoneOverride",
                                  {"timezoneId": "Asia/Kolkata"})
    r = opened(world, console, chrome, "clock")
    utc = console.record(r["name"])["granted"]
    hour, minute = int(utc[11:13]), int(utc[14:16])
    there = (hour * 60 + minute + 330) % 1440
    chrome.shows("%s UTC" % utc[:19].replace("T", " "))
    chrome.shows("%d:%02d:%s" % ((there // 60 - 1) % 12 + 1, there % 60, utc[17:19]))
    chrome.driver.execute_cdp_cmd("Emulation.setTimezoneOverride",
                                  {"timezoneId": "UTC"})


def test_the_last_hour_is_drawn(world, console, seen, chrome):
    case = world.site.case("/pay/", Answer(200, b"ok"), Answer(200, b"ok"))
    for _ in range(3):
        case.post(query="order=drawn", headers=[("X-Tenant", "t")])
    replayed = 'once_requests_total{store="main",route="-",status="replayed"}'
    numbers = eventually(lambda: chrome.fetch(
        "return (await (await fetch('/api/v1/metrics', %s)).json()).series[a[0]]" % OWN,
        replayed))
    assert len(numbers) == 60 and sum(numbers) >= 2
    chrome.go("")
    card = chrome.find("[data-key='card-Replayed, not run twice']")
    eventually(lambda: int(card.find_element("css selector", ".value").text) >= 2)
    assert card.find_elements("css selector", "polyline")
    chrome.shows("gateway, Once")
    chrome.go("metrics")
    chrome.shows("Requests by what was told")
    chrome.shows("replayed")
    chrome.shows("Before the service: claim")
    chrome.keep("metrics")
    del console, seen


# ---- The other screens ------------------------------------------------------------


def test_find_by_clicking(world, console, chrome):
    case = world.lose("lookup")
    r = waiting(console, "lookup")
    chrome.go("find")
    chrome.type("#q", r["name"][:10])
    chrome.click("#search")
    chrome.shows("order=lookup")
    chrome.type("#q", "LOOKUP"[::-1])
    chrome.click("#search")
    chrome.shows("Completed records were not searched")
    chrome.click("#everything")
    chrome.shows("There is no such record")
    chrome.type("#q", "order=look")
    chrome.click("#search")
    chrome.shows("order=lookup")
    chrome.click("#by-request")
    for name, value in (("scope", MARK + "tenant"), ("realm", r["group"]),
                        ("key", case.key)):
        chrome.type("#" + name, value)
    chrome.click("#search")
    chrome.shows("order=lookup")
    chrome.keep("find")
    assert MARK not in chrome.run("return location.href")
    chrome.type("#key", "another")
    chrome.click("#search")
    chrome.shows("There is no such record")


def test_a_batch_by_clicking(world, console, chrome):
    cases = [world.lose("many%d" % i) for i in range(12)]
    others = [r for r in console.records(what="waiting", limit=200)
              if "order=many" not in (r["label"] or "")]
    for r in others:
        if r["label"]:
            console.decide(r, "applied")
    chrome.go("waiting")
    chrome.shows("order=many11")
    chrome.click("#tick-all")
    chrome.shows("12 ticked")
    chrome.click("#many")
    chrome.shows("12 requests that wait")
    chrome.click("#action-failure")
    chrome.type("#status", "503")
    chrome.type("#answer", "the upstream was down")
    chrome.click("#check")
    chrome.shows("12 requests of 12 can be decided")
    chrome.shows("they are about 12 different orders")
    for tick in ("#for-all", "#doubt-0", "#doubt-1", "#looked-up"):  # 503, and no JSON
        chrome.click(tick)
    # One is decided by somebody else meanwhile.
    console.decide(waiting(console, "many5"), "applied")
    chrome.type("#why", "its ledger says so")
    chrome.type("#digits", "12")
    chrome.keep("batch")
    chrome.click("#decide")
    chrome.shows("11 are decided.")
    chrome.shows("It does not wait for a decision any more")
    chrome.keep("batch-decided")
    for i in (0, 11):
        again = world.repeat(cases[i], "many%d" % i)
        assert again.status == 503 and again.body == b"the upstream was down"
    assert world.repeat(cases[5], "many5").code() == "response-unavailable"


def test_the_audit_log_is_filtered_by_typing(world, console, chrome):
    for order, why in (("filter-a", "ticket 31"), ("filter-b", "ticket 32")):
        world.lose(order)
        r = waiting(console, order)
        assert console.decide(r, "applied", why=why).status == 200
    chrome.go("audit")
    chrome.type("#name", r["name"][:12])
    chrome.key(Keys.ENTER)
    chrome.shows("ticket 32")
    assert "ticket 31" not in chrome.text()
    chrome.type("#who-did", "nobody-here")
    chrome.key(Keys.ENTER)
    chrome.shows("There are no more lines that fit.")
    chrome.link("Show all")
    chrome.shows("ticket 31")


def test_a_body_by_clicking(world, console, chrome):
    case = world.site.case("/pay/", Answer(200, b"<b>the answer</b>\x00"))
    case.post(query="order=body", headers=[("X-Tenant", "t")])
    name = [r["name"] for r in console.records(what="all", limit=200)
            if (r["label"] or "").endswith("order=body")][0]
    chrome.go("record/main/" + name)
    chrome.shows("the stored response: 200")
    chrome.type("#body-why", "the customer asks")
    chrome.click("#show-body")
    assert chrome.find("#body").text.startswith("000000  3c 62 3e 74 68 65")
    chrome.keep("body")


def test_what_is_in_flight(world, chrome):
    name = "ab" * 32
    world.seed("dispatched", name, "3600000", "0")
    chrome.go("live")
    chrome.shows("left")
    chrome.keep("live")
    chrome.go("store/main")
    chrome.shows("an acknowledged record survives")
    chrome.keep("store")


def test_what_a_label_holds_is_text(world, console, chrome):
    order = "<img/src=x/onerror=alert(1)>"
    world.lose(order)
    r = [x for x in console.records(what="waiting", limit=200)
         if "onerror" in (x["label"] or "")][0]
    for place in ("waiting", "record/main/" + r["name"], "batch"):
        chrome.go(place)
        chrome.shows(order)
        assert chrome.run(
            "return document.querySelectorAll('main img').length") == 0


# ---- What it says is true ----------------------------------------------------------


def test_a_filter_that_nothing_fits_is_not_nothing_waits(world, console, chrome):
    world.lose("filtered")
    for place in ("waiting?realm=nowhere", "waiting?older=86400",
                  "waiting?reason=gap", "batch?realm=nowhere"):
        chrome.go(place)
        chrome.shows("fits this filter")
        assert "\u2713" not in chrome.find("main").text, place
    chrome.go("live?realm=nowhere")
    chrome.shows("fits this filter")
    chrome.go("audit?action=none")
    chrome.shows("There are no more lines that fit.")
    assert waiting(console, "filtered")


def test_a_dry_run_has_done_nothing(world, console, chrome):
    world.lose("dry")
    r = waiting(console, "dry")
    chrome.go("batch")
    chrome.shows("order=dry")
    chrome.click("#action-applied")
    chrome.click("#check")
    chrome.shows("nothing has been changed")
    assert "\u25cb would be decided" in chrome.text()
    assert "\u2713" not in chrome.find("main").text
    assert waiting(console, "dry") == r


@pytest.mark.complains
def test_a_store_that_does_not_answer_may_have_what_waits(world, chrome, seen):
    """The overview said that nothing waits."""
    other = world.console(unix=False, stores={"main": "redis://127.0.0.1:1/0"})
    chrome.open(other.url)
    chrome.shows("What waits is not known of: main.")
    assert "Nothing waits" not in chrome.text()
    chrome.open("http://127.0.0.1:%s/" % seen.port)


@pytest.mark.complains
def test_a_dead_console_is_seen_on_each_screen(world, console, chrome, seen):
    world.lose("dead")
    r = waiting(console, "dead")
    for place, text in (("waiting", "order=dead"), ("audit", "Audit"),
                        ("record/main/" + r["name"], "order=dead")):
        other = world.console("--decide", "--audit", str(console.audit_file),
                              unix=False, audit=False)
        chrome.open(other.url)
        chrome.shows("Overview")
        chrome.go(place)
        chrome.shows(text)
        other.process.send_signal(signal.SIGSTOP if place == "waiting"
                                  else signal.SIGTERM)
        eventually(lambda: "The console does not answer. What stands below is"
                   in chrome.find("#away").text)
        chrome.keep("dead-" + place.split("/")[0])
        if place == "waiting":  # and it comes back
            other.process.send_signal(signal.SIGCONT)
            eventually(lambda: not chrome.driver.find_elements(
                "css selector", "#away *"))
    chrome.open("http://127.0.0.1:%s/" % seen.port)


# ---- Dark, light, for everybody ----------------------------------------------------


LIGHT = "rgb(246, 247, 249)"


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_screen_in_both_schemes(world, console, chrome, scheme):
    world.lose("scheme-" + scheme)
    r = waiting(console, "scheme-" + scheme)
    world.lose("done-" + scheme)
    done = waiting(console, "done-" + scheme)
    assert console.decide(done, "success").status == 200
    chrome.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [
        {"name": "prefers-color-scheme", "value": scheme}]})
    paper = set()
    for name, place, text in (
            ("overview", "", "your decision"), ("waiting", "waiting", "order="),
            ("live", "live", "Filter"),
            ("find", "find?by=hash&hash=" + r["name"], "order="),
            ("audit", "audit", "Number"), ("store", "store/main", "Durable"),
            ("record", "record/main/" + r["name"], "What became of it?"),
            ("record-done", "record/main/" + done["name"], "Decided"),
            ("batch", "batch", "What became of it?"),
            ("trouble", "nothing", "Trouble")):
        chrome.go(place)
        chrome.shows(text)
        chrome.look()
        if name in ("record", "batch"):
            chrome.click("#action-success")
            chrome.type("#status", "200")
            chrome.look()
            chrome.click("#check")
            chrome.find("#why")
            chrome.look()
        chrome.keep("%s-%s" % (name, scheme))
        paper.add(chrome.run(
            "return getComputedStyle(document.body).backgroundColor"))
    assert len(paper) == 1
    assert (paper == {LIGHT}) is (scheme == "light")


def test_the_switch_of_colours_is_kept(chrome):
    select = chrome.find("#theme")
    paper = {}
    for theme in ("dark", "light"):
        select = chrome.find("#theme")
        select.send_keys(theme)
        chrome.driver.refresh()
        chrome.shows("")
        paper[theme] = chrome.run(
            "return getComputedStyle(document.body).backgroundColor")
        assert chrome.run("return document.getElementById('theme').value") == \
            theme
    assert paper["dark"] != paper["light"] == LIGHT
    chrome.run("localStorage.removeItem('theme')")
    chrome.driver.refresh()


# ---- What is not allowed -------------------------------------------------------------


def request_of(r, key):
    return json.dumps({"action": "applied", "fence": r["fence"], "why": "w",
                       "confirm": r["name"][:8]}), key


SEND = """
    const [path, body, key, extra] = a;
    const answer = await fetch(path, {method: 'POST', body, credentials:
        'include', headers: {'Content-Type': 'application/json',
        'Once-Console': '1', 'Idempotency-Key': key,
        'Once-Session': localStorage.getItem('session') || '', ...extra}});
    return [answer.status, (await answer.json()).code];
"""


@pytest.mark.complains
def test_the_same_decision_twice_by_a_page(world, console, chrome, seen):
    world.lose("page-twice")
    r = waiting(console, "page-twice")
    body, key = request_of(r, uuid.uuid4().hex)
    path = "/api/v1/stores/main/records/%s/decision" % r["name"]
    for _ in range(2):
        assert chrome.fetch(SEND, path, body, key, {})[0] == 200
    steps = [e["step"] for e in console.audit() if e.get("name") == r["name"]]
    assert steps == ["intent", "done"]
    # An old fence, and no header of ours.
    old = body.replace('"%s"' % r["fence"], '"999"')
    assert chrome.fetch(SEND, path, old, uuid.uuid4().hex, {}) == [409, "fence"]
    assert chrome.fetch(SEND, path, body, key, {"Once-Console": "0"}) == [
        403, "forbidden"]


@pytest.fixture
def elsewhere():
    """A page of somebody else, on another port of this host. `heads` are those of
    the requests that it gets."""
    heads = []

    class Page(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            heads.append(str(self.headers))
            self.send_response(200)
            self.send_header("Content-Type", "text/html")
            self.end_headers()
            self.wfile.write(b"<!DOCTYPE html><title>evil</title><main>evil"
                             b"</main>")

        def log_message(self, *_):
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Page)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    server.heads = heads
    server.url = "http://127.0.0.1:%d/" % server.server_port
    yield server
    server.shutdown()
    server.server_close()


def test_another_port_of_the_host_gets_nothing_of_the_session(world, chrome, elsewhere):
    """The session was a cookie, which a browser sends to every port of a host: to
    another user's server, who could decide with it."""
    other = world.console("--decide", unix=False)
    chrome.open(other.url)
    chrome.shows("Overview")
    session = chrome.run("return localStorage.getItem('session')")
    headers = {"Once-Session": session}
    assert other.ask("GET", "session", **headers).status == 200
    chrome.open(elsewhere.url)
    chrome.run("const f = document.createElement('iframe');"
               "f.src = arguments[0] + 'frame'; document.body.append(f)", elsewhere.url)
    eventually(lambda: len(elsewhere.heads) >= 2)
    assert chrome.run("return [document.cookie, localStorage.length]") == ["", 0]
    assert not [head for head in elsewhere.heads if session in head]
    assert not [head for head in elsewhere.heads if "once_console" in head]
    # It is still signed in, also in another tab that a link opens.
    chrome.open("http://127.0.0.1:%s/" % other.port)
    chrome.shows("Overview")
    chrome.run("const a = document.createElement('a'); a.href = '#/audit';"
               "a.target = '_blank'; a.rel = 'noopener'; document.body.append(a);"
               "a.click()")
    first = chrome.driver.current_window_handle
    eventually(lambda: len(chrome.driver.window_handles) == 2)
    chrome.driver.switch_to.window(
        [w for w in chrome.driver.window_handles if w != first][0])
    chrome.shows("Audit")
    chrome.driver.close()
    chrome.driver.switch_to.window(first)


@pytest.mark.complains
def test_a_page_of_others_cannot_decide_nor_look(world, console, chrome, seen,
                                                 elsewhere):
    world.lose("evil")
    r = waiting(console, "evil")
    body, key = request_of(r, uuid.uuid4().hex)
    base = "http://127.0.0.1:%s" % seen.port
    path = base + "/api/v1/stores/main/records/%s/decision" % r["name"]
    chrome.open(elsewhere.url)
    assert str(chrome.fetch(SEND, path, body, key, {})).startswith("failed")
    # What needs no permission is sent, and refused.
    simple = """
        const x = await fetch(a[0], {method: 'POST', mode: 'no-cors', body: a[1],
            credentials: 'include', headers: {'Content-Type': 'text/plain'}});
        return x.status;
    """
    assert str(chrome.fetch(simple, path, body)).startswith("failed")
    look = "const x = await fetch(a[0], {credentials: 'include'});" \
        "return await x.text();"
    assert str(chrome.fetch(look, base + "/api/v1/stores")).startswith("failed")
    chrome.run("""
        const f = document.createElement('form');
        f.method = 'post'; f.action = arguments[0]; f.enctype = 'text/plain';
        const i = document.createElement('input');
        i.name = arguments[1]; f.append(i); document.body.append(f); f.submit();
    """, path, body)
    assert waiting(console, "evil") == r
    # Nor can it be put into a frame, or opened as a window that can be used.
    chrome.open(elsewhere.url)
    chrome.run("const f = document.createElement('iframe'); f.src = arguments[0];"
               "document.body.append(f); window.f = f", base + "/")
    browser.eventually(lambda: chrome.run(
        "try { return window.f.contentDocument === null } catch { return true }"))
    frame = chrome.driver.find_element("tag name", "iframe")
    chrome.driver.switch_to.frame(frame)
    assert "Once" not in chrome.driver.find_element("tag name", "body").text
    chrome.driver.switch_to.default_content()
    assert not [e for e in console.audit() if e.get("name") == r["name"]]
    chrome.open(base + "/")
    chrome.shows("Overview")


@pytest.mark.complains
def test_an_answer_that_was_lost_is_asked_for_again_as_it_was(world, console,
                                                              chrome):
    """What was typed is still there, and the key is the same."""
    r = opened(world, console, chrome, "again")
    chrome.run("""
        const quick = window.fetch;
        window.keys = [];
        window.fetch = async (path, options) => {
            const answer = await quick(path, options);
            if (!path.endsWith('/decision') || options.body.includes('"dry":true'))
                return answer;
            window.keys.push(options.headers['Idempotency-Key']);
            return window.keys.length > 1 ? answer : new Response(JSON.stringify({
                title: 'The store did not answer', code: 'unknown'}),
                {status: 503});
        };
    """)
    chrome.click("#action-applied")
    chrome.click("#check")
    chrome.type("#why", "seen at the bank")
    chrome.type("#digits", r["name"][:8])
    chrome.click("#decide")
    chrome.click("#again")
    chrome.shows("Decided: success.")
    keys = chrome.run("return window.keys")
    assert len(keys) == 2 and keys[0] == keys[1]
    done = [e for e in console.audit() if e.get("name") == r["name"]]
    assert [e["step"] for e in done] == ["intent", "done"]
    assert done[0]["why"] == "seen at the bank"


@pytest.mark.complains
def test_the_address_that_was_printed_opened_twice(chrome, seen):
    """Who has the session is let in; the token is good for nobody else."""
    chrome.open("http://127.0.0.1:%s/#token=%s" % (seen.port, seen.token))
    chrome.driver.refresh()
    chrome.shows("Overview")
    assert seen.token not in chrome.run("return location.href")


@pytest.mark.complains
def test_signing_out_leaves_nothing_on_the_page(world, chrome, seen):
    world.lose("left-behind")
    other = world.console(unix=False)
    chrome.open(other.url)
    chrome.shows("Overview")
    chrome.go("waiting?sort=new")
    chrome.shows("order=left-behind")
    chrome.run("sessionStorage.setItem('draft', 'left')")
    chrome.click("#sign-out")
    assert "You need a new address to come back" in chrome.find("#help").text
    chrome.look()
    assert chrome.fetch(ADMITTED) == 200
    chrome.click("#sign-out-now")
    chrome.shows("You are signed out")
    chrome.shows("once console --store STORE --listen 127.0.0.1:0 --decide")
    assert "left-behind" not in chrome.driver.page_source
    assert chrome.run("return sessionStorage.length") == 0
    chrome.look()
    chrome.keep("signed-out")
    # It does not listen any more.
    chrome.run("document.dispatchEvent(new Event('visibilitychange'));"
               "location.hash = '#/metrics'")
    for _ in range(2):
        assert chrome.fetch(ADMITTED) == 401
    assert chrome.find("h1").text == "You are signed out"
    assert not [x for x in chrome.complaints() if "TypeError" in x]
    chrome.driver.refresh()
    chrome.shows("Not admitted")
    chrome.open("http://127.0.0.1:%s/" % seen.port)
    chrome.shows("Overview")


def test_a_malformed_address_is_no_page(chrome):
    chrome.go("waiting")
    chrome.run("location.hash = '#/%'")
    chrome.shows("There is no such page.")
    chrome.go("waiting")
    chrome.shows("Waiting")


@pytest.mark.complains
def test_a_session_that_has_ended_leaves_no_old_page(world, chrome, seen):
    world.lose("ended")
    other = world.console(unix=False)
    chrome.open(other.url)
    chrome.shows("Overview")
    chrome.go("waiting?sort=new")
    chrome.shows("order=ended")
    chrome.run("localStorage.setItem('session', '0')")
    chrome.shows("Your session has ended")
    assert "order=ended" not in chrome.driver.page_source
    chrome.open("http://127.0.0.1:%s/" % seen.port)
    chrome.shows("Overview")


@pytest.mark.complains
def test_a_name_that_was_turned_to_us(chrome, seen):
    """DNS rebinding: evil.test leads to 127.0.0.1."""
    chrome.open("http://evil.test:%s/" % seen.port)
    text = chrome.driver.find_element("tag name", "body").text
    assert "another name" in text
    chrome.open("http://127.0.0.1:%s/" % seen.port)
    chrome.shows("Overview")


@pytest.mark.complains
def test_who_was_not_admitted(world, chrome):
    other = world.console(unix=False)
    chrome.open("http://127.0.0.1:%s/" % other.port)
    chrome.shows("Not admitted")
    chrome.shows("Start the console again: it prints a new address.")
    chrome.shows("once console --store STORE --listen 127.0.0.1:0 --decide")
    chrome.keep("not-admitted")


@pytest.mark.complains
def test_read_only_pages_have_no_buttons(world, console, chrome, seen):
    world.lose("look-only")
    r = waiting(console, "look-only")
    other = world.console("--operators", operators(
        world, me() + " decide,body\n"), unix=False)
    chrome.open(other.url)
    chrome.shows("Overview")
    chrome.go("waiting?sort=new")
    chrome.shows("order=look-only")
    assert not chrome.driver.find_elements("id", "tick-all")
    chrome.go("record/main/" + r["name"])
    chrome.shows("This console only shows")
    assert "What became of it?" not in chrome.text()
    chrome.keep("read-only")
    body, key = request_of(r, uuid.uuid4().hex)
    path = "/api/v1/stores/main/records/%s/decision" % r["name"]
    assert chrome.fetch(SEND, path, body, key, {}) == [403, "read-only"]
    assert waiting(console, "look-only") == r
    chrome.open("http://127.0.0.1:%s/" % seen.port)


@pytest.mark.complains
def test_one_store_that_is_silent_hides_nothing_of_the_others(world, console,
                                                             chrome, seen):
    world.lose("heard")
    other = world.console("--decide", unix=False, stores={
        "main": world.url, "quiet": "redis://127.0.0.1:1/0"})
    chrome.open(other.url)
    chrome.shows("What waits is not known of: quiet.")
    chrome.shows("your decision")
    chrome.go("waiting?sort=new")
    chrome.shows("What waits is not known of: quiet.")
    chrome.shows("order=heard")
    chrome.look()
    chrome.go("waiting?store=quiet")
    chrome.shows("What waits is not known of: quiet.")
    assert "Nothing waits" not in chrome.text()
    chrome.go("find")
    chrome.type("#q", "order=heard")
    chrome.click("#search")
    chrome.shows("It may be in quiet, which does not answer.")
    chrome.shows("POST /pay/")
    chrome.go("batch?realm=" + waiting(console, "heard")["group"])
    chrome.shows("What waits is not known of: quiet.")
    assert "order=heard" in chrome.driver.page_source
    chrome.open("http://127.0.0.1:%s/" % seen.port)


@pytest.fixture
def quiet(tmp_path):
    """Servers of stores, which have stopped: NAME=URL of each."""
    with servers.World() as it:
        try:
            all_ = [servers.Redis(it, "quiet%d" % n).start() for n in range(4)]
        except servers.Missing as missing:
            pytest.skip(str(missing))
        for server in all_:
            subprocess.run([ONCE, "--store", server.url(), "init"], check=True,
                           stdout=subprocess.DEVNULL)
        yield all_
        for server in all_:
            server.resume()


@pytest.mark.complains
def test_stores_that_are_silent_stop_nothing(world, chrome, seen, quiet):
    """Each takes seconds to be known as silent: they are asked at once."""
    other = world.console("--decide", unix=False, stores={
        "main": world.url, **{s.name: s.url() for s in quiet}})
    for server in quiet:
        server.pause()
    chrome.open(other.url)
    chrome.shows("What waits is not known of: quiet0, quiet1, quiet2, quiet3.")
    assert not chrome.run("return document.getElementById('main').inert")
    chrome.open("http://127.0.0.1:%s/" % seen.port)


@pytest.mark.complains
def test_databases_that_are_silent_stop_nothing(world, tmp_path, chrome, seen):
    shop = Shop(tmp_path)
    shop.emit()
    other = world.console("--database", "shop=" + shop.url, unix=False)
    chrome.open(other.url)
    chrome.shows("your decision")
    asks = chrome.driver.execute_cdp_cmd
    asks("Network.enable", {})
    asks("Network.setBlockedURLs", {"urls": ["*/api/v1/databases"]})
    chrome.shows("The database shop does not answer: it is still being asked")
    assert not chrome.run("return document.getElementById('main').inert")
    asks("Network.setBlockedURLs", {"urls": []})
    eventually(lambda: "does not answer" not in chrome.text())
    chrome.open("http://127.0.0.1:%s/" % seen.port)


BENCH = BUILD / "test" / "bench_operate"


@pytest.mark.skipif(not BENCH.exists(), reason="no bench_operate")
def test_more_wait_than_there_is_room_for(world, tmp_path, chrome, seen):
    url = "journal:%s/many" % tmp_path
    subprocess.run([ONCE, "--store", url, "init"], check=True,
                   stdout=subprocess.DEVNULL)
    subprocess.run([str(BENCH), "fill", "6000", "6000", url], check=True,
                   stdout=subprocess.DEVNULL)
    other = world.console("--decide", unix=False, stores={"many": url})
    chrome.open(other.url)
    chrome.shows("6,000 requests need your decision")
    chrome.go("waiting")
    chrome.shows("The oldest 5,000 of them are listed.")
    chrome.shows("1\u201325 of 5,000")
    last = chrome.fetch("const own = %s;" % OWN + """
        let after = '', some, last;
        do {
            some = await (await fetch('/api/v1/stores/many/records?limit=200' +
                                      after, own)).json();
            after = '&after=' + some.next;
            last = some.records.length ? some.records.pop().name : last;
        } while (some.next);
        return last;
    """)
    assert len(last) == 64, last
    chrome.type("#text", last[:20])
    chrome.shows("None of the 5,000 that were read fits this filter. More wait.")
    chrome.click("#search-all")
    chrome.shows("6,000 of them were looked at.")
    chrome.click("[data-key='tick-%s']" % last)
    chrome.click("#many")
    chrome.shows("1 request that waits")
    chrome.go("waiting")
    chrome.type("#text", "nothing like it")
    chrome.shows("None of the 5,000 that were read")
    chrome.click("#search-all")
    chrome.shows("Nothing fits this filter. 6,000 requests wait")
    chrome.run("sessionStorage.clear()")
    chrome.open("http://127.0.0.1:%s/" % seen.port)
