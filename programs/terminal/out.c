/* SPDX-License-Identifier: Apache-2.0 */
/*
 * out.c - what the commands print: messages, names, times, JSON.
 *
 * Text of others is escaped before a terminal or a log gets it: a note or a
 * header's name may hold anything.
 */
#include "programs/terminal/terminal.h"

#include "base/bytes.h"
#include "calls/http/http.h"

#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define COUNT(a) (sizeof(a) / sizeof((a)[0]))

static const char *const states[] = {
    [ONCE_ABSENT] = "absent",
    [ONCE_CLAIMED] = "claimed",
    [ONCE_DISPATCHED] = "dispatched",
    [ONCE_COMPLETED] = "completed",
    [ONCE_INDETERMINATE] = "indeterminate",
};

ONCE_PRINTF(2, 0)
static void say(const struct cli *c, const char *format, va_list args)
{
    const char *name = c->command->name;

    fflush(stdout); /* what was printed before comes before the message */
    fprintf(stderr, "once%s%s: ", name[0] ? " " : "", name);
    vfprintf(stderr, format, args);
    fputc('\n', stderr);
}

int cli_say(const struct cli *c, int code, const char *format, ...)
{
    va_list args;

    va_start(args, format);
    say(c, format, args);
    va_end(args);
    return code;
}

int cli_usage(const struct cli *c, const char *format, ...)
{
    const char *name = c->command->name;
    va_list args;

    va_start(args, format);
    say(c, format, args);
    va_end(args);
    fprintf(stderr, "Try: once%s%s --help\n", name[0] ? " " : "", name);
    return CLI_USAGE;
}

int cli_flush(const struct cli *c)
{
    if (fflush(stdout) == 0 && !ferror(stdout))
        return CLI_OK;
    return cli_say(c, CLI_STORE, "stdout: not all of it could be written");
}

void cli_hex(const uint8_t *name, size_t digits, char *out)
{
    once__hex(name, (digits + 1) / 2, out);
    out[digits] = '\0';
}

void cli_time(uint64_t ms, char out[CLI_TIME_SIZE])
{
    /* Times come from a file: one after the year 9999 has no such text. */
    const uint64_t most = UINT64_C(253402300799999);
    time_t s = (time_t)((ms > most ? most : ms) / 1000);
    struct tm tm;
    size_t n;

    if (ms == 0 || gmtime_r(&s, &tm) == NULL) {
        snprintf(out, CLI_TIME_SIZE, "-");
        return;
    }
    n = strftime(out, CLI_TIME_SIZE, "%Y-%m-%dT%H:%M:%S", &tm);
    snprintf(out + n, CLI_TIME_SIZE - n, ".%03uZ", (unsigned)(ms % 1000));
}

const char *cli_state(int state)
{
    if (state < 0 || (size_t)state >= COUNT(states))
        return "corrupt";
    return states[state];
}

int cli_state_of(const char *name)
{
    int i;

    for (i = 0; i < (int)COUNT(states); i++)
        if (strcmp(states[i], name) == 0)
            return i;
    return -1;
}

const char *cli_kind(int kind)
{
    if (kind == ONCE_SUCCESS)
        return "success";
    return kind == ONCE_FAILURE ? "failure" : "-";
}

/* What waits for an operator stands out; all else is as it should be. */
const char *cli_color(const struct cli *c, int state)
{
    if (!c->color)
        return "";
    if (state == ONCE_INDETERMINATE)
        return "\033[1;33m";
    return state > ONCE_INDETERMINATE ? "\033[1;31m" : "";
}

const char *cli_plain(const struct cli *c, int state)
{
    return cli_color(c, state)[0] == '\0' ? "" : "\033[0m";
}

void cli_flags(const once_record *r, char out[CLI_FLAGS_SIZE])
{
    snprintf(out, CLI_FLAGS_SIZE, "%s%s%s%s", r->doubt ? "doubt," : "",
             r->policy & ONCE_TAKEOVER ? "takeover," : "",
             r->policy & ONCE_RETRY_FAILED ? "retry," : "",
             r->note.size > 0 ? "resolved," : "");
    if (out[0] == '\0')
        snprintf(out, CLI_FLAGS_SIZE, "-");
    else
        out[strlen(out) - 1] = '\0';
}

void cli_group(const uint8_t group[ONCE_GROUP_SIZE], char out[CLI_GROUP_TEXT])
{
    size_t i, n = 0;

    for (i = 0; i < ONCE_GROUP_SIZE && group[i] != '\0'; i++)
        if (group[i] > 0x20 && group[i] < 0x7f)
            out[n++] = (char)group[i];
        else
            n += (size_t)snprintf(out + n, CLI_GROUP_TEXT - n, "\\x%02x",
                                  group[i]);
    out[n] = '\0';
}

uint64_t cli_until(const once_record *r)
{
    switch (r->state) {
    case ONCE_CLAIMED:
    case ONCE_DISPATCHED:
        return r->lease_ms;
    case ONCE_COMPLETED:
    case ONCE_ABSENT:
        return r->keep_ms;
    default:
        return 0; /* indeterminate: until an operator resolves it */
    }
}

