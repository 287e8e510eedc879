#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""charge.py - what charge.c does, in Python: a payments service that
deduplicates in its own transaction.

    charge.py DSN [PORT]

once.begin() and once.finish() are functions in the database, so any language
that can call a function has them. Behind a gateway with `once_lost takeover`,
gateway and service together give one effect, and an answer every time.
"""

import hashlib
import http.server
import json
import re
import sys

import psycopg2
import psycopg2.errors

TRIES = 20
NAME = re.compile(r"[A-Za-z0-9._-]{1,64}")


def charge(db, key, body, order, amount):
    """One transaction: claim, effect and answer. Returns (status, line)."""
    with db, db.cursor() as q:
        q.execute("SELECT answer, result FROM once.begin('charges', %s, %s)",
                  (key, hashlib.sha256(body).digest()))
        answer, result = q.fetchone()
        if answer == "run":
            q.execute("INSERT INTO charges (name, amount) VALUES (%s, %s)"
                      " RETURNING no", (order, amount))
            line = json.dumps({"charge": q.fetchone()[0], "order": order,
                               "amount": amount}) + "\n"
            q.execute("SELECT once.finish('charges', %s, 1, %s)",
                      (key, line))
            if q.fetchone()[0] != "ok":
                raise RuntimeError("the call is not under way")
            return 201, line
        if answer == "replay":
            return 201, bytes(result).decode()
        if answer in ("repeated", "outside"):  # its answer is lost, or nothing says
            return 503, '{"error": "no answer"}\n'  # if it was charged
        return 422, '{"error": "%s"}\n' % answer


class Handler(http.server.BaseHTTPRequestHandler):
    """A connection of the client, and one to the database with it."""

    protocol_version = "HTTP/1.1"
    dsn = None

    def do_POST(self):
        body = self.rfile.read(int(self.headers.get("Content-Length", "0")))
        key = self.headers.get("Idempotency-Key", "")
        try:
            wanted = json.loads(body)
            order, amount = wanted["order"], wanted["amount"]
            good = (self.path == "/charge" and NAME.fullmatch(order)
                    and isinstance(amount, int) and amount > 0 and key)
        except (ValueError, KeyError, TypeError):
            good = False
        if not good:
            return self.answer(400, '{"error": "not charged"}\n')
        return self.answer(*self.try_charge(key, body, order, amount))

    def try_charge(self, key, body, order, amount):
        """COMMIT without an answer is unknown: the same key in a new
        transaction finds out."""
        for _ in range(TRIES):
            try:
                db = psycopg2.connect(self.dsn)
                try:
                    return charge(db, key, body, order, amount)
                finally:
                    db.close()
            except psycopg2.DataError:  # a key that is over its limit
                return 400, '{"error": "not charged"}\n'
            except (psycopg2.OperationalError, psycopg2.InterfaceError,
                    psycopg2.errors.LockNotAvailable):
                continue
        return 503, '{"error": "not charged"}\n'

    def answer(self, status, line):
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(line)))
        if status == 503:  # the last COMMIT may have been done
            self.send_header("Idempotency-Outcome", "unknown")
        self.end_headers()
        self.wfile.write(line.encode())

    def log_message(self, *args):  # pylint: disable=arguments-differ
        """Keys and orders stay out of logs."""


def main():
    if len(sys.argv) not in (2, 3):
        sys.exit("usage: charge.py DSN [PORT]")
    Handler.dsn = sys.argv[1]
    with psycopg2.connect(Handler.dsn) as db, db.cursor() as q:
        q.execute("CREATE TABLE IF NOT EXISTS charges ("
                  "no bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,"
                  "name text NOT NULL, amount bigint NOT NULL)")
    port = int(sys.argv[2]) if len(sys.argv) > 2 else 0
    server = http.server.ThreadingHTTPServer(("127.0.0.1", port), Handler)
    print("charge: listening on 127.0.0.1:%d" % server.server_address[1],
          flush=True)
    server.serve_forever()


if __name__ == "__main__":
    main()
