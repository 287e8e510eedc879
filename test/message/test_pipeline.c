/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_pipeline.c - once_relay() with two batches under way, at a target that the
 * test is: one that gives its proofs when the test says so.
 *
 *    test_pipeline [sqlite | CASE]
 *    with-server postgres -- test_pipeline postgres [CASE]
 *    with-server mysql -- test_pipeline mysql [CASE]
 *
 * The target counts what must never happen: two messages of a key that are open at
 * one time, and a message that is sent twice.
 */
#include "db.h"

#include <pthread.h>
#include <stdatomic.h>
#include <sys/eventfd.h>

#include <once/relay.h>

#include "base/error.h"
#include "base/steady.h"
#include "base/thread.h"
#include "messages/broker/broker.h"
#include "messages/relay/send_batch.h"
#include "messages/relay/sender.h"
#include "patience.h"

enum { BATCH = 4, SENT_MAX = 2000, PATIENCE_MS = 60000 };

/* ---- The target ---------------------------------------------------------- */

enum state { OPEN, PROVED };

static struct {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    struct {
        char id[ONCE_ID_SIZE], key[32];
        uint64_t tag;
        enum state state;
    } sent[SENT_MAX];
    size_t n, open;
    size_t allowed; /* so many proofs may be given */
    size_t silent;  /* so many of them say that the outcome is unknown */
    int lost;       /* the connection is gone: what is open is silent */
    int away;       /* it cannot be reached */
    int two_of_a_key, twice;
    atomic_int no_memory; /* nothing can be sent */
    atomic_long refused;  /* so often */
} gate = {.lock = PTHREAD_MUTEX_INITIALIZER};

static int gate_open_(const char *url, const struct once__broker_options *o,
                      struct once__broker **out, once_error *err)
{
    extern const struct once__broker_ops gate_ops;
    static struct once__broker broker;

    (void)url;
    (void)o;
    (void)err;
    broker.ops = &gate_ops;
    *out = &broker;
    return ONCE_OK;
}

static void gate_close(struct once__broker *b)
{
    (void)b;
}

static int gate_connect(struct once__broker *b, once_error *err)
{
    int away;

    (void)b;
    (void)pthread_mutex_lock(&gate.lock);
    away = gate.away;
    if (!away)
        gate.lost = 0;
    (void)pthread_mutex_unlock(&gate.lock);
    return away ? once__fail(err, ONCE_EAWAY, "the gate is away") : ONCE_OK;
}

/* By the lock: judges a message against those that were sent before. */
static void look_at(const once_message *m)
{
    size_t i;

    for (i = 0; i < gate.n; i++) {
        gate.twice += strcmp(gate.sent[i].id, m->id) == 0;
        gate.two_of_a_key += m->key != NULL && gate.sent[i].state == OPEN &&
                             strcmp(gate.sent[i].key, m->key) == 0;
    }
}

static int gate_send(struct once__broker *b, const once_message *m,
                     uint64_t tag, once_error *err)
{
    int lost;

    (void)b;
    if (atomic_load(&gate.no_memory)) {
        atomic_fetch_add(&gate.refused, 1);
        return once__fail(err, ONCE_ENOMEM, "no memory");
    }
    (void)pthread_mutex_lock(&gate.lock);
    assert(gate.n < SENT_MAX);
    look_at(m);
    (void)snprintf(gate.sent[gate.n].id, ONCE_ID_SIZE, "%s", m->id);
    (void)snprintf(gate.sent[gate.n].key, sizeof(gate.sent[0].key), "%s",
                   m->key == NULL ? "" : m->key);
    gate.sent[gate.n].tag = tag;
    gate.sent[gate.n].state = OPEN;
    gate.n++;
    gate.open++;
    lost = gate.lost;
    (void)pthread_mutex_unlock(&gate.lock);
    return lost ? once__fail(err, ONCE_EAWAY, "lost") : ONCE_OK;
}

/* Those that were sent first have their proof first. */
static size_t gate_proofs(struct once__broker *b, uint32_t wait_ms,
                          struct once__proof *out, size_t max)
{
    uint64_t until = once__steady_ms() + wait_ms;
    size_t n = 0, i;
    int silent;

