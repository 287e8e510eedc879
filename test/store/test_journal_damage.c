/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_journal_damage.c - what a journal makes of torn and damaged files.
 *
 *    test_journal_damage [CASE]
 *
 * What reaches the disk is seen through the linker (journal_disk.h).
 */
#include "journal_disk.h"

static void zero_from(const char *path, uint64_t at, uint64_t to)
{
    uint8_t zeros[8192] = {0};
    char file[160];

    segment_path(path, once__journal_id(at), file, sizeof(file));
    assert(to - at <= sizeof(zeros));
    poke(file, once__journal_offset(at), zeros, (size_t)(to - at));
}

static uint64_t fence_of(once_store *s, uint32_t n)
{
    once_op op;

    make_op(&op, ONCE_OP_SHOW, n);
    T_EQ(apply_one(s, &op, NULL), ONCE_OK);
    return op.record.fence;
}

static void a_torn_tail_is_cut_wherever_it_is_torn(void)
{
    char path[128], image[128];
    struct range r = {0, 6};
    uint64_t before, end, at, shown;
    once_store *s;
    struct lines l;
    int there = 0, gone = 0;

    new_path(path, sizeof(path));
    new_path(image, sizeof(image));
    T_EQ(in_child(complete_range, path, &r), 0);
    before = end_of(path) + ONCE__FRAME_HEAD; /* a MARK, flushed at the start */
    r = (struct range){6, 7};
    T_EQ(in_child(complete_range, path, &r), 0);
    end = end_of(path);
    forget_memory(path);
    T_OK(end > before && once__journal_id(end) == once__journal_id(before));
    copy_folder(path, image);
    s = must_open(image);
    shown = fence_of(s, 6);
    once_store_close(s);
    for (at = before; at <= end && t__bad == 0; at += at + 200 < end ? 3 : 1) {
        copy_folder(path, image);
        zero_from(image, at, end);
        T_EQ(verify(image, &l), 0);
        s = must_open(image);
        all_are_there(s, 0, 6);
        if (is_there(s, 6))
            there++;
        else
            gone++;
        T_EQ(complete_one(s, 7, 5000), ONCE_OK);
        T_OK(fence_of(s, 7) > shown); /* others may have seen it in flight */
        once_store_close(s);
        s = must_open(image);
        all_are_there(s, 0, 6);
        T_OK(is_there(s, 7));
        once_store_close(s);
        forget_memory(image);
    }
    T_OK(there > 0 && gone > 100);
}

enum { CLAIMS = 60, HOLE = 5, DONE = 40 };

/* All in one batch, so that none knows that another is durable. */
static void claim_at_once(const char *path, void *user)
{
    once_store *s = must_open(path);
    once_op op[CLAIMS], *ops[CLAIMS];
    uint32_t i;

    (void)user;
    for (i = 0; i < CLAIMS; i++) {
        make_op(&op[i], ONCE_OP_CLAIM, i);
        ops[i] = &op[i];
    }
    T_EQ(s->ops->apply(s, ops, CLAIMS, NULL), ONCE_OK);
}

static void forget_range(const char *path, void *user)
{
    struct range *r = user;
    once_store *s = must_open(path);

    for (; r->from < r->to; r->from++)
        T_EQ(verb_on(s, ONCE_OP_FORGET, r->from), ONCE_OK);
}

/* Frames stand behind a hole, whole and valid. The log goes on before them and
 * ends, in the very place where one of them begins, when everybody dies. */
static void what_was_cut_off_never_comes_back(void)
{
    char path[128];
    uint64_t begin, end, length, n = 1;
    once_store *s;
    uint32_t i;

    new_path(path, sizeof(path));
    s = must_open_with(path, "", NULL); /* all fit into its first segment */
    for (i = 100; i < 100 + DONE; i++)
        T_EQ(complete_one(s, i, 0), ONCE_OK);
    once_store_close(s);
    begin = end_of(path);
    T_EQ(in_child(claim_at_once, path, NULL), 0);
    forget_memory(path);
    end = end_of(path);
    length = (end - begin) / CLAIMS;
    T_EQ(length * CLAIMS, end - begin);
    zero_from(path, begin + HOLE * length, begin + (HOLE + 1) * length);
    while (n * ONCE__FRAME_HEAD % length != 0)
        n++;
    T_OK(n * ONCE__FRAME_HEAD / length + HOLE < CLAIMS && n <= DONE);
    /* One is the MARK. */
    T_EQ(in_child(forget_range, path,
                  &(struct range){100, 100 + (uint32_t)n - 1}),
         0);
    T_EQ(end_of(path), begin + HOLE * length + n * ONCE__FRAME_HEAD);
    forget_memory(path);
    s = must_open(path);
    for (i = 0; i < CLAIMS; i++)
        T_EQ(verb_on(s, ONCE_OP_SHOW, i),
             i < HOLE ? ONCE_IN_FLIGHT : ONCE_FREE);
    once_store_close(s);
}

