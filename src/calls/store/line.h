/* SPDX-License-Identifier: Apache-2.0 */
/* line.h - records as lines of text, for dump and verify of stores on a server
 * that speaks SQL. */
#ifndef ONCE_CALLS_STORE_LINE_H
#define ONCE_CALLS_STORE_LINE_H

#include <once/store.h>

enum { ONCE__LINE = 640 };

void once__record_line(const uint8_t name[ONCE_NAME_SIZE],
                       const once_record *record, char out[ONCE__LINE]);
/* Of a record that is not believed. */
void once__damage_line(const uint8_t name[ONCE_NAME_SIZE],
                       char out[ONCE__LINE]);

#endif /* ONCE_CALLS_STORE_LINE_H */
