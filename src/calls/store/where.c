/* SPDX-License-Identifier: Apache-2.0 */
/*
 * where.c - by which name, or at which URL, a store is opened: a number for it.
 *
 *    pay, name:pay                              its name
 *    journal:/var/lib/once/pay                  scheme and path, from the root
 *    postgres://u:secret@db/shop?schema=a&connect_ms=9
 *               ---------                ^ of the parameters those that say
 *               left out                   which store it is
 *
 * With it the witness (engine/witness.c) notices that another store lies there
 * than before. The same place that is written in another way is another
 * one: localhost and 127.0.0.1. FNV-1a: no one gains by a collision, which says
 * that a store is another one.
 *
 * And what is said when no store is there.
 */
#include <limits.h>
#include <string.h>
#include <unistd.h>

#include "base/error.h"
#include "base/named.h"
#include "calls/store/store.h"

/* All others name the caller, or how it asks. */
static const char *const telling[] = {"db",   "dbname", "host",   "hostaddr",
                                      "port", "prefix", "schema", "service"};

static uint64_t add(uint64_t hash, const char *text, size_t size)
{
    size_t i;

    for (i = 0; i < size; i++)
        hash = (hash ^ (unsigned char)text[i]) * UINT64_C(0x100000001b3);
    return hash;
}

/* So that a part cannot go on in the next one. */
static uint64_t end(uint64_t hash)
{
    return add(hash, "", 1);
}

static uint64_t add_path(uint64_t hash, const char *path, size_t size)
{
    char folder[PATH_MAX];

    if (size > 0 && path[0] != '/' && getcwd(folder, sizeof(folder)) != NULL)
        hash = add(add(hash, folder, strlen(folder)), "/", 1);
    while (size > 1 && path[size - 1] == '/')
        size--;
    return end(add(hash, path, size));
}

/* "//" and what follows it up to the parameters, without user and password. */
static uint64_t add_server(uint64_t hash, const char *from, size_t size)
{
    const char *stop = from + size, *at;

    from += 2;
    at = memrchr(from, '@', strcspn(from, "/?#"));
    if (at != NULL)
        from = at + 1;
    return end(add(hash, from, (size_t)(stop - from)));
}

/* In the order of `telling`, so that theirs does not matter. */
static uint64_t add_parameters(uint64_t hash, const char *query)
{
    size_t i, name;
    const char *at;

    for (i = 0; i < sizeof(telling) / sizeof(telling[0]); i++) {
        name = strlen(telling[i]);
        for (at = query; *at == '?' || *at == '&'; at += strcspn(at, "&#")) {
            at++;
            if (strncmp(at, telling[i], name) == 0 && at[name] == '=')
                hash = end(add(hash, at, strcspn(at, "&#")));
        }
    }
    return hash;
}

uint64_t once__where(const char *text)
{
    const char *name = once__named_in(text), *rest;
    uint64_t hash = UINT64_C(0xcbf29ce484222325);
    size_t scheme, size;

    if (name != NULL)
        return end(add(hash, name, strlen(name)));
    scheme = strcspn(text, ":");
    rest = text + scheme + 1;
    size = strcspn(rest, "?#");
    if (strncmp(text, "postgresql:", scheme + 1) == 0)
        scheme = sizeof("postgres") - 1;         /* another word for it */
    hash = add(add(hash, text, scheme), ":", 1); /* no name has one */
    if (strncmp(rest, "//", 2) == 0)
        hash = add_server(hash, rest, size);
    else
        hash = add_path(hash, rest, size);
    return add_parameters(hash, rest + size);
}

int once__missing(once_error *err, const char *what, const char *text)
{
    return once__fail(
        err, ONCE_EOPEN,
        "%s: %s; nothing was created, since it may have been moved "
        "away, or its disk is not mounted. A new, empty store is "
        "made by once init",
        what, text);
}
