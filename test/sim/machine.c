/* SPDX-License-Identifier: Apache-2.0 */
/*
 * machine.c - the machine that the engines run on: its clock, its random
 * numbers, its memory and its one processor.
 *
 * The program is linked with --wrap for each function here whose name begins
 * with __wrap_, so that the shipped objects call these. What a gateway has
 * allocated hangs on its list: a crash frees it, as the kernel would, and after
 * a close in good order the list must be empty.
 *
 * A fiber runs until it sleeps (once__queue_sleep) or asks the store; only the
 * main loop resumes one. So everything happens at one moment of the virtual
 * clock, and nothing happens at the same time.
 */
#include <assert.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <time.h>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/common_interface_defs.h>
#endif

#include "calls/engine/engine.h"

#include "sim.h"

enum { STACK = 256 * 1024, LAG_MS = 2 };

/* The one world of the process: the functions below are called by code that
 * knows nothing of it. */
static struct world *world;
/* Whose first step is next: makecontext() cannot hand over a pointer. */
static struct fiber *starting;

static struct gateway *inside(void)
{
    return world == NULL ? NULL : world->inside;
}

/* ---- Memory ------------------------------------------------------------ */

struct block {
    struct block *previous, *next;
    struct gateway *owner;
    size_t size;
};

void *__real_malloc(size_t size);
void __real_free(void *p);
void *__wrap_malloc(size_t size);
void *__wrap_calloc(size_t n, size_t size);
void __wrap_free(void *p);

static void *allocate(struct gateway *owner, size_t size)
{
    struct block *b = __real_malloc(sizeof(*b) + size);

    if (b == NULL)
        abort();
    b->owner = owner;
    b->size = size;
    b->previous = NULL;
    b->next = NULL;
    if (owner != NULL) {
        b->next = owner->blocks;
        if (b->next != NULL)
            b->next->previous = b;
        owner->blocks = b;
    }
    return b + 1;
}

void *outside_alloc(size_t size)
{
    return allocate(NULL, size);
}

void *__wrap_malloc(size_t size)
{
    return allocate(inside(), size);
}

void *__wrap_calloc(size_t n, size_t size)
{
    void *p = allocate(inside(), n * size);

    memset(p, 0, n * size);
    return p;
}

void __wrap_free(void *p)
{
    struct block *b;

    if (p == NULL)
        return;
    b = (struct block *)p - 1;
    if (b->owner != NULL) {
        if (b->previous != NULL)
            b->previous->next = b->next;
        else
            b->owner->blocks = b->next;
        if (b->next != NULL)
            b->next->previous = b->previous;
    }
    __real_free(b);
}

size_t gateway_blocks(const struct gateway *g)
{
    const struct block *b;
    size_t size = 0;

    for (b = g->blocks; b != NULL; b = b->next)
        size += b->size;
    return size;
}

/* ---- Clock, chance, assertions ----------------------------------------- */

int __real_clock_gettime(clockid_t clock, struct timespec *t);
int __wrap_clock_gettime(clockid_t clock, struct timespec *t);
ssize_t __wrap_getrandom(void *out, size_t size, unsigned flags);
void __wrap_once__host(uint8_t out[ONCE_HOST_SIZE]);
_Noreturn void __wrap___assert_fail(const char *text, const char *file,
                                    unsigned line, const char *function);

/* Monotonic clocks of two machines have nothing to do with each other. */
int __wrap_clock_gettime(clockid_t clock, struct timespec *t)
{
    uint64_t ms;

    if (inside() == NULL)
        return __real_clock_gettime(clock, t);
    ms = clock == CLOCK_REALTIME
             ? store_clock(world)
             : world->now + (uint64_t)inside()->index * 7777777;
    t->tv_sec = (time_t)(ms / 1000);
    t->tv_nsec = (long)(ms % 1000) * 1000000;
    return 0;
}

/* A process that crashes is started on the same machine again. */
void __wrap_once__host(uint8_t out[ONCE_HOST_SIZE])
{
    memset(out, 1 + inside()->index, ONCE_HOST_SIZE);
}

ssize_t __wrap_getrandom(void *out, size_t size, unsigned flags)
{
    uint8_t *p = out;
    size_t i;

    (void)flags;
    for (i = 0; i < size; i++)
        p[i] = (uint8_t)(draw(world) >> 33);
    return (ssize_t)size;
}

