/* SPDX-License-Identifier: Apache-2.0 */
/*
 * group.c - the driver for Kafka: partitions, which come and go, their messages
 * and what is committed of them.
 *
 * A broker keeps one number for each partition, the offset at which its next
 * consumer begins. It is the first message that is not done; what is done behind
 * it waits:
 *
 *      offset    10     11     12     13     14     15     16
 *               done   done   open   done   open    -      -
 *                             |                     |      |
 *                    committed offset            handed   mark: up to here may
 *                                                         be handed out
 *
 * ack() answers ONCE_OK when the offset is committed beyond its message, or when
 * an earlier message is open. A crash then brings a message again that was
 * acknowledged, and the inbox knows it.
 *
 * Kafka does not say that a message was delivered before. So each commit carries
 * a mark, as the text that belongs to an offset: no message at or above it is
 * handed out before a higher mark is committed. Who takes over the partition
 * reads it, and says of all below it that a handler may have run before. A
 * partition that is taken away cancels its deliveries.
 *
 * When a member comes or goes, the group takes all partitions from all members
 * before it gives them out again. Members could keep what stays theirs
 * ("cooperative-sticky"), but then they commit while they ask to join again, and
 * the answer to such a commit comes after the join and names the generation
 * before it. librdkafka before 2.10 then believes that it has lost the group and
 * joins again, with which it disturbs all others, who do the same.
 *
 * A thread takes part in the group while nobody calls us. The messages of the
 * partitions go to a queue of our own, so that the thread gets none of them, and
 * what is not fetched from it is not fetched from a broker.
 */
#include "messages/broker/kafka/kafka.h"

#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/error.h"
#include "base/grow.h"
#include "base/steady.h"
#include "base/thread.h"

enum {
    BEAT_MS = 200,
    LEAVE_MS = 3000, /* for an orderly end */
    ASK_MS = 200,    /* for an answer about the group; then longer */
    ASK_MOST_MS = 800,
    REFUSAL_MS = 300, /* for a refusal to come */
    WELCOME_MS = 2000 /* after one: for the next, once the group has met */
};

#define MARK "once " /* and the mark's number */

/* ---- Partitions ----------------------------------------------------------- */

static struct once__kafka_part *part_of(const struct once__kafka *k, int32_t id)
{
    size_t i;

    for (i = 0; i < k->n_parts; i++)
        if (k->parts[i].id == id)
            return &k->parts[i];
    return NULL;
}

/* Of a delivery; NULL: it was taken away since. */
struct once__kafka_part *once__kafka_part_from(const struct once__kafka *k,
                                               const struct once__incoming *in)
{
    size_t i;

    for (i = 0; i < k->n_parts; i++)
        if (k->parts[i].serial == in->connection)
            return &k->parts[i];
    return NULL;
}

static int64_t first_of(const struct once__incoming_list *list, uint64_t serial,
                        int64_t least)
{
    const struct once__incoming *in;

    for (in = list->first; in != NULL; in = in->next)
        if (in->connection == serial && (int64_t)in->d.tag < least)
            least = (int64_t)in->d.tag;
    return least;
}

/* The first offset that is not done. */
int64_t once__kafka_undone(const struct once__kafka *k,
                           const struct once__kafka_part *p)
{
    return first_of(&k->out, p->serial,
                    first_of(&k->ready, p->serial, p->next));
}

static void drop_ready(struct once__kafka *k, uint64_t serial)
{
    struct once__incoming *in, *next;

    for (in = k->ready.first; in != NULL; in = next) {
        next = in->next;
        if (in->connection == serial) {
            once__incoming_remove(&k->ready, in);
            once__incoming_free(in);
        }
    }
}

static void remove_part(struct once__kafka *k, struct once__kafka_part *p)
{
    const struct once__incoming *in;

    drop_ready(k, p->serial);
    for (in = k->out.first; in != NULL; in = in->next)
        k->held -= in->connection == p->serial;
    *p = k->parts[--k->n_parts];
}

/* ---- Commits ---------------------------------------------------------------- */

