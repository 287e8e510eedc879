/* SPDX-License-Identifier: Apache-2.0 */
/*
 * session.c - DIR/lock: who has the journal open, and how it was left.
 *
 * Each process that is in holds a shared lock on the file, an OFD lock, so that
 * it belongs to the handle and ends with the process. Who gets it exclusively
 * is alone:
 *
 *            exclusive                       downgraded
 *    outside ---------> keeps the memory of  ------------> in
 *       |               those who were killed,             |
 *       |               or recovers and makes              |
 *       |               the shared memory                  |
 *       |  shared, and the shared memory is there          |
 *       +------------------------------------------------->|
 *       ^                                                  |
 *       |                      exclusive: was the last     | let go
 *       +--- says how it was left, removes the shared <----+
 *            memory
 *
 * Between "let go" and "exclusive" another may come in; then it is the one who
 * recovers, or the last one is not us. Who finds it locked for another waits as
 * long as that one reads on. The file's bytes:
 *
 *    0 magic (8)  8 version (4)  12 sum (4)  16 id (16)  32 state (4)
 *   40 at (8)    48 host (16)    64 key (32)
 *
 * The shared memory of an earlier start of the host is gone: whatever has its
 * name is not it. The key of the index's hash stays the same as long as the
 * folder does, so that an index which filled /dev/shm fits once more.
 *
 * It refuses a folder that holds something else, and one that is open where
 * the shared memory is not to be seen: two containers with a /dev/shm each
 * would both believe to know the index. It refuses one that is open in another
 * PID namespace as well, where the locks would not hold (shared.c).
 */
#include "calls/store/journal/handle.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <time.h>
#include <unistd.h>

#include "base/crc32c.h"
#include "base/error.h"
#include "base/must.h"
#include "base/path.h"
#include "calls/store/store.h"

#define LOCK_MAGIC UINT64_C(0x524f4f4445434e4f)

enum {
    NOTE_SIZE = 96,
    OLD_SIZE = 16, /* up to its version and sum; older ones are shorter */
    KEY_WORDS = 4,
    TURN_NS = 10000000,
    SURE = 100, /* turns                     */
    LOOK = 100, /* turns: a second           */
    SAY = 10,   /* looks between two events  */
    STILL = 30, /* looks without any change  */
    READINGS = 3
};

/* ---- The file ------------------------------------------------------------ */

static int lock_file(int fd, short type)
{
    struct flock lock = {.l_type = type, .l_whence = SEEK_SET, .l_len = 1};

    return fcntl(fd, F_OFD_SETLK, &lock);
}

static uint32_t note_sum(const uint8_t *b)
{
    return once__crc32c(0, b + 16, NOTE_SIZE - 16);
}

/* ONCE_OK, also for an empty file; that is a new journal. */
int once__session_read(int fd, const char *path, struct once__note *out,
                       once_error *err)
{
    uint8_t b[NOTE_SIZE] = {0};
    struct stat st;
    int i;

    memset(out, 0, sizeof(*out));
    if (fstat(fd, &st) != 0)
        return once__fail(err, ONCE_EOPEN, "%s/lock: %s", path,
                          strerror(errno));
    if (st.st_size == 0)
        return ONCE_OK;
    if (once__file_read(fd, b, OLD_SIZE, 0) != 1 ||
        once__get(b, 8) != LOCK_MAGIC)
        return once__fail(err, ONCE_EOPEN, "%s/lock: it is something else",
                          path);
    if (once__get(b + 8, 4) != ONCE__JOURNAL_VERSION)
        return once__fail(err, ONCE_EVERSION,
                          "%s: a journal of version %llu, this program "
                          "understands version %d",
                          path, (unsigned long long)once__get(b + 8, 4),
                          ONCE__JOURNAL_VERSION);
    if (once__file_read(fd, b, sizeof(b), 0) != 1 ||
        once__get(b + 12, 4) != note_sum(b))
        return once__fail(err, ONCE_ECORRUPT, "%s/lock: it fails its checksum",
                          path);
    memcpy(out->id, b + 16, ONCE__JOURNAL_ID);
    out->state = (uint32_t)once__get(b + 32, 4);
    out->at = once__get(b + 40, 8);
    memcpy(out->host, b + 48, ONCE_HOST_SIZE);
    for (i = 0; i < KEY_WORDS; i++)
        out->key[i] = once__get(b + 64 + 8 * i, 8);
    return ONCE_OK;
}

