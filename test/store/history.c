/* SPDX-License-Identifier: Apache-2.0 */
/*
 * history.c - what six callers at once saw of a real store, and whether any
 * order of their calls explains it.
 *
 *    history STORE [COUNT [SEED]]
 *
 * memory  threads share one handle behind a lock, as the engine would
 * engine  threads share one engine, which batches and repeats
 * sqlite  threads with a handle each, then processes that open after the fork
 * journal the same
 * postgres  the same, at ONCE_TEST_URL, with a schema for each round
 * mysql   the same, with a database for each round
 * redis     the same, with a prefix for each round
 * broken  the memory driver with planted mistakes: each must be seen
 *
 * Every caller drives the real attempt (core/machine.h) on one key after the
 * other, together with the five others; answers are lost on purpose through
 * `faulty:`, and whatever was not answered is asked again with the same token.
 * Copies of its own earlier calls arrive late, and it reaps, reads, renews,
 * resolves and forgets in between. lin.c judges what was recorded.
 *
 * The clock runs a hundred times too fast: a millisecond of the store is ten
 * microseconds, so that leases end in the middle of things without waiting.
 * Nothing here depends on how fast that is: it moves the odds, not the verdict.
 */
#include "t.h"

#include <assert.h>
#include <pthread.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "broken.h"
#include "own_database.h"
#include "calls/core/transition.h"
#include "calls/core/machine.h"
#include "lin.h"
#include "calls/store/store.h"

enum {
    WORKERS = 6,
    CALLS = 10,  /* of one worker on one key */
    KEYS = 16,   /* of one round: handles live for a round */
    ASKS = 3,    /* how often one call is repeated */
    REPEATS = 2, /* likewise, by the engine */
    SKEW = 1,    /* the clock is the same one; a tick may be cut in two */
    RULES = 15
};

enum how { LOCKED, ENGINE, THREADS, PROCESSES };

/* Calls of one worker on one key. Nobody else writes here. */
struct log {
    size_t n;
    struct lin_op calls[CALLS];
};

/* One round, in memory that processes share. */
struct round {
    pthread_barrier_t barrier;
    uint64_t seed;
    unsigned workers_done;
    struct log logs[KEYS][WORKERS];
    struct lin_op last[KEYS]; /* what is there in the end */
};

/* What one run came to. */
struct sum {
    unsigned histories, rejected, undecided, longest;
    uint64_t calls, unknown, steps;
    unsigned seen[ONCE__OP_END][ONCE_REFUSED + 1];
};

struct worker {
    unsigned id;
    enum how how;
    const char *url; /* of the store itself, without faults */
    struct round *round;
    struct shared *shared; /* LOCKED */
    once_engine *engine;   /* ENGINE */
    once_store *store;     /* the others */
    uint64_t random;

    /* The key in hand. */
    unsigned key;
    struct log *log;
    once__machine attempt;
    int kind;
    uint8_t result[LIN_BODY];
    uint64_t seen_fence;
};

/* The store under test, where it has handles of its own. */
static const char *store_name = "";

static struct round *round_;
static char folder[] = "/tmp/once-history-XXXXXX";
static uint64_t first_seed = 1;

static uint64_t fast_clock(void *user)
{
    struct timespec t;

    (void)user;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 100000 + (uint64_t)t.tv_nsec / 10000;
}

/* The clock that cannot be set runs as fast, or nothing would be forgotten. */
int __real_clock_gettime(clockid_t id, struct timespec *t);
int __wrap_clock_gettime(clockid_t id, struct timespec *t);

int __wrap_clock_gettime(clockid_t id, struct timespec *t)
{
    uint64_t ms;

    if (id != CLOCK_BOOTTIME)
        return __real_clock_gettime(id, t);
    ms = fast_clock(NULL);
    t->tv_sec = (time_t)(ms / 1000);
    t->tv_nsec = (long)(ms % 1000) * 1000000;
    return 0;
}

static uint64_t mix(uint64_t x)
{
    x += 0x9e3779b97f4a7c15u;
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    return x ^ x >> 31;
}

static unsigned draw(struct worker *w, unsigned n)
{
    w->random = mix(w->random);
    return (unsigned)(w->random >> 33) % n;
}

/* Lets the others in, sometimes. */
static void pause_(struct worker *w)
{
    struct timespec t = {0, 0};

    if (draw(w, 3) != 0)
        return;
    t.tv_nsec = draw(w, 150000);
    nanosleep(&t, NULL);
}

