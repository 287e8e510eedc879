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
    const char *store; /* URL from --store or ONCE_STORE, or NULL         */
    const char *user_store; /* that of `once run`, if it is there, or NULL  */
    const char *audit; /* from --audit or ONCE_AUDIT, or NULL               */
    int json;
    int tty;   /* stdout is a terminal                                      */
    int color; /* ... and may be coloured                                   */
};

/* ---- The commands ------------------------------------------------------ */

/* One option of a command, as it is read, documented by its help page, and
 * completed by the shell. An option has the same meaning, and so the same
 * values, in every command. */
struct cli_option {
    const char *name; /* NULL ends a table */
    /* What its value may be, for completion: words with a space between,
     * CLI_FILES, CLI_SCHEMES (of stores), or "" where that cannot be known.
     * NULL: it takes no value. */
    const char *value;
    int id; /* what cli_read_args() calls it: from 1, each its own */
};

#define CLI_FILES "/"
#define CLI_SCHEMES ":"
enum { CLI_OPTIONS_MAX = 32 }; /* of one command */

struct cli_command {
    const char *name;
    const char *what; /* for the list of commands: up to 64 characters */
    const char *help; /* its page */
    const struct cli_option *options;
    const char *operands; /* words that may follow, for completion, or NULL */
    int (*run)(struct cli *c, int argc, char **argv);
};

/*
 * Every command, X(name), in the order in which they are listed. Each is the
 * object cli_cmd_NAME of its own file, cmd_NAME.c: CONTRIBUTING.md says how to
 * add one.
 */
#define CLI_COMMANDS(X)                                                        \
    X(run)                                                                     \
    X(send)                                                                    \
    X(ls)                                                                      \
    X(show)                                                                    \
    X(name)                                                                    \
    X(resolve)                                                                 \
    X(forget)                                                                  \
    X(purge)                                                                   \
    X(stats)                                                                   \
    X(check)                                                                   \
    X(verify)                                                                  \
    X(backup)                                                                  \
    X(restore)                                                                 \
    X(clock)                                                                   \
    X(init)                                                                    \
    X(dump)                                                                    \
    X(messages)                                                                \
    X(consume)                                                                 \
    X(emit)                                                                    \
    X(relay)                                                                   \
    X(outbox)                                                                  \
    X(parked)                                                                  \
    X(saga)                                                                    \
    X(console)                                                                 \
    X(bench)                                                                   \
    X(audit)                                                                   \
    X(trace)                                                                   \
    X(completion)

#define CLI_DECLARE(name) extern const struct cli_command cli_cmd_##name;
CLI_COMMANDS(CLI_DECLARE)
#undef CLI_DECLARE

/* All of them, and what `once` itself takes before a command. */
const struct cli_command *const *cli_commands(size_t *n);
extern const struct cli_option cli_own_options[];

/* ---- Input, in.c ------------------------------------------------------- */

enum { CLI_DIGITS_MIN = ONCE__DIGITS_MIN, CLI_DIGITS = ONCE__DIGITS };

/* Every command has these three, but for `once run` and `once send`.
 * cli_read_args() handles them. */
enum { CLI_OPT_STORE = 1000, CLI_OPT_JSON, CLI_OPT_HELP, CLI_OPT_AUDIT };
/* clang-format off */
#define CLI_STORE_OPTION                                                       \
    { "store", CLI_SCHEMES, CLI_OPT_STORE }
#define CLI_JSON_OPTION { "json", NULL, CLI_OPT_JSON }
#define CLI_HELP_OPTION { "help", NULL, CLI_OPT_HELP }
/* Of commands that write to the audit log; read like these. */
#define CLI_AUDIT_OPTION { "audit", CLI_FILES, CLI_OPT_AUDIT }
#define CLI_COMMON_OPTIONS CLI_STORE_OPTION, CLI_JSON_OPTION, CLI_HELP_OPTION
/* clang-format on */

/* Takes one option of the command's own; its value is in `optarg`. */
typedef int cli_take(const struct cli *c, void *user, int option);
/*
 * Reads the options of c->command; argv[optind] is then the first operand.
 * `take` may be NULL if the command has no options of its own. CLI_STOP: the
 * help page was asked for and is printed; nothing is left to be done.
 */
