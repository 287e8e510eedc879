# SPDX-License-Identifier: Apache-2.0
"""conftest.py - the servers of one test file: started when they are first asked
for, and gone when it has ended. A server that is not installed is skipped."""
import pytest

import carry  # noqa: F401  it says where servers.py is

import servers


def started(make):
    try:
        return make()
    except servers.Missing as missing:
        pytest.skip(str(missing))


@pytest.fixture(scope="module")
def world():
    with servers.World() as w:
        yield w


@pytest.fixture(scope="module")
def postgres(world):
    return started(
        lambda: servers.Postgres(world).init()).start().furnish()


@pytest.fixture(scope="module")
def redis(world):
    return started(lambda: servers.Redis(world).start())


@pytest.fixture(scope="module")
def kafka(world):
    return started(lambda: servers.Kafka(world).start())


@pytest.fixture(scope="module")
def amqp_settings():
    """What this file's RabbitMQ is told beyond the usual."""
    return {}


@pytest.fixture(scope="module")
def amqp(world, amqp_settings):
    return started(
        lambda: servers.RabbitMQ(world, **amqp_settings).start())


@pytest.fixture(scope="module")
def mysql(world):
    return started(lambda: servers.mysql_or_mariadb(world).init()).start().furnish()


@pytest.fixture(scope="module")
def mysql_slow():
    """Flushes take three seconds where its file `slow_redo` is."""
    with servers.World() as world:
        started(lambda: servers.mysql_slow(world, False))
        server = world.servers["mysql"]
        server.slow = world.folder / "slow_redo"
        yield server
