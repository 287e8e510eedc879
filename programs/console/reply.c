/* SPDX-License-Identifier: Apache-2.0 */
/*
 * reply.c - answers: bytes, JSON, problems (RFC 9457), and refusals that are
 * sent when the request has been read.
 *
 * Every answer has the headers that keep other pages away from it, and tells
 * browsers and proxies to keep none of it.
 */
#include "programs/console/console.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *const always[][2] = {
    {"Content-Security-Policy",
     "default-src 'none'; script-src 'self'; style-src 'self'; connect-src "
     "'self'; img-src 'self'; base-uri 'none'; form-action 'none'; "
     "frame-ancestors 'none'; require-trusted-types-for 'script'"},
    {"X-Content-Type-Options", "nosniff"},
    {"Referrer-Policy", "no-referrer"},
    {"Cross-Origin-Opener-Policy", "same-origin"},
    {"Cross-Origin-Resource-Policy", "same-origin"},
    {"Cache-Control", "no-store"},
};

/* Takes `data` if it is to be freed. */
static enum MHD_Result send_bytes(struct console_request *ask, unsigned status,
                                  const char *type, const void *data,
                                  size_t size, enum MHD_ResponseMemoryMode mode)
{
    struct MHD_Response *r =
        MHD_create_response_from_buffer(size, (void *)(uintptr_t)data, mode);
    enum MHD_Result rc = MHD_YES;
    size_t i;

    if (r == NULL) {
        if (mode == MHD_RESPMEM_MUST_FREE)
            free((void *)(uintptr_t)data);
        return MHD_NO;
    }
    for (i = 0; i < sizeof(always) / sizeof(always[0]); i++)
        if (MHD_add_response_header(r, always[i][0], always[i][1]) != MHD_YES)
            rc = MHD_NO;
    if (MHD_add_response_header(r, "Content-Type", type) != MHD_YES)
        rc = MHD_NO;
    if (status == MHD_HTTP_METHOD_NOT_ALLOWED)
        (void)MHD_add_response_header(r, "Allow", "GET, HEAD, POST");
    if (rc == MHD_YES)
        rc = MHD_queue_response(ask->c, status, r);
    MHD_destroy_response(r);
    return rc;
}

static enum MHD_Result send_json(struct console_request *ask, unsigned status,
                                 const char *type, json_t *value)
{
    char *text =
        value ? json_dumps(value, JSON_COMPACT | JSON_REAL_PRECISION(6)) : NULL;

    json_decref(value);
    if (text == NULL) /* without memory: the connection ends */
        return MHD_NO;
    return send_bytes(ask, status, type, text, strlen(text),
                      MHD_RESPMEM_MUST_FREE);
}

enum MHD_Result console_reply(struct console_request *ask, unsigned status,
                              json_t *value)
{
    return send_json(ask, status, "application/json", value);
}

enum MHD_Result console_problem_about(struct console_request *ask,
                                      unsigned status, const char *code,
                                      const char *text, json_t *record)
{
    json_t *o =
        json_pack("{s:s, s:o, s:i, s:s, s:o*}", "type", "about:blank", "title",
                  cli_json_text((once_bytes){text, strlen(text)}), "status",
                  (int)status, "code", code, "record", record);

    return send_json(ask, status, "application/problem+json", o);
}

enum MHD_Result console_problem(struct console_request *ask, unsigned status,
                                const char *code, const char *format, ...)
{
    char text[512];
    va_list args;

    va_start(args, format);
    vsnprintf(text, sizeof(text), format, args);
    va_end(args);
    return console_problem_about(ask, status, code, text, NULL);
}

enum MHD_Result console_store_error(struct console_request *ask, int rc,
                                    const once_error *err)
{
    const char *text = err->text[0] ? err->text : once_text(rc);

    if (rc == ONCE_EINVAL || rc == ONCE_ELIMIT)
        return console_problem(ask, MHD_HTTP_BAD_REQUEST, "invalid", "%s",
                               text);
    return console_problem(ask, MHD_HTTP_SERVICE_UNAVAILABLE,
                           rc == ONCE_ECORRUPT ? "corrupt" : "store", "%s",
                           text);
}

enum MHD_Result console_bytes(struct console_request *ask, const char *type,
                              const void *data, size_t size)
{
    return send_bytes(ask, MHD_HTTP_OK, type, data, size,
                      MHD_RESPMEM_PERSISTENT);
}

const char *console_header(const struct console_request *ask, const char *name)
{
    return MHD_lookup_connection_value(ask->c, MHD_HEADER_KIND, name);
}

const char *console_argument(const struct console_request *ask,
                             const char *name)
{
    return MHD_lookup_connection_value(ask->c, MHD_GET_ARGUMENT_KIND, name);
}

void console_refuse(struct console_request *ask, unsigned status,
                    const char *code, const char *why)
{
    ask->refused = status;
    ask->code = code;
    ask->why = why;
}
