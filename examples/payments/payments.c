/* SPDX-License-Identifier: Apache-2.0 */
/*
 * payments.c - a small payments service to put Once in front of.
 *
 *    POST /charge {"order": "o-1", "amount": 1250}  -> 201, one row more
 *    GET  /orders/ID                                -> its charges, the total
 *    GET  /ledger                                   -> all orders, in pages
 *    GET  /charge-outcome                           -> for the gateway only
 *
 * It knows nothing of idempotency, on purpose: it charges as often as it is
 * asked, and so its ledger shows what a repetition costs. (The same files with
 * guarded.c in place of plain.c are a service that can be asked again: there
 * is the guard, not here.) And it misbehaves
 * when asked to, for all charges (--sample) or for one (X-Sample, ?sample=), so
 * that one can watch a slow, failing, lying or dying service from outside.
 *
 * It refuses to listen on anything but the loopback: it asks nobody who he is.
 *
 * A charge walks through three steps, and may have to nap at each arrow.
 *
 *    READ ---- slow ----> CHARGE ---- slow-after ----> ANSWER
 *    check the input      fail, drop, die before;      fail, drop, die after;
 *                         insert the row               half; garbage; the 201
 */
#include <arpa/inet.h>
#include <errno.h>
#include <getopt.h>
#include <jansson.h>
#include <netinet/in.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>
#include <unistd.h>

#include "payments.h"

/* clang-format off */
enum limits {
    ORDER_MAX = 64,         /* characters of an order's name             */
    AMOUNT_MAX = 100000000, /* one charge, in the smallest unit          */
    BODY_MAX = 4096,        /* bytes of a request's body                 */
    DRAIN_MAX = 1 << 20,    /* bytes read of one that is too long        */
    PAGE_DEFAULT = 100,     /* rows in an answer                         */
    PAGE_MAX = 1000,
    THREADS_MAX = 64,
    CONNECTIONS_MAX = 4096,
    EVERY_MAX = 1000000
};
/* clang-format on */

#define ORDER_RULE "must be 1 to 64 characters of A-Z a-z 0-9 . _ -"
#define AMOUNT_RULE "must be an integer from 1 to 100000000"

struct service {
    const char *db;
    const char *store;
    char address[INET_ADDRSTRLEN]; /* the same as in `listen` */
    struct sockaddr_in listen;
    uint32_t threads;
    struct manners manners; /* of every `every`th charge */
    uint32_t every;
    atomic_uint_fast64_t asked;
    struct ledger ledger;
    struct naps naps;
};

struct request {
    struct MHD_Connection *connection;
    struct once_mhd_call *call;
    enum { READ, CHARGE, ANSWER } step;
    struct manners manners;
    struct nap nap;
    char order[ORDER_MAX + 1];
    int64_t amount;
    unsigned status;
    char *answer;      /* a line of JSON */
    const char *allow; /* the methods, for a 405 */
    size_t size;       /* bytes read; those beyond BODY_MAX are not kept */
    char body[BODY_MAX];
};

/* ---- Answers --------------------------------------------------------- */

/*
 * False, so that a check can end with it. `field` is what is wrong, NULL if it
 * is the whole. The texts are ours, with nothing to escape, and quote nothing
 * of the request: that belongs to its sender.
 */
__attribute__((format(printf, 4, 5))) static bool
refuse(struct request *r, unsigned status, const char *field,
       const char *format, ...)
{
    char text[320];
    va_list args;

    va_start(args, format);
    vsnprintf(text, sizeof(text), format, args);
    va_end(args);
    free(r->answer);
    r->status = status;
    if (asprintf(&r->answer, "{\"error\":\"%s\"%s%s%s}\n", text,
                 field == NULL ? "" : ",\"field\":\"",
                 field == NULL ? "" : field, field == NULL ? "" : "\"") < 0)
        r->answer = NULL;
    return false;
}

static enum MHD_Result answer(struct request *r)
{
    char location[sizeof("/orders/") + ORDER_MAX];
    struct reply reply = {
        .status = r->status,
        .allow = r->allow,
        .body = r->answer,
        .half = r->status == MHD_HTTP_CREATED && r->manners.fault == HALF,
    };

