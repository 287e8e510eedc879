/* SPDX-License-Identifier: Apache-2.0 */
/*
 * header.c - which headers of a response are stored (docs/http.md, 5), and
 * which belong to Once and pass in neither direction (1).
 *
 * Not stored is what speaks of one connection, of one exchange or of one
 * client's credentials: a replay goes over another connection, at another
 * time, maybe to another device of the same principal. All else is stored, so
 * that a header nobody has thought of is repeated rather than lost.
 * WWW-Authenticate is a challenge, not a credential, and a 401 must have it
 * (RFC 9110, 11.6.1): it is stored.
 *
 * Names are compared without regard to the case of ASCII letters, and without
 * regard to any locale.
 */
#include "http/http.h"

#include <assert.h>
#include <string.h>

#define COUNT(a) (sizeof(a) / sizeof((a)[0]))

enum how { WHOLE, PREFIX, SUFFIX };

/* A row of a list of names, in lower case. */
struct entry {
    enum how how;
    const char *name;
};

/* clang-format off */
static const struct entry never[] = {
    /* One connection: RFC 9110, 7.6.1, and what came before it. */
    { WHOLE,  "connection"          },
    { WHOLE,  "keep-alive"          },
    { WHOLE,  "te"                  },
    { WHOLE,  "trailer"             },
    { WHOLE,  "transfer-encoding"   },
    { WHOLE,  "upgrade"             },
    { WHOLE,  "http2-settings"      },
    { PREFIX, "proxy-"              },
    /* One exchange. */
    { WHOLE,  "date"                }, /* a replay gets a fresh one         */
    { WHOLE,  "server"              },
    { WHOLE,  "content-length"      }, /* the body says it                  */
    { WHOLE,  "traceparent"         },
    { WHOLE,  "tracestate"          },
    { WHOLE,  "server-timing"       },
    { PREFIX, "x-accel-"            }, /* orders to nginx, not to a client  */
    /* Credentials. */
    { WHOLE,  "authorization"       },
    { SUFFIX, "-authorization"      },
    { WHOLE,  "authentication-info" }, /* RFC 7615: may hold the next nonce */
};

static const struct entry cookies[] = {
    { WHOLE, "set-cookie"  },
    { WHOLE, "set-cookie2" },
};

static const struct entry internal[] = {
    { WHOLE, "idempotency-attempt" },
    { WHOLE, "idempotency-outcome" },
    { WHOLE, "idempotency-status"  },
    { WHOLE, "idempotent-replayed" },
};
/* clang-format on */

static int lower(unsigned char ch)
{
    return ch >= 'A' && ch <= 'Z' ? ch - 'A' + 'a' : ch;
}

/* n > 0 bytes of each. */
static int same(const void *a, const void *b, size_t n)
{
    const unsigned char *x = a, *y = b;
    size_t i = 0;

    while (i < n && lower(x[i]) == lower(y[i]))
        i++;
    return i == n;
}

int once__same_name(once_bytes a, once_bytes b)
{
    return a.size == b.size && same(a.data, b.data, a.size);
}

static int fits(once_bytes name, const struct entry *e)
{
    size_t n = strlen(e->name);

    if (name.size < n || (e->how == WHOLE && name.size != n))
        return 0;
    if (e->how == SUFFIX)
        return same((const char *)name.data + name.size - n, e->name, n);
    return same(name.data, e->name, n);
}

static int in_table(once_bytes name, const struct entry *table, size_t n)
{
    size_t i = 0;

    while (i < n && !fits(name, &table[i]))
        i++;
    return i < n;
}

static int is_hidden(once_bytes name, const once__header_policy *policy)
{
    size_t i = 0;

    while (i < policy->n_hide && !once__same_name(name, policy->hide[i]))
        i++;
    return i < policy->n_hide;
}

static int is_separator(char ch)
{
    return ch == ',' || ch == ' ' || ch == '\t';
}

/* RFC 9110, 7.6.1: Connection is a list of tokens. White space cannot be part
 * of one, so it separates as the comma does. */
static int is_in_list(once_bytes name, once_bytes list)
{
    const char *at = list.data;
    size_t left = list.size, n;

    while (left > 0) {
        n = 0;
        while (n < left && !is_separator(at[n]))
            n++;
        if (once__same_name(name, (once_bytes){at, n}))
            return 1;
        n += n < left; /* and the separator */
        at += n;
        left -= n;
    }
    return 0;
}

int once__header_internal(once_bytes name)
{
    return in_table(name, internal, COUNT(internal));
}

int once__header_stored(once_bytes name, const once__header_policy *policy)
{
    assert(policy != NULL);
    return name.size > 0 && !in_table(name, never, COUNT(never)) &&
           !once__header_internal(name) &&
           (policy->store_cookies ||
            !in_table(name, cookies, COUNT(cookies))) &&
           !is_in_list(name, policy->connection) && !is_hidden(name, policy);
}
