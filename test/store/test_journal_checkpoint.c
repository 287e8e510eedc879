/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_journal_checkpoint.c - the index beside the log: who opens a journal
 * with it sees what one without it sees, and one that does not fit is not used.
 *
 *    test_journal_checkpoint [CASE]
 *
 * What reaches the disk is seen through the linker (journal_disk.h).
 */
#include "base/crc32c.h"
#include "journal_disk.h"

/* As checkpoint.c has them. */
enum {
    BLOCK = 65536,
    FROM = 16,
    TO = 24,
    GENERATION = 32,
    STAMP = 40,
    BLOCKS = 56,
    COUNTED = 64,
    AVERAGE = 72,
    KEY = 80,
    HEAD_END = 112,
    SLOTS_FROM = 64,
    SLOT = 64
};

/* ---- Opening and saving ---------------------------------------------------- */

static int events;
static char last_event[512];

static void take_event(void *user, const char *text)
{
    (void)user;
    events++;
    (void)snprintf(last_event, sizeof(last_event), "%s", text);
}

static int open_handle(const char *path, struct once__journal *j,
                       once_error *err)
{
    once__handle_init(j);
    j->path = strdup(path);
    j->busy_ms = 5000;
    j->segment_max = 65536;
    j->event = take_event;
    events = 0;
    return once__session_open(j, err);
}

/* Saves the index; between its steps `meanwhile` is called. ONCE_OK, or why
 * not. */
static int save(const char *path, void (*meanwhile)(void *user), void *user)
{
    struct once__checkpoint *k = NULL;
    struct once__journal j;
    once_error err = {0, ""};
    int code = open_handle(path, &j, &err), more = 1;

    if (code == ONCE_OK)
        code = once__checkpoint_begin(&j, &err, &k);
    while (code == ONCE_OK && more == 1) {
        if (meanwhile != NULL)
            meanwhile(user);
        more = once__checkpoint_step(k, &err);
    }
    once__checkpoint_end(k);
    once__session_close(&j);
    if (code != ONCE_OK || more < 0)
        printf("#   %s\n", err.text);
    return code == ONCE_OK && more < 0 ? more : code;
}

static void index_of(const char *path, char out[200])
{
    (void)snprintf(out, 200, "%.150s/index", path);
}

static void remove_index(const char *path)
{
    char file[200];

    index_of(path, file);
    (void)unlink(file);
}

/* 1: opened with what was saved. 0: without it, and it said so. */
static int is_used(const char *path)
{
    struct once__journal j;
    once_error err = {0, ""};
    int used;

    if (!T_OK(open_handle(path, &j, &err) == ONCE_OK)) {
        printf("#   %s\n", err.text);
        return -1;
    }
    used = j.shared->saved != 0;
    T_EQ(events, !used);
    once__session_close(&j);
    return used;
}

/* ---- All that is to be seen ------------------------------------------------ */

struct view {
    struct once__slot *slots; /* by name */
    size_t count;
    uint64_t fence, marked, first, last, tail, generation;
    uint64_t records, bytes, owned, dispatched, waiting, saved;
    uint64_t shown[2], marks[2]; /* due; live and waiting by page */
    struct once__segment segments[ONCE__JOURNAL_SEGMENTS];
};

static int by_name(const void *a, const void *b)
{
    return memcmp(a, b, ONCE_NAME_SIZE);
}

static void look_at_pages(struct once__journal *j, struct view *v)
{
    const struct once__page *p;
    uint32_t n;

    for (n = 0; n < j->shared->pages; n++) {
        if (!once__index_bucket(j->shared, n))
            continue;
        p = once__shared_page(j, n);
        memcpy(v->slots + v->count, p->slots, p->count * sizeof(p->slots[0]));
        v->count += p->count;
        v->marks[0] += p->live;
        v->marks[1] += p->waiting;
        T_EQ(j->shared->marks[n / 64] >> n % 64 & 1, p->live + p->waiting > 0);
    }
    qsort(v->slots, v->count, sizeof(v->slots[0]), by_name);
}

static uint64_t count_due(struct once__journal *j, int what, uint64_t at)
{
    struct once__slot out[2 * ONCE__PAGE_SLOTS];
    uint32_t page = 0;
    uint64_t n = 0;

    while (page < j->shared->pages)
        n += once__index_due(j, what, at, &page, 100, out,
                             sizeof(out) / sizeof(out[0]));
    return n;
}

