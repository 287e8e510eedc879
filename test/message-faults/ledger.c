/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ledger.c - the programs of the exact ledger: one that emits orders, one that
 * books them, one that writes down what has arrived, and a relay; the target of
 * its one route, "orders", stands in a file. Consumer and relay die where they
 * are told: points.c.
 *
 *    ledger produce DATABASE NUMBER ORDERS SEED MODE PAUSE-MS
 *    ledger consume DATABASE URL [WORD=NUMBER ...]     metrics=FILE
 *    ledger relay DATABASE FILE [WORD=NUMBER ...]      metrics=FILE
 *    ledger tap URL MILLISECONDS
 *
 * What belongs to the test are three tables, which cells.py makes:
 *
 *    counter(key, n)                       the last place of each key
 *    orders(producer, no, id, key, place, kind)  one for each message that was
 *                                          committed, in the same transaction
 *    effect(no, id, attempt)               one for each handler that was
 *                                          committed; ids may repeat here
 *
 * A place is drawn after the message was emitted, and before COMMIT; so places
 * of a key are in the order of commits, without a look at the outbox.
 *
 * All of them may be killed at any time and begun anew. The producer asks the
 * database where it was; one that has 7 % of its transactions rolled back
 * shows that what was not committed does not leave. Status 1 is a failure of the
 * test itself, with a reason on stderr.
 */
#include <assert.h>
#include <libpq-fe.h>
#include <signal.h>
#include <sqlite3.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <time.h>
#include <unistd.h>

#include <once/relay.h>

#include "messages/broker/broker.h"
#include "points.h"
#ifdef ONCE_WITH_MYSQL
#include "messages/tables/query_mysql.h"
#endif

enum { KEYS = 64, HOT = 3, MOST = 6, BUSY_MS = 30000, PAUSE_MS = 20 };

static _Noreturn ONCE_PRINTF(1, 2) void die(const char *format, ...)
{
    va_list args;

    va_start(args, format);
    (void)vfprintf(stderr, format, args);
    va_end(args);
    (void)fputc('\n', stderr);
    exit(1);
}

static void nap(unsigned ms)
{
    struct timespec t = {ms / 1000, (long)(ms % 1000) * 1000000};

    (void)nanosleep(&t, NULL);
}

static uint64_t steady_ms(void)
{
    struct timespec t;

    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000 + (uint64_t)t.tv_nsec / 1000000;
}

