# SPDX-License-Identifier: Apache-2.0
"""
What an operator sees: variables in the access log, the status page, and that
no key, scope or body turns up in either, nor in the error log. (The harness
looks at all logs and at the store once more when a gateway ends.)
"""

import json
import re

import pytest

import newstore
from gateway import (MARK, Answer, Client, Drop, Hold, eventually, guarded,
                     is_new, is_problem, request_bytes)

HTTP = """
    once_store broken faulty:fail=claim:1-*@sqlite:FOLDER/broken.db;
"""

SERVER = (
    guarded("/pay/") +
    guarded("/must/", "once_key_required on;") +
    guarded("/tenant/", scope="$http_x_tenant") +
    guarded("/small/", "once_max_response 1k;") +
    guarded("/broken/", once="broken") +
    guarded("/bypass/", "once_lost takeover; once_store_failure bypass;",
            once="broken") + """
        location = /status { once_status; }""")


def fields(site, c, n=1):
    """The n-th line of the access log about a case."""
    def enough():
        lines = site.gateway.access(c.path)
        return lines if len(lines) >= n else None
    line = eventually(enough)[n - 1]
    return dict(re.findall(r"(once|attempt|hash)=(\S+)", line))


def test_the_variables_of_a_new_answer_and_of_its_replay(site):
    c = site.case("/pay/")
    is_new(c.post())
    c.post()
    new, again = sorted((fields(site, c, 1), fields(site, c, 2)),
                        key=lambda line: line["once"])
    assert (new["once"], new["attempt"]) == ("new", "1")
    assert again["once"] == "replayed"
    assert re.fullmatch("[0-9a-f]{64}|[0-9a-f]{16}", new["hash"])
    assert new["hash"] == again["hash"]


def test_the_hash_differs_by_key_and_by_scope(site):
    c = site.case("/tenant/")
    for key, tenant in ((c.key, "a"), (c.key + "x", "a"), (c.key, "b")):
        c.post(key=key, headers=[("X-Tenant", MARK + tenant)])
    assert len({fields(site, c, n)["hash"] for n in (1, 2, 3)}) == 3


def test_the_attempt_number_is_in_the_log(site):
    c = site.case("/pay/", Answer(429, b"later"), Answer())
    c.post()
    c.post()
    assert fields(site, c, 1)["attempt"] == "1"
    assert fields(site, c, 2)["attempt"] == "2"


WORDS = {
    "invalid": ("/pay/", [], {"key": "a,b"}, 0),
    "mismatch": ("/pay/", [], {"body": b"other"}, 1),
    "indeterminate": ("/pay/", [Drop()], {}, 1),
    "unavailable": ("/broken/", [], {}, 0),
    "unprotected": ("/bypass/", [], {}, 0),
}


@pytest.mark.parametrize("word", WORDS)
def test_the_status_is_in_the_log_and_in_the_answer(site, word):
    where, script, what, before = WORDS[word]
    c = site.case(where, *script)
    for _ in range(before):
        c.post()
    assert c.post(**what).once == word
    # Two workers may write their lines in another order.
    assert word in [fields(site, c, n + 1)["once"] for n in range(before + 1)]


def test_the_first_unknown_outcome_is_indeterminate_in_the_log(site):
    c = site.case("/pay/", Drop())
    is_problem(c.post(), "outcome-unknown", 502)
    assert fields(site, c)["once"] == "indeterminate"


def test_in_flight_is_in_the_log(site):
    hold = Hold()
    c = site.case("/pay/", hold)
    with c.start() as owner:
        hold.wait()
        is_problem(c.post(), "in-flight")
        assert fields(site, c)["once"] == "in_flight"
        hold.go.set()
        owner.read()


@pytest.mark.parametrize("method, key", [("GET", "x"), ("POST", None)])
def test_what_is_not_guarded_has_a_dash(site, method, key):
    c = site.case("/pay/")
    c.send(method, key=key)
    assert fields(site, c)["once"] == "-"
    c.post()
    assert fields(site, c, 2)["once"] == "new"


