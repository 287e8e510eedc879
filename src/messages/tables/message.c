/* SPDX-License-Identifier: Apache-2.0 */
/*
 * message.c - the functions of once/message.h for messages and branches: checks
 * what it is given, and hands it to the database's backend.
 *
 * It refuses to begin, end or configure a transaction: what it writes is the
 * caller's to commit.
 */
#include <string.h>

#include "base/error.h"
#include "messages/tables/backend.h"

/* ---- Tables ------------------------------------------------------------ */

int once_message_init(const once_tx *tx, uint64_t keep_ms, once_error *err)
{
    const struct once__backend *b = NULL;
    int rc = once__tx_backend(tx, &b, err);

    if (keep_ms == 0)
        keep_ms = ONCE__KEEP_MS;
    if (rc == ONCE_OK)
        rc = once__check_keep(keep_ms, err);
    if (rc == ONCE_OK)
        rc = b->idle(tx, err);
    return rc == ONCE_OK ? b->init(tx, keep_ms, err) : rc;
}

int once_message_check(const once_tx *tx, once_error *err)
{
    const struct once__backend *b = NULL;
    int rc = once__tx_backend(tx, &b, err);

    return rc == ONCE_OK ? b->check(tx, err) : rc;
}

int once_message_purge(const once_tx *tx, uint64_t *removed, once_error *err)
{
    const struct once__backend *b = NULL;
    uint64_t n = 0;
    int rc = once__tx_backend(tx, &b, err);

    if (rc == ONCE_OK)
        rc = b->idle(tx, err);
    if (rc == ONCE_OK)
        rc = b->purge(tx, &n, err);
    if (removed != NULL)
        *removed = n;
    return rc;
}

/* ---- Messages ---------------------------------------------------------- */

static int check_message(const once_message *m, once_error *err)
{
    if (m != NULL && m->size == sizeof(*m))
        return once__check_content(m, err);
    return once__fail(err, ONCE_EINVAL,
                      "message: size is not that of once_message");
}

/* A message that came in: what is to be claimed of it. */
static int claim_of(const once_message *m, uint8_t room[ONCE_FINGERPRINT_SIZE],
                    struct once__claim *out, once_error *err)
{
    int rc = check_message(m, err);

    if (rc == ONCE_OK)
        rc = once__check_name("consumer", m->consumer, err);
    if (rc == ONCE_OK)
        rc = once__check_name("id", m->id, err);
    if (rc == ONCE_OK && m->attempt > INT32_MAX)
        rc = once__fail(err, ONCE_EINVAL, "attempt: over %d", INT32_MAX);
    if (rc == ONCE_OK && !m->any_body)
        rc = once__fingerprint_bytes(m->body, room, err);
    *out = (struct once__claim){0};
    if (rc != ONCE_OK)
        return rc;
    out->consumer = m->consumer;
    out->id = m->id;
    out->fingerprint = m->any_body ? NULL : room;
    out->attempt = m->attempt;
    return ONCE_OK;
}

int once_inbox_claim(const once_tx *tx, const once_message *m, once_error *err)
{
    const struct once__backend *b = NULL;
    uint8_t fingerprint[ONCE_FINGERPRINT_SIZE];
    struct once__claim claim;
    int rc = once__tx_backend(tx, &b, err);

    if (rc == ONCE_OK)
        rc = claim_of(m, fingerprint, &claim, err);
    if (rc == ONCE_OK)
        rc = b->open(tx, err);
    return rc == ONCE_OK ? b->claim(tx, &claim, err) : rc;
}

int once_inbox_park(const once_tx *tx, const once_message *m, int state,
                    uint64_t wait_ms, const char *why, once_error *err)
{
    const struct once__backend *b = NULL;
    uint8_t fingerprint[ONCE_FINGERPRINT_SIZE];
    char reason[ONCE_ID_SIZE];
    struct once__park park = {
        .m = m, .state = state, .wait_ms = wait_ms, .why = reason};
    int rc = once__tx_backend(tx, &b, err);

    if (rc == ONCE_OK)
        rc = once__check_state(state, wait_ms, err);
    if (rc == ONCE_OK)
        rc = claim_of(m, fingerprint, &park.claim, err);
    if (rc == ONCE_OK)
        rc = b->open(tx, err);
    if (rc != ONCE_OK)
        return rc;
    once__copy_visible(reason, once__text_of(why));
    park.claim.attempt = 0;
    return b->park(tx, &park, err);
}

int once_emit(const once_tx *tx, const once_message *m, char id[ONCE_ID_SIZE],
              once_error *err)
{
    const struct once__backend *b = NULL;
    char room[ONCE_ID_SIZE];
    int rc = once__tx_backend(tx, &b, err);

    if (rc == ONCE_OK)
        rc = check_message(m, err);
    if (rc == ONCE_OK)
        rc = once__check_name("route", m->route, err);
    if (rc == ONCE_OK && m->id != NULL)
        rc = once__check_name("id", m->id, err);
    if (rc == ONCE_OK && m->due_ms > INT64_MAX / 1000)
        rc = once__fail(err, ONCE_EINVAL, "due_ms: it is not a time");
    if (rc == ONCE_OK)
        rc = b->open(tx, err);
    return rc == ONCE_OK ? b->emit(tx, m, id != NULL ? id : room, err) : rc;
}

/* ---- Branches ---------------------------------------------------------- */

int once_barrier_enter(const once_tx *tx, const char *gid, const char *branch,
                       int op, once_error *err)
{
    const struct once__backend *b = NULL;
    int rc = once__tx_backend(tx, &b, err);

    if (rc == ONCE_OK)
        rc = once__check_name("gid", gid, err);
    if (rc == ONCE_OK)
        rc = once__check_name("branch", branch, err);
    if (rc == ONCE_OK && (op < ONCE_TRY || op > ONCE_CANCEL))
        rc = once__fail(err, ONCE_EINVAL,
                        "op: it is not an enum once_branch_op");
    if (rc == ONCE_OK)
        rc = b->open(tx, err);
    return rc == ONCE_OK ? b->enter(tx, gid, branch, op, err) : rc;
}
