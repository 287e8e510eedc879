/* SPDX-License-Identifier: Apache-2.0 */
/*
 * traffic.c - many callers of one store, who write down what they were told.
 *
 *    traffic run SHARED URL LOG [THREADS]     until SHARED says enough
 *    traffic final SHARED URL LOG             what the store has in the end
 *    traffic init URL                         once_store_init(); 77: no such
 *    traffic verify URL                       once_store_verify()
 *
 * Several processes run at once, and may be killed at any moment. SHARED is a
 * file that all of them map: it hands out keys and counts. Each caller takes a
 * new key, or one of the last ones, which somebody else may be at; claims it,
 * executes it, completes it; some release, some give up. A line of the log is
 * one write(), so that what was written before a kill stays written:
 *
 *    G key attempt fence   told that it owns     X key nonce    executed
 *    r key attempt fence   begins to release     f V v          see below
 *    C key nonce           outcome acknowledged  c key nonce    not answered
 *    R key nonce           told a replay         T key rc       told so instead
 *    N key rc              its claim was told rc
 *    D key attempt fence state nonce             `final`: the record
 *    ! key rc              a record does not check, or is not what was stored
 *
 *    F released, f not answered; V gave up, v not answered: key attempt fence
 *
 * The execution *is* the line X: nothing happens that is not in the log, and
 * nothing is in the log that did not happen. An outcome's bytes all follow from
 * its nonce, so whoever reads them can tell whether each byte is right. It
 * uses the public header only, and refuses to judge: cells.py does.
 */
#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <time.h>
#include <unistd.h>

#include <once/once.h>
#include <once/store.h>

enum {
    THREADS_MAX = 256,
    THREADS = 24,
    LEASE_MS = 2000,  /* short: pauses go past it          */
    STORE_MS = 1500,  /* patience with an unanswered claim */
    OUTSTANDING = 64, /* of `final`                        */
    BODY_HEAD = 24
};

/* The file SHARED; cells.py knows the order. */
struct shared {
    _Atomic uint64_t next;     /* keys handed out                          */
    _Atomic uint64_t answered; /* operations that the store acknowledged   */
    _Atomic uint64_t unknown;  /* those that it did not                    */
    _Atomic uint64_t stop;
    _Atomic uint64_t enough; /* stop when so many are answered           */
    _Atomic uint64_t seed;
    _Atomic uint64_t running; /* processes whose engine is open            */
    _Atomic uint64_t fresh;   /* percent of calls that take a new key      */
    _Atomic uint64_t window;  /* how far back an old key may lie           */
};

struct traffic {
    struct shared *shared;
    once_engine *engine;
    int log;
};

struct caller {
    struct traffic *traffic;
    uint64_t random;
    uint64_t key;
    pthread_t thread;
};

static uint64_t mix(uint64_t x)
{
    x += 0x9e3779b97f4a7c15u;
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    return x ^ x >> 31;
}

static uint64_t draw(struct caller *c, uint64_t n)
{
    c->random = mix(c->random);
    return (c->random >> 20) % n;
}

static void die(const char *what)
{
    fprintf(stderr, "traffic: %s\n", what);
    exit(1);
}

static void line(struct traffic *t, char what, uint64_t key, uint64_t a,
                 uint64_t b)
{
    char text[96];
    int n =
        snprintf(text, sizeof(text), "%c %" PRIu64 " %" PRIu64 " %" PRIu64 "\n",
                 what, key, a, b);

    if (write(t->log, text, (size_t)n) != n)
        die("the log cannot be written");
}

/* What there is none of now there may be later: see the fault "memory". */
static void *memory(size_t size)
{
    const struct timespec nap = {0, 1000000};
    void *at;

    while ((at = malloc(size)) == NULL)
        (void)nanosleep(&nap, NULL);
    return at;
}

static void count(struct traffic *t, int answered)
{
    atomic_fetch_add(answered ? &t->shared->answered : &t->shared->unknown, 1);
}

/* ---- Keys and outcomes ------------------------------------------------- */

static uint64_t key_draw(const struct traffic *t, uint64_t key, uint64_t what)
{
    return mix(mix(t->shared->seed * 8 + what) ^ key);
}

