/* SPDX-License-Identifier: Apache-2.0 */
/*
 * conformance.c - the definition of a correct store: `conformance STORE`.
 *
 * Every store gets the same questions through the same functions, and every
 * answer is compared with once__transition() on a model of the record. Where a
 * store says "unknown" the model follows both branches: a name has a set of
 * records that it may have now, each answer must fit one of them at least, and
 * those that it does not fit are struck. A store that never says "unknown" has
 * sets of one record, so the same text holds both to the same rules.
 *
 * Which fence a store grants is its own affair: the model takes it over, after
 * checking that it is new in the whole run and larger than the last of its
 * name. Nothing here is timed; the clock is moved by hand.
 */
#include <assert.h>
#include <pthread.h>
#include <sys/wait.h>
#include <unistd.h>

#include <once/store.h>

#include "calls/core/transition.h"
#include "calls/store/store.h"
#include "own_database.h"
#include "t.h"

enum {
    MAYBE_MAX = 4096, /* records that one name may have  */
    BATCH_MAX = 512,  /* questions in one batch           */
    TRIES_MAX = 64,   /* of one batch before we give up   */
    FENCES = 1 << 18  /* slots of the table of fences     */
};

#define BIRTH UINT64_C(1700000000000)
#define PLACEHOLDER (UINT64_C(1) << 61) /* a fence that nobody has seen yet */

/* ---- Stores by name ---------------------------------------------------- */

/* Writes the URL of a store that is nobody else's. */
typedef void make_url(char *out, size_t size, const char *folder,
                      unsigned seed);

static char folder[64];
static const char *store_name; /* as on the command line, less "faulty_" */
static int in_process;         /* it has no path */

/* Any store that is in memory, a file or a folder. */
static void local_url(char *out, size_t size, const char *in, unsigned seed)
{
    if (in_process)
        (void)snprintf(out, size, "%s:", store_name);
    else
        (void)snprintf(out, size, "%s:%s/%u?busy_ms=30000", store_name, in,
                       seed);
}

/* So small that segments end, are compacted and used again all the time. */
static void journal_small_url(char *out, size_t size, const char *in,
                              unsigned seed)
{
    (void)snprintf(out, size, "journal:%s/%u?busy_ms=30000&segment=65536", in,
                   seed);
}

/* Windows in which batches are refused, or applied and not answered. Some are
 * early, for short tests; where they lie depends on the seed. */
static void faulty_rules(char *out, size_t size, unsigned seed)
{
    unsigned i = seed % 7;

    (void)snprintf(out, size,
                   "faulty:lose=any:%u-%u,fail=claim:%u-%u,lose=claim:%u-%u,"
                   "lose=complete:%u-%u,fail=any:%u-%u,lose=renew:%u,"
                   "lose=release:%u-%u,lose=reap:%u,lose=forget:%u,"
                   "lose=resolve:1,lose=give_up:%u-%u,lose=reopen:1,"
                   "lose=dispatch:%u,lose=any:%u-%u@",
                   2 + i, 3 + i, 5 + i, 7 + i, 11 + i, 12 + i, 1 + i, 3 + i,
                   40 + i, 44 + i, 3 + i, 1 + i, 2 + i, 2 + i, 2 + i, 2 + i,
                   3 + i, 2 + i, 200 + 9 * i, 203 + 9 * i);
}

/*
 * A schema for each world, made by the owner's role. What is tested may be
 * another role, which has been given nothing but what a gateway needs.
 */
static void postgres_url(char *out, size_t size, const char *in, unsigned seed)
{
    const char *owner = getenv("ONCE_TEST_URL");
    const char *role = getenv("ONCE_TEST_ROLE_URL");
    once_error err = {0, ""};

    (void)in;
    if (owner == NULL)
        t_skip_all("ONCE_TEST_URL names no server");
    role = role == NULL ? owner : role;
    (void)snprintf(out, size, "%s%cschema=c%d_%u", owner,
                   strchr(owner, '?') == NULL ? '?' : '&', (int)getpid(), seed);
    if (once_store_init(out, &err) != ONCE_OK) {
        printf("Bail out! %s\n", err.text);
        exit(1);
    }
    (void)snprintf(out, size,
                   "%s%cschema=c%d_%u&lock_ms=30000&statement_ms=60000", role,
                   strchr(role, '?') == NULL ? '?' : '&', (int)getpid(), seed);
}

/* A database for each world. */
static void mysql_url(char *out, size_t size, const char *in, unsigned seed)
{
    char name[32];

    (void)in;
    (void)snprintf(name, sizeof(name), "c%d_%u", (int)getpid(), seed);
    own_database(out, size, name, "lock_ms=30000&statement_ms=60000");
}

/* Keys with a prefix of their own for each world: one server, a pair with
 * Sentinel or a cluster, whatever ONCE_TEST_URL names. */
static void redis_url(char *out, size_t size, const char *in, unsigned seed)
{
    const char *server = getenv("ONCE_TEST_URL");

    (void)in;
    if (server == NULL)
        t_skip_all("ONCE_TEST_URL names no server");
    (void)snprintf(out, size, "%s%cprefix=c%d_%u:&timeout_ms=10000", server,
                   strchr(server, '?') == NULL ? '?' : '&', (int)getpid(),
                   seed);
}

/* Stores that need more than a path: those on a server, and other sizes. */
static const struct {
    const char *name;
    make_url *url;
} special[] = {
    {"journal_small", journal_small_url},
    {"postgres", postgres_url},
    {"mysql", mysql_url},
    {"redis", redis_url},
};

static make_url *own_url;
static int is_faulty;
static int can_be_restored = 1; /* it has a head, and takes records back */

static void target_url(char *out, size_t size, unsigned seed)
{
    size_t used = 0;

    if (is_faulty) {
        faulty_rules(out, size, seed);
        used = strlen(out);
    }
    own_url(out + used, size - used, folder, seed);
}

/* NAME, "faulty_NAME", or "faulty", which is faulty_memory. 0: no such store. */
static int choose_target(const char *name)
{
    const struct once__store_line *lines;
    size_t n, i;

    is_faulty = strncmp(name, "faulty", 6) == 0;
    store_name = !is_faulty ? name : name[6] == '_' ? name + 7 : "memory";
    for (i = 0; i < sizeof(special) / sizeof(special[0]); i++)
        if (strcmp(special[i].name, store_name) == 0)
            own_url = special[i].url;
    lines = once__store_lines(&n);
    for (i = 0; own_url == NULL && i < n; i++)
        if (lines[i].place < ONCE__STORE_SERVER &&
            strcmp(lines[i].ops->name, store_name) == 0) {
            own_url = local_url;
            in_process = lines[i].place == ONCE__STORE_PROCESS;
        }
    return own_url != NULL;
}

static unsigned next_seed = 1;

/* ---- A world: one store and the model of it ---------------------------- */

struct slot {
    uint8_t name[ONCE_NAME_SIZE];
    uint64_t last_fence; /* the largest that was shown */
    int maybe, room;     /* how many of `may` there are */
    once_record *may;
};

struct world {
    char url[512];
    once_store *store;
    uint64_t now_ms;
    uint64_t random;
    uint64_t placeholder;
    uint64_t *fences; /* seen, open addressing */
    struct slot *slots;
    size_t count;
    uint32_t seen[ONCE__OP_END][ONCE_REFUSED + 1];
    uint32_t unknown; /* batches that were repeated */
};

struct question {
    once_op op;
    struct slot *slot;
};

static uint64_t world_clock(void *user)
{
    return ((struct world *)user)->now_ms;
}

static uint64_t draw(struct world *w)
{
    w->random ^= w->random << 13;
    w->random ^= w->random >> 7;
    w->random ^= w->random << 17;
    return w->random;
}

static unsigned pick(struct world *w, unsigned n)
{
    return (unsigned)(draw(w) >> 33) % n;
}

static int world_connect(struct world *w)
{
    once_store_options options = {
        sizeof(options), world_clock, w, 0, 1, NULL, NULL, 0};
    once_error err = {0, ""};
    int rc = once_store_open(w->url, &options, &err, &w->store);

    if (rc != ONCE_OK)
        printf("#   %s: %s\n", w->url, err.text);
    T_EQ(rc, ONCE_OK);
    if (rc != ONCE_OK)
        exit(1);
    return rc;
}

static struct world *world_open(size_t names)
{
    struct world *w = calloc(1, sizeof(*w));
    size_t i;

