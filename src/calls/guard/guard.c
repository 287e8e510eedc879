/* SPDX-License-Identifier: Apache-2.0 */
/*
 * guard.c - the options of one route, checked and made ready.
 *
 * What nginx -t refuses for the gateway is refused here, for the same reasons:
 * no decision about the scope, a lease above the retention, a bypass where a
 * lost owner is not replaced. A guard does not change after it was opened.
 */
#include "calls/guard/guard.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"

enum {
    TTL_MS = 86400000,
    LEASE_MS = 30000,
    STORE_MS = 1000,
    IN_FLIGHT_MAX_MS = 600000,
    BODY = 1 << 20
};

once_bytes once__text(const char *text)
{
    once_bytes b = {text, strlen(text)};

    return b;
}

void once__guard_event(const once_guard *g, const char *format, ...)
{
    char text[400];
    va_list args;

    if (g->options.event == NULL)
        return;
    va_start(args, format);
    (void)vsnprintf(text, sizeof(text), format, args);
    va_end(args);
    g->options.event(g->options.user, text);
}

int once__guard_has_method(const once_guard *g, const char *method)
{
    size_t i;

    for (i = 0; i < g->methods.n; i++)
        if (strcmp(g->methods.at[i].data, method) == 0)
            return 1;
    return 0;
}

/* ---- Lists of names ---------------------------------------------------- */

static void names_clear(struct once__names *w)
{
    free(w->text);
    free(w->at);
    memset(w, 0, sizeof(*w));
}

/* Splits a copy at its spaces; each name ends in NUL. */
static int names_split(struct once__names *w, const char *text, size_t max,
                       const char *what, once_error *err)
{
    char *at;

    w->text = strdup(text);
    w->at = calloc(max, sizeof(*w->at));
    if (w->text == NULL || w->at == NULL)
        return once__fail(err, ONCE_ENOMEM, "%s: no memory", what);
    for (at = w->text; *(at += strspn(at, " ")) != '\0';) {
        size_t size = strcspn(at, " ");
        int last = at[size] == '\0';

        if (w->n == max)
            return once__fail(err, ONCE_EINVAL, "%s: more than %zu names", what,
                              max);
        at[size] = '\0';
        w->at[w->n++] = (once_bytes){at, size};
        at += size + (size_t)!last;
    }
    return ONCE_OK;
}

/* RFC 9110, 5.6.2. */
static int is_token(const char *text)
{
    static const char chars[] = "!#$%&'*+-.^_`|~0123456789"
                                "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
                                "abcdefghijklmnopqrstuvwxyz";

    return *text != '\0' && text[strspn(text, chars)] == '\0';
}

static int check_tokens(const struct once__names *w, const char *what,
                        once_error *err)
{
    size_t i;

    for (i = 0; i < w->n; i++)
        if (!is_token(w->at[i].data))
            return once__fail(err, ONCE_EINVAL,
                              "%s: \"%.40s\" is not a name: names have "
                              "letters, digits and - between them, and spaces "
                              "between two",
                              what, (const char *)w->at[i].data);
    return ONCE_OK;
}

/* ---- Checks ------------------------------------------------------------ */

static void set_defaults(once_guard_options *o)
{
    if (o->ttl_ms == 0)
        o->ttl_ms = TTL_MS;
    if (o->lease_ms == 0)
        o->lease_ms = LEASE_MS;
    if (o->store_ms == 0)
        o->store_ms = STORE_MS;
    if (o->max_request == 0)
        o->max_request = BODY;
    if (o->max_response == 0)
        o->max_response = BODY;
}

static int check_times(const once_guard_options *o, once_error *err)
{
    if (o->lease_ms < ONCE_LEASE_MIN_MS || o->lease_ms > ONCE_LEASE_MAX_MS)
        return once__fail(err, ONCE_EINVAL, "lease_ms: %u is not in %u..%u",
                          o->lease_ms, ONCE_LEASE_MIN_MS, ONCE_LEASE_MAX_MS);
    if (o->ttl_ms < o->lease_ms || o->ttl_ms > ONCE_KEEP_MAX_MS)
        return once__fail(err, ONCE_EINVAL,
                          "ttl_ms: %llu is below lease_ms (%u) or over ten "
                          "years",
                          (unsigned long long)o->ttl_ms, o->lease_ms);
    if (o->ttl_failure_ms != 0 &&
        (o->ttl_failure_ms < o->lease_ms || o->ttl_failure_ms > o->ttl_ms))
        return once__fail(err, ONCE_EINVAL,
                          "ttl_failure_ms: %llu is below lease_ms or above "
                          "ttl_ms",
                          (unsigned long long)o->ttl_failure_ms);
    if (o->in_flight_ms > IN_FLIGHT_MAX_MS)
        return once__fail(err, ONCE_EINVAL,
                          "in_flight_ms: %u is over %u (ten minutes)",
                          o->in_flight_ms, IN_FLIGHT_MAX_MS);
    return ONCE_OK;
}

