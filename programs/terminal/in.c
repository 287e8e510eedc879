/* SPDX-License-Identifier: Apache-2.0 */
/*
 * in.c - what a command takes from its command line and from files.
 *
 * Every message names the argument and its limit. Refuses numbers with
 * anything after them, names that are too short to be meant, and files that
 * are too long, all before a store is opened.
 */
#include "programs/terminal/terminal.h"
#include "base/bytes.h"
#include "base/secret.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <sys/stat.h>

enum { NAME_SIZE = 32 }; /* of an option */

/* The argument that getopt_long() refused. */
static const char *last_argument(int argc, char **argv)
{
    return optind > 0 && optind <= argc ? argv[optind - 1] : "";
}

/* An option's name alone: what follows "=" may be a secret. */
static int name_length(const char *argument)
{
    return (int)strcspn(argument, "=");
}

/* The table as getopt_long() takes it. 1: it has --version. */
static int make_table(const struct cli_option *from,
                      struct option to[CLI_OPTIONS_MAX + 1])
{
    size_t n = 0;
    int version = 0;

    for (; from->name != NULL; from++) {
        assert(n < CLI_OPTIONS_MAX);
        version = version || from->id == CLI_OPT_VERSION;
        to[n++] = (struct option){.name = from->name,
                                  .has_arg = from->value ? required_argument
                                                         : no_argument,
                                  .val = from->id};
    }
    to[n] = (struct option){NULL, 0, NULL, 0};
    return version;
}

static int print_help(const struct cli *c)
{
    int rc;

    fputs(c->command->help, stdout);
    rc = cli_flush(c);
    return rc == CLI_OK ? CLI_STOP : rc;
}

/* A letter may stand with others in one argument: getopt has it. */
static int no_such_option(const struct cli *c, const char *argument)
{
    if (optopt > ' ' && optopt < 0x7f)
        return cli_usage(c, "-%c: no such option", optopt);
    return cli_usage(c, "%.*s: no such option, or it takes no value",
                     name_length(argument), argument);
}

/* A URL may have a password, which has no place in a command line. */
static int read_url(const struct cli *c, const char *what, const char **url,
                    char **memory)
{
    free(*memory);
    return cli_read_secret(c, what, optarg, url, memory);
}

/* One of the two words that the table has. */
static int read_choice(const struct cli *c, const char *what, const char *words,
                       uint32_t *out)
{
    int n = (int)strcspn(words, " ");
    const char *one = words + n + 1;

    *out = strcmp(optarg, one) == 0;
    if (*out || (strncmp(optarg, words, (size_t)n) == 0 && optarg[n] == '\0'))
        return CLI_OK;
    return cli_usage(c, "%s is %.*s or %s", what, n, words, one);
}

/* cli_read_time(), back from now; or a day or a moment in UTC, "2026-03-01",
 * "2026-03-01T08:00:00Z". In milliseconds since 1970. */
int cli_read_when(const struct cli *c, const char *what, const char *text,
                  uint64_t *out_ms)
{
    static const char *const forms[] = {"%Y-%m-%dT%H:%M:%SZ", "%Y-%m-%d"};
    uint64_t age_ms = 0;
    size_t i;
    int rc;

    for (i = 0; i < sizeof(forms) / sizeof(forms[0]); i++) {
        struct tm tm = {0};
        const char *end = strptime(text, forms[i], &tm);

        if (end != NULL && *end == '\0' && tm.tm_year >= 70) {
            *out_ms = (uint64_t)timegm(&tm) * 1000;
            return CLI_OK;
        }
    }
    if (strchr(text, '-') != NULL)
        return cli_usage(c,
                         "%s is a time ago like 24h, a day like 2026-03-01 or "
                         "a moment like 2026-03-01T08:00:00Z (UTC)",
                         what);
    rc = cli_read_time(c, what, text, &age_ms);
    if (rc == CLI_OK)
        *out_ms = cli_now_ms() - age_ms;
    return rc;
}

/* To the place that the table has for it. */
static int put(const struct cli *c, const struct cli_option *o, void *user)
{
    void *at = (char *)user + o->offset;
    char what[NAME_SIZE];

    (void)snprintf(what, sizeof(what), "--%s", o->name);
    switch (o->into) {
    case CLI_FLAG:
        *(int *)at = 1;
        return CLI_OK;
    case CLI_CHOICE:
        return read_choice(c, what, o->value, at);
    case CLI_U32:
        return cli_read_u32(c, what, optarg, (uint32_t)o->most, at);
    case CLI_MS:
        return cli_read_ms(c, what, optarg, at);
    case CLI_NUMBER:
        return cli_read_number(c, what, optarg, o->least, o->most, at);
    case CLI_TIME:
        return cli_read_time(c, what, optarg, at);
    case CLI_WHEN:
        return cli_read_when(c, what, optarg, at);
    default:
        *(const char **)at = optarg;
        return CLI_OK;
    }
}

