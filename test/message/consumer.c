/* SPDX-License-Identifier: Apache-2.0 */
/*
 * consumer.c - a program with once_consume(), for test_consume.py: its handler
 * writes one row, and does what the body says.
 *
 *    consumer DB FROM [NAME=NUMBER ...]
 *
 *    workers batch keyed attempts first most lease drain body isolation
 *
 * With DIE=POINT:N in its environment it kills itself at the N-th passing of one
 * of these, before or after: begin claim commit park take put_back.
 */
#include <assert.h>
#include <errno.h>
#include <libpq-fe.h>
#include <signal.h>
#include <sqlite3.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/signalfd.h>
#include <unistd.h>

#ifdef ONCE_WITH_MYSQL
#include <mysql.h>
#endif

#include <once/relay.h>

#include "messages/tables/outbox.h"
#include "messages/relay/base.h"

/* ---- Dying ------------------------------------------------------------------ */

static _Atomic int passed;

static void maybe_die(const char *point, const char *when)
{
    const char *die = getenv("DIE");
    char name[64];
    size_t n;

    (void)snprintf(name, sizeof(name), "%s-%s:", point, when);
    n = strlen(name);
    if (die != NULL && strncmp(die, name, n) == 0 &&
        atomic_fetch_add(&passed, 1) + 1 == (int)strtol(die + n, NULL, 10))
        (void)kill(getpid(), SIGKILL);
}

#define AROUND(point, call)                                                    \
    do {                                                                       \
        int rc_;                                                               \
        maybe_die(point, "before");                                            \
        rc_ = call;                                                            \
        maybe_die(point, "after");                                             \
        return rc_;                                                            \
    } while (0)

int __real_once__base_begin(struct once__base *b, once_error *err);
int __wrap_once__base_begin(struct once__base *b, once_error *err);
int __real_once__base_commit(struct once__base *b, once_error *err);
int __wrap_once__base_commit(struct once__base *b, once_error *err);
int __real_once_inbox_claim(const once_tx *tx, const once_message *m,
                            once_error *err);
int __wrap_once_inbox_claim(const once_tx *tx, const once_message *m,
                            once_error *err);
int __real_once_inbox_park(const once_tx *tx, const once_message *m, int state,
                           uint64_t wait_ms, const char *why, once_error *err);
int __wrap_once_inbox_park(const once_tx *tx, const once_message *m, int state,
                           uint64_t wait_ms, const char *why, once_error *err);
int __real_once__parked_take(const once_tx *tx, const char *consumer,
                             uint32_t lease_ms, int keyed,
                             struct once__parked_list *out, once_error *err);
int __wrap_once__parked_take(const once_tx *tx, const char *consumer,
                             uint32_t lease_ms, int keyed,
                             struct once__parked_list *out, once_error *err);
int __real_once__parked_put_back(const once_tx *tx, int64_t no,
                                 uint32_t attempt, int state, uint64_t wait_ms,
                                 const char *why, once_error *err);
int __wrap_once__parked_put_back(const once_tx *tx, int64_t no,
                                 uint32_t attempt, int state, uint64_t wait_ms,
                                 const char *why, once_error *err);

int __wrap_once__base_begin(struct once__base *b, once_error *err)
{
    AROUND("begin", __real_once__base_begin(b, err));
}

int __wrap_once__base_commit(struct once__base *b, once_error *err)
{
    AROUND("commit", __real_once__base_commit(b, err));
}

int __wrap_once_inbox_claim(const once_tx *tx, const once_message *m,
                            once_error *err)
{
    AROUND("claim", __real_once_inbox_claim(tx, m, err));
}

int __wrap_once_inbox_park(const once_tx *tx, const once_message *m, int state,
                           uint64_t wait_ms, const char *why, once_error *err)
{
    AROUND("park", __real_once_inbox_park(tx, m, state, wait_ms, why, err));
}

int __wrap_once__parked_take(const once_tx *tx, const char *consumer,
                             uint32_t lease_ms, int keyed,
                             struct once__parked_list *out, once_error *err)
{
    int rc = __real_once__parked_take(tx, consumer, lease_ms, keyed, out, err);