    assert(w != NULL);
    w->fences = calloc(FENCES, sizeof(*w->fences));
    w->slots = calloc(names, sizeof(*w->slots));
    assert(w->fences != NULL && w->slots != NULL);
    w->now_ms = BIRTH;
    w->count = names;
    w->random = 0x9e3779b97f4a7c15u * (next_seed + 1);
    for (i = 0; i < names; i++) {
        size_t k;

        for (k = 0; k < ONCE_NAME_SIZE; k++)
            w->slots[i].name[k] = (uint8_t)(draw(w) >> 24);
        w->slots[i].maybe = w->slots[i].room = 1;
        w->slots[i].may = calloc(1, sizeof(once_record));
        assert(w->slots[i].may != NULL);
    }
    target_url(w->url, sizeof(w->url), next_seed++);
    (void)world_connect(w);
    return w;
}

static void world_close(struct world *w)
{
    size_t i;

    once_store_close(w->store);
    for (i = 0; i < w->count; i++)
        free(w->slots[i].may);
    free(w->fences);
    free(w->slots);
    free(w);
}

static void world_reopen(struct world *w)
{
    once_store_close(w->store);
    w->store = NULL;
    (void)world_connect(w);
}

/* ---- Comparing --------------------------------------------------------- */

static uint64_t *fence_slot(struct world *w, uint64_t fence)
{
    size_t i = (size_t)((fence * 0x9e3779b97f4a7c15u) >> 40) % FENCES;

    while (w->fences[i] != 0 && w->fences[i] != fence)
        i = (i + 1) % FENCES;
    return &w->fences[i];
}

static int same_bytes(once_bytes a, once_bytes b)
{
    return a.size == b.size &&
           (a.size == 0 || memcmp(a.data, b.data, a.size) == 0);
}

/* `bodies` 0: as a scan shows it, the result's size only. */
static int same_record(const once_record *a, const once_record *b, int bodies)
{
    return a->state == b->state && a->kind == b->kind &&
           a->policy == b->policy && a->doubt == b->doubt &&
           a->attempt == b->attempt && a->fence == b->fence &&
           a->lease_ms == b->lease_ms && a->keep_ms == b->keep_ms &&
           a->granted_ms == b->granted_ms && a->created_ms == b->created_ms &&
           a->ended_ms == b->ended_ms && a->reason == b->reason &&
           memcmp(a->trace, b->trace, ONCE_TRACE_SIZE) == 0 &&
           memcmp(a->subject, b->subject, ONCE_SUBJECT_SIZE) == 0 &&
           same_bytes(a->label, b->label) &&
           memcmp(a->token, b->token, ONCE_TOKEN_SIZE) == 0 &&
           memcmp(a->fingerprint, b->fingerprint, ONCE_FINGERPRINT_SIZE) == 0 &&
           memcmp(a->group, b->group, ONCE_GROUP_SIZE) == 0 &&
           same_bytes(a->note, b->note) &&
           (bodies ? same_bytes(a->result, b->result)
                   : a->result.size == b->result.size);
}

/*
 * A fence that the model has not seen yet may be any that is new in this run
 * and larger than the last of its name.
 */
static void learn_fence(struct world *w, struct slot *s, uint64_t shown,
                        once_record *r)
{
    if (r->fence < PLACEHOLDER || shown <= s->last_fence ||
        shown >= PLACEHOLDER || *fence_slot(w, shown) != 0)
        return;
    r->fence = shown;
}

/* Adds `r` behind the first `*n` unless it is among them. */
static void add_maybe(struct slot *s, int *n, const once_record *r)
{
    int i;

    for (i = 0; i < *n; i++)
        if (same_record(&s->may[i], r, 1))
            return;
    if (*n == s->room) {
        s->room *= 2;
        assert(s->room <= MAYBE_MAX);
        s->may = realloc(s->may, (size_t)s->room * sizeof(*r));
        assert(s->may != NULL);
    }
    s->may[(*n)++] = *r;
}

/* What the model says to the same question about one possible record. */
static once_op model(struct world *w, const once_op *asked, once_record *r)
{
    once_op op = *asked;
    uint64_t fence = PLACEHOLDER + w->placeholder++;

    (void)once__transition(r, &op, w->now_ms, &fence);
    return op;
}

/* The batch was not answered: each question may have been applied, or not. */
static void branch(struct world *w, struct question *q)
{
    struct slot *s = q->slot;
    once_record r;
    int i, n = s->maybe, all = s->maybe;

    for (i = 0; i < n; i++) {
        r = s->may[i];
        (void)model(w, &q->op, &r);
        add_maybe(s, &all, &r);
    }
    s->maybe = all;
}

static void complain(const struct slot *s, const struct question *q,
                     const once_op *said)
{
    const once_record *a = &q->op.record, *b = &said->record;

    printf("#   verb %d: answered %s, the model says %s (of %d)\n", q->op.verb,
           once_text(q->op.rc), once_text(said->rc), s->maybe);
    printf("#   state %u/%u kind %u/%u policy %u/%u doubt %u/%u attempt %u/%u "
           "fence %" PRIx64 "/%" PRIx64 "\n",
           a->state, b->state, a->kind, b->kind, a->policy, b->policy, a->doubt,
           b->doubt, a->attempt, b->attempt, a->fence, b->fence);
    printf("#   created %" PRIu64 "/%" PRIu64 " ended %" PRIu64 "/%" PRIu64
           " reason %u/%u label %.*s/%.*s\n",
           a->created_ms, b->created_ms, a->ended_ms, b->ended_ms, a->reason,
           b->reason, (int)a->label.size,
           a->label.size > 0 ? (const char *)a->label.data : "",
           (int)b->label.size,
           b->label.size > 0 ? (const char *)b->label.data : "");
    printf("#   lease %" PRIu64 "/%" PRIu64 " keep %" PRIu64 "/%" PRIu64
           " granted %" PRIu64 "/%" PRIu64 " left %" PRIu64 "/%" PRIu64
           " result %zu/%zu note %zu/%zu\n",
           a->lease_ms, b->lease_ms, a->keep_ms, b->keep_ms, a->granted_ms,
           b->granted_ms, q->op.left_ms, said->left_ms, a->result.size,
           b->result.size, a->note.size, b->note.size);
}

/* The batch was answered: strike what does not fit. */
static void judge(struct world *w, struct question *q)
{
    struct slot *s = q->slot;
    const once_record *shown = &q->op.record;
    once_record r;
    once_op said = q->op;
    int i, n = 0;

    for (i = 0; i < s->maybe; i++) {
        r = s->may[i];
        said = model(w, &q->op, &r);
        learn_fence(w, s, shown->fence, &said.record);
        if (said.rc != q->op.rc || said.left_ms != q->op.left_ms ||
            !same_record(&said.record, shown, 1))
            continue;
        r.fence = said.record.fence;
        add_maybe(s, &n, &r); /* n <= i: in place */
    }
    T_OK(n > 0);
    if (n == 0) {
        complain(s, q, &said);
        exit(1); /* all that follows would be noise */
    }
    s->maybe = n;
    if (shown->fence > 0)
        *fence_slot(w, shown->fence) = shown->fence;
    if (shown->fence > s->last_fence)
        s->last_fence = shown->fence;
    w->seen[q->op.verb][q->op.rc]++;
}

/* ---- Asking ------------------------------------------------------------ */

static void ask(struct world *w, struct question *q, size_t n)
{
    once_op *ops[BATCH_MAX];
    once_error err = {0, ""};
    size_t i;
    int rc = ONCE_ESTORE, tries;

    assert(n <= BATCH_MAX);
    for (tries = 0; tries < TRIES_MAX && rc != ONCE_OK; tries++) {
        for (i = 0; i < n; i++) {
            assert(once__op_check(&q[i].op, NULL) == ONCE_OK);
            ops[i] = &q[i].op;
        }
        rc = w->store->ops->apply(w->store, ops, n, &err);
        for (i = 0; i < n; i++)
            if (rc == ONCE_OK)
                judge(w, &q[i]);
            else
                branch(w, &q[i]);
        w->unknown += rc != ONCE_OK;
        if (rc != ONCE_OK)
            T_EQ(rc, ONCE_ESTORE);
    }
    T_EQ(rc, ONCE_OK);
    if (rc != ONCE_OK)
        printf("#   %s\n", err.text);
}

static void token_of(uint8_t *out, unsigned who)
{
    unsigned i;

    for (i = 0; i < ONCE_TOKEN_SIZE; i++)
        out[i] = (uint8_t)(who * 37 + i * who);
}

