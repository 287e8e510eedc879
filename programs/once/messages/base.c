/* SPDX-License-Identifier: Apache-2.0 */
/*
 * base.c - the commands' connection to a program's database.
 */
#include "programs/once/messages/base.h"

const char *cli_database(const struct cli *c)
{
    return c->database != NULL && c->database[0] != '\0' ? c->database : NULL;
}

int cli_which_database(const struct cli *c)
{
    return cli_usage(c, "which database? Say --database URL or set "
                        "ONCE_DATABASE");
}

int cli_base_open(const struct cli *c, int use, struct once__base **out)
{
    const char *url = cli_database(c);
    once_error err = {0, ""};
    int rc;

    *out = NULL;
    if (url == NULL)
        return cli_which_database(c);
    rc = once__base_open(url, use, out, &err);
    if (rc == ONCE_EURL)
        return cli_usage(c, "%s", err.text);
    return rc == ONCE_OK ? CLI_OK : cli_trouble(c, rc, &err);
}

int cli_base_connect(const struct cli *c, struct once__base *b)
{
    once_error err = {0, ""};
    int rc = once__base_connect(b, &err);

    return rc == ONCE_OK ? CLI_OK : cli_trouble(c, rc, &err);
}
