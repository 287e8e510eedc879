/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_replaced.c - a store of files is moved away, replaced or removed while
 * a process has it open. That process must stop answering: what it writes is
 * no longer what the next one to open the path will read.
 *
 *    test_replaced [DRIVER]
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <once/store.h>

#include "t.h"

#define NOW UINT64_C(1700000000000)

enum { TURNS = 1000, TURN_NS = 10000000 }; /* ten seconds at the most */

static char folder[64];
static const char *driver; /* of this run */

static uint64_t now_ms(void *user)
{
    (void)user;
    return NOW;
}

static void shell(const char *format, const char *a, const char *b)
{
    char command[400];

#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
    (void)snprintf(command, sizeof(command), format, a, b);
#pragma GCC diagnostic pop
    T_EQ(system(command), 0);
}

/* Copies a store that is open: it may make or rename a file meanwhile, and then
 * cp fails. */
static void copy(const char *command, const char *path)
{
    char text[400];

    (void)snprintf(text, sizeof(text),
                   "until %s 2>/dev/null; do rm -rf %%2$s.bak %%2$s.links; "
                   "done",
                   command);
    shell(text, path, path);
}

static once_store *open_at(const char *path)
{
    once_store_options options = {
        sizeof(options), now_ms, NULL, 5000, 1, NULL, NULL, 0};
    once_error err = {0, ""};
    once_store *s = NULL;
    char url[200];

    (void)snprintf(url, sizeof(url), "%s:%s", driver, path);
    if (once_store_open(url, &options, &err, &s) != ONCE_OK) {
        printf("# %s\n", err.text);
        abort();
    }
    return s;
}

static int ask(once_store *s, int verb, uint8_t key, once_error *err)
{
    once_op op, *ops[1] = {&op};
    uint64_t fence = 0;
    int rc;

    memset(&op, 0, sizeof(op));
    memset(op.name, key, sizeof(op.name));
    memset(op.token, 0x11, sizeof(op.token));
    op.kind = ONCE_SUCCESS;
    op.lease_ms = 1000;
    op.keep_ms = 5000;
    op.result = (once_bytes){"done", 4};
    op.verb = verb == ONCE_OP_COMPLETE ? ONCE_OP_CLAIM : verb;
    rc = s->ops->apply(s, ops, 1, err);
    if (verb != ONCE_OP_COMPLETE || rc != ONCE_OK || op.rc != ONCE_OWNER)
        return rc != ONCE_OK ? rc : op.rc;
    fence = op.record.fence;
    op.verb = ONCE_OP_COMPLETE;
    op.fence = fence;
    rc = s->ops->apply(s, ops, 1, err);
    return rc != ONCE_OK ? rc : op.rc;
}

static int nobody(void *user, const uint8_t *name, const once_record *r)
{
    (void)user;
    (void)name;
    (void)r;
    return 0;
}

/* Nothing else answers either, and what the engine calls each second says so,
 * also where nobody asks anything. */
static void says_so(once_store *s, const char *path)
{
    once_error err = {0, ""};
    once_store_head head = {.incarnation = 1};
    once_named r = {.record.attempt = 1};
    once_counts counts;

    T_EQ(s->ops->maintain(s, &err), ONCE_ESTORE);
    T_OK(strstr(err.text, path) != NULL);
    if (s->ops->count == NULL)
        return;
    T_EQ(s->ops->count(s, &counts, &err), ONCE_ESTORE);
    T_EQ(s->ops->head(s, NULL, &head, &err), ONCE_ESTORE);
    T_EQ(s->ops->head(s, &head, &head, &err), ONCE_ESTORE);
    T_EQ(s->ops->import(s, &r, 1, &err), ONCE_ESTORE);
    T_OK(strstr(err.text, path) != NULL);
}

/* Whoever only looks is told what was acknowledged, for a moment yet. */
static void stops(once_store *s, const char *path)
{
    const struct timespec turn = {0, TURN_NS};
    once_error err = {0, ""};
    int i, rc = ONCE_OK;

    T_EQ(ask(s, ONCE_OP_CLAIM, 77, &err), ONCE_ESTORE);
    for (i = 0; i < TURNS && rc != ONCE_ESTORE; i++) {
        rc = ask(s, ONCE_OP_SHOW, 1, &err);
        T_OK(rc == ONCE_REPLAY || rc == ONCE_ESTORE);
        (void)nanosleep(&turn, NULL);
    }
    for (i = 0; i < 3; i++) {
        T_EQ(ask(s, ONCE_OP_SHOW, (uint8_t)i, &err), ONCE_ESTORE);
        T_EQ(err.code, ONCE_ESTORE);
        T_OK(strstr(err.text, path) != NULL);
        T_EQ(ask(s, ONCE_OP_CLAIM, (uint8_t)(60 + i), &err), ONCE_ESTORE);
        T_EQ(s->ops->scan(s, ONCE_SCAN_LEASE, NULL, 10, nobody, NULL, &err),
             ONCE_ESTORE);
        T_EQ(s->ops->scan(s, ONCE_SCAN_WAITING, NULL, 10, nobody, NULL, &err),
             ONCE_ESTORE);
    }
    says_so(s, path);
}

