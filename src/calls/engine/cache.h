/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cache.h - results that the store has just replayed, kept by the caller, so
 * that a hot replay needs no answer of the store.
 *
 *    claim --> once__cache_find --+--> a result: replay it
 *                                 +--> NULL: ask the engine
 *                                        |
 *              once__cache_note <--------+ its answer
 *
 * A completed record never changes until it is forgotten, and that is not
 * allowed before its retention time has ended. So what the store has replayed
 * can be replayed again, as long as these rules hold (docs/protocol.md, section
 * 9):
 *
 *  1. Only an answer of the store enters: ONCE_REPLAY to a claim. What is
 *     about to be recorded does not.
 *  2. A failure that may be tried again does not enter: the next claim may
 *     replace it.
 *  3. A record whose retention time ends soon does not enter. Soon is twice as
 *     long as an entry can be used, so that no entry outlives its record.
 *  4. An entry is used for ONCE__CACHE_AGE_MS since the store was *asked*, by a
 *     clock that cannot be set. What rule 3 cannot know - an operator accepts a
 *     clock that was set ahead - counts after that time at the latest.
 *  5. An entry is used only in the epoch in which the store was asked, see
 *     once__engine_epoch(): not after the store has failed to answer.
 *  6. Any later answer of the store for the name replaces or removes the entry.
 *  7. The transition table decides, on the record that is kept: another
 *     fingerprint is no replay.
 *
 * For one thread: each caller has its own, and there is no lock.
 */
#ifndef ONCE_CALLS_ENGINE_CACHE_H
#define ONCE_CALLS_ENGINE_CACHE_H

#include <once/once.h>

enum {
    ONCE__CACHE_AGE_MS = 2000,
    ONCE__CACHE_RESULT_MAX = 64 << 10, /* bytes of a result that is kept   */
    ONCE__CACHE_BYTES_MAX = 8 << 20    /* of all entries                   */
};

typedef struct once__cache once__cache;

/* When a claim was made. */
typedef struct once__cache_when {
    uint64_t epoch;    /* once__engine_epoch() before the claim             */
    uint64_t asked_ms; /* CLOCK_BOOTTIME before the claim                   */
} once__cache_when;

/* NULL: out of memory. End it with once__cache_free(), which accepts NULL. */
once__cache *once__cache_new(void);
void once__cache_free(once__cache *c);

/*
 * The record of an outcome that may be replayed to this claim; NULL: the engine
 * has to be asked. It has no note and no label, and is borrowed until the next
 * call for the cache. `epoch` 0 finds nothing.
 */
const once_record *once__cache_find(once__cache *c, const once_request *claim,
                                    once__cache_when now);

/* The engine has answered a claim for this name. `wall_ms` is the clock of this
 * host, by which embedded stores keep, when the answer was there. */
void once__cache_note(once__cache *c, const uint8_t name[ONCE_NAME_SIZE],
                      int rc, const once_record *r, once__cache_when when,
                      uint64_t wall_ms);

/* Frees what is too old to be used. */
void once__cache_sweep(once__cache *c, once__cache_when now);

/* Bytes of all entries. */
size_t once__cache_bytes(const once__cache *c);

/*
 * Changes each time that a store has not answered, so that what was known of it
 * before counts no more. 0: nothing that is known of it counts. It did not
 * answer last, or is not open, or is none of this host: the clock of a server
 * is another one, and what a failover loses would not be noticed here. From
 * any thread.
 */
uint64_t once__engine_epoch(const once_engine *e);

#endif /* ONCE_CALLS_ENGINE_CACHE_H */
