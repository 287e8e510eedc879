/* SPDX-License-Identifier: Apache-2.0 */
/*
 * send.c - the driver for Kafka: sending. The delivery report of the library is
 * the proof.
 *
 *    produce 7 --> all replicas in step have it --> report 7             TAKEN
 *              --> written, perhaps: no answer came in time, or the
 *                  connection went, or too few replicas answered         SILENT
 *              --> never left, and was purged                            UNSENT
 *              --> never left in time                                    AWAY
 *              --> a broker says no                            REFUSED, REJECTED
 *
 * Several records travel in one request, and a broker that refuses one of them
 * for its size or its form refuses all: these are sent again, each alone.
 *
 * Rows of one key: the relay sends the next one after the proof of the one
 * before (relay/send_batch.c), so no refused row is overtaken. What the library
 * repeats by itself stays in order, since the producer is idempotent. It is so
 * for one object of the library: another may write a message again, which its
 * consumers recognise by the id.
 */
#include "messages/broker/kafka/kafka.h"

#include <string.h>
#include <time.h>

#include "base/error.h"
#include "base/steady.h"

enum {
    PURGE_MS = 2000, /* for the reports of what was purged */
    ALONE = 1        /* a flight's note: no other record is in its request */
};

static struct once__kafka *self(struct once__broker *b)
{
    return (struct once__kafka *)(void *)b;
}

/* ---- Reports -------------------------------------------------------------- */

struct ending {
    int end;
    const char *why;
};

/* What it means that a record was not written, by the error. `of_request`: a
 * broker refuses a whole request so, and it is not known for which record. */
static const struct refusal {
    rd_kafka_resp_err_t err;
    int of_request;
    struct ending e;
} refusals[] = {
#define SIZE "it is too large for its topic"
    {RD_KAFKA_RESP_ERR_MSG_SIZE_TOO_LARGE, 1, {ONCE__END_REJECTED, SIZE}},
    {RD_KAFKA_RESP_ERR_RECORD_LIST_TOO_LARGE, 1, {ONCE__END_REJECTED, SIZE}},
    {RD_KAFKA_RESP_ERR_INVALID_MSG_SIZE, 1, {ONCE__END_REJECTED, SIZE}},
#undef SIZE
#define FORM "its topic does not take a record of this form"
    {RD_KAFKA_RESP_ERR_INVALID_RECORD, 1, {ONCE__END_REFUSED, FORM}},
    {RD_KAFKA_RESP_ERR_INVALID_MSG, 1, {ONCE__END_REFUSED, FORM}},
    {RD_KAFKA_RESP_ERR_INVALID_TIMESTAMP, 1, {ONCE__END_REFUSED, FORM}},
#undef FORM
#define TIME "no broker has taken it in time"
    {RD_KAFKA_RESP_ERR__MSG_TIMED_OUT, 0, {ONCE__END_AWAY, TIME}},
    {RD_KAFKA_RESP_ERR__TIMED_OUT, 0, {ONCE__END_AWAY, TIME}},
    {RD_KAFKA_RESP_ERR__TRANSPORT, 0, {ONCE__END_AWAY, TIME}},
#undef TIME
#define GONE "its topic is gone"
    {RD_KAFKA_RESP_ERR__UNKNOWN_TOPIC, 0, {ONCE__END_AWAY, GONE}},
    {RD_KAFKA_RESP_ERR__UNKNOWN_PARTITION, 0, {ONCE__END_AWAY, GONE}},
    {RD_KAFKA_RESP_ERR_UNKNOWN_TOPIC_OR_PART, 0, {ONCE__END_AWAY, GONE}},
#undef GONE
    {RD_KAFKA_RESP_ERR__PURGE_QUEUE, 0, {ONCE__END_UNSENT, NULL}},
    {RD_KAFKA_RESP_ERR__PURGE_INFLIGHT, 0, {ONCE__END_UNSENT, NULL}},
    {RD_KAFKA_RESP_ERR__DESTROY, 0, {ONCE__END_UNSENT, NULL}},
    {RD_KAFKA_RESP_ERR_NO_ERROR,
     0,
     {ONCE__END_REFUSED, "the brokers refuse it"}},
};

/* The last one stands for all others. */
static const struct refusal *refusal_of(rd_kafka_resp_err_t err)
{
    const struct refusal *r = refusals;

    while (r->err != err && r->err != RD_KAFKA_RESP_ERR_NO_ERROR)
        r++;
    return r;
}

