/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gateway.c - the adapter, the upstream behind it and the clients before it.
 *
 * The adapter does what the nginx module does, in the same order: claim, send,
 * judge by once__judge(), say the action, and only then answer. A client that
 * goes away changes nothing but the waiting. The upstream keeps a log of its
 * own: what it executed is known there, whatever became of the answer.
 */
#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "calls/engine/engine.h"
#include "calls/http/http.h"

#include "sim.h"

enum { FACE_MS = 2, PERSISTENCE = 3, WORDS = 5 };

/* What came back, as the value of an event. */
enum { STATUS = 0xffff, UNSTORABLE = 1 << 16, WORD_SHIFT = 20 };

static const char *const words[WORDS] = {"", "applied", "not-applied",
                                         "no-store", "unknown"};

static struct gateway *gateway_of(struct world *w, const struct call *c)
{
    return &w->gateways[c->gateway];
}

static int index_of(const struct world *w, const struct call *c)
{
    return (int)(c - w->calls);
}

/* ---- Clients ----------------------------------------------------------- */

static void next_operation(struct world *w, int client)
{
    struct client *k = &w->clients[client];

    k->tries = 0;
    if (k->operations++ == OPERATIONS) {
        k->done = 1;
        return;
    }
    k->name = (int)below(w, KEYS) + (client % TENANTS) * KEYS;
    k->print = chance(w, w->swarm.other_request) ? 1 : 0;
    push(w, around(w, 50), (struct event){.kind = E_CLIENT, .who = client});
}

static void try_again(struct world *w, int client, uint64_t in_ms)
{
    push(w, 1 + around(w, in_ms),
         (struct event){.kind = E_CLIENT, .who = client});
}

void client_goes(struct world *w, int client)
{
    struct client *k = &w->clients[client];

    if (k->done)
        return;
    if (k->operations == 0)
        next_operation(w, client);
    else
        call_begin(w, client, (int)below(w, GATEWAYS));
}

/* What was told decides whether the client comes again. */
static void client_hears(struct world *w, const struct call *c, int again)
{
    struct client *k = &w->clients[c->client];

    if (k->stamp != c->stamp)
        return; /* it has gone away */
    k->stamp++;
    if (again)
        try_again(w, c->client, w->swarm.lease_ms / 4);
    else
        next_operation(w, c->client);
}

void client_gone(struct world *w, struct event *e)
{
    struct call *c = &w->calls[e->n];
    struct gateway *g = gateway_of(w, c);
    struct client *k = &w->clients[c->client];

    if (k->stamp != c->stamp || k->done)
        return;
    saw(w, SEEN_CLIENT_GONE);
    trace(w, "client %d goes away, call %d", c->client, index_of(w, c));
    k->stamp++;
    try_again(w, c->client, 100);
    if (c->attempt == NULL || c->life != g->life || g->engine == NULL ||
        g->paused_till > w->now)
        return;
    c->cancelled = 1;
    w->inside = g;
    once_attempt_cancel(c->attempt);
    w->inside = NULL;
}

/* ---- Ends of a call ---------------------------------------------------- */

static void let_go(struct world *w, struct call *c)
{
    once_attempt *a = c->attempt;

    if (a == NULL)
        return;
    c->attempt = NULL;
    w->inside = gateway_of(w, c);
    once_attempt_free(a);
    w->inside = NULL;
}

static void told_result(struct world *w, struct call *c, const uint8_t *bytes)
{
    trace(w, "client %d is told result %d.%d, call %d", c->client, bytes[0],
          bytes[4] + bytes[5] * 256, index_of(w, c));
    check_told(w, c, bytes);
}

void call_over(struct world *w, struct call *c, int again)
{
    c->phase = OVER;
    let_go(w, c);
    client_hears(w, c, again);
}

/* ---- The attempt ------------------------------------------------------- */

/* How long an unanswered store was asked (rule 1), and how long a waiter
 * waited: measured here, where the engine says so. */
