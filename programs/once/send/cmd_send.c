/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cmd_send.c - `once send`: an order over HTTP until its outcome is known.
 *
 * The retrying client (once/client.h) for the shell: one order, one key, kept
 * in a file before the first byte leaves, so that the same line again, also
 * after a crash, is the same order. The answer's body goes to stdout, all else
 * to stderr. It never prints a key, a header's value or a URL.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "programs/once/run/run.h"
#include "programs/once/send/headers.h"

enum send_exit { SEND_MISMATCH = 65, SEND_UNKNOWN = 75 };

/* clang-format off */
static const char help[] =
    "usage: once send METHOD URL --order ID [--data @FILE] [--header @FILE] ...\n"
    "       once send --resume [--order ID]\n"
    "       once send --forget --order ID [--force]\n"
    "       once send --purge TIME\n"
    "\n"
    "Sends an order until its outcome is known, always with the same key. The key\n"
    "and the request are kept in a file before the first byte leaves: the same line\n"
    "again, also after a crash, is the same order. Writes the answer's body.\n"
    "\n"
    "  --order ID           your own id of the order, 1 to 255 bytes\n"
    "  --group G            whose ids these are, 1 to 32 characters (default)\n"
    "  --data @FILE|TEXT    the body; @- is the standard input\n"
    "  --header @FILE|LINE  'Name: value', or a file with such lines; in a file it\n"
    "                       is not seen by others who list processes\n"
    "  --secret @FILE|LINE  the same, but never kept, as Authorization and Cookie\n"
    "                       never are\n"
    "  --lookup URL         ask there before giving up (a gateway's once_lookup)\n"
    "  --deadline TIME      give up after so long: 90s, 15m, 24h (60s)\n"
    "  --client-store PATH  the file of orders (ONCE_CLIENT_STORE, or client.db in\n"
    "                       ~/.local/state/once)\n"
    "  --ca FILE            certificates to trust instead of the system's\n"
    "  --ask-refused        ask again about an order that was refused\n"
    "  --resume             send what is kept: this order, or all unfinished ones\n"
    "  --list               show the unfinished ones, oldest first\n"
    "  --forget             forget an order that was provably not done; --force:\n"
    "                       any. --purge TIME: those that ended so long ago\n"
    "  --json               one object a line instead of the body\n"
    "\n"
    "Exit status: 0 it took effect; 1 it did not; 2 wrong usage; 3 the file; 65 the\n"
    "id is kept with another request, nothing was sent; 75 unknown: it may have.\n"
    "After 75 and after a kill run the same line again; never take another id.\n";
/* clang-format on */

enum {
    OPT_HEADER = 1,
    OPT_SECRET,
    OPT_RESUME,
    OPT_LIST,
    OPT_FORGET,
    OPT_PURGE
};

struct send {
    struct cli *c;
    once_client *client;
    once_client_request request;
    const char *order, *data, *path, *ca;
    uint64_t deadline_ms, purge_ms;
    int mode; /* OPT_RESUME, OPT_LIST, OPT_FORGET, OPT_PURGE, or 0: send */
    int force;
    int rc; /* of several orders, the worst */
    struct send_headers headers;
};

static const struct cli_option options[] = {
    {"order", "", CLI_AT(CLI_TEXT, struct send, order)},
    {"group", "", CLI_AT(CLI_TEXT, struct send, request.group)},
    {"data", "", CLI_AT(CLI_TEXT, struct send, data)},
    {"header", "", .id = OPT_HEADER},
    {"secret", "", .id = OPT_SECRET},
    {"lookup", "", CLI_AT(CLI_TEXT, struct send, request.lookup)},
    {"deadline", "", CLI_AT(CLI_TIME, struct send, deadline_ms)},
    {"client-store", CLI_FILES, CLI_AT(CLI_TEXT, struct send, path)},
    {"ca", CLI_FILES, CLI_AT(CLI_TEXT, struct send, ca)},
    {"ask-refused", NULL, CLI_AT(CLI_FLAG, struct send, request.ask_refused)},
    {"resume", NULL, .id = OPT_RESUME},
    {"list", NULL, .id = OPT_LIST},
    {"forget", NULL, .id = OPT_FORGET},
    {"force", NULL, CLI_AT(CLI_FLAG, struct send, force)},
    {"purge", "", .id = OPT_PURGE},
    CLI_JSON_OPTION,
    CLI_HELP_OPTION,
    {.name = NULL},
};

