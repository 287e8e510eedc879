# SPDX-License-Identifier: Apache-2.0
"""
browser.py - a real headless Chromium on the console's pages, and what it looks
for on each: what a program can find of the rules for everybody (labels, names,
headings, tables, contrast, ids). Debian has no axe-core; these are its checks
that concern pages like ours.
"""

import contextlib
import os
import shutil

import pytest
from selenium import webdriver
from selenium.common.exceptions import (StaleElementReferenceException,
                                        WebDriverException)
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.chrome.options import Options
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys

import marks
from console import SCREENS, eventually

# Everything that is wrong with the page, as a list of texts.
LOOK = r"""
const bad = [];
const seen = (e) => e.getClientRects().length > 0 &&
    getComputedStyle(e).visibility !== 'hidden';
const name = (e) => (e.getAttribute('aria-label') || e.textContent || '').trim();
const where = (e) => e.tagName.toLowerCase() + (e.id ? '#' + e.id : '') + ' "' +
    (e.textContent || '').trim().slice(0, 30) + '"';

if (!document.documentElement.lang) bad.push('no language');
if (!document.title) bad.push('no title');
const h1 = [...document.querySelectorAll('h1')];
if (h1.length !== 1) bad.push(h1.length + ' h1');
let level = 1;
for (const h of document.querySelectorAll('h1,h2,h3,h4')) {
    const l = Number(h.tagName[1]);
    if (l > level + 1) bad.push('a heading is left out before ' + where(h));
    level = l;
    if (!name(h)) bad.push('an empty heading');
}
for (const e of document.querySelectorAll('input,select,textarea'))
    if (seen(e) && !(e.labels && e.labels.length && name(e.labels[0])) &&
        !e.getAttribute('aria-label'))
        bad.push('no label: ' + where(e));
for (const e of document.querySelectorAll('button,a'))
    if (!name(e)) bad.push('no name: ' + where(e));
for (const e of document.querySelectorAll('a'))
    if (!e.getAttribute('href')) bad.push('leads nowhere: ' + where(e));
for (const t of document.querySelectorAll('table')) {
    if (!t.caption || !name(t.caption)) bad.push('no caption');
    if (!t.querySelector('th[scope]')) bad.push('no th with a scope');
}
for (const f of document.querySelectorAll('fieldset'))
    if (!f.querySelector('legend')) bad.push('no legend');
const ids = new Set();
for (const e of document.querySelectorAll('[id]')) {
    if (ids.has(e.id)) bad.push('twice: #' + e.id);
    ids.add(e.id);
}
for (const e of document.querySelectorAll('[aria-describedby]'))
    for (const id of e.getAttribute('aria-describedby').split(' '))
        if (!ids.has(id)) bad.push('is not there: #' + id);
for (const e of document.querySelectorAll('[tabindex]'))
    if (Number(e.getAttribute('tabindex')) > 0) bad.push('tabindex: ' + where(e));
if (document.querySelectorAll('main').length !== 1) bad.push('not one main');
if (document.querySelectorAll('[aria-live]').length !== 1)
    bad.push('not one aria-live');

// WCAG 2: the contrast of text, at least 4.5.
const parse = (c) => c.match(/[\d.]+/g).map(Number);
const light = (c) => {
    const [r, g, b] = c.slice(0, 3).map((v) => {
        v /= 255;
        return v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4;
    });
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
};
const behind = (e) => {
    for (; e; e = e.parentElement) {
        const c = parse(getComputedStyle(e).backgroundColor);
        if (c.length < 4 || c[3] > 0.99) return c;
    }
    return [255, 255, 255];
};
for (const e of document.querySelectorAll('body *')) {
    const own = [...e.childNodes].some((n) => n.nodeType === 3 &&
                                       n.textContent.trim());
    if (!own || !seen(e) || e.disabled || e.closest('noscript')) continue;
    const a = light(parse(getComputedStyle(e).color)), b = light(behind(e));
    const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    if (ratio < 4.5) bad.push('contrast ' + ratio.toFixed(1) + ': ' + where(e));
}
return bad;
"""


