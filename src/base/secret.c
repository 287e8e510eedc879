/* SPDX-License-Identifier: Apache-2.0 */
/* secret.c - see secret.h. No text repeats a secret. */
#include "base/secret.h"

#include <stdlib.h>
#include <string.h>

#include "base/error.h"

/* ---- Passwords in a URL ---------------------------------------------------- */

static const char *const parameters[] = {"password=", "sslpassword="};

enum { PARAMETERS = sizeof(parameters) / sizeof(parameters[0]) };

/* ":PASSWORD" before the "@" of the authority; its size, or 0. */
static size_t find_in_authority(const char *url, const char **out)
{
    const char *at = strstr(url, "://"), *end, *colon;

    if (at == NULL)
        return 0;
    at += 3;
    end = memrchr(at, '@', strcspn(at, "/?#"));
    colon = end == NULL ? NULL : memchr(at, ':', (size_t)(end - at));
    if (colon == NULL)
        return 0;
    *out = colon;
    return (size_t)(end - colon);
}

/* The first parameter from `at` on, which stands behind a "?" or "&", that holds a
 * password, with the "&" behind it. */
static size_t find_parameter(const char *at, const char **out)
{
    size_t i, n;

    for (at = strchr(at, '?'); at != NULL; at = strchr(at, '&')) {
        at++;
        for (i = 0; i < PARAMETERS; i++) {
            n = strlen(parameters[i]);
            if (strncmp(at, parameters[i], n) != 0)
                continue;
            n = strcspn(at, "&#");
            *out = at;
            return n + (at[n] == '&');
        }
    }
    return 0;
}

int once__url_has_password(const char *url)
{
    const char *at;

    return find_in_authority(url, &at) > 0 || find_parameter(url, &at) > 0;
}

static void cut(char *url, const char *at, size_t size)
{
    memmove(url + (at - url), at + size, strlen(at + size) + 1);
}

void once__url_hide_password(char *url)
{
    const char *at;
    size_t n = find_in_authority(url, &at);

    if (n > 0)
        cut(url, at, n);
    while ((n = find_parameter(url, &at)) > 0)
        cut(url, at, n);
}

/* ---- Files ----------------------------------------------------------------- */

int once__secret_mode(const char *path, const struct stat *st, once_error *err)
{
    const mode_t bad = S_IWGRP | S_IRWXO;

    if (!S_ISREG(st->st_mode) || (st->st_mode & bad) == 0)
        return ONCE_OK;
    return once__fail(err, ONCE_EOPEN,
                      "%s: it holds a secret and has mode %04o: its group may "
                      "write it, or everybody may use it. chmod %04o %s",
                      path, (unsigned)(st->st_mode & 07777),
                      (unsigned)(st->st_mode & 07777 & ~bad), path);
}

/* ---- The environment of a command ------------------------------------------- */

char *once__variable_for_child(char *entry)
{
    static const char *const ours[] = {"ONCE_STORE=", "ONCE_DATABASE="};
    char *copy = entry;
    size_t i;

    for (i = 0; i < sizeof(ours) / sizeof(ours[0]) && copy == entry; i++)
        if (strncmp(entry, ours[i], strlen(ours[i])) == 0 &&
            once__url_has_password(entry)) {
            copy = strdup(entry);
            if (copy != NULL)
                once__url_hide_password(copy);
        }
    return copy;
}
