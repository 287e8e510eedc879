/* SPDX-License-Identifier: Apache-2.0 */
/*
 * attempt.c - the public functions of attempts, on the caller's thread.
 *
 * They check and copy the arguments and queue the call; drive.c runs it on the
 * engine's thread. A synchronous function is the asynchronous one and a
 * semaphore; only those block. A second claim, and a complete, release or give
 * up of an attempt that is not the owner, are refused here.
 */
#include <assert.h>
#include <errno.h>
#include <string.h>

#include "base/error.h"
#include "calls/core/transition.h"
#include "calls/engine/engine.h"

enum { LEASE_MS = 30000, STORE_MS = 1000, KEEP_MS = 86400000 };

/* ---- Making ------------------------------------------------------------ */

static int check(once_request *r, once_error *err)
{
    if (r->lease_ms == 0)
        r->lease_ms = LEASE_MS;
    if (r->keep_ms == 0)
        r->keep_ms = KEEP_MS;
    if (r->store_ms == 0)
        r->store_ms = STORE_MS;
    if (r->lease_ms < ONCE_LEASE_MIN_MS || r->lease_ms > ONCE_LEASE_MAX_MS)
        return once__fail(err, ONCE_EINVAL, "lease_ms: %u is not in %u..%u",
                          r->lease_ms, ONCE_LEASE_MIN_MS, ONCE_LEASE_MAX_MS);
    if (r->keep_ms < r->lease_ms || r->keep_ms > ONCE_KEEP_MAX_MS)
        return once__fail(err, ONCE_EINVAL,
                          "keep_ms: %llu is below lease_ms or over ten years",
                          (unsigned long long)r->keep_ms);
    if (r->max_age_ms > r->keep_ms)
        return once__fail(err, ONCE_EINVAL, "max_age_ms: %llu is over keep_ms",
                          (unsigned long long)r->max_age_ms);
    if (r->policy & ~(uint32_t)(ONCE_TAKEOVER | ONCE_RETRY_FAILED))
        return once__fail(err, ONCE_EINVAL, "policy: unknown bits in %#x",
                          r->policy);
    if (r->two_phase > 1)
        return once__fail(err, ONCE_EINVAL, "two_phase: %u is not 0 or 1",
                          r->two_phase);
    return once__label_check(r->label, err);
}

static void fill(once_attempt *a, const once_request *r)
{
    once_op *op = &a->step_op;

    op->policy = r->policy;
    op->two_phase = r->two_phase;
    op->lease_ms = r->lease_ms;
    op->keep_ms = r->keep_ms;
    memcpy(op->name, r->name, ONCE_NAME_SIZE);
    memcpy(op->fingerprint, r->fingerprint, ONCE_FINGERPRINT_SIZE);
    memcpy(op->group, r->group, ONCE_GROUP_SIZE);
    memcpy(op->trace, r->trace, ONCE_TRACE_SIZE);
    memcpy(op->subject, r->subject, ONCE_SUBJECT_SIZE);
    if (r->label.size > 0)
        memcpy(a->label, r->label.data, r->label.size);
    op->label = (once_bytes){a->label, r->label.size};
    a->renewal_op = *op; /* has the token already */
    a->renewal_op.verb = ONCE_OP_RENEW;
    a->lease_ms = r->lease_ms;
    a->wait_ms = r->wait_ms;
    a->store_ms = r->store_ms;
    a->born_ms = r->born_ms;
    a->max_age_ms = r->max_age_ms;
    a->call_node.arrive = once__call_arrived;
    a->stop_node.arrive = once__stop_arrived;
    a->free_node.arrive = once__free_arrived;
    once__attempt_setup(a);
}

static int take_token(once_engine *e, const once_request *r,
                      uint8_t token[ONCE_TOKEN_SIZE])
{
    if (r->token == NULL)
        return once__spare_token(&e->spare, token);
    memcpy(token, r->token, ONCE_TOKEN_SIZE);
    return 1;
}

int once_attempt_new(once_engine *e, const once_request *request,
                     once_error *err, once_attempt **out)
{
    once_request r;
    once_attempt *a;
    int rc;

    memset(&r, 0, sizeof(r));
    if (request->size < offsetof(once_request, policy))
        return once__fail(err, ONCE_EINVAL, "size: %zu is too small",
                          request->size);
    memcpy(&r, request, request->size < sizeof(r) ? request->size : sizeof(r));
    rc = check(&r, err);
    if (rc != ONCE_OK)
        return rc;
    a = once__spare_take(&e->spare, sizeof(*a));
    if (a == NULL)
        return once__fail(err, ONCE_ENOMEM, "attempt: %zu bytes", sizeof(*a));
    memset(a, 0, sizeof(*a));
    if (!take_token(e, &r, a->step_op.token)) {
        once__spare_give(&e->spare, a, sizeof(*a));
        return once__fail(err, ONCE_ENOMEM, "attempt: no random numbers");
    }
    a->engine = e;
    fill(a, &r);
    once__hold(e);
    *out = a;
    return ONCE_OK;
}