static const char *new_path(char *out, size_t size)
{
    static int n;

    (void)snprintf(out, size, "%s/%s-%d", folder, driver, n++);
    return out;
}

/* A store with key 1 in it and a copy of it at PATH.bak, open. */
static once_store *prepare(const char *path)
{
    once_store *s = open_at(path);

    T_EQ(ask(s, ONCE_OP_COMPLETE, 1, NULL), ONCE_OK);
    once_store_close(s);
    copy("cp -a %1$s %2$s.bak", path);
    s = open_at(path);
    T_EQ(ask(s, ONCE_OP_COMPLETE, 2, NULL), ONCE_OK);
    return s;
}

/* The log beside a database belongs to it. */
static void move(const char *from, const char *to)
{
    shell("mv %s %s", from, to);
    if (strcmp(driver, "sqlite") == 0) {
        shell("mv %s-wal %s-wal", from, to);
        shell("mv %s-shm %s-shm", from, to);
    }
}

static void a_copy_in_its_place_gets_no_answers_from_us(void)
{
    char path[100], away[120];
    once_store *s = prepare(new_path(path, sizeof(path))), *other;

    (void)snprintf(away, sizeof(away), "%s.broken", path);
    move(path, away);
    shell("cp -a %s.bak %s", path, path);
    stops(s, path);
    /* Another process has the copy, and that is a store of its own. */
    other = open_at(path);
    T_EQ(ask(other, ONCE_OP_SHOW, 1, NULL), ONCE_REPLAY);
    stops(s, path);
    once_store_close(other);
    once_store_close(s);
    s = open_at(path);
    T_EQ(ask(s, ONCE_OP_SHOW, 1, NULL), ONCE_REPLAY);
    T_EQ(ask(s, ONCE_OP_CLAIM, 3, NULL), ONCE_OWNER);
    once_store_close(s);
    s = open_at(away);
    T_EQ(ask(s, ONCE_OP_SHOW, 2, NULL), ONCE_REPLAY);
    once_store_close(s);
}

/* Hard links: each file is the very same one, until somebody makes a new one in
 * one of the two folders. */
static void a_folder_of_links_in_its_place_is_seen(void)
{
    char path[100];
    once_store *s;

    if (strcmp(driver, "journal") != 0) {
        printf("# skipped: %s has no folder\n", driver);
        return;
    }
    s = prepare(new_path(path, sizeof(path)));
    copy("cp -al %1$s %2$s.links", path);
    shell("mv %s %s.away", path, path);
    shell("mv %s.links %s", path, path);
    stops(s, path);
    once_store_close(s);
}

/* Nothing is asked while it happens: the next look must see it. */
static void maintenance_sees_it_by_itself(void)
{
    char path[100], away[120];
    once_error err = {0, ""};
    once_store *s = prepare(new_path(path, sizeof(path)));

    (void)snprintf(away, sizeof(away), "%s.away", path);
    T_EQ(s->ops->maintain(s, &err), ONCE_OK);
    move(path, away);
    shell("cp -a %s.bak %s", path, path);
    T_EQ(s->ops->maintain(s, &err), ONCE_ESTORE);
    T_OK(strstr(err.text, "was replaced") != NULL);
    once_store_close(s);
}

static void what_was_moved_away_is_not_answered_from(void)
{
    char path[100], away[120];
    once_store *s = prepare(new_path(path, sizeof(path)));

    (void)snprintf(away, sizeof(away), "%s.away", path);
    move(path, away);
    stops(s, path);
    move(away, path); /* the very same: nobody else can have written */
    T_EQ(ask(s, ONCE_OP_SHOW, 2, NULL), ONCE_REPLAY);
    T_EQ(ask(s, ONCE_OP_COMPLETE, 3, NULL), ONCE_OK);
    once_store_close(s);
    s = open_at(path);
    T_EQ(ask(s, ONCE_OP_SHOW, 3, NULL), ONCE_REPLAY);
    once_store_close(s);
}

static void what_was_removed_is_not_answered_from(void)
{
    char path[100];
    once_store *s = prepare(new_path(path, sizeof(path)));

    /* The store may make its next segment meanwhile. */
    shell("until rm -rf %s 2>/dev/null; do :; done; rm -f %s-*", path, path);
    stops(s, path);
    once_store_close(s);
}

