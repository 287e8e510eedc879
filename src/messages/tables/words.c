/* SPDX-License-Identifier: Apache-2.0 */
/*
 * words.c - the words with which functions and procedures of a database answer.
 */
#include <string.h>

#include "base/error.h"
#include "messages/tables/backend.h"

static const struct {
    const char *word;
    int answer;
} words[] = {
    {"run", ONCE_OWNER},         {"done", ONCE_REPEATED},
    {"mismatch", ONCE_MISMATCH}, {"outside", ONCE_OUTSIDE},
    {"parked", ONCE_OK},         {"empty", ONCE_EMPTY},
    {"refused", ONCE_REFUSED},   {"early", ONCE_EARLY},
    {"conflict", ONCE_CONFLICT}, {"replay", ONCE_REPLAY},
    {"repeated", ONCE_REPEATED}, {"ok", ONCE_OK},
    {"none", ONCE_ETX},          {"free", ONCE_FREE},
};

int once__answer_of(once_bytes word, const char *where, once_error *err)
{
    size_t i;

    for (i = 0; i < sizeof(words) / sizeof(words[0]); i++)
        if (strlen(words[i].word) == word.size &&
            memcmp(words[i].word, word.data, word.size) == 0)
            return words[i].answer;
    return once__fail(err, ONCE_EVERSION,
                      "%s: an answer that is not understood", where);
}
