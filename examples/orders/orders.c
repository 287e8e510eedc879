/* SPDX-License-Identifier: Apache-2.0 */
/*
 * orders.c - an order service that may get every request twice: a sample of
 * once_call(), free to copy.
 *
 *    orders STORE-URL LEDGER <messages
 *
 * A message is a line "ORDER AMOUNT" from a queue that delivers at least once,
 * so the same line may come again: now, after a crash, or to another process
 * at this very moment. Each order is booked at most once: a line in LEDGER.
 * Each customer gets a mail: a line on stdout.
 *
 *    message --> once_call "orders", on STORE-URL --> booked, or refused
 *                  '--> once_call "mails", in memory --> mailed
 *
 * Two engines: money must not be booked twice whatever happens, so its records
 * are durable; a second mail after a restart harms nobody, so memory will do.
 *
 * The status is 0 if every message was answered for good, 75 if some should be
 * delivered again, 2 if some made no sense.
 */
#include <once/call.h>

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { AGAIN = 75, NONSENSE = 2, REFUSED = 1, ORDER_MAX = 64, LIMIT = 100000 };

struct shop {
    once_engine *orders, *mails;
    int ledger;
};

struct order {
    struct shop *shop;
    char id[ORDER_MAX + 1];
    long amount;
};

static once_bytes text(const char *s)
{
    return (once_bytes){s, strlen(s)};
}

/* ---- What is done at most once ------------------------------------------- */

/* The effect. What fails before a byte was written has done nothing, and what
 * fails later may have done it or not: say so, and do not guess. */
static int place(once_task *task, void *user)
{
    const struct order *order = user;
    char line[ORDER_MAX + 40];
    int size;

    if (order->amount > LIMIT) { /* a failure, and the answer for ever */
        if (once_task_result(task, "text/plain", text("over the limit"),
                             NULL) != ONCE_OK)
            once_task_release(task);
        return REFUSED;
    }
    /* The result first: after the effect nothing is left that could fail. */
    size = snprintf(line, sizeof(line), "receipt %llu",
                    (unsigned long long)once_task_fence(task));
    if (size < 0 ||
        once_task_result(task, "text/plain", text(line), NULL) != ONCE_OK) {
        once_task_release(task);
        return REFUSED;
    }
    size = snprintf(line, sizeof(line), "%s %ld\n", order->id, order->amount);
    if (write(order->shop->ledger, line, (size_t)size) != size ||
        fsync(order->shop->ledger) < 0)
        once_task_unknown(task);
    return 0;
}

static int mail(once_task *task, void *user)
{
    const struct order *order = user;

    (void)task;
    printf("mail: thank you for %s\n", order->id);
    return 0;
}

/* ---- Messages -------------------------------------------------------------- */

static int send_mail(struct order *order)
{
    once_call_options options = ONCE_CALL_OPTIONS_INIT;
    once_error err = {0, ""};
    int rc;

    options.group = "mails";
    options.key = text(order->id);
    rc = once_call(order->shop->mails, &options, mail, order, &err, NULL);
    if (rc < 0)
        fprintf(stderr, "orders: %s\n", err.text);
    return rc == ONCE_OK || rc == ONCE_REPLAY ? 0 : AGAIN;
}

static int answer(struct order *order, int rc, const once_result *r,
                  const once_error *err)
{
    switch (rc) {
    case ONCE_OK:
    case ONCE_REPLAY:
        printf("%s: %s, %s: %.*s\n", order->id, r->code ? "refused" : "booked",
               rc == ONCE_OK ? "now" : "before", (int)r->bytes.size,
               (const char *)r->bytes.data);
        return r->code ? 0 : send_mail(order);
    case ONCE_IN_FLIGHT:
        printf("%s: another process is at it\n", order->id);
        return AGAIN;
    case ONCE_FREE:
        printf("%s: not done\n", order->id);
        return AGAIN;
    case ONCE_MISMATCH:
        printf("%s: this order had another amount\n", order->id);
        return NONSENSE;
    case ONCE_UNKNOWN:
        printf("%s: unknown: look into the ledger, then once resolve\n",
               order->id);
        return AGAIN;
    default:
        fprintf(stderr, "orders: %s\n", rc < 0 ? err->text : once_text(rc));
        return AGAIN;
    }
}

/* The amount is the fingerprint: the same order with another one is an error
 * of the caller, and must not be answered as if it were the same. */
static int take(struct order *order)
{
    once_call_options options = ONCE_CALL_OPTIONS_INIT;
    once_result result = ONCE_RESULT_INIT;
    once_error err = {0, ""};
    char amount[24];
    int rc;

    (void)snprintf(amount, sizeof(amount), "%ld", order->amount);
    options.group = "orders";
    options.key = text(order->id);
    options.fingerprint = text(amount);
    options.wait_ms = 10000;
    options.keep_ms = UINT64_C(30) * 86400000; /* longer than any redelivery */
    rc = once_call(order->shop->orders, &options, place, order, &err, &result);
    rc = answer(order, rc, &result, &err);
    once_result_clear(&result);
    return rc;
}

static int read_message(const char *line, struct order *order)
{
    char end;

    return sscanf(line, "%64[A-Za-z0-9._-] %ld%c", order->id, &order->amount,
                  &end) == 3 &&
           end == '\n' && order->amount > 0;
}

static int serve(struct shop *shop)
{
    struct order order = {.shop = shop};
    char line[200];
    int worst = 0;

    while (fgets(line, sizeof(line), stdin) != NULL) {
        int rc = NONSENSE;

        if (read_message(line, &order))
            rc = take(&order);
        else
            fprintf(stderr, "orders: a message is ORDER AMOUNT\n");
        worst = rc > worst ? rc : worst;
        (void)fflush(stdout);
    }
    return worst;
}

int main(int argc, char **argv)
{
    struct shop shop = {NULL, NULL, -1};
    once_error err = {0, ""};
    int rc = AGAIN;

    if (argc != 3) {
        fprintf(stderr, "usage: orders STORE-URL LEDGER <messages\n");
        return NONSENSE;
    }
    shop.ledger =
        open(argv[2], O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    if (shop.ledger < 0) {
        perror("orders: the ledger");
        return AGAIN;
    }
    if (once_engine_open(argv[1], NULL, &err, &shop.orders) < 0 ||
        once_engine_open("memory:", NULL, &err, &shop.mails) < 0)
        fprintf(stderr, "orders: %s\n", err.text);
    else
        rc = serve(&shop);
    once_engine_close(shop.mails);
    once_engine_close(shop.orders);
    (void)close(shop.ledger);
    return rc;
}
