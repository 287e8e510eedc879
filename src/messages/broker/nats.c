/* SPDX-License-Identifier: Apache-2.0 */
/*
 * nats.c - NATS JetStream.
 *
 *    nats://USER:PASSWORD@HOST:PORT/?subject=S               to send
 *    nats://USER:PASSWORD@HOST:PORT/?stream=S&durable=D      to receive
 *    tls://...                                               the same, with TLS
 *
 * Sending: each message carries a reply address that ends in its number; the
 * stream's answer to it, a PubAck, is the proof.
 *
 *    main thread: publish 7 --> stream --> PubAck to INBOX.7
 *                                             |
 *    library's thread:            verdict (7, TAKEN) --> struct link
 *                                                            |
 *    main thread:                        proofs() <-- flights 7
 *
 * The library's thread knows only the link, which lives until both have left it.
 *
 * Receiving: a pull consumer. One request at a time asks for as many messages as
 * there is room for; they come as they are there. (The library's own fetch waits
 * until it has all that it asked for.) What has come is ours for the consumer's
 * ack_wait; a thread asks for more time as long as this object lives, so that a
 * slow handler gets no second copy.
 *
 * It uses the library without its reconnecting, which would send again what it
 * has in its buffer and forget what it had sent.
 */
#include <nats/nats.h>

#include <inttypes.h>
#include <jansson.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <time.h>

#include "messages/broker/address.h"
#include "messages/broker/flights.h"
#include "messages/broker/incoming.h"
#include "messages/broker/share.h"
#include "base/error.h"
#include "base/grow.h"
#include "base/steady.h"
#include "base/thread.h"
#include "base/url.h"

extern const struct once__broker_ops once__broker_nats;

enum {
    PING_MS = 10000,
    SLICE_MS = 100, /* how soon a lost connection is seen */
    ACK_WAIT_S = 30,
    ALONE_WAIT_S = 5,  /* when no other process may take over */
    BACK_MS = 500,     /* before what was given back comes again */
    EXPIRES_MS = 2000, /* of a request for messages */
    ASK_MS = 2000,     /* for an answer of JetStream's interface */
    LOOK_MS = 10000,   /* between two looks at a stream that may keep nothing */
    CLOSE_MS = 2000
};

#define MSG_ID "Nats-Msg-Id"

enum { SAID_SIZE = 96, SAID_MAX = 16 };

/* How the stream has answered, and the words of its refusal. */
struct verdict {
    uint64_t number;
    int end, status;
    char said[SAID_SIZE];
};

/* Between us and the library's thread, for one connection. */
struct link {
    pthread_mutex_t lock;
    pthread_cond_t wake;
    int users;           /* we, and the subscription */
    struct verdict *got; /* sending */
    natsMsg **came;      /* receiving */
    size_t n, cap, n_came, cap_came;
    int receiving;
};

struct nats {
    struct once__broker broker;
    struct once__broker_options o;
    struct once__address at;
    char subject[256], stream[256], durable[256];
    char *ca_file;
    int tls;

    natsConnection *c; /* NULL: not connected */
    uint64_t connection;

    struct link *link;
    natsSubscription *answers; /* what comes to `inbox`, and below it */
    natsInbox *inbox;
    struct once__flights flights; /* sending */
    /* Reasons of refusals, which proofs point to until they are taken. */
    char said[SAID_MAX][SAID_SIZE];
    size_t next_said;
    int interest; /* the stream keeps what a consumer waits for, only */
    uint64_t looked_ms;
    int said_memory, said_unasked;

    /* Receiving. */
    pthread_mutex_t lock; /* of what follows, and of `c` for the thread */
    pthread_cond_t wake;
    pthread_t beat;
    int beating, stop;
    int64_t ack_wait_ms;
    struct once__incoming_list ready,
        out;              /* `native` is where to acknowledge */
    uint64_t seen;        /* the last number in the stream that was delivered */
    size_t held;          /* of this connection, in both */
    size_t asked;         /* messages that the open request may still bring */
    uint64_t asked_until; /* when it is over for certain */
    uint64_t quiet_until; /* nothing is asked for before */
    int gone;             /* the consumer was deleted, or no memory */
};

static struct nats *self(struct once__broker *b)
{
    return (struct nats *)(void *)b;
}

/* ---- The link ------------------------------------------------------------- */

static struct link *link_new(int receiving)
{
    struct link *k = calloc(1, sizeof(*k));

    if (k == NULL)
        return NULL;
    (void)pthread_mutex_init(&k->lock, NULL);
    once__cond_init(&k->wake);
    k->users = 1;
    k->receiving = receiving;
    return k;
}

static void link_leave(void *user)
{
    struct link *k = user;
    int users;

    if (k == NULL)
        return;
    (void)pthread_mutex_lock(&k->lock);
    users = --k->users;
    (void)pthread_mutex_unlock(&k->lock);
    if (users > 0)
        return;
    while (k->n_came > 0)
        natsMsg_Destroy(k->came[--k->n_came]);
    free((void *)k->came);
    free(k->got);
    (void)pthread_cond_destroy(&k->wake);
    (void)pthread_mutex_destroy(&k->lock);
    free(k);
}

/* A verdict that finds no memory is none: the message is silent. */
static void link_put(struct link *k, struct verdict v)
{
    struct verdict *got;

    (void)pthread_mutex_lock(&k->lock);
    got = once__grown(k->got, &k->cap, k->n + 1, sizeof(*got));
    if (got != NULL) {
        k->got = got;
        k->got[k->n++] = v;
    }
    (void)pthread_cond_signal(&k->wake);
    (void)pthread_mutex_unlock(&k->lock);
}

