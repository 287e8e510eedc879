/* SPDX-License-Identifier: Apache-2.0 */
/*
 * conf.c - reads the route file (see conf.h).
 *
 * A line is a directive and its words; "location PATH" begins a route. What is
 * a matter of the guard's options is checked by once_guard_open(), so that its
 * refusals are tested and not ours. It refuses what it does not know, and
 * passes over what is nginx's own way of reading, buffering and sending.
 */
#include "conf.h"

#include <arpa/inet.h>
#include <errno.h>
#include <microhttpd.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#define COUNT(a) (sizeof(a) / sizeof((a)[0]))

enum { WORDS_MAX = 24 };

static int emerg(const char *format, ...) ONCE_PRINTF(1, 2);

static int emerg(const char *format, ...)
{
    char text[1200];
    va_list args;

    va_start(args, format);
    (void)vsnprintf(text, sizeof(text), format, args);
    va_end(args);
    fprintf(stderr, "[emerg] %s\n", text);
    return 0;
}

/* ---- Values -------------------------------------------------------------- */

/* A number and a unit of the table, the first of which is the default. */
struct unit {
    const char *name;
    uint64_t factor;
};

static int read_number(const char *text, const struct unit *units, size_t n,
                       uint64_t *out)
{
    size_t digits = strspn(text, "0123456789"), i;
    uint64_t value;

    if (digits < 1 || digits > 12)
        return 0;
    value = strtoull(text, NULL, 10);
    for (i = 0; i < n; i++)
        if (strcmp(text + digits, units[i].name) == 0) {
            *out = value * units[i].factor;
            return 1;
        }
    return 0;
}

static int read_time(const char *text, uint64_t *ms)
{
    static const struct unit units[] = {
        {"", 1000},
        {"ms", 1},
        {"s", 1000},
        {"m", 60000},
        {"h", 3600000},
        {"d", 86400000},
        {"w", UINT64_C(604800000)},
        {"y", UINT64_C(31536000000)},
    };

    return read_number(text, units, COUNT(units), ms);
}

static int read_size(const char *text, uint64_t *size)
{
    static const struct unit units[] = {
        {"", 1}, {"k", 1024}, {"m", 1048576}, {"K", 1024}, {"M", 1048576},
    };

    return read_number(text, units, COUNT(units), size);
}

static int read_address(const char *text, struct sockaddr_in *out)
{
    char host[64];
    size_t size = strcspn(text, ":");

    if (size >= sizeof(host) || text[size] == '\0')
        return 0;
    memcpy(host, text, size);
    host[size] = '\0';
    out->sin_family = AF_INET;
    out->sin_port = htons((uint16_t)strtoul(text + size + 1, NULL, 10));
    return inet_pton(AF_INET, host, &out->sin_addr) == 1 &&
           ntohl(out->sin_addr.s_addr) >> 24 == IN_LOOPBACKNET;
}

static int copy(char *out, size_t max, const char *text)
{
    if (strlen(text) >= max)
        return emerg("a word is too long");
    memcpy(out, text, strlen(text) + 1);
    return 1;
}

/* ---- Templates ------------------------------------------------------------ */

static size_t variable_size(const char *at)
{
    return strspn(at, "abcdefghijklmnopqrstuvwxyz0123456789_");
}

static int is_variable(const char *at, size_t size)
{
    return (size > 5 && strncmp(at, "http_", 5) == 0) ||
           (size == 3 && strncmp(at, "uri", 3) == 0) ||
           (size == 11 && strncmp(at, "remote_user", 11) == 0);
}

static int check_template(const char *directive, const char *text)
{
    const char *at;

    for (at = text; (at = strchr(at, '$')) != NULL;) {
        size_t size = variable_size(++at);

        if (!is_variable(at, size))
            return emerg("%s: unknown variable \"%.*s\"", directive, (int)size,
                         at);
        at += size;
    }
    return 1;
}

