/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_journal_undo.c - a process dies before each single change that it makes
 * in shared memory, and what the next one finds is what the log says.
 *
 *    test_journal_undo [CASE]
 *
 * Each time the index is compared with one that is made from a copy of the
 * folder: every slot, every count, every segment; and it is looked through by
 * itself: directory, marks, due times. Where a death came before the log had
 * grown the same is tried again from the same state, one change further.
 */
#include "journal_disk.h"
#include "watch.h"

enum { BATCH = 12, NEW_MAX = 700 /* keys that a child uses at most */ };

struct scene {
    char path[128], copy[128];
    once_store *s;          /* the children's, without a compactor */
    struct once__journal j; /* ours, to look */
    uint64_t clock;
    uint32_t next;     /* key that was never used */
    uint32_t owned[8]; /* keys that are claimed, with ... */
    uint64_t fences[8];
    uint32_t done[8]; /* and some that may be forgotten */
    uint8_t special[4][ONCE_NAME_SIZE];
    atomic_int *steps; /* of the last one, shared with it */
};

/* ---- What is there -------------------------------------------------------- */

struct state {
    struct once__slot *slots; /* by name */
    size_t count;
    uint64_t sums[5];
    uint64_t marked, last;
    struct once__segment *segments;
};

static int by_name(const void *a, const void *b)
{
    return memcmp(a, b, ONCE_NAME_SIZE);
}

/* Looks through a page. 1: all in it is true. */
static int page_is_right(struct once__journal *j, uint32_t n)
{
    const struct once__page *p = once__shared_page(j, n);
    uint64_t lease = UINT64_MAX, keep = UINT64_MAX;
    unsigned i, live = 0, waiting = 0;
    int right = p->count <= ONCE__PAGE_SLOTS && p->depth <= j->shared->depth;

    for (i = 0; right && i < p->count; i++) {
        const struct once__slot *s = &p->slots[i];
        int owned = s->state == ONCE_CLAIMED || s->state == ONCE_DISPATCHED;

        right = once__index_find(j, s->name) == s && p->tags[i] == s->name[0];
        live += (unsigned)owned;
        if (s->state == ONCE_INDETERMINATE)
            waiting++;
        else if (owned)
            lease = s->due < lease ? s->due : lease;
        else
            keep = s->due < keep ? s->due : keep;
    }
    return right && p->live == live && p->waiting == waiting &&
           p->lease_from <= lease && p->keep_from <= keep &&
           (j->shared->marks[n / 64] >> n % 64 & 1) == (live + waiting > 0);
}

static void look_through(struct once__journal *j)
{
    struct once__shared *s = j->shared;
    uint32_t n;
    int wrong = 0;

    for (n = 1; n < s->pages; n++)
        if (once__index_bucket(s, n))
            wrong += !page_is_right(j, n);
    for (n = s->pages; n < s->pages + 4096; n++) /* no mark behind them */
        wrong += (s->marks[n / 64] >> n % 64 & 1) != 0;
    for (n = 0; n < 1u << s->depth; n++)
        wrong += once__directory_get(j, n) >= s->pages ||
                 !once__index_bucket(s, once__directory_get(j, n));
    T_EQ(wrong, 0);
    T_EQ(once__journal_id(s->tail), s->last);
    T_OK(s->durable <= s->tail);
}

/* With the lock. */
static void take_state(struct once__journal *j, struct state *out)
{
    struct once__shared *s = j->shared;
    const struct once__page *p;
    uint32_t n;

    memset(out, 0, sizeof(*out));
    look_through(j);
    out->slots = malloc((s->records + 1) * sizeof(*out->slots));
    out->segments = malloc(sizeof(s->segments));
    assert(out->slots != NULL && out->segments != NULL);
    for (n = 1; n < s->pages; n++) {
        p = once__shared_page(j, n);
        if (!once__index_bucket(s, n))
            continue;
        if (!T_OK(out->count + p->count <= s->records))
            break;
        memcpy(out->slots + out->count, p->slots,
               p->count * sizeof(*out->slots));
        out->count += p->count;
    }
    T_EQ(out->count, s->records);
    qsort(out->slots, out->count, sizeof(*out->slots), by_name);
    memcpy(
        out->sums,
        (uint64_t[]){s->records, s->bytes, s->owned, s->dispatched, s->waiting},
        sizeof(out->sums));
    out->marked = s->marked;
    out->last = s->last;
    memcpy(out->segments, s->segments, sizeof(s->segments));
}

