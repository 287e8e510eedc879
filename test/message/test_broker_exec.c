/* SPDX-License-Identifier: Apache-2.0 */
/* test_broker_exec.c - a command for each message, and around it a target that
 * misbehaves on purpose. */
#include "broker_kit.h"
#include "patience.h"

#include <spawn.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

static char folder[64], out[128];

static void write_script(const char *text, char *url, size_t size)
{
    char path[128];
    FILE *f;

    (void)snprintf(path, sizeof(path), "%s/script", folder);
    (void)unlink(path);
    f = fopen(path, "w");
    if (f == NULL)
        abort();
    (void)fprintf(f, "#!/bin/sh\nout=%s\n%s", out, text);
    (void)fclose(f);
    (void)chmod(path, 0700);
    (void)snprintf(url, size, "exec:%s one two", path);
}

static int run(const char *text, const once_message *m, uint32_t timeout_ms,
               int *status)
{
    struct once__broker_options o = kit_options(NULL, 0);
    struct kit_ends ends = {0};
    struct once__broker *b;
    char url[256];

    write_script(text, url, sizeof(url));
    o.timeout_ms = timeout_ms;
    b = kit_open(url, &o);
    T_EQ(b->ops->send(b, m, 7, NULL), ONCE_OK);
    T_EQ(kit_collect(b, &ends, 1, 0), 1);
    T_EQ(ends.n[7], 1);
    b->ops->close(b);
    if (status != NULL)
        *status = ends.status[7];
    return ends.end[7];
}

static void the_exit_status_decides(void)
{
    once_message m = kit_message("id", NULL, "b", 1);
    int status;

    T_EQ(run("exit 0\n", &m, 30000, &status), ONCE__END_TAKEN);
    T_EQ(run("exit 75\n", &m, 30000, &status), ONCE__END_REFUSED);
    T_EQ(status, 75);
    T_EQ(run("exit 65\n", &m, 30000, &status), ONCE__END_REJECTED);
    T_EQ(run("exit 1\n", &m, 30000, &status), ONCE__END_SILENT);
    T_EQ(status, 1);
    T_EQ(run("exit 127\n", &m, 30000, &status), ONCE__END_SILENT);
    T_EQ(run("kill -9 $$\n", &m, 30000, &status), ONCE__END_SILENT);
}

/* qemu-user makes of posix_spawn()'s child a copy of the parent, so that the child
 * cannot tell it that there is no such program. */
static int says_what_cannot_start(void)
{
    static char missing[] = "/nonexistent/program";
    char *const words[] = {missing, NULL};
    pid_t pid;

    if (posix_spawn(&pid, missing, NULL, NULL, words, environ) != 0)
        return 1;
    (void)waitpid(pid, NULL, 0);
    return 0;
}

/* It is the host's fault and not the row's: no attempt is counted. */
static void what_cannot_start_is_away(void)
{
    static const char *const urls[] = {"exec:/nonexistent/program a",
                                       "exec:/etc/passwd", "exec:/"};
    struct once__broker_options o = kit_options(NULL, 0);
    once_message m = kit_message("id", NULL, "b", 1);
    once_error err = {0};
    size_t i;

    if (!says_what_cannot_start()) {
        printf("# left out, qemu-user does not say what cannot start\n");
        return;
    }
    for (i = 0; i < 3; i++) {
        const struct once__broker_ops *ops = once__broker_find(urls[i], NULL);
        struct kit_ends ends = {0};
        struct once__broker *b = NULL;

        T_EQ(ops->open(urls[i], &o, &b, NULL), ONCE_OK);
        T_EQ(ops->connect(b, &err), ONCE_EOPEN);
        T_OK(strstr(err.text, "cannot be executed") != NULL);
        T_EQ(b->ops->send(b, &m, 0, NULL), ONCE_OK);
        T_EQ(kit_collect(b, &ends, 1, 0), 1);
        T_EQ(ends.end[0], ONCE__END_AWAY);
        b->ops->close(b);
    }
}

static char *read_file(const char *path, size_t *size)
{
    FILE *f = fopen(path, "r");
    char *text = calloc(1, 4 << 20);

    if (f == NULL || text == NULL)
        abort();
    *size = fread(text, 1, (4 << 20) - 1, f);
    (void)fclose(f);
    return text;
}

static void the_command_gets_the_message(void)
{
    static char body[3 << 20];
    once_message m = kit_message("id/1", "key;1", body, sizeof(body));
    char *got;
    size_t i, n;

    for (i = 0; i < sizeof(body); i++)
        body[i] = (char)(i * 2654435761u >> 11);
    (void)setenv("ONCE_KEY", "of the parent", 1);
    m.type = "text/plain";
    T_EQ(run("cat >$out\n", &m, 30000, NULL), ONCE__END_TAKEN);
    got = read_file(out, &n);
    T_EQ(n, sizeof(body));
    T_MEM(got, body, sizeof(body));
    free(got);
    T_EQ(run("echo \"$*|$ONCE_ID|$ONCE_KEY|$ONCE_ROUTE|$ONCE_TYPE\" >$out\n",
             &m, 30000, NULL),
         ONCE__END_TAKEN);
    got = read_file(out, &n);
    T_STR(got, "one two|id/1|key;1|route|text/plain\n");
    free(got);
    m.key = NULL;
    m.type = NULL;
    m.body.size = 0;
    T_EQ(run("echo \"${ONCE_KEY-none}|${ONCE_TYPE-none}|$(cat)|\" >$out\n", &m,
             30000, NULL),
         ONCE__END_TAKEN);
    got = read_file(out, &n);
    T_STR(got, "none|none||\n");
    free(got);
}

