# SPDX-License-Identifier: Apache-2.0
"""The oracle: what a run shows, held against the contract (docs/http.md).

    twice      a guarded request was executed twice: by one attempt, or by a
               later one although the earlier one's answer does not free the key
    again      likewise, where an X-Accel-Redirect led: its target got more
               than one guarded request for each such answer
    aged       a key that is too old was executed
    unguarded  a guarded request went out without an attempt number
    unwhole    an answer is marked `new` or `replayed`, and no whole answer of
               an upstream stands behind it
    short      such an answer is not what its upstream sent
    differs    a replay is not the first answer
    headers    likewise, but only its headers
    freed      a replay of an answer that frees its key: another one decided;
               a repeat that is refused counts as a replay
    taken      a gateway's error was shown or recorded as the outcome
    crossed    an answer was made for another key or another request
    lost       an outcome that was whole, or said to be new, was not kept
    nothing    a client that stayed got no answer
    mismatch   a repeat was taken for another request; or the key on another
               path was, although it is of that path
    looked     a lookup was passed on, or does not tell what a repeat was told
               just before it
    alarm      the error log has an alert, or a process died
"""

import collections
import contextlib
import json

import upstream
from drive import READ_TIMEOUT

# Headers of nginx that are the same in a replay. Over HTTP/2 it sends the first
# one not with a 204.
KEPT = ("content-type", "location", "etag", "last-modified", "content-range")


def kept(answer):
    """The headers that have to be the same."""
    return [(name.lower(), value) for name, value in answer.head.headers
            if name.lower() in KEPT[answer.status == 204:] or
            name.lower().startswith("x-up-")]


