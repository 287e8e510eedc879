/* SPDX-License-Identifier: Apache-2.0 */
/* test_broker_exec.c - a command for each message. */
#include "broker_kit.h"

#include <sys/stat.h>
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

static void what_cannot_start_is_refused(void)
{
    static const char *const urls[] = {"exec:/nonexistent/program a",
                                       "exec:/etc/passwd", "exec:/"};
    struct once__broker_options o = kit_options(NULL, 0);
    once_message m = kit_message("id", NULL, "b", 1);
    size_t i;

    for (i = 0; i < 3; i++) {
        struct once__broker *b = kit_open(urls[i], &o);
        struct kit_ends ends = {0};

        T_EQ(b->ops->send(b, &m, 0, NULL), ONCE_OK);
        T_EQ(kit_collect(b, &ends, 1, 0), 1);
        T_EQ(ends.end[0], ONCE__END_REFUSED);
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

    T_EQ(run("ls /proc/$$/fd | tr '\\n' ' ' >$out\n", &m, 30000, NULL),
         ONCE__END_TAKEN);
    (void)close(fd);
    got = read_file(out, &n);
    /* 10: the shell's own script */
    T_OK(strcmp(got, "0 1 10 2 ") == 0 || strcmp(got, "0 1 2 255 ") == 0);
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
        int i;

        got[strcspn(got, "\n")] = '\0';
        (void)snprintf(path, sizeof(path), "/proc/%.20s/cwd", got);
        for (i = 0; i < 100 && readlink(path, got, 10) >= 0; i++)
            (void)usleep(20000);
        T_OK(i < 100);
    }
    free(got);
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
    T_RUN(what_cannot_start_is_refused);
    T_RUN(the_command_gets_the_message);
    T_RUN(one_that_does_not_read_is_no_trouble);
    T_RUN(it_gets_no_file_of_ours);
    T_RUN(too_slow_is_in_doubt_and_ends_with_its_children);
    (void)snprintf(command, sizeof(command), "rm -rf '%s'", folder);
    (void)!system(command);
    return t_done();
}
