/* SPDX-License-Identifier: Apache-2.0 */
/*
 * look.c - what is read: stores, lists of records, one record and what happened
 * to it, the audit log.
 *
 * A list is read in pages behind a place, never by number, so that each costs
 * the same. What is copied is copied on the engine's thread; all else happens on
 * the connection's.
 */
#include "programs/console/console.h"
#include "base/bytes.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { SCAN = 256, LOOKED_AT_MAX = 8192, LINES_MAX = 200 };

/* ---- Stores -------------------------------------------------------------- */

int console_head(struct console_store *s, once_store_head *out)
{
    return once_head(s->e, out, NULL) == ONCE_OK;
}

struct first {
    int n;
    uint64_t ms;
};

static int take_first(void *user, const uint8_t name[ONCE_NAME_SIZE],
                      const once_record *r)
{
    struct first *f = user;

    (void)name;
    f->n++;
    f->ms = r->ended_ms;
    return 1;
}

static json_t *head_of(struct console_store *s)
{
    static const char *const gaps[] = {"none", "hold", "accept"};
    char id[2 * ONCE_STORE_ID_SIZE + 1];
    once_store_head h;

    if (!console_head(s, &h))
        return json_null();
    once__hex(h.id, ONCE_STORE_ID_SIZE, id);
    return json_pack("{s:s, s:I, s:s, s:o, s:o}", "id", id, "incarnation",
                     (json_int_t)h.incarnation, "gap",
                     gaps[h.gap <= ONCE_GAP_ACCEPT ? h.gap : 0], "gap_from",
                     cli_json_time(h.gap_from_ms), "gap_until",
                     cli_json_time(h.gap_until_ms));
}

static json_t *counts_of(struct console_store *s)
{
    once_counts n;

    if (once_count(s->e, &n, NULL) != ONCE_OK)
        return json_null();
    return json_pack("{s:I, s:I, s:I, s:I, s:b}", "claimed",
                     (json_int_t)n.claimed, "dispatched",
                     (json_int_t)n.dispatched, "indeterminate",
                     (json_int_t)n.indeterminate, "rest", (json_int_t)n.rest,
                     "rest_estimated", n.rest_estimated);
}

/* A path that an event names may have any bytes. */
static json_t *text_or_null(const char *text)
{
    return text[0] != '\0' ? cli_json_text((once_bytes){text, strlen(text)})
                           : json_null();
}

static json_t *json_store(struct console_store *s)
{
    char caveat[sizeof(s->caveat)], trouble[sizeof(s->trouble)];
    struct first oldest = {0, 0};
    once_error err = {0, ""};
    once_stats stats;
    uint64_t bytes = 0, left = 0;
    int known = console_disk(s, &bytes, &left);
    const char *why = "";

    if (once_scan(s->e, ONCE_SCAN_WAITING, NULL, 1, take_first, &oldest, &err) <
        0)
        why = err.text[0] ? err.text : once_text(err.code);
    once_engine_stats(s->e, &stats);
    pthread_mutex_lock(&s->lock);
    memcpy(caveat, s->caveat, sizeof(caveat));
    memcpy(trouble, s->trouble, sizeof(trouble));
    pthread_mutex_unlock(&s->lock);
    return json_pack(
        "{s:s, s:s, s:b, s:o, s:b, s:o, s:o, s:o, s:o, s:o, s:I, s:I, s:o, "
        "s:o}",
        "name", s->name, "driver", s->driver, "durable", caveat[0] == '\0',
        "caveat", text_or_null(caveat), "answers", why[0] == '\0', "trouble",
        text_or_null(why), "event", text_or_null(trouble), "head", head_of(s),
        "counts", counts_of(s), "oldest_waiting", cli_json_time(oldest.ms),
        "corrupt_seen", (json_int_t)stats.corrupt, "unanswered",
        (json_int_t)stats.unknown, "bytes",
        known ? json_integer((json_int_t)bytes) : json_null(), "free",
        known ? json_integer((json_int_t)left) : json_null());
}

enum MHD_Result console_store(struct console_request *ask)
{
    return console_reply(ask, MHD_HTTP_OK, json_store(ask->store));
}

struct asking {
    struct console_store *s;
    json_t *told;
    pthread_t thread;
    int has_thread;
};

static void *ask_store(void *user)
{
    struct asking *a = user;

    a->told = json_store(a->s);
    return NULL;
}

