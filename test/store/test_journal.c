/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_journal.c - what only the journal promises: whose folder it opens, what
 * it does when its files, the disk, the power or another process fail it.
 *
 * Writers are real processes and die for real. What reaches the disk is seen
 * through the linker (--wrap): a call can be made to fail, to be the last one
 * of its process, or be written down, so that disks can be built as a power cut
 * would leave them: of what was not flushed any sector may be there, or not.
 */
#include <assert.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <once/store.h>

#include "store/journal/journal.h"
#include "t.h"

#define BIRTH UINT64_C(1700000000000)

static char folder[64];
static unsigned folders;

static uint64_t now_ms(void *user)
{
    return user != NULL ? *(uint64_t *)user : BIRTH;
}

static void new_path(char *out, size_t size)
{
    (void)snprintf(out, size, "%s/%u", folder, folders++);
}

/* ---- What the linker sends here ------------------------------------------- */

/* One thing that happened to the disk, or that was acknowledged. */
enum deed { WRITE, SIZE, FLUSH, NAME, RENAME, REMOVE, FLUSH_NAMES, ACK };

struct event {
    enum deed what;
    ino_t node;
    uint64_t offset; /* FLUSH: number of the last event that it covers */
    size_t size;
    uint8_t *bytes;
    char name[32], to[32];
    uint32_t key; /* ACK */
};

static struct {
    pthread_mutex_t lock;
    int recording;
    struct event *events;
    size_t count, room;
    atomic_int countdown; /* of writes and flushes; 0: off       */
    int then;             /* DIE, TEAR, FAIL, STOP               */
    atomic_int met;       /* how many there were                 */
} disk = {.lock = PTHREAD_MUTEX_INITIALIZER};

enum {
    DIE = 1,
    DIE_FLUSH,
    DIE_NEW, /* behind the header of a new segment */
    TEAR,
    FAIL,
    FAIL_FLUSH,
    FAIL_NEW,
    FAIL_MEMORY, /* no more shared memory */
    STOP,
    STOP_FLUSH
};

ssize_t __real_pwrite(int fd, const void *bytes, size_t size, off_t offset);
ssize_t __wrap_pwrite(int fd, const void *bytes, size_t size, off_t offset);
int __real_fdatasync(int fd);
int __wrap_fdatasync(int fd);
int __real_fsync(int fd);
int __wrap_fsync(int fd);
int __real_openat(int dir, const char *name, int flags, ...);
int __wrap_openat(int dir, const char *name, int flags, ...);
int __real_renameat(int from_dir, const char *from, int to_dir, const char *to);
int __wrap_renameat(int from_dir, const char *from, int to_dir, const char *to);
int __real_unlinkat(int dir, const char *name, int flags);
int __wrap_unlinkat(int dir, const char *name, int flags);
int __real_posix_fallocate(int fd, off_t offset, off_t size);
int __wrap_posix_fallocate(int fd, off_t offset, off_t size);

static ino_t node_of(int fd)
{
    struct stat st;

    return fstat(fd, &st) == 0 ? st.st_ino : 0;
}

/* With the lock. */
static struct event *add_event(enum deed what, ino_t node)
{
    struct event *e;

    if (disk.count == disk.room) {
        disk.room = disk.room ? 2 * disk.room : 1024;
        disk.events = realloc(disk.events, disk.room * sizeof(*e));
        assert(disk.events != NULL);
    }
    e = &disk.events[disk.count++];
    memset(e, 0, sizeof(*e));
    e->what = what;
    e->node = node;
    return e;
}

/* 0, or what shall become of this call. */
static int is_time(int flush)
{
    atomic_fetch_add(&disk.met, 1);
    if (!flush && (disk.then == FAIL_FLUSH || disk.then == DIE_FLUSH ||
                   disk.then == STOP_FLUSH))
        return 0;
    if (atomic_load(&disk.countdown) == 0 ||
        atomic_fetch_sub(&disk.countdown, 1) != 1)
        return 0;
    if (disk.then == DIE || disk.then == DIE_FLUSH)
        (void)kill(getpid(), SIGKILL);
    if (disk.then == STOP || disk.then == STOP_FLUSH)
        (void)kill(getpid(), SIGSTOP);
    return disk.then;
}

