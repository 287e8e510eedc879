# SPDX-License-Identifier: Apache-2.0
"""Fixtures: one gateway with its store for all tests of a file, and the console
that may decide."""

import os

import pytest

import console as harness


def pytest_configure(config):
    config.addinivalue_line("markers", "complains: the browser must complain")


def pytest_sessionstart(session):
    del session
    if harness.gateway.NGINX is None:
        pytest.exit("no nginx: apt-get install nginx", 77)
    if not os.path.exists(harness.CONSOLE):
        pytest.exit("no once-console at %s: build it" % harness.CONSOLE, 77)


def pytest_generate_tests(metafunc):
    if "world" in metafunc.fixturenames and \
            metafunc.module.__name__ != "test_marks":
        metafunc.parametrize("world", getattr(metafunc.module, "STORES",
                                              ["sqlite"]),
                             indirect=True, scope="module")


@pytest.fixture(scope="module")
def world(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("world")
    store = request.param
    if store == "journal":
        store = "journal:%s/journal" % folder
    it = harness.World(folder, store)
    try:
        yield it
    finally:
        it.close()


@pytest.fixture(scope="module")
def console(world):
    """By its socket file; this process's user may do everything."""
    return world.console("--decide", "--operators", operators(world, """
        # who   may
        root    decide,body
        """ + me() + """ decide,body
    """))


def me():
    import pwd  # pylint: disable=import-outside-toplevel
    return pwd.getpwuid(os.getuid()).pw_name


def operators(world, text):
    number = len(world.consoles)
    path = world.folder / ("operators%d" % number)
    path.write_text(text)
    return str(path)
