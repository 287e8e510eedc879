/* SPDX-License-Identifier: Apache-2.0 */
/*
 * audit.c - what all decisions of an operator have in common: a reason, a note,
 * and that they are refused when something happened since.
 */
#include "cli.h"

#include <inttypes.h>
#include <string.h>

once_bytes cli_bytes(const char *text)
{
    return (once_bytes){text, strlen(text)};
}

int cli_check_why(const struct cli *c, const char *why)
{
    if (!once__why_good(why))
        return cli_usage(c, "--why TEXT is needed: 1 to %d bytes on one line",
                         ONCE__WHY_MAX);
    return CLI_OK;
}

void cli_make_note(const char *action, const char *why, char out[CLI_NOTE_SIZE])
{
    once__audit_who who;

    once__audit_me("command line", &who);
    once__note_make(&who, "once", NULL, action, why, out);
}

int cli_changed(const struct cli *c, const once_record *now, uint64_t fence)
{
    if (now->attempt == 0)
        return cli_say(c, CLI_NO, "refused: the record has been forgotten");
    if (now->fence != fence)
        return cli_say(c, CLI_NO,
                       "refused: the fence is %" PRIu64 ", not %" PRIu64
                       ": something happened since. Look again with once show",
                       now->fence, fence);
    return CLI_OK;
}
