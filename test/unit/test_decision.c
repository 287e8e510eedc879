/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_decision.c - what the client gets (docs/http.md, 2 and 3): a line for
 * each case, as one text, and at the end the rules that no combination breaks.
 */
#include "calls/http/http.h"

#include "t.h"

#define COUNT(a) (sizeof(a) / sizeof((a)[0]))

static once_bytes text(const char *s)
{
    return (once_bytes){s, strlen(s)};
}

static const char *const nexts[] = {
    "none", "run", "pass", "replay", "problem", "own", "drop", "tell",
};

/* "problem in-flight 409 after 3 in_flight", "own new, not marked", ... */
static const char *text_of(once__http_decision d)
{
    static char out[160];
    size_t n = (size_t)snprintf(out, sizeof(out), "%s", nexts[d.next]);

    if (d.problem != ONCE__NO_PROBLEM)
        n += (size_t)snprintf(out + n, sizeof(out) - n, " %s %d",
                              once__problem_code(d.problem), d.status);
    if (d.next == ONCE__NEXT_TELL)
        n += (size_t)snprintf(out + n, sizeof(out) - n, " %d%s", d.status,
                              d.located ? " located" : "");
    if (d.recorded != 0)
        n += (size_t)snprintf(out + n, sizeof(out) - n, " of %d", d.recorded);
    if (d.retry_after > 0)
        n += (size_t)snprintf(out + n, sizeof(out) - n, " after %u",
                              d.retry_after);
    n += (size_t)snprintf(out + n, sizeof(out) - n, " %s%s",
                          once__status_text(d.header),
                          d.marked ? "" : ", not marked");
    if (d.would != ONCE__WOULD_NONE)
        snprintf(out + n, sizeof(out) - n, ", would %s",
                 once__would_text(d.would));
    return out;
}

enum { DENY = 0, BYPASS = 1, DRY_RUN = 2, REFUSE = 4, ACCEPT = 8 };

static once__policy policy_of(int flags)
{
    once__policy p = {.bypass = flags & BYPASS,
                      .dry_run = flags & DRY_RUN,
                      .refuse = flags & REFUSE,
                      .accept = flags & ACCEPT};

    return p;
}

/* A record of attempt 7: with a response, without its body, or damaged. */
enum { WHOLE, NOT_KEPT, DAMAGED };

static once_record record_of(int what, uint8_t out[64])
{
    once__response r = {.status = 201};
    once_record record;
    size_t size;

    memset(&record, 0, sizeof(record));
    record.attempt = 7;
    if (what == WHOLE)
        r.body = (once_bytes){"{}", 2};
    else
        r.flags = ONCE__NO_BODY;
    T_EQ(once__response_size(&r, &size, NULL), ONCE_OK);
    T_OK(size <= 64);
    once__response_encode(&r, out);
    if (what == DAMAGED)
        out[0] ^= 1;
    record.result = (once_bytes){out, size};
    return record;
}

static once_error err;

static const char *claimed(int flags, int rc, int what, uint64_t left_ms)
{
    once__policy p = policy_of(flags);
    uint8_t bytes[64];
    once_record record = record_of(what, bytes);
    once__response stored;

    memset(&stored, 0, sizeof(stored));
    return text_of(once__decide_claim(&p, rc, &record, left_ms, &stored, &err));
}

static const char *ended_with(int flags, once__http_end end, int what,
                              int has_own)
{
    once__policy p = policy_of(flags);
    uint8_t bytes[64];
    once_record record = record_of(what, bytes);
    once__response stored;

    end.record = &record;
    end.has_own = has_own;
    return text_of(once__decide_end(&p, &end, &stored));
}

static const char *ended(int flags, once__http_end end, int what)
{
    return ended_with(flags, end, what, !once__is_broken(end.observed));
}

static const char *refused(int flags, int problem)
{
    once__policy p = policy_of(flags);

    return text_of(once__decide_refusal(&p, problem));
}

/* ---- Before the claim -------------------------------------------------- */

