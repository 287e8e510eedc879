/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_client.c - the client against a server that plays a script, answer by
 * answer, and writes down every key and body that it sees.
 *
 * Sockets and file are real; clocks, pauses and dice are the test's, so what
 * is said of time is a number and nothing is waited for.
 */
#include <once/client.h>

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <sqlite3.h>
#include <strings.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "t.h"

#define COUNT(a) (sizeof(a) / sizeof((a)[0]))
#define SECRET "zq7-secret"

/* ---- The world of one test --------------------------------------------- */

enum { SEEN_MAX = 400, HEAD_MAX = 8192 };

/* Instead of an answer: */
#define DROP "drop"   /* read the request, close                       */
#define RESET "reset" /* read the request, reset                       */
#define LOCK "lock "  /* lock the client's file, then answer the rest   */

static struct world {
    char folder[64], file[80], url[64];
    once_client *client;
    /* The server. */
    int listening;
    pthread_t thread;
    pthread_mutex_t lock;
    const char *const *script; /* ends in NULL; the last one is repeated */
    size_t step, n_seen;
    char key[SEEN_MAX][64];
    char auth[SEEN_MAX][64];
    char line[SEEN_MAX][64]; /* the request's */
    size_t body_size[SEEN_MAX];
    /* Time. */
    atomic_uint_fast64_t now, wall;
    uint64_t pauses[1000];
    size_t n_pauses;
    void (*at_pause)(void);
    sqlite3 *locker;
} w;

static uint64_t now(void *user)
{
    (void)user;
    return w.now;
}

static uint64_t wall(void *user)
{
    (void)user;
    return w.wall;
}

static int nap(void *user, uint64_t ms)
{
    (void)user;
    (void)pthread_mutex_lock(&w.lock);
    if (w.n_pauses < COUNT(w.pauses))
        w.pauses[w.n_pauses++] = ms;
    (void)pthread_mutex_unlock(&w.lock);
    w.now += ms;
    w.wall += ms;
    if (w.at_pause != NULL)
        w.at_pause();
    return 0;
}

/* Always the longest pause. */
static void dice(void *user, void *out, size_t size)
{
    (void)user;
    memset(out, 0xff, size);
}

static void lock_file(void)
{
    if (w.locker == NULL && sqlite3_open(w.file, &w.locker) == SQLITE_OK)
        T_EQ(sqlite3_exec(w.locker, "BEGIN IMMEDIATE", NULL, NULL, NULL),
             SQLITE_OK);
}

static void unlock_file(void)
{
    if (w.locker != NULL) {
        (void)sqlite3_exec(w.locker, "ROLLBACK", NULL, NULL, NULL);
        (void)sqlite3_close(w.locker);
        w.locker = NULL;
    }
}

static int64_t ask_file(const char *sql)
{
    sqlite3_stmt *q = NULL;
    int64_t value = -1;
    sqlite3 *db = NULL;

    if (sqlite3_open(w.file, &db) == SQLITE_OK &&
        sqlite3_prepare_v2(db, sql, -1, &q, NULL) == SQLITE_OK &&
        sqlite3_step(q) == SQLITE_ROW)
        value = sqlite3_column_int64(q, 0);
    (void)sqlite3_finalize(q);
    (void)sqlite3_close(db);
    return value;
}

/* ---- The server -------------------------------------------------------- */

static void copy_header(const char *head, const char *name, char out[64])
{
    const char *at = strcasestr(head, name);
    size_t size;

    out[0] = '\0';
    if (at == NULL)
        return;
    at += strlen(name);
    size = strcspn(at, "\r");
    snprintf(out, 64, "%.*s", (int)size, at);
}

/* Reads a request; 0 if the connection ended before. */
static int read_request(int fd)
{
    char head[HEAD_MAX], length[64], *end;
    size_t have = 0, body;
    ssize_t n;

    do {
        n = recv(fd, head + have, sizeof(head) - 1 - have, 0);
        if (n <= 0 || head[0] == 0x16) /* a greeting of TLS */
            return 0;
        have += (size_t)n;
        head[have] = '\0';
        end = strstr(head, "\r\n\r\n");
    } while (end == NULL);
    copy_header(head, "\r\nContent-Length: ", length);
    body = strtoul(length, NULL, 10);
    have -= (size_t)(end + 4 - head);
    (void)pthread_mutex_lock(&w.lock);
    if (w.n_seen < SEEN_MAX) {
        copy_header(head, "\r\nIdempotency-Key: ", w.key[w.n_seen]);
        copy_header(head, "\r\nAuthorization: ", w.auth[w.n_seen]);
        snprintf(w.line[w.n_seen], sizeof(w.line[0]), "%.*s",
                 (int)strcspn(head, "\r"), head);
        w.body_size[w.n_seen++] = body;
    }
    (void)pthread_mutex_unlock(&w.lock);
    while (have < body) {
        n = recv(fd, head, sizeof(head), 0);
        if (n <= 0)
            return 0;
        have += (size_t)n;
    }
    return 1;
}

static void play(int fd, const char *answer)
{
    struct linger hard = {1, 0};

    if (strncmp(answer, LOCK, 5) == 0) {
        lock_file();
        answer += 5;
    }
    if (strcmp(answer, RESET) == 0)
        (void)setsockopt(fd, SOL_SOCKET, SO_LINGER, &hard, sizeof(hard));
    else if (strcmp(answer, DROP) != 0)
        (void)send(fd, answer, strlen(answer), MSG_NOSIGNAL);
}

static void *serve(void *unused)
{
    int fd;

    (void)unused;
    while ((fd = accept(w.listening, NULL, NULL)) >= 0) {
        if (read_request(fd)) {
            const char *answer;

            (void)pthread_mutex_lock(&w.lock);
            answer = w.script[w.step];
            if (w.script[w.step + 1] != NULL)
                w.step++;
            (void)pthread_mutex_unlock(&w.lock);
            play(fd, answer);
        }
        (void)close(fd);
    }
    return NULL;
}

/* All answers close the connection, so that each attempt makes its own. */
#define ANSWER(head, body) "HTTP/1.1 " head "\r\nConnection: close\r\n" body
#define LENGTH(n) "Content-Length: " #n "\r\n"
#define CREATED                                                                \
    ANSWER("201 Created", LENGTH(5) "Idempotency-Status: new\r\n"              \
                                    "X-Made: a\r\nX-Made: b\r\n\r\nmade\n")
#define REPLAY                                                                 \
    ANSWER("201 Created", LENGTH(5) "Idempotent-Replayed: true\r\n"            \
                                    "Idempotency-Status: replayed\r\n\r\n"     \
                                    "made\n")
#define PROBLEM(status, code, more)                                            \
    ANSWER(status, "Content-Type: application/problem+json\r\n" more           \
                   "\r\n{\"type\":\"urn:problem-type:once:" code               \
                   "\",\"code\":\"" code "\",\"safe_new_key\":false}")
#define IN_FLIGHT(more) PROBLEM("409 Conflict", "in-flight", more)
#define UNKNOWN PROBLEM("409 Conflict", "outcome-unknown", "")

