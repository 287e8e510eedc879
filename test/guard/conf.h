/* SPDX-License-Identifier: Apache-2.0 */
/*
 * conf.h - the routes of the guarded test server, read from a file that has the
 * gateway's directives, one on each line (test/gateway/gateway.py writes it).
 */
#ifndef TEST_GUARD_CONF_H
#define TEST_GUARD_CONF_H

#include <netinet/in.h>
#include <stdint.h>

#include <once/http.h>

enum { STORES_MAX = 8, LOCATIONS_MAX = 64, TEXT_MAX = 1024 };

struct store {
    char name[TEXT_MAX];
    char url[TEXT_MAX];
    uint64_t timeout_ms;
    once_engine *engine;
};

struct server;

struct location {
    struct server *server;
    char path[TEXT_MAX];
    struct store *store; /* NULL: not guarded                        */
    once_guard_options guard;
    char words[16][TEXT_MAX]; /* what texts of `guard` point to      */
    char scope[TEXT_MAX], key[TEXT_MAX]; /* "$http_x_a/$http_x_b"    */
    char fingerprint[TEXT_MAX];          /* likewise                */
    char key_time[16];
    char accept[TEXT_MAX];
    char key_json[2][TEXT_MAX];
    struct sockaddr_in origin;
    uint64_t read_timeout_ms;
    int users; /* 1: basic authentication                         */
    char users_file[TEXT_MAX];
    int lookup; /* 1: once_lookup                                  */
    uint32_t lookup_ms;
    char probe[TEXT_MAX]; /* a path of the origin                  */
    int denied;           /* 1: to all                                       */
    uint64_t seen;        /* directives, to find one that stands there twice */
};

struct conf {
    struct sockaddr_in listen;
    int threaded; /* a thread for each connection */
    char access_log[TEXT_MAX], error_log[TEXT_MAX];
    struct store stores[STORES_MAX];
    size_t n_stores;
    struct location locations[LOCATIONS_MAX];
    size_t n_locations;
};

/* 1, or 0 and a line on stderr that begins with "[emerg]". */
int conf_read(struct conf *c, const char *path);

/* Fills `out` from a template; how many bytes, or -1. */
int conf_expand(const char *template, const once_http_request *r, char *out,
                size_t max);

#endif /* TEST_GUARD_CONF_H */
