/* SPDX-License-Identifier: Apache-2.0 */
/*
 * decision.c - what the client gets, and what is done next (docs/http.md, 2
 * and 3).
 *
 * Each moment has a table, read from the top: the first row that fits decides.
 * It refuses to show a response that may not be the recorded one, and to take a
 * record that it cannot read for none.
 */
#include "calls/http/http.h"

#include <assert.h>
#include <string.h>

#define COUNT(a) (sizeof(a) / sizeof((a)[0]))

const char *once__status_text(int header)
{
    static const char *const texts[] = {
#define TEXT(name, text) text,
        ONCE__STATUS_HEADERS(TEXT)
#undef TEXT
    };

    assert(header >= 0 && header < ONCE__STATUS_COUNT);
    return texts[header];
}

/* ---- The tables -------------------------------------------------------- */

/* What the engine reported, and whether the record can be repeated: as bits, so
 * that a row can name several. */
enum {
    DONE = 1, /* the end is recorded                                     */
    OWNER = 2,
    WHOLE = 4,    /* completed, and the response is there                    */
    NOT_KEPT = 8, /* completed, and the response is not                      */
    IN_FLIGHT = 16,
    UNKNOWN = 32,
    MISMATCH = 64,
    TOO_LATE = 128, /* ONCE_FREE: the claim was lost, and the key is free    */
    CORRUPT = 256,  /* there is a record, and it cannot be read              */
    FAILED = 512,   /* anything else: no answer of the store                 */
    BEFORE = 1024,  /* completed, and a repeat gets no response here         */
    AGE = 2048,     /* nothing is recorded, and the key's time does not fit  */
    LATER = 4096,   /* in flight, and a repeat is told where to ask          */
    ANY_RESULT = 8191
};

/* once_store_failure */
enum { DENY = 1, BYPASS = 2, ANY_FAILURE = 3 };

/* What was asked of the engine. */
enum { KEPT = 1, RELEASED = 2, GIVEN_UP = 4 };

/* How the service's part ended. */
enum {
    ANSWERED = 1,
    NOT_SHOWN = 2, /* answered, and what was to show it cannot be had */
    BROKEN = 4,
    TIMED_OUT = 8,
    LOST = 16, /* answered, and by a gateway that has lost the service */
    ANY_END = 31
};

/* Seconds of Retry-After: none, one, or what the lease has left. */
enum { NEVER = 0, SOON = 1, LEASE = -1, LEASE_MAX_S = 5 };

enum {
    OWN_STATUS = 0,      /* the one that the problem has by itself */
    SERVICES_STATUS = -1 /* the one that came from the service     */
};

struct outcome {
    int next, problem, status, after, header;
};

