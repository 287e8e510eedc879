/* SPDX-License-Identifier: Apache-2.0 */
/*
 * seed.c - makes real records for test_cli.py, through the public interface,
 * and claims as a gateway would, to see what a client would get.
 *
 *    seed URL claimed|dispatched NAME LEASE_MS POLICY   prints the fence
 *    seed URL lost NAME POLICY                          indeterminate, likewise
 *    seed URL done NAME success|failure BYTES           completed, likewise
 *    seed URL many N                                    N completed records
 *    seed URL groups N                      the same, each in a group of its own
 *    seed URL claim NAME POLICY     prints the answer and a replayed response
 *
 * POLICY is a number, enum once_policy. The environment's ONCE_SEED_GROUP is
 * the group of what is claimed, ONCE_SEED_KEEP_MS how long it is kept (a day).
 * It knows one fingerprint and one token for each process, and refuses nothing:
 * a wrong use ends in exit status 2.
 */
#include <semaphore.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <once/once.h>

#include "calls/http/http.h"

enum { BATCH = 256 };

static void check(int ok, const char *what)
{
    if (!ok) {
        fprintf(stderr, "seed: %s\n", what);
        exit(2);
    }
}

static int apply(once_engine *e, once_op *op)
{
    once_error err = {0, ""};
    int rc = once_apply(e, op, &err);

    if (rc < 0)
        check(0, err.text);
    return rc;
}

static void read_name(const char *hex, uint8_t out[ONCE_NAME_SIZE])
{
    size_t i;

    check(strlen(hex) == 2 * ONCE_NAME_SIZE, "NAME has 64 digits");
    for (i = 0; i < ONCE_NAME_SIZE; i++) {
        char two[3] = {hex[2 * i], hex[2 * i + 1], '\0'};

        out[i] = (uint8_t)strtoul(two, NULL, 16);
    }
}

static once_op start(int verb, const uint8_t name[ONCE_NAME_SIZE])
{
    once_op op = {
        .verb = verb, .lease_ms = 30000, .keep_ms = 86400000, .store_ms = 5000};
    const char *group = getenv("ONCE_SEED_GROUP");
    const char *keep_ms = getenv("ONCE_SEED_KEEP_MS");
    pid_t pid = getpid();

    if (group != NULL)
        memcpy(op.group, group, strnlen(group, ONCE_GROUP_SIZE));
    if (keep_ms != NULL)
        op.keep_ms = strtoull(keep_ms, NULL, 10);
    memcpy(op.name, name, ONCE_NAME_SIZE);
    memcpy(op.token, &pid, sizeof(pid));
    memset(op.fingerprint, 7, ONCE_FINGERPRINT_SIZE);
    return op;
}

static uint64_t claim(once_engine *e, const uint8_t name[ONCE_NAME_SIZE],
                      int two_phase, const char *lease_ms, const char *policy)
{
    once_op op = start(ONCE_OP_CLAIM, name);
    uint64_t fence;

    op.two_phase = (uint32_t)two_phase;
    op.lease_ms = (uint32_t)strtoul(lease_ms, NULL, 10);
    op.policy = (uint32_t)strtoul(policy, NULL, 10);
    check(apply(e, &op) == ONCE_OWNER, "not the owner");
    fence = op.record.fence;
    once_op_clear(&op);
    return fence;
}

static void finish(once_engine *e, once_op op, uint64_t fence)
{
    op.fence = fence;
    check(apply(e, &op) == ONCE_OK, "refused");
    once_op_clear(&op);
}

static uint64_t done(once_engine *e, const uint8_t name[ONCE_NAME_SIZE],
                     const char *kind, const char *bytes)
{
    once_op op = start(ONCE_OP_COMPLETE, name);
    uint64_t fence = claim(e, name, 0, "30000", "0");

    op.kind = strcmp(kind, "failure") == 0 ? ONCE_FAILURE : ONCE_SUCCESS;
    op.result = (once_bytes){bytes, strlen(bytes)};
    finish(e, op, fence);
    return fence;
}

/* A batch is one flush, so a thousand records take no longer than a few. */
static void answered(once_op *op)
{
    check(sem_post(op->user) == 0, "no semaphore");
}

static void all(once_engine *e, once_op *ops, size_t n, int answer)
{
    sem_t end;
    size_t i;

    check(sem_init(&end, 0, 0) == 0, "no semaphore");
    for (i = 0; i < n; i++) {
        ops[i].done = answered;
        ops[i].user = &end;
        check(once_submit(e, &ops[i], NULL) == ONCE_OK, "not submitted");
    }
    for (i = 0; i < n; i++)
        while (sem_wait(&end) != 0)
            continue;
    for (i = 0; i < n; i++)
        check(ops[i].rc == answer, "another answer");
    sem_destroy(&end);
}

