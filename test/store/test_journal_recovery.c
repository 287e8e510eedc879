/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_journal_recovery.c - what the journal promises around its recovery: that
 * what an earlier log left on the disk never joins a later one, whatever was
 * lost in between; whose shared memory it uses; and who waits for whom.
 */
#include "core/record.h"
#include "journal_disk.h"

/* ---- Logs that were cut off ------------------------------------------------ */

enum { BATCH = 40, PAGE = 4096, AT_A_PAGE = 10 };

/* The length of a frame whose record has a result of `size` bytes. */
static uint64_t length_of(size_t size)
{
    once_record r;

    memset(&r, 0, sizeof(r));
    r.result.size = size;
    return once__frame_length(&r);
}

/* Completes key `n`: two frames, the second of `length` bytes. */
static void complete_in(once_store *s, uint32_t n, uint64_t length)
{
    static uint8_t bytes[2 * PAGE];
    size_t size = (size_t)(length - ONCE__FRAME_HEAD - ONCE__RECORD_HEAD -
                           ONCE__RECORD_SUM);
    once_op op;

    T_EQ(length_of(size), length);
    make_op(&op, ONCE_OP_CLAIM, n);
    T_EQ(apply_one(s, &op, NULL), ONCE_OK);
    T_EQ(op.rc, ONCE_OWNER);
    op.verb = ONCE_OP_COMPLETE;
    op.kind = ONCE_SUCCESS;
    op.fence = op.record.fence;
    op.result = (once_bytes){bytes, size};
    T_EQ(apply_one(s, &op, NULL), ONCE_OK);
    T_EQ(op.rc, ONCE_OK);
}

static uint64_t end_offset(const char *path)
{
    return once__journal_offset(end_of(path));
}

/* Brings the log to `short_of` bytes before the end of a page. */
static void go_before_a_page(once_store *s, const char *path, uint32_t n,
                             uint64_t short_of)
{
    uint64_t end = end_offset(path) + 2 * length_of(0) + short_of;

    complete_in(s, n, length_of(0) + (PAGE - end % PAGE) % PAGE);
    T_EQ((end_offset(path) + short_of) % PAGE, 0);
}

static void die_writing(const char *path, void *user)
{
    once_store *s = must_open_with(path, "", NULL);

    (void)user;
    (void)usleep(300000); /* its other thread has nothing to write any more */
    at_call(DIE, 1);
    (void)complete_one(s, 1, 5000);
}

/* Claims keys from `from` up to `to` in one batch. */
static int claim_all(once_store *s, uint32_t from, uint32_t to)
{
    once_op op[BATCH], *ops[BATCH];
    uint32_t i;

    for (i = 0; i < to - from; i++) {
        make_op(&op[i], ONCE_OP_CLAIM, from + i);
        ops[i] = &op[i];
    }
    return s->ops->apply(s, ops, to - from, NULL);
}

/* Claims that are written and never flushed. */
static void claims_that_fail(once_store *s)
{
    at_call(FAIL_FLUSH, 1);
    T_EQ(claim_all(s, 0, BATCH), ONCE_ESTORE);
    at_call(0, 0);
}

/* What it completes ends where the page does. */
static void complete_up_to_the_page(const char *path, void *user)
{
    once_store *s = must_open_with(path, "", NULL);

    complete_in(s, AT_A_PAGE, *(uint64_t *)user);
    T_EQ(end_offset(path) % PAGE, 0);
}

/*
 * A holder of the lock dies, the log goes on with a MARK that never reaches the
 * disk, and the next log begins in the same place. What it acknowledges ends at
 * the end of a page, where a claim of the first one stands.
 */
