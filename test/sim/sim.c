/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sim.c - seeds, one after the other.
 *
 *    sim FIRST COUNT [FLAW]     stops at the first broken rule, status 1
 *    sim --trace SEED [FLAW]    the same run again, told event by event
 *    sim --test FIRST COUNT     the same as TAP, and every seen-counter must
 *                               have moved: a check that never met its fault
 *                               proves nothing
 *    sim --flaws                the names of what can be planted in the world
 *
 * A run has three parts: faults, while clients work; healing, after which all
 * must converge (L1, L2); and the closing of every engine in good order, after
 * which nothing may be left.
 */
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "calls/core/transition.h"
#include "calls/http/http.h"

#include "t.h"

#include "sim.h"

enum {
    START_MS = 1000000,
    FAULTS_MS = 30000,
    HEAL_MS = 120000,
    STILL_MAX = 20000, /* events in one millisecond */
    JUMP_MS = 1500     /* less is no jump, but a clock that drifts */
};

void saw(struct world *w, enum seen what)
{
    w->seen[what]++;
}

void violated(struct world *w, const char *rule, int name, const char *text)
{
    if (w->why[0] != '\0')
        return;
    snprintf(w->why, sizeof(w->why), "%s: %s (name %d, %llu ms)", rule, text,
             name, (unsigned long long)(w->now - START_MS));
    trace(w, "BROKEN %s", w->why);
}

void trace(struct world *w, const char *format, ...)
{
    va_list args;

    if (!w->trace)
        return;
    printf("# %8llu  ", (unsigned long long)(w->now - START_MS));
    va_start(args, format);
    (void)vprintf(format, args);
    va_end(args);
    printf("\n");
}

/* ---- A new world ------------------------------------------------------- */

static unsigned pick(struct world *w, unsigned high)
{
    switch (below(w, 3)) {
    case 0:
        return 0;
    case 1:
        return high / 8;
    default:
        return high;
    }
}

static void draw_faults(struct world *w, struct swarm *s)
{
    s->request_lost = pick(w, 100000);
    s->answer_lost = pick(w, 100000);
    s->repeated = pick(w, 50000);
    s->slow = pick(w, 50000);
    s->refused = pick(w, 30000);
    s->response_lost = pick(w, 100000);
    s->reset = pick(w, 50000);
    s->unsent = pick(w, 50000);
    s->throttled = pick(w, 50000);
    s->failing = pick(w, 200000);
    s->unstorable = pick(w, 50000);
    s->crash = pick(w, 40000);
    s->pause = pick(w, 40000);
    s->cut = pick(w, 40000);
    s->jump = pick(w, 20000);
    s->close = pick(w, 20000);
    s->drop = pick(w, 30000);
    s->other_request = pick(w, 100000);
    s->operator= pick(w, 500000);
    s->resumed = pick(w, 300000);
}

static void draw_options(struct world *w, struct swarm *s)
{
    s->two_phase = (unsigned)below(w, 2);
    s->takeover = below(w, 4) == 0;
    s->mixed = !s->takeover && below(w, 5) == 0;
    s->dedup = s->takeover || below(w, 2);
    s->retry = below(w, 3) == 0;
    s->waits = (unsigned)below(w, 2);
    s->store_ms = 1 + below(w, 10);
    s->driver_ms = 20 + below(w, 200);
    s->upstream_ms = 1 + below(w, 100);
    s->response_ms = 200 + below(w, 3000);
    s->client_ms = 300 + below(w, 4000);
    s->lease_ms = 200 + below(w, 2000);
    s->keep_ms = s->lease_ms + 2000 + below(w, 60000);
    s->patience_ms = 100 + below(w, 1000);
    s->wait_ms = 50 + below(w, 3000);
    s->reap_ms = s->lease_ms / 4 + below(w, s->lease_ms / 4);
    s->drain_ms = 100 + below(w, 2000);
    s->queue_max = below(w, 4) == 0 ? 1 : 1000;
    s->waiters_max = below(w, 4) == 0 ? 1 : 2 * CALLS_MAX;
    s->probes = (unsigned)below(w, 2);
    s->ages = below(w, 4) == 0;
    if (s->ages)
        s->keep_ms = s->lease_ms + AGE_SLACK_MS + 1000 + below(w, 8000);
    if (w->flaw == TAKEOVER_NAIVE || w->flaw == TAKEOVER_FENCE) {
        s->takeover = 1;
        s->mixed = s->dedup = 0;
    }
}

