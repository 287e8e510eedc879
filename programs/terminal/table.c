/* SPDX-License-Identifier: Apache-2.0 */
/*
 * table.c - rows of values by a table of their fields: as a line of a list, as
 * a page about one of them, as JSON.
 *
 * On a terminal a line ends where the screen ends: stdout is then a stream that
 * cuts, in front of the real one. A program gets all of it. An id is a key: a
 * reader who knows it can claim it, or send under it. So a secret is shown by
 * the first digits of its SHA-256 unless it is asked for as it is.
 */
#include "programs/terminal/terminal.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <sys/ioctl.h>

#include "base/bytes.h"

enum { HASH_DIGITS = 16, WORD = 40 };

/* ---- Lines no wider than the terminal ------------------------------------ */

static struct {
    FILE *to;
    unsigned width, at; /* columns: of all, and printed of this line */
    int escaped;
} cut;

/* What ESC begins takes no place, and neither do later bytes of a character. */
static ssize_t write_cut(void *cookie, const char *p, size_t n)
{
    const char *end = p + n;

    (void)cookie;
    for (; p < end; p++) {
        if (*p == '\n')
            cut.at = 0;
        else if (*p == '\033')
            cut.escaped = 1;
        else if (!cut.escaped && ((unsigned char)*p & 0xc0) != 0x80)
            cut.at++;
        if (cut.escaped || cut.at <= cut.width)
            (void)fputc(*p, cut.to);
        if (isalpha((unsigned char)*p))
            cut.escaped = 0;
    }
    return fflush(cut.to) == 0 ? (ssize_t)n : 0;
}

void cli_cut_lines(const struct cli *c)
{
    struct winsize w = {0};
    FILE *f;

    if (!c->tty || c->json || cut.to != NULL ||
        ioctl(STDOUT_FILENO, TIOCGWINSZ, &w) != 0 || w.ws_col == 0)
        return;
    f = fopencookie(NULL, "w", (cookie_io_functions_t){.write = write_cut});
    if (f == NULL)
        return;
    (void)setvbuf(f, NULL, _IOLBF, 0);
    cut.to = stdout;
    cut.width = w.ws_col;
    stdout = f;
}

/* ---- Values -------------------------------------------------------------- */

static void hash_of(const char *secret, char out[HASH_DIGITS + 1])
{
    uint8_t hash[ONCE__AUDIT_HASH];

    once__audit_digest((once_bytes){secret, strlen(secret)}, hash);
    cli_hex(hash, HASH_DIGITS, out);
}

/* The names of headers alone, "A, B". */
static void print_names(FILE *to, const char *at)
{
    const char *comma = "";

    for (; *at != '\0'; at += strcspn(at, "\n"), at += *at == '\n') {
        fputs(comma, to);
        cli_print_text(to, (once_bytes){at, strcspn(at, ":\n")});
        comma = ", ";
    }
    fputs(comma[0] == '\0' ? "-" : "", to);
}

static void print_value(FILE *to, const struct cli_field *f,
                        const struct cli_value *v)
{
    const char *text = v->text != NULL && v->text[0] != '\0' ? v->text : "-";
    char short_text[WORD];

    switch (f->kind) {
    case CLI_F_NUMBER:
    case CLI_F_BYTES:
        fprintf(to, "%llu", (unsigned long long)v->n);
        return;
    case CLI_F_AGE:
        fprintf(to, "%llu", (unsigned long long)(v->n / 1000));
        return;
    case CLI_F_TIME:
        cli_time(v->n, short_text);
        fputs(short_text, to);
        return;
    case CLI_F_YES:
        fputs(v->n ? "yes" : "no", to);
        return;
    case CLI_F_NAMES:
        print_names(to, v->text);
        return;
    case CLI_F_SECRET:
        if (v->text != NULL && v->n == 0) {
            hash_of(v->text, short_text);
            text = short_text;
        }
        fputs(text, to);
        return;
    default:
        cli_print_text(to, (once_bytes){text, strlen(text)});
        return;
    }
}

/* ---- A list -------------------------------------------------------------- */

static int is_right(const struct cli_field *f)
{
    return f->kind == CLI_F_NUMBER || f->kind == CLI_F_AGE;
}

