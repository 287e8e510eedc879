/* SPDX-License-Identifier: Apache-2.0 */
/* address.h - SCHEME://USER:PASSWORD@HOST:PORT/PATH, of those brokers whose
 * library does not read URLs as we write them. */
#ifndef ONCE_MESSAGES_BROKER_ADDRESS_H
#define ONCE_MESSAGES_BROKER_ADDRESS_H

#include <once/once.h>

struct once__address {
    char user[256], password[256], host[256], path[256]; /* decoded; or "" */
    int port;                                            /* 0: none is named */
    int has_user;
};

/*
 * Reads a URL. `query` takes its parameters out of a copy, up to "?" itself,
 * and answers with ONCE_OK or the error. ONCE_OK, ONCE_EURL, ONCE_ENOMEM; no
 * text shows a part of the URL. `scheme` is for the text.
 */
ONCE_CHECK int
once__address_read(const char *scheme, const char *url,
                   int (*query)(void *user, char *url, once_error *err),
                   void *user, struct once__address *out, once_error *err);

#endif /* ONCE_MESSAGES_BROKER_ADDRESS_H */