static void name_of(const struct traffic *t, uint64_t key,
                    uint8_t out[ONCE_NAME_SIZE])
{
    for (uint64_t i = 0; i < ONCE_NAME_SIZE / 8; i++) {
        uint64_t word = i == 3 ? key : key_draw(t, key, 3 + i);

        memcpy(out + 8 * i, &word, 8);
    }
}

/* Most are small; some need several reads of a socket. */
static size_t size_of(const struct traffic *t, uint64_t key)
{
    uint64_t x = key_draw(t, key, 1);

    return x % 512 == 0 ? 300000 : x % 32 == 0 ? 20000 : 40 + x % 500;
}

static void body_fill(uint64_t key, uint64_t nonce, uint8_t *out, size_t size)
{
    uint64_t head[3] = {key, nonce, size}, x = mix(key ^ mix(nonce));

    assert(size >= BODY_HEAD && sizeof(head) == BODY_HEAD);
    memcpy(out, head, BODY_HEAD);
    for (size_t i = BODY_HEAD; i < size; i++) {
        if (i % 8 == 0)
            x = mix(x);
        out[i] = (uint8_t)(x >> 8 * (i % 8));
    }
}

/* The nonce, if each byte is what it should be; otherwise 0. */
static uint64_t body_read(const struct traffic *t, uint64_t key, once_bytes b)
{
    size_t size = size_of(t, key);
    uint8_t *want;
    uint64_t nonce;
    int same;

    if (b.size != size)
        return 0;
    memcpy(&nonce, (const uint8_t *)b.data + 8, sizeof(nonce));
    want = memory(size);
    body_fill(key, nonce, want, size);
    same = memcmp(want, b.data, size) == 0;
    free(want);
    return same ? nonce : 0;
}

/* ---- A caller ---------------------------------------------------------- */

static void told_replay(struct caller *c, const once_attempt *a)
{
    struct traffic *t = c->traffic;
    uint64_t nonce = body_read(t, c->key, once_attempt_record(a)->result);

    line(t, nonce ? 'R' : '!', c->key, nonce, ONCE_REPLAY);
    count(t, 1);
}

static void let_go(struct caller *c, once_attempt *a, int release)
{
    struct traffic *t = c->traffic;
    const once_record *r = once_attempt_record(a);
    uint64_t attempt = r->attempt, fence = r->fence;
    int rc;

    if (release)
        line(t, 'r', c->key, attempt, fence);
    rc = release ? once_release(a, ONCE_REASON_NOT_SENT, NULL)
                 : once_give_up(a, ONCE_REASON_TIMEOUT, NULL);
    count(t, rc == ONCE_OK);
    if (release)
        line(t, rc == ONCE_OK ? 'F' : 'f', c->key, attempt, fence);
    else
        line(t, rc == ONCE_OK ? 'V' : 'v', c->key, attempt, fence);
}

static void complete(struct caller *c, once_attempt *a, uint64_t nonce)
{
    struct traffic *t = c->traffic;
    size_t size = size_of(t, c->key);
    uint8_t *body = memory(size);
    int rc;

    body_fill(c->key, nonce, body, size);
    rc = once_complete(a, c->key % 7 == 0 ? ONCE_FAILURE : ONCE_SUCCESS,
                       (once_bytes){body, size}, NULL);
    free(body);
    count(t, rc >= 0);
    if (rc == ONCE_OK)
        line(t, 'C', c->key, nonce, 0);
    else if (rc < 0)
        line(t, 'c', c->key, nonce, (uint64_t)-rc);
    else
        line(t, 'T', c->key, (uint64_t)rc, 0);
}

static void owner(struct caller *c, once_attempt *a)
{
    struct traffic *t = c->traffic;
    const once_record *r = once_attempt_record(a);
    uint64_t what = draw(c, 100), nonce = 0;

    line(t, 'G', c->key, r->attempt, r->fence);
    count(t, 1);
    if (what < 4) {
        let_go(c, a, 1);
        return;
    }
    while (nonce == 0)
        if (getrandom(&nonce, sizeof(nonce), 0) != sizeof(nonce))
            die("no random numbers");
    line(t, 'X', c->key, nonce, r->fence);
    if (what < 6)
        let_go(c, a, 0);
    else
        complete(c, a, nonce);
}