static void a_key_or_caller_that_cannot_be_used_is_refused(void)
{
    T_STR(refused(DENY, ONCE__PROBLEM_KEY_MISSING),
          "problem key-missing 400 invalid");
    T_STR(refused(DENY, ONCE__PROBLEM_KEY_INVALID),
          "problem key-invalid 400 invalid");
    T_STR(refused(BYPASS, ONCE__PROBLEM_SCOPE_MISSING),
          "problem scope-missing 401 invalid");
}

static void a_dry_run_refuses_nothing(void)
{
    T_STR(refused(DRY_RUN, ONCE__PROBLEM_KEY_MISSING),
          "pass invalid, not marked, would refuse");
}

/* ---- After the claim --------------------------------------------------- */

static void an_owner_runs(void)
{
    T_STR(claimed(DENY, ONCE_OWNER, WHOLE, 0), "run new");
    T_STR(claimed(BYPASS, ONCE_OWNER, WHOLE, 0), "run new");
    T_STR(claimed(DRY_RUN, ONCE_OWNER, WHOLE, 0),
          "run new, not marked, would run");
}

static void a_completed_record_is_replayed(void)
{
    T_STR(claimed(DENY, ONCE_REPLAY, WHOLE, 0), "replay replayed");
    T_STR(claimed(BYPASS, ONCE_REPLAY, WHOLE, 0), "replay replayed");
}

static void a_response_that_was_not_kept_is_unavailable(void)
{
    T_STR(claimed(DENY, ONCE_REPLAY, NOT_KEPT, 0),
          "problem response-unavailable 409 unstored");
}

static void a_repeat_that_is_refused_is_told_the_recorded_status(void)
{
    static const char *const wanted = "problem already-done 409 of 201 refused";

    T_STR(claimed(REFUSE, ONCE_REPLAY, WHOLE, 0), wanted);
    T_STR(claimed(REFUSE, ONCE_REPLAY, NOT_KEPT, 0), wanted);
    T_STR(claimed(REFUSE | DRY_RUN, ONCE_REPLAY, WHOLE, 0),
          "pass refused, not marked, would refuse");
    /* What is no repeat of it, or is not known, is told so. */
    T_STR(claimed(REFUSE, ONCE_OWNER, WHOLE, 0), "run new");
    T_STR(claimed(REFUSE, ONCE_MISMATCH, WHOLE, 0),
          "problem key-reused 422 mismatch");
    T_STR(claimed(REFUSE, ONCE_UNKNOWN, WHOLE, 0),
          "problem outcome-unknown 409 indeterminate");
    T_STR(claimed(REFUSE, ONCE_REPLAY, DAMAGED, 0),
          "problem store-unavailable 503 after 1 unavailable");
}

static void a_key_whose_time_does_not_fit_is_told_why(void)
{
    static const char *const wanted = "problem key-expired 409 expired";
    once__policy p = policy_of(BYPASS);
    once__response stored;

    T_STR(claimed(DENY, ONCE_EXPIRED, WHOLE, 0), wanted);
    T_STR(claimed(BYPASS | REFUSE, ONCE_TOO_SOON, WHOLE, 0), wanted);
    T_OK(once__decide_claim(&p, ONCE_EXPIRED, NULL, 0, &stored, &err).detail ==
         NULL);
    T_OK(strstr(once__decide_claim(&p, ONCE_TOO_SOON, NULL, 0, &stored, &err)
                    .detail,
                "ahead of") != NULL);
    T_STR(claimed(DRY_RUN, ONCE_EXPIRED, WHOLE, 0),
          "pass expired, not marked, would refuse");
}

static void another_attempt_answers_with_the_seconds_of_its_lease(void)
{
    T_STR(claimed(DENY, ONCE_IN_FLIGHT, WHOLE, 0),
          "problem in-flight 409 after 1 in_flight");
    T_STR(claimed(DENY, ONCE_IN_FLIGHT, WHOLE, 1000),
          "problem in-flight 409 after 1 in_flight");
    T_STR(claimed(DENY, ONCE_IN_FLIGHT, WHOLE, 1001),
          "problem in-flight 409 after 2 in_flight");
    T_STR(claimed(DENY, ONCE_IN_FLIGHT, WHOLE, 3600000),
          "problem in-flight 409 after 5 in_flight");
    T_STR(claimed(BYPASS, ONCE_IN_FLIGHT, WHOLE, UINT64_MAX - 999),
          "problem in-flight 409 after 5 in_flight");
}

