/* SPDX-License-Identifier: Apache-2.0 */
/*
 * write.c - from a store into a file.
 *
 * A page of names, then the records of these names with their bytes, in steps
 * that fit into memory. The file is written beside its place and renamed when
 * it is whole and flushed, so half a copy is never taken for one.
 */
#include "operate/copy/copy.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <openssl/evp.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/bytes.h"
#include "base/error.h"
#include "base/grow.h"
#include "base/path.h"
#include "calls/core/bounds.h"
#include "calls/core/record.h"
#include "calls/store/store.h"

enum {
    TRIES = 100,
    PAUSE_MS = 50,
    STORED_MS = 60000 /* how old the time that a store keeps may be, and more */
};

struct writer {
    once_store *s;
    FILE *to;
    EVP_MD_CTX *md;
    once__copy_about *about;
    once_error *err;
    /* A page. */
    size_t n;
    size_t sizes[ONCE__COPY_RECORDS];
    once_op ops[ONCE__COPY_RECORDS];
    once_op *list[ONCE__COPY_RECORDS];
    once_position last;
    uint8_t *bytes; /* of one record */
    size_t room;
};

static int put(struct writer *w, const void *data, size_t size)
{
    return fwrite(data, 1, size, w->to) == size &&
           EVP_DigestUpdate(w->md, data, size) == 1;
}

static int failed(struct writer *w)
{
    return once__fail(w->err, ONCE_EOPEN, "copy: writing: %s", strerror(errno));
}

static uint64_t now_ms(once_store *s)
{
    once_store_time t;

    if (s->ops->time != NULL && s->ops->time(s, NULL, &t, NULL) == ONCE_OK)
        return t.now_ms;
    return once__wall_clock(NULL);
}

/* A clock that is ahead was not believed, so nothing was forgotten by it. Less
 * than the age of the time that is stored is no sign of that. */
static uint64_t ahead_ms(once_store *s)
{
    once_clock clock = {.every_ms = 1000};

    if (once_store_clock(s, &clock, NULL) != ONCE_OK ||
        clock.behind_ms < STORED_MS)
        return 0;
    return clock.behind_ms;
}

static int put_head(struct writer *w)
{
    uint8_t head[ONCE__COPY_HEAD] = "ONCECOPY";
    once_store_head of;
    int rc = w->s->ops->head(w->s, NULL, &of, w->err);

    if (rc != ONCE_OK)
        return rc;
    w->about->incarnation = of.incarnation;
    memcpy(w->about->id, of.id, sizeof(of.id));
    /* What is absent in a gap is as unknown in the copy. */
    if (of.gap != ONCE_GAP_NONE && of.gap_until_ms > w->about->begun_ms)
        w->about->keep_ms = of.gap_until_ms - w->about->begun_ms;
    once__put(head + 8, ONCE__COPY_VERSION, 4);
    once__put(head + 12, of.incarnation, 4);
    memcpy(head + 16, of.id, sizeof(of.id));
    once__put(head + 32, w->about->begun_ms, 8);
    once__put(head + 40, ONCE__RECORD_VERSION, 4);
    w->about->ahead_ms = ahead_ms(w->s);
    once__put(head + 44, w->about->ahead_ms, 8);
    return put(w, head, sizeof(head)) ? ONCE_OK : failed(w);
}

static int put_end(struct writer *w)
{
    uint8_t end[ONCE__COPY_END];
    int rc = w->s->ops->fence(w->s, &w->about->fence, w->err);

    if (rc != ONCE_OK)
        return rc;
    if (!once__fence_fits(w->about->fence, w->about->incarnation))
        return once__fail(w->err, ONCE_EOPEN,
                          "copy: the store was restored meanwhile: copy it "
                          "again");
    w->about->ended_ms = now_ms(w->s);
    once__put(end, 0, 4);
    once__put(end + 4, w->about->records, 8);
    once__put(end + 12, w->about->fence, 8);
    once__put(end + 20, w->about->keep_ms, 8);
    once__put(end + 28, w->about->ended_ms, 8);
    if (!put(w, end, ONCE__COPY_SUM) ||
        EVP_DigestFinal_ex(w->md, end + ONCE__COPY_SUM, NULL) != 1 ||
        fwrite(end + ONCE__COPY_SUM, 1, 32, w->to) != 32)
        return failed(w);
    return ONCE_OK;
}

static int put_record(struct writer *w, const uint8_t *name,
                      const once_record *r)
{
    size_t size = once__record_size(r);
    uint8_t head[4 + ONCE_NAME_SIZE];
    void *bytes = once__grown(w->bytes, &w->room, size, 1);

    if (bytes == NULL)
        return once__fail(w->err, ONCE_ENOMEM, "copy: out of memory");
    w->bytes = bytes;
    once__put(head, size, 4);
    memcpy(head + 4, name, ONCE_NAME_SIZE);
    once__record_encode(r, name, w->bytes);
    if (!put(w, head, sizeof(head)) || !put(w, w->bytes, size))
        return failed(w);
    w->about->records++;
    if (r->state == ONCE_COMPLETED && r->keep_ms > r->ended_ms &&
        r->keep_ms - r->ended_ms > w->about->keep_ms)
        w->about->keep_ms = r->keep_ms - r->ended_ms;
    return ONCE_OK;
}