/* One more in a list of what is to be committed. 0: no memory. */
static int add_commit(rd_kafka_topic_partition_list_t *list, const char *topic,
                      int32_t id, int64_t offset, int64_t mark)
{
    rd_kafka_topic_partition_t *at =
        rd_kafka_topic_partition_list_add(list, topic, id);
    char text[64];

    (void)snprintf(text, sizeof(text), MARK "%" PRId64, mark);
    at->offset = offset;
    at->metadata = strdup(text); /* the list frees it */
    at->metadata_size = at->metadata == NULL ? 0 : strlen(text);
    return at->metadata != NULL;
}

/* Waits for the answer. NO_ERROR: the last of the list is durable. */
static rd_kafka_resp_err_t commit_list(struct once__kafka *k,
                                       rd_kafka_topic_partition_list_t *list,
                                       uint64_t wait_ms)
{
    rd_kafka_queue_t *queue = rd_kafka_queue_new(k->rk);
    rd_kafka_event_t *event = NULL;
    rd_kafka_resp_err_t rc =
        rd_kafka_commit_queue(k->rk, list, queue, NULL, NULL);

    if (rc == RD_KAFKA_RESP_ERR_NO_ERROR) {
        event = rd_kafka_queue_poll(queue, (int)wait_ms);
        rc = event == NULL ? RD_KAFKA_RESP_ERR__TIMED_OUT
                           : rd_kafka_event_error(event);
    }
    list = event == NULL ? NULL : rd_kafka_event_topic_partition_list(event);
    if (rc == RD_KAFKA_RESP_ERR_NO_ERROR && list != NULL && list->cnt > 0)
        rc = list->elems[list->cnt - 1].err;
    rd_kafka_event_destroy(event);
    rd_kafka_queue_destroy(queue);
    return rc;
}

/* NO_ERROR: `offset` and `mark` are durable. */
static rd_kafka_resp_err_t commit_once(struct once__kafka *k, int32_t id,
                                       int64_t offset, int64_t mark)
{
    rd_kafka_topic_partition_list_t *list =
        rd_kafka_topic_partition_list_new(1);
    rd_kafka_resp_err_t rc = RD_KAFKA_RESP_ERR__FAIL;

    if (add_commit(list, k->topic, id, offset, mark))
        rc = commit_list(k, list, k->o.timeout_ms);
    rd_kafka_topic_partition_list_destroy(list);
    return rc;
}

/* Commits the first undone offset, with this mark. */
static rd_kafka_resp_err_t commit(struct once__kafka *k,
                                  struct once__kafka_part *p, int64_t mark)
{
    int64_t offset = once__kafka_undone(k, p);
    rd_kafka_resp_err_t rc = commit_once(k, p->id, offset, mark);

    if (rc == RD_KAFKA_RESP_ERR_NO_ERROR) {
        p->committed = offset;
        p->limit = mark;
    }
    return rc;
}

/* The mark while we have the partition: as far ahead as may be out at once. */
static int64_t mark_ahead(const struct once__kafka *k,
                          const struct once__kafka_part *p)
{
    int64_t mark = p->handed + (int64_t)k->o.prefetch + 1;

    return mark > p->limit ? mark : p->limit;
}

/*
 * The same for the partition of a delivery. While the group changes, a broker
 * takes no commit: it is asked again, for as long as the partition is ours.
 * ONCE_OK, or ONCE_EAWAY: it is unknown, or not ours any more.
 */
int once__kafka_commit_for(struct once__kafka *k, uint64_t serial,
                           once_error *err)
{
    const struct once__incoming probe = {.connection = serial};
    uint64_t end = once__steady_ms() + k->o.timeout_ms;
    rd_kafka_resp_err_t rc = RD_KAFKA_RESP_ERR_REBALANCE_IN_PROGRESS;
    struct once__kafka_part *p;

    while ((p = once__kafka_part_from(k, &probe)) != NULL &&
           once__steady_ms() < end) {
        rc = commit(k, p, mark_ahead(k, p));
        if (rc == RD_KAFKA_RESP_ERR_NO_ERROR)
            return ONCE_OK;
        once__kafka_note(k, rc);
        if (rc != RD_KAFKA_RESP_ERR_REBALANCE_IN_PROGRESS &&
            rc != RD_KAFKA_RESP_ERR_ILLEGAL_GENERATION)
            break;
        once__kafka_serve(k, ONCE__KAFKA_SLICE_MS);
    }
    if (p == NULL)
        return once__fail(err, ONCE_EAWAY,
                          "kafka: the partition was taken away since");
    k->down = 1;
    return once__fail(err, ONCE_EAWAY,
                      "kafka: not known whether the offset was committed: %d",
                      (int)rc);
}

