/* SPDX-License-Identifier: Apache-2.0 */
/*
 * open.c - from a URL to a store: "SCHEME:REST", SCHEME a line of stores.def.
 *
 * It refuses what it does not know and never repeats the URL, which may hold a
 * credential: a text names the schemes that exist.
 */
#include <assert.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "core/error.h"
#include "store/store.h"

static const once_store_ops *const stores[] = {
#define ONCE_STORE(name) &once__store_##name,
#include "store/stores.def"
#undef ONCE_STORE
};

enum { STORES = sizeof(stores) / sizeof(stores[0]), BUSY_MS = 500 };

static uint64_t wall_clock(void *user)
{
    struct timespec t;

    (void)user;
    (void)clock_gettime(CLOCK_REALTIME, &t);
    return (uint64_t)t.tv_sec * 1000 + (uint64_t)t.tv_nsec / 1000000;
}

static const once_store_ops *find(const char *url, const char **rest)
{
    const char *colon = strchr(url, ':');
    size_t i, size;

    if (colon == NULL)
        return NULL;
    size = (size_t)(colon - url);
    for (i = 0; i < STORES; i++)
        if (strlen(stores[i]->name) == size &&
            memcmp(stores[i]->name, url, size) == 0) {
            *rest = colon + 1;
            return stores[i];
        }
    return NULL;
}

/* What stands before the colon, if it could be a scheme: anything else may
 * hold a credential and is not repeated. */
static int unknown(const char *url, once_error *err)
{
    char list[128] = "";
    size_t scheme = strspn(url, "abcdefghijklmnopqrstuvwxyz0123456789+-.");
    size_t i, used = 0;
    int n;

    for (i = 0; i < STORES && used < sizeof(list); i++) {
        n = snprintf(list + used, sizeof(list) - used, " %s:", stores[i]->name);
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
        o.clock = wall_clock;
        o.user = NULL;
    }
    if (o.busy_ms == 0)
        o.busy_ms = BUSY_MS;
    return o;
}

int once_store_open(const char *url, const once_store_options *options,
                    once_error *err, once_store **out)
{
    once_store_options o = with_defaults(options);
    const once_store_ops *ops;
    const char *rest = NULL;

    if (url == NULL)
        return once__fail(err, ONCE_EURL, "store: there is no URL");
    ops = find(url, &rest);
    if (ops == NULL)
        return unknown(url, err);
    return ops->open(rest, &o, err, out);
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
        *durable = s->ops->durable;
    if (shared != NULL)
        *shared = s->ops->shared;
    once_store_close(s);
    return ONCE_OK;
}