_Noreturn void __wrap___assert_fail(const char *text, const char *file,
                                    unsigned line, const char *function)
{
    char what[160];

    snprintf(what, sizeof(what), "%s:%u: %s: %s", file, line, function, text);
    if (world == NULL) {
        fprintf(stderr, "%s\n", what);
        abort();
    }
    violated(world, "ASSERT", -1, what);
    world->inside = NULL;
    (void)setcontext(&world->escape);
    abort();
}

/* ---- Fibers ------------------------------------------------------------ */

/* AddressSanitizer wants to know on which stack it is. */
static void begin_switch(void **fake, const void *stack, size_t size)
{
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_start_switch_fiber(fake, stack, size);
#else
    (void)fake;
    (void)stack;
    (void)size;
#endif
}

static void end_switch(void *fake, const void **stack, size_t *size)
{
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_finish_switch_fiber(fake, stack, size);
#else
    (void)fake;
    (void)stack;
    (void)size;
#endif
}

static void resume(struct world *w, struct gateway *g, struct fiber *f)
{
    void *fake = NULL;

    assert(w->inside == NULL);
    w->inside = g;
    starting = f;
    begin_switch(&fake, f->stack, STACK);
    (void)swapcontext(&w->main, &f->context);
    end_switch(fake, NULL, NULL);
    w->inside = NULL;
}

static void suspend(struct world *w, struct fiber *f)
{
    begin_switch(&f->fake, w->main_stack, w->main_size);
    (void)swapcontext(&f->context, &w->main);
    end_switch(f->fake, NULL, NULL);
}

static void first_step(void)
{
    struct fiber *f = starting;

    end_switch(NULL, &world->main_stack, &world->main_size);
    (void)f->run(f->argument);
    for (;;)
        suspend(world, f);
}

static void fiber_begin(struct fiber *f, void *(*run)(void *), void *argument)
{
    if (f->stack == NULL)
        f->stack = outside_alloc(STACK);
    f->run = run;
    f->argument = argument;
    (void)getcontext(&f->context);
    f->context.uc_stack.ss_sp = f->stack;
    f->context.uc_stack.ss_size = STACK;
    f->context.uc_link = NULL;
    makecontext(&f->context, first_step, 0);
}

void fiber_wait(struct world *w, struct gateway *g, enum doing why)
{
    assert(w->inside == g && g->doing == AWAKE);
    g->doing = why;
    suspend(w, &g->thread);
}

void gateway_run(struct world *w, struct gateway *g)
{
    g->doing = AWAKE;
    resume(w, g, &g->thread);
    if (g->doing == ENDED)
        push(
            w, below(w, LAG_MS),
            (struct event){.kind = E_CLOSED, .who = g->index, .life = g->life});
}

/* ---- The engine's thread and its sleep --------------------------------- */

int __wrap_pthread_create(pthread_t *thread, const pthread_attr_t *attr,
                          void *(*run)(void *), void *argument);
int __wrap_pthread_join(pthread_t thread, void **out);
int __wrap_pthread_setname_np(pthread_t thread, const char *name);
void __wrap_once__queue_sleep(struct once__queue *q, uint64_t until_ms);
void __wrap_once__queue_wake(struct once__queue *q);

static void *thread_of(void *gateway)
{
    struct gateway *g = gateway;

    (void)g->thread_run(g->thread_argument);
    g->doing = ENDED;
    return NULL;
}

int __wrap_pthread_create(pthread_t *thread, const pthread_attr_t *attr,
                          void *(*run)(void *), void *argument)
{
    struct gateway *g = inside();

    (void)attr;
    *thread = (pthread_t)(g->index + 1); /* nobody else's */
    g->thread_run = run;
    g->thread_argument = argument;
    fiber_begin(&g->thread, thread_of, g);
    g->doing = ASLEEP;
    g->naps++;
    g->waking = 1;
    push(world, below(world, LAG_MS),
         (struct event){
             .kind = E_WAKE, .who = g->index, .life = g->life, .n = g->naps});
    return 0;
}

int __wrap_pthread_setname_np(pthread_t thread, const char *name)
{
    (void)thread;
    (void)name;
    return 0;
}

/* Only a closer joins, and E_CLOSED resumes it. */
int __wrap_pthread_join(pthread_t thread, void **out)
{
    struct gateway *g = inside();

    (void)thread;
    (void)out;
    suspend(world, &g->closer);
    assert(g->doing == ENDED);
    return 0;
}

