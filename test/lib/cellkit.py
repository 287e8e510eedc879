# SPDX-License-Identifier: Apache-2.0
"""
What programs that play faults have in common: their options, which cells are
asked for, and the lines that they print, TAP with figures.
"""

import argparse
import fnmatch
import os
import pathlib
import subprocess
import sys
import time
import traceback

ROOT = pathlib.Path(__file__).resolve().parents[2]


class Broken(Exception):
    """What must not happen has happened."""


class Skip(Exception):
    """What is needed is not there."""


def options(usage):
    """A parser; those who call add how much there is to do."""
    parser = argparse.ArgumentParser(usage=usage.replace("%", "%%"))
    parser.add_argument("--build", type=pathlib.Path, default=ROOT / "build")
    parser.add_argument("--faults", type=int, default=0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--short", action="store_true")
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--keep", help="a folder for what a broken cell left")
    parser.add_argument("--trace", action="store_true")
    parser.add_argument("pattern", nargs="*")
    return parser


def read(parser):
    args = parser.parse_args()
    args.build = args.build.resolve()
    os.environ["ONCE_BUILD"] = str(args.build)
    return args


def wanted(args, cells, short):
    """Those of `cells`, tuples of words, that were asked for."""
    for cell in cells:
        text = " ".join(cell)
        if args.short and text not in short:
            continue
        if args.pattern and not any(fnmatch.fnmatch(text, "*%s*" % p)
                                    for p in args.pattern):
            continue
        yield cell


def keep(args, folder):
    """What a broken cell has left."""
    if args.keep:
        os.makedirs(args.keep, exist_ok=True)
        subprocess.run(["cp", "-a", folder, args.keep], check=False)


def one(args, n, cell, play):
    """Plays a cell: play(args, *cell) returns figures and what is wrong. Prints
    its lines; returns whether it failed."""
    started = time.monotonic()
    bad, text, name = [], "", " ".join(cell)
    try:
        text, bad = play(args, *cell)
    except Skip as skip:
        print("ok %d - %s # SKIP %s" % (n, name, skip), flush=True)
        return False
    except (Broken, RuntimeError, OSError, subprocess.SubprocessError) as e:
        bad = [str(e)]
        if args.trace:
            traceback.print_exc()
    print("%s %d - %s" % ("not ok" if bad else "ok", n, name))
    if text:
        print("#   %s, %d s" % (text, time.monotonic() - started))
    for line in bad[:10]:
        print("#   %s" % line)
    if len(bad) > 10:
        print("#   and %d more" % (len(bad) - 10))
    sys.stdout.flush()
    return bool(bad)


def run(args, todo, faults, play, what):
    """All of it; `todo` are cells that end with the name of their fault."""
    if args.list:
        for cell in todo:
            print("%-28s %s" % (" ".join(cell), (
                faults[cell[-1]][0].__doc__ or "").strip().split("\n")[0]))
        return 0
    print("1..%d\n# seed %d, %s a cell" % (len(todo), args.seed, what))
    failed = sum([one(args, n, cell, play) for n, cell in enumerate(todo, 1)])
    print("# %d cells, %d failed" % (len(todo), failed))
    return 1 if failed or not todo else 0
