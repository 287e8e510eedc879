# SPDX-License-Identifier: Apache-2.0
"""
Every page on every width, light and dark, by the rules for everybody: those of
browser.py, and axe-core's where npm can fetch it. And the twelve pictures of
docs/console, which are written there with

    ONCE_CONSOLE_PICTURES=docs/console
"""

import os
import pathlib
import shutil
import signal
import struct
import subprocess
import tarfile
import urllib.parse
import zlib

import pytest

pytest.importorskip("selenium", reason="no selenium: apt-get install "
                    "python3-selenium")

import browser  # noqa: E402  pylint: disable=wrong-import-position
from conftest import me  # noqa: E402  pylint: disable=wrong-import-position
from console import MARK, Answer, eventually, waiting  # noqa: E402  pylint: disable=wrong-import-position
from shop import DEAD, GOING, INDETERMINATE, READY, STUCK, WAITING, Shop  # noqa: E402  pylint: disable=wrong-import-position

PICTURES = os.environ.get("ONCE_CONSOLE_PICTURES")
AXE = "axe-core@4.14.1"
WIDTHS = {390: 844, 1024: 900, 1440: 900, 2560: 1300}

# Labels as services have them: long, with other scripts, from right to left.
ORDERS = ["order-2026-1001", "order-2026-1002", "Müller & Söhne 17",
          "заказ-4711", "طلب-88", "παραγγελία 9", "order-2026-1003-" + "7" * 60]


def fill(world, shop):
    for n in range(24):
        prefix = "/take/" if n % 4 == 0 else "/pay/"
        case = world.site.case(prefix, Answer(200, b"ok"))
        for _ in range(1 + n % 3):
            case.post(query="order=%d" % n, headers=[("X-Tenant", "t")])
    case.post(query="order=another", headers=[("X-Tenant", "t")])
    for n, order in enumerate(ORDERS + ["order-2026-%d" % n
                                        for n in range(1004, 1030)]):
        world.lose(urllib.parse.quote(order), "/take/" if n % 5 == 3 else "/pay/")
    for n, phase in enumerate([DEAD, INDETERMINATE, WAITING, READY, DEAD]):
        shop.emit(id="i%d" % n, phase=phase, route=["bills", "mails"][n % 2],
                  error="" if phase == READY else "the target answers 400")
    shop.park()
    shop.park(id="b", state=INDETERMINATE, key="k",
              error="the handler ended while it ran")
    shop.saga("trip-1", STUCK, [(2, 0), (5, DEAD), (0, 0)],
              "step 2: its cancel was refused")
    shop.saga("trip-2", GOING, [(1, 0), (0, 0)])


@pytest.fixture(scope="module")
def site(world, tmp_path_factory):
    """A console that has everything to show."""
    shop = Shop(tmp_path_factory.mktemp("shop"))
    it = world.console(
        "--decide", "--link", "https://shop.example/orders/{order}",
        "--database", "shop=" + shop.url,
        "--watch", "web-1=http://127.0.0.1:%d/once_status"
        % world.site.gateway.port,
        "--watch", "web-2=http://127.0.0.1:1/once_status", unix=False)
    it.log_in()
    # What a gateway has counted before it is first asked is not of this hour.
    eventually(lambda: it.get("metrics")["sources"][0]["up"])
    fill(world, shop)
    eventually(lambda: it.get("metrics")["series"].get(
        'once_requests_total{store="main",route="-",status="mismatch"}'))
    return it


@pytest.fixture(scope="module")
def chrome(site):
    it = browser.start()
    it.open("http://127.0.0.1:%s/icon.svg" % site.port)
    it.run("localStorage.setItem('session', arguments[0])", site.session)
    it.driver.execute_cdp_cmd("Emulation.setTimezoneOverride",
                              {"timezoneId": "Europe/Berlin"})
    it.open("http://127.0.0.1:%s/" % site.port)
    it.shows("Overview")
    it.complaints()
    yield it
    it.quit()


def pages(site):
    r = waiting(site, urllib.parse.quote(ORDERS[2]))
    return [
        ("", "need your decision"), ("waiting", "order-2026-1001"),
        ("waiting?reason=gap", "Nothing fits this filter"), ("live", "In flight"),
        ("find?by=hash&hash=" + r["name"], "Müller & Söhne 17"),
        ("outbox", "bills"), ("parked", "mailer"), ("sagas", "trip-1"),
        ("message/shop/outbox/1", "What is to become of it?"),
        ("message/shop/saga/trip-1", "Step 3"), ("metrics", "web-2"),
        ("audit", "Audit log"), ("record/main/" + r["name"], "Müller & Söhne 17"),
        ("batch", "What became of it?"), ("store/main", "Durable"),
        ("nothing", "There is no such page")]


@pytest.mark.parametrize("width", WIDTHS)
def test_every_page_on_every_width(site, chrome, width):
    chrome.size(width, WIDTHS[width], "dark" if width == 1024 else "light")
    for place, text in pages(site):
        chrome.go(place)
        chrome.shows(text)
        chrome.look()
    assert chrome.complaints() == []


# ---- axe-core ----------------------------------------------------------------


