/* SPDX-License-Identifier: Apache-2.0 */
/*
 * payments.c - a small payments service to put Once in front of.
 *
 *    POST /charge {"order": "o-1", "amount": 1250}  -> 201, one row more
 *    GET  /orders/ID                                -> its charges, the total
 *    GET  /ledger                                   -> all orders, in pages
 *
 * It knows nothing of idempotency, on purpose: it charges as often as it is
 * asked, and so its ledger shows what a repetition costs. And it misbehaves
 * when told to, for all charges (--sample) or for one (X-Sample, ?sample=), so
 * that one can watch a slow, failing, lying or dying service from outside.
 *
 * It refuses to listen on anything but the loopback: it asks nobody who he is.
 *
 * A charge walks through three steps. At each arrow it may have to nap, which
 * is done by suspending the connection: a slow charge holds no thread.
 *
 *    READ ---- slow ----> CHARGE ---- slow-after ----> ANSWER
 *    check the input      fail, drop, die before;      fail, drop, die after;
 *                         insert the row               half; garbage; the 201
 */
#include <arpa/inet.h>
#include <assert.h>
#include <errno.h>
#include <getopt.h>
#include <jansson.h>
#include <microhttpd.h>
#include <netinet/in.h>
#include <pthread.h>
#include <signal.h>
#include <sqlite3.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

/* clang-format off */
enum limits {
    ORDER_MAX = 64,         /* characters of an order's name             */
    AMOUNT_MAX = 100000000, /* one charge, in the smallest unit         */
    BODY_MAX = 4096,        /* bytes of a request's body                 */
    DRAIN_MAX = 1 << 20,    /* bytes read of one that is too long        */
    PAGE_DEFAULT = 100,     /* rows in an answer                         */
    PAGE_MAX = 1000,
    NAP_MAX_MS = 600000,
    THREADS_MAX = 64,
    CONNECTIONS_MAX = 4096,
    EVERY_MAX = 1000000,
    SCHEMA = 1              /* PRAGMA user_version of the ledger's file  */
};
/* clang-format on */

#define ORDER_RULE "must be 1 to 64 characters of A-Z a-z 0-9 . _ -"
#define AMOUNT_RULE "must be an integer from 1 to 100000000"

/* ---- Manners: how to misbehave --------------------------------------- */

enum fault { NO_FAULT, FAIL, DROP, DIE, HALF, GARBAGE };
enum moment { BEFORE, AFTER }; /* the charge */

struct manners {
    uint32_t nap_ms[2]; /* by moment */
    enum fault fault;
    enum moment when;
    unsigned status; /* FAIL */
};

/* clang-format off */
static const struct word {
    const char *name;
    enum fault fault; /* NO_FAULT: a nap */
    enum moment when;
    uint32_t min, max; /* of the number behind "="; max 0: there is none */
} words[] = {
    {"slow",        NO_FAULT, BEFORE,   0, NAP_MAX_MS},
    {"slow-after",  NO_FAULT, AFTER,    0, NAP_MAX_MS},
    {"fail",        FAIL,     BEFORE, 400,        599},
    {"fail-after",  FAIL,     AFTER,  400,        599},
    {"drop-before", DROP,     BEFORE,   0,          0},
    {"drop-after",  DROP,     AFTER,    0,          0},
    {"die-before",  DIE,      BEFORE,   0,          0},
    {"die-after",   DIE,      AFTER,    0,          0},
    {"half",        HALF,     AFTER,    0,          0},
    {"garbage",     GARBAGE,  AFTER,    0,          0},
};
/* clang-format on */

#define MANNERS_RULE                                                           \
    "must be a comma list of slow=MS and slow-after=MS (0 to 600000) and at "  \
    "most one of fail=STATUS, fail-after=STATUS (400 to 599), drop-before, "   \
    "drop-after, die-before, die-after, half, garbage"

/* Decimal digits and nothing else, from min to max. */
static bool number_parse(const char *text, size_t size, uint32_t min,
                         uint32_t max, uint32_t *out)
{
    uint64_t n = 0;

    if (size < 1 || size > 10)
        return false;
    for (size_t i = 0; i < size; i++) {
        if (text[i] < '0' || text[i] > '9')
            return false;
        n = n * 10 + (uint64_t)(text[i] - '0');
    }
    if (n < min || n > max)
        return false;
    *out = (uint32_t)n;
    return true;
}

static bool manners_word(const char *text, size_t size, struct manners *m)
{
    const char *sign = memchr(text, '=', size);
    size_t named = sign == NULL ? size : (size_t)(sign - text);
    uint32_t number = 0;

    for (size_t i = 0; i < sizeof(words) / sizeof(*words); i++) {
        const struct word *w = &words[i];

        if (strlen(w->name) != named || memcmp(w->name, text, named) != 0)
            continue;
        if ((sign != NULL) != (w->max > 0))
            return false;
        if (sign != NULL &&
            !number_parse(sign + 1, size - named - 1, w->min, w->max, &number))
            return false;
        if (w->fault == NO_FAULT) {
            m->nap_ms[w->when] = number;
            return true;
        }
        if (m->fault != NO_FAULT)
            return false;
        m->fault = w->fault;
        m->when = w->when;
        m->status = number;
        return true;
    }
    return false;
}

