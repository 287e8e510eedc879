/* SPDX-License-Identifier: Apache-2.0 */
/*
 * who.c - who the caller is, and what he may do.
 *
 *    socket file   the kernel says which user has connected (SO_PEERCRED); from
 *                  the uids of --trust-uid a header names who has logged in
 *    loopback      the one who started the console: its token, which is good
 *                  once, was exchanged for the secret of the session, which
 *                  each request has in a header of ours
 *
 * It is no cookie: a browser sends those to every port of a host, and another
 * port of loopback may be another user's.
 *
 * Rights are read again for each request, so that a right that is taken away is
 * gone. A file of rights that cannot be understood gives nobody anything.
 */
#include "programs/console/console.h"

#include <errno.h>
#include <grp.h>
#include <pwd.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <openssl/crypto.h>

enum { FILE_MAX = 65536, GROUPS_MAX = 256, SESSION_MS = 12 * 3600 * 1000 };

static const struct {
    const char *name;
    unsigned right;
} rights[] = {
    {"view", CONSOLE_VIEW},   {"decide", CONSOLE_DECIDE},
    {"body", CONSOLE_BODY},   {"erase", CONSOLE_ERASE},
    {"admin", CONSOLE_ADMIN},
};
enum { RIGHTS = sizeof(rights) / sizeof(rights[0]) };

/* ---- The file of rights -------------------------------------------------- */

/* Whom a proxy names has lines of his own: he is no user of the host, whatever
 * his name is. */
#define BY_PROXY "proxy:"

struct user {
    const char *name;
    int by_proxy;
    gid_t groups[GROUPS_MAX];
    int n;
};

static int is_in(const struct user *u, const char *group)
{
    struct group g, *found = NULL;
    char buffer[16384];
    int i;

    if (getgrnam_r(group, &g, buffer, sizeof(buffer), &found) != 0 ||
        found == NULL)
        return 0;
    for (i = 0; i < u->n; i++)
        if (u->groups[i] == g.gr_gid)
            return 1;
    return 0;
}

/* Is it the line of this one? No user of the host has a colon in his name. */
static int is_of(const char *line, const struct user *u)
{
    const size_t n = strlen(BY_PROXY);

    if (u->by_proxy)
        return strncmp(line, BY_PROXY, n) == 0 &&
               strcmp(line + n, u->name) == 0;
    if (line[0] == '@')
        return is_in(u, line + 1);
    return strncmp(line, BY_PROXY, n) != 0 && strcmp(line, u->name) == 0;
}

/* "decide,body": the bits, or 0 if it is no list of rights. */
static unsigned rights_of(char *list)
{
    unsigned all = 0, i;
    char *word, *rest = NULL;

    for (word = strtok_r(list, ",", &rest); word != NULL;
         word = strtok_r(NULL, ",", &rest)) {
        for (i = 0; i < RIGHTS && strcmp(rights[i].name, word) != 0; i++)
            ;
        if (i == RIGHTS)
            return 0;
        all |= rights[i].right | CONSOLE_VIEW; /* who decides must see */
    }
    return all;
}

/* One line: 0, or -1 if it is not "NAME RIGHTS", "@GROUP RIGHTS", "proxy:NAME
 * RIGHTS", empty or a comment. `u` NULL: only checks. */
static int read_line(char *line, const struct user *u, int *known,
                     unsigned *out)
{
    char *rest = NULL, *who, *list;
    unsigned found;

    line[strcspn(line, "#\r\n")] = '\0';
    who = strtok_r(line, " \t", &rest);
    if (who == NULL)
        return 0;
    list = strtok_r(NULL, " \t", &rest);
    if (list == NULL || strtok_r(NULL, " \t", &rest) != NULL)
        return -1;
    found = rights_of(list);
    if (found == 0)
        return -1;
    if (u != NULL && is_of(who, u)) {
        *out |= found;
        *known = 1;
    }
    return 0;
}

/* 0, or the number of the line that is wrong, or -1: it cannot be read. */
static int read_rights(const struct console *con, const struct user *u,
                       int *known, unsigned *out)
{
    FILE *in = fopen(con->operators, "re");
    char line[1024];
    int number = 0, rc = 0;
    size_t size = 0;

    *known = 0;
    *out = 0;
    if (in == NULL)
        return errno == ENOENT && !con->has_operators ? 0 : -1;
    while (rc == 0 && fgets(line, sizeof(line), in) != NULL) {
        number++;
        size += strlen(line);
        if (strlen(line) == sizeof(line) - 1 || size > FILE_MAX ||
            read_line(line, u, known, out) < 0)
            rc = number;
    }
    if (rc == 0 && ferror(in))
        rc = -1;
    fclose(in);
    return rc;
}

