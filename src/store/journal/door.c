/* SPDX-License-Identifier: Apache-2.0 */
/*
 * door.c - DIR/lock: who has the journal open, and how it was left.
 *
 * Everybody who is in holds a shared lock on the file, an OFD lock, so that it
 * belongs to the handle and ends with the process. Who gets it exclusively is
 * alone:
 *
 *            exclusive                       downgraded
 *    outside ---------> recovers, makes the ------------> in
 *       |               shared memory                      |
 *       |  shared, and the shared memory is there          |
 *       +------------------------------------------------->|
 *       ^                                                  |
 *       |                      exclusive: was the last     | let go
 *       +--- says how it was left, removes the shared <----+
 *            memory
 *
 * Between "let go" and "exclusive" another may come in; then it is the one who
 * recovers, or the last one is not us. The file's bytes:
 *
 *    0 magic (8)  8 version (4)  12 sum (4)  16 id (16)  32 state (4)
 *   40 at (8)
 *
 * It refuses a folder that holds something else, and one that is open where
 * the shared memory is not to be seen: two containers with a /dev/shm each
 * would both believe to know the index.
 */
#include "store/journal/journal.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "core/crc32c.h"
#include "core/error.h"

#define DOOR_MAGIC UINT64_C(0x524f4f4445434e4f)

enum { DOOR_SIZE = 48, TURNS = 3000, TURN_NS = 10000000 };

/* ---- The file ------------------------------------------------------------ */

static int door_lock(int fd, short type)
{
    struct flock lock = {.l_type = type, .l_whence = SEEK_SET, .l_len = 1};

    return fcntl(fd, F_OFD_SETLK, &lock);
}

static uint32_t note_sum(const uint8_t *b)
{
    return once__crc32c(0, b + 16, DOOR_SIZE - 16);
}

/* ONCE_OK, also for an empty file; that is a new journal. */
int once__door_read(int fd, const char *path, struct once__note *out,
                    once_error *err)
{
    uint8_t b[DOOR_SIZE];
    struct stat st;

    memset(out, 0, sizeof(*out));
    if (fstat(fd, &st) != 0)
        return once__fail(err, ONCE_EOPEN, "%s/lock: %s", path,
                          strerror(errno));
    if (st.st_size == 0)
        return ONCE_OK;
    if (once__journal_read(fd, b, sizeof(b), 0) != 1 ||
        once__get(b, 8) != DOOR_MAGIC)
        return once__fail(err, ONCE_EOPEN, "%s/lock: it is something else",
                          path);
    if (once__get(b + 8, 4) != ONCE__JOURNAL_VERSION)
        return once__fail(err, ONCE_EVERSION,
                          "%s: version %llu, this program understands %d", path,
                          (unsigned long long)once__get(b + 8, 4),
                          ONCE__JOURNAL_VERSION);
    if (once__get(b + 12, 4) != note_sum(b))
        return once__fail(err, ONCE_ECORRUPT, "%s/lock: it does not check",
                          path);
    memcpy(out->id, b + 16, ONCE__JOURNAL_ID);
    out->state = (uint32_t)once__get(b + 32, 4);
    out->at = once__get(b + 40, 8);
    return ONCE_OK;
}

static int write_note(struct once__journal *j, const struct once__note *note)
{
    uint8_t b[DOOR_SIZE] = {0};

    once__put(b, DOOR_MAGIC, 8);
    once__put(b + 8, ONCE__JOURNAL_VERSION, 4);
    memcpy(b + 16, note->id, ONCE__JOURNAL_ID);
    once__put(b + 32, note->state, 4);
    once__put(b + 40, note->at, 8);
    once__put(b + 12, note_sum(b), 4);
    if (once__journal_write(j->door, b, sizeof(b), 0) != 0)
        return -1;
    return fsync(j->door);
}

/* ---- The folder ---------------------------------------------------------- */

/* 1 if it holds nothing, or nothing but what is ours. */
static int is_for_us(int folder)
{
    int fd = openat(folder, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC), ours = 1;
    DIR *d = fd < 0 ? NULL : fdopendir(fd);
    struct dirent *e;

    if (d == NULL) {
        if (fd >= 0)
            (void)close(fd);
        return 0;
    }
    while (ours && (e = readdir(d)) != NULL)
        ours = strcmp(e->d_name, ".") == 0 || strcmp(e->d_name, "..") == 0 ||
               strcmp(e->d_name, "lost+found") == 0 ||
               strcmp(e->d_name, "lock") == 0 ||
               strcmp(e->d_name, ONCE__JOURNAL_CLOCK) == 0 ||
               strcmp(e->d_name, "prepare.tmp") == 0 ||
               once__segment_number(e->d_name) != 0;
    (void)closedir(d);
    return ours;
}

