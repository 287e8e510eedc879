/* SPDX-License-Identifier: Apache-2.0 */
/*
 * engine.h - what the files of the engine share. Nothing of it is public.
 *
 *    any thread:  once_submit, once_*_start --> queue --+
 *    our thread:  arrive --> ready --> batch --> store --+--> end of a task
 *                              ^                 unknown |
 *                              +------ timer <-----------+
 *
 * A task is one operation on its way to an answer. Whatever is not atomic here
 * belongs to the engine's thread.
 */
#ifndef ONCE_ENGINE_ENGINE_H
#define ONCE_ENGINE_ENGINE_H

#include <pthread.h>
#include <semaphore.h>
#include <stdatomic.h>
#include <stddef.h>

#include <once/store.h>

#include "core/machine.h"
#include "engine/queue.h"
#include "engine/timer.h"

#define ONCE__OF(pointer, type, member)                                        \
    ((type *)(void *)((char *)(pointer)-offsetof(type, member)))

/* ---- Tasks ------------------------------------------------------------- */

typedef struct once__task once__task;

/*
 * `end` is called once with the answer, ONCE_ESTORE if nobody answered until
 * `until_ms`, or ONCE_ECLOSED if the store was never asked. It may free the
 * task.
 */
struct once__task {
    struct once__node node; /* arrives, and links what is ready             */
    struct once__timer timer;
    once_op *op;
    void (*end)(once_engine *e, once__task *task, int rc);
    uint64_t until_ms; /* when patience ends                               */
    uint64_t first_ms; /* when the store was first asked, 0: never         */
    uint32_t tries;
    uint32_t
        company;  /* at most so many in its batch, 0: as many as there are */
    int roomless; /* the reaper's: takes no room in the queue              */
};

struct once__tasks {
    struct once__node *first, **end;
};

/*
 * What an owner asks goes before all else: claims and reads can wait, a lease
 * cannot. The first line is short, since each owner has at most two tasks in
 * it, and it had to claim before.
 */
enum once__line { ONCE__OWNERS, ONCE__OTHERS, ONCE__LINES };

/* ---- Attempts ---------------------------------------------------------- */

/* In one of the two lists below, or in none. */
struct once__link {
    struct once__link *previous, *next;
};

enum once__listed { ONCE__UNLISTED, ONCE__WAITING, ONCE__LIVE };

/*
 * The copy of an outcome that COMPLETE repeats until it is answered. It is
 * made with what it needs to go on without its attempt: see late.c.
 */
struct once__outcome {
    once__task task;
    once_op op;
    size_t size;
    uint8_t bytes[];
};

struct once_attempt {
    once_engine *engine;
    once__machine machine;
    uint32_t lease_ms, wait_ms, store_ms;

    /* The caller's side of the call under way. */
    struct once__node call, stop, bye;
    atomic_int stopping; /* once_attempt_cancel() was called               */
    int begun;           /* the claim was made                             */
    int calling;         /* `done` is outstanding                          */
    int deed;            /* what the call wants: enum once__phase          */
    once_done *done;
    void *user;
    struct once__outcome *outcome; /* or NULL */

    /* The engine's side. */
    struct once__link link;
    enum once__listed listed;
    once__task step, renewal;
    once_op step_op, renewal_op;
    int step_out, renewal_out; /* the task is on its way                   */
    struct once__timer timer;  /* waiting: look again; live: renew         */
    uint64_t wait_until_ms, lease_until_ms, since_ms;
    uint32_t looks;
    int stopped, freeing;

    /* What the caller may look at. */
    once_record record;
    uint64_t left_ms;
    void *shown; /* the bytes of `record` */
};

/* ---- The engine -------------------------------------------------------- */

struct once__counters {
    atomic_uint_fast64_t operations, batches, unknown, repeated, busy, renewed,
        reaped, forgotten, corrupt, queued, live, waiting, oldest_since_ms,
        apply_us, latency[ONCE_LATENCY_BUCKETS];
};

/* What is asked on after its caller was told "unknown". */
struct once__late {
    uint64_t bytes;             /* that are held                           */
    uint64_t recorded, dropped; /* since nothing was held                  */
};

/* One record that is over. */
struct once__over {
    once__task task;
    once_op op;
};

struct once__reaper {
    uint64_t due_ms;  /* in a quiet moment                                 */
    uint64_t must_ms; /* also when busy                                    */
    int forget;       /* this round's second half: forgetting              */
    int begun;        /* the clock was looked at once                      */
    int full;         /* the last scan showed as many as a step may take   */
    uint32_t out;     /* tasks of this step that have not ended            */
    uint32_t done;    /* of them, what came to be                          */
    uint32_t found;   /* records the last scan showed                      */
    struct once__over *over; /* reap_max of them                           */
};