/* ---- Asking the store --------------------------------------------------- */

/* What all callers of a key agree upon, most of the time. */
static uint64_t key_draw(const struct worker *w, unsigned what)
{
    return mix(w->round->seed ^ mix((uint64_t)w->key << 8 | what));
}

static void name_of(const struct worker *w, uint8_t out[ONCE_NAME_SIZE])
{
    memset(out, 0, ONCE_NAME_SIZE);
    memcpy(out, &w->round->seed, sizeof(w->round->seed));
    out[8] = (uint8_t)w->key;
}

static void fill(struct worker *w, struct lin_op *o, int verb)
{
    static const uint32_t leases[] = {10, 30, 100, 1000, 100000};
    static const uint64_t keeps[] = {10, 100, 100000000, 100000000};
    uint64_t mine = mix(key_draw(w, 1) + w->id);

    memset(o, 0, sizeof(*o));
    o->worker = w->id;
    o->op.verb = verb;
    name_of(w, o->op.name);
    memcpy(o->op.token, &mine, sizeof(mine));
    memset(o->op.fingerprint, mine % 16 == 0 ? 2 : 1, ONCE_FINGERPRINT_SIZE);
    o->op.policy = (uint32_t)(key_draw(w, 2) % 4);
    o->op.two_phase = key_draw(w, 3) % 2;
    o->op.lease_ms = leases[key_draw(w, 4) % 5];
    o->op.keep_ms = keeps[key_draw(w, 5) % 4];
    o->op.fence = w->attempt.fence;
    o->op.kind = w->kind;
    memcpy(o->body, w->result, sizeof(w->result));
    if (verb == ONCE_OP_COMPLETE || verb == ONCE_OP_RESOLVE)
        o->op.result = (once_bytes){o->body, sizeof(o->body)};
    if (verb == ONCE_OP_RESOLVE || verb == ONCE_OP_REOPEN)
        o->op.note = (once_bytes){"who and why", 11};
}

/* ONCE_OK, or anything else: nobody knows. */
static int ask_raw(struct worker *w, struct lin_op *o)
{
    once_op *op = &o->op;
    int rc;

    if (w->how == LOCKED)
        return shared_ask(w->shared, o);
    if (w->how != ENGINE) {
        rc = w->store->ops->apply(w->store, &op, 1, NULL);
        if (rc == ONCE_OK)
            lin_op_own(o);
        return rc;
    }
    op->store_ms = 1; /* two or three questions, then it is unknown */
    rc = once_apply(w->engine, op, NULL);
    if (rc >= 0) {
        once_bytes result = op->record.result, note = op->record.note;
        once_op heap = *op;

        lin_op_own(o);
        heap.record.result = result;
        heap.record.note = note;
        once_op_clear(&heap);
        return ONCE_OK;
    }
    once_op_clear(op);
    return rc;
}

static uint64_t repeated(const struct worker *w)
{
    once_stats stats;

    if (w->how != ENGINE)
        return 0;
    once_engine_stats(w->engine, &stats);
    return stats.repeated;
}

/*
 * While we waited the engine has asked the store again, maybe for us. Then the
 * answer is the last question's, and those before may have been applied: calls
 * of their own, which nobody answered.
 */
static void add_repeats(struct log *log, const struct lin_op *o)
{
    unsigned i;

    for (i = 1; i <= REPEATS; i++) {
        struct lin_op *copy = &log->calls[log->n++];

        *copy = *o;
        copy->copy = i;
        copy->ret = fast_clock(NULL);
        if (copy->op.result.size > 0)
            copy->op.result.data = copy->body;
    }
}

/* One call, recorded. NULL: the log is full, or nobody knows. */
static struct lin_op *ask(struct worker *w, const struct lin_op *question)
{
    uint64_t before = repeated(w);
    struct lin_op *o;
    int rc;

    if (w->log->n + (w->how == ENGINE ? REPEATS : 0) >= CALLS)
        return NULL;
    o = &w->log->calls[w->log->n++];
    *o = *question;
    if (o->op.result.size > 0)
        o->op.result.data = o->body;
    pause_(w);
    o->call = fast_clock(NULL);
    rc = ask_raw(w, o);
    o->ret = rc == ONCE_OK ? fast_clock(NULL) : LIN_NEVER;
    if (repeated(w) != before)
        add_repeats(w->log, o);
    pause_(w);
    if (rc != ONCE_OK)
        return NULL;
    w->seen_fence = o->op.record.fence;
    return o;
}

