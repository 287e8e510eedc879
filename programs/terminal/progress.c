/* SPDX-License-Identifier: Apache-2.0 */
/*
 * progress.c - how far long work has come, for a person who waits for it.
 *
 * One line on stderr, which is rewritten and removed at the end. It is written
 * only to a terminal, and only for work that takes longer than a second.
 */
#include "programs/terminal/terminal.h"

#include <time.h>
#include <unistd.h>

#include "base/steady.h"

enum { FIRST_MS = 1000, EVERY_MS = 200, BAR = 30 };

uint64_t cli_now_ms(void)
{
    return once__clock_us(CLOCK_REALTIME) / 1000;
}

double cli_part(const uint8_t name[ONCE_NAME_SIZE])
{
    return (name[0] * 65536.0 + name[1] * 256.0 + name[2]) / 16777216.0;
}

void cli_progress_start(struct cli_progress *p, const struct cli *c,
                        const char *what)
{
    p->c = isatty(STDERR_FILENO) ? c : NULL;
    p->what = what;
    p->next_ms = once__steady_ms() + FIRST_MS;
    p->shown = 0;
}

static void draw(const struct cli_progress *p, double part, uint64_t n)
{
    int full = part < 0 ? 0 : (int)(part * BAR), i;

    fprintf(stderr, "\ronce %s: ", p->c->command->name);
    if (part >= 0) {
        fputc('[', stderr);
        for (i = 0; i < BAR; i++)
            fputc(i < full ? '#' : '.', stderr);
        fprintf(stderr, "] %3d %%  ", (int)(part * 100));
    }
    fprintf(stderr, "%llu %s", (unsigned long long)n, p->what);
    fputs("\033[K", stderr);
    fflush(stderr);
}

void cli_progress(struct cli_progress *p, double part, uint64_t n)
{
    uint64_t now_ms;

    if (p->c == NULL)
        return;
    now_ms = once__steady_ms();
    if (now_ms < p->next_ms)
        return;
    p->next_ms = now_ms + EVERY_MS;
    p->shown = 1;
    draw(p, part > 1 ? 1 : part, n);
}

void cli_progress_end(struct cli_progress *p)
{
    if (p->c != NULL && p->shown)
        fputs("\r\033[K", stderr);
    p->shown = 0;
}
