/* SPDX-License-Identifier: Apache-2.0 */
/*
 * main.c - replays a corpus: a fuzz target without a fuzzer.
 *
 *    fuzz_TARGET FILE-or-FOLDER...
 *
 * Prints TAP, a line for each folder or file. A target that is not satisfied
 * aborts, and the name of the file stands in the line before. It refuses to
 * pass on nothing: a folder without files has failed.
 */
#include "fuzz.h"

#include <dirent.h>
#include <sys/stat.h>

static int replay_file(const char *path)
{
    FILE *in = fopen(path, "rb");
    uint8_t *data = malloc(1 << 20), *cut;
    size_t size;

    if (in == NULL || data == NULL) {
        perror(path);
        exit(1);
    }
    size = fread(data, 1, 1 << 20, in);
    fclose(in);
    cut = exact(data, size);
    free(data);
    fprintf(stderr, "# %s\n", path);
    (void)LLVMFuzzerTestOneInput(cut, size);
    free(cut);
    return 1;
}

static int replay_folder(DIR *folder, const char *path)
{
    const struct dirent *entry;
    char file[1024];
    int n = 0;

    while ((entry = readdir(folder)) != NULL) {
        if (entry->d_name[0] == '.')
            continue;
        (void)snprintf(file, sizeof(file), "%s/%s", path, entry->d_name);
        n += replay_file(file);
    }
    return n;
}

int main(int argc, char **argv)
{
    int i, n, bad = 0;

    for (i = 1; i < argc; i++) {
        DIR *folder = opendir(argv[i]);

        n = folder == NULL ? replay_file(argv[i])
                           : replay_folder(folder, argv[i]);
        if (folder != NULL)
            closedir(folder);
        printf("%s %d - %s: %d files\n", n > 0 ? "ok" : "not ok", i, argv[i],
               n);
        bad |= n == 0;
    }
    printf("1..%d\n", argc - 1);
    return bad || argc < 2;
}