class Browser:
    def __init__(self, *words):
        options = Options()
        for word in ("--headless=new", "--disable-gpu",
                     "--disable-dev-shm-usage", "--window-size=1200,1000",
                     "--disable-background-networking", "--no-first-run",
                     *words):
            options.add_argument(word)
        if os.getuid() == 0:
            options.add_argument("--no-sandbox")
        options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
        self.driver = webdriver.Chrome(
            service=Service("/usr/bin/chromedriver"), options=options)
        self.driver.set_script_timeout(60)

    def open(self, url):
        self.driver.get(url)

    def go(self, place):
        self.run("location.hash = arguments[0]", "#/" + place)
        eventually(lambda: self.run(
            "return location.hash === document.getElementById('main')"
            ".dataset.place"), 20)

    def run(self, script, *words):
        return self.driver.execute_script(script, *words)

    def fetch(self, script, *words):
        """The value of a promise."""
        return self.driver.execute_async_script(
            "const done = arguments[arguments.length - 1];"
            "(async (a) => {%s})(arguments).then(done, "
            "(e) => done('failed: ' + e))" % script, *words)

    def text(self):
        return self.driver.find_element(By.TAG_NAME, "main").text

    def shows(self, text):
        def look():
            with contextlib.suppress(WebDriverException):
                return text in self.text()
            return False
        try:
            eventually(look, 20)
        except AssertionError:
            raise AssertionError("%r is not in %s" % (
                text, self.text())) from None

    def find(self, how):
        """By a CSS selector."""
        def look():  # while the page is drawn again, it may be gone
            with contextlib.suppress(StaleElementReferenceException):
                return [e for e in
                        self.driver.find_elements(By.CSS_SELECTOR, how)
                        if e.is_displayed()]
            return None
        return eventually(look, 20)[0]

    def click(self, how):
        def try_it():
            with contextlib.suppress(StaleElementReferenceException):
                self.find(how).click()
                return True
            return False
        eventually(try_it, 20)

    def link(self, text):
        eventually(lambda: self.driver.find_elements(By.LINK_TEXT, text),
                   20)[0].click()

    def type(self, how, text):
        e = self.find(how)
        e.clear()
        e.send_keys(text)

    # -- the keyboard

    def key(self, *keys):
        ActionChains(self.driver).send_keys(*keys).perform()

    def focus(self):
        return self.run(
            "const e = document.activeElement;"
            "return [e.tagName, e.id || e.dataset.key || '',"
            " e.textContent.slice(0, 60)]")

    def tab_to(self, wanted, keys=Keys.TAB):
        """Presses Tab until what is wanted has the focus; it must be seen."""
        for _ in range(80):
            self.key(keys)
            tag, ident, text = self.focus()
            if wanted in (ident, text):
                assert self.run(
                    "return getComputedStyle(document.activeElement)"
                    ".outlineStyle") != "none", "the focus is not seen"
                return
        raise AssertionError("no way to %s by Tab" % wanted)

    # -- what is wrong

    def keep(self, name):
        """A screenshot, of the whole page; and its text, for marks.py."""
        marks.note("page " + name, self.driver.page_source)
        SCREENS.mkdir(parents=True, exist_ok=True)
        height = self.run("return document.documentElement.scrollHeight")
        self.driver.set_window_size(1200, max(700, min(height + 120, 4000)))
        assert self.driver.save_screenshot(str(SCREENS / (name + ".png")))
        self.driver.set_window_size(1200, 1000)

    def size(self, width, height, scheme="light"):
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", {
            "width": width, "height": height, "deviceScaleFactor": 1,
            "mobile": width < 600})
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [
            {"name": "prefers-color-scheme", "value": scheme}]})

    def look(self):
        bad = self.run(LOOK)
        assert not bad, bad
        assert self.run("return document.documentElement.scrollWidth <= "
                        "innerWidth"), "it is wider than the screen"

    def complaints(self):
        return [x["message"] for x in self.driver.get_log("browser")
                if x["level"] == "SEVERE"]

    def quit(self):
        self.driver.quit()


def start(*words):
    if shutil.which("chromium") is None or shutil.which("chromedriver") is None:
        pytest.skip("no chromium: apt-get install chromium chromium-driver")
    return Browser(*words)
