/* SPDX-License-Identifier: Apache-2.0 */
/*
 * verdict.c - sets of statuses, and what becomes of an attempt (docs/http.md,
 * 3).
 *
 * The rule is a table, read from the top: the first row that fits decides. It
 * refuses to guess in the dangerous direction: only "not one byte was sent",
 * a status that says so and the outcome header free a key. A gateway's error is
 * no word of the service: it may have lost a request that was executed.
 */
#include "calls/http/http.h"

#include <assert.h>
#include <string.h>

#include "base/error.h"
#include "base/status.h"

enum { STATUS_MIN = 100, STATUS_MAX = 599 };

#define COUNT(a) (sizeof(a) / sizeof((a)[0]))

/* ---- Sets of statuses -------------------------------------------------- */

static void bits_add(uint64_t *bits, int from, int to)
{
    int bit;

    for (bit = from - STATUS_MIN; bit <= to - STATUS_MIN; bit++)
        bits[bit / 64] |= UINT64_C(1) << (bit % 64);
}

static void add_number(once__statuses *set, int status)
{
    bits_add(set->bits, status, status);
    bits_add(set->numbers, status, status);
}

/* "404", or -1. */
static int number_of(once_bytes text)
{
    const char *s = text.data;

    if (text.size != 3 || s[0] < '2' || s[0] > '5' || s[1] < '0' ||
        s[1] > '9' || s[2] < '0' || s[2] > '9')
        return -1;
    return (s[0] - '0') * 100 + (s[1] - '0') * 10 + (s[2] - '0');
}

int once__statuses_add(once__statuses *set, once_bytes text, once_error *err)
{
    const char *s = text.data;
    int status = number_of(text);

    if (status > 0) {
        add_number(set, status);
        return ONCE_OK;
    }
    if (text.size == 3 && s[0] >= '2' && s[0] <= '5' && s[1] == 'x' &&
        s[2] == 'x') {
        status = (s[0] - '0') * 100;
        bits_add(set->bits, status, status + 99);
        return ONCE_OK;
    }
    return once__fail(err, ONCE_EINVAL,
                      "status: neither 200 to 599 nor 2xx to 5xx");
}

static int add_number_from(once__statuses *set, once_bytes text, int least,
                           once_error *err)
{
    int status = number_of(text);

    if (status < least)
        return once__fail(err, ONCE_EINVAL,
                          "status: not a number from %d to 599", least);
    add_number(set, status);
    return ONCE_OK;
}

int once__statuses_add_released(once__statuses *set, once_bytes text,
                                once_error *err)
{
    return add_number_from(set, text, 300, err);
}

int once__statuses_add_unknown(once__statuses *set, once_bytes text,
                               once_error *err)
{
    return add_number_from(set, text, 400, err);
}

int once__statuses_has(const once__statuses *set, int status)
{
    int bit = status - STATUS_MIN;

    if (status < STATUS_MIN || status > STATUS_MAX)
        return 0;
    return (int)(set->bits[bit / 64] >> (bit % 64) & 1);
}

/* 200 to 599 are bits 100 to 499. Asked for each answer, hence the masks. */
int once__statuses_all(const once__statuses *set)
{
    static const uint64_t all[] = {
        0,          UINT64_MAX << 36, UINT64_MAX, UINT64_MAX,
        UINT64_MAX, UINT64_MAX,       UINT64_MAX, (UINT64_C(1) << 52) - 1,
    };
    size_t i = 0;

    while (i < COUNT(all) && (set->bits[i] & all[i]) == all[i])
        i++;
    return i == COUNT(all);
}

/* ---- Rules ------------------------------------------------------------- */

/* RFC 9110: a 401 "has not been applied", after a 421 any method may be sent
 * again. */
static const int declined[] = {401, 408, 421, 425, 429};

static const int lost[] = {ONCE__LOST_STATUSES};

static void final_by_default(once__statuses *set)
{
    bits_add(set->bits, 200, STATUS_MAX);
}

static int names(const once__statuses *set, int status)
{
    int bit = status - STATUS_MIN;

    return set != NULL && (set->numbers[bit / 64] >> (bit % 64) & 1) != 0;
}