int console_check_operators(struct console *con)
{
    unsigned some;
    int known, rc = read_rights(con, NULL, &known, &some);

    if (rc < 0)
        return cli_say(con->cli, CLI_STORE, "%s: %s", con->operators,
                       strerror(errno));
    if (rc > 0)
        return cli_say(con->cli, CLI_USAGE,
                       "%s, line %d: not NAME, @GROUP or proxy:NAME and a list "
                       "of view, decide, body, erase, admin",
                       con->operators, rc);
    return CLI_OK;
}

/* ---- By the kernel's word, or a proxy's ---------------------------------- */

int console_is_trusted(const struct console *con, uint32_t uid)
{
    size_t i;

    for (i = 0; i < con->n_uids; i++)
        if (con->trust_uids[i] == uid)
            return 1;
    return 0;
}

static enum MHD_Result count(void *user, enum MHD_ValueKind kind,
                             const char *key, const char *value)
{
    const void **wanted = user;

    (void)kind;
    (void)value;
    if (strcasecmp(key, wanted[0]) == 0)
        ++*(int *)(uintptr_t)wanted[1];
    return MHD_YES;
}

/* The one value of the proxy's header: a name without spaces. */
static const char *vouched_name(const struct console_request *ask)
{
    const char *name = console_header(ask, ask->con->trust_header);
    int n = 0;
    const void *wanted[2] = {ask->con->trust_header, &n};
    size_t i;

    (void)MHD_get_connection_values(ask->c, MHD_HEADER_KIND, count,
                                    (void *)wanted);
    if (name == NULL || n != 1 || name[0] == '\0' || name[0] == '@')
        return NULL;
    for (i = 0; name[i] != '\0'; i++)
        if (i == sizeof(ask->caller.who.name) - 1 ||
            (unsigned char)name[i] <= 0x20 || (unsigned char)name[i] >= 0x7f)
            return NULL;
    return name;
}

static int by_socket(struct console_request *ask, struct user *u,
                     const char **why)
{
    const union MHD_ConnectionInfo *info =
        MHD_get_connection_info(ask->c, MHD_CONNECTION_INFO_CONNECTION_FD);
    once__audit_who *who = &ask->caller.who;
    struct ucred peer;
    socklen_t size = sizeof(peer);
    struct passwd pw, *found = NULL;
    char buffer[16384];
    const char *name;

    if (info == NULL || getsockopt(info->connect_fd, SOL_SOCKET, SO_PEERCRED,
                                   &peer, &size) < 0) {
        *why = "the kernel does not identify the caller";
        return MHD_HTTP_FORBIDDEN;
    }
    if (ask->con->trust_header != NULL &&
        console_is_trusted(ask->con, peer.uid)) {
        name = vouched_name(ask);
        if (name == NULL) {
            *why = "the proxy does not say who has logged in";
            return MHD_HTTP_FORBIDDEN;
        }
        u->by_proxy = 1;
        *who = (once__audit_who){.uid = -1, .login_uid = -1};
        snprintf(who->name, sizeof(who->name), "%s", name);
        snprintf(who->way, sizeof(who->way), "console, proxy of uid %u",
                 (unsigned)peer.uid);
        return 0;
    }
    *who = (once__audit_who){.uid = peer.uid, .login_uid = -1};
    once__audit_user(peer.uid, who->name, sizeof(who->name));
    snprintf(who->way, sizeof(who->way), "console, socket");
    u->n = GROUPS_MAX;
    if (getpwuid_r(peer.uid, &pw, buffer, sizeof(buffer), &found) != 0 ||
        found == NULL ||
        getgrouplist(pw.pw_name, pw.pw_gid, u->groups, &u->n) < 0)
        u->n = 0;
    ask->caller.rights = CONSOLE_VIEW; /* who may open the socket may look */
    return 0;
}

/* ---- By the token of who started it -------------------------------------- */

static int has_session(struct console_request *ask)
{
    struct console *con = ask->con;
    const char *value = console_header(ask, "Once-Session");
    int is;

    pthread_mutex_lock(&con->lock);
    is = value != NULL && con->session[0] != '\0' &&
         strlen(value) == CONSOLE_SECRET &&
         CRYPTO_memcmp(value, con->session, CONSOLE_SECRET) == 0 &&
         cli_now_ms() < con->session_until_ms;
    pthread_mutex_unlock(&con->lock);
    return is;
}

