# SPDX-License-Identifier: Apache-2.0
"""The oracle of operators' days: what the store at the path must know, and when
a key may be executed once more.

A store is what lies at the path of the configuration. It knows the keys whose
outcome a client was told. Operators put other stores there: an empty one, an
older copy of one, none at all. What each of these acts permits stands here, in
one method each; everything else is a violation:

  1. a key is executed a second time without leave;
  2. anything is executed for the first time while a store is held, or while no
     store is there;
  3. a replay is not what the upstream answered for this key;
  4. a known outcome turns unknown, is forgotten, or is another one;
  5. a tool creates a store that it was not asked to create, says that all is
     well without a store, or that a sound one is damaged.

Leave to execute again is given by `--gap accept`, by an outcome that has
outlived its retention, by an empty store that was made where no witness is
kept, and by a store restored within the second that the witness needs.
"""

import time

RETENTION_H = 24
WITNESS_S = 2.5     # a grant younger than this may not be in the witness yet


class Store:
    """What lies at a path."""

    def __init__(self, known=None, held_until_h=None):
        self.known = dict(known or {})      # key: (body, hour)
        self.held_until_h = held_until_h    # nothing new is executed before
        self.refused = False                # the witness may refuse it
        self.gap_until_h = None             # an operator has accepted it, and
        self.used = False                   # a gateway has opened it since
        self.empty = True                   # as far as anybody was told

    def copy(self):
        other = Store(self.known, self.held_until_h)
        other.refused, other.empty = self.refused, self.empty
        other.gap_until_h, other.used = self.gap_until_h, self.used
        return other


class Key:
    """One key, and what the upstream did for it."""

    def __init__(self, letter, case):
        self.letter = letter
        self.case = case
        self.bodies = []        # one an execution
        self.at = []            # (steady second, hour) of each
        self.leave = False      # it may be executed once more

    def has(self, body):
        return body in self.bodies


class Judge:
    def __init__(self, witness):
        self.witness = witness
        self.keys = {}
        self.hour = 0           # that has passed in this world
        self.store = None       # at the path
        self.broken = []
        self.seen = {}
        self.step = "-"

    def count(self, what):
        self.seen[what] = self.seen.get(what, 0) + 1

    def wrong(self, kind, text):
        self.broken.append((kind, "%s: %s" % (self.step, text)))

    # -- what happened at the upstream and at the client

    def executed(self, key):
        """The upstream has read a whole request. Returns what it answers."""
        n = len(key.bodies) + 1
        body = b"%s%d" % (key.letter.encode(), n)
        if key.bodies and not key.leave and not self._outlived(key):
            self.wrong("twice", "%s is executed again" % key.letter)
        if self.store is None:
            self.wrong("no store", "%s is executed without a store"
                       % key.letter)
        elif self.held():
            self.wrong("held", "%s is executed while the store is held"
                       % key.letter)
        self.count("executed again, as it may be" if key.bodies
                   else "executions")
        key.leave = False
        key.bodies.append(body)
        key.at.append((time.monotonic(), self.hour))
        if self.store is not None:
            self.store.known.pop(key.letter, None)
            self.store.empty = False
        return body

    def _outlived(self, key):
        return self.hour - key.at[-1][1] >= RETENTION_H

    def held(self):
        s = self.store
        return s is not None and s.held_until_h is not None and \
            self.hour < s.held_until_h

    def told(self, key, status, code, body):
        """A client has got a whole answer."""
        self.count("answers " + (code or "%d" % status))
        if self.store is not None and code != "store-unavailable":
            self.store.used = True
        if status == 201:
            if not key.has(body):
                self.wrong("replay", "%s is answered with %r" % (key.letter,
                                                                 body))
            known = self.known(key)
            if known and known != body:
                self.wrong("another", "%s was %r and is %r" % (
                    key.letter, known, body))
            if self.store is not None:
                self.store.known[key.letter] = (body, key.at[-1][1])
                self.store.empty = False
        elif code == "outcome-unknown" and self.known(key):
            self.wrong("lost", "%s was told %r and is unknown now" % (
                key.letter, self.known(key)))
        elif code is None:
            self.wrong("answer", "%s is answered with %d" % (key.letter,
                                                             status))

    def known(self, key):
        """The outcome that the store must have, or None."""
        if self.store is None or key.letter not in self.store.known:
            return None
        body, hour = self.store.known[key.letter]
        return body if self.hour - hour < RETENTION_H else None

    def may_be_refused(self):
        """The witness expects another store; or this one, if a gateway has
        opened it before the gap was over in which it was accepted."""
        s = self.store
        return s.refused or (
            self.witness and s.gap_until_h is not None and not s.used and
            self.hour >= s.gap_until_h)

    # -- what operators did

    def _leave_for_absent(self, since=0.0):
        """Each key that the store does not know and that was executed after
        this steady second may be executed again."""
        for key in self.keys.values():
            if key.letter not in self.store.known and key.at and \
                    key.at[-1][0] >= since:
                key.leave = True

    def opened_empty(self):
        """An empty store was made, as was asked for."""
        self.store = Store()
        self.store.refused = self.witness and any(
            k.bodies for k in self.keys.values())
        if not self.witness:
            self._leave_for_absent()

    def put_back(self, store):
        """An older state lies at the path, and nobody said a word."""
        self.store = store.copy()
        self.store.refused = True
        self._leave_for_absent(time.monotonic() - WITNESS_S if self.witness
                               else 0.0)

    def there(self, store):
        """Another store lies at the path, or none. It is as it was left."""
        self.store = store

    def restored(self, copied, gap):
        """A copy was read into the store at the path, which was empty."""
        if self.store is None:
            self.store = Store()    # `restore` creates what it fills
        self.store.known = dict(copied)
        self.store.refused = False
        self.store.empty = False
        self._gap(gap)

    def adopted(self, gap):
        self.store.refused = False
        self._gap(gap)

    def _gap(self, gap):
        self.store.gap_until_h = self.hour + RETENTION_H
        self.store.used = False
        if gap == "hold":
            self.store.held_until_h = self.hour + RETENTION_H
        else:
            self.store.held_until_h = None      # accept ends it
            self._leave_for_absent()

    # -- what tools said

    def tool(self, name, status, made):
        if made:
            self.wrong("created", "`once %s` made a store" % name)
        if self.store is None and status == 0:
            self.wrong("tool", "`once %s` is content without a store" % name)
        if self.store is not None and status != 0 and name == "verify":
            self.wrong("tool", "`once verify` ends with %d" % status)
