
/*
 * SPDX-License-Identifier: Apache-2.0
 *
 * The nginx face of Once: it translates between nginx and libonce, and leaves
 * every decision about a record to the library.  One engine per store and
 * worker; nothing here blocks the event loop.
 *
 *   ngx_http_once_module.c   directives, checks at "nginx -t", variables
 *   ngx_http_once_request.c  key, scope, body, claim: the precontent phase
 *   ngx_http_once_capture.c  the response held until its record is durable
 *   ngx_http_once_answer.c   replays, problems, the upstream's own response
 *   ngx_http_once_engine.c   engines of this worker, completions, orphans
 *   ngx_http_once_status.c   counters in shared memory, the status page
 */


#ifndef _NGX_HTTP_ONCE_H_INCLUDED_
#define _NGX_HTTP_ONCE_H_INCLUDED_


#include <ngx_config.h>
#include <ngx_core.h>
#include <ngx_http.h>
#include <nginx.h>

#include <once/once.h>

#include "http/http.h"


/* r->buffered has 4 bits: 1, 2 and 4 are SSI, SUB and COPY of the core */
#define NGX_HTTP_ONCE_BUFFERED      0x08

/* with its headers over ONCE_RESULT_MAX, a response is not kept */
#define NGX_HTTP_ONCE_RESPONSE_MAX  (64 * 1024 * 1024)

/* who waits holds a connection and its request's memory */
#define NGX_HTTP_ONCE_WAIT_MAX      600000


/*
 *          body read        granted           header        last byte
 *   BODY ------------> CLAIM ------> OWNER ------------> HOLD -------> STORE
 *                        |             ^ internal        |               |
 *                        |             +-redirect        | streamed,     |
 *                        | anything else                 | too large     |
 *                        v                               v               v
 *                      ANSWER ----------------------> MARK ----------> PASS
 */

typedef enum {
    NGX_HTTP_ONCE_BODY = 0,     /* the request body is being read */
    NGX_HTTP_ONCE_CLAIM,        /* the store has been asked */
    NGX_HTTP_ONCE_ANSWER,       /* a problem or a replay is to be sent */
    NGX_HTTP_ONCE_OWNER,        /* the request may go to the upstream */
    NGX_HTTP_ONCE_HOLD,         /* its response is held and collected */
    NGX_HTTP_ONCE_MARK,         /* "not kept" is being made durable */
    NGX_HTTP_ONCE_STORE,        /* the outcome is being made durable */
    NGX_HTTP_ONCE_PASS,         /* nothing more to do */
    NGX_HTTP_ONCE_DROP          /* a problem was sent: drop what follows */
} ngx_http_once_state_e;


typedef struct ngx_http_once_ctx_s  ngx_http_once_ctx_t;
typedef struct ngx_http_once_task_s  ngx_http_once_task_t;
typedef struct ngx_http_once_worker_s  ngx_http_once_worker_t;


/* one once_store directive */

typedef struct {
    ngx_str_t                    name;
    ngx_str_t                    url;       /* may hold credentials */
    ngx_msec_t                   timeout;
    ngx_str_t                    file;      /* where it was configured */
    ngx_uint_t                   line;
    ngx_shm_zone_t              *zone;      /* its counters */
    ngx_http_once_worker_t      *worker;    /* NULL in the master */
    ngx_uint_t                   checked;   /* it was opened at the start */
} ngx_http_once_store_t;


typedef struct {
    ngx_array_t                  stores;    /* ngx_http_once_store_t * */
    ngx_array_t                  locations; /* void **, loc_conf arrays */
} ngx_http_once_main_conf_t;


/* a module of nginx that passes requests on */

typedef struct {
    ngx_module_t                *module;    /* NULL: not built in */
    const char                  *name;      /* "NAME_pass" */
    const char                  *protocol;  /* NULL: with a sure end */
    ngx_http_handler_pt          handler;   /* what "NAME_pass" installs */
} ngx_http_once_upstream_t;

#define NGX_HTTP_ONCE_GRPC          0       /* its index */
#define NGX_HTTP_ONCE_NUPSTREAMS    5


typedef struct {
    ngx_str_t                    name;      /* of the store, len 0: off */
    ngx_http_once_store_t       *store;
    ngx_str_t                    file;
    ngx_uint_t                   line;
    ngx_uint_t                   direct;    /* not inherited */
    ngx_http_handler_pt          handler;   /* in "if", that of the location */

    ngx_http_complex_value_t    *scope;     /* NULL: see scope_off */
    ngx_flag_t                   scope_off;
    ngx_http_complex_value_t    *key;
    ngx_str_t                    key_header;  /* "$http_x" alone: "x" */
    ngx_flag_t                   key_required;
    ngx_http_complex_value_t    *realm;
    ngx_uint_t                   counts;      /* enum once__counts */
    ngx_http_complex_value_t    *fingerprint; /* where it is not empty */
    ngx_uint_t                   methods;
    ngx_msec_t                   wait;
    once__statuses              *final;     /* as written */
    once__statuses              *release;
    once__policy                 policy;    /* what follows from all of it */
    ngx_uint_t                   lost;
    ngx_flag_t                   two_phase;
    ngx_uint_t                   store_failure;
    ngx_msec_t                   ttl;
    ngx_msec_t                   lease;
    size_t                       max_response;
    ngx_array_t                 *hide;      /* once_bytes */
    ngx_flag_t                   store_cookies;
    ngx_flag_t                   cors_expose;
    ngx_flag_t                   dry_run;
} ngx_http_once_loc_conf_t;


