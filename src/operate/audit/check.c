/* SPDX-License-Identifier: Apache-2.0 */
/*
 * check.c - is the chain of an audit log whole?
 *
 * Each line has its own hash and that of the line before. So a line that was
 * changed has another hash than it says; where lines are missing, swapped or
 * put in, a line does not follow the one before it. That the last lines of the
 * last file are missing, or that others stand in their place, is seen by lines
 * that were kept elsewhere.
 */
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "operate/audit/line.h"
#include "base/error.h"
#include "base/grow.h"

/* An intent whose end has not been seen. */
struct intent {
    uint64_t seq, number;
    const char *path;
    char what[200];
};

struct check {
    const once__audit_anchors *kept; /* or NULL */
    int other;                       /* a line is not the one that was kept */
    once__audit_report *report;
    void *user;
    once__audit_sum *sum;
    const char *path;
    uint64_t in_file; /* good lines of this file         */
    int any;          /* a good line was seen, anywhere  */
    int sure;         /* sum->last_hash is what must be followed */
    char flaw[200];   /* of the last bad line, not reported yet  */
    const char *flaw_path;
    uint64_t flaw_number;
    char fragment[ONCE__AUDIT_HEX]; /* and its hash                  */
    struct intent *open;
    size_t n, room;
};

ONCE_PRINTF(4, 5)
static void say(struct check *k, uint64_t number, int bad, const char *format,
                ...)
{
    char text[512];
    va_list args;

    va_start(args, format);
    (void)vsnprintf(text, sizeof(text), format, args);
    va_end(args);
    k->sum->bad += bad != 0;
    k->sum->notes += bad == 0;
    k->report(k->user, k->path, number, bad, text);
}

/* ---- Lines that are none --------------------------------------------------- */

/* What was found bad, unless the line after it explained it. */
static void report_flaw(struct check *k)
{
    const char *path = k->path;

    if (k->flaw[0] == '\0')
        return;
    k->path = k->flaw_path;
    say(k, k->flaw_number, 1, "%s", k->flaw);
    k->path = path;
    k->flaw[0] = '\0';
}

static void take_flaw(struct check *k, const once__audit_line *line)
{
    report_flaw(k);
    snprintf(k->flaw, sizeof(k->flaw), "%s%s", line->flaw,
             line->whole ? "" : ", and it has no end: it was cut short");
    k->flaw_path = k->path;
    k->flaw_number = line->number;
    once__audit_sum_of(line->text, k->fragment);
    k->sure = 0;
}

/* 1: the line says that the one before it was cut short, and names it. */
static int explains(const struct check *k, const once__audit_line *line)
{
    const char *action = once__audit_field(line, "action");
    const char *fragment = once__audit_field(line, "fragment");

    return k->flaw[0] != '\0' && fragment != NULL && action != NULL &&
           strcmp(fragment, k->fragment) == 0 &&
           (strcmp(action, "log-cut") == 0 || strcmp(action, "log-start") == 0);
}

/* ---- Intents ---------------------------------------------------------------- */

static void describe(const once__audit_line *line, char *out, size_t size)
{
    const char *action = once__audit_field(line, "action");
    const char *name = once__audit_field(line, "name");
    const char *user = once__audit_field(line, "user");

    snprintf(out, size, "%.40s%s%.16s by %.64s", action ? action : "?",
             name ? " " : "", name ? name : "", user ? user : "?");
}

static int add_intent(struct check *k, const once__audit_line *line)
{
    struct intent *more =
        once__grown(k->open, &k->room, k->n + 1, sizeof(*more));

    if (more == NULL)
        return ONCE_ENOMEM;
    k->open = more;
    k->open[k->n] = (struct intent){line->seq, line->number, k->path, ""};
    describe(line, k->open[k->n].what, sizeof(k->open[k->n].what));
    k->n++;
    return ONCE_OK;
}

/* 1: there was such an intent. */
static int end_intent(struct check *k, uint64_t seq)
{
    size_t i;

    for (i = 0; i < k->n; i++)
        if (k->open[i].seq == seq) {
            k->open[i] = k->open[--k->n];
            return 1;
        }
    return 0;
}

static int follow_step(struct check *k, const once__audit_line *line)
{
    const char *step = once__audit_field(line, "step");
    json_int_t of = json_integer_value(json_object_get(line->json, "of"));

    if (step != NULL && strcmp(step, "intent") == 0)
        return add_intent(k, line);
    /* Where lines are bad or missing, the intent may be one of them. */
    if (of > 0 && !end_intent(k, (uint64_t)of) && k->sum->bad == 0 &&
        (uint64_t)of >= k->sum->first_seq)
        say(k, line->number, 1,
            "it ends %" JSON_INTEGER_FORMAT ", which is no open intent", of);
    return ONCE_OK;
}

