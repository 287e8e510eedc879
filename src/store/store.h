/* SPDX-License-Identifier: Apache-2.0 */
/* store.h - the drivers that were built in: `once__store_NAME` for each line
 * of stores.def. The interface itself is include/once/store.h. */
#ifndef ONCE_STORE_STORE_H
#define ONCE_STORE_STORE_H

#include <once/store.h>

/* The clock of a caller who set none: the host's. A store with a server of
 * its own asks the server then. */
uint64_t once__wall_clock(void *user);

/* Which start of which host this is. */
void once__host(uint8_t out[ONCE_HOST_SIZE]);

/* The time by which this operation, or this scan, is decided. */
static inline uint64_t once__time_of(const once_store *s, int forgets,
                                     uint64_t now_ms)
{
    return forgets && s->forget_ms != 0 && s->forget_ms < now_ms ? s->forget_ms
                                                                 : now_ms;
}

#define ONCE_STORE(name) extern const once_store_ops once__store_##name;
#include "store/stores.def"
#undef ONCE_STORE

#endif /* ONCE_STORE_STORE_H */
