/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cmd_consume.c - `once consume`: hands messages of a broker to a command, or to
 * one SQL statement, until it is told to stop.
 *
 *    --effect outside   once_call(), key = id --> command    claimed afterwards
 *    --effect inside    command, which claims itself         looked up
 *    --sql              a statement in the inbox's own transaction
 *
 * What the command's end means is in the table of its help page. The command
 * gets the body on its standard input; id, key and type are in its environment
 * and never in its arguments.
 *
 * All it adds to once/relay.h and once/call.h is a command line, signals and
 * standard error.
 */
#include "cli.h"

#include <errno.h>
#include <signal.h>
#include <sqlite3.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <sys/signalfd.h>
#include <sys/wait.h>

#include <once/call.h>
#include <once/relay.h>

#include "broker/command.h"
#include "run/run.h"

#ifdef ONCE_WITH_POSTGRES
#include <libpq-fe.h>
#endif

/* clang-format off */
static const char help[] =
    "usage: once consume --store URL --from BROKER --consumer NAME [OPTION ...]\n"
    "                    -- COMMAND [ARGUMENT ...]   (or: --sql STATEMENT)\n"
    "Has each message's effect once, until SIGTERM. BROKER is amqp://HOST/V?queue=Q,\n"
    "nats://HOST/?stream=S&durable=D, redis://HOST/?stream=S&group=G, or @FILE for a\n"
    "URL with a password. COMMAND gets the body as input, and ONCE_ID, ONCE_KEY,\n"
    "ONCE_TYPE, ONCE_ATTEMPT. It ends with 0: done; 75: not now; 65: never; other:\n"
    "failed, runs again. Killed: nobody knows, kept as indeterminate. man 1 once\n"
    "  --effect outside   not in the database: each run is a call (default), or\n"
    "           inside    COMMAND calls once.inbox_claim() in its own transaction\n"
    "  --sql STATEMENT    in the inbox's transaction: $1 id, $2 body, $3 key, $4 type\n"
    "  --calls URL        store of the calls (ONCE_CALLS, or that of once run)\n"
    "  --lost takeover    a lost command runs again: the effect knows its key\n"
    "  --workers N        side by side (1)\n"
    "  --batch N          --sql: messages in one transaction (1)\n"
    "  --keyed            those of one key in order; one worker, one process\n"
    "  --attempts N       begun so often, a parked message is dead (10)\n"
    "  --first TIME       the first pause (1s); --longest TIME (1h)\n"
    "  --lease TIME       above the slowest command (5m)\n"
    "  --drain TIME       end when nothing came for so long and nothing waits\n"
    "  --metrics FILE     for Prometheus, each ten seconds; --ca FILE: TLS\n"
    "Status 0: stopped or drained. 1: drained, dead or indeterminate ones are left.\n"
    "2: usage. 3: the database will not do.\n";
/* clang-format on */

enum {
    OPT_FROM = 1,
    OPT_CONSUMER,
    OPT_EFFECT,
    OPT_SQL,
    OPT_CALLS,
    OPT_LOST,
    OPT_WORKERS,
    OPT_BATCH,
    OPT_KEYED,
    OPT_ATTEMPTS,
    OPT_FIRST,
    OPT_LONGEST,
    OPT_LEASE,
    OPT_DRAIN,
    OPT_METRICS,
    OPT_CA,
    DAY_MS = 86400000,
    SLICE_MS = 1000,
    STORE_MS = 5000,
    CALL_LEASE_MS = 30000,
    EXIT_DEAD = 65, /* EX_DATAERR */
    EXIT_AGAIN = 75 /* EX_TEMPFAIL */
};

static const struct cli_option options[] = {
    CLI_STORE_OPTION,
    CLI_HELP_OPTION,
    {"from", "", OPT_FROM},
    {"consumer", "", OPT_CONSUMER},
    {"effect", "outside inside", OPT_EFFECT},
    {"sql", "", OPT_SQL},
    {"calls", CLI_SCHEMES, OPT_CALLS},
    {"lost", "hold takeover", OPT_LOST},
    {"workers", "", OPT_WORKERS},
    {"batch", "", OPT_BATCH},
    {"keyed", NULL, OPT_KEYED},
    {"attempts", "", OPT_ATTEMPTS},
    {"first", "", OPT_FIRST},
    {"longest", "", OPT_LONGEST},
    {"lease", "", OPT_LEASE},
    {"drain", "", OPT_DRAIN},
    {"metrics", CLI_FILES, OPT_METRICS},
    {"ca", CLI_FILES, OPT_CA},
    {NULL, NULL, 0},
};

