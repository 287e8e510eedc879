#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""billing.py - what billing.c does, in Python, with any client of the broker.

    billing.py DSN AMQP-URL QUEUE

once.inbox_claim() and once.inbox_park() are functions in the database, so every
language has them: claim first, write, commit, acknowledge last. A message that
cannot be billed is parked as a dead letter, so that it does not stop the others:
`once messages parked ls`. An error of the database ends the program before it acknowledges;
start it again, and the broker delivers the message again.
"""

import hashlib
import json
import re
import sys

import pika
import psycopg2

NO_ORDER = (ValueError, KeyError, TypeError, psycopg2.DataError,
            psycopg2.IntegrityError)


def handle(db, mid, body):
    """One transaction: claim and invoice, or neither."""
    with db, db.cursor() as q:
        q.execute("SELECT once.inbox_claim('billing', %s, %s)",
                  (mid, hashlib.sha256(body).digest()))
        answer = q.fetchone()[0]
        if answer == "run":
            order = json.loads(body)
            q.execute("INSERT INTO invoice (order_id, cents) VALUES (%s, %s)",
                      (order["order"], order["cents"]))
            return
        if answer == "done":
            return
    park(db, mid, body, answer)  # mismatch, outside


def park(db, mid, body, why):
    """A dead letter (state 3)."""
    with db, db.cursor() as q:
        q.execute("SELECT once.inbox_park('billing', %s, %s, 3, 0, NULL, '', '',"
                  " %s, %s)", (mid, hashlib.sha256(body).digest(), body, why))


def main():
    dsn, url, queue = sys.argv[1:]
    db = psycopg2.connect(dsn)
    with pika.BlockingConnection(pika.URLParameters(url)) as broker:
        channel = broker.channel()
        channel.basic_qos(prefetch_count=16)
        for method, properties, body in channel.consume(queue):
            mid = properties.message_id or ""
            try:
                if not re.fullmatch("[!-~]{1,255}", mid):
                    mid = "#" + hashlib.sha256(body).hexdigest()
                    raise ValueError("it has no id, or none that can be kept")
                handle(db, mid, body)
            except NO_ORDER as e:
                park(db, mid, body, type(e).__name__)
            channel.basic_ack(method.delivery_tag)


if __name__ == "__main__":
    main()