/* The same call until it is answered, or patience ends. */
static struct lin_op *ask_again(struct worker *w, int verb)
{
    struct lin_op question, *o = NULL;
    unsigned n = 1 + draw(w, ASKS);

    fill(w, &question, verb);
    while (n-- > 0 && o == NULL)
        o = ask(w, &question);
    return o;
}

/* ---- A caller ------------------------------------------------------------ */

/* A copy of an own earlier call that was long under way. */
static void late_copy(struct worker *w)
{
    struct lin_op question;

    if (w->log->n == 0)
        return;
    question = w->log->calls[draw(w, (unsigned)w->log->n)];
    memset(&question.op.record, 0, sizeof(question.op.record));
    question.copy = 0;
    question.op.rc = 0;
    question.op.left_ms = 0;
    (void)ask(w, &question);
}

/* The work is under way: what comes of it? */
static int work(struct worker *w)
{
    unsigned what = draw(w, 16);

    if (draw(w, 4) == 0)
        (void)ask_again(w, ONCE_OP_RENEW);
    if (draw(w, 6) == 0)
        late_copy(w); /* of the claim, as a rule */
    w->kind = draw(w, 3) == 0 ? ONCE_FAILURE : ONCE_SUCCESS;
    (void)snprintf((char *)w->result, sizeof(w->result), "worker %u key %u",
                   w->id, w->key);
    return once__machine_end(&w->attempt, what < 11   ? ONCE__PHASE_COMPLETE
                                          : what < 14 ? ONCE__PHASE_RELEASE
                                                      : ONCE__PHASE_GIVE_UP);
}

static void attempt(struct worker *w)
{
    int action = once__machine_begin(&w->attempt, key_draw(w, 3) % 2);

    while (w->log->n + REPEATS < CALLS) {
        const struct lin_op *o;

        if (action == ONCE__RETURN) {
            if (w->attempt.reported != ONCE_IN_FLIGHT ||
                w->attempt.fence != 0 || w->attempt.looked || draw(w, 2) == 0)
                return;
            action = once__machine_again(&w->attempt);
        } else if (action == ONCE__SEND) {
            action = work(w);
        } else {
            o = ask_again(w, once__action_verb(action));
            action = o == NULL ? once__machine_unanswered(&w->attempt)
                               : once__machine_answer(&w->attempt, o->op.rc,
                                                      &o->op.record);
        }
    }
}

/* Everybody's calls, the operator's, and those of somebody who is mistaken:
 * a fence as it was shown, with a token that does not go with it. */
static void aside(struct worker *w)
{
    static const int verbs[] = {
        ONCE_OP_READ,    ONCE_OP_SHOW,   ONCE_OP_REAP,     ONCE_OP_FORGET,
        ONCE_OP_RESOLVE, ONCE_OP_REOPEN, ONCE_OP_COMPLETE,
    };
    struct lin_op question;

    if (draw(w, 3) == 0) {
        late_copy(w);
        return;
    }
    fill(w, &question, verbs[draw(w, 7)]);
    question.op.kind = ONCE_SUCCESS;
    question.op.fence = w->seen_fence;
    (void)ask(w, &question);
}

static void one_key(struct worker *w, unsigned key)
{
    unsigned n;

    w->key = key;
    w->log = &w->round->logs[key][w->id];
    w->log->n = 0;
    w->kind = ONCE_SUCCESS;
    w->seen_fence = 0;
    memset(w->result, 0, sizeof(w->result));
    memset(&w->attempt, 0, sizeof(w->attempt));
    if (draw(w, 6) == 0)
        aside(w);
    attempt(w);
    for (n = draw(w, 4); n > 0; n--)
        aside(w);
}

/* Stretches of calls whose answers are lost, or that fail: about one in ten of
 * the first `calls`. */