static int by_loopback(struct console_request *ask, const char **why)
{
    if (!has_session(ask)) {
        *why = "open the address that the console printed when it was started; "
               "it is good once";
        return MHD_HTTP_UNAUTHORIZED;
    }
    once__audit_me("console, loopback", &ask->caller.who);
    /* He has the store's files anyway. */
    ask->caller.rights = CONSOLE_VIEW | CONSOLE_DECIDE | CONSOLE_BODY;
    return 0;
}

enum MHD_Result console_open_session(struct console_request *ask)
{
    struct console *con = ask->con;
    char session[CONSOLE_SECRET + 1] = "";
    const char *token;
    int bad = 0, is;

    token = console_text(ask->body, "token", &bad);
    if (con->listen.local || bad || token == NULL)
        return console_problem(ask, MHD_HTTP_BAD_REQUEST, "token",
                               "There is nothing to be exchanged.");
    pthread_mutex_lock(&con->lock);
    is = con->token[0] != '\0' && strlen(token) == CONSOLE_SECRET &&
         CRYPTO_memcmp(token, con->token, CONSOLE_SECRET) == 0;
    if (is) {
        con->token[0] = '\0';
        con->session_until_ms = cli_now_ms() + SESSION_MS;
        memcpy(session, con->session, sizeof(session));
    }
    pthread_mutex_unlock(&con->lock);
    if (!is)
        return console_problem(ask, MHD_HTTP_UNAUTHORIZED, "token",
                               "The token is wrong, or was used before.");
    return console_reply(ask, MHD_HTTP_OK,
                         json_pack("{s:s}", "session", session));
}

/* Nothing opens another session: who starts the console is given a new
 * token. */
enum MHD_Result console_end_session(struct console_request *ask)
{
    struct console *con = ask->con;

    if (con->listen.local)
        return console_problem(ask, MHD_HTTP_BAD_REQUEST, "session",
                               "The kernel says who you are: there is no "
                               "session to end.");
    pthread_mutex_lock(&con->lock);
    con->session[0] = '\0';
    pthread_mutex_unlock(&con->lock);
    return console_reply(ask, MHD_HTTP_OK, json_pack("{s:b}", "ok", 1));
}

/* ---- Both ---------------------------------------------------------------- */

int console_identify(struct console_request *ask, const char **why)
{
    struct console_caller *caller = &ask->caller;
    struct user *u = calloc(1, sizeof(*u));
    int rc, known;
    unsigned some;

    if (u == NULL) {
        *why = "out of memory";
        return MHD_HTTP_INTERNAL_SERVER_ERROR;
    }
    rc =
        ask->con->listen.local ? by_socket(ask, u, why) : by_loopback(ask, why);
    if (rc != 0)
        goto out;
    u->name = caller->who.name;
    if (read_rights(ask->con, u, &known, &some) != 0) {
        *why = "the file of rights cannot be read";
        rc = MHD_HTTP_INTERNAL_SERVER_ERROR;
        goto out;
    }
    if (known)
        caller->rights = some;
    if (!ask->con->decide)
        caller->rights &= ~(unsigned)CONSOLE_DECIDE;
    if ((caller->rights & CONSOLE_VIEW) == 0) {
        *why = "you have no right here";
        rc = MHD_HTTP_FORBIDDEN;
    }
out:
    free(u);
    return rc;
}

enum MHD_Result console_session(struct console_request *ask)
{
    const struct console *con = ask->con;
    json_t *list = json_array(), *stores = json_array(),
           *databases = json_array();
    unsigned i;

    for (i = 0; i < RIGHTS; i++)
        if (ask->caller.rights & rights[i].right)
            json_array_append_new(list, json_string(rights[i].name));
    for (i = 0; i < con->n; i++)
        json_array_append_new(stores, json_string(con->stores[i].name));
    for (i = 0; i < con->n_databases; i++)
        json_array_append_new(databases, json_string(con->databases[i].name));
    return console_reply(
        ask, MHD_HTTP_OK,
        json_pack("{s:s, s:s, s:o, s:b, s:b, s:s, s:s?, s:o, s:o}", "user",
                  ask->caller.who.name, "way", ask->caller.who.way, "rights",
                  list, "decide", con->decide, "signs_out", !con->listen.local,
                  "version", ONCE_VERSION, "link", con->link, "stores", stores,
                  "databases", databases));
}
