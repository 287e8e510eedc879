
/*
 * SPDX-License-Identifier: Apache-2.0
 *
 * Texts of the configuration that make one name of several variables, such as
 * "once_scope $tenant$user".  Written one after the other, the values "a" and
 * "bc" would be the same name as "ab" and "c".  So with two variables or more
 * each part of the text stands behind its length, as "1:a,2:bc,".  A text with
 * one variable stays as it is: there is only one way to read it.
 */


#include "ngx_http_once_text.h"


/* "$name" and "${name}", as nginx itself reads them: what stands after "$" */

static u_char *
ngx_http_once_variable_end(u_char *p, u_char *last)
{
    if (p < last && *p == '{') {
        while (p < last && *p++ != '}') { /* void */ }
        return p;
    }

    while (p < last && (*p == '_' || (*p >= '0' && *p <= '9')
                        || (*p >= 'A' && *p <= 'Z')
                        || (*p >= 'a' && *p <= 'z')))
    {
        p++;
    }

    return p;
}


static ngx_int_t
ngx_http_once_add_part(ngx_conf_t *cf, ngx_http_once_text_t *text,
    u_char *from, u_char *to)
{
    ngx_str_t               value;
    ngx_http_once_part_t   *part;

    if (from == to) {
        return NGX_OK;
    }

    value.data = from;
    value.len = (size_t) (to - from);

    part = ngx_array_push(&text->parts);

    if (part == NULL
        || ngx_http_once_compile(cf, &value, &part->value) == NULL)
    {
        return NGX_ERROR;
    }

    part->variable = (*from == '$');
    text->nvariables += part->variable;

    return NGX_OK;
}


ngx_http_once_text_t *
ngx_http_once_compile_text(ngx_conf_t *cf, ngx_str_t *value,
    ngx_http_once_text_t *text)
{
    u_char  *p, *from, *last;

    if (text == NULL) {
        text = ngx_pcalloc(cf->pool, sizeof(ngx_http_once_text_t));
        if (text == NULL) {
            return NULL;
        }
    }

    text->written = *value;

    /* nginx itself refuses what is no text of its own */

    if (ngx_http_once_compile(cf, value, NULL) == NULL
        || ngx_array_init(&text->parts, cf->pool, 2,
                          sizeof(ngx_http_once_part_t))
           != NGX_OK)
    {
        return NULL;
    }

    p = value->data;
    last = p + value->len;

    while (p < last) {
        from = p;
        p = (*p == '$') ? ngx_http_once_variable_end(p + 1, last)
                        : ngx_strlchr(p, last, '$');

        if (p == NULL) {
            p = last;
        }

        if (ngx_http_once_add_part(cf, text, from, p) != NGX_OK) {
            return NULL;
        }
    }

    return text;
}


ngx_uint_t
ngx_http_once_same_text(ngx_http_once_text_t *a, ngx_http_once_text_t *b)
{
    return (a == NULL || b == NULL)
           ? a == b : ngx_http_once_same(&a->written, &b->written);
}


ngx_str_t *
ngx_http_once_text_values(ngx_http_request_t *r, ngx_http_once_text_t *text,
    ngx_uint_t *empty)
{
    ngx_str_t             *values;
    ngx_uint_t             i;
    ngx_http_once_part_t  *part;

    *empty = 0;
    part = text->parts.elts;

    values = ngx_palloc(r->pool, (text->parts.nelts + 1) * sizeof(ngx_str_t));
    if (values == NULL) {
        return NULL;
    }

    for (i = 0; i < text->parts.nelts; i++) {

        if (ngx_http_complex_value(r, &part[i].value, &values[i]) != NGX_OK) {
            return NULL;
        }

        *empty += (values[i].len == 0);
    }

    return values;
}


static ngx_int_t
ngx_http_once_write_parts(ngx_http_request_t *r, ngx_uint_t nparts,
    ngx_str_t *values, ngx_uint_t framed, ngx_str_t *out)
{
    u_char      *p;
    size_t       size;
    ngx_uint_t   i;

    size = 1;

    for (i = 0; i < nparts; i++) {
        size += values[i].len + NGX_SIZE_T_LEN + sizeof(":,") - 1;
    }

    p = ngx_pnalloc(r->pool, size);
    if (p == NULL) {
        return NGX_ERROR;
    }

    out->data = p;

    for (i = 0; i < nparts; i++) {
        p = framed ? ngx_sprintf(p, "%uz:%V,", values[i].len, &values[i])
                   : ngx_cpymem(p, values[i].data, values[i].len);
    }

    out->len = (size_t) (p - out->data);

    return NGX_OK;
}


ngx_int_t
ngx_http_once_join(ngx_http_request_t *r, ngx_http_once_text_t *text,
    ngx_str_t *values, ngx_str_t *joined)
{
    return ngx_http_once_write_parts(r, text->parts.nelts, values,
                                     text->nvariables > 1, joined);
}


ngx_int_t
ngx_http_once_plain(ngx_http_request_t *r, ngx_http_once_text_t *text,
    ngx_str_t *values, ngx_str_t *plain)
{
    return ngx_http_once_write_parts(r, text->parts.nelts, values, 0, plain);
}