static void faulty_url(char *out, size_t size, uint64_t seed, unsigned calls,
                       const char *inner)
{
    size_t used = (size_t)snprintf(out, size, "faulty:");
    unsigned i, rules = calls / 20 < RULES ? calls / 20 : RULES;

    for (i = 0; i < rules; i++) {
        uint64_t x = mix(seed * 64 + i);
        unsigned from = 1 + (unsigned)(x % calls);

        used += (size_t)snprintf(out + used, size - used, "%s=any:%u-%u%s",
                                 x >> 40 & 1 ? "lose" : "fail", from,
                                 from + (unsigned)(x >> 48) % 3,
                                 i + 1 < rules ? "," : "@");
        assert(used < size);
    }
    (void)snprintf(out + used, size - used, "%s", inner);
}

/* A handle of one's own, with faults of its own; the last one looks only. */
static void open_own(struct worker *w)
{
    const once_store_options options = {
        sizeof(options), fast_clock, NULL, 2000, 1, NULL, NULL, 0};
    once_error err = {0, ""};
    char url[1024];

    if (w->how != THREADS && w->how != PROCESSES)
        return;
    faulty_url(url, sizeof(url), w->round->seed * WORKERS + w->id, KEYS * 5,
               w->url);
    if (once_store_open(w->id < WORKERS ? url : w->url, &options, &err,
                        &w->store) != ONCE_OK) {
        printf("# worker %u: %s\n", w->id, err.text);
        abort();
    }
}

static void *worker(void *arg)
{
    struct worker *w = arg;
    unsigned key;

    w->random = mix(w->round->seed * 31 + w->id);
    open_own(w);
    for (key = 0; key < KEYS; key++) {
        pthread_barrier_wait(&w->round->barrier);
        one_key(w, key);
    }
    once_store_close(w->store);
    w->store = NULL;
    return NULL;
}

/* ---- Rounds ------------------------------------------------------------- */

static void round_begin(uint64_t seed)
{
    pthread_barrierattr_t shared;
    int rc;

    memset(round_, 0, sizeof(*round_));
    round_->seed = seed;
    pthread_barrierattr_init(&shared);
    pthread_barrierattr_setpshared(&shared, PTHREAD_PROCESS_SHARED);
    rc = pthread_barrier_init(&round_->barrier, &shared, WORKERS);
    assert(rc == 0);
    (void)rc;
    pthread_barrierattr_destroy(&shared);
}

static void run_threads(struct worker *w)
{
    pthread_t threads[WORKERS];
    unsigned i;
    int rc;

    for (i = 0; i < WORKERS; i++) {
        rc = pthread_create(&threads[i], NULL, worker, &w[i]);
        assert(rc == 0);
    }
    for (i = 0; i < WORKERS; i++) {
        rc = pthread_join(threads[i], NULL);
        assert(rc == 0);
    }
    (void)rc;
}

static pid_t run_child(struct worker *w)
{
    pid_t parent = getpid(), pid = fork();

    assert(pid >= 0);
    if (pid > 0)
        return pid;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent)
        _exit(1);
    (void)worker(w);
    fflush(stdout);
    _exit(0);
}

/* A child that dies would keep the others at the barrier for ever. */
static void run_processes(struct worker *w)
{
    pid_t pids[WORKERS];
    unsigned i, k;
    int status;

    fflush(stdout);
    for (i = 0; i < WORKERS; i++)
        pids[i] = run_child(&w[i]);
    for (i = 0; i < WORKERS; i++) {
        pid_t ended = wait(&status);

        for (k = 0; k < WORKERS; k++)
            if (pids[k] == ended)
                pids[k] = 0;
        T_EQ(status, 0); /* a process died */
        if (status == 0)
            continue;
        for (k = 0; k < WORKERS; k++)
            if (pids[k] != 0)
                kill(pids[k], SIGKILL);
    }
}

/* What is there in the end, asked by somebody whose answers are not lost. */
static void look(struct worker *w, unsigned key)
{
    struct lin_op *o = &round_->last[key];
    int rc, n = 0;

    w->key = key;
    do {
        fill(w, o, ONCE_OP_SHOW);
        o->worker = WORKERS;
        o->call = fast_clock(NULL);
        rc = ask_raw(w, o);
        o->ret = fast_clock(NULL);
    } while (rc != ONCE_OK && n++ < 1000);
    T_EQ(rc, ONCE_OK);
}