static void another_request_under_the_key_is_a_mismatch(void)
{
    T_STR(claimed(DENY, ONCE_MISMATCH, WHOLE, 9000),
          "problem key-reused 422 mismatch");
}

static void an_unknown_outcome_has_no_retry_after(void)
{
    T_STR(claimed(BYPASS, ONCE_UNKNOWN, WHOLE, 9000),
          "problem outcome-unknown 409 indeterminate");
}

static void a_corrupt_record_is_neither_missed_nor_bypassed(void)
{
    static const char *const wanted =
        "problem store-unavailable 503 after 1 unavailable";

    T_STR(claimed(BYPASS, ONCE_REPLAY, DAMAGED, 0), wanted);
    T_OK(err.text[0] != '\0');
    T_STR(claimed(BYPASS, ONCE_ECORRUPT, WHOLE, 0), wanted);
    T_STR(err.text, once_text(ONCE_ECORRUPT));
    T_STR(claimed(BYPASS, ONCE_EVERSION, WHOLE, 0), wanted);
    T_STR(err.text, once_text(ONCE_EVERSION));
    T_STR(claimed(DENY, ONCE_REPLAY, WHOLE, 0), "replay replayed");
    T_STR(err.text, "");
}

static void a_claim_that_came_too_late_is_not_bypassed(void)
{
    T_STR(claimed(BYPASS, ONCE_FREE, WHOLE, 0),
          "problem store-unavailable 503 after 1 unavailable");
}

static void a_store_without_an_answer_is_denied_or_bypassed(void)
{
    static const int codes[] = {ONCE_ESTORE, ONCE_EBUSY,  ONCE_ECLOSED,
                                ONCE_EFULL,  ONCE_ENOMEM, ONCE_EAWAY};
    size_t i;

    for (i = 0; i < sizeof(codes) / sizeof(codes[0]); i++) {
        T_STR(claimed(DENY, codes[i], WHOLE, 0),
              "problem store-unavailable 503 after 1 unavailable");
        T_STR(claimed(BYPASS, codes[i], WHOLE, 0), "pass unprotected");
        T_STR(err.text, "");
    }
    T_STR(claimed(BYPASS | DRY_RUN, ONCE_ESTORE, WHOLE, 0),
          "pass unprotected, would run");
}

static void a_dry_run_passes_whatever_it_would_have_answered(void)
{
    T_STR(claimed(DRY_RUN, ONCE_REPLAY, WHOLE, 0),
          "pass replayed, not marked, would replay");
    T_STR(claimed(DRY_RUN, ONCE_REPLAY, NOT_KEPT, 0),
          "pass unstored, not marked, would refuse");
    T_STR(claimed(DRY_RUN, ONCE_IN_FLIGHT, WHOLE, 2000),
          "pass in_flight, not marked, would in_flight");
    T_STR(claimed(DRY_RUN, ONCE_MISMATCH, WHOLE, 0),
          "pass mismatch, not marked, would conflict");
    T_STR(claimed(DRY_RUN, ONCE_ESTORE, WHOLE, 0),
          "pass unavailable, not marked, would refuse");
    T_STR(claimed(DRY_RUN, ONCE_UNKNOWN, WHOLE, 0),
          "pass indeterminate, not marked, would unknown");
    T_STR(claimed(DRY_RUN | REFUSE, ONCE_REPLAY, WHOLE, 0),
          "pass refused, not marked, would refuse");
    T_STR(claimed(DRY_RUN, ONCE_EXPIRED, WHOLE, 0),
          "pass expired, not marked, would refuse");
}

static void only_a_replay_that_is_passed_on_runs_again(void)
{
    int would;

    for (would = 0; would < ONCE__WOULD_COUNT; would++)
        T_EQ(once__would_passed(would),
             would == ONCE__WOULD_REPLAY ? ONCE__WOULD_RUN_AGAIN : would);
}

