/* SPDX-License-Identifier: Apache-2.0 */
/* fuzz_url.c - store URLs and the rules of `faulty:`: opened or refused with a
 * reason. Only what stays in memory is opened: no input names a file. */
#include "fuzz.h"

#include <once/store.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct feed f = {data, size < 600 ? size : 600};
    const char *head = feed_byte(&f) % 2 ? "faulty:" : "";
    const char *tail = feed_byte(&f) % 2 ? "@memory:" : "";
    once_error err = {0, ""};
    once_store *store = NULL;
    char url[700];
    size_t i;
    int rc;

    (void)snprintf(url, sizeof(url), "%s%.*s%s", head, (int)f.left,
                   (const char *)f.at, tail);
    for (i = 0; url[i] != '\0'; i++) /* sqlite: makes files, the other waits */
        if (strncasecmp(url + i, "sql", 3) == 0 ||
            strncmp(url + i, "open_ms", 7) == 0)
            url[i] = 'x';
    rc = once_store_open(url, NULL, &err, &store);
    MUST(rc == ONCE_OK || rc == ONCE_EURL || rc == ONCE_EOPEN ||
         rc == ONCE_EAWAY);
    MUST((rc == ONCE_OK) == (store != NULL));
    MUST(rc == ONCE_OK || (err.code == rc && err.text[0] != '\0'));
    once_store_close(store);
    return 0;
}