/* A message that finds no memory comes again. */
static void link_came(struct link *k, natsMsg *msg)
{
    natsMsg **came;

    (void)pthread_mutex_lock(&k->lock);
    came = once__grown((void *)k->came, &k->cap_came, k->n_came + 1,
                       sizeof(natsMsg *));
    if (came != NULL) {
        k->came = came;
        k->came[k->n_came++] = msg;
    } else {
        natsMsg_Destroy(msg);
    }
    (void)pthread_cond_signal(&k->wake);
    (void)pthread_mutex_unlock(&k->lock);
}

/* A copy that lives as long as the object, one for each different text. The oldest
 * one goes when there are too many. */
static const char *keep_said(struct nats *s, const char *text)
{
    size_t i = 0;

    while (i < SAID_MAX && strcmp(s->said[i], text) != 0)
        i++;
    if (i == SAID_MAX) {
        i = s->next_said++ % SAID_MAX;
        memcpy(s->said[i], text, SAID_SIZE);
    }
    return s->said[i];
}

static const char *why_of(struct nats *s, const struct verdict *v)
{
    if (v->end == ONCE__END_TAKEN)
        return NULL;
    if (v->status == 503)
        return "no stream takes this subject";
    return v->said[0] != '\0' ? keep_said(s, v->said)
                              : "the stream refused it without a reason";
}

/* Moves the verdicts to the flights; waits for the first up to `wait_ms`. */
static void link_take(struct nats *s, uint64_t wait_ms)
{
    struct link *k = s->link;
    size_t i;

    (void)pthread_mutex_lock(&k->lock);
    if (k->n == 0 && wait_ms > 0)
        once__cond_until(&k->wake, &k->lock, once__steady_ms() + wait_ms);
    for (i = 0; i < k->n; i++)
        once__flights_end(&s->flights, k->got[i].number, k->got[i].end,
                          k->got[i].status, why_of(s, &k->got[i]));
    k->n = 0;
    (void)pthread_mutex_unlock(&k->lock);
}

/* Reads a PubAck. Something else than a stream may have answered: only what has
 * the form of a PubAck is a proof. */
static int read_ack(const char *text, int size, struct verdict *v)
{
    json_t *root = size <= 0 ? NULL : json_loadb(text, (size_t)size, 0, NULL);
    const json_t *error = json_object_get(root, "error");
    const char *words;
    int known = 1;

    if (json_is_object(error)) {
        v->end = ONCE__END_REFUSED;
        v->status = (int)json_integer_value(json_object_get(error, "err_code"));
        words = json_string_value(json_object_get(error, "description"));
        (void)snprintf(v->said, sizeof(v->said), "%s",
                       words == NULL ? "" : words);
    } else if (json_is_string(json_object_get(root, "stream")) &&
               json_integer_value(json_object_get(root, "seq")) > 0) {
        v->end = ONCE__END_TAKEN; /* a duplicate, too */
    } else {
        known = 0;
    }
    json_decref(root);
    return known;
}

/* In the library's thread. */
static void on_answer(natsConnection *c, natsSubscription *sub, natsMsg *msg,
                      void *user)
{
    const char *subject = natsMsg_GetSubject(msg);
    const char *dot = subject == NULL ? NULL : strrchr(subject, '.');
    struct verdict v = {.end = ONCE__END_SILENT};
    int known;

    (void)c;
    (void)sub;
    if (((struct link *)user)->receiving) {
        link_came(user, msg);
        return;
    }
    v.number = dot == NULL ? 0 : strtoull(dot + 1, NULL, 10);
    if (natsMsg_IsNoResponders(msg)) {
        v.end = ONCE__END_REFUSED;
        v.status = 503;
        known = 1;
    } else {
        known = read_ack(natsMsg_GetData(msg), natsMsg_GetDataLength(msg), &v);
    }
    natsMsg_Destroy(msg);
    if (known)
        link_put(user, v);
}

/* ---- The URL --------------------------------------------------------------- */

/* A subject to publish to: tokens between dots, none of them a wildcard. */
static int is_subject(const char *text)
{
    const char *at;
    size_t size;

    for (at = text;; at += size + 1) {
        size = strcspn(at, ".");
        if (size == 0 || (size == 1 && (*at == '*' || *at == '>')))
            return 0;
        if (at[size] == '\0')
            break;
    }
    for (at = text; *at != '\0'; at++)
        if (*at <= ' ' || *at == 0x7f)
            return 0;
    return 1;
}

static int is_name(const char *text)
{
    return *text != '\0' && text[strcspn(text, " .*>/\\\t\r\n")] == '\0';
}

static int read_query(void *user, char *url, once_error *err)
{
    struct nats *s = user;
    int rc =
        once__url_take(url, "subject", s->subject, sizeof(s->subject), err);

    if (rc >= 0)
        rc = once__url_take(url, "stream", s->stream, sizeof(s->stream), err);
    if (rc >= 0)
        rc =
            once__url_take(url, "durable", s->durable, sizeof(s->durable), err);
    if (rc < 0)
        return rc;
    if (s->stream[0] != '\0' && s->durable[0] == '\0' &&
        s->o.consumer != NULL && strlen(s->o.consumer) < sizeof(s->durable))
        memcpy(s->durable, s->o.consumer, strlen(s->o.consumer) + 1);
    if (s->stream[0] == '\0' && s->subject[0] != '\0' &&
        !is_subject(s->subject))
        return once__fail(err, ONCE_EURL,
                          "nats: subject is not one to publish to");
    if (s->o.consumer != NULL && s->stream[0] == '\0')
        return once__fail(err, ONCE_EURL,
                          "nats: a consumer requires the parameter stream: "
                          "nats://HOST/?stream=STREAM&durable=NAME");
    if (s->o.consumer == NULL &&
        (s->stream[0] != '\0' || s->durable[0] != '\0'))
        return once__fail(err, ONCE_EURL,
                          "nats: the parameters stream and durable are for "
                          "consumers; to send, use subject");
    if (s->stream[0] != '\0' && (!is_name(s->stream) || !is_name(s->durable)))
        return once__fail(err, ONCE_EURL,
                          "nats: stream and durable are names without space, "
                          "dot, slash and wildcards");
    return once__url_end("nats", url, "subject, stream, durable", err);
}

