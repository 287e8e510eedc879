/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_journal_space.c - what a journal needs and may not get: descriptors and
 * memory in one of its processes, and room on the disk.
 *
 * What is short is short in one handle only, through the linker (--wrap). A
 * holder of the lock is a process that dies for real.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <once/store.h>

#include "calls/store/journal/handle.h"
#include "robust.h"
#include "t.h"

#define NOW UINT64_C(1700000000000)
#define MIB ((size_t)1 << 20)

static char folder[64];

static uint64_t now = NOW;

static uint64_t now_ms(void *user)
{
    (void)user;
    return now;
}

/* ---- What the linker sends here ------------------------------------------- */

enum what { OPENS, MEMORY, WRITES };

static __thread struct {
    int armed, what;
    int countdown; /* the n-th call of that kind fails, and all behind it */
    int met;
} shortage;

static __thread int
    dies_writing; /* the next write of a frame is the last one */

/* The writes of a whole process, and how much zeros among them, in bytes. */
static atomic_ullong zeros;
static __thread unsigned long long zeros_here;

int __real_openat(int dir, const char *name, int flags, ...);
int __wrap_openat(int dir, const char *name, int flags, ...);
ssize_t __real_pwrite(int fd, const void *bytes, size_t size, off_t offset);
ssize_t __wrap_pwrite(int fd, const void *bytes, size_t size, off_t offset);
void *__real_malloc(size_t size);
void *__wrap_malloc(size_t size);
void *__real_realloc(void *old, size_t size);
void *__wrap_realloc(void *old, size_t size);

static int is_short(int what)
{
    if (!shortage.armed || shortage.what != what)
        return 0;
    shortage.met++;
    return shortage.met >= shortage.countdown;
}

static void arm(int what, int countdown)
{
    shortage.what = what;
    shortage.countdown = countdown;
    shortage.met = 0;
    shortage.armed = 1;
}

/* 1 if anything has failed. */
static int disarm(void)
{
    shortage.armed = 0;
    return shortage.met >= shortage.countdown;
}

int __wrap_openat(int dir, const char *name, int flags, ...)
{
    mode_t mode = 0;
    va_list args;

    if (flags & O_CREAT) {
        va_start(args, flags);
        mode = va_arg(args, mode_t);
        va_end(args);
    }
    if (is_short(OPENS)) {
        errno = EMFILE;
        return -1;
    }
    return __real_openat(dir, name, flags, mode);
}

static int is_zero(const uint8_t *bytes, size_t size)
{
    return bytes[0] == 0 && memcmp(bytes, bytes + 1, size - 1) == 0;
}

ssize_t __wrap_pwrite(int fd, const void *bytes, size_t size, off_t offset)
{
    if (is_short(WRITES)) {
        errno = ENOMEM;
        return -1;
    }
    if (size > 0 && is_zero(bytes, size)) {
        atomic_fetch_add(&zeros, size);
        zeros_here += size;
    } else if (dies_writing) {
        (void)kill(getpid(), SIGKILL);
    }
    return __real_pwrite(fd, bytes, size, offset);
}

void *__wrap_malloc(size_t size)
{
    if (is_short(MEMORY)) {
        errno = ENOMEM;
        return NULL;
    }
    return __real_malloc(size);
}

void *__wrap_realloc(void *old, size_t size)
{
    if (is_short(MEMORY)) {
        errno = ENOMEM;
        return NULL;
    }
    return __real_realloc(old, size);
}

/* ---- Stores ---------------------------------------------------------------- */

static void new_path(char *out, size_t size)
{
    static int n;

    (void)snprintf(out, size, "%s/%d", folder, n++);
}

static once_store *open_at(const char *path, const char *tail)
{
    once_store_options options = {
        sizeof(options), now_ms, NULL, 30000, 1, NULL, NULL, 0};
    once_error err = {0, ""};
    once_store *s = NULL;
    char url[200];

    (void)snprintf(url, sizeof(url), "journal:%s%s", path, tail);
    if (once_store_open(url, &options, &err, &s) != ONCE_OK) {
        printf("# %s\n", err.text);
        abort();
    }
    return s;
}

static void make_op(once_op *op, int verb, uint32_t key)
{
    memset(op, 0, sizeof(*op));
    op->verb = verb;
    op->kind = ONCE_SUCCESS;
    op->lease_ms = 1000000;
    op->keep_ms = 1000000;
    memset(op->name, 0x5a, ONCE_NAME_SIZE);
    key *= 2654435761u; /* spread them, as a hash does */
    memcpy(op->name, &key, sizeof(key));
    memset(op->token, 0x11, ONCE_TOKEN_SIZE);
}

