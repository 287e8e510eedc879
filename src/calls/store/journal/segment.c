/* SPDX-License-Identifier: Apache-2.0 */
/*
 * segment.c - the files of the log: "00000001.log", "00000002.log", ...
 *
 *    prepare.tmp --rename--> ready --header written--> last --> sealed
 *                              ^                                  |
 *                              `------ rename, once nothing ------'
 *                                      in it is the last word
 *
 * A segment is written with zeros, or has been used before, so that the flush
 * of a batch writes the batch and nothing of the file system: no block is
 * allocated, no length changed. A new name is flushed with its folder before
 * the segment counts as ready. Sizes begin at 1 MiB, each four times the last,
 * so that a store that is hardly used stays small and one that is much used
 * soon makes few. So many are made ahead that what is kept back for claims lies
 * in them. Who has an outcome and finds no segment ready, or has a frame that
 * is larger than one, makes the last one longer.
 */
#include "calls/store/journal/handle.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum {
    STEP = 256 * 1024,
    EXTEND = 1 << 20,
    SIZE_MIN = 1 << 20,
    SIZE_LEAST = 1 << 16,
    AHEAD = 1,  /* segments that shall be ready                */
    LIVE = 512, /* bytes kept back for each claim's next frame */
    READY_MAX = 3
};

void once__segment_name(uint64_t id, char out[ONCE__SEGMENT_NAME])
{
    (void)snprintf(out, ONCE__SEGMENT_NAME, "%08llu.log",
                   (unsigned long long)id);
}

uint64_t once__segment_number(const char *name)
{
    char again[ONCE__SEGMENT_NAME];
    char *end;
    uint64_t id;

    if (*name < '0' || *name > '9')
        return 0;
    id = strtoull(name, &end, 10);
    if (id >> (63 - ONCE__JOURNAL_SHIFT) != 0)
        return 0;
    once__segment_name(id, again);
    return strcmp(again, name) == 0 ? id : 0;
}