static void print_heading(FILE *to, const struct cli_field *f)
{
    const char *at;

    for (at = f->name; *at != '\0'; at++)
        fputc(toupper((unsigned char)*at), to);
    fputs(f->kind == CLI_F_AGE ? " (s)" : "", to);
}

/* A program gets tabs. The last field may be as long as it is. NULL `values`:
 * the headings. */
static int print_line(const struct cli *c, const struct cli_field *f,
                      const struct cli_value *values)
{
    const char *space = "";
    char *cell;
    size_t size;
    FILE *to;
    int i;

    for (i = 0; f[i].name != NULL; i++) {
        if ((f[i].where & CLI_IN_LIST) == 0)
            continue;
        to = open_memstream(&cell, &size);
        if (to == NULL)
            return cli_say(c, CLI_STORE, "out of memory");
        if (values == NULL)
            print_heading(to, &f[i]);
        else
            print_value(to, &f[i], &values[i]);
        if (fclose(to) == 0)
            printf(is_right(&f[i]) ? "%s%*s" : "%s%-*s", space,
                   c->tty ? f[i].width : 0, cell);
        free(cell);
        space = c->tty ? "  " : "\t";
    }
    putchar('\n');
    return ferror(stdout) ? cli_flush(c) : CLI_OK;
}

int cli_list_heading(const struct cli *c, const struct cli_field *fields)
{
    cli_cut_lines(c);
    return c->tty && !c->json ? print_line(c, fields, NULL) : CLI_OK;
}

int cli_list_line(const struct cli *c, const struct cli_field *fields,
                  const struct cli_value *values)
{
    int rc;

    if (!c->json)
        return print_line(c, fields, values);
    rc = cli_print_json(c, cli_fields_json(fields, values));
    return rc == CLI_OK && ferror(stdout) ? cli_flush(c) : rc;
}

/* ---- One of them --------------------------------------------------------- */

void cli_fields_print(const struct cli *c, const struct cli_field *f,
                      const struct cli_value *v)
{
    char label[WORD];
    size_t i;

    for (; f->name != NULL; f++, v++) {
        if ((f->where & CLI_IN_PAGE) == 0)
            continue;
        (void)snprintf(label, sizeof(label), "%s", f->name);
        for (i = 0; label[i] != '\0'; i++)
            label[i] = (char)(label[i] == '_' ? ' ' : label[i]);
        cli_label(c, label);
        print_value(stdout, f, v);
        putchar('\n');
    }
}

/* ---- JSON ---------------------------------------------------------------- */

static json_t *json_value(const struct cli_field *f, const struct cli_value *v)
{
    const char *text;

    switch (f->kind) {
    case CLI_F_NUMBER:
    case CLI_F_BYTES:
    case CLI_F_AGE:
        return json_integer((json_int_t)v->n);
    case CLI_F_TIME:
        return cli_json_time(v->n);
    case CLI_F_YES:
        return json_boolean(v->n != 0);
    default:
        text = v->text != NULL ? v->text : "";
        return cli_json_text((once_bytes){text, strlen(text)});
    }
}

/* "NAME_hash", and NAME itself where it is asked for; nothing where there is
 * none. */
static int add_secret(json_t *o, const struct cli_field *f,
                      const struct cli_value *v)
{
    char hash[HASH_DIGITS + 1], name[WORD];

    if (v->text == NULL)
        return 0;
    hash_of(v->text, hash);
    (void)snprintf(name, sizeof(name), "%s_hash", f->name);
    if (json_object_set_new(o, name, json_string(hash)) != 0)
        return -1;
    return v->n ? json_object_set_new(o, f->name, json_string(v->text)) : 0;
}

json_t *cli_fields_json(const struct cli_field *f, const struct cli_value *v)
{
    json_t *o = json_object();
    char name[WORD];
    int bad = o == NULL;

    for (; f->name != NULL && !bad; f++, v++) {
        if ((f->where & CLI_IN_JSON) == 0)
            continue;
        (void)snprintf(name, sizeof(name), "%s%s", f->name,
                       f->kind == CLI_F_BYTES ? "_bytes"
                       : f->kind == CLI_F_AGE ? "_ms"
                                              : "");
        bad = f->kind == CLI_F_SECRET
                  ? add_secret(o, f, v) != 0
                  : json_object_set_new(o, name, json_value(f, v)) != 0;
    }
    if (!bad)
        return o;
    json_decref(o);
    return NULL;
}
