/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cmd_relay.c - `once messages relay`: carries the rows of a program's outbox
 * to where they go, until it is told to stop.
 *
 * All it adds to once/relay.h is a command line, signals and standard error. A
 * secret has no place in a command line, which every user of the host can read:
 * it stands in a file that a path names.
 */
#include "programs/once/cli.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <sys/signalfd.h>

#include <once/relay.h>

#include "programs/once/messages/base.h"

/* clang-format off */
static const char help[] =
    "usage: once messages relay --to ROUTE=TARGET [OPTION ...] [--to ...]\n"
    "\n"
    "Carries rows of the outbox in a program's database, postgres://..., mysql://...\n"
    "or sqlite:FILE, to their targets until SIGTERM. It waits for what is away.\n"
    "\n"
    "  --to ROUTE=TARGET  amqp://... nats://... redis://... kafka://... http://... or\n"
    "                     'exec:PROGRAM ARGUMENT ...'. @FILE: read it from a file, as\n"
    "                     everybody can read a command line, and a password in it\n"
    "  --database URL     of the program; or ONCE_DATABASE\n"
    "  --lease TIME       how long a row stays with a relay that was lost (30s)\n"
    "  --drain            end when nothing is left that could be sent\n"
    "  --check            carry nothing: say whether database and targets are ready\n"
    "  --metrics FILE     for Prometheus, replaced every ten seconds\n"
    "\n"
    "Of the route before them:\n"
    "  --hold           the target knows no repeats: what is in doubt stays so\n"
    "  --no-hold        exec: the command knows ONCE_ID: what is in doubt is repeated\n"
    "  --pass           a dead row does not keep the later rows of its key waiting\n"
    "  --workers N      batches side by side (1; http: 8)\n"
    "  --batch N        rows claimed at once (500; with --hold, http: and exec: 1)\n"
    "  --attempts N     refusals that make a row dead (10)\n"
    "  --timeout TIME   for a connection, and for a proof (10s)\n"
    "  --headers FILE   http: lines \"Name: value\" to be sent along\n"
    "  --ca FILE        TLS: certificates to trust (the system's)\n"
    "Status 1: drained; dead, indeterminate or unattended rows or sagas are left.\n";
/* clang-format on */

enum {
    OPT_TO = 1,
    OPT_HOLD,
    OPT_NO_HOLD,
    OPT_PASS,
    OPT_WORKERS,
    OPT_BATCH,
    OPT_ATTEMPTS,
    OPT_TIMEOUT,
    OPT_HEADERS,
    OPT_CA
};

struct args {
    once_relay_options o;
    once_route routes[ONCE_ROUTES_MAX];
    size_t n;
    char *memory[3 * ONCE_ROUTES_MAX]; /* names, URLs, headers */
    size_t n_memory;
};

static const struct cli_option options[] = {
    CLI_DATABASE_OPTION,
    CLI_HELP_OPTION,
    {"to", "", .id = OPT_TO},
    {"lease", "", CLI_AT(CLI_MS, struct args, o.lease_ms)},
    {"drain", NULL, CLI_AT(CLI_FLAG, struct args, o.drain)},
    {"check", NULL, CLI_AT(CLI_FLAG, struct args, o.check)},
    {"metrics", CLI_FILES, CLI_AT(CLI_TEXT, struct args, o.metrics)},
    {"hold", NULL, .id = OPT_HOLD},
    {"no-hold", NULL, .id = OPT_NO_HOLD},
    {"pass", NULL, .id = OPT_PASS},
    {"workers", "", .id = OPT_WORKERS},
    {"batch", "", .id = OPT_BATCH},
    {"attempts", "", .id = OPT_ATTEMPTS},
    {"timeout", "", .id = OPT_TIMEOUT},
    {"headers", CLI_FILES, .id = OPT_HEADERS},
    {"ca", CLI_FILES, .id = OPT_CA},
    {.name = NULL},
};

/* ---- Routes -------------------------------------------------------------- */

/* Keeps `text` until the command ends. NULL: no memory. */
static char *keep(struct args *a, char *text)
{
    if (text != NULL)
        a->memory[a->n_memory++] = text;
    return text;
}

static int take_route(const struct cli *c, struct args *a, const char *text)
{
    const char *equals = strchr(text, '=');
    once_route *route = &a->routes[a->n];
    char *secret = NULL;
    int rc;

    if (equals == NULL || equals == text || equals[1] == '\0')
        return cli_usage(c, "--to takes ROUTE=TARGET");
    if (a->n == ONCE_ROUTES_MAX)
        return cli_usage(c, "%d routes at most", ONCE_ROUTES_MAX);
    *route = (once_route)ONCE_ROUTE_INIT;
    route->name = keep(a, strndup(text, (size_t)(equals - text)));
    route->url = equals + 1;
    if (route->name == NULL)
        return cli_say(c, CLI_STORE, "out of memory");
    a->n++;
    rc = cli_read_secret(c, route->name, route->url, &route->url, &secret);
    (void)keep(a, secret);
    return rc;
}

