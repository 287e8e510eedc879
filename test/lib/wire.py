# SPDX-License-Identifier: Apache-2.0
"""
Faults on the wire, by the fault proxy, for runs that play faults: a run has
`proxy`, `rng`, `nap(least, most)`, and `hits` for what the proxy does not count.
"""

FAULTS = {}


def fault(name):
    def register(function):
        FAULTS[name] = function
        return function
    return register


def wire(run, *commands):
    for command in commands:
        run.proxy.do(command)


@fault("swallow")
def swallow(run):
    """What the server says is lost; it has done what it was asked."""
    wire(run, "open down swallow 0")
    run.nap(0.2, 0.6)
    wire(run, "drop rst")


@fault("silence")
def silence(run):
    """The same, and nobody says that it is over: the driver's patience."""
    wire(run, "open down swallow 0")


@fault("deaf")
def deaf(run):
    """What the server is asked is lost."""
    wire(run, "open up swallow %d" % run.rng.choice([0, 0, 1, 17, 200, 1000]))
    run.nap(0.2, 0.6)
    wire(run, "drop fin")


@fault("cut-answer")
def cut_answer(run):
    """Behind each byte in turn, over the whole of the first kilobyte."""
    run.walk = getattr(run, "walk", -1) + 1
    wire(run, "open down cut %d %s" % (run.walk % 1024,
                                       run.rng.choice(["rst", "fin"])))


@fault("cut-question")
def cut_question(run):
    run.walk = getattr(run, "walk", -1) + 1
    wire(run, "open up cut %d %s" % (run.walk % 1024,
                                     run.rng.choice(["rst", "fin"])))


@fault("half-close")
def half_close(run):
    wire(run, "open %s half %d" % (run.rng.choice(["up", "down"]),
                                   run.rng.randrange(2000)))
    run.nap(0.1, 0.4)
    wire(run, "drop rst")


@fault("hold")
def hold(run):
    """Held, and let go again: nothing is lost, all is late."""
    wire(run, "open %s hold %d" % (run.rng.choice(["up", "down"]),
                                   run.rng.randrange(500)))
    run.nap(0.05, 1)
    wire(run, "clear")


@fault("delay")
def delay(run):
    ms = run.rng.choice([5, 50, 300])
    for who in ("new", "open"):
        wire(run, "%s down delay %d" % (who, ms), "%s up delay %d" % (who, ms))
    run.hits += 1
    run.nap(0.3, 1)
    wire(run, "clear")


@fault("slow")
def slow(run):
    """So few bytes a second that a batch takes its time."""
    rate = run.rng.choice([2000, 20000, 200000])
    for who in ("new", "open"):
        wire(run, "%s down rate %d" % (who, rate))
    run.hits += 1
    run.nap(0.3, 1)
    wire(run, "clear")


@fault("reset")
def reset(run):
    wire(run, "drop rst")


@fault("refuse")
def refuse(run):
    """Nobody gets through for a while."""
    wire(run, "refuse", "drop rst")
    run.nap(0.2, 1.5)
    wire(run, "accept")