static void begin(struct world *w, uint64_t seed)
{
    int i;

    w->seed = seed;
    random_begin(w, seed);
    w->now = START_MS;
    w->end = w->now + FAULTS_MS;
    w->order = 0;
    w->clock_off = 0;
    w->born_ms = store_clock(w);
    memset(&w->time, 0, sizeof(w->time));
    w->jumped_ms = w->now;
    w->looked = 0;
    w->still = 0;
    w->healing = 0;
    w->n_calls = 0;
    w->executions = 0;
    w->fence = w->highest_fence = 0;
    w->why[0] = '\0';
    w->inside = NULL;
    memset(w->rows, 0, sizeof(w->rows));
    memset(w->replica, 0, sizeof(w->replica));
    memset(w->clients, 0, sizeof(w->clients));
    memset(w->ghosts, 0, sizeof(w->ghosts));
    memset(w->shown, 0, sizeof(w->shown));
    memset(w->periods, 0, sizeof(w->periods));
    memset(&w->swarm, 0, sizeof(w->swarm));
    draw_faults(w, &w->swarm);
    draw_options(w, &w->swarm);
    for (i = 0; i < NAMES; i++)
        w->ghosts[i].first = -1;
    for (i = 0; i < CLIENTS; i++)
        push(w, below(w, 200), (struct event){.kind = E_CLIENT, .who = i});
    for (i = 0; i < GATEWAYS; i++) {
        w->gateways[i].world = w;
        w->gateways[i].index = i;
        w->gateways[i].paused_till = w->gateways[i].cut_till = 0;
        push(w, 0,
             (struct event){
                 .kind = E_OPEN, .who = i, .life = w->gateways[i].life});
    }
    push(w, 1, (struct event){.kind = E_FAULT});
    push(w, 1, (struct event){.kind = E_OPERATOR});
}

/* Two tenants send the same keys with the same bodies. */
static void make_identities(struct world *w)
{
    static const char *const scopes[TENANTS] = {"tenant-a", "tenant-b"};
    once__fingerprint *f = NULL;
    int i, rc;

    for (i = 0; i < NAMES; i++) {
        char key[2] = {(char)('a' + i % KEYS), '\0'};
        const char *scope = scopes[i / KEYS];

        once__name((once_bytes){scope, strlen(scope)}, (once_bytes){"api", 3},
                   &(once__request_head){.of_path = 0}, (once_bytes){key, 1},
                   w->names[i]);
    }
    for (i = 0; i < PRINTS; i++) {
        rc = once__fingerprint_new(
            ONCE__COUNT_ALL, &(once__request_head){.type = {"text/plain", 10}},
            &f);
        if (rc != ONCE_OK)
            abort();
        once__fingerprint_body(f, i == 0 ? "one" : "two", 3);
        once__fingerprint_end(f, w->prints[i]);
        once__fingerprint_free(f);
    }
}

/* ---- Faults ------------------------------------------------------------ */

static void note_crash(struct world *w, const struct gateway *g)
{
    int i, k;

    for (i = 0; i < NAMES; i++)
        for (k = 0; k < w->n_calls; k++)
            if ((w->rows[i].r.state == ONCE_CLAIMED ||
                 w->rows[i].r.state == ONCE_DISPATCHED) &&
                w->calls[k].gateway == g->index &&
                w->calls[k].life == g->life &&
                memcmp(w->calls[k].token, w->rows[i].r.token,
                       ONCE_TOKEN_SIZE) == 0)
                saw(w, SEEN_OWNER_CRASHED);
}

static void planted_failover(struct world *w)
{
    if (w->flaw != LOSSY_FAILOVER)
        return;
    if (chance(w, 100000))
        memcpy(w->replica, w->rows, sizeof(w->rows));
    else if (chance(w, 20000))
        memcpy(w->rows, w->replica, sizeof(w->rows));
}

