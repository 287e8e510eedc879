/* SPDX-License-Identifier: Apache-2.0 */
/*
 * machine.h - the life of one attempt as a state machine: the store's answer
 * goes in, the next action comes out. No I/O and no clock:
 * src/calls/engine/drive.c performs the actions and decides how long to wait.
 */
#ifndef ONCE_CALLS_CORE_MACHINE_H
#define ONCE_CALLS_CORE_MACHINE_H

#include <once/once.h>

/* What to do next. All but SEND and RETURN ask the store. */
enum once__action {
    ONCE__ASK_CLAIM,
    ONCE__ASK_DISPATCH,
    ONCE__ASK_COMPLETE,
    ONCE__ASK_RELEASE,
    ONCE__ASK_GIVE_UP,
    ONCE__ASK_READ,
    ONCE__SEND,  /* the caller is the owner: it does the work, and then ends
                  * with once__machine_end()                                */
    ONCE__RETURN /* the caller's call returns `reported`                    */
};

enum once__phase {
    ONCE__PHASE_CLAIM,
    ONCE__PHASE_DISPATCH,
    ONCE__PHASE_SENT, /* the work may be under way */
    ONCE__PHASE_COMPLETE,
    ONCE__PHASE_RELEASE,
    ONCE__PHASE_GIVE_UP,
    ONCE__PHASE_LOOK, /* fenced, or never claimed: read once, and end */
    ONCE__PHASE_OVER
};

typedef struct once__machine {
    uint8_t phase; /* enum once__phase */
    uint8_t two_phase;
    uint8_t looked; /* was fenced, or only looks: never claims again */
    uint32_t number;
    uint64_t fence; /* 0 until the claim was answered "owner" or "lost" */
    int reported;   /* what the caller gets: an answer or an error */
} once__machine;

/* Begins: returns ONCE__ASK_CLAIM. All functions here return the next action,
 * enum once__action. */
int once__machine_begin(once__machine *a, int two_phase);

/* Begins without a claim: returns ONCE__ASK_READ, and whatever the store answers
 * or does not is the end. It may be called again after that. */
int once__machine_look(once__machine *a);

/* Begins as an owner, whose claim was answered with this fence before: returns
 * ONCE__SEND. */
int once__machine_resume(once__machine *a, uint64_t fence);

/*
 * The store answered the operation that was asked for: `rc` is an answer, or an
 * error that says that nothing was changed. Where the store did not answer, the
 * operation is repeated with the same token; once__machine_unanswered() is
 * called when its deadline has passed.
 */
int once__machine_answer(once__machine *a, int rc, const once_record *r);
int once__machine_unanswered(once__machine *a);

/* The caller ends its work: phase COMPLETE, RELEASE or GIVE_UP. Only after
 * ONCE__SEND. */
int once__machine_end(once__machine *a, int phase);

/* A claim that was answered IN_FLIGHT is made again. This is allowed only
 * because the attempt has never been the owner (docs/protocol.md, section 6,
 * rule 5). Returns ONCE__ASK_CLAIM. */
int once__machine_again(once__machine *a);

/* The verb that an action asks the store, 0 for SEND and RETURN. */
int once__action_verb(int action);

#endif /* ONCE_CALLS_CORE_MACHINE_H */
