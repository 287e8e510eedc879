/* SPDX-License-Identifier: Apache-2.0 */
/*
 * walk.c - all records, a page at a time.
 *
 * Neither a million records nor a slow reader of our output holds up the store:
 * a page is copied on the engine's thread, and looked at when the engine has
 * gone on. It refuses to be a snapshot: what changes meanwhile may be seen or
 * not.
 */
#include "programs/once/cli.h"

#include <stdlib.h>
#include <string.h>

enum { PAGE = 256 };

struct page {
    size_t n;
    struct cli_row rows[PAGE];
};

/* On the engine's thread: copies, and nothing else. */
static int collect(void *user, const uint8_t name[ONCE_NAME_SIZE],
                   const once_record *r)
{
    struct page *page = user;
    struct cli_row *row = &page->rows[page->n];

    if (page->n == PAGE)
        return 1;
    memcpy(row->name, name, ONCE_NAME_SIZE);
    row->record = *r;
    row->record.result.data = NULL;
    row->record.note.data = NULL;
    row->record.label.data = row->label;
    if (r->label.size > 0)
        memcpy(row->label, r->label.data, r->label.size);
    page->n++;
    return 0;
}

int cli_walk(const struct cli *c, once_engine *e, int what,
             const once_position *after, struct cli_progress *p, cli_see *see,
             void *user)
{
    struct page *page = malloc(sizeof(*page));
    once_position last;
    once_error err = {0, ""};
    int rc = CLI_OK, shown;
    uint64_t n = 0;
    size_t i;

    if (page == NULL)
        return cli_say(c, CLI_STORE, "out of memory");
    do {
        page->n = 0;
        shown = once_scan(e, what, after, PAGE, collect, page, &err);
        if (shown < 0) {
            cli_progress_end(p);
            rc = cli_trouble(c, shown, &err);
            break;
        }
        for (i = 0; i < page->n && rc == CLI_OK; i++)
            rc = see(user, &page->rows[i]);
        if (page->n > 0) {
            const struct cli_row *row = &page->rows[page->n - 1];

            last = once_position_of(what, row->name, &row->record);
            after = &last;
            n += page->n;
            cli_progress(p, what == ONCE_SCAN_ALL ? cli_part(last.name) : -1,
                         n);
        }
    } while (page->n == PAGE && rc == CLI_OK);
    free(page);
    return rc == CLI_STOP ? CLI_OK : rc;
}
