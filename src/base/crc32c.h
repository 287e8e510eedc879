/* SPDX-License-Identifier: Apache-2.0 */
/* crc32c.h - CRC-32C (Castagnoli, RFC 3720 section 12.1). It detects damage,
 * not records that a person has edited on purpose. */
#ifndef ONCE_BASE_CRC32C_H
#define ONCE_BASE_CRC32C_H

#include <stddef.h>
#include <stdint.h>

/* Start with 0; feed the result of one call into the next to go on. */
uint32_t once__crc32c(uint32_t crc, const void *data, size_t size);
/* The same without the processor's help. */
uint32_t once__crc32c_table(uint32_t crc, const void *data, size_t size);

#endif /* ONCE_BASE_CRC32C_H */