static void check_patience(struct world *w, const struct call *c, int rc)
{
    const struct gateway *g = gateway_of(w, c);
    uint64_t since = c->phase == SAYING ? c->action_ms : c->begun_ms;

    if (g->closing)
        return;
    if (rc == ONCE_ESTORE && w->now - since < w->swarm.patience_ms &&
        !(c->phase == CLAIMING && c->refused))
        violated(w, "R1", c->name,
                 "an unknown outcome was not asked again in time");
    /* One that was fenced looks once and ends, so its last call is a read. */
    if (rc == ONCE_IN_FLIGHT && c->attempt->step_op.verb == ONCE_OP_CLAIM &&
        !c->cancelled && w->swarm.waiters_max > CALLS_MAX &&
        w->now < c->begun_ms + c->wait_ms)
        violated(w, "R4", c->name, "a waiter was sent away early");
}

static void done(once_attempt *a, int rc, void *user)
{
    struct call *c = user;
    struct gateway *g = a->engine->options.user;
    struct world *w = g->world;

    assert(c->attempt == a);
    check_patience(w, c, rc);
    push(w, below(w, FACE_MS),
         (struct event){.kind = E_DONE,
                        .who = index_of(w, c),
                        .life = g->life,
                        .value = (uint64_t)(rc + 1000)});
}

static unsigned policy_of(const struct world *w, int client)
{
    unsigned policy = w->swarm.retry ? ONCE_RETRY_FAILED : 0;

    if (w->swarm.takeover || (w->swarm.mixed && client % 3 != 0))
        policy |= ONCE_TAKEOVER;
    return policy;
}

static once_request request_of(const struct world *w, const struct call *c)
{
    once_request q;

    memset(&q, 0, sizeof(q));
    q.size = sizeof(q);
    memcpy(q.name, w->names[c->name], ONCE_NAME_SIZE);
    memcpy(q.fingerprint, w->prints[c->print], ONCE_FINGERPRINT_SIZE);
    q.policy = c->policy;
    q.two_phase = w->swarm.two_phase;
    q.lease_ms = (uint32_t)w->swarm.lease_ms;
    q.wait_ms = (uint32_t)c->wait_ms;
    q.store_ms = (uint32_t)w->swarm.patience_ms;
    q.keep_ms = w->swarm.keep_ms;
    if (w->swarm.ages) {
        q.born_ms = w->born_ms;
        q.max_age_ms = w->swarm.keep_ms - AGE_SLACK_MS;
    }
    return q;
}

static int claim(struct world *w, struct gateway *g, struct call *c)
{
    once_request q = request_of(w, c);
    int rc;

    w->inside = g;
    rc = once_attempt_new(g->engine, &q, NULL, &c->attempt);
    assert(rc == ONCE_OK);
    memcpy(c->token, c->attempt->step_op.token, ONCE_TOKEN_SIZE);
    rc = once_claim_start(c->attempt, done, c);
    w->inside = NULL;
    return rc;
}

static struct call *call_new(struct world *w, int client, int gateway)
{
    struct gateway *g = &w->gateways[gateway];
    struct client *k = &w->clients[client];
    struct call *c;

    if (w->n_calls == CALLS_MAX) {
        violated(w, "SIM", k->name, "too many calls");
        return NULL;
    }
    c = &w->calls[w->n_calls++];
    memset(c, 0, sizeof(*c));
    c->world = w;
    c->client = client;
    c->gateway = gateway;
    c->life = g->life;
    c->stamp = k->stamp;
    c->name = k->name;
    c->print = k->print;
    c->policy = policy_of(w, client);
    c->begun_ms = w->now;
    c->wait_ms = w->swarm.waits ? below(w, w->swarm.wait_ms) : 0;
    return c;
}

static void call_claims(struct world *w, struct call *c)
{
    int rc = claim(w, gateway_of(w, c), c);

    trace(w, "client %d calls gateway %d, name %d: call %d, token %02x%02x",
          c->client, c->gateway, c->name, index_of(w, c), c->token[0],
          c->token[1]);
    if (rc == ONCE_OK)
        return;
    saw(w, rc == ONCE_EBUSY ? SEEN_BUSY : SEEN_CLOSED);
    call_over(w, c, 1);
}

