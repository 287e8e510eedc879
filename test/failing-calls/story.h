/* SPDX-License-Identifier: Apache-2.0 */
/*
 * story.h - one tour of the public interface, told so that any step of it may
 * go wrong, and what must hold afterwards whatever did.
 */
#ifndef TEST_SWEEP_STORY_H
#define TEST_SWEEP_STORY_H

#include <stdint.h>

#include <once/once.h>

enum {
    STORY_KEYS = 7,
    STORY_LEASE_MS = 120,
    STORY_STORE_MS = 60,
    STORY_LARGE = 20000,
    /* More pages than the log of a small store has: the SQLite store's second
     * thread makes room, holding the lock that writers need. */
    STORY_FILLING = 500000
};

/* What is known of a key from what the calls have answered. */
struct story_key {
    unsigned executed; /* times that the work was done, less those released */
    int acknowledged;  /* its outcome was told to be durable                */
    int resolved;      /* the operator's outcome was told to be durable     */
    int maybe;         /* the operator's outcome may be there               */
};

struct story {
    uint32_t seed;  /* part of every name: a tour has its keys to itself */
    int clean;      /* 1: nothing may go wrong                            */
    int fills;      /* 1: the large outcome fills a store's log           */
    int unreadable; /* 1: reads fail, and SQLite calls that damage        */
    int log;        /* a descriptor for notes of what is known, or -1     */
    unsigned bad;   /* what must not be, and was printed                  */
    struct story_key keys[STORY_KEYS];
};

/* A line of trouble; the tour goes on. */
void story_bad(struct story *s, const char *format, ...) ONCE_PRINTF(2, 3);

/* Opens an engine for a tour. Any other answer than ONCE_OK, ONCE_ENOMEM and
 * ONCE_EOPEN is trouble, ONCE_ECORRUPT too unless `unreadable`. */
once_engine *story_open(struct story *s, const char *url);
/* The tour. */
void story_tell(struct story *s, once_engine *e);
/* The step of it that fills a store's log, and the moment after. */
void story_fill(struct story *s, once_engine *e);
/* Asks for every key of the tour, after whatever was wrong is over. */
void story_check(struct story *s, once_engine *e);

#endif /* TEST_SWEEP_STORY_H */