/* The list as it is written; or the default, without what another list names. */
static void take_numbers(const once__statuses *written, const int *usual,
                         size_t n, const once__status_lists *lists,
                         once__statuses *out)
{
    size_t i;

    if (written != NULL) {
        *out = *written;
        return;
    }
    for (i = 0; i < n; i++)
        if (!names(lists->final, usual[i]) &&
            !names(lists->released, usual[i]) &&
            !names(lists->unknown, usual[i]))
            add_number(out, usual[i]);
}

static int find_clash(const once__status_lists *lists,
                      once__status_clash *clash)
{
    const struct {
        const once__statuses *set;
        const char *name;
    } all[] = {
        {lists->final, "final"},
        {lists->released, "release"},
        {lists->unknown, "unknown"},
    };
    size_t i, k;
    int status;

    for (status = STATUS_MIN; status <= STATUS_MAX; status++)
        for (i = 0; i < COUNT(all); i++)
            for (k = i + 1; k < COUNT(all); k++)
                if (names(all[i].set, status) && names(all[k].set, status)) {
                    *clash =
                        (once__status_clash){status, all[i].name, all[k].name};
                    return 1;
                }
    return 0;
}

int once__rules_make(const once__status_lists *lists, once__rules *out,
                     once__status_clash *clash)
{
    memset(out, 0, sizeof(*out));
    memset(clash, 0, sizeof(*clash));
    if (find_clash(lists, clash))
        return ONCE_EINVAL;
    if (lists->final != NULL)
        out->final = *lists->final;
    else
        final_by_default(&out->final);
    take_numbers(lists->released, declined, COUNT(declined), lists,
                 &out->released);
    take_numbers(lists->unknown, lost, COUNT(lost), lists, &out->unknown);
    return ONCE_OK;
}

/* ---- Verdicts ---------------------------------------------------------- */

/* What was observed, the outcome header and the status, as bits, so that a row
 * can name several of each. */
enum {
    NOT_SENT = 1 << ONCE__NOT_SENT,
    WHOLE = 1 << ONCE__WHOLE,
    UNSTORABLE = 1 << ONCE__UNSTORABLE,
    RESET = 1 << ONCE__RESET,
    TIMED_OUT = 1 << ONCE__TIMED_OUT,
    BAD_RESPONSE = 1 << ONCE__BAD_RESPONSE,
    TRUNCATED = 1 << ONCE__TRUNCATED,
    GONE = 1 << ONCE__GONE,
    SERVICE_LOST = 1 << ONCE__SERVICE_LOST,
    ANSWERED = WHOLE | UNSTORABLE
};

enum {
    ABSENT = 1,
    APPLIED = 2,
    NOT_APPLIED = 4,
    NO_STORE = 8,
    UNKNOWN = 16,
    ANY = 31
};

enum {
    STRANGE = 1,  /* not 100..599: no status at all, so a bad header   */
    DECLINED = 2, /* in once_release: "I did not do it, come again"    */
    GOOD = 4,     /* in once_final, or, where that is all, below 400   */
    POOR = 8,     /* not in once_final, or, where that is all, not     */
    LOST_IT = 16, /* in once_unknown: a gateway has lost the service   */
    ANY_STATUS = 31
};

/* clang-format off */
#define RELEASE(why)   { ONCE__DO_RELEASE,  ONCE_NO_KIND, ONCE_REASON_##why, 0 }
#define GIVE_UP(why)   { ONCE__DO_GIVE_UP,  ONCE_NO_KIND, ONCE_REASON_##why, 0 }
#define COMPLETE(kind) { ONCE__DO_COMPLETE, ONCE_##kind,  ONCE_REASON_NONE, 0 }
#define MARK(kind)     { ONCE__DO_MARK,     ONCE_##kind,  ONCE_REASON_NONE, 0 }