static void apart_is_since_the_first_attempt(void)
{
    once_record r = {.attempt = 2, .created_ms = 5000, .granted_ms = 60000};
    uint64_t s = 99;

    T_OK(once__apart(ONCE__WOULD_RUN_AGAIN, &r, 64999, &s));
    T_EQ(s, 59);
    T_OK(once__apart(ONCE__WOULD_CONFLICT, &r, 1000, &s)); /* another clock */
    T_EQ(s, 0);
    r.created_ms = 0; /* of a record that an older version made */
    T_OK(once__apart(ONCE__WOULD_IN_FLIGHT, &r, 64999, &s));
    T_EQ(s, 4);
    T_OK(!once__apart(ONCE__WOULD_RUN, &r, 64999, &s));
    T_OK(!once__apart(ONCE__WOULD_NONE, &r, 64999, &s));
    T_OK(!once__apart(ONCE__WOULD_REFUSE, NULL, 64999, &s));
    r.attempt = 0;
    T_OK(!once__apart(ONCE__WOULD_REFUSE, &r, 64999, &s));
}

/* Only a repeat that is in flight, by its own fingerprint, may come and ask. */
static void a_repeat_in_flight_may_be_told_where_to_ask(void)
{
    T_STR(claimed(ACCEPT, ONCE_IN_FLIGHT, WHOLE, 2000),
          "tell 202 located after 2 in_flight");
    T_STR(claimed(ACCEPT | BYPASS | REFUSE, ONCE_IN_FLIGHT, WHOLE, 0),
          "tell 202 located after 1 in_flight");
    T_STR(claimed(ACCEPT | DRY_RUN, ONCE_IN_FLIGHT, WHOLE, 2000),
          "pass in_flight, not marked");
    T_STR(claimed(ACCEPT, ONCE_MISMATCH, WHOLE, 0),
          "problem key-reused 422 mismatch");
    T_STR(claimed(ACCEPT, ONCE_UNKNOWN, WHOLE, 0),
          "problem outcome-unknown 409 indeterminate");
    T_STR(claimed(ACCEPT, ONCE_REPLAY, WHOLE, 0), "replay replayed");
    T_STR(claimed(ACCEPT, ONCE_OWNER, WHOLE, 0), "run new");
}

/* ---- After the end ----------------------------------------------------- */

static once__http_end end_of(int action, int observed, int rc)
{
    once__http_end end = {.action = action, .observed = observed, .rc = rc};

    return end;
}

static void a_recorded_response_is_sent(void)
{
    T_STR(ended(DENY, end_of(ONCE__DO_COMPLETE, ONCE__WHOLE, ONCE_OK), WHOLE),
          "own new");
    T_STR(
        ended(DENY, end_of(ONCE__DO_MARK, ONCE__UNSTORABLE, ONCE_OK), NOT_KEPT),
        "own new");
}

static void an_outcome_that_cannot_be_shown_is_said_to_be_recorded(void)
{
    once__http_end end = end_of(ONCE__DO_MARK, ONCE__UNSTORABLE, ONCE_OK);

    T_STR(ended_with(DENY, end, NOT_KEPT, 0),
          "problem response-unavailable 502 unstored");
    end.rc = ONCE_ESTORE;
    T_STR(ended_with(DENY, end, NOT_KEPT, 0),
          "problem outcome-unknown 502 indeterminate");
    end.action = ONCE__DO_GIVE_UP;
    T_STR(ended_with(DENY, end, NOT_KEPT, 0),
          "problem outcome-unknown 502 indeterminate");
    end.action = ONCE__DO_RELEASE;
    T_STR(ended_with(DENY, end, NOT_KEPT, 0), "own new");
}

static void another_recorded_response_is_sent_in_its_place(void)
{
    once__http_end end = end_of(ONCE__DO_COMPLETE, ONCE__WHOLE, ONCE_REPLAY);

    T_STR(ended(DENY, end, WHOLE), "replay replayed");
    end.action = ONCE__DO_MARK;
    T_STR(ended(DENY, end, WHOLE), "replay replayed");
}

