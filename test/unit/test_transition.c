/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_transition.c - the transition table of docs/protocol.md, section 5, row by
 * row: record before, call, answer, record after, compared in every field.
 *
 * What "after" means is written down here once more, from the page and not from
 * transition.c, in after().
 */
#include "calls/core/transition.h"

#include <once/store.h>

#include "calls/core/bounds.h"
#include "t.h"

enum { NOW = 1000000, LEASE = 100, KEEP = 7000, COUNTER = 50, FENCE = 9 };
enum { ATTEMPT = 3, TIME_LEFT = 500 };

/* Of whom the call is, compared with the record. */
enum who {
    MINE,    /* token and fence as in the record   */
    STALE,   /* its token, with another fence      */
    TOKEN,   /* its token, with fence 0            */
    STRANGER /* another token, with the same fence */
};

enum effect {
    SAME,
    GRANT,       /* "G"                                    */
    GRANT_DOUBT, /* "G + doubt"                            */
    ABSENT,      /* absent, row kept                       */
    UNKNOWN,     /* indeterminate                          */
    DISPATCH,    /* dispatched, lease = now + L            */
    RENEW,       /* lease = now + L                        */
    COMPLETE,    /* completed(kind, result), keep for R    */
    RESOLVED,    /* the same, final                        */
    NO_ROW
};

enum { TAKE = ONCE_TAKEOVER, RETRY = ONCE_RETRY_FAILED };
#define NONE ONCE_ABSENT
#define CLAIMED ONCE_CLAIMED
#define DISPATCHED ONCE_DISPATCHED
#define COMPLETED ONCE_COMPLETED
#define INDET ONCE_INDETERMINATE
#define NO_RECORD 99

struct row {
    const char *name;
    int verb;
    /* The record. */
    int state, over; /* over: the lease, or the time to keep it */
    int doubt, policy, kind;
    /* The call. */
    enum who who;
    int call_policy, other_request, other_result;
    /* What comes of it. */
    int answer;
    enum effect effect;
};