/* ---- Partitions come and go -------------------------------------------------- */

/* Offsets beyond it leave no room for the ones after them. No log is that long. */
#define OFFSET_MOST (INT64_MAX - (INT64_C(1) << 32))

/* What was committed for a partition that is ours now. Any program with the right to
 * the group may have written it. */
static void begin_part(struct once__kafka_part *p,
                       const rd_kafka_topic_partition_t *at)
{
    char text[64] = "", *end;

    p->committed = at->offset >= 0 ? at->offset : -1;
    p->next = at->offset < 0             ? 0
              : at->offset > OFFSET_MOST ? OFFSET_MOST
                                         : at->offset;
    p->handed = p->next;
    if (at->offset < 0 || at->metadata == NULL ||
        at->metadata_size >= sizeof(text))
        return;
    memcpy(text, at->metadata, at->metadata_size);
    if (strncmp(text, MARK, strlen(MARK)) != 0)
        return; /* another program has set this offset */
    p->before = strtoll(text + strlen(MARK), &end, 10);
    if (end == text + strlen(MARK) || *end != '\0' || p->before < p->next)
        p->before = p->next;
    if (p->before > OFFSET_MOST)
        p->before = OFFSET_MOST;
}

static int add_part(struct once__kafka *k, const rd_kafka_topic_partition_t *at)
{
    struct once__kafka_part *more;
    rd_kafka_queue_t *queue;

    /* First of all: the list may move when it grows. No test shows it, since
     * the mock answers an error for all partitions or for none. */
    if (at->err != RD_KAFKA_RESP_ERR_NO_ERROR)
        return 0;
    more = once__grown(k->parts, &k->cap_parts, k->n_parts + 1, sizeof(*more));
    if (more == NULL)
        return 0;
    k->parts = more;
    more = &k->parts[k->n_parts++];
    memset(more, 0, sizeof(*more));
    more->id = at->partition;
    more->serial = ++k->serial;
    begin_part(more, at);
    queue = rd_kafka_queue_get_partition(k->rk, k->topic, at->partition);
    if (queue == NULL)
        return 0;
    rd_kafka_queue_forward(queue, k->queue);
    rd_kafka_queue_destroy(queue);
    return 1;
}

/* Where each begins is asked before any of it is fetched. Where nothing is
 * committed it is the first that is there. */
static void assigned(struct once__kafka *k,
                     rd_kafka_topic_partition_list_t *list)
{
    rd_kafka_resp_err_t rc =
        rd_kafka_committed(k->rk, list, (int)k->o.timeout_ms);
    int i, good = rc == RD_KAFKA_RESP_ERR_NO_ERROR;

    for (i = 0; i < list->cnt && good; i++)
        good = add_part(k, &list->elems[i]);
    for (i = 0; i < list->cnt; i++)
        if (list->elems[i].offset < 0)
            list->elems[i].offset = RD_KAFKA_OFFSET_BEGINNING;
    if (!good)
        k->down = 1; /* nothing is fetched, and connect() begins again */
    if (rd_kafka_assign(k->rk, list) != RD_KAFKA_RESP_ERR_NO_ERROR)
        k->down = 1;
}

/* What is done of all partitions is committed, with marks that say exactly what
 * was handed out. The members wait for this one: it is tried once, and not for
 * long. */
static void commit_all(struct once__kafka *k)
{
    rd_kafka_topic_partition_list_t *list =
        rd_kafka_topic_partition_list_new((int)k->n_parts);
    const struct once__kafka_part *p;
    size_t i;
    int good = 1;

    for (i = 0; i < k->n_parts && good; i++) {
        p = &k->parts[i];
        if (p->handed > 0)
            good = add_commit(list, k->topic, p->id, once__kafka_undone(k, p),
                              p->handed > p->before ? p->handed : p->before);
    }
    if (good && list->cnt > 0)
        (void)commit_list(k, list,
                          k->session_ms / 2 < LEAVE_MS ? k->session_ms / 2
                                                       : LEAVE_MS);
    rd_kafka_topic_partition_list_destroy(list);
}

