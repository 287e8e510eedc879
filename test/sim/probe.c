/* SPDX-License-Identifier: Apache-2.0 */
/*
 * probe.c - a gateway that was answered "unknown" asks the upstream what became
 * of the record (docs/http.md, `once_probe`).
 *
 *    gateway                upstream               store
 *       |--- E_PROBE ---------->|                    |
 *       |<-- E_PROBED ----------|  from its log      |
 *       |--- RESOLVE, through the engine ----------->|
 *       |<-- E_DECIDED ------------------------------|
 *       |--- claims once more, with a new token ---->|
 *
 * The request itself may still be on its way, its owner may answer late, an
 * operator and another gateway may decide meanwhile. Who decides without a
 * reason breaks rule P1 in ghosts.c.
 */
#include <string.h>

#include "sim.h"

static int index_of(const struct call *c)
{
    return (int)(c - c->world->calls);
}

static void later(struct world *w, const struct call *c, enum event_kind kind,
                  uint64_t in_ms, uint64_t value)
{
    push(
        w, in_ms,
        (struct event){
            .kind = kind, .who = index_of(c), .life = c->life, .value = value});
}

int probe_begin(struct world *w, struct call *c, const once_record *r)
{
    if (!w->swarm.probes || c->probed || (c->policy & ONCE_TAKEOVER) != 0 ||
        r->state != ONCE_INDETERMINATE || r->fence == 0)
        return 0;
    c->probed = 1;
    c->unsure = r->fence;
    trace(w, "call %d asks what became of name %d", index_of(c), c->name);
    later(w, c, E_PROBE, around(w, w->swarm.upstream_ms), 0);
    return 1;
}

static void planted_free(struct world *w, const struct call *c)
{
    struct row *row = store_row(w, w->names[c->name]);

    if (w->flaw == PROBE_FREES && row->r.state == ONCE_INDETERMINATE)
        memset(&row->r, 0, sizeof(row->r));
}

/* No answer is one, after the limit. */
void probe_arrives(struct world *w, struct event *e)
{
    const struct call *c = &w->calls[e->who];
    int applied = w->ghosts[c->name].happened || w->flaw == PROBE_ANY_RECORD;

    if (!applied)
        planted_free(w, c);
    if (fault(w, w->swarm.response_lost))
        later(w, c, E_PROBED, w->swarm.response_ms, 0);
    else
        later(w, c, E_PROBED, around(w, w->swarm.upstream_ms),
              (uint64_t)applied);
}

static void decided(once_op *op)
{
    struct call *c = op->user;

    later(c->world, c, E_DECIDED, 0, (uint64_t)(op->rc + 1000));
}

/* Other bytes than the owner's answer: it was made at another time. */
static int decide(struct world *w, struct call *c)
{
    once_op *op = &c->decision;
    uint32_t n = ++w->executions;
    int rc;

    c->bytes[0] = (uint8_t)(1 + c->name / KEYS);
    c->bytes[1] = (uint8_t)(c->name % KEYS);
    c->bytes[2] = 2;
    memcpy(c->bytes + 4, &n, sizeof(n));
    op->verb = ONCE_OP_RESOLVE;
    op->kind = ONCE_SUCCESS;
    op->fence = c->unsure;
    op->keep_ms = w->swarm.keep_ms;
    op->store_ms = (uint32_t)w->swarm.patience_ms;
    memcpy(op->name, w->names[c->name], ONCE_NAME_SIZE);
    op->result = (once_bytes){c->bytes, BYTES};
    op->note = (once_bytes){c->bytes + 4, NOTE};
    op->done = decided;
    op->user = c;
    w->inside = &w->gateways[c->gateway];
    rc = once_submit(w->inside->engine, op, NULL);
    w->inside = NULL;
    return rc;
}

static int client_waits(const struct world *w, const struct call *c)
{
    return w->clients[c->client].stamp == c->stamp;
}

/* A client that has left ends it, and nothing is decided. */
void probe_answered(struct world *w, struct event *e)
{
    struct call *c = &w->calls[e->who];

    if (e->value == 0)
        saw(w, SEEN_PROBED_NOTHING);
    trace(w, "call %d is answered \"%s\"", e->who,
          e->value != 0 ? "applied" : "nothing yet");
    if (e->value == 0 || !client_waits(w, c) || decide(w, c) != ONCE_OK)
        call_over(w, c, w->clients[c->client].tries < 3);
}

void probe_decided(struct world *w, struct event *e)
{
    struct call *c = &w->calls[e->who];
    int rc = (int)e->value - 1000;
    int answered = rc == ONCE_OK || rc == ONCE_REFUSED;

    if (!client_waits(w, c))
        return;
    if (answered && !w->gateways[c->gateway].closing)
        call_begin_again(w, c);
    else
        call_over(w, c, w->clients[c->client].tries < 3);
}
