/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fuzz.h - what a fuzz target is: one function over bytes, which must neither
 * crash nor find that something is not so. libFuzzer calls it (tools/fuzz), or
 * main.c with the files of the corpus, so that every finding stays a test.
 */
#ifndef TEST_FUZZ_H
#define TEST_FUZZ_H

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <once/once.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* Not assert(): it must not depend on how the target is built. */
#define MUST(cond)                                                             \
    ((cond)                                                                    \
         ? (void)0                                                             \
         : (fprintf(stderr, "%s:%d: not so: %s\n", __FILE__, __LINE__, #cond), \
            abort()))

/* Bytes taken off the front; zeros behind the end. */
struct feed {
    const uint8_t *at;
    size_t left;
};

static inline uint8_t feed_byte(struct feed *f)
{
    if (f->left == 0)
        return 0;
    f->left--;
    return *f->at++;
}

static inline uint64_t feed_number(struct feed *f, unsigned bytes)
{
    uint64_t n = 0;

    while (bytes-- > 0)
        n = n << 8 | feed_byte(f);
    return n;
}

/* Up to `most` bytes, and no more than are there. */
static inline once_bytes feed_bytes(struct feed *f, size_t most)
{
    once_bytes b = {f->at, most < f->left ? most : f->left};

    f->at += b.size;
    f->left -= b.size;
    return b;
}

static inline int same(once_bytes a, once_bytes b)
{
    return a.size == b.size &&
           (a.size == 0 || memcmp(a.data, b.data, a.size) == 0);
}

/* Bytes in memory of exactly their size, so that ASan sees one too many. */
static inline void *exact(const void *data, size_t size)
{
    void *p = malloc(size > 0 ? size : 1);

    MUST(p != NULL);
    if (size > 0)
        memcpy(p, data, size);
    return p;
}

#endif /* TEST_FUZZ_H */
