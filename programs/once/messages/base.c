/* SPDX-License-Identifier: Apache-2.0 */
/*
 * base.c - the commands' connection to a program's database.
 */
#include "base.h"

int cli_base_open(const struct cli *c, int use, struct once__base **out)
{
    const char *url = cli_url(c);
    once_error err = {0, ""};
    int rc;

    *out = NULL;
    if (url == NULL)
        return cli_usage(c, "which database? Say --store URL or set "
                            "ONCE_STORE");
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
