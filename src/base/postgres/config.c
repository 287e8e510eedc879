/* SPDX-License-Identifier: Apache-2.0 */
/*
 * config.c - "postgres://[user@]host[:port][,host...]/database[?...]", and what
 * we insist on.
 *
 * Our own parameters are taken out first; the rest is libpq's business, with
 * its environment, its service file and its password file. But
 *
 *    target_session_attrs   read-write unless the URL says otherwise, and never
 *                           a standby: what it shows may be old
 *    sslmode                verify-full unless the URL or the environment says
 *                           otherwise, where the server is neither on this
 *                           host nor local
 *    gssencmode             disable: it would block in the middle of things
 *
 * Hosts are tried one after the other by ourselves, so that one that does not
 * answer costs no more than connect_ms. No text repeats the URL, which may hold
 * a password; a parameter that is not known is named if its name looks like
 * one.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/error.h"
#include "base/secret_file.h"
#include "base/sqltext.h"
#include "base/postgres/postgres.h"
#include "base/url.h"

enum {
    STATEMENT_MS = 5000,
    CONNECT_MS = 2000,
    LOCK_MS = 200,
    TIME_MAX_MS = 600000
};

static const char name_letters[] = "abcdefghijklmnopqrstuvwxyz0123456789_";

static char *duplicate(const char *from, size_t size)
{
    char *to = malloc(size + 1);

    if (to != NULL) {
        memcpy(to, from, size);
        to[size] = '\0';
    }
    return to;
}

/* ---- Our own parameters ------------------------------------------------ */

static int take_own(struct once__pg_config *c, char *url, once_error *err)
{
    char text[64] = "once";

    if (once__url_take_number(url, "statement_ms", 10, TIME_MAX_MS,
                              &c->statement_ms, err) < 0 ||
        once__url_take_number(url, "connect_ms", 10, TIME_MAX_MS,
                              &c->connect_ms, err) < 0 ||
        once__url_take_number(url, "lock_ms", 1, TIME_MAX_MS, &c->lock_ms,
                              err) < 0 ||
        once__url_take_number(url, "partitions", 0, ONCE__PG_PARTITIONS_MAX,
                              &c->partitions, err) < 0 ||
        once__url_take(url, "schema", text, sizeof(text), err) < 0)
        return ONCE_EURL;
    if (!once__sql_schema_ok(text))
        return once__fail(err, ONCE_EURL,
                          "postgres: schema is not of the letters a-z, digits "
                          "and _, or longer than 63");
    memcpy(c->schema, text, sizeof(c->schema));
    text[0] = '\0';
    if (once__url_take(url, "async", text, sizeof(text), err) < 0)
        return ONCE_EURL;
    c->async = strcmp(text, "allow") == 0;
    if (text[0] != '\0' && !c->async)
        return once__fail(err, ONCE_EURL,
                          "postgres: async is not \"allow\", the only value");
    return ONCE_OK;
}

/* ---- libpq's parameters ------------------------------------------------ */

static PQconninfoOption *word(const struct once__pg_config *c, const char *key)
{
    PQconninfoOption *o;

    for (o = c->words; o != NULL && o->keyword != NULL; o++)
        if (strcmp(o->keyword, key) == 0)
            return o;
    return NULL;
}

static const char *value(const struct once__pg_config *c, const char *key)
{
    const PQconninfoOption *o = word(c, key);

    return o == NULL || o->val == NULL || o->val[0] == '\0' ? NULL : o->val;
}

/* libpq's own text may quote the URL. */
static int not_a_url(const char *url, once_error *err)
{
    PQconninfoOption *known = PQconndefaults(), *o;
    const char *at = strchr(url, '?');
    size_t size;

    for (; known != NULL && at != NULL; at = strchr(at + 1, '&')) {
        size = strspn(at + 1, name_letters);
        if (size == 0 || size > 32 || at[1 + size] != '=')
            continue;
        for (o = known; o->keyword != NULL; o++)
            if (strlen(o->keyword) == size &&
                memcmp(o->keyword, at + 1, size) == 0)
                break;
        if (o->keyword == NULL) {
            PQconninfoFree(known);
            return once__fail(err, ONCE_EURL,
                              "postgres: parameter \"%.*s\" is not known",
                              (int)size, at + 1);
        }
    }
    PQconninfoFree(known);
    return once__fail(err, ONCE_EURL,
                      "postgres: not a URL that libpq understands");
}

