/* SPDX-License-Identifier: Apache-2.0 */
/*
 * watch.c - the last hour, minute by minute, in memory: what gateways, relays
 * and consumers count, and what the stores hold.
 *
 *    status page, file --> lines of Prometheus' text --> increments of counters
 *                                                        the newest of gauges
 *    stores            --> how many wait and are in flight
 *
 * A thread of its own asks every ten seconds. Increments are added up over all
 * sources, each against what this source said last; a smaller number means that
 * it was started again. What cannot be kept within the limits is left out.
 * Nothing that a source sends reaches a page but names of metrics and numbers.
 */
#include "programs/console/console.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

#include <curl/curl.h>

enum {
    MINUTES = 60,
    EVERY_S = 10,
    SERIES_MAX = 2048,
    KEY_MAX = 512,       /* bytes of a name with its labels     */
    TEXT_MAX = 4 << 20,  /* bytes of a page of metrics          */
    WAIT_MS = 3000,      /* for one                             */
    STALE_MS = 60 * 1000 /* a file is of one that is there if it is younger */
};

struct series {
    char *key;
    double *sums; /* by minute; NULL: a gauge */
};

struct source {
    char name[65];
    const char *url;              /* never shown: it may hold a password */
    char memory[CONSOLE_URL_MAX]; /* for one that a file holds */
    int up, seen;
    uint64_t since_ms; /* since when it is so */
    char trouble[96];
    double last[SERIES_MAX]; /* NAN: it did not say */
};

struct console_watch {
    struct console *con;
    pthread_t thread;
    int runs;
    pthread_mutex_t lock;
    pthread_cond_t wakes;
    /* Under the lock. */
    int ends;
    uint64_t began_ms, minute; /* minute: since 1970, the newest */
    struct series series[SERIES_MAX];
    size_t n_series, n;
    struct source *sources[CONSOLE_SOURCES_MAX];
    double waiting[CONSOLE_STORES_MAX][MINUTES],
        flying[CONSOLE_STORES_MAX][MINUTES];
};

/* ---- Minutes ------------------------------------------------------------- */

static void begin_minute(struct console_watch *w, size_t slot)
{
    size_t i;

    for (i = 0; i < w->n_series; i++)
        if (w->series[i].sums != NULL)
            w->series[i].sums[slot] = 0;
    for (i = 0; i < CONSOLE_STORES_MAX; i++)
        w->waiting[i][slot] = w->flying[i][slot] = NAN;
}

/* The clock may be set: what it says of the past goes to the newest minute. */
static size_t slot_of(struct console_watch *w, uint64_t now_ms)
{
    uint64_t minute = now_ms / 60000, n;

    if (minute > w->minute) {
        n = minute - w->minute < MINUTES ? minute - w->minute : MINUTES;
        for (; n > 0; n--)
            begin_minute(w, (size_t)((minute - n + 1) % MINUTES));
        w->minute = minute;
    }
    return (size_t)(w->minute % MINUTES);
}

/* ---- What a source says -------------------------------------------------- */

static int ends_with(const char *text, size_t size, const char *end)
{
    size_t n = strlen(end);

    return size >= n && memcmp(text + size - n, end, n) == 0;
}

/* Sums of histograms tell nothing here; their counts are in the buckets. */
static int is_left_out(const char *key, size_t size)
{
    return key[0] == '#' || size >= KEY_MAX || ends_with(key, size, "_sum") ||
           ends_with(key, size, "_count");
}

