/* SPDX-License-Identifier: Apache-2.0 */
/*
 * explore.c - configurations of the explorer, by words.
 *
 *    explore all          those that must hold and those that must break (TAP)
 *    explore WORD...      one of them; a broken rule prints its trail
 *
 *    n=2 | n=3 | n=4      attempts on the one key [n=3]
 *    two                  two-phase: claim, dispatch, send
 *    retry                failed=retry, and the upstream fails once
 *    take, mixed          all take over; all but one do
 *    dedup                the upstream recognises the key
 *    tx                   it does so in its own transaction: service.c
 *    die=K abort=K        how often it dies, or rolls back [with tx: 1 1]
 *    fp2                  the last attempt carries another request
 *    lost=K crash=K silent=K wait=K renew=K
 *                         how often answers are lost, owners die, patience
 *                         ends, waiters look again [1 1 1 0 0]
 *    resolve, reopen      one decision of an operator
 *    probe=K              K times one that was told "unknown" asks the service
 *    end=K                K ends are told to a server that did not begin them
 *    keep                 retention ends once
 *    timed                the key carries its time: it becomes too old to be
 *                         claimed, and only after that the retention ends
 *    twice, failover      what no rule can make good: a middlebox repeats, a
 *                         store forgets what it acknowledged
 *    purge, pass          the service forgets its row at any time; or as late as
 *                         the gateway, and a client comes back after that
 *    reply_first, reset_releases, oversize_releases
 *                         planted in the adapter, to show that they are seen
 *    no_row, row_before, row_after, tells_rollback, tells_in_flight, other_body
 *                         likewise in the service
 *    fence_ignored, any_record, not_applied_frees
 *                         the same in the probe
 *    abandons             the same in a service that outlives its server
 *    old_claims           the same: a key that is too old is claimed
 *    plain                without symmetry
 *    states=N             stop there
 *
 * Status 0: every state was reached and no rule broken; 1: broken; 3: stopped.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "t.h"

#include "explore.h"

enum { WORDS_MAX = 24, STATES_MAX = 40000000 };

struct word {
    const char *name;
    size_t offset; /* of an int in struct config */
};

static const struct word switches[] = {
    {"two", offsetof(struct config, two_phase)},
    {"take", offsetof(struct config, take)},
    {"mixed", offsetof(struct config, mixed)},
    {"dedup", offsetof(struct config, dedup)},
    {"tx", offsetof(struct config, tx)},
    {"no_row", offsetof(struct config, no_row)},
    {"row_before", offsetof(struct config, row_before)},
    {"row_after", offsetof(struct config, row_after)},
    {"tells_rollback", offsetof(struct config, tells_rollback)},
    {"tells_in_flight", offsetof(struct config, tells_in_flight)},
    {"other_body", offsetof(struct config, other_body)},
    {"fp2", offsetof(struct config, other_print)},
    {"plain", offsetof(struct config, plain)},
    {"reply_first", offsetof(struct config, reply_first)},
    {"reset_releases", offsetof(struct config, reset_releases)},
    {"oversize_releases", offsetof(struct config, oversize_releases)},
    {"fence_ignored", offsetof(struct config, fence_ignored)},
    {"any_record", offsetof(struct config, any_record)},
    {"not_applied_frees", offsetof(struct config, not_applied_frees)},
    {"abandons", offsetof(struct config, abandons)},
    {"timed", offsetof(struct config, timed)},
    {"old_claims", offsetof(struct config, old_claims)},
    {"retry", offsetof(struct config, retry)},
    {"reopen", offsetof(struct config, reopen)},
};

static const struct word budgets[] = {
    {"lost", offsetof(struct budget, lost)},
    {"crash", offsetof(struct budget, crashes)},
    {"silent", offsetof(struct budget, silent)},
    {"wait", offsetof(struct budget, waits)},
    {"renew", offsetof(struct budget, renewals)},
    {"fail", offsetof(struct budget, fails)},
    {"break", offsetof(struct budget, breaks)},
    {"miss", offsetof(struct budget, misses)},
    {"throttle", offsetof(struct budget, throttles)},
    {"resolve", offsetof(struct budget, resolves)},
    {"keep", offsetof(struct budget, keeps)},
    {"probe", offsetof(struct budget, probes)},
    {"end", offsetof(struct budget, ends)},
    {"twice", offsetof(struct budget, doubles)},
    {"failover", offsetof(struct budget, failovers)},
    {"die", offsetof(struct budget, deaths)},
    {"abort", offsetof(struct budget, aborts)},
    {"purge", offsetof(struct budget, purges)},
    {"pass", offsetof(struct budget, passes)},
};

