#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""
flask_app.py - the application of test/frameworks with Flask, behind gunicorn.

Not here: after=cancel (WSGI has no cancellation), extra (nor messages beside the
answer). Flask turns each exception into a 500; inner_catch does so by an error
handler of the application.
"""

import os
import time

import flask
from werkzeug.exceptions import HTTPException

import python_common as common
import wsgi_common
import once

NOT_HERE = {"after=cancel", "extra"}

app = flask.Flask(__name__)


@app.route("/plain", methods=common.METHODS)
def plain():
    return "plain"


@app.route("/pay", methods=common.METHODS)
def pay():
    request = flask.request
    run = common.Run(wsgi_common.do_of(request.environ),
                     request.headers.get("Idempotency-Key"))
    run.before()
    for _ in run.steps():
        time.sleep(0.01)
    after = run.do.get("after")
    if after in ("raise", "timeout"):
        run.raises(TimeoutError() if after == "timeout" else common.Fault(after))
    return answer(run)


def answer(run):
    what = run.do.get("answer", "plain")
    if what == "stream":
        return flask.Response(streamed(run), 201)
    if what == "error":
        run.finished(422)
        flask.abort(flask.Response(run.body, 422))
    if what == "short":
        told = flask.Response(run.body, 201)
        told.headers["Content-Length"] = str(len(run.body) + 10)
        return told
    if what == "file":
        told = flask.send_file(sent(run), mimetype="application/json")
        told.status_code = 201
    else:
        told = flask.Response(run.body, 204 if what == "empty" else 201)
    run.finished(told.status_code)
    return told


def sent(run):
    path = run.file()
    flask.after_this_request(lambda told: (os.remove(path), told)[1])
    return path


def streamed(run):
    first, second, last = run.chunks()
    for part in first, second:
        yield part
        time.sleep(0.02)
    run.finished(201)
    yield last


@app.errorhandler(Exception)
def caught(wrong):
    """The application's own page, if it is asked for. Else Flask's."""
    if isinstance(wrong, HTTPException):
        return wrong
    if wsgi_common.do_of(flask.request.environ).get("inner_catch"):
        return flask.Response("inner", 500)
    raise wrong


app.wsgi_app = wsgi_common.Outer(once.WSGI(
    app.wsgi_app, scope=lambda environ: environ.get("HTTP_X_USER"),
    route=common.ROUTE, fingerprint=wsgi_common.print_of))

if __name__ == "__main__":
    wsgi_common.serve(app)
