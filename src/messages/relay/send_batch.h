/* SPDX-License-Identifier: Apache-2.0 */
/*
 * send_batch.h - sends the rows that one claim has brought, and finds out how
 * each has ended. It knows a broker and no database. Several batches may be with
 * one broker at a time, as long as no key is in two of them.
 *
 * Rows of one key are sent one after the other, each when the target has proved
 * that it has the one before; others side by side. At the first row of a key
 * that was not taken, the rest of that key ends unsent.
 */
#ifndef ONCE_MESSAGES_RELAY_SEND_BATCH_H
#define ONCE_MESSAGES_RELAY_SEND_BATCH_H

#include "messages/broker/broker.h"
#include "messages/tables/outbox.h"

enum once__item_state { ONCE__ITEM_HELD, ONCE__ITEM_OPEN, ONCE__ITEM_ENDED };

/* One row, and how its attempt ended. */
struct once__item {
    once_message m; /* as it is sent */
    size_t next;    /* the next row of its key; its own number: none */
    int follows;    /* there is one before it */
    int state;      /* enum once__item_state */
    int end;        /* enum once__row_end */
    int status;
    uint64_t sent_ms, retry_ms;
    once_bytes reply; /* a copy */
    char *why;        /* a copy, or NULL */
};

struct once__batch {
    /* The caller's. */
    const struct once__outgoing_list *list;
    uint32_t timeout_ms; /* for a proof */
    uint64_t until_ms;   /* of once__relay_ms(): when the lease ends */
    uint64_t horizon_ms; /* in doubt for so long: not sent again; 0: never */
    int back;            /* 1: none of it is sent */
    int (*stop)(void *user); /* not 0: send no more */
    void *user;

    /* Out. */
    struct once__item *items; /* one for each row */
    size_t sent;              /* how many were sent */
    size_t open;              /* that have no proof yet; 0: it has ended */

    /* Its own. */
    struct once__wire *wire;
    struct once__batch *next; /* at the same wire, begun later */
    uint64_t tag;             /* of the first row: different in each batch */
    size_t *order;            /* numbers of the rows, as they were sent */
    size_t oldest;            /* the first of `order` that may be open */
};

/* A broker, and the batches that are with it. */
struct once__wire {
    struct once__broker *broker; /* the caller's */

    /* Its own. */
    struct once__batch
        *first;   /* what is open, in the order of the beginnings */
    uint64_t tag; /* of the next row */
    int lost;     /* the connection was lost or given up */
    int abandoned;
};

/* Milliseconds of a clock that nobody sets and that goes on while the host
 * sleeps. */
uint64_t once__relay_ms(void);

/*
 * Sends what may be sent at once. ONCE_OK, also if it has ended already; or
 * ONCE_ENOMEM: nothing was sent, and it has no items. The caller ends it with once__batch_clear() in both
 * cases, after it has ended. Where the connection was lost, nothing more is sent
 * until all that are open have ended.
 */
ONCE_CHECK int once__batch_begin(struct once__wire *wire, struct once__batch *b,
                                 once_error *err);
/* Waits until something has been proved about one of the batches that are open, of
 * which there has to be one, or until the time of a row is over. */
void once__wire_collect(struct once__wire *wire);
void once__batch_clear(struct once__batch *b);

#endif /* ONCE_MESSAGES_RELAY_SEND_BATCH_H */
