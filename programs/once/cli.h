/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cli.h - what the subcommands of `once` share.
 *
 * A command parses its own arguments, checks every one of them, reads its
 * files, and only then opens the store: bad input never reaches it. Nothing
 * here prints a key, a token, a fingerprint, a header's value or a store URL,
 * and a body only when it is asked for by name.
 */
#ifndef ONCE_ONCE_CLI_H
#define ONCE_ONCE_CLI_H

#include "programs/terminal/terminal.h"

/* ---- The commands ------------------------------------------------------ */

/*
 * Every command, X(name, half), in the order in which they are listed. Each is
 * the object cli_cmd_NAME of its own file, cmd_NAME.c: CONTRIBUTING.md says how
 * to add one. FIRST are those that most people need.
 */
#ifdef ONCE_WITH_MESSAGES
#define CLI_MESSAGES_COMMANDS(X)                                               \
    X(emit, MESSAGES)                                                          \
    X(relay, MESSAGES)                                                         \
    X(consume, MESSAGES)                                                       \
    X(outbox, MESSAGES)                                                        \
    X(parked, MESSAGES)                                                        \
    X(saga, MESSAGES)                                                          \
    X(messages, MESSAGES)
#else
#define CLI_MESSAGES_COMMANDS(X)
#endif
#define CLI_COMMANDS(X)                                                        \
    X(run, FIRST)                                                              \
    X(send, FIRST)                                                             \
    X(ls, FIRST)                                                               \
    X(show, FIRST)                                                             \
    X(resolve, FIRST)                                                          \
    X(check, FIRST)                                                            \
    X(console, FIRST)                                                          \
    X(serve, FIRST)                                                            \
    X(forget, RECORDS)                                                         \
    X(purge, RECORDS)                                                          \
    X(stats, RECORDS)                                                          \
    X(verify, RECORDS)                                                         \
    X(backup, RECORDS)                                                         \
    X(restore, RECORDS)                                                        \
    X(clock, RECORDS)                                                          \
    X(init, RECORDS)                                                           \
    X(audit, RECORDS)                                                          \
    X(report, RECORDS)                                                         \
    X(trace, RECORDS)                                                          \
    X(name, RECORDS)                                                           \
    X(lookup, RECORDS)                                                         \
    X(dump, RECORDS)                                                           \
    CLI_MESSAGES_COMMANDS(X)                                                   \
    X(completion, OTHER)

#define CLI_DECLARE(name, half) extern const struct cli_command cli_cmd_##name;
CLI_COMMANDS(CLI_DECLARE)
#undef CLI_DECLARE

/* ---- A gateway's request, request.c ------------------------------------- */

/* As they were given, or NULL. */
struct cli_request {
    const char *scope_file, *realm, *method, *path;
    int no_scope;
};

/* clang-format off */
#define CLI_REQUEST_OPTIONS(type, at)                                          \
    { "scope-file", CLI_FILES, CLI_AT(CLI_TEXT, type, at.scope_file) },     \
    { "no-scope", NULL, CLI_AT(CLI_FLAG, type, at.no_scope) },              \
    { "realm", "", CLI_AT(CLI_TEXT, type, at.realm) },                      \
    { "method", "", CLI_AT(CLI_TEXT, type, at.method) },                    \
    { "path", "", CLI_AT(CLI_TEXT, type, at.path) }
/* clang-format on */

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

/* Of a command whose struct has a `pick`. */
/* clang-format off */
#define CLI_PICK_OPTIONS(type)                                                 \
    { "name", "", CLI_AT(CLI_TEXT, type, pick.whole) },                     \
    { "group", "", CLI_AT(CLI_TEXT, type, pick.group) },                    \
    { "key", "", CLI_AT(CLI_TEXT, type, pick.key) },                        \
    { "key-file", CLI_FILES, CLI_AT(CLI_TEXT, type, pick.key_file) },       \
    { "request", NULL, CLI_AT(CLI_FLAG, type, pick.by_request) },           \
    CLI_REQUEST_OPTIONS(type, pick.request)
/* clang-format on */

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
struct cli_promise {
    int durable, shared;
    char caveat[512]; /* how it can lose records, or "" */
};
void cli_promise_of(const once_store *s, struct cli_promise *out);
/* The same by opening and closing it, for a command that goes on to open it. */
int cli_promise(const struct cli *c, struct cli_promise *out);

/* Says what an error of the library means and what to do next. */
int cli_trouble(const struct cli *c, int code, const once_error *err);
/* The same after an operation that may have changed the store. */
int cli_trouble_of_change(const struct cli *c, int code, const once_error *err);

/* ---- All records, walk.c ------------------------------------------------- */

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
};
/* Which store it is about, where that has an id: by its engine, or alone. */
void cli_about(struct cli_decision *d, once_engine *e, once_store *s);
/* The intent. Unless this is CLI_OK, nothing may be done. */
int cli_intend(const struct cli *c, struct cli_decision *d);
/* What came of it: `rc` is the command's exit status, and what is returned, if
 * that can be written. `detail` may be NULL. Does nothing without an intent. */
int cli_audited(const struct cli *c, struct cli_decision *d, int rc,
                const char *detail);
/* It was decided, and the log has no line about the result; returns `rc`. */
int cli_unlogged(const struct cli *c, int rc, const once_error *err);
/* cli_trouble(), or what to do where nothing was decided for want of a log. */
int cli_trouble_of_decision(const struct cli *c, int code,
                            const once_error *err);
/* Prints what became of a record; `done` is for stderr if that cannot be
 * printed. */
int cli_report(const struct cli *c, const uint8_t name[ONCE_NAME_SIZE],
               const once_record *r, const char *done);
/* Why a decision about `now` was refused, when it was not for its state. */
int cli_changed(const struct cli *c, const once_record *now, uint64_t fence);
/* Says what once__resolve() returned, if it is not that all was done. */
int cli_resolved(const struct cli *c, int verdict, const once__resolution *r,
                 const once_record *now, const once_error *err);
/* The same as a text, of a refusal. */
void cli_refusal(int verdict, const once__resolution *r, const once_record *now,
                 char *out, size_t size);

#endif /* ONCE_ONCE_CLI_H */