static void drop_state(struct state *s)
{
    free(s->slots);
    free(s->segments);
}

static int is_same(const struct state *a, const struct state *b)
{
    uint64_t id;
    int same = a->count == b->count && a->marked == b->marked &&
               memcmp(a->slots, b->slots, a->count * sizeof(*a->slots)) == 0 &&
               memcmp(a->sums, b->sums, sizeof(a->sums)) == 0;

    for (id = a->marked; same && id <= a->last; id++)
        same = a->segments[id].live == b->segments[id].live &&
               a->segments[id].bytes == b->segments[id].bytes;
    return same;
}

static void open_view(const char *path, struct once__journal *j)
{
    once_error err = {0, ""};

    once__handle_init(j);
    j->busy_ms = 5000;
    j->segment_max = 65536;
    j->path = strdup(path);
    assert(j->path != NULL);
    if (!T_OK(once__session_open(j, &err) == ONCE_OK)) {
        printf("# %s\n", err.text);
        abort();
    }
}

static void hold(pthread_mutex_t *m)
{
    int rc = once__shared_lock(m, 5000);

    if (rc == EOWNERDEAD)
        rc = pthread_mutex_consistent(m);
    T_EQ(rc, 0);
}

/* Takes the lock, which repairs; then the same from the log. */
static void compare(struct scene *c)
{
    struct once__journal other;
    struct state is, should;
    uint64_t fence = c->j.shared->fence;
    once_error err = {0, ""};

    hold(&c->j.shared->compact); /* files stay where they are */
    if (!T_OK(once__journal_lock(&c->j, &err) == ONCE_OK)) {
        printf("# %s\n", err.text);
        return;
    }
    hold(&c->j.shared->prep);
    T_OK(c->j.shared->fence >= fence);
    take_state(&c->j, &is);
    copy_folder(c->path, c->copy);
    (void)pthread_mutex_unlock(&c->j.shared->prep);
    once__journal_unlock(&c->j);
    (void)pthread_mutex_unlock(&c->j.shared->compact);
    open_view(c->copy, &other);
    T_EQ(once__journal_lock(&other, &err), ONCE_OK);
    take_state(&other, &should);
    once__journal_unlock(&other);
    once__session_close(&other);
    T_OK(is_same(&is, &should));
    drop_state(&is);
    drop_state(&should);
}

/* ---- Dying ----------------------------------------------------------------- */

/* A child does `act` and dies at its store `n`. 1: it did; 0: it came to its
 * end. How many stores there were is in *steps. */
static int die_at(struct scene *c, void (*act)(struct scene *), int n)
{
    int status;
    pid_t pid;

    fflush(stdout);
    pid = fork();
    if (pid == 0) {
        (void)alarm(60);
        watch_begin(n);
        act(c);
        atomic_store(c->steps, watch_end());
        _exit(0);
    }
    T_OK(waitpid(pid, &status, 0) == pid);
    /* SIGALRM: our other thread had a lock of its own when the child was born,
     * which waited for it. What it had written by then counts: a death, too. */
    if (!T_OK(WIFSIGNALED(status)
                  ? WTERMSIG(status) == SIGKILL || WTERMSIG(status) == SIGALRM
                  : status == 0))
        printf("# status %x\n", (unsigned)status);
    c->next += NEW_MAX; /* it may have used them */
    return WIFSIGNALED(status);
}