static int read_url(struct nats *s, const char *url, once_error *err)
{
    int rc = once__address_read("nats", url, read_query, s, &s->at, err);

    s->tls = strncmp(url, "tls:", 4) == 0;
    if (rc != ONCE_OK)
        return rc;
    if (s->at.path[0] != '\0')
        return once__fail(err, ONCE_EURL,
                          "nats: the URL has a path; it has only parameters");
    if (s->at.port == 0)
        s->at.port = 4222;
    return ONCE_OK;
}

/* ---- The end of a connection ----------------------------------------------- */

static void lose(struct nats *s, const char *why)
{
    if (s->link != NULL)
        link_take(s, 0);
    (void)pthread_mutex_lock(&s->lock);
    once__incoming_drop(&s->ready);
    s->held = 0;
    s->asked = 0;
    s->gone = 0;
    natsSubscription_Destroy(s->answers);
    s->answers = NULL;
    natsInbox_Destroy(s->inbox);
    s->inbox = NULL;
    natsConnection_Destroy(s->c);
    s->c = NULL;
    (void)pthread_mutex_unlock(&s->lock);
    link_leave(s->link);
    s->link = NULL;
    once__flights_lose(&s->flights, why);
}

static int lost(struct nats *s, const char *why, once_error *err)
{
    lose(s, why);
    return once__fail(err, ONCE_EAWAY, "nats: %s", why);
}

static int is_lost(struct nats *s)
{
    return s->c == NULL || natsConnection_IsClosed(s->c);
}

static void log_line(const struct nats *s, const char *text)
{
    if (s->o.log != NULL)
        s->o.log(s->o.user, text);
}

/* ---- The connection --------------------------------------------------------- */

static natsStatus set_options(struct nats *s, natsOptions *o)
{
    char url[320];
    natsStatus rc;

    /* The user is not part of this text, so that no error shows it. */
    (void)snprintf(url, sizeof(url),
                   strchr(s->at.host, ':') == NULL ? "nats://%s:%d"
                                                   : "nats://[%s]:%d",
                   s->at.host, s->at.port);
    rc = natsOptions_SetURL(o, url);
    if (rc == NATS_OK)
        rc = natsOptions_SetAllowReconnect(o, false);
    if (rc == NATS_OK)
        rc = natsOptions_SetIgnoreDiscoveredServers(o, true);
    if (rc == NATS_OK)
        rc = natsOptions_SetTimeout(o, s->o.timeout_ms);
    if (rc == NATS_OK)
        rc = natsOptions_SetWriteDeadline(o, s->o.timeout_ms);
    if (rc == NATS_OK)
        rc = natsOptions_SetPingInterval(o, PING_MS);
    if (rc == NATS_OK)
        rc = natsOptions_SetMaxPingsOut(o, 2);
    if (rc == NATS_OK && s->at.has_user)
        rc = s->at.password[0] != '\0'
                 ? natsOptions_SetUserInfo(o, s->at.user, s->at.password)
                 : natsOptions_SetToken(o, s->at.user);
    if (rc == NATS_OK && (s->tls || s->ca_file != NULL))
        rc = natsOptions_SetSecure(o, true);
    if (rc == NATS_OK && (s->tls || s->ca_file != NULL))
        rc = natsOptions_SetExpectedHostname(o, s->at.host);
    if (rc == NATS_OK && s->ca_file != NULL)
        rc = natsOptions_LoadCATrustedCertificates(o, s->ca_file);
    return rc;
}

static int open_connection(struct nats *s, once_error *err)
{
    natsConnection *c = NULL;
    natsOptions *o = NULL;
    natsStatus rc = natsOptions_Create(&o);

    if (rc == NATS_OK)
        rc = set_options(s, o);
    if (rc == NATS_OK)
        rc = natsConnection_Connect(&c, o);
    natsOptions_Destroy(o);
    switch (rc) {
    case NATS_OK:
        (void)pthread_mutex_lock(&s->lock);
        s->c = c;
        s->connection++;
        (void)pthread_mutex_unlock(&s->lock);
        break;
    case NATS_CONNECTION_AUTH_FAILED:
    case NATS_NOT_PERMITTED:
        return once__fail(err, ONCE_EOPEN,
                          "nats: the server refuses this user and password");
    case NATS_SECURE_CONNECTION_REQUIRED:
    case NATS_SECURE_CONNECTION_WANTED:
        return once__fail(err, ONCE_EOPEN,
                          "nats: one side requires TLS and the other has none");
    case NATS_SSL_ERROR:
        return once__fail(err, ONCE_EOPEN,
                          "nats: the server's certificate is not trusted, or "
                          "not for this host, or the file of certificates "
                          "cannot be read");
    default:
        return once__fail(err, ONCE_EAWAY,
                          "nats: the server cannot be reached");
    }
    if (natsConnection_HasHeaderSupport(s->c) == NATS_OK)
        return ONCE_OK;
    lose(s, "headers");
    return once__fail(err, ONCE_EOPEN, "nats: the server knows no headers");
}