int cli_read_args(struct cli *c, int argc, char **argv, cli_take *take,
                  void *user)
{
    struct option table[CLI_OPTIONS_MAX + 1];
    const struct cli_option *options = c->command->options;
    int o, at = 0, rc = CLI_OK;

    /* -V only where there is a --version. */
    const char *letters = make_table(options, table) ? ":hV" : ":h";

    while (rc == CLI_OK &&
           (o = getopt_long(argc, argv, letters, table, &at)) != -1) {
        switch (o) {
        case CLI_OPT_STORE:
            rc = read_url(c, "--store", &c->store, &c->memory[0]);
            break;
        case CLI_OPT_DATABASE:
            rc = read_url(c, "--database", &c->database, &c->memory[1]);
            break;
        case CLI_OPT_AUDIT:
            c->audit = optarg;
            break;
        case CLI_OPT_JSON:
            c->json = 1;
            break;
        case 'h':
        case CLI_OPT_HELP:
            return print_help(c);
        case 'V':
            rc = take(c, user, CLI_OPT_VERSION);
            break;
        case ':':
            return cli_usage(c, "%s needs a value", last_argument(argc, argv));
        case '?':
            return no_such_option(c, last_argument(argc, argv));
        default:
            rc = options[at].into == CLI_TAKE ? take(c, user, o)
                                              : put(c, &options[at], user);
            break;
        }
    }
    return rc;
}

int cli_has_word(const char *words, const char *word)
{
    size_t n = strlen(word);

    for (; *words != '\0'; words += strcspn(words, " "), words += *words == ' ')
        if (strcspn(words, " ") == n && strncmp(words, word, n) == 0)
            return 1;
    return 0;
}

int cli_no_operands(const struct cli *c, int argc, const char *hint)
{
    return optind < argc ? cli_usage(c, "takes options only%s", hint) : CLI_OK;
}

int cli_read_name(const struct cli *c, const char *text, size_t least,
                  once__prefix *out)
{
    once_error err = {0, ""};

    if (once__prefix_read(text, least, out, &err) < 0)
        return cli_usage(c, "%s", err.text);
    return CLI_OK;
}

/* Decimal digits only, which strtoull() is too generous for; 0 or -1. */
static int read_digits(const char **text, uint64_t *out)
{
    const char *p = *text;
    uint64_t n = 0;

    if (!once__is_digit(*p))
        return -1;
    for (; once__is_digit(*p); p++) {
        uint64_t d = (uint64_t)(*p - '0');

        if (n > (UINT64_MAX - d) / 10)
            return -1;
        n = n * 10 + d;
    }
    *text = p;
    *out = n;
    return 0;
}

int cli_read_number(const struct cli *c, const char *what, const char *text,
                    uint64_t least, uint64_t most, uint64_t *out)
{
    const char *p = text;
    uint64_t n = 0;

    if (read_digits(&p, &n) < 0 || *p != '\0' || n < least || n > most)
        return cli_usage(c, "%s is a number from %llu to %llu", what,
                         (unsigned long long)least, (unsigned long long)most);
    *out = n;
    return CLI_OK;
}

int cli_read_time(const struct cli *c, const char *what, const char *text,
                  uint64_t *out_ms)
{
    const uint64_t day_ms = 86400000;
    const char *p = text;
    uint64_t n = 0, unit_ms = 0;

    if (read_digits(&p, &n) == 0 && *p != '\0' && p[1] == '\0')
        switch (*p) {
        case 's':
            unit_ms = 1000;
            break;
        case 'm':
            unit_ms = 60000;
            break;
        case 'h':
            unit_ms = 3600000;
            break;
        case 'd':
            unit_ms = day_ms;
            break;
        default:
            break;
        }
    if (unit_ms == 0 || n == 0 || n > ONCE_KEEP_MAX_MS / unit_ms)
        return cli_usage(c,
                         "%s is a time from 1s to %llud: a number and one of "
                         "s, m, h, d",
                         what, (unsigned long long)(ONCE_KEEP_MAX_MS / day_ms));
    *out_ms = n * unit_ms;
    return CLI_OK;
}

int cli_read_u32(const struct cli *c, const char *what, const char *text,
                 uint32_t most, uint32_t *out)
{
    uint64_t n = 0;
    int rc = cli_read_number(c, what, text, 1, most, &n);

    *out = (uint32_t)n;
    return rc;
}

int cli_read_ms(const struct cli *c, const char *what, const char *text,
                uint32_t *out)
{
    const uint64_t day_ms = 86400000;
    uint64_t ms = 0;
    int rc = cli_read_time(c, what, text, &ms);

    if (rc == CLI_OK && ms > day_ms)
        return cli_usage(c, "%s is from 1s to 1d", what);
    *out = (uint32_t)ms;
    return rc;
}