/* Sources say the same in the same order: it is looked for behind `from`. */
static size_t find(struct console_watch *w, const char *key, size_t size,
                   int counts, size_t from)
{
    size_t i, at;

    for (i = 0; i < w->n_series; i++) {
        at = (from + i) % w->n_series;
        if (strncmp(w->series[at].key, key, size) == 0 &&
            w->series[at].key[size] == '\0')
            return at;
    }
    at = w->n_series;
    if (at == SERIES_MAX)
        return SERIES_MAX;
    w->series[at].key = strndup(key, size);
    w->series[at].sums = counts ? calloc(MINUTES, sizeof(double)) : NULL;
    if (w->series[at].key == NULL || (counts && w->series[at].sums == NULL)) {
        free(w->series[at].key);
        return SERIES_MAX;
    }
    for (i = 0; i < w->n; i++)
        w->sources[i]->last[at] = NAN;
    w->n_series++;
    return at;
}

/* Where the name with its labels ends. */
static size_t key_size(const char *line)
{
    size_t n = strcspn(line, "{ "), inside = 0;

    if (line[n] != '{')
        return n;
    for (; line[n] != '\0' && (inside || line[n] != '}'); n++) {
        if (line[n] == '"')
            inside = !inside;
        else if (line[n] == '\\' && line[n + 1] != '\0')
            n++;
    }
    return line[n] == '}' ? n + 1 : n;
}

static size_t take_line(struct console_watch *w, struct source *s,
                        const char *line, size_t slot, size_t from)
{
    size_t size = key_size(line), name = strcspn(line, "{ "), at;
    int counts =
        ends_with(line, name, "_total") || ends_with(line, name, "_bucket");
    char *end = NULL;
    double value, before;

    if (is_left_out(line, name) || size >= KEY_MAX || line[size] != ' ')
        return from;
    value = strtod(line + size, &end);
    if (end == line + size || !isfinite(value))
        return from;
    at = find(w, line, size, counts, from);
    if (at == SERIES_MAX)
        return from;
    before = s->last[at];
    s->last[at] = value;
    if (w->series[at].sums == NULL || (isnan(before) && !s->seen))
        return at + 1;
    w->series[at].sums[slot] +=
        isnan(before) || value < before ? value : value - before;
    return at + 1;
}

static void take_text(struct console_watch *w, struct source *s, char *text,
                      size_t slot)
{
    char *line, *rest = NULL;
    size_t from = 0, i;

    for (i = 0; i < w->n_series; i++)
        if (w->series[i].sums == NULL)
            s->last[i] = NAN; /* gauges that it does not have any more */
    for (line = strtok_r(text, "\n", &rest); line != NULL;
         line = strtok_r(NULL, "\n", &rest))
        from = take_line(w, s, line, slot, from);
    s->seen = 1;
}

/* ---- Asking -------------------------------------------------------------- */

struct text {
    char *data;
    size_t size;
};

static size_t on_body(char *data, size_t one, size_t size, void *user)
{
    struct text *t = user;
    char *more;

    (void)one;
    if (size > TEXT_MAX - t->size)
        return 0;
    more = realloc(t->data, t->size + size + 1);
    if (more == NULL)
        return 0;
    memcpy(more + t->size, data, size);
    t->data = more;
    t->size += size;
    t->data[t->size] = '\0';
    return size;
}

/* Of what was fetched: "" or why it is of no use. Nothing of the answer itself
 * is shown. */
static void judge(CURL *e, CURLcode rc, const struct text *t, char *out,
                  size_t size)
{
    long status = 0;
    curl_off_t written = -1;
    int64_t age_ms;

    (void)curl_easy_getinfo(e, CURLINFO_RESPONSE_CODE, &status);
    (void)curl_easy_getinfo(e, CURLINFO_FILETIME_T, &written);
    age_ms = (int64_t)cli_now_ms() - (int64_t)written * 1000;
    out[0] = '\0';
    if (rc != CURLE_OK)
        snprintf(out, size, "%s", curl_easy_strerror(rc));
    else if (status != 0 && status != 200)
        snprintf(out, size, "it answers %ld", status);
    else if (t->data == NULL || strstr(t->data, "once_") == NULL)
        snprintf(out, size, "there are no metrics of Once");
    else if (status == 0 && written >= 0 && age_ms > STALE_MS)
        snprintf(out, size, "its file was last written %lld s ago",
                 (long long)(age_ms / 1000));
}

