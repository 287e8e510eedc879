/* SPDX-License-Identifier: Apache-2.0 */
/*
 * attempt.c - the rules for an attempt (docs/protocol.md, section 6).
 *
 *              owner            ok                  deed
 *   CLAIM ------------> DISPATCH ----> SENT -+---------------> COMPLETE --ok--+
 *     |  one-phase: ------------------->     +---------------> GIVE_UP  ------+
 *     |                   |                  +---------------> RELEASE  ------+
 *     | lost, silent      | lost, silent, error                 ^             |
 *     +-------------------+-------------------------------------+             |
 *     | fenced            | fenced            complete fenced                 |
 *     +-------------------+--> LOOK <-----------------------------            |
 *     | any other answer        |                                             v
 *     +-------------------------+------------------------------------------> OVER
 *
 * One row for each arrow. Knowledge grows in one direction: after a release
 * nothing is ever sent, after a complete nothing but that same complete is
 * said. A fenced attempt never claims again.
 */
#include "core/attempt.h"

#include <assert.h>

enum {
    ANY = 1000, /* any other answer                                     */
    SILENT,     /* no answer within the limit                           */
    SAME,       /* told: what the store said                            */
    NOT_TOLD    /* told: nothing yet, or what was decided before        */
};

struct arrow {
    uint8_t phase;
    uint8_t next;
    int16_t heard;
    int16_t told;
};

/* The first row that fits. SENT as the next phase from CLAIM stands for
 * DISPATCH in a two-phase attempt. */
/* clang-format off */
static const struct arrow arrows[] = {
    { ONCE__P_CLAIM,    ONCE__P_SENT,    ONCE_OWNER,  NOT_TOLD    },
    { ONCE__P_CLAIM,    ONCE__P_RELEASE, ONCE_LOST,   ONCE_FREE   },
    { ONCE__P_CLAIM,    ONCE__P_LOOK,    ONCE_FENCED, NOT_TOLD    },
    { ONCE__P_CLAIM,    ONCE__P_RELEASE, SILENT,      ONCE_ESTORE },
    { ONCE__P_CLAIM,    ONCE__P_OVER,    ANY,         SAME        },
    { ONCE__P_DISPATCH, ONCE__P_SENT,    ONCE_OK,     NOT_TOLD    },
    { ONCE__P_DISPATCH, ONCE__P_RELEASE, ONCE_LOST,   ONCE_FREE   },
    { ONCE__P_DISPATCH, ONCE__P_LOOK,    ONCE_FENCED, NOT_TOLD    },
    { ONCE__P_DISPATCH, ONCE__P_RELEASE, SILENT,      ONCE_ESTORE },
    { ONCE__P_DISPATCH, ONCE__P_RELEASE, ANY,         SAME        },
    { ONCE__P_COMPLETE, ONCE__P_OVER,    ONCE_OK,     ONCE_OK     },
    { ONCE__P_COMPLETE, ONCE__P_LOOK,    ONCE_FENCED, NOT_TOLD    },
    { ONCE__P_COMPLETE, ONCE__P_OVER,    SILENT,      ONCE_ESTORE },
    { ONCE__P_COMPLETE, ONCE__P_OVER,    ANY,         SAME        },
    { ONCE__P_RELEASE,  ONCE__P_OVER,    SILENT,      ONCE_ESTORE },
    { ONCE__P_RELEASE,  ONCE__P_OVER,    ANY,         NOT_TOLD    },
    { ONCE__P_GIVE_UP,  ONCE__P_OVER,    SILENT,      ONCE_ESTORE },
    { ONCE__P_GIVE_UP,  ONCE__P_OVER,    ANY,         ONCE_OK     },
    { ONCE__P_LOOK,     ONCE__P_OVER,    SILENT,      ONCE_ESTORE },
    { ONCE__P_LOOK,     ONCE__P_OVER,    ANY,         SAME        },
};

static const struct { int action, verb; } asks[] = {
    [ONCE__P_CLAIM]    = { ONCE__ASK_CLAIM,    ONCE_OP_CLAIM    },
    [ONCE__P_DISPATCH] = { ONCE__ASK_DISPATCH, ONCE_OP_DISPATCH },
    [ONCE__P_SENT]     = { ONCE__SEND,         0                },
    [ONCE__P_COMPLETE] = { ONCE__ASK_COMPLETE, ONCE_OP_COMPLETE },
    [ONCE__P_RELEASE]  = { ONCE__ASK_RELEASE,  ONCE_OP_RELEASE  },
    [ONCE__P_GIVE_UP]  = { ONCE__ASK_GIVE_UP,  ONCE_OP_GIVE_UP  },
    [ONCE__P_LOOK]     = { ONCE__ASK_READ,     ONCE_OP_READ     },
    [ONCE__P_OVER]     = { ONCE__TELL,         0                },
};
/* clang-format on */

static int go(once__attempt *a, uint8_t phase)
{
    a->phase = phase;
    return asks[phase].action;
}

static int follow(once__attempt *a, int heard)
{
    const struct arrow *row = arrows;
    uint8_t next;

    while (row->phase != a->phase ||
           (row->heard != heard && (row->heard != ANY || heard == SILENT))) {
        row++;
        assert(row < arrows + sizeof(arrows) / sizeof(arrows[0]));
    }
    next = row->next;
    if (a->phase == ONCE__P_CLAIM && next == ONCE__P_SENT && a->two_phase)
        next = ONCE__P_DISPATCH;
    if (row->told == SAME)
        a->told = heard;
    else if (row->told != NOT_TOLD)
        a->told = row->told;
    a->looked |= next == ONCE__P_LOOK;
    return go(a, next);
}

int once__attempt_begin(once__attempt *a, int two_phase)
{
    *a = (once__attempt){.two_phase = two_phase != 0};
    return go(a, ONCE__P_CLAIM);
}

int once__attempt_answer(once__attempt *a, int rc, const once_record *r)
{
    assert(rc != ONCE_ESTORE);
    if (a->phase == ONCE__P_CLAIM && (rc == ONCE_OWNER || rc == ONCE_LOST)) {
        a->fence = r->fence;
        a->number = r->attempt;
    }
    /* Ours is taken back, but an attempt before it may have executed. */
    if (a->phase == ONCE__P_RELEASE && a->told == ONCE_FREE && rc == ONCE_OK &&
        r->state == ONCE_INDETERMINATE)
        a->told = ONCE_UNKNOWN;
    return follow(a, rc);
}

int once__attempt_silent(once__attempt *a)
{
    return follow(a, SILENT);
}

int once__attempt_deed(once__attempt *a, int phase)
{
    assert(a->phase == ONCE__P_SENT);
    assert(phase == ONCE__P_COMPLETE || phase == ONCE__P_RELEASE ||
           phase == ONCE__P_GIVE_UP);
    a->told = ONCE_OK;
    return go(a, (uint8_t)phase);
}

int once__attempt_again(once__attempt *a)
{
    assert(a->phase == ONCE__P_OVER && a->told == ONCE_IN_FLIGHT &&
           a->fence == 0 && !a->looked);
    return go(a, ONCE__P_CLAIM);
}

int once__action_verb(int action)
{
    size_t i;

    for (i = 0; i < sizeof(asks) / sizeof(asks[0]); i++)
        if (asks[i].action == action)
            return asks[i].verb;
    return 0;
}