static void gateway_fault(struct world *w, struct gateway *g)
{
    const struct swarm *s = &w->swarm;

    if (g->engine == NULL)
        return;
    if (fault(w, s->crash)) {
        note_crash(w, g);
        gateway_crash(w, g);
        push(w, around(w, 200),
             (struct event){.kind = E_OPEN, .who = g->index, .life = g->life});
        return;
    }
    if (fault(w, s->pause)) {
        uint64_t ms = below(w, 4 * s->lease_ms);

        if (ms > s->lease_ms)
            saw(w, SEEN_PAUSED);
        g->paused_till = w->now + ms;
    }
    if (fault(w, s->cut))
        g->cut_till = w->now + below(w, 4 * s->lease_ms);
    if (fault(w, s->close) && !g->closing && g->paused_till <= w->now)
        gateway_close(w, g);
}

static void faults(struct world *w)
{
    int64_t jump;

    if (w->healing)
        return;
    gateway_fault(w, &w->gateways[below(w, GATEWAYS)]);
    if (fault(w, w->swarm.jump)) {
        jump = JUMP_MS + (int64_t)below(w, 8000);
        note_jump(w);
        /* All clocks behind at once are no time that a key could be held to. */
        if (draw(w) >> 40 & 1 ||
            (w->swarm.ages && w->clock_off - jump < -AGE_SLACK_MS / 2))
            w->clock_off += jump;
        else
            w->clock_off -= jump;
        trace(w, "the clock jumps to %lld ms", (long long)w->clock_off);
    }
    planted_failover(w);
    push(w, 10 + below(w, 40), (struct event){.kind = E_FAULT});
}

/* ---- The operator ------------------------------------------------------ */

static void planted_reopen(struct world *w, int name)
{
    struct row *row = store_row(w, w->names[name]);

    if (w->flaw == REOPEN_BY_SIGHT && row->r.state == ONCE_INDETERMINATE &&
        w->ghosts[name].executions == 0)
        memset(&row->r, 0, sizeof(row->r));
}

static void decide(struct world *w, int name)
{
    uint32_t n = ++w->executions;
    uint8_t bytes[BYTES] = {(uint8_t)(1 + name / KEYS), (uint8_t)(name % KEYS)};
    once_op op;

    memset(&op, 0, sizeof(op));
    memcpy(op.name, w->names[name], ONCE_NAME_SIZE);
    op.fence = w->shown[name];
    op.keep_ms = w->swarm.keep_ms;
    op.verb = ONCE_OP_REOPEN;
    if (!(w->swarm.takeover && w->swarm.dedup) || chance(w, 500000)) {
        op.verb = ONCE_OP_RESOLVE;
        op.kind = chance(w, 500000) ? ONCE_SUCCESS : ONCE_FAILURE;
        memcpy(bytes + 4, &n, sizeof(n));
        bytes[2] = 9;
        op.result = (once_bytes){bytes, BYTES};
    }
    op.note = (once_bytes){&n, NOTE}; /* tells his decisions apart */
    w->shown[name] = 0;
    store_ask(w, &op);
}

/* He looks at one moment and decides at another. */
static void operator_acts(struct world *w)
{
    int name = (int)below(w, NAMES);
    const once_record *r = &store_row(w, w->names[name])->r;

    if (!w->healing)
        push(w, 20 + below(w, 200), (struct event){.kind = E_OPERATOR});
    planted_reopen(w, name);
    if (!fault(w, w->swarm.operator))
        return;
    if (w->shown[name] != 0)
        decide(w, name);
    else if (r->state == ONCE_INDETERMINATE)
        w->shown[name] = r->fence;
}

/* ---- Events ------------------------------------------------------------ */

static void opens(struct world *w, struct event *e)
{
    struct gateway *g = &w->gateways[e->who];

    if (g->life == e->life && g->engine == NULL && gateway_open(w, g) != 0)
        violated(w, "SIM", -1, "an engine does not open");
}

