/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bench_store.c - how fast a store is by itself, beside what the disk allows.
 *
 *    bench_store [-d FOLDER] [-r ROUNDS] [-n CYCLES] [URL...]
 *
 * A cycle is a claim and then a complete, each durable before the next, with a
 * result of 300 bytes; N in flight are batches of N. The limit is an append of
 * the same bytes and an fdatasync for each batch. A replay is a claim of a
 * completed key. Rounds are interleaved, so that a noisy moment meets all, and
 * the table shows medians. It decides nothing: numbers are for people.
 */
#include <assert.h>
#include <fcntl.h>
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <once/store.h>

enum {
    ROUNDS_MAX = 99,
    SUBJECTS_MAX = 8,
    RESULT = 300,
    CLAIM_BYTES = 144, /* name, token, fingerprint, fence, times ... */
    COMPLETE_BYTES = RESULT + 72
};

static const unsigned flights[] = {1, 16, 64};
enum { FLIGHTS = sizeof(flights) / sizeof(flights[0]), FLIGHT_MAX = 64 };

struct figures {
    double cycles[FLIGHTS][ROUNDS_MAX];
    double replays[FLIGHTS][ROUNDS_MAX];
    double slow[FLIGHTS][ROUNDS_MAX]; /* p99 of a batch, microseconds */
};

struct subject {
    const char *url; /* NULL: the limit */
    once_store *store;
    int fd;
    uint64_t keys; /* used so far */
    struct figures f;
};

struct bench {
    const char *folder;
    int rounds;
    unsigned cycles;
    struct subject subject[SUBJECTS_MAX];
    int subjects;
};