static void look(const char *path, uint64_t clock, struct view *v)
{
    struct once__journal j;
    struct once__shared *s;
    once_error err = {0, ""};
    size_t i;

    memset(v, 0, sizeof(*v));
    if (!T_OK(open_handle(path, &j, &err) == ONCE_OK)) {
        printf("#   %s\n", err.text);
        return;
    }
    s = j.shared;
    v->slots = calloc(s->records + 1, sizeof(v->slots[0]));
    assert(v->slots != NULL);
    look_at_pages(&j, v);
    T_EQ(v->count, s->records);
    for (i = 0; i < v->count; i++) /* each is found where it is looked for */
        T_OK(once__index_find(&j, v->slots[i].name) != NULL);
    v->shown[0] = count_due(&j, ONCE_SCAN_LEASE, clock + 500);
    v->shown[1] = count_due(&j, ONCE_SCAN_KEEP, clock + 2500);
    v->fence = s->fence;
    v->marked = s->marked;
    v->first = s->first;
    v->last = s->last;
    v->tail = s->tail;
    v->generation = s->generation;
    v->records = s->records;
    v->bytes = s->bytes;
    v->owned = s->owned;
    v->dispatched = s->dispatched;
    v->waiting = s->waiting;
    v->saved = s->saved;
    memcpy(v->segments, s->segments, sizeof(v->segments));
    T_OK(s->average >= 64 && s->average < 65536);
    once__session_close(&j);
}

static void are_equal(const struct view *a, const struct view *b)
{
    T_EQ(a->count, b->count);
    T_EQ(a->fence, b->fence);
    T_EQ(a->marked, b->marked);
    T_EQ(a->first, b->first);
    T_EQ(a->last, b->last);
    T_EQ(a->tail, b->tail);
    T_EQ(a->generation, b->generation);
    T_EQ(a->records, b->records);
    T_EQ(a->bytes, b->bytes);
    T_EQ(a->owned, b->owned);
    T_EQ(a->dispatched, b->dispatched);
    T_EQ(a->waiting, b->waiting);
    T_EQ(a->shown[0], b->shown[0]);
    T_EQ(a->shown[1], b->shown[1]);
    T_EQ(a->marks[0], b->marks[0]);
    T_EQ(a->marks[1], b->marks[1]);
    T_OK(memcmp(a->segments, b->segments, sizeof(a->segments)) == 0);
    if (a->count == b->count)
        T_OK(memcmp(a->slots, b->slots, a->count * sizeof(a->slots[0])) == 0);
}

/* A copy of the folder opens the same with what was saved and without. The
 * store is closed. */
static void opens_the_same(const char *path, uint64_t clock)
{
    static struct view with, without;
    char copy[128];

    new_path(copy, sizeof(copy));
    copy_folder(path, copy);
    look(copy, clock, &with);
    T_EQ(events, 0);
    T_OK(with.saved != 0);
    copy_folder(path, copy);
    remove_index(copy);
    look(copy, clock, &without);
    T_EQ(events, 0);
    T_EQ(without.saved, 0);
    are_equal(&with, &without);
    free(with.slots);
    free(without.slots);
}

/* Names that stand in the file twice, since their page was split. */
static size_t twice_in(const char *path)
{
    struct once__slot *slots;
    uint8_t block[BLOCK];
    char file[200];
    uint64_t blocks = 0, count, i, n = 0;
    size_t twice = 0;
    int fd;

    index_of(path, file);
    fd = open(file, O_RDONLY | O_CLOEXEC);
    T_EQ(pread(fd, &blocks, sizeof(blocks), BLOCKS), sizeof(blocks));
    slots = malloc(blocks * BLOCK);
    assert(slots != NULL);
    for (i = 0; i < blocks; i++) {
        T_EQ(pread(fd, block, BLOCK, (off_t)(ONCE__JOURNAL_HEADER + i * BLOCK)),
             BLOCK);
        memcpy(&count, block + 24, sizeof(count));
        memcpy(slots + n, block + SLOTS_FROM, count * sizeof(slots[0]));
        n += count;
    }
    (void)close(fd);
    qsort(slots, n, sizeof(slots[0]), by_name);
    for (i = 1; i < n; i++)
        twice += by_name(&slots[i - 1], &slots[i]) == 0;
    free(slots);
    return twice;
}

/* ---- Random histories ------------------------------------------------------ */

enum { BATCH = 64 };

struct history {
    once_store *store;
    uint64_t clock, random;
    uint32_t keys;
    uint32_t fresh; /* keys from here on were never used */
};

