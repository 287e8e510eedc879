/* SPDX-License-Identifier: Apache-2.0 */
/*
 * decide.h - what an operator decides about a message in a program's database:
 * a row of the outbox, a parked message, a saga.
 *
 *    read it --> [intent in the audit log] --> compare-and-set --> [end]
 *
 * A room of its own, so that who only operates on records needs no messages.
 * Errors and answers are those of messages/tables/outbox.h.
 */
#ifndef ONCE_OPERATE_MESSAGES_DECIDE_H
#define ONCE_OPERATE_MESSAGES_DECIDE_H

#include <once/message.h>

#include "operate/audit/audit.h"

enum once__message_kind {
    ONCE__MESSAGE_OUTBOX,
    ONCE__MESSAGE_PARKED,
    ONCE__MESSAGE_SAGA
};

typedef struct once__message_choice {
    int kind;         /* enum once__message_kind                           */
    const char *verb; /* "retry", "drop", "resolve", "abort"               */
    int64_t no;       /* of the row or the message                         */
    const char *gid;  /* of the saga                                       */
    int phase;        /* of the row or message, as shown                   */
    uint32_t seen;    /* the attempts, or the saga's version, as shown     */
    size_t step;      /* of a saga, from 1: "resolve" alone                */
    const char *why, *program;
    const once__audit_who *who;
    once__audit *audit;
} once__message_choice;

/*
 * Decides, if nothing has happened since the operator was shown `phase` and `seen`.
 * ONCE_OK; ONCE_FREE: it is not there; ONCE_REFUSED: it has changed, is under
 * way, or the verb does not fit its state; ONCE_EINVAL: there is no such verb.
 * With ONCE_EOPEN and a text that begins with ONCE__UNAUDITED nothing was
 * decided, since the intent could not be written down. `log` has a code where
 * the log has the decision but not its result.
 */
ONCE_CHECK int once__message_decide(const once_tx *tx,
                                    const once__message_choice *choice,
                                    once_error *err, once_error *log);

#endif /* ONCE_OPERATE_MESSAGES_DECIDE_H */
