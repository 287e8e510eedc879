/* SPDX-License-Identifier: Apache-2.0 */
/*
 * table.c - a directory of small trees, and two heaps of due times.
 *
 *   first bits of a name:   000  001  010  011  100  101  110  111
 *                            |         |    |         |
 *                          tree      tree  tree      tree     about one row
 *
 * The directory makes a look-up short, and because it goes by the *first* bits
 * a walk along it is a walk in the order of names. Names are SHA-256 sums, but
 * a client who chooses keys can search for sums that begin alike; hence the
 * trees: treaps, balanced by secret random ranks, so that the worst a clever
 * caller gets is the logarithm. It grows by cutting few trees in two at each
 * new row: no step ever touches all rows, so a million of them stall no call.
 *
 * It refuses to shrink: the directory keeps the size of its best day.
 */
#include "base/must.h"
#include "calls/core/transition.h"
#include "calls/store/table.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

enum { FIRST_BITS = 8, LAST_BITS = 40, CUTS = 4, FIRST_ROOM = 256 };

static_assert(sizeof(struct once__table_row) <= 200,
              "with the heaps: 250 bytes a key");

static size_t prefix(const uint8_t *name, unsigned bits)
{
    uint64_t value = 0;
    int i;

    for (i = 0; i < 8; i++)
        value = value << 8 | name[i];
    return (size_t)(value >> (64 - bits));
}

/* xorshift64*: the seed is secret, and ranks are never shown. */
static uint32_t random32(struct once__table *t)
{
    t->random ^= t->random >> 12;
    t->random ^= t->random << 25;
    t->random ^= t->random >> 27;
    return (uint32_t)((t->random * UINT64_C(0x2545f4914f6cdd1d)) >> 32);
}

/* ---- Trees ------------------------------------------------------------- */

/* Cuts a tree: names below `name` to `*low`, all others to `*high`. */
static void cut(struct once__table_row *tree, const uint8_t *name,
                struct once__table_row **low, struct once__table_row **high)
{
    while (tree != NULL) {
        if (memcmp(tree->name, name, ONCE_NAME_SIZE) < 0) {
            *low = tree;
            low = &tree->high;
            tree = tree->high;
        } else {
            *high = tree;
            high = &tree->low;
            tree = tree->low;
        }
    }
    *low = NULL;
    *high = NULL;
}

/* The other way round: every name of `low` is below every one of `high`. */
static void join(struct once__table_row *low, struct once__table_row *high,
                 struct once__table_row **tree)
{
    while (low != NULL && high != NULL) {
        if (low->rank > high->rank) {
            *tree = low;
            tree = &low->high;
            low = low->high;
        } else {
            *tree = high;
            tree = &high->low;
            high = high->low;
        }
    }
    *tree = low != NULL ? low : high;
}

static struct once__table_row **find(struct once__table_row **tree,
                                     const uint8_t *name)
{
    int order;

    while (*tree != NULL) {
        order = memcmp(name, (*tree)->name, ONCE_NAME_SIZE);
        if (order == 0)
            break;
        tree = order < 0 ? &(*tree)->low : &(*tree)->high;
    }
    return tree;
}

static void insert(struct once__table_row **tree, struct once__table_row *row)
{
    while (*tree != NULL && (*tree)->rank > row->rank)
        tree = memcmp(row->name, (*tree)->name, ONCE_NAME_SIZE) < 0
                   ? &(*tree)->low
                   : &(*tree)->high;
    cut(*tree, row->name, &row->low, &row->high);
    *tree = row;
}

static struct once__table_row *first_above(struct once__table_row *tree,
                                           const uint8_t *name)
{
    struct once__table_row *best = NULL;

    while (tree != NULL) {
        if (name == NULL || memcmp(tree->name, name, ONCE_NAME_SIZE) > 0) {
            best = tree;
            tree = tree->low;
        } else {
            tree = tree->high;
        }
    }
    return best;
}

/* ---- The directory ----------------------------------------------------- */

static struct once__table_row **tree_of(struct once__table *t,
                                        const uint8_t *name)
{
    size_t i = prefix(name, t->bits);

    return t->fresh != NULL && i < t->moved
               ? &t->fresh[prefix(name, t->bits + 1)]
               : &t->now[i];
}

