/* SPDX-License-Identifier: Apache-2.0 */
/*
 * mysql.c - calls the procedures of my.sql on the caller's connection.
 *
 * What an answer means is taken from the procedure's word and from its SQLSTATE,
 * never from the text of an error. It refuses to judge by the connection whether a
 * transaction is open, which is not known there after an error: the procedures find
 * it out on the server.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "messages/tables/purge_mysql.h"
#include "messages/tables/query_mysql.h"
#include "messages/tables/script_mysql.h"
#include "messages/tables/shape.h"

enum { VERSION = 2 };

/* The procedures look. */
static int open_(const once_tx *tx, once_error *err)
{
    (void)tx;
    (void)err;
    return ONCE_OK;
}

/* ---- Messages ---------------------------------------------------------- */

static int claim(const once_tx *tx, const struct once__claim *c,
                 once_error *err)
{
    struct once__mysql q =
        once__mysql(tx, "inbox_claim", "CALL once_inbox_claim(?1,?2,?3,?4)");

    once__mysql_with(&q, ONCE__TEXT(c->consumer), ONCE__TEXT(c->id),
                     ONCE__SUM(c->fingerprint), ONCE__NUMBER(c->attempt));
    return once__mysql_word_end(&q, err);
}

static int park(const once_tx *tx, const struct once__park *p, once_error *err)
{
    struct once__mysql q =
        once__mysql(tx, "inbox_park",
                    "CALL once_inbox_park(?1,?2,?3,?4,?5,?6,?7,?8,?9,?10)");

    once__mysql_with(&q, ONCE__TEXT(p->claim.consumer), ONCE__TEXT(p->claim.id),
                     ONCE__SUM(p->claim.fingerprint), ONCE__NUMBER(p->state),
                     ONCE__NUMBER(p->wait_ms), ONCE__TEXT(p->m->key),
                     ONCE__TEXT(once__text_of(p->m->type)),
                     ONCE__TEXT(once__text_of(p->m->headers)),
                     ONCE__BYTES(p->m->body.data, p->m->body.size),
                     ONCE__TEXT(p->why));
    return once__mysql_word_end(&q, err);
}

static int emit(const once_tx *tx, const once_message *m, char id[ONCE_ID_SIZE],
                once_error *err)
{
    struct once__mysql q =
        once__mysql(tx, "emit", "CALL once_emit(?1,?2,?3,?4,?5,?6,?7,?8)");
    const char *drawn = NULL;
    int rc = ONCE_OK, before = 0;

    once__mysql_with(&q, ONCE__TEXT(m->route),
                     ONCE__BYTES(m->body.data, m->body.size),
                     ONCE__TEXT(m->key), ONCE__TEXT(m->id),
                     ONCE__TEXT(once__text_of(m->type)),
                     ONCE__TEXT(once__text_of(m->headers)),
                     ONCE__NUMBER(m->due_ms), ONCE__NUMBER(m->keep != 0));
    if (once__mysql_next(&q, err)) {
        drawn = once__mysql_string(&q, 0);
        before = drawn == NULL;
        if (drawn != NULL && strlen(drawn) > ONCE_ID_MAX)
            rc = once__fail(err, ONCE_EVERSION, "emit: an id that is too long");
        else if (drawn != NULL)
            (void)snprintf(id, ONCE_ID_SIZE, "%s", drawn);
    }
    if (rc == ONCE_OK)
        rc = once__mysql_no_wait(once__mysql_end(&q, err), "emit", err);
    else
        (void)once__mysql_end(&q, NULL);
    if (rc != ONCE_OK || !before)
        return rc;
    (void)snprintf(id, ONCE_ID_SIZE, "%s", m->id);
    return ONCE_REPEATED;
}

static int enter(const once_tx *tx, const char *gid, const char *branch, int op,
                 once_error *err)
{
    static const char *const names[] = {[ONCE_TRY] = "try",
                                        [ONCE_CONFIRM] = "confirm",
                                        [ONCE_CANCEL] = "cancel"};
    struct once__mysql q =
        once__mysql(tx, "barrier_enter", "CALL once_barrier_enter(?1,?2,?3)");

    once__mysql_with(&q, ONCE__TEXT(gid), ONCE__TEXT(branch),
                     ONCE__TEXT(names[op]));
    return once__mysql_word_end(&q, err);
}

/* ---- Calls ------------------------------------------------------------- */

enum { B_ANSWER, B_KIND, B_RESULT, B_TOKEN };

static int take_result(const struct once__mysql *q, struct once__begun *out,
                       once_error *err)
{
    once_bytes result = once__mysql_bytes(q, B_RESULT);

    out->kind = (int)once__mysql_int(q, B_KIND);
    if (out->kind != ONCE_SUCCESS && out->kind != ONCE_FAILURE)
        return once__fail(err, ONCE_ECORRUPT, "begin: a kind that is not one");
    out->memory = malloc(result.size + 1);
    if (out->memory == NULL)
        return once__fail(err, ONCE_ENOMEM, "begin: no memory for the result");
    if (result.size > 0)
        memcpy(out->memory, result.data, result.size);
    out->result = (once_bytes){out->memory, result.size};
    return ONCE_REPLAY;
}