/* A header by its variable's name. */
static const char *find_header(const once_http_request *r, const char *at,
                               size_t size)
{
    char name[128];
    size_t i;

    if (size >= sizeof(name))
        return NULL;
    for (i = 0; i < size; i++)
        name[i] = (char)(at[i] == '_' ? '-' : at[i]);
    name[size] = '\0';
    return once_http_find(r, name);
}

static int add(char *out, size_t max, size_t *used, const char *text)
{
    size_t size = strlen(text);

    if (size > max - *used)
        return 0;
    memcpy(out + *used, text, size);
    *used += size;
    return 1;
}

static int add_user(char *out, size_t max, size_t *used,
                    const once_http_request *r)
{
    char *password = NULL;
    char *name = MHD_basic_auth_get_username_password(r->server, &password);
    int ok = add(out, max, used, name != NULL ? name : "");

    MHD_free(name);
    MHD_free(password);
    return ok;
}

static int add_variable(const char *name, size_t size,
                        const once_http_request *r, char *out, size_t max,
                        size_t *used)
{
    char path[TEXT_MAX];
    const char *value = path;

    if (strncmp(name, "remote_user", size) == 0)
        return add_user(out, max, used, r);
    if (strncmp(name, "uri", size) == 0)
        (void)snprintf(path, sizeof(path), "%.*s", (int)strcspn(r->target, "?"),
                       r->target);
    else
        value = find_header(r, name + 5, size - 5);
    return add(out, max, used, value != NULL ? value : "");
}

int conf_expand(const char *template, const once_http_request *r, char *out,
                size_t max)
{
    size_t used = 0;

    while (*template != '\0') {
        char one[2] = {*template, '\0'};
        size_t size;
        int ok;

        if (*template ++ != '$') {
            ok = add(out, max, &used, one);
        } else {
            size = variable_size(template);
            ok = add_variable(template, size, r, out, max, &used);
            template += size;
        }
        if (!ok)
            return -1;
    }
    return (int)used;
}

/* ---- Directives of a location --------------------------------------------- */

static int location_scope(void *user, const once_http_request *r, char *out,
                          size_t max)
{
    const struct location *l = user;

    return conf_expand(l->scope, r, out, max);
}

static int location_key(void *user, const once_http_request *r, char *out,
                        size_t max)
{
    const struct location *l = user;

    return conf_expand(l->key, r, out, max);
}

static int location_fingerprint(void *user, const once_http_request *r,
                                char *out, size_t max)
{
    const struct location *l = user;

    return conf_expand(l->fingerprint, r, out, max);
}

/* All words but the first, with spaces between them. */
static int join(char out[TEXT_MAX], char *const *words, size_t n)
{
    size_t i, used = strlen(out);

    for (i = 1; i < n; i++) {
        int size = snprintf(out + used, TEXT_MAX - used, "%s%s",
                            used > 0 ? " " : "", words[i]);

        if (size < 0 || (size_t)size >= TEXT_MAX - used)
            return emerg("%s: too long", words[0]);
        used += (size_t)size;
    }
    return 1;
}

enum kind {
    FLAG,
    TIME32,
    TTL,
    SIZE,
    WORDS,
    ONCE,
    LOOKUP,
    PROBE,
    SCOPE,
    KEY,
    FINGERPRINT,
    IN_FLIGHT,
    LOST,
    REPEAT,
    KEY_SPACE,
    KEY_TIME,
    KEY_JSON,
    FAILURE,
    PASS,
    READ_TIMEOUT,
    USERS,
    DENY,
    IGNORED
};

#define AT(member) offsetof(once_guard_options, member)

