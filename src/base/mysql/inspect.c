/* SPDX-License-Identifier: Apache-2.0 */
/*
 * inspect.c - is the server what we need, and what does it not promise?
 *
 * A connection is inspected before the first question. Refused are a server that
 * is too old, a replica, and clusters that certify at COMMIT, which were never
 * tested (Galera, group replication). What else a crash or a failover may lose
 * becomes the caveat, which is said when the store is opened.
 *
 * A caveat that comes later would be said to nobody. So a server that has lost a
 * promise since then is left, and asked nothing until it promises as much again:
 * someone has set sync_binlog to 0, or a semi-synchronous primary goes on
 * without its replica. Each batch compares the settings with those of the
 * inspection, since a proxy may have moved us to another server or to a session
 * without the settings that were made here; a look once a second finds what only
 * the status shows.
 *
 * Settings and status are read by SHOW: what a server does not know it leaves
 * out, so the same text is understood by MySQL and MariaDB.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/mysql/mysql.h"

enum {
    PACKET_LEAST = 4 << 20,
    DAY_MS = 86400000, /* a replica that is awaited so long is awaited */
    VALUE = 64
};

/* READ COMMITTED: no gap locks, and each statement sees what is committed when
 * it begins. wait_timeout: a client that has vanished keeps its locks no longer;
 * the look once a second keeps an idle session open. The increment: the rows of
 * one INSERT have consecutive numbers. */
static const char session[] =
    "SET NAMES binary;"
    "SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED;"
    "SET SESSION sql_mode = 'STRICT_ALL_TABLES,NO_ENGINE_SUBSTITUTION',"
    " autocommit = 1, innodb_lock_wait_timeout = 1, wait_timeout = 5,"
    " auto_increment_increment = 1, auto_increment_offset = 1;"
    /* MySQL shows old statistics without it; MariaDB skips the comment. */
    "/*!80000 SET SESSION information_schema_stats_expiry = 0 */";

/* CONCAT_WS() leaves out a NULL, which @@character_set_results may be. The name of
 * the isolation level: MySQL skips the first comment, MariaDB the
 * second one. */
const char once__my_guard[] =
    "CONCAT_WS(' ', LEFT(@@hostname, 64), @@port, @@server_id, @@read_only, "
    "@@log_bin,"
    " @@sync_binlog, @@sql_log_bin, @@innodb_flush_log_at_trx_commit,"
    " @@innodb_doublewrite, @@autocommit, @@auto_increment_increment,"
    " COALESCE(@@sql_mode = 'STRICT_ALL_TABLES,NO_ENGINE_SUBSTITUTION'"
    " AND @@character_set_client = 'binary'"
    " AND @@character_set_connection = 'binary'"
    " AND @@character_set_results = 'binary'"
    " /*M!100600 AND @@tx_isolation = 'READ-COMMITTED' */"
    " /*!80000 AND @@transaction_isolation = 'READ-COMMITTED' */, 0))";

/* ---- What the server says ---------------------------------------------- */

enum value {
    VERSION,
    READ_ONLY,
    FLUSH,
    DOUBLEWRITE,
    LOG_BIN,
    SYNC_BINLOG,
    SQL_LOG_BIN,
    FORMAT,
    GALERA,
    GROUP,
    PACKET,
    SEMI,
    SEMI_POINT,
    SEMI_MS,
    SEMI_ALONE,
    /* Of the status: */
    SEMI_ON,
    REPLICA,
    REPLICAS,
    REDO,
    VALUES
};

static const struct {
    enum value value;
    const char *name;
} names[] = {
    {VERSION, "version"},
    {READ_ONLY, "read_only"},
    {FLUSH, "innodb_flush_log_at_trx_commit"},
    {DOUBLEWRITE, "innodb_doublewrite"},
    {LOG_BIN, "log_bin"},
    {SYNC_BINLOG, "sync_binlog"},
    {SQL_LOG_BIN, "sql_log_bin"},
    {FORMAT, "binlog_format"},
    {GALERA, "wsrep_on"},
    {GROUP, "group_replication_group_name"},
    {PACKET, "max_allowed_packet"},
    {SEMI, "rpl_semi_sync_master_enabled"},
    {SEMI, "rpl_semi_sync_source_enabled"},
    {SEMI_POINT, "rpl_semi_sync_master_wait_point"},
    {SEMI_POINT, "rpl_semi_sync_source_wait_point"},
    {SEMI_MS, "rpl_semi_sync_master_timeout"},
    {SEMI_MS, "rpl_semi_sync_source_timeout"},
    {SEMI_ALONE, "rpl_semi_sync_master_wait_no_slave"},
    {SEMI_ALONE, "rpl_semi_sync_source_wait_no_replica"},
    {SEMI_ON, "Rpl_semi_sync_master_status"},
    {SEMI_ON, "Rpl_semi_sync_source_status"},
    {REPLICA, "Slaves_running"},
    /* MySQL shows a client without rights no other replica than this. */
    {REPLICA, "Rpl_semi_sync_replica_status"},
    {REPLICAS, "Slaves_connected"},
    {REDO, "Innodb_redo_log_enabled"},
};