/* To open a pipe takes until it is written to: what is there and no file is not
 * opened at all. */
static int is_no_file(const char *url)
{
    CURLU *u = curl_url();
    char *path = NULL;
    struct stat st;
    int is_none =
        u != NULL && strncmp(url, "file:", 5) == 0 &&
        curl_url_set(u, CURLUPART_URL, url, 0) == CURLUE_OK &&
        curl_url_get(u, CURLUPART_PATH, &path, CURLU_URLDECODE) == CURLUE_OK &&
        stat(path, &st) == 0 && !S_ISREG(st.st_mode);

    curl_free(path);
    curl_url_cleanup(u);
    return is_none;
}

static void fetch(const struct source *s, struct text *t, char *why,
                  size_t size)
{
    CURL *e = curl_easy_init();
    struct curl_slist *lines =
        curl_slist_append(NULL, "Accept: text/plain;version=0.0.4");

    if (is_no_file(s->url)) {
        snprintf(why, size, "it is no regular file");
    } else if (e != NULL && lines != NULL) {
        curl_easy_setopt(e, CURLOPT_URL, s->url);
        curl_easy_setopt(e, CURLOPT_PROTOCOLS_STR, "http,https,file");
        curl_easy_setopt(e, CURLOPT_PROXY, "");
        curl_easy_setopt(e, CURLOPT_HTTPHEADER, lines);
        curl_easy_setopt(e, CURLOPT_WRITEFUNCTION, on_body);
        curl_easy_setopt(e, CURLOPT_WRITEDATA, t);
        curl_easy_setopt(e, CURLOPT_FILETIME, 1L);
        curl_easy_setopt(e, CURLOPT_NOSIGNAL, 1L);
        curl_easy_setopt(e, CURLOPT_TIMEOUT_MS, (long)WAIT_MS);
        judge(e, curl_easy_perform(e), t, why, size);
    } else {
        snprintf(why, size, "out of memory");
    }
    curl_slist_free_all(lines);
    curl_easy_cleanup(e);
}

static void look_at_source(struct console_watch *w, struct source *s)
{
    struct text t = {NULL, 0};
    char why[sizeof(s->trouble)] = "";
    uint64_t now_ms;
    int up;

    fetch(s, &t, why, sizeof(why));
    now_ms = cli_now_ms();
    up = why[0] == '\0';
    pthread_mutex_lock(&w->lock);
    if (up != s->up || s->since_ms == 0)
        s->since_ms = now_ms;
    s->up = up;
    memcpy(s->trouble, why, sizeof(why));
    if (up)
        take_text(w, s, t.data, slot_of(w, now_ms));
    pthread_mutex_unlock(&w->lock);
    free(t.data);
}

/* The most of a minute. */
static void raise_to(double *most, uint64_t n)
{
    if (isnan(*most) || (double)n > *most)
        *most = (double)n;
}

static void look_at_store(struct console_watch *w, size_t i)
{
    once_counts n;
    size_t slot;

    if (once_count(w->con->stores[i].e, &n, NULL) != ONCE_OK)
        return;
    pthread_mutex_lock(&w->lock);
    slot = slot_of(w, cli_now_ms());
    raise_to(&w->waiting[i][slot], n.indeterminate);
    raise_to(&w->flying[i][slot], n.claimed + n.dispatched);
    pthread_mutex_unlock(&w->lock);
}

/* 1: ten seconds have passed; 0: it is to end. */
static int pause_a_while(struct console_watch *w)
{
    struct timespec until;
    int rc = 0, go;

    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_sec += EVERY_S;
    pthread_mutex_lock(&w->lock);
    while (!w->ends && rc == 0)
        rc = pthread_cond_timedwait(&w->wakes, &w->lock, &until);
    go = !w->ends;
    pthread_mutex_unlock(&w->lock);
    return go;
}

