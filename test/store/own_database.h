/* SPDX-License-Identifier: Apache-2.0 */
/* own_database.h - the URL of a database of a test's own, on the MySQL or MariaDB
 * server that ONCE_TEST_URL names, and its tables made. */
#ifndef ONCE_TEST_OWN_DATABASE_H
#define ONCE_TEST_OWN_DATABASE_H

#include <once/store.h>

#include "t.h"

/* `more`: parameters, "lock_ms=1&..." */
static inline void own_database(char *out, size_t size, const char *name,
                                const char *more)
{
    const char *server = getenv("ONCE_TEST_URL"), *query, *path;
    once_error err = {0, ""};

    if (server == NULL)
        t_skip_all("ONCE_TEST_URL names no server");
    query = server + strcspn(server, "?");
    path = memrchr(server, '/', (size_t)(query - server));
    (void)snprintf(out, size, "%.*s/%s%s%c%s", (int)(path - server), server,
                   name, query, *query == '?' ? '&' : '?', more);
    if (once_store_init(out, &err) != ONCE_OK) {
        printf("Bail out! %s\n", err.text);
        exit(1);
    }
}

#endif /* ONCE_TEST_OWN_DATABASE_H */
