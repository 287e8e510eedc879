/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fuzz_serve.c - what a process can send to `once serve`.
 *
 * An input is the head of a message: any bytes are read, or refused with a reason.
 * What is read has no line end within a line and no more lines than are allowed,
 * each text is shorter than the head, and a route that is taken can be taken again.
 *
 * Or, behind "!", it is a list of calls, each four bytes: begin, run, end, broken
 * and abandon, of exchanges and of functions, by two users on four connections, with
 * tokens that were given, of the other kind, or forged for an id that runs or
 * waits. Each is answered, nothing stays behind, and one user's process never ends
 * what another's has begun. The server is the real one; libmicrohttpd is not: its
 * functions are those below.
 */
#include "fuzz.h"

#include <stdarg.h>
#include <stddef.h>
#include <time.h>

#include <openssl/evp.h>

#include "programs/serve/serve.h"

static struct serve server;
static const struct cli_command command = {.name = "serve"};
static const struct cli cli = {.command = &command, .store = "memory:"};
static unsigned long inputs;

enum { INPUTS = 100 }; /* of one store, which keeps what they have recorded */

static void start(void)
{
    once_engine_options o = ONCE_ENGINE_OPTIONS_INIT;

    if (server.engine != NULL && inputs % INPUTS != 0)
        return;
    serve_open_clear(&server);
    MUST(server.due == NULL && server.due_room == 0);
    serve_route_clear(&server);
    once_engine_close(server.engine);
    server = (struct serve){.cli = &cli, .wake_fd = -1};
    json_object_seed(1);
    serve_init(&server);
    server.max_open = 100;
    server.buffers = 65536;
    MUST(once_engine_open("memory:", &o, NULL, &server.engine) == ONCE_OK);
    MUST(serve_http(&server) != NULL);
}

/* ---- In the place of libmicrohttpd ------------------------------------------ */

struct MHD_Response {
    size_t size;
    void *data, *user;
    MHD_ContentReaderFreeCallback free;
};

struct MHD_Connection {
    struct serve_connection connection;
    union MHD_ConnectionInfo info;
    const char *path;
    void *own;         /* of the request that is under way */
    int suspended, on; /* it goes on */
    int closed;        /* its client has gone */
    unsigned status;   /* of the answer, or 0 */
    char text[4096];
};

enum { CONNECTIONS = 4, USERS = 2 };
static struct MHD_Connection connections[CONNECTIONS];
static struct serve_owner users[USERS];
static MHD_AccessHandlerCallback handler;
static MHD_RequestCompletedCallback completed;

struct MHD_Daemon *MHD_start_daemon(unsigned int flags, uint16_t port,
                                    MHD_AcceptPolicyCallback apc, void *apc_cls,
                                    MHD_AccessHandlerCallback dh, void *dh_cls,
                                    ...)
{
    va_list args;

    (void)flags;
    (void)port;
    (void)apc;
    (void)apc_cls;
    handler = dh;
    va_start(args, dh_cls);
    MUST(va_arg(args, int) == MHD_OPTION_LISTEN_SOCKET);
    (void)va_arg(args, int);
    MUST(va_arg(args, int) == MHD_OPTION_NOTIFY_COMPLETED);
    completed = va_arg(args, MHD_RequestCompletedCallback);
    va_end(args);
    return (struct MHD_Daemon *)connections;
}

const char *MHD_lookup_connection_value(struct MHD_Connection *c,
                                        enum MHD_ValueKind kind,
                                        const char *key)
{
    (void)c;
    (void)kind;
    (void)key;
    return NULL;
}

const union MHD_ConnectionInfo *
MHD_get_connection_info(struct MHD_Connection *c,
                        enum MHD_ConnectionInfoType type, ...)
{
    MUST(type == MHD_CONNECTION_INFO_SOCKET_CONTEXT);
    c->info.socket_context = &c->connection;
    return &c->info;
}

void MHD_suspend_connection(struct MHD_Connection *c)
{
    MUST(!c->suspended);
    c->suspended = 1;
}

void MHD_resume_connection(struct MHD_Connection *c)
{
    MUST(c->suspended && !c->on);
    c->on = 1;
}

struct MHD_Response *MHD_create_response_from_buffer_with_free_callback_cls(
    size_t size, void *data, MHD_ContentReaderFreeCallback crfc, void *user)
{
    struct MHD_Response *r = calloc(1, sizeof(*r));

    MUST(r != NULL);
    *r = (struct MHD_Response){size, data, user, crfc};
    return r;
}

