/* SPDX-License-Identifier: Apache-2.0 */
/*
 * client.c - a client: its options, its clocks, its file, and what is asked
 * about the file. Sending is send.c's.
 *
 * It refuses options that make no sense before it touches the file, and keeps
 * no state outside the handle: a program may have several clients.
 */
#include "client/handle.h"

#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <time.h>

#include "base/error.h"

/* ---- The system's clocks ----------------------------------------------- */

static uint64_t clock_ms(clockid_t id)
{
    struct timespec t;

    (void)clock_gettime(id, &t);
    return (uint64_t)t.tv_sec * 1000u + (uint64_t)t.tv_nsec / 1000000u;
}

static uint64_t system_clock(void *user)
{
    (void)user;
    return clock_ms(CLOCK_MONOTONIC);
}

static uint64_t system_wall(void *user)
{
    (void)user;
    return clock_ms(CLOCK_REALTIME);
}

static int system_pause(void *user, uint64_t ms)
{
    struct timespec t = {(time_t)(ms / 1000), (long)(ms % 1000) * 1000000};

    (void)user;
    while (nanosleep(&t, &t) < 0)
        ; /* a signal */
    return 0;
}

/* Pauses only: without random numbers they are merely the same. */
static void system_random(void *user, void *out, size_t size)
{
    (void)user;
    if (getrandom(out, size, 0) < 0)
        memset(out, 0x5a, size);
}

/* ---- Opening ----------------------------------------------------------- */

static const once_client_options defaults = {
    .deadline_ms = 60000,
    .attempt_ms = 15000,
    .connect_ms = 5000,
    .backoff_ms = 200,
    .backoff_max_ms = 10000,
    .attempts_max = 1000,
    .breaker_failures = 10,
    .breaker_ms = 5000,
    .busy_ms = 5000,
    .response_max = (size_t)1 << 20,
    .horizon_ms = UINT64_C(82800000),
    .clock = system_clock,
    .wall = system_wall,
    .pause = system_pause,
    .random = system_random,
};

#define DEFAULT(field)                                                         \
    do {                                                                       \
        if (!o->field)                                                         \
            o->field = defaults.field;                                         \
    } while (0)

static int set_options(once_client *c, const once_client_options *given,
                       once_error *err)
{
    once_client_options *o = &c->options;

    if (given != NULL) {
        if (given->size < sizeof(size_t) || given->size > sizeof(*o))
            return once__fail(err, ONCE_EINVAL,
                              "options: size is not set, or of a newer header");
        memcpy(o, given, given->size);
    }
    o->size = sizeof(*o);
    DEFAULT(deadline_ms);
    DEFAULT(attempt_ms);
    DEFAULT(connect_ms);
    DEFAULT(backoff_ms);
    DEFAULT(backoff_max_ms);
    DEFAULT(attempts_max);
    DEFAULT(breaker_failures);
    DEFAULT(breaker_ms);
    DEFAULT(busy_ms);
    DEFAULT(response_max);
    DEFAULT(horizon_ms);
    DEFAULT(clock);
    DEFAULT(wall);
    DEFAULT(pause);
    DEFAULT(random);
    if (o->deadline_ms > ONCE_CLIENT_DEADLINE_MAX_MS ||
        o->attempt_ms > ONCE_CLIENT_DEADLINE_MAX_MS ||
        o->connect_ms > ONCE_CLIENT_DEADLINE_MAX_MS ||
        o->backoff_ms > ONCE_CLIENT_DEADLINE_MAX_MS ||
        o->backoff_max_ms > ONCE_CLIENT_DEADLINE_MAX_MS ||
        o->breaker_ms > ONCE_CLIENT_DEADLINE_MAX_MS || o->busy_ms > 600000)
        return once__fail(err, ONCE_EINVAL,
                          "options: a time is over %u ms, or busy_ms over "
                          "600000",
                          ONCE_CLIENT_DEADLINE_MAX_MS);
    if (o->response_max > ONCE_CLIENT_RESPONSE_MAX)
        return once__fail(err, ONCE_EINVAL, "options: response_max over %zu",
                          ONCE_CLIENT_RESPONSE_MAX);
    return ONCE_OK;
}

