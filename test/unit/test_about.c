/* SPDX-License-Identifier: Apache-2.0 */
/* test_about.c - labels and trace ids: src/calls/http/about.c. */
#include <string.h>

#include "calls/http/http.h"
#include "t.h"

#define TRACE "4bf92f3577b34da6a3ce929d0e0e4736"
#define PARENT "00f067aa0ba902b7"

static once_bytes text(const char *s)
{
    return (once_bytes){s, strlen(s)};
}

static void a_label_is_printable_and_not_too_long(void)
{
    static const uint8_t odd[] = {'a', 0, '\n', 0x7f, 0xc3, 0xa4, ' ', '~'};
    char out[ONCE_LABEL_MAX], many[ONCE_LABEL_MAX + 40];

    T_EQ(once__label_clean(text(""), out), 0);
    T_EQ(once__label_clean(text("POST /pay order=7"), out), 17);
    T_MEM(out, "POST /pay order=7", 17);
    T_EQ(once__label_clean((once_bytes){odd, sizeof(odd)}, out), 8);
    T_MEM(out, "a????? ~", 8);
    memset(many, 'x', sizeof(many));
    T_EQ(once__label_clean((once_bytes){many, sizeof(many)}, out),
         ONCE_LABEL_MAX);
}

static void the_trace_id_of_the_specifications_example_is_read(void)
{
    uint8_t id[ONCE_TRACE_SIZE] = {0};
    char back[ONCE__TRACE_TEXT];

    T_EQ(once__trace_read(text("00-" TRACE "-" PARENT "-01"), id), 1);
    T_EQ(id[0], 0x4b);
    T_EQ(id[15], 0x36);
    T_EQ(once__trace_text(id, back), 1);
    T_EQ(strcmp(back, TRACE), 0);
    T_EQ(once__trace_read(text("00-" TRACE "-" PARENT "-00"), id), 1);
    T_EQ(once__trace_read(text("cc-" TRACE "-" PARENT "-01"), id), 1);
    T_EQ(once__trace_read(text("cc-" TRACE "-" PARENT "-01-more"), id), 1);
}

static void what_is_no_traceparent_is_left_out(void)
{
    static const char *const bad[] = {
        "",
        "00",
        "00-" TRACE "-" PARENT "-0",
        "00-" TRACE "-" PARENT "-01-",
        "00-" TRACE "-" PARENT "-01-more",
        "cc-" TRACE "-" PARENT "-01more",
        "ff-" TRACE "-" PARENT "-01",
        "00-00000000000000000000000000000000-" PARENT "-01",
        "00-" TRACE "-0000000000000000-01",
        "00-4BF92F3577B34DA6A3CE929D0E0E4736-" PARENT "-01",
        "0x-" TRACE "-" PARENT "-01",
        "00-" TRACE "-" PARENT "-0g",
        "00_" TRACE "-" PARENT "-01",
        "00-" TRACE "_" PARENT "-01",
        "00-" TRACE "-" PARENT "_01",
    };
    uint8_t id[ONCE_TRACE_SIZE], before[ONCE_TRACE_SIZE];
    char back[ONCE__TRACE_TEXT];
    size_t i;

    memset(id, 0x5a, sizeof(id));
    memcpy(before, id, sizeof(id));
    for (i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
        if (!T_OK(once__trace_read(text(bad[i]), id) == 0))
            printf("#   %s\n", bad[i]);
    T_MEM(id, before, sizeof(id));
    memset(id, 0, sizeof(id));
    T_EQ(once__trace_text(id, back), 0);
}

static void every_reason_has_a_word_of_its_own(void)
{
    int i, k;

    for (i = 0; i < ONCE__REASON_END; i++)
        for (k = 0; k < i; k++)
            T_OK(strcmp(once_reason_text(i), once_reason_text(k)) != 0);
    T_EQ(strcmp(once_reason_text(ONCE__REASON_END), "-"), 0);
    T_EQ(strcmp(once_reason_text(-1), "-"), 0);
}

int main(void)
{
    T_RUN(a_label_is_printable_and_not_too_long);
    T_RUN(the_trace_id_of_the_specifications_example_is_read);
    T_RUN(what_is_no_traceparent_is_left_out);
    T_RUN(every_reason_has_a_word_of_its_own);
    return t_done();
}
