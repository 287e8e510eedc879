/* SPDX-License-Identifier: Apache-2.0 */
/*
 * would.c - what a dry run would have done with a request, in one word, and how
 * long after the first request it came (docs/http.md, 6.1).
 *
 * Both go into access logs, so they hold nothing of key, caller or body.
 */
#include "calls/http/http.h"

#include <assert.h>

#define COUNT(a) (sizeof(a) / sizeof((a)[0]))

const char *once__would_text(int would)
{
    static const char *const texts[] = {
#define TEXT(name, text) text,
        ONCE__WOULDS(TEXT)
#undef TEXT
    };

    assert(would >= 0 && would < ONCE__WOULD_COUNT);
    return texts[would];
}

int once__would_of(int next, int problem)
{
    /* Read from the top; each problem without a row is a refusal. */
    static const struct {
        int next, problem, would;
    } rows[] = {
        {ONCE__NEXT_RUN, ONCE__NO_PROBLEM, ONCE__WOULD_RUN},
        /* A bypass: it runs, unprotected. */
        {ONCE__NEXT_PASS, ONCE__NO_PROBLEM, ONCE__WOULD_RUN},
        {ONCE__NEXT_REPLAY, ONCE__NO_PROBLEM, ONCE__WOULD_REPLAY},
        {ONCE__NEXT_PROBLEM, ONCE__PROBLEM_KEY_REUSED, ONCE__WOULD_CONFLICT},
        {ONCE__NEXT_PROBLEM, ONCE__PROBLEM_IN_FLIGHT, ONCE__WOULD_IN_FLIGHT},
        {ONCE__NEXT_PROBLEM, ONCE__PROBLEM_OUTCOME_UNKNOWN,
         ONCE__WOULD_UNKNOWN},
    };
    size_t i;

    for (i = 0; i < COUNT(rows); i++)
        if (rows[i].next == next && rows[i].problem == problem)
            return rows[i].would;
    return next == ONCE__NEXT_PROBLEM ? ONCE__WOULD_REFUSE : ONCE__WOULD_NONE;
}

int once__would_passed(int would)
{
    return would == ONCE__WOULD_REPLAY ? ONCE__WOULD_RUN_AGAIN : would;
}

int once__apart(int would, const once_record *record, uint64_t now_ms,
                uint64_t *seconds)
{
    uint64_t first_ms;

    if (would == ONCE__WOULD_NONE || would == ONCE__WOULD_RUN ||
        record == NULL || record->attempt == 0)
        return 0;
    first_ms =
        record->created_ms != 0 ? record->created_ms : record->granted_ms;
    if (first_ms == 0)
        return 0;
    /* The store's clock may be ahead of this host's. */
    *seconds = now_ms > first_ms ? (now_ms - first_ms) / 1000 : 0;
    return 1;
}
