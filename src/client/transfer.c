/* SPDX-License-Identifier: Apache-2.0 */
/*
 * transfer.c - one attempt, with libcurl: the request out, the answer in.
 *
 * libcurl calls prereq() when a connection, TLS included, stands and before the
 * first byte of the request is sent. That is where the attempt is written down,
 * so whatever fails before it has certainly not been seen by the service.
 *
 * It follows no redirect, verifies certificates, speaks http and https only,
 * takes no password from a URL or a .netrc, and reads no more of an answer than
 * response_max allows. Of libcurl's messages it passes on only the fixed ones,
 * which quote nothing.
 */
#include "client/client.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include <curl/curl.h>

#include "base/error.h"

#if LIBCURL_VERSION_NUM < 0x075500
#error "libcurl 7.85 or newer is needed"
#endif

struct buffer {
    char *data;
    size_t size, room;
};

struct answer {
    struct once__transfer *t;
    struct buffer headers; /* encoded: name NUL value NUL ... */
    struct buffer body;
    int out_of_memory;
    int too_many; /* headers */
    int headed;   /* the empty line after the headers has come */
};

static int append(struct buffer *b, const void *data, size_t size)
{
    if (size > b->room - b->size) {
        size_t room = b->room * 2 + size + 512;
        char *more = realloc(b->data, room);

        if (more == NULL)
            return -1;
        b->data = more;
        b->room = room;
    }
    if (size > 0)
        memcpy(b->data + b->size, data, size);
    b->size += size;
    return 0;
}

static once_bytes bytes_of(const struct buffer *b)
{
    once_bytes bytes = {b->data, b->size};

    return bytes;
}

/* ---- libcurl itself ---------------------------------------------------- */

int once__transfer_start(void)
{
    return curl_global_init(CURL_GLOBAL_DEFAULT) == CURLE_OK;
}

void once__transfer_stop(void)
{
    curl_global_cleanup();
}

void *once__transfer_handle(void)
{
    return curl_easy_init();
}

void once__transfer_drop(void *easy)
{
    curl_easy_cleanup(easy);
}

/* ---- libcurl asks ------------------------------------------------------ */

static int prereq(void *user, char *ip, char *local_ip, int port,
                  int local_port)
{
    struct once__transfer *t = user;

    (void)ip;
    (void)local_ip;
    (void)port;
    (void)local_port;
    /* A second call: libcurl found a kept connection dead and makes another.
     * It is still this attempt, which is written down, but there are two
     * copies of it now, and an answer speaks for one. */
    if (t->begun && t->single)
        return CURL_PREREQFUNC_ABORT;
    if (t->begun) {
        t->copied = 1;
        return CURL_PREREQFUNC_OK;
    }
    if (t->begin(t->user) != 0)
        return CURL_PREREQFUNC_ABORT;
    t->begun = 1;
    return CURL_PREREQFUNC_OK;
}

static once_bytes trim(const char *text, size_t size)
{
    once_bytes b = {text, size};

    while (b.size > 0 && memchr(" \t\r\n", text[b.size - 1], 4) != NULL)
        b.size--;
    while (b.size > 0 && (*text == ' ' || *text == '\t')) {
        text++;
        b.size--;
    }
    b.data = text;
    return b;
}

static int keep_header(struct answer *a, const char *line, size_t size)
{
    const char *colon = memchr(line, ':', size);
    once_bytes name, value;

    if (colon == NULL)
        return 0; /* the empty line */
    name = trim(line, (size_t)(colon - line));
    value = trim(colon + 1, size - (size_t)(colon - line) - 1);
    /* A NUL would shift all that follows. */
    if (name.size == 0 || memchr(line, '\0', size) != NULL)
        return 0;
    if (a->headers.size + name.size + value.size > ONCE__HEADER_BYTES_MAX) {
        a->too_many = 1;
        return -1;
    }
    if (append(&a->headers, name.data, name.size) < 0 ||
        append(&a->headers, "", 1) < 0 ||
        append(&a->headers, value.data, value.size) < 0 ||
        append(&a->headers, "", 1) < 0) {
        a->out_of_memory = 1;
        return -1;
    }
    return 0;
}

static size_t take_header(char *line, size_t one, size_t size, void *user)
{
    struct answer *a = user;

    (void)one; /* always 1 */
    if (size >= 5 && memcmp(line, "HTTP/", 5) == 0) {
        a->headers.size = 0; /* what came before was an interim answer */
        a->headed = 0;
    } else if (trim(line, size).size == 0) {
        a->headed = 1;
    } else if (keep_header(a, line, size) < 0) {
        return 0;
    }
    return size;
}

static size_t take_body(char *data, size_t one, size_t size, void *user)
{
    struct answer *a = user;

    (void)one;
    if (size > a->t->response_max - a->body.size) {
        a->t->too_long = 1;
        return 0;
    }
    if (append(&a->body, data, size) < 0) {
        a->out_of_memory = 1;
        return 0;
    }
    return size;
}