static const struct row {
    int observed, outcome, status;
    once__verdict verdict;
} rows[] = {
    { NOT_SENT,     ANY,         ANY_STATUS, RELEASE(NOT_SENT) },
    { RESET,        ANY,         ANY_STATUS, GIVE_UP(RESET) },
    { TIMED_OUT,    ANY,         ANY_STATUS, GIVE_UP(TIMEOUT) },
    { BAD_RESPONSE, ANY,         ANY_STATUS, GIVE_UP(BAD_RESPONSE) },
    { TRUNCATED,    ANY,         ANY_STATUS, GIVE_UP(TRUNCATED) },
    { GONE,         ANY,         ANY_STATUS, GIVE_UP(OWNER_GONE) },
    { SERVICE_LOST, ANY,         ANY_STATUS, GIVE_UP(STATUS) },
    { ANSWERED,     ANY,         STRANGE,    GIVE_UP(BAD_RESPONSE) },

    /* The outcome header, whatever the status. */
    { ANSWERED,     NOT_APPLIED, ANY_STATUS, RELEASE(UPSTREAM_SAID) },
    { ANSWERED,     UNKNOWN,     ANY_STATUS, GIVE_UP(UPSTREAM_SAID) },
    { ANSWERED,     NO_STORE,    ANY_STATUS, MARK(SUCCESS) },
    { WHOLE,        APPLIED,     ANY_STATUS, COMPLETE(SUCCESS) },
    { UNSTORABLE,   APPLIED,     ANY_STATUS, MARK(SUCCESS) },

    { ANSWERED,     ABSENT,      LOST_IT,    GIVE_UP(STATUS) },
    { ANSWERED,     ABSENT,      DECLINED,   RELEASE(STATUS) },
    { WHOLE,        ABSENT,      GOOD,       COMPLETE(SUCCESS) },
    { WHOLE,        ABSENT,      POOR,       COMPLETE(FAILURE) },
    { UNSTORABLE,   ABSENT,      GOOD,       MARK(SUCCESS) },
    { UNSTORABLE,   ABSENT,      POOR,       MARK(FAILURE) },
};

static const struct outcome {
    const char *text;
    int outcome;
} outcomes[] = {
    { "applied",     APPLIED     },
    { "not-applied", NOT_APPLIED },
    { "no-store",    NO_STORE    },
    { "unknown",     UNKNOWN     },
};
/* clang-format on */

static int outcome_class(once_bytes outcome)
{
    size_t i;

    for (i = 0; i < COUNT(outcomes); i++) {
        once_bytes text = {outcomes[i].text, strlen(outcomes[i].text)};

        if (once__same_name(outcome, text))
            return outcomes[i].outcome;
    }
    return ABSENT;
}

static int status_class(int status, const once__rules *rules)
{
    if (status < STATUS_MIN || status > STATUS_MAX)
        return STRANGE;
    if (once__statuses_has(&rules->unknown, status))
        return LOST_IT;
    if (once__statuses_has(&rules->released, status))
        return DECLINED;
    if (once__statuses_all(&rules->final))
        return status < 400 ? GOOD : POOR;
    return once__statuses_has(&rules->final, status) ? GOOD : POOR;
}

once__verdict once__judge(int observed, int status, once_bytes outcome,
                          const once__rules *rules)
{
    int said = outcome_class(outcome);
    int class = status_class(status, rules);
    once__verdict verdict;
    size_t i = 0;

    assert(observed >= ONCE__NOT_SENT && observed <= ONCE__SERVICE_LOST);
    while (i < COUNT(rows) &&
           !((rows[i].observed >> observed & 1) != 0 &&
             (rows[i].outcome & said) != 0 && (rows[i].status & class) != 0))
        i++;
    assert(i < COUNT(rows)); /* The table has a row for everything. */
    verdict = rows[i].verdict;
    if (once__verdict_keeps(verdict) && said == ABSENT && status >= 400)
        verdict.keep_ms = rules->failed_ms;
    return verdict;
}

int once__observe_status(int observed, int status, once_bytes outcome,
                         const once__rules *rules)
{
    once__verdict v = once__judge(observed, status, outcome, rules);

    return v.action == ONCE__DO_GIVE_UP && v.reason == ONCE_REASON_STATUS
               ? ONCE__SERVICE_LOST
               : observed;
}

/* ---- Endings ------------------------------------------------------------ */

