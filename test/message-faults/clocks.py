# SPDX-License-Identifier: Apache-2.0
"""
Cells whose clock is set by eight days, more than ids are remembered, while the
inbox is purged:

    right -> 8 days ahead, purge -> right, purge -> 8 days back, purge -> ahead

After each purge messages that were booked long ago come again. None of them may
be booked a second time. A message that the window refuses is a dead letter, and
its reason is `outside`: whoever looks after them has those retried that his own
tables do not know, and then every order has its one effect.

On PostgreSQL it is the server's clock that counts; on SQLite that of each program.
"""

import subprocess

from faults import MINUTE, QUEUES, fault
from judge import DEADLY

DAYS = 8 * 24 * 60 * MINUTE
AGAIN = 60      # messages that come again after each purge

PROGRAMS = ["producer1", "producer2", "relay1", "relay2", "consumer1",
            "consumer2"]


def once(run, *words):
    """An operator's command, whose clock is that of the others."""
    return subprocess.run(
        [run.once, "--database", run.db.direct, "messages",
         *words], check=True, text=True,
        stdout=subprocess.PIPE, env=run.environment_of("relay1")).stdout


def step(run, ahead_ms):
    """All clocks at the same time; the inbox is purged; copies come."""
    for name in run.clocks:
        run.world.step(name, ahead_ms)
    purged = int(once(run, "purge").split(":")[1])
    run.hits += 1
    rows = run.db.rows(
        "SELECT o.id, o.key, o.kind, o.producer, o.no FROM orders o WHERE o.id"
        " IN (SELECT id FROM effect)")
    for name, key, *body in run.rng.sample(rows, min(AGAIN, len(rows))):
        run.broker.put(name, key, "%s %d-%d" % tuple(body))
    run.note("%d days ahead, %d rows purged" % (ahead_ms / DAYS * 8, purged))


def days(run):
    """Ahead; and then back, and as far back again."""
    run.environment["last"] = run.environment.get("consumer1", {})
    if run.played == 0:
        step(run, DAYS)
        return
    for ahead_ms in (0, -DAYS):
        step(run, ahead_ms)
        run.nap(1, 2)


OPTIONS = {"number": 2, "pause": 30, "late": True, "healed": DAYS + 30 * MINUTE}


@fault("clock-days-db", databases=["postgres"], brokers=QUEUES,
       clocks=["postgres"], **OPTIONS)
def clock_days_db(run):
    """The clock of the database is set by eight days, and the inbox purged."""
    days(run)


# Not with NATS: see clock-programs.
@fault("clock-days-programs", databases=["sqlite"],
       brokers=["rabbitmq", "redis"], clocks=PROGRAMS, **OPTIONS)
def clock_days_programs(run):
    """The same, of all programs."""
    days(run)


def retry(run):
    """Dead letters that were outside, of orders that have no effect."""
    rows = run.db.rows(
        "SELECT no, attempts FROM %sparked WHERE state = 3 AND error ="
        " 'outside' AND id IN (SELECT id FROM orders WHERE kind NOT IN %s) AND"
        " id NOT IN (SELECT id FROM effect)" % (run.db.prefix, DEADLY))
    for no, attempts in rows:
        once(run, "parked", "retry", str(no), "dead", "--attempt", str(attempts),
             "--why", "the clock was wrong")
    run.note("%d dead letters are retried" % len(rows))
