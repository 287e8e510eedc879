/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_journal_folder.c - whose folder a journal opens, and what it refuses.
 *
 *    test_journal_folder [CASE]
 *
 * What reaches the disk is seen through the linker (journal_disk.h).
 */
#include "base/crc32c.h"
#include "journal_disk.h"

static void a_new_folder_is_for_its_owner_alone(void)
{
    char path[128], file[160], memory[MEMORY_PATH];
    struct stat st;
    once_store *s;

    new_path(path, sizeof(path));
    s = must_open(path);
    T_OK(stat(path, &st) == 0 && (st.st_mode & 07777) == 0700);
    segment_path(path, 1, file, sizeof(file));
    T_OK(stat(file, &st) == 0 && (st.st_mode & 0777) == 0600);
    (void)snprintf(file, sizeof(file), "%s/lock", path);
    T_OK(stat(file, &st) == 0 && (st.st_mode & 0777) == 0600);
    memory_of(path, memory);
    T_OK(exists(memory));
    once_store_close(s);
    T_OK(!exists(memory));
}

static int owners_differ(const char *path, uid_t uid)
{
    DIR *d = opendir(path);
    struct dirent *e;
    struct stat st;
    int n = 0;

    assert(d != NULL);
    while ((e = readdir(d)) != NULL)
        if (strcmp(e->d_name, "..") != 0 &&
            fstatat(dirfd(d), e->d_name, &st, 0) == 0)
            n += st.st_uid != uid;
    (void)closedir(d);
    return n;
}

static void use_as_nobody(const char *path, void *user)
{
    once_store *s;

    if (setgid(65534) != 0 || setuid(65534) != 0)
        _exit(9);
    s = must_open(path);
    T_OK(is_there(s, 1));
    T_EQ(complete_one(s, *(uint32_t *)user, 5000), ONCE_OK);
    once_store_close(s);
}

static void root_opens_what_belongs_to_a_worker(void)
{
    char path[128];
    uint32_t key = 2;
    once_store *s;

    if (geteuid() != 0) {
        printf("# skipped: only root may give files away\n");
        return;
    }
    T_EQ(chmod(folder, 0755), 0);
    new_path(path, sizeof(path));
    T_EQ(mkdir(path, 0700), 0);
    T_EQ(chown(path, 65534, 65534), 0);
    s = must_open(path);
    T_EQ(complete_one(s, 1, 5000), ONCE_OK);
    T_EQ(in_child(use_as_nobody, path, &key), 0); /* both at once */
    complete_all(s, 10, 400);                     /* several segments */
    T_OK(is_there(s, 2));
    T_EQ(owners_differ(path, 65534), 0);
    once_store_close(s);
    key++;
    T_EQ(in_child(use_as_nobody, path, &key), 0);
}

static void urls_are_refused_by_name(void)
{
    static const struct {
        const char *rest, *says;
    } bad[] = {
        {"", "folder"},
        {"/tmp/once-nothing?wal=1", "unknown parameter"},
        {"/tmp/once-nothing?busy_ms=0", "busy_ms"},
        {"/tmp/once-nothing?segment=1", "segment"},
        {"/tmp/once-nothing?segment=2000000000", "segment"},
        {"/tmp/once-nothing?segment=65536&segment=65536", "segment"},
        {"/tmp/once-nothing?", "parameter"},
    };
    once_error err;
    once_store *s = NULL;
    char url[256];
    size_t i;

    for (i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        (void)snprintf(url, sizeof(url), "journal:%s", bad[i].rest);
        T_EQ(once_store_open(url, NULL, &err, &s), ONCE_EURL);
        if (strstr(err.text, bad[i].says) == NULL)
            T_STR(err.text, bad[i].says);
    }
    T_OK(access("/tmp/once-nothing", F_OK) != 0);
}

static void what_is_not_ours_is_refused_and_left_alone(void)
{
    char path[128], file[160];
    uint8_t wrong[16] = "something else!";
    int fd;

    new_path(path, sizeof(path));
    T_EQ(mkdir(path, 0755), 0);
    (void)snprintf(file, sizeof(file), "%s/letter.txt", path);
    fd = open(file, O_WRONLY | O_CREAT, 0644);
    T_OK(fd >= 0);
    refused(path, ONCE_EOPEN, "holds other files");
    (void)close(fd);
    (void)snprintf(file, sizeof(file), "%s/lock", path);
    T_OK(access(file, F_OK) != 0);
    fd = open(file, O_WRONLY | O_CREAT, 0644);
    T_EQ(write(fd, wrong, sizeof(wrong)), sizeof(wrong));
    (void)close(fd);
    refused(path, ONCE_EOPEN, "something else");
    (void)snprintf(file, sizeof(file), "%s/letter.txt", path);
    refused(file, ONCE_EOPEN, "Not a directory");
    refused("/no/such/folder", ONCE_EOPEN, "No such file");
}

