/* SPDX-License-Identifier: Apache-2.0 */
/*
 * search.c - breadth first over all worlds, and the way back from a broken one.
 *
 * A world is known by a 64-bit hash of its bytes: with 10^7 worlds two of them
 * meet by chance once in 10^5 searches. Of worlds that were left behind only
 * the hash and the number of the one before are kept, so the trail is found by
 * walking again from the first world, choosing each time the step that leads to
 * the next hash on the way.
 *
 * An assertion of the core that fails is a broken rule like any other: the
 * program is linked with --wrap=__assert_fail.
 */
#include <assert.h>
#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "calls/core/machine.h"

#include "explore.h"

struct search {
    struct config config;
    struct result result;
    once_record answer;
    uint32_t *slots; /* number of a world + 1, by hash */
    size_t n_slots;
    uint64_t *hashes; /* by number */
    uint32_t *before; /* by number: the world it was first reached from */
    size_t room, n;
    struct world *queue; /* a ring of those still to be expanded */
    size_t head, tail, ring;

    /* Walking the trail. */
    enum { NOT_WALKING, TO_A_WORLD, TO_THE_BREACH } walking;
    uint64_t wanted;
    int found;
    struct world next;
    struct step next_step;
};

/* Where a failed assertion of the core goes to: the one thing that cannot be
 * handed down, because assert() has no argument for it. */
static struct search *asserting;
static jmp_buf asserted;

const struct config *search_config(const struct search *s)
{
    return &s->config;
}

struct result *search_result(struct search *s)
{
    return &s->result;
}

once_record *search_answer(struct search *s)
{
    return &s->answer;
}

void broken(struct search *s, const char *rule)
{
    if (s->result.broken == NULL)
        s->result.broken = rule;
}

_Noreturn void __wrap___assert_fail(const char *text, const char *file,
                                    unsigned line, const char *function);
_Noreturn void __wrap___assert_fail(const char *text, const char *file,
                                    unsigned line, const char *function)
{
    printf("# %s:%u: %s: %s\n", file, line, function, text);
    if (asserting == NULL)
        abort();
    broken(asserting, "an assertion of the core failed");
    longjmp(asserted, 1);
}

/* ---- Memory ------------------------------------------------------------ */

static void *grown(void *old, size_t n, size_t size)
{
    void *p = reallocarray(old, n, size);

    if (p == NULL) {
        printf("# out of memory: %zu of %zu bytes\n", n, size);
        exit(2);
    }
    return p;
}

/* Twice a word: after one round a difference in a word's last byte stands in two
 * bytes alone, where the next word can take it back. */
static uint64_t hash_of(const struct config *c, const struct world *w)
{
    const uint8_t *p = (const uint8_t *)w;
    uint64_t h = UINT64_C(0x243f6a8885a308d3) + c->salt, x;
    size_t i, left = sizeof(*w);
    int round;

    for (i = 0; left > 0; i += 8) {
        size_t take = left < 8 ? left : 8;

        x = 0;
        memcpy(&x, p + i, take);
        for (h ^= x, round = 0; round < 2; round++) {
            h ^= h >> 32;
            h *= UINT64_C(0xd6e8feb86659fd93);
        }
        h ^= h >> 32;
        left -= take;
    }
    return h;
}

static void insert(struct search *s, uint64_t hash, uint32_t number)
{
    size_t at = hash & (s->n_slots - 1);

    while (s->slots[at] != 0)
        at = (at + 1) & (s->n_slots - 1);
    s->slots[at] = number + 1;
}

static void more_slots(struct search *s)
{
    size_t i;

    free(s->slots);
    s->n_slots = s->n_slots == 0 ? 1 << 16 : s->n_slots * 2;
    s->slots = grown(NULL, s->n_slots, sizeof(*s->slots));
    memset(s->slots, 0, s->n_slots * sizeof(*s->slots));
    for (i = 0; i < s->n; i++)
        insert(s, s->hashes[i], (uint32_t)i);
}

static int have(const struct search *s, uint64_t hash)
{
    size_t at = hash & (s->n_slots - 1);

    for (; s->slots[at] != 0; at = (at + 1) & (s->n_slots - 1))
        if (s->hashes[s->slots[at] - 1] == hash)
            return 1;
    return 0;
}

static void remember(struct search *s, uint64_t hash, uint32_t from)
{
    if (s->n == s->room) {
        s->room = s->room == 0 ? 1 << 16 : s->room * 2;
        s->hashes = grown(s->hashes, s->room, sizeof(*s->hashes));
        s->before = grown(s->before, s->room, sizeof(*s->before));
    }
    if (s->n * 2 >= s->n_slots)
        more_slots(s);
    insert(s, hash, (uint32_t)s->n);
    s->hashes[s->n] = hash;
    s->before[s->n] = from;
    s->n++;
}

static void enqueue(struct search *s, const struct world *w)
{
    size_t i, ring = s->ring;

    if (s->tail - s->head == ring) { /* unroll the ring into a larger one */
        struct world *old = s->queue;

        s->ring = ring == 0 ? 1 << 12 : ring * 2;
        s->queue = grown(NULL, s->ring, sizeof(*s->queue));
        for (i = s->head; i < s->tail; i++)
            s->queue[i & (s->ring - 1)] = old[i & (ring - 1)];
        free(old);
    }
    s->queue[s->tail++ & (s->ring - 1)] = *w;
}

/* ---- The search -------------------------------------------------------- */

static void emit_walking(struct search *s, const struct world *w,
                         struct step step)
{
    struct world sorted = *w;

