/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cli.h - what the subcommands of `once` share.
 *
 * A command parses its own arguments, checks every one of them, reads its
 * files, and only then opens the store: bad input never reaches it. Results go
 * to stdout, everything else to stderr. Nothing here prints a token, a
 * fingerprint, a header's value or a store URL, and a body only when it is
 * asked for by name. Functions that return `int` return one of enum cli_exit
 * and have said why on stderr when it is not CLI_OK.
 */
#ifndef ONCE_CLI_H
#define ONCE_CLI_H

#include <stdio.h>

#include <getopt.h>
#include <jansson.h>

#include <once/once.h>

enum cli_exit {
    CLI_OK = 0,
    CLI_NO = 1,     /* not found, not unique, refused: nothing was changed   */
    CLI_USAGE = 2,  /* the command line, or a limit: nothing was changed     */
    CLI_STORE = 3,  /* store or file trouble: nothing was changed; or output
                     * trouble, when all else was done                       */
    CLI_UNKNOWN = 4 /* the store did not answer: it may have been changed    */
};

struct cli {
    const char *command; /* "ls": for messages                              */
    const char *store;   /* URL from --store or ONCE_STORE, or NULL         */
    int json;
    int tty; /* stdout is a terminal                                        */
};

typedef int cli_run(struct cli *c, int argc, char **argv);
cli_run cli_ls, cli_show, cli_resolve, cli_check;

/* ---- Input, in.c ------------------------------------------------------- */

/* A record's name as an operator gives it: whole, or its first digits. */
struct cli_name {
    uint8_t bytes[ONCE_NAME_SIZE]; /* zeros behind the digits */
    size_t digits;
};

enum { CLI_DIGITS_MIN = 8, CLI_DIGITS = 2 * ONCE_NAME_SIZE };

/*
 * getopt_long() with our own messages. Handles --store, --json and --help,
 * which every command has (CLI_COMMON_OPTIONS in its table). Returns the
 * option, -1 at the end, or '?' with `*rc` set: return that.
 */
enum { CLI_OPT_STORE = 1000, CLI_OPT_JSON, CLI_OPT_HELP };
/* clang-format off */
#define CLI_COMMON_OPTIONS                                                     \
    { "store", required_argument, NULL, CLI_OPT_STORE },                       \
    { "json", no_argument, NULL, CLI_OPT_JSON },                               \
    { "help", no_argument, NULL, CLI_OPT_HELP }
/* clang-format on */
int cli_option(struct cli *c, int argc, char **argv,
               const struct option *options, const char *help, int *rc);

int cli_read_name(const struct cli *c, const char *text, size_t least,
                  struct cli_name *out);
int cli_read_number(const struct cli *c, const char *what, const char *text,
                    uint64_t least, uint64_t most, uint64_t *out);
/* "90s", "15m", "24h", "7d". */
int cli_read_time(const struct cli *c, const char *what, const char *text,
                  uint64_t *out_ms);
/* Reads all of `path`, "-" for stdin, into `*out`: free() its data. */
int cli_read_file(const struct cli *c, const char *path, size_t most,
                  once_bytes *out);

/* ---- The store, store.c ------------------------------------------------- */

/* Opens the store, which must exist; end it with once_engine_close(). */
int cli_open(const struct cli *c, once_engine **out);
/* Finds the one record whose name begins with `name`. */
int cli_find(const struct cli *c, once_engine *e, const struct cli_name *name,
             uint8_t out[ONCE_NAME_SIZE]);
/* Sets up `*op` as a ONCE_OP_SHOW of `name` and asks: CLI_NO if there is no
 * record. End it with once_op_clear(), whatever it returns. */
int cli_look(const struct cli *c, once_engine *e,
             const uint8_t name[ONCE_NAME_SIZE], once_op *op);
/* Says what an error of the library means and what to do next. */
int cli_trouble(const struct cli *c, int code, const once_error *err);

/* ---- Output, out.c ------------------------------------------------------ */

#define CLI_HEX_SIZE (CLI_DIGITS + 1)
enum { CLI_TIME_SIZE = 25, CLI_FLAGS_SIZE = 48 };

/* "once COMMAND: ..." on stderr; returns `code`. */
int cli_say(const struct cli *c, int code, const char *format, ...)
    ONCE_PRINTF(3, 4);
/* The same with CLI_USAGE and a pointer to --help. */
int cli_usage(const struct cli *c, const char *format, ...) ONCE_PRINTF(2, 3);
/* CLI_OK if all of stdout was written. */
int cli_flush(const struct cli *c);

void cli_hex(const uint8_t name[ONCE_NAME_SIZE], size_t digits, char *out);
/* UTC, ISO 8601 with milliseconds; "-" for 0. */
void cli_time(uint64_t ms, char out[CLI_TIME_SIZE]);
const char *cli_state(int state);   /* "corrupt" for no state */
int cli_state_of(const char *name); /* -1 for no name         */
const char *cli_kind(int kind);     /* "-" for no kind        */
/* "doubt,takeover,retry,resolved", or "-". */
void cli_flags(const once_record *r, char out[CLI_FLAGS_SIZE]);
/* When its lease ends, or until when it is kept at least; 0 for neither. */
uint64_t cli_until(const once_record *r);

/* Text of others: control characters, and bytes that are not UTF-8, escaped. */
void cli_print_text(FILE *to, once_bytes text);
json_t *cli_json_text(once_bytes text); /* NULL: out of memory */
/* NULL: out of memory. */
json_t *cli_json_record(const uint8_t name[ONCE_NAME_SIZE],
                        const once_record *r);
/* One line on stdout; takes `value`, which may be NULL. */
int cli_print_json(const struct cli *c, json_t *value);

#endif /* ONCE_CLI_H */
