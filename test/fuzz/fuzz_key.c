/* SPDX-License-Identifier: Apache-2.0 */
/* fuzz_key.c - the grammar of Idempotency-Key: whatever is taken is 1 to 255
 * visible characters, and every other way to write it gives the same. */
#include "fuzz.h"

#include "calls/http/http.h"

static int is_token(once_bytes key)
{
    const char *p = key.data;
    size_t i;

    for (i = 0; i < key.size; i++)
        if (p[i] <= ' ' || strchr("\",;\\", p[i]) != NULL)
            return 0;
    return 1;
}

static void must_give(const char *text, size_t size, once_bytes key)
{
    char *cut = exact(text, size), out[ONCE__KEY_MAX];
    size_t len = 0;

    MUST(once__key_parse((once_bytes){cut, size}, out, &len, NULL) == ONCE_OK);
    MUST(same((once_bytes){out, len}, key));
    free(cut);
}

/* As a String, in white space, with a parameter; and bare, where it may be. */
static void other_ways(once_bytes key)
{
    char text[2 * ONCE__KEY_MAX + 16];
    const char *p = key.data;
    size_t i, n = 0;

    text[n++] = ' ';
    text[n++] = '"';
    for (i = 0; i < key.size; i++) {
        if (p[i] == '"' || p[i] == '\\')
            text[n++] = '\\';
        text[n++] = p[i];
    }
    text[n++] = '"';
    must_give(text, n, key);
    memcpy(text + n, ";a=1", 4);
    must_give(text, n + 4, key);
    if (is_token(key))
        must_give(key.data, key.size, key);
}

/* What was taken stands in the value: bare, or behind a quote and escaped. */
static void stands_in(once_bytes value, once_bytes key)
{
    const char *v = value.data, *k = key.data;
    size_t i = 0, n;
    int quoted;

    while (i < value.size && (v[i] == ' ' || v[i] == '\t'))
        i++;
    quoted = i < value.size && v[i] == '"';
    i += quoted ? 1 : 0;
    for (n = 0; n < key.size; n++, i++) {
        if (quoted && i < value.size && v[i] == '\\')
            i++;
        MUST(i < value.size && v[i] == k[n]);
    }
    if (quoted)
        MUST(i < value.size && v[i] == '"');
    else
        for (; i < value.size; i++)
            MUST(v[i] == ' ' || v[i] == '\t');
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char out[ONCE__KEY_MAX];
    once_error err = {0, ""};
    once_bytes key;
    size_t len = 0, i;
    int rc = once__key_parse((once_bytes){data, size}, out, &len, &err);

    MUST(rc == ONCE_OK || rc == ONCE_EINVAL || rc == ONCE_ELIMIT);
    if (rc != ONCE_OK) {
        MUST(err.code == rc && err.text[0] != '\0');
        return 0;
    }
    MUST(len >= 1 && len <= ONCE__KEY_MAX);
    for (i = 0; i < len; i++)
        MUST(out[i] >= ' ' && out[i] <= '~');
    key = (once_bytes){out, len};
    stands_in((once_bytes){data, size}, key);
    other_ways(key);
    return 0;
}
