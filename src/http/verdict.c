/* SPDX-License-Identifier: Apache-2.0 */
/*
 * verdict.c - sets of statuses, and what becomes of an attempt (docs/http.md,
 * 3).
 *
 * The rule is a table, read from the top: the first row that fits decides. It
 * refuses to guess in the dangerous direction: only "not one byte was sent",
 * a status that says so and the outcome header free a key.
 */
#include "http/http.h"

#include <assert.h>
#include <string.h>

#include "core/error.h"

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

int once__statuses_add_released(once__statuses *set, once_bytes text,
                                once_error *err)
{
    int status = number_of(text);

    if (status < 300)
        return once__fail(err, ONCE_EINVAL,
                          "status: not a number from 300 to 599");
    add_number(set, status);
    return ONCE_OK;
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

static const int declined[] = {408, 425, 429};

static void final_by_default(once__statuses *set)
{
    bits_add(set->bits, 200, STATUS_MAX);
}

static void released_by_default(const once__statuses *final,
                                once__statuses *set)
{
    size_t i;
    int bit;

    for (i = 0; i < COUNT(declined); i++) {
        bit = declined[i] - STATUS_MIN;
        if ((final->numbers[bit / 64] >> (bit % 64) & 1) == 0)
            add_number(set, declined[i]);
    }
}

int once__rules_make(const once__statuses *final,
                     const once__statuses *released, once__rules *out)
{
    int bit;

    memset(out, 0, sizeof(*out));
    if (final != NULL)
        out->final = *final;
    else
        final_by_default(&out->final);
    if (released == NULL) {
        released_by_default(&out->final, &out->released);
        return 0;
    }
    out->released = *released;
    for (bit = 0; bit <= STATUS_MAX - STATUS_MIN; bit++)
        if ((out->final.numbers[bit / 64] & released->numbers[bit / 64]) >>
                (bit % 64) &
            1)
            return bit + STATUS_MIN;
    return 0;
}

/* ---- Verdicts ---------------------------------------------------------- */

/* What was observed, the outcome header and the status, as bits, so that a row
 * can name several of each. */
enum {
    NOT_SENT = 1 << ONCE__NOT_SENT,
    WHOLE = 1 << ONCE__WHOLE,
    BROKEN = 1 << ONCE__BROKEN,
    UNSTORABLE = 1 << ONCE__UNSTORABLE,
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
    ANY_STATUS = 15
};

/* clang-format off */
static const struct row {
    int observed, outcome, status;
    once__verdict verdict;
} rows[] = {
    { NOT_SENT,   ANY,         ANY_STATUS,
      { ONCE__DO_RELEASE,  ONCE_NO_KIND, ONCE_REASON_NOT_SENT }},
    { BROKEN,     ANY,         ANY_STATUS,
      { ONCE__DO_GIVE_UP,  ONCE_NO_KIND, ONCE_REASON_RESET }},
    { ANSWERED,   ANY,         STRANGE,   
      { ONCE__DO_GIVE_UP,  ONCE_NO_KIND, ONCE_REASON_BAD_RESPONSE }},

    /* The outcome header, whatever the status. */
    { ANSWERED,   NOT_APPLIED, ANY_STATUS,
      { ONCE__DO_RELEASE,  ONCE_NO_KIND, ONCE_REASON_UPSTREAM_SAID }},
    { ANSWERED,   UNKNOWN,     ANY_STATUS,
      { ONCE__DO_GIVE_UP,  ONCE_NO_KIND, ONCE_REASON_UPSTREAM_SAID }},
    { ANSWERED,   NO_STORE,    ANY_STATUS,
      { ONCE__DO_MARK,     ONCE_SUCCESS, ONCE_REASON_NONE }},
    { WHOLE,      APPLIED,     ANY_STATUS,
      { ONCE__DO_COMPLETE, ONCE_SUCCESS, ONCE_REASON_NONE }},
    { UNSTORABLE, APPLIED,     ANY_STATUS,
      { ONCE__DO_MARK,     ONCE_SUCCESS, ONCE_REASON_NONE }},

    { ANSWERED,   ABSENT,      DECLINED,  
      { ONCE__DO_RELEASE,  ONCE_NO_KIND, ONCE_REASON_STATUS }},
    { WHOLE,      ABSENT,      GOOD,      
      { ONCE__DO_COMPLETE, ONCE_SUCCESS, ONCE_REASON_NONE }},
    { WHOLE,      ABSENT,      POOR,      
      { ONCE__DO_COMPLETE, ONCE_FAILURE, ONCE_REASON_NONE }},
    { UNSTORABLE, ABSENT,      GOOD,      
      { ONCE__DO_MARK,     ONCE_SUCCESS, ONCE_REASON_NONE }},
    { UNSTORABLE, ABSENT,      POOR,      
      { ONCE__DO_MARK,     ONCE_FAILURE, ONCE_REASON_NONE }},
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
    size_t i = 0;

    assert(observed >= ONCE__NOT_SENT && observed <= ONCE__UNSTORABLE);
    while (i < COUNT(rows) &&
           !((rows[i].observed >> observed & 1) != 0 &&
             (rows[i].outcome & said) != 0 && (rows[i].status & class) != 0))
        i++;
    assert(i < COUNT(rows)); /* The table has a row for everything. */
    return rows[i].verdict;
}
