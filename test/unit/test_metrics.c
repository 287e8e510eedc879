/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_metrics.c - the text of metrics, in both formats, byte for byte; and
 * what holds of every family in the table. That promtool and a Prometheus
 * server read it is tested with the gateway.
 */
#include "base/metrics.h"

#include "t.h"

struct out {
    char text[8192];
    size_t n;
};

static void put(void *user, const char *text, size_t size)
{
    struct out *o = user;

    if (!T_OK(o->n + size < sizeof(o->text)))
        return;
    memcpy(o->text + o->n, text, size);
    o->n += size;
    o->text[o->n] = '\0';
}

static struct once__metrics_text writer(struct out *o, int openmetrics)
{
    memset(o, 0, sizeof(*o));
    return (struct once__metrics_text){
        .put = put, .user = o, .openmetrics = openmetrics};
}

static once_bytes text(const char *s)
{
    return (once_bytes){s, strlen(s)};
}

static void a_family_has_its_lines_once_and_all_its_samples(void)
{
    static const struct once__family f = {"a_total", ONCE__COUNTER, "x,y",
                                          "Help."};
    const once_bytes one[] = {text("1"), text("2")},
                     two[] = {text("3"), text("4")};
    struct out o;
    struct once__metrics_text w = writer(&o, 0);

    once__metrics_family(&w, &f);
    once__metrics_value(&w, one, 5);
    once__metrics_value(&w, two, UINT64_MAX);
    once__metrics_end(&w);
    T_STR(o.text, "# HELP a_total Help.\n# TYPE a_total counter\n"
                  "a_total{x=\"1\",y=\"2\"} 5\n"
                  "a_total{x=\"3\",y=\"4\"} 18446744073709551615\n");
}

static void openmetrics_names_the_family_without_its_suffix(void)
{
    static const struct once__family counter = {"a_total", ONCE__COUNTER, "",
                                                "C."},
                                     info = {"b_info", ONCE__INFO, "v", "I."};
    const once_bytes v = text("1");
    struct out o;
    struct once__metrics_text w = writer(&o, 1);

    once__metrics_family(&w, &counter);
    once__metrics_value(&w, NULL, 0);
    once__metrics_family(&w, &info);
    once__metrics_value(&w, &v, 1);
    once__metrics_end(&w);
    T_STR(o.text, "# HELP a C.\n# TYPE a counter\na_total 0\n"
                  "# HELP b I.\n# TYPE b info\nb_info{v=\"1\"} 1\n# EOF\n");
}

static void an_information_is_a_gauge_in_the_older_format(void)
{
    static const struct once__family info = {"b_info", ONCE__INFO, "v", "I."};
    const once_bytes v = text("1");
    struct out o;
    struct once__metrics_text w = writer(&o, 0);

    once__metrics_family(&w, &info);
    once__metrics_value(&w, &v, 1);
    once__metrics_end(&w);
    T_STR(o.text, "# HELP b_info I.\n# TYPE b_info gauge\nb_info{v=\"1\"} 1\n");
}

static void a_family_without_samples_leaves_no_line(void)
{
    struct out o;
    struct once__metrics_text w = writer(&o, 0);

    once__metrics_family(&w, &once__families[ONCE__FAMILY_STORE_UP]);
    once__metrics_family(&w, &once__families[ONCE__FAMILY_RECORDS]);
    once__metrics_end(&w);
    T_STR(o.text, "");
}

static void values_of_labels_are_escaped(void)
{
    static const struct once__family f = {"a", ONCE__GAUGE, "x", "Help."};
    static const char expected[] = "# HELP a Help.\n# TYPE a gauge\n"
                                   "a{x=\"\\\\a\\\"b\\nc\0d\"} 1\n";
    const once_bytes v = {"\\a\"b\nc\0d", 8}, none = {NULL, 0};
    struct out o;
    struct once__metrics_text w = writer(&o, 0);

    once__metrics_family(&w, &f);
    once__metrics_value(&w, &v, 1);
    once__metrics_value(&w, &none, 2);
    T_MEM(o.text, expected, sizeof(expected) - 1);
    T_OK(strstr(o.text + sizeof(expected) - 1, "a{x=\"\"} 2\n") != NULL);
}

