/* SPDX-License-Identifier: Apache-2.0 */
/* The corners of src/calls/core that no protocol leads to: texts for numbers, records
 * that nobody can have written, actions that there are not. */
#include "t.h"

#include <once/store.h>

#include "calls/core/transition.h"
#include "calls/core/machine.h"
#include "base/error.h"

static void every_answer_has_a_text_of_its_own(void)
{
    int a, b;

    for (a = ONCE_OK; a <= ONCE_TOO_SOON; a++) {
        T_OK(once_text(a)[0] != '\0');
        for (b = ONCE_OK; b < a; b++)
            T_OK(strcmp(once_text(a), once_text(b)) != 0);
    }
    T_STR(once_text(ONCE_OWNER), "owner");
    T_STR(once_text(ONCE_REFUSED), "refused");
    T_STR(once_text(ONCE_REPEATED), "repeated");
    T_STR(once_text(ONCE_EXPIRED), "expired");
    T_STR(once_text(ONCE_TOO_SOON), "too soon");
}

static void every_error_has_the_text_of_the_list(void)
{
#define CHECK(name, number, again, text)                                       \
    T_EQ(name, number);                                                        \
    T_STR(once_text(name), text);
    ONCE_ERRORS(CHECK)
#undef CHECK
}

static void what_is_no_code_has_a_text_too(void)
{
    static const char none[] = "no such code";

    T_STR(once_text(ONCE_TOO_SOON + 1), none);
    T_STR(once_text(ONCE__ERRORS_END), none);
    T_STR(once_text(INT32_MIN), none);
    T_STR(once_text(INT32_MAX), none);
}

static void a_failure_is_told_to_those_who_ask(void)
{
    once_error err = {0, "nothing"};

    T_EQ(once__fail(NULL, ONCE_EURL, "%s", "not read"), ONCE_EURL);
    T_EQ(once__fail(&err, ONCE_ELIMIT, "%d is over %d", 2, 1), ONCE_ELIMIT);
    T_EQ(err.code, ONCE_ELIMIT);
    T_STR(err.text, "2 is over 1");
}

static void a_long_failure_is_cut_and_ends(void)
{
    char text[1024];
    once_error err;

    memset(text, 'x', sizeof(text));
    text[sizeof(text) - 1] = '\0';
    memset(&err, 1, sizeof(err));
    T_EQ(once__fail(&err, ONCE_EURL, "%s", text), ONCE_EURL);
    T_EQ(strlen(err.text), sizeof(err.text) - 1);
}

/* A row that was never granted: nothing may stand in it. */
static void a_record_that_was_never_granted_holds_nothing(void)
{
    once_record r;

    memset(&r, 0, sizeof(r));
    T_OK(once__record_sane(&r));
    r.state = ONCE_CLAIMED;
    T_OK(!once__record_sane(&r));
    r.state = ONCE_ABSENT;
    r.fence = 1;
    T_OK(!once__record_sane(&r));
    r.fence = 0;
    T_EQ(once__record_due(&r, UINT64_MAX), 0);
}

static void actions_ask_for_the_verb_of_their_name(void)
{
    T_EQ(once__action_verb(ONCE__ASK_CLAIM), ONCE_OP_CLAIM);
    T_EQ(once__action_verb(ONCE__ASK_GIVE_UP), ONCE_OP_GIVE_UP);
    T_EQ(once__action_verb(ONCE__SEND), 0);
    T_EQ(once__action_verb(ONCE__RETURN), 0);
    T_EQ(once__action_verb(ONCE__RETURN + 1), 0);
}

int main(void)
{
    T_RUN(every_answer_has_a_text_of_its_own);
    T_RUN(every_error_has_the_text_of_the_list);
    T_RUN(what_is_no_code_has_a_text_too);
    T_RUN(a_failure_is_told_to_those_who_ask);
    T_RUN(a_long_failure_is_cut_and_ends);
    T_RUN(a_record_that_was_never_granted_holds_nothing);
    T_RUN(actions_ask_for_the_verb_of_their_name);
    return t_done();
}
