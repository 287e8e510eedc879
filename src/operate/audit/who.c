/* SPDX-License-Identifier: Apache-2.0 */
/*
 * who.c - the caller: from the kernel, never from the environment.
 */
#include "operate/audit/audit.h"

#include <inttypes.h>
#include <pwd.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

void once__audit_user(int64_t uid, char *out, size_t size)
{
    struct passwd pw, *found = NULL;
    char buffer[4096];

    if (uid < 0)
        snprintf(out, size, "?");
    else if (getpwuid_r((uid_t)uid, &pw, buffer, sizeof(buffer), &found) != 0 ||
             found == NULL)
        snprintf(out, size, "uid %" PRId64, uid);
    else
        snprintf(out, size, "%s", pw.pw_name);
}

/* Who logged in, in spite of sudo and su; -1 if the kernel cannot say. */
static int64_t login_uid(void)
{
    FILE *in = fopen("/proc/self/loginuid", "re");
    unsigned uid = UINT32_MAX;
    int n;

    if (in == NULL)
        return -1;
    n = fscanf(in, "%10u", &uid);
    fclose(in);
    return n == 1 && uid != UINT32_MAX ? (int64_t)uid : -1;
}

void once__audit_me(const char *way, once__audit_who *out)
{
    memset(out, 0, sizeof(*out));
    out->uid = (int64_t)getuid();
    out->login_uid = login_uid();
    once__audit_user(out->uid, out->name, sizeof(out->name));
    snprintf(out->way, sizeof(out->way), "%s", way);
}