#define COUNT(a) (sizeof(a) / sizeof((a)[0]))

static void defaults(struct config *c)
{
    memset(c, 0, sizeof(*c));
    c->n = 3;
    c->states_max = STATES_MAX;
    c->budget = (struct budget){.crashes = 1,
                                .lost = 1,
                                .silent = 1,
                                .breaks = 1,
                                .misses = 1,
                                .throttles = 1};
}

/* "word" stands for "word=1". */
static int take_budget(struct config *c, const char *word)
{
    size_t i, size = strcspn(word, "=");
    const char *value = word[size] == '=' ? word + size + 1 : "1";

    if (strlen(value) != 1 || *value < '0' || *value > '9')
        return 0;
    for (i = 0; i < COUNT(budgets); i++)
        if (strlen(budgets[i].name) == size &&
            memcmp(budgets[i].name, word, size) == 0) {
            ((uint8_t *)&c->budget)[budgets[i].offset] =
                (uint8_t)(*value - '0');
            return 1;
        }
    return 0;
}

static int take_word(struct config *c, const char *word)
{
    size_t i;

    if (strncmp(word, "states=", 7) == 0) {
        c->states_max = strtoull(word + 7, NULL, 10);
        return c->states_max > 0;
    }
    if (strncmp(word, "n=", 2) == 0) {
        c->n = (unsigned)strtoul(word + 2, NULL, 10);
        return c->n >= 2 && c->n <= TRIES_MAX;
    }
    for (i = 0; i < COUNT(switches); i++)
        if (strcmp(switches[i].name, word) == 0) {
            memcpy((char *)c + switches[i].offset, &(int){1}, sizeof(int));
            if (strcmp(word, "retry") == 0)
                c->budget.fails = 1;
            if (strcmp(word, "timed") == 0)
                c->budget.ages = 1;
            if (strcmp(word, "reopen") == 0)
                c->budget.resolves = 1;
            if (strcmp(word, "tx") == 0)
                c->budget.deaths = c->budget.aborts = 1;
            return 1;
        }
    return take_budget(c, word);
}

static int parse(struct config *c, int n, char **words)
{
    int i;

    defaults(c);
    for (i = 0; i < n; i++)
        if (!take_word(c, words[i])) {
            fprintf(stderr, "explore: not a word: %s\n", words[i]);
            return 0;
        }
    if (c->tx && c->n == TRIES_MAX) {
        fprintf(stderr, "explore: tx wants one more attempt than n\n");
        return 0;
    }
    return 1;
}

static void print_result(const char *name, int rc, const struct result *r)
{
    printf("# %-36s states=%" PRIu64 " steps=%" PRIu64 " sec=%.1f ", name,
           r->states, r->steps, r->seconds);
    if (rc == 0)
        printf("clean, all reached");
    else
        printf("%s", rc == 1 ? r->broken : "stopped");
    printf(" (late=%" PRIu64 " lost=%" PRIu64 " fenced=%" PRIu64
           " executed=%" PRIu64 " retried=%" PRIu64 " taken over=%" PRIu64
           " doubt=%" PRIu64 ")\n",
           r->lates, r->losts, r->fenceds, r->executions, r->retries,
           r->takeovers, r->doubts);
    fflush(stdout);
}

/* ---- All --------------------------------------------------------------- */

struct expected {
    const char *words;
    const char *rule; /* how the text of the broken rule begins, "" any of
                       * them; NULL: holds */
};

