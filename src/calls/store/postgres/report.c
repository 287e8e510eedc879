/* SPDX-License-Identifier: Apache-2.0 */
/*
 * report.c - verify and dump: what is wrong, and what is there.
 *
 * Both read page by page and change nothing; gateways may go on meanwhile. They
 * need no more rights than a gateway. No token, fingerprint or result is shown:
 * lines end up in tickets.
 */
#include <string.h>

#include "base/error.h"
#include "calls/store/postgres/postgres.h"
#include "base/steady.h"
#include "calls/store/sqlstore.h"

enum { HEALTH_MS = 600000, STATEMENT = 192 };

struct report {
    struct once__pg_config config;
    struct once__pg_link link;
    struct once__pg_params params;
    once_line *line;
    void *user;
    int problems;
};

static int begin(struct report *r, const char *rest, once_line *line,
                 void *user, once_error *err)
{
    int rc;

    memset(r, 0, sizeof(*r));
    r->line = line;
    r->user = user;
    r->link.config = &r->config;
    rc = once__pg_config_read(&r->config, rest, err);
    r->config.async = 1; /* it only looks */
    if (rc == ONCE_OK)
        rc = once__pg_connect(&r->link, 0,
                              once__steady_ms() + r->config.statement_ms, err);
    return rc;
}

static void end(struct report *r)
{
    once__pg_disconnect(&r->link);
    once__pg_params_clear(&r->params);
    once__pg_config_clear(&r->config);
}

/* ---- Dump -------------------------------------------------------------- */

static int dump_each(void *user, const uint8_t name[ONCE_NAME_SIZE],
                     const once_record *record)
{
    struct report *r = user;
    char text[ONCE__LINE];

    once__record_line(name, record, text);
    r->line(r->user, text);
    return 0;
}

int once__pg_dump(const char *rest, once_line *line, void *user,
                  once_error *err)
{
    struct report r;
    int rc = begin(&r, rest, line, user, err);

    if (rc == ONCE_OK)
        rc = once__pg_scan(&r.link, &r.params, ONCE_SCAN_ALL, NULL, NULL,
                           UINT32_MAX, dump_each, &r, err);
    end(&r);
    return rc;
}

/* ---- Verify ------------------------------------------------------------ */

static void problem(struct report *r, const char *text)
{
    r->line(r->user, text);
    r->problems++;
}

static int verify_each(void *user, const uint8_t name[ONCE_NAME_SIZE],
                       const once_record *record)
{
    char text[ONCE__LINE];

    if (record->state <= ONCE_INDETERMINATE)
        return 0;
    once__damage_line(name, text);
    problem(user, text);
    return 0;
}

static int verify_health(struct report *r, once_error *err)
{
    char sql[STATEMENT];
    struct once__pg_ask ask = {.sql = sql, .plain = 1};
    PGresult *rows = NULL;
    int i;

    once__pg_text(&r->config, "SELECT problem FROM @.health_1()", sql,
                  sizeof(sql));
    if (once__pg_ask(&r->link, &ask, once__steady_ms() + HEALTH_MS, &rows) !=
        ONCE__PG_DONE)
        return once__pg_fail(&r->link, ONCE_EOPEN, err);
    for (i = 0; i < PQntuples(rows); i++)
        problem(r, PQgetvalue(rows, i, 0));
    PQclear(rows);
    return ONCE_OK;
}

int once__pg_verify(const char *rest, once_line *line, void *user,
                    once_error *err)
{
    struct report r;
    int rc = begin(&r, rest, line, user, err);

    if (rc == ONCE_OK && r.link.caveat != NULL)
        problem(&r, r.link.caveat);
    if (rc == ONCE_OK)
        rc = verify_health(&r, err);
    if (rc == ONCE_OK)
        rc = once__pg_scan(&r.link, &r.params, ONCE_SCAN_ALL, NULL, NULL,
                           UINT32_MAX, verify_each, &r, err);
    end(&r);
    return rc < 0 ? rc : r.problems;
}
