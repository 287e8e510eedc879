/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ask.c - requests of `once serve --check`, by libcurl.
 *
 * It believes nothing of an answer, follows no redirect, uses no proxy and asks
 * no password of anybody.
 */
#include "programs/serve/check.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include <curl/curl.h>

enum { PATIENCE_MS = 30000 };

/* One request under way. */
struct one {
    CURL *curl;
    const struct check_ask *ask;
    struct check_got *got;
    struct curl_slist *lines;
    char *url;
    size_t sent;
};

/* ---- libcurl asks ---------------------------------------------------------- */

static size_t on_header(char *data, size_t one, size_t size, void *user)
{
    struct check_got *g = user;

    (void)one;
    if (size > 5 && strncmp(data, "HTTP/", 5) == 0)
        g->n_headers = 0; /* the answer behind a 100 */
    if (size >= sizeof(g->headers) - g->n_headers)
        return 0;
    memcpy(g->headers + g->n_headers, data, size);
    g->n_headers += size;
    g->headers[g->n_headers] = '\0';
    return size;
}

static size_t on_body(char *data, size_t one, size_t size, void *user)
{
    struct check_got *g = user;
    char *more = size <= CHECK_BODY - g->n_body
                     ? realloc(g->body, g->n_body + size + 1)
                     : NULL;

    (void)one;
    if (more == NULL)
        return 0;
    memcpy(more + g->n_body, data, size);
    g->body = more;
    g->n_body += size;
    return size;
}

static size_t on_read(char *out, size_t one, size_t size, void *user)
{
    struct one *o = user;
    size_t end = o->ask->cut > 0 ? o->ask->cut : o->ask->size;
    size_t n = end - o->sent;

    (void)one;
    if (n == 0)
        return o->ask->cut > 0 ? CURL_READFUNC_ABORT : 0;
    n = n < size ? n : size;
    memcpy(out, o->ask->body + o->sent, n);
    o->sent += n;
    return n;
}

/* ---- A request --------------------------------------------------------------- */

static int add_line(struct one *o, const char *name, const char *value)
{
    char text[600];
    struct curl_slist *more;

    if (value == NULL)
        return 1;
    (void)snprintf(text, sizeof(text), "%s%s%s", name, *name ? ": " : "",
                   value);
    more = curl_slist_append(o->lines, text);
    if (more == NULL)
        return 0;
    o->lines = more;
    return 1;
}

static int add_lines(struct one *o)
{
    const struct check_ask *a = o->ask;

    return add_line(o, "Idempotency-Key", a->key) &&
           add_line(o, "Check-User", a->user) &&
           add_line(o, "Check-Do", a->what) && add_line(o, "", a->more) &&
           add_line(o, "Content-Type",
                    a->type != NULL ? a->type : "application/octet-stream") &&
           add_line(o, "", "Expect:") &&
           add_line(o, "Transfer-Encoding", a->chunked ? "chunked" : NULL);
}

static int prepare(struct one *o, const char *url)
{
    const struct check_ask *a = o->ask;
    CURL *e = o->curl = curl_easy_init();

    if (e == NULL || !add_lines(o) ||
        asprintf(&o->url, "%s%s", url, a->query != NULL ? a->query : "") < 0)
        return 0;
    curl_easy_setopt(e, CURLOPT_URL, o->url);
    curl_easy_setopt(e, CURLOPT_PROTOCOLS_STR, "http,https");
    curl_easy_setopt(e, CURLOPT_PROXY, "");
    curl_easy_setopt(e, CURLOPT_HTTP_VERSION, CURL_HTTP_VERSION_1_1);
    curl_easy_setopt(e, CURLOPT_HTTPHEADER, o->lines);
    curl_easy_setopt(e, CURLOPT_HEADERFUNCTION, on_header);
    curl_easy_setopt(e, CURLOPT_HEADERDATA, o->got);
    curl_easy_setopt(e, CURLOPT_WRITEFUNCTION, on_body);
    curl_easy_setopt(e, CURLOPT_WRITEDATA, o->got);
    curl_easy_setopt(e, CURLOPT_NOSIGNAL, 1L);
    curl_easy_setopt(e, CURLOPT_TIMEOUT_MS,
                     a->leave_ms > 0 ? a->leave_ms : (long)PATIENCE_MS);
    if (a->is_get)
        return 1;
    curl_easy_setopt(e, CURLOPT_POST, 1L);
    curl_easy_setopt(e, CURLOPT_READFUNCTION, on_read);
    curl_easy_setopt(e, CURLOPT_READDATA, o);
    if (!a->chunked)
        curl_easy_setopt(e, CURLOPT_POSTFIELDSIZE_LARGE, (curl_off_t)a->size);
    return 1;
}

static void drop(struct one *o)
{
    curl_easy_cleanup(o->curl);
    curl_slist_free_all(o->lines);
    free(o->url);
}

/* ---- Some of them at once ----------------------------------------------------- */

static int perform(CURLM *all)
{
    struct CURLMsg *m;
    struct one *o;
    int running = 1, left;

    while (running > 0) {
        if (curl_multi_perform(all, &running) != CURLM_OK ||
            (running > 0 &&
             curl_multi_poll(all, NULL, 0, 1000, NULL) != CURLM_OK))
            return 0;
        while ((m = curl_multi_info_read(all, &left)) != NULL) {
            if (m->msg != CURLMSG_DONE || m->data.result != CURLE_OK)
                continue;
            curl_easy_getinfo(m->easy_handle, CURLINFO_PRIVATE, &o);
            curl_easy_getinfo(o->curl, CURLINFO_RESPONSE_CODE, &o->got->status);
        }
    }
    return 1;
}

int check_ask(const char *url, const struct check_ask *a, int n,
              struct check_got *out)
{
    struct one *ones = calloc((size_t)n, sizeof(*ones));
    CURLM *all = curl_multi_init();
    int i, ok = ones != NULL && all != NULL;

    memset(out, 0, (size_t)n * sizeof(*out));
    for (i = 0; ok && i < n; i++) {
        ones[i] = (struct one){.ask = a, .got = &out[i]};
        ok = prepare(&ones[i], url) &&
             curl_easy_setopt(ones[i].curl, CURLOPT_PRIVATE, &ones[i]) ==
                 CURLE_OK &&
             curl_multi_add_handle(all, ones[i].curl) == CURLM_OK;
    }
    ok = ok && perform(all);
    for (i = 0; ones != NULL && i < n; i++) {
        if (ones[i].curl != NULL)
            (void)curl_multi_remove_handle(all, ones[i].curl);
        drop(&ones[i]);
    }
    (void)curl_multi_cleanup(all);
    free(ones);
    return ok;
}

void check_header(const struct check_got *g, const char *name, char out[200])
{
    const char *line = g->headers, *end;
    size_t n = strlen(name);

    out[0] = '\0';
    for (; (end = strstr(line, "\r\n")) != NULL; line = end + 2) {
        if (strncasecmp(line, name, n) != 0 || line[n] != ':')
            continue;
        line += n + 1;
        line += strspn(line, " \t");
        (void)snprintf(out, 200, "%.*s", (int)(end - line), line);
        return;
    }
}
