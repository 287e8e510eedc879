# SPDX-License-Identifier: Apache-2.0
"""
JSON bodies, read by a second implementation: Python's json module with hooks,
and its decimal numbers. It draws documents, says what Once must make of each,
and compares that with what json_answers.c prints: what is compared (or that the
bytes are), and the key.

    test/fuzz/json_peer.py [--documents 1000000] [--seed 1] [--program FILE]

Most documents are drawn from few names and values, so that they come near each
other; others are broken at one place, or repeat another one in other bytes.
"""

import argparse
import decimal
import hashlib
import json
import os
import pathlib
import random
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUILD = pathlib.Path(os.environ.get("ONCE_BUILD", ROOT / "build"))
PROGRAM = BUILD / "test/json_answers"

MOST, DEEPEST, KEY = 65536, 64, 255


# ---- The second implementation -------------------------------------------


class No(Exception):
    """It cannot be compared, or is no key."""


class Number(str):
    """As it was written."""


class Members(list):
    """Pairs in their order, with repetitions."""


def constant(text):
    raise ValueError(text)


def read(data):
    if len(data) > MOST:
        raise No
    try:
        value = json.loads(
            data.decode(), object_pairs_hook=Members, parse_float=Number,
            parse_int=Number, parse_constant=constant)
    except (ValueError, RecursionError):
        raise No from None
    if depth(value) > DEEPEST:
        raise No
    return value


def depth(value):
    if isinstance(value, Members):
        return 1 + max([depth(v) for _, v in value], default=0)
    if isinstance(value, list):
        return 1 + max([depth(v) for v in value], default=0)
    return 0


def frame(data):
    return len(data).to_bytes(8, "little") + data


def text(value):
    try:
        return b"s" + frame(value.encode())
    except UnicodeEncodeError:          # half of a surrogate pair
        raise No from None


def number(value):
    mantissa, _, exponent = value.lower().partition("e")
    if len(exponent.lstrip("+-").lstrip("0")) > 18:
        raise No
    sign, digits, shift = decimal.Decimal(mantissa).as_tuple()
    digits = "".join(map(str, digits)).lstrip("0")
    power = int(exponent or 0) + shift + len(digits) - len(digits.rstrip("0"))
    digits = digits.rstrip("0")
    if not digits:
        sign = power = 0
    return b"d" + b"+-"[sign:sign + 1] + frame(digits.encode()) + \
        power.to_bytes(8, "little", signed=True)


def canonical(value):
    if isinstance(value, Members):
        names = [text(name)[9:] for name, _ in value]
        if len(set(names)) < len(names):
            raise No
        # Each is looked at, also where it is left out.
        made = {name: (v is LEFT_OUT or canonical(v))
                for name, (_, v) in zip(names, value)}
        return b"o" + b"".join(
            b"s" + frame(name) + made[name] for name in sorted(made)
            if made[name] is not True) + b"e"
    if isinstance(value, list):
        return b"a" + b"".join(map(canonical, value)) + b"e"
    if isinstance(value, Number):
        return number(value)
    if isinstance(value, str):
        return text(value)
    return {None: b"n", False: b"f", True: b"t"}[value]


LEFT_OUT = object()


def tokens(pointer):
    return [t.replace("~1", "/").replace("~0", "~")
            for t in pointer.split("/")[1:]]


def leave_out(value, names):
    """In place. The value has been looked at as it is."""
    for last, name in zip(range(len(names) - 1, -1, -1), names):
        if isinstance(value, Members):
            at = [n for n, _ in value].index(name) \
                if name in [n for n, _ in value] else None
            if at is None:
                return
            if last == 0:
                value[at] = (name, LEFT_OUT)
            value = value[at][1]
        elif isinstance(value, list) and name.isascii() and \
                name.isdigit() and str(int(name)) == name and \
                int(name) < len(value):
            value = value[int(name)]
        else:
            return


def compared(data, but):
    try:
        value = read(data)
        canonical(value)
        if but is not None:
            leave_out(value, tokens(but))
        return hashlib.sha256(canonical(value)).hexdigest()
    except No:
        return "bytes"


def part_of(value, names):
    """The text of one pointer, or None."""
    for name in names:
        if value is None:
            return None
        if isinstance(value, Members):
            found = [v for n, v in value if n == name]
            if len(found) > 1:
                raise No
            value = found[0] if found else None
            if not found:
                return None
        elif isinstance(value, list):
            if name == "-":
                return None
            if not (name.isascii() and name.isdigit() and
                    str(int(name)) == name):
                raise No
            if int(name) >= len(value):
                return None
            value = value[int(name)]
        else:
            raise No
    if value is None:
        return None
    if isinstance(value, Number):
        if value == "-0" or set(value) & set(".eE"):
            raise No
        return value
    if not isinstance(value, str) or not value or \
            any(not "!" <= c <= "~" for c in value):
        raise No
    return value


def key(data, pointers):
    try:
        value = read(data)
        parts = [part_of(value, tokens(p)) for p in pointers]
        if any(p is not None and len(p) > KEY for p in parts):
            raise No
        if None in parts:
            if any(p is not None for p in parts):
                raise No
            return "none"
        out = parts[0] if len(parts) == 1 else \
            "".join("%d:%s," % (len(p), p) for p in parts)
        if len(out) > KEY:
            raise No
        return "key " + out
    except No:
        return "refused"


# ---- Drawn documents -----------------------------------------------------

NAMES = ["a", "b", "id", "", "a/b", "~", "0", "ä", "\U0001d11e", "B", "aa"]
POINTERS = ["/id", "/a", "/a/id", "/a/b", "/b/0", "/a/0/id", "/0", "/-", "/01",
            "", "/", "/a~1b", "/~0", "/ä", "/\U0001d11e", "/b/id", "/aa"]
