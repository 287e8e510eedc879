/* SPDX-License-Identifier: Apache-2.0 */
/*
 * check.h - `once serve --check URL`: does a service with a middleware of its own
 * keep the contract? docs/serve.md says what its one handler does.
 *
 *    ask.c      requests, also many at once
 *    check.c    the cases, and what is said of them
 */
#ifndef ONCE_SERVE_CHECK_H
#define ONCE_SERVE_CHECK_H

#include "programs/terminal/terminal.h"

enum {
    CHECK_HEADERS = 16384,
    CHECK_BODY = 4 << 20, /* more of an answer is not read */
    CHECK_AT_ONCE = 100
};

/* A request. What is NULL or 0 is not sent. */
struct check_ask {
    const char *query;             /* behind the URL, with its "?" */
    const char *key, *user, *what; /* Check-Do */
    const char *type;              /* [application/octet-stream] */
    const char *more;              /* another header line */
    const char *body;
    size_t size;
    int is_get;    /* and not a POST */
    int chunked;   /* without a length */
    size_t cut;    /* the connection ends after so many bytes of the body */
    long leave_ms; /* the client leaves before the answer */
};

struct check_got {
    long status; /* 0: there was no answer, or not all of it */
    char headers[CHECK_HEADERS];
    size_t n_headers;
    char *body; /* free() it */
    size_t n_body;
};

/* Asks `n` times at once. 0: out of memory, or libcurl has failed. */
int check_ask(const char *url, const struct check_ask *a, int n,
              struct check_got *out);
/* The value of a header line, into `out`; "" if there is none. */
void check_header(const struct check_got *g, const char *name, char out[200]);

/* Prints each case. CLI_OK: it keeps the contract; CLI_STORE: it does not. */
int check_service(const struct cli *c, const char *url);

#endif /* ONCE_SERVE_CHECK_H */
