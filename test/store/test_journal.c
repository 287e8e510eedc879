/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_journal.c - what only the journal promises: whose folder it opens, what
 * it does when its files, the disk, the power or another process fail it.
 *
 * Writers are real processes and die for real; what reaches the disk is seen
 * through the linker (journal_disk.h).
 */
#include "journal_disk.h"

/* ---- Whose folder is it? --------------------------------------------------- */

static void a_new_folder_is_for_its_owner_alone(void)
{
    char path[128], file[160], memory[MEMORY_PATH];
    struct stat st;
    once_store *s;

    new_path(path, sizeof(path));
    s = must_open(path);
    T_OK(stat(path, &st) == 0 && (st.st_mode & 07777) == 0700);
    segment_path(path, 1, file, sizeof(file));
    T_OK(stat(file, &st) == 0 && (st.st_mode & 0777) == 0600);
    (void)snprintf(file, sizeof(file), "%s/lock", path);
    T_OK(stat(file, &st) == 0 && (st.st_mode & 0777) == 0600);
    memory_of(path, memory);
    T_OK(exists(memory));
    once_store_close(s);
    T_OK(!exists(memory));
}

static int owners_differ(const char *path, uid_t uid)
{
    DIR *d = opendir(path);
    struct dirent *e;
    struct stat st;
    int n = 0;

    assert(d != NULL);
    while ((e = readdir(d)) != NULL)
        if (strcmp(e->d_name, "..") != 0 &&
            fstatat(dirfd(d), e->d_name, &st, 0) == 0)
            n += st.st_uid != uid;
    (void)closedir(d);
    return n;
}

static void use_as_nobody(const char *path, void *user)
{
    once_store *s;

    if (setgid(65534) != 0 || setuid(65534) != 0)
        _exit(9);
    s = must_open(path);
    T_OK(is_there(s, 1));
    T_EQ(complete_one(s, *(uint32_t *)user, 5000), ONCE_OK);
    once_store_close(s);
}

static void root_opens_what_belongs_to_a_worker(void)
{
    char path[128];
    uint32_t key = 2;
    once_store *s;

    if (geteuid() != 0) {
        printf("# skipped: only root may give files away\n");
        return;
    }
    T_EQ(chmod(folder, 0755), 0);
    new_path(path, sizeof(path));
    T_EQ(mkdir(path, 0700), 0);
    T_EQ(chown(path, 65534, 65534), 0);
    s = must_open(path);
    T_EQ(complete_one(s, 1, 5000), ONCE_OK);
    T_EQ(in_child(use_as_nobody, path, &key), 0); /* both at once */
    complete_all(s, 10, 400);                     /* several segments */
    T_OK(is_there(s, 2));
    T_EQ(owners_differ(path, 65534), 0);
    once_store_close(s);
    key++;
    T_EQ(in_child(use_as_nobody, path, &key), 0);
}

static void urls_are_refused_by_name(void)
{
    static const struct {
        const char *rest, *says;
    } bad[] = {
        {"", "folder"},
        {"/tmp/once-nothing?wal=1", "unknown parameter"},
        {"/tmp/once-nothing?busy_ms=0", "busy_ms"},
        {"/tmp/once-nothing?segment=1", "segment"},
        {"/tmp/once-nothing?segment=2000000000", "segment"},
        {"/tmp/once-nothing?segment=65536&segment=65536", "segment"},
        {"/tmp/once-nothing?", "parameter"},
    };
    once_error err;
    once_store *s = NULL;
    char url[256];
    size_t i;

    for (i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        (void)snprintf(url, sizeof(url), "journal:%s", bad[i].rest);
        T_EQ(once_store_open(url, NULL, &err, &s), ONCE_EURL);
        if (strstr(err.text, bad[i].says) == NULL)
            T_STR(err.text, bad[i].says);
    }
    T_OK(access("/tmp/once-nothing", F_OK) != 0);
}

