/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_journal_failures.c - a disk that fails, and one that is full.
 *
 *    test_journal_failures [CASE]
 *
 * What reaches the disk is seen through the linker (journal_disk.h).
 */
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

int main(int argc, char **argv)
{
    const char *only = argc == 2 ? argv[1] : "";

    (void)snprintf(folder, sizeof(folder), "/tmp/once-journal-XXXXXX");
    if (mkdtemp(folder) == NULL)
        return 2;
    RUN(a_failed_flush_stops_all_until_reopened);
    RUN(a_failed_write_stops_all_until_reopened);
    RUN(a_failed_flush_cuts_what_was_not_durable);
    RUN(a_segment_that_was_never_flushed_is_cut_off);
    RUN(a_full_disk_refuses_claims_and_takes_completions);
    RUN(expired_records_make_room_on_a_full_disk);
    remove_folder();
    return t_done();
}
