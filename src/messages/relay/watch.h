/* SPDX-License-Identifier: Apache-2.0 */
/* watch.h - a thread that ends questions which a database does not answer. */
#ifndef ONCE_MESSAGES_RELAY_WATCH_H
#define ONCE_MESSAGES_RELAY_WATCH_H

#include <stdatomic.h>

#include "messages/relay/base.h"

struct once__watch;

/* Starts the thread. It is stricter when `*stop` is not 0. */
ONCE_CHECK int once__watch_start(const _Atomic int *stop,
                                 struct once__watch **out, once_error *err);
/* From now on this connection is watched, until it is removed. */
ONCE_CHECK int once__watch_add(struct once__watch *w, struct once__base *b,
                               once_error *err);
/* Before it is closed. Accepts NULL, and what is not watched. */
void once__watch_remove(struct once__watch *w, const struct once__base *b);
void once__watch_end(struct once__watch *w); /* accepts NULL */

#endif /* ONCE_MESSAGES_RELAY_WATCH_H */