int cli_read_group(const struct cli *c, const char *text,
                   uint8_t out[ONCE_GROUP_SIZE])
{
    size_t i, n = strlen(text);

    for (i = 0; i < n && text[i] > 0x20 && text[i] < 0x7f; i++)
        ;
    if (n == 0 || n > ONCE_GROUP_SIZE || i < n)
        return cli_usage(c,
                         "--group is 1 to %d characters of printable ASCII "
                         "without spaces",
                         ONCE_GROUP_SIZE);
    memset(out, 0, ONCE_GROUP_SIZE);
    memcpy(out, text, n);
    return CLI_OK;
}

/* One byte, perhaps written as \xNN; how many characters it took. */
static size_t read_byte(const char *text, uint8_t *out)
{
    *out = (uint8_t)text[0];
    if (text[0] != '\\' || text[1] != 'x' || once__hex_digit(text[2]) < 0 ||
        once__hex_digit(text[3]) < 0)
        return 1;
    *out = (uint8_t)(once__hex_digit(text[2]) << 4 | once__hex_digit(text[3]));
    return 4;
}

int cli_read_filter(const struct cli *c, const char *text,
                    uint8_t out[ONCE_GROUP_SIZE])
{
    size_t n = 0;

    memset(out, 0, ONCE_GROUP_SIZE);
    while (*text != '\0' && n < ONCE_GROUP_SIZE)
        text += read_byte(text, &out[n++]);
    if (n == 0 || *text != '\0')
        return cli_usage(c, "--group has 1 to %d bytes", ONCE_GROUP_SIZE);
    return CLI_OK;
}

/* Reads until the end or one byte over `most`, with a NUL after it unless it is
 * over; NULL without memory. */
static uint8_t *read_all(FILE *in, size_t most, size_t *size)
{
    size_t room = 0, n = 0;
    uint8_t *data = NULL;

    do {
        uint8_t *more;

        room = room ? room * 2 : 4096;
        if (room > most + 1)
            room = most + 1;
        more = realloc(data, room);
        if (more == NULL) {
            free(data);
            return NULL;
        }
        data = more;
        n += fread(data + n, 1, room - n, in);
    } while (n == room && n <= most);
    if (n < room)
        data[n] = '\0';
    *size = n;
    return data;
}

int cli_read_file(const struct cli *c, const char *path, size_t most,
                  once_bytes *out)
{
    int is_stdin = strcmp(path, "-") == 0;
    FILE *in = is_stdin ? stdin : fopen(path, "rbe");
    uint8_t *data = NULL;
    size_t size = 0;
    int rc = CLI_OK;

    if (in == NULL)
        return cli_say(c, CLI_STORE, "%s: cannot be opened: %s", path,
                       strerror(errno));
    data = read_all(in, most, &size);
    if (data == NULL)
        rc = cli_say(c, CLI_STORE, "%s: out of memory", path);
    else if (ferror(in))
        rc = cli_say(c, CLI_STORE, "%s: cannot be read: %s", path,
                     strerror(errno));
    else if (size > most)
        rc = cli_say(c, CLI_USAGE, "%s: is over the limit of %zu bytes", path,
                     most);
    if (!is_stdin)
        fclose(in);
    if (rc != CLI_OK) {
        free(data);
        return rc;
    }
    *out = (once_bytes){data, size};
    return CLI_OK;
}

void cli_warn_password(const struct cli *c, const char *what, const char *url)
{
    if (url[0] != '@' && once__url_has_password(url))
        cli_say(c, 0,
                "%s: everybody on this host can read this password; put the "
                "URL into a file and say @FILE",
                what);
}

int cli_check_secret(const struct cli *c, const char *path)
{
    once_error err = {0, ""};
    struct stat st;

    if (stat(path, &st) != 0 || once__secret_mode(path, &st, &err) == ONCE_OK)
        return CLI_OK;
    return cli_say(c, CLI_STORE, "%s", err.text);
}

int cli_read_secret(const struct cli *c, const char *what, const char *text,
                    const char **out, char **memory)
{
    once_bytes bytes = {NULL, 0};
    char *line;
    int rc;

    *memory = NULL;
    *out = text;
    cli_warn_password(c, what, text);
    if (text[0] != '@')
        return CLI_OK;
    rc = cli_read_file(c, text + 1, CLI_SECRET_MAX, &bytes);
    if (rc != CLI_OK)
        return rc;
    line = (char *)(uintptr_t)bytes.data;
    line[strcspn(line, "\r\n")] = '\0';
    *memory = line;
    *out = line;
    if (once__url_has_password(line)) {
        rc = cli_check_secret(c, text + 1);
        if (rc != CLI_OK)
            return rc;
    }
    return line[0] != '\0' ? CLI_OK
                           : cli_usage(c, "%s: the file is empty", what);
}
