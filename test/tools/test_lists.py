# SPDX-License-Identifier: Apache-2.0
"""The pages that list what one can set name all that the sources take."""
import pathlib
import re

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]


def directives():
    """The names in nginx's table of commands."""
    text = (ROOT / "nginx/ngx_http_once_conf.c").read_text()
    table = re.search(r"^ngx_command_t .*?^\};", text, re.M | re.S)[0]
    names = re.findall(r'"(once\w*)"', table)
    assert len(names) == len(set(names)) > 20
    return names


def members():
    """The members of a route of `once serve`."""
    text = (ROOT / "programs/serve/route.c").read_text()
    table = re.search(r"^static const struct member members\[\] = .*?^\};", text,
                      re.M | re.S)[0]
    names = re.findall(r'^    \{\.name = "(\w+)"', table, re.M)
    assert len(names) == len(set(names)) > 20
    return names


def section(page, title):
    """From a title to the next one of its level or of a higher one."""
    level = title.split(" ")[0]
    text = (ROOT / page).read_text()
    found = re.search(rf"^{re.escape(title)}.*?(?=^#{{1,{len(level)}}} |\Z)", text,
                      re.M | re.S)
    assert found, title
    return found[0]


@pytest.mark.parametrize("page, title", [
    ("nginx/README.md", "## Directives"),
    ("docs/http.md", "## 6. Directives"),
    ("docs/http.md", "### 9.1 Options"),
])
def test_each_directive_stands_on_the_page(page, title):
    text = section(page, title)
    assert [name for name in directives()
            if not re.search(rf"`{name}\b", text)] == []


def test_each_directive_has_its_syntax():
    text = section("nginx/README.md", "## Directives")
    assert [name for name in directives()
            if f"### {name}\n\n**syntax:** `{name}" not in text] == []


def test_each_member_of_a_route_stands_on_the_page():
    text = section("docs/serve.md", "## Routes")
    assert [name for name in members()
            if not re.search(rf'`"?{name}\b', text)] == []
