/* SPDX-License-Identifier: Apache-2.0 */
/*
 * engine.h - what the files of the engine share. Nothing of it is public.
 *
 *    any thread:  once_submit, once_*_start --> queue --+
 *    our thread:  arrive --> ready --> batch --> store --+--> end of a task
 *                              ^                 unknown |
 *                              +------ timer <-----------+
 *
 * A task is one operation and what happens with its answer. All members that
 * are not atomic belong to the engine's thread.
 *
 * The order of the files. Each calls only files that are below it, which
 * tools/check-circles checks:
 *
 *    engine    attempt         opening, closing, the thread; attempts' calls
 *      |   \    |
 *      |    drive      sync     attempts on the engine's thread; single calls
 *      |      |          |
 *    reaper  late        |      expired records; outcomes that came too late
 *       \      |        /
 *          batch                tasks and the store
 *            |
 *    clock  age  gap  witness  scan  stats   the store's clock; keys with a time;
 *               \   |   /        after a restore; what was granted; many records;
 *                \  |  /         counters and the number of records
 *                base           time, counters, events, the engine's memory
 *                 |
 *         queue  timer  spare
 *
 * cache.c stands beside them: the caller uses it before it asks.
 */
#ifndef ONCE_CALLS_ENGINE_ENGINE_H
#define ONCE_CALLS_ENGINE_ENGINE_H

#include <pthread.h>
#include <semaphore.h>
#include <stdatomic.h>
#include <stddef.h>

#include <once/store.h>

#include "calls/core/machine.h"
#include "calls/engine/queue.h"
#include "calls/engine/spare.h"
#include "calls/engine/timer.h"

#define ONCE__OF(pointer, type, member)                                        \
    ((type *)(void *)((char *)(pointer)-offsetof(type, member)))

/* ---- Tasks ------------------------------------------------------------- */

typedef struct once__task once__task;

/*
 * `end` is called once with the answer, with ONCE_ESTORE if the store gave none
 * before `until_ms`, or with ONCE_ECLOSED if the store was never asked. It may
 * free the task.
 */
struct once__task {
    struct once__node node; /* in the engine's queue, then in a ready list */
    struct once__timer timer;
    once_op *op;
    void (*end)(once_engine *e, once__task *task, int rc);
    uint64_t until_ms; /* the deadline: the store is not asked again       */
    uint64_t first_ms; /* when the store was first asked, 0: never         */
    uint32_t tries;
    uint32_t batch_limit; /* largest batch that it may be in, 0: no limit  */
    int unlimited;        /* of the reaper: `queue_max` does not count it    */
    int held; /* a claim that is asked as a READ: what it is told if the key
               * is absent, or 0                                           */
};

struct once__tasks {
    struct once__node *first, **end;
};

/*
 * The operations of owners go first: claims and reads can wait, a lease cannot.
 * Their list is short, because each owner has at most two tasks in it and has
 * waited in the other list with its claim before.
 */
enum once__queue_line { ONCE__OWNERS, ONCE__OTHERS, ONCE__LINES };

/* ---- Attempts ---------------------------------------------------------- */

/* In one of the two lists below, or in none. */
struct once__link {
    struct once__link *previous, *next;
};

enum once__listed { ONCE__UNLISTED, ONCE__WAITING, ONCE__LIVE };

/*
 * The copy of an outcome that COMPLETE repeats until it is answered. It has its
 * own task and operation, so that it can outlive its attempt: see late.c.
 */
struct once__engine_outcome {
    once__task task;
    once_op op;
    size_t size;
    uint8_t bytes[];
};

struct once_attempt {
    once_engine *engine;
    once__machine machine;
    uint32_t lease_ms, wait_ms, store_ms;
    uint64_t born_ms, max_age_ms; /* of its key; max_age_ms 0: no time */

    /* The caller's side of the call under way. */
    struct once__node call_node, stop_node, free_node;
    atomic_int stopping; /* once_attempt_cancel() was called: `stop_node` is
                          * pushed by the first; the queue does the rest    */
    int begun;           /* the claim was made                             */
    int look;            /* it never claims: once_look_start()             */
    int calling;         /* `done` is still to be called                   */
    int reason;          /* RELEASE, GIVE_UP: enum once_reason             */
    int ending;          /* 0, or the phase with which the owner ends: COMPLETE,
                 * RELEASE or GIVE_UP                                      */
    once_done *done;
    void *user;
    struct once__engine_outcome *outcome; /* or NULL */

    /* The engine's side. */
    struct once__link link;
    enum once__listed listed;
    once__task step, renewal;
    once_op step_op, renewal_op;
    int step_out, renewal_out; /* the task has not ended yet               */
    struct once__timer timer;  /* waiting: claim again; live: renew        */
    uint64_t wait_until_ms, lease_until_ms, since_ms;
    uint32_t looks; /* how often it claimed again                          */
    int stopped, freeing;

    /* What once_attempt_record() and once_attempt_left_ms() return. */
    once_record record;
    uint64_t left_ms;
    void *shown; /* the bytes of `record` */
    char label[ONCE_LABEL_MAX];
};