    if (r->answer == NULL)
        return MHD_NO;
    snprintf(location, sizeof(location), "/orders/%s", r->order);
    if (r->status == MHD_HTTP_CREATED)
        reply.location = location;
    return way_answer(r->connection, r->call, &reply);
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

static bool charge_body(struct request *r)
{
    json_error_t e;
    json_t *root = json_loadb(r->body, r->size, JSON_REJECT_DUPLICATES, &e);
    const char *order = json_string_value(json_object_get(root, "order"));
    const json_t *amount = json_object_get(root, "amount");
    bool good = false;

    r->amount = json_integer_value(amount); /* 0 if it is none */
    if (root == NULL && json_error_code(&e) == json_error_duplicate_key)
        refuse(r, 400, NULL, "a member of the body stands there twice");
    else if (root == NULL)
        refuse(r, 400, NULL, "the body is not JSON: line %d, column %d", e.line,
               e.column);
    else if (!json_is_object(root))
        refuse(r, 400, NULL, "the body must be an object");
    else if (order == NULL || !order_valid(order))
        refuse(r, 400, "order", "order " ORDER_RULE);
    else if (r->amount < 1 || r->amount > AMOUNT_MAX)
        refuse(r, 400, "amount", "amount " AMOUNT_RULE);
    else if (json_object_size(root) != 2)
        refuse(r, 400, NULL, "there are members besides order and amount");
    else
        good = true;
    if (good)
        snprintf(r->order, sizeof(r->order), "%s", order);
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

static bool charge_read(struct service *s, struct request *r)
{
    static const char json[] = "application/json";
    const char *type = MHD_lookup_connection_value(
        r->connection, MHD_HEADER_KIND, "Content-Type");

    if (r->size > BODY_MAX)
        return refuse(r, 413, NULL, "the body must not be longer than %d bytes",
                      BODY_MAX);
    if (type == NULL || strncasecmp(type, json, sizeof(json) - 1) != 0 ||
        strchr("; ", type[sizeof(json) - 1]) == NULL)
        return refuse(r, 415, "Content-Type",
                      "Content-Type must be application/json");
    if (!charge_manners(s, r))
        return refuse(r, 400, "X-Sample", "X-Sample " MANNERS_RULE);
    return charge_body(r);
}

/* Past libmicrohttpd, which is too well-bred. */
static void send_garbage(struct request *r)
{
    static const char text[] = "GARBAGE\r\n\r\n";
    const union MHD_ConnectionInfo *info = MHD_get_connection_info(
        r->connection, MHD_CONNECTION_INFO_CONNECTION_FD);

    if (send(info->connect_fd, text, strlen(text), MSG_NOSIGNAL) < 0)
        fprintf(stderr, "payments: garbage could not be sent\n");
}

static enum MHD_Result misbehave(struct request *r)
{
    switch (r->manners.fault) {
    case FAIL:
        refuse(r, r->manners.status, NULL, "asked to fail %s the charge",
               r->manners.when == BEFORE ? "before" : "after");
        break;
    case DIE:
        _exit(70);
    case GARBAGE:
        if (!way_is_guarded) /* not a byte leaves before the record is there */
            send_garbage(r);
        return MHD_NO;
    case DROP:
        return MHD_NO; /* libmicrohttpd closes the connection then. */
    case HALF:
    case NO_FAULT:
        break;
    }
    return answer(r);
}

/* The service stops: what is not charged by now will not be. */
static enum MHD_Result cut_short(struct request *r)
{
    const struct reply reply = {
        .status = MHD_HTTP_SERVICE_UNAVAILABLE,
        .body = "{\"error\":\"the service is about to stop\"}\n",
        .nothing_done = true,
    };

    if (!way_is_guarded)
        return MHD_NO;
    return way_answer(r->connection, r->call, &reply);
}

/* Whose charge it is, by the gateway: kept beside it, and asked about. */
static const char *record_of(const struct request *r)
{
    return MHD_lookup_connection_value(r->connection, MHD_HEADER_KIND,
                                       "Idempotency-Record");
}

static enum MHD_Result charge(struct service *s, struct request *r)
{
    const struct manners *m = &r->manners;

    if (r->nap.cut && (r->step == CHARGE || !way_is_guarded))
        return cut_short(r);
    if (r->step == READ) {
        if (!charge_read(s, r))
            return answer(r);
        r->step = CHARGE;
        if (m->nap_ms[BEFORE] > 0)
            return naps_add(&s->naps, &r->nap, m->nap_ms[BEFORE]);
    }
    if (r->step == CHARGE) {
        if (m->fault != NO_FAULT && m->when == BEFORE)
            return misbehave(r);
        r->status = MHD_HTTP_CREATED;
        if (!ledger_charge(&s->ledger, r->order, r->amount, record_of(r),
                           &r->answer)) {
            refuse(r, 500, NULL, "the ledger did not take the charge");
            return answer(r);
        }
        r->step = ANSWER;
        if (m->nap_ms[AFTER] > 0 && !way_is_gone(r->call))
            return naps_add(&s->naps, &r->nap, m->nap_ms[AFTER]);
    }
    return misbehave(r);
}

/* ---- GET ------------------------------------------------------------- */

/* An argument that is a number; `*out` stays if it is not there. */
static bool argument(struct request *r, const char *name, uint32_t min,
                     uint32_t max, uint32_t *out)
{
    const char *text =
        MHD_lookup_connection_value(r->connection, MHD_GET_ARGUMENT_KIND, name);

    return text == NULL || number_parse(text, min, max, out) ||
           refuse(r, 400, name, "%s must be a number from %u to %u", name, min,
                  max);
}

static bool get_order(struct service *s, struct request *r, const char *order)
{
    uint32_t after = 0, limit = PAGE_DEFAULT;

    if (!order_valid(order))
        return refuse(r, 400, "order", "order " ORDER_RULE);
    if (!argument(r, "limit", 1, PAGE_MAX, &limit) ||
        !argument(r, "after", 0, UINT32_MAX, &after))
        return false;
    if (!ledger_order(&s->ledger, order, after, limit, &r->answer))
        return refuse(r, 500, NULL, "the ledger did not answer");
    if (r->answer != NULL && *r->answer == '\0')
        return refuse(r, 404, "order", "nothing was charged for this order");
    return true;
}

static bool get_ledger(struct service *s, struct request *r)
{
    const char *after = MHD_lookup_connection_value(
        r->connection, MHD_GET_ARGUMENT_KIND, "after");
    uint32_t limit = PAGE_DEFAULT;

    if (after != NULL && !order_valid(after))
        return refuse(r, 400, "after", "after " ORDER_RULE);
    if (!argument(r, "limit", 1, PAGE_MAX, &limit))
        return false;
    return ledger_page(&s->ledger, after == NULL ? "" : after, limit,
                       &r->answer) ||
           refuse(r, 500, NULL, "the ledger did not answer");
}

/*
 * The gateway asks what became of a charge. A row that is there is committed
 * and does not change. One that is not there says nothing: the request may
 * still be on its way.
 */
static enum MHD_Result get_outcome(struct service *s, struct request *r)
{
    struct reply reply = {.status = MHD_HTTP_OK, .record = record_of(r)};
    json_t *line;
    char location[sizeof("/orders/") + ORDER_MAX];

    if (reply.record == NULL ||
        !ledger_record(&s->ledger, reply.record, &r->answer)) {
        refuse(r, 500, NULL, "there is no record, or the ledger is silent");
        return answer(r);
    }
    if (r->answer == NULL) {
        refuse(r, 404, NULL, "no charge of this record is known");
        return answer(r);
    }
    line = json_loads(r->answer, 0, NULL);
    snprintf(location, sizeof(location), "/orders/%s",
             json_string_value(json_object_get(line, "order")));
    json_decref(line);
    reply.location = location;
    reply.body = r->answer;
    return way_answer(r->connection, r->call, &reply);
}

/* ---- Serving --------------------------------------------------------- */

static enum MHD_Result route(struct service *s, struct request *r,
                             const char *path, const char *method)
{
    bool get = strcmp(method, "GET") == 0 || strcmp(method, "HEAD") == 0;
    bool charging = strcmp(path, "/charge") == 0;
    bool order = strncmp(path, "/orders/", strlen("/orders/")) == 0;

    if (charging && strcmp(method, "POST") == 0)
        return charge(s, r);
    if (get && !way_is_guarded && strcmp(path, "/charge-outcome") == 0)
        return get_outcome(s, r);
    r->status = MHD_HTTP_OK;
    if (!charging && !order && strcmp(path, "/ledger") != 0) {
        refuse(r, 404, NULL, "there is /charge, /orders/ID and /ledger");
    } else if (charging || !get) {
        r->allow = charging ? "POST" : "GET, HEAD";
        refuse(r, 405, NULL, "this path does not know the method");
    } else if (order) {
        get_order(s, r, path + strlen("/orders/"));
    } else {
        get_ledger(s, r);
    }
    return answer(r);
}

/*
 * libmicrohttpd calls this once for the header, then for each piece of the
 * body, then once more with an empty piece; and again after a nap.
 */
static enum MHD_Result on_request(void *cls, struct once_mhd_call *call,
                                  struct MHD_Connection *c, const char *path,
                                  const char *method, const char *version,
                                  const char *piece, size_t *size, void **own)
{
    struct request *r = *own;

    (void)version;
    if (r == NULL) {
        *own = r = calloc(1, sizeof(*r));
        if (r == NULL)
            return MHD_NO;
        r->connection = r->nap.connection = c;
        r->call = call;
        return MHD_YES;
    }
    if (*size == 0)
        return route(cls, r, path, method);
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

static void on_end(void **own)
{
    struct request *r = *own;

    if (r != NULL)
        free(r->answer);
    free(r);
    *own = NULL;
}

/* ---- Start and end --------------------------------------------------- */

/* Until SIGINT or SIGTERM. The exit status. */
static int run(struct service *s)
{
    const struct way_options options = {
        .listen = &s->listen,
        .address = s->address,
        .threads = s->threads,
        .store = s->store,
        .handler = on_request,
        .ended = on_end,
        .cls = s,
    };
    struct way *way;
    sigset_t ends;
    int rc, sig;

    sigemptyset(&ends);
    sigaddset(&ends, SIGINT);
    sigaddset(&ends, SIGTERM);
    pthread_sigmask(SIG_BLOCK, &ends, NULL); /* in all threads to come */
    signal(SIGPIPE, SIG_IGN);
    rc = naps_start(&s->naps);
    if (rc != 0) {
        fprintf(stderr, "payments: a thread: %s\n", strerror(rc));
        return 1;
    }
    way = way_open(&options);
    if (way != NULL) {
        printf("payments: listening on %s:%u\n", s->address, way_port(way));
        fflush(stdout);
        sigwait(&ends, &sig);
    }
    naps_stop(&s->naps);
    if (way != NULL)
        way_close(way);
    return way != NULL ? 0 : 1;
}

static const char usage[] =
    "usage: payments --db PATH [OPTION VALUE]...\n"
    "\n"
    "A payments service that charges as often as it is asked.\n"
    "  --db PATH         the ledger, an SQLite file; made if not there\n"
    "  --listen ADDRESS  127.x.y.z:PORT, up to 65535; 0 picks one "
    "[127.0.0.1:0]\n"
    "  --threads N       1 to 64 [2]\n"
    "  --sample MANNERS  how to misbehave, as in the header X-Sample\n"
    "  --every N         1 to 1000000; misbehave at each Nth charge only [1]\n"
    "  --slow-ms MS      0 to 600000; the same as --sample slow=MS\n"
    "  --store URL       where payments-guarded keeps its records [memory:]\n"
    "MANNERS " MANNERS_RULE "\n";

/* Numeric loopback addresses only: see the top. */
static bool listen_parse(struct service *s, const char *text)
{
    size_t size = strcspn(text, ":");
    uint32_t port;

    if (size >= sizeof(s->address) || text[size] == '\0' ||
        !number_parse(text + size + 1, 0, 65535, &port))
        return false;
    snprintf(s->address, sizeof(s->address), "%.*s", (int)size, text);
    s->listen.sin_port = htons((uint16_t)port);
    return inet_pton(AF_INET, s->address, &s->listen.sin_addr) == 1 &&
           ntohl(s->listen.sin_addr.s_addr) >> 24 == IN_LOOPBACKNET;
}

/* Ends the program if it is not to serve. */
static void options_parse(int argc, char **argv, struct service *s)
{
    static const struct option known[] = {
        {"db", required_argument, NULL, 'd'},
        {"listen", required_argument, NULL, 'l'},
        {"threads", required_argument, NULL, 't'},
        {"sample", required_argument, NULL, 's'},
        {"slow-ms", required_argument, NULL, 'm'},
        {"every", required_argument, NULL, 'e'},
        {"store", required_argument, NULL, 'S'},
        {"help", no_argument, NULL, 'h'},
        {NULL, 0, NULL, 0},
    };
    uint32_t *slow_ms = &s->manners.nap_ms[BEFORE];
    bool good = true;
    int which, at = 0;

    while (good && (which = getopt_long(argc, argv, "", known, &at)) != -1) {
        switch (which) {
        case 'd':
            s->db = optarg;
            break;
        case 'l':
            good = listen_parse(s, optarg);
            break;
        case 't':
            good = number_parse(optarg, 1, THREADS_MAX, &s->threads);
            break;
        case 's':
            good = manners_parse(optarg, &s->manners);
            break;
        case 'm':
            good = number_parse(optarg, 0, NAP_MAX_MS, slow_ms);
            break;
        case 'e':
            good = number_parse(optarg, 1, EVERY_MAX, &s->every);
            break;
        case 'S':
            s->store = optarg;
            good = way_is_guarded;
            break;
        case 'h':
            fputs(usage, stdout);
            exit(0);
        default:
            exit(2); /* getopt has said why */
        }
        if (!good)
            fprintf(stderr, "payments: wrong value of --%s\n", known[at].name);
    }
    if (good && optind == argc && s->db != NULL)
        return;
    fputs(usage, stderr);
    exit(2);
}

int main(int argc, char **argv)
{
    struct service s = {
        .address = "127.0.0.1",
        .listen = {.sin_family = AF_INET,
                   .sin_addr.s_addr = htonl(INADDR_LOOPBACK)},
        .store = "memory:",
        .threads = 2,
        .every = 1,
        .naps = {.lock = PTHREAD_MUTEX_INITIALIZER,
                 .changed = PTHREAD_COND_INITIALIZER},
    };
    int rc;

    options_parse(argc, argv, &s);
    rc = ledger_open(&s.ledger, s.db) ? run(&s) : 1;
    ledger_close(&s.ledger);
    return rc;
}
