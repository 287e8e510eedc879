/* SPDX-License-Identifier: Apache-2.0 */
/*
 * client.h - send a request until its outcome is known, and never under two
 * keys: the retrying client. In a library of its own, libonce-client.
 *
 *    once_client_open --> once_client_send --+--> ONCE_CLIENT_DONE
 *                              |             +--> ONCE_CLIENT_NOT_DONE
 *                              |             +--> ONCE_CLIENT_UNKNOWN
 *                              |             +--> ONCE_CLIENT_MISMATCH
 *                              +- once_client_result_clear
 *    once_client_close
 *
 * An *order* is what the caller needs to happen once, named by an id of his
 * own business: "42". The client draws one Idempotency-Key for it and keeps
 * key and request in a file *before* the first byte leaves. A caller who sends
 * the order again - another thread, another process, the same one after a crash
 * - uses the same key, so the gateway, or any server that honours the header,
 * recognises the repeat. The life of an order in the file:
 *
 *              keep        a byte may leave         2xx
 *    (nothing) ----> PREPARED -----------> SENT ----------------> DONE
 *                       ^                  ^  |-----------------> REFUSED
 *                       |  provably        |  |  the record says no
 *                       +-- nothing done --|--|
 *                                          |  | the deadline passed, or the
 *                               send again |  v gateway says "unknown"
 *                                          UNKNOWN
 *
 * (In the file DONE is FINISHED, and UNKNOWN is OPEN.)
 *
 * DONE and REFUSED are final: sending such an order again gives the kept
 * answer, without the network. UNKNOWN is asked again with the same key.
 *
 * What is sent again, with the same key: connections that failed or broke,
 * time-outs, 408, 425, 429, 5xx, and the problems `in-flight` and
 * `store-unavailable`. What is not: everything else. Pauses double, with full
 * jitter; Retry-After is honoured; a host that keeps failing is not asked for a
 * while (a circuit breaker). Redirects are not followed. Certificates are
 * verified. docs/client.md has the tables.
 *
 * Errors, details, ownership: as in once.h. An error of once_client_send()
 * means that nothing left in that call; ONCE_ESTORE is about the client's own
 * file. No text holds a key, a header's value, a body or a URL.
 *
 * Threads: a client may be used by any number of threads at once. Several
 * processes may open the same file. Fork first, open afterwards.
 */
#ifndef ONCE_CLIENT_H
#define ONCE_CLIENT_H

#include <once/once.h>