static uint32_t toss(struct history *h, uint32_t below)
{
    h->random ^= h->random << 13;
    h->random ^= h->random >> 7;
    h->random ^= h->random << 17;
    return (uint32_t)(h->random >> 20) % below;
}

static void apply_some(struct history *h, once_op *op, size_t n)
{
    once_op *ops[BATCH];
    size_t i;

    for (i = 0; i < n; i++)
        ops[i] = &op[i];
    T_EQ(h->store->ops->apply(h->store, ops, n, NULL), ONCE_OK);
}

static int draw_end(struct history *h)
{
    static const int verbs[] = {ONCE_OP_COMPLETE, ONCE_OP_COMPLETE,
                                ONCE_OP_COMPLETE, ONCE_OP_RELEASE,
                                ONCE_OP_GIVE_UP,  ONCE_OP_DISPATCH};

    return verbs[toss(h, 6)];
}

/* Claims some keys and goes on with those that it got. */
static void claim_some(struct history *h, int new_ones)
{
    once_op op[BATCH], next[BATCH];
    uint32_t i, n = 0, key[BATCH];

    for (i = 0; i < BATCH; i++) {
        key[i] = new_ones ? h->fresh++ : toss(h, h->keys);
        make_op(&op[i], ONCE_OP_CLAIM, key[i]);
        op[i].two_phase = toss(h, 3) == 0;
    }
    apply_some(h, op, BATCH);
    for (i = 0; i < BATCH; i++) {
        if (op[i].rc != ONCE_OWNER || toss(h, 8) == 0)
            continue;
        make_op(&next[n], draw_end(h), key[i]);
        next[n].fence = op[i].record.fence;
        next[n].keep_ms = 500 + toss(h, 8000);
        if (next[n].verb == ONCE_OP_COMPLETE)
            next[n].result = result_of(key[i]);
        n++;
    }
    if (n > 0)
        apply_some(h, next, n);
}

static void end_some(struct history *h)
{
    once_op op[BATCH];
    uint32_t i;

    for (i = 0; i < BATCH; i++)
        make_op(&op[i], toss(h, 3) == 0 ? ONCE_OP_REAP : ONCE_OP_FORGET,
                toss(h, h->keys));
    apply_some(h, op, BATCH);
}

static void go_on(struct history *h, uint32_t rounds)
{
    while (rounds-- > 0) {
        claim_some(h, toss(h, 3) == 0);
        if (toss(h, 2) == 0)
            end_some(h);
        h->clock += toss(h, 300);
        h->keys = h->fresh;
        if (toss(h, 4) == 0)
            T_EQ(h->store->ops->maintain(h->store, NULL), ONCE_OK);
    }
}

static void reopen(struct history *h, const char *path)
{
    if (h->store != NULL)
        once_store_close(h->store);
    h->store = must_open_with(path, "?segment=65536", &h->clock);
}

static void meanwhile(void *user)
{
    struct history *h = user;
    uint32_t i;

    for (i = 0; i < 6; i++)
        claim_some(h, 1); /* pages are split */
    h->clock += 1500;
    for (i = 0; i < 40; i++)
        end_some(h);
    go_on(h, 6);
    T_EQ(h->store->ops->maintain(h->store, NULL), ONCE_OK);
    (void)usleep(5000);
}

static uint64_t first_of(const char *path)
{
    char file[160];
    uint64_t id;

    for (id = 1; segment_path(path, id, file, sizeof(file)), !exists(file);)
        id++;
    return id;
}

static void opening_with_it_is_as_without_it(void)
{
    char path[128];
    struct history h;
    uint64_t seed, first, moved = 0, twice = 0;

    for (seed = 1; seed <= 6 && t__bad == 0; seed++) {
        memset(&h, 0, sizeof(h));
        h.random = seed * 7919;
        h.clock = BIRTH;
        h.keys = 1000;
        h.fresh = 1000;
        new_path(path, sizeof(path));
        reopen(&h, path);
        go_on(&h, 60);
        first = first_of(path);
        T_EQ(save(path, meanwhile, &h), ONCE_OK);
        moved += first_of(path) - first;
        twice += twice_in(path);
        once_store_close(h.store);
        opens_the_same(path, h.clock); /* directly after it */
        h.store = NULL;
        reopen(&h, path);
        go_on(&h, 20);
        once_store_close(h.store);
        opens_the_same(path, h.clock); /* and later */
        h.store = NULL;
        reopen(&h, path); /* it came from what was saved */
        go_on(&h, 10);
        T_EQ(save(path, meanwhile, &h), ONCE_OK);
        once_store_close(h.store);
        opens_the_same(path, h.clock);
    }
    printf("# %llu segments were dropped while it was saved, %llu names are in "
           "it twice\n",
           (unsigned long long)moved, (unsigned long long)twice);
    T_OK(moved > 0 && twice > 0);
}

