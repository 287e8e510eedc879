/* SPDX-License-Identifier: Apache-2.0 */
/*
 * route.c - the options of a route, from JSON: named as the gateway's directives
 * without "once_", and each value is a directive's own text.
 *
 * There is one guard for each distinct route. Of too many of them the one goes
 * that is not in use, and was used longest ago. A member that is not known is refused: a misspelt protection must not be silently
 * absent. What is known is checked by once_guard_open().
 */
#include "programs/serve/serve.h"

#include <inttypes.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"

enum {
    RUN_MS = 60000,
    RUN_MOST_MS = 600000,
    LEASE_MS = 30000, /* both are the guard's own defaults */
    STORE_MS = 1000,
    MEBIBYTE = 1048576
};
enum { VALUE_MAX = 1024 };

/* ---- Values ---------------------------------------------------------------- */

struct unit {
    const char *name;
    uint64_t factor;
};

static int read_number(const char *text, const struct unit *units,
                       uint64_t *out)
{
    size_t digits = strspn(text, "0123456789");
    const struct unit *u;

    if (digits < 1 || digits > 12)
        return 0;
    for (u = units; u->name != NULL; u++)
        if (strcmp(text + digits, u->name) == 0) {
            *out = strtoull(text, NULL, 10) * u->factor;
            return 1;
        }
    return 0;
}

/* "24h" in milliseconds: 1, or 0. */
static int read_time(const char *text, uint64_t *ms)
{
    static const struct unit units[] = {
        {"", 1000},     {"ms", 1},       {"s", 1000}, {"m", 60000},
        {"h", 3600000}, {"d", 86400000}, {NULL, 0},
    };

    return read_number(text, units, ms);
}

int serve_read_size(const char *text, uint64_t *size)
{
    static const struct unit units[] = {
        {"", 1},        {"k", 1024},       {"K", 1024},       {"m", 1048576},
        {"M", 1048576}, {"g", 1073741824}, {"G", 1073741824}, {NULL, 0},
    };

    return read_number(text, units, size);
}

/* ---- Members ---------------------------------------------------------------- */

/* A route while it is read; its texts live as long. */
struct reading {
    once_guard_options o;
    uint64_t run_ms;
    char texts[24][VALUE_MAX];
    size_t n;
};

enum kind { TEXT, FLAG, CHOICE, TIME32, TIME64, SIZE, RUN, SCOPE, PARTS };

/* What may stand in a value of several words: NAME=VALUE, or the word itself. */
struct part {
    const char *name; /* "" : a word without "=" */
    enum kind kind;
    size_t at;
};

struct member {
    const char *name;
    enum kind kind;
    size_t at;
    const char *words[2]; /* CHOICE: 0, 1 */
    struct part parts[2]; /* PARTS */
    const char *is;       /* of them: what the value is */
};

#define AT(member) offsetof(once_guard_options, member)

static const struct member members[] = {
    {.name = "scope", .kind = SCOPE, .at = AT(scope_off)},
    {.name = "key", .kind = TEXT, .at = AT(key)},
    {.name = "key_required", .kind = FLAG, .at = AT(key_required)},
    {.name = "key_time",
     .kind = PARTS,
     .parts = {{"", TEXT, AT(key_time)}, {"max_age", TIME64, AT(max_age_ms)}},
     .is = "uuid7 or ulid, and perhaps max_age=TIME"},
    {.name = "key_json",
     .kind = PARTS,
     .parts = {{"", TEXT, AT(key_json[0])}, {"", TEXT, AT(key_json[1])}},
     .is = "one or two JSON pointers"},
    {.name = "key_space",
     .kind = CHOICE,
     .at = AT(key_space),
     .words = {"realm", "path"}},
    {.name = "realm", .kind = TEXT, .at = AT(realm)},
    {.name = "methods", .kind = TEXT, .at = AT(methods)},
    {.name = "fingerprint", .kind = TEXT, .at = AT(fingerprint)},
    {.name = "in_flight",
     .kind = PARTS,
     .parts = {{"wait", TIME32, AT(in_flight_ms)},
               {"accept", TEXT, AT(accept)}},
     .is = "reject, or wait=TIME up to 10m and accept=PATH"},
    {.name = "repeat",
     .kind = CHOICE,
     .at = AT(repeat),
     .words = {"replay", "refuse"}},
    {.name = "final", .kind = TEXT, .at = AT(final)},
    {.name = "release", .kind = TEXT, .at = AT(release)},
    {.name = "unknown", .kind = TEXT, .at = AT(unknown)},
    {.name = "lost",
     .kind = CHOICE,
     .at = AT(lost),
     .words = {"hold", "takeover"}},
    {.name = "two_phase", .kind = FLAG, .at = AT(two_phase)},
    {.name = "store_failure",
     .kind = CHOICE,
     .at = AT(store_failure),
     .words = {"deny", "bypass"}},
    {.name = "ttl",
     .kind = PARTS,
     .parts = {{"", TIME64, AT(ttl_ms)},
               {"failure", TIME64, AT(ttl_failure_ms)}},
     .is = "a time such as 24h, and perhaps failure=TIME"},
    {.name = "lease", .kind = TIME32, .at = AT(lease_ms)},
    {.name = "timeout", .kind = TIME32, .at = AT(store_ms)},
    {.name = "max_request", .kind = SIZE, .at = AT(max_request)},
    {.name = "max_response", .kind = SIZE, .at = AT(max_response)},
    {.name = "hide_header", .kind = TEXT, .at = AT(hide_header)},
    {.name = "store_cookies", .kind = FLAG, .at = AT(store_cookies)},
    {.name = "cors_expose", .kind = FLAG, .at = AT(cors_expose)},
    {.name = "dry_run", .kind = FLAG, .at = AT(dry_run)},
    {.name = "run", .kind = RUN},
};

