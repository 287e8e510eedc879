/* SPDX-License-Identifier: Apache-2.0 */
/*
 * json.c - reads a JSON document (RFC 8259) into a tree.
 *
 * One loop with a stack of ONCE__JSON_DEPTH places: nothing that a client sends
 * makes it call itself. A value takes at least two bytes, itself and what parts
 * it from the next one, unless it has not ended yet: so the memory for all nodes
 * is known beforehand. So is that for texts: none is longer than it is written.
 *
 * It refuses what is not exactly the grammar: other white space, a byte order
 * mark, comments, numbers like 01, control characters in strings, bytes that
 * are not UTF-8.
 */
#include "calls/http/json.h"

#include <stdlib.h>
#include <string.h>

#include "base/bytes.h"
#include "base/error.h"

/* What may come next. */
enum expected {
    VALUE,
    FIRST_VALUE, /* or the end of the array */
    NAME,
    FIRST_NAME, /* or the end of the object */
    AFTER,      /* a value has ended        */
    DONE,
    FLAWED,
    TOO_DEEP
};

struct parser {
    const unsigned char *at, *end;
    once__json *doc;
    char *text; /* where the next text goes */
    struct {
        uint32_t node, last; /* `last`: its last child so far, or 0 */
    } open[ONCE__JSON_DEPTH];
    size_t depth;
};

static int peek(const struct parser *p)
{
    return p->at < p->end ? *p->at : -1;
}

static int take(struct parser *p, int ch)
{
    if (peek(p) != ch)
        return 0;
    p->at++;
    return 1;
}

static void skip_white(struct parser *p)
{
    while (p->at < p->end && strchr(" \t\n\r", *p->at) != NULL && *p->at != 0)
        p->at++;
}

/* ---- Nodes -------------------------------------------------------------- */

/* The value of a member is no child: it stands behind its name. */
static struct once__json_node *add_node(struct parser *p,
                                        enum once__json_kind kind)
{
    once__json *doc = p->doc;
    uint32_t index = (uint32_t)doc->n++, in, last;
    struct once__json_node *node = &doc->nodes[index];

    memset(node, 0, sizeof(*node));
    node->kind = (uint8_t)kind;
    if (p->depth == 0)
        return node;
    in = p->open[p->depth - 1].node;
    last = p->open[p->depth - 1].last;
    if (doc->nodes[in].kind == ONCE__JSON_OBJECT && kind != ONCE__JSON_NAME)
        return node;
    if (last == 0)
        doc->nodes[in].child = index;
    else
        doc->nodes[last].next = index;
    p->open[p->depth - 1].last = index;
    return node;
}

static enum expected open_node(struct parser *p, enum once__json_kind kind)
{
    if (p->depth == ONCE__JSON_DEPTH)
        return TOO_DEEP;
    p->at++;
    (void)add_node(p, kind);
    p->open[p->depth].node = (uint32_t)p->doc->n - 1;
    p->open[p->depth].last = 0;
    p->depth++;
    return kind == ONCE__JSON_OBJECT ? FIRST_NAME : FIRST_VALUE;
}

static enum expected close_node(struct parser *p)
{
    p->depth--;
    return AFTER;
}

/* ---- Strings ------------------------------------------------------------ */

/* The rows of RFC 3629, 4. */
size_t once__utf8(const unsigned char *at, const unsigned char *end)
{
    static const struct {
        unsigned char first, last, low, high, size;
    } rows[] = {
        {0x00, 0x7f, 0x00, 0x00, 1}, {0xc2, 0xdf, 0x80, 0xbf, 2},
        {0xe0, 0xe0, 0xa0, 0xbf, 3}, {0xe1, 0xec, 0x80, 0xbf, 3},
        {0xed, 0xed, 0x80, 0x9f, 3}, {0xee, 0xef, 0x80, 0xbf, 3},
        {0xf0, 0xf0, 0x90, 0xbf, 4}, {0xf1, 0xf3, 0x80, 0xbf, 4},
        {0xf4, 0xf4, 0x80, 0x8f, 4},
    };
    size_t i, k;

    for (i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        if (*at < rows[i].first || *at > rows[i].last)
            continue;
        if ((size_t)(end - at) < rows[i].size)
            return 0;
        if (rows[i].size > 1 && (at[1] < rows[i].low || at[1] > rows[i].high))
            return 0;
        for (k = 2; k < rows[i].size; k++)
            if ((at[k] & 0xc0) != 0x80)
                return 0;
        return rows[i].size;
    }
    return 0;
}

