/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_journal_failures.c - a disk that fails, and one that is full.
 *
 *    test_journal_failures [CASE]
 *
 * What reaches the disk is seen through the linker (journal_disk.h).
 */
#include <sched.h>

#include "journal_disk.h"

static void a_failed_flush_or_write_stops_all_until_reopened(int then)
{
    char path[128];
    once_store *s, *other;
    once_error err;
    uint32_t i, done;
    int n, hits = 0, rc;

    for (n = 1; n <= 12; n++) {
        new_path(path, sizeof(path));
        s = must_open(path);
        other = must_open(path);
        at_call(then, n);
        rc = ONCE_OK;
        for (done = 0; done < 40 && rc == ONCE_OK; done += rc == ONCE_OK)
            rc = complete_one(s, done, 5000);
        at_call(0, 0);
        if (rc == ONCE_ESTORE) {
            for (i = 0; i < 3; i++) { /* it is not retried as if clean */
                once_op op;

                make_op(&op, ONCE_OP_SHOW, i);
                T_EQ(apply_one(i % 2 ? s : other, &op, &err), ONCE_ESTORE);
                T_OK(strstr(err.text, "no more answers") != NULL);
            }
            hits++;
        }
        once_store_close(other);
        once_store_close(s);
        s = must_open(path);
        all_are_there(s, 0, done);
        for (i = done; i < done + 2; i++) {
            rc = complete_one(s, i, 5000);
            T_OK(rc == ONCE_OK || rc == ONCE_OWNER || rc == ONCE_FENCED ||
                 rc == ONCE_REPLAY);
        }
        once_store_close(s);
        s = must_open(path);
        all_are_there(s, 0, done);
        once_store_close(s);
    }
    T_OK(hits >= 6);
}

static void a_failed_flush_stops_all_until_reopened(void)
{
    a_failed_flush_or_write_stops_all_until_reopened(FAIL_FLUSH);
}

static void a_failed_write_stops_all_until_reopened(void)
{
    a_failed_flush_or_write_stops_all_until_reopened(FAIL);
}

/* What was written behind the cut is not there, although it could be read. */
static void a_failed_flush_cuts_what_was_not_durable(void)
{
    char path[128];
    once_store *s;
    once_op op;

    new_path(path, sizeof(path));
    s = must_open_with(path, "", NULL);
    T_EQ(complete_one(s, 1, 5000), ONCE_OK);
    (void)usleep(100000); /* the compactor has made its segments */
    at_call(FAIL_FLUSH, 1);
    make_op(&op, ONCE_OP_CLAIM, 2);
    T_EQ(apply_one(s, &op, NULL), ONCE_ESTORE);
    at_call(0, 0);
    once_store_close(s);
    s = must_open_with(path, "", NULL);
    T_OK(is_there(s, 1));
    T_EQ(verb_on(s, ONCE_OP_SHOW, 2), ONCE_FREE);
    T_EQ(complete_one(s, 2, 5000), ONCE_OK);
    once_store_close(s);
    forget_memory(path);
    s = must_open_with(path, "", NULL);
    T_OK(is_there(s, 1) && is_there(s, 2));
    once_store_close(s);
}

/* Nobody was told anything; but what it left must not be taken for more. */
static void a_failure_while_making_it_leaves_a_folder_to_make_it_in(int then)
{
    char path[128];
    once_store *s;
    int n, met = 1, acknowledged;

    for (n = 1; n <= 100 && met; n++) {
        new_path(path, sizeof(path));
        at_call(then, n);
        s = NULL;
        acknowledged =
            try_open(path, "?segment=65536", NULL, NULL, &s) == ONCE_OK &&
            complete_one(s, 200, 5000) == ONCE_OK;
        met = atomic_load(&disk.countdown) <= 0;
        T_OK(met || s != NULL);
        at_call(0, 0);
        once_store_close(s);
        s = must_open(path);
        complete_all(s, 0, 10);
        T_EQ(in_child(complete_range, path, &(struct range){10, 20}), 0);
        all_are_there(s, 0, 20);
        once_store_close(s);
        forget_memory(path);
        s = must_open(path);
        all_are_there(s, 0, 20);
        T_OK(!acknowledged || is_there(s, 200));
        once_store_close(s);
    }
    printf("# %d calls\n", n - 1);
    T_OK(n > 5);
}

static void a_write_that_fails_while_it_is_made_harms_nobody(void)
{
    a_failure_while_making_it_leaves_a_folder_to_make_it_in(FAIL);
}

