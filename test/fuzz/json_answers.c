/* SPDX-License-Identifier: Apache-2.0 */
/*
 * json_answers.c - what Once makes of JSON documents, for json_peer.py.
 *
 * Reads, again and again, four frames from its input: two pointers of a key
 * (the second may be "-": there is one), a pointer that is left out ("-": none),
 * a document. A frame is its length in decimal digits, a line's end, the bytes.
 * Prints a line for each: the sum of what is compared or "bytes", and the key,
 * "none" or "refused".
 */
#include "fuzz.h"

#include <openssl/sha.h>

#include "calls/http/http.h"
#include "calls/http/json.h"

static int read_frame(char *out, size_t max, once_bytes *frame)
{
    char line[16];

    if (fgets(line, sizeof(line), stdin) == NULL)
        return 0;
    frame->size = strtoul(line, NULL, 10);
    frame->data = out;
    MUST(frame->size <= max);
    MUST(fread(out, 1, frame->size, stdin) == frame->size);
    return 1;
}

struct written {
    char bytes[24 * ONCE__JSON_MAX];
    size_t size;
};

static void put(void *user, const void *data, size_t size)
{
    struct written *w = user;

    MUST(w->size + size <= sizeof(w->bytes));
    memcpy(w->bytes + w->size, data, size);
    w->size += size;
}

static void print_compared(once_bytes text, once_bytes but)
{
    static struct written w;
    uint8_t digest[SHA256_DIGEST_LENGTH];
    once__json *doc;
    size_t i, n = !same(but, (once_bytes){"-", 1});
    int rc;

    w.size = 0;
    rc = once__json_parse(text, &doc, NULL);
    if (rc == ONCE_OK) {
        rc = once__json_write(doc, &but, n, put, &w);
        free(doc);
    }
    if (rc != ONCE_OK) {
        fputs("bytes ", stdout);
        return;
    }
    SHA256((const uint8_t *)w.bytes, w.size, digest);
    for (i = 0; i < sizeof(digest); i++)
        printf("%02x", digest[i]);
    putchar(' ');
}

static void print_key(once_bytes text, const once_bytes *pointers)
{
    size_t len, n = same(pointers[1], (once_bytes){"-", 1}) ? 1 : 2;
    char key[ONCE__KEY_MAX];
    once__json *doc;
    int rc;

    rc = once__json_parse(text, &doc, NULL);
    if (rc == ONCE_OK) {
        rc = once__json_key(doc, pointers, n, key, &len, NULL);
        free(doc);
    }
    if (rc != ONCE_OK)
        puts("refused");
    else if (len == 0)
        puts("none");
    else
        printf("key %.*s\n", (int)len, key);
}

int main(void)
{
    static char texts[3][ONCE__POINTER_MAX], text[2 * ONCE__JSON_MAX];
    once_bytes pointers[3], doc;

    while (read_frame(texts[0], sizeof(texts[0]), &pointers[0])) {
        MUST(read_frame(texts[1], sizeof(texts[1]), &pointers[1]));
        MUST(read_frame(texts[2], sizeof(texts[2]), &pointers[2]));
        MUST(read_frame(text, sizeof(text), &doc));
        print_compared(doc, pointers[2]);
        print_key(doc, pointers);
    }
    return 0;
}