/* "slow=200,drop-after". False, and `*m` is spoilt, if it is not like that. */
static bool manners_parse(const char *text, struct manners *m)
{
    for (;;) {
        size_t size;

        text += strspn(text, " ");
        size = strcspn(text, ", ");
        if (!manners_word(text, size, m))
            return false;
        text += size;
        text += strspn(text, " ");
        if (*text == '\0')
            return true;
        if (*text++ != ',')
            return false;
    }
}

/* ---- The ledger ------------------------------------------------------ */

/*
 * One connection writes and one reads, each under its own lock, so that a long
 * page of the ledger does not hold up charges.
 */
struct ledger {
    sqlite3 *writer, *reader;
    pthread_mutex_t writing, reading;
    sqlite3_stmt *insert;
    sqlite3_stmt *order_sum, *order_rows, *all_sum, *all_rows;
};

/*
 * WAL with synchronous=NORMAL: a charge survives the death of this process at
 * any moment, which is what the sample is about. A power cut may take the last
 * ones with it; a real ledger says FULL and pays a sync for each charge.
 */
static const char ledger_setup[] = "PRAGMA journal_mode=WAL;"
                                   "PRAGMA synchronous=NORMAL;";

static const char ledger_schema[] =
    "BEGIN IMMEDIATE;"
    "CREATE TABLE charges ("
    " id INTEGER PRIMARY KEY AUTOINCREMENT,"
    " name TEXT NOT NULL,"
    " amount INTEGER NOT NULL,"
    " at_ms INTEGER NOT NULL);"
    "CREATE INDEX charges_by_name ON charges (name, amount);"
    "PRAGMA user_version=1;"
    "COMMIT;";

static int ledger_complain(sqlite3 *db, const char *what)
{
    fprintf(stderr, "payments: ledger: %s: %s\n", what,
            db == NULL ? "out of memory" : sqlite3_errmsg(db));
    return -1;
}

static int ledger_count(sqlite3 *db, const char *sql, int64_t *out)
{
    sqlite3_stmt *s = NULL;
    int rc = -1;

    if (sqlite3_prepare_v2(db, sql, -1, &s, NULL) != SQLITE_OK ||
        sqlite3_step(s) != SQLITE_ROW)
        goto out;
    *out = sqlite3_column_int64(s, 0);
    rc = 0;
out:
    sqlite3_finalize(s);
    return rc;
}

/* A file of another program or of another version is left as it is. */
static int ledger_check(sqlite3 *db)
{
    int64_t version = 0, tables = 0;

    if (ledger_count(db, "PRAGMA user_version", &version) < 0 ||
        ledger_count(db, "SELECT COUNT(*) FROM sqlite_master", &tables) < 0)
        return ledger_complain(db, "cannot be read");
    if (version == SCHEMA)
        return 0;
    if (version != 0 || tables != 0) {
        fprintf(stderr,
                "payments: ledger: the file has schema version %lld and %lld "
                "tables; version %d is understood\n",
                (long long)version, (long long)tables, SCHEMA);
        return -1;
    }
    if (sqlite3_exec(db, ledger_schema, NULL, NULL, NULL) != SQLITE_OK)
        return ledger_complain(db, "cannot create the tables");
    return 0;
}

static int ledger_prepare(sqlite3 *db, const char *sql, sqlite3_stmt **out)
{
    if (sqlite3_prepare_v3(db, sql, -1, SQLITE_PREPARE_PERSISTENT, out, NULL) !=
        SQLITE_OK)
        return ledger_complain(db, "a statement");
    return 0;
}

static void ledger_close(struct ledger *l)
{
    sqlite3_finalize(l->insert);
    sqlite3_finalize(l->order_sum);
    sqlite3_finalize(l->order_rows);
    sqlite3_finalize(l->all_sum);
    sqlite3_finalize(l->all_rows);
    sqlite3_close(l->reader);
    sqlite3_close(l->writer);
    pthread_mutex_destroy(&l->writing);
    pthread_mutex_destroy(&l->reading);
}

static int ledger_open_writer(struct ledger *l, const char *path)
{
    int flags =
        SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE | SQLITE_OPEN_NOMUTEX;

    if (sqlite3_open_v2(path, &l->writer, flags, NULL) != SQLITE_OK)
        return ledger_complain(l->writer, "cannot be opened");
    sqlite3_busy_timeout(l->writer, 5000);
    /* First look, then set: journal_mode alone would change a foreign file. */
    if (ledger_check(l->writer) < 0)
        return -1;
    if (sqlite3_exec(l->writer, ledger_setup, NULL, NULL, NULL) != SQLITE_OK)
        return ledger_complain(l->writer, "cannot be set up");
    return ledger_prepare(l->writer,
                          "INSERT INTO charges (name, amount, at_ms)"
                          " VALUES (?, ?, ?)",
                          &l->insert);
}

static int ledger_open_reader(struct ledger *l, const char *path)
{
    int flags = SQLITE_OPEN_READONLY | SQLITE_OPEN_NOMUTEX;

    if (sqlite3_open_v2(path, &l->reader, flags, NULL) != SQLITE_OK)
        return ledger_complain(l->reader, "cannot be opened for reading");
    sqlite3_busy_timeout(l->reader, 5000);
    if (ledger_prepare(l->reader,
                       "SELECT COUNT(*), TOTAL(amount) FROM charges"
                       " WHERE name = ?",
                       &l->order_sum) < 0)
        return -1;
    if (ledger_prepare(l->reader,
                       "SELECT id, amount, at_ms FROM charges"
                       " WHERE name = ? AND id > ? ORDER BY id LIMIT ?",
                       &l->order_rows) < 0)
        return -1;
    if (ledger_prepare(l->reader,
                       "SELECT COUNT(*), TOTAL(amount), COUNT(DISTINCT name)"
                       " FROM charges",
                       &l->all_sum) < 0)
        return -1;
    return ledger_prepare(l->reader,
                          "SELECT name, COUNT(*), TOTAL(amount) FROM charges"
                          " WHERE name > ? GROUP BY name ORDER BY name LIMIT ?",
                          &l->all_rows);
}