static void put_char(struct parser *p, uint32_t ch)
{
    static const unsigned char first[] = {0x00, 0xc0, 0xe0, 0xf0};
    int more = ch < 0x80 ? 0 : ch < 0x800 ? 1 : ch < 0x10000 ? 2 : 3;

    *p->text++ = (char)(first[more] | ch >> (6 * more));
    while (more-- > 0)
        *p->text++ = (char)(0x80 | (ch >> (6 * more) & 0x3f));
}

/* Four digits after `\u`, or -1. */
static int32_t take_hex(struct parser *p)
{
    int32_t out = 0;
    int i;

    for (i = 0; i < 4; i++) {
        int digit = once__hex_digit((char)peek(p));

        if (digit < 0)
            return -1;
        out = out << 4 | digit;
        p->at++;
    }
    return out;
}

/* After `\u`: a character, which may be two escapes. */
static int take_unicode(struct parser *p)
{
    const unsigned char *second;
    int32_t high = take_hex(p), low = -1;

    if (high < 0)
        return 0;
    second = p->at;
    if (high >= 0xd800 && high < 0xdc00 && take(p, '\\') && take(p, 'u'))
        low = take_hex(p);
    if (low >= 0xdc00 && low < 0xe000) {
        put_char(p, 0x10000 + (((uint32_t)high & 0x3ff) << 10) +
                        ((uint32_t)low & 0x3ff));
        return 1;
    }
    p->at = second;
    p->doc->lone |= high >= 0xd800 && high < 0xe000;
    put_char(p, (uint32_t)high);
    return 1;
}

static int take_escape(struct parser *p)
{
    static const char names[] = "\"\\/bfnrt", means[] = "\"\\/\b\f\n\r\t";
    int ch = peek(p);
    const char *name = ch > 0 ? strchr(names, ch) : NULL;

    if (ch != 'u' && name == NULL)
        return 0;
    p->at++;
    if (ch == 'u')
        return take_unicode(p);
    *p->text++ = means[name - names];
    return 1;
}

/* The string at the cursor, as the text of a node. */
static int take_string(struct parser *p, struct once__json_node *node)
{
    size_t size;

    node->text = p->text;
    if (!take(p, '"'))
        return 0;
    while (p->at < p->end) {
        if (take(p, '"')) {
            node->size = (uint32_t)(p->text - node->text);
            return 1;
        }
        if (take(p, '\\')) {
            if (!take_escape(p))
                return 0;
            continue;
        }
        size = *p->at < 0x20 ? 0 : once__utf8(p->at, p->end);
        if (size == 0)
            return 0;
        memcpy(p->text, p->at, size);
        p->text += size;
        p->at += size;
    }
    return 0;
}

/* ---- Numbers and words -------------------------------------------------- */

static size_t take_digits(struct parser *p)
{
    const unsigned char *from = p->at;

    while (p->at < p->end && once__is_digit(*p->at))
        p->at++;
    return (size_t)(p->at - from);
}

static int take_number(struct parser *p)
{
    const unsigned char *from = p->at;
    struct once__json_node *node;

    (void)take(p, '-');
    if (!take(p, '0') && take_digits(p) == 0)
        return 0;
    if (take(p, '.') && take_digits(p) == 0)
        return 0;
    if (take(p, 'e') || take(p, 'E')) {
        if (!take(p, '+'))
            (void)take(p, '-');
        if (take_digits(p) == 0)
            return 0;
    }
    node = add_node(p, ONCE__JSON_NUMBER);
    node->text = p->text;
    node->size = (uint32_t)(p->at - from);
    memcpy(p->text, from, node->size);
    p->text += node->size;
    return 1;
}

static int take_word(struct parser *p)
{
    static const struct {
        const char *word;
        enum once__json_kind kind;
    } words[] = {
        {"null", ONCE__JSON_NULL},
        {"false", ONCE__JSON_FALSE},
        {"true", ONCE__JSON_TRUE},
    };
    size_t i;

    for (i = 0; i < sizeof(words) / sizeof(words[0]); i++) {
        size_t size = strlen(words[i].word);

        if ((size_t)(p->end - p->at) < size ||
            memcmp(p->at, words[i].word, size) != 0)
            continue;
        p->at += size;
        (void)add_node(p, words[i].kind);
        return 1;
    }
    return 0;
}

/* ---- The document ------------------------------------------------------- */

