/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_making.c - a process dies while it makes a store: before each system
 * call of it, one after the other. The next process finds a store or makes
 * one, all that is acknowledged from then on is there for others and later,
 * and of the dead one no shared memory is left.
 *
 *    test_making [DRIVER]
 *
 * A parent that traces its child sees each call, whatever a store may call.
 */
#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <unistd.h>

#include <once/store.h>

#include "calls/store/journal/handle.h"
#include "ops.h"
#include "t.h"

#define NOW UINT64_C(1700000000000)

enum {
    CALLS_MOST = 20000,
    KEYS = 10,
    FIRST = 1000 /* the key that the dying one completes */
};

static char folder[64];
static const char *driver; /* of this run */

/* Shared with children. */
static struct {
    atomic_int completed; /* FIRST was acknowledged */
} * told;

static uint64_t now_ms(void *user)
{
    (void)user;
    return NOW;
}

static once_store *open_at(const char *path)
{
    once_store_options options = {
        sizeof(options), now_ms, NULL, 5000, 1, NULL, NULL, 0};
    once_error err = {0, ""};
    once_store *s = NULL;
    char url[200];

    (void)snprintf(url, sizeof(url), "%s:%s%s", driver, path,
                   strcmp(driver, "journal") == 0 ? "?segment=65536" : "");
    if (once_store_open(url, &options, &err, &s) != ONCE_OK)
        printf("#   %s\n", err.text);
    return s;
}

static int complete(once_store *s, uint32_t n)
{
    return complete_with(s, n, 5000, (once_bytes){NULL, 0});
}

static void are_there(once_store *s, uint32_t from, uint32_t to)
{
    for (; from < to; from++)
        T_EQ(verb_on(s, ONCE_OP_SHOW, from), ONCE_REPLAY);
}

/* ---- The one that dies -------------------------------------------------- */

static void make_store(const char *path)
{
    once_store *s;

    if (ptrace(PTRACE_TRACEME, 0, NULL, NULL) != 0)
        _exit(77);
    (void)raise(SIGSTOP); /* from here on calls are counted */
    s = open_at(path);
    if (s == NULL)
        _exit(2);
    if (complete(s, FIRST) == ONCE_OK)
        told->completed = 1;
    once_store_close(s);
    _exit(0);
}

/* Lets the child go on to its `last`-th call and kills it there. 1: it was
 * killed; 0: it had ended before. */
static int kill_at(pid_t pid, int last)
{
    int status, calls = 0, signal = 0;

    T_OK(waitpid(pid, &status, 0) == pid);
    if (WIFEXITED(status) && WEXITSTATUS(status) == 77)
        t_skip_all("no process may be traced here");
    T_EQ(ptrace(PTRACE_SETOPTIONS, pid, NULL,
                (void *)(PTRACE_O_TRACESYSGOOD | PTRACE_O_EXITKILL)),
         0);
    while (calls < 2 * last - 1) { /* a stop before each call, one behind it */
        T_EQ(ptrace(PTRACE_SYSCALL, pid, NULL, (void *)(intptr_t)signal), 0);
        T_OK(waitpid(pid, &status, 0) == pid);
        if (!WIFSTOPPED(status)) {
            T_EQ(status, 0); /* it was over before */
            return 0;
        }
        signal = WSTOPSIG(status);
        if (signal == (SIGTRAP | 0x80)) {
            signal = 0;
            calls++;
        }
    }
    T_EQ(kill(pid, SIGKILL), 0);
    T_OK(waitpid(pid, &status, 0) == pid && WIFSIGNALED(status));
    return 1;
}

static int make_and_die(const char *path, int last)
{
    pid_t pid;

    told->completed = 0;
    fflush(stdout);
    pid = fork();
    if (pid == 0)
        make_store(path);
    return kill_at(pid, last);
}

/* ---- Those who come after it -------------------------------------------- */

/* Another process while we have it open. It ends without closing. */
struct elsewhere {
    pid_t pid;
    int go; /* a byte in here, and it begins */
};

static void use_it(const char *path)
{
    once_store *s = open_at(path);
    uint32_t n;

    t__bad = 0;
    if (!T_OK(s != NULL))
        _exit(1);
    are_there(s, 0, KEYS);
    for (n = KEYS; n < 2 * KEYS; n++)
        T_EQ(complete(s, n), ONCE_OK);
    fflush(stdout);
    _exit(t__bad != 0);
}