static void what_shall_exist_is_not_made(void)
{
    once_store_options options = {
        sizeof(options), now_ms, NULL, 100, 0, NULL, NULL, 0};
    char path[128], url[160];
    once_store *s = NULL;

    new_path(path, sizeof(path));
    (void)snprintf(url, sizeof(url), "journal:%s", path);
    T_EQ(once_store_open(url, &options, NULL, &s), ONCE_EOPEN);
    T_OK(access(path, F_OK) != 0);
    T_EQ(mkdir(path, 0700), 0);
    T_EQ(once_store_open(url, &options, NULL, &s), ONCE_EOPEN);
    T_EQ(rmdir(path), 0); /* it is still empty */
    once_store_close(must_open(path));
    T_EQ(once_store_open(url, &options, NULL, &s), ONCE_OK);
    once_store_close(s);
}

static void another_version_is_refused(void)
{
    char path[128], file[160];
    uint32_t version = 7;

    new_path(path, sizeof(path));
    once_store_close(must_open(path));
    (void)snprintf(file, sizeof(file), "%s/lock", path);
    poke(file, 8, &version, 4);
    refused(path, ONCE_EVERSION, "version 7");
    version = 2; /* records without labels, and no head */
    poke(file, 8, &version, 4);
    (void)snprintf(file, sizeof(file), "%s/head", path);
    T_EQ(unlink(file), 0);
    refused(path, ONCE_EVERSION,
            "a journal of version 2, this program understands version 4");
}

/* As when it is open in a container with a /dev/shm of its own. */
static void open_without_its_memory_in_sight_is_refused(void)
{
    char path[128];
    once_store *s;

    new_path(path, sizeof(path));
    s = must_open(path);
    T_EQ(complete_one(s, 1, 5000), ONCE_OK);
    forget_memory(path);
    refused(path, ONCE_EOPEN, "/dev/shm");
    T_OK(is_there(s, 1));
    once_store_close(s);
    s = must_open(path);
    T_OK(is_there(s, 1));
    once_store_close(s);
}

/* ---- Other hands ----------------------------------------------------------- */

static void complete_and_die(const char *path, void *user)
{
    once_store *s = must_open(path);

    (void)user;
    complete_all(s, 0, 10);
    (void)kill(getpid(), SIGKILL);
}

/* A store that was left open, and what was kept of it in memory does not know
 * key 5. The memory's file is in `file`. */
static void leave_false_memory(char *path, size_t size, char file[MEMORY_PATH])
{
    struct once__journal *j = calloc(1, sizeof(*j));
    uint8_t id[ONCE__JOURNAL_ID], name[ONCE_NAME_SIZE];

    assert(j != NULL);
    new_path(path, size);
    T_OK(WIFSIGNALED(in_child(complete_and_die, path, NULL)));
    memory_of(path, file);
    view_of(path, j, id);
    T_EQ(once__shared_attach(j, id, NULL), ONCE_OK);
    T_OK(once__shared_view(j));
    name_of(name, 5);
    once__index_remove(j, name);
    once__undo_end(j);
    once__shared_detach(j);
    (void)close(j->lock_fd);
    free(j);
}

/* That makes no other memory of it in between. */
static void knows_key_5(const char *path, int knows)
{
    once_store *s = must_open(path);

    T_EQ(verb_on(s, ONCE_OP_SHOW, 5), knows ? ONCE_REPLAY : ONCE_FREE);
    once_store_close(s);
}

/* In /dev/shm everybody may make a file of whatever name. */
static void memory_that_another_user_made_is_not_believed(void)
{
    char path[128], file[MEMORY_PATH], twin[MEMORY_PATH + 8];

    leave_false_memory(path, sizeof(path), file);
    knows_key_5(path, 0); /* as it is found it is believed */

    leave_false_memory(path, sizeof(path), file);
    T_EQ(chmod(file, 0666), 0);
    knows_key_5(path, 1);

    leave_false_memory(path, sizeof(path), file);
    (void)snprintf(twin, sizeof(twin), "%s.twin", file);
    T_EQ(link(file, twin), 0);
    knows_key_5(path, 1);
    T_EQ(unlink(twin), 0);

    if (geteuid() != 0) {
        printf("# only root may give files away\n");
        return;
    }
    leave_false_memory(path, sizeof(path), file);
    T_EQ(chown(file, 65534, 65534), 0);
    knows_key_5(path, 1);
}

