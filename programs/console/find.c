/* SPDX-License-Identifier: Apache-2.0 */
/*
 * find.c - by the beginning of a hash, by the request or the group and key that
 * were given, by what the label or the trace id says.
 *
 * The question is a POST, so that a key stands in no address, log or history.
 * Key and scope are hashed here and forgotten. Labels and traces are looked for
 * among what waits and what is live; the gateway's log has the rest.
 */
#include "programs/console/console.h"

#include <stdlib.h>
#include <string.h>

#include <once/call.h>

enum { FOUND_MAX = 50, LOOKED_AT_MAX = 20000, SCAN = 256 };

struct found {
    json_t *list;
    int complete; /* 0: there is more that was not looked at */
};

static once_bytes bytes_of(const char *text)
{
    return (once_bytes){text, text ? strlen(text) : 0};
}

/* Adds a record, if the store has it. */
static int add_by_name(struct console_store *s,
                       const uint8_t name[ONCE_NAME_SIZE], struct found *f,
                       once_error *err)
{
    once_op op;
    int rc = once__look(s->e, name, &op, err);

    if (rc >= 0 && op.record.attempt != 0)
        json_array_append_new(f->list,
                              console_json_record(s, name, &op.record));
    once_op_clear(&op);
    return rc < 0 ? rc : ONCE_OK;
}

static int by_hash(struct console_store *s, const json_t *body, struct found *f,
                   once_error *err)
{
    uint8_t names[2][ONCE_NAME_SIZE];
    int bad = 0, n, i, rc = ONCE_OK;
    const char *hash = console_text(body, "hash", &bad);
    once__prefix p;

    rc = once__prefix_read(hash ? hash : "", ONCE__DIGITS_MIN, &p, err);
    if (rc < 0)
        return rc;
    n = once__find(s->e, &p, names, err);
    if (n == 2)
        f->complete = 0; /* there may be a third */
    for (i = 0; i < n && rc == ONCE_OK; i++)
        rc = add_by_name(s, names[i], f, err);
    return n < 0 ? n : rc;
}

static int invalid(once_error *err, const char *text)
{
    err->code = ONCE_EINVAL;
    snprintf(err->text, sizeof(err->text), "%s", text);
    return ONCE_EINVAL;
}

static int by_key(struct console_store *s, const json_t *body, struct found *f,
                  once_error *err)
{
    uint8_t name[ONCE_NAME_SIZE];
    int bad = 0;
    const char *group = console_text(body, "group", &bad);
    const char *key = console_text(body, "key", &bad);

    if (bad || key == NULL)
        return invalid(err, "a group and a key are texts");
    if (group == NULL || group[0] == '\0')
        group = ONCE_GROUP_DEFAULT;
    if (once_name(group, bytes_of(key), name) < 0)
        return invalid(err, "a group has 1 to 32 printable characters, a key "
                            "1 to 255 bytes");
    return add_by_name(s, name, f, err);
}

static int by_request(struct console_store *s, const json_t *body,
                      struct found *f, once_error *err)
{
    uint8_t name[ONCE_NAME_SIZE];
    int bad = 0, rc;
    const once__request r = {
        .scope = bytes_of(console_text(body, "scope", &bad)),
        .realm = bytes_of(console_text(body, "realm", &bad)),
        .method = bytes_of(console_text(body, "method", &bad)),
        .path = bytes_of(console_text(body, "path", &bad)),
        .key = bytes_of(console_text(body, "key", &bad)),
    };

    if (bad)
        return invalid(err, "scope, realm, method, path and key are texts");
    rc = once__request_name(&r, name, err);
    return rc < 0 ? rc : add_by_name(s, name, f, err);
}

/* ---- By what stands in the record ---------------------------------------- */

struct walk {
    struct console_store *s;
    struct found *f;
    const char *label; /* or NULL */
    uint8_t trace[ONCE_TRACE_SIZE];
    int what;
    once_position after;
    size_t seen;
    uint8_t names[SCAN][ONCE_NAME_SIZE];
    size_t n;
};

