/* SPDX-License-Identifier: Apache-2.0 */
/*
 * server.c - a server whose handlers are guarded from inside, for the scenarios
 * of test/gateway (ONCE_TARGET=guarded).
 *
 *    guarded_server FILE      serves the routes of the file (see conf.h)
 *    guarded_server -t FILE   looks at it and at the stores, like nginx -t
 *
 *    client --- libmicrohttpd, guard --- handler --- scripted upstream
 *
 * Its handler sends the request on to the scenario's upstream and answers with
 * what comes back: so the scenarios see what a handler did, byte for byte, and
 * need not know that there is no gateway. The handler suspends its connection
 * while a thread of its own waits for the upstream.
 *
 * SIGQUIT ends it when what is in flight has been answered, SIGTERM at once:
 * clients and upstreams are cut off, and outcomes are unknown.
 */
#include <arpa/inet.h>
#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include <once/mhd.h>

#include "conf.h"
#include "forward.h"

enum { CONNECTIONS_MAX = 2000, THREADS = 2 };

struct job;

struct server {
    struct conf conf;
    once_mhd *mhd;
    int access_log;
    pthread_mutex_t lock;
    pthread_cond_t idle;
    unsigned calls; /* under way */
    struct job *jobs;
};

/* ---- Jobs: one request to the upstream ------------------------------------- */

struct job {
    struct server *server;
    struct location *location;
    struct MHD_Connection *connection;
    const char *key; /* in place of the client's; NULL: there is none */
    struct job *next, **link;
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    int references; /* the call's, and a stream's                          */
    int started, done;
    int over;     /* nobody needs it any more                            */
    int starving; /* a stream: suspended until there is more             */
    int no_body;  /* HEAD                                                */
    char *request;
    size_t size, room;
    char *body;
    size_t body_size, body_room;
    size_t told; /* a stream: bytes of what came with its head             */
    struct forward forward;
};

static int append(char **at, size_t *size, size_t *room, const void *data,
                  size_t n)
{
    if (n > *room - *size) {
        size_t want = 2 * (*size + n) + 1024;
        char *more = realloc(*at, want);

        if (more == NULL)
            return 0;
        *at = more;
        *room = want;
    }
    if (n > 0)
        memcpy(*at + *size, data, n);
    *size += n;
    return 1;
}

static int append_text(struct job *j, const char *text)
{
    return append(&j->request, &j->size, &j->room, text, strlen(text));
}

static struct job *job_new(struct location *l, struct MHD_Connection *c)
{
    struct job *j = calloc(1, sizeof(*j));
    struct server *s = l->server;

    if (j == NULL)
        return NULL;
    j->server = s;
    j->location = l;
    j->connection = c;
    j->references = 1;
    j->forward.fd = -1;
    pthread_mutex_init(&j->lock, NULL);
    pthread_cond_init(&j->changed, NULL);
    pthread_mutex_lock(&s->lock);
    j->next = s->jobs;
    j->link = &s->jobs;
    if (j->next != NULL)
        j->next->link = &j->next;
    s->jobs = j;
    pthread_mutex_unlock(&s->lock);
    return j;
}

/* Nobody needs it any more: the thread ends soon. */
static void job_cut(struct job *j)
{
    pthread_mutex_lock(&j->lock);
    j->over = 1;
    if (j->forward.fd >= 0)
        (void)shutdown(j->forward.fd, SHUT_RDWR);
    pthread_cond_signal(&j->changed);
    pthread_mutex_unlock(&j->lock);
}

