/* SPDX-License-Identifier: Apache-2.0 */
/*
 * trace.c - what is known of one record: its own times, the decisions in the
 * audit log, and the requests in access logs of the format once_json.
 *
 * A log line is one request as its client saw it. Lines of logs may be anything
 * and of any length: what is not JSON, or is about another record, is passed
 * over.
 */
#include "programs/once/records/trace.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/grow.h"
#include "operate/answer.h"

enum { LINE_MAX_BYTES = 65536 };

/* ---- Events --------------------------------------------------------------- */

/* A new event, or NULL: out of memory, or too many. */
static struct trace_event *add(struct trace *t, uint64_t ms, const char *source,
                               const char *what)
{
    struct trace_event *e;

    if (t->n == TRACE_MOST) {
        t->full = 1;
        return NULL;
    }
    e = once__grown(t->events, &t->room, t->n + 1, sizeof(*e));
    if (e == NULL)
        return NULL;
    t->events = e;
    e += t->n++;
    memset(e, 0, sizeof(*e));
    e->ms = e->until_ms = ms;
    e->count = 1;
    e->source = source;
    snprintf(e->what, sizeof(e->what), "%s", what);
    return e;
}

int trace_source(struct trace *t, const char *name, uint64_t found,
                 const char *trouble)
{
    struct trace_source *more =
        realloc(t->sources, (t->n_sources + 1) * sizeof(*more));

    if (more == NULL)
        return cli_say(t->c, CLI_STORE, "out of memory");
    t->sources = more;
    more[t->n_sources] = (struct trace_source){strdup(name), found, trouble};
    if (more[t->n_sources].name == NULL)
        return cli_say(t->c, CLI_STORE, "out of memory");
    t->n_sources++;
    return CLI_OK;
}

void trace_free(struct trace *t)
{
    size_t i;

    for (i = 0; i < t->n; i++)
        json_decref(t->events[i].more);
    for (i = 0; i < t->n_sources; i++)
        free(t->sources[i].name);
    free(t->events);
    free(t->sources);
}

static int by_time(const void *a, const void *b)
{
    const struct trace_event *x = a, *y = b;

    if (x->ms != y->ms)
        return x->ms < y->ms ? -1 : 1;
    return x < y ? -1 : x > y;
}

/* Requests that were told the same are one event, until something else
 * happens. */
static int is_same(const struct trace_event *a, const struct trace_event *b)
{
    return a->source == b->source && strcmp(a->source, "log") == 0 &&
           strcmp(a->what, b->what) == 0 && strcmp(a->text, b->text) == 0;
}

/* The record's note says once more what the audit log says. */
static void say_it_once(struct trace *t)
{
    size_t i;
    int audited = 0;

    for (i = 0; i < t->n; i++)
        audited |= strcmp(t->events[i].source, "audit") == 0;
    for (i = 0; i < t->n && audited; i++)
        if (t->events[i].brief > 0)
            t->events[i].text[t->events[i].brief] = '\0';
}

void trace_sort(struct trace *t)
{
    size_t i, n = 0;

    if (t->n == 0)
        return;
    say_it_once(t);
    qsort(t->events, t->n, sizeof(*t->events), by_time);
    for (i = 1; i < t->n; i++) {
        struct trace_event *last = &t->events[n], *e = &t->events[i];

        if (is_same(last, e)) {
            last->count++;
            last->until_ms = e->ms;
            json_decref(e->more);
        } else {
            t->events[++n] = *e;
        }
    }
    t->n = n + 1;
}

/* ---- The record ------------------------------------------------------------ */

static const char *word_of_end(const once_record *r)
{
    switch (r->state) {
    case ONCE_INDETERMINATE:
        return "unknown";
    case ONCE_COMPLETED:
        return r->note.size > 0 ? "resolved" : "completed";
    default:
        return "released";
    }
}