static void at_call(int then, int count)
{
    disk.then = then;
    atomic_store(&disk.met, 0);
    atomic_store(&disk.countdown, count);
}

/* A child must not be born while a keeper holds this: only where none is. */
static void disk_lock(void)
{
    if (disk.recording)
        (void)pthread_mutex_lock(&disk.lock);
}

static void disk_unlock(void)
{
    if (disk.recording)
        (void)pthread_mutex_unlock(&disk.lock);
}

ssize_t __wrap_pwrite(int fd, const void *bytes, size_t size, off_t offset)
{
    int then = is_time(0);
    ssize_t n;
    struct event *e;

    if (disk.then == FAIL_NEW && offset == 0 && size == ONCE__JOURNAL_HEADER)
        at_call(FAIL_FLUSH, 1); /* the first one of a new segment */
    if (then == TEAR) {
        (void)__real_pwrite(fd, bytes, size / 2, offset);
        (void)kill(getpid(), SIGKILL);
    }
    if (then == FAIL) {
        errno = EIO;
        return -1;
    }
    disk_lock();
    n = __real_pwrite(fd, bytes, size, offset);
    if (disk.then == DIE_NEW && offset == 0 && size == ONCE__JOURNAL_HEADER)
        (void)kill(getpid(), SIGKILL);
    if (disk.recording && n > 0) {
        e = add_event(WRITE, node_of(fd));
        e->offset = (uint64_t)offset;
        e->size = (size_t)n;
        e->bytes = malloc((size_t)n);
        assert(e->bytes != NULL);
        memcpy(e->bytes, bytes, (size_t)n);
    }
    disk_unlock();
    return n;
}

static int flush(int fd, int (*real)(int))
{
    struct stat st;
    struct event *e;
    size_t upto;
    int then = is_time(1), rc;

    if (then == FAIL || then == FAIL_FLUSH) {
        errno = EIO;
        return -1;
    }
    if (then == TEAR)
        (void)kill(getpid(), SIGKILL);
    disk_lock();
    upto = disk.count;
    disk_unlock();
    /* While recording nothing is flushed: the models do that. */
    rc = disk.recording ? 0 : real(fd);
    disk_lock();
    if (disk.recording && rc == 0 && fstat(fd, &st) == 0) {
        e = add_event(S_ISDIR(st.st_mode) ? FLUSH_NAMES : FLUSH, st.st_ino);
        e->offset = upto;
    }
    disk_unlock();
    return rc;
}

int __wrap_fdatasync(int fd)
{
    return flush(fd, __real_fdatasync);
}

int __wrap_fsync(int fd)
{
    return flush(fd, __real_fsync);
}

int __wrap_openat(int dir, const char *name, int flags, ...)
{
    mode_t mode = 0;
    va_list args;
    int fd;

    if (flags & O_CREAT) {
        va_start(args, flags);
        mode = va_arg(args, mode_t);
        va_end(args);
    }
    disk_lock();
    fd = __real_openat(dir, name, flags, mode);
    if (disk.recording && fd >= 0 && (flags & O_CREAT))
        (void)snprintf(add_event(NAME, node_of(fd))->name, 32, "%s", name);
    disk_unlock();
    return fd;
}

int __wrap_renameat(int from_dir, const char *from, int to_dir, const char *to)
{
    struct event *e;
    int rc;

    disk_lock();
    rc = __real_renameat(from_dir, from, to_dir, to);
    if (disk.recording && rc == 0) {
        e = add_event(RENAME, 0);
        (void)snprintf(e->name, sizeof(e->name), "%s", from);
        (void)snprintf(e->to, sizeof(e->to), "%s", to);
    }
    disk_unlock();
    return rc;
}

int __wrap_unlinkat(int dir, const char *name, int flags)
{
    int rc;

    disk_lock();
    rc = __real_unlinkat(dir, name, flags);
    if (disk.recording && rc == 0)
        (void)snprintf(add_event(REMOVE, 0)->name, 32, "%s", name);
    disk_unlock();
    return rc;
}

