/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_journal_recovery.c - what the journal promises around its recovery: that
 * what an earlier log left on the disk never joins a later one, whatever was
 * lost in between; whose shared memory it uses; and who waits for whom.
 */
#include <sched.h>

#include "calls/core/record.h"
#include "journal_disk.h"

/* ---- Logs that were cut off ------------------------------------------------ */

enum { BATCH = 40, PAGE = 4096, AT_A_PAGE = 10 };

/* The length of a frame whose record has a result of `size` bytes. */
static uint64_t length_of(size_t size)
{
    once_record r;

    memset(&r, 0, sizeof(r));
    r.result.size = size;
    return once__frame_size_of(&r);
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

/* ---- Power cuts in a recovery ----------------------------------------------- */

/* A disk on which all that stands in `path` is durable. */
static void model_load(struct model *m, const char *path, uint32_t random)
{
    struct node *n;
    struct dirent *e;
    struct stat st;
    char file[400];
    DIR *d = opendir(path);
    int fd;

    assert(d != NULL);
    memset(m, 0, sizeof(*m));
    m->random = random;
    while ((e = readdir(d)) != NULL) {
        if (e->d_name[0] == '.')
            continue;
        (void)snprintf(file, sizeof(file), "%s/%s", path, e->d_name);
        fd = open(file, O_RDONLY);
        assert(fd >= 0 && fstat(fd, &st) == 0 && strlen(e->d_name) < 32);
        n = &m->nodes[m->count];
        n->ino = st.st_ino;
        resize(n, (size_t)st.st_size);
        T_EQ(once__file_read(fd, n->bytes, n->size, 0), 1);
        (void)close(fd);
        model_name(m, e->d_name)->node = ++m->count;
    }
    (void)closedir(d);
    memcpy(m->sure, m->names, sizeof(m->sure));
}

static void model_clear(struct model *m)
{
    size_t i;

    for (i = 0; i < m->count; i++) {
        free(m->nodes[i].bytes);
        free(m->nodes[i].waiting);
    }
    for (i = 0; i < disk.count; i++)
        free(disk.events[i].bytes);
    disk.count = 0;
}

static void acknowledge(uint32_t key)
{
    (void)pthread_mutex_lock(&disk.lock);
    add_event(ACK, 0)->key = key;
    (void)pthread_mutex_unlock(&disk.lock);
}

/* A recovery after a clean end's opposite, one after the death of a holder of
 * the lock, and much that waits for one flush. */
static void recover_twice(const char *path)
{
    once_store *s = must_open_with(path, "", NULL);

    T_OK(WIFSIGNALED(in_child(die_writing, path, NULL)));
    T_EQ(claim_all(s, 0, BATCH), ONCE_OK);
    acknowledge(1);
    once_store_close(s);
}

/* A recovery, and a result that may end where the page does. */
static void recover_and_complete(const char *path)
{
    once_store *s = must_open_with(path, "", NULL);

    if (verb_on(s, ONCE_OP_SHOW, AT_A_PAGE) == ONCE_FREE) {
        complete_in(s, AT_A_PAGE, (AT_A_PAGE - 1) * length_of(0));
        acknowledge(2);
    }
    once_store_close(s);
}

/* All that was acknowledged before any of the cuts. */
static void check_after_cuts(const char *image, int claimed, int completed)
{
    once_error err = {0, ""};
    once_store *s = NULL;
    uint32_t i;
    int rc;

    T_EQ(try_open(image, "", NULL, &err, &s), ONCE_OK);
    if (s == NULL) {
        printf("#   %s\n", err.text);
        return;
    }
    T_EQ(verb_on(s, ONCE_OP_SHOW, 500), ONCE_REPLAY);
    for (i = 0; i < BATCH; i++) {
        rc = verb_on(s, ONCE_OP_SHOW, i);
        if (completed && i == AT_A_PAGE)
            T_EQ(rc, ONCE_REPLAY);
        else if (claimed)
            T_EQ(rc, ONCE_IN_FLIGHT);
        else
            T_OK(rc == ONCE_IN_FLIGHT || rc == ONCE_FREE || rc == ONCE_REPLAY);
    }
    once_store_close(s);
}

/* Cuts the power in the recovery of what a first cut left. */
static uint32_t cut_again(struct model *m, const char *path, const char *image,
                          uint32_t random, int claimed)
{
    uint32_t images = 0;
    int completed = 0;
    size_t i;

    model_load(m, path, random);
    disk.recording = 1;
    recover_and_complete(path);
    disk.recording = 0;
    for (i = 0; i < disk.count && t__bad == 0; i++) {
        model_step(m, i);
        if (disk.events[i].what == ACK)
            completed = 1;
        if (disk.events[i].what != ACK && i + 1 < disk.count &&
            draw(m) % 6 != 0)
            continue;
        build_image(m, image);
        check_after_cuts(image, claimed, completed);
        images++;
        if (t__bad != 0)
            printf("#   second cut after event %zu of %zu\n", i, disk.count);
    }
    model_clear(m);
    return images;
}

enum { PARTS = 16, CUTS = 40 };

/* Where the first cut is: anywhere, but most often when the batch is written and
 * not flushed. */
static size_t place_of_cut(unsigned part)
{
    size_t i = 0;

    if (part < PARTS)
        return disk.count * (part + 1) / PARTS;
    while (disk.events[i].what != ACK)
        i++;
    while (disk.events[i].what != FLUSH)
        i--;
    return i;
}

/* What a first cut left is made before the second recording begins. */
static uint32_t cut_once(struct model *m, const char *path, const char *image,
                         unsigned part, int *claimed)
{
    uint32_t random = 0;
    size_t i, end;

    model_load(m, path, 991 + part);
    disk.recording = 1;
    recover_twice(path);
    disk.recording = 0;
    end = place_of_cut(part);
    *claimed = 0;
    for (i = 0; i < end; i++) {
        model_step(m, i);
        *claimed |= disk.events[i].what == ACK;
    }
    build_image(m, image);
    random = draw(m);
    model_clear(m);
    return random;
}

static void a_power_cut_in_a_recovery_loses_nothing(void)
{
    struct model *m = calloc(1, sizeof(*m));
    char base[128], path[128], first[128], second[128];
    uint32_t random, images = 0;
    int claimed;
    unsigned part;
    once_store *s;

    assert(m != NULL);
    new_path(base, sizeof(base));
    new_path(path, sizeof(path));
    new_path(first, sizeof(first));
    new_path(second, sizeof(second));
    s = must_open_with(base, "", NULL);
    (void)usleep(300000); /* its other thread has made the segments */
    go_before_a_page(s, base, 500,
                     2 * ONCE__FRAME_HEAD + AT_A_PAGE * length_of(0));
    T_OK(WIFSIGNALED(in_child(die_writing, base, NULL)));
    once_store_close(s);
    for (part = 0; part < CUTS && t__bad == 0; part++) {
        copy_folder(base, path);
        random = cut_once(m, path, first, part, &claimed);
        images += cut_again(m, first, second, random, claimed);
        if (t__bad != 0)
            printf("#   first cut in part %u\n", part);
    }
    printf("# %u images\n", images);
    T_OK(images > 100);
    free(m);
}

/* ---- Copies ----------------------------------------------------------------- */

/* Opens a copy, made while the original was open, and goes on in both. */
static void use_copy(const char *path, const char *copy, once_store *live)
{
    char memory[MEMORY_PATH], other[MEMORY_PATH];
    once_store *s;

    memory_of(path, memory);
    s = must_open(copy);
    memory_of(copy, other);
    T_OK(strcmp(memory, other) != 0);
    T_OK(exists(memory) && exists(other));
    all_are_there(s, 0, 20);
    T_EQ(verb_on(s, ONCE_OP_SHOW, 30), ONCE_FREE);
    T_EQ(complete_one(s, 40, 5000), ONCE_OK);
    T_EQ(verb_on(live, ONCE_OP_SHOW, 40), ONCE_FREE);
    once_store_close(s);
    T_OK(exists(memory) && !exists(other));
}

static void a_copy_leaves_the_original_alone(void)
{
    char path[128], copy[128];
    once_store *live, *s;

    new_path(path, sizeof(path));
    new_path(copy, sizeof(copy));
    live = must_open(path);
    complete_all(live, 0, 20);
    copy_folder(path, copy);
    complete_all(live, 20, 40); /* of which the copy knows nothing */
    use_copy(path, copy, live);
    s = must_open(path); /* others can still come in */
    all_are_there(s, 0, 40);
    T_EQ(complete_one(s, 40, 5000), ONCE_OK);
    T_OK(is_there(live, 40));
    once_store_close(s);
    once_store_close(live);
    live = must_open(path);
    all_are_there(live, 0, 41);
    once_store_close(live);
}

/* Files that are shared by hard links are no copy. */
static void a_copy_by_links_is_refused(void)
{
    char path[128], copy[128], command[300];
    once_store *live;

    new_path(path, sizeof(path));
    new_path(copy, sizeof(copy));
    live = must_open(path);
    complete_all(live, 0, 5);
    (void)snprintf(command, sizeof(command), "cp -al '%s' '%s'", path, copy);
    T_EQ(system(command), 0);
    refused(copy, ONCE_EOPEN, "a link to that of another folder");
    complete_all(live, 5, 10);
    once_store_close(live);
    live = must_open(path);
    all_are_there(live, 0, 10);
    once_store_close(live);
}

/* One that was cut off there has nothing to do with it, either. */
static void a_copy_is_not_cut_where_the_original_failed(void)
{
    char path[128], copy[128];
    once_store *live, *s;
    once_op op;

    new_path(path, sizeof(path));
    new_path(copy, sizeof(copy));
    live = must_open_with(path, "", NULL);
    (void)usleep(300000); /* its other thread has nothing to flush any more */
    at_call(FAIL_FLUSH, 1);
    make_op(&op, ONCE_OP_CLAIM, 1);
    T_EQ(apply_one(live, &op, NULL), ONCE_ESTORE);
    at_call(0, 0);
    copy_folder(path, copy);
    s = must_open(copy);
    T_EQ(complete_one(s, 2, 5000), ONCE_OK);
    once_store_close(s);
    T_EQ(verb_on(live, ONCE_OP_SHOW, 1), ONCE_ESTORE);
    once_store_close(live);
    live = must_open_with(path, "", NULL);
    T_EQ(verb_on(live, ONCE_OP_SHOW, 1), ONCE_FREE);
    once_store_close(live);
}

/* ---- PID namespaces --------------------------------------------------------- */

static void is_refused_here(const char *path, void *user)
{
    (void)user;
    refused(path, ONCE_EOPEN, "another PID namespace");
}

static void complete_three(const char *path, void *user)
{
    once_store *s = must_open(path);

    (void)user;
    all_are_there(s, 0, 3);
    complete_all(s, 3, 6);
    once_store_close(s);
}

/* What a child does in a PID namespace of its own. 77: it may not have one. */
static void in_a_namespace(const char *path, void *user)
{
    void (*what)(const char *, void *) = *(void (**)(const char *, void *))user;

    if (unshare(CLONE_NEWPID) != 0)
        _exit(77);
    T_EQ(in_child(what, path, NULL), 0);
}

/* The kernel takes the number in a lock for one of the namespace of whoever
 * dies: a stranger's death would open a lock that somebody holds. */
static void another_pid_namespace_is_refused(void)
{
    void (*what)(const char *, void *) = is_refused_here;
    char path[128];
    once_store *s;
    int status;

    new_path(path, sizeof(path));
    s = must_open(path);
    complete_all(s, 0, 2);
    status = in_child(in_a_namespace, path, &what);
    if (WIFEXITED(status) && WEXITSTATUS(status) == 77) {
        printf("# skipped: no PID namespace to be had\n");
        once_store_close(s);
        return;
    }
    T_EQ(status, 0);
    T_EQ(complete_one(s, 2, 5000), ONCE_OK);
    once_store_close(s);
    what = complete_three; /* one after the other they may */
    T_EQ(in_child(in_a_namespace, path, &what), 0);
    s = must_open(path);
    all_are_there(s, 0, 6);
    once_store_close(s);
}

/* ---- Waiting for a recovery ------------------------------------------------- */

enum { PAUSES = 250, LONG = 300 };

static struct {
    int go[2], ready[2];
    int pauses, reads, stop_at, events;
} pace;

/* The one that recovers reads only when it is let. */
static void read_when_let(void)
{
    char c = 0;

    if (pace.reads++ == 0)
        T_EQ(write(pace.ready[1], &c, 1), 1);
    if (pace.reads == pace.stop_at)
        (void)kill(getpid(), SIGSTOP);
    if (pace.stop_at == 0 && read(pace.go[0], &c, 1) != 1)
        on_read = NULL;
}

/* The one that waits does so in no time, and lets it read now and then. */
static void pause_and_let_read(void)
{
    char c = 0;

    if (++pace.pauses % PAUSES == 0)
        T_EQ(write(pace.go[1], &c, 1), 1);
    (void)usleep(20);
}

static void count_event(void *user, const char *text)
{
    (void)user;
    T_OK(strstr(text, "waiting for another process") != NULL);
    pace.events++;
}

static int open_waiting(const char *path, once_error *err, once_store **out)
{
    once_store_options options = {
        .size = sizeof(options), .clock = now_ms, .event = count_event};
    char url[256];
    int rc;

    (void)snprintf(url, sizeof(url), "journal:%s", path);
    on_pause = pause_and_let_read;
    rc = once_store_open(url, &options, err, out);
    on_pause = NULL;
    return rc;
}

static void leave_a_long_log(const char *path, void *user)
{
    once_store *s = must_open_with(path, "?segment=1048576", NULL);

    (void)user;
    complete_all(s, BULKY, BULKY + LONG);
}

/* A child that opens the log and has begun to read it. */
static pid_t recover_slowly(const char *path, int stop_at)
{
    once_store *s;
    pid_t pid;
    char c;

    memset(&pace, 0, sizeof(pace));
    pace.stop_at = stop_at;
    T_EQ(pipe(pace.go), 0);
    T_EQ(pipe(pace.ready), 0);
    fflush(stdout);
    pid = fork();
    if (pid == 0) {
        (void)close(pace.go[1]);
        on_read = read_when_let;
        s = must_open_with(path, "", NULL);
        on_read = NULL;
        while (read(pace.go[0], &c, 1) == 1)
            ;
        once_store_close(s);
        _exit(0);
    }
    T_EQ(read(pace.ready[0], &c, 1), 1);
    return pid;
}

static void end_pace(void)
{
    (void)close(pace.go[0]);
    (void)close(pace.go[1]);
    (void)close(pace.ready[0]);
    (void)close(pace.ready[1]);
}

static void a_long_recovery_is_waited_for(void)
{
    char path[128];
    once_error err = {0, ""};
    once_store *s = NULL;
    int status;
    pid_t pid;

    new_path(path, sizeof(path));
    T_EQ(in_child(leave_a_long_log, path, NULL), 0);
    forget_memory(path);
    pid = recover_slowly(path, 0);
    T_EQ(open_waiting(path, &err, &s), ONCE_OK);
    printf("# waited %d pauses, %d events\n", pace.pauses, pace.events);
    T_OK(pace.pauses > 5000);
    T_OK(pace.events > 1);
    if (s != NULL)
        all_are_there(s, BULKY, BULKY + LONG);
    once_store_close(s);
    end_pace();
    T_OK(waitpid(pid, &status, 0) == pid && status == 0);
}

/* The child is stopped in the middle: it is alive, and gets no further. */
static void a_recovery_that_stands_still_is_not_waited_for(void)
{
    char path[128];
    once_error err = {0, ""};
    once_store *s = NULL;
    int status;
    pid_t pid;

    new_path(path, sizeof(path));
    T_EQ(in_child(leave_a_long_log, path, NULL), 0);
    forget_memory(path);
    pid = recover_slowly(path, 10);
    T_OK(waitpid(pid, &status, WUNTRACED) == pid && WIFSTOPPED(status));
    T_EQ(open_waiting(path, &err, &s), ONCE_EOPEN);
    T_OK(strstr(err.text, "no further") != NULL);
    T_EQ(kill(pid, SIGKILL), 0);
    T_OK(waitpid(pid, &status, 0) == pid);
    T_EQ(open_waiting(path, &err, &s), ONCE_OK);
    all_are_there(s, BULKY, BULKY + LONG);
    once_store_close(s);
    end_pace();
}

/* ---- Segments that are dropped ---------------------------------------------- */

/* Fills segments with what is forgotten at once, until one of them goes, or the
 * oldest is number `beyond` at least. */
static void churn(once_store *s, const char *path, uint32_t from,
                  uint64_t beyond)
{
    uint64_t lowest = 0, highest;
    int dir = open(path, O_RDONLY | O_DIRECTORY), tries;

    for (tries = 0; lowest < beyond && tries < 400; tries++, from++) {
        T_EQ(complete_one(s, from, 0), ONCE_OK);
        T_EQ(verb_on(s, ONCE_OP_FORGET, from), ONCE_OK);
        T_EQ(s->ops->maintain(s, NULL), ONCE_OK);
        (void)usleep(5000);
        T_EQ(once__segment_range(dir, &lowest, &highest), 0);
    }
    T_OK(lowest >= beyond);
    (void)close(dir);
}

static void die_dropping(const char *path, void *user)
{
    once_store *s = must_open(path);

    (void)user;
    at_call(DIE_DROP, 0);
    churn(s, path, BULKY, 100);
}

/* Whoever dropped it had said that it is not needed, and died. */
static void a_segment_that_was_to_go_goes_later(void)
{
    char path[128];
    once_store *s;
    uint64_t lowest, highest;
    int dir, repaired;

    for (repaired = 0; repaired < 2; repaired++) {
        new_path(path, sizeof(path));
        s = must_open(path);
        T_OK(WIFSIGNALED(in_child(die_dropping, path, NULL)));
        if (repaired)
            T_OK(WIFSIGNALED(in_child(die_writing, path, NULL)));
        dir = open(path, O_RDONLY | O_DIRECTORY);
        T_EQ(once__segment_range(dir, &lowest, &highest), 0);
        (void)close(dir);
        churn(s, path, BULKY + 1000, lowest + 1);
        once_store_close(s);
    }
}

int main(int argc, char **argv)
{
    const char *only = argc == 2 ? argv[1] : "";

    (void)snprintf(folder, sizeof(folder), "/tmp/once-journal-XXXXXX");
    if (mkdtemp(folder) == NULL)
        return 2;
    RUN_DEATH(a_lost_mark_brings_no_old_frames_back);
    RUN_DEATH(an_old_mark_is_followed_by_its_own_log_only);
    RUN_DEATH(a_power_cut_in_a_recovery_loses_nothing);
    RUN(a_copy_leaves_the_original_alone);
    RUN(a_copy_by_links_is_refused);
    RUN(a_copy_is_not_cut_where_the_original_failed);
    RUN(another_pid_namespace_is_refused);
    RUN(a_long_recovery_is_waited_for);
    RUN(a_recovery_that_stands_still_is_not_waited_for);
    RUN_DEATH(a_segment_that_was_to_go_goes_later);
    remove_folder();
    return t_done();
}