/* Of each size, the longest and none among them. */
static once_bytes label(unsigned i)
{
    static const char text[] =
        "POST /v1/charges order=4711 ~ abcdefghijklmnopqrstuvwxyz 0123456789 "
        "ABCDEFGHIJKLMNOPQRSTUVWXYZ !\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}  the end";
    static const size_t sizes[] = {0, 27, ONCE_LABEL_MAX, 1};

    static_assert(sizeof(text) > ONCE_LABEL_MAX, "the longest label");
    return (once_bytes){text, sizes[i % 4]};
}

static void question(struct question *q, struct slot *s, int verb, unsigned who)
{
    memset(q, 0, sizeof(*q));
    q->slot = s;
    q->op.verb = verb;
    q->op.kind = ONCE_SUCCESS;
    q->op.lease_ms = 1000;
    q->op.keep_ms = 60000;
    q->op.fence = s->last_fence;
    memcpy(q->op.name, s->name, ONCE_NAME_SIZE);
    token_of(q->op.token, who);
    memset(q->op.fingerprint, 0xf1, ONCE_FINGERPRINT_SIZE);
    q->op.label = label(who);
    q->op.reason = (int)(1 + who % (ONCE__REASON_END - 1));
    if (who % 2 != 0) {
        memset(q->op.trace, (int)(0x40 + who), ONCE_TRACE_SIZE);
        memset(q->op.subject, (int)(0x80 + who), ONCE_SUBJECT_SIZE);
    }
}

static int ask_one(struct world *w, struct question *q)
{
    ask(w, q, 1);
    return q->op.rc;
}

static int simple(struct world *w, struct slot *s, int verb, unsigned who)
{
    struct question q;

    question(&q, s, verb, who);
    return ask_one(w, &q);
}

/* Results and notes of the random runs; they outlive every model. */
static once_bytes pool(unsigned i)
{
    static const size_t sizes[] = {0, 1, 7, 300, 301, 4000, 5000, 20000};
    static uint8_t bytes[8][20000];
    unsigned k = i % 8;
    size_t n;

    if (bytes[k][0] == 0)
        for (n = 0; n < sizes[k]; n++)
            bytes[k][n] = (uint8_t)(1 + k + n * (k + 1) % 254);
    return (once_bytes){bytes[k], sizes[k]};
}

static once_bytes note(unsigned i)
{
    static const char text[ONCE_NOTE_MAX] = "jo, 2024-01-01: the bank says yes";
    static const size_t sizes[] = {0, 33, ONCE_NOTE_MAX};

    return (once_bytes){text, sizes[i % 3]};
}

/* ---- Scans against the model ------------------------------------------- */

struct walk {
    struct world *w;
    int what;
    uint32_t shown, stop_at;
    once_position first, last;
};

static struct slot *find(struct world *w, const uint8_t *name)
{
    size_t i;

    for (i = 0; i < w->count; i++)
        if (memcmp(w->slots[i].name, name, ONCE_NAME_SIZE) == 0)
            return &w->slots[i];
    return NULL;
}

/* What the scan `what` must show. */
static int is_shown(const struct world *w, const once_record *r, int what)
{
    switch (what) {
    case ONCE_SCAN_ALL:
        return r->attempt > 0;
    case ONCE_SCAN_WAITING:
        return r->state == ONCE_INDETERMINATE;
    case ONCE_SCAN_LIVE:
        return r->state == ONCE_CLAIMED || r->state == ONCE_DISPATCHED;
    default:
        return once__record_due(r, w->now_ms) == what;
    }
}

static int is_in_order(int what)
{
    return what != ONCE_SCAN_LEASE && what != ONCE_SCAN_KEEP;
}

static int is_before(const once_position *a, once_position b)
{
    return a->ms != b.ms ? a->ms < b.ms
                         : memcmp(a->name, b.name, ONCE_NAME_SIZE) < 0;
}

static int walk_each(void *user, const uint8_t *name, const once_record *r)
{
    struct walk *k = user;
    struct slot *s = find(k->w, name);

    T_OK(s != NULL && s->maybe == 1);
    T_OK(s != NULL && s->may[0].attempt > 0 && same_record(&s->may[0], r, 0));
    T_OK(r->result.data == NULL);
    T_OK(is_shown(k->w, r, k->what));
    if (is_in_order(k->what) && k->shown > 0)
        T_OK(is_before(&k->last, once_position_of(k->what, name, r)));
    k->last = once_position_of(k->what, name, r);
    if (k->shown == 0)
        k->first = k->last;
    k->shown++;
    return k->shown == k->stop_at;
}

static int scan(struct world *w, struct walk *k, int what,
                const once_position *after, uint32_t max)
{
    once_error err = {0, ""};
    int rc;

    memset(k, 0, sizeof(*k));
    k->w = w;
    k->what = what;
    rc = w->store->ops->scan(w->store, what, after, max, walk_each, k, &err);
    T_EQ(rc, k->shown);
    return rc;
}

static uint32_t expected(const struct world *w, int what)
{
    uint32_t n = 0;
    size_t i;

    for (i = 0; i < w->count; i++)
        n += (uint32_t)is_shown(w, &w->slots[i].may[0], what);
    return n;
}

static int certain(const struct world *w)
{
    size_t i;

    for (i = 0; i < w->count; i++)
        if (w->slots[i].maybe != 1 || w->slots[i].may[0].fence >= PLACEHOLDER)
            return 0;
    return 1;
}

/* Looks at each name, so that nothing is left to guess. */
static void make_certain(struct world *w)
{
    size_t i;

    for (i = 0; i < w->count; i++)
        if (w->slots[i].maybe != 1 || w->slots[i].may[0].fence >= PLACEHOLDER)
            (void)simple(w, &w->slots[i], ONCE_OP_SHOW, 1);
    T_OK(certain(w));
}

static uint64_t in_state(const struct world *w, int state)
{
    uint64_t n = 0;
    size_t i;

    for (i = 0; i < w->count; i++)
        n +=
            w->slots[i].may[0].attempt > 0 && w->slots[i].may[0].state == state;
    return n;
}

static void counts_agree(struct world *w)
{
    once_counts n;
    once_error err = {0, ""};
    int rc;

    if (w->store->ops->count == NULL)
        return; /* it does not count */
    rc = w->store->ops->count(w->store, &n, &err);
    T_EQ(rc, ONCE_OK);
    if (rc != ONCE_OK)
        return;
    T_EQ(n.claimed, in_state(w, ONCE_CLAIMED));
    T_EQ(n.dispatched, in_state(w, ONCE_DISPATCHED));
    T_EQ(n.indeterminate, in_state(w, ONCE_INDETERMINATE));
    if (!n.rest_estimated)
        T_EQ(n.rest, in_state(w, ONCE_ABSENT) + in_state(w, ONCE_COMPLETED));
}

static void scans_agree(struct world *w)
{
    struct walk k;
    int what;

    make_certain(w);
    for (what = ONCE_SCAN_ALL; what < ONCE__SCAN_END; what++)
        T_EQ(scan(w, &k, what, NULL, 1 << 20), expected(w, what));
    counts_agree(w);
}

/* ---- Every row of the table -------------------------------------------- */

/*
 * How a record gets into its state; all by attempt A, but for `t`.
 *   1, 2  claim, one-phase or two-phase    d  dispatch   c, f  complete
 *   g     give up   r  release   R  resolve: outcome
 *   t     claim by attempt B, two-phase, with takeover: leaves doubt
 *   l, k  the clock passes every lease, every retention
 */
static const char *const ways[] = {
    "",     "1",    "2",     "1l",   "2l",   "2d",   "2dl",  "1c",  "1f",
    "1ck",  "1fk",  "1g",    "1gk",  "1r",   "2r",   "1rk",  "1gR", "1lt",
    "1ltl", "1ltd", "1ltdl", "1ltc", "1ltf", "1ltg", "1fkt",
};

enum { WAYS = sizeof(ways) / sizeof(ways[0]), A = 1, B = 2, C = 3 };

static int step_verb(char step)
{
    switch (step) {
    case 'd':
        return ONCE_OP_DISPATCH;
    case 'c':
    case 'f':
        return ONCE_OP_COMPLETE;
    case 'g':
        return ONCE_OP_GIVE_UP;
    case 'r':
        return ONCE_OP_RELEASE;
    case 'R':
        return ONCE_OP_RESOLVE;
    default:
        return ONCE_OP_CLAIM;
    }
}

