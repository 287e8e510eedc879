/* SPDX-License-Identifier: Apache-2.0 */
/*
 * outbox.c - the functions of outbox.h: checks what it is given, and hands it to
 * the database's table of functions.
 */
#include "message/outbox.h"

#include <stdlib.h>
#include <string.h>

#include "core/error.h"
#include "message/backend.h"

enum { ROWS_MAX = 10000, LEASE_MAX_MS = 3600000 };

/* The table for this connection, which has no transaction open. */
static int backend(const once_tx *tx, const struct once__outbox_backend **out,
                   once_error *err)
{
    int rc = once__tx_outbox(tx, out, err);

    return rc == ONCE_OK ? (*out)->idle(tx, err) : rc;
}

static int check_n(size_t n, once_error *err)
{
    return n >= 1 && n <= ROWS_MAX
               ? ONCE_OK
               : once__fail(err, ONCE_EINVAL, "n: it is not in 1..%d",
                            ROWS_MAX);
}

static int check_lease(uint32_t lease_ms, once_error *err)
{
    return lease_ms >= 1 && lease_ms <= LEASE_MAX_MS
               ? ONCE_OK
               : once__fail(err, ONCE_EINVAL, "lease_ms: it is not in 1..%d",
                            LEASE_MAX_MS);
}

/* ---- The relay ---------------------------------------------------------- */

static int by_seq(const void *a, const void *b)
{
    int64_t x = ((const struct once__outgoing *)a)->seq;
    int64_t y = ((const struct once__outgoing *)b)->seq;

    return (x > y) - (x < y);
}

int once__outbox_claim(const once_tx *tx, const struct once__outbox_ask *ask,
                       struct once__outgoing_list *out, once_error *err)
{
    const struct once__outbox_backend *c = NULL;
    int rc = backend(tx, &c, err);

    *out = (struct once__outgoing_list){NULL, 0, 0, NULL};
    if (rc == ONCE_OK)
        rc = once__check_name("route", ask->route, err);
    if (rc == ONCE_OK)
        rc = check_n(ask->n, err);
    if (rc == ONCE_OK)
        rc = check_lease(ask->lease_ms, err);
    if (rc == ONCE_OK)
        rc = c->claim(tx, ask, out, err);
    if (rc != ONCE_OK)
        once__outgoing_clear(out);
    if (out->n > 1)
        qsort(out->rows, out->n, sizeof(*out->rows), by_seq);
    return rc;
}

static int check_settlement(const struct once__settlement *s, once_error *err)
{
    if (s->to.phase < ONCE__ROW_READY || s->to.phase > ONCE__ROW_INDETERMINATE)
        return once__fail(err, ONCE_EINVAL, "phase: it is not one of a row");
    if (s->to.wait_ms > ONCE_KEEP_MAX_MS)
        return once__fail(err, ONCE_EINVAL, "wait_ms: over %llu",
                          (unsigned long long)ONCE_KEEP_MAX_MS);
    if (s->reply.size > ONCE_BODY_MAX)
        return once__fail(err, ONCE_ELIMIT, "reply: over %zu bytes",
                          ONCE_BODY_MAX);
    return ONCE_OK;
}

int once__outbox_settle(const once_tx *tx, struct once__settlement *rows,
                        size_t n, once_error *err)
{
    const struct once__outbox_backend *c = NULL;
    int rc = backend(tx, &c, err);
    size_t i;

    for (i = 0; i < n; i++)
        rows[i].ours = 0;
    if (rc != ONCE_OK || n == 0)
        return rc;
    rc = check_n(n, err);
    for (i = 0; i < n && rc == ONCE_OK; i++)
        rc = check_settlement(&rows[i], err);
    if (rc == ONCE_OK)
        rc = c->settle(tx, rows, n, err);
    for (i = 0; i < n && rc != ONCE_OK; i++)
        rows[i].ours = 0;
    return rc;
}

int once__outbox_idle(const once_tx *tx, const char *route, int idle,
                      once_error *err)
{
    const struct once__outbox_backend *c = NULL;
    int rc = backend(tx, &c, err);

    if (rc == ONCE_OK)
        rc = once__check_name("route", route, err);
    return rc == ONCE_OK ? c->sleeps(tx, route, idle, err) : rc;
}