static void one_that_does_not_read_is_no_trouble(void)
{
    static char body[1 << 20];
    once_message m = kit_message("id", NULL, body, sizeof(body));

    T_EQ(run("exit 0\n", &m, 30000, NULL), ONCE__END_TAKEN);
    T_EQ(run("head -c 10 >/dev/null; exit 75\n", &m, 30000, NULL),
         ONCE__END_REFUSED);
}

static void it_gets_no_file_of_ours(void)
{
    once_message m = kit_message("id", NULL, "b", 1);
    int fd = dup(1);
    char *got;
    size_t n;

    /* No pipe: the shell may have its ends open while `ls` looks. */
    T_EQ(run("(ls /proc/$$/fd >$out)\n", &m, 30000, NULL), ONCE__END_TAKEN);
    (void)close(fd);
    got = read_file(out, &n);
    /* 10: the shell's own script */
    T_OK(strcmp(got, "0\n1\n10\n2\n") == 0 ||
         strcmp(got, "0\n1\n2\n255\n") == 0);
    free(got);
}

static void too_slow_is_in_doubt_and_ends_with_its_children(void)
{
    once_message m = kit_message("id", NULL, "b", 1);
    char *got;
    size_t n;

    T_EQ(run("sleep 1000 & echo $! >$out\ntrap '' TERM\nsleep 1000\n", &m, 500,
             NULL),
         ONCE__END_SILENT);
    got = read_file(out, &n);
    T_OK(n > 0 && access("/proc", F_OK) == 0);
    if (n > 1) {
        char path[64];
        int64_t left_ms = (int64_t)patient_ms(10000);

        got[strcspn(got, "\n")] = '\0';
        (void)snprintf(path, sizeof(path), "/proc/%.20s/cwd", got);
        for (; left_ms > 0 && readlink(path, got, 10) >= 0; left_ms -= 20)
            (void)usleep(20000);
        T_OK(left_ms > 0);
    }
    free(got);
}

/* ---- Around it one that misbehaves -------------------------------------- */

enum { SOME = 40 };

/* Sends SOME messages, two keys and none in turn, through `rules`; the ids as
 * they arrived, on the heap. */
static char *arrivals(const char *rules, struct kit_ends *ends)
{
    struct once__broker_options o = kit_options(NULL, 0);
    struct kit_many *many = kit_many_new();
    struct once__broker *b;
    char inner[256], url[512];
    size_t i, n;

    (void)unlink(out);
    write_script("echo $ONCE_ID >>$out\n", inner, sizeof(inner));
    (void)snprintf(url, sizeof(url), "faulty:%s@%s", rules, inner);
    memset(ends, 0, sizeof(*ends));
    b = kit_open(url, &o);
    for (i = 0; i < SOME; i++) {
        static const char *const keys[] = {"a", "b", NULL};

        (void)snprintf(many->id[i], sizeof(many->id[i]), "%s.%02zu",
                       i % 3 == 2 ? "none" : keys[i % 3], i);
        many->m[i] = kit_message(many->id[i], keys[i % 3], "x", 1);
        T_EQ(b->ops->send(b, &many->m[i], i, NULL), ONCE_OK);
    }
    T_EQ(kit_collect(b, ends, SOME, 30000), SOME);
    T_EQ(kit_collect(b, ends, 1, 0), 0);
    b->ops->close(b);
    free(many);
    for (i = 0; i < SOME; i++)
        T_EQ(ends->n[i], 1);
    return access(out, F_OK) == 0 ? read_file(out, &n) : calloc(1, 1);
}

static int count(const char *text, const char *what)
{
    int n = 0;

    while ((text = strstr(text, what)) != NULL) {
        text++;
        n++;
    }
    return n;
}

static int all_ended(const struct kit_ends *ends, int end)
{
    int i, n = 0;

    for (i = 0; i < SOME; i++)
        n += ends->end[i] == end;
    return n;
}

static void copies_are_sent_twice_and_proved_once(void)
{
    struct kit_ends *ends = calloc(1, sizeof(*ends));
    char *got = arrivals("copies=100", ends);

    T_EQ(count(got, "\n"), 2 * SOME);
    T_EQ(all_ended(ends, ONCE__END_TAKEN), SOME);
    free(got);
    got = arrivals("copies=30", ends);
    T_OK(count(got, "\n") > SOME && count(got, "\n") < 2 * SOME);
    T_EQ(all_ended(ends, ONCE__END_TAKEN), SOME);
    free(got);
    free(ends);
}