#ifdef __cplusplus
extern "C" {
#endif

#define ONCE_CLIENT_ORDER_MAX ((size_t)255)     /* bytes of an order's id   */
#define ONCE_CLIENT_URL_MAX ((size_t)8192)      /* characters               */
#define ONCE_CLIENT_HEADERS_MAX ((size_t)100)   /* of one request           */
#define ONCE_CLIENT_BODY_MAX ((size_t)64 << 20) /* bytes of one request     */
#define ONCE_CLIENT_DEADLINE_MAX_MS 604800000u  /* a week                   */
#define ONCE_CLIENT_RESPONSE_MAX ((size_t)64 << 20)

/* What once_client_send() knows when it returns. */
enum once_client_outcome {
    ONCE_CLIENT_DONE = 1,     /* it took effect: charged                    */
    ONCE_CLIENT_NOT_DONE = 2, /* it took none so far: not charged           */
    ONCE_CLIENT_UNKNOWN = 3,  /* it may have: do not send it as a new order */
    ONCE_CLIENT_MISMATCH = 4  /* the id is kept with another request        */
};

/*
 * Why. X(NAME, number, text). Numbers are kept in files and never reused.
 */
#define ONCE_CLIENT_REASONS(X)                                                 \
    X(ANSWERED, 1, "the server has answered")                                  \
    X(ANSWER_LOST, 2, "it took effect, but its answer was not kept")           \
    X(REJECTED, 3, "this attempt was refused, and not by the record")          \
    X(NOT_SENT, 4, "nothing was done: no attempt got through in time")         \
    X(IN_DOUBT, 5, "the deadline passed; an attempt may have taken effect")    \
    X(INDETERMINATE, 6, "the gateway says that the outcome is not known")      \
    X(FAILED, 7, "the recorded answer is a failure of the server")             \
    X(REDIRECTED, 8, "redirected, which may mean anything")                    \
    X(TOO_OLD, 9, "in doubt for longer than the gateway remembers")            \
    X(CHANGED, 10, "kept with another method, URL, type or body")

/* clang-format off */
enum once_client_reason {
#define ONCE_CLIENT__REASON(name, number, text) ONCE_CLIENT_##name = number,
    ONCE_CLIENT_REASONS(ONCE_CLIENT__REASON)
#undef ONCE_CLIENT__REASON
    ONCE_CLIENT__REASONS_END = 99
};
/* clang-format on */

/* One line of English for a reason, never NULL. Since 0.1. */
ONCE_API const char *once_client_text(int reason);

/* Where an order stands. The numbers are kept in files. */
enum once_client_state {
    ONCE_CLIENT_PREPARED = 1, /* kept; provably nothing was done            */
    ONCE_CLIENT_SENT = 2,     /* an attempt left, its answer is not known   */
    ONCE_CLIENT_FINISHED = 3, /* DONE: the answer is kept                   */
    ONCE_CLIENT_REFUSED = 4,  /* the recorded answer is a refusal; kept     */
    ONCE_CLIENT_OPEN = 5      /* UNKNOWN was returned                       */
};

typedef struct once_client once_client;

/*
 * Options of a client: set `size` with ONCE_CLIENT_OPTIONS_INIT, change what
 * you need. Zero means the default in brackets.
 */
typedef struct once_client_options {
    size_t size;
    uint32_t deadline_ms;      /* of a whole send [60,000]                   */
    uint32_t attempt_ms;       /* of one attempt [15,000]                    */
    uint32_t connect_ms;       /* of making a connection [5,000]             */
    uint32_t backoff_ms;       /* longest first pause, then doubled [200]    */
    uint32_t backoff_max_ms;   /* ... up to this [10,000]                    */
    uint32_t attempts_max;     /* connections tried in one send [1,000]      */
    uint32_t breaker_failures; /* in a row that open a host's circuit [10]   */
    uint32_t breaker_ms;       /* how long it stays open [5,000]             */
    uint32_t busy_ms;          /* wait for a locked file [5,000]             */
    size_t response_max;       /* bytes of an answer that are read [1 MiB]   */
    /*
     * How long after the first attempt in doubt the key is still sent: less
     * than the gateway's once_ttl, since a gateway that has forgotten the key
     * would execute it again. [82,800,000, 23 hours]
     */
    uint64_t horizon_ms;
    const char *ca_file; /* certificates to trust, copied [the system's]     */
    /*
     * For tests, and for callers with a scheduler of their own; NULL means
     * the system's. `clock` is in ms and never goes back, `wall` is in ms
     * since 1970. `pause` waits; what is not 0 ends the send as a deadline
     * would. `random` fills a buffer, and only draws pauses: keys always come
     * from the system.
     */
    uint64_t (*clock)(void *user);
    uint64_t (*wall)(void *user);
    int (*pause)(void *user, uint64_t ms);
    void (*random)(void *user, void *out, size_t size);
    void *user;
} once_client_options;

#define ONCE_CLIENT_OPTIONS_INIT                                               \
    {                                                                          \
        sizeof(once_client_options), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, NULL,    \
            NULL, NULL, NULL, NULL, NULL                                       \
    }

/*
 * Opens the file of orders at `path`, which is made, for its owner only, if it
 * is not there: an SQLite database with a write-ahead log, on a local disk.
 * It holds keys and, until they are done, requests: treat it as a secret.
 * Returns ONCE_OK, or ONCE_EOPEN (unreadable, unwritable, something else, or
 * its folder cannot be flushed), ONCE_EVERSION, ONCE_ECORRUPT, ONCE_EINVAL (an
 * option), ONCE_ENOMEM; `*out` is then as it was. The caller ends it with
 * once_client_close(). Since 0.1.
 *
 * Calls curl_global_init(), which is safe beside other threads since libcurl
 * 7.84; with an older one, call it yourself before threads start.
 */
ONCE_API ONCE_CHECK int once_client_open(const char *path,
                                         const once_client_options *options,
                                         once_error *err, once_client **out);

/* No call may be under way. Accepts NULL. Since 0.1. */
ONCE_API void once_client_close(once_client *c);

/* ---- Sending --------------------------------------------------------- */

enum once_client_header_flags {
    /* Sent but never kept in the file: a credential. Authorization, Cookie
     * and Proxy-Authorization are always so, with or without this. */
    ONCE_CLIENT_SECRET = 1
};

typedef struct once_client_header {
    const char *name;
    const char *value;
    uint32_t flags; /* enum once_client_header_flags */
} once_client_header;

/*
 * An order and its request. Method, URL, Content-Type, Content-Encoding and
 * body are the request: they must be the same whenever the order is sent, as
 * the gateway's fingerprint needs it. Other headers may differ.
 *
 * `method` and `url` NULL: send what was kept with the order, for example
 * after a crash. Headers given then are sent instead of kept ones with the
 * same name; secrets were not kept and must be given.
 *
 * Idempotency-Key, Host, Connection, Content-Length, Transfer-Encoding and
 * Expect are the client's. A URL is http or https and holds no user, no
 * password and no fragment.
 */
typedef struct once_client_request {
    size_t size;
    const char *group;  /* of ids, 1 to 32 visible characters ["default"] */
    once_bytes order;   /* the id, 1 to ONCE_CLIENT_ORDER_MAX bytes       */
    const char *method; /* "POST"                                         */
    const char *url;    /* "https://pay.example/charge"                   */
    const once_client_header *headers;
    size_t n_headers;
    once_bytes body;
    uint32_t deadline_ms; /* of this send [the client's]                    */
    uint32_t ask_refused; /* 1: a kept refusal is asked again, same key [0] */
    /*
     * A status resource of the gateway (docs/http.md, section 10), asked with
     * the order's key and headers before the outcome is called IN_DOUBT or
     * TOO_OLD. It is not kept in the file. NULL: the one on the order's own
     * host that a 202 with "Idempotency-Status: in_flight" names, if one has.
     */
    const char *lookup;
} once_client_request;

#define ONCE_CLIENT_REQUEST_INIT                                               \
    {                                                                          \
        sizeof(once_client_request), NULL, {NULL, 0}, NULL, NULL, NULL, 0,     \
            {NULL, 0}, 0, 0, NULL                                              \
    }

/* How a send ended. Initialise with ONCE_CLIENT_RESULT_INIT. */
typedef struct once_client_result {
    size_t size;
    int outcome;       /* enum once_client_outcome, as returned              */
    int reason;        /* enum once_client_reason                            */
    int status;        /* of the last answer, 0 without one                  */
    int replayed;      /* 1: the server says that it repeats a recorded one  */
    int kept;          /* 1: from the client's file, nothing was sent        */
    int final;         /* 1: the answer to this order will never be another  */
    int unkept;        /* 1: the file failed afterwards: it is not in there.
                        * The order is still safe to send: same key          */
    uint32_t attempts; /* of this call that got as far as a connection       */
    uint32_t doubt;    /* attempts, of all calls, whose effect is not known  */
    uint64_t wait_ms;  /* the server's last Retry-After, or 0                */
    char key_hash[17]; /* SHA-256 of the key, 16 hex digits: safe to log     */
    char text[128];    /* what happened last, in words that are safe to log  */
    const once_client_header *headers; /* of the answer, in their order      */
    size_t n_headers;
    once_bytes body;
    void *memory; /* of the two above */
} once_client_result;

#define ONCE_CLIENT_RESULT_INIT                                                \
    {                                                                          \
        sizeof(once_client_result), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, "", "",      \
            NULL, 0, {NULL, 0}, NULL                                           \
    }

/*
 * Sends the order until its outcome is known or the deadline passes. Blocks.
 * Whatever the outcome, the order may be sent again: that never takes another
 * key. Returns an outcome:
 *
 *   ONCE_CLIENT_DONE      A 2xx or a 303, fresh or replayed; with reason
 *                         ANSWER_LOST no body, because the gateway did not
 *                         keep it or it was longer than `response_max`.
 *   ONCE_CLIENT_NOT_DONE  ANSWERED: the recorded answer is a refusal, and
 *                         final. REJECTED: refused without a record, say
 *                         401: remove the cause and send the order again.
 *                         NOT_SENT: every attempt ended before the request, or
 *                         was answered "not done".
 *   ONCE_CLIENT_UNKNOWN   IN_DOUBT, INDETERMINATE, FAILED, REDIRECTED or
 *                         TOO_OLD. Find out from the service itself.
 *   ONCE_CLIENT_MISMATCH  The id is kept with another request. Nothing left.
 *
 * A refusal that comes after an attempt in doubt counts only if it is the
 * record's (Idempotency-Status: new or replayed): a 401 for the second attempt
 * says nothing about the first. Otherwise the outcome is UNKNOWN.
 *
 * Or an error, and nothing left in this call: ONCE_EINVAL and ONCE_ELIMIT name
 * the field; ONCE_EINVAL also if method and URL are NULL and the order is not
 * kept; ONCE_ESTORE, ONCE_EFULL: the file; ONCE_ECORRUPT: a row that is
 * corrupt; ONCE_ENOMEM. `*result` is then empty. It may be NULL; otherwise end
 * it with once_client_result_clear(). Since 0.1.
 */
ONCE_API ONCE_CHECK int once_client_send(once_client *c,
                                         const once_client_request *request,
                                         once_client_result *result,
                                         once_error *err);

/* Frees what the result points to and empties it. Since 0.1. */
ONCE_API void once_client_result_clear(once_client_result *result);

/* ---- Asking what became of a key -------------------------------------- */

/* What a status resource of the gateway says (docs/http.md, section 10). */
enum once_client_told_state {
    ONCE_CLIENT_TOLD_NOTHING = 0,      /* no answer, or another one          */
    ONCE_CLIENT_TOLD_ABSENT = 1,       /* nothing is recorded: the request may
                                        * still come. Send the *same* key    */
    ONCE_CLIENT_TOLD_IN_FLIGHT = 2,    /* ask again later                    */
    ONCE_CLIENT_TOLD_COMPLETED = 3,    /* `recorded_status` says how         */
    ONCE_CLIENT_TOLD_INDETERMINATE = 4 /* it may have taken effect           */
};

/* Initialise with ONCE_CLIENT_QUESTION_INIT; zero and NULL mean the default in
 * brackets. */
typedef struct once_client_question {
    size_t size;
    const char *url; /* of the lookup; "?wait=10s" waits there             */
    once_bytes key;  /* 1 to 255 visible ASCII characters and spaces        */
    const once_client_header *headers; /* credentials                       */
    size_t n_headers;
    uint32_t timeout_ms; /* of the whole call [15,000]                      */
    const char *ca_file; /* certificates to trust [the system's]            */
} once_client_question;

#define ONCE_CLIENT_QUESTION_INIT                                              \
    {                                                                          \
        sizeof(once_client_question), NULL, {NULL, 0}, NULL, 0, 0, NULL        \
    }

/* Initialise with ONCE_CLIENT_TOLD_INIT. */
typedef struct once_client_told {
    size_t size;
    int state;           /* enum once_client_told_state                     */
    int status;          /* of the answer, 0 without one                    */
    int recorded_status; /* of a completed request; 0: not told             */
    char text[128];      /* what happened, in words that are safe to log    */
    once_bytes body;     /* of the answer, as it came                       */
    void *memory;
} once_client_told;

#define ONCE_CLIENT_TOLD_INIT                                                  \
    {                                                                          \
        sizeof(once_client_told), 0, 0, 0, "", {NULL, 0}, NULL                 \
    }

/*
 * Asks once, without a client and its file. Blocks. Nothing is changed by it.
 * Returns ONCE_OK, whatever came of it, or ONCE_EINVAL and ONCE_ELIMIT (which
 * name the field) or ONCE_ENOMEM: nothing was asked. End `*told` with
 * once_client_told_clear(). Since 0.1.
 */
ONCE_API ONCE_CHECK int once_client_lookup(const once_client_question *question,
                                           once_client_told *told,
                                           once_error *err);

/* Frees what it points to and empties it. Accepts NULL. Since 0.1. */
ONCE_API void once_client_told_clear(once_client_told *told);

/* ---- The file -------------------------------------------------------- */

/* An order in the file, all borrowed for the call. */
typedef struct once_client_order {
    size_t size;
    const char *group;
    once_bytes order;
    int state;           /* enum once_client_state                           */
    int reason;          /* of the last send, enum once_client_reason, or 0  */
    uint32_t attempts;   /* since it was kept                                */
    uint32_t doubt;      /* of these, with an unknown effect                 */
    uint64_t created_ms; /* since 1970                                       */
    uint64_t sent_ms;    /* when the oldest attempt in doubt began, or 0     */
    const char *method;
    const char *url;
    char key_hash[17];
} once_client_order;

/* Called for each order; return 0 to go on, anything else to stop. It may call
 * once_client_send(). */
typedef int once_client_each(void *user, const once_client_order *order);

/*
 * What has no final answer: PREPARED, SENT and OPEN, oldest first, as it was
 * kept up to this call. After a crash, send each again (`method` NULL). Returns
 * how many were shown, or an error as above, after which some may have been
 * shown. Since 0.1.
 */
ONCE_API ONCE_CHECK int once_client_resume(once_client *c,
                                           once_client_each *each, void *user,
                                           once_error *err);

/*
 * Forgets one order, so that its id gets a new key the next time. Returns
 * ONCE_OK, also if there is none; ONCE_REFUSED if it may have taken effect,
 * unless `force` is 1: then you know better. Errors as above. Since 0.1.
 */
ONCE_API ONCE_CHECK int once_client_forget(once_client *c, const char *group,
                                           once_bytes order, int force,
                                           once_error *err);

/*
 * Forgets orders that are DONE or REFUSED for longer than `older_ms`. An id
 * that is sent again after that is a new order, with a new key: choose a time
 * after which no caller does. `*purged`, which may be NULL, says how many.
 * Errors as above, after which some may be gone. Since 0.1.
 */
ONCE_API ONCE_CHECK int once_client_purge(once_client *c, uint64_t older_ms,
                                          uint64_t *purged, once_error *err);

#ifdef __cplusplus
}
#endif
#endif /* ONCE_CLIENT_H */