@pytest.fixture(scope="module")
def axe(tmp_path_factory):
    """Its script; never kept."""
    folder = tmp_path_factory.mktemp("axe")
    if shutil.which("npm") is None:
        pytest.skip("axe-core was NOT run: no npm")
    done = subprocess.run(["npm", "pack", "--silent", AXE], cwd=folder, check=False,
                          capture_output=True, timeout=60,
                          env=dict(os.environ, npm_config_fetch_retries="0"))
    if done.returncode != 0:
        pytest.skip("axe-core was NOT run: npm cannot fetch it")
    with tarfile.open(next(folder.glob("*.tgz"))) as archive:
        return archive.extractfile("package/axe.min.js").read().decode()


RUN = """
    const {violations} = await axe.run(document, {resultTypes: ['violations']});
    return violations.map((v) => v.id + ': ' + v.nodes.map(
        (n) => n.html.slice(0, 200)).join(' | '));
"""


@pytest.mark.parametrize("width, scheme", [(390, "dark"), (1440, "light")])
def test_axe_finds_nothing(site, chrome, axe, width, scheme):
    chrome.size(width, WIDTHS[width], scheme)
    for place, text in pages(site):
        chrome.go(place)
        chrome.shows(text)
        if not chrome.run("return 'axe' in window"):
            chrome.run(axe)
        assert chrome.fetch(RUN) == [], place


# ---- Twelve pictures --------------------------------------------------------------


def smaller(data):
    """The same PNG, packed as well as can be."""
    out, pixels, at = data[:8], b"", 8
    while at < len(data):
        size, kind = struct.unpack(">I4s", data[at:at + 8])
        if kind == b"IDAT":
            pixels += data[at + 8:at + 8 + size]
        else:
            if kind == b"IEND":
                packed = zlib.compress(zlib.decompress(pixels), 9)
                out += struct.pack(">I", len(packed)) + b"IDAT" + packed + \
                    struct.pack(">I", zlib.crc32(b"IDAT" + packed))
            out += data[at:at + size + 12]
        at += size + 12
    return out


def picture(chrome, name, at):
    if not PICTURES:
        return
    chrome.run("document.activeElement.blur(); scrollTo(0, 0);"
               "if (arguments[0]) document.querySelector(arguments[0])"
               ".scrollIntoView()", at)
    (pathlib.Path(PICTURES) / (name + ".png")).write_bytes(
        smaller(chrome.driver.get_screenshot_as_png()))


def answer(chrome, action, status, body):
    chrome.click("label[for=action-%s]" % action)
    chrome.type("#status", status)
    chrome.type("#answer", body)
    chrome.click("#check")
    chrome.find("#why")


def test_twelve_pictures(site, chrome):
    """A lost order, from the alert to its decision; and the rest of the console.
    Of each it is seen what to do next."""
    lost = waiting(site, ORDERS[0])
    other = waiting(site, urllib.parse.quote(ORDERS[4]))

    def show(name, place, width, height, scheme="light", at=None):
        chrome.size(width, height, scheme)
        if place is not None:
            chrome.go(place)
        picture(chrome, name, at)

    show("overview", "", 1440, 1010)
    show("overview-narrow", "", 390, 844, "dark")
    assert site.decide(waiting(site, urllib.parse.quote(ORDERS[2])), "acknowledge",
                       why="I ask the bank").status == 200
    chrome.size(1440, 900)
    chrome.go("waiting")
    chrome.shows(me() + " looks into it")
    for n in (0, 1, 2):
        chrome.click("tbody tr:nth-child(%d) input" % (n + 1))
    show("waiting", None, 1440, 900)
    show("waiting-narrow", "waiting?sort=new", 390, 844)
    chrome.size(1024, 1500)
    chrome.click("#many")
    chrome.shows("3 requests that wait")
    answer(chrome, "failure", "422", '{"error": "not carried out"}')
    chrome.shows("they are about 3 different orders")
    show("dry-run", None, 1024, 900, at=".dry")
    show("record", "record/main/" + lost["name"], 1440, 900)
    show("record-narrow", "record/main/" + other["name"], 390, 844, "dark")
    chrome.size(1440, 900)
    chrome.go("record/main/" + lost["name"])
    answer(chrome, "success", "201", '{"order": "%s"}' % ORDERS[0])
    chrome.type("#why", "the ledger has it, ticket 12")
    chrome.type("#digits", lost["name"][:8])
    show("decide", None, 1440, 900, at="#check")
    chrome.click("#decide")
    chrome.shows("Decided: success.")
    show("decided", None, 1440, 800)
    chrome.go("message/shop/saga/trip-1")
    chrome.click("label[for=verb-retry]")
    show("saga", None, 1440, 760, "dark")
    show("metrics", "metrics", 2560, 1300)
    chrome.go("waiting")
    site.process.send_signal(signal.SIGSTOP)
    try:
        chrome.size(1024, 700)
        eventually(lambda: "does not answer" in chrome.find("#away").text)
        show("away", None, 1024, 700)
        assert chrome.run("return document.getElementById('main').inert")
    finally:
        site.process.send_signal(signal.SIGCONT)
    if PICTURES:
        files = list(pathlib.Path(PICTURES).glob("*.png"))
        assert len(files) == 12
        assert sum(f.stat().st_size for f in files) < 1500000
    assert MARK not in chrome.driver.page_source
