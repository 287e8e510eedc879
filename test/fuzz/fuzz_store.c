/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fuzz_store.c - bytes become a list of batches, and memory and sqlite must
 * answer each of them as once__transition() does on a plain value: the answer, the
 * time left and the whole record.
 *
 * Only fences may differ between stores. Where a question shows one it is the
 * one that this store has shown: the last of the name, an older one, none, or
 * one that nobody was ever given. The clock is the input's and goes back, too.
 */
#include "fuzz.h"

#include <unistd.h>

#include <once/store.h>

#include "calls/core/transition.h"

enum { NAMES = 3, BATCH = 4, BATCHES = 24, STORES = 2 };

/* What a store must know of one name. */
struct known {
    once_record r;
    uint64_t last, older; /* fences that it has shown */
    uint8_t result[256], note[64];
};

struct subject {
    once_store *store;
    struct known known[NAMES];
};

struct world {
    uint64_t now_ms, run;
    struct subject subjects[STORES];
    char path[256];
};

static uint64_t world_clock(void *user)
{
    return ((struct world *)user)->now_ms;
}

static struct world *world_open(void)
{
    static struct world w;
    const once_store_options options = {
        sizeof(options), world_clock, &w, 0, 1, NULL, NULL, 0};
    const char *folder = getenv("ONCE_FUZZ_DIR");
    char url[300];

    if (w.subjects[0].store != NULL)
        return &w;
    if (folder == NULL)
        folder = access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp";
    MUST((size_t)snprintf(w.path, sizeof(w.path), "%s/once-fuzz-%ld.db", folder,
                          (long)getpid()) < sizeof(w.path));
    (void)snprintf(url, sizeof(url), "sqlite:%s", w.path);
    MUST(once_store_open("memory:", &options, NULL, &w.subjects[0].store) ==
         ONCE_OK);
    MUST(once_store_open(url, &options, NULL, &w.subjects[1].store) == ONCE_OK);
    return &w;
}

static void world_close(void)
{
    struct world *w = world_open();
    char side[300];

    once_store_close(w->subjects[0].store);
    once_store_close(w->subjects[1].store);
    (void)unlink(w->path);
    (void)snprintf(side, sizeof(side), "%s-wal", w->path);
    (void)unlink(side);
    (void)snprintf(side, sizeof(side), "%s-shm", w->path);
    (void)unlink(side);
}

/* A question without its fence; returns which fence it shows. */
static unsigned draw_op(struct world *w, struct feed *f, once_op *op)
{
    static const uint32_t leases[] = {10, 50, 1000, ONCE_LEASE_MAX_MS};
    static const uint64_t keeps[] = {0, 40, 1000, ONCE_KEEP_MAX_MS};
    uint8_t what = feed_byte(f), which = feed_byte(f), how = feed_byte(f);
    static const char text[] = "an outcome, of which some bytes are stored, "
                               "and other ones if it is another outcome";

    memset(op, 0, sizeof(*op));
    op->verb = 1 + what % (ONCE__OP_END - 1);
    memcpy(op->name, &w->run, sizeof(w->run));
    op->name[ONCE_NAME_SIZE - 1] = which % NAMES;
    memset(op->token, 1 + which / NAMES % 3, sizeof(op->token));
    memset(op->fingerprint, what / 64 == 3, sizeof(op->fingerprint));
    op->policy = how % 4;
    op->two_phase = how / 4 % 2;
    op->lease_ms = leases[how / 8 % 4];
    op->keep_ms = keeps[how / 32 % 4];
    op->kind = how % 3 == 0 ? ONCE_FAILURE : ONCE_SUCCESS;
    if (op->verb == ONCE_OP_COMPLETE || op->verb == ONCE_OP_RESOLVE)
        op->result = (once_bytes){text + which % 8, how % 64};
    if (op->verb == ONCE_OP_REOPEN || op->verb == ONCE_OP_RESOLVE)
        op->note = (once_bytes){text + 3, 1 + how % 16};
    return which / 16 % 8;
}

