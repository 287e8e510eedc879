/* SPDX-License-Identifier: Apache-2.0 */
/*
 * place.h - is what a store has open still what stands at its path?
 *
 * The process that opens the path next reads what stands there then. A process
 * that went on with a file that was moved away or replaced would acknowledge
 * what no one will find. So a store notes the device and the inode of its files
 * when it opens them, and looks at the paths again:
 *
 *    before a batch      unless it did a moment ago: what is there is then as
 *                        it was acknowledged
 *    after it has        always, before it answers: what is acknowledged was
 *    written             then in the store at the path
 *
 * It does not remember that a file was away: what is back is the same file.
 */
#ifndef ONCE_CALLS_STORE_PLACE_H
#define ONCE_CALLS_STORE_PLACE_H

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include <once/once.h>

struct once__place {
    char *path; /* as it was given, so that a link is followed again */
    dev_t device;
    ino_t inode;
};

enum { ONCE__PLACES = 2 };

/* Zero it; end it with once__places_clear(). */
struct once__places {
    struct once__place place[ONCE__PLACES];
    size_t count;
    uint64_t looked_ms; /* 0: never, or they were not in their places */
};

/*
 * Adds the file at `path`, of `length` bytes, with `tail` after it. It is the
 * one that is open as `fd`, or where that is -1 the one that stands there.
 * ONCE_OK, ONCE_EOPEN, ONCE_ENOMEM.
 */
ONCE_CHECK int once__places_note(struct once__places *p, const char *path,
                                 size_t length, const char *tail, int fd,
                                 once_error *err);
/* ONCE_OK: they are all in their places. ONCE_ESTORE: one of them is not, or
 * that cannot be seen. */
ONCE_CHECK int once__places_look(struct once__places *p, once_error *err);
/* The same, but a look a moment ago is enough. */
ONCE_CHECK int once__places_glance(struct once__places *p, once_error *err);
/* 1 if `fd` is the file of that place. For any thread, once it was noted. */
int once__place_is(const struct once__place *p, int fd);
void once__places_clear(struct once__places *p);

#endif /* ONCE_CALLS_STORE_PLACE_H */
