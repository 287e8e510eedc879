/* SPDX-License-Identifier: Apache-2.0 */
/*
 * disk.c - how large a store is that stands in files of this host, and what is
 * free beside it. Of a database's server nothing is known here.
 */
#include "programs/console/console.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "base/named.h"
#include "calls/store/store.h"

/* The path of a store in a file or a folder: strdup()ed, or NULL. */
char *console_path_of(const struct console_store *s)
{
    const struct once__store_line *line = once__store_line_of(s->url);
    struct once__named *memory = calloc(1, sizeof(*memory));
    const char *url = NULL;
    char *path = NULL;

    if (memory != NULL && line != NULL &&
        (line->place == ONCE__STORE_FILE ||
         line->place == ONCE__STORE_FOLDER) &&
        once__named_url(s->url, memory, &url, NULL) == ONCE_OK) {
        url += strcspn(url, ":");
        path = strndup(url + 1, strcspn(url + 1, "?"));
    }
    free(memory);
    return path;
}

static uint64_t size_at(int folder, const char *name)
{
    struct stat st;

    return fstatat(folder, name, &st, AT_SYMLINK_NOFOLLOW) == 0 &&
                   S_ISREG(st.st_mode)
               ? (uint64_t)st.st_blocks * 512
               : 0;
}

/* All files of a folder, or a file and its log. */
static uint64_t size_of(const char *path)
{
    DIR *folder = opendir(path);
    const struct dirent *one;
    char log[4096];
    uint64_t sum;

    if (folder == NULL) {
        snprintf(log, sizeof(log), "%s-wal", path);
        return size_at(AT_FDCWD, path) + size_at(AT_FDCWD, log);
    }
    sum = 0;
    while ((one = readdir(folder)) != NULL)
        sum += size_at(dirfd(folder), one->d_name);
    closedir(folder);
    return sum;
}

int console_disk(const struct console_store *s, uint64_t *bytes, uint64_t *left)
{
    struct statvfs fs;

    if (s->path == NULL || statvfs(s->path, &fs) < 0)
        return 0;
    *bytes = size_of(s->path);
    *left = (uint64_t)fs.f_bavail * fs.f_frsize;
    return 1;
}
