# SPDX-License-Identifier: Apache-2.0
"""
The end check of a cell: counting alone, from what traffic.c wrote.

    told       G C R, and what was not answered: c f v
    executed   X
    store      D, every record when all is over

It was written from docs/protocol.md, section 10, and knows no lease and no
state machine. Lines of one process are in order, those of several are not:
nothing here depends on it. What a killed process had not written had not
happened, except that the store may have done what it was asked: so a record
without a line proves nothing, and a line without a record does.
"""

import collections

ABSENT, COMPLETED = 0, 3


class Key:
    __slots__ = ("grants", "executed", "completed", "told", "released")

    def __init__(self):
        self.grants = []     # (attempt, fence), told to an owner
        self.executed = []   # nonces
        self.completed = []  # nonces, acknowledged
        self.told = []       # nonces, of replays
        self.released = set()  # fences that somebody began to release


class Sums:
    def __init__(self):
        self.violations = []
        self.keys = 0
        self.grants = 0
        self.grants_lost = 0
        self.granted_twice = 0
        self.executed_twice = 0
        self.outcomes = 0
        self.outcomes_lost = 0
        self.letters = collections.Counter()


def read(paths, sums):
    """All logs of the traffic, by key."""
    keys = collections.defaultdict(Key)
    for path in paths:
        with open(path, encoding="ascii") as f:
            for line in f:
                words = line.split()
                # The last line of one that was killed may be torn.
                if not line.endswith("\n") or len(words) != 4:
                    continue
                letter, key, a, b = words[0], *map(int, words[1:])
                sums.letters[letter] += 1
                if letter == "G":
                    keys[key].grants.append((a, b))
                elif letter == "X":
                    keys[key].executed.append(a)
                elif letter == "C":
                    keys[key].completed.append(a)
                elif letter == "R":
                    keys[key].told.append(a)
                elif letter == "r":
                    keys[key].released.add(b)
                elif letter == "!":
                    sums.violations.append(
                        "key %d: a record does not check (%d, %d)"
                        % (key, a, b))
    return keys


def read_final(path, sums):
    """key -> (attempt, fence, state, nonce)"""
    rows = {}
    with open(path, encoding="ascii") as f:
        for line in f:
            words = line.split()
            if words[0] == "D":
                key, attempt, fence, state, nonce = map(int, words[1:])
                rows[key] = (attempt, fence, state, nonce)
            else:
                sums.violations.append("in the end: " + line.strip())
    return rows


def judge(number, key, row, sums):
    """Yields what is wrong with one key."""
    unreleased = [g for g in key.grants if g[1] not in key.released]
    outcomes = set(key.completed) | set(key.told)
    sums.keys += 1
    sums.grants += len(unreleased)
    if len(unreleased) > 1:
        sums.granted_twice += 1
        yield "granted twice, and not released: %s" % unreleased
    if len({g[1] for g in key.grants}) != len(key.grants):
        yield "a fence was given twice: %s" % key.grants
    if len({g[0] for g in key.grants}) != len(key.grants):
        yield "an attempt number was given twice: %s" % key.grants
    if len(key.executed) > 1:
        sums.executed_twice += 1
        yield "executed %d times (I1)" % len(key.executed)
    if len(outcomes) > 1:
        yield "%d different outcomes were told (I2)" % len(outcomes)
    if outcomes - set(key.executed):
        yield "told what nobody executed (I3)"
    if row is None:
        yield "the store was not asked"
        return
    attempt, fence, state, nonce = row
    if outcomes:
        sums.outcomes += 1
        if state != COMPLETED or nonce not in outcomes:
            sums.outcomes_lost += 1
            yield "told, and the record is %s (I3, I7)" % (row,)
    if state == COMPLETED and nonce not in key.executed:
        yield "recorded what nobody executed"
    if unreleased and (state == ABSENT or
                       fence not in {g[1] for g in unreleased}):
        sums.grants_lost += 1
        yield "granted %s, and the record is %s (I5, I7)" % (unreleased, row)
    if key.executed and state == ABSENT:
        yield "executed, and the record is absent (I5)"


def count(paths, final):
    sums = Sums()
    keys = read(paths, sums)
    rows = read_final(final, sums)
    for number, key in sorted(keys.items()):
        sums.violations += ["key %d: %s" % (number, text) for text in
                            judge(number, key, rows.get(number), sums)]
    if not sums.letters["C"] or not sums.letters["G"]:
        sums.violations.append("nothing was acknowledged at all")
    return sums
