/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sim.h - the real engine in a world of one thread, one clock and one seed.
 *
 *    clients --> adapters --> engines --> messages --> one store, once__transition()
 *                  |                                    ^
 *                  +--> messages --> upstream           operator, reapers
 *
 * Engine, attempt machine, once__transition(), digests and verdicts are the shipped
 * objects, unchanged: the program is linked with --wrap for the handful of
 * functions through which they reach the outside (clock, random numbers,
 * thread, sleep, memory, the opening of a store), see machine.c. An engine's
 * thread is a fiber: it runs until it sleeps or asks the store.
 *
 * A seed is the whole story: it draws the options, the faults and the order.
 */
#ifndef TEST_SIM_H
#define TEST_SIM_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <ucontext.h>

#include <once/store.h>

enum {
    GATEWAYS = 3,
    CLIENTS = 6,
    OPERATIONS = 6, /* of each client                                  */
    KEYS = 4,
    TENANTS = 2, /* they use the same keys and the same bodies      */
    NAMES = KEYS * TENANTS,
    PRINTS = 2,        /* different requests under one key                */
    CALLS_MAX = 32768, /* attempts in one run                             */
    OPEN_MAX = 64,     /* dispatches of one name that may have executed   */
    OUTCOMES_MAX = 64, /* of one name                                     */
    FENCES_MAX = 4096, /* grants in one run                               */
    BATCH_MAX = 8,
    BYTES = 12, /* of one outcome                               */
    NOTE = 4,   /* of an operator's remark                      */
    AGE_SLACK_MS =
        10000,     /* keys are too old so long before the retention ends */
    OUR_OWN = 500, /* the status class that only a gateway answers */
    EVENTS_MAX = 16384
};

/* ---- What a run must have seen ---------------------------------------- */

/* clang-format off */
#define SEEN(X)                                                         \
    X(REPLAY,          "result replayed")                               \
    X(TOLD_UNKNOWN,    "told \"outcome unknown\"")                      \
    X(MISMATCH,        "told \"another request\"")                      \
    X(IN_FLIGHT,       "told \"in flight\"")                            \
    X(DISPATCH_FENCED, "dispatch fenced")                               \
    X(COMPLETE_FENCED, "complete fenced")                               \
    X(CLAIM_FENCED,    "late claim met its own token")                  \
    X(LATE_COMPLETE,   "late complete accepted")                        \
    X(LATE_ASKED,      "asked on after \"outcome unknown\" was told")     \
    X(UNSENT_REPLACED, "unsent claim taken over")                       \
    X(CLAIM_AGAIN,     "claim repeated by its owner")                   \
    X(COMPLETE_AGAIN,  "complete repeated")                             \
    X(FORGOTTEN,       "retention over, forgotten")                     \
    X(EXECUTED,        "upstream executed")                             \
    X(LATE_EXECUTION,  "executed after the lease was over")             \
    X(OWNER_CRASHED,   "owner crashed")                                 \
    X(RENEWED,         "lease renewed")                                 \
    X(RENEWAL_REFUSED, "renewal refused")                               \
    X(GIVEN_UP,        "given up")                                      \
    X(FREED_OWNER,     "given up because its handle was freed")         \
    X(LOST_CLAIM,      "lost at claim")                                 \
    X(LOST_DISPATCH,   "lost at dispatch")                              \
    X(TOKEN_RELEASE,   "released by the token alone")                   \
    X(RELEASED,        "released: not executed")                        \
    X(DOUBT_RELEASED,  "released with doubt: indeterminate")            \
    X(RETRIED,         "retried after a failure")                       \
    X(TAKEN_OVER,      "taken over with doubt")                         \
    X(REAPED_CLAIM,    "unsent claim reaped")                           \
    X(REAPED_DISPATCH, "dispatched record reaped")                      \
    X(RESOLVED,        "resolved by an operator")                       \
    X(REOPENED,        "reopened by an operator")                       \
    X(DECIDED_AGAIN,   "decision repeated")                             \
    X(REFUSED,         "operator refused: it had moved on")             \
    X(DRIFT,           "forgetting stopped by drift")                   \
    X(WAITED,          "waiter was answered")                           \
    X(WAITER_LIMIT,    "waiter at its limit")                           \
    X(WAITER_LEFT,     "waiter went away")                              \
    X(BUSY,            "queue full")                                    \
    X(CLOSED,          "refused: engine closing")                       \
    X(CLEAN_CLOSE,     "engine closed in good order")                   \
    X(SILENT_CLAIM,    "claim without any answer")                      \
    X(SILENT_DEED,     "action without any answer")                       \
    X(NO_MEMORY,       "store refused for want of memory")              \
    X(ANSWER_LOST,     "applied, and the answer was lost")              \
    X(LATE_COPY,       "a late copy was applied")                       \
    X(GROUPED,         "several operations in one batch")               \
    X(MARKED,          "completed without the body")                    \
    X(THROTTLED,       "upstream did nothing and said so")              \
    X(NOT_SENT,        "upstream could not be reached")                 \
    X(CUT_OFF,         "upstream cut off after sending")                \
    X(CLIENT_GONE,     "client went away")                              \
    X(PAUSED,          "gateway paused past a lease")                   \
    X(DEDUPLICATED,    "upstream recognised the key")                   \
    X(PROBED,          "probe: applied, and recorded")                  \
    X(PROBED_NOTHING,  "probe: nothing yet")                            \
    X(PROBED_LATE,     "probe: another decision was first")                \
    X(EXPIRED,         "told \"too old\", nothing recorded")              \
    X(RESUMED,         "ended in another process, by its token")        \
    X(ENDED_AGAIN,     "the same end told twice")
