/* SPDX-License-Identifier: Apache-2.0 */
/*
 * base.h - a connection of our own to the database of a program: the relay's,
 * the consumer's, and that of the commands that look at messages. Each belongs
 * to one thread at a time.
 *
 * It refuses to repeat anything: what a lost connection leaves unknown is for
 * the caller to ask again.
 */
#ifndef ONCE_MESSAGES_RELAY_BASE_H
#define ONCE_MESSAGES_RELAY_BASE_H

#include <once/message.h>

struct once__base;

enum once__base_use {
    ONCE__BASE_BARE,   /* the tables may be missing: to make them         */
    ONCE__BASE_CREATE, /* the same; SQLite makes the file, if there is none; a
                        * scheme alone is enough, for who does not connect    */
    ONCE__BASE_READY   /* once_message_check() must be content            */
};

/* Reads the URL, "postgres://...", "mysql://..." or "sqlite:FILE"; does not connect. ONCE_OK,
 * ONCE_EURL, ONCE_ENOMEM. */
ONCE_CHECK int once__base_open(const char *url, int use,
                               struct once__base **out, once_error *err);
void once__base_close(struct once__base *b); /* accepts NULL */

/*
 * Connects if it is not connected. ONCE_OK; ONCE_EAWAY: not now, ask again (it
 * waits by itself between two tries that come too soon); ONCE_EOPEN,
 * ONCE_EVERSION: it was reached and cannot be used.
 */
ONCE_CHECK int once__base_connect(struct once__base *b, once_error *err);
/* Closes the connection, for instance because it is unknown what became of
 * it. */
void once__base_drop(struct once__base *b);

/* The handle, for the functions of once/message.h; without a connection there is
 * none in it. */
const once_tx *once__base_tx(const struct once__base *b);
/* The schema's name, also before a connection. */
const char *once__base_schema(const struct once__base *b);
/* enum once_database */
int once__base_database(const struct once__base *b);

/*
 * A server that has stopped, or a network that swallows, never answers, and client
 * libraries wait for ever. So the asking thread says so, and another one ends what has waited
 * for too long: the connection is lost then.
 *
 *    rc = ONCE__ASK(b, once__outbox_claim, &ask, &list, &err);
 */
#define ONCE__ASK(b, function, ...)                                            \
    once__base_answered((b), function(once__base_ask(b), __VA_ARGS__))
const once_tx *once__base_ask(struct once__base *b);   /* as once__base_tx() */
int once__base_answered(struct once__base *b, int rc); /* returns `rc` */
/* From another thread: ends a question that was asked more than `ms` ago. SQLite
 * waits for nobody that long. */
void once__base_watch(struct once__base *b, uint32_t ms);

/* BEGIN, on SQLite BEGIN IMMEDIATE. ONCE_OK; ONCE_EABORTED: not now, connect
 * again. */
ONCE_CHECK int once__base_begin(struct once__base *b, once_error *err);
/*
 * ONCE_OK: durable; on PostgreSQL by the command tag and not by the want of an error.
 * ONCE_EABORTED: rolled back for certain. ONCE_EAWAY: unknown; the connection is
 * closed.
 */
ONCE_CHECK int once__base_commit(struct once__base *b, once_error *err);
/* What cannot be rolled back is dropped, which does the same. */
void once__base_rollback(struct once__base *b);

#endif /* ONCE_MESSAGES_RELAY_BASE_H */