void __wrap_once__queue_sleep(struct once__queue *q, uint64_t until_ms)
{
    struct gateway *g = inside();
    uint64_t now = once__now_ms();

    if (atomic_load(&q->head) != NULL)
        return;
    g->naps++;
    g->waking = 0;
    if (until_ms != UINT64_MAX)
        push(world, until_ms > now ? until_ms - now : 0,
             (struct event){.kind = E_WAKE,
                            .who = g->index,
                            .life = g->life,
                            .n = g->naps});
    fiber_wait(world, g, ASLEEP);
}

void __wrap_once__queue_wake(struct once__queue *q)
{
    struct gateway *g = inside();

    (void)q;
    if (g->doing != ASLEEP || g->waking)
        return;
    g->waking = 1;
    push(world, below(world, LAG_MS),
         (struct event){
             .kind = E_WAKE, .who = g->index, .life = g->life, .n = g->naps});
}

/* ---- Gateways ---------------------------------------------------------- */

int __wrap_once_store_open(const char *url, const once_store_options *options,
                           once_error *err, once_store **out);
void __wrap_once_store_close(once_store *s);

int __wrap_once_store_open(const char *url, const once_store_options *options,
                           once_error *err, once_store **out)
{
    struct gateway *g = inside();

    (void)url;
    (void)options;
    (void)err;
    g->store = (once_store){.ops = &sim_store};
    *out = &g->store;
    return ONCE_OK;
}

void __wrap_once_store_close(once_store *s)
{
    (void)s;
}

static uint64_t clock_of(void *gateway)
{
    return store_clock(((struct gateway *)gateway)->world);
}

static void heard_event(void *gateway, const char *text)
{
    struct gateway *g = gateway;

    trace(g->world, "gateway %d says: %s", g->index, text);
    if (strstr(text, "jumped ahead") != NULL)
        saw(g->world, SEEN_DRIFT);
}

int gateway_open(struct world *w, struct gateway *g)
{
    once_engine_options o = ONCE_ENGINE_OPTIONS_INIT;
    once_error err;
    int rc;

    o.queue_max = w->swarm.queue_max;
    o.batch_max = g->index == 0 ? 1 : BATCH_MAX; /* lines form before it */
    o.waiters_max = w->swarm.waiters_max;
    o.reap_ms = (uint32_t)w->swarm.reap_ms;
    o.reap_max = 4;
    o.drain_ms = (uint32_t)w->swarm.drain_ms;
    o.event = heard_event;
    o.clock = clock_of;
    o.user = g;
    g->closing = g->closed = 0;
    w->inside = g;
    rc = once_engine_open("sim:", &o, &err, &g->engine);
    w->inside = NULL;
    trace(w, "gateway %d opens", g->index);
    return rc;
}

static void discard(struct gateway *g)
{
    while (g->blocks != NULL)
        free(g->blocks + 1);
    free(g->answer);
    g->answer = NULL;
    g->engine = NULL;
    g->doing = GONE;
    g->closing = g->closed = 0;
    g->looked_ms = 0;
    g->life++;
}

void gateway_crash(struct world *w, struct gateway *g)
{
    trace(w, "gateway %d crashes", g->index);
    discard(g);
    g->paused_till = g->cut_till = 0;
}

static void *close_engine(void *gateway)
{
    struct gateway *g = gateway;

    once_engine_close(g->engine);
    g->closed = 1;
    return NULL;
}

/* Runs to the join; the rest follows when the engine's thread has ended. */
void gateway_close(struct world *w, struct gateway *g)
{
    trace(w, "gateway %d closes", g->index);
    g->closing = 1;
    fiber_begin(&g->closer, close_engine, g);
    resume(w, g, &g->closer);
}

/* The adapter lets go of its handles, and then nothing may be left. */
void gateway_closed(struct world *w, struct gateway *g)
{
    int i;

    resume(w, g, &g->closer);
    assert(g->closed);
    w->inside = g;
    for (i = 0; i < w->n_calls; i++) {
        struct call *c = &w->calls[i];

        if (c->attempt != NULL && c->gateway == g->index && c->life == g->life)
            once_attempt_free(c->attempt);
    }
    w->inside = NULL;
    if (gateway_blocks(g) != 0)
        violated(w, "LEAK", -1, "an engine was closed and left memory behind");
    saw(w, SEEN_CLEAN_CLOSE);
    trace(w, "gateway %d is closed", g->index);
    discard(g);
}

void machine_begin(struct world *w)
{
    world = w;
}

void machine_end(struct world *w)
{
    int i;

    for (i = 0; i < GATEWAYS; i++)
        discard(&w->gateways[i]);
    world = NULL;
}
