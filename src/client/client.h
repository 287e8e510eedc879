/* SPDX-License-Identifier: Apache-2.0 */
/*
 * client.h - what the files of the retrying client share. Values in and out in
 * judge.c, retry_after.c and breaker.c, which know no clock and no network;
 * orders.c and file.c have the order database, transfer.c has libcurl, send.c
 * puts them together. No two files call each other.
 *
 * Nothing here writes a key, a header's value, a body or a URL into a text.
 */
#ifndef ONCE_CLIENT_CLIENT_H
#define ONCE_CLIENT_CLIENT_H

#include <once/client.h>

enum {
    ONCE__KEY_SIZE = 37,           /* a UUID's form, 128 random bits, and NUL */
    ONCE__DIGEST_SIZE = 32,        /* SHA-256                                 */
    ONCE__GROUP_MAX = 32,          /* characters of a group                   */
    ONCE__HOSTS_MAX = 64,          /* circuits that are remembered            */
    ONCE__AUTHORITY_MAX = 300,     /* characters of "https://host:65535"      */
    ONCE__HEADER_BYTES_MAX = 65536 /* of a request's or an answer's headers */
};

/* ---- What an answer means, judge.c ------------------------------------- */

/* The status header, Idempotency-Status: what the gateway says of the key. */
enum once__reported {
    ONCE__REPORTED_NONE,
    ONCE__REPORTED_NEW, /* executed now, so no earlier attempt was         */
    ONCE__REPORTED_REPLAYED, /* from the record; or Idempotent-Replayed: true */
    ONCE__REPORTED_IN_FLIGHT,
    ONCE__REPORTED_OTHER
};

/* The `code` of a problem of ours (docs/http.md, section 2). */
enum once__code {
    ONCE__CODE_NONE,     /* no problem of ours */
    ONCE__CODE_REJECTED, /* key-missing, key-invalid, scope-missing,
                          * key-reused; others with safe_new_key true      */
    ONCE__CODE_IN_FLIGHT,
    ONCE__CODE_UNKNOWN, /* outcome-unknown; others with safe_new_key false */
    ONCE__CODE_UNAVAILABLE,
    ONCE__CODE_ANSWER_LOST, /* response-unavailable; already-done, if what
                             * is recorded says that it took effect        */
    ONCE__CODE_REFUSED,     /* already-done, and a refusal is recorded      */
    ONCE__CODE_FAILED,      /* already-done, and a failure is recorded      */
    ONCE__CODE_EXPIRED,     /* key-expired: nothing is recorded any more    */
    ONCE__CODE_END
};

struct once__answer {
    int status;
    int reported;  /* enum once__reported                               */
    int code;      /* enum once__code                                   */
    int has_retry; /* there was a Retry-After that could be read        */
    uint64_t retry_ms;
};

/* What the client does next with the order. */
enum once__client_next {
    ONCE__NEXT_AGAIN,    /* send it again, same key                           */
    ONCE__NEXT_DONE,     /* end: it took effect                               */
    ONCE__NEXT_REFUSED,  /* end: it did not, and the record says so           */
    ONCE__NEXT_REJECTED, /* end: this attempt did nothing; others may have    */
    ONCE__NEXT_UNKNOWN   /* end: it may have taken effect                     */
};

struct once__judgement {
    int next;      /* enum once__client_next                                  */
    int reason;    /* enum once_client_reason                                 */
    int harmless;  /* this attempt provably did nothing                       */
    int unhealthy; /* 1: the host is in trouble, 0: it is not, -1: not known  */
};

struct once__judgement once__client_judge(const struct once__answer *a);

/* Reads a value of Idempotency-Status: enum once__reported. */
int once__client_reported(once_bytes value);
/* The code in a body of application/problem+json; CODE_NONE if it is not one
 * of ours. Reads nothing but `type`, `code`, `safe_new_key` and
 * `recorded_status`. */
int once__client_code(once_bytes content_type, once_bytes body);

/* What a lookup has answered with 200: enum once_client_told_state, and with
 * COMPLETED the recorded status. NOTHING: it is another document. */
int once__client_told(once_bytes content_type, once_bytes body, int *recorded);
/* What a recorded status means, as of already-done: CODE_ANSWER_LOST, _REFUSED,
 * _FAILED; CODE_UNKNOWN if it is none. */
int once__client_recorded(int status);

/* ---- What the server asks for, retry_after.c ---------------------------- */

