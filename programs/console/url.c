/* SPDX-License-Identifier: Apache-2.0 */
/*
 * url.c - URLs of the command line: from a file, where they hold a password, and
 * whether a page may show them. No text here repeats one.
 */
#include "programs/console/console.h"

#include <string.h>

#include "base/secret.h"

/* What pages show of the command line: it is JSON, and so no other bytes. */
int console_is_plain(const char *text)
{
    for (; *text != '\0'; text++)
        if (*text <= 0x20 || *text >= 0x7f)
            return 0;
    return 1;
}

int console_read_url(const struct console *con, const char *option,
                     const char *name, const char **url,
                     char memory[CONSOLE_URL_MAX])
{
    once_error err = {0, ""};
    struct stat st;
    size_t n;
    FILE *in;
    int has;

    if ((*url)[0] != '@')
        return CLI_OK;
    in = fopen(*url + 1, "re");
    has = in != NULL && fstat(fileno(in), &st) == 0;
    if (in == NULL || fgets(memory, CONSOLE_URL_MAX, in) == NULL)
        memory[0] = '\0';
    if (in != NULL)
        fclose(in);
    n = strcspn(memory, "\r\n");
    memory[n] = '\0';
    if (n == 0)
        return cli_say(con->cli, CLI_STORE,
                       "--%s %s: no URL can be read from that file", option,
                       name);
    if (has && once__url_has_password(memory) &&
        once__secret_mode(*url + 1, &st, &err) != ONCE_OK)
        return cli_say(con->cli, CLI_STORE, "--%s %s: %s", option, name,
                       err.text);
    *url = memory;
    return CLI_OK;
}