static int check_flags(const once_guard_options *o, once_error *err)
{
    const struct {
        const char *name;
        uint32_t value;
    } flags[] = {
        {"scope_off", o->scope_off},
        {"key_required", o->key_required},
        {"lost", o->lost},
        {"two_phase", o->two_phase},
        {"store_failure", o->store_failure},
        {"store_cookies", o->store_cookies},
        {"cors_expose", o->cors_expose},
        {"dry_run", o->dry_run},
        {"repeat", o->repeat},
        {"probe", o->probe},
        {"key_space", o->key_space},
    };
    size_t i;

    for (i = 0; i < sizeof(flags) / sizeof(flags[0]); i++)
        if (flags[i].value > 1)
            return once__fail(err, ONCE_EINVAL, "%s: %u is not 0 or 1",
                              flags[i].name, flags[i].value);
    return ONCE_OK;
}

int once__guard_check_lookup(const once_guard_options *o, uint32_t wait_ms,
                             once_error *err)
{
    if (o->scope_off)
        return once__fail(err, ONCE_EINVAL,
                          "lookup: needs a scope: without one anybody could "
                          "ask which keys exist");
    if (o->key_space == ONCE_KEY_SPACE_PATH)
        return once__fail(err, ONCE_EINVAL,
                          "lookup: not with key_space path: a lookup has "
                          "another path than the request");
    if (wait_ms > IN_FLIGHT_MAX_MS)
        return once__fail(err, ONCE_EINVAL,
                          "lookup: %u ms is over %u (ten minutes)", wait_ms,
                          IN_FLIGHT_MAX_MS);
    return ONCE_OK;
}

static int check(const once_guard_options *o, once_error *err)
{
    int rc = check_times(o, err);

    if (rc == ONCE_OK)
        rc = check_flags(o, err);
    if (rc != ONCE_OK)
        return rc;
    if ((o->scope != NULL) == (o->scope_off != 0))
        return once__fail(err, ONCE_EINVAL,
                          "scope: name the authenticated caller, or set "
                          "scope_off, and not both");
    if (o->accept != NULL && o->scope_off)
        return once__fail(err, ONCE_EINVAL,
                          "accept: needs a scope: without one no lookup can "
                          "answer");
    if (o->accept != NULL && o->key_space == ONCE_KEY_SPACE_PATH)
        return once__fail(err, ONCE_EINVAL,
                          "accept: needs key_space realm: by a name that has "
                          "the path in it no lookup finds a request");
    if (o->fingerprint != NULL && o->fingerprint_of != NULL)
        return once__fail(err, ONCE_EINVAL,
                          "fingerprint: fingerprint_of stands alone");
    if (o->key != NULL && o->key_of != NULL)
        return once__fail(err, ONCE_EINVAL, "key: key_of stands alone");
    if (o->max_response > ONCE_RESULT_MAX)
        return once__fail(err, ONCE_EINVAL, "max_response: %zu is over %zu",
                          o->max_response, ONCE_RESULT_MAX);
    if (o->store_failure == ONCE_STORE_BYPASS && o->lost != ONCE_LOST_TAKEOVER)
        return once__fail(err, ONCE_EINVAL,
                          "store_failure: bypass needs lost takeover: there is "
                          "no failing open under hold");
    if (o->probe && (o->lost == ONCE_LOST_TAKEOVER || o->dry_run))
        return once__fail(err, ONCE_EINVAL, "probe: never asked with %s",
                          o->dry_run ? "dry_run" : "lost takeover");
    return ONCE_OK;
}

/* ---- Opening ----------------------------------------------------------- */

static int set_group(once_guard *g, const char *group, once_error *err)
{
    size_t i, size = strlen(group);

    if (size < 1 || size > sizeof(g->group))
        return once__fail(err, ONCE_EINVAL, "group: 1 to %zu characters",
                          sizeof(g->group));
    for (i = 0; i < size; i++)
        if (group[i] <= ' ' || group[i] > '~')
            return once__fail(err, ONCE_EINVAL,
                              "group: not a printable character");
    memcpy(g->group, group, size);
    return ONCE_OK;
}

