/* SPDX-License-Identifier: Apache-2.0 */
/*
 * rows.h - what `once outbox` and `once parked` share: their options, and how an
 * operator sees a row of messages. A row's phase has the same number in both
 * (core/row.h, enum once_parked).
 */
#ifndef ONCE_CLI_ROWS_H
#define ONCE_CLI_ROWS_H

#include "base.h"
#include "cli.h"

enum {
    CLI_ROWS_OF = 1, /* --route, --consumer */
    CLI_ROWS_PHASE,
    CLI_ROWS_AFTER,
    CLI_ROWS_MAX,
    CLI_ROWS_ALL,
    CLI_ROWS_IDS,
    CLI_ROWS_BODY,
    CLI_ROWS_REPLY,
    CLI_ROWS_ATTEMPT,
    CLI_ROWS_WHY,
    CLI_ROWS_OLDER
};

#define CLI_ROWS_PHASES "ready waiting done dead indeterminate"

struct cli_rows {
    const char *of; /* the route or consumer, or NULL: all */
    int phase;      /* enum once__row_phase, or -1: all */
    uint64_t after; /* the row's number */
    uint64_t max;
    int ids, body, reply;
    uint64_t attempt;
    const char *why;
    uint64_t older_ms;
    uint64_t no;                       /* of one row */
    unsigned given;                    /* bits of CLI_ROWS_... */
    char note[CLI_NOTE_SIZE];          /* of a decision */
    const struct cli_rows_action *do_; /* what is asked for */
};

/* One word that may follow the command. */
struct cli_rows_action {
    const char *name;
    unsigned takes; /* bits of the options that fit it: 1 << CLI_ROWS_... */
    unsigned needs; /* ... and of those that it cannot be without */
    int one;        /* a row's number follows */
    int decision;   /* what it asks the database for, if it decides */
    int (*run)(const struct cli *c, const struct once__base *b,
               const struct cli_rows *r);
};

/* Reads the command line, opens the database and runs what is asked for. `last`
 * is the end of the table `actions`. */
int cli_rows_run(struct cli *c, int argc, char **argv,
                 const struct cli_rows_action *actions,
                 const struct cli_rows_action *last);

/* "dead"; for a number that is none, "unknown". */
const char *cli_phase(int phase);
/* What is shown of an id, a key or a saga: all of it, or the first 16 digits of
 * its SHA-256. "-" for NULL. */
#define CLI_SHOWN_SIZE ONCE_ID_SIZE
void cli_shown(const char *secret, int whole, char out[CLI_SHOWN_SIZE]);
/* The names of the headers alone, "A, B"; "-" for none. */
void cli_print_header_names(const char *headers);
/* Adds "NAME_hash", and with `whole` NAME itself; nothing for NULL. 0, or -1. */
int cli_json_secret(json_t *o, const char *name, const char *secret, int whole);

/* There is no row of this number. */
int cli_no_row(const struct cli *c, const struct cli_rows *r);
/* once__outbox_decide() or once__parked_decide(). */
typedef int cli_rows_decide(const once_tx *tx, int64_t no, int phase,
                            uint32_t attempts, int action, const char *why,
                            once_error *err);
/* Decides about the row with this id and phase, and writes that to the audit
 * log. */
int cli_decide_row(const struct cli *c, const struct once__base *b,
                   const struct cli_rows *r, const char *id, int phase,
                   cli_rows_decide *decide);

#endif /* ONCE_CLI_ROWS_H */