static void closed(struct world *w, struct event *e)
{
    struct gateway *g = &w->gateways[e->who];

    gateway_closed(w, g);
    push(w, around(w, 50),
         (struct event){.kind = E_OPEN, .who = g->index, .life = g->life});
}

static void wakes(struct world *w, struct event *e)
{
    struct gateway *g = &w->gateways[e->who];

    if (g->doing == ASLEEP && g->naps == e->n)
        gateway_run(w, g);
}

/* The process that an event reaches, or NULL: what happens in a process that
 * is stopped happens when it goes on, and in a dead one not at all. */
static struct gateway *process_of(struct world *w, const struct event *e)
{
    switch (e->kind) {
    case E_WAKE:
    case E_ANSWER:
    case E_NO_ANSWER:
    case E_CLOSED:
        return &w->gateways[e->who];
    case E_DONE:
    case E_RESPONSE:
    case E_CUT_OFF:
    case E_PROBED:
    case E_DECIDED:
        return &w->gateways[w->calls[e->who].gateway];
    default:
        return NULL;
    }
}

/* What comes back from a service finds another process, if its own has died. */
static int outlives(const struct event *e)
{
    return e->kind == E_RESPONSE || e->kind == E_CUT_OFF;
}

static void happens(struct world *w, struct event *e)
{
    switch (e->kind) {
    case E_CLIENT:
        client_goes(w, e->who);
        break;
    case E_GONE:
        client_gone(w, e);
        break;
    case E_WAKE:
        wakes(w, e);
        break;
    case E_STORE:
        store_arrives(w, e);
        break;
    case E_ANSWER:
    case E_NO_ANSWER:
        store_answers(w, e);
        break;
    case E_DONE:
        call_done(w, e);
        break;
    case E_UPSTREAM:
        call_upstream(w, e);
        break;
    case E_RESPONSE:
        call_response(w, e);
        break;
    case E_CUT_OFF:
        call_cut_off(w, e);
        break;
    case E_PROBE:
        probe_arrives(w, e);
        break;
    case E_PROBED:
        probe_answered(w, e);
        break;
    case E_DECIDED:
        probe_decided(w, e);
        break;
    case E_CLOSED:
        closed(w, e);
        break;
    case E_OPEN:
        opens(w, e);
        break;
    case E_FAULT:
        faults(w);
        break;
    case E_OPERATOR:
        operator_acts(w);
        break;
    }
}

static void step(struct world *w)
{
    struct event e = pop(w);
    struct gateway *g = process_of(w, &e);

    w->still = e.at == w->now ? w->still + 1 : 0;
    if (w->still > STILL_MAX)
        violated(w, "L1", -1, "time stands still: somebody never sleeps");
    w->now = e.at;
    w->events++;
    if (g != NULL && e.life != g->life && !outlives(&e)) {
        free(e.data);
        return;
    }
    if (g != NULL && e.life == g->life && g->paused_till > w->now) {
        push(w, g->paused_till - w->now, e);
        return;
    }
    happens(w, &e);
}

/* ---- A run ------------------------------------------------------------- */

static void heal(struct world *w)
{
    int i;

    trace(w, "from here on nothing fails any more");
    w->healing = 1;
    w->end = w->now + HEAL_MS;
    for (i = 0; i < GATEWAYS; i++)
        w->gateways[i].paused_till = w->gateways[i].cut_till = 0;
}

static int clients_done(const struct world *w)
{
    int i;

    for (i = 0; i < CLIENTS; i++)
        if (!w->clients[i].done)
            return 0;
    return 1;
}

static int calls_over(const struct world *w)
{
    int i;

    for (i = 0; i < w->n_calls; i++)
        if (w->calls[i].attempt != NULL &&
            w->calls[i].life == w->gateways[w->calls[i].gateway].life)
            return 0;
    return 1;
}

