/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cmd_completion.c - `once completion bash|zsh`: a script for the shell.
 *
 * Everything in it comes from the tables that the program reads its command
 * lines with (struct cli_command, struct cli_option), so a new command, option
 * or value is completed without a change here.
 */
#include "programs/once/cli.h"

#include <assert.h>
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

static const struct cli_option options[] = {
    CLI_HELP_OPTION,
    {.name = NULL},
};

static void print_commands(const struct cli *c)
{
    size_t i;

    for (i = 0; i < c->command_count; i++)
        if (strchr(c->commands[i]->name, ' ') == NULL)
            printf("%s%s", i ? " " : "", c->commands[i]->name);
}

static void print_options(const struct cli_option *o)
{
    const char *space = "";

    for (; o->name != NULL; o++) {
        printf("%s--%s", space, o->name);
        space = " ";
    }
}

/* A line for each command, as in: show) o='--store --json' ;;
 * The words of `once messages` stand before it: it also stands for its own. */
static void print_option_cases(const struct cli *c)
{
    const char *operands;
    size_t i;

    for (i = 0; i < c->command_count; i++) {
        operands = c->commands[i]->operands;
        printf("        '%s'%s) o='", c->commands[i]->name,
               strcmp(c->commands[i]->name, "messages") == 0 ? "*" : "");
        print_options(c->commands[i]->options);
        printf("%s%s' ;;\n", operands ? " " : "", operands ? operands : "");
    }
}

static const struct cli_option *find_option(const struct cli_option *o,
                                            const char *name)
{
    while (o->name != NULL && strcmp(o->name, name) != 0)
        o++;
    return o->name != NULL ? o : NULL;
}

/* 1: the command has this option, too, and so it has the same values. */
static int has_option(const struct cli_option *list,
                      const struct cli_option *other)
{
    const struct cli_option *o = find_option(list, other->name);

    assert(o == NULL || o->value == NULL || other->value == NULL ||
           strcmp(o->value, other->value) == 0);
    return o != NULL && (o->value == NULL) == (other->value == NULL);
}

/* 1: some command has a flag of this name, after which anything may follow. */
static int is_flag_elsewhere(const struct cli *c, const char *name)
{
    const struct cli_option *o = NULL;
    size_t i;

    for (i = 0; i < c->command_count; i++) {
        o = find_option(c->commands[i]->options, name);
        if (o != NULL && o->value == NULL)
            return 1;
    }
    return 0;
}

/* A line for each option that takes a value: what may follow it. Once, though
 * several of the first `n` commands may have the option. */
static void print_value_cases(const struct cli *c, size_t n, const char *files)
{
    const struct cli_command *const *commands = c->commands;
    const struct cli_option *o = commands[n]->options;
    size_t i;

    for (; o->name != NULL; o++) {
        for (i = 0; i < n && !has_option(commands[i]->options, o); i++)
            ;
        if (o->value == NULL || i < n)
            continue;
        if (is_flag_elsewhere(c, o->name)) {
            assert(o->value[0] == '\0');
            printf("        --%s) [[ $command != '%s' ]] || return ;;\n",
                   o->name, commands[n]->name);
        } else if (strcmp(o->value, CLI_FILES) == 0)
            printf("        --%s) %s; return ;;\n", o->name, files);
        else if (strcmp(o->value, CLI_SCHEMES) == 0) {
            printf("        --%s) o=\"$(ls \"${ONCE_STORES_D:-/etc/once/"
                   "stores.d}\" 2>/dev/null) ",
                   o->name);
            cli_print_schemes(stdout, 1);
            fputs("\" ;;\n", stdout);
        } else if (o->value[0] == '\0')
            printf("        --%s) return ;;\n", o->name);
        else
            printf("        --%s) o='%s' ;;\n", o->name, o->value);
    }
}

static void print_cases(const struct cli *c, const char *files)
{
    size_t i;

    fputs("    case $prev in\n", stdout);
    for (i = 0; i < c->command_count; i++)
        print_value_cases(c, i, files);
    fputs("    esac\n"
          "    [[ $o ]] || case $command in\n",
          stdout);
    print_option_cases(c);
    fputs("        '') o='help ", stdout);
    print_commands(c);
    putchar(' ');
    print_options(c->own->options);
    fputs("' ;;\n"
          "    esac\n",
          stdout);
}

/* ---- The scripts --------------------------------------------------------- */

/* After `--` there is a command of the user's own. A colon ends a word, for
 * readline: the path of a store's URL is a word by itself, and a file. */
static void print_bash(const struct cli *c)
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
          "        --store|--database)\n"
          "            ((i++))\n"
          "            [[ ${COMP_WORDS[i+1]} != : ]] || ((i += 2)) ;;\n"
          "        -*|help) ;;\n"
          "        *)\n"
          "            if [[ $command == messages ]]; then\n"
          "                command+=\" ${COMP_WORDS[i]}\"\n"
          "            elif [[ ! $command ]]; then\n"
          "                command=${COMP_WORDS[i]}\n"
          "            fi ;;\n"
          "        esac\n"
          "    done\n"
          "    if [[ $prev == : || $cur == : ]]; then\n"
          "        COMPREPLY=($(compgen -f -- \"${cur#:}\"))\n"
          "        return\n"
          "    fi\n",
          stdout);
    print_cases(c, "COMPREPLY=($(compgen -f -- \"$cur\"))");
    fputs("    [[ $prev != --store && $prev != --database ]] || compopt -o "
          "nospace 2>/dev/null\n"
          "    COMPREPLY=($(compgen -W \"$o\" -- \"$cur\"))\n"
          "}\n"
          "complete -F _once once\n",
          stdout);
}

/* The last lines: the same text is a file to autoload and one to eval. */
static void print_zsh(const struct cli *c)
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
          "        --store|--database) ((i++)) ;;\n"
          "        -*|help) ;;\n"
          "        *)\n"
          "            if [[ $command == messages ]]; then\n"
          "                command+=\" ${words[i]}\"\n"
          "            elif [[ ! $command ]]; then\n"
          "                command=${words[i]}\n"
          "            fi ;;\n"
          "        esac\n"
          "    done\n",
          stdout);
    print_cases(c, "_files");
    fputs("    compadd -- ${=o}\n"
          "}\n"
          "if [[ ${funcstack[1]} == _once ]]; then\n"
          "    _once \"$@\"\n"
          "else\n"
          "    compdef _once once\n"
          "fi\n",
          stdout);
}

static int run(struct cli *c, int argc, char **argv)
{
    int rc = cli_read_args(c, argc, argv, NULL, NULL);

    if (rc != CLI_OK)
        return rc;
    if (argc - optind != 1)
        return cli_usage(c, "for which shell? bash or zsh");
    if (strcmp(argv[optind], "bash") == 0)
        print_bash(c);
    else if (strcmp(argv[optind], "zsh") == 0)
        print_zsh(c);
    else
        return cli_usage(c, "for bash or zsh only");
    return CLI_OK;
}

const struct cli_command cli_cmd_completion = {
    "completion", "print a completion for bash or zsh",
    help,         options,
    "bash zsh",   run};