static void job_free(struct job *j)
{
    struct server *s = j->server;

    pthread_mutex_lock(&s->lock);
    if (j->next != NULL)
        j->next->link = j->link;
    *j->link = j->next;
    pthread_mutex_unlock(&s->lock);
    job_cut(j);
    if (j->started && !s->conf.threaded)
        (void)pthread_join(j->thread, NULL);
    if (j->forward.result == FORWARD_WHOLE ||
        j->forward.result == FORWARD_BROKEN ||
        j->forward.result == FORWARD_TIMEOUT)
        free(j->forward.body);
    forward_clear(&j->forward);
    pthread_cond_destroy(&j->changed);
    pthread_mutex_destroy(&j->lock);
    free(j->request);
    free(j->body);
    free(j);
}

static void job_drop(void *cls)
{
    struct job *j = cls;
    int left;

    pthread_mutex_lock(&j->lock);
    left = --j->references;
    pthread_mutex_unlock(&j->lock);
    if (left == 0)
        job_free(j);
}

/* A stream: waits until the upstream has sent more, whenever it is asked. */
static void job_feed(struct job *j)
{
    struct pollfd p = {.fd = j->forward.fd, .events = POLLIN};

    pthread_mutex_lock(&j->lock);
    while (!j->over) {
        if (!j->starving) {
            pthread_cond_wait(&j->changed, &j->lock);
            continue;
        }
        pthread_mutex_unlock(&j->lock);
        (void)poll(&p, 1, -1);
        pthread_mutex_lock(&j->lock);
        j->starving = 0;
        MHD_resume_connection(j->connection);
    }
    if (j->starving)
        MHD_resume_connection(j->connection);
    pthread_mutex_unlock(&j->lock);
}

static void *job_run(void *arg)
{
    struct job *j = arg;
    int fd = forward_connect(&j->location->origin), over, stream;

    pthread_mutex_lock(&j->lock);
    j->forward.fd = fd;
    over = j->over;
    pthread_mutex_unlock(&j->lock);
    if (!over)
        forward_run(&j->forward, j->request, j->size,
                    j->location->read_timeout_ms, j->no_body);
    pthread_mutex_lock(&j->lock);
    stream = j->forward.result == FORWARD_STREAM;
    if (!stream && j->forward.fd >= 0) {
        (void)close(j->forward.fd);
        j->forward.fd = -1;
    }
    j->done = 1;
    pthread_mutex_unlock(&j->lock);
    if (j->server->conf.threaded)
        return NULL;
    MHD_resume_connection(j->connection);
    if (stream)
        job_feed(j);
    return NULL;
}

/* ---- The request ------------------------------------------------------------ */

/* What is not for the upstream: about our connection, or Once's own. */
static int is_forwarded(const char *name)
{
    static const char *const not [] = {
        "Connection", "Content-Length",    "Expect",  "Keep-Alive",     "TE",
        "Trailer",    "Transfer-Encoding", "Upgrade", "HTTP2-Settings",
    };
    size_t i;

    for (i = 0; i < sizeof(not ) / sizeof(not [0]); i++)
        if (strcasecmp(name, not [i]) == 0)
            return 0;
    return !once_http_is_internal(name);
}

static enum MHD_Result add_header(void *cls, enum MHD_ValueKind kind,
                                  const char *name, const char *value)
{
    struct job *j = cls;
    int ok = 1;

    (void)kind;
    if (is_forwarded(name) &&
        (j->key == NULL || strcasecmp(name, "Idempotency-Key") != 0))
        ok = append_text(j, name) && append_text(j, ": ") &&
             append_text(j, value != NULL ? value : "") &&
             append_text(j, "\r\n");
    return ok ? MHD_YES : MHD_NO;
}

static int append_header(struct job *j, const char *name, const char *value)
{
    return append_text(j, name) && append_text(j, ": ") &&
           append_text(j, value) && append_text(j, "\r\n");
}

/* The client's own, but with the key that the guard has found in the body. */
static int append_headers(struct job *j, const once_exchange *x)
{
    j->key = x != NULL ? once_exchange_key(x) : NULL;
    (void)MHD_get_connection_values(j->connection, MHD_HEADER_KIND, add_header,
                                    j);
    return j->key == NULL || append_header(j, "Idempotency-Key", j->key);
}