static void step_question(struct question *q, struct slot *s, const char *way,
                          size_t at, uint32_t policy)
{
    char step = way[at];
    const char *t = strchr(way, 't');
    int b = t != NULL && t <= way + at;

    question(q, s, step_verb(step), b ? B : A);
    q->op.policy = policy;
    q->op.two_phase = step == '2' || step == 't';
    q->op.kind = step == 'f' ? ONCE_FAILURE : ONCE_SUCCESS;
    if (q->op.verb == ONCE_OP_COMPLETE || q->op.verb == ONCE_OP_RESOLVE)
        q->op.result = pool(3);
    if (q->op.verb == ONCE_OP_RESOLVE)
        q->op.note = note(1);
}

static uint64_t wrong(unsigned choice, uint64_t fence)
{
    return choice == 0 ? fence : choice == 1 ? fence + 1000000 : 0;
}

/* How many ways there are to put each question. */
static const unsigned variants[ONCE__OP_END] = {
    [ONCE_OP_CLAIM] = 48,    [ONCE_OP_DISPATCH] = 9, [ONCE_OP_RENEW] = 9,
    [ONCE_OP_COMPLETE] = 36, [ONCE_OP_RELEASE] = 9,  [ONCE_OP_GIVE_UP] = 9,
    [ONCE_OP_READ] = 2,      [ONCE_OP_REAP] = 1,     [ONCE_OP_RESOLVE] = 6,
    [ONCE_OP_REOPEN] = 3,    [ONCE_OP_FORGET] = 9,   [ONCE_OP_SHOW] = 2,
};

static void last_question(struct question *q, struct slot *s, int verb,
                          unsigned v)
{
    question(q, s, verb, A + v % 3);
    switch (verb) {
    case ONCE_OP_CLAIM:
        q->op.policy = v / 3 % 4;
        q->op.two_phase = v / 12 % 2;
        if (v / 24)
            q->op.fingerprint[31] ^= 1;
        break;
    case ONCE_OP_READ:
    case ONCE_OP_SHOW:
        q->op.fingerprint[0] ^= (uint8_t)v;
        break;
    case ONCE_OP_RESOLVE:
    case ONCE_OP_REOPEN:
        q->op.fence = wrong(v % 3, s->last_fence);
        q->op.kind = v / 3 ? ONCE_FAILURE : ONCE_SUCCESS;
        q->op.result = verb == ONCE_OP_RESOLVE ? pool(4) : pool(0);
        q->op.note = note(2);
        break;
    default:
        q->op.fence = wrong(v / 3 % 3, s->last_fence);
        q->op.kind = v / 9 % 2 ? ONCE_FAILURE : ONCE_SUCCESS;
        if (verb == ONCE_OP_COMPLETE)
            q->op.result = v / 18 ? pool(4) : pool(3);
    }
}

static unsigned all_variants(void)
{
    unsigned n = 0;
    int verb;

    for (verb = 1; verb < ONCE__OP_END; verb++)
        n += variants[verb];
    return n;
}

/* One state, from which every question is put to a name of its own. */
static void table_state(struct world *w, struct slot *slots, const char *way,
                        uint32_t policy)
{
    static struct question q[BATCH_MAX];
    unsigned n = all_variants(), i, v;
    size_t at;
    int verb;

    assert(n <= BATCH_MAX);
    for (at = 0; way[at] != '\0'; at++) {
        if (way[at] == 'l' || way[at] == 'k') {
            w->now_ms += way[at] == 'l' ? 1000 : 60000;
            continue;
        }
        for (i = 0; i < n; i++)
            step_question(&q[i], &slots[i], way, at, policy);
        ask(w, q, n);
    }
    i = 0;
    for (verb = 1; verb < ONCE__OP_END; verb++)
        for (v = 0; v < variants[verb]; v++, i++)
            last_question(&q[i], &slots[i], verb, v);
    ask(w, q, n);
}

static void every_row_of_the_table_is_as_the_core_decides(void)
{
    unsigned n = all_variants();
    struct world *w = world_open((size_t)WAYS * 4 * n);
    struct slot *s = w->slots;
    size_t way;
    uint32_t policy;

    for (way = 0; way < WAYS; way++)
        for (policy = 0; policy < 4; policy++, s += n)
            table_state(w, s, ways[way], policy);
    world_close(w);
}

/* ---- Long random runs -------------------------------------------------- */

static const uint8_t weights[] = {
    ONCE_OP_CLAIM,    ONCE_OP_CLAIM,    ONCE_OP_CLAIM,    ONCE_OP_CLAIM,
    ONCE_OP_CLAIM,    ONCE_OP_DISPATCH, ONCE_OP_DISPATCH, ONCE_OP_RENEW,
    ONCE_OP_COMPLETE, ONCE_OP_COMPLETE, ONCE_OP_COMPLETE, ONCE_OP_RELEASE,
    ONCE_OP_GIVE_UP,  ONCE_OP_READ,     ONCE_OP_REAP,     ONCE_OP_REAP,
    ONCE_OP_RESOLVE,  ONCE_OP_REOPEN,   ONCE_OP_FORGET,   ONCE_OP_SHOW,
};

static void random_question(struct world *w, struct question *q)
{
    struct slot *s = &w->slots[pick(w, (unsigned)w->count)];
    const once_record *r = &s->may[0];

    question(q, s, weights[pick(w, sizeof(weights))], 1 + pick(w, 3));
    if (pick(w, 3) > 0 && r->attempt > 0) /* mostly the owner itself */
        memcpy(q->op.token, r->token, ONCE_TOKEN_SIZE);
    q->op.fence =
        pick(w, 8) > 0 ? s->last_fence : wrong(1 + pick(w, 2), s->last_fence);
    q->op.policy = pick(w, 3) == 0 ? pick(w, 4) : 3;
    q->op.two_phase = pick(w, 2);
    q->op.label = label(pick(w, 4));
    q->op.reason = (int)pick(w, ONCE__REASON_END);
    memset(q->op.group, (int)('a' + pick(w, 4)), pick(w, ONCE_GROUP_SIZE + 1));
    q->op.lease_ms = 10 + pick(w, 500);
    q->op.keep_ms = pick(w, 10) == 0 ? ONCE_KEEP_MAX_MS : pick(w, 3000);
    if (pick(w, 20) == 0)
        q->op.keep_ms += 100000; /* a result kept far longer than its claim */
    if (q->op.keep_ms > ONCE_KEEP_MAX_MS)
        q->op.keep_ms = ONCE_KEEP_MAX_MS;
    if (pick(w, 12) == 0)
        q->op.fingerprint[pick(w, ONCE_FINGERPRINT_SIZE)] ^= 0x80;
    q->op.kind = pick(w, 2) ? ONCE_FAILURE : ONCE_SUCCESS;
    if (q->op.verb == ONCE_OP_COMPLETE || q->op.verb == ONCE_OP_RESOLVE)
        q->op.result = pool(pick(w, 8));
    if (q->op.verb == ONCE_OP_RESOLVE || q->op.verb == ONCE_OP_REOPEN)
        q->op.note = note(pick(w, 3));
}

static void move_clock(struct world *w)
{
    switch (pick(w, 60)) {
    case 0: /* set back so far that a lease is longer than any may be */
        w->now_ms -= 2 * (uint64_t)ONCE_LEASE_MAX_MS;
        break;
    case 1:
        w->now_ms += 200000;
        break;
    default:
        w->now_ms += pick(w, 120);
    }
}

static void random_run(uint32_t (*seen)[ONCE_REFUSED + 1], int batches,
                       uint32_t *unknown)
{
    struct world *w = world_open(4);
    struct question q[12];
    int i, k, verb, n;

    for (i = 0; i < batches; i++) {
        n = 1 + (int)pick(w, 12);
        for (k = 0; k < n; k++)
            random_question(w, &q[k]);
        ask(w, q, (size_t)n);
        move_clock(w);
        if (pick(w, 16) == 0)
            scans_agree(w);
        if (w->store->ops->durable && pick(w, 100) == 0)
            world_reopen(w);
    }
    for (verb = 1; verb < ONCE__OP_END; verb++)
        for (k = 0; k <= ONCE_REFUSED; k++)
            seen[verb][k] += w->seen[verb][k];
    *unknown += w->unknown;
    world_close(w);
}