static int apply_one(once_store *s, once_op *op, once_error *err)
{
    once_op *ops[1] = {op};
    int rc = s->ops->apply(s, ops, 1, err);

    return rc == ONCE_OK ? op->rc : rc;
}

static int ask(once_store *s, int verb, uint32_t key, once_error *err)
{
    once_op op;

    make_op(&op, verb, key);
    return apply_one(s, &op, err);
}

static once_bytes result_of(uint32_t key, size_t size)
{
    static uint8_t bytes[4 * MIB];

    memset(bytes, (int)(key % 251 + 1), size);
    return (once_bytes){bytes, size};
}

static int end_claim(once_store *s, uint32_t key, uint64_t fence, size_t size)
{
    once_op op;

    make_op(&op, ONCE_OP_COMPLETE, key);
    op.fence = fence;
    op.result = result_of(key, size);
    return apply_one(s, &op, NULL);
}

static int complete_one(once_store *s, uint32_t key, size_t size)
{
    once_op op;
    int rc;

    make_op(&op, ONCE_OP_CLAIM, key);
    rc = apply_one(s, &op, NULL);
    return rc == ONCE_OWNER ? end_claim(s, key, op.record.fence, size)
           : rc == ONCE_OK  ? ONCE_FENCED
                            : rc;
}

static void all_are_there(once_store *s, uint32_t from, uint32_t to)
{
    for (; from < to; from++)
        T_EQ(ask(s, ONCE_OP_SHOW, from, NULL), ONCE_REPLAY);
}

/* ---- One process is out of descriptors or memory ---------------------------- */

static void die_holding_the_lock(const char *path)
{
    int status = 0;
    pid_t pid;

    fflush(stdout);
    pid = fork();
    if (pid == 0) {
        once_store *s = open_at(path, "?segment=65536");

        (void)usleep(20000); /* its compactor has made what it makes */
        dies_writing = 1;
        (void)ask(s, ONCE_OP_CLAIM, 999999, NULL);
        _exit(1);
    }
    T_OK(waitpid(pid, &status, 0) == pid);
    T_OK(WIFSIGNALED(status));
}

/* Somebody died with the lock, and we are the first to need it. 1: and have
 * felt the shortage. */
static int repair_short_of(int what, int countdown)
{
    char path[100];
    once_store *s, *other;
    once_error err = {0, ""};
    int rc, hit;

    new_path(path, sizeof(path));
    s = open_at(path, "?segment=65536");
    for (uint32_t i = 0; i < 40; i++)
        T_EQ(complete_one(s, i, 9000), ONCE_OK);
    other = open_at(path, "?segment=65536");
    die_holding_the_lock(path);
    once_store_close(s);
    s = open_at(path, "?segment=65536"); /* with no file in its hands */
    arm(what, countdown);
    rc = ask(s, ONCE_OP_CLAIM, 100, &err);
    hit = disarm();
    T_OK(rc == ONCE_OWNER || (hit && (rc == ONCE_ESTORE || rc == ONCE_ENOMEM)));
    if (rc == ONCE_ESTORE && what == OPENS)
        T_OK(strstr(err.text, strerror(EMFILE)) != NULL);
    /* The others go on, and so do we when there is something to be had. */
    T_EQ(complete_one(other, 50, 100), ONCE_OK);
    all_are_there(other, 0, 40);
    T_EQ(complete_one(s, 51, 100), ONCE_OK);
    all_are_there(s, 50, 52);
    once_store_close(other);
    once_store_close(s);
    s = open_at(path, "?segment=65536");
    all_are_there(s, 0, 40);
    all_are_there(s, 50, 52);
    once_store_close(s);
    return hit;
}

static void who_cannot_repair_leaves_it_to_the_next(void)
{
    int what, n, hits = 0;

    for (what = OPENS; what <= WRITES; what++)
        for (n = 1; n < 30 && repair_short_of(what, n); n++)
            hits++;
    printf("# %d repairs failed\n", hits);
    T_OK(hits >= 5);
}

/* Where the last one out could not repair it either. */
static void what_nobody_repaired_is_recovered_when_it_is_opened(void)
{
    char path[100];
    once_store *s;

    new_path(path, sizeof(path));
    s = open_at(path, "?segment=65536");
    for (uint32_t i = 0; i < 40; i++)
        T_EQ(complete_one(s, i, 9000), ONCE_OK);
    die_holding_the_lock(path);
    arm(WRITES, 1);
    T_EQ(ask(s, ONCE_OP_CLAIM, 100, NULL), ONCE_ESTORE);
    T_OK(disarm());
    once_store_close(s);
    s = open_at(path, "?segment=65536");
    all_are_there(s, 0, 40);
    T_EQ(complete_one(s, 100, 100), ONCE_OK);
    once_store_close(s);
}

