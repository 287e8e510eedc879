# SPDX-License-Identifier: Apache-2.0
"""
newstore.py - makes the stores of a test, as an operator would: by `once init`.
Nothing else creates one: a gateway over a store that is missing does not start.
"""

import os
import pathlib
import re
import subprocess

ROOT = pathlib.Path(__file__).resolve().parents[2]


def once():
    """The program."""
    build = pathlib.Path(os.environ.get("ONCE_BUILD", ROOT / "build"))
    return os.environ.get("ONCE_CLI", str(build / "once"))


def init(url):
    """The new store at this URL, or the one behind a faulty: one, which has no
    init of its own. What cannot be made, because its server is down or the URL is
    nonsense, is left to who opens it."""
    url = re.sub(r"^faulty:[^@]*@", "", url)
    if not re.match(r"memory:", url):
        subprocess.run([once(), "--store", url, "init", "--audit", "off"],
                       stdin=subprocess.DEVNULL, capture_output=True,
                       check=False, timeout=120)


def init_all(conf):
    """All stores that this configuration of nginx names by their URLs."""
    for url in re.findall(r"\bonce_store\s+[^\s;]+\s+\"?([^\s;\"]+)", conf):
        if ":" in url:
            init(url)
