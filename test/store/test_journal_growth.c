/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_journal_growth.c - what is dropped, what is written again, and how large a journal gets.
 *
 *    test_journal_growth [CASE]
 *
 * What reaches the disk is seen through the linker (journal_disk.h).
 */
#include "journal_disk.h"

/* Few records stay for ever among many that go. */
static void old_segments_go_and_the_few_that_stay_are_kept(void)
{
    char path[128];
    uint64_t clock = BIRTH;
    once_store *s;
    uint32_t i, round, old, files = 0, most = 0;

    new_path(path, sizeof(path));
    s = must_open_with(path, "?segment=65536", &clock);
    for (round = 0; round < 40; round++) {
        T_EQ(complete_one(s, round, 1000000000), ONCE_OK);
        for (i = 0; i < 100; i++)
            T_EQ(complete_one(s, 1000 + round * 100 + i, 5000), ONCE_OK);
        clock += 2500;
        if (round >= 2) {
            old = 1000 + (round - 2) * 100;
            forget_all(s, old, old + 100);
        }
        T_EQ(s->ops->maintain(s, NULL), ONCE_OK);
        (void)usleep(2000);
        files = (uint32_t)count_files(path);
        most = files > most ? files : most;
    }
    printf("# at most %u files for %u KiB written\n", most, 40 * 80);
    T_OK(most < 35);
    all_are_there(s, 0, 40);
    for (i = 1000; i < 1000 + 38 * 100; i++)
        T_EQ(verb_on(s, ONCE_OP_SHOW, i), ONCE_FREE);
    once_store_close(s);
    s = must_open_with(path, "?segment=65536", &clock);
    all_are_there(s, 0, 40);
    for (i = 1000; i < 1000 + 38 * 100; i += 17)
        T_EQ(verb_on(s, ONCE_OP_SHOW, i), ONCE_FREE);
    once_store_close(s);
}

/* A handle keeps 64 descriptors. The compactor's of the oldest segment was
 * closed when that of the last one came to its place. */
static void more_segments_than_descriptors_are_swept(void)
{
    enum { KEYS = 6000, STAYS_ONE_IN = 16 };
    uint64_t clock = BIRTH;
    char path[128], first[160];
    once_store *s;
    once_error err = {0, ""};
    uint32_t i;

    new_path(path, sizeof(path));
    segment_path(path, 1, first, sizeof(first));
    s = must_open_with(path, "?segment=65536", &clock);
    for (i = 0; i < KEYS; i++)
        T_EQ(complete_one(s, i, i % STAYS_ONE_IN == 0 ? 1000000000 : 5000),
             ONCE_OK);
    T_OK(count_files(path) > ONCE__FILES + 10);
    clock += 10000;
    for (i = 0; i < KEYS; i++)
        if (i % STAYS_ONE_IN != 0)
            T_EQ(verb_on(s, ONCE_OP_FORGET, i), ONCE_OK);
    for (i = 0; i < 1000 && t__bad == 0 && count_files(path) > ONCE__FILES;
         i++) {
        if (s->ops->maintain(s, &err) != ONCE_OK)
            T_STR(err.text, "");
        (void)usleep(10000);
    }
    T_OK(!exists(first) && count_files(path) <= ONCE__FILES);
    for (i = 0; i < KEYS; i += STAYS_ONE_IN)
        T_OK(is_there(s, i));
    once_store_close(s);
}

static void keep_writing(const char *path, void *user)
{
    struct range *r = user;
    uint64_t clock = BIRTH;
    once_store *s = must_open_with(path, "?segment=65536", &clock);
    uint32_t i;

    for (i = r->from; i < r->to; i++) {
        T_EQ(complete_one(s, i, i % 16 == 0 ? 1000000000 : 0), ONCE_OK);
        if (i % 16 != 0)
            T_EQ(verb_on(s, ONCE_OP_FORGET, i), ONCE_OK);
        if (i % 50 == 0)
            T_EQ(s->ops->maintain(s, NULL), ONCE_OK);
    }
    once_store_close(s);
}

/* All of them sweep; nothing that stays is lost, nothing that went is back. */
static void three_processes_write_and_sweep_at_once(void)
{
    struct range r[3] = {{0, 1500}, {2000, 3500}, {4000, 5500}};
    char path[128];
    once_store *s;
    uint32_t i, k;
    int status;
    pid_t pids[3];

    new_path(path, sizeof(path));
    fflush(stdout);
    for (k = 0; k < 3; k++) {
        pids[k] = fork();
        if (pids[k] == 0) {
            t__bad = 0;
            keep_writing(path, &r[k]);
            fflush(stdout);
            _exit(t__bad != 0);
        }
    }
    for (k = 0; k < 3; k++)
        T_OK(waitpid(pids[k], &status, 0) == pids[k] && status == 0);
    s = must_open(path);
    for (k = 0; k < 3; k++)
        for (i = r[k].from; i < r[k].to; i++) {
            if (i % 16 == 0)
                T_OK(is_there(s, i));
            else
                T_EQ(verb_on(s, ONCE_OP_SHOW, i), ONCE_FREE);
        }
    once_store_close(s);
}

