/* SPDX-License-Identifier: Apache-2.0 */
/*
 * digest.c - the stored name and the fingerprint of a request (docs/http.md,
 * 1), both SHA-256.
 *
 *    name         frame(tag) frame(scope) frame(realm) frame(key)
 *    name of path frame(tag) frame(scope) frame(realm) frame(method)
 *                 frame(path) frame(key)
 *    fingerprint  frame(tag) frame(query) frame(content-type)
 *                 frame(content-encoding) body... length(body)
 *    in parts     frame(tag) frame(which count, and M for multipart) frames...
 *                 body... length(body)
 *    as JSON      the same with a tag of its own and "j" for the body, which is
 *                 written as in canonical.c
 *    of a text    frame(tag) frame(text)
 *
 * Where method and path are not in the name, frame(tag) frame(method)
 * frame(path) stands in front of each of these fingerprints.
 *
 * "In parts" is used where not everything counts, and for multipart bodies. The
 * boundary of a multipart body is another one each time it is sent, so it must
 * not count. The type is then two frames, what stands before the boundary and
 * what comes after it, and the body is
 *
 *    text... length(text)  for each piece between two delimiters
 *    boundary length(boundary)  if there is no delimiter in it
 *    length(1 if the body begins with a delimiter) length(delimiters)
 *
 * A delimiter is CR LF "--" boundary, or "--" boundary where the body begins;
 * what follows it on its line belongs to the next piece. Read from its end this
 * gives back every piece: two bodies are the same here only if one becomes the
 * other when its boundary is replaced in all delimiters.
 *
 * A frame is a length in eight bytes, little-endian, and the bytes. So ("a",
 * "bc") and ("ab", "c") differ, and since the tags differ a name is never a
 * fingerprint of anything. The body is streamed, and its length comes after
 * it because it is not known before: all in front of it is framed, so it can
 * still be read in only one way.
 *
 * What is hashed here is compared with what an older release has stored: a
 * change needs a new tag and means that no key is known any more. The tests
 * hold the sums that other programs have computed.
 *
 * OpenSSL's older functions are used, since a gateway makes two such sums for
 * each request: those that replace them allocate memory for a sum, look its
 * algorithm up, and take more than twice as long for these few bytes.
 */
#define OPENSSL_API_COMPAT 0x10100000L

#include "calls/http/http.h"
#include "base/bytes.h"
#include "base/must.h"
#include "calls/http/json.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include <openssl/sha.h>

#define NAME_TAG "once name 2"
#define PATH_TAG "once name 1" /* of path */
#define TARGET_TAG "once fingerprint target 1"
#define OVERRIDE_TAG "once fingerprint override 1"
#define FINGERPRINT_TAG "once fingerprint 1"
#define PARTS_TAG "once fingerprint parts 1"
#define JSON_TAG "once fingerprint json 1"
#define TEXT_TAG "once fingerprint text 1"

#define COUNT(a) (sizeof(a) / sizeof((a)[0]))

enum { BEFORE_BOUNDARY = 4 }; /* CR, LF and two dashes */

struct once__fingerprint {
    SHA256_CTX md;
    int ended;
    int body_counts;
    uint64_t body; /* bytes so far; multipart: of this piece */
    int is_gzip;   /* so far the body begins as one of gzip  */
    /* multipart */
    char delimiter[BEFORE_BOUNDARY + ONCE__BOUNDARY_MAX];
    size_t size;    /* of the delimiter; 0: the body is one piece */
    size_t matched; /* bytes of a delimiter at the end so far     */
    size_t implied; /* of those, not in the body: it begins here  */
    uint64_t delimiters;
    int at_once; /* 1: the body begins with a delimiter */
    /* JSON */
    int is_json;
    SHA256_CTX json; /* what stands before the body */
};

static once_bytes text(const char *data, size_t size)
{
    once_bytes b = {data, size};

    return b;
}

/* SHA-256 over memory has no input that it could refuse. A sum over less than
 * we were given would match another request: then better stop. */