static int listen_somewhere(uint16_t *port)
{
    struct sockaddr_in at = {.sin_family = AF_INET};
    socklen_t size = sizeof(at);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

    at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (fd < 0 || bind(fd, (struct sockaddr *)&at, sizeof(at)) < 0 ||
        getsockname(fd, (struct sockaddr *)&at, &size) < 0)
        abort();
    *port = ntohs(at.sin_port);
    return fd;
}

static void start_server(const char *const *script)
{
    uint16_t port = 0;

    w.listening = listen_somewhere(&port);
    snprintf(w.url, sizeof(w.url), "http://127.0.0.1:%u/charge", port);
    w.script = script;
    if (script == NULL)
        return; /* bound and not listening: connections are refused */
    if (listen(w.listening, 64) < 0 ||
        pthread_create(&w.thread, NULL, serve, NULL) != 0)
        abort();
}

static void open_client(const once_client_options *more)
{
    once_client_options o = ONCE_CLIENT_OPTIONS_INIT;
    once_error err = {0, ""};

    if (more != NULL)
        o = *more;
    o.clock = now;
    o.wall = wall;
    o.pause = nap;
    o.random = dice;
    if (o.busy_ms == 0)
        o.busy_ms = 20000;
    if (o.breaker_failures == 0)
        o.breaker_failures = 1000;
    T_EQ(once_client_open(w.file, &o, &err, &w.client), ONCE_OK);
}

static void begin_with(const char *const *script,
                       const once_client_options *options)
{
    memset(&w, 0, sizeof(w));
    (void)pthread_mutex_init(&w.lock, NULL);
    snprintf(w.folder, sizeof(w.folder), "/tmp/once-client-XXXXXX");
    if (mkdtemp(w.folder) == NULL)
        abort();
    snprintf(w.file, sizeof(w.file), "%s/client.db", w.folder);
    w.now = 1000;
    w.wall = UINT64_C(1795268095000);
    start_server(script);
    open_client(options);
}

static void begin(const char *const *script)
{
    begin_with(script, NULL);
}

/* Looks through the files for what must not be there. */
static void look_for_secrets(void)
{
    static const char *const ends[] = {"", "-wal"};
    static char bytes[1 << 22];
    char path[100];
    size_t i, n;
    FILE *in;

    for (i = 0; i < COUNT(ends); i++) {
        snprintf(path, sizeof(path), "%s%s", w.file, ends[i]);
        in = fopen(path, "re");
        if (in == NULL)
            continue;
        n = fread(bytes, 1, sizeof(bytes), in);
        fclose(in);
        T_OK(n == 0 || memmem(bytes, n, SECRET, strlen(SECRET)) == NULL);
    }
}

static void finish(void)
{
    static const char *const ends[] = {"", "-wal", "-shm"};
    char path[100];
    size_t i;

    look_for_secrets();
    once_client_close(w.client);
    look_for_secrets();
    (void)shutdown(w.listening, SHUT_RDWR);
    if (w.script != NULL)
        (void)pthread_join(w.thread, NULL);
    (void)close(w.listening);
    unlock_file();
    for (i = 0; i < COUNT(ends); i++) {
        snprintf(path, sizeof(path), "%s%s", w.file, ends[i]);
        (void)unlink(path);
    }
    T_EQ(rmdir(w.folder), 0);
}

/* ---- Orders ------------------------------------------------------------ */

static once_bytes text(const char *s)
{
    once_bytes b = {s, strlen(s)};

    return b;
}

static const once_client_header headers[] = {
    {"Content-Type", "application/json", 0},
    {"Authorization", "Bearer " SECRET, 0},
};

static once_client_request order(const char *id)
{
    once_client_request r = ONCE_CLIENT_REQUEST_INIT;

    r.order = text(id);
    r.method = "POST";
    r.url = w.url;
    r.headers = headers;
    r.n_headers = COUNT(headers);
    r.body = text("{\"amount\":5}");
    return r;
}

static once_client_result send_it(const once_client_request *r, int outcome,
                                  int reason)
{
    once_client_result out = ONCE_CLIENT_RESULT_INIT;
    once_error err = {0, ""};
    int rc = once_client_send(w.client, r, &out, &err);

    /* What the server has written down by now may be read without the lock. */
    (void)pthread_mutex_lock(&w.lock);
    (void)pthread_mutex_unlock(&w.lock);
    if (rc != outcome || (rc > 0 && out.reason != reason))
        printf("#   send: %d, not %d; reason %d, not %d; %s%s\n", rc, outcome,
               out.reason, reason, out.text, err.text);
    T_EQ(rc, outcome);
    T_EQ(out.reason, reason);
    T_EQ(out.outcome, rc > 0 ? rc : 0);
    return out;
}

static once_client_result send_order(const char *id, int outcome, int reason)
{
    once_client_request r = order(id);

    return send_it(&r, outcome, reason);
}

static void sent(const char *id, int outcome, int reason)
{
    once_client_result r = send_order(id, outcome, reason);

    once_client_result_clear(&r);
}

#define DONE ONCE_CLIENT_DONE
#define NOT_DONE ONCE_CLIENT_NOT_DONE
#define IN_DOUBT ONCE_CLIENT_UNKNOWN
#define WHY(r) ONCE_CLIENT_##r

static void one_key_was_seen(size_t times)
{
    size_t i;

    T_EQ(w.n_seen, times);
    for (i = 0; i < w.n_seen; i++) {
        T_STR(w.key[i], w.key[0]);
        T_EQ(strlen(w.key[i]), 36);
    }
}

/* ---- Outcomes ---------------------------------------------------------- */

static void what_is_done_is_kept_and_not_sent_again(void)
{
    static const char *const script[] = {CREATED, NULL};
    once_client_result r;
    int i;

    begin(script);
    for (i = 0; i < 3; i++) {
        r = send_order("42", DONE, WHY(ANSWERED));
        T_EQ(r.status, 201);
        T_EQ(r.replayed, 0);
        T_EQ(r.kept, i > 0);
        T_EQ(r.final, 1);
        T_EQ(r.attempts, i == 0);
        T_EQ(r.doubt, 0);
        T_EQ(r.body.size, 5);
        T_MEM(r.body.data, "made\n", 6);
        T_EQ(r.n_headers, 5);
        T_STR(r.headers[3].name, "X-Made");
        T_STR(r.headers[3].value, "a");
        T_STR(r.headers[4].value, "b");
        T_EQ(strlen(r.key_hash), 16);
        T_OK(strstr(w.key[0], r.key_hash) == NULL);
        once_client_result_clear(&r);
        T_OK(r.memory == NULL && r.body.data == NULL);
    }
    one_key_was_seen(1);
    T_STR(w.auth[0], "Bearer " SECRET);
    /* The request is no longer needed, and no longer there. */
    T_EQ(ask_file("SELECT length(body)+length(headers) FROM orders"), 0);
    finish();
}