/* The question of `once_probe`: no body, and nothing of one. */
static int compose_probe(struct job *j, const once_mhd_call *call)
{
    const once_exchange *x = once_mhd_exchange(call);
    char number[16];
    int ok = append_text(j, "GET ") && append_text(j, j->location->probe) &&
             append_text(j, " HTTP/1.1\r\n") && append_headers(j, x);

    (void)snprintf(number, sizeof(number), "%u", once_exchange_attempt(x));
    return ok && append_header(j, "Idempotency-Attempt", number) &&
           append_header(j, "Idempotency-Record", once_exchange_record(x)) &&
           append_header(j, "Idempotency-Probe", "1") &&
           append_text(j, "Connection: close\r\n\r\n");
}

static int compose(struct job *j, const once_mhd_call *call, const char *method)
{
    const once_exchange *x = once_mhd_exchange(call);
    char line[128];
    int ok;

    ok = append_text(j, method) && append_text(j, " ") &&
         append_text(j, once_mhd_target(call)) &&
         append_text(j, " HTTP/1.1\r\n") && append_headers(j, x);
    if (x != NULL && strcmp(once_exchange_status(x), "new") == 0 &&
        !j->location->guard.dry_run) {
        (void)snprintf(line, sizeof(line), "Idempotency-Attempt: %u\r\n",
                       once_exchange_attempt(x));
        ok = ok && append_text(j, line);
        if (j->location->guard.probe)
            ok = ok && append_header(j, "Idempotency-Record",
                                     once_exchange_record(x));
    }
    (void)snprintf(line, sizeof(line),
                   "Content-Length: %zu\r\nConnection: close\r\n\r\n",
                   j->body_size);
    j->no_body = strcmp(method, "HEAD") == 0;
    return ok && append_text(j, line) &&
           append(&j->request, &j->size, &j->room, j->body, j->body_size);
}

static enum MHD_Result job_start(struct job *j)
{
    MHD_suspend_connection(j->connection);
    j->started = 1;
    if (pthread_create(&j->thread, NULL, job_run, j) != 0) {
        j->started = 0;
        MHD_resume_connection(j->connection);
        return MHD_NO;
    }
    return MHD_YES;
}

/* ---- The answer ------------------------------------------------------------- */

static ssize_t stream_read(void *cls, uint64_t at, char *out, size_t max)
{
    struct job *j = cls;
    size_t left = j->forward.body_size - j->told;
    ssize_t n;

    (void)at;
    if (left > 0) {
        left = left < max ? left : max;
        memcpy(out, j->forward.body + j->told, left);
        j->told += left;
        return (ssize_t)left;
    }
    if (j->server->conf.threaded) { /* It is our own thread that waits. */
        n = recv(j->forward.fd, out, max, 0);
        return n > 0 ? n
                     : (n == 0 ? MHD_CONTENT_READER_END_OF_STREAM
                               : MHD_CONTENT_READER_END_WITH_ERROR);
    }
    pthread_mutex_lock(&j->lock);
    n = recv(j->forward.fd, out, max, MSG_DONTWAIT);
    if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK) && !j->over) {
        MHD_suspend_connection(j->connection);
        j->starving = 1;
        pthread_cond_signal(&j->changed);
        n = 0;
    } else if (n == 0) {
        n = MHD_CONTENT_READER_END_OF_STREAM;
    } else if (n < 0) {
        n = MHD_CONTENT_READER_END_WITH_ERROR;
    }
    pthread_mutex_unlock(&j->lock);
    return n;
}

static void stream_done(void *cls)
{
    job_cut(cls);
    job_drop(cls);
}

static enum MHD_Result tell(struct job *j, once_mhd_call *call)
{
    const struct forward *f = &j->forward;
    once_http_answer a = ONCE_HTTP_ANSWER_INIT;

