/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_claim.c - src/messages/relay/claim.c: who leads, who gets which rows, and that none
 * is left behind.
 */
#include <pthread.h>
#include <stdlib.h>
#include <time.h>

#include "messages/relay/claim.h"
#include "t.h"

enum { WORKERS = 4 };

/* Rows 1, 2, 3 ... with these keys; "-": none. */
static struct once__outgoing_list list_of(const char *keys)
{
    static char names[26][2];
    struct once__outgoing_list list = {NULL, strlen(keys), 77, 0, NULL};
    size_t i;

    list.rows = calloc(list.n + 1, sizeof(*list.rows));
    T_OK(list.rows != NULL);
    for (i = 0; i < list.n; i++) {
        list.rows[i].seq = (int64_t)i + 1;
        if (keys[i] != '-') {
            names[keys[i] - 'a'][0] = keys[i];
            list.rows[i].m.key = names[keys[i] - 'a'];
        }
    }
    return list;
}

static void expect(struct once__part *p, const char *seqs)
{
    size_t i;

    T_OK(p != NULL);
    T_EQ(p->list.n, strlen(seqs));
    T_EQ(p->list.now_ms, 77);
    T_EQ(p->claimed_ms, 5);
    for (i = 0; i < p->list.n; i++)
        T_EQ(p->list.rows[i].seq, seqs[i] - '0');
}

static void rows_of_a_key_stay_together_and_in_order(void)
{
    struct once__claims c = ONCE__CLAIMS_INIT;
    struct once__outgoing_list list = list_of("a-ba-bca");
    struct once__part *parts[5];
    size_t n, i;

    T_OK(once__claims_wait(&c, 0, &n) == NULL);
    T_EQ(n, 1);
    parts[0] = once__claims_share(&c, &list, 5);
    T_OK(list.rows == NULL && list.n == 0);
    for (i = 1; i < 5; i++)
        parts[i] = once__claims_wait(&c, 0, &n);
    expect(parts[0], "148");
    expect(parts[1], "2");
    expect(parts[2], "36");
    expect(parts[3], "5");
    expect(parts[4], "7");
    for (i = 0; i < 5; i++)
        once__part_end(parts[i]);
    T_OK(once__claims_wait(&c, 0, &n) == NULL);
    once__claims_leave(&c);
    once__claims_close(&c);
}

struct worker {
    pthread_t thread;
    struct once__claims *claims;
    struct once__part *part; /* NULL: it led */
};

static void *work(void *arg)
{
    struct worker *w = arg;
    size_t n;

    w->part = once__claims_wait(w->claims, 0, &n);
    if (w->part == NULL)
        once__claims_leave(w->claims);
    return NULL;
}

static void start(struct worker *workers, struct once__claims *c)
{
    const struct timespec pause = {0, 1000000};
    size_t waiting = 0, i;

    for (i = 0; i < WORKERS; i++) {
        workers[i] = (struct worker){.claims = c};
        T_EQ(pthread_create(&workers[i].thread, NULL, work, &workers[i]), 0);
    }
    while (waiting < WORKERS) {
        (void)nanosleep(&pause, NULL);
        (void)pthread_mutex_lock(&c->lock);
        waiting = c->waiting;
        (void)pthread_mutex_unlock(&c->lock);
    }
}

static void those_who_wait_have_a_row_each(void)
{
    struct once__claims c = ONCE__CLAIMS_INIT;
    struct once__outgoing_list list = list_of("-----");
    struct worker workers[WORKERS];
    struct once__part *mine;
    size_t n, seen = 0, i;

    T_OK(once__claims_wait(&c, 0, &n) == NULL);
    start(workers, &c);
    T_OK(once__claims_wait(&c, 1, &n) == NULL);
    T_EQ(n, WORKERS + 1);
    mine = once__claims_share(&c, &list, 5);
    expect(mine, "1");
    once__part_end(mine);
    for (i = 0; i < WORKERS; i++) {
        T_EQ(pthread_join(workers[i].thread, NULL), 0);
        T_OK(workers[i].part != NULL && workers[i].part->list.n == 1);
        seen |= (size_t)1 << workers[i].part->list.rows[0].seq;
        once__part_end(workers[i].part);
    }
    T_EQ(seen, 0x3c);
    once__claims_close(&c);
}

static void who_waits_leads_when_the_leader_leaves(void)
{
    struct once__claims c = ONCE__CLAIMS_INIT;
    struct once__outgoing_list list = list_of("--");
    struct worker workers[WORKERS];
    struct once__part *mine;
    size_t n, parts = 0, i;

    T_OK(once__claims_wait(&c, 0, &n) == NULL);
    start(workers, &c);
    mine = once__claims_share(&c, &list, 5); /* fewer rows than workers */
    once__part_end(mine);
    for (i = 0; i < WORKERS; i++) {
        T_EQ(pthread_join(workers[i].thread, NULL), 0);
        if (workers[i].part != NULL) {
            expect(workers[i].part, "2");
            once__part_end(workers[i].part);
            parts++;
        }
    }
    T_EQ(parts, 1);
    once__claims_close(&c);
}

int main(void)
{
    T_RUN(rows_of_a_key_stay_together_and_in_order);
    T_RUN(those_who_wait_have_a_row_each);
    T_RUN(who_waits_leads_when_the_leader_leaves);
    return t_done();
}
