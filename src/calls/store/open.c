/* SPDX-License-Identifier: Apache-2.0 */
/*
 * open.c - from a URL to a store: "SCHEME:REST", SCHEME a line of stores.def.
 * What has no colon is the name of a store: named.c.
 *
 * It refuses what it does not know and never repeats the URL, which may hold a
 * credential: a text names the schemes that exist.
 */
#include <assert.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "base/named.h"
#include "calls/store/store.h"

static const struct once__store_line lines[] = {
#define ONCE_STORE(driver, place, example)                                     \
    {&once__store_##driver, ONCE__STORE_##place, example},
#include "calls/store/stores.def"
#undef ONCE_STORE
};

enum { LINES = sizeof(lines) / sizeof(lines[0]), BUSY_MS = 500 };

const struct once__store_line *once__store_lines(size_t *n)
{
    *n = LINES;
    return lines;
}

/* `*rest` is what stands after the colon. */
static const struct once__store_line *line_of(const char *url,
                                              const char **rest)
{
    const char *colon = strchr(url, ':');
    size_t i, size;

    if (colon == NULL)
        return NULL;
    size = (size_t)(colon - url);
    for (i = 0; i < LINES; i++)
        if (strlen(lines[i].ops->name) == size &&
            memcmp(lines[i].ops->name, url, size) == 0) {
            *rest = colon + 1;
            return &lines[i];
        }
    return NULL;
}

const struct once__store_line *once__store_line_of(const char *text)
{
    struct once__named named;
    const char *url, *rest;

    if (once__named_url(text, &named, &url, NULL) != ONCE_OK)
        return NULL;
    return line_of(url, &rest);
}

static int is_of_host(const once_store_ops *ops)
{
    size_t i = 0;

    while (lines[i].ops != ops)
        i++;
    return lines[i].place == ONCE__STORE_PROCESS ||
           lines[i].place == ONCE__STORE_FILE ||
           lines[i].place == ONCE__STORE_FOLDER;
}

/* What stands before the colon, if it could be a scheme: anything else may
 * hold a credential and is not repeated. */
static int unknown(const char *url, once_error *err)
{
    char list[256] = "";
    size_t scheme = strspn(url, "abcdefghijklmnopqrstuvwxyz0123456789+-.");
    size_t i, used = 0;
    int n;

    for (i = 0; i < LINES && used < sizeof(list); i++) {
        n = snprintf(list + used, sizeof(list) - used,
                     " %s:", lines[i].ops->name);
        assert(n > 0);
        used += (size_t)n;
    }
    if (scheme > 16 || (url[scheme] != ':' && url[scheme] != '\0'))
        scheme = 0;
    return once__fail(err, ONCE_EURL,
                      "store: unknown scheme \"%.*s\"; there are:%s",
                      (int)scheme, url, list);
}

/* What the caller did not set, or did not know of, gets its default. */
static once_store_options with_defaults(const once_store_options *given)
{
    once_store_options o;

    memset(&o, 0, sizeof(o));
    if (given != NULL)
        memcpy(&o, given, given->size < sizeof(o) ? given->size : sizeof(o));
    o.size = sizeof(o);
    if (o.clock == NULL) {
        o.clock = once__wall_clock;
        o.user = NULL;
    }
    if (o.busy_ms == 0)
        o.busy_ms = BUSY_MS;
    return o;
}

/* Whose URL it is; `rest` is what stands after the colon, in `text` or in
 * `*named`. */
static int resolve(const char *text, struct once__named *named, once_error *err,
                   const once_store_ops **ops, const char **rest)
{
    const struct once__store_line *line;
    const char *url;
    int rc;

    if (text == NULL)
        return once__fail(err, ONCE_EURL, "store: there is no URL");
    rc = once__named_url(text, named, &url, err);
    if (rc != ONCE_OK)
        return rc;
    line = line_of(url, rest);
    if (line == NULL)
        return unknown(url, err);
    *ops = line->ops;
    return ONCE_OK;
}

/* A restored store that executes absent keys loses the promise for a while. */
static int read_head(once_store *s, const once_store_options *o,
                     once_error *err)
{
    const once_store_head *head = &s->head;
    int rc;

    if (s->ops->head == NULL)
        return ONCE_OK;
    rc = once__opening(s->ops->head(s, NULL, &s->head, err), err);
    if (rc != ONCE_OK || head->gap != ONCE_GAP_ACCEPT ||
        o->clock(o->user) >= head->gap_until_ms || s->caveat != NULL)
        return rc;
    (void)snprintf(s->gap_caveat, sizeof(s->gap_caveat),
                   "it was restored from a copy, and executes what was done "
                   "after that once more, until %llu ms since 1970",
                   (unsigned long long)head->gap_until_ms);
    s->caveat = s->gap_caveat;
    return ONCE_OK;
}

int once_store_open(const char *url, const once_store_options *options,
                    once_error *err, once_store **out)
{
    once_store_options o = with_defaults(options);
    struct once__named named;
    const once_store_ops *ops = NULL;
    const char *rest = NULL;
    once_store *s = NULL;
    int rc = resolve(url, &named, err, &ops, &rest);

    if (rc == ONCE_OK)
        rc = ops->open(rest, &o, err, &s);
    if (rc != ONCE_OK)
        return rc;
    s->of_host = is_of_host(ops);
    s->where = once__where(url);
    rc = read_head(s, &o, err);
    if (rc != ONCE_OK) {
        s->ops->close(s);
        return rc;
    }
    *out = s;
    return ONCE_OK;
}

void once_store_close(once_store *s)
{
    if (s != NULL)
        s->ops->close(s);
}

int once_store_check(const char *url, int *durable, int *shared,
                     once_error *err)
{
    once_store *s = NULL;
    int rc = once_store_open(url, NULL, err, &s);

    if (rc != ONCE_OK)
        return rc;
    if (durable != NULL)
        *durable = s->ops->durable && s->caveat == NULL;
    if (shared != NULL)
        *shared = s->ops->shared;
    once_store_close(s);
    return ONCE_OK;
}

/* ---- What only some stores have ------------------------------------------ */

int once_store_init(const char *url, once_error *err)
{
    once_store_options o = with_defaults(NULL);
    struct once__named named;
    const once_store_ops *ops = NULL;
    const char *rest = NULL;
    once_store *s = NULL;
    int rc = resolve(url, &named, err, &ops, &rest);

    o.create = 1;
    if (rc == ONCE_OK && ops->init != NULL)
        return ops->init(rest, &o, err);
    if (rc == ONCE_OK)
        rc = ops->open(rest, &o, err, &s);
    if (rc == ONCE_OK)
        s->ops->close(s);
    return rc;
}

enum told { SCHEMA, VERIFY, DUMP };

static int tell(const char *url, enum told what, once_line *line, void *user,
                once_error *err)
{
    static const char *const names[] = {"schema", "check of its own", "dump"};
    int (*driver)(const char *rest, once_line *line, void *user,
                  once_error *err);
    struct once__named named;
    const once_store_ops *ops = NULL;
    const char *rest = NULL;
    int rc = resolve(url, &named, err, &ops, &rest);

    if (rc != ONCE_OK)
        return rc;
    driver = what == SCHEMA   ? ops->print_schema
             : what == VERIFY ? ops->verify
                              : ops->dump;
    return driver == NULL
               ? once__fail(err, ONCE_ENOSYS, "%s: this store has no %s",
                            ops->name, names[what])
               : driver(rest, line, user, err);
}

int once_store_print_schema(const char *url, once_line *line, void *user,
                            once_error *err)
{
    return tell(url, SCHEMA, line, user, err);
}

int once_store_verify(const char *url, once_line *line, void *user,
                      once_error *err)
{
    return tell(url, VERIFY, line, user, err);
}

int once_store_dump(const char *url, once_line *line, void *user,
                    once_error *err)
{
    return tell(url, DUMP, line, user, err);
}
