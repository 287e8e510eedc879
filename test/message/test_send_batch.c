/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_send_batch.c - src/messages/relay/send_batch.c against a target that does what its script
 * says: in which order rows leave, and what becomes of those that do not.
 *
 * An id is what the target does with the message: "taken", "refused", ... up to
 * the first '/'. "slow" is taken after a while; "never" gets no proof until the batch is given up; "lost" is
 * sent, and the connection is gone with it.
 */
#include <time.h>

#include "messages/relay/send_batch.h"
#include "t.h"

enum { ROWS = 16 };

struct target {
    struct once__broker broker;
    const once_message *sent[ROWS];
    uint64_t tags[ROWS];
    size_t n, proved; /* sent; of these, those with a proof */
    int open_most;    /* the most that were open at one time */
    int abandoned;
    char bytes[8]; /* what a proof points into */
};

static struct target target;

static int is(const once_message *m, const char *what)
{
    return strncmp(m->id, what, strlen(what)) == 0;
}

static int send_(struct once__broker *b, const once_message *m, uint64_t tag,
                 once_error *err)
{
    (void)b;
    (void)err;
    memset(target.bytes, 'x', sizeof(target.bytes));
    target.sent[target.n] = m;
    target.tags[target.n++] = tag;
    if ((int)(target.n - target.proved) > target.open_most)
        target.open_most = (int)(target.n - target.proved);
    return is(m, "lost") ? ONCE_EAWAY : ONCE_OK;
}

static int end_of(const once_message *m)
{
    static const struct {
        const char *id;
        int end;
    } ends[] = {
        {"taken", ONCE__END_TAKEN},     {"slow", ONCE__END_TAKEN},
        {"refused", ONCE__END_REFUSED}, {"rejected", ONCE__END_REJECTED},
        {"away", ONCE__END_AWAY},       {"lost", ONCE__END_SILENT},
    };
    size_t i;

    for (i = 0; i < sizeof(ends) / sizeof(ends[0]); i++)
        if (is(m, ends[i].id))
            return ends[i].end;
    return ONCE__END_SILENT;
}

/* One or two proofs at a time, in the order of sending. */
static size_t proofs(struct once__broker *b, uint32_t wait_ms,
                     struct once__proof *out, size_t max)
{
    const struct timespec pause = {0, (long)wait_ms * 1000000};
    const struct timespec slow = {0, 80000000};
    size_t n = 0;

    (void)b;
    memcpy(target.bytes, "reply", 6);
    while (n < 2 && n < max && target.proved < target.n) {
        const once_message *m = target.sent[target.proved];

        if (is(m, "never") && !target.abandoned)
            break;
        if (is(m, "lazy"))
            break; /* it owes a proof */
        if (is(m, "slow"))
            (void)nanosleep(&slow, NULL);
        out[n++] = (struct once__proof){
            .tag = target.tags[target.proved++],
            .end = end_of(m),
            .reply = {target.bytes, 5},
            .why = target.bytes,
        };
    }
    if (n == 0)
        (void)nanosleep(&pause, NULL);
    return n;
}

static void abandon(struct once__broker *b)
{
    (void)b;
    target.abandoned++;
}

static const struct once__broker_ops ops = {
    .scheme = "script", .send = send_, .proofs = proofs, .abandon = abandon};

/* ---- A batch ------------------------------------------------------------- */

static struct once__outgoing rows[ROWS];
static struct once__outgoing_list list;
static struct once__batch batch;
static struct once__wire wire;
static int stop_after; /* so many sent; -1: never */

static int stop(void *user)
{
    (void)user;
    return stop_after >= 0 && (int)target.n >= stop_after;
}

static void row(const char *id, const char *key)
{
    struct once__outgoing *r = &rows[list.n++];

    memset(r, 0, sizeof(*r));
    r->seq = (int64_t)list.n;
    r->attempts = 3;
    r->row.doubt = 1;
    r->m = (once_message)ONCE_MESSAGE_INIT;
    r->m.id = id;
    r->m.key = key;
}

static void begin(void)
{
    once__batch_clear(&batch);
    memset(&target, 0, sizeof(target));
    target.broker.ops = &ops;
    list = (struct once__outgoing_list){rows, 0, 1000000, 0, NULL};
    wire = (struct once__wire){.broker = &target.broker, .tag = 1000};
    batch = (struct once__batch){
        .list = &list, .timeout_ms = 100, .until_ms = UINT64_MAX, .stop = stop};
    stop_after = -1;
}

static void run(void)
{
    T_EQ(once__batch_begin(&wire, &batch, NULL), ONCE_OK);
    while (batch.open > 0)
        once__wire_collect(&wire);
    T_OK(wire.first == NULL);
}

