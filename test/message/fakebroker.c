/* SPDX-License-Identifier: Apache-2.0 */
/* fakebroker.c - fakebroker.h: an array and a lock. */
#include "fakebroker.h"

#include <assert.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/error.h"

static struct fake queue[FAKE_MAX];
static size_t queue_n;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

void (*fake_judge)(const struct fake *f);
_Atomic int fake_fail_connect, fake_fail_receive, fake_fail_ack;
int fake_connect_code = ONCE_EAWAY;

struct connection {
    struct once__broker base;
    int up;
    struct out *outs; /* what was handed out and is not ended */
};

/* One delivery; its message points into itself. */
struct out {
    struct once__delivery d;
    struct out *next;
    struct fake copy;
    struct fake *of;
    const void *owner;
};

void fake_reset(void)
{
    memset(queue, 0, sizeof(queue));
    queue_n = 0;
    fake_judge = NULL;
    fake_fail_connect = fake_fail_receive = fake_fail_ack = 0;
    fake_connect_code = ONCE_EAWAY;
}

struct fake *fake_add(const char *id, const char *key, const char *body)
{
    struct fake *f;

    pthread_mutex_lock(&lock);
    assert(queue_n < FAKE_MAX);
    f = &queue[queue_n];
    memset(f, 0, sizeof(*f));
    (void)snprintf(f->id, sizeof(f->id), "%s", id == NULL ? "" : id);
    (void)snprintf(f->key, sizeof(f->key), "%s", key == NULL ? "" : key);
    (void)snprintf(f->body, sizeof(f->body), "%s", body);
    f->body_size = strlen(f->body);
    queue_n++;
    pthread_mutex_unlock(&lock);
    return f;
}

size_t fake_count(int state)
{
    size_t i, n = 0;

    pthread_mutex_lock(&lock);
    for (i = 0; i < queue_n; i++)
        n += queue[i].state == state;
    pthread_mutex_unlock(&lock);
    return n;
}

const struct fake *fake_at(size_t i)
{
    return &queue[i];
}

static int fails(_Atomic int *n)
{
    int left = atomic_load(n);

    return left > 0 && atomic_fetch_sub(n, 1) > 0;
}

static int fake_open(const char *url, const struct once__broker_options *o,
                     struct once__broker **out, once_error *err)
{
    extern const struct once__broker_ops fake_ops;
    struct connection *c = calloc(1, sizeof(*c));

    (void)url;
    (void)o;
    (void)err;
    assert(c != NULL);
    c->base.ops = &fake_ops;
    *out = &c->base;
    return ONCE_OK;
}

static void fake_abandon(struct once__broker *b)
{
    struct connection *c = (struct connection *)b;
    size_t i;

    c->up = 0;
    pthread_mutex_lock(&lock);
    for (i = 0; i < queue_n; i++)
        if (queue[i].state == FAKE_OUT && queue[i].owner == b) {
            queue[i].state = FAKE_QUEUED;
            queue[i].redelivered = 1;
        }
    pthread_mutex_unlock(&lock);
}

static void end_out(struct connection *c, struct out *o)
{
    struct out **at = &c->outs;

    while (*at != o)
        at = &(*at)->next;
    *at = o->next;
    free(o);
}

static void fake_close(struct once__broker *b)
{
    struct connection *c = (struct connection *)b;

    if (c == NULL)
        return;
    fake_abandon(b);
    while (c->outs != NULL)
        end_out(c, c->outs);
    free(c);
}

static int fake_connect(struct once__broker *b, once_error *err)
{
    struct connection *c = (struct connection *)b;

    if (c->up)
        return ONCE_OK;
    if (fails(&fake_fail_connect))
        return once__fail(err, fake_connect_code, "not now");
    c->up = 1;
    return ONCE_OK;
}

static const char *text_or_null(const char *text)
{
    return text[0] == '\0' ? NULL : text;
}

static struct once__delivery *deliver(struct fake *f, struct connection *owner)
{
    struct out *o = calloc(1, sizeof(*o));

    assert(o != NULL);
    f->state = FAKE_OUT;
    f->owner = owner;
    f->times++;
    o->copy = *f;
    o->of = f;
    o->owner = owner;
    o->next = owner->outs;
    owner->outs = o;
    o->d.m = (once_message)ONCE_MESSAGE_INIT;
    o->d.m.id = text_or_null(o->copy.id);
    o->d.m.key = text_or_null(o->copy.key);
    o->d.m.type = text_or_null(o->copy.type);
    o->d.m.headers = text_or_null(o->copy.headers);
    o->d.m.body = (once_bytes){o->copy.body, o->copy.body_size};
    o->d.redelivered = f->redelivered;
    o->d.flaw = f->flaw;
    return &o->d;
}

static int fake_receive(struct once__broker *b, uint32_t wait_ms,
                        struct once__delivery **out, once_error *err)
{
    struct connection *c = (struct connection *)b;
    uint32_t waited;
    size_t i;

    *out = NULL;
    if (!c->up || fails(&fake_fail_receive)) {
        fake_abandon(b);
        return once__fail(err, ONCE_EAWAY, "the connection was lost");
    }
    for (waited = 0; *out == NULL; waited += 5) {
        pthread_mutex_lock(&lock);
        for (i = 0; i < queue_n && *out == NULL; i++)
            if (queue[i].state == FAKE_QUEUED)
                *out = deliver(&queue[i], c);
        pthread_mutex_unlock(&lock);
        if (*out != NULL || waited >= wait_ms)
            break;
        (void)usleep(5000);
    }
    return ONCE_OK;
}

static int fake_ack(struct once__broker *b, struct once__delivery *d, int how,
                    once_error *err)
{
    struct connection *c = (struct connection *)b;
    struct out *o = (struct out *)d;
    struct fake *f = o->of;
    int lost = !c->up || f->owner != o->owner || f->state != FAKE_OUT;

    if (!lost && how == ONCE__ACK_TAKEN && fails(&fake_fail_ack)) {
        fake_abandon(b);
        lost = 1;
    }
    if (!lost && how == ONCE__ACK_TAKEN && fake_judge != NULL)
        fake_judge(f);
    pthread_mutex_lock(&lock);
    if (!lost && how == ONCE__ACK_STILL_AT) {
        f->still_at++;
    } else if (!lost && how == ONCE__ACK_BACK) {
        f->state = FAKE_QUEUED;
        f->redelivered = 1;
        f->given_back++;
    } else if (!lost) {
        f->state = FAKE_TAKEN;
    }
    pthread_mutex_unlock(&lock);
    if (how != ONCE__ACK_STILL_AT)
        end_out(c, o);
    return lost ? once__fail(err, ONCE_EAWAY, "the connection was lost")
                : ONCE_OK;
}

const struct once__broker_ops fake_ops = {
    .scheme = "fake",
    .knows_ids = 1,
    .open = fake_open,
    .close = fake_close,
    .connect = fake_connect,
    .abandon = fake_abandon,
    .receive = fake_receive,
    .ack = fake_ack,
};

static const struct once__broker_ops fake_target = {
    .scheme = "target",
    .open = fake_open,
    .close = fake_close,
    .connect = fake_connect,
};

const struct once__broker_ops *__wrap_once__broker_find(const char *url,
                                                        once_error *err);

const struct once__broker_ops *__wrap_once__broker_find(const char *url,
                                                        once_error *err)
{
    if (strncmp(url, "fake:", 5) == 0)
        return &fake_ops;
    if (strncmp(url, "target:", 7) == 0)
        return &fake_target;
    (void)once__fail(err, ONCE_EURL, "no target of this kind");
    return NULL;
}