/* ---- The command line --------------------------------------------------- */

static int set_mode(struct send *s, int mode)
{
    if (s->mode != 0 && s->mode != mode)
        return cli_usage(s->c, "one of --resume, --list, --forget and --purge");
    s->mode = mode;
    return CLI_OK;
}

static int take(const struct cli *c, void *user, int o)
{
    struct send *s = user;
    int rc;

    switch (o) {
    case OPT_HEADER:
        return send_headers_add(c, &s->headers, optarg, 0);
    case OPT_SECRET:
        return send_headers_add(c, &s->headers, optarg, ONCE_CLIENT_SECRET);
    case OPT_PURGE:
        rc = set_mode(s, o);
        return rc == CLI_OK ? cli_read_time(c, "--purge", optarg, &s->purge_ms)
                            : rc;
    default:
        return set_mode(s, o);
    }
}

static int check_args(struct send *s, int argc, char **argv)
{
    int operands = argc - optind;

    if (s->mode != 0 && (operands > 0 || s->data != NULL))
        return cli_usage(s->c, "a request and --resume, --list, --forget or "
                               "--purge do not go together");
    if (s->mode == 0 && operands != 2)
        return cli_usage(s->c, "takes a method and a URL: POST https://...");
    if (s->order == NULL && (s->mode == 0 || s->mode == OPT_FORGET))
        return cli_usage(s->c, "which order? Say --order ID");
    if (s->force && s->mode != OPT_FORGET)
        return cli_usage(s->c, "--force goes with --forget");
    if (s->deadline_ms > ONCE_CLIENT_DEADLINE_MAX_MS)
        return cli_usage(s->c, "--deadline is at most 7d");
    s->request.deadline_ms = (uint32_t)s->deadline_ms;
    s->request.headers = s->headers.at;
    s->request.n_headers = s->headers.n;
    if (s->order != NULL) {
        s->request.order.data = s->order;
        s->request.order.size = strlen(s->order);
    }
    if (operands == 2) {
        s->request.method = argv[optind];
        s->request.url = argv[optind + 1];
    }
    return CLI_OK;
}

static int read_body(struct send *s)
{
    if (s->data == NULL)
        return CLI_OK;
    if (s->data[0] == '@')
        return cli_read_file(s->c, s->data + 1, ONCE_CLIENT_BODY_MAX,
                             &s->request.body);
    s->request.body.data = s->data;
    s->request.body.size = strlen(s->data);
    return CLI_OK;
}

/* ---- What is said ------------------------------------------------------- */

static int exit_of(int outcome)
{
    switch (outcome) {
    case ONCE_CLIENT_DONE:
        return CLI_OK;
    case ONCE_CLIENT_NOT_DONE:
        return CLI_NO;
    case ONCE_CLIENT_MISMATCH:
        return SEND_MISMATCH;
    default:
        return SEND_UNKNOWN;
    }
}

static const char *name_of(int outcome)
{
    static const char *const names[] = {"", "done", "not-done", "unknown",
                                        "mismatch"};

    return names[outcome];
}

/* The same request is wanted elsewhere, so it was not carried out here. */
static int is_moved(int status)
{
    return status == 301 || status == 307 || status == 308;
}

static const char *advice(const once_client_result *r)
{
    if (r->outcome == ONCE_CLIENT_NOT_DONE && is_moved(r->status))
        return "The server redirects, and redirects are not followed: send a "
               "new order to the new URL";
    switch (r->outcome) {
    case ONCE_CLIENT_MISMATCH:
        return "Send what was kept with --resume, or take the right id";
    case ONCE_CLIENT_NOT_DONE:
        return r->final ? "It stays so; --ask-refused asks once more"
                        : "The same line again sends it again, same key";
    case ONCE_CLIENT_UNKNOWN:
        return r->reason == ONCE_CLIENT_TOO_OLD
                   ? "Find out from the service, then --forget --force it"
                   : "Run the same line again; do not send it as a new order";
    default:
        return NULL;
    }
}