static void another_request_under_the_same_id_never_leaves(void)
{
    static const char *const script[] = {DROP, CREATED, NULL};
    once_client_request r;
    once_client_result out;

    begin(script);
    sent("42", DONE, WHY(ANSWERED));
    r = order("42");
    r.body = text("{\"amount\":6}");
    out = send_it(&r, ONCE_CLIENT_MISMATCH, WHY(CHANGED));
    T_EQ(out.attempts, 0);
    once_client_result_clear(&out);
    r = order("42");
    r.url = "http://127.0.0.1:1/other";
    out = send_it(&r, ONCE_CLIENT_MISMATCH, WHY(CHANGED));
    once_client_result_clear(&out);
    one_key_was_seen(2);
    /* The same id of somebody else is another order. */
    r = order("42");
    r.body = text("{\"amount\":6}");
    r.group = "mail";
    out = send_it(&r, DONE, WHY(ANSWERED));
    once_client_result_clear(&out);
    T_EQ(w.n_seen, 3);
    T_OK(strcmp(w.key[2], w.key[0]) != 0);
    finish();
}

static void lost_answers_are_asked_for_with_the_same_key(void)
{
    static const char *const script[] = {
        DROP,
        RESET,
        ANSWER("201 Created", LENGTH(500) "\r\nhalf"),
        ANSWER("201 Created", "Content-Len"), /* cut in the head */
        ANSWER("201 Created", ""),
        "garbage that is no HTTP\r\n\r\n",
        ANSWER("502 Bad Gateway", LENGTH(0) "\r\n"),
        ANSWER("504 Gateway Time-out", LENGTH(0) "\r\n"),
        ANSWER("500 Oops", LENGTH(0) "\r\n"),
        REPLAY,
        NULL,
    };
    once_client_result r;

    begin(script);
    r = send_order("42", DONE, WHY(ANSWERED));
    T_EQ(r.attempts, 10);
    T_EQ(r.replayed, 1);
    T_MEM(r.body.data, "made\n", 6);
    once_client_result_clear(&r);
    one_key_was_seen(10);
    T_EQ(w.n_pauses, 9);
    finish();
}

static void refusals_of_the_record_are_final(void)
{
    static const char *const script[] = {
        DROP,
        ANSWER("402 No", LENGTH(2) "Idempotency-Status: new\r\n\r\nno"),
        REPLAY,
        NULL,
    };
    once_client_request r;
    once_client_result out;

    begin(script);
    out = send_order("42", NOT_DONE, WHY(ANSWERED));
    T_EQ(out.status, 402);
    T_EQ(out.final, 1);
    T_EQ(out.attempts, 2);
    once_client_result_clear(&out);
    out = send_order("42", NOT_DONE, WHY(ANSWERED));
    T_EQ(out.kept, 1);
    T_MEM(out.body.data, "no", 3);
    once_client_result_clear(&out);
    T_EQ(w.n_seen, 2);
    /* A gateway may be told to try failures again. */
    r = order("42");
    r.ask_refused = 1;
    out = send_it(&r, DONE, WHY(ANSWERED));
    once_client_result_clear(&out);
    one_key_was_seen(3);
    finish();
}

static void refusals_without_a_record_can_be_mended(void)
{
    static const char *const script[] = {
        ANSWER("401 Who", LENGTH(0) "\r\n"),
        PROBLEM("401 Who", "scope-missing", ""),
        ANSWER("307 Else", LENGTH(0) "Location: http://127.0.0.1:1/\r\n\r\n"),
        CREATED,
        NULL,
    };
    once_client_result r;
    int i;

    begin(script);
    for (i = 0; i < 3; i++) {
        r = send_order("42", NOT_DONE, WHY(REJECTED));
        T_EQ(r.final, 0);
        T_EQ(r.doubt, 0);
        T_EQ(r.attempts, 1);
        once_client_result_clear(&r);
    }
    sent("42", DONE, WHY(ANSWERED));
    one_key_was_seen(4);
    T_EQ(w.n_pauses, 0);
    finish();
}

/* The 401 is about the second attempt; the first one may have charged. */
static void a_refusal_says_nothing_of_an_earlier_attempt(void)
{
    static const char *const script[] = {
        DROP, ANSWER("401 Who", LENGTH(0) "\r\n"), REPLAY, NULL};
    once_client_result r;

    begin(script);
    r = send_order("42", IN_DOUBT, WHY(IN_DOUBT));
    T_EQ(r.status, 401);
    T_EQ(r.doubt, 1);
    T_EQ(r.final, 0);
    once_client_result_clear(&r);
    T_EQ(ask_file("SELECT state FROM orders"), ONCE_CLIENT_OPEN);
    sent("42", DONE, WHY(ANSWERED));
    one_key_was_seen(3);
    T_EQ(ask_file("SELECT doubt FROM orders"), 0);
    finish();
}

static void an_unknown_outcome_is_told_at_once_and_asked_again(void)
{
    static const char *const script[] = {
        UNKNOWN, PROBLEM("502 Bad Gateway", "outcome-unknown", ""), UNKNOWN,
        REPLAY, NULL};
    once_client_result r;
    int i;

    begin(script);
    for (i = 0; i < 3; i++) {
        r = send_order("42", IN_DOUBT, WHY(INDETERMINATE));
        T_EQ(r.attempts, 1);
        once_client_result_clear(&r);
    }
    sent("42", DONE, WHY(ANSWERED)); /* somebody has resolved it */
    one_key_was_seen(4);
    T_EQ(w.n_pauses, 0);
    finish();
}

static void a_recorded_failure_of_the_server_is_unknown(void)
{
    static const char *const script[] = {
        ANSWER("500 Oops", LENGTH(0) "Idempotency-Status: new\r\n\r\n"),
        ANSWER("500 Oops", LENGTH(0) "Idempotent-Replayed: true\r\n\r\n"),
        NULL,
    };

    begin(script);
    sent("42", IN_DOUBT, WHY(FAILED));
    one_key_was_seen(2);
    finish();
}

static void an_answer_that_was_not_kept_means_done(void)
{
    static const char *const script[] = {
        DROP, PROBLEM("409 Conflict", "response-unavailable", ""), NULL};
    once_client_result r;

    begin(script);
    r = send_order("42", DONE, WHY(ANSWER_LOST));
    T_EQ(r.final, 1);
    once_client_result_clear(&r);
    one_key_was_seen(2);
    finish();
}

static void an_answer_that_is_too_long_is_not_cut(void)
{
    static const char *const script[] = {CREATED, NULL};
    once_client_options o = ONCE_CLIENT_OPTIONS_INIT;
    once_client_result r;

    o.response_max = 4;
    begin_with(script, &o);
    r = send_order("42", DONE, WHY(ANSWER_LOST));
    T_EQ(r.body.size, 0);
    T_EQ(r.status, 201);
    once_client_result_clear(&r);
    one_key_was_seen(1);
    finish();
}

static void endless_headers_are_not_read(void)
{
    static char flood[200000];
    static const char *script[] = {flood, REPLAY, NULL};
    size_t n;

    n = (size_t)snprintf(flood, sizeof(flood), "HTTP/1.1 201 Created\r\n");
    while (n < sizeof(flood) - 200)
        n += (size_t)snprintf(flood + n, sizeof(flood) - n, "X: %0100d\r\n", 1);
    begin(script);
    sent("42", DONE, WHY(ANSWERED));
    one_key_was_seen(2);
    finish();
}

static void redirects_are_not_followed(void)
{
    static char answer[300];
    static const char *script[] = {answer, NULL};

    begin(script);
    snprintf(answer, sizeof(answer),
             ANSWER("302 Else", LENGTH(0) "Location: %s\r\n\r\n"), w.url);
    sent("42", IN_DOUBT, WHY(REDIRECTED));
    one_key_was_seen(1);
    finish();
}