static struct ending ending_of(rd_kafka_t *rk, const rd_kafka_message_t *m,
                               int alone)
{
    static const struct ending taken = {ONCE__END_TAKEN, NULL},
                               silent = {ONCE__END_SILENT,
                                         "it may have been written"},
                               among = {ONCE__END_AWAY,
                                        "a broker has refused the request that "
                                        "it was part of"};
    const struct refusal *r = refusal_of(m->err);

    if (m->err == RD_KAFKA_RESP_ERR_NO_ERROR)
        return taken;
    /* After a fatal error the numbers by which a broker recognises a repeat are
     * not to be trusted, so what the library says of a record is not, either. */
    if (rd_kafka_message_status(m) != RD_KAFKA_MSG_STATUS_NOT_PERSISTED ||
        rd_kafka_fatal_error(rk, NULL, 0) != RD_KAFKA_RESP_ERR_NO_ERROR)
        return silent;
    return r->of_request && !alone ? among : r->e;
}

/* The id of a message that was refused is in its headers. */
static void judge_suspect(struct once__kafka *k, const rd_kafka_message_t *m,
                          int alone)
{
    rd_kafka_headers_t *headers = NULL;
    const void *value = NULL;
    size_t size = 0;

    if (rd_kafka_message_headers(m, &headers) != RD_KAFKA_RESP_ERR_NO_ERROR ||
        rd_kafka_header_get_last(headers, ONCE__HEADER_ID, &value, &size) !=
            RD_KAFKA_RESP_ERR_NO_ERROR)
        return;
    /* The library keeps a NUL behind a value. */
    if (alone)
        once__suspects_remove(&k->suspects, once__suspects_sum(value));
    else
        once__suspects_add(&k->suspects, once__suspects_sum(value));
}

void once__kafka_delivered(rd_kafka_t *rk, const rd_kafka_message_t *m,
                           void *user)
{
    struct once__kafka *k = user;
    uint64_t number = (uint64_t)(uintptr_t)m->_private;
    const uint32_t *note = once__flights_note(&k->flights, number);
    int alone = note != NULL && *note == ALONE;
    struct ending e = ending_of(rk, m, alone);

    if (refusal_of(m->err)->of_request)
        judge_suspect(k, m, alone);
    if (m->err == RD_KAFKA_RESP_ERR_UNKNOWN_TOPIC_OR_PART ||
        m->err == RD_KAFKA_RESP_ERR__UNKNOWN_TOPIC ||
        m->err == RD_KAFKA_RESP_ERR_TOPIC_AUTHORIZATION_FAILED)
        k->down = 1; /* connect() says what is the matter with the topic */
    once__flights_end(&k->flights, number, e.end,
                      e.end == ONCE__END_TAKEN ? 0 : (int)m->err, e.why);
}

/* ---- Sending ---------------------------------------------------------------- */

/* NULL: no memory. */
static rd_kafka_headers_t *headers_of(const once_message *m)
{
    rd_kafka_headers_t *headers = rd_kafka_headers_new(8);
    const char *at = m->headers;
    struct once__header_line line;
    rd_kafka_resp_err_t rc =
        rd_kafka_header_add(headers, ONCE__HEADER_ID, -1, m->id, -1);

    if (rc == RD_KAFKA_RESP_ERR_NO_ERROR && m->type != NULL &&
        m->type[0] != '\0')
        rc = rd_kafka_header_add(headers, ONCE__HEADER_TYPE, -1, m->type, -1);
    while (rc == RD_KAFKA_RESP_ERR_NO_ERROR &&
           once__header_line_next(&at, &line))
        rc = rd_kafka_header_add(headers, line.name, (ssize_t)line.n_name,
                                 line.value, (ssize_t)line.n_value);
    if (rc == RD_KAFKA_RESP_ERR_NO_ERROR)
        return headers;
    rd_kafka_headers_destroy(headers);
    return NULL;
}

/* An empty body is not the same as none, which deletes a key. */
static rd_kafka_resp_err_t produce(struct once__kafka *k, const once_message *m,
                                   rd_kafka_headers_t *headers, uint64_t number)
{
    const char *body = m->body.size > 0 ? m->body.data : "", *key = m->key;
    const rd_kafka_vu_t parts[] = {
        {.vtype = RD_KAFKA_VTYPE_RKT, .u.rkt = k->rkt},
        {.vtype = RD_KAFKA_VTYPE_MSGFLAGS, .u.i = RD_KAFKA_MSG_F_COPY},
        {.vtype = RD_KAFKA_VTYPE_KEY,
         .u.mem = {(void *)(uintptr_t)key, key == NULL ? 0 : strlen(key)}},
        {.vtype = RD_KAFKA_VTYPE_VALUE,
         .u.mem = {(void *)(uintptr_t)body, m->body.size}},
        {.vtype = RD_KAFKA_VTYPE_HEADERS, .u.headers = headers},
        {.vtype = RD_KAFKA_VTYPE_OPAQUE, .u.ptr = (void *)(uintptr_t)number},
    };
    rd_kafka_error_t *wrong =
        rd_kafka_produceva(k->rk, parts, sizeof(parts) / sizeof(parts[0]));
    rd_kafka_resp_err_t rc = rd_kafka_error_code(wrong);

    rd_kafka_error_destroy(wrong);
    return rc;
}