static int set_choice(void *at, const char *text, const char *const words[2])
{
    uint32_t i;

    for (i = 0; i < 2; i++)
        if (strcmp(text, words[i]) == 0) {
            memcpy(at, &i, sizeof(i));
            return 1;
        }
    return 0;
}

/* 1, or 0: `text` is no such value. */
static int set(struct reading *r, enum kind kind, size_t offset,
               const char *text, const char *const words[2])
{
    static const char *const flag[2] = {"off", "on"};
    void *at = (char *)&r->o + offset;
    uint64_t value = 0;
    uint32_t small;
    size_t size;

    switch (kind) {
    case FLAG:
        return set_choice(at, text, flag);
    case CHOICE:
        return set_choice(at, text, words);
    case SCOPE:
        small = 1;
        memcpy(at, &small, sizeof(small));
        return strcmp(text, "off") == 0;
    case RUN:
        return read_time(text, &r->run_ms) && r->run_ms >= 1000 &&
               r->run_ms <= RUN_MOST_MS;
    case TIME32:
        small = (uint32_t)(read_time(text, &value) ? value : 0);
        memcpy(at, &small, sizeof(small));
        return value > 0 && value <= UINT32_MAX;
    case TIME64:
        memcpy(at, &value, sizeof(value));
        if (!read_time(text, &value))
            return 0;
        memcpy(at, &value, sizeof(value));
        return value > 0;
    case SIZE:
        if (!serve_read_size(text, &value))
            return 0;
        size = (size_t)value;
        memcpy(at, &size, sizeof(size));
        return value > 0 && value <= ONCE_RESULT_MAX;
    default: /* TEXT */
        (void)snprintf(r->texts[r->n], VALUE_MAX, "%s", text);
        text = r->texts[r->n++];
        memcpy(at, &text, sizeof(text));
        return 1;
    }
}

static int set_part(struct reading *r, const struct member *m, char *word,
                    int taken[2])
{
    char *equals = strchr(word, '=');
    const char *name = "", *value = word;
    int i;

    /* A pointer may have "=" in it. */
    if (equals != NULL && word[0] != '/') {
        *equals = '\0';
        name = word;
        value = equals + 1;
    }
    for (i = 0; i < 2; i++)
        if (m->parts[i].name != NULL && !taken[i] &&
            strcmp(m->parts[i].name, name) == 0) {
            taken[i] = 1;
            return set(r, m->parts[i].kind, m->parts[i].at, value, NULL);
        }
    return 0;
}

static int set_parts(struct reading *r, const struct member *m, char *text)
{
    int taken[2] = {0, 0};
    char *word, *rest = text;

    if (strcmp(text, "reject") == 0 && strcmp(m->name, "in_flight") == 0)
        return 1;
    while ((word = strsep(&rest, " ")) != NULL)
        if (word[0] != '\0' && !set_part(r, m, word, taken))
            return 0;
    return 1;
}