/* All at once: several that are silent are waited for as long as one. */
enum MHD_Result console_stores(struct console_request *ask)
{
    struct asking asked[CONSOLE_STORES_MAX], *a;
    json_t *list = json_array();
    size_t i;

    for (i = 0; i < ask->con->n; i++) {
        a = &asked[i];
        *a = (struct asking){.s = &ask->con->stores[i]};
        a->has_thread = ask->con->n > 1 &&
                        pthread_create(&a->thread, NULL, ask_store, a) == 0;
        if (!a->has_thread)
            (void)ask_store(a);
    }
    for (i = 0; i < ask->con->n; i++) {
        if (asked[i].has_thread)
            pthread_join(asked[i].thread, NULL);
        json_array_append_new(list, asked[i].told);
    }
    return console_reply(ask, MHD_HTTP_OK,
                         json_pack("{s:o, s:o}", "now",
                                   cli_json_time(cli_now_ms()), "stores",
                                   list));
}

/* ---- Lists --------------------------------------------------------------- */

struct row {
    uint8_t name[ONCE_NAME_SIZE];
    once_record record;
    char label[ONCE_LABEL_MAX];
};

struct list {
    int what;
    uint8_t group[ONCE_GROUP_SIZE];
    int by_group;
    const char *reason;
    uint64_t older_ms, now_ms;
    once_position after;
    int has_after;
    size_t limit;
    json_t *records;
    struct row rows[SCAN];
    size_t n;
};

static int collect(void *user, const uint8_t name[ONCE_NAME_SIZE],
                   const once_record *r)
{
    struct list *l = user;
    struct row *row = &l->rows[l->n];

    if (l->n == SCAN)
        return 1;
    memcpy(row->name, name, ONCE_NAME_SIZE);
    row->record = *r;
    if (r->label.size > 0 && r->label.size <= ONCE_LABEL_MAX)
        memcpy(row->label, r->label.data, r->label.size);
    else
        row->record.label.size = 0;
    row->record.label.data = row->label;
    row->record.note = (once_bytes){NULL, 0};
    row->record.result.data = NULL;
    l->n++;
    return 0;
}

static int wanted(const struct list *l, const once_record *r)
{
    uint64_t since_ms = r->ended_ms ? r->ended_ms : r->granted_ms;

    if (r->state > ONCE_INDETERMINATE)
        return !l->by_group && l->reason == NULL && l->older_ms == 0;
    return (!l->by_group || memcmp(r->group, l->group, ONCE_GROUP_SIZE) == 0) &&
           (l->reason == NULL ||
            strcmp(l->reason, once_reason_text(r->reason)) == 0) &&
           (l->older_ms == 0 ||
            (since_ms < l->now_ms && l->now_ms - since_ms > l->older_ms));
}

/* Adds what is wanted of one page. */
static void add_rows(struct console_store *s, struct list *l)
{
    size_t i;

    for (i = 0; i < l->n && json_array_size(l->records) < l->limit; i++) {
        const struct row *row = &l->rows[i];

        l->after = once_position_of(l->what, row->name, &row->record);
        l->has_after = 1;
        if (wanted(l, &row->record))
            json_array_append_new(
                l->records, console_json_record(s, row->name, &row->record));
    }
}

/* 1: there may be more behind l->after; 0: that was all; or an error. */
static int fill(struct console_store *s, struct list *l, once_error *err)
{
    size_t seen = 0, some;
    int rc;

    do {
        l->n = 0;
        some = l->by_group || l->reason || l->older_ms ? SCAN : l->limit;
        rc = once_scan(s->e, l->what, l->has_after ? &l->after : NULL,
                       (uint32_t)some, collect, l, err);
        if (rc < 0)
            return rc;
        add_rows(s, l);
        seen += l->n;
        if (json_array_size(l->records) == l->limit)
            return 1;
    } while (l->n == some && seen < LOOKED_AT_MAX);
    return l->n == some && seen >= LOOKED_AT_MAX;
}

static int read_place(const char *text, once_position *out)
{
    char *end = NULL;
    once__prefix p;

    if (strlen(text) > 20 + 1 + ONCE__DIGITS || text[0] < '0' || text[0] > '9')
        return 0;
    out->ms = strtoull(text, &end, 10);
    if (*end != '-' ||
        once__prefix_read(end + 1, ONCE__DIGITS, &p, NULL) != ONCE_OK)
        return 0;
    memcpy(out->name, p.bytes, ONCE_NAME_SIZE);
    return 1;
}