#define SENT(i, text) T_STR(target.sent[i]->id, text)
#define END(i, what)                                                           \
    do {                                                                       \
        T_EQ(batch.items[i].state, ONCE__ITEM_ENDED);                          \
        T_EQ(batch.items[i].end, ONCE__END_##what);                            \
    } while (0)

/* ---- The tests ----------------------------------------------------------- */

static void rows_without_a_key_leave_all_at_once(void)
{
    begin();
    row("taken/1", NULL);
    row("refused/2", NULL);
    row("taken/3", NULL);
    run();
    T_EQ(target.open_most, 3);
    END(0, TAKEN);
    END(1, REFUSED);
    END(2, TAKEN);
    T_EQ(batch.sent, 3);
    T_EQ(target.tags[2], 1002);
    T_EQ(wire.tag, 1003);
    T_EQ(target.sent[0]->attempt, 3);
}

static void rows_of_a_key_leave_one_after_the_other(void)
{
    begin();
    row("taken/a1", "a");
    row("taken/b1", "b");
    row("taken/a2", "a");
    row("taken/a3", "a");
    row("taken/b2", "b");
    run();
    T_EQ(target.open_most, 2);
    SENT(0, "taken/a1");
    SENT(1, "taken/b1");
    SENT(2, "taken/a2");
    SENT(3, "taken/b2");
    SENT(4, "taken/a3");
    END(3, TAKEN);
    END(4, TAKEN);
}

static void what_comes_after_a_failure_of_its_key_is_not_sent(void)
{
    begin();
    row("taken/a1", "a");
    row("refused/a2", "a");
    row("taken/a3", "a");
    row("taken/a4", "a");
    row("taken/b1", "b");
    run();
    T_EQ(target.n, 3);
    END(0, TAKEN);
    END(1, REFUSED);
    END(2, UNSENT);
    END(3, UNSENT);
    END(4, TAKEN);
}

static void proofs_are_copied_before_the_next_is_sent(void)
{
    begin();
    row("taken/a1", "a");
    row("refused/b1", "b");
    row("taken/a2", "a");
    run();
    T_EQ(batch.items[1].reply.size, 5);
    T_MEM(batch.items[1].reply.data, "reply", 5);
    T_STR(batch.items[1].why, "reply");
}

static void what_has_no_proof_in_time_is_silent(void)
{
    begin();
    row("taken/1", NULL);
    row("never/2", "k");
    row("taken/3", "k");
    run();
    T_EQ(target.abandoned, 1);
    END(0, TAKEN);
    END(1, SILENT);
    END(2, UNSENT);
}

static void a_driver_that_owes_a_proof_does_not_hang_the_batch(void)
{
    begin();
    row("lazy/1", NULL);
    row("taken/2", NULL);
    run();
    END(0, SILENT);
    END(1, SILENT); /* its proof stands behind */
}

static void nothing_is_sent_on_a_lost_connection(void)
{
    begin();
    row("taken/1", NULL);
    row("lost/2", NULL);
    row("taken/3", NULL);
    row("taken/4", NULL);
    run();
    T_EQ(target.n, 2);
    END(0, TAKEN);
    END(1, SILENT);
    END(2, UNSENT);
    END(3, UNSENT);
}

static void nothing_is_sent_with_too_little_of_the_lease_left(void)
{
    begin();
    row("taken/1", NULL);
    batch.until_ms = once__relay_ms() + 2 * batch.timeout_ms - 1;
    run();
    T_EQ(target.n, 0);
    END(0, UNSENT);
}

static void the_lease_is_looked_at_before_each_row_of_a_key(void)
{
    begin();
    row("slow/a1", "a");
    row("taken/a2", "a");
    batch.until_ms = once__relay_ms() + 2 * batch.timeout_ms + 50;
    run();
    T_EQ(target.n, 1);
    END(0, TAKEN);
    END(1, UNSENT);
}

static void a_stop_lets_what_is_under_way_end(void)
{
    begin();
    row("taken/a1", "a");
    row("taken/b1", NULL);
    row("taken/a2", "a");
    stop_after = 2;
    run();
    T_EQ(target.n, 2);
    END(0, TAKEN);
    END(1, TAKEN);
    END(2, UNSENT);
}

static void a_row_in_doubt_beyond_the_horizon_is_not_sent(void)
{
    begin();
    batch.horizon_ms = 5000;
    row("taken/1", NULL);
    rows[0].row = (struct once__row){2, 0, list.now_ms - 5000};
    row("taken/2", NULL);
    rows[1].row = (struct once__row){2, 0, list.now_ms - 4999};
    row("taken/3", NULL); /* this attempt alone is in doubt */
    rows[2].row = (struct once__row){1, 0, list.now_ms - 6000};
    run();
    END(0, UNSENT);
    END(1, TAKEN);
    END(2, TAKEN);
}

/* ---- Two batches at one target -------------------------------------------- */

static struct once__outgoing_list second_list;
static struct once__batch second;

#define SECOND_END(i, what) T_EQ(second.items[i].end, ONCE__END_##what)

/* The rows from number `n` on are another batch, of the same kind. */
static void divide(size_t n)
{
    once__batch_clear(&second);
    second_list = list;
    second_list.rows += n;
    second_list.n -= n;
    list.n = n;
    second = batch;
    second.list = &second_list;
}

static void run_both(void)
{
    T_EQ(once__batch_begin(&wire, &batch, NULL), ONCE_OK);
    T_EQ(once__batch_begin(&wire, &second, NULL), ONCE_OK);
    while (wire.first != NULL)
        once__wire_collect(&wire);
    T_EQ(batch.open + second.open, 0);
}

static void each_of_two_batches_gets_its_own_proofs(void)
{
    begin();
    row("taken/a1", "a");
    row("refused/2", NULL);
    row("taken/a2", "a");
    row("refused/b1", "b");
    row("taken/b2", "b");
    row("taken/c1", "c");
    row("taken/c2", "c");
    divide(3);
    run_both();
    T_EQ(target.open_most, 4); /* the second did not wait */
    T_EQ(target.n, 6);
    END(0, TAKEN);
    END(1, REFUSED);
    END(2, TAKEN);
    SECOND_END(0, REFUSED);
    SECOND_END(1, UNSENT);
    SECOND_END(2, TAKEN);
    SECOND_END(3, TAKEN);
    T_EQ(batch.sent, 3);
    T_EQ(second.sent, 3);
    T_EQ(wire.tag, 1007);
}

/* The first has not a proof in time: with the connection the rows of the second are
 * given up that are open, and the others are not sent. */
static void what_is_given_up_is_so_for_both_batches(void)
{
    begin();
    row("never/1", NULL);
    row("taken/b1", "b");
    row("taken/b2", "b");
    divide(1);
    second.timeout_ms = 100000;
    run_both();
    T_EQ(target.abandoned, 1);
    END(0, SILENT);
    T_OK(second.items[0].end != ONCE__END_UNSENT);
    T_EQ(second.sent, 1);
    SECOND_END(1, UNSENT);
}

static void a_batch_begun_behind_a_lost_connection_is_not_sent(void)
{
    begin();
    row("lost/1", NULL);
    row("taken/2", NULL);
    divide(1);
    run_both();
    T_EQ(target.n, 1);
    END(0, SILENT);
    SECOND_END(0, UNSENT);
    once__batch_clear(&second);
    T_EQ(once__batch_begin(&wire, &second, NULL),
         ONCE_OK); /* once it is over */
    T_EQ(target.n, 2);
    while (wire.first != NULL)
        once__wire_collect(&wire);
    SECOND_END(0, TAKEN);
}

static void a_batch_that_goes_back_is_not_sent(void)
{
    begin();
    row("taken/1", NULL);
    row("taken/2", "k");
    batch.back = 1;
    run();
    T_EQ(target.n, 0);
    END(0, UNSENT);
    END(1, UNSENT);
}

int main(void)
{
    T_RUN(rows_without_a_key_leave_all_at_once);
    T_RUN(rows_of_a_key_leave_one_after_the_other);
    T_RUN(what_comes_after_a_failure_of_its_key_is_not_sent);
    T_RUN(proofs_are_copied_before_the_next_is_sent);
    T_RUN(what_has_no_proof_in_time_is_silent);
    T_RUN(a_driver_that_owes_a_proof_does_not_hang_the_batch);
    T_RUN(nothing_is_sent_on_a_lost_connection);
    T_RUN(nothing_is_sent_with_too_little_of_the_lease_left);
    T_RUN(the_lease_is_looked_at_before_each_row_of_a_key);
    T_RUN(a_stop_lets_what_is_under_way_end);
    T_RUN(a_row_in_doubt_beyond_the_horizon_is_not_sent);
    T_RUN(each_of_two_batches_gets_its_own_proofs);
    T_RUN(what_is_given_up_is_so_for_both_batches);
    T_RUN(a_batch_begun_behind_a_lost_connection_is_not_sent);
    T_RUN(a_batch_that_goes_back_is_not_sent);
    once__batch_clear(&batch);
    once__batch_clear(&second);
    return t_done();
}
