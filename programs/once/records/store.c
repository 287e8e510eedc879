/* SPDX-License-Identifier: Apache-2.0 */
/*
 * store.c - opening a store as an operator.
 *
 * Works through the public interface, without a reaper: looking must not change
 * anything. Which kinds of stores there are is stores.def's. It never creates a
 * store, which would turn a misspelt path into the answer "there is nothing";
 * `once init` creates one.
 */
#include "programs/once/run/run.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <sys/stat.h>

#include "base/steady.h"
#include "calls/store/store.h"

enum { PAUSE_MS = 20, PAUSE_MOST_MS = 500 };

static void print_examples(FILE *to)
{
    const struct once__store_line *lines;
    const char *comma = "";
    size_t n, i;

    lines = once__store_lines(&n);
    for (i = 0; i < n; i++)
        if (lines[i].example != NULL) {
            fprintf(to, "%s%s", comma, lines[i].example);
            comma = ", ";
        }
}

void cli_print_schemes(FILE *to, int all)
{
    const struct once__store_line *lines;
    const char *space = "";
    size_t n, i;

    lines = once__store_lines(&n);
    for (i = 0; i < n; i++)
        if (lines[i].example != NULL ||
            (all && lines[i].place == ONCE__STORE_SERVER)) {
            fprintf(to, "%s%s:", space, lines[i].ops->name);
            space = " ";
        }
}

/* The first scheme of stores that are in such a place. */
static const char *scheme_of(enum once__store_place place)
{
    const struct once__store_line *lines;
    size_t n, i;

    lines = once__store_lines(&n);
    for (i = 0; i < n; i++)
        if (lines[i].place == place)
            return lines[i].ops->name;
    return "";
}

static int is_in(const char *url, enum once__store_place place)
{
    const struct once__store_line *line = once__store_line_of(url);

    return line != NULL && line->place == place;
}

int cli_in_process(const char *url)
{
    return is_in(url, ONCE__STORE_PROCESS);
}

/* What to do after an opening that was refused, by the words of the other side:
 * a server's are a part of `text`. */
static const struct {
    const char *said, *next;
} of_servers[] = {
#define LOGIN                                                                  \
    "The server answers, and refuses this user: check user and password "      \
    "in the store's URL, and the server's own rules for logins"
#define DATABASE                                                               \
    "The server answers, and lacks the database: check its name in the "       \
    "store's URL, or create it on the server"
#define RIGHTS                                                                 \
    "The server has let the user in, and denies it a right: grant what the "   \
    "page of this store in docs/ lists"
    {" 28000:", LOGIN}, /* PostgreSQL's SQLSTATE */
    {" 28P01:", LOGIN},
    {" 3D000:", DATABASE},
    {"42501", RIGHTS},
    {"(error 1045)", LOGIN}, /* MySQL's and MariaDB's numbers */
    {"(error 1698)", LOGIN},
    {"(error 1044)", RIGHTS},
    {"(error 1142)", RIGHTS},
    {"(error 1049)", DATABASE},
    {"does not accept user and password", LOGIN}, /* Redis */
    {"the database in the URL", DATABASE},
    {"",
     "Check the address in the store's URL, and what the server's log says of "
     "this connection"},
#undef LOGIN
#undef DATABASE
#undef RIGHTS
};

static const struct {
    int error;
    const char *next;
} of_files[] = {
    {ENOENT, "Check the path: a folder of it is missing, or its disk is not "
             "mounted"},
    {EACCES, "Run it as the user of the gateway, who must own the files and "
             "their folder"},
    {EPERM, "Run it as the user of the gateway, who must own the files and "
            "their folder"},
    {ENOSPC, "Make room on this disk"},
    {EDQUOT, "Make room on this disk, or raise this user's quota"},
};

/* By the text, since a store may be known by its name alone: a server's begins
 * with its driver's. */
static int speaks_of_server(const char *text)
{
    const struct once__store_line *lines;
    size_t n, i;

    lines = once__store_lines(&n);
    for (i = 0; i < n; i++)
        if (lines[i].place == ONCE__STORE_SERVER &&
            strncmp(text, lines[i].ops->name, strlen(lines[i].ops->name)) == 0)
            return 1;
    return 0;
}

