/* SPDX-License-Identifier: Apache-2.0 */
/*
 * points.h - places at which a program of the ledger kills itself: points.c.
 */
#ifndef ONCE_TEST_POINTS_H
#define ONCE_TEST_POINTS_H

/* Readable when the program was told to stop; -1: it is never told. */
extern int points_stop_fd;

#endif /* ONCE_TEST_POINTS_H */