int once_client_open(const char *path, const once_client_options *options,
                     once_error *err, once_client **out)
{
    once_client *c = calloc(1, sizeof(*c));
    int rc, curl = 0;

    if (c == NULL)
        return once__fail(err, ONCE_ENOMEM, "client: out of memory");
    (void)pthread_mutex_init(&c->lock, NULL);
    rc = set_options(c, options, err);
    if (rc != ONCE_OK)
        goto out;
    if (c->options.ca_file != NULL) {
        c->ca_file = strdup(c->options.ca_file);
        c->options.ca_file = NULL;
    }
    curl = once__transfer_start();
    if (!curl || (options != NULL && options->ca_file != NULL && !c->ca_file)) {
        rc = once__fail(err, ONCE_ENOMEM, "client: out of memory");
        goto out;
    }
    c->breaker.failures = c->options.breaker_failures;
    c->breaker.open_ms = c->options.breaker_ms;
    c->breaker.probe_ms = c->options.attempt_ms + c->options.connect_ms;
    rc = once__orders_open(path, c->options.busy_ms, err, &c->orders);
    if (rc == ONCE_OK) {
        *out = c;
        return ONCE_OK;
    }
out:
    if (curl)
        once__transfer_stop();
    (void)pthread_mutex_destroy(&c->lock);
    free(c->ca_file);
    free(c);
    return rc;
}

void once_client_close(once_client *c)
{
    if (c == NULL)
        return;
    while (c->n_idle > 0)
        once__transfer_drop(c->idle[--c->n_idle]);
    once__orders_close(c->orders);
    (void)pthread_mutex_destroy(&c->lock);
    free(c->ca_file);
    free(c);
    once__transfer_stop();
}

/* ---- The file ---------------------------------------------------------- */

static int show(const struct once__order *o, once_client_each *each, void *user)
{
    once_client_order out = {
        .size = sizeof(out),
        .group = o->group,
        .order = o->order,
        .state = o->state,
        .reason = o->reason,
        .attempts = o->attempts,
        .doubt = o->doubt,
        .created_ms = o->created_ms,
        .sent_ms = o->sent_ms,
        .method = o->method,
        .url = o->url,
    };

    return once__client_hash(o->key, out.key_hash) == ONCE_OK ? each(user, &out)
                                                              : ONCE_ENOMEM;
}

int once_client_resume(once_client *c, once_client_each *each, void *user,
                       once_error *err)
{
    int64_t id = 0, last = 0;
    int shown = 0;
    int rc = once__orders_last(c->orders, &last, err);

    while (rc == ONCE_OK) {
        struct once__order o = {0};

        rc = once__orders_next(c->orders, id, last, err, &o);
        if (rc != ONCE_OK)
            break;
        id = o.id;
        shown++;
        rc = show(&o, each, user) != 0 ? ONCE_FREE : ONCE_OK;
        once__order_clear(&o);
    }
    return rc < 0 ? rc : shown;
}

int once_client_forget(once_client *c, const char *group, once_bytes order,
                       int force, once_error *err)
{
    int rc = once__group_check(group, order, err);

    if (rc != ONCE_OK)
        return rc;
    return once__orders_forget(c->orders, group != NULL ? group : "default",
                               order, force, err);
}

int once_client_purge(once_client *c, uint64_t older_ms, uint64_t *purged,
                      once_error *err)
{
    uint64_t at = c->options.wall(c->options.user), n = 0;
    int rc;

    rc = once__orders_purge(c->orders, at > older_ms ? at - older_ms : 0, &n,
                            err);
    if (purged != NULL)
        *purged = n;
    return rc;
}

const char *once_client_text(int reason)
{
    switch (reason) {
#define TEXT(name, number, text)                                               \
    case ONCE_CLIENT_##name:                                                   \
        return text;
        ONCE_CLIENT_REASONS(TEXT)
#undef TEXT
    default:
        return "no such reason";
    }
}
