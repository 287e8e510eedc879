
/*
 * SPDX-License-Identifier: Apache-2.0
 *
 * The context of a guarded request, with its states, and walks over headers.
 */


#ifndef _NGX_HTTP_ONCE_CONTEXT_H_INCLUDED_
#define _NGX_HTTP_ONCE_CONTEXT_H_INCLUDED_


#include "ngx_http_once.h"


/* r->buffered has 4 bits: 1, 2 and 4 are SSI, SUB and COPY of the core */
#define NGX_HTTP_ONCE_BUFFERED      0x08


/*
 *         body read         granted          head          last byte
 *   BODY -----------> CLAIM -------> OWNER -------> HOLD -----------> STORE
 *     |                 |             ^  |           | streamed,        |
 *     | refused         | anything    +--+           | too large        |
 *     |                 | else      redirected       v                  |
 *     +---> ANSWER <----+                           MARK                |
 *             |                        not recorded |  | recorded       |
 *             |                                     v  v                |
 *             |                                  DROP  SENT <-----------+
 *             +--------------------------------------> SENT
 *
 *   CLAIM -> PROBE -> DECIDE -> CLAIM:  unknown, and the service is asked; it
 *                            was applied, and that is recorded.  Otherwise ->
 *                            ANSWER
 *   BODY, CLAIM -> PASS:     a dry run, a bypass of the store
 *   any         -> PASS:     the request goes where it is not judged
 *   BODY, CLAIM -> REJECTED: the body cannot be read
 *   (none)      -> REJECTED: nginx refused the request before it was looked at
 */

typedef enum {
    NGX_HTTP_ONCE_BODY = 0,     /* the request body is being read */
    NGX_HTTP_ONCE_CLAIM,        /* the store has been asked */
    NGX_HTTP_ONCE_PROBE,        /* the service is asked what became of it */
    NGX_HTTP_ONCE_DECIDE,       /* what it said is being made durable */
    NGX_HTTP_ONCE_ANSWER,       /* a problem or a replay is to be sent */
    NGX_HTTP_ONCE_OWNER,        /* the request may go to the upstream */
    NGX_HTTP_ONCE_HOLD,         /* its response is held and collected */
    NGX_HTTP_ONCE_MARK,         /* "not kept" is being made durable */
    NGX_HTTP_ONCE_STORE,        /* the outcome is being made durable */
    NGX_HTTP_ONCE_SENT,         /* the response may leave, with our headers */
    NGX_HTTP_ONCE_DROP,         /* the same; what the upstream adds is not it */
    NGX_HTTP_ONCE_PASS,         /* not guarded, or not any longer */
    NGX_HTTP_ONCE_REJECTED      /* not claimed: it must not be passed on */
} ngx_http_once_state_e;


typedef struct ngx_http_once_ctx_s  ngx_http_once_ctx_t;
typedef struct ngx_http_once_task_s  ngx_http_once_task_t;

typedef void (*ngx_http_once_leave_pt)(ngx_http_once_ctx_t *ctx);


/* a walk over a list of headers, whose parts nginx leaves to its users */

typedef struct {
    ngx_list_part_t             *part;
    ngx_uint_t                   index;
} ngx_http_once_walk_t;

#define ngx_http_once_walk(walk, list)                                        \
    (walk)->part = &(list)->part;                                             \
    (walk)->index = 0


static ngx_inline ngx_table_elt_t *
ngx_http_once_next(ngx_http_once_walk_t *walk)
{
    ngx_table_elt_t  *h;

    while (walk->index >= walk->part->nelts) {
        if (walk->part->next == NULL) {
            return NULL;
        }

        walk->part = walk->part->next;
        walk->index = 0;
    }

    h = walk->part->elts;

    return &h[walk->index++];
}


/* since 1.23.0 headers of one name are linked, and a new one leads nowhere */

#if (nginx_version >= 1023000)
#define ngx_http_once_unlink(h)  (h)->next = NULL
#else
#define ngx_http_once_unlink(h)
#endif


/* the question that a subrequest asks, and its answer */

typedef struct {
    ngx_http_request_t          *request;   /* NULL: none is under way */
    uint64_t                     fence;     /* of the unknown record */
    uint32_t                     number;    /* of its attempt */
    int                          place;     /* -1: none */
    int                          result;    /* enum once__probe_result, or -1 */
    once_bytes                   recorded;  /* after APPLIED */

    once__probe_reply            reply;
    ngx_uint_t                   uri_changes;  /* as at first */
    ngx_http_handler_pt          handler;   /* of the content */
    void                       (*finalize)(ngx_http_request_t *r,
                                     ngx_int_t rc);
    ngx_int_t                    upstream_rc;
    off_t                        length;    /* declared, -1: not */
    off_t                        bytes;     /* that have come */
    ngx_uint_t                   over;      /* more than is kept */
    ngx_uint_t                   refused;   /* its location is no such */
} ngx_http_once_probe_t;