/* Every answer that a verb has; a run that has not met one proves nothing. */
static void every_answer_was_met(uint32_t (*seen)[ONCE_REFUSED + 1])
{
    static const uint16_t answers[ONCE__OP_END] = {
        [ONCE_OP_CLAIM] = 1 << ONCE_OWNER | 1 << ONCE_IN_FLIGHT |
                          1 << ONCE_REPLAY | 1 << ONCE_UNKNOWN |
                          1 << ONCE_LOST | 1 << ONCE_MISMATCH |
                          1 << ONCE_FENCED,
        [ONCE_OP_DISPATCH] = 1 << ONCE_OK | 1 << ONCE_LOST | 1 << ONCE_FENCED,
        [ONCE_OP_RENEW] = 1 << ONCE_OK | 1 << ONCE_LOST | 1 << ONCE_FENCED,
        [ONCE_OP_COMPLETE] = 1 << ONCE_OK | 1 << ONCE_FENCED,
        [ONCE_OP_RELEASE] = 1 << ONCE_OK | 1 << ONCE_FENCED,
        [ONCE_OP_GIVE_UP] = 1 << ONCE_OK | 1 << ONCE_FENCED,
        [ONCE_OP_READ] = 1 << ONCE_FREE | 1 << ONCE_MISMATCH |
                         1 << ONCE_IN_FLIGHT | 1 << ONCE_REPLAY |
                         1 << ONCE_UNKNOWN,
        [ONCE_OP_REAP] = 1 << ONCE_OK | 1 << ONCE_REFUSED,
        [ONCE_OP_RESOLVE] = 1 << ONCE_OK | 1 << ONCE_REFUSED,
        [ONCE_OP_REOPEN] = 1 << ONCE_OK | 1 << ONCE_REFUSED,
        [ONCE_OP_FORGET] = 1 << ONCE_OK | 1 << ONCE_REFUSED,
        [ONCE_OP_SHOW] = 1 << ONCE_FREE | 1 << ONCE_IN_FLIGHT |
                         1 << ONCE_REPLAY | 1 << ONCE_UNKNOWN,
    };
    int verb, rc;

    for (verb = 1; verb < ONCE__OP_END; verb++)
        for (rc = 0; rc <= ONCE_REFUSED; rc++) {
            if ((seen[verb][rc] > 0) == ((answers[verb] >> rc & 1) != 0))
                continue;
            printf("#   verb %d, answer %d: %u times\n", verb, rc,
                   seen[verb][rc]);
            T_OK(seen[verb][rc] > 0);
            T_OK(answers[verb] >> rc & 1);
        }
}

static void long_random_runs_differ_nowhere_from_the_core(void)
{
    uint32_t seen[ONCE__OP_END][ONCE_REFUSED + 1] = {{0}};
    uint32_t unknown = 0;
    int i;

    for (i = 0; i < 12; i++)
        random_run(seen, 400, &unknown);
    every_answer_was_met(seen);
    if (is_faulty)
        T_OK(unknown > 20); /* or the faults were not there */
    else
        T_EQ(unknown, 0);
}

/* ---- Named rules ------------------------------------------------------- */

static void one_name_several_times_in_a_batch_sees_the_earlier_ones(void)
{
    struct world *w = world_open(2);
    struct question q[6];

    question(&q[0], &w->slots[0], ONCE_OP_CLAIM, A);
    question(&q[1], &w->slots[0], ONCE_OP_CLAIM, B);
    question(&q[2], &w->slots[0], ONCE_OP_CLAIM, A);
    question(&q[3], &w->slots[0], ONCE_OP_READ, C);
    question(&q[4], &w->slots[0], ONCE_OP_SHOW, C);
    question(&q[5], &w->slots[1], ONCE_OP_SHOW, C);
    ask(w, q, 6);
    T_EQ(q[0].op.rc, ONCE_OWNER);
    T_EQ(q[1].op.rc, ONCE_IN_FLIGHT);
    T_EQ(q[2].op.rc, ONCE_OWNER);
    T_OK(q[2].op.record.fence == q[0].op.record.fence);
    T_EQ(q[3].op.rc, ONCE_IN_FLIGHT);
    T_EQ(q[4].op.rc, ONCE_IN_FLIGHT);
    T_EQ(q[5].op.rc, ONCE_FREE);
    question(&q[0], &w->slots[0], ONCE_OP_READ, B);
    question(&q[1], &w->slots[0], ONCE_OP_COMPLETE, A);
    q[1].op.result = pool(3);
    question(&q[2], &w->slots[0], ONCE_OP_CLAIM, B);
    ask(w, q, 3);
    T_EQ(q[1].op.rc, ONCE_OK);
    T_EQ(q[2].op.rc, ONCE_REPLAY);
    T_OK(same_bytes(q[2].op.record.result, pool(3)));
    world_close(w);
}

static void a_batch_may_be_empty_or_large(void)
{
    enum { N = 2048 };
    struct world *w = world_open(N);
    struct question *q = calloc(N, sizeof(*q));
    once_op *none[1] = {NULL};
    size_t i, at;

    assert(q != NULL);
    T_EQ(w->store->ops->apply(w->store, none, 0, NULL), ONCE_OK);
    for (i = 0; i < N; i++)
        question(&q[i], &w->slots[i], ONCE_OP_CLAIM, A);
    for (at = 0; at < N; at += BATCH_MAX)
        ask(w, q + at, BATCH_MAX);
    for (i = 0; i < N; i++)
        T_EQ(q[i].op.rc, ONCE_OWNER);
    scans_agree(w);
    free(q);
    world_close(w);
}

/* Answers of one batch are all valid together. */
static void results_of_all_sizes_come_back_with_the_same_bytes(void)
{
    static const size_t sizes[] = {0,    1,     2,     95,    4095,   4096,
                                   4097, 65535, 65536, 65537, 1 << 20};
    enum { N = sizeof(sizes) / sizeof(sizes[0]) };
    struct world *w = world_open(N);
    struct question q[N];
    uint8_t *bytes = malloc(sizes[N - 1]);
    size_t i;
    int round;

    assert(bytes != NULL);
    for (i = 0; i < sizes[N - 1]; i++)
        bytes[i] = (uint8_t)(draw(w) >> 20);
    for (i = 0; i < N; i++)
        question(&q[i], &w->slots[i], ONCE_OP_CLAIM, A);
    ask(w, q, N);
    for (i = 0; i < N; i++) {
        question(&q[i], &w->slots[i], ONCE_OP_COMPLETE, A);
        q[i].op.result = (once_bytes){bytes, sizes[i]};
    }
    ask(w, q, N);
    for (round = 0; round < 2; round++) {
        for (i = 0; i < N; i++)
            question(&q[i], &w->slots[i], round ? ONCE_OP_SHOW : ONCE_OP_CLAIM,
                     B);
        ask(w, q, N); /* compares all bytes with the model */
        for (i = 0; i < N; i++) {
            T_EQ(q[i].op.rc, ONCE_REPLAY);
            T_EQ(q[i].op.record.result.size, sizes[i]);
        }
        scans_agree(w);
        if (w->store->ops->durable)
            world_reopen(w);
    }
    world_close(w);
    free(bytes);
}

static void names_and_tokens_are_any_bytes(void)
{
    struct world *w = world_open(6);
    struct slot *s = w->slots;
    struct question q[6];
    uint8_t token[ONCE_TOKEN_SIZE] = {0};
    size_t i;

    memset(s[0].name, 0, ONCE_NAME_SIZE);
    memset(s[1].name, 0xff, ONCE_NAME_SIZE);
    memset(s[2].name, 0, ONCE_NAME_SIZE);
    s[2].name[31] = 1;
    memset(s[3].name, 0, ONCE_NAME_SIZE);
    s[3].name[0] = 1;
    memset(s[4].name, '\'', ONCE_NAME_SIZE);
    memset(s[5].name, 0x80, ONCE_NAME_SIZE);
    for (i = 0; i < 6; i++) {
        question(&q[i], &s[i], ONCE_OP_CLAIM, A);
        token[15] = (uint8_t)i; /* the first is all zero */
        memcpy(q[i].op.token, token, ONCE_TOKEN_SIZE);
        memset(q[i].op.fingerprint, (int)(i * 51), ONCE_FINGERPRINT_SIZE);
    }
    ask(w, q, 6);
    for (i = 0; i < 6; i++) {
        T_EQ(q[i].op.rc, ONCE_OWNER);
        T_EQ(q[i].op.record.attempt, 1);
        q[i].op.token[0] ^= 1; /* one bit, so somebody else */
    }
    ask(w, q, 6);
    for (i = 0; i < 6; i++)
        T_EQ(q[i].op.rc, ONCE_IN_FLIGHT);
    scans_agree(w);
    world_close(w);
}

