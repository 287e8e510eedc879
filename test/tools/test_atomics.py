# SPDX-License-Identifier: Apache-2.0
"""docs/atomics.md names each file that has an atomic or a memory barrier."""
import pathlib
import re

ROOT = pathlib.Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs/atomics.md"
ATOMIC = re.compile(r"\b_Atomic\b|\batomic_\w+|\bmemory_order_\w+|"
                    r"\bngx_atomic_\w+|\bngx_memory_barrier\b|__sync_|__atomic_")
COMMENT = re.compile(r"/\*.*?\*/|//[^\n]*", re.S)


def files_with_atomics():
    for folder in "src", "nginx", "programs":
        for path in sorted((ROOT / folder).rglob("*.[ch]")):
            if ATOMIC.search(COMMENT.sub("", path.read_text())):
                yield path.relative_to(ROOT)


def named():
    """The files in the first cells of the tables. One without a folder is in
    the folder of the one before it."""
    folder = None
    for line in PAGE.read_text().splitlines():
        cell = re.match(r"\| (`[^|]*\.[ch]`) \|", line)
        for name in re.findall(r"`([^`]+)`", cell[1] if cell else ""):
            path = pathlib.Path(name)
            folder = folder if path.parent == pathlib.Path(".") else path.parent
            yield folder / path.name


def test_each_file_with_an_atomic_is_on_the_page():
    assert set(files_with_atomics()) - set(named()) == set()


def test_each_file_on_the_page_is_there():
    assert [path for path in named() if not (ROOT / path).is_file()] == []