int cli_read_args(struct cli *c, int argc, char **argv, cli_take *take,
                  void *user);
/* CLI_OK if there are no operands; otherwise says `hint`, or "". */
int cli_no_operands(const struct cli *c, int argc, const char *hint);

int cli_read_name(const struct cli *c, const char *text, size_t least,
                  once__prefix *out);
int cli_read_number(const struct cli *c, const char *what, const char *text,
                    uint64_t least, uint64_t most, uint64_t *out);
/* "90s", "15m", "24h", "7d". */
int cli_read_time(const struct cli *c, const char *what, const char *text,
                  uint64_t *out_ms);
/* The same, back from `now_ms`; or a day or a moment in UTC, "2026-03-01",
 * "2026-03-01T08:00:00Z". In milliseconds since 1970. */
int cli_read_when(const struct cli *c, const char *what, uint64_t now_ms,
                  const char *text, uint64_t *out_ms);
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
/* Reads all of `path`, "-" for stdin, into `*out`: free() its data. */
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

/* ---- A gateway's request, request.c --------------------------------------- */

/* As they were given, or NULL. */
struct cli_request {
    const char *scope_file, *realm, *method, *path;
    int no_scope;
};

enum {
    CLI_OPT_SCOPE_FILE = 1200,
    CLI_OPT_NO_SCOPE,
    CLI_OPT_REALM,
    CLI_OPT_METHOD,
    CLI_OPT_PATH
};
/* clang-format off */
#define CLI_REQUEST_OPTIONS                                                    \
    { "scope-file", CLI_FILES, CLI_OPT_SCOPE_FILE },                           \
    { "no-scope", NULL, CLI_OPT_NO_SCOPE },                                    \
    { "realm", "", CLI_OPT_REALM },                                            \
    { "method", "", CLI_OPT_METHOD },                                          \
    { "path", "", CLI_OPT_PATH }
/* clang-format on */

/* 1 if `o` was one of these options, and is taken. */
int cli_request_option(struct cli_request *r, int o);
/* 1 if one of them was given. */
int cli_request_given(const struct cli_request *r);
/* The name of its record; reads the files. */
int cli_request_name(const struct cli *c, const struct cli_request *r,
                     const char *key_file, uint8_t out[ONCE_NAME_SIZE]);

/* ---- One record, pick.c -------------------------------------------------- */

/* Which record is meant: by the digits of its name, or by group and key. */
struct cli_pick {
    const char *whole, *group, *key, *key_file; /* as given, or NULL */
    int by_request;
    struct cli_request request;
    once__prefix name;
};

enum {
    CLI_OPT_NAME = 1100,
    CLI_OPT_GROUP,
    CLI_OPT_KEY,
    CLI_OPT_KEY_FILE,
    CLI_OPT_REQUEST
};
/* clang-format off */
#define CLI_PICK_OPTIONS                                                       \
    { "name", "", CLI_OPT_NAME },                                              \
    { "group", "", CLI_OPT_GROUP },                                            \
    { "key", "", CLI_OPT_KEY },                                                \
    { "key-file", CLI_FILES, CLI_OPT_KEY_FILE },                               \
    { "request", NULL, CLI_OPT_REQUEST },                                      \
    CLI_REQUEST_OPTIONS
/* clang-format on */

/* 1 if `o` was one of these options, and is taken. */
int cli_pick_option(struct cli_pick *p, int o);
/* When all options are read: takes the HASH after them, if that is how the
 * record was named, and works out the name. Reads the key's file. */
int cli_pick_end(const struct cli *c, struct cli_pick *p, int argc,
                 char **argv);
/* Finds the one record that is meant. */
int cli_find(const struct cli *c, once_engine *e, const once__prefix *name,
             uint8_t out[ONCE_NAME_SIZE]);
/* Sets up `*op` as a ONCE_OP_SHOW of `name` and asks: CLI_NO if there is no
 * record. End it with once_op_clear(), whatever it returns. */
int cli_look(const struct cli *c, once_engine *e,
             const uint8_t name[ONCE_NAME_SIZE], once_op *op);

/* ---- The store, store.c ------------------------------------------------- */

