#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""billing.py - what billing.c does, in Python, with any client of the broker.

    billing.py DSN AMQP-URL QUEUE

once.inbox_claim() and once.inbox_park() are functions in the database, so every
language has them: claim first, write, commit, acknowledge last. A message that
is redelivered, or fails, is parked: `once consume` or `once parked retry` runs
it again, or an operator looks at it.
"""

import hashlib
import json
import sys

import pika
import psycopg2
import psycopg2.errors


def handle(db, mid, body):
    """One transaction. True: acknowledge."""
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
    park(db, mid, body, 3, answer)  # mismatch, outside: a dead letter


def park(db, mid, body, state, why):
    with db, db.cursor() as q:
        q.execute("SELECT once.inbox_park('billing', %s, %s, %s, 0, NULL, '',"
                  " '', %s, %s)",
                  (mid, hashlib.sha256(body).digest(), state, body, why))


def main():
    dsn, url, queue = sys.argv[1:]
    db = psycopg2.connect(dsn)
    with pika.BlockingConnection(pika.URLParameters(url)) as broker:
        channel = broker.channel()
        channel.basic_qos(prefetch_count=16)
        for method, properties, body in channel.consume(queue):
            try:
                handle(db, properties.message_id, body)
            except (ValueError, KeyError) as e:  # it cannot be read
                park(db, properties.message_id, body, 3, type(e).__name__)
            channel.basic_ack(method.delivery_tag)


if __name__ == "__main__":
    main()
