/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_memory.c - what only the memory store has: its table, its heaps, its
 * deferred freeing and its limit. What all stores have in common is tested by
 * test/store/conformance.c.
 */
#include <malloc.h>
#include <sys/mman.h>
#include <sys/resource.h>

#include <once/store.h>

#include "calls/core/transition.h"
#include "calls/store/table.h"

#include "t.h"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SANITIZED 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define SANITIZED 1
#endif
#endif
#ifndef SANITIZED
#define SANITIZED 0
#endif

enum { LEASE = 1000, KEEP = 5000 };

static uint64_t now_ms;

static uint64_t hand(void *user)
{
    (void)user;
    return now_ms;
}

static once_store *open_store(void)
{
    once_store_options o = {sizeof(o), hand, NULL, 0, 0, NULL, NULL, 0};
    once_store *s = NULL;

    now_ms = 1000000;
    if (once_store_open("memory:", &o, NULL, &s) != ONCE_OK)
        abort();
    return s;
}

static uint32_t draw(uint64_t *seed)
{
    *seed = *seed * UINT64_C(6364136223846793005) + 1442695040888963407u;
    return (uint32_t)(*seed >> 33);
}

/* Names as sums are: the key all over the place. */
static void name_of(uint32_t key, uint8_t name[ONCE_NAME_SIZE])
{
    uint64_t seed = key * UINT64_C(0x9e3779b97f4a7c15) + 1;
    int i;

    for (i = 0; i < ONCE_NAME_SIZE; i++)
        name[i] = (uint8_t)draw(&seed);
}

static once_op make(int verb, uint32_t key)
{
    once_op op;

    memset(&op, 0, sizeof(op));
    op.verb = verb;
    op.kind = ONCE_SUCCESS;
    op.lease_ms = LEASE;
    op.keep_ms = KEEP;
    name_of(key, op.name);
    memcpy(op.token, &key, sizeof(key));
    return op;
}

static int apply(once_store *s, once_op *op)
{
    once_error err = {0, ""};

    T_EQ(s->ops->apply(s, &op, 1, &err), ONCE_OK);
    return op->rc;
}

static int apply_to(once_store *s, int verb, uint32_t key, uint64_t fence)
{
    once_op op = make(verb, key);

    op.fence = fence;
    return apply(s, &op);
}

/* ---- Against a plain array --------------------------------------------- */

enum { KEYS = 400, STEPS = 60000 };

struct model {
    once_record r[KEYS];
    uint8_t results[KEYS][8];
    uint64_t fence;
};

static void remember(struct model *m, uint32_t key)
{
    once_record *r = &m->r[key];

    if (r->result.size > 0) {
        memmove(m->results[key], r->result.data, r->result.size);
        r->result.data = m->results[key];
    }
}

static int same(const once_op *a, const once_op *b)
{
    const once_record *x = &a->record, *y = &b->record;

    return a->rc == b->rc && a->left_ms == b->left_ms && x->state == y->state &&
           x->kind == y->kind && x->policy == y->policy &&
           x->doubt == y->doubt && x->attempt == y->attempt &&
           x->fence == y->fence && x->lease_ms == y->lease_ms &&
           x->keep_ms == y->keep_ms && x->granted_ms == y->granted_ms &&
           memcmp(x->token, y->token, ONCE_TOKEN_SIZE) == 0 &&
           memcmp(x->fingerprint, y->fingerprint, ONCE_FINGERPRINT_SIZE) == 0 &&
           memcmp(x->group, y->group, ONCE_GROUP_SIZE) == 0 &&
           x->result.size == y->result.size &&
           (x->result.size == 0 ||
            memcmp(x->result.data, y->result.data, x->result.size) == 0) &&
           x->note.size == y->note.size;
}