static void what_is_not_ours_is_refused_and_left_alone(void)
{
    char path[128], file[160];
    uint8_t wrong[16] = "something else!";
    int fd;

    new_path(path, sizeof(path));
    T_EQ(mkdir(path, 0755), 0);
    (void)snprintf(file, sizeof(file), "%s/letter.txt", path);
    fd = open(file, O_WRONLY | O_CREAT, 0644);
    T_OK(fd >= 0);
    refused(path, ONCE_EOPEN, "holds other files");
    (void)close(fd);
    (void)snprintf(file, sizeof(file), "%s/lock", path);
    T_OK(access(file, F_OK) != 0);
    fd = open(file, O_WRONLY | O_CREAT, 0644);
    T_EQ(write(fd, wrong, sizeof(wrong)), sizeof(wrong));
    (void)close(fd);
    refused(path, ONCE_EOPEN, "something else");
    (void)snprintf(file, sizeof(file), "%s/letter.txt", path);
    refused(file, ONCE_EOPEN, "Not a directory");
    refused("/no/such/folder", ONCE_EOPEN, "No such file");
}

static void what_shall_exist_is_not_made(void)
{
    once_store_options options = {
        sizeof(options), now_ms, NULL, 100, 1, NULL, NULL};
    char path[128], url[160];
    once_store *s = NULL;

    new_path(path, sizeof(path));
    (void)snprintf(url, sizeof(url), "journal:%s", path);
    T_EQ(once_store_open(url, &options, NULL, &s), ONCE_EOPEN);
    T_OK(access(path, F_OK) != 0);
    T_EQ(mkdir(path, 0700), 0);
    T_EQ(once_store_open(url, &options, NULL, &s), ONCE_EOPEN);
    T_EQ(rmdir(path), 0); /* it is still empty */
    once_store_close(must_open(path));
    T_EQ(once_store_open(url, &options, NULL, &s), ONCE_OK);
    once_store_close(s);
}

static void another_version_is_refused(void)
{
    char path[128], file[160];
    uint32_t version = 7;

    new_path(path, sizeof(path));
    once_store_close(must_open(path));
    (void)snprintf(file, sizeof(file), "%s/lock", path);
    poke(file, 8, &version, 4);
    refused(path, ONCE_EVERSION, "version 7");
}

/* As when it is open in a container with a /dev/shm of its own. */
static void open_without_its_memory_in_sight_is_refused(void)
{
    char path[128];
    once_store *s;

    new_path(path, sizeof(path));
    s = must_open(path);
    T_EQ(complete_one(s, 1, 5000), ONCE_OK);
    forget_memory(path);
    refused(path, ONCE_EOPEN, "/dev/shm");
    T_OK(is_there(s, 1));
    once_store_close(s);
    s = must_open(path);
    T_OK(is_there(s, 1));
    once_store_close(s);
}

static int count_files(const char *path)
{
    DIR *d = opendir(path);
    int n = 0;

    assert(d != NULL);
    while (readdir(d) != NULL)
        n++;
    (void)closedir(d);
    return n;
}

static void nothing_is_left_open_behind(void)
{
    char path[128], memory[MEMORY_PATH];
    once_store *a, *b;
    int before, round;

    new_path(path, sizeof(path));
    once_store_close(must_open(path));
    before = count_files("/proc/self/fd");
    for (round = 0; round < 10; round++) {
        a = must_open(path);
        memory_of(path, memory);
        b = must_open(path);
        complete_all(round % 2 ? a : b, (uint32_t)round * 100,
                     (uint32_t)round * 100 + 100);
        once_store_close(round % 3 ? a : b);
        T_OK(exists(memory));
        once_store_close(round % 3 ? b : a);
        T_OK(!exists(memory));
        T_EQ(count_files("/proc/self/fd"), before);
    }
    refused("/no/such/folder", ONCE_EOPEN, "");
    T_EQ(count_files("/proc/self/fd"), before);
}

/* ---- Torn and damaged ------------------------------------------------------ */

struct range {
    uint32_t from, to;
};

/* Completes a range in batches of claims and completes. */
static void complete_range(const char *path, void *user)
{
    struct range *r = user;
    once_store *s = must_open(path);

    complete_all(s, r->from, r->to);
    /* It ends here: the store is not closed. */
}

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

enum { CLAIMS = 60, HOLE = 5, DONE = 30 };

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

/* ---- Death ----------------------------------------------------------------- */

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

/* Shared with a child that dies: what it was told. */
struct told {
    atomic_uint from, done;
    atomic_ullong fence; /* the largest that was shown */
    int countdown, then;
};

static struct told *told_new(void)
{
    struct told *told = mmap(NULL, sizeof(*told), PROT_READ | PROT_WRITE,
                             MAP_SHARED | MAP_ANONYMOUS, -1, 0);

