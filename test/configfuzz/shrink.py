# SPDX-License-Identifier: Apache-2.0
"""Makes a failing case smaller, as long as it fails in the same way."""

import contextlib
import difflib
import re

import case
import drive
import judge

BATCH = 40
ROUNDS = 40


async def judged(upstreams, cases, store):
    """Verdicts of these cases, tried in rounds of a bearable size."""
    out = []
    for at in range(0, len(cases), BATCH):
        turn = drive.Round(upstreams, cases[at:at + BATCH], store)
        await turn.run()
        for run in turn.runs:
            verdict = judge.Verdict(run)
            if len(turn.runs) == 1:
                verdict.broken += [("alarm", a) for a in turn.alarms]
            out.append(verdict)
    return out


async def fails(upstreams, the_case, kinds, store):
    """The verdict if the case, alone, fails in one of these ways."""
    for _ in range(2):
        verdict = (await judged(upstreams, [the_case], store))[0]
        if verdict.kinds & kinds:
            return verdict
    return None


# ---- One step ------------------------------------------------------------


def places(nodes, path=()):
    """Where a node of the configuration can be taken out."""
    for i, node in enumerate(nodes):
        if isinstance(node, str):
            if not case.KEPT.match(node):
                yield path + (i,)
        else:
            yield path + (i,)
            yield from places(node[1], path + (i,))


def without(conf, path):
    conf = case.copy_tree(conf)
    nodes = conf
    for i in path[:-1]:
        nodes = nodes[i][1]
    del nodes[path[-1]]
    return conf


def replaced(conf, path, text):
    conf = case.copy_tree(conf)
    nodes = conf
    for i in path[:-1]:
        nodes = nodes[i][1]
    nodes[path[-1]] = text
    return conf


def node_at(conf, path):
    nodes = conf
    for i in path[:-1]:
        nodes = nodes[i][1]
    return nodes[path[-1]]


def smaller_conf(conf):
    for path in places(conf):
        if path == (len(conf) - 1,):
            continue            # the server
        yield without(conf, path)
        node = node_at(conf, path)
        if isinstance(node, str) and not node.startswith("rewrite"):
            words = node.rstrip(";").split()
            for i in range(2, len(words)):
                yield replaced(conf, path, " ".join(
                    words[:i] + words[i + 1:]) + ";")


def smaller_lines(lines, least):
    """One line less, or one word less in one line, or a usual status."""
    for i, line in enumerate(lines):
        if len(lines) > least:
            yield lines[:i] + lines[i + 1:]
        words = line.split()
        for j in range(2, len(words)):
            yield lines[:i] + [" ".join(words[:j] + words[j + 1:])] + \
                lines[i + 1:]
        if len(words) > 1 and words[1].isdigit() and words[1] != "201":
            yield lines[:i] + [" ".join([words[0], "201"] + words[2:])] + \
                lines[i + 1:]


def smaller(the_case):
    def changed(conf=None, plan=None, **scripts):
        c = the_case.copy()
        c.conf = conf or c.conf
        c.plan = plan or c.plan
        c.scripts.update(scripts)
        return c

    for word in case.FLAGS:
        if any(word in line.split() for line in the_case.plan):
            yield changed(plan=[" ".join(w for w in line.split() if w != word)
                                for line in the_case.plan])
    for plan in smaller_lines(the_case.plan, 1):
        yield changed(plan=plan)
    for role, lines in the_case.scripts.items():
        for less in smaller_lines(lines, 0):
            yield changed(**{role: less})
    for conf in smaller_conf(the_case.conf):
        yield changed(conf=conf)
    # The protocol that everybody knows, if it is not the point.
    text = the_case.text()
    for protocol in ("fastcgi", "scgi", "uwsgi"):
        if protocol + "_" in text:
            other = re.sub(r"%s_pass (?!http)" % protocol, "proxy_pass http://",
                           text).replace("http://uwsgi://", "http://")
            other = re.sub(r"\b%s_(main|fallback|target)" % protocol,
                           r"http_\1", other)
            other = re.sub(r"\b%s_" % protocol, "proxy_", other)
            yield case.Case.parse(the_case.name, other)


async def shrink(upstreams, the_case, kinds, store):
    """Takes away whatever is not needed for it to fail."""
    kinds = set(kinds)
    for _ in range(ROUNDS):
        step = await one_step(upstreams, the_case, kinds, store)
        if step is None:
            break
        the_case = step
    return the_case


async def one_step(upstreams, the_case, kinds, store):
    """The case without as much as can go at once, or None."""
    tried = list(smaller(the_case))
    verdicts = await judged(upstreams, tried, store)
    good = [c for c, v in zip(tried, verdicts) if v.kinds & kinds]
    together = list(merged(the_case, good))
    verdicts = await judged(upstreams, together, store)
    good = [c for c, v in zip(together, verdicts) if v.kinds & kinds] + good
    for candidate in good[:5]:
        if await fails(upstreams, candidate, kinds, store):
            return candidate
    return None


def merged(the_case, good):
    """What these have in common, of all of them, of half of them, ..."""
    lines = the_case.text().splitlines()
    gone = []
    for c in good:
        less = c.text().splitlines()
        matcher = difflib.SequenceMatcher(None, lines, less, autojunk=False)
        ops = [o for o in matcher.get_opcodes() if o[0] != "equal"]
        if len(ops) == 1 and ops[0][0] == "delete":
            gone.append(set(range(ops[0][1], ops[0][2])))
    size = len(gone)
    while size > 1:
        for at in range(0, len(gone), size):
            out = set().union(*gone[at:at + size])
            left = [x for i, x in enumerate(lines) if i not in out]
            with contextlib.suppress(AssertionError, IndexError):
                c = case.Case.parse(the_case.name, "\n".join(left))
                if c.plan and c.conf and c.conf[-1][0] == "server":
                    yield c
        size //= 2