static int take_token(const struct once__mysql *q, struct once__begun *out,
                      once_error *err)
{
    once_bytes token = once__mysql_bytes(q, B_TOKEN);

    if (token.size != sizeof(out->xact))
        return once__fail(err, ONCE_EVERSION, "begin: not a token");
    memcpy(out->xact, token.data, token.size);
    return ONCE_OWNER;
}

static int begin(const once_tx *tx, const struct once__claim *c,
                 struct once__begun *out, once_error *err)
{
    struct once__mysql q =
        once__mysql(tx, "begin", "CALL once_begin(?1,?2,?3)");
    int rc;

    once__mysql_with(&q, ONCE__TEXT(c->consumer), ONCE__TEXT(c->id),
                     ONCE__SUM(c->fingerprint));
    rc = once__mysql_word(&q, err);
    if (rc == ONCE_REPLAY)
        rc = take_result(&q, out, err);
    else if (rc == ONCE_OWNER)
        rc = take_token(&q, out, err);
    (void)once__mysql_end(&q, NULL);
    return rc;
}

static int finish(const once_tx *tx, const struct once__claim *c,
                  const struct once__begun *b, int kind, once_bytes result,
                  once_error *err)
{
    struct once__mysql q =
        once__mysql(tx, "finish", "CALL once_finish(?1,?2,?3,?4,?5)");
    int rc;

    once__mysql_with(&q, ONCE__TEXT(c->consumer), ONCE__TEXT(c->id),
                     ONCE__BYTES(b->xact, sizeof(b->xact)), ONCE__NUMBER(kind),
                     ONCE__BYTES(result.data, result.size));
    rc = once__mysql_no_wait(once__mysql_word_end(&q, err), "finish", err);
    if (rc == ONCE_ETX)
        (void)once__fail(err, ONCE_ETX,
                         "finish: this call was rolled back, wholly or to a "
                         "savepoint");
    return rc;
}

/* ---- Tables ------------------------------------------------------------ */

/* 0: there are none. */
static int version_of(const once_tx *tx, const char *where, int64_t *version,
                      once_error *err)
{
    int64_t tables = 0;
    int rc = once__mysql_number(tx, where,
                                "SELECT COUNT(*) FROM information_schema.TABLES"
                                " WHERE TABLE_SCHEMA=DATABASE()"
                                " AND TABLE_NAME='once_message_meta'",
                                &tables, err);

    *version = 0;
    if (rc != ONCE_OK || tables == 0)
        return rc;
    return once__mysql_number(
        tx, where, "SELECT version FROM once_message_meta", version, err);
}

static int check_server(const once_tx *tx, once_error *err)
{
    int64_t writable = 0;
    int rc = once__mysql_number(
        tx, "check", "SELECT CAST(@@read_only AS CHAR) IN ('0','OFF')",
        &writable, err);

    if (rc == ONCE_OK && !writable)
        return once__fail(err, ONCE_EOPEN,
                          "check: read_only is set, as on a replica: what it "
                          "shows may be old");
    return rc == ONCE_OK ? once__mysql_durable(tx, "check", err) : rc;
}

static int check(const once_tx *tx, once_error *err)
{
    int64_t version = 0;
    int rc = version_of(tx, "check", &version, err);

    if (rc == ONCE_OK && version == 0)
        return once__fail(err, ONCE_EOPEN,
                          "check: the tables are not there: `once messages "
                          "init`");
    if (rc == ONCE_OK && version != VERSION)
        return once__fail(err, ONCE_EVERSION,
                          "check: the tables are of version %lld",
                          (long long)version);
    if (rc == ONCE_OK)
        rc = check_server(tx, err);
    return rc == ONCE_OK ? once__shape_mysql(tx, err) : rc;
}

static int init(const once_tx *tx, uint64_t keep_ms, once_error *err)
{
    int64_t version = 0;
    char *text = NULL;
    int rc = version_of(tx, "init", &version, err);

    if (rc == ONCE_OK && version > VERSION)
        rc = once__fail(err, ONCE_EVERSION,
                        "init: the tables are of a later version, %lld",
                        (long long)version);
    if (rc == ONCE_OK)
        rc = once_message_schema(ONCE_MYSQL, NULL, keep_ms, &text, err);
    if (rc == ONCE_OK)
        rc = once__mysql_script(tx, "init", text, err);
    if (rc == ONCE_OK)
        rc = once__shape_mysql(tx, err);
    free(text);
    return rc;
}

const struct once__backend once__message_mysql = {open_,
                                                  once__mysql_idle,
                                                  init,
                                                  check,
                                                  once__mysql_purge,
                                                  claim,
                                                  park,
                                                  emit,
                                                  enter,
                                                  begin,
                                                  finish};
