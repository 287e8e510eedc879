/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cmd_consume.c - `once messages consume`: hands messages of a broker to a
 * command, or to one SQL statement, until it is told to stop.
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
#include "programs/once/cli.h"

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

#include "base/steady.h"
#include "messages/broker/command.h"
#include "programs/once/messages/base.h"
#include "programs/once/run/run.h"

#ifdef ONCE_WITH_POSTGRES
#include <libpq-fe.h>
#endif
#ifdef ONCE_WITH_MYSQL
#include "programs/once/messages/statement.h"
#endif

/* clang-format off */
static const char help[] =
    "usage: once messages consume --from BROKER --consumer NAME [OPTION ...]\n"
    "                    -- COMMAND [ARGUMENT ...]   (or: --sql STATEMENT)\n"
    "Has each message's effect once, until SIGTERM. BROKER is amqp://HOST/V?queue=Q,\n"
    "nats://HOST/?stream=S&durable=D, redis://HOST/?stream=S&group=G,\n"
    "kafka://HOSTS/TOPIC?group=G, or @FILE for a URL with a password. COMMAND gets\n"
    "the body as input, and ONCE_ID, ONCE_KEY, ONCE_TYPE, ONCE_ATTEMPT. It ends with\n"
    "0: done; 75: not now; 65: never; other: failed, runs again. Killed: outside it\n"
    "is kept as indeterminate, inside it runs again. man 1 once\n"
    "  --effect outside   not in the database: each run is a call (default), or\n"
    "           inside    COMMAND calls once.inbox_claim() in its own transaction\n"
    "  --sql STATEMENT    in the inbox's transaction: $1 id, $2 body, $3 key, $4 type\n"
    "  --store URL        of the calls of --effect outside; or ONCE_STORE\n"
    "  --database URL     the inbox's; or ONCE_DATABASE\n"
    "  --lost takeover    a lost command runs again: the effect knows its key\n"
    "  --workers N        side by side (1)\n"
    "  --batch N          --sql: messages in one transaction (1)\n"
    "  --keyed            those of one key in order; one worker, one process\n"
    "  --attempts N       begun so often, a parked message is dead (10)\n"
    "  --first-pause TIME, --longest-pause TIME   before it runs again (1s, 1h)\n"
    "  --lease TIME       above the slowest command (5m)\n"
    "  --idle TIME        end when nothing came for so long and nothing waits\n"
    "  --check            receive nothing: say whether database and broker are ready\n"
    "  --metrics FILE     for Prometheus, each ten seconds; --ca FILE: TLS\n"
    "Status 0: stopped or drained. 1: drained, dead or indeterminate ones are left.\n"
    "2: usage. 3: the database cannot be used.\n";
/* clang-format on */

enum {
    DAY_MS = 86400000,
    SLICE_MS = 1000,
    STORE_MS = 5000,
    CALL_LEASE_MS = 30000,
    EXIT_DEAD = 65, /* EX_DATAERR */
    EXIT_AGAIN = 75 /* EX_TEMPFAIL */
};
enum { NOT_SAID = -1 };

struct consume {
    struct cli *c;
    once_consumer_options o;
    const char *from, *calls, *sql;
    int effect; /* 1: inside, or NOT_SAID */
    int inside, takeover;
    char **command;
    char *memory[3];
    size_t n_memory;
    once_engine *engine;
    sigset_t signals;
    _Atomic int store_away; /* the store of calls, and that was said: by the
                             * first thread that sees it; a value */
};

static const struct cli_option options[] = {
    CLI_STORE_OPTION,
    CLI_DATABASE_OPTION,
    CLI_HELP_OPTION,
    {"from", "", CLI_AT(CLI_TEXT, struct consume, from)},
    {"consumer", "", CLI_AT(CLI_TEXT, struct consume, o.consumer)},
    {"effect", "outside inside", CLI_AT(CLI_CHOICE, struct consume, effect)},
    {"sql", "", CLI_AT(CLI_TEXT, struct consume, sql)},
    {"lost", "hold takeover", CLI_AT(CLI_CHOICE, struct consume, takeover)},
    {"workers", "", CLI_AT(CLI_U32, struct consume, o.workers),
     .most = ONCE_WORKERS_MAX},
    {"batch", "", CLI_AT(CLI_U32, struct consume, o.batch), .most = 1000},
    {"keyed", NULL, CLI_AT(CLI_FLAG, struct consume, o.keyed)},
    {"attempts", "", CLI_AT(CLI_U32, struct consume, o.attempts),
     .most = 1000000},
    {"first-pause", "", CLI_AT(CLI_MS, struct consume, o.first_ms)},
    {"longest-pause", "", CLI_AT(CLI_MS, struct consume, o.most_ms)},
    {"lease", "", CLI_AT(CLI_MS, struct consume, o.lease_ms)},
    {"idle", "", CLI_AT(CLI_MS, struct consume, o.drain_ms)},
    {"check", NULL, CLI_AT(CLI_FLAG, struct consume, o.check)},
    {"metrics", CLI_FILES, CLI_AT(CLI_TEXT, struct consume, o.metrics)},
    {"ca", CLI_FILES, CLI_AT(CLI_TEXT, struct consume, o.ca_file)},
    {.name = NULL},
};

