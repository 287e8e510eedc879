/* SPDX-License-Identifier: Apache-2.0 */
/*
 * terminal.h - how a program of Once speaks with a person at a terminal: its
 * options, messages, tables, colours and progress. `once` and `once-console`
 * share it; it opens no store.
 *
 *    in.c         options, numbers, times, files
 *    out.c        messages, names, times, tables, JSON
 *    table.c      rows of values: lists, pages, JSON
 *    progress.c   how far long work has come
 *
 * Results go to stdout, everything else to stderr. Functions that return `int`
 * return one of enum cli_exit and have said why on stderr when it is not
 * CLI_OK.
 */
#ifndef ONCE_TERMINAL_TERMINAL_H
#define ONCE_TERMINAL_TERMINAL_H

#include <stdio.h>

#include <getopt.h>
#include <jansson.h>

#include <once/once.h>
#include <once/store.h>

#include "operate/operate.h"

/*
 * Every exit status of every command, X(name, number, in a few words). What
 * `once run` hands on of its command stands in its own manual page.
 *
 *   NO       not found, not unique, refused: nothing was changed
 *   USAGE    the command line, or a limit: nothing was changed
 *   STORE    store or file trouble: nothing was changed; a record that is
 *            corrupt; or output trouble, when all else was done
 *   UNKNOWN  the store did not answer: it may have been changed
 */
#define CLI_EXITS(X)                                                           \
    X(OK, 0, "done")                                                           \
    X(NO, 1, "none, refused")                                                  \
    X(USAGE, 2, "usage, limit")                                                \
    X(STORE, 3, "store, file")                                                 \
    X(UNKNOWN, 4, "unknown")

/* clang-format off */
enum cli_exit {
#define CLI_EXIT(name, number, text) CLI_##name = number,
    CLI_EXITS(CLI_EXIT)
#undef CLI_EXIT
    CLI_STOP = -1 /* nothing is left to be done: --help, enough was seen */
};
/* clang-format on */

struct cli {
    const struct cli_command *command; /* for messages, or NULL             */
    /* All that there are, and what the program takes before one; or NULL. */
    const struct cli_command *const *commands, *own;
    size_t command_count;
    const char *store;    /* URL from --store or ONCE_STORE, or NULL         */
    const char *database; /* of a program: --database or ONCE_DATABASE      */
    const char *user_store; /* that of `once run`, if it is there, or NULL  */
    const char *audit; /* from --audit or ONCE_AUDIT, or NULL               */
    char *memory[2];   /* of --store @FILE and --database @FILE: free() them  */
    int json;
    int tty;   /* stdout is a terminal                                      */
    int color; /* ... and may be coloured                                   */
};

/* ---- A command --------------------------------------------------------- */

/* What the value of an option becomes in the command's struct. */
enum cli_into {
    CLI_TAKE,   /* what the command's take() makes of it              */
    CLI_FLAG,   /* int or uint32_t: 1, it was given                   */
    CLI_CHOICE, /* int or uint32_t: 0 or 1, which of `value`'s two words */
    CLI_U32,    /* uint32_t: a number from 1 to `most`                */
    CLI_MS,     /* uint32_t: a time up to a day                       */
    CLI_TEXT,   /* const char *                                       */
    CLI_NUMBER, /* uint64_t: from `least` to `most`                   */
    CLI_TIME,   /* uint64_t: a time, in milliseconds                  */
    CLI_WHEN    /* uint64_t: of the past, in milliseconds since 1970  */
};

/* One option of a command, as it is read, documented by its help page, and
 * completed by the shell. An option has the same meaning, and so the same
 * values, in every command. */
struct cli_option {
    const char *name; /* NULL ends a table */
    /* What its value may be, for completion: words with a space between,
     * CLI_FILES, CLI_SCHEMES (of stores), or "" where that cannot be known.
     * NULL: it takes no value. */
    const char *value;
    int id; /* what the command's take() calls it, or 0 */
    /* What take() does not hear of: it goes to this place in the command's struct,
     * which CLI_AT() names, or to all of it. */
    enum cli_into into;
    size_t offset;
    uint64_t least, most; /* of CLI_NUMBER; `most` of CLI_U32, too */
};
/* The value goes to this member of the command's struct; one of another size does
 * not compile. */
/* clang-format off */
#define CLI_AT(kind, type, member)                                             \
    .into = kind, .offset = offsetof(type, member) + 0 * sizeof(               \
        char[sizeof(((type *)0)->member) == (kind < CLI_TEXT ? 4 : 8) ? 1 : -1])
/* clang-format on */

#define CLI_FILES "/"
#define CLI_SCHEMES ":"
enum { CLI_OPTIONS_MAX = 32 }; /* of one command */

struct cli_command {
    const char *name; /* one word, or two: "messages relay" */
    const char *what; /* for the list of commands: up to 64 characters */
    const char *help; /* its page */
    const struct cli_option *options;
    const char *operands; /* words that may follow, for completion, or NULL */
    int (*run)(struct cli *c, int argc, char **argv);
};