/* On the engine's thread: compares, and notes the name. */
static int compare(void *user, const uint8_t name[ONCE_NAME_SIZE],
                   const once_record *r)
{
    struct walk *w = user;
    int is;

    w->after = once_position_of(w->what, name, r);
    w->seen++;
    if (w->label != NULL)
        is = r->label.size > 0 && memmem(r->label.data, r->label.size, w->label,
                                         strlen(w->label)) != NULL;
    else
        is = memcmp(r->trace, w->trace, ONCE_TRACE_SIZE) == 0;
    if (is)
        memcpy(w->names[w->n++], name, ONCE_NAME_SIZE);
    return 0;
}

static int walk(struct walk *w, int what, once_error *err)
{
    const once_position *after = NULL;
    size_t i;
    int n, rc = ONCE_OK;

    w->what = what;
    do {
        w->n = 0;
        n = once_scan(w->s->e, what, after, SCAN, compare, w, err);
        after = &w->after;
        for (i = 0; n >= 0 && rc == ONCE_OK && i < w->n; i++) {
            if (json_array_size(w->f->list) == FOUND_MAX) {
                w->f->complete = 0;
                return ONCE_OK;
            }
            rc = add_by_name(w->s, w->names[i], w->f, err);
        }
    } while (n == SCAN && rc == ONCE_OK && w->seen < LOOKED_AT_MAX);
    if (n == SCAN)
        w->f->complete = 0;
    return n < 0 ? n : rc;
}

static int by_walk(struct console_store *s, const json_t *body, struct found *f,
                   once_error *err)
{
    struct walk *w = calloc(1, sizeof(*w));
    int bad = 0, rc = ONCE_OK;
    const char *label = console_text(body, "label", &bad);
    const char *trace = console_text(body, "trace", &bad);
    once__prefix p;

    if (w == NULL)
        return ONCE_ENOMEM;
    w->s = s;
    w->f = f;
    w->label = label;
    if (label != NULL ? label[0] == '\0'
                      : trace == NULL || strlen(trace) != 2 * ONCE_TRACE_SIZE)
        rc = invalid(err, "a part of a label, or the 32 digits of a trace id");
    if (rc == ONCE_OK && label == NULL) {
        rc = once__prefix_read(trace, 2 * ONCE_TRACE_SIZE, &p, err);
        memcpy(w->trace, p.bytes, ONCE_TRACE_SIZE);
    }
    if (rc == ONCE_OK)
        rc = walk(w, ONCE_SCAN_WAITING, err);
    if (rc == ONCE_OK)
        rc = walk(w, ONCE_SCAN_LIVE, err);
    free(w);
    return rc;
}

/* ---- All of them --------------------------------------------------------- */

static const struct {
    const char *by;
    int (*find)(struct console_store *s, const json_t *body, struct found *f,
                once_error *err);
} ways[] = {
    {"hash", by_hash},  {"key", by_key},    {"request", by_request},
    {"label", by_walk}, {"trace", by_walk},
};

enum MHD_Result console_find(struct console_request *ask)
{
    struct found f = {json_array(), 1};
    json_t *silent = json_array();
    once_error err = {0, ""};
    int bad = 0, rc = ONCE_OK;
    const char *by = console_text(ask->body, "by", &bad);
    size_t w, i;

    for (w = 0; w < sizeof(ways) / sizeof(ways[0]); w++)
        if (by != NULL && strcmp(ways[w].by, by) == 0)
            break;
    if (w == sizeof(ways) / sizeof(ways[0]))
        rc = invalid(&err, "by is hash, key, request, label or trace");
    for (i = 0; rc == ONCE_OK && i < ask->con->n; i++) {
        rc = ways[w].find(&ask->con->stores[i], ask->body, &f, &err);
        if (rc < 0 && rc != ONCE_EINVAL && rc != ONCE_ELIMIT) {
            /* The others may have it. */
            json_array_append_new(silent,
                                  json_string(ask->con->stores[i].name));
            rc = ONCE_OK;
        }
    }
    if (rc < 0) {
        json_decref(f.list);
        json_decref(silent);
        return console_store_error(ask, rc, &err);
    }
    return console_reply(
        ask, MHD_HTTP_OK,
        json_pack("{s:o, s:o, s:b, s:o}", "now", cli_json_time(cli_now_ms()),
                  "matches", f.list, "complete", f.complete, "silent", silent));
}
