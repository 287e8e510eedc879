/* SPDX-License-Identifier: Apache-2.0 */
/*
 * canonical.c - the same bytes for the same JSON (docs/http.md, 1).
 *
 *    null, false, true  "n", "f", "t"
 *    a string           "s" frame(unescaped text)
 *    a number           "d", "+" or "-", frame(digits) exponent: the digits have
 *                       no zero at either end, the exponent is of ten and takes
 *                       eight bytes. Zero is "d", "+", frame() 0
 *    an array           "a" values... "e"
 *    an object          "o" (name as a string, value)... "e", names by their
 *                       bytes
 *
 * A frame is a length in eight bytes and the bytes, as in digest.c. What stands
 * for a value begins with its kind and ends by itself, so all of it can be read
 * back in only one way.
 *
 * No number becomes a double: 9007199254740993 and ...992 are two orders. An
 * object with the same name twice has no meaning on which two programs agree:
 * it is not written at all, also where the name would be left out.
 */
#include <stdlib.h>
#include <string.h>

#include "base/bytes.h"
#include "calls/http/json.h"

enum { EXPONENT_DIGITS = 18 }; /* with any shift it fits into 64 bits */

struct writer {
    const once__json *doc;
    once__json_put *put;
    void *user;
};

/* ---- Members in their order --------------------------------------------- */

static int compare(const void *left, const void *right)
{
    const struct once__json_node *a = *(
                                     const struct once__json_node *const *)left,
                                 *b = *(const struct once__json_node *const *)
                                          right;
    int rc = memcmp(a->text, b->text, a->size < b->size ? a->size : b->size);

    return rc != 0 ? rc : (a->size > b->size) - (a->size < b->size);
}

/* Links the names of an object in order; 0: one is there twice. */
static int sort_members(once__json *doc, struct once__json_node *object,
                        struct once__json_node **names)
{
    size_t i, n = 0;
    uint32_t at;

    for (at = object->child; at != 0; at = doc->nodes[at].next)
        names[n++] = &doc->nodes[at];
    qsort(names, n, sizeof(names[0]), compare);
    for (i = 0; i < n; i++) {
        if (i > 0 && compare(&names[i - 1], &names[i]) == 0)
            return 0;
        names[i]->next = i + 1 < n ? (uint32_t)(names[i + 1] - doc->nodes) : 0;
    }
    if (n > 0)
        object->child = (uint32_t)(names[0] - doc->nodes);
    return 1;
}

static int sort_all(once__json *doc)
{
    struct once__json_node **names = malloc((doc->n / 2 + 1) * sizeof(*names));
    int rc = names != NULL ? ONCE_OK : ONCE_ENOMEM;
    size_t i;

    for (i = 0; rc == ONCE_OK && i < doc->n; i++)
        if (doc->nodes[i].kind == ONCE__JSON_OBJECT &&
            !sort_members(doc, &doc->nodes[i], names))
            rc = ONCE_EINVAL;
    free(names);
    return rc;
}

/* ---- Numbers ------------------------------------------------------------ */

/* Digits (with a point among them, perhaps), times ten to the exponent. */
struct number {
    int negative;
    const char *digits, *point; /* point: NULL, or one of the digits' bytes */
    size_t size;                /* bytes, with the point                    */
    int64_t exponent;
};

static int read_exponent(const char *at, const char *end, int64_t *out)
{
    int64_t value = 0;
    int negative = 0;

    if (at < end && (*at == '+' || *at == '-'))
        negative = *at++ == '-';
    while (at < end && *at == '0')
        at++;
    if (end - at > EXPONENT_DIGITS)
        return 0;
    for (; at < end; at++)
        value = 10 * value + (*at - '0');
    *out = negative ? -value : value;
    return 1;
}

static size_t text_until(const char *at, const char *end, const char *any)
{
    size_t i;

    for (i = 0; at + i < end && strchr(any, at[i]) == NULL; i++)
        ;
    return i;
}