/* ---- The request ------------------------------------------------------- */

static int add_line(struct curl_slist **list, const char *name,
                    const char *value)
{
    struct curl_slist *more;
    char *line = NULL;
    int n;

    /* libcurl drops a header that has no value, unless it ends in ";". */
    if (value[0] == '\0')
        n = asprintf(&line, "%s;", name);
    else
        n = asprintf(&line, "%s: %s", name, value);
    if (n < 0)
        return -1;
    more = curl_slist_append(*list, line);
    free(line);
    if (more == NULL)
        return -1;
    *list = more;
    return 0;
}

static int has(const struct once__transfer *t, const char *name)
{
    size_t i;

    for (i = 0; i < t->n_headers; i++)
        if (strcasecmp(t->headers[i].name, name) == 0)
            return 1;
    return 0;
}

static struct curl_slist *make_lines(const struct once__transfer *t)
{
    struct curl_slist *list = NULL, *more;
    int bad = 0;
    size_t i;

    for (i = 0; i < t->n_headers && !bad; i++)
        bad = add_line(&list, t->headers[i].name, t->headers[i].value) < 0;
    bad = bad || add_line(&list, "Idempotency-Key", t->key) < 0;
    /* Not libcurl's own: a form it is not, and waiting for a 100 it shall not
     * do. */
    more = bad ? NULL : curl_slist_append(list, "Expect:");
    bad = bad || more == NULL;
    if (!bad && !has(t, "Content-Type")) {
        list = more;
        more = curl_slist_append(list, "Content-Type:");
        bad = more == NULL;
    }
    if (bad) {
        curl_slist_free_all(list);
        return NULL;
    }
    return more;
}

#define SET(option, value)                                                     \
    do {                                                                       \
        if (rc == CURLE_OK)                                                    \
            rc = curl_easy_setopt(easy, option, value);                        \
    } while (0)

static CURLcode set_up(CURL *easy, struct once__transfer *t, struct answer *a,
                       struct curl_slist *lines)
{
    CURLcode rc = CURLE_OK;

    curl_easy_reset(easy); /* keeps connections */
    SET(CURLOPT_URL, t->url);
    SET(CURLOPT_PROTOCOLS_STR, "http,https");
    SET(CURLOPT_FOLLOWLOCATION, 0L);
    SET(CURLOPT_NETRC, (long)CURL_NETRC_IGNORED);
    SET(CURLOPT_SSL_VERIFYPEER, 1L);
    SET(CURLOPT_SSL_VERIFYHOST, 2L);
    SET(CURLOPT_NOSIGNAL, 1L);
    SET(CURLOPT_NOPROGRESS, 1L);
    SET(CURLOPT_USERAGENT, "once-client/" ONCE_VERSION);
    SET(CURLOPT_HTTPHEADER, lines);
    if (strcmp(t->method, "GET") != 0 || t->body.size > 0) {
        SET(CURLOPT_POSTFIELDSIZE_LARGE, (curl_off_t)t->body.size);
        SET(CURLOPT_POSTFIELDS,
            t->body.size > 0 ? (const char *)t->body.data : "");
    }
    SET(CURLOPT_CUSTOMREQUEST, t->method);
    SET(CURLOPT_CONNECTTIMEOUT_MS, (long)t->connect_ms);
    SET(CURLOPT_TIMEOUT_MS, (long)t->attempt_ms);
    SET(CURLOPT_FRESH_CONNECT, t->single ? 1L : 0L);
    SET(CURLOPT_FORBID_REUSE, t->single ? 1L : 0L);
    SET(CURLOPT_PREREQFUNCTION, prereq);
    SET(CURLOPT_PREREQDATA, t);
    SET(CURLOPT_HEADERFUNCTION, take_header);
    SET(CURLOPT_HEADERDATA, a);
    SET(CURLOPT_WRITEFUNCTION, take_body);
    SET(CURLOPT_WRITEDATA, a);
    /* A proxy's answer to CONNECT is not the server's. */
    SET(CURLOPT_SUPPRESS_CONNECT_HEADERS, 1L);
    if (t->ca_file != NULL)
        SET(CURLOPT_CAINFO, t->ca_file);
    return rc;
}

const char *once__transfer_reach(const char *url, const char *ca_file,
                                 uint32_t connect_ms)
{
    CURL *easy = curl_easy_init();
    CURLcode rc = easy == NULL ? CURLE_OUT_OF_MEMORY : CURLE_OK;

    SET(CURLOPT_URL, url);
    SET(CURLOPT_PROTOCOLS_STR, "http,https");
    SET(CURLOPT_NOSIGNAL, 1L);
    SET(CURLOPT_CONNECT_ONLY, 1L);
    SET(CURLOPT_CONNECTTIMEOUT_MS, (long)connect_ms);
    if (ca_file != NULL)
        SET(CURLOPT_CAINFO, ca_file);
    if (rc == CURLE_OK)
        rc = curl_easy_perform(easy);
    curl_easy_cleanup(easy);
    return rc == CURLE_OK ? NULL : curl_easy_strerror(rc);
}

