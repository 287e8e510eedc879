/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tape.c - the output of a command, as it is recorded.
 *
 *    0 "ORT"  3 version  4 how  5 zero (3)  8 ...
 *        inline    frames: 0 stream  1 size (4)  5 bytes
 *        spooled   8 size (8)  16 SHA-256 of the file (32)
 *                  48 length, host   then length, name of the file
 *        not kept  nothing
 *
 *    INLINE --over 1 MiB--> SPOOLED        a file of the same frames
 *      |                       |
 *      +----- any trouble -----+--> NOT KEPT, and repeats are refused
 *
 * Numbers are little-endian; a stream is 1 or 2, as its descriptor. The order
 * of the frames is the order in which they were read, which is that in which
 * they were written as far as two pipes can show. A part of the output
 * is never kept as if it were the whole.
 */
#include "programs/once/run/run.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/bytes.h"
#include "base/grow.h"

enum {
    VERSION = 1,
    SIZE_AT = 8,
    SHA_AT = 16,
    NAMES_AT = 48,
    FRAME_MAX = 65536
};

static const uint8_t none[RUN_HEAD] = {'O', 'R', 'T', VERSION, RUN_NOT_KEPT};

/* ---- Recording ------------------------------------------------------------ */

static void lose(struct run_tape *t, int error)
{
    t->lost = error;
    free(t->data);
    t->data = NULL;
    t->size = 0;
    run_spool_discard(&t->spool); /* where it was too long for the disk */
}

static int grow(struct run_tape *t, size_t by)
{
    uint8_t *data = once__grown(t->data, &t->room, t->size + by, 1);

    if (data == NULL)
        return 0;
    t->data = data;
    return 1;
}

void run_tape_init(struct run_tape *t, const char *id, uint64_t fence)
{
    memset(t, 0, sizeof(*t));
    run_spool_init(&t->spool);
    (void)snprintf(t->id, sizeof(t->id), "%s", id);
    t->fence = fence;
    if (!grow(t, RUN_HEAD)) {
        lose(t, ENOMEM);
        return;
    }
    memcpy(t->data, none, RUN_HEAD);
    t->data[4] = RUN_INLINE;
    t->size = RUN_HEAD;
}

/* Whether it needs a frame of its own. */
static size_t more(const struct run_tape *t, int stream)
{
    return t->last > 0 && t->data[t->last] == stream ? 0 : RUN_FRAME;
}

static int add_inline(struct run_tape *t, int stream, const uint8_t *data,
                      size_t size)
{
    uint64_t before;

    if (!grow(t, RUN_FRAME + size))
        return ENOMEM;
    if (more(t, stream) == 0) { /* one frame longer */
        before = once__get(t->data + t->last + 1, 4);
    } else {
        before = 0;
        t->last = t->size;
        t->data[t->last] = (uint8_t)stream;
        t->size += RUN_FRAME;
    }
    once__put(t->data + t->last + 1, before + size, 4);
    memcpy(t->data + t->size, data, size);
    t->size += size;
    return 0;
}

static int add_spooled(struct run_tape *t, int stream, const uint8_t *data,
                       size_t size)
{
    uint8_t head[RUN_FRAME];
    int rc;

    head[0] = (uint8_t)stream;
    once__put(head + 1, size, 4);
    rc = run_spool_write(&t->spool, head, sizeof(head));
    return rc != 0 ? rc : run_spool_write(&t->spool, data, size);
}

static int move_to_spool(struct run_tape *t)
{
    int rc = run_spool_open(&t->spool, t->id, t->fence);

    if (rc == 0)
        rc = run_spool_write(&t->spool, t->data + RUN_HEAD, t->size - RUN_HEAD);
    free(t->data);
    t->data = NULL;
    return rc;
}

void run_tape_add(struct run_tape *t, int stream, const uint8_t *data,
                  size_t size)
{
    int rc = 0;

    if (t->lost || size == 0)
        return;
    if (t->data != NULL &&
        t->size - RUN_HEAD + more(t, stream) + size > RUN_INLINE_MAX)
        rc = move_to_spool(t);
    if (rc == 0)
        rc = t->data != NULL ? add_inline(t, stream, data, size)
                             : add_spooled(t, stream, data, size);
    if (rc != 0)
        lose(t, rc);
}

