/* SPDX-License-Identifier: Apache-2.0 */
/*
 * options.c - the options of `once serve`, for the program and for the command
 * line, which starts it.
 */
#include "programs/serve/options.h"

/* clang-format off */
const char serve_help[] =
    "usage: once serve --store URL [--listen WHERE] [--define NAME=FILE]...\n"
    "       once serve --check URL\n"
    "\n"
    "Keeps the contract of Idempotency-Key for services in any language: a\n"
    "middleware in the service asks it before the handler runs, and tells it the\n"
    "answer. docs/serve.md has the middlewares and the protocol.\n"
    "\n"
    "  --listen WHERE unix:PATH (unix:/run/once/serve.sock), 127.0.0.1:PORT,\n"
    "                 [::1]:PORT, or systemd; nothing else. Who may open the socket\n"
    "                 may read each answer of the store\n"
    "  --token-file FILE   on loopback: its first line is the bearer token\n"
    "  --define NAME=FILE   what a route is, as one JSON object, up to 100 times:\n"
    "                 programs say its name\n"
    "  --defined-only  a program may say nothing but such names\n"
    "  --realm TEXT   of routes that say none (once); never the client's Host\n"
    "  --max-open N   exchanges whose handlers run (100000)\n"
    "  --buffers SIZE bytes of answers in memory (256m)\n"
    "  --volatile     a store that a restart forgets is taken\n"
    "  --access-log   a line on standard output for each request\n"
    "  --check URL    asks a service whose handler is that of docs/serve.md, and\n"
    "                 tells whether its middleware keeps the contract\n"
    "\n"
    "It ends by SIGTERM, and does not wait for handlers: the next one takes their\n"
    "answers. See man once-serve.\n";

const struct cli_option serve_options[] = {
    CLI_STORE_OPTION,
    CLI_HELP_OPTION,
    {"listen", "127.0.0.1:0 systemd", .id = SERVE_OPT_LISTEN},
    {"token-file", CLI_FILES, .id = SERVE_OPT_TOKEN_FILE},
    {"define", "", .id = SERVE_OPT_ROUTE},
    {"defined-only", NULL, .id = SERVE_OPT_ROUTES_ONLY},
    {"realm", "", .id = SERVE_OPT_REALM},
    {"max-open", "", .id = SERVE_OPT_MAX_OPEN},
    {"buffers", "", .id = SERVE_OPT_BUFFERS},
    {"volatile", NULL, .id = SERVE_OPT_VOLATILE},
    {"access-log", NULL, .id = SERVE_OPT_LOG},
    {"check", "", .id = SERVE_OPT_CHECK},
    {.name = NULL},
};
/* clang-format on */