/* Everything that is answered to us comes to one inbox. */
static int subscribe(struct nats *s, once_error *err)
{
    char subject[128];
    natsStatus rc;

    s->link = link_new(s->stream[0] != '\0');
    if (s->link == NULL || natsInbox_Create(&s->inbox) != NATS_OK)
        return lost(s, "no memory", err);
    (void)snprintf(subject, sizeof(subject), "%s.*", s->inbox);
    s->link->users++;
    rc = natsConnection_Subscribe(&s->answers, s->c, subject, on_answer,
                                  s->link);
    if (rc == NATS_OK)
        rc = natsSubscription_SetOnCompleteCB(s->answers, link_leave, s->link);
    else
        s->link->users--;
    if (rc == NATS_OK)
        rc = natsSubscription_SetPendingLimits(s->answers, -1, -1);
    return rc == NATS_OK ? ONCE_OK
                         : lost(s, "the connection was lost at once", err);
}

/* Whether a consumer that is there does what we need. */
static int is_fit(const jsConsumerConfig *c)
{
    return c != NULL && c->DeliverSubject == NULL &&
           c->AckPolicy == js_AckExplicit && c->MaxDeliver <= 0;
}

static int open_failed(struct nats *s, natsStatus rc, jsErrCode code,
                       once_error *err)
{
    if (code == JSStreamNotFoundErr) {
        lose(s, "no stream");
        return once__fail(err, ONCE_EOPEN,
                          "nats: the stream %s does not exist. Create it: nats "
                          "stream add %s --subjects SUBJECT",
                          s->stream, s->stream);
    }
    if (code != 0 || rc == NATS_NO_RESPONDERS || rc == NATS_NOT_PERMITTED) {
        lose(s, "JetStream");
        return once__fail(
            err, ONCE_EOPEN,
            "nats: JetStream refuses the durable %s of stream %s, "
            "or is not enabled: error %d, %s",
            s->durable, s->stream, (int)code, natsStatus_GetText(rc));
    }
    return lost(s, "the connection was lost while opening the stream", err);
}

/* The consumer as it is there, or made. */
static natsStatus find_consumer(struct nats *s, jsCtx *js, jsOptions *jo,
                                jsConsumerInfo **info, jsErrCode *code)
{
    jsConsumerConfig want;
    natsStatus rc =
        js_GetConsumerInfo(info, js, s->stream, s->durable, jo, code);

    if (rc != NATS_NOT_FOUND || *code != JSConsumerNotFoundErr)
        return rc;
    (void)jsConsumerConfig_Init(&want);
    want.Durable = s->durable;
    want.AckPolicy = js_AckExplicit;
    want.AckWait =
        (int64_t)(s->o.alone ? ALONE_WAIT_S : ACK_WAIT_S) * 1000000000;
    want.MaxDeliver = -1;
    want.FilterSubject = s->subject[0] != '\0' ? s->subject : NULL;
    *code = 0;
    return js_AddConsumer(info, js, s->stream, &want, jo, code);
}

static int set_up_receiving(struct nats *s, once_error *err)
{
    jsOptions jo;
    jsCtx *js = NULL;
    jsConsumerInfo *info = NULL;
    jsErrCode code = 0;
    natsStatus rc;
    int fit;

    (void)jsOptions_Init(&jo);
    jo.Wait = s->o.timeout_ms;
    rc = natsConnection_JetStream(&js, s->c, &jo);
    if (rc == NATS_OK)
        rc = find_consumer(s, js, &jo, &info, &code);
    jsCtx_Destroy(js);
    if (rc != NATS_OK)
        return open_failed(s, rc, code, err);
    fit = is_fit(info->Config);
    (void)pthread_mutex_lock(&s->lock);
    s->ack_wait_ms = fit ? info->Config->AckWait / 1000000 : 0;
    s->seen = info->Delivered.Stream;
    /* What nobody acknowledged comes again after ack_wait, and then before what
     * is new: a route in order asks for nothing until then. */
    s->quiet_until = s->o.alone && info->NumAckPending > 0
                         ? once__steady_ms() + (uint64_t)s->ack_wait_ms + 1000
                         : 0;
    (void)pthread_mutex_unlock(&s->lock);
    jsConsumerInfo_Destroy(info);
    if (fit)
        return ONCE_OK;
    lose(s, "consumer");
    return once__fail(
        err, ONCE_EOPEN,
        "nats: the durable %s exists with other settings. It has "
        "to be a pull consumer with explicit acknowledgements and "
        "max_deliver -1; delete it, or name another one",
        s->durable);
}

/* ---- Sending ------------------------------------------------------------------ */

static natsStatus add_lines(natsMsg *msg, const char *headers)
{
    char *copy = headers == NULL ? NULL : strdup(headers);
    const char *at = copy;
    struct once__header_line line;
    natsStatus rc = headers != NULL && copy == NULL ? NATS_NO_MEMORY : NATS_OK;

    while (rc == NATS_OK && once__header_line_next(&at, &line)) {
        /* The ends of name and value lie before `at`, in our copy. */
        copy[line.name - copy + (ptrdiff_t)line.n_name] = '\0';
        copy[line.value - copy + (ptrdiff_t)line.n_value] = '\0';
        if (strcasecmp(line.name, MSG_ID) != 0)
            rc = natsMsgHeader_Add(msg, line.name, line.value);
    }
    free(copy);
    return rc;
}

static natsStatus fill(natsMsg *msg, const once_message *m)
{
    char id[2 * ONCE_ID_SIZE];
    natsStatus rc;

    /* Ids are per stream, and several routes may lead to one. */
    (void)snprintf(id, sizeof(id), "%s %s", m->route == NULL ? "" : m->route,
                   m->id);
    rc = natsMsgHeader_Set(msg, MSG_ID, id);
    if (rc == NATS_OK)
        rc = natsMsgHeader_Set(msg, ONCE__HEADER_ID, m->id);
    if (rc == NATS_OK && m->key != NULL)
        rc = natsMsgHeader_Set(msg, ONCE__HEADER_KEY, m->key);
    if (rc == NATS_OK && m->type != NULL && m->type[0] != '\0')
        rc = natsMsgHeader_Set(msg, ONCE__HEADER_TYPE, m->type);
    return rc == NATS_OK ? add_lines(msg, m->headers) : rc;
}

