#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""
payments.py - charges cards, with Flask. Each charge is a line of a ledger.

    payments.py LEDGER PORT
"""

import sys

from flask import Flask, jsonify, request

import once

app = Flask(__name__)


@app.post("/charge")
def charge():
    order = request.get_json()
    with open(sys.argv[1], "a", encoding="utf-8") as ledger:
        ledger.write("%s %d\n" % (order["order"], order["amount"]))
    return jsonify(order=order["order"], charged=order["amount"]), 201


# Who calls? Here this header says so: take yours from the session.
app.wsgi_app = once.WSGI(app.wsgi_app,
                         scope=lambda environ: environ.get("HTTP_X_CUSTOMER"))

if __name__ == "__main__":
    app.run(port=int(sys.argv[2]), threaded=True)
