# SPDX-License-Identifier: Apache-2.0
"""
The count itself: a ledger in which nothing is wrong passes, and each mistake that
a relay or a consumer could make is seen. A judge that sees nothing proves
nothing.
"""

import copy
import pathlib
import sys

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))

# pylint: disable=wrong-import-position
from judge import DEAD, INDETERMINATE, Ledger, judge, mark  # noqa: E402

READY, WAITING = 0, 1


def good():
    """Two keys; one order never succeeds, one came with two bodies, and there
    are messages of strangers. Copies arrive in any order."""
    ledger = Ledger()
    ledger.orders = [("a1", "k1", 1, "plain"), ("a2", "k1", 2, "flaky"),
                     ("a3", "k1", 3, "poison"), ("b1", "k2", 1, "plain")]
    ledger.arrived = [(name, "-") for name in
                      "a1 b1 a1 a2 b1 a3 a2 a1 - future old a1".split()]
    ledger.effects = ["a1", "b1", "a2", "future"]
    ledger.planted["future"] = 1
    ledger.dead.add("old")
    ledger.mixed.add("a1")
    ledger.flawed = {"odd"}
    ledger.parked = [("a3", DEAD, "3"), ("old", DEAD, "o"),
                     ("#00", DEAD, "odd"), ("a1#11", DEAD, "other")]
    return ledger


def service():
    """What a service has refused is dead; there is no inbox."""
    ledger = Ledger()
    ledger.service = True
    ledger.orders = [("a1", "k1", 1, "plain"), ("a2", "k1", 2, "dead"),
                     ("b1", "k2", 1, "plain")]
    ledger.effects = ["a1", "b1"]
    ledger.outbox = [("a2", DEAD)]
    return ledger


@pytest.mark.parametrize("make", [good, service])
def test_nothing_is_wrong(make):
    assert not list(judge(make()))


def keyed_backwards(ledger):
    ledger.keyed = True
    ledger.effects = ["a2", "a1", "b1", "future"]


MISTAKES = {
    "an effect twice": lambda l: l.effects.append("b1"),
    "an effect lost": lambda l: l.effects.remove("a2"),
    "an effect of a dead letter": lambda l: l.effects.append("a3"),
    "an effect of a rollback": lambda l: l.effects.append("r1"),
    "a stranger's effect twice": lambda l: l.effects.append("future"),
    "a stranger's effect lost": lambda l: l.effects.remove("future"),
    "an old id had its effect": lambda l: l.effects.append("old"),
    "a row is left": lambda l: l.outbox.append(("a1", READY)),
    "a row waits": lambda l: l.outbox.append(("a1", WAITING)),
    "a row is dead": lambda l: l.outbox.append(("a1", DEAD)),
    "a row in doubt": lambda l: l.outbox.append(("a1", INDETERMINATE)),
    "a message is parked": lambda l: l.parked.append(("b1", 1, "1")),
    "a message is dead": lambda l: l.parked.append(("b1", DEAD, "1")),
    "no dead letter": lambda l: l.parked.pop(0),
    "it waits": lambda l: l.parked.__setitem__(0, ("a3", 1, "3")),
    "no flaw": lambda l: l.parked.pop(2),
    "a flaw of nobody": lambda l: l.parked.append(("#01", DEAD, "x")),
    "no mismatch": lambda l: l.parked.pop(3),
    "a mismatch": lambda l: l.parked.append(("b1#11", DEAD, "other")),
    "out of order": lambda l: l.arrived.insert(0, ("a2", "-")),
    "it never arrived": lambda l: [l.arrived.remove(("b1", "-"))
                                   for _ in range(2)],
    "a rollback arrived": lambda l: l.arrived.append(("r1", "-")),
    "an id was given twice": lambda l: l.orders.append(l.orders[0]),
    "effects out of order": keyed_backwards,
}
SERVICE = {
    "charged twice": lambda l: l.effects.append("a1"),
    "not charged": lambda l: l.effects.remove("a1"),
    "charged what was refused": lambda l: l.effects.append("a2"),
    "refused, and not dead": lambda l: l.outbox.clear(),
    "dead, and not refused": lambda l: l.outbox.append(("b1", DEAD)),
    "in doubt": lambda l: l.outbox.append(("b1", INDETERMINATE)),
    "out of order": lambda l: l.orders.__setitem__(
        2, ("b1", "k1", 0, "plain")),
}


@pytest.mark.parametrize("make,mistake", [
    *((good, name) for name in MISTAKES),
    *((service, name) for name in SERVICE)])
def test_each_mistake_is_seen(make, mistake):
    ledger = make()
    (MISTAKES if make is good else SERVICE)[mistake](ledger)
    assert list(judge(ledger))


def test_a_doubt_is_one_only_where_a_service_may_die():
    ledger = service()
    ledger.effects.remove("b1")
    ledger.outbox.append(("b1", INDETERMINATE))
    assert list(judge(copy.deepcopy(ledger)))
    ledger.doubt = True
    assert not list(judge(ledger))
    ledger.effects += ["b1", "b1"]  # in doubt means one or none
    assert list(judge(ledger))


def test_a_copy_after_the_window_is_a_dead_letter():
    """... and neither a second effect nor a reason to have none."""
    ledger = good()
    ledger.parked.append(("a1", DEAD, "1"))
    assert list(judge(copy.deepcopy(ledger)))
    ledger.late = True
    assert not list(judge(copy.deepcopy(ledger)))
    for wrong in (lambda l: l.effects.append("a1"),
                  lambda l: l.effects.remove("a1"),
                  lambda l: l.parked.append(("b1", WAITING, "1")),
                  lambda l: l.parked.append(("c1", DEAD, "1"))):
        other = copy.deepcopy(ledger)
        wrong(other)
        assert list(judge(other))


def test_what_an_operator_has_dropped_is_gone():
    ledger = service()
    ledger.tended = True
    assert list(judge(ledger))
    ledger.outbox.clear()
    assert not list(judge(ledger))
    ledger = good()
    ledger.tended = True
    assert list(judge(ledger))
    ledger.parked.pop(0)
    assert not list(judge(ledger))


def test_a_report_names_no_id():
    ledger = good()
    ledger.effects.append("a1")
    text = "\n".join(judge(ledger))
    assert mark("a1") in text and "a1 " not in text
