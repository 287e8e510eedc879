/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cmd_verify.c - `once verify`: is everything in this store as it was written?
 *
 * First the driver's own check, of whatever lies around the records; then every
 * record with its result, as a replay would read it. Changes nothing and
 * repairs nothing: a corrupt record counts as taken, and that is the safe side.
 *
 *    driver's check --> open --> page of names --> show each with its bytes
 *                                  ^                    |
 *                                  +--------------------+
 */
#include "programs/once/cli.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "operate/copy/copy.h"

enum {
    PAGE = 256,
    BYTES_MAX = 8 << 20, /* of results in one batch, and one more result */
    NAMED_MAX = 100,     /* corrupt records that are printed by name     */
    CORRUPT = ONCE_INDETERMINATE + 1,
    KINDS
};

/* clang-format off */
static const char help[] =
    "usage: once [--store URL] verify [URL | FOLDER | FILE | COPY] [--json]\n"
    "\n"
    "Reads the whole store: what the store's driver knows to check, and every record\n"
    "with its result. Counts records by state, and names on stderr what is\n"
    "corrupt. Changes and repairs nothing. Exit status 3 if anything is wrong.\n"
    "Of a COPY (once backup) it checks the sum of the file and each record.\n"
    "\n"
    "Prints durable (whether an acknowledged record survives a crash; if not, a\n"
    "line says why), the states, corrupt (records),\n"
    "wrong (what the driver found; - if it has no check of its own), and oldest\n"
    "(when the oldest indeterminate record was granted, UTC).\n"
    "\n"
    "A corrupt record counts as taken, so nothing runs twice. Keep a\n"
    "copy of the store, look at the disk, and restore from what you trust.\n";
/* clang-format on */

static const struct cli_option options[] = {
    CLI_COMMON_OPTIONS,
    {.name = NULL},
};

struct verify {
    const struct cli *c;
    struct cli_progress progress;
    struct cli_promise promise;
    int wrong; /* lines of the driver, or -1: it has no check */
    uint64_t of[KINDS];
    uint64_t oldest_ms;
    uint64_t named;
    size_t n; /* of the page */
    size_t sizes[PAGE];
    int bad[PAGE]; /* the scan says so already */
    once_op ops[PAGE];
    once_op *list[PAGE];
};

static void driver_says(void *user, const char *text)
{
    struct verify *v = user;

    cli_progress_end(&v->progress);
    fprintf(stderr, "once %s: ", v->c->command->name);
    cli_print_text(stderr, cli_bytes(text));
    fputc('\n', stderr);
}

static int ask_driver(struct verify *v)
{
    once_error err = {0, ""};
    int rc = once_store_verify(cli_url(v->c), driver_says, v, &err);

    if (rc == ONCE_ENOSYS)
        v->wrong = -1;
    else if (rc < 0)
        return cli_trouble(v->c, rc, &err);
    else
        v->wrong = rc;
    return CLI_OK;
}

/* ---- Every record -------------------------------------------------------- */

static int collect(void *user, const uint8_t name[ONCE_NAME_SIZE],
                   const once_record *r)
{
    struct verify *v = user;
    once_op *op = &v->ops[v->n];

    memset(op, 0, sizeof(*op));
    op->verb = ONCE_OP_SHOW;
    memcpy(op->name, name, ONCE_NAME_SIZE);
    v->bad[v->n] = r->state > ONCE_INDETERMINATE;
    v->sizes[v->n] = v->bad[v->n] ? 0 : r->result.size;
    v->list[v->n] = op;
    return ++v->n == PAGE;
}

static void report_corrupt(struct verify *v, const uint8_t name[ONCE_NAME_SIZE])
{
    char hex[CLI_HEX_SIZE];

    v->of[CORRUPT]++;
    if (v->named++ >= NAMED_MAX)
        return;
    cli_progress_end(&v->progress);
    cli_hex(name, CLI_DIGITS, hex);
    cli_say(v->c, 0, "corrupt: %s", hex);
}

/* One that was forgotten meanwhile is not counted. */
static void judge(struct verify *v, size_t i)
{
    const once_op *op = &v->ops[i];
    const once_record *r = &op->record;

    if (v->bad[i] || op->rc < 0) {
        report_corrupt(v, op->name);
        return;
    }
    if (r->attempt == 0)
        return;
    v->of[r->state]++;
    if (r->state == ONCE_INDETERMINATE &&
        (v->oldest_ms == 0 || r->granted_ms < v->oldest_ms))
        v->oldest_ms = r->granted_ms;
}

/* In batches whose results fit into memory. */
static int read_page(struct verify *v, once_store *s)
{
    size_t from = 0, to, i, bytes;
    int rc;

    for (; from < v->n; from = to) {
        bytes = 0;
        for (to = from; to < v->n && (to == from || bytes < BYTES_MAX); to++)
            bytes += v->sizes[to];
        rc = cli_ask(v->c, s, v->list + from, to - from);
        if (rc != CLI_OK)
            return CLI_STORE; /* nothing was to be changed */
        for (i = from; i < to; i++)
            judge(v, i);
    }
    return CLI_OK;
}

static int read_all(struct verify *v, once_store *s)
{
    once_position last = {0, {0}};
    const once_position *after = NULL;
    once_error err = {0, ""};
    uint64_t seen = 0;
    int rc;

    do {
        v->n = 0;
        rc = s->ops->scan(s, ONCE_SCAN_ALL, after, PAGE, collect, v, &err);
        if (rc < 0)
            return cli_trouble(v->c, rc, &err);
        if (v->n == 0)
            break;
        memcpy(last.name, v->ops[v->n - 1].name, ONCE_NAME_SIZE);
        after = &last;
        seen += v->n;
        rc = read_page(v, s);
        cli_progress(&v->progress, cli_part(last.name), seen);
    } while (rc == CLI_OK && v->n == PAGE);
    return rc;
}