/* clang-format on */

enum seen {
#define SEEN_ENUM(name, text) SEEN_##name,
    SEEN(SEEN_ENUM)
#undef SEEN_ENUM
        SEEN_COUNT
};

/* ---- Planted in the world, not in the code ----------------------------- */

enum flaw {
    NO_FLAW,
    REPLY_FIRST,      /* the adapter answers before the record is durable    */
    FAIL_OPEN,        /* the adapter sends although the store was silent     */
    RELEASE_ON_RESET, /* the adapter frees the key when it was cut off       */
    TORN_CLAIM,       /* the store reads, and writes later                */
    LOSSY_FAILOVER,   /* the store forgets what it acknowledged           */
    PROXY_RETRY,      /* something behind us repeats the request          */
    TAKEOVER_NAIVE,   /* takeover, and the upstream knows no key          */
    TAKEOVER_FENCE,   /* ... but refuses lower attempt numbers            */
    REOPEN_BY_SIGHT,  /* the operator saw no execution, so he frees it    */
    PROBE_FREES,      /* so does a probe                                  */
    PROBE_ANY_RECORD, /* a probe is answered with another record's effect */
    FLAW_COUNT
};

/* ---- The parts --------------------------------------------------------- */

/* Drawn per seed: some faults off, some frequent; rates per million. */
struct swarm {
    unsigned request_lost, answer_lost, repeated, slow, refused;
    unsigned response_lost, reset, unsent, throttled, failing, unstorable;
    unsigned crash, pause, cut, jump, close, drop, impatient, other_request;
    unsigned operator, resumed;
    unsigned two_phase, takeover, mixed, retry, dedup, waits, probes, ages;
    uint64_t store_ms, driver_ms, upstream_ms, response_ms, client_ms;
    uint64_t lease_ms, keep_ms, patience_ms, wait_ms, reap_ms, drain_ms;
    uint32_t queue_max, waiters_max;
};

enum event_kind {
    E_CLIENT,    /* who: client; does its next try                     */
    E_GONE,      /* who: client; is out of patience with call `n`      */
    E_WAKE,      /* who: gateway; its engine wakes up                  */
    E_STORE,     /* data: a batch arrives at the store                 */
    E_ANSWER,    /* data: a batch comes back                           */
    E_NO_ANSWER, /* who: gateway; the driver gives up call `n`         */
    E_DONE,      /* who: call; the adapter hears of it, value: answer     */
    E_UPSTREAM,  /* who: call; the request arrives                     */
    E_RESPONSE,  /* who: call; value: what came back                   */
    E_CUT_OFF,   /* who: call; nothing came back                       */
    E_PROBE,     /* who: call; its question arrives at the upstream    */
    E_PROBED,    /* who: call; value: 1 "applied"                      */
    E_DECIDED,   /* who: call; value: what its RESOLVE was answered    */
    E_CLOSED,    /* who: gateway; its engine has ended                 */
    E_OPEN,      /* who: gateway; starts anew                          */
    E_FAULT,
    E_OPERATOR
};

