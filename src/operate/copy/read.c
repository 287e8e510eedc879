/* SPDX-License-Identifier: Apache-2.0 */
/*
 * read.c - a copy, record by record. Its sum is checked before the first one is
 * shown: half a copy, or a changed one, is not used.
 */
#include "operate/copy/copy.h"

#include <errno.h>
#include <openssl/evp.h>
#include <stdlib.h>
#include <string.h>

#include "base/bytes.h"
#include "base/error.h"
#include "base/grow.h"
#include "calls/core/bounds.h"
#include "calls/core/record.h"

enum { BLOCK = 1 << 16 };

struct once__copy {
    FILE *from;
    once__copy_about about;
    uint64_t left; /* records not shown yet */
    uint8_t *bytes;
    size_t room;
};

static int damaged(once_error *err, const char *what)
{
    return once__fail(err, ONCE_ECORRUPT, "copy: %s", what);
}

static int read_head(once__copy *c, once_error *err)
{
    uint8_t head[ONCE__COPY_HEAD];

    if (fread(head, 1, sizeof(head), c->from) != sizeof(head) ||
        memcmp(head, "ONCECOPY", 8) != 0)
        return damaged(err, "this is no copy of a store");
    if (once__get(head + 8, 4) != ONCE__COPY_VERSION ||
        once__get(head + 40, 4) != ONCE__RECORD_VERSION)
        return once__fail(err, ONCE_EVERSION,
                          "copy: of version %u with records of version %u; "
                          "this program reads %d and %d",
                          (unsigned)once__get(head + 8, 4),
                          (unsigned)once__get(head + 40, 4), ONCE__COPY_VERSION,
                          ONCE__RECORD_VERSION);
    c->about.incarnation = (uint32_t)once__get(head + 12, 4);
    memcpy(c->about.id, head + 16, ONCE_STORE_ID_SIZE);
    c->about.begun_ms = once__get(head + 32, 8);
    c->about.ahead_ms = once__get(head + 44, 8);
    return ONCE_OK;
}

static int read_end(once__copy *c, uint8_t end[ONCE__COPY_END], off_t *at,
                    once_error *err)
{
    if (fseeko(c->from, -(off_t)ONCE__COPY_END, SEEK_END) != 0 ||
        (*at = ftello(c->from)) < ONCE__COPY_HEAD ||
        fread(end, 1, ONCE__COPY_END, c->from) != ONCE__COPY_END ||
        once__get(end, 4) != 0)
        return damaged(err, "its end is missing");
    c->about.records = once__get(end + 4, 8);
    c->about.fence = once__get(end + 12, 8);
    c->about.keep_ms = once__get(end + 20, 8);
    c->about.ended_ms = once__get(end + 28, 8);
    return ONCE_OK;
}

/* Only a damaged copy, or one that somebody has made up, has others. */
static int check_numbers(const once__copy_about *a, once_error *err)
{
    if (a->incarnation > ONCE_INCARNATION_MAX)
        return damaged(err, "its incarnation is larger than one can be");
    if (!once__fence_fits(a->fence, a->incarnation))
        return damaged(err, "its largest fence belongs to a later incarnation");
    if (a->begun_ms > ONCE__TIME_MAX || a->ended_ms > ONCE__TIME_MAX ||
        a->ahead_ms > ONCE__TIME_MAX || a->keep_ms > ONCE__TIME_MAX)
        return damaged(err, "one of its times is larger than one can be");
    return ONCE_OK;
}

static int sum_up_to(once__copy *c, off_t left, uint8_t sum[32])
{
    uint8_t *block = malloc(BLOCK);
    EVP_MD_CTX *md = EVP_MD_CTX_new();
    int good = block != NULL && md != NULL &&
               EVP_DigestInit_ex(md, EVP_sha256(), NULL) == 1 &&
               fseeko(c->from, 0, SEEK_SET) == 0;

    while (good && left > 0) {
        size_t want = left < BLOCK ? (size_t)left : BLOCK;

        good = fread(block, 1, want, c->from) == want &&
               EVP_DigestUpdate(md, block, want) == 1;
        left -= (off_t)want;
    }
    good = good && EVP_DigestFinal_ex(md, sum, NULL) == 1;
    EVP_MD_CTX_free(md);
    free(block);
    return good;
}

static int check(once__copy *c, once_error *err)
{
    uint8_t end[ONCE__COPY_END], sum[32];
    off_t at = 0;
    int rc = read_head(c, err);

    if (rc == ONCE_OK)
        rc = read_end(c, end, &at, err);
    if (rc != ONCE_OK)
        return rc;
    if (!sum_up_to(c, at + ONCE__COPY_SUM, sum) ||
        memcmp(sum, end + ONCE__COPY_SUM, sizeof(sum)) != 0)
        return damaged(err, "its checksum differs");
    rc = check_numbers(&c->about, err);
    if (rc != ONCE_OK)
        return rc;
    c->left = c->about.records;
    return fseeko(c->from, ONCE__COPY_HEAD, SEEK_SET) == 0
               ? ONCE_OK
               : damaged(err, strerror(errno));
}

int once__copy_open(const char *path, once_error *err, once__copy **out)
{
    once__copy *c = calloc(1, sizeof(*c));
    int rc;

    if (c == NULL)
        return once__fail(err, ONCE_ENOMEM, "copy: out of memory");
    c->from = fopen(path, "re");
    if (c->from == NULL)
        rc = once__fail(err, ONCE_EOPEN, "copy: %s: %s", path, strerror(errno));
    else
        rc = check(c, err);
    if (rc == ONCE_OK)
        *out = c;
    else
        once__copy_close(c);
    return rc;
}

void once__copy_close(once__copy *c)
{
    if (c == NULL)
        return;
    if (c->from != NULL)
        (void)fclose(c->from);
    free(c->bytes);
    free(c);
}

const once__copy_about *once__copy_about_of(const once__copy *c)
{
    return &c->about;
}

int once__copy_next(once__copy *c, once_named *out, once_error *err)
{
    uint8_t head[4 + ONCE_NAME_SIZE];
    size_t size;
    void *bytes;
    int rc;

    if (c->left == 0)
        return 0;
    if (fread(head, 1, sizeof(head), c->from) != sizeof(head))
        return damaged(err, "it has fewer records than it says");
    size = (size_t)once__get(head, 4);
    if (size > ONCE__RECORD_HEAD + ONCE_RESULT_MAX + ONCE_NOTE_MAX +
                   ONCE_LABEL_MAX + ONCE__RECORD_SUM)
        return damaged(err, "a record is longer than one can be");
    bytes = once__grown(c->bytes, &c->room, size, 1);
    if (bytes == NULL)
        return once__fail(err, ONCE_ENOMEM, "copy: out of memory");
    c->bytes = bytes;
    if (size == 0 || fread(c->bytes, 1, size, c->from) != size)
        return damaged(err, "a record is cut short");
    memcpy(out->name, head + 4, ONCE_NAME_SIZE);
    rc = once__record_decode((once_bytes){c->bytes, size}, out->name,
                             &out->record, err);
    if (rc != ONCE_OK)
        return rc;
    if (!once__fence_fits(out->record.fence, c->about.incarnation))
        return damaged(err, "a record's fence belongs to a later incarnation");
    c->left--;
    return 1;
}