static double seconds(void)
{
    struct timespec t;

    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static void die(const char *what)
{
    fprintf(stderr, "bench_store: %s\n", what);
    exit(1);
}

/* ---- One batch --------------------------------------------------------- */

static uint64_t spread(uint64_t n)
{
    n = (n ^ (n >> 30)) * 0xbf58476d1ce4e5b9u;
    n = (n ^ (n >> 27)) * 0x94d049bb133111ebu;
    return n ^ (n >> 31);
}

static void fill(once_op *op, int verb, uint64_t key)
{
    uint64_t word;
    size_t i;

    memset(op, 0, sizeof(*op));
    op->verb = verb;
    op->kind = ONCE_SUCCESS;
    op->lease_ms = 30000;
    op->keep_ms = 86400000;
    for (i = 0; i < 4; i++) { /* names are hashes */
        word = spread(key * 4 + i);
        memcpy(op->name + 8 * i, &word, 8);
    }
    memcpy(op->token, op->name, ONCE_TOKEN_SIZE);
    memcpy(op->fingerprint, op->name, ONCE_FINGERPRINT_SIZE);
}

static void apply(once_store *s, once_op *op, unsigned n, int expected)
{
    once_op *ops[FLIGHT_MAX];
    once_error err = {0, ""};
    unsigned i;

    for (i = 0; i < n; i++)
        ops[i] = &op[i];
    if (s->ops->apply(s, ops, n, &err) != ONCE_OK)
        die(err.text);
    for (i = 0; i < n; i++)
        if (op[i].rc != expected)
            die(once_text(op[i].rc));
}

static void append(int fd, size_t size)
{
    static const uint8_t bytes[FLIGHT_MAX * COMPLETE_BYTES];

    if (write(fd, bytes, size) != (ssize_t)size || fdatasync(fd) != 0)
        die("the plain log cannot be written");
}

static void claim_batch(struct subject *s, once_op *op, unsigned n)
{
    unsigned i;

    if (s->store == NULL) {
        append(s->fd, (size_t)n * CLAIM_BYTES);
        return;
    }
    for (i = 0; i < n; i++)
        fill(&op[i], ONCE_OP_CLAIM, s->keys + i);
    apply(s->store, op, n, ONCE_OWNER);
}

static void complete_batch(struct subject *s, once_op *op, unsigned n)
{
    static const uint8_t result[RESULT] = {1};
    uint64_t fence;
    unsigned i;

    if (s->store == NULL) {
        append(s->fd, (size_t)n * COMPLETE_BYTES);
        return;
    }
    for (i = 0; i < n; i++) {
        fence = op[i].record.fence;
        fill(&op[i], ONCE_OP_COMPLETE, s->keys + i);
        op[i].fence = fence;
        op[i].result = (once_bytes){result, sizeof(result)};
    }
    apply(s->store, op, n, ONCE_OK);
}

/* ---- One round --------------------------------------------------------- */

static int by_size(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

static void cycles(struct bench *b, struct subject *s, int flight, int round)
{
    static once_op op[FLIGHT_MAX];
    unsigned n = flights[flight], batches, i;
    double *took, start, at;

    /* Alone each cycle is two flushes: fewer of them tell as much. */
    batches = n == 1 ? b->cycles / 16 : b->cycles / n;
    batches = batches == 0 ? 1 : batches;
    took = calloc(2 * (size_t)batches, sizeof(*took));
    if (took == NULL)
        die("out of memory");
    start = seconds();
    for (i = 0; i < batches; i++) {
        at = seconds();
        claim_batch(s, op, n);
        took[2 * i] = seconds() - at;
        at = seconds();
        complete_batch(s, op, n);
        took[2 * i + 1] = seconds() - at;
        s->keys += n;
    }
    s->f.cycles[flight][round] = batches * n / (seconds() - start);
    qsort(took, 2 * (size_t)batches, sizeof(*took), by_size);
    s->f.slow[flight][round] = 1e6 * took[2 * (size_t)batches * 99 / 100];
    free(took);
}

static void replays(struct bench *b, struct subject *s, int flight, int round)
{
    static once_op op[FLIGHT_MAX];
    unsigned n = flights[flight], batches = b->cycles / n + 1, i, k;
    double start;

    if (s->store == NULL)
        return;
    start = seconds();
    for (i = 0; i < batches; i++) {
        for (k = 0; k < n; k++) {
            fill(&op[k], ONCE_OP_CLAIM, spread(i * n + k) % s->keys);
            op[k].token[0] ^= 1; /* another attempt */
        }
        apply(s->store, op, n, ONCE_REPLAY);
    }
    s->f.replays[flight][round] = batches * n / (seconds() - start);
}

/* ---- The table --------------------------------------------------------- */

static double median(const double *of, int n)
{
    double sorted[ROUNDS_MAX];

    memcpy(sorted, of, (size_t)n * sizeof(*of));
    qsort(sorted, (size_t)n, sizeof(*sorted), by_size);
    return n % 2 ? sorted[n / 2] : (sorted[n / 2 - 1] + sorted[n / 2]) / 2;
}

static const char *label(const struct subject *s)
{
    return s->store == NULL ? "append + fdatasync" : s->store->ops->name;
}

static void print_table(const struct bench *b)
{
    const struct subject *limit = &b->subject[0], *s;
    double c;
    int i, f;

    printf("| store | in flight | cycles/s | of the limit | batch p99 µs "
           "| replays/s |\n|---|---|---|---|---|---|\n");
    for (f = 0; f < FLIGHTS; f++)
        for (i = 0; i < b->subjects; i++) {
            s = &b->subject[i];
            c = median(s->f.cycles[f], b->rounds);
            printf("| %s | %u | %.0f | %.2f | %.0f | ", label(s), flights[f], c,
                   c / median(limit->f.cycles[f], b->rounds),
                   median(s->f.slow[f], b->rounds));
            if (s->store == NULL)
                printf("- |\n");
            else
                printf("%.0f |\n", median(s->f.replays[f], b->rounds));
        }
    printf("\nMedians of %d interleaved rounds; a cycle is claim and complete "
           "of %d bytes.\n",
           b->rounds, RESULT);
}

/* ---- Setting up -------------------------------------------------------- */

static void add_limit(struct bench *b)
{
    struct subject *s = &b->subject[b->subjects++];
    char path[512];

    (void)snprintf(path, sizeof(path), "%s/plain.log", b->folder);
    s->fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    /* Room ahead, so that a flush need not write the file's length. */
    if (s->fd < 0 || posix_fallocate(s->fd, 0, (off_t)64 << 20) != 0)
        die("the plain log cannot be created");
}

static void add_store(struct bench *b, const char *url)
{
    struct subject *s = &b->subject[b->subjects];
    once_error err = {0, ""};

    if (b->subjects == SUBJECTS_MAX)
        die("too many stores");
    s->url = url;
    if (once_store_open(url, NULL, &err, &s->store) != ONCE_OK)
        die(err.text);
    b->subjects++;
}

static int number(const char *text, int most)
{
    char *end;
    long n = strtol(text, &end, 10);

    if (*end != '\0' || n < 1 || n > most)
        die("a number is out of range");
    return (int)n;
}

static void parse(struct bench *b, int argc, char **argv)
{
    int c;

    while ((c = getopt(argc, argv, "d:r:n:")) != -1)
        switch (c) {
        case 'd':
            b->folder = optarg;
            break;
        case 'r':
            b->rounds = number(optarg, ROUNDS_MAX);
            break;
        case 'n':
            b->cycles = (unsigned)number(optarg, 10000000);
            break;
        default:
            die("usage: bench_store [-d FOLDER] [-r ROUNDS] [-n CYCLES] "
                "[URL...]");
        }
}

static void clean_up(struct bench *b, const char *made)
{
    char command[600];
    int i;

    for (i = 0; i < b->subjects; i++) {
        once_store_close(b->subject[i].store);
        if (b->subject[i].store == NULL)
            (void)close(b->subject[i].fd);
    }
    (void)snprintf(command, sizeof(command), "rm -rf '%s'", made);
    if (system(command) != 0)
        fprintf(stderr, "bench_store: %s is still there\n", made);
}

int main(int argc, char **argv)
{
    static struct bench b = {".", 5, 4000, {{0}}, 0};
    static char made[512], url[600];
    int round, i, f;

    parse(&b, argc, argv);
    (void)snprintf(made, sizeof(made), "%s/bench-store-XXXXXX", b.folder);
    if (mkdtemp(made) == NULL)
        die("the folder cannot be written");
    b.folder = made;
    add_limit(&b);
    (void)snprintf(url, sizeof(url), "sqlite:%s/once.db", made);
    if (optind == argc) {
        add_store(&b, "memory:");
        add_store(&b, url);
    }
    for (i = optind; i < argc; i++)
        add_store(&b, argv[i]);
    for (round = 0; round < b.rounds; round++)
        for (f = 0; f < FLIGHTS; f++)
            for (i = 0; i < b.subjects; i++) {
                if (lseek(b.subject[0].fd, 0, SEEK_SET) != 0)
                    die("the plain log cannot be rewound");
                cycles(&b, &b.subject[i], f, round);
                replays(&b, &b.subject[i], f, round);
            }
    print_table(&b);
    clean_up(&b, made);
    return 0;
}
