/* SPDX-License-Identifier: Apache-2.0 */
/* reply.h - an HTTP answer as a row keeps it. In a file of its own, because the
 * headers of src/calls/http and src/client have names in common. */
#ifndef ONCE_MESSAGES_BROKER_REPLY_H
#define ONCE_MESSAGES_BROKER_REPLY_H

#include <once/client.h>

/*
 * The answer as src/base/response.c encodes it, on the heap: free() its data.
 * No data: there was no memory, or the answer cannot be kept. Headers of one
 * connection and credentials are left out. `body` NULL: it was too long.
 */
once_bytes once__broker_reply(int status, const once_client_header *headers,
                              size_t n, const once_bytes *body);

#endif /* ONCE_MESSAGES_BROKER_REPLY_H */
