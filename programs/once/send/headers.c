/* SPDX-License-Identifier: Apache-2.0 */
/*
 * headers.c - lines of headers from the command line and from files. What
 * stands in a file is not seen by others who list processes.
 */
#include "programs/once/send/headers.h"

#include <stdlib.h>
#include <string.h>
#include <strings.h>

enum { HEADER_FILE_MAX = 65536 };

/* "Name: value", which is cut in place. */
static int add_header(const struct cli *c, struct send_headers *h, char *line,
                      uint32_t flags)
{
    char *colon = strchr(line, ':'), *value;
    once_client_header *to = &h->at[h->n];

    if (h->n == ONCE_CLIENT_HEADERS_MAX)
        return cli_usage(c, "more than %zu headers", ONCE_CLIENT_HEADERS_MAX);
    if (colon == NULL || colon == line)
        return cli_usage(c, "a header looks like 'Name: value'");
    *colon = '\0';
    value = colon + 1 + strspn(colon + 1, " \t");
    to->name = line;
    to->value = value;
    to->flags = flags;
    h->n++;
    return CLI_OK;
}

static int add_lines(const struct cli *c, struct send_headers *h, char *text,
                     uint32_t flags)
{
    int rc = CLI_OK;

    while (*text != '\0' && rc == CLI_OK) {
        size_t size = strcspn(text, "\n"), end = size;
        char *next = text + size + (text[size] == '\n');

        if (end > 0 && text[end - 1] == '\r')
            end--;
        text[end] = '\0';
        if (end > 0)
            rc = add_header(c, h, text, flags);
        text = next;
    }
    return rc;
}

static int no_room(const struct cli *c)
{
    return cli_usage(c, "more than %zu header options",
                     ONCE_CLIENT_HEADERS_MAX);
}

/* Those that the client library keeps from its store. */
static int is_secret(const once_client_header *h)
{
    return (h->flags & ONCE_CLIENT_SECRET) != 0 ||
           strcasecmp(h->name, "Authorization") == 0 ||
           strcasecmp(h->name, "Cookie") == 0 ||
           strcasecmp(h->name, "Proxy-Authorization") == 0;
}

int send_headers_add(const struct cli *c, struct send_headers *h,
                     const char *text_or_file, uint32_t flags)
{
    once_bytes file = {NULL, 0};
    char *text;
    int rc;

    if (h->n_memory == ONCE_CLIENT_HEADERS_MAX)
        return no_room(c);
    if (text_or_file[0] == '@') {
        rc = (flags & ONCE_CLIENT_SECRET) != 0
                 ? cli_check_secret(c, text_or_file + 1)
                 : CLI_OK;
        if (rc == CLI_OK)
            rc = cli_read_file(c, text_or_file + 1, HEADER_FILE_MAX, &file);
        if (rc != CLI_OK)
            return rc;
        text = (char *)(uintptr_t)file.data;
        h->memory[h->n_memory++] = text;
        return add_lines(c, h, text, flags);
    }
    text = strdup(text_or_file);
    if (text == NULL)
        return cli_say(c, CLI_STORE, "out of memory");
    h->memory[h->n_memory++] = text;
    rc = add_header(c, h, text, flags);
    if (rc == CLI_OK && is_secret(&h->at[h->n - 1]))
        cli_say(c, 0,
                "%s: everybody on this host can read this header; put it into "
                "a file and say @FILE",
                h->at[h->n - 1].name);
    return rc;
}

void send_headers_free(struct send_headers *h)
{
    while (h->n_memory > 0)
        free(h->memory[--h->n_memory]);
}