/* Milliseconds since 1970 of an IMF-fixdate (RFC 9110, 5.6.7); 0 or -1. */
int once__client_date(once_bytes text, uint64_t *ms);
/*
 * Reads Retry-After: seconds, or a date, which is compared with the answer's
 * own Date, so that no local clock matters, or with `wall_ms` where there is
 * none. 0, or -1 if it is neither.
 */
int once__client_retry_after(once_bytes value, once_bytes date,
                             uint64_t wall_ms, uint64_t *ms);

/* ---- Circuits, breaker.c ----------------------------------------------- */

struct once__circuit {
    char host[ONCE__AUTHORITY_MAX];
    int state; /* breaker.c's picture */
    uint32_t failures;
    uint64_t until_ms; /* OPEN: until when; HALF: when the probe is given up */
    uint64_t used_ms;
};

struct once__breaker {
    uint32_t failures; /* in a row that open a circuit              */
    uint32_t open_ms;  /* for how long                              */
    uint32_t probe_ms; /* a probe without an answer for so long is lost */
    size_t n;
    struct once__circuit circuits[ONCE__HOSTS_MAX];
};

/* 0: go on; otherwise ask again in so many milliseconds. */
uint64_t once__breaker_ask(struct once__breaker *b, const char *host,
                           uint64_t now_ms);
/* How the request ended: `unhealthy` as in struct once__judgement. */
void once__breaker_report(struct once__breaker *b, const char *host,
                          int unhealthy, uint64_t now_ms);

/* ---- Requests, request.c ----------------------------------------------- */

/* A request whose parts were checked. */
struct once__ask {
    const char *group;
    once_bytes order;
    const char *method; /* NULL: as kept */
    const char *url;
    once_bytes headers; /* of the kind that is kept, encoded */
    once_bytes body;
    uint8_t digest[ONCE__DIGEST_SIZE];
    int ask_refused;
};

ONCE_CHECK int once__request_check(const once_client_request *r,
                                   once_error *err);
/* `what` names the field. */
ONCE_CHECK int once__url_check(const char *what, const char *url,
                               once_error *err);
ONCE_CHECK int once__headers_check(const once_client_header *headers, size_t n,
                                   once_error *err);
ONCE_CHECK int once__group_check(const char *group, once_bytes order,
                                 once_error *err);
/* Fills `*out`; its headers are on the heap: free() headers.data. */
ONCE_CHECK int once__request_ask(const once_client_request *r,
                                 struct once__ask *out, once_error *err);
/* Whether the header is a credential, which is not kept. */
int once__header_secret(const once_client_header *h);

/*
 * Headers as bytes: for each, name and value, both with a NUL after it. The
 * array that decoding makes is on the heap and points into `in`.
 */
ONCE_CHECK int once__headers_encode(const once_client_header *h, size_t n,
                                    int (*skip)(const once_client_header *),
                                    once_bytes *out);
ONCE_CHECK int once__headers_decode(once_bytes in, once_client_header **out,
                                    size_t *n);

/* The first 16 hex digits of the key's own sum. */
ONCE_CHECK int once__client_hash(const char *key, char out[17]);
/* Draws a key from the system's random source. ONCE_OK or ONCE_EOPEN. */
ONCE_CHECK int once__client_mint(char key[ONCE__KEY_SIZE], once_error *err);
/* "https://host:443" of a URL that was checked. */
void once__client_authority(const char *url, char out[ONCE__AUTHORITY_MAX]);

/* ---- The order database, orders.c -------------------------------------- */

struct once__orders;

/* An order as it stands. What it points to is one block, `memory`. */
struct once__order {
    int64_t id;
    int state; /* enum once_client_state */
    int reason;
    int status;
    int replayed;
    uint32_t attempts;
    uint32_t doubt;
    uint64_t created_ms;
    uint64_t sent_ms;
    char key[ONCE__KEY_SIZE];
    const char *group;
    once_bytes order;
    const char *method;
    const char *url;
    once_bytes headers, body;               /* the request's */
    once_bytes answer_headers, answer_body; /* final states only */
    void *memory;
};

ONCE_CHECK int once__orders_open(const char *path, uint32_t busy_ms,
                                 once_error *err, struct once__orders **out);
void once__orders_close(struct once__orders *d); /* accepts NULL */

/*
 * In one transaction: finds the order, or keeps it with `key`. ONCE_OK and
 * `*out`, which once__order_clear() ends; ONCE_MISMATCH if it is kept with
 * another request, ONCE_FREE if `ask` has no request and nothing is kept.
 */
