/* SPDX-License-Identifier: Apache-2.0 */
/*
 * report.c - the driver for Kafka: what the library reports. A delivery report is
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
 */
#include "messages/broker/kafka/kafka.h"

#include "base/error.h"
#include "base/steady.h"

enum { PURGE_MS = 2000 /* for the reports of what was purged */ };

/* ---- The connection ------------------------------------------------------ */

void once__kafka_note(struct once__kafka *k, rd_kafka_resp_err_t err)
{
    switch (err) {
    case RD_KAFKA_RESP_ERR__AUTHENTICATION:
    case RD_KAFKA_RESP_ERR_SASL_AUTHENTICATION_FAILED:
        k->refused = "the brokers refuse this user and password";
        break;
    case RD_KAFKA_RESP_ERR__SSL:
        k->refused = "a broker's certificate is not trusted, or not for this "
                     "host, or it has no TLS";
        break;
    case RD_KAFKA_RESP_ERR_TOPIC_AUTHORIZATION_FAILED:
        k->refused = "the brokers refuse this topic to this user";
        break;
    case RD_KAFKA_RESP_ERR_GROUP_AUTHORIZATION_FAILED:
        k->refused = "the brokers refuse this group to this user";
        break;
    case RD_KAFKA_RESP_ERR_INVALID_SESSION_TIMEOUT:
        k->refused = "the brokers do not take this session_ms (see their "
                     "group.min.session.timeout.ms, 6000 unless it was set, "
                     "and group.max.session.timeout.ms)";
        break;
    case RD_KAFKA_RESP_ERR_INCONSISTENT_GROUP_PROTOCOL:
        k->refused = "the group has members that know neither range nor "
                     "roundrobin, or that are no consumers";
        break;
    case RD_KAFKA_RESP_ERR_GROUP_MAX_SIZE_REACHED:
        k->refused = "the group has as many members as the brokers allow";
        k->passes = 1;
        break;
    case RD_KAFKA_RESP_ERR_CLUSTER_AUTHORIZATION_FAILED:
        k->refused = "the brokers refuse an idempotent producer to this user";
        break;
    case RD_KAFKA_RESP_ERR__ALL_BROKERS_DOWN:
        if (!k->answered)
            k->down = 1;
        return;
    case RD_KAFKA_RESP_ERR__FATAL:
    case RD_KAFKA_RESP_ERR__UNKNOWN_TOPIC:
    case RD_KAFKA_RESP_ERR_UNKNOWN_TOPIC_OR_PART:
    case RD_KAFKA_RESP_ERR__MAX_POLL_EXCEEDED:
        k->down = 1;
        break;
    default:
        return;
    }
    if (k->refused != NULL)
        k->down = 1;
}

const char *once__kafka_why(const struct once__kafka *k, const char *otherwise)
{
    return k->refused != NULL ? k->refused : otherwise;
}

int once__kafka_refusal(const struct once__kafka *k, once_error *err)
{
    return once__fail(err, k->passes ? ONCE_EAWAY : ONCE_EOPEN, "kafka: %s",
                      k->refused);
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

int once__kafka_end_of(rd_kafka_resp_err_t err)
{
    return refusal_of(err)->e.end;
}

/* An attempt before the last may have been written, whatever is said of the last
 * one. Without `hold` the row goes again, and its readers know the id. */
static int may_be_a_repeat(rd_kafka_resp_err_t err)
{
    return err == RD_KAFKA_RESP_ERR__MSG_TIMED_OUT ||
           err == RD_KAFKA_RESP_ERR_NOT_LEADER_FOR_PARTITION ||
           err == RD_KAFKA_RESP_ERR_UNKNOWN;
}

static struct ending ending_of(const struct once__kafka *k, rd_kafka_t *rk,
                               const rd_kafka_message_t *m, int alone)
{
    const struct ending silent = {
        ONCE__END_SILENT, once__kafka_why(k, "it may have been written")};
    static const struct ending taken = {ONCE__END_TAKEN, NULL},
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
    if (k->o.hold && may_be_a_repeat(m->err))
        return silent;
    return r->of_request && !alone ? among : r->e;
}

/* The id of a message is in its headers. `known`: it was taken, or refused when
 * it was alone, so nothing is to be found out about it. */
static void judge_suspect(struct once__kafka *k, const rd_kafka_message_t *m,
                          int known)
{
    rd_kafka_headers_t *headers = NULL;
    const void *value = NULL;
    size_t size = 0;

    if (rd_kafka_message_headers(m, &headers) != RD_KAFKA_RESP_ERR_NO_ERROR ||
        rd_kafka_header_get_last(headers, ONCE__HEADER_ID, &value, &size) !=
            RD_KAFKA_RESP_ERR_NO_ERROR)
        return;
    /* The library keeps a NUL behind a value. */
    if (known)
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
    int alone = note != NULL && *note == ONCE__KAFKA_ALONE;
    struct ending e = ending_of(k, rk, m, alone);

    if (refusal_of(m->err)->of_request)
        judge_suspect(k, m, alone);
    else if (e.end == ONCE__END_TAKEN && k->suspects.n > 0)
        judge_suspect(k, m, 1);
    if (m->err == RD_KAFKA_RESP_ERR_UNKNOWN_TOPIC_OR_PART ||
        m->err == RD_KAFKA_RESP_ERR__UNKNOWN_TOPIC ||
        m->err == RD_KAFKA_RESP_ERR_TOPIC_AUTHORIZATION_FAILED)
        k->down = 1; /* connect() says what is the matter with the topic */
    once__flights_end(&k->flights, number, e.end,
                      e.end == ONCE__END_TAKEN ? 0 : (int)m->err, e.why);
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
