/* SPDX-License-Identifier: Apache-2.0 */
/*
 * line.c - a line as text and back.
 *
 *    {"seq":7,"prev":"<hash of line 6>", ... ,"hash":"<64 digits>"}
 *    |-------------- SHA-256 of this -------|
 *
 * The hash stands last and is over the bytes before it, so anybody can count it
 * again with sha256sum. All text is ASCII: what a terminal could take for a
 * command is escaped.
 */
#include "operate/audit/line.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <openssl/evp.h>

#include "base/bytes.h"

#define ZEROS_8 "00000000"
#define ZEROS_32 ZEROS_8 ZEROS_8 ZEROS_8 ZEROS_8
#define HASH_BEGIN ",\"hash\":\""
#define HASH_END "\"}"

enum {
    DIGITS = 2 * ONCE__AUDIT_HASH,
    BEGIN = sizeof(HASH_BEGIN) - 1,
    TAIL = BEGIN + DIGITS + sizeof(HASH_END) - 1
};

const char once__audit_nothing[ONCE__AUDIT_HEX] = ZEROS_32 ZEROS_32;

void once__audit_digest(once_bytes outcome, uint8_t out[ONCE__AUDIT_HASH])
{
    unsigned size = 0;
    int ok = EVP_Digest(outcome.size ? outcome.data : "", outcome.size, out,
                        &size, EVP_sha256(), NULL);

    assert(ok && size == ONCE__AUDIT_HASH); /* it has no input to refuse */
    (void)ok;
}

void once__audit_sum_of(once_bytes bytes, char out[ONCE__AUDIT_HEX])
{
    uint8_t digest[ONCE__AUDIT_HASH];

    once__audit_digest(bytes, digest);
    once__hex(digest, sizeof(digest), out);
}

json_t *once__audit_text(const char *text)
{
    size_t size = strnlen(text, ONCE__AUDIT_TEXT_MAX), i, n = 0, cut;
    char escaped[4 * ONCE__AUDIT_TEXT_MAX + 1];
    json_t *value = NULL;

    /* The limit may fall into a character of up to four bytes. */
    for (cut = 0; value == NULL && cut < 4 && cut <= size; cut++)
        value = json_stringn(text, size - cut);
    if (value != NULL)
        return value;
    for (i = 0; i < size; i++)
        if ((unsigned char)text[i] < 0x80)
            escaped[n++] = text[i];
        else
            n += (size_t)snprintf(escaped + n, 5, "\\x%02x",
                                  (unsigned)(unsigned char)text[i]);
    return json_stringn(escaped, n);
}

void once__audit_now(char out[ONCE__AUDIT_TIME])
{
    struct timespec now;
    struct tm tm;
    size_t n;

    (void)clock_gettime(CLOCK_REALTIME, &now);
    if (gmtime_r(&now.tv_sec, &tm) == NULL)
        memset(&tm, 0, sizeof(tm));
    n = strftime(out, ONCE__AUDIT_TIME, "%Y-%m-%dT%H:%M:%S", &tm);
    snprintf(out + n, ONCE__AUDIT_TIME - n, ".%03ldZ", now.tv_nsec / 1000000);
}

/* Number, hash of the line before and time, and the fields. */
static json_t *with_head(uint64_t seq, const char *prev, json_t *fields)
{
    char now[ONCE__AUDIT_TIME];
    json_t *line;

    once__audit_now(now);
    line = json_pack("{s:I, s:s, s:s}", "seq", (json_int_t)seq, "prev", prev,
                     "time", now);

    if (line != NULL && json_object_update(line, fields) < 0) {
        json_decref(line);
        line = NULL;
    }
    return line;
}

char *once__audit_make(uint64_t seq, const char *prev, json_t *fields,
                       char hash[ONCE__AUDIT_HEX])
{
    json_t *whole = fields != NULL ? with_head(seq, prev, fields) : NULL;
    char *text = whole != NULL
                     ? json_dumps(whole, JSON_COMPACT | JSON_ENSURE_ASCII)
                     : NULL;
    char *line = NULL;

    json_decref(fields);
    json_decref(whole);
    if (text != NULL) {
        size_t size = strlen(text) - 1; /* without the closing brace */

        once__audit_sum_of((once_bytes){text, size}, hash);
        if (asprintf(&line, "%.*s" HASH_BEGIN "%s" HASH_END "\n", (int)size,
                     text, hash) < 0)
            line = NULL;
    }
    free(text);
    return line;
}

/* ---- And back ------------------------------------------------------------ */

static int is_hash(const char *text)
{
    return strlen(text) == DIGITS && strspn(text, "0123456789abcdef") == DIGITS;
}

const char *once__audit_field(const once__audit_line *line, const char *name)
{
    return json_string_value(json_object_get(line->json, name));
}

static const char *flaw_of(const once__audit_line *line)
{
    const char *text = line->text.data;
    const char *end = text + line->text.size - TAIL;
    char sum[ONCE__AUDIT_HEX];

    if (line->json == NULL || line->seq == 0 || line->prev == NULL ||
        !is_hash(line->prev) || line->hash == NULL || !is_hash(line->hash) ||
        memcmp(end, HASH_BEGIN, BEGIN) != 0)
        return "it is no line of an audit log";
    once__audit_sum_of((once_bytes){text, line->text.size - TAIL}, sum);
    if (memcmp(end + BEGIN, sum, DIGITS) != 0 || strcmp(line->hash, sum) != 0)
        return "its hash is not that of its text";
    return NULL;
}

void once__audit_parse(once_bytes text, once__audit_line *line)
{
    line->text = text;
    line->json = NULL;
    line->seq = 0;
    line->hash = line->prev = NULL;
    line->flaw = "it is no line of an audit log";
    if (text.size <= TAIL || text.size > ONCE__AUDIT_LINE_MAX)
        return;
    line->json = json_loadb(text.data, text.size, JSON_REJECT_DUPLICATES, NULL);
    line->seq =
        (uint64_t)json_integer_value(json_object_get(line->json, "seq"));
    line->hash = once__audit_field(line, "hash");
    line->prev = once__audit_field(line, "prev");
    line->flaw = flaw_of(line);
    if (line->flaw == NULL)
        return;
    json_decref(line->json);
    line->json = NULL;
    line->seq = 0;
    line->hash = line->prev = NULL;
}