    (void)b;
    (void)pthread_mutex_lock(&gate.lock);
    while ((gate.open == 0 || (gate.allowed == 0 && !gate.lost)) &&
           once__steady_ms() < until)
        once__cond_until(&gate.changed, &gate.lock, until);
    for (i = 0; i < gate.n && n < max && (gate.lost || gate.allowed > 0); i++) {
        if (gate.sent[i].state != OPEN)
            continue;
        silent = gate.lost || gate.silent > 0;
        gate.allowed -= !gate.lost;
        gate.silent -= gate.silent > 0;
        gate.sent[i].state = PROVED;
        gate.open--;
        out[n++] = (struct once__proof){.tag = gate.sent[i].tag,
                                        .end = silent ? ONCE__END_SILENT
                                                      : ONCE__END_TAKEN};
    }
    (void)pthread_mutex_unlock(&gate.lock);
    return n;
}

static void gate_abandon(struct once__broker *b)
{
    (void)b;
    (void)pthread_mutex_lock(&gate.lock);
    gate.lost = 1;
    (void)pthread_mutex_unlock(&gate.lock);
}

const struct once__broker_ops gate_ops;
const struct once__broker_ops gate_ops = {
    .scheme = "gate",
    .knows_ids = 1,
    .open = gate_open_,
    .close = gate_close,
    .connect = gate_connect,
    .send = gate_send,
    .proofs = gate_proofs,
    .abandon = gate_abandon,
};

const struct once__broker_ops *__wrap_once__broker_find(const char *url,
                                                        once_error *err);

const struct once__broker_ops *__wrap_once__broker_find(const char *url,
                                                        once_error *err)
{
    (void)url;
    (void)err;
    return &gate_ops;
}

/* ---- The clerk ----------------------------------------------------------- */

static struct {
    atomic_int late;       /* the next claim that finds nothing ends when a load
                            * has come back */
    atomic_int with_work;  /* how often it went to rest with a load to settle */
    struct timespec pause; /* between two looks for it */
    _Atomic(struct once__sender *) of; /* who claimed last */
} clerk = {.pause = {0, 1000000}};

static void allow(size_t n);

static int has_load(struct once__sender *w)
{
    int has;

    (void)pthread_mutex_lock(&w->desk.lock);
    has = w->desk.carried != NULL;
    (void)pthread_mutex_unlock(&w->desk.lock);
    return has;
}

/* Whether a load lies on the desk that is not with the target yet. Its lease is in
 * the database a moment before. */
static int is_on_desk(void)
{
    struct once__sender *w = atomic_load(&clerk.of);
    int is;

    (void)pthread_mutex_lock(&w->desk.lock);
    is = w->desk.claimed != NULL;
    (void)pthread_mutex_unlock(&w->desk.lock);
    return is;
}

int __real_once__source_claim(struct once__sender *w, size_t n,
                              struct once__outgoing_list *out,
                              uint64_t *claimed_ms);
int __wrap_once__source_claim(struct once__sender *w, size_t n,
                              struct once__outgoing_list *out,
                              uint64_t *claimed_ms);

int __wrap_once__source_claim(struct once__sender *w, size_t n,
                              struct once__outgoing_list *out,
                              uint64_t *claimed_ms)
{
    int some = __real_once__source_claim(w, n, out, claimed_ms);
    uint64_t until = once__steady_ms() + patient_ms(PATIENCE_MS);

    atomic_store(&clerk.of, w);
    if (some != 0 || atomic_exchange(&clerk.late, 0) == 0)
        return some;
    allow(SIZE_MAX);
    while (!has_load(w) && once__steady_ms() < until)
        (void)nanosleep(&clerk.pause, NULL);
    return some;
}

void __real_once__source_rest(struct once__sender *w);
void __wrap_once__source_rest(struct once__sender *w);

void __wrap_once__source_rest(struct once__sender *w)
{
    atomic_fetch_add(&clerk.with_work, has_load(w));
    __real_once__source_rest(w);
}

