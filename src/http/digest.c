/* SPDX-License-Identifier: Apache-2.0 */
/*
 * digest.c - the stored name and the fingerprint of a request (docs/http.md,
 * 1), both SHA-256.
 *
 *    name         frame(tag) frame(scope) frame(realm) frame(method)
 *                 frame(path) frame(key)
 *    fingerprint  frame(tag) frame(query) frame(content-type)
 *                 frame(content-encoding) body... length(body)
 *
 * A frame is a length in eight bytes, little-endian, and the bytes. So ("a",
 * "bc") and ("ab", "c") differ, and since the tags differ a name is never a
 * fingerprint of anything. The body is streamed, and its length stands behind
 * it because it is not known before: all in front of it is framed, so it can
 * still be read in only one way.
 *
 * What is hashed here is compared with what an older release has stored: a
 * change needs a new tag and means that no key is known any more. The tests
 * hold the sums that other programs have computed.
 */
#include "http/http.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include <openssl/evp.h>

#define NAME_TAG "once name 1"
#define FINGERPRINT_TAG "once fingerprint 1"

#define COUNT(a) (sizeof(a) / sizeof((a)[0]))

struct once__fingerprint {
    EVP_MD_CTX *md;
    uint64_t body; /* bytes so far */
};

static once_bytes text(const char *data, size_t size)
{
    once_bytes b = {data, size};

    return b;
}

/* SHA-256 over memory has no input that it could refuse. A sum over less than
 * we were given would match another request: then better stop. */
static void add(EVP_MD_CTX *md, const void *data, size_t size)
{
    int ok = size == 0 || EVP_DigestUpdate(md, data, size);

    assert(ok);
    (void)ok;
}

static void add_length(EVP_MD_CTX *md, uint64_t length)
{
    uint8_t bytes[8];
    size_t i;

    for (i = 0; i < sizeof(bytes); i++)
        bytes[i] = (uint8_t)(length >> (8 * i));
    add(md, bytes, sizeof(bytes));
}

static void add_frames(EVP_MD_CTX *md, const once_bytes *parts, size_t n)
{
    size_t i;

    for (i = 0; i < n; i++) {
        add_length(md, parts[i].size);
        add(md, parts[i].data, parts[i].size);
    }
}

static void finish(EVP_MD_CTX *md, uint8_t out[32])
{
    unsigned int size = 0;
    int ok = EVP_DigestFinal_ex(md, out, &size);

    assert(ok && size == 32);
    (void)ok;
}

/* A context that has begun, or NULL without memory. */
static EVP_MD_CTX *begin(void)
{
    EVP_MD_CTX *md = EVP_MD_CTX_new();

    if (md != NULL && !EVP_DigestInit_ex(md, EVP_sha256(), NULL)) {
        EVP_MD_CTX_free(md);
        md = NULL;
    }
    return md;
}

int once__name(once_bytes scope, once_bytes realm, once_bytes method,
               once_bytes path, once_bytes key, uint8_t out[ONCE_NAME_SIZE])
{
    const once_bytes parts[] = {
        text(NAME_TAG, sizeof(NAME_TAG) - 1), scope, realm, method, path, key,
    };
    EVP_MD_CTX *md = begin();

    if (md == NULL)
        return ONCE_ENOMEM;
    add_frames(md, parts, COUNT(parts));
    finish(md, out);
    EVP_MD_CTX_free(md);
    return ONCE_OK;
}

int once__fingerprint_new(once_bytes query, once_bytes content_type,
                          once_bytes content_encoding, once__fingerprint **out)
{
    const once_bytes parts[] = {
        text(FINGERPRINT_TAG, sizeof(FINGERPRINT_TAG) - 1),
        query,
        content_type,
        content_encoding,
    };
    once__fingerprint *f = calloc(1, sizeof(*f));

    if (f == NULL)
        return ONCE_ENOMEM;
    f->md = begin();
    if (f->md == NULL) {
        free(f);
        return ONCE_ENOMEM;
    }
    add_frames(f->md, parts, COUNT(parts));
    *out = f;
    return ONCE_OK;
}

void once__fingerprint_body(once__fingerprint *f, const void *data, size_t size)
{
    assert(f->md != NULL); /* The end is the end. */
    add(f->md, data, size);
    f->body += size;
}

void once__fingerprint_end(once__fingerprint *f,
                           uint8_t out[ONCE_FINGERPRINT_SIZE])
{
    assert(f->md != NULL);
    add_length(f->md, f->body);
    finish(f->md, out);
    EVP_MD_CTX_free(f->md);
    f->md = NULL;
}

void once__fingerprint_free(once__fingerprint *f)
{
    if (f == NULL)
        return;
    EVP_MD_CTX_free(f->md);
    free(f);
}

void once__name_hex(const uint8_t name[ONCE_NAME_SIZE], char out[17])
{
    static const char digits[] = "0123456789abcdef";
    size_t i;

    for (i = 0; i < 8; i++) {
        out[2 * i] = digits[name[i] >> 4];
        out[2 * i + 1] = digits[name[i] & 15];
    }
    out[16] = '\0';
}

void once__group(once_bytes realm, uint8_t out[ONCE_GROUP_SIZE])
{
    const uint8_t *from = realm.data;
    size_t i;

    memset(out, 0, ONCE_GROUP_SIZE);
    for (i = 0; i < realm.size && i < ONCE_GROUP_SIZE; i++)
        out[i] = from[i] > ' ' && from[i] < 0x7f ? from[i] : '?';
}