enum MHD_Result MHD_add_response_header(struct MHD_Response *r,
                                        const char *name, const char *value)
{
    MUST(r != NULL && name != NULL && value != NULL);
    return MHD_YES;
}

enum MHD_Result MHD_queue_response(struct MHD_Connection *c, unsigned status,
                                   struct MHD_Response *r)
{
    MUST(c->status == 0 && !c->suspended);
    c->status = status;
    (void)snprintf(c->text, sizeof(c->text), "%.*s", (int)r->size,
                   (const char *)r->data);
    return MHD_YES;
}

void MHD_destroy_response(struct MHD_Response *r)
{
    r->free(r->user);
    free(r);
}

/* ---- A request -------------------------------------------------------------- */

static void finish(struct MHD_Connection *c)
{
    if (!c->closed)
        MUST(c->status != 0 && strchr(c->text, '\n') != NULL);
    completed(&server, c, &c->own, MHD_REQUEST_TERMINATED_COMPLETED_OK);
    c->own = NULL;
    c->closed = 0;
}

static void hand_over(struct MHD_Connection *c, const char *data, size_t size)
{
    MUST(handler(&server, c, c->path, "POST", "HTTP/1.1", data, &size,
                 &c->own) == MHD_YES);
}

/* Of a connection whose client has gone libmicrohttpd sees that first, or calls
 * its handler once more. */
static int deliver(void)
{
    struct MHD_Connection *c;
    int n = 0;

    serve_answer_woken(&server);
    for (c = connections; c < connections + CONNECTIONS; c++) {
        if (!c->on)
            continue;
        n++;
        c->on = c->suspended = 0;
        if (c->closed != 1)
            hand_over(c, NULL, 0);
        if (!c->suspended)
            finish(c);
    }
    return n;
}

/* What an open exchange is, and a call: all but those whose handlers run are
 * under way. */
static int is_quiet(void)
{
    const struct serve_link *at;
    int i;

    for (i = 0; i < CONNECTIONS; i++)
        if (connections[i].suspended)
            return 0;
    for (i = 0; i < USERS; i++)
        for (at = users[i].open.next; at != &users[i].open; at = at->next)
            if (((const struct serve_open *)((const char *)at -
                                             offsetof(struct serve_open,
                                                      of_owner)))
                    ->state != SERVE_RUNS)
                return 0;
    return 1;
}

static void pause_shortly(void)
{
    const struct timespec t = {0, 20000};

    (void)nanosleep(&t, NULL);
}

/* For one that may wait for another until it is ended: a moment. */
static void settle(const struct MHD_Connection *c, int waits)
{
    int n = waits ? 20 : 200000;

    for (; n > 0 && c->suspended; n--)
        if (!deliver())
            pause_shortly();
    MUST(waits || !c->suspended);
}

static void ask(struct MHD_Connection *c, const char *path, const char *head,
                const char *body, int waits)
{
    char text[2048];
    int n = snprintf(text, sizeof(text), "%s\n%s", head, body);

    c->path = path;
    c->status = 0;
    hand_over(c, NULL, 0);
    hand_over(c, text, (size_t)n);
    hand_over(c, NULL, 0);
    if (c->suspended)
        settle(c, waits);
    else
        finish(c);
}

/* ---- What is known ----------------------------------------------------------- */

enum { SLOTS = 6, TOKEN = ONCE_EXCHANGE_TOKEN + 2 };

static struct slot {
    char token[TOKEN]; /* "": none was given */
} slots[SLOTS];

/* Ids and keys are new in each input. */
static void write_id(int slot, char out[33])
{
    (void)snprintf(out, 33, "%024lx%08x", inputs, (unsigned)slot);
}

static void read_id(int slot, uint8_t out[ONCE_TOKEN_SIZE])
{
    char text[33];
    unsigned two;
    int i;

    write_id(slot, text);
    for (i = 0; i < ONCE_TOKEN_SIZE; i++) {
        MUST(sscanf(text + 2 * i, "%2x", &two) == 1);
        out[i] = (uint8_t)two;
    }
}

static void read_token(struct slot *s, const struct MHD_Connection *c)
{
    const char *at = strstr(c->text, "\"token\":\"");
    int n;

    if (c->status != 200 || at == NULL)
        return;
    at += strlen("\"token\":\"");
    n = (int)strcspn(at, "\"");
    MUST(n < TOKEN);
    (void)snprintf(s->token, TOKEN, "%.*s", n, at);
}

