# SPDX-License-Identifier: Apache-2.0
"""
The faults of the cells: each is played, and healed, and says in `run.hits` how
often it hit something. `run` is a Run of cells.py.
"""

import signal

FAULTS = {}


def fault(name, **options):
    """Options: what a Run is to have for it, see cells.py."""
    def register(function):
        FAULTS[name] = (function, options)
        return function
    return register


@fault("none", number=1)
def none(run):
    """Copies and poison alone."""
    run.hits += 1


@fault("kill-relay")
def kill_relay(run):
    """kill -9 of a relay."""
    run.one(run.relays).restart()


@fault("kill-consumer")
def kill_consumer(run):
    """kill -9 of a consumer."""
    run.one(run.consumers).restart()


@fault("kill-producer")
def kill_producer(run):
    """kill -9 of a program that emits."""
    run.one(run.producers).restart()


@fault("broker-kill")
def broker_kill(run):
    """kill -9 of the broker, and a start."""
    run.broker.server.kill()
    run.nap(0, 0.3)
    run.broker.server.start()
    run.hits += 1


@fault("relay-stopped")
def relay_stopped(run):
    """A relay stands still past its lease, and goes on."""
    relay = run.one(run.relays)
    relay.signal(signal.SIGSTOP)
    run.nap(3.2, 4)
    relay.signal(signal.SIGCONT)
