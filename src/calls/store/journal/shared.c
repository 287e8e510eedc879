/* SPDX-License-Identifier: Apache-2.0 */
/*
 * shared.c - the shared memory of a journal: a head, then pages of 4 KiB.
 *
 *    /dev/shm/once-LOCK-RANDOM           head | page 0 | page 1 | ...
 *                                               `--- chunk 0 ---'
 *
 * Its name says which file DIR/lock is, so a copy of the folder, which has the
 * same bytes, never finds it. The random part stands in DIR/lock, so no one
 * takes a stale one for it.
 *
 * All users may make files in /dev/shm, and see their names: what is found
 * there is believed only if it is owned as DIR/lock is, and was made since the
 * host was started.
 *
 * The locks are robust mutexes: they hold a thread's number, which the kernel
 * takes for one of the namespace of the one that dies. So all who take them
 * must be in one PID namespace, which stands in the head.
 *
 * It grows and never shrinks; every page is allocated before
 * it is touched, since a full /dev/shm would otherwise be a SIGBUS in the one
 * that touches it. Processes map it in chunks, each when it first needs it: head
 * and chunks begin where a kernel's page does, and on arm64 that may be of 64 KiB.
 */
#include "calls/store/journal/handle.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/bytes.h"
#include "base/error.h"
#include "base/must.h"
#include "base/steady.h"

enum {
    KERNEL_PAGE = 65536, /* the largest that a kernel has; others divide it */
    HEAD = (sizeof(struct once__shared) + KERNEL_PAGE - 1) / KERNEL_PAGE *
           KERNEL_PAGE,
    CHUNK = ONCE__CHUNK_PAGES * ONCE__PAGE_SIZE,
    IN_ONE = KERNEL_PAGE / ONCE__PAGE_SIZE, /* of our pages */
    STEP = 64, /* pages that are allocated at a time */
    TWICE_MS = 60000
};

void once__shared_name(const struct once__identity *self,
                       const uint8_t id[ONCE__JOURNAL_ID],
                       char out[ONCE__SHARED_NAME])
{
    int n = snprintf(out, ONCE__SHARED_NAME,
                     ONCE__SHARED_PREFIX "%" PRIx64 "-%" PRIx64 "-%" PRIx64 "-",
                     self->device, self->inode, self->born);

    assert(n > 0 && n + 2 * ONCE__JOURNAL_ID < ONCE__SHARED_NAME);
    once__hex(id, ONCE__JOURNAL_ID, out + n);
}

static int shared_map(struct once__journal *j, once_error *err)
{
    void *head =
        mmap(NULL, HEAD, PROT_READ | PROT_WRITE, MAP_SHARED, j->memory, 0);

    if (head == MAP_FAILED)
        return once__fail(err, ONCE_EOPEN, "%s: memory in /dev/shm: %s",
                          j->path, strerror(errno));
    j->shared = head;
    return ONCE_OK;
}

static int make_mutex(pthread_mutex_t *m)
{
    pthread_mutexattr_t a;
    int rc = pthread_mutexattr_init(&a);

    if (rc != 0)
        return rc;
    rc = pthread_mutexattr_setpshared(&a, PTHREAD_PROCESS_SHARED);
    if (rc == 0)
        rc = pthread_mutexattr_setrobust(&a, PTHREAD_MUTEX_ROBUST);
    if (rc == 0)
        rc = pthread_mutex_init(m, &a);
    (void)pthread_mutexattr_destroy(&a);
    return rc;
}

static int make_locks(struct once__shared *s)
{
    int rc = make_mutex(&s->lock);

    rc = rc != 0 ? rc : make_mutex(&s->sync);
    rc = rc != 0 ? rc : make_mutex(&s->prep);
    return rc != 0 ? rc : make_mutex(&s->compact);
}

static int fill_head(struct once__journal *j,
                     const uint8_t id[ONCE__JOURNAL_ID], const uint64_t key[4])
{
    struct once__shared *s = j->shared;
    int rc;

    memcpy(s->id, id, ONCE__JOURNAL_ID);
    s->pids = j->pids;
    s->home = j->home;
    memcpy(s->key, key, sizeof(s->key));
    rc = make_locks(s);
    s->magic = ONCE__SHARED_MAGIC;
    s->version = ONCE__JOURNAL_VERSION;
    s->size = sizeof(*s);
    return rc;
}

