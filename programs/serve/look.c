/* SPDX-License-Identifier: Apache-2.0 */
/*
 * look.c - what can be asked of the server itself: /v1/health, /v1/route, and
 * /metrics in the text format of Prometheus.
 *
 * It shows no key, no scope, no path and no fingerprint.
 */
#include "programs/serve/serve.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/metrics.h"

/* ---- Health, and the limits of a route ------------------------------------ */

enum MHD_Result serve_say_health(struct serve_call *k)
{
    const struct serve *s = k->serve;

    return serve_say(k, MHD_HTTP_OK,
                     json_pack("{s:s, s:[i], s:[ss], s:I}", "version",
                               ONCE_VERSION, "protocol", 1, "features", "call",
                               "route", "open", (json_int_t)s->n_open),
                     (once_bytes){NULL, 0});
}

void serve_route_head(struct serve_call *k)
{
    k->route = serve_route_of(k);
}

enum MHD_Result serve_route_say(struct serve_call *k)
{
    const struct serve_route *r = k->route;

    return serve_say(k, MHD_HTTP_OK,
                     json_pack("{s:s, s:I, s:I, s:I, s:I, s:I}", "do", "none",
                               "max_request", (json_int_t)r->max_request,
                               "max_response", (json_int_t)r->max_response,
                               "run_ms", (json_int_t)r->run_ms, "lease_ms",
                               (json_int_t)r->lease_ms, "wait_ms",
                               (json_int_t)r->wait_ms),
                     (once_bytes){NULL, 0});
}

/* ---- What callers were told ----------------------------------------------- */

void serve_tell(struct serve_route *r, const char *status)
{
    int i;

    for (i = 1; r != NULL && i < ONCE__STATUS_COUNT; i++)
        if (strcmp(status, once__status_text(i)) == 0)
            r->label->told[i]++;
}

/* ---- Metrics -------------------------------------------------------------- */

struct page {
    struct once__metrics_text text;
    const struct serve *s;
    once_bytes store;
};

static void put(void *user, const char *text, size_t size)
{
    (void)fwrite(text, 1, size, user);
}

/* All routes of one label are one series: a program may make up many. */
static void put_told(struct page *p, const struct serve_label *label,
                     int status)
{
    once_bytes labels[] = {p->store, once__text(label->name),
                           once__text(once__status_text(status))};

    once__metrics_value(&p->text, labels, label->told[status]);
}

static void put_requests(struct page *p)
{
    size_t n;
    int i;

    once__metrics_family(&p->text, &once__families[ONCE__FAMILY_REQUESTS]);
    for (i = 1; i < ONCE__STATUS_COUNT; i++) {
        put_told(p, &p->s->unnamed, i);
        put_told(p, &p->s->of_calls, i);
        for (n = 0; n < p->s->n_named; n++)
            put_told(p, &p->s->named[n].label, i);
    }
}

/* X(family, the value: of `t`, the engine's statistics) */
#define COUNTS(X)                                                              \
    X(IN_FLIGHT, t->live)                                                      \
    X(WAITING, t->waiting)                                                     \
    X(QUEUED, t->queued)                                                       \
    X(STORE_UP, t->up)                                                         \
    X(STORE_INCARNATION, t->incarnation)                                       \
    X(OPERATIONS, t->operations)                                               \
    X(BATCHES, t->batches)                                                     \
    X(UNANSWERED, t->unknown)                                                  \
    X(REPEATED, t->repeated)                                                   \
    X(BUSY, t->busy)                                                           \
    X(CORRUPT, t->corrupt)                                                     \
    X(ROLLBACKS, t->rollbacks)                                                 \
    X(RENEWED, t->renewed)                                                     \
    X(REAPED, t->reaped)                                                       \
    X(FORGOTTEN, t->forgotten)                                                 \
    X(SWEEP_STOPPED, t->late)

