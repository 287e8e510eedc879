/* SPDX-License-Identifier: Apache-2.0 */
/*
 * quick.c - `once stats --quick`: what a store says of itself, without a walk
 * through its records. It costs the same whatever the store holds.
 */
#include "programs/once/cli.h"

#include <string.h>

#include "base/bytes.h"
#include "programs/once/records/quick.h"

struct quick {
    once_counts n;
    once_store_head head;
    int counts, has_head; /* 0: this store has none */
    uint64_t oldest_ms;   /* when the first one that waits ended; 0: none */
};

static int see(void *user, const uint8_t name[ONCE_NAME_SIZE],
               const once_record *r)
{
    struct quick *q = user;

    (void)name;
    q->oldest_ms = r->ended_ms;
    return 1;
}

static int ask(const struct cli *c, once_engine *e, struct quick *q)
{
    once_error err = {0, ""};
    int rc = once_count(e, &q->n, &err);

    q->counts = rc == ONCE_OK;
    if (rc == ONCE_OK || rc == ONCE_ENOSYS) {
        rc = once_head(e, &q->head, &err);
        q->has_head = rc == ONCE_OK;
    }
    if (rc == ONCE_OK || rc == ONCE_ENOSYS)
        rc = once_scan(e, ONCE_SCAN_WAITING, NULL, 1, see, q, &err);
    return rc < 0 ? cli_trouble(c, rc, &err) : CLI_OK;
}

static const char *gap_text(const once_store_head *h)
{
    if (h->gap == ONCE_GAP_NONE || cli_now_ms() >= h->gap_until_ms)
        return "none";
    return h->gap == ONCE_GAP_HOLD ? "hold" : "accept";
}

static int print_json(const struct cli *c, const struct quick *q)
{
    char id[2 * ONCE_STORE_ID_SIZE + 1] = "";
    json_t *o = json_object();
    int bad = o == NULL;

    if (q->counts)
        bad |= json_object_update_new(
            o, json_pack("{s:I, s:I, s:I, s:I, s:b}", "claimed",
                         (json_int_t)q->n.claimed, "dispatched",
                         (json_int_t)q->n.dispatched, "indeterminate",
                         (json_int_t)q->n.indeterminate, "rest",
                         (json_int_t)q->n.rest, "rest_estimated",
                         q->n.rest_estimated));
    if (q->has_head) {
        once__hex(q->head.id, ONCE_STORE_ID_SIZE, id);
        bad |= json_object_update_new(
            o, json_pack("{s:s, s:I, s:s, s:o}", "store", id, "incarnation",
                         (json_int_t)q->head.incarnation, "gap",
                         gap_text(&q->head), "gap_until",
                         cli_json_time(q->head.gap_until_ms)));
    }
    bad |= json_object_set_new(o, "oldest", cli_json_time(q->oldest_ms));
    if (bad) {
        json_decref(o);
        o = NULL;
    }
    return cli_print_json(c, o);
}

static void print_text(const struct cli *c, const struct quick *q)
{
    char id[2 * ONCE_STORE_ID_SIZE + 1];

    if (q->counts) {
        cli_number(c, "claimed", q->n.claimed);
        cli_number(c, "dispatched", q->n.dispatched);
        cli_number(c, "indeterminate", q->n.indeterminate);
        cli_label(c, "rest");
        printf("%s%llu\n", q->n.rest_estimated ? "about " : "",
               (unsigned long long)q->n.rest);
    }
    cli_moment(c, "oldest", q->oldest_ms);
    if (!q->has_head)
        return;
    once__hex(q->head.id, ONCE_STORE_ID_SIZE, id);
    cli_line(c, "store", id);
    cli_number(c, "incarnation", q->head.incarnation);
    cli_line(c, "gap", gap_text(&q->head));
    if (strcmp(gap_text(&q->head), "none") != 0)
        cli_moment(c, "gap until", q->head.gap_until_ms);
}

int cli_quick(const struct cli *c)
{
    struct quick q;
    once_engine *e = NULL;
    int rc = cli_open_to_look(c, &e);

    if (rc != CLI_OK)
        return rc;
    memset(&q, 0, sizeof(q));
    rc = ask(c, e, &q);
    once_engine_close(e);
    if (rc != CLI_OK)
        return rc;
    if (c->json)
        return print_json(c, &q);
    print_text(c, &q);
    return CLI_OK;
}