HOSTILE = ['"%s\\"%s\\\\"', "%s'%s<script>", "%s%%0a%s", "%s${jndi:%s}",
           "%s;drop--%s", "%s\x1b[31m%s", "%s\x08%s", '"%s\\', "%s\xff\xfe%s",
           "%s`id`%s", "%s%%n%%s%s"]


@pytest.mark.parametrize("form", HOSTILE, ids=range(len(HOSTILE)))
@pytest.mark.parametrize("where", ["/pay/", "/broken/"])
def test_a_hostile_key_is_in_no_log_and_in_no_answer(site, where, form):
    c = site.case(where, Drop())
    key = form.replace("%s", MARK).replace("%%", "%")
    for _ in range(2):
        r = c.post(key=key)
        assert r.once in ("invalid", "indeterminate", "unavailable"), r
        assert MARK.encode() not in r.body
        assert MARK not in r.raw.decode("latin-1")
    assert MARK not in " ".join(site.gateway.access(c.path))
    assert MARK not in site.gateway.log("error.log")


def test_a_secret_scope_and_body_are_in_no_log(site):
    c = site.case("/tenant/", Drop())
    for body in (b"%ssecret" % MARK.encode(), b"other"):
        r = c.post(headers=[("X-Tenant", MARK + "scope"),
                            ("Authorization", "Bearer " + MARK)], body=body)
        assert r.code() in ("outcome-unknown", "key-reused"), r
        assert MARK.encode() not in r.body
    assert MARK not in " ".join(site.gateway.access(c.path))
    assert MARK not in site.gateway.log("error.log")


# ---- The status page -----------------------------------------------------


def page(site, target="/status", headers=()):
    with Client(site.gateway.port) as client:
        client.send(request_bytes("GET", target, headers, close=True))
        r = client.read("GET")
    assert r.status == 200, r
    assert MARK.encode() not in r.body
    return r


def prometheus(site):
    """The text format, by whichever of the two usual ways it is asked for."""
    ways = (("/status", [("Accept", "text/plain;version=0.0.4")]),
            ("/status?format=prometheus", []))
    for target, headers in ways:
        r = page(site, target, headers)
        if r.get("Content-Type").startswith("text/plain"):
            return r
    raise AssertionError("no Prometheus text by " + repr(ways))


SAMPLE = re.compile(
    r"[a-zA-Z_:][a-zA-Z0-9_:]*"
    r"(\{[a-zA-Z_]\w*=\"[^\"\\\n]*\"(,[a-zA-Z_]\w*=\"[^\"\\\n]*\")*,?\})?"
    r" (-?[0-9.]+(e[+-]?\d+)?|NaN|[+-]Inf)")
COMMENT = re.compile(r"# (HELP|TYPE) [a-zA-Z_:][a-zA-Z0-9_:]* .+")


@pytest.mark.nginx_only("the status page is the module's")
def test_the_status_page_is_json(site):
    is_new(site.case("/pay/").post())
    r = page(site)
    assert r.get("Content-Type").startswith("application/json")
    assert isinstance(json.loads(r.body), dict)
    assert "no-" in (r.get("Cache-Control") or "")


@pytest.mark.nginx_only("the status page is the module's")
def test_the_status_page_is_prometheus_text(site):
    is_new(site.case("/pay/").post())
    lines = prometheus(site).body.decode().splitlines()
    samples = [x for x in lines if x and not x.startswith("#")]
    assert len(samples) >= 5
    for line in lines:
        assert not line or SAMPLE.fullmatch(line) or COMMENT.fullmatch(line), \
            line
    typed = {x.split()[2] for x in lines if x.startswith("# TYPE")}
    for line in samples:
        name = re.split(r"[{ ]", line)[0]
        base = re.sub(r"_(bucket|sum|count)$", "", name)
        assert name in typed or base in typed, name
        assert name.startswith("once_")
    assert len(samples) == len({x.rsplit(" ", 1)[0] for x in samples})


