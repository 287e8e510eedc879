/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bench_store.c - how fast a store is by itself: one measurement, as JSON.
 *
 *    bench_store [OPTION...] URL      test/bench/stores.py and scale.py make
 *                                     tables of it
 *
 *      -n N   operations in flight: each batch has so many      [64]
 *      -b N   bytes of a result                                 [300]
 *      -s S   seconds to measure                                [1]
 *      -p N   processes that share the store                    [1]
 *      -f N   completed records to be there first               [0]
 *      -r     measure replays of what is there, not new keys
 *      -c     measure claims alone, which nobody completes
 *      -o     measure opening after a kill -9, not operations
 *      -v N   visit a store that was filled by -o -f N: measure opening as it
 *             was left, some cycles, some replays of the N, and opening after
 *             a kill -9. It says `look` and waits for a line before the kill
 *
 * A cycle is a claim and then a complete, each durable before the next. A
 * replay is a claim of a completed key by another attempt. Besides those of
 * stores there is the URL "append:FILE": what the disk allows, an append of as
 * many bytes as the journal writes and an fdatasync for each batch, in a file
 * that was written before, so that a flush has nothing else to do. It decides
 * nothing and checks every answer: a figure for a wrong answer is none.
 */
#include <assert.h>
#include <fcntl.h>
#include <getopt.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <sys/random.h>
#include <sys/resource.h>
#include <sys/wait.h>

#include <once/store.h>

enum {
    FLIGHT_MAX = 1024,
    RESULT_MAX = 1 << 20,
    PROCESSES_MAX = 16,
    SAMPLES = 1 << 20,
    FRAME = 268, /* what the journal writes beside a result */
    PLAIN_SIZE = 64 << 20,
    FIRST = 1,            /* key of what -o fills in */
    VISIT_CYCLES = 16384, /* of a visit: few, beside what is there */
    VISIT_REPLAYS = 65536
};

struct options {
    const char *url;
    const char *append; /* the path behind "append:", or NULL */
    unsigned flight, result, processes;
    double seconds;
    uint64_t fill, visit;
    int replays, claims, open;
};

/* What one process did. */
struct did {
    uint64_t operations;
    double seconds, cpu, opened; /* the last one: milliseconds to open */
    uint64_t written, own_kb;    /* bytes handed to the kernel; its memory */
    unsigned samples;
    float took[SAMPLES]; /* microseconds a batch */
};