static once_op random_op(struct model *m, uint64_t *seed, uint32_t key)
{
    int verb = (int)(draw(seed) % (ONCE__OP_END - 1)) + 1;
    once_op op = make(draw(seed) % 4 == 0 ? ONCE_OP_CLAIM : verb, key);
    const once_record *r = &m->r[key];

    op.kind = (int)(draw(seed) % 2) + 1;
    op.two_phase = draw(seed) % 2;
    op.policy = draw(seed) % 4;
    op.token[8] = (uint8_t)(draw(seed) % 3);
    op.fingerprint[0] = draw(seed) % 8 == 0;
    if (draw(seed) % 4 != 0) { /* mostly somebody who may */
        op.fence = r->fence;
        memcpy(op.token, r->token, ONCE_TOKEN_SIZE);
        if (op.verb == ONCE_OP_CLAIM)
            op.token[8] ^= 1;
    }
    if (op.verb == ONCE_OP_COMPLETE || op.verb == ONCE_OP_RESOLVE)
        op.result = (once_bytes){"outcomes", draw(seed) % 8};
    return op;
}

static int shown(void *user, const uint8_t name[ONCE_NAME_SIZE],
                 const once_record *r)
{
    uint8_t(*names)[ONCE_NAME_SIZE + 1] = user;
    size_t at = names[0][0];

    T_OK(r->attempt > 0);
    memcpy(names[at + 1], name, ONCE_NAME_SIZE);
    names[0][0]++;
    return 0;
}

static int due(once_store *s, int what)
{
    uint8_t names[101][ONCE_NAME_SIZE + 1] = {{0}};
    once_error err = {0, ""};

    return s->ops->scan(s, what, NULL, 100, shown, names, &err);
}

static int due_in_model(const struct model *m, int what)
{
    int i, n = 0;

    for (i = 0; i < KEYS; i++)
        n += m->r[i].attempt > 0 && once__record_due(&m->r[i], now_ms) == what;
    return n < 100 ? n : 100;
}

static void it_does_what_apply_says_also_about_what_is_due(void)
{
    struct model *m = calloc(1, sizeof(*m));
    once_store *s = open_store();
    uint64_t seed = 3;
    int i, wrong = 0;

    if (m == NULL)
        abort();
    for (i = 0; i < STEPS && wrong == 0; i++) {
        uint32_t key = draw(&seed) % KEYS;
        once_op a = random_op(m, &seed, key), b = a;

        (void)apply(s, &a);
        (void)once__transition(&m->r[key], &b, now_ms, &m->fence);
        wrong += !same(&a, &b);
        remember(m, key);
        now_ms += draw(&seed) % 30;
        if (i % 64 == 0) {
            wrong +=
                due(s, ONCE_SCAN_LEASE) != due_in_model(m, ONCE_SCAN_LEASE);
            wrong += due(s, ONCE_SCAN_KEEP) != due_in_model(m, ONCE_SCAN_KEEP);
        }
    }
    T_EQ(wrong, 0);
    T_EQ(i, STEPS);
    once_store_close(s);
    free(m);
}

/* ---- The table --------------------------------------------------------- */

static void names_that_begin_alike_are_found_and_walked_in_order(void)
{
    enum { N = 20000 };
    struct once__table t;
    uint8_t name[ONCE_NAME_SIZE] = {0xff, 1}, last[ONCE_NAME_SIZE];
    struct once__table_row *row;
    uint32_t i, n = 0, wrong = 0;

    T_EQ(once__table_init(&t, 5), ONCE_OK);
    for (i = 0; i < N; i++) { /* all in one tree, and sorted at that */
        name[28] = (uint8_t)(i >> 16);
        name[29] = (uint8_t)(i >> 8);
        name[30] = (uint8_t)i;
        wrong += once__table_add(&t, name) == NULL;
        wrong += once__table_find(&t, name) == NULL;
        name[31] = 1;
        wrong += once__table_find(&t, name) != NULL;
        name[31] = 0;
    }
    for (row = once__table_after(&t, NULL); row != NULL;
         row = once__table_after(&t, last)) {
        wrong += n > 0 && memcmp(last, row->name, ONCE_NAME_SIZE) >= 0;
        memcpy(last, row->name, ONCE_NAME_SIZE);
        n++;
    }
    T_EQ(n, N);
    T_EQ(wrong, 0);
    once__table_clear(&t);
}

