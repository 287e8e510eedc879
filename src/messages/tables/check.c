/* SPDX-License-Identifier: Apache-2.0 */
/*
 * check.c - what a caller may pass, checked before a database is asked. Texts
 * name the field and its limit, and never hold a value.
 *
 * OpenSSL's older functions make the fingerprint: those that replace them look
 * the algorithm up and allocate memory at each call, which takes as long as the
 * sum of a short body.
 */
#define OPENSSL_API_COMPAT 0x10100000L

#include "messages/tables/backend.h"

#include <openssl/sha.h>
#include <string.h>

#include "base/error.h"
#include "base/sqltext.h"

const char *once__text_of(const char *text)
{
    return text == NULL ? "" : text;
}

void once__copy_visible(char out[ONCE_ID_SIZE], const char *text)
{
    size_t i;

    for (i = 0; i < ONCE_ID_MAX && text[i] != '\0'; i++)
        out[i] = (char)(text[i] >= ' ' && text[i] <= '~' ? text[i] : '?');
    out[i] = '\0';
}

int once__check_schema(const char *schema, once_error *err)
{
    if (once__sql_schema_ok(schema))
        return ONCE_OK;
    return once__fail(err, ONCE_EINVAL,
                      "schema: it is not of the letters a-z, digits and _, or "
                      "longer than 63");
}

int once__check_keep(uint64_t keep_ms, once_error *err)
{
    if (keep_ms >= ONCE_KEEP_MIN_MS && keep_ms <= ONCE_KEEP_MAX_MS)
        return ONCE_OK;
    return once__fail(err, ONCE_EINVAL, "keep_ms: it is not in %llu..%llu",
                      (unsigned long long)ONCE_KEEP_MIN_MS,
                      (unsigned long long)ONCE_KEEP_MAX_MS);
}

int once__check_state(int state, uint64_t wait_ms, once_error *err)
{
    if (state != ONCE_PARKED_WAITING && state != ONCE_PARKED_DEAD &&
        state != ONCE_PARKED_INDETERMINATE)
        return once__fail(err, ONCE_EINVAL,
                          "state: it is not an enum once_parked");
    if (wait_ms > ONCE_KEEP_MAX_MS)
        return once__fail(err, ONCE_EINVAL, "wait_ms: over %llu",
                          (unsigned long long)ONCE_KEEP_MAX_MS);
    return ONCE_OK;
}

static int visible(const char *text, size_t size, char least)
{
    size_t i;

    for (i = 0; i < size; i++)
        if (text[i] < least || text[i] > '~')
            return 0;
    return 1;
}

int once__check_name(const char *field, const char *text, once_error *err)
{
    size_t size = text == NULL ? 0 : strlen(text);

    if (size > ONCE_ID_MAX)
        return once__fail(err, ONCE_ELIMIT, "%s: over %zu characters", field,
                          ONCE_ID_MAX);
    if (size > 0 && visible(text, size, '!'))
        return ONCE_OK;
    return once__fail(err, ONCE_EINVAL,
                      "%s: it is not 1 to %zu characters of visible ASCII",
                      field, ONCE_ID_MAX);
}

/* Characters of a header's name: RFC 9110, section 5.6.2. */
static int is_token(char c)
{
    return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') ||
           (c >= 'A' && c <= 'Z') ||
           (c != '\0' && strchr("!#$%&'*+-.^_`|~", c) != NULL);
}

/* How many bytes the UTF-8 character at `at` has; 0: it is none, or it is a
 * control character. RFC 3629, section 4. */
static size_t character(const uint8_t *at)
{
    size_t n = at[0] < 0x80 ? 1 : at[0] < 0xe0 ? 2 : at[0] < 0xf0 ? 3 : 4, i;

    if (n == 1)
        return at[0] == '\t' || (at[0] >= ' ' && at[0] != 0x7f);
    if (at[0] < 0xc2 || at[0] > 0xf4)
        return 0;
    for (i = 1; i < n; i++)
        if ((at[i] & 0xc0) != 0x80)
            return 0;
    return (at[0] == 0xe0 && at[1] < 0xa0) || (at[0] == 0xed && at[1] > 0x9f) ||
                   (at[0] == 0xf0 && at[1] < 0x90) ||
                   (at[0] == 0xf4 && at[1] > 0x8f)
               ? 0
               : n;
}

static const char *header_end(const char *at)
{
    const char *name = at;

    while (is_token(*at))
        at++;
    if (at == name || (size_t)(at - name) > ONCE_ID_MAX || at[0] != ':' ||
        at[1] != ' ')
        return NULL;
    while (*at != '\n') {
        size_t n = character((const uint8_t *)at);

        if (n == 0)
            return NULL;
        at += n;
    }
    return at + 1;
}

static int check_headers(const char *headers, once_error *err)
{
    const char *at = headers;

    if (strlen(headers) > ONCE_HEADERS_MAX)
        return once__fail(err, ONCE_ELIMIT, "headers: over %zu bytes",
                          ONCE_HEADERS_MAX);
    while (at != NULL && *at != '\0')
        at = header_end(at);
    return at != NULL
               ? ONCE_OK
               : once__fail(err, ONCE_EINVAL,
                            "headers: a line is not \"Name: value\\n\" in "
                            "UTF-8");
}

int once__check_content(const once_message *m, once_error *err)
{
    const char *type = once__text_of(m->type);
    int rc = m->key == NULL ? ONCE_OK : once__check_name("key", m->key, err);

    if (rc != ONCE_OK)
        return rc;
    if (strlen(type) > ONCE_ID_MAX || !visible(type, strlen(type), ' '))
        return once__fail(err, ONCE_EINVAL,
                          "type: it is not up to %zu characters of ASCII",
                          ONCE_ID_MAX);
    if (m->body.size > ONCE_BODY_MAX)
        return once__fail(err, ONCE_ELIMIT, "body: over %zu bytes",
                          ONCE_BODY_MAX);
    return check_headers(once__text_of(m->headers), err);
}

static int hex_digit(char c)
{
    return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f');
}

/* xxxxxxxx-xxxx-7xxx-Vxxx-xxxxxxxxxxxx, V being 8, 9, a or b. */
uint64_t once__id_ms(const char *id)
{
    static const char shape[] = "hhhhhhhh-hhhh-7hhh-vhhh-hhhhhhhhhhhh";
    uint64_t ms = 0;
    size_t i;

    if (strlen(id) != sizeof(shape) - 1)
        return 0;
    for (i = 0; i < sizeof(shape) - 1; i++) {
        if (shape[i] == 'h' || shape[i] == 'v') {
            if (!hex_digit(id[i]) ||
                (shape[i] == 'v' && strchr("89ab", id[i]) == NULL))
                return 0;
        } else if (id[i] != shape[i]) {
            return 0;
        }
        if (i < 13 && shape[i] == 'h')
            ms = ms << 4 |
                 (uint64_t)(id[i] <= '9' ? id[i] - '0' : id[i] - 'a' + 10);
    }
    return ms;
}

int once__fingerprint_bytes(once_bytes body, uint8_t out[ONCE_FINGERPRINT_SIZE],
                            once_error *err)
{
    SHA256_CTX md;

    if (SHA256_Init(&md) == 1 &&
        (body.size == 0 || SHA256_Update(&md, body.data, body.size) == 1) &&
        SHA256_Final(out, &md) == 1)
        return ONCE_OK;
    return once__fail(err, ONCE_ENOMEM, "body: SHA-256 has failed");
}