/* All that we have goes. `lost`: others may have it by now, and nothing is to be
 * committed. Nor is it without brokers: the library would keep the commit until
 * the session is over, and end no sooner. */
static void revoked(struct once__kafka *k, int lost)
{
    if (!lost && !k->down)
        commit_all(k);
    while (k->n_parts > 0)
        remove_part(k, &k->parts[0]);
    assert(k->held == 0);
    if (rd_kafka_assign(k->rk, NULL) != RD_KAFKA_RESP_ERR_NO_ERROR)
        k->down = 1;
}

void once__kafka_rebalanced(rd_kafka_t *rk, rd_kafka_resp_err_t what,
                            rd_kafka_topic_partition_list_t *list, void *user)
{
    struct once__kafka *k = user;

    switch (what) {
    case RD_KAFKA_RESP_ERR__ASSIGN_PARTITIONS:
        k->met = 1;
        assigned(k, list);
        break;
    case RD_KAFKA_RESP_ERR__REVOKE_PARTITIONS:
        revoked(k, rd_kafka_assignment_lost(rk));
        break;
    default:
        k->down = 1;
        (void)rd_kafka_assign(rk, NULL);
    }
}

/* ---- The group ------------------------------------------------------------- */

static rd_kafka_resp_err_t ask_for_offset(const struct once__kafka *k,
                                          uint64_t wait_ms)
{
    rd_kafka_topic_partition_list_t *list =
        rd_kafka_topic_partition_list_new(1);
    rd_kafka_resp_err_t rc;

    (void)rd_kafka_topic_partition_list_add(list, k->topic, 0);
    rc = rd_kafka_committed(k->rk, list, (int)wait_ms);
    if (rc == RD_KAFKA_RESP_ERR_NO_ERROR)
        rc = list->elems[0].err;
    rd_kafka_topic_partition_list_destroy(list);
    return rc;
}

/* Whether we may read the group's offsets, which asks its coordinator. A broker that
 * refuses to name the coordinator is heard only between two questions. */
static int look_at_group(struct once__kafka *k, once_error *err)
{
    uint64_t end = once__steady_ms() + k->o.timeout_ms, wait_ms = ASK_MS;
    rd_kafka_resp_err_t rc = RD_KAFKA_RESP_ERR__TIMED_OUT;

    while (rc == RD_KAFKA_RESP_ERR__TIMED_OUT && k->refused == NULL &&
           once__steady_ms() < end) {
        rc = ask_for_offset(k, wait_ms);
        once__kafka_serve(k, 0);
        if (wait_ms < ASK_MOST_MS)
            wait_ms *= 2;
    }
    once__kafka_note(k, rc);
    if (k->refused != NULL)
        return once__kafka_refusal(k, err);
    if (rc == RD_KAFKA_RESP_ERR_NO_ERROR)
        return ONCE_OK;
    return once__fail(err, ONCE_EAWAY,
                      "kafka: the group cannot be asked for: %d", (int)rc);
}

static int subscribe(struct once__kafka *k, once_error *err)
{
    rd_kafka_topic_partition_list_t *list =
        rd_kafka_topic_partition_list_new(1);
    rd_kafka_resp_err_t rc;

    k->queue = rd_kafka_queue_new(k->rk);
    (void)rd_kafka_topic_partition_list_add(list, k->topic,
                                            RD_KAFKA_PARTITION_UA);
    rc = rd_kafka_subscribe(k->rk, list);
    rd_kafka_topic_partition_list_destroy(list);
    k->joined = rc == RD_KAFKA_RESP_ERR_NO_ERROR;
    return k->joined
               ? ONCE_OK
               : once__fail(err, ONCE_EAWAY,
                            "kafka: the group cannot be joined: %d", (int)rc);
}

/*
 * A broker refuses a member at once. A member that is taken waits until all others
 * have joined, which may be long. After a refusal connect() does not say that all is well
 * before the group has met, and nothing was refused since: a broker that lets us
 * into the group may still refuse to hand out the topic.
 */
