# SPDX-License-Identifier: Apache-2.0
"""test_options.py - an option means the same wherever it is.

Which command has which option comes from the program's own tables, by its
completion. An option that a second command takes has its line in MEANING: who
adds one there says that it means this, too, or gives it another name. (That it
has the same values everywhere is asserted by the program when the completion is
made.)
"""
import re
import subprocess

import pytest

from once_cli import ONCE

WHICH = "show resolve forget trace"
ROWS = "messages-outbox messages-parked messages-saga"

# option: (what it means, the commands that have it)
MEANING = {
    "--after": ("those that follow this one", f"ls {ROWS}"),
    "--all": ("all of them, instead of the first --max", f"ls {ROWS}"),
    "--attempt": ("the attempt that was shown; refused if it is another one",
                  "resolve messages-outbox messages-parked"),
    "--attempts": ("so many failures end it", "messages-relay messages-consume"),
    "--audit": ("the log of decisions",
                f"{WHICH} console purge restore clock init audit {ROWS}"),
    "--batch": ("so many messages at once", "messages-relay messages-consume"),
    "--body": ("the body, and nothing else",
               "show messages-outbox messages-parked"),
    "--ca": ("certificates to trust", "send lookup messages-relay messages-consume"),
    "--check": ("look whether all is as it has to be, and do nothing else",
                "serve messages-relay messages-consume"),
    "--consumer": ("the consumer's name", "messages-consume messages-parked"),
    "--copy": ("the file with a copy of a store", "backup restore"),
    "--database": ("the program's database", "console messages messages-emit "
                   f"messages-relay messages-consume {ROWS}"),
    "--fence": ("the fence that was shown; refused if it is another one",
                "resolve forget"),
    "--force": ("although it may have taken effect", "send forget"),
    "--group": ("the group of a key", f"run send ls stats {WHICH}"),
    "--header": ("a header, Name: value", "send lookup resolve messages-emit"),
    "--json": ("JSON instead of a table", "send lookup report ls check purge stats "
               "verify backup restore clock init audit name dump messages "
               f"messages-emit {ROWS} {WHICH}"),
    "--ids": ("ids as they are", "messages-outbox messages-parked"),
    "--keep": ("for how long the decision answers repeats", "resolve forget"),
    "--key": ("the record's key", f"run {WHICH}"),
    "--key-file": ("the record's key, in a file", f"run lookup name {WHICH}"),
    "--lease": ("how long a lost process's work stays with it",
                "run messages-relay messages-consume"),
    "--lost": ("what becomes of a lost process's work", "run messages-consume"),
    "--max": ("at most so many", f"ls purge {ROWS}"),
    "--method": ("the request's method", f"name {WHICH}"),
    "--metrics": ("the file for Prometheus", "messages-relay messages-consume"),
    "--name": ("the record's name", f"audit {WHICH}"),
    "--no-scope": ("the request has no scope", f"name {WHICH}"),
    "--older": ("longer ago than this", "ls messages-outbox"),
    "--path": ("the request's path", f"name {WHICH}"),
    "--print": ("print the schema, and change nothing", "init messages"),
    "--realm": ("the request's realm", f"name serve {WHICH}"),
    "--records": ("lines of ls --json, each decided about as it was seen",
                  "resolve messages-outbox"),
    "--since": ("at this time or later", "audit messages-outbox"),
    "--request": ("the record is a gateway's request", WHICH),
    "--listen": ("where a program may be reached", "console serve"),
    "--route": ("the route's name", "messages-emit messages-outbox"),
    "--scope-file": ("the request's scope, in a file", f"name {WHICH}"),
    "--secret": ("a header that is a credential", "send lookup"),
    "--store": ("the store of records", "run ls check console serve purge stats "
                f"verify backup restore clock init dump messages-consume {WHICH}"),
    "--timeout": ("how long an answer is waited for", "check lookup messages-relay"),
    "--why": ("the reason of a decision", f"resolve forget restore {ROWS}"),
    "--workers": ("so many side by side", "messages-relay messages-consume"),
}


@pytest.fixture(scope="module")
def options():
    """{option: [commands]}"""
    script = subprocess.run([ONCE, "completion", "bash"], check=True,
                            capture_output=True, text=True).stdout
    found = {}
    for command, words in re.findall(r"^        '([a-z ]+)'\*?\) o='([^']*)'",
                                     script, re.M):
        for word in words.split():
            if word.startswith("--") and word != "--help":
                found.setdefault(word, []).append(command.replace(" ", "-"))
    return found


def test_what_two_commands_take_means_the_same(options):
    shared = {o: sorted(c) for o, c in options.items() if len(c) > 1}
    assert shared == {o: sorted(c.split()) for o, (_, c) in MEANING.items()}


def test_what_prints_a_result_prints_json(options):
    """The others print what a command prints, or nothing."""
    silent = {"run", "console", "serve", "messages-relay", "messages-consume",
              "completion"}
    script = subprocess.run([ONCE, "completion", "bash"], check=True,
                            capture_output=True, text=True).stdout
    commands = {c.replace(" ", "-")
                for c in re.findall(r"^        '([a-z ]+)'", script, re.M)}
    assert commands - silent == set(options["--json"])