static int publish(struct nats *s, const once_message *m, const char *subject,
                   uint64_t tag, once_error *err)
{
    uint64_t number = once__flights_add(&s->flights, tag);
    natsMsg *msg = NULL;
    char reply[128];
    natsStatus rc;

    if (number == 0)
        return once__fail(err, ONCE_ENOMEM, "nats: no memory");
    (void)snprintf(reply, sizeof(reply), "%s.%" PRIu64, s->inbox, number);
    rc = natsMsg_Create(&msg, subject, reply, m->body.data, (int)m->body.size);
    if (rc == NATS_OK)
        rc = fill(msg, m);
    if (rc != NATS_OK) {
        natsMsg_Destroy(msg);
        once__flights_cancel(&s->flights);
        return once__fail(err, ONCE_ENOMEM, "nats: no memory");
    }
    rc = natsConnection_PublishMsg(s->c, msg);
    natsMsg_Destroy(msg);
    if (rc == NATS_MAX_PAYLOAD)
        once__flights_end(&s->flights, number, ONCE__END_REJECTED, 0,
                          "it is larger than the server's max_payload");
    else if (rc != NATS_OK)
        return lost(s, "the connection was lost while sending", err);
    return ONCE_OK;
}

static int nats_send(struct once__broker *b, const once_message *m,
                     uint64_t tag, once_error *err)
{
    struct nats *s = self(b);
    const char *subject = s->subject[0] != '\0' ? s->subject : m->route;
    int rc;

    if (is_lost(s)) {
        rc = once__flights_unsent(&s->flights, tag, ONCE__END_UNSENT, NULL);
        if (rc == ONCE_OK)
            return lost(s, "not connected", err);
    } else if (subject == NULL || !is_subject(subject)) {
        rc = once__flights_unsent(&s->flights, tag, ONCE__END_REFUSED,
                                  "the route's name is not a subject; name one "
                                  "with subject=");
    } else {
        rc = publish(s, m, subject, tag, err);
    }
    return rc == ONCE_ENOMEM ? once__fail(err, rc, "nats: no memory") : rc;
}

static size_t nats_proofs(struct once__broker *b, uint32_t wait_ms,
                          struct once__proof *out, size_t max)
{
    struct nats *s = self(b);
    uint64_t end = once__steady_ms() + wait_ms, now;

    if (s->link != NULL)
        link_take(s, 0);
    while (once__flights_ready(&s->flights) == 0 && s->flights.open > 0 &&
           s->c != NULL) {
        now = once__steady_ms();
        if (now >= end)
            break;
        link_take(s, end - now < SLICE_MS ? end - now : SLICE_MS);
        if (once__flights_ready(&s->flights) == 0 && is_lost(s))
            lose(s, "the connection was lost");
    }
    return once__ended_take(&s->flights.ended, out, max);
}

/* ---- Receiving ------------------------------------------------------------------ */

static void take_header(struct once__incoming *in, const char *name,
                        const char *value)
{
    size_t size = strlen(value);

    if (strcasecmp(name, ONCE__HEADER_ID) == 0)
        once__incoming_id(in, value, size);
    else if (strcasecmp(name, ONCE__HEADER_TYPE) == 0)
        once__incoming_type(in, value, size);
    else if (strcasecmp(name, MSG_ID) != 0)
        once__incoming_header(in, name, strlen(name), value, size);
}

/* The id of a message that another program has sent. */
static void take_foreign_id(struct once__incoming *in, natsMsg *msg)
{
    const char *value = NULL;

    if (!in->seen_id && natsMsgHeader_Get(msg, MSG_ID, &value) == NATS_OK &&
        value != NULL)
        once__incoming_id(in, value, strlen(value));
}

static void take_headers(struct once__incoming *in, natsMsg *msg)
{
    const char **names = NULL, **values;
    int n = 0, n_values, i, k;

    if (natsMsgHeader_Keys(msg, &names, &n) != NATS_OK)
        return;
    for (i = 0; i < n; i++) {
        values = NULL;
        n_values = 0;
        if (natsMsgHeader_Values(msg, names[i], &values, &n_values) != NATS_OK)
            continue;
        for (k = 0; k < n_values; k++)
            take_header(in, names[i], values[k]);
        free((void *)values);
    }
    free((void *)names);
    take_foreign_id(in, msg);
}

/*
 * Whether it was delivered before. The subject to acknowledge at has the count
 * and the number in the stream:
 *
 *    $JS.ACK.STREAM.CONSUMER.DELIVERED.NUMBER...
 *    $JS.ACK.DOMAIN.ACCOUNT.STREAM.CONSUMER.DELIVERED.NUMBER...
 *
 * The count alone cannot be used: the server may forget it when a connection is
 * lost, and says 1 again (see give_back()). But what comes for the first time
 * comes in the order of the stream.
 */
static int is_redelivered(struct nats *s, const char *reply)
{
    const char *at;
    int dots = 0, part;
    uint64_t count, number;
    char *end;

    for (at = reply; *at != '\0'; at++)
        dots += *at == '.';
    for (at = reply, part = dots >= 10 ? 6 : 4; part > 0; part--) {
        at = strchr(at, '.');
        if (at == NULL)
            return 1; /* it is unknown: with care, then */
        at++;
    }
    count = strtoull(at, &end, 10);
    number = *end == '.' ? strtoull(end + 1, NULL, 10) : 0;
    if (count != 1 || number <= s->seen)
        return 1;
    s->seen = number;
    return 0;
}