    if (rc == ONCE_OK && out->n > 0)
        maybe_die("take", "after");
    return rc;
}

int __wrap_once__parked_put_back(const once_tx *tx, int64_t no,
                                 uint32_t attempt, int state, uint64_t wait_ms,
                                 const char *why, once_error *err)
{
    AROUND("put_back", __real_once__parked_put_back(tx, no, attempt, state,
                                                    wait_ms, why, err));
}

/* ---- The handler -------------------------------------------------------------- */

static int is(const once_message *m, const char *word)
{
    return m->body.size >= strlen(word) &&
           memcmp(m->body.data, word, strlen(word)) == 0;
}

static int write_effect(const once_tx *tx, const once_message *m)
{
    char text[400];

    (void)snprintf(text, sizeof(text),
                   "INSERT INTO effect(id, attempt) VALUES('%s',%u)", m->id,
                   m->attempt);
    if (tx->postgres != NULL) {
        PGresult *r = PQexec(tx->postgres, text);
        int good = PQresultStatus(r) == PGRES_COMMAND_OK;

        PQclear(r);
        return good;
    }
#ifdef ONCE_WITH_MYSQL
    if (tx->mysql != NULL)
        return mysql_query(tx->mysql, text) == 0;
#endif
    return sqlite3_exec(tx->sqlite, text, NULL, NULL, NULL) == SQLITE_OK;
}

/* By the signal, also where a sanitizer would make an exit of it. */
static void crash(void)
{
    (void)signal(SIGSEGV, SIG_DFL);
    (void)raise(SIGSEGV);
}

static int handle(const once_tx *tx, const once_message *m, void *user)
{
    (void)user;
    if (!write_effect(tx, m))
        return ONCE_AGAIN;
    if (is(m, "segv"))
        crash();
    if (is(m, "slow"))
        (void)usleep(20000);
    if (is(m, "fail-twice") && m->attempt < 2)
        return ONCE_AGAIN;
    return is(m, "dead") ? ONCE_DEAD : ONCE_OK;
}

/* ---- The program ----------------------------------------------------------------- */

static void say(void *user, const char *text)
{
    (void)user;
    fprintf(stderr, "%s\n", text);
}

static uint32_t *option(once_consumer_options *o, const char *name, size_t n)
{
    const struct {
        const char *name;
        uint32_t *to;
    } all[] = {
        {"workers", &o->workers}, {"batch", &o->batch},
        {"keyed", &o->keyed},     {"attempts", &o->attempts},
        {"first", &o->first_ms},  {"most", &o->most_ms},
        {"lease", &o->lease_ms},  {"drain", &o->drain_ms},
        {"body", &o->body_max},
    };
    size_t i;

    for (i = 0; i < sizeof(all) / sizeof(all[0]); i++)
        if (strlen(all[i].name) == n && memcmp(all[i].name, name, n) == 0)
            return all[i].to;
    return NULL;
}

int main(int argc, char **argv)
{
    once_consumer_options o = ONCE_CONSUMER_OPTIONS_INIT;
    once_error err = {0, ""};
    sigset_t set;
    int i, rc;

    if (argc < 3)
        return 2;
    o.db = argv[1];
    o.from = argv[2];
    o.consumer = "billing";
    o.log = say;
    for (i = 3; i < argc; i++) {
        const char *equals = strchr(argv[i], '=');
        uint32_t *to = equals == NULL
                           ? NULL
                           : option(&o, argv[i], (size_t)(equals - argv[i]));

        if (to == NULL)
            return 2;
        *to = (uint32_t)strtoul(equals + 1, NULL, 10);
    }
    (void)signal(SIGPIPE, SIG_IGN);
    (void)sigemptyset(&set);
    (void)sigaddset(&set, SIGTERM);
    (void)sigprocmask(SIG_BLOCK, &set, NULL);
    o.stop_fd = signalfd(-1, &set, SFD_CLOEXEC);
    rc = once_consume(&o, handle, NULL, &err);
    if (rc != ONCE_OK)
        fprintf(stderr, "once_consume: %d %s\n", rc, err.text);
    return rc == ONCE_OK ? 0 : rc == ONCE_DEAD ? 1 : 3;
}