struct consume {
    struct cli *c;
    once_consumer_options o;
    const char *from, *calls, *sql;
    int inside, said_effect, takeover;
    char **command;
    char *memory[3];
    size_t n_memory;
    once_engine *engine;
    sigset_t signals;
    _Atomic int store_away; /* the store of calls, and that was said */
};

/* ---- A command -------------------------------------------------------------- */

static void run_command(const struct consume *k, const once_message *m,
                        struct once__command_end *end)
{
    char attempt[16];
    struct once__command command = {
        .argv = k->command,
        .vars = {"ONCE_ID=", "ONCE_KEY=", "ONCE_TYPE=", "ONCE_ATTEMPT=",
                 "ONCE_CONSUMER="},
        .values = {m->id, m->key, m->type, attempt, m->consumer},
        .input = m->body,
        .output = STDOUT_FILENO,
    };

    (void)snprintf(attempt, sizeof(attempt), "%u", m->attempt);
    once__command_run(&command, end);
    if (end->error != 0)
        cli_say(k->c, 0, "the command cannot be started: %s",
                strerror(end->error));
}

/* The command claims by itself: what its end says is looked up. */
static int handle_inside(const once_tx *tx, const once_message *m, void *user)
{
    struct once__command_end end;

    (void)tx;
    run_command(user, m, &end);
    if (end.error != 0 || end.status < 0 || !WIFEXITED(end.status))
        return ONCE_AGAIN;
    switch (WEXITSTATUS(end.status)) {
    case 0:
        return ONCE_OK;
    case EXIT_DEAD:
        return ONCE_DEAD;
    default:
        return ONCE_AGAIN;
    }
}

struct call {
    const struct consume *k;
    const once_message *m;
};

static int work(once_task *task, void *user)
{
    struct call *call = user;
    struct once__command_end end;

    run_command(call->k, call->m, &end);
    if (end.error != 0) {
        once_task_release(task);
        return EXIT_AGAIN;
    }
    if (end.status < 0 || !WIFEXITED(end.status)) {
        once_task_unknown(task);
        return 1;
    }
    if (WEXITSTATUS(end.status) == EXIT_AGAIN)
        once_task_release(task);
    return WEXITSTATUS(end.status);
}

/* The signals are blocked, and nobody takes them: once told, told for ever. */
static int must_stop(void)
{
    sigset_t now;

    return sigpending(&now) == 0 &&
           (sigismember(&now, SIGTERM) || sigismember(&now, SIGINT));
}

/* 1: the store did not answer, and nothing was done by this call. */
static int is_away(int rc)
{
    return rc == ONCE_ESTORE || rc == ONCE_EBUSY || rc == ONCE_EAWAY ||
           rc == ONCE_EFULL || rc == ONCE_ENOMEM;
}

/* A store that is away says nothing against the message: it is waited for. So is
 * another run of it, which ends within its lease. */
static int call_until_answered(struct consume *k, once_call_options *o,
                               struct call *call, once_result *r)
{
    uint64_t end = cli_steady_us() / 1000 + 2 * CALL_LEASE_MS;
    int rc;

    for (;;) {
        once_error err = {0, ""};

        once_result_clear(r);
        rc = once_call(k->engine, o, work, call, &err, r);
        if (is_away(rc)) {
            if (!atomic_exchange(&k->store_away, 1))
                cli_say(k->c, 0, "the store of calls: %s; waiting for it",
                        err.text);
            (void)usleep(SLICE_MS * 1000);
        } else if (atomic_exchange(&k->store_away, 0)) {
            cli_say(k->c, 0, "the store of calls answers again");
        }
        if (must_stop() || (!is_away(rc) && rc != ONCE_IN_FLIGHT) ||
            (rc == ONCE_IN_FLIGHT && cli_steady_us() / 1000 > end))
            return rc;
    }
}

