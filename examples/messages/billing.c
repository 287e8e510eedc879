/* SPDX-License-Identifier: Apache-2.0 */
/*
 * billing.c - a consumer in C: for each order one invoice, whatever is
 * delivered twice, and whatever is killed in between.
 *
 *    billing postgres://shop 'amqp://mq/%2f?queue=orders'
 *
 * The handler writes in the transaction that once_consume() gives it. The
 * invoice, and the inbox row that says so, are committed together; only then the
 * message is acknowledged. SIGTERM ends it after the message that it is at.
 */
#include <libpq-fe.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/signalfd.h>

#include <jansson.h>
#include <once/relay.h>

static void print_line(void *user, const char *text)
{
    (void)user;
    fprintf(stderr, "billing: %s\n", text);
}

/* {"order": 42, "cents": 1250} */
static int read_order(once_bytes body, long long *order, long long *cents)
{
    json_t *o = json_loadb(body.data, body.size, JSON_REJECT_DUPLICATES, NULL);
    json_int_t a = 0, b = 0;
    int ok = json_unpack(o, "{s:I, s:I}", "order", &a, "cents", &b) == 0;

    json_decref(o);
    *order = a;
    *cents = b;
    return ok;
}

static int bill(const once_tx *tx, const once_message *m, void *user)
{
    long long order, cents;
    char text[2][24];
    const char *values[2] = {text[0], text[1]};
    PGresult *r;
    int ok;

    (void)user;
    if (!read_order(m->body, &order, &cents))
        return ONCE_DEAD; /* it will not become readable */
    (void)snprintf(text[0], sizeof(text[0]), "%lld", order);
    (void)snprintf(text[1], sizeof(text[1]), "%lld", cents);
    r = PQexecParams(tx->postgres,
                     "INSERT INTO invoice (order_id, cents) VALUES ($1, $2)", 2,
                     NULL, values, NULL, NULL, 0);
    ok = PQresultStatus(r) == PGRES_COMMAND_OK;
    PQclear(r);
    return ok ? ONCE_OK : ONCE_AGAIN;
}

int main(int argc, char **argv)
{
    once_consumer_options o = ONCE_CONSUMER_OPTIONS_INIT;
    once_error err = {0, ""};
    sigset_t stop;
    int rc;

    if (argc != 3) {
        fprintf(stderr, "usage: billing DATABASE BROKER\n");
        return 2;
    }
    (void)sigemptyset(&stop);
    (void)sigaddset(&stop, SIGTERM);
    (void)sigaddset(&stop, SIGINT);
    (void)sigprocmask(SIG_BLOCK, &stop, NULL);
    (void)signal(SIGPIPE, SIG_IGN);
    o.db = argv[1];
    o.from = argv[2];
    o.consumer = "billing";
    o.workers = 2;
    o.stop_fd = signalfd(-1, &stop, SFD_CLOEXEC);
    o.log = print_line;
    rc = once_consume(&o, bill, NULL, &err);
    if (rc < 0)
        fprintf(stderr, "billing: %s\n", err.text);
    return rc == ONCE_OK ? 0 : 1;
}
