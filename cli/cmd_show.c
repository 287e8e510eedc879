/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cmd_show.c - `once show`: all that may be said about one record.
 *
 * Of a stored response that is the status, the names of its headers and the
 * length of its body: values and bodies may hold secrets. The body leaves only
 * when --body asks for it, alone and unchanged.
 */
#include "cli.h"

#include <string.h>

#include "http/http.h"

/* clang-format off */
static const char help[] =
    "usage: once [--store URL] show HASH [--body | --json]\n"
    "       once [--store URL] show --name NAME [--body | --json]\n"
    "\n"
    "Shows one record.\n"
    "\n"
    "  HASH           the first 8 or more hex digits of its name, for example\n"
    "                 the 16 of $once_key_hash in the gateway's log\n"
    "  --name NAME    all 64 digits\n"
    "  --body         write the body of the stored response to stdout, as it is\n"
    "                 and nothing else (of a result that is no HTTP response:\n"
    "                 all of it)\n"
    "  --json         one JSON object; the fence is a string in it\n"
    "\n"
    "Of a stored response it tells the status, the names of the headers and the\n"
    "length of the body. The fence is what once resolve wants to be shown.\n"
    "Times are UTC.\n";
/* clang-format on */

enum { OPT_NAME = 1, OPT_BODY };

static const struct option options[] = {
    CLI_COMMON_OPTIONS,
    {"name", required_argument, NULL, OPT_NAME},
    {"body", no_argument, NULL, OPT_BODY},
    {NULL, 0, NULL, 0},
};

/* What stands in a completed record. */
enum result { RESULT_NONE, RESULT_HTTP, RESULT_RAW };

struct show {
    struct cli_name name;
    int body;
    enum result is;
    once__response response;
};

static int read_args(struct cli *c, int argc, char **argv, struct show *s,
                     int *go)
{
    const char *whole = NULL;
    int o, rc = CLI_OK;

    while ((o = cli_option(c, argc, argv, options, help, &rc)) != -1) {
        if (o == '?')
            return rc;
        if (o == OPT_NAME)
            whole = optarg;
        if (o == OPT_BODY)
            s->body = 1;
    }
    if (argc - optind + (whole != NULL) != 1)
        return cli_usage(c, "which record? One HASH, or --name NAME");
    if (s->body && c->json)
        return cli_usage(c, "--body and --json exclude each other");
    if (whole != NULL)
        rc = cli_read_name(c, whole, CLI_DIGITS, &s->name);
    else
        rc = cli_read_name(c, argv[optind], CLI_DIGITS_MIN, &s->name);
    *go = rc == CLI_OK;
    return rc;
}

/* The gateway stores an encoded response; other programs store what they like,
 * and their bytes do not pass for one. */
static void decode(struct show *s, const once_record *r)
{
    s->is = RESULT_NONE;
    if (r->state != ONCE_COMPLETED)
        return;
    s->is = once__response_decode(r->result, &s->response, NULL) == ONCE_OK
                ? RESULT_HTTP
                : RESULT_RAW;
}

static int print_body(const struct cli *c, const struct show *s,
                      const once_record *r)
{
    once_bytes body = r->result;

    if (s->is == RESULT_NONE)
        return cli_say(c, CLI_NO, "the record is %s: there is no result yet",
                       cli_state(r->state));
    if (s->is == RESULT_HTTP)
        body = s->response.body;
    if (s->is == RESULT_HTTP && (s->response.flags & ONCE__NO_BODY))
        return cli_say(c, CLI_NO,
                       "the request was carried out, but its "
                       "response was not kept");
    if (body.size > 0)
        fwrite(body.data, 1, body.size, stdout);
    return cli_flush(c);
}

/* A terminal gets columns, a program gets tabs. */
static void label(const struct cli *c, const char *name)
{
    printf(c->tty ? "%-12s" : "%s\t", name);
}

static void line(const struct cli *c, const char *name, const char *value)
{
    label(c, name);
    puts(value);
}

static void number(const struct cli *c, const char *name, uint64_t value)
{
    label(c, name);
    printf("%llu\n", (unsigned long long)value);
}

static void moment(const struct cli *c, const char *name, uint64_t ms)
{
    char text[CLI_TIME_SIZE];

    cli_time(ms, text);
    line(c, name, text);
}

