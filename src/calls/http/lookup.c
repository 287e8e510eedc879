/* SPDX-License-Identifier: Apache-2.0 */
/*
 * lookup.c - the answer to "what became of my request?" (docs/http.md, 10).
 *
 * The shape is fixed, so it is printed and not built. Only `location` comes from
 * elsewhere. It refuses to guess: what is not known is null, and a location that
 * is no URI in ASCII is not shown with other bytes in its place.
 */
#include "calls/http/http.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "base/bytes.h"
#include "base/error.h"

enum {
    LOCATION_MAX = 2048,
    TIME_SIZE = 32, /* "2026-11-24T04:05:06.789Z", quotes, and NUL */
    NUMBER_SIZE = 16
};

/* The last millisecond of the year 9999, after which RFC 3339 has no text. */
static const uint64_t time_max_ms = UINT64_C(253402300799999);

/* ---- Values ------------------------------------------------------------ */

static const char *time_text(uint64_t ms, char out[TIME_SIZE])
{
    time_t seconds = (time_t)(ms / 1000);
    struct tm tm;
    size_t n;

    if (ms == 0 || ms > time_max_ms || gmtime_r(&seconds, &tm) == NULL)
        return "null";
    n = strftime(out, TIME_SIZE, "\"%Y-%m-%dT%H:%M:%S", &tm);
    (void)snprintf(out + n, TIME_SIZE - n, ".%03uZ\"", (unsigned)(ms % 1000));
    return out;
}

static const char *number_text(uint32_t number, char out[NUMBER_SIZE])
{
    if (number == 0)
        return "null";
    (void)snprintf(out, NUMBER_SIZE, "%u", number);
    return out;
}

static once_bytes location_of(const once__response *r)
{
    static const char name[] = "Location";
    const once_bytes wanted = {name, sizeof(name) - 1};
    once__header h;
    size_t at = 0;

    while (once__response_next(r, &at, &h))
        if (once__same_name(h.name, wanted))
            return h.value;
    return (once_bytes){NULL, 0};
}

/* In quotes, with escapes, and NUL; "null" if it is no URI that could be
 * shown. */
static const char *location_text(const once__response *r,
                                 char out[2 * LOCATION_MAX + 3])
{
    once_bytes value = location_of(r);
    const unsigned char *in = value.data;
    char *to = out;
    size_t i;

    if (value.size == 0 || value.size > LOCATION_MAX)
        return "null";
    *to++ = '"';
    for (i = 0; i < value.size; i++) {
        if (in[i] <= ' ' || in[i] > '~')
            return "null";
        if (in[i] == '"' || in[i] == '\\')
            *to++ = '\\';
        *to++ = (char)in[i];
    }
    *to++ = '"';
    *to = '\0';
    return out;
}

/* ---- The document ------------------------------------------------------- */

/* What is told; zero and NULL are null. */
struct told {
    const char *state, *reason;
    uint32_t attempt;
    uint64_t since_ms, expires_ms;
    uint32_t status;
    const char *location;
};

static size_t print(const struct told *t, char *out)
{
    char since[TIME_SIZE], expires[TIME_SIZE], attempt[NUMBER_SIZE],
        status[NUMBER_SIZE], reason[40] = "null";
    int n;

    if (t->reason != NULL)
        (void)snprintf(reason, sizeof(reason), "\"%s\"", t->reason);
    n = snprintf(out, ONCE__LOOKUP_MAX,
                 "{\"state\":\"%s\",\"attempt\":%s,\"since\":%s,"
                 "\"expires\":%s,\"recorded_status\":%s,\"reason\":%s,"
                 "\"location\":%s,\"safe_new_key\":false}",
                 t->state, number_text(t->attempt, attempt),
                 time_text(t->since_ms, since),
                 time_text(t->expires_ms, expires),
                 number_text(t->status, status), reason, t->location);
    assert(n > 0 && n < ONCE__LOOKUP_MAX);
    return (size_t)n;
}

size_t once__lookup_body(int rc, const once_record *record,
                         const once__response *stored, char *out)
{
    char location[2 * LOCATION_MAX + 3];
    struct told t = {.state = "absent", .location = "null"};

    if (rc == ONCE_FREE)
        return print(&t, out);
    t.state = "indeterminate";
    t.reason = once_reason_text(ONCE_REASON_GAP);
    /* Missing in a gap, or a failure that was perhaps tried again in it. */
    if (rc == ONCE_UNKNOWN && record->state != ONCE_INDETERMINATE)
        return print(&t, out);
    t.attempt = record->attempt;
    t.since_ms = record->ended_ms;
    t.reason = rc == ONCE_UNKNOWN ? once_reason_text(record->reason) : NULL;
    if (rc == ONCE_IN_FLIGHT) {
        t.state = "in-flight";
        t.since_ms = record->granted_ms;
    }
    if (rc == ONCE_REPLAY) {
        t.state = "completed";
        t.expires_ms = record->keep_ms;
        t.status = stored->status > 0 ? (uint32_t)stored->status : 0;
        t.location = location_text(stored, location);
    }
    return print(&t, out);
}

/* ---- Where to ask -------------------------------------------------------- */

/* "//host/a" leads to another host, and so does "/\host" in some browsers. */
int once__accept_check(once_bytes path, once_error *err)
{
    const char *text = path.data;
    size_t i;

    if (path.size == 0 || path.size > LOCATION_MAX || text[0] != '/' ||
        (path.size > 1 && text[1] == '/'))
        return once__fail(err, ONCE_EINVAL,
                          "accept: needs a path that begins with one \"/\"");
    for (i = 0; i < path.size; i++)
        if (text[i] <= ' ' || text[i] > '~' ||
            strchr("$?#\"<>\\", text[i]) != NULL)
            return once__fail(err, ONCE_EINVAL,
                              "accept: byte %zu is not one of a path without "
                              "variables and \"?\"",
                              i + 1);
    return ONCE_OK;
}

/* ---- How long to wait --------------------------------------------------- */

/* "10s", "500ms", "2m"; without a unit seconds. 0 if it is none of them. */
static uint64_t read_time(const char *text, size_t size)
{
    static const struct {
        const char *name;
        uint64_t ms;
    } units[] = {{"", 1000}, {"s", 1000}, {"ms", 1}, {"m", 60000}};
    uint64_t n = 0;
    size_t i, at = 0;

    while (at < size && at < 9 && once__is_digit(text[at]))
        n = 10 * n + (uint64_t)(text[at++] - '0');
    for (i = 0; at > 0 && i < sizeof(units) / sizeof(units[0]); i++)
        if (size - at == strlen(units[i].name) &&
            memcmp(text + at, units[i].name, size - at) == 0)
            return n * units[i].ms;
    return 0;
}

uint32_t once__lookup_wait(once_bytes query, uint32_t most_ms)
{
    static const char name[] = "wait=";
    const size_t length = sizeof(name) - 1;
    const char *at = query.size > 0 ? query.data : "";
    const char *end = at + query.size, *next;
    uint64_t ms;

    for (; at != NULL && at < end; at = next + 1) {
        next = memchr(at, '&', (size_t)(end - at));
        if (next == NULL)
            next = end;
        if ((size_t)(next - at) < length || memcmp(at, name, length) != 0)
            continue;
        ms = read_time(at + length, (size_t)(next - at) - length);
        return ms < most_ms ? (uint32_t)ms : most_ms;
    }
    return 0;
}
