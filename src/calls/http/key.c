/* SPDX-License-Identifier: Apache-2.0 */
/*
 * key.c - reads the value of an Idempotency-Key line (docs/http.md, 1).
 *
 * Two forms are understood, and both give the same bytes for the same text:
 *
 *    "abc";v=1   an RFC 8941 Item that is a String; parameters must parse
 *                and are then ignored
 *    abc         a bare token, as most clients send it
 *
 * It refuses whatever is not exactly one of them. A key that does not parse
 * must never pass for "no key", and a guess at what was meant could give two
 * operations one key. For the same reason it has a list of what programs send
 * where they have no key at all. The functions take_*() follow the algorithms of RFC
 * 8941, 4.2: they move the cursor past what they read and return 1, or
 * return 0.
 */
#include "calls/http/http.h"

#include <assert.h>
#include <string.h>
#include <strings.h>

#include "base/bytes.h"
#include "base/error.h"

struct cursor {
    const unsigned char *at;
    const unsigned char *end;
};

/* A key as it is read: `len` counts on where `text` is full. */
struct text {
    char text[ONCE__KEY_MAX];
    size_t len;
};

static int peek(const struct cursor *c)
{
    return c->at < c->end ? *c->at : -1;
}

static int take(struct cursor *c, int ch)
{
    if (peek(c) != ch)
        return 0;
    c->at++;
    return 1;
}

static int is_lower(int ch)
{
    return ch >= 'a' && ch <= 'z';
}

static int is_alpha(int ch)
{
    return is_lower(ch) || (ch >= 'A' && ch <= 'Z');
}

static int is_one_of(int ch, const char *set)
{
    return ch > 0 && strchr(set, ch) != NULL;
}

static int is_key_char(int ch)
{
    return is_lower(ch) || once__is_digit(ch) || is_one_of(ch, "_-.*");
}

static int is_token_char(int ch)
{
    return is_alpha(ch) || once__is_digit(ch) ||
           is_one_of(ch, "!#$%&'*+-.^_`|~:/");
}

static int is_base64_char(int ch)
{
    return is_alpha(ch) || once__is_digit(ch) || ch == '+' || ch == '/';
}

static int is_bare_char(int ch)
{
    return ch > ' ' && ch < 0x7f && !is_one_of(ch, "\",;\\");
}

static size_t take_run(struct cursor *c, int (*is)(int ch))
{
    const unsigned char *from = c->at;

    while (c->at < c->end && is(*c->at))
        c->at++;
    return (size_t)(c->at - from);
}

static void put(struct text *t, int ch)
{
    if (t->len < sizeof(t->text))
        t->text[t->len] = (char)ch;
    t->len++;
}

/* RFC 8941, 4.2.5. Only `\"` and `\\` are escapes. */
static int take_string(struct cursor *c, struct text *t)
{
    int ch;

    if (!take(c, '"'))
        return 0;
    while (c->at < c->end) {
        ch = *c->at++;
        if (ch == '"')
            return 1;
        if (ch < ' ' || ch > '~')
            return 0;
        if (ch == '\\') {
            ch = peek(c);
            if (ch != '"' && ch != '\\')
                return 0;
            c->at++;
        }
        put(t, ch);
    }
    return 0;
}

/* RFC 8941, 4.2.4: 15 digits, or 12 and a fraction of one to three. */
static int take_number(struct cursor *c)
{
    size_t whole, fraction;

    (void)take(c, '-');
    whole = take_run(c, once__is_digit);
    if (!take(c, '.'))
        return whole >= 1 && whole <= 15;
    fraction = take_run(c, once__is_digit);
    return whole >= 1 && whole <= 12 && fraction >= 1 && fraction <= 3;
}

static int take_token(struct cursor *c)
{
    if (!is_alpha(peek(c)) && peek(c) != '*')
        return 0;
    (void)take_run(c, is_token_char);
    return 1;
}

/* RFC 8941, 4.2.7. Padding may be absent ("parsers SHOULD NOT fail"), but
 * where there is some it must be right. */
static int take_binary(struct cursor *c)
{
    size_t digits, padding = 0;

    if (!take(c, ':'))
        return 0;
    digits = take_run(c, is_base64_char);
    while (padding < 2 && take(c, '='))
        padding++;
    if (digits % 4 == 1 || (padding > 0 && (digits + padding) % 4 != 0))
        return 0;
    return take(c, ':');
}

