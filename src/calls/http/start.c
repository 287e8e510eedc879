/* SPDX-License-Identifier: Apache-2.0 */
/*
 * start.c - from a policy to the engine's request, and from a verdict to the
 * engine's call.
 *
 * It refuses to decide: policy and verdict are there already.
 */
#include "calls/http/http.h"

#include <string.h>

void once__request_fill(const once__policy *policy,
                        const uint8_t name[ONCE_NAME_SIZE],
                        const uint8_t fingerprint[ONCE_FINGERPRINT_SIZE],
                        const uint8_t group[ONCE_GROUP_SIZE], once_request *out)
{
    memset(out, 0, sizeof(*out));
    out->size = sizeof(*out);
    memcpy(out->name, name, sizeof(out->name));
    memcpy(out->fingerprint, fingerprint, sizeof(out->fingerprint));
    memcpy(out->group, group, sizeof(out->group));
    if (policy->takeover)
        out->policy |= ONCE_TAKEOVER;
    if (!once__statuses_all(&policy->rules.final))
        out->policy |= ONCE_RETRY_FAILED;
    out->two_phase = policy->two_phase != 0;
    out->lease_ms = policy->lease_ms;
    out->wait_ms = policy->wait_ms;
    out->store_ms = policy->store_ms;
    out->keep_ms = policy->keep_ms;
    out->max_age_ms = policy->max_age_ms;
}

/* "Failed" is the word of this attempt alone: where an earlier one may have
 * executed, the record stays as long as any other. */
static int keep(once_attempt *a, const once__verdict *verdict)
{
    if (verdict->keep_ms == 0 || once_attempt_record(a)->doubt)
        return ONCE_OK;
    return once_attempt_keep(a, verdict->keep_ms);
}

int once__verdict_start(once_attempt *a, once__verdict verdict,
                        once_bytes result, once_done *done, void *user)
{
    int rc;

    switch (verdict.action) {
    case ONCE__DO_COMPLETE:
    case ONCE__DO_MARK:
        rc = keep(a, &verdict);
        if (rc != ONCE_OK)
            return rc;
        return once_complete_start(a, verdict.kind, result, done, user);
    case ONCE__DO_RELEASE:
        return once_release_start(a, verdict.reason, done, user);
    default:
        return once_give_up_start(a, verdict.reason, done, user);
    }
}
