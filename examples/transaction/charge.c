/* SPDX-License-Identifier: Apache-2.0 */
/*
 * charge.c - a payments service that deduplicates in its own transaction.
 *
 *    charge --db postgres://... [--listen 127.0.0.1:0] [--threads N]
 *
 * POST /charge with an Idempotency-Key: the row of the charge, the claim of the
 * key and the answer are one transaction on PostgreSQL. Whoever asks again gets
 * the first answer, wherever this process was killed. So the gateway in front of
 * it may say `once_lost takeover`: it asks again instead of leaving an outcome
 * in doubt.
 *
 * It asks nobody who he is. Where customers are distinguished, the customer's name
 * belongs into the group, or keys of two customers are one.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <getopt.h>
#include <jansson.h>
#include <libpq-fe.h>
#include <microhttpd.h>
#include <netinet/in.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <once/message.h>

enum { THREADS_MAX = 64, BODY_MAX = 4096, TRIES = 20 };

/* One connection for each thread of the server. */
struct pool {
    const char *url;
    pthread_mutex_t lock;
    PGconn *idle[THREADS_MAX];
    unsigned n, threads;
};

struct request {
    char body[BODY_MAX + 1];
    size_t size;
    int too_long;
};

/* What is asked for, and what it came to. */
struct charge {
    PGconn *db;
    const char *order;
    json_int_t amount;
    char line[256]; /* the answer */
};

/* ---- Connections ------------------------------------------------------- */

static PGconn *take(struct pool *p)
{
    PGconn *db = NULL;

    (void)pthread_mutex_lock(&p->lock);
    if (p->n > 0)
        db = p->idle[--p->n];
    (void)pthread_mutex_unlock(&p->lock);
    return db != NULL ? db : PQconnectdb(p->url);
}

/* A connection that is not well is not used again. */
static void give_back(struct pool *p, PGconn *db)
{
    int well = PQtransactionStatus(db) == PQTRANS_IDLE;

    (void)pthread_mutex_lock(&p->lock);
    if (well && p->n < THREADS_MAX) {
        p->idle[p->n++] = db;
        db = NULL;
    }
    (void)pthread_mutex_unlock(&p->lock);
    if (db != NULL)
        PQfinish(db);
}

/* 1 if the server has done just this. After COMMIT of a transaction that has
 * failed it says ROLLBACK, and no error. */
static int says(PGconn *db, const char *sql)
{
    PGresult *r = PQexec(db, sql);
    int well = PQresultStatus(r) == PGRES_COMMAND_OK &&
               strcmp(PQcmdStatus(r), sql) == 0;

    PQclear(r);
    return well;
}

/* ---- The charge -------------------------------------------------------- */

static int insert(const once_tx *tx, void *user, once_bytes *result)
{
    struct charge *c = user;
    char amount[24];
    const char *values[] = {c->order, amount};
    PGresult *r;
    int well;

    (void)snprintf(amount, sizeof(amount), "%" JSON_INTEGER_FORMAT, c->amount);
    r = PQexecParams(tx->postgres,
                     "INSERT INTO charges (name, amount) VALUES ($1, $2)"
                     " RETURNING no",
                     2, NULL, values, NULL, NULL, 0);
    well = PQresultStatus(r) == PGRES_TUPLES_OK;
    if (well)
        (void)snprintf(c->line, sizeof(c->line),
                       "{\"charge\": %s, \"order\": \"%s\", \"amount\": %s}\n",
                       PQgetvalue(r, 0, 0), c->order, amount);
    PQclear(r);
    *result = (once_bytes){c->line, strlen(c->line)};
    return well ? ONCE_SUCCESS : ONCE_AGAIN;
}

static unsigned status_of(int rc)
{
    switch (rc) {
    case ONCE_OK:
    case ONCE_REPLAY:
        return MHD_HTTP_CREATED;
    case ONCE_MISMATCH:
        return MHD_HTTP_UNPROCESSABLE_CONTENT;
    case ONCE_EINVAL:
    case ONCE_ELIMIT:
        return MHD_HTTP_BAD_REQUEST;
    default: /* ONCE_OUTSIDE, too: it may have been charged before the window */
        return MHD_HTTP_SERVICE_UNAVAILABLE;
    }
}

