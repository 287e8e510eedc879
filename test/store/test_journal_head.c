/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_journal_head.c - DIR/head: there is always one that is whole, a journal
 * without it is refused, and no fence below its incarnation is granted; and
 * what is brought back from a copy.
 *
 *    test_journal_head [CASE]
 *
 * What reaches the disk is seen through the linker (journal_disk.h).
 */
#include "calls/store/store.h"
#include "journal_disk.h"

static void head_path(const char *path, char out[160])
{
    (void)snprintf(out, 160, "%.120s/%s", path, ONCE__JOURNAL_STORE_HEAD);
}

static once_store_head head_of(once_store *s)
{
    once_store_head h = {.gap = 99};

    T_EQ(s->ops->head(s, NULL, &h, NULL), ONCE_OK);
    return h;
}

static int raise_to(once_store *s, uint32_t incarnation)
{
    once_store_head h = head_of(s);

    h.incarnation = incarnation;
    h.gap = ONCE_GAP_HOLD;
    h.gap_from_ms = BIRTH - incarnation;
    h.gap_until_ms = BIRTH + incarnation;
    return s->ops->head(s, &h, &h, NULL);
}

/* The head is whole: of the one incarnation or of the other. */
static int is_of(once_store *s, uint32_t incarnation)
{
    once_store_head h = head_of(s);

    return h.incarnation == incarnation &&
           (incarnation == 0 ? h.gap == ONCE_GAP_NONE && h.gap_from_ms == 0
                             : h.gap == ONCE_GAP_HOLD &&
                                   h.gap_from_ms == BIRTH - incarnation &&
                                   h.gap_until_ms == BIRTH + incarnation);
}

/* What is granted now is above what its head says, and is the largest. */
static void grants_above(once_store *s, uint32_t n)
{
    once_store_head h = head_of(s);
    uint64_t before = 0, after = 0, floor = once__fence_floor(&h, 0);
    once_op op;

    T_EQ(s->ops->fence(s, &before, NULL), ONCE_OK);
    T_OK(before >= floor);
    make_op(&op, ONCE_OP_CLAIM, n);
    T_EQ(apply_one(s, &op, NULL), ONCE_OK);
    T_EQ(op.rc, ONCE_OWNER);
    T_OK(op.record.fence > before);
    T_EQ(s->ops->fence(s, &after, NULL), ONCE_OK);
    T_EQ(after, op.record.fence);
}

/* ---- There is one ---------------------------------------------------------- */

static void it_is_made_with_the_folder_and_stays(void)
{
    char path[128], copy[128], file[160];
    once_store_head first, again;
    struct stat st;
    once_store *s, *other;

    new_path(path, sizeof(path));
    new_path(copy, sizeof(copy));
    s = must_open(path);
    first = head_of(s);
    head_path(path, file);
    T_OK(stat(file, &st) == 0 && (st.st_mode & 0777) == 0600);
    T_EQ(complete_one(s, 1, 5000), ONCE_OK);
    other = must_open(path);
    again = head_of(other);
    T_OK(memcmp(&first, &again, sizeof(first)) == 0);
    once_store_close(other);
    once_store_close(s);
    copy_folder(path, copy); /* the same store, as far as it goes */
    s = must_open(copy);
    again = head_of(s);
    T_OK(memcmp(&first, &again, sizeof(first)) == 0);
    once_store_close(s);
}

static void without_it_a_journal_is_refused(void)
{
    char path[128], file[160], away[170];
    struct lines l;
    once_store *s;

    new_path(path, sizeof(path));
    s = must_open(path);
    T_EQ(complete_one(s, 1, 5000), ONCE_OK);
    once_store_close(s);
    T_EQ(verify(path, &l), 0);
    head_path(path, file);
    (void)snprintf(away, sizeof(away), "%s.away", path);
    T_EQ(rename(file, away), 0);
    refused(path, ONCE_ECORRUPT, "head: the file is missing");
    T_EQ(verify(path, &l), 1);
    T_OK(strstr(l.last, "head: the file is missing") == l.last);
    forget_memory(path);
    refused(path, ONCE_ECORRUPT, "head: the file is missing");
    (void)snprintf(file, sizeof(file), "%s/lock", path);
    T_EQ(unlink(file), 0); /* nothing says that it is not new, but the log */
    refused(path, ONCE_ECORRUPT, "head: the file is missing");
    head_path(path, file);
    T_OK(!exists(file));
    T_EQ(rename(away, file), 0);
    s = must_open(path);
    T_OK(is_there(s, 1));
    once_store_close(s);
}

