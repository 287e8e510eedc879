/* SPDX-License-Identifier: Apache-2.0 */
/*
 * schema.c - schema.sql, with the names of this configuration in it: made on a
 * server, or printed.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/sqltext.h"
#include "base/steady.h"
#include "calls/store/postgres/schema.sql.h"
#include "calls/store/postgres/postgres.h"

/* ---- The text ---------------------------------------------------------- */

static size_t fill_in(const struct once__pg_config *c, char *out)
{
    char partitions[24], reasons[24];
    const struct once__mark marks[] = {{"@schema@", c->schema},
                                       {"@partitions@", partitions},
                                       {"@reasons@", reasons}};

    (void)snprintf(partitions, sizeof(partitions), "%u",
                   (unsigned)c->partitions);
    (void)snprintf(reasons, sizeof(reasons), "%d", ONCE__REASON_END - 1);
    return once__sql_fill(out, once__schema_sql, marks, 3);
}

/* schema.sql for this configuration, on the heap. */
static char *make_text(const struct once__pg_config *c)
{
    char *text = malloc(fill_in(c, NULL));

    if (text != NULL)
        (void)fill_in(c, text);
    return text;
}

/* ---- Making it --------------------------------------------------------- */

/* Another one may be at it, and the first one makes 256 tables. */
enum { INIT_MS = 60000 };

static int run(struct once__pg_link *l, const char *text, once_error *err)
{
    uint64_t until_ms = once__steady_ms() + INIT_MS;
    PGresult *r = NULL;
    int rc = once__pg_connect(l, 1, until_ms, err);

    if (rc == ONCE_OK)
        rc = once__pg_ask_plain(l, text, until_ms, err, &r);
    PQclear(r);
    return rc;
}

int once__pg_init(const char *rest, const once_store_options *options,
                  once_error *err)
{
    struct once__pg_config config;
    struct once__pg_link link = {.config = &config};
    int rc = once__pg_config_read(&config, rest, err);
    char *text = NULL;

    (void)options;
    if (rc != ONCE_OK)
        goto out;
    config.async = 1; /* nothing is recorded yet */
    text = make_text(&config);
    if (text == NULL)
        rc = once__fail(err, ONCE_ENOMEM, "out of memory");
    else
        rc = run(&link, text, err);
out:
    free(text);
    once__pg_disconnect(&link);
    once__pg_config_clear(&config);
    return rc;
}

int once__pg_print_schema(const char *rest, once_line *line, void *user,
                          once_error *err)
{
    struct once__pg_config config;
    int rc = once__pg_config_read(&config, rest, err);
    char *text = NULL, *at, *end;

    if (rc != ONCE_OK)
        goto out;
    text = make_text(&config);
    if (text == NULL) {
        rc = once__fail(err, ONCE_ENOMEM, "out of memory");
        goto out;
    }
    for (at = text; (end = strchr(at, '\n')) != NULL; at = end + 1) {
        *end = '\0';
        line(user, at);
    }
out:
    free(text);
    once__pg_config_clear(&config);
    return rc;
}
