/* SPDX-License-Identifier: Apache-2.0 */
/*
 * payments.h - what payments.c, which knows the requests, has of the other
 * files.
 */
#ifndef PAYMENTS_H
#define PAYMENTS_H

#include <microhttpd.h>
#include <netinet/in.h>
#include <pthread.h>
#include <sqlite3.h>
#include <stdbool.h>
#include <stdint.h>

/* ---- ledger.c: the charges, one row each, in an SQLite file ------------ */

struct ledger {
    sqlite3 *db;
    pthread_mutex_t lock; /* one statement at a time */
};

/* Makes the file if it is not there; leaves one that is something else as it
 * is. ledger_close() is due in any case. */
bool ledger_open(struct ledger *l, const char *path);
void ledger_close(struct ledger *l);

/*
 * These give a line of JSON in `*line`, for free(); NULL only if there
 * was no memory for it. False: nothing was done, and stderr says why.
 * ledger_order() gives an empty line if the order has no charges, and begins
 * after the charge `after`; ledger_page() begins after the order `after`.
 */
bool ledger_charge(struct ledger *l, const char *order, int64_t amount,
                   const char *record, char **line);
bool ledger_order(struct ledger *l, const char *order, uint32_t after,
                  uint32_t limit, char **line);
bool ledger_page(struct ledger *l, const char *after, uint32_t limit,
                 char **line);
/* What the charge of this record was answered; NULL also if there is none. */
bool ledger_record(struct ledger *l, const char *record, char **line);

/* ---- manners.c: how a charge is to misbehave ---------------------------- */

enum { NAP_MAX_MS = 600000 };
enum fault { NO_FAULT, FAIL, DROP, DIE, HALF, GARBAGE };
enum moment { BEFORE, AFTER }; /* the charge */

struct manners {
    uint32_t nap_ms[2]; /* by moment */
    enum fault fault;
    enum moment when;
    unsigned status; /* FAIL */
};

#define MANNERS_RULE                                                           \
    "must be a comma list of slow=MS and slow-after=MS (0 to 600000) and at "  \
    "most one of fail=STATUS, fail-after=STATUS (400 to 599), drop-before, "   \
    "drop-after, die-before, die-after, half, garbage"

/* False, and `*m` is spoilt, if the text is not like MANNERS_RULE. */
bool manners_parse(const char *text, struct manners *m);
/* Decimal digits and nothing else, from min to max. */
bool number_parse(const char *text, uint32_t min, uint32_t max, uint32_t *out);

/* ---- naps.c: requests that wait without holding a thread ---------------- */

struct nap {
    struct MHD_Connection *connection;
    bool cut; /* woken early, because the service stops */
    uint64_t due_ms;
    struct nap *next;
};

struct naps {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    pthread_t thread;
    struct nap *first; /* in the order in which they are due */
    bool closing;
};

int naps_start(struct naps *n); /* 0, or an error number */
/* Cuts all naps short and allows no more: libmicrohttpd, which is stopped next,
 * must not have a suspended connection then. */
void naps_stop(struct naps *n);
/* For a handler to return, which is called again when `ms` have passed. */
enum MHD_Result naps_add(struct naps *n, struct nap *one, uint32_t ms);

/* ---- plain.c or guarded.c: how requests come in and answers leave -------- */

/* Two programs have all the rest in common: `payments`, to which a repetition
 * is a new charge, and `payments-guarded`, which has Once inside. */
extern const bool way_is_guarded;

struct way;
struct once_mhd_call; /* of the guarded program; NULL in the plain one */

/* As libmicrohttpd's MHD_AccessHandlerCallback, and `call`. */
typedef enum MHD_Result way_handler(void *cls, struct once_mhd_call *call,
                                    struct MHD_Connection *c, const char *path,
                                    const char *method, const char *version,
                                    const char *piece, size_t *size,
                                    void **own);

struct way_options {
    const struct sockaddr_in *listen;
    const char *address; /* the same */
    unsigned threads;
    const char *store; /* URL; guarded only */
    way_handler *handler;
    void (*ended)(void **own);
    void *cls; /* of the handler */
};

/* NULL, and stderr says why. */
struct way *way_open(const struct way_options *o);
unsigned way_port(const struct way *w);
/* After naps_stop(). */
void way_close(struct way *w);

struct reply {
    unsigned status;
    const char *location, *allow; /* or NULL */
    const char *record;           /* of a probe that was applied, or NULL */
    const char *body;             /* JSON */
    bool half;         /* the connection is to break after half of the body */
    bool nothing_done; /* and nothing will be */
};

/* For a handler to return. The body is copied. */
enum MHD_Result way_answer(struct MHD_Connection *c, struct once_mhd_call *call,
                           const struct reply *r);
/* Whether the client has left, so that naps are no use any more. */
bool way_is_gone(const struct once_mhd_call *call);

#endif /* PAYMENTS_H */