static uint32_t height(const struct once__table_row *row)
{
    uint32_t low, high;

    if (row == NULL)
        return 0;
    low = height(row->low);
    high = height(row->high);
    return 1 + (low > high ? low : high);
}

static void chosen_names_do_not_make_a_tall_tree(void)
{
    enum { N = 4096 };
    struct once__table t;
    uint8_t name[ONCE_NAME_SIZE] = {0};
    uint32_t i;

    T_EQ(once__table_init(&t, 77), ONCE_OK);
    for (i = 0; i < N; i++) {
        name[30] = (uint8_t)(i >> 8);
        name[31] = (uint8_t)i;
        T_OK(once__table_add(&t, name) != NULL);
    }
    T_OK(height(t.now[0]) + height(t.fresh == NULL ? NULL : t.fresh[0]) < 60);
    once__table_clear(&t);
}

static void it_grows_a_bounded_number_of_trees_at_a_time(void)
{
    struct once__table t;
    uint8_t name[ONCE_NAME_SIZE];
    uint32_t i, wrong = 0;
    size_t before;

    T_EQ(once__table_init(&t, 9), ONCE_OK);
    for (i = 0; i < 100000; i++) {
        unsigned bits = t.bits;

        name_of(i, name);
        before = t.fresh == NULL ? 0 : t.moved;
        wrong += once__table_add(&t, name) == NULL;
        if (t.bits == bits && t.fresh != NULL)
            wrong += t.moved > before + 4;
    }
    for (i = 0; i < 100000; i++) {
        name_of(i, name);
        wrong += once__table_find(&t, name) == NULL;
    }
    T_EQ(wrong, 0);
    T_OK(((size_t)2 << t.bits) >= t.rows);
    once__table_clear(&t);
}

/* ---- Memory ------------------------------------------------------------ */

static void an_answers_bytes_live_until_the_next_apply(void)
{
    once_store *s = open_store();
    once_op claim = make(ONCE_OP_CLAIM, 1), complete, show, forget;
    once_op *batch[3];
    once_error err = {0, ""};

    T_EQ(apply(s, &claim), ONCE_OWNER);
    complete = make(ONCE_OP_COMPLETE, 1);
    complete.fence = claim.record.fence;
    complete.keep_ms = 0;
    complete.result = (once_bytes){"bytes", 5};
    T_EQ(apply(s, &complete), ONCE_OK);
    show = make(ONCE_OP_SHOW, 1);
    forget = make(ONCE_OP_FORGET, 1);
    batch[0] = &show;
    batch[1] = &forget;
    T_EQ(s->ops->apply(s, batch, 2, &err), ONCE_OK);
    T_EQ(forget.rc, ONCE_OK);
    T_EQ(show.rc, ONCE_REPLAY);
    T_MEM(show.record.result.data, "bytes", 5); /* ASan would say */
    T_EQ(apply_to(s, ONCE_OP_SHOW, 1, 0), ONCE_FREE);
    once_store_close(s);
}

static void a_key_takes_at_most_250_bytes(void)
{
    enum { N = 200000 };
    once_store *s = open_store();
    struct mallinfo2 before = mallinfo2(), after;
    uint32_t i, wrong = 0;
    size_t used;

    for (i = 0; i < N; i++)
        wrong += apply_to(s, ONCE_OP_CLAIM, i, 0) != ONCE_OWNER;
    after = mallinfo2();
    used = after.uordblks + after.hblkhd - before.uordblks - before.hblkhd;
    T_EQ(wrong, 0);
    if (SANITIZED)
        printf("# sanitized: its allocator cannot be asked\n");
    else if (!T_OK(used / N <= 250 && used / N >= 196))
        printf("#   %zu bytes a key\n", used / N);
    once_store_close(s);
}

