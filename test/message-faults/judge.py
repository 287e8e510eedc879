# SPDX-License-Identifier: Apache-2.0
"""
The exact ledger: counting alone, from four lists that were written by four
parties.

    orders     what was committed, by those who emitted it
    arrived    in which order it came to the broker, copies and all
    effects    what handlers have committed
    parked     what the consumer keeps, and the outbox what the relay does

It knows no lease, no attempt and no state machine.
"""

import collections
import hashlib

DEAD, INDETERMINATE = 3, 4  # of a row, and of a parked message
FLAWED = "not/an id"                  # of messages that were planted
DEADLY = ("poison", "dead", "kills")  # kinds of orders that must not succeed


def mark(name):
    """An id may be anybody's: reports name it by its digest."""
    return hashlib.sha256(str(name).encode()).hexdigest()[:12]


class Ledger:
    def __init__(self):
        self.orders = []    # (id, key, place, kind)
        self.arrived = []   # (id, key), in their order
        self.effects = []   # ids, in their order
        self.outbox = []    # (id, phase)
        self.parked = []    # (id, state, body)
        self.planted = collections.Counter()  # ids with one effect each
        self.dead = set()   # ids of dead letters that were planted
        self.flawed = set()  # bodies of what cannot be understood
        self.mixed = set()  # ids that also came with another body
        self.keyed = False  # effects, too, are in the order of their key
        self.service = False  # effects are those of a service: no inbox
        self.tended = False  # dead ones were dropped, so that others could go on
        self.late = False   # copies came after the window: dead letters, too
        self.doubt = False  # a service may have died: rows may be in doubt


def judge(ledger):
    """Yields what is wrong."""
    kinds = {order[0]: order[3] for order in ledger.orders}
    if len(kinds) != len(ledger.orders):
        yield "an id was given twice"
    yield from judge_effects(ledger, kinds)
    yield from judge_outbox(ledger, kinds)
    if ledger.service:
        yield from in_order(ledger.effects, ledger.orders, "effect")
    else:
        yield from judge_parked(ledger, kinds)
        yield from judge_arrivals(ledger, kinds)


def judge_outbox(ledger, kinds):
    """A service refuses what must not succeed; a broker takes everything."""
    deadly = {i for i, kind in kinds.items() if kind in DEADLY} \
        if ledger.service and not ledger.tended else set()
    dead = {name for name, phase in ledger.outbox if phase == DEAD}
    for name in deadly ^ dead:
        yield "outbox: %s is %sdead" % (mark(name), "not " * (name in deadly))
    for name, phase in ledger.outbox:
        if phase != DEAD and not (phase == INDETERMINATE and ledger.doubt):
            yield "outbox: %s stands in phase %d" % (mark(name), phase)


def judge_effects(ledger, kinds):
    effects = collections.Counter(ledger.effects)
    wanted = {i for i, kind in kinds.items() if kind not in DEADLY}
    wanted |= set(ledger.planted)
    doubtful = {name for name, phase in ledger.outbox
                if phase == INDETERMINATE and ledger.doubt}
    for name, n in effects.items():
        if n > 1:
            yield "effect: %s has %d" % (mark(name), n)
        if name not in wanted:
            yield "effect: %s must have none (%s)" % (
                mark(name), kinds.get(name, "never committed"))
    for name in wanted - doubtful - set(effects):
        yield "effect: %s has none" % mark(name)


def judge_parked(ledger, kinds):
    flawed = set()
    dead = {i for i, kind in kinds.items()
            if kind in DEADLY and not ledger.tended} | ledger.dead
    mixed = set()
    for name, state, body in ledger.parked:
        if name.startswith("#"):
            flawed.add(body)
        elif "#" in name:
            mixed.add(name.partition("#")[0])
        elif name not in dead and not (ledger.late and name in kinds):
            yield "parked: %s, in state %d" % (mark(name), state)
        if state != DEAD:
            yield "parked: %s is in state %d" % (mark(name), state)
    for name in dead - {row[0] for row in ledger.parked}:
        yield "parked: %s is no dead letter" % mark(name)
    for body in flawed ^ ledger.flawed:
        yield "parked: a message that cannot be understood, %s: %s" % (
            mark(body), "kept" if body in flawed else "lost")
    for name in mixed ^ ledger.mixed:
        yield "parked: mismatch of %s" % mark(name)


def in_order(names, orders, what):
    """First sights of each key are in the order of commits."""
    places = {order[0]: order[1:3] for order in orders}
    last, seen = {}, set()
    for name in names:
        if name in seen or name not in places:
            continue
        seen.add(name)
        key, place = places[name]
        if place < last.get(key, 0):
            yield "%s: %s of %s is number %d, and came after %d" % (
                what, mark(name), key, place, last[key])
        last[key] = max(place, last.get(key, 0))


def judge_arrivals(ledger, kinds):
    names = [name for name, _ in ledger.arrived]
    known = set(kinds) | set(ledger.planted) | ledger.dead | ledger.mixed
    for name in set(names) - known - {"-", FLAWED}:
        yield "arrived: %s was never committed" % mark(name)
    for name in set(kinds) - set(names):
        yield "arrived: %s never did" % mark(name)
    yield from in_order(names, ledger.orders, "arrived")
    if ledger.keyed:
        yield from in_order(ledger.effects, ledger.orders, "effect")