static int set_compared(once_guard *g, const char *text, once_error *err)
{
    once_error why;
    size_t i;
    int rc = names_split(&g->fingerprint, text, 4 + ONCE__BUT_MAX + 1,
                         "fingerprint", err);

    if (rc != ONCE_OK)
        return rc;
    for (i = 0; rc == ONCE_OK && i < g->fingerprint.n; i++)
        rc = once__compared_add(&g->compared, g->fingerprint.at[i], &why);
    if (rc == ONCE_OK)
        rc = once__compared_check(&g->compared, &why);
    if (rc != ONCE_OK)
        return once__fail(err, rc, "fingerprint: %s", why.text);
    return rc;
}

typedef int add_status(once__statuses *set, once_bytes text, once_error *err);

static int read_statuses(const char *what, const char *text, add_status *add,
                         once__statuses *out, once_error *err)
{
    struct once__names w = {NULL, NULL, 0};
    once_error why;
    size_t i;
    int rc = names_split(&w, text, 500, what, err);

    if (rc == ONCE_OK && w.n == 0)
        rc = once__fail(err, ONCE_EINVAL, "%s: no status", what);
    for (i = 0; rc == ONCE_OK && i < w.n; i++)
        if (add(out, w.at[i], &why) != ONCE_OK)
            rc = once__fail(err, ONCE_EINVAL, "%s: \"%.32s\": %s", what,
                            (const char *)w.at[i].data, why.text);
    names_clear(&w);
    return rc;
}

static int set_rules(once_guard *g, once_error *err)
{
    const once_guard_options *o = &g->options;
    once__statuses final = {{0}, {0}}, released = {{0}, {0}};
    once__statuses unknown = {{0}, {0}};
    const once__status_lists lists = {
        .final = o->final != NULL ? &final : NULL,
        .released = o->release != NULL ? &released : NULL,
        .unknown = o->unknown != NULL ? &unknown : NULL,
    };
    once__status_clash clash;
    int rc = ONCE_OK;

    if (o->final != NULL)
        rc = read_statuses("final", o->final, once__statuses_add, &final, err);
    if (rc == ONCE_OK && o->release != NULL)
        rc = read_statuses("release", o->release, once__statuses_add_released,
                           &released, err);
    if (rc == ONCE_OK && o->unknown != NULL && strcmp(o->unknown, "off") != 0)
        rc = read_statuses("unknown", o->unknown, once__statuses_add_unknown,
                           &unknown, err);
    if (rc != ONCE_OK)
        return rc;
    if (once__rules_make(&lists, &g->policy.rules, &clash) != ONCE_OK)
        return once__fail(err, ONCE_EINVAL,
                          "%s: %d is in %s, too: one status cannot mean both",
                          clash.other, clash.status, clash.one);
    return ONCE_OK;
}

static int set_texts(once_guard *g, once_error *err)
{
    const once_guard_options *o = &g->options;
    const char *key = o->key != NULL ? o->key : "Idempotency-Key";

    if (!is_token(key))
        return once__fail(err, ONCE_EINVAL,
                          "key: \"%.40s\" is not the name of a header", key);
    if (o->accept != NULL &&
        once__accept_check(once__text(o->accept), err) != ONCE_OK)
        return ONCE_EINVAL;
    g->key = strdup(key);
    g->realm = strdup(o->realm != NULL ? o->realm : ONCE__REALM);
    if (o->accept != NULL)
        g->accept = strdup(o->accept);
    if (g->key == NULL || g->realm == NULL ||
        (o->accept != NULL && g->accept == NULL))
        return once__fail(err, ONCE_ENOMEM, "guard: no memory");
    return ONCE_OK;
}

static int set_key_json(once_guard *g, once_error *err)
{
    const once_guard_options *o = &g->options;
    once_error why;
    size_t i;

    if (o->key_json[0] == NULL)
        return o->key_json[1] == NULL
                   ? ONCE_OK
                   : once__fail(err, ONCE_EINVAL, "key_json: no first pointer");
    if (o->key != NULL || o->key_of != NULL)
        return once__fail(err, ONCE_EINVAL,
                          "key_json: with key or key_of: the key is in one "
                          "place");
    for (i = 0; i < 2 && o->key_json[i] != NULL; i++) {
        g->key_json[i] = strdup(o->key_json[i]);
        if (g->key_json[i] == NULL)
            return once__fail(err, ONCE_ENOMEM, "guard: no memory");
        if (once__key_pointers_add(&g->pointers, once__text(g->key_json[i]),
                                   &why) != ONCE_OK)
            return once__fail(err, ONCE_EINVAL, "key_json: %s", why.text);
    }
    return ONCE_OK;
}

