/* SPDX-License-Identifier: Apache-2.0 */
/*
 * note.c - the note on an operator's decision: who, when, where, why.
 *
 *    2026-11-22T14:00:00.000Z by alice (uid 1000) on host, once[7]: WHAT: WHY
 *    ... once-console[7] decision KEY: WHAT: WHY
 *
 * A user's name comes from the kernel, never from the environment. It refuses
 * a reason that is missing, or that could command the terminal of its reader
 * it later.
 */
#include "operate/operate.h"

#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define DECISION " decision "

int once__why_good(const char *why)
{
    size_t i;

    if (why == NULL || why[0] == '\0')
        return 0;
    for (i = 0; why[i] != '\0'; i++)
        if (i == ONCE__WHY_MAX || (unsigned char)why[i] < 0x20 ||
            why[i] == 0x7f)
            return 0;
    return 1;
}

int once__decision_good(const char *key)
{
    static const char good[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
                               "abcdefghijklmnopqrstuvwxyz0123456789-_";
    size_t n = strlen(key);

    return n >= ONCE__DECISION_MIN && n <= ONCE__DECISION_MAX &&
           strspn(key, good) == n;
}

/* "alice (uid 1000)"; a name that only a proxy knows has no number. */
static void describe(const char *name, int64_t uid, char *out, size_t size)
{
    char number[24];

    snprintf(number, sizeof(number), "uid %lld", (long long)uid);
    if (name[0] == '\0' || strcmp(name, number) == 0)
        snprintf(out, size, "%s", number);
    else
        snprintf(out, size, "%.64s (%s)", name, uid < 0 ? "by proxy" : number);
}

/* Host, process and milliseconds make the note unlike any other, so that a
 * repeated operation is taken for the same one. */
void once__note_make(const once__audit_who *who, const char *program,
                     const char *decision, const char *action, const char *why,
                     char out[ONCE__NOTE_SIZE])
{
    char when[ONCE__AUDIT_TIME], host[65] = "?", user[96], login[96] = "",
                                 name[65];
    int has_login = who->login_uid >= 0 && who->login_uid != who->uid;

    once__audit_now(when);
    describe(who->name, who->uid, user, sizeof(user));
    if (has_login) {
        once__audit_user(who->login_uid, name, sizeof(name));
        describe(name, who->login_uid, login, sizeof(login));
    }
    if (gethostname(host, sizeof(host)) < 0)
        snprintf(host, sizeof(host), "?");
    host[sizeof(host) - 1] = '\0';
    snprintf(out, ONCE__NOTE_SIZE, "%s by %s%s%s on %s, %s[%ld]%s%s: %s: %s",
             when, user, has_login ? ", login " : "", login, host, program,
             (long)getpid(), decision ? DECISION : "", decision ? decision : "",
             action, why);
}

/* The reason is the last of it, so the first such word is ours: neither users
 * nor hosts have spaces in their names. */
int once__note_decision(once_bytes note, const char **at, size_t *size)
{
    const char *begin = note.data, *end;

    if (note.size == 0)
        return 0;
    begin = memmem(note.data, note.size, DECISION, strlen(DECISION));
    end = memmem(note.data, note.size, "]: ", 3);
    /* "once[7]: " without a decision ends before the reason begins. */
    if (begin == NULL || (end != NULL && end < begin))
        return 0;
    begin += strlen(DECISION);
    end = memchr(begin, ':',
                 note.size - (size_t)(begin - (const char *)note.data));
    if (end == NULL)
        return 0;
    *at = begin;
    *size = (size_t)(end - begin);
    return 1;
}