static void a_flush_that_fails_while_it_is_made_harms_nobody(void)
{
    a_failure_while_making_it_leaves_a_folder_to_make_it_in(FAIL_FLUSH);
}

static void open_and_die(const char *path, void *user)
{
    (void)user;
    (void)must_open(path);
}

/* The log ends where its last segment but one did. */
static void a_segment_that_was_never_flushed_is_cut_off(void)
{
    char path[128];
    once_store *s;
    uint32_t done;
    int n, rc, cuts = 0;

    for (n = 0; n < 12; n++) {
        new_path(path, sizeof(path));
        s = must_open(path);
        complete_all(s, 0, 20 + (uint32_t)n);
        at_call(FAIL_NEW, 0);
        rc = ONCE_OK;
        for (done = BULKY; done < BULKY + 40 && rc == ONCE_OK;
             done += rc == ONCE_OK)
            rc = complete_one(s, done, 5000);
        cuts += rc == ONCE_ESTORE;
        at_call(0, 0);
        once_store_close(s);
        if (n % 3 == 0)
            T_EQ(in_child(open_and_die, path, NULL), 0);
        T_EQ(in_child(complete_range, path, &(struct range){1000, 1003}), 0);
        if (n % 2)
            forget_memory(path);
        T_EQ(in_child(complete_range, path, &(struct range){1003, 1010}), 0);
        forget_memory(path);
        s = must_open(path);
        all_are_there(s, 0, 20 + (uint32_t)n);
        all_are_there(s, BULKY, done);
        all_are_there(s, 1000, 1010);
        once_store_close(s);
    }
    T_OK(cuts > 3);
}

enum { HELD = 200 };

static void use_full_disk(const char *place)
{
    static uint64_t fence[HELD];
    char path[128];
    once_store *s;
    once_op op;
    uint32_t i, n = 0;
    int rc, tries = 0;

    (void)snprintf(path, sizeof(path), "%s/j", place);
    s = must_open_with(path, "", NULL);
    for (i = 0; i < HELD; i++) {
        make_op(&op, ONCE_OP_CLAIM, i);
        T_EQ(apply_one(s, &op, NULL), ONCE_OK);
        T_EQ(op.rc, ONCE_OWNER);
        fence[i] = op.record.fence;
    }
    do { /* until there is no room for anybody new, nor will be soon */
        rc = complete_one(s, 1000 + n, 1000000);
        n += rc == ONCE_OK;
        tries = rc == ONCE_OK ? 0 : tries + 1;
        if (tries > 0) /* the compactor may find room for a smaller segment */
            (void)usleep(5000);
    } while ((rc == ONCE_OK || (rc == ONCE_EFULL && tries < 100)) &&
             n < 100000);
    T_EQ(rc, ONCE_EFULL);
    printf("# %u records fit\n", n);
    T_EQ(verb_on(s, ONCE_OP_CLAIM, 50000), ONCE_EFULL);
    T_EQ(verb_on(s, ONCE_OP_SHOW, 50000), ONCE_FREE); /* nothing was changed */
    T_OK(is_there(s, 1001));
    for (i = 0; i < HELD; i++) { /* those who hold a claim may end it */
        make_op(&op, i % 4 ? ONCE_OP_COMPLETE : ONCE_OP_RELEASE, i);
        op.fence = fence[i];
        op.keep_ms = 1000000;
        op.result = result_of(i);
        T_EQ(apply_one(s, &op, NULL), ONCE_OK);
        T_EQ(op.rc, ONCE_OK);
    }
    once_store_close(s);
    s = must_open_with(path, "", NULL);
    all_are_there(s, 1000, 1000 + n);
    for (i = 0; i < HELD; i++)
        T_EQ(is_there(s, i), i % 4 != 0);
    once_store_close(s);
}

static void a_full_disk_refuses_claims_and_takes_completions(void)
{
    char place[100];

    (void)snprintf(place, sizeof(place), "%s/disk", folder);
    T_EQ(mkdir(place, 0700), 0);
    if (mount("tmpfs", place, "tmpfs", 0, "size=6m") != 0) {
        printf("# skipped: no tmpfs to be had: %s\n", strerror(errno));
        return;
    }
    use_full_disk(place);
    T_EQ(umount(place), 0);
}