static int settled(struct world *w)
{
    int i;

    for (i = 0; i < w->n_events; i++)
        if (w->heap[i].kind == E_STORE)
            return 0; /* a late copy may still be granted */
    for (i = 0; i < NAMES; i++)
        if (w->rows[i].r.state == ONCE_CLAIMED ||
            w->rows[i].r.state == ONCE_DISPATCHED)
            return 0;
    for (i = 0; i < GATEWAYS; i++)
        if (w->gateways[i].doing != ASLEEP || w->gateways[i].closing ||
            w->gateways[i].engine == NULL)
            return 0;
    return calls_over(w) && gauges_at_zero(w);
}

static void converge(struct world *w)
{
    while (w->n_events > 0 && w->why[0] == '\0') {
        if (!w->healing && (w->now >= w->end || clients_done(w)))
            heal(w);
        if (w->healing && clients_done(w) && settled(w))
            return;
        if (w->healing && w->now > w->end)
            break;
        step(w);
    }
    if (!clients_done(w))
        violated(w, "L1", -1, "a client never got an answer");
    if (!calls_over(w))
        violated(w, "L1", -1, "an attempt never ended");
    if (!settled(w))
        violated(w, "L2", -1, "it never came to rest");
}

/* What is freed while it owns nothing takes a turn of the engine. */
static void idle(struct world *w, uint64_t ms)
{
    uint64_t until = w->now + ms;

    while (w->n_events > 0 && w->why[0] == '\0' && w->heap[0].at <= until)
        step(w);
}

static void close_all(struct world *w)
{
    unsigned lives[GATEWAYS];
    int i, n = 0;

    for (i = 0; i < GATEWAYS; i++) {
        lives[i] = w->gateways[i].life;
        gateway_close(w, &w->gateways[i]);
    }
    while (n < GATEWAYS && w->n_events > 0 && w->why[0] == '\0') {
        step(w);
        for (i = n = 0; i < GATEWAYS; i++)
            n += w->gateways[i].life != lives[i];
    }
}

static void play(struct world *w)
{
    /* A failed assertion comes back to here. */
    (void)getcontext(&w->escape);
    if (w->why[0] != '\0')
        return;
    converge(w);
    idle(w, 2000);
    if (w->why[0] != '\0')
        return;
    check_end(w);
    close_all(w);
}

static int run_seed(struct world *w, uint64_t seed)
{
    machine_begin(w);
    begin(w, seed);
    play(w);
    machine_end(w);
    events_clear(w);
    return w->why[0] == '\0';
}

/* ---- The program ------------------------------------------------------- */

static const char *const flaws[FLAW_COUNT] = {
    [NO_FLAW] = "none",
    [REPLY_FIRST] = "reply_first",
    [FAIL_OPEN] = "fail_open",
    [RELEASE_ON_RESET] = "release_on_reset",
    [TORN_CLAIM] = "torn_claim",
    [LOSSY_FAILOVER] = "lossy_failover",
    [PROXY_RETRY] = "proxy_retry",
    [TAKEOVER_NAIVE] = "takeover_naive",
    [TAKEOVER_FENCE] = "takeover_fence",
    [REOPEN_BY_SIGHT] = "reopen_by_sight",
    [PROBE_FREES] = "probe_frees",
    [PROBE_ANY_RECORD] = "probe_any_record"};

static const char *const seen_text[SEEN_COUNT] = {
#define SEEN_TEXT(name, text) text,
    SEEN(SEEN_TEXT)
#undef SEEN_TEXT
};

static int parse_flaw(const char *name, enum flaw *out)
{
    int i;

    for (i = 0; i < FLAW_COUNT; i++)
        if (strcmp(flaws[i], name) == 0) {
            *out = (enum flaw)i;
            return 1;
        }
    fprintf(stderr, "sim: no such flaw: %s\n", name);
    return 0;
}

static struct world *make_world(void)
{
    struct world *w = calloc(1, sizeof(*w));

    if (w == NULL)
        abort();
    w->heap = calloc(EVENTS_MAX, sizeof(*w->heap));
    w->calls = calloc(CALLS_MAX, sizeof(*w->calls));
    make_identities(w);
    return w;
}

static void free_world(struct world *w)
{
    int i;

    for (i = 0; i < GATEWAYS; i++) {
        free(w->gateways[i].thread.stack);
        free(w->gateways[i].closer.stack);
    }
    free(w->heap);
    free(w->calls);
    free(w);
}

