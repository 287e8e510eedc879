/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sqlstore.c - see sqlstore.h. No token, fingerprint or result is shown: lines end up
 * in tickets.
 */
#include "calls/store/sqlstore.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/bytes.h"
#include "calls/core/record.h"

enum {
    IMPORT_MAX = 256,       /* records of one transaction */
    IMPORT_BYTES = 16 << 20 /* and bytes of their results */
};

int once__same_head(const once_record *a, const once_record *b)
{
    uint8_t x[ONCE__RECORD_HEAD], y[ONCE__RECORD_HEAD];

    once__record_head(a, x);
    once__record_head(b, y);
    return memcmp(x, y, sizeof(x)) == 0;
}

size_t once__import_part(const once_named *r, size_t n)
{
    size_t i, bytes = 0;

    for (i = 0; i < n && i < IMPORT_MAX; i++) {
        bytes += r[i].record.result.size;
        if (i > 0 && bytes > IMPORT_BYTES)
            break;
    }
    return i;
}

void once__damaged(once_record *r)
{
    const once_record place = {
        .state = 255, .ended_ms = r->ended_ms, .lease_ms = r->lease_ms};

    *r = place;
}

static const char *state_text(int state)
{
    static const char *const texts[] = {
        [ONCE_ABSENT] = "absent",
        [ONCE_CLAIMED] = "claimed",
        [ONCE_DISPATCHED] = "dispatched",
        [ONCE_COMPLETED] = "completed",
        [ONCE_INDETERMINATE] = "indeterminate",
    };

    return state <= ONCE_INDETERMINATE ? texts[state] : "damaged";
}

/* It should be printable, but any program may have written it. */
static void print_text(const uint8_t *text, size_t size, char *out)
{
    size_t i;

    for (i = 0; i < size && text[i] != 0; i++)
        out[i] = text[i] >= ' ' && text[i] < 127 ? (char)text[i] : '?';
    out[i] = '\0';
    if (i == 0)
        memcpy(out, "-", 2);
}

int once__lines_record(void *user, const uint8_t name[ONCE_NAME_SIZE],
                       const once_record *record)
{
    const struct once__lines *l = user;
    static const char *const kinds[] = {"-", "success", "failure"};
    char key[2 * ONCE_NAME_SIZE + 1], group[ONCE_GROUP_SIZE + 2],
        label[ONCE_LABEL_MAX + 2], text[ONCE__LINE];

    once__hex(name, ONCE_NAME_SIZE, key);
    print_text(record->group, ONCE_GROUP_SIZE, group);
    print_text(record->label.data, record->label.size, label);
    (void)snprintf(text, sizeof(text),
                   "%s %s %s attempt %" PRIu32 " fence %" PRIu64
                   " created_ms %" PRIu64 " granted_ms %" PRIu64
                   " ended_ms %" PRIu64 " lease_ms %" PRIu64 " keep_ms %" PRIu64
                   " reason %s result %zu note %zu group %s label %s",
                   key, state_text(record->state),
                   record->kind <= ONCE_FAILURE ? kinds[record->kind] : "?",
                   record->attempt, record->fence, record->created_ms,
                   record->granted_ms, record->ended_ms, record->lease_ms,
                   record->keep_ms, once_reason_text(record->reason),
                   record->result.size, record->note.size, group, label);
    l->line(l->user, text);
    return 0;
}

void once__lines_problem(struct once__lines *l, const char *text)
{
    l->line(l->user, text);
    l->problems++;
}

int once__lines_damage(void *user, const uint8_t name[ONCE_NAME_SIZE],
                       const once_record *record)
{
    char key[2 * ONCE_NAME_SIZE + 1], text[ONCE__LINE];

    if (record->state <= ONCE_INDETERMINATE)
        return 0;
    once__hex(name, ONCE_NAME_SIZE, key);
    (void)snprintf(text, sizeof(text), "record %s fails its checksum", key);
    once__lines_problem(user, text);
    return 0;
}