static int write_note(struct once__journal *j, const struct once__note *note)
{
    uint8_t b[NOTE_SIZE] = {0};
    int i;

    once__put(b, LOCK_MAGIC, 8);
    once__put(b + 8, ONCE__JOURNAL_VERSION, 4);
    memcpy(b + 16, note->id, ONCE__JOURNAL_ID);
    once__put(b + 32, note->state, 4);
    once__put(b + 40, note->at, 8);
    memcpy(b + 48, note->host, ONCE_HOST_SIZE);
    for (i = 0; i < KEY_WORDS; i++)
        once__put(b + 64 + 8 * i, note->key[i], 8);
    once__put(b + 12, note_sum(b), 4);
    if (once__file_write(j->lock_fd, b, sizeof(b), 0) != 0)
        return -1;
    return fsync(j->lock_fd);
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
               strcmp(e->d_name, ONCE__JOURNAL_LOCK) == 0 ||
               strcmp(e->d_name, ONCE__JOURNAL_CLOCK) == 0 ||
               strcmp(e->d_name, ONCE__JOURNAL_STORE_HEAD) == 0 ||
               strcmp(e->d_name, ONCE__JOURNAL_NEXT_HEAD) == 0 ||
               strcmp(e->d_name, ONCE__JOURNAL_UNFINISHED) == 0 ||
               strcmp(e->d_name, ONCE__JOURNAL_INDEX) == 0 ||
               strcmp(e->d_name, ONCE__JOURNAL_NEXT_INDEX) == 0 ||
               once__segment_number(e->d_name) != 0;
    (void)closedir(d);
    return ours;
}