static void what_is_not_recorded_is_not_sent(void)
{
    static const char *const wanted =
        "problem outcome-unknown 502 indeterminate";
    static const int codes[] = {ONCE_ESTORE, ONCE_FREE,    ONCE_UNKNOWN,
                                ONCE_FENCED, ONCE_ECLOSED, ONCE_ECORRUPT};
    size_t i;

    for (i = 0; i < sizeof(codes) / sizeof(codes[0]); i++) {
        T_STR(ended(DENY, end_of(ONCE__DO_COMPLETE, ONCE__WHOLE, codes[i]),
                    WHOLE),
              wanted);
        T_STR(ended(BYPASS, end_of(ONCE__DO_MARK, ONCE__UNSTORABLE, codes[i]),
                    WHOLE),
              wanted);
    }
    T_STR(ended(DENY, end_of(ONCE__DO_COMPLETE, ONCE__WHOLE, ONCE_REPLAY),
                NOT_KEPT),
          wanted);
    T_STR(ended(DENY, end_of(ONCE__DO_COMPLETE, ONCE__WHOLE, ONCE_REPLAY),
                DAMAGED),
          wanted);
}

static void a_released_response_is_sent_whatever_the_store_reported(void)
{
    T_STR(ended(DENY, end_of(ONCE__DO_RELEASE, ONCE__WHOLE, ONCE_OK), WHOLE),
          "own new");
    T_STR(ended(DENY, end_of(ONCE__DO_RELEASE, ONCE__NOT_SENT, ONCE_ESTORE),
                WHOLE),
          "own new");
}

static void a_service_that_says_unknown_answers_for_itself(void)
{
    T_STR(ended(DENY, end_of(ONCE__DO_GIVE_UP, ONCE__WHOLE, ONCE_OK), WHOLE),
          "own new");
    T_STR(
        ended(DENY, end_of(ONCE__DO_GIVE_UP, ONCE__WHOLE, ONCE_ESTORE), WHOLE),
        "own new");
}

static void a_broken_response_is_unknown(void)
{
    once__http_end end = end_of(ONCE__DO_GIVE_UP, ONCE__RESET, ONCE_OK);

    T_STR(ended(DENY, end, WHOLE), "problem outcome-unknown 502 indeterminate");
    end.rc = ONCE_ESTORE;
    T_STR(ended(DENY, end, WHOLE), "problem outcome-unknown 502 indeterminate");
    end.observed = ONCE__TIMED_OUT;
    T_STR(ended(DENY, end, WHOLE), "problem outcome-unknown 504 indeterminate");
}

/* Not its page, which clients would take for the result, and its status. */
static void a_gateways_error_is_unknown_with_its_status(void)
{
    static const int codes[] = {ONCE_OK, ONCE_ESTORE, ONCE_FENCED, ONCE_REPLAY};
    once__http_end end = end_of(ONCE__DO_GIVE_UP, ONCE__SERVICE_LOST, ONCE_OK);
    size_t i;

    for (i = 0; i < sizeof(codes) / sizeof(codes[0]); i++) {
        end.rc = codes[i];
        end.has_own = 1;
        end.status = 504;
        T_STR(ended_with(DENY, end, WHOLE, 1),
              "problem outcome-unknown 504 indeterminate");
        end.status = 598;
        T_STR(ended_with(BYPASS, end, WHOLE, 0),
              "problem outcome-unknown 598 indeterminate");
    }
}

static void a_dry_run_sends_what_the_service_sent(void)
{
    once__http_end end = end_of(ONCE__DO_COMPLETE, ONCE__WHOLE, ONCE_ESTORE);

    T_STR(ended(DRY_RUN, end, WHOLE), "own new, not marked");
    end.rc = ONCE_REPLAY;
    T_STR(ended(DRY_RUN, end, WHOLE), "own new, not marked");
    end = end_of(ONCE__DO_GIVE_UP, ONCE__RESET, ONCE_OK);
    T_STR(ended(DRY_RUN, end, WHOLE), "drop new, not marked");
    end = end_of(ONCE__DO_GIVE_UP, ONCE__SERVICE_LOST, ONCE_OK);
    end.status = 502;
    T_STR(ended_with(DRY_RUN, end, WHOLE, 1), "own new, not marked");
}

/* ---- Whatever the case ------------------------------------------------- */