static void an_interim_answer_is_passed_over(void)
{
    static const char *const script[] = {
        "HTTP/1.1 103 Early\r\nIdempotency-Status: replayed\r\n\r\n" CREATED,
        NULL};
    once_client_result r;

    begin(script);
    r = send_order("42", DONE, WHY(ANSWERED));
    T_EQ(r.replayed, 0);
    T_EQ(r.n_headers, 5);
    once_client_result_clear(&r);
    finish();
}

static void nobody_there_is_not_done(void)
{
    once_client_result r;

    begin(NULL);
    r = send_order("42", NOT_DONE, WHY(NOT_SENT));
    T_EQ(r.attempts, 0);
    T_EQ(r.doubt, 0);
    T_EQ(r.final, 0);
    T_EQ(r.status, 0);
    once_client_result_clear(&r);
    T_OK(w.n_pauses > 5);
    T_OK(w.now <= 61000);
    T_EQ(ask_file("SELECT state FROM orders"), ONCE_CLIENT_PREPARED);
    T_EQ(ask_file("SELECT attempts FROM orders"), 0);
    finish();
}

/* A server that cannot prove who it is gets no byte, and no second try. */
static void a_server_without_a_certificate_gets_nothing(void)
{
    static const char *const script[] = {CREATED, NULL};
    char url[80];
    once_client_request r;
    once_client_result out;

    begin(script);
    snprintf(url, sizeof(url), "https%.60s", w.url + 4);
    r = order("42");
    r.url = url;
    r.deadline_ms = 3000;
    out = send_it(&r, NOT_DONE, WHY(NOT_SENT));
    T_EQ(out.attempts, 0);
    once_client_result_clear(&out);
    T_EQ(w.n_seen, 0);
    finish();
}

/* ---- Time -------------------------------------------------------------- */

static void pauses_double_and_end_with_the_deadline(void)
{
    static const char *const script[] = {DROP, NULL};
    once_client_options o = ONCE_CLIENT_OPTIONS_INIT;
    once_client_result r;
    uint64_t sum = 0;
    size_t i;

    o.deadline_ms = 20000;
    o.backoff_ms = 100;
    o.backoff_max_ms = 3000;
    begin_with(script, &o);
    r = send_order("42", IN_DOUBT, WHY(IN_DOUBT));
    T_EQ(r.doubt, r.attempts);
    T_EQ(r.attempts, w.n_seen);
    once_client_result_clear(&r);
    for (i = 0; i < 5; i++)
        T_EQ(w.pauses[i], 100 << i);
    for (i = 0; i < w.n_pauses; i++) {
        T_OK(w.pauses[i] <= 3000);
        sum += w.pauses[i];
    }
    T_OK(sum < 20000);
    one_key_was_seen(w.n_seen);
    finish();
}

static void retry_after_is_honoured(void)
{
    static const char *const script[] = {
        IN_FLIGHT("Retry-After: 7\r\n"),
        PROBLEM("503 Later", "store-unavailable", "Retry-After: 3\r\n"),
        ANSWER("429 Slow",
               LENGTH(0) "Retry-After: "
                         "Sun, 06 Nov 1994 08:49:48 GMT\r\n"
                         "Date: Sun, 06 Nov 1994 08:49:37 GMT\r\n\r\n"),
        ANSWER("425 Early", LENGTH(0) "\r\n"),
        REPLAY,
        NULL,
    };

    begin(script);
    sent("42", DONE, WHY(ANSWERED));
    T_EQ(w.n_pauses, 4);
    T_OK(w.pauses[0] >= 7000 && w.pauses[0] <= 7200);
    T_OK(w.pauses[1] >= 3000 && w.pauses[1] <= 3400);
    T_OK(w.pauses[2] >= 11000 && w.pauses[2] <= 11800);
    T_OK(w.pauses[3] <= 1600);
    one_key_was_seen(5);
    finish();
}

static void nobody_waits_for_what_lies_behind_the_deadline(void)
{
    static const char *const script[] = {
        PROBLEM("503 Later", "store-unavailable", "Retry-After: 61\r\n"),
        IN_FLIGHT("Retry-After: 61\r\n"), NULL};
    once_client_result r;

    begin(script);
    /* "Nothing was done", says the gateway. */
    r = send_order("42", NOT_DONE, WHY(NOT_SENT));
    T_EQ(r.wait_ms, 61000);
    T_EQ(r.doubt, 0);
    T_EQ(r.attempts, 1);
    once_client_result_clear(&r);
    T_EQ(ask_file("SELECT state FROM orders"), ONCE_CLIENT_PREPARED);
    /* In flight is something else: it may be being done just now. */
    sent("42", IN_DOUBT, WHY(IN_DOUBT));
    T_EQ(w.n_pauses, 0);
    one_key_was_seen(2);
    finish();
}

static void attempts_have_a_limit(void)
{
    static const char *const script[] = {DROP, NULL};
    once_client_options o = ONCE_CLIENT_OPTIONS_INIT;

    o.attempts_max = 3;
    begin_with(script, &o);
    sent("42", IN_DOUBT, WHY(IN_DOUBT));
    one_key_was_seen(3);
    finish();
}

static void a_silent_server_is_not_waited_for(void)
{
    once_client_options o = ONCE_CLIENT_OPTIONS_INIT;

    o.attempt_ms = 50;
    o.attempts_max = 2;
    begin_with(NULL, &o);
    /* The kernel takes connections, and nobody reads them. */
    T_EQ(listen(w.listening, 8), 0);
    sent("42", IN_DOUBT, WHY(IN_DOUBT));
    T_EQ(ask_file("SELECT doubt FROM orders"), 2);
    finish();
}

static void a_host_that_keeps_failing_is_left_alone(void)
{
    once_client_options o = ONCE_CLIENT_OPTIONS_INIT;
    once_client_result r;

    o.breaker_failures = 3;
    o.breaker_ms = 30000;
    o.deadline_ms = 10000;
    begin_with(NULL, &o);
    r = send_order("1", NOT_DONE, WHY(NOT_SENT));
    once_client_result_clear(&r);
    T_EQ(w.n_pauses, 3); /* after each failure; then the circuit is open */
    r = send_order("2", NOT_DONE, WHY(NOT_SENT));
    T_STR(r.text, "the host keeps failing and is not asked for a while");
    once_client_result_clear(&r);
    T_EQ(w.n_pauses, 3);
    /* Somebody repairs it; the next one is the probe. */
    static const char *const script[] = {CREATED, NULL};

    w.script = script;
    T_EQ(listen(w.listening, 8), 0);
    T_EQ(pthread_create(&w.thread, NULL, serve, NULL), 0);
    w.now += 30000;
    sent("2", DONE, WHY(ANSWERED));
    sent("1", DONE, WHY(ANSWERED));
    T_EQ(w.n_seen, 2);
    finish();
}