/* clang-format off */
#define R(name, verb, ...) { name, ONCE_OP_##verb, __VA_ARGS__ }
#define OTHER 1
static const struct row rows[] = {
/* name, verb, state, over, doubt, policy, kind, who, policy, request, result, answer, effect */
R("claim: no row: owner", CLAIM, NO_RECORD, 0, 0, 0, 0, STRANGER, 0, 0, 0, ONCE_OWNER, GRANT),
R("claim: row kept, own: fenced", CLAIM, NONE, 0, 0, 0, 0, MINE, 0, 0, 0, ONCE_FENCED, SAME),
R("claim: row kept, own, with fence 0: fenced", CLAIM, NONE, 0, 0, 0, 0, TOKEN, 0, 0, 0, ONCE_FENCED, SAME),
R("claim: row kept: owner", CLAIM, NONE, 0, 0, 0, 0, STRANGER, 0, OTHER, 0, ONCE_OWNER, GRANT),
R("claim: row kept and due: owner", CLAIM, NONE, 1, 0, 0, 0, STRANGER, 0, 0, 0, ONCE_OWNER, GRANT),
R("claim: claimed, other request: mismatch", CLAIM, CLAIMED, 0, 0, 0, 0, STRANGER, 0, OTHER, 0, ONCE_MISMATCH, SAME),
R("claim: claimed, lease over, other request: mismatch", CLAIM, CLAIMED, 1, 0, TAKE, 0, STRANGER, TAKE, OTHER, 0, ONCE_MISMATCH, SAME),
R("claim: dispatched, other request: mismatch", CLAIM, DISPATCHED, 1, 0, TAKE, 0, STRANGER, TAKE, OTHER, 0, ONCE_MISMATCH, SAME),
R("claim: completed, other request: mismatch", CLAIM, COMPLETED, 0, 0, 0, ONCE_SUCCESS, STRANGER, 0, OTHER, 0, ONCE_MISMATCH, SAME),
R("claim: failed and retry, other request: mismatch", CLAIM, COMPLETED, 0, 0, RETRY, ONCE_FAILURE, STRANGER, RETRY, OTHER, 0, ONCE_MISMATCH, SAME),
R("claim: indeterminate, other request: mismatch", CLAIM, INDET, 0, 0, TAKE, 0, STRANGER, TAKE, OTHER, 0, ONCE_MISMATCH, SAME),
R("claim: claimed, own: owner, same fence", CLAIM, CLAIMED, 0, 0, 0, 0, TOKEN, 0, 0, 0, ONCE_OWNER, SAME),
R("claim: claimed, own, lease over: owner, same fence", CLAIM, CLAIMED, 1, 0, 0, 0, TOKEN, 0, 0, 0, ONCE_OWNER, SAME),
R("claim: claimed, own, lease over, doubt and hold: owner", CLAIM, CLAIMED, 1, 1, 0, 0, TOKEN, 0, 0, 0, ONCE_OWNER, SAME),
R("claim: claimed, lease runs: in flight", CLAIM, CLAIMED, 0, 0, TAKE, 0, STRANGER, TAKE, 0, 0, ONCE_IN_FLIGHT, SAME),
R("claim: claimed, lease over, no doubt, hold: owner", CLAIM, CLAIMED, 1, 0, 0, 0, STRANGER, 0, 0, 0, ONCE_OWNER, GRANT),
R("claim: claimed, lease over, doubt, takeover: owner, still in doubt", CLAIM, CLAIMED, 1, 1, TAKE, 0, STRANGER, TAKE, 0, 0, ONCE_OWNER, GRANT),
R("claim: claimed, lease over, doubt and hold: unknown", CLAIM, CLAIMED, 1, 1, 0, 0, STRANGER, 0, 0, 0, ONCE_UNKNOWN, UNKNOWN),
R("claim: claimed, lease over, doubt, the record holds: unknown", CLAIM, CLAIMED, 1, 1, 0, 0, STRANGER, TAKE, 0, 0, ONCE_UNKNOWN, UNKNOWN),
R("claim: claimed, lease over, doubt, the call holds: unknown", CLAIM, CLAIMED, 1, 1, TAKE, 0, STRANGER, 0, 0, 0, ONCE_UNKNOWN, UNKNOWN),
R("claim: dispatched, own: owner, same fence", CLAIM, DISPATCHED, 0, 0, 0, 0, TOKEN, 0, 0, 0, ONCE_OWNER, SAME),
R("claim: dispatched, own, lease over: owner, same fence", CLAIM, DISPATCHED, 1, 0, 0, 0, TOKEN, 0, 0, 0, ONCE_OWNER, SAME),
R("claim: dispatched, lease runs: in flight", CLAIM, DISPATCHED, 0, 0, TAKE, 0, STRANGER, TAKE, 0, 0, ONCE_IN_FLIGHT, SAME),
R("claim: dispatched, lease over, hold: unknown", CLAIM, DISPATCHED, 1, 0, 0, 0, STRANGER, 0, 0, 0, ONCE_UNKNOWN, UNKNOWN),
R("claim: dispatched, lease over, the record holds: unknown", CLAIM, DISPATCHED, 1, 0, 0, 0, STRANGER, TAKE, 0, 0, ONCE_UNKNOWN, UNKNOWN),
R("claim: dispatched, lease over, the call holds: unknown", CLAIM, DISPATCHED, 1, 0, TAKE, 0, STRANGER, 0, 0, 0, ONCE_UNKNOWN, UNKNOWN),
R("claim: dispatched, lease over, takeover: owner, in doubt", CLAIM, DISPATCHED, 1, 0, TAKE, 0, STRANGER, TAKE, 0, 0, ONCE_OWNER, GRANT_DOUBT),
R("claim: completed success: replay", CLAIM, COMPLETED, 0, 0, RETRY, ONCE_SUCCESS, STRANGER, RETRY, 0, 0, ONCE_REPLAY, SAME),
R("claim: completed success, retention expired: replay", CLAIM, COMPLETED, 1, 0, 0, ONCE_SUCCESS, STRANGER, 0, 0, 0, ONCE_REPLAY, SAME),
R("claim: completed success, own: replay", CLAIM, COMPLETED, 0, 0, 0, ONCE_SUCCESS, MINE, 0, 0, 0, ONCE_REPLAY, SAME),
R("claim: completed failure, own: replay", CLAIM, COMPLETED, 0, 0, RETRY, ONCE_FAILURE, TOKEN, RETRY, 0, 0, ONCE_REPLAY, SAME),
R("claim: completed failure, replay: replay", CLAIM, COMPLETED, 0, 0, 0, ONCE_FAILURE, STRANGER, 0, 0, 0, ONCE_REPLAY, SAME),
R("claim: completed failure, the record replays: replay", CLAIM, COMPLETED, 0, 0, 0, ONCE_FAILURE, STRANGER, RETRY, 0, 0, ONCE_REPLAY, SAME),
R("claim: completed failure, the call replays: replay", CLAIM, COMPLETED, 0, 0, RETRY, ONCE_FAILURE, STRANGER, 0, 0, 0, ONCE_REPLAY, SAME),
R("claim: completed failure, retry, doubt and hold: replay", CLAIM, COMPLETED, 0, 1, RETRY, ONCE_FAILURE, STRANGER, RETRY, 0, 0, ONCE_REPLAY, SAME),
R("claim: completed failure, retry, doubt, half a takeover: replay", CLAIM, COMPLETED, 0, 1, RETRY, ONCE_FAILURE, STRANGER, RETRY | TAKE, 0, 0, ONCE_REPLAY, SAME),
R("claim: completed failure, retry: owner", CLAIM, COMPLETED, 0, 0, RETRY, ONCE_FAILURE, STRANGER, RETRY, 0, 0, ONCE_OWNER, GRANT),
R("claim: completed failure, retry, doubt, takeover: owner, still in doubt", CLAIM, COMPLETED, 0, 1, RETRY | TAKE, ONCE_FAILURE, STRANGER, RETRY | TAKE, 0, 0, ONCE_OWNER, GRANT),
R("claim: indeterminate, own: lost", CLAIM, INDET, 0, 0, TAKE, 0, TOKEN, TAKE, 0, 0, ONCE_LOST, SAME),
R("claim: indeterminate, hold: unknown", CLAIM, INDET, 0, 0, 0, 0, STRANGER, 0, 0, 0, ONCE_UNKNOWN, SAME),
R("claim: indeterminate, the record holds: unknown", CLAIM, INDET, 0, 0, 0, 0, STRANGER, TAKE, 0, 0, ONCE_UNKNOWN, SAME),
R("claim: indeterminate, the call holds: unknown", CLAIM, INDET, 0, 0, TAKE, 0, STRANGER, 0, 0, 0, ONCE_UNKNOWN, SAME),
R("claim: indeterminate, takeover: owner, in doubt", CLAIM, INDET, 0, 0, TAKE, 0, STRANGER, TAKE, 0, 0, ONCE_OWNER, GRANT_DOUBT),

R("dispatch: claimed, match: dispatched, new lease", DISPATCH, CLAIMED, 0, 0, 0, 0, MINE, 0, 0, 0, ONCE_OK, DISPATCH),
R("dispatch: claimed, match, lease over: dispatched, new lease", DISPATCH, CLAIMED, 1, 1, 0, 0, MINE, 0, 0, 0, ONCE_OK, DISPATCH),
R("dispatch: dispatched, match: ok, new lease", DISPATCH, DISPATCHED, 0, 0, 0, 0, MINE, 0, 0, 0, ONCE_OK, DISPATCH),
R("dispatch: indeterminate, match: lost", DISPATCH, INDET, 0, 0, 0, 0, MINE, 0, 0, 0, ONCE_LOST, SAME),
R("dispatch: claimed, stale fence: fenced", DISPATCH, CLAIMED, 0, 0, 0, 0, STALE, 0, 0, 0, ONCE_FENCED, SAME),
R("dispatch: claimed, fence 0: fenced", DISPATCH, CLAIMED, 0, 0, 0, 0, TOKEN, 0, 0, 0, ONCE_FENCED, SAME),
R("dispatch: claimed, other token: fenced", DISPATCH, CLAIMED, 0, 0, 0, 0, STRANGER, 0, 0, 0, ONCE_FENCED, SAME),
R("dispatch: indeterminate, stale fence: fenced", DISPATCH, INDET, 0, 0, 0, 0, STALE, 0, 0, 0, ONCE_FENCED, SAME),
R("dispatch: absent, match: fenced", DISPATCH, NONE, 0, 0, 0, 0, MINE, 0, 0, 0, ONCE_FENCED, SAME),
R("dispatch: no row: fenced", DISPATCH, NO_RECORD, 0, 0, 0, 0, STRANGER, 0, 0, 0, ONCE_FENCED, SAME),
R("dispatch: completed, match: fenced", DISPATCH, COMPLETED, 0, 0, 0, ONCE_SUCCESS, MINE, 0, 0, 0, ONCE_FENCED, SAME),

R("renew: claimed, match: ok, new lease", RENEW, CLAIMED, 0, 0, 0, 0, MINE, 0, 0, 0, ONCE_OK, RENEW),
R("renew: dispatched, match: ok, new lease", RENEW, DISPATCHED, 0, 0, 0, 0, MINE, 0, 0, 0, ONCE_OK, RENEW),
R("renew: dispatched, match, lease over: ok, new lease", RENEW, DISPATCHED, 1, 0, 0, 0, MINE, 0, 0, 0, ONCE_OK, RENEW),
R("renew: indeterminate, match: lost", RENEW, INDET, 0, 0, 0, 0, MINE, 0, 0, 0, ONCE_LOST, SAME),
R("renew: dispatched, stale fence: fenced", RENEW, DISPATCHED, 0, 0, 0, 0, STALE, 0, 0, 0, ONCE_FENCED, SAME),
R("renew: dispatched, other token: fenced", RENEW, DISPATCHED, 0, 0, 0, 0, STRANGER, 0, 0, 0, ONCE_FENCED, SAME),
R("renew: completed, match: fenced", RENEW, COMPLETED, 0, 0, 0, ONCE_FAILURE, MINE, 0, 0, 0, ONCE_FENCED, SAME),
R("renew: absent, match: fenced", RENEW, NONE, 0, 0, 0, 0, MINE, 0, 0, 0, ONCE_FENCED, SAME),
R("renew: no row: fenced", RENEW, NO_RECORD, 0, 0, 0, 0, STRANGER, 0, 0, 0, ONCE_FENCED, SAME),

R("complete: claimed, match: completed", COMPLETE, CLAIMED, 0, 0, 0, 0, MINE, 0, 0, 0, ONCE_OK, COMPLETE),
R("complete: dispatched, match: completed", COMPLETE, DISPATCHED, 0, 1, RETRY, 0, MINE, 0, 0, 0, ONCE_OK, COMPLETE),
R("complete: dispatched, match, lease over: completed", COMPLETE, DISPATCHED, 1, 0, 0, 0, MINE, 0, 0, 0, ONCE_OK, COMPLETE),
R("complete: indeterminate, match: the late answer is accepted", COMPLETE, INDET, 0, 0, 0, 0, MINE, 0, 0, 0, ONCE_OK, COMPLETE),
R("complete: completed, match, the same: ok, nothing changes", COMPLETE, COMPLETED, 0, 0, 0, ONCE_SUCCESS, MINE, 0, 0, 0, ONCE_OK, SAME),
R("complete: completed, match, other result: fenced", COMPLETE, COMPLETED, 0, 0, 0, ONCE_SUCCESS, MINE, 0, 0, OTHER, ONCE_FENCED, SAME),
R("complete: completed, match, other kind: fenced", COMPLETE, COMPLETED, 0, 0, 0, ONCE_FAILURE, MINE, 0, 0, 0, ONCE_FENCED, SAME),
R("complete: completed, stale fence: fenced", COMPLETE, COMPLETED, 0, 0, 0, ONCE_SUCCESS, STALE, 0, 0, 0, ONCE_FENCED, SAME),
R("complete: dispatched, stale fence: fenced", COMPLETE, DISPATCHED, 0, 0, 0, 0, STALE, 0, 0, 0, ONCE_FENCED, SAME),
R("complete: dispatched, fence 0: fenced", COMPLETE, DISPATCHED, 0, 0, 0, 0, TOKEN, 0, 0, 0, ONCE_FENCED, SAME),
R("complete: dispatched, other token: fenced", COMPLETE, DISPATCHED, 0, 0, 0, 0, STRANGER, 0, 0, 0, ONCE_FENCED, SAME),
R("complete: indeterminate, other token: fenced", COMPLETE, INDET, 0, 0, 0, 0, STRANGER, 0, 0, 0, ONCE_FENCED, SAME),
R("complete: absent, match: fenced", COMPLETE, NONE, 0, 0, 0, 0, MINE, 0, 0, 0, ONCE_FENCED, SAME),
R("complete: no row: fenced", COMPLETE, NO_RECORD, 0, 0, 0, 0, STRANGER, 0, 0, 0, ONCE_FENCED, SAME),

R("release: claimed, match: absent, row kept", RELEASE, CLAIMED, 0, 0, TAKE, 0, MINE, 0, 0, 0, ONCE_OK, ABSENT),
R("release: dispatched, match: absent, row kept", RELEASE, DISPATCHED, 0, 0, 0, 0, MINE, 0, 0, 0, ONCE_OK, ABSENT),
R("release: dispatched, fence 0: absent, row kept", RELEASE, DISPATCHED, 1, 0, 0, 0, TOKEN, 0, 0, 0, ONCE_OK, ABSENT),
R("release: indeterminate, match: absent, row kept", RELEASE, INDET, 0, 0, 0, 0, MINE, 0, 0, 0, ONCE_OK, ABSENT),
R("release: indeterminate, fence 0: absent, row kept", RELEASE, INDET, 0, 0, 0, 0, TOKEN, 0, 0, 0, ONCE_OK, ABSENT),
R("release: claimed, doubt: indeterminate", RELEASE, CLAIMED, 0, 1, TAKE, 0, MINE, 0, 0, 0, ONCE_OK, UNKNOWN),
R("release: dispatched, doubt, fence 0: indeterminate", RELEASE, DISPATCHED, 0, 1, TAKE, 0, TOKEN, 0, 0, 0, ONCE_OK, UNKNOWN),
R("release: indeterminate, doubt: stays", RELEASE, INDET, 0, 1, 0, 0, MINE, 0, 0, 0, ONCE_OK, UNKNOWN),
R("release: absent, match: ok, a repeated call", RELEASE, NONE, 0, 0, 0, 0, MINE, 0, 0, 0, ONCE_OK, SAME),
R("release: absent, fence 0: ok, a repeated call", RELEASE, NONE, 0, 0, 0, 0, TOKEN, 0, 0, 0, ONCE_OK, SAME),
R("release: absent, stale fence: fenced", RELEASE, NONE, 0, 0, 0, 0, STALE, 0, 0, 0, ONCE_FENCED, SAME),
R("release: absent, other token: fenced", RELEASE, NONE, 0, 0, 0, 0, STRANGER, 0, 0, 0, ONCE_FENCED, SAME),
R("release: no row: fenced", RELEASE, NO_RECORD, 0, 0, 0, 0, STRANGER, 0, 0, 0, ONCE_FENCED, SAME),
R("release: dispatched, stale fence: fenced", RELEASE, DISPATCHED, 0, 0, 0, 0, STALE, 0, 0, 0, ONCE_FENCED, SAME),
R("release: dispatched, other token: fenced", RELEASE, DISPATCHED, 0, 0, 0, 0, STRANGER, 0, 0, 0, ONCE_FENCED, SAME),
R("release: completed, match: fenced", RELEASE, COMPLETED, 0, 0, 0, ONCE_SUCCESS, MINE, 0, 0, 0, ONCE_FENCED, SAME),
R("release: completed, fence 0: fenced", RELEASE, COMPLETED, 0, 0, 0, ONCE_FAILURE, TOKEN, 0, 0, 0, ONCE_FENCED, SAME),

R("give up: claimed, match: indeterminate", GIVE_UP, CLAIMED, 0, 0, 0, 0, MINE, 0, 0, 0, ONCE_OK, UNKNOWN),
R("give up: dispatched, match: indeterminate", GIVE_UP, DISPATCHED, 1, 1, TAKE, 0, MINE, 0, 0, 0, ONCE_OK, UNKNOWN),
R("give up: indeterminate, match: ok", GIVE_UP, INDET, 0, 0, 0, 0, MINE, 0, 0, 0, ONCE_OK, SAME),
R("give up: dispatched, fence 0: fenced", GIVE_UP, DISPATCHED, 0, 0, 0, 0, TOKEN, 0, 0, 0, ONCE_FENCED, SAME),
R("give up: dispatched, stale fence: fenced", GIVE_UP, DISPATCHED, 0, 0, 0, 0, STALE, 0, 0, 0, ONCE_FENCED, SAME),
R("give up: dispatched, other token: fenced", GIVE_UP, DISPATCHED, 0, 0, 0, 0, STRANGER, 0, 0, 0, ONCE_FENCED, SAME),
R("give up: completed, match: fenced", GIVE_UP, COMPLETED, 0, 0, 0, ONCE_SUCCESS, MINE, 0, 0, 0, ONCE_FENCED, SAME),
R("give up: absent, match: fenced", GIVE_UP, NONE, 0, 0, 0, 0, MINE, 0, 0, 0, ONCE_FENCED, SAME),
R("give up: no row: fenced", GIVE_UP, NO_RECORD, 0, 0, 0, 0, STRANGER, 0, 0, 0, ONCE_FENCED, SAME),

R("read: no row: free", READ, NO_RECORD, 0, 0, 0, 0, STRANGER, 0, 0, 0, ONCE_FREE, SAME),
R("read: row kept: free", READ, NONE, 0, 0, 0, 0, STRANGER, 0, OTHER, 0, ONCE_FREE, SAME),
R("read: other request: mismatch", READ, DISPATCHED, 0, 0, 0, 0, STRANGER, 0, OTHER, 0, ONCE_MISMATCH, SAME),
R("read: completed, other request: mismatch", READ, COMPLETED, 0, 0, 0, ONCE_SUCCESS, STRANGER, 0, OTHER, 0, ONCE_MISMATCH, SAME),
R("read: claimed: in flight", READ, CLAIMED, 0, 0, 0, 0, STRANGER, 0, 0, 0, ONCE_IN_FLIGHT, SAME),
R("read: dispatched, lease over: in flight, and nothing changes", READ, DISPATCHED, 1, 0, 0, 0, STRANGER, 0, 0, 0, ONCE_IN_FLIGHT, SAME),
R("read: completed: replay", READ, COMPLETED, 0, 0, RETRY, ONCE_FAILURE, STRANGER, RETRY, 0, 0, ONCE_REPLAY, SAME),
R("read: indeterminate: unknown", READ, INDET, 0, 0, TAKE, 0, STRANGER, TAKE, 0, 0, ONCE_UNKNOWN, SAME),
R("show: does not ask for the request", SHOW, COMPLETED, 0, 0, 0, ONCE_SUCCESS, STRANGER, 0, OTHER, 0, ONCE_REPLAY, SAME),
R("show: no row: free", SHOW, NO_RECORD, 0, 0, 0, 0, STRANGER, 0, OTHER, 0, ONCE_FREE, SAME),

R("reap: claimed, lease over: absent, row kept", REAP, CLAIMED, 1, 0, 0, 0, STRANGER, 0, 0, 0, ONCE_OK, ABSENT),
R("reap: claimed, lease over, doubt: indeterminate", REAP, CLAIMED, 1, 1, TAKE, 0, STRANGER, 0, 0, 0, ONCE_OK, UNKNOWN),
R("reap: dispatched, lease over: indeterminate", REAP, DISPATCHED, 1, 0, TAKE, 0, STRANGER, TAKE, 0, 0, ONCE_OK, UNKNOWN),
R("reap: claimed, lease runs: refused", REAP, CLAIMED, 0, 0, 0, 0, STRANGER, 0, 0, 0, ONCE_REFUSED, SAME),
R("reap: dispatched, lease runs: refused", REAP, DISPATCHED, 0, 0, 0, 0, MINE, 0, 0, 0, ONCE_REFUSED, SAME),
R("reap: completed: refused", REAP, COMPLETED, 1, 0, 0, ONCE_SUCCESS, STRANGER, 0, 0, 0, ONCE_REFUSED, SAME),
R("reap: indeterminate: refused", REAP, INDET, 1, 0, 0, 0, STRANGER, 0, 0, 0, ONCE_REFUSED, SAME),
R("reap: absent: refused", REAP, NONE, 1, 0, 0, 0, STRANGER, 0, 0, 0, ONCE_REFUSED, SAME),
R("reap: no row: refused", REAP, NO_RECORD, 0, 0, 0, 0, STRANGER, 0, 0, 0, ONCE_REFUSED, SAME),

R("resolve: indeterminate, the fence shown: completed, final", RESOLVE, INDET, 0, 1, RETRY | TAKE, 0, STRANGER, 0, OTHER, 0, ONCE_OK, RESOLVED),
R("resolve: indeterminate, stale fence: refused", RESOLVE, INDET, 0, 0, 0, 0, STALE, 0, 0, 0, ONCE_REFUSED, SAME),
R("resolve: dispatched, lease over: refused", RESOLVE, DISPATCHED, 1, 0, 0, 0, MINE, 0, 0, 0, ONCE_REFUSED, SAME),
R("resolve: completed, another note: refused", RESOLVE, COMPLETED, 0, 0, 0, ONCE_SUCCESS, MINE, 0, 0, 0, ONCE_REFUSED, SAME),
R("resolve: absent: refused", RESOLVE, NONE, 0, 0, 0, 0, MINE, 0, 0, 0, ONCE_REFUSED, SAME),
R("resolve: no row: refused", RESOLVE, NO_RECORD, 0, 0, 0, 0, STRANGER, 0, 0, 0, ONCE_REFUSED, SAME),
R("reopen: indeterminate, takeover: absent, row kept", REOPEN, INDET, 0, 0, TAKE, 0, STRANGER, 0, 0, 0, ONCE_OK, ABSENT),
R("reopen: indeterminate, takeover, doubt: absent, row kept", REOPEN, INDET, 0, 1, TAKE, 0, STRANGER, 0, 0, 0, ONCE_OK, ABSENT),
R("reopen: indeterminate, hold: refused", REOPEN, INDET, 0, 0, RETRY, 0, STRANGER, TAKE, 0, 0, ONCE_REFUSED, SAME),
R("reopen: indeterminate, stale fence: refused", REOPEN, INDET, 0, 0, TAKE, 0, STALE, 0, 0, 0, ONCE_REFUSED, SAME),
R("reopen: dispatched: refused", REOPEN, DISPATCHED, 1, 0, TAKE, 0, STRANGER, TAKE, 0, 0, ONCE_REFUSED, SAME),

R("forget: completed, retention expired: no row", FORGET, COMPLETED, 1, 0, 0, ONCE_SUCCESS, STRANGER, 0, 0, 0, ONCE_OK, NO_ROW),
R("forget: absent, retention expired: no row", FORGET, NONE, 1, 0, 0, 0, STRANGER, 0, 0, 0, ONCE_OK, NO_ROW),
R("forget: completed, time left: refused", FORGET, COMPLETED, 0, 0, 0, ONCE_SUCCESS, STRANGER, 0, 0, 0, ONCE_REFUSED, SAME),
R("forget: another fence: refused", FORGET, COMPLETED, 1, 0, 0, ONCE_SUCCESS, STALE, 0, 0, 0, ONCE_REFUSED, SAME),
R("forget: any fence: no row", FORGET, COMPLETED, 1, 0, 0, ONCE_SUCCESS, TOKEN, 0, 0, 0, ONCE_OK, NO_ROW),
R("forget: absent, time left: refused", FORGET, NONE, 0, 0, 0, 0, STRANGER, 0, 0, 0, ONCE_REFUSED, SAME),
R("forget: claimed: refused", FORGET, CLAIMED, 1, 0, 0, 0, STRANGER, 0, 0, 0, ONCE_REFUSED, SAME),
R("forget: dispatched: refused", FORGET, DISPATCHED, 1, 0, 0, 0, STRANGER, 0, 0, 0, ONCE_REFUSED, SAME),
R("forget: indeterminate: refused", FORGET, INDET, 1, 0, TAKE, 0, STRANGER, TAKE, 0, 0, ONCE_REFUSED, SAME),
R("forget: no row: refused", FORGET, NO_RECORD, 0, 0, 0, 0, STRANGER, 0, 0, 0, ONCE_REFUSED, SAME),
};
/* clang-format on */

