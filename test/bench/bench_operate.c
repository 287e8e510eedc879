/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bench_operate.c - how long an operator waits for a page of a large store.
 *
 *    bench_operate fill N WAITING URL   N records; WAITING are indeterminate
 *    bench_operate names N              some names of them, for other programs
 *    bench_operate ask N URL            asks, and prints a table
 *
 * N is the same each time: it says which names are there. All but those that
 * wait are completed, with a result of 100 bytes and a label. They are filled in
 * by their names, as a restore does, and their fences have the same order: with
 * fences in another order than names each record would write a page of its own.
 * Each question is asked 200 times, through the engine, one after the other;
 * each answer is checked.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <once/store.h>

#include "operate/operate.h"

enum { PIECE = 4096, ASKED = 200, PAGE = 100, DIGITS = 16, RESULT = 100 };

static void die(const char *what, const once_error *err)
{
    fprintf(stderr, "bench_operate: %s: %s\n", what, err ? err->text : "");
    exit(1);
}

static double ms(void)
{
    struct timespec t;

    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e3 + (double)t.tv_nsec / 1e6;
}

/* ---- The records ------------------------------------------------------- */

static uint64_t spread(uint64_t n)
{
    n += 0x9e3779b97f4a7c15u;
    n = (n ^ (n >> 30)) * 0xbf58476d1ce4e5b9u;
    n = (n ^ (n >> 27)) * 0x94d049bb133111ebu;
    return n ^ (n >> 31);
}

/* Names are hashes. */
static void name_of(uint8_t out[ONCE_NAME_SIZE], uint64_t n)
{
    uint64_t word;
    size_t i;

    for (i = 0; i < 4; i++) {
        word = spread(n * 4 + i);
        memcpy(out + 8 * i, &word, 8);
    }
}

static uint64_t first_of(const uint8_t name[ONCE_NAME_SIZE])
{
    uint64_t first = 0;
    int i;

    for (i = 0; i < 8; i++)
        first = first << 8 | name[i];
    return first;
}

struct place {
    uint64_t name, n; /* its first bytes; whose they are */
};

static int by_name(const void *a, const void *b)
{
    const struct place *x = a, *y = b;

    return (x->name > y->name) - (x->name < y->name);
}

/* The numbers of the names, in the order of the names. */
static struct place *in_order(uint64_t n)
{
    struct place *all = malloc(n * sizeof(*all));
    uint8_t name[ONCE_NAME_SIZE];
    uint64_t i;

    if (all == NULL)
        die("out of memory", NULL);
    for (i = 0; i < n; i++) {
        name_of(name, i);
        all[i] = (struct place){first_of(name), i};
    }
    qsort(all, n, sizeof(*all), by_name);
    return all;
}

static void record_of(once_named *r, uint64_t n, uint64_t fence, int waits,
                      uint64_t now)
{
    static const char result[RESULT];
    static char labels[PIECE][40];
    char *label = labels[fence % PIECE];
    int size = snprintf(label, sizeof(labels[0]),
                        "POST /orders order=%08" PRIu64, n % 100000000);

    memset(r, 0, sizeof(*r));
    name_of(r->name, n);
    memcpy(r->record.token, r->name, ONCE_TOKEN_SIZE);
    memcpy(r->record.fingerprint, r->name, ONCE_FINGERPRINT_SIZE);
    r->record.attempt = 1;
    r->record.fence = fence;
    r->record.created_ms = r->record.granted_ms = now - 2000;
    r->record.ended_ms = now - 1000 + n % 1000;
    r->record.label = (once_bytes){label, (size_t)size};
    if (waits) {
        r->record.state = ONCE_INDETERMINATE;
        r->record.reason = ONCE_REASON_TIMEOUT;
        return;
    }
    r->record.state = ONCE_COMPLETED;
    r->record.kind = ONCE_SUCCESS;
    r->record.keep_ms = now + 86400000;
    r->record.result = (once_bytes){result, RESULT};
}

static void fill(const char *url, uint64_t n, uint64_t waiting)
{
    static once_named r[PIECE];
    uint64_t i = 0, now = (uint64_t)time(NULL) * 1000;
    uint64_t each = waiting ? n / waiting : n + 1, last = 0;
    struct place *all = in_order(n);
    once_error err = {0, ""};
    once_store *s = NULL;
    size_t k;

    if (once_store_init(url, &err) != ONCE_OK ||
        once_store_open(url, NULL, &err, &s) != ONCE_OK)
        die("open", &err);
    if (s->ops->import == NULL)
        die("this store takes no records from elsewhere", NULL);
    while (i < n) {
        for (k = 0; k < PIECE && i < n; k++, i++)
            record_of(&r[k], all[i].n, i + 1,
                      waiting > 0 && all[i].n % each == 0, now);
        if (s->ops->import(s, r, k, &err) != ONCE_OK)
            die("import", &err);
        if (i / 1000000 != last)
            fprintf(stderr, "%" PRIu64 " million\n", last = i / 1000000);
    }
    once_store_close(s);
    free(all);
}

/* ---- The questions ----------------------------------------------------- */

struct asker {
    once_engine *e;
    uint64_t n, i; /* so many names there are; the question's number */
    uint64_t waiting;
};

static int shown(void *user, const uint8_t name[ONCE_NAME_SIZE],
                 const once_record *r)
{
    (void)user;
    (void)name;
    (void)r;
    return 0;
}

static void ask_waiting(struct asker *a)
{
    once_error err = {0, ""};

    if (once_scan(a->e, ONCE_SCAN_WAITING, NULL, PAGE, shown, NULL, &err) < 0)
        die("waiting", &err);
}

