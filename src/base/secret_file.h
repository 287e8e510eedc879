/* SPDX-License-Identifier: Apache-2.0 */
/* secret_file.h - files that hold one password or token. */
#ifndef ONCE_BASE_SECRET_FILE_H
#define ONCE_BASE_SECRET_FILE_H

#include <stddef.h>

#include <once/once.h>

/*
 * Writes the first line of the file, without its end, if it is shorter than `size`;
 * what follows may be as long as it likes. ONCE_OK, or ONCE_EOPEN and
 * `err` names the file, the user and what to do. A file that others may use is
 * refused, as once__secret_mode() says.
 */
ONCE_CHECK int once__secret_read(const char *path, char *out, size_t size,
                                 once_error *err);

/* ONCE_EOPEN, and `err` names the file, the user of this process, and why. */
int once__secret_fail(const char *path, const char *why, once_error *err);

#endif /* ONCE_BASE_SECRET_FILE_H */
