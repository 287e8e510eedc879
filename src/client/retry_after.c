/* SPDX-License-Identifier: Apache-2.0 */
/*
 * retry_after.c - how long a server asks to wait.
 *
 * It refuses to guess dates: of the three forms that RFC 9110 (5.6.7) knows,
 * the two obsolete ones count as no Retry-After, and the pause is our own.
 */
#include "client/client.h"

#include <string.h>

#include "base/bytes.h"

/* Decimal digits and nothing else; -1 if one is none. */
static int digits(const char *text, int n)
{
    int value = 0;

    for (; n > 0; n--, text++) {
        if (!once__is_digit(*text))
            return -1;
        value = value * 10 + (*text - '0');
    }
    return value;
}

static int month_of(const char *text)
{
    static const char names[] = "JanFebMarAprMayJunJulAugSepOctNovDec";
    int i;

    for (i = 0; i < 12; i++)
        if (memcmp(names + 3 * i, text, 3) == 0)
            return i + 1;
    return -1;
}

/* Days since 1970 of the Gregorian calendar: years begin in March, so that
 * the leap day is a year's last. */
static int64_t days_of(int year, int month, int day)
{
    int64_t y = year - (month <= 2), era = y / 400, of_era = y % 400;
    int64_t of_year = (153 * (month + (month > 2 ? -3 : 9)) + 2) / 5 + day - 1;

    return era * 146097 + of_era * 365 + of_era / 4 - of_era / 100 + of_year -
           719468;
}

/* "Sun, 06 Nov 1994 08:49:37 GMT" */
int once__client_date(once_bytes text, uint64_t *ms)
{
    const char *p = text.data;
    int day, month, year, hour, minute, second;

    if (text.size != 29 || p[3] != ',' || p[4] != ' ' || p[7] != ' ' ||
        p[11] != ' ' || p[16] != ' ' || p[19] != ':' || p[22] != ':' ||
        memcmp(p + 25, " GMT", 4) != 0)
        return -1;
    day = digits(p + 5, 2);
    month = month_of(p + 8);
    year = digits(p + 12, 4);
    hour = digits(p + 17, 2);
    minute = digits(p + 20, 2);
    second = digits(p + 23, 2);
    /* 60 is a leap second. */
    if (day < 1 || day > 31 || month < 1 || year < 1970 || hour < 0 ||
        hour > 23 || minute < 0 || minute > 59 || second < 0 || second > 60)
        return -1;
    *ms = (uint64_t)(((days_of(year, month, day) * 24 + hour) * 60 + minute) *
                         60 +
                     second) *
          1000;
    return 0;
}

static int read_seconds(once_bytes value, uint64_t *ms)
{
    const uint64_t most = 31536000; /* a year: beyond every deadline */
    const char *p = value.data;
    uint64_t s = 0;
    size_t i;

    if (value.size == 0)
        return -1;
    for (i = 0; i < value.size; i++) {
        if (!once__is_digit(p[i]))
            return -1;
        s = s * 10 + (uint64_t)(p[i] - '0');
        if (s > most)
            s = most;
    }
    *ms = s * 1000;
    return 0;
}

int once__client_retry_after(once_bytes value, once_bytes date,
                             uint64_t wall_ms, uint64_t *ms)
{
    uint64_t at, now = wall_ms;

    if (read_seconds(value, ms) == 0)
        return 0;
    if (once__client_date(value, &at) < 0)
        return -1;
    (void)once__client_date(date, &now);
    *ms = at > now ? at - now : 0;
    return 0;
}
