/* SPDX-License-Identifier: Apache-2.0 */
/*
 * decide.c - an operator decides about a row, a parked message or a saga.
 *
 * The database compares the phase and the attempts that the operator was shown in
 * the same step in which it decides: a retry changes the phase alone.
 * The audit log names an id by its SHA-256, since who has an id can use it.
 */
#include "operate/messages/decide.h"

#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "messages/tables/saga.h"
#include "operate/operate.h"

/* ---- What can be decided ------------------------------------------------- */

static const struct verb {
    int kind;
    const char *name, *action; /* as commands and as the audit log have it */
    int value;
} verbs[] = {
    {ONCE__MESSAGE_OUTBOX, "retry", "outbox-retry", ONCE__OUTBOX_RETRY},
    {ONCE__MESSAGE_OUTBOX, "drop", "outbox-drop", ONCE__OUTBOX_DROP},
    {ONCE__MESSAGE_OUTBOX, "resolve", "outbox-resolve", ONCE__OUTBOX_RESOLVE},
    {ONCE__MESSAGE_PARKED, "retry", "parked-retry", ONCE__PARKED_RETRY},
    {ONCE__MESSAGE_PARKED, "drop", "parked-drop", ONCE__PARKED_DROP},
    {ONCE__MESSAGE_PARKED, "resolve", "parked-resolve", ONCE__PARKED_RESOLVE},
    {ONCE__MESSAGE_SAGA, "retry", "saga-retry", ONCE__SAGA_RETRY},
    {ONCE__MESSAGE_SAGA, "resolve", "saga-resolve", ONCE__SAGA_RESOLVE},
    {ONCE__MESSAGE_SAGA, "abort", "saga-abort", ONCE__SAGA_ABORT},
    {0, NULL, NULL, 0},
};

static const struct verb *find(const once__message_choice *choice)
{
    const struct verb *v = verbs;

    while (v->name != NULL &&
           (v->kind != choice->kind || strcmp(v->name, choice->verb) != 0))
        v++;
    return v->name != NULL ? v : NULL;
}

/* ---- What it is about ---------------------------------------------------- */

/* Of its id. ONCE_OK, or ONCE_FREE. A saga goes by the gid that was given. */
static int read_name(const once_tx *tx, const once__message_choice *choice,
                     uint8_t name[ONCE__AUDIT_HASH], once_error *err)
{
    struct once__outgoing_list rows = {.n = 0};
    struct once__parked_list parked = {.n = 0};
    const char *id = choice->gid;
    int rc = ONCE_OK;

    if (choice->kind == ONCE__MESSAGE_OUTBOX) {
        rc = once__outbox_get(tx, choice->no, &rows, err);
        if (rc == ONCE_OK && rows.n == 1)
            id = rows.rows[0].m.id;
    } else if (choice->kind == ONCE__MESSAGE_PARKED) {
        rc = once__parked_get(tx, choice->no, &parked, err);
        if (rc == ONCE_OK && parked.n == 1)
            id = parked.rows[0].m.id;
    }
    if (rc != ONCE_OK)
        return rc;
    if (id != NULL)
        once__audit_digest((once_bytes){id, strlen(id)}, name);
    if (rows.n == 1)
        once__outgoing_clear(&rows);
    if (parked.n == 1)
        once__parked_clear(&parked);
    return id != NULL ? ONCE_OK : ONCE_FREE;
}

static int apply(const once_tx *tx, const once__message_choice *choice,
                 const struct verb *v, once_error *err)
{
    char note[ONCE__NOTE_SIZE];

    once__note_make(choice->who, choice->program, NULL, choice->verb,
                    choice->why, note);
    if (choice->kind == ONCE__MESSAGE_OUTBOX)
        return once__outbox_decide(tx, choice->no, choice->phase, choice->seen,
                                   v->value, note, err);
    if (choice->kind == ONCE__MESSAGE_PARKED)
        return once__parked_decide(tx, choice->no, choice->phase, choice->seen,
                                   v->value, note, err);
    return once__saga_decide(
        tx, choice->gid,
        &(struct once__saga_order){.what = v->value,
                                   .version = choice->seen,
                                   .step = choice->step ? choice->step - 1 : 0,
                                   .note = note},
        err);
}

/* ---- Deciding ------------------------------------------------------------ */

static enum once__audit_step step_of(int rc)
{
    if (rc == ONCE_OK)
        return ONCE__AUDIT_DONE;
    return rc == ONCE_EABORTED ? ONCE__AUDIT_UNKNOWN : ONCE__AUDIT_REFUSED;
}

int once__message_decide(const once_tx *tx, const once__message_choice *choice,
                         once_error *err, once_error *log)
{
    const struct verb *v = find(choice);
    uint8_t name[ONCE__AUDIT_HASH] = {0};
    once__audit_entry entry = {.who = choice->who,
                               .name = name,
                               .attempt = choice->gid ? 0 : choice->seen,
                               .why = choice->why};
    once_error why = {0, ""};
    uint64_t seq = 0;
    char row[32];
    int rc;

    if (v == NULL)
        return once__fail(err, ONCE_EINVAL, "%s: cannot be decided here",
                          choice->verb);
    rc = read_name(tx, choice, name, err);
    if (rc != ONCE_OK)
        return rc;
    entry.action = v->action;
    if (once__audit_begin(choice->audit, &entry, &seq, &why) != ONCE_OK)
        return once__fail(err, ONCE_EOPEN,
                          ONCE__UNAUDITED "%.200s. Nothing was decided",
                          why.text);
    rc = apply(tx, choice, v, err);
    (void)snprintf(row, sizeof(row), "row %lld", (long long)choice->no);
    /* After an error it stands as it is: `log` says what is missing. */
    (void)!once__audit_end(choice->audit, &entry, seq, step_of(rc),
                           choice->gid ? NULL : row, log);
    return rc;
}
