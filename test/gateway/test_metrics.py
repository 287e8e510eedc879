# SPDX-License-Identifier: Apache-2.0
"""
Metrics of the gateway: that promtool and the reference parser of OpenMetrics
read the page whatever the number of stores, that each attempt is counted once,
by its end, and each request by what its client was told; and the same words in
the access log, in JSON, and in the error log.
"""

import json
import os
import re
import shutil
import signal
import subprocess
import threading
import time

import pytest
from prometheus_client.openmetrics import parser as openmetrics
from prometheus_client.parser import text_string_to_metric_families

from gateway import (BUILD, MARK, PATIENCE, ROOT, Answer, Client, Drop, Hold, Raw,
                     Silent, eventually, guarded, is_new, is_problem,
                     request_bytes)

pytestmark = pytest.mark.nginx_only("the page and the logs are the module's")

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"

PROMTOOL = shutil.which("promtool")

LOG = """
    include %s;
    access_log json.log once_json;
""" % (ROOT / "nginx" / "snippets" / "once-log.conf")

STATUS = "location = /status { once_status; }"


def fetch(site, target="/status?format=prometheus", headers=()):
    with Client(site.gateway.port) as client:
        client.send(request_bytes("GET", target, headers, close=True))
        return client.read("GET")


def samples(site):
    """Sample name and labels -> value, as the reference parser reads it."""
    r = fetch(site, "/status?format=openmetrics")
    assert r.status == 200, r
    return {(s.name, tuple(sorted(s.labels.items()))): s.value
            for f in openmetrics.text_string_to_metric_families(
                r.body.decode()) for s in f.samples}


def value(seen, name, **labels):
    """The sum over all samples that have these labels."""
    return sum(v for (n, have), v in seen.items()
               if n == name and labels.items() <= dict(have).items())


# ---- The text ------------------------------------------------------------

THREE = "once_store two memory:; once_store three memory:;"


@pytest.mark.parametrize("stores", [0, 1, 3])
def test_promtool_is_silent(make, stores):
    site = make(STATUS + (guarded("/pay/") if stores else ""), workers=1,
                store="memory", lines=THREE if stores == 3 else "",
                start=False)
    if stores == 0:
        site.gateway.texts["http"] = ""
    site.start()
    if stores:
        is_new(site.case("/pay/").post())
    r = fetch(site)
    assert r.get("Content-Type") == "text/plain; version=0.0.4; charset=utf-8"
    out = subprocess.run([PROMTOOL, "check", "metrics"], input=r.body,
                         capture_output=True, check=False, timeout=PATIENCE)
    assert (out.returncode, out.stdout, out.stderr) == (0, b"", b"")


@pytest.mark.parametrize("stores", [1, 3])
def test_the_reference_parser_reads_openmetrics(make, stores):
    site = make(STATUS + guarded("/pay/"), workers=1, store="memory",
                lines=THREE if stores == 3 else "")
    is_new(site.case("/pay/").post())
    # The two pages below are to show the same families.
    eventually(lambda: b"once_records{" in fetch(site).body)
    r = fetch(site, "/status?format=openmetrics")
    assert r.get("Content-Type") == \
        "application/openmetrics-text; version=1.0.0; charset=utf-8"
    text = r.body.decode()
    assert text.endswith("\n# EOF\n")
    families = list(openmetrics.text_string_to_metric_families(text))
    names = [f.name for f in families]
    assert len(names) == len(set(names))
    assert all(f.documentation and f.type != "unknown" for f in families)
    in_text = list(text_string_to_metric_families(
        fetch(site).body.decode()))
    assert len(in_text) == len(families)


@pytest.mark.parametrize("accept, kind", [
    ("application/openmetrics-text;version=1.0.0,application/openmetrics-text;"
     "version=0.0.1;q=0.75,text/plain;version=0.0.4;q=0.5,*/*;q=0.1",
     "application/openmetrics-text"),
    ("text/plain;version=0.0.4", "text/plain"),
    ("*/*", "application/json")])
def test_the_accept_header_chooses_the_format(make, accept, kind):
    site = make(STATUS, workers=1, store="memory")
    r = fetch(site, "/status", [("Accept", accept)])
    assert r.status == 200
    assert r.get("Content-Type").split(";")[0] == kind