/* clang-format off */
static const struct directive {
    const char *name;
    enum kind kind;
    size_t at;   /* in once_guard_options       */
    int slot;    /* WORDS: which text           */
} directives[] = {
    { "once",                  ONCE,         0,                   0 },
    { "once_lookup",           LOOKUP,       0,                   0 },
    { "once_probe",            PROBE,        AT(probe),           0 },
    { "once_scope",            SCOPE,        0,                   0 },
    { "once_key",              KEY,          0,                   0 },
    { "once_key_required",     FLAG,         AT(key_required),    0 },
    { "once_key_json",         KEY_JSON,     0,                   0 },
    { "once_key_time",         KEY_TIME,     0,                   0 },
    { "once_realm",            WORDS,        AT(realm),           1 },
    { "once_key_space",        KEY_SPACE,    AT(key_space),       0 },
    { "once_methods",          WORDS,        AT(methods),         2 },
    { "once_in_flight",        IN_FLIGHT,    AT(in_flight_ms),    0 },
    { "once_final",            WORDS,        AT(final),           3 },
    { "once_fingerprint",      FINGERPRINT,  AT(fingerprint),     7 },
    { "once_release",          WORDS,        AT(release),         6 },
    { "once_unknown",          WORDS,        AT(unknown),         8 },
    { "once_repeat",           REPEAT,       AT(repeat),          0 },
    { "once_lost",             LOST,         AT(lost),            0 },
    { "once_two_phase",        FLAG,         AT(two_phase),       0 },
    { "once_store_failure",    FAILURE,      AT(store_failure),   0 },
    { "once_ttl",              TTL,          AT(ttl_ms),          0 },
    { "once_lease",            TIME32,       AT(lease_ms),        0 },
    { "once_max_response",     SIZE,         AT(max_response),    0 },
    { "once_hide_header",      WORDS,        AT(hide_header),     4 },
    { "once_store_cookies",    FLAG,         AT(store_cookies),   0 },
    { "once_cors_expose",      FLAG,         AT(cors_expose),     0 },
    { "once_dry_run",          FLAG,         AT(dry_run),         0 },
    { "client_max_body_size",  SIZE,         AT(max_request),     0 },
    { "proxy_pass",            PASS,         0,                   0 },
    { "proxy_read_timeout",    READ_TIMEOUT, 0,                   0 },
    { "auth_basic",            IGNORED,      0,                   0 },
    { "auth_basic_user_file",  USERS,        0,                   0 },
    { "deny",                  DENY,         0,                   0 },
    { "client_body_buffer_size",       IGNORED, 0, 0 },
    { "client_body_in_file_only",      IGNORED, 0, 0 },
    { "gzip",                          IGNORED, 0, 0 },
    { "proxy_buffering",               IGNORED, 0, 0 },
    { "proxy_buffer_size",             IGNORED, 0, 0 },
    { "proxy_buffers",                 IGNORED, 0, 0 },
    { "proxy_busy_buffers_size",       IGNORED, 0, 0 },
    { "proxy_http_version",            IGNORED, 0, 0 },
    { "proxy_ignore_client_abort",     IGNORED, 0, 0 },
    { "proxy_max_temp_file_size",      IGNORED, 0, 0 },
    { "proxy_next_upstream",           IGNORED, 0, 0 },
    { "proxy_redirect",                IGNORED, 0, 0 },
    { "proxy_request_buffering",       IGNORED, 0, 0 },
    { "proxy_set_header",              IGNORED, 0, 0 },
    { "proxy_temp_file_write_size",    IGNORED, 0, 0 },
};
/* clang-format on */

static int bad(const char *name, const char *value)
{
    return emerg("%s: invalid value \"%s\"", name, value);
}

static void put32(struct location *l, size_t at, uint64_t value)
{
    uint32_t v = value > UINT32_MAX ? UINT32_MAX : (uint32_t)value;

    memcpy((char *)&l->guard + at, &v, sizeof(v));
}

/* One of two words; the second is 1. */
static int choose(struct location *l, const struct directive *d,
                  const char *value, const char *zero, const char *one)
{
    if (strcmp(value, zero) != 0 && strcmp(value, one) != 0)
        return bad(d->name, value);
    put32(l, d->at, strcmp(value, one) == 0);
    return 1;
}

