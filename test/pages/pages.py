# SPDX-License-Identifier: Apache-2.0
"""
pages.py - the code blocks of the Markdown pages, and what a reader can do with
each: see the head of `run`, next to this file.
"""

import dataclasses
import os
import re

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(
    os.path.abspath(__file__))))

# Why a block is not run. There is no other reason.
REASONS = {
    "root": "it changes this machine",
    "packages": "it wants installed packages: test/packages/run does it",
    "elsewhere": "it wants another machine",
    "whole": "it is a run of the tests, or longer than one",
    "started": "it starts what the runner has started already",
    "piece": "it is a piece of something, and cannot stand alone",
}
# How many blocks may be left out. It only goes down.
MOST = 30

TYPED = ("console", "sh", "nginx", "sql", "c", "python")
# First words of what would be typed, and so has to begin with "$ ".
COMMANDS = re.compile(
    r"(?:sudo |[A-Z_]+=\S+ )*(?:once|make|curl|apt|apt-get|nginx|install|git|"
    r"systemctl|service|ninja|psql|sqlite3|redis-cli|(?:build|examples|test|"
    r"tools)/\S+) (?!(?:\w+ )*\w+: )")
MARK = re.compile(r"<!-- (not run|run by|needs|stays|soon)(?:: (.*?))? -->$")


@dataclasses.dataclass
class Block:
    """A block of code: where, what, and what its mark says."""

    page: str
    line: int
    kind: str
    text: str
    mark: str = ""
    why: str = ""

    def place(self):
        return "%s:%d" % (self.page, self.line)


def kind_of(language, text):
    if language:
        return language
    if re.match(r"\$ ", text):
        return "console"
    if re.match(r"=> ", text):
        return "sql"
    return ""


def mark_above(lines, at):
    """The comment right above a block, an empty line between or not."""
    while at > 0 and not lines[at - 1].strip():
        at -= 1
    found = MARK.match(lines[at - 1].strip()) if at > 0 else None
    return (found.group(1), found.group(2) or "") if found else ("", "")


def take(lines, at):
    """The block that begins at this line: where it begins and ends, its
    language, and its text; or None."""
    fence = re.match(r"```(\w*)$", lines[at])
    if fence:
        end = at + 1
        while lines[end] != "```":
            end += 1
        return at, end + 1, fence.group(1), lines[at + 1:end]
    if re.match(r" {4}\S", lines[at]) and at > 0 and not lines[at - 1].strip():
        end = at
        while end < len(lines) and (lines[end].startswith("    ") or
                                    not lines[end].strip()):
            end += 1
        return at, end, "", [line[4:] for line in lines[at:end]]
    return None


def blocks(page):
    with open(os.path.join(ROOT, page), encoding="utf-8") as f:
        lines = f.read().split("\n")
    at = 0
    while at < len(lines):
        found = take(lines, at)
        if found is None:
            at += 1
            continue
        begin, at, language, text = found
        text = "\n".join(text).rstrip() + "\n"
        yield Block(page, begin + 1, kind_of(language, text), text,
                    *mark_above(lines, begin))


def complaints(block):
    """What is wrong with a block before anybody runs it."""
    if block.mark == "not run" and block.why not in REASONS:
        yield "no reason: " + block.why
    if block.mark == "run by":
        path = os.path.join(ROOT, block.why)
        try:
            with open(path, encoding="utf-8") as f:
                known = os.path.basename(block.page) in f.read()
        except OSError:
            known = False
        if not known:
            yield "%s does not name this page" % block.why
    if block.kind not in TYPED and not block.mark and \
            COMMANDS.match(block.text):
        yield 'a command, but it does not begin with "$ "'


def incomplete(command):
    """Whether a shell would ask for another line."""
    here = re.search(r"<<'?(\w+)'?", command)
    if here:
        return not command.endswith("\n" + here.group(1))
    plain = re.sub(r"\\.", "", command, flags=re.S)
    plain = re.sub(r"\"[^\"]*\"|'[^']*'", "", plain)
    return command.endswith(("\\", "|")) or plain.count("'") % 2 or \
        plain.count('"') % 2


def session(text):
    """Pairs of a command, and what it is said to print."""
    lines = text.rstrip("\n").split("\n")
    while lines:
        command = lines.pop(0)
        assert command.startswith("$ "), command
        command = command[2:]
        while incomplete(command) and lines:
            command += "\n" + lines.pop(0)
        told = []
        while lines and not lines[0].startswith("$ "):
            told.append(lines.pop(0))
        yield command, told


# What is another each time: (in a page and in an output, its name).
CHANGES = [(re.compile(pattern), name) for pattern, name in (
    (r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d{3})?Z", "TIME"),
    (r"\w{3}, \d\d \w{3} \d{4} \d\d:\d\d:\d\d GMT", "DATE"),
    (r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", "UUID"),
    (r"\b[0-9a-f]{16,}\b", "HEX"),
    (r"(127\.0\.0\.1|localhost):\d+", "HERE"),
    (r"\"at_ms\":\d+", "AT"),
    (r"\b\d+\.\d\d( ms)?\b", "MS"),
    (r"[ \t]+", " "),
)]


def plain(line):
    for pattern, name in CHANGES:
        line = pattern.sub(name, line)
    return line.strip()


def agrees(told, printed):
    """Whether that was printed. A line of dots stands for any lines, and dots at
    the end of a line for any rest."""
    pattern = ""
    for line in told:
        if line.strip() in ("...", "…"):
            pattern += r"(?:.*\n)*?"
            continue
        rest = re.search(r"(\.\.\.|…)$", line)
        head = line[:rest.start()] if rest else line
        pattern += re.escape(plain(head)) + (r".*\n" if rest else r"\n")
    text = "".join(plain(line) + "\n" for line in printed)
    return re.fullmatch(pattern, text) is not None