enum { NAMES = sizeof(names) / sizeof(names[0]) };

struct said {
    char value[VALUES][VALUE]; /* "": the server does not know it */
    char guard[ONCE__MY_GUARD];
};

static void show(char *sql, size_t size, const char *what)
{
    size_t i, used = (size_t)snprintf(sql, size,
                                      "SHOW %s WHERE Variable_name"
                                      " IN ('', ''",
                                      what);

    for (i = 0; i < NAMES; i++)
        used +=
            (size_t)snprintf(sql + used, size - used, ",'%s'", names[i].name);
    (void)snprintf(sql + used, size - used, ");");
}

static void read_pairs(MYSQL_RES *rows, struct said *said)
{
    MYSQL_ROW row;
    size_t i;

    while (mysql_num_fields(rows) == 2 && (row = mysql_fetch_row(rows)) != NULL)
        for (i = 0; i < NAMES; i++)
            if (row[0] != NULL && row[1] != NULL &&
                strcasecmp(row[0], names[i].name) == 0)
                (void)snprintf(said->value[names[i].value], VALUE, "%s",
                               row[1]);
}

static int keeps_settings(const char *guard)
{
    size_t size = strlen(guard);

    return size > 0 && guard[size - 1] == '1';
}

static int listen_to(struct once__my_link *l, uint64_t until_ms,
                     struct said *said, once_error *err)
{
    enum { SHOW = 1536, GUARD = 1024 };
    char sql[2 * SHOW + GUARD], variables[SHOW], status[SHOW];
    struct once__my_answer a;
    MYSQL_ROW row;
    int rc;

    memset(said, 0, sizeof(*said));
    show(variables, sizeof(variables), "VARIABLES");
    show(status, sizeof(status), "GLOBAL STATUS");
    (void)snprintf(sql, sizeof(sql), "%s%sSELECT %s", variables, status,
                   once__my_guard);
    rc = once__my_ask_plain(l, sql, until_ms, err, &a);
    if (rc != ONCE_OK)
        return rc;
    if (a.count != 3 || (row = mysql_fetch_row(a.rows[2])) == NULL ||
        row[0] == NULL || strlen(row[0]) >= sizeof(said->guard)) {
        rc = once__fail(err, ONCE_EOPEN, "%s: not a server that we understand",
                        l->label);
    } else if (!keeps_settings(row[0])) {
        rc = once__fail(err, ONCE_EOPEN,
                        "%s: the session has not the sql_mode, character set "
                        "or isolation level that was just set: connect to the "
                        "server, or by a pooler that keeps one session for "
                        "each connection",
                        l->label);
    } else {
        read_pairs(a.rows[0], said);
        read_pairs(a.rows[1], said);
        memcpy(said->guard, row[0], strlen(row[0]) + 1);
    }
    once__my_answer_clear(&a);
    return rc;
}

/* ---- What we make of it ------------------------------------------------ */

static int is(const struct said *s, enum value value, const char *text)
{
    return strcasecmp(s->value[value], text) == 0;
}

static int is_on(const struct said *s, enum value value)
{
    return is(s, value, "ON") || is(s, value, "1");
}

static uint64_t number(const struct said *s, enum value value)
{
    return strtoull(s->value[value], NULL, 10);
}

/* SKIP LOCKED is needed. */
static int is_too_old(const struct said *s)
{
    const char *version = s->value[VERSION];
    char *end;
    unsigned long major = strtoul(version, &end, 10);
    unsigned long minor = *end == '.' ? strtoul(end + 1, NULL, 10) : 0;

    if (strcasestr(version, "mariadb") == NULL)
        return major < 8;
    return major < 10 || (major == 10 && minor < 6);
}

static int refuse(const struct once__my_link *l, const struct said *s,
                  once_error *err)
{
    if (is_too_old(s))
        return once__fail(err, ONCE_EOPEN,
                          "%s: version %.24s; MySQL 8.0 and MariaDB 10.6 are "
                          "the oldest that are understood",
                          l->label, s->value[VERSION]);
    if (!is(s, READ_ONLY, "OFF") && !is(s, READ_ONLY, "0"))
        return once__fail(err, ONCE_EAWAY,
                          "%s: read_only is set, as on a replica: what it "
                          "shows may be old",
                          l->label);
    if (number(s, REPLICA) > 0 || is_on(s, REPLICA))
        return once__fail(err, ONCE_EAWAY,
                          "%s: it follows another server: what it shows may be "
                          "old",
                          l->label);
    if (is_on(s, GALERA) || s->value[GROUP][0] != '\0')
        return once__fail(err, ONCE_EOPEN,
                          "%s: a cluster (Galera or group replication), which "
                          "was never tested",
                          l->label);
    if (is_on(s, LOG_BIN) && is(s, FORMAT, "STATEMENT"))
        return once__fail(err, ONCE_EOPEN,
                          "%s: binlog_format is STATEMENT, not ROW", l->label);
    if (number(s, PACKET) < PACKET_LEAST)
        return once__fail(err, ONCE_EOPEN,
                          "%s: max_allowed_packet is below 4 MiB", l->label);
    return ONCE_OK;
}