static int say_result(const struct send *s, const once_client_result *r)
{
    const char *next = advice(r);

    if (r->outcome != ONCE_CLIENT_DONE || r->reason == ONCE_CLIENT_ANSWER_LOST)
        cli_say(s->c, 0, "%s: %s (%s; key %s)", name_of(r->outcome),
                once_client_text(r->reason), r->text, r->key_hash);
    if (next != NULL)
        fprintf(stderr, "%s.\n", next);
    if (r->unkept)
        cli_say(s->c, 0,
                "the file of orders could not be written; the same line again "
                "asks the server for the answer");
    return exit_of(r->outcome);
}

static int print_json(const struct send *s, once_bytes order,
                      const once_client_result *r)
{
    json_t *o =
        json_pack("{s:o, s:s, s:s, s:i, s:b, s:b, s:b, s:i, s:i, s:s, s:o}",
                  "order", cli_json_text(order), "outcome", name_of(r->outcome),
                  "reason", once_client_text(r->reason), "status", r->status,
                  "replayed", r->replayed, "kept", r->kept, "final", r->final,
                  "attempts", (int)r->attempts, "doubt", (int)r->doubt,
                  "key_hash", r->key_hash, "body", cli_json_text(r->body));
    int rc = cli_print_json(s->c, o);

    return rc == CLI_OK ? exit_of(r->outcome) : rc;
}

/* The body as it came. With --resume of all orders nothing shows where one body
 * ends: a line for each order is printed instead. */
static int print_result(const struct send *s, once_bytes order,
                        const once_client_result *r)
{
    if (s->c->json)
        return print_json(s, order, r);
    if (s->mode == OPT_RESUME && s->order == NULL) {
        cli_print_text(stdout, order);
        printf("\t%s\t%s\n", name_of(r->outcome), once_client_text(r->reason));
    } else if (r->body.size > 0 &&
               fwrite(r->body.data, 1, r->body.size, stdout) != r->body.size) {
        return cli_say(s->c, CLI_STORE,
                       "stdout: not all of it could be written; the order is "
                       "%s",
                       name_of(r->outcome));
    }
    return say_result(s, r);
}

static int trouble(const struct send *s, int code, const once_error *err)
{
    cli_say(s->c, 0, "%s", err->text[0] ? err->text : once_text(code));
    if (code == ONCE_EINVAL || code == ONCE_ELIMIT)
        return CLI_USAGE;
    fputs("Nothing was sent. Check the file of orders and its folder.\n",
          stderr);
    return CLI_STORE;
}

/* ---- What is done ------------------------------------------------------- */

static int send_one(struct send *s)
{
    once_client_result r = ONCE_CLIENT_RESULT_INIT;
    once_error err = {0, ""};
    int rc = once_client_send(s->client, &s->request, &r, &err);

    rc = rc < 0 ? trouble(s, rc, &err) : print_result(s, s->request.order, &r);
    once_client_result_clear(&r);
    return rc;
}

static int resume_one(void *user, const once_client_order *order)
{
    struct send *s = user;
    int rc;

    s->request.group = order->group;
    s->request.order = order->order;
    rc = send_one(s);
    if (rc != CLI_OK && (s->rc == CLI_OK || rc == SEND_UNKNOWN))
        s->rc = rc;
    return rc == CLI_STORE;
}

static const char *state_name(int state)
{
    switch (state) {
    case ONCE_CLIENT_PREPARED:
        return "prepared";
    case ONCE_CLIENT_SENT:
        return "sent";
    default:
        return "unknown";
    }
}

