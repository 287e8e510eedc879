/* SPDX-License-Identifier: Apache-2.0 */
/*
 * machine.c - the rules for an attempt (docs/protocol.md, section 6).
 *
 *              owner            ok             the caller ends
 *   CLAIM ------------> DISPATCH ----> SENT -+---------------> COMPLETE --ok--+
 *     |  one-phase: ------------------->     +---------------> GIVE_UP  ------+
 *     |                   |                  +---------------> RELEASE  ------+
 *     | lost, no answer   | lost, no answer, error              ^             |
 *     +-------------------+-------------------------------------+             |
 *     | fenced            | fenced            complete fenced                 |
 *     +-------------------+--> LOOK <-----------------------------            |
 *     | any other answer        |                                             v
 *     +-------------------------+-----------------------------------> OVER
 *
 * The table below has one row for each arrow. After a release nothing is ever
 * sent; after a complete only the same complete is repeated. A fenced attempt
 * never claims again.
 */
#include "calls/core/machine.h"

#include <assert.h>

enum {
    ANY = 1000, /* observed: any other answer                             */
    NO_ANSWER,  /* observed: no answer until the deadline                 */
    SAME,       /* reported: what the store answered                      */
    UNCHANGED   /* reported: nothing yet, or what was decided before      */
};

struct arrow {
    uint8_t phase;
    uint8_t next;
    int16_t observed;
    int16_t reported;
};

/* The first row that fits. SENT as the next phase from CLAIM stands for
 * DISPATCH in a two-phase attempt. */
/* clang-format off */
static const struct arrow arrows[] = {
    { ONCE__PHASE_CLAIM,    ONCE__PHASE_SENT,     ONCE_OWNER,  UNCHANGED   },
    { ONCE__PHASE_CLAIM,    ONCE__PHASE_RELEASE,  ONCE_LOST,   ONCE_FREE   },
    { ONCE__PHASE_CLAIM,    ONCE__PHASE_LOOK,     ONCE_FENCED, UNCHANGED   },
    { ONCE__PHASE_CLAIM,    ONCE__PHASE_RELEASE,  NO_ANSWER,   ONCE_ESTORE },
    { ONCE__PHASE_CLAIM,    ONCE__PHASE_OVER,     ANY,         SAME        },
    { ONCE__PHASE_DISPATCH, ONCE__PHASE_SENT,     ONCE_OK,     UNCHANGED   },
    { ONCE__PHASE_DISPATCH, ONCE__PHASE_RELEASE,  ONCE_LOST,   ONCE_FREE   },
    { ONCE__PHASE_DISPATCH, ONCE__PHASE_LOOK,     ONCE_FENCED, UNCHANGED   },
    { ONCE__PHASE_DISPATCH, ONCE__PHASE_RELEASE,  NO_ANSWER,   ONCE_ESTORE },
    { ONCE__PHASE_DISPATCH, ONCE__PHASE_RELEASE,  ANY,         SAME        },
    { ONCE__PHASE_COMPLETE, ONCE__PHASE_OVER,     ONCE_OK,     ONCE_OK     },
    { ONCE__PHASE_COMPLETE, ONCE__PHASE_LOOK,     ONCE_FENCED, UNCHANGED   },
    { ONCE__PHASE_COMPLETE, ONCE__PHASE_OVER,     NO_ANSWER,   ONCE_ESTORE },
    { ONCE__PHASE_COMPLETE, ONCE__PHASE_OVER,     ANY,         SAME        },
    { ONCE__PHASE_RELEASE,  ONCE__PHASE_OVER,     NO_ANSWER,   ONCE_ESTORE },
    { ONCE__PHASE_RELEASE,  ONCE__PHASE_OVER,     ANY,         UNCHANGED   },
    { ONCE__PHASE_GIVE_UP,  ONCE__PHASE_OVER,     NO_ANSWER,   ONCE_ESTORE },
    { ONCE__PHASE_GIVE_UP,  ONCE__PHASE_OVER,     ANY,         ONCE_OK     },
    { ONCE__PHASE_LOOK,     ONCE__PHASE_OVER,     NO_ANSWER,   ONCE_ESTORE },
    { ONCE__PHASE_LOOK,     ONCE__PHASE_OVER,     ANY,         SAME        },
};