/* One transaction; ONCE_EABORTED: it must be done again. */
static int attempt(struct charge *c, const char *key, once_bytes body,
                   once_error *err)
{
    once_tx tx = ONCE_TX_INIT;
    once_tx_result result = ONCE_TX_RESULT_INIT;
    int rc;

    tx.postgres = c->db;
    if (!says(c->db, "BEGIN"))
        return ONCE_EABORTED;
    rc = once_tx_call(&tx, "charges", key, body, insert, c, &result, err);
    if (rc == ONCE_REPLAY)
        (void)snprintf(c->line, sizeof(c->line), "%.*s", (int)result.bytes.size,
                       (const char *)result.bytes.data);
    once_tx_result_clear(&result);
    if (rc == ONCE_OK)
        return says(c->db, "COMMIT") ? ONCE_OK : ONCE_EABORTED;
    (void)says(c->db, "ROLLBACK");
    return rc == ONCE_AGAIN ? ONCE_EABORTED : rc;
}

/*
 * COMMIT without an answer is unknown. The same key in a new transaction finds
 * out: its row is there, or nothing is.
 */
static unsigned charge(struct pool *p, struct charge *c, const char *key,
                       once_bytes body)
{
    once_error err = {0, ""};
    int tries, rc = ONCE_EABORTED;

    for (tries = 0; tries < TRIES && rc == ONCE_EABORTED; tries++) {
        c->db = take(p);
        rc = attempt(c, key, body, &err);
        give_back(p, c->db);
    }
    if (rc < 0)
        fprintf(stderr, "charge: %s\n", err.text);
    return status_of(rc);
}

/* ---- HTTP -------------------------------------------------------------- */

static int is_name(const char *text)
{
    size_t size = strlen(text);

    return size > 0 && size <= 64 &&
           strspn(text, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
                        "0123456789._-") == size;
}

static enum MHD_Result answer(struct MHD_Connection *c, unsigned status,
                              const char *line)
{
    struct MHD_Response *r = MHD_create_response_from_buffer(
        strlen(line), (void *)(uintptr_t)line, MHD_RESPMEM_MUST_COPY);
    enum MHD_Result rc;

    (void)MHD_add_response_header(r, "Content-Type", "application/json");
    if (status == MHD_HTTP_SERVICE_UNAVAILABLE) /* the last COMMIT may have */
        (void)MHD_add_response_header(r, "Idempotency-Outcome", "unknown");
    rc = MHD_queue_response(c, status, r);
    MHD_destroy_response(r);
    return rc;
}

static enum MHD_Result serve(struct pool *p, struct MHD_Connection *c,
                             const struct request *q)
{
    const char *key =
        MHD_lookup_connection_value(c, MHD_HEADER_KIND, "Idempotency-Key");
    struct charge charge_of = {NULL, NULL, 0, ""};
    json_t *body = json_loadb(q->body, q->size, JSON_REJECT_DUPLICATES, NULL);
    unsigned status = MHD_HTTP_BAD_REQUEST;

    charge_of.order = json_string_value(json_object_get(body, "order"));
    charge_of.amount = json_integer_value(json_object_get(body, "amount"));
    if (key != NULL && !q->too_long && charge_of.order != NULL &&
        is_name(charge_of.order) && charge_of.amount > 0)
        status = charge(p, &charge_of, key, (once_bytes){q->body, q->size});
    json_decref(body);
    return answer(c, status,
                  charge_of.line[0] != '\0' && status == MHD_HTTP_CREATED
                      ? charge_of.line
                      : "{\"error\": \"not charged\"}\n");
}

static enum MHD_Result on_request(void *pool, struct MHD_Connection *c,
                                  const char *path, const char *method,
                                  const char *version, const char *piece,
                                  size_t *size, void **own)
{
    struct request *q = *own;

    (void)version;
    if (q == NULL) {
        *own = calloc(1, sizeof(*q));
        return *own == NULL ? MHD_NO : MHD_YES;
    }
    if (*size > 0) {
        q->too_long |= *size > BODY_MAX - q->size;
        if (!q->too_long) {
            memcpy(q->body + q->size, piece, *size);
            q->size += *size;
        }
        *size = 0;
        return MHD_YES;
    }
    if (strcmp(path, "/charge") != 0)
        return answer(c, MHD_HTTP_NOT_FOUND, "{\"error\": \"path\"}\n");
    if (strcmp(method, "POST") != 0)
        return answer(c, MHD_HTTP_METHOD_NOT_ALLOWED,
                      "{\"error\": \"method\"}\n");
    return serve(pool, c, q);
}