static void begin_scene(struct scene *c, const char *tail)
{
    memset(c, 0, sizeof(*c));
    new_path(c->path, sizeof(c->path));
    new_path(c->copy, sizeof(c->copy));
    c->clock = BIRTH;
    c->steps = mmap(NULL, sizeof(*c->steps), PROT_READ | PROT_WRITE,
                    MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert(c->steps != MAP_FAILED);
    c->s = must_open_with(c->path, tail, &c->clock);
    open_view(c->path, &c->j);
    T_EQ(once__journal_lock(&c->j, NULL), ONCE_OK);
    once__journal_unlock(&c->j);
}

static void end_scene(struct scene *c)
{
    once_store_close(c->s);
    once__session_close(&c->j);
    (void)munmap(c->steps, sizeof(*c->steps));
}

static uint64_t log_end(const struct scene *c)
{
    return c->j.shared->tail;
}

/* Keys for the next batch: some are claimed, some are to be forgotten. */
static void prepare(struct scene *c)
{
    once_op op;
    unsigned i;

    for (i = 0; i < 8; i++) {
        make_op(&op, ONCE_OP_CLAIM, c->next);
        T_EQ(apply_one(c->s, &op, NULL), ONCE_OK);
        T_EQ(op.rc, ONCE_OWNER);
        c->owned[i] = c->next++;
        c->fences[i] = op.record.fence;
        T_EQ(complete_one(c->s, c->next, 0), ONCE_OK);
        c->done[i] = c->next++;
    }
}

static uint32_t draw_from(uint32_t *random, uint32_t below)
{
    *random = *random * 1664525u + 1013904223u;
    return (*random >> 8) % below;
}

/*
 * Dies at one store after the other, `step` apart on average, until it came to
 * its end. Where the log has grown there is something new to do. With `again`
 * the next one dies as well, while it repairs. Returns how often.
 */
static int die_everywhere(struct scene *c, void (*act)(struct scene *),
                          void (*renew)(struct scene *), int step, int again)
{
    uint32_t random = 4711;
    int n, deaths = 0;
    uint64_t end;

    renew(c);
    step *= WATCH_SLOWER;
    for (n = 1; t__bad == 0;
         n += 1 + (int)draw_from(&random, 2 * (uint32_t)step - 1)) {
        end = log_end(c);
        if (!die_at(c, act, n))
            break;
        deaths++;
        if (again)
            (void)die_at(c, act, 1 + (int)draw_from(&random, (uint32_t)n + 60));
        compare(c);
        if (t__bad != 0)
            printf("# at store %d\n", n);
        /* A repair alone makes it longer by one frame. */
        if (again || log_end(c) - end > ONCE__FRAME_HEAD)
            renew(c);
    }
    compare(c);
    printf("# %d deaths in %d stores\n", deaths, atomic_load(c->steps));
    return deaths;
}

/* ---- What they do ---------------------------------------------------------- */

static void apply_all(struct scene *c, once_op *ops, size_t n)
{
    static once_op *list[BATCH];
    once_error err = {0, ""};
    size_t i;

    for (i = 0; i < n; i++)
        list[i] = &ops[i];
    if (c->s->ops->apply(c->s, list, n, &err) != ONCE_OK) {
        printf("# %s\n", err.text);
        fflush(stdout);
        _exit(3);
    }
}

/* Of everything something: new names, changed ones, forgotten ones. */
static void a_mixed_batch(struct scene *c)
{
    once_op ops[BATCH];
    unsigned i;

    for (i = 0; i < 4; i++) {
        make_op(&ops[3 * i], ONCE_OP_CLAIM, c->next + i);
        make_op(&ops[3 * i + 1],
                i % 2 == 0 ? ONCE_OP_COMPLETE : ONCE_OP_DISPATCH, c->owned[i]);
        ops[3 * i + 1].fence = c->fences[i];
        ops[3 * i + 1].result = result_of(i);
        make_op(&ops[3 * i + 2], ONCE_OP_FORGET, c->done[i]);
    }
    apply_all(c, ops, BATCH);
}

static void renew_mixed(struct scene *c)
{
    c->clock += 10;
    prepare(c);
}

static void a_process_may_die_before_any_change(void)
{
    struct scene c;

    begin_scene(&c, "?segment=65536");
    T_OK(die_everywhere(&c, a_mixed_batch, renew_mixed, 3, 0) >
         100 / WATCH_SLOWER);
    end_scene(&c);
}

static void the_one_who_repairs_may_die_as_well(void)
{
    struct scene c;

    begin_scene(&c, "?segment=65536");
    T_OK(die_everywhere(&c, a_mixed_batch, renew_mixed, 5, 1) >
         50 / WATCH_SLOWER);
    end_scene(&c);
}

/* Half a segment each: it goes on in the next one in the midst of a batch. */
static void a_bulky_batch(struct scene *c)
{
    once_op ops[4];
    unsigned i;

    for (i = 0; i < 4; i++) {
        make_op(&ops[i], ONCE_OP_COMPLETE, c->owned[i]);
        ops[i].fence = c->fences[i];
        ops[i].result = result_of(BULKY);
    }
    apply_all(c, ops, 4);
}

/* There is a segment to go on in. */
static void renew_bulky(struct scene *c)
{
    int i;

    renew_mixed(c);
    T_EQ(c->s->ops->maintain(c->s, NULL), ONCE_OK);
    for (i = 0; i < 200 && c->j.shared->ready == c->j.shared->last; i++)
        (void)usleep(1000);
}

static void a_process_may_die_before_any_change_of_segments(void)
{
    struct scene c;
    uint64_t last;

    begin_scene(&c, "?segment=65536");
    last = c.j.shared->last;
    T_OK(die_everywhere(&c, a_bulky_batch, renew_bulky, 2, 0) >
         40 / WATCH_SLOWER);
    T_OK(c.j.shared->last > last + 5);
    end_scene(&c);
}

/* ---- Pages that are cut, a directory that doubles --------------------------- */

/* Names that nobody has: pages of the index are cut. */
static void import(struct scene *c, uint32_t count)
{
    static once_named all[NEW_MAX];
    once_error err = {0, ""};
    uint32_t i;

    memset(all, 0, sizeof(all));
    for (i = 0; i < count; i++) {
        name_of(all[i].name, c->next + i);
        all[i].record.state = i % 5 == 0 ? ONCE_INDETERMINATE : ONCE_COMPLETED;
        all[i].record.kind = i % 5 == 0 ? ONCE_NO_KIND : ONCE_SUCCESS;
        all[i].record.attempt = 1;
        all[i].record.fence = 7000;
        all[i].record.keep_ms = BIRTH + i;
        all[i].record.ended_ms = BIRTH - i;
    }
    if (c->s->ops->import(c->s, all, count, &err) != ONCE_OK) {
        printf("# %s\n", err.text);
        fflush(stdout);
        _exit(3);
    }
}

static void a_hundred_new_names(struct scene *c)
{
    import(c, 100);
}

static void many_new_names(struct scene *c)
{
    import(c, NEW_MAX);
}

static void renew_names(struct scene *c)
{
    T_EQ(c->s->ops->maintain(c->s, NULL), ONCE_OK);
    (void)usleep(20000);
}

static void a_page_may_be_half_cut(void)
{
    struct scene c;

    begin_scene(&c, "");
    T_OK(die_everywhere(&c, a_hundred_new_names, renew_names, 80, 0) >
         30 / WATCH_SLOWER);
    end_scene(&c);
}

static void a_page_may_be_half_cut_and_half_put_back(void)
{
    struct scene c;

    begin_scene(&c, "");
    T_OK(die_everywhere(&c, a_hundred_new_names, renew_names, 150, 1) >
         10 / WATCH_SLOWER);
    end_scene(&c);
}

/* More names than notes: what there is is written in the midst of the batch,
 * and that stays. */
static void a_batch_may_be_half_written(void)
{
    struct scene c;
    once_counts counts;

    begin_scene(&c, "");
    T_OK(die_everywhere(&c, many_new_names, renew_names, 1200, 0) >
         10 / WATCH_SLOWER);
    counts_agree(c.s, &counts);
    T_OK((counts.rest + counts.indeterminate) % NEW_MAX != 0);
    end_scene(&c);
}

enum { DEEP = 10, PATH = 5 }; /* the directory's bits; those of one page */

/* A new name whose hash ends so. */
static void name_ending(struct scene *c, unsigned bits, uint64_t end,
                        uint8_t *out)
{
    do
        name_of(out, c->next++);
    while ((once__index_hash(c->j.shared, out) & ((1u << bits) - 1)) != end);
}

/* One page has all bits of the directory, and is full. */
static void fill_a_path(struct scene *c)
{
    const struct once__page *p;
    unsigned same = 0, bits;
    once_op op;

    for (;;) {
        p = once__shared_page(&c->j, once__directory_get(&c->j, PATH));
        bits = p->depth;
        if (bits == DEEP && p->count == ONCE__PAGE_SLOTS)
            break;
        make_op(&op, ONCE_OP_CLAIM, 0);
        if (bits == DEEP || same < 30)
            name_ending(c, DEEP, PATH, op.name);
        else
            name_ending(c, bits + 1, (PATH ^ 1u << bits) & ((2u << bits) - 1),
                        op.name);
        same += (once__index_hash(c->j.shared, op.name) & ((1u << DEEP) - 1)) ==
                PATH;
        T_EQ(apply_one(c->s, &op, NULL), ONCE_OK);
        if (!T_OK(op.rc == ONCE_OWNER))
            break;
    }
    T_EQ(c->j.shared->depth, DEEP);
    for (bits = 0; bits < 4; bits++)
        name_ending(c, DEEP, PATH, c->special[bits]);
}

static void claims_on_the_path(struct scene *c)
{
    once_op ops[4];
    unsigned i;

    for (i = 0; i < 4; i++) {
        make_op(&ops[i], ONCE_OP_CLAIM, 0);
        memcpy(ops[i].name, c->special[i], ONCE_NAME_SIZE);
    }
    apply_all(c, ops, 4);
}

static void renew_nothing(struct scene *c)
{
    (void)usleep(c->next > 0 ? 1000 : 0);
}

static void the_directory_may_be_half_doubled(void)
{
    struct scene c;
    int again;

    for (again = 0; again < 2; again++) {
        begin_scene(&c, "");
        fill_a_path(&c);
        T_OK(die_everywhere(&c, claims_on_the_path, renew_nothing,
                            again ? 90 : 40, again) > 10 / WATCH_SLOWER);
        T_EQ(c.j.shared->depth, DEEP + 1);
        end_scene(&c);
    }
}

/* ---- The compactor --------------------------------------------------------- */

/* With a compactor of its own, which moves records and drops segments. */
static void sweep(struct scene *c)
{
    once_store *s;
    uint32_t i;

    (void)watch_end();
    s = must_open_with(c->path, "?segment=65536", &c->clock);
    watch_begin(watch.last);
    for (i = c->next; i < c->next + 40; i++) {
        if (complete_one(s, i, i % 20 == 0 ? 1000000000 : 0) != ONCE_OK ||
            (i % 20 != 0 && verb_on(s, ONCE_OP_FORGET, i) != ONCE_OK) ||
            (i % 10 == 0 && s->ops->maintain(s, NULL) != ONCE_OK))
            _exit(3);
    }
}

static void the_compactor_may_die_before_any_change(void)
{
    struct scene c;
    uint64_t marked;

    begin_scene(&c, "?segment=65536");
    marked = c.j.shared->marked;
    T_OK(die_everywhere(&c, sweep, renew_nothing, 200, 0) > 10 / WATCH_SLOWER);
    T_OK(c.j.shared->marked > marked);
    end_scene(&c);
}

/* ---- What it costs, and what is not trusted --------------------------------- */

static atomic_int reads, reads_left;

static void count_reads(void)
{
    atomic_fetch_add(&reads, 1);
    if (atomic_load(&reads_left) > 0 && atomic_fetch_sub(&reads_left, 1) == 1)
        (void)kill(getpid(), SIGKILL);
}

/* Of DIR/head, which is no part of the log, and nothing else. */
static void a_repair_does_not_read_the_log(void)
{
    struct scene c;
    uint64_t recovered;
    int n;

    begin_scene(&c, "");
    for (n = 0; n < 20; n++) {
        renew_names(&c);
        many_new_names(&c);
        c.next += NEW_MAX;
    }
    recovered = c.j.shared->recovered;
    for (n = 50; n < 1000; n += 100) {
        renew_names(&c);
        T_OK(die_at(&c, a_hundred_new_names, n));
        atomic_store(&reads, 0);
        on_read = count_reads;
        T_EQ(once__journal_lock(&c.j, NULL), ONCE_OK);
        on_read = NULL;
        once__journal_unlock(&c.j);
        T_EQ(atomic_load(&reads), 1);
        T_EQ(c.j.shared->recovered, recovered);
        T_OK(c.j.shared->records >= 20 * NEW_MAX);
    }
    compare(&c);
    end_scene(&c);
}

/* Each of these cannot be true. */
static void spoil(struct once__undo *u, int how)
{
    switch (how) {
    case 0:
        u->count = ONCE__UNDO_NOTES + 1;
        break;
    case 1:
        u->notes[0].page = UINT32_MAX;
        break;
    case 2:
        u->notes[0].page = 1; /* the directory's */
        break;
    case 3:
        u->notes[0].slot = ONCE__PAGE_SLOTS;
        break;
    case 4:
        u->notes[0].segments[1] = ONCE__JOURNAL_SEGMENTS;
        break;
    case 5:
        u->notes[0].twin = UINT32_MAX;
        break;
    case 6:
        u->depth = 31;
        break;
    default:
        u->pages = UINT32_MAX;
    }
}

enum { SPOILS = 8 };

static void die_reading(struct scene *c)
{
    (void)watch_end();
    on_read = count_reads;
    T_EQ(once__journal_lock(&c->j, NULL), ONCE_OK);
    once__journal_unlock(&c->j);
    watch_begin(0);
}

/* 1: the log was read after notes that cannot be true. 0: the store's other
 * thread may have put them back before they were spoiled. */
static int spoiled_notes_are_refused(struct scene *c, int how, int *deaths)
{
    uint64_t recovered;
    int n;

    renew_mixed(c);
    recovered = c->j.shared->recovered;
    T_OK(die_at(c, a_mixed_batch, 120));
    if (c->j.shared->undo.from == c->j.shared->tail)
        spoil(&c->j.shared->undo, how % SPOILS);
    for (n = 1; n < 3 + how % 3; n++) {
        atomic_store(&reads_left, n);
        *deaths += die_at(c, die_reading, 0);
    }
    atomic_store(&reads_left, 0);
    on_read = NULL;
    T_EQ(once__journal_lock(&c->j, NULL), ONCE_OK);
    once__journal_unlock(&c->j);
    compare(c);
    return c->j.shared->recovered > recovered;
}

/* Then the log counts, until it was read to its end. */
static void notes_that_cannot_be_true_are_not_put_back(void)
{
    struct scene c;
    int how, tries, refused, deaths = 0;

    begin_scene(&c, "?segment=65536");
    for (how = 0; how < SPOILS * 3; how++) {
        refused = 0;
        for (tries = 0; tries < 8 && !refused; tries++)
            refused = spoiled_notes_are_refused(&c, how, &deaths);
        T_OK(refused);
    }
    T_OK(deaths > SPOILS);
    end_scene(&c);
}

/* ---- All were killed --------------------------------------------------------- */

static void complete_and_die(const char *path, void *user)
{
    struct told *told = user;
    once_store *s = must_open(path);

    complete_all(s, told->from, told->from + 10);
    told->done = told->from + 10;
    (void)usleep(100000); /* its other thread has nothing to do any more */
    at_call(told->then, told->countdown);
    (void)complete_one(s, told->from + 10, 5000);
    (void)kill(getpid(), SIGKILL);
}

static void open_and_die(const char *path, void *user)
{
    struct told *told = user;

    at_call(told->then, told->countdown);
    (void)must_open(path);
    (void)kill(getpid(), SIGKILL);
}

/* As if that were long ago. */
static void let_a_minute_pass(const char *path)
{
    struct once__journal *j = calloc(1, sizeof(*j));
    uint8_t id[ONCE__JOURNAL_ID];

    assert(j != NULL);
    view_of(path, j, id);
    T_EQ(once__shared_attach(j, id, NULL), ONCE_OK);
    j->shared->kept_ms = 0;
    once__shared_detach(j);
    (void)close(j->lock_fd);
    free(j);
}

/* Dies in its last batch and again in each call of opening it. */
static void the_memory_of_the_dead_is_kept(void)
{
    struct told *told = told_new();
    char before[MEMORY_PATH], after[MEMORY_PATH];
    struct scene c;
    int n, then, calls;

    memset(&c, 0, sizeof(c));
    new_path(c.path, sizeof(c.path));
    new_path(c.copy, sizeof(c.copy));
    for (n = 0; n < 24 && t__bad == 0; n++) {
        then = n % 3 == 0 ? DIE : n % 3 == 1 ? TEAR : DIE_FLUSH;
        told->then = then;
        told->countdown = 1 + n / 12;
        T_OK(WIFSIGNALED(in_child(complete_and_die, c.path, told)));
        memory_of(c.path, before);
        for (calls = 1; calls < n % 6; calls++) {
            let_a_minute_pass(c.path);
            told->then = n % 2 == 0 ? DIE : TEAR;
            told->countdown = calls;
            T_OK(WIFSIGNALED(in_child(open_and_die, c.path, told)));
        }
        let_a_minute_pass(c.path);
        open_view(c.path, &c.j);
        memory_of(c.path, after);
        T_STR(before, after);
        T_EQ(c.j.shared->durable, c.j.shared->tail);
        compare(&c);
        once__session_close(&c.j);
        c.s = must_open(c.path);
        all_are_there(c.s, told->from, told->done);
        once_store_close(c.s);
        told->from += 20;
    }
    (void)munmap(told, sizeof(*told));
}

/* They may have died of what is in it. */
static void the_memory_is_not_kept_twice_within_a_minute(void)
{
    struct told *told = told_new();
    char path[128], before[MEMORY_PATH], after[MEMORY_PATH];

    new_path(path, sizeof(path));
    T_OK(WIFSIGNALED(in_child(complete_and_die, path, told)));
    memory_of(path, before);
    T_OK(WIFSIGNALED(in_child(open_and_die, path, told)));
    memory_of(path, after);
    T_STR(before, after);
    once_store_close(must_open(path));
    memory_of(path, after);
    T_OK(strcmp(before, after) != 0);
    (void)munmap(told, sizeof(*told));
}

/* Nobody knows how the flush of the dead one ended. */
static void what_they_were_flushing_is_written_again_and_flushed(void)
{
    struct told *told = told_new();
    struct once__journal j;
    char path[128];
    size_t i, writes = 0, flushes = 0, last = 0;

    new_path(path, sizeof(path));
    told->then = DIE_FLUSH;
    told->countdown = 1;
    T_OK(WIFSIGNALED(in_child(complete_and_die, path, told)));
    disk.recording = 1;
    open_view(path, &j);
    disk.recording = 0;
    for (i = 0; i < disk.count; i++) {
        writes += disk.events[i].what == WRITE && flushes == 0;
        flushes += disk.events[i].what == FLUSH;
        last = disk.events[i].what == WRITE ? i : last;
    }
    T_EQ(writes, 1);  /* what the dead one had written */
    T_EQ(flushes, 2); /* that, and where the log goes on */
    T_OK(disk.count > 0 && disk.events[disk.count - 1].what == FLUSH);
    T_OK(last < disk.count - 1);
    for (i = 0; i < disk.count; i++)
        free(disk.events[i].bytes);
    disk.count = 0;
    once__session_close(&j);
    (void)munmap(told, sizeof(*told));
}

/* A copy of the files was put in their place, byte by byte. */
static void memory_of_another_log_is_not_kept(void)
{
    struct told *told = told_new();
    char path[128], copy[128], command[400];
    once_error err = {0, ""};
    once_store *s = NULL;

    new_path(path, sizeof(path));
    new_path(copy, sizeof(copy));
    s = must_open(path);
    complete_all(s, 100, 110);
    once_store_close(s);
    copy_folder(path, copy);
    T_OK(WIFSIGNALED(in_child(complete_and_die, path, told)));
    (void)snprintf(command, sizeof(command),
                   "cd '%s' && for f in *.log; do "
                   "cat \"$f\" > '%s'/\"$f\"; done",
                   copy, path);
    T_EQ(system(command), 0);
    T_OK(try_open(path, "?segment=65536", NULL, &err, &s) == ONCE_ECORRUPT);
    (void)munmap(told, sizeof(*told));
}

int main(int argc, char **argv)
{
    const char *only = argc == 2 ? argv[1] : "";

    if (!WATCH_WORKS) {
        printf("1..0 # SKIP it cannot watch each store here\n");
        return 77;
    }
    (void)snprintf(folder, sizeof(folder), "/tmp/once-journal-XXXXXX");
    if (mkdtemp(folder) == NULL)
        return 2;
    RUN(a_process_may_die_before_any_change);
    RUN(the_one_who_repairs_may_die_as_well);
    RUN(a_process_may_die_before_any_change_of_segments);
    RUN(a_page_may_be_half_cut);
    RUN(a_page_may_be_half_cut_and_half_put_back);
    RUN(a_batch_may_be_half_written);
    RUN(the_directory_may_be_half_doubled);
    RUN(the_compactor_may_die_before_any_change);
    RUN(a_repair_does_not_read_the_log);
    RUN(notes_that_cannot_be_true_are_not_put_back);
    RUN(the_memory_of_the_dead_is_kept);
    RUN(the_memory_is_not_kept_twice_within_a_minute);
    RUN(what_they_were_flushing_is_written_again_and_flushed);
    RUN(memory_of_another_log_is_not_kept);
    remove_folder();
    return t_done();
}