static once_record before(const struct row *row)
{
    once_record r;
    int owned = row->state == CLAIMED || row->state == DISPATCHED;

    memset(&r, 0, sizeof(r));
    if (row->state == NO_RECORD)
        return r;
    r.state = (uint8_t)row->state;
    r.kind = (uint8_t)row->kind;
    r.policy = (uint8_t)row->policy;
    r.doubt = (uint8_t)row->doubt;
    r.attempt = ATTEMPT;
    r.fence = FENCE;
    r.lease_ms = owned ? (row->over ? NOW : NOW + TIME_LEFT) : 0;
    r.keep_ms = row->over ? NOW : NOW + TIME_LEFT;
    r.granted_ms = NOW - 1000;
    memset(r.token, 0xaa, sizeof(r.token));
    memset(r.group, 'a', sizeof(r.group));
    memset(r.fingerprint, row->state == NONE ? 0 : 0xbb, sizeof(r.fingerprint));
    if (row->state == COMPLETED)
        r.result = (once_bytes){"result", 6};
    return r;
}

static once_op call(const struct row *row)
{
    once_op op;

    memset(&op, 0, sizeof(op));
    op.verb = row->verb;
    op.kind = ONCE_SUCCESS;
    op.policy = (uint32_t)row->call_policy;
    op.lease_ms = LEASE;
    op.keep_ms = KEEP;
    op.fence = row->who == STALE ? FENCE - 1 : row->who == TOKEN ? 0 : FENCE;
    memset(op.group, 'b', sizeof(op.group));
    memset(op.token, row->who == STRANGER ? 0xcc : 0xaa, sizeof(op.token));
    memset(op.fingerprint, row->other_request ? 0xdd : 0xbb,
           sizeof(op.fingerprint));
    if (row->verb == ONCE_OP_COMPLETE || row->verb == ONCE_OP_RESOLVE)
        op.result = (once_bytes){row->other_result ? "resulT" : "result", 6};
    if (row->verb == ONCE_OP_RESOLVE || row->verb == ONCE_OP_REOPEN)
        op.note = (once_bytes){"note", 4};
    return op;
}