static int check_words(const struct once__pg_config *c, once_error *err)
{
    static const char *const targets[] = {"read-write", "primary", "any"};
    const char *target = value(c, "target_session_attrs");
    size_t i;

    if (value(c, "replication") != NULL)
        return once__fail(err, ONCE_EURL,
                          "postgres: parameter replication is not for us");
    for (i = 0; target != NULL && i < 3; i++)
        if (strcmp(target, targets[i]) == 0)
            return ONCE_OK;
    return target == NULL
               ? ONCE_OK
               : once__fail(err, ONCE_EURL,
                            "postgres: target_session_attrs is not read-write, "
                            "primary or any: a standby may show what is old");
}

/* libpq passes over a password file that it cannot or will not read, and then
 * the server's refusal is all that is seen. */
static int check_passfile(const struct once__pg_config *c, once_error *err)
{
    const char *path = value(c, "passfile");
    struct stat st;

    if (path == NULL)
        return ONCE_OK;
    if (stat(path, &st) != 0 || access(path, R_OK) != 0)
        return once__secret_fail(path, strerror(errno), err);
    if (!S_ISREG(st.st_mode))
        return once__secret_fail(path, "it is not a plain file", err);
    if ((st.st_mode & (S_IRWXG | S_IRWXO)) != 0)
        return once__secret_fail(
            path, "libpq reads it only if no other user may: chmod 600", err);
    return ONCE_OK;
}

/* ---- Hosts ------------------------------------------------------------- */

static int is_local(const char *host)
{
    return host == NULL || host[0] == '/' || host[0] == '@' ||
           strcmp(host, "localhost") == 0 || strcmp(host, "::1") == 0 ||
           strncmp(host, "127.", 4) == 0;
}

/* The `i`-th of a list; its last one if there is just one, NULL for none. */
static int list_item(const char *list, size_t i, char **out, once_error *err)
{
    size_t size;

    *out = NULL;
    if (list == NULL)
        return ONCE_OK;
    for (; i > 0 && strchr(list, ',') != NULL; i--)
        list = strchr(list, ',') + 1;
    size = strcspn(list, ",");
    if (size == 0)
        return ONCE_OK;
    *out = duplicate(list, size);
    return *out != NULL ? ONCE_OK
                        : once__fail(err, ONCE_ENOMEM, "out of memory");
}

static int not_encoded(once_error *err)
{
    return once__fail(err, ONCE_EURL,
                      "postgres: host or port is not one; @, / and : in a "
                      "password are written %%40, %%2F and %%3A");
}

/*
 * A password with "@" or "/" in it that was not percent-encoded ends up in what
 * libpq takes for host and port, and those stand in texts.
 */
static int check_host(const struct once__pg_host *h, once_error *err)
{
    const char *port = h->port != NULL ? h->port : "5432";
    size_t digits = strspn(port, "0123456789");

    if (digits > 0 && digits <= 5 && port[digits] == '\0' &&
        (h->host == NULL || strchr(h->host + 1, '@') == NULL))
        return ONCE_OK;
    return not_encoded(err);
}

static size_t list_size(const char *list)
{
    size_t n = list != NULL;

    for (; list != NULL && (list = strchr(list, ',')) != NULL; list++)
        n++;
    return n;
}

static const char *or_from(const char *given, const char *variable)
{
    const char *text = given != NULL ? given : getenv(variable);

    return text != NULL && text[0] != '\0' ? text : NULL;
}

static int read_hosts(struct once__pg_config *c, once_error *err)
{
    const char *hosts = or_from(value(c, "host"), "PGHOST");
    const char *addresses = or_from(value(c, "hostaddr"), "PGHOSTADDR");
    const char *ports = or_from(value(c, "port"), "PGPORT");
    size_t i, n = list_size(hosts), m = list_size(addresses), p;
    int rc = ONCE_OK;

    n = n > m ? n : m;
    n = n == 0 ? 1 : n;
    p = list_size(ports);
    if (n > ONCE__PG_HOSTS_MAX || (m != 0 && m != n) ||
        (list_size(hosts) != 0 && list_size(hosts) != n) || (p > 1 && p != n))
        return once__fail(err, ONCE_EURL,
                          "postgres: over %d hosts, or lists of hosts, "
                          "addresses and ports of different lengths",
                          ONCE__PG_HOSTS_MAX);
    for (i = 0; i < n && rc == ONCE_OK; i++) {
        struct once__pg_host *h = &c->hosts[i];

        c->host_count = i + 1;
        rc = list_item(hosts, i, &h->host, err);
        if (rc == ONCE_OK)
            rc = list_item(addresses, i, &h->hostaddr, err);
        if (rc == ONCE_OK)
            rc = list_item(ports, i, &h->port, err);
        if (rc == ONCE_OK)
            rc = check_host(h, err);
        h->local = is_local(h->hostaddr != NULL ? h->hostaddr : h->host);
    }
    return rc;
}