/* clang-format off */
#define PROBLEM(name, status, after, header)                                   \
    { ONCE__NEXT_PROBLEM, ONCE__PROBLEM_##name, status, after,                 \
      ONCE__STATUS_##header }
#define NEXT(next, header)                                                     \
    { ONCE__NEXT_##next, ONCE__NO_PROBLEM, OWN_STATUS, NEVER,                  \
      ONCE__STATUS_##header }
#define TELL(status, after, header)                                            \
    { ONCE__NEXT_TELL, ONCE__NO_PROBLEM, status, after, ONCE__STATUS_##header }

static const struct claim_row {
    int result, failure;
    struct outcome outcome;
} claim_rows[] = {
    { OWNER,     ANY_FAILURE, NEXT(RUN, NEW) },
    { WHOLE,     ANY_FAILURE, NEXT(REPLAY, REPLAYED) },
    { NOT_KEPT,  ANY_FAILURE,
      PROBLEM(RESPONSE_UNAVAILABLE, OWN_STATUS, NEVER, UNSTORED) },
    { BEFORE,    ANY_FAILURE,
      PROBLEM(ALREADY_DONE, OWN_STATUS, NEVER, REFUSED) },
    { AGE,       ANY_FAILURE,
      PROBLEM(KEY_EXPIRED, OWN_STATUS, NEVER, EXPIRED) },
    { IN_FLIGHT, ANY_FAILURE,
      PROBLEM(IN_FLIGHT, OWN_STATUS, LEASE, IN_FLIGHT) },
    { LATER,     ANY_FAILURE, TELL(202, LEASE, IN_FLIGHT) },
    { MISMATCH,  ANY_FAILURE,
      PROBLEM(KEY_REUSED, OWN_STATUS, NEVER, MISMATCH) },
    { UNKNOWN,   ANY_FAILURE,
      PROBLEM(OUTCOME_UNKNOWN, OWN_STATUS, NEVER, INDETERMINATE) },

    /* Never a miss, and never a reason to bypass. */
    { CORRUPT,   ANY_FAILURE,
      PROBLEM(STORE_UNAVAILABLE, OWN_STATUS, SOON, UNAVAILABLE) },

    /* The store has answered: no reason to bypass, either. */
    { TOO_LATE,  ANY_FAILURE,
      PROBLEM(STORE_UNAVAILABLE, OWN_STATUS, SOON, UNAVAILABLE) },

    { FAILED,    BYPASS,      NEXT(PASS, UNPROTECTED) },
    { FAILED,    DENY,
      PROBLEM(STORE_UNAVAILABLE, OWN_STATUS, SOON, UNAVAILABLE) },
};

static const struct end_row {
    int action, end, result;
    struct outcome outcome;
} end_rows[] = {
    { KEPT,     NOT_SHOWN, DONE,
      PROBLEM(RESPONSE_UNAVAILABLE, 502, NEVER, UNSTORED) },
    { KEPT,     ANY_END,   DONE,       NEXT(OWN, NEW) },

    /* Another outcome stands recorded: that one is true. */
    { KEPT,     ANY_END,   WHOLE,      NEXT(REPLAY, REPLAYED) },
    { KEPT,     ANY_END,   ANY_RESULT,
      PROBLEM(OUTCOME_UNKNOWN, 502, NEVER, INDETERMINATE) },

    { RELEASED, ANY_END,   ANY_RESULT, NEXT(OWN, NEW) },
    { GIVEN_UP, ANSWERED,  ANY_RESULT, NEXT(OWN, NEW) },
    { GIVEN_UP, NOT_SHOWN | BROKEN, ANY_RESULT,
      PROBLEM(OUTCOME_UNKNOWN, 502, NEVER, INDETERMINATE) },
    { GIVEN_UP, TIMED_OUT, ANY_RESULT,
      PROBLEM(OUTCOME_UNKNOWN, 504, NEVER, INDETERMINATE) },

    /* Not its page: that one would be taken for the result. */
    { GIVEN_UP, LOST,      ANY_RESULT,
      PROBLEM(OUTCOME_UNKNOWN, SERVICES_STATUS, NEVER, INDETERMINATE) },
};
/* clang-format on */

/* ---- Reading them ------------------------------------------------------ */

static int record_class(const once_record *record, once__response *stored,
                        once_error *err)
{
    if (once__response_decode(record->result, stored, err) != ONCE_OK)
        return CORRUPT;
    return (stored->flags & ONCE__NO_BODY) != 0 ? NOT_KEPT : WHOLE;
}

static void say(once_error *err, const char *text)
{
    size_t size = strnlen(text, sizeof(err->text) - 1);

    memcpy(err->text, text, size);
    err->text[size] = '\0';
}

static int result_class(int rc, const once_record *record,
                        once__response *stored, once_error *err)
{
    switch (rc) {
    case ONCE_OK:
        return DONE;
    case ONCE_OWNER:
        return OWNER;
    case ONCE_REPLAY:
        return record_class(record, stored, err);
    case ONCE_IN_FLIGHT:
        return IN_FLIGHT;
    case ONCE_MISMATCH:
        return MISMATCH;
    case ONCE_UNKNOWN:
        return UNKNOWN;
    case ONCE_FREE:
        return TOO_LATE;
    case ONCE_EXPIRED:
    case ONCE_TOO_SOON:
        return AGE;
    case ONCE_ECORRUPT:
    case ONCE_EVERSION:
        say(err, once_text(rc));
        return CORRUPT;
    default:
        return FAILED;
    }
}

static unsigned seconds(int after, uint64_t left_ms)
{
    uint64_t s = (left_ms + 999) / 1000;

    if (after != LEASE)
        return (unsigned)after;
    return s < 1 ? 1u : s > LEASE_MAX_S ? (unsigned)LEASE_MAX_S : (unsigned)s;
}

static once__http_decision decision_of(const once__policy *policy,
                                       const struct outcome *o,
                                       uint64_t left_ms)
{
    once__http_decision d = {
        .next = o->next,
        .problem = o->problem,
        .header = o->header,
        .retry_after = seconds(o->after, left_ms),
        .marked = 1,
        .status = o->status,
    };

    if (o->problem != ONCE__NO_PROBLEM && o->status == OWN_STATUS)
        d.status = once__problem_status(o->problem);
    if (!policy->dry_run)
        return d;
    /* A dry run answers nothing itself, and marks no response of a service
     * that it would have guarded. */
    d.would = once__would_of(o->next, o->problem);
    if (d.next == ONCE__NEXT_REPLAY || d.next == ONCE__NEXT_PROBLEM ||
        d.next == ONCE__NEXT_TELL)
        d = (once__http_decision){.next = ONCE__NEXT_PASS,
                                  .problem = ONCE__NO_PROBLEM,
                                  .header = o->header,
                                  .would = d.would};
    d.marked = d.header == ONCE__STATUS_UNPROTECTED;
    return d;
}

/* ---- The three moments ------------------------------------------------- */

once__http_decision once__decide_refusal(const once__policy *policy,
                                         int problem)
{
    static const struct outcome rows[] = {
        PROBLEM(KEY_MISSING, OWN_STATUS, NEVER, INVALID),
        PROBLEM(KEY_INVALID, OWN_STATUS, NEVER, INVALID),
        PROBLEM(SCOPE_MISSING, OWN_STATUS, NEVER, INVALID),
    };
    size_t i = 0;

    while (i < COUNT(rows) && rows[i].problem != problem)
        i++;
    assert(i < COUNT(rows));
    return decision_of(policy, &rows[i], 0);
}

once__http_decision once__decide_claim(const once__policy *policy, int rc,
                                       const once_record *record,
                                       uint64_t left_ms, once__response *stored,
                                       once_error *err)
{
    int failure = policy->bypass ? BYPASS : DENY;
    once__http_decision d;
    size_t i = 0;
    int result, repeats;

    err->text[0] = '\0';
    result = result_class(rc, record, stored, err);
    repeats = (result & (WHOLE | NOT_KEPT)) != 0;
    if (result == DONE) /* no answer to a claim */
        result = FAILED;
    if (repeats && policy->refuse)
        result = BEFORE;
    if (result == IN_FLIGHT && policy->accept)
        result = LATER;
    while (i < COUNT(claim_rows) && ((claim_rows[i].result & result) == 0 ||
                                     (claim_rows[i].failure & failure) == 0))
        i++;
    assert(i < COUNT(claim_rows)); /* The table has a row for everything. */
    d = decision_of(policy, &claim_rows[i].outcome, left_ms);
    if (result == OWNER || repeats)
        d.attempt = record->attempt;
    if (d.problem == ONCE__PROBLEM_KEY_EXPIRED && rc == ONCE_TOO_SOON)
        d.detail = "The time in the key is ahead of this host's clock. Set the "
                   "sender's clock.";
    if (d.problem == ONCE__PROBLEM_ALREADY_DONE)
        d.recorded = stored->status;
    d.located = d.next == ONCE__NEXT_TELL;
    return d;
}

/* The policy of no route: all members 0. */
static const once__policy no_policy;

once__http_decision once__decide_lookup_refusal(int problem)
{
    return once__decide_refusal(&no_policy, problem);
}

once__http_decision once__decide_lookup(int rc, const once_record *record,
                                        once__response *stored, once_error *err)
{
    static const struct outcome told = TELL(200, NEVER, NONE);
    static const struct outcome silent =
        PROBLEM(STORE_UNAVAILABLE, OWN_STATUS, SOON, UNAVAILABLE);
    once__http_decision d;
    int result;

    err->text[0] = '\0';
    result = result_class(rc, record, stored, err);
    if ((result & (WHOLE | NOT_KEPT | IN_FLIGHT | UNKNOWN | TOO_LATE)) == 0)
        return decision_of(&no_policy, &silent, 0);
    d = decision_of(&no_policy, &told, 0);
    d.marked = 0;
    return d;
}

static int action_class(int action)
{
    if (action == ONCE__DO_COMPLETE || action == ONCE__DO_MARK)
        return KEPT;
    return action == ONCE__DO_RELEASE ? RELEASED : GIVEN_UP;
}

static int end_class(const once__http_end *end)
{
    if (!once__is_broken(end->observed))
        return end->has_own ? ANSWERED : NOT_SHOWN;
    if (end->observed == ONCE__SERVICE_LOST)
        return LOST;
    return end->observed == ONCE__TIMED_OUT ? TIMED_OUT : BROKEN;
}

once__http_decision once__decide_end(const once__policy *policy,
                                     const once__http_end *end,
                                     once__response *stored)
{
    static const struct outcome own = NEXT(OWN, NEW);
    int action = action_class(end->action), how = end_class(end);
    once__http_decision d;
    once_error err;
    size_t i = 0;
    int result;

    if (policy->dry_run) {
        d = decision_of(policy, &own, 0);
        if (!end->has_own)
            d.next = ONCE__NEXT_DROP;
        return d;
    }
    result = result_class(end->rc, end->record, stored, &err);
    while (i < COUNT(end_rows) &&
           ((end_rows[i].action & action) == 0 ||
            (end_rows[i].end & how) == 0 || (end_rows[i].result & result) == 0))
        i++;
    assert(i < COUNT(end_rows)); /* The table has a row for everything. */
    d = decision_of(policy, &end_rows[i].outcome, 0);
    if (d.status == SERVICES_STATUS)
        d.status = end->status;
    if (d.next == ONCE__NEXT_REPLAY)
        d.attempt = end->record->attempt;
    return d;
}