static void milliseconds_are_shown_as_seconds(void)
{
    static const struct once__family f = {"a_seconds", ONCE__GAUGE, "", "H."};
    struct out o;
    struct once__metrics_text w = writer(&o, 0);

    once__metrics_family(&w, &f);
    once__metrics_ms(&w, NULL, 0);
    once__metrics_ms(&w, NULL, 1500);
    once__metrics_ms(&w, NULL, 1234567890123);
    T_STR(o.text, "# HELP a_seconds H.\n# TYPE a_seconds gauge\n"
                  "a_seconds 0.0\na_seconds 1.5\na_seconds 1234567890.123\n");
}

static void a_histogram_adds_up(void)
{
    static const struct once__buckets b = {3, {64, 1000000, 300000000}};
    static const uint64_t counts[] = {1, 0, 2, 4};
    static const struct once__family f = {"a_seconds", ONCE__HISTOGRAM, "x",
                                          "H."};
    const once_bytes v = text("-");
    struct out o;
    struct once__metrics_text w = writer(&o, 1);

    once__metrics_family(&w, &f);
    once__metrics_histogram(&w, &v, &b, counts, 1000001);
    T_STR(o.text, "# HELP a_seconds H.\n# TYPE a_seconds histogram\n"
                  "a_seconds_bucket{x=\"-\",le=\"0.000064\"} 1\n"
                  "a_seconds_bucket{x=\"-\",le=\"1.0\"} 1\n"
                  "a_seconds_bucket{x=\"-\",le=\"300.0\"} 3\n"
                  "a_seconds_bucket{x=\"-\",le=\"+Inf\"} 7\n"
                  "a_seconds_sum{x=\"-\"} 1.000001\n"
                  "a_seconds_count{x=\"-\"} 7\n");
}

static void check_buckets(const struct once__buckets *b)
{
    size_t i;

    T_OK(b->n > 0 && b->n < ONCE__BUCKETS_MAX);
    T_EQ(once__bucket_of(b, 0), 0);
    for (i = 0; i < b->n; i++) {
        T_OK(i == 0 || b->us[i - 1] < b->us[i]);
        T_EQ(once__bucket_of(b, b->us[i] - 1), i);
        T_EQ(once__bucket_of(b, b->us[i]), i + 1);
    }
    T_EQ(once__bucket_of(b, UINT64_MAX), b->n);
}

static void a_time_is_in_the_bucket_below_its_bound(void)
{
    check_buckets(&once__store_buckets);
    check_buckets(&once__service_buckets);
    /* The engine counts its batches in the former. */
    T_EQ(once__store_buckets.n + 1, ONCE_LATENCY_BUCKETS);
    T_EQ(once__store_buckets.us[0], 64);
    T_EQ(once__store_buckets.us[16], 64 << 16);
}

static int ends_in(const char *s, const char *end)
{
    size_t n = strlen(s), k = strlen(end);

    return n >= k && strcmp(s + n - k, end) == 0;
}

/* Names that promtool would complain of, and ages, which grow while nobody
 * scrapes. */
static void every_family_keeps_the_rules_of_names(void)
{
    size_t i, k;

    for (i = 0; i < ONCE__FAMILY_COUNT; i++) {
        const struct once__family *f = &once__families[i];

        T_OK(strncmp(f->name, "once_", 5) == 0);
        T_OK(strspn(f->name, "abcdefghijklmnopqrstuvwxyz_") == strlen(f->name));
        T_EQ(ends_in(f->name, "_total"), f->type == ONCE__COUNTER);
        T_EQ(ends_in(f->name, "_info"), f->type == ONCE__INFO);
        T_OK(f->type != ONCE__HISTOGRAM || ends_in(f->name, "_seconds"));
        T_OK(f->type == ONCE__HISTOGRAM || !ends_in(f->name, "_seconds") ||
             ends_in(f->name, "_timestamp_seconds"));
        T_OK(ends_in(f->help, "."));
        for (k = 0; k < i; k++)
            T_OK(strcmp(f->name, once__families[k].name) != 0);
    }
}

int main(void)
{
    T_RUN(a_family_has_its_lines_once_and_all_its_samples);
    T_RUN(openmetrics_names_the_family_without_its_suffix);
    T_RUN(an_information_is_a_gauge_in_the_older_format);
    T_RUN(a_family_without_samples_leaves_no_line);
    T_RUN(values_of_labels_are_escaped);
    T_RUN(milliseconds_are_shown_as_seconds);
    T_RUN(a_histogram_adds_up);
    T_RUN(a_time_is_in_the_bucket_below_its_bound);
    T_RUN(every_family_keeps_the_rules_of_names);
    return t_done();
}