def test_an_unknown_format_is_a_400(make):
    site = make(STATUS, workers=1, store="memory")
    for name in ("xml", "", "prometheus2", "json%00", "openmetric"):
        assert fetch(site, "/status?format=" + name).status == 400, name
    assert fetch(site, "/status?format=json").status == 200


def test_the_manual_has_each_family_and_no_other(make):
    site = make(STATUS + guarded("/pay/"), workers=1, store="memory")

    def families():
        """All, as soon as the records were counted."""
        text = fetch(site).body.decode()
        return "once_records{" in text and set(
            re.findall(r"(?m)^# TYPE (\w+)", text))
    page = eventually(families)
    manual = (ROOT / "nginx" / "README.md").read_text("utf-8")
    table = manual.split("## Metrics", 1)[1].split("\n\n")[1]
    named = {name for row in table.splitlines()
             for name in re.findall(r"`(once_\w+)`", row.split("|")[1])}
    assert named == page


# ---- Ends and what was told ----------------------------------------------

HTTP = LOG + """
    once_store late faulty:fail=complete:1-*@memory:;
    once_store away faulty:fail=claim:1-*@memory:;
    upstream nobody { server UPSTREAM1; }
"""

SERVER = (
    guarded("/pay/", "once_route pay; proxy_http_version 1.1;") +
    guarded("/slow/", "proxy_read_timeout 300ms;") +
    guarded("/some/", "once_final 2xx;") +
    guarded("/none/", target="http://nobody") +
    guarded("/late/", "once_lease 1s;", once="late") +
    guarded("/away/", once="away") +
    guarded("/named/", "proxy_set_header Idempotency-Record $once_name;") +
    guarded("/dry/", "once_dry_run on; once_route dry;") +
    STATUS)


@pytest.fixture(scope="module", name="busy")
def busy_site(tmp_path_factory):
    """One worker, so that counters can be compared exactly."""
    import gateway  # pylint: disable=import-outside-toplevel
    it = gateway.Site(tmp_path_factory.mktemp("site"), SERVER, "memory", HTTP,
                      workers=1, upstreams=2, listen=False)
    try:
        yield it.start()
    finally:
        it.close()


def json_lines(site, path):
    """What the JSON log has of a path, when it is there."""
    return eventually(lambda: [
        line for line in map(json.loads,
                             site.gateway.log("json.log").splitlines())
        if line["uri"] == path])


def unknown_lines(site, name):
    """The lines of the error log about a record."""
    return [x for x in site.gateway.log("error.log").splitlines()
            if "outcome unknown: record %s," % name[:16] in x]



def saying(word):
    return Answer(200, b"x", [("Idempotency-Outcome", word)])


