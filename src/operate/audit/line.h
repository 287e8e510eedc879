/* SPDX-License-Identifier: Apache-2.0 */
/* line.h - one line of the audit log as text, and back. */
#ifndef ONCE_OPERATE_AUDIT_LINE_H
#define ONCE_OPERATE_AUDIT_LINE_H

#include "operate/audit/audit.h"

enum { ONCE__AUDIT_HEX = 2 * ONCE__AUDIT_HASH + 1 };

/* `prev` of a line that follows nothing. */
extern const char once__audit_nothing[ONCE__AUDIT_HEX];

/* SHA-256 of some bytes in hex. */
void once__audit_sum_of(once_bytes bytes, char out[ONCE__AUDIT_HEX]);

/* A text as a string: cut to ONCE__AUDIT_TEXT_MAX bytes, what is not UTF-8
 * escaped. NULL: out of memory. */
json_t *once__audit_text(const char *text);

/*
 * The text of a line that follows `prev`, with its line break: free() it.
 * Takes `fields`, which may be NULL after a failed allocation; then, and where
 * memory is short, NULL. `hash` becomes that of the line.
 */
char *once__audit_make(uint64_t seq, const char *prev, json_t *fields,
                       char hash[ONCE__AUDIT_HEX]);

/* Reads a line: `*line` gets flaw, seq, hash, prev and json, and `text` as it
 * is. json_decref() line->json. */
void once__audit_parse(once_bytes text, once__audit_line *line);

/* A text field of a line, or NULL. */
const char *once__audit_field(const once__audit_line *line, const char *name);

#endif /* ONCE_OPERATE_AUDIT_LINE_H */
