/* SPDX-License-Identifier: Apache-2.0 */
/*
 * open.c - exchanges between their begin and their end, by the id that the
 * middleware has drawn.
 *
 *    CLAIMS --run--> RUNS --end, broken, run_ms--> ENDS --> freed
 *       |              +---- its process has died ------------^
 *       +---- anything but run -----------------------------> freed
 *
 * The ids are kept in trees and not hashed: clients choose them.
 */
#include "programs/serve/serve.h"

#include <search.h>
#include <stdlib.h>
#include <string.h>

/* An id that was abandoned, and until when it is refused. */
struct serve_gone {
    uint8_t id[ONCE_TOKEN_SIZE]; /* first */
    struct serve_gone *next;
    uint64_t until_ms;
};

enum { GONE_MAX = 1000000 };

/* ---- Exchanges ------------------------------------------------------------ */

static int by_open_id(const void *a, const void *b)
{
    const struct serve_open *x = a, *y = b;

    return memcmp(x->id, y->id, sizeof(x->id));
}

struct serve_open *serve_open_new(struct serve_call *k)
{
    struct serve_open *o = calloc(1, sizeof(*o));

    if (o == NULL)
        return NULL;
    o->wake.serve = k->serve;
    memcpy(o->id, k->id, sizeof(o->id));
    o->route = serve_route_hold(k->route);
    o->run_ms = k->run_ms;
    o->until_ms = once__steady_ms() + k->answer_ms;
    o->owner = k->owner;
    o->owner->uses++;
    serve_link_join(&o->owner->open, &o->of_owner);
    o->x = k->x;
    k->x = NULL;
    o->attempt = k->attempt;
    k->attempt = NULL;
    o->request = k->request;
    o->logged = k->logged;
    k->logged = NULL;
    o->call = k;
    k->open = o;
    return o;
}

int serve_open_enter(struct serve_open *o)
{
    struct serve *s = o->wake.serve;

    if (!serve_due_reserve(s) || tsearch(o, &s->ids, by_open_id) == NULL)
        return 0;
    o->known = 1;
    s->n_open++;
    serve_due_add(o);
    return 1;
}

struct serve_open *serve_open_find(const struct serve *s,
                                   const uint8_t id[ONCE_TOKEN_SIZE])
{
    struct serve_open key;
    void *const *at;

    memcpy(key.id, id, sizeof(key.id));
    at = tfind(&key, &s->ids, by_open_id);
    return at != NULL ? *at : NULL;
}

void serve_open_run(struct serve_open *o)
{
    serve_due_remove(o);
    o->state = SERVE_RUNS;
    o->until_ms = once__steady_ms() + o->run_ms;
    serve_due_add(o);
}

void serve_open_token(const struct serve_open *o,
                      char out[1 + ONCE_EXCHANGE_TOKEN])
{
    const once_record *r;
    struct once__token t;

    if (o->attempt == NULL) {
        once_exchange_token(o->x, out);
        return;
    }
    r = once_attempt_record(o->attempt);
    t = (struct once__token){
        .fence = r->fence, .attempt = r->attempt, .doubt = r->doubt};
    memcpy(t.name, o->request.name, sizeof(t.name));
    memcpy(t.fingerprint, o->request.fingerprint, sizeof(t.fingerprint));
    memcpy(t.id, o->id, sizeof(t.id));
    out[0] = SERVE_CALL_TOKEN;
    once__token_write(&t, ONCE__TOKEN_CALL, out + 1);
}

void serve_open_leave(struct serve_open *o)
{
    struct serve *s = o->wake.serve;

    serve_due_remove(o);
    if (!o->known)
        return;
    (void)tdelete(o, &s->ids, by_open_id);
    o->known = 0;
    s->n_open--;
}

void serve_open_free(struct serve_open *o)
{
    if (o == NULL)
        return;
    serve_open_leave(o);
    serve_link_part(&o->of_owner);
    serve_owner_drop(o->wake.serve, o->owner);
    if (o->call != NULL)
        o->call->open = NULL;
    once_exchange_free(o->x);
    once_attempt_free(o->attempt);
    serve_route_drop(o->route);
    free(o->logged);
    free(o);
}

static void released(once_attempt *a, int rc, void *user)
{
    (void)rc;
    (void)user;
    once_attempt_free(a);
}

void serve_open_release(struct serve_open *o)
{
    once_attempt *a = o->attempt;

    if (a == NULL) {
        once_exchange_abandon(o->x);
        return;
    }
    o->attempt = NULL;
    if (once_release_start(a, ONCE_REASON_NOT_SENT, released, NULL) != ONCE_OK)
        once_attempt_free(a);
}

void serve_open_stop(struct serve_open *o)
{
    if (o->attempt != NULL)
        once_attempt_cancel(o->attempt);
    else
        once_exchange_cancel(o->x);
}

static int by_gone_id(const void *a, const void *b)
{
    return memcmp(a, b, ONCE_TOKEN_SIZE);
}

void serve_gone_turn(struct serve *s)
{
    uint64_t now = once__steady_ms();
    struct serve_gone *g;

    while ((g = s->first_gone) != NULL && g->until_ms <= now) {
        s->first_gone = g->next;
        if (g->next == NULL)
            s->last_gone = &s->first_gone;
        (void)tdelete(g, &s->gone, by_gone_id);
        s->n_gone--;
        free(g);
    }
}

/* ---- What was abandoned ---------------------------------------------------- */

int serve_gone_note(struct serve *s, const uint8_t id[ONCE_TOKEN_SIZE])
{
    struct serve_gone *g;

    if (serve_gone_is(s, id))
        return 1;
    g = s->n_gone < GONE_MAX ? calloc(1, sizeof(*g)) : NULL;
    if (g == NULL)
        return 0;
    memcpy(g->id, id, sizeof(g->id));
    g->until_ms = once__steady_ms() + SERVE_ABANDONED_MS;
    if (tsearch(g, &s->gone, by_gone_id) == NULL) {
        free(g);
        return 0;
    }
    *s->last_gone = g;
    s->last_gone = &g->next;
    s->n_gone++;
    return 1;
}

int serve_gone_is(const struct serve *s, const uint8_t id[ONCE_TOKEN_SIZE])
{
    return tfind(id, &s->gone, by_gone_id) != NULL;
}

/* ---- The end ---------------------------------------------------------------- */

/* The records are left as they are: the next server takes the answers. */
void serve_open_clear(struct serve *s)
{
    struct serve_open *o;
    struct serve_gone *g;

    while (s->ids != NULL) {
        o = *(struct serve_open **)s->ids; /* a node begins with its key */
        serve_open_free(o);
    }
    while ((g = s->first_gone) != NULL) {
        s->first_gone = g->next;
        (void)tdelete(g, &s->gone, by_gone_id);
        free(g);
    }
    free(s->due);
    s->due = NULL;
    s->n_due = s->due_room = 0;
}
