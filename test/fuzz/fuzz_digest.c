/* SPDX-License-Identifier: Apache-2.0 */
/* fuzz_digest.c - the framing of stored name and fingerprint: compared with a
 * second implementation, however the body is cut; and what is cut in another
 * place between two parts is another request. */
#include "fuzz.h"

#include <openssl/sha.h>

#include "http/http.h"

enum { PARTS = 5 };

struct buffer {
    uint8_t bytes[1 << 16];
    size_t size;
};

static void put(struct buffer *b, const void *data, size_t size)
{
    MUST(b->size + size <= sizeof(b->bytes));
    if (size > 0)
        memcpy(b->bytes + b->size, data, size);
    b->size += size;
}

static void put_length(struct buffer *b, uint64_t length)
{
    uint8_t bytes[8];
    size_t i;

    for (i = 0; i < 8; i++)
        bytes[i] = (uint8_t)(length >> 8 * i);
    put(b, bytes, 8);
}

static void put_frame(struct buffer *b, once_bytes part)
{
    put_length(b, part.size);
    put(b, part.data, part.size);
}

static void begin(struct buffer *b, const char *tag)
{
    b->size = 0;
    put_frame(b, (once_bytes){tag, strlen(tag)});
}

static void name_of(const once_bytes *p, uint8_t out[ONCE_NAME_SIZE])
{
    MUST(once__name(p[0], p[1], p[2], p[3], p[4], out) == ONCE_OK);
}

static void check_name(struct buffer *b, const once_bytes *parts)
{
    uint8_t ours[ONCE_NAME_SIZE], theirs[SHA256_DIGEST_LENGTH];
    once_bytes moved[PARTS];
    size_t i;

    begin(b, "once name 1");
    for (i = 0; i < PARTS; i++)
        put_frame(b, parts[i]);
    SHA256(b->bytes, b->size, theirs);
    name_of(parts, ours);
    MUST(memcmp(ours, theirs, sizeof(ours)) == 0);
    for (i = 0; i + 1 < PARTS; i++) {
        if (parts[i].size == 0)
            continue;
        memcpy(moved, parts, sizeof(moved));
        moved[i].size--;
        moved[i + 1].data = (const uint8_t *)parts[i].data + moved[i].size;
        moved[i + 1].size++; /* parts lie side by side */
        name_of(moved, theirs);
        MUST(memcmp(ours, theirs, sizeof(ours)) != 0);
    }
}

static void check_fingerprint(struct buffer *b, const once_bytes *parts,
                              once_bytes body, unsigned step)
{
    uint8_t ours[ONCE_FINGERPRINT_SIZE], theirs[SHA256_DIGEST_LENGTH];
    once__fingerprint *f = NULL;
    size_t at, n, i;

    begin(b, "once fingerprint 1");
    for (i = 0; i < 3; i++)
        put_frame(b, parts[i]);
    put(b, body.data, body.size);
    put_length(b, body.size);
    SHA256(b->bytes, b->size, theirs);
    MUST(once__fingerprint_new(parts[0], parts[1], parts[2], &f) == ONCE_OK);
    for (at = 0; at < body.size; at += n) {
        n = 1 + step % 97;
        step = step * 5 + 3;
        n = n < body.size - at ? n : body.size - at;
        once__fingerprint_body(f, (const uint8_t *)body.data + at, n);
        once__fingerprint_body(f, NULL, 0);
    }
    once__fingerprint_end(f, ours);
    once__fingerprint_free(f);
    MUST(memcmp(ours, theirs, sizeof(ours)) == 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static struct buffer buffer;
    struct feed f = {data, size < 40000 ? size : 40000};
    uint8_t sizes[PARTS];
    once_bytes parts[PARTS];
    unsigned step = feed_byte(&f), i;
    char hex[17];

    for (i = 0; i < PARTS; i++)
        sizes[i] = feed_byte(&f);
    for (i = 0; i < PARTS; i++)
        parts[i] = feed_bytes(&f, sizes[i]);
    check_name(&buffer, parts);
    check_fingerprint(&buffer, parts, feed_bytes(&f, f.left), step);
    once__name_hex(buffer.bytes, hex);
    MUST(strspn(hex, "0123456789abcdef") == 16);
    return 0;
}