static const char *advice_of_opening(const char *text)
{
    int server = speaks_of_server(text);
    size_t i;

    for (i = 0; server && i < sizeof(of_servers) / sizeof(of_servers[0]); i++)
        if (strstr(text, of_servers[i].said) != NULL)
            return of_servers[i].next;
    for (i = 0; i < sizeof(of_files) / sizeof(of_files[0]); i++)
        if (strstr(text, strerror(of_files[i].error)) != NULL)
            return of_files[i].next;
    return "Check the path, its permissions and the disk; the gateway's user "
           "must own the files";
}

/* None where the text has it already. */
static const char *advice(int code, const char *text)
{
    if (strstr(text, "once init") != NULL)
        return NULL;
    switch (code) {
    case ONCE_EAWAY:
        return "Check that the server runs, and its address";
    case ONCE_EOPEN:
        return advice_of_opening(text);
    case ONCE_ECORRUPT:
        return "The record counts as taken, so nothing runs twice. Keep a copy "
               "of the store and look at the disk";
    case ONCE_EVERSION:
        return "Use the version of once that the gateway uses";
    case ONCE_ESTORE:
        return "The store may be locked by another process or the disk may be "
               "full. Look again with once show";
    case ONCE_EFULL:
        return "Make room, or let once purge forget what has expired";
    default:
        return NULL;
    }
}

/* More than one record: where it is opened, or does not answer because of it. */
#define STORE_IS_DAMAGED                                                       \
    "The store is damaged, so nothing is granted from it and nothing runs "    \
    "twice. Keep it as it is, look at the disk (dmesg), and restore a copy "   \
    "that once verify finds whole: see once restore"

int cli_trouble(const struct cli *c, int code, const once_error *err)
{
    const char *what = err && err->text[0] ? err->text : once_text(code);
    const char *next = code == ONCE_ESTORE && err && err->code == ONCE_ECORRUPT
                           ? STORE_IS_DAMAGED
                           : advice(code, what);

    cli_say(c, 0, "%s", what);
    if (code == ONCE_EURL) {
        fputs("A store URL is like ", stderr);
        print_examples(stderr);
        fputs(".\n", stderr);
    }
    if (next != NULL)
        fprintf(stderr, "%s.\n", next);
    if (code == ONCE_EURL || code == ONCE_EINVAL || code == ONCE_ELIMIT)
        return CLI_USAGE;
    return CLI_STORE;
}

int cli_trouble_of_change(const struct cli *c, int code, const once_error *err)
{
    int rc = cli_trouble(c, code, err);

    return code == ONCE_ESTORE ? CLI_UNKNOWN : rc;
}

const char *cli_url(const struct cli *c)
{
    return c->store != NULL && c->store[0] != '\0' ? c->store : c->user_store;
}

char *cli_user_store(void)
{
    static const char scheme[] = "sqlite:";
    char *folder = run_state_path(), *url = NULL;
    struct stat st;

    if (folder == NULL)
        return NULL;
    if (asprintf(&url, "%s%s/store.db", scheme, folder) < 0)
        url = NULL;
    free(folder);
    if (url == NULL ||
        (strchr(url, '?') == NULL && stat(url + sizeof(scheme) - 1, &st) == 0))
        return url;
    free(url);
    return NULL;
}

int cli_take_store(struct cli *c, int argc, char **argv, char **memory)
{
    const char *name = argv[optind];
    struct stat st;
    int folder;

    if (argc == optind)
        return CLI_OK;
    if (argc - optind > 1)
        return cli_usage(c, "one store at a time: its URL, folder or file");
    if (name[strcspn(name, ":/.")] == ':') {
        c->store = name;
        return CLI_OK;
    }
    folder = stat(name, &st) == 0 && S_ISDIR(st.st_mode);
    if (asprintf(memory, "%s:%s",
                 scheme_of(folder ? ONCE__STORE_FOLDER : ONCE__STORE_FILE),
                 name) < 0) {
        *memory = NULL;
        return cli_say(c, CLI_STORE, "out of memory");
    }
    c->store = *memory;
    return CLI_OK;
}

