/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_operate.c - decisions about records, on a store in memory: what is
 * written down before, and that nothing is decided without it.
 */
#include "operate/operate.h"

#include <unistd.h>

#include <sys/stat.h>

#include "t.h"

static char folder[64], log_path[96];
static once_engine *engine;

static void check(int ok, const char *what)
{
    if (!ok) {
        printf("Bail out! %s\n", what);
        exit(1);
    }
}

static void open_all(void)
{
    once_engine_options options = ONCE_ENGINE_OPTIONS_INIT;
    once_error err;

    snprintf(folder, sizeof(folder), "/tmp/test-operate-XXXXXX");
    check(mkdtemp(folder) != NULL, "mkdtemp");
    snprintf(log_path, sizeof(log_path), "%s/audit.jsonl", folder);
    options.no_reaper = 1;
    check(once_engine_open("memory:", &options, &err, &engine) == ONCE_OK,
          "open");
}

static void close_all(void)
{
    once_engine_close(engine);
    (void)unlink(log_path);
    (void)rmdir(folder);
}

/* ---- Records -------------------------------------------------------------- */

static uint64_t apply(int verb, uint8_t number, uint64_t fence)
{
    once_op op = {.verb = verb,
                  .lease_ms = 30000,
                  .keep_ms = 60000,
                  .store_ms = 5000,
                  .fence = fence};
    once_error err = {0, ""};

    memset(op.name, number, sizeof(op.name));
    memset(op.token, 1, sizeof(op.token));
    op.reason = verb == ONCE_OP_GIVE_UP ? ONCE_REASON_RESET : ONCE_REASON_NONE;
    if (once_apply(engine, &op, &err) < 0)
        printf("#   %s\n", err.text);
    fence = op.record.fence;
    once_op_clear(&op);
    return fence;
}

/* An indeterminate record. */
static uint64_t lost(uint8_t number)
{
    uint64_t fence = apply(ONCE_OP_CLAIM, number, 0);

    (void)apply(ONCE_OP_GIVE_UP, number, fence);
    return fence;
}

static int state_of(uint8_t number)
{
    uint8_t name[ONCE_NAME_SIZE];
    once_error err;
    once_op op;
    int state;

    memset(name, number, sizeof(name));
    check(once__look(engine, name, &op, &err) >= 0, "look");
    state = op.record.state;
    once_op_clear(&op);
    return state;
}

/* ---- Decisions -------------------------------------------------------------- */

static const once__audit_who me = {1000, -1, "alice", "a test"};

static int decide(once__audit *log, uint8_t number, uint64_t fence, int dry)
{
    once__resolution r = {.fence = fence,
                          .action = ONCE__APPLIED,
                          .keep_ms = 60000,
                          .why = "ticket 12",
                          .program = "test",
                          .who = &me,
                          .audit = log,
                          .dry = dry};
    once_error err = {0, ""};
    once_op now;
    int rc;

    memset(r.name, number, sizeof(r.name));
    rc = once__resolve(engine, &r, &now, &err);
    once_op_clear(&now);
    return rc;
}

static int count(void *user, const once__audit_line *line)
{
    char *steps = user;
    const char *step = json_string_value(json_object_get(line->json, "step"));

    if (strlen(steps) < 30 && step != NULL)
        steps[strlen(steps)] = step[0];
    return 0;
}

/* The first letters of the steps in the log: "l" for what is its own. */
static void steps(const char *want)
{
    char got[40] = "";
    once_error err = {0, ""};

    T_EQ(once__audit_read(log_path, count, got, &err), ONCE_OK);
    T_STR(got, want);
    (void)unlink(log_path);
}

static void a_decision_has_an_intent_and_an_end(void)
{
    uint64_t fence = lost(1);
    once_error err;
    once__audit *log = NULL;

    T_EQ(once__audit_open(log_path, &err, &log), ONCE_OK);
    T_EQ(decide(log, 1, fence, 0), ONCE__RESOLVED);
    T_EQ(state_of(1), ONCE_COMPLETED);
    steps("lid");
    once__audit_close(log);
}

static void a_dry_run_changes_and_writes_nothing(void)
{
    uint64_t fence = lost(2);

    T_EQ(decide(NULL, 2, fence, 1), ONCE__RESOLVED);
    T_EQ(decide(NULL, 2, fence + 1, 1), ONCE__UNRESOLVED_FENCE);
    T_EQ(state_of(2), ONCE_INDETERMINATE);
    T_OK(access(log_path, F_OK) < 0);
}

/* The log's folder is taken away after it was opened. */
static void nothing_is_decided_without_an_intent(void)
{
    uint64_t fence = lost(3);
    once_error err;
    once__audit *log = NULL;

    T_EQ(once__audit_open(log_path, &err, &log), ONCE_OK);
    T_EQ(mkdir(log_path, 0700), 0); /* no file can be there */
    T_OK(decide(log, 3, fence, 0) < 0);
    T_EQ(state_of(3), ONCE_INDETERMINATE);
    T_EQ(rmdir(log_path), 0);
    T_EQ(decide(log, 3, fence, 0), ONCE__RESOLVED);
    steps("lid");
    once__audit_close(log);
}