/* Its end is repeated for a lease, as that of any owner: see deadline() in
 * drive.c. Nothing is renewed, since it is in no list. */
int once_attempt_resume(once_engine *e, const once_request *request,
                        const once_record *granted, once_error *err,
                        once_attempt **out)
{
    once_attempt *a;
    int rc;

    if (granted->fence == 0 ||
        request->size < offsetof(once_request, token) + sizeof(uint8_t *) ||
        request->token == NULL)
        return once__fail(err, ONCE_EINVAL, "attempt: no token, or no fence");
    rc = once_attempt_new(e, request, err, &a);
    if (rc != ONCE_OK)
        return rc;
    (void)once__machine_resume(&a->machine, granted->fence);
    a->record.fence = granted->fence;
    a->record.attempt = granted->attempt;
    a->record.doubt = granted->doubt;
    a->begun = 1;
    a->lease_until_ms = once__now_ms() + a->lease_ms;
    *out = a;
    return ONCE_OK;
}

void once_attempt_free(once_attempt *a)
{
    if (a == NULL)
        return;
    if (!once__send(a->engine, &a->free_node))
        once__attempt_destroy(a); /* the engine has ended: no other has it */
}

/* ---- Asynchronous calls ------------------------------------------------ */

static int closed(once_error *err)
{
    return once__fail(err, ONCE_ECLOSED, "%s", once_text(ONCE_ECLOSED));
}

static int send_call(once_attempt *a, once_done *done, void *user,
                     once_error *err)
{
    assert(!a->calling && done != NULL);
    a->done = done;
    a->user = user;
    a->calling = 1;
    if (once__send(a->engine, &a->call_node))
        return ONCE_OK;
    a->calling = 0;
    once__queue_leave(a->engine);
    return closed(err);
}

static int start_claim(once_attempt *a, once_done *done, void *user,
                       once_error *err)
{
    int rc;

    if (a->begun)
        return once__fail(err, ONCE_EINVAL,
                          "claim: only once for each attempt");
    rc = once__refusal(a->engine, err);
    if (rc != ONCE_OK)
        return rc;
    if (!once__queue_enter(a->engine))
        return once__fail(err, ONCE_EBUSY, "queue_max: %u operations wait",
                          a->engine->options.queue_max);
    a->begun = 1;
    rc = send_call(a, done, user, err);
    if (rc != ONCE_OK)
        a->begun = 0; /* after ONCE_OK `a` may be freed already */
    return rc;
}

static int is_owner(const once_attempt *a)
{
    return a->begun && !a->calling && a->machine.phase == ONCE__PHASE_SENT;
}

/* An owner is never refused because the queue is full. */
static int start_ending(once_attempt *a, int ending, int reason,
                        once_done *done, void *user, once_error *err)
{
    int rc;

    if (!is_owner(a))
        return once__fail(err, ONCE_EINVAL, "attempt: it is not the owner");
    if (reason < 0 || reason >= ONCE__REASON_END)
        return once__fail(err, ONCE_EINVAL, "reason: %d is not one", reason);
    once__count(&a->engine->count.queued, 1);
    a->reason = reason;
    a->ending = ending;
    rc = send_call(a, done, user, err);
    if (rc != ONCE_OK)
        a->ending = 0;
    return rc;
}

/* The engine's thread does not use the operation before the next call. */
int once_attempt_keep(once_attempt *a, uint64_t keep_ms)
{
    if (!is_owner(a) || keep_ms < a->lease_ms || keep_ms > ONCE_KEEP_MAX_MS)
        return ONCE_EINVAL;
    a->step_op.keep_ms = keep_ms;
    return ONCE_OK;
}

static int copy_outcome(once_attempt *a, int kind, once_bytes result,
                        once_error *err)
{
    struct once__engine_outcome *o;

    if (kind != ONCE_SUCCESS && kind != ONCE_FAILURE)
        return once__fail(err, ONCE_EINVAL, "kind: %d is not one", kind);
    if (result.size > ONCE_RESULT_MAX)
        return once__fail(err, ONCE_ELIMIT, "result: %zu bytes are over %zu",
                          result.size, ONCE_RESULT_MAX);
    o = once__engine_outcome_new(a->engine, result.size);
    if (o == NULL)
        return once__fail(err, ONCE_ENOMEM, "result: %zu bytes", result.size);
    if (result.size > 0)
        memcpy(o->bytes, result.data, result.size);
    a->step_op.kind = kind;
    a->outcome = o;
    return ONCE_OK;
}