/* A token with the id of the slot, that nobody was given. */
static void forge(int slot, int call, char out[TOKEN])
{
    uint8_t
        bytes[ONCE_NAME_SIZE + ONCE_FINGERPRINT_SIZE + ONCE_TOKEN_SIZE + 13];

    memset(bytes, 7, sizeof(bytes));
    memset(bytes + sizeof(bytes) - 13, 0, 13);
    bytes[sizeof(bytes) - 6] = bytes[sizeof(bytes) - 2] = 1;
    bytes[sizeof(bytes) - 1] = call ? ONCE__TOKEN_CALL : ONCE__TOKEN_EXCHANGE;
    read_id(slot, bytes + ONCE_NAME_SIZE + ONCE_FINGERPRINT_SIZE);
    out[0] = SERVE_CALL_TOKEN;
    (void)EVP_EncodeBlock((unsigned char *)out + call, bytes, sizeof(bytes));
}

static void pick_token(int slot, int how, char out[TOKEN])
{
    const char *given = slots[slot].token;

    if (how % 4 == 0)
        (void)snprintf(out, TOKEN, "%s", given);
    else if (how % 4 == 1 && given[0] != SERVE_CALL_TOKEN)
        (void)snprintf(out, TOKEN, "~%.*s", TOKEN - 2, given);
    else if (how % 4 == 1)
        (void)snprintf(out, TOKEN, "%s", given + 1);
    else
        forge(slot, how % 4 == 2, out);
}

/* ---- Calls -------------------------------------------------------------------- */

static const struct serve_open *open_of(int slot)
{
    uint8_t id[ONCE_TOKEN_SIZE];

    read_id(slot, id);
    return serve_open_find(&server, id);
}

/* What is open under the id of the slot, if another user has begun it. */
static const struct serve_open *of_another(const struct MHD_Connection *c,
                                           int slot)
{
    const struct serve_open *o = open_of(slot);

    return o != NULL && o->owner != c->connection.owner ? o : NULL;
}

/* Another user's process is refused, and what it has named goes on. */
static void ask_about(struct MHD_Connection *c, const char *path, int slot,
                      const char *head, const char *body, int waits)
{
    const struct serve_open *o = of_another(c, slot), *then;
    int runs = o != NULL && o->state == SERVE_RUNS;
    int abandoned = o != NULL && o->abandoned; /* by its own user */

    ask(c, path, head, body, waits);
    if (o == NULL)
        return;
    MUST(c->status >= 400);
    then = of_another(c, slot); /* one that waits may be granted meanwhile */
    MUST(!runs || (then == o && o->state == SERVE_RUNS));
    MUST(then == NULL || then->abandoned == abandoned);
}

static void do_begin(struct MHD_Connection *c, int call, int slot, uint8_t how)
{
    const char *again = how & 16 ? ",\"again\":true" : "";
    int waits = (how & 32) != 0;
    int joins = open_of(slot) != NULL && open_of(slot)->state == SERVE_CLAIMS;
    char head[1024], id[33];

    write_id(slot, id);
    if (call)
        (void)snprintf(head, sizeof(head),
                       "{\"id\":\"%s\",\"group\":\"g\",\"key\":\"%lx-%d\"%s%s}",
                       id, inputs, how % 3, again,
                       waits ? ",\"wait_ms\":600000" : "");
    else
        (void)snprintf(head, sizeof(head),
                       "{\"id\":\"%s\",\"method\":\"POST\",\"target\":\"/\","
                       "\"scope\":\"u\",\"key\":\"%lx-%d\",\"route\":{%s}%s}",
                       id, inputs, how % 3,
                       waits ? "\"in_flight\":\"wait=600s\"" : "", again);
    ask_about(c, call ? "/v1/call/begin" : "/v1/begin", slot, head,
              call ? "" : "body", waits || joins);
    read_token(&slots[slot], c);
}

static void do_end(struct MHD_Connection *c, const char *path, int slot,
                   uint8_t how)
{
    static const int statuses[] = {200, 502, 504, 99};
    char head[1024], token[TOKEN];

    pick_token(slot, how, token);
    (void)snprintf(head, sizeof(head),
                   "{\"token\":\"%s\",\"status\":%d,\"kind\":\"success\","
                   "\"headers\":[]}",
                   token, statuses[how >> 4 & 3]);
    ask_about(c, path, slot, head, strstr(path, "end") != NULL ? "x" : "", 0);
    MUST(how % 4 != 1 || c->status >= 400); /* its token is of the other kind */
}

