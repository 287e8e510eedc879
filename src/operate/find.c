/* SPDX-License-Identifier: Apache-2.0 */
/*
 * find.c - the record whose name begins with these digits.
 *
 * A log has the first 16 of the 64 digits, and no operator types more. Refuses
 * to choose between two.
 */
#include "operate/operate.h"

#include <string.h>

#include "base/bytes.h"
#include "base/error.h"

int once__prefix_read(const char *text, size_t least, once__prefix *out,
                      once_error *err)
{
    once__prefix p = {{0}, strlen(text)};
    size_t i;

    if (least == ONCE__DIGITS && p.digits != least)
        return once__fail(err, ONCE_EINVAL,
                          "a whole name has %d hex digits, not %zu",
                          ONCE__DIGITS, p.digits);
    if (p.digits < least || p.digits > ONCE__DIGITS)
        return once__fail(err, ONCE_EINVAL,
                          "a name has %zu to %d hex digits, not %zu", least,
                          ONCE__DIGITS, p.digits);
    for (i = 0; i < p.digits; i++) {
        int d = once__hex_digit(text[i]);

        if (d < 0)
            return once__fail(err, ONCE_EINVAL,
                              "a name has only hex digits, and character %zu "
                              "is none",
                              i + 1);
        p.bytes[i / 2] |= (uint8_t)(i % 2 ? d : d << 4);
    }
    *out = p;
    return ONCE_OK;
}

struct search {
    const once__prefix *prefix;
    uint8_t (*found)[ONCE_NAME_SIZE];
    int n;
};

static int begins_so(const uint8_t name[ONCE_NAME_SIZE],
                     const once__prefix *prefix)
{
    size_t whole = prefix->digits / 2;

    if (memcmp(name, prefix->bytes, whole) != 0)
        return 0;
    return prefix->digits % 2 == 0 ||
           (name[whole] & 0xf0) == prefix->bytes[whole];
}

static int see(void *user, const uint8_t name[ONCE_NAME_SIZE],
               const once_record *r)
{
    struct search *s = user;

    (void)r;
    if (s->n == 2 || !begins_so(name, s->prefix))
        return 1;
    memcpy(s->found[s->n++], name, ONCE_NAME_SIZE);
    return 0;
}

/* The last name before all that begin with the prefix: NULL if there is none,
 * since the walk then starts at the beginning. */
static const once_position *before(const once__prefix *prefix,
                                   once_position *out)
{
    size_t i = ONCE_NAME_SIZE;

    out->ms = 0;
    memcpy(out->name, prefix->bytes, ONCE_NAME_SIZE);
    while (i-- > 0)
        if (out->name[i]-- != 0)
            return out;
    return NULL;
}

int once__find(once_engine *e, const once__prefix *prefix,
               uint8_t found[2][ONCE_NAME_SIZE], once_error *err)
{
    struct search s = {prefix, found, 0};
    once_position after;
    int rc;

    if (prefix->digits == ONCE__DIGITS) {
        memcpy(found[0], prefix->bytes, ONCE_NAME_SIZE);
        return 1;
    }
    rc = once_scan(e, ONCE_SCAN_ALL, before(prefix, &after), 2, see, &s, err);
    return rc < 0 ? rc : s.n;
}

int once__look(once_engine *e, const uint8_t name[ONCE_NAME_SIZE], once_op *op,
               once_error *err)
{
    memset(op, 0, sizeof(*op));
    op->verb = ONCE_OP_SHOW;
    op->store_ms = ONCE__OPERATE_MS;
    memcpy(op->name, name, ONCE_NAME_SIZE);
    return once_apply(e, op, err);
}