static enum expected take_value(struct parser *p)
{
    int ch = peek(p), whole;

    if (ch == '{')
        return open_node(p, ONCE__JSON_OBJECT);
    if (ch == '[')
        return open_node(p, ONCE__JSON_ARRAY);
    if (ch == '"')
        whole = take_string(p, add_node(p, ONCE__JSON_STRING));
    else if (ch == '-' || once__is_digit(ch))
        whole = take_number(p);
    else
        whole = take_word(p);
    return whole ? AFTER : FLAWED;
}

static enum expected take_name(struct parser *p)
{
    if (peek(p) != '"' || !take_string(p, add_node(p, ONCE__JSON_NAME)))
        return FLAWED;
    skip_white(p);
    return take(p, ':') ? VALUE : FLAWED;
}

static enum expected go_on(struct parser *p)
{
    int in_object;

    if (p->depth == 0)
        return p->at == p->end ? DONE : FLAWED;
    in_object =
        p->doc->nodes[p->open[p->depth - 1].node].kind == ONCE__JSON_OBJECT;
    if (take(p, ','))
        return in_object ? NAME : VALUE;
    return take(p, in_object ? '}' : ']') ? close_node(p) : FLAWED;
}

static enum expected step(struct parser *p, enum expected next)
{
    skip_white(p);
    switch (next) {
    case FIRST_VALUE:
        return take(p, ']') ? close_node(p) : take_value(p);
    case VALUE:
        return take_value(p);
    case FIRST_NAME:
        return take(p, '}') ? close_node(p) : take_name(p);
    case NAME:
        return take_name(p);
    default:
        return go_on(p);
    }
}

static int too_long(once_error *err)
{
    return once__fail(err, ONCE_ELIMIT, "JSON: more than %d bytes",
                      ONCE__JSON_MAX);
}

int once__json_parse(once_bytes text, once__json **out, once_error *err)
{
    struct parser p = {.at = text.data, .depth = 0};
    enum expected next = VALUE;
    size_t nodes = text.size / 2 + ONCE__JSON_DEPTH + 1;

    if (text.size > ONCE__JSON_MAX)
        return too_long(err);
    if (text.size == 0)
        return once__fail(err, ONCE_EINVAL, "JSON: there is none");
    p.end = p.at + text.size;
    p.doc =
        malloc(sizeof(*p.doc) + nodes * sizeof(p.doc->nodes[0]) + text.size);
    if (p.doc == NULL)
        return once__fail(err, ONCE_ENOMEM, "JSON: no memory");
    p.doc->n = 0;
    p.doc->lone = 0;
    p.text = (char *)&p.doc->nodes[nodes];
    while (next < DONE)
        next = step(&p, next);
    if (next == DONE) {
        *out = p.doc;
        return ONCE_OK;
    }
    free(p.doc);
    return next == TOO_DEEP
               ? once__fail(err, ONCE_ELIMIT, "JSON: more than %d levels",
                            ONCE__JSON_DEPTH)
               : once__fail(err, ONCE_EINVAL, "JSON: it does not parse");
}

/* ---- Pieces ------------------------------------------------------------- */

static int make_room(once__json_text *t, size_t size)
{
    size_t max = t->max > 0 ? t->max : 1024;
    char *text;

    while (max < size)
        max *= 2;
    text = realloc(t->text, max);
    if (text == NULL)
        return 0;
    t->text = text;
    t->max = max;
    return 1;
}

void once__json_add(once__json_text *t, const void *data, size_t size)
{
    if (t->rc != ONCE_OK || size == 0)
        return;
    if (size > ONCE__JSON_MAX - t->size)
        t->rc = ONCE_ELIMIT;
    else if (size > t->max - t->size && !make_room(t, t->size + size))
        t->rc = ONCE_ENOMEM;
    if (t->rc != ONCE_OK) {
        free(t->text);
        t->text = NULL;
        return;
    }
    memcpy(t->text + t->size, data, size);
    t->size += size;
}

int once__json_read(const once__json_text *t, once__json **out, once_error *err)
{
    if (t->rc == ONCE_ELIMIT)
        return too_long(err);
    if (t->rc != ONCE_OK)
        return once__fail(err, t->rc, "JSON: no memory");
    return once__json_parse((once_bytes){t->text, t->size}, out, err);
}

void once__json_clear(once__json_text *t)
{
    free(t->text);
    memset(t, 0, sizeof(*t));
}
