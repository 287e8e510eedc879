/* SPDX-License-Identifier: Apache-2.0 */
/*
 * response.h - a response over HTTP as a record keeps it, and which of its
 * headers are kept. The wire contract is docs/http.md; section numbers point
 * there.
 */
#ifndef ONCE_BASE_RESPONSE_H
#define ONCE_BASE_RESPONSE_H

#include <once/once.h>

#define ONCE__HEADERS_MAX 512            /* header lines of one response    */
#define ONCE__HEADER_MAX ((size_t)65535) /* bytes of one name or value      */

/* ---- Headers (sections 1, 4, 5), header.c ------------------------------- */

typedef struct once__header {
    once_bytes name;
    once_bytes value;
    uint8_t tag; /* kept with the header, for the adapter's own use */
} once__header;

typedef struct once__header_policy {
    int store_cookies;      /* keep Set-Cookie and tokens of a session     */
    const once_bytes *hide; /* more names, without regard to case          */
    size_t n_hide;
} once__header_policy;

/* 1 if the names are the same without regard to the case of ASCII letters. */
int once__same_name(once_bytes a, once_bytes b);

/* 1 if a response header of this name is stored, 0 if not, unless one of the
 * response's Connection lines names it. */
int once__header_stored(once_bytes name, const once__header_policy *policy);
/* 1 if the value `connection` of a Connection line names this header. */
int once__header_named(once_bytes name, once_bytes connection);

/* 1 for Idempotency-Attempt, -Outcome, -Status and Idempotent-Replayed, which
 * pass in neither direction. */
int once__header_internal(once_bytes name);

/* 1 if responses of this Content-Type are streams, whose reader needs each part
 * when it comes: server-sent events, NDJSON. They are not kept. */
int once__type_streams(once_bytes type);

/* ---- Stored responses (section 5), response.c --------------------------- */

enum once__response_flags {
    ONCE__NO_BODY = 1 /* completed, but the response was not kept: repeats
                       * get "response-unavailable"                         */
};

typedef struct once__response {
    int status;
    uint32_t flags;
    once_bytes reason;           /* the reason phrase, may be empty         */
    const once__header *headers; /* encode: n of them; decode: NULL, use    */
    size_t n;                    /* once__response_next()                   */
    once_bytes body;
    once_bytes block; /* decode: the encoded headers */
} once__response;

/*
 * How many bytes the response takes; checks it on the way. ONCE_EINVAL names
 * what does not do (CR, LF or NUL in a name, value or reason, an empty name, a
 * status outside 100..599, a body with ONCE__NO_BODY), ONCE_ELIMIT what is too
 * long: more than ONCE__HEADERS_MAX headers, a name, value or reason over
 * ONCE__HEADER_MAX, a body or a total over ONCE_RESULT_MAX.
 */
ONCE_CHECK int once__response_size(const once__response *r, size_t *size,
                                   once_error *err);
/* Writes exactly that many bytes. Only for what once__response_size() took. */
void once__response_encode(const once__response *r, void *out);

enum { ONCE__RESPONSE_BARE = 20 };

/* Writes a response that was not kept (ONCE__NO_BODY), and returns its size, or
 * 0 for a status outside 100..599. */
size_t once__response_bare(int status, uint8_t out[ONCE__RESPONSE_BARE]);

/* Everything in `*out` is borrowed from `in`. Whatever is malformed, CR, LF
 * and NUL included, is ONCE_ECORRUPT, an unknown version ONCE_EVERSION. */
ONCE_CHECK int once__response_decode(once_bytes in, once__response *out,
                                     once_error *err);
/* 1 and the next header, `*at` moved on from 0; 0 at the end. */
int once__response_next(const once__response *r, size_t *at, once__header *out);

#endif /* ONCE_BASE_RESPONSE_H */
