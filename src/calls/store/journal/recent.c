/* SPDX-License-Identifier: Apache-2.0 */
/*
 * recent.c - the frames that this handle wrote last, kept at hand: the
 * process that completes has claimed a moment ago, and need not ask the file.
 *
 *    frames[hash of position] -> {position, mark}
 *    ring   ... | frame | frame | frame |  mark: all bytes written before it
 *
 * Only frames that the index knows are kept here: the place of a frame that was
 * given up goes to another frame. What is found is still checked like what is
 * read from the file, and read from there if it fails its checksum.
 */
#include "calls/store/journal/handle.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

enum { RING = 1 << 19, FRAMES = 8192, LENGTH_MAX = 4096 };

struct once__recent {
    struct {
        uint64_t at, mark;
    } frames[FRAMES];
    uint64_t written;
    uint8_t ring[RING];
};

static unsigned place(uint64_t at)
{
    return (unsigned)(at * UINT64_C(0x9e3779b97f4a7c15) >> 32) % FRAMES;
}

void once__recent_put(struct once__recent **r, uint64_t at,
                      const uint8_t *bytes, size_t length)
{
    struct once__recent *to = *r;
    size_t left;

    if (length > LENGTH_MAX)
        return;
    if (to == NULL)
        to = *r = calloc(1, sizeof(*to));
    if (to == NULL)
        return;
    left = RING - to->written % RING;
    if (left < length)
        to->written += left;
    memcpy(to->ring + to->written % RING, bytes, length);
    to->frames[place(at)].at = at;
    to->frames[place(at)].mark = to->written;
    to->written += length;
}

const uint8_t *once__recent_find(const struct once__recent *r, uint64_t at,
                                 size_t length)
{
    uint64_t mark;

    assert(at != 0);
    if (r == NULL || r->frames[place(at)].at != at || length > LENGTH_MAX)
        return NULL;
    mark = r->frames[place(at)].mark;
    if (r->written - mark > RING || mark % RING + length > RING)
        return NULL;
    return r->ring + mark % RING;
}
