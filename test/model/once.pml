/* SPDX-License-Identifier: Apache-2.0 */
/*
 * once.pml - the idea, without the code: one record, N attempts with the same
 * key, one upstream, one reaper that also stands for operator and failover.
 *
 *   Attempt --claim, mark, complete, release, give up--> record <-- Reaper
 *      |                                                    (lease, retention)
 *      +--------- up! --> Upstream --- resp[] --> Attempt
 *
 * Records of different names never interact, so one is enough. Time is not
 * modelled: a lease may be seen as over at ANY moment after the claim. A pause,
 * a clock jump and a slow network are therefore all covered, and whatever holds
 * here holds without any assumption about clocks. What this model refuses to
 * know is the code: the explorer (test/explore) does the same with src/calls/core.
 *
 * Switches, one -D each (test/model/run has the table):
 *   HOLD | TAKEOVER          what becomes of a lost owner
 *   MARK                     two-phase: a durable mark before dispatch
 *   UP_NAIVE | UP_DEDUP | UP_FENCE           what the upstream does
 *   N CRASHES LOST GIVEUPS REFUSALS DUPS     how many of each
 *   TWO_FP                   the last attempt carries another fingerprint
 *   RETENTION                the completed record is forgotten, once
 *   LOSSY, +SYNC             one failover to an asynchronous, a synchronous
 *                            replica
 *   planted mistakes: NOFENCE NOTOKEN FENCE_ABA PENDING_TTL
 *            RELEASE_ON_ERROR RELEASE_UNFENCED REPLY_FIRST FAILOPEN NOFP TORN_CLAIM
 *            REOPEN NOREAPER LAZY (reaps only on a claim)
 *
 * Asserted (docs/protocol.md, section 10):
 *   I1 executions <= 1 per retention period
 *   I2 a recorded outcome never changes, and all are told the same one
 *   I3 nobody is told an outcome that was not recorded first
 *   I4 an outcome is told only to the fingerprint that produced it
 *   I7 an acknowledged outcome survives a failover
 */
#ifndef N
#define N 3
#endif
#ifndef CRASHES
#define CRASHES 1
#endif
#ifndef LOST
#define LOST 1
#endif
#ifndef GIVEUPS
#define GIVEUPS 1
#endif
#ifndef REFUSALS
#define REFUSALS 0
#endif
#ifndef DUPS
#define DUPS 0
#endif

#define ABSENT 0
#define CLAIMED 1
#define DISPATCHED 2
#define COMPLETED 3
#define INDETERMINATE 4

/* What the store answers. SILENCE: nothing, and it was applied or not. */
#define OK 1
#define OWNER 2
#define IN_FLIGHT 3
#define REPLAY 4
#define UNKNOWN 5
#define MISMATCH 6
#define FENCED 7
#define LOST_IT 8
#define SILENCE 9

/* The record. A row that is absent keeps the token of its last owner. */
byte st, fence, tok, fp, res, counter;
bool expired, doubt;
/* How many of each are left. */
byte crashes = CRASHES, lost = LOST, giveups = GIVEUPS, refusals = REFUSALS,
     dups = DUPS;
/* The upstream. */
chan up = [N + DUPS + 1] of { byte, byte };
byte resp[N];
byte execs, highest, first_res;
/* Ghosts: only the properties read them. */
byte first_reply, ended, replied, gens;
bool recorded[N + 2];
byte rec_fp[N + 2];
#ifdef LOSSY
byte s_st, s_fence, s_tok, s_fp, s_res, s_counter;
bool s_doubt, failed_over;
#define COPY s_st = st; s_fence = fence; s_tok = tok; s_fp = fp; s_res = res; \
    s_counter = counter; s_doubt = doubt
#endif
#if defined(LOSSY) && defined(SYNC)
#define PERSIST COPY
#else
#define PERSIST skip
#endif

#define OWN (tok == _pid)
#ifdef NOFENCE
#define MATCH (true)
#elif defined(NOTOKEN)
#define MATCH (fence == my)
#else
#define MATCH (OWN && fence == my)
#endif
#ifdef NOFP
#define SAME_FP (true)
#else
#define SAME_FP (fp == myfp)
#endif
#define OWNED (st == CLAIMED || st == DISPATCHED)
#define LIVE (OWNED || st == INDETERMINATE)
#ifdef MARK
#define FIRST CLAIMED
#else
#define FIRST DISPATCHED
#endif
#ifdef FENCE_ABA /* the counter stands in the record and goes with it */
#define NEXT_FENCE fence++
#define FORGET st = ABSENT; tok = 0; doubt = false; fence = 0
#else            /* of the store, never repeated */
#define NEXT_FENCE counter++; fence = counter
#define FORGET st = ABSENT; tok = 0; doubt = false
#endif