/* ---- What the gate is told ----------------------------------------------- */

/* So many more proofs may be given; the rest of the gate is as it is told. */
static void allow(size_t n)
{
    (void)pthread_mutex_lock(&gate.lock);
    gate.allowed = n;
    (void)pthread_cond_broadcast(&gate.changed);
    (void)pthread_mutex_unlock(&gate.lock);
}

static void lose(int away)
{
    (void)pthread_mutex_lock(&gate.lock);
    gate.lost = 1;
    gate.away = away;
    (void)pthread_cond_broadcast(&gate.changed);
    (void)pthread_mutex_unlock(&gate.lock);
}

static size_t sent(void)
{
    size_t n;

    (void)pthread_mutex_lock(&gate.lock);
    n = gate.n;
    (void)pthread_mutex_unlock(&gate.lock);
    return n;
}

/* ---- The relay ----------------------------------------------------------- */

static struct {
    pthread_t thread;
    int stop_fd, rc;
    char from[512], metrics[600];
} relay;

static void *run_relay(void *user)
{
    once_route route = ONCE_ROUTE_INIT;
    once_relay_options o = ONCE_RELAY_OPTIONS_INIT;

    (void)user;
    route.name = "r";
    route.url = "gate:";
    route.batch = BATCH;
    route.timeout_ms = 100000; /* longer than a busy machine stands still */
    o.from = relay.from;
    o.routes = &route;
    o.n = 1;
    o.stop_fd = relay.stop_fd;
    o.metrics = relay.metrics;
    relay.rc = once_relay(&o, NULL);
    return NULL;
}

static void relay_start(void)
{
    url_of_place(relay.from, sizeof(relay.from));
    (void)snprintf(relay.metrics, sizeof(relay.metrics), "/tmp/%s-%ld.prom",
                   "test_pipeline", (long)getpid());
    relay.stop_fd = eventfd(0, EFD_CLOEXEC);
    T_EQ(pthread_create(&relay.thread, NULL, run_relay, NULL), 0);
}

static void relay_tell(void)
{
    T_EQ(eventfd_write(relay.stop_fd, 1), 0);
}

static void relay_join(void)
{
    T_EQ(pthread_join(relay.thread, NULL), 0);
    T_EQ(relay.rc, ONCE_OK);
    (void)close(relay.stop_fd);
}

static void relay_end(void)
{
    relay_tell();
    relay_join();
    (void)unlink(relay.metrics);
}

/* A counter of the route, as the relay has written it at its end. */
static long counted(const char *name)
{
    FILE *f = fopen(relay.metrics, "r");
    char line[300];
    long n = -1;

    while (f != NULL && fgets(line, sizeof(line), f) != NULL)
        if (strncmp(line, name, strlen(name)) == 0)
            n = strtol(strchr(line, '}') + 1, NULL, 10);
    if (f != NULL)
        (void)fclose(f);
    return n;
}

/* ---- Rows ---------------------------------------------------------------- */

/* In a transaction that the caller has begun. */
static void add(struct db *d, size_t n, const char *key)
{
    once_message m = ONCE_MESSAGE_INIT;
    size_t i;

    m.route = "r";
    m.key = key;
    m.body = (once_bytes){"body", 4};
    for (i = 0; i < n; i++)
        T_EQ(once_emit(&d->tx, &m, NULL, NULL), ONCE_OK);
}

static void emit(struct db *d, size_t n, const char *key)
{
    begin(d);
    add(d, n, key);
    commit(d);
}

static long left(struct db *d)
{
    return number(d, "SELECT count(*) FROM @outbox");
}

/* Rows that some relay has claimed. */
static long leased(struct db *d)
{
    return number(d, d->pg == NULL
                         ? "SELECT count(*) FROM @outbox WHERE lease_ms>0"
                         : "SELECT coalesce(sum(cardinality(seqs)),0)+(SELECT "
                           "count(*) FROM @outbox WHERE lease_ms>0) FROM "
                           "@relay_lease");
}

