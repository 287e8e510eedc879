/* SPDX-License-Identifier: Apache-2.0 */
/*
 * audit.h - the log of what operators decided: one JSON object a line, in a
 * file that is only appended to (docs/audit.md).
 *
 *    once__audit_begin   intent, on disk before the store is asked
 *    ... the store is asked ...
 *    once__audit_end     done, refused or unknown
 *
 * If the first one fails, nothing may be decided. Each line has the hash of the
 * line before (`prev`) and its own (`hash`), so a line that was changed, cut,
 * swapped or taken out is found. Any number of processes and threads append to
 * one file; it may be renamed under them (logrotate), and the new one goes on
 * from the last hash of the old one.
 *
 *    write.c   append: lock, read the end, make the line, write, sync
 *    line.c    a line as text and back, with its hash
 *    read.c    lines of a file, one after the other
 *    newest.c  the newest first, over renamed files
 *    check.c   is the chain whole?
 *    anchor.c  lines that were kept elsewhere
 *    who.c     the caller, as the kernel knows it
 *
 * No line holds a key, a scope, a token, a body or a store's URL: the caller
 * must not put them into a text either. Texts have no control characters, or
 * these are escaped. Errors follow once.h.
 */
#ifndef ONCE_OPERATE_AUDIT_AUDIT_H
#define ONCE_OPERATE_AUDIT_AUDIT_H

#include <jansson.h>

#include <once/once.h>

#define ONCE__AUDIT_DEFAULT "/var/log/once/audit.jsonl"

enum {
    ONCE__AUDIT_HASH = 32,        /* SHA-256                         */
    ONCE__AUDIT_LINE_MAX = 16384, /* bytes of a line                 */
    ONCE__AUDIT_TIME = 40,        /* room for a time                 */
    ONCE__AUDIT_TEXT_MAX = 1024,  /* of one text in it; cut above it */
    ONCE__AUDIT_PATH_MAX = 4096
};

/* ---- Writing ----------------------------------------------------------- */

/* Who decides. */
typedef struct once__audit_who {
    int64_t uid;       /* by the kernel; -1: not known                  */
    int64_t login_uid; /* who logged in, in spite of sudo and su; or -1 */
    char name[65];     /* "alice"                                       */
    char way[65];      /* the way in: "command line", "console socket"  */
} once__audit_who;

/* This process and its user. */
void once__audit_me(const char *way, once__audit_who *out);
/* This moment, in UTC, to the millisecond: for lines and notes. */
void once__audit_now(char out[ONCE__AUDIT_TIME]);
/* The name of a user, or "uid N". */
void once__audit_user(int64_t uid, char *out, size_t size);

typedef struct once__audit_entry {
    const char *action; /* "resolve", "reopen", "forget", "purge", "body" ... */
    const char *kind;   /* of the outcome: "success", "failure", "applied"; or
                         * NULL                                               */
    const once__audit_who *who;
    const uint8_t *store;  /* the store's id, 16 bytes; NULL: it has none     */
    uint64_t incarnation;  /* of the store                                    */
    const uint8_t *name;   /* of the record; NULL: about the whole store      */
    uint64_t fence;        /* 0: none                                         */
    uint64_t attempt;      /* 0: none                                         */
    const char *why;       /* NULL: none was asked for                        */
    const uint8_t *digest; /* SHA-256 of the outcome in plain; NULL: none     */
    const char *decision;  /* a name that the caller gave the decision, so that
                            * a repeat is known; NULL: none                   */
} once__audit_entry;

enum once__audit_step {
    ONCE__AUDIT_INTENT,
    ONCE__AUDIT_DONE,
    ONCE__AUDIT_REFUSED, /* nothing was changed            */
    ONCE__AUDIT_UNKNOWN, /* the store may have been changed */
    ONCE__AUDIT_STEPS
};

typedef struct once__audit once__audit;

/*
 * `path` NULL: ONCE__AUDIT_DEFAULT if its folder exists, and otherwise
 * once/audit.jsonl in $XDG_STATE_HOME or ~/.local/state, whose folder is made
 * with the first line. "own": the latter.
 * "off": no file is written, begin() and end() only tell syslog. Creates no
 * file yet. ONCE_EOPEN: there is no such folder, and no home either. May be used
 * by many threads at once.
 */
ONCE_CHECK int once__audit_open(const char *path, once_error *err,
                                once__audit **out);
void once__audit_close(once__audit *a); /* accepts NULL */
/* Where lines go, or NULL for "off". */
const char *once__audit_path(const once__audit *a);

/*
 * Writes the intent, and returns when it is on disk. `*seq` is its number, for
 * end(). Any error means that nothing is written and nothing may be decided.
 */
