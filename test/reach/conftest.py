# SPDX-License-Identifier: Apache-2.0
"""Fixtures: the images, a volume for one test."""

import os
import pathlib
import shutil
import tempfile

import pytest

from images import UID, Image


@pytest.fixture(scope="session")
def folder():
    """User 101 must come through it."""
    path = pathlib.Path(tempfile.mkdtemp(prefix="once-image-"))
    path.chmod(0o755)
    yield path
    shutil.rmtree(path)


@pytest.fixture(scope="session")
def gateway(folder):
    return Image("once-nginx", folder)


@pytest.fixture(scope="session")
def program(folder):
    return Image("once", folder)


@pytest.fixture(scope="session")
def images(gateway, program):
    return {"once-nginx": gateway, "once": program}


@pytest.fixture
def volume(folder):
    """A new volume, with what engines copy into it: the folders' owner."""
    path = pathlib.Path(tempfile.mkdtemp(dir=folder))
    for part in (path, path / "default", path / "witness"):
        part.mkdir(exist_ok=True)
        os.chown(part, UID, UID)
        part.chmod(0o700)
    return path
