/* SPDX-License-Identifier: Apache-2.0 */
/*
 * metrics.c - the table of metrics, and their text.
 *
 * The two formats differ in what a counter is called in HELP and TYPE, in the
 * type of an information, and in the last line. OpenMetrics requires a point in
 * each bound of a histogram, and the older format does not mind.
 */
#include "base/metrics.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>

/* clang-format off */
const struct once__family once__families[ONCE__FAMILY_COUNT] = {
#define ROW(id, text, kind, with, line)                                        \
    [ONCE__FAMILY_##id] = { text, ONCE__##kind, with, line },
    ONCE__FAMILIES(ROW)
#undef ROW
};
/* clang-format on */

/* ---- Buckets ------------------------------------------------------------- */

#define US(i) (UINT64_C(64) << (i))

const struct once__buckets once__store_buckets = {
    17,
    {US(0), US(1), US(2), US(3), US(4), US(5), US(6), US(7), US(8), US(9),
     US(10), US(11), US(12), US(13), US(14), US(15), US(16)}};

const struct once__buckets once__service_buckets = {
    15,
    {5000, 10000, 25000, 50000, 100000, 250000, 500000, 1000000, 2500000,
     5000000, 10000000, 30000000, 60000000, 120000000, 300000000}};

size_t once__bucket_of(const struct once__buckets *b, uint64_t us)
{
    size_t i = 0;

    while (i < b->n && us >= b->us[i])
        i++;
    return i;
}

/* ---- The text ------------------------------------------------------------ */

static void put(struct once__metrics_text *w, const char *text)
{
    w->put(w->user, text, strlen(text));
}

static void put_number(struct once__metrics_text *w, uint64_t value)
{
    char text[24];

    (void)snprintf(text, sizeof(text), "%llu", (unsigned long long)value);
    put(w, text);
}

/* At least one digit behind the point: OpenMetrics writes bounds so. */
static void put_seconds(struct once__metrics_text *w, uint64_t us)
{
    char text[32];
    size_t n;

    (void)snprintf(text, sizeof(text), "%llu.%06llu",
                   (unsigned long long)(us / 1000000),
                   (unsigned long long)(us % 1000000));
    n = strlen(text);
    while (text[n - 1] == '0' && text[n - 2] != '.')
        n--;
    w->put(w->user, text, n);
}

static int ends_in(const char *name, const char *end)
{
    size_t n = strlen(name), k = strlen(end);

    return n > k && strcmp(name + n - k, end) == 0;
}

/* The family's name: in OpenMetrics without what its samples add to it. */
static void put_name(struct once__metrics_text *w, const struct once__family *f)
{
    const char *end = f->type == ONCE__COUNTER ? "_total"
                      : f->type == ONCE__INFO  ? "_info"
                                               : "";
    size_t n = strlen(f->name);

    assert(*end == '\0' || ends_in(f->name, end));
    w->put(w->user, f->name, w->openmetrics ? n - strlen(end) : n);
}

static void begin(struct once__metrics_text *w)
{
    const struct once__family *f = w->family;
    static const char *const types[] = {
        [ONCE__COUNTER] = " counter\n",
        [ONCE__GAUGE] = " gauge\n",
        [ONCE__INFO] = " info\n",
        [ONCE__HISTOGRAM] = " histogram\n",
    };

    assert(f != NULL);
    if (w->begun)
        return;
    w->begun = 1;
    put(w, "# HELP ");
    put_name(w, f);
    put(w, " ");
    put(w, f->help);
    put(w, "\n# TYPE ");
    put_name(w, f);
    put(w, types[f->type == ONCE__INFO && !w->openmetrics ? ONCE__GAUGE
                                                          : f->type]);
}

void once__metrics_family(struct once__metrics_text *w,
                          const struct once__family *f)
{
    w->family = f;
    w->begun = 0;
}

/* Runs of bytes that need no backslash go out at once. */
static void put_escaped(struct once__metrics_text *w, once_bytes value)
{
    const char *s = value.data;
    size_t i, from = 0;

    for (i = 0; i < value.size; i++) {
        if (s[i] != '\\' && s[i] != '"' && s[i] != '\n')
            continue;
        w->put(w->user, s + from, i - from);
        put(w, s[i] == '\n' ? "\\n" : s[i] == '"' ? "\\\"" : "\\\\");
        from = i + 1;
    }
    if (value.size > from)
        w->put(w->user, s + from, value.size - from);
}

/* {store="pay",route="-"} or nothing; `le` as the last one, or NULL. */
static void put_labels(struct once__metrics_text *w, const once_bytes *labels,
                       const char *le)
{
    const char *name = w->family->labels;
    size_t i, n;

    if (*name == '\0' && le == NULL)
        return;
    put(w, "{");
    for (i = 0; *name != '\0'; i++) {
        n = strcspn(name, ",");
        w->put(w->user, name, n);
        put(w, "=\"");
        put_escaped(w, labels[i]);
        name += n + (name[n] == ',');
        put(w, *name != '\0' || le != NULL ? "\"," : "\"");
    }
    if (le != NULL) {
        put(w, "le=\"");
        put(w, le);
        put(w, "\"");
    }
    put(w, "}");
}

static void put_sample(struct once__metrics_text *w, const char *suffix,
                       const once_bytes *labels, const char *le)
{
    begin(w);
    put(w, w->family->name);
    put(w, suffix);
    put_labels(w, labels, le);
    put(w, " ");
}

void once__metrics_value(struct once__metrics_text *w, const once_bytes *labels,
                         uint64_t value)
{
    put_sample(w, "", labels, NULL);
    put_number(w, value);
    put(w, "\n");
}

void once__metrics_ms(struct once__metrics_text *w, const once_bytes *labels,
                      uint64_t ms)
{
    assert(ends_in(w->family->name, "_seconds"));
    put_sample(w, "", labels, NULL);
    put_seconds(w, ms * 1000);
    put(w, "\n");
}

/* For `le`: as put_seconds() writes it. */
struct bound {
    char text[32];
    size_t n;
};

static void put_bound(void *user, const char *text, size_t size)
{
    struct bound *b = user;

    assert(size < sizeof(b->text));
    memcpy(b->text, text, size);
    b->text[size] = '\0';
}

void once__metrics_histogram(struct once__metrics_text *w,
                             const once_bytes *labels,
                             const struct once__buckets *b,
                             const uint64_t *counts, uint64_t sum_us)
{
    struct bound bound = {"+Inf", 0};
    struct once__metrics_text le = {.put = put_bound, .user = &bound};
    uint64_t total = 0;
    size_t i;

    for (i = 0; i <= b->n; i++) {
        if (i < b->n)
            put_seconds(&le, b->us[i]);
        else
            put_bound(&bound, "+Inf", 4);
        total += counts[i];
        put_sample(w, "_bucket", labels, bound.text);
        put_number(w, total);
        put(w, "\n");
    }
    put_sample(w, "_sum", labels, NULL);
    put_seconds(w, sum_us);
    put(w, "\n");
    put_sample(w, "_count", labels, NULL);
    put_number(w, total);
    put(w, "\n");
}

void once__metrics_end(struct once__metrics_text *w)
{
    if (w->openmetrics)
        put(w, "# EOF\n");
}

const char *once__metrics_content_type(int openmetrics)
{
    return openmetrics
               ? "application/openmetrics-text; version=1.0.0; charset=utf-8"
               : "text/plain; version=0.0.4; charset=utf-8";
}