static void a_note_is_kept_with_its_record(void)
{
    struct world *w = world_open(2);
    struct question q;

    T_EQ(simple(w, &w->slots[0], ONCE_OP_CLAIM, A), ONCE_OWNER);
    T_EQ(simple(w, &w->slots[0], ONCE_OP_GIVE_UP, A), ONCE_OK);
    question(&q, &w->slots[0], ONCE_OP_RESOLVE, C);
    q.op.result = pool(5);
    q.op.note = note(2);
    (void)ask_one(w, &q); /* when repeated it is refused: see the model */
    if (w->store->ops->durable)
        world_reopen(w);
    question(&q, &w->slots[0], ONCE_OP_CLAIM, B);
    T_EQ(ask_one(w, &q), ONCE_REPLAY);
    T_OK(same_bytes(q.op.record.note, note(2)));
    T_OK(same_bytes(q.op.record.result, pool(5)));
    scans_agree(w);
    world_close(w);
}

static void scans_show_what_is_due_in_pages_and_stop_when_told(void)
{
    enum { N = 90 };
    struct world *w = world_open(N);
    struct question q[N];
    struct walk k;
    once_position after;
    uint32_t sum = 0;
    int i, n;

    T_EQ(scan(w, &k, ONCE_SCAN_ALL, NULL, 10), 0);
    for (i = 0; i < N; i++) {
        question(&q[i], &w->slots[i], ONCE_OP_CLAIM, A);
        q[i].op.lease_ms = 10 + (uint32_t)i * 10;
        q[i].op.two_phase = i % 2 == 0;
    }
    ask(w, q, N);
    scans_agree(w);
    for (i = 0; i < 30; i++) {
        question(&q[i], &w->slots[i], ONCE_OP_COMPLETE, A);
        q[i].op.keep_ms = (uint64_t)i * 10;
        q[i].op.result = pool((unsigned)i);
    }
    ask(w, q, 30);
    for (i = 0; i < 20; i++) { /* at and around each moment */
        scans_agree(w);
        w->now_ms += i % 2 ? 49 : 1;
    }
    T_OK(expected(w, ONCE_SCAN_LEASE) > 5 && expected(w, ONCE_SCAN_KEEP) > 5);
    T_EQ(scan(w, &k, ONCE_SCAN_LEASE, NULL, 5), 5);
    T_EQ(scan(w, &k, ONCE_SCAN_KEEP, NULL, 5), 5);
    T_EQ(scan(w, &k, ONCE_SCAN_ALL, NULL, 0), 0);
    for (n = scan(w, &k, ONCE_SCAN_ALL, NULL, 7); n > 0;
         n = scan(w, &k, ONCE_SCAN_ALL, &after, 7)) {
        sum += (uint32_t)n;
        after = k.last;
    }
    T_EQ(sum, N);
    k = (struct walk){.w = w, .what = ONCE_SCAN_ALL, .stop_at = 3};
    T_EQ(w->store->ops->scan(w->store, ONCE_SCAN_ALL, NULL, 50, walk_each, &k,
                             NULL),
         3);
    world_close(w);
}

/* Turns the pages of one scan to its end: how many records were shown. */
static uint32_t turn_pages(struct world *w, int what, uint32_t page)
{
    struct walk k;
    once_position after;
    uint32_t sum = 0;
    int n;

    for (n = scan(w, &k, what, NULL, page); n > 0;
         n = scan(w, &k, what, &after, page)) {
        sum += (uint32_t)n;
        T_OK(sum == (uint32_t)n || is_before(&after, k.first));
        after = k.last;
    }
    return sum;
}

/* Indeterminate ones by their end, live ones by their lease; many of them have
 * the same time, and each must be shown once. */
static void what_waits_and_what_is_live_come_in_pages_in_order(void)
{
    enum { N = 120 };
    struct world *w = world_open(N);
    struct question q[N];
    int i;

    T_EQ(turn_pages(w, ONCE_SCAN_WAITING, 5), 0);
    T_EQ(turn_pages(w, ONCE_SCAN_LIVE, 5), 0);
    for (i = 0; i < N; i++) {
        question(&q[i], &w->slots[i], ONCE_OP_CLAIM, A);
        q[i].op.lease_ms = 60000 - (uint32_t)(i / 10) * 10;
        q[i].op.two_phase = i % 3 == 0;
    }
    ask(w, q, N);
    T_EQ(turn_pages(w, ONCE_SCAN_LIVE, 7), N);
    for (i = 0; i < N; i += 2) {
        question(&q[0], &w->slots[N - 2 - i], ONCE_OP_GIVE_UP, A);
        (void)ask_one(w, &q[0]);
        w->now_ms += i % 8 == 0;
    }
    make_certain(w);
    T_EQ(turn_pages(w, ONCE_SCAN_WAITING, 7), N / 2);
    T_EQ(turn_pages(w, ONCE_SCAN_WAITING, 1), N / 2);
    T_EQ(turn_pages(w, ONCE_SCAN_LIVE, 7), N / 2);
    if (w->store->ops->durable)
        world_reopen(w);
    scans_agree(w);
    T_EQ(turn_pages(w, ONCE_SCAN_WAITING, 7), N / 2);
    for (i = 1; i < N; i += 2)
        (void)simple(w, &w->slots[i], ONCE_OP_COMPLETE, A);
    for (i = 0; i < N; i += 4)
        (void)simple(w, &w->slots[i], ONCE_OP_COMPLETE, A);
    make_certain(w);
    T_EQ(turn_pages(w, ONCE_SCAN_LIVE, 7), 0);
    T_EQ(turn_pages(w, ONCE_SCAN_WAITING, 7), N / 4);
    scans_agree(w);
    world_close(w);
}

/* ---- The head, and what is brought back from a copy --------------------- */

static int is_zero(const uint8_t *bytes, size_t n)
{
    while (n > 0 && bytes[n - 1] == 0)
        n--;
    return n == 0;
}

/* The store as its owner has it, where another role is tested. */
static once_store *as_owner(struct world *w)
{
    const char *role = getenv("ONCE_TEST_ROLE_URL");
    once_store_options options = {
        sizeof(options), world_clock, w, 0, 1, NULL, NULL, 0};
    once_store *s = NULL;
    char url[512];

    if (own_url != postgres_url || role == NULL)
        return w->store;
    (void)snprintf(url, sizeof(url), "%s%s", getenv("ONCE_TEST_URL"),
                   strstr(w->url, role) + strlen(role));
    T_EQ(once_store_open(url, &options, NULL, &s), ONCE_OK);
    return s;
}

static void end_as_owner(struct world *w, once_store *s)
{
    if (s != w->store)
        once_store_close(s);
}

static void a_store_has_an_id_and_keeps_what_its_head_was_told(void)
{
    struct world *w = world_open(1), *other = world_open(1);
    const once_store_ops *ops = w->store->ops;
    once_store *owner = as_owner(w);
    once_store_head first, h, put;
    uint64_t fence;

    T_EQ(ops->head(w->store, NULL, &first, NULL), ONCE_OK);
    T_EQ(ops->head(other->store, NULL, &h, NULL), ONCE_OK);
    T_OK(!is_zero(first.id, ONCE_STORE_ID_SIZE));
    T_OK(memcmp(first.id, h.id, ONCE_STORE_ID_SIZE) != 0);
    T_EQ(first.incarnation, 0);
    T_EQ(first.gap, ONCE_GAP_NONE);
    T_EQ(ops->fence(w->store, &fence, NULL), ONCE_OK);
    T_EQ(fence, 0);
    put = first;
    put.incarnation = 3;
    put.gap = ONCE_GAP_HOLD;
    put.gap_from_ms = BIRTH - 1000;
    put.gap_until_ms = BIRTH + 1000;
    if (owner != w->store)
        T_EQ(ops->head(w->store, &put, &h, NULL), ONCE_ESTORE);
    T_EQ(owner->ops->head(owner, &put, &h, NULL), ONCE_OK);
    T_OK(memcmp(&h, &put, sizeof(h)) == 0);
    end_as_owner(w, owner);
    if (ops->durable)
        world_reopen(w);
    T_EQ(w->store->ops->head(w->store, NULL, &h, NULL), ONCE_OK);
    T_OK(memcmp(&h, &put, sizeof(h)) == 0);
    (void)simple(w, &w->slots[0], ONCE_OP_CLAIM, A);
    make_certain(w);
    T_OK(w->slots[0].last_fence > UINT64_C(3) << ONCE__FENCE_BITS);
    T_EQ(w->store->ops->fence(w->store, &fence, NULL), ONCE_OK);
    T_EQ(fence, w->slots[0].last_fence);
    world_close(w);
    world_close(other);
}