static void put_counts(struct page *p, const once_stats *t)
{
#define PUT(family, value)                                                     \
    once__metrics_family(&p->text, &once__families[ONCE__FAMILY_##family]);    \
    once__metrics_value(&p->text, &p->store, value);
    COUNTS(PUT)
#undef PUT
}

static void put_times(struct page *p, const once_stats *t)
{
    uint64_t now = cli_now_ms();
    const struct {
        int family;
        uint64_t ms;
    } all[] = {
        {ONCE__FAMILY_OLDEST_ATTEMPT,
         t->oldest_ms > 0 ? now - t->oldest_ms : 0},
        {ONCE__FAMILY_SWEEP_LAST,
         t->swept_ms != UINT64_MAX ? now - t->swept_ms : 0},
        {ONCE__FAMILY_STORE_GAP_UNTIL, t->gap_until_ms},
        {ONCE__FAMILY_OLDEST_INDETERMINATE, t->oldest_indeterminate_ms},
    };
    size_t i;

    for (i = 0; i < sizeof(all) / sizeof(all[0]); i++) {
        once__metrics_family(&p->text, &once__families[all[i].family]);
        once__metrics_ms(&p->text, &p->store, all[i].ms);
    }
}

static void put_records(struct page *p, const once_stats *t)
{
    once_bytes labels[2] = {p->store};

    if (!t->counted)
        return;
    once__metrics_family(&p->text, &once__families[ONCE__FAMILY_RECORDS]);
    labels[1] = once__text("claimed");
    once__metrics_value(&p->text, labels, t->claimed);
    labels[1] = once__text("dispatched");
    once__metrics_value(&p->text, labels, t->dispatched);
    labels[1] = once__text("indeterminate");
    once__metrics_value(&p->text, labels, t->indeterminate);
}

static void put_store(struct page *p, const once_stats *t)
{
    once_bytes labels[] = {p->store, p->store,
                           once__text(t->durable ? "true" : "false")};

    once__metrics_family(&p->text, &once__families[ONCE__FAMILY_STORE_INFO]);
    once__metrics_value(&p->text, labels, 1);
    once__metrics_family(&p->text,
                         &once__families[ONCE__FAMILY_BATCH_DURATION]);
    once__metrics_histogram(&p->text, &p->store, &once__store_buckets,
                            t->latency, t->apply_us);
}

/* What only this server has. */
static void put_own(struct page *p)
{
    static const struct once__family own[] = {
        {"once_serve_open", ONCE__GAUGE, "store",
         "Exchanges whose handlers run, or whose claims are under way."},
        {"once_serve_connections", ONCE__GAUGE, "store",
         "Connections of middlewares."},
        {"once_serve_buffered_bytes", ONCE__GAUGE, "store",
         "Bytes of answers in memory, of --buffers."},
    };
    const uint64_t values[] = {p->s->n_open, p->s->connections, p->s->buffered};
    size_t i;

    for (i = 0; i < 3; i++) {
        once__metrics_family(&p->text, &own[i]);
        once__metrics_value(&p->text, &p->store, values[i]);
    }
}

enum MHD_Result serve_say_metrics(struct serve_call *k)
{
    const struct serve *s = k->serve;
    char *out = NULL;
    size_t size = 0;
    FILE *to = open_memstream(&out, &size);
    struct page p = {.text = {.put = put, .user = to}, .s = s};
    once_stats t;

    if (to == NULL)
        return MHD_NO;
    p.store = (once_bytes){s->cli->store, strcspn(s->cli->store, ":")};
    once_engine_stats(s->engine, &t);
    put_requests(&p);
    put_counts(&p, &t);
    put_times(&p, &t);
    put_records(&p, &t);
    put_store(&p, &t);
    put_own(&p);
    once__metrics_end(&p.text);
    if (fclose(to) != 0) {
        free(out);
        return MHD_NO;
    }
    return serve_send(k, MHD_HTTP_OK, once__metrics_content_type(0), out, size);
}
