/* SPDX-License-Identifier: Apache-2.0 */
/*
 * key_time.c - keys that carry the time at which they were made (docs/http.md,
 * 1.5), so that one whose record may have been forgotten is recognised.
 *
 *    018f6f0e-5c1a-7b3c-9a52-6f1d2c3b4a59     UUID of version 7: 48 bits of ms
 *    01HXQGWQ0TFCY9MMGZ3MP3PJJS               ULID: the first ten characters
 *
 * It refuses whatever is not exactly one of them: a time that was guessed could
 * let a request execute a second time.
 */
#include "calls/http/http.h"

#include <assert.h>
#include <string.h>

#include "base/error.h"

enum { HOUR_MS = 3600000, SLACK_MS = 900000, BAD = 99 };

int once__key_form(once_bytes word)
{
    if (word.size == 5 && memcmp(word.data, "uuid7", 5) == 0)
        return ONCE__KEY_UUID7;
    if (word.size == 4 && memcmp(word.data, "ulid", 4) == 0)
        return ONCE__KEY_ULID;
    return ONCE__KEY_ANY;
}

/* The value of a digit in an alphabet of upper case; BAD: it is none. */
static unsigned digit(const char *alphabet, char ch)
{
    const char *at;

    if (ch >= 'a' && ch <= 'z')
        ch = (char)(ch - 'a' + 'A');
    at = ch != '\0' ? strchr(alphabet, ch) : NULL;
    return at != NULL ? (unsigned)(at - alphabet) : BAD;
}

static int is_hyphen_at(size_t i)
{
    return i == 8 || i == 13 || i == 18 || i == 23;
}

/* RFC 9562: eight digits, four digits, "7" and three, "8" to "B" and three, and
 * twelve. The first twelve digits are the time. */
static int read_uuid7(const char *s, size_t size, uint64_t *ms)
{
    size_t i;
    unsigned d;

    if (size != 36)
        return 0;
    for (i = 0; i < 36; i++) {
        if (is_hyphen_at(i)) {
            if (s[i] != '-')
                return 0;
            continue;
        }
        d = digit("0123456789ABCDEF", s[i]);
        if (d == BAD || (i == 14 && d != 7) || (i == 19 && d >> 2 != 2))
            return 0;
        if (i < 13)
            *ms = *ms << 4 | d;
    }
    return 1;
}

/* 128 bits in 26 characters of five bits: the first is 7 at most, and the first
 * ten are the time. */
static int read_ulid(const char *s, size_t size, uint64_t *ms)
{
    size_t i;
    unsigned d;

    if (size != 26)
        return 0;
    for (i = 0; i < 26; i++) {
        d = digit("0123456789ABCDEFGHJKMNPQRSTVWXYZ", s[i]);
        if (d == BAD || (i == 0 && d > 7))
            return 0;
        if (i < 10)
            *ms = *ms << 5 | d;
    }
    return 1;
}

int once__key_birth(int form, once_bytes key, uint64_t *born_ms,
                    once_error *err)
{
    *born_ms = 0;
    switch (form) {
    case ONCE__KEY_UUID7:
        if (read_uuid7(key.data, key.size, born_ms))
            return ONCE_OK;
        return once__fail(err, ONCE_EINVAL,
                          "Idempotency-Key: not a UUID of version 7 in its 36 "
                          "characters");
    case ONCE__KEY_ULID:
        if (read_ulid(key.data, key.size, born_ms))
            return ONCE_OK;
        return once__fail(err, ONCE_EINVAL,
                          "Idempotency-Key: not a ULID in its 26 characters");
    default:
        assert(form == ONCE__KEY_ANY);
        return ONCE_OK;
    }
}

int once__policy_key_time(once__policy *policy, int form, uint64_t max_age_ms,
                          once_error *err)
{
    uint64_t kept = policy->keep_ms;

    if (form == ONCE__KEY_ANY)
        return ONCE_OK;
    if (policy->rules.failed_ms != 0 && policy->rules.failed_ms < kept)
        kept = policy->rules.failed_ms;
    if (policy->bypass)
        return once__fail(err, ONCE_EINVAL,
                          "a request that passes without a claim may be a "
                          "repeat of one that is recorded: no bypass");
    if (kept < HOUR_MS)
        return once__fail(err, ONCE_EINVAL,
                          "all outcomes have to be kept for an hour at least, "
                          "failures, too");
    if (max_age_ms > kept - SLACK_MS)
        return once__fail(err, ONCE_EINVAL,
                          "max_age is %llu ms, which is more than anything is "
                          "kept, less 15 minutes: %llu ms",
                          (unsigned long long)max_age_ms,
                          (unsigned long long)(kept - SLACK_MS));
    policy->key_form = form;
    policy->max_age_ms = max_age_ms != 0 ? max_age_ms : kept - SLACK_MS;
    return ONCE_OK;
}
