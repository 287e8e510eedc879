/* SPDX-License-Identifier: Apache-2.0 */
/*
 * guard.h - what the files of the guard share. Nothing of it is public.
 *
 *    guard.c     the options of a route, checked and made ready
 *    exchange.c  the life of one request
 *    reply.c     what is sent, and what is recorded
 *    token.c     what an owner is known by in another process
 */
#ifndef ONCE_CALLS_GUARD_GUARD_H
#define ONCE_CALLS_GUARD_GUARD_H

#include <pthread.h>

#include <once/http.h>

#include "calls/http/http.h"

/* Whose keys these are, where nobody says it. It is not the request's host: that
 * one is the client's choice, who would execute a key once for each name. */
#define ONCE__REALM "once"

enum { ONCE__METHODS_MAX = 16, ONCE__HIDE_MAX = 64 };

/* A list of names, in one piece of memory. */
struct once__names {
    char *text;
    once_bytes *at;
    size_t n;
};

struct once_guard {
    once_engine *engine;
    once_guard_options options; /* without what follows                      */
    char *key, *realm;
    char *accept;      /* or NULL                                   */
    char *key_json[2]; /* to which `pointers` points                */
    once__key_pointers pointers;
    struct once__names methods, hide;
    struct once__names fingerprint; /* to which `compared` points           */
    once__compared compared;
    once__policy policy; /* what of the options decides anything           */
    uint8_t group[ONCE_GROUP_SIZE];
    pthread_mutex_t lock; /* of what follows                               */
    once__probe_places places;
};

once_bytes once__text(const char *text);
int once__guard_has_method(const once_guard *g, const char *method);
void once__guard_event(const once_guard *g, const char *format, ...)
    ONCE_PRINTF(2, 3);

/* ONCE_OK, or ONCE_EINVAL: no lookup of this guard's keys can be. */
ONCE_CHECK int once__guard_check_lookup(const once_guard_options *o,
                                        uint32_t wait_ms, once_error *err);

/*
 * After READ, when the body of `x` is whole: 1 if it is the same request as `of`,
 * which was claimed; 0 if not, or if `x` is refused. ONCE_ENOMEM.
 */
ONCE_CHECK int once__exchange_same(once_exchange *x, const once_exchange *of);

/* ---- reply.c ------------------------------------------------------------ */

/* What is sent: an answer and the memory of its parts. */
struct once__reply {
    once_http_answer answer;
    once_http_header *headers;
    char *text;       /* names and values */
    size_t used, max; /* of `text`        */
    char *body;       /* NULL: borrowed   */
};

void once__reply_clear(struct once__reply *r);

/*
 * These overwrite `*r`: ONCE_OK, or ONCE_ENOMEM and it is empty. `d` says
 * which problem, if any, and what the status header says; `expose`: see
 * cors_expose.
 */
ONCE_CHECK int once__reply_problem(struct once__reply *r,
                                   const once__http_decision *d,
                                   const char *detail, int expose);
ONCE_CHECK int once__reply_replay(struct once__reply *r,
                                  const once__response *stored,
                                  const once__http_decision *d, int expose);
/* What became of a request: see once__lookup_body(). `location` is for a
 * decision that says so. */
ONCE_CHECK int once__reply_told(struct once__reply *r,
                                const once__http_decision *d, int rc,
                                const once_record *record,
                                const once__response *stored,
                                const char *location, int expose);
/* Of the handler: copied, without what is not for the client. */
ONCE_CHECK int once__reply_own(struct once__reply *r, const once_http_answer *a,
                               const once__http_decision *d, int expose);
/* 413, or 405 of a lookup. */
ONCE_CHECK int once__reply_refusal(struct once__reply *r, int status);

/*
 * The bytes of a record; `keep` 0 or an answer that does not fit: as "not
 * kept". `*out` is for free(). ONCE_OK or ONCE_ENOMEM; `*err` has a text if
 * what should be kept was not.
 */
ONCE_CHECK int once__reply_encode(const once_guard *g,
                                  const once_http_answer *a, int keep,
                                  once_error *err, once_bytes *out);

/* ---- token.c ------------------------------------------------------------ */

/* The kind of work that a token names. */
enum once__token_kind { ONCE__TOKEN_EXCHANGE, ONCE__TOKEN_CALL };

struct once__token {
    uint8_t name[ONCE_NAME_SIZE];
    uint8_t fingerprint[ONCE_FINGERPRINT_SIZE];
    uint8_t id[ONCE_TOKEN_SIZE]; /* the owner's token of the record */
    uint64_t fence;
    uint32_t attempt; /* below 2^31 */
    uint8_t doubt;
};

void once__token_write(const struct once__token *t, enum once__token_kind kind,
                       char out[ONCE_EXCHANGE_TOKEN]);
/* 1, or 0: once__token_write() did not write this, or of another kind. */
ONCE_CHECK int once__token_read(const char *text, enum once__token_kind kind,
                                struct once__token *out);

#endif /* ONCE_CALLS_GUARD_GUARD_H */