static void write_on(const char *path, void *user)
{
    struct range *r = user;
    once_store *s = must_open(path);
    uint32_t i;

    for (i = r->from; i < r->to; i++) {
        T_EQ(complete_one(s, i, 0), ONCE_OK);
        if (i % 8 == 0)
            T_EQ(verb_on(s, ONCE_OP_FORGET, i - 3), ONCE_OK);
    }
    once_store_close(s);
}

static void it_is_saved_beside_other_processes(void)
{
    enum { WRITERS = 2, KEYS = 3000 };
    struct range r[WRITERS] = {{1, KEYS}, {10001, 10000 + KEYS}};
    char path[128];
    pid_t pids[WRITERS];
    int i, status, saved = 0, left = WRITERS;

    new_path(path, sizeof(path));
    once_store_close(must_open(path));
    fflush(stdout);
    for (i = 0; i < WRITERS; i++) {
        pids[i] = fork();
        if (pids[i] == 0) {
            t__bad = 0;
            write_on(path, &r[i]);
            fflush(stdout);
            _exit(t__bad != 0);
        }
    }
    while (left > 0 && t__bad == 0) {
        T_EQ(save(path, NULL, NULL), ONCE_OK);
        saved++;
        for (i = 0; i < WRITERS; i++)
            if (pids[i] > 0 && waitpid(pids[i], &status, WNOHANG) == pids[i]) {
                T_EQ(status, 0);
                pids[i] = 0;
                left--;
            }
    }
    printf("# saved %d times\n", saved);
    T_OK(saved > 5);
    opens_the_same(path, BIRTH);
}

/* All that a caller may ask says the same. */
static void counts_and_scans_agree_after_it(void)
{
    char path[128];
    struct history h = {.random = 4711, .clock = BIRTH, .keys = 1000};
    once_counts counts;

    h.fresh = h.keys;
    new_path(path, sizeof(path));
    reopen(&h, path);
    go_on(&h, 40);
    T_EQ(save(path, meanwhile, &h), ONCE_OK);
    go_on(&h, 5);
    reopen(&h, path);
    counts_agree(h.store, &counts);
    T_OK(counts.claimed > 0 && counts.indeterminate > 0 && counts.rest > 0);
    once_store_close(h.store);
}

/* ---- Damage ---------------------------------------------------------------- */

/* A closed journal with `keys` completed ones, of which the first half was
 * saved. */
static void make_saved(char path[128], uint32_t keys)
{
    once_store *s;

    new_path(path, 128);
    s = must_open(path);
    complete_all(s, 0, keys / 2);
    T_EQ(save(path, NULL, NULL), ONCE_OK);
    complete_all(s, keys / 2, keys);
    once_store_close(s);
}

static void is_refused(const char *path, uint32_t keys)
{
    char file[200];
    once_store *s;

    index_of(path, file);
    T_EQ(is_used(path), 0);
    T_OK(!exists(file)); /* nor is it asked again */
    s = must_open(path);
    all_are_there(s, 0, keys);
    once_store_close(s);
}