/* true, false and numbers do for their text. */
static int text_of(const json_t *v, char text[VALUE_MAX])
{
    int n = -1;

    if (json_is_boolean(v))
        n = snprintf(text, VALUE_MAX, "%s", json_is_true(v) ? "on" : "off");
    else if (json_is_integer(v))
        n = snprintf(text, VALUE_MAX, "%" JSON_INTEGER_FORMAT,
                     json_integer_value(v));
    else if (json_is_string(v))
        n = snprintf(text, VALUE_MAX, "%s", json_string_value(v));
    return n >= 0 && n < VALUE_MAX;
}

/* Names the value, and what it may be. */
static void refuse(const struct member *m, const json_t *v, once_error *err)
{
    static const char *const kinds[] = {
        [TEXT] = "a text of up to 1023 bytes",
        [FLAG] = "on or off",
        [TIME32] = "a time of a millisecond to 49 days, such as 30s",
        [TIME64] = "a time, such as 24h",
        [SIZE] = "a size of 1 byte to 64m",
        [RUN] = "a time of 1s to 10m",
        [SCOPE] = "off: who calls stands in the head",
    };
    char text[VALUE_MAX] = "";

    (void)text_of(v, text);
    if (m->kind == CHOICE)
        (void)once__fail(err, ONCE_EINVAL, "%s: \"%.40s\" is not %s or %s",
                         m->name, text, m->words[0], m->words[1]);
    else
        (void)once__fail(err, ONCE_EINVAL, "%s: \"%.40s\" is not %s", m->name,
                         text, m->kind == PARTS ? m->is : kinds[m->kind]);
}

static int read_member(struct reading *r, const char *name, const json_t *v,
                       once_error *err)
{
    char text[VALUE_MAX];
    const struct member *m = NULL;
    size_t i;

    for (i = 0; i < sizeof(members) / sizeof(members[0]); i++)
        if (strcmp(members[i].name, name) == 0)
            m = &members[i];
    if (m == NULL) {
        (void)once__fail(err, ONCE_EINVAL,
                         "%.40s: there is no such member of a route", name);
        return 0;
    }
    if (text_of(v, text) &&
        (m->kind == PARTS ? set_parts(r, m, text)
                          : set(r, m->kind, m->at, text, m->words)))
        return 1;
    refuse(m, v, err);
    return 0;
}

/* ---- What a program computes for one request -------------------------------- */

/* At most ONCE_HTTP_TEXT_MAX bytes: see serve_begin_head(). */
static int give(const char *text, char *out, size_t max)
{
    size_t n = text != NULL ? strlen(text) : 0;

    if (n > max)
        return -1;
    if (n > 0)
        memcpy(out, text, n);
    return (int)n;
}

static int scope_of(void *user, const once_http_request *r, char *out,
                    size_t max)
{
    (void)user;
    return give(((const struct serve_call *)r->server)->scope, out, max);
}

static int key_of(void *user, const once_http_request *r, char *out, size_t max)
{
    (void)user;
    return give(((const struct serve_call *)r->server)->key, out, max);
}

static int fingerprint_of(void *user, const once_http_request *r, char *out,
                          size_t max)
{
    (void)user;
    return give(((const struct serve_call *)r->server)->fingerprint, out, max);
}

/* Method and path where the program has none, as the guard itself has it. */
int serve_label(const struct serve_call *k, char *out, size_t max)
{
    int n;

    if (k->label != NULL)
        return give(k->label, out, max);
    n = snprintf(out, max, "%s %.*s", k->method, (int)strcspn(k->target, "?"),
                 k->target);
    return n < (int)max ? n : (int)max - 1;
}

static int label_of(void *user, const once_http_request *r, char *out,
                    size_t max)
{
    (void)user;
    return serve_label(r->server, out, max);
}

static void on_event(void *user, const char *text)
{
    (void)user;
    fprintf(stderr, "once serve: %s\n", text);
}

/* ---- The list ----------------------------------------------------------------- */

static void add(struct serve *s, struct serve_route *r)
{
    r->next = s->routes;
    s->routes = r;
    s->n_routes++;
}

static void route_free(struct serve_route *r)
{
    once_guard_close(r->guard);
    free(r->text);
    free(r);
}

struct serve_route *serve_route_hold(struct serve_route *r)
{
    r->uses++;
    return r;
}

void serve_route_drop(struct serve_route *r)
{
    if (r != NULL)
        r->uses--;
}