static int is_named(const struct cli *c)
{
    const char *url = cli_url(c);

    if (url == NULL)
        return cli_usage(c, "which store? Say --store URL or set ONCE_STORE");
    if (cli_in_process(url))
        return cli_usage(c,
                         "a %s: store lives inside one process and cannot be "
                         "seen from another; its gateway's status page can",
                         scheme_of(ONCE__STORE_PROCESS));
    return CLI_OK;
}

/* Who forgot to name the gateway's store must not take "there is nothing" in
 * his own for an answer about it. */
int cli_named(const struct cli *c)
{
    if (cli_url(c) != NULL && cli_url(c) == c->user_store)
        cli_say(c, 0,
                "no store was named, so this is about that of once run: "
                "%s",
                c->user_store);
    return is_named(c);
}

static int not_opened(const struct cli *c, int code, const once_error *err)
{
    if (code == ONCE_ECORRUPT)
        return cli_say(c, CLI_STORE, "%s. " STORE_IS_DAMAGED, err->text);
    if (code != ONCE_EOPEN)
        return cli_trouble(c, code, err);
    if (strstr(err->text, "once init") != NULL)
        return cli_say(c, CLI_STORE, "%s", err->text);
    if (strstr(err->text, strerror(EROFS)) != NULL)
        return cli_say(c, CLI_STORE,
                       "%s: nothing can be changed there. once ls, show, "
                       "stats, verify and backup read it all the same",
                       err->text);
    return cli_say(c, CLI_STORE, "%s. Nothing was created. %s", err->text,
                   advice_of_opening(err->text));
}

static void say_event(void *user, const char *text)
{
    (void)cli_say(user, CLI_OK, "%s", text);
}

static int open_engine(const struct cli *c, int look, once_engine **out)
{
    once_engine_options options = ONCE_ENGINE_OPTIONS_INIT;
    once_error err = {0, ""};
    int rc = cli_named(c);

    if (rc != CLI_OK)
        return rc;
    options.no_reaper = 1;
    options.look = look != 0;
    rc = once_engine_open(cli_url(c), &options, &err, out);
    return rc < 0 ? not_opened(c, rc, &err) : CLI_OK;
}

int cli_open(const struct cli *c, once_engine **out)
{
    return open_engine(c, 0, out);
}

int cli_open_to_look(const struct cli *c, once_engine **out)
{
    return open_engine(c, 1, out);
}

static int open_store(const struct cli *c, int look, once_store **out)
{
    once_store_options options = {.size = sizeof(options),
                                  .look = look != 0,
                                  .event = say_event,
                                  .event_user = (void *)(uintptr_t)c};
    once_error err = {0, ""};
    int rc = is_named(c);

    if (rc != CLI_OK)
        return rc;
    rc = once_store_open(cli_url(c), &options, &err, out);
    return rc < 0 ? not_opened(c, rc, &err) : CLI_OK;
}

int cli_open_store(const struct cli *c, once_store **out)
{
    return open_store(c, 0, out);
}

int cli_open_store_to_look(const struct cli *c, once_store **out)
{
    return open_store(c, 1, out);
}

int cli_ask(const struct cli *c, once_store *s, once_op **ops, size_t n)
{
    uint64_t end_us = once__steady_us() + CLI_STORE_MS * 1000;
    long pause_ms = PAUSE_MS;
    once_error err = {0, ""};
    int rc;

    for (;;) {
        struct timespec pause = {0, pause_ms * 1000000};

        rc = s->ops->apply(s, ops, n, &err);
        if (rc == ONCE_OK)
            return CLI_OK;
        if (once__steady_us() >= end_us)
            return cli_trouble_of_change(c, rc, &err);
        (void)nanosleep(&pause, NULL);
        if (pause_ms < PAUSE_MOST_MS)
            pause_ms *= 2;
    }
}

void cli_promise_of(const once_store *s, struct cli_promise *out)
{
    out->durable = s->ops->durable && s->caveat == NULL;
    out->shared = s->ops->shared;
    snprintf(out->caveat, sizeof(out->caveat), "%s",
             s->caveat ? s->caveat : "");
}

int cli_promise(const struct cli *c, struct cli_promise *out)
{
    once_store *s = NULL;
    int rc = cli_open_store(c, &s);

    if (rc != CLI_OK)
        return rc;
    cli_promise_of(s, out);
    once_store_close(s);
    return CLI_OK;
}