static void one_that_is_damaged_is_refused(void)
{
    char path[128], file[160];
    struct lines l;
    struct stat st;
    once_store *s;
    off_t at;

    new_path(path, sizeof(path));
    s = must_open(path);
    T_EQ(raise_to(s, 3), ONCE_OK);
    once_store_close(s);
    head_path(path, file);
    T_EQ(stat(file, &st), 0);
    for (at = 0; at < st.st_size; at++) {
        flip(file, (uint64_t)at);
        if (at % 8 == 0)
            refused(path, ONCE_ECORRUPT, "head: it fails its checksum");
        T_EQ(verify(path, &l), 1);
        T_OK(strstr(l.last, "head: it fails its checksum") == l.last);
        flip(file, (uint64_t)at);
    }
    T_EQ(truncate(file, st.st_size - 1), 0);
    refused(path, ONCE_ECORRUPT, "head: it fails its checksum");
}

static void make_and_die(const char *path, void *user)
{
    struct told *told = user;

    at_call(told->then, told->countdown);
    once_store_close(must_open(path));
    told->done = 1;
}

/* In the middle of making the folder. */
static void dying_while_it_is_made_leaves_a_folder_that_opens(void)
{
    struct told *told = told_new();
    once_store_head h, zero = {.incarnation = 0};
    char path[128];
    once_store *s;
    int n, deaths = 0;

    for (n = 1; n <= 40 && told->done == 0; n++) {
        told->then = DIE;
        told->countdown = n;
        new_path(path, sizeof(path));
        deaths += WIFSIGNALED(in_child(make_and_die, path, told));
        s = must_open(path);
        h = head_of(s);
        T_OK(memcmp(h.id, zero.id, ONCE_STORE_ID_SIZE) != 0);
        T_OK(is_of(s, 0));
        T_EQ(complete_one(s, 1, 5000), ONCE_OK);
        once_store_close(s);
    }
    printf("# %d deaths\n", deaths);
    T_OK(deaths >= 8 && told->done == 1);
    (void)munmap(told, sizeof(*told));
}

/* ---- It is changed --------------------------------------------------------- */

static void raise_elsewhere(const char *path, void *user)
{
    once_store *s = must_open(path);

    T_EQ(raise_to(s, *(uint32_t *)user), ONCE_OK);
    grants_above(s, 1000 + *(uint32_t *)user);
    /* It ends here: the store is not closed. */
}

static void all_who_have_it_open_grant_above_it(void)
{
    char path[128];
    once_store_head h;
    once_store *s;
    uint32_t i;

    new_path(path, sizeof(path));
    s = must_open(path);
    for (i = 1; i < 4; i++) {
        grants_above(s, i);
        T_EQ(in_child(raise_elsewhere, path, &i), 0);
        T_OK(is_of(s, i));
        grants_above(s, 100 + i);
    }
    h = head_of(s);
    h.incarnation = ONCE_INCARNATION_MAX + 1;
    T_EQ(s->ops->head(s, &h, &h, NULL), ONCE_EINVAL);
    T_OK(is_of(s, 3));
    T_EQ(raise_to(s, ONCE_INCARNATION_MAX), ONCE_OK);
    grants_above(s, 200);
    once_store_close(s);
    forget_memory(path);
    s = must_open(path);
    T_OK(is_of(s, ONCE_INCARNATION_MAX));
    grants_above(s, 300);
    once_store_close(s);
}

static void claim_and_die(const char *path, void *user)
{
    once_store *s = must_open_with(path, "", NULL);

    (void)user;
    (void)usleep(300000); /* its other thread has nothing to write any more */
    at_call(DIE, 1);
    (void)complete_one(s, 1, 5000);
}

/* No frame in the log says it yet. */
static void what_was_raised_holds_before_anything_is_granted(void)
{
    char path[128];
    once_store *s;

    new_path(path, sizeof(path));
    s = must_open(path);
    T_EQ(raise_to(s, 5), ONCE_OK);
    once_store_close(s);
    s = must_open(path);
    grants_above(s, 1);
    T_EQ(raise_to(s, 6), ONCE_OK);
    T_OK(WIFSIGNALED(in_child(claim_and_die, path, NULL)));
    grants_above(s, 2); /* it repairs */
    once_store_close(s);
}

