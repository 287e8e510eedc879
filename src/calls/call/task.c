/* SPDX-License-Identifier: Apache-2.0 */
/*
 * task.c - the once_task_...() functions: what the work can ask about its run,
 * its result, and how its record ends.
 *
 *               returns
 *    RECORD ---------------> complete
 *      | once_task_release
 *      +--> RELEASE -------> release
 *      |       | once_task_unknown
 *      |       v
 *      +--> UNKNOWN -------> give up          nothing leaves UNKNOWN
 *
 * The result is encoded when it is set, so that nothing can fail between the
 * work and its record; the code in its head is filled in last. A result that
 * cannot be set is an error of once_task_result(): only the work can decide
 * whether to set a smaller one.
 */
#include "calls/call/call.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"

enum { LEASE_MS = 30000 }; /* the default of once_request */

/* ---- Options ----------------------------------------------------------- */

static int take_options(once_task *task, const once_call_options *given,
                        once_error *err)
{
    once_call_options o = ONCE_CALL_OPTIONS_INIT;
    once_request *r = &task->request;
    const char *group;
    int rc;

    if (given->size < sizeof(given->size))
        return once__fail(err, ONCE_EINVAL, "options: size: %zu is not set",
                          given->size);
    memcpy(&o, given, given->size < sizeof(o) ? given->size : sizeof(o));
    if (o.duplicates > ONCE_DUPLICATES_REJECT)
        return once__fail(err, ONCE_EINVAL, "duplicates: %u is not one",
                          o.duplicates);
    if (o.retry_failed > 1 || o.takeover > 1)
        return once__fail(err, ONCE_EINVAL, "%s: it is 0 or 1",
                          o.takeover > 1 ? "takeover" : "retry_failed");
    rc = once__call_name(o.group, o.key, r->name, err);
    if (rc != ONCE_OK)
        return rc;
    if (once__call_fingerprint(o.fingerprint, r->fingerprint) != ONCE_OK)
        return once__fail(err, ONCE_ENOMEM, "fingerprint: out of memory");
    group = o.group != NULL ? o.group : ONCE_GROUP_DEFAULT;
    memcpy(r->group, group, strnlen(group, ONCE_GROUP_SIZE));
    r->size = sizeof(*r);
    r->policy = (o.takeover ? (uint32_t)ONCE_TAKEOVER : 0) |
                (o.retry_failed ? (uint32_t)ONCE_RETRY_FAILED : 0);
    r->two_phase = o.two_phase;
    r->lease_ms = o.lease_ms;
    r->wait_ms = o.wait_ms;
    r->store_ms = o.store_ms;
    r->keep_ms = o.keep_ms;
    if (o.label != NULL)
        r->label = (once_bytes){o.label, strnlen(o.label, ONCE_LABEL_MAX + 1)};
    memcpy(r->trace, o.trace, sizeof(r->trace));
    task->reject = o.duplicates == ONCE_DUPLICATES_REJECT;
    return ONCE_OK;
}

int once__task_init(once_task *task, once_engine *e,
                    const once_call_options *options, once_error *err)
{
    int rc;

    memset(task, 0, sizeof(*task));
    task->engine = e;
    rc = take_options(task, options, err);
    if (rc != ONCE_OK)
        return rc;
    return once_attempt_new(e, &task->request, err, &task->attempt);
}

void once__task_clear(once_task *task)
{
    once_attempt_free(task->attempt);
    task->attempt = NULL;
    free(task->encoded);
    task->encoded = NULL;
}

/* ---- What the work may call ---------------------------------------------- */

uint32_t once_task_attempt(const once_task *task)
{
    return once_attempt_record(task->attempt)->attempt;
}

uint64_t once_task_fence(const once_task *task)
{
    return once_attempt_record(task->attempt)->fence;
}

int once_task_result(once_task *task, const char *type, once_bytes bytes,
                     once_error *err)
{
    const char *text = type != NULL ? type : "";
    once__result r = {0, {text, strnlen(text, ONCE_TYPE_MAX + 1)}, bytes};
    uint8_t *encoded;
    size_t size = 0;
    int rc = once__result_size(&r, &size, err);

    if (rc != ONCE_OK)
        return rc;
    encoded = malloc(size + r.type.size + 1);
    if (encoded == NULL)
        return once__fail(err, ONCE_ENOMEM, "result: %zu bytes", size);
    once__result_encode(&r, encoded);
    memcpy(encoded + size, text, r.type.size);
    encoded[size + r.type.size] = '\0';
    free(task->encoded);
    task->encoded = encoded;
    task->size = size;
    return ONCE_OK;
}

void once_task_release(once_task *task)
{
    if (task->ending != ONCE__TASK_UNKNOWN)
        task->ending = ONCE__TASK_RELEASE;
}

void once_task_unknown(once_task *task)
{
    task->ending = ONCE__TASK_UNKNOWN;
}

/* A renewal of its own, with the attempt's token and fence. The engine does not
 * learn of the longer lease, so it renews too early at worst. */
int once_task_renew(once_task *task, once_error *err)
{
    const once_record *r = once_attempt_record(task->attempt);
    once_op op;
    int rc;

    memset(&op, 0, sizeof(op));
    op.verb = ONCE_OP_RENEW;
    op.lease_ms =
        task->request.lease_ms != 0 ? task->request.lease_ms : LEASE_MS;
    op.store_ms = task->request.store_ms;
    op.fence = r->fence;
    memcpy(op.name, task->request.name, ONCE_NAME_SIZE);
    memcpy(op.token, r->token, ONCE_TOKEN_SIZE);
    rc = once_apply(task->engine, &op, err);
    once_op_clear(&op);
    return rc;
}

/* ---- What is recorded, and what is handed out --------------------------- */

once_bytes once__task_encode(once_task *task)
{
    once__result r = {task->code, {NULL, 0}, {NULL, 0}};
    uint8_t head[ONCE__RESULT_HEAD];

    once__result_encode(&r, head);
    if (task->encoded == NULL) {
        memcpy(task->empty, head, sizeof(head));
        return (once_bytes){task->empty, sizeof(task->empty)};
    }
    memcpy(task->encoded, head, 8); /* the sizes stay as they are */
    return (once_bytes){task->encoded, task->size};
}

void once__task_move(once_task *task, once_result *out)
{
    once__result r;
    int rc;

    out->code = task->code;
    if (task->encoded == NULL)
        return;
    rc = once__result_decode(once__task_encode(task), &r, NULL);
    assert(rc == ONCE_OK); /* we have just encoded it */
    (void)rc;
    out->type = (const char *)task->encoded + task->size;
    out->bytes = r.bytes;
    out->memory = task->encoded;
    task->encoded = NULL;
}
