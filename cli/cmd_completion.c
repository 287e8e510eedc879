/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cmd_completion.c - `once completion bash|zsh`: a script for the shell.
 *
 * Commands come from the program's own table, options from the tables that the
 * commands themselves read their command lines with: they are asked for them,
 * so a new option is completed from the day on which it works. What a value
 * may be stands in the table below; an option that is not in it gets none.
 */
#include "cli.h"

#include <string.h>

/* clang-format off */
static const char help[] =
    "usage: once completion bash|zsh\n"
    "\n"
    "Prints a completion for the shell. To use it, put one of these lines into\n"
    "~/.bashrc or ~/.zshrc (there after compinit):\n"
    "  eval \"$(once completion bash)\"\n"
    "  eval \"$(once completion zsh)\"\n"
    "For all users of the host, as a package does:\n"
    "  once completion bash > /usr/share/bash-completion/completions/once\n"
    "  once completion zsh > /usr/share/zsh/vendor-completions/_once\n";
/* clang-format on */

static const struct option options[] = {
    CLI_COMMON_OPTIONS,
    {NULL, 0, NULL, 0},
};

#define COUNT(a) (sizeof(a) / sizeof((a)[0]))
#define FILES ""
#define SCHEMES ":"

/* What may follow an option: words, files, or the schemes of stores. */
static const struct value {
    const char *option, *words;
} values[] = {
    {"state", "absent claimed dispatched completed indeterminate corrupt"},
    {"on-duplicate", "replay reject"},
    {"lost", "hold takeover"},
    {"store", SCHEMES},
    {"success", FILES},
    {"failure", FILES},
    {"key-file", FILES},
    {"client-store", FILES},
    {"ca", FILES},
};

/* What stands behind a command, where it is not another command line. */
static const struct value words[] = {
    {"completion", "bash zsh"},
};

static const char *look_up(const struct value *table, size_t n,
                           const char *option)
{
    size_t i;

    for (i = 0; i < n; i++)
        if (strcmp(table[i].option, option) == 0)
            return table[i].words;
    return NULL;
}

/* The command's own table: see cli_option(). */
static const struct option *options_of(const struct cli_command *command)
{
    const struct option *table = NULL;
    struct cli c = {.command = command->name, .tell = &table};
    char name[] = "once", *argv[] = {name, NULL};

    (void)command->run(&c, 1, argv);
    return table;
}

static void print_commands(void)
{
    const struct cli_command *commands;
    size_t n, i;

    commands = cli_commands(&n);
    for (i = 0; i < n; i++)
        printf("%s%s", i ? " " : "", commands[i].name);
}

static void print_options(const struct option *o)
{
    const char *space = "";

    for (; o != NULL && o->name != NULL; o++) {
        printf("%s--%s", space, o->name);
        space = " ";
    }
}

/* A line for each command, as in: show) o='--store --json' ;; */
static void print_option_cases(void)
{
    const struct cli_command *commands;
    const char *more;
    size_t n, i;

    commands = cli_commands(&n);
    for (i = 0; i < n; i++) {
        printf("        %s) o='", commands[i].name);
        print_options(options_of(&commands[i]));
        more = look_up(words, COUNT(words), commands[i].name);
        printf("%s%s' ;;\n", more ? " " : "", more ? more : "");
    }
}

/* Options that want a value, each once: "--store|--state|...". */
static void print_takers(void)
{
    const struct cli_command *commands;
    const char *bar = "";
    char seen[64][24];
    size_t n, i, k, known = 0;

    commands = cli_commands(&n);
    for (i = 0; i < n; i++) {
        const struct option *o = options_of(&commands[i]);

        for (; o != NULL && o->name != NULL; o++) {
            for (k = 0; k < known && strcmp(seen[k], o->name) != 0; k++)
                ;
            if (k < known || o->has_arg == no_argument || known == 64)
                continue;
            snprintf(seen[known++], sizeof(seen[0]), "%s", o->name);
            printf("%s--%s", bar, o->name);
            bar = "|";
        }
    }
}

/* What may stand behind the option before: the first line that fits counts, so
 * options whose value we cannot know come last and get nothing. */
