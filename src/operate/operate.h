/* SPDX-License-Identifier: Apache-2.0 */
/*
 * operate.h - what an operator does to one record, for the command line and for
 * the console: find it, read its result, say what became of it.
 *
 *    find.c     the record whose name begins with these digits
 *    request.c  the name of a gateway's record, from its request
 *    note.c     who, when, where and why, in one line
 *    resolve.c  look -> reap if that is still to be done -> resolve; one record,
 *               or many
 *
 * In folders beside it: audit/, the log of decisions; copy/, a store in one
 * file; messages/, the same decisions about rows, parked messages and sagas, in
 * a library of its own.
 *
 * answer.h has the results. Nothing here prints or asks anybody; what a refusal
 * means to whom is said by the callers. Errors follow once.h.
 */
#ifndef ONCE_OPERATE_OPERATE_H
#define ONCE_OPERATE_OPERATE_H

#include <once/once.h>

#include "operate/audit/audit.h"

enum {
    ONCE__OPERATE_MS = 5000, /* how long the store is asked again */
    ONCE__DIGITS_MIN = 8,    /* of a name that is not whole       */
    ONCE__DIGITS = 2 * ONCE_NAME_SIZE,
    ONCE__WHY_MAX = 512,
    ONCE__DECISION_MIN = 8, /* characters of a decision's own key */
    ONCE__DECISION_MAX = 64
};

/* ---- find.c -------------------------------------------------------------- */

/* A record's name as an operator gives it: whole, or its first digits. */
typedef struct once__prefix {
    uint8_t bytes[ONCE_NAME_SIZE]; /* zeros after the digits */
    size_t digits;
} once__prefix;

/* ONCE_OK, or ONCE_EINVAL: not `least` to 64 hex digits. */
ONCE_CHECK int once__prefix_read(const char *text, size_t least,
                                 once__prefix *out, once_error *err);
/*
 * How many records' names begin so: 0, 1 or 2 (or more). Their names are in
 * `found`. A whole name is found without asking the store.
 */
ONCE_CHECK int once__find(once_engine *e, const once__prefix *prefix,
                          uint8_t found[2][ONCE_NAME_SIZE], once_error *err);
/* Sets up `*op` as a ONCE_OP_SHOW of `name` and asks; end it with
 * once_op_clear(), whatever it returns. Attempt 0: there is no record. */
ONCE_CHECK int once__look(once_engine *e, const uint8_t name[ONCE_NAME_SIZE],
                          once_op *op, once_error *err);

/* ---- request.c ----------------------------------------------------------- */

/*
 * A request as a client sent it, and as the gateway sees its sender:
 *
 *    scope   the value of once_scope; empty where that is off
 *    realm   of once_realm: the server's first name, if nothing is set
 *    method, path
 *            where the gateway has once_key_space path, and both empty where it
 *            has realm. The path as it was sent, not decoded; a query does not
 *            count
 *    key     the value of the header Idempotency-Key
 */
typedef struct once__request {
    once_bytes scope, realm, method, path, key;
} once__request;

/* The name of its record. ONCE_EINVAL, ONCE_ELIMIT: it has none; the text says
 * which part does not do, without its bytes. */
ONCE_CHECK int once__request_name(const once__request *r,
                                  uint8_t out[ONCE_NAME_SIZE], once_error *err);

/* ---- note.c -------------------------------------------------------------- */

/* 1: of 1 to 512 bytes, on one line, and safe to show on a terminal. */
int once__why_good(const char *why);
/* 1: a decision's own key, as a console draws it: letters, digits, - and _. */
int once__decision_good(const char *key);

#define ONCE__NOTE_SIZE (ONCE_NOTE_MAX + 1)

/* Who, when, where, what and why, in one line. `decision` is its own key and
 * the sum of what was decided, or NULL. */
void once__note_make(const once__audit_who *who, const char *program,
                     const char *decision, const char *action, const char *why,
                     char out[ONCE__NOTE_SIZE]);
