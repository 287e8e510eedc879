/* SPDX-License-Identifier: Apache-2.0 */
/*
 * args.c - the command line of `once run`.
 *
 * Everything is checked before a store is opened. What follows `--` belongs
 * to the command and is not looked at. It does not guess where the command
 * begins: without the `--` its options would be taken for ours.
 *
 * Without --fingerprint the fingerprint is the command with its arguments, so
 * that a key that was used for another command is refused, not replayed.
 */
#include "programs/once/run/run.h"

#include <stdlib.h>
#include <string.h>

/* clang-format off */
const char run_help[] =
    "usage: once run --key K [OPTION ...] -- COMMAND [ARGUMENT ...]\n"
    "\n"
    "Runs COMMAND at most once for the key. A repeat gets the output and the exit\n"
    "status of the first run, and nothing runs. man 1 once-run\n"
    "\n"
    "  --key K           names the run; can be seen in ps by everybody here\n"
    "  --key-file FILE   reads the key from a file instead\n"
    "  --key-from-args   the key is COMMAND with its ARGUMENTs\n"
    "  --group G         kind of work, 1 to 32 visible characters (default)\n"
    "  --label TEXT      what it is about, for once ls: up to 128 characters\n"
    "  --fingerprint T   what makes it the same run (COMMAND with its ARGUMENTs)\n"
    "  --wait T          how long to wait for a run under way: 90s, 15m, 24h, 7d\n"
    "  --on-duplicate D  replay (default), or reject: exit status 77\n"
    "  --retry-failed    after a nonzero exit status the next one runs again\n"
    "  --lost L          hold (default): a run that was lost stays unknown, or\n"
    "                    takeover: the next one runs again, at least once\n"
    "  --ttl T           how long a result is kept (24h)\n"
    "  --lease T         how long a lost run counts as under way (30s)\n"
    "  --store URL       or ONCE_STORE; it is made by once init (your own one)\n"
    "\n"
    "Exit status: the command's, or 64 usage, 65 key of another command, 69 no\n"
    "store, 74 done but its output cannot be shown, 75 unknown, 76 under way,\n"
    "77 rejected, 126 and 127 not started. After 64, 65, 69, 126 and 127 nothing\n"
    "was done. 75: it was begun, and is not run again; see once resolve --help\n";
/* clang-format on */

enum { OPT_LABEL = 1 };

/* As they were given. */
struct given {
    struct run_options run;
    const char *key, *key_file, *group, *fingerprint;
    int key_args;
    uint64_t ttl_ms, lease_ms;
};

const struct cli_option run_option_table[] = {
    {"key", "", CLI_AT(CLI_TEXT, struct given, key)},
    {"key-file", CLI_FILES, CLI_AT(CLI_TEXT, struct given, key_file)},
    {"key-from-args", NULL, CLI_AT(CLI_FLAG, struct given, key_args)},
    {"group", "", CLI_AT(CLI_TEXT, struct given, group)},
    {"fingerprint", "", CLI_AT(CLI_TEXT, struct given, fingerprint)},
    {"wait", "", CLI_AT(CLI_TIME, struct given, run.wait_ms)},
    {"on-duplicate", "replay reject",
     CLI_AT(CLI_CHOICE, struct given, run.call.duplicates)},
    {"retry-failed", NULL,
     CLI_AT(CLI_FLAG, struct given, run.call.retry_failed)},
    {"lost", "hold takeover",
     CLI_AT(CLI_CHOICE, struct given, run.call.takeover)},
    {"ttl", "", CLI_AT(CLI_TIME, struct given, ttl_ms)},
    {"lease", "", CLI_AT(CLI_TIME, struct given, lease_ms)},
    {"label", "", .id = OPT_LABEL},
    CLI_STORE_OPTION,
    CLI_HELP_OPTION,
    {.name = NULL},
};

/* ---- Single options -------------------------------------------------------- */

static int check_label(const struct cli *c, const char *text)
{
    size_t i = 0;

    while (text[i] >= ' ' && text[i] <= '~')
        i++;
    return text[i] == '\0' && i > 0 && i <= ONCE_LABEL_MAX
               ? CLI_OK
               : cli_usage(c, "--label has 1 to %d printable ASCII characters",
                           ONCE_LABEL_MAX);
}

static int take(const struct cli *c, void *user, int o)
{
    struct given *g = user;

    (void)o; /* --label: the only one */
    g->run.call.label = optarg;
    return check_label(c, optarg);
}

static int check_times(const struct cli *c, const struct given *g,
                       struct run_options *o)
{
    uint64_t lease = g->lease_ms > 0 ? g->lease_ms : 30000;

    if (lease > ONCE_LEASE_MAX_MS)
        return cli_usage(c, "--lease is a time from 1s to %us",
                         ONCE_LEASE_MAX_MS / 1000);
    if (g->ttl_ms > 0 && g->ttl_ms < lease)
        return cli_usage(c, "--ttl is below --lease (%llus)",
                         (unsigned long long)(lease / 1000));
    o->call.lease_ms = (uint32_t)lease;
    o->call.keep_ms = g->ttl_ms;
    return CLI_OK;
}

