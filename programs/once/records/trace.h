/* SPDX-License-Identifier: Apache-2.0 */
/* trace.h - what is known of one record, from several sources, by time. */
#ifndef ONCE_ONCE_RECORDS_TRACE_H
#define ONCE_ONCE_RECORDS_TRACE_H

#include "programs/once/cli.h"

enum { TRACE_MOST = 100000, TRACE_WHAT = 160, TRACE_TEXT = 512 };

/* One thing that happened, or the same thing several times. */
struct trace_event {
    uint64_t ms, until_ms;
    uint64_t count;
    char what[24]; /* "granted", "told", "resolve" ...             */
    char text[TRACE_TEXT];
    size_t brief; /* not 0: what follows in `text` is also in the audit log */
    const char *source; /* "record", "audit", "log" */
    json_t *more;       /* members for --json, or NULL */
};

struct trace_source {
    char *name;
    uint64_t found;      /* events from it */
    const char *trouble; /* why it could not be read, or NULL */
};

struct trace {
    const struct cli *c;
    once__prefix name; /* as it was given, or whole, if that is known */
    char hex[CLI_HEX_SIZE];
    struct trace_event *events;
    size_t n, room;
    struct trace_source *sources;
    size_t n_sources;
    int full; /* there were more than TRACE_MOST events */
};

/* Sources; each says itself what it could not do. CLI_OK, or memory is short. */
int trace_record(struct trace *t, const once_record *r);
int trace_audit(struct trace *t, const char *path);
int trace_log(struct trace *t, const char *path);
/* Notes a source; `trouble` NULL: it was read. */
int trace_source(struct trace *t, const char *name, uint64_t found,
                 const char *trouble);
/* Sorts, and makes repeats of the same one event. */
void trace_sort(struct trace *t);
void trace_free(struct trace *t);

#endif /* ONCE_ONCE_RECORDS_TRACE_H */
