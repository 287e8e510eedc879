/* SPDX-License-Identifier: Apache-2.0 */
/*
 * spare.c - memory and random numbers for attempts, kept ready.
 *
 * An attempt and its outcome are made on a caller's thread and freed on the
 * engine's. malloc() is slow at just that: what one thread frees another one
 * cannot take again without a lock. So blocks of one size go back and forth
 * here; what is larger, or comes when there are enough of them, is malloc()'s.
 * A token needs 16 random bytes, and a system call for each would cost more
 * than all else that makes an attempt; so 16 of them are fetched at a time; no signal
 * interrupts getrandom() when it is asked for up to 256 bytes.
 *
 * No thread waits: one that finds `busy` set asks malloc() or the kernel. Of
 * two processes none gets the other's random numbers after a fork: the child
 * has no thread of this engine, so nothing that it submits is ever claimed.
 *
 * Under a sanitizer nothing is kept, so that it sees who uses memory too late.
 */
#include "calls/engine/spare.h"

#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

enum { BLOCK = 2048 };

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define WATCHED 1
#elif defined(__has_feature)
#define WATCHED                                                                \
    (__has_feature(address_sanitizer) || __has_feature(thread_sanitizer))
#else
#define WATCHED 0
#endif

enum { KEPT = WATCHED ? 0 : 512 };

struct once__spare_block {
    struct once__spare_block *next;
};

/* 1: it is ours until leave(). */
static int enter(struct once__spare *s)
{
    return !atomic_flag_test_and_set_explicit(&s->busy, memory_order_acquire);
}

static void leave(struct once__spare *s)
{
    atomic_flag_clear_explicit(&s->busy, memory_order_release);
}

void once__spare_init(struct once__spare *s)
{
    memset(s, 0, sizeof(*s));
    atomic_flag_clear(&s->busy);
}

void once__spare_clear(struct once__spare *s)
{
    struct once__spare_block *next;

    for (; s->first != NULL; s->first = next) {
        next = s->first->next;
        free(s->first);
    }
    s->count = 0;
}

void *once__spare_take(struct once__spare *s, size_t size)
{
    struct once__spare_block *b = NULL;

    if (size > BLOCK)
        return malloc(size);
    if (enter(s)) {
        b = s->first;
        if (b != NULL) {
            s->first = b->next;
            s->count--;
        }
        leave(s);
    }
    return b != NULL ? b : malloc(BLOCK);
}

void once__spare_give(struct once__spare *s, void *memory, size_t size)
{
    struct once__spare_block *b = memory;

    if (b != NULL && size <= BLOCK && enter(s)) {
        if (s->count < KEPT) {
            b->next = s->first;
            s->first = b;
            s->count++;
            b = NULL;
        }
        leave(s);
    }
    free(b);
}

static int fetch(uint8_t *out, size_t size)
{
    return getrandom(out, size, 0) == (ssize_t)size;
}

int once__spare_token(struct once__spare *s, uint8_t out[ONCE_TOKEN_SIZE])
{
    int ok = 1;

    if (!enter(s))
        return fetch(out, ONCE_TOKEN_SIZE);
    if (s->left == 0) {
        ok = fetch(s->random, sizeof(s->random));
        s->left = ok ? sizeof(s->random) : 0;
    }
    if (ok) {
        s->left -= ONCE_TOKEN_SIZE;
        memcpy(out, s->random + s->left, ONCE_TOKEN_SIZE);
        memset(s->random + s->left, 0, ONCE_TOKEN_SIZE); /* never again */
    }
    leave(s);
    return ok;
}
