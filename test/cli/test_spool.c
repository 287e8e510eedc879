/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_spool.c - what `once run` keeps beside the store survives a power cut: a
 * file counts as kept only when its bytes, its name and each new folder on the
 * way to it have been flushed. The linker (--wrap) shows each such call here.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "programs/once/run/run.h"
#include "t.h"

int __real_mkdir(const char *path, mode_t mode);
int __wrap_mkdir(const char *path, mode_t mode);
int __real_fsync(int fd);
int __wrap_fsync(int fd);
int __real_renameat(int from_dir, const char *from, int to_dir, const char *to);
int __wrap_renameat(int from_dir, const char *from, int to_dir, const char *to);
ssize_t __real_write(int fd, const void *bytes, size_t size);
ssize_t __wrap_write(int fd, const void *bytes, size_t size);

enum { NODES = 64 };

/* What a power cut could take away: in the folder, or of the file, `node`. */
static struct {
    ino_t node;
    char what[200];
} loose[NODES];
static int count;

static void loosen(ino_t node, const char *what)
{
    if (count < NODES) {
        loose[count].node = node;
        (void)snprintf(loose[count].what, sizeof(loose[count].what), "%s",
                       what);
        count++;
    }
}

static ino_t node_of(int fd)
{
    struct stat st;

    return fstat(fd, &st) == 0 ? st.st_ino : 0;
}

int __wrap_mkdir(const char *path, mode_t mode)
{
    int rc = __real_mkdir(path, mode);
    char parent[200];
    struct stat st;

    (void)snprintf(parent, sizeof(parent), "%.*s",
                   (int)(strrchr(path, '/') - path), path);
    if (rc == 0 && stat(parent[0] ? parent : "/", &st) == 0)
        loosen(st.st_ino, path);
    return rc;
}

int __wrap_fsync(int fd)
{
    ino_t node = node_of(fd);
    int i, n = 0;

    for (i = 0; i < count; i++)
        if (loose[i].node != node)
            loose[n++] = loose[i];
    count = n;
    return __real_fsync(fd);
}

int __wrap_renameat(int from_dir, const char *from, int to_dir, const char *to)
{
    loosen(node_of(to_dir), to);
    return __real_renameat(from_dir, from, to_dir, to);
}

ssize_t __wrap_write(int fd, const void *bytes, size_t size)
{
    loosen(node_of(fd), "bytes of the file");
    return __real_write(fd, bytes, size);
}

static char folder[64];

static void all_is_durable(void)
{
    int i;

    for (i = 0; i < count; i++)
        printf("#   not flushed: %s\n", loose[i].what);
    T_EQ(count, 0);
}

static void keep_a_file(void)
{
    char name[RUN_FILE_SIZE];
    uint8_t sha[RUN_SHA_SIZE];
    struct run_spool s;
    int fd;

    run_spool_init(&s);
    T_EQ(run_spool_open(&s, "0123456789abcdef", 1), 0);
    T_EQ(run_spool_write(&s, "some", 4), 0);
    T_EQ(run_spool_write(&s, "thing", 5), 0);
    T_EQ(run_spool_end(&s, UINT64_C(99999999999999), name, sha), 0);
    all_is_durable();
    run_spool_close(&s);
    fd = run_spool_find(name);
    T_OK(fd >= 0);
    (void)close(fd);
}

static void a_spooled_file_is_durable_with_all_new_folders(void)
{
    char home[100];

    count = 0;
    (void)snprintf(home, sizeof(home), "%s/home", folder);
    T_EQ(__real_mkdir(home, 0700), 0);
    (void)unsetenv("XDG_STATE_HOME");
    T_EQ(setenv("HOME", home, 1), 0);
    keep_a_file();
}

/* Somebody has made it and died before it was flushed. */
static void a_spool_that_was_just_made_is_flushed_by_the_next(void)
{
    char home[100], state[120], spool[140];

    count = 0;
    (void)snprintf(home, sizeof(home), "%s/other", folder);
    (void)snprintf(state, sizeof(state), "%s/once", home);
    (void)snprintf(spool, sizeof(spool), "%s/spool", state);
    T_EQ(__real_mkdir(home, 0700), 0);
    T_EQ(__real_mkdir(state, 0700), 0);
    T_EQ(setenv("XDG_STATE_HOME", home, 1), 0);
    T_EQ(__wrap_mkdir(spool, 0700), 0);
    T_EQ(count, 1);
    keep_a_file();
}

/* The default store lies in it. */
static void the_folder_of_the_default_store_is_durable(void)
{
    char home[100], *store;

    count = 0;
    (void)snprintf(home, sizeof(home), "%s/third", folder);
    T_EQ(__real_mkdir(home, 0700), 0);
    (void)unsetenv("XDG_STATE_HOME");
    T_EQ(setenv("HOME", home, 1), 0);
    store = run_state_store();
    T_OK(store != NULL);
    all_is_durable();
    free(store);
}

int main(void)
{
    char command[100];

    (void)snprintf(folder, sizeof(folder), "/tmp/once-spool-XXXXXX");
    if (mkdtemp(folder) == NULL)
        return 2;
    T_RUN(a_spooled_file_is_durable_with_all_new_folders);
    T_RUN(a_spool_that_was_just_made_is_flushed_by_the_next);
    T_RUN(the_folder_of_the_default_store_is_durable);
    (void)snprintf(command, sizeof(command), "rm -rf '%s'", folder);
    if (system(command) != 0)
        printf("# %s is still there\n", folder);
    return t_done();
}
