/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cmd_show.c - `once show`: all that may be said about one record.
 *
 * Of a stored response that is the status, the names of its headers and the
 * length of its body: values and bodies may hold secrets. The body leaves only
 * when --body asks for it, alone and unchanged.
 */
#include "programs/once/cli.h"

#include <string.h>

#include "operate/answer.h"

/* clang-format off */
static const char help[] =
    "usage: once [--store URL] show WHICH [--body | --json]\n"
    "\n"
    "Shows one record. WHICH is one of\n"
    "  HASH           the first 8 or more hex digits of its name, for example\n"
    "                 $once_name in the gateway's log\n"
    "  --name NAME    all 64 digits\n"
    "  --group G --key K\n"
    "                 as they were given to once run or once_call (default)\n"
    "  --group G --key-file FILE\n"
    "                 the key's bytes from FILE (- is stdin), without one line\n"
    "                 break at the end: all users of a host can read arguments\n"
    "  --request ...  of the gateway: what was sent, as for once name\n"
    "And\n"
    "  --body         write the body of the stored response to stdout, as it is and\n"
    "                 nothing else (of a result that is no response: all of it);\n"
    "                 the audit log (--audit FILE) gets a line before\n"
    "  --json         one JSON object; the fence is a string in it\n"
    "\n"
    "Of a stored response it shows the status, the names of the headers and the\n"
    "length of the body. once resolve needs the fence and the attempt that are\n"
    "shown here. Times are UTC.\n";
/* clang-format on */

struct show {
    struct cli_pick pick;
    int body;
    once__view view; /* what stands in a completed record */
};

static const struct cli_option options[] = {
    CLI_COMMON_OPTIONS, CLI_PICK_OPTIONS(struct show),
    CLI_AUDIT_OPTION,   {"body", NULL, CLI_AT(CLI_FLAG, struct show, body)},
    {.name = NULL},
};

static int read_args(struct cli *c, int argc, char **argv, struct show *s)
{
    int rc = cli_read_args(c, argc, argv, NULL, s);

    if (rc != CLI_OK)
        return rc;
    if (s->body && c->json)
        return cli_usage(c, "--body and --json exclude each other");
    return cli_pick_end(c, &s->pick, argc, argv);
}

/* Who saw a body, which may hold anything, is written down before. */
static int print_body(const struct cli *c, once_engine *e, const struct show *s,
                      const uint8_t name[ONCE_NAME_SIZE], const once_record *r)
{
    struct cli_decision d = {.entry = {.action = "body",
                                       .name = name,
                                       .fence = r->fence,
                                       .attempt = r->attempt}};
    int rc;

    once_bytes body = s->view.body;

    if (s->view.is == ONCE__VIEW_NONE)
        return cli_say(c, CLI_NO, "the record is %s: there is no result yet",
                       cli_state(r->state));
    if (!s->view.kept)
        return cli_say(c, CLI_NO,
                       "the request was carried out, but its "
                       "response was not kept");
    cli_about(&d, e, NULL);
    rc = cli_intend(c, &d);
    if (rc != CLI_OK)
        return rc;
    if (body.size > 0)
        fwrite(body.data, 1, body.size, stdout);
    rc = cli_flush(c);
    /* What could not be written may have been read all the same. */
    (void)cli_audited(c, &d, rc == CLI_OK ? CLI_OK : CLI_UNKNOWN, NULL);
    return rc;
}

static void print_response(const struct cli *c, const once__response *r)
{
    once__header h;
    size_t at = 0;
    int more = 0;

    cli_number(c, "status", (uint64_t)r->status);
    cli_label(c, "headers");
    while (once__response_next(r, &at, &h)) {
        if (more++)
            fputs(", ", stdout);
        cli_print_text(stdout, h.name);
    }
    putchar('\n');
    if (r->flags & ONCE__NO_BODY)
        cli_line(c, "body", "not kept");
    else
        cli_number(c, "body", r->body.size);
}

/* What the work returned: for a command, its exit status. */
static void print_call(const struct cli *c, const once__result *r)
{
    cli_label(c, "code");
    printf("%d\n", r->code);
    cli_label(c, "type");
    cli_print_text(stdout, r->type.size ? r->type : cli_bytes("-"));
    putchar('\n');
    cli_number(c, "result", r->bytes.size);
}

