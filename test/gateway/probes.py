# SPDX-License-Identifier: Apache-2.0
"""
A service that is asked what became of a record: the upstream of a site, on the
path of `once_probe`. It answers from its ledger, or as a test lets it.
"""

from gateway import Answer, Drop, eventually, guarded, is_problem

PATH = "/ask/c0"

# The one location that may be asked through, and one that asks through it.
INTERNAL = """
    location = %s {
        internal;
        once off;
        %%s
        proxy_pass http://origin;
        proxy_http_version 1.1;
    }""" % PATH


def probing(more="", asked="", prefix="/pay/"):
    """A guarded location that asks, and the location that it asks through."""
    return guarded(prefix, "once_probe %s; proxy_http_version 1.1; %s" % (
        PATH, more)) + INTERNAL % asked


def known(request, status=201, body=b"charged\n", more=(), http=200,
          **changed):
    """The headers of "applied"; None in `changed` leaves one out."""
    lines = {"Idempotency-Record": request.get("Idempotency-Record"),
             "Idempotency-Outcome": "applied",
             "Idempotency-Recorded-Status": str(status)}
    lines.update({"Idempotency-" + name.replace("_", "-").title(): value
                  for name, value in changed.items()})
    return Answer(http, body, [(n, v) for n, v in lines.items()
                               if v is not None] + list(more))


class Ledger:
    """What the service knows: `says` makes its answer to a question."""

    def __init__(self, site, says=None):
        self.says = says or known
        self.requests = []
        self.script = [self]
        site.upstream.cases["c0"] = self

    def __call__(self, conn, request):
        self.says(request)(conn, request)

    @property
    def asked(self):
        return len(self.requests)


def silent_about(request):
    """It has found nothing, which says nothing."""
    return known(request, outcome="not-applied")


def lose(site, prefix="/pay/", **what):
    """A request that arrived, and whose answer nobody got."""
    c = site.case(prefix, Drop())
    is_problem(c.post(**what), "outcome-unknown", 502)
    return c


def resolved(case, **what):
    """Repeats until the outcome is known: none asks within a second of the
    last."""
    def look():
        r = case.post(**what)
        if r.replayed:
            return r
        is_problem(r, "outcome-unknown")
        return None
    return eventually(look)