/* ---- Output ------------------------------------------------------------- */

static void print_text(const struct verify *v)
{
    const struct cli *c = v->c;
    int i;

    cli_line(c, "durable", v->promise.durable ? "yes" : "no");
    if (v->promise.caveat[0] != '\0')
        cli_line(c, "caveat", v->promise.caveat);
    for (i = 0; i < KINDS; i++)
        cli_number(c, cli_state(i), v->of[i]);
    if (v->wrong < 0)
        cli_line(c, "wrong", "-");
    else
        cli_number(c, "wrong", (uint64_t)v->wrong);
    cli_moment(c, "oldest", v->oldest_ms);
}

static int print_json(const struct verify *v)
{
    json_t *o =
        json_pack("{s:b, s:s?, s:o, s:o}", "durable", v->promise.durable,
                  "caveat", v->promise.caveat[0] ? v->promise.caveat : NULL,
                  "wrong", v->wrong < 0 ? json_null() : json_integer(v->wrong),
                  "oldest", cli_json_time(v->oldest_ms));
    int i, bad = o == NULL;

    for (i = 0; i < KINDS; i++)
        bad |= json_object_set_new(o, cli_state(i),
                                   json_integer((json_int_t)v->of[i]));
    if (bad) {
        json_decref(o);
        o = NULL;
    }
    return cli_print_json(v->c, o);
}

static int report(const struct verify *v)
{
    int rc = CLI_OK;

    if (v->c->json)
        rc = print_json(v);
    else
        print_text(v);
    if (v->of[CORRUPT] == 0 && v->wrong <= 0)
        return rc;
    if (v->of[CORRUPT] == 0)
        return cli_say(v->c, CLI_STORE,
                       "every record can be read, and something beside them is "
                       "damaged: see above. Keep a copy of the store and look "
                       "at the disk");
    return cli_say(v->c, CLI_STORE,
                   "something is corrupt. Such a record counts as taken, "
                   "so nothing runs twice. Keep a copy of the store and look "
                   "at the disk");
}

static int verify(struct verify *v)
{
    once_store *s = NULL;
    int rc = cli_named(v->c);

    if (rc == CLI_OK)
        rc = ask_driver(v);
    if (rc == CLI_OK)
        rc = cli_open_store_to_look(v->c, &s);
    if (rc != CLI_OK)
        return rc;
    cli_promise_of(s, &v->promise);
    rc = read_all(v, s);
    once_store_close(s);
    cli_progress_end(&v->progress);
    return rc == CLI_OK ? report(v) : rc;
}

/* ---- Copies --------------------------------------------------------------- */

static int is_copy(const char *path)
{
    char magic[8] = "";
    FILE *from = fopen(path, "re");
    int is = from != NULL && fread(magic, 1, sizeof(magic), from) == 8 &&
             memcmp(magic, "ONCECOPY", 8) == 0;

    if (from != NULL)
        (void)fclose(from);
    return is;
}

static int print_copy(const struct cli *c, const once__copy_about *about,
                      const uint64_t of[KINDS])
{
    json_t *o = NULL;
    int i, bad;

    if (!c->json) {
        cli_moment(c, "begun", about->begun_ms);
        for (i = 0; i < CORRUPT; i++)
            cli_number(c, cli_state(i), of[i]);
        return CLI_OK;
    }
    o = json_pack("{s:o}", "begun", cli_json_time(about->begun_ms));
    bad = o == NULL;
    for (i = 0; i < CORRUPT; i++)
        bad |= json_object_set_new(o, cli_state(i),
                                   json_integer((json_int_t)of[i]));
    if (bad) {
        json_decref(o);
        o = NULL;
    }
    return cli_print_json(c, o);
}

static int verify_copy(const struct cli *c, const char *path)
{
    uint64_t of[KINDS] = {0};
    once__copy *copy = NULL;
    once_named one;
    once_error err = {0, ""};
    int rc = once__copy_open(path, &err, &copy);

    while (rc == ONCE_OK && (rc = once__copy_next(copy, &one, &err)) > 0) {
        of[one.record.state]++;
        rc = ONCE_OK;
    }
    rc = rc == ONCE_OK ? print_copy(c, once__copy_about_of(copy), of)
                       : cli_say(c, CLI_STORE, "%s", err.text);
    once__copy_close(copy);
    return rc;
}

static int run(struct cli *c, int argc, char **argv)
{
    struct verify *v = NULL;
    char *url = NULL;
    int rc = cli_read_args(c, argc, argv, NULL, NULL);

    if (rc == CLI_OK && argc == optind + 1 && is_copy(argv[optind]))
        return verify_copy(c, argv[optind]);
    if (rc == CLI_OK)
        rc = cli_take_store(c, argc, argv, &url);
    if (rc != CLI_OK)
        return rc;
    v = calloc(1, sizeof(*v));
    if (v == NULL) {
        rc = cli_say(c, CLI_STORE, "out of memory");
        goto out;
    }
    v->c = c;
    cli_progress_start(&v->progress, c, "records");
    rc = verify(v);
out:
    free(v);
    free(url);
    return rc;
}

const struct cli_command cli_cmd_verify = {
    "verify", "read the whole store and find records that are corrupt",
    help,     options,
    NULL,     run};
