/* SPDX-License-Identifier: Apache-2.0 */
/*
 * anchor.c - lines of a log that were kept elsewhere, where who may write to the
 * log may not: in syslog, or in a file of another owner.
 *
 *    TIME HOST once[7]: once audit: /var/log/once/audit.jsonl: {"seq":7, ...}
 *    <85>1 TIME HOST once 7 - - once audit: /var/log/once/audit.jsonl: {...}
 *    {..."SYSLOG_IDENTIFIER":"once","MESSAGE":"once audit: ..."}
 *    {"lines":7, ... "last":7,"hash":"..."}     (once audit verify --json)
 *
 * Others write to syslog, too, and what strangers say to them: so the tag must be
 * of a program of ours, and the words must begin its message. What is anything else
 * is passed over, and so is a line of another log.
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

/* ---- One line ------------------------------------------------------------- */

/* The programs that write a log, as syslog calls them. */
static int is_tag(const char *tag, size_t size)
{
    static const char *const tags[] = {"once", "once-console"};
    size_t i;

    for (i = 0; i < sizeof(tags) / sizeof(tags[0]); i++)
        if (strlen(tags[i]) == size && memcmp(tag, tags[i], size) == 0)
            return 1;
    return 0;
}

/* The text after the next space; NULL: the line has no more spaces. */
static const char *next_word(const char *at)
{
    at += strcspn(at, " \n");
    return *at == ' ' ? at + 1 : NULL;
}

/* Behind one element of the structured data, "[id name=\"value\" ...]". A quote or a
 * bracket in a value stands behind a backslash, or is quoted. */
static const char *skip_element(const char *at)
{
    int quoted = 0;

    for (; *at != '\0' && (quoted || *at != ']'); at++) {
        if (quoted && at[0] == '\\' && at[1] != '\0')
            at++;
        else if (*at == '"')
            quoted = !quoted;
    }
    return at + (*at == ']');
}

/* RFC 5424: "<PRI>1 TIME HOST APP-NAME PROCID MSGID SD MSG", from its TIME on. */
static const char *message_of_5424(const char *at)
{
    const char *app = next_word(at);
    size_t i;

    app = app == NULL ? NULL : next_word(app);
    if (app == NULL || !is_tag(app, strcspn(app, " \n")))
        return NULL;
    at = app;
    for (i = 0; at != NULL && i < 3; i++)
        at = next_word(at);
    if (at == NULL)
        return NULL;
    at += *at == '-';
    while (*at == '[')
        at = skip_element(at);
    if (*at != ' ')
        return NULL;
    return strncmp(++at, "\xef\xbb\xbf", 3) == 0 ? at + 3 : at;
}

/* "TIME HOST TAG[PID]: MSG", as RFC 3164, rsyslog and journalctl write it: the tag
 * is the first word that ends with a colon, whatever the time looks like. */
static const char *message_of_tag(const char *at)
{
    size_t n, tag;

    for (; at != NULL; at = next_word(at)) {
        n = strcspn(at, " \n");
        if (n == 0 || at[n - 1] != ':')
            continue;
        tag = strcspn(at, "[:");
        if (at[tag] == '[' &&
            at[tag + 1 + strspn(at + tag + 1, "0123456789")] != ']')
            return NULL;
        return is_tag(at, tag) ? next_word(at) : NULL;
    }
    return NULL;
}

/* The message of a line of syslog that a program of ours wrote, or NULL. */
static const char *message_of(const char *line)
{
    size_t digits;

    if (line[0] == '<') {
        digits = strspn(line + 1, "0123456789");
        if (digits == 0 || line[1 + digits] != '>')
            return NULL;
        line += digits + 2;
        if (strncmp(line, "1 ", 2) == 0)
            return message_of_5424(line + 2);
    }
    return message_of_tag(line);
}

/* Where the object of a message begins, or NULL: it has none of this log. */
static const char *object_of(const char *text, const char *log)
{
    static const char begin[] = "once audit: ";
    size_t n = log != NULL ? strlen(log) : 0;

    if (text == NULL || strncmp(text, begin, sizeof(begin) - 1) != 0)
        return NULL;
    text += sizeof(begin) - 1;
    if (text[0] == '{')
        return text;
    if (log == NULL) {
        text = strstr(text, ": {");
        return text == NULL ? NULL : text + 2;
    }
    if (strncmp(text, log, n) != 0 || strncmp(text + n, ": {", 3) != 0)
        return NULL;
    return text + n + 2;
}

/* ---- All lines ------------------------------------------------------------- */

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

static int take_object(once__audit_anchors *a, json_t *o)
{
    json_t *seq = json_object_get(o, "seq");
    const char *hash = json_string_value(json_object_get(o, "hash"));

    if (seq == NULL)
        seq = json_object_get(o, "last");
    if (json_integer_value(seq) <= 0 || hash == NULL ||
        strlen(hash) != ONCE__AUDIT_HEX - 1)
        return ONCE_OK;
    return add(a, (uint64_t)json_integer_value(seq), hash);
}

static int take_message(once__audit_anchors *a, const char *text,
                        const char *log)
{
    json_t *o = NULL;
    int rc;

    text = object_of(text, log);
    if (text != NULL)
        o = json_loads(text, JSON_DISABLE_EOF_CHECK, NULL);
    rc = take_object(a, o);
    json_decref(o);
    return rc;
}

/* A line that is an object is one of `once audit verify --json`, of a log itself,
 * or of `journalctl -o json`. */
static int take(once__audit_anchors *a, const char *line, const char *log)
{
    json_t *o;
    const char *tag;
    int rc;

    if (line[0] != '{')
        return take_message(a, message_of(line), log);
    o = json_loads(line, JSON_DISABLE_EOF_CHECK, NULL);
    tag = json_string_value(json_object_get(o, "SYSLOG_IDENTIFIER"));
    if (json_object_get(o, "MESSAGE") == NULL)
        rc = take_object(a, o);
    else if (tag != NULL && is_tag(tag, strlen(tag)))
        rc = take_message(a, json_string_value(json_object_get(o, "MESSAGE")),
                          log);
    else
        rc = ONCE_OK;
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