/* The shared memory is no file of ours: its events have a node without name. */
int __wrap_posix_fallocate(int fd, off_t offset, off_t size)
{
    char name[32], file[16] = "";
    int rc;

    (void)snprintf(name, sizeof(name), "/proc/self/fd/%d", fd);
    if (disk.then == FAIL_MEMORY &&
        readlink(name, file, sizeof(file) - 1) > 0 &&
        strncmp(file, "/dev/shm/", 9) == 0)
        return ENOSPC;
    disk_lock();
    rc = __real_posix_fallocate(fd, offset, size);
    if (disk.recording && rc == 0)
        add_event(SIZE, node_of(fd))->size = (size_t)(offset + size);
    disk_unlock();
    return rc;
}

/* ---- Stores ---------------------------------------------------------------- */

static int try_open(const char *path, const char *tail, uint64_t *clock,
                    once_error *err, once_store **out)
{
    once_store_options options = {sizeof(options), now_ms, clock, 5000, 0};
    char url[256];

    (void)snprintf(url, sizeof(url), "journal:%s%s", path, tail);
    return once_store_open(url, &options, err, out);
}

static once_store *must_open_with(const char *path, const char *tail,
                                  uint64_t *clock)
{
    once_store *s = NULL;
    once_error err = {0, ""};

    if (try_open(path, tail, clock, &err, &s) != ONCE_OK) {
        printf("# %s\n", err.text);
        fflush(stdout);
        abort();
    }
    return s;
}

static once_store *must_open(const char *path)
{
    return must_open_with(path, "?segment=65536", NULL);
}

/* What a refused open says. */
static void refused(const char *path, int code, const char *text)
{
    once_store *s = NULL;
    once_error err = {0, ""};

    T_EQ(try_open(path, "?segment=65536", NULL, &err, &s), code);
    T_EQ(err.code, code);
    T_OK(s == NULL);
    if (strstr(err.text, text) == NULL)
        T_STR(err.text, text);
    once_store_close(s);
}

/* The n-th key of a test. */
static void name_of(uint8_t *name, uint32_t n)
{
    memset(name, 0x5a, ONCE_NAME_SIZE);
    n = n * 2654435761u; /* spread them, as a hash does */
    memcpy(name, &n, sizeof(n));
}

static void make_op(once_op *op, int verb, uint32_t n)
{
    memset(op, 0, sizeof(*op));
    op->verb = verb;
    op->kind = ONCE_SUCCESS;
    op->lease_ms = 1000;
    op->keep_ms = 5000;
    name_of(op->name, n);
    memset(op->token, 0x11, ONCE_TOKEN_SIZE);
    memset(op->fingerprint, 0x22, ONCE_FINGERPRINT_SIZE);
}

static int apply_one(once_store *s, once_op *op, once_error *err)
{
    once_op *ops[1] = {op};

    return s->ops->apply(s, ops, 1, err);
}

static int verb_on(once_store *s, int verb, uint32_t n)
{
    once_op op;
    int rc;

    make_op(&op, verb, n);
    rc = apply_one(s, &op, NULL);
    return rc == ONCE_OK ? op.rc : rc;
}

enum { BULKY = 700000 };

/* The result of key `n`: longer for some, and different for all. */
static once_bytes result_of(uint32_t n)
{
    static uint8_t bytes[15000];
    size_t i, size = 4 + n * 7 % 600 + (n % 13 == 0 ? 2000 : 0);

    if (n >= BULKY)
        size = sizeof(bytes);

    for (i = 0; i < size; i++)
        bytes[i] = (uint8_t)(n + i * (n % 7 + 1));
    return (once_bytes){bytes, size};
}

