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
    struct once__lines lines;
};

static int begin(struct report *r, const char *rest, once_line *line,
                 void *user, once_error *err)
{
    int rc;

    memset(r, 0, sizeof(*r));
    r->lines.line = line;
    r->lines.user = user;
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

int once__pg_dump(const char *rest, once_line *line, void *user,
                  once_error *err)
{
    struct report r;
    int rc = begin(&r, rest, line, user, err);

    if (rc == ONCE_OK)
        rc = once__pg_scan(&r.link, &r.params, ONCE_SCAN_ALL, NULL, NULL,
                           UINT32_MAX, once__lines_record, &r.lines, err);
    end(&r);
    return rc;
}

/* ---- Verify ------------------------------------------------------------ */

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
        once__lines_problem(&r->lines, PQgetvalue(rows, i, 0));
    PQclear(rows);
    return ONCE_OK;
}

int once__pg_verify(const char *rest, once_line *line, void *user,
                    once_error *err)
{
    struct report r;
    int rc = begin(&r, rest, line, user, err);

    if (rc == ONCE_OK && r.link.caveat != NULL)
        once__lines_problem(&r.lines, r.link.caveat);
    if (rc == ONCE_OK)
        rc = verify_health(&r, err);
    if (rc == ONCE_OK)
        rc = once__pg_scan(&r.link, &r.params, ONCE_SCAN_ALL, NULL, NULL,
                           UINT32_MAX, once__lines_damage, &r.lines, err);
    end(&r);
    return rc < 0 ? rc : r.lines.problems;
}
