/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cli.h - what the subcommands of `once` share.
 *
 * A command parses its own arguments, checks every one of them, reads its
 * files, and only then opens the store: bad input never reaches it. Results go
 * to stdout, everything else to stderr. Nothing here prints a key, a token, a
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
#include <once/store.h>

/*
 * Every exit status of every command, X(name, number, in a few words). What
 * `once run` hands on of its command stands in its own manual page.
 *
 *   NO       not found, not unique, refused: nothing was changed
 *   USAGE    the command line, or a limit: nothing was changed
 *   STORE    store or file trouble: nothing was changed; a record that does
 *            not check; or output trouble, when all else was done
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
    CLI_STOP = -1 /* of a cli_see: enough was seen */
};
/* clang-format on */

struct cli {
    const char *command; /* "ls": for messages                              */
    const char *store;   /* URL from --store or ONCE_STORE, or NULL         */
    const char *user_store; /* that of `once run`, if it is there, or NULL  */
    int json;
    int tty;   /* stdout is a terminal                                      */
    int color; /* ... and may be coloured                                   */
    /* Not NULL: `once completion` asks which options there are, see
     * cli_option(). */
    const struct option **tell;
};

typedef int cli_run(struct cli *c, int argc, char **argv);
cli_run cli_ls, cli_show, cli_resolve, cli_forget, cli_purge, cli_stats;
cli_run cli_clock, cli_check, cli_verify, cli_init, cli_dump, cli_bench,
    cli_completion;
cli_run cli_run_command, cli_send;

/* The table of subcommands, once.c. */
struct cli_command {
    const char *name;
    cli_run *run;
    const char *what; /* for the help: up to 64 characters */
};
const struct cli_command *cli_commands(size_t *n);

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
 * option, -1 at the end, or '?' with `*rc` set: return that. A command calls
 * it before it does anything else, so that with `c->tell` the command does
 * nothing but leave its table there.
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
/* 1 to 32 bytes of printable ASCII without spaces, filled up with NUL. */
int cli_read_group(const struct cli *c, const char *text,
                   uint8_t out[ONCE_GROUP_SIZE]);
/* The same for a group to look for: whatever a record may have, also as
 * cli_group() shows it. A gateway's realm may have spaces. */
int cli_read_filter(const struct cli *c, const char *text,
                    uint8_t out[ONCE_GROUP_SIZE]);
/* Reads all of `path`, "-" for stdin, into `*out`: free() its data. */
int cli_read_file(const struct cli *c, const char *path, size_t most,
                  once_bytes *out);

/* ---- One record, pick.c -------------------------------------------------- */

/* Which record is meant: by the digits of its name, or by group and key. */
struct cli_pick {
    const char *whole, *group, *key, *key_file; /* as given, or NULL */
    struct cli_name name;
};

enum { CLI_OPT_NAME = 1100, CLI_OPT_GROUP, CLI_OPT_KEY, CLI_OPT_KEY_FILE };
/* clang-format off */
#define CLI_PICK_OPTIONS                                                       \
    { "name", required_argument, NULL, CLI_OPT_NAME },                         \
    { "group", required_argument, NULL, CLI_OPT_GROUP },                       \
    { "key", required_argument, NULL, CLI_OPT_KEY },                           \
    { "key-file", required_argument, NULL, CLI_OPT_KEY_FILE }
/* clang-format on */

/* 1 if `o` was one of these options, and is taken. */
int cli_pick_option(struct cli_pick *p, int o);
/* When all options are read: takes the HASH behind them, if that is how the
 * record was named, and works out the name. Reads the key's file. */
int cli_pick_end(const struct cli *c, struct cli_pick *p, int argc,
                 char **argv);
/* Finds the one record that is meant. */
int cli_find(const struct cli *c, once_engine *e, const struct cli_name *name,
             uint8_t out[ONCE_NAME_SIZE]);
/* Sets up `*op` as a ONCE_OP_SHOW of `name` and asks: CLI_NO if there is no
 * record. End it with once_op_clear(), whatever it returns. */
int cli_look(const struct cli *c, once_engine *e,
             const uint8_t name[ONCE_NAME_SIZE], once_op *op);

/* ---- The store, store.c ------------------------------------------------- */

/* How long an unanswered operation is repeated. */
enum { CLI_PATIENCE_MS = 5000 };

/* The URL of the store that was named, or else of the user's own; or NULL. */
/* The schemes of URLs of stores that an operator can open, with spaces: one for
 * each kind of store, or all. */
void cli_print_schemes(FILE *to, int all);
/* 1: the store of this URL is gone when the process ends. */
int cli_in_process(const char *url);

