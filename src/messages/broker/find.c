/* SPDX-License-Identifier: Apache-2.0 */
/*
 * find.c - the driver for a URL, from brokers.def.
 */
#include <string.h>

#include "messages/broker/broker.h"
#include "base/error.h"

#define ONCE_BROKER(driver, scheme)                                            \
    extern const struct once__broker_ops once__broker_##driver;
#include "messages/broker/brokers.def"
#undef ONCE_BROKER

static const struct {
    const char *scheme;
    const struct once__broker_ops *ops;
} brokers[] = {
#define ONCE_BROKER(driver, scheme) {scheme, &once__broker_##driver},
#include "messages/broker/brokers.def"
#undef ONCE_BROKER
    {NULL, NULL},
};

const struct once__broker_ops *once__broker_find(const char *url,
                                                 once_error *err)
{
    const char *colon = strchr(url, ':');
    char known[200] = "";
    size_t i, size = colon == NULL ? 0 : (size_t)(colon - url), used = 0;

    for (i = 0; brokers[i].scheme != NULL; i++) {
        size_t n = strlen(brokers[i].scheme);

        if (n == size && memcmp(brokers[i].scheme, url, n) == 0)
            return brokers[i].ops;
        if (used + n + 2 < sizeof(known)) {
            memcpy(known + used, brokers[i].scheme, n);
            memcpy(known + used + n, ": ", 3);
            used += n + 2;
        }
    }
    (void)once__fail(err, ONCE_EURL,
                     "no target of this kind in this build; there are %s",
                     known);
    return NULL;
}