static int last_shown(void *user, const uint8_t name[ONCE_NAME_SIZE],
                      const once_record *r)
{
    *(once_position *)user = once_position_of(ONCE_SCAN_WAITING, name, r);
    return 0;
}

/* All pages of what waits, by the position of the last. */
static void ask_all_waiting(struct asker *a)
{
    once_error err = {0, ""};
    once_position at;
    const once_position *after = NULL;
    uint64_t all = 0;
    int n;

    do {
        once_position from = after ? *after : (once_position){0, {0}};

        n = once_scan(a->e, ONCE_SCAN_WAITING, after ? &from : NULL, PAGE,
                      last_shown, &at, &err);
        after = &at;
        all += n > 0 ? (uint64_t)n : 0;
    } while (n == PAGE);
    if (n < 0)
        die("waiting", &err);
    if (all != a->waiting)
        die("waiting: not all", NULL);
}

static void ask_live(struct asker *a)
{
    once_error err = {0, ""};

    if (once_scan(a->e, ONCE_SCAN_LIVE, NULL, PAGE, shown, NULL, &err) < 0)
        die("live", &err);
}

static void ask_counts(struct asker *a)
{
    once_error err = {0, ""};
    once_counts c;

    if (once_count(a->e, &c, &err) != ONCE_OK)
        die("counts", &err);
}

static void any_name(const struct asker *a, uint8_t out[ONCE_NAME_SIZE])
{
    name_of(out, spread(a->i) % a->n);
}

static void ask_record(struct asker *a)
{
    uint8_t name[ONCE_NAME_SIZE];
    once_error err = {0, ""};
    once_op op;

    any_name(a, name);
    if (once__look(a->e, name, &op, &err) < 0)
        die("record", &err);
    if (op.record.attempt != 1 || op.record.label.size == 0)
        die("record: another one", NULL);
    once_op_clear(&op);
}

static void find(struct asker *a, size_t digits)
{
    uint8_t name[ONCE_NAME_SIZE], found[2][ONCE_NAME_SIZE];
    once_error err = {0, ""};
    once__prefix p = {{0}, digits};

    any_name(a, name);
    memcpy(p.bytes, name, digits / 2);
    if (once__find(a->e, &p, found, &err) < 1)
        die("find", &err);
    if (memcmp(found[0], name, digits / 2) != 0)
        die("find: another one", NULL);
}

static void ask_digits(struct asker *a)
{
    find(a, DIGITS);
}

static void ask_whole(struct asker *a)
{
    find(a, ONCE__DIGITS);
    ask_record(a);
}

static const struct question {
    const char *text;
    void (*ask)(struct asker *a);
} questions[] = {
    {"Waiting, the first 100", ask_waiting},
    {"Waiting, all pages", ask_all_waiting},
    {"In flight, the first 100", ask_live},
    {"Counts", ask_counts},
    {"Record", ask_record},
    {"Find, whole hash", ask_whole},
    {"Find, first 16 digits", ask_digits},
};

static int by_size(const void *a, const void *b)
{
    const double *x = a, *y = b;

    return (*x > *y) - (*x < *y);
}

static void measure(struct asker *a, const struct question *q)
{
    static double took[ASKED];
    double from;
    int i;

    for (i = 0; i < ASKED; i++) {
        a->i++;
        from = ms();
        q->ask(a);
        took[i] = ms() - from;
    }
    qsort(took, ASKED, sizeof(took[0]), by_size);
    printf("| %s | %.2f | %.2f | %.2f |\n", q->text, took[ASKED / 2],
           took[ASKED * 95 / 100], took[ASKED - 1]);
    fflush(stdout);
}

static void ask(const char *url, uint64_t n)
{
    once_engine_options options = ONCE_ENGINE_OPTIONS_INIT;
    once_error err = {0, ""};
    struct asker a = {NULL, n, 0, 0};
    once_counts c;
    double from = ms();
    size_t i;

    options.no_reaper = 1; /* as the console does */
    if (once_engine_open(url, &options, &err, &a.e) != ONCE_OK)
        die("open", &err);
    if (once_count(a.e, &c, &err) != ONCE_OK)
        die("count", &err);
    a.waiting = c.indeterminate;
    printf("%" PRIu64 " wait, %" PRIu64 " others%s; opened in %.0f ms\n\n",
           c.indeterminate, c.rest, c.rest_estimated ? " or so" : "",
           ms() - from);
    printf("| question | median ms | p95 | slowest |\n|---|---|---|---|\n");
    for (i = 0; i < sizeof(questions) / sizeof(questions[0]); i++)
        measure(&a, &questions[i]);
    once_engine_close(a.e);
}

static void names(uint64_t n)
{
    uint8_t name[ONCE_NAME_SIZE];
    int i, k;

    for (i = 0; i < ASKED; i++) {
        name_of(name, spread((uint64_t)i) % n);
        for (k = 0; k < ONCE_NAME_SIZE; k++)
            printf("%02x", name[k]);
        printf("\n");
    }
}

int main(int argc, char **argv)
{
    uint64_t n = argc > 2 ? strtoull(argv[2], NULL, 10) : 0;

    if (argc == 5 && n > 0 && strcmp(argv[1], "fill") == 0)
        fill(argv[4], n, strtoull(argv[3], NULL, 10));
    else if (argc == 4 && n > 0 && strcmp(argv[1], "ask") == 0)
        ask(argv[3], n);
    else if (argc == 3 && n > 0 && strcmp(argv[1], "names") == 0)
        names(n);
    else
        return fprintf(stderr, "usage: see the beginning of bench_operate.c\n"),
               2;
    return 0;
}
