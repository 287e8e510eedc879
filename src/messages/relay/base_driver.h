/* SPDX-License-Identifier: Apache-2.0 */
/*
 * base_driver.h - what base.c knows of a database: a table of functions.
 */
#ifndef ONCE_MESSAGES_RELAY_BASE_DRIVER_H
#define ONCE_MESSAGES_RELAY_BASE_DRIVER_H

#include <pthread.h>
#include <stdatomic.h>

#include "base/error.h"
#include "messages/relay/base.h"

enum { ONCE__BASE_CONNECT_MS = 10000 };

struct once__base {
    const struct once__base_driver *driver;
    void *own; /* the driver's */
    once_tx tx;
    int use;
    atomic_ullong asked_ms; /* since when an answer is waited for; 0: none is. A
                             * value, for the thread that watches */
    pthread_mutex_t lock;
    int spare; /* by `lock`: the connection's socket once more, or -1 */
};

struct once__base_driver {
    int database; /* enum once_database */
    const char *schemes[2];
    /* What stands after the scheme; sets `own`. ONCE_OK, ONCE_EURL, ... */
    int (*read)(struct once__base *b, const char *rest, once_error *err);
    /* Also of one whose URL could not be read. */
    void (*clear)(struct once__base *b);
    /* Sets the handle in `tx`; drop() is next if it fails. */
    int (*connect)(struct once__base *b, once_error *err);
    int (*is_up)(const struct once__base *b);
    void (*drop)(struct once__base *b);
    /* What once_message_check() does not look at, or NULL. */
    int (*check)(struct once__base *b, once_error *err);
    int (*begin)(struct once__base *b, once_error *err);
    int (*commit)(struct once__base *b, once_error *err);
    /* commit() and begin() drop what they know nothing more of; 0: it could not be
     * rolled back. */
    int (*rollback)(struct once__base *b);
};

extern const struct once__base_driver once__base_sqlite;
extern const struct once__base_driver once__base_postgres;
extern const struct once__base_driver once__base_mysql;

/* base_ask.c: of a server's connection, -1: there is none; for once__base_watch(),
 * and with a bound to how long a network that is cut goes unnoticed. */
void once__base_keep_socket(struct once__base *b, int fd);

#endif /* ONCE_MESSAGES_RELAY_BASE_DRIVER_H */