static void a_damaged_one_is_not_used(void)
{
    static const uint64_t places[] = {
        0,
        8,
        12,
        FROM,
        TO,
        GENERATION,
        STAMP,
        STAMP + 15,
        BLOCKS,
        COUNTED,
        AVERAGE,
        KEY,
        HEAD_END - 1,
        ONCE__JOURNAL_HEADER,
        ONCE__JOURNAL_HEADER + 8,
        ONCE__JOURNAL_HEADER + 16,
        ONCE__JOURNAL_HEADER + 24,
        ONCE__JOURNAL_HEADER + SLOTS_FROM,      /* a name */
        ONCE__JOURNAL_HEADER + SLOTS_FROM + 32, /* where it is */
        ONCE__JOURNAL_HEADER + SLOTS_FROM + 56, /* its length */
        ONCE__JOURNAL_HEADER + SLOTS_FROM + 60, /* its state */
        ONCE__JOURNAL_HEADER + SLOTS_FROM + 61, /* its page's depth */
        ONCE__JOURNAL_HEADER + SLOTS_FROM + 99 * SLOT,
        ONCE__JOURNAL_HEADER + BLOCK - 1};
    static const off_t ends[] = {0, 7, 100, ONCE__JOURNAL_HEADER,
                                 ONCE__JOURNAL_HEADER + BLOCK - 1};
    enum { KEYS = 200 };
    char path[128], copy[128], file[200];
    struct lines l;
    size_t i;

    make_saved(path, KEYS);
    T_EQ(verify(path, &l), 0);
    T_EQ(is_used(path), 1);
    new_path(copy, sizeof(copy));
    index_of(copy, file);
    for (i = 0; i < sizeof(places) / sizeof(places[0]); i++) {
        copy_folder(path, copy);
        flip(file, places[i]);
        T_EQ(verify(copy, &l), 1);
        is_refused(copy, KEYS);
        if (t__bad != 0)
            printf("#   byte %llu\n", (unsigned long long)places[i]);
    }
    for (i = 0; i < sizeof(ends) / sizeof(ends[0]); i++) {
        copy_folder(path, copy);
        T_EQ(truncate(file, ends[i]), 0);
        is_refused(copy, KEYS);
    }
}

/* A place in the folder's only block, whose sum is made right again. */
static void change_block(const char *path, uint64_t offset, const void *bytes,
                         size_t size)
{
    static uint8_t block[BLOCK];
    char file[200];
    uint32_t sum;
    int fd;

    index_of(path, file);
    poke(file, ONCE__JOURNAL_HEADER + offset, bytes, size);
    fd = open(file, O_RDONLY | O_CLOEXEC);
    T_EQ(pread(fd, block, BLOCK, ONCE__JOURNAL_HEADER), BLOCK);
    (void)close(fd);
    sum = once__crc32c(0, block + 8, BLOCK - 8);
    poke(file, ONCE__JOURNAL_HEADER, &sum, sizeof(sum));
}

/* Its checksums are right, whatever it holds: nothing that opens it breaks. */
static void nonsense_in_it_breaks_nothing(void)
{
    enum { KEYS = 200, TRIES = 300, KINDS = 3 };
    struct history h = {.random = 99};
    char path[128], copy[128];
    struct once__journal j;
    uint8_t byte;
    uint32_t i, slot, kinds = 0;

    make_saved(path, KEYS);
    new_path(copy, sizeof(copy));
    for (i = 0; i < TRIES && t__bad == 0; i++) {
        copy_folder(path, copy);
        byte = (uint8_t)toss(&h, 256);
        slot = toss(&h, KEYS / 2);
        change_block(copy, SLOTS_FROM + slot * SLOT + 32 + toss(&h, 32), &byte,
                     1);
        byte = (uint8_t)toss(&h, 3);
        change_block(copy, toss(&h, 2) ? 24 : SLOTS_FROM + slot * SLOT + 61,
                     &byte, 1);
        T_EQ(open_handle(copy, &j, NULL), ONCE_OK);
        kinds |= j.shared->saved != 0 ? 1 : 2;
        once__session_close(&j);
    }
    T_EQ(kinds, KINDS);
}

/* Whatever its checksum says. */
static void a_name_in_a_dropped_segment_is_not_believed(void)
{
    enum { KEYS = 400 };
    uint64_t clock = BIRTH, at;
    char path[128], copy[128];
    once_store *s;
    uint32_t i;

    new_path(path, sizeof(path));
    s = must_open_with(path, "?segment=65536", &clock);
    for (i = 0; i < 2000; i++)
        T_EQ(complete_one(s, 1000 + i, 100), ONCE_OK);
    clock += 60000;
    forget_all(s, 1000, 3000);
    complete_all(s, 0, KEYS / 2);
    for (i = 0; i < 1000 && first_of(path) == 1; i++) {
        T_EQ(s->ops->maintain(s, NULL), ONCE_OK);
        (void)usleep(10000);
    }
    T_OK(first_of(path) > 1);
    T_EQ(save(path, NULL, NULL), ONCE_OK);
    complete_all(s, KEYS / 2, KEYS);
    once_store_close(s);
    T_EQ(is_used(path), 1);

    new_path(copy, sizeof(copy));
    copy_folder(path, copy);
    at = once__journal_at(1, ONCE__JOURNAL_HEADER);
    change_block(copy, SLOTS_FROM + 32, &at, sizeof(at));
    is_refused(copy, KEYS);
    T_OK(strstr(last_event, "segments that are gone") != NULL);

    copy_folder(path, copy); /* and one behind what it is of */
    at = once__journal_at(first_of(path) + 1000, ONCE__JOURNAL_HEADER);
    change_block(copy, SLOTS_FROM + 32, &at, sizeof(at));
    is_refused(copy, KEYS);
}

