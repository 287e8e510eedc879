/* SPDX-License-Identifier: Apache-2.0 */
/*
 * receiver.c - one worker: takes deliveries of a broker, and acknowledges each
 * when its effect or its parked row is committed.
 *
 *    receive --> slot --+--> done, or parked                       acknowledge
 *                       +--> another copy is under way, or the     wait in the
 *                       |    database refuses (rights, a full disk) slot
 *                       +--> the database is away: all slots are given back,
 *                            nothing is received until it answers
 *
 * Slots keep the order in which the broker delivered. With `keyed` a slot waits
 * for every earlier one of its key.
 *
 * It refuses to give back what waits in its slot: a broker counts that, and drops
 * the message when it has come too often.
 */
#include <openssl/evp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "messages/broker/broker.h"
#include "base/bytes.h"
#include "base/error.h"
#include "base/backoff.h"
#include "messages/tables/backend.h"
#include "messages/relay/consume.h"

enum {
    SLICE_MS = 100,   /* how long a receive may keep us from looking up */
    RETRY_MS = 1000,  /* between two tries at a database or a broker */
    REACH_MS = 10000, /* drain: how long a broker may be away at first */
    HOLD_MS = 1000,
    HOLD_MOST_MS = 30000
};

struct slot {
    struct once__delivery *d;
    uint64_t due_ms; /* not to be tried before */
    uint32_t tries;
};

struct work {
    struct once__receiver *w;
    struct once__consumer *c;
    struct slot *slots;
    size_t n, room;
    int connected, said; /* the broker is away: said once */
    int ever;            /* it was reached */
    int fruitless;       /* connected, and receive() has not answered since */
    uint64_t began_ms;
};

enum act { ACKNOWLEDGE, HOLD, STAY, GIVE_UP };

/* ---- Flaws ----------------------------------------------------------------- */

static once_bytes bytes_of(const char *text)
{
    return (once_bytes){text, text == NULL ? 0 : strlen(text)};
}

/*
 * A message that cannot be understood gets an id of its own: "#", or "#-" where
 * its body was not kept, and the SHA-256 of all that came. So a copy of it is the
 * same, and nothing else is. With `alone` a random number tells it from all
 * others.
 */
static int make_id(const once_message *m, int hollow, int alone,
                   char out[ONCE_ID_SIZE])
{
    const once_bytes parts[] = {bytes_of(m->id), bytes_of(m->key),
                                bytes_of(m->type), bytes_of(m->headers),
                                m->body};
    uint8_t sum[EVP_MAX_MD_SIZE], random[16] = {0};
    EVP_MD_CTX *md = EVP_MD_CTX_new();
    int good = md != NULL && EVP_DigestInit_ex(md, EVP_sha256(), NULL);
    size_t i, at = hollow ? 2 : 1;

    for (i = 0; good && i < sizeof(parts) / sizeof(parts[0]); i++)
        good = EVP_DigestUpdate(md, &parts[i].size, sizeof(parts[i].size)) &&
               EVP_DigestUpdate(md, parts[i].data, parts[i].size);
    if (good && alone)
        good = getrandom(random, sizeof(random), 0) == sizeof(random) &&
               EVP_DigestUpdate(md, random, sizeof(random));
    good = good && EVP_DigestFinal_ex(md, sum, NULL);
    EVP_MD_CTX_free(md);
    memcpy(out, "#-", 2);
    once__hex(sum, ONCE_FINGERPRINT_SIZE, out + at);
    return good;
}

static int fits(const once_message *part)
{
    return once__check_content(part, NULL) == ONCE_OK;
}

