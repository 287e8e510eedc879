/* SPDX-License-Identifier: Apache-2.0 */
/* fuzz_result.c - results of calls and recordings of commands, as a store may
 * hand them out: read or refused, and what is read adds up. */
#include "fuzz.h"

#include "calls/call/call.h"
#include "programs/once/run/run.h"

static void check_result(once_bytes in)
{
    once__result r = {0, {NULL, 0}, {NULL, 0}};
    once_error err = {0, ""};
    int rc = once__result_decode(in, &r, &err);
    uint8_t *again;
    size_t size = 0;

    MUST(rc == ONCE_OK || rc == ONCE_ECORRUPT || rc == ONCE_EVERSION);
    MUST(rc == ONCE_OK || (err.code == rc && err.text[0] != '\0'));
    if (rc != ONCE_OK)
        return;
    MUST(once__result_size(&r, &size, NULL) == ONCE_OK && size == in.size);
    again = malloc(size);
    MUST(again != NULL);
    once__result_encode(&r, again);
    MUST(memcmp(again, in.data, size) == 0); /* one result, one encoding */
    free(again);
}

/* The same bytes in a record, with and without an operator's note. */
static void check_record(once_bytes in, uint8_t kind)
{
    once_record r = {.state = ONCE_COMPLETED, .kind = kind, .result = in};
    once__result out = {0, {NULL, 0}, {NULL, 0}};
    int rc = once__result_read(&r, &out, NULL);

    MUST(rc == ONCE_OK || rc == ONCE_ECORRUPT || rc == ONCE_EVERSION);
    MUST(rc != ONCE_OK || (out.code == 0) == (kind == ONCE_SUCCESS));
    r.note = (once_bytes){"n", 1};
    rc = once__result_read(&r, &out, NULL);
    MUST(rc == ONCE_OK || rc == ONCE_REPEATED || rc == ONCE_ECORRUPT ||
         rc == ONCE_EVERSION);
    if (rc != ONCE_OK)
        return;
    MUST(out.type.size <= ONCE_TYPE_MAX && out.bytes.size <= in.size);
    if (out.bytes.size > 0) /* within what was given */
        MUST((const uint8_t *)out.bytes.data >= (const uint8_t *)in.data &&
             (const uint8_t *)out.bytes.data + out.bytes.size <=
                 (const uint8_t *)in.data + in.size);
}

static void check_recording(once_bytes in)
{
    struct run_recording r;
    const uint8_t *p;
    size_t left;

    if (!run_recording_read(in, &r))
        return;
    MUST(r.how == RUN_INLINE || r.how == RUN_SPOOLED || r.how == RUN_NOT_KEPT);
    MUST(strlen(r.host) <= RUN_HOST_MAX && strlen(r.file) < RUN_FILE_SIZE);
    for (p = r.frames.data, left = r.frames.size; left > 0;) {
        uint32_t size = 0;
        int stream = 0;

        MUST(left > RUN_FRAME && run_frame(p, &stream, &size));
        MUST((stream == 1 || stream == 2) && size <= left - RUN_FRAME);
        p += RUN_FRAME + size;
        left -= RUN_FRAME + size;
    }
    MUST(r.frames.size == 0 || p == (const uint8_t *)in.data + in.size);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct feed f = {data, size};
    uint8_t what = feed_byte(&f);
    void *copy = exact(f.at, f.left);
    once_bytes in = {copy, f.left};

    if (what % 2) {
        check_recording(in);
    } else {
        check_result(in);
        check_record(in, what & 2 ? ONCE_FAILURE : ONCE_SUCCESS);
    }
    free(copy);
    return 0;
}
