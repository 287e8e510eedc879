/* SPDX-License-Identifier: Apache-2.0 */
/*
 * token.c - an exchange or a call that runs, as text: its owner may end it in a
 * process that did not begin it.
 *
 *    name 32 | fingerprint 32 | id 16 | fence 8 | attempt 4, its highest bit
 *    "doubt" | kind 1; in base64
 *
 * The kind is part of it: a request and a call write different records, and
 * nobody else can tell later which of them a name belongs to.
 *
 * It has no seal: the record decides. Who changes name, id or fence is not the
 * record's owner; who changes the rest changes what only he is told.
 */
#include <string.h>

#include <openssl/evp.h>

#include "base/bytes.h"
#include "calls/guard/guard.h"

enum {
    AT_PRINT = ONCE_NAME_SIZE,
    AT_ID = AT_PRINT + ONCE_FINGERPRINT_SIZE,
    AT_FENCE = AT_ID + ONCE_TOKEN_SIZE,
    AT_ATTEMPT = AT_FENCE + 8,
    AT_KIND = AT_ATTEMPT + 4,
    BYTES = AT_KIND + 1,
    TEXT = (BYTES + 2) / 3 * 4
};
#define DOUBT UINT32_C(0x80000000)

_Static_assert(TEXT + 1 == ONCE_EXCHANGE_TOKEN, "the size of a token");

void once__token_write(const struct once__token *t, enum once__token_kind kind,
                       char out[ONCE_EXCHANGE_TOKEN])
{
    uint8_t bytes[BYTES];

    memcpy(bytes, t->name, ONCE_NAME_SIZE);
    memcpy(bytes + AT_PRINT, t->fingerprint, ONCE_FINGERPRINT_SIZE);
    memcpy(bytes + AT_ID, t->id, ONCE_TOKEN_SIZE);
    once__put(bytes + AT_FENCE, t->fence, 8);
    once__put(bytes + AT_ATTEMPT, t->attempt | (t->doubt ? DOUBT : 0), 4);
    bytes[AT_KIND] = (uint8_t)kind;
    (void)EVP_EncodeBlock((unsigned char *)out, bytes, BYTES);
}

int once__token_read(const char *text, enum once__token_kind kind,
                     struct once__token *out)
{
    uint8_t bytes[TEXT / 4 * 3];
    char again[ONCE_EXCHANGE_TOKEN];
    uint32_t attempt;

    if (strnlen(text, ONCE_EXCHANGE_TOKEN) != TEXT ||
        EVP_DecodeBlock(bytes, (const unsigned char *)text, TEXT) !=
            (int)sizeof(bytes))
        return 0;
    memcpy(out->name, bytes, ONCE_NAME_SIZE);
    memcpy(out->fingerprint, bytes + AT_PRINT, ONCE_FINGERPRINT_SIZE);
    memcpy(out->id, bytes + AT_ID, ONCE_TOKEN_SIZE);
    out->fence = once__get(bytes + AT_FENCE, 8);
    attempt = (uint32_t)once__get(bytes + AT_ATTEMPT, 4);
    out->attempt = attempt & ~DOUBT;
    out->doubt = (attempt & DOUBT) != 0;
    /* Base64 has other spellings, and there are other kinds. */
    once__token_write(out, kind, again);
    return memcmp(again, text, TEXT) == 0;
}
