# SPDX-License-Identifier: Apache-2.0
"""
frameworks.py - how each application is started, and what it cannot do.

`cannot` has pairs (member, value) of the header Do that a framework has no way
for, or a member alone. `recorded_500` says that inside this framework an
exception that became a 500 cannot be seen: the middleware's page says so, too.
"""

import dataclasses
import os
import pathlib
import shutil
from typing import Callable

APPS = pathlib.Path(__file__).resolve().parent / "apps"


@dataclasses.dataclass
class Framework:
    command: Callable           # of the folder of the build
    needs: tuple                # programs and files
    cannot: frozenset = frozenset()
    recorded_500: bool = False

    def missing(self):
        """The first thing that this machine lacks."""
        for need in self.needs:
            if not (shutil.which(need) or os.path.exists(need)):
                return need
        return None


FRAMEWORKS = {}
