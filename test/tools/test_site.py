# SPDX-License-Identifier: Apache-2.0
"""The site of the pages: its links are looked up, and it needs no server."""

import importlib.machinery
import importlib.util
import pathlib
import re
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "test" / "console"))

# pylint: disable=wrong-import-position
from browser import Browser  # noqa: E402


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    out = tmp_path_factory.mktemp("site") / "out"
    done = subprocess.run([str(ROOT / "tools/site"), str(out)], text=True,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                          check=False)
    assert done.returncode == 0, done.stdout
    return out


def test_a_link_that_leads_nowhere_is_seen(tmp_path):
    loader = importlib.machinery.SourceFileLoader("site_tool",
                                                  str(ROOT / "tools/site"))
    tool = importlib.util.module_from_spec(
        importlib.util.spec_from_loader("site_tool", loader))
    loader.exec_module(tool)
    (tmp_path / "a.html").write_text(
        '<a href="b.html#here">x</a><a href="b.html#gone">x</a>'
        '<img src="gone.png"><a href="https://example.org/x">x</a>')
    (tmp_path / "b.html").write_text('<h1 id="here">x</h1>')
    assert list(tool.broken(tmp_path, tool.read(tmp_path))) == [
        "a.html: no heading b.html#gone", "a.html: no file gone.png"]


def test_the_pages_to_start_with_stand_first(made):
    links = re.findall(r'class="dropdown-item" href="?([^" >]*)|'
                       r'href="(docs/[^"]*)" class="dropdown-item',
                       (made / "index.html").read_text("utf-8"))
    names = ["".join(pair) for pair in links]
    assert names[:3] == ["docs/start-nginx.html", "docs/start-messages.html",
                         "docs/start-commands.html"], names


def test_nothing_comes_from_another_host(made):
    for page in made.rglob("*.html"):
        for tag in re.findall(r"<(?:script|link|img)[^>]*>",
                              page.read_text("utf-8")):
            assert not re.search(r"""(src|href)=["']?(https?:)?//""", tag) or \
                'rel="canonical"' in tag, (page, tag)


def test_it_is_searched_from_a_file(made):
    browser = Browser()
    try:
        browser.open((made / "docs/install.html").as_uri())
        field = browser.find(".once-search input")
        field.send_keys("indeterminate")
        browser.find('.once-search a[href$="glossary.html#indeterminate"]') \
            .click()
        assert browser.driver.title.startswith("Glossary")
        field = browser.find(".once-search input")
        field.send_keys("xyzzy-none")
        assert "No page" in browser.find(".once-search ul").text
    finally:
        browser.driver.quit()
