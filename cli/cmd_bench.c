/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cmd_bench.c - `once bench`: what one host gets out of a store, as it is.
 *
 * Real records, since nothing else measures the same: claimed, completed, and
 * forgotten at the end. Lanes run beside each other, each a cycle at a time,
 * through the engine that every caller uses:
 *
 *    lane:  claim --> complete --+--> next name, until the time is up
 *              ^                 |
 *              +-----------------+
 *    then:  forget --> forget ... every name once
 *
 * All figures are taken on the engine's thread; the main thread waits, counts
 * for the progress bar, and waits for signals. It never leaves its records in
 * the store: also after Ctrl-C it forgets them, and says so if it could not. A
 * claim is made in two phases and completed without a dispatch, which costs as
 * much as one phase, so that even a killed bench leaves nothing indeterminate.
 */
#include "cli.h"

#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <sys/random.h>

/* clang-format off */
static const char help[] =
    "usage: once [--store URL] bench [--in-flight N] [--for TIME] [--size BYTES]\n"
    "                                [--json]\n"
    "\n"
    "Measures a store: cycles of a claim and a completion, each durable before the\n"
    "next, so many of them beside each other. It WRITES REAL RECORDS, of group\n"
    "once-bench and kept for no time, and forgets them all at the end, also after\n"
    "Ctrl-C. On a store that serves callers it takes their share of the disk: better\n"
    "measure one of its own beside it, made by once init.\n"
    "\n"
    "  --in-flight N   cycles beside each other, 1 to 1024 (64)\n"
    "  --for TIME      1s to 1h (5s)\n"
    "  --size BYTES    of each result, 0 to 1048576 (300)\n"
    "  --json          one JSON object\n"
    "\n"
    "It prints cycles a second, and how long a claim and a completion take: half\n"
    "of them no longer than p50, 99 of 100 no longer than p99, in milliseconds and\n"
    "to within 7 %. With more in flight more are made durable by one flush, so\n"
    "throughput grows, and so does the time that each takes.\n";
/* clang-format on */

enum { OPT_FLIGHT = 1, OPT_FOR, OPT_SIZE };

static const struct cli_option options[] = {
    CLI_COMMON_OPTIONS,   {"in-flight", "", OPT_FLIGHT},
    {"for", "", OPT_FOR}, {"size", "", OPT_SIZE},
    {NULL, NULL, 0},
};

enum {
    FLIGHT_MAX = 1024,
    SIZE_MAX_BYTES = 1 << 20,
    FOR_MAX_MS = 3600000,
    LEASE_MS = 30000,
    TICK_MS = 100,
    BUCKETS = 1024
};

/* Times in microseconds, 16 buckets for each power of two. */
struct times {
    uint64_t n;
    uint64_t in[BUCKETS];
};

struct bench;

struct lane {
    struct bench *b;
    once_op op;
    uint64_t at; /* which name */
    uint64_t start_us;
};

struct bench {
    const struct cli *c;
    once_engine *e;
    uint64_t flight, for_ms, size;
    uint8_t *result;
    uint64_t seed[2];
    struct lane *lanes;

    /* Written on the engine's thread, read there and when all lanes ended. */
    struct times claims, completes;
    uint64_t names; /* names used: 0 .. names-1 */
    uint64_t forgotten;
    uint64_t left; /* of these the store would not forget so many */
    atomic_int rc; /* what went wrong first: an error, or an answer */

    atomic_uint_fast64_t cycles; /* or names forgotten: for progress */
    atomic_uint_fast64_t running;
    atomic_int stop;
};

/* ---- Times --------------------------------------------------------------- */

static size_t bucket_of(uint64_t us)
{
    unsigned e;

    if (us < 16)
        return (size_t)us;
    e = 63 - (unsigned)__builtin_clzll(us);
    return (e - 3) * 16 + ((us >> (e - 4)) & 15);
}

