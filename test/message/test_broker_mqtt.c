/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_broker_mqtt.c - the driver of MQTT, where it is not like the others.
 *
 *    with-server mosquitto -- test_broker_mqtt FAULTPROXY
 *
 * What arrived is asked of a subscriber that has no code of the driver.
 */
#include "target.h"

#include <mosquitto.h>
#include <mqtt_protocol.h>

static const char *proxy_program;
static char host[128];
static int port;

/* ---- A subscriber ----------------------------------------------------------- */

struct seen {
    struct mosquitto *c;
    int ready;
    size_t n;
    char there[MANY];     /* by the number at the end of the id */
    char properties[512]; /* of the last: "name=value;" */
    char type[64], body[64];
};

static void on_subscribe(struct mosquitto *c, void *user, int mid, int n,
                         const int *granted, const mosquitto_property *p)
{
    (void)c;
    (void)mid;
    (void)n;
    (void)granted;
    (void)p;
    ((struct seen *)user)->ready = 1;
}

static void on_connect(struct mosquitto *c, void *user, int reason, int flags,
                       const mosquitto_property *p)
{
    (void)user;
    (void)flags;
    (void)p;
    T_EQ(reason, 0);
    T_EQ(mosquitto_subscribe(c, NULL, "t/#", 1), 0);
}

static void on_message(struct mosquitto *c, void *user,
                       const struct mosquitto_message *m,
                       const mosquitto_property *p)
{
    struct seen *s = user;
    char *name, *value, *type = NULL;
    size_t n = 0;

    (void)c;
    s->n++;
    s->properties[0] = s->type[0] = '\0';
    (void)mosquitto_property_read_string(p, MQTT_PROP_CONTENT_TYPE, &type,
                                         false);
    if (type != NULL)
        (void)snprintf(s->type, sizeof(s->type), "%s", type);
    free(type);
    (void)snprintf(s->body, sizeof(s->body), "%.*s", m->payloadlen,
                   m->payloadlen > 0 ? (char *)m->payload : "");
    for (p = mosquitto_property_read_string_pair(p, MQTT_PROP_USER_PROPERTY,
                                                 &name, &value, false);
         p != NULL; p = mosquitto_property_read_string_pair(
                        p, MQTT_PROP_USER_PROPERTY, &name, &value, true)) {
        const char *dash = strrchr(value, '-');

        if (strcmp(name, "Once-Id") == 0 && dash != NULL &&
            strtoul(dash + 1, NULL, 10) < MANY)
            s->there[strtoul(dash + 1, NULL, 10)] = 1;
        if (n < sizeof(s->properties))
            n += (size_t)snprintf(s->properties + n, sizeof(s->properties) - n,
                                  "%s=%s;", name, value);
        free(name);
        free(value);
    }
}

static void seen_loop(struct seen *s, uint64_t ms)
{
    uint64_t end = target_now() + ms;

    while (target_now() < end)
        T_EQ(mosquitto_loop(s->c, 50, 1), 0);
}

static void seen_begin(struct seen *s)
{
    memset(s, 0, sizeof(*s));
    s->c = mosquitto_new(NULL, true, s);
    (void)mosquitto_int_option(s->c, MOSQ_OPT_PROTOCOL_VERSION,
                               MQTT_PROTOCOL_V5);
    mosquitto_connect_v5_callback_set(s->c, on_connect);
    mosquitto_subscribe_v5_callback_set(s->c, on_subscribe);
    mosquitto_message_v5_callback_set(s->c, on_message);
    T_EQ(mosquitto_connect(s->c, host, port, 60), 0);
    while (!s->ready && t__bad == 0)
        seen_loop(s, 50);
}

static void seen_wait(struct seen *s, size_t n)
{
    uint64_t end = target_now() + WAIT_MS;

    while (s->n < n && target_now() < end && t__bad == 0)
        seen_loop(s, 50);
}

static struct once__broker *sender(int to_port, const char *query)
{
    char url[256];

    (void)snprintf(url, sizeof(url), "mqtt://%s:%d%s", host, to_port, query);
    return target_open(url, 3000, 0, 0);
}

/* ---- The tests ----------------------------------------------------------------- */

static void what_is_sent_arrives_with_its_properties(void)
{
    struct once__broker *b = sender(port, "");
    once_message m = target_message("t/route", "id-7", "body", 4);
    struct seen s;
    struct ends e;

    seen_begin(&s);
    ends_begin(&e);
    m.key = "order-42";
    m.type = "application/json";
    m.headers = "A: 1\nOnce-Id: forged\nB: zw\xc3\xb6lf\n";
    T_EQ(b->ops->connect(b, NULL), ONCE_OK);
    T_EQ(b->ops->send(b, &m, 0, NULL), ONCE_OK);
    ends_collect(&e, b, 1);
    T_EQ(e.end[0], ONCE__END_TAKEN);
    seen_wait(&s, 1);
    T_EQ(s.n, 1);
    T_STR(s.properties, "Once-Id=id-7;Once-Key=order-42;A=1;"
                        "B=zw\xc3\xb6lf;");
    T_STR(s.type, "application/json");
    T_STR(s.body, "body");
    b->ops->close(b);
    mosquitto_destroy(s.c);
}