#define NGX_HTTP_ONCE_HOLD_LOST     0
#define NGX_HTTP_ONCE_TAKE_LOST     1

#define NGX_HTTP_ONCE_DENY          0
#define NGX_HTTP_ONCE_BYPASS        1


/*
 * An attempt of the library together with the request that waits for it.  It
 * outlives the request: an orphan is brought to its end by the worker.
 */

struct ngx_http_once_task_s {
    ngx_http_once_task_t        *next;
    ngx_http_once_worker_t      *worker;
    once_attempt                *attempt;
    ngx_http_once_ctx_t         *ctx;       /* NULL: the request is gone */
    u_char                       key_hash[17];
    uint32_t                     number;    /* of the attempt */
    int                          rc;
    int                          action;      /* what was asked last */
    unsigned                     unknown:1; /* the log says so */
    unsigned                     busy:1;    /* the engine works at it */
    unsigned                     claiming:1;
    unsigned                     owner:1;
};


/* a walk over a list of headers, whose parts nginx leaves to its users */

typedef struct {
    ngx_list_part_t             *part;
    ngx_uint_t                   index;
} ngx_http_once_walk_t;

#define ngx_http_once_walk(walk, list)                                        \
    (walk)->part = &(list)->part;                                             \
    (walk)->index = 0


/* since 1.23.0 headers of one name are linked, and a new one leads nowhere */

#if (nginx_version >= 1023000)
#define ngx_http_once_unlink(h)  (h)->next = NULL
#else
#define ngx_http_once_unlink(h)
#endif


struct ngx_http_once_ctx_s {
    ngx_http_once_state_e        state;
    ngx_http_request_t          *request;
    ngx_http_once_loc_conf_t    *conf;
    ngx_http_once_task_t        *task;
    ngx_event_t                  timer;

    /* of an unguarded location, from which the request was redirected here */
    ngx_http_upstream_t         *upstream_before;
    ngx_uint_t                   states_before;

    ngx_http_handler_pt          content_handler;
    ngx_int_t                    handler_rc;  /* of one without upstream */
    ngx_http_upstream_conf_t    *upstream_conf;  /* narrowed, for r->upstream */

    uint8_t                      name[ONCE_NAME_SIZE];
    uint8_t                      digest[ONCE_FINGERPRINT_SIZE];
    uint8_t                      group[ONCE_GROUP_SIZE];
    once__fingerprint           *fingerprint;
    u_char                       key_hash[17];
    ngx_uint_t                   method;
    ngx_uint_t                   http_version;
    uint32_t                     attempt;

    once__decision               decision;  /* what the client gets */
    char                        *detail;    /* of a problem */
    once__response               replay;    /* the stored response */

    /* what is known about the response */
    int                          observed;     /* enum once__observed */
    int                          action;      /* enum once__verdict_action */
    ngx_int_t                    upstream_rc;
    ngx_uint_t                   upstream_status;
    once_bytes                   word;      /* Idempotency-Outcome */

    /* functions of the upstream module that ours stand before */
    void                       (*finalize)(ngx_http_request_t *r,
                                     ngx_int_t rc);
    ngx_int_t                  (*filter_init)(void *data);
    ngx_int_t                  (*filter)(void *data, ssize_t bytes);
    ngx_event_pipe_input_filter_pt  pipe_filter;

    off_t                        length;    /* declared, -1: not */
    u_char                      *body;      /* collected, malloc'ed */
    size_t                       body_len;
    size_t                       body_size;
    ngx_chain_t                 *held;      /* MARK: kept, not consumed */

    unsigned                     keepalive:1;
    unsigned                     named:1;   /* name and key_hash are set */
    unsigned                     last:1;
    unsigned                     broken:1;  /* more came, or it makes no sense */
    unsigned                     counted:1;
    unsigned                     ours:1;    /* the headers bear our marks */
    unsigned                     refused:1; /* a second dispatch was refused */
    unsigned                     reached:1; /* the content handler has run */
    unsigned                     decided:1; /* what follows is only a page */
};


/* ngx_http_once_module.c */

ngx_uint_t ngx_http_once_dav(void **loc_conf, ngx_uint_t methods);

extern ngx_http_once_upstream_t  ngx_http_once_upstreams[];

/* ngx_http_once_request.c */