/* Zero is the guard's default; written down it is a mistake. */
static int set_number(struct location *l, const struct directive *d,
                      const char *value)
{
    uint64_t v;
    size_t size;

    if (!(d->kind == SIZE ? read_size(value, &v) : read_time(value, &v)) ||
        v == 0)
        return bad(d->name, value);
    size = (size_t)v;
    if (d->kind == TIME32)
        put32(l, d->at, v);
    else if (d->kind == TTL)
        memcpy((char *)&l->guard + d->at, &v, sizeof(v));
    else
        memcpy((char *)&l->guard + d->at, &size, sizeof(size));
    return 1;
}

static int set_ttl(struct location *l, const struct directive *d,
                   char *const *words, size_t n)
{
    static const struct directive failure = {"once_ttl", TTL,
                                             AT(ttl_failure_ms), 0};

    if (n > 2 && strncmp(words[2], "failure=", 8) != 0)
        return bad(d->name, words[2]);
    return set_number(l, d, words[1]) &&
           (n == 2 || set_number(l, &failure, words[2] + 8));
}

static int set_probe(struct location *l, const struct directive *d,
                     const char *value)
{
    if (strcmp(value, "off") != 0 &&
        (value[0] != '/' || strpbrk(value, "$?#") != NULL ||
         strlen(value) >= sizeof(l->probe)))
        return bad(d->name, value);
    snprintf(l->probe, sizeof(l->probe), "%s", value);
    put32(l, d->at, value[0] == '/');
    return 1;
}

static int set_key_time(struct location *l, char *const *words, size_t n)
{
    static const struct directive max_age = {"once_key_time", TTL,
                                             AT(max_age_ms), 0};

    l->guard.key_time = l->key_time;
    if (n > 2 && strncmp(words[2], "max_age=", 8) != 0)
        return bad(words[0], words[2]);
    return copy(l->key_time, sizeof(l->key_time), words[1]) &&
           (n == 2 || set_number(l, &max_age, words[2] + 8));
}

static int set_key_json(struct location *l, char *const *words, size_t n)
{
    size_t i;

    if (n > 3)
        return emerg("%s: more than two JSON pointers", words[0]);
    for (i = 1; i < n; i++) {
        if (!copy(l->key_json[i - 1], TEXT_MAX, words[i]))
            return 0;
        l->guard.key_json[i - 1] = l->key_json[i - 1];
    }
    return 1;
}

/* "once_in_flight reject | [wait=TIME] [accept=/URI]" */
static int set_in_flight(struct location *l, const struct directive *d,
                         char *const *words, size_t n)
{
    uint64_t ms = 0;
    size_t i = 1;

    if (strncmp(words[i], "wait=", 5) == 0) {
        if (!read_time(words[i] + 5, &ms))
            return bad(d->name, words[i]);
        i++;
    } else if (n == 2 && strcmp(words[i], "reject") == 0) {
        i++;
    }
    if (i + 1 == n && strncmp(words[i], "accept=", 7) == 0) {
        l->guard.accept = l->accept;
        if (!copy(l->accept, sizeof(l->accept), words[i++] + 7))
            return 0;
    }
    if (i < n)
        return bad(d->name, words[i]);
    put32(l, d->at, ms);
    return 1;
}

static int set_words(struct location *l, const struct directive *d,
                     char *const *words, size_t n)
{
    const char *text = l->words[d->slot];

    if (d->slot != 4)
        l->words[d->slot][0] = '\0';
    if (!join(l->words[d->slot], words, n))
        return 0;
    memcpy((char *)&l->guard + d->at, &text, sizeof(text));
    return 1;
}

static int set_scope(struct location *l, const char *value)
{
    if (strcmp(value, "off") == 0) {
        l->guard.scope_off = 1;
        return 1;
    }
    l->guard.scope = location_scope;
    return check_template("once_scope", value) &&
           copy(l->scope, sizeof(l->scope), value);
}

