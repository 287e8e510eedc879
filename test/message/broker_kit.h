/* SPDX-License-Identifier: Apache-2.0 */
/* broker_kit.h - what the tests of brokers share. */
#ifndef TEST_BROKER_KIT_H
#define TEST_BROKER_KIT_H

#include "messages/broker/broker.h"
#include "t.h"

enum { KIT_MANY = 1024 };

/* How messages ended, by tag. */
struct kit_ends {
    int n[KIT_MANY], end[KIT_MANY], status[KIT_MANY];
    char why[KIT_MANY][80];
};

/* Messages under way, which must stay where they are. */
struct kit_many {
    once_message m[KIT_MANY];
    char id[KIT_MANY][16];
};

struct once__broker_options kit_options(const char *consumer,
                                        uint32_t prefetch);
/* What was logged since the last call with NULL. */
int kit_logged(const char *word);
/* Opened and connected, or the program ends. */
struct once__broker *kit_open(const char *url,
                              const struct once__broker_options *o);
int kit_connect(struct once__broker *b, uint32_t ms);
once_message kit_message(const char *id, const char *key, const char *body,
                         size_t size);
struct kit_many *kit_many_new(void);
/* Waits up to `ms` for `n` proofs; the number that came. */
size_t kit_collect(struct once__broker *b, struct kit_ends *ends, size_t n,
                   uint32_t ms);
int kit_ctl(const char *verb, const char *server);

/* librdkafka has threads of C11. ThreadSanitizer of gcc 12 does not see them begin, and
 * ends with SIGSEGV. */
static inline void kit_skip_c11_threads(void)
{
#ifdef __SANITIZE_THREAD__
    t_skip_all("ThreadSanitizer does not know the threads of librdkafka");
#endif
}

#endif /* TEST_BROKER_KIT_H */
