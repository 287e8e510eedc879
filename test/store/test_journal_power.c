/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_journal_power.c - power cuts: what was not flushed is lost, torn or reordered.
 *
 *    test_journal_power [CASE]
 *
 * What reaches the disk is seen through the linker (journal_disk.h).
 */
#include "journal_disk.h"

/* What was acknowledged: keys below `keys`, and that it is this incarnation. */
struct acked {
    uint32_t keys, incarnation;
};

static void check_head(once_store *s, uint32_t incarnation)
{
    once_store_head h = {.gap = 99};
    uint64_t fence = 0;

    T_EQ(s->ops->head(s, NULL, &h, NULL), ONCE_OK);
    T_OK(h.incarnation == incarnation || h.incarnation == incarnation + 1);
    T_EQ(h.gap_from_ms, h.incarnation * 1000);
    T_EQ(s->ops->fence(s, &fence, NULL), ONCE_OK);
    T_OK(fence >= (uint64_t)h.incarnation << ONCE__FENCE_BITS);
}

/* Opens what the power cut left. */
static void check_image(const char *image, const struct acked *a)
{
    once_store *s = NULL;
    once_error err = {0, ""};
    uint32_t acked = a->keys;
    uint32_t i;
    int rc = try_open(image, "?segment=65536", NULL, &err, &s);

    T_EQ(rc, ONCE_OK);
    if (rc != ONCE_OK) {
        printf("#   %s\n", err.text);
        return;
    }
    check_head(s, a->incarnation);
    for (i = 0; i < acked; i++)
        if (i % 4 == 0)
            T_OK(is_there(s, i));
        else
            T_EQ(verb_on(s, ONCE_OP_SHOW, i), ONCE_FREE);
    for (i = acked; i < acked + 2; i++) { /* what was under way */
        rc = verb_on(s, ONCE_OP_SHOW, i);
        T_OK(rc == ONCE_FREE || rc == ONCE_IN_FLIGHT || rc == ONCE_REPLAY);
        if (rc == ONCE_REPLAY)
            T_OK(is_there(s, i));
    }
    T_EQ(complete_one(s, 9999, 5000), ONCE_OK);
    once_store_close(s);
}

static void acknowledge(uint32_t keys, uint32_t incarnation)
{
    struct event *e;

    (void)pthread_mutex_lock(&disk.lock);
    e = add_event(ACK, 0);
    e->key = keys;
    e->size = incarnation;
    (void)pthread_mutex_unlock(&disk.lock);
}

static void raise_to(once_store *s, uint32_t incarnation)
{
    once_store_head h;

    T_EQ(s->ops->head(s, NULL, &h, NULL), ONCE_OK);
    h.incarnation = incarnation;
    h.gap_from_ms = incarnation * 1000;
    T_EQ(s->ops->head(s, &h, &h, NULL), ONCE_OK);
}

static void record_work(const char *path, uint32_t keys)
{
    uint32_t incarnation = 0;
    once_store *s;
    uint32_t i;

    disk.recording = 1;
    s = must_open(path);
    for (i = 0; i < keys; i++) {
        T_EQ(complete_one(s, i, i % 4 == 0 ? 1000000000 : 0), ONCE_OK);
        if (i % 4 != 0)
            T_EQ(verb_on(s, ONCE_OP_FORGET, i), ONCE_OK);
        acknowledge(i + 1, incarnation);
        if (i % 50 == 25) {
            raise_to(s, ++incarnation);
            acknowledge(i + 1, incarnation);
        }
        if (i % 20 == 0) {
            T_EQ(s->ops->maintain(s, NULL), ONCE_OK);
            (void)usleep(1000);
        }
        if (i % 300 == 299) {
            once_store_close(s);
            s = must_open(path);
        }
    }
    once_store_close(s);
    disk.recording = 0;
}

/* Around the coming and going of files there is more to get wrong. */
static int is_delicate(size_t i)
{
    return disk.events[i].what == REMOVE || disk.events[i].what == RENAME ||
           (disk.events[i].what == FLUSH_NAMES && i % 2 == 0);
}

static void what_a_power_cut_leaves_has_all_that_was_acknowledged(void)
{
    enum { KEYS = 900, IMAGES = 300 };
    struct model *m = calloc(1, sizeof(*m));
    char path[128], image[128];
    struct acked acked = {0, 0};
    uint32_t images = 0;
    size_t i;

    assert(m != NULL);
    m->random = 77;
    new_path(path, sizeof(path));
    new_path(image, sizeof(image));
    record_work(path, KEYS);
    for (i = 0; i < disk.count && t__bad == 0; i++) {
        model_step(m, i);
        if (disk.events[i].what == ACK) {
            acked.keys = disk.events[i].key;
            acked.incarnation = (uint32_t)disk.events[i].size;
        }
        if (!is_delicate(i) && draw(m) % (unsigned)(disk.count / IMAGES) != 0)
            continue;
        build_image(m, image);
        if (m->sure[0].node == 0 && acked.keys == 0)
            continue; /* nothing there yet */
        check_image(image, &acked);
        images++;
        if (t__bad != 0)
            printf("#   after event %zu of %zu\n", i, disk.count);
    }
    printf("# %u images at %zu events\n", images, disk.count);
    T_OK(images > IMAGES / 2);
    for (i = 0; i < disk.count; i++)
        free(disk.events[i].bytes);
    disk.count = 0;
    for (i = 0; i < m->count; i++) {
        free(m->nodes[i].bytes);
        free(m->nodes[i].waiting);
    }
    free(m);
}

int main(int argc, char **argv)
{
    const char *only = argc == 2 ? argv[1] : "";

    (void)snprintf(folder, sizeof(folder), "/tmp/once-journal-XXXXXX");
    if (mkdtemp(folder) == NULL)
        return 2;
    RUN(what_a_power_cut_leaves_has_all_that_was_acknowledged);
    remove_folder();
    return t_done();
}