static void count(struct sum *sum, const struct lin_op *ops, size_t n)
{
    size_t i;

    sum->calls += n;
    sum->longest = n > sum->longest ? (unsigned)n : sum->longest;
    for (i = 0; i < n; i++) {
        if (ops[i].ret == LIN_NEVER || ops[i].copy > 0) {
            sum->unknown++;
            continue;
        }
        T_OK(ops[i].op.rc >= 0 && ops[i].op.rc <= ONCE_REFUSED);
        if (ops[i].op.rc >= 0 && ops[i].op.rc <= ONCE_REFUSED)
            sum->seen[ops[i].op.verb][ops[i].op.rc]++;
    }
}

/* Prints the first history that was rejected, if that is not what we want. */
static void judge(struct lin *l, struct sum *sum, unsigned key, int print)
{
    struct lin_op ops[LIN_OPS];
    enum lin_verdict verdict;
    size_t n = 0;
    unsigned i;

    for (i = 0; i < WORKERS; i++) {
        const struct log *log = &round_->logs[key][i];

        memcpy(ops + n, log->calls, log->n * sizeof(*ops));
        n += log->n;
    }
    ops[n++] = round_->last[key];
    count(sum, ops, n);
    verdict = lin_check(l, ops, n);
    sum->histories++;
    sum->undecided += verdict == LIN_UNDECIDED;
    sum->rejected += verdict == LIN_REJECTED;
    if (print && verdict == LIN_REJECTED && sum->rejected == 1) {
        printf("#   seed %" PRIu64 ", key %u: no order explains it\n",
               round_->seed, key);
        lin_print(l);
    }
}

/* What the workers of one round share. */
struct place {
    enum how how;
    int flaw;
    char url[1024], clean[256];
    struct shared shared;
    once_engine *engine;
};

/* A schema of its own, so that one round does not slow down the next. */
static void postgres_url(char *out, size_t size, enum how how, uint64_t seed)
{
    const char *server = getenv("ONCE_TEST_URL");
    once_error err = {0, ""};

    if (server == NULL)
        t_skip_all("ONCE_TEST_URL names no server");
    (void)snprintf(out, size, "%s%cschema=h%d_%d_%" PRIu64 "&lock_ms=30000",
                   server, strchr(server, '?') == NULL ? '?' : '&',
                   (int)getpid(), (int)how, seed);
    if (once_store_init(out, &err) != ONCE_OK) {
        printf("Bail out! %s\n", err.text);
        exit(1);
    }
}

static void mysql_url(char *out, size_t size, enum how how, uint64_t seed)
{
    char name[64];

    (void)snprintf(name, sizeof(name), "h%d_%d_%" PRIu64, (int)getpid(),
                   (int)how, seed);
    own_database(out, size, name, "lock_ms=30000");
}

/* Keys with a prefix of their own for each round of each run. */
static void redis_url(char *out, size_t size, uint64_t seed)
{
    static unsigned places;
    const char *server = getenv("ONCE_TEST_URL");

    if (server == NULL)
        t_skip_all("ONCE_TEST_URL names no server");
    (void)snprintf(out, size, "%s%cprefix=h%d_%u_%" PRIu64 ":&timeout_ms=10000",
                   server, strchr(server, '?') == NULL ? '?' : '&',
                   (int)getpid(), places++, seed);
}

static void own_url(char *out, size_t size, enum how how, uint64_t seed)
{
    if (strcmp(store_name, "postgres") == 0)
        postgres_url(out, size, how, seed);
    else if (strcmp(store_name, "mysql") == 0)
        mysql_url(out, size, how, seed);
    else if (strcmp(store_name, "redis") == 0)
        redis_url(out, size, seed);
    else
        (void)snprintf(
            out, size, "%s:%s/%" PRIu64 "%s", store_name, folder, seed,
            strcmp(store_name, "journal") == 0 ? "?segment=65536" : "");
}

static void place_open(struct place *p, uint64_t seed)
{
    const once_store_options options = {
        sizeof(options), fast_clock, NULL, 2000, 1, NULL, NULL, 0};
    once_engine_options engine = ONCE_ENGINE_OPTIONS_INIT;
    once_store *store = NULL;
    int rc;

    (void)snprintf(p->clean, sizeof(p->clean), "memory:");
    if (p->how == THREADS || p->how == PROCESSES)
        own_url(p->clean, sizeof(p->clean), p->how, seed);
    faulty_url(p->url, sizeof(p->url), seed, KEYS * 5 * WORKERS, p->clean);
    engine.no_reaper = 1;
    engine.clock = fast_clock;
    engine.create = 1;
    if (p->how == ENGINE)
        rc = once_engine_open(p->url, &engine, NULL, &p->engine);
    else
        rc = once_store_open(p->how == LOCKED ? p->url : p->clean, &options,
                             NULL, &store);
    assert(rc == ONCE_OK);
    (void)rc;
    if (p->how == LOCKED)
        shared_init(&p->shared, store, p->flaw, fast_clock);
    else
        once_store_close(store); /* the file is there now */
}