static void only_an_owner_runs_and_only_bypass_and_dry_run_pass(void)
{
    once__policy p;
    uint8_t bytes[64];
    once_record record = record_of(WHOLE, bytes);
    once__response stored;
    once__http_decision d;
    int rc, flags;

    for (flags = 0; flags < 16; flags++) {
        p = policy_of(flags);
        for (rc = -40; rc <= ONCE_TOO_SOON; rc++) {
            d = once__decide_claim(&p, rc, &record, 0, &stored, &err);
            T_EQ(d.next == ONCE__NEXT_RUN, rc == ONCE_OWNER);
            T_OK(d.next != ONCE__NEXT_PASS ||
                 (flags & ~(REFUSE | ACCEPT)) != 0);
            T_OK(d.header != ONCE__STATUS_NONE);
            T_EQ(d.attempt, rc == ONCE_OWNER || rc == ONCE_REPLAY ? 7 : 0);
        }
    }
}

static void without_a_record_nothing_of_a_response_is_shown(void)
{
    static const int kept[] = {ONCE__DO_COMPLETE, ONCE__DO_MARK};
    int rc, i;

    for (i = 0; i < 2; i++)
        for (rc = -40; rc <= ONCE_TOO_SOON; rc++)
            if (rc != ONCE_OK && rc != ONCE_REPLAY)
                T_STR(ended(DENY, end_of(kept[i], ONCE__WHOLE, rc), WHOLE),
                      "problem outcome-unknown 502 indeterminate");
}

/* ---- The request ------------------------------------------------------- */

static void a_request_is_filled_from_the_policy(void)
{
    once__policy p = {.takeover = 1,
                      .two_phase = 1,
                      .lease_ms = 11,
                      .wait_ms = 12,
                      .store_ms = 13,
                      .keep_ms = 14,
                      .max_age_ms = 15};
    uint8_t name[ONCE_NAME_SIZE] = {1}, print[ONCE_FINGERPRINT_SIZE] = {2},
            group[ONCE_GROUP_SIZE] = {'g'};
    const once__status_lists lists = {NULL, NULL, NULL};
    once__status_clash clash;
    once_request r;

    T_EQ(once__rules_make(&lists, &p.rules, &clash), ONCE_OK);
    once__request_fill(&p, name, print, group, &r);
    T_EQ(r.size, sizeof(r));
    T_MEM(r.name, name, sizeof(name));
    T_MEM(r.fingerprint, print, sizeof(print));
    T_MEM(r.group, group, sizeof(group));
    T_EQ(r.policy, ONCE_TAKEOVER);
    T_EQ(r.two_phase, 1);
    T_EQ(r.lease_ms, 11);
    T_EQ(r.wait_ms, 12);
    T_EQ(r.store_ms, 13);
    T_EQ(r.keep_ms, 14);
    T_EQ(r.max_age_ms, 15);
}

static void a_failure_may_be_repeated_where_not_every_status_is_final(void)
{
    once__statuses final = {{0}, {0}};
    const once__status_lists lists = {&final, NULL, NULL};
    once__status_clash clash;
    uint8_t zero[ONCE_NAME_SIZE] = {0};
    once__policy p;
    once_request r;

    memset(&p, 0, sizeof(p));
    T_EQ(once__statuses_add(&final, (once_bytes){"2xx", 3}, NULL), ONCE_OK);
    T_EQ(once__rules_make(&lists, &p.rules, &clash), ONCE_OK);
    once__request_fill(&p, zero, zero, zero, &r);
    T_EQ(r.policy, ONCE_RETRY_FAILED);
}

/* ---- A redirect that leads here ------------------------------------------ */

static int leads(int status, const char *location, const char *path)
{
    const once__header h[] = {{text("ETag"), text("/b"), 0},
                              {text("location"), text(location), 0}};
    const once__response r = {.status = status, .headers = h, .n = 2};
    once_record record = {.state = ONCE_COMPLETED};
    uint8_t bytes[512];
    const char *detail;
    size_t size = 0;

    T_EQ(once__response_size(&r, &size, NULL), ONCE_OK);
    T_OK(size <= sizeof(bytes));
    once__response_encode(&r, bytes);
    record.result = (once_bytes){bytes, size};
    detail = once__leads_here(&record, text(path));
    if (detail != NULL)
        T_OK(strstr(detail, "once_key_space path") != NULL &&
             strlen(detail) < 256);
    return detail != NULL;
}

