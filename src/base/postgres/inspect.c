/* SPDX-License-Identifier: Apache-2.0 */
/*
 * inspect.c - is the server, is the schema what we need?
 *
 * A connection is inspected before the first question: a standby, a server that
 * is too old, a session that commits asynchronously and a schema that is not
 * there, or of another version, are refused. What remains to be said becomes
 * the store's caveat. The functions look again at each call whether they are on
 * a standby or commit asynchronously: behind a pooler, each call may meet
 * another server.
 */
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/postgres/postgres.h"

enum { OLDEST = 130000, STATEMENT = 192 };

int once__pg_ask_plain(struct once__pg_link *l, const char *sql,
                       uint64_t until_ms, once_error *err, PGresult **out)
{
    struct once__pg_ask ask = {.sql = sql, .plain = 1};

    if (once__pg_ask(l, &ask, until_ms, out) == ONCE__PG_DONE)
        return ONCE_OK;
    if (once__pg_state(l, "ON002"))
        return once__pg_fail(l, ONCE_EVERSION, err);
    return once__pg_fail(
        l, once__pg_passing(l->state) ? ONCE_EAWAY : ONCE_EOPEN, err);
}

static int is(const PGresult *r, int column, const char *text)
{
    return strcmp(PQgetvalue(r, 0, column), text) == 0;
}

enum {
    S_RECOVERY,
    S_VERSION,
    S_COMMIT,
    S_STANDBYS,
    S_FSYNC,
    S_PAGES,
    S_COLUMNS
};

static const char settings[] =
    "SELECT pg_catalog.pg_is_in_recovery(),"
    " pg_catalog.current_setting('server_version_num'),"
    " pg_catalog.current_setting('synchronous_commit'),"
    " pg_catalog.current_setting('synchronous_standby_names') <> '',"
    " pg_catalog.current_setting('fsync'),"
    " pg_catalog.current_setting('full_page_writes')";

static int is_async(const PGresult *r)
{
    return is(r, S_COMMIT, "off") ||
           (is(r, S_COMMIT, "local") && is(r, S_STANDBYS, "t"));
}

static const char *caveat(const PGresult *r)
{
    if (is(r, S_FSYNC, "off"))
        return "fsync is off: a crash of the server's machine may lose "
               "acknowledged records, or the whole database";
    if (is(r, S_PAGES, "off"))
        return "full_page_writes is off: a crash of the server's machine may "
               "damage acknowledged records";
    if (is(r, S_COMMIT, "off"))
        return "synchronous_commit is off: a crash of the server loses the "
               "records of its last moments";
    if (is_async(r))
        return "synchronous_commit is local: a failover to a standby loses the "
               "records of the last moments";
    if (is(r, S_COMMIT, "remote_write") && is(r, S_STANDBYS, "t"))
        return "synchronous_commit is remote_write: a failover to a standby "
               "whose machine has crashed, too, loses the records of the last "
               "moments";
    return NULL;
}

static int check_settings(struct once__pg_link *l, const PGresult *r,
                          once_error *err)
{
    long version = strtol(PQgetvalue(r, 0, S_VERSION), NULL, 10);

    if (PQnfields(r) != S_COLUMNS || PQntuples(r) != 1)
        return once__fail(err, ONCE_EOPEN, "%s: not PostgreSQL", l->label);
    if (is(r, S_RECOVERY, "t"))
        return once__fail(err, ONCE_EAWAY,
                          "%s: a standby: what it shows may be old", l->label);
    if (version < OLDEST)
        return once__fail(err, ONCE_EOPEN,
                          "%s: PostgreSQL %ld; 13 is the oldest one that is "
                          "understood",
                          l->label, version / 10000);
    l->caveat = caveat(r);
    if (is_async(r) && !l->config->async)
        return once__fail(err, ONCE_EOPEN,
                          "%s: synchronous_commit is %s, so acknowledged "
                          "records may be lost; async=allow in the URL says "
                          "that this is wanted",
                          l->label, PQgetvalue(r, 0, S_COMMIT));
    return ONCE_OK;
}

static int check_version(struct once__pg_link *l, uint64_t until_ms,
                         once_error *err)
{
    char sql[STATEMENT];
    PGresult *r = NULL;
    int rc, version;

    once__pg_text(l->config, "SELECT version FROM @.about()", sql, sizeof(sql));
    rc = once__pg_ask_plain(l, sql, until_ms, err, &r);
    if (rc != ONCE_OK)
        return rc;
    version =
        PQntuples(r) == 1 ? (int)strtol(PQgetvalue(r, 0, 0), NULL, 10) : 0;
    if (version != ONCE__PG_SCHEMA)
        rc = once__fail(err, ONCE_EVERSION,
                        "%s: schema version %d, this program understands %d",
                        l->label, version, ONCE__PG_SCHEMA);
    PQclear(r);
    return rc;
}

int once__pg_inspect(struct once__pg_link *l, int bare, uint64_t until_ms,
                     once_error *err)
{
    PGresult *r = NULL;
    int rc = once__pg_ask_plain(l, settings, until_ms, err, &r);

    if (rc == ONCE_OK)
        rc = check_settings(l, r, err);
    PQclear(r);
    return rc != ONCE_OK || bare ? rc : check_version(l, until_ms, err);
}
