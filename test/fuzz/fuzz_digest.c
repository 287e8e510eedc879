/* SPDX-License-Identifier: Apache-2.0 */
/* fuzz_digest.c - the framing of stored name and fingerprint: compared with a
 * second implementation, however the body is cut; and what is cut in another
 * place between two parts is another request. A multipart body is the same with
 * another boundary, and with nothing else. */
#include "fuzz.h"

#include <openssl/sha.h>
#include <strings.h>

#include "calls/http/http.h"

enum { PARTS = 5 };

struct buffer {
    uint8_t bytes[1 << 16];
    size_t size;
};

static void put(struct buffer *b, const void *data, size_t size)
{
    MUST(b->size + size <= sizeof(b->bytes));
    if (size > 0)
        memcpy(b->bytes + b->size, data, size);
    b->size += size;
}

static void put_length(struct buffer *b, uint64_t length)
{
    uint8_t bytes[8];
    size_t i;

    for (i = 0; i < 8; i++)
        bytes[i] = (uint8_t)(length >> 8 * i);
    put(b, bytes, 8);
}

static void put_frame(struct buffer *b, once_bytes part)
{
    put_length(b, part.size);
    put(b, part.data, part.size);
}

static void begin(struct buffer *b, const char *tag)
{
    b->size = 0;
    put_frame(b, (once_bytes){tag, strlen(tag)});
}

static void name_of(const once_bytes *p, uint8_t out[ONCE_NAME_SIZE])
{
    const once__request_head head = {
        .method = p[2], .path = p[3], .of_path = 1};

    once__name(p[0], p[1], &head, p[4], out);
}

static void check_name(struct buffer *b, const once_bytes *parts)
{
    uint8_t ours[ONCE_NAME_SIZE], theirs[SHA256_DIGEST_LENGTH];
    once_bytes moved[PARTS];
    size_t i;

    begin(b, "once name 1");
    for (i = 0; i < PARTS; i++)
        put_frame(b, parts[i]);
    SHA256(b->bytes, b->size, theirs);
    name_of(parts, ours);
    MUST(memcmp(ours, theirs, sizeof(ours)) == 0);
    for (i = 0; i + 1 < PARTS; i++) {
        if (parts[i].size == 0)
            continue;
        memcpy(moved, parts, sizeof(moved));
        moved[i].size--;
        moved[i + 1].data = (const uint8_t *)parts[i].data + moved[i].size;
        moved[i + 1].size++; /* parts lie side by side */
        name_of(moved, theirs);
        MUST(memcmp(ours, theirs, sizeof(ours)) != 0);
    }
}

static void print_of(unsigned counts, const once__request_head *head,
                     once_bytes body, unsigned step,
                     uint8_t out[ONCE_FINGERPRINT_SIZE])
{
    once__fingerprint *f = NULL;
    size_t at, n;

    MUST(once__fingerprint_new(counts, head, &f) == ONCE_OK);
    for (at = 0; at < body.size; at += n) {
        n = 1 + step % 97;
        step = step * 5 + 3;
        n = n < body.size - at ? n : body.size - at;
        once__fingerprint_body(f, (const uint8_t *)body.data + at, n);
        once__fingerprint_body(f, NULL, 0);
    }
    once__fingerprint_end(f, out);
    once__fingerprint_free(f);
}

/* The time in a gzip body's head counts as zero. */
static void put_zipped(struct buffer *b, once_bytes encoding, once_bytes body)
{
    const char *name = encoding.data;
    size_t from = b->size, i;

    put(b, body.data, body.size);
    if ((encoding.size == 4 && strncasecmp(name, "gzip", 4) == 0) ||
        (encoding.size == 6 && strncasecmp(name, "x-gzip", 6) == 0))
        if (body.size >= 3 && memcmp(body.data, "\x1f\x8b\x08", 3) == 0)
            for (i = 4; i < 8 && i < body.size; i++)
                b->bytes[from + i] = 0;
}

static void check_fingerprint(struct buffer *b, const once__request_head *head,
                              once_bytes body, unsigned step)
{
    uint8_t ours[ONCE_FINGERPRINT_SIZE], theirs[SHA256_DIGEST_LENGTH];

    begin(b, "once fingerprint 1");
    put_frame(b, head->query);
    put_frame(b, head->type);
    put_frame(b, head->encoding);
    put_zipped(b, head->encoding, body);
    put_length(b, body.size);
    SHA256(b->bytes, b->size, theirs);
    print_of(ONCE__COUNT_ALL, head, body, step, ours);
    MUST(memcmp(ours, theirs, sizeof(ours)) == 0);
}

