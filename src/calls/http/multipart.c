/* SPDX-License-Identifier: Apache-2.0 */
/*
 * multipart.c - finds the boundary in the type of a multipart body (RFC 2046,
 * 5.1.1).
 *
 * It refuses to guess: a type that does not parse, with two boundaries or with
 * one that the grammar does not allow, is no multipart type. Then every byte of
 * type and body counts as it is.
 */
#include "calls/http/http.h"

#include <string.h>

struct cursor {
    const char *at;
    const char *end;
};

static int peek(const struct cursor *c)
{
    return c->at < c->end ? (unsigned char)*c->at : -1;
}

static int is_alnum(int ch)
{
    return (ch >= '0' && ch <= '9') || (ch >= 'A' && ch <= 'Z') ||
           (ch >= 'a' && ch <= 'z');
}

static int is_one_of(int ch, const char *set)
{
    return ch > 0 && strchr(set, ch) != NULL;
}

static void skip_white(struct cursor *c)
{
    while (is_one_of(peek(c), " \t"))
        c->at++;
}

/* RFC 9110, 5.6.2; empty if there is none. */
static once_bytes take_token(struct cursor *c)
{
    once_bytes token = {c->at, 0};

    while (is_alnum(peek(c)) || is_one_of(peek(c), "!#$%&'*+-.^_`|~")) {
        c->at++;
        token.size++;
    }
    return token;
}

/* What stands between two quotes. An escape is not understood. */
static int take_quoted(struct cursor *c, once_bytes *out)
{
    c->at++;
    *out = (once_bytes){c->at, 0};
    while (c->at < c->end && !is_one_of(peek(c), "\"\\")) {
        c->at++;
        out->size++;
    }
    if (peek(c) != '"')
        return 0;
    c->at++;
    return 1;
}

static int take_value(struct cursor *c, once_bytes *out)
{
    if (peek(c) == '"')
        return take_quoted(c, out);
    *out = take_token(c);
    return out->size > 0;
}

static int is_named(once_bytes name, const char *text)
{
    return once__same_name(name, (once_bytes){text, strlen(text)});
}

static int is_multipart(struct cursor *c)
{
    skip_white(c);
    if (!is_named(take_token(c), "multipart") || peek(c) != '/')
        return 0;
    c->at++;
    return take_token(c).size > 0;
}

static int is_boundary(once_bytes b)
{
    const char *text = b.data;
    size_t i;

    if (b.size < 1 || b.size > ONCE__BOUNDARY_MAX || text[b.size - 1] == ' ')
        return 0;
    for (i = 0; i < b.size; i++)
        if (!is_alnum(text[i]) && !is_one_of(text[i], "'()+_,-./:=? "))
            return 0;
    return 1;
}

int once__boundary_find(once_bytes type, once__boundary *out)
{
    struct cursor c = {type.data, NULL};
    once_bytes name, value;
    const char *from;

    if (type.size == 0)
        return 0;
    c.end = c.at + type.size;
    memset(out, 0, sizeof(*out));
    if (!is_multipart(&c))
        return 0;
    for (skip_white(&c); peek(&c) == ';'; skip_white(&c)) {
        c.at++;
        skip_white(&c);
        name = take_token(&c);
        if (name.size == 0 || peek(&c) != '=')
            return 0;
        from = ++c.at;
        if (!take_value(&c, &value))
            return 0;
        if (!is_named(name, "boundary"))
            continue;
        if (out->text.size > 0 || !is_boundary(value))
            return 0;
        out->text = value;
        out->before =
            (once_bytes){type.data, (size_t)(from - (const char *)type.data)};
        out->after = (once_bytes){c.at, (size_t)(c.end - c.at)};
    }
    return c.at == c.end && out->text.size > 0;
}