/* Only what a database takes; without `m`'s texts if `bare`. */
static void strip(const struct work *k, const once_message *m, int bare,
                  once_message *out)
{
    once_message part;

    *out = (once_message)ONCE_MESSAGE_INIT;
    out->consumer = k->c->o.consumer;
    if (m->body.size <= k->c->o.body_max)
        out->body = m->body;
    part = (once_message)ONCE_MESSAGE_INIT;
    part.key = m->key;
    if (fits(&part))
        out->key = m->key;
    part = (once_message)ONCE_MESSAGE_INIT;
    part.type = m->type;
    if (!bare && fits(&part))
        out->type = m->type;
    part = (once_message)ONCE_MESSAGE_INIT;
    part.headers = m->headers;
    if (!bare && fits(&part))
        out->headers = m->headers;
}

static int keep_as(struct work *k, const once_message *m, int alone,
                   const char *why)
{
    char id[ONCE_ID_SIZE];
    once_message bare;
    int outcome;

    strip(k, m, 0, &bare);
    if (!make_id(m, bare.body.size == 0, alone, id))
        return ONCE__AWAY;
    bare.id = id;
    outcome = once__keep(&k->w->hand, &bare, ONCE_PARKED_DEAD, 0, why);
    if (outcome != ONCE__UNFIT)
        return outcome;
    strip(k, m, 1, &bare);
    bare.id = id;
    return once__keep(&k->w->hand, &bare, ONCE_PARKED_DEAD, 0, why);
}

/* Two that came without an id may say the same and be two. A redelivered one is
 * the same as the one that is known. */
static int keep_flawed(struct work *k, const struct once__delivery *d,
                       const char *why)
{
    int outcome =
        keep_as(k, &d->m, d->m.id == NULL && d->m.body.size == 0, why);

    if (outcome != ONCE__BEFORE || d->m.id != NULL || d->redelivered)
        return outcome;
    return keep_as(k, &d->m, 1, why);
}

/* Why a delivery cannot be handled, in `room`; NULL: it can. */
static const char *flaw_of(const struct work *k, const struct once__delivery *d,
                           once_error *room)
{
    if (d->flaw != NULL)
        return d->flaw;
    if (d->m.id == NULL)
        return "it has no id";
    if (d->m.body.size > k->c->o.body_max) {
        (void)once__fail(room, ONCE_ELIMIT,
                         "body: over %u bytes; it was not kept",
                         k->c->o.body_max);
        return room->text;
    }
    if (once__check_name("id", d->m.id, room) != ONCE_OK ||
        once__check_content(&d->m, room) != ONCE_OK)
        return room->text;
    return NULL;
}

/* ---- One delivery ------------------------------------------------------------ */

static void count(struct work *k, int metric)
{
    once__count(&k->c->series, metric, 1);
}

/* What is done with a delivery whose message was parked, or could not be. */
static int act_on_kept(struct work *k, int outcome, int state)
{
    switch (outcome) {
    case ONCE__KEPT:
        once__consumer_count_kept(k->c, state);
        return ACKNOWLEDGE;
    case ONCE__BEFORE:
        count(k, ONCE__CONSUMER_REPEATED);
        return ACKNOWLEDGE;
    case ONCE__IN_FLIGHT:
        return HOLD;
    case ONCE__UNWILLING:
        return STAY;
    default:
        return GIVE_UP;
    }
}

static int keep_flaw(struct work *k, const struct once__delivery *d,
                     const char *why)
{
    count(k, ONCE__CONSUMER_FLAWED);
    return act_on_kept(k, keep_flawed(k, d, why), ONCE_PARKED_DEAD);
}

static once_message message_of(const struct work *k,
                               const struct once__delivery *d)
{
    once_message m = d->m;

    m.size = sizeof(m);
    m.consumer = k->c->o.consumer;
    m.attempt = 0;
    return m;
}

static int keep(struct work *k, const struct once__delivery *d, int state,
                uint64_t wait_ms, const char *why)
{
    once_message m = message_of(k, d);
    int outcome = once__keep(&k->w->hand, &m, state, wait_ms, why);

    if (outcome == ONCE__UNFIT)
        return keep_flaw(k, d, "the database does not take its text");
    return act_on_kept(k, outcome, state);
}