int once__segment_range(int folder, uint64_t *lowest, uint64_t *highest)
{
    int fd = openat(folder, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *d = fd < 0 ? NULL : fdopendir(fd);
    struct dirent *e;
    uint64_t id;

    if (d == NULL) {
        if (fd >= 0)
            (void)close(fd);
        return -1;
    }
    *lowest = *highest = 0;
    while ((e = readdir(d)) != NULL) {
        id = once__segment_number(e->d_name);
        if (id != 0 && (*lowest == 0 || id < *lowest))
            *lowest = id;
        if (id > *highest)
            *highest = id;
    }
    (void)closedir(d);
    return 0;
}

/* ---- Opened files -------------------------------------------------------- */

static void close_before(struct once__journal *j, uint64_t first)
{
    int i;

    for (i = 0; i < ONCE__FILES; i++)
        if (j->files[i].id != 0 && j->files[i].id < first) {
            (void)close(j->files[i].fd);
            j->files[i].id = 0;
        }
    j->oldest = first;
}

void once__segment_close_all(struct once__journal *j)
{
    close_before(j, UINT64_MAX);
    j->oldest = 0;
}

/* Its name is about to be another file's. */
static void close_one(struct once__journal *j, uint64_t id)
{
    unsigned at = (unsigned)(id % ONCE__FILES);

    if (j->files[at].id != id)
        return;
    (void)close(j->files[at].fd);
    j->files[at].id = 0;
}

int once__segment_file(struct once__journal *j, uint64_t id)
{
    char name[ONCE__SEGMENT_NAME];
    unsigned at = (unsigned)(id % ONCE__FILES);
    uint64_t first = j->shared != NULL ? j->shared->first : 0;
    int fd;

    if (first > j->oldest) /* the one who drops them should get the space */
        close_before(j, first);
    if (j->files[at].id == id)
        return j->files[at].fd;
    once__segment_name(id, name);
    fd = once__file_open_in(j->folder, name, j->read_only ? O_RDONLY : O_RDWR);
    if (fd < 0)
        return -1;
    if (j->files[at].id != 0)
        (void)close(j->files[at].fd);
    j->files[at].id = id;
    j->files[at].fd = fd;
    return fd;
}

/* ---- Room --------------------------------------------------------------- */

uint64_t once__segment_room_ahead(struct once__shared *s)
{
    uint64_t id, ready = s->ready, sum = 0;

    for (id = s->last + 1; id <= ready; id++)
        sum += once__segment(s, id)->size - ONCE__JOURNAL_HEADER;
    return sum;
}

/* The next frames of those who hold claims, and half a segment for the
 * compactor, which is what makes room again; or what it can need at the most.
 * */
uint64_t once__segment_reserve(const struct once__journal *j)
{
    struct once__shared *s = j->shared;
    uint64_t live = s->owned * (LIVE + 2 * s->average);
    uint64_t half = once__segment(s, s->last)->size / 2;
    uint64_t most = /* what the compactor can need */
        s->records * ONCE__FRAME_HEAD + s->bytes + ONCE__JOURNAL_SPARE;

    if (half > j->segment_max / 2) /* it was made longer */
        half = j->segment_max / 2;
    if (half > most)
        half = most;
    return live > half ? live : half;
}

/* Bytes that can be appended before another segment is needed; without the lock
 * that is a guess. */
static uint64_t room(struct once__shared *s)
{
    uint64_t id = s->last, ready = s->ready, tail = s->tail, sum = 0;

    if (once__journal_id(tail) == id &&
        once__journal_offset(tail) < once__segment(s, id)->size)
        sum = once__segment(s, id)->size - once__journal_offset(tail);
    while (++id <= ready)
        sum += once__segment(s, id)->size - ONCE__JOURNAL_HEADER;
    return sum;
}

/* A quarter more than what is kept back, for the claims that come while another
 * segment is made. */
int once__segment_short(const struct once__journal *j)
{
    struct once__shared *s = j->shared;
    uint64_t reserve = once__segment_reserve(j);

    return s->full || s->ready - s->last < AHEAD ||
           room(s) < reserve + reserve / 4 + SIZE_LEAST;
}

/* ---- Making segments ---------------------------------------------------- */

static uint64_t next_size(const struct once__journal *j)
{
    struct once__shared *s = j->shared;
    uint64_t now = s->ready > 0 ? once__segment(s, s->ready)->size : 0;
    uint64_t want = now < SIZE_MIN / 4 ? SIZE_MIN : 4 * now;
    uint64_t two = (2 * s->average + 4095) / 4096 * 4096; /* of the frames */

    if (want > j->segment_max)
        want = j->segment_max;
    return want > two ? want : two;
}

static int is_full(int rc)
{
    return rc == ENOSPC || rc == EDQUOT;
}

/* Writes zeros from offset `from` up to `size`. */
static int fill(int fd, uint64_t from, uint64_t size, const atomic_int *stop)
{
    uint8_t *zeros = aligned_alloc(4096, STEP);
    size_t n;
    int rc = zeros == NULL ? ENOMEM : 0;

    if (zeros != NULL)
        memset(zeros, 0, STEP);
    for (; rc == 0 && from < size; from += n) {
        n = size - from < STEP ? (size_t)(size - from) : STEP;
        if (stop != NULL && atomic_load(stop))
            rc = ECANCELED;
        else if (once__file_write(fd, zeros, n, from) != 0)
            rc = errno;
    }
    free(zeros);
    return rc;
}

/*
 * The same past the kernel's memory: it would fill up with zeros, and one flush
 * of them all would keep all processes waiting. Not every file system can.
 */
static int fill_directly(int fd, uint64_t size, const atomic_int *stop)
{
    int flags = fcntl(fd, F_GETFL);
    int direct = flags >= 0 && fcntl(fd, F_SETFL, flags | O_DIRECT) == 0;
    int rc = fill(fd, 0, size, stop);

    if (direct) {
        (void)fcntl(fd, F_SETFL, flags);
        if (rc != 0 && !is_full(rc) && rc != ECANCELED)
            rc = fill(fd, 0, size, stop);
    }
    return rc;
}

/* The file called `name` becomes the next one that is ready. One who died may
 * have left another by that name, which recovery has looked at. */
static int make_ready(struct once__journal *j, const char *name, uint64_t size)
{
    struct once__shared *s = j->shared;
    uint64_t id = s->ready + 1;
    char to[ONCE__SEGMENT_NAME];

    once__segment_name(id, to);
    close_one(j, id);
    if (renameat(j->folder, name, j->folder, to) != 0 || fsync(j->folder) != 0)
        return errno;
    once__segment(s, id)->size = size;
    s->ready = id;
    s->full = 0;
    return 0;
}

static int make(struct once__journal *j, uint64_t size, const atomic_int *stop)
{
    int fd, rc;

    (void)unlinkat(j->folder, ONCE__JOURNAL_UNFINISHED, 0);
    fd = once__file_create(j->folder, ONCE__JOURNAL_UNFINISHED);
    if (fd < 0)
        return errno;
    rc = posix_fallocate(fd, 0, (off_t)size);
    if (rc == 0)
        rc = fill_directly(fd, size, stop);
    if (rc == 0 && fdatasync(fd) != 0)
        rc = errno;
    if (close(fd) != 0 && rc == 0)
        rc = errno;
    if (rc == 0)
        rc = make_ready(j, ONCE__JOURNAL_UNFINISHED, size);
    if (rc != 0)
        (void)unlinkat(j->folder, ONCE__JOURNAL_UNFINISHED, 0);
    return rc;
}

/* A smaller one where the disk has no room for one and none is ready: the log
 * must move on, or the segment that it ends in could never be dropped. */
static int make_some(struct once__journal *j, uint64_t size,
                     const atomic_int *stop)
{
    struct once__shared *s = j->shared;
    int rc = make(j, size, stop);

    while (is_full(rc) && s->ready - s->last < AHEAD &&
           size >= 4 * SIZE_LEAST) {
        size = size / 4 / 4096 * 4096;
        rc = make(j, size, stop);
    }
    return rc;
}

/* Zeros after the last segment's end. The next flush takes them along. */
int once__segment_extend(struct once__journal *j, uint64_t size)
{
    struct once__segment *seg = once__segment(j->shared, j->shared->last);
    uint64_t step = j->segment_max < EXTEND ? j->segment_max : EXTEND;
    int fd = once__segment_file(j, j->shared->last), rc;

    size = size < step ? step : (size + 4095) / 4096 * 4096;
    if (fd < 0)
        return errno;
    rc = posix_fallocate(fd, (off_t)seg->size, (off_t)size);
    if (rc == 0)
        rc = fill(fd, seg->size, seg->size + size, NULL);
    if (rc == 0)
        seg->size += size;
    if (is_full(rc))
        j->shared->full = 1;
    return rc;
}

static uint64_t count(const struct once__shared *s)
{
    return s->ready - s->first + 1;
}

int once__segment_scarce(const struct once__shared *s)
{
    return count(s) >= ONCE__JOURNAL_SEGMENTS - ONCE__JOURNAL_SEGMENTS / 20;
}

static int take_prep(struct once__journal *j)
{
    int rc = once__shared_lock(&j->shared->prep, j->busy_ms);

    if (rc == EOWNERDEAD) /* what it left is overwritten */
        rc = pthread_mutex_consistent(&j->shared->prep);
    return rc;
}

int once__segment_prepare(struct once__journal *j, uint64_t need,
                          const atomic_int *stop)
{
    struct once__shared *s = j->shared;
    int rc = take_prep(j);

    if (rc != 0)
        return rc;
    if (count(s) >= ONCE__JOURNAL_SEGMENTS - 1)
        rc = ENOSPC;
    else if (once__segment_short(j) || room(s) < need)
        rc = make_some(j, next_size(j), stop);
    if (is_full(rc))
        s->full = 1;
    (void)pthread_mutex_unlock(&s->prep);
    return rc;
}

int once__segment_retire(struct once__journal *j, uint64_t id)
{
    struct once__shared *s = j->shared;
    uint64_t size = once__segment(s, id)->size;
    char name[ONCE__SEGMENT_NAME];
    int rc = take_prep(j);

    if (rc != 0)
        return rc;
    once__segment_name(id, name);
    if (s->ready - s->last < READY_MAX && size < 2 * j->segment_max &&
        2 * size > j->segment_max)
        rc = make_ready(j, name, size);
    else if (unlinkat(j->folder, name, 0) != 0)
        rc = errno;
    else
        s->full = 0;
    if (rc == ENOENT) /* one who died had done it */
        rc = 0;
    (void)pthread_mutex_unlock(&s->prep);
    return rc;
}