static void dying_while_sweeping_loses_nothing_and_brings_nothing_back(void)
{
    struct told *told = told_new();
    char path[128];
    once_store *s, *company;
    uint32_t i, skip[40], n;
    int status;

    new_path(path, sizeof(path));
    company = must_open(path);
    for (n = 0; n < 40 && t__bad == 0; n++) {
        told->done = told->from;
        told->countdown = 60 + (int)n * 23;
        told->then = n % 2 ? TEAR : DIE;
        status = in_child(sweep_and_die, path, told);
        T_OK(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
        skip[n] = told->done;
        told->from = told->done + 1;
        if (n == 20) { /* from now on each death is everybody's */
            once_store_close(company);
            company = NULL;
        }
    }
    once_store_close(company);
    s = must_open(path);
    for (i = 0, n = 0; i < told->done; i++) {
        if (i == skip[n]) { /* was under way */
            n++;
            continue;
        }
        if (i % STAYS == 0)
            T_OK(is_there(s, i));
        else
            T_EQ(verb_on(s, ONCE_OP_SHOW, i), ONCE_FREE);
    }
    printf("# %u keys, %d files\n", told->done, count_files(path));
    T_OK(told->done > 2000);
    once_store_close(s);
    (void)munmap(told, sizeof(*told));
}

/* What is just being written, swept or dropped is no damage. */
static void verify_and_dump_work_beside_writers(void)
{
    struct range r = {0, 3000};
    struct lines l;
    once_error err;
    char path[128];
    int status = 0, looks = 0;
    pid_t pid;

    new_path(path, sizeof(path));
    once_store_close(must_open(path));
    fflush(stdout);
    pid = fork();
    if (pid == 0) {
        t__bad = 0;
        keep_writing(path, &r);
        fflush(stdout);
        _exit(t__bad != 0);
    }
    while (waitpid(pid, &status, WNOHANG) == 0 && t__bad == 0) {
        T_EQ(verify(path, &l), 0);
        if (l.n > 0)
            printf("#   %s\n", l.all);
        if (!T_OK(once__journal_dump(path, take_line, &l, &err) >= 0))
            printf("#   %s\n", err.text);
        looks++;
    }
    if (t__bad != 0)
        (void)waitpid(pid, &status, 0);
    T_EQ(status, 0);
    T_OK(looks > 5);
}

static void results_larger_than_a_segment_are_kept(void)
{
    static const size_t sizes[] = {65000, 65536, 70000, 1 << 20, 64 << 20};
    uint8_t *bytes = calloc(1, ONCE_RESULT_MAX);
    char path[128];
    once_store *s;
    once_op op;
    uint32_t i, round;

    assert(bytes != NULL);
    new_path(path, sizeof(path));
    s = must_open(path);
    for (i = 0; i < 5; i++) {
        bytes[0] = (uint8_t)i;
        bytes[sizes[i] - 1] = (uint8_t)(i + 1);
        make_op(&op, ONCE_OP_CLAIM, i);
        T_EQ(apply_one(s, &op, NULL), ONCE_OK);
        op.verb = ONCE_OP_COMPLETE;
        op.fence = op.record.fence;
        op.result = (once_bytes){bytes, sizes[i]};
        T_EQ(apply_one(s, &op, NULL), ONCE_OK);
        T_EQ(op.rc, ONCE_OK);
    }
    for (round = 0; round < 2; round++) {
        for (i = 0; i < 5; i++) {
            const uint8_t *got;

            make_op(&op, ONCE_OP_SHOW, i);
            T_EQ(apply_one(s, &op, NULL), ONCE_OK);
            T_EQ(op.rc, ONCE_REPLAY);
            T_EQ(op.record.result.size, sizes[i]);
            got = op.record.result.data;
            T_OK(got[0] == i && got[sizes[i] - 1] == i + 1);
        }
        complete_all(s, 100 + round * 300, 400 + round * 300);
        once_store_close(s);
        s = must_open(path);
    }
    once_store_close(s);
    free(bytes);
}

static int see(void *user, const uint8_t *name, const once_record *r)
{
    struct seen *seen = user;

    T_EQ(r->state, ONCE_COMPLETED);
    if (seen->n > 0 && memcmp(seen->last, name, ONCE_NAME_SIZE) >= 0)
        seen->in_order = 0;
    memcpy(seen->last, name, ONCE_NAME_SIZE);
    seen->n++;
    return 0;
}

/* Turns pages to the end. */
static uint32_t list_all(once_store *s, uint32_t page)
{
    struct seen seen = {.in_order = 1};
    once_position after = {0, {0}};
    uint32_t pages = 0;

    while (s->ops->scan(s, ONCE_SCAN_ALL, pages > 0 ? &after : NULL, page, see,
                        &seen, NULL) > 0) {
        memcpy(after.name, seen.last, sizeof(after.name));
        pages++;
    }
    T_OK(seen.in_order);
    T_EQ(pages, (seen.n + page - 1) / page);
    return seen.n;
}

enum { MANY = 100000, MANY_AT_ONCE = 1000 };

static void fill(const char *path, void *user)
{
    static once_op op[MANY_AT_ONCE];
    once_op *ops[MANY_AT_ONCE];
    once_store *s = must_open_with(path, "", NULL);
    uint32_t at, i;

    (void)user;
    for (at = 0; at < MANY; at += MANY_AT_ONCE) {
        for (i = 0; i < MANY_AT_ONCE; i++) {
            make_op(&op[i], ONCE_OP_CLAIM, at + i);
            ops[i] = &op[i];
        }
        T_EQ(s->ops->apply(s, ops, MANY_AT_ONCE, NULL), ONCE_OK);
        for (i = 0; i < MANY_AT_ONCE; i++) {
            uint64_t fence = op[i].record.fence;

            T_EQ(op[i].rc, ONCE_OWNER);
            make_op(&op[i], ONCE_OP_COMPLETE, at + i);
            op[i].fence = fence;
            op[i].result = (once_bytes){"done", 4};
        }
        T_EQ(s->ops->apply(s, ops, MANY_AT_ONCE, NULL), ONCE_OK);
    }
}

struct near {
    uint8_t (*want)[ONCE_NAME_SIZE];
    unsigned n;
};

static int see_near(void *user, const uint8_t *name, const once_record *r)
{
    struct near *near = user;

    T_EQ(r->state, ONCE_COMPLETED);
    T_EQ(memcmp(name, near->want[near->n++], ONCE_NAME_SIZE), 0);
    return 0;
}

static int by_name(const void *a, const void *b)
{
    return memcmp(a, b, ONCE_NAME_SIZE);
}

/* The next one, two or more after any place: as who looks for a hash by its
 * first digits asks. */
static void few_are_found_among_many(once_store *s)
{
    static uint8_t names[MANY + 1][ONCE_NAME_SIZE];
    static const uint32_t few[] = {1, 2, 63, 64, 300};
    once_position after = {0, {0}};
    uint32_t i, at, left;

    for (i = 0; i < MANY; i++)
        name_of(names[i], i);
    qsort(names, MANY, ONCE_NAME_SIZE, by_name);
    for (i = 0; i < 100; i++) {
        at = i < 90 ? i * 1111 : MANY - 100 + i;
        memcpy(after.name, names[at], ONCE_NAME_SIZE);
        left = MANY - 1 - at;
        if (left > few[i % 5])
            left = few[i % 5];
        struct near near = {&names[at + 1], 0};

        T_EQ(s->ops->scan(s, ONCE_SCAN_ALL, &after, few[i % 5], see_near, &near,
                          NULL),
             (int)left);
        T_EQ(near.n, left);
    }
}

static void many_records_are_back_after_an_unclean_end(void)
{
    char path[128], file[MEMORY_PATH];
    uint64_t clock = BIRTH + 5000;
    struct seen due = {0};
    struct stat st;
    once_store *s;

    new_path(path, sizeof(path));
    T_EQ(in_child(fill, path, NULL), 0);
    s = must_open_with(path, "", &clock);
    T_EQ(list_all(s, 1000), MANY);
    few_are_found_among_many(s);
    T_EQ(list_all(s, 1 << 20), MANY);
    T_EQ(s->ops->scan(s, ONCE_SCAN_KEEP, NULL, 1 << 20, see, &due, NULL), MANY);
    T_EQ(due.n, MANY);
    memory_of(path, file);
    T_EQ(stat(file, &st), 0);
    printf("# %" PRId64 " bytes of shared memory a record\n",
           (int64_t)st.st_blocks * 512 / MANY);
    T_OK((uint64_t)st.st_blocks * 512 < (uint64_t)MANY * 200);
    once_store_close(s);
}

/* An arm64 kernel may have them; here mmap() does what it would do there. */
static void the_index_is_mapped_where_pages_are_of_64_kib(void)
{
    uint64_t clock = BIRTH;
    char path[128];
    once_store *s;

    new_path(path, sizeof(path));
    kernel_page = 65536;
    s = must_open_with(path, "", &clock);
    T_EQ(complete_one(s, 1, 1000000000), ONCE_OK);
    T_OK(is_there(s, 1));
    once_store_close(s);
    kernel_page = 1;
}

int main(int argc, char **argv)
{
    const char *only = argc == 2 ? argv[1] : "";

    (void)snprintf(folder, sizeof(folder), "/tmp/once-journal-XXXXXX");
    if (mkdtemp(folder) == NULL)
        return 2;
    RUN(more_segments_than_descriptors_are_swept);
    RUN(old_segments_go_and_the_few_that_stay_are_kept);
    RUN(three_processes_write_and_sweep_at_once);
    RUN_DEATH(dying_while_sweeping_loses_nothing_and_brings_nothing_back);
    RUN(verify_and_dump_work_beside_writers);
    RUN(results_larger_than_a_segment_are_kept);
    RUN(many_records_are_back_after_an_unclean_end);
    RUN(the_index_is_mapped_where_pages_are_of_64_kib);
    remove_folder();
    return t_done();
}