static uint64_t fence_of(const struct known *k, unsigned which)
{
    switch (which) {
    case 0:
        return 0;
    case 1:
        return k->older;
    case 2:
        return UINT64_C(1) << 60; /* nobody's */
    default:
        return k->last;
    }
}

static void same_record(const once_record *a, const once_record *b)
{
    MUST(a->state == b->state && a->kind == b->kind);
    MUST(a->policy == b->policy && a->doubt == b->doubt);
    MUST(a->attempt == b->attempt && a->fence == b->fence);
    MUST(a->lease_ms == b->lease_ms && a->keep_ms == b->keep_ms);
    MUST(a->granted_ms == b->granted_ms);
    MUST(memcmp(a->token, b->token, sizeof(a->token)) == 0);
    MUST(memcmp(a->fingerprint, b->fingerprint, sizeof(a->fingerprint)) == 0);
    MUST(memcmp(a->group, b->group, sizeof(a->group)) == 0);
    MUST(same(a->result, b->result) && same(a->note, b->note));
}

/* Takes bytes of the record over: the question's will not stay. */
static void keep_bytes(struct known *k)
{
    MUST(k->r.result.size <= sizeof(k->result));
    MUST(k->r.note.size <= sizeof(k->note));
    if (k->r.result.size > 0)
        memmove(k->result, k->r.result.data, k->r.result.size);
    if (k->r.note.size > 0)
        memmove(k->note, k->r.note.data, k->r.note.size);
    k->r.result.data = k->result;
    k->r.note.data = k->note;
}

/* Compares one answer with what the core says to the same question. */
static void judge(const struct world *w, struct known *k, const once_op *asked)
{
    once_op said = *asked;
    uint64_t before = k->last, fence = before;

    (void)once__transition(&k->r, &said, w->now_ms, &fence);
    if (fence != before) { /* granted: which fence is the store's affair */
        MUST(asked->record.fence > before);
        k->r.fence = said.record.fence = asked->record.fence;
        k->older = before;
        k->last = asked->record.fence;
    }
    MUST(said.rc == asked->rc && said.left_ms == asked->left_ms);
    same_record(&said.record, &asked->record);
    keep_bytes(k);
}

static void ask(struct world *w, struct subject *s, const once_op *questions,
                const unsigned *fences, size_t n)
{
    once_op ops[BATCH], *batch[BATCH];
    size_t i;

    for (i = 0; i < n; i++) {
        struct known *k =
            &s->known[questions[i].name[ONCE_NAME_SIZE - 1] % NAMES];

        ops[i] = questions[i];
        ops[i].fence = fence_of(k, fences[i]);
        batch[i] = &ops[i];
        MUST(once__op_check(&ops[i], NULL) == ONCE_OK);
    }
    MUST(s->store->ops->apply(s->store, batch, n, NULL) == ONCE_OK);
    for (i = 0; i < n; i++)
        judge(w, &s->known[ops[i].name[ONCE_NAME_SIZE - 1] % NAMES], &ops[i]);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct world *w = world_open();
    struct feed f = {data, size};
    once_op ops[BATCH];
    unsigned fences[BATCH];
    size_t i, n, batches;

    if (w->run++ == 0)
        atexit(world_close);
    w->now_ms = UINT64_C(1700000000000);
    memset(w->subjects[0].known, 0, sizeof(w->subjects[0].known));
    memset(w->subjects[1].known, 0, sizeof(w->subjects[1].known));
    for (batches = 0; batches < BATCHES && f.left > 0; batches++) {
        uint8_t how = feed_byte(&f);

        n = 1 + how % BATCH;
        w->now_ms += (how & 0x80) ? (how & 0x40 ? 0 - UINT64_C(7200000) : 60)
                                  : how / 4 % 4;
        for (i = 0; i < n; i++)
            fences[i] = draw_op(w, &f, &ops[i]);
        for (i = 0; i < STORES; i++)
            ask(w, &w->subjects[i], ops, fences, n);
    }
    return 0;
}
