# SPDX-License-Identifier: Apache-2.0
"""test_named.py - names of stores, and what killed processes left in /dev/shm."""
import os
import subprocess
import textwrap

import pytest

from marks import MARK
from once_cli import ONCE, SEED


@pytest.fixture
def once(tmp_path):
    """Runs once where the names are those of a folder of its own."""
    names = tmp_path / "stores.d"
    names.mkdir()

    def run(*words, store=None):
        env = dict(os.environ, ONCE_STORES_D=str(names),
                   XDG_STATE_HOME=str(tmp_path / "state"))
        env.pop("ONCE_STORE", None)
        if store is not None:
            env["ONCE_STORE"] = store
        return subprocess.run([ONCE, *words], capture_output=True, text=True,
                              timeout=60, env=env)

    run.names = names
    run.url = "sqlite:%s" % (tmp_path / "pay.db")
    (names / "pay").write_text(
        "# A comment\n\n  url =  %s \t\ntitle = Payments\n" % run.url)
    return run


@pytest.mark.parametrize("text", ["pay", "name:pay"])
def test_a_name_is_the_store_that_its_file_says(once, text):
    assert once("--store", text, "init").returncode == 0
    # By its URL and by its name it is one store.
    assert subprocess.run([SEED, once.url, "many", "3"],
                          capture_output=True).returncode == 0
    for words, store in ((["--store", text, "ls"], None),
                         (["ls", "--store", text], None), (["ls"], text)):
        done = once(*words, store=store)
        assert (done.returncode, len(done.stdout.splitlines())) == (0, 3), done


def test_a_command_runs_once_in_a_store_that_is_named(once):
    assert once("--store", "pay", "init").returncode == 0
    for _ in range(2):
        done = once("--store", "pay", "run", "--key", "k", "--", "echo", "a")
        assert (done.returncode, done.stdout) == (0, "a\n"), done
    done = once("--store", once.url, "ls")
    assert len(done.stdout.splitlines()) == 1, done


def test_messages_are_in_the_database_that_is_named(once):
    assert once("--database", "pay", "messages", "init").returncode == 0
    done = once("--database", "pay", "messages", "outbox", "stats")
    assert done.returncode == 0, done
    assert once("--database", once.url, "messages", "check").returncode == 0


def test_a_name_without_a_file_says_which_file_it_wants(once):
    done = once("--store", "jobs", "ls")
    assert done.returncode == 2
    assert "there is no %s/jobs" % once.names in done.stderr


@pytest.mark.parametrize("name", ["..", "pay/x", "/etc/passwd", "Pay", "",
                                  "p" * 33, "name:", "name:../pay", "pay x"])
def test_what_cannot_be_a_name_leads_to_no_file(once, name):
    done = once("--store", name, "ls")
    assert done.returncode != 0 and done.stdout == ""
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("text, words", [
    ("", "bad: it names no url"),
    ("title = x", "bad: it names no url"),
    ("url", "bad:1: this is not KEY = VALUE"),
    ("url = %s\nkeys = x", "bad:2: unknown key"),
    ("url = %s\n\nurl = %s", "bad:3: it stands twice"),
    ("# x\nurl = ", "bad:2: this is not the URL"),
    ("url = name:pay", "bad:1: this is not the URL"),
    ("url = pay", "bad:1: this is not the URL"),
    ("url = %s\ntitle =", "bad:2: it has no value"),
    ("url = %s\ntitle = " + "t" * 65, "bad:2: its value is too long"),
    ("url = %s\rx", "bad:1: its value has a control character"),
    ("url = %s\n" + "#" * 4096, "bad: longer than 4096 bytes"),
    ("url = %s\n\0", "bad: this is not text"),
])
def test_a_file_that_is_wrong_is_refused_with_its_line(once, text, words):
    (once.names / "bad").write_text(text.replace("%s", once.url))
    done = once("--store", "bad", "init")
    assert done.returncode == 2, done
    assert words in done.stderr
    assert once.url not in done.stderr
    assert not os.path.exists(once.url.partition(":")[2])


