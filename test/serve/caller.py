# SPDX-License-Identifier: Apache-2.0
"""
caller.py - calls functions by the middleware for Python, as test_calls.py tells it.

    caller.py sync|async SOCKET

Reads commands, each a line of JSON, and runs them side by side. A command has the
options of the call, and what its function does: a line into `ledger`, waiting for
`takes_ms` and until the file `gate` is there, and then `act`. Answers are lines of JSON with the
command's `n`.
"""
import asyncio
import functools
import json
import os
import pathlib
import sys
import threading
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] /
                       "middleware/python"))
import once  # noqa: E402  pylint: disable=wrong-import-position

LOCK = threading.Lock()
OPTIONS = ("group", "wait_ms", "lease_ms", "run_ms", "keep_ms")


def note(c):
    with open(c["ledger"], "a", encoding="ascii") as f:
        f.write(c["key"] + "\n")


def is_open(c):
    return not c.get("gate") or os.path.exists(c["gate"])


def act(c):
    value = c.get("value")
    if c["act"] == "throw":
        raise OSError("the network")
    if c["act"] == "end":
        raise SystemExit()
    if c["act"] == "not_applied":
        raise once.NotApplied("the queue is full")
    if c["act"] == "failure":
        raise once.Failure(value, c.get("code", 1))
    if c["act"] == "unencodable":
        return object()
    if c["act"] == "shape":
        return 1, {2: 3}
    return value.encode() if c["act"] == "bytes" else value


def work(c):
    note(c)
    time.sleep(c.get("takes_ms", 0) / 1000)
    while not is_open(c):
        time.sleep(0.01)
    return guarded(c["inner"])(c["inner"]) if "inner" in c else act(c)


async def awork(c):
    note(c)
    await asyncio.sleep(c.get("takes_ms", 0) / 1000)
    while not is_open(c):
        await asyncio.sleep(0.01)
    return await guarded(c["inner"])(c["inner"]) if "inner" in c else act(c)


@functools.lru_cache(None)
def decorated(options, fingerprinted):
    # What is not given is not passed on: the middleware has its defaults.
    return once.call(
        key=lambda c: c["key"], serve="unix:" + sys.argv[2],
        fingerprint=(lambda c: c["fingerprint"]) if fingerprinted else None,
        **json.loads(options))(awork if sys.argv[1] == "async" else work)


def guarded(c):
    options = {n: c[n] for n in OPTIONS if n in c}
    return decorated(json.dumps(options, sort_keys=True), "fingerprint" in c)


def shown(c, value):
    """A result that is more in the language than in JSON."""
    return repr(value) if c["act"] == "shape" else value


def told(value):
    return {"bytes": value.decode()} if isinstance(value, bytes) else \
        {"json": value}


def failed(wrong):
    out = {"error": type(wrong).__name__, "text": str(wrong)}
    for name in "retry_after_ms", "code":
        if hasattr(wrong, name):
            out[name] = getattr(wrong, name)
    if isinstance(wrong, once.Failed):
        out.update(told(wrong.result))
    return out


def say(c, out):
    with LOCK:
        print(json.dumps(dict(out, n=c["n"])), flush=True)


def serve(c):
    try:
        say(c, told(shown(c, guarded(c)(c))))
    except BaseException as wrong:  # pylint: disable=broad-except
        say(c, failed(wrong))


async def aserve(c):
    try:
        say(c, told(shown(c, await guarded(c)(c))))
    except BaseException as wrong:  # pylint: disable=broad-except
        say(c, failed(wrong))


async def amain():
    tasks, loop = [], asyncio.get_running_loop()
    while line := await loop.run_in_executor(None, sys.stdin.readline):
        tasks.append(loop.create_task(aserve(json.loads(line))))


def main():
    for line in sys.stdin:
        threading.Thread(target=serve, args=(json.loads(line),),
                         daemon=True).start()


if __name__ == "__main__":
    if sys.argv[1] == "async":
        asyncio.run(amain())
    else:
        main()