static void cut_next(struct once__table *t)
{
    uint8_t middle[ONCE_NAME_SIZE] = {0};
    uint64_t value = ((uint64_t)t->moved * 2 + 1) << (63 - t->bits);
    int i;

    for (i = 0; i < 8; i++)
        middle[i] = (uint8_t)(value >> (56 - 8 * i));
    cut(t->now[t->moved], middle, &t->fresh[2 * t->moved],
        &t->fresh[2 * t->moved + 1]);
    t->moved++;
}

/* Without memory for twice the directory the trees just get a bit higher. */
static void grow(struct once__table *t)
{
    size_t size = (size_t)1 << t->bits;
    int i;

    if (t->fresh == NULL) {
        if (t->rows <= size || t->bits == LAST_BITS)
            return;
        t->fresh = calloc(2 * size, sizeof(struct once__table_row *));
        if (t->fresh == NULL)
            return;
        t->moved = 0;
    }
    for (i = 0; i < CUTS && t->moved < size; i++)
        cut_next(t);
    if (t->moved == size) {
        free(t->now);
        t->now = t->fresh;
        t->fresh = NULL;
        t->bits++;
    }
}

int once__table_init(struct once__table *t, uint64_t seed)
{
    memset(t, 0, sizeof(*t));
    t->bits = FIRST_BITS;
    t->random = seed | 1; /* xorshift never leaves 0 */
    t->now = calloc((size_t)1 << FIRST_BITS, sizeof(struct once__table_row *));
    return t->now == NULL ? ONCE_ENOMEM : ONCE_OK;
}

static void clear_tree(struct once__table_row *tree)
{
    struct once__table_row *row;

    while ((row = tree) != NULL) {
        join(row->low, row->high, &tree);
        free(row->blob);
        free(row);
    }
}

void once__table_clear(struct once__table *t)
{
    size_t i, size = (size_t)1 << t->bits;

    for (i = t->fresh == NULL ? 0 : t->moved; t->now != NULL && i < size; i++)
        clear_tree(t->now[i]);
    for (i = 0; t->fresh != NULL && i < 2 * t->moved; i++)
        clear_tree(t->fresh[i]);
    free(t->now);
    free(t->fresh);
    free(t->leases.at);
    free(t->keeps.at);
    free(t->waiting.at);
    memset(t, 0, sizeof(*t));
}

struct once__table_row *once__table_find(struct once__table *t,
                                         const uint8_t name[ONCE_NAME_SIZE])
{
    return *find(tree_of(t, name), name);
}

/* Counts in halves of `now`, because what has been cut is in `fresh`. */
struct once__table_row *once__table_after(struct once__table *t,
                                          const uint8_t *name)
{
    size_t i = name == NULL ? 0 : prefix(name, t->bits + 1);
    size_t end = (size_t)2 << t->bits;
    struct once__table_row *tree, *row;

    if (t->fresh == NULL || (i >> 1) >= t->moved)
        i &= ~(size_t)1;
    for (; i < end; i++) {
        if (t->fresh != NULL && (i >> 1) < t->moved)
            tree = t->fresh[i];
        else
            tree = i & 1 ? NULL : t->now[i >> 1];
        row = first_above(tree, name);
        if (row != NULL)
            return row;
    }
    return NULL;
}

/* ---- Due times --------------------------------------------------------- */

static struct once__heap *heap_of(struct once__table *t,
                                  const struct once__table_row *row)
{
    switch (row->state) {
    case ONCE_CLAIMED:
    case ONCE_DISPATCHED:
        return &t->leases;
    case ONCE_INDETERMINATE:
        return &t->waiting; /* never due: it waits for an operator */
    default:
        return row->attempt > 0 ? &t->keeps : NULL;
    }
}

static uint64_t due(const struct once__table_row *row)
{
    switch (row->state) {
    case ONCE_CLAIMED:
    case ONCE_DISPATCHED:
        return row->lease_ms;
    case ONCE_INDETERMINATE:
        return row->ended_ms;
    default:
        return row->keep_ms;
    }
}

static void put(struct once__heap *h, size_t i, struct once__table_row *row)
{
    h->at[i] = row;
    row->due_at = (uint32_t)(i + 1);
}

static void sift_up(struct once__heap *h, size_t i, struct once__table_row *row)
{
    size_t up;

    for (; i > 0; i = up) {
        up = (i - 1) / 2;
        if (due(h->at[up]) <= due(row))
            break;
        put(h, i, h->at[up]);
    }
    put(h, i, row);
}

static void sift_down(struct once__heap *h, size_t i,
                      struct once__table_row *row)
{
    size_t down;