ONCE_CHECK int once__orders_keep(struct once__orders *d,
                                 const struct once__ask *ask, const char *key,
                                 uint64_t now_ms, once_error *err,
                                 struct once__order *out);
/*
 * Counts one more attempt that may take effect, durable on return. ONCE_OK, or
 * ONCE_REFUSED if another process has finished the order, or forgotten it, or
 * if it has been in doubt since before `oldest_ms`.
 */
ONCE_CHECK int once__orders_mark(struct once__orders *d, int64_t id,
                                 uint64_t now_ms, uint64_t oldest_ms,
                                 uint32_t *doubt, once_error *err);
/* One attempt fewer: it provably did nothing. */
ONCE_CHECK int once__orders_unmark(struct once__orders *d, int64_t id,
                                   uint64_t now_ms, uint32_t *doubt,
                                   once_error *err);
/*
 * How the send ended. `o` has id, state, reason, status, replayed and the
 * answer; a final state that another process wrote stays. ONCE_OK or
 * ONCE_REFUSED.
 */
ONCE_CHECK int once__orders_end(struct once__orders *d,
                                const struct once__order *o, uint64_t now_ms,
                                once_error *err);
/* ONCE_OK, or ONCE_FREE if it is not there. */
ONCE_CHECK int once__orders_load(struct once__orders *d, int64_t id,
                                 once_error *err, struct once__order *out);
/* The next unfinished order after `id` and up to `last`, without the bytes of
 * its bodies. */
ONCE_CHECK int once__orders_next(struct once__orders *d, int64_t id,
                                 int64_t last, once_error *err,
                                 struct once__order *out);
ONCE_CHECK int once__orders_last(struct once__orders *d, int64_t *id,
                                 once_error *err);
ONCE_CHECK int once__orders_forget(struct once__orders *d, const char *group,
                                   once_bytes order, int force,
                                   once_error *err);
ONCE_CHECK int once__orders_purge(struct once__orders *d, uint64_t before_ms,
                                  uint64_t *purged, once_error *err);
void once__order_clear(struct once__order *o);

/* ---- One attempt, transfer.c ------------------------------------------- */

struct once__transfer {
    /* The question. */
    const char *method, *url, *key, *ca_file;
    const once_client_header *headers;
    size_t n_headers;
    once_bytes body;
    uint64_t wall_ms, connect_ms, attempt_ms;
    size_t response_max;
    /* 1: not one copy too many: a connection of its own, since libcurl sends
     * again what finds a kept one dead. */
    int single;
    /* Called when a connection is there and before a byte is sent; what is
     * not 0 breaks off. */
    int (*begin)(void *user);
    void *user;

    /* The answer. */
    int begun;        /* begin() was called: bytes may have left      */
    int copied;       /* ... and left twice, on two connections */
    int whole;        /* a complete answer came                       */
    int hopeless;     /* not sent, and trying again will not help   */
    int too_long;     /* its body was longer than response_max      */
    const char *said; /* libcurl's static text where it failed  */
    struct once__answer answer;
    once_bytes answer_headers;        /* encoded; borrowed until _clear */
    once_bytes answer_type, location; /* two of them, or empty   */
    once_bytes answer_body;
    void *memory; /* transfer.c's own */
};

/* libcurl as a whole: 1 if it is there. Each start needs its stop. */
int once__transfer_start(void);
void once__transfer_stop(void);
/* A handle of libcurl's, NULL without memory; dropping accepts NULL. */
void *once__transfer_handle(void);
void once__transfer_drop(void *easy);

/* `easy` is such a handle, which keeps connections between calls. ONCE_OK,
 * whatever came of it, or ONCE_ENOMEM, and nothing was sent. */
ONCE_CHECK int once__transfer_run(void *easy, struct once__transfer *t,
                                  once_error *err);
/* Connects to the host of a URL, with TLS where it says so, and sends no request.
 * NULL, or why it failed, in libcurl's words. */
const char *once__transfer_reach(const char *url, const char *ca_file,
                                 uint32_t connect_ms);
void once__transfer_clear(struct once__transfer *t);

/* ---- What became of a key, lookup.c ------------------------------------- */

/* Asks t->url with t->key and the headers, and sets method, body and begin.
 * `*recorded` and `*state` as of once__client_told(). ONCE_OK, whatever came of
 * it, or ONCE_ENOMEM. */
ONCE_CHECK int once__client_lookup(void *easy, struct once__transfer *t,
                                   int *recorded, int *state, once_error *err);

#endif /* ONCE_CLIENT_CLIENT_H */
