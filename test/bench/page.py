# SPDX-License-Identifier: Apache-2.0
"""page.py - the page that a bench makes: printed as it is measured, written when
all of it is there, in front of what stands there by hand."""
import shutil
import subprocess
import sys

BY_HAND = "<!-- by hand -->"


class Wrong(Exception):
    """What was measured is not what the table would say."""


def by_hand(path):
    """What somebody has written behind the tables."""
    text = path.read_text() if path.exists() else ""
    at = text.find(BY_HAND)
    return "\n" + text[at:] if at >= 0 else ""


def make(program, folder, lines, rows, out):
    """`rows` are measured one by one and come behind `lines`; `out` may be None.
    Removes the folder. Returns the exit status."""
    try:
        for line in rows:
            lines.append(line)
            print(line, flush=True)
        if out:
            out.write_text("\n".join(lines) + "\n" + by_hand(out),
                           encoding="utf-8")
    except (Wrong, subprocess.CalledProcessError) as e:
        print(f"{program}: {e}", file=sys.stderr)
        return 1
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return 0
