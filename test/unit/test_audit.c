/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_audit.c - the audit log: what is written, by many at once and over
 * renamed files; and that each way to change it afterwards is found.
 */
#include "operate/audit/audit.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <unistd.h>

#include <sys/file.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include "t.h"

static char folder[64];
static char log_path[96];

static const char *in_folder(const char *name)
{
    static char path[8][160];
    static int i;

    i = (i + 1) % 8;
    snprintf(path[i], sizeof(path[i]), "%s/%s", folder, name);
    return path[i];
}

static void empty_folder(void)
{
    char command[128];

    if (folder[0] != '\0') {
        snprintf(command, sizeof(command), "rm -rf %s", folder);
        T_EQ(system(command), 0);
    }
    snprintf(folder, sizeof(folder), "/tmp/test-audit-XXXXXX");
    T_OK(mkdtemp(folder) != NULL);
    snprintf(log_path, sizeof(log_path), "%s/audit.jsonl", folder);
}

/* ---- Files ---------------------------------------------------------------- */

static char *read_text(const char *path)
{
    FILE *in = fopen(path, "rb");
    char *text = calloc(1, 1 << 20);
    size_t n;

    if (text == NULL || in == NULL)
        abort();
    n = fread(text, 1, (1 << 20) - 1, in);
    text[n] = '\0';
    fclose(in);
    return text;
}

static void write_text(const char *path, const char *text, size_t size)
{
    FILE *to = fopen(path, "wb");

    if (to == NULL || fwrite(text, 1, size, to) != size)
        abort();
    fclose(to);
}

static void append_text(const char *path, const char *text)
{
    FILE *to = fopen(path, "ab");

    if (to == NULL || fputs(text, to) < 0)
        abort();
    fclose(to);
}

static size_t count_lines(const char *path)
{
    char *text = read_text(path), *p;
    size_t n = 0;

    for (p = text; (p = strchr(p, '\n')) != NULL; p++)
        n++;
    free(text);
    return n;
}

/* ---- Writing -------------------------------------------------------------- */

static const uint8_t name[ONCE_NAME_SIZE] = {0xa1, 0xb2, 0xc3, 0xd4};
static const once__audit_who alice = {1000, 1001, "alice", "a test"};

static once__audit_entry entry(const char *action)
{
    return (once__audit_entry){.action = action,
                               .who = &alice,
                               .name = name,
                               .fence = 7,
                               .attempt = 1,
                               .why = "ticket 12"};
}

static once__audit *opened(void)
{
    once_error err = {0, ""};
    once__audit *a = NULL;
    int rc = once__audit_open(log_path, &err, &a);

    if (!T_OK(rc == ONCE_OK))
        printf("#   %s\n", err.text);
    return a;
}

/* An intent and its end; the number of the intent. */
static uint64_t decide(once__audit *a, const char *action)
{
    once__audit_entry e = entry(action);
    once_error err = {0, ""};
    uint64_t seq = 0;

    if (!T_OK(once__audit_begin(a, &e, &seq, &err) == ONCE_OK) ||
        !T_OK(once__audit_end(a, &e, seq, ONCE__AUDIT_DONE, NULL, &err) ==
              ONCE_OK))
        printf("#   %s\n", err.text);
    return seq;
}

/* ---- Checking ------------------------------------------------------------- */

#define ZEROS "0000000000000000000000000000000000000000000000000000000000000000"

static char said[4096];
static once__audit_sum sum;

static void report(void *user, const char *path, uint64_t number, int bad,
                   const char *text)
{
    size_t n = strlen(said);

    (void)user;
    (void)path;
    snprintf(said + n, sizeof(said) - n, "%s%" PRIu64 ": %s\n",
             bad ? "" : "note ", number, text);
}

static uint64_t check(const char *const *paths, size_t n)
{
    once_error err = {0, ""};

    said[0] = '\0';
    if (!T_OK(once__audit_check(paths, n, NULL, report, NULL, &sum, &err) ==
              ONCE_OK))
        printf("#   %s\n", err.text);
    return sum.bad;
}

