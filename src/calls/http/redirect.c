/* SPDX-License-Identifier: Apache-2.0 */
/*
 * redirect.c - a request whose attempt owns its key comes to a place that
 * handles it: for the first time, or because an error page, the service's
 * X-Accel-Redirect or a handler has led it on. Is it passed on?
 *
 *            a handler runs             its error, or its wish
 *                                       for another page
 *   UNTRIED ------------------> TRIED -------------------------> DECIDED
 *      |                          |                                 ^
 *      | a page, and              | the request itself              |
 *      | nothing was sent         | was to be sent again            |
 *      |                          v                                 |
 *      |                       REFUSED                              |
 *      +------------------------------------------------------------+
 *
 * A page may come from a service, too, and must not be taken for the outcome.
 * It refuses to send a request twice.
 */
#include "calls/http/http.h"

#include <assert.h>

#define COUNT(a) (sizeof(a) / sizeof((a)[0]))

/* Everything as bits, so that a row can name several. */
enum {
    UNSENT = 1, /* not one byte has left */
    SENT = 2,
    DECIDED = 4,
    REFUSED = 8,
    ANY_TIME = 15
};

enum {
    FILE = 1 << ONCE__TO_FILE,
    UNWATCHED = 1 << ONCE__TO_UNWATCHED,
    REQUEST = 1 << ONCE__TO_REQUEST,
    ASKED = 1 << ONCE__TO_ASKED,
    PAGE = 1 << ONCE__TO_PAGE,
    ANYWHERE = 31
};

enum {
    NO_HEAD = 1 << ONCE__SHOWN_NO_HEAD,
    HEAD = 1 << ONCE__SHOWN_HEAD,
    RAN = 1 << ONCE__SHOWN_RAN,
    FAILED = 1 << ONCE__SHOWN_FAILED,
    ANYTHING = 15
};

enum { KEEP = -1 };

/* clang-format off */
#define GO(next)            { ONCE__WAY_##next, KEEP, KEEP }
#define DECIDE(next, known) { ONCE__WAY_##next, ONCE__DECIDED, ONCE__##known }

static const struct row {
    int when, to, shown;
    once__way way;
} rows[] = {
    { ANY_TIME,  FILE,      ANYTHING,  GO(FILE) },
    { ANY_TIME,  UNWATCHED, ANYTHING,  GO(FORBID) },

    { UNSENT,    PAGE,      ANYTHING,  DECIDE(PAGE, NOT_SENT) },
    { UNSENT,    ANYWHERE,  ANYTHING,  GO(RUN) },

    /* Leading the request on is a part of what this handler does. */
    { SENT,      PAGE,      RAN,       GO(PAGE) },
    { SENT,      ANYWHERE,  RAN,       GO(RUN) },

    { SENT,      ANYWHERE,  NO_HEAD,   GO(REFUSE) },
    { SENT,      PAGE,      ANYTHING,  DECIDE(PAGE, WHOLE) },
    { SENT,      ANYWHERE,  FAILED,    GO(REFUSE) },
    { SENT,      ASKED,     HEAD,      DECIDE(RUN, WHOLE) },
    { SENT,      ANYWHERE,  HEAD,      DECIDE(NO_PAGE, WHOLE) },

    { DECIDED | REFUSED, PAGE, ANYTHING, GO(PAGE) },
    { DECIDED,   ASKED,     ANYTHING,  GO(RUN) },
    { DECIDED,   ANYWHERE,  ANYTHING,  GO(NO_PAGE) },
    { REFUSED,   ANYWHERE,  ANYTHING,  GO(REFUSE) },
};
/* clang-format on */

static int time_of(const once__redirect *r)
{
    if (r->tries == ONCE__REFUSED)
        return REFUSED;
    if (r->tries == ONCE__DECIDED)
        return DECIDED;
    return r->sent ? SENT : UNSENT;
}

once__way once__decide_redirect(const once__redirect *r)
{
    int when = time_of(r);
    once__way way;
    size_t i = 0;

    while (i < COUNT(rows) &&
           ((rows[i].when & when) == 0 || (rows[i].to >> r->to & 1) == 0 ||
            (rows[i].shown >> r->shown & 1) == 0))
        i++;
    assert(i < COUNT(rows)); /* The table has a row for everything. */
    way = rows[i].way;
    if (way.tries == KEEP) {
        way.tries = r->tries;
        way.observed = r->observed;
    }
    return way;
}