static int is_wanted(struct console_watch *w)
{
    int wanted;

    pthread_mutex_lock(&w->lock);
    wanted = !w->ends;
    pthread_mutex_unlock(&w->lock);
    return wanted;
}

static void *work(void *user)
{
    struct console_watch *w = user;
    size_t i;

    do {
        for (i = 0; i < w->con->n && is_wanted(w); i++)
            look_at_store(w, i);
        for (i = 0; i < w->n && is_wanted(w); i++)
            look_at_source(w, w->sources[i]);
    } while (pause_a_while(w));
    return NULL;
}

/* ---- Start and end ------------------------------------------------------- */

struct console_watch *console_watch_new(struct console *con)
{
    struct console_watch *w = calloc(1, sizeof(*w));
    pthread_condattr_t attr;
    size_t i;

    if (w == NULL)
        return NULL;
    w->con = con;
    pthread_mutex_init(&w->lock, NULL);
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(&w->wakes, &attr);
    pthread_condattr_destroy(&attr);
    for (i = 0; i < MINUTES; i++)
        begin_minute(w, i);
    return w;
}

/* What is shown of a URL: its host and port, or the name of its file. Where a part
 * of a password may stand before the path's `@` it is a number. */
static void name_of(const char *url, size_t number, char *out, size_t size)
{
    const char *at = strstr(url, "://") + 3, *end = at + strcspn(at, "/?#"),
               *user = strrchr(at, '@');

    if (strncmp(url, "file:", 5) == 0)
        snprintf(out, size, "%s", strrchr(url, '/') + 1);
    else if (user != NULL && user >= end)
        snprintf(out, size, "watch-%zu", number);
    else
        snprintf(out, size, "%.*s", (int)(end - (user ? user + 1 : at)),
                 user ? user + 1 : at);
}

/* Reads and checks it; no text repeats it. */
static int take_url(const struct console *con, struct source *s)
{
    int given = s->url[0] != '@';
    int rc = console_read_url(con, "watch", s->url, &s->url, s->memory);

    if (rc != CLI_OK)
        return rc;
    if (!console_is_plain(s->url))
        return cli_usage(con->cli, "--watch is ASCII without spaces");
    if (strncmp(s->url, "file:///", 8) == 0)
        return CLI_OK;
    if (strncmp(s->url, "http://", 7) != 0 &&
        strncmp(s->url, "https://", 8) != 0)
        return cli_usage(con->cli, "--watch is [NAME=]http://..., https://... "
                                   "or file:///..., or @FILE with one of them");
    if (given && strchr(s->url, '@') != NULL)
        return cli_usage(con->cli, "--watch: a URL with a user and a password "
                                   "is read from a file, @FILE, since each "
                                   "user of the host sees command lines");
    return CLI_OK;
}

int console_watch_add(struct console_watch *w, const char *text)
{
    size_t n = console_name_size(text);
    struct source *s;
    int rc;

    if (w->n == CONSOLE_SOURCES_MAX || n >= sizeof(s->name))
        return cli_usage(w->con->cli,
                         "--watch may be given %d times, with names of up to "
                         "%zu characters",
                         CONSOLE_SOURCES_MAX, sizeof(s->name) - 1);
    s = calloc(1, sizeof(*s));
    if (s == NULL)
        return cli_say(w->con->cli, CLI_STORE, "out of memory");
    s->url = n > 0 ? text + n + 1 : text;
    rc = take_url(w->con, s);
    if (rc != CLI_OK) {
        free(s);
        return rc;
    }
    if (n > 0)
        snprintf(s->name, sizeof(s->name), "%.*s", (int)n, text);
    else
        name_of(s->url, w->n + 1, s->name, sizeof(s->name));
    w->sources[w->n++] = s;
    return CLI_OK;
}

