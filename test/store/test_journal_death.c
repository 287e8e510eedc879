/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_journal_death.c - writers that die for real, wherever they are.
 *
 *    test_journal_death [CASE]
 *
 * What reaches the disk is seen through the linker (journal_disk.h).
 */
#include "journal_disk.h"

enum { PER_BATCH = 8 };

/* What a writer tells its parent: how far its batches were acknowledged. */
static void writer(const char *path, uint32_t from, int out)
{
    once_store *s = must_open(path);

    for (;;) {
        complete_all(s, from, from + PER_BATCH);
        from += PER_BATCH;
        if (t__bad != 0 || write(out, &from, sizeof(from)) != sizeof(from))
            _exit(1);
    }
}

static void a_killed_writer_loses_nothing_it_has_acknowledged(void)
{
    char path[128];
    int kills, ends[2], status;
    uint32_t from = 0, random = 12345, batches, done;
    once_store *other, *s;
    pid_t pid;

    new_path(path, sizeof(path));
    other = must_open(path); /* goes on all the time */
    for (kills = 0; kills < 40; kills++) {
        if (kills == 20) { /* from now on each death is everybody's */
            once_store_close(other);
            other = NULL;
        }
        T_EQ(pipe(ends), 0);
        fflush(stdout);
        pid = fork();
        if (pid == 0)
            writer(path, from, ends[1]);
        (void)close(ends[1]);
        random = random * 1664525u + 1013904223u;
        done = from;
        for (batches = random >> 28; batches > 0; batches--)
            T_EQ(read(ends[0], &done, sizeof(done)), sizeof(done));
        (void)usleep((random >> 8) % 2000); /* somewhere in the next one */
        T_EQ(kill(pid, SIGKILL), 0);
        while (read(ends[0], &done, sizeof(done)) == sizeof(done))
            ;
        T_OK(waitpid(pid, &status, 0) == pid && WIFSIGNALED(status));
        (void)close(ends[0]);
        s = other != NULL ? other : must_open(path);
        all_are_there(s, from, done);
        if (s != other)
            once_store_close(s);
        from = done + PER_BATCH;
    }
}

static void die_at_a_call(const char *path, void *user)
{
    struct told *told = user;
    once_store *s = must_open(path);
    once_op op;
    uint32_t i;

    at_call(told->then, told->countdown);
    for (i = told->from; i < told->from + 1000; i++) {
        make_op(&op, ONCE_OP_CLAIM, i);
        if (apply_one(s, &op, NULL) != ONCE_OK || op.rc != ONCE_OWNER)
            _exit(3);
        told->fence = op.record.fence;
        make_op(&op, ONCE_OP_COMPLETE, i);
        op.fence = told->fence;
        op.result = result_of(i);
        if (apply_one(s, &op, NULL) != ONCE_OK || op.rc != ONCE_OK)
            _exit(4);
        told->done = i + 1;
    }
}

/* What must hold after it: all that was told, and no fence twice. */
static void go_on_after(once_store *s, struct told *told)
{
    once_counts counts;
    once_op op;

    all_are_there(s, told->from, told->done);
    counts_agree(s, &counts);
    make_op(&op, ONCE_OP_CLAIM, told->done + 1);
    T_EQ(apply_one(s, &op, NULL), ONCE_OK);
    T_EQ(op.rc, ONCE_OWNER);
    T_OK(op.record.fence > told->fence);
    op.verb = ONCE_OP_CLAIM; /* the one that was under way: either way */
    name_of(op.name, told->done);
    T_EQ(apply_one(s, &op, NULL), ONCE_OK);
    T_OK(op.rc == ONCE_OWNER || op.rc == ONCE_REPLAY);
    told->from = told->done + 2;
}