static void raise_and_die(const char *path, void *user)
{
    struct told *told = user;
    once_store *s = must_open(path);

    (void)usleep(300000); /* its other thread has made the segments */
    at_call(told->then, told->countdown);
    if (raise_to(s, told->from) == ONCE_OK)
        told->done = told->from;
}

/* Another process has it open meanwhile, or nobody has. */
static void die_at_each_call(int then, int company)
{
    struct told *told = told_new();
    once_store *s = NULL;
    char path[128];
    int n, deaths = 0;

    new_path(path, sizeof(path));
    once_store_close(must_open(path));
    for (n = 1; n <= 6; n++) {
        if (company)
            s = must_open(path);
        told->from = (uint32_t)n;
        told->countdown = n;
        told->then = then;
        deaths += WIFSIGNALED(in_child(raise_and_die, path, told));
        if (!company)
            s = must_open(path);
        T_OK(is_of(s, told->done) || is_of(s, (uint32_t)n));
        grants_above(s, (uint32_t)n);
        T_EQ(raise_to(s, (uint32_t)n), ONCE_OK);
        told->done = (uint32_t)n;
        grants_above(s, 100 + (uint32_t)n);
        once_store_close(s);
    }
    T_OK(deaths >= 3); /* a write and two flushes */
    (void)munmap(told, sizeof(*told));
}

static void dying_at_any_call_leaves_the_old_one_or_the_new_one(void)
{
    die_at_each_call(DIE, 0);
    die_at_each_call(TEAR, 0);
}

static void others_go_on_when_one_dies_changing_it(void)
{
    die_at_each_call(DIE, 1);
    die_at_each_call(TEAR, 1);
}

static void a_failed_flush_is_an_error_and_it_stays_whole(void)
{
    char path[128];
    once_store *s;
    uint32_t n;

    new_path(path, sizeof(path));
    s = must_open_with(path, "", NULL);
    (void)usleep(300000); /* its other thread has made the segments */
    for (n = 1; n <= 3; n++) {
        at_call(FAIL, (int)n);
        T_EQ(raise_to(s, n), ONCE_ESTORE);
        at_call(0, 0);
        T_OK(is_of(s, n) || is_of(s, n - 1));
        grants_above(s, n);
        T_EQ(raise_to(s, n), ONCE_OK);
        T_OK(is_of(s, n));
        grants_above(s, 100 + n);
    }
    once_store_close(s);
}

/* ---- What is brought back -------------------------------------------------- */

enum { PIECE = 500, PIECES = 12 };

/* A completed record, as another store had it. */
static void record_of(once_named *r, uint32_t n)
{
    static uint8_t bytes[PIECE][700];
    uint8_t *at = bytes[n % PIECE];

    memset(r, 0, sizeof(*r));
    name_of(r->name, n);
    r->record.state = n % 5 == 0 ? ONCE_INDETERMINATE : ONCE_COMPLETED;
    r->record.kind = n % 5 == 0 ? ONCE_NO_KIND : ONCE_SUCCESS;
    r->record.attempt = 1;
    r->record.fence = 7000 + n;
    r->record.keep_ms = BIRTH + 1000000;
    r->record.ended_ms = BIRTH - n % 100;
    r->record.label = (once_bytes){"POST /orders", 12};
    if (n % 5 == 0)
        return;
    memset(at, (int)n, 700);
    r->record.result = (once_bytes){at, 1 + n % 700};
}

static int import(once_store *s, uint32_t from, uint32_t n)
{
    static once_named r[PIECE];
    uint32_t i;

    for (i = 0; i < n; i++)
        record_of(&r[i], from + i);
    return s->ops->import(s, r, n, NULL);
}

static int is_imported(once_store *s, uint32_t n)
{
    once_named want;
    once_op op;

    record_of(&want, n);
    make_op(&op, ONCE_OP_SHOW, n);
    return apply_one(s, &op, NULL) == ONCE_OK &&
           op.record.state == want.record.state &&
           op.record.fence == want.record.fence &&
           op.record.ended_ms == want.record.ended_ms &&
           op.record.label.size == 12 &&
           op.record.result.size == want.record.result.size &&
           (want.record.result.size == 0 ||
            memcmp(op.record.result.data, want.record.result.data,
                   want.record.result.size) == 0);
}

