# SPDX-License-Identifier: Apache-2.0
"""
Who else may touch what a program has left? Programs are run under umask 0 for
this: whatever is then open to others was never closed by the program itself.
"""

import os
import stat


def open_to_others(*folders, allowed=()):
    """What is below `folders` and anybody but its user may read or write:
    {path: mode}. `allowed`: (end of a path, mode) pairs that are meant so. A
    folder that is closed closes what is in it, but is no excuse: folders are
    copied and moved."""
    found = {}
    for path in every(folders):
        st = os.lstat(path)
        mode = stat.S_IMODE(st.st_mode) & 0o777
        if stat.S_ISLNK(st.st_mode) or not mode & 0o077:
            continue
        if not any(path.endswith(end) and mode == m for end, m in allowed):
            found[path] = oct(mode)
    return found


def every(folders):
    for folder in folders:
        for base, _, files in os.walk(folder):
            yield base
            for name in files:
                yield os.path.join(base, name)
