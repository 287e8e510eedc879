/* SPDX-License-Identifier: Apache-2.0 */
/* path.h - where on the disk the URL of a store points. */
#ifndef ONCE_BASE_PATH_H
#define ONCE_BASE_PATH_H

#include <once/once.h>

/*
 * The absolute path of `path`, on the heap: the program may change its folder
 * later. The folder it stands in must exist, and links on the way there are
 * followed; the last part need not exist. `store` is for texts. ONCE_EURL,
 * ONCE_EOPEN (and errno is ENOENT if that folder is missing), ONCE_ENOMEM.
 */
ONCE_CHECK int once__path_absolute(const char *store, const char *path,
                                   char **out, once_error *err);

/*
 * The same, and where the last part is a link, what it leads to: if it is
 * root's or ours. Another user who may write to that folder must not lead root
 * elsewhere. The result is no link, and has to be opened as such (O_NOFOLLOW).
 */
ONCE_CHECK int once__path_resolve(const char *store, const char *path,
                                  char **out, once_error *err);

/* Flushes the folder in which the file or folder at `path` stands: a name that a crash can take away would lose all that it names.
 * 0, or -1 and errno. */
ONCE_CHECK int once__path_sync_folder(const char *path);

#endif /* ONCE_BASE_PATH_H */