/* What has failed already does not wait again. */
#define EVENTUALLY(condition)                                                  \
    do {                                                                       \
        uint64_t until_ = once__steady_ms() + patient_ms(PATIENCE_MS);         \
        while (!(condition) && t__bad == 0 && once__steady_ms() < until_)      \
            (void)usleep(2000);                                                \
        T_OK(condition);                                                       \
        if (t__bad > 0)                                                        \
            allow(SIZE_MAX); /* so that the relay ends */                      \
    } while (0)

/* A relay whose batches have grown; the gate is shut. */
static struct db warm(void)
{
    struct db d = db_new();

    (void)pthread_mutex_lock(&gate.lock);
    gate.n = gate.open = 0;
    gate.lost = gate.away = gate.two_of_a_key = gate.twice = 0;
    (void)pthread_mutex_unlock(&gate.lock);
    allow(SIZE_MAX);
    relay_start();
    emit(&d, 3 * BATCH, NULL);
    EVENTUALLY(left(&d) == 0);
    allow(0);
    return d;
}

static void end(struct db *d)
{
    T_EQ(gate.two_of_a_key, 0);
    T_EQ(gate.twice, 0);
    T_EQ(leased(d), 0);
    db_end(d);
}

/* ---- The tests ----------------------------------------------------------- */

/* Eight of twelve rows are claimed, and four of them sent; the next four go as
 * soon as the target has said a word. Then each batch is settled by itself. */
static void the_next_batch_is_claimed_while_one_is_sent(void)
{
    struct db d = warm();

    emit(&d, 3 * BATCH, NULL);
    EVENTUALLY(leased(&d) == 2 * BATCH);
    EVENTUALLY(sent() == 4 * BATCH);
    EVENTUALLY(is_on_desk());
    allow(1);
    EVENTUALLY(sent() == 5 * BATCH);
    allow(BATCH - 1);
    EVENTUALLY(left(&d) ==
               2 * BATCH); /* the first one, while the second waits */
    allow(BATCH);
    EVENTUALLY(left(&d) == BATCH);
    allow(SIZE_MAX);
    EVENTUALLY(left(&d) == 0);
    relay_tell();
    relay_join();
    T_EQ(counted("once_relay_claimed_total"), 6 * BATCH);
    T_EQ(counted("once_relay_sent_total"), 6 * BATCH);
    T_EQ(counted("once_relay_taken_total"), 6 * BATCH);
    T_EQ(counted("once_relay_fenced_total"), 0);
    (void)unlink(relay.metrics);
    end(&d);
}

/* The second batch passes over the key that the first one has. */
static void no_key_is_in_two_batches(void)
{
    struct db d = warm();
    int i;

    begin(&d);
    add(&d, BATCH - 1, NULL);
    add(&d, 2, "a"); /* the last of the first batch, and its successor */
    add(&d, BATCH, NULL);
    commit(&d);
    EVENTUALLY(leased(&d) == 2 * BATCH);
    EVENTUALLY(is_on_desk());
    allow(1);
    EVENTUALLY(sent() == 5 * BATCH);
    T_EQ(number(&d, "SELECT count(*) FROM @outbox WHERE %s='a'",
                as(&d, "key", "key", "`key`")),
         2);
    for (i = 0; i < 30; i++)
        emit(&d, 2, i % 2 ? "a" : "b");
    allow(SIZE_MAX);
    EVENTUALLY(left(&d) == 0);
    relay_end();
    end(&d);
}

/* What the target has is waited for; the other batch goes back, and no doubt is
 * left of it. */
static void a_stop_ends_both_batches(void)
{
    struct db d = warm();

    emit(&d, 3 * BATCH, NULL);
    EVENTUALLY(leased(&d) == 2 * BATCH);
    relay_tell();
    (void)usleep(300000);
    T_EQ(leased(&d), 2 * BATCH);
    allow(SIZE_MAX);
    relay_join();
    T_EQ(sent(), 4 * BATCH);
    T_EQ(left(&d), 2 * BATCH);
    T_EQ(number(&d, "SELECT count(*) FROM @outbox WHERE phase=0 AND doubt=0"),
         2 * BATCH);
    T_EQ(counted("once_relay_unsent_total"), BATCH);
    (void)unlink(relay.metrics);
    end(&d);
}

