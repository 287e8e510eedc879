/* SPDX-License-Identifier: Apache-2.0 */
/*
 * pick.c - which record is meant, and finding it.
 *
 * An operator knows either what the gateway's log says, which is the beginning
 * of a record's name, or the group and the key that a program was given. The
 * key is in no record: it is hashed here, and need not stand in argv, where
 * every user of the host can read it. Refuses a prefix of two names.
 */
#include "programs/once/cli.h"

#include <stdlib.h>
#include <string.h>

#include <once/call.h>

/* One line break at a file's end is an editor's, not the key's. */
static int read_key_file(const struct cli *c, const char *path, once_bytes *out)
{
    const char *data;
    int rc = cli_read_file(c, path, ONCE_KEY_MAX + 1, out);

    if (rc != CLI_OK)
        return rc;
    data = out->data;
    if (out->size > 0 && data[out->size - 1] == '\n')
        out->size--;
    return CLI_OK;
}

static int name_by_key(const struct cli *c, struct cli_pick *p)
{
    uint8_t group[ONCE_GROUP_SIZE];
    once_bytes key = {NULL, 0};
    int rc = CLI_OK;

    if (p->group == NULL)
        p->group = ONCE_GROUP_DEFAULT;
    rc = cli_read_group(c, p->group, group);
    if (rc != CLI_OK)
        return rc;
    if (p->key_file != NULL)
        rc = read_key_file(c, p->key_file, &key);
    else
        key = cli_bytes(p->key);
    if (rc == CLI_OK && (key.size == 0 || key.size > ONCE_KEY_MAX))
        rc = cli_usage(c, "a key has 1 to %zu bytes", ONCE_KEY_MAX);
    if (rc == CLI_OK && once_name(p->group, key, p->name.bytes) < 0)
        rc = cli_say(c, CLI_STORE, "the key cannot be hashed: out of memory?");
    p->name.digits = CLI_DIGITS;
    if (p->key_file != NULL)
        free((void *)key.data);
    return rc;
}

/* By what the client sent to the gateway. */
static int name_by_request(const struct cli *c, struct cli_pick *p, int others)
{
    if (others > 0 || p->whole != NULL || p->group != NULL || p->key != NULL)
        return cli_usage(c, "--request is in place of HASH, --name, --group "
                            "and --key");
    p->name.digits = CLI_DIGITS;
    return cli_request_name(c, &p->request, p->key_file, p->name.bytes);
}

int cli_pick_end(const struct cli *c, struct cli_pick *p, int argc, char **argv)
{
    int by_key = (p->key != NULL) + (p->key_file != NULL);

    if (p->by_request)
        return name_by_request(c, p, argc - optind);
    if (cli_request_given(&p->request))
        return cli_usage(c, "--realm, --method, --path and --scope-file go "
                            "with --request");
    if (p->group != NULL && by_key == 0)
        return cli_usage(c, "--group goes with --key or --key-file; all "
                            "records of a group are listed by once ls --group");
    if (argc - optind + (p->whole != NULL) + by_key != 1)
        return cli_usage(c, "which record? One HASH, or --name NAME, or "
                            "--group G with --key K or --key-file FILE, or "
                            "--request");
    if (by_key)
        return name_by_key(c, p);
    if (p->whole != NULL)
        return cli_read_name(c, p->whole, CLI_DIGITS, &p->name);
    return cli_read_name(c, argv[optind], CLI_DIGITS_MIN, &p->name);
}

int cli_find(const struct cli *c, once_engine *e, const once__prefix *name,
             uint8_t out[ONCE_NAME_SIZE])
{
    char one[CLI_HEX_SIZE], two[CLI_HEX_SIZE];
    uint8_t found[2][ONCE_NAME_SIZE];
    once_error err = {0, ""};
    int n = once__find(e, name, found, &err);

    if (n < 0)
        return cli_trouble(c, n, &err);
    if (n == 0)
        return cli_say(c, CLI_NO,
                       "no record's name begins so. It may have "
                       "been forgotten, or be in another store: "
                       "see once ls");
    if (n == 2) {
        cli_hex(found[0], CLI_DIGITS, one);
        cli_hex(found[1], CLI_DIGITS, two);
        return cli_say(c, CLI_NO,
                       "more than one record's name begins so; give "
                       "more digits. The first two:\n%s\n%s",
                       one, two);
    }
    memcpy(out, found[0], ONCE_NAME_SIZE);
    return CLI_OK;
}

int cli_look(const struct cli *c, once_engine *e,
             const uint8_t name[ONCE_NAME_SIZE], once_op *op)
{
    once_error err = {0, ""};
    int rc = once__look(e, name, op, &err);

    if (rc < 0)
        return cli_trouble(c, rc, &err);
    if (op->record.attempt == 0)
        return cli_say(c, CLI_NO,
                       "there is no such record. It may have been "
                       "forgotten, or be in another store: see "
                       "once ls");
    return CLI_OK;
}