struct subject {
    const struct options *o;
    once_store *store;
    int fd; /* of "append:" */
    off_t at;
    uint64_t base; /* first key of this process: random, so all differ */
    uint64_t keys; /* used so far */
    uint8_t *result;
    struct did *did;
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

static void append(struct subject *s, size_t size)
{
    static uint8_t bytes[FLIGHT_MAX * FRAME];
    size_t n;

    if (s->at + (off_t)size > PLAIN_SIZE)
        s->at = 0;
    while (size > 0) {
        n = size < sizeof(bytes) ? size : sizeof(bytes);
        if (pwrite(s->fd, bytes, n, s->at) != (ssize_t)n)
            die("the plain file cannot be written");
        s->at += (off_t)n;
        size -= n;
    }
    if (fdatasync(s->fd) != 0)
        die("the plain file cannot be flushed");
}

static void claim_batch(struct subject *s, once_op *op, unsigned n)
{
    unsigned i;

    if (s->store == NULL) {
        append(s, (size_t)n * FRAME);
        return;
    }
    for (i = 0; i < n; i++)
        fill(&op[i], ONCE_OP_CLAIM, s->base + s->keys + i);
    apply(s->store, op, n, ONCE_OWNER);
}

static void complete_batch(struct subject *s, once_op *op, unsigned n)
{
    uint64_t fence;
    unsigned i;

    if (s->store == NULL) {
        append(s, (size_t)n * (FRAME + s->o->result));
        return;
    }
    for (i = 0; i < n; i++) {
        fence = op[i].record.fence;
        fill(&op[i], ONCE_OP_COMPLETE, s->base + s->keys + i);
        op[i].fence = fence;
        op[i].result = (once_bytes){s->result, s->o->result};
    }
    apply(s->store, op, n, ONCE_OK);
}

static void replay_batch(struct subject *s, once_op *op, unsigned n,
                         uint64_t at)
{
    unsigned i;

    for (i = 0; i < n; i++) {
        fill(&op[i], ONCE_OP_CLAIM, s->base + spread(at + i) % s->keys);
        op[i].token[0] ^= 1; /* another attempt */
    }
    apply(s->store, op, n, ONCE_REPLAY);
    for (i = 0; i < n; i++)
        if (op[i].record.result.size != s->o->result)
            die("a replay of another size");
}

/* ---- One process ------------------------------------------------------- */

static void sample(struct did *d, double start)
{
    double took = 1e6 * (seconds() - start);

    /* When there are too many, each has the same chance to stay. */
    if (d->samples < SAMPLES)
        d->took[d->samples++] = (float)took;
    else
        d->took[spread(d->operations) % SAMPLES] = (float)took;
}

/* Claims, and unless it is claims alone, their completions. */
static void measure_cycles(struct subject *s, double until)
{
    static once_op op[FLIGHT_MAX];
    unsigned n = s->o->flight;
    double start;

    do {
        start = seconds();
        claim_batch(s, op, n);
        sample(s->did, start);
        s->did->operations += n;
        if (!s->o->claims) {
            start = seconds();
            complete_batch(s, op, n);
            sample(s->did, start);
            s->did->operations += n;
        }
        s->keys += n;
    } while (seconds() < until);
}

static void measure_replays(struct subject *s, double until)
{
    static once_op op[FLIGHT_MAX];
    unsigned n = s->o->flight;
    double start;

    do {
        start = seconds();
        replay_batch(s, op, n, s->did->operations);
        sample(s->did, start);
        s->did->operations += n;
    } while (seconds() < until);
}

static void fill_up(struct subject *s, uint64_t records)
{
    static once_op op[FLIGHT_MAX];
    unsigned n;

    while (s->keys < records) {
        n = records - s->keys < FLIGHT_MAX ? (unsigned)(records - s->keys)
                                           : FLIGHT_MAX;
        claim_batch(s, op, n);
        complete_batch(s, op, n);
        s->keys += n;
    }
}

static void plain_file(struct subject *s)
{
    static const uint8_t zeros[1 << 16];
    off_t at;

    s->fd = open(s->o->append, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (s->fd < 0)
        die("the plain file cannot be opened");
    for (at = lseek(s->fd, 0, SEEK_END); at < PLAIN_SIZE;
         at += (off_t)sizeof(zeros))
        if (pwrite(s->fd, zeros, sizeof(zeros), at) != (ssize_t)sizeof(zeros))
            die("the plain file cannot be written");
    if (fsync(s->fd) != 0)
        die("the plain file cannot be flushed");
}

/* So that keys of all processes differ. */
static uint64_t any_key(void)
{
    uint64_t key;

    if (getrandom(&key, sizeof(key), 0) != sizeof(key))
        die("no random bytes");
    return key >> 3; /* names are made of four times the key */
}

static void subject_open(struct subject *s, const struct options *o)
{
    once_error err = {0, ""};

    memset(s, 0, sizeof(*s));
    s->o = o;
    s->result = calloc(1, o->result + 1);
    s->did = calloc(1, sizeof(*s->did));
    if (s->result == NULL || s->did == NULL)
        die("out of memory");
    s->base = any_key();
    if (o->append != NULL)
        plain_file(s);
    else if (once_store_open(o->url, NULL, &err, &s->store) != ONCE_OK)
        die(err.text);
}

static void subject_close(struct subject *s)
{
    once_store_close(s->store);
    if (s->o->append != NULL)
        (void)close(s->fd);
    free(s->result);
    free(s->did);
}

/* ---- Several processes ------------------------------------------------- */

static void write_all(int fd, const void *data, size_t size)
{
    const uint8_t *at = data;
    ssize_t n;

    for (; size > 0; at += n, size -= (size_t)n)
        if ((n = write(fd, at, size)) <= 0)
            die("a pipe broke");
}

static void read_all(int fd, void *data, size_t size)
{
    uint8_t *at = data;
    ssize_t n;

    for (; size > 0; at += n, size -= (size_t)n)
        if ((n = read(fd, at, size)) <= 0)
            die("a process ended early");
}

/* Of all threads of this process, in seconds. */
static double cpu(void)
{
    struct rusage u;

    (void)getrusage(RUSAGE_SELF, &u);
    return (double)(u.ru_utime.tv_sec + u.ru_stime.tv_sec) +
           (double)(u.ru_utime.tv_usec + u.ru_stime.tv_usec) / 1e6;
}

/* Opens, says that it is ready, waits for the others, measures, tells. */
static void child(const struct options *o, int ready, int go, int out)
{
    struct subject s;
    double start;
    char c = 0;

    subject_open(&s, o);
    fill_up(&s, o->fill / o->processes + (o->replays ? o->flight : 0));
    write_all(ready, &c, 1);
    (void)!read(go, &c, 1); /* ends when the parent closes it */
    s.did->cpu = -cpu();
    start = seconds();
    if (o->replays)
        measure_replays(&s, start + o->seconds);
    else
        measure_cycles(&s, start + o->seconds);
    s.did->seconds = seconds() - start;
    s.did->cpu += cpu();
    write_all(out, s.did, sizeof(*s.did));
    subject_close(&s);
    exit(0);
}

static int by_size(const void *a, const void *b)
{
    float x = *(const float *)a, y = *(const float *)b;

    return (x > y) - (x < y);
}

static void print_times(const struct options *o, struct did *all,
                        uint64_t operations, double rate, double spent)
{
    static float took[PROCESSES_MAX * SAMPLES];
    size_t n = 0;
    unsigned i;

    for (i = 0; i < o->processes; i++) {
        memcpy(took + n, all[i].took, all[i].samples * sizeof(float));
        n += all[i].samples;
    }
    qsort(took, n, sizeof(*took), by_size);
    printf("{\"operations\": %llu, \"per_s\": %.1f, \"p50_us\": %.1f, "
           "\"p99_us\": %.1f, \"cpu_us\": %.3f}\n",
           (unsigned long long)operations,
           /* a cycle is two operations */
           o->replays || o->claims ? rate : rate / 2, (double)took[n / 2],
           (double)took[n * 99 / 100], 1e6 * spent / (double)operations);
}

static void measure(const struct options *o)
{
    static struct did all[PROCESSES_MAX];
    int ready[2], go[2], out[PROCESSES_MAX][2], status;
    pid_t pids[PROCESSES_MAX];
    uint64_t operations = 0;
    double rate = 0, spent = 0;
    unsigned i;
    char c;

    if (pipe(ready) != 0 || pipe(go) != 0)
        die("no pipe");
    for (i = 0; i < o->processes; i++) {
        if (pipe(out[i]) != 0 || (pids[i] = fork()) < 0)
            die("no process");
        if (pids[i] == 0) {
            (void)close(go[1]);
            child(o, ready[1], go[0], out[i][1]);
        }
        (void)close(out[i][1]);
    }
    (void)close(ready[1]);
    for (i = 0; i < o->processes; i++)
        read_all(ready[0], &c, 1);
    /* For whoever measures the server's share. */
    fprintf(stderr, "go\n");
    (void)close(go[1]);
    for (i = 0; i < o->processes; i++) {
        read_all(out[i][0], &all[i], sizeof(all[i]));
        operations += all[i].operations;
        spent += all[i].cpu;
        rate += (double)all[i].operations / all[i].seconds;
    }
    fprintf(stderr, "end\n");
    for (i = 0; i < o->processes; i++)
        if (waitpid(pids[i], &status, 0) != pids[i] || status != 0)
            die("a process failed");
    print_times(o, all, operations, rate, spent);
}

/* ---- Opening ----------------------------------------------------------- */

/* What the kernel says of this process, all its threads, or 0. */
static uint64_t of_process(const char *path, const char *name)
{
    char line[128];
    uint64_t n = 0;
    FILE *f = fopen(path, "r");

    while (f != NULL && fgets(line, sizeof(line), f) != NULL)
        if (strncmp(line, name, strlen(name)) == 0)
            n = strtoull(line + strlen(name), NULL, 10);
    if (f != NULL)
        (void)fclose(f);
    return n;
}

/* `end`: adds what was used since it was called without. */
static void account(struct did *d, int end)
{
    double spent = cpu(), now = seconds();
    uint64_t written = of_process("/proc/self/io", "wchar:");

    d->cpu = end ? spent - d->cpu : spent;
    d->seconds = end ? now - d->seconds : now;
    d->written = end ? written - d->written : written;
}

static void print_did(const char *what, const struct did *d)
{
    double n = (double)d->operations;

    printf("\"%s\": {\"per_s\": %.1f, \"cpu_us\": %.3f, "
           "\"written\": %.1f}, ",
           what, n / d->seconds, 1e6 * d->cpu / n, (double)d->written / n);
}

/* A process fills the store and is killed in the middle of its work. */
static void leave_unclean(const struct options *o, struct did *did)
{
    struct subject s;
    int out[2], status;
    pid_t pid = -1;

    if (pipe(out) != 0 || (pid = fork()) < 0)
        die("no process");
    if (pid == 0) {
        subject_open(&s, o);
        s.base = FIRST;
        account(s.did, 0);
        fill_up(&s, o->fill);
        account(s.did, 1);
        s.did->operations = 2 * o->fill;
        write_all(out[1], s.did, sizeof(*s.did));
        (void)raise(SIGKILL);
    }
    (void)close(out[1]);
    read_all(out[0], did, sizeof(*did));
    if (waitpid(pid, &status, 0) != pid || !WIFSIGNALED(status))
        die("the process that fills the store failed");
}

/* Milliseconds, with whatever was put off until the first question. */
static double open_and_ask(struct subject *s, const struct options *o)
{
    double start = seconds();
    once_op op[1];

    subject_open(s, o);
    claim_batch(s, op, 1);
    s->keys++;
    return 1e3 * (seconds() - start);
}

static void measure_open(const struct options *o)
{
    static struct did did;
    struct subject s;

    leave_unclean(o, &did);
    printf("{");
    print_did("fill", &did);
    printf("\"records\": %llu, \"open_ms\": %.1f}\n",
           (unsigned long long)o->fill, open_and_ask(&s, o));
    subject_close(&s);
}

/* ---- A visit ----------------------------------------------------------- */

static void visit_cycles(struct subject *s)
{
    account(s->did, 0);
    while (s->did->operations < 2 * VISIT_CYCLES)
        measure_cycles(s, 0); /* one batch */
    account(s->did, 1);
}

static void visit_replays(struct subject *s)
{
    s->base = FIRST;
    s->keys = s->o->visit;
    memset(s->did, 0, sizeof(*s->did));
    account(s->did, 0);
    while (s->did->operations < VISIT_REPLAYS)
        measure_replays(s, 0);
    account(s->did, 1);
}

/* Sends what it did twice, and is killed. */
static void visitor(const struct options *o, int out)
{
    struct subject s;
    uint64_t before = of_process("/proc/self/status", "RssAnon:");
    double opened = open_and_ask(&s, o);
    char c;

    visit_cycles(&s);
    s.did->opened = opened;
    s.did->own_kb = of_process("/proc/self/status", "RssAnon:") - before;
    write_all(out, s.did, sizeof(*s.did));
    visit_replays(&s);
    write_all(out, s.did, sizeof(*s.did));
    fprintf(stderr, "look\n");
    (void)!read(STDIN_FILENO, &c, 1);
    (void)raise(SIGKILL);
}

static void visit(const struct options *o)
{
    static struct did did[2];
    struct subject s;
    int out[2], status;
    pid_t pid = -1;

    if (pipe(out) != 0 || (pid = fork()) < 0)
        die("no process");
    if (pid == 0)
        visitor(o, out[1]);
    (void)close(out[1]);
    read_all(out[0], did, sizeof(did));
    if (waitpid(pid, &status, 0) != pid || !WIFSIGNALED(status))
        die("the visitor failed");
    printf("{");
    print_did("operations", &did[0]);
    print_did("replays", &did[1]);
    printf("\"cycles\": %llu, \"open_ms\": %.1f, ",
           (unsigned long long)(did[0].operations / 2), did[0].opened);
    printf("\"own_kb\": %llu, \"killed_open_ms\": %.1f}\n",
           (unsigned long long)did[0].own_kb, open_and_ask(&s, o));
    subject_close(&s);
}

/* ---- The command line -------------------------------------------------- */

static double number(const char *text, double least, double most)
{
    char *end;
    double n = strtod(text, &end);

    if (*end != '\0' || n < least || n > most)
        die("a number is out of range");
    return n;
}

static void parse(struct options *o, int argc, char **argv)
{
    int c;

    while ((c = getopt(argc, argv, "n:b:s:p:f:v:rco")) != -1)
        switch (c) {
        case 'n':
            o->flight = (unsigned)number(optarg, 1, FLIGHT_MAX);
            break;
        case 'b':
            o->result = (unsigned)number(optarg, 0, RESULT_MAX);
            break;
        case 's':
            o->seconds = number(optarg, 0.01, 3600);
            break;
        case 'p':
            o->processes = (unsigned)number(optarg, 1, PROCESSES_MAX);
            break;
        case 'f':
            o->fill = (uint64_t)number(optarg, 0, 1e9);
            break;
        case 'v':
            o->visit = (uint64_t)number(optarg, 1, 1e9);
            break;
        case 'r':
            o->replays = 1;
            break;
        case 'c':
            o->claims = 1;
            break;
        case 'o':
            o->open = 1;
            break;
        default:
            die("usage: bench_store [-n N] [-b BYTES] [-s SECONDS] [-p N] "
                "[-f N] [-r] [-c] [-o] [-v N] URL");
        }
    if (optind != argc - 1)
        die("which URL?");
    o->url = argv[optind];
    if (strncmp(o->url, "append:", 7) == 0)
        o->append = o->url + 7;
    if (o->append != NULL && (o->replays || o->open || o->visit))
        die("a plain file answers nothing");
}

int main(int argc, char **argv)
{
    struct options o = {NULL, NULL, 64, 300, 1, 1, 0, 0, 0, 0, 0};
    once_error err = {0, ""};

    parse(&o, argc, argv);
    if (o.append == NULL && once_store_init(o.url, &err) != ONCE_OK)
        die(err.text);
    if (o.visit)
        visit(&o);
    else if (o.open)
        measure_open(&o);
    else
        measure(&o);
    return 0;
}
