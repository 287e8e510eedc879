/* SPDX-License-Identifier: Apache-2.0 */
/*
 * json.h - what a JSON body says: its key, and what is compared of it
 * (docs/http.md, 1). Values in, values out.
 *
 *    json.c       text to a tree, without recursion
 *    pointer.c    what a JSON pointer (RFC 6901) names: keys, and what is left
 *                 out of a comparison
 *    canonical.c  the same bytes for the same JSON
 *
 * No library reads JSON here, since those that we know keep one of two members
 * of the same name, make doubles of numbers, or call themselves for each level.
 */
#ifndef ONCE_CALLS_HTTP_JSON_H
#define ONCE_CALLS_HTTP_JSON_H

#include <once/once.h>

enum {
    ONCE__JSON_MAX = 65536, /* bytes                                       */
    ONCE__JSON_DEPTH = 64,  /* arrays and objects within each other        */
    ONCE__POINTER_MAX = 255 /* bytes of a pointer                          */
};

/* ---- The tree, json.c --------------------------------------------------- */

enum once__json_kind {
    ONCE__JSON_NULL,
    ONCE__JSON_FALSE,
    ONCE__JSON_TRUE,
    ONCE__JSON_NUMBER, /* `text`: as it was written                         */
    ONCE__JSON_STRING, /* `text`: unescaped                                 */
    ONCE__JSON_NAME,   /* the same; its value is the node after it          */
    ONCE__JSON_ARRAY,  /* `child`: its first value                          */
    ONCE__JSON_OBJECT  /* `child`: its first name                           */
};

/* 0 as an index is "none": node 0 is the whole document. */
struct once__json_node {
    const char *text;
    uint32_t size;
    uint32_t child, next; /* `next`: value of an array, name of an object   */
    uint8_t kind;         /* enum once__json_kind                           */
    uint8_t left_out;     /* canonical.c                                    */
};

typedef struct once__json {
    size_t n;
    int lone; /* 1: half a surrogate pair stands in a string. Its bytes are no
               * UTF-8, so they are equal to no text.                       */
    struct once__json_node nodes[];
} once__json;

/*
 * Reads a document of RFC 8259 in UTF-8; none of `text` is needed later. End
 * it with free(). ONCE_EINVAL: it is none. ONCE_ELIMIT: over ONCE__JSON_MAX or
 * ONCE__JSON_DEPTH. A name may stand in an object twice: the caller that
 * looks at the members decides.
 */
ONCE_CHECK int once__json_parse(once_bytes text, once__json **out,
                                once_error *err);

/* A body that is collected piece by piece. Begin with zeros. */
typedef struct once__json_text {
    char *text;
    size_t size, max;
    int rc; /* anything but ONCE_OK: it cannot be kept */
} once__json_text;

void once__json_add(once__json_text *t, const void *data, size_t size);
/* As once__json_parse(), of all that was added. */
ONCE_CHECK int once__json_read(const once__json_text *t, once__json **out,
                               once_error *err);
void once__json_clear(once__json_text *t);

/* Bytes of the UTF-8 character at `at`, which is before `end`; 0: it is none. */
size_t once__utf8(const unsigned char *at, const unsigned char *end);

/* ---- Pointers, pointer.c ------------------------------------------------ */

/* 1: it is a JSON pointer in UTF-8, and no longer than ONCE__POINTER_MAX. */
ONCE_CHECK int once__pointer_check(once_bytes pointer);

enum once__pointed {
    ONCE__POINTED_NONE,  /* it is missing, or null stands on the way        */
    ONCE__POINTED_VALUE, /* `*out` is the value                             */
    ONCE__POINTED_TWICE, /* a name on the way stands there twice            */
    ONCE__POINTED_WRONG  /* a value on the way cannot have such a member    */
};

/* `pointer` is checked. `*parent` is the node in which the value is a child:
 * in an object its name. */
int once__pointer_follow(const once__json *doc, once_bytes pointer,
                         uint32_t *parent, uint32_t *out);

/*
 * The key that one or two checked pointers name: visible ASCII, or an integer
 * as it was written. Of two, both are framed as `LEN:TEXT,`. ONCE_OK and
 * `*len`: at most ONCE__KEY_MAX bytes are in `out`; 0: there is no key. Any
 * other return: something is there and is no key.
 */
ONCE_CHECK int once__json_key(const once__json *doc, const once_bytes *pointers,
                              size_t n, char *out, size_t *len,
                              once_error *err);

/* ---- The same bytes for the same JSON, canonical.c ---------------------- */

typedef void once__json_put(void *user, const void *data, size_t size);

/*
 * Gives the document to `put` in a form in which two are the same if and only
 * if they mean the same without what `but` names: members in any order, strings
 * in any spelling, numbers by their exact value. The tree is of no use later.
 * Anything but ONCE_OK: `put` was not called. ONCE_EINVAL: a name twice in an
 * object, or half a surrogate pair. ONCE_ELIMIT: an exponent of more than 18
 * digits. ONCE_ENOMEM.
 */
ONCE_CHECK int once__json_write(once__json *doc, const once_bytes *but,
                                size_t n_but, once__json_put *put, void *user);

#endif /* ONCE_CALLS_HTTP_JSON_H */