/* ---- The key, the group, the fingerprint ----------------------------------- */

/* Every argument with its length in front, so that "a b" and "a", "b" differ. */
static uint8_t *join(char *const *argv, size_t *size)
{
    size_t n = 0, i, j;
    uint8_t *out, *at;

    for (i = 0; argv[i] != NULL; i++)
        n += 8 + strlen(argv[i]);
    out = at = malloc(n);
    if (out == NULL)
        return NULL;
    for (i = 0; argv[i] != NULL; i++) {
        size_t length = strlen(argv[i]);

        for (j = 0; j < 8; j++)
            *at++ = (uint8_t)((uint64_t)length >> (8 * j));
        memcpy(at, argv[i], length);
        at += length;
    }
    *size = n;
    return out;
}

static int no_memory(const struct cli *c)
{
    return cli_say(c, CLI_STORE, "out of memory");
}

static int key_from_args(const struct cli *c, once_bytes args, once_bytes *out)
{
    static const char head[] = "args:";
    uint8_t sum[ONCE_NAME_SIZE];
    unsigned int size = 0;
    char *key = malloc(sizeof(head) + CLI_HEX_SIZE);

    if (key == NULL ||
        !EVP_Digest(args.data, args.size, sum, &size, EVP_sha256(), NULL)) {
        free(key);
        return no_memory(c);
    }
    memcpy(key, head, sizeof(head) - 1);
    cli_hex(sum, CLI_DIGITS, key + sizeof(head) - 1);
    *out = (once_bytes){key, strlen(key)};
    return CLI_OK;
}

/* One line break at the end is an editor's, not the key's. */
static int key_from_file(const struct cli *c, const char *path, once_bytes *out)
{
    once_bytes key = {NULL, 0};
    int rc;

    if (strcmp(path, "-") == 0)
        return cli_usage(c, "--key-file: stdin is the command's");
    rc = cli_read_file(c, path, ONCE_KEY_MAX + 1, &key);
    if (rc != CLI_OK)
        return rc;
    if (key.size > 0 && ((const char *)key.data)[key.size - 1] == '\n')
        key.size--;
    *out = key;
    return CLI_OK;
}

static int make_key(const struct cli *c, const struct given *g,
                    struct run_options *o)
{
    once_bytes key = {NULL, 0};
    int rc = CLI_OK;

    if ((g->key != NULL) + (g->key_file != NULL) + g->key_args != 1)
        return cli_usage(c, "say one of --key, --key-file and "
                            "--key-from-args");
    if (g->key != NULL) {
        o->call.key = (once_bytes){g->key, strlen(g->key)};
    } else {
        rc = g->key_args ? key_from_args(c, o->call.fingerprint, &key)
                         : key_from_file(c, g->key_file, &key);
        o->memory[0] = (void *)(uintptr_t)key.data;
        o->call.key = key;
    }
    if (rc == CLI_OK &&
        (o->call.key.size == 0 || o->call.key.size > ONCE_KEY_MAX))
        rc = cli_usage(c, "a key has 1 to %zu bytes", ONCE_KEY_MAX);
    return rc;
}

static int make_names(const struct cli *c, const struct given *g,
                      struct run_options *o)
{
    uint8_t group[ONCE_GROUP_SIZE];
    size_t size = 0;
    int rc = CLI_OK;

    if (g->group != NULL)
        rc = cli_read_group(c, g->group, group);
    if (rc != CLI_OK)
        return rc;
    o->call.group = g->group;
    o->memory[1] = join(o->command, &size);
    if (o->memory[1] == NULL)
        return no_memory(c);
    o->call.fingerprint = (once_bytes){o->memory[1], size};
    rc = make_key(c, g, o);
    if (g->fingerprint != NULL)
        o->call.fingerprint =
            (once_bytes){g->fingerprint, strlen(g->fingerprint)};
    return rc;
}

/* ---- All of it -------------------------------------------------------------- */

static int find_command(int argc, char **argv)
{
    int i = 1;

    while (i < argc && strcmp(argv[i], "--") != 0)
        i++;
    return i;
}

static int read_all(struct cli *c, int argc, char **argv, struct run_options *o)
{
    struct given g = {.run = *o};
    int end = find_command(argc, argv);
    int rc = cli_read_args(c, end, argv, take, &g);

    *o = g.run;
    if (rc != CLI_OK)
        return rc;
    if (optind < end || end + 1 >= argc)
        return cli_usage(c, "the command comes after --, after all options");
    o->command = argv + end + 1;
    rc = check_times(c, &g, o);
    return rc == CLI_OK ? make_names(c, &g, o) : rc;
}

int run_read_args(struct cli *c, int argc, char **argv, struct run_options *o)
{
    int rc;

    memset(o, 0, sizeof(*o));
    o->call = (once_call_options)ONCE_CALL_OPTIONS_INIT;
    rc = read_all(c, argc, argv, o);
    if (rc == CLI_STORE)
        return RUN_STORE;
    return rc == CLI_OK || rc == CLI_STOP ? rc : RUN_USAGE;
}

void run_options_clear(struct run_options *o)
{
    free(o->memory[0]);
    free(o->memory[1]);
}