static void granted(once_record *r, const once_op *op, enum effect effect)
{
    uint8_t doubt = effect == GRANT_DOUBT ? 1 : r->doubt;
    uint32_t attempt = r->attempt + 1;

    memset(r, 0, sizeof(*r));
    r->state = op->two_phase ? CLAIMED : DISPATCHED;
    r->policy = (uint8_t)op->policy;
    r->doubt = doubt;
    r->attempt = attempt;
    r->fence = COUNTER + 1;
    r->lease_ms = NOW + LEASE;
    r->keep_ms = NOW + KEEP;
    r->granted_ms = NOW;
    memcpy(r->token, op->token, sizeof(r->token));
    memcpy(r->fingerprint, op->fingerprint, sizeof(r->fingerprint));
    memcpy(r->group, op->group, sizeof(r->group));
}

static once_record after(once_record r, const once_op *op, enum effect effect)
{
    switch (effect) {
    case SAME:
        break;
    case GRANT:
    case GRANT_DOUBT:
        granted(&r, op, effect);
        break;
    case ABSENT: /* token, fence and attempt number stay */
        r.state = ONCE_ABSENT;
        r.policy = r.doubt = 0;
        r.lease_ms = 0;
        r.keep_ms = NOW + KEEP;
        memset(r.fingerprint, 0, sizeof(r.fingerprint));
        break;
    case UNKNOWN:
        r.state = INDET;
        r.lease_ms = 0;
        break;
    case DISPATCH:
        r.state = DISPATCHED;
        r.lease_ms = NOW + LEASE;
        break;
    case RENEW:
        r.lease_ms = NOW + LEASE;
        break;
    case COMPLETE:
    case RESOLVED:
        r.state = COMPLETED;
        r.kind = (uint8_t)op->kind;
        r.result = op->result;
        r.lease_ms = 0;
        r.keep_ms = NOW + KEEP;
        if (effect == RESOLVED) {
            r.policy &= (uint8_t)~RETRY;
            r.doubt = 0;
        }
        break;
    case NO_ROW:
        memset(&r, 0, sizeof(r));
        break;
    }
    if (effect != SAME && op->note.size > 0)
        r.note = op->note;
    return r;
}