void call_begin(struct world *w, int client, int gateway)
{
    struct gateway *g = &w->gateways[gateway];
    struct call *c;

    if (g->engine == NULL || g->paused_till > w->now) {
        try_again(w, client, 50); /* refused, or nobody accepts */
        return;
    }
    c = call_new(w, client, gateway);
    if (c == NULL)
        return;
    w->clients[client].tries++;
    push(w, w->swarm.client_ms + below(w, w->swarm.client_ms),
         (struct event){.kind = E_GONE, .n = (unsigned)index_of(w, c)});
    call_claims(w, c);
}

/* For the same client, after a probe: another attempt, with a token of its
 * own. */
void call_begin_again(struct world *w, const struct call *c)
{
    struct call *again = call_new(w, c->client, c->gateway);

    if (again == NULL)
        return;
    again->probed = 1;
    call_claims(w, again);
}

static void send_upstream(struct world *w, struct call *c)
{
    const struct swarm *s = &w->swarm;
    struct event e = {.who = index_of(w, c), .life = c->life};
    uint64_t ms = around(w, s->upstream_ms);

    check_sent(w, index_of(w, c), once_attempt_record(c->attempt)->fence);
    c->phase = SENT;
    e.kind = E_CUT_OFF;
    if (fault(w, s->unsent)) {
        e.value = ONCE__NOT_SENT;
        push(w, ms, e);
        return;
    }
    e.value = ONCE__RESET;
    push(w, s->response_ms, e);
    if (fault(w, s->slow))
        ms += below(w, 4 * s->lease_ms);
    e.kind = E_UPSTREAM;
    push(w, ms, e);
    if (w->flaw == PROXY_RETRY && chance(w, 20000))
        push(w, ms + around(w, s->upstream_ms), e);
    if (fault(w, s->drop)) { /* the adapter forgets the request */
        saw(w, SEEN_FREED_OWNER);
        call_over(w, c, 1);
    }
}

static void say(struct world *w, struct call *c, int action, int kind)
{
    once_bytes result = {c->bytes, BYTES};
    int rc;

    if (c->failed_open) { /* planted: it never was the owner */
        told_result(w, c, c->bytes);
        call_over(w, c, 0);
        return;
    }
    c->phase = SAYING;
    c->action = action;
    c->kind = kind;
    c->action_ms = w->now;
    if (w->flaw == REPLY_FIRST && action == ONCE__DO_COMPLETE)
        told_result(w, c, c->bytes);
    w->inside = gateway_of(w, c);
    if (action == ONCE__DO_RELEASE)
        rc = once_release_start(c->attempt, ONCE_REASON_NOT_SENT, done, c);
    else if (action == ONCE__DO_GIVE_UP)
        rc = once_give_up_start(c->attempt, ONCE_REASON_TIMEOUT, done, c);
    else
        rc = once_complete_start(c->attempt, kind, result, done, c);
    w->inside = NULL;
    if (rc == ONCE_OK)
        return;
    assert(rc == ONCE_ECLOSED);
    saw(w, SEEN_CLOSED);
    call_over(w, c, 1);
}

static void told_claim(struct world *w, struct call *c, int rc)
{
    const once_record *r = once_attempt_record(c->attempt);
    uint8_t bytes[BYTES];

    switch (rc) {
    case ONCE_REPLAY:
        saw(w, SEEN_REPLAY);
        if (c->wait_ms > 0 && w->now > c->begun_ms + w->swarm.lease_ms)
            saw(w, SEEN_WAITED);
        memcpy(bytes, r->result.data, BYTES);
        told_result(w, c, bytes);
        break;
    case ONCE_EXPIRED:
        saw(w, SEEN_EXPIRED);
        break;
    case ONCE_MISMATCH:
        saw(w, SEEN_MISMATCH);
        break;
    case ONCE_UNKNOWN:
        if (probe_begin(w, c, r)) {
            let_go(w, c);
            return;
        }
        saw(w, SEEN_TOLD_UNKNOWN);
        call_over(w, c, w->clients[c->client].tries < PERSISTENCE);
        return;
    case ONCE_IN_FLIGHT:
        saw(w, SEEN_IN_FLIGHT);
        if (c->cancelled && c->wait_ms > 0)
            saw(w, SEEN_WAITER_LEFT);
        else if (c->wait_ms > 0)
            saw(w, SEEN_WAITER_LIMIT);
        call_over(w, c, 1);
        return;
    default: /* free, and errors: nothing was begun */
        if (rc == ONCE_ESTORE)
            saw(w, SEEN_SILENT_CLAIM);
        call_over(w, c, 1);
        return;
    }
    call_over(w, c, 0);
}