/* The unused one that was used longest ago goes. 0: all are in use. */
static int forget_one(struct serve *s)
{
    struct serve_route **at, **last = NULL, *r;

    for (at = &s->routes; *at != NULL; at = &(*at)->next)
        if ((*at)->uses == 0)
            last = at;
    if (last == NULL)
        return 0;
    r = *last;
    *last = r->next;
    s->n_routes--;
    route_free(r);
    return 1;
}

static struct serve_route *route_new(struct serve *s, const char *text,
                                     const struct reading *r, once_error *err)
{
    struct serve_route *new = calloc(1, sizeof(*new));

    if (new == NULL || (new->text = strdup(text)) == NULL ||
        once_guard_open(s->engine, &r->o, err, &new->guard) != ONCE_OK) {
        if (new != NULL)
            free(new->text);
        free(new);
        return NULL;
    }
    new->run_ms = r->run_ms;
    new->wait_ms = r->o.in_flight_ms;
    new->store_ms = r->o.store_ms ? r->o.store_ms : STORE_MS;
    new->lease_ms = r->o.lease_ms ? r->o.lease_ms : LEASE_MS;
    new->max_request = r->o.max_request ? r->o.max_request : MEBIBYTE;
    new->max_response = r->o.max_response ? r->o.max_response : MEBIBYTE;
    new->scope_off = (int)r->o.scope_off;
    add(s, new);
    return new;
}

/* What a program computes for each request makes another guard. */
enum { HAS_KEY = 1, HAS_FINGERPRINT = 2 };

static struct serve_route *make(struct serve *s, const json_t *given,
                                int computed, const char *text, once_error *err)
{
    struct reading *r = calloc(1, sizeof(*r));
    struct serve_route *out = NULL;
    const char *name;
    json_t *v;

    if (r == NULL)
        return NULL;
    r->o = (once_guard_options)ONCE_GUARD_OPTIONS_INIT;
    r->run_ms = RUN_MS;
    r->o.realm = s->realm;
    r->o.event = on_event;
    json_object_foreach((json_t *)(uintptr_t)given, name,
                        v) if (!read_member(r, name, v, err)) goto out;
    if (!r->o.scope_off)
        r->o.scope = scope_of;
    if (computed & HAS_KEY)
        r->o.key_of = key_of;
    if (computed & HAS_FINGERPRINT)
        r->o.fingerprint_of = fingerprint_of;
    r->o.label = label_of;
    out = route_new(s, text, r, err);
out:
    free(r);
    return out;
}

/* It comes to the front of the list. */
static struct serve_route *
find(struct serve *s, const struct serve_label *label, const char *text)
{
    struct serve_route **at, *r;

    for (at = &s->routes; (r = *at) != NULL; at = &r->next)
        if (r->label == label && strcmp(r->text, text) == 0) {
            *at = r->next;
            r->next = s->routes;
            s->routes = r;
            return r;
        }
    return NULL;
}

static struct serve_route *route(struct serve *s, const json_t *given,
                                 struct serve_label *label, int computed,
                                 once_error *err)
{
    char *json = json_dumps(given, JSON_COMPACT | JSON_SORT_KEYS);
    struct serve_route *out = NULL;
    char *text = NULL;

    if (json == NULL || asprintf(&text, "%d%s", computed, json) < 0) {
        text = NULL;
        goto out;
    }
    out = find(s, label, text);
    if (out != NULL)
        goto out;
    if (s->n_routes >= SERVE_ROUTES_MAX && !forget_one(s))
        (void)once__fail(err, ONCE_ELIMIT, "%d distinct routes are in use",
                         SERVE_ROUTES_MAX);
    else
        out = make(s, given, computed, text, err);
    if (out != NULL)
        out->label = label;
out:
    free(text);
    free(json);
    return out;
}

static struct serve_named *named(struct serve *s, const char *name)
{
    size_t i;

    for (i = 0; i < s->n_named; i++)
        if (strcmp(s->named[i].name, name) == 0)
            return &s->named[i];
    return NULL;
}

/* Says what `given` is, and what it may be. */
static void refuse_route(struct serve_call *k)
{
    const json_t *given = json_object_get(k->json, "route");
    const char *allowed = k->serve->routes_only
                              ? "--defined-only takes names of --define only"
                              : "it is an object, or a name of --define";

    if (json_is_string(given))
        serve_refuse(k, MHD_HTTP_UNPROCESSABLE_CONTENT, "route",
                     "\"route\": no --define has the name \"%.40s\".",
                     json_string_value(given));
    else if (given == NULL)
        serve_refuse(k, MHD_HTTP_UNPROCESSABLE_CONTENT, "route",
                     "\"route\" is missing: %s.", allowed);
    else
        serve_refuse(k, MHD_HTTP_UNPROCESSABLE_CONTENT, "route",
                     "\"route\" is %s: %s.",
                     json_is_object(given)   ? "an object"
                     : json_is_array(given)  ? "a list"
                     : json_is_number(given) ? "a number"
                     : json_is_null(given)   ? "null"
                                             : "true or false",
                     allowed);
}

