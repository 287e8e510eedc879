/* SPDX-License-Identifier: Apache-2.0 */
/* store.h - the drivers that were built in: `once__store_NAME` for each line
 * of stores.def. The interface itself is include/once/store.h. */
#ifndef ONCE_STORE_STORE_H
#define ONCE_STORE_STORE_H

#include <once/store.h>

/* The clock of a caller who set none: the host's. A store with a server of
 * its own asks the server then. */
uint64_t once__wall_clock(void *user);

#define ONCE_STORE(name) extern const once_store_ops once__store_##name;
#include "store/stores.def"
#undef ONCE_STORE

#endif /* ONCE_STORE_STORE_H */
