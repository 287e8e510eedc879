/* SPDX-License-Identifier: Apache-2.0 */
/* fuzz_json.c - JSON bodies. Whatever comes, the tree holds together; what is
 * written of it is the same when white space stands around it, and is read back
 * in one way; and a key in it is one that a header could have. The meaning is
 * compared with a second implementation by json_peer.py. */
#include "fuzz.h"

#include "calls/http/http.h"
#include "calls/http/json.h"

struct written {
    uint8_t bytes[24 * ONCE__JSON_MAX];
    size_t size;
};

static void put(void *user, const void *data, size_t size)
{
    struct written *w = user;

    MUST(size > 0 && w->size + size <= sizeof(w->bytes));
    memcpy(w->bytes + w->size, data, size);
    w->size += size;
}

/* Each node but the first is child or value of one in front of it, once. */
static void check_tree(const once__json *doc)
{
    uint8_t *seen = calloc(doc->n, 1);
    size_t i, at, reached = 1;

    MUST(doc->n > 0 && seen != NULL);
    for (i = 0; i < doc->n; i++) {
        if (doc->nodes[i].kind == ONCE__JSON_NAME)
            MUST(i + 1 < doc->n && seen[i + 1]++ == 0 && ++reached);
        for (at = doc->nodes[i].child; at != 0; at = doc->nodes[at].next) {
            MUST(at > i && at < doc->n && seen[at]++ == 0);
            MUST((doc->nodes[at].kind == ONCE__JSON_NAME) ==
                 (doc->nodes[i].kind == ONCE__JSON_OBJECT));
            reached++;
        }
    }
    MUST(seen[0] == 0 && reached == doc->n);
    free(seen);
}

/* ---- Reading back what was written --------------------------------------- */

static uint64_t length_at(struct feed *f)
{
    uint64_t out = 0;
    int i;

    MUST(f->left >= 8);
    for (i = 0; i < 8; i++)
        out |= (uint64_t)feed_byte(f) << 8 * i;
    return out;
}

static once_bytes frame(struct feed *f)
{
    uint64_t size = length_at(f);

    MUST(size <= f->left);
    return feed_bytes(f, size);
}

static void check_digits(struct feed *f)
{
    int negative = feed_byte(f) == '-';
    once_bytes digits = frame(f);
    uint64_t exponent = length_at(f);
    const char *d = digits.data;
    size_t i;

    if (digits.size == 0) {
        MUST(!negative && exponent == 0);
        return;
    }
    MUST(d[0] != '0' && d[digits.size - 1] != '0');
    for (i = 0; i < digits.size; i++)
        MUST(d[i] >= '0' && d[i] <= '9');
}

/* One value; 0: the end of what is open. */
static int check_value(struct feed *f)
{
    once_bytes name, before = {NULL, 0};
    int more, names = 0;

    switch (feed_byte(f)) {
    case 'e':
        return 0;
    case 's':
        (void)frame(f);
        return 1;
    case 'd':
        check_digits(f);
        return 1;
    case 'a':
        while (check_value(f))
            ;
        return 1;
    case 'o':
        while ((more = feed_byte(f)) == 's') {
            name = frame(f);
            MUST(names++ == 0 ||
                 memcmp(before.data, name.data,
                        before.size < name.size ? before.size : name.size) <
                     (before.size < name.size));
            before = name;
            MUST(check_value(f));
        }
        MUST(more == 'e');
        return 1;
    default:
        MUST(memchr("ntf", f->at[-1], 3) != NULL);
        return 1;
    }
}

static void check_written(const struct written *w)
{
    struct feed f = {w->bytes, w->size};

    MUST(check_value(&f) && f.left == 0);
}

/* ---- The target ---------------------------------------------------------- */

static int write_it(once_bytes in, const once_bytes *but, size_t n,
                    struct written *out)
{
    once__json *doc;
    once_error err;
    int rc;

    out->size = 0;
    MUST(once__json_parse(in, &doc, &err) == ONCE_OK);
    rc = once__json_write(doc, but, n, put, out);
    MUST(rc == ONCE_OK || out->size == 0);
    free(doc);
    return rc;
}

static void check_same(once_bytes in, const once_bytes *but, size_t n)
{
    static struct written one, two;
    once_bytes more;
    char *text;
    int rc = write_it(in, but, n, &one);

    if (rc == ONCE_OK)
        check_written(&one);
    if (in.size + 3 > ONCE__JSON_MAX)
        return;
    text = malloc(in.size + 3);
    MUST(text != NULL);
    memcpy(text, " \n", 2);
    memcpy(text + 2, in.data, in.size);
    text[in.size + 2] = '\t';
    more = (once_bytes){text, in.size + 3};
    MUST(write_it(more, but, n, &two) == rc);
    MUST(one.size == two.size && memcmp(one.bytes, two.bytes, one.size) == 0);
    free(text);
}

static void check_key(const once__json *doc, const once_bytes *pointers,
                      size_t n)
{
    char key[ONCE__KEY_MAX], again[ONCE__KEY_MAX],
        quoted[2 * ONCE__KEY_MAX + 2];
    size_t len, len_again, i, size = 0;
    once_error err;

    if (once__json_key(doc, pointers, n, key, &len, &err) != ONCE_OK ||
        len == 0)
        return;
    quoted[size++] = '"';
    for (i = 0; i < len; i++) {
        if (key[i] == '"' || key[i] == '\\')
            quoted[size++] = '\\';
        quoted[size++] = key[i];
    }
    quoted[size++] = '"';
    MUST(once__key_parse((once_bytes){quoted, size}, again, &len_again, &err) ==
         ONCE_OK);
    MUST(len_again == len && memcmp(again, key, len) == 0);
}

/* Two lines of pointers, and the document. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct feed f = {data, size};
    once_bytes pointers[2], in;
    once__json *doc;
    once_error err;
    size_t i, n = 0;

    for (i = 0; i < 2; i++) {
        const uint8_t *end = f.left > 0 ? memchr(f.at, '\n', f.left) : NULL;
        once_bytes line;

        if (end == NULL)
            return 0;
        line = feed_bytes(&f, (size_t)(end - f.at));
        (void)feed_byte(&f);
        if (once__pointer_check(line))
            pointers[n++] = line;
    }
    in = feed_bytes(&f, f.left);
    if (once__json_parse(in, &doc, &err) != ONCE_OK)
        return 0;
    check_tree(doc);
    for (i = 0; i < n; i++)
        check_key(doc, pointers + i, 1);
    if (n == 2)
        check_key(doc, pointers, 2);
    free(doc);
    check_same(in, pointers, n);
    return 0;
}