static void without_a_subscription_it_is_refused(void)
{
    struct once__broker *b = sender(port, "?topic=nobody");
    once_message m = target_message("t/route", "id-1", "body", 4);
    struct ends e;

    ends_begin(&e);
    T_EQ(b->ops->connect(b, NULL), ONCE_OK);
    T_EQ(b->ops->send(b, &m, 0, NULL), ONCE_OK);
    ends_collect(&e, b, 1);
    T_EQ(e.end[0], ONCE__END_REFUSED);
    T_EQ(e.status[0], MQTT_RC_NO_MATCHING_SUBSCRIBERS);
    b->ops->close(b);
}

static void what_mqtt_cannot_carry_ends_alone(void)
{
    struct once__broker *b = sender(port, "");
    once_message m = target_message("a/#", "id-1", "body", 4);
    struct seen s;
    struct ends e;

    seen_begin(&s);
    ends_begin(&e);
    T_EQ(b->ops->connect(b, NULL), ONCE_OK);
    T_EQ(b->ops->send(b, &m, 0, NULL), ONCE_OK);
    m = target_message("t/x", "id-2", "body", 4);
    m.headers = "A: a\tb\n";
    T_EQ(b->ops->send(b, &m, 1, NULL), ONCE_OK);
    m.headers = NULL;
    T_EQ(b->ops->send(b, &m, 2, NULL), ONCE_OK);
    ends_collect(&e, b, 3);
    T_EQ(e.end[0], ONCE__END_REFUSED);
    T_EQ(e.end[1], ONCE__END_REJECTED);
    T_EQ(e.end[2], ONCE__END_TAKEN);
    b->ops->close(b);
    mosquitto_destroy(s.c);
}

static void cut_after(const char *direction, unsigned bytes)
{
    struct proxy p = {0};
    struct once__broker *b;
    struct seen s;
    struct ends e;
    char server[200], rule[64], id[32];
    size_t i, sent = 0;

    (void)snprintf(server, sizeof(server), "%s:%d", host, port);
    (void)snprintf(rule, sizeof(rule), "new %s cut %u rst", direction, bytes);
    proxy_start(&p, proxy_program, server, rule);
    seen_begin(&s);
    b = sender(p.port, "?topic=t/cut");
    ends_begin(&e);
    if (b->ops->connect(b, NULL) == ONCE_OK)
        for (i = 0; i < 200; i++) {
            once_message m = target_message("r", id, "body", 4);

            (void)snprintf(id, sizeof(id), "id-%zu", i);
            sent++;
            if (b->ops->send(b, &m, i, NULL) != ONCE_OK)
                break;
        }
    ends_collect(&e, b, sent);
    seen_wait(&s, ends_of(&e, ONCE__END_TAKEN, sent));
    seen_loop(&s, 100);
    for (i = 0; i < sent; i++) {
        T_OK(e.end[i] == ONCE__END_TAKEN || e.end[i] == ONCE__END_SILENT ||
             e.end[i] == ONCE__END_UNSENT);
        T_OK(e.end[i] != ONCE__END_TAKEN || s.there[i]);
        T_OK(e.end[i] != ONCE__END_UNSENT || !s.there[i]);
    }
    b->ops->close(b);
    mosquitto_destroy(s.c);
    proxy_stop(&p);
}

static void a_connection_that_is_cut_leaves_each_message_one_end(void)
{
    unsigned bytes;

    for (bytes = 20; bytes < 10000; bytes *= 3)
        cut_after("up", bytes);
    for (bytes = 5; bytes < 800; bytes *= 3)
        cut_after("down", bytes);
}

int main(int argc, char **argv)
{
    const char *url = getenv("ONCE_TEST_URL");

    if (url == NULL || sscanf(url, "mqtt://%127[^:]:%d", host, &port) != 2)
        t_skip_all("ONCE_TEST_URL names no MQTT broker");
    (void)signal(SIGPIPE, SIG_IGN);
    (void)mosquitto_lib_init();
    proxy_program = argc > 1 ? argv[1] : NULL;
    T_RUN(what_is_sent_arrives_with_its_properties);
    T_RUN(without_a_subscription_it_is_refused);
    T_RUN(what_mqtt_cannot_carry_ends_alone);
    if (proxy_program != NULL)
        T_RUN(a_connection_that_is_cut_leaves_each_message_one_end);
    return t_done();
}