/* How long an operation is repeated that the store does not answer. */
enum { CLI_STORE_MS = 5000 };

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
 * For commands about a whole store, which may be named without --store, too: by
 * its URL, or the path of a folder (a journal) or of a file (sqlite). `*memory`
 * is for the URL: free() it when the command ends.
 */
int cli_take_store(struct cli *c, int argc, char **argv, char **memory);
/* Opens the store, which must exist; end it with once_engine_close(). */
int cli_open(const struct cli *c, once_engine **out);
/* To change nothing: it may be on a file system that is mounted read-only. */
int cli_open_to_look(const struct cli *c, once_engine **out);
/* The same without an engine, and without a message about whose store it is;
 * end it with once_store_close(). */
int cli_open_store(const struct cli *c, once_store **out);
int cli_open_store_to_look(const struct cli *c, once_store **out);
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
/* `part` of 1 is done, or less than 0 if nobody knows; `n` so far. */
void cli_progress(struct cli_progress *p, double part, uint64_t n);
/* Takes it away: before anything else is said. */
void cli_progress_end(struct cli_progress *p);
/* How much of all names stands before this one: they are evenly spread. */
double cli_part(const uint8_t name[ONCE_NAME_SIZE]);

struct cli_row {
    uint8_t name[ONCE_NAME_SIZE];
    once_record record; /* without its bytes, but for the label's */
    char label[ONCE_LABEL_MAX];
};
/* CLI_OK: go on. CLI_STOP: enough. Anything else ends the walk as well. */
typedef int cli_see(void *user, const struct cli_row *row);
/*
 * Shows the records of the scan `what` behind `after` (NULL: all) in its order,
 * a page at a time, on the caller's own thread.
 */
int cli_walk(const struct cli *c, once_engine *e, int what,
             const once_position *after, struct cli_progress *p, cli_see *see,
             void *user);

uint64_t cli_now_ms(void);    /* since 1970, of this host */
uint64_t cli_steady_us(void); /* of a clock that cannot be set */

/* ---- Decisions of an operator, audit.c ----------------------------------- */

#define CLI_NOTE_SIZE (ONCE_NOTE_MAX + 1)

/* --why, as every decision needs it. */
int cli_check_why(const struct cli *c, const char *why);
/* Who, when, where, what and why, in one line. */
void cli_make_note(const char *action, const char *why,
                   char out[CLI_NOTE_SIZE]);
once_bytes cli_bytes(const char *text);
/* For once__audit_open(): what --audit says, or the default for the store. */
const char *cli_audit_path(const struct cli *c);
/* The audit log that was named, or the default one; end it with
 * once__audit_close(). */
int cli_audit_open(const struct cli *c, once__audit **out);

/* What a command writes into it about itself: zeros at first, and in `entry`
 * what is known. */
struct cli_decision {
    once_store_head head;
    once__audit *log;
    once__audit_who who;
    once__audit_entry entry;
    uint64_t seq;
    char action[32];              /* of cli_intend_row() */
    uint8_t name[ONCE_NAME_SIZE]; /* likewise            */
};
/* Which store it is about, where that has an id: by its engine, or alone. */
void cli_about(struct cli_decision *d, once_engine *e, once_store *s);
/* The intent. Unless this is CLI_OK, nothing may be done. */
int cli_intend(const struct cli *c, struct cli_decision *d);
/* The intent of `once outbox`, `parked` and `saga`: WORD of the command, about
 * what has this id. It goes by the SHA-256 of it, whose first digits `ls` shows.
 */
int cli_intend_row(const struct cli *c, struct cli_decision *d,
                   const char *word, const char *id, uint64_t attempt,
                   const char *why);
/* What came of it: `rc` is the command's exit status, and what is returned, if
 * that can be written. `detail` may be NULL. Does nothing without an intent. */
int cli_audited(const struct cli *c, struct cli_decision *d, int rc,
                const char *detail);
/* Why a decision about `now` was refused, when it was not for its state. */
int cli_changed(const struct cli *c, const once_record *now, uint64_t fence);
/* Says what once__resolve() returned, if it is not that all was done. */
int cli_resolved(const struct cli *c, int verdict, const once__resolution *r,
                 const once_record *now, const once_error *err);
/* The same as a text, of a refusal. */
void cli_refusal(int verdict, const once__resolution *r, const once_record *now,
                 char *out, size_t size);

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
