/* SPDX-License-Identifier: Apache-2.0 */
/*
 * rows.h - what an operator sees of messages in a program's database, and
 * decides about them: `once messages outbox`, `parked` and `saga` are this
 * engine, each with a table of its own.
 *
 *    cmd_outbox.c, cmd_parked.c, cmd_saga.c    fields, and how they are read
 *    rows.c                                    options, ls, show, decide, stats
 *    operate/messages/decide.c                 the decision itself
 */
#ifndef ONCE_ONCE_MESSAGES_ROWS_H
#define ONCE_ONCE_MESSAGES_ROWS_H

#include "messages/core/row.h"
#include "operate/messages/decide.h"
#include "programs/once/messages/base.h"

enum {
    CLI_ROWS_OF = 1, /* --route, --consumer */
    CLI_ROWS_AFTER,
    CLI_ROWS_MAX,
    CLI_ROWS_ALL,
    CLI_ROWS_IDS,
    CLI_ROWS_BODY,
    CLI_ROWS_REPLY,
    CLI_ROWS_SEEN, /* --attempt, --at-version */
    CLI_ROWS_STEP,
    CLI_ROWS_WHY,
    CLI_ROWS_OLDER,
    CLI_ROWS_SINCE,
    CLI_ROWS_RECORDS
};

/* Rows of an outbox as an operator has seen them. */
struct cli_rows_seen {
    int64_t no;
    int phase;
    uint32_t seen;
};
struct cli_rows_list {
    struct cli_rows_seen *rows;
    size_t n, room;
};

/* What is asked for. */
struct cli_rows {
    const struct cli_rows_kind *kind;
    const struct cli_rows_verb *verb;
    const char *of;    /* the route or consumer, or NULL: all */
    int phase;         /* one of the kind's, or -1: all       */
    const char *after; /* the name before the first one       */
    const char *name;  /* of one: a row's number, a gid       */
    uint64_t max, seen, step, older_ms;
    int ids, body, reply;
    const char *why;
    unsigned given; /* bits of CLI_ROWS_... */
    /* Of many: */
    uint64_t since_ms;
    const char *records; /* a file, or NULL */
    struct cli_rows_list list;
};

/* One of them, as it was found. */
struct cli_rows_one {
    const struct cli_value *values; /* by the kind's fields */
    const char *name;
    once_bytes body, reply; /* data NULL: there is none    */
    const void *row;        /* for the kind's rest()       */
};
typedef void cli_rows_see(void *user, const struct cli_rows_one *one);

struct cli_rows_kind {
    int what;                  /* enum once__message_kind                    */
    int numbered;              /* its names are numbers of rows              */
    const char *words;         /* what may be asked for: "ls show retry"     */
    const char *const *phases; /* names, by number                           */
    unsigned choose;           /* bits of those that ls can choose           */
    size_t page;               /* rows that are read at once                 */
    const struct cli_field *fields, *counts; /* counts: of stats, or NULL    */
    /* Shows `see` up to `n` of them behind r->after, or the one of r->name. */
    int (*ask)(const once_tx *tx, const struct cli_rows *r, size_t n,
               cli_rows_see *see, void *user, once_error *err);
    int (*stats)(const once_tx *tx, cli_rows_see *see, void *user,
                 once_error *err);
    /* What follows the fields of one: on stdout, or into `o`. Or NULL. */
    void (*rest)(const struct cli *c, const void *row, json_t *o);
};

/* Reads the command line, opens the database and does what is asked for. */
int cli_rows_run(struct cli *c, int argc, char **argv,
                 const struct cli_rows_kind *kind);
/* The number of a row, or 0 for NULL; cli_rows_run() has checked the digits. */
int64_t cli_rows_number(const char *name);

/* rows_many.c: `retry` of many rows of an outbox. The lines of a file, before the
 * database is opened; and the decisions. */
int cli_rows_read(const struct cli *c, const char *path,
                  struct cli_rows_list *out);
int cli_rows_retry_many(const struct cli *c, const once_tx *tx,
                        struct cli_rows *r);

/* By enum once__row_phase, and enum once_parked, which has the same numbers. */
#define CLI_PHASES                                                             \
    {                                                                          \
        "ready", "waiting", "done", "dead", "indeterminate"                    \
    }
/* "corrupt" for what is none of `n` names. */
const char *cli_name_of(const char *const *names, size_t n, int number);

#endif /* ONCE_ONCE_MESSAGES_ROWS_H */
