# SPDX-License-Identifier: Apache-2.0
"""
shop.py - a program's database with messages: rows of an outbox, parked messages
and sagas, as a relay and a consumer would have left them.
"""

import contextlib
import sqlite3
import subprocess
import time

from console import ONCE

READY, WAITING, DONE, DEAD, INDETERMINATE = range(5)
GOING, STUCK = 0, 5


class Shop:
    def __init__(self, folder):
        self.path = folder / "shop.db"
        self.url = "sqlite:%s" % self.path
        subprocess.run([ONCE, "--database", self.url, "messages", "init"],
                       check=True, stdout=subprocess.DEVNULL)

    def sql(self, text, *values):
        with contextlib.closing(sqlite3.connect(self.path)) as db, db:
            return db.execute(text, values).fetchall()

    def insert(self, table, **row):
        return self.sql("INSERT INTO %s(%s) VALUES(%s) RETURNING rowid" % (
            table, ",".join(row), ",".join("?" * len(row))),
            *row.values())[0][0]

    def emit(self, **more):
        return self.insert("once_outbox", **{
            "phase": DEAD, "kept": 1, "due_ms": 0, "attempts": 3,
            "at_ms": int(time.time() * 1000) - 90000, "route": "bills",
            "id": "secret-id", "type": "application/json", "headers": "",
            "body": b"secret-body", "error": "the target answers 400", **more})

    def park(self, **more):
        row = {"consumer": "mailer", "id": "secret-id", "state": DEAD,
               "attempts": 5, "due_ms": 5, "type": "t", "headers": "",
               "at_ms": int(time.time() * 1000) - 3600000, "filed": 1,
               "body": b"secret-body", "error": "no such customer", **more}
        self.sql("INSERT INTO once_inbox VALUES(?,?,1,NULL,1,NULL,NULL)",
                 row["consumer"], row["id"])
        return self.insert("once_parked", **row)

    def saga(self, gid, state, steps, note=""):
        """Steps: (state, failed)."""
        now = int(time.time() * 1000)
        self.sql("INSERT INTO once_saga VALUES(?,'trip',?,3,?,?,?,x'',?)", gid,
                 state, now + 3600000, now - 700000, now - 600000, note)
        for n, (is_, failed) in enumerate(steps, 1):
            self.insert("once_saga_step", gid=gid, branch=n, state=is_,
                        failed=failed, round=0, try_to="hotel/book",
                        confirm_to=None, cancel_to="hotel/cancel", type="",
                        body=b"")