/* "$http_x_request_id" alone is a header; anything else is computed. */
static int set_key(struct location *l, const char *value)
{
    size_t i;

    if (!check_template("once_key", value))
        return 0;
    if (strncmp(value, "$http_", 6) == 0 && strchr(value + 1, '$') == NULL &&
        value[1 + variable_size(value + 1)] == '\0') {
        if (!copy(l->words[5], TEXT_MAX, value + 6))
            return 0;
        for (i = 0; l->words[5][i] != '\0'; i++)
            if (l->words[5][i] == '_')
                l->words[5][i] = '-';
        l->guard.key = l->words[5];
        return 1;
    }
    l->guard.key_of = location_key;
    return copy(l->key, sizeof(l->key), value);
}

/* One text with a variable is computed; anything else are words. */
static int set_fingerprint(struct location *l, const struct directive *d,
                           char *const *words, size_t n)
{
    size_t i;

    if (n == 2 && strchr(words[1], '$') != NULL) {
        l->guard.fingerprint_of = location_fingerprint;
        return check_template("once_fingerprint", words[1]) &&
               copy(l->fingerprint, sizeof(l->fingerprint), words[1]);
    }
    for (i = 1; i < n; i++)
        if (strchr(words[i], '$') != NULL && strncmp(words[i], "but=", 4) != 0)
            return emerg("%s: a variable stands alone", words[0]);
    return set_words(l, d, words, n);
}

static int set_store(struct conf *c, struct location *l, const char *name)
{
    size_t i;

    for (i = 0; i < c->n_stores; i++)
        if (strcmp(c->stores[i].name, name) == 0)
            l->store = &c->stores[i];
    return l->store != NULL || emerg("once %s: there is no such store", name);
}

/* "once_lookup NAME [wait=TIME]" */
static int set_lookup(struct conf *c, struct location *l, char *const *words,
                      size_t n)
{
    uint64_t ms = 0;

    if (n > 2 && (strncmp(words[2], "wait=", 5) != 0 ||
                  !read_time(words[2] + 5, &ms) || ms == 0))
        return bad(words[0], words[2]);
    l->lookup = 1;
    l->lookup_ms = ms > UINT32_MAX ? UINT32_MAX : (uint32_t)ms;
    return set_store(c, l, words[1]);
}

static int set(struct conf *c, struct location *l, const struct directive *d,
               char *const *words, size_t n)
{
    const char *value = words[1];

    switch (d->kind) {
    case FLAG:
        return choose(l, d, value, "off", "on");
    case LOST:
        return choose(l, d, value, "hold", "takeover");
    case REPEAT:
        return choose(l, d, value, "replay", "refuse");
    case KEY_SPACE:
        return choose(l, d, value, "realm", "path");
    case FAILURE:
        return choose(l, d, value, "deny", "bypass");
    case TIME32:
    case SIZE:
        return set_number(l, d, value);
    case KEY_JSON:
        return set_key_json(l, words, n);
    case KEY_TIME:
        return set_key_time(l, words, n);
    case TTL:
        return set_ttl(l, d, words, n);
    case WORDS:
        return set_words(l, d, words, n);
    case ONCE:
        return set_store(c, l, value);
    case LOOKUP:
        return set_lookup(c, l, words, n);
    case PROBE:
        return set_probe(l, d, words[1]);
    case SCOPE:
        return set_scope(l, value);
    case KEY:
        return set_key(l, value);
    case FINGERPRINT:
        return set_fingerprint(l, d, words, n);
    case IN_FLIGHT:
        return set_in_flight(l, d, words, n);
    case PASS:
        return (strncmp(value, "http://", 7) == 0 &&
                read_address(value + 7, &l->origin)) ||
               bad(d->name, value);
    case READ_TIMEOUT:
        return read_time(value, &l->read_timeout_ms) || bad(d->name, value);
    case USERS:
        l->users = 1;
        return copy(l->users_file, sizeof(l->users_file), value);
    case DENY:
        l->denied = 1;
        return 1;
    case IGNORED:
        break;
    }
    return 1;
}