/* The connection is lost with the first batch: the second has not left. */
static void a_target_that_goes_leaves_no_doubt_about_the_second_batch(void)
{
    struct db d = warm();

    emit(&d, 2 * BATCH, NULL);
    EVENTUALLY(leased(&d) == 2 * BATCH);
    lose(1);
    EVENTUALLY(leased(&d) == 0);
    T_EQ(number(&d, "SELECT count(*) FROM @outbox WHERE doubt=1"), BATCH);
    T_EQ(number(&d, "SELECT count(*) FROM @outbox WHERE doubt=0 AND phase=0"),
         BATCH);
    T_EQ(sent(), 4 * BATCH);
    (void)pthread_mutex_lock(&gate.lock);
    gate.away = 0;
    (void)pthread_mutex_unlock(&gate.lock);
    allow(SIZE_MAX);
    EVENTUALLY(left(&d) == 0);
    relay_end();
    T_EQ(gate.twice, BATCH); /* those in doubt */
    gate.twice = 0;
    end(&d);
}

/* The connection is lost with both, and comes back at once: one row finds out
 * whether the target answers, and rows that were claimed before wait for it. */
static void one_row_goes_first_when_both_were_lost(void)
{
    struct db d = warm();
    size_t before;

    emit(&d, 4 * BATCH, NULL);
    EVENTUALLY(leased(&d) == 2 * BATCH);
    EVENTUALLY(is_on_desk());
    allow(1);
    EVENTUALLY(sent() == 5 * BATCH);
    before = sent();
    lose(0);
    EVENTUALLY(sent() > before);
    (void)usleep(300000);
    T_EQ(sent(), before + 1);
    T_EQ(leased(&d), 1);
    allow(SIZE_MAX);
    EVENTUALLY(left(&d) == 0);
    relay_end();
    gate.twice = 0;
    end(&d);
}

/* Nothing is known of the first batch, and the second has no proof yet. */
static void a_target_in_trouble_gets_no_third_batch(void)
{
    struct db d = warm();

    emit(&d, 4 * BATCH, NULL);
    EVENTUALLY(leased(&d) == 2 * BATCH);
    (void)pthread_mutex_lock(&gate.lock);
    gate.silent = BATCH;
    (void)pthread_mutex_unlock(&gate.lock);
    EVENTUALLY(is_on_desk());
    allow(1);
    EVENTUALLY(sent() == 5 * BATCH);
    allow(BATCH - 1);
    EVENTUALLY(leased(&d) == BATCH);
    (void)usleep(300000);
    T_EQ(sent(), 5 * BATCH);
    T_EQ(leased(&d), BATCH);
    allow(SIZE_MAX);
    EVENTUALLY(left(&d) == 0);
    relay_end();
    T_EQ(gate.twice, BATCH);
    gate.twice = 0;
    end(&d);
}

/* ---- Without memory ------------------------------------------------------- */

/* The next array of BATCH things of this size is not to be had. */
static atomic_size_t lacking;

void *__real_calloc(size_t n, size_t size);
void *__wrap_calloc(size_t n, size_t size);

void *__wrap_calloc(size_t n, size_t size)
{
    size_t want = atomic_load(&lacking);

    if (want != 0 && n == BATCH && size == want) {
        atomic_store(&lacking, 0);
        return NULL;
    }
    return __real_calloc(n, size);
}

static void a_batch_without_memory_is_not_settled(void)
{
    static const size_t sizes[] = {sizeof(size_t), sizeof(struct once__item)};
    size_t i, before;

    for (i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
        struct db d = warm();

        before = sent();
        allow(SIZE_MAX);
        atomic_store(&lacking, sizes[i]);
        emit(&d, BATCH, NULL);
        EVENTUALLY(atomic_load(&lacking) == 0);
        relay_end();
        T_EQ(sent() - before, 0);
        T_EQ(left(&d), BATCH);
        db_end(&d);
    }
}