static void same_record(const once_record *a, const once_record *b)
{
    T_EQ(a->state, b->state);
    T_EQ(a->kind, b->kind);
    T_EQ(a->policy, b->policy);
    T_EQ(a->doubt, b->doubt);
    T_EQ(a->attempt, b->attempt);
    T_EQ(a->fence, b->fence);
    T_EQ(a->lease_ms, b->lease_ms);
    T_EQ(a->keep_ms, b->keep_ms);
    T_EQ(a->granted_ms, b->granted_ms);
    T_MEM(a->token, b->token, sizeof(a->token));
    T_MEM(a->fingerprint, b->fingerprint, sizeof(a->fingerprint));
    T_MEM(a->group, b->group, sizeof(a->group));
    T_EQ(a->result.size, b->result.size);
    T_OK(a->result.size == 0 || a->result.data == b->result.data);
    T_EQ(a->note.size, b->note.size);
    T_OK(a->note.size == 0 || a->note.data == b->note.data);
}

static const struct row *this_row;

static void check_row(int two_phase)
{
    const struct row *row = this_row;
    once_record r = before(row), was = r, want;
    once_op op = call(row);
    uint64_t fence = COUNTER;
    int grants = row->effect == GRANT || row->effect == GRANT_DOUBT;
    int wrote;

    op.two_phase = (uint32_t)two_phase;
    T_EQ(once__record_sane(&r), 1);
    T_EQ(once__op_check(&op, NULL), ONCE_OK);
    wrote = once__transition(&r, &op, NOW, &fence);
    want = after(was, &op, row->effect);
    T_EQ(op.rc, row->answer);
    same_record(&r, &want);
    same_record(&op.record, &want); /* the answer shows it as it stands now */
    T_EQ(fence, COUNTER + grants);
    if (row->effect != SAME)
        T_EQ(wrote, 1);
    else
        T_EQ(wrote, 0);
    T_EQ(op.left_ms,
         row->answer == ONCE_IN_FLIGHT && !row->over ? TIME_LEFT : 0);
}

