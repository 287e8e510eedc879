# SPDX-License-Identifier: Apache-2.0
"""
draw.py - one case for a web framework, made from its number.

A case is what the application does (`do`), how the first client sends its
request and when it leaves, and the requests that follow with the same key. It
refuses to draw what a framework cannot do: frameworks.py lists that.
"""

import dataclasses
import random

FRAMING = ("length", "length", "chunked")


@dataclasses.dataclass
class Send:
    """One request. `order` names the body: A, or B for another order."""

    order: str = "A"
    framing: str = "length"
    pieces: int = 1             # the body is sent in so many parts
    delay_ms: int = 0           # after the first request was sent
    leave: str = ""             # head, part, body, answer; or "" to stay
    leave_ms: int = 0           # with `body`: so long after the last byte


@dataclasses.dataclass
class Case:
    number: int
    framework: str
    key: str
    do: dict
    size: int                   # bytes of the order
    sends: list


def _weighted(rng, table):
    """One of the words; the number is its weight."""
    words, weights = zip(*table)
    return rng.choices(words, weights)[0]


OUTER = (("", 10), ("read", 3), ("peek", 1), ("restore", 2))
AFTER = (("", 12), ("raise", 3), ("timeout", 1), ("cancel", 1))
ANSWER = (("plain", 8), ("stream", 4), ("file", 2), ("large", 1),
          ("empty", 1), ("short", 1), ("error", 1))
LEAVE = (("", 8), ("head", 1), ("part", 1), ("body", 6), ("answer", 1))
EXTRA = ("early_hints", "continue", "trailers", "debug", "flush")
SIZES = (0, 1, 40, 400, 4000, 70000, 200000)


def _do(rng, cannot):
    do = {"outer": _weighted(rng, OUTER), "after": _weighted(rng, AFTER),
          "answer": _weighted(rng, ANSWER),
          "catch": rng.random() < 0.3, "inner_catch": rng.random() < 0.4,
          "fingerprint": rng.random() < 0.15,
          "before": "raise" if rng.random() < 0.05 else "",
          "sleep_ms": rng.choice((0, 0, 0, 20, 100, 300)),
          "extra": [x for x in EXTRA if rng.random() < 0.12
                    and ("extra", x) not in cannot]}
    return {name: value for name, value in do.items()
            if value and name not in cannot and
            (name == "extra" or (name, value) not in cannot)}


def _first(rng):
    leave = _weighted(rng, LEAVE)
    return Send("A", rng.choice(FRAMING), rng.choice((1, 1, 2, 3)), 0, leave,
                rng.choice((0, 5, 30, 100)) if leave == "body" else 0)


def _other_may_follow(first):
    """Another order under the same key says something only where the first one
    has reached the application whole."""
    return first.leave not in ("head", "part")


def case(number, framework, cannot):
    """The case with this number: the same one each time."""
    rng = random.Random("%s %d" % (framework, number))
    first = _first(rng)
    sends = [first]
    for _ in range(rng.choice((1, 1, 2, 3))):
        other = _other_may_follow(first) and rng.random() < 0.35
        sends.append(Send("B" if other else "A", rng.choice(FRAMING),
                          rng.choice((1, 2)), rng.choice((60, 150, 400))))
    return Case(number, framework, "case-%s-%d" % (framework, number),
                _do(rng, cannot), rng.choice(SIZES), sends)