/* 0: no memory. */
static int take_message(struct nats *s, natsMsg *msg)
{
    const char *reply = natsMsg_GetReply(msg);
    struct once__incoming *in = once__incoming_new();

    if (in == NULL || reply == NULL) {
        once__incoming_free(in);
        return 0;
    }
    in->connection = s->connection;
    in->native = strdup(reply);
    in->d.redelivered = is_redelivered(s, reply);
    take_headers(in, msg);
    once__incoming_body(in, natsMsg_GetData(msg),
                        (size_t)natsMsg_GetDataLength(msg), s->o.body_max);
    if (in->native == NULL || !once__incoming_finish(in)) {
        once__incoming_free(in);
        return 0;
    }
    once__incoming_push(&s->ready, in);
    s->held++;
    return 1;
}

/* The end of a request: nothing is there, or not any more. */
static void take_status(struct nats *s, const char *status, natsMsg *msg)
{
    const char *text = NULL;

    if (strncmp(status, "100", 3) == 0)
        return;
    s->asked = 0;
    if (strncmp(status, "503", 3) == 0)
        s->gone = 1;
    if (natsMsgHeader_Get(msg, "Description", &text) == NATS_OK &&
        strcasecmp(text, "Consumer Deleted") == 0)
        s->gone = 1;
}

/*
 * What the server itself says about a request comes to the subject that we asked
 * it to answer at, and without an address for an acknowledgement. A message of the
 * stream comes with the subject that it was published to, and with that address:
 * any publisher may give it a header "Status".
 */
static int is_control(const struct nats *s, const natsMsg *msg)
{
    const char *subject = natsMsg_GetSubject(msg);

    return natsMsg_GetReply(msg) == NULL && subject != NULL &&
           strncmp(subject, s->inbox, strlen(s->inbox)) == 0;
}

/* With the lock: what the library's thread has brought becomes deliveries. */
static void take_came(struct nats *s)
{
    struct link *k = s->link;
    const char *status;
    size_t i;

    if (k == NULL)
        return;
    (void)pthread_mutex_lock(&k->lock);
    for (i = 0; i < k->n_came; i++) {
        natsMsg *msg = k->came[i];

        if (is_control(s, msg) &&
            natsMsgHeader_Get(msg, "Status", &status) == NATS_OK) {
            take_status(s, status, msg);
        } else {
            s->asked -= s->asked > 0;
            s->gone |= !take_message(s, msg);
        }
        natsMsg_Destroy(msg);
    }
    k->n_came = 0;
    (void)pthread_mutex_unlock(&k->lock);
}

#define IN_PROGRESS "+WPI"

/* With the lock. */
static natsStatus say(struct nats *s, const struct once__incoming *in,
                      const char *text)
{
    if (s->c == NULL || in->connection != s->connection)
        return NATS_CONNECTION_CLOSED;
    return natsConnection_PublishString(s->c, in->native, text);
}

/* Asks for more time for all that is held. */
static void *beat(void *user)
{
    struct nats *s = user;
    struct once__incoming *in;
    int64_t wait;

    (void)pthread_mutex_lock(&s->lock);
    while (!s->stop) {
        if (s->c != NULL) {
            take_came(s);
            for (in = s->ready.first; in != NULL; in = in->next)
                (void)say(s, in, IN_PROGRESS);
            for (in = s->out.first; in != NULL; in = in->next)
                (void)say(s, in, IN_PROGRESS);
        }
        wait = s->ack_wait_ms / 3;
        once__cond_until(&s->wake, &s->lock,
                         once__steady_ms() + (wait < 100     ? 100
                                              : wait > 10000 ? 10000
                                                             : (uint64_t)wait));
    }
    (void)pthread_mutex_unlock(&s->lock);
    nats_ReleaseThreadMemory();
    return NULL;
}

/* ---- What the target keeps ------------------------------------------------ */

/* JetStream's answer to a question. NULL: JetStream is not enabled, or this user has
 * no right to ask. The caller ends it with json_decref(). */
static json_t *ask_jetstream(struct nats *s, const char *subject,
                             const char *question)
{
    natsMsg *msg = NULL;
    json_t *root = NULL;

    if (natsConnection_RequestString(&msg, s->c, subject, question, ASK_MS) ==
        NATS_OK)
        root = json_loadb(natsMsg_GetData(msg),
                          (size_t)natsMsg_GetDataLength(msg), 0, NULL);
    natsMsg_Destroy(msg);
    return root;
}

/* The name of the stream that takes `subject`. 1: found. 0: no stream takes it.
 * -1: JetStream does not answer. */
static int find_stream(struct nats *s, const char *subject, char name[256])
{
    char question[300];
    const char *first;
    json_t *root;
    int found;

    (void)snprintf(question, sizeof(question), "{\"subject\":\"%s\"}", subject);
    root = strpbrk(subject, "\"\\") != NULL
               ? NULL
               : ask_jetstream(s, "$JS.API.STREAM.NAMES", question);
    first =
        json_string_value(json_array_get(json_object_get(root, "streams"), 0));
    found = root == NULL || json_object_get(root, "error") != NULL ? -1
            : first != NULL                                        ? 1
                                                                   : 0;
    if (found == 1)
        (void)snprintf(name, 256, "%s", first);
    json_decref(root);
    return found;
}

static int is_value(const json_t *config, const char *name, const char *value)
{
    const char *is = json_string_value(json_object_get(config, name));

    return is != NULL && strcmp(is, value) == 0;
}