struct ngx_http_once_ctx_s {
    ngx_http_once_state_e        state;
    int                          tries;     /* enum once__tries */
    ngx_http_request_t          *request;
    ngx_http_once_loc_conf_t    *conf;
    ngx_http_once_task_t        *task;
    const once_record           *record;    /* known without an attempt */
    ngx_http_once_probe_t       *probe;     /* NULL: none was called for */
    ngx_event_t                  timer;
    ngx_http_once_leave_pt       leave;     /* before the request goes */

    /* of an unguarded location, from which the request was redirected here */
    ngx_http_upstream_t         *upstream_before;
    ngx_uint_t                   states_before;

    ngx_http_handler_pt          content_handler;
    ngx_int_t                    handler_rc;  /* of one without upstream */
    ngx_http_upstream_conf_t    *upstream_conf;  /* narrowed, for r->upstream */

    ngx_int_t                    error_status;  /* led here by error_page, or 0 */
    ngx_uint_t                   returned;  /* REJECTED by "return" */
    ngx_uint_t                   page;      /* not the request: a page for it */

    uint8_t                      name[ONCE_NAME_SIZE];
    uint8_t                      digest[ONCE_FINGERPRINT_SIZE];
    uint8_t                      group[ONCE_GROUP_SIZE];
    once__fingerprint           *fingerprint;
    ngx_uint_t                   collect;   /* into `json` */
    once__json_text              json;      /* the request's body */
    ngx_str_t                    scope;     /* whose key it is */
    ngx_str_t                    realm;
    ngx_str_t                    key_line;  /* of a body, for the service */
    uint64_t                     born;      /* of a key that says it */
    u_char                       key_hash[17];  /* "": not known yet */
    ngx_uint_t                   method;
    ngx_uint_t                   http_version;
    uint32_t                     attempt;
    uint64_t                     fence;
    once__ending                 ending;    /* how the attempt ended */
    ngx_uint_t                   ended;     /* 0: it has not, or is none */
    char                         label[ONCE_LABEL_MAX + 1];  /* "": none */
    uint8_t                      trace[ONCE_TRACE_SIZE];  /* of the first */

    once__http_decision          decision;  /* what the client gets */
    const char                  *detail;    /* of a problem */
    int                          would;     /* enum once__would */
    uint64_t                     apart;     /* s since the first */
    ngx_uint_t                   has_apart;
    once__response               replay;    /* the stored response */
    ngx_str_t                    told;      /* what became of the request */

    /* what is known about the response */
    int                          observed;     /* enum once__observed */
    once__verdict                verdict;
    ngx_int_t                    upstream_rc;
    ngx_uint_t                   upstream_status;
    once_bytes                   outcome;   /* Idempotency-Outcome */

    /* functions of the upstream module that ours stand before */
    void                       (*finalize)(ngx_http_request_t *r,
                                     ngx_int_t rc);
    ngx_int_t                  (*filter_init)(void *data);
    ngx_int_t                  (*filter)(void *data, ssize_t bytes);
    ngx_event_pipe_input_filter_pt  pipe_filter;

    ngx_uint_t                   broken;    /* the body is malformed */
    ngx_uint_t                   not_shown; /* what shows the outcome is not whole */
    ngx_uint_t                   client_left;  /* nginx does not see it now */

    ngx_uint_t                   keepalive; /* r->keepalive, before */
    off_t                        length;    /* declared, -1: not */
    u_char                      *body;      /* collected, malloc'ed */
    size_t                       body_len;
    size_t                       body_size;
    ngx_chain_t                 *held;      /* MARK: kept, not consumed */
};


ngx_http_once_ctx_t *ngx_http_once_create_ctx(ngx_http_request_t *r,
    ngx_http_once_loc_conf_t *olcf, ngx_http_once_leave_pt leave);
ngx_http_once_ctx_t *ngx_http_once_get_ctx(ngx_http_request_t *r);

ngx_table_elt_t *ngx_http_once_push_header(ngx_http_request_t *r,
    once_bytes name, once_bytes value);
ngx_int_t ngx_http_once_add_header(ngx_http_request_t *r, const char *name,
    const char *value);
ngx_int_t ngx_http_once_add_status(ngx_http_request_t *r,
    ngx_http_once_ctx_t *ctx);
void ngx_http_once_strip_headers(ngx_http_request_t *r);


#define ngx_http_once_bodiless(r)                                             \
    ((r)->headers_out.status == NGX_HTTP_NO_CONTENT                           \
     || (r)->headers_out.status == NGX_HTTP_NOT_MODIFIED)


#endif /* _NGX_HTTP_ONCE_CONTEXT_H_INCLUDED_ */