/* clang-format off */
static const struct expected table[] = {
    { "n=3",                             NULL },
    { "n=3 plain",                       NULL },
    { "two",                             NULL },
    { "two fp2",                         NULL },
    { "two lost=2",                      NULL },
    { "two silent=2",                    NULL },
    { "two crash=2",                     NULL },
    { "two wait renew",                  NULL },
    { "two keep",                        NULL },
    { "retry keep resolve",              NULL },
    { "two retry resolve",               NULL },
    { "probe=2 resolve",                 NULL },
    { "probe=2 keep",                    NULL },
    { "two retry probe=2",               NULL },
    { "mixed probe",                     NULL },
    { "end=2",                           NULL },
    { "n=2 two end=2 keep",              NULL },
    { "two retry end",                   NULL },
    { "mixed end",                       NULL },
    { "end resolve probe",               NULL },
    { "two timed keep=2",                NULL },
    { "timed keep retry wait",           NULL },
    { "mixed timed keep",                NULL },
    { "mixed",                           NULL },
    { "mixed two retry",                 NULL },
    { "take dedup",                      NULL },
    { "two take dedup",                  NULL },
    { "n=2 take dedup reopen",           NULL },
    { "tx",                              NULL },
    { "take tx lost=0 silent=0",         NULL },
    { "take tx crash=0 break=0",         NULL },
    { "n=2 take tx plain",               NULL },
    { "n=2 take tx retry keep die=2",    NULL },
    { "n=2 take tx retry tells_rollback tells_in_flight", NULL },
    { "n=2 two take tx keep",            NULL },
    { "n=2 take tx twice",               NULL },
    { "n=2 take tx failover lost=0",     NULL },
    { "n=4",                             NULL },
    { "n=4 keep",                        NULL },
    { "n=4 two",                         NULL },

    /* What nobody promises (docs/protocol.md, section 11). */
    { "take",                            "I1" },
    { "mixed two reopen",                "I1" },
    { "twice",                           "I1" },
    { "failover",                        "" },
    { "two failover",                    "" },

    /* What a service must do for takeover (docs/messages.md). */
    { "n=2 take tx no_row",              "E1" },
    { "n=2 take tx row_after",           "E1" },
    { "n=2 take tx row_before",          "E3" },
    { "n=2 take tx tells_rollback",      "E2" },
    { "n=2 take tx tells_in_flight",     "E2" },
    { "n=2 take tx other_body",          "E2" },
    { "n=2 take tx purge",               "E1" },
    { "n=2 take tx pass",                "E1" },
    { "n=2 mixed tx",                    "E3" },

    /* Mistakes of an adapter: those of the core are in test/mutants. */
    { "reply_first",                     "I3" },
    { "reset_releases",                  "I1" },
    { "oversize_releases",               "I5" },
    { "probe keep fence_ignored",        "P1" },
    { "probe any_record",                "P1" },
    { "probe not_applied_frees",         "I1" },
    { "end abandons",                    "I5" },
    { "timed keep old_claims",           "A1" },
};
/* clang-format on */

static int split(char *text, char **words)
{
    char *rest = text;
    int n = 0;

    while (*rest != '\0' && n < WORDS_MAX) {
        words[n++] = rest;
        rest += strcspn(rest, " ");
        if (*rest == ' ')
            *rest++ = '\0';
    }
    return n;
}

static void run_expected(const struct expected *e)
{
    char text[160], *words[WORDS_MAX];
    struct config c;
    struct result r;
    int rc;

    T_OK(strlen(e->words) < sizeof(text));
    snprintf(text, sizeof(text), "%s", e->words);
    if (!T_OK(parse(&c, split(text, words), words)))
        return;
    rc = search(&c, 1, &r);
    print_result(e->words, rc, &r);
    if (e->rule == NULL)
        T_EQ(rc, 0);
    else if (T_OK(rc == 1))
        T_OK(strncmp(r.broken, e->rule, strlen(e->rule)) == 0);
}

/* A hash that takes two worlds for one loses all that only the second leads to;
 * one that begins elsewhere would lose others. */
static void every_salt_finds_as_many(void)
{
    char text[] = "n=2 two lost=2 plain", *words[WORDS_MAX];
    uint64_t states = 0;
    struct config c;
    struct result r;

    if (!T_OK(parse(&c, split(text, words), words)))
        return;
    for (c.salt = 0; c.salt < 8; c.salt++) {
        T_EQ(search(&c, 1, &r), 0);
        if (c.salt == 0)
            states = r.states;
        T_EQ(r.states, states);
    }
}

static void ended(const char *name, const char *what)
{
    t__failed += t__bad != 0;
    printf("%s %d - %s%s\n", t__bad ? "not ok" : "ok", ++t__number, name, what);
    fflush(stdout);
}

static int run_all(void)
{
    size_t i;

    t__bad = 0;
    every_salt_finds_as_many();
    ended("every salt finds as many worlds", "");
    for (i = 0; i < COUNT(table); i++) {
        t__bad = 0;
        run_expected(&table[i]);
        ended(table[i].words,
              table[i].rule == NULL ? ": holds" : ": is broken");
    }
    return t_done();
}

int main(int n, char **words)
{
    struct config c;
    struct result r;
    int rc;

    if (n == 2 && strcmp(words[1], "all") == 0)
        return run_all();
    if (!parse(&c, n - 1, words + 1))
        return 2;
    rc = search(&c, 1, &r);
    print_result("", rc, &r);
    return rc == CROWDED ? 3 : rc;
}
