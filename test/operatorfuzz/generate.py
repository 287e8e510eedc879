# SPDX-License-Identifier: Apache-2.0
"""A day for each seed: single steps, and sequences that operators go through,
in any order, with requests between all of them."""

import random

KEYS = "ABCDEF"
GAPS = ("hold", "hold", "accept")

SINGLE = {
    "pay": 30, "hold": 4, "release": 4, "reload": 3, "kill-worker": 2,
    "kill": 2, "stop": 2, "start": 6, "pause": 2, "resume": 3, "copy": 2,
    "verify": 1, "ls": 1, "stats": 1, "check": 1, "purge": 2, "hands": 2,
    "hours": 1, "clock": 1, "fill": 1, "unfill": 2, "init": 1,
}


class Day(random.Random):
    def __init__(self, seed):
        super().__init__(seed)
        self.lines = []
        self.numbers = 0
        self.kind = self.choice(("journal", "journal", "sqlite", "sqlite",
                                 "postgres"))
        self.witness = self.random() < 0.7
        self.workers = self.choice((1, 1, 2))

    def add(self, *lines):
        self.lines += lines

    def pays(self, most=4):
        for _ in range(self.randint(1, most)):
            self.add("pay %s%s" % (self.choice(KEYS), self.choice(
                ("", "", "", " other"))))

    def number(self):
        self.numbers += 1
        return "%d" % self.numbers

    def single(self):
        verb = self.choices(list(SINGLE), list(SINGLE.values()))[0]
        if verb in ("pay", "hold"):
            verb += " " + self.choice(KEYS)
        elif verb in ("start", "stop"):
            verb += self.choice(("", "", " other"))
        elif verb == "copy":
            verb += " " + self.number()
        elif verb in ("hours", "clock"):
            verb += " %d" % self.choice((1, 5, 23, 25, 49))
        self.add(verb)

    # -- what operators do

    def end_of_gateways(self):
        self.add(*self.choice((["kill"], ["stop", "stop other"])))

    def missing_disk(self):
        self.end_of_gateways()
        self.add("umount", "start")
        self.pays()
        self.add(*self.sample(("ls", "stats", "check", "verify", "purge"), 2))
        self.add("stop", "mount", "start")
        self.pays()

    def moved(self):
        self.add("away")
        self.pays(2)
        self.add(*self.sample(("reload", "check", "stop", "kill-worker"), 2))
        self.add("start")
        self.pays(2)
        self.end_of_gateways()
        self.add("back", "start")
        self.pays()

    def new_store(self):
        """An empty one in its place, by mistake or on purpose."""
        self.pays()
        self.add("away", "init", *self.choice(([], ["start"])))
        self.pays(2)
        if self.random() < 0.7:
            self.end_of_gateways()
            self.add("start")
            self.pays(2)
        if self.random() < 0.7:
            self.add("adopt " + self.choice(GAPS))
            if self.random() < 0.2:
                self.add("hours 25")
            self.end_of_gateways()
            self.add("start")
        self.pays()

    def lost_disk(self):
        """A copy, work, the store is gone, an empty one, the copy is read."""
        n = self.number()
        self.pays()
        self.add("copy " + n)
        self.pays()
        self.add("away")
        if self.random() < 0.8:
            self.add("init", *self.choice(([], ["start"], ["start",
                                                           "start other"])))
        if self.random() < 0.5:
            self.end_of_gateways()
        if self.random() < 0.2:
            self.add("pause")
        self.add("restore %s %s" % (n, self.choice(GAPS)))
        self.add("resume", "start")
        self.pays(6)

    def older_state(self):
        n = self.number()
        self.pays()
        self.end_of_gateways()
        self.add("snapshot " + n, "start")
        self.pays()
        self.end_of_gateways()
        self.add("put-back " + n, "start")
        self.pays(2)
        if self.random() < 0.6:
            self.end_of_gateways()
            self.add("adopt " + self.choice(GAPS), "start")
        self.pays()

    def other_hands(self):
        self.add("hands")
        self.pays(2)
        self.add(*self.choice((["reboot"], ["kill", "reboot"],
                               ["kill", "hands", "start", "reboot"])))
        self.add("start")
        self.pays()

    def full_disk(self):
        self.add("fill")
        self.pays()
        self.add(*self.choice(([], ["kill"], ["reload"], ["stop"])))
        self.add("start")
        self.pays(2)
        self.add("unfill")
        self.pays()


SEQUENCES = (Day.missing_disk, Day.moved, Day.lost_disk, Day.lost_disk, Day.new_store,
             Day.older_state, Day.other_hands, Day.full_disk)

FAR = (Day.moved, Day.lost_disk, Day.new_store)


def make(seed):
    """The text of a day."""
    d = Day(seed)
    d.pays()
    for _ in range(d.randint(1, 2)):
        for _ in range(d.randint(0, 5)):
            d.single()
        d.choice(FAR if d.kind == "postgres" else SEQUENCES)(d)
    for _ in range(d.randint(0, 3)):
        d.single()
    return "world %s %s %d\n%s\n" % (
        d.kind, "witness" if d.witness else "no-witness", d.workers,
        "\n".join(d.lines))