/* ---- The store: each step is indivisible --------------------------------- */

inline grant() {
    doubt = doubt || st == DISPATCHED || st == INDETERMINATE;
    NEXT_FENCE; st = FIRST; tok = _pid; fp = myfp; expired = false; res = 0;
    my = fence; ans = OWNER
}

inline vacate() { /* with doubt an earlier attempt may have executed */
    if
    :: doubt -> st = INDETERMINATE
    :: else -> st = ABSENT; fp = 0
    fi
}

inline do_claim() {
    if
    :: st == ABSENT && OWN -> ans = FENCED /* a late copy */
    :: st == ABSENT && !OWN -> grant()
    :: st != ABSENT && !SAME_FP -> ans = MISMATCH
    :: st != ABSENT && SAME_FP ->
        if
        :: st == COMPLETED -> ans = REPLAY; r = res
        :: st == INDETERMINATE ->
            if
            :: OWN -> ans = LOST_IT; my = fence
#ifdef TAKEOVER
            :: !OWN -> grant()
#else
            :: !OWN -> ans = UNKNOWN
#endif
            fi
        :: OWNED && OWN -> ans = OWNER; my = fence /* a repeated call */
        :: OWNED && !OWN && !expired -> ans = IN_FLIGHT
        :: OWNED && !OWN && expired ->
#ifdef TAKEOVER
            grant()
#else
            if
            :: st == CLAIMED && !doubt -> grant()
            :: else -> st = INDETERMINATE; ans = UNKNOWN
            fi
#endif
        fi
    fi;
    PERSIST
}

inline do_mark() {
    if
    :: OWNED && MATCH -> st = DISPATCHED; expired = false; ans = OK
    :: st == INDETERMINATE && MATCH -> ans = LOST_IT
    :: else -> ans = FENCED
    fi;
    PERSIST
}

inline record_it() {
    st = COMPLETED; res = r; recorded[r] = true; rec_fp[r] = fp; ans = OK
}

inline do_complete() { /* from indeterminate too: the late answer is accepted */
    if
#ifdef NOFENCE
    :: st != ABSENT ->
        assert(st != COMPLETED || res == r); /* I2 */
        record_it()
    :: st == ABSENT -> ans = FENCED
#else
    :: LIVE && MATCH -> record_it()
    :: st == COMPLETED && MATCH -> assert(res == r); ans = OK /* I2 */
    :: else -> ans = FENCED
#endif
    fi;
    PERSIST
}

/* Not executed. Without an answer to the claim the token alone must do. */
inline do_release() {
    if
#ifdef RELEASE_UNFENCED
    :: LIVE -> vacate(); ans = OK
#else
    :: LIVE && OWN && (my == 0 || fence == my) -> vacate(); ans = OK
#endif
    :: st == ABSENT && OWN -> ans = OK
    :: else -> ans = FENCED
    fi;
    PERSIST
}

inline do_give_up() {
    if
#ifdef RELEASE_ON_ERROR /* "it failed, so let it be tried again" */
    :: OWNED && MATCH -> st = ABSENT; ans = OK
#else
    :: LIVE && MATCH -> st = INDETERMINATE; ans = OK
#endif
    :: else -> ans = FENCED
    fi;
    PERSIST
}

inline do_read() {
    if
    :: st == COMPLETED && SAME_FP -> ans = REPLAY; r = res
    :: else -> ans = IN_FLIGHT
    fi
}

/* ---- An attempt ---------------------------------------------------------- */

/* Lost on the way | applied, and the answer is lost | answered. */
#define CALL(step) atomic { \
    if :: lost > 0 -> lost--; ans = SILENCE \
       :: lost > 0 -> step; lost--; ans = SILENCE \
       :: step \
    fi }

#define CRASHPOINT if :: crashes > 0 -> crashes--; goto dead :: skip fi

inline tell(v) {
    atomic {
        assert(recorded[v]);                         /* I3 */
        assert(rec_fp[v] == myfp);                   /* I4 */
#ifndef RETENTION
        assert(first_reply == 0 || first_reply == v); /* I2, as told */
#endif
        first_reply = v; replied++;
#ifdef REACH_TOLD /* not vacuous: every client can be told the outcome */
        assert(replied < N)
#endif
    }
}

