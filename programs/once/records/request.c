/* SPDX-License-Identifier: Apache-2.0 */
/*
 * request.c - the name of a gateway's record, worked out from the request.
 *
 * Who looks for a customer's order has the key that he sent, and knows how the
 * gateway is set up. Key and caller are secrets, so they come from files or
 * from stdin: all users of a host can read arguments.
 */
#include "programs/once/cli.h"

#include <stdlib.h>
#include <string.h>

#include <once/call.h>

enum { SCOPE_MAX = 65536 };

int cli_request_given(const struct cli_request *r)
{
    return r->scope_file != NULL || r->no_scope || r->realm != NULL ||
           r->method != NULL || r->path != NULL;
}

static int is_stdin(const char *path)
{
    return path != NULL && strcmp(path, "-") == 0;
}

static int check(const struct cli *c, const struct cli_request *r,
                 const char *key_file)
{
    if (r->realm == NULL || key_file == NULL)
        return cli_usage(c, "a request is --realm R and --key-file FILE, with "
                            "--method M --path P under once_key_space path");
    if ((r->method != NULL) != (r->path != NULL))
        return cli_usage(c,
                         "%s goes with %s: once_key_space path has both in "
                         "the name, realm none",
                         r->method != NULL ? "--method" : "--path",
                         r->method != NULL ? "--path" : "--method");
    if (r->method != NULL && (r->method[0] == '\0' || r->path[0] == '\0'))
        return cli_usage(c, "%s: it is empty",
                         r->method[0] == '\0' ? "--method" : "--path");
    if ((r->scope_file != NULL) + r->no_scope != 1)
        return cli_usage(c, "who sent it? --scope-file FILE has the value of "
                            "the gateway's once_scope; --no-scope where that "
                            "is off");
    if (is_stdin(r->scope_file) && is_stdin(key_file))
        return cli_usage(c, "stdin cannot be both the scope and the key");
    return CLI_OK;
}

/* One line break at a file's end is an editor's. */
static int read_line(const struct cli *c, const char *path, size_t most,
                     once_bytes *out)
{
    int rc = cli_read_file(c, path, most + 1, out);
    const char *data = out->data;

    if (rc == CLI_OK && out->size > 0 && data[out->size - 1] == '\n')
        out->size--;
    return rc;
}

int cli_request_name(const struct cli *c, const struct cli_request *r,
                     const char *key_file, uint8_t out[ONCE_NAME_SIZE])
{
    once__request request = {.scope = {NULL, 0}};
    once_error err = {0, ""};
    int rc = check(c, r, key_file);

    if (rc != CLI_OK)
        return rc;
    request.realm = cli_bytes(r->realm);
    if (r->method != NULL)
        request.method = cli_bytes(r->method);
    if (r->path != NULL)
        request.path = cli_bytes(r->path);
    if (r->scope_file != NULL)
        rc = read_line(c, r->scope_file, SCOPE_MAX, &request.scope);
    if (rc == CLI_OK && r->scope_file != NULL && request.scope.size == 0)
        rc = cli_usage(c, "--scope-file: it is empty, and the gateway refuses "
                          "a request whose once_scope is");
    if (rc == CLI_OK)
        rc = read_line(c, key_file, ONCE_KEY_MAX, &request.key);
    if (rc == CLI_OK) {
        rc = once__request_name(&request, out, &err);
        rc = rc == ONCE_OK ? CLI_OK : cli_trouble(c, rc, &err);
    }
    free((void *)(uintptr_t)request.scope.data);
    free((void *)(uintptr_t)request.key.data);
    return rc;
}