static void one_call(struct caller *c)
{
    struct traffic *t = c->traffic;
    uint64_t next = atomic_load(&t->shared->next), window = t->shared->window;
    once_request q = {
        .size = sizeof(q), .lease_ms = LEASE_MS, .store_ms = STORE_MS};
    once_error err = {0, ""};
    once_attempt *a = NULL;
    int rc;

    if (next == 0 || draw(c, 100) < t->shared->fresh)
        c->key = atomic_fetch_add(&t->shared->next, 1);
    else
        c->key = next - 1 - draw(c, next < window ? next : window);
    name_of(t, c->key, q.name);
    memset(q.fingerprint, (int)(c->key % 251), sizeof(q.fingerprint));
    q.two_phase = key_draw(t, c->key, 2) % 2;
    q.wait_ms = draw(c, 4) == 0 ? 100 : 0;
    rc = once_attempt_new(t->engine, &q, &err, &a);
    if (rc == ONCE_ENOMEM)
        return; /* a key that nobody asks for */
    if (rc != ONCE_OK)
        die(err.text);
    rc = once_claim(a, &err);
    if (rc == ONCE_OWNER) {
        owner(c, a);
    } else if (rc == ONCE_REPLAY) {
        told_replay(c, a);
    } else {
        count(t, rc >= 0);
        line(t, rc == ONCE_ECORRUPT || rc == ONCE_EVERSION ? '!' : 'N', c->key,
             (uint64_t)(rc < 0 ? -rc + 100 : rc), 0);
    }
    once_attempt_free(a);
}

static void *call(void *arg)
{
    struct caller *c = arg;
    struct shared *s = c->traffic->shared;

    while (!atomic_load(&s->stop) &&
           atomic_load(&s->answered) < atomic_load(&s->enough))
        one_call(c);
    return NULL;
}

static void event(void *user, const char *text)
{
    (void)user;
    fprintf(stderr, "traffic: %s\n", text);
}

/* The store may be down when we come. */
static once_engine *engine_open(struct shared *s, const char *url)
{
    once_engine_options options = ONCE_ENGINE_OPTIONS_INIT;
    once_error err = {0, ""};
    once_engine *e = NULL;
    const struct timespec nap = {0, 100000000};

    options.event = event;
    options.reap_ms = 300;
    for (int i = 0; i < 600; i++) {
        if (once_engine_open(url, &options, &err, &e) == ONCE_OK)
            return e;
        if (err.code == ONCE_EURL || err.code == ONCE_EINVAL ||
            atomic_load(&s->stop))
            break;
        (void)nanosleep(&nap, NULL);
    }
    die(err.text);
    return NULL;
}

static int run(struct traffic *t, const char *url, unsigned threads)
{
    static struct caller callers[THREADS_MAX];

    t->engine = engine_open(t->shared, url);
    atomic_fetch_add(&t->shared->running, 1);
    for (unsigned i = 0; i < threads; i++) {
        struct caller *c = &callers[i];

        c->traffic = t;
        c->random = mix(t->shared->seed + (uint64_t)getpid() * 1000 + i);
        if (pthread_create(&c->thread, NULL, call, c) != 0)
            die("no thread");
    }
    for (unsigned i = 0; i < threads; i++)
        (void)pthread_join(callers[i].thread, NULL);
    once_engine_close(t->engine);
    return 0;
}

/* ---- What is there in the end ------------------------------------------ */

struct look {
    once_op op;
    struct traffic *traffic;
    sem_t *free_;
    uint64_t key;
    int busy;
};

