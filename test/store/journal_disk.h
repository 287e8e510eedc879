/* SPDX-License-Identifier: Apache-2.0 */
/*
 * journal_disk.h - what the tests of the journal share.
 *
 * What reaches the disk is seen through the linker (--wrap): a call can be made
 * to fail, to be the last one of its process, or be written down, so that disks
 * can be built as a power cut would leave them: of what was not flushed any
 * sector may be there, or not.
 *
 * Each test program includes this file once and uses what it needs of it.
 */
#ifndef TEST_STORE_JOURNAL_DISK_H
#define TEST_STORE_JOURNAL_DISK_H

#pragma GCC diagnostic ignored "-Wunused-function"

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
#include <time.h>
#include <unistd.h>

#include <once/store.h>

#include "calls/store/journal/handle.h"
#include "calls/store/journal/walk.h"
#include "ops.h"
#include "robust.h"
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
    atomic_int recording;
    struct event *events;
    size_t count, room;
    atomic_int countdown; /* of writes and flushes; 0: off       */
    atomic_int then;      /* DIE, TEAR, FAIL, STOP               */
    atomic_int met;       /* how many there were                 */
} disk = {.lock = PTHREAD_MUTEX_INITIALIZER};

enum {
    DIE = 1,
    DIE_FLUSH,
    DIE_NEW,  /* behind the header of a new segment */
    DIE_DROP, /* when a segment is about to go */
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
ssize_t __real_pread(int fd, void *bytes, size_t size, off_t offset);
ssize_t __wrap_pread(int fd, void *bytes, size_t size, off_t offset);
int __real_nanosleep(const struct timespec *time, struct timespec *left);
int __wrap_nanosleep(const struct timespec *time, struct timespec *left);
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
void *__real_mmap(void *at, size_t size, int what, int how, int fd,
                  off_t offset);
void *__wrap_mmap(void *at, size_t size, int what, int how, int fd,
                  off_t offset);

/* Called before each read, and instead of each pause. */
static void (*on_read)(void);
static void (*on_pause)(void);

ssize_t __wrap_pread(int fd, void *bytes, size_t size, off_t offset)
{
    if (on_read != NULL)
        on_read();
    return __real_pread(fd, bytes, size, offset);
}

int __wrap_nanosleep(const struct timespec *time, struct timespec *left)
{
    if (on_pause == NULL)
        return __real_nanosleep(time, left);
    on_pause();
    return 0;
}

/* A file is mapped from multiples of that on. */
static off_t kernel_page = 1;

void *__wrap_mmap(void *at, size_t size, int what, int how, int fd,
                  off_t offset)
{
    if (offset % kernel_page == 0)
        return __real_mmap(at, size, what, how, fd, offset);
    errno = EINVAL;
    return MAP_FAILED;
}

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

/* 1 if this call is recorded. A child must not be born while a compactor holds
 * the lock: only where none is. */
static int disk_lock(void)
{
    int recorded = disk.recording;

    if (recorded)
        (void)pthread_mutex_lock(&disk.lock);
    return recorded;
}

static void disk_unlock(int recorded)
{
    if (recorded)
        (void)pthread_mutex_unlock(&disk.lock);
}

ssize_t __wrap_pwrite(int fd, const void *bytes, size_t size, off_t offset)
{
    int then = is_time(0), recorded;
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
    recorded = disk_lock();
    n = __real_pwrite(fd, bytes, size, offset);
    if (disk.then == DIE_NEW && offset == 0 && size == ONCE__JOURNAL_HEADER)
        (void)kill(getpid(), SIGKILL);
    if (recorded && n > 0) {
        e = add_event(WRITE, node_of(fd));
        e->offset = (uint64_t)offset;
        e->size = (size_t)n;
        e->bytes = malloc((size_t)n);
        assert(e->bytes != NULL);
        memcpy(e->bytes, bytes, (size_t)n);
    }
    disk_unlock(recorded);
    return n;
}

static int flush(int fd, int (*real)(int))
{
    struct stat st;
    struct event *e;
    size_t upto;
    int then = is_time(1), recorded, rc;

    if (then == FAIL || then == FAIL_FLUSH) {
        errno = EIO;
        return -1;
    }
    if (then == TEAR)
        (void)kill(getpid(), SIGKILL);
    recorded = disk_lock();
    upto = recorded ? disk.count : 0;
    disk_unlock(recorded);
    /* While recording nothing is flushed: the models do that. */
    rc = recorded ? 0 : real(fd);
    recorded = disk_lock();
    if (recorded && rc == 0 && fstat(fd, &st) == 0) {
        e = add_event(S_ISDIR(st.st_mode) ? FLUSH_NAMES : FLUSH, st.st_ino);
        e->offset = upto;
    }
    disk_unlock(recorded);
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
    int fd, recorded;

    if (flags & O_CREAT) {
        va_start(args, flags);
        mode = va_arg(args, mode_t);
        va_end(args);
    }
    recorded = disk_lock();
    fd = __real_openat(dir, name, flags, mode);
    if (recorded && fd >= 0 && (flags & O_CREAT))
        (void)snprintf(add_event(NAME, node_of(fd))->name, 32, "%s", name);
    disk_unlock(recorded);
    return fd;
}

int __wrap_renameat(int from_dir, const char *from, int to_dir, const char *to)
{
    struct event *e;
    int recorded, rc;

    if (disk.then == DIE_DROP && once__segment_number(from) != 0)
        (void)kill(getpid(), SIGKILL);
    recorded = disk_lock();
    rc = __real_renameat(from_dir, from, to_dir, to);
    if (recorded && rc == 0) {
        e = add_event(RENAME, 0);
        (void)snprintf(e->name, sizeof(e->name), "%s", from);
        (void)snprintf(e->to, sizeof(e->to), "%s", to);
    }
    disk_unlock(recorded);
    return rc;
}

int __wrap_unlinkat(int dir, const char *name, int flags)
{
    int recorded, rc;

    if (disk.then == DIE_DROP && once__segment_number(name) != 0)
        (void)kill(getpid(), SIGKILL);
    recorded = disk_lock();
    rc = __real_unlinkat(dir, name, flags);
    if (recorded && rc == 0)
        (void)snprintf(add_event(REMOVE, 0)->name, 32, "%s", name);
    disk_unlock(recorded);
    return rc;
}

/* The shared memory is no file of ours: its events have a node without name. */
int __wrap_posix_fallocate(int fd, off_t offset, off_t size)
{
    char name[32], file[16] = "";
    int recorded, rc;

    (void)snprintf(name, sizeof(name), "/proc/self/fd/%d", fd);
    if (disk.then == FAIL_MEMORY &&
        readlink(name, file, sizeof(file) - 1) > 0 &&
        strncmp(file, "/dev/shm/", 9) == 0)
        return ENOSPC;
    recorded = disk_lock();
    rc = __real_posix_fallocate(fd, offset, size);
    if (recorded && rc == 0)
        add_event(SIZE, node_of(fd))->size = (size_t)(offset + size);
    disk_unlock(recorded);
    return rc;
}

/* ---- Stores ---------------------------------------------------------------- */

static int try_open(const char *path, const char *tail, uint64_t *clock,
                    once_error *err, once_store **out)
{
    once_store_options options = {
        sizeof(options), now_ms, clock, 5000, 1, NULL, NULL, 0};
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
    return complete_with(s, n, keep_ms, result_of(n));
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

static int count_state(void *user, const uint8_t *name, const once_record *r)
{
    once_counts *n = user;

    (void)name;
    n->claimed += r->state == ONCE_CLAIMED;
    n->dispatched += r->state == ONCE_DISPATCHED;
    n->indeterminate += r->state == ONCE_INDETERMINATE;
    n->rest += r->state == ONCE_COMPLETED || r->state == ONCE_ABSENT;
    return 0;
}

/* What is counted all the time is what a walk through all finds, and what the
 * scans by state show. */
static void counts_agree(once_store *s, once_counts *out)
{
    once_counts all = {.rest = 0}, some = {.rest = 0};

    T_EQ(s->ops->count(s, out, NULL), ONCE_OK);
    T_OK(s->ops->scan(s, ONCE_SCAN_ALL, NULL, INT32_MAX, count_state, &all,
                      NULL) >= 0);
    T_OK(s->ops->scan(s, ONCE_SCAN_WAITING, NULL, INT32_MAX, count_state, &some,
                      NULL) >= 0);
    T_OK(s->ops->scan(s, ONCE_SCAN_LIVE, NULL, INT32_MAX, count_state, &some,
                      NULL) >= 0);
    T_EQ(out->claimed, all.claimed);
    T_EQ(out->dispatched, all.dispatched);
    T_EQ(out->indeterminate, all.indeterminate);
    T_EQ(out->rest, all.rest);
    T_EQ(some.claimed, all.claimed);
    T_EQ(some.dispatched, all.dispatched);
    T_EQ(some.indeterminate, all.indeterminate);
    T_EQ(some.rest, 0);
}

/* ---- Files ----------------------------------------------------------------- */

static void copy_folder(const char *from, const char *to)
{
    char command[500];

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

/* A view of `path` of which no more is known than which file its lock is, and
 * the random part of its shared memory's name. Its lock is to be closed. */
static void view_of(const char *path, struct once__journal *j,
                    uint8_t id[ONCE__JOURNAL_ID])
{
    char door[160];

    once__handle_init(j);
    j->path = (char *)(uintptr_t)path;
    (void)snprintf(door, sizeof(door), "%s/lock", path);
    j->lock_fd = open(door, O_RDONLY | O_CLOEXEC);
    T_EQ(once__file_identify(j->lock_fd, &j->self), 0);
    T_EQ(pread(j->lock_fd, id, ONCE__JOURNAL_ID, 16), ONCE__JOURNAL_ID);
}

enum { MEMORY_PATH = ONCE__SHARED_NAME + 8 };

/* The file of its shared memory. */
static void memory_of(const char *path, char out[MEMORY_PATH])
{
    uint8_t id[ONCE__JOURNAL_ID];
    struct once__journal j;
    char name[ONCE__SHARED_NAME];

    view_of(path, &j, id);
    (void)close(j.lock_fd);
    once__shared_name(&j.self, id, name);
    (void)snprintf(out, MEMORY_PATH, "/dev/shm%s", name);
}

/* As after a new start of the machine: only the disk is left. */
static void forget_memory(const char *path)
{
    char file[MEMORY_PATH];

    memory_of(path, file);
    (void)unlink(file);
}

static int exists(const char *file)
{
    return access(file, F_OK) == 0;
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
        if (once__file_read(fd, block, sizeof(block), 0) == 1 &&
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

/* ---- The program ----------------------------------------------------------- */

static void remove_folder(void)
{
    char command[128];

    (void)snprintf(command, sizeof(command), "rm -rf '%s'", folder);
    if (system(command) != 0)
        printf("# %s is still there\n", folder);
}

/* ---- Writers and what they left ------------------------------------------ */

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

static void forget_all(once_store *s, uint32_t from, uint32_t to)
{
    for (; from < to; from++)
        T_EQ(verb_on(s, ONCE_OP_FORGET, from), ONCE_OK);
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

struct seen {
    uint32_t n;
    int in_order;
    uint8_t last[ONCE_NAME_SIZE];
};

/* ---- Tests -------------------------------------------------------------- */

/* With an argument: those whose name has it. */
#define RUN(test)                                                              \
    do {                                                                       \
        if (strstr(#test, only) != NULL)                                       \
            T_RUN(test);                                                       \
    } while (0)

#endif /* TEST_STORE_JOURNAL_DISK_H */