/* Fills it, lets all of it expire, and waits for a claim to be granted. */
static void fill_and_empty(once_store *s, uint32_t from, uint64_t *clock)
{
    uint32_t n = from, i;
    int rc, tries;

    do {
        rc = complete_one(s, n, 5000);
        n += rc == ONCE_OK;
        if (n % 50 == 0)
            T_EQ(s->ops->maintain(s, NULL), ONCE_OK);
    } while (rc == ONCE_OK && n - from < 100000);
    T_EQ(rc, ONCE_EFULL);
    printf("# %u records fit\n", n - from);
    *clock += 5000;
    for (i = from; i < n; i++)
        (void)verb_on(s, ONCE_OP_FORGET, i);
    for (tries = 0; rc != ONCE_OWNER && tries < 500; tries++) {
        T_EQ(s->ops->maintain(s, NULL), ONCE_OK);
        (void)usleep(10000);
        rc = verb_on(s, ONCE_OP_CLAIM, n);
    }
    T_EQ(rc, ONCE_OWNER);
}

static void empty_full_disk(const char *size, const char *tail)
{
    char place[100], path[128];
    uint64_t clock = BIRTH;
    uint32_t round;
    once_store *s;

    (void)snprintf(place, sizeof(place), "%s/disk%u", folder, folders++);
    T_EQ(mkdir(place, 0700), 0);
    if (mount("tmpfs", place, "tmpfs", 0, size) != 0) {
        printf("# skipped: no tmpfs to be had: %s\n", strerror(errno));
        return;
    }
    (void)snprintf(path, sizeof(path), "%s/j", place);
    s = must_open_with(path, tail, &clock);
    for (round = 0; round < 3; round++)
        fill_and_empty(s, round * 200000, &clock);
    once_store_close(s);
    T_EQ(umount(place), 0);
}

static void expired_records_make_room_on_a_full_disk(void)
{
    empty_full_disk("size=3m", "?segment=262144");
    /* Where the next segment, four times as large, does not fit. */
    empty_full_disk("size=8m", "");
    empty_full_disk("size=20m", "");
}

enum { SKIPPED = 77, AT_ONCE = 500, MEMORIES = 20 };

/* Claims keys from 0 on, until there is no room for one: how many there was. */
static uint32_t claim_until_full(once_store *s)
{
    static once_op op[AT_ONCE];
    once_op *ops[AT_ONCE];
    uint32_t n = 0, i;

    for (;;) {
        for (i = 0; i < AT_ONCE; i++) {
            make_op(&op[i], ONCE_OP_CLAIM, n + i);
            ops[i] = &op[i];
        }
        T_EQ(s->ops->apply(s, ops, AT_ONCE, NULL), ONCE_OK);
        for (i = 0; i < AT_ONCE; i++, n++)
            if (op[i].rc != ONCE_OWNER) {
                T_EQ(op[i].rc, ONCE_EFULL);
                return n;
            }
    }
}

/* A /dev/shm of our own that holds so much, and the folder in another. */
static void fill_memory(const char *path, void *user)
{
    const unsigned *kib = user;
    char size[32], file[160], index[176];
    once_store *s;
    uint32_t n, i;

    (void)snprintf(size, sizeof(size), "size=%uk", *kib);
    if (unshare(CLONE_NEWNS) != 0 ||
        mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL) != 0 ||
        mount("tmpfs", "/dev/shm", "tmpfs", 0, size) != 0 ||
        mount("tmpfs", path, "tmpfs", 0, "size=512m") != 0)
        _exit(SKIPPED);
    (void)snprintf(file, sizeof(file), "%s/j", path);
    path = file;
    s = must_open_with(path, "", NULL);
    n = claim_until_full(s);
    once_store_close(s);
    (void)snprintf(index, sizeof(index), "%s/index", path);
    T_OK(!exists(index)); /* it would bring each page back as it was */
    s = must_open_with(path, "", NULL);
    for (i = 0; i < n; i++)
        T_EQ(verb_on(s, ONCE_OP_SHOW, i), ONCE_IN_FLIGHT);
    once_store_close(s);
}

/* As after a start of the host: /dev/shm is as large as before and empty. */
static void an_index_that_filled_the_memory_is_made_again(void)
{
    unsigned i, kib = 2100;
    char path[128];
    int status;

    for (i = 0; i < MEMORIES && t__bad == 0; i++, kib += 412) {
        new_path(path, sizeof(path));
        T_EQ(mkdir(path, 0700), 0);
        status = in_child(fill_memory, path, &kib);
        if (WIFEXITED(status) && WEXITSTATUS(status) == SKIPPED) {
            printf("# skipped: no tmpfs to be had\n");
            return;
        }
        if (status != 0)
            T_EQ(status, 0);
        if (t__bad != 0)
            printf("#   with %u KiB\n", kib);
    }
}