static void describe_end(const once_record *r, struct trace_event *e)
{
    const char *reason = once_reason_text(r->reason);
    const size_t size = sizeof(e->text);
    once__view view;
    int n;

    if (r->state != ONCE_COMPLETED) {
        snprintf(e->text, size, "%s", reason);
        return;
    }
    once__view_of(r, &view);
    n = snprintf(e->text, size, "%s", cli_kind(r->kind));
    if (view.is == ONCE__VIEW_HTTP)
        n += snprintf(e->text + n, size - (size_t)n, ", status %d",
                      view.response.status);
    if (r->reason != ONCE_REASON_NONE)
        n += snprintf(e->text + n, size - (size_t)n, ", was unknown: %s",
                      reason);
    if (r->note.size == 0)
        return;
    e->brief = (size_t)n;
    snprintf(e->text + n, size - (size_t)n, "; %.*s",
             (int)(r->note.size < 300 ? r->note.size : 300),
             (const char *)r->note.data);
}

int trace_record(struct trace *t, const once_record *r)
{
    struct trace_event *e;
    size_t before = t->n;

    if (r->created_ms != 0 && r->created_ms != r->granted_ms &&
        (e = add(t, r->created_ms, "record", "created")) != NULL)
        snprintf(e->text, sizeof(e->text), "the first attempt");
    e = add(t, r->granted_ms, "record", "granted");
    if (e != NULL)
        snprintf(e->text, sizeof(e->text),
                 "attempt %" PRIu32 ", fence %" PRIu64, r->attempt, r->fence);
    if (r->ended_ms != 0 &&
        (e = add(t, r->ended_ms, "record", word_of_end(r))) != NULL)
        describe_end(r, e);
    return trace_source(t, "record", t->n - before, NULL);
}

/* ---- The audit log --------------------------------------------------------- */

static const char *text_of(const json_t *o, const char *name)
{
    const char *text = json_string_value(json_object_get(o, name));

    return text != NULL ? text : "";
}

/* "2026-11-22T13:30:00.123Z", "2026-11-22T13:30:00+00:00", seconds since 1970.
 * What has whole seconds only is taken for their end: a log line is written when
 * all of it is over. 0: no time. */
static uint64_t read_time(const json_t *value)
{
    const char *text = json_string_value(value), *end;
    struct tm tm = {0};
    char *stop = NULL;
    long offset_s = 0;
    uint64_t ms = 999;
    double s = json_is_number(value) ? json_number_value(value)
               : text != NULL        ? strtod(text, &stop)
                                     : 0;

    if (s > 1e8 && s < 1e11 && (stop == NULL || *stop == '\0'))
        return (uint64_t)(s * 1000 + 0.5);
    end = text != NULL ? strptime(text, "%Y-%m-%dT%H:%M:%S", &tm) : NULL;
    if (end == NULL)
        return 0;
    if (*end == '.')
        ms = strtoul(end + 1, &stop, 10) % 1000, end = stop;
    if (*end == '+' || *end == '-')
        offset_s = (strtol(end + 1, &stop, 10) * 60 +
                    (*stop == ':' ? strtol(stop + 1, NULL, 10) : 0)) *
                   (*end == '+' ? 60 : -60);
    return (uint64_t)(timegm(&tm) - offset_s) * 1000 + ms;
}

struct reader {
    struct trace *t;
    uint64_t found;
    uint64_t last_ms; /* of an intent that has no end yet; 0: there is none */
    once__audit_filter filter;
    int rc;
};