struct event {
    uint64_t at, order;
    enum event_kind kind;
    int who;
    unsigned life, n;
    uint64_t value;
    struct batch *data;
};

struct item {
    once_op op;
    uint8_t bytes[BYTES], note[NOTE];
};

/* Questions on their way to the store, or answers on their way back. */
struct batch {
    int gateway; /* -1: the operator */
    unsigned life, number;
    uint64_t forget_ms; /* once_store.forget_ms when it was sent */
    int torn;           /* planted: looked, and has not written yet */
    unsigned n;
    struct item items[];
};

struct fiber {
    ucontext_t context;
    void *stack;
    void *(*run)(void *argument);
    void *argument;
    void *fake; /* AddressSanitizer's */
};

enum doing { GONE, ASLEEP, ASKING, AWAKE, ENDED };

/* One process: an adapter, an engine and its driver of the store. */
struct gateway {
    struct world *world;
    int index;
    unsigned life;
    uint64_t paused_till, cut_till;
    once_engine *engine;
    struct fiber thread, closer;
    void *(*thread_run)(void *argument);
    void *thread_argument;
    enum doing doing;
    unsigned naps;  /* numbers the sleeps */
    int waking;     /* an E_WAKE for this sleep is under way */
    unsigned asked; /* numbers the calls of the driver */
    once_op **ops;
    size_t n_ops;
    int answered; /* what the driver's call returns */
    struct batch *answer;
    int closing, closed;
    /* When it saw the store's clock last, and before that; 0: never. */
    uint64_t looked_ms, looked_before_ms;
    struct block *blocks;
    once_store store; /* the driver */
};

enum call_phase { CLAIMING, SENT, SAYING, OVER };

struct call {
    int client, gateway, name, print;
    unsigned life, stamp, policy, period;
    enum call_phase phase;
    once_attempt *attempt;
    uint8_t token[ONCE_TOKEN_SIZE];
    uint64_t begun_ms, action_ms, wait_ms;
    uint32_t number;
    uint64_t fence; /* of its grant, with the number what a token holds */
    int doubt, kind, ended_again;
    int cancelled, executed, fenced, failed_open, action, reopened;
    int refused; /* the store had no memory, perhaps after an unknown try */
    int untold;  /* its outcome is known, and its client was told "unknown" */
    uint8_t bytes[BYTES];
    struct world *world;
    int probed;      /* it, or the one it stands for, has asked       */
    uint64_t unsure; /* the fence that its probe is about             */
    once_op decision;
};

struct client {
    int done, operations, name, print;
    unsigned stamp; /* of the try that is waited for */
    int tries;
};

struct outcome {
    uint8_t bytes[BYTES];
    int print, final;
    unsigned period;
    uint8_t token[ONCE_TOKEN_SIZE];
};

/* What is known of one name from outside. */
struct ghost {
    unsigned period;
    int open[OPEN_MAX]; /* calls */
    int n_open;
    struct outcome outcomes[OUTCOMES_MAX];
    int n_outcomes;
    int recorded; /* a final result stands in this period */
    uint64_t completed_ms;
    /* Where the clock stood when it was completed: since when, and until when;
     * 0: it still stands there. */
    uint64_t stood_ms, left_ms;
    int unseen;          /* nobody is said to notice that: see note_look() */
    uint32_t executions; /* in this period */
    int early;           /* a result of it was forgotten before its time */
    int happened;        /* one of them was a success */
    uint32_t highest;    /* attempt number the upstream has seen */
    uint64_t reopened;   /* the fence that an operator reopened, or 0 */
    uint32_t grants;     /* highest attempt number in this period */
    int first;           /* outcome told first in this period, or -1 */
    uint8_t deduplicated[BYTES];
    int known; /* the upstream has `deduplicated` */
};

struct row {
    int used;
    uint8_t name[ONCE_NAME_SIZE];
    once_record r;
    uint8_t bytes[BYTES], note[NOTE];
};