const char *once__outcome_text(int outcome)
{
    static const char *const texts[] = {
#define TEXT(name, text) text,
        ONCE__OUTCOMES(TEXT)
#undef TEXT
    };

    assert(outcome >= 0 && outcome < ONCE__OUTCOME_COUNT);
    return texts[outcome];
}

/* What was asked, and what the engine reported, as bits. */
enum { KEEP = 1, LEAVE_OUT = 2, FREE = 4, DOUBT = 8 };

enum {
    DONE = 1,
    OTHERS = 2, /* another outcome stands recorded */
    SILENT = 4, /* the store did not answer */
    LOST = 8,   /* another attempt has the record, or the engine is closed */
    ANY_END = 15
};

/* Where the reason comes from. */
enum { ITS_OWN = -1 };

static const struct ending_row {
    int asked, ended, outcome, reason;
} ending_rows[] = {
    /* The record says more than "completed": see below. */
    {KEEP | LEAVE_OUT, OTHERS, ONCE__OUTCOME_COUNT, ONCE_REASON_NONE},
    {KEEP, DONE, ONCE__OUTCOME_COUNT, ONCE_REASON_NONE},
    {LEAVE_OUT, DONE, ONCE__OUTCOME_UNSTORED, ONCE_REASON_NONE},
    {FREE, DONE | OTHERS, ONCE__OUTCOME_RELEASED, ITS_OWN},
    {DOUBT, ANY_END, ONCE__OUTCOME_INDETERMINATE, ITS_OWN},

    {KEEP | LEAVE_OUT | FREE, SILENT, ONCE__OUTCOME_INDETERMINATE,
     ONCE_REASON_STORE_SILENT},
    {KEEP | LEAVE_OUT | FREE, LOST, ONCE__OUTCOME_INDETERMINATE,
     ONCE_REASON_OWNER_GONE},
};

static int end_of(int rc)
{
    if (rc == ONCE_OK)
        return DONE;
    if (rc == ONCE_REPLAY)
        return OTHERS;
    return rc > 0 || rc == ONCE_ECLOSED ? LOST : SILENT;
}

int once__outcome_of_kind(int kind)
{
    return kind == ONCE_FAILURE ? ONCE__OUTCOME_FAILURE : ONCE__OUTCOME_SUCCESS;
}

once__ending once__verdict_ending(once__verdict verdict, int rc,
                                  const once_record *record)
{
    static const int asked[] = {
        [ONCE__DO_COMPLETE] = KEEP,
        [ONCE__DO_MARK] = LEAVE_OUT,
        [ONCE__DO_RELEASE] = FREE,
        [ONCE__DO_GIVE_UP] = DOUBT,
    };
    int end = end_of(rc);
    once__ending out;
    size_t i = 0;

    while (i < COUNT(ending_rows) &&
           ((ending_rows[i].asked & asked[verdict.action]) == 0 ||
            (ending_rows[i].ended & end) == 0))
        i++;
    assert(i < COUNT(ending_rows)); /* The table has a row for everything. */
    out.outcome = ending_rows[i].outcome;
    out.reason = ending_rows[i].reason;
    if (out.outcome == ONCE__OUTCOME_COUNT)
        out.outcome =
            once__outcome_of_kind(end == OTHERS ? record->kind : verdict.kind);
    if (out.reason == ITS_OWN)
        out.reason = verdict.reason;
    return out;
}

/* Asked of the tables above: a reason stands in a row that gives it. */
int once__ending_is_usual(int outcome, int reason)
{
    size_t i;

    if (outcome != ONCE__OUTCOME_RELEASED &&
        outcome != ONCE__OUTCOME_INDETERMINATE)
        return reason == ONCE_REASON_NONE;
    for (i = 0; i < COUNT(rows); i++)
        if (rows[i].verdict.reason == reason &&
            rows[i].verdict.action == (outcome == ONCE__OUTCOME_RELEASED
                                           ? ONCE__DO_RELEASE
                                           : ONCE__DO_GIVE_UP))
            return 1;
    for (i = 0; i < COUNT(ending_rows); i++)
        if (ending_rows[i].outcome == outcome &&
            ending_rows[i].reason == reason)
            return 1;
    return 0;
}