static int start_complete(once_attempt *a, int kind, once_bytes result,
                          once_done *done, void *user, once_error *err)
{
    int rc;

    if (!is_owner(a))
        return once__fail(err, ONCE_EINVAL, "attempt: it is not the owner");
    rc = copy_outcome(a, kind, result, err);
    if (rc != ONCE_OK)
        return rc;
    rc = start_ending(a, ONCE__PHASE_COMPLETE, ONCE_REASON_NONE, done, user,
                      err);
    if (rc != ONCE_OK) {
        once__engine_outcome_free(a->engine, a->outcome);
        a->outcome = NULL;
    }
    return rc;
}

int once_claim_start(once_attempt *a, once_done *done, void *user)
{
    return start_claim(a, done, user, NULL);
}

int once_look_start(once_attempt *a, once_done *done, void *user)
{
    a->look = 1;
    return start_claim(a, done, user, NULL);
}

int once_complete_start(once_attempt *a, int kind, once_bytes result,
                        once_done *done, void *user)
{
    return start_complete(a, kind, result, done, user, NULL);
}

int once_release_start(once_attempt *a, int reason, once_done *done, void *user)
{
    return start_ending(a, ONCE__PHASE_RELEASE, reason, done, user, NULL);
}

int once_give_up_start(once_attempt *a, int reason, once_done *done, void *user)
{
    return start_ending(a, ONCE__PHASE_GIVE_UP, reason, done, user, NULL);
}

void once_attempt_cancel(once_attempt *a)
{
    /* The node can be queued only once, and one cancellation is enough. */
    if (atomic_exchange(&a->stopping, 1) == 0)
        (void)once__send(a->engine, &a->stop_node);
}

const once_record *once_attempt_record(const once_attempt *a)
{
    return &a->record;
}

uint64_t once_attempt_left_ms(const once_attempt *a)
{
    return a->left_ms;
}

/* ---- Synchronous calls ------------------------------------------------- */

struct awaited {
    sem_t answered;
    int rc;
};

static void answered(once_attempt *a, int rc, void *user)
{
    struct awaited *w = user;

    (void)a;
    w->rc = rc;
    (void)sem_post(&w->answered);
}

static int begin(once_attempt *a, struct awaited *w, once_error *err)
{
    assert(!once__on_thread(a->engine));
    if (sem_init(&w->answered, 0, 0) != 0)
        return once__fail(err, ONCE_ENOMEM, "attempt: no semaphore");
    return ONCE_OK;
}

/* `rc` is what starting the call returned. */
static int await(once_attempt *a, int rc, struct awaited *w, once_error *err)
{
    if (rc == ONCE_OK) {
        once__queue_wake(&a->engine->queue); /* with `manual_wake`, too */
        while (sem_wait(&w->answered) != 0)
            assert(errno == EINTR);
        rc = w->rc;
        if (rc < 0)
            (void)once__fail(err, rc, "%s", once_text(rc));
    }
    (void)sem_destroy(&w->answered);
    return rc;
}

int once_claim(once_attempt *a, once_error *err)
{
    struct awaited w;
    int rc = begin(a, &w, err);

    if (rc != ONCE_OK)
        return rc;
    return await(a, start_claim(a, answered, &w, err), &w, err);
}

int once_complete(once_attempt *a, int kind, once_bytes result, once_error *err)
{
    struct awaited w;
    int rc = begin(a, &w, err);

    if (rc != ONCE_OK)
        return rc;
    return await(a, start_complete(a, kind, result, answered, &w, err), &w,
                 err);
}

static int end_and_wait(once_attempt *a, int ending, int reason,
                        once_error *err)
{
    struct awaited w;
    int rc = begin(a, &w, err);

    if (rc != ONCE_OK)
        return rc;
    return await(a, start_ending(a, ending, reason, answered, &w, err), &w,
                 err);
}

int once_release(once_attempt *a, int reason, once_error *err)
{
    return end_and_wait(a, ONCE__PHASE_RELEASE, reason, err);
}

int once_give_up(once_attempt *a, int reason, once_error *err)
{
    return end_and_wait(a, ONCE__PHASE_GIVE_UP, reason, err);
}