/* ---- The engine -------------------------------------------------------- */

/* Relaxed, but for those two: `up` is published after `unknown` and what is said
 * of an open store, `counted` after the counts of records. */
struct once__counters {
    atomic_uint_fast64_t operations, batches, unknown, repeated, busy, renewed,
        reaped, forgotten, corrupt, rollbacks, queued, live, waiting,
        oldest_since_ms, unrecorded, apply_us, latency[ONCE_LATENCY_BUCKETS];
    /* Gauges of the engine's thread. */
    atomic_uint_fast64_t up, durable, swept_at_ms, late, incarnation,
        gap_until_ms, counted, claimed, dispatched, indeterminate,
        oldest_indeterminate_ms, of_host;
};

/* Outcomes that are still repeated although their callers got "unknown". */
struct once__late {
    uint64_t held, bytes;       /* now: how many, and their size           */
    uint64_t recorded, dropped; /* from 0 when nothing was held before      */
};

/* One record that has expired. */
struct once__expired {
    once__task task;
    once_op op;
};

struct once__reaper {
    uint64_t due_ms;  /* the next step, if nothing else is to be done      */
    uint64_t must_ms; /* the next step, also if much else is to be done    */
    int forget;       /* 0: this step reaps; 1: it forgets                 */
    int begun;        /* the store's clock was read once                   */
    int full;         /* the last scan showed as many as a step may take   */
    uint32_t out;     /* tasks of this step that have not ended            */
    uint32_t done;    /* of them, those that changed a record              */
    uint32_t found;   /* records the last scan showed                      */
    struct once__expired *expired; /* reap_max of them                     */
};

/* The largest fence that this host was granted, and by which store; see
 * witness.c. */
enum {
    ONCE__WITNESS_PATH = 512,
    ONCE__WITNESS_ID = 2 * ONCE_STORE_ID_SIZE + 1
};

struct once__witness {
    char path[ONCE__WITNESS_PATH], at_path[ONCE__WITNESS_PATH]; /* "": none is
                                                                 * kept */
    char id[ONCE__WITNESS_ID];
    int bound; /* the store is the one of `at_path`, or cannot become it */
    uint64_t fence, written, flushed;
    uint64_t saved_ms, flushed_ms;
};

struct once_engine {
    atomic_uint references; /* the caller's and one for each attempt: dropped
                             * with release, and by the last with acquire   */
    atomic_int closing;     /* with `away` only whether to refuse at once: what
                             * comes to the queue after it closed is refused */
    struct once__node close_node; /* wakes the thread when it is to close  */
    once_engine_options options;
    once_store *store; /* NULL: not open yet                               */
    char *url;         /* `background`: until it is open; a secret         */
    atomic_int away;   /* opening has failed, and is tried again           */
    pthread_t thread;
    struct once__queue queue;
    struct once__spare spare;
    struct once__counters count;

    struct once__tasks ready[ONCE__LINES];
    struct once__timers timers;
    struct once__link waiting, live; /* heads of rings                     */
    struct once__scan_call *scans, **scans_end;
    struct once__reaper reaper;
    struct once__late late;
    struct once__witness witness;
    char *witness_folder; /* what options.witness points to               */
    once_clock clock;  /* what is known of the store's                      */
    int clock_unknown; /* the store's time is not known: nothing is forgotten */
    int ahead;         /* the store's clock is ahead of the elapsed time    */
    int apart;         /* it is far from this host's                        */
    once__task **batch;
    once_op **ops;
    uint64_t pending; /* tasks that have not ended                         */
    uint64_t maintained_ms, drain_until_ms, count_due_ms, random;
    int notified;          /* a caller's callback was called in this turn  */
    int needs_maintenance; /* the store was written to since the last      */
    int failing;           /* the store did not answer the last batch      */
    int restored;          /* while it was open here                       */
    char trouble[sizeof(((once_error *)NULL)->text)]; /* and why           */
    int ended; /* the store is not asked any more                          */
};

/* ---- base.c ------------------------------------------------------------- */

uint64_t once__now_ms(void); /* CLOCK_MONOTONIC */
uint64_t once__now_us(void);
/* A random time from 3/4 to 5/4 of `ms`, never 0. */
uint64_t once__jitter(once_engine *e, uint64_t ms);
void once__count(atomic_uint_fast64_t *counter, uint64_t n);
void once__uncount(atomic_uint_fast64_t *gauge);
void once__set(atomic_uint_fast64_t *gauge, uint64_t n);
/* The same, for a gauge that says something of others: who reads it by
 * once__published(), and the others then, sees what was set or counted before. */
void once__publish(atomic_uint_fast64_t *gauge, uint64_t n);
uint64_t once__published(const atomic_uint_fast64_t *gauge);
void once__count_batch(once_engine *e, uint64_t us);
/* Reserves room for one operation in the queue, from any thread. 0: it is
 * full. */