static void a_key_that_may_be_forgotten_is_not_sent(void)
{
    static const char *const script[] = {DROP, NULL};
    once_client_options o = ONCE_CLIENT_OPTIONS_INIT;
    once_client_request r;
    once_client_result out;

    o.attempts_max = 1;
    o.horizon_ms = 3600000;
    begin_with(script, &o);
    sent("42", IN_DOUBT, WHY(IN_DOUBT));
    w.wall += 3600000;
    sent("42", IN_DOUBT, WHY(IN_DOUBT)); /* to the millisecond */
    T_EQ(w.n_seen, 2);
    w.wall += 1;
    out = send_order("42", IN_DOUBT, WHY(TOO_OLD));
    T_EQ(out.attempts, 0);
    T_EQ(out.doubt, 2);
    once_client_result_clear(&out);
    T_EQ(w.n_seen, 2);
    r = order("42");
    T_EQ(once_client_forget(w.client, NULL, r.order, 0, NULL), ONCE_REFUSED);
    T_EQ(once_client_forget(w.client, NULL, r.order, 1, NULL), ONCE_OK);
    sent("42", IN_DOUBT, WHY(IN_DOUBT));
    T_EQ(w.n_seen, 3);
    T_OK(strcmp(w.key[2], w.key[0]) != 0);
    finish();
}

static void pass_the_horizon(void)
{
    w.wall += 3600001;
}

/* The file is asked with each attempt: a send may be long, and the doubt may be
 * somebody else's. */
static void a_key_that_grows_old_between_attempts_is_not_sent(void)
{
    static const char *const script[] = {DROP, CREATED, NULL};
    once_client_options o = ONCE_CLIENT_OPTIONS_INIT;
    once_client_result r;

    o.horizon_ms = 3600000;
    begin_with(script, &o);
    w.at_pause = pass_the_horizon;
    r = send_order("42", IN_DOUBT, WHY(TOO_OLD));
    T_EQ(r.attempts, 1);
    T_EQ(r.doubt, 1);
    once_client_result_clear(&r);
    T_EQ(w.n_seen, 1);
    finish();
}

/* ---- Asking before giving up --------------------------------------------- */

#define ACCEPTED(location)                                                     \
    ANSWER("202 Accepted",                                                     \
           LENGTH(0) "Idempotency-Status: in_flight\r\n"                       \
                     "Retry-After: 1\r\nLocation: " location "\r\n\r\n")
#define TOLD(state, status)                                                    \
    ANSWER("200 OK", "Content-Type: application/json\r\n\r\n"                  \
                     "{\"state\":\"" state "\",\"recorded_status\":" status    \
                     ",\"safe_new_key\":false}")

static const once_client_options two_attempts = {
    .size = sizeof(once_client_options), .attempts_max = 2};

/* The last request was the question, or the one after it. */
static void one_question_was_seen(size_t at, const char *line)
{
    size_t i;

    if (!T_OK(at < w.n_seen))
        return;
    T_STR(w.line[at], line);
    T_STR(w.key[at], w.key[0]);
    T_STR(w.auth[at], "Bearer " SECRET);
    T_EQ(w.body_size[at], 0);
    for (i = 0; i < w.n_seen; i++)
        if (i != at)
            T_STR(w.line[i], "POST /charge HTTP/1.1");
}

static void accepted_is_not_done(void)
{
    static const char *const script[] = {ACCEPTED("/status"), CREATED, NULL};
    once_client_result r;

    begin(script);
    r = send_order("42", DONE, WHY(ANSWERED));
    T_EQ(r.status, 201);
    T_OK(w.n_pauses > 0 && w.pauses[0] >= 1000);
    once_client_result_clear(&r);
    one_key_was_seen(2);
    finish();
}

static void before_it_gives_up_it_asks_where_a_202_has_said(void)
{
    static const char *const script[] = {
        ACCEPTED("/status"), ACCEPTED("/status"), TOLD("completed", "201"),
        REPLAY, NULL};
    once_client_result r;

    begin_with(script, &two_attempts);
    r = send_order("42", DONE, WHY(ANSWERED));
    T_EQ(r.status, 201);
    T_EQ(r.replayed, 1);
    T_EQ(r.body.size, 5);
    once_client_result_clear(&r);
    one_key_was_seen(4);
    one_question_was_seen(2, "GET /status HTTP/1.1");
    finish();
}

static void what_is_recorded_decides_if_its_answer_cannot_be_had(void)
{
    static const struct {
        const char *script[5];
        int outcome, reason, status, final;
    } rows[] = {
        {{DROP, DROP, TOLD("completed", "201"), DROP, NULL},
         DONE,
         WHY(ANSWER_LOST),
         201,
         1},
        {{DROP, DROP, TOLD("completed", "402"), DROP, NULL},
         NOT_DONE,
         WHY(ANSWERED),
         402,
         1},
        {{DROP, DROP, TOLD("completed", "500"), DROP, NULL},
         IN_DOUBT,
         WHY(FAILED),
         500,
         0},
        {{DROP, DROP, TOLD("completed", "null"), DROP, NULL},
         IN_DOUBT,
         WHY(IN_DOUBT),
         0,
         0},
        {{DROP, DROP, TOLD("absent", "null"), CREATED, NULL},
         IN_DOUBT,
         WHY(IN_DOUBT),
         0,
         0},
        {{DROP, DROP, TOLD("in-flight", "null"), CREATED, NULL},
         IN_DOUBT,
         WHY(IN_DOUBT),
         0,
         0},
        {{DROP, DROP, TOLD("indeterminate", "null"), CREATED, NULL},
         IN_DOUBT,
         WHY(IN_DOUBT),
         0,
         0},
        {{DROP, DROP, DROP, CREATED, NULL}, IN_DOUBT, WHY(IN_DOUBT), 0, 0},
        /* A page that calls itself fine is no answer. */
        {{DROP, DROP, CREATED, CREATED, NULL}, IN_DOUBT, WHY(IN_DOUBT), 0, 0},
    };
    once_client_request q;
    once_client_result r;
    char url[80];
    size_t i;

    for (i = 0; i < COUNT(rows); i++) {
        begin_with(rows[i].script, &two_attempts);
        q = order("42");
        snprintf(url, sizeof(url), "%s/status?wait=1s", w.url);
        q.lookup = url;
        r = send_it(&q, rows[i].outcome, rows[i].reason);
        T_EQ(r.status, rows[i].status);
        T_EQ(r.final, rows[i].final);
        T_EQ(r.body.size, 0);
        once_client_result_clear(&r);
        one_question_was_seen(2, "GET /charge/status?wait=1s HTTP/1.1");
        /* Once more only where an outcome is recorded. */
        one_key_was_seen(rows[i].status != 0 ? 4 : 3);
        finish();
    }
}

static void an_order_that_is_too_old_is_asked_for_and_not_sent(void)
{
    static const char *const script[] = {DROP, TOLD("completed", "201"), NULL};
    once_client_options o = {.size = sizeof(o), .attempts_max = 1};
    once_client_request q;
    once_client_result r;

    begin_with(script, &o);
    sent("42", IN_DOUBT, WHY(IN_DOUBT));
    w.wall += UINT64_C(86400000);
    q = order("42");
    q.lookup = w.url;
    r = send_it(&q, DONE, WHY(ANSWER_LOST));
    T_EQ(r.final, 1);
    T_EQ(r.attempts, 0);
    once_client_result_clear(&r);
    one_question_was_seen(1, "GET /charge HTTP/1.1");
    one_key_was_seen(2);
    sent("42", DONE, WHY(ANSWER_LOST)); /* kept */
    T_EQ(w.n_seen, 2);
    finish();
}

