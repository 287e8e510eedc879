/* SPDX-License-Identifier: Apache-2.0 */
/*
 * main.c - `once-console`: options, start and end.
 *
 *    options --> rights and audit log can be used --> stores --> socket --> serve
 *
 * Whatever is wrong is said before anybody can connect. It may be ended at any
 * time: a decision is in the store, or it is not.
 */
#include "programs/console/console.h"

#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/named.h"
#include "calls/store/store.h"

static const struct cli_command command = {
    .name = "console", .help = console_help, .options = console_options};

/* ---- Options ------------------------------------------------------------- */

struct options {
    struct console *con;
    const char *listen;
};

enum { NAME_SIZE = sizeof(((struct console_store *)0)->name) };

/* The name that is given, or `usual` and, but for the first one, its number. */
static int take_name(const struct console *con, const char *text,
                     const char *usual, size_t number, char name[NAME_SIZE])
{
    size_t n = console_name_size(text);

    if (n >= NAME_SIZE)
        return cli_usage(con->cli, "a NAME has up to %d characters",
                         NAME_SIZE - 1);
    if (n > 0)
        snprintf(name, NAME_SIZE, "%.*s", (int)n, text);
    else if (number == 0)
        snprintf(name, NAME_SIZE, "main");
    else
        snprintf(name, NAME_SIZE, "%s-%zu", usual, number + 1);
    return CLI_OK;
}

static int add_store(struct console *con, const char *text)
{
    struct console_store *s = &con->stores[con->n];
    size_t n = console_name_size(text), i;
    const char *named = n > 0 || text[0] == '@' ? NULL : once__named_in(text);

    if (con->n == CONSOLE_STORES_MAX)
        return cli_usage(con->cli, "--store may be given %d times",
                         CONSOLE_STORES_MAX);
    if (take_name(con, text, "store", con->n, s->name) != CLI_OK)
        return CLI_USAGE;
    if (named != NULL)
        snprintf(s->name, sizeof(s->name), "%s", named);
    for (i = 0; i < con->n; i++)
        if (strcmp(con->stores[i].name, s->name) == 0)
            return cli_usage(con->cli, "two stores have the name %s", s->name);
    s->url = n > 0 ? text + n + 1 : text;
    if (text != con->cli->store) /* not of ONCE_STORE */
        cli_warn_password(con->cli, "--store", s->url);
    con->n++;
    return CLI_OK;
}

/* A page makes a link of it: only to what a browser may open. */
static int take_link(struct console *con, const char *text)
{
    if (!console_is_plain(text))
        return cli_usage(con->cli, "--link is ASCII without spaces");
    if (strncmp(text, "https://", 8) != 0 && strncmp(text, "http://", 7) != 0)
        return cli_usage(con->cli, "--link is an https or http address");
    /* Browsers skip these, and what is behind them is the host. */
    if (strchr("/\\?#", strstr(text, "://")[3]) != NULL)
        return cli_usage(con->cli, "--link has a host behind ://");
    if (strchr(text, '{') == NULL ||
        strcspn(text, "{") < 8 + strcspn(text + 8, "/"))
        return cli_usage(con->cli, "--link has {label} or {order} in its path");
    con->link = text;
    return CLI_OK;
}

static int add_database(struct console *con, const char *text)
{
#ifdef ONCE_WITH_MESSAGES
    struct console_database *d = &con->databases[con->n_databases];
    size_t n = console_name_size(text), i;

    if (con->n_databases == CONSOLE_DATABASES_MAX)
        return cli_usage(con->cli, "--database may be given %d times",
                         CONSOLE_DATABASES_MAX);
    if (take_name(con, text, "database", con->n_databases, d->name) != CLI_OK)
        return CLI_USAGE;
    for (i = 0; i < con->n_databases; i++)
        if (strcmp(con->databases[i].name, d->name) == 0)
            return cli_usage(con->cli, "two databases have the name %s",
                             d->name);
    d->url = n > 0 ? text + n + 1 : text;
    cli_warn_password(con->cli, "--database", d->url);
    con->n_databases++;
    return CLI_OK;
#else
    (void)text;
    return cli_usage(con->cli, "--database: built without messages");
#endif
}