/* Claims key `n` and completes it. ONCE_OK, or what went wrong. */
static int complete_one(once_store *s, uint32_t n, uint64_t keep_ms)
{
    once_op op;
    uint64_t fence;
    int rc;

    make_op(&op, ONCE_OP_CLAIM, n);
    rc = apply_one(s, &op, NULL);
    if (rc != ONCE_OK || op.rc != ONCE_OWNER)
        return rc != ONCE_OK ? rc : op.rc;
    fence = op.record.fence;
    make_op(&op, ONCE_OP_COMPLETE, n);
    op.fence = fence;
    op.keep_ms = keep_ms;
    op.result = result_of(n);
    rc = apply_one(s, &op, NULL);
    return rc == ONCE_OK ? op.rc : rc;
}

static void complete_all(once_store *s, uint32_t from, uint32_t to)
{
    for (; from < to; from++)
        T_EQ(complete_one(s, from, 5000), ONCE_OK);
}

/* 1 if key `n` is replayed with its very bytes. */
static int is_there(once_store *s, uint32_t n)
{
    once_bytes want = result_of(n);
    once_op op;

    make_op(&op, ONCE_OP_SHOW, n);
    return apply_one(s, &op, NULL) == ONCE_OK && op.rc == ONCE_REPLAY &&
           op.record.result.size == want.size &&
           memcmp(op.record.result.data, want.data, want.size) == 0;
}

static void all_are_there(once_store *s, uint32_t from, uint32_t to)
{
    for (; from < to; from++)
        if (!T_OK(is_there(s, from)))
            printf("#   key %u\n", from);
}

/* ---- Files ----------------------------------------------------------------- */

static void copy_folder(const char *from, const char *to)
{
    char command[300];

    (void)snprintf(command, sizeof(command), "rm -rf '%s'; cp -a '%s' '%s'", to,
                   from, to);
    T_EQ(system(command), 0);
}

static void segment_path(const char *path, uint64_t id, char *out, size_t size)
{
    char name[ONCE__SEGMENT_NAME];

    once__segment_name(id, name);
    (void)snprintf(out, size, "%s/%s", path, name);
}

static void id_of(const char *path, uint8_t id[ONCE__JOURNAL_ID])
{
    char door[160];
    int fd;

    (void)snprintf(door, sizeof(door), "%s/lock", path);
    fd = open(door, O_RDONLY);
    T_EQ(pread(fd, id, ONCE__JOURNAL_ID, 16), ONCE__JOURNAL_ID);
    (void)close(fd);
}

/* As after a new start of the machine: only the disk is left. */
static void forget_memory(const char *path)
{
    uint8_t id[ONCE__JOURNAL_ID];

    id_of(path, id);
    once__shared_remove(id);
}

static int memory_exists(const uint8_t id[ONCE__JOURNAL_ID])
{
    char name[80];
    int i, n = snprintf(name, sizeof(name), "/dev/shm/once-");

    for (i = 0; i < ONCE__JOURNAL_ID; i++)
        n += snprintf(name + n, sizeof(name) - (size_t)n, "%02x", id[i]);
    return access(name, F_OK) == 0;
}

static void poke(const char *file, uint64_t offset, const void *bytes,
                 size_t size)
{
    int fd = open(file, O_WRONLY | O_CLOEXEC);

    T_OK(fd >= 0);
    T_EQ(__real_pwrite(fd, bytes, size, (off_t)offset), size);
    (void)close(fd);
}

static void flip(const char *file, uint64_t offset)
{
    uint8_t byte = 0;
    int fd = open(file, O_RDONLY | O_CLOEXEC);

    T_EQ(pread(fd, &byte, 1, (off_t)offset), 1);
    (void)close(fd);
    byte ^= 0x40;
    poke(file, offset, &byte, 1);
}

struct lines {
    int n;
    char last[512];
    char all[4096];
};

static void take_line(void *user, const char *text)
{
    struct lines *l = user;
    size_t used = strlen(l->all);

    l->n++;
    (void)snprintf(l->last, sizeof(l->last), "%s", text);
    (void)snprintf(l->all + used, sizeof(l->all) - used, "%s\n", text);
}

static int verify(const char *path, struct lines *l)
{
    memset(l, 0, sizeof(*l));
    return once__journal_verify(path, take_line, l, NULL);
}