static void a_link_that_leads_elsewhere_is_seen(void)
{
    char path[100], real[120];
    once_store *s;

    (void)new_path(path, sizeof(path));
    (void)snprintf(real, sizeof(real), "%s.real", path);
    shell("ln -s %s %s", real, path);
    shell(strcmp(driver, "journal") == 0 ? "mkdir -m 700 %s%s" : "touch %s%s",
          real, "");
    s = open_at(path);
    T_EQ(ask(s, ONCE_OP_COMPLETE, 1, NULL), ONCE_OK);
    shell("ln -sfn %s.two %s", path, path);
    stops(s, path);
    once_store_close(s);
}

/* Who may write to the folder must not lead root elsewhere: root follows its own
 * links, also one to another of them, but nobody else's. */
static void a_link_of_another_user_is_not_followed(void)
{
    once_store_options options = {
        sizeof(options), now_ms, NULL, 5000, 1, NULL, NULL, 0};
    char path[100], real[120], url[140];
    once_error err = {0, ""};
    once_store *s;

    if (geteuid() != 0) {
        printf("# skipped: only root may give links away\n");
        return;
    }
    (void)new_path(path, sizeof(path));
    (void)snprintf(real, sizeof(real), "%s.real", path);
    s = open_at(real);
    T_EQ(ask(s, ONCE_OP_COMPLETE, 1, NULL), ONCE_OK);
    once_store_close(s);
    shell("ln -s %s %s.one", real, path);
    shell("ln -s $(basename %s).one %s", path, path);
    s = open_at(path);
    T_EQ(ask(s, ONCE_OP_SHOW, 1, NULL), ONCE_REPLAY);
    once_store_close(s);
    shell("chown -h 65534 %s.one%s", path, "");
    (void)snprintf(url, sizeof(url), "%s:%s", driver, path);
    s = NULL;
    T_EQ(once_store_open(url, &options, &err, &s), ONCE_EOPEN);
    T_OK(strstr(err.text, "a link that belongs to another user") != NULL);
    T_OK(s == NULL);
}

static void new_files_in_the_same_place_are_seen(void)
{
    char path[100];
    once_store *s = prepare(new_path(path, sizeof(path)));

    if (strcmp(driver, "sqlite") == 0) {
        shell("rm %s-wal%s", path, "");
    } else {
        shell("rm -f %s/*%s", path, ""); /* one may just be made */
        shell("cp -a %s.bak/. %s", path, path);
    }
    stops(s, path);
    once_store_close(s);
}

static void a_path_goes_by_the_folder_in_which_it_was_opened(void)
{
    char path[100], was[200];
    const char *name = strrchr(new_path(path, sizeof(path)), '/') + 1;
    once_store *s;

    T_OK(getcwd(was, sizeof(was)) != NULL);
    T_EQ(chdir(folder), 0);
    s = open_at(name);
    T_EQ(chdir("/"), 0);
    T_EQ(ask(s, ONCE_OP_COMPLETE, 1, NULL), ONCE_OK);
    T_EQ(s->ops->scan(s, ONCE_SCAN_ALL, NULL, 10, nobody, NULL, NULL), 1);
    T_EQ(chdir(was), 0);
    once_store_close(s);
}

static void all(const char *name)
{
    driver = name;
    printf("# %s\n", name);
    T_RUN(a_copy_in_its_place_gets_no_answers_from_us);
    T_RUN(a_folder_of_links_in_its_place_is_seen);
    T_RUN(maintenance_sees_it_by_itself);
    T_RUN(what_was_moved_away_is_not_answered_from);
    T_RUN(what_was_removed_is_not_answered_from);
    T_RUN(a_link_that_leads_elsewhere_is_seen);
    T_RUN(a_link_of_another_user_is_not_followed);
    T_RUN(new_files_in_the_same_place_are_seen);
    T_RUN(a_path_goes_by_the_folder_in_which_it_was_opened);
}

int main(int argc, char **argv)
{
    const char *only = argc == 2 ? argv[1] : "";
    char command[100];

    (void)snprintf(folder, sizeof(folder), "/tmp/once-replaced-XXXXXX");
    if (mkdtemp(folder) == NULL)
        return 2;
    if (strcmp(only, "sqlite") != 0)
        all("journal");
    if (strcmp(only, "journal") != 0)
        all("sqlite");
    (void)snprintf(command, sizeof(command), "rm -rf '%s'", folder);
    if (system(command) != 0)
        printf("# %s is still there\n", folder);
    return t_done();
}
