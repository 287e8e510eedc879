/* SPDX-License-Identifier: Apache-2.0 */
/*
 * answer.h - the result that repeats will get, as an operator gives it and as he
 * is shown it: checked, encoded, decoded. For the command line and the console.
 */
#ifndef ONCE_OPERATE_ANSWER_H
#define ONCE_OPERATE_ANSWER_H

#include <once/once.h>

#include "calls/call/call.h"
#include "calls/http/http.h"

/* What stands in a completed record. */
enum once__view_is {
    ONCE__VIEW_NONE, /* it is not completed                          */
    ONCE__VIEW_HTTP, /* of the gateway                               */
    ONCE__VIEW_CALL, /* of once_call(), once run                     */
    ONCE__VIEW_RAW   /* other programs store what they like          */
};

typedef struct once__view {
    enum once__view_is is;
    once__response response;
    once__result call;
    once_bytes body; /* HTTP, CALL: the body alone; RAW: all of it */
    int kept;        /* 0: completed, but the response was not kept */
} once__view;

/* Borrowed from the record. */
void once__view_of(const once_record *r, once__view *out);

enum { ONCE__ANSWER_HEADERS = 64 };

/*
 * Would the gateway have stored this header? If not it must not replay it.
 * ONCE_EINVAL or ONCE_ELIMIT: `err` says why, without the value.
 */
ONCE_CHECK int once__answer_header(const once__header *h, once_error *err);
/* An HTTP response with status 200 to 599, encoded: free() its data. Its
 * headers have passed once__answer_header(). */
ONCE_CHECK int once__answer_encode(const once__response *r, once_bytes *out,
                                   once_error *err);
/*
 * The value of a function that is called by a middleware (once.call), `json` as its
 * callers get it: `kind` is ONCE_SUCCESS, or ONCE_FAILURE. ONCE_EINVAL: it is no
 * JSON, and `err` says where.
 */
ONCE_CHECK int once__answer_value(once_bytes json, int kind, once_bytes *out,
                                  once_error *err);
/* The same for "it took effect, and its answer is lost". */
ONCE_CHECK int once__answer_lost(once_bytes *out, once_error *err);

#endif /* ONCE_OPERATE_ANSWER_H */
