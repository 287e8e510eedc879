/* SPDX-License-Identifier: Apache-2.0 */
/*
 * probe.c - who was told "unknown" asks the service what became of the record,
 * and lets the store decide by RESOLVE (docs/http.md, `once_probe`).
 *
 *    claim: unknown --> asks --> "applied" --> RESOLVE --> claims once more
 *                         |                      |
 *                         +-- anything else      +-- not answered: ends
 *
 * The service answers from what it has executed of this record. The request
 * itself may still be under way then, and the owner's outcome, an operator's
 * decision and another gateway's probe may come before the RESOLVE or after it.
 * One rule more, beside those of world.c:
 *
 *    P1   a probe records only what has happened
 */
#include <assert.h>

#include "calls/core/machine.h"

#include "explore.h"

static void emit_one(struct search *s, const struct world *w, const char *what,
                     int who, int verb, int rc)
{
    emit(s, w, (struct step){what, who, verb, 0, rc});
}

/* The answer `rc` to a claim has come: is there something to ask about? */
void probe_offered(struct world *w, int who, int rc)
{
    struct try *t = &w->tries[who];

    if (rc == ONCE_UNKNOWN && w->left.probes > 0 && !t->probed &&
        w->row.state == ONCE_INDETERMINATE && !(t->role & ONCE_TAKEOVER))
        t->asks = w->row.fence;
}

int probe_decide(struct search *s, struct world *w, struct late call)
{
    int was = w->row.state, rc;

    if (search_config(s)->fence_ignored)
        call.fence = w->row.fence;
    rc = serve(s, w, -1, call, 0);
    if (rc == ONCE_OK && was == ONCE_INDETERMINATE && !w->happened)
        broken(s, "P1: a probe recorded what has not happened");
    return rc;
}

/* Planted: "not applied" is taken for a permission. */
static void frees(struct world *w, uint8_t fence)
{
    if (w->row.state == ONCE_INDETERMINATE && w->row.fence == fence)
        w->row.state = ONCE_ABSENT;
}

static void asks(struct search *s, const struct world *o, int who)
{
    const struct config *c = search_config(s);
    struct world w = *o;
    struct try *t = &w.tries[who];

    w.left.probes--;
    t->probed = 1;
    if (o->happened || c->any_record) {
        assert(w.executed + 1 < RESULTS_MAX);
        t->heard = ++w.executed; /* other bytes than the owner's answer */
        emit_one(s, &w, "asks the service: \"applied\"", who, 0, -1);
        return;
    }
    if (c->not_applied_frees)
        frees(&w, t->asks);
    t->asks = 0;
    emit_one(s, &w, "asks the service: nothing yet", who, 0, -1);
}

static struct late decision(const struct try *t)
{
    return (struct late){.verb = ONCE_OP_RESOLVE,
                         .fence = t->asks,
                         .kind = ONCE_SUCCESS,
                         .result = t->heard};
}

static int under_way(struct try *t, struct late call)
{
    if (t->n_late == LATE_MAX)
        return 0;
    t->late[t->n_late++] = call;
    return 1;
}

static void decides(struct search *s, const struct world *o, int who)
{
    const struct late call = decision(&o->tries[who]);
    struct world w = *o;
    struct try *t = &w.tries[who];
    int rc = probe_decide(s, &w, call);

    t->asks = t->heard = 0;
    t->told = ONCE_IN_FLIGHT; /* it has never been the owner */
    look_again(s, &w, who);
    emit_one(s, &w, "decides, and will claim once more:", who, call.verb, rc);
    w = *o;
    if (o->left.lost > 0 && under_way(t, call)) {
        w.left.lost--;
        emit_one(s, &w, "decides again while the first copy is under way", who,
                 call.verb, -1);
    }
    w = *o;
    t->asks = t->heard = 0;
    if (o->left.silent > 0 && under_way(t, call)) {
        w.left.silent--;
        emit_one(s, &w, "is out of patience, still under way is", who,
                 call.verb, -1);
    }
}

void probe(struct search *s, const struct world *o, int who)
{
    const struct try *t = &o->tries[who];

    if (t->asks == 0)
        return;
    if (t->heard != 0)
        decides(s, o, who);
    else if (o->left.probes > 0)
        asks(s, o, who);
}
