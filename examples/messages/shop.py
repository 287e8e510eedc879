#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""shop.py - takes orders, and tells billing about each.

    shop.py once|plain DSN AMQP-URL QUEUE N

once: the order, its message and its charge are rows of one transaction.
plain: the order is committed, then its message is published, as is often done;
the transaction cannot know what becomes of the message.
"""

import contextlib
import json
import sys
import time

import pika
import psycopg2


def once(q, n):
    body = {"order": n, "cents": 100 + n}
    q.execute("INSERT INTO orders (id, cents) VALUES (%s, %s)", (n, 100 + n))
    q.execute("SELECT once.emit('orders', %s, p_key => %s,"
              " p_type => 'application/json')",
              (json.dumps(body), "order-%d" % n))
    q.execute("SELECT once.emit('pay', %s, p_id => %s,"
              " p_type => 'application/json')",
              (json.dumps({"order": "order-%d" % n, "amount": 100 + n}),
               "charge-%d" % n))


class Publisher:
    """Publishes persistent messages, and connects again when it must."""

    def __init__(self, url, queue):
        self.url, self.queue, self.channel = url, queue, None

    def __call__(self, body):
        try:
            if self.channel is None:
                self.channel = pika.BlockingConnection(
                    pika.URLParameters(self.url)).channel()
            self.channel.basic_publish(
                "", self.queue, body,
                pika.BasicProperties(delivery_mode=2))
        except pika.exceptions.AMQPError as e:
            print("shop: not published:", type(e).__name__, flush=True)
            self.channel = None


def main():
    mode, dsn, url, queue, count = sys.argv[1:]
    publish = Publisher(url, queue)
    with contextlib.closing(psycopg2.connect(dsn)) as db:
        for n in range(1, int(count) + 1):
            with db, db.cursor() as q:
                if mode == "once":
                    once(q, n)
                else:
                    q.execute("INSERT INTO orders (id, cents) VALUES (%s, %s)",
                              (n, 100 + n))
            if mode == "plain":
                publish(json.dumps({"order": n, "cents": 100 + n}))
            time.sleep(0.005)


if __name__ == "__main__":
    main()
