/* SPDX-License-Identifier: Apache-2.0 */
/*
 * run.h - what the files of `once run` share.
 *
 *    args.c    the command line           state.c   the folder of the user
 *    child.c   one run of the command     tape.c    its output, as recorded
 *    replay.c  the output again           spool.c   ... where it is long
 *
 * cmd_run.c puts them together. Nothing here prints a key, an argument of
 * the command, or a store URL that the user has given.
 */
#ifndef ONCE_ONCE_RUN_RUN_H
#define ONCE_ONCE_RUN_RUN_H

#include <signal.h>
#include <stdint.h>

#include <openssl/evp.h>
#include <sys/types.h>

#include <once/call.h>

#include "programs/once/cli.h"

/* What `once run` itself ends with. The numbers are those of sysexits.h as far
 * as they fit, so that a command seldom has one of them for its own. */
enum run_exit {
    RUN_USAGE = 64,     /* the command line; nothing was done              */
    RUN_MISMATCH = 65,  /* the key belongs to another command              */
    RUN_STORE = 69,     /* no store, or no such file; nothing was done     */
    RUN_OUTPUT = 74,    /* it has been done, and its output cannot be shown */
    RUN_UNKNOWN = 75,   /* begun, and it is unknown how it ended            */
    RUN_IN_FLIGHT = 76, /* another run is under way                        */
    RUN_REPEATED = 77,  /* done before, and --on-duplicate is reject       */
    RUN_CANNOT = 126,   /* the command could not be started, as in a shell */
    RUN_NOT_FOUND = 127
};

/* ---- args.c ------------------------------------------------------------- */

struct run_options {
    once_call_options call; /* group, key and fingerprint are in `memory`  */
    uint64_t wait_ms;
    char **command; /* ends in NULL                                        */
    void *memory[2];
};

extern const char run_help[];
extern const struct cli_option run_option_table[];
/* CLI_OK, CLI_STOP after --help, or RUN_USAGE, said on stderr. End it with
 * run_options_clear(), whatever it returns. */
int run_read_args(struct cli *c, int argc, char **argv, struct run_options *o);
void run_options_clear(struct run_options *o);

/* ---- state.c ------------------------------------------------------------ */

/* The path $XDG_STATE_HOME/once or ~/.local/state/once: free() it. NULL with
 * errno; ENOENT: neither variable is set. */
char *run_state_path(void);
/* The same, and creates the folder with mode 0700 where it is missing. */
char *run_state_folder(void);
/* The store in it: free() it. NULL as above. */
char *run_state_store(void);
/* Flushes the folder in which `path`, an absolute one, stands: after a power cut
 * the name is there. 0, or -1 and errno. */
int run_flush_name(const char *path);

/* ---- spool.c ------------------------------------------------------------ */

enum { RUN_SHA_SIZE = 32, RUN_FILE_SIZE = 80, RUN_ID_SIZE = 17 };

struct run_spool {
    int folder, fd; /* -1: not open */
    EVP_MD_CTX *md;
    uint64_t size;
    char part[RUN_FILE_SIZE], id[RUN_ID_SIZE];
    uint64_t fence;
};

/* Writes all of it. 0, or an errno. */
int run_write(int fd, const void *data, size_t size);

void run_spool_init(struct run_spool *s);
/* All return 0 or an errno. `id` is 16 digits of the record's name. */
int run_spool_open(struct run_spool *s, const char *id, uint64_t fence);
int run_spool_write(struct run_spool *s, const void *data, size_t size);
/* Makes it durable under a name that says until when it is needed. */
int run_spool_end(struct run_spool *s, uint64_t until_ms,
                  char name[RUN_FILE_SIZE], uint8_t sha[RUN_SHA_SIZE]);
/* Closes it; what was not ended is left as it is, for an operator to read. */
void run_spool_close(struct run_spool *s);
/* The same, and what was not ended is gone. */
void run_spool_discard(struct run_spool *s);
/* Opens a file of that name for reading: -1 and errno. */
int run_spool_find(const char *name);

/* ---- tape.c ------------------------------------------------------------- */

#define RUN_TYPE "application/vnd.once.run"

enum {
    RUN_INLINE_MAX = 1 << 20, /* bytes of output kept in the record itself */
    RUN_HEAD = 8,
    RUN_FRAME = 5, /* bytes in front of a chunk */
    RUN_HOST_MAX = 64
};

enum run_how { RUN_INLINE = 0, RUN_SPOOLED = 1, RUN_NOT_KEPT = 2 };

struct run_tape {
    uint8_t *data; /* head and frames, or NULL when spooled or lost */
    size_t size, room, last;
    struct run_spool spool;
    char id[RUN_ID_SIZE];
    uint64_t fence;
    int lost; /* an errno: it cannot be kept */
};

/* What is recorded, as it is read back; borrowed from the record. */
struct run_recording {
    int how;           /* enum run_how              */
    once_bytes frames; /* RUN_INLINE                */
    uint64_t size;     /* RUN_SPOOLED, from here on */
    const uint8_t *sha;
    char host[RUN_HOST_MAX + 1];
    char file[RUN_FILE_SIZE];
};

void run_tape_init(struct run_tape *t, const char *id, uint64_t fence);
void run_tape_add(struct run_tape *t, int stream, const uint8_t *data,
                  size_t size);
/* The bytes to record; valid until the tape is cleared. */
once_bytes run_tape_end(struct run_tape *t, uint64_t until_ms);
void run_tape_clear(struct run_tape *t);
/* What is recorded when nothing can be kept. */
once_bytes run_tape_none(void);

/* 0 if it is corrupt. */
int run_recording_read(once_bytes in, struct run_recording *out);
/* 1 and the next frame's stream and size, `*in` moved after its head; 0 at the
 * end; -1 if it is corrupt. The chunk itself is not looked at. */
int run_frame(const uint8_t head[RUN_FRAME], int *stream, uint32_t *size);

/* ---- replay.c ----------------------------------------------------------- */

/* Shows what was recorded: CLI_OK, or RUN_OUTPUT, said on stderr. */
int run_replay(const struct cli *c, const once_result *r);

/* ---- child.c ------------------------------------------------------------ */

/* What `once run` does with signals while it has a child. */
struct run_signals {
    sigset_t before; /* the mask of the child */
    struct sigaction chld, pipe;
    sigset_t ours;
    int fd; /* where they are read */
};

struct run_child {
    const struct run_signals *signals;
    char **command;
    int takeover;
    uint32_t attempt;
    uint64_t fence;
    struct run_tape *tape;

    pid_t pid;
    int reaped;
    int status; /* of waitpid() */
    int left;   /* another process still held its output when we stopped */
};

/* Takes the signals that are to be forwarded. */
int run_signals_take(struct run_signals *s);
/* 1 if one of them has come in. */
int run_signals_pending(const struct run_signals *s);
/* Lets it do what it does by default. */
void run_signals_give_back(const struct run_signals *s);

/* Starts the command and returns 0, or an errno: then nothing was started. */
int run_child_start(struct run_child *child, int from[2]);
/* Shows and records its output until it has ended. */
void run_child_follow(struct run_child *child, int from[2]);

#endif /* ONCE_ONCE_RUN_RUN_H */