    a.status = f->status;
    a.headers = f->headers;
    a.n = f->n;
    switch (f->result) {
    case FORWARD_WHOLE:
        a.body = (once_bytes){f->body, f->body_size};
        return once_mhd_answer(call, &a);
    case FORWARD_STREAM:
        j->references++; /* nobody else has it yet */
        return once_mhd_stream(call, &a, stream_read, j, stream_done);
    case FORWARD_UNSENT:
        a.status = MHD_HTTP_BAD_GATEWAY;
        a.outcome = ONCE_HTTP_NOT_APPLIED;
        a.n = 0;
        return once_mhd_answer(call, &a);
    case FORWARD_TIMEOUT:
        return once_mhd_broken(call, MHD_HTTP_GATEWAY_TIMEOUT);
    case FORWARD_BROKEN:
        break;
    }
    return MHD_NO;
}

static enum MHD_Result handle(void *user, once_mhd_call *call,
                              struct MHD_Connection *c, const char *url,
                              const char *method, const char *version,
                              const char *data, size_t *size, void **own)
{
    struct job *j = *own;
    size_t n = *size;

    (void)url;
    (void)version;
    if (j == NULL) {
        *own = j = job_new(user, c);
        return j != NULL ? MHD_YES : MHD_NO;
    }
    if (n > 0) {
        *size = 0;
        return append(&j->body, &j->body_size, &j->body_room, data, n) ? MHD_YES
                                                                       : MHD_NO;
    }
    if (!j->started && !compose(j, call, method))
        return MHD_NO;
    if (!j->started && !j->server->conf.threaded)
        return job_start(j);
    if (!j->started) {
        j->started = 1;
        (void)job_run(j); /* It is our own thread that waits. */
    }
    assert(j->done);
    return tell(j, call);
}

/* Asks the scenario's upstream, and passes on what came, as it came. */
static enum MHD_Result probe(void *user, once_mhd_call *call,
                             struct MHD_Connection *c, void **own)
{
    struct job *j = *own;
    once_http_answer a = ONCE_HTTP_ANSWER_INIT;
    enum MHD_Result rc;

    if (j == NULL) {
        *own = j = job_new(user, c);
        if (j == NULL || !compose_probe(j, call))
            return MHD_NO;
        if (!j->server->conf.threaded)
            return job_start(j);
        j->started = 1;
        (void)job_run(j);
    }
    a.status = j->forward.status;
    a.headers = j->forward.headers;
    a.n = j->forward.n;
    a.body = (once_bytes){j->forward.body, j->forward.body_size};
    *own = NULL;
    rc = once_mhd_probed(call, j->forward.result == FORWARD_WHOLE ? &a : NULL);
    job_drop(j);
    return rc;
}

/* ---- Who may come in, and the access log ------------------------------------ */

/* A file of lines "name:{PLAIN}password". */
static int knows(const char *path, const char *name, const char *password)
{
    char *line = NULL, want[256];
    size_t room = 0;
    int found = 0;
    FILE *f = fopen(path, "r");

    if (f == NULL || name == NULL || password == NULL)
        goto out;
    (void)snprintf(want, sizeof(want), "%s:{PLAIN}%s\n", name, password);
    while (!found && getline(&line, &room, f) > 0)
        found = strcmp(line, want) == 0;
out:
    free(line);
    if (f != NULL)
        (void)fclose(f);
    return found;
}

static int is_user(const struct location *l, struct MHD_Connection *c)
{
    char *password = NULL;
    char *name = MHD_basic_auth_get_username_password(c, &password);
    int known = knows(l->users_file, name, password);

    MHD_free(name);
    MHD_free(password);
    return known;
}

