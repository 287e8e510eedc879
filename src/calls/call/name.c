/* SPDX-License-Identifier: Apache-2.0 */
/*
 * name.c - the stored name of (group, key) and the fingerprint of a call, both
 * SHA-256.
 *
 *    name         frame(tag) frame(group) frame(key)
 *    fingerprint  frame(tag) frame(bytes)
 *
 * A frame is a length in eight bytes, little-endian, and the bytes, as in
 * src/calls/http/digest.c; the tags differ from those there, so a call and a
 * request never share a record by chance. The hashes are compared with those
 * that older releases have stored: a change needs a new tag, and then no stored
 * key is found any more.
 *
 * A group must be visible ASCII, because it is stored in clear for an
 * operator's list. No error text contains a key.
 */
#include "calls/call/call.h"

#include <assert.h>
#include <string.h>

#include <openssl/evp.h>

#include "base/error.h"

#define NAME_TAG "once call name 1"
#define FINGERPRINT_TAG "once call fingerprint 1"

/* SHA-256 over memory cannot fail. A hash over only a part of the input could
 * be that of another call, so a failure stops the process. */
static void add_frame(EVP_MD_CTX *md, const void *data, size_t size)
{
    uint64_t left = size;
    uint8_t length[8];
    size_t i;
    int ok;

    for (i = 0; i < sizeof(length); i++, left >>= 8)
        length[i] = (uint8_t)(left & 255);
    ok = EVP_DigestUpdate(md, length, sizeof(length));
    assert(ok);
    ok = size == 0 || EVP_DigestUpdate(md, data, size);
    assert(ok);
    (void)ok;
}

static int digest(const once_bytes *parts, size_t n, uint8_t out[32])
{
    EVP_MD_CTX *md = EVP_MD_CTX_new();
    unsigned int size = 0;
    int rc = ONCE_ENOMEM, ok;
    size_t i;

    if (md == NULL || !EVP_DigestInit_ex(md, EVP_sha256(), NULL))
        goto out;
    for (i = 0; i < n; i++)
        add_frame(md, parts[i].data, parts[i].size);
    ok = EVP_DigestFinal_ex(md, out, &size);
    assert(ok && size == 32);
    (void)ok;
    rc = ONCE_OK;
out:
    EVP_MD_CTX_free(md);
    return rc;
}

static int check_group(const char *group, size_t size, once_error *err)
{
    size_t i;

    if (size == 0)
        return once__fail(err, ONCE_EINVAL, "group: it is empty");
    if (size > ONCE_GROUP_SIZE)
        return once__fail(err, ONCE_ELIMIT, "group: over %d characters",
                          ONCE_GROUP_SIZE);
    for (i = 0; i < size; i++)
        if (group[i] <= ' ' || group[i] > '~')
            return once__fail(err, ONCE_EINVAL,
                              "group: character %zu is not visible ASCII",
                              i + 1);
    return ONCE_OK;
}

static int check_key(once_bytes key, once_error *err)
{
    if (key.size == 0)
        return once__fail(err, ONCE_EINVAL, "key: it is empty");
    if (key.size > ONCE_KEY_MAX)
        return once__fail(err, ONCE_ELIMIT, "key: %zu bytes are over %zu",
                          key.size, ONCE_KEY_MAX);
    return ONCE_OK;
}

int once__call_name(const char *group, once_bytes key,
                    uint8_t name[ONCE_NAME_SIZE], once_error *err)
{
    const char *g = group != NULL ? group : ONCE_GROUP_DEFAULT;
    const once_bytes parts[] = {
        {NAME_TAG, sizeof(NAME_TAG) - 1},
        {g, strnlen(g, ONCE_GROUP_SIZE + 1)},
        key,
    };
    uint8_t sum[ONCE_NAME_SIZE];
    int rc = check_group(g, parts[1].size, err);

    if (rc == ONCE_OK)
        rc = check_key(key, err);
    if (rc != ONCE_OK)
        return rc;
    if (digest(parts, sizeof(parts) / sizeof(parts[0]), sum) != ONCE_OK)
        return once__fail(err, ONCE_ENOMEM, "name: out of memory");
    memcpy(name, sum, sizeof(sum));
    return ONCE_OK;
}

int once_name(const char *group, once_bytes key, uint8_t name[ONCE_NAME_SIZE])
{
    return once__call_name(group, key, name, NULL);
}

int once__call_fingerprint(once_bytes what, uint8_t out[ONCE_FINGERPRINT_SIZE])
{
    const once_bytes parts[] = {
        {FINGERPRINT_TAG, sizeof(FINGERPRINT_TAG) - 1},
        what,
    };

    return digest(parts, sizeof(parts) / sizeof(parts[0]), out);
}