static int answer_of(const struct consume *k, int rc, const once_result *r)
{
    switch (rc) {
    case ONCE_OK:
    case ONCE_REPLAY:
    case ONCE_REPEATED: /* an operator's word, without a result */
        return r->code == 0           ? ONCE_OK
               : r->code == EXIT_DEAD ? ONCE_DEAD
                                      : ONCE_AGAIN;
    case ONCE_UNKNOWN:
        return ONCE_UNKNOWN;
    case ONCE_MISMATCH:
        cli_say(k->c, 0, "an id has a call with another body");
        return ONCE_DEAD;
    default:
        return ONCE_AGAIN;
    }
}

static int handle_outside(const once_tx *tx, const once_message *m, void *user)
{
    struct consume *k = user;
    struct call call = {k, m};
    once_call_options o = ONCE_CALL_OPTIONS_INIT;
    once_result r = ONCE_RESULT_INIT;
    int rc;

    (void)tx;
    o.group = m->consumer;
    o.key = (once_bytes){m->id, strlen(m->id)};
    o.fingerprint = m->body;
    o.retry_failed = 1;
    o.takeover = (uint32_t)k->takeover;
    o.two_phase = 1;
    o.wait_ms = SLICE_MS;
    o.lease_ms = CALL_LEASE_MS;
    o.store_ms = STORE_MS;
    o.keep_ms = UINT64_C(7) * DAY_MS;
    rc = call_until_answered(k, &o, &call, &r);
    rc = answer_of(k, rc, &r);
    once_result_clear(&r);
    return rc;
}

/* ---- A statement --------------------------------------------------------------- */

#ifdef ONCE_WITH_POSTGRES
enum { TEXT_OID = 25, BYTEA_OID = 17, PARAMETERS = 4 };

static int execute_postgres(const struct consume *k, PGconn *conn,
                            const once_message *m)
{
    const Oid types[PARAMETERS] = {TEXT_OID, BYTEA_OID, TEXT_OID, TEXT_OID};
    const char *values[PARAMETERS] = {
        m->id, m->body.size == 0 ? "" : m->body.data, m->key, m->type};
    const int lengths[PARAMETERS] = {0, (int)m->body.size, 0, 0};
    const int formats[PARAMETERS] = {0, 1, 0, 0};
    PGresult *r = PQexecParams(conn, k->sql, PARAMETERS, types, values, lengths,
                               formats, 0);
    ExecStatusType status = PQresultStatus(r);
    const char *state = PQresultErrorField(r, PG_DIAG_SQLSTATE);
    int good = status == PGRES_COMMAND_OK || status == PGRES_TUPLES_OK;

    if (!good)
        cli_say(k->c, 0, "the statement has failed: SQLSTATE %s",
                state == NULL ? "none, the connection was lost" : state);
    PQclear(r);
    return good ? ONCE_OK : ONCE_AGAIN;
}
#endif

/* Which of the four a parameter is: ?2 and $2 say so, a bare ? is counted.
 * SQLite itself would count $2, too. */
static int number_of(sqlite3_stmt *q, int at)
{
    const char *name = sqlite3_bind_parameter_name(q, at);

    if (name == NULL)
        return at;
    return name[1] >= '1' && name[1] <= '4' && name[2] == '\0' ? name[1] - '0'
                                                               : 0;
}

static int bind(sqlite3_stmt *q, const once_message *m)
{
    const char *const texts[] = {m->id, NULL, m->key, m->type};
    int n = sqlite3_bind_parameter_count(q), i, rc = SQLITE_OK;

    for (i = 1; i <= n && rc == SQLITE_OK; i++) {
        int number = number_of(q, i);

        if (number == 2)
            rc =
                sqlite3_bind_blob64(q, i, m->body.size == 0 ? "" : m->body.data,
                                    m->body.size, SQLITE_STATIC);
        else if (number >= 1 && number <= 4)
            rc = sqlite3_bind_text(q, i, texts[number - 1], -1, SQLITE_STATIC);
        else
            rc = SQLITE_RANGE;
    }
    return rc;
}