/* Says on stderr what is wrong. ledger_close() is due in any case. */
static int ledger_open(struct ledger *l, const char *path)
{
    *l = (struct ledger){0};
    pthread_mutex_init(&l->writing, NULL);
    pthread_mutex_init(&l->reading, NULL);
    if (ledger_open_writer(l, path) < 0)
        return -1;
    return ledger_open_reader(l, path);
}

/* Charges, and returns the charge's number; below zero: it did not. */
static int64_t ledger_charge(struct ledger *l, const char *order,
                             int64_t amount)
{
    struct timespec now;
    int64_t id = -1;

    clock_gettime(CLOCK_REALTIME, &now);
    pthread_mutex_lock(&l->writing);
    sqlite3_bind_text(l->insert, 1, order, -1, SQLITE_STATIC);
    sqlite3_bind_int64(l->insert, 2, amount);
    sqlite3_bind_int64(l->insert, 3,
                       (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000);
    if (sqlite3_step(l->insert) == SQLITE_DONE)
        id = sqlite3_last_insert_rowid(l->writer);
    else
        ledger_complain(l->writer, "a charge");
    sqlite3_reset(l->insert);
    sqlite3_clear_bindings(l->insert);
    pthread_mutex_unlock(&l->writing);
    return id;
}

/* Sums of integers that are far below 2^53: exact. */
static json_int_t column_sum(sqlite3_stmt *s, int column)
{
    return (json_int_t)sqlite3_column_double(s, column);
}

static json_t *order_row(sqlite3_stmt *s)
{
    return json_pack("{s:I, s:I, s:I}", "charge",
                     (json_int_t)sqlite3_column_int64(s, 0), "amount",
                     (json_int_t)sqlite3_column_int64(s, 1), "at_ms",
                     (json_int_t)sqlite3_column_int64(s, 2));
}

static json_t *ledger_row(sqlite3_stmt *s)
{
    return json_pack("{s:s, s:I, s:I}", "order",
                     (const char *)sqlite3_column_text(s, 0), "charges",
                     (json_int_t)sqlite3_column_int64(s, 1), "total",
                     column_sum(s, 2));
}

/*
 * At most `limit` rows of `s`, which was asked for one more: that one tells
 * whether there is a next page, which then goes on after member `by` of the
 * last row. `*next` is that member or JSON's null. NULL on failure.
 */
static json_t *page_read(sqlite3_stmt *s, json_t *(*row)(sqlite3_stmt *),
                         size_t limit, const char *by, json_t **next)
{
    json_t *rows = json_array(), *last;
    int rc;

    *next = json_null();
    while ((rc = sqlite3_step(s)) == SQLITE_ROW) {
        if (json_array_size(rows) == limit) {
            last = json_array_get(rows, limit - 1);
            *next = json_incref(json_object_get(last, by));
            rc = SQLITE_DONE;
            break;
        }
        if (json_array_append_new(rows, row(s)) < 0)
            break;
    }
    if (rc != SQLITE_DONE) {
        json_decref(rows);
        return NULL;
    }
    return rows;
}

/* Both statements of one answer must see the same charges. */
static bool snapshot(struct ledger *l, const char *sql)
{
    return sqlite3_exec(l->reader, sql, NULL, NULL, NULL) == SQLITE_OK;
}

/* NULL: the ledger did not answer. An order without charges has count 0. */
static json_t *ledger_order(struct ledger *l, const char *order, uint32_t after,
                            uint32_t limit)
{
    json_t *rows, *next, *answer = NULL;

    pthread_mutex_lock(&l->reading);
    if (!snapshot(l, "BEGIN"))
        goto out;
    sqlite3_bind_text(l->order_sum, 1, order, -1, SQLITE_STATIC);
    sqlite3_bind_text(l->order_rows, 1, order, -1, SQLITE_STATIC);
    sqlite3_bind_int64(l->order_rows, 2, after);
    sqlite3_bind_int64(l->order_rows, 3, (int64_t)limit + 1);
    if (sqlite3_step(l->order_sum) != SQLITE_ROW)
        goto out;
    rows = page_read(l->order_rows, order_row, limit, "charge", &next);
    if (rows != NULL)
        answer = json_pack("{s:s, s:I, s:I, s:o, s:o}", "order", order, "count",
                           (json_int_t)sqlite3_column_int64(l->order_sum, 0),
                           "total", column_sum(l->order_sum, 1), "charges",
                           rows, "next", next);
out:
    if (answer == NULL)
        ledger_complain(l->reader, "reading an order");
    sqlite3_reset(l->order_sum);
    sqlite3_reset(l->order_rows);
    snapshot(l, "ROLLBACK");
    pthread_mutex_unlock(&l->reading);
    return answer;
}

/* NULL: the ledger did not answer. */
static json_t *ledger_page(struct ledger *l, const char *after, uint32_t limit)
{
    json_t *rows, *next, *answer = NULL;

    pthread_mutex_lock(&l->reading);
    if (!snapshot(l, "BEGIN"))
        goto out;
    sqlite3_bind_text(l->all_rows, 1, after, -1, SQLITE_STATIC);
    sqlite3_bind_int64(l->all_rows, 2, (int64_t)limit + 1);
    if (sqlite3_step(l->all_sum) != SQLITE_ROW)
        goto out;
    rows = page_read(l->all_rows, ledger_row, limit, "order", &next);
    if (rows != NULL)
        answer = json_pack(
            "{s:I, s:I, s:I, s:o, s:o}", "orders",
            (json_int_t)sqlite3_column_int64(l->all_sum, 2), "charges",
            (json_int_t)sqlite3_column_int64(l->all_sum, 0), "total",
            column_sum(l->all_sum, 1), "ledger", rows, "next", next);
out:
    if (answer == NULL)
        ledger_complain(l->reader, "reading a page");
    sqlite3_reset(l->all_sum);
    sqlite3_reset(l->all_rows);
    snapshot(l, "ROLLBACK");
    pthread_mutex_unlock(&l->reading);
    return answer;
}

/* ---- Requests and naps ----------------------------------------------- */

enum step { READ, CHARGE, ANSWER };

struct request {
    struct MHD_Connection *connection;
    enum step step;
    struct manners manners;
    char order[ORDER_MAX + 1];
    int64_t amount;
    int64_t charge;       /* its number, from step ANSWER on */
    struct request *next; /* among those that nap */
    uint64_t due_ms;
    bool cut;    /* woken early, because the service stops */
    size_t size; /* bytes read, also beyond BODY_MAX, which are not kept */
    char body[BODY_MAX];
};

/* One thread resumes connections in the order in which they are due. */
struct naps {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    pthread_t thread;
    struct request *first;
    bool closing;
};

struct service {
    struct ledger ledger;
    struct naps naps;
    struct manners manners; /* of every `every`th charge */
    uint32_t every;
    atomic_uint_fast64_t asked;
};

static uint64_t now_ms(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000 + (uint64_t)t.tv_nsec / 1000000;
}

static void *naps_run(void *arg)
{
    struct naps *n = arg;

    pthread_mutex_lock(&n->lock);
    while (!n->closing || n->first != NULL) {
        struct request *r = n->first;
        struct timespec until;

        if (r == NULL) {
            pthread_cond_wait(&n->changed, &n->lock);
        } else if (n->closing || r->due_ms <= now_ms()) {
            n->first = r->next;
            r->cut = n->closing;
            MHD_resume_connection(r->connection);
        } else {
            until.tv_sec = (time_t)(r->due_ms / 1000);
            until.tv_nsec = (long)(r->due_ms % 1000) * 1000000;
            pthread_cond_timedwait(&n->changed, &n->lock, &until);
        }
    }
    pthread_mutex_unlock(&n->lock);
    return NULL;
}

static int naps_start(struct naps *n)
{
    pthread_condattr_t attr;
    int rc;

    pthread_mutex_init(&n->lock, NULL);
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(&n->changed, &attr);
    pthread_condattr_destroy(&attr);
    rc = pthread_create(&n->thread, NULL, naps_run, n);
    if (rc == 0)
        return 0;
    pthread_cond_destroy(&n->changed);
    pthread_mutex_destroy(&n->lock);
    fprintf(stderr, "payments: a thread: %s\n", strerror(rc));
    return -1;
}

/*
 * Resumes all, to be cut off as they are. From here on nap() refuses, so that no connection is suspended
 * when libmicrohttpd is stopped: it would not survive that.
 */
static void naps_stop(struct naps *n)
{
    pthread_mutex_lock(&n->lock);
    n->closing = true;
    pthread_cond_signal(&n->changed);
    pthread_mutex_unlock(&n->lock);
    pthread_join(n->thread, NULL);
}

static void naps_clear(struct naps *n)
{
    pthread_cond_destroy(&n->changed);
    pthread_mutex_destroy(&n->lock);
}

/* Called again, at the request's next step, when `ms` are over. */
static enum MHD_Result nap(struct naps *n, struct request *r, uint32_t ms)
{
    enum MHD_Result rc = MHD_NO;
    struct request **at;

    pthread_mutex_lock(&n->lock);
    if (n->closing)
        goto out;
    MHD_suspend_connection(r->connection);
    r->due_ms = now_ms() + ms;
    for (at = &n->first; *at != NULL && (*at)->due_ms <= r->due_ms;)
        at = &(*at)->next;
    r->next = *at;
    *at = r;
    if (n->first == r)
        pthread_cond_signal(&n->changed);
    rc = MHD_YES;
out:
    pthread_mutex_unlock(&n->lock);
    return rc;
}

/* ---- Answers --------------------------------------------------------- */

/* Takes `r`, also NULL. */
static enum MHD_Result send_response(struct MHD_Connection *c, unsigned status,
                                     struct MHD_Response *r, const char *name,
                                     const char *value)
{
    enum MHD_Result rc = MHD_NO;

    if (r == NULL)
        return MHD_NO;
    if (MHD_add_response_header(r, "Content-Type", "application/json") &&
        (name == NULL || MHD_add_response_header(r, name, value)))
        rc = MHD_queue_response(c, status, r);
    MHD_destroy_response(r);
    return rc;
}

/* A line of JSON, for free(). Takes `body`, also NULL; then, or without
 * memory, it is NULL. */
static char *line_new(json_t *body, size_t *size)
{
    char *text, *line = NULL;

    text = body == NULL ? NULL : json_dumps(body, JSON_COMPACT);
    json_decref(body);
    if (text == NULL)
        return NULL;
    *size = strlen(text) + 1;
    line = realloc(text, *size);
    if (line == NULL)
        free(text);
    else
        line[*size - 1] = '\n';
    return line;
}

/* Takes `body`. A header more if `name` is not NULL. */
static enum MHD_Result send_json(struct MHD_Connection *c, unsigned status,
                                 json_t *body, const char *name,
                                 const char *value)
{
    size_t size = 0;
    char *line = line_new(body, &size);

    if (line == NULL)
        return MHD_NO;
    return send_response(
        c, status,
        MHD_create_response_from_buffer(size, line, MHD_RESPMEM_MUST_FREE),
        name, value);
}

/* `field` is what is wrong, a member or a header; NULL if it is none. */
__attribute__((format(printf, 4, 5))) static enum MHD_Result
refuse(struct MHD_Connection *c, unsigned status, const char *field,
       const char *format, ...)
{
    char text[320];
    va_list args;

    va_start(args, format);
    vsnprintf(text, sizeof(text), format, args);
    va_end(args);
    return send_json(c, status,
                     json_pack("{s:s, s:s*}", "error", text, "field", field),
                     NULL, NULL);
}

static enum MHD_Result refuse_method(struct MHD_Connection *c,
                                     const char *allowed)
{
    return send_json(
        c, MHD_HTTP_METHOD_NOT_ALLOWED,
        json_pack("{s:s}", "error", "this path does not know the method"),
        MHD_HTTP_HEADER_ALLOW, allowed);
}

/* ---- POST /charge ---------------------------------------------------- */

static bool order_valid(const char *text)
{
    static const char allowed[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
                                  "abcdefghijklmnopqrstuvwxyz"
                                  "0123456789._-";
    size_t size = strspn(text, allowed);

    return size >= 1 && size <= ORDER_MAX && text[size] == '\0';
}

static bool content_type_is_json(struct MHD_Connection *c)
{
    static const char json[] = "application/json";
    const char *type = MHD_lookup_connection_value(
        c, MHD_HEADER_KIND, MHD_HTTP_HEADER_CONTENT_TYPE);

    return type != NULL && strncasecmp(type, json, sizeof(json) - 1) == 0 &&
           strchr("; ", type[sizeof(json) - 1]) != NULL;
}

/* NULL, or the answer to wrong members is in `*rc`. */
static bool charge_members(struct request *r, json_t *root, enum MHD_Result *rc)
{
    json_t *order = json_object_get(root, "order");
    json_t *amount = json_object_get(root, "amount");
    json_int_t n = json_integer_value(amount);

    if (!json_is_object(root)) {
        *rc = refuse(r->connection, 400, NULL, "the body must be an object");
    } else if (!json_is_string(order) ||
               !order_valid(json_string_value(order))) {
        *rc = refuse(r->connection, 400, "order", "order " ORDER_RULE);
    } else if (!json_is_integer(amount) || n < 1 || n > AMOUNT_MAX) {
        *rc = refuse(r->connection, 400, "amount", "amount " AMOUNT_RULE);
    } else if (json_object_size(root) != 2) {
        *rc = refuse(r->connection, 400, NULL,
                     "there are members besides order and amount");
    } else {
        snprintf(r->order, sizeof(r->order), "%s", json_string_value(order));
        r->amount = n;
        return true;
    }
    return false;
}

/* The texts name a place but quote nothing: a body belongs to its sender. */
static bool charge_body(struct request *r, enum MHD_Result *rc)
{
    json_error_t e;
    json_t *root = json_loadb(r->body, r->size, JSON_REJECT_DUPLICATES, &e);
    bool good;

    if (root == NULL) {
        *rc = json_error_code(&e) == json_error_duplicate_key
                  ? refuse(r->connection, 400, NULL,
                           "a member of the body stands there twice")
                  : refuse(r->connection, 400, NULL,
                           "the body is not JSON: line %d, column %d", e.line,
                           e.column);
        return false;
    }
    good = charge_members(r, root, rc);
    json_decref(root);
    return good;
}

/* What the request asks for itself, or else what the command line says. */
static bool charge_manners(struct service *s, struct request *r)
{
    const char *text =
        MHD_lookup_connection_value(r->connection, MHD_HEADER_KIND, "X-Sample");
    uint64_t nth = atomic_fetch_add(&s->asked, 1) + 1;

    if (text == NULL)
        text = MHD_lookup_connection_value(r->connection, MHD_GET_ARGUMENT_KIND,
                                           "sample");
    if (text != NULL)
        return manners_parse(text, &r->manners);
    if (nth % s->every == 0)
        r->manners = s->manners;
    return true;
}

static bool charge_read(struct service *s, struct request *r,
                        enum MHD_Result *rc)
{
    if (r->size > BODY_MAX)
        *rc = refuse(r->connection, MHD_HTTP_CONTENT_TOO_LARGE, NULL,
                     "the body must not be longer than %d bytes", BODY_MAX);
    else if (!content_type_is_json(r->connection))
        *rc = refuse(r->connection, MHD_HTTP_UNSUPPORTED_MEDIA_TYPE,
                     "Content-Type", "Content-Type must be application/json");
    else if (!charge_manners(s, r))
        *rc = refuse(r->connection, 400, "X-Sample", "X-Sample " MANNERS_RULE);
    else
        return charge_body(r, rc);
    return false;
}

struct half {
    size_t size;
    char *line;
};

static ssize_t half_read(void *cls, uint64_t at, char *out, size_t max)
{
    const struct half *h = cls;
    size_t end = h->size / 2, n;

    if (at >= end)
        return MHD_CONTENT_READER_END_WITH_ERROR;
    n = end - (size_t)at < max ? end - (size_t)at : max;
    memcpy(out, h->line + at, n);
    return (ssize_t)n;
}

static void half_free(void *cls)
{
    struct half *h = cls;

    free(h->line);
    free(h);
}

/* The whole length in the header, half of it in the body, then the end. */
static enum MHD_Result send_half(struct MHD_Connection *c, json_t *body)
{
    struct half *h = calloc(1, sizeof(*h));
    struct MHD_Response *response;

    if (h == NULL) {
        json_decref(body);
        return MHD_NO;
    }
    h->line = line_new(body, &h->size);
    response = h->line == NULL
                   ? NULL
                   : MHD_create_response_from_callback(h->size, BODY_MAX,
                                                       half_read, h, half_free);
    if (response == NULL)
        half_free(h);
    return send_response(c, MHD_HTTP_CREATED, response, NULL, NULL);
}

/* Past libmicrohttpd, which is too well-bred. The caller closes. */
static void send_garbage(struct MHD_Connection *c)
{
    static const char text[] = "GARBAGE\r\n\r\n";
    const union MHD_ConnectionInfo *info =
        MHD_get_connection_info(c, MHD_CONNECTION_INFO_CONNECTION_FD);
    ssize_t sent = -1;

    if (info != NULL)
        sent = send(info->connect_fd, text, sizeof(text) - 1, MSG_NOSIGNAL);
    if (sent < 0)
        fprintf(stderr, "payments: garbage could not be sent\n");
}

static enum MHD_Result charge_answer(struct request *r)
{
    char location[sizeof("/orders/") + ORDER_MAX];
    json_t *body =
        json_pack("{s:I, s:s, s:I}", "charge", (json_int_t)r->charge, "order",
                  r->order, "amount", (json_int_t)r->amount);

    if (r->manners.fault == HALF)
        return send_half(r->connection, body);
    snprintf(location, sizeof(location), "/orders/%s", r->order);
    return send_json(r->connection, MHD_HTTP_CREATED, body,
                     MHD_HTTP_HEADER_LOCATION, location);
}

/* True if the request ends here, with `*rc`; false if nothing is wrong. */
static bool misbehave(struct request *r, enum moment when, enum MHD_Result *rc)
{
    if (r->manners.when != when)
        return false;
    *rc = MHD_NO; /* libmicrohttpd closes the connection then */
    switch (r->manners.fault) {
    case FAIL:
        *rc = refuse(r->connection, r->manners.status, NULL,
                     "told to fail %s the charge",
                     when == BEFORE ? "before" : "after");
        return true;
    case DIE:
        _exit(70);
    case GARBAGE:
        send_garbage(r->connection);
        return true;
    case DROP:
        return true;
    case HALF:
    case NO_FAULT:
        break;
    }
    return false;
}

static enum MHD_Result charge(struct service *s, struct request *r)
{
    enum MHD_Result rc = MHD_NO;

    if (r->cut)
        return MHD_NO; /* What is not charged by now will not be. */
    if (r->step == READ) {
        if (!charge_read(s, r, &rc))
            return rc;
        r->step = CHARGE;
        if (r->manners.nap_ms[BEFORE] > 0)
            return nap(&s->naps, r, r->manners.nap_ms[BEFORE]);
    }
    if (r->step == CHARGE) {
        if (misbehave(r, BEFORE, &rc))
            return rc;
        r->charge = ledger_charge(&s->ledger, r->order, r->amount);
        if (r->charge < 0)
            return refuse(r->connection, 500, NULL,
                          "the ledger did not take the charge");
        r->step = ANSWER;
        if (r->manners.nap_ms[AFTER] > 0)
            return nap(&s->naps, r, r->manners.nap_ms[AFTER]);
    }
    assert(r->step == ANSWER && r->charge > 0);
    if (misbehave(r, AFTER, &rc))
        return rc;
    return charge_answer(r);
}

/* ---- GET ------------------------------------------------------------- */

/* An argument that is a number; `*out` stays if it is not there. */
static bool argument(struct MHD_Connection *c, const char *name, uint32_t min,
                     uint32_t max, uint32_t *out, enum MHD_Result *rc)
{
    const char *text =
        MHD_lookup_connection_value(c, MHD_GET_ARGUMENT_KIND, name);

    if (text == NULL || number_parse(text, strlen(text), min, max, out))
        return true;
    *rc = refuse(c, 400, name, "%s must be a number from %u to %u", name, min,
                 max);
    return false;
}

static enum MHD_Result get_order(struct service *s, struct request *r,
                                 const char *order)
{
    uint32_t after = 0, limit = PAGE_DEFAULT;
    enum MHD_Result rc;
    json_t *answer;

    if (!order_valid(order))
        return refuse(r->connection, 400, "order", "order " ORDER_RULE);
    if (!argument(r->connection, "limit", 1, PAGE_MAX, &limit, &rc) ||
        !argument(r->connection, "after", 0, UINT32_MAX, &after, &rc))
        return rc;
    answer = ledger_order(&s->ledger, order, after, limit);
    if (answer == NULL)
        return refuse(r->connection, 500, NULL, "the ledger did not answer");
    if (json_integer_value(json_object_get(answer, "count")) == 0) {
        json_decref(answer);
        return refuse(r->connection, 404, "order",
                      "nothing was charged for this order");
    }
    return send_json(r->connection, MHD_HTTP_OK, answer, NULL, NULL);
}

static enum MHD_Result get_ledger(struct service *s, struct request *r)
{
    const char *after = MHD_lookup_connection_value(
        r->connection, MHD_GET_ARGUMENT_KIND, "after");
    uint32_t limit = PAGE_DEFAULT;
    enum MHD_Result rc;
    json_t *answer;

    if (after == NULL)
        after = "";
    else if (!order_valid(after))
        return refuse(r->connection, 400, "after", "after " ORDER_RULE);
    if (!argument(r->connection, "limit", 1, PAGE_MAX, &limit, &rc))
        return rc;
    answer = ledger_page(&s->ledger, after, limit);
    if (answer == NULL)
        return refuse(r->connection, 500, NULL, "the ledger did not answer");
    return send_json(r->connection, MHD_HTTP_OK, answer, NULL, NULL);
}

/* ---- Serving --------------------------------------------------------- */

static enum MHD_Result route(struct service *s, struct request *r,
                             const char *path, const char *method)
{
    static const char orders[] = "/orders/";
    bool get = strcmp(method, MHD_HTTP_METHOD_GET) == 0 ||
               strcmp(method, MHD_HTTP_METHOD_HEAD) == 0;

    if (strcmp(path, "/charge") == 0)
        return strcmp(method, MHD_HTTP_METHOD_POST) == 0
                   ? charge(s, r)
                   : refuse_method(r->connection, "POST");
    if (strcmp(path, "/ledger") == 0)
        return get ? get_ledger(s, r)
                   : refuse_method(r->connection, "GET, HEAD");
    if (strncmp(path, orders, sizeof(orders) - 1) == 0)
        return get ? get_order(s, r, path + sizeof(orders) - 1)
                   : refuse_method(r->connection, "GET, HEAD");
    return refuse(r->connection, MHD_HTTP_NOT_FOUND, NULL,
                  "there is /charge, /orders/ID and /ledger");
}

/*
 * libmicrohttpd calls this once for the header, then for each piece of the
 * body, then once more with an empty piece; and again after a nap.
 */
static enum MHD_Result on_request(void *cls, struct MHD_Connection *c,
                                  const char *path, const char *method,
                                  const char *version, const char *piece,
                                  size_t *size, void **own)
{
    struct service *s = cls;
    struct request *r = *own;

    (void)version;
    if (r == NULL) {
        /* The body last: it needs no zeroes. */
        r = malloc(sizeof(*r));
        if (r == NULL)
            return MHD_NO;
        memset(r, 0, offsetof(struct request, body));
        r->connection = c;
        *own = r;
        return MHD_YES;
    }
    if (*size == 0)
        return route(s, r, path, method);
    /* Read on past the limit, so that the 413 reaches a client that sends
     * first and listens afterwards; but not for ever. */
    if (*size > DRAIN_MAX - r->size)
        return MHD_NO;
    if (r->size + *size <= BODY_MAX)
        memcpy(r->body + r->size, piece, *size);
    r->size += *size;
    *size = 0;
    return MHD_YES;
}

static void on_end(void *cls, struct MHD_Connection *c, void **own,
                   enum MHD_RequestTerminationCode why)
{
    (void)cls;
    (void)c;
    (void)why;
    free(*own);
    *own = NULL;
}

struct options {
    struct sockaddr_in listen;
    const char *db;
    uint32_t threads;
};

static struct MHD_Daemon *serve(struct service *s, const struct options *o)
{
    return MHD_start_daemon(
        MHD_USE_EPOLL_INTERNAL_THREAD | MHD_ALLOW_SUSPEND_RESUME, 0, NULL, NULL,
        on_request, s, MHD_OPTION_SOCK_ADDR,
        (const struct sockaddr *)&o->listen, MHD_OPTION_THREAD_POOL_SIZE,
        (unsigned)o->threads, MHD_OPTION_CONNECTION_LIMIT,
        (unsigned)CONNECTIONS_MAX, MHD_OPTION_CONNECTION_TIMEOUT, 75u,
        MHD_OPTION_NOTIFY_COMPLETED, on_end, NULL, MHD_OPTION_END);
}

/* Until SIGINT or SIGTERM, which the caller has blocked in all threads. */
static int run(struct service *s, const struct options *o, const sigset_t *ends)
{
    char address[INET_ADDRSTRLEN] = "";
    struct MHD_Daemon *daemon;
    int rc = -1, sig;

    if (naps_start(&s->naps) < 0)
        return -1;
    daemon = serve(s, o);
    inet_ntop(AF_INET, &o->listen.sin_addr, address, sizeof(address));
    if (daemon == NULL) {
        fprintf(stderr, "payments: cannot listen on %s:%u: %s\n", address,
                ntohs(o->listen.sin_port), strerror(errno));
        naps_stop(&s->naps);
        goto out;
    }
    printf("payments: listening on %s:%u\n", address,
           MHD_get_daemon_info(daemon, MHD_DAEMON_INFO_BIND_PORT)->port);
    fflush(stdout);
    sigwait(ends, &sig);
    naps_stop(&s->naps);
    MHD_stop_daemon(daemon);
    rc = 0;
out:
    naps_clear(&s->naps);
    return rc;
}

/* ---- The command line ------------------------------------------------ */

static const char usage[] =
    "usage: payments --db PATH [--listen 127.0.0.1:PORT] [--threads N]\n"
    "                [--sample MANNERS [--every N]] [--slow-ms MS]\n"
    "\n"
    "A payments service that charges as often as it is asked.\n"
    "  --db PATH        the ledger, an SQLite file; made if it is not there\n"
    "  --listen ADDR    a loopback address; port 0 picks one   [127.0.0.1:0]\n"
    "  --threads N      1 to 64                                          [2]\n"
    "  --sample MANNERS how to misbehave, as in the header X-Sample:\n"
    "                   slow=MS slow-after=MS fail=STATUS fail-after=STATUS\n"
    "                   drop-before drop-after die-before die-after half\n"
    "                   garbage, with commas between them\n"
    "  --every N        misbehave at each Nth charge only                [1]\n"
    "  --slow-ms MS     the same as --sample slow=MS\n";

/* Numeric loopback addresses only: see the top. */
static bool listen_parse(const char *text, struct sockaddr_in *out)
{
    const char *colon = strrchr(text, ':');
    char address[INET_ADDRSTRLEN];
    uint32_t port;

    if (colon == NULL || (size_t)(colon - text) >= sizeof(address) ||
        !number_parse(colon + 1, strlen(colon + 1), 0, 65535, &port))
        return false;
    memcpy(address, text, (size_t)(colon - text));
    address[colon - text] = '\0';
    *out = (struct sockaddr_in){.sin_family = AF_INET,
                                .sin_port = htons((uint16_t)port)};
    return inet_pton(AF_INET, address, &out->sin_addr) == 1 &&
           ntohl(out->sin_addr.s_addr) >> 24 == IN_LOOPBACKNET;
}

static bool option(struct service *s, struct options *o, int which,
                   const char *value)
{
    size_t size = strlen(value);
    const char *rule = NULL;

    switch (which) {
    case 'd':
        o->db = value;
        break;
    case 'l':
        if (!listen_parse(value, &o->listen))
            rule = "--listen must be 127.x.y.z:PORT, with PORT up to 65535";
        break;
    case 't':
        if (!number_parse(value, size, 1, THREADS_MAX, &o->threads))
            rule = "--threads must be a number from 1 to 64";
        break;
    case 's':
        if (!manners_parse(value, &s->manners))
            rule = "--sample " MANNERS_RULE;
        break;
    case 'm':
        if (!number_parse(value, size, 0, NAP_MAX_MS,
                          &s->manners.nap_ms[BEFORE]))
            rule = "--slow-ms must be a number from 0 to 600000";
        break;
    case 'e':
        if (!number_parse(value, size, 1, EVERY_MAX, &s->every))
            rule = "--every must be a number from 1 to 1000000";
        break;
    default:
        abort(); /* An option of the table without a case: our mistake. */
    }
    if (rule != NULL)
        fprintf(stderr, "payments: %s\n", rule);
    return rule == NULL;
}

/* 0 to go on, 1 if all is said, -1 for a wrong command line. */
static int options_parse(int argc, char **argv, struct service *s,
                         struct options *o)
{
    static const struct option known[] = {
        {"db", required_argument, NULL, 'd'},
        {"listen", required_argument, NULL, 'l'},
        {"threads", required_argument, NULL, 't'},
        {"sample", required_argument, NULL, 's'},
        {"slow-ms", required_argument, NULL, 'm'},
        {"every", required_argument, NULL, 'e'},
        {"help", no_argument, NULL, 'h'},
        {NULL, 0, NULL, 0},
    };
    int which;

    while ((which = getopt_long(argc, argv, "", known, NULL)) != -1) {
        if (which == 'h') {
            fputs(usage, stdout);
            return 1;
        }
        if (which == '?' || !option(s, o, which, optarg))
            return -1;
    }
    if (optind < argc || o->db == NULL) {
        fputs(usage, stderr);
        return -1;
    }
    return 0;
}

int main(int argc, char **argv)
{
    struct service s = {.every = 1};
    struct options o = {
        .listen = {.sin_family = AF_INET,
                   .sin_addr.s_addr = htonl(INADDR_LOOPBACK)},
        .threads = 2,
    };
    sigset_t ends;
    int rc;

    rc = options_parse(argc, argv, &s, &o);
    if (rc != 0)
        return rc < 0 ? 2 : 0;
    sigemptyset(&ends);
    sigaddset(&ends, SIGINT);
    sigaddset(&ends, SIGTERM);
    pthread_sigmask(SIG_BLOCK, &ends, NULL);
    signal(SIGPIPE, SIG_IGN);
    rc = ledger_open(&s.ledger, o.db);
    if (rc == 0)
        rc = run(&s, &o, &ends);
    ledger_close(&s.ledger);
    return rc == 0 ? 0 : 1;
}
