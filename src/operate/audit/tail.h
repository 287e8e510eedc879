/* SPDX-License-Identifier: Apache-2.0 */
/* tail.h - the end of an audit log, which the next line follows. */
#ifndef ONCE_OPERATE_AUDIT_TAIL_H
#define ONCE_OPERATE_AUDIT_TAIL_H

#include <sys/types.h>

#include "operate/audit/line.h"

typedef struct once__audit_tail {
    off_t size;
    int open_end; /* 1: the last line has no line break */
    uint64_t seq; /* of the last good line; 0: there is none */
    char hash[ONCE__AUDIT_HEX];
    /* What stands after the last good line and is none: "" for nothing. */
    char fragment[ONCE__AUDIT_HEX];
    int cut; /* 1: and it has no line break, as a crash leaves it */
} once__audit_tail;

/* Reads the end of a file that is locked. ONCE_ECORRUPT: it is no audit log, or
 * so much of its end is damaged that no good line was found. */
ONCE_CHECK int once__audit_tail_read(int fd, const char *path,
                                     once__audit_tail *out, once_error *err);

/* Waits, but not for ever, until the file is ours. */
ONCE_CHECK int once__audit_lock(int fd, const char *path, int operation,
                                once_error *err);

/*
 * The file that was `path` before it was renamed: the newest beside it whose
 * name begins with that of `path` and "." or "-", that is not compressed and
 * ends in a line of an audit log. `name` becomes its name without the folder;
 * "" if there is none.
 */
void once__audit_before(const char *path, char name[256],
                        once__audit_tail *out);

/* The same of the file beside `path` whose last good line has this hash; "" if
 * there is none. */
void once__audit_ending(const char *path, const char *hash, char name[256]);

#endif /* ONCE_OPERATE_AUDIT_TAIL_H */
