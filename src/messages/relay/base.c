/* SPDX-License-Identifier: Apache-2.0 */
/*
 * base.c - base.h: what is the same for every database. The rest is in
 * base_postgres.c, base_sqlite.c and base_mysql.c; below them is base_ask.c.
 */
#include "messages/relay/base.h"

#include <stdlib.h>
#include <string.h>

#include "base/named.h"
#include "messages/relay/base_driver.h"

static const struct once__base_driver *const drivers[] = {
    &once__base_sqlite,
#ifdef ONCE_WITH_POSTGRES
    &once__base_postgres,
#endif
#ifdef ONCE_WITH_MYSQL
    &once__base_mysql,
#endif
};

/* ---- The URL ------------------------------------------------------------ */

static const char *after_scheme(const char *url, const char *scheme)
{
    size_t n = scheme == NULL ? 0 : strlen(scheme);

    return n > 0 && strncmp(url, scheme, n) == 0 ? url + n : NULL;
}

static int read_url(const char *url, struct once__base *b, once_error *err)
{
    const char *rest = NULL;
    size_t i, k;

    for (i = 0; i < sizeof(drivers) / sizeof(drivers[0]); i++)
        for (k = 0; k < 2 && rest == NULL; k++) {
            rest = after_scheme(url, drivers[i]->schemes[k]);
            if (rest != NULL)
                b->driver = drivers[i];
        }
    if (rest != NULL && (rest[0] != '\0' || b->use == ONCE__BASE_CREATE))
        return b->driver->read(b, rest, err);
    return once__fail(err, ONCE_EURL,
                      "the URL of the database is not postgres://..., "
                      "mysql://... or sqlite:FILE");
}

int once__base_open(const char *url, int use, struct once__base **out,
                    once_error *err)
{
    struct once__base *b = calloc(1, sizeof(*b));
    struct once__named named;
    int rc;

    *out = NULL;
    if (b == NULL)
        return once__fail(err, ONCE_ENOMEM, "out of memory");
    b->tx = (once_tx)ONCE_TX_INIT;
    b->use = use;
    b->spare = -1;
    (void)pthread_mutex_init(&b->lock, NULL);
    rc = once__named_url(url, &named, &url, err);
    if (rc == ONCE_OK)
        rc = read_url(url, b, err);
    if (rc != ONCE_OK) {
        once__base_close(b);
        return rc;
    }
    *out = b;
    return ONCE_OK;
}

void once__base_close(struct once__base *b)
{
    if (b == NULL)
        return;
    if (b->driver != NULL) {
        once__base_drop(b);
        b->driver->clear(b);
    }
    (void)pthread_mutex_destroy(&b->lock);
    free(b);
}

/* ---- Connections -------------------------------------------------------- */

static int check(struct once__base *b, once_error *err)
{
    int rc = once_message_check(once__base_ask(b), err);

    if (rc == ONCE_OK && b->driver->check != NULL)
        rc = b->driver->check(b, err);
    return once__base_answered(b, rc);
}

int once__base_connect(struct once__base *b, once_error *err)
{
    int rc;

    if (b->driver->is_up(b))
        return ONCE_OK;
    once__base_drop(b);
    rc = b->driver->connect(b, err);
    if (rc == ONCE_OK && b->use == ONCE__BASE_READY)
        rc = check(b, err);
    if (rc == ONCE_OK)
        return rc;
    once__base_drop(b);
    return rc == ONCE_EABORTED ? ONCE_EAWAY : rc;
}

void once__base_drop(struct once__base *b)
{
    b->driver->drop(b);
}

const once_tx *once__base_tx(const struct once__base *b)
{
    return &b->tx;
}

const char *once__base_schema(const struct once__base *b)
{
    return b->tx.schema;
}

int once__base_database(const struct once__base *b)
{
    return b->driver->database;
}

/* ---- Transactions ------------------------------------------------------- */

int once__base_begin(struct once__base *b, once_error *err)
{
    return b->driver->begin(b, err);
}

int once__base_commit(struct once__base *b, once_error *err)
{
    return b->driver->commit(b, err);
}

void once__base_rollback(struct once__base *b)
{
    if (b->driver->is_up(b) && !b->driver->rollback(b))
        once__base_drop(b);
}