static void print_response(const struct cli *c, const once__response *r)
{
    once__header h;
    size_t at = 0;
    int more = 0;

    number(c, "status", (uint64_t)r->status);
    label(c, "headers");
    while (once__response_next(r, &at, &h)) {
        if (more++)
            fputs(", ", stdout);
        cli_print_text(stdout, h.name);
    }
    putchar('\n');
    if (r->flags & ONCE__NO_BODY)
        line(c, "body", "not kept");
    else
        number(c, "body", r->body.size);
}

static void print_record(const struct cli *c, const struct show *s,
                         const uint8_t name[ONCE_NAME_SIZE],
                         const once_record *r)
{
    int owned = r->state == ONCE_CLAIMED || r->state == ONCE_DISPATCHED;
    char hex[CLI_HEX_SIZE], flags[CLI_FLAGS_SIZE];

    cli_hex(name, CLI_DIGITS, hex);
    cli_flags(r, flags);
    line(c, "name", hex);
    line(c, "state", cli_state(r->state));
    line(c, "kind", cli_kind(r->kind));
    number(c, "attempt", r->attempt);
    number(c, "fence", r->fence);
    moment(c, "granted", r->granted_ms);
    moment(c, "lease until", owned ? r->lease_ms : 0);
    moment(c, "keep until", owned ? 0 : cli_until(r));
    line(c, "flags", flags);
    if (s->is == RESULT_HTTP)
        print_response(c, &s->response);
    if (s->is == RESULT_RAW)
        number(c, "result", r->result.size);
    if (r->note.size > 0) {
        label(c, "note");
        cli_print_text(stdout, r->note);
        putchar('\n');
    }
}

static void print_next(const uint8_t name[ONCE_NAME_SIZE], const once_record *r)
{
    char hex[CLI_HEX_SIZE];

    cli_hex(name, 16, hex);
    printf("\nNobody knows whether it took effect. Find out, then say so:\n"
           "  once resolve %s --fence %llu ...   (see once resolve --help)\n",
           hex, (unsigned long long)r->fence);
}

static json_t *json_headers(const once__response *r)
{
    json_t *names = json_array();
    once__header h;
    size_t at = 0;

    while (once__response_next(r, &at, &h))
        json_array_append_new(names, cli_json_text(h.name));
    return names;
}

static int print_json(const struct cli *c, const struct show *s,
                      const uint8_t name[ONCE_NAME_SIZE], const once_record *r)
{
    json_t *o = cli_json_record(name, r);
    int bad = o == NULL;

    if (s->is == RESULT_HTTP) {
        int kept = (s->response.flags & ONCE__NO_BODY) == 0;

        bad |=
            json_object_set_new(o, "status", json_integer(s->response.status));
        bad |= json_object_set_new(o, "headers", json_headers(&s->response));
        bad |= json_object_set_new(
            o, "body_bytes",
            kept ? json_integer((json_int_t)s->response.body.size)
                 : json_null());
    }
    if (r->note.size > 0)
        bad |= json_object_set_new(o, "note", cli_json_text(r->note));
    if (bad) {
        json_decref(o);
        o = NULL;
    }
    return cli_print_json(c, o);
}

static int print(const struct cli *c, struct show *s,
                 const uint8_t name[ONCE_NAME_SIZE], const once_record *r)
{
    decode(s, r);
    if (s->body)
        return print_body(c, s, r);
    if (c->json)
        return print_json(c, s, name, r);
    print_record(c, s, name, r);
    if (c->tty && r->state == ONCE_INDETERMINATE)
        print_next(name, r);
    return CLI_OK;
}

int cli_show(struct cli *c, int argc, char **argv)
{
    struct show s = {0};
    uint8_t name[ONCE_NAME_SIZE];
    once_engine *e = NULL;
    once_op op = {0};
    int rc, go = 0;

    rc = read_args(c, argc, argv, &s, &go);
    if (!go)
        return rc;
    rc = cli_open(c, &e);
    if (rc != CLI_OK)
        goto out;
    rc = cli_find(c, e, &s.name, name);
    if (rc != CLI_OK)
        goto out;
    rc = cli_look(c, e, name, &op);
    if (rc == CLI_OK)
        rc = print(c, &s, name, &op.record);
    once_op_clear(&op);
out:
    once_engine_close(e);
    return rc;
}