ngx_int_t ngx_http_once_handler(ngx_http_request_t *r);
ngx_int_t ngx_http_once_request_body_filter(ngx_http_request_t *r,
    ngx_chain_t *in);
ngx_http_once_ctx_t *ngx_http_once_get_ctx(ngx_http_request_t *r);
void ngx_http_once_claimed(ngx_http_once_ctx_t *ctx, int rc);
off_t ngx_http_once_bytes_sent(ngx_http_once_ctx_t *ctx);
ngx_uint_t ngx_http_once_head_whole(ngx_http_upstream_t *u);
void ngx_http_once_find_word(ngx_http_upstream_t *u, once_bytes *word);
void ngx_http_once_request_init(void);

/* ngx_http_once_capture.c */

void ngx_http_once_capture_init(void);
void ngx_http_once_warn_of_ends(ngx_conf_t *cf,
    ngx_http_once_main_conf_t *omcf);
void ngx_http_once_stored(ngx_http_once_ctx_t *ctx, int rc);

extern ngx_http_output_header_filter_pt  ngx_http_once_next_header_filter;
extern ngx_http_output_body_filter_pt    ngx_http_once_next_body_filter;

/* ngx_http_once_answer.c */

ngx_table_elt_t *ngx_http_once_next(ngx_http_once_walk_t *walk);

ngx_int_t ngx_http_once_answer_handler(ngx_http_request_t *r);
ngx_int_t ngx_http_once_set_problem(ngx_http_request_t *r,
    ngx_http_once_ctx_t *ctx, ngx_buf_t *b);
ngx_int_t ngx_http_once_set_replay(ngx_http_request_t *r,
    ngx_http_once_ctx_t *ctx, ngx_buf_t *b);
ngx_int_t ngx_http_once_add_status(ngx_http_request_t *r,
    ngx_http_once_ctx_t *ctx);
ngx_int_t ngx_http_once_mark_new(ngx_http_request_t *r,
    ngx_http_once_ctx_t *ctx);
ngx_int_t ngx_http_once_set_last_modified(ngx_http_request_t *r);
void ngx_http_once_strip_headers(ngx_http_request_t *r);
ngx_int_t ngx_http_once_add_header(ngx_http_request_t *r, const char *name,
    const char *value);
ngx_int_t ngx_http_once_encode(ngx_http_request_t *r,
    ngx_http_once_ctx_t *ctx, int keep, once_bytes *out);

/* ngx_http_once_engine.c */

ngx_int_t ngx_http_once_check_stores(ngx_cycle_t *cycle,
    ngx_http_once_main_conf_t *omcf);
ngx_int_t ngx_http_once_init_process(ngx_cycle_t *cycle);
void ngx_http_once_exit_process(ngx_cycle_t *cycle);
ngx_int_t ngx_http_once_claim(ngx_http_once_ctx_t *ctx,
    const once_request *request);
ngx_int_t ngx_http_once_finish(ngx_http_once_ctx_t *ctx,
    once__verdict verdict, once_bytes result);
void ngx_http_once_abandon(ngx_http_once_ctx_t *ctx, ngx_uint_t sent);
void ngx_http_once_publish_all(void);
once_engine *ngx_http_once_engine(ngx_http_once_store_t *store);

/* ngx_http_once_status.c */

char *ngx_http_once_status_directive(ngx_conf_t *cf, ngx_command_t *cmd,
    void *conf);
ngx_int_t ngx_http_once_add_zone(ngx_conf_t *cf,
    ngx_http_once_store_t *store);
void ngx_http_once_count(ngx_http_once_ctx_t *ctx);
void ngx_http_once_publish(ngx_http_once_store_t *store, once_stats *last);
void ngx_http_once_clear_slot(ngx_http_once_store_t *store);
extern ngx_str_t  ngx_http_once_status_names[];


/* methods that nginx itself does not repeat once the request was sent */

#define NGX_HTTP_ONCE_NOT_REPEATED                                            \
    (NGX_HTTP_POST|NGX_HTTP_PATCH|NGX_HTTP_LOCK)


/* nginx may be built without some of them */

extern ngx_module_t  ngx_http_proxy_module;
extern ngx_module_t  ngx_http_fastcgi_module;
extern ngx_module_t  ngx_http_uwsgi_module;
extern ngx_module_t  ngx_http_scgi_module;
extern ngx_module_t  ngx_http_grpc_module;
extern ngx_module_t  ngx_http_dav_module;
extern ngx_module_t  ngx_http_slice_filter_module;

#pragma weak ngx_http_proxy_module
#pragma weak ngx_http_fastcgi_module
#pragma weak ngx_http_uwsgi_module
#pragma weak ngx_http_scgi_module
#pragma weak ngx_http_grpc_module
#pragma weak ngx_http_dav_module
#pragma weak ngx_http_slice_filter_module


extern ngx_module_t  ngx_http_once_module;


#endif /* _NGX_HTTP_ONCE_H_INCLUDED_ */