/* Another process has it open meanwhile, or nobody has. */
static void die_at_each_call(int then, int company)
{
    struct told *told = told_new();
    once_store *s = NULL;
    char path[128];
    int n, status;

    new_path(path, sizeof(path));
    for (n = 1; n <= 60 && t__bad == 0; n++) {
        if (company && s == NULL)
            s = must_open(path);
        told->done = told->from;
        told->countdown = n;
        told->then = then;
        status = in_child(die_at_a_call, path, told);
        T_OK(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
        if (!company)
            s = must_open(path);
        go_on_after(s, told);
        if (!company || n % 20 == 0) {
            once_store_close(s);
            s = NULL;
        }
    }
    once_store_close(s);
    (void)munmap(told, sizeof(*told));
}

static void dying_before_any_write_or_flush_loses_nothing(void)
{
    die_at_each_call(DIE, 0);
}

static void dying_within_any_write_loses_nothing(void)
{
    die_at_each_call(TEAR, 0);
}

static void others_go_on_when_one_dies_before_a_write_or_flush(void)
{
    die_at_each_call(DIE, 1);
}

static void others_go_on_when_one_dies_within_a_write(void)
{
    die_at_each_call(TEAR, 1);
}

static void stop_at_a_call(const char *path, void *user)
{
    struct told *told = user;
    once_store *s = must_open(path);

    at_call(told->then, told->countdown);
    told->done = complete_one(s, 1, 5000) == ONCE_OK;
    once_store_close(s);
}

/* A process that is stopped with the lock costs others their patience, not
 * their lives; when it goes on nothing has been lost. */
static void a_stopped_process_is_waited_for_no_longer_than_told(void)
{
    struct told *told = told_new();
    char path[128];
    once_store *s;
    once_error err = {0, ""};
    once_op op;
    int status, stops = 0, n;
    pid_t pid;

    for (n = 1; n <= 4; n++) {
        new_path(path, sizeof(path));
        s = must_open_with(path, "?busy_ms=50", NULL);
        told->countdown = n;
        told->then = STOP;
        told->done = 0;
        fflush(stdout);
        pid = fork();
        if (pid == 0) {
            stop_at_a_call(path, told);
            _exit(0);
        }
        T_OK(waitpid(pid, &status, WUNTRACED) == pid);
        if (WIFSTOPPED(status)) {
            make_op(&op, ONCE_OP_CLAIM, 2);
            if (apply_one(s, &op, &err) != ONCE_OK) {
                stops++;
                T_OK(strstr(err.text, "50 ms") != NULL);
            }
            T_EQ(kill(pid, SIGCONT), 0);
            T_OK(waitpid(pid, &status, 0) == pid && status == 0);
        }
        T_EQ(told->done, 1);
        T_OK(is_there(s, 1));
        T_EQ(verb_on(s, ONCE_OP_CLAIM, 2), ONCE_OWNER);
        once_store_close(s);
    }
    T_OK(stops > 0);
    (void)munmap(told, sizeof(*told));
}

/* ---- Readers without a processor ------------------------------------------- */

static atomic_int reads_left;

static void stop_at_a_read(void)
{
    if (atomic_fetch_sub(&reads_left, 1) == 1)
        (void)kill(getpid(), SIGSTOP);
}

struct reader {
    int verb, what; /* an operation, or 0: a scan */
    int last;       /* the read at which it stops */
};

static int pass(void *user, const uint8_t *name, const once_record *r)
{
    (void)user;
    (void)name;
    (void)r;
    return 0;
}

enum { READ_KEYS = 6 };

/* All in one batch. */
static void ask_all(once_store *s, int verb)
{
    once_op op[READ_KEYS], *ops[READ_KEYS];
    uint32_t i;

    for (i = 0; i < READ_KEYS; i++) {
        make_op(&op[i], verb, i);
        ops[i] = &op[i];
    }
    T_EQ(s->ops->apply(s, ops, READ_KEYS, NULL), ONCE_OK);
    for (i = 0; i < READ_KEYS - 1; i++)
        T_EQ(op[i].rc, ONCE_REPLAY);
    T_OK(op[i].rc == ONCE_UNKNOWN || op[i].rc == ONCE_LOST);
}

static void read_and_stop(const char *path, void *user)
{
    const struct reader *r = user;
    uint64_t clock = BIRTH + 100000;
    once_store *s = must_open_with(path, "", r->verb == 0 ? &clock : NULL);

    (void)usleep(100000); /* its other thread has nothing to read any more */
    atomic_store(&reads_left, r->last);
    on_read = stop_at_a_read;
    if (r->verb != 0)
        ask_all(s, r->verb);
    else
        T_OK(s->ops->scan(s, r->what, NULL, 100, pass, NULL, NULL) > 0);
    on_read = NULL;
    once_store_close(s);
}

/* 1: it was stopped, and nobody had to wait for it. */
static int goes_on_beside(once_store *s, const char *path, struct reader *r,
                          uint32_t key)
{
    int status, stopped;
    pid_t pid;

    fflush(stdout);
    pid = fork();
    if (pid == 0) {
        t__bad = 0;
        read_and_stop(path, r);
        fflush(stdout);
        _exit(t__bad != 0);
    }
    T_OK(waitpid(pid, &status, WUNTRACED) == pid);
    stopped = WIFSTOPPED(status);
    if (stopped) {
        T_EQ(complete_one(s, key, 5000), ONCE_OK);
        T_EQ(kill(pid, SIGCONT), 0);
        T_OK(waitpid(pid, &status, 0) == pid);
    }
    T_EQ(status, 0);
    return stopped;
}

/* A lister on a busy machine may lose its processor whenever it reads: it must
 * not have the lock then. */
static void a_stopped_reader_keeps_nobody_waiting(void)
{
    static const struct reader readers[] = {
        {ONCE_OP_SHOW, 0, 0},   {ONCE_OP_CLAIM, 0, 0},
        {0, ONCE_SCAN_ALL, 0},  {0, ONCE_SCAN_WAITING, 0},
        {0, ONCE_SCAN_KEEP, 0},
    };
    char path[128];
    struct reader r;
    once_store *s;
    once_op op;
    uint32_t key = 100;
    size_t i;

    new_path(path, sizeof(path));
    s = must_open_with(path, "", NULL);
    complete_all(s, 0, READ_KEYS - 1);
    make_op(&op, ONCE_OP_CLAIM, READ_KEYS - 1);
    T_EQ(apply_one(s, &op, NULL), ONCE_OK);
    op.verb = ONCE_OP_GIVE_UP;
    op.fence = op.record.fence;
    T_EQ(apply_one(s, &op, NULL), ONCE_OK);
    once_store_close(s);
    s = must_open_with(path, "?busy_ms=50", NULL);
    for (i = 0; i < sizeof(readers) / sizeof(readers[0]); i++) {
        r = readers[i];
        r.last = 1;
        while (r.last <= READ_KEYS && goes_on_beside(s, path, &r, key++))
            r.last++;
        T_OK(r.last > 1);
        if (t__bad != 0)
            printf("#   verb %d, scan %d, read %d\n", r.verb, r.what, r.last);
    }
    once_store_close(s);
}

static once_store *faster;

static void claim_meanwhile(void)
{
    once_op op;

    on_read = NULL;
    make_op(&op, ONCE_OP_CLAIM, 1);
    op.token[0] ^= 1;
    T_EQ(apply_one(faster, &op, NULL), ONCE_OK);
    T_EQ(op.rc, ONCE_OWNER);
}

/* While its claim reads that the key is free again, another process takes it. */
static void what_was_read_aside_is_looked_at_again(void)
{
    char path[128];
    once_store *s;
    once_op op;

    new_path(path, sizeof(path));
    s = must_open(path);
    make_op(&op, ONCE_OP_CLAIM, 1);
    T_EQ(apply_one(s, &op, NULL), ONCE_OK);
    op.verb = ONCE_OP_RELEASE;
    op.fence = op.record.fence;
    T_EQ(apply_one(s, &op, NULL), ONCE_OK);
    T_EQ(op.rc, ONCE_OK);
    once_store_close(s);
    s = must_open(path);
    faster = must_open(path);
    (void)usleep(100000); /* no other thread has something to read any more */
    on_read = claim_meanwhile;
    T_EQ(verb_on(s, ONCE_OP_CLAIM, 1), ONCE_IN_FLIGHT);
    T_OK(on_read == NULL); /* it did read */
    once_store_close(faster);
    once_store_close(s);
}

/* How far the log of `path` is written and flushed: 1 if that is the same. */
static int all_is_flushed(const char *path)
{
    struct once__journal *j = calloc(1, sizeof(*j));
    uint8_t id[ONCE__JOURNAL_ID];
    int same;

    assert(j != NULL);
    view_of(path, j, id);
    T_EQ(once__shared_attach(j, id, NULL), ONCE_OK);
    same = j->shared->durable == j->shared->tail;
    once__shared_detach(j);
    (void)close(j->lock_fd);
    free(j);
    return same;
}

/* What is not on the disk yet may be seen, but it is no answer: the one who
 * wrote it is stopped before its flush. */
static void nothing_is_told_before_it_is_durable(void)
{
    struct told *told = told_new();
    char path[128];
    once_store *s;
    int status, held = 0, rc, n;
    pid_t pid;

    /* Its compactor flushes, too, and may take the turn of the one call that
     * matters: then all are tried again. */
    for (n = 0; (n < 8 || (held == 0 && n < 80)) && t__bad == 0; n++) {
        new_path(path, sizeof(path));
        s = must_open_with(path, "?busy_ms=50", NULL);
        T_EQ(complete_one(s, 5, 5000), ONCE_OK);
        told->countdown = 1 + n % 8;
        told->then = STOP_FLUSH;
        told->done = 0;
        fflush(stdout);
        pid = fork();
        if (pid == 0) {
            stop_at_a_call(path, told);
            _exit(0);
        }
        T_OK(waitpid(pid, &status, WUNTRACED) == pid);
        if (WIFSTOPPED(status)) {
            rc = verb_on(s, ONCE_OP_SHOW, 1);
            T_OK(rc == ONCE_ESTORE || rc == ONCE_IN_FLIGHT || rc == ONCE_FREE ||
                 rc == ONCE_REPLAY);
            T_OK(rc != ONCE_REPLAY || all_is_flushed(path));
            held += rc == ONCE_ESTORE;
            T_EQ(verb_on(s, ONCE_OP_SHOW, 5), ONCE_REPLAY);
            T_EQ(kill(pid, SIGCONT), 0);
            T_OK(waitpid(pid, &status, 0) == pid && status == 0);
        }
        T_OK(is_there(s, 1));
        once_store_close(s);
    }
    T_OK(held > 0);
    (void)munmap(told, sizeof(*told));
}

static void die_flushing(const char *path, void *user)
{
    once_store *s = must_open(path);

    (void)user;
    (void)usleep(200000); /* its compactor has nothing to flush any more */
    at_call(DIE_FLUSH, 1);
    (void)complete_one(s, 1, 5000);
}

/* Nobody knows how that flush ended; the kernel may have told only the dead. */
static void what_a_dead_one_was_flushing_is_written_again(void)
{
    char path[128];
    once_store *s;
    size_t i, writes = 0;
    int status;

    new_path(path, sizeof(path));
    s = must_open(path);
    (void)usleep(200000);
    status = in_child(die_flushing, path, NULL);
    T_OK(WIFSIGNALED(status));
    T_OK(!all_is_flushed(path));
    disk.recording = 1;
    T_EQ(complete_one(s, 2, 5000), ONCE_OK);
    disk.recording = 0;
    for (i = 0; i < disk.count && disk.events[i].what != FLUSH; i++)
        writes += disk.events[i].what == WRITE;
    T_EQ(writes, 2); /* the new frame, and what the dead one had written */
    for (i = 0; i < disk.count; i++)
        free(disk.events[i].bytes);
    disk.count = 0;
    once_store_close(s);
}

static void die_writing(const char *path, void *user)
{
    once_store *s = must_open(path);

    (void)user;
    (void)usleep(200000); /* its compactor has nothing to write any more */
    at_call(TEAR, 1);
    (void)complete_one(s, 1, 5000);
}

/* A lock that a dead one held is ours when we look at it: it must be let go
 * before its memory is, or the next lock that we take walks over nothing. */
static void the_last_one_out_may_meet_a_dead_ones_lock(void)
{
    char path[128], other[128];
    once_store *s, *o;
    int round;

    for (round = 0; round < 3; round++) {
        new_path(path, sizeof(path));
        new_path(other, sizeof(other));
        s = must_open(path);
        T_OK(WIFSIGNALED(in_child(die_writing, path, NULL)));
        once_store_close(s);
        o = must_open(other);
        T_EQ(complete_one(o, 1, 5000), ONCE_OK);
        s = must_open(path);
        T_EQ(complete_one(s, 2, 5000), ONCE_OK);
        once_store_close(o);
        T_EQ(complete_one(s, 3, 5000), ONCE_OK);
        once_store_close(s);
    }
}

static void die_beginning_a_segment(const char *path, void *user)
{
    once_store *s = must_open(path);
    uint32_t n = BULKY;

    (void)user;
    at_call(DIE_NEW, 0);
    while (complete_one(s, n, 5000) == ONCE_OK)
        n++;
}

/* The header that was begun last, and its file. */
static void last_head(const char *path, char *file, size_t size,
                      uint8_t head[ONCE__JOURNAL_HEADER])
{
    struct once__segment_head h;
    uint64_t id;
    int fd, there = 0;

    for (id = 64; id > 0 && !there; id--) {
        segment_path(path, id, file, size);
        fd = open(file, O_RDONLY | O_CLOEXEC);
        there = fd >= 0 &&
                once__file_read(fd, head, ONCE__JOURNAL_HEADER, 0) == 1 &&
                once__segment_head_get(head, id, &h) == ONCE_OK;
        if (fd >= 0)
            (void)close(fd);
    }
    T_OK(there);
}

/* It had written that the last segment ends, and the others go on in it. */
static void one_may_die_beginning_a_segment(void)
{
    uint8_t head[ONCE__JOURNAL_HEADER];
    char path[128], file[160];
    struct lines l;
    once_store *s;

    new_path(path, sizeof(path));
    s = must_open(path);
    complete_all(s, 20, 30);
    T_OK(WIFSIGNALED(in_child(die_beginning_a_segment, path, NULL)));
    last_head(path, file, sizeof(file), head);
    complete_all(s, 1, 5); /* there is room for so many */
    once_store_close(s);
    s = must_open(path);
    all_are_there(s, 20, 30);
    all_are_there(s, 1, 5);
    once_store_close(s);
    /* Had that header stayed, it would be seen that it is wrong. */
    poke(file, 0, head, sizeof(head));
    refused(path, ONCE_ECORRUPT, "goes on after its end");
    T_OK(verify(path, &l) > 0);
    T_OK(strstr(l.all, "goes on after its end") != NULL);
}

/* Nobody is left, and the next one keeps the memory: it goes on in the segment
 * that the dead one had written to be over. */
static void the_only_one_may_die_beginning_a_segment(void)
{
    uint8_t head[ONCE__JOURNAL_HEADER];
    char path[128], file[160];
    once_store *s;

    new_path(path, sizeof(path));
    s = must_open(path);
    complete_all(s, 20, 30);
    once_store_close(s);
    T_OK(WIFSIGNALED(in_child(die_beginning_a_segment, path, NULL)));
    last_head(path, file, sizeof(file), head);
    s = must_open(path);
    complete_all(s, 1, 5);
    once_store_close(s);
    s = must_open(path);
    all_are_there(s, 20, 30);
    all_are_there(s, 1, 5);
    once_store_close(s);
}

static int claim_as(once_store *s, uint32_t n, uint8_t who, uint8_t what)
{
    once_op op;

    make_op(&op, ONCE_OP_CLAIM, n);
    memset(op.token, who, sizeof(op.token));
    memset(op.fingerprint, what, sizeof(op.fingerprint));
    op.policy = ONCE_TAKEOVER;
    T_EQ(apply_one(s, &op, NULL), ONCE_OK);
    return op.rc;
}

/* The place of a claim that came to nothing is that of the next one, maybe of
 * the same name, by somebody else. */
static void a_claim_without_room_leaves_nothing_behind(void)
{
    uint64_t clock = BIRTH;
    char path[128];
    once_store *a, *b;
    uint32_t n = 0;

    new_path(path, sizeof(path));
    a = must_open_with(path, "", &clock);
    b = must_open_with(path, "", &clock);
    at_call(FAIL_MEMORY, 0);
    while (claim_as(a, n, 1, 'a') == ONCE_OWNER && n < 100000)
        n++;
    T_OK(n > 62 && n < 100000);
    at_call(0, 0);
    clock += 900;
    T_EQ(claim_as(b, n, 2, 'b'), ONCE_OWNER);
    clock += 200; /* that of `a` would be over */
    T_EQ(claim_as(a, n, 3, 'a'), ONCE_MISMATCH);
    once_store_close(a);
    once_store_close(b);
}

static void several_processes_may_create_one_folder_at_once(void)
{
    char path[128];
    pid_t pids[6];
    int i, round, status;

    for (round = 0; round < 10; round++) {
        new_path(path, sizeof(path));
        fflush(stdout);
        for (i = 0; i < 6; i++) {
            pids[i] = fork();
            if (pids[i] == 0) {
                once_store *s = must_open(path);
                int rc = complete_one(s, (uint32_t)i, 5000);

                once_store_close(s);
                _exit(rc != ONCE_OK);
            }
        }
        for (i = 0; i < 6; i++)
            T_OK(waitpid(pids[i], &status, 0) == pids[i] && status == 0);
    }
}

int main(int argc, char **argv)
{
    const char *only = argc == 2 ? argv[1] : "";

    (void)snprintf(folder, sizeof(folder), "/tmp/once-journal-XXXXXX");
    if (mkdtemp(folder) == NULL)
        return 2;
    RUN_DEATH(a_killed_writer_loses_nothing_it_has_acknowledged);
    RUN(dying_before_any_write_or_flush_loses_nothing);
    RUN(dying_within_any_write_loses_nothing);
    RUN_DEATH(others_go_on_when_one_dies_before_a_write_or_flush);
    RUN_DEATH(others_go_on_when_one_dies_within_a_write);
    RUN(a_stopped_process_is_waited_for_no_longer_than_told);
    RUN(a_stopped_reader_keeps_nobody_waiting);
    RUN(what_was_read_aside_is_looked_at_again);
    RUN(nothing_is_told_before_it_is_durable);
    RUN_DEATH(what_a_dead_one_was_flushing_is_written_again);
    RUN(the_last_one_out_may_meet_a_dead_ones_lock);
    RUN_DEATH(one_may_die_beginning_a_segment);
    RUN(the_only_one_may_die_beginning_a_segment);
    RUN(a_claim_without_room_leaves_nothing_behind);
    RUN(several_processes_may_create_one_folder_at_once);
    remove_folder();
    return t_done();
}