struct once_engine {
    atomic_uint references; /* the caller's and one for each attempt       */
    atomic_int closing;
    struct once__node last_call; /* is queued when it closes */
    once_engine_options options;
    once_store *store; /* NULL: not open yet */
    char *url;         /* `background`: until it is open; a secret */
    atomic_int away;   /* opening has failed, and goes on */
    pthread_t thread;
    struct once__queue queue;
    struct once__counters count;

    struct once__tasks ready[ONCE__LINES];
    struct once__timers timers;
    struct once__link waiting, live; /* heads of rings                     */
    struct once__list_call *lists, **lists_end;
    struct once__reaper reaper;
    struct once__late late;
    once_clock clock; /* what is known of the store's */
    int blind;        /* it does not tell the time: nothing is forgotten   */
    int ahead;        /* it is ahead of what was seen to pass              */
    once__task **batch;
    once_op **ops;
    uint64_t pending; /* tasks that have not ended                         */
    uint64_t tended_ms, drain_until_ms, random;
    int told;    /* a callback of a caller was called in this turn          */
    int untidy;  /* the store was written to since it was last tended       */
    int failing; /* the store did not answer the last batch                 */
    char trouble[sizeof(((once_error *)NULL)->text)]; /* and why */
    int over; /* closing: nothing is asked any more                      */
};

/* engine.c */
uint64_t once__now_ms(void); /* CLOCK_MONOTONIC */
uint64_t once__now_us(void);
uint64_t once__random_below(once_engine *e, uint64_t limit);
/* `ms` give or take a quarter of it, never 0. */
uint64_t once__jitter(once_engine *e, uint64_t ms);
void once__event(once_engine *e, const char *format, ...) ONCE_PRINTF(2, 3);
/* The store is not there, or not any more: ONCE_EAWAY, ONCE_ECLOSED, or
 * ONCE_OK. On the engine's thread. */
int once__absent(const once_engine *e);
/* From any thread: ONCE_OK, or why nothing new can be asked. */
int once__refusal(once_engine *e, once_error *err);
/* From any thread: 0 if the engine has ended. Wakes as the options say. */
int once__send(once_engine *e, struct once__node *node);
int once__on_thread(const once_engine *e);
void once__hold(once_engine *e);
void once__drop(once_engine *e);

/* batch.c */
void once__ready_init(once_engine *e);
int once__ready_any(const once_engine *e);
/* Puts the task in line for the store; patience lasts for `patience_ms`. */
void once__ask(once_engine *e, once__task *task, uint64_t until_ms);
/* From `end`: the store refused for now; asks again later. 0: too late. */
int once__ask_again(once_engine *e, once__task *task);
/* What the caller may be told: no error is definite after an unknown try. */
int once__told(const once__task *task, int rc);
void once__batch_run(once_engine *e);
/* Ends all that is in line without asking. */
void once__batch_abandon(once_engine *e);
void once__store_failed(once_engine *e, const once_error *err);
void once__store_answered(once_engine *e);
/* Room in the queue for one more: from any thread. 0: full. */
int once__queue_enter(once_engine *e);
void once__queue_leave(once_engine *e);

/* claims.c */
void once__attempt_arrived(void *engine, struct once__node *node);
void once__attempt_stopped(void *engine, struct once__node *node);
void once__attempt_freed(void *engine, struct once__node *node);
void once__attempt_destroy(once_attempt *a);
void once__attempt_setup(once_attempt *a);
void once__outcome_free(once_attempt *a);
/* Forgets those that own: they are the reaper's. */
void once__live_abandon(once_engine *e);

/* late.c */
/* The step that was not answered is asked on without its attempt. */
void once__late_begin(once_engine *e, once_attempt *a);

/* list.c */
/* One step of one walk; 0: there is none. */
int once__list_step(once_engine *e);
/* Ends all walks with this error. */
void once__list_abandon(once_engine *e, int rc);

/* reaper.c */
ONCE_CHECK int once__reaper_init(once_engine *e);
void once__reaper_clear(once_engine *e);
void once__reaper_turn(once_engine *e, int quiet);

/* clock.c: before anything is forgotten. 0: nothing may be. */
ONCE_CHECK int once__clock_look(once_engine *e);

/* stats.c */
void once__count(atomic_uint_fast64_t *counter, uint64_t n);
void once__uncount(atomic_uint_fast64_t *gauge);
void once__count_batch(once_engine *e, uint64_t us);

#endif /* ONCE_ENGINE_ENGINE_H */
