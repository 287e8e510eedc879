# SPDX-License-Identifier: Apache-2.0
"""
not_here.py - scenarios that do not apply to a service in another language, and
why. A pattern is of the file's name and the test's; its parameters may follow.
"""

import fnmatch

STORE = "stores are those of the servers, one each"
VARIABLES = "a service computes in its own language"
LOOKUP = "once serve has no status resource"
PROBE = "once serve asks no service: a handler would ask its own ledger"
METRICS = "the page is nginx's"

EVERY = {
    "test_config.py::test_a_store_line_that_is_wrong*": STORE,
    "test_config.py::test_a_store_defined_twice": STORE,
    "test_config.py::test_a_store_that_nobody_has_defined": STORE,
    "test_config.py::*an_unprivileged_nginx*": "it is nginx's",
    "test_config.py::*may_not_be_written*": "it is nginx's",
    "test_config.py::*unknown_variable*": VARIABLES,
    "test_config.py::*a_variable_and_a_word*": VARIABLES,
    "test_config.py::*out_of_range(probe*": PROBE,
    "test_config.py::*lookup*": LOOKUP,
    "test_named.py::*": STORE,
    "test_metrics.py::*": METRICS,
    "test_lookup.py::*": LOOKUP,
    "test_probe.py::*": PROBE,
    "test_each_store.py::test_what_is_unknown_stays_so_until*": PROBE,
    "test_key_json.py::test_the_service_is_asked_with_the_key*": PROBE,
    "test_lifecycle.py::test_before_its_lease_is_over_a_killed_owner*":
        "that a process has died is known at once: test/serve",
    "test_replay.py::test_headers_named_by_*connection*":
        "no handler may set the line Connection",
}

GUNICORN = {
    "test_connections.py::*pipelined*":
        "gunicorn's gthread worker loses what was read too early",
    "test_connections.py::test_the_connection_goes_on_after_in_flight*":
        "the same: its requests are pipelined",
}

GUNICORN["test_lifecycle.py::test_term_with_a_request_in_flight*"] = \
    "gunicorn cuts no client off while its handler runs"

UVICORN = {
    "test_attempts.py::test_a_guarded_request_is_never_upgraded*":
        "uvicorn answers an upgrade itself",
}

# What refuses such bytes in a header itself.
STRICT = {"test_key.py::*malformed*%s*" % what: "its server refuses such bytes"
          for what in ("control_byte", "delete_byte", "escape_sequence")}
STRICT.update({"test_observe.py::test_a_hostile_key*-%d]" % n:
               "its server refuses such bytes" for n in (5, 6)})

NODE = {
    "test_connections.py::test_a_request_and_its_repetitions_may_be_pipel*":
        "Node runs the handlers of pipelined requests side by side",
}

TOMCAT = {
    "test_connections.py::test_the_connection_goes_on_after(*-%s]" % what:
        "Tomcat ends a connection after 400, 500 and 503"
    for what in ("a_replayed_failure", "key_missing", "key_invalid",
                 "key_invalid_with_a_large_body",
                 "key_invalid_with_a_chunked_body", "store_unavailable")}
TOMCAT["test_connections.py::test_many_answers_of_every_kind_on_one_conn*"] = \
    "the same"
TOMCAT["test_replay.py::test_a_response_header_is_kept*Content-Type]"] = \
    "Tomcat writes a charset in its own way"

LISTS = {"python": (EVERY, GUNICORN), "asgi": (EVERY, UVICORN),
         "node": (EVERY, NODE, STRICT), "express": (EVERY, NODE, STRICT),
         "go": (EVERY, STRICT), "lua": (EVERY,), "java": (EVERY, STRICT, TOMCAT),
         "java-async": (EVERY, STRICT, TOMCAT),
         "java-dispatch": (EVERY, STRICT, TOMCAT)}


def why_not(target, nodeid):
    """The reason, or None."""
    file, _, test = nodeid.partition("::")
    name = "%s::%s" % (file.rpartition("/")[2], test)
    for table in LISTS.get(target, (EVERY,)):
        for pattern, reason in table.items():
            if fnmatch.fnmatchcase(name.replace("[", "("),
                                   pattern.replace("[", "(")):
                return reason
    return None