struct seen {
    size_t n, most;
    int rc[8];
};

static int see(void *user, size_t i, int rc, const once__resolution *what,
               const once_record *now, const once_error *err)
{
    struct seen *s = user;

    (void)what;
    (void)now;
    (void)err;
    T_EQ(i, s->n);
    s->rc[s->n++] = rc;
    return s->n == s->most;
}

static void a_batch_goes_on_after_a_refusal(void)
{
    once__resolution what = {.action = ONCE__APPLIED,
                             .keep_ms = 60000,
                             .why = "ticket 12",
                             .program = "test",
                             .who = &me};
    once__batch_line lines[4];
    struct seen seen = {.most = 8};
    once_error err;
    size_t i;

    for (i = 0; i < 4; i++) {
        memset(lines[i].name, (int)(4 + i), ONCE_NAME_SIZE);
        lines[i].fence = lost((uint8_t)(4 + i)) + (i == 1);
        lines[i].attempt = 0;
    }
    T_EQ(once__audit_open(log_path, &err, &what.audit), ONCE_OK);
    seen.most = 3;
    T_EQ(once__resolve_batch(engine, &what, lines, 4, see, &seen),
         ONCE_ECLOSED);
    T_EQ(seen.n, 3);
    T_EQ(state_of(7), ONCE_INDETERMINATE);
    seen = (struct seen){.most = 8};
    T_EQ(once__resolve_batch(engine, &what, lines, 4, see, &seen), ONCE_OK);
    T_EQ(seen.n, 4);
    T_EQ(seen.rc[0], ONCE__UNRESOLVED_STATE); /* done before */
    T_EQ(seen.rc[1], ONCE__UNRESOLVED_FENCE);
    T_EQ(seen.rc[3], ONCE__RESOLVED);
    steps("lididid");
    /* Where nothing can be written down it stops at once. */
    T_EQ(mkdir(log_path, 0700), 0);
    seen = (struct seen){.most = 8};
    lines[1].fence--;
    T_OK(once__resolve_batch(engine, &what, lines + 1, 3, see, &seen) < 0);
    T_EQ(seen.n, 1);
    T_EQ(state_of(5), ONCE_INDETERMINATE);
    T_EQ(rmdir(log_path), 0);
    once__audit_close(what.audit);
}

static int name_of(const char *method, const char *path, const char *key,
                   uint8_t *out)
{
    once__request r = {.scope = {"s", 1},
                       .realm = {"pay.example", 11},
                       .method = {method, strlen(method)},
                       .path = {path, strlen(path)},
                       .key = {key, strlen(key)}};
    once_error err = {0, ""};

    return once__request_name(&r, out, &err);
}

static void a_request_has_one_name_however_it_is_written(void)
{
    uint8_t a[ONCE_NAME_SIZE], b[ONCE_NAME_SIZE];

    T_EQ(name_of("", "", "k1", a), ONCE_OK);
    T_EQ(name_of("", "", "\"k1\"", b), ONCE_OK);
    T_MEM(a, b, sizeof(a));
    T_EQ(name_of("", "", "", b), ONCE_EINVAL);
    T_EQ(name_of("", "", "a, b", b), ONCE_EINVAL);
}

static void a_request_of_a_path_has_its_method_and_path_in_the_name(void)
{
    uint8_t a[ONCE_NAME_SIZE], b[ONCE_NAME_SIZE];

    T_EQ(name_of("POST", "/pay", "k1", a), ONCE_OK);
    T_EQ(name_of("POST", "/pay?x=1", "\"k1\"", b), ONCE_OK);
    T_MEM(a, b, sizeof(a));
    T_EQ(name_of("POST", "/pay%2F", "k1", b), ONCE_OK);
    T_OK(memcmp(a, b, sizeof(a)) != 0);
    T_EQ(name_of("PATCH", "/pay", "k1", b), ONCE_OK);
    T_OK(memcmp(a, b, sizeof(a)) != 0);
    T_EQ(name_of("", "", "k1", b), ONCE_OK);
    T_OK(memcmp(a, b, sizeof(a)) != 0);
    T_EQ(name_of("POST", "pay", "k1", b), ONCE_EINVAL);
    T_EQ(name_of("POST", "?x=1", "k1", b), ONCE_EINVAL);
    T_EQ(name_of("POST", "", "k1", b), ONCE_EINVAL);
    T_EQ(name_of("", "/pay", "k1", b), ONCE_EINVAL);
}

int main(void)
{
    open_all();
    T_RUN(a_decision_has_an_intent_and_an_end);
    T_RUN(a_dry_run_changes_and_writes_nothing);
    T_RUN(nothing_is_decided_without_an_intent);
    T_RUN(a_batch_goes_on_after_a_refusal);
    T_RUN(a_request_has_one_name_however_it_is_written);
    T_RUN(a_request_of_a_path_has_its_method_and_path_in_the_name);
    close_all();
    return t_done();
}
