/* SPDX-License-Identifier: Apache-2.0 */
/*
 * judge.c - what an answer means for an order (docs/client.md has the table).
 *
 * The status header comes before the status: 202 with "in_flight" is no
 * success, but where a lookup may be asked.
 *
 * Two questions, asked of each answer: is this the final answer to the order,
 * and did at least this attempt do nothing? The second matters because an
 * answer says nothing about other attempts unless it comes from the record: a
 * 401 for the second attempt is no proof that the first one did not charge.
 *
 * "In flight" is no such proof: the one in flight may be a copy of this very
 * attempt, made by a library or a proxy on the way.
 *
 * A 5xx may have come after the effect, so it never means "not done", not even
 * when it is the recorded answer.
 */
#include "client/client.h"

#include <string.h>
#include <strings.h>

#include <jansson.h>

#include "base/status.h"

static const char type_prefix[] = "urn:problem-type:once:";

static struct once__judgement judged(int next, int reason, int harmless,
                                     int unhealthy)
{
    struct once__judgement j = {next, reason, harmless, unhealthy};

    return j;
}

/* A problem document of the gateway itself: its code counts, not the status. */
static struct once__judgement judge_problem(int code)
{
    switch (code) {
    case ONCE__CODE_IN_FLIGHT:
        return judged(ONCE__NEXT_AGAIN, ONCE_CLIENT_IN_DOUBT, 0, 0);
    case ONCE__CODE_UNAVAILABLE:
        return judged(ONCE__NEXT_AGAIN, ONCE_CLIENT_NOT_SENT, 1, 1);
    case ONCE__CODE_ANSWER_LOST:
        return judged(ONCE__NEXT_DONE, ONCE_CLIENT_ANSWER_LOST, 0, 0);
    case ONCE__CODE_REFUSED:
        return judged(ONCE__NEXT_REFUSED, ONCE_CLIENT_ANSWERED, 1, 0);
    case ONCE__CODE_FAILED:
        return judged(ONCE__NEXT_UNKNOWN, ONCE_CLIENT_FAILED, 0, 0);
    case ONCE__CODE_EXPIRED:
        return judged(ONCE__NEXT_UNKNOWN, ONCE_CLIENT_TOO_OLD, 0, 0);
    case ONCE__CODE_REJECTED:
        return judged(ONCE__NEXT_REJECTED, ONCE_CLIENT_REJECTED, 1, 0);
    default:
        return judged(ONCE__NEXT_UNKNOWN, ONCE_CLIENT_INDETERMINATE, 0, 0);
    }
}

/* A recorded refusal is final; one without a record is about this attempt. */
static struct once__judgement refusal(int recorded)
{
    return recorded ? judged(ONCE__NEXT_REFUSED, ONCE_CLIENT_ANSWERED, 1, 0)
                    : judged(ONCE__NEXT_REJECTED, ONCE_CLIENT_REJECTED, 1, 0);
}

/*
 * RFC 9110, 15.4: 303 leads to the result of what was done; 301, 307 and 308
 * ask for the same request elsewhere, so it was not done here; after a 302
 * programs in the wild have often done it.
 */
static struct once__judgement judge_3xx(int status, int recorded)
{
    switch (status) {
    case 303:
        return judged(ONCE__NEXT_DONE, ONCE_CLIENT_ANSWERED, 0, 0);
    case 301:
    case 307:
    case 308:
        return refusal(recorded);
    default:
        return judged(ONCE__NEXT_UNKNOWN, ONCE_CLIENT_REDIRECTED, 0, 0);
    }
}

static struct once__judgement judge_4xx(const struct once__answer *a,
                                        int recorded)
{
    /* The recorded answer is final, whatever the number. */
    if (a->reported == ONCE__REPORTED_REPLAYED)
        return refusal(1);
    switch (a->status) {
    case 401:
    case 421:
        /* By the contract not recorded: other credentials, or another
         * connection, and the same key. */
        return refusal(0);
    case 408:
        /* By the contract not executed. A proxy that knows nothing of the
         * contract says 408 for reasons of its own. */
        return judged(ONCE__NEXT_AGAIN, ONCE_CLIENT_IN_DOUBT, recorded, -1);
    case 425:
    case 429:
        return judged(ONCE__NEXT_AGAIN, ONCE_CLIENT_NOT_SENT, 1, -1);
    case 409:
        /* With Retry-After: how other servers say "in flight". */
        if (!recorded && a->has_retry)
            return judged(ONCE__NEXT_AGAIN, ONCE_CLIENT_IN_DOUBT, 0, 0);
        return refusal(recorded);
    default:
        return refusal(recorded);
    }
}

static struct once__judgement judge_5xx(const struct once__answer *a)
{
    int gateway = once__is_gateways_status(a->status);

    if (a->reported == ONCE__REPORTED_REPLAYED)
        return judged(ONCE__NEXT_UNKNOWN, ONCE_CLIENT_FAILED, 0, 0);
    return judged(ONCE__NEXT_AGAIN, ONCE_CLIENT_IN_DOUBT, 0, gateway ? 1 : -1);
}

struct once__judgement once__client_judge(const struct once__answer *a)
{
    int recorded = a->reported == ONCE__REPORTED_NEW ||
                   a->reported == ONCE__REPORTED_REPLAYED;

