/* SPDX-License-Identifier: Apache-2.0 */
/*
 * transition.h - the transition table of docs/protocol.md, section 5, as one
 * function over values: what each operation does to a record, in every store.
 *
 * No I/O, clock, thread, allocation or global: time and the fence counter are
 * arguments. Stores that have the record in memory call it; stores with a
 * language of their own (SQL, Lua) must do the same. The explorer, the
 * simulator and the history checker compare with it.
 */
#ifndef ONCE_CALLS_CORE_TRANSITION_H
#define ONCE_CALLS_CORE_TRANSITION_H

#include <once/once.h>

/*
 * Checks what the caller of an operation filled in. Returns ONCE_OK, or
 * ONCE_EINVAL or ONCE_ELIMIT with a text that names the field and its limit.
 * once__transition() expects an operation that was checked.
 */
ONCE_CHECK int once__op_check(const once_op *op, once_error *err);

/* ONCE_OK if it may be a record's label; ONCE_ELIMIT or ONCE_EINVAL. */
ONCE_CHECK int once__label_check(once_bytes label, once_error *err);

/*
 * Decides `op` on `*r` at the store's time `now_ms`: sets `op->rc`,
 * `op->left_ms` and `op->record`. Returns 1 if `*r` changed and must be durable
 * before the answer is given, 0 if not. `r->attempt` 0 means "no row", before
 * and after. `*fence` is the store's counter: each grant raises it, and it must
 * be persisted with the record. Result, note and label of a changed record
 * are borrowed from `op`.
 */
int once__transition(once_record *r, once_op *op, uint64_t now_ms,
                     uint64_t *fence);

/* 1 if once__transition() can have made the record: for assertions, and to
 * reject what was read from a disk. */
int once__record_sane(const once_record *r);

/* The order of places in a scan, for qsort(). */
int once__position_order(const void *a, const void *b);

/* Which scan would show the record at `now_ms`: enum once_scan_what in
 * store.h, or 0 if it is not due. */
int once__record_due(const once_record *r, uint64_t now_ms);

#endif /* ONCE_CALLS_CORE_TRANSITION_H */