/* ---- As many segments as there may be ---------------------------------------- */

/* Completes keys from `n` on with results of BULKY size, some at once, until one
 * is refused: how many there are then. */
static uint32_t complete_until_full(once_store *s, uint32_t n)
{
    enum { SOME = 48 };
    static once_op op[SOME];
    once_op *ops[SOME];
    uint32_t i, done = 0;

    for (;; n += SOME) {
        for (i = 0; i < SOME; i++) {
            make_op(&op[i], ONCE_OP_CLAIM, n + i);
            ops[i] = &op[i];
        }
        T_EQ(s->ops->apply(s, ops, SOME, NULL), ONCE_OK);
        for (done = i = 0; i < SOME; i++) {
            T_OK(op[i].rc == ONCE_OWNER || op[i].rc == ONCE_EFULL ||
                 op[i].rc == ONCE_ESTORE);
            if (op[i].rc != ONCE_OWNER)
                break;
            done++;
            op[i].verb = ONCE_OP_COMPLETE;
            op[i].fence = op[i].record.fence;
            op[i].result = result_of(BULKY);
        }
        T_EQ(s->ops->apply(s, ops, done, NULL), ONCE_OK);
        for (i = 0; i < done; i++)
            T_EQ(op[i].rc, ONCE_OK);
        if (done < SOME)
            return n + done;
    }
}

static void use_all_segments(const char *path, void *user)
{
    uint64_t clock = BIRTH;
    once_error err = {0, ""};
    once_store *s;
    char file[160];
    uint32_t n, i;
    int warned = 0, rc;

    (void)user;
    if (unshare(CLONE_NEWNS) != 0 ||
        mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL) != 0 ||
        mount("tmpfs", path, "tmpfs", 0, "size=1g") != 0)
        _exit(SKIPPED);
    (void)snprintf(file, sizeof(file), "%s/j", path);
    s = must_open_with(file, "?segment=65536&busy_ms=60000", &clock);
    n = complete_until_full(s, 0);
    printf("# %u records, %d files\n", n, count_files(file));
    T_OK(count_files(file) > ONCE__JOURNAL_SEGMENTS);
    for (i = 0; i < 600 && !warned; i++) { /* it is told once */
        rc = s->ops->maintain(s, &err);
        warned = rc != ONCE_OK && strstr(err.text, "segments") != NULL;
        (void)usleep(warned ? 0 : 10000);
    }
    T_OK(warned);
    once_store_close(s);
    s = must_open_with(file, "?segment=65536", &clock);
    for (i = 0; i < n; i++)
        T_EQ(verb_on(s, ONCE_OP_SHOW, i), ONCE_REPLAY);
    clock += 6000;
    forget_all(s, 0, n);
    for (rc = 0, i = 0; rc != ONCE_OWNER && i < 6000; i++) {
        (void)s->ops->maintain(s, NULL);
        rc = verb_on(s, ONCE_OP_CLAIM, n + 1000);
        (void)usleep(10000);
    }
    T_EQ(rc, ONCE_OWNER);
    once_store_close(s);
}

static void as_many_segments_as_are_made_can_be_opened(void)
{
    char path[128];
    int status;

    new_path(path, sizeof(path));
    T_EQ(mkdir(path, 0700), 0);
    status = in_child(use_all_segments, path, NULL);
    if (WIFEXITED(status) && WEXITSTATUS(status) == SKIPPED)
        printf("# skipped: no tmpfs to be had\n");
    else
        T_EQ(status, 0);
}

int main(int argc, char **argv)
{
    const char *only = argc == 2 ? argv[1] : "";

    (void)snprintf(folder, sizeof(folder), "/tmp/once-journal-XXXXXX");
    if (mkdtemp(folder) == NULL)
        return 2;
    RUN(a_failed_flush_stops_all_until_reopened);
    RUN(a_failed_write_stops_all_until_reopened);
    RUN(a_write_that_fails_while_it_is_made_harms_nobody);
    RUN(a_flush_that_fails_while_it_is_made_harms_nobody);
    RUN(a_failed_flush_cuts_what_was_not_durable);
    RUN(a_segment_that_was_never_flushed_is_cut_off);
    RUN(a_full_disk_refuses_claims_and_takes_completions);
    RUN(expired_records_make_room_on_a_full_disk);
    RUN(an_index_that_filled_the_memory_is_made_again);
    RUN(as_many_segments_as_are_made_can_be_opened);
    remove_folder();
    return t_done();
}