static void check_this_row(void)
{
    check_row(0);
    check_row(1);
}

/* ---- What the rows do not say ------------------------------------------ */

static once_record record(int state)
{
    struct row row = {.state = state};

    return before(&row);
}

static once_op plain(int verb)
{
    struct row row = {.verb = verb, .who = STRANGER};

    return call(&row);
}

static void a_lease_too_far_ahead_is_cut(void)
{
    static const int verbs[] = {ONCE_OP_CLAIM, ONCE_OP_REAP};
    size_t i;

    for (i = 0; i < 2; i++) {
        once_record r = record(DISPATCHED);
        once_op op = plain(verbs[i]);
        uint64_t fence = COUNTER;

        r.lease_ms = (uint64_t)NOW * 100000;
        T_EQ(once__transition(&r, &op, NOW, &fence), 1);
        T_EQ(op.rc, i == 0 ? ONCE_IN_FLIGHT : ONCE_REFUSED);
        T_EQ(r.lease_ms, (uint64_t)NOW + ONCE_LEASE_MAX_MS);
        T_EQ(r.state, DISPATCHED);
    }
}

static void a_row_is_not_kept_shorter_by_a_release(void)
{
    once_record r = record(DISPATCHED);
    once_op op = plain(ONCE_OP_RELEASE);
    uint64_t fence = COUNTER;

    memcpy(op.token, r.token, sizeof(op.token));
    op.keep_ms = 0;
    T_EQ(once__transition(&r, &op, NOW, &fence), 1);
    T_EQ(r.state, ONCE_ABSENT);
    T_EQ(r.keep_ms, NOW + TIME_LEFT);
}