static int take(const struct cli *c, void *user, int o)
{
    struct options *p = user;
    struct console *con = p->con;
    uint64_t uid;
    int rc;

    switch (o) {
    case CONSOLE_OPT_STORE:
        return add_store(con, optarg);
    case CONSOLE_OPT_LISTEN:
        p->listen = optarg;
        break;
    case CONSOLE_OPT_DECIDE:
        con->decide = 1;
        break;
    case CONSOLE_OPT_OPERATORS:
        con->operators = optarg;
        con->has_operators = 1;
        break;
    case CONSOLE_OPT_AUDIT:
        con->audit_path = optarg;
        break;
    case CONSOLE_OPT_DATABASE:
        return add_database(con, optarg);
    case CONSOLE_OPT_WATCH:
        return console_watch_add(con->watch, optarg);
    case CONSOLE_OPT_LINK:
        return take_link(con, optarg);
    case CONSOLE_OPT_HOST:
        if (con->n_hosts == CONSOLE_HOSTS_MAX)
            return cli_usage(c, "--host may be given %d times",
                             CONSOLE_HOSTS_MAX);
        con->hosts[con->n_hosts++] = optarg;
        break;
    case CONSOLE_OPT_TRUST_HEADER:
        con->trust_header = optarg;
        break;
    default:
        if (con->n_uids == CONSOLE_UIDS_MAX)
            return cli_usage(c, "--trust-uid may be given %d times",
                             CONSOLE_UIDS_MAX);
        rc = cli_read_number(c, "--trust-uid", optarg, 0, UINT32_MAX - 1, &uid);
        if (rc != CLI_OK)
            return rc;
        if (uid == geteuid())
            return cli_usage(c,
                             "--trust-uid %u is this console's own user, as "
                             "which a gateway's workers may run, too: each of "
                             "them could say to be anybody. Give the proxy a "
                             "user of its own",
                             (unsigned)uid);
        con->trust_uids[con->n_uids++] = (uint32_t)uid;
        break;
    }
    return CLI_OK;
}

static int read_options(struct cli *c, int argc, char **argv, struct options *p)
{
    struct console *con = p->con;
    int rc = cli_read_args(c, argc, argv, take, p);

    if (rc == CLI_OK)
        rc = cli_no_operands(c, argc, "");
    if (rc == CLI_OK && con->n == 0 && c->store != NULL && c->store[0] != '\0')
        rc = add_store(con, c->store);
    if (rc != CLI_OK)
        return rc;
    if (con->n == 0)
        return cli_usage(c, "which store? Say --store URL or set ONCE_STORE");
    if ((con->trust_header != NULL) != (con->n_uids > 0))
        return cli_usage(c, "--trust-user-header and --trust-uid go together");
    return CLI_OK;
}

/* ---- Stores -------------------------------------------------------------- */

static void on_event(void *user, const char *text)
{
    struct console_store *s = user;

    pthread_mutex_lock(&s->lock);
    snprintf(s->trouble, sizeof(s->trouble), "%s", text);
    pthread_mutex_unlock(&s->lock);
    fprintf(stderr, "once console: %s: %s\n", s->name, text);
}

static void on_caveat(void *user, const char *text)
{
    struct console_store *s = user;

    pthread_mutex_lock(&s->lock);
    snprintf(s->caveat, sizeof(s->caveat), "%s", text);
    pthread_mutex_unlock(&s->lock);
}

/* A server that cannot be reached now may be later. */
static int open_store(const struct console *con, struct console_store *s)
{
    once_engine_options options = ONCE_ENGINE_OPTIONS_INIT;
    const struct once__store_line *line;
    once_error err = {0, ""};
    int rc;

    pthread_mutex_init(&s->lock, NULL);
    line = once__store_line_of(s->url);
    snprintf(s->driver, sizeof(s->driver), "%s",
             line != NULL ? line->ops->name : "?");
    s->path = console_path_of(s);
    options.no_reaper = 1;
    options.user = s;
    options.event = on_event;
    options.caveat = on_caveat;
    rc = once_engine_open(s->url, &options, &err, &s->e);
    if (rc == ONCE_EAWAY) {
        options.background = 1;
        rc = once_engine_open(s->url, &options, &err, &s->e);
    }
    if (rc < 0)
        return cli_say(con->cli, rc == ONCE_EURL ? CLI_USAGE : CLI_STORE,
                       "store %s: %s; nothing was created", s->name, err.text);
    return CLI_OK;
}

static int open_stores(struct console *con, char (*urls)[CONSOLE_URL_MAX])
{
    int rc = CLI_OK;
    size_t i;

    for (i = 0; i < con->n && rc == CLI_OK; i++) {
        rc = console_read_url(con, "store", con->stores[i].name,
                              &con->stores[i].url, urls[i]);
        if (rc == CLI_OK)
            rc = open_store(con, &con->stores[i]);
    }
    return rc;
}

#ifdef ONCE_WITH_MESSAGES
static int open_databases(struct console *con, char (*urls)[CONSOLE_URL_MAX])
{
    once_error err = {0, ""};
    int rc = CLI_OK;
    size_t i;

    for (i = 0; i < con->n_databases && rc == CLI_OK; i++) {
        struct console_database *d = &con->databases[i];

        rc = console_read_url(con, "database", d->name, &d->url, urls[i]);
        if (rc == CLI_OK && console_database_open(d, &err) < 0)
            rc = cli_usage(con->cli, "--database %s: %s", d->name, err.text);
    }
    return rc;
}
#endif

/* ---- Start and end ------------------------------------------------------- */

static int draw(char out[CONSOLE_SECRET + 1])
{
    uint8_t bytes[CONSOLE_SECRET / 2];

    if (getrandom(bytes, sizeof(bytes), 0) != (ssize_t)sizeof(bytes))
        return 0;
    cli_hex(bytes, CONSOLE_SECRET, out);
    return 1;
}