    for (; (down = 2 * i + 1) < h->count; i = down) {
        if (down + 1 < h->count && due(h->at[down + 1]) < due(h->at[down]))
            down++;
        if (due(row) <= due(h->at[down]))
            break;
        put(h, i, h->at[down]);
    }
    put(h, i, row);
}

void once__table_undue(struct once__table *t, struct once__table_row *row)
{
    struct once__heap *h = heap_of(t, row);
    struct once__table_row *last;
    size_t i;

    if (row->due_at == 0)
        return;
    ONCE__MUST(h != NULL && h->at[row->due_at - 1] == row);
    i = row->due_at - 1;
    row->due_at = 0;
    last = h->at[--h->count];
    if (last == row)
        return;
    if (i > 0 && due(last) < due(h->at[(i - 1) / 2]))
        sift_up(h, i, last);
    else
        sift_down(h, i, last);
}

void once__table_due(struct once__table *t, struct once__table_row *row)
{
    struct once__heap *h = heap_of(t, row);

    ONCE__MUST(row->due_at == 0);
    if (h == NULL)
        return;
    ONCE__MUST(h->count < h->room);
    h->count++;
    sift_up(h, h->count - 1, row);
}

static int reserve(struct once__heap *h, size_t count)
{
    size_t room = h->room == 0 ? FIRST_ROOM : h->room + h->room / 2;
    void *at;

    if (count <= h->room)
        return 1;
    if (count >= UINT32_MAX)
        return 0;
    at = realloc(h->at, room * sizeof(struct once__table_row *));
    if (at == NULL)
        return 0;
    h->at = at;
    h->room = room;
    return 1;
}

void once__heap_walk(const struct once__heap *h, uint64_t now_ms, uint32_t max,
                     int (*each)(void *user, const struct once__table_row *row),
                     void *user)
{
    size_t i = 0;
    uint32_t shown = 0;

    /* Down the left side while it is due, then on to the next subtree. */
    while (i < h->count) {
        if (due(h->at[i]) <= now_ms) {
            if (shown++ == max || each(user, h->at[i]) != 0)
                return;
            if (2 * i + 1 < h->count) {
                i = 2 * i + 1;
                continue;
            }
        }
        while (i > 0 && ((i & 1) == 0 || i + 1 >= h->count))
            i = (i - 1) / 2;
        if (i == 0)
            return;
        i++;
    }
}

static once_position place_of(const struct once__table_row *row)
{
    once_position p = {due(row), {0}};

    memcpy(p.name, row->name, ONCE_NAME_SIZE);
    return p;
}

static int by_place(const void *a, const void *b)
{
    once_position x = place_of(*(struct once__table_row *const *)a);
    once_position y = place_of(*(struct once__table_row *const *)b);

    return once__position_order(&x, &y);
}

static int is_behind(const struct once__table_row *row,
                     const once_position *after)
{
    once_position place = place_of(row);

    return after == NULL || once__position_order(&place, after) > 0;
}

struct once__table_row **once__heap_page(const struct once__heap *h,
                                         const once_position *after,
                                         uint32_t max, size_t *n)
{
    struct once__table_row **page = malloc((h->count + 1) * sizeof(*page));
    size_t i;

    *n = 0;
    if (page == NULL)
        return NULL;
    for (i = 0; i < h->count; i++)
        if (is_behind(h->at[i], after))
            page[(*n)++] = h->at[i];
    qsort(page, *n, sizeof(struct once__table_row *), by_place);
    if (*n > max)
        *n = max;
    return page;
}

/* ---- Rows -------------------------------------------------------------- */

struct once__table_row *once__table_add(struct once__table *t,
                                        const uint8_t name[ONCE_NAME_SIZE])
{
    struct once__table_row *row;

    if (!reserve(&t->leases, t->rows + 1) || !reserve(&t->keeps, t->rows + 1) ||
        !reserve(&t->waiting, t->rows + 1))
        return NULL;
    row = calloc(1, sizeof(*row));
    if (row == NULL)
        return NULL;
    memcpy(row->name, name, ONCE_NAME_SIZE);
    row->rank = random32(t);
    insert(tree_of(t, name), row);
    t->rows++;
    grow(t);
    return row;
}

void once__table_remove(struct once__table *t, struct once__table_row *row)
{
    struct once__table_row **at = find(tree_of(t, row->name), row->name);

    ONCE__MUST(*at == row && row->due_at == 0);
    join(row->low, row->high, at);
    t->rows--;
    free(row);
}
