/* SPDX-License-Identifier: Apache-2.0 */
/*
 * known.c - a begin whose id is known already, of an exchange or of a call.
 *
 *    RUNS     it gets the same run
 *    CLAIMS   it takes the place of the call that waits
 *    ENDS     refused
 *
 * It refuses an id without "again", or with another request: a child with its
 * parent's generator of random numbers repeats ids. It refuses the process of
 * another user, which would get the run.
 */
#include "programs/serve/serve.h"

void serve_check_room(struct serve_call *k)
{
    const struct serve *s = k->serve;

    if (s->ending)
        serve_refuse(k, MHD_HTTP_SERVICE_UNAVAILABLE, "ending",
                     "The server is about to end: ask the next one.");
    else if (s->connections > SERVE_CONNECTIONS - SERVE_FOR_ENDS)
        serve_refuse(k, MHD_HTTP_SERVICE_UNAVAILABLE, "busy",
                     "There are %u connections, of %d: a middleware keeps few "
                     "idle ones.",
                     s->connections, SERVE_CONNECTIONS);
    else if (s->n_open >= s->max_open)
        serve_refuse(k, MHD_HTTP_SERVICE_UNAVAILABLE, "busy",
                     "%zu exchanges are open, which is --max-open: handlers "
                     "take long, or there are too few.",
                     s->n_open);
}

void serve_refuse_owner(struct serve_call *k)
{
    serve_refuse(k, MHD_HTTP_FORBIDDEN, "not-owner",
                 "Another user's process has begun it.");
}

enum MHD_Result serve_say_abandoned(struct serve_call *k)
{
    serve_refuse(k, MHD_HTTP_CONFLICT, "id-abandoned",
                 "This id was abandoned.");
    return serve_say_refused(k);
}

enum MHD_Result serve_say_late(struct serve_call *k)
{
    serve_refuse(k, MHD_HTTP_SERVICE_UNAVAILABLE, "store-unavailable",
                 "The store did not answer in time.");
    return serve_say_refused(k);
}

static enum MHD_Result refuse_id(struct serve_call *k)
{
    serve_refuse(
        k, MHD_HTTP_CONFLICT, "id-reused",
        "This id is another request's, or \"again\" is missing: is the "
        "source of random numbers that of a parent process?");
    return serve_say_refused(k);
}

/* Of the call that waits, if its connection has not ended. One that was woken goes
 * on already. */
static void take_place(struct serve_call *k, struct serve_open *o)
{
    struct serve_call *old = o->call;

    o->call = k;
    k->open = o;
    if (old == NULL)
        return;
    old->superseded = 1;
    old->open = NULL;
    if (!o->woken)
        serve_go_on(old);
}

int serve_known(
    struct serve_call *k,
    int (*same)(const struct serve_call *k, const struct serve_open *o),
    enum MHD_Result (*run)(struct serve_call *k, const struct serve_open *o),
    enum MHD_Result (*begun)(struct serve_call *k), enum MHD_Result *answer)
{
    struct serve_open *o = serve_open_find(k->serve, k->id);

    if (serve_gone_is(k->serve, k->id)) {
        *answer = serve_say_abandoned(k);
        return 1;
    }
    if (o == NULL)
        return 0;
    if (!serve_owner_may(k->owner, o->owner)) {
        serve_refuse_owner(k);
        *answer = serve_say_refused(k);
    } else if (!json_is_true(json_object_get(k->json, "again")) ||
               o->state == SERVE_ENDS || !same(k, o)) {
        *answer = refuse_id(k);
    } else if (o->state == SERVE_RUNS) {
        *answer = run(k, o);
    } else if (o->late && !o->woken) {
        *answer = serve_say_late(k);
    } else {
        take_place(k, o);
        *answer = o->woken ? begun(k) : serve_wait(k);
    }
    return 1;
}
