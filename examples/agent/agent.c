/* SPDX-License-Identifier: Apache-2.0 */
/*
 * agent.c - charges orders through a network that cannot be trusted.
 *
 *    agent --url http://127.0.0.1:8080 --store agent.db --orders 3
 *
 * All that it has to know of retries is one call, once_client_send(). Kill it
 * at any moment and start it again with the same line: orders that were charged
 * are not sent again, the others go on with the keys that they had.
 *
 * It never says "not charged" when it does not know. Small and free to copy.
 */
#include <once/client.h>

#include <getopt.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { THREADS_MAX = 64, ORDERS_MAX = 100000 };

enum {
    EXIT_CHARGED = 0,
    EXIT_NOT = 1,
    EXIT_USAGE = 2,
    EXIT_FILE = 3,
    EXIT_UNKNOWN = 75
};

struct agent {
    const char *url, *store, *prefix, *token, *sample;
    unsigned orders, threads, deadline_s, timeout_ms, amount;
    int list;
    once_client *client;
    pthread_mutex_t lock; /* of what follows */
    unsigned next;
    unsigned counts[5]; /* by enum once_client_outcome; 0: an error */
};

static const char *const outcomes[] = {"error", "charged", "not charged",
                                       "unknown", "another order"};

/* One order: the id is the business's own, the key is the client's affair. */
static int charge(struct agent *a, const char *name, once_client_result *r,
                  once_error *err)
{
    once_client_request request = ONCE_CLIENT_REQUEST_INIT;
    char url[1024], body[256], token[512];
    const once_client_header headers[] = {
        {"Content-Type", "application/json", 0},
        {"Authorization", token, ONCE_CLIENT_SECRET},
        {"X-Sample", a->sample, 0}, /* asks the service to misbehave */
    };

    snprintf(url, sizeof(url), "%s/charge", a->url);
    snprintf(token, sizeof(token), "Bearer %s", a->token);
    snprintf(body, sizeof(body), "{\"order\":\"%s\",\"amount\":%u}", name,
             a->amount);
    request.order.data = name;
    request.order.size = strlen(name);
    request.method = "POST";
    request.url = url;
    request.headers = headers;
    request.n_headers = a->sample != NULL ? 3 : 2;
    request.body.data = body;
    request.body.size = strlen(body);
    return once_client_send(a->client, &request, r, err);
}

static void report(struct agent *a, const char *name, int rc,
                   const once_client_result *r, const once_error *err)
{
    pthread_mutex_lock(&a->lock);
    a->counts[rc > 0 ? rc : 0]++;
    if (rc < 0)
        fprintf(stderr, "agent: %s: %s\n", name, err->text);
    else if (a->list)
        printf("%s\t%s\t%s\t%u\n", name, outcomes[rc],
               once_client_text(r->reason), r->attempts);
    pthread_mutex_unlock(&a->lock);
}

static void *work(void *user)
{
    struct agent *a = user;

    for (;;) {
        once_client_result r = ONCE_CLIENT_RESULT_INIT;
        once_error err = {0, ""};
        char name[80];
        unsigned n;

        pthread_mutex_lock(&a->lock);
        n = a->next < a->orders ? ++a->next : 0;
        pthread_mutex_unlock(&a->lock);
        if (n == 0)
            return NULL;
        snprintf(name, sizeof(name), "%s-%u", a->prefix, n);
        report(a, name, charge(a, name, &r, &err), &r, &err);
        once_client_result_clear(&r);
    }
}

static int charge_all(struct agent *a)
{
    pthread_t crew[THREADS_MAX];
    unsigned i, n = 0;

    while (n < a->threads && pthread_create(&crew[n], NULL, work, a) == 0)
        n++;
    if (n == 0)
        work(a);
    for (i = 0; i < n; i++)
        pthread_join(crew[i], NULL);
    printf("%u orders: %u charged, %u not charged, %u unknown\n", a->orders,
           a->counts[ONCE_CLIENT_DONE], a->counts[ONCE_CLIENT_NOT_DONE],
           a->counts[ONCE_CLIENT_UNKNOWN]);
    if (a->counts[0] + a->counts[ONCE_CLIENT_MISMATCH] > 0)
        return EXIT_FILE;
    if (a->counts[ONCE_CLIENT_UNKNOWN] > 0)
        return EXIT_UNKNOWN;
    return a->counts[ONCE_CLIENT_NOT_DONE] > 0 ? EXIT_NOT : EXIT_CHARGED;
}