/* 0: its exponent is too large to reckon with. */
static int read_number(const struct once__json_node *node, struct number *out)
{
    const char *from = node->text, *end = from + node->size, *last, *first;

    memset(out, 0, sizeof(*out));
    out->negative = *from == '-';
    from += out->negative;
    last = from + text_until(from, end, "eE");
    if (last < end && !read_exponent(last + 1, end, &out->exponent))
        return 0;
    out->point = memchr(from, '.', (size_t)(last - from));
    if (out->point != NULL)
        out->exponent -= last - out->point - 1;
    for (first = from; first < last && strchr("0.", *first); first++)
        ;
    for (; last > first && strchr("0.", last[-1]); last--)
        out->exponent += last[-1] == '0';
    out->digits = first;
    out->size = (size_t)(last - first);
    if (out->point != NULL && (out->point < first || out->point >= last))
        out->point = NULL;
    if (out->size == 0)
        out->exponent = out->negative = 0;
    return 1;
}

static int check_numbers(const once__json *doc)
{
    struct number number;
    size_t i;

    for (i = 0; i < doc->n; i++)
        if (doc->nodes[i].kind == ONCE__JSON_NUMBER &&
            !read_number(&doc->nodes[i], &number))
            return 0;
    return 1;
}

/* ---- Bytes -------------------------------------------------------------- */

static void put(const struct writer *w, const void *data, size_t size)
{
    if (size > 0)
        w->put(w->user, data, size);
}

static void put_length(const struct writer *w, uint64_t length)
{
    uint8_t bytes[8];

    once__put(bytes, length, sizeof(bytes));
    put(w, bytes, sizeof(bytes));
}

static void put_string(const struct writer *w,
                       const struct once__json_node *node)
{
    put(w, "s", 1);
    put_length(w, node->size);
    put(w, node->text, node->size);
}

static void put_number(const struct writer *w,
                       const struct once__json_node *node)
{
    struct number n;
    size_t before;

    (void)read_number(node, &n);
    before = n.point != NULL ? (size_t)(n.point - n.digits) : n.size;
    put(w, n.negative ? "d-" : "d+", 2);
    put_length(w, n.size - (n.point != NULL));
    put(w, n.digits, before);
    if (n.point != NULL)
        put(w, n.point + 1, n.size - before - 1);
    put_length(w, (uint64_t)n.exponent);
}

/* A value, or the beginning of one that has children. */
static void put_value(const struct writer *w,
                      const struct once__json_node *node)
{
    static const char marks[] = {
        [ONCE__JSON_NULL] = 'n',   [ONCE__JSON_FALSE] = 'f',
        [ONCE__JSON_TRUE] = 't',   [ONCE__JSON_ARRAY] = 'a',
        [ONCE__JSON_OBJECT] = 'o',
    };

    if (node->kind == ONCE__JSON_STRING)
        put_string(w, node);
    else if (node->kind == ONCE__JSON_NUMBER)
        put_number(w, node);
    else
        put(w, &marks[node->kind], 1);
}

static void put_all(const struct writer *w)
{
    const struct once__json_node *nodes = w->doc->nodes;
    uint32_t next[ONCE__JSON_DEPTH], at = 0;
    size_t depth = 0;

    for (;;) {
        put_value(w, &nodes[at]);
        if (nodes[at].kind >= ONCE__JSON_ARRAY)
            next[depth++] = nodes[at].child;
        for (; depth > 0; depth--) {
            at = next[depth - 1];
            while (at != 0 && nodes[at].left_out)
                at = nodes[at].next;
            if (at != 0)
                break;
            put(w, "e", 1);
        }
        if (depth == 0)
            return;
        next[depth - 1] = nodes[at].next;
        if (nodes[at].kind == ONCE__JSON_NAME)
            put_string(w, &nodes[at++]);
    }
}

static void leave_out(once__json *doc, once_bytes pointer)
{
    uint32_t parent, at;

    if (once__pointer_follow(doc, pointer, &parent, &at) ==
            ONCE__POINTED_VALUE &&
        doc->nodes[parent].kind == ONCE__JSON_NAME)
        doc->nodes[parent].left_out = 1;
}

int once__json_write(once__json *doc, const once_bytes *but, size_t n_but,
                     once__json_put *to, void *user)
{
    const struct writer w = {doc, to, user};
    size_t i;
    int rc;

    if (doc->lone)
        return ONCE_EINVAL;
    if (!check_numbers(doc))
        return ONCE_ELIMIT;
    rc = sort_all(doc);
    if (rc != ONCE_OK)
        return rc;
    for (i = 0; i < n_but; i++)
        leave_out(doc, but[i]);
    put_all(&w);
    return ONCE_OK;
}