static void fences_grow_across_keys_and_attempts_within_one(void)
{
    once_record a, b;
    once_op op = plain(ONCE_OP_CLAIM);
    uint64_t fence = 0;

    memset(&a, 0, sizeof(a));
    memset(&b, 0, sizeof(b));
    (void)once__transition(&a, &op, NOW, &fence);
    (void)once__transition(&b, &op, NOW, &fence);
    T_EQ(a.fence, 1);
    T_EQ(b.fence, 2);
    op = plain(ONCE_OP_RELEASE);
    op.fence = a.fence;
    (void)once__transition(&a, &op, NOW, &fence);
    op = plain(ONCE_OP_CLAIM);
    op.token[0] = 1;
    (void)once__transition(&a, &op, NOW, &fence);
    T_EQ(a.fence, 3);
    T_EQ(a.attempt, 2);
    T_EQ(b.attempt, 1);
}

static void due_is_what_a_reaper_would_find(void)
{
    once_record r = record(CLAIMED);

    T_EQ(once__record_due(&r, r.lease_ms - 1), 0);
    T_EQ(once__record_due(&r, r.lease_ms), ONCE_SCAN_LEASE);
    r = record(DISPATCHED);
    T_EQ(once__record_due(&r, r.lease_ms), ONCE_SCAN_LEASE);
    r = record(COMPLETED);
    r.kind = ONCE_SUCCESS;
    T_EQ(once__record_due(&r, r.keep_ms - 1), 0);
    T_EQ(once__record_due(&r, r.keep_ms), ONCE_SCAN_KEEP);
    r = record(NONE);
    T_EQ(once__record_due(&r, r.keep_ms), ONCE_SCAN_KEEP);
    r = record(INDET);
    T_EQ(once__record_due(&r, UINT64_MAX), 0);
    r = record(NO_RECORD);
    T_EQ(once__record_due(&r, UINT64_MAX), 0);
}

static void numbers_that_no_store_writes_are_refused(void)
{
    static const size_t times[] = {
        offsetof(once_record, lease_ms), offsetof(once_record, keep_ms),
        offsetof(once_record, granted_ms), offsetof(once_record, created_ms)};
    once_record r = record(CLAIMED), last;
    uint64_t time = ONCE__TIME_MAX + 1;
    size_t i;

    T_OK(once__record_sane(&r));
    r.fence = ONCE__FENCE_MAX;
    r.attempt = ONCE__ATTEMPT_MAX;
    r.keep_ms = ONCE__TIME_MAX;
    T_OK(once__record_sane(&r));
    last = r;
    last.fence++;
    T_OK(!once__record_sane(&last));
    last = r;
    last.attempt++;
    T_OK(!once__record_sane(&last));
    for (i = 0; i < sizeof(times) / sizeof(times[0]); i++) {
        last = r;
        memcpy((char *)&last + times[i], &time, sizeof(time));
        T_OK(!once__record_sane(&last));
    }
    last = record(INDET);
    T_OK(once__record_sane(&last));
    last.ended_ms = time;
    T_OK(!once__record_sane(&last));
}

static void nothing_is_granted_beyond_what_can_be_counted(void)
{
    once_record r = record(NONE), before;
    once_op op = plain(ONCE_OP_CLAIM);
    uint64_t fence = ONCE__FENCE_MAX;

    op.token[0] = 99;
    before = r;
    T_EQ(once__transition(&r, &op, NOW, &fence), 0);
    T_EQ(op.rc, ONCE_ECORRUPT);
    T_OK(memcmp(&r, &before, sizeof(r)) == 0);
    T_OK(fence == ONCE__FENCE_MAX);
    fence = COUNTER;
    r.attempt = ONCE__ATTEMPT_MAX;
    T_EQ(once__transition(&r, &op, NOW, &fence), 0);
    T_EQ(op.rc, ONCE_ECORRUPT);
    T_EQ(fence, COUNTER);
    r.attempt--;
    T_EQ(once__transition(&r, &op, NOW, &fence), 1);
    T_EQ(op.rc, ONCE_OWNER);
}

static void a_clock_of_any_value_makes_records_that_can_be(void)
{
    static const uint64_t clocks[] = {0, ONCE__TIME_MAX - 1, ONCE__TIME_MAX,
                                      UINT64_MAX};
    size_t i;

    for (i = 0; i < sizeof(clocks) / sizeof(clocks[0]); i++) {
        once_record r = {.state = ONCE_ABSENT};
        once_op op = plain(ONCE_OP_CLAIM);
        uint64_t fence = 0;

        T_EQ(once__transition(&r, &op, clocks[i], &fence), 1);
        T_EQ(op.rc, ONCE_OWNER);
        op.verb = ONCE_OP_COMPLETE;
        op.fence = r.fence;
        op.kind = ONCE_SUCCESS;
        T_EQ(once__transition(&r, &op, clocks[i], &fence), 1);
        T_EQ(op.rc, ONCE_OK);
        T_OK(once__record_sane(&r));
    }
}

