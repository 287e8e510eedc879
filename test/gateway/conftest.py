# SPDX-License-Identifier: Apache-2.0
"""
Fixtures. `site` is one gateway for all tests of a file, on each store: the file
gives its locations in SERVER (and HTTP). `make` builds one for a single test.
"""

import contextlib
import os

import pytest

pytest.register_assert_rewrite("gateway")

import gateway  # noqa: E402  pylint: disable=wrong-import-position


def pytest_configure(config):
    config.addinivalue_line(
        "markers", "nginx_only(reason): about nginx, not about the contract")


def pytest_runtest_setup(item):
    mark = item.get_closest_marker("nginx_only")
    if mark is not None and gateway.TARGET != "nginx":
        pytest.skip("only nginx: " + mark.args[0])
    if gateway.STAND_IN and "test_hot.py" in item.nodeid:
        pytest.skip("hot answers are those of stores of this host")
    if gateway.STAND_IN and "its_driver" in item.nodeid:
        pytest.skip("it knows the names of drivers")
    if gateway.TARGET not in ("nginx", "guarded"):
        import not_here  # pylint: disable=import-outside-toplevel
        why = not_here.why_not(gateway.TARGET, item.nodeid)
        if why is not None:
            pytest.skip(why)


def pytest_sessionstart(session):
    del session
    if gateway.TARGET not in ("nginx", "guarded"):
        return
    if gateway.TARGET == "guarded":
        if not os.path.exists(gateway.GUARDED):
            pytest.exit("no server at %s: build it, or set ONCE_GUARDED"
                        % gateway.GUARDED, 77)
        return
    if gateway.NGINX is None:
        pytest.exit("no nginx: apt-get install nginx", 77)
    if not gateway.PLAIN and not os.path.exists(gateway.MODULE):
        pytest.exit("no module at %s: build it, or set ONCE_MODULE"
                    % gateway.MODULE, 77)
    if gateway.LEVEL == "debug" and not gateway.debugging():
        pytest.exit("%s was not built --with-debug" % gateway.NGINX, 77)


@pytest.fixture(scope="module", params=["sqlite", "memory"])
def site(request, tmp_path_factory):
    """sqlite: with two workers, memory: with one."""
    module = request.module
    it = gateway.Site(tmp_path_factory.mktemp("site"), module.SERVER,
                      request.param, getattr(module, "HTTP", ""),
                      backends=getattr(module, "BACKENDS", ()))
    try:
        yield it.start()
    finally:
        it.close()


@pytest.fixture
def make(tmp_path):
    """make(server, store=..., workers=..., ...) starts a site of its own."""
    with contextlib.ExitStack() as stack:
        def build(server, start=True, **more):
            folder = tmp_path / os.urandom(3).hex()
            folder.mkdir()
            it = gateway.Site(folder, server, **more)
            stack.callback(it.close)
            return it.start() if start else it

        yield build