static int hear_refusal(struct once__kafka *k, int unwelcome, once_error *err)
{
    uint64_t now = once__steady_ms(), met = 0,
             end = now + (unwelcome ? k->o.timeout_ms : REFUSAL_MS);

    while (!k->down && now < end && (!k->met || unwelcome)) {
        if (k->met && met == 0)
            met = now;
        if (met != 0 && now - met >= WELCOME_MS)
            break;
        once__kafka_serve(k, 10);
        if (k->ready.first == NULL)
            once__kafka_take(k, rd_kafka_consume_queue(k->queue, 0));
        now = once__steady_ms();
    }
    if (k->refused != NULL)
        return once__kafka_refusal(k, err);
    return k->down
               ? once__fail(err, ONCE_EAWAY, "kafka: the connection was lost")
               : ONCE_OK;
}

int once__kafka_join(struct once__kafka *k, int unwelcome, once_error *err)
{
    int rc = look_at_group(k, err);

    if (rc == ONCE_OK && !k->joined)
        rc = subscribe(k, err);
    return rc == ONCE_OK ? hear_refusal(k, unwelcome, err) : rc;
}

void once__kafka_leave(struct once__kafka *k)
{
    uint64_t end = once__steady_ms() + LEAVE_MS;
    rd_kafka_queue_t *queue = rd_kafka_queue_get_consumer(k->rk);
    rd_kafka_error_t *wrong = NULL;

    /* Only who was told what it has is destroyed in good order. */
    while (k->joined && !k->met && !k->down && once__steady_ms() < end)
        once__kafka_serve(k, 10);
    if (queue != NULL)
        wrong = rd_kafka_consumer_close_queue(k->rk, queue);
    while (queue != NULL && wrong == NULL && !rd_kafka_consumer_closed(k->rk) &&
           once__steady_ms() < end)
        once__kafka_serve(k, 10);
    rd_kafka_error_destroy(wrong);
    if (queue != NULL)
        rd_kafka_queue_destroy(queue);
    if (k->queue != NULL)
        rd_kafka_queue_destroy(k->queue);
    k->queue = NULL;
    while (k->n_parts > 0)
        remove_part(k, &k->parts[0]);
    assert(k->held == 0);
    once__incoming_drop(&k->ready);
    k->quiet_until = 0;
}

/* ---- Messages ---------------------------------------------------------------- */

static void take_headers(struct once__incoming *in, const rd_kafka_message_t *m)
{
    rd_kafka_headers_t *headers = NULL;
    const char *name;
    const void *value;
    size_t size, i;

    if (rd_kafka_message_headers(m, &headers) != RD_KAFKA_RESP_ERR_NO_ERROR)
        return;
    for (i = 0; rd_kafka_header_get_all(headers, i, &name, &value, &size) ==
                RD_KAFKA_RESP_ERR_NO_ERROR;
         i++) {
        if (strcasecmp(name, ONCE__HEADER_ID) == 0)
            once__incoming_id(in, value, size);
        else if (strcasecmp(name, ONCE__HEADER_TYPE) == 0)
            once__incoming_type(in, value, size);
        else
            once__incoming_header(in, name, strlen(name), value, size);
    }
}

/* Its place is the id of a message that has none. */
static void take_place(const struct once__kafka *k, struct once__incoming *in,
                       const rd_kafka_message_t *m)
{
    char id[ONCE__KAFKA_TOPIC_MAX + 40];
    int n = snprintf(id, sizeof(id), "%s/%" PRId32 "/%" PRId64, k->topic,
                     m->partition, m->offset);

    if (!in->seen_id)
        once__incoming_id(in, id, (size_t)n);
}

/* NULL: no memory. */
static struct once__incoming *read_message(const struct once__kafka *k,
                                           const rd_kafka_message_t *m)
{
    struct once__incoming *in = once__incoming_new();

    if (in == NULL)
        return NULL;
    in->d.tag = (uint64_t)m->offset;
    take_headers(in, m);
    take_place(k, in, m);
    if (m->key != NULL)
        once__incoming_header(in, ONCE__HEADER_KEY, strlen(ONCE__HEADER_KEY),
                              m->key, m->key_len);
    if (m->payload == NULL)
        once__incoming_flaw(in, "it has no body: it deletes its key");
    once__incoming_body(in, m->payload, m->len, k->o.body_max);
    if (once__incoming_finish(in))
        return in;
    once__incoming_free(in);
    return NULL;
}

