# SPDX-License-Identifier: Apache-2.0
"""
The end check of a fault run: counting alone, from three logs.

    told      what clients read, whole or in part
    executed  what the upstream did, whether its answer went through or not
    store     the rows of the file when all is over

It was written from docs/protocol.md, section 10, and knows nothing of how the
promises are kept: no lease, no state machine, no timing. A key is a path here,
for every case has one of its own. It refuses to know better than the logs: what
cannot be told from them is not checked, and said so where it is.
"""

import collections
import contextlib
import hashlib
import re
import sqlite3
import threading

from gateway import PATIENCE, kept

Told = collections.namedtuple("Told", "key request digest body whole replayed")
Executed = collections.namedtuple("Executed", "key body effect kept")
Row = collections.namedtuple("Row", "phase live kind body")

PHASES = {0: "absent", 1: "granted", 4: "indeterminate"}


def digest_of(response):
    """Of all that must be the same each time it is told."""
    text = repr((response.start, kept(response))).encode() + response.body
    return hashlib.sha256(text).hexdigest()


def by_nginx(response):
    """A page that nginx made itself: nobody's result."""
    return response.status >= 400 and b"<center>nginx" in response.body


class Ledger:
    def __init__(self):
        self.lock = threading.Lock()
        self.told = []
        self.executed = []
        self.words = collections.Counter()

    # -- writing

    def execute(self, key, body, effect=True, kept=True):
        """`effect`: it was applied. `kept`: a repetition may be shown it."""
        with self.lock:
            self.executed.append(Executed(key, body, effect, kept))

    def tell(self, key, request, response):
        """A whole answer. Only results count as told: problems show none."""
        word = response.once or "unguarded"
        if by_nginx(response):
            word = "%d of nginx" % response.status  # nobody's result
            response = None
        elif response.code():
            word = "%d %s" % (response.status, response.code())
        with self.lock:
            self.words[word] += 1
            if response and response.once in ("new", "replayed") and \
                    not response.code():
                self.told.append(Told(
                    key, request, digest_of(response), response.body,
                    not response.truncated, response.replayed))

    def tell_part(self, key, request, data):
        """The beginning of an answer, if it shows anything of a result."""
        with self.lock:
            self.words["cut off"] += 1
            if b"Idempotency-Status: new" in data or \
                    b"Idempotency-Status: replayed" in data:
                body = data.partition(b"\r\n\r\n")[2]
                self.told.append(Told(key, request, None, body, False, False))

    def count(self, key):
        with self.lock:
            return sum(1 for e in self.executed if e.key == key)

    # -- reading

    def check(self, rows, names, outside=()):
        """Returns the violations as lines. `rows` by the name's first digits;
        `names` finds these for a key. `outside`: keys whose record was taken
        away by hand."""
        bad = []
        keys = {t.key for t in self.told} | {e.key for e in self.executed}
        for key in sorted(keys - set(outside)):
            bad += ["%s: %s" % (key, line) for line in
                    self._check_key(key, rows.get(names.get(key)))]
        return bad

    def _check_key(self, key, row):
        done = [e for e in self.executed if e.key == key]
        effects = [e for e in done if e.effect]
        told = [t for t in self.told if t.key == key]
        # What was not applied is told and not recorded; what is not kept is
        # told once at most, and the record says so.
        passing = {e.body for e in done if not e.effect or not e.kept}
        results = [t for t in told if t.body not in passing or
                   (t.whole and not t.body and not passing)]
        for e in done:
            if not e.kept and sum(t.body == e.body for t in told) > 1:
                yield "told twice what is not kept"
        if len(effects) > 1:
            yield "executed %d times (I1)" % len(effects)
        digests = {t.digest for t in results if t.whole}
        if len(digests) > 1:
            yield "%d different answers were told (I2)" % len(digests)
        requests = {t.request for t in results}
        if len(requests) > 1:
            yield "told to %d different requests (I4)" % len(requests)
        for t in results:
            if not any(e.body == t.body if t.whole else
                       e.body.startswith(t.body) for e in done):
                yield "told what the upstream never said"
                break
        if results and row is None:
            yield "told, and there is no record (I3, I7)"
        elif results and row.body is None:
            yield "told, and the record is %s (I3, I7)" % row.phase
        elif any(t.body not in row.body for t in results):
            yield "told what is not in the record (I3)"
        if effects and row is None:
            yield "executed, and the store knows nothing of it (I5)"
        elif effects and row.phase == "absent":
            yield "executed, and the record is absent (I5)"
        if row is not None and row.body is not None and results == [] and \
                not any(e.body in row.body or not e.kept for e in effects):
            yield "recorded what was not executed"


def read_store(path):
    """The rows of a file that nobody writes to any more."""
    rows = {}
    with contextlib.closing(sqlite3.connect(
            "file:%s?mode=ro" % path, uri=True, timeout=PATIENCE)) as db:
        for name, phase, state, kind, body in db.execute(
                "SELECT c.name, c.phase, l.state, r.kind, r.body FROM claim c"
                " LEFT JOIN live l ON l.fence = c.fence"
                " LEFT JOIN result r ON r.fence = c.fence"):
            rows[bytes(name).hex()[:16]] = Row(
                PHASES.get(phase, "phase %s" % phase), state, kind,
                None if body is None else bytes(body))
    return rows


def read_names(access_log):
    """Which key has which name: from the access log's hash."""
    return dict(re.findall(
        r" (/\S+) \d+ once=\S+ .*\battempt=\S* hash=([0-9a-f]{16})",
        access_log))