/* A frame that others follow which knew it to be durable. */
static void damage_in_the_middle_is_never_skipped(void)
{
    char path[128], image[128], file[160];
    struct range r = {0, 8};
    uint64_t end, at;
    once_store *s;
    once_error err;
    struct lines l;
    uint32_t i;
    int refusals = 0, damaged = 0, harmless = 0, rc;

    new_path(path, sizeof(path));
    new_path(image, sizeof(image));
    T_EQ(in_child(complete_range, path, &r), 0);
    forget_memory(path);
    end = end_of(path);
    T_EQ(verify(path, &l), 0);
    for (at = ONCE__JOURNAL_HEADER;
         at < once__journal_offset(end) - 1500 && t__bad == 0; at += 11) {
        copy_folder(path, image);
        segment_path(image, 1, file, sizeof(file));
        flip(file, at);
        s = NULL;
        rc = try_open(image, "", NULL, &err, &s);
        if (rc != ONCE_OK) {
            T_EQ(rc, ONCE_ECORRUPT);
            T_OK(strstr(err.text, "00000001.log: offset") != NULL);
            T_OK(verify(image, &l) > 0);
            T_OK(strstr(l.all, "00000001.log: offset") != NULL);
            refusals++;
        } else {
            for (i = 0; i < 8; i++) {
                rc = verb_on(s, ONCE_OP_SHOW, i);
                T_OK(rc == ONCE_REPLAY || rc == ONCE_ECORRUPT);
                if (rc == ONCE_REPLAY)
                    T_OK(is_there(s, i));
                damaged += rc == ONCE_ECORRUPT;
            }
            T_EQ(complete_one(s, 50, 5000), ONCE_OK); /* the others go on */
            once_store_close(s);
            if (verify(image, &l) == 0) /* one of the zeros between frames */
                harmless++;
        }
        forget_memory(image);
    }
    printf("# %d refused, %d records, %d flips of padding\n", refusals, damaged,
           harmless);
    T_OK(refusals > 10 && damaged > 10 && harmless * 10 < refusals);
}

static void a_missing_or_headless_segment_is_damage(void)
{
    char path[128], image[128], file[160], next[160];
    struct range r = {0, 300};
    struct lines l;
    uint64_t id, last;

    new_path(path, sizeof(path));
    new_path(image, sizeof(image));
    T_EQ(in_child(complete_range, path, &r), 0);
    forget_memory(path);
    last = once__journal_id(end_of(path));
    T_OK(last >= 3);
    for (id = 1; id <= last; id++) {
        copy_folder(path, image);
        segment_path(image, id, file, sizeof(file));
        flip(file, ONCE__JOURNAL_HEADER + 30); /* the first frame */
        refused(image, ONCE_ECORRUPT, "fails its checksum");
        T_OK(verify(image, &l) > 0);
        copy_folder(path, image);
        flip(file, 20);
        refused(image, ONCE_ECORRUPT, "header");
        T_OK(verify(image, &l) > 0);
        segment_path(image, id + 1, next, sizeof(next));
        if (access(next, F_OK) != 0)
            break; /* the last of all: nothing tells that it was there */
        T_EQ(unlink(file), 0);
        refused(image, ONCE_ECORRUPT, "missing");
        T_OK(verify(image, &l) > 0);
    }
    copy_folder(path, image);
    for (id = 1; id <= last; id++) {
        segment_path(image, id, file, sizeof(file));
        T_EQ(unlink(file), 0);
    }
    refused(image, ONCE_ECORRUPT, "no segment");
}

/* After a clean end every frame counts, also the last ones. */
static void a_clean_end_leaves_no_excuse(void)
{
    char path[128];
    once_store *s;
    struct lines l;
    uint64_t end;

    new_path(path, sizeof(path));
    s = must_open(path);
    complete_all(s, 0, 5);
    once_store_close(s);
    end = end_of(path);
    zero_from(path, end - 8, end);
    T_OK(verify(path, &l) > 0);
    zero_from(path, end - 400, end);
    refused(path, ONCE_ECORRUPT, "fails its checksum");
}

static void dump_shows_frames_and_no_secrets(void)
{
    char path[128], file[160];
    once_store *s;
    struct lines l = {0};

    new_path(path, sizeof(path));
    s = must_open(path);
    complete_all(s, 0, 1);
    T_EQ(once__journal_dump(path, take_line, &l, NULL), 2); /* while open */
    T_OK(strstr(l.all, " dispatched attempt=1") != NULL);
    T_OK(strstr(l.all, " completed attempt=1") != NULL);
    T_OK(strstr(l.all, "11111111") == NULL); /* the token */
    once_store_close(s);
    /* Where it can go on no further, it says so. */
    segment_path(path, 1, file, sizeof(file));
    flip(file, ONCE__JOURNAL_HEADER + 20);
    memset(&l, 0, sizeof(l));
    T_EQ(once__journal_dump(path, take_line, &l, NULL), 1);
    T_OK(strstr(l.all, "offset 4096: a frame") != NULL);
}

int main(int argc, char **argv)
{
    const char *only = argc == 2 ? argv[1] : "";

    (void)snprintf(folder, sizeof(folder), "/tmp/once-journal-XXXXXX");
    if (mkdtemp(folder) == NULL)
        return 2;
    RUN(a_torn_tail_is_cut_wherever_it_is_torn);
    RUN(what_was_cut_off_never_comes_back);
    RUN(damage_in_the_middle_is_never_skipped);
    RUN(a_missing_or_headless_segment_is_damage);
    RUN(a_clean_end_leaves_no_excuse);
    RUN(dump_shows_frames_and_no_secrets);
    remove_folder();
    return t_done();
}
