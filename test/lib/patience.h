/* SPDX-License-Identifier: Apache-2.0 */
/*
 * patience.h - how long to wait for what must happen: patience.py, for tests in C.
 *
 * A limit is there against what never ends. It grows with the processes that want
 * a processor, so that a busy machine does not fail a test.
 */
#ifndef TEST_PATIENCE_H
#define TEST_PATIENCE_H

#include <stdint.h>
#include <stdlib.h>
#include <unistd.h>

/* Milliseconds of an idle machine as those of this one, now. */
static inline uint64_t patient_ms(uint64_t ms)
{
    enum { MOST = 20 };
    long cpus = sysconf(_SC_NPROCESSORS_ONLN);
    double load = 0, slower;

    if (getloadavg(&load, 1) != 1 || cpus < 1)
        return ms;
    slower = load / (double)cpus;
    slower = slower < 1 ? 1 : slower > MOST ? MOST : slower;
    return (uint64_t)((double)ms * slower);
}

#endif
