/* SPDX-License-Identifier: Apache-2.0 */
/*
 * anchor.c - lines of a log that were kept elsewhere, where who may write to the
 * log may not: in syslog, or in a file of another owner.
 *
 *    ... once audit: /var/log/once/audit.jsonl: {"seq":7, ... "hash":"..."}
 *    {"lines":7, ... "last":7,"hash":"..."}     (once audit verify --json)
 *
 * What is anything else is passed over, and so is a line of another log.
 */
#include "operate/audit/line.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/grow.h"

struct anchor {
    uint64_t seq;
    char hash[ONCE__AUDIT_HEX];
};

struct once__audit_anchors {
    struct anchor *list; /* by number */
    size_t n, room;
};

/* Where the object of a line begins, or NULL: it has none of this log. */
static const char *object_of(const char *line, const char *log)
{
    static const char begin[] = "once audit: ";
    const char *text = strstr(line, begin);
    size_t n = log != NULL ? strlen(log) : 0;

    if (text == NULL)
        return strchr(line, '{');
    text += sizeof(begin) - 1;
    if (text[0] == '{' || log == NULL)
        return strchr(text, '{');
    if (strncmp(text, log, n) != 0 || strncmp(text + n, ": {", 3) != 0)
        return NULL;
    return text + n + 2;
}

static int add(once__audit_anchors *a, uint64_t seq, const char *hash)
{
    struct anchor *more =
        once__grown(a->list, &a->room, a->n + 1, sizeof(*more));

    if (more == NULL)
        return ONCE_ENOMEM;
    a->list = more;
    a->list[a->n].seq = seq;
    snprintf(a->list[a->n].hash, sizeof(a->list[a->n].hash), "%s", hash);
    a->n++;
    return ONCE_OK;
}

static int take(once__audit_anchors *a, const char *line, const char *log)
{
    const char *text = object_of(line, log), *hash;
    json_t *o, *seq;
    int rc = ONCE_OK;

    if (text == NULL)
        return ONCE_OK;
    o = json_loads(text, JSON_DISABLE_EOF_CHECK, NULL);
    seq = json_object_get(o, "seq");
    if (seq == NULL)
        seq = json_object_get(o, "last");
    hash = json_string_value(json_object_get(o, "hash"));
    if (json_integer_value(seq) > 0 && hash != NULL &&
        strlen(hash) == ONCE__AUDIT_HEX - 1)
        rc = add(a, (uint64_t)json_integer_value(seq), hash);
    json_decref(o);
    return rc;
}

static int by_number(const void *a, const void *b)
{
    uint64_t x = ((const struct anchor *)a)->seq;
    uint64_t y = ((const struct anchor *)b)->seq;

    return (x > y) - (x < y);
}

int once__audit_anchors_read(const char *path, const char *log,
                             once__audit_anchors **out, once_error *err)
{
    int is_stdin = strcmp(path, "-") == 0, rc = ONCE_OK;
    FILE *in = is_stdin ? stdin : fopen(path, "re");
    once__audit_anchors *a = calloc(1, sizeof(*a));
    char *line = NULL;
    size_t room = 0;

    if (in == NULL)
        rc = once__fail(err, ONCE_EOPEN, "%s: cannot be read: %s", path,
                        strerror(errno));
    if (a == NULL)
        rc = ONCE_ENOMEM;
    while (rc == ONCE_OK && getline(&line, &room, in) > 0)
        rc = take(a, line, log);
    if (rc == ONCE_OK && ferror(in))
        rc = once__fail(err, ONCE_EOPEN, "%s: cannot be read: %s", path,
                        strerror(errno));
    if (rc == ONCE_ENOMEM)
        rc = once__fail(err, rc, "out of memory");
    free(line);
    if (in != NULL && !is_stdin)
        (void)fclose(in);
    if (rc != ONCE_OK) {
        once__audit_anchors_free(a);
        return rc;
    }
    if (a->n > 0)
        qsort(a->list, a->n, sizeof(*a->list), by_number);
    *out = a;
    return ONCE_OK;
}

void once__audit_anchors_free(once__audit_anchors *a)
{
    if (a == NULL)
        return;
    free(a->list);
    free(a);
}

uint64_t once__audit_anchors_last(const once__audit_anchors *a)
{
    return a->n > 0 ? a->list[a->n - 1].seq : 0;
}

int once__audit_anchored(const once__audit_anchors *a, uint64_t seq,
                         const char *hash)
{
    size_t low = 0, high = a->n, at;
    int is = 0;

    while (low < high) {
        at = low + (high - low) / 2;
        if (a->list[at].seq < seq)
            low = at + 1;
        else
            high = at;
    }
    for (; low < a->n && a->list[low].seq == seq; low++) {
        if (strcmp(a->list[low].hash, hash) != 0)
            return -1;
        is = 1;
    }
    return is;
}