/* A message of a partition that is ours, and which did not come before. */
static void take_message(struct once__kafka *k, const rd_kafka_message_t *m)
{
    struct once__kafka_part *p = part_of(k, m->partition);
    struct once__incoming *in;

    if (p == NULL || m->offset < p->next)
        return;
    if (m->offset > OFFSET_MOST) {
        k->refused = "a broker sent a record with an offset near 2^63";
        k->down = 1;
        return;
    }
    in = read_message(k, m);
    if (in == NULL) {
        k->down = 1;
        return;
    }
    in->connection = p->serial;
    in->d.redelivered = m->offset < p->before;
    p->next = m->offset + 1;
    once__incoming_push(&k->ready, in);
}

static void say_over(const struct once__kafka *k,
                     const struct once__kafka_part *p, int64_t first)
{
    char text[240];

    (void)snprintf(text, sizeof(text),
                   "kafka: ALARM: partition %" PRId32 " has no offset %" PRId64
                   " any more (was its log cut, or the topic made again?): it "
                   "begins over at its first, %" PRId64,
                   p->id, p->next, first);
    if (k->o.log != NULL)
        k->o.log(k->o.user, text);
}

/* Commits that a partition begins at its first message, with a mark that says of
 * all we had of it that it may have been handed out. */
static rd_kafka_resp_err_t commit_first(struct once__kafka *k,
                                        const struct once__kafka_part *p,
                                        int64_t first)
{
    rd_kafka_resp_err_t rc =
        commit_once(k, p->id, first, p->next > p->before ? p->next : p->before);

    if (rc == RD_KAFKA_RESP_ERR_NO_ERROR)
        say_over(k, p, first);
    return rc;
}

/*
 * The log of a partition does not have the offset that comes next: it was cut
 * after a leader was lost, or its topic was made again, or what is old was
 * deleted. Offsets that we know may belong to other messages now, so it begins
 * over. All deliveries are cancelled, and connect() begins there. Others that
 * had the same fate are looked for, so that the group changes once for all.
 */
static void begin_over(struct once__kafka *k, int32_t id)
{
    rd_kafka_resp_err_t rc = RD_KAFKA_RESP_ERR_NO_ERROR;
    struct once__kafka_part *p;
    int64_t first, end;
    size_t i;

    k->down = 1;
    for (i = k->n_parts; i > 0 && rc == RD_KAFKA_RESP_ERR_NO_ERROR; i--) {
        p = &k->parts[i - 1];
        rc = rd_kafka_query_watermark_offsets(k->rk, k->topic, p->id, &first,
                                              &end, (int)k->o.timeout_ms);
        if (rc != RD_KAFKA_RESP_ERR_NO_ERROR ||
            (p->id != id &&
             (p->next == 0 || (p->next >= first && p->next <= end))))
            continue;
        rc = commit_first(k, p, first);
        if (rc == RD_KAFKA_RESP_ERR_NO_ERROR)
            remove_part(k, p); /* its old offset is not committed at the end */
    }
    once__kafka_note(k, rc); /* what was not done is found after connect() */
}

void once__kafka_take(struct once__kafka *k, rd_kafka_message_t *m)
{
    if (m == NULL)
        return;
    if (m->err == RD_KAFKA_RESP_ERR_NO_ERROR)
        take_message(k, m);
    else if (m->err == RD_KAFKA_RESP_ERR__AUTO_OFFSET_RESET)
        begin_over(k, m->partition);
    else
        once__kafka_note(k, m->err);
    rd_kafka_message_destroy(m);
}

void once__kafka_serve(struct once__kafka *k, int wait_ms)
{
    once__kafka_take(k, rd_kafka_consumer_poll(k->rk, wait_ms));
}

void *once__kafka_beat(void *user)
{
    struct once__kafka *k = user;

    (void)pthread_mutex_lock(&k->lock);
    while (!k->stop) {
        if (k->rk != NULL && !k->down)
            once__kafka_serve(k, 0);
        once__cond_until(&k->wake, &k->lock, once__steady_ms() + BEAT_MS);
    }
    (void)pthread_mutex_unlock(&k->lock);
    return NULL;
}
