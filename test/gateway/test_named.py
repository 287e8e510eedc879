# SPDX-License-Identifier: Apache-2.0
"""
A store by its name: nginx reads the name's file when it reads its configuration,
and no worker does.
"""

import os
import re

import pytest

from gateway import MARK, Answer, Site, guarded, is_new, is_replay
from test_config import check, refused

pytestmark = pytest.mark.nginx_only("reads the file with its configuration")


@pytest.fixture
def names(tmp_path, monkeypatch):
    folder = tmp_path / "stores.d"
    folder.mkdir(0o700)
    monkeypatch.setenv("ONCE_STORES_D", str(folder))
    return folder


def test_a_store_by_its_name(tmp_path, names):
    (names / "pay").write_text("url = sqlite:%s/store.db\n" % tmp_path)
    os.chmod(names / "pay", 0o600)
    site = Site(tmp_path, guarded("/pay/"), store="name:pay").start()
    try:
        case = site.case("/pay/", Answer())
        first = case.post()
        is_new(first)
        (names / "pay").write_text("nobody reads this until the next reload\n")
        is_replay(case.post(), first)
        assert case.executions == 1
        assert site.db.exists()
    finally:
        site.close()


def test_a_name_without_a_file_in_a_test(tmp_path, names, monkeypatch):
    monkeypatch.setenv("ONCE_CHECK", "off")
    code, said = check(tmp_path, guarded("/pay/"), store="name:pay",
                       init=False)
    assert code == 0, said
    assert len(re.findall(r"\[warn\].*stores.d/pay.*ONCE_CHECK", said)) == 1


@pytest.mark.parametrize("text, words", [
    (None, "there is no .*/stores.d/pay"),
    ("url = sqlite:/x\nkey = ann:%s\n" % MARK, "stores.d/pay:2: unknown key"),
    ("url = paper://ann:%s@h.test/db\n" % MARK, "unknown scheme \"paper\""),
])
def test_a_name_that_leads_nowhere(tmp_path, names, text, words):
    if text is not None:
        (names / "pay").write_text(text)
        (names / "pay").chmod(0o600)
    said = refused(tmp_path, guarded("/pay/"), words, store="name:pay")
    assert MARK not in said