/* Where the log of `path` ends: behind the last frame that dump shows. */
static uint64_t end_of(const char *path)
{
    struct once__walk w;
    struct once__frame f;
    struct once__segment_head h;
    uint8_t block[ONCE__JOURNAL_HEADER];
    uint64_t lowest, highest, at = 0;
    char file[160];
    int dir = open(path, O_RDONLY), fd;

    T_EQ(once__segment_range(dir, &lowest, &highest), 0);
    (void)close(dir);
    for (; at == 0 && highest >= lowest && highest > 0; highest--) {
        segment_path(path, highest, file, sizeof(file));
        fd = open(file, O_RDONLY);
        if (once__journal_read(fd, block, sizeof(block), 0) == 1 &&
            once__segment_head_get(block, highest, &h) == ONCE_OK) {
            T_EQ(once__walk_begin(&w, fd, highest, ONCE__JOURNAL_HEADER,
                                  UINT64_C(1) << 30, h.generation),
                 ONCE_OK);
            w.end = (uint64_t)lseek(fd, 0, SEEK_END);
            while (once__walk_next(&w, &f) == 1)
                ;
            at = once__journal_at(highest, w.offset);
            once__walk_end(&w);
        }
        (void)close(fd);
    }
    return at;
}

/* ---- Children -------------------------------------------------------------- */

/* Runs `what` in a child that ends without closing anything. */
static int in_child(void (*what)(const char *path, void *user),
                    const char *path, void *user)
{
    int status;
    pid_t pid;

    fflush(stdout);
    pid = fork();
    if (pid == 0) {
        t__bad = 0;
        what(path, user);
        fflush(stdout);
        _exit(t__bad != 0);
    }
    T_OK(waitpid(pid, &status, 0) == pid);
    return status;
}

/* ---- Whose folder is it? --------------------------------------------------- */

