
/*
 * SPDX-License-Identifier: Apache-2.0
 *
 * What the configuration of the module holds.  All files of the module begin
 * from here; README.md says which of them stands on which.
 */


#ifndef _NGX_HTTP_ONCE_H_INCLUDED_
#define _NGX_HTTP_ONCE_H_INCLUDED_


#include <ngx_config.h>
#include <ngx_core.h>
#include <ngx_http.h>
#include <nginx.h>

#include <once/once.h>

#include "calls/http/http.h"
#include "calls/http/json.h"


/* with its headers over ONCE_RESULT_MAX, a response is not kept */
#define NGX_HTTP_ONCE_RESPONSE_MAX  (64 * 1024 * 1024)

/* who waits holds a connection and its request's memory */
#define NGX_HTTP_ONCE_WAIT_MAX      600000


/* made by the package */
#define NGX_HTTP_ONCE_WITNESS       "/var/lib/once/witness"

/* modules of nginx that pass requests on */
#define NGX_HTTP_ONCE_NUPSTREAMS    5

/* names of "once_route" that one store counts for, "-" among them */
#define NGX_HTTP_ONCE_NROUTES       64
#define NGX_HTTP_ONCE_NAME_LEN      64


typedef struct ngx_http_once_worker_s  ngx_http_once_worker_t;


/* a name of "once_route" with one store */

typedef struct {
    ngx_str_t                    name;
    ngx_uint_t                   slot;      /* in the store's zone */
} ngx_http_once_route_t;


/* one once_store directive */

typedef struct {
    ngx_str_t                    name;
    ngx_str_t                    url;       /* may hold credentials */
    ngx_msec_t                   timeout;
    char                        *witness;   /* a folder, NULL: none is kept */
    ngx_str_t                    file;      /* where it was configured */
    ngx_uint_t                   line;
    ngx_shm_zone_t              *zone;      /* its counters */
    ngx_array_t                  routes;    /* ngx_http_once_route_t * */
    ngx_http_once_worker_t      *worker;    /* NULL in the master */
    ngx_uint_t                   checked;   /* it was opened at the start */
    ngx_uint_t                   unnamed;   /* in a test: its name has no file */
} ngx_http_once_store_t;


/* a text that makes a name: its variables, and what stands between them */

typedef struct {
    ngx_http_complex_value_t     value;
    ngx_uint_t                   variable;  /* 0: what was written */
} ngx_http_once_part_t;


typedef struct {
    ngx_str_t                    written;
    ngx_array_t                  parts;     /* ngx_http_once_part_t */
    ngx_uint_t                   nvariables;
    ngx_uint_t                   assumed;   /* no directive said it */
} ngx_http_once_text_t;


/* "once_scope" */

typedef struct {
    ngx_http_once_text_t         text;
    ngx_uint_t                   warned;
} ngx_http_once_scope_t;


typedef struct ngx_http_once_loc_conf_s  ngx_http_once_loc_conf_t;


/* "once_lookup" */

typedef struct {
    ngx_str_t                    name;      /* of the store */
    ngx_msec_t                   wait;      /* 0: it answers at once */
    ngx_str_t                    file;
    ngx_uint_t                   line;
    ngx_http_once_loc_conf_t    *conf;      /* as the location's, with a store */
} ngx_http_once_lookup_t;


typedef struct {
    ngx_array_t                  stores;    /* ngx_http_once_store_t * */
    ngx_array_t                  locations; /* void **, loc_conf arrays */
    ngx_array_t                  lookups;   /* the same */
} ngx_http_once_main_conf_t;


struct ngx_http_once_loc_conf_s {
    ngx_str_t                    name;      /* of the store, len 0: off */
    ngx_http_once_store_t       *store;     /* NULL: nothing is guarded */
    ngx_http_once_lookup_t      *lookup;    /* NULL: it is none */
    ngx_str_t                    file;
    ngx_uint_t                   line;
    ngx_uint_t                   direct;    /* not inherited */
    ngx_http_handler_pt          handler;   /* in "if", that of the location */
    void                       **srv_conf;  /* of its server */
    ngx_str_t                    route_name;
    ngx_http_once_route_t       *route;