proctype Attempt(byte id, myfp) {
    byte ans, my, r, seen;
again:
#ifdef TORN_CLAIM /* GET, then SET: the check and the write are two steps */
    seen = st;
    if
    :: seen == ABSENT -> atomic { grant() }
    :: else -> CALL(do_claim())
    fi;
#else
    CALL(do_claim());
#endif
    if
#ifdef FAILOPEN
    :: ans == SILENCE -> my = 0 /* "the store is down: let it through" */
#else
    :: ans == SILENCE -> CRASHPOINT; goto again
    :: ans == SILENCE -> goto release /* patience ends: taken back */
#endif
    :: ans == OWNER -> skip
    :: ans == REPLAY -> tell(r); goto end
    :: ans == LOST_IT -> goto release /* ours, too late, nothing sent */
    :: ans == FENCED -> goto look
    :: else -> goto end /* 409, 422, outcome unknown */
    fi;
    CRASHPOINT;
#ifdef MARK
mark:
    CALL(do_mark());
    if
    :: ans == SILENCE -> CRASHPOINT; goto mark
    :: ans == FENCED -> goto look
    :: ans == LOST_IT -> goto release
    :: ans == OK -> skip
    fi;
    CRASHPOINT;
#endif
    if
    :: refusals > 0 -> refusals--; goto release /* refused: nothing was sent */
    :: up ! id, my
    fi;
    CRASHPOINT;
    if
    :: resp[id] != 0 -> r = resp[id]
    :: giveups > 0 -> giveups--; goto give_up /* 504 */
    fi;
#ifdef REPLY_FIRST
    tell(r);
    CRASHPOINT;
#endif
complete:
    CALL(do_complete());
    if
    :: ans == SILENCE -> CRASHPOINT; goto complete
    :: ans == FENCED -> goto look
    :: ans == OK -> skip
    fi;
    CRASHPOINT;
#ifndef REPLY_FIRST
    tell(r);
#endif
    goto end;
release:
#ifdef REACH_RELEASED /* not vacuous: a release can free the key */
    assert(!(st == FIRST && OWN && !doubt));
#endif
    CALL(do_release());
    if
    :: ans == SILENCE -> CRASHPOINT; goto release
    :: else -> goto end
    fi;
give_up:
    CALL(do_give_up());
    if
    :: ans == SILENCE -> CRASHPOINT; goto give_up
    :: else -> goto end
    fi;
look: /* a fenced attempt looks once and ends: it never claims again */
    CALL(do_read());
    if :: ans == REPLAY -> tell(r) :: else fi;
end:
dead:
    ended++
}

/* ---- The others ---------------------------------------------------------- */

active proctype Upstream() {
    byte a, e;
endup:
    do
    :: atomic { up ? a, e ->
        if :: dups > 0 -> dups--; up ! a, e :: skip fi;
#ifdef UP_DEDUP
        if :: execs == 0 -> execs++; first_res = 1 :: else fi;
        resp[a] = first_res
#else
#ifdef UP_FENCE /* refuses fences lower than the highest seen */
        if :: e < highest -> skip
           :: else -> highest = e; execs++; resp[a] = execs
        fi
#else
        execs++; resp[a] = execs
#endif
#endif
#ifndef NO_I1
        ; assert(execs <= 1 + gens) /* I1 */
#endif
       }
    od
}

/* Leases, retention, operators, failover. */
active proctype Reaper() {
endre:
    do
#ifndef NOREAPER
    :: atomic { OWNED && !expired -> expired = true }
#else
    :: false
#endif
#ifdef PENDING_TTL
    :: atomic { OWNED && expired -> FORGET }
#else
#if !defined(NOREAPER) && !defined(LAZY)
    :: atomic { OWNED && expired ->
        if :: st == DISPATCHED -> st = INDETERMINATE
           :: st == CLAIMED -> vacate()
        fi; PERSIST }
#endif
#endif
#ifdef RETENTION
    :: atomic { st == COMPLETED && gens == 0 -> gens++; FORGET }
#endif
#ifdef REOPEN /* "the upstream says it did nothing: let it be tried again" */
    :: atomic { st == INDETERMINATE && execs == 0 -> st = ABSENT }
#endif
#ifdef LOSSY
#ifndef SYNC
    :: atomic { !failed_over -> COPY }
#endif
    :: atomic { !failed_over ->
        failed_over = true; st = s_st; fence = s_fence; tok = s_tok; fp = s_fp;
        res = s_res; counter = s_counter; doubt = s_doubt;
        assert(first_reply == 0 || (st == COMPLETED && res == first_reply)) }
#endif
    od
}

init {
    atomic {
        byte i = 0;
        do
        :: i < N ->
#ifdef TWO_FP
            if :: i == N - 1 -> run Attempt(i, 2) :: else -> run Attempt(i, 1) fi;
#else
            run Attempt(i, 1);
#endif
            i++
        :: else -> break
        od
    }
}

#ifdef LIVE
ltl ends    { <> (ended == N) }
ltl settles { [] ((st == CLAIMED || st == DISPATCHED) ->
                  <> (st != CLAIMED && st != DISPATCHED)) }
#endif
