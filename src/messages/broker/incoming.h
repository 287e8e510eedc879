/* SPDX-License-Identifier: Apache-2.0 */
/*
 * incoming.h - a delivery while it is put together, and the lines of headers of
 * a message that goes out: what drivers of brokers have in common.
 *
 * What a broker brings was written by anybody. What does not fit into a
 * once_message is a flaw: the part is left out and the delivery says why.
 */
#ifndef ONCE_MESSAGES_BROKER_INCOMING_H
#define ONCE_MESSAGES_BROKER_INCOMING_H

#include "messages/broker/broker.h"

/* The headers that carry parts of a message, where a broker has no place of its
 * own for them. */
#define ONCE__HEADER_ID "Once-Id"
#define ONCE__HEADER_KEY "Once-Key"
#define ONCE__HEADER_TYPE "Content-Type"

struct once__incoming {
    struct once__delivery d; /* what the caller sees */
    struct once__incoming *prev, *next;
    uint64_t connection; /* which connection of the driver it came on */
    void *native;        /* of the driver, on the heap, or NULL */
    size_t n_headers, n_body, cap_headers, cap_body;
    int seen_id, seen_key, nomem;
    char *headers;
    uint8_t *body;
    char id[ONCE_ID_SIZE], key[ONCE_ID_SIZE], type[ONCE_ID_SIZE];
};

/* NULL: no memory. */
struct once__incoming *once__incoming_new(void);
void once__incoming_free(struct once__incoming *in); /* accepts NULL */
void once__incoming_flaw(struct once__incoming *in, const char *why);
void once__incoming_id(struct once__incoming *in, const void *text,
                       size_t size);
void once__incoming_type(struct once__incoming *in, const void *text,
                         size_t size);
/* A header; ONCE__HEADER_KEY becomes the key. */
void once__incoming_header(struct once__incoming *in, const void *name,
                           size_t n_name, const void *value, size_t n_value);
/* A piece of the body, of which `most` bytes are allowed, 0: ONCE_BODY_MAX. */
void once__incoming_body(struct once__incoming *in, const void *piece,
                         size_t size, uint32_t most);
/* Fills d.m. 0: there was no memory, and it is of no use. */
ONCE_CHECK int once__incoming_finish(struct once__incoming *in);

/* Deliveries, in the order of arrival. */
struct once__incoming_list {
    struct once__incoming *first, *last;
};
void once__incoming_push(struct once__incoming_list *list,
                         struct once__incoming *in);
void once__incoming_remove(struct once__incoming_list *list,
                           struct once__incoming *in);
void once__incoming_drop(struct once__incoming_list *list); /* frees all */

/* One line of once_message.headers. */
struct once__header_line {
    const char *name, *value;
    size_t n_name, n_value;
};
/* The line at `*at`, which moves on; 0: there is none. Lines that would forge
 * one of the headers above are passed over. */
int once__header_line_next(const char **at, struct once__header_line *line);

#endif /* ONCE_MESSAGES_BROKER_INCOMING_H */