static void the_key_goes_to_no_other_host_that_a_202_names(void)
{
    static const char *const places[] = {
        ACCEPTED("//127.0.0.1:1/"), ACCEPTED("http://127.0.0.1:1/"),
        ACCEPTED("status"), ACCEPTED("/a\\b"),
        ANSWER("201 Created", LENGTH(0) "Location: /status\r\n\r\n")};
    const char *script[] = {NULL, DROP, NULL};
    size_t i;

    for (i = 0; i < COUNT(places); i++) {
        script[0] = places[i];
        begin_with(script, &two_attempts);
        sent("42", i + 1 < COUNT(places) ? IN_DOUBT : DONE,
             i + 1 < COUNT(places) ? WHY(IN_DOUBT) : WHY(ANSWERED));
        T_OK(w.n_seen == (i + 1 < COUNT(places) ? 2 : 1));
        finish();
    }
}

/* Nobody is asked about what was provably not done. */
static void without_doubt_nothing_is_asked(void)
{
    static const char *const script[] = {ANSWER("429 Slow", LENGTH(0) "\r\n"),
                                         NULL};
    once_client_request q;
    once_client_result r;

    begin_with(script, &two_attempts);
    q = order("42");
    q.lookup = w.url;
    r = send_it(&q, NOT_DONE, WHY(NOT_SENT));
    once_client_result_clear(&r);
    one_key_was_seen(2);
    finish();
}

static void a_key_can_be_asked_for_without_an_order(void)
{
    static const char *const script[] = {TOLD("completed", "201"),
                                         TOLD("absent", "null"), DROP, NULL};
    once_client_question q = ONCE_CLIENT_QUESTION_INIT;
    once_client_told a = ONCE_CLIENT_TOLD_INIT;
    once_error err = {0, ""};

    begin(script);
    q.url = w.url;
    q.key = text("order-1");
    q.headers = headers;
    q.n_headers = COUNT(headers);
    T_EQ(once_client_lookup(&q, &a, &err), ONCE_OK);
    T_EQ(a.state, ONCE_CLIENT_TOLD_COMPLETED);
    T_EQ(a.recorded_status, 201);
    T_EQ(a.status, 200);
    T_OK(a.body.size > 10);
    once_client_told_clear(&a);
    q.key = text("a \"b\"");
    T_EQ(once_client_lookup(&q, &a, &err), ONCE_OK);
    T_EQ(a.state, ONCE_CLIENT_TOLD_ABSENT);
    once_client_told_clear(&a);
    T_EQ(once_client_lookup(&q, &a, &err), ONCE_OK);
    T_EQ(a.state, ONCE_CLIENT_TOLD_NOTHING);
    T_EQ(a.status, 0);
    once_client_told_clear(&a);
    q.key = text("");
    T_EQ(once_client_lookup(&q, &a, &err), ONCE_EINVAL);
    q.key = text("a\r\nX: 1");
    T_EQ(once_client_lookup(&q, &a, &err), ONCE_EINVAL);
    q.key = text("order-1");
    q.url = "ftp://h/";
    T_EQ(once_client_lookup(&q, &a, &err), ONCE_EINVAL);
    T_OK(strstr(err.text, "url") != NULL);
    (void)pthread_mutex_lock(&w.lock); /* of what the server has noted */
    T_EQ(w.n_seen, 3);
    T_STR(w.key[0], "order-1");
    T_STR(w.key[1], "\"a \\\"b\\\"\"");
    (void)pthread_mutex_unlock(&w.lock);
    finish();
}

/* What was provably not done may be as old as it likes. */
static void an_order_without_doubt_does_not_age(void)
{
    static const char *const script[] = {
        ANSWER("429 Slow", LENGTH(0) "Retry-After: 3600\r\n\r\n"), CREATED,
        NULL};

    begin(script);
    sent("42", NOT_DONE, WHY(NOT_SENT));
    w.wall += UINT64_C(86400000) * 365;
    sent("42", DONE, WHY(ANSWERED));
    one_key_was_seen(2);
    finish();
}

/* ---- The file ---------------------------------------------------------- */

struct seen_orders {
    int n;
    char ids[8][16];
    int states[8];
};

static int note_order(void *user, const once_client_order *o)
{
    struct seen_orders *s = user;

    if (s->n < 8) {
        snprintf(s->ids[s->n], sizeof(s->ids[0]), "%.*s", (int)o->order.size,
                 (const char *)o->order.data);
        s->states[s->n] = o->state;
    }
    s->n++;
    return 0;
}

static int send_kept(void *user, const once_client_order *o)
{
    once_client_request r = ONCE_CLIENT_REQUEST_INIT;
    int *done = user;

    r.group = o->group;
    r.order = o->order;
    r.headers = headers + 1; /* a secret, which was not kept */
    r.n_headers = 1;
    *done += once_client_send(w.client, &r, NULL, NULL) == ONCE_CLIENT_DONE;
    return 0;
}

static void what_is_unfinished_is_resumed_as_it_was_kept(void)
{
    static const char *const script[] = {
        CREATED, DROP, ANSWER("401 Who", LENGTH(0) "\r\n"), REPLAY, NULL};
    once_client_options o = ONCE_CLIENT_OPTIONS_INIT;
    once_client_request r = ONCE_CLIENT_REQUEST_INIT;
    struct seen_orders s = {0};
    once_error err = {0, ""};
    int done = 0;

    o.attempts_max = 1;
    begin_with(script, &o);
    sent("a", DONE, WHY(ANSWERED));
    sent("b", IN_DOUBT, WHY(IN_DOUBT));
    sent("c", NOT_DONE, WHY(REJECTED));
    once_client_close(w.client);
    open_client(&o);
    T_EQ(once_client_resume(w.client, note_order, &s, NULL), 2);
    T_EQ(s.n, 2);
    T_STR(s.ids[0], "b");
    T_EQ(s.states[0], ONCE_CLIENT_OPEN);
    T_STR(s.ids[1], "c");
    T_EQ(s.states[1], ONCE_CLIENT_PREPARED);
    T_EQ(once_client_resume(w.client, send_kept, &done, NULL), 2);
    T_EQ(done, 2);
    T_EQ(once_client_resume(w.client, note_order, &s, NULL), 0);
    T_EQ(w.n_seen, 5);
    T_STR(w.key[3], w.key[1]);
    T_STR(w.key[4], w.key[2]);
    T_EQ(w.body_size[3], 12);
    T_STR(w.auth[3], "Bearer " SECRET);
    r.order = text("nobody's");
    T_EQ(once_client_send(w.client, &r, NULL, &err), ONCE_EINVAL);
    T_OK(strstr(err.text, "not kept") != NULL);
    finish();
}