/* A stream that answers with a PubAck may still keep nothing. */
static int judge_stream(struct nats *s, const char *name, const json_t *info,
                        once_error *err)
{
    const json_t *config = json_object_get(info, "config");
    const json_t *state = json_object_get(info, "state");

    s->interest = is_value(config, "retention", "interest");
    if (s->interest &&
        json_integer_value(json_object_get(state, "consumer_count")) == 0)
        return once__fail(
            err, ONCE_EOPEN,
            "nats: the stream %s has retention \"interest\" and no "
            "consumer, so it keeps no message. Create the consumer "
            "first, or use retention \"limits\"",
            name);
    if (json_is_true(json_object_get(config, "no_ack")))
        return once__fail(err, ONCE_EOPEN,
                          "nats: the stream %s has no_ack, so it confirms no "
                          "message. Set no_ack to false",
                          name);
    if (is_value(config, "storage", "memory") && !s->said_memory) {
        s->said_memory = 1;
        log_line(s,
                 "nats: the stream keeps its messages in memory: a restart of "
                 "the server loses them. Use storage \"file\"");
    }
    return ONCE_OK;
}

/* Looks at the stream before the first message, since no answer to a message says
 * whether it was kept. A user without the right to ask gets
 * one warning. */
static int look_at_target(struct nats *s, once_error *err)
{
    const char *subject = s->subject[0] != '\0' ? s->subject : s->o.route;
    char name[256], question[300];
    json_t *info = NULL;
    int found, rc = ONCE_OK;

    s->looked_ms = once__steady_ms();
    if (subject == NULL || !is_subject(subject))
        return ONCE_OK;
    found = find_stream(s, subject, name);
    if (found == 1) {
        (void)snprintf(question, sizeof(question), "$JS.API.STREAM.INFO.%s",
                       name);
        info = ask_jetstream(s, question, "");
        if (json_is_object(json_object_get(info, "config")))
            rc = judge_stream(s, name, info, err);
        else
            found = -1;
        json_decref(info);
    }
    if (found == 0 && s->o.check)
        return once__fail(
            err, ONCE_EOPEN,
            "nats: no stream takes the subject %s. Create one: nats "
            "stream add NAME --subjects %s",
            subject, subject);
    if (found < 0 && s->o.check)
        return once__fail(err, ONCE_EOPEN,
                          "nats: JetStream does not say which stream takes the "
                          "subject %s. Enable it, and let this user publish to "
                          "$JS.API.STREAM.NAMES and $JS.API.STREAM.INFO.*",
                          subject);
    if (found < 0 && !s->said_unasked) {
        s->said_unasked = 1;
        log_line(s,
                 "nats: JetStream does not say what the stream keeps. Let this "
                 "user publish to $JS.API.STREAM.NAMES and "
                 "$JS.API.STREAM.INFO.*");
    }
    return rc;
}

/* The last consumer of a stream with retention "interest" may leave at any time. */
static int look_again(struct nats *s, once_error *err)
{
    int rc = ONCE_OK;

    if (s->interest && once__steady_ms() - s->looked_ms >= LOOK_MS)
        rc = look_at_target(s, err);
    if (rc != ONCE_OK)
        lose(s, "the stream keeps nothing");
    return rc;
}

static int nats_connect(struct once__broker *b, once_error *err)
{
    struct nats *s = self(b);
    int rc;

    if (!is_lost(s))
        return look_again(s, err);
    lose(s, "the connection was lost");
    rc = open_connection(s, err);
    if (rc == ONCE_OK)
        rc = subscribe(s, err);
    if (rc == ONCE_OK && s->stream[0] != '\0') {
        rc = set_up_receiving(s, err);
    } else if (rc == ONCE_OK) {
        rc = look_at_target(s, err);
        if (rc != ONCE_OK)
            lose(s, "the stream keeps nothing");
    }
    if (rc == ONCE_OK && s->stream[0] != '\0' && !s->beating)
        s->beating = pthread_create(&s->beat, NULL, beat, s) == 0;
    return rc;
}

/* With the lock: a request for as many as there is room for, one at a time. */
static natsStatus ask(struct nats *s)
{
    size_t most = s->o.prefetch == 0 ? 1 : s->o.prefetch;
    char subject[600], reply[128], text[96];
    natsStatus rc;

    if (s->asked > 0 && once__steady_ms() < s->asked_until)
        return NATS_OK;
    if (s->held >= most || once__steady_ms() < s->quiet_until)
        return NATS_OK;
    (void)snprintf(subject, sizeof(subject), "$JS.API.CONSUMER.MSG.NEXT.%s.%s",
                   s->stream, s->durable);
    (void)snprintf(reply, sizeof(reply), "%s.m", s->inbox);
    (void)snprintf(text, sizeof(text),
                   "{\"batch\":%zu,\"expires\":%" PRIu64 "}", most - s->held,
                   (uint64_t)EXPIRES_MS * 1000000);
    rc = natsConnection_PublishRequestString(s->c, subject, reply, text);
    s->asked = most - s->held;
    s->asked_until = once__steady_ms() + EXPIRES_MS + 1000;
    return rc;
}

/* Waits until the library's thread has brought something. */
static void link_wait(struct link *k, uint64_t ms)
{
    (void)pthread_mutex_lock(&k->lock);
    if (k->n_came == 0)
        once__cond_until(&k->wake, &k->lock, once__steady_ms() + ms);
    (void)pthread_mutex_unlock(&k->lock);
}

/* With the lock: the first that is ready; NULL: none came in time, or the
 * connection is lost. */
static struct once__incoming *wait_ready(struct nats *s, uint32_t wait_ms)
{
    uint64_t end = once__steady_ms() + wait_ms, now;

    for (;;) {
        take_came(s);
        now = once__steady_ms();
        if (s->ready.first != NULL || is_lost(s) || s->gone ||
            ask(s) != NATS_OK || now >= end)
            return s->ready.first;
        (void)pthread_mutex_unlock(&s->lock);
        link_wait(s->link, end - now < SLICE_MS ? end - now : SLICE_MS);
        (void)pthread_mutex_lock(&s->lock);
    }
}

