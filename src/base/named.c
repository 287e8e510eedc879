/* SPDX-License-Identifier: Apache-2.0 */
/*
 * named.c - the one place that knows what a store's name means.
 *
 *    # a comment
 *    url = journal:/var/lib/once/pay
 *    title = Payments
 *
 * It guesses nothing: a key that it does not know may be one that a newer
 * version needs, so it is refused, with the number of its line.
 */
#include "base/named.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/error.h"
#include "base/secret.h"

#define SCHEME "name:"

/* Where the files are: ONCE_STORES_D, or /etc/once/stores.d. */
static const char *find_folder(void)
{
    const char *folder = secure_getenv("ONCE_STORES_D");

    return folder != NULL && folder[0] != '\0' ? folder : "/etc/once/stores.d";
}

const char *once__named_in(const char *text)
{
    if (strncmp(text, SCHEME, sizeof(SCHEME) - 1) == 0)
        return text + sizeof(SCHEME) - 1;
    return strchr(text, ':') == NULL ? text : NULL;
}

static int is_name(const char *name)
{
    size_t n = strspn(name, "abcdefghijklmnopqrstuvwxyz0123456789_-");

    return n >= 1 && n <= ONCE__NAMED_NAME && name[n] == '\0';
}

/* Its bytes and a NUL. */
static int read_file(const char *path, const char *name,
                     char out[ONCE__NAMED_FILE + 2], once_error *err)
{
    /* Not to wait for a writer, if it is a pipe. */
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    struct stat st;
    size_t n = 0;
    ssize_t got = 1;
    int rc = ONCE_OK;

    if (fd < 0 && errno == ENOENT)
        return once__fail(err, ONCE_EURL,
                          "store: no store has the name \"%s\": there is no %s",
                          name, path);
    if (fd < 0 || fstat(fd, &st) != 0)
        rc = once__fail(err, ONCE_EOPEN, "%s: %s", path, strerror(errno));
    else if (!S_ISREG(st.st_mode))
        rc = once__fail(err, ONCE_EURL, "%s: this is not a file", path);
    while (rc == ONCE_OK && got != 0 && n <= ONCE__NAMED_FILE) {
        got = read(fd, out + n, ONCE__NAMED_FILE + 1 - n);
        if (got > 0)
            n += (size_t)got;
        else if (got < 0 && errno != EINTR)
            rc = once__fail(err, ONCE_EOPEN, "%s: %s", path, strerror(errno));
    }
    if (rc == ONCE_OK && n > ONCE__NAMED_FILE)
        rc = once__fail(err, ONCE_EURL, "%s: longer than %d bytes", path,
                        ONCE__NAMED_FILE);
    if (rc == ONCE_OK && memchr(out, '\0', n) != NULL)
        rc = once__fail(err, ONCE_EURL, "%s: this is not text", path);
    out[rc == ONCE_OK ? n : 0] = '\0';
    if (rc == ONCE_OK && once__url_has_password(out))
        rc = once__secret_mode(path, &st, err);
    if (fd >= 0)
        (void)close(fd);
    return rc;
}

/* Cuts spaces off both ends. */
static char *trim(char *text)
{
    size_t n;

    text += strspn(text, " \t");
    n = strlen(text);
    while (n > 0 && (text[n - 1] == ' ' || text[n - 1] == '\t'))
        n--;
    text[n] = '\0';
    return text;
}

static int has_control(const char *text)
{
    for (; *text != '\0'; text++)
        if ((unsigned char)*text < 0x20 || *text == 0x7f)
            return 1;
    return 0;
}

/* Why not, or NULL. `out` is as long as its member allows. */
static const char *set(char *out, size_t size, const char *value)
{
    if (out[0] != '\0')
        return "it stands twice";
    if (value[0] == '\0')
        return "it has no value";
    if (strlen(value) >= size)
        return "its value is too long";
    if (has_control(value))
        return "its value has a control character";
    memcpy(out, value, strlen(value) + 1);
    return NULL;
}

/* One line of it; why not, or NULL. */
static const char *take(char *line, struct once__named *out)
{
    char *key = trim(line), *value = strchr(key, '=');

    if (key[0] == '\0' || key[0] == '#')
        return NULL;
    if (value == NULL)
        return "this is not KEY = VALUE";
    *value++ = '\0';
    key = trim(key);
    value = trim(value);
    if (strcmp(key, "title") == 0)
        return set(out->title, sizeof(out->title), value);
    if (strcmp(key, "url") != 0)
        return "unknown key; there are: url title";
    if (once__named_in(value) != NULL)
        return "this is not the URL of a store";
    return set(out->url, sizeof(out->url), value);
}

static int read_named(const char *name, struct once__named *out,
                      once_error *err)
{
    char path[PATH_MAX], text[ONCE__NAMED_FILE + 2], *line, *next = text;
    const char *why = NULL;
    int n, number = 0, rc;

    memset(out, 0, sizeof(*out));
    if (!is_name(name))
        return once__fail(err, ONCE_EURL,
                          "store: a name has 1 to %d characters: a to z, 0 to "
                          "9, _ and -",
                          ONCE__NAMED_NAME);
    n = snprintf(path, sizeof(path), "%s/%s", find_folder(), name);
    if (n < 0 || (size_t)n >= sizeof(path))
        return once__fail(err, ONCE_EURL, "store: ONCE_STORES_D is too long");
    rc = read_file(path, name, text, err);
    if (rc != ONCE_OK)
        return rc;
    while (why == NULL && (line = strsep(&next, "\n")) != NULL) {
        number++;
        why = take(line, out);
    }
    if (why != NULL)
        return once__fail(err, ONCE_EURL, "%s:%d: %s", path, number, why);
    if (out->url[0] == '\0')
        return once__fail(err, ONCE_EURL, "%s: it names no url", path);
    return ONCE_OK;
}

int once__named_url(const char *text, struct once__named *memory,
                    const char **url, once_error *err)
{
    const char *name = once__named_in(text);
    int rc;

    *url = text;
    if (name == NULL)
        return ONCE_OK;
    rc = read_named(name, memory, err);
    *url = memory->url;
    return rc;
}