static int list_one(void *user, const once_client_order *o)
{
    struct send *s = user;
    char created[CLI_TIME_SIZE];

    cli_time(o->created_ms, created);
    if (s->c->json) {
        json_t *line = json_pack(
            "{s:s, s:o, s:s, s:i, s:i, s:s, s:s, s:s}", "group", o->group,
            "order", cli_json_text(o->order), "state", state_name(o->state),
            "attempts", (int)o->attempts, "doubt", (int)o->doubt, "created",
            created, "method", o->method, "key_hash", o->key_hash);

        s->rc = cli_print_json(s->c, line);
        return s->rc != CLI_OK;
    }
    printf("%s\t", o->group);
    cli_print_text(stdout, o->order);
    printf("\t%s\t%u\t%u\t%s\t%s\t%s\n", state_name(o->state),
           (unsigned)o->attempts, (unsigned)o->doubt, created, o->method,
           o->key_hash);
    return 0;
}

static int forget(struct send *s)
{
    once_error err = {0, ""};
    int rc = once_client_forget(s->client, s->request.group, s->request.order,
                                s->force, &err);

    if (rc < 0)
        return trouble(s, rc, &err);
    if (rc == ONCE_REFUSED)
        return cli_say(s->c, CLI_NO,
                       "it was done, or may have been: its id would get a new "
                       "key. --force forgets it all the same");
    return CLI_OK;
}

static int purge(struct send *s)
{
    once_error err = {0, ""};
    uint64_t n = 0;
    int rc = once_client_purge(s->client, s->purge_ms, &n, &err);

    if (rc < 0)
        return trouble(s, rc, &err);
    printf("%llu\n", (unsigned long long)n);
    return CLI_OK;
}

static int each(struct send *s, once_client_each *what)
{
    once_error err = {0, ""};
    int rc = once_client_resume(s->client, what, s, &err);

    return rc < 0 ? trouble(s, rc, &err) : s->rc;
}

static int go(struct send *s)
{
    switch (s->mode) {
    case OPT_LIST:
        return each(s, list_one);
    case OPT_FORGET:
        return forget(s);
    case OPT_PURGE:
        return purge(s);
    case OPT_RESUME:
        return s->order == NULL ? each(s, resume_one) : send_one(s);
    default:
        return send_one(s);
    }
}

/* ---- The file ----------------------------------------------------------- */

/* The path of the user's own file: free() it. NULL and errno. */
static char *own_path(void)
{
    char *folder = run_state_folder(), *path = NULL;

    if (folder != NULL && asprintf(&path, "%s/client.db", folder) < 0) {
        path = NULL;
        errno = ENOMEM;
    }
    free(folder);
    return path;
}

static int open_client(struct send *s)
{
    once_client_options o = ONCE_CLIENT_OPTIONS_INIT;
    once_error err = {0, ""};
    char *own = NULL;
    int rc;

    if (s->path == NULL)
        s->path = getenv("ONCE_CLIENT_STORE");
    if (s->path == NULL || s->path[0] == '\0')
        s->path = own = own_path();
    if (s->path == NULL)
        return cli_say(s->c, CLI_STORE,
                       "no folder for the file of orders: %s; say "
                       "--client-store PATH",
                       strerror(errno));
    o.ca_file = s->ca;
    rc = once_client_open(s->path, &o, &err, &s->client);
    free(own);
    return rc < 0 ? trouble(s, rc, &err) : CLI_OK;
}

static int run(struct cli *c, int argc, char **argv)
{
    struct send s = {.c = c, .request = ONCE_CLIENT_REQUEST_INIT};
    int rc = cli_read_args(c, argc, argv, take, &s);

    if (rc == CLI_OK)
        rc = check_args(&s, argc, argv);
    if (rc == CLI_OK)
        rc = read_body(&s);
    if (rc == CLI_OK)
        rc = open_client(&s);
    if (rc == CLI_OK)
        rc = go(&s);
    once_client_close(s.client);
    if (s.data != NULL && s.data[0] == '@')
        free((void *)(uintptr_t)s.request.body.data);
    send_headers_free(&s.headers);
    return rc;
}

const struct cli_command cli_cmd_send = {
    "send", "send a request until its outcome is known", help, options, NULL,
    run};