static void add(SHA256_CTX *md, const void *data, size_t size)
{
    int ok = size == 0 || SHA256_Update(md, data, size);

    ONCE__MUST(ok);
}

static void add_length(SHA256_CTX *md, uint64_t length)
{
    uint8_t bytes[8];
    size_t i;

    for (i = 0; i < sizeof(bytes); i++)
        bytes[i] = (uint8_t)(length >> (8 * i));
    add(md, bytes, sizeof(bytes));
}

static void add_frames(SHA256_CTX *md, const once_bytes *parts, size_t n)
{
    size_t i;

    for (i = 0; i < n; i++) {
        add_length(md, parts[i].size);
        add(md, parts[i].data, parts[i].size);
    }
}

static void begin(SHA256_CTX *md)
{
    int ok = SHA256_Init(md);

    ONCE__MUST(ok);
}

static void finish(SHA256_CTX *md, uint8_t out[32])
{
    int ok = SHA256_Final(out, md);

    ONCE__MUST(ok);
}

static void digest(const once_bytes *parts, size_t n, uint8_t *out)
{
    SHA256_CTX md;

    begin(&md);
    add_frames(&md, parts, n);
    finish(&md, out);
}

void once__name(once_bytes scope, once_bytes realm,
                const once__request_head *head, once_bytes key,
                uint8_t out[ONCE_NAME_SIZE])
{
    const once_bytes parts[] = {
        text(NAME_TAG, sizeof(NAME_TAG) - 1),
        scope,
        realm,
        key,
    };
    const once_bytes of_path[] = {
        text(PATH_TAG, sizeof(PATH_TAG) - 1),
        scope,
        realm,
        head->method,
        head->path,
        key,
    };

    if (head->of_path)
        digest(of_path, COUNT(of_path), out);
    else
        digest(parts, COUNT(parts), out);
}

/* ---- Fingerprints ------------------------------------------------------ */

const char *const once__override_headers[ONCE__OVERRIDES] = {
    "X-HTTP-Method-Override",
    "X-HTTP-Method",
    "X-Method-Override",
};

/* To the service it is another method. Requests without one have the
 * fingerprint that they had before these headers counted. */
static void add_override(SHA256_CTX *md, const once__request_head *head)
{
    size_t i, size = 0;

    for (i = 0; i < ONCE__OVERRIDES; i++)
        size += head->override[i].size;
    if (size == 0)
        return;
    add_frames(md, &(once_bytes){OVERRIDE_TAG, sizeof(OVERRIDE_TAG) - 1}, 1);
    add_frames(md, head->override, ONCE__OVERRIDES);
}

/* What is not in the name has to be compared. */
static void add_target(SHA256_CTX *md, const once__request_head *head)
{
    const once_bytes parts[] = {
        text(TARGET_TAG, sizeof(TARGET_TAG) - 1),
        head->method,
        head->path,
    };

    if (!head->of_path)
        add_frames(md, parts, COUNT(parts));
    add_override(md, head);
}

static void begin_whole(SHA256_CTX *md, const once__request_head *head)
{
    const once_bytes parts[] = {
        text(FINGERPRINT_TAG, sizeof(FINGERPRINT_TAG) - 1),
        head->query,
        head->type,
        head->encoding,
    };

    add_frames(md, parts, COUNT(parts));
}

/* `b` is NULL if the body is one piece. */
static void begin_parts(SHA256_CTX *md, unsigned counts,
                        const once__request_head *head, const once__boundary *b)
{
    const char *tag = counts & ONCE__COUNT_JSON ? JSON_TAG : PARTS_TAG;
    char which[4];
    size_t n = 0;

    if (counts & ONCE__COUNT_QUERY)
        which[n++] = 'q';
    if (counts & ONCE__COUNT_TYPE)
        which[n++] = 't';
    if (counts & ONCE__COUNT_BODY)
        which[n++] = 'b';
    if (counts & ONCE__COUNT_JSON)
        which[n++] = 'j';
    if (b != NULL)
        which[n++] = 'M';
    add_frames(md, &(once_bytes){tag, strlen(tag)}, 1);
    add_frames(md, &(once_bytes){which, n}, 1);
    if (counts & ONCE__COUNT_QUERY)
        add_frames(md, &head->query, 1);
    if ((counts & ONCE__COUNT_TYPE) == 0)
        return;
    if (b != NULL)
        add_frames(md, (once_bytes[]){b->before, b->after}, 2);
    else
        add_frames(md, &head->type, 1);
    add_frames(md, &head->encoding, 1);
}