int once__outbox_wait(const once_tx *tx, int stop_fd, uint32_t wait_ms,
                      once_error *err)
{
    const struct once__outbox_backend *c = NULL;
    int rc = backend(tx, &c, err);

    return rc == ONCE_OK ? c->wait(tx, stop_fd, wait_ms, err) : rc;
}

/* ---- Operators ---------------------------------------------------------- */

static int list(const once_tx *tx, const struct once__outbox_filter *filter,
                int whole, struct once__outgoing_list *out, once_error *err)
{
    const struct once__outbox_backend *c = NULL;
    int rc = backend(tx, &c, err);

    *out = (struct once__outgoing_list){NULL, 0, 0, NULL};
    if (rc == ONCE_OK)
        rc = check_n(filter->n, err);
    if (rc == ONCE_OK)
        rc = c->list(tx, filter, whole, out, err);
    if (rc != ONCE_OK)
        once__outgoing_clear(out);
    return rc;
}

int once__outbox_list(const once_tx *tx,
                      const struct once__outbox_filter *filter,
                      struct once__outgoing_list *out, once_error *err)
{
    return list(tx, filter, 0, out, err);
}

int once__outbox_get(const once_tx *tx, int64_t seq,
                     struct once__outgoing_list *out, once_error *err)
{
    struct once__outbox_filter filter = {NULL, -1, seq - 1, 1};
    int rc = list(tx, &filter, 1, out, err);

    if (rc == ONCE_OK && out->n > 0 && out->rows[0].seq != seq)
        once__outgoing_clear(out); /* the next one */
    return rc;
}

int once__outbox_decide(const once_tx *tx, int64_t seq, int phase,
                        uint32_t attempts, int action, const char *why,
                        once_error *err)
{
    const struct once__outbox_backend *c = NULL;
    char reason[ONCE_ID_SIZE];
    struct once__decision d = {seq, phase, attempts, action, reason};
    int rc = backend(tx, &c, err);

    if (rc == ONCE_OK &&
        (action < ONCE__OUTBOX_RETRY || action > ONCE__OUTBOX_RESOLVE))
        rc = once__fail(err, ONCE_EINVAL, "action: it is not one");
    once__copy_visible(reason, once__text_of(why));
    return rc == ONCE_OK ? c->decide(tx, &d, err) : rc;
}

int once__outbox_stats(const once_tx *tx, int done,
                       struct once__outbox_count **out, size_t *n,
                       once_error *err)
{
    const struct once__outbox_backend *c = NULL;
    int rc = backend(tx, &c, err);

    *out = NULL;
    *n = 0;
    return rc == ONCE_OK ? c->stats(tx, done, out, n, err) : rc;
}

int once__outbox_here(const once_tx *tx, const char *route, once_error *err)
{
    const struct once__outbox_backend *c = NULL;
    int rc = backend(tx, &c, err);

    if (rc == ONCE_OK)
        rc = once__check_name("route", route, err);
    return rc == ONCE_OK ? c->here(tx, route, err) : rc;
}

int once__outbox_strays(const once_tx *tx, uint64_t age_ms,
                        struct once__stray out[ONCE__STRAYS_MAX], size_t *n,
                        once_error *err)
{
    const struct once__outbox_backend *c = NULL;
    int rc = backend(tx, &c, err);

    *n = 0;
    return rc == ONCE_OK ? c->strays(tx, age_ms, out, n, err) : rc;
}

int once__outbox_held(const once_tx *tx, uint64_t *age, once_error *err)
{
    const struct once__outbox_backend *c = NULL;
    int rc = backend(tx, &c, err);

    *age = 0;
    return rc == ONCE_OK ? c->held(tx, age, err) : rc;
}

int once__outbox_purge(const once_tx *tx, uint64_t age_ms, uint64_t *removed,
                       once_error *err)
{
    const struct once__outbox_backend *c = NULL;
    uint64_t n = 0;
    int rc = backend(tx, &c, err);

    if (rc == ONCE_OK && age_ms > INT64_MAX / 1000)
        rc = once__fail(err, ONCE_EINVAL, "age_ms: it is not a time");
    if (rc == ONCE_OK)
        rc = c->purge(tx, age_ms, &n, err);
    if (removed != NULL)
        *removed = n;
    return rc;
}

/* ---- Parked messages ---------------------------------------------------- */

int once__parked_take(const once_tx *tx, const char *consumer,
                      uint32_t lease_ms, int keyed,
                      struct once__parked_list *out, once_error *err)
{
    const struct once__outbox_backend *c = NULL;
    int rc = backend(tx, &c, err);

