/* SPDX-License-Identifier: Apache-2.0 */
/*
 * record.h - a record as bytes, for stores that keep bytes.
 *
 * Versioned and checksummed: bytes that fail their checksum are an error, never
 * "no record" (invariant I9). The checksum covers the name, so that two records
 * that were exchanged fail it as well.
 */
#ifndef ONCE_CALLS_CORE_RECORD_H
#define ONCE_CALLS_CORE_RECORD_H

#include <once/once.h>

enum {
    ONCE__RECORD_VERSION = 2,
    ONCE__RECORD_HEAD = 176, /* bytes of the fixed part, at the front */
    ONCE__RECORD_SUM = 4     /* bytes of the checksum, at the end     */
};

/* Bytes that once__record_encode() writes. */
size_t once__record_size(const once_record *r);
void once__record_encode(const once_record *r,
                         const uint8_t name[ONCE_NAME_SIZE], void *out);

/*
 * Reads `in`; result, note and label are borrowed from it. Returns ONCE_OK;
 * ONCE_ECORRUPT; or ONCE_EVERSION, if the checksum is right but the version is
 * another. `*out` is written only with ONCE_OK.
 */
ONCE_CHECK int once__record_decode(once_bytes in,
                                   const uint8_t name[ONCE_NAME_SIZE],
                                   once_record *out, once_error *err);

/* The fixed part alone, for stores that keep the bytes elsewhere: `result`,
 * `note` and `label` count with their sizes only. */
void once__record_head(const once_record *r, uint8_t out[ONCE__RECORD_HEAD]);
/* The reverse. It checks nothing; `data` of result, note and label is
 * NULL. */
void once__record_from_head(const uint8_t in[ONCE__RECORD_HEAD],
                            once_record *r);

#endif /* ONCE_CALLS_CORE_RECORD_H */
