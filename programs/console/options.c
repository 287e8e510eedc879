/* SPDX-License-Identifier: Apache-2.0 */
/*
 * options.c - the options of the console, for the program and for `once console`,
 * which starts it.
 */
#include "programs/console/options.h"

#include <string.h>

/* clang-format off */
const char console_help[] =
    "usage: once console [--store [NAME=]URL]... [--listen WHERE] [--decide]\n"
    "\n"
    "Serves the web console: what waits for a decision, and deciding it.\n"
    "\n"
    "  --store [NAME=]URL   a store, up to 16; or from ONCE_STORE. NAME is what is\n"
    "                 shown; URL may be a name of once-stores(5), or @FILE\n"
    "  --listen WHERE unix:PATH (unix:/run/once/console.sock), 127.0.0.1:PORT,\n"
    "                 [::1]:PORT, or systemd. On loopback it prints its address\n"
    "  --decide       decisions are possible\n"
    "  --operators FILE   who may do what (/etc/once/operators)\n"
    "  --audit FILE   the log of decisions (/var/log/once/audit.jsonl)\n"
    "  --database [NAME=]URL   of a program with messages, up to 16: its outbox,\n"
    "                 parked messages and sagas; or @FILE\n"
    "  --watch [NAME=]URL   a gateway's status page, or file:///FILE of a relay or\n"
    "                 a consumer, up to 16: the last hour in plots; or @FILE\n"
    "  --link URL     where the service shows an order: {label} is what a record is\n"
    "                 about, {order} what stands in it behind order=\n"
    "  --host NAME    one more name that browsers may call it; loopback's are known\n"
    "  --trust-user-header NAME   on a socket file: the header in which a proxy\n"
    "                 names who has logged in\n"
    "  --trust-uid UID   the proxy's own; no other user's header counts\n"
    "\n"
    "Who comes by a socket file is known by the kernel. See man once-console.\n";

const struct cli_option console_options[] = {
    CLI_HELP_OPTION,
    {"store", CLI_SCHEMES, .id = CONSOLE_OPT_STORE},
    {"listen", "127.0.0.1:0 systemd", .id = CONSOLE_OPT_LISTEN},
    {"decide", NULL, .id = CONSOLE_OPT_DECIDE},
    {"operators", CLI_FILES, .id = CONSOLE_OPT_OPERATORS},
    {"audit", CLI_FILES, .id = CONSOLE_OPT_AUDIT},
    {"database", CLI_SCHEMES, .id = CONSOLE_OPT_DATABASE},
    {"watch", "http:// https:// file:///", .id = CONSOLE_OPT_WATCH},
    {"link", "", .id = CONSOLE_OPT_LINK},
    {"host", "", .id = CONSOLE_OPT_HOST},
    {"trust-user-header", "", .id = CONSOLE_OPT_TRUST_HEADER},
    {"trust-uid", "", .id = CONSOLE_OPT_TRUST_UID},
    {.name = NULL},
};
/* clang-format on */

size_t console_name_size(const char *text)
{
    size_t n = strspn(text, "abcdefghijklmnopqrstuvwxyz0123456789_-");

    return text[n] == '=' ? n : 0;
}