static void look_done(once_op *op)
{
    struct look *l = op->user;
    const once_record *r = &op->record;
    uint64_t nonce = 0;
    char text[160];
    int n;

    if (op->rc < 0) {
        line(l->traffic, '!', l->key, (uint64_t)-op->rc, 0);
    } else {
        if (r->state == ONCE_COMPLETED)
            nonce = body_read(l->traffic, l->key, r->result);
        if (r->state == ONCE_COMPLETED && nonce == 0)
            line(l->traffic, '!', l->key, 0, 0);
        n = snprintf(text, sizeof(text),
                     "D %" PRIu64 " %u %" PRIu64 " %u %" PRIu64 "\n", l->key,
                     r->attempt, r->fence, r->state, nonce);
        if (write(l->traffic->log, text, (size_t)n) != n)
            die("the log cannot be written");
    }
    __atomic_store_n(&l->busy, 0, __ATOMIC_RELEASE);
    (void)sem_post(l->free_);
}

static struct look *look_free(struct look *looks, sem_t *free_)
{
    while (sem_wait(free_) != 0)
        continue;
    for (int i = 0; i < OUTSTANDING; i++)
        if (!__atomic_load_n(&looks[i].busy, __ATOMIC_ACQUIRE))
            return &looks[i];
    abort();
}

static int final(struct traffic *t, const char *url)
{
    static struct look looks[OUTSTANDING];
    uint64_t n = atomic_load(&t->shared->next);
    once_error err = {0, ""};
    sem_t free_;

    (void)sem_init(&free_, 0, OUTSTANDING);
    t->engine = engine_open(t->shared, url);
    for (uint64_t key = 0; key < n; key++) {
        struct look *l = look_free(looks, &free_);

        memset(l, 0, sizeof(*l));
        l->traffic = t;
        l->free_ = &free_;
        l->key = key;
        l->busy = 1;
        l->op.verb = ONCE_OP_SHOW;
        l->op.store_ms = 60000;
        l->op.done = look_done;
        l->op.user = l;
        name_of(t, key, l->op.name);
        if (once_submit(t->engine, &l->op, &err) != ONCE_OK)
            die(err.text);
    }
    for (int i = 0; i < OUTSTANDING; i++)
        while (sem_wait(&free_) != 0)
            continue;
    once_engine_close(t->engine);
    return 0;
}

static struct shared *map(const char *path)
{
    int fd = open(path, O_RDWR | O_CLOEXEC);
    void *at = fd < 0 ? MAP_FAILED
                      : mmap(NULL, sizeof(struct shared),
                             PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);

    if (at == MAP_FAILED)
        die("SHARED cannot be mapped");
    (void)close(fd);
    return at;
}

static void say(void *user, const char *text)
{
    (void)user;
    printf("%s\n", text);
}

static int init(const char *url)
{
    once_error err = {0, ""};
    int durable, shared, rc = once_store_init(url, &err);

    if (rc == ONCE_OK)
        rc = once_store_check(url, &durable, &shared, &err);
    if (rc == ONCE_OK)
        return 0;
    printf("%s\n", err.text);
    return rc == ONCE_EURL ? 77 : 1;
}

static int verify(const char *url)
{
    once_error err = {0, ""};
    int rc = once_store_verify(url, say, NULL, &err);

    if (rc < 0 && rc != ONCE_ENOSYS)
        printf("%s\n", err.text);
    return rc != 0 && rc != ONCE_ENOSYS;
}

int main(int argc, char **argv)
{
    struct traffic t = {NULL, NULL, -1};
    unsigned long threads = argc > 5 ? strtoul(argv[5], NULL, 10) : THREADS;

    if (argc == 3 && strcmp(argv[1], "init") == 0)
        return init(argv[2]);
    if (argc == 3 && strcmp(argv[1], "verify") == 0)
        return verify(argv[2]);
    if (argc < 5 || threads == 0 || threads > THREADS_MAX ||
        (strcmp(argv[1], "run") != 0 && strcmp(argv[1], "final") != 0))
        die("usage: traffic run|final SHARED URL LOG [THREADS] | init|verify "
            "URL");
    t.shared = map(argv[2]);
    t.log = open(argv[4], O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0600);
    if (t.log < 0)
        die("LOG cannot be opened");
    return argv[1][0] == 'r' ? run(&t, argv[3], (unsigned)threads)
                             : final(&t, argv[3]);
}