ONCE_CHECK int once__audit_begin(once__audit *a, const once__audit_entry *e,
                                 uint64_t *seq, once_error *err);
/* Writes what came of it; `detail` says why or how much, or is NULL. After an
 * error the decision stands as it is, and the caller must say that the log lacks
 * this line. */
ONCE_CHECK int once__audit_end(once__audit *a, const once__audit_entry *e,
                               uint64_t seq, enum once__audit_step step,
                               const char *detail, once_error *err);

/* SHA-256 of an outcome. */
void once__audit_digest(once_bytes outcome, uint8_t out[ONCE__AUDIT_HASH]);

/* ---- Reading ----------------------------------------------------------- */

typedef struct once__audit_line {
    uint64_t number;  /* in its file, from 1 */
    once_bytes text;  /* without its line break */
    int whole;        /* 0: it has no line break, so it is the last one */
    const char *flaw; /* NULL, or why this is no line of an audit log; all of
                       * the following is then empty */
    uint64_t seq;
    const char *hash, *prev; /* hex */
    json_t *json;            /* all of it; borrowed */
} once__audit_line;

/* Anything but 0 ends the reading. */
typedef int once__audit_each(void *user, const once__audit_line *line);

/* Calls `each` for the lines of a file from the first on; "-" is stdin. ONCE_OK,
 * what `each` returned, or an error. A file that grows meanwhile is read as far
 * as it goes. */
ONCE_CHECK int once__audit_read(const char *path, once__audit_each *each,
                                void *user, once_error *err);

/* What is looked for; NULL, 0: anything. */
typedef struct once__audit_filter {
    uint64_t after, before; /* sequence numbers, both exclusive */
    uint64_t since_ms, until_ms;
    const char *action, *who, *name, *store; /* name, store: first hex digits;
                                              * who: a user's name or number */
} once__audit_filter;

/* 1 if the line fits. One with a flaw never does. */
int once__audit_fits(const once__audit_filter *f, const once__audit_line *line);

/* The last `max` lines of a log (1 to 1000) that fit, the newest first, also of
 * the files that were `path` before they were renamed, as far as they stand
 * beside it, not compressed. `path` is absolute. Lines have no number, and are
 * borrowed for the call of `each`. Returns like once__audit_read(). */
ONCE_CHECK int once__audit_newest(const char *path, const once__audit_filter *f,
                                  size_t max, once__audit_each *each,
                                  void *user, once_error *err);

/* All files of a log whose newest is `path`, the oldest first; end with
 * once__audit_parts_free(). Without any file it is `path` alone. */
ONCE_CHECK int once__audit_parts(const char *path, char ***out, size_t *n,
                                 once_error *err);
void once__audit_parts_free(char **paths, size_t n); /* accepts NULL */

/* ---- Checking ---------------------------------------------------------- */

/* Is called for each thing that was seen. `bad` 0: worth knowing, but the chain
 * is whole (a line that a crash cut short, an intent without an end). */
typedef void once__audit_report(void *user, const char *path, uint64_t number,
                                int bad, const char *text);

typedef struct once__audit_sum {
    uint64_t lines, bad, notes;
    uint64_t first_seq, last_seq;
    char last_hash[2 * ONCE__AUDIT_HASH + 1];
    uint64_t anchored, anchored_seq; /* lines that were kept elsewhere and are
                                      * the same; the largest number of one  */
} once__audit_sum;

/* Lines that were kept elsewhere: in a syslog, or by `once audit verify --json`.
 * "-" is stdin. Of those that say of which log they are, those of `log`, unless
 * it is NULL. */
typedef struct once__audit_anchors once__audit_anchors;

ONCE_CHECK int once__audit_anchors_read(const char *path, const char *log,
                                        once__audit_anchors **out,
                                        once_error *err);
void once__audit_anchors_free(once__audit_anchors *a); /* accepts NULL */
/* The largest number; 0: there is none. */
uint64_t once__audit_anchors_last(const once__audit_anchors *a);
/* 0: this line was not kept; 1: it is the same; -1: another one. */
int once__audit_anchored(const once__audit_anchors *a, uint64_t seq,
                         const char *hash);

/* Checks files, the oldest first, as one chain, and against what was kept
 * elsewhere, or NULL. ONCE_OK: they were read, see `sum->bad`; or an error. */
ONCE_CHECK int once__audit_check(const char *const *paths, size_t n,
                                 const once__audit_anchors *kept,
                                 once__audit_report *report, void *user,
                                 once__audit_sum *sum, once_error *err);

#endif /* ONCE_OPERATE_AUDIT_AUDIT_H */
