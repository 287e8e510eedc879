# SPDX-License-Identifier: Apache-2.0
"""Skips what cannot run here, and says why."""

import os

import pytest

pytest.register_assert_rewrite("faults")

import faults  # noqa: E402  pylint: disable=wrong-import-position


@pytest.fixture
def make_site(tmp_path):
    """make_site(...) starts service, gateway and network."""
    if faults.gateway.NGINX is None:
        pytest.skip("no nginx")
    if not os.path.exists(faults.gateway.MODULE):
        pytest.skip("no module at %s" % faults.gateway.MODULE)
    if not faults.PAYMENTS.exists():
        pytest.skip("no sample service at %s" % faults.PAYMENTS)
    sites = []

    def make(*manners, **more):
        folder = tmp_path / ("site%d" % len(sites))
        folder.mkdir()
        sites.append(faults.Site(folder, *manners, **more))
        return sites[-1]

    yield make
    for site in sites:
        site.close()
