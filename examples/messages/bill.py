#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
import hashlib
import json
import os
import sys

import psycopg

body = sys.stdin.buffer.read()
with psycopg.connect(os.environ["DB"]) as db:  # a transaction
    answer, = db.execute(
        "SELECT once.inbox_claim(%s, %s, %s, %s)",
        (os.environ["ONCE_CONSUMER"], os.environ["ONCE_ID"],
         hashlib.sha256(body).digest(), int(os.environ["ONCE_ATTEMPT"]))).fetchone()
    if answer == "run":
        order = json.loads(body)
        db.execute("INSERT INTO invoice (order_id, cents) VALUES (%s, %s)",
                   (order["order"], order["cents"]))
