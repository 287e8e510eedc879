/* SPDX-License-Identifier: Apache-2.0 */
/*
 * send_batch.h - sends the rows that one claim has brought, and finds out how
 * each has ended. It knows a broker and no database.
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
    struct once__broker *broker;
    const struct once__outgoing_list *list;
    uint32_t timeout_ms; /* for a proof */
    uint64_t until_ms;   /* of once__relay_ms(): when the lease ends */
    uint64_t horizon_ms; /* in doubt for so long: not sent again; 0: never */
    int (*stop)(void *user); /* not 0: send no more */
    void *user;

    /* Out. */
    struct once__item *items; /* one for each row */
    size_t sent;              /* how many were sent */

    /* Its own. */
    uint64_t tag;        /* of the first row: different in each batch */
    size_t *order;       /* numbers of the rows, as they were sent */
    size_t oldest, open; /* the first of `order` that may be open; how many */
    int lost;            /* the connection was lost or given up */
    int abandoned;
};

/* Milliseconds of a clock that nobody sets and that goes on while the host
 * sleeps. */
uint64_t once__relay_ms(void);

/* Returns when every row has ended. ONCE_OK, or ONCE_ENOMEM: nothing was sent.
 * The caller ends it with once__batch_clear() in both cases. */
ONCE_CHECK int once__relay_batch_run(struct once__batch *b, once_error *err);
void once__batch_clear(struct once__batch *b);

#endif /* ONCE_MESSAGES_RELAY_SEND_BATCH_H */
