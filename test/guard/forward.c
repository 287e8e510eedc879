/* SPDX-License-Identifier: Apache-2.0 */
/*
 * forward.c - a request to the scripted upstream (see forward.h).
 *
 * It is as strict as a gateway has to be: whatever is not a whole answer is a
 * broken one. A body ends with its length, with its last chunk, or, where
 * neither was announced, with the connection.
 */
#include "forward.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

enum { HEAD_MAX = 1 << 20, TEXT_LIMIT = 80 << 20, HEADERS_MAX = 1024 };

int forward_connect(const struct sockaddr_in *to)
{
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

    if (fd >= 0 && connect(fd, (const struct sockaddr *)to, sizeof(*to)) != 0) {
        (void)close(fd);
        fd = -1;
    }
    return fd;
}

void forward_clear(struct forward *f)
{
    if (f->fd >= 0)
        (void)close(f->fd);
    free(f->headers);
    free(f->text);
    f->fd = -1;
    f->headers = NULL;
    f->text = NULL;
}

static int send_all(struct forward *f, const char *data, size_t size,
                    int *begun)
{
    while (size > 0) {
        ssize_t n = send(f->fd, data, size, MSG_NOSIGNAL);

        if (n <= 0)
            return 0;
        *begun = 1;
        data += n;
        size -= (size_t)n;
    }
    return 1;
}

/* 1: there is more; 0: the connection has ended; -1: it broke, and `result`
 * says how. One byte of room for a NUL. */
static int more(struct forward *f)
{
    size_t room = f->room == 0 ? 65536 : 2 * f->room;
    ssize_t n;

    if (f->room - f->size < 4096) {
        char *text = room <= TEXT_LIMIT ? realloc(f->text, room) : NULL;

        f->result = FORWARD_BROKEN;
        if (text == NULL)
            return -1;
        f->text = text;
        f->room = room;
    }
    n = recv(f->fd, f->text + f->size, f->room - f->size - 1, 0);
    if (n < 0) {
        f->result = errno == EAGAIN ? FORWARD_TIMEOUT : FORWARD_BROKEN;
        return -1;
    }
    f->size += (size_t)n;
    f->text[f->size] = '\0';
    return n > 0;
}

/* ---- The head -------------------------------------------------------------- */

static int is_name(const char *at, size_t size)
{
    static const char chars[] = "!#$%&'*+-.^_`|~0123456789"
                                "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
                                "abcdefghijklmnopqrstuvwxyz";

    return size > 0 && strspn(at, chars) >= size;
}

static int parse_status(struct forward *f, const char *line)
{
    const char *at = line + 9;

    if (strncmp(line, "HTTP/1.", 7) != 0 || strlen(line) < 12 ||
        line[8] != ' ' || strspn(at, "0123456789") != 3)
        return 0;
    f->status = (int)strtol(at, NULL, 10);
    return f->status >= 100 && (at[3] == ' ' || at[3] == '\0');
}

static int parse_header(struct forward *f, char *line)
{
    char *colon = strchr(line, ':'), *value, *end;

    if (colon == NULL || !is_name(line, (size_t)(colon - line)) ||
        f->n == HEADERS_MAX)
        return 0;
    *colon = '\0';
    value = colon + 1 + strspn(colon + 1, " \t");
    end = value + strlen(value);
    while (end > value && (end[-1] == ' ' || end[-1] == '\t'))
        *--end = '\0';
    f->headers[f->n++] = (once_http_header){line, value};
    return 1;
}

/* Cuts the head, which ends at `end`, into strings. */
static int parse_head(struct forward *f, char *end)
{
    char *line = f->text, *next;

    if (strlen(f->text) < (size_t)(end - f->text))
        return 0; /* a NUL in it */
    f->headers = calloc(HEADERS_MAX, sizeof(*f->headers));
    if (f->headers == NULL)
        return 0;
    f->head = (size_t)(end - f->text) + 4;
    end[2] = '\0';
    for (; (next = strstr(line, "\r\n")) != NULL; line = next + 2) {
        *next = '\0';
        if (!(line == f->text ? parse_status(f, line) : parse_header(f, line)))
            return 0;
    }
    return 1;
}

static int read_head(struct forward *f)
{
    char *end;
    int got;

    do {
        got = more(f);
        if (got <= 0 || f->size > HEAD_MAX)
            return 0;
        end = memmem(f->text, f->size, "\r\n\r\n", 4);
    } while (end == NULL);
    return parse_head(f, end);
}

static const char *find(const struct forward *f, const char *name)
{
    size_t i;

    for (i = 0; i < f->n; i++)
        if (strcasecmp(f->headers[i].name, name) == 0)
            return f->headers[i].value;
    return NULL;
}