CHARS = "abk7 \t\n\"\\/~,\0\x7f\x80äé\u20ac\ud834\udd1e\U0001d11e\uffff"


class Maker(random.Random):
    def number(self):
        kind = self.randrange(4)
        if kind == 0:
            return self.choice(["0", "-0", "7", "-7", "10", "1.0", "0.0",
                                "9007199254740993", "1e0"])
        digits = "".join(self.choices("0015", k=self.randint(1, 25)))
        out = self.choice(["", "-"]) + (digits.lstrip("0") or "0")
        if kind > 1:
            out += "." + "".join(self.choices("001", k=self.randint(1, 5)))
        if kind > 2:
            out += self.choice("eE") + self.choice(["", "+", "-"]) + \
                self.choice(["0", "1", "007", "18", "999999999999999999",
                             "0001000000000000000000"])
        return out

    def string(self, of):
        out = '"'
        for c in of:
            how = self.randrange(8)
            if how == 0 or c in "\"\\\t\n\0" or "\ud800" <= c < "\ue000":
                units = c.encode("utf-16-be", "surrogatepass").hex()
                out += "".join("\\u" + self.choice([
                    units[i:i + 4], units[i:i + 4].upper()])
                    for i in range(0, len(units), 4))
            elif how == 1 and c == "/":
                out += "\\/"
            else:
                out += c
        return out + '"'

    def white(self):
        return self.choice(["", "", "", "", " ", "\n\t", "\r"])

    def value(self, deep):
        kind = self.randrange(9 if deep < 4 else 6)
        if kind < 2:
            return self.number()
        if kind < 4:
            return self.string(self.choices(
                CHARS if self.randrange(3) == 0 else "abk7", k=self.choice(
                    [0, 1, 2, 5] + [120, 254, 256] * (self.random() < 0.1))))
        if kind < 6:
            return self.choice(["null", "null", "true", "false"])
        w = self.white
        if kind == 6:
            return "[" + w() + ("," + w()).join(
                self.value(deep + 1) + w()
                for _ in range(self.randint(0, 3))) + "]"
        return self.object(self.sample(NAMES, self.randint(0, 5)), deep)

    def object(self, names, deep):
        w = self.white
        if names and self.randrange(15) == 0:
            names.append(self.choice(names))
        return "{" + w() + ("," + w()).join(
            self.string(n) + w() + ":" + w() + self.value(deep + 1) + w()
            for n in names) + "}"

    def broken(self, data):
        at = self.randrange(len(data) + 1)
        kind = self.randrange(4)
        if kind == 0:
            return data[:at]
        if kind == 1:
            return data[:at] + data[at + 1:]
        return data[:at] + (bytes([self.randrange(256)]) if kind == 2 else
                            self.choice(b'"\\,:[]{}0.-e/u ').to_bytes(1, "big")
                            ) + data[at + (kind == 2):]

    def odd(self):
        """At the limits."""
        kind = self.randrange(4)
        n = self.choice([DEEPEST - 1, DEEPEST, DEEPEST + 1, 2 * DEEPEST])
        if kind == 0:
            return b"[" * n + b"]" * n
        if kind == 1:
            return b'{"a":' * n + b"1" + b"}" * n
        n = MOST + self.randint(-1, 1)
        if kind == 2:
            return b'"' + b"a" * (n - 2) + b'"'
        return b'{"id":7' + b" " * (n - 8) + b"}"

    def document(self):
        kind = self.random()
        if kind < 0.0005:
            return self.odd()
        data = (self.white() + (
            self.value(0) if kind < 0.1 else
            self.object(self.sample(NAMES[:5], self.randint(1, 4)), 0)) +
            self.white()).encode()
        return self.broken(data) if kind > 0.8 else data

    def case(self):
        one, two, but = (self.choice(POINTERS if self.randrange(3) else
                                     POINTERS[:3]) for _ in range(3))
        return (one, two if self.randrange(3) == 0 else None,
                but if self.randrange(2) and but else None, self.document())


# ---- Comparing -----------------------------------------------------------


def batch(maker, n, program):
    """What n documents were: a count of each kind of answer."""
    cases = [maker.case() for _ in range(n)]
    data = b"".join(
        b"%d\n%s" % (len(f), f) for one, two, but, document in cases
        for f in (one.encode(), (two if two is not None else "-").encode(),
                  (but if but is not None else "-").encode(), document))
    done = subprocess.run([program], input=data, capture_output=True,
                          check=True)
    lines = done.stdout.decode().split("\n")
    assert len(lines) == n + 1, done.stderr[-300:]
    seen = {}
    for (one, two, but, document), line in zip(cases, lines):
        answer = key(document, [one] if two is None else [one, two])
        wanted = compared(document, but) + " " + answer
        if line != wanted:
            raise AssertionError("%r, key %r %r, but %r: %s, not %s" % (
                document[:2000], one, two, but, line, wanted))
        for word in (answer.split()[0],
                     "bytes" if wanted.startswith("bytes") else "compared"):
            seen[word] = seen.get(word, 0) + 1
    return seen


def run(documents, seed, program=PROGRAM, size=20000):
    maker = Maker(seed)
    total = {}
    for at in range(0, documents, size):
        seen = batch(maker, min(size, documents - at), program)
        for word, n in seen.items():
            total[word] = total.get(word, 0) + n
    return total


def main():
    parser = argparse.ArgumentParser(description=__doc__.strip().split("\n")[0])
    parser.add_argument("--documents", type=int, default=1000000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--program", default=PROGRAM)
    args = parser.parse_args()
    sys.setrecursionlimit(10000)
    print(run(args.documents, args.seed, args.program))


if __name__ == "__main__":
    main()
