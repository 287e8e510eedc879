/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_probe.c - whether a probe is asked, what its answer says, and what is
 * asked of the store then (docs/http.md, 3.5).
 */
#include "calls/http/http.h"

#include "base/bytes.h"
#include "t.h"

static const uint8_t name[ONCE_NAME_SIZE] = {0xab, 0xcd, 1};

static once_bytes text(const char *s)
{
    return (once_bytes){s, strlen(s)};
}

static once__policy policy_of(void)
{
    return (once__policy){.probe = 1, .keep_ms = 7000, .store_ms = 20};
}

static void asked_about_a_record_only(void)
{
    once_record r = {.state = ONCE_INDETERMINATE, .fence = 7};
    once_record absent = {.state = ONCE_ABSENT};
    once_record failed = {.state = ONCE_COMPLETED, .fence = 7};
    once__policy p = policy_of();
    int rc;

    T_OK(once__may_probe(&p, ONCE_UNKNOWN, &r));
    for (rc = ONCE_OK; rc <= ONCE_REFUSED; rc++)
        T_OK(rc == ONCE_UNKNOWN || !once__may_probe(&p, rc, &r));
    T_OK(!once__may_probe(&p, ONCE_ESTORE, &r));
    /* A gap answers "unknown", too, of what stands in no record. */
    T_OK(!once__may_probe(&p, ONCE_UNKNOWN, &absent));
    T_OK(!once__may_probe(&p, ONCE_UNKNOWN, &failed));
    T_OK(!once__may_probe(&p, ONCE_UNKNOWN, NULL));
    p.dry_run = 1;
    T_OK(!once__may_probe(&p, ONCE_UNKNOWN, &r));
    p = policy_of();
    p.takeover = 1;
    T_OK(!once__may_probe(&p, ONCE_UNKNOWN, &r));
    p = policy_of();
    p.probe = 0;
    T_OK(!once__may_probe(&p, ONCE_UNKNOWN, &r));
}

/* A whole answer of the service itself, with these headers. */
static once__probe_reply reply_of(const char *record, const char *outcome,
                                  const char *recorded)
{
    once__probe_reply r = {.observed = ONCE__WHOLE, .own = 1, .status = 200};

    once__probe_header(&r, text("Content-Type"), text("text/plain"));
    if (record != NULL)
        once__probe_header(&r, text("idempotency-record"), text(record));
    if (outcome != NULL)
        once__probe_header(&r, text("Idempotency-Outcome"), text(outcome));
    if (recorded != NULL)
        once__probe_header(&r, text("Idempotency-Recorded-Status"),
                           text(recorded));
    return r;
}

static const char *judged(once__probe_reply r, int *status)
{
    return once__probe_text(once__judge_probe(&r, name, status));
}

static void applied_about_this_record_decides(void)
{
    static const char *const bad[] = {"",    "20",  "2001", "199", "600",
                                      "abc", "2 0", " 201", "+20"};
    char this[ONCE__RECORD_TEXT];
    int status;
    size_t i;

    once__hex(name, sizeof(name), this);
    T_STR(judged(reply_of(this, "applied", "201"), &status), "applied");
    T_EQ(status, 201);
    T_STR(judged(reply_of(this, "Applied", "599"), &status), "applied");
    T_EQ(status, 599);
    for (i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        T_STR(judged(reply_of(this, "applied", bad[i]), &status), "invalid");
        T_EQ(status, 0);
    }
    T_STR(judged(reply_of(this, "applied", NULL), &status), "invalid");
}

