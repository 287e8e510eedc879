/* SPDX-License-Identifier: Apache-2.0 */
/*
 * status.h - statuses that a gateway answers in place of the service behind it.
 *
 * The one list of them: the rules of a guarded response and the clients use it.
 */
#ifndef ONCE_BASE_STATUS_H
#define ONCE_BASE_STATUS_H

#include <stddef.h>

/* The gateway has lost the service: those of RFC 9110, and what proxies of content
 * networks answer in their place. */
#define ONCE__LOST_STATUSES 502, 504, 520, 521, 522, 523, 524, 529, 530

/* 1: one of them, or 503, by which a gateway also says that it lets nothing
 * through. */
static inline int once__is_gateways_status(int status)
{
    static const int lost[] = {ONCE__LOST_STATUSES};
    size_t i = 0;

    while (i < sizeof(lost) / sizeof(lost[0]) && lost[i] != status)
        i++;
    return status == 503 || i < sizeof(lost) / sizeof(lost[0]);
}

#endif /* ONCE_BASE_STATUS_H */