static int flushes(const struct said *s)
{
    return is(s, FLUSH, "1") || is(s, FLUSH, "3");
}

static int syncs_binlog(const struct said *s)
{
    return is_on(s, LOG_BIN) && is(s, SYNC_BINLOG, "1");
}

/* The server and its disk alone. */
static const char *caveat_of_server(const struct said *s)
{
    if (!flushes(s))
        return "innodb_flush_log_at_trx_commit is not 1: a crash of the "
               "server's machine loses the records of its last moments";
    if (is(s, REDO, "OFF"))
        return "the redo log is off: a crash of the server loses the database";
    if (is(s, DOUBLEWRITE, "OFF") || is(s, DOUBLEWRITE, "0") ||
        is(s, DOUBLEWRITE, "DETECT_ONLY"))
        return "innodb_doublewrite is off: a crash of the server's machine may "
               "damage acknowledged records";
    if (is_on(s, LOG_BIN) && !syncs_binlog(s))
        return "sync_binlog is not 1: after a crash of the server's machine "
               "the records that its binlog lacks are taken back";
    if (is_on(s, LOG_BIN) && !is_on(s, SQL_LOG_BIN))
        return "sql_log_bin is off: no replica and no backup by the binlog "
               "has the records";
    return NULL;
}

static const char *caveat_of_semi_sync(const struct said *s)
{
    if (!is(s, SEMI_POINT, "AFTER_SYNC"))
        return "semi-synchronous replication waits AFTER_COMMIT: a failover "
               "may lose records that were already answered from";
    if (number(s, SEMI_MS) < DAY_MS)
        return "semi-synchronous replication waits for less than a day and "
               "then goes on alone: a failover may lose the records of the "
               "last moments";
    if (!is_on(s, SEMI_ALONE))
        return "semi-synchronous replication goes on alone when no replica is "
               "connected: a failover may lose the records of the last moments";
    if (!is_on(s, SEMI_ON))
        return "semi-synchronous replication has fallen back: a failover may "
               "lose the records of the last moments";
    return NULL;
}

static const char *caveat_of(const struct said *s)
{
    const char *caveat = caveat_of_server(s);

    return caveat == NULL && is_on(s, SEMI) ? caveat_of_semi_sync(s) : caveat;
}

/* It is attached without our knowing, so this is said and not insisted on. */
static const char caveat_of_replica[] =
    "a replica is connected that nobody waits for: a failover to it loses the "
    "records of the last moments";

static void keep(struct once__my_link *l, const struct said *s,
                 const char *caveat)
{
    memcpy(l->guard, s->guard, sizeof(l->guard));
    l->packet_size = (size_t)number(s, PACKET);
    /* A commit is visible, and its locks are gone, before the redo log is
     * flushed, unless the flush of the binlog comes first. */
    l->touch = !syncs_binlog(s) || !is_on(s, SQL_LOG_BIN) || is_on(s, SEMI);
    l->caveat = caveat;
    if (!l->judged)
        l->promised = caveat;
    l->judged = 1;
    if (caveat == NULL && !is_on(s, SEMI) && number(s, REPLICAS) > 0)
        l->caveat = caveat_of_replica;
}

int once__my_look(struct once__my_link *l, uint64_t until_ms, once_error *err)
{
    struct said said;
    const char *caveat;
    int rc = listen_to(l, until_ms, &said, err);

    if (rc == ONCE_OK)
        rc = refuse(l, &said, err);
    if (rc == ONCE_OK) {
        caveat = caveat_of(&said);
        if (!l->judged || caveat == NULL || caveat == l->promised)
            keep(l, &said, caveat);
        else
            rc = once__fail(err, ONCE_EAWAY,
                            "%s: it promises less than when the store was "
                            "opened, and is asked nothing until it promises as "
                            "much again: %s",
                            l->label, caveat);
    }
    if (rc != ONCE_OK)
        once__my_disconnect(l);
    return rc;
}

int once__my_inspect(struct once__my_link *l, uint64_t until_ms,
                     once_error *err)
{
    struct once__my_answer none;
    int rc = once__my_ask_plain(l, session, until_ms, err, &none);

    if (rc != ONCE_OK)
        return rc;
    once__my_answer_clear(&none);
    return once__my_look(l, until_ms, err);
}

int once__my_guarded(struct once__my_link *l, const char *value,
                     once_error *err)
{
    if (value != NULL && strcmp(value, l->guard) == 0)
        return ONCE_OK;
    once__my_disconnect(l);
    return once__fail(err, ONCE_ESTORE,
                      "%s: another server, or a session without our settings; "
                      "it is inspected again. A pooler must keep one session "
                      "for each connection",
                      l->label);
}