/* A batch needs more files than the handle keeps open. What it did not write
 * was not told to anybody, and the others do not see it either. */
static void a_batch_short_of_descriptors_harms_only_itself(void)
{
    char path[100];
    once_store *s, *other;
    once_op ops[2], *list[2] = {&ops[0], &ops[1]};
    int rc, hits = 0;
    uint32_t key;

    new_path(path, sizeof(path));
    s = open_at(path, "?segment=65536");
    other = open_at(path, "?segment=65536");
    for (key = 0; key < 800; key++)
        T_EQ(complete_one(s, key, 20000), ONCE_OK);
    /* Some of these lie where their file takes the place of the last one's. */
    for (key = 0; key < 800; key++) {
        make_op(&ops[0], ONCE_OP_SHOW, key);
        make_op(&ops[1], ONCE_OP_CLAIM, 10000 + key);
        arm(OPENS, 2);
        rc = s->ops->apply(s, list, 2, NULL);
        if (!disarm())
            continue;
        hits++;
        T_OK(rc == ONCE_ESTORE || rc == ONCE_OK);
        T_EQ(ask(other, ONCE_OP_SHOW, 10000 + key, NULL),
             rc == ONCE_OK && ops[1].rc == ONCE_OWNER ? ONCE_IN_FLIGHT
                                                      : ONCE_FREE);
        T_EQ(complete_one(other, 20000 + key, 100), ONCE_OK);
    }
    printf("# %d batches met the shortage\n", hits);
    T_OK(hits > 0);
    all_are_there(other, 0, 800);
    once_store_close(other);
    once_store_close(s);
}

/* ---- What is kept back for claims ------------------------------------------- */

/* The size of the largest segment, and the sum of all. */
static uint64_t largest(const char *path, uint64_t *sum)
{
    DIR *d = opendir(path);
    struct dirent *e;
    struct stat st;
    uint64_t most = 0;

    *sum = 0;
    while (d != NULL && (e = readdir(d)) != NULL)
        if (once__segment_number(e->d_name) != 0 &&
            fstatat(dirfd(d), e->d_name, &st, 0) == 0) {
            *sum += (uint64_t)st.st_size;
            if ((uint64_t)st.st_size > most)
                most = (uint64_t)st.st_size;
        }
    if (d != NULL)
        (void)closedir(d);
    return most;
}

enum { CLAIMS = 400 };

/*
 * What is kept back for many claims after large results is made in segments of
 * the usual size by the compactor, and not by whoever has the lock.
 */
static void a_large_reserve_is_made_in_usual_segments(void)
{
    static once_op ops[CLAIMS];
    once_op *list[CLAIMS];
    char path[100];
    uint64_t sum = 0, before;
    once_store *s;
    uint32_t i;

    new_path(path, sizeof(path));
    s = open_at(path, "?segment=4194304");
    for (i = 0; i < 60; i++)
        T_EQ(complete_one(s, i, 200000), ONCE_OK);
    for (i = 0; i < CLAIMS; i++) {
        list[i] = &ops[i];
        make_op(&ops[i], ONCE_OP_CLAIM, 1000 + i);
    }
    before = zeros_here;
    T_EQ(s->ops->apply(s, list, CLAIMS, NULL), ONCE_OK);
    for (i = 0; i < CLAIMS; i++)
        T_EQ(ops[i].rc, ONCE_OWNER);
    T_EQ(zeros_here - before, 0);
    T_OK(largest(path, &sum) <= 4 * MIB);
    T_OK(sum >= (uint64_t)CLAIMS * 200000); /* it is there */
    printf("# %llu MiB for %d claims\n", (unsigned long long)(sum / MIB),
           CLAIMS);
    T_OK(sum < (uint64_t)CLAIMS * 800000);
    for (i = 0; i < CLAIMS; i++)
        T_EQ(end_claim(s, 1000 + i, ops[i].record.fence, 200000), ONCE_OK);
    T_EQ(zeros_here - before, 0);
    all_are_there(s, 1000, 1000 + CLAIMS);
    T_OK(largest(path, &sum) <= 4 * MIB);
    /* When all is forgotten it goes, as the log moves on through it. */
    now = NOW + 2000000;
    for (i = 0; i < CLAIMS; i++)
        T_EQ(ask(s, ONCE_OP_FORGET, 1000 + i, NULL), ONCE_OK);
    for (i = 0; i < 60; i++)
        T_EQ(ask(s, ONCE_OP_FORGET, i, NULL), ONCE_OK);
    for (i = 0; i < 1000 && sum > 40 * MIB; i++) {
        T_EQ(complete_one(s, 5000, 200000), ONCE_OK);
        now += 2000000;
        T_EQ(ask(s, ONCE_OP_FORGET, 5000, NULL), ONCE_OK);
        T_EQ(s->ops->maintain(s, NULL), ONCE_OK);
        (void)usleep(1000);
        (void)largest(path, &sum);
    }
    T_OK(sum <= 40 * MIB);
    now = NOW;
    once_store_close(s);
}