/* Before we open it: then there is a thread, and what that has locked at the
 * moment of a fork (the sanitizers' memory) would stay locked in the child. */
static struct elsewhere be_elsewhere(const char *path)
{
    struct elsewhere e;
    int ends[2];
    char byte;

    T_EQ(pipe(ends), 0);
    fflush(stdout);
    e.pid = fork();
    if (e.pid == 0) {
        (void)close(ends[1]);
        if (read(ends[0], &byte, 1) != 1)
            _exit(0); /* it is not wanted */
        use_it(path);
    }
    (void)close(ends[0]);
    e.go = ends[1];
    return e;
}

static void end_elsewhere(const struct elsewhere *e, int use)
{
    int status;

    if (use)
        T_EQ(write(e->go, "", 1), 1);
    (void)close(e->go);
    T_OK(waitpid(e->pid, &status, 0) == e->pid);
    T_EQ(status, 0);
}

/* Shared memory of the journal at `path`, from any maker. */
static int count_memory(const char *path)
{
    static const uint8_t zeros[ONCE__JOURNAL_ID];
    char lock[160], name[ONCE__SHARED_NAME];
    struct once__identity self;
    struct dirent *e;
    int fd, n = 0;
    DIR *d = opendir("/dev/shm");

    (void)snprintf(lock, sizeof(lock), "%s/lock", path);
    fd = open(lock, O_RDONLY | O_CLOEXEC);
    if (!T_OK(d != NULL && fd >= 0 && once__file_identify(fd, &self) == 0))
        return -1;
    (void)close(fd);
    once__shared_name(&self, zeros, name);
    name[strlen(name) - 2 * ONCE__JOURNAL_ID] = '\0';
    while ((e = readdir(d)) != NULL)
        n += strncmp(e->d_name, name + 1, strlen(name + 1)) == 0;
    (void)closedir(d);
    return n;
}

static void go_on(const char *path)
{
    struct elsewhere other = be_elsewhere(path);
    once_store *s = open_at(path);
    uint32_t n;

    if (!T_OK(s != NULL)) {
        end_elsewhere(&other, 0);
        return;
    }
    if (told->completed)
        are_there(s, FIRST, FIRST + 1);
    for (n = 0; n < KEYS; n++)
        T_EQ(complete(s, n), ONCE_OK);
    end_elsewhere(&other, 1);
    are_there(s, 0, 2 * KEYS);
    once_store_close(s);
    s = open_at(path);
    if (!T_OK(s != NULL))
        return;
    are_there(s, 0, 2 * KEYS);
    if (strcmp(driver, "journal") == 0)
        T_EQ(count_memory(path), 1);
    once_store_close(s);
    if (strcmp(driver, "journal") == 0)
        T_EQ(count_memory(path), 0);
}

static void dying_at_each_call_of_making_it_loses_nothing(void)
{
    int last, killed = 1;
    char path[128];

    for (last = 1; last < CALLS_MOST && killed && t__bad == 0; last++) {
        (void)snprintf(path, sizeof(path), "%s/%s-%d", folder, driver, last);
        killed = make_and_die(path, last);
        go_on(path);
        if (t__bad != 0)
            printf("#   killed at call %d\n", last);
    }
    T_OK(!killed);
    T_OK(last > 20); /* it was seen what it calls */
    printf("# %d calls\n", last - 1);
}

static void all(const char *name)
{
    driver = name;
    printf("# %s\n", name);
    T_RUN(dying_at_each_call_of_making_it_loses_nothing);
}

int main(int argc, char **argv)
{
    char command[100];

    told = mmap(NULL, sizeof(*told), PROT_READ | PROT_WRITE,
                MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    (void)snprintf(folder, sizeof(folder), "%s/making-once-XXXXXX",
                   access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp");
    if (told == MAP_FAILED || mkdtemp(folder) == NULL)
        return 2;
    if (argc < 2 || strcmp(argv[1], "sqlite") == 0)
        all("sqlite");
    if (argc < 2 || strcmp(argv[1], "journal") == 0)
        all("journal");
    (void)snprintf(command, sizeof(command), "rm -rf '%s'", folder);
    if (system(command) != 0)
        printf("# %s is still there\n", folder);
    return t_done();
}
