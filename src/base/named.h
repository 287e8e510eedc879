/* SPDX-License-Identifier: Apache-2.0 */
/*
 * named.h - names of stores: "pay" or "name:pay" is the store that the file
 * /etc/once/stores.d/pay describes, once-stores(5).
 */
#ifndef ONCE_BASE_NAMED_H
#define ONCE_BASE_NAMED_H

#include <once/once.h>

enum {
    ONCE__NAMED_NAME = 32,   /* characters of a name       */
    ONCE__NAMED_FILE = 4096, /* bytes of a file            */
    ONCE__NAMED_TITLE = 64   /* bytes of a title           */
};

/* What a file says. */
struct once__named {
    char url[ONCE__NAMED_FILE + 1];
    char title[ONCE__NAMED_TITLE + 1]; /* "": it has none */
};

/* The name in a text that stands where a URL may stand; NULL if it is a URL.
 * The text has a name if it begins with "name:" or has no colon at all. */
const char *once__named_in(const char *text);

/*
 * The URL that `text` is, or that the file of its name has, in `*memory` then.
 * ONCE_EURL: this cannot be a name, there is no such file, or it is wrong;
 * ONCE_EOPEN: it cannot be read. The text names the file and the line, and shows
 * nothing of a URL.
 */
ONCE_CHECK int once__named_url(const char *text, struct once__named *memory,
                               const char **url, once_error *err);

#endif /* ONCE_BASE_NAMED_H */