/* ---- A disk is full, and then it is not -------------------------------------- */

static int fill_disk(const char *place, uint64_t keep)
{
    char file[120];
    int fd, rc;
    uint64_t size = 0;

    (void)snprintf(file, sizeof(file), "%s/other", place);
    fd = open(file, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    do {
        size += 65536;
        rc = posix_fallocate(fd, 0, (off_t)size);
    } while (rc == 0);
    rc = ftruncate(fd, (off_t)(size < keep ? 0 : size - keep));
    return close(fd) | rc;
}

/* Held claims of `size` bytes each keep room back. Another program has the disk
 * until `keep` bytes are left of it, and gives it back. */
static int full_and_freed(const char *place, uint32_t held, size_t size,
                          uint64_t keep, const char *tail)
{
    char path[120], other[120];
    once_store *s;
    uint32_t n = 0;
    int rc, tries;

    if (mount("tmpfs", place, "tmpfs", 0, "size=64m") != 0)
        return 0;
    (void)snprintf(path, sizeof(path), "%s/j", place);
    (void)snprintf(other, sizeof(other), "%s/other", place);
    s = open_at(path, tail);
    for (uint32_t i = 0; i < 20; i++)
        T_EQ(complete_one(s, 100000 + i, size), ONCE_OK);
    for (uint32_t i = 0; i < held / 2; i++)
        T_EQ(ask(s, ONCE_OP_CLAIM, 200000 + i, NULL), ONCE_OWNER);
    T_EQ(fill_disk(place, keep), 0);
    for (uint32_t i = held / 2; i < held; i++) {
        rc = ask(s, ONCE_OP_CLAIM, 200000 + i, NULL);
        T_OK(rc == ONCE_OWNER || rc == ONCE_EFULL);
    }
    for (tries = 0; tries < 50 && n < 20000;) {
        rc = complete_one(s, n, size);
        n += rc == ONCE_OK;
        tries = rc == ONCE_OK ? 0 : tries + 1;
        if (tries > 0) /* the compactor may find room for a smaller segment */
            (void)usleep(5000);
    }
    T_EQ(rc, ONCE_EFULL);
    T_EQ(unlink(other), 0);
    for (tries = 0; rc == ONCE_EFULL && tries < 500; tries++) {
        T_EQ(s->ops->maintain(s, NULL), ONCE_OK);
        rc = ask(s, ONCE_OP_CLAIM, 300000, NULL);
        if (rc == ONCE_EFULL)
            (void)usleep(10000);
    }
    T_EQ(rc, ONCE_OWNER);
    if (rc != ONCE_OWNER)
        printf("#   %u held, results of %zu, %llu kept, %s\n", held, size,
               (unsigned long long)keep, tail);
    once_store_close(s);
    T_EQ(umount(place), 0);
    return 1;
}

static void a_disk_that_was_freed_is_used_again(void)
{
    static const char *const tails[] = {"", "?segment=1048576"};
    static const uint64_t keeps[] = {0, 3 << 20};
    char place[100];

    (void)snprintf(place, sizeof(place), "%s/disk", folder);
    T_EQ(mkdir(place, 0700), 0);
    for (int i = 0; i < 8; i++)
        if (!full_and_freed(place, i & 4 ? 200 : 20, i & 4 ? 20000 : 200000,
                            keeps[i & 1], tails[i >> 1 & 1])) {
            printf("# skipped: no tmpfs to be had: %s\n", strerror(errno));
            break;
        }
}

/* `test_journal_space TEXT` runs those whose name has it. */
#define RUN(test)                                                              \
    do {                                                                       \
        if (strstr(#test, only) != NULL)                                       \
            T_RUN(test);                                                       \
    } while (0)

int main(int argc, char **argv)
{
    const char *only = argc == 2 ? argv[1] : "";
    char command[100];

    (void)snprintf(folder, sizeof(folder), "/tmp/once-space-XXXXXX");
    if (mkdtemp(folder) == NULL)
        return 2;
    RUN_DEATH(who_cannot_repair_leaves_it_to_the_next);
    RUN_DEATH(what_nobody_repaired_is_recovered_when_it_is_opened);
    RUN(a_batch_short_of_descriptors_harms_only_itself);
    RUN(a_large_reserve_is_made_in_usual_segments);
    RUN(a_disk_that_was_freed_is_used_again);
    (void)snprintf(command, sizeof(command), "rm -rf '%s'", folder);
    if (system(command) != 0)
        printf("# %s is still there\n", folder);
    return t_done();
}
