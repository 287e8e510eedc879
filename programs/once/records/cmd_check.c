/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cmd_check.c - `once check`: can this store be used, now? A canary.
 *
 * Does what a caller does, through the same engine and store, to a key that no
 * other process has: a claim, an outcome, a repeat that must get the same
 * bytes, another request that must not. Then it removes its record.
 *
 *    claim --> complete --> replay --> mismatch --> forget
 *      |          |            any of them fails: release, and status 3 or 4
 *      +----------+----------- killed here: claimed, the reaper frees it
 *
 * The claim is made in two phases and completed without a dispatch, and its
 * retention is zero. So a canary that is killed never leaves an
 * indeterminate record that an operator would have to resolve, and the next
 * purge removes what it left. Refuses to create a store.
 */
#include "programs/once/cli.h"

#include <string.h>
#include <time.h>

#include <sys/random.h>

#include "base/steady.h"

enum { FORGET_US = 1000000 };

/* clang-format off */
static const char help[] =
    "usage: once [--store URL] check [--timeout TIME] [--json]\n"
    "\n"
    "Sends a canary through the store: claims a key of its own, completes it, asks\n"
    "again, must get the same result, must be refused with another fingerprint,\n"
    "and forgets the key. For probes: status 0 if all of it went well, 3 if the\n"
    "store cannot be used, gave a wrong answer or refuses what is new (after a\n"
    "restore with --gap hold), 4 if it did not answer.\n"
    "\n"
    "  --timeout TIME   how long a store that does not answer is asked again (5s)\n"
    "  --json           one JSON object, also when it failed\n"
    "\n"
    "It prints whether the store is durable (an acknowledged record survives a\n"
    "crash), and if not, why; and the milliseconds of each step. The record is of\n"
    "group once-check and kept for no time at all: should the canary be killed,\n"
    "a gateway or once purge forgets it. Every record is read by once verify.\n";
/* clang-format on */

static const struct cli_option options[] = {
    CLI_COMMON_OPTIONS,
    {"timeout", "", .into = CLI_TIME},
    {.name = NULL},
};

enum { LEASE_MS = 30000, RESULT = 64 };

struct canary {
    uint8_t name[ONCE_NAME_SIZE];
    uint8_t fingerprint[ONCE_FINGERPRINT_SIZE];
    uint8_t token[ONCE_TOKEN_SIZE];
    uint8_t repeat[ONCE_TOKEN_SIZE]; /* of the attempt that comes later */
    uint8_t result[RESULT];
};

struct check {
    const struct cli *c;
    once_engine *e;
    uint32_t timeout_ms;
    struct canary canary;
    uint64_t fence;
    json_t *steps;
    int stays; /* its record could not be forgotten yet */
    int known; /* the store was opened: what is promised is known */
    struct cli_promise promise;
};

/* One operation on the canary's record, as the first attempt asks it. */
static once_op ask(const struct check *k, int verb)
{
    once_op op = {.verb = verb,
                  .kind = ONCE_SUCCESS,
                  .two_phase = 1,
                  .lease_ms = LEASE_MS,
                  .fence = k->fence,
                  .group = "once-check",
                  .result = {k->canary.result, RESULT},
                  .store_ms = k->timeout_ms};

    memcpy(op.name, k->canary.name, ONCE_NAME_SIZE);
    memcpy(op.token, k->canary.token, ONCE_TOKEN_SIZE);
    memcpy(op.fingerprint, k->canary.fingerprint, ONCE_FINGERPRINT_SIZE);
    if (verb != ONCE_OP_COMPLETE)
        op.result = (once_bytes){NULL, 0};
    return op;
}

static void report_step(struct check *k, const char *what, uint64_t us)
{
    const struct cli *c = k->c;

    if (c->json)
        json_array_append_new(k->steps, json_pack("{s:s, s:f}", "step", what,
                                                  "ms", (double)us / 1000));
    else
        printf(c->tty ? "%-14s%8.2f ms\n" : "%s\t%.2f\n", what,
               (double)us / 1000);
}

