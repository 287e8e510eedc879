/* SPDX-License-Identifier: Apache-2.0 */
/*
 * send_messages.c - gives messages to one target, for tests in Python.
 *
 *    send_messages URL TIMEOUT_MS [ROUTE-HEADERS]
 *
 * One message a line on standard input, as JSON: id, key, type, headers, body
 * (hex). One proof a line on standard output: tag (the line's number from 0),
 * end, status, retry_ms, why, reply (hex). `also` on a line: the next one is sent
 * before this one's proof is waited for.
 */
#include "messages/broker/broker.h"

#include <assert.h>
#include <jansson.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LINES_MAX = 4096 };

static struct once__broker *target;

static void log_line(void *user, const char *text)
{
    (void)user;
    (void)fprintf(stderr, "%s\n", text);
}

static char *unhex(const char *hex, size_t *size)
{
    size_t i, n = hex == NULL ? 0 : strlen(hex) / 2;
    char *out = calloc(1, n + 1);
    unsigned byte;

    assert(out != NULL);
    for (i = 0; i < n; i++) {
        if (sscanf(hex + 2 * i, "%2x", &byte) != 1)
            abort();
        out[i] = (char)byte;
    }
    *size = n;
    return out;
}

static const char *text_of(json_t *o, const char *name)
{
    return json_string_value(json_object_get(o, name));
}

static void show(const struct once__proof *p)
{
    const unsigned char *reply = p->reply.data;
    char *hex = calloc(2, p->reply.size + 1), *line;
    size_t i;
    json_t *o;

    assert(hex != NULL);
    for (i = 0; i < p->reply.size; i++)
        (void)snprintf(hex + 2 * i, 3, "%02x", reply[i]);
    o = json_pack("{s:I,s:i,s:i,s:I,s:s,s:s}", "tag", (json_int_t)p->tag, "end",
                  p->end, "status", p->status, "retry_ms",
                  (json_int_t)p->retry_ms, "why", p->why == NULL ? "" : p->why,
                  "reply", hex);
    line = json_dumps(o, JSON_COMPACT);
    assert(line != NULL);
    (void)puts(line);
    (void)fflush(stdout);
    free(line);
    free(hex);
    json_decref(o);
}

/* Waits until all that were sent have a proof. */
static void settle(size_t open)
{
    struct once__proof p[16];
    size_t n, i, quiet;

    for (quiet = 0; open > 0 && quiet < 600; quiet++) {
        n = target->ops->proofs(target, 100, p, sizeof(p) / sizeof(p[0]));
        for (i = 0; i < n; i++)
            show(&p[i]);
        open -= n;
        quiet = n > 0 ? 0 : quiet;
    }
}

static void send_line(json_t *o, once_message *m, uint64_t tag)
{
    const once_message none = ONCE_MESSAGE_INIT;
    size_t size;
    once_error err = {0};

    *m = none;
    m->route = "r";
    m->id = text_of(o, "id");
    m->key = text_of(o, "key");
    m->type = text_of(o, "type");
    m->headers = text_of(o, "headers");
    m->body.data = unhex(text_of(o, "body"), &size);
    m->body.size = size;
    if (target->ops->send(target, m, tag, &err) != ONCE_OK)
        (void)fprintf(stderr, "%s\n", err.text);
}

static void open_target(const char *url, const char *timeout_ms,
                        const char *headers)
{
    const struct once__broker_ops *ops;
    struct once__broker_options o;
    once_error err = {0};

    memset(&o, 0, sizeof(o));
    o.timeout_ms = (uint32_t)strtoul(timeout_ms, NULL, 10);
    o.headers = headers;
    o.ca_file = getenv("ONCE_TEST_CA");
    o.log = log_line;
    ops = once__broker_find(url, &err);
    if (ops == NULL || ops->open(url, &o, &target, &err) != ONCE_OK ||
        ops->connect(target, &err) != ONCE_OK) {
        (void)fprintf(stderr, "%s\n", err.text);
        exit(3);
    }
}

int main(int argc, char **argv)
{
    static once_message m[LINES_MAX];
    static json_t *lines[LINES_MAX];
    static char line[4 << 20];
    size_t n = 0, open = 0, i;

    (void)signal(SIGPIPE, SIG_IGN);
    if (argc < 3)
        return 2;
    open_target(argv[1], argv[2], argc > 3 ? argv[3] : NULL);
    while (n < LINES_MAX && fgets(line, sizeof(line), stdin) != NULL) {
        lines[n] = json_loads(line, 0, NULL);
        assert(lines[n] != NULL);
        send_line(lines[n], &m[n], n);
        open++;
        if (!json_is_true(json_object_get(lines[n], "also"))) {
            settle(open);
            open = 0;
        }
        n++;
    }
    settle(open);
    target->ops->close(target);
    for (i = 0; i < n; i++) {
        free((void *)(uintptr_t)m[i].body.data);
        json_decref(lines[i]);
    }
    return 0;
}