/* A key of the realm: what the name lacks stands in front of the fingerprint. */
static void check_realm(struct buffer *b, const once_bytes *p, once_bytes body)
{
    const once__request_head head = {
        .query = p[0], .method = p[2], .path = p[3]};
    uint8_t ours[ONCE_FINGERPRINT_SIZE], theirs[SHA256_DIGEST_LENGTH];

    begin(b, "once name 2");
    put_frame(b, p[0]);
    put_frame(b, p[1]);
    put_frame(b, p[4]);
    SHA256(b->bytes, b->size, theirs);
    once__name(p[0], p[1], &head, p[4], ours);
    MUST(memcmp(ours, theirs, sizeof(ours)) == 0);
    begin(b, "once fingerprint target 1");
    put_frame(b, p[2]);
    put_frame(b, p[3]);
    put_frame(b, (once_bytes){"once fingerprint 1", 18});
    put_frame(b, p[0]);
    put_frame(b, (once_bytes){NULL, 0});
    put_frame(b, (once_bytes){NULL, 0});
    put(b, body.data, body.size);
    put_length(b, body.size);
    SHA256(b->bytes, b->size, theirs);
    print_of(ONCE__COUNT_ALL, &head, body, 1, ours);
    MUST(memcmp(ours, theirs, sizeof(ours)) == 0);
}

/* ---- Multipart ----------------------------------------------------------- */

enum { PIECES_MAX = 512 };

struct pieces {
    once_bytes at[PIECES_MAX];
    size_t n;
    int at_once; /* the body begins with a delimiter */
};

/* Splits `body`, in front of which two bytes of memory hold CR and LF. */
static int split(once_bytes body, const char *delimiter, struct pieces *out)
{
    const char *from = body.data, *end = from + body.size, *look = from - 2,
               *hit;
    size_t size = strlen(delimiter);

    memset(out, 0, sizeof(*out));
    while ((hit = memmem(look, (size_t)(end - look), delimiter, size)) !=
           NULL) {
        if (out->n + 1 == PIECES_MAX)
            return 0;
        out->at_once |= hit < (const char *)body.data;
        out->at[out->n++] =
            (once_bytes){from, hit > from ? (size_t)(hit - from) : 0};
        from = look = hit + size;
    }
    out->at[out->n++] = (once_bytes){from, (size_t)(end - from)};
    return 1;
}

static int same_pieces(const struct pieces *a, const struct pieces *b)
{
    size_t i;

    if (a->n != b->n || a->at_once != b->at_once)
        return 0;
    for (i = 0; i < a->n; i++)
        if (!same(a->at[i], b->at[i]))
            return 0;
    return 1;
}

static void put_pieces(struct buffer *b, const struct pieces *p,
                       const char *boundary)
{
    size_t i;

    for (i = 0; i < p->n; i++) {
        put(b, p->at[i].data, p->at[i].size);
        put_length(b, p->at[i].size);
    }
    if (p->n == 1) {
        put(b, boundary, strlen(boundary));
        put_length(b, strlen(boundary));
    }
    put_length(b, (uint64_t)p->at_once);
    put_length(b, p->n - 1);
}

/* A boundary of a few letters, so that bodies come near it. */
static void make_boundary(struct feed *f, char out[ONCE__BOUNDARY_MAX + 1])
{
    static const char letters[] = "-a-B.9'/";
    size_t i, size = 1 + feed_byte(f) % ONCE__BOUNDARY_MAX;

    for (i = 0; i < size; i++)
        out[i] = letters[feed_byte(f) % 8];
    out[size] = '\0';
}

/* Some bytes stand for a delimiter, a part of one, or what looks like one. */
static void put_body(struct buffer *b, struct feed *f, const char *delimiter)
{
    while (f->left > 0 && b->size < 20000) {
        uint8_t ch = feed_byte(f);
        size_t size = strlen(delimiter);

        if (ch == 0xfd)
            put(b, delimiter, size);
        else if (ch == 0xfc)
            put(b, delimiter, feed_byte(f) % size);
        else if (ch == 0xfb)
            put(b, delimiter + 1, size - 1);
        else if (ch == 0xfa && size > 4)
            put(b, delimiter + 2, size - 2);
        else
            put(b, &ch, 1);
    }
}

