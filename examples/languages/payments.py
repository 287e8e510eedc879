#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""
payments.py - charges cards, with Flask. Each charge is a line of a ledger.

    payments.py LEDGER PORT
"""

import sys

from flask import Flask, abort, jsonify, request

import once

app = Flask(__name__)


@app.post("/charge")
def charge():
    # An exception is an unknown outcome: what is wrong is refused before that.
    try:
        order = request.get_json()
        name, amount = str(order["order"]), int(order["amount"])
    except (KeyError, TypeError, ValueError):
        abort(400)
    with open(sys.argv[1], "a", encoding="utf-8") as ledger:
        ledger.write("%s %d\n" % (name, amount))
    return jsonify(order=name, charged=amount), 201


# In this example a header names the caller. Take it from the session in yours. An exception
# that Flask answers with 500 is unknown: once.WSGI sees that this is Flask.
app.wsgi_app = once.WSGI(app.wsgi_app,
                         scope=lambda environ: environ.get("HTTP_X_CUSTOMER"))

if __name__ == "__main__":
    app.run(port=int(sys.argv[2]), threaded=True)
