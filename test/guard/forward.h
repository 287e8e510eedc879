/* SPDX-License-Identifier: Apache-2.0 */
/*
 * forward.h - one request to the scripted upstream of the scenarios, and its
 * answer, over a plain socket. It blocks; a thread of its own calls it.
 */
#ifndef TEST_GUARD_FORWARD_H
#define TEST_GUARD_FORWARD_H

#include <netinet/in.h>
#include <stdint.h>

#include <once/http.h>

enum forwarded {
    FORWARD_UNSENT, /* not a byte of the request left                     */
    FORWARD_WHOLE,  /* a complete answer                                  */
    FORWARD_STREAM, /* a head that announces events; they come from `fd`  */
    FORWARD_BROKEN, /* sent, and no complete answer                       */
    FORWARD_TIMEOUT /* likewise, because the upstream was silent          */
};

struct forward {
    int fd; /* -1: closed */
    enum forwarded result;
    int status;
    once_http_header *headers;
    size_t n;
    char *text; /* what came, the head cut into strings */
    size_t size, room;
    size_t head; /* bytes of `text` that are the head */
    char *body;
    size_t body_size;
};

/* Fills `*f` from `request`, the bytes to send; `fd` is a connected socket or
 * -1. It may be shut down by another thread meanwhile. */
void forward_run(struct forward *f, const char *request, size_t size,
                 uint64_t timeout_ms, int no_body);
int forward_connect(const struct sockaddr_in *to);
void forward_clear(struct forward *f);

#endif /* TEST_GUARD_FORWARD_H */