/* A service lives on when its server dies, or is restarted: the next one takes
 * its end, by the token. 1: it has. */
static int resume(struct world *w, struct call *c)
{
    struct gateway *g = &w->gateways[below(w, GATEWAYS)];
    once_record granted = {
        .fence = c->fence, .attempt = c->number, .doubt = (uint8_t)c->doubt};
    once_request q = request_of(w, c);
    int rc;

    if (g->engine == NULL || g->closing || g->paused_till > w->now)
        return 0;
    c->gateway = g->index;
    c->life = g->life;
    q.token = c->token;
    w->inside = g;
    rc = once_attempt_resume(g->engine, &q, &granted, NULL, &c->attempt);
    w->inside = NULL;
    assert(rc == ONCE_OK);
    trace(w, "gateway %d takes the end of call %d", g->index, index_of(w, c));
    saw(w, SEEN_RESUMED);
    return 1;
}

/* A service that does not know whether its end has arrived tells it again. */
static int end_again(struct world *w, struct call *c)
{
    if (c->ended_again || c->failed_open || !fault(w, w->swarm.resumed))
        return 0;
    c->ended_again = 1;
    let_go(w, c);
    if (!resume(w, c))
        return 0;
    saw(w, SEEN_ENDED_AGAIN);
    say(w, c, c->action, c->kind);
    return 1;
}

static void told_deed(struct world *w, struct call *c, int rc)
{
    int completes =
        c->action == ONCE__DO_COMPLETE || c->action == ONCE__DO_MARK;
    uint8_t bytes[BYTES];

    if (rc == ONCE_ESTORE)
        saw(w, SEEN_SILENT_DEED);
    c->untold = rc == ONCE_ESTORE && c->action != ONCE__DO_GIVE_UP &&
                !gateway_of(w, c)->closing;
    if (rc == ONCE_OK && completes) {
        told_result(w, c, c->bytes);
    } else if (rc == ONCE_REPLAY) {
        memcpy(bytes, once_attempt_record(c->attempt)->result.data, BYTES);
        told_result(w, c, bytes);
    }
    if (end_again(w, c))
        return;
    call_over(w, c, !completes || rc != ONCE_OK);
}

void call_done(struct world *w, struct event *e)
{
    struct call *c = &w->calls[e->who];
    int rc = (int)e->value - 1000;

    if (c->life != gateway_of(w, c)->life || c->attempt == NULL)
        return;
    trace(w, "call %d hears %d, \"%s\"", e->who, rc, once_text(rc));
    if (c->phase == SAYING)
        told_deed(w, c, rc);
    else if (rc == ONCE_OWNER || (rc == ONCE_ESTORE && w->flaw == FAIL_OPEN)) {
        c->failed_open = rc != ONCE_OWNER;
        c->number = once_attempt_record(c->attempt)->attempt;
        c->fence = once_attempt_record(c->attempt)->fence;
        c->doubt = once_attempt_record(c->attempt)->doubt;
        send_upstream(w, c);
    } else {
        told_claim(w, c, rc);
    }
}

/* ---- Upstream ---------------------------------------------------------- */

static void make_bytes(struct world *w, struct call *c, int status)
{
    uint32_t n = ++w->executions;

    memset(c->bytes, 0, BYTES);
    c->bytes[0] = (uint8_t)(1 + c->name / KEYS);
    c->bytes[1] = (uint8_t)(c->name % KEYS);
    c->bytes[2] = (uint8_t)(status / 100);
    memcpy(c->bytes + 4, &n, sizeof(n));
}

/* 1 if it was done before, and the same answer is given. */
static int recognises(struct world *w, struct call *c)
{
    struct ghost *g = &w->ghosts[c->name];

    if (!w->swarm.dedup || c->period != g->period || !g->known)
        return 0;
    saw(w, SEEN_DEDUPLICATED);
    memcpy(c->bytes, g->deduplicated, BYTES);
    c->executed = 1;
    return 1;
}