/* ---- Input, in.c ------------------------------------------------------- */

enum { CLI_DIGITS_MIN = ONCE__DIGITS_MIN, CLI_DIGITS = ONCE__DIGITS };

/* --help is -h, too, and --version -V. Every command has the first three but
 * for `once run` and `once send`. cli_read_args() handles them. */
enum {
    CLI_OPT_STORE = 1000,
    CLI_OPT_DATABASE,
    CLI_OPT_JSON,
    CLI_OPT_HELP,
    CLI_OPT_AUDIT,
    CLI_OPT_VERSION
};
/* clang-format off */
#define CLI_STORE_OPTION                                                       \
    { "store", CLI_SCHEMES, .id = CLI_OPT_STORE }
#define CLI_DATABASE_OPTION                                                    \
    { "database", CLI_SCHEMES, .id = CLI_OPT_DATABASE }
#define CLI_JSON_OPTION { "json", NULL, .id = CLI_OPT_JSON }
#define CLI_HELP_OPTION { "help", NULL, .id = CLI_OPT_HELP }
/* Of commands that write to the audit log; read like these. */
#define CLI_AUDIT_OPTION { "audit", CLI_FILES, .id = CLI_OPT_AUDIT }
#define CLI_COMMON_OPTIONS CLI_STORE_OPTION, CLI_JSON_OPTION, CLI_HELP_OPTION
/* Those of `once messages`, which is about a program's database. */
#define CLI_MESSAGES_OPTIONS                                                   \
    CLI_DATABASE_OPTION, CLI_JSON_OPTION, CLI_HELP_OPTION
/* clang-format on */

/* Takes one option of the command's own, which has no CLI_AT(); its value is in
 * `optarg`. */
typedef int cli_take(const struct cli *c, void *user, int option);
/*
 * Reads the options of c->command; argv[optind] is then the first operand.
 * `take` may be NULL if the table has a place for each, in `*user`. CLI_STOP: the
 * help page was asked for and is printed; nothing is left to be done.
 */
int cli_read_args(struct cli *c, int argc, char **argv, cli_take *take,
                  void *user);
/* 1: this word is one of those in `words`, which have a space between. */
int cli_has_word(const char *words, const char *word);
/* CLI_OK if there are no operands; otherwise says `hint`, or "". */
int cli_no_operands(const struct cli *c, int argc, const char *hint);

int cli_read_name(const struct cli *c, const char *text, size_t least,
                  once__prefix *out);
int cli_read_number(const struct cli *c, const char *what, const char *text,
                    uint64_t least, uint64_t most, uint64_t *out);
/* "90s", "15m", "24h", "7d". */
int cli_read_time(const struct cli *c, const char *what, const char *text,
                  uint64_t *out_ms);
/* "24h" ago, "2026-03-01", "2026-03-01T08:00:00Z": in milliseconds since 1970. */
int cli_read_when(const struct cli *c, const char *what, const char *text,
                  uint64_t *out_ms);
/* A number from 1, and a time up to a day in milliseconds. */
int cli_read_u32(const struct cli *c, const char *what, const char *text,
                 uint32_t most, uint32_t *out);
int cli_read_ms(const struct cli *c, const char *what, const char *text,
                uint32_t *out);
/* 1 to 32 bytes of printable ASCII without spaces, filled up with NUL. */
int cli_read_group(const struct cli *c, const char *text,
                   uint8_t out[ONCE_GROUP_SIZE]);
/* The same for a group to look for: whatever a record may have, also as
 * cli_group() shows it. A gateway's realm may have spaces. */
int cli_read_filter(const struct cli *c, const char *text,
                    uint8_t out[ONCE_GROUP_SIZE]);
/* Reads all of `path`, "-" for stdin, into `*out`: free() its data, which has a
 * NUL at its end. */
int cli_read_file(const struct cli *c, const char *path, size_t most,
                  once_bytes *out);

/*
 * What may be a secret: `text`, or with "@FILE" the first line of this file. All
 * who are on a host can read a command line, and so a password in a URL is warned
 * of. `*memory` is NULL, or what free() takes when `*out` is no longer needed.
 */
enum { CLI_SECRET_MAX = 65536 };
int cli_read_secret(const struct cli *c, const char *what, const char *text,
                    const char **out, char **memory);
/* CLI_OK, or CLI_STORE: others may read the file, which holds a secret. */
int cli_check_secret(const struct cli *c, const char *path);
void cli_warn_password(const struct cli *c, const char *what, const char *url);

/* ---- Long work, progress.c -------------------------------------------- */

/*
 * Shows on stderr how far long work has come: only if that is a terminal, and
 * only when the work has taken a second. cli_say() may be used in between.
 */
struct cli_progress {
    const struct cli *c; /* NULL: says nothing */
    const char *what;    /* "records" */
    uint64_t next_ms;    /* when to look again */
    int shown;
};
void cli_progress_start(struct cli_progress *p, const struct cli *c,
                        const char *what);