/* Whether `unknown` is right: the store was restored with --gap hold. */
static int say_held(const struct check *k)
{
    char until[CLI_TIME_SIZE];
    once_store_head head;

    if (once_head(k->e, &head, NULL) != ONCE_OK || head.gap != ONCE_GAP_HOLD)
        return 0;
    cli_time(head.gap_until_ms, until);
    cli_say(k->c, 0,
            "a gap is held open until %s: keys that are absent are refused as "
            "unknown, and nothing new is executed. See once restore",
            until);
    return 1;
}

/* Asks and expects one answer. The record's bytes are left in `op`. */
static int expect(struct check *k, const char *what, once_op *op, int answer)
{
    uint64_t start_us = once__steady_us();
    once_error err = {0, ""};
    int rc = once_apply(k->e, op, &err);

    if (rc < 0) {
        cli_say(k->c, 0, "%s: no good answer", what);
        return cli_trouble_of_change(k->c, rc, &err);
    }
    if (rc == ONCE_UNKNOWN && answer == ONCE_OWNER && say_held(k))
        return CLI_STORE;
    if (rc != answer)
        return cli_say(k->c, CLI_STORE,
                       "%s: the store answered \"%s\" where it had to answer "
                       "\"%s\". Do not use it, and look for what else writes "
                       "to it",
                       what, once_text(rc), once_text(answer));
    report_step(k, what, once__steady_us() - start_us);
    return CLI_OK;
}

static int simple(struct check *k, const char *what, int verb, int answer)
{
    once_op op = ask(k, verb);
    int rc = expect(k, what, &op, answer);

    if (rc == CLI_OK && verb == ONCE_OP_CLAIM)
        k->fence = op.record.fence;
    once_op_clear(&op);
    return rc;
}

/* Another attempt, with the same request: it must get the same bytes. */
static int replay(struct check *k)
{
    once_op op = ask(k, ONCE_OP_CLAIM);
    int rc;

    memcpy(op.token, k->canary.repeat, ONCE_TOKEN_SIZE);
    rc = expect(k, "replay", &op, ONCE_REPLAY);
    if (rc == CLI_OK &&
        (op.record.result.size != RESULT ||
         memcmp(op.record.result.data, k->canary.result, RESULT) != 0))
        rc = cli_say(k->c, CLI_STORE,
                     "replay: not the bytes that were stored. Do not use this "
                     "store, and look at the disk");
    once_op_clear(&op);
    return rc;
}

/* ... and another request must not. */
static int mismatch(struct check *k)
{
    once_op op = ask(k, ONCE_OP_CLAIM);
    int rc;

    memcpy(op.token, k->canary.repeat, ONCE_TOKEN_SIZE);
    op.fingerprint[0] ^= 1;
    rc = expect(k, "mismatch", &op, ONCE_MISMATCH);
    once_op_clear(&op);
    return rc;
}

/* The gateway's reaper may have been faster: then nothing is there. */
static int forget(struct check *k)
{
    const struct timespec pause = {0, 2000000};
    once_op op = ask(k, ONCE_OP_FORGET);
    uint64_t start_us = once__steady_us();
    once_error err = {0, ""};
    int rc;

    /* Elapsed store time may be some milliseconds behind. */
    while ((rc = once_apply(k->e, &op, &err)) >= 0 && rc != ONCE_OK &&
           op.record.attempt != 0 && once__steady_us() - start_us < FORGET_US) {
        once_op_clear(&op);
        (void)nanosleep(&pause, NULL);
    }
    if (rc < 0)
        rc = cli_trouble_of_change(k->c, rc, &err);
    else if (rc != ONCE_OK && op.record.attempt != 0) {
        k->stays = 1;
        rc = CLI_OK;
    } else {
        report_step(k, "forget", once__steady_us() - start_us);
        rc = CLI_OK;
    }
    once_op_clear(&op);
    return rc;
}

/* Whether that is right: the store's clock is ahead of the time that was seen to
 * pass. So it is after each start of the host. */
