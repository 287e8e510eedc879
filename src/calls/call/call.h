/* SPDX-License-Identifier: Apache-2.0 */
/*
 * call.h - what the files of once_call() share. Nothing of it is public.
 *
 * These files use the public functions of the engine and, of the rest, only
 * core/ and the stored responses of http/.
 */
#ifndef ONCE_CALLS_CALL_CALL_H
#define ONCE_CALLS_CALL_CALL_H

#include <once/call.h>

/* ---- name.c ------------------------------------------------------------ */

/* As once_name(), with a text that names what is wrong. */
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

/* Checks a result and says how many bytes it is encoded in. ONCE_OK;
 * ONCE_EINVAL for a type with other than printable ASCII; ONCE_ELIMIT for a
 * type that is too long, and for more than ONCE_RESULT_MAX bytes in all. */
ONCE_CHECK int once__result_size(const once__result *r, size_t *size,
                                 once_error *err);
/* Writes exactly that many. */
void once__result_encode(const once__result *r, void *out);
/* `*out` borrows from `in`. ONCE_OK; ONCE_EVERSION for another version;
 * ONCE_ECORRUPT for whatever once__result_encode() would not have written. */
ONCE_CHECK int once__result_decode(once_bytes in, once__result *out,
                                   once_error *err);
/*
 * The result in a completed record: one that once_call() has recorded, or plain
 * bytes or a response with which an operator has resolved it. ONCE_OK;
 * ONCE_REPEATED if the operator has resolved it without a result;
 * ONCE_ECORRUPT, ONCE_EVERSION.
 */
ONCE_CHECK int once__result_read(const once_record *r, once__result *out,
                                 once_error *err);

/* ---- task.c ------------------------------------------------------------- */

/* How a task ends. */
enum once__task_ending {
    ONCE__TASK_RECORD,  /* the result of the work is recorded               */
    ONCE__TASK_RELEASE, /* the key becomes free                             */
    ONCE__TASK_UNKNOWN  /* the record becomes indeterminate                 */
};

struct once_task {
    once_engine *engine;
    once_attempt *attempt;
    once_request request;
    int reject; /* duplicates are rejected                                */
    int ending; /* enum once__task_ending                                 */
    int ran;    /* the work has begun                                     */
    int code;

    /* The result so far: encoded, except for the code in its head, and followed
     * by its type once more, with a NUL. NULL while the result is empty. */
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
/* The bytes to record, with the code in their head. Borrowed from the task. */
once_bytes once__task_encode(once_task *task);
/* Moves the result of this run to `*out`. */
void once__task_move(once_task *task, once_result *out);

#endif /* ONCE_CALLS_CALL_CALL_H */
