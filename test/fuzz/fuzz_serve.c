/* SPDX-License-Identifier: Apache-2.0 */
/* fuzz_serve.c - the head of a message to `once serve`: any bytes are read, or
 * refused with a reason. What is read has no line end within a line and no more
 * lines than are allowed, each text is shorter than the head, and a route that is
 * taken can be taken again. */
#include "fuzz.h"

#include "programs/serve/serve.h"

static struct serve server;
static const struct cli_command command = {.name = "serve"};
static const struct cli cli = {.command = &command};

static void start(void)
{
    once_engine_options o = ONCE_ENGINE_OPTIONS_INIT;

    if (server.engine != NULL)
        return;
    json_object_seed(1);
    server.cli = &cli;
    MUST(once_engine_open("memory:", &o, NULL, &server.engine) == ONCE_OK);
}

static void is_line(const char *text)
{
    MUST(text != NULL && strpbrk(text, "\r\n") == NULL);
}

/* What a begin reads of its head. */
static void read_all(struct serve_call *k)
{
    size_t i;

    serve_head_read(k);
    if (k->refused != 0)
        return;
    (void)serve_head_id(k);
    (void)serve_head_bytes(k, "method");
    (void)serve_head_bytes(k, "target");
    serve_head_lines(k);
    (void)serve_head_text(k, "scope");
    k->key = serve_head_text(k, "key");
    k->fingerprint = serve_head_text(k, "fingerprint");
    MUST(k->used <= k->n_head);
    MUST(k->n_lines <= SERVE_LINES_MAX);
    for (i = 0; i < k->n_lines && k->refused == 0; i++) {
        is_line(k->lines[i].name);
        is_line(k->lines[i].value);
    }
    k->refused = 0;
    k->route = serve_route_of(k);
    MUST((k->route == NULL) == (k->refused != 0));
    if (k->route != NULL)
        MUST(serve_route_of(k) == k->route);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct serve_call k = {.serve = &server};

    start();
    k.head = (char *)exact(data, size);
    k.n_head = size;
    read_all(&k);
    MUST(k.refused == 0 || (k.why[0] != '\0' && k.error != NULL));
    json_decref(k.json);
    free(k.lines);
    free(k.text);
    free(k.head);
    if (server.n_routes > SERVE_ROUTES_MAX / 2) {
        serve_route_clear(&server);
        server.n_routes = 0;
    }
    return 0;
}
