/* SPDX-License-Identifier: Apache-2.0 */
/*
 * once.c - the command line program: for those who run commands and send
 * requests at most once, and for operators who ask what became of them and,
 * where nobody can know, say what they have found out.
 *
 * This file finds the command, which has a file of its own, cmd_*.c. It does
 * not guess: an unknown name is an error, and so is the beginning of a name.
 */
#include "programs/once/cli.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define COUNT(a) (sizeof(a) / sizeof((a)[0]))

static const struct cli_command *const commands[] = {
#define ADDRESS(name, half) &cli_cmd_##name,
    CLI_COMMANDS(ADDRESS)
#undef ADDRESS
};

/* ---- The list of commands ------------------------------------------------ */

enum half { FIRST, RECORDS, MESSAGES, OTHER };

static const enum half halves[] = {
#define HALF(name, half) half,
    CLI_COMMANDS(HALF)
#undef HALF
};

static void print_half(FILE *to, enum half half, const char *title)
{
    size_t i;

    fprintf(to, "\n%s\n", title);
    for (i = 0; i < COUNT(commands); i++)
        if (halves[i] == half)
            fprintf(to, "  %-17s %s\n", commands[i]->name, commands[i]->what);
}

static void print_help(FILE *to)
{
    fputs("usage: once [--store URL] COMMAND ...\n"
          "\n"
          "Makes commands and requests take effect at most once, and shows "
          "their outcome.\n",
          to);
    print_half(to, FIRST, "What most need");
    print_half(to, RECORDS, "A store of records");
#ifdef ONCE_WITH_MESSAGES
    print_half(to, MESSAGES, "Messages in a program's own database");
#endif
    print_half(to, OTHER, "The shell");
    fputs("\nEach has a page: once help COMMAND, or man once-COMMAND.\n"
          "  --store URL     @FILE or NAME; or ONCE_STORE\n                  ",
          to);
    cli_print_schemes(to, 0);
    fputs("\n"
          "  --database URL  of once messages; or ONCE_DATABASE\n"
          "  --json          JSON instead of a table\n"
          "Exit status:",
          to);
#define CLI_EXIT(name, number, text)                                           \
    fprintf(to, "%s %d %s", number ? ";" : "", number, text);
    CLI_EXITS(CLI_EXIT)
#undef CLI_EXIT
    fputc('\n', to);
}

static const struct cli_option own_options[] = {
    CLI_COMMON_OPTIONS,
    CLI_DATABASE_OPTION,
    {"version", NULL, .id = CLI_OPT_VERSION},
    {.name = NULL},
};

/* ---- Finding one --------------------------------------------------------- */

/* How many of the `n` words are this name; 0: they are something else. */
static int match(const char *name, char **words, int n)
{
    size_t first = strcspn(name, " ");

    if (strncmp(words[0], name, first) != 0 || words[0][first] != '\0')
        return 0;
    if (name[first] == '\0')
        return 1;
    return n > 1 && strcmp(words[1], name + first + 1) == 0 ? 2 : 0;
}

/* Of two commands that begin alike, the one that takes more of the words. */
static const struct cli_command *find(char **words, int n, int *taken)
{
    const struct cli_command *found = NULL;
    size_t i;

    *taken = 0;
    for (i = 0; i < COUNT(commands); i++)
        if (match(commands[i]->name, words, n) > *taken) {
            *taken = match(commands[i]->name, words, n);
            found = commands[i];
        }
    return found;
}

/* How many letters have to be put in, left out or changed; at most `most`. */
static size_t distance(const char *a, const char *b, size_t most)
{
    size_t best;

    while (*a != '\0' && *a == *b)
        a++, b++;
    if (most == 0 || (*a == '\0' && *b == '\0'))
        return *a == *b ? 0 : 1;
    best = *a ? distance(a + 1, b, most - 1) : most;
    if (*b && distance(a, b + 1, most - 1) < best)
        best = distance(a, b + 1, most - 1);
    if (*a && *b && distance(a + 1, b + 1, most - 1) < best)
        best = distance(a + 1, b + 1, most - 1);
    return best + 1;
}