/* ---- Options ----------------------------------------------------------- */

static int usage(void)
{
    fputs("usage: agent --url URL --store FILE [--orders N] [--prefix P]\n"
          "             [--threads N] [--deadline SECONDS] [--timeout MS]\n"
          "             [--amount N] [--token T] [--sample MANNERS] [--list]\n"
          "Charges the orders P-1 to P-N at URL/charge. Exit status: 0 all\n"
          "are charged; 1 some are not; 2 usage; 3 the file; 75 some are\n"
          "unknown: run the same line again.\n",
          stderr);
    return EXIT_USAGE;
}

static int number(const char *text, unsigned most, unsigned *out)
{
    char *end;
    unsigned long n = strtoul(text, &end, 10);

    if (*text < '0' || *text > '9' || *end != '\0' || n < 1 || n > most)
        return -1;
    *out = (unsigned)n;
    return 0;
}

static const struct option options[] = {
    {"url", required_argument, NULL, 'u'},
    {"store", required_argument, NULL, 's'},
    {"orders", required_argument, NULL, 'n'},
    {"prefix", required_argument, NULL, 'p'},
    {"threads", required_argument, NULL, 't'},
    {"deadline", required_argument, NULL, 'd'},
    {"timeout", required_argument, NULL, 'o'},
    {"amount", required_argument, NULL, 'a'},
    {"token", required_argument, NULL, 'k'},
    {"sample", required_argument, NULL, 'm'},
    {"list", no_argument, NULL, 'l'},
    {NULL, 0, NULL, 0},
};

static int parse(struct agent *a, int argc, char **argv)
{
    int o, bad = 0;

    while ((o = getopt_long(argc, argv, "", options, NULL)) != -1) {
        switch (o) {
        case 'u':
            a->url = optarg;
            break;
        case 's':
            a->store = optarg;
            break;
        case 'n':
            bad |= number(optarg, ORDERS_MAX, &a->orders);
            break;
        case 'p':
            a->prefix = optarg;
            break;
        case 't':
            bad |= number(optarg, THREADS_MAX, &a->threads);
            break;
        case 'd':
            bad |= number(optarg, 604800, &a->deadline_s);
            break;
        case 'o':
            bad |= number(optarg, 600000, &a->timeout_ms);
            break;
        case 'a':
            bad |= number(optarg, 100000000, &a->amount);
            break;
        case 'k':
            a->token = optarg;
            break;
        case 'm':
            a->sample = optarg;
            break;
        case 'l':
            a->list = 1;
            break;
        default:
            bad = -1;
        }
    }
    /* Names stand in JSON without escapes. */
    bad |= strlen(a->prefix) > 50 ||
           a->prefix[strspn(a->prefix, "abcdefghijklmnopqrstuvwxyz"
                                       "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
                                       "0123456789._-")] != '\0';
    return bad || optind < argc || a->url == NULL || a->store == NULL ? -1 : 0;
}

int main(int argc, char **argv)
{
    struct agent a = {.prefix = "order",
                      .token = "demo",
                      .orders = 3,
                      .threads = 4,
                      .deadline_s = 60,
                      .timeout_ms = 5000,
                      .amount = 1250,
                      .lock = PTHREAD_MUTEX_INITIALIZER};
    once_client_options o = ONCE_CLIENT_OPTIONS_INIT;
    once_error err = {0, ""};
    int rc;

    if (parse(&a, argc, argv) < 0)
        return usage();
    o.deadline_ms = a.deadline_s * 1000;
    o.attempt_ms = a.timeout_ms;
    o.backoff_ms = 100;
    o.backoff_max_ms = 2000;
    o.breaker_ms = 1000;
    if (once_client_open(a.store, &o, &err, &a.client) < 0) {
        fprintf(stderr, "agent: %s\n", err.text);
        return EXIT_FILE;
    }
    rc = charge_all(&a);
    once_client_close(a.client);
    return rc;
}