struct taken {
    once_named r[64];
    uint8_t bytes[64][1500];
    size_t n;
};

/* Copies a record with its bytes out of an answer. */
static void take(struct taken *t, const once_op *op)
{
    uint8_t *at = t->bytes[t->n];
    once_record *r = &t->r[t->n].record;
    once_bytes *parts[] = {&r->result, &r->note, &r->label};
    size_t i;

    *r = op->record;
    for (i = 0; i < 3; i++) {
        assert(at + parts[i]->size <= t->bytes[t->n] + sizeof(t->bytes[0]));
        if (parts[i]->size > 0)
            memcpy(at, parts[i]->data, parts[i]->size);
        parts[i]->data = at;
        at += parts[i]->size;
    }
    memcpy(t->r[t->n++].name, op->name, ONCE_NAME_SIZE);
}

static void what_is_imported_is_the_same_and_goes_on_from_there(void)
{
    struct world *from = world_open(WAYS), *to = world_open(WAYS);
    static struct taken t;
    once_store *owner;
    struct question q;
    size_t i, at;

    t.n = 0;
    for (i = 0; i < WAYS; i++)
        for (at = 0; ways[i][at] != '\0'; at++) {
            if (ways[i][at] == 'l' || ways[i][at] == 'k') {
                from->now_ms += ways[i][at] == 'l' ? 1000 : 60000;
                continue;
            }
            step_question(&q, &from->slots[i], ways[i], at, 3);
            (void)ask_one(from, &q);
        }
    make_certain(from);
    to->now_ms = from->now_ms;
    for (i = 0; i < WAYS; i++) {
        struct slot *s = &to->slots[i];

        memcpy(s->name, from->slots[i].name, ONCE_NAME_SIZE);
        question(&q, &from->slots[i], ONCE_OP_SHOW, C);
        (void)ask_one(from, &q);
        if (q.op.record.attempt == 0)
            continue;
        take(&t, &q.op);
        s->may[0] = t.r[t.n - 1].record;
        s->last_fence = s->may[0].fence;
        *fence_slot(to, s->last_fence) = s->last_fence;
    }
    T_OK(t.n > WAYS / 2);
    owner = as_owner(to);
    if (owner != to->store)
        T_EQ(to->store->ops->import(to->store, t.r, t.n, NULL), ONCE_ESTORE);
    T_EQ(owner->ops->import(owner, t.r, t.n, NULL), ONCE_OK);
    end_as_owner(to, owner);
    if (to->store->ops->durable)
        world_reopen(to);
    for (i = 0; i < WAYS; i++)
        (void)simple(to, &to->slots[i], ONCE_OP_SHOW, C);
    scans_agree(to);
    for (i = 0; i < WAYS; i++) {
        (void)simple(to, &to->slots[i], ONCE_OP_REAP, C);
        (void)simple(to, &to->slots[i], ONCE_OP_CLAIM, C);
    }
    scans_agree(to);
    world_close(from);
    world_close(to);
}

/* What is due for the sweep is not hidden behind what is not. */
static void forgetting_goes_on_behind_records_that_stay(void)
{
    enum { N = 60 };
    struct world *w = world_open(N);
    struct question q[N];
    struct walk k;
    int i;

    for (i = 0; i < N; i++) {
        question(&q[i], &w->slots[i], ONCE_OP_CLAIM, A);
        q[i].op.keep_ms = 0;
    }
    ask(w, q, N);
    for (i = 0; i < N; i++) {
        question(&q[i], &w->slots[i],
                 i < 20 ? ONCE_OP_GIVE_UP : ONCE_OP_COMPLETE, A);
        q[i].op.keep_ms = i < 40 ? 1000000 : 0;
    }
    ask(w, q, N);
    make_certain(w);
    T_EQ(scan(w, &k, ONCE_SCAN_KEEP, NULL, 10), 10);
    w->now_ms += 10;
    T_EQ(scan(w, &k, ONCE_SCAN_KEEP, NULL, 100), 20);
    for (i = 40; i < N; i++)
        (void)simple(w, &w->slots[i], ONCE_OP_FORGET, C);
    T_EQ(scan(w, &k, ONCE_SCAN_KEEP, NULL, 100), 0);
    w->now_ms += 1000000;
    T_EQ(scan(w, &k, ONCE_SCAN_KEEP, NULL, 100), 20);
    world_close(w);
}

/* FORGET, beside the model, which has no time of its own for that. */
static int forget_now(struct world *w, const uint8_t *name)
{
    once_op op, *ops[1] = {&op};
    int rc = ONCE_ESTORE, tries;

    memset(&op, 0, sizeof(op));
    op.verb = ONCE_OP_FORGET;
    memcpy(op.name, name, ONCE_NAME_SIZE);
    for (tries = 0; tries < TRIES_MAX && rc != ONCE_OK; tries++)
        rc = w->store->ops->apply(w->store, ops, 1, NULL);
    if (rc == ONCE_OK && op.rc == ONCE_REFUSED && tries > 1 &&
        op.record.attempt == 0)
        return ONCE_OK; /* an earlier try, whose answer was lost */
    return rc == ONCE_OK ? op.rc : rc;
}

/* The store's clock is set ahead, beyond all that is kept; nobody follows it,
 * also who comes later, until somebody says that it is right. */
static void clock_set_ahead(int durable)
{
    const uint64_t jump = UINT64_C(90000000);
    struct world *w = world_open(1);
    struct question q;
    struct walk k;
    once_clock c, late;

    memset(&c, 0, sizeof(c));
    memset(&late, 0, sizeof(late));
    T_EQ(once_store_clock(w->store, &c, NULL), ONCE_OK);
    T_EQ(c.now_ms, w->now_ms);
    T_EQ(c.seen_ms, w->now_ms);
    question(&q, &w->slots[0], ONCE_OP_CLAIM, A);
    ask(w, &q, 1);
    question(&q, &w->slots[0], ONCE_OP_COMPLETE, A);
    q.op.keep_ms = jump - 600000;
    ask(w, &q, 1);
    make_certain(w);
    w->now_ms += jump;
    w->store->forget_ms = 0; /* by the store's clock alone it would be due */
    T_EQ(scan(w, &k, ONCE_SCAN_KEEP, NULL, 10), 1);
    T_EQ(once_store_clock(w->store, &c, NULL), ONCE_OK);
    T_OK(c.jumped_ms > 0);
    T_OK(c.behind_ms > jump - 600000);
    T_EQ(scan(w, &k, ONCE_SCAN_KEEP, NULL, 10), 0);
    T_EQ(forget_now(w, w->slots[0].name), ONCE_REFUSED);
    if (durable)
        world_reopen(w);
    T_EQ(once_store_clock(w->store, &late, NULL), ONCE_OK);
    T_OK(late.behind_ms > jump - 600000);
    T_EQ(scan(w, &k, ONCE_SCAN_KEEP, NULL, 10), 0);
    T_EQ(forget_now(w, w->slots[0].name), ONCE_REFUSED);
    T_EQ(once_store_clock_accept(w->store, &late, NULL), ONCE_OK);
    T_EQ(late.behind_ms, 0);
    T_EQ(once_store_clock(w->store, &c, NULL), ONCE_OK); /* who was there */
    T_EQ(c.behind_ms, 0);
    T_EQ(scan(w, &k, ONCE_SCAN_KEEP, NULL, 10), 1);
    T_EQ(forget_now(w, w->slots[0].name), ONCE_OK);
    world_close(w);
}

static void what_a_clock_set_ahead_makes_due_is_kept(void)
{
    clock_set_ahead(0);
}

static void what_was_seen_of_the_time_survives_a_reopening(void)
{
    clock_set_ahead(1);
}

/* ---- Durable stores ---------------------------------------------------- */

static void records_and_fences_survive_a_reopening(void)
{
    enum { N = 20 };
    struct world *w = world_open(N);
    int i, round;

    for (round = 0; round < 5; round++) {
        for (i = 0; i < N; i++)
            (void)simple(w, &w->slots[i], ONCE_OP_CLAIM, A);
        for (i = 0; i < N; i += 2)
            (void)simple(w, &w->slots[i], ONCE_OP_COMPLETE, A);
        for (i = 1; i < N; i += 2)
            (void)simple(w, &w->slots[i], ONCE_OP_RELEASE, A);
        world_reopen(w);
        scans_agree(w);
        w->now_ms += 100000;
        for (i = 0; i < N; i++) /* no row is left to remember a fence */
            (void)simple(w, &w->slots[i], ONCE_OP_FORGET, C);
        T_EQ(expected(w, ONCE_SCAN_ALL), 0);
        world_reopen(w);
        scans_agree(w);
    }
    world_close(w);
}