static void place_close(struct place *p)
{
    const struct once__store_line *line = once__store_line_of(p->clean);
    char command[300];
    const char *path;

    if (p->how == LOCKED)
        shared_end(&p->shared);
    once_engine_close(p->engine);
    assert(line != NULL);
    if (line->place != ONCE__STORE_FILE && line->place != ONCE__STORE_FOLDER)
        return;
    path = strchr(p->clean, ':') + 1; /* and what lies beside it by its name */
    (void)snprintf(command, sizeof(command), "rm -rf '%.*s' '%.*s'-*",
                   (int)strcspn(path, "?"), path, (int)strcspn(path, "?"),
                   path);
    T_EQ(system(command), 0);
}

static void one_round(struct place *p, struct lin *l, struct sum *sum,
                      unsigned keys)
{
    struct worker w[WORKERS + 1];
    unsigned i;

    memset(w, 0, sizeof(w));
    place_open(p, round_->seed);
    for (i = 0; i <= WORKERS; i++)
        w[i] = (struct worker){.id = i,
                               .how = p->how,
                               .url = p->clean,
                               .round = round_,
                               .shared = &p->shared,
                               .engine = p->engine};
    if (p->how == PROCESSES)
        run_processes(w);
    else
        run_threads(w);
    open_own(&w[WORKERS]);
    for (i = 0; i < keys; i++)
        look(&w[WORKERS], i);
    once_store_close(w[WORKERS].store);
    place_close(p);
    pthread_barrier_destroy(&round_->barrier);
    for (i = 0; i < keys; i++)
        judge(l, sum, i, p->flaw == FLAW_NONE);
}

static struct sum run(enum how how, int flaw, unsigned histories)
{
    struct place p = {.how = how, .flaw = flaw};
    struct lin *l = lin_new(SKEW);
    struct sum sum;
    uint64_t seed = first_seed;

    assert(l != NULL);
    memset(&sum, 0, sizeof(sum));
    while (sum.histories < histories) {
        unsigned left = histories - sum.histories;

        p.engine = NULL;
        round_begin(seed++);
        one_round(&p, l, &sum, left < KEYS ? left : KEYS);
    }
    sum.steps = lin_steps(l);
    lin_free(l);
    return sum;
}

/* ---- Tests --------------------------------------------------------------- */

static unsigned histories = 2000;

static void tell(const char *what, const struct sum *s)
{
    printf("# %s: %u histories, up to %u calls, %" PRIu64 " calls, %" PRIu64
           " of them unknown; %u rejected, %u undecided; %" PRIu64
           " steps each\n",
           what, s->histories, s->longest, s->calls, s->unknown, s->rejected,
           s->undecided, s->steps / (s->histories ? s->histories : 1));
}

/* A run in which one of these never happened has proven less than it says. */
static void happened(const struct sum *s)
{
    static const struct {
        int verb, rc;
    } must[] = {
        {ONCE_OP_CLAIM, ONCE_OWNER},    {ONCE_OP_CLAIM, ONCE_IN_FLIGHT},
        {ONCE_OP_CLAIM, ONCE_REPLAY},   {ONCE_OP_CLAIM, ONCE_UNKNOWN},
        {ONCE_OP_CLAIM, ONCE_MISMATCH}, {ONCE_OP_CLAIM, ONCE_FENCED},
        {ONCE_OP_DISPATCH, ONCE_OK},    {ONCE_OP_RENEW, ONCE_OK},
        {ONCE_OP_COMPLETE, ONCE_OK},    {ONCE_OP_COMPLETE, ONCE_FENCED},
        {ONCE_OP_RELEASE, ONCE_OK},     {ONCE_OP_GIVE_UP, ONCE_OK},
        {ONCE_OP_READ, ONCE_REPLAY},    {ONCE_OP_REAP, ONCE_OK},
        {ONCE_OP_RESOLVE, ONCE_OK},     {ONCE_OP_FORGET, ONCE_OK},
        {ONCE_OP_REAP, ONCE_REFUSED},
    };
    size_t i;

    if (s->histories < 1000)
        return; /* the rarest comes once in fifty */
    for (i = 0; i < sizeof(must) / sizeof(must[0]); i++)
        if (s->seen[must[i].verb][must[i].rc] == 0) {
            T_EQ(must[i].verb, 0);
            printf("#   never: verb %d answered %s\n", must[i].verb,
                   once_text(must[i].rc));
        }
    T_OK(s->unknown > 0);
}