static int see_decision(void *user, const once__audit_line *line)
{
    struct reader *r = user;
    const json_t *o = line->json;
    const char *step, *what;
    struct trace_event *e;

    if (!once__audit_fits(&r->filter, line))
        return 0;
    step = text_of(o, "step");
    /* The end takes the intent's place. */
    if (json_object_get(o, "of") != NULL && r->t->n > 0 &&
        json_equal(json_object_get(o, "of"),
                   json_object_get(r->t->events[r->t->n - 1].more, "seq"))) {
        e = &r->t->events[r->t->n - 1];
        e->ms = e->until_ms = read_time(json_object_get(o, "time"));
        json_decref(e->more);
    } else {
        e = add(r->t, read_time(json_object_get(o, "time")), "audit", "");
        r->found++;
    }
    if (e == NULL)
        return 0;
    e->more = json_deep_copy(o);
    snprintf(e->what, sizeof(e->what), "%s", text_of(o, "action"));
    what = strcmp(step, "intent") == 0
               ? "no end is known, it may have been done"
               : step;
    snprintf(e->text, sizeof(e->text),
             "%s%s%s by %.64s, fence %s%s%.256s%s%.80s", text_of(o, "kind"),
             text_of(o, "kind")[0] ? ", " : "", what, text_of(o, "user"),
             text_of(o, "fence"), text_of(o, "why")[0] ? ": " : "",
             text_of(o, "why"), text_of(o, "detail")[0] ? "; " : "",
             text_of(o, "detail"));
    return 0;
}

int trace_audit(struct trace *t, const char *path)
{
    struct reader r = {.t = t, .filter = {.name = t->hex}};
    once_error err = {0, ""};
    int rc = once__audit_read(path, see_decision, &r, &err);

    return trace_source(t, path, r.found,
                        rc == ONCE_OK ? NULL : "cannot be read");
}

/* ---- Access logs ------------------------------------------------------------ */

/* The gateway writes "-" where it has nothing to say. */
static const char *said(const json_t *o, const char *name)
{
    const char *text = text_of(o, name);

    return strcmp(text, "-") == 0 ? "" : text;
}

static void describe_request(const json_t *o, struct trace_event *e)
{
    const json_t *status = json_object_get(o, "status");
    const char *told = said(o, "once_status"), *reason;
    const char *outcome = said(o, "once_outcome");
    char code[16] = "?";

    if (json_is_integer(status))
        snprintf(code, sizeof(code), "%" JSON_INTEGER_FORMAT,
                 json_integer_value(status));
    else if (json_is_string(status))
        snprintf(code, sizeof(code), "%.15s", json_string_value(status));
    reason = said(o, "once_reason");
    if (strcmp(outcome, told) == 0)
        outcome = "";
    snprintf(e->text, sizeof(e->text), "%s%s%.60s%s%.40s%s%.40s", code,
             told[0] ? " " : "", told, outcome[0] ? ", " : "", outcome,
             reason[0] ? ", " : "", reason);
}

static void take_request(struct reader *r, const char *text, size_t size)
{
    json_t *o = json_loadb(text, size, 0, NULL);
    const char *name = text_of(o, "once_name");
    struct trace_event *e;

    if (o != NULL && strncmp(name, r->t->hex, strlen(r->t->hex)) == 0) {
        e = add(r->t, read_time(json_object_get(o, "time")), "log", "told");
        if (e != NULL) {
            r->found++;
            describe_request(o, e);
            e->more = json_incref(o);
        }
    }
    json_decref(o);
}

/* The first digits of the name stand in each line that counts, so that most
 * lines of a large log need not be understood. */
static void read_requests(FILE *in, char *line, struct reader *r)
{
    int rest = 0;

    while (fgets(line, LINE_MAX_BYTES, in) != NULL) {
        size_t size = strlen(line);
        int whole = size > 0 && line[size - 1] == '\n';

        if (!rest && strstr(line, r->t->hex) != NULL)
            take_request(r, line, size);
        rest = !whole;
    }
}

int trace_log(struct trace *t, const char *path)
{
    FILE *in = strcmp(path, "-") == 0 ? stdin : fopen(path, "re");
    char *line = malloc(LINE_MAX_BYTES);
    struct reader r = {.t = t};
    const char *trouble = NULL;

    if (in == NULL || line == NULL) {
        trouble = in == NULL ? strerror(errno) : "out of memory";
    } else {
        read_requests(in, line, &r);
        trouble = ferror(in) ? "not all of it could be read" : NULL;
    }
    if (in != NULL && in != stdin)
        fclose(in);
    free(line);
    return trace_source(t, path, r.found, trouble);
}