    assert(told != MAP_FAILED);
    return told;
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
    once_op op;

    all_are_there(s, told->from, told->done);
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

    for (n = 1; n <= 8 && t__bad == 0; n++) {
        new_path(path, sizeof(path));
        s = must_open_with(path, "?busy_ms=50", NULL);
        T_EQ(complete_one(s, 5, 5000), ONCE_OK);
        told->countdown = n;
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

/* ---- The disk fails -------------------------------------------------------- */

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

/* ---- Full disks ------------------------------------------------------------ */

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

static void forget_all(once_store *s, uint32_t from, uint32_t to)
{
    for (; from < to; from++)
        T_EQ(verb_on(s, ONCE_OP_FORGET, from), ONCE_OK);
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

/* ---- Sweeping -------------------------------------------------------------- */

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

enum { STAYS = 4 }; /* one in so many */

static void sweep_and_die(const char *path, void *user)
{
    struct told *told = user;
    once_store *s = must_open(path);
    uint32_t i;

    at_call(told->then, told->countdown);
    for (i = told->from; i < told->from + 3000; i++) {
        if (complete_one(s, i, i % STAYS == 0 ? 1000000000 : 0) != ONCE_OK)
            _exit(3);
        if (i % STAYS != 0 && verb_on(s, ONCE_OP_FORGET, i) != ONCE_OK)
            _exit(4);
        told->done = i + 1;
        if (i % 10 == 0 && s->ops->maintain(s, NULL) != ONCE_OK)
            _exit(5);
    }
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

/* ---- Size ------------------------------------------------------------------ */

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

struct seen {
    uint32_t n;
    int in_order;
    uint8_t last[ONCE_NAME_SIZE];
};

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
    uint8_t after[ONCE_NAME_SIZE];
    uint32_t pages = 0;

    while (s->ops->scan(s, ONCE_SCAN_ALL, pages > 0 ? after : NULL, page, see,
                        &seen, NULL) > 0) {
        memcpy(after, seen.last, sizeof(after));
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

/* ---- Power cuts ------------------------------------------------------------ */

/* Opens what the power cut left. Keys below `acked` were acknowledged. */
static void check_image(const char *image, uint32_t acked)
{
    once_store *s = NULL;
    once_error err = {0, ""};
    uint32_t i;
    int rc = try_open(image, "?segment=65536", NULL, &err, &s);

    T_EQ(rc, ONCE_OK);
    if (rc != ONCE_OK) {
        printf("#   %s\n", err.text);
        return;
    }
    for (i = 0; i < acked; i++)
        if (i % 4 == 0)
            T_OK(is_there(s, i));
        else
            T_EQ(verb_on(s, ONCE_OP_SHOW, i), ONCE_FREE);
    for (i = acked; i < acked + 2; i++) { /* what was under way */
        rc = verb_on(s, ONCE_OP_SHOW, i);
        T_OK(rc == ONCE_FREE || rc == ONCE_IN_FLIGHT || rc == ONCE_REPLAY);
        if (rc == ONCE_REPLAY)
            T_OK(is_there(s, i));
    }
    T_EQ(complete_one(s, 9999, 5000), ONCE_OK);
    once_store_close(s);
}

static void record_work(const char *path, uint32_t keys)
{
    once_store *s;
    uint32_t i;

    disk.recording = 1;
    s = must_open(path);
    for (i = 0; i < keys; i++) {
        T_EQ(complete_one(s, i, i % 4 == 0 ? 1000000000 : 0), ONCE_OK);
        if (i % 4 != 0)
            T_EQ(verb_on(s, ONCE_OP_FORGET, i), ONCE_OK);
        (void)pthread_mutex_lock(&disk.lock);
        add_event(ACK, 0)->key = i + 1;
        (void)pthread_mutex_unlock(&disk.lock);
        if (i % 20 == 0) {
            T_EQ(s->ops->maintain(s, NULL), ONCE_OK);
            (void)usleep(1000);
        }
        if (i % 300 == 299) {
            once_store_close(s);
            s = must_open(path);
        }
    }
    once_store_close(s);
    disk.recording = 0;
}

/* Around the coming and going of files there is more to get wrong. */
static int is_delicate(size_t i)
{
    return disk.events[i].what == REMOVE || disk.events[i].what == RENAME ||
           (disk.events[i].what == FLUSH_NAMES && i % 2 == 0);
}

static void what_a_power_cut_leaves_has_all_that_was_acknowledged(void)
{
    enum { KEYS = 900, IMAGES = 300 };
    struct model *m = calloc(1, sizeof(*m));
    char path[128], image[128];
    uint32_t acked = 0, images = 0;
    size_t i;

    assert(m != NULL);
    m->random = 77;
    new_path(path, sizeof(path));
    new_path(image, sizeof(image));
    record_work(path, KEYS);
    for (i = 0; i < disk.count && t__bad == 0; i++) {
        model_step(m, i);
        if (disk.events[i].what == ACK)
            acked = disk.events[i].key;
        if (!is_delicate(i) && draw(m) % (unsigned)(disk.count / IMAGES) != 0)
            continue;
        build_image(m, image);
        if (m->sure[0].node == 0 && acked == 0)
            continue; /* nothing there yet */
        check_image(image, acked);
        images++;
        if (t__bad != 0)
            printf("#   after event %zu of %zu\n", i, disk.count);
    }
    printf("# %u images at %zu events\n", images, disk.count);
    T_OK(images > IMAGES / 2);
    for (i = 0; i < disk.count; i++)
        free(disk.events[i].bytes);
    disk.count = 0;
    for (i = 0; i < m->count; i++) {
        free(m->nodes[i].bytes);
        free(m->nodes[i].waiting);
    }
    free(m);
}

int main(int argc, char **argv)
{
    const char *only = argc == 2 ? argv[1] : "";

    (void)snprintf(folder, sizeof(folder), "/tmp/once-journal-XXXXXX");
    if (mkdtemp(folder) == NULL)
        return 2;
    RUN(a_new_folder_is_for_its_owner_alone);
    RUN(root_opens_what_belongs_to_a_worker);
    RUN(urls_are_refused_by_name);
    RUN(what_is_not_ours_is_refused_and_left_alone);
    RUN(what_shall_exist_is_not_made);
    RUN(another_version_is_refused);
    RUN(open_without_its_memory_in_sight_is_refused);
    RUN(nothing_is_left_open_behind);
    RUN(a_torn_tail_is_cut_wherever_it_is_torn);
    RUN(what_was_cut_off_never_comes_back);
    RUN(damage_in_the_middle_is_never_skipped);
    RUN(a_missing_or_headless_segment_is_damage);
    RUN(a_clean_end_leaves_no_excuse);
    RUN(dump_shows_frames_and_no_secrets);
    RUN(a_killed_writer_loses_nothing_it_has_acknowledged);
    RUN(dying_before_any_write_or_flush_loses_nothing);
    RUN(dying_within_any_write_loses_nothing);
    RUN(others_go_on_when_one_dies_before_a_write_or_flush);
    RUN(others_go_on_when_one_dies_within_a_write);
    RUN(a_stopped_process_is_waited_for_no_longer_than_told);
    RUN(nothing_is_told_before_it_is_durable);
    RUN(what_a_dead_one_was_flushing_is_written_again);
    RUN(the_last_one_out_may_meet_a_dead_ones_lock);
    RUN(one_may_die_beginning_a_segment);
    RUN(a_claim_without_room_leaves_nothing_behind);
    RUN(several_processes_may_create_one_folder_at_once);
    RUN(a_failed_flush_stops_all_until_reopened);
    RUN(a_failed_write_stops_all_until_reopened);
    RUN(a_failed_flush_cuts_what_was_not_durable);
    RUN(a_segment_that_was_never_flushed_is_cut_off);
    RUN(a_full_disk_refuses_claims_and_takes_completions);
    RUN(expired_records_make_room_on_a_full_disk);
    RUN(old_segments_go_and_the_few_that_stay_are_kept);
    RUN(three_processes_write_and_sweep_at_once);
    RUN(dying_while_sweeping_loses_nothing_and_brings_nothing_back);
    RUN(verify_and_dump_work_beside_writers);
    RUN(results_larger_than_a_segment_are_kept);
    RUN(many_records_are_back_after_an_unclean_end);
    RUN(what_a_power_cut_leaves_has_all_that_was_acknowledged);
    remove_folder();
    return t_done();
}
