/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fakebroker.h - a broker in this process, for tests of the consumer: what is
 * delivered, when and how often is the test's to say, and each acknowledgement
 * can be judged in the moment in which it is made.
 *
 * The linker puts it in place of every other (--wrap=once__broker_find). Any
 * number of connections share one queue. What is out when a connection ends is
 * delivered again, as redelivered.
 */
#ifndef TEST_FAKEBROKER_H
#define TEST_FAKEBROKER_H

#include "messages/broker/broker.h"

enum { FAKE_MAX = 4000, FAKE_TEXT = 320 };

enum fake_state { FAKE_QUEUED, FAKE_OUT, FAKE_TAKEN };

struct fake {
    int state;
    int redelivered, times; /* deliveries so far */
    int given_back, still_at;
    int unclear; /* the test knows that it cannot be understood */
    const char *flaw;
    char id[FAKE_TEXT], key[64], type[64], headers[64]; /* "": NULL */
    char body[64];
    size_t body_size;
    const void *owner;
};

/* Empties the queue. */
void fake_reset(void);
/* Adds a message, which is delivered after all that are there. */
struct fake *fake_add(const char *id, const char *key, const char *body);
size_t fake_count(int state);
const struct fake *fake_at(size_t i);
/* Called before each acknowledgement; NULL: nothing. */
extern void (*fake_judge)(const struct fake *f);
/* So many connects, receives, acknowledgements fail from now on. */
extern _Atomic int fake_fail_connect, fake_fail_receive, fake_fail_ack;
extern int fake_connect_code;

#endif /* TEST_FAKEBROKER_H */