# script, location, and how the attempt ended
ENDS = {
    "success": (Answer(), "/pay/", "success", "-"),
    "failure": (Answer(500, b"no"), "/pay/", "failure", "-"),
    "outside of final": (Answer(404, b"no"), "/some/", "failure", "-"),
    "not kept": (saying("no-store"), "/pay/", "unstored", "-"),
    "status": (Answer(429, b"later"), "/pay/", "released", "status"),
    "a gateway's error": (Answer(502, b"no"), "/pay/", "indeterminate",
                          "status"),
    "a gateway's error that is cut": (
        Raw(b"HTTP/1.1 504 Odd\r\nContent-Length: 9\r\n\r\nhalf"), "/pay/",
        "indeterminate", "status"),
    "said no": (saying("not-applied"), "/pay/", "released", "upstream-said"),
    "not sent": (Answer(), "/none/", "released", "not-sent"),
    "reset": (Drop(), "/pay/", "indeterminate", "reset"),
    "silent": (Silent(), "/slow/", "indeterminate", "timeout"),
    "silent in the body": (
        Hold(before=b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhalf"),
        "/slow/", "indeterminate", "timeout"),
    "not HTTP": (Raw(b"EHLO\r\n\r\n"), "/pay/", "indeterminate",
                 "bad-response"),
    "a cut head": (Raw(b"HTTP/1.1 200 OK\r\nContent-Le"), "/pay/",
                   "indeterminate", "bad-response"),
    "a bad chunk": (
        Raw(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n"),
        "/pay/", "indeterminate", "bad-response"),
    "a cut body": (Raw(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhalf"),
                   "/pay/", "indeterminate", "truncated"),
    "said unknown": (saying("unknown"), "/pay/", "indeterminate",
                     "upstream-said"),
    "not taken": (Answer(), "/late/", "indeterminate", "store-silent"),
}


def count(seen, name, **labels):
    """Without what the reaper has found: an attempt whose end the store did not
    take is counted once more, when its lease is over."""
    gone = value(seen, name, reason="owner-gone", **labels) \
        if name == "once_attempts_total" and "reason" not in labels else 0
    return value(seen, name, **labels) - gone


def settled(site):
    """The counters, when the attempts of earlier tests have ended."""
    def same():
        one = samples(site)
        time.sleep(1.2)
        two = samples(site)
        return two if value(one, "once_attempts_total") == value(
            two, "once_attempts_total") else None
    return eventually(same)


@pytest.mark.parametrize("how", ENDS)
def test_an_attempt_is_counted_once_by_its_end(busy, how):
    script, where, outcome, reason = ENDS[how]
    c = busy.case(where, script)
    before = settled(busy)
    told = c.post()
    line = json_lines(busy, c.path)[0]

    counted = ("once_attempts_total", "once_requests_total",
               "once_attempt_duration_seconds_count",
               "once_claim_duration_seconds_count",
               "once_complete_duration_seconds_count")

    def ended():
        now = samples(busy)
        return now if all(count(now, name) > count(before, name)
                          for name in counted) else None
    after = eventually(ended)
    store = "late" if where == "/late/" else "main"
    route = "pay" if where == "/pay/" else "-"
    labels = {"store": store, "route": route}
    own = {"once_attempts_total": {"outcome": outcome, "reason": reason},
           "once_requests_total": {"status": told.once}}
    for name in counted:
        more = own.get(name, {})
        assert count(after, name) == count(before, name) + 1, name
        assert count(after, name, **labels, **more) == \
            count(before, name, **labels, **more) + 1, name
    assert (line["once_outcome"], line["once_reason"]) == (outcome, reason)
    assert line["once_status"] == told.once
    assert (line["once_store"], line["once_route"]) == (store, route)
    assert re.fullmatch("[0-9a-f]{64}", line["once_name"])
    assert line["once_attempt"] == "1" and int(line["once_fence"]) > 0
    said = unknown_lines(busy, line["once_name"])
    if outcome != "indeterminate":
        assert not said
        return
    assert "[error]" in said[0]
    assert re.search(r"attempt 1, reason %s, fence %s\b" % (
        reason, line["once_fence"]), said[0])
    assert all("reason owner-gone" in x for x in said[1:]), said


def test_a_request_counts_as_its_client_was_told(busy):
    """T1: a fresh request that ended as 502 is no "new" one."""
    c = busy.case("/pay/", Drop())
    before = samples(busy)
    is_problem(c.post(), "outcome-unknown", 502)
    is_problem(c.post(), "outcome-unknown", 409)

    def told():
        now = samples(busy)
        return [value(now, "once_requests_total", status=word) -
                value(before, "once_requests_total", status=word)
                for word in ("new", "indeterminate")]
    eventually(lambda: sum(told()) == 2)
    assert told() == [0, 2]


@pytest.mark.parametrize("where, status", [("/away/", "unavailable"),
                                           ("/dry/", "new")])
def test_what_has_no_attempt_or_no_mark_is_counted_too(busy, where, status):
    c = busy.case(where)
    before = samples(busy)
    c.post()
    eventually(lambda: value(samples(busy), "once_requests_total",
                             status=status)
               == value(before, "once_requests_total", status=status) + 1)
    assert json_lines(busy, c.path)[0]["once_status"] == status


def test_a_replay_has_the_attempt_that_it_repeats(busy):
    c = busy.case("/pay/", Answer(500, b"no"))
    c.post()
    assert c.post().replayed
    first, again = sorted(
        eventually(lambda: len(json_lines(busy, c.path)) == 2
                   and json_lines(busy, c.path)),
        key=lambda line: line["once_status"])
    assert (first["once_status"], again["once_status"]) == ("new", "replayed")
    for name in ("once_name", "once_attempt", "once_fence", "once_outcome"):
        assert first[name] == again[name], name
    assert again["once_outcome"] == "failure"


def test_the_service_can_log_the_name_of_the_record(busy):
    c = busy.case("/named/")
    c.post()
    assert c.requests[0].get("Idempotency-Record") == \
        json_lines(busy, c.path)[0]["once_name"]


def test_an_unguarded_request_is_json_too(busy):
    c = busy.case("/open/")
    c.post(headers=[("User-Agent", '"\\\x07\xff')])
    line = json_lines(busy, c.path)[0]
    assert {line["once_" + name] for name in (
        "status", "outcome", "reason", "name", "attempt", "fence", "store",
        "route")} == {"-"}
    assert line["status"] == 201 and line["method"] == "POST"


def test_the_json_log_has_no_secret(busy):
    c = busy.case("/pay/", Drop())
    c.post(query="card=plain-card", headers=[("Authorization", MARK)])
    assert json_lines(busy, c.path)
    log = busy.gateway.log("json.log")
    assert MARK not in log and "plain-card" not in log


# ---- Gauges --------------------------------------------------------------


def test_the_oldest_attempt_has_its_time(make):
    site = make(STATUS + guarded("/pay/"), workers=1, store="memory")
    idle = samples(site)
    assert value(idle, "once_oldest_attempt_timestamp_seconds") == 0
    hold = Hold()
    begun = time.time()
    with site.case("/pay/", hold).start() as owner:
        hold.wait()
        seen = samples(site)
        assert value(seen, "once_attempts_in_flight", store="main") == 1
        since = value(seen, "once_oldest_attempt_timestamp_seconds")
        assert begun - 1 <= since <= time.time() + 1
        hold.go.set()
        is_new(owner.read())
    assert value(samples(site), "once_attempts_in_flight") == 0


@pytest.mark.parametrize("store, driver, durable", [
    ("memory", "memory", "no"), ("sqlite", "sqlite", "yes")])
def test_a_store_has_its_driver_and_is_durable_or_not(make, store, driver,
                                                      durable):
    site = make(STATUS + guarded("/pay/"), workers=1, store=store)
    is_new(site.case("/pay/").post())
    seen = samples(site)
    assert value(seen, "once_store_info", store="main", driver=driver,
                 durable=durable) == 1
    assert value(seen, "once_store_up", store="main") == 1
    eventually(lambda: value(samples(site),
                             "once_sweep_last_timestamp_seconds") >
               time.time() - 60)
    assert value(seen, "once_sweep_stopped") == 0


def test_what_waits_is_counted_by_the_engine(make):
    """Not by the page: it may show what was so ten seconds ago."""
    site = make(STATUS + guarded("/pay/"), workers=2)
    first = eventually(lambda: value(
        samples(site), "once_oldest_indeterminate_timestamp_seconds") == 0
        and samples(site))
    assert first
    begun = time.time()
    for _ in range(2):
        is_problem(site.case("/pay/", Drop()).post(), "outcome-unknown", 502)
    seen = eventually(lambda: value(
        samples(site), "once_records", store="main",
        state="indeterminate") == 2 and samples(site))
    assert value(seen, "once_records") == 2
    since = value(seen, "once_oldest_indeterminate_timestamp_seconds")
    assert begun - 1 <= since <= time.time()
    assert value(seen, "once_store_incarnation") == 0
    assert value(seen, "once_store_gap_until_timestamp_seconds") == 0
    assert value(seen, "once_store_rollbacks_total") == 0


def test_records_that_cannot_be_counted_are_not_shown_as_none(make):
    site = make(STATUS + guarded("/pay/"), workers=1,
                store="postgres://127.0.0.1:1/x")
    seen = samples(site)
    assert value(seen, "once_store_up") == 0
    assert not [name for name, _ in seen if name == "once_records"]


def test_a_store_that_does_not_answer_is_down(make):
    site = make(STATUS + guarded("/pay/"), workers=1,
                store="faulty:fail=any:1-*@memory")
    is_problem(site.case("/pay/").post(), "store-unavailable")
    eventually(lambda: value(samples(site), "once_store_up") == 0)


# ---- Routes --------------------------------------------------------------


def test_counters_of_a_route_go_on_after_a_reload(make):
    site = make(STATUS + guarded("/a/", "once_route a;") +
                guarded("/b/", "once_route b;"), workers=1, store="memory")
    for where in ("/a/", "/b/", "/b/"):
        is_new(site.case(where).post())
    texts = site.gateway.texts
    texts["server"] = texts["server"].replace("once_route a", "once_route c")
    site.gateway.render()
    site.gateway.reload()
    is_new(site.case("/a/").post())
    is_new(site.case("/b/").post())
    eventually(lambda: value(samples(site), "once_requests_total",
                             status="new") == 5)
    seen = samples(site)
    assert [value(seen, "once_requests_total", status="new", route=r)
            for r in "abc"] == [1, 3, 1]


@pytest.mark.parametrize("name, what", [
    ('""', "needs a name"), ("a.b", "needs a name"), ("x" * 65, "needs a name"),
    ("a; once_route b", "is duplicate")])
def test_a_route_that_will_not_do_is_refused(make, name, what):
    site = make(guarded("/pay/", "once_route %s;" % name), store="memory",
                start=False, allow=[r"\[emerg\]"])
    status, said = site.gateway.check()
    assert status != 0 and "once_route" in said and what in said


@pytest.mark.parametrize("n, ok", [(64, True), (65, False)])
def test_a_store_has_sixty_four_routes(make, n, ok):
    site = make("".join(guarded("/r%d/" % i, "once_route r%d;" % i)
                        for i in range(n)), store="memory", start=False,
                allow=[r"\[emerg\]"])
    status, said = site.gateway.check()
    assert (status == 0) == ok, said


def test_names_that_find_no_room_after_a_reload_are_counted_together(make):
    """Slots of names that are gone stay: old workers may count in them."""
    def locations(names):
        return STATUS + "".join(guarded("/%s/" % n, "once_route %s;" % n)
                                for n in names)
    site = make(locations(["a%d" % i for i in range(62)]), workers=1,
                store="memory")
    site.gateway.texts["server"] = locations(["b0", "b1", "b2"])
    site.gateway.render()
    site.gateway.reload()
    for where in ("/b0/", "/b1/", "/b2/"):
        is_new(site.case(where).post())
    eventually(lambda: value(samples(site), "once_requests_total",
                             status="new") == 3)
    seen = samples(site)
    assert [value(seen, "once_requests_total", status="new", route=r)
            for r in ("b0", "b1", "b2", "-")] == [1, 0, 0, 2]
    log = site.gateway.log("error.log")
    assert all('"%s" is counted with "-"' % n in log for n in ("b1", "b2"))
    assert '"b0" is counted' not in log


# ---- Deaths, and many at once --------------------------------------------


def test_a_killed_worker_leaves_a_line_and_a_count_for_each_attempt(make):
    """A2: what was executed is what was counted."""
    site = make(STATUS + guarded("/pay/", "once_lease 1s; once_route pay;"),
                workers=1, lines=LOG, allow=[r"exited on signal 9"])
    for _ in range(3):
        is_new(site.case("/pay/").post())
    held = [site.case("/pay/", Hold()) for _ in range(10)]
    clients = [c.start(headers=[("traceparent", "00-%s-00f067aa0ba902b7-01"
                                 % TRACE)]) for c in held]
    for c in held:
        c.script[0].wait()
    os.kill(site.gateway.worker_pids()[0], signal.SIGKILL)
    for c, client in zip(held, clients):
        c.script[0].go.set()
        client.hang_up()
    eventually(lambda: value(samples(site), "once_attempts_total",
                             outcome="indeterminate") == 10)
    seen = samples(site)
    assert value(seen, "once_attempts_total", outcome="indeterminate",
                 reason="owner-gone") == 10
    assert value(seen, "once_attempts_total") == 13
    assert value(seen, "once_records_reaped_total") == 10
    assert value(seen, "once_requests_total") == 3
    assert sum(len(c.requests) for c in held) == 10
    lines = re.findall(r"outcome unknown: record ([0-9a-f]{16}), attempt 1, "
                       r'reason owner-gone, fence (\d+), label "POST (\S+)"',
                       site.gateway.log("error.log"))
    assert sorted(path for *_, path in lines) == sorted(c.path for c in held)
    out = subprocess.run([BUILD / "once", "--store", "sqlite:%s" % site.db,
                          "ls", "--state", "indeterminate", "--json"],
                         capture_output=True, check=True, timeout=PATIENCE)
    rows = [json.loads(x) for x in out.stdout.splitlines()]
    assert {(r["name"][:16], r["fence"], r["label"], r["trace"], r["reason"])
            for r in rows} == {(name, fence, "POST " + path, TRACE,
                                "owner-gone") for name, fence, path in lines}


def test_an_unknown_outcome_is_in_the_log_at_its_default_level(make):
    """`error_log FILE;`, as Debian's nginx.conf has it."""
    site = make(guarded("/pay/"), level="error")
    case = site.case("/pay/", Drop())
    assert case.post().code() == "outcome-unknown"
    eventually(lambda: "outcome unknown: record" in
               site.gateway.log("error.log"))


def test_lines_about_unknown_outcomes_are_limited(make):
    """Each is in the log or in the number of those left out."""
    site = make(STATUS + guarded("/pay/", "once_lease 1s;"), workers=1,
                allow=[r"exited on signal 9"])
    n = 200
    held = [site.case("/pay/", Hold()) for _ in range(n)]
    clients = [c.start() for c in held]
    for c in held:
        c.script[0].wait()
    os.kill(site.gateway.worker_pids()[0], signal.SIGKILL)
    for c, client in zip(held, clients):
        c.script[0].go.set()
        client.hang_up()

    def all_said():
        log = site.gateway.log("error.log")
        written = log.count("outcome unknown: record")
        left = sum(map(int, re.findall(r"outcome unknown: (\d+) more", log)))
        return (written, left) if written + left == n else None
    written, left = eventually(all_said)
    assert written >= 64 and left > 0, (written, left)
    eventually(lambda: value(samples(site), "once_attempts_total",
                             reason="owner-gone") == n)


def test_each_request_is_counted_once_by_two_workers(make):
    site = make(STATUS + guarded("/pay/"), workers=2)
    threads = [threading.Thread(target=site.case("/pay/").post)
               for _ in range(40)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    eventually(lambda: value(samples(site), "once_requests_total",
                             status="new") == 40)
    seen = samples(site)
    assert value(seen, "once_attempts_total", outcome="success") == 40
    assert value(seen, "once_claim_duration_seconds_count") == 40


# ---- The dashboard -------------------------------------------------------


@pytest.fixture(scope="module", name="shown")
def shown_page(tmp_path_factory):
    """A page behind which there is some traffic, and its URL."""
    import gateway  # pylint: disable=import-outside-toplevel
    it = gateway.Site(tmp_path_factory.mktemp("shown"), STATUS +
                      guarded("/pay/", "once_route pay;"), workers=2)
    stop = threading.Event()

    def traffic():
        while not stop.wait(0.2):
            it.case("/pay/").post()
    thread = threading.Thread(target=traffic)
    try:
        it.start()
        thread.start()
        yield "http://127.0.0.1:%d/status" % it.gateway.port
    finally:
        stop.set()
        thread.join()
        it.close()


def check_dashboard(page, *words):
    return subprocess.run([ROOT / "tools" / "check-dashboard", page, *words],
                          capture_output=True, check=False, text=True,
                          timeout=4 * PATIENCE)


def test_each_expression_of_the_board_has_a_series(shown):
    out = check_dashboard(shown, "--patience", "120")
    assert out.returncode == 0, out.stdout + out.stderr
    assert " 0 flaws" in out.stdout


@pytest.mark.parametrize("change, said", [
    (("once_store_up", "once_store_upp"), "no series: Store answers"),
    (("rate(once_leases", "rat(once_leases"), "unknown function"),
    (('"uid": "once"', '"uid": "other"'), "its uid"),
    (('store=~\\"$store\\"', 'store=~\\"$shop\\"'), '"shop" is not there')])
def test_a_board_that_will_not_do_is_found(shown, tmp_path, change, said):
    text = (ROOT / "ops" / "grafana" / "once.json").read_text("utf-8")
    assert change[0] in text
    board = tmp_path / "board.json"
    board.write_text(text.replace(*change))
    out = check_dashboard(shown, "--board", str(board), "--patience", "3")
    assert out.returncode == 1 and said in out.stdout + out.stderr, out