static size_t put_text(uint8_t *out, const char *text)
{
    size_t n = strlen(text);

    out[0] = (uint8_t)n;
    memcpy(out + 1, text, n);
    return n + 1;
}

static int end_spooled(struct run_tape *t, uint64_t until_ms)
{
    char file[RUN_FILE_SIZE], host[RUN_HOST_MAX + 1] = "";
    uint8_t sha[RUN_SHA_SIZE];
    int rc = run_spool_end(&t->spool, until_ms, file, sha);

    if (rc != 0)
        return rc;
    if (gethostname(host, sizeof(host) - 1) < 0)
        host[0] = '\0';
    t->size = t->room = 0;
    if (!grow(t, NAMES_AT + 2 + RUN_HOST_MAX + RUN_FILE_SIZE))
        return ENOMEM;
    memcpy(t->data, none, RUN_HEAD);
    t->data[4] = RUN_SPOOLED;
    once__put(t->data + SIZE_AT, t->spool.size, 8);
    memcpy(t->data + SHA_AT, sha, sizeof(sha));
    t->size = NAMES_AT;
    t->size += put_text(t->data + t->size, host);
    t->size += put_text(t->data + t->size, file);
    return 0;
}

once_bytes run_tape_end(struct run_tape *t, uint64_t until_ms)
{
    if (!t->lost && t->data == NULL) {
        int rc = end_spooled(t, until_ms);

        if (rc != 0)
            lose(t, rc);
    }
    return t->lost ? run_tape_none() : (once_bytes){t->data, t->size};
}

void run_tape_clear(struct run_tape *t)
{
    free(t->data);
    t->data = NULL;
    run_spool_close(&t->spool);
}

once_bytes run_tape_none(void)
{
    return (once_bytes){none, sizeof(none)};
}

/* ---- Reading -------------------------------------------------------------- */

int run_frame(const uint8_t head[RUN_FRAME], int *stream, uint32_t *size)
{
    *stream = head[0];
    *size = (uint32_t)once__get(head + 1, 4);
    return (*stream == 1 || *stream == 2) && *size > 0;
}

static int frames_check(once_bytes in)
{
    const uint8_t *p = in.data;
    size_t left = in.size;

    while (left > 0) {
        uint32_t size = 0;
        int stream;

        if (left < RUN_FRAME || !run_frame(p, &stream, &size) ||
            left - RUN_FRAME < size)
            return 0;
        p += RUN_FRAME + size;
        left -= RUN_FRAME + size;
    }
    return 1;
}

/* One length byte and the text; 0 if it does not fit or has a NUL. */
static int get_text(once_bytes *in, char *out, size_t room)
{
    const uint8_t *p = in->data;
    size_t n;

    if (in->size == 0)
        return 0;
    n = p[0];
    if (n >= room || in->size - 1 < n || memchr(p + 1, 0, n) != NULL)
        return 0;
    memcpy(out, p + 1, n);
    out[n] = '\0';
    *in = (once_bytes){p + 1 + n, in->size - 1 - n};
    return 1;
}

int run_recording_read(once_bytes in, struct run_recording *out)
{
    const uint8_t *p = in.data;
    once_bytes rest;

    memset(out, 0, sizeof(*out));
    if (in.size < RUN_HEAD || memcmp(p, none, 4) != 0 ||
        p[5] + p[6] + p[7] != 0)
        return 0;
    out->how = p[4];
    rest = (once_bytes){p + RUN_HEAD, in.size - RUN_HEAD};
    switch (out->how) {
    case RUN_INLINE:
        out->frames = rest;
        return frames_check(rest);
    case RUN_SPOOLED:
        if (in.size < NAMES_AT)
            return 0;
        out->size = once__get(p + SIZE_AT, 8);
        out->sha = p + SHA_AT;
        rest = (once_bytes){p + NAMES_AT, in.size - NAMES_AT};
        return get_text(&rest, out->host, sizeof(out->host)) &&
               get_text(&rest, out->file, sizeof(out->file)) && rest.size == 0;
    case RUN_NOT_KEPT:
        return rest.size == 0;
    default:
        return 0;
    }
}