    ngx_http_once_scope_t       *scope;     /* NULL: see scope_off */
    ngx_flag_t                   scope_off;
    ngx_http_once_text_t        *key;
    ngx_str_t                    key_header;  /* "$http_x" alone: "x" */
    once__key_pointers          *key_json;  /* NULL: not in the body */
    ngx_flag_t                   key_required;
    ngx_uint_t                   key_form;  /* enum once__key_form */
    ngx_msec_t                   max_age;   /* 0: the most */
    ngx_http_once_text_t        *realm;
    ngx_uint_t                   realm_own; /* not inherited */
    ngx_uint_t                   key_space;
    ngx_http_complex_value_t    *label;     /* NULL: method and path */
    ngx_flag_t                   label_off;
    once__compared              *compared;    /* NULL: not set */
    ngx_http_once_text_t        *fingerprint; /* where it is not empty */
    ngx_uint_t                   methods;
    ngx_msec_t                   wait;
    ngx_str_t                    accept;    /* a path, len 0: 409 */
    ngx_uint_t                   repeat;
    once__statuses              *final;     /* as written */
    once__statuses              *release;
    once__statuses              *unknown;   /* "off": empty */
    once__policy                 policy;    /* what follows from all of it */
    ngx_uint_t                   lost;
    ngx_flag_t                   two_phase;
    ngx_uint_t                   store_failure;
    ngx_msec_t                   ttl;
    ngx_msec_t                   ttl_failure;   /* 0: as all others */
    ngx_msec_t                   lease;
    size_t                       max_response;
    ngx_array_t                 *hide;      /* once_bytes */
    ngx_flag_t                   store_cookies;
    ngx_flag_t                   cors_expose;
    ngx_flag_t                   dry_run;
    ngx_str_t                   *probe;     /* a URI, len 0: off */

    /* the method that each of them sends, NULL: that of the request */
    ngx_http_complex_value_t    *wire[NGX_HTTP_ONCE_NUPSTREAMS];
};


#define NGX_HTTP_ONCE_HOLD_LOST     0
#define NGX_HTTP_ONCE_TAKE_LOST     1

#define NGX_HTTP_ONCE_OF_REALM      0
#define NGX_HTTP_ONCE_OF_PATH       1

#define NGX_HTTP_ONCE_REPLAY        0
#define NGX_HTTP_ONCE_REFUSE        1

#define NGX_HTTP_ONCE_DENY          0
#define NGX_HTTP_ONCE_BYPASS        1


extern ngx_module_t  ngx_http_once_module;


#define ngx_http_once_count(table)  (sizeof(table) / sizeof((table)[0]))


/* --- texts --- */

static ngx_inline once_bytes
ngx_http_once_bytes(ngx_str_t *s)
{
    once_bytes  b;

    b.data = s->data;
    b.size = s->len;

    return b;
}


static ngx_inline ngx_uint_t
ngx_http_once_same(ngx_str_t *a, ngx_str_t *b)
{
    return a->len == b->len
           && (a->len == 0 || ngx_strncmp(a->data, b->data, a->len) == 0);
}


/* without regard to case, and of a literal */

#define ngx_http_once_is(s, text)                                             \
    ((s)->len == sizeof(text) - 1                                             \
     && ngx_strncasecmp((s)->data, (u_char *) text, sizeof(text) - 1) == 0)

#define ngx_http_once_is_header(h, name)  ngx_http_once_is(&(h)->key, name)


/* --- configuration --- */

/* about a location, or a store */

#define ngx_http_once_log_conf(level, cf, of, format, ...)                    \
    ngx_log_error(level, (cf)->log, 0, format " in %V:%ui", ##__VA_ARGS__,    \
                  &(of)->file, (of)->line)


/* into `cv`, or, where that is NULL, into one of its own; NULL: an error */

static ngx_inline ngx_http_complex_value_t *
ngx_http_once_compile(ngx_conf_t *cf, ngx_str_t *value,
    ngx_http_complex_value_t *cv)
{
    ngx_http_compile_complex_value_t  ccv;

    if (cv == NULL) {
        cv = ngx_palloc(cf->pool, sizeof(ngx_http_complex_value_t));
        if (cv == NULL) {
            return NULL;
        }
    }

    ngx_memzero(&ccv, sizeof(ngx_http_compile_complex_value_t));
    ccv.cf = cf;
    ccv.value = value;
    ccv.complex_value = cv;

    return ngx_http_compile_complex_value(&ccv) == NGX_OK ? cv : NULL;
}


/* a directive of another module, for the place of its value; or NULL */

static ngx_inline ngx_command_t *
ngx_http_once_command(ngx_module_t *module, const char *name)
{
    ngx_command_t  *cmd;

    for (cmd = module->commands; cmd->name.len; cmd++) {
        if (ngx_strcmp(cmd->name.data, name) == 0) {
            return cmd;
        }
    }

    return NULL;
}


#endif /* _NGX_HTTP_ONCE_H_INCLUDED_ */