static int open_folder(struct once__journal *j, once_error *err)
{
    if (j->create && mkdir(j->path, 0700) == 0) {
        if (once__path_sync_folder(j->path) != 0)
            return once__fail(err, ONCE_EOPEN, "%s: %s", j->path,
                              strerror(errno));
    } else if (j->create && errno != EEXIST) {
        return once__fail(err, ONCE_EOPEN, "%s: %s", j->path, strerror(errno));
    }
    j->folder = open(j->path, O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
    if (j->folder < 0 && errno == ENOENT && !j->create)
        return once__missing(err, j->path, "the folder does not exist");
    if (j->folder < 0)
        return once__fail(err, ONCE_EOPEN, "%s: %s", j->path, strerror(errno));
    return ONCE_OK;
}

static int find_pids(struct once__journal *j, once_error *err)
{
    struct stat st;

    if (stat("/proc/self/ns/pid", &st) != 0)
        return once__fail(err, ONCE_EOPEN,
                          "%s: cannot see which PID namespace this is: "
                          "/proc/self/ns/pid: %s",
                          j->path, strerror(errno));
    j->pids = (struct once__pids){st.st_dev, st.st_ino};
    return ONCE_OK;
}

static int open_lock(struct once__journal *j, once_error *err)
{
    j->lock_fd = once__file_open_in(j->folder, ONCE__JOURNAL_LOCK, O_RDWR);
    if (j->lock_fd < 0 && errno == EROFS && j->look) {
        j->read_only = 1;
        j->lock_fd =
            once__file_open_in(j->folder, ONCE__JOURNAL_LOCK, O_RDONLY);
    }
    if (j->lock_fd < 0 && errno == ENOENT && j->create) {
        if (!is_for_us(j->folder))
            return once__fail(err, ONCE_EOPEN,
                              "%s: it is not a journal and holds other files",
                              j->path);
        j->lock_fd = once__file_create(j->folder, ONCE__JOURNAL_LOCK);
        if (j->lock_fd < 0 && errno == EEXIST) /* another was faster */
            j->lock_fd =
                once__file_open_in(j->folder, ONCE__JOURNAL_LOCK, O_RDWR);
    }
    if (j->lock_fd < 0 && errno == ENOENT && !j->create)
        return once__missing(err, j->path, "there is no journal in it");
    if (j->lock_fd < 0 || once__file_identify(j->lock_fd, &j->self) != 0 ||
        once__file_identify(j->folder, &j->home) != 0)
        return once__fail(err, ONCE_EOPEN, "%s/lock: %s", j->path,
                          strerror(errno));
    return find_pids(j, err);
}

/* ---- Alone --------------------------------------------------------------- */

/* The memory that a note is of may still be there. */
static int is_of_this_start(const struct once__note *note)
{
    uint8_t host[ONCE_HOST_SIZE];

    once__host(host);
    return memcmp(note->host, host, sizeof(host)) == 0;
}

/* How those before us left it: the file says, or their shared memory. A copy of
 * a folder that is open has none: that one's is not found by it. */
static struct once__left how_left(struct once__journal *j,
                                  const struct once__note *note)
{
    struct once__left left = {note->state, note->at, 0};

    if (note->state == ONCE__LEFT_CLEAN || note->state == ONCE__LEFT_CUT)
        left.known = note->at;
    if (note->state != ONCE__LEFT_OPEN || !is_of_this_start(note) ||
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

static int draw(void *out, size_t size)
{
    return getrandom(out, size, 0) == (ssize_t)size;
}

/* What the next ones are to find: 0, no random numbers. */
static int begin_note(const struct once__note *before,
                      const struct once__left *left, struct once__note *note)
{
    static const uint64_t none[KEY_WORDS];

    *note = (struct once__note){.state = left->state, .at = left->at};
    once__host(note->host);
    memcpy(note->key, before->key, sizeof(note->key));
    return draw(note->id, sizeof(note->id)) &&
           (memcmp(note->key, none, sizeof(none)) != 0 ||
            draw(note->key, sizeof(note->key)));
}

/* The folder is new, or no process has it open. Whatever happens in here, what
 * the note says of how it was left stays true. */
static int make_shared(struct once__journal *j, const struct once__note *before,
                       struct once__note *note, struct once__left *left,
                       once_error *err)
{
    *left = how_left(j, before);
    if (!begin_note(before, left, note))
        return once__fail(err, ONCE_EOPEN, "%s: no random numbers", j->path);
    if (write_note(j, note) != 0 ||
        (left->state == ONCE__LEFT_NEW && fsync(j->folder) != 0))
        return once__fail(err, ONCE_EOPEN, "%s/lock: %s", j->path,
                          strerror(errno));
    once__shared_remove(j, before->id); /* also of one who died making it */
    return once__shared_create(j, note->id, note->key, err);
}

static int is_our_home(const struct once__journal *j)
{
    return j->shared->home.device == j->home.device &&
           j->shared->home.inode == j->home.inode;
}

/* All who had it open were killed, and their memory is still there: 1 if it is
 * as good as new. Otherwise it is made from the log. */
static int keep_shared(struct once__journal *j, const struct once__note *note)
{
    if (note->state != ONCE__LEFT_OPEN || !is_of_this_start(note) ||
        once__shared_attach(j, note->id, NULL) != ONCE_OK)
        return 0;
    if (is_our_home(j) && once__shared_keep(j) &&
        once__recover_kept(j, NULL) == ONCE_OK)
        return 1;
    once__segment_close_all(j);
    once__shared_detach(j);
    return 0;
}

static int enter_first(struct once__journal *j, once_error *err)
{
    struct once__note note, before;
    struct once__left left;
    int code = once__session_read(j->lock_fd, j->path, &before, err);

    if (code == ONCE_OK && keep_shared(j, &before)) {
        (void)lock_file(j->lock_fd, F_RDLCK);
        return ONCE_OK;
    }
    if (code == ONCE_OK && before.state == ONCE__LEFT_NEW && !j->create)
        code = once__missing(err, j->path, "it was never made whole");
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
        once__shared_remove(j, note.id);
        return code;
    }
    j->shared->open = 1;
    (void)lock_file(j->lock_fd, F_RDLCK);
    return ONCE_OK;
}

/* ---- On a read-only file system -------------------------------------------- */

/*
 * The log is read into memory of our own, and takes part in nothing: where the
 * folder is mounted read-only here others may write to it all the same. What is
 * moved meanwhile is looked for again.
 */
static int only_read(struct once__journal *j, once_error *err)
{
    struct once__note note;
    struct once__left left;
    int code = once__session_read(j->lock_fd, j->path, &note, err), i;

    if (code == ONCE_OK && note.state == ONCE__LEFT_NEW)
        code = once__missing(err, j->path, "it was never made whole");
    if (code != ONCE_OK)
        return code;
    for (i = 0; i < READINGS; i++) {
        left = (struct once__left){note.state, note.at, 0};
        if (note.state != ONCE__LEFT_OPEN)
            left.known = note.at;
        code = once__shared_alone(j, note.key, err);
        if (code == ONCE_OK)
            code = once__recover(j, &left, err);
        if (code == ONCE_OK) {
            j->shared->open = 1;
            return ONCE_OK;
        }
        once__segment_close_all(j);
        once__shared_detach(j);
        if (note.state != ONCE__LEFT_OPEN)
            break;
    }
    return code;
}

/* ---- With others --------------------------------------------------------- */

static int are_our_pids(const struct once__journal *j)
{
    return j->shared->pids.device == j->pids.device &&
           j->shared->pids.inode == j->pids.inode;
}

/* ONCE_OK, or why not; 1: they have just left, or one of them died while
 * opening it, so try again. */
static int enter_shared(struct once__journal *j, once_error *err)
{
    struct once__note note;
    int code = once__session_read(j->lock_fd, j->path, &note, err);

    if (code != ONCE_OK)
        return code;
    if (note.state != ONCE__LEFT_OPEN)
        return 1;
    errno = 0;
    code = once__shared_attach(j, note.id, err);
    if (code != ONCE_OK && errno == ENOENT)
        return once__fail(err, ONCE_EOPEN,
                          "%s: it is open in a process that has another "
                          "/dev/shm, as in another container: all must share "
                          "one",
                          j->path);
    if (code == ONCE_OK && !are_our_pids(j))
        code = once__fail(err, ONCE_EOPEN,
                          "%s: it is open in another PID namespace, as in "
                          "another container: all must share one",
                          j->path);
    else if (code == ONCE_OK && !is_our_home(j))
        code = once__fail(err, ONCE_EOPEN,
                          "%s: its file lock is a link to that of another "
                          "folder, which is open: a copy must not share files",
                          j->path);
    else if (code == ONCE_OK && !j->shared->open)
        code = 1;
    if (code != ONCE_OK)
        once__shared_detach(j);
    return code;
}

static int is_busy(int rc)
{
    return rc != 0 && (errno == EAGAIN || errno == EACCES);
}

/* One turn: ONCE_OK, or why not; 1: another has it for himself. What is seen of
 * others is believed when it lasts: one may have died a moment ago. */
static int try_to_enter(struct once__journal *j, int turns, once_error *err)
{
    int rc = lock_file(j->lock_fd, F_WRLCK), code = 1;

    if (rc == 0)
        return enter_first(j, err);
    if (is_busy(rc))
        rc = lock_file(j->lock_fd, F_RDLCK);
    if (rc != 0 && !is_busy(rc))
        return once__fail(err, ONCE_EOPEN, "%s/lock: %s", j->path,
                          strerror(errno));
    if (rc == 0)
        code = enter_shared(j, err);
    if (rc == 0 && code == ONCE_EOPEN && turns <= SURE)
        code = 1;
    if (rc == 0 && code != ONCE_OK)
        (void)lock_file(j->lock_fd, F_UNLCK);
    return code;
}

/* What can be seen of the one we wait for. */
struct progress {
    struct once__note note;
    uint64_t recovered;
};

static void look(struct once__journal *j, struct progress *out)
{
    memset(out, 0, sizeof(*out));
    if (once__session_read(j->lock_fd, j->path, &out->note, NULL) != ONCE_OK ||
        once__shared_attach(j, out->note.id, NULL) != ONCE_OK)
        return;
    out->recovered = j->shared->recovered;
    once__shared_detach(j);
}

static void say_waiting(const struct once__journal *j,
                        const struct progress *seen)
{
    char text[PATH_MAX + 128];

    if (j->event == NULL)
        return;
    (void)snprintf(text, sizeof(text),
                   "%s: waiting for another process that is recovering it and "
                   "has read %" PRIu64 " MiB so far",
                   j->path, seen->recovered >> 20);
    j->event(j->event_user, text);
}

/*
 * Recovering a long log takes its time, and a process that does it and dies
 * lets go of the lock. It is given up only when its recovery makes no progress.
 */
static int wait_to_enter(struct once__journal *j, once_error *err)
{
    const struct timespec turn = {0, TURN_NS};
    struct progress seen, before;
    int turns, still = 0, code;

    memset(&before, 0, sizeof(before));
    for (turns = 1; (code = try_to_enter(j, turns, err)) == 1; turns++) {
        (void)nanosleep(&turn, NULL);
        if (turns % LOOK != 0)
            continue;
        look(j, &seen);
        still = memcmp(&seen, &before, sizeof(seen)) == 0 ? still + 1 : 0;
        before = seen;
        if (still >= STILL)
            return once__fail(err, ONCE_EOPEN,
                              "%s: another process has it for itself and has "
                              "got no further with its recovery for %d s",
                              j->path, STILL);
        if (turns / LOOK % SAY == 1)
            say_waiting(j, &seen);
    }
    return code;
}

int once__session_open(struct once__journal *j, once_error *err)
{
    int code = open_folder(j, err);

    if (code == ONCE_OK)
        code = open_lock(j, err);
    if (code != ONCE_OK)
        return code;
    return j->read_only ? only_read(j, err) : wait_to_enter(j, err);
}

/* The last one out writes down that all is durable, or where to cut. */
static void leave_last(struct once__journal *j)
{
    struct once__shared *s = j->shared;
    struct once__note note;
    int synced = once__journal_sync(j, s->tail, NULL), locked;

    if (once__session_read(j->lock_fd, j->path, &note, NULL) != ONCE_OK ||
        note.state != ONCE__LEFT_OPEN ||
        memcmp(note.id, s->id, ONCE__JOURNAL_ID) != 0)
        return; /* another was in meanwhile and has left it */
    locked = pthread_mutex_trylock(&s->lock);
    if (s->poisoned) {
        note.state = ONCE__LEFT_CUT;
        note.at = s->durable;
    } else if (synced == ONCE_OK && locked == 0 && !s->broken &&
               s->durable == s->tail) {
        ONCE__MUST(!s->flushing);
        note.state = ONCE__LEFT_CLEAN;
        note.at = s->tail;
    } /* else another died here; the next one sees to it */
    if (locked == 0 || locked == EOWNERDEAD) /* it is ours all the same */
        (void)pthread_mutex_unlock(&s->lock);
    if (note.state == ONCE__LEFT_OPEN || write_note(j, &note) == 0)
        once__shared_remove(j, s->id);
}

void once__session_close(struct once__journal *j)
{
    if (j->shared != NULL && j->lock_fd >= 0 && !j->read_only) {
        (void)lock_file(j->lock_fd, F_UNLCK);
        if (lock_file(j->lock_fd, F_WRLCK) == 0)
            leave_last(j);
    }
    once__handle_close(j);
}
