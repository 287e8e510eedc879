/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_redirect.c - is a request passed on where it has been led? A line for
 * each case, as one text, and at the end the rules that no combination breaks.
 */
#include "calls/http/http.h"

#include "t.h"

enum { UNSENT = 0, SENT = 1 };

static const char *text_of(once__way way)
{
    static const char *const nexts[] = {"file",    "run",    "page",
                                        "no page", "refuse", "forbid"};
    static const char *const tries[] = {"untried", "tried", "decided",
                                        "refused"};
    static char out[64];

    snprintf(out, sizeof(out), "%s, %s%s", nexts[way.next], tries[way.tries],
             way.observed == ONCE__WHOLE ? ", whole" : "");
    return out;
}

static const char *led(int tries, int sent, int to, int shown)
{
    once__redirect r = {.tries = tries,
                        .observed = ONCE__NOT_SENT,
                        .sent = sent,
                        .to = to,
                        .shown = shown};

    return text_of(once__decide_redirect(&r));
}

#define LED(tries, sent, to, shown)                                            \
    led(ONCE__##tries, sent, ONCE__TO_##to, ONCE__SHOWN_##shown)

static void the_owner_runs_once(void)
{
    T_STR(LED(UNTRIED, UNSENT, REQUEST, NO_HEAD), "run, untried");
    T_STR(LED(UNTRIED, UNSENT, ASKED, NO_HEAD), "run, untried");
    T_STR(LED(TRIED, UNSENT, REQUEST, NO_HEAD), "run, tried");
    T_STR(LED(TRIED, SENT, REQUEST, NO_HEAD), "refuse, tried");
    T_STR(LED(REFUSED, SENT, REQUEST, NO_HEAD), "refuse, refused");
}

static void a_page_is_not_the_outcome(void)
{
    T_STR(LED(UNTRIED, UNSENT, PAGE, NO_HEAD), "page, decided");
    T_STR(LED(TRIED, UNSENT, PAGE, NO_HEAD), "page, decided");
    T_STR(LED(TRIED, SENT, PAGE, HEAD), "page, decided, whole");
    T_STR(LED(DECIDED, SENT, PAGE, HEAD), "page, decided");
    T_STR(LED(REFUSED, SENT, PAGE, NO_HEAD), "page, refused");
}

static void a_page_after_a_cut_head_is_refused(void)
{
    T_STR(LED(TRIED, SENT, PAGE, NO_HEAD), "refuse, tried");
}

static void what_the_service_asked_for_gets_the_request(void)
{
    T_STR(LED(TRIED, SENT, ASKED, HEAD), "run, decided, whole");
    T_STR(LED(DECIDED, SENT, ASKED, HEAD), "run, decided");
    T_STR(LED(TRIED, SENT, ASKED, NO_HEAD), "refuse, tried");
    T_STR(LED(REFUSED, SENT, ASKED, HEAD), "refuse, refused");
}

static void a_whole_answer_counts_without_its_page(void)
{
    T_STR(LED(TRIED, SENT, REQUEST, HEAD), "no page, decided, whole");
    T_STR(LED(DECIDED, SENT, REQUEST, HEAD), "no page, decided");
    T_STR(LED(DECIDED, UNSENT, REQUEST, NO_HEAD), "no page, decided");
}

static void a_handler_may_lead_the_request_on(void)
{
    T_STR(LED(TRIED, SENT, REQUEST, RAN), "run, tried");
    T_STR(LED(TRIED, SENT, PAGE, RAN), "page, tried");
    T_STR(LED(TRIED, SENT, REQUEST, FAILED), "refuse, tried");
    T_STR(LED(TRIED, SENT, PAGE, FAILED), "page, decided, whole");
}

static void what_cannot_be_watched_gets_nothing(void)
{
    T_STR(LED(UNTRIED, UNSENT, UNWATCHED, NO_HEAD), "forbid, untried");
    T_STR(LED(DECIDED, SENT, UNWATCHED, HEAD), "forbid, decided");
    T_STR(LED(TRIED, SENT, FILE, HEAD), "file, tried");
}

static void check(const once__redirect *r)
{
    once__way way = once__decide_redirect(r);

    /* A decision and a refusal stand. */
    T_OK(way.tries >= r->tries);
    T_OK(r->tries < ONCE__DECIDED || way.observed == r->observed);
    /* The request goes out again only where the service has asked for it, or a
     * handler in this process leads it on. */
    if (way.next == ONCE__WAY_RUN && r->sent)
        T_OK(r->to == ONCE__TO_ASKED || r->shown == ONCE__SHOWN_RAN);
    if (r->tries == ONCE__REFUSED)
        T_OK(way.next != ONCE__WAY_RUN && way.next != ONCE__WAY_NO_PAGE);
    if (way.next == ONCE__WAY_PAGE)
        T_EQ(r->to, ONCE__TO_PAGE);
    /* Only what was not sent counts as not sent, and frees the key. */
    if (way.tries == ONCE__DECIDED && r->tries < ONCE__DECIDED)
        T_EQ(way.observed, r->sent ? ONCE__WHOLE : ONCE__NOT_SENT);
}

static void every_combination_has_an_answer(void)
{
    once__redirect r = {.observed = ONCE__TRUNCATED};

    for (r.tries = ONCE__UNTRIED; r.tries <= ONCE__REFUSED; r.tries++)
        for (r.sent = UNSENT; r.sent <= SENT; r.sent++)
            for (r.to = 0; r.to <= ONCE__TO_PAGE; r.to++)
                for (r.shown = 0; r.shown <= ONCE__SHOWN_FAILED; r.shown++)
                    if (r.sent || r.tries != ONCE__REFUSED)
                        check(&r);
}

int main(void)
{
    T_RUN(the_owner_runs_once);
    T_RUN(a_page_is_not_the_outcome);
    T_RUN(a_page_after_a_cut_head_is_refused);
    T_RUN(what_the_service_asked_for_gets_the_request);
    T_RUN(a_handler_may_lead_the_request_on);
    T_RUN(a_whole_answer_counts_without_its_page);
    T_RUN(what_cannot_be_watched_gets_nothing);
    T_RUN(every_combination_has_an_answer);
    return t_done();
}