static int open_audit(struct console *con)
{
    once_error err = {0, ""};

    if (once__audit_open(con->audit_path, &err, &con->audit) < 0)
        return cli_say(con->cli, CLI_STORE, "--audit: %s", err.text);
    return CLI_OK;
}

/* Who reads the token is the operator: it is not written to a file that others
 * may read. */
static int is_private(const struct console *con)
{
    struct stat st;

    if (con->listen.local || fstat(STDOUT_FILENO, &st) < 0 ||
        !S_ISREG(st.st_mode) || (st.st_mode & (S_IRWXG | S_IRWXO)) == 0)
        return CLI_OK;
    return cli_usage(con->cli, "the address with its token would be written to "
                               "a file that others may read or write: give it "
                               "mode 0600, or make it under umask 077");
}

/* The address; on loopback with its token in the fragment, which browsers send
 * to nobody. */
static void greet(const struct console *con, const char *where)
{
    if (con->listen.local)
        printf("once console: listening on %s%s\n", where,
               con->decide ? "" : ", read-only");
    else
        printf("once console: http://%s:%u/#token=%s\n",
               where[0] == '[' ? "[::1]" : "127.0.0.1", con->listen.port,
               con->token);
    fflush(stdout);
}

static int serve(struct console *con, const char *where, const sigset_t *ends)
{
    const struct timespec second = {1, 0};
    struct MHD_Daemon *daemon = NULL;

    if (console_watch_start(con->watch))
        daemon = console_serve(con);
    if (daemon == NULL)
        return cli_say(con->cli, CLI_STORE, "cannot serve: %s",
                       strerror(errno));
    greet(con, where);
    while (sigtimedwait(ends, NULL, &second) < 0) {
        console_peers_end_late(con);
#ifdef ONCE_WITH_MESSAGES
        console_databases_watch(con);
#endif
    }
    MHD_stop_daemon(daemon); /* waits for what is being decided */
    return CLI_OK;
}

static int start(struct console *con, const char *where, const sigset_t *ends)
{
    char(*urls)[CONSOLE_URL_MAX] =
        calloc(CONSOLE_STORES_MAX + CONSOLE_DATABASES_MAX, sizeof(*urls));
    int rc = CLI_OK;
    size_t i;

    if (urls == NULL || !draw(con->token) || !draw(con->session))
        rc = cli_say(con->cli, CLI_STORE, "no memory, or no random numbers");
    if (rc == CLI_OK)
        rc = console_check_operators(con);
    if (rc == CLI_OK)
        rc = open_audit(con);
    if (rc == CLI_OK)
        rc = open_stores(con, urls);
#ifdef ONCE_WITH_MESSAGES
    if (rc == CLI_OK)
        rc = open_databases(con, urls + CONSOLE_STORES_MAX);
#endif
    if (rc == CLI_OK)
        rc = cli_listen(&con->listen, where);
    if (rc == CLI_OK && !con->listen.local && con->trust_header != NULL)
        rc = cli_usage(con->cli, "--trust-user-header goes with a socket file "
                                 "only: anybody can send one through TCP");
    if (rc == CLI_OK)
        rc = is_private(con);
    if (rc == CLI_OK)
        rc = serve(con, where, ends);
    cli_unlisten(&con->listen);
    console_watch_end(con->watch);
    con->watch = NULL;
    for (i = 0; i < con->n; i++) {
        once_engine_close(con->stores[i].e);
        free(con->stores[i].path);
    }
#ifdef ONCE_WITH_MESSAGES
    for (i = 0; i < con->n_databases; i++)
        console_database_close(&con->databases[i]);
#endif
    once__audit_close(con->audit);
    free(urls);
    return rc;
}

int main(int argc, char **argv)
{
    struct cli c = {.command = &command, .store = getenv("ONCE_STORE")};
    struct console *con = calloc(1, sizeof(*con));
    struct options p = {con, "unix:/run/once/console.sock"};
    sigset_t ends;
    int rc;

    opterr = 0; /* messages are ours */
    if (con == NULL || (con->watch = console_watch_new(con)) == NULL)
        return cli_say(&c, CLI_STORE, "out of memory");
    con->cli = &c;
    con->listen = (struct cli_listen){.c = &c, .group = "once-operators"};
    con->operators = "/etc/once/operators";
    pthread_mutex_init(&con->lock, NULL);
    json_object_seed(0); /* before there are threads */
    (void)signal(SIGPIPE, SIG_IGN);
    (void)prctl(PR_SET_DUMPABLE, 0); /* a core file would hold what is typed */
    sigemptyset(&ends);
    sigaddset(&ends, SIGINT);
    sigaddset(&ends, SIGTERM);
    sigaddset(&ends, SIGHUP);
    pthread_sigmask(SIG_BLOCK, &ends, NULL);
    rc = read_options(&c, argc, argv, &p);
    if (rc == CLI_OK)
        rc = start(con, p.listen, &ends);
    console_watch_end(con->watch);
    free(con);
    return rc == CLI_STOP ? CLI_OK : rc;
}