static struct MHD_Response *admit(void *user, struct MHD_Connection *c,
                                  const char *url, const char *method,
                                  unsigned *status)
{
    const struct location *l = user;
    struct MHD_Response *refusal = NULL;

    (void)url;
    (void)method;
    pthread_mutex_lock(&l->server->lock);
    l->server->calls++;
    pthread_mutex_unlock(&l->server->lock);
    *status = 0;
    if (l->users && !is_user(l, c))
        *status = MHD_HTTP_UNAUTHORIZED;
    else if (l->denied)
        *status = MHD_HTTP_FORBIDDEN;
    if (*status != 0)
        refusal =
            MHD_create_response_from_buffer(0, NULL, MHD_RESPMEM_PERSISTENT);
    if (*status == MHD_HTTP_UNAUTHORIZED && refusal != NULL)
        (void)MHD_add_response_header(refusal, "WWW-Authenticate",
                                      "Basic realm=\"shop\"");
    return refusal;
}

static void log_access(const struct server *s, const once_mhd_call *call)
{
    const once_exchange *x = once_mhd_exchange(call);
    const char *target = once_mhd_target(call);
    char line[512], number[16] = "-", apart[24] = "-";
    int n;

    if (x != NULL && once_exchange_attempt(x) > 0)
        (void)snprintf(number, sizeof(number), "%u", once_exchange_attempt(x));
    if (x != NULL && once_exchange_apart(x) >= 0)
        (void)snprintf(apart, sizeof(apart), "%lld",
                       (long long)once_exchange_apart(x));
    n = snprintf(line, sizeof(line),
                 "%d - %.*s %u once=%s would=%s apart=%s attempt=%s hash=%s\n",
                 (int)getpid(), (int)strcspn(target, "?"), target,
                 once_mhd_status(call),
                 x != NULL ? once_exchange_status(x) : "-",
                 x != NULL ? once_exchange_would(x) : "-", apart, number,
                 x != NULL ? once_exchange_hash(x) : "-");
    if (n > 0 && (size_t)n < sizeof(line) &&
        write(s->access_log, line, (size_t)n) != n)
        perror("[error] access_log");
}

static void ended(void *user, once_mhd_call *call, void **own)
{
    struct location *l = user;
    struct server *s = l->server;

    log_access(s, call);
    if (*own != NULL)
        job_drop(*own);
    pthread_mutex_lock(&s->lock);
    s->calls--;
    pthread_cond_signal(&s->idle);
    pthread_mutex_unlock(&s->lock);
}

static void on_event(void *user, const char *text)
{
    (void)user;
    fprintf(stderr, "[error] once: %s\n", text);
}

/* ---- Start and end ------------------------------------------------------------ */

static int open_stores(struct server *s, int check)
{
    size_t i;

    for (i = 0; i < s->conf.n_stores; i++) {
        struct store *store = &s->conf.stores[i];
        once_engine_options o = ONCE_ENGINE_OPTIONS_INIT;
        once_error err;
        int durable, shared, rc;

        o.event = on_event;
        rc = check ? once_store_check(store->url, &durable, &shared, &err)
                   : once_engine_open(store->url, &o, &err, &store->engine);
        if (rc != ONCE_OK) {
            fprintf(stderr, "[emerg] once_store %s: %s\n", store->name,
                    err.text);
            return 0;
        }
    }
    return 1;
}