static int set_names(once_guard *g, once_error *err)
{
    const once_guard_options *o = &g->options;
    int rc;

    rc = names_split(&g->methods, o->methods ? o->methods : "POST PATCH",
                     ONCE__METHODS_MAX, "methods", err);
    if (rc == ONCE_OK && g->methods.n == 0)
        rc = once__fail(err, ONCE_EINVAL, "methods: none");
    if (rc == ONCE_OK)
        rc = check_tokens(&g->methods, "methods", err);
    if (rc == ONCE_OK)
        rc = names_split(&g->hide, o->hide_header ? o->hide_header : "",
                         ONCE__HIDE_MAX, "hide_header", err);
    if (rc == ONCE_OK)
        rc = check_tokens(&g->hide, "hide_header", err);
    if (rc == ONCE_OK)
        rc = set_rules(g, err);
    if (rc == ONCE_OK)
        rc = set_compared(
            g, o->fingerprint ? o->fingerprint : "body query type", err);
    if (rc == ONCE_OK)
        rc = set_group(g, o->group ? o->group : "http", err);
    return rc;
}

static void set_policy(once_guard *g)
{
    const once_guard_options *o = &g->options;

    g->policy.takeover = o->lost == ONCE_LOST_TAKEOVER;
    g->policy.bypass = o->store_failure == ONCE_STORE_BYPASS;
    g->policy.dry_run = (int)o->dry_run;
    g->policy.probe = (int)o->probe;
    g->policy.refuse = o->repeat == ONCE_REPEAT_REFUSE;
    g->policy.accept = o->accept != NULL;
    g->policy.two_phase = (int)o->two_phase;
    g->policy.lease_ms = o->lease_ms;
    g->policy.wait_ms = o->in_flight_ms;
    g->policy.store_ms = o->store_ms;
    g->policy.keep_ms = o->ttl_ms;
    g->policy.rules.failed_ms = o->ttl_failure_ms;
}

static int set_key_time(once_guard *g, once_error *err)
{
    const char *word = g->options.key_time;
    int form = word != NULL ? once__key_form(once__text(word)) : ONCE__KEY_ANY;
    once_error why;

    if (word != NULL && form == ONCE__KEY_ANY)
        return once__fail(err, ONCE_EINVAL,
                          "key_time: \"%.40s\" is not uuid7 or ulid", word);
    if (form == ONCE__KEY_ANY && g->options.max_age_ms != 0)
        return once__fail(err, ONCE_EINVAL, "max_age_ms: without key_time");
    if (once__policy_key_time(&g->policy, form, g->options.max_age_ms, &why) !=
        ONCE_OK)
        return once__fail(err, ONCE_EINVAL, "key_time: %s", why.text);
    return ONCE_OK;
}

int once_guard_open(once_engine *e, const once_guard_options *options,
                    once_error *err, once_guard **out)
{
    once_guard *g;
    int rc;

    if (options->size < offsetof(once_guard_options, key))
        return once__fail(err, ONCE_EINVAL, "size: %zu is too small",
                          options->size);
    g = calloc(1, sizeof(*g));
    if (g == NULL)
        return once__fail(err, ONCE_ENOMEM, "guard: %zu bytes", sizeof(*g));
    g->engine = e;
    (void)pthread_mutex_init(&g->lock, NULL);
    memcpy(&g->options, options,
           options->size < sizeof(g->options) ? options->size
                                              : sizeof(g->options));
    set_defaults(&g->options);
    rc = check(&g->options, err);
    if (rc == ONCE_OK)
        rc = set_texts(g, err);
    if (rc == ONCE_OK)
        rc = set_key_json(g, err);
    if (rc == ONCE_OK)
        rc = set_names(g, err);
    if (rc != ONCE_OK)
        goto out;
    set_policy(g);
    rc = set_key_time(g, err);
    if (rc != ONCE_OK)
        goto out;
    *out = g;
    g = NULL;
out:
    once_guard_close(g);
    return rc;
}

void once_guard_close(once_guard *g)
{
    if (g == NULL)
        return;
    names_clear(&g->methods);
    names_clear(&g->hide);
    names_clear(&g->fingerprint);
    free(g->key);
    free(g->key_json[0]);
    free(g->key_json[1]);
    free(g->realm);
    free(g->accept);
    (void)pthread_mutex_destroy(&g->lock);
    free(g);
}
