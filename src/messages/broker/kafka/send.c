/* SPDX-License-Identifier: Apache-2.0 */
/*
 * send.c - the driver for Kafka: sending. report.c says how a message ends.
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

static struct once__kafka *self(struct once__broker *b)
{
    return (struct once__kafka *)(void *)b;
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
    rd_kafka_resp_err_t rc, fatal;
    const char *why;

    if (headers == NULL) {
        if (number != 0)
            once__flights_cancel(&k->flights);
        return once__fail(err, ONCE_ENOMEM, "kafka: no memory");
    }
    if (alone || m->body.size >= ONCE__KAFKA_BATCH_BYTES)
        *once__flights_note(&k->flights, number) = ONCE__KAFKA_ALONE;
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
    /* The library repeats what a broker has said of the topic. It also repeats
     * its fatal error, which is about an earlier message, or about us. */
    fatal = rd_kafka_fatal_error(k->rk, NULL, 0);
    once__kafka_note(k, fatal);
    why = once__kafka_why(k, "the library takes no message");
    once__flights_end(&k->flights, number,
                      rc > 0 && fatal == RD_KAFKA_RESP_ERR_NO_ERROR
                          ? once__kafka_end_of(rc)
                          : ONCE__END_UNSENT,
                      (int)rc, why);
    k->down = 1;
    return once__fail(err, ONCE_EAWAY, "kafka: %s", why);
}

/* Until nothing is in flight, or the time of the target is over. */
static void wait_for_all(struct once__kafka *k)
{
    uint64_t end = once__steady_ms() + k->o.timeout_ms;

    while (k->flights.open > 0 && !k->down && once__steady_ms() < end)
        (void)rd_kafka_poll(k->rk, ONCE__KAFKA_SLICE_MS);
}

/* Others may come into the request of the last message now. */
static void no_more_alone(struct once__kafka *k)
{
    uint32_t *note = once__flights_note(&k->flights, k->flights.next - 1);

    if (note != NULL)
        *note = 0;
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
    if (rc == ONCE_OK && alone) {
        wait_for_all(k);
        no_more_alone(k);
    }
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
        once__kafka_lose(k, once__kafka_why(k, "the connection was lost"));
    return once__ended_take(&k->flights.ended, out, max);
}