static void every_history_is_explained(const char *what, enum how how)
{
    struct sum s = run(how, FLAW_NONE, histories);

    tell(what, &s);
    T_EQ(s.rejected, 0);
    /* Where nearly all answers were lost the search may take too long. */
    T_OK(s.undecided * 500 <= s.histories);
    happened(&s);
}

static void threads_that_share_a_handle_are_explained(void)
{
    every_history_is_explained("memory, threads behind a lock", LOCKED);
}

static void threads_that_share_an_engine_are_explained(void)
{
    every_history_is_explained("memory, threads through an engine", ENGINE);
}

static void threads_with_a_handle_each_are_explained(void)
{
    char what[32];

    (void)snprintf(what, sizeof(what), "%s, threads", store_name);
    every_history_is_explained(what, THREADS);
}

static void processes_are_explained(void)
{
    char what[32];

    (void)snprintf(what, sizeof(what), "%s, processes", store_name);
    every_history_is_explained(what, PROCESSES);
}

/* One in two hundred is a low bar; what was found is printed. */
static void a_mistake_is_seen(int flaw)
{
    struct sum s = run(LOCKED, flaw, histories);

    printf("# %-9s %4u of %u rejected: %s\n", flaw_name(flaw), s.rejected,
           s.histories, flaw_text(flaw));
    T_OK(s.rejected * 200 >= s.histories);
}

#define FLAW(name, text, what)                                                 \
    static void mistake_##name(void)                                           \
    {                                                                          \
        a_mistake_is_seen(FLAW_##name);                                        \
    }
FLAWS(FLAW)
#undef FLAW

static void broken(void)
{
#define FLAW(name, text, what)                                                 \
    if (FLAW_##name != FLAW_NONE)                                              \
        t_named("seen: " what, mistake_##name);
    FLAWS(FLAW)
#undef FLAW
}

static int read_number(const char *text, uint64_t *out)
{
    char *end;

    *out = strtoull(text, &end, 10);
    return *text >= '0' && *text <= '9' && *end == '\0';
}

/* 1: a store that several processes may open. */
static int is_shared(const char *name)
{
    const struct once__store_line *lines;
    size_t n, i;

    lines = once__store_lines(&n);
    for (i = 0; i < n; i++)
        if (strcmp(lines[i].ops->name, name) == 0)
            return lines[i].place == ONCE__STORE_FILE ||
                   lines[i].place == ONCE__STORE_FOLDER ||
                   lines[i].place == ONCE__STORE_SERVER;
    return 0;
}

int main(int argc, char **argv)
{
    const char *what = argc > 1 ? argv[1] : "";
    uint64_t n = histories;

    if ((argc > 2 && !read_number(argv[2], &n)) ||
        (argc > 3 && !read_number(argv[3], &first_seed)))
        what = "";
    histories = (unsigned)n;
    round_ = mmap(NULL, sizeof(*round_), PROT_READ | PROT_WRITE,
                  MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert(round_ != MAP_FAILED);
    if (mkdtemp(folder) == NULL)
        t_skip_all("no folder in /tmp");
    if (strcmp(what, "memory") == 0) {
        T_RUN(threads_that_share_a_handle_are_explained);
    } else if (strcmp(what, "engine") == 0) {
        T_RUN(threads_that_share_an_engine_are_explained);
    } else if (is_shared(what)) {
        store_name = what;
        T_RUN(threads_with_a_handle_each_are_explained);
        T_RUN(processes_are_explained);
    } else if (strcmp(what, "broken") == 0) {
        broken();
    } else {
        fprintf(stderr, "usage: history memory | engine | broken | STORE "
                        "[COUNT [SEED]]\n");
        return 2;
    }
    (void)rmdir(folder);
    return t_done();
}