/* ---- The answer -------------------------------------------------------- */

/* The first header of this name; empty if there is none. */
static once_bytes header(const struct buffer *headers, const char *name)
{
    const char *p = headers->data, *end = p + headers->size, *value;
    once_bytes none = {"", 0};

    while (p < end) {
        value = p + strlen(p) + 1;
        if (strcasecmp(p, name) == 0) {
            once_bytes found = {value, strlen(value)};

            return found;
        }
        p = value + strlen(value) + 1;
    }
    return none;
}

static void read_answer(struct once__transfer *t, const struct answer *a,
                        long status)
{
    const struct buffer *h = &a->headers;
    once_bytes marker, retry;
    uint64_t ms = 0;

    t->answer.status = (int)status;
    t->answer_type = t->location = (once_bytes){"", 0};
    if (h->size == 0)
        return;
    t->answer_type = header(h, "Content-Type");
    t->location = header(h, "Location");
    t->answer.reported = once__client_reported(header(h, "Idempotency-Status"));
    marker = header(h, "Idempotent-Replayed");
    if (marker.size == 4 && strncasecmp(marker.data, "true", 4) == 0)
        t->answer.reported = ONCE__REPORTED_REPLAYED;
    if (!t->too_long)
        t->answer.code = once__client_code(t->answer_type, bytes_of(&a->body));
    retry = header(h, "Retry-After");
    if (once__client_retry_after(retry, header(h, "Date"), t->wall_ms, &ms) ==
        0) {
        t->answer.has_retry = 1;
        t->answer.retry_ms = ms;
    }
}

/* What does not go away by itself, so that no caller waits for it. */
static int is_hopeless(CURLcode rc)
{
    switch (rc) {
    case CURLE_URL_MALFORMAT:
    case CURLE_UNSUPPORTED_PROTOCOL:
    case CURLE_PEER_FAILED_VERIFICATION:
    case CURLE_SSL_CACERT_BADFILE:
    case CURLE_SSL_CERTPROBLEM:
    case CURLE_SSL_CIPHER:
    case CURLE_NOT_BUILT_IN:
        return 1;
    default:
        return 0;
    }
}

static void conclude(CURL *easy, struct once__transfer *t, struct answer *a,
                     CURLcode rc)
{
    long status = 0;

    t->said = curl_easy_strerror(rc);
    (void)curl_easy_getinfo(easy, CURLINFO_RESPONSE_CODE, &status);
    /* libcurl is content when a connection ends among the headers; we are not.
     * An answer that is too long is whole enough: its status is known. */
    t->whole = t->begun && a->headed && status >= 200 && status <= 599 &&
               (rc == CURLE_OK || t->too_long);
    if (rc == CURLE_OK && !t->whole)
        t->said = "the answer's head is cut";
    t->hopeless = !t->begun && is_hopeless(rc);
    if (t->too_long)
        a->body.size = 0; /* never cut without saying so */
    if (a->too_many)
        t->said = "the answer's headers are too long";
    if (t->whole)
        read_answer(t, a, status);
    t->answer_headers = bytes_of(&a->headers);
    t->answer_body = bytes_of(&a->body);
}

int once__transfer_run(void *easy, struct once__transfer *t, once_error *err)
{
    struct answer *a = calloc(1, sizeof(*a));
    struct curl_slist *lines = NULL;
    CURLcode rc;
    int code = ONCE_OK;

    t->begun = t->copied = t->whole = t->hopeless = t->too_long = 0;
    memset(&t->answer, 0, sizeof(t->answer));
    t->memory = a;
    lines = a != NULL ? make_lines(t) : NULL;
    if (lines == NULL) {
        code = once__fail(err, ONCE_ENOMEM, "client: out of memory");
        goto out;
    }
    a->t = t;
    rc = set_up(easy, t, a, lines);
    if (rc == CURLE_OK)
        rc = curl_easy_perform(easy);
    if (rc == CURLE_OUT_OF_MEMORY && !t->begun)
        code = once__fail(err, ONCE_ENOMEM, "client: out of memory");
    else
        conclude(easy, t, a, rc);
out:
    curl_slist_free_all(lines);
    return code;
}

void once__transfer_clear(struct once__transfer *t)
{
    struct answer *a = t->memory;

    if (a != NULL) {
        free(a->headers.data);
        free(a->body.data);
        free(a);
    }
    t->memory = NULL;
}