/* A word of `once messages` may have been said without it. */
static int no_such_command(const struct cli *c, const char *word)
{
    enum { SHOWN = 40, ALIKE = 2 };
    const struct cli_command *like = NULL;
    size_t best = ALIKE + 1, size = strlen(word), i;
    char *shown = NULL;
    FILE *to = open_memstream(&shown, &i);

    if (to == NULL)
        return cli_say(c, CLI_STORE, "out of memory");
    cli_print_text(to, (once_bytes){word, size > SHOWN ? SHOWN : size});
    (void)fclose(to);
    for (i = 0; i < COUNT(commands); i++) {
        const char *last = strrchr(commands[i]->name, ' ');
        size_t d = distance(word, last ? last + 1 : commands[i]->name, ALIKE);

        if (d < best && d < size) {
            best = d;
            like = commands[i];
        }
    }
    cli_usage(c, "%s: no such command%s%s%s", shown,
              like ? ". Did you mean once " : "", like ? like->name : "",
              like ? "?" : "");
    free(shown);
    return CLI_USAGE;
}

/* How many arguments come before the command, which is the first one that is no
 * option: those after it belong to it. */
static int count_own(int argc, char **argv)
{
    int i = 1;

    while (i < argc && argv[i][0] == '-' && strcmp(argv[i], "--") != 0)
        i += strcmp(argv[i], "--store") == 0 ||
                     strcmp(argv[i], "--database") == 0
                 ? 2
                 : 1;
    return i < argc ? i : argc;
}

static int take(const struct cli *c, void *user, int o)
{
    int rc;

    (void)user;
    (void)o; /* the version: the only one */
    puts("once " ONCE_VERSION);
    rc = cli_flush(c);
    return rc == CLI_OK ? CLI_STOP : rc;
}

static int run(struct cli *c, int argc, char **argv)
{
    int own_argc = count_own(argc, argv);
    const struct cli_command *command;
    int rc, taken, help;

    rc = cli_read_args(c, own_argc, argv, take, NULL);
    if (rc != CLI_OK)
        return rc;
    if (own_argc < argc && strcmp(argv[own_argc], "--") == 0)
        own_argc++;
    help = own_argc < argc && strcmp(argv[own_argc], "help") == 0;
    own_argc += help;
    if (own_argc >= argc) {
        fputs(c->own->help, help ? stdout : stderr);
        return help ? cli_flush(c) : CLI_USAGE;
    }
    command = find(argv + own_argc, argc - own_argc, &taken);
    if (command == NULL)
        return no_such_command(c, argv[own_argc]);
    c->command = command;
    optind = 0; /* start again, on the command's arguments */
    if (help)
        return command->run(c, 2, (char *[]){argv[own_argc], "--help", NULL});
    own_argc += taken - 1;
    rc = command->run(c, argc - own_argc, argv + own_argc);
    return rc == CLI_OK ? cli_flush(c) : rc;
}

/* https://no-color.org: the variable counts if it is not empty. */
static int may_color(void)
{
    const char *no = getenv("NO_COLOR"), *term = getenv("TERM");

    return (no == NULL || no[0] == '\0') && term != NULL &&
           strcmp(term, "dumb") != 0;
}

int main(int argc, char **argv)
{
    struct cli_command own = {.name = "", .options = own_options};
    struct cli c = {.command = &own,
                    .own = &own,
                    .commands = commands,
                    .command_count = COUNT(commands),
                    .store = getenv("ONCE_STORE"),
                    .database = getenv("ONCE_DATABASE"),
                    .audit = getenv("ONCE_AUDIT"),
                    .tty = isatty(1)};
    char *help = NULL, *user_store = NULL;
    size_t size = 0;
    FILE *to;
    int rc;

    opterr = 0; /* messages are ours */
    c.color = c.tty && may_color();
    to = open_memstream(&help, &size);
    if (to == NULL)
        return cli_say(&c, CLI_STORE, "out of memory");
    print_help(to);
    if (fclose(to) != 0) {
        free(help);
        return cli_say(&c, CLI_STORE, "out of memory");
    }
    own.help = help;
    user_store = cli_user_store();
    c.user_store = user_store;
    rc = run(&c, argc, argv);
    free(user_store);
    free(c.memory[0]);
    free(c.memory[1]);
    free(help);
    return rc == CLI_STOP ? CLI_OK : rc;
}