/* The longest time that falls into it. */
static uint64_t longest_in(size_t bucket)
{
    unsigned e = (unsigned)(bucket / 16 + 3);

    if (bucket < 16)
        return bucket;
    return ((UINT64_C(16) + bucket % 16 + 1) << (e - 4)) - 1;
}

static void note_time(struct times *t, uint64_t us)
{
    t->in[bucket_of(us)]++;
    t->n++;
}

static double percentile_ms(const struct times *t, unsigned percent)
{
    uint64_t want = (t->n * percent + 99) / 100, seen = 0;
    size_t i;

    for (i = 0; i < BUCKETS; i++) {
        seen += t->in[i];
        if (seen >= want && seen > 0)
            return (double)longest_in(i) / 1000;
    }
    return 0;
}

/* ---- Lanes, on the engine's thread --------------------------------------- */

/* Names are hashes: spread as evenly as those. */
static uint64_t spread(uint64_t n)
{
    n = (n ^ (n >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    n = (n ^ (n >> 27)) * UINT64_C(0x94d049bb133111eb);
    return n ^ (n >> 31);
}

static void ask(struct lane *l, int verb)
{
    static const char group[] = "once-bench";
    const struct bench *b = l->b;
    once_op *op = &l->op;
    uint64_t fence = op->record.fence, bits;
    size_t i;

    memset(op, 0, sizeof(*op));
    op->verb = verb;
    op->kind = ONCE_SUCCESS;
    op->two_phase = 1;
    op->lease_ms = LEASE_MS;
    op->store_ms = CLI_STORE_MS;
    op->fence = verb == ONCE_OP_COMPLETE ? fence : 0;
    for (i = 0; i < 4; i++) {
        bits = spread(b->seed[i % 2] + 4 * l->at + i);
        memcpy(op->name + 8 * i, &bits, sizeof(bits));
    }
    memcpy(op->token, op->name + 8, ONCE_TOKEN_SIZE);
    memcpy(op->group, group, sizeof(group));
    if (verb == ONCE_OP_COMPLETE)
        op->result = (once_bytes){b->result, (size_t)b->size};
}

static void answered(once_op *op);

static void end(struct lane *l, int rc)
{
    int none = 0;

    if (rc != 0) {
        atomic_compare_exchange_strong(&l->b->rc, &none, rc);
        atomic_store(&l->b->stop, 1);
    }
    atomic_fetch_sub(&l->b->running, 1);
}

static void submit(struct lane *l, int verb)
{
    int rc;

    ask(l, verb);
    l->op.done = answered;
    l->op.user = l;
    l->start_us = cli_steady_us();
    rc = once_submit(l->b->e, &l->op, NULL);
    if (rc != ONCE_OK)
        end(l, rc);
}

/* Also after a signal: what was claimed is completed. */
static void next_cycle(struct lane *l)
{
    struct bench *b = l->b;

    if (atomic_load(&b->stop)) {
        end(l, 0);
        return;
    }
    l->at = b->names++;
    submit(l, ONCE_OP_CLAIM);
}

static void next_forget(struct lane *l)
{
    struct bench *b = l->b;

    if (b->forgotten == b->names || atomic_load(&b->stop)) {
        end(l, 0);
        return;
    }
    l->at = b->forgotten++;
    submit(l, ONCE_OP_FORGET);
}

static void answered(once_op *op)
{
    struct lane *l = op->user;
    struct bench *b = l->b;
    uint64_t us = cli_steady_us() - l->start_us;
    int expected = op->verb == ONCE_OP_CLAIM ? ONCE_OWNER : ONCE_OK;

    /* A gateway's reaper, or a copy of our own question, may have been first
     * to forget it; or it was never completed. */
    if (op->verb == ONCE_OP_FORGET && op->rc == ONCE_REFUSED) {
        b->left += op->record.attempt != 0;
        expected = ONCE_REFUSED;
    }
    if (op->rc != expected) {
        end(l, op->rc != 0 ? op->rc : ONCE_REFUSED);
        return;
    }
    if (op->verb == ONCE_OP_CLAIM) {
        note_time(&b->claims, us);
        submit(l, ONCE_OP_COMPLETE);
        return;
    }
    atomic_fetch_add(&b->cycles, 1);
    if (op->verb == ONCE_OP_FORGET) {
        next_forget(l);
        return;
    }
    note_time(&b->completes, us);
    next_cycle(l);
}

/* ---- The main thread ----------------------------------------------------- */

/* Waits for all lanes, or for `ms`. Returns 1 if a signal came. */
static int wait_lanes(struct bench *b, const sigset_t *signals, uint64_t ms,
                      struct cli_progress *p, double most)
{
    const struct timespec tick = {0, TICK_MS * 1000000};
    uint64_t start_us = cli_steady_us(), us = 0;

    while (atomic_load(&b->running) > 0 && us < ms * 1000) {
        uint64_t n = atomic_load(&b->cycles);

        cli_progress(p,
                     (most > 0 ? (double)n : (double)us / 1000) /
                         (most > 0 ? most : (double)ms),
                     n);
        if (sigtimedwait(signals, NULL, &tick) > 0)
            return 1;
        us = cli_steady_us() - start_us;
    }
    return 0;
}

/* Starts the lanes; the first step of each runs here, before there is anything
 * on the engine's thread that could touch the same lane. */
static void start(struct bench *b, int verb)
{
    uint64_t i, n = b->flight;

    atomic_store(&b->stop, 0);
    atomic_store(&b->cycles, 0);
    if (verb == ONCE_OP_FORGET && b->names < n)
        n = b->names;
    atomic_store(&b->running, n);
    if (verb == ONCE_OP_FORGET)
        b->forgotten = n;
    else
        b->names = n;
    for (i = 0; i < n; i++) {
        b->lanes[i].b = b;
        b->lanes[i].at = i;
        submit(&b->lanes[i], verb);
    }
}

static int measure(struct bench *b, const sigset_t *signals, double *seconds)
{
    struct cli_progress p;
    uint64_t start_us = cli_steady_us();
    int stopped;

    cli_progress_start(&p, b->c, "cycles");
    start(b, ONCE_OP_CLAIM);
    stopped = wait_lanes(b, signals, b->for_ms, &p, 0);
    *seconds = (double)(cli_steady_us() - start_us) / 1e6;
    atomic_store(&b->stop, 1);
    cli_progress_end(&p);
    (void)wait_lanes(b, signals, UINT64_MAX / 1000, &p, 0);
    cli_progress_end(&p);
    return stopped;
}

static int forget_all(struct bench *b, const sigset_t *signals)
{
    struct cli_progress p;
    int stopped;

    atomic_store(&b->rc, 0);
    cli_progress_start(&p, b->c, "forgotten");
    start(b, ONCE_OP_FORGET);
    stopped = wait_lanes(b, signals, UINT64_MAX / 1000, &p, (double)b->names);
    atomic_store(&b->stop, 1);
    cli_progress_end(&p);
    (void)wait_lanes(b, signals, UINT64_MAX / 1000, &p, (double)b->names);
    cli_progress_end(&p);
    if (!stopped && atomic_load(&b->rc) == 0 && b->left == 0)
        return CLI_OK;
    return cli_say(
        b->c, CLI_STORE,
        "not all of its records are forgotten. once purge forgets "
        "the rest, of group once-bench, when their leases have ended");
}

static void print_times(const struct cli *c, const char *name,
                        const struct times *t)
{
    cli_label(c, name);
    printf(c->tty ? "p50 %.2f ms, p99 %.2f ms\n" : "%.2f\t%.2f\n",
           percentile_ms(t, 50), percentile_ms(t, 99));
}

static int report(const struct bench *b, double seconds)
{
    const struct cli *c = b->c;
    double rate = seconds > 0 ? (double)b->completes.n / seconds : 0;

    if (c->json)
        return cli_print_json(
            c,
            json_pack("{s:I, s:f, s:I, s:I, s:f, s:{s:f, s:f}, s:{s:f, s:f}}",
                      "in_flight", (json_int_t)b->flight, "seconds", seconds,
                      "result_bytes", (json_int_t)b->size, "cycles",
                      (json_int_t)b->completes.n, "cycles_per_second", rate,
                      "claim", "p50_ms", percentile_ms(&b->claims, 50),
                      "p99_ms", percentile_ms(&b->claims, 99), "complete",
                      "p50_ms", percentile_ms(&b->completes, 50), "p99_ms",
                      percentile_ms(&b->completes, 99)));
    cli_number(c, "in flight", b->flight);
    cli_number(c, "cycles", b->completes.n);
    cli_label(c, "cycles/s");
    printf("%.0f\n", rate);
    print_times(c, "claim", &b->claims);
    print_times(c, "complete", &b->completes);
    return CLI_OK;
}

static int measure_and_forget(struct bench *b, const sigset_t *signals)
{
    double seconds = 0;
    int rc, stopped, bad;

    stopped = measure(b, signals, &seconds);
    bad = atomic_load(&b->rc);
    rc = forget_all(b, signals);
    if (bad < 0)
        return cli_trouble_of_change(b->c, bad, NULL);
    if (bad > 0)
        return cli_say(b->c, CLI_STORE,
                       "the store answered \"%s\" to a key that nobody else "
                       "has. Do not use it: see once check",
                       once_text(bad));
    if (stopped)
        cli_say(b->c, 0, "stopped by a signal; its figures:");
    bad = report(b, seconds);
    return rc != CLI_OK ? rc : bad;
}

static int take(const struct cli *c, void *user, int o)
{
    struct bench *b = user;

    switch (o) {
    case OPT_FLIGHT:
        return cli_read_number(c, "--in-flight", optarg, 1, FLIGHT_MAX,
                               &b->flight);
    case OPT_SIZE:
        return cli_read_number(c, "--size", optarg, 0, SIZE_MAX_BYTES,
                               &b->size);
    default:
        return cli_read_time(c, "--for", optarg, &b->for_ms);
    }
}

static int read_args(struct cli *c, int argc, char **argv, struct bench *b)
{
    int rc = cli_read_args(c, argc, argv, take, b);

    if (rc == CLI_OK)
        rc = cli_no_operands(c, argc, "");
    if (rc == CLI_OK && b->for_ms > FOR_MAX_MS)
        rc = cli_usage(c, "--for is a time from 1s to 1h");
    return rc;
}

static int run(struct cli *c, int argc, char **argv)
{
    struct bench *b = calloc(1, sizeof(*b));
    sigset_t signals;
    int rc;

    if (b == NULL)
        return cli_say(c, CLI_STORE, "out of memory");
    *b = (struct bench){.c = c, .flight = 64, .for_ms = 5000, .size = 300};
    rc = read_args(c, argc, argv, b);
    if (rc != CLI_OK)
        goto out;
    b->lanes = calloc((size_t)b->flight, sizeof(*b->lanes));
    b->result = malloc((size_t)b->size + 1);
    if (b->lanes == NULL || b->result == NULL ||
        getrandom(b->seed, sizeof(b->seed), 0) != (ssize_t)sizeof(b->seed)) {
        rc = cli_say(c, CLI_STORE, "out of memory, or no random numbers");
        goto out;
    }
    memset(b->result, 'r', (size_t)b->size + 1);
    /* Blocked, and waited for by the main thread. */
    (void)sigemptyset(&signals);
    (void)sigaddset(&signals, SIGINT);
    (void)sigaddset(&signals, SIGTERM);
    (void)sigprocmask(SIG_BLOCK, &signals, NULL);
    rc = cli_open(c, &b->e);
    if (rc == CLI_OK)
        rc = measure_and_forget(b, &signals);
    once_engine_close(b->e);
out:
    free(b->lanes);
    free(b->result);
    free(b);
    return rc;
}

const struct cli_command cli_cmd_bench = {
    "bench", "measure a store", help, options, NULL, run};
