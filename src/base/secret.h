/* SPDX-License-Identifier: Apache-2.0 */
/* secret.h - passwords in URLs, and the modes of files that hold a secret. */
#ifndef ONCE_BASE_SECRET_H
#define ONCE_BASE_SECRET_H

#include <sys/stat.h>

#include <once/once.h>

/* 1: "//USER:PASSWORD@" is in it, or a parameter "password" or "sslpassword". */
int once__url_has_password(const char *url);
/* Takes them out, in place. The rest names the same place. */
void once__url_hide_password(char *url);

/*
 * Checks the mode of a file that holds a secret: only its owner may write it, and
 * only its owner and its group may read it. ONCE_OK, also for a pipe; or ONCE_EOPEN:
 * `err` has the mode, and the command that changes it.
 */
ONCE_CHECK int once__secret_mode(const char *path, const struct stat *st,
                                 once_error *err);

/*
 * A variable of our environment, "NAME=VALUE", as a command that we start gets it:
 * ONCE_STORE and ONCE_DATABASE without their passwords, which are Once's and not
 * the command's. Returns `entry`, or a copy that free() takes; NULL: no memory.
 */
char *once__variable_for_child(char *entry);

#endif /* ONCE_BASE_SECRET_H */