/* splitmix64: the same drawing for one seed, wherever it runs. */
static uint64_t mix(uint64_t x)
{
    x += 0x9e3779b97f4a7c15u;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

/* ---- Databases ----------------------------------------------------------- */

/* One statement; its first field in `out`, if it is not NULL. 0: it failed. */
static int run_pg(PGconn *pg, const char *text, const char *tag, char *out,
                  size_t size)
{
    PGresult *r = PQexec(pg, text);
    ExecStatusType s = PQresultStatus(r);
    int good = s == PGRES_TUPLES_OK || s == PGRES_COMMAND_OK;

    if (good && tag != NULL)
        good = strcmp(PQcmdStatus(r), tag) == 0;
    if (good && out != NULL)
        (void)snprintf(out, size, "%s",
                       PQntuples(r) > 0 ? PQgetvalue(r, 0, 0) : "");
    PQclear(r);
    return good;
}

static int run_lite(sqlite3 *lite, const char *text, char *out, size_t size)
{
    sqlite3_stmt *q = NULL;
    int rc = sqlite3_prepare_v2(lite, text, -1, &q, NULL);

    if (rc == SQLITE_OK)
        rc = sqlite3_step(q);
    if (rc == SQLITE_ROW && out != NULL) {
        (void)snprintf(out, size, "%s",
                       (const char *)sqlite3_column_text(q, 0));
        rc = sqlite3_step(q);
    }
    (void)sqlite3_finalize(q);
    return rc == SQLITE_ROW || rc == SQLITE_DONE;
}

#ifdef ONCE_WITH_MYSQL
static int run_my(MYSQL *my, const char *text, char *out, size_t size)
{
    struct once__my_text quoted = {0};
    MYSQL_RES *r;
    MYSQL_ROW row;
    int bad;

    once__mysql_fill(&quoted, text, NULL, 0);
    bad = mysql_real_query(my, quoted.at, quoted.size);
    once__my_text_clear(&quoted);
    r = bad ? NULL : mysql_store_result(my);
    row = r == NULL ? NULL : mysql_fetch_row(r);
    if (row != NULL && out != NULL)
        (void)snprintf(out, size, "%s", row[0] == NULL ? "" : row[0]);
    mysql_free_result(r);
    return !bad;
}

/* NULL: it does not answer. */
static MYSQL *connect_my(const char *rest)
{
    static const unsigned tcp = MYSQL_PROTOCOL_TCP, seconds = 5;
    struct once__my_config c;
    MYSQL *my = mysql_init(NULL);

    if (once__my_config_read(&c, rest, NULL) != ONCE_OK || my == NULL)
        die("the database's URL");
    (void)mysql_options(my, MYSQL_OPT_PROTOCOL, &tcp);
    (void)mysql_options(my, MYSQL_OPT_CONNECT_TIMEOUT, &seconds);
    if (mysql_real_connect(my, c.hosts[0].name, c.user, c.password, c.database,
                           (unsigned)strtoul(c.hosts[0].port, NULL, 10), NULL,
                           0) != NULL)
        return my;
    mysql_close(my);
    return NULL;
}
#endif

static int run(const once_tx *tx, char *out, size_t size, const char *text)
{
#ifdef ONCE_WITH_MYSQL
    if (tx->mysql != NULL)
        return run_my(tx->mysql, text, out, size);
#endif
    return tx->postgres != NULL ? run_pg(tx->postgres, text, NULL, out, size)
                                : run_lite(tx->sqlite, text, out, size);
}

static ONCE_PRINTF(2, 3) int sql(const once_tx *tx, const char *format, ...)
{
    char text[1000];
    va_list args;
    int n;

    va_start(args, format);
    n = vsnprintf(text, sizeof(text), format, args);
    va_end(args);
    assert(n > 0 && (size_t)n < sizeof(text));
    return run(tx, NULL, 0, text);
}

static int begin(const once_tx *tx)
{
    return sql(tx, "%s", tx->sqlite == NULL ? "BEGIN" : "BEGIN IMMEDIATE");
}

static int commit(const once_tx *tx)
{
    return tx->postgres != NULL
               ? run_pg(tx->postgres, "COMMIT", "COMMIT", NULL, 0)
               : sql(tx, "COMMIT");
}

static void disconnect(once_tx *tx)
{
    PQfinish(tx->postgres);
    (void)sqlite3_close(tx->sqlite);
#ifdef ONCE_WITH_MYSQL
    if (tx->mysql != NULL)
        mysql_close(tx->mysql);
#endif
    *tx = (once_tx)ONCE_TX_INIT;
}

/* Until it answers. */
static void connect_to(once_tx *tx, const char *url)
{
    const char *path = strncmp(url, "sqlite:", 7) == 0 ? url + 7 : NULL;

    for (;; nap(PAUSE_MS)) {
        disconnect(tx);
#ifdef ONCE_WITH_MYSQL
        if (strncmp(url, "mysql:", 6) == 0) {
            tx->mysql = connect_my(url + 6);
            if (tx->mysql != NULL)
                return;
            continue;
        }
#endif
        if (path == NULL) {
            tx->postgres = PQconnectdb(url);
            if (PQstatus(tx->postgres) == CONNECTION_OK)
                return;
        } else if (sqlite3_open(path, &tx->sqlite) == SQLITE_OK &&
                   sqlite3_busy_timeout(tx->sqlite, BUSY_MS) == SQLITE_OK &&
                   run(tx, NULL, 0, "PRAGMA synchronous=FULL")) {
            return;
        }
    }
}

/* ---- Emitting ------------------------------------------------------------ */

struct producer {
    once_tx tx;
    unsigned number, orders;
    uint64_t seed;
    enum mode {
        USUAL,
        KILL, /* some orders kill the handler's process */
        WELL, /* all succeed in the end */
        JSON  /* for examples/payments; some it refuses */
    } mode;
};

/*
 * What the handler is to do with an order. Most are plain; a share of them fails
 * at first, and a few never succeed: these become dead letters.
 */
static const char *kind_of(uint64_t random, enum mode mode)
{
    if (mode == KILL && random % 200 > 190)
        return random % 200 == 199 ? "kills" : "kill";
    switch (random % 200) {
    case 0:
        return mode == WELL ? "flaky" : "poison";
    case 1:
        return mode == WELL ? "flaky" : "dead";
    case 2:
    case 3:
    case 4:
    case 5:
        return "flaky";
    default:
        return "plain";
    }
}

/* Half of the orders are of a few keys, so that writers meet. */
static int draw_key(uint64_t random)
{
    return (int)(random % 2 == 0 ? random / 2 % KEYS : random / 2 % HOT);
}

static int compare(const void *a, const void *b)
{
    return (*(const int *)a > *(const int *)b) -
           (*(const int *)a < *(const int *)b);
}

static int emit_one(struct producer *p, unsigned no, int key)
{
    const char *kind =
        kind_of(mix(p->seed ^ ((uint64_t)p->number << 40) ^ no), p->mode);
    char id[ONCE_ID_SIZE], name[16], body[80];
    once_message m = ONCE_MESSAGE_INIT;
    once_error err = {0, ""};
    int rc;

    (void)snprintf(name, sizeof(name), "k%02d", key);
    if (p->mode == JSON) {
        int dead = strcmp(kind, "dead") == 0;

        if (!dead)
            kind = "plain";
        (void)snprintf(body, sizeof(body),
                       "{\"order\":\"%u-%u\",\"amount\":%d}", p->number, no,
                       dead ? 0 : 5);
        m.type = "application/json";
    } else {
        (void)snprintf(body, sizeof(body), "%s %u-%u", kind, p->number, no);
    }
    m.route = "orders";
    m.key = name;
    m.body = (once_bytes){body, strlen(body)};
    rc = once_emit(&p->tx, &m, id, &err);
    if (no % 8 == 0)
        nap(1); /* somebody else may emit for this key, if he is not kept out */
    if (rc == ONCE_EINVAL || rc == ONCE_ELIMIT || rc == ONCE_REPEATED)
        die("emit: %d %s", rc, err.text);
    return rc == ONCE_OK &&
           sql(&p->tx, "UPDATE counter SET n=n+1 WHERE key='%s'", name) &&
           sql(&p->tx,
               "INSERT INTO orders(producer,no,id,key,place,kind) SELECT "
               "%u,%u,'%s',key,n,'%s' FROM counter WHERE key='%s'",
               p->number, no, id, kind, name);
}

/* Some orders in one transaction, keys in one order, since they are locked. The
 * number of orders that were committed; -1: nobody knows. */
static int emit_some(struct producer *p, unsigned no, uint64_t random)
{
    int keys[MOST], n = 1 + (int)(random % MOST), i;

    if ((unsigned)n > p->orders - no + 1)
        n = (int)(p->orders - no + 1);
    for (i = 0; i < n; i++)
        keys[i] = draw_key(mix(random + (uint64_t)i));
    qsort(keys, (size_t)n, sizeof(keys[0]), compare);
    if (!begin(&p->tx))
        return -1;
    for (i = 0; i < n; i++)
        if (!emit_one(p, no + (unsigned)i, keys[i]))
            return -1;
    if (random % 100 < 7)
        return sql(&p->tx, "ROLLBACK") ? 0 : -1;
    return commit(&p->tx) ? n : -1;
}

/* Where it was: the database knows. */
static unsigned look(struct producer *p, const char *url)
{
    char text[100], out[32];

    (void)snprintf(text, sizeof(text),
                   "SELECT coalesce(max(no),0)+1 FROM orders WHERE producer=%u",
                   p->number);
    do
        connect_to(&p->tx, url);
    while (!run(&p->tx, out, sizeof(out), text));
    return (unsigned)strtoul(out, NULL, 10);
}

static int produce(const char *url, char **words)
{
    struct producer p = {.tx = ONCE_TX_INIT};
    static const char *const modes[] = {"usual", "kill", "well", "json"};
    uint64_t turn = (uint64_t)getpid();
    unsigned no, pause_ms;
    size_t i;

    p.number = (unsigned)strtoul(words[0], NULL, 10);
    p.orders = (unsigned)strtoul(words[1], NULL, 10);
    p.seed = strtoull(words[2], NULL, 10);
    pause_ms = (unsigned)strtoul(words[4], NULL, 10);
    for (i = 0; i < sizeof(modes) / sizeof(modes[0]); i++)
        if (strcmp(words[3], modes[i]) == 0)
            p.mode = (enum mode)i;
    no = look(&p, url);
    while (no <= p.orders) {
        if (pause_ms > 0)
            nap(pause_ms);
        int n = emit_some(&p, no, mix(p.seed + turn++));

        if (n < 0) {
            nap(PAUSE_MS);
            no = look(&p, url);
        } else {
            no += (unsigned)n;
        }
    }
    disconnect(&p.tx);
    return 0;
}

/* ---- Booking ------------------------------------------------------------- */

static int is(const once_message *m, const char *word)
{
    size_t n = strlen(word);

    return m->body.size > n && memcmp(m->body.data, word, n) == 0 &&
           ((const char *)m->body.data)[n] == ' ';
}

/* By the signal, also where a sanitizer would make an exit of it. */
static void crash(void)
{
    (void)signal(SIGSEGV, SIG_DFL);
    (void)raise(SIGSEGV);
}

/* An effect first, whatever comes then: what fails must leave none. */
static int book(const once_tx *tx, const once_message *m, void *user)
{
    (void)user;
    if (!sql(tx, "INSERT INTO effect(id,attempt) VALUES('%s',%u)", m->id,
             m->attempt))
        return ONCE_AGAIN;
    if (is(m, "kills") || (is(m, "kill") && m->attempt < 2))
        crash();
    if (is(m, "dead"))
        return ONCE_DEAD;
    if (is(m, "poison") || (is(m, "flaky") && m->attempt < 2))
        return ONCE_AGAIN;
    return ONCE_OK;
}

static void say(void *user, const char *text)
{
    (void)user;
    fprintf(stderr, "%s\n", text);
}

static int stop_fd(void)
{
    sigset_t set;

    (void)sigemptyset(&set);
    (void)sigaddset(&set, SIGTERM);
    (void)sigprocmask(SIG_BLOCK, &set, NULL);
    (void)signal(SIGPIPE, SIG_IGN);
    points_stop_fd = signalfd(-1, &set, SFD_CLOEXEC);
    return points_stop_fd;
}

struct number {
    const char *name;
    uint32_t *to;
};

static void read_option(const struct number *numbers, const char **metrics,
                        char *word)
{
    char *value = strchr(word, '=');

    if (value == NULL)
        die("%s: no WORD=VALUE", word);
    *value++ = '\0';
    if (strcmp(word, "metrics") == 0) {
        *metrics = value;
        return;
    }
    for (; numbers->name != NULL; numbers++)
        if (strcmp(word, numbers->name) == 0) {
            *numbers->to = (uint32_t)strtoul(value, NULL, 10);
            return;
        }
    die("%s: no such option", word);
}

static int consume(const char *db, const char *from, char **words)
{
    const struct rlimit no_core = {0, 0};
    once_consumer_options o = ONCE_CONSUMER_OPTIONS_INIT;
    const struct number numbers[] = {
        {"workers", &o.workers},
        {"batch", &o.batch},
        {"keyed", &o.keyed},
        {"attempts", &o.attempts},
        {"first_ms", &o.first_ms},
        {"most_ms", &o.most_ms},
        {"lease_ms", &o.lease_ms},
        {"drain_ms", &o.drain_ms},
        {NULL, NULL},
    };
    once_error err = {0, ""};
    int rc;

    o.db = db;
    o.from = from;
    o.consumer = "billing";
    o.log = say;
    o.stop_fd = stop_fd();
    for (; *words != NULL; words++)
        read_option(numbers, &o.metrics, *words);
    (void)setrlimit(RLIMIT_CORE, &no_core);
    rc = once_consume(&o, book, NULL, &err);
    if (rc != ONCE_OK && rc != ONCE_DEAD)
        die("consume: %d %s", rc, err.text);
    return 0;
}

/* ---- Carrying ------------------------------------------------------------ */

static void read_line(const char *path, char *to, size_t size)
{
    FILE *f = fopen(path, "re");

    if (f == NULL || fgets(to, (int)size, f) == NULL)
        die("%s: cannot be read", path);
    to[strcspn(to, "\n")] = '\0';
    (void)fclose(f);
}

static int relay(const char *db, const char *file, char **words)
{
    once_relay_options o = ONCE_RELAY_OPTIONS_INIT;
    once_route route = ONCE_ROUTE_INIT;
    const struct number numbers[] = {
        {"workers", &route.workers},       {"batch", &route.batch},
        {"timeout_ms", &route.timeout_ms}, {"pass", &route.pass},
        {"lease_ms", &o.lease_ms},         {NULL, NULL},
    };
    once_error err = {0, ""};
    char target[1000];
    int rc;

    read_line(file, target, sizeof(target));
    route.name = "orders";
    route.url = target;
    o.from = db;
    o.routes = &route;
    o.n = 1;
    o.log = say;
    o.stop_fd = stop_fd();
    for (; *words != NULL; words++)
        read_option(numbers, &o.metrics, *words);
    rc = once_relay(&o, &err);
    if (rc != ONCE_OK)
        die("relay: %d %s", rc, err.text);
    return 0;
}

/* ---- What has arrived ---------------------------------------------------- */

static void print(const once_message *m)
{
    printf("%s %s\n", m->id != NULL && m->id[0] != '\0' ? m->id : "-",
           m->key != NULL ? m->key : "-");
}

/* Everything, until nothing has come for so long. */
static int tap(const char *url, unsigned quiet_ms)
{
    struct once__broker_options o = {
        .timeout_ms = 10000, .prefetch = 200, .consumer = "tap", .log = say};
    const struct once__broker_ops *ops;
    struct once__broker *b = NULL;
    once_error err = {0, ""};
    uint64_t since = steady_ms();

    ops = once__broker_find(url, &err);
    if (ops == NULL || ops->open(url, &o, &b, &err) != ONCE_OK ||
        ops->connect(b, &err) != ONCE_OK)
        die("tap: %s", err.text);
    while (steady_ms() < since + quiet_ms) {
        struct once__delivery *d = NULL;

        if (ops->receive(b, 100, &d, &err) != ONCE_OK)
            die("tap: %s", err.text);
        if (d == NULL)
            continue;
        print(&d->m);
        since = steady_ms();
        if (ops->ack(b, d, ONCE__ACK_TAKEN, &err) != ONCE_OK)
            die("tap: %s", err.text);
    }
    ops->close(b);
    return 0;
}

int main(int argc, char **argv)
{
    if (argc == 8 && strcmp(argv[1], "produce") == 0)
        return produce(argv[2], argv + 3);
    if (argc >= 4 && strcmp(argv[1], "consume") == 0)
        return consume(argv[2], argv[3], argv + 4);
    if (argc >= 4 && strcmp(argv[1], "relay") == 0)
        return relay(argv[2], argv[3], argv + 4);
    if (argc == 4 && strcmp(argv[1], "tap") == 0)
        return tap(argv[2], (unsigned)strtoul(argv[3], NULL, 10));
    die("usage: ledger produce | consume | relay | tap");
}