    world_sort(&s->config, &sorted);
    if (s->found ||
        (s->walking == TO_A_WORLD ? hash_of(&s->config, &sorted) != s->wanted
                                  : s->result.broken == NULL))
        return;
    s->found = 1;
    s->next = *w;
    s->next_step = step;
}

void emit(struct search *s, const struct world *w, struct step step)
{
    struct world sorted;
    uint64_t hash;

    if (s->walking) {
        emit_walking(s, w, step);
        return;
    }
    s->result.steps++;
    if (s->result.broken != NULL)
        return;
    sorted = *w;
    world_sort(&s->config, &sorted);
    hash = hash_of(&s->config, &sorted);
    if (have(s, hash))
        return;
    remember(s, hash, (uint32_t)(s->head - 1));
    enqueue(s, &sorted);
}

static void run(struct search *s)
{
    while (s->head < s->tail && s->result.broken == NULL &&
           s->n < s->config.states_max) {
        struct world w = s->queue[s->head++ & (s->ring - 1)];

        expand(s, &w);
    }
}

/* ---- The trail --------------------------------------------------------- */

const char *verb_text(int verb)
{
    static const char *const texts[ONCE__OP_END] = {
        [ONCE_OP_CLAIM] = "claim",     [ONCE_OP_DISPATCH] = "dispatch",
        [ONCE_OP_RENEW] = "renew",     [ONCE_OP_COMPLETE] = "complete",
        [ONCE_OP_RELEASE] = "release", [ONCE_OP_GIVE_UP] = "give_up",
        [ONCE_OP_READ] = "read",       [ONCE_OP_REAP] = "reap",
        [ONCE_OP_RESOLVE] = "resolve", [ONCE_OP_REOPEN] = "reopen",
        [ONCE_OP_FORGET] = "forget",   [ONCE_OP_SHOW] = "show"};

    return verb > 0 && verb < ONCE__OP_END ? texts[verb] : "";
}

static const char *answer_text(int rc)
{
    static const char *const texts[] = {
        "ok",   "owner",    "in flight", "replay", "unknown",
        "lost", "mismatch", "free",      "fenced", "refused"};

    return rc >= 0 && rc <= ONCE_REFUSED ? texts[rc] : "";
}

static const char *state_text(int state)
{
    static const char *const texts[] = {"absent", "claimed", "dispatched",
                                        "completed", "indeterminate"};

    return texts[state];
}

static void print_step(unsigned number, const struct step *p,
                       const struct world *after)
{
    printf("# %3u  ", number);
    if (p->who >= 0)
        printf("%c ", 'A' + p->who);
    printf("%s%s%s", p->what, p->verb != 0 && *p->what ? " " : "",
           verb_text(p->verb));
    if (p->late)
        printf(", lease over");
    if (p->rc >= 0)
        printf(": %s", answer_text(p->rc));
    if (after != NULL) {
        printf("   [%s", state_text(after->row.state));
        if (after->row.attempt > 0)
            printf(" #%u fence %u of %c%s", after->row.attempt,
                   after->row.fence, 'A' + after->row.owner - 1,
                   after->row.doubt ? ", doubt" : "");
        printf("]");
    }
    printf("\n");
}

/* The step that breaks a rule, or in which the core stops itself. */
static void print_breach(struct search *s, unsigned number,
                         const struct world *w)
{
    const struct world last = *w;

    s->walking = TO_THE_BREACH;
    s->result.broken = NULL;
    s->found = 0;
    asserting = s;
    if (setjmp(asserted) == 0)
        expand(s, &last);
    asserting = NULL;
    if (s->found)
        print_step(number, &s->next_step, NULL);
    else
        printf("# %3u  there\n", number);
}

/* The world that was being expanded is the last of the way. */
static void print_trail(struct search *s)
{
    uint32_t *way = grown(NULL, s->n + 1, sizeof(*way));
    uint32_t at = (uint32_t)(s->head - 1);
    struct world w;
    unsigned n = 0, i;

    for (; at != 0; at = s->before[at])
        way[n++] = at;
    printf("# broken after %u steps: %s\n", n + 1, s->result.broken);
    s->walking = TO_A_WORLD;
    world_begin(&s->config, &w);
    for (i = 0; i < n; i++) {
        s->wanted = s->hashes[way[n - 1 - i]];
        s->found = 0;
        expand(s, &w);
        assert(s->found);
        w = s->next;
        print_step(i + 1, &s->next_step, &w);
    }
    free(way);
    print_breach(s, n + 1, &w);
}

static void clear(struct search *s)
{
    free(s->slots);
    free(s->hashes);
    free(s->before);
    free(s->queue);
    free(s);
}

static double seconds(void)
{
    struct timespec t;

    (void)clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

int search(const struct config *c, int trail, struct result *out)
{
    struct search *s = grown(NULL, 1, sizeof(*s));
    double start = seconds();
    struct world w;
    int rc;

    memset(s, 0, sizeof(*s));
    s->config = *c;
    more_slots(s);
    world_begin(c, &w);
    world_sort(c, &w);
    remember(s, hash_of(c, &w), 0);
    enqueue(s, &w);
    asserting = s;
    if (setjmp(asserted) == 0)
        run(s);
    asserting = NULL;
    s->result.states = s->n;
    s->result.seconds = seconds() - start;
    rc = s->result.broken != NULL ? 1 : s->head < s->tail ? CROWDED : 0;
    *out = s->result;
    if (rc == 1 && trail)
        print_trail(s);
    clear(s);
    return rc;
}
