/* SPDX-License-Identifier: Apache-2.0 */
/*
 * rows.h - lists of rows that have memory of their own, made from rows that point
 * into a result of a database.
 */
#ifndef ONCE_MESSAGE_ROWS_H
#define ONCE_MESSAGE_ROWS_H

#include "message/outbox.h"

/* Adds a copy of the row and of what it points to. ONCE_OK or ONCE_ENOMEM. */
ONCE_CHECK int once__outgoing_add(struct once__outgoing_list *list,
                                  const struct once__outgoing *row);
ONCE_CHECK int once__parked_add(struct once__parked_list *list,
                                const struct once__parked *row);

#endif /* ONCE_MESSAGE_ROWS_H */