void cli_label(const struct cli *c, const char *name)
{
    printf(c->tty ? "%-14s" : "%s\t", name);
}

void cli_line(const struct cli *c, const char *name, const char *value)
{
    cli_label(c, name);
    puts(value);
}

void cli_number(const struct cli *c, const char *name, uint64_t value)
{
    cli_label(c, name);
    printf("%llu\n", (unsigned long long)value);
}

void cli_moment(const struct cli *c, const char *name, uint64_t ms)
{
    char text[CLI_TIME_SIZE];

    cli_time(ms, text);
    cli_line(c, name, text);
}

static int is_utf8(once_bytes text)
{
    json_t *s = text.size ? json_stringn(text.data, text.size) : NULL;
    int is = s != NULL;

    json_decref(s);
    return is;
}

/* Prints `text` with every byte escaped that is not plain. The controls of
 * Latin 1, two bytes in UTF-8, move a terminal's cursor as well. */
void cli_print_text(FILE *to, once_bytes text)
{
    const uint8_t *p = text.data;
    int utf8 = is_utf8(text);
    size_t i;

    for (i = 0; i < text.size; i++) {
        int control = p[i] < 0x20 || p[i] == 0x7f ||
                      (p[i] == 0xc2 && i + 1 < text.size && p[i + 1] < 0xa0);

        if (control && p[i] == 0xc2)
            fprintf(to, "\\x%02x", p[i++]);
        if (control || (p[i] >= 0x80 && !utf8))
            fprintf(to, "\\x%02x", p[i]);
        else
            fputc(p[i], to);
    }
}

json_t *cli_json_text(once_bytes text)
{
    json_t *value = NULL;
    char *escaped = NULL;
    size_t size = 0;
    FILE *to;

    if (text.size == 0)
        return json_string("");
    value = json_stringn(text.data, text.size);
    if (value != NULL)
        return value;
    to = open_memstream(&escaped, &size);
    if (to == NULL)
        return NULL;
    cli_print_text(to, text);
    if (fclose(to) == 0)
        value = json_stringn(escaped, size);
    free(escaped);
    return value;
}

json_t *cli_json_time(uint64_t ms)
{
    char text[CLI_TIME_SIZE];

    if (ms == 0)
        return json_null();
    cli_time(ms, text);
    return json_string(text);
}

/* The fence is a string: many readers of JSON round large numbers, and a
 * rounded fence would be refused, or would be another one. */
json_t *cli_json_record(const uint8_t name[ONCE_NAME_SIZE],
                        const once_record *r)
{
    int owned = r->state == ONCE_CLAIMED || r->state == ONCE_DISPATCHED;
    char hex[CLI_HEX_SIZE], fence[21], group[CLI_GROUP_TEXT],
        trace[ONCE__TRACE_TEXT];
    json_t *o;

    cli_hex(name, CLI_DIGITS, hex);
    if (r->state > ONCE_INDETERMINATE)
        return json_pack("{s:s, s:s}", "name", hex, "state", "corrupt");
    snprintf(fence, sizeof(fence), "%llu", (unsigned long long)r->fence);
    cli_group(r->group, group);
    o = json_pack(
        "{s:s, s:s?, s:s, s:s?, s:I, s:s, s:o, s:o, s:o, s:b, s:b, s:b, s:b,"
        " s:I}",
        "name", hex, "group", group[0] ? group : NULL, "state",
        cli_state(r->state), "kind", r->kind ? cli_kind(r->kind) : NULL,
        "attempt", (json_int_t)r->attempt, "fence", fence, "granted",
        cli_json_time(r->granted_ms), "lease_until",
        cli_json_time(owned ? r->lease_ms : 0), "keep_until",
        cli_json_time(owned ? 0 : cli_until(r)), "doubt", r->doubt != 0,
        "takeover", (r->policy & ONCE_TAKEOVER) != 0, "retry_failed",
        (r->policy & ONCE_RETRY_FAILED) != 0, "resolved", r->note.size > 0,
        "result_bytes", (json_int_t)r->result.size);
    if (o == NULL ||
        json_object_set_new(o, "label",
                            r->label.size > 0 ? cli_json_text(r->label)
                                              : json_null()) != 0 ||
        json_object_set_new(o, "reason",
                            r->reason != 0
                                ? json_string(once_reason_text(r->reason))
                                : json_null()) != 0 ||
        json_object_set_new(o, "trace",
                            once__trace_text(r->trace, trace)
                                ? json_string(trace)
                                : json_null()) != 0 ||
        json_object_set_new(o, "created", cli_json_time(r->created_ms)) != 0 ||
        json_object_set_new(o, "ended", cli_json_time(r->ended_ms)) != 0) {
        json_decref(o);
        o = NULL;
    }
    return o;
}

int cli_print_json(const struct cli *c, json_t *value)
{
    int rc = -1;

    if (value != NULL)
        rc = json_dumpf(value, stdout, JSON_COMPACT | JSON_REAL_PRECISION(6));
    json_decref(value);
    if (rc < 0)
        return cli_say(c, CLI_STORE,
                       "the JSON text could not be made or "
                       "written: memory, or stdout");
    fputc('\n', stdout);
    return CLI_OK;
}