/* It claims again after a pause, which gets longer. */
static void who_cannot_send_does_not_claim_all_the_time(void)
{
    struct db d = warm();
    long n;

    allow(SIZE_MAX);
    atomic_store(&gate.no_memory, 1);
    emit(&d, 3 * BATCH, NULL);
    EVENTUALLY(atomic_load(&gate.refused) > 0);
    n = atomic_load(&gate.refused);
    (void)sleep(2);
    T_OK(atomic_load(&gate.refused) - n < 200);
    atomic_store(&gate.no_memory, 0);
    EVENTUALLY(left(&d) == 0);
    relay_end();
    db_end(&d);
}

/* Else it would sleep, and with `drain` count what is left, before it settles. */
static void who_has_something_to_settle_does_not_rest(void)
{
    struct db d = warm();
    size_t before = sent();

    emit(&d, 1, NULL);
    EVENTUALLY(sent() == before + 1);
    atomic_store(&clerk.late, 1);
    EVENTUALLY(left(&d) == 0);
    T_EQ(atomic_load(&clerk.late), 0);
    T_EQ(atomic_load(&clerk.with_work), 0);
    relay_end();
    end(&d);
}

static void start_saga(struct db *d)
{
    once_saga_step steps[2] = {ONCE_SAGA_STEP_INIT, ONCE_SAGA_STEP_INIT};
    once_saga s = ONCE_SAGA_INIT;

    steps[0].try_to = steps[1].try_to = "r";
    s.gid = "s";
    s.kind = "trip";
    s.steps = steps;
    s.n = 2;
    begin(d);
    T_EQ(once_saga_start(&d->tx, &s, NULL, NULL), ONCE_OK);
    commit(d);
}

/* What its target has said is kept though its saga cannot be written; the saga goes on
 * when it can. */
static void a_call_whose_saga_cannot_move_is_settled_alone(void)
{
    struct db d = warm();
    size_t before = sent();

    start_saga(&d);
    EVENTUALLY(sent() == before + 1);
    allow_triggers(&d);
    refuse(&d, "UPDATE", "saga");
    allow(1);
    EVENTUALLY(number(&d, "SELECT count(*) FROM @outbox WHERE phase=2") == 1);
    refuse(&d, NULL, NULL);
    allow(SIZE_MAX);
    EVENTUALLY(number(&d, "SELECT state FROM @saga") == 3);
    relay_end();
    T_EQ(sent(), before + 2);
    T_EQ(gate.twice, 0);
    T_EQ(left(&d), 0);
    db_end(&d);
}

/* Or a drain that a lock has held up for a minute would end ten minutes later. */
static void a_question_that_was_held_up_is_asked_again_soon(void)
{
    T_EQ(once__sender_rest_ms(0, 200, 10000), 200);
    T_EQ(once__sender_rest_ms(100, 200, 10000), 1000);
    T_EQ(once__sender_rest_ms(60000, 200, 10000), 10000);
    T_EQ(once__sender_rest_ms(60000, 200, UINT64_MAX), 600000);
}

#define RUN(test) T_RUN_ONLY(only, test)

int main(int argc, char **argv)
{
    const char *what = argc > 1 ? argv[1] : "sqlite";
    const char *only = argc > 2 ? argv[2] : NULL;

    once__cond_init(&gate.changed);
    if (!take_database(what))
        only = what;
    RUN(the_next_batch_is_claimed_while_one_is_sent);
    RUN(no_key_is_in_two_batches);
    RUN(a_stop_ends_both_batches);
    RUN(a_target_that_goes_leaves_no_doubt_about_the_second_batch);
    RUN(one_row_goes_first_when_both_were_lost);
    RUN(a_target_in_trouble_gets_no_third_batch);
    RUN(a_batch_without_memory_is_not_settled);
    RUN(who_cannot_send_does_not_claim_all_the_time);
    RUN(who_has_something_to_settle_does_not_rest);
    RUN(a_call_whose_saga_cannot_move_is_settled_alone);
    RUN(a_question_that_was_held_up_is_asked_again_soon);
    return t_done();
}