static void a_lost_proof_is_of_a_taken_message(void)
{
    struct kit_ends *ends = calloc(1, sizeof(*ends));
    char *got = arrivals("silent=100", ends);

    T_EQ(count(got, "\n"), SOME);
    T_EQ(all_ended(ends, ONCE__END_SILENT), SOME);
    free(got);
    got = arrivals("refuse=100", ends);
    T_STR(got, "");
    T_EQ(all_ended(ends, ONCE__END_REFUSED), SOME);
    free(got);
    free(ends);
}

static int is_sorted(const char *text, const char *key)
{
    int last = -1, n;

    while ((text = strstr(text, key)) != NULL) {
        text += strlen(key);
        n = (int)strtol(text, NULL, 10);
        if (n <= last)
            return 0;
        last = n;
    }
    return last >= 0;
}

static void late_messages_keep_the_order_of_their_key(void)
{
    struct kit_ends *ends = calloc(1, sizeof(*ends));
    char *plain = arrivals("late=0", ends), *one = arrivals("late=40", ends);
    char *same = arrivals("seed=1,late=40", ends);
    char *other = arrivals("seed=2,late=40", ends);

    T_STR(one, same);
    T_OK(strcmp(one, plain) != 0 && strcmp(one, other) != 0);
    T_EQ(count(one, "\n"), SOME);
    T_OK(is_sorted(one, "a.") && is_sorted(one, "b."));
    T_OK(is_sorted(other, "a.") && is_sorted(other, "b."));
    T_EQ(all_ended(ends, ONCE__END_TAKEN), SOME);
    free(plain);
    free(one);
    free(same);
    free(other);
    free(ends);
}

static void what_was_held_back_is_unsent_when_given_up(void)
{
    struct once__broker_options o = kit_options(NULL, 0);
    struct once__broker *b = kit_open("faulty:late=100@exec:true", &o);
    once_message m = kit_message("id", NULL, "b", 1);
    struct kit_ends *ends = calloc(1, sizeof(*ends));

    T_EQ(b->ops->at_once, 1);
    T_OK(b->ops->receive == NULL);
    T_EQ(b->ops->send(b, &m, 0, NULL), ONCE_OK);
    b->ops->abandon(b);
    T_EQ(kit_collect(b, ends, 1, 0), 1);
    T_EQ(ends->end[0], ONCE__END_UNSENT);
    b->ops->close(b);
    free(ends);
}

static void wrong_rules_are_refused(void)
{
    static const char *const urls[] = {
        "faulty:amqp://u:s3cret@h/",   "faulty:copies=101@exec:true",
        "faulty:copies=-1@exec:true",  "faulty:copies=1,@exec:true",
        "faulty:sed=1@exec:true",      "faulty:copies=1",
        "faulty:copies=1@nothing:u",   "faulty:",
        "faulty:seed=1,late=x@exec:t", "faulty:copies=1@exec:",
    };
    struct once__broker_options o = kit_options(NULL, 0);
    size_t i;

    for (i = 0; i < sizeof(urls) / sizeof(urls[0]); i++) {
        struct once__broker *b = NULL;
        once_error err = {0};

        T_EQ(once__broker_find(urls[i], NULL)->open(urls[i], &o, &b, &err),
             ONCE_EURL);
        T_OK(err.text[0] != '\0' && strstr(err.text, "s3cret") == NULL);
    }
}

static void wrong_urls_are_refused(void)
{
    struct once__broker_options o = kit_options(NULL, 0);
    static char many[2048] = "exec:pp";
    struct once__broker *b = NULL;
    once_error err = {0};
    int i;

    T_EQ(once__broker_find("exec:", NULL)->open("exec: ", &o, &b, &err),
         ONCE_EURL);
    for (i = 6; i < 406; i += 2)
        memcpy(many + 1 + i, " a", 2);
    T_EQ(once__broker_find("exec:", NULL)->open(many, &o, &b, &err), ONCE_EURL);
    T_OK(once__broker_find("nothing:x", &err) == NULL);
    T_OK(strstr(err.text, "exec:") != NULL);
}

int main(void)
{
    char command[128];

    (void)snprintf(folder, sizeof(folder), "/tmp/once-exec-XXXXXX");
    if (mkdtemp(folder) == NULL)
        abort();
    (void)snprintf(out, sizeof(out), "%s/out", folder);
    T_RUN(wrong_urls_are_refused);
    T_RUN(the_exit_status_decides);
    T_RUN(what_cannot_start_is_away);
    T_RUN(the_command_gets_the_message);
    T_RUN(one_that_does_not_read_is_no_trouble);
    T_RUN(it_gets_no_file_of_ours);
    T_RUN(too_slow_is_in_doubt_and_ends_with_its_children);
    T_RUN(wrong_rules_are_refused);
    T_RUN(copies_are_sent_twice_and_proved_once);
    T_RUN(a_lost_proof_is_of_a_taken_message);
    T_RUN(late_messages_keep_the_order_of_their_key);
    T_RUN(what_was_held_back_is_unsent_when_given_up);
    (void)snprintf(command, sizeof(command), "rm -rf '%s'", folder);
    (void)!system(command);
    return t_done();
}