/* Every statement of the text. */
static int execute_sqlite(const struct consume *k, sqlite3 *db,
                          const once_message *m)
{
    const char *at = k->sql;
    int rc = SQLITE_OK;

    while (rc == SQLITE_OK && *at != '\0') {
        sqlite3_stmt *q = NULL;

        rc = sqlite3_prepare_v2(db, at, -1, &q, &at);
        if (rc != SQLITE_OK || q == NULL)
            break;
        rc = bind(q, m);
        if (rc == SQLITE_OK)
            do
                rc = sqlite3_step(q);
            while (rc == SQLITE_ROW);
        (void)sqlite3_finalize(q);
        rc = rc == SQLITE_DONE ? SQLITE_OK : rc;
    }
    if (rc != SQLITE_OK)
        cli_say(k->c, 0, "the statement has failed: %s", sqlite3_errstr(rc));
    return rc == SQLITE_OK ? ONCE_OK : ONCE_AGAIN;
}

static int handle_sql(const once_tx *tx, const once_message *m, void *user)
{
#ifdef ONCE_WITH_POSTGRES
    if (tx->postgres != NULL)
        return execute_postgres(user, tx->postgres, m);
#endif
    return execute_sqlite(user, tx->sqlite, m);
}

/* ---- The command line ------------------------------------------------------------ */

static int read_url(struct consume *k, const char *what, const char *text,
                    const char **out)
{
    int rc = cli_read_secret(k->c, what, text, out, &k->memory[k->n_memory]);

    if (k->memory[k->n_memory] != NULL)
        k->n_memory++;
    return rc;
}

static int take_choice(const struct cli *c, const char *what, const char *zero,
                       const char *one, int *out)
{
    if (strcmp(optarg, zero) != 0 && strcmp(optarg, one) != 0)
        return cli_usage(c, "%s is %s or %s", what, zero, one);
    *out = strcmp(optarg, one) == 0;
    return CLI_OK;
}

static int take_of_consumer(const struct cli *c, once_consumer_options *o,
                            int option)
{
    switch (option) {
    case OPT_WORKERS:
        return cli_read_u32(c, "--workers", optarg, ONCE_WORKERS_MAX,
                            &o->workers);
    case OPT_BATCH:
        return cli_read_u32(c, "--batch", optarg, 1000, &o->batch);
    case OPT_KEYED:
        o->keyed = 1;
        return CLI_OK;
    case OPT_ATTEMPTS:
        return cli_read_u32(c, "--attempts", optarg, 1000000, &o->attempts);
    case OPT_FIRST:
        return cli_read_ms(c, "--first", optarg, &o->first_ms);
    case OPT_LONGEST:
        return cli_read_ms(c, "--longest", optarg, &o->most_ms);
    case OPT_LEASE:
        return cli_read_ms(c, "--lease", optarg, &o->lease_ms);
    case OPT_DRAIN:
        return cli_read_ms(c, "--drain", optarg, &o->drain_ms);
    case OPT_METRICS:
        o->metrics = optarg;
        return CLI_OK;
    default:
        o->ca_file = optarg;
        return CLI_OK;
    }
}

static int take(const struct cli *c, void *user, int option)
{
    struct consume *k = user;

    switch (option) {
    case OPT_FROM:
        k->from = optarg;
        return CLI_OK;
    case OPT_CONSUMER:
        k->o.consumer = optarg;
        return CLI_OK;
    case OPT_EFFECT:
        k->said_effect = 1;
        return take_choice(c, "--effect", "outside", "inside", &k->inside);
    case OPT_SQL:
        k->sql = optarg;
        return CLI_OK;
    case OPT_CALLS:
        k->calls = optarg;
        return CLI_OK;
    case OPT_LOST:
        return take_choice(c, "--lost", "hold", "takeover", &k->takeover);
    default:
        return take_of_consumer(c, &k->o, option);
    }
}

static int check(struct consume *k)
{
    const struct cli *c = k->c;
    uint8_t group[ONCE_GROUP_SIZE];
    int outside = k->sql == NULL && !k->inside;

    if (k->o.consumer == NULL || k->from == NULL)
        return cli_usage(c, "say --from BROKER and --consumer NAME");
    if ((k->sql != NULL) == (k->command != NULL))
        return cli_usage(c, "say either -- COMMAND or --sql STATEMENT");
    if (k->sql != NULL && k->said_effect)
        return cli_usage(c, "--effect is of a command alone");
    if (!outside && (k->calls != NULL || k->takeover))
        return cli_usage(c, "--calls and --lost are of --effect outside alone");
    if (k->sql == NULL && k->o.batch > 1)
        return cli_usage(c, "--batch is of --sql alone");
    if (cli_url(c) == NULL)
        return cli_usage(c, "which database? Say --store URL or set "
                            "ONCE_STORE");
    /* The consumer's name is the group of its calls. */
    return outside ? cli_read_group(c, k->o.consumer, group) : CLI_OK;
}

