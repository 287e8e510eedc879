# SPDX-License-Identifier: Apache-2.0
"""The pages in a real Firefox: each is whole, and one order is decided."""

import pytest

import firefox
from browser import LOOK
from console import eventually, gateway, waiting
from shop import Shop

LOST = "order-2026-1001"


@pytest.fixture(scope="module")
def fox(world, tmp_path_factory):
    folder = tmp_path_factory.mktemp("firefox")
    shop = Shop(folder)
    shop.emit()
    world.lose(LOST)
    other = world.console(
        "--decide", "--database", "shop=" + shop.url, "--watch",
        "http://127.0.0.1:%d/once_status" % world.site.gateway.port, unix=False)
    other.log_in()
    it = firefox.start(folder / "profile", gateway.free_port())
    # The token is good once: the browser is given the session that it opened.
    it.open("http://127.0.0.1:%s/icon.svg" % other.port)
    it.run("localStorage.setItem('session', arguments[0])", other.session)
    it.console = other
    yield it
    it.quit()


def go(fox, place):
    base = "http://127.0.0.1:%s/" % fox.console.port
    if not fox.run("return location.href").startswith(base + "#"):
        fox.open(base + "#/")
    fox.run("location.hash = arguments[0]", "#/" + place)
    eventually(lambda: fox.run(
        "return document.getElementById('main').dataset.place === "
        "location.hash"), 30)


def text(fox):
    return fox.run("return document.getElementById('main').innerText")


def shows(fox, words):
    eventually(lambda: words in text(fox), 30)


@pytest.mark.parametrize("width", [500, 1440])
def test_every_page_is_whole(world, fox, width):
    r = waiting(fox.console, LOST)
    fox.size(width, 900)
    for place, words in (
            ("", "need your decision"), ("waiting", LOST), ("live", "In flight"),
            ("find", "What do you have?"), ("outbox", "bills"),
            ("parked", "No message"), ("sagas", "There is no saga"),
            ("message/shop/outbox/1", "What is to become of it?"),
            ("metrics", "Is any outcome unknown?"), ("audit", "Audit log"),
            ("record/main/" + r["name"], "What became of it?"),
            ("batch", "What became of it?"), ("store/main", "Durable")):
        go(fox, place)
        shows(fox, words)
        assert fox.run(LOOK) == [], place
        assert fox.run("return document.documentElement.scrollWidth <= "
                       "innerWidth"), place


def test_an_order_is_decided(world, fox):
    case = world.lose("fox")
    r = waiting(fox.console, "fox")
    go(fox, "waiting")
    shows(fox, "order=fox")
    fox.click("a[data-key='%s']" % r["name"])
    shows(fox, "What became of it?")
    fox.click("label[for=action-failure]")
    fox.type("#status", "402")
    fox.type("#answer", "declined")
    fox.click("#check")
    shows(fox, "Is that what you mean?")
    for doubt in ("doubt-0", "doubt-1"):  # it is no JSON, and names no order
        fox.click("label[for=%s]" % doubt)
    fox.type("#why", "the ledger has no such charge")
    fox.type("#digits", r["name"][:8])
    fox.click("#decide")
    shows(fox, "Decided: failure.")
    again = world.repeat(case, "fox")
    assert (again.status, again.body) == (402, b"declined")
