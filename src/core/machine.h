/* SPDX-License-Identifier: Apache-2.0 */
/*
 * attempt.h - the life of one attempt: what was heard goes in, what to do next
 * comes out. No I/O, no clock: who drives it decides how long to wait.
 */
#ifndef ONCE_CORE_MACHINE_H
#define ONCE_CORE_MACHINE_H

#include <once/once.h>

/* What to do next. All but SEND and TELL ask the store. */
enum once__action {
    ONCE__ASK_CLAIM,
    ONCE__ASK_DISPATCH,
    ONCE__ASK_COMPLETE,
    ONCE__ASK_RELEASE,
    ONCE__ASK_GIVE_UP,
    ONCE__ASK_READ,
    ONCE__SEND,  /* the caller is the owner: do the work, then say the deed */
    ONCE__RETURN /* this call of the caller ends with `told`                */
};

enum once__phase {
    ONCE__PHASE_CLAIM,
    ONCE__PHASE_DISPATCH,
    ONCE__PHASE_SENT, /* the work may be under way */
    ONCE__PHASE_COMPLETE,
    ONCE__PHASE_RELEASE,
    ONCE__PHASE_GIVE_UP,
    ONCE__PHASE_LOOK, /* fenced: look once, and end */
    ONCE__PHASE_OVER
};

typedef struct once__machine {
    uint8_t phase; /* enum once__phase */
    uint8_t two_phase;
    uint8_t looked; /* was fenced, and never claims again */
    uint32_t number;
    uint64_t fence; /* 0 until the claim was answered */
    int told;       /* an answer or an error, once it is over */
} once__machine;

/* Begin: returns ONCE__ASK_CLAIM. */
int once__machine_begin(once__machine *a, int two_phase);

/*
 * The store answered the operation that was asked for: `rc` is an answer or a
 * definite error. An unknown outcome is never passed here: it is asked again,
 * with the same token, until the driver's patience ends: once__machine_unanswered.
 */
int once__machine_answer(once__machine *a, int rc, const once_record *r);
int once__machine_unanswered(once__machine *a);

/* The caller says what became of the work: phase COMPLETE, RELEASE or
 * GIVE_UP. Only when ONCE__SEND was said before. */
int once__machine_end(once__machine *a, int phase);

/* A claim that was told IN_FLIGHT looks again: only because it never was the
 * owner (docs/protocol.md, rule 5). Returns ONCE__ASK_CLAIM. */
int once__machine_again(once__machine *a);

/* The verb that an action asks for, 0 for SEND and TELL. */
int once__action_verb(int action);

#endif /* ONCE_CORE_MACHINE_H */