static void only_what_was_not_done_is_forgotten_without_force(void)
{
    static const char *const script[] = {
        CREATED, ANSWER("401 Who", LENGTH(0) "\r\n"), CREATED, NULL};
    uint64_t n = 0;

    begin(script);
    T_EQ(once_client_forget(w.client, NULL, text("a"), 0, NULL), ONCE_OK);
    sent("a", DONE, WHY(ANSWERED));
    sent("b", NOT_DONE, WHY(REJECTED));
    T_EQ(once_client_forget(w.client, NULL, text("a"), 0, NULL), ONCE_REFUSED);
    T_EQ(once_client_forget(w.client, NULL, text("b"), 0, NULL), ONCE_OK);
    sent("b", DONE, WHY(ANSWERED));
    T_OK(strcmp(w.key[1], w.key[2]) != 0);
    T_EQ(once_client_forget(w.client, "", text("b"), 0, NULL), ONCE_EINVAL);
    T_EQ(once_client_purge(w.client, 1000, &n, NULL), ONCE_OK);
    T_EQ(n, 0);
    w.wall += 1001;
    T_EQ(once_client_purge(w.client, 1000, &n, NULL), ONCE_OK);
    T_EQ(n, 2);
    finish();
}

static void nothing_leaves_that_could_not_be_kept(void)
{
    static const char *const script[] = {CREATED, NULL};
    once_client_options o = ONCE_CLIENT_OPTIONS_INIT;

    o.busy_ms = 1;
    begin_with(script, &o);
    lock_file();
    sent("42", ONCE_ESTORE, 0);
    T_EQ(w.n_seen, 0);
    unlock_file();
    sent("42", DONE, WHY(ANSWERED));
    finish();
}

static void nothing_leaves_when_the_attempt_could_not_be_kept(void)
{
    static const char *const script[] = {
        PROBLEM("503 Later", "store-unavailable", ""), CREATED, NULL};
    once_client_options o = ONCE_CLIENT_OPTIONS_INIT;

    o.busy_ms = 1;
    begin_with(script, &o);
    w.at_pause = lock_file;
    sent("42", ONCE_ESTORE, 0);
    T_EQ(w.n_seen, 1);
    w.at_pause = NULL;
    unlock_file();
    sent("42", DONE, WHY(ANSWERED));
    one_key_was_seen(2);
    finish();
}

/* An earlier attempt of this call is in doubt, so an error would be a lie. */
static void a_file_that_fails_later_is_no_excuse(void)
{
    static const char *const script[] = {DROP, CREATED, NULL};
    once_client_options o = ONCE_CLIENT_OPTIONS_INIT;
    once_client_result r;

    o.busy_ms = 1;
    begin_with(script, &o);
    w.at_pause = lock_file;
    r = send_order("42", IN_DOUBT, WHY(IN_DOUBT));
    T_EQ(r.unkept, 1);
    once_client_result_clear(&r);
    T_EQ(w.n_seen, 1);
    w.at_pause = NULL;
    unlock_file();
    sent("42", DONE, WHY(ANSWERED));
    one_key_was_seen(2);
    finish();
}

static void an_answer_that_could_not_be_kept_is_asked_for_again(void)
{
    static const char *const script[] = {LOCK CREATED, REPLAY, NULL};
    once_client_options o = ONCE_CLIENT_OPTIONS_INIT;
    once_client_result r;

    o.busy_ms = 1;
    begin_with(script, &o);
    r = send_order("42", DONE, WHY(ANSWERED));
    T_EQ(r.unkept, 1);
    T_MEM(r.body.data, "made\n", 6);
    once_client_result_clear(&r);
    unlock_file();
    r = send_order("42", DONE, WHY(ANSWERED));
    T_EQ(r.unkept, 0);
    T_EQ(r.kept, 0);
    T_EQ(r.replayed, 1);
    once_client_result_clear(&r);
    one_key_was_seen(2);
    finish();
}

static void the_file_is_its_owners_alone(void)
{
    static const char *const script[] = {CREATED, NULL};
    struct stat st;
    char path[100];

    begin(script);
    sent("42", DONE, WHY(ANSWERED));
    T_EQ(stat(w.file, &st), 0);
    T_EQ(st.st_mode & 0777, 0600);
    snprintf(path, sizeof(path), "%s-wal", w.file);
    T_EQ(stat(path, &st), 0);
    T_EQ(st.st_mode & 0777, 0600);
    finish();
}

static void change_file(const char *sql)
{
    sqlite3 *db = NULL;

    T_EQ(sqlite3_open(w.file, &db), SQLITE_OK);
    T_EQ(sqlite3_exec(db, sql, NULL, NULL, NULL), SQLITE_OK);
    (void)sqlite3_close(db);
}

static int reopen(void)
{
    once_client_options o = ONCE_CLIENT_OPTIONS_INIT;
    once_error err = {0, ""};
    int rc;

    once_client_close(w.client);
    w.client = NULL;
    rc = once_client_open(w.file, &o, &err, &w.client);
    T_OK(rc == ONCE_OK || (err.code == rc && err.text[0] != '\0'));
    return rc;
}

static void files_of_others_and_of_the_future_are_refused(void)
{
    static const char *const script[] = {DROP, CREATED, NULL};

    begin(script);
    change_file("PRAGMA user_version=2");
    T_EQ(reopen(), ONCE_EVERSION);
    change_file("PRAGMA application_id=7;PRAGMA user_version=1");
    T_EQ(reopen(), ONCE_EOPEN);
    T_EQ(ask_file("PRAGMA application_id"), 7);
    change_file("PRAGMA application_id=0x4f6e6363");
    T_EQ(reopen(), ONCE_OK);
    finish();
}

static void a_row_that_does_not_check_is_not_believed(void)
{
    static const char *const script[] = {CREATED, NULL};

    begin(script);
    sent("42", DONE, WHY(ANSWERED));
    change_file("UPDATE orders SET state=9");
    sent("42", ONCE_ECORRUPT, 0);
    change_file("UPDATE orders SET state=2,doubt=0");
    sent("42", ONCE_ECORRUPT, 0);
    change_file("UPDATE orders SET state=3,key='short'");
    sent("42", ONCE_ECORRUPT, 0);
    T_EQ(w.n_seen, 1);
    finish();
}

static void not_a_database_is_refused_and_left(void)
{
    once_client *c = NULL;
    once_error err = {0, ""};
    char path[] = "/tmp/once-client-XXXXXX";
    int fd = mkstemp(path);
    char back[64] = "";

    T_EQ(write(fd, "this is no database, but text of somebody\n", 42), 42);
    T_EQ(once_client_open(path, NULL, &err, &c), ONCE_ECORRUPT);
    T_OK(c == NULL);
    T_EQ(pread(fd, back, 42, 0), 42);
    T_MEM(back, "this is no database", 19);
    (void)close(fd);
    (void)unlink(path);
    T_EQ(once_client_open("/nowhere/at/all", NULL, &err, &c), ONCE_EOPEN);
}

/* ---- Many at once ------------------------------------------------------ */

enum { THREADS = 8, ORDERS = 12 };

static void *send_all(void *unused)
{
    int i;

    (void)unused;
    for (i = 0; i < ORDERS; i++) {
        char id[16];
        once_client_request r;

        snprintf(id, sizeof(id), "o-%d", i);
        r = order(id);
        if (once_client_send(w.client, &r, NULL, NULL) != ONCE_CLIENT_DONE)
            return (void *)1;
    }
    return NULL;
}

