/* SPDX-License-Identifier: Apache-2.0 */
/* broker_kit.c - what the tests of brokers share. */
#include "broker_kit.h"
#include "patience.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

static char log_text[8192];

static void keep(void *user, const char *text)
{
    size_t n = strlen(log_text);

    (void)user;
    (void)snprintf(log_text + n, sizeof(log_text) - n, "%s\n", text);
}

struct once__broker_options kit_options(const char *consumer, uint32_t prefetch)
{
    struct once__broker_options o;

    memset(&o, 0, sizeof(o));
    o.timeout_ms = 5000;
    o.consumer = consumer;
    o.prefetch = prefetch;
    o.log = keep;
    return o;
}

int kit_logged(const char *word)
{
    int is = word != NULL && strstr(log_text, word) != NULL;

    if (word == NULL)
        log_text[0] = '\0';
    return is;
}

static uint64_t now_ms(void)
{
    struct timespec t;

    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000 + (uint64_t)t.tv_nsec / 1000000;
}

int kit_connect(struct once__broker *b, uint32_t ms)
{
    const struct timespec pause = {0, 20000000};
    uint64_t until = now_ms() + patient_ms(ms);
    once_error err = {0};

    while (b->ops->connect(b, &err) != ONCE_OK) {
        if (now_ms() > until) {
            printf("#   %s\n", err.text);
            return 0;
        }
        (void)nanosleep(&pause, NULL);
    }
    return 1;
}

struct once__broker *kit_open(const char *url,
                              const struct once__broker_options *o)
{
    const struct once__broker_ops *ops;
    struct once__broker *b = NULL;
    once_error err = {0};

    ops = once__broker_find(url, &err);
    if (ops == NULL || ops->open(url, o, &b, &err) != ONCE_OK ||
        !kit_connect(b, 30000)) {
        printf("Bail out! %s: %s\n", url, err.text);
        exit(1);
    }
    return b;
}

once_message kit_message(const char *id, const char *key, const char *body,
                         size_t size)
{
    once_message m = ONCE_MESSAGE_INIT;

    m.route = "route";
    m.id = id;
    m.key = key;
    m.type = "";
    m.headers = "";
    m.body = (once_bytes){body, size};
    return m;
}

struct kit_many *kit_many_new(void)
{
    struct kit_many *many = calloc(1, sizeof(*many));

    if (many == NULL)
        abort();
    return many;
}

size_t kit_collect(struct once__broker *b, struct kit_ends *ends, size_t n,
                   uint32_t ms)
{
    uint64_t until = now_ms() + patient_ms(ms);
    struct once__proof p[32];
    size_t got = 0, k, i;

    for (;;) {
        k = b->ops->proofs(b, ms == 0 ? 0 : 50, p, sizeof(p) / sizeof(p[0]));
        for (i = 0; i < k; i++) {
            if (p[i].tag >= KIT_MANY)
                abort();
            ends->n[p[i].tag]++;
            ends->end[p[i].tag] = p[i].end;
            ends->status[p[i].tag] = p[i].status;
            (void)snprintf(ends->why[p[i].tag], sizeof(ends->why[0]), "%s",
                           p[i].why == NULL ? "" : p[i].why);
        }
        got += k;
        if (got >= n || (k == 0 && now_ms() >= until))
            return got;
    }
}

int kit_ctl(const char *verb, const char *server)
{
    const char *program = getenv("ONCE_TEST_WITH_SERVER");
    char command[512];

    if (program == NULL)
        return 0;
    (void)snprintf(command, sizeof(command), "%s ctl %s %s >/dev/null", program,
                   verb, server);
    return system(command) == 0;
}