static void print_record(const struct cli *c, const struct show *s,
                         const uint8_t name[ONCE_NAME_SIZE],
                         const once_record *r)
{
    int owned = r->state == ONCE_CLAIMED || r->state == ONCE_DISPATCHED;
    char hex[CLI_HEX_SIZE], flags[CLI_FLAGS_SIZE], group[CLI_GROUP_TEXT],
        trace[ONCE__TRACE_TEXT];

    cli_hex(name, CLI_DIGITS, hex);
    cli_flags(r, flags);
    cli_group(r->group, group);
    cli_line(c, "name", hex);
    cli_line(c, "group", group[0] ? group : "-");
    cli_label(c, "label");
    cli_print_text(stdout, r->label.size > 0 ? r->label : cli_bytes("-"));
    putchar('\n');
    cli_label(c, "state");
    printf("%s%s%s\n", cli_color(c, r->state), cli_state(r->state),
           cli_plain(c, r->state));
    cli_line(c, "kind", cli_kind(r->kind));
    cli_number(c, "attempt", r->attempt);
    cli_number(c, "fence", r->fence);
    if (r->reason != 0)
        cli_line(c, "reason", once_reason_text(r->reason));
    if (once__trace_text(r->trace, trace))
        cli_line(c, "trace", trace);
    cli_moment(c, "created", r->created_ms);
    cli_moment(c, "granted", r->granted_ms);
    if (!owned)
        cli_moment(c, "ended", r->ended_ms);
    cli_moment(c, "lease until", owned ? r->lease_ms : 0);
    cli_moment(c, "keep until", owned ? 0 : cli_until(r));
    cli_line(c, "flags", flags);
    if (s->view.is == ONCE__VIEW_HTTP)
        print_response(c, &s->view.response);
    if (s->view.is == ONCE__VIEW_CALL)
        print_call(c, &s->view.call);
    if (s->view.is == ONCE__VIEW_RAW)
        cli_number(c, "result", r->result.size);
    if (r->note.size > 0) {
        cli_label(c, "note");
        cli_print_text(stdout, r->note);
        putchar('\n');
    }
}

static void print_next(const uint8_t name[ONCE_NAME_SIZE], const once_record *r)
{
    char hex[CLI_HEX_SIZE];

    cli_hex(name, 16, hex);
    printf(
        "\nIt is unknown whether it took effect. Find out, then record it:\n"
        "  once resolve %s --fence %llu --attempt %lu ...   (see once resolve "
        "--help)\n",
        hex, (unsigned long long)r->fence, (unsigned long)r->attempt);
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

    if (s->view.is == ONCE__VIEW_HTTP) {
        bad |= json_object_set_new(o, "status",
                                   json_integer(s->view.response.status));
        bad |=
            json_object_set_new(o, "headers", json_headers(&s->view.response));
        bad |= json_object_set_new(
            o, "body_bytes",
            s->view.kept ? json_integer((json_int_t)s->view.response.body.size)
                         : json_null());
    }
    if (s->view.is == ONCE__VIEW_CALL) {
        bad |= json_object_set_new(o, "code", json_integer(s->view.call.code));
        bad |= json_object_set_new(o, "type", cli_json_text(s->view.call.type));
        bad |= json_object_set_new(
            o, "body_bytes", json_integer((json_int_t)s->view.call.bytes.size));
    }
    if (r->note.size > 0)
        bad |= json_object_set_new(o, "note", cli_json_text(r->note));
    if (bad) {
        json_decref(o);
        o = NULL;
    }
    return cli_print_json(c, o);
}

static int print(const struct cli *c, once_engine *e, struct show *s,
                 const uint8_t name[ONCE_NAME_SIZE], const once_record *r)
{
    once__view_of(r, &s->view);
    if (s->body)
        return print_body(c, e, s, name, r);
    if (c->json)
        return print_json(c, s, name, r);
    print_record(c, s, name, r);
    if (c->tty && r->state == ONCE_INDETERMINATE)
        print_next(name, r);
    return CLI_OK;
}

static int run(struct cli *c, int argc, char **argv)
{
    struct show s = {0};
    uint8_t name[ONCE_NAME_SIZE];
    once_engine *e = NULL;
    once_op op = {0};
    int rc = read_args(c, argc, argv, &s);

    if (rc != CLI_OK)
        return rc;
    rc = cli_open_to_look(c, &e);
    if (rc != CLI_OK)
        goto out;
    rc = cli_find(c, e, &s.pick.name, name);
    if (rc != CLI_OK)
        goto out;
    rc = cli_look(c, e, name, &op);
    if (rc == CLI_OK)
        rc = print(c, e, &s, name, &op.record);
    once_op_clear(&op);
out:
    once_engine_close(e);
    return rc;
}

const struct cli_command cli_cmd_show = {
    "show", "everything about one record, but its body", help, options, NULL,
    run};