/* The guard names its members; a file has directives. */
static void print_refusal(const struct location *l, const char *text)
{
    static const char *const members[][2] = {
        {"scope", "once_scope"},
        {"lease_ms", "once_lease"},
        {"in_flight_ms", "once_in_flight"},
        {"ttl_ms", "once_ttl"},
        {"ttl_failure_ms", "failure="},
        {"key_json", "once_key_json"},
        {"key_time", "once_key_time"},
        {"key_space", "once_key_space"},
        {"final", "once_final"},
        {"release", "once_release"},
        {"unknown", "once_unknown"},
        {"fingerprint", "once_fingerprint"},
        {"methods", "once_methods"},
        {"max_response", "once_max_response"},
        {"store_failure", "once_store_failure"},
        {"probe", "once_probe"},
        {"accept", "accept="},
        {"lookup", "once_lookup"},
        {"lookup_ms", "once_lookup"},
        {"scope_off", "once_scope"},
        {"dry_run", "once_dry_run"},
        {"hide_header", "once_hide_header"},
    };
    size_t i, size;

    fprintf(stderr, "[emerg] location %s: ", l->path);
    for (; *text != '\0'; text += size) {
        const char *word = NULL;

        size = strspn(text, "abcdefghijklmnopqrstuvwxyz_");
        for (i = 0; i < sizeof(members) / sizeof(members[0]); i++)
            if (strlen(members[i][0]) == size &&
                strncmp(text, members[i][0], size) == 0)
                word = members[i][1];
        size = size > 0 ? size : 1;
        fprintf(stderr, "%.*s", word != NULL ? (int)strlen(word) : (int)size,
                word != NULL ? word : text);
    }
    fputc('\n', stderr);
}

static int add_routes(struct server *s)
{
    size_t i;

    for (i = 0; i < s->conf.n_locations; i++) {
        struct location *l = &s->conf.locations[i];
        once_mhd_route r = ONCE_MHD_ROUTE_INIT;
        once_error err;

        l->server = s;
        if (l->store != NULL)
            l->guard.store_ms = (uint32_t)l->store->timeout_ms;
        l->guard.event = on_event;
        r.path = l->path;
        r.handler = handle;
        r.user = l;
        r.guard = l->store != NULL ? &l->guard : NULL;
        r.admit = admit;
        r.ended = ended;
        r.probe = l->guard.probe ? probe : NULL;
        r.lookup = (uint32_t)l->lookup;
        r.lookup_ms = l->lookup_ms;
        if (once_mhd_add(s->mhd, l->store != NULL ? l->store->engine : NULL, &r,
                         &err) != ONCE_OK) {
            print_refusal(l, err.text);
            return 0;
        }
    }
    return 1;
}

/* The same checks without stores, for -t: a guard needs an engine only later,
 * so memory will do. */
static int check_routes(struct server *s)
{
    once_error err;
    size_t i;

    if (!open_stores(s, 1))
        return 0;
    for (i = 0; i < s->conf.n_stores; i++)
        if (once_engine_open("memory:", NULL, &err,
                             &s->conf.stores[i].engine) != ONCE_OK)
            return 0;
    return add_routes(s);
}

static void cut_clients(struct server *s)
{
    struct job *j;

    pthread_mutex_lock(&s->lock);
    for (j = s->jobs; j != NULL; j = j->next) {
        const union MHD_ConnectionInfo *info = MHD_get_connection_info(
            j->connection, MHD_CONNECTION_INFO_CONNECTION_FD);

        (void)shutdown(info->connect_fd, SHUT_RDWR);
        job_cut(j);
    }
    pthread_mutex_unlock(&s->lock);
}

static void wait_calls(struct server *s)
{
    pthread_mutex_lock(&s->lock);
    while (s->calls > 0)
        pthread_cond_wait(&s->idle, &s->lock);
    pthread_mutex_unlock(&s->lock);
}

/* A handler may have begun since it was looked: hence again and again. */
static void wait_jobs(struct server *s)
{
    const struct timespec nap = {.tv_nsec = 20000000};
    int any = 1;

    while (any) {
        cut_clients(s);
        (void)nanosleep(&nap, NULL);
        pthread_mutex_lock(&s->lock);
        any = s->jobs != NULL;
        pthread_mutex_unlock(&s->lock);
    }
}

static struct MHD_Daemon *start(struct server *s)
{
    unsigned flags = MHD_USE_EPOLL_INTERNAL_THREAD | MHD_ALLOW_SUSPEND_RESUME;
    unsigned pool = THREADS;