struct world {
    uint64_t seed, random[2], now, order, events, end;
    uint64_t born_ms;  /* when all keys were made, by the true time */
    int64_t clock_off; /* the store's clock, and every host's, against now */
    struct swarm swarm;
    enum flaw flaw;
    int healing, trace, still;
    struct event *heap;
    int n_events;
    struct row rows[NAMES], replica[NAMES];
    uint64_t fence, highest_fence;
    once_store_time time; /* as a gateway has put it */
    uint64_t jumped_ms;   /* when the clock was set last ...              */
    int looked;           /* ... and somebody has looked at it since,     */
    int looked_before;    /* ... or had before the last look              */
    struct gateway gateways[GATEWAYS];
    struct client clients[CLIENTS];
    struct call *calls;
    int n_calls;
    uint32_t executions;
    struct ghost ghosts[NAMES];
    uint8_t names[NAMES][ONCE_NAME_SIZE];
    uint8_t prints[PRINTS][ONCE_FINGERPRINT_SIZE];
    unsigned periods[FENCES_MAX]; /* of retention, by fence */
    uint64_t shown[NAMES];        /* fences that the operator looked at */
    struct gateway *inside;       /* whose code is running */
    ucontext_t main, escape;
    const void *main_stack; /* for AddressSanitizer */
    size_t main_size;
    char why[200];
    uint64_t seen[SEEN_COUNT];
};

/* random.c */
void random_begin(struct world *w, uint64_t seed);
uint64_t draw(struct world *w);
uint64_t below(struct world *w, uint64_t limit);
/* 1 with `ppm` in a million; never while healing. */
int fault(struct world *w, unsigned ppm);
int chance(struct world *w, unsigned ppm);
uint64_t around(struct world *w, uint64_t mean);

/* events.c */
void push(struct world *w, uint64_t in_ms, struct event e);
struct event pop(struct world *w);
void events_clear(struct world *w);

/* machine.c */
void *outside_alloc(size_t size); /* never the gateway's; free() ends it */
void machine_begin(struct world *w);
void machine_end(struct world *w);
int gateway_open(struct world *w, struct gateway *g);
void gateway_crash(struct world *w, struct gateway *g);
void gateway_close(struct world *w, struct gateway *g);
void gateway_closed(struct world *w, struct gateway *g);
void gateway_run(struct world *w, struct gateway *g);
/* Bytes that the process still holds. */
size_t gateway_blocks(const struct gateway *g);
/* Called by the driver in the fiber: ends when an answer has come. */
void fiber_wait(struct world *w, struct gateway *g, enum doing why);

/* store.c */
extern const struct once_store_ops sim_store;
uint64_t store_clock(const struct world *w);
void store_arrives(struct world *w, struct event *e);
void store_answers(struct world *w, struct event *e);
void store_ask(struct world *w, const once_op *op);
struct row *store_row(struct world *w, const uint8_t *name);

/* ghosts.c */
void check_applied(struct world *w, const struct batch *b, const once_op *op,
                   const once_record *was, const once_record *is, int changed);
void check_asked(struct world *w, const once_op *op);
void check_answered(struct world *w, const once_op *op);
void check_sent(struct world *w, int call, uint64_t fence);
void check_executed(struct world *w, int call);
void note_jump(struct world *w); /* the clock is about to be set */
void note_look(struct world *w, struct gateway *g); /* ... is looked at */
void note_unput(struct world *w, struct gateway *g, int back);
void check_told(struct world *w, const struct call *c, const uint8_t *bytes);
void check_end(struct world *w);
int gauges_at_zero(struct world *w);

/* gateway.c */
void call_begin(struct world *w, int client, int gateway);
void call_done(struct world *w, struct event *e);
void call_upstream(struct world *w, struct event *e);
void call_response(struct world *w, struct event *e);
void call_cut_off(struct world *w, struct event *e);
void call_begin_again(struct world *w, const struct call *c);
void call_over(struct world *w, struct call *c, int again);
void client_goes(struct world *w, int client);
void client_gone(struct world *w, struct event *e);

/* probe.c */
/* 1: it asks, and its client waits. */
int probe_begin(struct world *w, struct call *c, const once_record *r);
void probe_arrives(struct world *w, struct event *e);
void probe_answered(struct world *w, struct event *e);
void probe_decided(struct world *w, struct event *e);

/* sim.c */
void violated(struct world *w, const char *rule, int name, const char *text);
void saw(struct world *w, enum seen what);
void trace(struct world *w, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

#endif /* TEST_SIM_H */