/* As if the note were of an earlier start of the host. */
static void age_note(const char *path)
{
    uint8_t b[96];
    uint32_t sum;
    char file[160];
    int fd;

    (void)snprintf(file, sizeof(file), "%s/lock", path);
    fd = open(file, O_RDWR | O_CLOEXEC);
    T_EQ(__real_pread(fd, b, sizeof(b), 0), sizeof(b));
    b[48] ^= 1;
    sum = once__crc32c(0, b + 16, sizeof(b) - 16);
    memcpy(b + 12, &sum, sizeof(sum));
    T_EQ(__real_pwrite(fd, b, sizeof(b), 0), sizeof(b));
    (void)close(fd);
}

static void memory_of_an_earlier_start_of_the_host_is_not_believed(void)
{
    char path[128], file[MEMORY_PATH];

    leave_false_memory(path, sizeof(path), file);
    age_note(path);
    knows_key_5(path, 1);
    T_OK(!exists(file));
}

/* A user who may write to the folder must not lead root elsewhere. */
static void links_in_the_folder_are_not_followed(void)
{
    static const char *const names[] = {"lock", "head", "00000001.log",
                                        "00000002.log"};
    char path[128], file[160], away[160];
    once_store *s;
    struct lines l;
    size_t i;

    for (i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        new_path(path, sizeof(path));
        s = must_open(path);
        complete_all(s, 0, 300);
        once_store_close(s);
        (void)snprintf(file, sizeof(file), "%s/%s", path, names[i]);
        (void)snprintf(away, sizeof(away), "%s.%s", path, names[i]);
        T_EQ(rename(file, away), 0);
        T_EQ(symlink(away, file), 0);
        refused(path, ONCE_EOPEN, "symbolic links");
        T_OK(verify(path, &l) != 0);
        T_EQ(unlink(file), 0);
        T_EQ(mkfifo(file, 0600), 0); /* nor let it wait for ever */
        refused(path, ONCE_EOPEN, "");
        T_EQ(unlink(file), 0);
        T_EQ(rename(away, file), 0);
        s = must_open(path);
        all_are_there(s, 0, 300);
        once_store_close(s);
    }
}

static void nothing_is_left_open_behind(void)
{
    char path[128], memory[MEMORY_PATH];
    once_store *a, *b;
    int before, round;

    new_path(path, sizeof(path));
    once_store_close(must_open(path));
    before = count_files("/proc/self/fd");
    for (round = 0; round < 10; round++) {
        a = must_open(path);
        memory_of(path, memory);
        b = must_open(path);
        complete_all(round % 2 ? a : b, (uint32_t)round * 100,
                     (uint32_t)round * 100 + 100);
        once_store_close(round % 3 ? a : b);
        T_OK(exists(memory));
        once_store_close(round % 3 ? b : a);
        T_OK(!exists(memory));
        T_EQ(count_files("/proc/self/fd"), before);
    }
    refused("/no/such/folder", ONCE_EOPEN, "");
    T_EQ(count_files("/proc/self/fd"), before);
}

int main(int argc, char **argv)
{
    const char *only = argc == 2 ? argv[1] : "";

    (void)snprintf(folder, sizeof(folder), "/tmp/once-journal-XXXXXX");
    if (mkdtemp(folder) == NULL)
        return 2;
    RUN(a_new_folder_is_for_its_owner_alone);
    RUN(root_opens_what_belongs_to_a_worker);
    RUN(urls_are_refused_by_name);
    RUN(what_is_not_ours_is_refused_and_left_alone);
    RUN(what_shall_exist_is_not_made);
    RUN(another_version_is_refused);
    RUN(open_without_its_memory_in_sight_is_refused);
    RUN(memory_that_another_user_made_is_not_believed);
    RUN(memory_of_an_earlier_start_of_the_host_is_not_believed);
    RUN(links_in_the_folder_are_not_followed);
    RUN(nothing_is_left_open_behind);
    remove_folder();
    return t_done();
}