    if (a->code != ONCE__CODE_NONE)
        return judge_problem(a->code);
    if (a->reported == ONCE__REPORTED_IN_FLIGHT)
        return judge_problem(ONCE__CODE_IN_FLIGHT);
    if (a->status >= 200 && a->status < 300)
        return judged(ONCE__NEXT_DONE, ONCE_CLIENT_ANSWERED, 0, 0);
    if (a->status >= 300 && a->status < 400)
        return judge_3xx(a->status, recorded);
    if (a->status >= 400 && a->status < 500)
        return judge_4xx(a, recorded);
    return judge_5xx(a);
}

/* ---- Reading the gateway's headers and problems ------------------------ */

static int is(once_bytes value, const char *text)
{
    return value.size == strlen(text) &&
           strncasecmp(value.data, text, value.size) == 0;
}

int once__client_reported(once_bytes value)
{
    if (value.size == 0)
        return ONCE__REPORTED_NONE;
    if (is(value, "new"))
        return ONCE__REPORTED_NEW;
    if (is(value, "replayed"))
        return ONCE__REPORTED_REPLAYED;
    return is(value, "in_flight") ? ONCE__REPORTED_IN_FLIGHT
                                  : ONCE__REPORTED_OTHER;
}

static int code_of(const char *code, int safe_new_key)
{
    static const struct {
        const char *name;
        int code;
    } codes[] = {
        {"in-flight", ONCE__CODE_IN_FLIGHT},
        {"outcome-unknown", ONCE__CODE_UNKNOWN},
        {"response-unavailable", ONCE__CODE_ANSWER_LOST},
        {"store-unavailable", ONCE__CODE_UNAVAILABLE},
        {"key-expired", ONCE__CODE_EXPIRED},
        {"key-missing", ONCE__CODE_REJECTED},
        {"key-invalid", ONCE__CODE_REJECTED},
        {"key-reused", ONCE__CODE_REJECTED},
        {"scope-missing", ONCE__CODE_REJECTED},
    };
    size_t i;

    for (i = 0; i < sizeof(codes) / sizeof(codes[0]); i++)
        if (strcmp(codes[i].name, code) == 0)
            return codes[i].code;
    /* A code of a newer gateway: safe_new_key says whether it may have taken
     * effect. */
    return safe_new_key ? ONCE__CODE_REJECTED : ONCE__CODE_UNKNOWN;
}

/* The recorded status is read as in a replay. */
int once__client_recorded(int status)
{
    struct once__answer a = {status, ONCE__REPORTED_REPLAYED, ONCE__CODE_NONE,
                             0, 0};

    if (status < 200 || status > 599)
        return ONCE__CODE_UNKNOWN;
    switch (once__client_judge(&a).next) {
    case ONCE__NEXT_DONE:
        return ONCE__CODE_ANSWER_LOST;
    case ONCE__NEXT_REFUSED:
        return ONCE__CODE_REFUSED;
    default:
        return ONCE__CODE_FAILED;
    }
}

/* 0: there is none, or it is no status. */
static int recorded_status(const json_t *o)
{
    json_int_t n = json_integer_value(json_object_get(o, "recorded_status"));

    return n >= 200 && n <= 599 ? (int)n : 0;
}

static int is_type(once_bytes content_type, const char *type)
{
    const size_t size = strlen(type);
    const char *text = content_type.data;

    return content_type.size >= size && strncasecmp(text, type, size) == 0 &&
           (content_type.size == size || text[size] == ';' ||
            text[size] == ' ');
}

int once__client_code(once_bytes content_type, once_bytes body)
{
    const char *type, *code;
    int found = ONCE__CODE_NONE;
    json_t *o;

    if (body.size == 0 || !is_type(content_type, "application/problem+json"))
        return ONCE__CODE_NONE;
    o = json_loadb(body.data, body.size, JSON_REJECT_DUPLICATES, NULL);
    type = json_string_value(json_object_get(o, "type"));
    code = json_string_value(json_object_get(o, "code"));
    if (type != NULL && code != NULL &&
        strncmp(type, type_prefix, sizeof(type_prefix) - 1) == 0 &&
        strcmp(type + sizeof(type_prefix) - 1, code) == 0)
        found = strcmp(code, "already-done") == 0
                    ? once__client_recorded(recorded_status(o))
                    : code_of(code,
                              json_is_true(json_object_get(o, "safe_new_key")));
    json_decref(o);
    return found;
}

int once__client_told(once_bytes content_type, once_bytes body, int *recorded)
{
    static const struct {
        const char *name;
        int state;
    } states[] = {
        {"absent", ONCE_CLIENT_TOLD_ABSENT},
        {"in-flight", ONCE_CLIENT_TOLD_IN_FLIGHT},
        {"completed", ONCE_CLIENT_TOLD_COMPLETED},
        {"indeterminate", ONCE_CLIENT_TOLD_INDETERMINATE},
    };
    int state = ONCE_CLIENT_TOLD_NOTHING;
    const char *name;
    json_t *o;
    size_t i;

    *recorded = 0;
    if (body.size == 0 || !is_type(content_type, "application/json"))
        return state;
    o = json_loadb(body.data, body.size, JSON_REJECT_DUPLICATES, NULL);
    name = json_string_value(json_object_get(o, "state"));
    /* No document of a gateway promises a new key here. */
    if (name != NULL && json_is_false(json_object_get(o, "safe_new_key")))
        for (i = 0; i < sizeof(states) / sizeof(states[0]); i++)
            if (strcmp(states[i].name, name) == 0)
                state = states[i].state;
    if (state == ONCE_CLIENT_TOLD_COMPLETED)
        *recorded = recorded_status(o);
    json_decref(o);
    return state;
}
