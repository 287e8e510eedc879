/* SPDX-License-Identifier: Apache-2.0 */
/* address.h - SCHEME://USER:PASSWORD@HOST:PORT/PATH, of those brokers whose
 * library does not read URLs as we write them. */
#ifndef ONCE_BROKER_ADDRESS_H
#define ONCE_BROKER_ADDRESS_H

#include <once/once.h>

struct once__address {
    char user[256], password[256], host[256], path[256]; /* decoded; or "" */
    int port;                                            /* 0: none is named */
    int has_user;
};

/*
 * Reads a URL whose "?" and parameters are cut off already. ONCE_OK, or
 * ONCE_EURL; no text shows a part of it. `scheme` is for the text.
 */
ONCE_CHECK int once__address_read(const char *scheme, const char *url,
                                  struct once__address *out, once_error *err);

#endif /* ONCE_BROKER_ADDRESS_H */
