/* SPDX-License-Identifier: Apache-2.0 */
/*
 * audit.c - the note on an operator's decision: who, when, where, why.
 *
 * The user's name comes from the kernel, never from the environment. It refuses
 * a reason that is missing, or that could command the terminal of whoever reads
 * it later.
 */
#include "cli.h"

#include <inttypes.h>
#include <pwd.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "http/http.h"

once_bytes cli_bytes(const char *text)
{
    return (once_bytes){text, strlen(text)};
}

static int has_control(const char *text)
{
    for (; *text != '\0'; text++)
        if ((unsigned char)*text < 0x20 || *text == 0x7f)
            return 1;
    return 0;
}

int cli_check_why(const struct cli *c, const char *why)
{
    size_t size = why ? strlen(why) : 0;

    if (size == 0 || size > CLI_WHY_MAX || has_control(why))
        return cli_usage(c, "--why TEXT is needed: 1 to %d bytes on one line",
                         CLI_WHY_MAX);
    return CLI_OK;
}

/* "alice (uid 1000)". */
static void user_name(uid_t uid, char *out, size_t size)
{
    struct passwd pw, *found = NULL;
    char buffer[4096];

    if (getpwuid_r(uid, &pw, buffer, sizeof(buffer), &found) != 0 || !found)
        snprintf(out, size, "uid %u", (unsigned)uid);
    else
        snprintf(out, size, "%.48s (uid %u)", pw.pw_name, (unsigned)uid);
}

/* Who logged in, in spite of sudo and su: from the kernel, not from
 * the environment. 0 if it cannot say, or if it is the same user. */
static int login_name(char *out, size_t size)
{
    FILE *in = fopen("/proc/self/loginuid", "re");
    unsigned uid = UINT32_MAX;
    int n;

    if (in == NULL)
        return 0;
    n = fscanf(in, "%10u", &uid);
    fclose(in);
    if (n != 1 || uid == UINT32_MAX || uid == getuid())
        return 0;
    user_name(uid, out, size);
    return 1;
}

/* Host, process and milliseconds make the note unlike any other, so that a
 * repeated operation is taken for the same one. */
void cli_make_note(const char *action, const char *why, char out[CLI_NOTE_SIZE])
{
    char who[96], login[96] = "", when[CLI_TIME_SIZE], host[65] = "?";

    cli_time(cli_now_ms(), when);
    user_name(getuid(), who, sizeof(who));
    if (gethostname(host, sizeof(host)) < 0)
        snprintf(host, sizeof(host), "?");
    host[sizeof(host) - 1] = '\0';
    snprintf(out, CLI_NOTE_SIZE, "%s by %s%s%s on %s, once[%ld]: %s: %s", when,
             who, login_name(login, sizeof(login)) ? ", login " : "", login,
             host, (long)getpid(), action, why);
}

int cli_encode(const struct cli *c, const once__response *response,
               once_bytes *out)
{
    once_error err = {0, ""};
    size_t size = 0;
    void *data;
    int rc;

    rc = once__response_size(response, &size, &err);
    if (rc < 0)
        return cli_trouble(c, rc, &err);
    if (size > ONCE_RESULT_MAX)
        return cli_say(c, CLI_USAGE,
                       "the response is over the limit of %zu "
                       "bytes",
                       ONCE_RESULT_MAX);
    data = malloc(size);
    if (data == NULL)
        return cli_say(c, CLI_STORE, "out of memory");
    once__response_encode(response, data);
    *out = (once_bytes){data, size};
    return CLI_OK;
}

int cli_reap(const struct cli *c, once_engine *e, const once_op *seen,
             uint64_t keep_ms)
{
    const once_record *r = &seen->record;
    once_op op = {
        .verb = ONCE_OP_REAP, .keep_ms = keep_ms, .store_ms = CLI_STORE_MS};
    once_error err = {0, ""};
    int rc;

    if ((r->state != ONCE_CLAIMED && r->state != ONCE_DISPATCHED) ||
        seen->left_ms > 0)
        return CLI_OK;
    memcpy(op.name, seen->name, ONCE_NAME_SIZE);
    rc = once_apply(e, &op, &err);
    once_op_clear(&op);
    /* Refused: somebody was faster, and the next step looks again anyway. */
    return rc < 0 ? cli_trouble_of_change(c, rc, &err) : CLI_OK;
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