static uint64_t run_seeds(struct world *w, uint64_t first, uint64_t count)
{
    clock_t start = clock();
    uint64_t seed = first, ran;
    double seconds;
    int ok = 1;

    while (ok && seed < first + count)
        ok = run_seed(w, seed++);
    ran = seed - first;
    seconds = (double)(clock() - start) / CLOCKS_PER_SEC;
    printf("# seeds=%llu events=%llu sec=%.1f seeds/s=%.0f ",
           (unsigned long long)ran, (unsigned long long)w->events, seconds,
           (double)ran / (seconds > 0 ? seconds : 1e-9));
    if (ok)
        printf("clean\n");
    else
        printf("seed %llu %s\n", (unsigned long long)w->seed, w->why);
    fflush(stdout);
    return ok ? 0 : ran;
}

static void print_seen(const struct world *w)
{
    int i;

    for (i = 0; i < SEEN_COUNT; i++)
        printf("# %12llu  %s\n", (unsigned long long)w->seen[i], seen_text[i]);
}

static int run_test(struct world *w, uint64_t first, uint64_t count)
{
    char name[120];
    int i;

    t__failed += run_seeds(w, first, count) != 0;
    printf("%s %d - seeds %llu to %llu keep every rule\n",
           t__failed ? "not ok" : "ok", ++t__number, (unsigned long long)first,
           (unsigned long long)(first + count - 1));
    for (i = 0; i < SEEN_COUNT; i++) {
        snprintf(name, sizeof(name), "seen: %s (%llu)", seen_text[i],
                 (unsigned long long)w->seen[i]);
        t__failed += w->seen[i] == 0;
        printf("%s %d - %s\n", w->seen[i] == 0 ? "not ok" : "ok", ++t__number,
               name);
    }
    return t_done();
}

/* Seeds that once showed something: a number at the start of a line. */
static int run_known(struct world *w, const char *path)
{
    char line[256];
    FILE *file = fopen(path, "r");
    uint64_t seed;
    int bad;

    if (file == NULL) {
        fprintf(stderr, "sim: %s cannot be read\n", path);
        return 2;
    }
    while (fgets(line, sizeof(line), file) != NULL) {
        seed = strtoull(line, NULL, 10);
        if (seed == 0)
            continue;
        bad = run_seeds(w, seed, 1) != 0;
        t__failed += bad;
        printf("%s %d - seed %llu keeps every rule\n", bad ? "not ok" : "ok",
               ++t__number, (unsigned long long)seed);
    }
    (void)fclose(file);
    return t_done();
}

static int usage(void)
{
    fprintf(stderr, "usage: sim FIRST COUNT [FLAW] | --test FIRST COUNT | "
                    "--known FILE | --trace SEED [FLAW] | --flaws\n");
    return 2;
}

static int run_command(struct world *w, int n, char **words)
{
    int i, test = n == 4 && strcmp(words[1], "--test") == 0;

    if (n == 2 && strcmp(words[1], "--flaws") == 0) {
        for (i = 1; i < FLAW_COUNT; i++)
            printf("%s\n", flaws[i]);
        return 0;
    }
    if (n < 3 || n > 4)
        return usage();
    if (strcmp(words[1], "--known") == 0)
        return run_known(w, words[2]);
    if (test)
        return run_test(w, strtoull(words[2], NULL, 10),
                        strtoull(words[3], NULL, 10));
    if (n == 4 && !parse_flaw(words[3], &w->flaw))
        return 2;
    if (strcmp(words[1], "--trace") == 0) {
        w->trace = 1;
        return run_seeds(w, strtoull(words[2], NULL, 10), 1) != 0;
    }
    if (run_seeds(w, strtoull(words[1], NULL, 10),
                  strtoull(words[2], NULL, 10)) != 0)
        return 1;
    print_seen(w);
    return 0;
}

int main(int n, char **words)
{
    struct world *w = make_world();
    int rc = run_command(w, n, words);

    free_world(w);
    return rc;
}