/* ---- A command ---------------------------------------------------------- */

/* Pauses grow: without a word a broken command looks like one that hangs. */
static void say_end(const struct consume *k, const once_message *m,
                    const struct once__command_end *end)
{
    if (end->error != 0)
        cli_say(k->c, 0, "the command cannot be started: %s",
                strerror(end->error));
    else if (end->status > 0 && WIFSIGNALED(end->status))
        cli_say(k->c, 0, "the command was killed by signal %d, attempt %u",
                WTERMSIG(end->status), m->attempt);
    else if (end->status > 0)
        cli_say(k->c, 0, "the command ended with status %d, attempt %u",
                WEXITSTATUS(end->status), m->attempt);
}

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
    say_end(k, m, end);
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
    uint64_t end = once__steady_ms() + 2 * CALL_LEASE_MS;
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
            (rc == ONCE_IN_FLIGHT && once__steady_ms() > end))
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

/* ---- A statement -------------------------------------------------------- */

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
    const struct consume *k = user;

#ifdef ONCE_WITH_POSTGRES
    if (tx->postgres != NULL)
        return execute_postgres(k, tx->postgres, m);
#endif
#ifdef ONCE_WITH_MYSQL
    if (tx->mysql != NULL)
        return cli_statement_mysql(k->c, k->sql, tx->mysql, m);
#endif
    return execute_sqlite(k, tx->sqlite, m);
}

/* ---- The command line --------------------------------------------------- */

static int read_url(struct consume *k, const char *what, const char *text,
                    const char **out)
{
    int rc = cli_read_secret(k->c, what, text, out, &k->memory[k->n_memory]);

    if (k->memory[k->n_memory] != NULL)
        k->n_memory++;
    return rc;
}

static int check(struct consume *k)
{
    const struct cli *c = k->c;
    uint8_t group[ONCE_GROUP_SIZE];
    int outside;

    k->inside = k->effect == 1;
    outside = k->sql == NULL && !k->inside;
    if (k->o.consumer == NULL || k->from == NULL)
        return cli_usage(c, "say --from BROKER and --consumer NAME");
    if ((k->sql != NULL) == (k->command != NULL))
        return cli_usage(c, "say either -- COMMAND or --sql STATEMENT");
    if (k->sql != NULL && k->effect != NOT_SAID)
        return cli_usage(c, "--effect requires a command");
    if (!outside && k->takeover)
        return cli_usage(c, "--lost requires --effect outside");
    if (k->sql == NULL && k->o.batch > 1)
        return cli_usage(c, "--batch requires --sql");
    if (cli_database(c) == NULL)
        return cli_which_database(c);
    if (outside && (c->store == NULL || c->store[0] == '\0'))
        return cli_usage(c, "which store keeps the calls? Say --store URL or "
                            "set ONCE_STORE; if COMMAND claims by itself, "
                            "--effect inside");
    /* The consumer's name is the group of its calls. */
    return outside ? cli_read_group(c, k->o.consumer, group) : CLI_OK;
}

static int read_args(struct consume *k, int argc, char **argv)
{
    int end = 1, rc;

    while (end < argc && strcmp(argv[end], "--") != 0)
        end++;
    rc = cli_read_args(k->c, end, argv, NULL, k);
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
    if (rc == CLI_OK && k->sql == NULL && !k->inside)
        rc = read_url(k, "--store", k->c->store, &k->calls);
    return rc;
}

/* ---- The command -------------------------------------------------------- */

/* One call, so that lines of several threads do not mix. */
static void say(void *user, const char *text)
{
    (void)user;
    fprintf(stderr, "once messages consume: %s\n", text);
}

static int open_calls(struct consume *k)
{
    once_error err = {0, ""};
    int rc;

    if (cli_in_process(k->calls))
        return cli_usage(k->c, "--store: memory: is gone when this process "
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
                       "dead or indeterminate messages are left: once messages "
                       "parked ls");
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
    k->o.db = cli_database(k->c);
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
    struct consume k = {.c = c, .effect = NOT_SAID};
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
    "messages consume",
    "hand messages of a broker to a command",
    help,
    options,
    NULL,
    run};