static int nats_receive(struct once__broker *b, uint32_t wait_ms,
                        struct once__delivery **out, once_error *err)
{
    struct nats *s = self(b);
    struct once__incoming *in = NULL;
    int over;

    *out = NULL;
    (void)pthread_mutex_lock(&s->lock);
    if (s->c != NULL)
        in = wait_ready(s, wait_ms);
    if (in != NULL) {
        once__incoming_remove(&s->ready, in);
        once__incoming_push(&s->out, in);
        *out = &in->d;
    }
    over = in == NULL && (is_lost(s) || s->gone);
    (void)pthread_mutex_unlock(&s->lock);
    return over ? lost(s,
                       "the connection was lost, or the stream or its "
                       "consumer is gone",
                       err)
                : ONCE_OK;
}

/* The server answers an acknowledgement, so that it is known to be durable. */
static natsStatus acknowledge(struct nats *s, const struct once__incoming *in)
{
    natsMsg *answer = NULL;
    natsStatus rc = NATS_CONNECTION_CLOSED;

    if (s->c != NULL && in->connection == s->connection)
        rc = natsConnection_RequestString(&answer, s->c, in->native, "+ACK",
                                          s->o.timeout_ms);
    natsMsg_Destroy(answer);
    return rc;
}

static void nak(char *out, size_t size, uint64_t delay_ms)
{
    (void)snprintf(out, size, "-NAK {\"delay\": %" PRIu64 "}",
                   delay_ms * 1000000);
}

static int nats_ack(struct once__broker *b, struct once__delivery *d, int how,
                    once_error *err)
{
    struct nats *s = self(b);
    struct once__incoming *in = (struct once__incoming *)(void *)d;
    char back[64];
    natsStatus rc;

    nak(back, sizeof(back), BACK_MS);
    (void)pthread_mutex_lock(&s->lock);
    rc = how == ONCE__ACK_TAKEN
             ? acknowledge(s, in)
             : say(s, in, how == ONCE__ACK_BACK ? back : IN_PROGRESS);
    if (how != ONCE__ACK_STILL_AT) {
        s->held -= s->c != NULL && in->connection == s->connection;
        once__incoming_remove(&s->out, in);
        once__incoming_free(in);
    }
    (void)pthread_mutex_unlock(&s->lock);
    if (rc == NATS_OK)
        return ONCE_OK;
    return once__fail(err, ONCE_EAWAY,
                      "nats: not known whether the acknowledgement arrived");
}

/*
 * What is held goes back before ack_wait is over. Not at once: a message that is
 * given back while the request of a lost connection is still open comes again as
 * if for the first time (nats-server 2.9).
 */
static void give_back(struct nats *s)
{
    struct once__incoming *in;
    char back[64];

    nak(back, sizeof(back), EXPIRES_MS + BACK_MS);
    (void)pthread_mutex_lock(&s->lock);
    if (s->c != NULL)
        take_came(s);
    for (in = s->ready.first; in != NULL; in = in->next)
        (void)say(s, in, back);
    for (in = s->out.first; in != NULL; in = in->next)
        (void)say(s, in, back);
    (void)pthread_mutex_unlock(&s->lock);
}

static void nats_abandon(struct once__broker *b)
{
    give_back(self(b));
    lose(self(b), "no proof came in time");
}

/* ---- The object -------------------------------------------------------------------- */

static void nats_close_broker(struct once__broker *b)
{
    struct nats *s = self(b);

    if (s == NULL)
        return;
    give_back(s);
    if (!is_lost(s))
        (void)natsConnection_FlushTimeout(s->c, CLOSE_MS);
    lose(s, "the connection was closed");
    (void)pthread_mutex_lock(&s->lock);
    s->stop = 1;
    (void)pthread_cond_signal(&s->wake);
    (void)pthread_mutex_unlock(&s->lock);
    if (s->beating)
        (void)pthread_join(s->beat, NULL);
    once__incoming_drop(&s->out);
    once__flights_clear(&s->flights);
    free(s->ca_file);
    (void)pthread_cond_destroy(&s->wake);
    (void)pthread_mutex_destroy(&s->lock);
    explicit_bzero(&s->at, sizeof(s->at));
    free(s);
}

static int nats_open_broker(const char *url,
                            const struct once__broker_options *o,
                            struct once__broker **out, once_error *err)
{
    struct nats *s = calloc(1, sizeof(*s));
    int rc;

    *out = NULL;
    if (s == NULL)
        return once__fail(err, ONCE_ENOMEM, "nats: no memory");
    s->broker.ops = &once__broker_nats;
    s->o = *o;
    if (s->o.timeout_ms == 0)
        s->o.timeout_ms = 10000;
    (void)pthread_mutex_init(&s->lock, NULL);
    once__cond_init(&s->wake);
    rc = read_url(s, url, err);
    if (rc == ONCE_OK && o->ca_file != NULL) {
        s->ca_file = strdup(o->ca_file);
        if (s->ca_file == NULL)
            rc = once__fail(err, ONCE_ENOMEM, "nats: no memory");
    }
    if (rc != ONCE_OK) {
        nats_close_broker(&s->broker);
        return rc;
    }
    *out = &s->broker;
    return ONCE_OK;
}

const struct once__broker_ops once__broker_nats = {
    .scheme = "nats",
    .knows_ids = 1,
    .open = nats_open_broker,
    .close = nats_close_broker,
    .connect = nats_connect,
    .send = nats_send,
    .proofs = nats_proofs,
    .abandon = nats_abandon,
    .receive = nats_receive,
    .ack = nats_ack,
};