static void another_record_says_nothing(void)
{
    char this[ONCE__RECORD_TEXT], other[ONCE__RECORD_TEXT];
    once__probe_reply r;
    int status;

    once__hex(name, sizeof(name), this);
    memcpy(other, this, sizeof(other));
    other[63] = '1';
    T_STR(judged(reply_of(other, "applied", "201"), &status), "invalid");
    other[63] = '\0';
    T_STR(judged(reply_of(other, "applied", "201"), &status), "invalid");
    T_STR(judged(reply_of(NULL, "applied", "201"), &status), "invalid");
    r = reply_of(this, "applied", "201");
    once__probe_header(&r, text("Idempotency-Record"), text(other));
    T_STR(judged(r, &status), "invalid");
    r = reply_of(this, "applied", "201");
    once__probe_header(&r, text("Idempotency-Outcome"), text("unknown"));
    T_STR(judged(r, &status), "invalid");
}

static void anything_else_leaves_it_unknown(void)
{
    char this[ONCE__RECORD_TEXT];
    once__probe_reply r;
    int status, observed;

    once__hex(name, sizeof(name), this);
    T_STR(judged(reply_of(this, "not-applied", "201"), &status), "not_applied");
    T_STR(judged(reply_of(this, "unknown", "201"), &status), "unknown");
    T_STR(judged(reply_of(this, "no-store", "201"), &status), "unknown");
    T_STR(judged(reply_of(this, NULL, "201"), &status), "unknown");
    r = reply_of(this, "applied", "201");
    r.status = 201;
    T_STR(judged(r, &status), "invalid");
    r.status = 200;
    r.own = 0;
    T_STR(judged(r, &status), "invalid");
    r.own = 1;
    for (observed = ONCE__NOT_SENT; observed <= ONCE__GONE; observed++) {
        r.observed = observed;
        T_STR(judged(r, &status),
              observed == ONCE__WHOLE ? "applied" : "silent");
    }
}

static void the_store_decides_by_the_fence_seen(void)
{
    once__policy p = policy_of();
    once_op op;

    once__probe_fill(&p, name, 42, text("result"), &op);
    T_EQ(op.verb, ONCE_OP_RESOLVE);
    T_EQ(op.kind, ONCE_SUCCESS);
    T_EQ(op.fence, 42);
    T_EQ(op.keep_ms, 7000);
    T_EQ(op.store_ms, 20);
    T_OK(memcmp(op.name, name, sizeof(name)) == 0);
    T_EQ(op.result.size, 6);
    T_EQ(op.note.size, 5);
    T_OK(memcmp(op.note.data, "probe", 5) == 0);
    T_OK(once__probe_answered(ONCE_OK));
    T_OK(once__probe_answered(ONCE_REFUSED));
    T_OK(!once__probe_answered(ONCE_ESTORE));
    T_OK(!once__probe_answered(ONCE_ECLOSED));
}

static void one_at_a_time_and_not_too_soon(void)
{
    static once__probe_places places;
    uint8_t other[ONCE_NAME_SIZE] = {1};
    int i, a, b;

    a = once__probe_enter(&places, name, 5000);
    T_OK(a >= 0);
    T_EQ(once__probe_enter(&places, name, 9000), -1);
    b = once__probe_enter(&places, other, 5000);
    T_OK(b >= 0 && b != a);
    once__probe_leave(&places, a);
    T_EQ(once__probe_enter(&places, name, 5999), -1);
    T_EQ(once__probe_enter(&places, name, 6000), a);
    for (i = 2; i < ONCE__PROBES_MAX; i++) {
        other[1] = (uint8_t)i;
        T_OK(once__probe_enter(&places, other, 7000) >= 0);
    }
    other[1] = ONCE__PROBES_MAX;
    T_EQ(once__probe_enter(&places, other, 7000), -1);
    once__probe_leave(&places, b);
    T_EQ(once__probe_enter(&places, other, 7000), b);
}

int main(void)
{
    T_RUN(asked_about_a_record_only);
    T_RUN(applied_about_this_record_decides);
    T_RUN(another_record_says_nothing);
    T_RUN(anything_else_leaves_it_unknown);
    T_RUN(the_store_decides_by_the_fence_seen);
    T_RUN(one_at_a_time_and_not_too_soon);
    return t_done();
}