/* The body begins with a line, as if CR and LF stood before it. */
static void expect_delimiters(once__fingerprint *f, once_bytes boundary)
{
    memcpy(f->delimiter, "\r\n--", BEFORE_BOUNDARY);
    memcpy(f->delimiter + BEFORE_BOUNDARY, boundary.data, boundary.size);
    f->size = BEFORE_BOUNDARY + boundary.size;
    f->matched = f->implied = 2;
}

static int is_json(const once__request_head *head)
{
    const char *type = head->type.data, *end, *semicolon;
    size_t size = head->type.size;

    if (head->encoding.size > 0 || size == 0)
        return 0;
    semicolon = memchr(type, ';', size);
    end = semicolon != NULL ? semicolon : type + size;
    while (end > type && (end[-1] == ' ' || end[-1] == '\t'))
        end--;
    size = (size_t)(end - type);
    if (size == strlen("application/json"))
        return strncasecmp(type, "application/json", size) == 0;
    return size > strlen("+json") && memchr(type, '/', size) != NULL &&
           strncasecmp(end - strlen("+json"), "+json", strlen("+json")) == 0;
}

/* The one coding has two names (RFC 9110, 8.4.1.3). */
static int is_gzip(once_bytes encoding)
{
    return once__same_name(encoding, text("gzip", 4)) ||
           once__same_name(encoding, text("x-gzip", 6));
}

int once__fingerprint_new(unsigned counts, const once__request_head *head,
                          once__fingerprint **out)
{
    once__fingerprint *f = calloc(1, sizeof(*f));
    once__boundary b;

    if (f == NULL)
        return ONCE_ENOMEM;
    begin(&f->md);
    add_target(&f->md, head);
    f->is_json = (counts & ONCE__COUNT_JSON) != 0 && is_json(head);
    if (f->is_json) {
        begin(&f->json);
        add_target(&f->json, head);
        begin_parts(&f->json, counts, head, NULL);
    }
    if (counts & ONCE__COUNT_JSON) /* what is no JSON */
        counts = (counts & ~(unsigned)ONCE__COUNT_JSON) | ONCE__COUNT_BODY;
    f->body_counts = (counts & ONCE__COUNT_BODY) != 0;
    f->is_gzip = is_gzip(head->encoding);
    if (f->body_counts && once__boundary_find(head->type, &b)) {
        expect_delimiters(f, b.text);
        begin_parts(&f->md, counts, head, &b);
    } else if (counts == ONCE__COUNT_ALL) {
        begin_whole(&f->md, head);
    } else {
        begin_parts(&f->md, counts, head, NULL);
    }
    *out = f;
    return ONCE_OK;
}

static void add_body(once__fingerprint *f, const void *data, size_t size)
{
    add(&f->md, data, size);
    f->body += size;
}

/* RFC 1952: two bytes of magic, the method, flags; then MTIME, when the body
 * was compressed. A client that compresses anew for each try sends another
 * time: it counts as zero, which says "no time". */
static void add_gzip(once__fingerprint *f, const uint8_t *at, size_t size)
{
    enum { MAGIC = 3, MTIME = 4, MTIME_END = 8 };
    static const uint8_t magic[MAGIC] = {0x1f, 0x8b, 0x08};
    const uint8_t zero = 0;

    for (; size > 0 && f->is_gzip && f->body < MTIME_END; at++, size--) {
        f->is_gzip = f->body >= MAGIC || *at == magic[f->body];
        add_body(f, f->is_gzip && f->body >= MTIME ? &zero : at, 1);
    }
    if (size > 0)
        add_body(f, at, size);
}

