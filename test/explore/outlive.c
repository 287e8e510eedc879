/* SPDX-License-Identifier: Apache-2.0 */
/*
 * outlive.c - a service that outlives the server beside it (`once serve`): its
 * middleware keeps the token, and tells another server how the handler ended.
 *
 *    sent --> the server dies, is out of patience, or was told already
 *                |
 *                +--> the handler's answer is told, to whom never began it
 *                +--> "the outcome is unknown" is told
 *                +--> "it was not called" is told, if that is so
 *
 * It may come at any time: when the lease is over, when others were told that the
 * outcome is unknown, when it was told before.
 */
#include "calls/core/machine.h"

#include "explore.h"

static void resume(struct search *s, struct world *w, int who)
{
    struct try *t = &w->tries[who];
    once__machine a = {.two_phase = search_config(s)->two_phase != 0};

    (void)once__machine_resume(&a, t->grant);
    w->left.ends--;
    t->alive = 1;
    t->phase = a.phase;
    t->fence = (uint8_t)a.fence;
    t->told = (uint8_t)a.reported;
}

static void tells(struct search *s, const struct world *o, int who, int phase,
                  const char *what)
{
    struct world w = *o;
    struct try *t = &w.tries[who];

    resume(s, &w, who);
    if (phase == ONCE__PHASE_COMPLETE) {
        t->result = t->made;
        t->kind = t->made_kind;
    } else if (phase == ONCE__PHASE_RELEASE) {
        t->wire = 0;
    }
    say_deed(s, &w, who, phase);
    emit(s, &w, (struct step){what, who, 0, 0, -1});
}

void outlive(struct search *s, const struct world *o, int who)
{
    const struct config *c = search_config(s);
    const struct try *t = &o->tries[who];

    if (o->left.ends == 0 || t->grant == 0 || t->verb != 0 ||
        (t->alive && t->phase != ONCE__PHASE_OVER))
        return;
    if (t->made != 0)
        tells(s, o, who, ONCE__PHASE_COMPLETE,
              "tells its answer to another server");
    tells(s, o, who, ONCE__PHASE_GIVE_UP,
          "tells another server that its outcome is unknown");
    if (t->wire || (c->abandons && t->made != 0))
        tells(s, o, who, ONCE__PHASE_RELEASE,
              "tells another server that it was not called");
}
