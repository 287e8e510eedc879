# SPDX-License-Identifier: Apache-2.0
"""bank.py - a branch of a saga as its maker would write it: accounts in a database
of its own, and a barrier first in each transaction.

    bank.py DSN PORT

POST /debit/try    holds money, or answers 409 where there is too little
POST /credit/try   announces money, or answers 409 for an account that is closed
POST /.../confirm  books it                POST /.../cancel   takes it back

The body is JSON: account, cents. The header Once-Saga says which branch it is. It
answers only when its transaction is committed, and prints its port when it listens.
"""
import http.server
import json
import re
import sys
import threading

import psycopg2

MOVES = {
    ("debit", "try"): "cents = cents - %(cents)s, held = held + %(cents)s",
    ("debit", "confirm"): "held = held - %(cents)s",
    ("debit", "cancel"): "cents = cents + %(cents)s, held = held - %(cents)s",
    ("credit", "try"): "coming = coming + %(cents)s",
    ("credit", "confirm"): "cents = cents + %(cents)s, coming = coming - %(cents)s",
    ("credit", "cancel"): "coming = coming - %(cents)s",
}
ALLOWED = {("debit", "try"): "cents >= %(cents)s", ("credit", "try"): "NOT closed"}
ANSWERS = {"done": 200, "empty": 200, "refused": 409, "early": 425, "conflict": 409}
LOCAL = threading.local()


def enter(cursor, move, gid, branch, body):
    """The status to answer with. Anything but 200 is rolled back."""
    cursor.execute("SELECT once.barrier_enter(%s, %s, %s)",
                   (gid, branch, move[1]))
    answer = cursor.fetchone()[0]
    if answer != "run":
        return ANSWERS[answer]
    cursor.execute("UPDATE account SET %s WHERE name = %%(account)s AND %s"
                   % (MOVES[move], ALLOWED.get(move, "true")), body)
    return 200 if cursor.rowcount == 1 else 409


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self):  # pylint: disable=invalid-name
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        gid, branch, op = re.fullmatch(r"(.+); branch=(\d+); op=(\w+)",
                                       self.headers["Once-Saga"]).groups()
        move = tuple(self.path.strip("/").split("/"))
        assert move[1] == op
        try:
            if not hasattr(LOCAL, "db"):
                LOCAL.db = psycopg2.connect(self.server.dsn)
            with LOCAL.db.cursor() as cursor:
                status = enter(cursor, move, gid, branch, body)
            if status == 200:
                LOCAL.db.commit()
            else:
                LOCAL.db.rollback()
        except psycopg2.Error:  # unknown, or try again: the caller asks again
            del LOCAL.db
            status = 503
        self.send_response(status)
        self.send_header("Content-Length", "0")
        if status == 503:
            self.send_header("Idempotency-Outcome", "unknown")
        self.end_headers()

    def log_message(self, *_):  # pylint: disable=arguments-differ
        pass


class Server(http.server.ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 64


def main():
    server = Server(("127.0.0.1", int(sys.argv[2])), Handler)
    server.dsn = sys.argv[1]
    psycopg2.connect(server.dsn).close()
    print("bank: listening on %d" % server.server_address[1], flush=True)
    server.serve_forever()


main()