static const struct { int action, verb; } asks[] = {
    [ONCE__PHASE_CLAIM]    = { ONCE__ASK_CLAIM,    ONCE_OP_CLAIM    },
    [ONCE__PHASE_DISPATCH] = { ONCE__ASK_DISPATCH, ONCE_OP_DISPATCH },
    [ONCE__PHASE_SENT]     = { ONCE__SEND,         0                },
    [ONCE__PHASE_COMPLETE] = { ONCE__ASK_COMPLETE, ONCE_OP_COMPLETE },
    [ONCE__PHASE_RELEASE]  = { ONCE__ASK_RELEASE,  ONCE_OP_RELEASE  },
    [ONCE__PHASE_GIVE_UP]  = { ONCE__ASK_GIVE_UP,  ONCE_OP_GIVE_UP  },
    [ONCE__PHASE_LOOK]     = { ONCE__ASK_READ,     ONCE_OP_READ     },
    [ONCE__PHASE_OVER]     = { ONCE__RETURN,       0                },
};
/* clang-format on */

static int go(once__machine *a, uint8_t phase)
{
    assert(phase <= ONCE__PHASE_OVER);
    a->phase = phase;
    return asks[phase].action;
}

static int follow(once__machine *a, int observed)
{
    const struct arrow *row = arrows;
    uint8_t next;

    while (row->phase != a->phase ||
           (row->observed != observed &&
            (row->observed != ANY || observed == NO_ANSWER))) {
        row++;
        assert(row < arrows + sizeof(arrows) / sizeof(arrows[0]));
    }
    next = row->next;
    if (a->phase == ONCE__PHASE_CLAIM && next == ONCE__PHASE_SENT &&
        a->two_phase)
        next = ONCE__PHASE_DISPATCH;
    if (row->reported == SAME)
        a->reported = observed;
    else if (row->reported != UNCHANGED)
        a->reported = row->reported;
    a->looked |= next == ONCE__PHASE_LOOK;
    return go(a, next);
}

int once__machine_begin(once__machine *a, int two_phase)
{
    *a = (once__machine){.two_phase = two_phase != 0};
    return go(a, ONCE__PHASE_CLAIM);
}

int once__machine_look(once__machine *a)
{
    *a = (once__machine){.looked = 1};
    return go(a, ONCE__PHASE_LOOK);
}

int once__machine_resume(once__machine *a, uint64_t fence)
{
    assert(fence > 0);
    *a = (once__machine){.fence = fence};
    return go(a, ONCE__PHASE_SENT);
}

int once__machine_answer(once__machine *a, int rc, const once_record *r)
{
    assert(rc != ONCE_ESTORE);
    assert(a->phase != ONCE__PHASE_SENT && a->phase != ONCE__PHASE_OVER);
    if (a->phase == ONCE__PHASE_CLAIM &&
        (rc == ONCE_OWNER || rc == ONCE_LOST)) {
        assert(r->fence > 0 && r->attempt > 0);
        a->fence = r->fence;
        a->number = r->attempt;
    }
    /* Our claim is taken back, but an attempt before it may have executed. */
    if (a->phase == ONCE__PHASE_RELEASE && a->reported == ONCE_FREE &&
        rc == ONCE_OK && r->state == ONCE_INDETERMINATE)
        a->reported = ONCE_UNKNOWN;
    return follow(a, rc);
}

int once__machine_unanswered(once__machine *a)
{
    return follow(a, NO_ANSWER);
}

int once__machine_end(once__machine *a, int phase)
{
    assert(a->phase == ONCE__PHASE_SENT);
    assert(phase == ONCE__PHASE_COMPLETE || phase == ONCE__PHASE_RELEASE ||
           phase == ONCE__PHASE_GIVE_UP);
    a->reported = ONCE_OK;
    return go(a, (uint8_t)phase);
}

int once__machine_again(once__machine *a)
{
    assert(a->phase == ONCE__PHASE_OVER && a->reported == ONCE_IN_FLIGHT &&
           a->fence == 0 && !a->looked);
    return go(a, ONCE__PHASE_CLAIM);
}

int once__action_verb(int action)
{
    size_t i;

    for (i = 0; i < sizeof(asks) / sizeof(asks[0]); i++)
        if (asks[i].action == action)
            return asks[i].verb;
    return 0;
}
