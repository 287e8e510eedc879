/* SPDX-License-Identifier: Apache-2.0 */
/*
 * header.c - which headers of a response are stored (docs/http.md, 5), and
 * which belong to Once and pass in neither direction (1).
 *
 * Not stored is what speaks of one connection, of one exchange or of one
 * client's credentials: a replay goes over another connection, at another
 * time, maybe to another device of the same principal. All else is stored, so
 * that an unknown header is repeated rather than lost.
 * WWW-Authenticate is a challenge, not a credential, and a 401 must have it
 * (RFC 9110, 11.6.1): it is stored.
 *
 * Names are compared without regard to the case of ASCII letters, and without
 * regard to any locale.
 */
#include "base/response.h"

#include <assert.h>

#define COUNT(a) (sizeof(a) / sizeof((a)[0]))

enum how { WHOLE, PREFIX, SUFFIX };

/* A row of a list of names, in lower case. */
struct entry {
    enum how how;
    size_t size;
    const char *name;
};

#define NAME(text) sizeof(text) - 1, text

/* clang-format off */
static const struct entry never[] = {
    /* One connection: RFC 9110, 7.6.1, and what came before it. */
    { WHOLE,  NAME("connection")          },
    { WHOLE,  NAME("keep-alive")          },
    { WHOLE,  NAME("te")                  },
    { WHOLE,  NAME("trailer")             },
    { WHOLE,  NAME("transfer-encoding")   },
    { WHOLE,  NAME("upgrade")             },
    { WHOLE,  NAME("http2-settings")      },
    { PREFIX, NAME("proxy-")              },
    /* One exchange. */
    { WHOLE,  NAME("date")                }, /* a replay gets a fresh one */
    { WHOLE,  NAME("server")              },
    { WHOLE,  NAME("content-length")      }, /* the body says it        */
    { WHOLE,  NAME("traceparent")         },
    { WHOLE,  NAME("tracestate")          },
    { WHOLE,  NAME("server-timing")       },
    { PREFIX, NAME("x-accel-")            }, /* orders to nginx       */
    { WHOLE,  NAME("age")                 }, /* RFC 9111: of a cache  */
    { PREFIX, NAME("ratelimit")           }, /* what is left now      */
    { PREFIX, NAME("x-ratelimit-")        },
    { PREFIX, NAME("x-rate-limit-")       },
    { WHOLE,  NAME("dpop-nonce")          }, /* RFC 9449: for the next */
    { WHOLE,  NAME("replay-nonce")        }, /* RFC 8555: good once    */
    /* Credentials. */
    { WHOLE,  NAME("authorization")       },
    { SUFFIX, NAME("-authorization")      },
    { WHOLE,  NAME("authentication-info") }, /* RFC 7615: a next nonce  */
};

/* A session of the client, and what proves that a form belongs to it. By name,
 * since "-token" alone may be a result, such as that of the next page. */
static const struct entry cookies[] = {
    { WHOLE, NAME("set-cookie")                 },
    { WHOLE, NAME("set-cookie2")                },
    { WHOLE, NAME("access-token")               },
    { WHOLE, NAME("x-access-token")             },
    { WHOLE, NAME("refresh-token")              },
    { WHOLE, NAME("x-refresh-token")            },
    { WHOLE, NAME("id-token")                   },
    { WHOLE, NAME("x-id-token")                 },
    { WHOLE, NAME("auth-token")                 },
    { WHOLE, NAME("x-auth-token")               },
    { WHOLE, NAME("x-subject-token")            },
    { WHOLE, NAME("session-token")              },
    { WHOLE, NAME("x-session-token")            },
    { WHOLE, NAME("csrf-token")                 },
    { WHOLE, NAME("x-csrf-token")               },
    { WHOLE, NAME("x-csrftoken")                },
    { WHOLE, NAME("xsrf-token")                 },
    { WHOLE, NAME("x-xsrf-token")               },
    { WHOLE, NAME("requestverificationtoken")   },
    { WHOLE, NAME("x-requestverificationtoken") },
};

static const struct entry internal[] = {
    { WHOLE, NAME("idempotency-attempt")         },
    { WHOLE, NAME("idempotency-outcome")         },
    { WHOLE, NAME("idempotency-probe")           },
    { WHOLE, NAME("idempotency-record")          },
    { WHOLE, NAME("idempotency-recorded-status") },
    { WHOLE, NAME("idempotency-status")          },
    { WHOLE, NAME("idempotent-replayed")         },
};

static const struct entry streams[] = {
    { WHOLE, NAME("text/event-stream")    },
    { WHOLE, NAME("application/x-ndjson") },
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
    const unsigned char *at = name.data;
    size_t n = e->size;

    if (name.size < n || (e->how == WHOLE && name.size != n))
        return 0;
    if (e->how == SUFFIX)
        at += name.size - n;
    return lower(*at) == *e->name && same(at, e->name, n);
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
int once__header_named(once_bytes name, once_bytes list)
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

int once__type_streams(once_bytes type)
{
    const char *at = type.data;
    size_t n = 0;

    while (n < type.size && at[n] != ';' && at[n] != ' ' && at[n] != '\t')
        n++;
    return in_table((once_bytes){at, n}, streams, COUNT(streams));
}

int once__header_stored(once_bytes name, const once__header_policy *policy)
{
    assert(policy != NULL);
    return name.size > 0 && !in_table(name, never, COUNT(never)) &&
           !once__header_internal(name) &&
           (policy->store_cookies ||
            !in_table(name, cookies, COUNT(cookies))) &&
           !is_hidden(name, policy);
}