/* ---- Shared stores ----------------------------------------------------- */

enum { CONTENDERS = 3, KEYS = 120 };

struct contender {
    const char *url;
    unsigned who;
    int rc[KEYS];
    uint64_t fence[KEYS];
};

static uint64_t fixed_clock(void *user)
{
    (void)user;
    return BIRTH;
}

static void contend_op(once_op *op, struct contender *c, int i)
{
    memset(op, 0, sizeof(*op));
    op->verb = ONCE_OP_CLAIM;
    op->lease_ms = 60000;
    op->name[0] = (uint8_t)i;
    op->name[31] = 7;
    token_of(op->token, c->who);
}

static int apply_until_known(once_store *s, once_op **ops, size_t n)
{
    int rc = ONCE_ESTORE, tries;

    for (tries = 0; tries < TRIES_MAX && rc == ONCE_ESTORE; tries++)
        rc = s->ops->apply(s, ops, n, NULL);
    return rc;
}

/* Claims all keys, in an order of its own and in batches of four. */
static void *contend(void *user)
{
    struct contender *c = user;
    once_store_options options = {
        sizeof(options), fixed_clock, NULL, 0, 1, NULL, NULL, 0};
    once_store *s = NULL;
    once_error err = {0, ""};
    once_op op[4], *ops[4];
    int i, k, at[4];

    for (i = 0; i < KEYS; i++)
        c->rc[i] = ONCE_ECLOSED;
    if (once_store_open(c->url, &options, &err, &s) != ONCE_OK) {
        printf("#   %s\n", err.text);
        fflush(stdout);
        return NULL;
    }
    for (i = 0; i < KEYS; i += 4) {
        for (k = 0; k < 4; k++) {
            at[k] = c->who % 2 ? i + k : KEYS - 1 - i - k;
            contend_op(&op[k], c, at[k]);
            ops[k] = &op[k];
        }
        if (apply_until_known(s, ops, 4) != ONCE_OK)
            break;
        for (k = 0; k < 4; k++) {
            c->rc[at[k]] = op[k].rc;
            c->fence[at[k]] = op[k].record.fence;
        }
    }
    once_store_close(s);
    return NULL;
}

/* One owner for each key, whose fence all others are shown; no fence twice. */
static void check_contention(const struct contender *c)
{
    int i, k, owners;

    for (i = 0; i < KEYS; i++) {
        owners = 0;
        for (k = 0; k < CONTENDERS; k++) {
            owners += c[k].rc[i] == ONCE_OWNER;
            T_OK(c[k].rc[i] == ONCE_OWNER || c[k].rc[i] == ONCE_IN_FLIGHT);
            T_OK(c[k].fence[i] == c[0].fence[i] && c[k].fence[i] > 0);
        }
        T_EQ(owners, 1);
        for (k = 0; k < i; k++)
            T_OK(c[0].fence[k] != c[0].fence[i]);
    }
}

static void handles_of_several_threads_share_one_store(void)
{
    static struct contender c[CONTENDERS];
    pthread_t threads[CONTENDERS];
    char url[512];
    unsigned i;

    target_url(url, sizeof(url), next_seed++);
    for (i = 0; i < CONTENDERS; i++) {
        c[i].url = url;
        c[i].who = i + 1;
        T_EQ(pthread_create(&threads[i], NULL, contend, &c[i]), 0);
    }
    for (i = 0; i < CONTENDERS; i++)
        T_EQ(pthread_join(threads[i], NULL), 0);
    check_contention(c);
}

static pid_t contend_in_child(struct contender *c, int *from)
{
    int ends[2];
    pid_t pid;

    if (pipe(ends) != 0)
        return -1;
    pid = fork();
    if (pid == 0) {
        (void)contend(c);
        _exit(write(ends[1], c, sizeof(*c)) != (ssize_t)sizeof(*c));
    }
    (void)close(ends[1]);
    *from = ends[0];
    return pid;
}

static void several_processes_share_one_store(void)
{
    static struct contender c[CONTENDERS];
    pid_t pids[CONTENDERS];
    int from[CONTENDERS], status;
    char url[512];
    unsigned i;

    target_url(url, sizeof(url), next_seed++);
    for (i = 0; i < CONTENDERS; i++) {
        c[i].url = url;
        c[i].who = i + 1;
        pids[i] = contend_in_child(&c[i], &from[i]);
        T_OK(pids[i] > 0);
    }
    for (i = 0; i < CONTENDERS; i++) {
        T_EQ(read(from[i], &c[i], sizeof(c[i])), sizeof(c[i]));
        T_OK(waitpid(pids[i], &status, 0) == pids[i] && status == 0);
        (void)close(from[i]);
    }
    check_contention(c);
}

static void what_one_handle_does_the_other_sees(void)
{
    struct world *w = world_open(8);
    once_store_options options = {
        sizeof(options), world_clock, w, 0, 1, NULL, NULL, 0};
    once_store *mine = w->store, *other = NULL;
    int i, round;

    T_EQ(once_store_open(w->url, &options, NULL, &other), ONCE_OK);
    for (round = 0; round < 6; round++)
        for (i = 0; i < 8; i++) {
            static const int verbs[] = {ONCE_OP_CLAIM,   ONCE_OP_RENEW,
                                        ONCE_OP_GIVE_UP, ONCE_OP_COMPLETE,
                                        ONCE_OP_READ,    ONCE_OP_CLAIM};

            w->store = (round + i) % 2 ? mine : other;
            (void)simple(w, &w->slots[i], verbs[round], A);
        }
    scans_agree(w);
    w->store = mine;
    scans_agree(w);
    once_store_close(other);
    scans_agree(w);
    world_close(w);
}

/* ---- The suite --------------------------------------------------------- */

static void remove_folder(void)
{
    char command[128];

    (void)snprintf(command, sizeof(command), "rm -rf '%s'", folder);
    if (system(command) != 0)
        printf("# %s is still there\n", folder);
}

static void run_all(int durable, int shared)
{
    T_RUN(every_row_of_the_table_is_as_the_core_decides);
    T_RUN(long_random_runs_differ_nowhere_from_the_core);
    T_RUN(one_name_several_times_in_a_batch_sees_the_earlier_ones);
    T_RUN(a_batch_may_be_empty_or_large);
    T_RUN(results_of_all_sizes_come_back_with_the_same_bytes);
    T_RUN(names_and_tokens_are_any_bytes);
    T_RUN(a_note_is_kept_with_its_record);
    T_RUN(scans_show_what_is_due_in_pages_and_stop_when_told);
    T_RUN(what_waits_and_what_is_live_come_in_pages_in_order);
    if (can_be_restored) {
        T_RUN(a_store_has_an_id_and_keeps_what_its_head_was_told);
        T_RUN(what_is_imported_is_the_same_and_goes_on_from_there);
    }
    T_RUN(forgetting_goes_on_behind_records_that_stay);
    T_RUN(what_a_clock_set_ahead_makes_due_is_kept);
    if (durable) {
        T_RUN(records_and_fences_survive_a_reopening);
        T_RUN(what_was_seen_of_the_time_survives_a_reopening);
    }
    if (shared) {
        T_RUN(handles_of_several_threads_share_one_store);
        T_RUN(several_processes_share_one_store);
        T_RUN(what_one_handle_does_the_other_sees);
    }
}

int main(int argc, char **argv)
{
    char url[512];
    int durable = 0, shared = 0;
    once_error err = {0, ""};

    if (argc != 2 || !choose_target(argv[1])) {
        fprintf(stderr, "usage: conformance [faulty_]STORE\n");
        return 2;
    }
    (void)snprintf(folder, sizeof(folder), "/tmp/once-conformance-XXXXXX");
    if (mkdtemp(folder) == NULL)
        return 2;
    (void)atexit(remove_folder); /* judge() may exit */
    target_url(url, sizeof(url), 0);
    if ((own_url != postgres_url && own_url != mysql_url &&
         once_store_init(url, &err) != ONCE_OK) ||
        once_store_check(url, &durable, &shared, &err) != ONCE_OK) {
        printf("Bail out! %s\n", err.text);
        return 1;
    }
    printf("# %s: durable %d, shared %d\n", argv[1], durable, shared);
    if (strcmp(store_name, "redis") == 0)
        can_be_restored = 0;
    run_all(durable, shared);
    return t_done();
}