static void print_value_cases(const char *files)
{
    size_t i;

    for (i = 0; i < COUNT(values); i++) {
        printf("        --%s) ", values[i].option);
        if (values[i].words[0] == '\0') {
            printf("%s; return ;;\n", files);
            continue;
        }
        fputs("o='", stdout);
        if (strcmp(values[i].words, SCHEMES) == 0)
            cli_print_schemes(stdout, 1);
        else
            fputs(values[i].words, stdout);
        fputs("' ;;\n", stdout);
    }
    fputs("        ", stdout);
    print_takers();
    fputs(") return ;;\n", stdout);
}

static void print_cases(const char *files)
{
    fputs("    case $prev in\n", stdout);
    print_value_cases(files);
    fputs("    esac\n"
          "    [[ $o ]] || case $command in\n",
          stdout);
    print_option_cases();
    fputs("        '') o='", stdout);
    print_commands();
    fputs(" --store --json --help --version' ;;\n"
          "    esac\n",
          stdout);
}

/* ---- The scripts --------------------------------------------------------- */

/* Behind `--` there is a command of the user's own. A colon ends a word, for
 * readline: the path of a store's URL is a word by itself, and a file. */
static void print_bash(void)
{
    fputs("# bash completion of once, printed by `once completion bash`\n"
          "_once() {\n"
          "    local cur=${COMP_WORDS[COMP_CWORD]} command= o= i\n"
          "    local prev=${COMP_WORDS[COMP_CWORD-1]}\n"
          "    COMPREPLY=()\n"
          "    for ((i = 1; i < COMP_CWORD; i++)); do\n"
          "        case ${COMP_WORDS[i]} in\n"
          "        --)\n"
          "            [[ $command ]] || continue\n"
          "            if declare -F _command_offset >/dev/null; then\n"
          "                _command_offset $((i + 1))\n"
          "            else\n"
          "                COMPREPLY=($(compgen -c -f -- \"$cur\"))\n"
          "            fi\n"
          "            return ;;\n"
          "        --store)\n"
          "            ((i++))\n"
          "            [[ ${COMP_WORDS[i+1]} != : ]] || ((i += 2)) ;;\n"
          "        -*) ;;\n"
          "        *) [[ $command ]] || command=${COMP_WORDS[i]} ;;\n"
          "        esac\n"
          "    done\n"
          "    if [[ $prev == : || $cur == : ]]; then\n"
          "        COMPREPLY=($(compgen -f -- \"${cur#:}\"))\n"
          "        return\n"
          "    fi\n",
          stdout);
    print_cases("COMPREPLY=($(compgen -f -- \"$cur\"))");
    fputs("    [[ $prev != --store ]] || compopt -o nospace 2>/dev/null\n"
          "    COMPREPLY=($(compgen -W \"$o\" -- \"$cur\"))\n"
          "}\n"
          "complete -F _once once\n",
          stdout);
}

/* The last lines: the same text is a file to autoload and one to eval. */
static void print_zsh(void)
{
    fputs("#compdef once\n"
          "# zsh completion of once, printed by `once completion zsh`\n"
          "_once() {\n"
          "    local command= o= prev=${words[CURRENT-1]}\n"
          "    integer i\n"
          "    for ((i = 2; i < CURRENT; i++)); do\n"
          "        case ${words[i]} in\n"
          "        --)\n"
          "            [[ $command ]] || continue\n"
          "            shift $i words; ((CURRENT -= i)); _normal; return ;;\n"
          "        --store) [[ $command ]] || ((i++)) ;;\n"
          "        -*) ;;\n"
          "        *) [[ $command ]] || command=${words[i]} ;;\n"
          "        esac\n"
          "    done\n",
          stdout);
    print_cases("_files");
    fputs("    compadd -- ${=o}\n"
          "}\n"
          "if [[ ${funcstack[1]} == _once ]]; then\n"
          "    _once \"$@\"\n"
          "else\n"
          "    compdef _once once\n"
          "fi\n",
          stdout);
}

int cli_completion(struct cli *c, int argc, char **argv)
{
    int rc = CLI_OK;

    if (cli_option(c, argc, argv, options, help, &rc) != -1)
        return rc;
    if (argc - optind != 1)
        return cli_usage(c, "for which shell? bash or zsh");
    if (strcmp(argv[optind], "bash") == 0)
        print_bash();
    else if (strcmp(argv[optind], "zsh") == 0)
        print_zsh();
    else
        return cli_usage(c, "for bash or zsh only");
    return CLI_OK;
}