/* ---- The body -------------------------------------------------------------- */

/*
 * The head's strings must not move any more, so the body is read into memory of
 * its own: what has come of it already goes along.
 */
static int split_off(struct forward *f, struct forward *rest)
{
    *rest = (struct forward){.fd = f->fd, .result = FORWARD_BROKEN};
    rest->room = 65536 + f->size - f->head;
    rest->text = malloc(rest->room);
    if (rest->text == NULL)
        return 0;
    rest->size = f->size - f->head;
    memcpy(rest->text, f->text + f->head, rest->size);
    rest->text[rest->size] = '\0';
    return 1;
}

static int read_length(struct forward *rest, size_t length)
{
    while (rest->size < length)
        if (more(rest) <= 0)
            return 0;
    rest->size = length;
    return 1;
}

static int read_to_end(struct forward *rest)
{
    int got;

    while ((got = more(rest)) > 0)
        ;
    return got == 0;
}

/* A line that begins at `at`; its length without CRLF in `*length`. */
static int read_line(struct forward *rest, size_t at, size_t *length)
{
    for (;;) {
        char *end = rest->size > at
                        ? memmem(rest->text + at, rest->size - at, "\r\n", 2)
                        : NULL;

        if (end != NULL) {
            *length = (size_t)(end - rest->text) - at;
            return 1;
        }
        if (more(rest) <= 0)
            return 0;
    }
}

/* Decodes in place. */
static int read_chunks(struct forward *rest)
{
    size_t at = 0, out = 0, length;
    unsigned long size;

    do {
        size_t digits;

        if (!read_line(rest, at, &length))
            return 0;
        digits = strspn(rest->text + at, "0123456789abcdefABCDEF");
        if (digits < 1 || digits > 7 ||
            (digits != length && rest->text[at + digits] != ';'))
            return 0;
        size = strtoul(rest->text + at, NULL, 16);
        at += length + 2;
        while (size > 0 && rest->size < at + size + 2)
            if (more(rest) <= 0)
                return 0;
        memmove(rest->text + out, rest->text + at, size);
        out += size;
        at += size + (size > 0 ? 2 : 0);
    } while (size > 0);
    do { /* trailers */
        if (!read_line(rest, at, &length))
            return 0;
        at += length + 2;
    } while (length > 0);
    rest->size = out;
    return 1;
}

static int read_body(struct forward *f, struct forward *rest)
{
    const char *coding = find(f, "Transfer-Encoding");
    const char *length = find(f, "Content-Length");

    if (coding != NULL)
        return strcasecmp(coding, "chunked") == 0 && read_chunks(rest);
    if (length != NULL)
        return read_length(rest, strtoul(length, NULL, 10));
    return read_to_end(rest);
}

/* ---- All of it ------------------------------------------------------------- */

/* As few bytes of a stream as have come with its head. */
static int is_stream(const struct forward *f)
{
    const char *type = find(f, "Content-Type");

    return type != NULL && (strncasecmp(type, "text/event-stream", 17) == 0 ||
                            strncasecmp(type, "application/x-ndjson", 20) == 0);
}

static int exchange(struct forward *f, int no_body)
{
    struct forward rest;
    int ok;

    do { /* interim answers */
        free(f->headers);
        f->headers = NULL;
        f->n = 0;
        if (!read_head(f) || f->status == 101)
            return 0;
        if (f->status < 200) {
            f->size -= f->head;
            memmove(f->text, f->text + f->head, f->size);
        }
    } while (f->status < 200);
    if (is_stream(f)) {
        f->result = FORWARD_STREAM;
        f->body = f->text + f->head;
        f->body_size = f->size - f->head;
        return 1;
    }
    if (!split_off(f, &rest))
        return 0;
    ok = no_body || f->status == 204 || f->status == 304 || read_body(f, &rest);
    if (ok && (no_body || f->status == 204 || f->status == 304))
        rest.size = 0;
    f->body = rest.text;
    f->body_size = rest.size;
    f->result = ok ? FORWARD_WHOLE : rest.result;
    return 1;
}

void forward_run(struct forward *f, const char *request, size_t size,
                 uint64_t timeout_ms, int no_body)
{
    struct timeval t = {.tv_sec = (time_t)(timeout_ms / 1000),
                        .tv_usec = (suseconds_t)(timeout_ms % 1000) * 1000};
    int begun = 0;

    f->result = FORWARD_UNSENT;
    if (f->fd < 0 ||
        setsockopt(f->fd, SOL_SOCKET, SO_RCVTIMEO, &t, sizeof(t)) != 0)
        return;
    if (!send_all(f, request, size, &begun) && !begun)
        return;
    f->result = FORWARD_BROKEN;
    (void)exchange(f, no_body);
}