/* `part` of 1 is done, or less than 0 if it is unknown; `n` so far. */
void cli_progress(struct cli_progress *p, double part, uint64_t n);
/* Takes it away: before anything else is said. */
void cli_progress_end(struct cli_progress *p);
/* How much of all names stands before this one: they are evenly spread. */
double cli_part(const uint8_t name[ONCE_NAME_SIZE]);

uint64_t cli_now_ms(void); /* since 1970, of this host */

/* ---- Output, out.c ------------------------------------------------------ */

#define CLI_HEX_SIZE (CLI_DIGITS + 1)
enum {
    CLI_TIME_SIZE = 25,
    CLI_FLAGS_SIZE = 48,
    CLI_GROUP_TEXT = 4 * ONCE_GROUP_SIZE + 1
};

/* "once COMMAND: ..." on stderr; returns `code`. */
int cli_say(const struct cli *c, int code, const char *format, ...)
    ONCE_PRINTF(3, 4);
/* The same with CLI_USAGE and a pointer to --help. */
int cli_usage(const struct cli *c, const char *format, ...) ONCE_PRINTF(2, 3);
/* CLI_OK if all of stdout was written. */
int cli_flush(const struct cli *c);

/* The first `digits` of it, and a NUL; `out` has room for one more if they are
 * odd. */
void cli_hex(const uint8_t *name, size_t digits, char *out);
/* UTC, ISO 8601 with milliseconds; "-" for 0. */
void cli_time(uint64_t ms, char out[CLI_TIME_SIZE]);
const char *cli_state(int state);   /* "corrupt" for no state */
int cli_state_of(const char *name); /* -1 for no name         */
const char *cli_kind(int kind);     /* "-" for no kind        */
/* What colours a state on a terminal, and what ends it; "" elsewhere. */
const char *cli_color(const struct cli *c, int state);
const char *cli_plain(const struct cli *c, int state);
/* "doubt,takeover,retry,resolved", or "-". */
void cli_flags(const once_record *r, char out[CLI_FLAGS_SIZE]);
/* What is not printable ASCII escaped, spaces too; "" if there is no group. */
void cli_group(const uint8_t group[ONCE_GROUP_SIZE], char out[CLI_GROUP_TEXT]);
/* When its lease ends, or until when it is kept at least; 0 for neither. */
uint64_t cli_until(const once_record *r);

/* A terminal gets columns, a program gets tabs. */
void cli_label(const struct cli *c, const char *name);
void cli_line(const struct cli *c, const char *name, const char *value);
void cli_number(const struct cli *c, const char *name, uint64_t value);
void cli_moment(const struct cli *c, const char *name, uint64_t ms);

/* ---- Rows of values, table.c -------------------------------------------- */

enum cli_field_kind {
    CLI_F_TEXT, /* escaped; "-" if it is empty                             */
    CLI_F_NUMBER,
    CLI_F_TIME,  /* since 1970, or 0                                        */
    CLI_F_AGE,   /* shown in seconds; "NAME_ms" in JSON                     */
    CLI_F_BYTES, /* how many; "NAME_bytes" in JSON                          */
    CLI_F_YES,   /* or no                                                   */
    CLI_F_NAMES, /* of headers, of the text "A: b\n..."; not for JSON       */
    CLI_F_SECRET /* NULL: none; `n`: as it is, and not its hash. "NAME_hash",
                   * and with `n` NAME itself, in JSON                       */
};
enum { CLI_IN_LIST = 1, CLI_IN_PAGE = 2, CLI_IN_JSON = 4, CLI_ALL = 7 };

struct cli_field {
    const char *name; /* NULL ends a table */
    enum cli_field_kind kind;
    int where; /* bits of CLI_IN_... */
    int width; /* of its column on a terminal */
};
/* One for each field. */
struct cli_value {
    uint64_t n;
    const char *text;
};
/* The headings, if a person reads it; then each row, or its JSON. */
int cli_list_heading(const struct cli *c, const struct cli_field *fields);
int cli_list_line(const struct cli *c, const struct cli_field *fields,
                  const struct cli_value *values);
/* A line for each field. */
void cli_fields_print(const struct cli *c, const struct cli_field *fields,
                      const struct cli_value *values);
/* NULL: out of memory. */
json_t *cli_fields_json(const struct cli_field *fields,
                        const struct cli_value *values);
/* From now on lines on stdout end where the terminal ends: for tables. A
 * program gets all of them, and so does a caller with --json. */
void cli_cut_lines(const struct cli *c);

/* Text of others: control characters, and bytes that are not UTF-8, escaped. */
void cli_print_text(FILE *to, once_bytes text);
json_t *cli_json_text(once_bytes text); /* NULL: out of memory */
json_t *cli_json_time(uint64_t ms);     /* null for 0          */
/* NULL: out of memory. */
json_t *cli_json_record(const uint8_t name[ONCE_NAME_SIZE],
                        const once_record *r);
/* One line on stdout; takes `value`, which may be NULL. */
int cli_print_json(const struct cli *c, json_t *value);

#endif /* ONCE_TERMINAL_TERMINAL_H */
