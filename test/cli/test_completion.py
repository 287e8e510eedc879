# SPDX-License-Identifier: Apache-2.0
"""test_completion.py - `once completion`, in the shells that it is for.

The script is sourced by a real bash, and by zsh where that is installed, and
asked as the shell asks it. What it offers is compared with what the program
takes: an option that is offered must be known, and one that a help page names
must be offered.
"""
import os
import re
import shutil
import subprocess

import pytest

from once_cli import COMMANDS, ONCE

OWN = {"--store", "--database", "--json", "--help", "--version"}


def script(shell):
    return subprocess.run([ONCE, "completion", shell], check=True, text=True,
                          capture_output=True).stdout


def bash(folder, words, current=None):
    """What bash would offer for these words, the last being completed."""
    (folder / "script").write_text(script("bash"))
    (folder / "names").mkdir(exist_ok=True)
    (folder / "names/pay").touch()
    array = " ".join("'%s'" % w for w in words)
    done = subprocess.run(
        ["bash", "--norc", "-c",
         f". ./script; COMP_WORDS=({array}); "
         f"COMP_CWORD={len(words) - 1 if current is None else current}; "
         "_once; printf '%s\\n' \"${COMPREPLY[@]}\""],
        cwd=folder, capture_output=True, text=True, timeout=60,
        env=dict(os.environ, ONCE_STORES_D="names"))
    assert done.returncode == 0 and done.stderr == "", done
    return set(done.stdout.split())


def zsh(folder, words):
    """The same; compadd only works inside zsh's own completion."""
    (folder / "script").write_text(script("zsh"))
    (folder / "names").mkdir(exist_ok=True)
    (folder / "names/pay").touch()
    array = " ".join("'%s'" % w for w in words)
    done = subprocess.run(
        ["zsh", "-f", "-c",
         "compdef() { }; . ./script; "
         "compadd() { shift; print -l -- ${(M)@:#${words[CURRENT]}*} }; "
         "_files() { print -l -- *(N) }; _normal() { print -l NORMAL $words }; "
         f"words=({array}); CURRENT={len(words)}; _once"],
        cwd=folder, capture_output=True, text=True, timeout=60,
        env=dict(os.environ, ONCE_STORES_D="names"))
    assert done.stderr == "", done
    return set(done.stdout.split())


@pytest.fixture(params=["bash", "zsh"])
def offers(request, tmp_path):
    if shutil.which(request.param) is None:
        pytest.skip(f"{request.param} is not installed")
    ask = {"bash": bash, "zsh": zsh}[request.param]
    return lambda *words: ask(tmp_path, words)


@pytest.mark.parametrize("shell", ["bash", "zsh"])
def test_the_script_parses(shell):
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    done = subprocess.run([shell, "-n"], input=script(shell), text=True,
                          capture_output=True, timeout=60)
    assert done.returncode == 0 and done.stderr == ""


def test_commands_and_own_options_come_first(offers):
    first = {c for c in COMMANDS if " " not in c}
    assert offers("once", "") == first | OWN | {"help"}
    assert offers("once", "help", "sh") == {"show"}
    assert offers("once", "res") == {"resolve", "restore"}
    assert offers("once", "--s") == {"--store"}
    assert offers("once", "--json", "sh") == {"show"}
    assert offers("once", "--store", "x", "sh") == {"show"}
    assert offers("once", "messages", "re") == {"relay"}
    assert {"ls", "retry"} <= offers("once", "messages", "outbox", "")


@pytest.mark.parametrize("command", COMMANDS)
def test_options_are_those_that_the_program_takes(offers, command, tmp_path):
    found = {w for w in offers("once", *command.split(), "--") if w != "--"}
    text = subprocess.run([ONCE, *command.split(), "--help"], capture_output=True,
                          text=True).stdout
    # Its own column of options; a page may speak of another command's.
    told = set(re.findall(r"^  (--[a-z-]+)", text, re.M))
    told |= set(re.findall(r"(--[a-z-]+)",
                           text.split("\n\n")[0].replace("[--store URL]", "")))
    assert told <= found | {"--store"}, told - found
    for option in found - OWN:
        done = subprocess.run(
            [ONCE, *command.split(), option, "--no-such-option"], text=True,
            stdin=subprocess.DEVNULL, capture_output=True, timeout=60,
            cwd=tmp_path, # an option may take the other as a file's name
            env=dict(os.environ, ONCE_STORE="sqlite:/dev/null/x",
                     ONCE_DATABASE="sqlite:/dev/null/x"))
        # It is not this one that is unknown.
        assert f"{option}: no such option" not in done.stderr, done
        assert done.returncode != 0


def test_values_of_options(offers):
    states = {"absent", "claimed", "dispatched", "completed", "indeterminate",
              "corrupt"}
    assert offers("once", "ls", "--state", "") == states
    assert offers("once", "ls", "--state", "in") == {"indeterminate"}
    assert {"sqlite:", "pay"} <= offers("once", "--store", "")
    assert "pay" in offers("once", "messages", "relay", "--database", "p")
    assert "journal:" in offers("once", "ls", "--store", "j")
    assert offers("once", "resolve", "--why", "") == set()
    assert offers("once", "ls", "--max", "1") == set()
    assert offers("once", "completion", "b") == {"bash"}


def test_every_value_is_taken_by_the_program(offers, tmp_path):
    """A word that is offered as a state must be one."""
    store = f"sqlite:{tmp_path}/s.db"
    subprocess.run([ONCE, "--store", store, "init"], check=True,
                   capture_output=True)
    for state in offers("once", "ls", "--state", ""):
        subprocess.run([ONCE, "--store", store, "ls", "--state", state],
                       check=True, capture_output=True)


def test_files_where_an_option_wants_one(offers, tmp_path):
    (tmp_path / "answer.json").write_text("{}")
    assert "answer.json" in offers("once", "resolve", "--success", "")
    assert "answer.json" in offers("once", "show", "--key-file", "")


def test_words_of_the_users_own_command_are_not_ours(offers):
    if "run" not in COMMANDS:
        pytest.skip("no once run")
    found = offers("once", "run", "--key", "k", "--", "ec")
    assert "--key" not in found and "resolve" not in found
    assert "echo" in found or "NORMAL" in found


def test_the_path_in_a_stores_url(tmp_path):
    """bash ends a word at a colon."""
    (tmp_path / "store.db").write_text("")
    words = ["once", "--store", "sqlite", ":", "sto"]
    assert bash(tmp_path, words) == {"store.db"}
    assert "store.db" in bash(tmp_path, words[:4])
    words = ["once", "--store", "sqlite", ":", "store.db", "sh"]
    assert bash(tmp_path, words) == {"show"}


def test_zsh_loads_it_from_a_file_as_well(tmp_path):
    if shutil.which("zsh") is None:
        pytest.skip("zsh is not installed")
    (tmp_path / "_once").write_text(script("zsh"))
    done = subprocess.run(
        ["zsh", "-f", "-c",
         "fpath=($PWD $fpath); autoload -U compinit; compinit -D -u; "
         "print ${_comps[once]}"],
        cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert done.stdout.strip() == "_once" and done.stderr == "", done


def test_no_other_shell():
    for words in (["fish"], [], ["bash", "zsh"]):
        done = subprocess.run([ONCE, "completion", *words], text=True,
                              capture_output=True)
        assert done.returncode == 2 and "bash" in done.stderr
        assert done.stdout == ""