static void report_intents(struct check *k)
{
    size_t i;

    for (i = 0; i < k->n; i++) {
        k->path = k->open[i].path;
        say(k, k->open[i].number, 0,
            "an intent without an end (%s): it may have been done, look at "
            "the record",
            k->open[i].what);
    }
}

/* ---- The chain -------------------------------------------------------------- */

static void follow_first(struct check *k, const once__audit_line *line)
{
    const char *action = once__audit_field(line, "action");
    const char *after = once__audit_field(line, "after");

    if (action == NULL || strcmp(action, "log-start") != 0)
        say(k, line->number, 1,
            "a log begins with a line \"log-start\": lines before this one "
            "are missing");
    else if (!k->any && line->seq > 1)
        say(k, line->number, 0, "it goes on from %.80s, which was not given",
            after != NULL ? after : "another file");
    else if (k->any && line->seq == 1)
        say(k, line->number, 1,
            "it begins a chain of its own, and does not follow the file "
            "before");
}

static void follow(struct check *k, const once__audit_line *line)
{
    once__audit_sum *s = k->sum;

    if (k->in_file == 0)
        follow_first(k, line);
    if (!k->any)
        s->first_seq = line->seq;
    else if (line->seq > s->last_seq + 1 && k->sure)
        say(k, line->number, 1,
            "it is number %" PRIu64 " after %" PRIu64 ": %" PRIu64
            " missing between",
            line->seq, s->last_seq, line->seq - s->last_seq - 1);
    else if (line->seq <= s->last_seq)
        say(k, line->number, 1,
            "it is number %" PRIu64 " after %" PRIu64 ": out of order",
            line->seq, s->last_seq);
    else if (k->sure && strcmp(line->prev, s->last_hash) != 0)
        say(k, line->number, 1,
            "it does not follow the line before: one of both was replaced");
}

/* ---- What was kept elsewhere -------------------------------------------------- */

/* All that follow the first other line are others, too. */
static void compare(struct check *k, const once__audit_line *line, uint64_t seq,
                    const char *hash)
{
    int same = once__audit_anchored(k->kept, seq, hash);

    if (same > 0) {
        k->sum->anchored++;
        k->sum->anchored_seq = seq;
    }
    if (same >= 0 || k->other)
        return;
    k->other = 1;
    say(k, line->number, 1,
        "number %" PRIu64 " is another line than the one that is kept "
        "elsewhere: from there on, or before, the log was written again",
        seq);
}

/* The first line says of the one before it, which may not be given, how it was. */
static void compare_line(struct check *k, const once__audit_line *line)
{
    if (!k->any && line->seq > 1)
        compare(k, line, line->seq - 1, line->prev);
    compare(k, line, line->seq, line->hash);
}

static void compare_end(struct check *k)
{
    uint64_t last = once__audit_anchors_last(k->kept);

    if (last > k->sum->last_seq)
        say(k, 0, 1,
            "number %" PRIu64 " is kept elsewhere, and the log ends with "
            "%" PRIu64,
            last, k->sum->last_seq);
    else if (k->sum->anchored == 0 && !k->other)
        say(k, 0, 1,
            "no line of this log is kept there, so that proves nothing");
}

static int see(void *user, const once__audit_line *line)
{
    struct check *k = user;
    const char *action;
    int rc;

    k->sum->lines++;
    if (line->flaw != NULL) {
        take_flaw(k, line);
        return 0;
    }
    if (explains(k, line)) {
        k->flaw[0] = '\0';
        k->sure = 1; /* the line after a cut one follows the one before it */
        say(k, line->number, 0, "the line before was cut short by a crash");
    }
    action = once__audit_field(line, "action");
    if (k->flaw[0] != '\0' &&
        (action == NULL || strcmp(action, "log-start") != 0))
        report_flaw(k);
    follow(k, line);
    rc = follow_step(k, line);
    if (k->kept != NULL)
        compare_line(k, line);
    k->in_file++;
    k->any = k->sure = 1;
    k->sum->last_seq = line->seq;
    snprintf(k->sum->last_hash, sizeof(k->sum->last_hash), "%s", line->hash);
    return rc;
}

int once__audit_check(const char *const *paths, size_t n,
                      const once__audit_anchors *kept,
                      once__audit_report *report, void *user,
                      once__audit_sum *sum, once_error *err)
{
    struct check k = {.kept = kept, .report = report, .user = user, .sum = sum};
    int rc = ONCE_OK;
    size_t i;

    memset(sum, 0, sizeof(*sum));
    for (i = 0; i < n && rc == ONCE_OK; i++) {
        k.path = paths[i];
        k.in_file = 0;
        rc = once__audit_read(paths[i], see, &k, err);
        if (rc == ONCE_OK && k.in_file == 0 && k.flaw[0] == '\0')
            say(&k, 0, 1, "there is no line in it");
    }
    report_flaw(&k);
    if (kept != NULL)
        compare_end(&k);
    report_intents(&k);
    free(k.open);
    return rc;
}