const char *cli_url(const struct cli *c);
/* The URL of the store that `once run` makes for this user, if it is there:
 * free() it. Creates nothing; see run/state.c, which does. */
char *cli_user_store(void);
/* A store was named that can be seen from outside its process; says so if it
 * is the user's own. cli_open() asks this by itself. */
int cli_named(const struct cli *c);
/*
 * For commands about a whole store, which may be named by a word as well: a
 * URL, or the path of a folder (a journal) or of a file (sqlite). `*memory` is
 * for the URL: free() it when the command ends.
 */
int cli_take_store(struct cli *c, int argc, char **argv, char **memory);
/* Opens the store, which must exist; end it with once_engine_close(). */
int cli_open(const struct cli *c, once_engine **out);
/* The same without an engine, and without a word about whose store it is; end
 * it with once_store_close(). */
int cli_open_store(const struct cli *c, once_store **out);
/* Asks a store, and again while it does not answer. */
int cli_ask(const struct cli *c, once_store *s, once_op **ops, size_t n);

/* What is promised of a store. */
struct cli_class {
    int durable, shared;
    char caveat[512]; /* why it is of class B, or "" */
};
void cli_class_of(const once_store *s, struct cli_class *out);
/* The same by opening and closing it, for a command that goes on to open it. */
int cli_class(const struct cli *c, struct cli_class *out);

/* Says what an error of the library means and what to do next. */
int cli_trouble(const struct cli *c, int code, const once_error *err);
/* The same after an operation that may have changed the store. */
int cli_trouble_of_change(const struct cli *c, int code, const once_error *err);

/* ---- Long work, walk.c and progress.c ------------------------------------ */

/*
 * Tells on stderr how far long work has come: only if that is a terminal, and
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
/* `part` of 1 is done, or less than 0 if nobody knows; `n` so far. */
void cli_progress(struct cli_progress *p, double part, uint64_t n);
/* Takes it away: before anything else is said. */
void cli_progress_end(struct cli_progress *p);
/* How much of all names stands before this one: they are evenly spread. */
double cli_part(const uint8_t name[ONCE_NAME_SIZE]);

struct cli_row {
    uint8_t name[ONCE_NAME_SIZE];
    once_record record; /* without its bytes */
};
/* CLI_OK: go on. CLI_STOP: enough. Anything else ends the walk as well. */
typedef int cli_see(void *user, const struct cli_row *row);
/*
 * Shows all records behind `after` (NULL: all) in the order of their names, a
 * page at a time, on the caller's own thread.
 */
int cli_walk(const struct cli *c, once_engine *e, const uint8_t *after,
             struct cli_progress *p, cli_see *see, void *user);

uint64_t cli_now_ms(void);    /* since 1970, of this host */
uint64_t cli_steady_us(void); /* of a clock that cannot be set */

/* ---- Decisions of an operator, audit.c ----------------------------------- */

struct once__response;

enum { CLI_WHY_MAX = 512 };
#define CLI_NOTE_SIZE (ONCE_NOTE_MAX + 1)

/* --why, as every decision needs it. */
int cli_check_why(const struct cli *c, const char *why);
/* Who, when, where, what and why, in one line. */
void cli_make_note(const char *deed, const char *why, char out[CLI_NOTE_SIZE]);
once_bytes cli_bytes(const char *text);
/* An encoded response: free() its data. */
int cli_encode(const struct cli *c, const struct once__response *response,
               once_bytes *out);
/*
 * The owner's lease is over and nobody is left to reap it: anybody may say so.
 * Does nothing to a record that is not so, or no longer the one of `seen`.
 */
int cli_reap(const struct cli *c, once_engine *e, const once_op *seen,
             uint64_t keep_ms);
/* Why a decision about `now` was refused, when it was not for its state. */
int cli_changed(const struct cli *c, const once_record *now, uint64_t fence);

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

void cli_hex(const uint8_t name[ONCE_NAME_SIZE], size_t digits, char *out);
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

/* Text of others: control characters, and bytes that are not UTF-8, escaped. */
void cli_print_text(FILE *to, once_bytes text);
json_t *cli_json_text(once_bytes text); /* NULL: out of memory */
json_t *cli_json_time(uint64_t ms);     /* null for 0          */
/* NULL: out of memory. */
json_t *cli_json_record(const uint8_t name[ONCE_NAME_SIZE],
                        const once_record *r);
/* One line on stdout; takes `value`, which may be NULL. */
int cli_print_json(const struct cli *c, json_t *value);

#endif /* ONCE_CLI_H */
