/* SPDX-License-Identifier: Apache-2.0 */
/*
 * explore.h - every order in which N attempts on one key can meet, over the
 * real src/calls/core.
 *
 *    world   record, attempts, calls under way, requests under way, and what
 *            is known from outside (ghosts): small, flat, compared as bytes
 *    step    one thing that happens: a call is answered, its answer is lost,
 *            a late copy of it arrives, a lease is over, a process dies ...
 *    search  breadth first over all steps from all worlds; the way to a broken
 *            rule is printed step by step, and there is no shorter one
 *
 * What an operation means is asked of once__transition(), what an attempt does next
 * of once__attempt_*(): there is no copy of either here. There is no clock: a
 * lease is over whenever a step says so, which covers every pause and every
 * jump of a clock.
 */
#ifndef TEST_EXPLORE_H
#define TEST_EXPLORE_H

#include <stddef.h>
#include <stdint.h>

#include <once/once.h>

enum {
    TRIES_MAX = 4,
    LATE_MAX = 2,      /* late copies under way for each attempt */
    RESULTS_MAX = 8,   /* executions that can be told apart      */
    RESOLVED = 60,     /* the operator's outcome                 */
    THROTTLED = 255,   /* the upstream: "I did nothing"          */
    UNSURE = 254,      /* it says "unknown", or the line is cut  */
    OTHER_REQUEST = 4, /* in a role, above the policy bits       */
    OTHER_BODY = 8,    /* likewise: only the service sees that   */
    CROWDED = 1000     /* search(): the states outgrew the budget */
};

/* How often each accident may still happen. */
struct budget {
    uint8_t crashes, lost, silent, breaks, misses, throttles, fails;
    uint8_t resolves, keeps, waits, renewals, doubles, failovers;
    uint8_t deaths, aborts, purges, passes; /* of the service  */
    uint8_t probes;
    uint8_t ends; /* told to another server   */
    uint8_t ages; /* the key becomes too old to be claimed */
};

struct late {
    uint8_t verb, fence, kind, result;
};

/* One attempt, and all that is under way for it. */
struct
try {
    uint8_t role; /* policy bits, OTHER_REQUEST; never changes */
    uint8_t alive;
    uint8_t phase, told, fence;     /* of once__machine                    */
    uint8_t verb;                   /* the call that is waited for, or 0   */
    uint8_t kind, result;           /* what COMPLETE says, or was shown    */
    uint8_t wire;                   /* a request is on its way upstream    */
    uint8_t sent, ran;              /* one ever was; it was executed       */
    uint8_t stage;                  /* of its transaction in the service   */
    uint8_t reply, reply_kind;      /* an answer is on its way back        */
    uint8_t period;                 /* the retention period it was sent in */
    uint8_t grant, made, made_kind; /* what its service keeps: outlive.c */
    uint8_t asks;   /* the fence that its probe is about, or 0      */
    uint8_t heard;  /* what the service says was applied, or 0      */
    uint8_t probed; /* it has asked: it asks once          */
    uint8_t n_late;
    struct late late[LATE_MAX];
};

struct row {
    uint8_t state, kind, policy, doubt, attempt, fence, owner, print, result;
};

/* What is known of one outcome: ghosts, invisible to the code under test. */
struct outcome {
    uint8_t kind, period, print, final, by;
};

struct world {
    struct row row, replica;
    uint8_t fence;  /* the store's counter                             */
    uint8_t period; /* goes up with each forget                        */
    uint8_t open;   /* bit i: sent by try i, and may have executed     */
    uint8_t done;   /* executions in this period                       */
    uint8_t grants; /* the highest attempt number in this period       */
    uint8_t executed, first;
    uint8_t happened; /* in this period: what a probe is told       */
    uint8_t old;      /* the key is too old: no claim is asked any more  */
    uint8_t shown;    /* the fence that the operator looked at           */
    uint8_t kept, kept_kind, kept_body; /* the service's row, committed  */
    uint8_t effects, answer; /* ghosts: how many, and of the first      */
    struct budget left;
    struct outcome outcomes[RESULTS_MAX], resolved;
    struct try tries[TRIES_MAX];
};

struct config {
    unsigned n;
    int two_phase, take, mixed, retry, dedup, reopen, other_print;
    int tx;                            /* the upstream is that of service.c */
    int no_row, row_before, row_after; /* planted there  */
    int tells_rollback, tells_in_flight, other_body; /* likewise      */
    int plain; /* no symmetry: for checking that it changes no verdict */
    int reply_first, reset_releases, oversize_releases; /* planted   */
    int fence_ignored, any_record, not_applied_frees;   /* in the probe */
    int abandons;          /* in the service that outlives its server   */
    int timed, old_claims; /* the key carries its time; planted          */
    uint64_t states_max;
    uint64_t salt; /* where the hash begins: it must change no number */
    struct budget budget;
};

/* One step, for the trail. `rc` -1: nothing was answered. */
struct step {
    const char *what;
    int who; /* -1: nobody's */
    int verb, late, rc;
};

struct search;

/* steps.c: calls emit() for each world that can follow `*w`. */
void expand(struct search *s, const struct world *w);

/* service.c: what a request does there, what time does, and whether the client
 * that asks next is answered. */
void service(struct search *s, const struct world *w, int who);
void service_ages(struct search *s, const struct world *w);
void service_answers(struct search *s, const struct world *w);
/* Somebody was told `result`. */
void service_told(struct search *s, struct world *w, uint8_t result);

/* world.c */
void world_begin(const struct config *c, struct world *w);
void try_begin(const struct config *c, struct world *w, unsigned who);
/* Puts attempts that cannot be told apart in one order. */
void world_sort(const struct config *c, struct world *w);
int row_owned(const struct row *r);
/* Serves one call on the record, checks what it did, returns the answer. */
int serve(struct search *s, struct world *w, int who, struct late call,
          int late);
/* The answer of the last serve() reaches its attempt. */
void hear(struct search *s, struct world *w, int who, int rc);
void hear_nothing(struct search *s, struct world *w, int who);
void say_deed(struct search *s, struct world *w, int who, int phase);
void look_again(struct search *s, struct world *w, int who);

/* probe.c */
void probe(struct search *s, const struct world *w, int who);
void probe_offered(struct world *w, int who, int rc);
/* Serves the RESOLVE of a probe; the answer. */
int probe_decide(struct search *s, struct world *w, struct late call);

/* outlive.c */
void outlive(struct search *s, const struct world *w, int who);

/* search.c */
const struct config *search_config(const struct search *s);
void broken(struct search *s, const char *rule);
void emit(struct search *s, const struct world *w, struct step step);
/* The record as the last serve() left it: for hear(). */
once_record *search_answer(struct search *s);

struct result {
    uint64_t states, steps;
    double seconds;
    const char *broken; /* NULL: no rule is */
    uint64_t lates, losts, fenceds, executions, retries, takeovers, doubts;
    uint64_t answers;
};

/* Returns 0 clean, 1 broken (the trail was printed), CROWDED. */
int search(const struct config *c, int trail, struct result *out);
struct result *search_result(struct search *s);

const char *verb_text(int verb);

#endif /* TEST_EXPLORE_H */