struct serve_route *serve_route_of(struct serve_call *k)
{
    const json_t *given = json_object_get(k->json, "route");
    json_t *none = NULL;
    struct serve_named *name = NULL;
    struct serve_route *out = NULL;
    once_error err = {0, "no memory"};

    if (json_is_string(given))
        name = named(k->serve, json_string_value(given));
    else if (k->serve->routes_only)
        given = NULL;
    else if (given == NULL)
        given = none = json_object();
    if (name != NULL)
        given = name->route;
    else if (json_is_string(given))
        given = NULL;
    if (!json_is_object(given))
        refuse_route(k);
    else
        out = route(k->serve, given,
                    name != NULL ? &name->label : &k->serve->unnamed,
                    (k->key != NULL ? HAS_KEY : 0) |
                        (k->fingerprint != NULL ? HAS_FINGERPRINT : 0),
                    &err);
    if (out == NULL)
        serve_refuse(k,
                     err.code == ONCE_EINVAL ? MHD_HTTP_UNPROCESSABLE_CONTENT
                                             : MHD_HTTP_SERVICE_UNAVAILABLE,
                     err.code == ONCE_EINVAL ? "route" : "busy", "route: %s",
                     err.text);
    json_decref(none);
    return out != NULL ? serve_route_hold(out) : NULL;
}

struct serve_route *serve_route_of_calls(struct serve_call *k)
{
    return serve_route_hold(&k->serve->calls);
}

void serve_init(struct serve *s)
{
    s->last_gone = &s->first_gone;
    s->unproven.previous = s->unproven.next = &s->unproven;
    s->timed.previous = s->timed.next = &s->timed;
    s->unnamed.name = SERVE_UNNAMED;
    s->of_calls.name = SERVE_CALLS;
    s->calls.label = &s->of_calls;
    s->calls.run_ms = RUN_MS;
    s->calls.store_ms = STORE_MS;
    s->calls.max_response = ONCE_RESULT_MAX;
    s->realm = ONCE__REALM;
}

/* ---- Named routes ---------------------------------------------------------------- */

int serve_route_name(struct serve *s, const char *text)
{
    const char *equals = strchr(text, '=');
    struct serve_named *n = &s->named[s->n_named];
    json_error_t wrong;
    once_error err = {0, "no memory"};

    if (s->n_named == SERVE_NAMED_MAX)
        return cli_usage(s->cli, "--define may be given %d times",
                         SERVE_NAMED_MAX);
    if (equals == NULL || equals == text || *text == '-')
        return cli_usage(s->cli,
                         "--define \"%.60s\" is not NAME=FILE, whose name does "
                         "not begin with -",
                         text);
    n->route = json_load_file(equals + 1, JSON_REJECT_DUPLICATES, &wrong);
    if (!json_is_object(n->route)) {
        json_decref(n->route);
        return cli_say(s->cli, CLI_STORE,
                       "--define %.*s: %s: line %d: %s: a route is one JSON "
                       "object",
                       (int)(equals - text), text, equals + 1, wrong.line,
                       wrong.text[0] != '\0' ? wrong.text : "another value");
    }
    n->label.name = n->name = strndup(text, (size_t)(equals - text));
    if (n->name == NULL || named(s, n->name) != NULL)
        return cli_usage(s->cli, "--define: two have the name \"%s\"",
                         n->name != NULL ? n->name : "");
    s->n_named++;
    if (route(s, n->route, &n->label, 0, &err) == NULL)
        return cli_usage(s->cli, "--define %s: %s", n->name, err.text);
    return CLI_OK;
}

void serve_route_clear(struct serve *s)
{
    struct serve_route *r;
    size_t i;

    while ((r = s->routes) != NULL) {
        s->routes = r->next;
        route_free(r);
    }
    s->n_routes = 0;
    for (i = 0; i < s->n_named; i++) {
        free(s->named[i].name);
        json_decref(s->named[i].route);
    }
}
