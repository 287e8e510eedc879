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


def python(app):
    return lambda build: ["/usr/bin/python3", str(APPS / app)]


def started(app):
    """By a program of its own, which compiles it or writes a configuration."""
    return lambda build: [str(APPS / app / "start")]


EXTRAS = [("extra", x) for x in ("early_hints", "continue", "trailers", "debug",
                                 "flush")]
DIST = "/usr/lib/python3/dist-packages/"

FRAMEWORKS["flask"] = Framework(
    python("flask_app.py"), (DIST + "flask", "/usr/bin/gunicorn"),
    frozenset([("after", "cancel"), *EXTRAS]))
FRAMEWORKS["django"] = Framework(
    python("django_app.py"), (DIST + "django", "/usr/bin/gunicorn"),
    frozenset([("after", "cancel"), *EXTRAS]))
FRAMEWORKS["fastapi"] = Framework(
    python("fastapi_app.py"), (DIST + "fastapi", DIST + "uvicorn"))
FRAMEWORKS["nethttp"] = Framework(
    started("nethttp"), ("go",), frozenset([("extra", "debug")]))
FRAMEWORKS["openresty"] = Framework(
    started("openresty"), ("/usr/lib/nginx/modules/ngx_http_lua_module.so",),
    frozenset([("after", "cancel"), "catch", *EXTRAS]))


def node(app):
    return lambda build: ["/usr/bin/env", "NODE_PATH=/usr/share/nodejs", "node",
                          str(APPS / app)]


FRAMEWORKS["express"] = Framework(
    node("express_app.js"), ("node", "/usr/share/nodejs/express"),
    frozenset([("extra", "debug")]))
FRAMEWORKS["fastify"] = Framework(
    node("fastify_app.js"), ("node", "npm"), frozenset([("extra", "debug")]))
FRAMEWORKS["servlet"] = Framework(
    lambda build: [str(APPS / "servlet" / "run")],
    ("javac", "/usr/share/java/tomcat10-embed-core.jar"),
    frozenset([("extra", "debug")]))