/* What looked like a delimiter is text. */
static void drop_match(once__fingerprint *f)
{
    add_body(f, f->delimiter + f->implied, f->matched - f->implied);
    f->matched = f->implied = 0;
}

static void end_piece(once__fingerprint *f)
{
    add_length(&f->md, f->body);
    f->body = 0;
}

static void take_delimiter(once__fingerprint *f)
{
    end_piece(f);
    f->at_once |= f->implied > 0;
    f->delimiters++;
    f->matched = f->implied = 0;
}

/* There is no CR in a boundary: where a match fails, another one can begin
 * only after it. */
static void split(once__fingerprint *f, const char *at, size_t size)
{
    const char *end = at + size, *cr;

    while (at < end) {
        if (f->matched == 0) {
            cr = memchr(at, '\r', (size_t)(end - at));
            add_body(f, at, (size_t)((cr != NULL ? cr : end) - at));
            if (cr == NULL)
                return;
            at = cr;
        }
        if (*at != f->delimiter[f->matched]) {
            drop_match(f);
            continue;
        }
        at++;
        if (++f->matched == f->size)
            take_delimiter(f);
    }
}

void once__fingerprint_body(once__fingerprint *f, const void *data, size_t size)
{
    assert(!f->ended);
    if (!f->body_counts || size == 0)
        return;
    if (f->size > 0)
        split(f, data, size);
    else
        add_gzip(f, data, size);
}

static void end_pieces(once__fingerprint *f)
{
    drop_match(f);
    end_piece(f);
    if (f->delimiters == 0) {
        add(&f->md, f->delimiter + BEFORE_BOUNDARY, f->size - BEFORE_BOUNDARY);
        add_length(&f->md, f->size - BEFORE_BOUNDARY);
    }
    add_length(&f->md, (uint64_t)f->at_once);
    add_length(&f->md, f->delimiters);
}

void once__fingerprint_end(once__fingerprint *f,
                           uint8_t out[ONCE_FINGERPRINT_SIZE])
{
    assert(!f->ended);
    if (f->size > 0)
        end_pieces(f);
    else
        add_length(&f->md, f->body);
    finish(&f->md, out);
    f->ended = 1;
}

static void put_json(void *f, const void *data, size_t size)
{
    add(&((once__fingerprint *)f)->json, data, size);
}

int once__fingerprint_is_json(const once__fingerprint *f)
{
    return f->is_json;
}

int once__fingerprint_end_json(once__fingerprint *f, struct once__json *doc,
                               const once__compared *compared,
                               uint8_t out[ONCE_FINGERPRINT_SIZE])
{
    int rc = ONCE_EINVAL;

    assert(!f->ended);
    if (f->is_json && doc != NULL)
        rc = once__json_write(doc, compared->but, compared->n_but, put_json, f);
    if (rc == ONCE_ENOMEM)
        return rc;
    if (rc != ONCE_OK) {
        once__fingerprint_end(f, out);
        return ONCE_OK;
    }
    finish(&f->json, out);
    f->ended = 1;
    return ONCE_OK;
}

void once__fingerprint_free(once__fingerprint *f)
{
    free(f);
}

void once__fingerprint_of_text(const once__request_head *head, once_bytes value,
                               uint8_t out[ONCE_FINGERPRINT_SIZE])
{
    const once_bytes parts[] = {text(TEXT_TAG, sizeof(TEXT_TAG) - 1), value};
    SHA256_CTX md;

    begin(&md);
    add_target(&md, head);
    add_frames(&md, parts, COUNT(parts));
    finish(&md, out);
}

void once__name_hex(const uint8_t name[ONCE_NAME_SIZE], char out[17])
{
    once__hex(name, 8, out);
}

void once__group(once_bytes realm, uint8_t out[ONCE_GROUP_SIZE])
{
    const uint8_t *from = realm.data;
    size_t i;

    memset(out, 0, ONCE_GROUP_SIZE);
    for (i = 0; i < realm.size && i < ONCE_GROUP_SIZE; i++)
        out[i] = from[i] > ' ' && from[i] < 0x7f ? from[i] : '?';
}