static int read_count(const char *text, uint64_t most, uint64_t *out)
{
    if (text[0] == '\0' || strlen(text) > 12 ||
        strspn(text, "0123456789") != strlen(text))
        return 0;
    *out = strtoull(text, NULL, 10);
    return *out <= most;
}

/* NULL, or the name of the parameter that is wrong. */
static const char *read_list(const struct console_request *ask, struct list *l)
{
    const char *what = console_argument(ask, "what");
    const char *group = console_argument(ask, "realm");
    const char *older = console_argument(ask, "older");
    const char *after = console_argument(ask, "after");
    const char *limit = console_argument(ask, "limit");
    uint64_t n = 50;

    l->what = what == NULL || strcmp(what, "waiting") == 0 ? ONCE_SCAN_WAITING
              : strcmp(what, "live") == 0                  ? ONCE_SCAN_LIVE
              : strcmp(what, "all") == 0                   ? ONCE_SCAN_ALL
                                                           : -1;
    l->reason = console_argument(ask, "reason");
    l->now_ms = cli_now_ms();
    if (l->what < 0)
        return "what";
    if (group != NULL && group[0] != '\0') {
        l->by_group = 1;
        if (strlen(group) > ONCE_GROUP_SIZE)
            return "realm";
        memcpy(l->group, group, strlen(group));
    }
    if (l->reason != NULL && l->reason[0] == '\0')
        l->reason = NULL;
    if (older != NULL && older[0] != '\0' &&
        !read_count(older, ONCE_KEEP_MAX_MS / 1000, &l->older_ms))
        return "older";
    l->older_ms *= 1000;
    if (after != NULL && !read_place(after, &l->after))
        return "after";
    l->has_after = after != NULL;
    if (limit != NULL && (!read_count(limit, CONSOLE_PAGE_MAX, &n) || n == 0))
        return "limit";
    l->limit = (size_t)n;
    return NULL;
}

static json_t *json_place(const once_position *p)
{
    char text[20 + 1 + ONCE__DIGITS + 1], hex[CLI_HEX_SIZE];

    cli_hex(p->name, CLI_DIGITS, hex);
    snprintf(text, sizeof(text), "%llu-%s", (unsigned long long)p->ms, hex);
    return json_string(text);
}

enum MHD_Result console_records(struct console_request *ask)
{
    struct list *l = calloc(1, sizeof(*l));
    once_error err = {0, ""};
    const char *bad;
    enum MHD_Result result;
    int more;

    if (l == NULL)
        return MHD_NO;
    bad = read_list(ask, l);
    if (bad != NULL) {
        result = console_problem(ask, MHD_HTTP_BAD_REQUEST, "invalid",
                                 "%s is not understood.", bad);
        goto out;
    }
    l->records = json_array();
    more = fill(ask->store, l, &err);
    if (more < 0) {
        json_decref(l->records);
        result = console_store_error(ask, more, &err);
    } else {
        result = console_reply(
            ask, MHD_HTTP_OK,
            json_pack("{s:o, s:o, s:o}", "now", cli_json_time(l->now_ms),
                      "records", l->records, "next",
                      more ? json_place(&l->after) : json_null()));
    }
out:
    free(l);
    return result;
}

/* ---- One record ---------------------------------------------------------- */

int console_read_record(struct console_request *ask, once_op *op,
                        enum MHD_Result *out)
{
    once_error err = {0, ""};
    int rc = once__look(ask->store->e, ask->name, op, &err);

    if (rc < 0)
        *out = console_store_error(ask, rc, &err);
    else if (op->record.attempt == 0) {
        *out = console_problem(ask, MHD_HTTP_NOT_FOUND, "gone",
                               "There is no such record. It may have been "
                               "forgotten, or be in another store.");
        rc = -1;
    }
    return rc < 0 ? rc : ONCE_OK;
}

enum MHD_Result console_record(struct console_request *ask)
{
    enum MHD_Result result;
    once_op op = {0};
    json_t *o;

    if (console_read_record(ask, &op, &result) == ONCE_OK) {
        o = console_json_record(ask->store, ask->name, &op.record);
        if (o != NULL) {
            json_object_set_new(o, "now", cli_json_time(cli_now_ms()));
            json_object_set_new(o, "told", console_json_told(&op.record));
        }
        result = console_reply(ask, MHD_HTTP_OK, o);
    }
    once_op_clear(&op);
    return result;
}

/* ---- The audit log, and what happened ------------------------------------ */

struct lines {
    json_t *list;
    uint64_t last;
};