    if (s->conf.threaded) {
        flags = MHD_USE_INTERNAL_POLLING_THREAD |
                MHD_USE_THREAD_PER_CONNECTION | MHD_USE_POLL;
        pool = 0;
    }
    return MHD_start_daemon(
        flags | MHD_USE_ERROR_LOG, 0, NULL, NULL, once_mhd_access, s->mhd,
        MHD_OPTION_ARRAY, once_mhd_options(s->mhd), MHD_OPTION_SOCK_ADDR,
        (const struct sockaddr *)&s->conf.listen, MHD_OPTION_CONNECTION_LIMIT,
        (unsigned)CONNECTIONS_MAX, MHD_OPTION_CONNECTION_TIMEOUT, 75u,
        MHD_OPTION_CONNECTION_MEMORY_LIMIT, (size_t)65536,
        pool > 0 ? MHD_OPTION_THREAD_POOL_SIZE : MHD_OPTION_END, pool,
        MHD_OPTION_END);
}

/* Until a signal says how to end. */
static int serve(struct server *s, const sigset_t *ends)
{
    struct MHD_Daemon *d = start(s);
    int fd, sig;

    if (d == NULL) {
        fprintf(stderr, "[emerg] listen: %s\n", strerror(errno));
        return 0;
    }
    (void)sigwait(ends, &sig);
    fd = MHD_quiesce_daemon(d);
    if (sig == SIGQUIT) {
        fprintf(stderr, "[notice] gracefully shutting down\n");
        once_mhd_quiet(s->mhd);
        wait_calls(s);
    } else {
        cut_clients(s);
        once_mhd_quiet(s->mhd);
        wait_jobs(s);
    }
    MHD_stop_daemon(d);
    if (fd >= 0)
        (void)close(fd);
    return 1;
}

static int open_logs(struct server *s)
{
    int fd = open(s->conf.error_log, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC,
                  0600);

    s->access_log = open(s->conf.access_log,
                         O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0600);
    if (s->access_log < 0 || fd < 0 || dup2(fd, STDERR_FILENO) < 0) {
        fprintf(stderr, "[emerg] logs: %s\n", strerror(errno));
        return 0;
    }
    (void)close(fd);
    return 1;
}

static void close_all(struct server *s)
{
    size_t i;

    once_mhd_close(s->mhd);
    for (i = 0; i < s->conf.n_stores; i++)
        once_engine_close(s->conf.stores[i].engine);
    pthread_cond_destroy(&s->idle);
    pthread_mutex_destroy(&s->lock);
    if (s->access_log >= 0)
        (void)close(s->access_log);
    free(s);
}

int main(int argc, char **argv)
{
    int check = argc == 3 && strcmp(argv[1], "-t") == 0, ok = 0;
    struct server *s = calloc(1, sizeof(*s));
    sigset_t ends;

    if (s == NULL || (argc != 2 && !check)) {
        fprintf(stderr, "usage: guarded_server [-t] FILE\n");
        free(s);
        return 2;
    }
    s->access_log = -1;
    pthread_mutex_init(&s->lock, NULL);
    pthread_cond_init(&s->idle, NULL);
    (void)sigemptyset(&ends);
    (void)sigaddset(&ends, SIGTERM);
    (void)sigaddset(&ends, SIGQUIT);
    (void)sigaddset(&ends, SIGINT);
    (void)pthread_sigmask(SIG_BLOCK, &ends, NULL);
    (void)signal(SIGPIPE, SIG_IGN);
    if (once_mhd_open(NULL, &s->mhd) != ONCE_OK)
        goto out;
    if (!conf_read(&s->conf, argv[argc - 1]))
        goto out;
    if (check)
        ok = check_routes(s);
    else
        ok = open_stores(s, 0) && add_routes(s) && open_logs(s) &&
             serve(s, &ends);
    if (check && ok)
        fprintf(stderr, "configuration file test is successful\n");
out:
    close_all(s);
    return ok ? 0 : 1;
}
