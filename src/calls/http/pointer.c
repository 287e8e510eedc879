/* SPDX-License-Identifier: Apache-2.0 */
/*
 * pointer.c - what a JSON pointer (RFC 6901) names, and keys that stand in a
 * body (docs/http.md, 1).
 *
 * A key that is there and cannot be used must never pass for "no key". So only
 * what is missing or null is none. What cannot have such a member (a text, a
 * number, an array where the pointer has a name) is refused, and so is a name
 * that stands there twice: the service may take the other one.
 */
#include "calls/http/json.h"

#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "calls/http/http.h"

/* ---- Pointers ----------------------------------------------------------- */

int once__pointer_check(once_bytes pointer)
{
    const unsigned char *at = pointer.data, *end;
    size_t size;

    if (pointer.size == 0)
        return 1;
    if (pointer.size > ONCE__POINTER_MAX || *at != '/')
        return 0;
    for (end = at + pointer.size; at < end; at += size) {
        size = once__utf8(at, end);
        if (size == 0 ||
            (*at == '~' && (end - at < 2 || (at[1] != '0' && at[1] != '1'))))
            return 0;
    }
    return 1;
}

/* The next token of a pointer, as it is written; 0: there is none. */
static int next_token(once_bytes *left, once_bytes *token)
{
    const char *from = left->data, *end;

    if (left->size == 0)
        return 0;
    from++;
    end = memchr(from, '/', left->size - 1);
    token->data = from;
    token->size = end != NULL ? (size_t)(end - from) : left->size - 1;
    left->data = from + token->size;
    left->size -= token->size + 1;
    return 1;
}

static int is_token(once_bytes token, const struct once__json_node *name)
{
    const char *at = token.data, *end = at + token.size;
    size_t i;

    for (i = 0; at < end; at++, i++) {
        char ch = *at;

        if (ch == '~')
            ch = *++at == '0' ? '~' : '/';
        if (i == name->size || name->text[i] != ch)
            return 0;
    }
    return i == name->size;
}

static int member(const once__json *doc, once_bytes token, uint32_t object,
                  uint32_t *out)
{
    uint32_t at, found = 0;

    for (at = doc->nodes[object].child; at != 0; at = doc->nodes[at].next) {
        if (!is_token(token, &doc->nodes[at]))
            continue;
        if (found != 0)
            return ONCE__POINTED_TWICE;
        found = at;
    }
    *out = found;
    return found != 0 ? ONCE__POINTED_VALUE : ONCE__POINTED_NONE;
}

/* Digits without a zero in front; "-" is behind the last one. */
static int element(const once__json *doc, once_bytes token, uint32_t array,
                   uint32_t *out)
{
    const char *digits = token.data;
    uint32_t at = doc->nodes[array].child;
    size_t i, index = 0;

    if (token.size == 1 && *digits == '-')
        return ONCE__POINTED_NONE;
    if (token.size == 0 || (*digits == '0' && token.size > 1))
        return ONCE__POINTED_WRONG;
    for (i = 0; i < token.size; i++) {
        if (digits[i] < '0' || digits[i] > '9')
            return ONCE__POINTED_WRONG;
        if (index <= ONCE__JSON_MAX)
            index = 10 * index + (size_t)(digits[i] - '0');
    }
    while (index-- > 0 && at != 0)
        at = doc->nodes[at].next;
    *out = at;
    return at != 0 ? ONCE__POINTED_VALUE : ONCE__POINTED_NONE;
}

int once__pointer_follow(const once__json *doc, once_bytes pointer,
                         uint32_t *parent, uint32_t *out)
{
    once_bytes token;
    uint32_t at = 0;
    int rc = ONCE__POINTED_VALUE;

    *parent = 0;
    while (rc == ONCE__POINTED_VALUE && next_token(&pointer, &token)) {
        switch (doc->nodes[at].kind) {
        case ONCE__JSON_OBJECT:
            rc = member(doc, token, at, parent);
            at = *parent + 1;
            break;
        case ONCE__JSON_ARRAY:
            rc = element(doc, token, at, parent);
            at = *parent;
            break;
        case ONCE__JSON_NULL:
            return ONCE__POINTED_NONE;
        default:
            return ONCE__POINTED_WRONG;
        }
    }
    *out = at;
    return rc;
}

/* ---- Keys --------------------------------------------------------------- */

static int is_visible(const struct once__json_node *node)
{
    size_t i;

    for (i = 0; i < node->size; i++)
        if (node->text[i] <= ' ' || node->text[i] > '~')
            return 0;
    return node->size > 0;
}

/* The grammar of JSON has been checked. */
static int is_integer(const struct once__json_node *node)
{
    return memchr(node->text, '.', node->size) == NULL &&
           memchr(node->text, 'e', node->size) == NULL &&
           memchr(node->text, 'E', node->size) == NULL &&
           !(node->size == 2 && memcmp(node->text, "-0", 2) == 0);
}

/* ONCE_OK, and `out->size` 0 if there is none. */
static int find_text(const once__json *doc, once_bytes pointer, once_bytes *out,
                     once_error *err)
{
    const struct once__json_node *node;
    uint32_t parent, at;
    int found = once__pointer_follow(doc, pointer, &parent, &at);

    *out = (once_bytes){NULL, 0};
    if (found == ONCE__POINTED_TWICE)
        return once__fail(err, ONCE_EINVAL,
                          "key in the body: a member on the way to it stands "
                          "there twice");
    if (found == ONCE__POINTED_WRONG)
        return once__fail(err, ONCE_EINVAL,
                          "key in the body: a value on the way to it is "
                          "neither an object nor such an array");
    if (found == ONCE__POINTED_NONE || doc->nodes[at].kind == ONCE__JSON_NULL)
        return ONCE_OK;
    node = &doc->nodes[at];
    if (!(node->kind == ONCE__JSON_STRING && is_visible(node)) &&
        !(node->kind == ONCE__JSON_NUMBER && is_integer(node)))
        return once__fail(err, ONCE_EINVAL,
                          "key in the body: neither an integer nor a string "
                          "of visible ASCII");
    *out = (once_bytes){node->text, node->size};
    return ONCE_OK;
}

int once__json_key(const once__json *doc, const once_bytes *pointers, size_t n,
                   char *out, size_t *len, once_error *err)
{
    char text[2 * (ONCE__KEY_MAX + 5)];
    size_t i, size = 0, found = 0;
    once_bytes part;

    for (i = 0; i < n; i++) {
        int rc = find_text(doc, pointers[i], &part, err);

        if (rc != ONCE_OK)
            return rc;
        if (part.size > ONCE__KEY_MAX)
            return once__fail(err, ONCE_ELIMIT,
                              "key in the body: more than %d characters",
                              ONCE__KEY_MAX);
        rc = once__key_refuse_placeholder(part, err);
        if (rc != ONCE_OK)
            return rc;
        found += part.size > 0;
        if (n > 1)
            size += (size_t)snprintf(text + size, sizeof(text) - size,
                                     "%zu:", part.size);
        memcpy(text + size, part.size > 0 ? part.data : "", part.size);
        size += part.size;
        if (n > 1)
            text[size++] = ',';
    }
    if (found != 0 && found != n)
        return once__fail(err, ONCE_EINVAL,
                          "key in the body: one part of two is missing");
    if (found == n && size > ONCE__KEY_MAX)
        return once__fail(err, ONCE_ELIMIT,
                          "key in the body: more than %d characters",
                          ONCE__KEY_MAX);
    *len = found == n ? size : 0;
    memcpy(out, text, *len);
    return ONCE_OK;
}