static void a_redirect_that_leads_here_is_named(void)
{
    static const int statuses[] = {301, 302, 303, 307, 308};
    static const char *const here[] = {
        "/v2/pay",
        "/v2/pay?a=1",
        "/v2/pay#x",
        "v2/pay",
        "pay",
        "./pay",
        "//h.test/v2/pay",
        "https://h.test:8443/v2/pay?x=/other",
        "HTTP://h/v2/pay",
    };
    static const char *const elsewhere[] = {
        "/v2",
        "/v2/pay/",
        "/v3/pay",
        "ay",
        "/pay",
        "",
        "?a=/v2/pay",
        "#/v2/pay",
        "https://h.test",
        "https://h.test?/v2/pay",
        "/",
        "mailto:pay@h",
        "../pay",
        ".",
        "//v2/pay",
        "./",
        ":",
        "x:",
    };
    size_t i;

    for (i = 0; i < COUNT(statuses); i++)
        T_OK(leads(statuses[i], "/v2/pay", "/v2/pay"));
    T_OK(!leads(201, "/v2/pay", "/v2/pay"));
    T_OK(!leads(300, "/v2/pay", "/v2/pay"));
    T_OK(!leads(404, "/v2/pay", "/v2/pay"));
    for (i = 0; i < COUNT(here); i++)
        if (!T_OK(leads(307, here[i], "/v2/pay")))
            printf("#   %s\n", here[i]);
    for (i = 0; i < COUNT(elsewhere); i++)
        if (!T_OK(!leads(307, elsewhere[i], "/v2/pay")))
            printf("#   %s\n", elsewhere[i]);
}

static void what_is_no_recorded_redirect_leads_nowhere(void)
{
    once_record record = {.state = ONCE_INDETERMINATE};

    T_OK(once__leads_here(&record, text("/")) == NULL);
    record.state = ONCE_COMPLETED;
    T_OK(once__leads_here(&record, text("/")) == NULL);
    record.result = text("no response at all");
    T_OK(once__leads_here(&record, text("/")) == NULL);
}

int main(void)
{
    T_RUN(a_redirect_that_leads_here_is_named);
    T_RUN(what_is_no_recorded_redirect_leads_nowhere);
    T_RUN(a_key_or_caller_that_cannot_be_used_is_refused);
    T_RUN(a_dry_run_refuses_nothing);
    T_RUN(an_owner_runs);
    T_RUN(a_completed_record_is_replayed);
    T_RUN(a_response_that_was_not_kept_is_unavailable);
    T_RUN(a_repeat_that_is_refused_is_told_the_recorded_status);
    T_RUN(a_key_whose_time_does_not_fit_is_told_why);
    T_RUN(another_attempt_answers_with_the_seconds_of_its_lease);
    T_RUN(another_request_under_the_key_is_a_mismatch);
    T_RUN(an_unknown_outcome_has_no_retry_after);
    T_RUN(a_corrupt_record_is_neither_missed_nor_bypassed);
    T_RUN(a_claim_that_came_too_late_is_not_bypassed);
    T_RUN(a_store_without_an_answer_is_denied_or_bypassed);
    T_RUN(a_dry_run_passes_whatever_it_would_have_answered);
    T_RUN(only_a_replay_that_is_passed_on_runs_again);
    T_RUN(apart_is_since_the_first_attempt);
    T_RUN(a_repeat_in_flight_may_be_told_where_to_ask);
    T_RUN(a_recorded_response_is_sent);
    T_RUN(another_recorded_response_is_sent_in_its_place);
    T_RUN(what_is_not_recorded_is_not_sent);
    T_RUN(a_released_response_is_sent_whatever_the_store_reported);
    T_RUN(a_service_that_says_unknown_answers_for_itself);
    T_RUN(a_broken_response_is_unknown);
    T_RUN(a_gateways_error_is_unknown_with_its_status);
    T_RUN(an_outcome_that_cannot_be_shown_is_said_to_be_recorded);
    T_RUN(a_dry_run_sends_what_the_service_sent);
    T_RUN(only_an_owner_runs_and_only_bypass_and_dry_run_pass);
    T_RUN(without_a_record_nothing_of_a_response_is_shown);
    T_RUN(a_request_is_filled_from_the_policy);
    T_RUN(a_failure_may_be_repeated_where_not_every_status_is_final);
    return t_done();
}