def total(site, word):
    """The sum of all samples whose name or labels have the word."""
    lines = prometheus(site).body.decode().splitlines()
    return sum(float(x.rsplit(" ", 1)[1]) for x in lines
               if not x.startswith("#") and word in x.rsplit(" ", 1)[0])


OUTCOMES = {
    "new": ("/pay/", [], lambda c: c.post()),
    "replayed": ("/pay/", [], lambda c: (c.post(), c.post())),
    "mismatch": ("/pay/", [], lambda c: (c.post(), c.post(body=b"other"))),
    "indeterminate": ("/pay/", [Drop()], lambda c: (c.post(), c.post())),
    "invalid": ("/pay/", [], lambda c: c.post(key="a,b")),
    "unavailable": ("/broken/", [], lambda c: c.post()),
    "unprotected": ("/bypass/", [], lambda c: c.post()),
}


@pytest.mark.nginx_only("the status page is the module's")
@pytest.mark.parametrize("word", OUTCOMES)
def test_every_outcome_is_counted(make, word):
    site = make(SERVER, http=HTTP, workers=1)
    where, script, act = OUTCOMES[word]
    before = total(site, word)
    act(site.case(where, *script))
    assert total(site, word) >= before + 1


@pytest.mark.nginx_only("the status page is the module's")
def test_the_status_page_counts_for_all_workers(make):
    site = make(SERVER, http=HTTP, workers=2)
    before = total(site, "new")
    for _ in range(20):
        is_new(site.case("/pay/").post())
    # Counted when a request ends, which is after its client has the answer.
    eventually(lambda: total(site, "new") - before == 20)
    # Every worker answers with the same sum.
    assert {total(site, "new") - before for _ in range(10)} == {20}


@pytest.mark.nginx_only("the status page is the module's")
def test_a_post_to_the_status_page_is_not_allowed(site):
    c = site.case("/status?")
    r = c.post(path="/status")
    assert r.status in (403, 405)


# ---- Stores that come and go ---------------------------------------------


def counters(site):
    with Client(site.gateway.port) as client:
        client.send(request_bytes("GET", "/status", close=True))
        return json.loads(client.read("GET").body)["stores"]


STATUS = "location = /status { once_status; }"


@pytest.mark.nginx_only("the status page is the module's")
def test_the_status_page_has_room_for_many_stores(make):
    names = ["s%063d" % i for i in range(40)]
    site = make(STATUS, workers=1, store="memory", lines="".join(
        "once_store %s memory:;" % name for name in names))
    assert set(counters(site)) == set(names + ["main"])
    with Client(site.gateway.port) as client:
        client.send(request_bytes("GET", "/status?format=prometheus",
                                  close=True))
        text = client.read("GET").body.decode()
    assert all('once_store_batch_duration_seconds_count{store="%s"}' % name in text
               for name in names)


@pytest.mark.nginx_only("a reload")
@pytest.mark.parametrize("lines", [
    "once_store early sqlite:FOLDER/early.db; once_store main MAIN;",
    "once_store other sqlite:FOLDER/early.db;"], ids=["inserted", "renamed"])
def test_a_reload_with_other_stores_does_not_mix_counters(make, lines):
    site = make(guarded("/pay/") + STATUS, workers=1)
    is_new(site.case("/pay/").post())
    assert counters(site)["main"]["requests"]["new"] == 1
    texts = site.gateway.texts
    main = site.url("sqlite")
    texts["http"] = site.fill(lines.replace("MAIN", main))
    if "main" not in lines:
        texts["server"] = texts["server"].replace("once main", "once other")
    newstore.init_all(texts["http"])
    site.gateway.render()
    site.gateway.reload()
    seen = eventually(lambda: counters(site))
    for name, store in seen.items():
        assert store["requests"]["new"] == (1 if name == "main" else 0), name