/* ---- Reading the store ----------------------------------------------------- */

static int collect(void *user, const uint8_t name[ONCE_NAME_SIZE],
                   const once_record *r)
{
    struct writer *w = user;
    once_op *op = &w->ops[w->n];

    memcpy(w->last.name, name, ONCE_NAME_SIZE);
    if (r->state > ONCE_INDETERMINATE) {
        w->about->unreadable++;
        return 0;
    }
    memset(op, 0, sizeof(*op));
    op->verb = ONCE_OP_SHOW;
    memcpy(op->name, name, ONCE_NAME_SIZE);
    w->sizes[w->n] = r->result.size;
    w->list[w->n] = op;
    return ++w->n == ONCE__COPY_RECORDS;
}

/* A store that is busy is asked again for a while. */
static int ask(struct writer *w, once_op **ops, size_t n)
{
    const struct timespec pause = {0, PAUSE_MS * 1000000L};
    int rc = ONCE_ESTORE, i;

    for (i = 0; i < TRIES && rc == ONCE_ESTORE; i++) {
        if (i > 0)
            (void)nanosleep(&pause, NULL);
        rc = w->s->ops->apply(w->s, ops, n, w->err);
    }
    return rc;
}

static int put_page(struct writer *w)
{
    size_t from, to, bytes;
    int rc = ONCE_OK;

    for (from = 0; from < w->n && rc == ONCE_OK; from = to) {
        bytes = 0;
        for (to = from; to < w->n && (to == from || bytes < ONCE__COPY_BYTES);
             to++)
            bytes += w->sizes[to];
        rc = ask(w, w->list + from, to - from);
        for (; rc == ONCE_OK && from < to; from++) {
            const once_op *op = &w->ops[from];

            if (op->rc < 0)
                w->about->unreadable++;
            else if (op->record.attempt > 0) /* or forgotten meanwhile */
                rc = put_record(w, op->name, &op->record);
        }
    }
    return rc;
}

static int put_records(struct writer *w, once__copy_progress *progress,
                       void *user)
{
    const once_position *after = NULL;
    int rc = ONCE_OK, shown;

    do {
        w->n = 0;
        shown = w->s->ops->scan(w->s, ONCE_SCAN_ALL, after, ONCE__COPY_RECORDS,
                                collect, w, w->err);
        if (shown < 0)
            return shown;
        after = &w->last;
        rc = put_page(w);
        if (progress != NULL)
            progress(user, w->about->records);
    } while (rc == ONCE_OK && shown > 0);
    return rc;
}

/* ---- The file --------------------------------------------------------------- */

static int write_all(struct writer *w, once__copy_progress *progress,
                     void *user)
{
    int rc;

    w->about->begun_ms = now_ms(w->s); /* before the first record is read */
    rc = put_head(w);
    if (rc == ONCE_OK)
        rc = put_records(w, progress, user);
    if (rc == ONCE_OK)
        rc = put_end(w);
    if (rc == ONCE_OK && (fflush(w->to) != 0 || fsync(fileno(w->to)) != 0))
        rc = failed(w);
    return rc;
}

/* Gives the file its name, unless something has that name. */
static int publish(const char *from, const char *path, once_error *err)
{
    if (link(from, path) != 0 || unlink(from) != 0 ||
        once__path_sync_folder(path) != 0)
        return once__fail(err, ONCE_EOPEN, "copy: %s: %s", path,
                          strerror(errno));
    return ONCE_OK;
}

int once__copy_write(once_store *s, const char *path,
                     once__copy_progress *progress, void *user,
                     once__copy_about *about, once_error *err)
{
    struct writer *w = NULL;
    char part[PATH_MAX];
    int fd, rc = ONCE_ENOMEM;

    memset(about, 0, sizeof(*about));
    if (s->ops->head == NULL)
        return once__fail(err, ONCE_ENOSYS,
                          "%s: this store is copied by tools of its own",
                          s->ops->name);
    if (access(path, F_OK) == 0)
        return once__fail(err, ONCE_EOPEN, "copy: %s is there already", path);
    if ((size_t)snprintf(part, sizeof(part), "%s.part", path) >= sizeof(part))
        return once__fail(err, ONCE_EOPEN, "copy: the path is too long");
    fd = open(part, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (fd < 0)
        return once__fail(err, ONCE_EOPEN, "copy: %s: %s", part,
                          strerror(errno));
    w = calloc(1, sizeof(*w));
    if (w != NULL) {
        w->s = s;
        w->about = about;
        w->err = err;
        w->to = fdopen(fd, "w");
        w->md = EVP_MD_CTX_new();
    }
    if (w == NULL || w->to == NULL || w->md == NULL ||
        EVP_DigestInit_ex(w->md, EVP_sha256(), NULL) != 1)
        (void)once__fail(err, rc, "copy: out of memory");
    else
        rc = write_all(w, progress, user);
    if (w != NULL && w->to != NULL)
        (void)fclose(w->to);
    else
        (void)close(fd);
    if (rc == ONCE_OK)
        rc = publish(part, path, err);
    if (rc != ONCE_OK)
        (void)unlink(part);
    if (w != NULL) {
        EVP_MD_CTX_free(w->md);
        free(w->bytes);
    }
    free(w);
    return rc;
}