static void a_new_folder_is_for_its_owner_alone(void)
{
    uint8_t id[ONCE__JOURNAL_ID];
    char path[128], file[160];
    struct stat st;
    once_store *s;

    new_path(path, sizeof(path));
    s = must_open(path);
    T_OK(stat(path, &st) == 0 && (st.st_mode & 07777) == 0700);
    segment_path(path, 1, file, sizeof(file));
    T_OK(stat(file, &st) == 0 && (st.st_mode & 0777) == 0600);
    (void)snprintf(file, sizeof(file), "%s/lock", path);
    T_OK(stat(file, &st) == 0 && (st.st_mode & 0777) == 0600);
    id_of(path, id);
    T_OK(memory_exists(id));
    once_store_close(s);
    T_OK(!memory_exists(id));
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
    once_store_options options = {sizeof(options), now_ms, NULL, 100, 1};
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
    uint8_t id[ONCE__JOURNAL_ID];
    char path[128];
    once_store *a, *b;
    int before, round;

    new_path(path, sizeof(path));
    once_store_close(must_open(path));
    before = count_files("/proc/self/fd");
    for (round = 0; round < 10; round++) {
        a = must_open(path);
        id_of(path, id);
        b = must_open(path);
        complete_all(round % 2 ? a : b, (uint32_t)round * 100,
                     (uint32_t)round * 100 + 100);
        once_store_close(round % 3 ? a : b);
        T_OK(memory_exists(id));
        once_store_close(round % 3 ? b : a);
        T_OK(!memory_exists(id));
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

enum { CLAIMS = 60, HOLE = 5 };

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
    s = must_open(path);
    for (i = 100; i < 100 + CLAIMS; i++)
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
    T_OK(n * ONCE__FRAME_HEAD / length + HOLE < CLAIMS && n < CLAIMS);
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
    T_OK(refusals > 10 && damaged > 10 && harmless * 20 < refusals);
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
        refused(image, ONCE_ECORRUPT, "does not check");
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
    refused(path, ONCE_ECORRUPT, "does not check");
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
    j->memory = -1;
    j->path = (char *)(uintptr_t)path;
    id_of(path, id);
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
    (void)usleep(200000); /* its keeper has nothing to flush any more */
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
    (void)usleep(200000); /* its keeper has nothing to write any more */
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
                once__journal_read(fd, head, ONCE__JOURNAL_HEADER, 0) == 1 &&
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
    refused(path, ONCE_ECORRUPT, "goes on behind its end");
    T_OK(verify(path, &l) > 0);
    T_OK(strstr(l.all, "goes on behind its end") != NULL);
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
    (void)usleep(100000); /* the keeper has made its segments */
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
        if (tries > 0) /* the keeper may find room for a smaller segment */
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
            T_EQ(s->ops->tend(s, NULL), ONCE_OK);
    } while (rc == ONCE_OK && n - from < 100000);
    T_EQ(rc, ONCE_EFULL);
    printf("# %u records fit\n", n - from);
    *clock += 5000;
    for (i = from; i < n; i++)
        (void)verb_on(s, ONCE_OP_FORGET, i);
    for (tries = 0; rc != ONCE_OWNER && tries < 500; tries++) {
        T_EQ(s->ops->tend(s, NULL), ONCE_OK);
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
        T_EQ(s->ops->tend(s, NULL), ONCE_OK);
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
            T_EQ(s->ops->tend(s, NULL), ONCE_OK);
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
        if (i % 10 == 0 && s->ops->tend(s, NULL) != ONCE_OK)
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
    char path[128], file[80];
    uint8_t id[ONCE__JOURNAL_ID];
    uint64_t clock = BIRTH + 5000;
    struct seen due = {0};
    struct stat st;
    once_store *s;
    int i, n;

    new_path(path, sizeof(path));
    T_EQ(in_child(fill, path, NULL), 0);
    s = must_open_with(path, "", &clock);
    T_EQ(list_all(s, 1000), MANY);
    T_EQ(list_all(s, 1 << 20), MANY);
    T_EQ(s->ops->scan(s, ONCE_SCAN_KEEP, NULL, 1 << 20, see, &due, NULL), MANY);
    T_EQ(due.n, MANY);
    id_of(path, id);
    n = snprintf(file, sizeof(file), "/dev/shm/once-");
    for (i = 0; i < ONCE__JOURNAL_ID; i++)
        n += snprintf(file + n, sizeof(file) - (size_t)n, "%02x", id[i]);
    T_EQ(stat(file, &st), 0);
    printf("# %" PRId64 " bytes of shared memory a record\n",
           (int64_t)st.st_blocks * 512 / MANY);
    T_OK((uint64_t)st.st_blocks * 512 < (uint64_t)MANY * 200);
    once_store_close(s);
}

/* ---- Power cuts ------------------------------------------------------------ */

enum { NODES = 4000, NAMES = 64, SECTOR = 512 };

/* A file as the disk has it, and what has not reached it yet. */
struct node {
    ino_t ino;
    uint8_t *bytes;
    size_t size;
    size_t *waiting; /* numbers of events */
    size_t count;
};

struct name {
    char name[32];
    size_t node; /* 1 + index, or 0: free */
};

/* The disk at one moment. `sure` are names that survive for certain. */
struct model {
    struct node nodes[NODES];
    size_t count;
    struct name names[NAMES], sure[NAMES];
    uint32_t random;
};

static uint32_t draw(struct model *m)
{
    m->random = m->random * 1664525u + 1013904223u;
    return m->random >> 8;
}

static size_t model_node(struct model *m, ino_t ino)
{
    size_t i;

    for (i = m->count; i-- > 0;) /* numbers are used again: the last counts */
        if (m->nodes[i].ino == ino)
            return i;
    assert(m->count < NODES);
    m->nodes[m->count].ino = ino;
    return m->count++;
}

static struct name *model_name(struct model *m, const char *name)
{
    size_t i, free_at = NAMES;

    for (i = 0; i < NAMES; i++) {
        if (m->names[i].node != 0 && strcmp(m->names[i].name, name) == 0)
            return &m->names[i];
        if (m->names[i].node == 0)
            free_at = i;
    }
    assert(free_at < NAMES);
    (void)snprintf(m->names[free_at].name, 32, "%s", name);
    return &m->names[free_at];
}

static void resize(struct node *n, size_t size)
{
    if (size <= n->size)
        return;
    n->bytes = realloc(n->bytes, size);
    assert(n->bytes != NULL);
    memset(n->bytes + n->size, 0, size - n->size);
    n->size = size;
}

static void apply_write(struct node *n, const struct event *e)
{
    resize(n, e->offset + e->size);
    memcpy(n->bytes + e->offset, e->bytes, e->size);
}

static void model_flush(struct model *m, const struct event *e)
{
    struct node *n = &m->nodes[model_node(m, e->node)];
    size_t i, left = 0;

    for (i = 0; i < n->count; i++)
        if (n->waiting[i] < e->offset)
            apply_write(n, &disk.events[n->waiting[i]]);
        else
            n->waiting[left++] = n->waiting[i];
    n->count = left;
}

static void model_step(struct model *m, size_t number)
{
    const struct event *e = &disk.events[number];
    struct node *n;
    struct name *name;

    switch (e->what) {
    case WRITE:
        n = &m->nodes[model_node(m, e->node)];
        n->waiting = realloc(n->waiting, (n->count + 1) * sizeof(*n->waiting));
        assert(n->waiting != NULL);
        n->waiting[n->count++] = number;
        break;
    case SIZE:
        resize(&m->nodes[model_node(m, e->node)], e->size);
        break;
    case FLUSH:
        model_flush(m, e);
        break;
    case NAME: /* a new file, also if its number was used before */
        assert(m->count < NODES);
        m->nodes[m->count].ino = e->node;
        model_name(m, e->name)->node = ++m->count;
        break;
    case RENAME:
        name = model_name(m, e->name);
        number = name->node;
        name->node = 0;
        model_name(m, e->to)->node = number;
        break;
    case REMOVE:
        model_name(m, e->name)->node = 0;
        break;
    case FLUSH_NAMES:
        memcpy(m->sure, m->names, sizeof(m->sure));
        break;
    case ACK:
        break;
    }
}

/* Of what waits, each sector is there or not; a file's length may be old. */
static void write_image(struct model *m, const struct node *n, int fd)
{
    const struct event *e;
    size_t i, at, size;

    if (n->size > 0)
        T_EQ(__real_pwrite(fd, n->bytes, n->size, 0), n->size);
    for (i = 0; i < n->count; i++) {
        e = &disk.events[n->waiting[i]];
        for (at = 0; at < e->size; at += size) {
            size = SECTOR - (e->offset + at) % SECTOR;
            size = size < e->size - at ? size : e->size - at;
            if (draw(m) % 3 != 0)
                T_EQ(__real_pwrite(fd, e->bytes + at, size,
                                   (off_t)(e->offset + at)),
                     size);
        }
    }
}

static void build_image(struct model *m, const char *image)
{
    const struct name *names = draw(m) % 2 ? m->names : m->sure;
    char file[200];
    size_t i;
    int fd;

    (void)snprintf(file, sizeof(file), "rm -rf '%s'", image);
    T_EQ(system(file), 0);
    T_EQ(mkdir(image, 0700), 0);
    for (i = 0; i < NAMES; i++) {
        if (names[i].node == 0)
            continue;
        (void)snprintf(file, sizeof(file), "%.120s/%.31s", image,
                       names[i].name);
        fd = open(file, O_RDWR | O_CREAT | O_TRUNC, 0600);
        assert(fd >= 0);
        write_image(m, &m->nodes[names[i].node - 1], fd);
        (void)close(fd);
    }
}

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
            T_EQ(s->ops->tend(s, NULL), ONCE_OK);
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

static void remove_folder(void)
{
    char command[128];

    (void)snprintf(command, sizeof(command), "rm -rf '%s'", folder);
    if (system(command) != 0)
        printf("# %s is still there\n", folder);
}

/* `test_journal TEXT` runs those whose name has it. */
#define RUN(test)                                                              \
    do {                                                                       \
        if (strstr(#test, only) != NULL)                                       \
            T_RUN(test);                                                       \
    } while (0)

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