static void threads_never_take_two_keys_for_one_order(void)
{
    static const char *const script[] = {CREATED, DROP,   REPLAY,
                                         CREATED, REPLAY, NULL};
    pthread_t crew[THREADS];
    void *bad;
    size_t i, j, keys = 0;

    begin(script);
    for (i = 0; i < THREADS; i++)
        T_EQ(pthread_create(&crew[i], NULL, send_all, NULL), 0);
    for (i = 0; i < THREADS; i++) {
        T_EQ(pthread_join(crew[i], &bad), 0);
        T_OK(bad == NULL);
    }
    T_EQ(ask_file("SELECT count(*) FROM orders"), ORDERS);
    T_EQ(ask_file("SELECT count(*) FROM orders WHERE state=3"), ORDERS);
    T_OK(w.n_seen >= ORDERS && w.n_seen < SEEN_MAX);
    for (i = 0; i < w.n_seen; i++) {
        for (j = 0; j < i && strcmp(w.key[i], w.key[j]) != 0;)
            j++;
        keys += j == i;
    }
    T_EQ(keys, ORDERS);
    finish();
}

/* Opened after the fork, in a folder where the file is not there yet. */
static int child(int go)
{
    once_client_options o = ONCE_CLIENT_OPTIONS_INIT;
    once_client *c = NULL;
    int i, bad = 0;
    char byte;

    if (read(go, &byte, 1) != 0)
        return 1;
    o.attempts_max = 1;
    o.breaker_failures = 1000;
    if (once_client_open(w.file, &o, NULL, &c) != ONCE_OK)
        return 2;
    for (i = 0; i < ORDERS; i++) {
        char id[16];
        once_client_request r;

        snprintf(id, sizeof(id), "o-%d", i);
        r = order(id);
        bad |= once_client_send(c, &r, NULL, NULL) != ONCE_CLIENT_NOT_DONE;
    }
    once_client_close(c);
    return bad;
}

static void processes_never_take_two_keys_for_one_order(void)
{
    pid_t pids[4];
    int go[2], status, i;

    begin(NULL);
    once_client_close(w.client);
    w.client = NULL;
    (void)unlink(w.file);
    T_EQ(pipe2(go, O_CLOEXEC), 0);
    for (i = 0; i < 4; i++) {
        pids[i] = fork();
        if (pids[i] == 0) {
            (void)close(go[1]);
            _exit(child(go[0]));
        }
    }
    (void)close(go[0]);
    (void)close(go[1]); /* all at once */
    for (i = 0; i < 4; i++) {
        T_EQ(waitpid(pids[i], &status, 0), pids[i]);
        T_OK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    }
    T_EQ(ask_file("SELECT count(*) FROM orders"), ORDERS);
    T_EQ(ask_file("SELECT count(DISTINCT key) FROM orders"), ORDERS);
    finish();
}

static void wrong_options_are_refused(void)
{
    once_client_options o = ONCE_CLIENT_OPTIONS_INIT;
    once_client_result r = ONCE_CLIENT_RESULT_INIT;
    once_client_request q;
    once_client *c = NULL;

    o.response_max = ONCE_CLIENT_RESPONSE_MAX + 1;
    T_EQ(once_client_open("/tmp/never", &o, NULL, &c), ONCE_EINVAL);
    o = (once_client_options)ONCE_CLIENT_OPTIONS_INIT;
    o.deadline_ms = ONCE_CLIENT_DEADLINE_MAX_MS + 1;
    T_EQ(once_client_open("/tmp/never", &o, NULL, &c), ONCE_EINVAL);
    o.size = 0;
    T_EQ(once_client_open("/tmp/never", &o, NULL, &c), ONCE_EINVAL);
    T_EQ(access("/tmp/never", F_OK), -1);
    begin(NULL);
    q = order("42");
    q.size = 0;
    T_EQ(once_client_send(w.client, &q, &r, NULL), ONCE_EINVAL);
    once_client_close(NULL);
    once_client_result_clear(NULL);
    once_client_result_clear(&r);
    finish();
}

int main(void)
{
    /* Proxies of whoever runs the tests have no place here. */
    (void)unsetenv("http_proxy");
    (void)unsetenv("https_proxy");
    (void)unsetenv("all_proxy");
    (void)signal(SIGPIPE, SIG_IGN);
    T_RUN(what_is_done_is_kept_and_not_sent_again);
    T_RUN(another_request_under_the_same_id_never_leaves);
    T_RUN(lost_answers_are_asked_for_with_the_same_key);
    T_RUN(refusals_of_the_record_are_final);
    T_RUN(refusals_without_a_record_can_be_mended);
    T_RUN(a_refusal_says_nothing_of_an_earlier_attempt);
    T_RUN(an_unknown_outcome_is_told_at_once_and_asked_again);
    T_RUN(a_recorded_failure_of_the_server_is_unknown);
    T_RUN(an_answer_that_was_not_kept_means_done);
    T_RUN(an_answer_that_is_too_long_is_not_cut);
    T_RUN(endless_headers_are_not_read);
    T_RUN(redirects_are_not_followed);
    T_RUN(an_interim_answer_is_passed_over);
    T_RUN(nobody_there_is_not_done);
    T_RUN(a_server_without_a_certificate_gets_nothing);
    T_RUN(pauses_double_and_end_with_the_deadline);
    T_RUN(retry_after_is_honoured);
    T_RUN(nobody_waits_for_what_lies_behind_the_deadline);
    T_RUN(attempts_have_a_limit);
    T_RUN(a_silent_server_is_not_waited_for);
    T_RUN(a_host_that_keeps_failing_is_left_alone);
    T_RUN(a_key_that_may_be_forgotten_is_not_sent);
    T_RUN(a_key_that_grows_old_between_attempts_is_not_sent);
    T_RUN(an_order_without_doubt_does_not_age);
    T_RUN(what_is_unfinished_is_resumed_as_it_was_kept);
    T_RUN(only_what_was_not_done_is_forgotten_without_force);
    T_RUN(nothing_leaves_that_could_not_be_kept);
    T_RUN(nothing_leaves_when_the_attempt_could_not_be_kept);
    T_RUN(a_file_that_fails_later_is_no_excuse);
    T_RUN(an_answer_that_could_not_be_kept_is_asked_for_again);
    T_RUN(the_file_is_its_owners_alone);
    T_RUN(files_of_others_and_of_the_future_are_refused);
    T_RUN(a_row_that_does_not_check_is_not_believed);
    T_RUN(not_a_database_is_refused_and_left);
    T_RUN(threads_never_take_two_keys_for_one_order);
    T_RUN(processes_never_take_two_keys_for_one_order);
    T_RUN(wrong_options_are_refused);
    T_RUN(accepted_is_not_done);
    T_RUN(before_it_gives_up_it_asks_where_a_202_has_said);
    T_RUN(what_is_recorded_decides_if_its_answer_cannot_be_had);
    T_RUN(an_order_that_is_too_old_is_asked_for_and_not_sent);
    T_RUN(the_key_goes_to_no_other_host_that_a_202_names);
    T_RUN(without_doubt_nothing_is_asked);
    T_RUN(a_key_can_be_asked_for_without_an_order);
    return t_done();
}
