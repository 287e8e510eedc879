/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cmd_lookup.c - `once lookup`: asks a status resource of the gateway what
 * became of the request with a key (docs/http.md, section 10). It changes
 * nothing, here or there. It never prints a key, a header's value or a URL.
 */
#include <stdlib.h>

#include <jansson.h>

#include "programs/once/send/headers.h"

enum { LOOKUP_UNKNOWN = 75, KEY_MAX = 255, TIMEOUT_MAX_MS = 660000 };

/* clang-format off */
static const char help[] =
    "usage: once lookup URL --key-file FILE [--header @FILE] [--secret @FILE]\n"
    "                   [--json]\n"
    "\n"
    "Asks the gateway what became of the request with this key: absent, in-flight,\n"
    "completed or indeterminate. Changes nothing. absent is no leave to take another\n"
    "key, since the request may still be on its way: send it with the same one.\n"
    "\n"
    "  --key-file FILE      the key; - is the standard input\n"
    "  --header @FILE|LINE  'Name: value', or a file with such lines; in a file it\n"
    "                       is not seen by others who list processes\n"
    "  --secret @FILE|LINE  the same\n"
    "  --timeout TIME       of the whole question: 90s, 5m (15s); URL?wait=10s\n"
    "                       waits at the gateway while the request is in flight\n"
    "  --ca FILE            certificates to trust instead of the system's\n"
    "  --json               the gateway's document, in one line\n"
    "\n"
    "Exit status: 0 completed; 1 absent; 2 wrong usage; 3 a file; 75 in flight,\n"
    "indeterminate, or no answer that tells.\n";
/* clang-format on */

enum { OPT_HEADER = 1, OPT_SECRET };

struct lookup {
    const char *key_file;
    uint64_t timeout_ms;
    once_client_question question;
    struct send_headers headers;
};

static const struct cli_option options[] = {
    {"key-file", CLI_FILES, CLI_AT(CLI_TEXT, struct lookup, key_file)},
    {"header", "", .id = OPT_HEADER},
    {"secret", "", .id = OPT_SECRET},
    {"timeout", "", CLI_AT(CLI_TIME, struct lookup, timeout_ms)},
    {"ca", CLI_FILES, CLI_AT(CLI_TEXT, struct lookup, question.ca_file)},
    CLI_JSON_OPTION,
    CLI_HELP_OPTION,
    {.name = NULL},
};

static int take(const struct cli *c, void *user, int option)
{
    struct lookup *l = user;

    return send_headers_add(c, &l->headers, optarg,
                            option == OPT_SECRET ? ONCE_CLIENT_SECRET : 0);
}

/* One line break at a file's end is an editor's. */
static int read_key(const struct cli *c, struct lookup *l)
{
    once_bytes *key = &l->question.key;
    int rc = cli_read_file(c, l->key_file, KEY_MAX + 1, key);
    const char *data = key->data;

    if (rc == CLI_OK && key->size > 0 && data[key->size - 1] == '\n')
        key->size--;
    return rc;
}

static int check_args(const struct cli *c, struct lookup *l, int argc,
                      char **argv)
{
    if (argc - optind != 1)
        return cli_usage(c, "takes the URL of a lookup: https://...");
    if (l->key_file == NULL)
        return cli_usage(c, "which key? Say --key-file FILE");
    if (l->timeout_ms > TIMEOUT_MAX_MS)
        return cli_usage(c, "--timeout is at most 11m");
    l->question.url = argv[optind];
    l->question.timeout_ms = (uint32_t)l->timeout_ms;
    l->question.headers = l->headers.at;
    l->question.n_headers = l->headers.n;
    return CLI_OK;
}

static int exit_of(int state)
{
    return state == ONCE_CLIENT_TOLD_COMPLETED ? CLI_OK
           : state == ONCE_CLIENT_TOLD_ABSENT  ? CLI_NO
                                               : LOOKUP_UNKNOWN;
}

/* A line for each member that is known. */
static void print_lines(const json_t *document)
{
    const char *name;
    const json_t *value;

    json_object_foreach((json_t *)(uintptr_t)document, name, value)
    {
        if (json_is_string(value)) {
            printf("%-16s ", name);
            cli_print_text(stdout, cli_bytes(json_string_value(value)));
            putchar('\n');
        } else if (json_is_integer(value)) {
            printf("%-16s %lld\n", name, (long long)json_integer_value(value));
        }
    }
}

static int print(const struct cli *c, const once_client_told *told)
{
    json_t *document = json_loadb(told->body.data, told->body.size,
                                  JSON_REJECT_DUPLICATES, NULL);
    int rc = CLI_OK;

    if (c->json)
        rc = cli_print_json(c, document);
    else {
        print_lines(document);
        json_decref(document);
    }
    return rc == CLI_OK ? exit_of(told->state) : rc;
}

static int ask(const struct cli *c, struct lookup *l)
{
    once_client_told told = ONCE_CLIENT_TOLD_INIT;
    once_error err = {0, ""};
    int rc = once_client_lookup(&l->question, &told, &err);

    if (rc != ONCE_OK)
        rc = cli_say(c, rc == ONCE_ENOMEM ? CLI_STORE : CLI_USAGE, "%s",
                     err.text);
    else if (told.state == ONCE_CLIENT_TOLD_NOTHING)
        rc = cli_say(c, LOOKUP_UNKNOWN, "it is not known: %s", told.text);
    else
        rc = print(c, &told);
    once_client_told_clear(&told);
    return rc;
}

static int run(struct cli *c, int argc, char **argv)
{
    struct lookup l = {.question = ONCE_CLIENT_QUESTION_INIT};
    int rc = cli_read_args(c, argc, argv, take, &l);

    if (rc == CLI_OK)
        rc = check_args(c, &l, argc, argv);
    if (rc == CLI_OK)
        rc = read_key(c, &l);
    if (rc == CLI_OK)
        rc = ask(c, &l);
    free((void *)(uintptr_t)l.question.key.data);
    send_headers_free(&l.headers);
    return rc;
}

const struct cli_command cli_cmd_lookup = {
    "lookup", "ask a gateway what became of a request", help, options, NULL,
    run};