static void import_and_die(const char *path, void *user)
{
    struct told *told = user;
    once_store *s = must_open(path);
    uint32_t i;

    at_call(told->then, told->countdown);
    for (i = 0; i < PIECES; i++) {
        if (import(s, i * PIECE, PIECE) != ONCE_OK)
            _exit(3);
        told->done = (i + 1) * PIECE;
    }
    /* It ends here: the store is not closed. */
}

/* Through several segments; what was reported as stored is there, whole. */
static void what_is_imported_survives_a_death(void)
{
    struct told *told = told_new();
    char path[128];
    once_counts counts;
    once_store *s;
    uint32_t i, countdown;

    for (countdown = 0; countdown <= 40; countdown += 8) {
        told->then = DIE;
        told->countdown = (int)countdown;
        told->done = 0;
        new_path(path, sizeof(path));
        (void)in_child(import_and_die, path, told);
        T_OK(countdown != 0 || told->done == PIECES * PIECE);
        if (countdown % 16 == 0)
            forget_memory(path);
        s = must_open(path);
        for (i = 0; i < told->done; i++)
            if (!T_OK(is_imported(s, i)))
                break;
        counts_agree(s, &counts);
        T_OK(counts.indeterminate >= told->done / 5);
        grants_above(s, 900000);
        once_store_close(s);
    }
    (void)munmap(told, sizeof(*told));
}

static void what_is_there_is_not_imported_over(void)
{
    char path[128];
    once_store *s;
    once_named twice[2];
    once_error err = {0, ""};

    new_path(path, sizeof(path));
    s = must_open(path);
    T_EQ(s->ops->import(s, NULL, 0, NULL), ONCE_OK);
    T_EQ(complete_one(s, 3, 5000), ONCE_OK);
    T_EQ(import(s, 3, 1), ONCE_EINVAL);
    T_OK(is_there(s, 3));
    T_EQ(import(s, 4, 10), ONCE_OK);
    T_OK(is_imported(s, 4) && is_imported(s, 13));
    record_of(&twice[0], 50);
    record_of(&twice[1], 50);
    T_EQ(s->ops->import(s, twice, 2, &err), ONCE_EINVAL);
    T_OK(strstr(err.text, "is there") != NULL);
    once_store_close(s);
}

static void a_flush_that_fails_imports_nothing(void)
{
    char path[128];
    once_store *s;

    new_path(path, sizeof(path));
    s = must_open_with(path, "", NULL);
    (void)usleep(300000); /* its other thread has made the segments */
    at_call(FAIL_FLUSH, 1);
    T_EQ(import(s, 0, 10), ONCE_ESTORE);
    at_call(0, 0);
    T_EQ(import(s, 20, 10), ONCE_ESTORE);
    once_store_close(s);
    s = must_open(path);
    T_EQ(verb_on(s, ONCE_OP_SHOW, 1), ONCE_FREE);
    T_EQ(import(s, 0, 10), ONCE_OK);
    once_store_close(s);
}

int main(int argc, char **argv)
{
    const char *only = argc == 2 ? argv[1] : "";

    (void)snprintf(folder, sizeof(folder), "/tmp/once-journal-XXXXXX");
    if (mkdtemp(folder) == NULL)
        return 2;
    RUN(it_is_made_with_the_folder_and_stays);
    RUN(without_it_a_journal_is_refused);
    RUN(one_that_is_damaged_is_refused);
    RUN(dying_while_it_is_made_leaves_a_folder_that_opens);
    RUN(all_who_have_it_open_grant_above_it);
    RUN_DEATH(what_was_raised_holds_before_anything_is_granted);
    RUN(dying_at_any_call_leaves_the_old_one_or_the_new_one);
    RUN_DEATH(others_go_on_when_one_dies_changing_it);
    RUN(a_failed_flush_is_an_error_and_it_stays_whole);
    RUN(what_is_imported_survives_a_death);
    RUN(what_is_there_is_not_imported_over);
    RUN(a_flush_that_fails_imports_nothing);
    remove_folder();
    return t_done();
}