static int refused(once_op op, const char *field)
{
    once_error err = {0, ""};
    int rc = once__op_check(&op, &err);

    if (rc != ONCE_OK)
        T_OK(strncmp(err.text, field, strlen(field)) == 0);
    return rc;
}

static void what_a_caller_fills_in_is_checked_at_its_limits(void)
{
    once_op op = plain(ONCE_OP_CLAIM);

    op.lease_ms = ONCE_LEASE_MIN_MS;
    T_EQ(refused(op, ""), ONCE_OK);
    op.lease_ms--;
    T_EQ(refused(op, "lease_ms"), ONCE_EINVAL);
    op.lease_ms = ONCE_LEASE_MAX_MS;
    T_EQ(refused(op, ""), ONCE_OK);
    op.lease_ms++;
    T_EQ(refused(op, "lease_ms"), ONCE_EINVAL);
    op = plain(ONCE_OP_CLAIM);
    op.keep_ms = ONCE_KEEP_MAX_MS;
    T_EQ(refused(op, ""), ONCE_OK);
    op.keep_ms++;
    T_EQ(refused(op, "keep_ms"), ONCE_EINVAL);
    op = plain(ONCE_OP_CLAIM);
    op.policy = 4;
    T_EQ(refused(op, "policy"), ONCE_EINVAL);
    op = plain(ONCE_OP_COMPLETE);
    op.kind = 0;
    T_EQ(refused(op, "kind"), ONCE_EINVAL);
    op.kind = 3;
    T_EQ(refused(op, "kind"), ONCE_EINVAL);
    op.kind = ONCE_FAILURE;
    op.result.size = ONCE_RESULT_MAX;
    T_EQ(refused(op, ""), ONCE_OK);
    op.result.size++;
    T_EQ(refused(op, "result"), ONCE_ELIMIT);
    op = plain(ONCE_OP_REOPEN);
    op.note.size = ONCE_NOTE_MAX;
    T_EQ(refused(op, ""), ONCE_OK);
    op.note.size++;
    T_EQ(refused(op, "note"), ONCE_ELIMIT);
    op = plain(0);
    T_EQ(refused(op, "verb"), ONCE_EINVAL);
    op.verb = ONCE__OP_END;
    T_EQ(refused(op, "verb"), ONCE_EINVAL);
    op = plain(ONCE_OP_READ); /* no lease is looked at where none is used */
    op.lease_ms = 0;
    T_EQ(refused(op, ""), ONCE_OK);
}

/* The operator's tool repeats a call whose answer was lost. */
static void a_decision_is_repeated_by_its_note(void)
{
    static const struct row rows_of[] = {
        {"resolve", ONCE_OP_RESOLVE, INDET, 0, 0, 0, 0, STRANGER, 0, 0, 0,
         ONCE_OK, RESOLVED},
        {"reopen", ONCE_OP_REOPEN, INDET, 0, 0, TAKE, 0, STRANGER, TAKE, 0, 0,
         ONCE_OK, ABSENT},
    };
    uint64_t fence = COUNTER;
    size_t i;

    for (i = 0; i < 2; i++) {
        once_record r = before(&rows_of[i]);
        once_op op = call(&rows_of[i]), other = op;

        T_EQ(once__transition(&r, &op, NOW, &fence), 1);
        T_EQ(op.rc, ONCE_OK);
        T_EQ(once__transition(&r, &op, NOW + 1, &fence), 0);
        T_EQ(op.rc, ONCE_OK);
        other.note = (once_bytes){"nota", 4};
        T_EQ(once__transition(&r, &other, NOW, &fence), 0);
        T_EQ(other.rc, ONCE_REFUSED);
        other = op;
        other.fence--;
        T_EQ(once__transition(&r, &other, NOW, &fence), 0);
        T_EQ(other.rc, ONCE_REFUSED);
        other = op;
        other.note.size = 0;
        T_EQ(once__transition(&r, &other, NOW, &fence), 0);
        T_EQ(other.rc, ONCE_REFUSED);
    }
}

static void a_repeated_decision_with_another_outcome_is_refused(void)
{
    static const struct row row = {
        "resolve", ONCE_OP_RESOLVE, INDET,   0, 0, 0, 0, STRANGER, 0, 0,
        0,         ONCE_OK,         RESOLVED};
    once_record r = before(&row);
    once_op op = call(&row);
    uint64_t fence = COUNTER;

    T_EQ(once__transition(&r, &op, NOW, &fence), 1);
    op.kind = ONCE_FAILURE;
    T_EQ(once__transition(&r, &op, NOW, &fence), 0);
    T_EQ(op.rc, ONCE_REFUSED);
    op.kind = ONCE_SUCCESS;
    op.result = (once_bytes){"resulT", 6};
    T_EQ(once__transition(&r, &op, NOW, &fence), 0);
    T_EQ(op.rc, ONCE_REFUSED);
}

int main(void)
{
    size_t i;

    for (i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        this_row = &rows[i];
        t_named(this_row->name, check_this_row);
    }
    T_RUN(a_lease_too_far_ahead_is_cut);
    T_RUN(a_row_is_not_kept_shorter_by_a_release);
    T_RUN(fences_grow_across_keys_and_attempts_within_one);
    T_RUN(due_is_what_a_reaper_would_find);
    T_RUN(numbers_that_no_store_writes_are_refused);
    T_RUN(nothing_is_granted_beyond_what_can_be_counted);
    T_RUN(a_clock_of_any_value_makes_records_that_can_be);
    T_RUN(what_a_caller_fills_in_is_checked_at_its_limits);
    T_RUN(a_decision_is_repeated_by_its_note);
    T_RUN(a_repeated_decision_with_another_outcome_is_refused);
    return t_done();
}