static uint64_t many(once_engine *e, unsigned long n)
{
    once_op ops[BATCH];
    uint64_t fence = 0;
    unsigned long at = 0;
    size_t i, k;

    for (; at < n; at += k) {
        k = n - at < BATCH ? n - at : BATCH;
        for (i = 0; i < k; i++) {
            uint8_t name[ONCE_NAME_SIZE] = {(uint8_t)((at + i) >> 8),
                                            (uint8_t)(at + i)};

            ops[i] = start(ONCE_OP_CLAIM, name);
        }
        all(e, ops, k, ONCE_OWNER);
        for (i = 0; i < k; i++) {
            fence = ops[i].record.fence;
            ops[i] = start(ONCE_OP_COMPLETE, ops[i].name);
            ops[i].fence = fence;
            ops[i].kind = ONCE_SUCCESS;
            ops[i].result = (once_bytes){"x", 1};
        }
        all(e, ops, k, ONCE_OK);
    }
    return fence;
}

static void print_response(once_bytes result)
{
    once__response r;
    once__header h;
    size_t at = 0;

    if (once__response_decode(result, &r, NULL) != ONCE_OK) {
        if (result.size > 0)
            fwrite(result.data, 1, result.size, stdout);
        return;
    }
    printf("%d%s\n", r.status, r.flags & ONCE__NO_BODY ? " no body" : "");
    while (once__response_next(&r, &at, &h))
        printf("%.*s: %.*s\n", (int)h.name.size, (const char *)h.name.data,
               (int)h.value.size, (const char *)h.value.data);
    putchar('\n');
    if (r.body.size > 0)
        fwrite(r.body.data, 1, r.body.size, stdout);
}

static uint64_t groups(once_engine *e, unsigned long n)
{
    uint64_t fence = 0;
    unsigned long i;

    for (i = 0; i < n; i++) {
        uint8_t name[ONCE_NAME_SIZE] = {(uint8_t)(i >> 8), (uint8_t)i};
        char group[ONCE_GROUP_SIZE];

        snprintf(group, sizeof(group), "group-%lu", i);
        check(setenv("ONCE_SEED_GROUP", group, 1) == 0, "no memory");
        fence = done(e, name, "success", "x");
    }
    return fence;
}

static void try_claim(once_engine *e, const uint8_t name[ONCE_NAME_SIZE],
                      const char *policy)
{
    once_op op = start(ONCE_OP_CLAIM, name);
    int rc;

    op.policy = (uint32_t)strtoul(policy, NULL, 10);
    rc = apply(e, &op);
    printf("answer %d kind %d\n", rc, op.record.kind);
    if (rc == ONCE_REPLAY)
        print_response(op.record.result);
    once_op_clear(&op);
}

static void run(once_engine *e, int argc, char **argv)
{
    const char *verb = argv[2];
    uint8_t name[ONCE_NAME_SIZE];
    uint64_t fence = 0;

    if (argc == 4 && strcmp(verb, "many") == 0) {
        fence = many(e, strtoul(argv[3], NULL, 10));
    } else if (argc == 4 && strcmp(verb, "groups") == 0) {
        fence = groups(e, strtoul(argv[3], NULL, 10));
    } else {
        read_name(argv[3], name);
        if (argc == 5 && strcmp(verb, "claim") == 0) {
            try_claim(e, name, argv[4]);
            return;
        }
        if (argc == 6 && strcmp(verb, "claimed") == 0)
            fence = claim(e, name, 1, argv[4], argv[5]);
        else if (argc == 6 && strcmp(verb, "dispatched") == 0)
            fence = claim(e, name, 0, argv[4], argv[5]);
        else if (argc == 5 && strcmp(verb, "lost") == 0) {
            fence = claim(e, name, 0, "30000", argv[4]);
            finish(e, start(ONCE_OP_GIVE_UP, name), fence);
        } else if (argc == 6 && strcmp(verb, "done") == 0)
            fence = done(e, name, argv[4], argv[5]);
    }
    check(fence != 0, "see the top of seed.c for the usage");
    printf("%llu\n", (unsigned long long)fence);
}

int main(int argc, char **argv)
{
    once_engine_options options = ONCE_ENGINE_OPTIONS_INIT;
    once_engine *e = NULL;
    once_error err = {0, ""};

    check(argc >= 4, "see the top of seed.c for the usage");
    options.no_reaper = 1;
    options.create = 1;
    if (once_engine_open(argv[1], &options, &err, &e) < 0)
        check(0, err.text);
    run(e, argc, argv);
    once_engine_close(e);
    return 0;
}
