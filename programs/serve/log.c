/* SPDX-License-Identifier: Apache-2.0 */
/*
 * log.c - with --access-log: a line on standard output for each request.
 *
 *    POST /pay 201 once=replayed would=- apart=- attempt=1 hash=0123...
 *
 * The words are those of the gateway's log (docs/http.md, section 6). The first
 * ones are the label: method and path, or what the program computes. The status is
 * 0 where the handler's answer does not come by us. No key and no scope is in it,
 * and no character that could end the line. Who reads the lines has to go on reading:
 * a pipe that is full stops the server.
 */
#include "programs/serve/serve.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

void serve_log_label(struct serve_call *k)
{
    char text[ONCE_HTTP_TEXT_MAX];
    int i, n;

    if (!k->serve->log)
        return;
    n = serve_label(k, text, sizeof(text));
    if (n > ONCE_LABEL_MAX)
        n = ONCE_LABEL_MAX;
    for (i = 0; i < n; i++)
        if (text[i] < ' ' || text[i] > '~')
            text[i] = '?';
    k->logged = n > 0 ? strndup(text, (size_t)n) : NULL;
}

static void number(char out[24], int64_t n)
{
    (void)snprintf(out, 24, n >= 0 ? "%" PRId64 : "-", n);
}

void serve_log(const struct serve *s, const char *label, const once_exchange *x,
               int status)
{
    uint32_t attempt = once_exchange_attempt(x);
    char line[512], apart[24], which[24];
    int n;

    if (!s->log)
        return;
    number(apart, once_exchange_apart(x));
    number(which, attempt > 0 ? (int64_t)attempt : -1);
    n = snprintf(line, sizeof(line),
                 "%s %d once=%s would=%s apart=%s attempt=%s hash=%s\n",
                 label != NULL ? label : "-", status, once_exchange_status(x),
                 once_exchange_would(x), apart, which, once_exchange_hash(x));
    if (n > 0 && (size_t)n < sizeof(line)) {
        (void)fwrite(line, 1, (size_t)n, stdout);
        (void)fflush(stdout);
    }
}
