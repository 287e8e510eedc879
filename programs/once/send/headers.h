/* SPDX-License-Identifier: Apache-2.0 */
/* headers.h - the headers that `once send` and `once lookup` are given. */
#ifndef ONCE_ONCE_SEND_HEADERS_H
#define ONCE_ONCE_SEND_HEADERS_H

#include <once/client.h>

#include "programs/once/cli.h"

struct send_headers {
    once_client_header at[ONCE_CLIENT_HEADERS_MAX];
    size_t n;
    void *memory[ONCE_CLIENT_HEADERS_MAX + 1]; /* what they point to */
    size_t n_memory;
};

/* "Name: value", or "@FILE" with such lines. */
int send_headers_add(const struct cli *c, struct send_headers *h,
                     const char *text_or_file, uint32_t flags);
void send_headers_free(struct send_headers *h);

#endif /* ONCE_ONCE_SEND_HEADERS_H */
