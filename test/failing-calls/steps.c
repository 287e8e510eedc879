/* SPDX-License-Identifier: Apache-2.0 */
/*
 * steps.c - the tour as a program by itself, for whoever fails its system
 * calls or kills it: see test/failing-calls/system-calls.
 *
 *    steps run URL             the tour; what is known goes to stdout at once
 *    steps run-unreadable URL  the same, where reads fail: a file that cannot
 *                              be read may be called damaged
 *    steps check URL < NOTES   what the notes say must hold; a clean tour, too
 *
 * `run` ends with 0 unless something was answered that must not be; `check`
 * with 0 if all is well. A note that does not parse is an error: it would
 * excuse what must not be.
 */
#include <stdio.h>
#include <string.h>

#include <unistd.h>

#include "story.h"

static int run(const char *url, int unreadable)
{
    struct story s;
    once_engine *e;

    memset(&s, 0, sizeof(s));
    s.seed = 1;
    s.unreadable = unreadable;
    s.log = dup(STDOUT_FILENO);
    e = story_open(&s, url);
    if (e != NULL)
        story_tell(&s, e);
    once_engine_close(e);
    (void)close(s.log);
    return s.bad > 0;
}

static int read_note(struct story *s, const char *what, int key)
{
    struct story_key *k;

    if (key < 0 || key >= STORY_KEYS)
        return 0;
    k = &s->keys[key];
    if (strcmp(what, "executes") == 0)
        k->executed++;
    else if (strcmp(what, "acknowledged") == 0)
        k->acknowledged = 1;
    else if (strcmp(what, "decides") == 0)
        k->maybe = 1;
    else if (strcmp(what, "resolved") == 0)
        k->resolved = 1;
    else
        return 0;
    return 1;
}

static int read_notes(struct story *s)
{
    char line[128], what[32];
    int key, i;

    while (fgets(line, sizeof(line), stdin) != NULL) {
        if (line[0] == '#')
            continue;
        if (sscanf(line, "%31s %d", what, &key) != 2 ||
            !read_note(s, what, key)) {
            story_bad(s, "not a note: %s", line);
            return 0;
        }
    }
    for (i = 0; i < STORY_KEYS; i++)
        if (s->keys[i].executed > 1)
            story_bad(s, "key %d was executed %u times", i,
                      s->keys[i].executed);
    return 1;
}

static int check(const char *url)
{
    struct story s, again;
    once_engine *e;

    memset(&s, 0, sizeof(s));
    s.seed = 1;
    s.clean = 1;
    s.log = -1;
    if (!read_notes(&s))
        return 1;
    e = story_open(&s, url);
    if (e == NULL)
        return 1;
    s.clean = 0;
    story_check(&s, e);
    memset(&again, 0, sizeof(again));
    again.seed = 2;
    again.clean = 1;
    again.log = -1;
    story_tell(&again, e);
    story_check(&again, e);
    once_engine_close(e);
    return s.bad + again.bad > 0;
}

int main(int argc, char **argv)
{
    if (argc == 3 && strcmp(argv[1], "run") == 0)
        return run(argv[2], 0);
    if (argc == 3 && strcmp(argv[1], "run-unreadable") == 0)
        return run(argv[2], 1);
    if (argc == 3 && strcmp(argv[1], "check") == 0)
        return check(argv[2]);
    fputs("usage: steps run|run-unreadable|check URL\n", stderr);
    return 2;
}
