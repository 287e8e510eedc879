/* SPDX-License-Identifier: Apache-2.0 */
/*
 * resolve_lines.c - `once resolve --records`: one decision about many records.
 *
 * The lines are those of `once ls --state indeterminate --json`, so that an
 * operator can take out of them what the decision is not about. A line that is
 * not understood, or a record that stands there twice, stops all of it before
 * the store is opened.
 */
#include "programs/once/records/resolve_lines.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

enum { BATCH_BYTES = ONCE__BATCH_MAX * 4096 };

/* ---- The lines ------------------------------------------------------------ */

/* A fence is a string in our own JSON, since many readers round large numbers;
 * a program may have written a number. */
static int read_fence(const json_t *value, uint64_t *out)
{
    const char *text = json_string_value(value);
    char *end = NULL;

    if (json_is_integer(value) && json_integer_value(value) > 0)
        *out = (uint64_t)json_integer_value(value);
    else if (text != NULL && text[0] >= '1' && text[0] <= '9')
        *out = strtoull(text, &end, 10);
    return *out != 0 && *out != UINT64_MAX && (end == NULL || *end == '\0');
}

static int take_object(const json_t *o, once__batch_line *out)
{
    const char *text = json_string_value(json_object_get(o, "name"));
    json_int_t attempt = json_integer_value(json_object_get(o, "attempt"));
    once__prefix name;

    memset(out, 0, sizeof(*out));
    if (text == NULL || attempt < 0 || attempt > UINT32_MAX ||
        once__prefix_read(text, ONCE__DIGITS, &name, NULL) < 0 ||
        !read_fence(json_object_get(o, "fence"), &out->fence))
        return 0;
    memcpy(out->name, name.bytes, ONCE_NAME_SIZE);
    out->attempt = (uint32_t)attempt;
    return 1;
}

static int is_twice(const struct cli_batch *b)
{
    const once__batch_line *last = &b->lines[b->n - 1];
    size_t i;

    for (i = 0; i + 1 < b->n; i++)
        if (memcmp(b->lines[i].name, last->name, ONCE_NAME_SIZE) == 0)
            return 1;
    return 0;
}

static int take_line(const struct cli *c, const char *text, size_t size,
                     size_t number, struct cli_batch *b)
{
    json_t *o;
    int is;

    if (size == 0)
        return CLI_OK;
    if (b->n == ONCE__BATCH_MAX)
        return cli_usage(c, "--records: at most %d records at once",
                         ONCE__BATCH_MAX);
    o = json_loadb(text, size, JSON_REJECT_DUPLICATES, NULL);
    is = take_object(o, &b->lines[b->n]);
    json_decref(o);
    if (!is)
        return cli_usage(c,
                         "--records: line %zu is no JSON object with a whole "
                         "name and a fence, as once ls --json prints it",
                         number);
    b->n++;
    if (is_twice(b))
        return cli_usage(c, "--records: line %zu: this record was there before",
                         number);
    return CLI_OK;
}

int cli_batch_read(const struct cli *c, const char *path, struct cli_batch *out)
{
    once_bytes all = {NULL, 0};
    int rc = cli_read_file(c, path, BATCH_BYTES, &all);
    const char *at = all.data, *end = rc == CLI_OK ? at + all.size : at;
    size_t number = 1;

    for (out->n = 0; rc == CLI_OK && at < end; number++) {
        const char *stop = memchr(at, '\n', (size_t)(end - at));

        if (stop == NULL)
            stop = end;
        rc = take_line(c, at, (size_t)(stop - at), number, out);
        at = stop + 1;
    }
    free((void *)(uintptr_t)all.data);
    if (rc == CLI_OK && out->n == 0)
        rc = cli_say(c, CLI_NO, "--records: there is no record in it");
    return rc;
}

/* ---- The decisions -------------------------------------------------------- */

struct run {
    const struct cli *c;
    size_t done, refused;
    int unwritten; /* the audit log lacks a line */
    int rc;        /* of what stopped it, or of stdout */
};

static const char *word_of(int rc, int dry)
{
    if (rc == ONCE_ESTORE)
        return "unknown";
    if (rc < 0)
        return "error";
    if (rc == ONCE__RESOLVED)
        return dry ? "would be resolved" : "resolved";
    return dry ? "would be refused" : "refused";
}

static int print_line(struct run *b, const char *name, const char *word,
                      const char *why)
{
    if (b->c->json)
        return cli_print_json(b->c, json_pack("{s:s, s:s, s:s?}", "name", name,
                                              "result", word, "why", why));
    printf("%s\t%s%s%s\n", name, word, why ? "\t" : "", why ? why : "");
    return CLI_OK;
}

static int see(void *user, size_t i, int rc, const once__resolution *what,
               const once_record *now, const once_error *err)
{
    char name[CLI_HEX_SIZE], text[256] = "";
    struct run *b = user;

    (void)i;
    cli_hex(what->name, CLI_DIGITS, name);
    if (rc < 0)
        snprintf(text, sizeof(text), "%s", err->text);
    else if (rc > 0)
        cli_refusal(rc, what, now, text, sizeof(text));
    b->done += rc == ONCE__RESOLVED;
    b->refused += rc > 0;
    if (rc < 0)
        b->rc = cli_resolved(b->c, rc, what, now, err);
    else if (err->code != 0)
        b->unwritten = cli_say(b->c, 1,
                               "audit log: %s. It lacks what came of "
                               "the last intent",
                               err->text);
    if (print_line(b, name, word_of(rc, what->dry),
                   text[0] != '\0' ? text : NULL) != CLI_OK ||
        cli_flush(b->c) != CLI_OK)
        b->rc = CLI_STORE;
    return b->rc != CLI_OK || b->unwritten;
}

int cli_batch_resolve(const struct cli *c, once_engine *e,
                      const once__resolution *what,
                      const struct cli_batch *batch)
{
    struct run b = {.c = c};
    int rc = once__resolve_batch(e, what, batch->lines, batch->n, see, &b);
    size_t unknown = rc == ONCE_ESTORE;
    size_t left = batch->n - b.done - b.refused - unknown;

    if (b.unwritten && b.rc == CLI_OK)
        b.rc = CLI_STORE;
    cli_say(c, 0, "%zu %s, %zu %s, %zu unknown, %zu not asked", b.done,
            word_of(ONCE__RESOLVED, what->dry), b.refused,
            word_of(ONCE__UNRESOLVED_STATE, what->dry), unknown, left);
    if (b.rc != CLI_OK)
        return b.rc;
    return b.refused > 0 ? CLI_NO : CLI_OK;
}
