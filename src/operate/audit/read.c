/* SPDX-License-Identifier: Apache-2.0 */
/*
 * read.c - the lines of a file, one after the other; and which of them fit.
 */
#include "operate/audit/line.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <sys/stat.h>

#include "base/error.h"

/* A text of a line is wanted up to here; what is longer has a flaw anyway. */
enum { BUFFER = ONCE__AUDIT_LINE_MAX + 2 };

/* Reads a line of which the first BUFFER bytes are kept. Returns how many that
 * are, with the line break; 0 at the end. */
static size_t next(FILE *in, char *buffer)
{
    size_t n = 0;
    int ch;

    while ((ch = getc_unlocked(in)) != EOF) {
        if (n < BUFFER)
            buffer[n++] = (char)ch;
        if (ch == '\n') {
            buffer[n - 1] = '\n'; /* also of one that is too long */
            break;
        }
    }
    return n;
}

static int read_lines(FILE *in, once__audit_each *each, void *user)
{
    char *buffer = malloc(BUFFER);
    once__audit_line line = {.number = 0};
    int rc = ONCE_OK;
    size_t n;

    if (buffer == NULL)
        return ONCE_ENOMEM;
    while (rc == ONCE_OK && (n = next(in, buffer)) > 0) {
        line.number++;
        line.whole = buffer[n - 1] == '\n';
        once__audit_parse((once_bytes){buffer, n - (size_t)line.whole}, &line);
        rc = each(user, &line);
        json_decref(line.json);
    }
    free(buffer);
    return rc;
}

/* A regular file only: reading a pipe could wait for ever. */
static FILE *open_file(const char *path)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    struct stat st;
    FILE *in = NULL;

    if (fd < 0)
        return NULL;
    if (fstat(fd, &st) == 0) {
        if (S_ISREG(st.st_mode))
            in = fdopen(fd, "r");
        else
            errno = EINVAL;
    }
    if (in == NULL)
        (void)close(fd);
    return in;
}

int once__audit_read(const char *path, once__audit_each *each, void *user,
                     once_error *err)
{
    int is_stdin = strcmp(path, "-") == 0;
    FILE *in = is_stdin ? stdin : open_file(path);
    int rc;

    if (in == NULL)
        return once__fail(err, ONCE_EOPEN, "%s: cannot be read: %s", path,
                          strerror(errno));
    rc = read_lines(in, each, user);
    if (rc == ONCE_OK && ferror(in))
        rc = once__fail(err, ONCE_EOPEN, "%s: cannot be read: %s", path,
                        strerror(errno));
    else if (rc == ONCE_ENOMEM)
        rc = once__fail(err, rc, "out of memory");
    if (!is_stdin)
        fclose(in);
    return rc;
}

/* ---- What fits ------------------------------------------------------------ */

static int begins(const char *text, const char *beginning)
{
    return text != NULL && strncmp(text, beginning, strlen(beginning)) == 0;
}

static int is_who(const once__audit_line *line, const char *who)
{
    const char *user = once__audit_field(line, "user");
    const char *const numbers[] = {"uid", "login_uid"};
    char text[24];
    size_t i;

    if (user != NULL && strcmp(user, who) == 0)
        return 1;
    for (i = 0; i < 2; i++) {
        json_t *value = json_object_get(line->json, numbers[i]);

        snprintf(text, sizeof(text), "%" JSON_INTEGER_FORMAT,
                 json_integer_value(value));
        if (json_is_integer(value) && strcmp(text, who) == 0)
            return 1;
    }
    return 0;
}

/* "2026-11-22T13:30:00.123Z" in milliseconds; 0 if it is no such time. */
static uint64_t time_of(const once__audit_line *line)
{
    const char *text = once__audit_field(line, "time"), *end;
    struct tm tm = {0};
    time_t s;

    end = text != NULL ? strptime(text, "%Y-%m-%dT%H:%M:%S", &tm) : NULL;
    if (end == NULL)
        return 0;
    s = timegm(&tm);
    return (uint64_t)s * 1000 +
           (*end == '.' ? strtoul(end + 1, NULL, 10) % 1000 : 0);
}

int once__audit_fits(const once__audit_filter *f, const once__audit_line *line)
{
    const char *action;

    if (line->flaw != NULL || line->seq <= f->after ||
        (f->before != 0 && line->seq >= f->before))
        return 0;
    if (f->since_ms != 0 && time_of(line) < f->since_ms)
        return 0;
    if (f->until_ms != 0 && time_of(line) >= f->until_ms)
        return 0;
    action = once__audit_field(line, "action");
    if (f->action != NULL && (action == NULL || strcmp(action, f->action) != 0))
        return 0;
    if (f->name != NULL && !begins(once__audit_field(line, "name"), f->name))
        return 0;
    if (f->store != NULL && !begins(once__audit_field(line, "store"), f->store))
        return 0;
    return f->who == NULL || is_who(line, f->who);
}