static int take_headers(const struct cli *c, struct args *a, once_route *route)
{
    once_bytes bytes = {NULL, 0};
    const char *data;
    char *text;
    int rc;

    if (route->headers != NULL)
        return cli_usage(c, "--headers once for each route");
    rc = cli_read_file(c, optarg, CLI_SECRET_MAX, &bytes);
    if (rc != CLI_OK)
        return rc;
    data = bytes.data;
    text = keep(a, malloc(bytes.size + 2)); /* "\n" may be missing */
    if (text != NULL) {
        memcpy(text, data, bytes.size);
        text[bytes.size] = '\0';
        if (bytes.size > 0 && data[bytes.size - 1] != '\n')
            memcpy(text + bytes.size, "\n", 2);
    }
    free((void *)(uintptr_t)bytes.data);
    route->headers = text;
    return text != NULL ? CLI_OK : cli_say(c, CLI_STORE, "out of memory");
}

static int take_of_route(const struct cli *c, struct args *a, int o)
{
    once_route *route;

    if (a->n == 0)
        return cli_usage(c, "options of a route come after its --to");
    route = &a->routes[a->n - 1];
    switch (o) {
    case OPT_HOLD:
        route->hold = 1;
        return CLI_OK;
    case OPT_NO_HOLD:
        route->no_hold = 1;
        return CLI_OK;
    case OPT_PASS:
        route->pass = 1;
        return CLI_OK;
    case OPT_WORKERS:
        return cli_read_u32(c, "--workers", optarg, ONCE_WORKERS_MAX,
                            &route->workers);
    case OPT_BATCH:
        return cli_read_u32(c, "--batch", optarg, 10000, &route->batch);
    case OPT_ATTEMPTS:
        return cli_read_u32(c, "--attempts", optarg, 1000000, &route->attempts);
    case OPT_TIMEOUT:
        return cli_read_ms(c, "--timeout", optarg, &route->timeout_ms);
    case OPT_HEADERS:
        return take_headers(c, a, route);
    default:
        route->ca_file = optarg;
        return CLI_OK;
    }
}

static int take(const struct cli *c, void *user, int o)
{
    return o == OPT_TO ? take_route(c, user, optarg)
                       : take_of_route(c, user, o);
}

/* ---- The command --------------------------------------------------------- */

/* One call, so that lines of several threads do not mix. */
static void say(void *user, const char *text)
{
    (void)user;
    fprintf(stderr, "once messages relay: %s\n", text);
}

static int status_of(const struct cli *c, int rc, const once_error *err)
{
    if (rc == ONCE_OK)
        return CLI_OK;
    if (rc == ONCE_DEAD)
        return cli_say(c, CLI_NO,
                       "dead, indeterminate or unattended rows, or stuck "
                       "sagas, are left: once messages outbox ls, once "
                       "messages saga ls stuck");
    if (rc == ONCE_EURL) /* not one of a store, as cli_trouble() would say */
        return cli_usage(c, "%s", err->text);
    return cli_trouble(c, rc, err);
}

static int relay(const struct cli *c, struct args *a)
{
    once_error err = {0, ""};
    sigset_t signals;
    int rc;

    (void)signal(SIGPIPE, SIG_IGN);
    /* Or nobody would be told how a command ended. */
    (void)signal(SIGCHLD, SIG_DFL);
    (void)sigemptyset(&signals);
    (void)sigaddset(&signals, SIGINT);
    (void)sigaddset(&signals, SIGTERM);
    (void)sigprocmask(SIG_BLOCK, &signals, NULL);
    a->o.stop_fd = signalfd(-1, &signals, SFD_CLOEXEC);
    if (a->o.stop_fd < 0)
        return cli_say(c, CLI_STORE, "no descriptor for signals");
    a->o.from = cli_database(c);
    a->o.routes = a->routes;
    a->o.n = a->n;
    a->o.log = say;
    rc = once_relay(&a->o, &err);
    (void)close(a->o.stop_fd);
    return status_of(c, rc, &err);
}

static int run(struct cli *c, int argc, char **argv)
{
    struct args *a = calloc(1, sizeof(*a));
    int rc;

    if (a == NULL)
        return cli_say(c, CLI_STORE, "out of memory");
    a->o = (once_relay_options)ONCE_RELAY_OPTIONS_INIT;
    rc = cli_read_args(c, argc, argv, take, a);
    if (rc == CLI_OK)
        rc = cli_no_operands(c, argc, ": quote an exec: target");
    if (rc == CLI_OK && a->n == 0)
        rc = cli_usage(c, "say where to, with --to ROUTE=TARGET");
    if (rc == CLI_OK && cli_database(c) == NULL)
        rc = cli_which_database(c);
    if (rc == CLI_OK)
        rc = relay(c, a);
    while (a->n_memory > 0)
        free(a->memory[--a->n_memory]);
    free(a);
    return rc;
}

const struct cli_command cli_cmd_relay = {
    "messages relay",
    "carry rows of an outbox to their targets",
    help,
    options,
    NULL,
    run};
