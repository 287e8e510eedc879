/* SPDX-License-Identifier: Apache-2.0 */
/*
 * apply.h - the sequential meaning of every store, in one function over values.
 *
 * No I/O, clock, thread, allocation or global: time and the fence counter come
 * in as arguments. Stores that hold records call it; stores with a language of
 * their own behave as if they did; explorer, simulator and history checker use
 * it as their oracle.
 */
#ifndef ONCE_CORE_TRANSITION_H
#define ONCE_CORE_TRANSITION_H

#include <once/once.h>

/*
 * Checks what the caller of an operation filled in. ONCE_OK, or ONCE_EINVAL or
 * ONCE_ELIMIT with the field and its limit. once__transition() expects a checked op.
 */
ONCE_CHECK int once__op_check(const once_op *op, once_error *err);

/*
 * Decides `op` on `*r` at the store's time `now_ms`: sets `op->rc`,
 * `op->left_ms` and `op->record` and returns 1 if `*r` changed and must be
 * persisted before anybody is told, 0 if not. `r->attempt` 0 means "no row",
 * before and after. `*fence` is the store's counter: raised by each grant, to
 * be persisted with the record. Bytes that enter the record are borrowed from
 * `op`.
 */
int once__transition(once_record *r, once_op *op, uint64_t now_ms,
                     uint64_t *fence);

/* 1 if the record could have been made by once__transition(): for asserting and for
 * refusing what was read from a disk. */
int once__record_sane(const once_record *r);

/* Which scan would show the record at `now_ms`: enum once_scan_what in
 * store.h, or 0 if it is not due. */
int once__record_due(const once_record *r, uint64_t now_ms);

#endif /* ONCE_CORE_TRANSITION_H */
