/* SPDX-License-Identifier: Apache-2.0 */
/*
 * store.c - opening a store as an operator, and finding one record in it.
 *
 * Works through the public interface only, without a reaper: looking must not
 * change anything. Refuses to create a store, which would turn a misspelt path
 * into the answer "there is nothing".
 */
#include "cli.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include <sys/stat.h>

enum { PATIENCE_MS = 5000 };

static const char *advice(int code)
{
    switch (code) {
    case ONCE_EURL:
        return "A store URL is like sqlite:/var/lib/once/store.db";
    case ONCE_EOPEN:
        return "Check the path, its permissions and the disk; the gateway's "
               "user must own the files";
    case ONCE_ECORRUPT:
        return "The record counts as taken, so nothing runs twice. Keep a copy "
               "of the store and look at the disk";
    case ONCE_EVERSION:
        return "Use the version of once that the gateway uses";
    case ONCE_ESTORE:
        return "The store may be locked by another process or the disk may be "
               "full. Look again with once show";
    default:
        return NULL;
    }
}

int cli_trouble(const struct cli *c, int code, const once_error *err)
{
    const char *what = err && err->text[0] ? err->text : once_text(code);
    const char *next = advice(code);

    cli_say(c, 0, "%s", what);
    if (next != NULL)
        fprintf(stderr, "%s.\n", next);
    if (code == ONCE_EURL || code == ONCE_EINVAL || code == ONCE_ELIMIT)
        return CLI_USAGE;
    return CLI_STORE;
}

/* The file that must be there already, or NULL if the URL names none. */
static char *file_of(const char *url)
{
    static const char faulty[] = "faulty:", sqlite[] = "sqlite:";
    const char *inner = url;

    if (strncmp(url, faulty, sizeof(faulty) - 1) == 0) {
        inner = strchr(url, '@');
        if (inner++ == NULL)
            return NULL;
    }
    if (strncmp(inner, sqlite, sizeof(sqlite) - 1) != 0)
        return NULL;
    inner += sizeof(sqlite) - 1;
    return strndup(inner, strcspn(inner, "?"));
}

static int must_exist(const struct cli *c)
{
    char *path = file_of(c->store);
    int rc = CLI_OK;
    struct stat st;

    if (path != NULL && path[0] != '\0' && stat(path, &st) < 0)
        rc = cli_say(c, CLI_STORE, "%s: %s; nothing was created", path,
                     strerror(errno));
    free(path);
    return rc;
}

int cli_open(const struct cli *c, once_engine **out)
{
    once_engine_options options = ONCE_ENGINE_OPTIONS_INIT;
    once_error err = {0, ""};
    int rc;

    if (c->store == NULL || c->store[0] == '\0')
        return cli_usage(c, "which store? Say --store URL or set ONCE_STORE");
    if (strncmp(c->store, "memory:", 7) == 0)
        return cli_usage(c, "memory: lives inside one process and cannot be "
                            "seen from another; its gateway's status page can");
    rc = must_exist(c);
    if (rc != CLI_OK)
        return rc;
    options.no_reaper = 1;
    rc = once_engine_open(c->store, &options, &err, out);
    return rc < 0 ? cli_trouble(c, rc, &err) : CLI_OK;
}

/* ---- Finding a record by the first digits of its name ------------------- */

struct search {
    const struct cli_name *name;
    uint8_t found[2][ONCE_NAME_SIZE];
    size_t n;
};

static int has_prefix(const uint8_t name[ONCE_NAME_SIZE],
                      const struct cli_name *prefix)
{
    size_t whole = prefix->digits / 2;

    if (memcmp(name, prefix->bytes, whole) != 0)
        return 0;
    return prefix->digits % 2 == 0 ||
           (name[whole] & 0xf0) == prefix->bytes[whole];
}

static int see(void *user, const uint8_t name[ONCE_NAME_SIZE],
               const once_record *r)
{
    struct search *s = user;

    (void)r;
    if (s->n == 2 || !has_prefix(name, s->name))
        return 1;
    memcpy(s->found[s->n++], name, ONCE_NAME_SIZE);
    return 0;
}

/* The last name before all that begin with the prefix: NULL if there is none,
 * since the walk then starts at the beginning. */
static const uint8_t *before(const struct cli_name *prefix,
                             uint8_t out[ONCE_NAME_SIZE])
{
    size_t i = ONCE_NAME_SIZE;

    memcpy(out, prefix->bytes, ONCE_NAME_SIZE);
    while (i-- > 0)
        if (out[i]-- != 0)
            return out;
    return NULL;
}

int cli_find(const struct cli *c, once_engine *e, const struct cli_name *name,
             uint8_t out[ONCE_NAME_SIZE])
{
    struct search s = {name, {{0}}, 0};
    char one[CLI_HEX_SIZE], two[CLI_HEX_SIZE];
    uint8_t after[ONCE_NAME_SIZE];
    once_error err = {0, ""};
    int rc;

    if (name->digits == CLI_DIGITS) {
        memcpy(out, name->bytes, ONCE_NAME_SIZE);
        return CLI_OK;
    }
    rc = once_list(e, before(name, after), 2, see, &s, &err);
    if (rc < 0)
        return cli_trouble(c, rc, &err);
    if (s.n == 0)
        return cli_say(c, CLI_NO,
                       "no record's name begins so. It may have "
                       "been forgotten, or be in another store: "
                       "see once ls");
    if (s.n == 2) {
        cli_hex(s.found[0], CLI_DIGITS, one);
        cli_hex(s.found[1], CLI_DIGITS, two);
        return cli_say(c, CLI_NO,
                       "more than one record's name begins so; give "
                       "more digits. The first two:\n%s\n%s",
                       one, two);
    }
    memcpy(out, s.found[0], ONCE_NAME_SIZE);
    return CLI_OK;
}

int cli_look(const struct cli *c, once_engine *e,
             const uint8_t name[ONCE_NAME_SIZE], once_op *op)
{
    once_error err = {0, ""};
    int rc;

    memset(op, 0, sizeof(*op));
    op->verb = ONCE_OP_SHOW;
    op->store_ms = PATIENCE_MS;
    memcpy(op->name, name, ONCE_NAME_SIZE);
    rc = once_apply(e, op, &err);
    if (rc < 0)
        return cli_trouble(c, rc, &err);
    if (op->record.attempt == 0)
        return cli_say(c, CLI_NO,
                       "there is no such record. It may have been "
                       "forgotten, or be in another store: see "
                       "once ls");
    return CLI_OK;
}