class Verdict:
    def __init__(self, run):
        self.run = run
        self.case = run.case
        self.broken = []        # (kind, text)
        self.seen = collections.Counter()
        if run.refused is None:
            self._judge()

    def _bad(self, kind, text, *more):
        self.broken.append((kind, text % more))

    @property
    def kinds(self):
        return {kind for kind, _ in self.broken}

    def _judge(self):
        for e in self.run.log.executions:
            e.meant = e.whole
            if not e.done:
                e.whole = "no"      # it was never sent
            elif e.whole == "no" and e.status >= 300 and \
                    "_intercept_errors on" in self.case.config():
                e.whole = "maybe"   # intercepted: the head is enough
            if not e.guarded:
                self.seen["pages and other requests"] += 1
            elif e.attempt is None:
                self._bad("unguarded", "%s", e)
            elif e.key in self.run.aged:
                self._bad("aged", "%s", e)
        groups = collections.defaultdict(list)
        for a in self.run.answers:
            self._answer(a)
            if a.method == "LOOK":
                self._looked(a)
            elif a.key and a.method != "GET":
                groups[self._record(a)].append(a)
        for record, answers in groups.items():
            executions = [e for e in self.run.log.executions
                          if e.guarded and self._record(e) == record]
            self._executions(executions)
            self._answers(answers, executions)

    def _elsewhere(self, x):
        """Whether an answer, or an execution, is of the other path."""
        return any(a.send == x.send and a.elsewhere for a in self.run.answers)

    def _record(self, x):
        """What its record is named by. Requests with other methods or on the
        other path have one, unless keys are of a path: then what executes of
        both has executed twice."""
        of_path = self.case.of_path()
        return (x.key, of_path and x.method, of_path and self._elsewhere(x))

    def _reusable(self, a):
        """Whether its key may belong to a request with another method or to
        the other path."""
        return any(
            b.method not in ("GET", "LOOK") and
            self._record(b) == self._record(a) and
            (b.elsewhere, b.method) != (a.elsewhere, a.method)
            for b in self.run.answers)

    # -- rule 1

    def must_free(self, e):
        """Whether its answer, which cannot have been missed, frees the key."""
        if e.outcome:
            return e.outcome == "not-applied"
        return self.case.frees(e.status)

    def lost(self, e):
        """Whether its answer is a gateway's error, which is no outcome."""
        return not e.outcome and e.role != "target" and \
            self.case.lost(e.status)

    def frees(self, e):
        """Whether another attempt may follow this execution."""
        if e.whole == "no":
            return self.case.takes_over() or (
                e.status and self.must_free(e) and self._streamed(e))
        if self.must_free(e):
            return True
        # The gateway may take it for lost: a page that it refused, a time-out.
        return self.case.takes_over() and (
            e.outcome == "unknown" or self.lost(e) or not any(
                a.send == e.send and a.mark == "new"
                for a in self.run.answers))

    def _streamed(self, e):
        """Whether the head was passed on before the rest was there: then it
        decides by itself."""
        return e.streamed or "_buffering off" in self.case.config() or any(
            a.send == e.send and a.mark == "new" and a.truncated
            for a in self.run.answers)

    def _executions(self, executions):
        own = [e for e in executions if e.role != "target"]
        attempts = collections.Counter(e.attempt for e in own)
        for e in own:
            self.seen["executions"] += 1
        for attempt, n in attempts.items():
            if n > 1:
                self._bad("twice", "attempt %s was executed %d times",
                          attempt, n)
        for before, after in zip(own, own[1:]):
            if before.attempt == after.attempt:
                continue
            if self.frees(before):
                self.seen["executed again, as it may be"] += 1
            else:
                self._bad("twice", "%s, and then %s", before, after)
        for attempt in {e.attempt for e in executions}:
            mine = [e for e in executions if e.attempt == attempt]
            led = len([e for e in mine if e.accel])
            targets = len([e for e in mine if e.role == "target"])
            if targets > led:
                self._bad("again", "attempt %s: %d at the target, led there "
                          "%d times", attempt, targets, led)

    # -- rules 2 to 5, an answer by itself

    def _answer(self, a):
        if a.left:
            self.seen["clients that left"] += 1
            return
        if a.head is None:
            # nginx takes what has no head for HTTP/0.9 and passes it on so.
            # The filter may end a connection in the middle of its response.
            if "image_filter" in self.case.config():
                return
            # A worker that ends closes connections on which nothing was read.
            if not self.run.stays and not any(
                    e.send == a.send for e in self.run.log.executions):
                return
            if not a.body or any(e.guarded and e.send == a.send
                                 for e in self.run.log.executions):
                self._bad("nothing", "%s", a)
            return
        self.seen["answers " + (a.mark or a.code or "unmarked")] += 1
        if a.code == "key-reused" and not self._reusable(a):
            self._bad("mismatch", "%s", a)
        if a.mark not in ("new", "replayed") or a.truncated:
            return
        number = upstream.number_of(a.body)
        if number is None:
            return
        e = {x.number: x for x in self.run.log.executions}.get(number)
        if e is not None and not e.guarded and e.send != a.send and \
                "cache_methods POST" not in self.case.config():
            return              # a page may come from a cache
        if e is None or e.key != a.key or self._elsewhere(e) != a.elsewhere:
            self._bad("crossed", "%s shows %s", a, e)
        elif a.mark == "new" and e.send != a.send:
            self._bad("crossed", "%s shows %s", a, e)
        elif a.body != e.body and e.whole == "yes":
            self._bad("short", "%s: %d bytes of %d of %s", a, len(a.body),
                      len(e.body), e)

    # -- lookups

    # What a repeat was told, as words of its answer -> what a lookup may say.
    SAME = {"replayed": ("completed",), "already-done": ("completed",),
            "response-unavailable": ("completed",),
            "outcome-unknown": ("indeterminate",), "key-expired": ("absent",)}

    def _looked(self, a):
        if any(e.send == a.send for e in self.run.log.executions):
            self._bad("looked", "%s was passed on", a)
        if a.head is None or a.truncated:
            return
        if a.code == "store-unavailable" and not self.run.stays:
            return
        state = None
        with contextlib.suppress(ValueError):
            state = json.loads(a.body).get("state")
        self.seen["lookups " + str(state)] += 1
        if a.status != 200 or state not in (
                "absent", "in-flight", "completed", "indeterminate"):
            self._bad("looked", "%s", a)
            return
        if state == "completed" and not any(
                e.key == a.key and e.guarded
                for e in self.run.log.executions):
            self._bad("looked", "%s, and nothing was executed", a)
        last = [x for x in self.run.answers if x.key == a.key and
                x.method not in ("GET", "LOOK") and ".end" in x.send]
        if ".look" not in a.send or not last or last[-1].truncated:
            return
        word = last[-1].code or last[-1].mark
        if state not in self.SAME.get(word, (state,)):
            self._bad("looked", "%s, after %s", a, last[-1])

    # -- rules 2 to 5, the answers for one key

    def _answers(self, answers, executions):
        own = [e for e in executions if e.role != "target"]
        news = []
        told = None             # an answer that has to stay
        for a in answers:
            mine = [e for e in own if e.send == a.send]
            last = mine[-1] if mine else None
            if last is not None and self._known(last):
                told = told or a
            if a.left:
                told = told or self._left(a, last)
                continue
            if a.mark == "new" and mine:
                if self.lost(last) and last.whole == "yes":
                    self._bad("taken", "%s shows %s", a, last)
                if all(e.whole == "no" for e in mine) and not a.truncated:
                    self._bad("unwhole", "%s, but %s", a, last)
                elif not self.frees(last) and not a.truncated:
                    news.append(a)
                    if last.outcome != "unknown":
                        told = told or a
            elif a.mark == "replayed" or a.code == "already-done":
                self._replay(a, own)
            if told is not None and told is not a and \
                    a.code == "outcome-unknown" and \
                    "twice" not in a.line.split() and (
                        self.run.stays or ".end" in a.send):
                self._bad("lost", "%s, after %s", a, told)
        self._compare(news, [a for a in answers if a.mark == "replayed"])

    def _known(self, e):
        """Whether its answer came whole and in time: then its outcome is known,
        whatever is shown to the client, and whether or not it waits."""
        config = self.case.config()
        return (e.role == "main" and e.whole == "yes" and e.done and
                not e.gone and e.status <= 599 and
                e.outcome in (None, "applied", "no-store") and
                not self.must_free(e) and not self.lost(e) and e.seconds < READ_TIMEOUT / 2 and
                "early" not in e.line.split() and "big" not in e.line.split()
                and "_cache " not in config and "_limit_rate" not in config
                and "image_filter" not in config)

    def _left(self, a, last):
        """What a client that left will find, if its upstream did its part."""
        if last is None or last.meant != "yes" or last.accel or \
                last.outcome or self.case.frees(last.status) or \
                self.lost(last) or \
                last.role != "main" or last.seconds > READ_TIMEOUT / 2 or \
                "_intercept_errors on" in self.case.config():
            return None
        if last.gone:
            self._bad("lost", "%s: nginx closed before its answer", last)
            return None
        return a if last.done else None

    def _replay(self, a, own):
        # A stream is recorded before its first byte leaves, cut or not.
        behind = [e for e in own if e.whole != "no" or (
            a.code == "already-done" and self._streamed(e))]
        if not behind:
            self._bad("unwhole", "%s, and nothing whole", a)
        elif all(e.whole == "yes" and self.must_free(e) for e in behind):
            self._bad("freed", "%s, but %s", a, behind[-1])
        elif all(e.whole == "yes" and (self.must_free(e) or self.lost(e))
                 for e in behind):
            self._bad("taken", "%s, but %s", a, behind[-1])

    def _compare(self, news, replays):
        for a in replays:
            if a.truncated:
                self._bad("differs", "%s is cut off", a)
        if not news or "image_filter" in self.case.config():
            return              # what the filter makes of it is its own
        first = news[0]
        for a in replays:
            if a.truncated:
                continue
            self.seen["replays that were compared"] += 1
            if (a.status, a.body) != (first.status, first.body):
                self._bad("differs", "%s, but first %s", a, first)
            elif kept(a) != kept(first):
                self._bad("headers", "%s, but first %s", kept(a),
                          kept(first))

    def trace(self):
        """What happened, for whoever reads a failure."""
        out = []
        for kind, text in self.broken:
            out.append("%s: %s" % (kind, text))
        for a in self.run.answers:
            out.append("client %s" % a)
            out += ["    %s" % e for e in self.run.log.executions
                    if e.send == a.send]
        return [line.replace(self.run.id, "c") for line in out]