/* ---- Other logs ------------------------------------------------------------ */

static void copy_index(const char *from, const char *to)
{
    char command[400];

    (void)snprintf(command, sizeof(command), "cp '%s/index' '%s/index'", from,
                   to);
    T_EQ(system(command), 0);
}

static void one_of_another_store_is_not_used(void)
{
    enum { KEYS = 200 };
    char path[128], other[128];

    make_saved(path, KEYS);
    make_saved(other, KEYS); /* the same, to the byte, but for what is random */
    copy_index(other, path);
    is_refused(path, KEYS);
}

static void one_that_is_younger_than_the_log_is_not_used(void)
{
    enum { KEYS = 200 };
    char path[128], old[128];
    once_store *s;

    new_path(path, sizeof(path));
    new_path(old, sizeof(old));
    s = must_open(path);
    complete_all(s, 0, KEYS);
    once_store_close(s);
    copy_folder(path, old);
    s = must_open(path);
    complete_all(s, KEYS, 2 * KEYS);
    T_EQ(save(path, NULL, NULL), ONCE_OK);
    once_store_close(s);
    copy_index(path, old);
    is_refused(old, KEYS);
}

/* A copy that went on by itself has other records at the same places. */
static void one_of_a_copy_that_went_on_is_not_used(void)
{
    enum { KEYS = 200, AS_LONG = 7800 }; /* results are as long again */
    char path[128], copy[128];
    once_store *s;

    new_path(path, sizeof(path));
    new_path(copy, sizeof(copy));
    s = must_open(path);
    complete_all(s, 0, KEYS);
    once_store_close(s);
    copy_folder(path, copy);
    s = must_open(path);
    complete_all(s, KEYS + AS_LONG, 2 * KEYS + AS_LONG);
    T_EQ(save(path, NULL, NULL), ONCE_OK);
    once_store_close(s);
    s = must_open(copy);
    complete_all(s, KEYS, 2 * KEYS);
    T_EQ(save(copy, NULL, NULL), ONCE_OK); /* a MARK is there, too */
    complete_all(s, 2 * KEYS, 3 * KEYS);
    once_store_close(s);
    T_EQ(is_used(copy), 1);
    copy_index(path, copy);
    is_refused(copy, 3 * KEYS);
    s = must_open(copy);
    T_EQ(verb_on(s, ONCE_OP_SHOW, 3 * KEYS + 1), ONCE_FREE);
    once_store_close(s);
}

/* The segment that it is of was dropped meanwhile. */
static void one_before_the_log_begins_is_not_used(void)
{
    enum { KEYS = 300 };
    uint64_t clock = BIRTH, from;
    char path[128];
    once_store *s;
    uint32_t i;

    new_path(path, sizeof(path));
    s = must_open_with(path, "?segment=65536", &clock);
    complete_all(s, 0, KEYS);
    T_EQ(save(path, NULL, NULL), ONCE_OK);
    from = once__journal_id(end_of(path));
    clock += 60000;
    forget_all(s, 0, KEYS);
    for (i = 0; i < 5000 && first_of(path) <= from; i++) {
        T_EQ(complete_one(s, KEYS + i, 1), ONCE_OK);
        clock += 10;
        T_EQ(verb_on(s, ONCE_OP_FORGET, KEYS + i), ONCE_OK);
        T_EQ(s->ops->maintain(s, NULL), ONCE_OK);
    }
    T_OK(first_of(path) > from);
    once_store_close(s);
    is_refused(path, 0);
    T_OK(strstr(last_event, "begins after it") != NULL);
    s = must_open(path);
    for (i = 0; i < KEYS; i++)
        T_EQ(verb_on(s, ONCE_OP_SHOW, i), ONCE_FREE);
    once_store_close(s);
}

/* ---- Deaths and power cuts ------------------------------------------------- */

static void save_and_die(const char *path, void *user)
{
    at_call(DIE, *(int *)user);
    (void)save(path, NULL, NULL);
    _exit(0);
}

