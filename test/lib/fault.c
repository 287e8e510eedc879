/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fault.c - the countdown behind malloc and its kin; see fault.h.
 *
 * Every thread counts down the same number, so which allocation is the n-th
 * may differ from run to run; that each one is met is a matter of sweeping
 * until nothing fails any more.
 */
#include "fault.h"

#include <errno.h>
#include <pthread.h>
#include <sqlite3.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

static atomic_int_fast64_t left, live;
static atomic_uint_fast64_t failed;
static atomic_int armed, for_ever_after;

void *__real_malloc(size_t size);
void *__real_calloc(size_t n, size_t size);
void *__real_realloc(void *old, size_t size);
void __real_free(void *block);
int __real_pthread_create(pthread_t *t, const pthread_attr_t *a,
                          void *(*run)(void *), void *user);
ssize_t __real_getrandom(void *to, size_t size, unsigned flags);
void *__wrap_malloc(size_t size);
void *__wrap_calloc(size_t n, size_t size);
void *__wrap_realloc(void *old, size_t size);
void __wrap_free(void *block);
char *__wrap_strdup(const char *text);
char *__wrap_strndup(const char *text, size_t size);
int __wrap_pthread_create(pthread_t *t, const pthread_attr_t *a,
                          void *(*run)(void *), void *user);
ssize_t __wrap_getrandom(void *to, size_t size, unsigned flags);

void fault_arm(uint64_t n, int for_ever)
{
    atomic_store(&failed, 0);
    atomic_store(&left, (int64_t)n);
    atomic_store(&for_ever_after, for_ever);
    atomic_store(&armed, 1);
}

uint64_t fault_disarm(void)
{
    atomic_store(&armed, 0);
    return atomic_load(&failed);
}

int64_t fault_live(void)
{
    return atomic_load(&live);
}

static int fails(void)
{
    int64_t before;

    if (!atomic_load(&armed))
        return 0;
    before = atomic_fetch_sub(&left, 1);
    if (before > 1 || (before < 1 && !atomic_load(&for_ever_after)))
        return 0;
    atomic_fetch_add(&failed, 1);
    errno = ENOMEM;
    return 1;
}

static void *counted(void *block)
{
    if (block != NULL)
        atomic_fetch_add(&live, 1);
    return block;
}

void *__wrap_malloc(size_t size)
{
    return fails() ? NULL : counted(__real_malloc(size));
}

void *__wrap_calloc(size_t n, size_t size)
{
    return fails() ? NULL : counted(__real_calloc(n, size));
}

void *__wrap_realloc(void *old, size_t size)
{
    void *block;

    if (fails())
        return NULL;
    block = __real_realloc(old, size);
    return old == NULL ? counted(block) : block;
}

void __wrap_free(void *block)
{
    if (block != NULL)
        atomic_fetch_sub(&live, 1);
    __real_free(block);
}

char *__wrap_strndup(const char *text, size_t size)
{
    size_t length = strnlen(text, size);
    char *copy = __wrap_malloc(length + 1);

    if (copy == NULL)
        return NULL;
    memcpy(copy, text, length);
    copy[length] = '\0';
    return copy;
}

char *__wrap_strdup(const char *text)
{
    return __wrap_strndup(text, strlen(text));
}

int __wrap_pthread_create(pthread_t *t, const pthread_attr_t *a,
                          void *(*run)(void *), void *user)
{
    return fails() ? EAGAIN : __real_pthread_create(t, a, run, user);
}

ssize_t __wrap_getrandom(void *to, size_t size, unsigned flags)
{
    return fails() ? -1 : __real_getrandom(to, size, flags);
}

/* ---- SQLite's ----------------------------------------------------------- */

/* SQLite asks for the size of a block; libc would say more than was asked for,
 * and writing there is what ASan looks for. So the size stands in front. */
union head {
    int size;
    max_align_t align;
};

static void *lite_malloc(int size)
{
    union head *h = __wrap_malloc(sizeof(*h) + (size_t)size);

    if (h == NULL)
        return NULL;
    h->size = size;
    return h + 1;
}

static void lite_free(void *block)
{
    if (block != NULL)
        __wrap_free((union head *)block - 1);
}

static void *lite_realloc(void *block, int size)
{
    union head *h =
        __wrap_realloc((union head *)block - 1, sizeof(*h) + (size_t)size);

    if (h == NULL)
        return NULL;
    h->size = size;
    return h + 1;
}

static int lite_size(void *block)
{
    return block == NULL ? 0 : ((union head *)block - 1)->size;
}

static int lite_roundup(int size)
{
    return (size + 7) & ~7;
}

static int lite_init(void *user)
{
    (void)user;
    return SQLITE_OK;
}

static void lite_shutdown(void *user)
{
    (void)user;
}

void fault_sqlite(void)
{
    static const sqlite3_mem_methods methods = {
        lite_malloc,  lite_free, lite_realloc,  lite_size,
        lite_roundup, lite_init, lite_shutdown, NULL};

    if (sqlite3_config(SQLITE_CONFIG_MALLOC, &methods) != SQLITE_OK)
        abort();
}