static void do_abandon(struct MHD_Connection *c, int slot)
{
    char head[100], id[33];

    write_id(slot, id);
    (void)snprintf(head, sizeof(head), "{\"id\":\"%s\"}", id);
    ask_about(c, "/v1/abandon", slot, head, "", 0);
}

/* All that run have had their time. */
static void pass_time(void)
{
    size_t i;

    for (i = 0; i < server.n_due; i++)
        server.due[i]->until_ms = 0;
    serve_open_turn(&server);
}

static void step(const uint8_t four[4])
{
    static const char *const ends[] = {"/v1/end", "/v1/call/end", "/v1/broken",
                                       "/v1/abandon"};
    struct MHD_Connection *c = &connections[four[1] % CONNECTIONS];
    int slot = four[2] % SLOTS;

    (void)deliver();
    if (four[0] % 9 == 8) {
        pass_time();
    } else if (c->suspended) {
        if (four[0] % 9 == 7)
            c->closed = 1 + (four[3] & 1);
    } else if (four[0] % 9 < 2) {
        do_begin(c, four[0] % 9, slot, four[3]);
    } else if (four[0] % 9 == 6) {
        do_abandon(c, slot);
    } else if (four[0] % 9 < 6) {
        do_end(c, ends[four[0] % 9 - 2], slot, four[3]);
    }
}

static void run_calls(const uint8_t *data, size_t size)
{
    int i;

    inputs++;
    memset(slots, 0, sizeof(slots));
    memset(connections, 0, sizeof(connections));
    for (i = 0; i < USERS; i++)
        users[i] =
            (struct serve_owner){.pid = 1 + i,
                                 .uid = 1 + (unsigned)i,
                                 .pidfd = -1,
                                 .uses = 1,
                                 .open = {&users[i].open, &users[i].open}};
    for (i = 0; i < CONNECTIONS; i++)
        connections[i].connection =
            (struct serve_connection){.serve = &server,
                                      .owner = &users[i % USERS],
                                      .fd = -1,
                                      .proven = 1};
    for (; size >= 4 && size < 400; size -= 4, data += 4)
        step(data);
    serve_open_cancel(&server);
    for (i = 0; i < 200000 && !is_quiet(); i++)
        if (!deliver())
            pause_shortly();
    MUST(is_quiet());
    while (server.n_due > 0)
        serve_open_free(server.due[0]);
    MUST(server.n_open == 0 && server.ids == NULL && server.waiting == 0);
    MUST(server.buffered == 0 && server.calls.uses == 0);
}

/* ---- A head ------------------------------------------------------------------- */

static void is_line(const char *text)
{
    MUST(text != NULL && strpbrk(text, "\r\n") == NULL);
}

/* What a begin reads of its head. */
static void read_all(struct serve_call *k)
{
    struct serve_route *again;
    size_t i;

    serve_head_read(k);
    if (k->refused != 0)
        return;
    (void)serve_head_id(k);
    (void)serve_head_bytes(k, "method");
    (void)serve_head_bytes(k, "target");
    serve_head_lines(k);
    (void)serve_head_text(k, "scope");
    k->key = serve_head_text(k, "key");
    k->fingerprint = serve_head_text(k, "fingerprint");
    MUST(k->used <= k->n_head);
    MUST(k->n_lines <= SERVE_LINES_MAX);
    for (i = 0; i < k->n_lines && k->refused == 0; i++) {
        is_line(k->lines[i].name);
        is_line(k->lines[i].value);
    }
    k->refused = 0;
    k->route = serve_route_of(k);
    MUST((k->route == NULL) == (k->refused != 0));
    if (k->route == NULL)
        return;
    again = serve_route_of(k);
    MUST(again == k->route && again->uses == 2);
    serve_route_drop(again);
}

static void run_head(const uint8_t *data, size_t size)
{
    struct serve_call k = {.serve = &server};

    k.head = (char *)exact(data, size);
    k.n_head = size;
    read_all(&k);
    MUST(k.refused == 0 || (k.why[0] != '\0' && k.error != NULL));
    serve_route_drop(k.route);
    MUST(server.n_routes <= SERVE_ROUTES_MAX);
    json_decref(k.json);
    free(k.lines);
    free(k.text);
    free(k.head);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    start();
    if (size > 0 && data[0] == '!')
        run_calls(data + 1, size - 1);
    else
        run_head(data, size);
    return 0;
}
