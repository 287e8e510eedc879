/* SPDX-License-Identifier: Apache-2.0 */
/*
 * replay.c - the output of a command that has run before, to the same streams.
 *
 * All of it is found and checked before the first byte is shown. A record that is
 * corrupt, or a file that is missing, too short or changed, is an error, and never
 * a shorter output.
 */
#include "programs/once/run/run.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { CHUNK = 65536 };

static int cannot_write(const struct cli *c, int error)
{
    return cli_say(c, RUN_OUTPUT,
                   "the command has run before; its output could not be "
                   "written here: %s",
                   strerror(error));
}

static int replay_inline(const struct cli *c, once_bytes frames)
{
    const uint8_t *p = frames.data;
    size_t left = frames.size;
    int stream = 0, rc = 0;

    while (left > 0 && rc == 0) {
        uint32_t size = 0;

        (void)run_frame(p, &stream, &size); /* checked when it was read */
        rc = run_write(stream, p + RUN_FRAME, size);
        p += RUN_FRAME + size;
        left -= RUN_FRAME + size;
    }
    return rc == 0 ? CLI_OK : cannot_write(c, rc);
}

/* ---- From a file ----------------------------------------------------------- */

static int gone(const struct cli *c, const struct run_recording *r,
                const char *why)
{
    return cli_say(c, RUN_OUTPUT,
                   "the command has run before, on the host %s; its output of "
                   "%llu bytes is not to be had here: %s.\nIt is the file %s "
                   "in the folder spool beside the store of that user there",
                   r->host, (unsigned long long)r->size, why, r->file);
}

/* 1 if all of the file is there and is what was recorded. */
static int verify(int fd, const struct run_recording *r, uint8_t *chunk)
{
    EVP_MD_CTX *md = EVP_MD_CTX_new();
    uint8_t sha[RUN_SHA_SIZE] = {0};
    unsigned int size = 0;
    uint64_t total = 0;
    ssize_t n = -1;
    int ok = 0;

    if (md == NULL || !EVP_DigestInit_ex(md, EVP_sha256(), NULL))
        goto out;
    while ((n = read(fd, chunk, CHUNK)) > 0) {
        total += (uint64_t)n;
        if (!EVP_DigestUpdate(md, chunk, (size_t)n))
            goto out;
    }
    ok = n == 0 && EVP_DigestFinal_ex(md, sha, &size) && total == r->size &&
         memcmp(sha, r->sha, sizeof(sha)) == 0 && lseek(fd, 0, SEEK_SET) == 0;
out:
    EVP_MD_CTX_free(md);
    return ok;
}

static int read_exactly(FILE *in, void *data, size_t size)
{
    return fread(data, 1, size, in) == size;
}

/* 0, an errno of writing, or -1 if the file is not what it was. */
static int show_frames(FILE *in, uint64_t left, uint8_t *chunk)
{
    int stream = 0, rc = 0;

    while (left > 0 && rc == 0) {
        uint8_t head[RUN_FRAME];
        uint32_t size = 0;

        if (left < RUN_FRAME || !read_exactly(in, head, sizeof(head)) ||
            !run_frame(head, &stream, &size) || left - RUN_FRAME < size)
            return -1;
        left -= RUN_FRAME + size;
        while (size > 0 && rc == 0) {
            size_t n = size < CHUNK ? size : CHUNK;

            if (!read_exactly(in, chunk, n))
                return -1;
            rc = run_write(stream, chunk, n);
            size -= (uint32_t)n;
        }
    }
    return rc;
}

static int replay_file(const struct cli *c, const struct run_recording *r)
{
    int fd = run_spool_find(r->file), rc;
    uint8_t *chunk;
    FILE *in;

    if (fd < 0)
        return gone(
            c, r, errno == ENOENT ? "there is no such file" : strerror(errno));
    chunk = malloc(CHUNK);
    in = fdopen(fd, "rb");
    if (chunk == NULL || in == NULL) {
        rc = gone(c, r, "out of memory");
        goto out;
    }
    if (verify(fd, r, chunk)) {
        rc = show_frames(in, r->size, chunk);
        if (rc > 0)
            rc = cannot_write(c, rc);
        else if (rc < 0)
            rc = gone(c, r, "the file was changed while it was read");
    } else {
        rc = gone(c, r, "the file is not the one that was recorded");
    }
out:
    if (in != NULL)
        (void)fclose(in);
    else
        (void)close(fd);
    free(chunk);
    return rc;
}

/* ---- Either ---------------------------------------------------------------- */

int run_replay(const struct cli *c, const once_result *result)
{
    struct run_recording r;
    int rc;

    if (strcmp(result->type, RUN_TYPE) != 0) {
        /* Of an operator, or the result of a program: bytes as they are. */
        rc = run_write(STDOUT_FILENO, result->bytes.data, result->bytes.size);
        return rc == 0 ? CLI_OK : cannot_write(c, rc);
    }
    if (!run_recording_read(result->bytes, &r))
        return cli_say(c, RUN_OUTPUT,
                       "the command has run before; what is recorded of its "
                       "output is corrupt");
    switch (r.how) {
    case RUN_INLINE:
        return replay_inline(c, r.frames);
    case RUN_SPOOLED:
        return replay_file(c, &r);
    default:
        return cli_say(c, RUN_OUTPUT,
                       "the command has run before and ended with exit status "
                       "%d; its output could not be kept",
                       result->code);
    }
}