static int take_boolean(struct cursor *c)
{
    return take(c, '?') && (take(c, '0') || take(c, '1'));
}

static int take_bare_item(struct cursor *c)
{
    struct text ignored = {.len = 0};
    int ch = peek(c);

    if (ch == '"')
        return take_string(c, &ignored);
    if (ch == ':')
        return take_binary(c);
    if (ch == '?')
        return take_boolean(c);
    if (ch == '-' || once__is_digit(ch))
        return take_number(c);
    return take_token(c);
}

/* RFC 8941, 4.2.3.2: no space before `;`, any number after it. */
static int take_parameters(struct cursor *c)
{
    while (take(c, ';')) {
        while (take(c, ' '))
            ;
        if (!is_lower(peek(c)) && peek(c) != '*')
            return 0;
        (void)take_run(c, is_key_char);
        if (take(c, '=') && !take_bare_item(c))
            return 0;
    }
    return 1;
}

static int is_white(int ch)
{
    return ch == ' ' || ch == '\t';
}

/* HTTP allows tabs around a field value, RFC 8941 only spaces: it is the HTTP
 * parser that should have dropped both. */
static struct cursor trimmed(once_bytes value)
{
    struct cursor c = {NULL, NULL};

    if (value.size == 0)
        return c;
    c.at = value.data;
    c.end = c.at + value.size;
    (void)take_run(&c, is_white);
    while (c.end > c.at && is_white(c.end[-1]))
        c.end--;
    return c;
}

static int is_blank(const struct text *t)
{
    size_t i;

    for (i = 0; i < t->len && i < sizeof(t->text); i++)
        if (t->text[i] != ' ')
            return 0;
    return 1;
}

static int read_string(struct cursor *c, struct text *t, once_error *err)
{
    if (!take_string(c, t) || !take_parameters(c))
        return once__fail(err, ONCE_EINVAL,
                          "Idempotency-Key: not an RFC 8941 String");
    (void)take_run(c, is_white);
    if (peek(c) == ',')
        return once__fail(err, ONCE_EINVAL,
                          "Idempotency-Key: a list, where one key is needed");
    if (c->at < c->end)
        return once__fail(err, ONCE_EINVAL,
                          "Idempotency-Key: something follows the String");
    return ONCE_OK;
}

static int read_bare(struct cursor *c, struct text *t, once_error *err)
{
    while (is_bare_char(peek(c)))
        put(t, *c->at++);
    if (peek(c) == ',')
        return once__fail(err, ONCE_EINVAL,
                          "Idempotency-Key: a list, where one key is needed");
    if (c->at < c->end)
        return once__fail(err, ONCE_EINVAL,
                          "Idempotency-Key: a character that only a quoted "
                          "String may hold, or none may");
    return ONCE_OK;
}

int once__key_parse(once_bytes value, char *out, size_t *len, once_error *err)
{
    struct cursor c = trimmed(value);
    struct text t = {.len = 0};
    int rc;

    rc = peek(&c) == '"' ? read_string(&c, &t, err) : read_bare(&c, &t, err);
    if (rc < 0)
        goto out;
    if (t.len > ONCE__KEY_MAX) {
        rc = once__fail(err, ONCE_ELIMIT,
                        "Idempotency-Key: more than %d characters",
                        ONCE__KEY_MAX);
        goto out;
    }
    if (is_blank(&t)) {
        rc = once__fail(err, ONCE_EINVAL, "Idempotency-Key: empty or blank");
        goto out;
    }
    assert(t.len > 0);
    memcpy(out, t.text, t.len);
    *len = t.len;
out:
    return rc;
}

int once__key_refuse_placeholder(once_bytes key, once_error *err)
{
    /* How languages print "no value", and the UUID that nobody has drawn. */
    static const char *const words[] = {
        "undefined",
        "null",
        "(null)",
        "none",
        "nil",
        "<nil>",
        "nan",
        "[object Object]",
        "00000000-0000-0000-0000-000000000000",
        "00000000000000000000000000000000",
    };
    size_t i;

    for (i = 0; i < sizeof(words) / sizeof(words[0]); i++)
        if (key.size == strlen(words[i]) &&
            strncasecmp(key.data, words[i], key.size) == 0)
            return once__fail(err, ONCE_EINVAL,
                              "Idempotency-Key: \"%s\" is what a program "
                              "sends where it has no key. Send a new random "
                              "key for each operation, such as a UUID.",
                              words[i]);
    return ONCE_OK;
}