/* qemu-user says that it has set a limit, and does not keep it. */
static int is_kept(const struct rlimit *limit)
{
    void *more = mmap(NULL, limit->rlim_cur + 1, PROT_NONE,
                      MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

    if (more == MAP_FAILED)
        return 1;
    (void)munmap(more, limit->rlim_cur + 1);
    return 0;
}

/* What is known must not be lost because memory is short, and a refusal must
 * change nothing. */
static void without_memory_it_refuses_definitely(void)
{
    enum { SOME = 8 };
    once_store *s = open_store();
    struct rlimit was, tight;
    uint64_t fences[SOME + 1];
    uint32_t i, refused = 0;
    void *big = malloc(ONCE_RESULT_MAX);

    if (SANITIZED) {
        printf("# sanitized: its shadow does not fit under a limit\n");
        goto out;
    }
    if (big == NULL || getrlimit(RLIMIT_AS, &was) != 0)
        abort();
    memset(big, 'x', ONCE_RESULT_MAX);
    for (i = 0; i < SOME; i++) {
        once_op op = make(ONCE_OP_CLAIM, i);

        T_EQ(apply(s, &op), ONCE_OWNER);
        fences[i] = op.record.fence;
    }
    tight = was;
    tight.rlim_cur = 4 * ONCE_RESULT_MAX;
    T_EQ(setrlimit(RLIMIT_AS, &tight), 0);
    if (!is_kept(&tight)) {
        printf("# the limit is not kept here: qemu-user\n");
        (void)setrlimit(RLIMIT_AS, &was);
        goto out;
    }
    for (i = 0; i < SOME; i++) {
        once_op op = make(ONCE_OP_COMPLETE, i);

        op.fence = fences[i];
        op.result = (once_bytes){big, ONCE_RESULT_MAX};
        if (apply(s, &op) == ONCE_ENOMEM) {
            refused++;
            T_EQ(op.record.state, ONCE_DISPATCHED);
            T_EQ(apply_to(s, ONCE_OP_SHOW, i, 0), ONCE_IN_FLIGHT);
            op.result.size = 3;
            T_EQ(apply(s, &op), ONCE_OK); /* a short one still fits */
        } else {
            T_EQ(op.rc, ONCE_OK);
        }
    }
    T_EQ(setrlimit(RLIMIT_AS, &was), 0);
    T_OK(refused > 0 && refused < SOME);
out:
    free(big);
    once_store_close(s);
}

/* ---- What it says of itself -------------------------------------------- */

static void it_is_neither_durable_nor_shared(void)
{
    int durable = 9, shared = 9;
    once_error err = {0, ""};

    T_EQ(once_store_check("memory:", &durable, &shared, &err), ONCE_OK);
    T_EQ(durable, 0);
    T_EQ(shared, 0);
    T_EQ(once_store_check("memory:name", NULL, NULL, &err), ONCE_EURL);
    T_EQ(once_store_check("memory", NULL, NULL, &err), ONCE_EURL);
    T_EQ(once_store_check("", NULL, NULL, &err), ONCE_EURL);
    T_EQ(once_store_check(NULL, NULL, NULL, &err), ONCE_EURL);
    T_EQ(once_store_check("oracle://me:secret@host", NULL, NULL, &err),
         ONCE_EURL);
    T_OK(strstr(err.text, "secret") == NULL);
    T_OK(strstr(err.text, "memory:") != NULL);
}

static void two_stores_share_nothing(void)
{
    once_store *a = open_store(), *b = open_store();

    T_EQ(apply_to(a, ONCE_OP_CLAIM, 1, 0), ONCE_OWNER);
    T_EQ(apply_to(b, ONCE_OP_CLAIM, 1, 0), ONCE_OWNER);
    once_store_close(a);
    once_store_close(b);
}

int main(void)
{
    T_RUN(it_does_what_apply_says_also_about_what_is_due);
    T_RUN(names_that_begin_alike_are_found_and_walked_in_order);
    T_RUN(chosen_names_do_not_make_a_tall_tree);
    T_RUN(it_grows_a_bounded_number_of_trees_at_a_time);
    T_RUN(an_answers_bytes_live_until_the_next_apply);
    T_RUN(a_key_takes_at_most_250_bytes);
    T_RUN(without_memory_it_refuses_definitely);
    T_RUN(it_is_neither_durable_nor_shared);
    T_RUN(two_stores_share_nothing);
    return t_done();
}