static int execute(struct world *w, int call)
{
    struct call *c = &w->calls[call];
    struct ghost *g = &w->ghosts[c->name];
    int status = fault(w, w->swarm.failing) ? 422 : 201;

    if (w->flaw == TAKEOVER_FENCE && c->period == g->period) {
        if (c->number < g->highest) {
            make_bytes(w, c, 409);
            return 409;
        }
        g->highest = c->number;
    }
    if (recognises(w, c))
        return c->bytes[2] * 100;
    trace(w, "upstream executes name %d, call %d", c->name, call);
    check_executed(w, call);
    make_bytes(w, c, status);
    if (c->period == g->period && status < 400)
        g->happened = 1;
    if (w->swarm.dedup && c->period == g->period) {
        memcpy(g->deduplicated, c->bytes, BYTES);
        g->known = 1;
    }
    return status;
}

/* An upstream that knows of us may say what it did. */
static uint64_t a_word(struct world *w, int executed)
{
    if (!chance(w, 200000))
        return 0;
    if (!executed)
        return 2;
    return chance(w, 500000) ? 1 : 3 + below(w, 2);
}

void call_upstream(struct world *w, struct event *e)
{
    struct call *c = &w->calls[e->who];
    const struct swarm *s = &w->swarm;
    struct event back = {.kind = E_RESPONSE, .who = e->who, .life = e->life};
    uint64_t status = 429;

    if (fault(w, s->throttled)) {
        saw(w, SEEN_THROTTLED);
        if (chance(w, 300000)) /* it says so in its own words */
            status = 503 | UINT64_C(2) << WORD_SHIFT;
        memset(c->bytes, 0, BYTES);
    } else {
        status = (uint64_t)execute(w, e->who);
        status |= a_word(w, 1) << WORD_SHIFT;
        if (fault(w, s->unstorable))
            status |= UNSTORABLE;
    }
    if (fault(w, s->response_lost))
        return;
    back.value = status;
    if (fault(w, s->reset)) {
        back.kind = E_CUT_OFF;
        back.value = ONCE__RESET;
    }
    push(w, around(w, s->upstream_ms), back);
}

static int waits_for_upstream(struct world *w, const struct event *e)
{
    struct call *c = &w->calls[e->who];

    if (c->phase != SENT || c->attempt == NULL || e->life != c->life)
        return 0;
    return c->life == gateway_of(w, c)->life ||
           (fault(w, w->swarm.resumed) && resume(w, c));
}

static void judge(struct world *w, struct call *c, int observed, int status,
                  const char *word)
{
    const once__status_lists defaults = {NULL, NULL, NULL};
    once_bytes said = {word, strlen(word)};
    once__status_clash clash;
    once__verdict v;
    once__rules rules;

    if (once__rules_make(&defaults, &rules, &clash) != ONCE_OK)
        abort(); /* The defaults agree. */
    v = once__judge(observed, status, said, &rules);
    if (v.action == ONCE__DO_COMPLETE && once__is_broken(observed))
        make_bytes(w, c, OUR_OWN); /* only a planted bug comes here */
    if (v.action == ONCE__DO_GIVE_UP && w->flaw == RELEASE_ON_RESET)
        v.action = ONCE__DO_RELEASE;
    if (v.action == ONCE__DO_MARK) {
        saw(w, SEEN_MARKED);
        c->bytes[3] = 1;
    }
    say(w, c, v.action, v.kind);
}

void call_response(struct world *w, struct event *e)
{
    struct call *c = &w->calls[e->who];

    if (!waits_for_upstream(w, e))
        return;
    judge(w, c, (e->value & UNSTORABLE) ? ONCE__UNSTORABLE : ONCE__WHOLE,
          (int)(e->value & STATUS), words[e->value >> WORD_SHIFT]);
}

void call_cut_off(struct world *w, struct event *e)
{
    struct call *c = &w->calls[e->who];

    if (!waits_for_upstream(w, e))
        return;
    saw(w, e->value == ONCE__NOT_SENT ? SEEN_NOT_SENT : SEEN_CUT_OFF);
    judge(w, c, (int)e->value, 0, "");
}
