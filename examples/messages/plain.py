#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""plain.py - billing as it is often written: commit, then acknowledge. A
message that is delivered again is billed again. For the demo.

    plain.py DSN AMQP-URL QUEUE
"""

import json
import sys

import pika
import psycopg2


def main():
    dsn, url, queue = sys.argv[1:]
    db = psycopg2.connect(dsn)
    with pika.BlockingConnection(pika.URLParameters(url)) as broker:
        channel = broker.channel()
        channel.basic_qos(prefetch_count=16)
        for method, _, body in channel.consume(queue):
            order = json.loads(body)
            with db, db.cursor() as q:
                q.execute("INSERT INTO invoice (order_id, cents) VALUES"
                          " (%s, %s)", (order["order"], order["cents"]))
            channel.basic_ack(method.delivery_tag)


if __name__ == "__main__":
    main()
