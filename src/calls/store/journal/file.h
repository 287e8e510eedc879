/* SPDX-License-Identifier: Apache-2.0 */
/* file.h - files of a journal, whatever is in them. */
#ifndef ONCE_CALLS_STORE_JOURNAL_FILE_H
#define ONCE_CALLS_STORE_JOURNAL_FILE_H

#include <stddef.h>
#include <stdint.h>

/* Which file it is, whatever it is called and holds: a copy is another one. */
struct once__identity {
    uint64_t device, inode;
    uint64_t born; /* since inodes are used again; 0: not known */
};

/* 0, or -1 and errno. */
int once__file_identify(int fd, struct once__identity *out);
/* Creates the file `name` in the folder, mode and owner as the folder's. */
int once__file_create(int folder, const char *name);
/* Opens the file `name` in the folder, which is a file: a user who may write to
 * the folder must not lead us elsewhere by a link, or let us wait for a pipe. A
 * descriptor, or -1 and errno. */
int once__file_open_in(int folder, const char *name, int flags);
/* Mode and owner as those of `like`. 0, or -1. */
int once__file_set_owner(int like, int fd);
/* 1 if only those may have made the file, and may write to it, who may write to
 * `like`. */
int once__file_is_owned_like(int like, int fd);
/* Reads all of `size` bytes. 1, 0 at the end of the file, or -1 and errno. */
int once__file_read(int fd, void *out, size_t size, uint64_t offset);
/* Writes all of them. 0, or -1 and errno. */
int once__file_write(int fd, const void *bytes, size_t size, uint64_t offset);
/* Writes once more what stands between two offsets. 0, or -1 and errno. */
int once__file_rewrite(int fd, uint64_t from, uint64_t to);

#endif /* ONCE_CALLS_STORE_JOURNAL_FILE_H */