static void who_dies_while_saving_leaves_the_old_one(void)
{
    enum { KEYS = 300 };
    char path[128], copy[128];
    int step, status = -1;

    make_saved(path, KEYS);
    new_path(copy, sizeof(copy));
    for (step = 1; status != 0 && step < 100 && t__bad == 0; step++) {
        copy_folder(path, copy);
        status = in_child(save_and_die, copy, &step);
        forget_memory(copy);
        T_EQ(is_used(copy), 1);
        opens_the_same(copy, BIRTH);
    }
    printf("# %d steps\n", step - 2);
    T_OK(step > 6 && status == 0);
}

struct victim {
    const char *path;
    uint32_t key, at;
};

static void die_with_the_lock(const char *path, void *user)
{
    struct victim *v = user;
    once_store *s = must_open(path);

    (void)usleep(100000);
    at_call(DIE, 1);
    (void)complete_one(s, v->key, 5000);
    _exit(0);
}

static void somebody_dies(void *user)
{
    struct victim *v = user;
    int status;

    if (v->at++ != 1)
        return;
    status = in_child(die_with_the_lock, v->path, v);
    T_OK(WIFSIGNALED(status));
}

/* Its pages are not those that were begun with. */
static void one_of_an_index_that_was_repaired_is_thrown_away(void)
{
    enum { KEYS = 3000 };
    char path[128], file[200];
    struct victim v = {path, 900000, 0};
    once_store *s;

    new_path(path, sizeof(path));
    s = must_open(path);
    complete_all(s, 0, KEYS);
    T_EQ(save(path, somebody_dies, &v), ONCE_ESTORE);
    T_OK(v.at >= 2);
    index_of(path, file);
    T_OK(!exists(file));
    T_EQ(save(path, NULL, NULL), ONCE_OK);
    once_store_close(s);
    T_EQ(is_used(path), 1);
}

static void ack(uint32_t key)
{
    struct event *e;

    (void)pthread_mutex_lock(&disk.lock);
    e = add_event(ACK, 0);
    e->key = key;
    (void)pthread_mutex_unlock(&disk.lock);
}

/* As soon as it is said to be saved, a power cut leaves one that is used: the
 * last one, or one of before. */
static void after_a_power_cut_there_is_one_that_counts(void)
{
    enum { ROUND = 60, ROUNDS = 5 };
    struct model *m = calloc(1, sizeof(*m));
    char path[128], image[128];
    uint32_t acked = 0, saved = 0, images = 0, i;
    size_t n;
    once_store *s;

    assert(m != NULL);
    m->random = 5;
    new_path(path, sizeof(path));
    new_path(image, sizeof(image));
    disk.recording = 1;
    s = must_open(path);
    for (i = 1; i <= ROUNDS; i++) {
        complete_all(s, (i - 1) * ROUND, i * ROUND);
        ack(i * ROUND);
        T_EQ(save(path, NULL, NULL), ONCE_OK);
        ack(i * ROUND + 1);
    }
    disk.recording = 0;
    once_store_close(s);
    for (n = 0; n < disk.count && t__bad == 0; n++) {
        model_step(m, n);
        if (disk.events[n].what == ACK) {
            acked = disk.events[n].key / ROUND * ROUND;
            saved += disk.events[n].key % ROUND;
        }
        if (acked == 0 || (disk.events[n].what == WRITE && n % 7 != 0))
            continue;
        build_image(m, image);
        images++;
        if (saved > 0)
            T_EQ(is_used(image), 1);
        s = must_open(image);
        all_are_there(s, 0, acked);
        once_store_close(s);
    }
    printf("# %u images\n", images);
    T_OK(images > 50 && saved == ROUNDS);
    for (n = 0; n < disk.count; n++)
        free(disk.events[n].bytes);
    disk.count = 0;
    for (n = 0; n < m->count; n++) {
        free(m->nodes[n].bytes);
        free(m->nodes[n].waiting);
    }
    free(m);
}

/* ---- When ------------------------------------------------------------------ */

enum { LARGE = 1 << 20 };

static void complete_large(once_store *s, uint32_t from, uint32_t to)
{
    static uint8_t bytes[LARGE];
    once_op op;

    for (; from < to; from++) {
        make_op(&op, ONCE_OP_CLAIM, from);
        T_EQ(apply_one(s, &op, NULL), ONCE_OK);
        op.verb = ONCE_OP_COMPLETE;
        op.fence = op.record.fence;
        op.result = (once_bytes){bytes, sizeof(bytes)};
        T_EQ(apply_one(s, &op, NULL), ONCE_OK);
        T_EQ(op.rc, ONCE_OK);
    }
}

