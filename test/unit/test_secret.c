/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_secret.c - a file with a password is read if only its owner and its group
 * may read it.
 */
#include "base/secret_file.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "t.h"

static char path[] = "/tmp/test-secret-XXXXXX";

static void put(const char *text, unsigned mode)
{
    FILE *out = fopen(path, "w");

    T_OK(out != NULL && fputs(text, out) >= 0);
    if (out != NULL)
        (void)fclose(out);
    T_EQ(chmod(path, mode), 0);
}

static void others_may_not_use_it(void)
{
    static const struct {
        unsigned mode;
        int answer;
    } rows[] = {
        {0600, ONCE_OK},    {0400, ONCE_OK},    {0640, ONCE_OK},
        {0440, ONCE_OK},    {0660, ONCE_EOPEN}, {0644, ONCE_EOPEN},
        {0604, ONCE_EOPEN}, {0602, ONCE_EOPEN}, {0666, ONCE_EOPEN},
    };
    char out[100];
    once_error err;
    size_t i;
    int rc;

    for (i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        put("hidden\nmore\n", rows[i].mode);
        rc = once__secret_read(path, out, sizeof(out), &err);
        T_EQ(rc, rows[i].answer);
        if (rc == ONCE_OK)
            T_STR(out, "hidden");
        else
            T_OK(strstr(err.text, path) != NULL &&
                 strstr(err.text, "chmod 0") != NULL &&
                 strstr(err.text, "hidden") == NULL);
    }
}

static void what_cannot_be_read_is_named(void)
{
    char out[8];
    once_error err;

    put("", 0600);
    T_EQ(once__secret_read(path, out, sizeof(out), &err), ONCE_EOPEN);
    T_OK(strstr(err.text, "empty") != NULL);
    put("12345678", 0600);
    T_EQ(once__secret_read(path, out, sizeof(out), &err), ONCE_EOPEN);
    T_OK(strstr(err.text, "too long") != NULL && out[0] == '\0');
    put("1234567", 0600);
    T_EQ(once__secret_read(path, out, sizeof(out), &err), ONCE_OK);
    T_STR(out, "1234567");
    T_EQ(unlink(path), 0);
    T_EQ(once__secret_read(path, out, sizeof(out), &err), ONCE_EOPEN);
    T_OK(strstr(err.text, path) != NULL &&
         strstr(err.text, "No such file") != NULL);
}

static void only_the_first_line_counts(void)
{
    static const char *const rests[] = {
        "\n", "\r\n", "\n\n", "\nmore\n",
        "\n# This line says at length who has made the one above.\n"};
    char out[8], text[100];
    once_error err;
    size_t i;

    for (i = 0; i < sizeof(rests) / sizeof(rests[0]); i++) {
        (void)snprintf(text, sizeof(text), "123456%s", rests[i]);
        put(text, 0600);
        T_EQ(once__secret_read(path, out, sizeof(out), &err), ONCE_OK);
        T_STR(out, "123456");
    }
    put("1234567\nmore\n", 0600);
    T_EQ(once__secret_read(path, out, sizeof(out), &err), ONCE_OK);
    T_STR(out, "1234567");
    put("12345678\nmore\n", 0600);
    T_EQ(once__secret_read(path, out, sizeof(out), &err), ONCE_EOPEN);
    T_OK(strstr(err.text, "too long") != NULL && out[0] == '\0');
}

int main(void)
{
    int fd = mkstemp(path);

    if (fd >= 0)
        (void)close(fd);
    T_RUN(others_may_not_use_it);
    T_RUN(only_the_first_line_counts);
    T_RUN(what_cannot_be_read_is_named);
    return t_done();
}