static int act_on(struct work *k, const struct once__delivery *d, int outcome,
                  const char *why)
{
    switch (outcome) {
    case ONCE__DONE:
        count(k, ONCE__CONSUMER_RUN);
        return ACKNOWLEDGE;
    case ONCE__BEFORE:
        count(k, ONCE__CONSUMER_REPEATED);
        return ACKNOWLEDGE;
    case ONCE__BEHIND:
        return keep(k, d, ONCE_PARKED_WAITING, 0, why);
    case ONCE__FAILED:
        count(k, ONCE__CONSUMER_FAILED);
        return keep(k, d, ONCE_PARKED_WAITING, once__consumer_pause(k->c, 1),
                    why);
    case ONCE__UNKNOWN:
        count(k, ONCE__CONSUMER_FAILED);
        return keep(k, d, ONCE_PARKED_INDETERMINATE, 0, why);
    case ONCE__DEAD:
        count(k, ONCE__CONSUMER_FAILED);
        return keep(k, d, ONCE_PARKED_DEAD, 0, why);
    case ONCE__MISMATCH:
        count(k, ONCE__CONSUMER_MISMATCH);
        return keep(k, d, ONCE_PARKED_DEAD, 0, why);
    case ONCE__OUTSIDE:
        count(k, ONCE__CONSUMER_OUTSIDE);
        return keep(k, d, ONCE_PARKED_DEAD, 0, why);
    case ONCE__UNFIT:
        return keep_flaw(k, d, "the database does not take its text");
    case ONCE__IN_FLIGHT:
        return HOLD;
    case ONCE__UNWILLING:
        return STAY;
    default:
        return GIVE_UP;
    }
}

static int take(struct work *k, const struct once__delivery *d)
{
    once_message m = message_of(k, d);
    once_error room = {0, ""};
    const char *why = flaw_of(k, d, &room);
    int outcome;

    if (why != NULL)
        return keep_flaw(k, d, why);
    if (d->redelivered) {
        count(k, ONCE__CONSUMER_REDELIVERED);
        /* Not at once: if it kills us, its neighbours are parked by then. */
        return keep(k, d, ONCE_PARKED_WAITING, k->c->o.first_ms, "redelivered");
    }
    why = "";
    outcome = once__handle(&k->w->hand, &m, &why);
    return act_on(k, d, outcome, why);
}

/* ---- Slots -------------------------------------------------------------------- */

/* The broker's connection is gone, and with it all that was out. */
static void lose_broker(struct work *k, const once_error *err)
{
    once_error ignored = {0, ""};
    size_t i;

    if (!k->said)
        once__consumer_log(k->c, "the broker: %s", err->text);
    k->said = 1;
    k->connected = 0;
    for (i = 0; i < k->n; i++)
        (void)!k->w->ops->ack(k->w->broker, k->slots[i].d, ONCE__ACK_BACK,
                              &ignored);
    k->n = 0;
}

static void remove_slot(struct work *k, size_t i)
{
    memmove(&k->slots[i], &k->slots[i + 1],
            (k->n - i - 1) * sizeof(k->slots[0]));
    k->n--;
}

static void acknowledge(struct work *k, size_t i)
{
    once_error err = {0, ""};
    struct once__delivery *d = k->slots[i].d;

    remove_slot(k, i);
    if (k->w->ops->ack(k->w->broker, d, ONCE__ACK_TAKEN, &err) != ONCE_OK)
        lose_broker(k, &err);
}

static void hold(struct work *k, size_t i)
{
    struct slot *s = &k->slots[i];
    once_error err = {0, ""};

    s->tries++;
    s->due_ms =
        once__steady_ms() + once__backoff(HOLD_MS, HOLD_MOST_MS, s->tries);
    if (k->w->ops->ack(k->w->broker, s->d, ONCE__ACK_STILL_AT, &err) != ONCE_OK)
        lose_broker(k, &err);
}