static uint64_t wait_for_index(once_store *s, const char *path)
{
    char file[200];
    struct stat st;
    uint32_t i;

    index_of(path, file);
    for (i = 0; i < 2000; i++) {
        T_EQ(s->ops->maintain(s, NULL), ONCE_OK);
        (void)usleep(10000);
        if (stat(file, &st) == 0)
            return st.st_ino;
    }
    return 0;
}

/* The log grows by 64 MiB, and it is saved; no sooner, and not again. */
static void it_is_saved_when_the_log_has_grown(void)
{
    char path[128], file[200];
    once_store *s;
    uint64_t node;
    struct stat st;

    new_path(path, sizeof(path));
    index_of(path, file);
    s = must_open_with(path, "?segment=16777216", NULL);
    complete_large(s, 0, 50);
    T_EQ(s->ops->maintain(s, NULL), ONCE_OK);
    (void)usleep(100000);
    T_OK(!exists(file));
    complete_large(s, 50, 80);
    node = wait_for_index(s, path);
    T_OK(node != 0);
    complete_large(s, 80, 90);
    T_EQ(s->ops->maintain(s, NULL), ONCE_OK);
    (void)usleep(100000);
    T_EQ(stat(file, &st), 0);
    T_EQ(st.st_ino, node);
    once_store_close(s);
    T_EQ(is_used(path), 1);
}

/* ---- What it does not hide ------------------------------------------------- */

/* Without it the folder is refused. With it the one record cannot be read. */
static void a_damaged_head_before_it_is_an_error_for_its_key(void)
{
    enum { KEYS = 200 };
    char path[128], copy[128], file[160];
    struct once__journal j;
    struct lines l;
    uint8_t name[ONCE_NAME_SIZE];
    once_store *s;
    uint64_t at;

    make_saved(path, KEYS);
    name_of(name, 5);
    T_EQ(open_handle(path, &j, NULL), ONCE_OK);
    at = once__index_find(&j, name)->at;
    once__session_close(&j);
    segment_path(path, once__journal_id(at), file, sizeof(file));
    flip(file, once__journal_offset(at) + 9);
    new_path(copy, sizeof(copy));
    copy_folder(path, copy);
    T_EQ(is_used(path), 1);
    s = must_open(path);
    T_EQ(verb_on(s, ONCE_OP_SHOW, 5), ONCE_ECORRUPT);
    T_EQ(verb_on(s, ONCE_OP_CLAIM, 5), ONCE_ECORRUPT);
    all_are_there(s, 6, KEYS);
    once_store_close(s);
    T_OK(verify(path, &l) > 0);
    remove_index(copy);
    refused(copy, ONCE_ECORRUPT, "a frame fails its checksum");
}

static void a_missing_segment_before_it_is_still_seen(void)
{
    enum { KEYS = 400 };
    char path[128], file[160];

    make_saved(path, KEYS);
    segment_path(path, 2, file, sizeof(file));
    T_EQ(unlink(file), 0);
    refused(path, ONCE_ECORRUPT, "missing");
}

int main(int argc, char **argv)
{
    const char *only = argc == 2 ? argv[1] : "";

    (void)snprintf(folder, sizeof(folder), "/tmp/once-journal-XXXXXX");
    if (mkdtemp(folder) == NULL)
        return 2;
    RUN(opening_with_it_is_as_without_it);
    RUN(it_is_saved_beside_other_processes);
    RUN(counts_and_scans_agree_after_it);
    RUN(a_damaged_one_is_not_used);
    RUN(nonsense_in_it_breaks_nothing);
    RUN(a_name_in_a_dropped_segment_is_not_believed);
    RUN(one_of_another_store_is_not_used);
    RUN(one_that_is_younger_than_the_log_is_not_used);
    RUN(one_of_a_copy_that_went_on_is_not_used);
    RUN(one_before_the_log_begins_is_not_used);
    RUN(who_dies_while_saving_leaves_the_old_one);
    RUN_DEATH(one_of_an_index_that_was_repaired_is_thrown_away);
    RUN(after_a_power_cut_there_is_one_that_counts);
    RUN(it_is_saved_when_the_log_has_grown);
    RUN(a_damaged_head_before_it_is_an_error_for_its_key);
    RUN(a_missing_segment_before_it_is_still_seen);
    remove_folder();
    return t_done();
}