    *out = (struct once__parked_list){NULL, 0, 0, NULL};
    if (rc == ONCE_OK)
        rc = once__check_name("consumer", consumer, err);
    if (rc == ONCE_OK && lease_ms == 0)
        rc = once__fail(err, ONCE_EINVAL, "lease_ms: it is 0");
    if (rc == ONCE_OK)
        rc = c->take(tx, consumer, lease_ms, keyed, out, err);
    if (rc != ONCE_OK)
        once__parked_clear(out);
    return rc;
}

int once__parked_put_back(const once_tx *tx, int64_t no, uint32_t attempt,
                          int state, uint64_t wait_ms, const char *why,
                          once_error *err)
{
    const struct once__outbox_backend *c = NULL;
    char reason[ONCE_ID_SIZE];
    struct once__decision d = {no, state, attempt, 0, reason};
    int rc = backend(tx, &c, err);

    if (rc == ONCE_OK)
        rc = once__check_state(state, wait_ms, err);
    once__copy_visible(reason, once__text_of(why));
    return rc == ONCE_OK ? c->put_back(tx, &d, wait_ms, err) : rc;
}

int once__parked_has_key(const once_tx *tx, const char *consumer,
                         const char *key, int *stopped, once_error *err)
{
    const struct once__outbox_backend *c = NULL;
    int rc = once__tx_outbox(tx, &c, err);

    *stopped = 0;
    if (rc == ONCE_OK)
        rc = once__check_name("consumer", consumer, err);
    if (rc == ONCE_OK)
        rc = once__check_name("key", key, err);
    return rc == ONCE_OK ? c->has_key(tx, consumer, key, stopped, err) : rc;
}

int once__parked_behind(const once_tx *tx, const char *consumer, uint64_t *n,
                        once_error *err)
{
    const struct once__outbox_backend *c = NULL;
    int rc = backend(tx, &c, err);

    *n = 0;
    if (rc == ONCE_OK)
        rc = once__check_name("consumer", consumer, err);
    return rc == ONCE_OK ? c->behind(tx, consumer, n, err) : rc;
}

static int parked_list(const once_tx *tx,
                       const struct once__parked_filter *filter, int whole,
                       struct once__parked_list *out, once_error *err)
{
    const struct once__outbox_backend *c = NULL;
    int rc = backend(tx, &c, err);

    *out = (struct once__parked_list){NULL, 0, 0, NULL};
    if (rc == ONCE_OK)
        rc = check_n(filter->n, err);
    if (rc == ONCE_OK)
        rc = c->parked_list(tx, filter, whole, out, err);
    if (rc != ONCE_OK)
        once__parked_clear(out);
    return rc;
}

int once__parked_list(const once_tx *tx,
                      const struct once__parked_filter *filter,
                      struct once__parked_list *out, once_error *err)
{
    return parked_list(tx, filter, 0, out, err);
}

int once__parked_get(const once_tx *tx, int64_t no,
                     struct once__parked_list *out, once_error *err)
{
    struct once__parked_filter filter = {NULL, 0, no - 1, 1};
    int rc = parked_list(tx, &filter, 1, out, err);

    if (rc == ONCE_OK && out->n > 0 && out->rows[0].no != no)
        once__parked_clear(out); /* the next one */
    return rc;
}

int once__parked_decide(const once_tx *tx, int64_t no, int state,
                        uint32_t attempt, int action, const char *why,
                        once_error *err)
{
    const struct once__outbox_backend *c = NULL;
    char reason[ONCE_ID_SIZE];
    struct once__decision d = {no, state, attempt, action, reason};
    int rc = backend(tx, &c, err);

    if (rc == ONCE_OK &&
        (action < ONCE__PARKED_RETRY || action > ONCE__PARKED_RESOLVE))
        rc = once__fail(err, ONCE_EINVAL, "action: it is not one");
    once__copy_visible(reason, once__text_of(why));
    return rc == ONCE_OK ? c->parked_decide(tx, &d, err) : rc;
}

int once__parked_stats(const once_tx *tx, struct once__parked_count **out,
                       size_t *n, once_error *err)
{
    const struct once__outbox_backend *c = NULL;
    int rc = backend(tx, &c, err);

    *out = NULL;
    *n = 0;
    return rc == ONCE_OK ? c->parked_stats(tx, out, n, err) : rc;
}