static void on_end(void *pool, struct MHD_Connection *c, void **own,
                   enum MHD_RequestTerminationCode why)
{
    (void)pool;
    (void)c;
    (void)why;
    free(*own);
    *own = NULL;
}

/* ---- The program ------------------------------------------------------- */

/* The tables of Once and of the charges, if they are not there. */
static int make_tables(struct pool *p)
{
    once_tx tx = ONCE_TX_INIT;
    once_error err = {0, ""};
    PGresult *r;
    int rc = ONCE_EABORTED;

    tx.postgres = take(p);
    if (PQstatus(tx.postgres) == CONNECTION_OK)
        rc = once_message_init(&tx, 0, &err);
    if (rc == ONCE_OK)
        rc = once_message_check(&tx, &err);
    r = rc != ONCE_OK
            ? NULL
            : PQexec(tx.postgres,
                     "SET client_min_messages = warning;"
                     "CREATE TABLE IF NOT EXISTS charges ("
                     "no bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,"
                     "name text NOT NULL, amount bigint NOT NULL)");
    if (rc != ONCE_OK || PQresultStatus(r) != PGRES_COMMAND_OK) {
        fprintf(stderr, "charge: no tables: %s\n",
                rc != ONCE_OK ? err.text : "CREATE TABLE was refused");
        rc = ONCE_EOPEN;
    }
    PQclear(r);
    give_back(p, tx.postgres);
    return rc;
}

static int read_address(const char *text, struct sockaddr_in *out)
{
    char host[16] = "";
    unsigned port = 0;
    int end = 0;

    out->sin_family = AF_INET;
    if (sscanf(text, "%15[0-9.]:%5u%n", host, &port, &end) != 2 ||
        text[end] != '\0' || port > 65535 || strncmp(host, "127.", 4) != 0 ||
        inet_pton(AF_INET, host, &out->sin_addr) != 1)
        return 0;
    out->sin_port = htons((uint16_t)port);
    return 1;
}

static int run(struct pool *p, const struct sockaddr_in *address)
{
    struct MHD_Daemon *d;
    sigset_t stop;
    int number;

    (void)sigemptyset(&stop);
    (void)sigaddset(&stop, SIGINT);
    (void)sigaddset(&stop, SIGTERM);
    (void)pthread_sigmask(SIG_BLOCK, &stop, NULL);
    d = MHD_start_daemon(
        MHD_USE_EPOLL_INTERNAL_THREAD, 0, NULL, NULL, on_request, p,
        MHD_OPTION_SOCK_ADDR, (const struct sockaddr *)address,
        MHD_OPTION_THREAD_POOL_SIZE, p->threads, MHD_OPTION_NOTIFY_COMPLETED,
        on_end, p, MHD_OPTION_CONNECTION_TIMEOUT, 75u, MHD_OPTION_END);
    if (d == NULL) {
        fprintf(stderr, "charge: cannot listen: %s\n", strerror(errno));
        return 1;
    }
    printf("charge: listening on 127.0.0.1:%u\n",
           MHD_get_daemon_info(d, MHD_DAEMON_INFO_BIND_PORT)->port);
    fflush(stdout);
    (void)sigwait(&stop, &number);
    MHD_stop_daemon(d);
    return 0;
}

int main(int argc, char **argv)
{
    static const struct option options[] = {
        {"db", required_argument, NULL, 'd'},
        {"listen", required_argument, NULL, 'l'},
        {"threads", required_argument, NULL, 't'},
        {NULL, 0, NULL, 0}};
    struct pool p = {.lock = PTHREAD_MUTEX_INITIALIZER, .threads = 4};
    struct sockaddr_in address = {0};
    int c, good = read_address("127.0.0.1:0", &address), status = 1;

    while ((c = getopt_long(argc, argv, "", options, NULL)) != -1) {
        if (c == 'd')
            p.url = optarg;
        else if (c == 'l')
            good &= read_address(optarg, &address);
        else if (c == 't')
            p.threads = (unsigned)strtoul(optarg, NULL, 10);
        else
            good = 0;
    }
    if (!good || p.url == NULL || optind != argc || p.threads < 2 ||
        p.threads > THREADS_MAX) {
        fprintf(stderr,
                "usage: charge --db URL [--listen 127.0.0.1:PORT] "
                "[--threads 2..%d]\n",
                THREADS_MAX);
        return 2;
    }
    if (make_tables(&p) == ONCE_OK)
        status = run(&p, &address);
    while (p.n > 0)
        PQfinish(p.idle[--p.n]);
    return status;
}
