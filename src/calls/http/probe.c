/* SPDX-License-Identifier: Apache-2.0 */
/*
 * probe.c - a claim was answered "unknown", and the service is asked what
 * became of the record (docs/http.md, 3.5).
 *
 *    may_probe --> the caller asks --> judge_probe --> APPLIED: probe_fill
 *                                          |
 *                                          +--> anything else: it stays unknown
 *
 * One answer decides, "applied" about this very record, and only from
 * "indeterminate" to an outcome. "Not applied" never counts: a service that
 * looked and found nothing may still get the request (docs/protocol.md, 11).
 */
#include "calls/http/http.h"

#include <assert.h>
#include <string.h>

#include "base/bytes.h"

#define COUNT(a) (sizeof(a) / sizeof((a)[0]))

enum {
    STATUS_OK = 200,
    RECORDED_MIN = 200,
    RECORDED_MAX = 599,
    PAUSE_MS = 1000
};

const char *once__probe_text(int result)
{
    static const char *const texts[] = {
#define TEXT(name, text) text,
        ONCE__PROBES(TEXT)
#undef TEXT
    };

    assert(result >= 0 && result < ONCE__PROBE_COUNT);
    return texts[result];
}

int once__may_probe(const once__policy *policy, int rc,
                    const once_record *record)
{
    return policy->probe && !policy->takeover && !policy->dry_run &&
           rc == ONCE_UNKNOWN && record != NULL &&
           record->state == ONCE_INDETERMINATE && record->fence > 0;
}

/* ---- Places ------------------------------------------------------------ */

static int is_place_of(const struct once__probe_place *p,
                       const uint8_t name[ONCE_NAME_SIZE])
{
    return p->used && memcmp(p->name, name, ONCE_NAME_SIZE) == 0;
}

/* Names are hashes: their first byte spreads them. One that has lost its place
 * here to another may be asked about sooner. */
static int is_too_soon(once__probe_places *places,
                       const uint8_t name[ONCE_NAME_SIZE], uint64_t now_ms)
{
    struct once__probe_place *p =
        &places->recent[name[0] % ONCE__PROBES_RECENT];

    if (is_place_of(p, name) && now_ms - p->at_ms < PAUSE_MS)
        return 1;
    p->used = 1;
    p->at_ms = now_ms;
    memcpy(p->name, name, ONCE_NAME_SIZE);
    return 0;
}

int once__probe_enter(once__probe_places *places,
                      const uint8_t name[ONCE_NAME_SIZE], uint64_t now_ms)
{
    int i, place = -1;

    for (i = 0; i < ONCE__PROBES_MAX; i++) {
        if (is_place_of(&places->now[i], name))
            return -1;
        if (place < 0 && !places->now[i].used)
            place = i;
    }
    if (place < 0 || is_too_soon(places, name, now_ms))
        return -1;
    places->now[place].used = 1;
    memcpy(places->now[place].name, name, ONCE_NAME_SIZE);
    return place;
}

void once__probe_leave(once__probe_places *places, int place)
{
    places->now[place].used = 0;
}

/* ---- The answer -------------------------------------------------------- */

/* A header of which there are two says nothing. */
static void keep(once_bytes *to, once_bytes value, int *twice)
{
    *twice |= to->data != NULL;
    *to = value;
}

void once__probe_header(once__probe_reply *r, once_bytes name, once_bytes value)
{
    const struct {
        const char *name;
        once_bytes *value;
    } rows[] = {
        {ONCE__HEADER_RECORD, &r->record},
        {"Idempotency-Outcome", &r->outcome},
        {ONCE__HEADER_RECORDED_STATUS, &r->recorded_status},
    };
    size_t i;

    for (i = 0; i < COUNT(rows); i++)
        if (once__same_name(name,
                            (once_bytes){rows[i].name, strlen(rows[i].name)}))
            keep(rows[i].value, value, &r->twice);
}

static int is_text(once_bytes b, const char *text)
{
    return once__same_name(b, (once_bytes){text, strlen(text)});
}

static int is_of(once_bytes record, const uint8_t name[ONCE_NAME_SIZE])
{
    char text[ONCE__RECORD_TEXT];

    once__hex(name, ONCE_NAME_SIZE, text);
    return is_text(record, text);
}

/* "201", or 0. */
static int recorded_status(once_bytes text)
{
    const char *s = text.data;
    int i, status = 0;

    if (text.size != 3)
        return 0;
    for (i = 0; i < 3; i++) {
        if (s[i] < '0' || s[i] > '9')
            return 0;
        status = status * 10 + (s[i] - '0');
    }
    return status >= RECORDED_MIN && status <= RECORDED_MAX ? status : 0;
}

int once__judge_probe(const once__probe_reply *r,
                      const uint8_t name[ONCE_NAME_SIZE], int *status)
{
    *status = 0;
    if (r->observed != ONCE__WHOLE)
        return ONCE__PROBE_SILENT;
    if (!r->own || r->twice || r->status != STATUS_OK ||
        !is_of(r->record, name))
        return ONCE__PROBE_INVALID;
    if (is_text(r->outcome, "not-applied"))
        return ONCE__PROBE_NOT_APPLIED;
    if (!is_text(r->outcome, "applied"))
        return ONCE__PROBE_UNKNOWN;
    *status = recorded_status(r->recorded_status);
    return *status != 0 ? ONCE__PROBE_APPLIED : ONCE__PROBE_INVALID;
}

/* ---- The decision ------------------------------------------------------ */

void once__probe_fill(const once__policy *policy,
                      const uint8_t name[ONCE_NAME_SIZE], uint64_t fence,
                      once_bytes result, once_op *out)
{
    assert(fence > 0);
    memset(out, 0, sizeof(*out));
    out->verb = ONCE_OP_RESOLVE;
    out->kind = ONCE_SUCCESS;
    out->fence = fence;
    out->keep_ms = policy->keep_ms;
    out->store_ms = policy->store_ms;
    memcpy(out->name, name, sizeof(out->name));
    out->result = result;
    out->note = (once_bytes){ONCE__PROBE_NOTE, sizeof(ONCE__PROBE_NOTE) - 1};
}

int once__probe_answered(int rc)
{
    return rc == ONCE_OK || rc == ONCE_REFUSED;
}