static void multipart_print(const char *boundary, once_bytes body,
                            unsigned step, uint8_t out[ONCE_FINGERPRINT_SIZE])
{
    once__request_head head = {.query = {"q", 1}, .of_path = 1};
    once__boundary found;
    char type[160];
    int n = snprintf(type, sizeof(type),
                     "Multipart/Form-Data ; a=\"b\";boundary=\"%s\"; c=d",
                     boundary);

    head.type = (once_bytes){type, (size_t)n};
    MUST(once__boundary_find(head.type, &found));
    MUST(same(found.text, (once_bytes){boundary, strlen(boundary)}));
    print_of(ONCE__COUNT_ALL, &head, body, step, out);
}

static void check_multipart(struct buffer *b, struct feed *f, unsigned step)
{
    static const char before[] = "Multipart/Form-Data ; a=\"b\";boundary=";
    static struct buffer raw, other;
    static struct pieces pieces, again;
    char boundary[ONCE__BOUNDARY_MAX + 1], delimiter[80], second[80];
    uint8_t ours[ONCE_FINGERPRINT_SIZE], theirs[SHA256_DIGEST_LENGTH];
    once_bytes body;
    size_t i;

    make_boundary(f, boundary);
    snprintf(delimiter, sizeof(delimiter), "\r\n--%s", boundary);
    raw.size = 0;
    put(&raw, "\r\n", 2);
    put_body(&raw, f, delimiter);
    body = (once_bytes){raw.bytes + 2, raw.size - 2};
    if (!split(body, delimiter, &pieces))
        return;
    begin(b, "once fingerprint parts 1");
    put_frame(b, (once_bytes){"qtbM", 4});
    put_frame(b, (once_bytes){"q", 1});
    put_frame(b, (once_bytes){before, sizeof(before) - 1});
    put_frame(b, (once_bytes){"; c=d", 5});
    put_frame(b, (once_bytes){NULL, 0});
    put_pieces(b, &pieces, boundary);
    SHA256(b->bytes, b->size, theirs);
    multipart_print(boundary, body, step, ours);
    MUST(memcmp(ours, theirs, sizeof(ours)) == 0);

    /* The same pieces between other delimiters. */
    snprintf(second, sizeof(second), "\r\n--%s",
             strlen(boundary) > 8 ? "0" : "0123456789a");
    other.size = 0;
    put(&other, "\r\n", 2);
    put(&other, pieces.at[0].data, pieces.at[0].size);
    for (i = 1; i < pieces.n; i++) {
        size_t skip = i == 1 && pieces.at_once ? 2 : 0;

        put(&other, second + skip, strlen(second) - skip);
        put(&other, pieces.at[i].data, pieces.at[i].size);
    }
    body = (once_bytes){other.bytes + 2, other.size - 2};
    if (!split(body, second, &again))
        return;
    multipart_print(second + 4, body, step, theirs);
    MUST((pieces.n > 1 && same_pieces(&pieces, &again)) ==
         (memcmp(ours, theirs, sizeof(ours)) == 0));
}

static void check_boundary(once_bytes type)
{
    const char *from = type.data;
    once__boundary b;

    if (!once__boundary_find(type, &b))
        return;
    MUST(b.text.size > 0 && b.text.size <= ONCE__BOUNDARY_MAX);
    MUST(memchr(b.text.data, '\r', b.text.size) == NULL);
    MUST(b.before.data == from);
    MUST((const char *)b.after.data + b.after.size == from + type.size);
    MUST(b.before.size + b.text.size + b.after.size <= type.size);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static struct buffer buffer;
    struct feed f = {data, size < 40000 ? size : 40000};
    uint8_t sizes[PARTS];
    once_bytes parts[PARTS];
    unsigned step = feed_byte(&f), i;
    char hex[17];

    for (i = 0; i < PARTS; i++)
        sizes[i] = feed_byte(&f);
    for (i = 0; i < PARTS; i++)
        parts[i] = feed_bytes(&f, sizes[i]);
    check_name(&buffer, parts);
    check_realm(&buffer, parts, parts[4]);
    check_boundary(parts[1]);
    if (step % 2) {
        check_multipart(&buffer, &f, step);
    } else {
        once__request_head head = {.query = parts[0],
                                   .type = parts[1],
                                   .encoding = parts[2],
                                   .of_path = 1};
        once__boundary none;

        if (!once__boundary_find(parts[1], &none))
            check_fingerprint(&buffer, &head, feed_bytes(&f, f.left), step);
    }
    once__name_hex(buffer.bytes, hex);
    MUST(strspn(hex, "0123456789abcdef") == 16);
    return 0;
}