def test_an_error_of_the_store_shows_no_password(once):
    (once.names / "db").write_text("url = paper://ann:%s@h.test/db\n" % MARK)
    (once.names / "db").chmod(0o600)
    done = once("--store", "db", "ls")
    assert done.returncode == 2 and MARK not in done.stderr, done


def test_a_folder_or_a_pipe_is_no_file(once):
    (once.names / "folder").mkdir()
    os.mkfifo(once.names / "pipe")
    for name in "folder", "pipe":
        done = once("--store", name, "ls")
        assert done.returncode == 2 and "not a file" in done.stderr, done


def test_a_store_in_memory_cannot_be_seen_by_its_name_either(once):
    (once.names / "mem").write_text("url = memory:\n")
    done = once("--store", "mem", "ls")
    assert done.returncode == 2 and "inside one process" in done.stderr, done


# ---- once purge --shm -------------------------------------------------------


def apart(script):
    """Runs a script in namespaces of its own: it sees its own processes and its
    own /dev/shm, and nobody else's are removed."""
    done = subprocess.run(
        ["unshare", "--mount", "--pid", "--fork", "--mount-proc", "bash", "-eu",
         "-c", "mount -t tmpfs none /dev/shm\n" + textwrap.dedent(script)],
        capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done
    return done.stdout.split()


can_unshare = pytest.mark.skipif(
    subprocess.run(["unshare", "--mount", "--pid", "--fork", "--mount-proc",
                    "mount", "-t", "tmpfs", "none", "/dev/shm"],
                   capture_output=True).returncode != 0,
    reason="no namespaces here (not root)")


@can_unshare
def test_purge_shm_removes_the_index_of_a_journal_that_is_gone(tmp_path):
    said = apart(f"""
        cd {tmp_path}
        for j in gone kept; do
            {ONCE} --store journal:$j init >/dev/null
            {ONCE} --store journal:$j run --key k -- sleep 60 >/dev/null 2>&1 &
            pids="${{pids-}} $!"
        done
        until [ $(ls /dev/shm | wc -l) = 2 ] && {ONCE} --store journal:gone \\
            stats >/dev/null && {ONCE} --store journal:kept stats >/dev/null
        do sleep 0.1; done
        {ONCE} purge --shm --json | tr -d ' '
        set -- $pids
        kill -9 $1
        while kill -0 $1 2>/dev/null; do sleep 0.1; done
        rm -r gone
        touch /dev/shm/once-of-somebody-else /dev/shm/another
        {ONCE} purge --shm
        ls /dev/shm | wc -l
        {ONCE} --store journal:kept check >/dev/null
        kill -9 $2
        while kill -0 $2 2>/dev/null; do sleep 0.1; done
        {ONCE} purge --shm >/dev/null
        ls /dev/shm
        {ONCE} --store journal:kept verify >/dev/null
        """)
    assert '"removed":0' in said[0] and '"in_use":2' in said[0], said
    assert dict(zip(said[1:9:2], said[2:9:2]))["removed"] == "1", said
    # The other one's, somebody else's, another program's; then without the first.
    assert said[said.index("others") + 2] == "3", said
    assert said[-2:] == ["another", "once-of-somebody-else"], said


@can_unshare
def test_purge_shm_removes_nothing_for_who_cannot_see_everybody(tmp_path):
    os.chmod(tmp_path, 0o755)
    said = apart(f"""
        cd {tmp_path}
        {ONCE} --store journal:j init >/dev/null
        {ONCE} --store journal:j run --key k -- sleep 60 >/dev/null 2>&1 &
        until [ $(ls /dev/shm | wc -l) = 1 ]; do sleep 0.1; done
        kill -9 $!
        cp {ONCE} /dev/shm/program
        setpriv --reuid 65534 --clear-groups /dev/shm/program purge --shm \\
            2>&1 && exit 1
        ls /dev/shm | grep -c ^once-
        """)
    assert said[-1] == "1" and "root" in said, said


def test_purge_shm_is_about_no_store(once):
    done = once("purge", "--shm", "--max", "3")
    assert done.returncode == 2, done