static int read_args(struct consume *k, int argc, char **argv)
{
    int end = 1, rc;

    while (end < argc && strcmp(argv[end], "--") != 0)
        end++;
    rc = cli_read_args(k->c, end, argv, take, k);
    if (rc != CLI_OK)
        return rc;
    if (optind < end || end + 1 == argc)
        return cli_usage(k->c, "the command comes after --, after all "
                               "options");
    if (end < argc)
        k->command = argv + end + 1;
    rc = check(k);
    if (rc == CLI_OK)
        rc = read_url(k, "--from", k->from, &k->o.from);
    if (rc == CLI_OK && k->calls == NULL)
        k->calls = getenv("ONCE_CALLS");
    if (rc == CLI_OK && k->calls != NULL)
        rc = read_url(k, "--calls", k->calls, &k->calls);
    return rc;
}

/* ---- The command -------------------------------------------------------------------- */

/* One call, so that lines of several threads do not mix. */
static void say(void *user, const char *text)
{
    (void)user;
    fprintf(stderr, "once consume: %s\n", text);
}

static int open_calls(struct consume *k)
{
    once_error err = {0, ""};
    int rc;

    if (k->calls == NULL) {
        k->memory[k->n_memory] = run_state_store();
        k->calls = k->memory[k->n_memory];
        if (k->calls == NULL)
            return cli_say(k->c, CLI_STORE,
                           "no folder for the store of calls; say --calls "
                           "URL");
        k->n_memory++;
    }
    if (cli_in_process(k->calls))
        return cli_usage(k->c, "--calls: memory: is gone when this process "
                               "ends");
    rc = once_engine_open(k->calls, NULL, &err, &k->engine);
    return rc < 0 ? cli_trouble(k->c, rc, &err) : CLI_OK;
}

static int status_of(const struct cli *c, int rc, const once_error *err)
{
    if (rc == ONCE_OK)
        return CLI_OK;
    if (rc == ONCE_DEAD)
        return cli_say(c, CLI_NO,
                       "dead or indeterminate messages are left: once parked "
                       "ls");
    if (rc == ONCE_EURL) /* not one of a store, as cli_trouble() would say */
        return cli_usage(c, "%s", err->text);
    return cli_trouble(c, rc, err);
}

static int consume(struct consume *k)
{
    once_handler *handler = k->sql != NULL ? handle_sql
                            : k->inside    ? handle_inside
                                           : handle_outside;
    once_error err = {0, ""};
    int rc;

    (void)signal(SIGPIPE, SIG_IGN);
    (void)signal(SIGCHLD, SIG_DFL);
    (void)sigemptyset(&k->signals);
    (void)sigaddset(&k->signals, SIGINT);
    (void)sigaddset(&k->signals, SIGTERM);
    (void)sigprocmask(SIG_BLOCK, &k->signals, NULL);
    k->o.stop_fd = signalfd(-1, &k->signals, SFD_CLOEXEC);
    if (k->o.stop_fd < 0)
        return cli_say(k->c, CLI_STORE, "no descriptor for signals");
    k->o.db = cli_url(k->c);
    k->o.inside = handler == handle_inside;
    k->o.outside = handler == handle_outside;
    k->o.log = say;
    rc = handler == handle_outside ? open_calls(k) : CLI_OK;
    if (rc == CLI_OK) {
        rc = once_consume(&k->o, handler, k, &err);
        rc = status_of(k->c, rc, &err);
    }
    once_engine_close(k->engine);
    (void)close(k->o.stop_fd);
    return rc;
}

static int run(struct cli *c, int argc, char **argv)
{
    struct consume k = {.c = c};
    int rc;

    k.o = (once_consumer_options)ONCE_CONSUMER_OPTIONS_INIT;
    rc = read_args(&k, argc, argv);
    if (rc == CLI_OK)
        rc = consume(&k);
    while (k.n_memory > 0)
        free(k.memory[--k.n_memory]);
    return rc;
}

const struct cli_command cli_cmd_consume = {
    "consume", "hand messages of a broker to a command", help, options, NULL,
    run};