/* ---- All together ------------------------------------------------------ */

static int parse(struct once__pg_config *c, char *url, once_error *err)
{
    char *why = NULL;
    const char *path = url + strlen("postgresql://");
    int rc = take_own(c, url, err);

    if (rc != ONCE_OK)
        return rc;
    path += strcspn(path, "/?");
    if (memchr(path, '@', strcspn(path, "?")) != NULL)
        return not_encoded(err); /* an @ after the host */
    c->words = PQconninfoParse(url, &why);
    PQfreemem(why);
    if (c->words == NULL)
        return not_a_url(url, err);
    rc = check_words(c, err);
    if (rc == ONCE_OK)
        rc = check_passfile(c, err);
    c->asks_service = or_from(value(c, "service"), "PGSERVICE") != NULL;
    c->asks_sslmode =
        or_from(value(c, "sslmode"), "PGSSLMODE") != NULL || c->asks_service;
    if (rc == ONCE_OK && !c->asks_service)
        return read_hosts(c, err);
    c->host_count = 1; /* the service file says which */
    return rc;
}

int once__pg_config_read(struct once__pg_config *c, const char *rest,
                         once_error *err)
{
    size_t size = strlen(rest) + sizeof("postgresql:");
    char *url = NULL;
    int rc;

    memset(c, 0, sizeof(*c));
    c->statement_ms = STATEMENT_MS;
    c->connect_ms = CONNECT_MS;
    c->lock_ms = LOCK_MS;
    if (strncmp(rest, "//", 2) != 0)
        return once__fail(err, ONCE_EURL,
                          "postgres: \"//\" must stand after the scheme");
    url = malloc(size);
    if (url == NULL)
        return once__fail(err, ONCE_ENOMEM, "out of memory");
    (void)snprintf(url, size, "postgresql:%s", rest);
    rc = parse(c, url, err);
    explicit_bzero(url, size);
    free(url);
    return rc;
}

void once__pg_config_clear(struct once__pg_config *c)
{
    size_t i;

    for (i = 0; i < c->host_count; i++) {
        free(c->hosts[i].host);
        free(c->hosts[i].hostaddr);
        free(c->hosts[i].port);
    }
    PQconninfoFree(c->words);
    memset(c, 0, sizeof(*c));
}

/* Lists, of which one host gets one item. */
static int is_host_word(const char *key)
{
    return strcmp(key, "host") == 0 || strcmp(key, "hostaddr") == 0 ||
           strcmp(key, "port") == 0;
}

struct pairs {
    const char **keys, **values;
    size_t n;
};

static void add(struct pairs *p, const char *key, const char *val)
{
    if (val == NULL || p->n + 1 >= ONCE__PG_WORDS_MAX)
        return;
    p->keys[p->n] = key;
    p->values[p->n++] = val;
}

void once__pg_config_words(const struct once__pg_config *c, size_t i,
                           const char *keys[ONCE__PG_WORDS_MAX],
                           const char *values[ONCE__PG_WORDS_MAX])
{
    struct pairs p = {keys, values, 0};
    const struct once__pg_host *h = &c->hosts[i];
    const PQconninfoOption *o;

    /* Of a word that is there twice libpq takes the last one. */
    add(&p, "fallback_application_name", "once");
    add(&p, "gssencmode", "disable");
    add(&p, "target_session_attrs", "read-write");
    if (!c->asks_sslmode && !h->local)
        add(&p, "sslmode", "verify-full");
    for (o = c->words; o->keyword != NULL; o++)
        if (o->val != NULL && o->val[0] != '\0' &&
            (c->asks_service || !is_host_word(o->keyword)))
            add(&p, o->keyword, o->val);
    add(&p, "host", h->host);
    add(&p, "hostaddr", h->hostaddr);
    add(&p, "port", h->port);
    keys[p.n] = NULL;
    values[p.n] = NULL;
}

void once__pg_config_label(const struct once__pg_config *c, size_t i,
                           char out[ONCE__PG_LABEL])
{
    const struct once__pg_host *h = &c->hosts[i];
    const char *host = h->host != NULL ? h->host : h->hostaddr;

    if (c->asks_service)
        host = "(service)";
    (void)snprintf(out, ONCE__PG_LABEL, "postgres %.64s:%.8s",
                   host != NULL ? host : "(socket)",
                   h->port != NULL ? h->port : "5432");
}

void once__pg_text(const struct once__pg_config *c, const char *text, char *out,
                   size_t size)
{
    once__sql_in_schema(text, c->schema, out, size);
}