static int sync_parent(const char *path)
{
    char *copy = strdup(path), *slash;
    int fd, failed;

    if (copy == NULL)
        return -1;
    slash = strrchr(copy, '/');
    slash[slash == copy] = '\0';
    fd = open(copy, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    free(copy);
    if (fd < 0)
        return -1;
    failed = fsync(fd);
    (void)close(fd);
    return failed;
}

static int open_folder(struct once__journal *j, once_error *err)
{
    if (!j->must_exist && mkdir(j->path, 0700) == 0) {
        if (sync_parent(j->path) != 0)
            return once__fail(err, ONCE_EOPEN, "%s: %s", j->path,
                              strerror(errno));
    } else if (!j->must_exist && errno != EEXIST) {
        return once__fail(err, ONCE_EOPEN, "%s: %s", j->path, strerror(errno));
    }
    j->folder = open(j->path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (j->folder < 0)
        return once__fail(err, ONCE_EOPEN, "%s: %s", j->path, strerror(errno));
    return ONCE_OK;
}

static int open_door(struct once__journal *j, once_error *err)
{
    j->door = openat(j->folder, "lock", O_RDWR | O_CLOEXEC);
    if (j->door < 0 && errno == ENOENT && !j->must_exist) {
        if (!is_for_us(j->folder))
            return once__fail(err, ONCE_EOPEN,
                              "%s: it is not a journal and holds other files",
                              j->path);
        j->door = once__journal_create(j->folder, "lock");
        if (j->door < 0 && errno == EEXIST) /* somebody was faster */
            j->door = openat(j->folder, "lock", O_RDWR | O_CLOEXEC);
    }
    if (j->door < 0)
        return once__fail(err, ONCE_EOPEN, "%s/lock: %s", j->path,
                          strerror(errno));
    return ONCE_OK;
}

/* ---- Alone --------------------------------------------------------------- */

/* How those before us left it: the file says, or their shared memory. */
static struct once__left how_left(struct once__journal *j,
                                  const struct once__note *note)
{
    struct once__left left = {note->state, note->at, 0};

    if (note->state == ONCE__LEFT_CLEAN || note->state == ONCE__LEFT_CUT)
        left.known = note->at;
    if (note->state != ONCE__LEFT_OPEN ||
        once__shared_attach(j, note->id, NULL) != ONCE_OK)
        return left;
    if (j->shared->open)
        left.known = j->shared->durable;
    if (j->shared->open && j->shared->poisoned) {
        left.state = ONCE__LEFT_CUT;
        left.at = left.known;
    }
    once__shared_detach(j);
    return left;
}

/* The folder is new, or another's death or clean end is behind it. Whatever
 * happens in here, what the note says of how it was left stays true. */
static int make_shared(struct once__journal *j, const struct once__note *before,
                       struct once__note *note, struct once__left *left,
                       once_error *err)
{
    *left = how_left(j, before);
    *note = (struct once__note){.state = left->state, .at = left->at};
    if (getrandom(note->id, sizeof(note->id), 0) != (ssize_t)sizeof(note->id))
        return once__fail(err, ONCE_EOPEN, "%s: no random numbers", j->path);
    if (write_note(j, note) != 0 ||
        (left->state == ONCE__LEFT_NEW && fsync(j->folder) != 0))
        return once__fail(err, ONCE_EOPEN, "%s/lock: %s", j->path,
                          strerror(errno));
    if (before->state != ONCE__LEFT_NEW)
        once__shared_remove(before->id);
    return once__shared_create(j, note->id, err);
}

static int enter_first(struct once__journal *j, once_error *err)
{
    struct once__note note, before;
    struct once__left left;
    int code = once__door_read(j->door, j->path, &before, err);

    if (code == ONCE_OK)
        code = make_shared(j, &before, &note, &left, err);
    if (code != ONCE_OK)
        return code;
    code = once__recover(j, &left, err);
    note.state = ONCE__LEFT_OPEN;
    if (code == ONCE_OK && write_note(j, &note) != 0)
        code = once__fail(err, ONCE_EOPEN, "%s/lock: %s", j->path,
                          strerror(errno));
    if (code != ONCE_OK) {
        once__shared_detach(j);
        once__shared_remove(note.id);
        return code;
    }
    j->shared->open = 1;
    (void)door_lock(j->door, F_RDLCK);
    return ONCE_OK;
}

/* ---- With others --------------------------------------------------------- */

/* ONCE_OK, or ONCE_EOPEN: it is not there, maybe because they have left. */
static int enter_shared(struct once__journal *j, once_error *err)
{
    struct once__note note;
    int code = once__door_read(j->door, j->path, &note, err);

    if (code != ONCE_OK)
        return code;
    if (note.state != ONCE__LEFT_OPEN)
        return once__fail(err, ONCE_EOPEN, "%s: they have just left", j->path);
    errno = 0;
    code = once__shared_attach(j, note.id, err);
    if (code != ONCE_OK && errno == ENOENT)
        return once__fail(err, ONCE_EOPEN,
                          "%s: it is open in a process that has another "
                          "/dev/shm, as in another container: all must share "
                          "one",
                          j->path);
    if (code == ONCE_OK && !j->shared->open) {
        once__shared_detach(j);
        code = once__fail(err, ONCE_EOPEN, "%s: it is being opened", j->path);
    }
    return code;
}

static int is_busy(int rc)
{
    return rc != 0 && (errno == EAGAIN || errno == EACCES);
}

int once__door_enter(struct once__journal *j, once_error *err)
{
    const struct timespec turn = {0, TURN_NS};
    int turns, rc, code = open_folder(j, err);

    if (code == ONCE_OK)
        code = open_door(j, err);
    if (code != ONCE_OK)
        return code;
    for (turns = 0; turns < TURNS; turns++) {
        rc = door_lock(j->door, F_WRLCK);
        if (rc == 0)
            return enter_first(j, err);
        if (!is_busy(rc))
            break;
        rc = door_lock(j->door, F_RDLCK);
        if (rc == 0) {
            code = enter_shared(j, err);
            if (code != ONCE_EOPEN || turns > 100)
                return code;
            (void)door_lock(j->door, F_UNLCK);
        } else if (!is_busy(rc)) {
            break;
        }
        (void)nanosleep(&turn, NULL);
    }
    if (turns < TURNS)
        return once__fail(err, ONCE_EOPEN, "%s/lock: %s", j->path,
                          strerror(errno));
    return once__fail(err, ONCE_EOPEN,
                      "%s: another process has been opening it for 30 s",
                      j->path);
}

/* The last one out writes down that all is durable, or where to cut. */
static void leave_last(struct once__journal *j)
{
    struct once__shared *s = j->shared;
    struct once__note note;
    int synced = once__journal_sync(j, s->tail, NULL), locked;

    if (once__door_read(j->door, j->path, &note, NULL) != ONCE_OK ||
        note.state != ONCE__LEFT_OPEN ||
        memcmp(note.id, s->id, ONCE__JOURNAL_ID) != 0)
        return; /* somebody was in meanwhile and has left it */
    locked = pthread_mutex_trylock(&s->lock);
    if (s->poisoned) {
        note.state = ONCE__LEFT_CUT;
        note.at = s->durable;
    } else if (synced == ONCE_OK && locked == 0 && !s->broken &&
               s->durable == s->tail) {
        note.state = ONCE__LEFT_CLEAN;
        note.at = s->tail;
    } /* else somebody died here; the next one sees to it */
    if (locked == 0 || locked == EOWNERDEAD) /* it is ours all the same */
        (void)pthread_mutex_unlock(&s->lock);
    if (note.state == ONCE__LEFT_OPEN || write_note(j, &note) == 0)
        once__shared_remove(s->id);
}

void once__door_leave(struct once__journal *j)
{
    if (j->shared != NULL && j->door >= 0) {
        (void)door_lock(j->door, F_UNLCK);
        if (door_lock(j->door, F_WRLCK) == 0)
            leave_last(j);
    }
    once__journal_forget(j);
}

/* ---- Views ---------------------------------------------------------------- */

int once__journal_share(const struct once__journal *from,
                        struct once__journal *out, once_error *err)
{
    out->door = -1;
    out->folder = out->memory = -1;
    out->busy_ms = from->busy_ms;
    out->segment_max = from->segment_max;
    out->path = strdup(from->path);
    if (out->path == NULL)
        return once__fail(err, ONCE_ENOMEM, "out of memory");
    out->folder = openat(from->folder, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (out->folder < 0)
        return once__fail(err, ONCE_EOPEN, "%s: %s", from->path,
                          strerror(errno));
    return once__shared_attach(out, from->shared->id, err);
}

void once__journal_forget(struct once__journal *j)
{
    once__segment_close_all(j);
    once__shared_detach(j);
    if (j->door >= 0)
        (void)close(j->door);
    if (j->folder >= 0)
        (void)close(j->folder);
    j->door = j->folder = -1;
    free(j->recent);
    free(j->buffer);
    free(j->path);
    j->recent = NULL;
    j->buffer = NULL;
    j->path = NULL;
}