static int publish(struct once__kafka *k, const once_message *m, uint64_t tag,
                   int alone, once_error *err)
{
    uint64_t number = once__flights_add(&k->flights, tag);
    rd_kafka_headers_t *headers = number == 0 ? NULL : headers_of(m);
    rd_kafka_resp_err_t rc;

    if (headers == NULL) {
        if (number != 0)
            once__flights_cancel(&k->flights);
        return once__fail(err, ONCE_ENOMEM, "kafka: no memory");
    }
    if (alone || m->body.size >= ONCE__KAFKA_BATCH_BYTES)
        *once__flights_note(&k->flights, number) = ALONE;
    rc = produce(k, m, headers, number);
    if (rc == RD_KAFKA_RESP_ERR_NO_ERROR)
        return ONCE_OK;
    rd_kafka_headers_destroy(headers);
    if (rc == RD_KAFKA_RESP_ERR_MSG_SIZE_TOO_LARGE) {
        once__flights_end(&k->flights, number, ONCE__END_REJECTED, (int)rc,
                          "it is larger than a message may be");
        return ONCE_OK;
    }
    if (rc == RD_KAFKA_RESP_ERR__QUEUE_FULL) {
        once__flights_cancel(&k->flights);
        return once__fail(err, ONCE_ENOMEM, "kafka: too much is in flight");
    }
    /* The library repeats what a broker has said of the topic. */
    once__flights_end(&k->flights, number,
                      rc > 0 ? refusal_of(rc)->e.end : ONCE__END_UNSENT,
                      (int)rc, "the library takes no message");
    k->down = 1;
    return once__fail(err, ONCE_EAWAY, "kafka: the library takes no message");
}

/* Until nothing is in flight, or the time of the target is over. */
static void wait_for_all(struct once__kafka *k)
{
    uint64_t end = once__steady_ms() + k->o.timeout_ms;

    while (k->flights.open > 0 && !k->down && once__steady_ms() < end)
        (void)rd_kafka_poll(k->rk, ONCE__KAFKA_SLICE_MS);
}

int once__kafka_send(struct once__broker *b, const once_message *m,
                     uint64_t tag, once_error *err)
{
    struct once__kafka *k = self(b);
    int alone = once__suspects_has(&k->suspects, once__suspects_sum(m->id));
    int rc;

    if (alone && k->up)
        wait_for_all(k);
    if (!k->up || k->down) {
        rc = once__flights_unsent(&k->flights, tag, ONCE__END_UNSENT, NULL);
        return once__fail(err, rc == ONCE_OK ? ONCE_EAWAY : ONCE_ENOMEM,
                          "kafka: not connected");
    }
    rc = publish(k, m, tag, alone && k->flights.open == 0, err);
    if (rc == ONCE_OK && alone)
        wait_for_all(k);
    return rc;
}

size_t once__kafka_proofs(struct once__broker *b, uint32_t wait_ms,
                          struct once__proof *out, size_t max)
{
    struct once__kafka *k = self(b);
    uint64_t end = once__steady_ms() + wait_ms, now;

    if (k->rk != NULL)
        (void)rd_kafka_poll(k->rk, 0);
    while (k->rk != NULL && k->flights.open > 0 && !k->down &&
           once__flights_ready(&k->flights) == 0) {
        now = once__steady_ms();
        if (now >= end)
            break;
        (void)rd_kafka_poll(k->rk, end - now < ONCE__KAFKA_SLICE_MS
                                       ? (int)(end - now)
                                       : ONCE__KAFKA_SLICE_MS);
    }
    if (k->down && k->rk != NULL && k->flights.open > 0)
        once__kafka_lose(k, "the connection was lost");
    return once__ended_take(&k->flights.ended, out, max);
}

/* What is still in a queue of ours never left; what is in flight may be there. */
void once__kafka_end_sending(struct once__kafka *k)
{
    uint64_t end = once__steady_ms() + PURGE_MS;

    (void)rd_kafka_purge(k->rk,
                         RD_KAFKA_PURGE_F_QUEUE | RD_KAFKA_PURGE_F_INFLIGHT);
    while (k->flights.open > 0 && once__steady_ms() < end)
        (void)rd_kafka_poll(k->rk, 10);
}
