/* SPDX-License-Identifier: Apache-2.0 */
/*
 * status.h - what a status of HTTP says, whoever asks.
 */
#ifndef ONCE_BASE_STATUS_H
#define ONCE_BASE_STATUS_H

/* 1: what stands before a service says so where it has lost it, or lets nothing
 * through: by RFC 9110, or by a content network's own numbers. */
static inline int once__is_gateways_status(int status)
{
    return (status >= 502 && status <= 504) ||
           (status >= 520 && status <= 524) || status == 529 || status == 530;
}

#endif /* ONCE_BASE_STATUS_H */