/* The note's decision, as it was given: 1, or 0 if it has none. */
int once__note_decision(once_bytes note, const char **at, size_t *size);

/* ---- resolve.c ----------------------------------------------------------- */

enum once__resolve_action {
    ONCE__SUCCESS = 1, /* it took effect                                   */
    ONCE__FAILURE,     /* it did not, or is refused                        */
    ONCE__APPLIED,     /* it took effect, but its answer is lost           */
    ONCE__REOPEN,      /* the next repeat executes; only under takeover    */
    ONCE__FORCE        /* APPLIED, also of a claim whose lease has expired */
};

typedef struct once__resolution {
    uint8_t name[ONCE_NAME_SIZE];
    uint64_t fence;    /* as the operator saw it             */
    uint32_t attempt;  /* the same; 0: not given             */
    int action;        /* enum once__resolve_action                  */
    once_bytes result; /* SUCCESS, FAILURE: encoded, or raw */
    uint64_t keep_ms;
    const char *why;
    const char *decision; /* its own key, or NULL */
    const char *program;  /* "once" */
    const once__audit_who *who;
    once__audit *audit;   /* where it is written down; NULL: dry */
    const uint8_t *store; /* its id, or NULL; and its incarnation */
    uint64_t incarnation;
    int dry; /* 1: nothing is changed; what would be refused? */
} once__resolution;

enum once__resolved {
    ONCE__RESOLVED = 0,        /* done; dry: it could be */
    ONCE__RESOLVED_BEFORE,     /* by this very decision: answered as then */
    ONCE__UNRESOLVED_GONE,     /* refused: there is no record             */
    ONCE__UNRESOLVED_FENCE,    /* another one by now                      */
    ONCE__UNRESOLVED_ATTEMPT,  /* by its attempt                          */
    ONCE__UNRESOLVED_OWNED,    /* the owner's lease has not expired       */
    ONCE__UNRESOLVED_STATE,    /* not indeterminate                       */
    ONCE__UNRESOLVED_TAKEOVER, /* not made under takeover: no REOPEN      */
    ONCE__UNRESOLVED_DECISION  /* its key was used for another decision   */
};

/* So begins the text of an error where nothing was decided, since the intent
 * could not be written down. */
#define ONCE__UNAUDITED "audit log: "

/* One word for each, as the audit log and the console's API have it. */
const char *once__resolved_text(int verdict);

/*
 * Says what became of a request, once and for all: a compare-and-set on the
 * fence that the operator was shown. A lost owner that no engine has reaped,
 * because no gateway is left, is reaped first. Returns enum once__resolved, and
 * the record as it is then in `out`; or an error, of which ONCE_ESTORE means
 * that it may have been done. After ONCE__RESOLVED an `err` with a code says
 * that the audit log lacks the line about it. End `out` with once_op_clear(),
 * whatever it returns.
 */
ONCE_CHECK int once__resolve(once_engine *e, const once__resolution *r,
                             once_op *out, once_error *err);

/* ---- Many --------------------------------------------------------------- */

enum { ONCE__BATCH_MAX = 500 };

typedef struct once__batch_line {
    uint8_t name[ONCE_NAME_SIZE];
    uint64_t fence;
    uint32_t attempt; /* 0: not given */
} once__batch_line;

/* Is called after line `i` with what once__resolve() returned for it: an error
 * is the last. Not 0: enough. */
typedef int once__batch_each(void *user, size_t i, int rc,
                             const once__resolution *what,
                             const once_record *now, const once_error *err);

/*
 * Decides `what` about each record, by the fence of its line. A refusal does not
 * stop it; an error does, which it returns. Otherwise ONCE_OK, or ONCE_ECLOSED if
 * `each` had enough.
 */
ONCE_CHECK int once__resolve_batch(once_engine *e, const once__resolution *what,
                                   const once__batch_line *lines, size_t n,
                                   once__batch_each *each, void *user);

#endif /* ONCE_OPERATE_OPERATE_H */
