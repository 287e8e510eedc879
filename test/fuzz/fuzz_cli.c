/* SPDX-License-Identifier: Apache-2.0 */
/* fuzz_cli.c - what an operator types, and what he is shown: names, numbers,
 * times and options are taken whole or refused with a message that repeats
 * nothing of them, and no byte of somebody else's text reaches a terminal
 * that is not plain. */
#include "fuzz.h"

#include "programs/once/cli.h"

enum { WORDS = 8 };

static const struct cli_option options[] = {
    CLI_COMMON_OPTIONS,
    {"keep", "", .id = 1},
    {.name = NULL},
};
static const struct cli_command fuzz = {
    .name = "fuzz", .help = "", .options = options};
static const struct cli cli = {.command = &fuzz};

/* Runs with stderr in memory, so that it can be looked at. */
struct said {
    FILE *real;
    char *text;
    size_t size;
};

static void listen_to(struct said *s)
{
    s->real = stderr;
    s->text = NULL;
    s->size = 0;
    stderr = open_memstream(&s->text, &s->size);
    if (stderr == NULL) {
        stderr = s->real;
        abort();
    }
}

/* A refusal says why, anything else says nothing. */
static void listened(struct said *s, int refused)
{
    fclose(stderr);
    stderr = s->real;
    MUST((s->size > 0) == (refused != 0));
    MUST(!refused || s->text[s->size - 1] == '\n');
    free(s->text);
}

static void read_name(const char *text)
{
    once__prefix name;
    struct said said;
    char hex[CLI_HEX_SIZE];
    size_t i;
    int rc;

    listen_to(&said);
    rc = cli_read_name(&cli, text, ONCE__DIGITS_MIN, &name);
    listened(&said, rc != CLI_OK);
    if (rc != CLI_OK)
        return;
    MUST(name.digits == strlen(text) && name.digits <= ONCE__DIGITS);
    cli_hex(name.bytes, name.digits, hex);
    for (i = 0; i < name.digits; i++)
        MUST((hex[i] | 32) == (text[i] | 32));
}

static void read_numbers(const char *text)
{
    uint64_t n = 0, ms = 0;
    struct said said;
    char back[32];
    int rc;

    listen_to(&said);
    rc = cli_read_number(&cli, "N", text, 1, UINT64_MAX - 1, &n);
    listened(&said, rc != CLI_OK);
    if (rc == CLI_OK) {
        (void)snprintf(back, sizeof(back), "%llu", (unsigned long long)n);
        MUST(n > 0 && strcmp(back, text + strspn(text, "0")) == 0);
    }
    listen_to(&said);
    rc = cli_read_time(&cli, "T", text, &ms);
    listened(&said, rc != CLI_OK);
    MUST(rc != CLI_OK || (ms > 0 && ms % 1000 == 0 && ms <= ONCE_KEEP_MAX_MS &&
                          strchr("smhd", text[strlen(text) - 1]) != NULL));
}

static int take(const struct cli *c, void *user, int option)
{
    (void)c;
    (void)user;
    MUST(option == 1 && optarg != NULL);
    return CLI_OK;
}

/* Words apart by NUL, as a command line. */
static void read_options(char *text, size_t size)
{
    char name[] = "once", *words[WORDS + 2] = {name};
    struct cli c = cli;
    struct said said;
    int n = 1, rc;
    size_t at;

    for (at = 0; at < size && n <= WORDS; at += strlen(text + at) + 1) {
        if (strcmp(text + at, "--help") == 0 ||
            strncmp(text + at, "--h", 3) == 0)
            return; /* prints a page */
        words[n++] = text + at;
    }
    optind = 0;
    listen_to(&said);
    rc = cli_read_args(&c, n, words, take, NULL);
    MUST(rc == CLI_OK || rc == CLI_USAGE);
    listened(&said, rc != CLI_OK);
}

static void print_text(once_bytes text)
{
    char *out = NULL;
    size_t size = 0, i;
    FILE *to = open_memstream(&out, &size);
    json_t *json;

    MUST(to != NULL);
    cli_print_text(to, text);
    MUST(fclose(to) == 0);
    for (i = 0; i < size; i++) {
        MUST((uint8_t)out[i] >= 0x20 && out[i] != 0x7f);
        /* The controls of Latin 1, in UTF-8 or bare. */
        MUST((uint8_t)out[i] != 0xc2 || i + 1 == size ||
             (uint8_t)out[i + 1] >= 0xa0);
    }
    json = json_stringn(out, size);
    MUST(json != NULL || size == 0); /* it is UTF-8 */
    json_decref(json);
    json = cli_json_text(text);
    MUST(json != NULL && json_is_string(json));
    json_decref(json);
    free(out);
}

static void print_record(struct feed *f)
{
    uint8_t name[ONCE_NAME_SIZE] = {feed_byte(f), feed_byte(f)};
    char time[CLI_TIME_SIZE], flags[CLI_FLAGS_SIZE];
    once_record r;
    json_t *json;

    memset(&r, 0, sizeof(r));
    r.state = feed_byte(f);
    r.kind = feed_byte(f);
    r.policy = feed_byte(f);
    r.doubt = feed_byte(f);
    r.attempt = (uint32_t)feed_number(f, 4);
    r.fence = feed_number(f, 8);
    r.lease_ms = feed_number(f, 8);
    r.keep_ms = feed_number(f, 8);
    r.granted_ms = feed_number(f, 8);
    r.note = feed_bytes(f, f->left);
    cli_time(r.granted_ms, time);
    MUST(strlen(time) == 24 || strcmp(time, "-") == 0);
    cli_flags(&r, flags);
    MUST(flags[0] != '\0' && strlen(flags) < sizeof(flags));
    MUST(cli_state(r.state) != NULL && cli_kind(r.kind) != NULL);
    MUST(cli_state_of(cli_state(r.state)) == (r.state > 4 ? -1 : r.state));
    json = cli_json_record(name, &r);
    MUST(json != NULL);
    json_decref(json);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct feed f = {data, size};
    uint8_t how = feed_byte(&f);
    char *text = malloc(f.left + 1);

    MUST(text != NULL);
    memcpy(text, f.at, f.left);
    text[f.left] = '\0';
    switch (how % 4) {
    case 0:
        read_name(text);
        read_numbers(text);
        break;
    case 1:
        read_options(text, f.left);
        break;
    case 2:
        print_text((once_bytes){f.at, f.left});
        break;
    default:
        print_record(&f);
        break;
    }
    free(text);
    return 0;
}