static int location_line(struct conf *c, struct location *l, char *const *words,
                         size_t n)
{
    size_t i;

    for (i = 0; i < COUNT(directives); i++)
        if (strcmp(directives[i].name, words[0]) == 0)
            break;
    if (i == COUNT(directives))
        return emerg("unknown directive \"%s\"", words[0]);
    if (n < 2)
        return emerg("%s: it needs a value", words[0]);
    if ((l->seen >> i & 1) != 0 && directives[i].slot != 4 &&
        directives[i].kind != IGNORED)
        return emerg("%s: is duplicate", words[0]);
    l->seen |= UINT64_C(1) << i;
    return set(c, l, &directives[i], words, n);
}

/* ---- The file -------------------------------------------------------------- */

static int add_store(struct conf *c, char *const *words, size_t n)
{
    struct store *s = &c->stores[c->n_stores];
    size_t i;

    if (n < 3 || n > 4 || c->n_stores == STORES_MAX)
        return emerg("once_store: a name and a URL");
    for (i = 0; i < c->n_stores; i++)
        if (strcmp(c->stores[i].name, words[1]) == 0)
            return emerg("once_store: %s is duplicate", words[1]);
    s->timeout_ms = 1000;
    if (n == 4 &&
        (strncmp(words[3], "timeout=", 8) != 0 ||
         !read_time(words[3] + 8, &s->timeout_ms) || s->timeout_ms == 0))
        return bad("once_store", words[3]);
    c->n_stores++;
    return copy(s->name, sizeof(s->name), words[1]) &&
           copy(s->url, sizeof(s->url), words[2]);
}

static int add_location(struct conf *c, const char *path)
{
    struct location *l = &c->locations[c->n_locations];

    if (c->n_locations == LOCATIONS_MAX)
        return emerg("location: more than %d", LOCATIONS_MAX);
    c->n_locations++;
    l->guard.size = sizeof(l->guard);
    l->guard.user = l;
    l->read_timeout_ms = 60000;
    return copy(l->path, sizeof(l->path), path);
}

static int read_line(struct conf *c, char *const *words, size_t n)
{
    if (strcmp(words[0], "once_store") == 0)
        return add_store(c, words, n);
    if (n < 2)
        return emerg("%s: it needs a value", words[0]);
    if (strcmp(words[0], "listen") == 0)
        return read_address(words[1], &c->listen) || bad("listen", words[1]);
    if (strcmp(words[0], "access_log") == 0)
        return copy(c->access_log, sizeof(c->access_log), words[1]);
    if (strcmp(words[0], "error_log") == 0)
        return copy(c->error_log, sizeof(c->error_log), words[1]);
    if (strcmp(words[0], "threads") == 0) {
        c->threaded = strcmp(words[1], "connection") == 0;
        return c->threaded || bad("threads", words[1]);
    }
    if (strcmp(words[0], "location") == 0)
        return add_location(c, words[1]);
    return emerg("unknown directive \"%s\"", words[0]);
}

static size_t split(char *line, char **words)
{
    size_t n = 0;
    char *at = line + strspn(line, " \n"), *end;

    for (; *at != '\0' && n < WORDS_MAX; at = end + strspn(end, " \n")) {
        end = at + strcspn(at, " \n");
        words[n++] = at;
        if (*end != '\0')
            *end++ = '\0';
    }
    return n;
}

int conf_read(struct conf *c, const char *path)
{
    FILE *f = fopen(path, "r");
    char *line = NULL, *words[WORDS_MAX];
    size_t room = 0, n;
    int ok = 1;

    if (f == NULL)
        return emerg("%s: %s", path, strerror(errno));
    while (ok && getline(&line, &room, f) > 0) {
        n = split(line, words);
        if (n == 0)
            continue;
        if (c->n_locations > 0 && strcmp(words[0], "location") != 0)
            ok = location_line(c, &c->locations[c->n_locations - 1], words, n);
        else
            ok = read_line(c, words, n);
    }
    free(line);
    (void)fclose(f);
    return ok;
}