static int look_at_clock(const struct cli *c)
{
    once_clock clock = {.now_ms = 0};
    once_store *s = NULL;
    once_error err = {0, ""};
    int rc = cli_open_store(c, &s);

    if (rc != CLI_OK)
        return rc;
    rc = once_store_clock(s, &clock, &err);
    once_store_close(s);
    if (rc != ONCE_OK)
        return cli_trouble(c, rc, &err);
    if (clock.behind_ms < FORGET_US / 1000)
        return cli_say(c, CLI_STORE,
                       "forget: refused, though it was to be kept for no time. "
                       "Was the store's clock set back?");
    cli_say(c, 0,
            "its record stays for a while: the store's clock is ahead of "
            "elapsed store time. See once clock");
    return CLI_OK;
}

/* Frees the key after a failure, as far as the store lets us: by the token
 * alone, since the answer with the fence may be what is missing. */
static void release(struct check *k)
{
    once_op op = ask(k, ONCE_OP_RELEASE);

    op.fence = 0;
    if (once_apply(k->e, &op, NULL) < 0)
        cli_say(k->c, 0, "its record may stay: the next once purge forgets it");
    once_op_clear(&op);
}

static int run_canary(struct check *k)
{
    int rc = simple(k, "claim", ONCE_OP_CLAIM, ONCE_OWNER);

    if (rc == CLI_OK)
        rc = simple(k, "complete", ONCE_OP_COMPLETE, ONCE_OK);
    if (rc == CLI_OK)
        rc = replay(k);
    if (rc == CLI_OK)
        rc = mismatch(k);
    if (rc == CLI_OK)
        return forget(k);
    release(k);
    return rc;
}

static int check(struct check *k)
{
    const struct cli *c = k->c;
    uint64_t start_us = once__steady_us();
    int rc;

    if (getrandom(&k->canary, sizeof(k->canary), 0) !=
        (ssize_t)sizeof(k->canary))
        return cli_say(c, CLI_STORE, "no random numbers");
    rc = cli_promise(c, &k->promise);
    if (rc != CLI_OK)
        return rc;
    k->known = 1;
    rc = cli_open(c, &k->e);
    if (rc != CLI_OK)
        return rc;
    if (!c->json) {
        cli_line(c, "durable", k->promise.durable ? "yes" : "no");
        if (k->promise.caveat[0] != '\0')
            cli_line(c, "caveat", k->promise.caveat);
    }
    report_step(k, "open", once__steady_us() - start_us);
    rc = run_canary(k);
    once_engine_close(k->e);
    return rc == CLI_OK && k->stays ? look_at_clock(c) : rc;
}

static int report(struct check *k, int rc)
{
    const struct cli *c = k->c;
    int written;

    if (rc == CLI_USAGE)
        return rc;
    if (!c->json) {
        if (rc == CLI_OK)
            cli_line(c, "canary", "well");
        return rc;
    }
    written = cli_print_json(
        c, json_pack("{s:b, s:o, s:s?, s:O}", "ok", rc == CLI_OK, "durable",
                     k->known ? json_boolean(k->promise.durable) : json_null(),
                     "caveat", k->promise.caveat[0] ? k->promise.caveat : NULL,
                     "steps", k->steps));
    return rc != CLI_OK ? rc : written;
}

static int run(struct cli *c, int argc, char **argv)
{
    struct check k = {.c = c};
    uint64_t timeout_ms = CLI_STORE_MS;
    int rc = cli_read_args(c, argc, argv, NULL, &timeout_ms);

    if (rc == CLI_OK)
        rc = cli_no_operands(c, argc, "");
    if (rc != CLI_OK)
        return rc;
    if (timeout_ms > ONCE_LEASE_MAX_MS)
        return cli_usage(c, "--timeout is a time from 1s to 1h");
    k.timeout_ms = (uint32_t)timeout_ms;
    k.steps = json_array();
    rc = check(&k);
    rc = report(&k, rc);
    json_decref(k.steps);
    return rc;
}

const struct cli_command cli_cmd_check = {
    "check", "a canary for probes: claim, complete, replay",
    help,    options,
    NULL,    run};