int once__queue_enter(once_engine *e);
void once__queue_leave(once_engine *e);
/* Calls the `event` function of the options. */
void once__event(once_engine *e, const char *format, ...) ONCE_PRINTF(2, 3);
int once__on_thread(const once_engine *e);
/* Queues a node for the engine's thread, from any thread, and wakes the thread
 * unless `manual_wake` is set. 0: the engine has ended, and did not take it. */
int once__send(once_engine *e, struct once__node *node);
/* On the engine's thread: ONCE_OK, or why there is no store to ask: ONCE_EAWAY
 * (not open yet) or ONCE_ECLOSED. */
int once__absent(const once_engine *e);
/* From any thread: ONCE_OK, or why nothing new can be asked. */
int once__refusal(once_engine *e, once_error *err);
/* One more reference; and one less, of which the last frees the engine. */
void once__hold(once_engine *e);
void once__drop(once_engine *e);
/* Cleared, but for its `size` bytes, or NULL; and back: NULL is accepted. */
struct once__engine_outcome *once__engine_outcome_new(once_engine *e,
                                                      size_t size);
void once__engine_outcome_free(once_engine *e, struct once__engine_outcome *o);

/* ---- clock.c ------------------------------------------------------------ */

/* Reads the store's clock, before anything is forgotten. 0: nothing may be. */
ONCE_CHECK int once__clock_look(once_engine *e);

/* ---- ask_store.c -------------------------------------------------------- */

void once__ready_init(once_engine *e);
int once__ready_any(const once_engine *e);
/* Begins a task: its operation joins one of the next batches, and is repeated
 * until it is answered or it is `until_ms`. */
void once__ask(once_engine *e, once__task *task, uint64_t until_ms);
/* Only in `end`: the store had no room or memory; asks again later. 0: it is
 * too late for that. */
int once__ask_again(once_engine *e, once__task *task);
/* The error that a caller may get for `rc`: ONCE_ESTORE in place of one that
 * says "nothing was changed", if an earlier try was not answered. */
int once__reportable(const once__task *task, int rc);
void once__batch_run(once_engine *e);
/* Ends all tasks that are ready, without asking the store. */
void once__batch_abandon(once_engine *e);
void once__store_failed(once_engine *e, const once_error *err);

/* ---- reaper.c ----------------------------------------------------------- */

ONCE_CHECK int once__reaper_init(once_engine *e);
void once__reaper_clear(once_engine *e);
void once__reaper_turn(once_engine *e, int quiet);

/* ---- late.c ------------------------------------------------------------- */

/* Goes on repeating the step that was not answered, without its attempt. */
void once__late_begin(once_engine *e, once_attempt *a);

/* ---- drive.c ------------------------------------------------------------ */

/* What arrives from a caller: a claim or the end of an owner; a cancellation;
 * the end of the handle. */
void once__call_arrived(void *engine, struct once__node *node);
void once__stop_arrived(void *engine, struct once__node *node);
void once__free_arrived(void *engine, struct once__node *node);
void once__attempt_setup(once_attempt *a);
void once__attempt_destroy(once_attempt *a);
/* Stops renewing for all owners: their records are left to the reaper. */
void once__live_abandon(once_engine *e);

/* ---- age.c -------------------------------------------------------------- */

/* 0: a key that was born then may be claimed now. Else it is to be asked as a
 * READ, and an absent one is this: ONCE_EXPIRED, ONCE_TOO_SOON, or ONCE_EAWAY
 * while the store's clock is not known. */
int once__age_holds(once_engine *e, uint64_t born_ms, uint64_t max_age_ms);
/* After a grant, in the middle of a batch: asks no store. 1: it may have come
 * too late. */
int once__age_passed(once_engine *e, uint64_t born_ms, uint64_t max_age_ms);

/* ---- gap.c -------------------------------------------------------------- */

/* 1: the store was restored, or accepted by an operator, and what is absent in
 * it may have been used. */
int once__gap_runs(const once_engine *e);
/* 1: nothing is granted now: a claim is to be asked as a READ. */
int once__gap_holds(const once_engine *e);
/* The answer of the claim, from the READ's. */
int once__gap_answer(int rc, const once_record *r);

/* ---- stats.c ------------------------------------------------------------ */

/* Counts the store's records when that is due. */
void once__gauges_turn(once_engine *e);

/* ---- witness.c ---------------------------------------------------------- */

/* ONCE_OK, ONCE_EROLLBACK, or an error of the store. */
ONCE_CHECK int once__witness_open(once_engine *e, once_error *err);
void once__witness_note(once_engine *e, uint64_t fence);
/* Once in each turn: writes it if it is time. */
void once__witness_turn(once_engine *e);
void once__witness_close(once_engine *e);

/* ---- scan.c ------------------------------------------------------------- */

/* One step of the first scan under way. 0: there is none. */
int once__scan_step(once_engine *e);
/* Ends all scans with this error. */
void once__scan_abandon(once_engine *e, int rc);

#endif /* ONCE_CALLS_ENGINE_ENGINE_H */
