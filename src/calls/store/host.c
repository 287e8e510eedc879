/* SPDX-License-Identifier: Apache-2.0 */
/*
 * host.c - which start of which host this is: what CLOCK_BOOTTIME counts from.
 */
#include <fcntl.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

#include "base/bytes.h"
#include "calls/store/store.h"

/* The kernel's boot_id, "01234567-89ab-...". */
static int read_boot_id(uint8_t out[ONCE_HOST_SIZE])
{
    int fd = open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC);
    char text[40] = "";
    size_t i, digits = 0;
    ssize_t n;

    if (fd < 0)
        return 0;
    n = read(fd, text, sizeof(text) - 1);
    (void)close(fd);
    memset(out, 0, ONCE_HOST_SIZE);
    for (i = 0; n > 0 && i < (size_t)n; i++) {
        int digit = once__hex_digit(text[i]);

        if (digit < 0 || digits == 2 * ONCE_HOST_SIZE)
            continue;
        out[digits / 2] = (uint8_t)(out[digits / 2] << 4 | digit);
        digits++;
    }
    return digits == 2 * ONCE_HOST_SIZE;
}

void once__host(uint8_t out[ONCE_HOST_SIZE])
{
    /* Where it cannot be read no other is taken for this host. */
    if (!read_boot_id(out) &&
        getrandom(out, ONCE_HOST_SIZE, 0) != (ssize_t)ONCE_HOST_SIZE)
        memset(out, 0, ONCE_HOST_SIZE);
}