static uint64_t check_log(void)
{
    const char *paths[] = {log_path};

    return check(paths, 1);
}

#define SAID(text) T_OK(strstr(said, (text)) != NULL || !printf("#   %s", said))

/* ---- Tests ---------------------------------------------------------------- */

static int see_first(void *user, const once__audit_line *line)
{
    once__audit_line *out = user;

    if (line->number == 2) {
        *out = *line;
        json_incref(out->json);
    }
    return 0;
}

static void a_line_says_who_what_and_why(void)
{
    static const uint8_t store[16] = {0x51};
    once__audit_entry e = entry("resolve");
    once__audit_line line = {.number = 0};
    uint8_t digest[ONCE__AUDIT_HASH];
    once_error err = {0, ""};
    once__audit *a;
    uint64_t seq = 0;
    struct stat st;

    empty_folder();
    a = opened();
    once__audit_digest((once_bytes){"abc", 3}, digest);
    e.kind = "success";
    e.digest = digest;
    e.store = store;
    e.incarnation = 3;
    T_EQ(once__audit_begin(a, &e, &seq, &err), ONCE_OK);
    T_EQ(seq, 2);
    T_EQ(once__audit_read(log_path, see_first, &line, &err), ONCE_OK);
    T_OK(line.flaw == NULL);
#define FIELD(field) json_string_value(json_object_get(line.json, (field)))
    T_STR(FIELD("step"), "intent");
    T_STR(FIELD("action"), "resolve");
    T_STR(FIELD("kind"), "success");
    T_STR(FIELD("user"), "alice");
    T_STR(FIELD("way"), "a test");
    T_STR(FIELD("why"), "ticket 12");
    T_STR(FIELD("fence"), "7");
    T_STR(FIELD("store"), "51000000000000000000000000000000");
    /* RFC 6234's vector: nobody has to believe our own hash. */
    T_STR(FIELD("outcome"),
          "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
    T_EQ(json_integer_value(json_object_get(line.json, "uid")), 1000);
    T_EQ(json_integer_value(json_object_get(line.json, "login_uid")), 1001);
    T_EQ(json_integer_value(json_object_get(line.json, "incarnation")), 3);
    json_decref(line.json);
    T_OK(stat(log_path, &st) == 0 && (st.st_mode & 0007) == 0);
    once__audit_close(a);
}

static void a_chain_of_decisions_is_whole(void)
{
    once__audit *a;
    int i;

    empty_folder();
    a = opened();
    for (i = 0; i < 10; i++)
        decide(a, "resolve");
    once__audit_close(a);
    T_EQ(check_log(), 0);
    T_EQ(sum.notes, 0);
    T_EQ(sum.lines, 21);
    T_EQ(sum.last_seq, 21);
}

static void texts_of_any_bytes_stay_one_line(void)
{
    static const char *const texts[] = {
        "two\nlines", "\033[2J", "caf\xc3\xa9", "\xff\xfe", "\"}\n{\"seq\":9",
    };
    char large[5000];
    size_t i;
    once__audit *a;
    once_error err = {0, ""};
    uint64_t seq;

    memset(large, 'x', sizeof(large) - 1);
    large[sizeof(large) - 1] = '\0';
    memcpy(large + ONCE__AUDIT_TEXT_MAX - 1, "\xc3\xa9", 2); /* at the cut */
    empty_folder();
    a = opened();
    for (i = 0; i < 6; i++) {
        once__audit_entry e = entry("resolve");

        e.why = i < 5 ? texts[i] : large;
        T_EQ(once__audit_begin(a, &e, &seq, &err), ONCE_OK);
        T_EQ(once__audit_end(a, &e, seq, ONCE__AUDIT_REFUSED, e.why, &err),
             ONCE_OK);
    }
    once__audit_close(a);
    T_EQ(count_lines(log_path), 13);
    T_EQ(check_log(), 0);
}

/* Each byte of a log with 5 lines, the line breaks too. */
static void one_flipped_bit_is_found_wherever_it_is(void)
{
    once__audit *a;
    char *text;
    size_t i, size, missed = 0;

    empty_folder();
    a = opened();
    decide(a, "resolve");
    decide(a, "forget");
    once__audit_close(a);
    text = read_text(log_path);
    size = strlen(text);
    for (i = 0; i < size; i++) {
        text[i] ^= 1;
        write_text(log_path, text, size);
        text[i] ^= 1;
        /* The very last line break may go: the line is whole all the same. */
        if (check_log() == 0 && i + 1 < size) {
            printf("#   byte %zu\n", i);
            missed++;
        }
    }
    T_EQ(missed, 0);
    free(text);
}

static void which_line_was_flipped_is_said(void)
{
    once__audit *a;
    char *text, *p;

    empty_folder();
    a = opened();
    decide(a, "resolve");
    decide(a, "resolve");
    once__audit_close(a);
    text = read_text(log_path);
    p = strstr(strchr(strchr(text, '\n') + 1, '\n') + 1, "alice");
    memcpy(p, "mally", 5);
    write_text(log_path, text, strlen(text));
    T_EQ(check_log(), 1);
    SAID("3: its hash is not that of its text");
    free(text);
}

/* One who can write can also count hashes: the next line shows it. */
static void a_replaced_line_is_found(void)
{
    char *text, *other, *p, *q;
    once__audit *a;

    empty_folder();
    a = opened();
    decide(a, "forget");
    decide(a, "resolve");
    once__audit_close(a);
    other = read_text(log_path);
    empty_folder();
    a = opened();
    decide(a, "resolve");
    decide(a, "resolve");
    once__audit_close(a);
    text = read_text(log_path);
    /* The second line of the other log, whose hash is its own. */
    p = strchr(text, '\n') + 1;
    q = strchr(other, '\n') + 1;
    *p = '\0';
    write_text(log_path, text, strlen(text));
    *p = '{';
    *(strchr(q, '\n') + 1) = '\0';
    append_text(log_path, q);
    append_text(log_path, strchr(p, '\n') + 1);
    T_OK(check_log() > 0);
    SAID("2: it does not follow the line before");
    free(text);
    free(other);
}

/* What the log is after `order` of its lines, each a digit from 1. */
static uint64_t check_lines(const char *order)
{
    char *lines[10] = {NULL}, *text, *p;
    size_t n = 0;
    once__audit *a;

    empty_folder();
    a = opened();
    decide(a, "resolve");
    decide(a, "resolve");
    once__audit_close(a);
    text = read_text(log_path);
    for (p = strtok_r(text, "\n", &lines[9]); p;
         p = strtok_r(NULL, "\n", &lines[9]))
        lines[n++] = p;
    T_EQ(n, 5);
    write_text(log_path, "", 0);
    for (; *order != '\0'; order++) {
        append_text(log_path, lines[*order - '1']);
        append_text(log_path, "\n");
    }
    free(text);
    return check_log();
}

static void swapped_and_missing_lines_are_found(void)
{
    T_EQ(check_lines("12345"), 0);
    T_OK(check_lines("13245") > 0);
    SAID("2: it is number 3 after 1");
    SAID("3: it is number 2 after 3: out of order");
    T_OK(check_lines("1245") > 0);
    SAID("3: it is number 4 after 2: 1 missing between");
    T_OK(check_lines("2345") > 0);
    SAID("1: a log begins with a line \"log-start\"");
    T_OK(check_lines("123445") > 0);
    SAID("5: it is number 4 after 4: out of order");
    T_OK(check_lines("") > 0);
    SAID("0: there is no line in it");
    /* The chain cannot show this one; syslog can. The intent does. */
    T_EQ(check_lines("1234"), 0);
    SAID(
        "note 4: an intent without an end (resolve a1b2c3d400000000 by alice)");
}

/* A crash can leave any part of the line that was written last. */
static void a_line_that_a_crash_cut_short_is_named_by_the_next_one(void)
{
    size_t size, cut, whole = 0;
    once__audit *a;
    char *text;

    empty_folder();
    a = opened();
    decide(a, "resolve");
    text = read_text(log_path);
    size = strlen(text);
    for (cut = size - 1; cut > 0; cut--) {
        write_text(log_path, text, cut);
        decide(a, "resolve");
        if (!T_OK(check_log() == 0)) {
            printf("#   cut at %zu: %s", cut, said);
            break;
        }
        whole += sum.notes == 0 || strstr(said, "cut short") == NULL;
    }
    /* Only where a line break was all that was missing, or a whole line is. */
    T_EQ(whole, 3 + 2);
    free(text);
    once__audit_close(a);
}

static void damage_is_not_taken_for_a_crash(void)
{
    once__audit *a;
    char *text;

    empty_folder();
    a = opened();
    decide(a, "resolve");
    text = read_text(log_path);
    memcpy(strstr(strstr(text, "\"of\":"), "alice"), "mally", 5);
    write_text(log_path, text, strlen(text));
    free(text);
    decide(a, "resolve"); /* decisions go on */
    T_EQ(check_log(), 1);
    SAID("3: its hash is not that of its text");
    once__audit_close(a);
}

static void a_renamed_log_is_followed_by_the_next_one(void)
{
    static const char *const ends[] = {"audit.jsonl.1", "audit.jsonl-20261201"};
    const char *paths[2] = {NULL, log_path};
    once__audit *a;
    size_t i;

    for (i = 0; i < 2; i++) {
        empty_folder();
        a = opened();
        decide(a, "resolve");
        paths[0] = in_folder(ends[i]);
        T_EQ(rename(log_path, paths[0]), 0);
        if (i == 1) /* logrotate's `create` */
            write_text(log_path, "", 0);
        write_text(in_folder("audit.jsonl.2.gz"), "\x1f\x8b", 2);
        write_text(in_folder("audit.jsonl.notes"), "no log\n", 7);
        decide(a, "resolve");
        T_EQ(check(paths, 2), 0);
        T_EQ(sum.last_seq, 3 + 3);
        T_EQ(check_log(), 0);
        SAID("note 1: it goes on from audit.jsonl");
        /* The second file was begun anew, without the first one. */
        unlink(log_path);
        T_EQ(rename(paths[0], in_folder("elsewhere")), 0);
        decide(a, "resolve");
        paths[0] = in_folder("elsewhere");
        T_OK(check(paths, 2) > 0);
        SAID("1: it begins a chain of its own");
        once__audit_close(a);
    }
}

static void a_log_that_was_cut_before_it_was_renamed(void)
{
    const char *paths[2] = {in_folder("audit.jsonl.1"), log_path};
    once__audit *a;

    empty_folder();
    paths[0] = in_folder("audit.jsonl.1");
    a = opened();
    decide(a, "resolve");
    T_EQ(truncate(log_path, 700), 0);
    T_EQ(rename(log_path, paths[0]), 0);
    decide(a, "resolve");
    T_EQ(check(paths, 2), 0);
    SAID("note 1: the line before was cut short by a crash");
    once__audit_close(a);
}

/* ---- Several at once ------------------------------------------------------- */

enum { WRITERS = 4, EACH = 25 };

static void *write_many(void *user)
{
    int i;

    for (i = 0; i < EACH; i++)
        decide(user, "resolve");
    return NULL;
}

static void threads_and_processes_write_one_chain(void)
{
    pthread_t threads[WRITERS];
    const char *paths[2];
    once__audit *a;
    struct stat st;
    int i, status;
    pid_t child;

    empty_folder();
    a = opened();
    fflush(stdout);
    child = fork();
    if (child == 0) {
        write_many(a);
        _exit(0);
    }
    for (i = 0; i < WRITERS; i++)
        T_EQ(pthread_create(&threads[i], NULL, write_many, a), 0);
    /* Renamed while they write: who waits for the old one goes on in the new. */
    while (stat(log_path, &st) != 0 || st.st_size == 0)
        usleep(1000);
    paths[0] = in_folder("audit.jsonl.1");
    paths[1] = log_path;
    T_EQ(rename(log_path, paths[0]), 0);
    for (i = 0; i < WRITERS; i++)
        pthread_join(threads[i], NULL);
    T_OK(waitpid(child, &status, 0) == child && status == 0);
    decide(a, "resolve");
    T_EQ(check(paths, 2), 0);
    T_EQ(sum.notes, 0);
    T_EQ(sum.last_seq, 2 * ((WRITERS + 1) * EACH + 1) + 2);
    once__audit_close(a);
}

static void *write_one(void *user)
{
    decide(user, "resolve");
    return NULL;
}

/* A writer that waits for the lock of a file that is renamed meanwhile. */
static void who_waits_for_a_renamed_log_writes_to_the_next_one(void)
{
    const char *paths[2];
    pthread_t thread;
    once__audit *a;
    int fd;

    empty_folder();
    paths[0] = in_folder("audit.jsonl.1");
    paths[1] = log_path;
    a = opened();
    decide(a, "resolve");
    fd = open(log_path, O_RDWR);
    T_EQ(flock(fd, LOCK_EX), 0);
    T_EQ(pthread_create(&thread, NULL, write_one, a), 0);
    usleep(200000);
    T_EQ(rename(log_path, paths[0]), 0);
    close(fd);
    pthread_join(thread, NULL);
    T_EQ(count_lines(paths[0]), 3);
    T_EQ(count_lines(paths[1]), 3);
    T_EQ(check(paths, 2), 0);
    once__audit_close(a);
}

/* ---- What cannot be written ------------------------------------------------ */

static void refused(const char *path, int code, const char *text)
{
    once__audit_entry e = entry("resolve");
    once_error err = {0, ""};
    once__audit *a = NULL;
    uint64_t seq = 0;
    int rc = once__audit_open(path, &err, &a);

    if (rc == ONCE_OK)
        rc = once__audit_begin(a, &e, &seq, &err);
    T_EQ(rc, code);
    if (!T_OK(strstr(err.text, text) != NULL))
        printf("#   %s\n", err.text);
    once__audit_close(a);
}

static void what_is_no_log_is_refused_and_not_touched(void)
{
    static const char text[] = "root:x:0:0:root\n";
    char *after;
    int fd;

    empty_folder();
    write_text(log_path, text, strlen(text));
    refused(log_path, ONCE_ECORRUPT, "no audit log");
    after = read_text(log_path);
    T_STR(after, text);
    free(after);
    write_text(log_path, "x", 1);
    refused(log_path, ONCE_ECORRUPT, "no audit log");
    unlink(log_path);
    T_EQ(symlink("/etc/passwd", log_path), 0);
    refused(log_path, ONCE_EOPEN, "cannot be written");
    unlink(log_path);
    T_EQ(mkfifo(log_path, 0600), 0);
    refused(log_path, ONCE_EOPEN, "no regular file");
    refused(in_folder("none/audit.jsonl"), ONCE_EOPEN, "No such file");
    refused(folder, ONCE_EOPEN, "cannot be written");
    unlink(log_path);
    fd = open(log_path, O_RDWR | O_CREAT, 0600);
    T_EQ(flock(fd, LOCK_EX), 0);
    refused(log_path, ONCE_EOPEN, "another process holds it");
    close(fd);
}

/* A full disk: what was written of the line is taken away again. */
static void a_line_is_written_whole_or_not_at_all(void)
{
    const struct rlimit small = {1500, RLIM_INFINITY};
    struct rlimit before;
    struct stat st;
    once__audit *a;
    off_t size;

    empty_folder();
    a = opened();
    decide(a, "resolve");
    T_EQ(stat(log_path, &st), 0);
    size = st.st_size;
    T_OK(size < 1500);
    signal(SIGXFSZ, SIG_IGN);
    T_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
    T_EQ(setrlimit(RLIMIT_FSIZE, &small), 0);
    refused(log_path, ONCE_EOPEN, "cannot be written");
    T_EQ(setrlimit(RLIMIT_FSIZE, &before), 0);
    T_EQ(stat(log_path, &st), 0);
    T_EQ(st.st_size, size);
    decide(a, "resolve");
    T_EQ(check_log(), 0);
    T_EQ(sum.notes, 0);
    once__audit_close(a);
}

static void without_a_path_it_is_the_users_own(void)
{
    once_error err = {0, ""};
    once__audit *a = NULL;

    if (access("/var/log/once", F_OK) == 0)
        return; /* a machine where Once is installed */
    empty_folder();
    setenv("XDG_STATE_HOME", in_folder("a/state"), 1);
    T_EQ(once__audit_open(NULL, &err, &a), ONCE_OK);
    T_STR(once__audit_path(a), in_folder("a/state/once/audit.jsonl"));
    decide(a, "resolve");
    once__audit_close(a);
    unsetenv("XDG_STATE_HOME");
    unsetenv("HOME");
    T_EQ(once__audit_open(NULL, &err, &a), ONCE_EOPEN);
    T_OK(strstr(err.text, "/var/log/once") != NULL);
}

static void off_writes_no_file(void)
{
    once_error err = {0, ""};
    once__audit *a = NULL;

    empty_folder();
    T_EQ(once__audit_open("off", &err, &a), ONCE_OK);
    T_OK(once__audit_path(a) == NULL);
    T_EQ(decide(a, "resolve"), 0);
    T_EQ(rmdir(folder), 0);
    folder[0] = '\0';
    once__audit_close(a);
}

/* ---- Reading ---------------------------------------------------------------- */

static char numbers[256];

static int note_number(void *user, const once__audit_line *line)
{
    size_t n = strlen(numbers);

    (void)user;
    snprintf(numbers + n, sizeof(numbers) - n, "%" PRIu64 " ", line->seq);
    return 0;
}

static const char *newest(const once__audit_filter *f, size_t max)
{
    once_error err = {0, ""};

    numbers[0] = '\0';
    T_EQ(once__audit_newest(log_path, f, max, note_number, NULL, &err),
         ONCE_OK);
    return numbers;
}

static void the_newest_come_first_and_are_filtered(void)
{
    once__audit *a;

    empty_folder();
    a = opened();
    decide(a, "resolve"); /* 2, 3 */
    decide(a, "forget");  /* 4, 5 */
    decide(a, "resolve"); /* 6, 7 */
    once__audit_close(a);
    append_text(log_path, "{\"seq\":8,\"pre"); /* just being written */
    T_STR(newest(&(once__audit_filter){.after = 0}, 3), "7 6 5 ");
    T_STR(newest(&(once__audit_filter){.before = 5}, 2), "4 3 ");
    T_STR(newest(&(once__audit_filter){.after = 5}, 100), "7 6 ");
    T_STR(newest(&(once__audit_filter){.action = "forget"}, 9), "5 4 ");
    T_STR(newest(&(once__audit_filter){.who = "alice", .after = 6}, 9), "7 ");
    T_STR(newest(&(once__audit_filter){.who = "1001", .after = 6}, 9), "7 ");
    T_STR(newest(&(once__audit_filter){.who = "ali"}, 9), "");
    T_STR(newest(&(once__audit_filter){.name = "a1b2", .before = 3}, 9), "2 ");
    T_STR(newest(&(once__audit_filter){.name = "b1"}, 9), "");
    T_STR(newest(&(once__audit_filter){.since_ms = 4102444800000}, 9), "");
    T_STR(newest(&(once__audit_filter){.until_ms = 1000}, 9), "");
    T_STR(newest(&(once__audit_filter){.since_ms = 1000, .before = 2}, 9),
          "1 ");
}

/* Renamed twice, and no line was written after the last time. */
static void the_newest_go_back_over_renamed_files(void)
{
    once__audit *a;
    char *text;

    empty_folder();
    a = opened();
    decide(a, "resolve"); /* 2, 3 */
    T_EQ(rename(log_path, in_folder("audit.jsonl-20260101")), 0);
    decide(a, "forget"); /* 5, 6; 4 begins the file */
    text = read_text(log_path);
    write_text(in_folder("audit.jsonl.copy"), text, strlen(text));
    free(text);
    write_text(in_folder("audit.jsonl.other"), "x\n", 2);
    T_EQ(rename(log_path, in_folder("audit.jsonl.1")), 0);
    T_STR(newest(&(once__audit_filter){.after = 0}, 9), "6 5 4 3 2 1 ");
    decide(a, "resolve"); /* 8, 9 */
    once__audit_close(a);
    T_STR(newest(&(once__audit_filter){.after = 0}, 4), "9 8 7 6 ");
    T_STR(newest(&(once__audit_filter){.before = 6}, 9), "5 4 3 2 1 ");
    T_STR(newest(&(once__audit_filter){.before = 4, .after = 1}, 9), "3 2 ");
    T_STR(newest(&(once__audit_filter){.action = "resolve"}, 9), "9 8 3 2 ");
}

/* Bytes that this process has read so far. */
static long long bytes_read(void)
{
    FILE *in = fopen("/proc/self/io", "r");
    long long n = -1;

    if (in == NULL || fscanf(in, "rchar: %lld", &n) != 1)
        n = -1;
    if (in != NULL)
        fclose(in);
    return n;
}

/* A page of a long log costs what a page is, however it is filtered by what the
 * last lines have. */
static void a_page_is_read_from_the_end(void)
{
    enum { JUNK = 8 << 20 };
    long long before;
    char *text, *all;
    size_t n;
    once__audit *a;

    empty_folder();
    a = opened();
    decide(a, "resolve");
    once__audit_close(a);
    text = read_text(log_path);
    n = strlen(text);
    all = malloc(JUNK + n);
    if (all == NULL)
        abort();
    memset(all, 'x', JUNK); /* one line that has no end, and many */
    for (before = 1 << 20; before < JUNK; before += 600)
        all[before] = '\n';
    all[JUNK - 1] = '\n';
    memcpy(all + JUNK, text, n);
    write_text(log_path, all, JUNK + n);
    before = bytes_read();
    T_STR(newest(&(once__audit_filter){.after = 0}, 2), "3 2 ");
    T_STR(newest(&(once__audit_filter){.name = "a1"}, 2), "3 2 ");
    T_OK(before < 0 || bytes_read() - before < 1 << 20);
    T_STR(newest(&(once__audit_filter){.after = 0}, 9), "3 2 1 ");
    free(text);
    free(all);
}

/* ---- What was kept elsewhere --------------------------------------------------- */

/* Line `number` of a file, as syslog has it. */
static void anchor(const char *to, const char *path, int number, const char *of)
{
    char *text = read_text(path), *line = text, line_text[8192];
    int i;

    for (i = 1; i < number; i++)
        line = strchr(line, '\n') + 1;
    snprintf(line_text, sizeof(line_text),
             "Nov 22 14:39:13 vm once[17]: once audit: %s%s%.*s\n", of,
             of[0] ? ": " : "", (int)strcspn(line, "\n"), line);
    append_text(to, line_text);
    free(text);
}

static int check_against(const char *const *paths, size_t n)
{
    once__audit_anchors *anchors = NULL;
    once_error err = {0, ""};

    said[0] = '\0';
    T_EQ(
        once__audit_anchors_read(in_folder("syslog"), log_path, &anchors, &err),
        ONCE_OK);
    T_EQ(once__audit_check(paths, n, anchors, report, NULL, &sum, &err),
         ONCE_OK);
    once__audit_anchors_free(anchors);
    return (int)sum.bad;
}

static void what_the_chain_cannot_show_is_found_by_what_was_kept(void)
{
    const char *paths[2], *kept;
    once__audit *a;
    char *text;
    size_t three;

    empty_folder();
    a = opened();
    decide(a, "resolve"); /* 2, 3 */
    decide(a, "resolve"); /* 4, 5 */
    kept = in_folder("syslog");
    append_text(kept, "Nov 22 14:39:12 vm sshd[1]: {\"seq\": nothing}\n");
    anchor(kept, log_path, 3, "");
    anchor(kept, log_path, 5, log_path);
    anchor(kept, log_path, 4, "/another/log"); /* of which this is no line */
    append_text(kept,
                "vm once[1]: once audit: /another/log: {\"seq\":5,\"hash\":"
                "\"" ZEROS "\"}\n");
    paths[0] = paths[1] = log_path;
    T_EQ(check_against(paths, 1), 0);
    T_EQ(sum.anchored, 2);
    T_EQ(sum.anchored_seq, 5);

    /* The last lines are cut: whole by itself. */
    text = read_text(log_path);
    three = (size_t)(strstr(text, "{\"seq\":4") - text);
    write_text(log_path, text, three);
    T_EQ(check(paths, 1), 0);
    T_EQ(check_against(paths, 1), 1);
    SAID("number 5 is kept elsewhere, and the log ends with 3");
    /* And another decision takes their numbers. */
    decide(a, "forget");
    T_EQ(check(paths, 1), 0);
    T_EQ(check_against(paths, 1), 1);
    SAID("number 5 is another line than the one that is kept elsewhere");
    free(text);
    once__audit_close(a);
}

static void a_log_that_was_removed_after_a_rotation_is_found(void)
{
    char old[160];
    const char *paths[2] = {old, log_path};
    once__audit *a;

    empty_folder();
    snprintf(old, sizeof(old), "%s", in_folder("audit.jsonl.1"));
    a = opened();
    decide(a, "resolve"); /* 2, 3 */
    T_EQ(rename(log_path, paths[0]), 0);
    decide(a, "resolve"); /* 5, 6 */
    anchor(in_folder("syslog"), log_path, 3, log_path);
    T_EQ(unlink(log_path), 0);
    T_EQ(check(paths, 1), 0);
    T_EQ(check_against(paths, 1), 1);
    decide(a, "forget");
    T_EQ(check(paths, 2), 0);
    T_EQ(check_against(paths, 2), 1);
    SAID("number 6 is another line");
    once__audit_close(a);
    /* Nothing that is kept is about the lines that are given. */
    write_text(in_folder("syslog"), "nothing\n", 8);
    T_EQ(check_against(paths, 2), 1);
    SAID("no line of this log is kept there");
    /* A line of a file that was packed since: the next file follows it. */
    anchor(in_folder("syslog"), old, 3, log_path);
    T_EQ(check_against(&paths[1], 1), 0);
    T_EQ(sum.anchored_seq, 3);
    /* What `once audit verify --json` has printed will do. */
    write_text(in_folder("syslog"), "", 0);
    append_text(in_folder("syslog"),
                "{\"lines\":6,\"last\":6,\"hash\":\"" ZEROS "\"}\n");
    T_EQ(check_against(paths, 2), 1);
    SAID("number 6 is another line");
}

int main(void)
{
    T_RUN(a_line_says_who_what_and_why);
    T_RUN(a_chain_of_decisions_is_whole);
    T_RUN(texts_of_any_bytes_stay_one_line);
    T_RUN(one_flipped_bit_is_found_wherever_it_is);
    T_RUN(which_line_was_flipped_is_said);
    T_RUN(a_replaced_line_is_found);
    T_RUN(swapped_and_missing_lines_are_found);
    T_RUN(a_line_that_a_crash_cut_short_is_named_by_the_next_one);
    T_RUN(damage_is_not_taken_for_a_crash);
    T_RUN(a_renamed_log_is_followed_by_the_next_one);
    T_RUN(a_log_that_was_cut_before_it_was_renamed);
    T_RUN(threads_and_processes_write_one_chain);
    T_RUN(who_waits_for_a_renamed_log_writes_to_the_next_one);
    T_RUN(what_is_no_log_is_refused_and_not_touched);
    T_RUN(a_line_is_written_whole_or_not_at_all);
    T_RUN(without_a_path_it_is_the_users_own);
    T_RUN(off_writes_no_file);
    T_RUN(the_newest_come_first_and_are_filtered);
    T_RUN(the_newest_go_back_over_renamed_files);
    T_RUN(a_page_is_read_from_the_end);
    T_RUN(what_the_chain_cannot_show_is_found_by_what_was_kept);
    T_RUN(a_log_that_was_removed_after_a_rotation_is_found);
    empty_folder();
    rmdir(folder);
    return t_done();
}