static void a_lost_mark_brings_no_old_frames_back(void)
{
    uint64_t length = (AT_A_PAGE - 1) * length_of(0);
    char path[128];
    once_store *s;
    int round;

    for (round = 0; round < 2; round++) {
        new_path(path, sizeof(path));
        s = must_open_with(path, "", NULL);
        (void)usleep(300000); /* its other thread has made the segments */
        go_before_a_page(s, path, 500,
                         ONCE__FRAME_HEAD + AT_A_PAGE * length_of(0));
        T_OK(WIFSIGNALED(in_child(die_writing, path, NULL)));
        T_EQ(verb_on(s, ONCE_OP_SHOW, 500), ONCE_REPLAY); /* it repairs */
        claims_that_fail(s);
        once_store_close(s);
        T_EQ(in_child(complete_up_to_the_page, path, &length), 0);
        if (round == 1) /* and then the power fails */
            forget_memory(path);
        s = must_open_with(path, "", NULL);
        T_EQ(verb_on(s, ONCE_OP_SHOW, AT_A_PAGE), ONCE_REPLAY);
        T_EQ(verb_on(s, ONCE_OP_SHOW, AT_A_PAGE + 1), ONCE_FREE);
        once_store_close(s);
    }
}

static void claim_and_die_flushing(const char *path, void *user)
{
    once_store *s = must_open_with(path, "", NULL);

    (void)user;
    (void)usleep(300000); /* its other thread has nothing to flush any more */
    at_call(DIE_FLUSH, 1);
    (void)claim_all(s, 100, 100 + AT_A_PAGE);
}

/* Leaves a log whose last page begins with a MARK; nothing is known to be
 * durable from AT_A_PAGE claims before it. */
static void leave_a_mark(const char *path, void *user)
{
    once_store *s = must_open_with(path, "", NULL);

    (void)user;
    (void)usleep(300000); /* its other thread has made the segments */
    go_before_a_page(s, path, 500, AT_A_PAGE * length_of(0));
    T_OK(WIFSIGNALED(in_child(claim_and_die_flushing, path, NULL)));
    T_OK(WIFSIGNALED(in_child(die_writing, path, NULL)));
    T_EQ(end_offset(path) % PAGE, 0);
    T_EQ(verb_on(s, ONCE_OP_SHOW, 500), ONCE_REPLAY); /* it repairs */
    claims_that_fail(s);
    T_EQ(end_offset(path) % PAGE,
         (ONCE__FRAME_HEAD + BATCH * length_of(0)) % PAGE);
}

/* The MARK of a recovery stands where a later log ends that branched off
 * earlier: it follows another log, and all that follows it does. */
static void an_old_mark_is_followed_by_its_own_log_only(void)
{
    uint64_t length = (AT_A_PAGE - 1) * length_of(0) - ONCE__FRAME_HEAD;
    char path[128], file[160];
    uint8_t zeros[8] = {0};
    uint64_t page;
    once_store *s;

    new_path(path, sizeof(path));
    T_EQ(in_child(leave_a_mark, path, NULL), 0);
    forget_memory(path);
    page = end_offset(path) / PAGE * PAGE;
    page -= (BATCH * length_of(0)) / PAGE * PAGE;
    segment_path(path, 1, file, sizeof(file));
    poke(file, page - AT_A_PAGE * length_of(0), zeros, sizeof(zeros));
    T_EQ(in_child(complete_up_to_the_page, path, &length), 0);
    forget_memory(path);
    s = must_open_with(path, "", NULL);
    T_EQ(verb_on(s, ONCE_OP_SHOW, AT_A_PAGE), ONCE_REPLAY);
    T_EQ(verb_on(s, ONCE_OP_SHOW, AT_A_PAGE + 1), ONCE_FREE);
    once_store_close(s);
}

int main(int argc, char **argv)
{
    const char *only = argc == 2 ? argv[1] : "";

    (void)snprintf(folder, sizeof(folder), "/tmp/once-journal-XXXXXX");
    if (mkdtemp(folder) == NULL)
        return 2;
    RUN(a_lost_mark_brings_no_old_frames_back);
    RUN(an_old_mark_is_followed_by_its_own_log_only);
    remove_folder();
    return t_done();
}