int once__shared_create(struct once__journal *j,
                        const uint8_t id[ONCE__JOURNAL_ID],
                        const uint64_t key[4], once_error *err)
{
    char name[ONCE__SHARED_NAME];
    int rc, code;

    once__shared_name(&j->self, id, name);
    j->memory = shm_open(name, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (j->memory < 0)
        return once__fail(err, ONCE_EOPEN, "%s: memory in /dev/shm: %s",
                          j->path, strerror(errno));
    rc = once__file_set_owner(j->lock_fd, j->memory) == 0
             ? posix_fallocate(j->memory, 0, HEAD)
             : errno;
    if (rc != 0) {
        code = once__fail(err, ONCE_EOPEN, "%s: memory in /dev/shm: %s",
                          j->path, strerror(rc));
        goto out;
    }
    code = shared_map(j, err);
    if (code != ONCE_OK)
        goto out;
    rc = fill_head(j, id, key);
    if (rc != 0)
        code =
            once__fail(err, ONCE_EOPEN, "%s: locks: %s", j->path, strerror(rc));
out:
    if (code != ONCE_OK) {
        once__shared_detach(j);
        once__shared_remove(j, id);
    }
    return code;
}

int once__shared_alone(struct once__journal *j, const uint64_t key[4],
                       once_error *err)
{
    static const uint8_t none[ONCE__JOURNAL_ID];
    int rc, code;

    j->memory = memfd_create("once-journal", MFD_CLOEXEC);
    rc = j->memory >= 0 ? posix_fallocate(j->memory, 0, HEAD) : errno;
    if (rc != 0)
        return once__fail(err, ONCE_EOPEN, "%s: memory: %s", j->path,
                          strerror(rc));
    code = shared_map(j, err);
    if (code != ONCE_OK)
        return code;
    rc = fill_head(j, none, key);
    return rc == 0 ? ONCE_OK
                   : once__fail(err, ONCE_EOPEN, "%s: locks: %s", j->path,
                                strerror(rc));
}

static int is_ours(const struct once__journal *j,
                   const uint8_t id[ONCE__JOURNAL_ID])
{
    const struct once__shared *s = j->shared;

    return s->magic == ONCE__SHARED_MAGIC &&
           s->version == ONCE__JOURNAL_VERSION && s->size == sizeof(*s) &&
           memcmp(s->id, id, ONCE__JOURNAL_ID) == 0;
}

/* Not a byte of it is believed before that. */
static int is_trusted(const struct once__journal *j)
{
    return once__file_is_owned_like(j->lock_fd, j->memory);
}

int once__shared_attach(struct once__journal *j,
                        const uint8_t id[ONCE__JOURNAL_ID], once_error *err)
{
    struct stat st;
    char name[ONCE__SHARED_NAME];
    int n, code;

    once__shared_name(&j->self, id, name);
    j->memory = shm_open(name, O_RDWR | O_CLOEXEC, 0);
    if (j->memory < 0 || fstat(j->memory, &st) != 0 || st.st_size < HEAD) {
        code =
            once__fail(err, ONCE_EOPEN, "%s: no memory in /dev/shm: %s",
                       j->path, j->memory < 0 ? strerror(errno) : "too short");
        goto out;
    }
    errno = 0;
    if (!is_trusted(j)) {
        code = once__fail(err, ONCE_EOPEN,
                          "%s: its shared memory /dev/shm%s is not owned as "
                          "its file lock is: another user may have made it",
                          j->path, name);
        goto out;
    }
    code = shared_map(j, err);
    if (code == ONCE_OK && !is_ours(j, id))
        code = once__fail(err, ONCE_EOPEN,
                          "%s: it is open in a program of another version",
                          j->path);
out:
    if (code != ONCE_OK) {
        n = errno;
        once__shared_detach(j);
        errno = n;
    }
    return code;
}

int once__shared_share(const struct once__journal *from,
                       struct once__journal *out, once_error *err)
{
    out->memory = fcntl(from->memory, F_DUPFD_CLOEXEC, 0);
    if (out->memory < 0)
        return once__fail(err, ONCE_EOPEN, "%s: memory in /dev/shm: %s",
                          from->path, strerror(errno));
    return shared_map(out, err);
}

/* Those who died may have died of what is in it: the second time within a
 * minute it is not believed. */
int once__shared_keep(struct once__journal *j)
{
    struct once__shared *s = j->shared;
    uint64_t now_ms = once__steady_ms();
    struct stat st;

    if (!s->open || s->poisoned || s->building || fstat(j->memory, &st) != 0 ||
        st.st_nlink == 0 || (s->kept_ms != 0 && now_ms - s->kept_ms < TWICE_MS))
        return 0;
    s->kept_ms = now_ms;
    s->pids = j->pids;
    s->full = 0;
    memset(&s->lock, 0, sizeof(s->lock));
    memset(&s->sync, 0, sizeof(s->sync));
    memset(&s->prep, 0, sizeof(s->prep));
    memset(&s->compact, 0, sizeof(s->compact));
    return make_locks(s) == 0;
}

void once__shared_detach(struct once__journal *j)
{
    while (j->mapped > 0)
        (void)munmap(j->chunks[--j->mapped], CHUNK);
    if (j->shared != NULL)
        (void)munmap(j->shared, HEAD);
    j->shared = NULL;
    if (j->memory >= 0)
        (void)close(j->memory);
    j->memory = -1;
}

void once__shared_remove(const struct once__journal *j,
                         const uint8_t id[ONCE__JOURNAL_ID])
{
    char name[ONCE__SHARED_NAME];

    once__shared_name(&j->self, id, name);
    (void)shm_unlink(name);
}

int once__shared_view(struct once__journal *j)
{
    void *at;

    while ((uint64_t)j->mapped * ONCE__CHUNK_PAGES < j->shared->room) {
        at = mmap(NULL, CHUNK, PROT_READ | PROT_WRITE, MAP_SHARED, j->memory,
                  (off_t)HEAD + (off_t)j->mapped * CHUNK);
        if (at == MAP_FAILED)
            return 0;
        j->chunks[j->mapped++] = at;
    }
    return 1;
}

struct once__page *once__shared_page(struct once__journal *j, uint32_t n)
{
    uint32_t chunk = n / ONCE__CHUNK_PAGES;

    ONCE__MUST(chunk < j->mapped);
    return (struct once__page *)(void *)(j->chunks[chunk] +
                                         (size_t)(n % ONCE__CHUNK_PAGES) *
                                             ONCE__PAGE_SIZE);
}

static_assert(CHUNK % KERNEL_PAGE == 0 && STEP % IN_ONE == 0,
              "each begins with a page of the kernel");

/* One fault for all pages from `from` to `to`: a hint. */
static void populate(struct once__journal *j, uint32_t from, uint32_t to)
{
    from = from / IN_ONE * IN_ONE;
    (void)madvise(once__shared_page(j, from),
                  (size_t)(to - from) * ONCE__PAGE_SIZE, MADV_POPULATE_WRITE);
}

/*
 * Made from the log, the same index may take more pages: they are asked for in
 * another order, and a part of the directory that must lie in one chunk leaves
 * others free. All parts together are fewer pages than this; so long before it
 * could not be made again there is no room for another name.
 */
static uint32_t slack(const struct once__shared *s, uint32_t pages)
{
    return s->building ? 0 : 1 + pages / 64;
}

uint32_t once__shared_grow(struct once__journal *j, uint32_t n)
{
    struct once__shared *s = j->shared;
    uint32_t at = s->pages, need, room, is_new = 0;

    if (at % ONCE__CHUNK_PAGES + n > ONCE__CHUNK_PAGES) /* all in one chunk */
        at = (at / ONCE__CHUNK_PAGES + 1) * ONCE__CHUNK_PAGES;
    need = at + n + slack(s, at + n);
    if (need > (uint32_t)ONCE__CHUNKS * ONCE__CHUNK_PAGES)
        return 0;
    if (need > s->room) {
        room = (need + STEP - 1) / STEP * STEP;
        if (posix_fallocate(j->memory, (off_t)HEAD + (off_t)s->room * 4096,
                            (off_t)(room - s->room) * 4096) != 0)
            return 0;
        s->room = room;
        is_new = 1;
    }
    if (!once__shared_view(j))
        return 0;
    if (is_new)
        populate(j, at, s->room);
    for (; s->pages < at + n; s->pages++) /* they may have been used before */
        memset(once__shared_page(j, s->pages), 0, ONCE__PAGE_SIZE);
    return at;
}

#ifdef __SANITIZE_THREAD__
/* ThreadSanitizer of gcc 12 does not know the call below, and would take a mutex
 * that was locked by it for unlocked. */
static int lock_until(pthread_mutex_t *m, const struct timespec *until)
{
    struct timespec now;
    int rc;

    while ((rc = pthread_mutex_trylock(m)) == EBUSY) {
        (void)clock_gettime(CLOCK_MONOTONIC, &now);
        if (now.tv_sec > until->tv_sec ||
            (now.tv_sec == until->tv_sec && now.tv_nsec >= until->tv_nsec))
            return ETIMEDOUT;
        (void)sched_yield();
    }
    return rc;
}
#else
static int lock_until(pthread_mutex_t *m, const struct timespec *until)
{
    return pthread_mutex_clocklock(m, CLOCK_MONOTONIC, until);
}
#endif

int once__shared_lock(pthread_mutex_t *m, uint32_t busy_ms)
{
    struct timespec until;
    int rc = pthread_mutex_trylock(m);

    if (rc != EBUSY)
        return rc;
    (void)clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_sec += busy_ms / 1000;
    until.tv_nsec += (long)(busy_ms % 1000) * 1000000;
    if (until.tv_nsec >= 1000000000) {
        until.tv_nsec -= 1000000000;
        until.tv_sec++;
    }
    return lock_until(m, &until);
}
