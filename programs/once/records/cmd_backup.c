/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cmd_backup.c - `once backup`: all records of a store in one file, while the
 * store is in use. Refuses to overwrite a file, and stores that are copied by
 * tools of their own.
 */
#include "programs/once/cli.h"

#include "operate/copy/copy.h"

/* clang-format off */
static const char help[] =
    "usage: once [--store URL] backup --copy FILE [--json]\n"
    "\n"
    "Copies all records of a store into a new file, while gateways use the store.\n"
    "FILE appears when it is whole and on disk; half a copy never has its name.\n"
    "\n"
    "  --copy FILE must not exist. It can be read by its owner only, and holds\n"
    "              stored responses in clear\n"
    "\n"
    "Prints records, unreadable (left out: they fail their checksum), begun, and\n"
    "longest (the longest time for which an outcome in it is kept). What is recorded\n"
    "after `begun` is not in the copy, or not as it is later: after a restore these\n"
    "keys are in the gap, see once restore. Check a copy with once verify FILE.\n"
    "\n"
    "For journal: and sqlite: stores, and small ones on PostgreSQL and MySQL. Servers\n"
    "are copied by their own tools: docs/backup.md. Exit status 3: there is no copy,\n"
    "or a record is unreadable.\n";
/* clang-format on */

static const struct cli_option options[] = {
    CLI_COMMON_OPTIONS,
    {"copy", CLI_FILES, .into = CLI_TEXT},
    {.name = NULL},
};

static void progressed(void *user, uint64_t records)
{
    cli_progress(user, -1, records);
}

static int report(const struct cli *c, const char *path,
                  const once__copy_about *about)
{
    int rc = CLI_OK;

    if (c->json) {
        rc = cli_print_json(
            c, json_pack("{s:s, s:I, s:I, s:o, s:I}", "file", path, "records",
                         (json_int_t)about->records, "unreadable",
                         (json_int_t)about->unreadable, "begun",
                         cli_json_time(about->begun_ms), "longest_ms",
                         (json_int_t)about->keep_ms));
    } else {
        cli_number(c, "records", about->records);
        cli_number(c, "unreadable", about->unreadable);
        cli_moment(c, "begun", about->begun_ms);
        cli_label(c, "longest");
        printf("%llus\n", (unsigned long long)(about->keep_ms + 999) / 1000);
    }
    if (rc == CLI_OK && about->unreadable > 0)
        rc = cli_say(c, CLI_STORE,
                     "records were left out, because they fail their "
                     "checksum. After a restore their keys are free once the "
                     "gap is over: see once verify");
    return rc;
}

static int run(struct cli *c, int argc, char **argv)
{
    once__copy_about about;
    struct cli_progress progress;
    const char *path = NULL;
    once_store *s = NULL;
    once_error err = {0, ""};
    int rc = cli_read_args(c, argc, argv, NULL, &path);

    if (rc == CLI_OK)
        rc = cli_no_operands(c, argc, "");
    if (rc == CLI_OK && path == NULL)
        rc = cli_usage(c, "--copy FILE is needed");
    if (rc == CLI_OK)
        rc = cli_named(c);
    if (rc == CLI_OK)
        rc = cli_open_store_to_look(c, &s);
    if (rc != CLI_OK)
        return rc;
    cli_progress_start(&progress, c, "records");
    rc = once__copy_write(s, path, progressed, &progress, &about, &err);
    cli_progress_end(&progress);
    once_store_close(s);
    if (rc == ONCE_OK)
        return report(c, path, &about);
    /* Of the file, and no advice about the store helps. */
    return rc == ONCE_EOPEN ? cli_say(c, CLI_STORE, "%s", err.text)
                            : cli_trouble(c, rc, &err);
}

const struct cli_command cli_cmd_backup = {
    "backup", "copy a store into a file, while it is in use",
    help,     options,
    NULL,     run};