int console_watch_start(struct console_watch *w)
{
    w->began_ms = cli_now_ms();
    w->runs = curl_global_init(CURL_GLOBAL_DEFAULT) == CURLE_OK &&
              pthread_create(&w->thread, NULL, work, w) == 0;
    return w->runs;
}

void console_watch_end(struct console_watch *w)
{
    size_t i;

    if (w == NULL)
        return;
    pthread_mutex_lock(&w->lock);
    w->ends = 1;
    pthread_cond_signal(&w->wakes);
    pthread_mutex_unlock(&w->lock);
    if (w->runs)
        pthread_join(w->thread, NULL);
    for (i = 0; i < w->n_series; i++) {
        free(w->series[i].key);
        free(w->series[i].sums);
    }
    for (i = 0; i < w->n; i++)
        free(w->sources[i]);
    pthread_cond_destroy(&w->wakes);
    pthread_mutex_destroy(&w->lock);
    free(w);
}

/* ---- The answer ---------------------------------------------------------- */

static json_t *json_value(double value)
{
    if (isnan(value))
        return json_null();
    if (value > -1e15 && value < 1e15 && value == (double)(json_int_t)value)
        return json_integer((json_int_t)value);
    return json_real(value);
}

/* The oldest minute first. */
static json_t *json_minutes(const struct console_watch *w, const double *values)
{
    json_t *list = json_array();
    size_t i;

    for (i = 1; i <= MINUTES; i++)
        json_array_append_new(list,
                              json_value(values[(w->minute + i) % MINUTES]));
    return list;
}

static int is_nothing(const double *values)
{
    size_t i;

    for (i = 0; i < MINUTES; i++)
        if (values[i] != 0)
            return 0;
    return 1;
}

static json_t *json_series(const struct console_watch *w)
{
    json_t *o = json_object();
    size_t i;

    for (i = 0; i < w->n_series; i++)
        if (w->series[i].sums != NULL && !is_nothing(w->series[i].sums))
            json_object_set_new(o, w->series[i].key,
                                json_minutes(w, w->series[i].sums));
    return o;
}

static json_t *json_source(const struct console_watch *w,
                           const struct source *s)
{
    json_t *gauges = json_object();
    size_t i;

    for (i = 0; s->up && i < w->n_series; i++)
        if (w->series[i].sums == NULL && !isnan(s->last[i]))
            json_object_set_new(gauges, w->series[i].key,
                                json_value(s->last[i]));
    return json_pack("{s:s, s:b, s:o, s:o, s:o}", "name", s->name, "up", s->up,
                     "since", cli_json_time(s->since_ms), "trouble",
                     s->trouble[0] ? cli_json_text((once_bytes){
                                         s->trouble, strlen(s->trouble)})
                                   : json_null(),
                     "gauges", gauges);
}

enum MHD_Result console_metrics(struct console_request *ask)
{
    struct console_watch *w = ask->con->watch;
    json_t *sources = json_array(), *stores = json_array(), *series;
    uint64_t now_ms = cli_now_ms(), began_ms;
    size_t i;

    pthread_mutex_lock(&w->lock);
    (void)slot_of(w, now_ms);
    began_ms = w->began_ms;
    series = json_series(w);
    for (i = 0; i < w->n; i++)
        json_array_append_new(sources, json_source(w, w->sources[i]));
    for (i = 0; i < ask->con->n; i++)
        json_array_append_new(
            stores,
            json_pack("{s:s, s:o, s:o}", "name", ask->con->stores[i].name,
                      "waiting", json_minutes(w, w->waiting[i]), "in_flight",
                      json_minutes(w, w->flying[i])));
    pthread_mutex_unlock(&w->lock);
    return console_reply(ask, MHD_HTTP_OK,
                         json_pack("{s:o, s:o, s:o, s:o, s:o}", "now",
                                   cli_json_time(now_ms), "since",
                                   cli_json_time(began_ms), "series", series,
                                   "sources", sources, "stores", stores));
}