static void give_back_slots(struct work *k)
{
    once_error err = {0, ""};
    size_t i;

    for (i = 0; i < k->n; i++)
        if (k->w->ops->ack(k->w->broker, k->slots[i].d, ONCE__ACK_BACK, &err) !=
            ONCE_OK)
            err.text[0] = '\0'; /* then it goes back with the connection */
    k->n = 0;
}

/* Everything goes back, also what the broker has sent ahead. Where order counts
 * it goes back as one, with the connection, and not one by one. */
static void give_back_all(struct work *k)
{
    if (k->c->o.keyed && k->connected)
        k->w->ops->abandon(k->w->broker);
    give_back_slots(k);
    if (!k->c->o.keyed && k->connected)
        k->w->ops->abandon(k->w->broker);
    k->connected = 0;
}

/* One of the first `n` slots has the same key, and goes first. */
static int is_blocked(const struct work *k, size_t i, size_t n)
{
    const char *key = k->slots[i].d->m.key;
    size_t j;

    for (j = 0; k->c->o.keyed && key != NULL && j < n; j++)
        if (k->slots[j].d->m.key != NULL &&
            strcmp(k->slots[j].d->m.key, key) == 0)
            return 1;
    return 0;
}

static int is_plain(const struct work *k, const struct slot *s)
{
    once_error room = {0, ""};

    return s->tries == 0 && !s->d->redelivered &&
           flaw_of(k, s->d, &room) == NULL;
}

/* How many slots from `i` on may go into one transaction. */
static size_t count_plain(const struct work *k, size_t i)
{
    size_t n = 0;

    if (k->c->o.batch == 1)
        return 0;
    while (i + n < k->n && n < k->c->o.batch && is_plain(k, &k->slots[i + n]) &&
           !is_blocked(k, i + n, i))
        n++;
    return n;
}

/* 1: the slots are done and acknowledged. */
static int do_batch(struct work *k, size_t i, size_t n)
{
    once_message *m = calloc(n, sizeof(*m));
    size_t j, ours = 0;
    int done;

    if (m == NULL)
        return 0;
    for (j = 0; j < n; j++)
        m[j] = message_of(k, k->slots[i + j].d);
    done = once__handle_batch(&k->w->hand, m, n, &ours);
    free(m);
    if (!done)
        return 0;
    once__count(&k->c->series, ONCE__CONSUMER_RUN, ours);
    once__count(&k->c->series, ONCE__CONSUMER_REPEATED, n - ours);
    /* The last one first: where the broker keeps but the first that is not done,
     * one answer of it is enough for all. */
    for (j = n; j > 0 && k->connected; j--)
        acknowledge(k, i + j - 1);
    return 1;
}

/* The number of slots that are left of this one: 0 or 1; -1: the database is
 * away. */
static int do_slot(struct work *k, size_t i)
{
    switch (take(k, k->slots[i].d)) {
    case ACKNOWLEDGE:
        acknowledge(k, i);
        return 0;
    case HOLD:
        if (k->slots[i].tries == 0)
            count(k, ONCE__CONSUMER_IN_FLIGHT);
        hold(k, i);
        return 1;
    case STAY:
        hold(k, i);
        return 1;
    default:
        return -1;
    }
}

static void do_slots(struct work *k)
{
    size_t i = 0, alone = 0, n;

    while (i < k->n && k->connected && !atomic_load(&k->c->stop)) {
        int left;

        if (k->slots[i].due_ms > once__steady_ms() || is_blocked(k, i, i)) {
            i++;
            continue;
        }
        n = alone == 0 ? count_plain(k, i) : 0;
        if (n > 1 && do_batch(k, i, n))
            continue;
        if (n > 1)
            alone = n; /* once more, one by one */
        left = do_slot(k, i);
        if (left < 0) {
            give_back_all(k);
            once__consumer_sleep(k->c, once__steady_ms() + RETRY_MS);
            return;
        }
        i += (size_t)left;
        alone -= alone > 0;
    }
}