static int add_line(void *user, const once__audit_line *line)
{
    struct lines *l = user;

    l->last = line->seq;
    json_array_append(l->list, line->json);
    return 0;
}

static int read_lines(const struct console *con, const once__audit_filter *f,
                      size_t max, struct lines *l, once_error *err)
{
    const char *path = once__audit_path(con->audit);

    l->list = json_array();
    if (path == NULL)
        return ONCE_OK;
    return once__audit_newest(path, f, max, add_line, l, err);
}

enum MHD_Result console_audit(struct console_request *ask)
{
    const char *before = console_argument(ask, "before");
    const char *limit = console_argument(ask, "limit");
    once__audit_filter f = {.action = console_argument(ask, "action"),
                            .who = console_argument(ask, "who"),
                            .name = console_argument(ask, "name")};
    once_error err = {0, ""};
    struct lines l = {NULL, 0};
    uint64_t max = 50;
    int rc;

    if ((before != NULL && !read_count(before, 999999999999, &f.before)) ||
        (limit != NULL && (!read_count(limit, LINES_MAX, &max) || max == 0)))
        return console_problem(ask, MHD_HTTP_BAD_REQUEST, "invalid",
                               "before or limit is not understood.");
    rc = read_lines(ask->con, &f, (size_t)max, &l, &err);
    if (rc < 0) {
        json_decref(l.list);
        return console_store_error(ask, rc, &err);
    }
    return console_reply(ask, MHD_HTTP_OK,
                         json_pack("{s:o, s:o}", "lines", l.list, "next",
                                   json_array_size(l.list) == max && l.last > 1
                                       ? json_integer((json_int_t)l.last)
                                       : json_null()));
}

static void add_event(json_t *list, uint64_t ms, const char *what,
                      const char *text)
{
    if (ms != 0)
        json_array_append_new(list, json_pack("{s:o, s:s, s:s}", "time",
                                              cli_json_time(ms), "what", what,
                                              "text", text));
}

/* docs/http.md, 3.5: the service itself has said what became of it. */
static int is_by_probe(const once_record *r)
{
    return r->note.size == strlen(ONCE__PROBE_NOTE) &&
           memcmp(r->note.data, ONCE__PROBE_NOTE, r->note.size) == 0;
}

/* How the last attempt ended; what was decided is known by its note. */
static void add_end(json_t *list, const once_record *r)
{
    const char *why = r->reason ? once_reason_text(r->reason) : "";
    const char *comma = r->reason ? ", " : "";
    char text[128];

    if (r->note.size > 0) {
        snprintf(text, sizeof(text),
                 "It was decided%s: %s. Before, it was "
                 "unknown%s%s.",
                 is_by_probe(r) ? " by a probe" : "",
                 r->state == ONCE_COMPLETED ? cli_kind(r->kind) : "reopened",
                 comma, why);
        add_event(list, r->ended_ms, "decided", text);
        return;
    }
    snprintf(text, sizeof(text), "It ended: %s%s%s.",
             r->state == ONCE_COMPLETED ? cli_kind(r->kind)
             : r->state == ONCE_ABSENT  ? "released"
                                        : "unknown",
             comma, why);
    add_event(list, r->ended_ms, "ended", text);
}

static json_t *events_of(const once_record *r)
{
    json_t *list = json_array();
    char text[64];

    if (r->attempt > 1 && r->created_ms != r->granted_ms)
        add_event(list, r->created_ms, "begun", "The first attempt began.");
    snprintf(text, sizeof(text), "Attempt %lu began.",
             (unsigned long)r->attempt);
    add_event(list, r->granted_ms, "granted", text);
    add_end(list, r);
    return list;
}

enum MHD_Result console_timeline(struct console_request *ask)
{
    char hex[CLI_HEX_SIZE];
    once__audit_filter f = {.name = hex};
    once_error err = {0, ""};
    struct lines l = {NULL, 0};
    enum MHD_Result result;
    once_op op = {0};

    if (console_read_record(ask, &op, &result) != ONCE_OK)
        goto out;
    cli_hex(ask->name, CLI_DIGITS, hex);
    if (read_lines(ask->con, &f, LINES_MAX, &l, &err) < 0)
        json_array_clear(l.list); /* the rest is worth showing */
    result = console_reply(ask, MHD_HTTP_OK,
                           json_pack("{s:o, s:o, s:s?}", "events",
                                     events_of(&op.record), "audit", l.list,
                                     "trouble", err.code ? err.text : NULL));
out:
    once_op_clear(&op);
    return result;
}
