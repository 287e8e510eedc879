/* SPDX-License-Identifier: Apache-2.0 */
/*
 * random.c - one stream of numbers for a whole run (xoroshiro128+, seeded by
 * splitmix64): whoever draws one moves all that follows, so nothing outside
 * the world may draw.
 */
#include "sim.h"

static uint64_t split(uint64_t *x)
{
    uint64_t z = (*x += UINT64_C(0x9e3779b97f4a7c15));

    z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
    return z ^ (z >> 31);
}

void random_begin(struct world *w, uint64_t seed)
{
    w->random[0] = split(&seed);
    w->random[1] = split(&seed);
}

uint64_t draw(struct world *w)
{
    uint64_t a = w->random[0], b = w->random[1], sum = a + b;

    b ^= a;
    w->random[0] = ((a << 24) | (a >> 40)) ^ b ^ (b << 16);
    w->random[1] = (b << 37) | (b >> 27);
    return sum;
}

uint64_t below(struct world *w, uint64_t limit)
{
    return limit == 0 ? 0 : (draw(w) >> 11) % limit;
}

int chance(struct world *w, unsigned ppm)
{
    return below(w, 1000000) < ppm;
}

int fault(struct world *w, unsigned ppm)
{
    return !w->healing && ppm > 0 && chance(w, ppm);
}

/* Mostly about the mean, now and then a multiple of it. */
uint64_t around(struct world *w, uint64_t mean)
{
    uint64_t ms = below(w, mean + 1);

    while ((draw(w) >> 40 & 1) && ms < 10 * mean)
        ms += mean / 2;
    return ms;
}