/* ---- The loop -------------------------------------------------------------------- */

static void not_reached(struct work *k, int rc, const once_error *err)
{
    if (!k->said)
        once__consumer_log(k->c, "the broker: %s", err->text);
    k->said = 1;
    if (k->ever)
        return;
    if (rc == ONCE_EOPEN ||
        (k->c->o.drain_ms > 0 && once__steady_ms() > k->began_ms + REACH_MS))
        once__consumer_fail(k->c, rc, err);
}

static int connect(struct work *k)
{
    once_error err = {0, ""};
    int rc = k->w->ops->connect(k->w->broker, &err);

    k->connected = rc == ONCE_OK;
    if (!k->connected) {
        not_reached(k, rc, &err);
        return 0;
    }
    k->ever = 1;
    k->fruitless = 1;
    return 1;
}

static void note_answer(struct work *k)
{
    k->fruitless = 0;
    if (k->said)
        once__consumer_log(k->c, "the broker answers again");
    k->said = 0;
}

/* One delivery into a slot; 0: none came. */
static int receive(struct work *k, uint32_t wait_ms)
{
    struct once__delivery *d = NULL;
    once_error err = {0, ""};

    if (k->w->ops->receive(k->w->broker, wait_ms, &d, &err) != ONCE_OK) {
        lose_broker(k, &err);
        return 0;
    }
    note_answer(k);
    if (d == NULL)
        return 0;
    count(k, ONCE__CONSUMER_RECEIVED);
    k->slots[k->n++] = (struct slot){d, 0, 0};
    return 1;
}

/* Up to a batch of new ones, beside those that wait. */
static void receive_some(struct work *k)
{
    size_t n = 0, most = k->room - k->n;

    if (most > k->c->o.batch)
        most = k->c->o.batch;
    if (most == 0) {
        once__consumer_sleep(k->c, once__steady_ms() + SLICE_MS);
        return;
    }
    while (n < most && k->connected && receive(k, n == 0 ? SLICE_MS : 0))
        n++;
}

static void note_idle(struct work *k)
{
    uint64_t since = atomic_load(&k->w->idle_ms);

    if (k->n > 0 || !k->connected)
        atomic_store(&k->w->idle_ms, 0);
    else if (since == 0)
        atomic_store(&k->w->idle_ms, once__steady_ms());
}

static void turn(struct work *k)
{
    if (!once__hand_connect(&k->w->hand)) {
        atomic_store(&k->w->idle_ms, 0);
        give_back_all(k);
        once__consumer_sleep(k->c, once__steady_ms() + RETRY_MS);
        return;
    }
    if (!k->connected && !connect(k)) {
        atomic_store(&k->w->idle_ms, 0);
        once__consumer_sleep(k->c, once__steady_ms() + RETRY_MS);
        return;
    }
    receive_some(k);
    if (!k->connected && k->fruitless) /* or it would connect without a pause */
        once__consumer_sleep(k->c, once__steady_ms() + RETRY_MS);
    note_idle(k);
    do_slots(k);
}

void *once__consumer_work(void *worker)
{
    struct once__receiver *w = worker;
    struct work k = {.w = w, .c = w->c, .room = once__consumer_room(w->c)};
    once_error err = {0, "out of memory"};

    k.began_ms = once__steady_ms();
    k.slots = calloc(k.room, sizeof(*k.slots));
    if (k.slots == NULL)
        once__consumer_fail(k.c, ONCE_ENOMEM, &err);
    while (!atomic_load(&k.c->stop))
        turn(&k);
    /* close() gives back the rest, in good order: not so a connection that is
     * cut, of which a broker may think for minutes that it handles what it has
     * been sent. Where order counts all of it goes back there, as one. */
    if (!k.c->o.keyed)
        give_back_slots(&k);
    free(k.slots);
    return NULL;
}
