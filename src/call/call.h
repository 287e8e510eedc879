/* SPDX-License-Identifier: Apache-2.0 */
/*
 * call.h - what the files of once_call() share. Nothing of it is public.
 *
 * The kit stands on the public interface of the engine and on nothing below
 * it, but for the one way to fail.
 */
#ifndef ONCE_CALL_CALL_H
#define ONCE_CALL_CALL_H

#include <once/call.h>

/* ---- name.c ------------------------------------------------------------ */

/* As once_name(), and says what is wrong. */
ONCE_CHECK int once__call_name(const char *group, once_bytes key,
                               uint8_t name[ONCE_NAME_SIZE], once_error *err);
/* ONCE_OK or ONCE_ENOMEM. */
ONCE_CHECK int once__call_fingerprint(once_bytes what,
                                      uint8_t out[ONCE_FINGERPRINT_SIZE]);

/* ---- result.c: a result as the bytes that a record keeps ---------------- */

enum { ONCE__RESULT_HEAD = 16 }; /* bytes in front of the type */

typedef struct once__result {
    int code;
    once_bytes type;
    once_bytes bytes;
} once__result;

/* How many bytes it takes, after checking it: ONCE_EINVAL for a type with
 * other than printable ASCII, ONCE_ELIMIT for one that is too long and for
 * more than ONCE_RESULT_MAX in all. */
ONCE_CHECK int once__result_size(const once__result *r, size_t *size,
                                 once_error *err);
/* Writes exactly that many. */
void once__result_encode(const once__result *r, void *out);
/* What stands in `*out` is borrowed from `in`. Whatever does not check is
 * ONCE_ECORRUPT, an unknown version ONCE_EVERSION. */
ONCE_CHECK int once__result_decode(once_bytes in, once__result *out,
                                   once_error *err);
/*
 * The result in a completed record: ours, or what an operator has resolved it
 * with, plain bytes or a response. ONCE_OK; ONCE_REPEATED if the operator said
 * that there is none; ONCE_ECORRUPT, ONCE_EVERSION.
 */
ONCE_CHECK int once__result_read(const once_record *r, once__result *out,
                                 once_error *err);

/* ---- task.c ------------------------------------------------------------- */

enum once__task_deed {
    ONCE__RECORD, /* what the work has returned                            */
    ONCE__RELEASE,
    ONCE__UNKNOWN
};

struct once_task {
    once_engine *engine;
    once_attempt *attempt;
    once_request request;
    int reject; /* duplicates are                                         */
    int deed;   /* enum once__task_deed                                   */
    int ran;    /* the work has begun                                     */
    int code;

    /* The result so far: encoded, but for the head, and its type once more
     * behind that, with a NUL. NULL while it is empty. */
    uint8_t *encoded;
    size_t size;
    uint8_t empty[ONCE__RESULT_HEAD]; /* encoded, when there is no memory */

    /* once_call_start() only. */
    once_begin *begin;
    once_called *done;
    void *user;
};

ONCE_CHECK int once__task_init(once_task *task, once_engine *e,
                               const once_call_options *options,
                               once_error *err);
void once__task_clear(once_task *task);
/* The bytes to record, with the code in their head. */
once_bytes once__task_encode(once_task *task);
/* Moves the result of this run to `*out`. */
void once__task_move(once_task *task, once_result *out);

#endif /* ONCE_CALL_CALL_H */
